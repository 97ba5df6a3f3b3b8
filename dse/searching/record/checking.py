"""Prices the stored trials of a study again, and says which stored figures are not what comes out."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, column_units
from costmodel.profiles.rules import WorkloadRules
from costmodel.steps.result.breakdown import Breakdown, with_unit_suffix
from dse.pricing.evaluated import Evaluation
from dse.pricing.evaluation import evaluate
from dse.pricing.several_workloads import layouts_of
from dse.pricing.workers import Jobs
from dse.searching.samplers.exact_search import WINNERS
from dse.searching.trials.stored_content import check_details
from dse.searching.trials.trial_attributes import (
    BREAKDOWN,
    DERIVED,
    LAYOUTS,
    MARGINS,
    finite,
    told_columns,
    trial_attributes,
)
from dse.searching.trials.trial_frames import number_columns
from dse.spaces.designs.exact_parameters import OuterDesigns
from dse.spaces.sections.parameters import Parameter
from dse.spaces.space import Batch, Params, Space
from dse.storage.optuna_store import Store
from dse.storage.trial_columns import TrialColumns, TrialDetails

#: Trials that are read and priced at a time.
BLOCK: Final = 4096
#: How far a stored figure may be from what the model gives: last bits move between builds of NumPy. [-]
TOLERANCE: Final = 1e-9

#: User attributes of trials that follow from their designs.
FOLLOWING: Final = (DERIVED, MARGINS, BREAKDOWN, LAYOUTS, WINNERS)
#: Column of a difference that is of the design itself.
DESIGN: Final = "params"
#: Unit of each breakdown column, and units of which figures are sums and differences of each other.
UNITS: Final = {with_unit_suffix(name): unit for name, unit in column_units(Breakdown).items()}
ADDING_UP: Final = ("s", "B", "J", "W", "$", "FLOP")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A stored figure that is not what the model gives."""

    trial: int
    column: str  #: as JSON has it: ``values.step_time_s``, ``breakdown.mfu``
    stored: Any
    model: Any
    unit: str = "-"


@dataclass(frozen=True)
class Stored:
    """Some trials as a database holds them."""

    space: Space
    columns: TrialColumns
    details: TrialDetails

    def __len__(self) -> int:
        return len(self.columns.ids)

    @cached_property
    def designs(self) -> Batch:
        """Their designs. [SI units]"""
        return {p.name: codes_of(p, self.details.params[p.name]) for p in self.space.parameters}

    @property
    def params(self) -> list[Params]:
        """The same, one mapping each."""
        names = [parameter.name for parameter in self.space.parameters]
        rows = zip(*(self.details.params[name] for name in names), strict=True)
        return [dict(zip(names, row, strict=True)) for row in rows]

    def decoded(self, attribute: str) -> list[Any]:
        """A user attribute of each; None where a trial has none."""
        return [json.loads(text) if text else None for text in self.details.attributes[attribute]]

    @cached_property
    def winners(self) -> list[tuple[int, int, dict[str, Any]]]:
        """Row, place and record of all that the trials have found beside themselves."""
        told = [own or () for own in self.decoded(WINNERS)] if self.space.inner else []
        return [(row, place, one) for row, own in enumerate(told) for place, one in enumerate(own)]


@dataclass(frozen=True)
class Repriced:
    """Some trials with what the model gives for them."""

    stored: Stored
    evaluation: Evaluation  #: of designs that the space does not have, of another one in their place
    legal: BoolArray  #: (trials,) which designs it has
    winners: Evaluation | None = None  #: of what they have found beside themselves
    legal_winners: BoolArray | None = None  #: (winners,) the same of these

    @cached_property
    def minimize(self) -> BoolArray:
        """(objectives,) Whether less of each is better. [-]"""
        return np.array([o.direction == "minimize" for o in self.stored.space.objectives])

    def differences(self) -> list[Mismatch]:
        """Stored figures that are not what the model gives, by trial."""
        found = [*self._illegal(), *self._numbers(), *self._layouts(), *self._winners()]
        return sorted(found, key=lambda difference: difference.trial)

    def differ(self) -> BoolArray:
        """(trials,) Which trials have such figures, their designs aside. [-]"""
        there = np.zeros(len(self.stored), dtype=bool)
        for _, _, _, rows in self._compared():
            there |= rows
        others = [difference.trial for difference in (*self._layouts(), *self._winners())]
        return there | np.isin(self.stored.columns.numbers, others)

    def _illegal(self) -> Iterator[Mismatch]:
        """Designs that the space does not have."""
        space, told = self.stored.space, self.stored.details.params
        for row in np.flatnonzero(~self.legal).tolist():
            text = " ".join(f"{p.name}={told[p.name][row]}" for p in space.parameters)
            yield Mismatch(self._number(row), DESIGN, text, "not a legal design")

    def _number(self, row: int) -> int:
        return int(self.stored.columns.numbers[row])

    def _numbers(self) -> Iterator[Mismatch]:
        """Values, feasibility, and what is told beside them."""
        units = self._units()
        for name, old, new, rows in self._compared():
            for row in np.flatnonzero(rows).tolist():
                unit = units.get(name, "-")
                yield Mismatch(self._number(row), name, shown(old[row]), shown(new[row]), unit)

    def _compared(self) -> Iterator[tuple[str, FloatArray, FloatArray, BoolArray]]:
        """Name, stored and given by the model, and where these differ, (trials,), of each figure. [any]"""
        stored, model = self._stored_columns(), self._model_columns()
        units, scales = self._units(), self._scales()
        nothing = np.full(len(self.stored), np.nan)
        for name in dict.fromkeys((*model, *stored)):
            if name in stored:  # else it is younger than all of these trials
                old, new = stored[name], model.get(name, nothing)
                scale = scales.get(name, scales.get(units.get(name, "-"), nothing))
                yield name, old, new, differing(old, new, scale) & self.legal

    def _stored_columns(self) -> dict[str, FloatArray]:
        own, space = self.stored, self.stored.space
        values = {f"values.{o.key}": own.columns.objectives[:, i] for i, o in enumerate(space.objectives)}
        told = {
            f"{table}.{name}": column
            for table in (DERIVED, MARGINS, BREAKDOWN)
            for name, column in number_columns([row or {} for row in own.decoded(table)]).items()
        }
        return {**values, "feasible": own.columns.feasible.astype(np.float64), **told}

    def _model_columns(self) -> dict[str, FloatArray]:
        found, space, points = self.evaluation, self.stored.space, len(self.stored)
        objectives, _ = finite(found, self.minimize)
        values = {f"values.{o.key}": objectives[:, i] for i, o in enumerate(space.objectives)}
        told = {
            f"{table}.{name}": np.where(np.isfinite(column), column, np.nan)
            for table, columns in told_columns(space, found).items()
            for name, column in columns.items()
        }
        every = {**values, "feasible": found.feasible.astype(np.float64), **told}
        return {name: np.broadcast_to(column, (points,)) for name, column in every.items()}

    def _units(self) -> dict[str, str]:
        space = self.stored.space
        return {
            **{f"values.{o.key}": o.unit for o in space.objectives},
            **{f"{DERIVED}.{d.name}": d.unit for d in space.derived},
            **{f"{MARGINS}.{limit.key}": limit.unit for limit in space.limits},
            **{f"{BREAKDOWN}.{name}": unit for name, unit in UNITS.items()},
        }

    def _scales(self) -> dict[str, FloatArray]:
        """Unit, or name of a margin -> the size of what is subtracted in each design, (points,)."""
        found, space = self.evaluation, self.stored.space
        columns = found.breakdown.columns()
        scales = {}
        for unit in ADDING_UP:
            same = [np.abs(columns[name]) for name, own in column_units(Breakdown).items() if own == unit]
            scales[unit] = np.max(np.nan_to_num(same, nan=0.0, posinf=0.0), axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            sizes = np.abs(found.margins / found.violations)
        for i, limit in enumerate(space.limits):
            scales[f"{MARGINS}.{limit.key}"] = np.nan_to_num(sizes[:, i], nan=0.0, posinf=0.0)
        return scales

    def _layouts(self) -> Iterator[Mismatch]:
        """Layouts of workloads."""
        if not self.stored.space.workloads:
            return
        both = zip(self.stored.decoded(LAYOUTS), layouts_of(self.stored.space, self.evaluation), strict=True)
        for row, (old, new) in enumerate(both):
            if not self.legal[row]:
                continue
            flat = [
                {
                    f"{name}.{key}": value
                    for name, own in (layouts or {}).items()
                    for key, value in own.items()
                }
                for layouts in (old, new)
            ]
            for name in dict.fromkeys((*flat[0], *flat[1])):
                was, is_now = flat[0].get(name), flat[1].get(name)
                if was != is_now:
                    yield Mismatch(self._number(row), f"{LAYOUTS}.{name}", was, is_now)

    def _winners(self) -> Iterator[Mismatch]:
        """What was found beside the trials."""
        if self.winners is None or self.legal_winners is None:
            return
        values, _ = finite(self.winners, self.minimize)
        rows = zip(self.stored.winners, values, self.winners.feasible, self.legal_winners, strict=True)
        for (row, place, own), new, feasible, is_legal in rows:
            name, number = f"{WINNERS}[{place}]", self._number(row)
            if not is_legal:
                text = " ".join(f"{key}={value}" for key, value in own["params"].items())
                yield Mismatch(number, name, text, "not a legal design")
                continue
            if not feasible:
                yield Mismatch(number, f"{name}.feasible", stored=True, model=False)
            for objective, value in zip(self.stored.space.objectives, new.tolist(), strict=True):
                old = float(own["values"].get(objective.key, np.nan))
                if differing(np.array([old]), np.array([value]), np.zeros(1))[0]:
                    yield Mismatch(number, f"{name}.{objective.key}", old, value, objective.unit)


def blocks(
    store: Store, columns: TrialColumns, space: Space, rules: WorkloadRules, jobs: Jobs = 1
) -> Iterator[Repriced]:
    """Trials, priced again, some thousands at a time.

    Parameters
    ----------
    store : Store
        The database, within a transaction.
    columns : TrialColumns
        The trials.
    space, rules : Space, WorkloadRules
        What they search, and what prices them now.
    jobs : int or Workers
        Processes that price, or who else does. [-]
    """
    for first in range(0, len(columns.ids), BLOCK):
        own = columns.take(np.arange(first, min(first + BLOCK, len(columns.ids))))
        stored = Stored(space, own, store.details(own.ids, FOLLOWING))
        check_details(space, own, stored.details, store.where, study="")
        designs, winners = stored.designs, winner_designs(stored)
        own_legal, evaluation = evaluated_legal(space, designs, rules, jobs)
        if stored.winners:
            beside_legal, beside = evaluated_legal(space, winners, rules, jobs)
            yield Repriced(stored, evaluation, own_legal, beside, beside_legal)
        else:
            yield Repriced(stored, evaluation, own_legal)


def evaluated_legal(
    space: Space, designs: Batch, rules: WorkloadRules, jobs: Jobs = 1
) -> tuple[BoolArray, Evaluation]:
    """Which designs are legal, and what evaluation says of them; of others it says what it says of one."""
    there = legal(space, designs)
    if not there.all():
        [other] = space.decode(space.legal.random(1, np.random.default_rng(0)))
        stand_in = space.encode([other])
        designs = {name: np.where(there, codes, stand_in[name]) for name, codes in designs.items()}
    return there, evaluate(space, designs, rules=rules, jobs=jobs)


def winner_designs(stored: Stored) -> Batch:
    """Designs of all that trials have found beside themselves. [SI units]"""
    params = stored.params if stored.winners else []
    return stored.space.encode([{**params[row], **own["params"]} for row, _, own in stored.winners])


def packed(space: Space, designs: Batch, evaluation: Evaluation) -> dict[str, Any]:
    """Some designs with all that evaluation says of them, as a study keeps them."""
    minimize = np.array([objective.direction == "minimize" for objective in space.objectives])
    told = trial_attributes(space, evaluation)
    params = space.decode(designs)
    return {
        "params": {p.name: [own[p.name] for own in params] for p in space.parameters},
        "objectives": finite(evaluation, minimize)[0].tolist(),
        "feasible": evaluation.feasible.tolist(),
        "attributes": {name: [own[name] for own in told] for name in (told[0] if told else ())},
    }


def unpacked(space: Space, told: Mapping[str, Any]) -> Stored:
    """The opposite of `packed`; their places are their numbers."""
    places = np.arange(len(told["feasible"]))
    objectives = np.array(told["objectives"], dtype=np.float64).reshape(len(places), -1)
    columns = TrialColumns(places, places, objectives, np.array(told["feasible"], dtype=bool))
    attributes = {name: [json.dumps(own) for own in each] for name, each in told["attributes"].items()}
    every = {name: attributes.get(name, [""] * len(places)) for name in FOLLOWING}
    return Stored(space, columns, TrialDetails(told["params"], every, [None] * len(places)))


def codes_of(parameter: Parameter, values: Sequence[Any]) -> FloatArray:
    """(designs,) A parameter's values as its column holds them. [the unit of the parameter]"""
    known = {value: parameter.code(value) for value in set(values)}
    return np.array([known[value] for value in values], dtype=np.float64)


def legal(space: Space, designs: Mapping[str, FloatArray]) -> BoolArray:
    """(designs,) Which designs have options of all parameters, and keep every rule. [-]"""
    there = np.ones(next(iter(designs.values())).size, dtype=bool)
    for parameter in space.parameters:
        codes, options = designs[parameter.name], parameter.options
        if options is not None:
            there &= np.isin(codes, options)
        else:
            there &= (codes >= (parameter.low or 0.0)) & (codes <= (parameter.high or 0.0))
    rows = np.flatnonzero(there)
    if rows.size:
        there[rows] = keeps_rules(space, {name: codes[rows] for name, codes in designs.items()}, rows)
    return there


def keeps_rules(space: Space, designs: Batch, rows: IntArray) -> BoolArray:
    """(designs,) Which designs of options keep every rule. [-]"""
    kept = space.legal
    return kept.has(designs, rows.size) if isinstance(kept, OuterDesigns) else kept.kept(designs)


def differing(one: FloatArray, other: FloatArray, scale: FloatArray) -> BoolArray:
    """Where two columns of figures are not the same but for last bits; both may have none.

    Parameters
    ----------
    one, other : (points,) array
        NaN where there is none. [any]
    scale : (points,) array
        Size of what they are sums and differences of; NaN where they are not. [the same]
    """
    with np.errstate(invalid="ignore"):
        size = np.fmax(np.fmax(np.abs(one), np.abs(other)), scale)
        alike = (one == other) | (np.abs(one - other) <= TOLERANCE * size)
    found: BoolArray = ~(alike | (np.isnan(one) & np.isnan(other)))
    return found


def shown(value: float) -> float | None:
    """A figure, or None where there is none."""
    return None if np.isnan(value) else float(value)
