"""Results of the evaluation of a batch of designs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import FloatArray, column_units
from costmodel.steps.result.breakdown import ResultTable

#: Relative violation of a limit where the profile has no number.
NAN_VIOLATION: Final = 1e9


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Results of the evaluation of each design of a batch."""

    values: FloatArray  #: (points, objectives), in the objectives' units
    margins: FloatArray  #: (points, limits), at least 0 where the limit holds, in the limits' units
    violations: FloatArray  #: (points, limits), relative to the limit, positive where it is broken [-]
    feasible: NDArray[np.bool_]  #: (points,): all limits hold, and all objectives are numbers
    breakdown: ResultTable
    derived: Mapping[str, FloatArray]  #: derived columns, (points,)
    workloads: Mapping[str, BestLayouts] = field(default_factory=dict)  #: of a space of several

    @property
    def num_points(self) -> int:
        """Number of designs that were evaluated. [-]"""
        return int(self.feasible.size)

    def take(self, rows: Any) -> Evaluation:
        """Evaluation of some of the designs."""
        return Evaluation(
            self.values[rows],
            self.margins[rows],
            self.violations[rows],
            self.feasible[rows],
            self.breakdown.map(lambda values: values[rows]),
            {name: values[rows] for name, values in self.derived.items()},
            {name: own.take(rows) for name, own in self.workloads.items()},
        )


@dataclass(frozen=True, slots=True)
class BestLayouts:
    """The layout of one workload on each of some machines."""

    designs: Mapping[str, FloatArray]  #: machine and layout, (points,) each
    evaluation: Evaluation  #: of the workload alone; nothing is a number where it has no legal layout

    def take(self, rows: Any) -> BestLayouts:
        """Best layouts of some of the machines."""
        designs = {name: values[rows] for name, values in self.designs.items()}
        return BestLayouts(designs, self.evaluation.take(rows))


def joined(parts: list[Evaluation]) -> Evaluation:
    """Evaluation of all chunks together, of one workload."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    names = column_units(type(first.breakdown))
    return Evaluation(
        values=np.concatenate([part.values for part in parts]),
        margins=np.concatenate([part.margins for part in parts]),
        violations=np.concatenate([part.violations for part in parts]),
        feasible=np.concatenate([part.feasible for part in parts]),
        breakdown=replace(
            first.breakdown, **{n: np.concatenate([getattr(part.breakdown, n) for part in parts]) for n in names}
        ),
        derived={n: np.concatenate([part.derived[n] for part in parts]) for n in first.derived},
    )
