"""What AICB's generator takes: a model and its parallelism [AICB]_."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, Self, get_args

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, broadcast_columns, column, column_units
from costmodel.errors import DseError, suggestion
from costmodel.profiles.simai.rows import Parallelism

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
