"""What a model is: its dimensions, and the sequence of layers that follows from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import ClassVar, Literal

from costmodel.errors import DseError
from costmodel.training.blocks import HEAD, WEIGHTED, Block, Kernel, Layer
from costmodel.training.dimensions import check_dimensions
from costmodel.training.layers import Attention, LayerKind, mtp_layer, sequence_of
from costmodel.training.lstm import LstmShape


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelShape:
    """A decoder-only transformer: dimensions in elements, tokens and counts. [-]

    GPT-3 has ``layer_norm``, biases, learned positions and tied embeddings; Llama has ``rms_norm``, a
    gated MLP, rotary positions, grouped queries and none of the rest. Fields are named as in Megatron-LM.

    Raises
    ------
    DseError
        If a dimension is not positive, or heads and query groups do not divide.
    """

    #: Fields that count something, and so must be whole and positive.
    dimensions: ClassVar[tuple[str, ...]] = (
        "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "head_size",
        "ffn_hidden_size", "seq_len", "vocab_size", "norms_per_layer", "moe_layer_freq",
    )  # fmt: skip
    #: Fields that count something that a model may lack: whole, from 0.
    counts: ClassVar[tuple[str, ...]] = (
        "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "window",
        "full_attention_every", "linear_key_heads", "linear_value_heads", "linear_head_dim",
        "linear_conv_kernel", "num_experts", "moe_topk", "moe_ffn_hidden_size",
        "shared_ffn_hidden_size", "moe_latent_size", "routing_groups", "routing_group_topk",
        "first_dense_layers", "mtp_layers", "learned_positions", "vocab_multiple",
    )  # fmt: skip

    name: str = "model"
    title: str = ""  #: as it is published
    num_layers: float
    hidden_size: float
    num_attention_heads: float
    num_query_groups: float = 0.0  #: 0 means one per head
    head_size: float = 0.0  #: 0 means hidden_size / num_attention_heads
    ffn_hidden_size: float = 0.0  #: 0 means 4 * hidden_size
    seq_len: float = 2048.0
    vocab_size: float = 51200.0
    vocab_multiple: float = 0.0  #: tensor-parallel ranks hold multiples of so many entries; 0: no padding
    gated_mlp: bool = False
    activation: Literal["gelu", "silu", "squared_relu"] = "gelu"
    normalization: Literal["layer_norm", "layer_norm_no_bias", "rms_norm"] = "layer_norm"
    norms_per_layer: float = 2.0  #: 4: behind attention and MLP too; 1 in a parallel block
    position_embedding: Literal["learned", "rotary"] = "learned"
    learned_positions: float = 0.0  #: rows of the table of learned positions; 0 means seq_len
    biases: bool = True  #: of all products of layers, or of those that the next three say
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = None
    dropout: bool = True
    tied_embeddings: bool = True
    parallel_block: bool = False  #: attention and MLP side by side behind one norm
    parallel_norms: bool = False  #: in a parallel block: behind a norm each
    attention: Literal["gqa", "mla"] = "gqa"
    q_lora_rank: float = 0.0  #: 0: queries are made from the hidden state
    kv_lora_rank: float = 0.0
    qk_nope_head_dim: float = 0.0
    qk_rope_head_dim: float = 0.0
    v_head_dim: float = 0.0
    qk_norm: bool = False
    sinks: bool = False
    attention_output_gate: bool = False
    window: float = 0.0  #: keys that a query sees in layers without full attention
    window_kind: Literal["sliding", "chunked"] = "sliding"
    full_attention_every: float = 1.0  #: 0: none has it
    linear_attention: Literal["none", "gated_delta_net"] = "none"
    linear_key_heads: float = 0.0
    linear_value_heads: float = 0.0
    linear_head_dim: float = 0.0
    linear_conv_kernel: float = 0.0
    num_experts: float = 0.0
    moe_topk: float = 0.0
    moe_ffn_hidden_size: float = 0.0
    shared_ffn_hidden_size: float = 0.0  #: of all shared experts together
    shared_expert_gate: bool = False
    router_bias: bool = False
    moe_latent_size: float = 0.0  #: 0: routed experts act on the hidden state
    routing_groups: float = 0.0
    routing_group_topk: float = 0.0
    first_dense_layers: float = 0.0
    moe_layer_freq: float = 1.0
    mtp_layers: float = 0.0
    #: Kinds of layers and how many of each, in order; () means what the fields say. They sum to `num_layers`.
    layers: tuple[tuple[Layer, float], ...] = ()
    #: Features of a token in the activations that kernels read and make, by word. [elements]
    features: Mapping[str, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        defaults = {
            "num_query_groups": self.num_attention_heads,
            "head_size": self.hidden_size / self.num_attention_heads if self.num_attention_heads else 0.0,
            "ffn_hidden_size": 4 * self.hidden_size,
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        check_dimensions(self)
        self._check()
        object.__setattr__(self, "features", self._features())
        if sum(count for _, count in self.sequence) != self.num_layers:
            raise DseError(
                f"model {self.name}: layers: expected {self.num_layers:g} in all, as num_layers says"
            )

    def _check(self) -> None:
        """Refuse fields that contradict each other; `DseError` says which."""
        needs = {
            "attention: mla": (self.attention == "mla", ("kv_lora_rank", "qk_nope_head_dim", "v_head_dim")),
            "num_experts": (self.num_experts > 0, ("moe_topk", "moe_ffn_hidden_size")),
            "linear_attention": (
                self.linear_attention != "none",
                ("linear_key_heads", "linear_value_heads", "linear_head_dim", "linear_conv_kernel"),
            ),
        }
        for name, (there, others) in needs.items():
            for other in others if there else ():
                if not getattr(self, other):
                    raise DseError(f"model {self.name}: {other}: expected one, since there is {name}")
        if self.num_attention_heads % self.num_query_groups:
            raise DseError(
                f"model {self.name}: num_query_groups: {self.num_query_groups:g} does not divide "
                f"num_attention_heads, {self.num_attention_heads:g}"
            )
        if self.moe_topk > self.num_experts:
            raise DseError(f"model {self.name}: moe_topk: {self.moe_topk:g} of {self.num_experts:g} experts")

    @property
    def sequence(self) -> tuple[tuple[Layer, float], ...]:
        """Kinds of layers and how many of each, in order."""
        return self.layers or layer_sequence(self)

    @property
    def last_layer(self) -> Layer:
        """The kind of its last layer."""
        return self.sequence[-1][0]

    @property
    def mtp_layer(self) -> Layer:
        """What looks one token further ahead, where `mtp_layers` says that something does."""
        return mtp_layer(self.last_layer)

    @property
    def kinds(self) -> dict[Layer, float]:
        """The kinds of its layers, and how many it has of each in all."""
        counts = dict.fromkeys((layer for layer, _ in self.sequence), 0.0)
        for layer, count in self.sequence:
            counts[layer] += count
        return counts

    @property
    def blocks(self) -> tuple[Block, ...]:
        """The blocks of its layers, each once."""
        layers = [*self.kinds, *([self.mtp_layer] if self.mtp_layers else [])]
        return tuple(dict.fromkeys(block for layer in layers for block in layer.blocks))

    def _features(self) -> Mapping[str, float]:
        halves = 2 if self.gated_mlp else 1
        keys = self.linear_key_heads * self.linear_head_dim
        values = self.linear_value_heads * self.linear_head_dim
        return {
            "hidden": self.hidden_size,
            "qkv": self.query_size * (2 if self.attention_output_gate else 1) + 2 * self.key_value_size,
            "attention": self.attention_size,
            "up": halves * self.ffn_hidden_size,
            "ffn": self.ffn_hidden_size,
            "query_rank": self.q_lora_rank,
            "queries": self.query_size,
            "key_rank": self.kv_lora_rank,
            "key_latent": self.kv_lora_rank + self.qk_rope_head_dim,
            "keys_values": self.num_attention_heads * (self.qk_nope_head_dim + self.v_head_dim),
            "delta_in": 2 * (keys + values + self.linear_value_heads),
            "delta_out": values,
            "experts": self.num_experts,
            "expert_in": self.moe_latent_size or self.hidden_size,
            "expert_up": halves * self.moe_ffn_hidden_size,
            "expert_ffn": self.moe_ffn_hidden_size,
            "shared_up": halves * self.shared_ffn_hidden_size,
            "shared_ffn": self.shared_ffn_hidden_size,
            "unit": 1.0,
            "joined": 2 * self.hidden_size,
            "vocabulary": self.vocab_size,
        }

    @property
    def score_size(self) -> float:
        """Width of a head's query and key. [elements]"""
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.attention == "mla" else self.head_size

    @property
    def value_size(self) -> float:
        """Width of a head's value. [elements]"""
        return self.v_head_dim if self.attention == "mla" else self.head_size

    @property
    def query_size(self) -> float:
        """Width of all queries together. [elements]"""
        return self.num_attention_heads * self.score_size

    @property
    def attention_size(self) -> float:
        """Width of what all heads make together. [elements]"""
        return self.num_attention_heads * self.value_size

    @property
    def key_value_size(self) -> float:
        """Width of all key heads together, or of all value heads; of latent attention the mean. [elements]"""
        if self.attention == "mla":
            return self.num_attention_heads * (self.score_size + self.value_size) / 2
        return self.num_query_groups * self.head_size

    def has_bias(self, kernel: Kernel) -> bool:
        """Whether a product of a layer has a bias."""
        if kernel.kind not in ("product", "experts"):
            return False
        own = getattr(self, kernel.bias) if kernel.bias else None
        return self.biases if own is None else bool(own)

    def keys_seen(self, kernel: Kernel, *, causal: bool = True) -> float:
        """Keys that a query of an attention core meets on average. [-]"""
        s, window = self.seq_len, min(self.window, self.seq_len)
        if kernel.kind != "window":
            return s / 2 if causal else s
        if not causal:
            return window
        return (window + 1) / 2 if self.window_kind == "chunked" else window - window * (window - 1) / (2 * s)

    def weights(self, kernel: Kernel) -> float:
        """Entries of the matrices of a kernel, those of all experts; 0 where it has none. [-]"""
        if kernel.kind not in WEIGHTED:
            return 0.0
        sizes = self.features
        copies = self.num_experts if kernel.kind == "experts" else 1.0
        return sizes[kernel.reads] * sizes[kernel.makes] * copies

    def active_weights(self, kernel: Kernel) -> float:
        """Entries of the matrices of a kernel that a token meets: of its experts alone. [-]"""
        share = self.moe_topk / self.num_experts if kernel.kind == "experts" else 1.0
        return self.weights(kernel) * share

    def norm_size(self, kernel: Kernel) -> float:
        """Parameters of a normalization: a gain, and in layer norm a bias. [-]"""
        return (2 if self.normalization == "layer_norm" else 1) * self.features[kernel.reads]

    def bias_size(self, kernel: Kernel) -> float:
        """Biases of a product, of all experts. [-]"""
        copies = self.num_experts if kernel.kind == "experts" else 1.0
        return copies * self.features[kernel.makes] if self.has_bias(kernel) else 0.0

    def other_parameters(self, kernel: Kernel) -> float:
        """Parameters of a kernel that are neither matrix, bias nor norm over a token. [-]"""
        if kernel.is_core:
            norms = 2 * self.head_size if self.qk_norm else 0.0
            return norms + (self.num_attention_heads if self.sinks else 0.0)
        if kernel.kind == "router":
            return self.num_experts if self.router_bias else 0.0
        if kernel.kind == "delta_net":
            keys, values = self.linear_key_heads, self.linear_value_heads
            convolved = (2 * keys + values) * self.linear_head_dim
            return self.linear_conv_kernel * convolved + 2 * values + self.linear_head_dim
        return 0.0

    def kernel_parameters(self, kernel: Kernel, *, active: bool = False) -> float:
        """All parameters of a kernel, or those that a token meets. [-]"""
        weights, biases = self.weights(kernel), self.bias_size(kernel)
        if active and kernel.kind == "experts":
            share = self.moe_topk / self.num_experts
            weights, biases = weights * share, biases * share
        norm = self.norm_size(kernel) if kernel.kind == "norm" else 0.0
        return weights + biases + norm + self.other_parameters(kernel)

    def matrix_parameters(self, layer: Layer) -> float:
        """Weights of a layer that multiply activations. [-]"""
        return sum(self.weights(kernel) for kernel in layer.kernels)

    def layer_parameters(self, layer: Layer, *, active: bool = False) -> float:
        """All parameters of a layer; 12 h^2 + 13 h for GPT [Narayanan2021]_. [-]"""
        return sum(self.kernel_parameters(kernel, active=active) for kernel in layer.kernels)

    @property
    def norm_parameters(self) -> float:
        """Parameters of the final normalization. [-]"""
        return self.norm_size(HEAD.kernels[0])

    @property
    def embedding_parameters(self) -> float:
        """Word table, and position table where positions are learned. [-]"""
        learned = self.position_embedding == "learned"
        positions = (self.learned_positions or self.seq_len) if learned else 0.0
        return (self.vocab_size + positions) * self.hidden_size

    @property
    def head_parameters(self) -> float:
        """Output matrix where it is not the word table. [-]"""
        return 0.0 if self.tied_embeddings else self.vocab_size * self.hidden_size

    @property
    def num_parameters(self) -> float:
        """Every parameter once, the final normalization included, but for multi-token prediction. [-]"""
        layers = sum(count * self.layer_parameters(layer) for layer, count in self.sequence)
        return layers + self.embedding_parameters + self.head_parameters + self.norm_parameters

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
        """Parameters of multi-token prediction beside the model: its layers, joins and norms. [-]"""
        own = self.layer_parameters(self.mtp_layer) + self.norm_parameters if self.mtp_layers else 0.0
        return self.mtp_layers * own

    def forward_flops(self, *, causal: bool) -> float:
        """Multiply-adds of the forward pass of one token, each counted as two. [FLOP]

        Twice the weights that it meets, those of its experts alone, and the width of the attention cores
        times the keys that it sees: all of the sequence, or the causal half, or what a window shows. Routers
        do not count, as in Megatron-LM.
        """
        layers = [*self.sequence, *([(self.mtp_layer, self.mtp_layers)] if self.mtp_layers else [])]
        flops = 0.0
        for layer, count in layers:
            weights = sum(self.active_weights(k) for k in layer.kernels if k.kind != "router")
            seen = sum(self.keys_seen(k, causal=causal) for k in layer.kernels if k.is_core)
            cores = self.num_attention_heads * (self.score_size + self.value_size) * seen
            linear = sum(self.delta_net_flops for k in layer.kernels if k.kind == "delta_net")
            flops += count * (2 * (weights + cores) + linear)
        return flops + 2 * (1 + self.mtp_layers) * self.hidden_size * self.vocab_size

    @property
    def delta_net_flops(self) -> float:
        """Convolution and recurrence of a gated delta net, of the forward pass of one token. [FLOP]"""
        keys, values = self.linear_key_heads, self.linear_value_heads
        convolved = self.linear_conv_kernel * (2 * keys + values) * self.linear_head_dim
        return 2 * (convolved + 4 * values * self.linear_head_dim**2)

    @property
    def forward_flops_per_sequence(self) -> float:
        """Multiply-adds of the forward pass of one sequence, each counted as two. [FLOP]

        Matrices, full (not causally halved) attention, and the logits: for GPT this is
        24 s l h^2 (1 + s/(6h) + V/(12 l h)), a third of the model FLOPs per sequence of [Narayanan2021]_.
        """
        return self.seq_len * self.forward_flops(causal=False)


@cache
def layer_sequence(model: ModelShape) -> tuple[tuple[Layer, float], ...]:
    """Kinds of layers and how many of each follow one another, by the fields of a model.

    Every `full_attention_every`-th layer has full attention, the others a window or a delta net where the
    model has one; of the layers behind `first_dense_layers` every `moe_layer_freq`-th has experts.
    """
    full: Attention = "latent" if model.attention == "mla" else "full"
    linear: Attention = "delta_net" if model.linear_attention != "none" else full
    other: Attention = "window" if model.window else linear
    kinds = []
    for place in range(1, int(model.num_layers) + 1):
        every = model.full_attention_every
        attention = full if every and place % every == 0 else other
        behind = place - model.first_dense_layers
        experts = model.num_experts > 0 and behind > 0 and behind % model.moe_layer_freq == 0
        kind = LayerKind(
            attention,
            experts,
            post_norms=model.norms_per_layer == 4,
            parallel=model.parallel_block,
            parallel_norms=model.parallel_block and model.parallel_norms,
            query_latent=attention == "latent" and model.q_lora_rank > 0,
            output_gate=model.attention_output_gate and attention in ("full", "window"),
            shared_expert=experts and model.shared_ffn_hidden_size > 0,
            shared_expert_gate=experts and model.shared_expert_gate,
            expert_latent=experts and model.moe_latent_size > 0,
        )
        kinds.append(kind)
    return sequence_of(kinds)


#: What any model is described by.
AnyModel = ModelShape | LstmShape
