"""Finished trials as records, as arrays of costs, and as pandas tables.

A trial may hold several designs: itself, or the winners of an inner search over exact parameters. Tables are made in
blocks, so that memory does not grow with the study."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from datetime import UTC
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from optuna.trial import FrozenTrial

from costmodel.columns import BoolArray, FloatArray, IntArray
from dse.fronts.pareto import as_costs, non_dominated
from dse.pricing.evaluated import RECORD_KEYS, WINNER, with_intervals, with_runs
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED
from dse.searching.trials.exact_winners import winner_trials
from dse.searching.trials.measured_runs import told_runs, with_measured
from dse.searching.trials.trial_attributes import BREAKDOWN, DERIVED, LAYOUTS, MARGINS, WORST
from dse.searching.trials.trial_frames import Details, StoredTrials
from dse.spaces.space import Space
from dse.storage.trial_columns import TrialColumns

if TYPE_CHECKING:
    import pandas as pd

#: Trials that are loaded at once, all that is known of them.
BLOCK = 1000
#: Most trials of a front that reports read. [-]
MOST_RECORDS = 1000

#: What of a study is shown: its non-dominated designs, or every finished trial.
Selection = Literal["front", "trials"]


class TrialTable:
    """The finished trials of a study, by number. What they are besides their values is read when wanted.

    `columns` are the finished trials of a study of `space`, evaluated by `profile`; `winners` are theirs, if the
    space has exact parameters. `load` returns the trials of some identities; `details` are values read before.
    """

    def __init__(
        self,
        space: Space,
        columns: TrialColumns,
        load: Callable[[IntArray], list[FrozenTrial]],
        profile: str,
        winners: TrialColumns | None = None,
        details: Details | None = None,
    ) -> None:
        self.space = space
        self.directions = [objective.direction for objective in space.objectives]
        self.columns = columns
        self._load = load
        self._profile = profile
        self._found = winners
        self._details = details

    def __len__(self) -> int:
        return len(self.columns.ids)

    @property
    def numbers(self) -> IntArray:
        """Numbers of the trials; (trials,). [-]"""
        return self.columns.numbers

    @property
    def feasible(self) -> BoolArray:
        """(trials,) Whether each keeps every limit. [-]"""
        return self.columns.feasible

    @property
    def values(self) -> FloatArray:
        """(trials, objectives) Objective values; NaN where they were not finite. [the unit of each]"""
        objectives = self.columns.objectives
        return np.where(np.abs(objectives) < WORST, objectives, np.nan)

    @property
    def costs(self) -> FloatArray:
        """(trials, objectives) Values turned so that less is better; NaN where infeasible."""
        return np.where(self.feasible[:, None], as_costs(self.values, self.directions), np.nan)

    @cached_property
    def trials(self) -> list[FrozenTrial]:
        """All that is known of each; much, where there are many: see `blocks`."""
        loaded = {trial.number: trial for trial in self._load(self.columns.ids)}
        trials = [loaded[number] for number in self.numbers.tolist()]
        return winner_trials(self.space, self._profile, trials, self.winners.tolist())

    @property
    def winners(self) -> IntArray:
        """(trials,) Which of the designs that a trial has found each row is; 0 is the trial itself. [-]"""
        places = self.columns.winners
        return np.zeros(len(self), dtype=np.intp) if places is None else places

    def take(self, rows: IntArray) -> TrialTable:
        """Table of some of the trials, in the order of the rows."""
        return TrialTable(self.space, self.columns.take(rows), self._load, self._profile, details=self._details)

    def found(self) -> TrialTable:
        """All designs that the trials have found: their winners, or themselves where nothing is exact."""
        if self._found is None:
            return self
        return TrialTable(self.space, self._found, self._load, self._profile, details=self._details)

    def thinned(self) -> TrialTable:
        """At most about `MOST_RECORDS` trials of a front, spread over it, with the best of each objective."""
        rows = np.linspace(0, len(self) - 1, min(MOST_RECORDS, len(self))).round().astype(np.intp)
        return self.take(np.union1d(rows, self.costs.argmin(axis=0))) if len(self) > MOST_RECORDS else self

    def blocks(self) -> Iterator[TrialTable]:
        """The trials in tables of at most `BLOCK`, for what goes through all of them one by one."""
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
        return with_intervals(self.space, with_runs(self.space, self._records()), self._profile)

    def _records(self) -> list[dict[str, Any]]:
        """Records of trials from what is stored."""
        keys = [objective.key for objective in self.space.objectives]
        places = [{} if self.columns.winners is None else {WINNER: n} for n in self.winners.tolist()]
        return [
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
        runs = told_runs(self._details.storage, self._details.stored.name) if self._details else []
        return (with_measured(frame, runs) for frame in self._frames())

    def _frames(self) -> Iterator[pd.DataFrame]:
        """Pieces of what is stored with the trials."""
        import pandas as pd

        if not len(self):
            yield pd.DataFrame(columns=self._names())
        elif self.as_stored:
            yield from (block.frame() for block in self.stored_blocks())
        else:
            yield pd.concat([block._frame_of_records() for block in self.blocks()], ignore_index=True)

    @property
    def as_stored(self) -> bool:
        """True if the stored attributes of each trial are all that tables show of it."""
        return self._details is not None and self.columns.winners is None and not self.space.workloads

    def stored_blocks(self) -> Iterator[StoredTrials]:
        """Stored trials in blocks; for tables that are `as_stored`."""
        assert self._details is not None
        for block in self.blocks():
            yield StoredTrials(self.space, self._profile, block.columns, block.values, self._details)

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
