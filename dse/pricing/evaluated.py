"""Results of the evaluation of a batch of designs, and further columns of their records.

An `Evaluation` has objectives, margins of limits, and the breakdown of each design. `with_intervals` adds the 90 %
interval of the step time, from measured runs; `with_runs` adds the figures of a whole training run. `nominal_rate` is
the usual number of designs in a second: it decides the amount of work, so it is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import FloatArray, concatenated
from costmodel.errors import DseError
from costmodel.machine import System
from costmodel.rules.registry import NATIVE, design_columns, design_rules, profiles_reading
from costmodel.rules.rules import TRAINING, WorkloadRules
from costmodel.steps.breakdown import Breakdown, ResultTable
from costmodel.training.blocks import ASSIGNMENTS
from costmodel.training.design import SOLVE, SOLVE_BYTES
from dse.predictions import EVIDENCE, Interval, ends, interval, kind_codes, ranks_of, unmeasured_features, widest
from dse.spaces.sections.parameters import keyed
from dse.spaces.sections.training_run import UNITS, has_run
from dse.spaces.space import Batch, Params, Space

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
            {name: workload.take(rows) for name, workload in self.workloads.items()},
        )


def costs_of(space: Space, evaluation: Evaluation) -> FloatArray:
    """(points, objectives) Values turned so that less is better; NaN where infeasible. [the unit of each]"""
    from dse.fronts import as_costs  # of searches alone

    costs = as_costs(evaluation.values, space.directions)
    return np.where(evaluation.feasible[:, None], costs, np.nan)


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
    names = ("values", "margins", "violations", "feasible")
    arrays: dict[str, Any] = {name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    return replace(
        parts[0],
        **arrays,
        breakdown=concatenated([part.breakdown for part in parts]),
        derived={name: np.concatenate([part.derived[name] for part in parts]) for name in parts[0].derived},
    )


#: Column of tables of designs: which winner of its trial a design is.
WINNER: Final = "winner"

#: Keys of records of designs that are not stored.
RECORD_KEYS: Final = ("step_time_low_s", "step_time_high_s", "evidence")

Record = dict[str, Any]


def space_interval(space: Space, known: Mapping[str, Any], points: int) -> Interval:
    """Intervals of designs with all columns that need no evaluation; (points,) columns. [-]"""
    if space.workload.work != TRAINING:
        return widest(points)
    result = interval(space.framework, machine(space, known), space.model, known)
    names = ("low", "high", "evidence", "mean")
    arrays: dict[str, Any] = {name: np.broadcast_to(getattr(result, name), (points,)) for name in names}
    return replace(result, **arrays)


def unmeasured(space: Space, record: Mapping[str, Any]) -> list[str]:
    """Features of a transformer's design that no measured run on its chip has, in words."""
    known = space.known_values(space.encode([record["params"]]))
    codes = [int(code.flat[0]) for code in kind_codes(known)]
    return unmeasured_features(machine(space, known), space.model, ranks_of(known), codes)


@dataclass(frozen=True, slots=True)
class FittedDesign:
    """A feasible design, and the changes to reach it."""

    params: Params
    changed: Mapping[str, tuple[Any, Any]]  #: named values: given, and changed
    broken: Mapping[str, float]  #: limits that the named values violate at best, and by how much [unit of each]
    exhaustive: bool  #: whether every legal design was looked at


def interval_columns(
    space: Space, known: Mapping[str, Any], breakdown: ResultTable, profile: str
) -> dict[str, FloatArray]:
    """Ends of the intervals of a batch of designs as columns for formulas: `dse.predictions.ends`.

    Raises `DseError` if there are none: measured errors are of training under the native cost model.
    """
    if profile != NATIVE:
        raise DseError(f"space {space.name}: profile {profile} has no intervals; native does")
    if not isinstance(breakdown, Breakdown):
        raise DseError(f"space {space.name}: {space.workload.work.name} has no intervals; training does")
    return ends(breakdown, space_interval(space, known, int(np.size(breakdown.step_time))))


def time_intervals(space: Space, designs: Batch, times: FloatArray) -> dict[str, NDArray[Any]]:
    """Ends of the intervals of step times [s] of designs, and their evidence: `RECORD_KEYS`, (points,) each."""
    intervals = space_interval(space, space.known_values(designs), times.size)
    evidence = np.array(EVIDENCE, dtype=object)[intervals.evidence]
    return dict(zip(RECORD_KEYS, (times * intervals.low, times * intervals.high, evidence), strict=True))


def with_intervals(space: Space, records: Sequence[Record], profile: str) -> list[Record]:
    """Records of designs with the interval of their step time, and its evidence."""
    if not records or profile != NATIVE or space.workloads or not space.workload.work.reads_system:
        return [*records]
    times = np.array([record["breakdown"].get("step_time_s", np.nan) for record in records])
    columns = time_intervals(space, space.encode([record["params"] for record in records]), times)
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [record | dict(zip(RECORD_KEYS, row, strict=True)) for record, row in zip(records, rows, strict=True)]


def with_runs(space: Space, records: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Records of designs with `run`: the columns of their runs, names ending in their units."""
    if not has_run(space.data):
        return [*records]
    run, tokens = {keyed(name, unit): name for name, unit in UNITS.items()}, space.given["tokens"]
    columns = [{key: r["derived"][name] for key, name in run.items() if name in r["derived"]} for r in records]
    return [{**record, "run": {"tokens": tokens, **column}} for record, column in zip(records, columns, strict=True)]


#: Designs evaluated in a second on one core where shardings are solved on open machines. [1/s]
SOLVED_RATE: Final = 5e3


def rules_for(space: Space, profile: str = NATIVE) -> WorkloadRules:
    """Rules by which a profile evaluates the designs of a space.

    Raises `DseError` if there is no such profile, or it lacks rules for the model or the columns.
    """
    rules = design_rules(profile, space.workload)
    every, rule_columns = design_columns(space.workload), rules.columns
    for name in space.chosen:
        if name in every and name not in rule_columns:
            others = ", ".join(profiles_reading(name, space.workload))
            raise DseError(f"space {space.name}: {name}: profile {profile} does not have it; take {others}")
    return rules


def solves_shardings(space: Space) -> bool:
    """True if a space solves the sharding of every design for the fastest step."""
    return "sharding" not in space.by_name and space.constants.get("sharding") == SOLVE


def nominal_rate(space: Space, *, screened: bool = False) -> float:
    """Designs of a space that are evaluated in a second on one core, to the order of magnitude. [1/s]

    With `screened`, the named shardings stand for those that a space solves.

    It decides how many designs are evaluated for one trial, so it is not a measurement: the same on every machine.
    """
    usual_rate = space.workload.work.rate(space.workload.model)
    if space.workloads:
        return float(usual_rate / sum(max(workload.space.outer.inner_count, 1.0) for workload in space.workloads))
    options = space.by_name["sharding"].options if "sharding" in space.by_name else None
    codes = [space.constants.get("sharding", 0.0)] if options is None else options.tolist()
    machine = {*space.by_name, *(derived.name for derived in space.derived)} & space.system.units().keys()
    if machine and {SOLVE, SOLVE_BYTES} & {*codes} and not (screened and solves_shardings(space)):
        return SOLVED_RATE
    return usual_rate / (len(ASSIGNMENTS) if solves_shardings(space) else 1)


def machine(space: Space, known: Mapping[str, Any]) -> System:
    """The system of a batch of designs with all columns that need no evaluation, or some of them."""
    chosen = {*(p.name for p in space.parameters), *(d.name for d in space.derived)} & known.keys()
    return space.system.with_quantities({n: known[n] for n in space.system.units() if n in chosen})
