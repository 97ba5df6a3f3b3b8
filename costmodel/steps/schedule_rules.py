"""What pipeline schedules ask of ranks, chunks and micro-batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from costmodel.columns import BoolArray, FloatArray


@dataclass(frozen=True, slots=True)
class Rule:
    """A condition on p ranks, v chunks, m micro-batches, groups of n: where it is met, and what would do."""

    met: Callable[[FloatArray, FloatArray, FloatArray, FloatArray], BoolArray]
    wanted: str


def _chunks(number: int, wanted: str) -> Rule:
    return Rule(lambda p, v, m, n: v == number, f"{wanted}; vpp={number} would do")


ONE_CHUNK = _chunks(1, "has one chunk per rank")
TWO_CHUNKS = _chunks(2, "has two chunks per rank")
FILLED = Rule(
    lambda p, v, m, n: m >= 2 * p,
    "needs two micro-batches per rank; gradient_accumulation_steps of at least 2 pp would do",
)
HALVES = Rule(
    lambda p, v, m, n: (p % 2 == 0) & (m % 2 == 0),
    "is two pipelines in one; even pp and even gradient_accumulation_steps would do",
)
GROUPS = Rule(
    lambda p, v, m, n: (v == 1) | ((n >= p) & (n <= m) & ((m % n == 0) | (m % n >= p))),
    "with vpp > 1 takes micro-batches in groups of group_size (0: pp), of which none is smaller than pp; "
    "gradient_accumulation_steps that pp divides, in groups of pp, would do",
)
