"""A study under two cost models or on two machines: is the same design better?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from costmodel.columns import BoolArray, FloatArray, short_repr
from costmodel.errors import DseError, ParameterError
from costmodel.formats.quantity import readable
from dse.fronts.pareto import as_costs
from dse.output.text import counted
from dse.pricing.evaluation import evaluate
from dse.pricing.space_rules import NATIVE, rules_for
from dse.reporting.answers import wrapped
from dse.reporting.design_table import Column, drawn, fitted, lines_of, parameter_columns, varying_parameters
from dse.reporting.designs.neighbours_report import relative
from dse.reporting.study_report import spread

if TYPE_CHECKING:
    from dse.output.text import Record
    from dse.reporting.study_report import Report
    from dse.searching.study import BaseStudy
    from dse.spaces.space import Params

#: Designs that a comparison shows.
ROWS_SHOWN = 10


@dataclass(frozen=True)
class Comparison:
    """The feasible designs of a study, the best under its own cost model first."""

    __repr__ = short_repr

    study: BaseStudy
    kind: str  #: what differs: "profiles" or "systems"
    names: tuple[str, str]  #: the study's own, and the other one
    trials: list[int]
    designs: list[Params]
    objective: FloatArray  #: (designs, 2) first objective under each profile [its unit]
    ranks: FloatArray  #: (designs, 2) 1 is the best; equal values share the middle of their ranks [-]
    feasible: BoolArray  #: (designs,) whether each fits under the other too

    @property
    def rank_correlation(self) -> float:
        """Spearman's: 1 where both profiles rank alike, NaN where one ranks nothing. [-]"""
        centred = self.ranks - self.ranks.mean(axis=0)
        spread_of = np.sqrt((centred**2).sum(axis=0)).prod()
        return float(centred.prod(axis=1).sum() / spread_of) if spread_of else float("nan")

    @property
    def median_ratio(self) -> float:
        """Median ratio of the objective under the other to that under the study's own, over designs. [-]"""
        return float(np.median(self.objective[:, 1] / self.objective[:, 0]))

    def record(self) -> dict[str, Any]:
        """The comparison as one JSON object."""
        objective, pair = self.study.space.objectives[0], self.names
        return {
            "study": self.study.name,
            "objective": objective.key,
            self.kind: list(pair),
            "n_designs": len(self.trials),
            "n_feasible": int(self.feasible.sum()),
            "rank_correlation": self.rank_correlation,
            "median_ratio": self.median_ratio,
            "designs": [
                {
                    "trial": trial,
                    "params": params,
                    "values": dict(zip(pair, values, strict=True)),
                    "ranks": dict(zip(pair, ranks, strict=True)),
                    "feasible": feasible,
                }
                for trial, params, values, ranks, feasible in zip(
                    self.trials,
                    self.designs,
                    self.objective.tolist(),
                    self.ranks.tolist(),
                    self.feasible.tolist(),
                    strict=True,
                )
            ],
        }


def refuse_mixed_machine(study: BaseStudy, system: str) -> None:
    """Refuse another machine where the space sets quantities of it: designs would mix both; a `DseError`."""
    space, units = study.space, study.space.system.units()
    named = (*space.by_name, *space.given, *(derived.name for derived in space.derived))
    if own := [name for name in named if name in units]:
        raise ParameterError(
            f"{{system}} {system}: space {space.name} sets {', '.join(own)} of the machine itself, so its "
            f"designs fit no other machine; compare machines: `dse compare {space.system.name} {system}`"
        )


def usual_profile(study: BaseStudy) -> str:
    """The profile that a study is compared with where none is named."""
    return "simai" if study.profile == NATIVE else NATIVE


def comparison(study: BaseStudy, profile: str | None = None, system: str | None = None) -> Comparison:
    """Evaluate the feasible designs of a study by another profile too, or on another machine.

    Raises `DseError` if both are the same, the space sets quantities of the machine, or fewer than two designs have a
    value under both.
    """
    profile = profile or study.profile
    if system:
        refuse_mixed_machine(study, system)
    other = study.space.with_system(system) if system else study.space
    names = (study.space.system.name, other.system.name) if system else (study.profile, profile)
    if names[0] == names[1]:
        how, option = ("on", "{system}") if system else ("by", "{profile}")
        raise ParameterError(
            f"study {study.name!r}: is evaluated {how} {names[0]} already; compare with another {option}"
        )
    trials = study.table.take(np.flatnonzero(study.table.feasible)).trials
    designs = [trial.params for trial in trials]
    if not designs:
        raise DseError(f"study {study.name!r}: no feasible design found, nothing to compare")
    both = [
        evaluate(space, space.encode(designs), rules=rules_for(space, name))
        for space, name in ((study.space, study.profile), (other, profile))
    ]
    values = np.stack([evaluation.values[:, 0] for evaluation in both], axis=1)
    complete = np.flatnonzero(np.isfinite(values).all(axis=1))
    if complete.size < 2:
        raise DseError(
            f"study {study.name!r}: fewer than two designs have a value under both {names[0]} and {names[1]}"
        )
    direction = study.space.objectives[0].direction
    ranks = middle_ranks(as_costs(values[complete], [direction, direction]))
    order = np.argsort(ranks[:, 0], kind="stable")
    rows = complete[order]
    return Comparison(
        study=study,
        kind="systems" if system else "profiles",
        names=names,
        trials=[trials[row].number for row in rows],
        designs=[designs[row] for row in rows],
        objective=values[rows],
        ranks=ranks[order],
        feasible=both[1].feasible[rows],
    )


def middle_ranks(costs: FloatArray) -> FloatArray:
    """Ranks in each column from 1; equal costs share the middle of theirs. [-]

    >>> middle_ranks(np.array([[3.0, 5.0], [1.0, 5.0], [3.0, 5.0], [2.0, 4.0]])).tolist()
    [[3.5, 3.0], [1.0, 3.0], [3.5, 3.0], [2.0, 1.0]]
    """
    import pandas as pd

    return pd.DataFrame(costs).rank().to_numpy()


def comparison_report(found: Comparison, width: int) -> Report:
    """Speed of the other and agreement of the rankings; then designs with their values and ranks."""
    objective, space = found.study.space.objectives[0], found.study.space
    records: list[Record] = [{"params": params} for params in found.designs]
    rows = spread(len(found.trials), ROWS_SHOWN, [0, int(found.ranks[:, 1].argmin())])
    columns = [Column("trial", ("trial",), [str(found.trials[row]) for row in rows])]
    columns += parameter_columns(space, [records[row] for row in rows], varying_parameters(space, records))
    for place, name in enumerate(found.names):
        shown = [readable(float(found.objective[row, place]), objective.unit) for row in rows]
        ranks = [f"{found.ranks[row, place]:g}" for row in rows]
        columns += [
            Column(name, (name, *lines_of(objective.name)), shown),
            Column(f"{name} rank", (name, "rank"), ranks, 1),
        ]
    if found.kind == "systems":
        ratios = (found.objective[rows, 1] / found.objective[rows, 0]).tolist()
        columns.append(Column("ratio", ("ratio",), [f"{ratio:.3f}" for ratio in ratios]))
    if not found.feasible[rows].all():
        verdicts = ["fits" if fits else "does not fit" for fits in found.feasible[rows].tolist()]
        columns.append(Column("limits", ("limits",), verdicts, 1, left=True))
    return [*wrapped([("", text) for text in verdict_texts(found)], width), Text(), *drawn(fitted(columns, width)[0])]


def verdict_texts(found: Comparison) -> list[str]:
    """Sentences of a comparison: the change of the objective, the best designs, the agreement of ranks."""
    objective, (own, other) = found.study.space.objectives[0], found.names
    on, name = "on" if found.kind == "systems" else "under", objective.name.replace("_", " ")
    change = relative(found.median_ratio - 1, 1.0)
    best, second = (found.trials[int(found.ranks[:, at].argmin())] for at in (0, 1))
    same = (
        f"trial {best} is the best design {on} both"
        if best == second
        else (f"the best design is trial {best} {on} {own} and trial {second} {on} {other}")
    )
    return [
        f"{on.capitalize()} {other}, the {name} of the same design changes by {change} from {own} (median).",
        f"Of {counted(len(found.trials), 'feasible design')} of study {found.study.name}, {same}.",
        f"Rank correlation {found.rank_correlation:.3f}; median ratio {found.median_ratio:.3f}; "
        f"{found.feasible.sum():,} fit {on} {other}.",
    ]
