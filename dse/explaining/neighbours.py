"""Designs one step away from a design, evaluated in one batch; and the sensitivity to parameters and hardware.

A neighbour changes one parameter to the next option, or two whose product stays, such as tp and pp. Faster neighbours
that break a limit name the limit that keeps the design slow; neighbours with more room below it are levers. A
sensitivity changes one quantity of the hardware: an elasticity is the per cent of step time for one per cent of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import combinations
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray, short_repr
from dse.explaining.explanation import Explanation
from dse.pricing.evaluated import Evaluation, machine, rules_for
from dse.pricing.evaluation import evaluate
from dse.spaces.lattice import Lattice, is_ordered
from dse.spaces.legal import options_of
from dse.spaces.sections.parameters import Constraint, Value
from dse.spaces.space import Batch, Params, Space

#: A way from a design, such as a parameter and up: the first legal design along it counts.
Way = tuple[str | int, ...]


def one_step(space: Space, params: Mapping[str, Value], products: Sequence[Collection[str]]) -> Batch:
    """A design and its neighbours as columns: the design first, then legal others, each once.

    Each listed number goes to the next legal value up and down, words and switches to every other one; ranges move by a
    hundredth and a tenth of their span. The columns of each of `products` have a product that stays the same, such as
    the world size: two of them may change together. [SI units]
    """
    lattice = Lattice(space)
    here = lattice.places(space.encode([params]))[0]
    moves = [*_single(lattice, here), *_pairs(lattice, here, products)]
    rows = np.array([row for _, row in moves]).reshape(len(moves), here.size)
    legal = lattice.legal(rows)
    first: dict[Way, FloatArray] = {}
    for (way, row), keeps in zip(moves, legal, strict=True):
        if keeps:
            first.setdefault(way, row)
    others = np.array([*first.values()]).reshape(len(first), here.size)
    unique = np.unique(others, axis=0)
    return lattice.columns(np.concatenate([here[np.newaxis], unique]))


def _single(lattice: Lattice, here: FloatArray) -> Iterator[tuple[Way, FloatArray]]:
    """Designs with one parameter changed, the nearest values first, and the way it goes."""
    for at, parameter in enumerate(lattice.parameters):
        if not lattice.sizes[at]:
            for number, step in enumerate(lattice.steps[at]):
                yield (at, "range", number), _changed(here, {at: here[at] + step})
        elif is_ordered(parameter):
            for code, away in _outward(lattice, here, at):
                yield (at, "up" if away > 0 else "down"), _changed(here, {at: code})
        else:
            for code in range(int(lattice.sizes[at])):
                if code != here[at]:
                    yield (at, "word", code), _changed(here, {at: float(code)})


def _pairs(lattice: Lattice, here: FloatArray, products: Sequence[Collection[str]]) -> Iterator[tuple[Way, FloatArray]]:
    """Two parameters changed whose product stays, the nearest values first; the way they go."""
    listed = [at for at, parameter in enumerate(lattice.parameters) if is_ordered(parameter)]
    for one, other in combinations(listed, 2):
        names = {lattice.parameters[at].name for at in (one, other)}
        if not any(names <= {*product} for product in products):
            continue
        columns = lattice.columns(here[np.newaxis])
        product = columns[lattice.parameters[one].name][0] * columns[lattice.parameters[other].name][0]
        options, values = (options_of(lattice.parameters[at]) for at in (one, other))
        for code, away in _outward(lattice, here, one):
            for match in np.flatnonzero(values * options[int(code)] == product):
                changed = _changed(here, {one: code, other: float(match)})
                yield (one, other, "up" if away > 0 else "down"), changed


def _outward(lattice: Lattice, here: FloatArray, at: int) -> list[tuple[float, int]]:
    """Options around that of a listed number, the nearest first: places, and how many values away. [-]"""
    options = options_of(lattice.parameters[at])
    rank = np.argsort(np.argsort(options))
    away = rank - rank[int(here[at])]
    return [(float(code), int(away[code])) for code in np.argsort(np.abs(away), kind="stable")[1:]]


def _changed(here: FloatArray, places: Mapping[int, float]) -> FloatArray:
    """A design with some places changed."""
    row = here.copy()
    for at, code in places.items():
        row[at] = code
    return row


#: Changes below this share of a total are none: formulas round. [-]
NO_CHANGE: Final = 1e-12


@dataclass(frozen=True)
class Neighbour:
    """A legal design that differs in one step, and its costs; changes are relative to the design itself."""

    changes: Mapping[str, tuple[Any, Any]]  #: parameter -> its value in the design, and here [SI units]
    params: Params
    feasible: bool
    values: Mapping[str, float]  #: objectives, by key [units of the objectives]
    margins: Mapping[str, float]  #: of limits, by key; below 0 where broken [units of the limits]
    step_time: float  #: [s]
    peak_memory: float  #: [B]
    step_time_change: float  #: [s]
    peak_memory_change: float  #: [B]

    def to_json(self) -> dict[str, Any]:
        """The neighbour as one JSON object."""
        return {
            "changes": {name: {"from": old, "to": new} for name, (old, new) in self.changes.items()},
            "feasible": self.feasible,
            "step_time_s": self.step_time,
            "peak_memory_bytes": self.peak_memory,
            "step_time_change_s": self.step_time_change,
            "peak_memory_change_bytes": self.peak_memory_change,
            "values": dict(self.values),
            "margins": dict(self.margins),
        }


@dataclass(frozen=True)
class Binding:
    """Limits that keep a design from being faster, and the changes that make room."""

    limit: Constraint | None  #: the limit that is nearest, or that faster neighbours break
    margin: float  #: of the design [unit of the limit]
    faster: tuple[Neighbour, ...]  #: neighbours that take less time but break it, the fastest first
    levers: tuple[Neighbour, ...]  #: neighbours with a larger margin, the least slow for it first

    def to_json(self) -> dict[str, Any]:
        """Neighbours as one JSON object; ``levers`` and ``faster`` are lists of them."""
        return {
            "limit": self.limit.name if self.limit else None,
            "margin": self.margin,
            "unit": self.limit.unit if self.limit else "B",
            "faster": [neighbour.to_json() for neighbour in self.faster],
            "levers": [neighbour.to_json() for neighbour in self.levers],
        }


def neighbours(explanation: Explanation) -> tuple[Neighbour, ...]:
    """Legal designs one step from a design (`one_step`), the best of the first objective first."""
    return neighbourhoods([explanation])[0][0]


def neighbourhoods(explanations: Sequence[Explanation]) -> list[tuple[tuple[Neighbour, ...], Binding]]:
    """Neighbours and binding limit of several designs of one space, evaluated in one batch."""
    space = explanations[0].space
    rules = rules_for(space, explanations[0].profile)
    batches = [one_step(space, explanation.params, [*rules.totals.values()]) for explanation in explanations]
    columns = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    evaluation = evaluate(space, columns, rules=rules)
    designs = space.decode(columns)
    objective = space.objectives[0]
    neighbours_found, first = [], 0
    for explained, batch in zip(explanations, batches, strict=True):
        last = first + len(next(iter(batch.values())))
        table = [
            _neighbour(space, explained.params, designs[row], evaluation, row, first)
            for row in range(first + 1, last)
            if np.isfinite(evaluation.breakdown.time[row])
        ]
        near = tuple(sorted(table, key=lambda n: (not n.feasible, objective.cost(n.values[objective.key]))))
        neighbours_found.append((near, binding(explained, near, -evaluation.violations[first])))
        first = last
    return neighbours_found


def _neighbour(
    space: Space, params: Params, design: Params, evaluation: Evaluation, row: int, itself: int
) -> Neighbour:
    """Neighbour in a row of a batch that has the design in the row `itself`."""
    time, memory = evaluation.breakdown.time, evaluation.breakdown.memory

    def change(values: FloatArray) -> float:
        moved = float(values[row] - values[itself])
        return moved if abs(moved) > NO_CHANGE * abs(float(values[itself])) else 0.0

    return Neighbour(
        changes={name: (params[name], value) for name, value in design.items() if value != params[name]},
        params=design,
        feasible=bool(evaluation.feasible[row]),
        values={o.key: float(evaluation.values[row, at]) for at, o in enumerate(space.objectives)},
        margins={o.key: float(evaluation.margins[row, at]) for at, o in enumerate(space.limits)},
        step_time=float(time[row]),
        peak_memory=float(memory[row]),
        step_time_change=change(time),
        peak_memory_change=change(memory),
    )


def binding(explanation: Explanation, neighbours: Sequence[Neighbour], room: FloatArray) -> Binding:
    """The limit that restricts a design most: the one that most faster neighbours break, else the nearest by `room`.

    `room`, (limits,), is the margin of the design as a share of each limit. [-] Without limits memory counts, and every
    neighbour with less memory is a lever.
    """
    limits, margins = explanation.space.limits, explanation.record["margins"]
    if not limits:
        levers = sorted((n for n in neighbours if n.peak_memory_change < 0), key=_slowing)
        return Binding(None, float("nan"), (), tuple(levers))
    faster = [neighbour for neighbour in neighbours if neighbour.step_time_change < 0 and not neighbour.feasible]
    broken = [sum(neighbour.margins[limit.key] < 0 for neighbour in faster) for limit in limits]
    limit = limits[min(range(len(limits)), key=lambda at: (-broken[at], float(room[at])))]
    margin = float(margins[limit.key])
    levers = sorted((neighbour for neighbour in neighbours if neighbour.margins[limit.key] > margin), key=_slowing)
    breaking = sorted((n for n in faster if n.margins[limit.key] < 0), key=lambda n: n.step_time)
    return Binding(limit, margin, tuple(breaking), tuple(levers))


def _slowing(neighbour: Neighbour) -> tuple[float, float]:
    """Order of levers: by the time that they add, then by the memory that they free."""
    return neighbour.step_time_change, neighbour.peak_memory_change


#: Change of a quantity up and down, for a central difference. [-]
STEP: Final = 0.01
#: Elasticities below this are of quantities that do not matter. [-]
LEAST: Final = 1e-6
#: Endings of quantities that describe the topology of a machine: they are left out.
TOPOLOGY: Final = ("_size", "_used", "_in_switch", "_torus_x", "_torus_y", "_torus_z", "_torus_wrap")
#: Memory that tiles fit into. The step time jumps where it holds the next tile, so that it is doubled.
TILED: Final = "sram_capacity"
#: Endings of quantities that count parts of a chip, and that memory: a hundredth more of them is not a chip, and the
#: change of the step time is a jump of roundings.
COUNTED: Final = ("cores", "array_height", "array_width", "arrays_per_core", "vector_lanes", TILED)


@dataclass(frozen=True)
class Elasticity:
    """Change of the step time for one per cent more of a quantity."""

    quantity: str
    unit: str  #: SI
    value: float  #: of the design's machine [unit]
    elasticity: float  #: per cent of step time per per cent of the quantity [-]


@dataclass(frozen=True)
class CountStep:
    """Change of the step time where a chip has more of a part."""

    quantity: str
    unit: str  #: SI
    value: float  #: of the design's machine [unit]
    larger: float  #: next value that a chip would have [unit]
    change: float  #: share of the step time [-]


@dataclass(frozen=True)
class Sensitivity:
    """A design, effects of single steps of its parameters, and of changes of its hardware."""

    __repr__ = short_repr

    explanation: Explanation
    parameters: tuple[Neighbour, ...]  #: of one changed parameter each, the largest change of step time first
    elasticities: tuple[Elasticity, ...]  #: the largest first; those that do not matter are left out
    counts: tuple[CountStep, ...]  #: parts of a chip, the largest change first
    without: int  #: quantities that do not matter to the step time [-]

    def change(self, neighbour: Neighbour) -> float:
        """Change of the step time, as a share of the design's. [-]"""
        return neighbour.step_time_change / self.explanation.step_time

    def records(self) -> list[dict[str, Any]]:
        """A row for each parameter's step and each quantity, as CSV has them."""
        steps = [
            {"kind": "parameter", "name": name, "from": old, "to": new, "change": self.change(neighbour),
             "feasible": neighbour.feasible}
            for neighbour in self.parameters
            for name, (old, new) in neighbour.changes.items()
        ]  # fmt: skip
        counts = [
            {"kind": "count", "name": e.quantity, "from": e.value, "to": e.larger, "change": e.change}
            for e in self.counts
        ]
        return steps + counts + [
            {"kind": "quantity", "name": e.quantity, "unit": e.unit, "from": e.value,
             "elasticity": e.elasticity}
            for e in self.elasticities
        ]  # fmt: skip

    def to_json(self) -> dict[str, Any]:
        """Sensitivities as one JSON object: ``parameters`` and ``elasticities``."""
        explanation = self.explanation
        return {
            **({"trial": explanation.trial} if explanation.trial is not None else {}),
            "profile": explanation.profile,
            "params": explanation.params,
            "step_time_s": explanation.step_time,
            "parameters": [parameter.to_json() for parameter in self.parameters],
            "counts": [asdict(count) for count in self.counts],
            "elasticities": [asdict(elasticity) for elasticity in self.elasticities],
        }


def sensitivity(explanation: Explanation) -> Sensitivity:
    """Effects of a step of each parameter up and down, and elasticities of quantities of the hardware.

    Raises `DseError` if the profile has no rules for this kind of work.
    """
    steps = [neighbour for neighbour in neighbours(explanation) if len(neighbour.changes) == 1]
    largest: dict[str, float] = {}
    for step in steps:
        name = next(iter(step.changes))
        largest[name] = max(largest.get(name, 0.0), abs(step.step_time_change))
    order = {name: index for index, name in enumerate(sorted(largest, key=lambda name: -largest[name]))}
    steps.sort(key=lambda step: (order[next(iter(step.changes))], step.step_time_change))
    counts, steps_of_quantities = quantity_steps(explanation)
    matter = sorted((e for e in steps_of_quantities if abs(e.elasticity) > LEAST), key=lambda e: -abs(e.elasticity))
    moving = sorted((e for e in counts if abs(e.change) > LEAST), key=lambda e: -abs(e.change))
    without = len(steps_of_quantities) + len(counts) - len(matter) - len(moving)
    return Sensitivity(explanation, tuple(steps), tuple(matter), tuple(moving), without)


def next_count(name: str, value: float) -> float:
    """The next larger number of parts of a chip: by the largest power of two that divides it; memory doubles. [-]

    >>> [next_count("cores", value) for value in (16.0, 108.0, 132.0, 160.0)], next_count("sram_capacity", 24e6)
    ([32.0, 112.0, 136.0, 192.0], 48000000.0)
    """
    whole = int(value)
    return 2 * value if name.endswith(TILED) else float(whole + (whole & -whole))


def quantity_steps(explanation: Explanation) -> tuple[list[CountStep], list[Elasticity]]:
    """Steps of the counts of the design's machine, and elasticities of its other positive quantities.

    All are evaluated in one batch, each with all others as they are. An elasticity is a central difference, d log(step
    time) / d log(quantity), of a hundredth more and less. A count takes its next larger value, unless it is a parameter
    of the space, which `neighbours` step. Quantities without a number and those of the topology are left out.
    """
    space, nominal = explanation.space, explanation.system
    values = {
        name: float(value)
        for name, value in nominal.quantities().items()
        if np.isfinite(value) and value > 0 and not name.endswith(TOPOLOGY)
    }
    counted = [name for name in values if name.endswith(COUNTED)]
    smooth = [name for name in values if name not in counted]
    counted = [name for name in counted if name not in space.by_name and values[name] >= 1]
    ratios = [(name, next_count(name, values[name]) / values[name]) for name in counted]
    ratios += [(name, factor) for name in smooth for factor in (1 + STEP, 1 - STEP)]
    points, units = 1 + len(ratios), nominal.units()
    swept = {name: np.full(points, values[name]) for name, _ in ratios}
    for index, (name, ratio) in enumerate(ratios, start=1):
        swept[name][index] *= ratio
    columns = {n: np.repeat(codes, points) for n, codes in space.encode([explanation.params]).items()}
    known = space.known_values(columns)
    system = machine(space, known).with_quantities(swept)
    time = rules_for(space, explanation.profile).step(system, known).time
    first = 1 + len(counted)
    slopes = np.log(time[first::2] / time[first + 1 :: 2]) / np.log((1 + STEP) / (1 - STEP))
    changes = time[1:first] / time[0] - 1
    return (
        [
            CountStep(name, units[name], values[name], next_count(name, values[name]), float(change))
            for name, change in zip(counted, changes, strict=True)
        ],
        [Elasticity(name, units[name], values[name], float(slope)) for name, slope in zip(smooth, slopes, strict=True)],
    )
