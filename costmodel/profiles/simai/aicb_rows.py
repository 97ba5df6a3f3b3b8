"""What AICB's generator takes, the parameters it counts, and the rows it writes, block by block [AICB]_."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from typing import Final, Literal, Self, get_args

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, broadcast_columns, column, column_units
from costmodel.errors import DseError, suggestion
from costmodel.profiles.simai.workload_rows import Parallelism, Pass, Row

#: Releases of the generator, by the month of the change.
Release = Literal["2024-10", "2024-11", "2024-12", "2025-01", "2025-09"]
RELEASES: Final[tuple[str, ...]] = get_args(Release)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class GeneratorRun(Columns):
    """A training run as the generator takes it; (points,) columns. [-]"""

    num_layers: FloatArray = column("-")
    hidden_size: FloatArray = column("-")
    ffn_hidden_size: FloatArray = column("-")
    seq_len: FloatArray = column("-")
    vocab_size: FloatArray = column("-")
    world_size: FloatArray = column("-")
    global_batch_size: FloatArray = column("-")
    micro_batch_size: FloatArray = column("-", 1)
    tp: FloatArray = column("-", 1)
    pp: FloatArray = column("-", 1)
    ep: FloatArray = column("-", 1)
    num_experts: FloatArray = column("-", 0)  #: 0: a dense model
    experts_per_token: FloatArray = column("-", 1)
    sequence_parallel: FloatArray = column("-", 0)
    recompute: FloatArray = column("-", 0)  #: 1 where attention runs again in the backward pass
    num_attention_heads: FloatArray = column("-", 0)  #: 0: as many as share out the hidden size
    add_bias_linear: FloatArray = column("-", 0)
    gated_mlp: FloatArray = column("-", 0)  #: read by the generator before its first release alone
    make_vocab_size_divisible_by: FloatArray = column("-", 128)  #: times tp
    q_lora_rank: FloatArray = column("-", 0)
    kv_lora_rank: FloatArray = column("-", 0)  #: above 0: latent attention, the models of DeepSeek
    qk_nope_head_dim: FloatArray = column("-", 0)
    qk_rope_head_dim: FloatArray = column("-", 0)
    v_head_dim: FloatArray = column("-", 0)
    first_dense_layers: FloatArray = column("-", 0)  #: of every stage, in models of DeepSeek
    num_shared_experts: FloatArray = column("-", 0)  #: counts as one whatever their number

    @classmethod
    def of(cls, **values: object) -> Self:
        """Build from scalars, lists and arrays, broadcast to one length.

        Raises `DseError` for an unknown column, or numbers that no run can have.
        """
        units = column_units(cls)
        for name in values:
            if name not in units:
                raise DseError(f"run: {name}: unknown column{suggestion(name, units)}")
        given = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
        defaults = {
            name: array
            for name, array in cls(**dict.fromkeys(_REQUIRED, np.ones(1))).columns().items()
            if name not in given
        }
        run = cls(**broadcast_columns(**defaults, **given))
        run._check(set(_REQUIRED) - set(values))
        return run

    def _check(self, missing: set[str]) -> None:
        if missing:
            raise DseError(f"run: {', '.join(sorted(missing))}: missing")
        ranks = self.tp * self.pp
        for wrong, what in (
            (self.world_size % ranks != 0, "world_size: not a multiple of tp * pp"),
            (self.micro_batches < 1, "global_batch_size: less than one micro-batch per replica"),
            (self.stage_layers < 1, "num_layers: less than one layer per stage"),
            ((self.num_experts > 0) & (self.sequence_parallel == 0) & ~self.is_latent,
             "num_experts: the generator knows experts with sequence_parallel only"),
            (self.is_latent & (self.num_attention_heads == 0), "num_attention_heads: missing"),
            (self.is_latent & (self.num_experts == 0), "num_experts: none, and DeepSeek's models have some"),
            ((self.num_experts > 0) & (self.num_experts % self.ep != 0), "num_experts: not a multiple of ep"),
        ):  # fmt: skip
            if wrong.any():
                raise DseError(f"run: {what}")

    @property
    def dp(self) -> FloatArray:
        """Data-parallel size. [-]"""
        return np.floor(self.world_size / (self.tp * self.pp))

    @property
    def is_latent(self) -> BoolArray:
        """Whether a model is one of DeepSeek's, with latent attention."""
        return np.asarray(self.kv_lora_rank > 0)

    @property
    def leading_layers(self) -> FloatArray:
        """Layers of a stage that are dense in front of those with experts. [-]"""
        return np.where(self.is_latent, np.minimum(self.first_dense_layers, self.stage_layers), 0.0)

    @property
    def stage_layers(self) -> FloatArray:
        """Layers of a stage. [-]"""
        return np.floor(self.num_layers / self.pp)

    @property
    def micro_batches(self) -> FloatArray:
        """Micro-batches of a replica and step. [-]"""
        return np.floor(self.global_batch_size / (self.micro_batch_size * self.dp))

    @property
    def activation_bytes(self) -> FloatArray:
        """The hidden states of a micro-batch, 16 bits each. [B]"""
        return 2 * self.micro_batch_size * self.seq_len * self.hidden_size

    @property
    def pp_message_bytes(self) -> FloatArray:
        """What a stage sends to the next: a rank's share in sequence parallelism. [B]"""
        shared = np.where(self.sequence_parallel > 0, self.tp, 1.0)
        return np.where(self.pp > 1, self.activation_bytes / shared, 0.0)

    def layout(self, release: str = "2025-09", **changes: FloatArray) -> Parallelism:
        """The header of a file, with vpp as the generator states it: one layer per model chunk.

        In December 2024 stages send each other whole hidden states, in sequence parallelism too.
        """
        if release == "2024-12":
            changes = {"pp_message_bytes": np.where(self.pp > 1, self.activation_bytes, 0.0), **changes}
        columns = {
            "tp": self.tp,
            "pp": self.pp,
            "ep": self.ep,
            "vpp": self.stage_layers,
            "gradient_accumulation_steps": self.micro_batches,
            "world_size": self.world_size,
            "pp_message_bytes": self.pp_message_bytes,
        }
        return Parallelism(**{**columns, **changes})


_REQUIRED: Final = tuple(each.name for each in fields(GeneratorRun) if each.default_factory is MISSING)


def check_release(run: GeneratorRun, release: str, *, timed: bool) -> None:
    """Refuse a release that is not known, or rows of it that are not, with times or without."""
    if release not in RELEASES:
        raise DseError(f"AICB release {release}: unknown{suggestion(release, RELEASES)}")
    if release < "2025-09" and run.is_latent.any():
        raise DseError(f"AICB release {release}: has no latent attention; take release 2025-09")
    if timed and release < "2025-09" and ((run.num_experts > 0) & (run.ep == 1)).any():
        raise DseError(f"AICB release {release}: experts need ep above 1; or take release 2025-09")


def parameters(run: GeneratorRun, release: Release) -> tuple[FloatArray, FloatArray]:
    """Parameters of a rank as the generator counts them: without experts, and of its experts. [-]"""
    hidden, shared, latent = run.hidden_size, run.sequence_parallel > 0, run.is_latent
    vocabulary = padded_vocabulary(run, run.make_vocab_size_divisible_by * run.tp) / run.tp
    norms = np.where(shared, 2 * hidden, 0.0)
    layer = np.where(latent, latent_attention(run), attention(run)) + norms
    sparse = run.num_experts > 0
    shared_expert = np.where(latent & (run.num_shared_experts > 0), mlp(run), 0.0)
    of_experts = np.where(latent, 3.0, 2.0) * hidden * run.ffn_hidden_size / run.tp
    of_experts = np.where(sparse, np.floor(run.num_experts / run.ep) * of_experts + shared_expert, 0.0)
    head = vocabulary * (hidden + np.where(run.add_bias_linear > 0, 1.0, 0.0))
    copies = 2 if release == "2024-10" else 4  # of the word table
    tables = copies * vocabulary * hidden + run.seq_len * hidden + np.where(shared, head, 0.0)
    leading, layers = run.leading_layers, run.stage_layers
    dense = layers * layer + leading * mlp(run) + (layers - leading) * np.where(sparse, shared_expert, mlp(run))
    return dense + tables, (layers - leading) * of_experts


def padded_vocabulary(run: GeneratorRun, multiple: FloatArray) -> FloatArray:
    """Entries of the word table, a multiple of what ranks can share out. [-]"""
    padded: FloatArray = np.ceil(run.vocab_size / multiple) * multiple
    return padded


def attention(run: GeneratorRun) -> FloatArray:
    """Parameters of attention. Heads are as wide as whole numbers allow. [-]"""
    heads, hidden, tp = run.num_attention_heads, run.hidden_size, run.tp
    width = np.where(heads > 0, np.floor(hidden / np.maximum(heads, 1)) * heads, hidden)
    return 4 * hidden * width / tp + biases(run, split=3 * width, whole=hidden)


def latent_attention(run: GeneratorRun) -> FloatArray:
    """Parameters of latent attention, the norms of its latents with scale and offset. [-]"""
    hidden, heads, tp = run.hidden_size, run.num_attention_heads, run.tp
    queries = heads * (run.qk_nope_head_dim + run.qk_rope_head_dim)
    keys_values, context = heads * (run.qk_nope_head_dim + run.v_head_dim), heads * run.v_head_dim
    latents = run.q_lora_rank + run.kv_lora_rank + run.qk_rope_head_dim
    ups = run.q_lora_rank * queries + run.kv_lora_rank * keys_values + context * hidden
    norms = 2 * (run.q_lora_rank + run.kv_lora_rank)
    own = biases(run, split=queries + keys_values, whole=latents + hidden)
    return hidden * latents + ups / tp + norms + own


def mlp(run: GeneratorRun) -> FloatArray:
    """Parameters of an MLP. [-]"""
    ffn, hidden = run.ffn_hidden_size, run.hidden_size
    return 2 * hidden * ffn / run.tp + biases(run, split=ffn, whole=hidden)


def biases(run: GeneratorRun, *, split: FloatArray, whole: FloatArray) -> FloatArray:
    """Biases of products, of outputs that are shared out and of those that every rank has. [-]"""
    own: FloatArray = np.where(run.add_bias_linear > 0, split / run.tp + whole, 0.0)
    return own


#: What the reference states where it measures nothing. [s]
NOTHING = 1e-9

#: Product of latent attention -> its row, in the order of the forward pass.
LATENT_ROWS: Final = {
    "q_down": "attention_linear_q_lora",
    "q_up": "attention_q_column",
    "kv_down": "attention_linear_kv_lora",
    "kv_up": "attention_kv_column",
    "projection": "attention_o_row",
}


def halved(time: FloatArray) -> FloatArray:
    """Half of a time in whole nanoseconds. [s]"""
    return np.floor(np.rint(time * 1e9) / 2) * 1e-9


#: One way or another in which something may be sent, and where it is this one.
Ways = Sequence[tuple[Pass, BoolArray | bool]]


def prologue(gathered: Pass, reduced: Ways, update: FloatArray, cast: FloatArray | float = NOTHING) -> list[Row]:
    """The gathering of weights, the reduction of gradients in one way or another, the optimizer's time."""
    idle = Pass(NOTHING)
    return [
        Row("grad_gather", "prologue", idle, idle, gathered),
        *(Row("grad_param_comm", "prologue", idle, idle, way, present) for way, present in reduced),
        Row("grad_param_compute", "prologue", Pass(cast), Pass(update), idle),
    ]


def embedding_gradients(run: GeneratorRun) -> Row:
    """Gradients of the embedding over the tensor-parallel group."""
    idle = Pass(NOTHING)
    reduced = Pass(NOTHING, "all_reduce", run.activation_bytes, happens=run.tp > 1)
    return Row("embedding_grads", "prologue", idle, reduced, idle)


def expert_gradients(run: GeneratorRun, experts: FloatArray) -> list[Row]:
    """Gradients of experts over the replicas of each, there even when nothing is sent."""
    gathered = Pass(NOTHING, "all_gather", 2 * experts, "dp_ep")
    reduced = Pass(NOTHING, "reduce_scatter", 4 * experts, "dp_ep")
    return expert_weight_rows(gathered, [(reduced, True)], run.ep != run.dp)


def expert_weight_rows(gathered: Pass, reduced: Ways, present: BoolArray) -> list[Row]:
    """The gathering of experts' weights, and the reduction of their gradients in one way or another."""
    idle = Pass(NOTHING)
    return [
        Row("moe_grad_norm1", "prologue", idle, idle, gathered, present),
        *(Row("moe_grad_norm2", "prologue", idle, idle, way, present & there) for way, there in reduced),
    ]


#: Times of the three passes. [s]
Times = Sequence[FloatArray]


def layer_rows(
    run: GeneratorRun, part: str, column: Times, row: Times, present: BoolArray, section: str = "layer"
) -> list[Row]:
    """Half a layer in sequence parallelism: a column-split and a row-split product."""
    return [
        column_row(f"{part}_column", section, run, column, present),
        row_row(f"{part}_row", section, run, row, present),
    ]


def column_row(name: str, section: str, run: GeneratorRun, times: Times, present: BoolArray) -> Row:
    """A column-split product: inputs gathered; their gradients are scattered beside the arithmetic."""
    split = run.tp > 1
    return Row(
        name,
        section,
        Pass(times[0], "all_gather", run.activation_bytes, happens=split),
        Pass(times[1], "reduce_scatter", 0.0, happens=split),
        Pass(times[2]),
        present,
    )


def row_row(name: str, section: str, run: GeneratorRun, times: Times, present: BoolArray) -> Row:
    """A row-split product: outputs scattered, their gradients gathered."""
    split, size = run.tp > 1, run.activation_bytes
    return Row(
        name,
        section,
        Pass(times[0], "reduce_scatter", size, happens=split),
        Pass(times[1], "all_gather", size, happens=split),
        Pass(times[2]),
        present,
    )


def latent_rows(run: GeneratorRun, times: Mapping[str, Times], present: BoolArray, section: str) -> list[Row]:
    """Latent attention in sequence parallelism; every rank has the products that make latents whole.

    `times` are of `LATENT_ROWS`; products that a model does not have have none, and no row.
    """
    rows = []
    for kernel, name in LATENT_ROWS.items():
        if kernel not in times:
            continue
        if kernel in ("q_up", "kv_up"):
            rows.append(column_row(name, section, run, times[kernel], present))
        elif kernel == "projection":
            rows.append(row_row(name, section, run, times[kernel], present))
        else:
            forward, backward, weights = (Pass(time) for time in times[kernel])
            rows.append(Row(name, section, forward, backward, weights, present))
    return rows


def whole_row(name: str, run: GeneratorRun, times: Times, present: BoolArray, section: str = "layer") -> Row:
    """Attention or an MLP without sequence parallelism: one row, with one reduction forward."""
    forward = Pass(times[0], "all_reduce", run.activation_bytes, happens=run.tp > 1)
    return Row(name, section, forward, Pass(times[1]), Pass(times[2]), present)


def epilogue(run: GeneratorRun) -> list[Row]:
    """The loss over the split vocabulary, and four numbers of the optimizer."""
    loss = Pass(0.0, "all_reduce", 4 * run.micro_batch_size * run.seq_len)
    number = Pass(0.0, "all_reduce", 4.0)
    return [
        *(Row(f"cross_entropy{i}", "epilogue", loss) for i in (1, 2, 3)),
        *(Row(f"optimizer{i}", "epilogue", number) for i in (1, 2, 3, 4)),
    ]


#: Bytes of what DeepSeek's models send to experts, 8 bits and a scale in 32 for every 128, over 16-bit ones.
NARROW = (1 + 4 / 128) / 2

#: Forward pass and gradient of the input.
Both = tuple[Pass, Pass]


def expert_rows(run: GeneratorRun, time: FloatArray, release: Release) -> list[Row]:
    """Rows of experts in layers that have been timed; `time` is of all experts of a rank, forward. [s]"""
    split, size = run.tp > 1, run.activation_bytes
    spread, sent = run.ep > 1, np.floor(size * run.experts_per_token / run.tp)
    if release == "2025-09":
        routed = Pass(time, "all_gather", routing_bytes(run), happens=split | spread)
        return rows_of(run, [(routed, Pass(time)), *exchanges(run, happens=(split, spread), sent=sent)])
    routed = Pass(time, "all_gather", 2 * run.micro_batch_size * run.seq_len * run.num_experts, happens=split)
    near = Pass(NOTHING, "all_to_all", np.floor(size / run.tp), happens=split)
    middle = exchanges(run, happens=(split, spread), sent=sent)
    return rows_of(run, [(routed, routed), (near, near), *middle, (near, near)])


def untimed_expert_rows(run: GeneratorRun, release: Release) -> list[Row]:
    """Rows of experts in layers that nobody has timed: all collectives are there, over groups of one too."""
    size, always = run.activation_bytes, np.ones_like(run.tp) > 0
    sent = np.floor(size * run.experts_per_token / run.tp)
    if release == "2025-09":
        routed = Pass(NOTHING, "all_gather", routing_bytes(run))
        middle = exchanges(run, happens=(always, always), sent=sent)
        return rows_of(run, [(routed, Pass(NOTHING)), *middle])
    routed = Pass(NOTHING, "all_gather", 2 * run.seq_len * run.num_experts)
    near = Pass(NOTHING, "all_to_all", np.floor(size / run.tp))
    far = Pass(NOTHING, "all_to_all", sent, "ep")
    part, whole = (Pass(NOTHING, "all_gather", each) for each in (sent, size * run.experts_per_token))
    scattered = Pass(NOTHING, "reduce_scatter", sent)
    one_way = [(routed, routed), (near, near), (far, far), (part, whole)]
    return rows_of(run, [*one_way, (scattered, part), (far, far), (near, near)])


def exchanges(run: GeneratorRun, *, happens: tuple[BoolArray, BoolArray], sent: FloatArray) -> list[Both]:
    """To the experts, over the tensor-parallel group there and back, and from the experts.

    `happens` says whether ranks exchange anything over the two groups, tensor-parallel and expert-parallel.
    """
    split, spread = happens
    narrow = np.where(run.is_latent, np.floor(NARROW * sent), sent)
    there, back = (Pass(NOTHING, "all_to_all", each, "ep", spread) for each in (narrow, sent))
    whole = run.activation_bytes * run.experts_per_token
    return [(there, back), *within_experts(whole, split), (back, back)]


def within_experts(whole: FloatArray, happens: BoolArray) -> list[Both]:
    """What ranks that share out experts gather and scatter."""
    gathered, scattered = (Pass(NOTHING, kind, whole, happens=happens) for kind in ("all_gather", "reduce_scatter"))
    return [(gathered, scattered), (scattered, gathered)]


def routing_bytes(run: GeneratorRun) -> FloatArray:
    """How many tokens each rank has for each expert, as all ranks learn. [B]"""
    return 2 * run.ep * run.num_experts * run.tp


def rows_of(run: GeneratorRun, pairs: list[Both]) -> list[Row]:
    """Rows of experts from their passes."""
    present = (run.num_experts > 0) & (run.sequence_parallel > 0)
    return [Row("mlp_moelayer", "layer", *pair, Pass(NOTHING), present) for pair in pairs]
