"""What AICB's generator takes, a model and its parallelism, and the parameters it counts [AICB]_."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, broadcast_columns, column, column_units
from costmodel.errors import DseError, suggestion
from costmodel.profiles.simai.workload_rows import Parallelism

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

        Raises
        ------
        DseError
            For an unknown column, or numbers that no run can have.
        """
        units = column_units(cls)
        for name in values:
            if name not in units:
                raise DseError(f"run: {name}: unknown column{suggestion(name, units)}")
        given = {name: np.asarray(value, dtype=np.float64) for name, value in values.items()}
        defaults = {name: array for name, array in cls(**cls._blank()).columns().items() if name not in given}
        run = cls(**broadcast_columns(**defaults, **given))
        run._check(set(_REQUIRED) - set(values))
        return run

    @staticmethod
    def _blank() -> dict[str, FloatArray]:
        return {name: np.ones(1) for name in _REQUIRED}

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
        """Replicas. [-]"""
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


_REQUIRED = (
    "num_layers",
    "hidden_size",
    "ffn_hidden_size",
    "seq_len",
    "vocab_size",
    "world_size",
    "global_batch_size",
)


def check_release(run: GeneratorRun, release: str, *, timed: bool) -> None:
    """Refuse a release that is not known, or rows of it that are not, with times or without."""
    if release not in RELEASES:
        raise DseError(f"AICB release {release}: unknown{suggestion(release, RELEASES)}")
    if release < "2025-09" and run.is_latent.any():
        raise DseError(f"AICB release {release}: knows no latent attention; take release 2025-09")
    if timed and release < "2025-09" and ((run.num_experts > 0) & (run.ep == 1)).any():
        raise DseError(f"AICB release {release}: experts need ep above 1; or take release 2025-09")


#: Release -> copies of the word table that it counts.
WORD_TABLES: Final[Mapping[str, int]] = {
    "2024-10": 2,
    "2024-11": 4,
    "2024-12": 4,
    "2025-01": 4,
    "2025-09": 4,
}


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
    tables = WORD_TABLES[release] * vocabulary * hidden + run.seq_len * hidden + np.where(shared, head, 0.0)
    leading, layers = run.leading_layers, run.stage_layers
    dense = (
        layers * layer + leading * mlp(run) + (layers - leading) * np.where(sparse, shared_expert, mlp(run))
    )
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
