"""Stored trials of a study evaluated again: the figures that differ now.

A new version of the cost model changes prices. Before a study goes on, some of its trials are evaluated again; a
difference beyond the last bits is refused, since old and new prices must not be mixed."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from costmodel.columns import layout_of
from costmodel.formats.quantity import readable
from costmodel.rules.rules import WorkloadRules
from dse.fronts import thinned
from dse.pricing.evaluated import Evaluation, nominal_rate
from dse.pricing.evaluation import evaluate
from dse.pricing.workers import Jobs
from dse.searching.samplers.exact_search import WINNERS
from dse.searching.study_attributes import leaves
from dse.searching.trials.trial_table import BREAKDOWN, DERIVED, LAYOUTS, MARGINS, finite, trial_attributes
from dse.spaces.space import Params, Space
from dse.storage.optuna_store import Store, StoredStudy
from dse.storage.trial_columns import TrialColumns

#: Trials that are read and evaluated at a time.
BLOCK: Final = 4096
#: User attributes of trials that follow from their designs.
FOLLOWING: Final = (DERIVED, MARGINS, BREAKDOWN, LAYOUTS)
#: CPU time that a look at stored trials before a run may take, by the nominal rate of their space, and how
#: many these are at least and at most. [s], [-]
LOOK_SECONDS: Final = 0.2
FEWEST, MOST = 8, 256
#: How far apart prices may be that are the same to a run: last bits move between builds of NumPy. [-]
TOLERANCE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A stored figure that differs from that of the model."""

    trial: int
    column: str  #: as JSON has it: ``values.step_time_s``, ``breakdown.mfu``
    stored: Any
    model: Any
    unit: str = "-"

    @property
    def is_of_prices(self) -> bool:
        """True if a value that a search uses has changed: an objective, by more than last bits, or feasibility."""
        if not self.column.startswith("values."):
            return self.column == "feasible"
        return not np.isclose(self.stored, self.model, rtol=TOLERANCE, atol=0.0)


@dataclass(frozen=True)
class StoredDesign:
    """A design that a trial holds, its own or a winner of its inner search, with the figures of it."""

    trial: int
    prefix: str  #: of the names of its figures: ``winners[0].``, nothing for the trial's own design
    params: Params
    figures: Mapping[str, Any]


def mismatches(
    store: Store, stored: StoredStudy, columns: TrialColumns, space: Space, rules: WorkloadRules, jobs: Jobs = 1
) -> Iterator[tuple[int, list[Mismatch]]]:
    """Trials evaluated again, some thousands at a time: how many, and their figures that differ."""
    for first in range(0, len(columns.ids), BLOCK):
        block = columns.take(np.arange(first, min(first + BLOCK, len(columns.ids))))
        designs = stored_designs(store, stored, block, space)
        evaluation = evaluate(space, space.encode([design.params for design in designs]), rules=rules, jobs=jobs)
        breakdown = evaluation.breakdown
        known = {name for design in designs for name in design.figures}  # others are younger than all of these
        units = {
            **{f"values.{o.key}": o.unit for o in space.objectives},
            **{f"{DERIVED}.{d.name}": d.unit for d in space.derived},
            **{f"{MARGINS}.{limit.key}": limit.unit for limit in space.limits},
            **{f"{BREAKDOWN}.{breakdown.key(name)}": unit for name, unit in layout_of(type(breakdown)).units.items()},
        }
        differing = [
            Mismatch(design.trial, design.prefix + name, design.figures.get(name), now.get(name), units.get(name, "-"))
            for design, now in zip(designs, figures_now(space, evaluation), strict=True)
            for name in dict.fromkeys((*design.figures, *([] if design.prefix else now)))
            if name in known and design.figures.get(name) != now.get(name)
        ]
        yield len(block.ids), sorted(differing, key=lambda mismatch: mismatch.trial)


def stored_designs(store: Store, stored: StoredStudy, columns: TrialColumns, space: Space) -> list[StoredDesign]:
    """Designs of some trials as a database holds them: each trial's own, then its winners."""
    details = store.details(stored.study_id, columns.ids, (*FOLLOWING, WINNERS))
    keys = [objective.key for objective in space.objectives]
    held = []
    with store.reading(stored.study_id, "trial_params"):
        designs = {parameter.name: details.params[parameter.name] for parameter in space.parameters}
    with store.reading(stored.study_id, "trial_user_attributes"):
        for row, number in enumerate(columns.numbers.tolist()):
            params = {name: values[row] for name, values in designs.items()}
            texts = {name: details.attributes[name][row] for name in (*FOLLOWING, WINNERS)}
            tables = {name: json.loads(text) for name, text in texts.items() if text}
            winners = tables.pop(WINNERS, ())
            values = dict(zip(keys, columns.objectives[row].tolist(), strict=True))
            figures = {"values": values, "feasible": bool(columns.feasible[row]), **tables}
            held.append(StoredDesign(number, "", params, dict(leaves(figures))))
            for number_of_winner, winner in enumerate(winners if space.inner else ()):
                figures = dict(leaves({"values": winner["values"], "feasible": True}))
                design = params | winner["params"]
                held.append(StoredDesign(number, f"{WINNERS}[{number_of_winner}].", design, figures))
    return held


def figures_now(space: Space, evaluation: Evaluation) -> Iterator[dict[str, Any]]:
    """Figures of each design as a trial of it would hold them."""
    minimize = np.array([objective.direction == "minimize" for objective in space.objectives])
    keys = [objective.key for objective in space.objectives]
    values = finite(evaluation, minimize)[0].tolist()
    rows = zip(values, evaluation.feasible.tolist(), trial_attributes(space, evaluation), strict=True)
    for row, feasible, attributes in rows:
        record = {"values": dict(zip(keys, row, strict=True)), "feasible": feasible, **attributes}
        yield dict(leaves(record))


def price_change(store: Store, stored: StoredStudy, columns: TrialColumns, space: Space, rules: WorkloadRules) -> str:
    """Difference between the results of the model and the stored values of some trials, in one line; "" if none.

    Arguments are those of `mismatches`. Of many trials it looks at some.
    """
    most = int(np.clip(LOOK_SECONDS * nominal_rate(space), FEWEST, MOST))
    sample = columns.take(thinned(np.arange(len(columns.ids)), most))
    blocks = mismatches(store, stored, sample, space, rules)
    differing = [mismatch for _, block in blocks for mismatch in block if mismatch.is_of_prices]
    if not differing:
        return ""
    first, trials = differing[0], len({mismatch.trial for mismatch in differing})
    return (
        f"trial {first.trial}: {first.column.removeprefix('values.')}: {figure_text(first, first.stored)} "
        f"stored, the cost model gives {figure_text(first, first.model)} "
        f"({trials} of {len(sample.ids)} looked at differ)"
    )


def figure_text(mismatch: Mismatch, value: Any) -> str:
    """A figure of a difference for people, with enough digits for both sides to differ."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "none" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    numbers = [v for v in (mismatch.stored, mismatch.model) if isinstance(v, int | float)]
    for digits in (4, 12):
        texts = {readable(float(number), mismatch.unit, digits=digits) for number in numbers}
        if len(texts) == len(numbers):
            return readable(float(value), mismatch.unit, digits=digits)
    return repr(value)
