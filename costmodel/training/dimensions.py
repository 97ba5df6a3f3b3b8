"""Dimensions of models, the widths that follow, and their constraints; and numerics, such as norms.

A model file states the dimensions, from layers to experts. `features` gives the width of each activation within a layer
by a word, such as "qkv", which the rows of blocks name. So dimensions decide the shapes of all kernels. Numerics decide
neither times nor bytes: exports state them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Protocol

import yaml

from costmodel.errors import DseError

#: Methods that balance the tokens of experts, in words: a loss, or a bias that is added to scores.
BALANCING: Final = {"aux_loss": "an auxiliary loss", "bias": "a bias of the router"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Numerics:
    """Constants of a model's functions, as its published configuration has them. [-]

    Launch files pass them to the framework; a note names those without a setting in the framework.
    """

    rotary_base: float = 10_000.0  #: theta of rotary positions
    local_rotary_base: float = 0.0  #: of layers with a window; 0: the same
    rotary_percent: float = 1.0  #: share of a head that is rotated
    rotary_interleaved: bool = False  #: pairs of neighbours are rotated, not halves
    no_rope_every: float = 0.0  #: every Nth layer has no positions; 0: none
    rotary_scaling: Literal["none", "linear", "llama3", "yarn"] = "none"
    rotary_scaling_factor: float = 1.0
    original_positions: float = 0.0  #: positions before scaling
    rotary_low_freq_factor: float = 1.0  #: of Llama 3's scaling
    rotary_high_freq_factor: float = 4.0
    yarn_beta_fast: float = 32.0
    yarn_beta_slow: float = 1.0
    yarn_mscale: float = 1.0
    yarn_mscale_all_dim: float = 0.0
    norm_epsilon: float = 1e-5
    zero_centered_norms: bool = False  #: weights of norms are kept as their distance from 1
    qk_l2_norm: bool = False  #: queries and keys are divided by their length, without weights
    gate: Literal["swiglu", "quick_geglu", "geglu"] = "swiglu"  #: of gated MLPs
    glu_clamp: float = 0.0  #: both halves of a gated MLP stay within; 0: no limit
    glu_offset: float = 0.0  #: added to the half that is not gated
    embedding_scale: bool = False  #: embeddings are multiplied by the root of the hidden size
    attention_scale: float = 0.0  #: scores are divided by the root of it; 0: of the size of a head
    attention_softcap: float = 0.0  #: scores stay within; 0: no limit
    logit_softcap: float = 0.0
    router_score: Literal["softmax", "sigmoid", "sqrtsoftplus"] = "softmax"
    router_pre_softmax: bool = False  #: shares of all experts, without normalization over the chosen ones
    router_scaling: float = 1.0  #: factor of the experts' output
    router_bias_update_rate: float = 0.0  #: of a bias that balances experts without a loss
    router_aux_loss: float = 0.0  #: coefficient of the loss that balances experts
    #: tokens that this loss counts together: a micro-batch, each sequence, or the global batch
    router_balance: Literal["aux_loss", "seq_aux_loss", "global_aux_loss"] = "aux_loss"
    mtp_loss_scale: float = 0.0  #: weight of losses of multi-token prediction; 0: the framework's

    def said(self) -> dict[str, Any]:
        """Fields that are not as usual, as a model file has them."""
        return {
            member.name: plain(value)
            for member in fields(self)
            if (value := getattr(self, member.name)) != member.default
        }


def plain(value: Any) -> Any:
    """A number as files write it: whole ones without a point."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


#: Of a model whose file says nothing.
USUAL = Numerics()


#: Fields of a model with values that layers of one kind have instead of the model's: dimensions and switches.
Sizes = tuple[tuple[str, Any], ...]
_TABLES: Final[dict[str, Any]] = yaml.load(
    Path(__file__).with_suffix(".yaml").read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)
)
#: Letter of a layer in `layer_order`, as in Megatron-LM's hybrid models -> its mixer, its MLP, its dimensions.
LAYER_LETTERS: Final = {letter: (mixer, mlp, Sizes()) for letter, (mixer, mlp) in _TABLES["layer_letters"].items()}
#: Mixer or MLP -> fields that a model needs for it.
NEEDED: Final[Mapping[str, Sequence[str]]] = _TABLES["needed"]
#: Dimensions and switches that layers of one kind may have for themselves.
OF_LAYERS: Final[Sequence[str]] = _TABLES["of_layers"]

#: Most layers of a model, which are gone through one by one. [-]
MOST_LAYERS: Final = 10_000


class Dimensions(Protocol):
    """A record with fields that count something."""

    @property
    def name(self) -> str: ...
    @property
    def dimensions(self) -> tuple[str, ...]: ...
    @property
    def counts(self) -> tuple[str, ...]: ...


def check_dimensions(model: Dimensions) -> None:
    """Refuse dimensions that are not whole and positive, counts that are not whole, and too many layers.

    Raises `DseError` for the first one.
    """
    lowest = dict.fromkeys(model.dimensions, 1) | dict.fromkeys(model.counts, 0)
    for name, low in lowest.items():
        value = getattr(model, name)
        if isinstance(value, str) or not (value >= low and float(value).is_integer()):
            raise DseError(f"model {model.name}: {name}: expected a whole number from {low}, got {value!r}")
        if name == "num_layers" and value > MOST_LAYERS:
            raise DseError(f"model {model.name}: {name}: expected at most {MOST_LAYERS:,}, got {value:g}")


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelDimensions:
    """Dimensions of a decoder-only transformer in elements, tokens and counts, and its features. [-]

    Fields are named as in Megatron-LM.

    Raises `DseError` if a dimension is not positive, or heads and query groups do not divide.
    """

    #: Fields that count something, and so must be whole and positive.
    dimensions: ClassVar[tuple[str, ...]] = (
        "num_layers", "hidden_size", "num_attention_heads", "num_query_groups", "head_size",
        "ffn_hidden_size", "seq_len", "vocab_size", "norms_per_layer", "moe_layer_freq", "num_residual_streams",
    )  # fmt: skip
    #: Fields that count something that a model may lack: whole, from 0.
    counts: ClassVar[tuple[str, ...]]

    name: str = "model"
    title: str = ""  #: as it is published
    num_layers: float
    hidden_size: float
    num_attention_heads: float
    num_query_groups: float = 0.0  #: 0 means one per head
    head_size: float = 0.0  #: 0 means hidden_size / num_attention_heads, or of attention: mla that of its keys
    ffn_hidden_size: float = 0.0  #: 0 means 4 * hidden_size
    seq_len: float = 2048.0  #: tokens of a sequence that are worked on: its queries
    context_len: float = 0.0  #: tokens before them, with keys and values that exist already
    #: Of packs: length of the document of a token, the sum of squares of lengths over their sum; 0: no packs.
    document_len: float = 0.0
    vocab_size: float = 51200.0
    vocab_multiple: float = 0.0  #: tensor-parallel ranks hold multiples of N entries; 0: no padding
    gated_mlp: bool = False
    activation: Literal["gelu", "silu", "squared_relu"] = "gelu"
    normalization: Literal["layer_norm", "layer_norm_no_bias", "rms_norm"] = "layer_norm"
    num_residual_streams: float = 1.0  #: hyper-connections read one stream from several, and mix them [Xie2025]_
    mixed_streams: bool = True  #: ... with each other; else each keeps its values and adds those of branches
    norm_weights: bool = True  #: of all norms
    norms_per_layer: float = 2.0  #: 4: behind attention and MLP too; 1 in a parallel block
    branch_norms: bool = False  #: before the last products of attention (not latent) and of dense MLPs too
    position_embedding: Literal["learned", "rotary", "none"] = "learned"
    per_layer_embedding: float = 0.0  #: width of a second embedding of tokens, with one part for each layer
    learned_positions: float = 0.0  #: rows of the table of learned positions; 0 means key_len
    biases: bool = True  #: of all products of layers, or of those that the next three say
    qkv_bias: bool | None = None
    out_bias: bool | None = None
    mlp_bias: bool | None = None
    dropout: bool = True
    tied_embeddings: bool = True
    parallel_block: bool = False  #: attention and MLP side by side behind one norm
    parallel_norms: bool = False  #: in a parallel block: behind a norm each
    attention: Literal["gqa", "mla"] = "gqa"
    q_lora_rank: float = 0.0  #: 0: queries are made from the hidden state; else of gqa too
    paired_queries: bool = False  #: queries and gates are made from this latent and its norm together (of mla)
    kv_lora_rank: float = 0.0
    qk_nope_head_dim: float = 0.0
    qk_rope_head_dim: float = 0.0
    v_head_dim: float = 0.0
    qk_norm: bool = False
    wide_qk_norm: bool = False  #: over all heads together, not over each
    values_are_keys: bool = False  #: values are keys before their norm and rotation, without a weight for them
    reuses_keys: bool = False  #: layers see the keys and values of an earlier layer, without weights for them
    sinks: bool = False
    attention_output_gate: bool = False  #: a gate for each feature that heads make
    attention_head_gate: bool = False  #: a gate for each head
    window: float = 0.0  #: keys that a query sees in layers without full attention
    window_kind: Literal["sliding", "chunked"] = "sliding"
    full_attention_every: float = 1.0  #: 0: none has it
    linear_attention: Literal["none", "gated_delta_net", "mamba2", "kda", "lightning"] = "none"
    linear_key_heads: float = 0.0  #: of Mamba-2: groups of heads that share keys and queries (B and C)
    linear_value_heads: float = 0.0
    linear_head_dim: float = 0.0
    linear_key_head_dim: float = 0.0  #: of gated delta nets, where keys have another width than values
    linear_conv_kernel: float = 0.0
    linear_state_size: float = 0.0  #: of Mamba-2: width of the states of a head
    linear_step_rank: float = 0.0  #: of Mamba-1: width from which steps of all features are made
    linear_norm: bool = True  #: of Mamba-2: a norm of the output; of Mamba-1: norms of steps, B and C
    linear_full_rank_gate: bool = False  #: of Kimi delta attention: its gate is one product, not two of low rank
    linear_full_rank_decay: bool = False  #: ... its decay is one product
    index_heads: float = 0.0  #: of an indexer that picks the keys that queries see; 0 where layers reuse earlier picks
    index_head_dim: float = 0.0
    index_topk: float = 0.0  #: keys that a query sees; 0: all
    compress_ratio: float = 0.0  #: tokens that become one key of compressed attention; 0: only a window is seen
    index_weights: bool = False  #: scores of an indexer's heads are added up by weights that each token makes
    o_groups: float = 0.0  #: of compressed attention: groups of heads, each with a product into its part of a latent
    o_lora_rank: float = 0.0  #: ... and the width of such a part
    num_experts: float = 0.0
    moe_topk: float = 0.0
    moe_ffn_hidden_size: float = 0.0
    shared_ffn_hidden_size: float = 0.0  #: of all shared experts together
    shared_expert_gate: bool = False
    expert_norms: bool = False  #: of routed and of shared experts, before and behind; with scales of routers
    router_bias: bool = False
    moe_latent_size: float = 0.0  #: 0: routed experts act on the hidden state
    routing_groups: float = 0.0
    routing_group_topk: float = 0.0
    first_dense_layers: float = 0.0
    moe_layer_freq: float = 1.0
    mtp_layers: float = 0.0
    other_parameters: float = 0.0  #: weights of no kernel here, such as a bias of the output layer; without a cost
    layer_order: str = ""  #: a letter for each layer, in order; "": the order that other fields give
    mtp_order: str = ""  #: of the layers of a module of multi-token prediction; "": one like the last layer
    #: Letter -> mixer, MLP and dimensions of its layers, beyond `LAYER_LETTERS`.
    layer_kinds: tuple[tuple[str, tuple[str, str, Sizes]], ...] = ()
    #: Settings without a cost; two models that differ only in them cost the same, and are equal.
    numerics: Numerics = field(default=USUAL, compare=False)
    #: Features of a token in the activations that kernels read and make, by word. [elements]
    features: Mapping[str, float] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        even = self.hidden_size / self.num_attention_heads if self.num_attention_heads else 0.0
        defaults = {
            "num_query_groups": self.num_attention_heads,
            "head_size": self.score_size or even,
            "ffn_hidden_size": 4 * self.hidden_size,
        }
        for name, value in defaults.items():
            if not getattr(self, name):
                object.__setattr__(self, name, value)
        if self.linear_key_head_dim == self.linear_head_dim:
            object.__setattr__(self, "linear_key_head_dim", 0.0)
        check_dimensions(self)
        self._check()
        object.__setattr__(self, "features", self._features())

    def _check(self) -> None:
        """Refuse fields that contradict each other; `DseError` says which."""
        needs = {
            "attention: mla": (self.attention == "mla", NEEDED["latent"]),
            "num_experts": (self.num_experts > 0, ("moe_topk", "moe_ffn_hidden_size")),
            "linear_attention": (True, NEEDED.get(self.linear_attention, ())),
            "index_heads": (self.index_heads > 0, ("index_head_dim", "index_topk")),
            "o_groups": (self.o_groups > 0, ("o_lora_rank", "q_lora_rank", "window")),
        }
        for name, (present, others) in needs.items():
            if lacking := [other for other in others if present and not getattr(self, other)]:
                raise DseError(f"model {self.name}: {', '.join(lacking)}: missing; needed with {name}")
        if self.num_attention_heads % self.num_query_groups:
            raise DseError(
                f"model {self.name}: num_query_groups: {self.num_query_groups:g} does not divide "
                f"num_attention_heads, {self.num_attention_heads:g}"
            )
        if self.num_residual_streams > 1 and self.per_layer_embedding:
            raise DseError(f"model {self.name}: per_layer_embedding: none with several residual streams")
        if self.linear_key_head_dim and self.linear_attention != "gated_delta_net":
            raise DseError(f"model {self.name}: linear_key_head_dim: only of linear_attention: gated_delta_net")
        if self.moe_topk > self.num_experts:
            raise DseError(f"model {self.name}: moe_topk: {self.moe_topk:g} of {self.num_experts:g} experts")
        self._check_order()

    def _check_order(self) -> None:
        """Refuse an order of layers with unknown letters, or with layers that the model has no dimensions for."""
        letters = len(self.layer_order)
        if letters not in (0, self.num_layers):
            raise DseError(f"model {self.name}: layer_order: {letters} letters; num_layers is {self.num_layers:g}")
        for letter in dict.fromkeys(self.layer_order + self.mtp_order):
            if letter not in self.letters:
                known = f"{' '.join(self.letters)}, and those of layer_kinds"
                raise DseError(f"model {self.name}: layer_order: {letter!r} is unknown; known are {known}")
            mixer, mlp, sizes = self.letters[letter]
            for kind in (*mixer.split("+"), mlp):
                if lacking := [name for name in NEEDED.get(kind, ()) if not dict(sizes).get(name, getattr(self, name))]:
                    text = f"{', '.join(lacking)}: missing; layers {letter!r} have {kind}"
                    raise DseError(f"model {self.name}: {text}")

    @property
    def balancing(self) -> str:
        """Method that balances experts, a word of `BALANCING`; no bias of the router where all products have one."""
        return "bias" if self.numerics.router_bias_update_rate or self.router_bias > self.biases else "aux_loss"

    @property
    def letters(self) -> Mapping[str, tuple[str, str, Sizes]]:
        """Letter of an order of layers -> mixer and MLP of a layer, "" for none, and its dimensions."""
        return {**LAYER_LETTERS, **dict(self.layer_kinds)}

    def _features(self) -> Mapping[str, float]:
        halves, streams = 2 if self.gated_mlp else 1, self.num_residual_streams
        made = self.num_query_groups * self.score_size if self.values_are_keys else 2 * self.key_value_size
        gates = self.num_attention_heads * self.attention_head_gate + self.attention_size * self.attention_output_gate
        kv = gates + (0.0 if self.reuses_keys else made)
        return {
            "hidden": self.hidden_size,
            "stream": streams * self.hidden_size,
            "streams": streams,
            "stream_weights": (2 + streams * self.mixed_streams) * streams,
            "qkv": self.query_size + kv,
            "kv": kv,
            "attention": self.attention_size,
            "gates": gates,
            "up": halves * self.ffn_hidden_size,
            "ffn": self.ffn_hidden_size,
            "query_rank": self.q_lora_rank,
            **({"query_pair": 2 * self.q_lora_rank} if self.paired_queries else {}),
            "queries": self.query_size,
            "key_rank": self.kv_lora_rank,
            "key_latent": self.kv_lora_rank + self.qk_rope_head_dim,
            "keys_values": self.num_attention_heads * (self.qk_nope_head_dim + self.v_head_dim),
            **self._linear_features(),
            **self._sparse_features(),
            "experts": self.num_experts,
            "expert_in": self.moe_latent_size or self.hidden_size,
            "expert_up": halves * self.moe_ffn_hidden_size,
            "expert_ffn": self.moe_ffn_hidden_size,
            "shared_up": halves * self.shared_ffn_hidden_size,
            "shared_ffn": self.shared_ffn_hidden_size,
            "per_layer": self.per_layer_embedding,
            "unit": 1.0,
            "joined": 2 * self.hidden_size,
            "vocabulary": self.vocab_size,
        }

    def _linear_features(self) -> Mapping[str, float]:
        """Features of linear mixers, by word. [elements]"""
        key = self.linear_key_head_dim or self.linear_head_dim
        keys, values = self.linear_key_heads * key, self.linear_value_heads * self.linear_head_dim
        return {
            "delta_key": key,
            "delta_in": 2 * (keys + values + self.linear_value_heads),
            "delta_out": values,
            "delta_channels": 2 * keys + values,
            "kda_in": 3 * values + self.linear_value_heads,
            "kda_rank": self.linear_head_dim,
            "lightning_in": 3 * values,
            "conv_in": 3 * self.hidden_size,
            "scan_in": 2 * values,
            "selection": self.linear_step_rank + 2 * self.linear_state_size,
            "step_rank": self.linear_step_rank,
            "mamba_in": 2 * (values + self.linear_key_heads * self.linear_state_size) + self.linear_value_heads,
            "mamba_out": values,
            "mamba_channels": values + 2 * self.linear_key_heads * self.linear_state_size,
        }

    def _sparse_features(self) -> Mapping[str, float]:
        """Features of sparse and compressed attention; a token has a part of each entry that is made from it."""
        ratio, size, of_index = self.compress_ratio or float("inf"), self.head_size, self.index_head_dim
        return {
            "index_queries": self.index_heads * of_index,
            "index_keys": of_index + (self.index_heads if self.index_weights else 0.0),
            "index_weights": self.index_heads,
            "index_pooled": 4 * of_index,
            "index_entries": of_index / ratio,
            "shared_key": size,
            "pooled": 2 * size,
            "pooled_twice": 4 * size,
            "entries": size / ratio,
            "output_rank": self.o_groups * self.o_lora_rank,
        }

    @property
    def key_len(self) -> float:
        """Tokens of a sequence that have keys. [-]"""
        return self.context_len + self.seq_len

    @property
    def score_size(self) -> float:
        """Width of a head's query and key. [elements]"""
        return self.qk_nope_head_dim + self.qk_rope_head_dim if self.attention == "mla" else self.head_size

    @property
    def value_size(self) -> float:
        """Width of a head's value. [elements]"""
        return self.v_head_dim or self.head_size

    @property
    def query_size(self) -> float:
        """Width of all queries together. [elements]"""
        return self.num_attention_heads * self.score_size

    @property
    def attention_size(self) -> float:
        """Width of the output of all heads. [elements]"""
        return self.num_attention_heads * self.value_size

    @property
    def key_value_size(self) -> float:
        """Width of all key heads together, or of all value heads; the mean of both where they differ. [elements]"""
        heads = self.num_attention_heads if self.attention == "mla" else self.num_query_groups
        return heads * (self.score_size + self.value_size) / 2

    @property
    def document_tokens(self) -> float:
        """Tokens of a sequence that may see each other: all of them, or those of a document in a pack. [-]"""
        return min(self.document_len, self.seq_len) or self.seq_len

    def keys_seen(self, *, windowed: bool, causal: bool = True) -> float:
        """Keys that a query of an attention core meets on average. [-]"""
        if not windowed:
            return self.context_len + self.document_tokens / (2 if causal else 1)
        if causal and self.window_kind == "chunked":
            return (min(self.window, self.context_len + self.document_tokens) + 1) / 2
        return self.keys_among(self.window, causal=causal)

    def entries_seen(self, *, causal: bool = True) -> float:
        """Keys made from `compress_ratio` tokens each that a query of compressed attention meets on average. [-]

        An indexer picks `index_topk` of them. Tokens behind the last whole entry count as a part of one.
        """
        if not self.compress_ratio:
            return 0.0
        most = self.index_topk if self.index_heads else float("inf")
        return self.keys_among(most * self.compress_ratio, causal=causal) / self.compress_ratio

    def keys_among(self, most: float, *, causal: bool = True) -> float:
        """Keys that a query meets on average where it sees at most `most` of those before it. [-]"""
        window = min(most, self.context_len + self.document_tokens)
        if not causal:
            return window
        before = min(window, self.context_len)  # the first queries take the missing keys from the context
        missing = window * (window - 1) - before * (2 * window - before - 1)
        return window - missing / (2 * self.document_tokens)


ModelDimensions.counts = tuple(
    f.name for f in fields(ModelDimensions) if f.type == "float" and f.name not in ModelDimensions.dimensions
)
