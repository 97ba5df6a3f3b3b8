"""Evaluates designs of a space: columns of parameters -> objectives, margins, breakdown."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import FloatArray, column_units, concatenated
from costmodel.errors import DseError
from costmodel.machine.system import System
from costmodel.steps.breakdown import Breakdown, with_unit_suffix
from costmodel.training.design import DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.run import Run
from dse.pricing.intervals import interval_columns
from dse.pricing.profiles import SpaceRules, nominal_rate, rules_for
from dse.pricing.workers import Jobs, Pricer, workers_of
from dse.spaces.expressions import Expression
from dse.spaces.objectives import Constraint
from dse.spaces.space import Space

AnyDesign = TypeVar("AnyDesign", bound=DesignPoints)

#: Designs evaluated at a time: as many as keep the intermediate arrays in the cache, whatever the batch.
CHUNK: Final = 16384
#: CPU time of a chunk that is sent to another process, by the nominal rate of its space. [s]
SENT_SECONDS: Final = 0.1
#: Relative violation of a limit where the profile has no number.
NAN_VIOLATION: Final = 1e9


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What evaluation says about each design of a batch."""

    values: FloatArray  #: (points, objectives), in the objectives' units
    margins: FloatArray  #: (points, limits), at least 0 where the limit holds, in the limits' units
    violations: FloatArray  #: (points, limits), relative to the limit, positive where it is broken [-]
    feasible: NDArray[np.bool_]  #: (points,): all limits hold, and all objectives are numbers
    breakdown: Breakdown
    derived: Mapping[str, FloatArray]  #: derived columns, (points,)

    @property
    def num_points(self) -> int:
        """Number of designs."""
        return int(self.feasible.size)

    def take(self, rows: Any) -> Evaluation:
        """Some of the designs."""
        return Evaluation(
            self.values[rows],
            self.margins[rows],
            self.violations[rows],
            self.feasible[rows],
            self.breakdown.map(lambda values: values[rows]),
            {name: values[rows] for name, values in self.derived.items()},
        )


def evaluate(space: Space, columns: Mapping[str, FloatArray], *, rules: SpaceRules | None = None,
             chunk: int = CHUNK, jobs: Jobs = 1) -> Evaluation:  # fmt: skip
    """Evaluate a batch of designs.

    Parameters
    ----------
    space : Space
        What the parameters belong to.
    columns : mapping of (points,) arrays
        The parameters, as `Space.encode` gives them. [SI units]
    rules : SpaceRules, optional
        What evaluates them; by default the native cost model.
    chunk : int
        Designs evaluated at a time, which bounds the memory. [-]
    jobs : int or Workers
        Processes that evaluate chunks, or who else does, where there is enough for two of them. [-]
    """
    rules = rules or rules_for(space)
    points = next(iter(columns.values())).size
    if not points:
        any_design = space.legal.random(1, np.random.default_rng(0))
        return evaluate(space, any_design, rules=rules).take(slice(0))
    workers = workers_of(jobs)
    if not workers.here:
        chunk = min(chunk, max(1, round(SENT_SECONDS * nominal_rate(space))))
    starts = range(0, points, chunk)
    parts = [{name: values[start : start + chunk] for name, values in columns.items()} for start in starts]
    if workers.here or len(parts) == 1:
        return _joined([_evaluate_chunk(space, part, rules) for part in parts])
    pricer = Pricer(space, rules)
    return _joined(list(workers.map(_evaluated, [(pricer, part) for part in parts])))


def _evaluated(task: tuple[Pricer, dict[str, FloatArray]]) -> Evaluation:
    """A chunk, evaluated by whoever it was sent to."""
    pricer, columns = task
    return _evaluate_chunk(pricer.space, columns, pricer.rules)


def untimed_margins(space: Space, columns: Mapping[str, FloatArray], rules: SpaceRules) -> FloatArray | None:
    """Margins of all limits of a batch of designs, found without times; None where some limit needs them.

    Parameters
    ----------
    space, columns, rules
        As for `evaluate`.

    Returns
    -------
    margins : (points, limits) array, or None
        The same as of `evaluate`, to the last bit. [the unit of each]
    """
    known = space.known_values(columns)
    footprint = rules.footprint(machine(space, known), known) if space.limits else None
    if footprint is None:
        return None
    available = {
        **known,
        **{with_unit_suffix(name): values for name, values in footprint.items()},
        **footprint,
    }
    words = {word for column in space.names.values() for word in column.words}
    for derived in space.derived:
        if derived.evaluated and Expression.parse(derived.expression).names <= available.keys() | words:
            available[derived.name] = derived.formula(available)
    if any(
        not Expression.parse(limit.expression).names <= available.keys() | words for limit in space.limits
    ):
        return None
    return _limits(space.limits, available, next(iter(columns.values())).size)[0]


def machine(space: Space, known: Mapping[str, Any]) -> System:
    """The system of a batch of designs of which everything is known that needs no evaluation."""
    chosen = {*(p.name for p in space.parameters), *(d.name for d in space.derived)}
    return space.system.with_quantities({n: known[n] for n in space.system.units() if n in chosen})


def transformer_run(
    space: Space, columns: Mapping[str, FloatArray], table: type[AnyDesign]
) -> Run[ModelShape, AnyDesign]:
    """Model, machines and designs of a batch, as a table of some profile.

    Raises
    ------
    DseError
        If the space's model is no transformer.
    """
    if not isinstance(space.model, ModelShape):
        raise DseError(f"space {space.name}: its model is no transformer")
    known, blocks = space.known_values(columns), space.model.blocks
    own = {name: known[name] for name in table.domains(blocks) if name in known}
    return Run(space.model, machine(space, known), table.of(blocks=blocks, **own))


def reasons(space: Space, profile: str, params: Mapping[str, Any]) -> list[str]:
    """Why a profile has no number for one design, and what would do; nothing where it has one."""
    known = space.known_values(space.encode([params]))
    return rules_for(space, profile).reasons(machine(space, known), known)


def remedies(space: Space, profile: str, columns: Mapping[str, FloatArray]) -> str:
    """What designs without a number want for, with how many do, and what would do; "" where not known.

    Parameters
    ----------
    space : Space
        Where the designs come from.
    profile : str
        The rules that have no number for them.
    columns : mapping of (points,) arrays
        Their parameters, as `Space.encode` gives them. [SI units]
    """
    if not any(values.size for values in columns.values()):
        return ""
    known = space.known_values(columns)
    return rules_for(space, profile).remedies(machine(space, known), known)


def evaluate_alike(space: Space, columns: Mapping[str, FloatArray], rules: SpaceRules) -> Evaluation:
    """Evaluate a batch of which many designs differ only in what changes nothing: each kind once.

    Arguments and results are those of `evaluate`.
    """
    points = next(iter(columns.values())).size
    if not points:
        return evaluate(space, columns, rules=rules)
    known = space.known_values(columns)
    system = machine(space, known)
    rows, back = rules.alike(system, known)
    kinds = _rows(known, points, rows)
    starts = range(0, rows.size, CHUNK)
    parts = [_step(space, _rows(kinds, rows.size, slice(start, start + CHUNK)), rules) for start in starts]
    return _evaluation(space, known, concatenated(parts).take(back), points, rules.profile)


def _rows(known: Mapping[str, Any], points: int, rows: Any) -> dict[str, Any]:
    """Some rows of columns; what is one value for all stays so."""
    return {
        name: values[rows] if np.ndim(values) and np.size(values) == points else values
        for name, values in known.items()
    }


def _evaluate_chunk(space: Space, columns: Mapping[str, FloatArray], rules: SpaceRules) -> Evaluation:
    known = space.known_values(columns)
    points = next(iter(columns.values())).size
    return _evaluation(space, known, _step(space, known, rules), points, rules.profile)


def _step(space: Space, known: Mapping[str, Any], rules: SpaceRules) -> Breakdown:
    """The breakdown of designs of which everything is known that needs no evaluation."""
    points = max(np.size(known[parameter.name]) for parameter in space.parameters)
    return rules.step(machine(space, known), known).map(lambda values: _filled(values, points))


def _evaluation(
    space: Space, known: Mapping[str, Any], breakdown: Breakdown, points: int, profile: str
) -> Evaluation:
    """What formulas make of a breakdown."""
    values: dict[str, Any] = {**_by_both_names(breakdown), **known}
    if space.reads_intervals:
        values = {**interval_columns(space, known, breakdown, profile), **values}
    for derived in space.derived:
        if derived.evaluated:
            values[derived.name] = derived.formula(values)
    objectives = _stacked([o.formula(values) for o in space.objectives], points)
    margins, violations = _limits(space.limits, values, points)
    return Evaluation(
        values=objectives,
        margins=margins,
        violations=violations,
        feasible=np.logical_and((margins >= 0).all(axis=1), np.isfinite(objectives).all(axis=1)),
        breakdown=breakdown,
        derived={d.name: _filled(values[d.name], points) for d in space.derived},
    )


def _limits(limits: tuple[Constraint, ...], values: Mapping[str, Any],
            points: int) -> tuple[FloatArray, FloatArray]:  # fmt: skip
    """Margins, and violations relative to the limits; no number means far outside."""
    pairs = [limit.formula.margins(values) for limit in limits]
    margins = _stacked([margin for margin, _ in pairs], points)
    scales = _stacked([scale for _, scale in pairs], points)
    undefined = np.isnan(margins)
    violations = np.where(undefined, NAN_VIOLATION, -margins / scales)
    return np.where(undefined, -np.inf, margins), np.clip(violations, -NAN_VIOLATION, NAN_VIOLATION)


def _by_both_names(breakdown: Breakdown) -> dict[str, Any]:
    """Columns of a breakdown by name, and by name with unit."""
    columns = breakdown.columns()
    return {**{with_unit_suffix(name): values for name, values in columns.items()}, **columns}


def _stacked(columns: list[Any], points: int) -> FloatArray:
    """(points, columns) array of columns of one value or (points,)."""
    if not columns:
        return np.zeros((points, 0))
    return np.stack([_filled(column, points) for column in columns], axis=1)


def _filled(values: Any, points: int) -> FloatArray:
    """A column of full length."""
    return np.broadcast_to(np.asarray(values, dtype=np.float64).reshape(-1), (points,))


def _joined(parts: list[Evaluation]) -> Evaluation:
    """One evaluation of all chunks."""
    if len(parts) == 1:
        return parts[0]
    first = parts[0]
    names = column_units(Breakdown)
    return Evaluation(
        values=np.concatenate([part.values for part in parts]),
        margins=np.concatenate([part.margins for part in parts]),
        violations=np.concatenate([part.violations for part in parts]),
        feasible=np.concatenate([part.feasible for part in parts]),
        breakdown=replace(
            first.breakdown,
            **{n: np.concatenate([getattr(part.breakdown, n) for part in parts]) for n in names},
        ),
        derived={n: np.concatenate([part.derived[n] for part in parts]) for n in first.derived},
    )
