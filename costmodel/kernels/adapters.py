"""Adapters of LoRA [Hu2022]_, and frozen weights in NF4 [Dettmers2023]_: their products, passes, sizes and collectives.

LoRA freezes weights W of (k, n) and trains A of (k, r) and B of (r, n): Y = X W + (X A) B. A frozen product needs no
gradient of its weight and keeps no input. An adapter keeps X, whole on each rank of a tensor-parallel group, and X A.

Tensor parallelism follows NVIDIA Megatron-Bridge (`peft/utils.py`, ``ParallelLinearAdapter``). For a product split by
columns, A is split by its r columns and X A is gathered; for one split by rows, X A is reduced and the output of B is
gathered. Local experts of a rank share one adapter, with equal copies on all ranks.

For example, adapters of rank 16 on all linear layers of Llama 3 8B have 41.9 million parameters if queries, keys,
values, gates and up projections have one each (PEFT), and 35.7 million on fused products (Megatron-Bridge).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.training.design import LORA_TARGETS, DesignPoints
from costmodel.training.dimensions import ModelDimensions
from costmodel.training.kernel_kind import Dimensions, Kernel
from costmodel.training.run import RankRun, RankShape, is_packed

#: Bytes of a weight in NF4 with double quantization: 4 bits, and 8 + 32 / 256 bits of constants for 64 weights.
NF4_BYTES: Final = (4 + 8 / 64 + 32 / (64 * 256)) / 8
#: Features, as rows of blocks name them: of MLPs and experts; of queries, keys and values, and latents before them; of
#: delta nets and state-space mixers.
_MLP_FEATURES: Final = {"up", "ffn", "expert_in", "expert_up", "expert_ffn", "shared_up", "shared_ffn"}
_OF_QKV: Final = {"qkv", "kv", "queries", "query_rank", "key_latent", "keys_values", "shared_key"}
_OF_MIXERS: Final = {"delta_in", "delta_out", "kda_in", "kda_rank", "mamba_in", "mamba_out", "scan_in", "lightning_in"}


def may_adapt(kernel: Kernel) -> bool:
    """True if a row of a block may have an adapter: linear layers may, but no router and no gate of one feature."""
    matrix = kernel.kind.matrix
    return matrix is not None and matrix.model_flops and kernel.makes not in ("unit", "vocabulary")


@dataclass(frozen=True, slots=True, eq=False)
class LoraAdapter:
    """The adapters of a product; (points,) columns."""

    rank: FloatArray  #: 0 where it has none [-]
    pieces: FloatArray | float  #: of the same input [-]
    width: FloatArray | float  #: features that they make, all together [elements]

    @classmethod
    def of(cls, model: ModelDimensions, design: RankShape | DesignPoints, kernel: Kernel) -> LoraAdapter:
        """Adapters of a row of a block."""
        of_mlp, of_mixer = (bool(of & {kernel.reads, kernel.makes}) for of in (_MLP_FEATURES, _OF_MIXERS))
        adapted = {"all_linear": True, "attention": not of_mlp, "mlp": of_mlp, "query_value": kernel.makes == "qkv",
                   "qkv": kernel.makes in _OF_QKV, "all_but_mixers": not of_mixer}  # fmt: skip
        chosen = np.array([adapted[word] for word in LORA_TARGETS])[design.lora_targets.astype(np.intp)]
        query_value = adapted["query_value"] & (design.lora_targets == LORA_TARGETS.index("query_value"))
        rank = np.where(chosen & may_adapt(kernel), design.lora_rank, 0.0)
        several = {"qkv": 3.0 - model.values_are_keys, "kv": 2.0, "delta_in": 4.0, "index_keys": 2.0}  # as Transformers
        halves = 2.0 if model.gated_mlp and kernel.makes in ("up", "expert_up", "shared_up") else 1.0
        pieces = np.where(design.lora_fused > 0, 1.0, several.get(kernel.makes, halves) - query_value)
        return cls(rank, pieces, model.features[kernel.makes] - query_value * model.num_query_groups * model.score_size)

    @property
    def made(self) -> FloatArray:
        """Features that A makes of a token, and that are kept. [elements]"""
        return self.rank * self.pieces

    def parameters(self, model: ModelDimensions, kernel: Kernel) -> FloatArray:
        """Entries of A and B; experts share theirs. [-]"""
        return self.rank * (self.pieces * model.features[kernel.reads] + self.width)


def adapter_products(run: RankRun, kernel: Kernel) -> Iterator[tuple[str, Dimensions, FloatArray]]:
    """Name, (m, n, k) and launches of the forward products of a kernel's adapters, on one rank. [elements], [-]"""
    run = run.of_kernel(kernel)
    adapter, by_rows = LoraAdapter.of(run.model, run.design, kernel), run.design.is_split(kernel, "row")
    [product] = kernel.kind.products(run, kernel)
    m, n, k = product.size
    split = np.where(by_rows, 1.0, run.design.tp) if kernel.splits_weight else np.ones(())
    made = adapter.width / run.model.features[kernel.makes] * n / adapter.pieces
    launches = np.where(adapter.rank > 0, adapter.pieces, 0.0)
    rank = np.maximum(adapter.rank, 1.0)
    yield f"{kernel.name}_lora_a", (m * product.batch, rank / split, k), launches
    yield f"{kernel.name}_lora_b", (m * product.batch, made / np.where(by_rows, run.design.tp, 1.0), rank), launches


def adapter_passes(run: RankRun, kernel: Kernel) -> Iterator[tuple[str, str, FloatArray, float, FloatArray | float]]:
    """Name, pass, elements, tensors moved and further bytes of the adapter's passes for a frozen product on one rank.

    Outputs of adapters are scaled (2 tensors) and added (3), their gradients scaled, and gradients of inputs added.
    Compilers fuse these passes with others (`Software.adapter_passes`). Each product dequantizes weights in NF4.
    """
    run = run.of_kernel(kernel)
    adapter = LoraAdapter.of(run.model, run.design, kernel)
    [product] = kernel.kind.products(run, kernel)
    m, n, k = (np.asarray(size, dtype=np.float64) for size in product.size)
    has, rows = np.where(adapter.rank > 0, run.system.software.adapter_passes, 0.0), m * product.batch
    outputs = rows * n / np.where(run.design.is_split(kernel, "row"), run.design.tp, 1.0)
    yield f"{kernel.name}_lora_add", "forward", has * outputs, 5.0, 0.0
    yield f"{kernel.name}_lora_scale", "activation_gradient", has * outputs, 2.0, 0.0
    yield f"{kernel.name}_lora_sum", "activation_gradient", has * rows * k, 3.0, 0.0
    for of_pass in ("forward", "activation_gradient"):
        weights = np.where(is_packed(run), n * k * product.batch, 0.0)
        yield f"{kernel.name}_dequantize", of_pass, weights, 1.0, NF4_BYTES


def adapter_exchanges(run: RankRun, kernel: Kernel) -> Iterator[tuple[str, str, FloatArray]]:
    """Direction, collective and message of each exchange of a tensor-parallel group for a kernel's adapters. [B]

    Sequence parallelism scatters outputs of products split by rows, and gathers their gradients.
    """
    if not kernel.splits_weight:
        return
    run = run.of_kernel(kernel)
    adapter, sizes = LoraAdapter.of(run.model, run.design, kernel), run.model.features
    bytes_of_tokens = np.where(adapter.rank > 0, run.tokens * run.precision.element_bytes, 0.0)
    thin = bytes_of_tokens * adapter.made
    by_rows = run.design.is_split(kernel, "row")
    sequence = run.design.is_split(run.design.stream, "sequence")
    yield "forward", "all_gather", np.where(by_rows, bytes_of_tokens * sizes[kernel.makes], thin)
    yield "forward", "all_reduce", np.where(by_rows, thin, 0.0)
    yield "backward", "all_reduce", thin
    whole = bytes_of_tokens * np.where(by_rows, sizes[kernel.makes], sizes[kernel.reads])
    yield "backward", "all_gather", np.where(by_rows & sequence, whole, 0.0)
    yield "backward", "all_reduce", np.where(by_rows | sequence, 0.0, whole)


def adapter_parameters(run: RankRun, kernel: Kernel) -> FloatArray:
    """Parameters of a kernel's adapters on one rank. [-]"""
    run = run.of_kernel(kernel)
    whole = LoraAdapter.of(run.model, run.design, kernel).parameters(run.model, kernel)
    return whole / (run.design.tp if kernel.splits_weight else run.design.etp if kernel.of_experts else 1.0)
