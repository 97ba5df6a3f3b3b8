"""Finished trials as records, as arrays of costs, as pandas tables and as JSON; and a trial from an evaluated design.

A trial may hold several designs: itself, or the winners of an inner search over exact parameters. Studies have up to
10^6 trials: tables are made in blocks, and stored JSON is decoded column by column, without an object for each trial.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from datetime import UTC
from functools import cached_property
from itertools import chain
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
from optuna.trial import FrozenTrial

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.rules.registry import NATIVE
from dse.fronts import as_costs, non_dominated, thinned
from dse.pricing.evaluated import RECORD_KEYS, WINNER, Evaluation, rules_for, time_intervals, with_intervals, with_runs
from dse.pricing.evaluation import evaluate, kernel_choices, layouts_of, prefixed_columns
from dse.searching.samplers.exact_search import WINNERS, winner_values
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED
from dse.searching.trials.measured_runs import told_runs, with_measured
from dse.spaces.space import Params, Space
from dse.storage.optuna_store import Store, StoredStudy
from dse.storage.trial_columns import TrialColumns, TrialDetails, decoded_texts

if TYPE_CHECKING:
    import pandas as pd


#: Trial attributes: results of a design's evaluation, in addition to the objectives.
BREAKDOWN, DERIVED, MARGINS = "breakdown", "derived", "margins"
#: The same of several workloads: the layout of each.
LAYOUTS = "layouts"

#: Stands for a value that is not finite; its square does not overflow.
WORST = 1e150


def check_trials(trials: Iterable[FrozenTrial]) -> None:
    """Refuse trials whose attributes differ from those that dse stores.

    Raises the error of reading the first one that is not.
    """
    for trial in trials:
        attributes = trial.user_attrs
        for table in (BREAKDOWN, DERIVED, MARGINS):
            math.fsum(attributes.get(table, {}).values())
        for layout in attributes.get(LAYOUTS, {}).values():
            layout.keys()
        operator.index(attributes.get(DESIGNS_PRICED, 0))


def lesson(trial: FrozenTrial) -> FrozenTrial:
    """A trial without the attributes that samplers do not read."""
    learned = copy(trial)
    learned.user_attrs = {}
    return learned


def told_columns(space: Space, evaluation: Evaluation) -> dict[str, Mapping[str, FloatArray]]:
    """Breakdown, derived columns and margins of designs, (points,), under names that end in their units."""
    breakdown = evaluation.breakdown.by_key()
    return {
        BREAKDOWN: breakdown | (prefixed_columns(evaluation) if space.workloads else {}),
        DERIVED: evaluation.derived,
        MARGINS: {limit.key: evaluation.margins[:, i] for i, limit in enumerate(space.limits)},
    }


def trial_attributes(space: Space, evaluation: Evaluation) -> list[dict[str, dict[str, Any]]]:
    """Results of `told_columns` for each design, where they are finite; with several workloads also their layouts."""
    tables = told_columns(space, evaluation)
    points = len(evaluation.values)
    rows: list[dict[str, dict[str, Any]]] = [{table: {} for table in tables} for _ in range(points)]
    for table, columns in tables.items():
        for name, values in columns.items():
            for row, value in zip(rows, np.broadcast_to(values, (points,)).tolist(), strict=True):
                if math.isfinite(value):  # JSON, and so PostgreSQL, has no other numbers
                    row[table][name] = value
    if space.workloads:
        for row, layouts in zip(rows, layouts_of(space, evaluation), strict=True):
            row[LAYOUTS] = layouts
    return rows


def finite(evaluation: Evaluation, minimize: np.ndarray[Any, np.dtype[np.bool_]]) -> tuple[FloatArray, FloatArray]:
    """Values and violations with numbers that are not finite made very bad: Optuna stores no NaN, and ranks no inf."""
    worst = np.where(minimize, WORST, -WORST)
    values = np.where(np.isfinite(evaluation.values), evaluation.values, worst)
    return values, np.nan_to_num(evaluation.violations, nan=WORST, posinf=WORST, neginf=0.0)


def stored_winners(
    store: Store, stored: StoredStudy, keys: Sequence[str], *, first: int = 0
) -> dict[int, list[dict[str, Any]]]:
    """Identity -> the winners of each finished trial of a number and later that has some, with some values.

    Raises `DseError` if they are something else.
    """
    with store.reading(stored.study_id):
        winners = store.attribute(stored, WINNERS, first=first)
        for winner in chain(*winners.values()):
            winner["params"].keys()
            math.fsum(winner["values"][key] for key in keys)
    return winners


def winner_columns(
    keys: Sequence[str], columns: TrialColumns, winners: Mapping[int, Sequence[Mapping[str, Any]]]
) -> TrialColumns:
    """Finished trials with a row for each of their winners; arguments are those of `winner_values`."""
    of_trials = winner_values(keys, columns, winners)
    counts = np.array([max(1, len(values)) for values in of_trials], dtype=np.intp)
    rows = np.repeat(np.arange(len(counts)), counts)
    places = np.arange(rows.size) - np.repeat(np.cumsum(counts) - counts, counts)
    every = columns.take(rows)
    values = every.objectives.copy()
    values[every.feasible] = np.concatenate([values[:0], *of_trials])
    return TrialColumns(every.ids, every.numbers, values, every.feasible, places)


def winner_trials(
    space: Space, profile: str, trials: Sequence[FrozenTrial], places: Sequence[int]
) -> list[FrozenTrial]:
    """Trials as if one of their winners were the trial, with its whole evaluation."""
    chosen = list(trials)
    rows = [row for row, number in enumerate(places) if number]
    if not rows:
        return chosen
    winners = [trials[row].user_attrs[WINNERS][places[row] - 1] for row in rows]
    designs = [{**trials[row].params, **winner["params"]} for row, winner in zip(rows, winners, strict=True)]
    evaluation = evaluate(space, space.encode(designs), rules=rules_for(space, profile))
    attributes = trial_attributes(space, evaluation)
    choices = kernel_choices(space, space.encode(designs))
    designs = [{**design, **kernels} for design, kernels in zip(designs, choices, strict=True)]
    for row, winner, params, own_attributes in zip(rows, winners, designs, attributes, strict=True):
        trial = copy(trials[row])
        trial.params, trial.values = params, list(winner["values"].values())
        trial.user_attrs = {**own_attributes, DESIGNS_PRICED: trials[row].user_attrs[DESIGNS_PRICED]}
        chosen[row] = trial
    return chosen


#: User attributes of a trial that tables show.
SHOWN: Final = (DERIVED, MARGINS, BREAKDOWN, DESIGNS_PRICED)


@dataclass(frozen=True)
class DecodedDetails(TrialDetails):
    """Attributes of some trials besides their values, and their decoded texts."""

    tables: Mapping[str, list[dict[str, float]]]  #: user attribute -> names and numbers
    designs_priced: list[int | None]


@dataclass(frozen=True)
class Details:
    """Attributes of the trials of a study besides their values, read when they are needed."""

    storage: str
    stored: StoredStudy

    @cached_property
    def keys(self) -> list[str]:
        """Keys of the breakdowns of all finished trials."""
        with Store(self.storage, "read") as store:
            return store.keys(self.stored, BREAKDOWN)

    @cached_property
    def evaluated(self) -> bool:
        """True if trials record the number of designs evaluated for them."""
        with Store(self.storage, "read") as store:
            return store.has(self.stored, DESIGNS_PRICED)

    def of(self, ids: IntArray, space: Space) -> DecodedDetails:
        """Details of some trials of a space, (trials,) identities. [-]

        Trials of earlier versions have no parameters for solved values (`Space.solved`).
        """
        with Store(self.storage, "read") as store, store.database.transaction():
            stored = store.details(self.stored.study_id, ids, SHOWN)
            with store.reading(self.stored.study_id, "trial_params"):
                params = {parameter.name: stored.params[parameter.name] for parameter in space.parameters}
                params |= {p.name: stored.params[p.name] for p in space.solved if p.name in stored.params}
            with store.reading(self.stored.study_id, "trial_user_attributes"):
                tables = {name: decoded_tables(stored.attributes[name]) for name in (DERIVED, MARGINS, BREAKDOWN)}
                counts = [int(text) if text else None for text in stored.attributes[DESIGNS_PRICED]]
        return DecodedDetails(params, stored.attributes, stored.completed, tables, counts)


def decoded_tables(texts: Sequence[str]) -> list[dict[str, float]]:
    """Mappings of names to numbers from their texts, all at once; nothing where there is no text.

    Raises `ValueError`, `TypeError`, `AttributeError` or `OverflowError` if one of them is something else.
    """
    rows: list[dict[str, float]] = decoded_texts([text or "{}" for text in texts])
    for row in rows:
        math.fsum(row.values())
    return rows


def number_columns(rows: Sequence[dict[str, float]], keys: Sequence[str] | None = None) -> dict[str, FloatArray]:
    """Columns of mappings of names to numbers, (rows,), under some names or all; NaN where one has none. [as stored]"""
    if keys is None:
        kinds = dict.fromkeys(tuple(row) for row in rows)
        keys = [*dict.fromkeys(key for kind in kinds for key in kind)]
    if not keys:
        return {}
    lacking = dict.fromkeys(keys, math.nan)
    every = [row if row.keys() == lacking.keys() else lacking | row for row in rows]
    of_row = itemgetter(*keys, keys[0])  # one more, so that it gives a tuple of one key too
    table = np.array([*map(of_row, every)], dtype=np.float64).T.copy()
    return dict(zip(keys, table, strict=False))


#: Trials that are loaded at once, all that is known of them.
BLOCK = 4000
#: Most trials of a front that reports read. [-]
MOST_RECORDS = 1000

#: Designs of a study to show: its non-dominated designs, or every finished trial.
Selection = Literal["front", "trials"]


@dataclass(eq=False, repr=False)
class TrialTable:
    """The finished trials of a study, by number. Other columns than their values are read when needed."""

    space: Space
    columns: TrialColumns
    _load: Callable[[IntArray], list[FrozenTrial]]  #: the trials of some identities
    _profile: str  #: rules that evaluated them
    _found: TrialColumns | None = None  #: their winners, if the space has exact parameters
    _details: Details | None = None  #: values read before

    def __len__(self) -> int:
        return len(self.columns.ids)

    @property
    def numbers(self) -> IntArray:
        """Numbers of the trials; (trials,). [-]"""
        return self.columns.numbers

    @property
    def feasible(self) -> BoolArray:
        """(trials,) Whether each satisfies every limit. [-]"""
        return self.columns.feasible

    @property
    def values(self) -> FloatArray:
        """(trials, objectives) Objective values; NaN where they were not finite. [the unit of each]"""
        objectives = self.columns.objectives
        return np.where(np.abs(objectives) < WORST, objectives, np.nan)

    @property
    def costs(self) -> FloatArray:
        """(trials, objectives) Values turned so that less is better; NaN where infeasible."""
        return np.where(self.feasible[:, None], as_costs(self.values, self.space.directions), np.nan)

    @cached_property
    def trials(self) -> list[FrozenTrial]:
        """All that is known of each; much, where there are many: see `blocks`."""
        loaded = {trial.number: trial for trial in self._load(self.columns.ids)}
        trials = [loaded[number] for number in self.numbers.tolist()]
        return winner_trials(self.space, self._profile, trials, self.winners.tolist())

    def designs(self) -> list[Params]:
        """Parameters of each, without its other attributes where they are as stored."""
        if not self.as_stored:
            return [trial.params for trial in self.trials]
        columns = self._stored.params
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    @property
    def winners(self) -> IntArray:
        """(trials,) Which of the designs that a trial has found each row is; 0 is the trial itself. [-]"""
        places = self.columns.winners
        return np.zeros(len(self), dtype=np.intp) if places is None else places

    def take(self, rows: IntArray) -> TrialTable:
        """Table of some of the trials, in the order of the rows."""
        return replace(self, columns=self.columns.take(rows), _found=None)

    def found(self) -> TrialTable:
        """All designs that the trials have found: their winners, or themselves where nothing is exact."""
        if self._found is None:
            return self
        return replace(self, columns=self._found, _found=None)

    def thinned(self) -> TrialTable:
        """At most about `MOST_RECORDS` trials of a front, spread over it, with the best of each objective."""
        rows = thinned(np.arange(len(self)), MOST_RECORDS)
        return self.take(np.union1d(rows, self.costs.argmin(axis=0))) if len(self) > MOST_RECORDS else self

    def blocks(self) -> Iterator[TrialTable]:
        """The trials in tables of at most `BLOCK`, for callers that read all of them one by one."""
        if len(self) <= BLOCK:
            yield self
            return
        rows = np.arange(len(self))
        for first in range(0, len(self), BLOCK):
            yield self.take(rows[first : first + BLOCK])

    def front(self) -> TrialTable:
        """The feasible designs found that no other beats, the best of the first objective first."""
        designs = self.found()
        costs = designs.costs
        rows = np.flatnonzero(non_dominated(costs))
        return designs.take(rows[np.lexsort(costs[rows].T[::-1])])

    def records(self) -> list[dict[str, Any]]:
        """One nested record per trial, as in JSON output; names end in their units."""
        keys = [objective.key for objective in self.space.objectives]
        places = [{} if self.columns.winners is None else {WINNER: n} for n in self.winners.tolist()]
        rows = [
            {
                "trial": trial.number,
                **position,
                "params": trial.params,
                "derived": trial.user_attrs.get(DERIVED, {}),
                "values": dict(zip(keys, values, strict=True)),
                "margins": trial.user_attrs.get(MARGINS, {}),
                "breakdown": trial.user_attrs.get(BREAKDOWN, {}),
                **{key: trial.user_attrs[key] for key in (LAYOUTS, DESIGNS_PRICED) if key in trial.user_attrs},
            }
            for trial, position, values in zip(self.trials, places, self.values.tolist(), strict=True)
        ]
        return with_intervals(self.space, with_runs(self.space, rows), self._profile)

    def each_record(self) -> Iterator[dict[str, Any]]:
        """Records of `records` one after the other, a block of trials at a time."""
        for block in self.blocks():
            yield from block.records()

    def to_frame(self) -> pd.DataFrame:
        """One row per trial, one column per number; margins are called ``margin_...``."""
        import pandas as pd

        return pd.concat([*self.frames()], ignore_index=True)

    def frames(self) -> Iterator[pd.DataFrame]:
        """Pieces of `to_frame`, at least one, all of the same columns."""
        import pandas as pd

        runs = told_runs(self._details.storage, self._details.stored.name) if self._details else []
        pieces: Iterable[pd.DataFrame] = (block._frame_of_columns() for block in self.blocks())
        if not len(self):
            pieces = [pd.DataFrame(columns=self._names())]
        elif not self.as_stored:
            pieces = [pd.concat([block._frame_of_records() for block in self.blocks()], ignore_index=True)]
        return (with_measured(frame, runs) for frame in pieces)

    @property
    def as_stored(self) -> bool:
        """True if the stored attributes of each trial are all that tables show of it."""
        return self._details is not None and self.columns.winners is None and not self.space.workloads

    @cached_property
    def _stored(self) -> DecodedDetails:
        """The stored attributes of the trials; for tables that are `as_stored`."""
        assert self._details is not None
        return self._details.of(self.columns.ids, self.space)

    def _frame_of_columns(self) -> pd.DataFrame:
        """One row per trial from its stored attributes: parameters, derived columns, values, margins, breakdown."""
        import pandas as pd

        assert self._details is not None
        space, stored, values = self.space, self._stored, self.values
        data: dict[str, Any] = {"trial": self.numbers, **stored.params}
        margins = number_columns(stored.tables[MARGINS], [limit.key for limit in space.limits])
        breakdown = number_columns(stored.tables[BREAKDOWN], self._details.keys)
        for group in (
            number_columns(stored.tables[DERIVED], [derived.name for derived in space.derived]),
            {objective.key: values[:, column] for column, objective in enumerate(space.objectives)},
            {f"margin_{name}": column for name, column in margins.items()},
            breakdown,
        ):
            data |= {name: column for name, column in group.items() if name not in data}
        data |= self._intervals(breakdown.get("step_time_s", np.full(len(values), np.nan)))
        if self._details.evaluated:
            counts = stored.designs_priced
            data[DESIGNS_PRICED] = counts if None not in counts else pd.array(counts, dtype="Int64")
        return pd.DataFrame({**data, "feasible": self.feasible, "completed": stored.completed})

    def _intervals(self, times: FloatArray) -> dict[str, list[Any]]:
        """Ends of the interval of each step time [s], and its evidence; empty for other profiles."""
        if self._profile != NATIVE or not self.space.workload.work.reads_system or not len(times):
            return {}
        codes = {}
        for parameter in self.space.parameters:
            options = self._stored.params[parameter.name]
            known = {value: parameter.code(value) for value in set(options)}
            codes[parameter.name] = np.array([known[value] for value in options])
        return {name: column.tolist() for name, column in time_intervals(self.space, codes, times).items()}

    def _frame_of_records(self) -> pd.DataFrame:
        """One row per trial that is loaded with all that is known of it."""
        import pandas as pd

        rows = [
            flat(record) | {"feasible": feasible, "completed": local.astimezone(UTC) if local else None}
            for record, feasible, trial in zip(self.records(), self.feasible.tolist(), self.trials, strict=True)
            for local in [trial.datetime_complete]
        ]
        return pd.DataFrame(rows)

    def _names(self) -> list[str]:
        """The columns that a table has even without trials."""
        parameters = [parameter.name for parameter in self.space.recorded]
        objectives = [objective.key for objective in self.space.objectives]
        margins = [f"margin_{limit.key}" for limit in self.space.limits]
        winner = [] if self.columns.winners is None else [WINNER]
        return ["trial", *winner, *parameters, *objectives, *margins, "feasible", "completed"]


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """A nested record as one row; a name that comes twice (an objective, a breakdown column) stays once."""
    numbers = {name: record[name] for name in ("trial", WINNER) if name in record}
    row = {**numbers, **record["params"]}
    for workload, layout in record.get(LAYOUTS, {}).items():
        row |= {f"{workload}.{name}": value for name, value in layout.items()}
    margins = {f"margin_{name}": value for name, value in record["margins"].items()}
    for group in (record["derived"], record["values"], margins, record["breakdown"]):
        row |= {name: value for name, value in group.items() if name not in row}
    return row | {name: record[name] for name in (*RECORD_KEYS, DESIGNS_PRICED) if name in record}
