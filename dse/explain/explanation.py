"""Why a design costs what it does: its step and its memory as trees that add up, its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from costmodel.columns import FloatArray
from costmodel.machine.system import System
from costmodel.steps.breakdown import PARTS, with_unit_suffix
from dse.explain.kernels import kernel_table
from dse.explain.paths import Path, Portion, label, leaves
from dse.pricing.evaluation import machine
from dse.pricing.profiles import NATIVE, rules_for
from dse.search.exact import priced_design
from dse.spaces.space import Params, Space

if TYPE_CHECKING:
    import pandas as pd

#: Total of a breakdown -> quantity of the items that add up to it, and the column of a tree that has it.
TOTALS = {"step_time": ("time", "seconds"), "peak_memory": ("bytes", "bytes")}


@dataclass(frozen=True)
class Explanation:
    """One design of a space, priced, with all that its step time and its memory add up to.

    Times are those of the slowest pipeline stage, with what it waits for; memory is that of the fullest one.
    """

    space: Space
    profile: str  #: rules that priced it
    trial: int | None  #: its number, where it is of a study
    record: Mapping[str, Any]  #: params, derived, values, margins and breakdown, as JSON has them
    portions: tuple[Portion, ...]  #: items of the cost model [s], [B], [FLOP], [-]

    @property
    def params(self) -> Params:
        """Parameters of the design. [SI units]"""
        return dict(self.record["params"])

    @property
    def step_time(self) -> float:
        """[s]"""
        return float(self.record["breakdown"]["step_time_s"])

    @property
    def peak_memory(self) -> float:
        """Of the fullest stage. [B]"""
        return float(self.record["breakdown"]["peak_memory_bytes"])

    @property
    def time(self) -> pd.DataFrame:
        """The step as a tree: a row for each leaf, ``path`` (a tuple) and ``seconds``. [s]"""
        return self._tree("step_time")

    @property
    def memory(self) -> pd.DataFrame:
        """The peak memory as a tree: a row for each leaf, ``path`` (a tuple) and ``bytes``. [B]"""
        return self._tree("peak_memory")

    @property
    def hidden(self) -> pd.DataFrame:
        """Exchanges that run beside kernels, and so are no part of the step: ``path`` and ``seconds``. [s]"""
        found = summed((leaf.path, leaf.value) for leaf in self.portions if leaf.quantity == "hidden")
        return frame({path: value for path, value in found.items() if value > 0}, "seconds")

    @cached_property
    def kernels(self) -> pd.DataFrame:
        """A row for each kernel: ``path``, ``seconds``, ``launches``, ``flops``, bytes, and its roofline.

        ``bound`` says what it waits for: arithmetic, a level of memory, or launches. ``intensity`` is FLOP
        per byte of the farthest level, ``attained`` what it reaches, ``ceiling`` the most that the chip's
        peak and that level allow at this intensity. [s], [FLOP], [B], [FLOP/B], [FLOP/s]
        """
        return kernel_table(self.portions, self.system)

    @cached_property
    def system(self) -> System:
        """The machine of the design."""
        return design_machine(self.space, self.params)

    @cached_property
    def stages(self) -> dict[str, int]:
        """``slowest stage`` and ``fullest stage``: places in the pipeline from 0, where there is one. [-]"""
        return {leaf.path[0]: round(leaf.value) for leaf in self.portions if leaf.quantity == "rank"}

    def _tree(self, total: str) -> pd.DataFrame:
        """Leaves of a total; a part of which nothing more is known is one. [unit of the total]"""
        quantity, column = TOTALS[total]
        of_part: dict[str, dict[Path, float]] = {}
        for leaf in self.portions:
            if leaf.quantity == quantity:
                own = of_part.setdefault(leaf.path[0], {})
                own[leaf.path] = own.get(leaf.path, 0.0) + leaf.value
        found: dict[Path, float] = {}
        for part in PARTS[total]:
            whole = float(self.record["breakdown"][with_unit_suffix(part)])
            found |= of_part.get(label(part)) or {(label(part),): whole}
        return frame({path: value for path, value in found.items() if value}, column)

    def to_json(self) -> dict[str, Any]:
        """The trees and kernels as one JSON object; the leaves of ``time`` and ``memory`` add up."""
        return {
            **({"trial": self.trial} if self.trial is not None else {}),
            "profile": self.profile,
            **{key: self.record[key] for key in ("params", "values", "margins", "breakdown")},
            "stages": self.stages,
            **{name: records(getattr(self, name)) for name in ("time", "memory", "hidden", "kernels")},
        }


def explain(
    space: Space, params: Mapping[str, Any], *, profile: str = NATIVE, trial: int | None = None
) -> Explanation:
    """Price one design, and say what its time and memory are made of.

    Parameters
    ----------
    space : Space
        Where the design comes from.
    params : mapping
        The design, a value for each parameter. [SI units]
    profile : str
        The rules that price it. Those of the native cost model name every kernel; others name the parts of
        their breakdown.
    trial : int, optional
        Its number in a study. [-]

    Raises
    ------
    DseError
        If the profile does not know such designs.
    """
    rules = rules_for(space, profile)
    record = priced_design(space, params, rules=rules)
    known = space.known_values(space.encode([params]))
    items = rules.items(machine(space, known), known) if np.isfinite(step_time_of(record)) else {}
    return Explanation(space, profile, trial, record, tuple(leaves(space, items)))


def step_time_of(record: Mapping[str, Any]) -> float:
    """Of a design's record. [s]"""
    return float(record["breakdown"]["step_time_s"])


def design_machine(space: Space, params: Mapping[str, Any]) -> System:
    """The machine of one design, each quantity one number."""

    def one(values: FloatArray) -> FloatArray:
        return np.asarray(values.reshape(-1)[0])

    return machine(space, space.known_values(space.encode([params]))).map(one)


def summed(pairs: Iterable[tuple[Path, float]]) -> dict[Path, float]:
    """Values of equal paths added up. [their unit]"""
    found: dict[Path, float] = {}
    for path, value in pairs:
        found[path] = found.get(path, 0.0) + value
    return found


def frame(values: Mapping[Path, float], column: str) -> pd.DataFrame:
    """A tree as a table: ``path`` and a column of values. [their unit]"""
    import pandas as pd

    return pd.DataFrame({"path": pd.Series([*values], dtype=object), column: [*values.values()]})


def records(table: pd.DataFrame) -> list[dict[str, Any]]:
    """Rows of a table as JSON has them."""
    return [
        {str(key): [*value] if isinstance(value, tuple) else value for key, value in row.items()}
        for row in table.to_dict("records")
    ]
