"""Shapes of models: dimensions, and the sequence of layers that follows from them.

A layer is a mixer and an MLP, each a block of kernels (`blocks`). Parameters and FLOP are sums over the kernels of
the sequence of layers: 12 h^2 + 13 h parameters for a layer of GPT [Narayanan2021]_."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache, cached_property
from itertools import groupby

from costmodel.columns import short_repr
from costmodel.errors import DseError
from costmodel.training.blocks import SWITCHES, Block, Layer, LayerKind, head_of, layer_of, mtp_layer
from costmodel.training.dimensions import ModelDimensions, Sizes
from costmodel.training.kernel_kind import Kernel


@dataclass(frozen=True, kw_only=True)
class ModelShape(ModelDimensions):
    """A decoder-only transformer: dimensions, and the sequence of layers that follows from them. [-]

    GPT-3 has ``layer_norm``, biases, learned positions and tied embeddings; Llama has ``rms_norm``, a
    gated MLP, rotary positions, grouped queries and none of the rest.

    Raises `DseError` if dimensions contradict each other, or layers and their number.
    """

    __repr__ = short_repr

    #: Kinds of layers and the number of each, in order; () means that the fields describe all. They sum to
    #: `num_layers`.
    layers: tuple[tuple[Layer, float], ...] = ()

    def __post_init__(self) -> None:
        ModelDimensions.__post_init__(self)
        if sum(count for _, count in self.sequence) != self.num_layers:
            raise DseError(f"model {self.name}: layers: expected {self.num_layers:g} in all, as num_layers says")

    @cached_property
    def sequence(self) -> tuple[tuple[Layer, float], ...]:
        """Kinds of layers and how many of each, in order."""
        return self.layers or layer_sequence(self)

    @cached_property
    def last_layer(self) -> Layer:
        """The kind of its last layer."""
        return self.sequence[-1][0]

    @cached_property
    def head(self) -> Block:
        """The kernels behind its last layer."""
        return head_of(self.last_layer.blocks)

    @cached_property
    def mtp_layer(self) -> Layer:
        """The layers of a multi-token prediction module, where `mtp_layers` asks for one."""
        ordered = [layer_of(layer_kind(self, *self.letters[letter])) for letter in self.mtp_order]
        return mtp_layer(*ordered or [self.last_layer])

    @cached_property
    def kinds(self) -> dict[Layer, float]:
        """The kinds of its layers, and how many it has of each in all."""
        counts = dict.fromkeys((layer for layer, _ in self.sequence), 0.0)
        for layer, count in self.sequence:
            counts[layer] += count
        return counts

    @cached_property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of its layers, each once."""
        layers = [*self.kinds, *([self.mtp_layer] if self.mtp_layers else [])]
        return tuple(dict.fromkeys(block for layer in layers for block in layer.blocks))

    def of_kernel(self, kernel: Kernel) -> ModelShape:
        """The model with the dimensions of the layers of a kernel."""
        return resized(self, kernel.sizes) if kernel.sizes else self

    def has_bias(self, kernel: Kernel) -> bool:
        """True if a product of a layer has a bias."""
        if kernel.kind.matrix is None or not kernel.kind.matrix.biased:
            return False
        switch = getattr(self.of_kernel(kernel), kernel.bias) if kernel.bias else None
        return self.biases if switch is None else bool(switch)

    def weights(self, kernel: Kernel) -> float:
        """Entries of the matrices of a kernel, those of all experts; 0 where it has none. [-]"""
        sizes = self.of_kernel(kernel).features
        entries = sizes[kernel.reads] * sizes[kernel.makes] if kernel.kind.matrix else 0.0
        groups = self.o_groups if kernel.kind.matrix and kernel.kind.matrix.grouped else 1.0
        return entries / groups * (self.num_experts if kernel.of_experts else 1.0)

    def active_share(self, kernel: Kernel) -> float:
        """Share of the matrices of a kernel that a token meets: of its experts alone. [-]"""
        return self.moe_topk / self.num_experts if kernel.of_experts else 1.0

    def bias_size(self, kernel: Kernel) -> float:
        """Biases of a product, of all experts. [-]"""
        copies = self.num_experts if kernel.of_experts else 1.0
        return copies * self.of_kernel(kernel).features[kernel.makes] if self.has_bias(kernel) else 0.0

    def kernel_parameters(self, kernel: Kernel, *, active: bool = False) -> float:
        """All parameters of a kernel, or those that a token meets. [-]"""
        share = self.active_share(kernel) if active else 1.0
        size = share * (self.weights(kernel) + self.bias_size(kernel))
        return size + kernel.kind.parameters(self.of_kernel(kernel), kernel)

    def layer_parameters(self, layer: Layer, *, active: bool = False) -> float:
        """All parameters of a layer; 12 h^2 + 13 h for GPT [Narayanan2021]_. [-]"""
        return sum(self.kernel_parameters(kernel, active=active) for kernel in layer.kernels)

    @cached_property
    def norm_parameters(self) -> float:
        """Parameters of the final normalization, and of weights that join residual streams before it. [-]"""
        return sum(self.kernel_parameters(kernel) for kernel in self.head.kernels if kernel.is_whole)

    @property
    def embedding_parameters(self) -> float:
        """Word table, and position table where positions are learned. [-]"""
        positions = (self.learned_positions or self.key_len) if self.position_embedding == "learned" else 0.0
        table = (self.vocab_size + positions) * self.hidden_size
        return table + (self.vocab_size * self.num_layers + 1) * self.per_layer_embedding  # with a norm

    @property
    def head_parameters(self) -> float:
        """Output matrix where it is not the word table. [-]"""
        return 0.0 if self.tied_embeddings else self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> float:
        """Every parameter once, the final normalization included, without multi-token prediction. [-]"""
        layers = sum(count * self.layer_parameters(layer) for layer, count in self.sequence)
        return layers + self.embedding_parameters + self.head_parameters + self.norm_parameters + self.other_parameters

    @property
    def active_parameters(self) -> float:
        """Parameters that a token meets, both tables counted. [-]"""
        idle = sum(
            count * (self.layer_parameters(layer) - self.layer_parameters(layer, active=True))
            for layer, count in self.sequence
        )
        return self.num_parameters - idle

    @property
    def mtp_parameters(self) -> float:
        """Parameters of multi-token prediction, in addition to the model: its layers, joins and norms. [-]"""
        return self.mtp_layers * (self.layer_parameters(self.mtp_layer) + self.norm_parameters)

    @property
    def every_kernel(self) -> list[tuple[Kernel, float]]:
        """Kernels of all layers, those of multi-token prediction included, and the number of each. [-]"""
        layers = [*self.sequence, *([(self.mtp_layer, self.mtp_layers)] if self.mtp_layers else [])]
        return [(kernel, count) for layer, count in layers for kernel in layer.kernels]

    def forward_flops(self, *, causal: bool) -> float:
        """Multiply-adds of the forward pass of one token, each counted as two. [FLOP]

        Twice the weights that a token meets, including only those of its experts, and the FLOP of cores and linear
        mixers: with all keys of the sequence, or the causal half. Routers do not count, as in Megatron-LM.
        """
        flops = sum(count * 2 * self.multiply_adds(kernel, causal=causal) for kernel, count in self.every_kernel)
        return flops + 2 * (1 + self.mtp_layers) * self.hidden_size * self.vocab_size

    @cached_property
    def forward_core_flops_per_sequence(self) -> float:
        """FLOP of `forward_flops_per_sequence` in cores and linear mixers, which multiply by no weight. [FLOP]"""
        adds = (count * k.kind.multiply_adds(self.of_kernel(k), k, True) for k, count in self.every_kernel)
        return 2 * self.seq_len * sum(adds)

    def multiply_adds(self, kernel: Kernel, *, causal: bool) -> float:
        """Multiply-adds of a kernel that count as the model's, of the forward pass of one token. [-]"""
        matrix = kernel.kind.matrix
        counted = self.weights(kernel) * self.active_share(kernel) if matrix and matrix.model_flops else 0.0
        return counted + kernel.kind.multiply_adds(self.of_kernel(kernel), kernel, causal)

    @cached_property
    def forward_flops_per_sequence(self) -> float:
        """Multiply-adds of the forward pass of one sequence, each counted as two. [FLOP]

        Matrices, attention with the keys that a causal mask or a window leaves, and the logits: a third of
        the model FLOPs of Megatron-LM and Megatron-Bridge [NVIDIA2026]_. For GPT this is
        24 s l h^2 (1 + s/(12h) + V/(12 l h)); [Narayanan2021]_ counts attention in full, s/(6h).
        """
        return self.seq_len * self.forward_flops(causal=True)


@cache
def resized(model: ModelShape, sizes: Sizes) -> ModelShape:
    """A model with other dimensions."""
    return replace(model, **dict(sizes))


@cache
def layer_sequence(model: ModelShape) -> tuple[tuple[Layer, float], ...]:
    """Kinds of layers and how many of each follow one another, by the fields of a model."""
    layers = [model.letters[letter] for letter in model.layer_order] or layers_by_fields(model)
    runs = groupby(layer_kind(model, *layer) for layer in layers)
    return tuple((layer_of(kind), float(len([*same]))) for kind, same in runs)


def layers_by_fields(model: ModelShape) -> list[tuple[str, str, Sizes]]:
    """Mixer and MLP of each layer of a model without an order of layers, and no dimensions.

    Every `full_attention_every`-th layer has full attention, the others a window or a delta net where the
    model has one; of the layers behind `first_dense_layers` every `moe_layer_freq`-th has experts.
    """
    full = "sparse" if model.index_topk else "latent" if model.attention == "mla" else "full"
    linear = model.linear_attention if model.linear_attention != "none" else full
    other, every = "window" if model.window else linear, model.full_attention_every
    layers: list[tuple[str, str, Sizes]] = []
    for number in range(1, int(model.num_layers) + 1):
        mixer = full if every and number % every == 0 else other
        behind = number - model.first_dense_layers
        experts = model.num_experts > 0 and behind > 0 and behind % model.moe_layer_freq == 0
        layers.append((mixer, "experts" if experts else "dense", ()))
    return layers


def layer_kind(model: ModelShape, mixer: str, mlp: str, sizes: Sizes) -> LayerKind:
    """A layer of a model by its mixer and MLP, with the norms, gates and shared experts of the model."""
    parallel = model.parallel_block and bool(mixer and mlp)
    latent = mixer == "latent" or (mixer in ("sparse", "window") and model.attention == "mla")
    return LayerKind(
        mixer,
        mlp,
        post_norms=model.norms_per_layer == 4,
        parallel=parallel,
        parallel_norms=parallel and model.parallel_norms,
        latent_keys=latent,
        indexer=mixer in ("sparse", "compressed") and dict(sizes).get("index_heads", model.index_heads) > 0,
        output_gate=(model.attention_output_gate or model.attention_head_gate)
        and mixer in ("full", "window", "sparse", "latent"),
        per_layer=model.per_layer_embedding > 0,
        streams=model.num_residual_streams > 1,
        switches=frozenset(name for name in SWITCHES if dict(sizes).get(name, getattr(model, name))),
        sizes=sizes,
    )
