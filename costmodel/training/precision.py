"""Number formats of a training run, and the states of parameters that optimizers keep in them.

A format states the bytes of weights, gradients and activations, and the format in which layers multiply. Optimizers
keep states for each parameter, and ZeRO [Rajbhandari2020]_ divides some of them among replicas: its stages are rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Literal, get_args

import numpy as np
import yaml

from costmodel.columns import BoolArray, FloatArray

#: Words of `moments`, and bytes of one of them. [B]
MOMENTS: Final[Mapping[str, float]] = {"fp32": 4.0, "bf16": 2.0}

FULL_BYTES: Final = 4.0  #: of an fp32 number [B]
#: Bytes that a master weight saves where a 16-bit weight holds its upper half. [B]
REMAINDER_BYTES: Final = 2.0


@dataclass(frozen=True, slots=True)
class OptimizerRule:
    """Optimizer states per parameter, in addition to a master weight in full precision."""

    moments: int  #: running sums of gradients, or of their squares
    #: Steps of Newton-Schulz iteration that make a matrix's update orthogonal; 0: each parameter by itself.
    newton_schulz_steps: int = 0

    def state_bytes(self, usual: FloatArray | float, moment_bytes: FloatArray, remainders: FloatArray) -> FloatArray:
        """States of one parameter. [B]

        `usual` is a master weight and two moments of full precision [B]; `moment_bytes` are those of one moment,
        (points,) [B]; `remainders` is 1 where only the part of master weights that weights lack is kept, (points,).
        [-]

        In addition to 2 B of a weight and 4 B of its gradient, replicas shard 12 B, 8 with 16-bit moments, 2 less
        with remainders, as in Megatron-LM's precision-aware optimizer; Muon has one moment less.
        """
        fewer = (2 - self.moments) * FULL_BYTES
        narrower = self.moments * (FULL_BYTES - moment_bytes)
        return usual - fewer - narrower - remainders * REMAINDER_BYTES

    def accesses(self, moment_bytes: FloatArray) -> FloatArray:
        """Reads and writes of one parameter's update, in full-precision numbers. [-]

        The gradient is read; the weight and each moment are read and written.
        """
        return 3 + 2 * self.moments * moment_bytes / FULL_BYTES


#: Word of `optimizer` -> its rule. Muon [Jordan2024]_ is for matrices of layers; all other parameters use Adam.
OPTIMIZERS: Final[Mapping[str, OptimizerRule]] = {
    "adam": OptimizerRule(moments=2),
    "muon": OptimizerRule(moments=1, newton_schulz_steps=5),
}
ADAM: Final = OPTIMIZERS["adam"]
MUON: Final = OPTIMIZERS["muon"]

State = Literal["weights", "gradients", "optimizer"]
STATES: Final[tuple[State, ...]] = get_args(State)


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of a rank's weights or gradients over replicas of them."""

    collective: str
    of: State
    every: Literal["step", "micro_batch"]  #: how often it runs
    behind: Literal["forward", "backward"]  #: the pass over the layers that may hide it
    again: bool = False  #: left out where the gathered weights of the forward pass are kept
    #: Replicas that take part: all; or those that share out one copy of the states, or have the same share.
    over: Literal["whole", "shards", "copies"] = "shards"


@dataclass(frozen=True, slots=True)
class ZeroStage:
    """A stage of sharded data parallelism: states that replicas share out, and exchanges for it."""

    sharded: tuple[State, ...]  #: over the replicas; each of them has all of the others
    exchanges: tuple[Exchange, ...]
    outer: tuple[State, ...] = ()  #: of them, those that copies of sharded states divide further


_GATHERED: Final = Exchange("all_gather", "weights", "step", "forward")
_SCATTERED: Final = Exchange("reduce_scatter", "gradients", "micro_batch", "backward")
_SCATTERED_ONCE: Final = replace(_SCATTERED, every="step")
_FOR_PASSES: Final = (
    Exchange("all_gather", "weights", "micro_batch", "forward"),
    Exchange("all_gather", "weights", "micro_batch", "backward", again=True),
)
_SUMMED: Final = Exchange("all_reduce", "gradients", "step", "backward", over="copies")
#: Where copies divide the optimizer's states: weights are gathered before both passes of the first micro-batch.
_OUTER: Final = (
    replace(_SUMMED, collective="reduce_scatter"),
    *(replace(exchange, every="step", over="copies") for exchange in _FOR_PASSES),
)

_REDUCED: Final = Exchange("all_reduce", "gradients", "step", "backward", over="whole")

#: Stage 1 where gradients are all-reduced nevertheless, and each replica uses its share.
WHOLE_GRADIENTS: Final = ZeroStage(("optimizer",), (_REDUCED, _GATHERED))
#: Stage -> its rule. Gradients are all-reduced; or reduce-scattered, with weights gathered after each replica's
#: update of its share, as in Megatron-LM's distributed optimizer; or reduce-scattered for each micro-batch; or
#: weights are gathered too, for each pass of each micro-batch, as in PyTorch's fully sharded data parallelism. In a
#: pipeline it accumulates whole gradients and reduces them once, the next row (torchtitan). Where sharded states
#: have copies, their gradients are added up once in a step; in the last two rows copies divide the optimizer's states
#: of stage 3 and its pipelines too (Megatron-FSDP, `outer_dp_sharding_strategy: optim`).
ZERO: Final = (
    ZeroStage((), (_REDUCED,)),
    ZeroStage(("optimizer",), (_SCATTERED_ONCE, _SUMMED, _GATHERED)),
    ZeroStage(("optimizer", "gradients"), (_SCATTERED, _SUMMED, _GATHERED)),
    ZeroStage(STATES, (_SCATTERED, _SUMMED, *_FOR_PASSES)),
    ZeroStage(("optimizer", "weights"), (_SCATTERED_ONCE, _SUMMED, *_FOR_PASSES)),
    ZeroStage(STATES, (_SCATTERED, *_OUTER, *_FOR_PASSES), outer=("optimizer",)),
    ZeroStage(("optimizer", "weights"), (_SCATTERED_ONCE, *_OUTER, *_FOR_PASSES), outer=("optimizer",)),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Precision:
    """Bytes per element of the tensors that a training step keeps and moves, where no format narrows them."""

    element_bytes: float  #: operands of matrix products, activations and the weights they use [B]
    gradient_bytes: float  #: gradients, as they are accumulated and reduced [B]
    state_bytes: float  #: optimizer states per parameter, master weights included [B]


#: 16-bit operands, fp32 accumulation of gradients, fp32 master weights and two Adam moments: the 18
#: bytes per parameter of [Korthikanti2022]_ and of Megatron-LM with either bf16 or fp16.
MIXED_PRECISION = Precision(element_bytes=2.0, gradient_bytes=4.0, state_bytes=12.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class Format:
    """Number format of products of linear layers and experts: a recipe of Megatron-LM and Transformer Engine.

    Both operands of the product and of both its gradients are cast. A transposed copy serves the product
    that runs along the other axis: of activations the gradient of weights, of weights that of activations.
    """

    units: str = ""  #: units of a chip that multiply them, as `Chip.format_rate` names them; "" of 16 bits
    element_bytes: float = 0.0  #: of an activation or gradient with its scales [B]
    weight_bytes: float = 0.0  #: of a weight with its scales [B]
    maxima: float = 0.0  #: passes over a tensor for its largest value, before the one that casts it
    #: Whether a transposed copy is needed: scales run along one axis, or units read one layout alone.
    transposed_scales: bool = False
    multiple: float = 1.0  #: rows of an expert's product are a multiple of it [-]
    dispatched: bool = False  #: whether tokens are cast before they are sent to their experts
    #: With `fp8_parameters`: bytes of a weight, which then has no 16-bit copy (0: it keeps that one), and of
    #: a gathered one, where weights are gathered once a step and where for each pass (0: 16 bits). [B]
    primary_bytes: float = 0.0
    gathered_bytes: float = 0.0
    gathered_shard_bytes: float = 0.0


#: Word of `precision` -> its format, in the order of its codes.
FORMATS: Final[Mapping[str, Format]] = {
    word: Format(**fields) for word, fields in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
}

#: Words of `gradient_reduction` -> bytes of a gradient, accumulated and reduced; 0 as `Precision` says. [B]
REDUCTIONS: Final[Mapping[str, float]] = {"fp32": 0.0, "bf16": 2.0}

#: Words of `cross_entropy` -> bytes of a logit at once. megatron: an fp32 copy and 16-bit gradients; native: with
#: `--cross-entropy-loss-fusion` (both: peaks of Megatron-LM's functional tests); te: gradients over 16-bit logits;
#: pytorch: three fp32 copies; chunked: of an eighth of the tokens; xla, compiled: logits and gradients in 16 bits
#: (compiled: peaks of 22 runs on one GPU, benchmarks/measure_steps.py). [B]
CROSS_ENTROPY: Final = {
    "megatron": 6.0, "native": 10.0, "te": 2.0, "pytorch": 14.0, "chunked": 14 / 8, "xla": 4.0, "compiled": 4.0,
}  # fmt: skip
#: The loss compiled by PyTorch: fp32 logits stay on chip.
COMPILED_LOSS: Final = [*CROSS_ENTROPY].index("compiled")

_IS_NARROW: Final = np.array([bool(row.units) for row in FORMATS.values()])


def is_narrow(codes: FloatArray) -> BoolArray:
    """Where products of layers have operands of fewer than 16 bits, by codes of `FORMATS`."""
    return _IS_NARROW[codes.astype(np.intp)]


def of_formats(codes: FloatArray, name: str) -> FloatArray:
    """A field of each design's number format, by codes of `FORMATS`; in the unit of the field."""
    return np.array([float(getattr(number_format, name)) for number_format in FORMATS.values()])[codes.astype(np.intp)]


def reduced_bytes(codes: FloatArray, precision: Precision) -> FloatArray | float:
    """Bytes of a gradient, by codes of `REDUCTIONS`: one number where all are as `precision` says. [B]"""
    if not codes.any():
        return precision.gradient_bytes
    every_size = np.array([size or precision.gradient_bytes for size in REDUCTIONS.values()])
    return every_size[codes.astype(np.intp)]
