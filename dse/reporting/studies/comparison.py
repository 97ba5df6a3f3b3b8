"""Comparisons of studies: one under two cost models or on two machines, or two studies with each other.

Under another cost model or on another machine the question is whether the same design is better. Of two studies the
report shows the better designs, and the parameters in which the best ones differ.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from costmodel.columns import BoolArray, FloatArray, short_repr
from costmodel.errors import DseError, ParameterError
from costmodel.formats.quantity import readable
from costmodel.rules.registry import NATIVE
from dse.fronts import Box, FrontIndex, as_costs, non_dominated
from dse.output import EXPECTED_TIME, STEP_TIME, Report, counted, parameter_text
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate
from dse.reporting.answers import wrapped
from dse.reporting.design_table import Column, columns_of, fitted_table, parameter_columns, varying_parameters
from dse.reporting.designs.changes_report import relative
from dse.reporting.study_report import spread
from dse.searching.study import BaseStudy
from dse.searching.study_attributes import differences
from dse.searching.trials.trial_table import TrialTable
from dse.spaces.sections.parameters import Objective
from dse.spaces.space import Params

if TYPE_CHECKING:
    from dse.output import Record

#: Designs that a comparison shows.
ROWS_SHOWN = 10


@dataclass(frozen=True)
class Comparison:
    """The feasible designs of a study, the best under its own cost model first."""

    __repr__ = short_repr

    study: BaseStudy
    kind: str  #: the things that differ: "profiles" or "systems"
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
                    "values": dict(zip(pair, self.objective[row].tolist(), strict=True)),
                    "ranks": dict(zip(pair, self.ranks[row].tolist(), strict=True)),
                    "feasible": bool(self.feasible[row]),
                }
                for row, (trial, params) in enumerate(zip(self.trials, self.designs, strict=True))
            ],
        }


def refuse_mixed_machine(study: BaseStudy, system: str) -> None:
    """Refuse another machine where the space sets quantities of it: designs would mix both; a `DseError`."""
    space, units = study.space, study.space.system.units()
    named = (*space.by_name, *space.given, *(derived.name for derived in space.derived))
    if known_names := [name for name in named if name in units]:
        raise ParameterError(
            f"{{system}} {system}: space {space.name} sets {', '.join(known_names)} of the machine itself, so its "
            f"designs fit no other machine; compare machines: `dse compare {space.system.name} {system}`"
        )


def comparison(study: BaseStudy, profile: str | None = None, system: str | None = None) -> Comparison:
    """Evaluate the feasible designs of a study by another profile too (default: native), or on another machine.

    Raises `DseError` if both are the same, the space sets quantities of the machine, or fewer than two designs have a
    value under both.
    """
    profile = profile or (study.profile if system else NATIVE)
    if system:
        refuse_mixed_machine(study, system)
    other = study.space.with_system(system) if system else study.space
    names = (study.space.system.name, other.system.name) if system else (study.profile, profile)
    if names[0] == names[1]:
        how, option = ("on", "{system}") if system else ("by", "{profile}")
        raise ParameterError(
            f"study {study.name!r}: is evaluated {how} {names[0]} already; compare with another {option} or study"
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
        raise DseError(f"study {study.name!r}: fewer than two designs have a value under both {' and '.join(names)}")
    import pandas as pd

    costs = as_costs(values[complete], [study.space.objectives[0].direction] * 2)
    ranks = pd.DataFrame(costs).rank().to_numpy()  # equal costs get the mean of their ranks
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


def comparison_report(result: Comparison, width: int) -> Report:
    """Speed of the other and agreement of the rankings; then designs with their values and ranks."""
    objective, space = result.study.space.objectives[0], result.study.space
    records: list[Record] = [{"params": params} for params in result.designs]
    rows = spread(len(result.trials), ROWS_SHOWN, [0, int(result.ranks[:, 1].argmin())])
    columns = [Column("trial", [str(result.trials[row]) for row in rows])]
    columns += parameter_columns(space, [records[row] for row in rows], varying_parameters(space, records))
    for index, name in enumerate(result.names):
        shown = [readable(float(result.objective[row, index]), objective.unit) for row in rows]
        ranks = [f"{result.ranks[row, index]:g}" for row in rows]
        columns += [
            Column(name, shown, title=(name, *objective.name.split("_"))),
            Column(f"{name} rank", ranks, 1, title=(name, "rank")),
        ]
    if result.kind == "systems":
        ratios = (result.objective[rows, 1] / result.objective[rows, 0]).tolist()
        columns.append(Column("ratio", [f"{ratio:.3f}" for ratio in ratios]))
    if not result.feasible[rows].all():
        verdicts = ["fits" if fits else "does not fit" for fits in result.feasible[rows].tolist()]
        columns.append(Column("limits", verdicts, 1, left=True))
    return [*wrapped([("", text) for text in verdict_texts(result)], width), Text(), *fitted_table(columns, width)]


def verdict_texts(result: Comparison) -> list[str]:
    """Sentences of a comparison: the change of the objective, the best designs, the agreement of ranks."""
    objective, (first, other) = result.study.space.objectives[0], result.names
    on, name = "on" if result.kind == "systems" else "under", objective.name.replace("_", " ")
    change = relative(result.median_ratio - 1, 1.0)
    best, second = (result.trials[int(result.ranks[:, at].argmin())] for at in (0, 1))
    same = (
        f"trial {best} is the best design {on} both"
        if best == second
        else (f"the best design is trial {best} {on} {first} and trial {second} {on} {other}")
    )
    return [
        f"{on.capitalize()} {other}, the {name} of the same design changes by {change} from {first} (median).",
        f"Of {counted(len(result.trials), 'feasible design')} of study {result.study.name}, {same}.",
        f"Rank correlation {result.rank_correlation:.3f}; median ratio {result.median_ratio:.3f}; "
        f"{result.feasible.sum():,} fit {on} {other}.",
    ]


@dataclass(frozen=True)
class BestDesign:
    """The best design of a study by one objective."""

    trial: int
    params: Params
    value: float  #: [unit of the objective]


@dataclass(frozen=True)
class StudyPair:
    """Two studies with the objectives that both have."""

    __repr__ = short_repr

    studies: tuple[BaseStudy, BaseStudy]
    objectives: tuple[Objective, ...]
    best: tuple[tuple[BestDesign, BestDesign], ...]  #: of each objective, in both studies
    finished: tuple[int, int]  #: trials [-]
    feasible: tuple[int, int]  #: trials [-]
    fronts: tuple[int, int]  #: designs of each front, by the common objectives [-]
    beaten: tuple[int, int]  #: of those, how many a design of the other study dominates [-]
    shares: tuple[int, int]  #: designs of the front of both together that are of each [-]
    hypervolumes: tuple[float, float]  #: of each in the box around both fronts [-]

    def to_json(self) -> dict[str, Any]:
        """Comparison as one JSON object; pairs are in the order of the studies."""
        one, other = self.studies
        return {
            "studies": [one.name, other.name],
            "spaces_differ_in": differences(one.space, other.space),
            "n_finished": list(self.finished),
            "n_feasible": list(self.feasible),
            "front": list(self.fronts),
            "dominated_by_other": list(self.beaten),
            "joint_front": list(self.shares),
            "hypervolume": list(self.hypervolumes),
            "best": {
                objective.key: [asdict(best_of_study) for best_of_study in pair]
                for objective, pair in zip(self.objectives, self.best, strict=True)
            },
        }


def study_pair(one: BaseStudy, other: BaseStudy) -> StudyPair:
    """Compare the feasible designs of two studies by the objectives that both have.

    Raises `DseError` if they have no objective in common, or one has no feasible design.
    """
    either = {o.key: o for o in (*one.space.objectives, *other.space.objectives)}
    wanted = [o for o in either.values() if states(one, o) and states(other, o)]
    wanted.sort(key=lambda o: o.key != STEP_TIME)
    if not wanted:
        raise DseError(f"studies {one.name!r} and {other.name!r}: have no objective in common")
    fronts = [front_costs(study, wanted) for study in (one, other)]
    joint = np.concatenate([costs for costs, _ in fronts])
    kept, size = non_dominated(joint), len(fronts[0][0])
    box = Box.around(joint)
    tables = [study.table for study in (one, other)]
    return StudyPair(
        studies=(one, other),
        objectives=tuple(wanted),
        best=tuple((best_design(fronts[0], at, o), best_design(fronts[1], at, o)) for at, o in enumerate(wanted)),
        finished=(len(tables[0]), len(tables[1])),
        feasible=(int(tables[0].feasible.sum()), int(tables[1].feasible.sum())),
        fronts=(size, len(joint) - size),
        beaten=(dominated(fronts[0][0], fronts[1][0]), dominated(fronts[1][0], fronts[0][0])),
        shares=(int(kept[:size].sum()), int(kept[size:].sum())),
        hypervolumes=(box.hypervolume(fronts[0][0]), box.hypervolume(fronts[1][0])),
    )


def states(study: BaseStudy, objective: Objective) -> bool:
    """True if a study has an objective; a plan also has the predicted times behind its expected ones."""
    pairs = {(o.key, o.direction) for o in study.space.objectives}
    expected = objective.key == STEP_TIME and (EXPECTED_TIME, objective.direction) in pairs
    return expected or (objective.key, objective.direction) in pairs


def front_costs(study: BaseStudy, objectives: list[Objective]) -> tuple[FloatArray, TrialTable]:
    """Costs of a study's front by some objectives, (points, objectives), with its trials."""
    table = study.table.found()
    keys = [objective.key for objective in study.space.objectives]
    rows = np.flatnonzero(table.feasible)
    if not rows.size:
        raise DseError(f"study {study.name!r}: no feasible design found, nothing to compare")
    columns = [
        table.values[rows, keys.index(objective.key)]
        if objective.key in keys
        else table.take(rows).to_frame()[objective.key].to_numpy()
        for objective in objectives
    ]
    costs = as_costs(np.stack(columns, axis=1), [objective.direction for objective in objectives])
    front = np.flatnonzero(non_dominated(costs))
    return costs[front], table.take(rows[front])


def best_design(front: tuple[FloatArray, TrialTable], at: int, objective: Objective) -> BestDesign:
    """The design of a front that is best by one of its objectives."""
    costs, table = front
    row = int(costs[:, at].argmin())
    [trial] = table.take(np.array([row])).trials
    return BestDesign(trial.number, dict(trial.params), objective.cost(float(costs[row, at])))


def dominated(costs: FloatArray, others: FloatArray) -> int:
    """Number of rows that a point of another front dominates: nowhere worse, somewhere better. [-]

    >>> dominated(np.array([[1.0, 3.0], [2.0, 2.0]]), np.array([[1.0, 2.0], [5.0, 0.0]]))
    2
    """
    return int(FrontIndex(others).beats(costs).sum())


def study_pair_report(pair: StudyPair, width: int) -> Report:
    """Which study has the better designs and by how much; then counts, and the parameters that differ."""
    rows: list[tuple[str, ...]] = [
        ("system", *(study.space.system.name for study in pair.studies)),
        ("finished trials", *(f"{count:,}" for count in pair.finished)),
        ("feasible trials", *(f"{count:,}" for count in pair.feasible)),
        ("designs on the front", *(f"{count:,}" for count in pair.fronts)),
        ("dominated by the other", *(f"{count:,}" for count in pair.beaten)),
        ("on the joint front", *(f"{count:,}" for count in pair.shares)),
        ("hypervolume", *(f"{volume:.4f}" for volume in pair.hypervolumes)),
    ]
    names = [study.name for study in pair.studies]
    objective, (first, second) = pair.objectives[0], pair.best[0]
    differing = [row for row in parameter_rows(pair, first, second) if row[1] != row[2]]
    lines: Report = [*wrapped([("", text) for text in pair_texts(pair)], width), Text()]
    lines += fitted_table(columns_of(["", *names], rows), width)
    if not differing:
        return [*lines, Text(), Text(f"The best designs by {objective.name} are alike.")]
    lines += [Text(), Text(f"The best designs by {objective.name} differ in:"), Text()]
    return [*lines, *fitted_table(columns_of(["parameter", *names], differing), width)]


def pair_texts(pair: StudyPair) -> list[str]:
    """Sentences of a comparison: the best values, the differences of the spaces, dominance."""
    one, other = pair.studies
    texts = [best_text(pair, at) for at in range(len(pair.objectives))]
    differing = differences(one.space, other.space)
    spaces = f"The spaces differ in {', '.join(differing)}." if differing else "Both search one space."
    beaten = [
        f"{counted(count, 'design')} of {whole:,} of {loser.name} {'is' if count == 1 else 'are'} "
        f"dominated by {winner.name}"
        for count, whole, loser, winner in (
            (pair.beaten[0], pair.fronts[0], one, other),
            (pair.beaten[1], pair.fronts[1], other, one),
        )
        if count
    ]
    alike = "No design of either front is better than one of the other"
    return [*texts, f"{spaces} {'; '.join(beaten) or alike}."]


def best_text(pair: StudyPair, at: int) -> str:
    """The best value of an objective in both studies: ``step_time: a is best, 14.9 s against 15.6 s``."""
    objective, (first, second), (one, other) = pair.objectives[at], pair.best[at], pair.studies
    rows = [(objective.cost(best.value), study.name, best) for study, best in ((one, first), (other, second))]
    (low, winner, best), (high, loser, rest) = sorted(rows, key=lambda row: row[0])
    name, values = objective.name.replace("_", " "), [readable(b.value, objective.unit) for b in (best, rest)]
    if low == high:
        return f"Best {name}: {values[0]} in both (trials {first.trial} and {second.trial})."
    change = f" ({relative(best.value - rest.value, abs(rest.value))})" if rest.value else ""
    return (
        f"Best {name}: {winner} with {values[0]} (trial {best.trial}), "
        f"against {values[1]} of {loser} (trial {rest.trial}){change}."
    )


def parameter_rows(pair: StudyPair, one: BestDesign, other: BestDesign) -> list[tuple[str, ...]]:
    """Parameters of either space, with its value in both designs; a dash where a space has none."""
    spaces = [study.space for study in pair.studies]
    names = dict.fromkeys(p.name for space in spaces for p in space.parameters)
    return [
        (name, *(
            parameter_text(space.by_name[name], best.params[name]) if name in best.params else "-"
            for space, best in zip(spaces, (one, other), strict=True)
        ))
        for name in names
    ]  # fmt: skip
