"""Finished trials as records, as arrays of costs, and as pandas tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray
from optuna.trial import FrozenTrial

from costmodel.columns import FloatArray
from dse.fronts.pareto import as_costs, non_dominated
from dse.search.history import BREAKDOWN, DERIVED, MARGINS, WORST, is_feasible
from dse.spaces.space import Space

if TYPE_CHECKING:
    import pandas as pd

#: What of a study is shown: its non-dominated designs, or every finished trial.
Selection = Literal["front", "trials"]


class TrialTable:
    """The finished trials of a study, by number.

    Parameters
    ----------
    space : Space
        What the study searches.
    trials : sequence of FrozenTrial
        Its finished trials.
    """

    def __init__(self, space: Space, trials: Sequence[FrozenTrial]) -> None:
        self.space = space
        self.trials = list(trials)
        self.directions = [objective.direction for objective in space.objectives]

    @property
    def feasible(self) -> NDArray[np.bool_]:
        """(trials,) Whether each keeps every limit. [-]"""
        return np.array([is_feasible(trial) for trial in self.trials], dtype=bool)

    @property
    def values(self) -> FloatArray:
        """(trials, objectives) Objective values; NaN where they were not finite. [the unit of each]"""
        rows = [trial.values for trial in self.trials]  # noqa: PD011 - an Optuna trial
        values = np.array(rows, dtype=np.float64).reshape(len(rows), len(self.directions))
        return np.where(np.abs(values) < WORST, values, np.nan)

    @property
    def costs(self) -> FloatArray:
        """(trials, objectives) Values turned so that less is better; NaN where infeasible."""
        return np.where(self.feasible[:, None], as_costs(self.values, self.directions), np.nan)

    def front(self) -> TrialTable:
        """The feasible trials that no feasible trial beats, the best of the first objective first."""
        costs = self.costs
        rows = np.flatnonzero(non_dominated(costs))
        order = rows[np.lexsort(costs[rows].T[::-1])]
        return TrialTable(self.space, [self.trials[row] for row in order])

    def records(self) -> list[dict[str, Any]]:
        """One nested record per trial, as in JSON output; names end in their units."""
        keys = [objective.key for objective in self.space.objectives]
        return [
            {
                "trial": trial.number,
                "params": trial.params,
                "derived": trial.user_attrs.get(DERIVED, {}),
                "values": dict(zip(keys, values, strict=True)),
                "margins": trial.user_attrs.get(MARGINS, {}),
                "breakdown": trial.user_attrs.get(BREAKDOWN, {}),
            }
            for trial, values in zip(self.trials, self.values.tolist(), strict=True)
        ]

    def to_frame(self) -> pd.DataFrame:
        """One row per trial, one column per number; margins are called ``margin_...``."""
        import pandas as pd

        rows = [
            flat(record) | {"feasible": feasible, "completed": in_utc(trial.datetime_complete)}
            for record, feasible, trial in zip(
                self.records(), self.feasible.tolist(), self.trials, strict=True
            )
        ]
        return pd.DataFrame(rows, columns=None if rows else self._columns())

    def _columns(self) -> list[str]:
        """The columns that a table has even without trials."""
        parameters = [parameter.name for parameter in self.space.parameters]
        objectives = [objective.key for objective in self.space.objectives]
        margins = [f"margin_{limit.key}" for limit in self.space.limits]
        return ["trial", *parameters, *objectives, *margins, "feasible", "completed"]


def flat(record: Mapping[str, Any]) -> dict[str, Any]:
    """A nested record as one row; a name that comes twice (an objective, a breakdown column) stays once."""
    row = {**({"trial": record["trial"]} if "trial" in record else {}), **record["params"]}
    margins = {f"margin_{name}": value for name, value in record["margins"].items()}
    for group in (record["derived"], record["values"], margins, record["breakdown"]):
        row |= {name: value for name, value in group.items() if name not in row}
    return row


def in_utc(local: datetime | None) -> datetime | None:
    """A time of a trial, which is naive and local, as one that knows its zone."""
    return local.astimezone(UTC) if local else None
