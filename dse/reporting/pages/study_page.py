"""A study as one page: the answer, every design of its front, and the search.

The page is one HTML file with its data as JSON. This module chooses the content of the page: the designs that open, the
axes, the proposals. `page.js` draws it and handles clicks and keys."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from shlex import quote
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.errors import DseError
from costmodel.formats import shipped
from dse.explaining.importance import importance
from dse.fronts import as_costs, thinned
from dse.output import Record, bare_name, counted
from dse.reporting.answers import PLAN, alternative, lead_text, other_text, picks, question_text, study_words
from dse.reporting.design_table import PEAK_MEMORY, design_columns, machine_parameters, table_notes, varying_parameters
from dse.reporting.pages.design_data import DesignPages, Launches
from dse.reporting.pages.page import page, rounded, table_data
from dse.reporting.studies.nothing_feasible import BrokenLimits
from dse.reporting.study_report import certificate_text, spread
from dse.reporting.tuning_report import run_line
from dse.searching.exact.certificate import quick_certificate
from dse.spaces.space import Space
from dse.storage.database import DEFAULT_URL

if TYPE_CHECKING:
    from costmodel.columns import FloatArray
    from dse.searching.study import BaseStudy
    from dse.searching.trials.trial_table import TrialTable

#: Designs that open, other designs in the scatter plot and as lines, and trials that rank parameters, at most. [-]
OPENED, CLOUD, LINES, RANKED = 250, 1500, 250, 500
#: Designs that open where there is no front, the best ones of a single objective, at most. [-]
BEST: Final = 24
#: Infeasible trials that are read, and trials of the curve of the hypervolume, at most. [-]
MOST_INFEASIBLE, CURVE = 2000, 5000
#: Proposed designs at most: the best of each objective, and knees between them. [-]
PROPOSED: Final = 7
#: Numbers that axes may show in addition to the objectives -> their part of a record, and their unit.
NUMBERS: Final = {
    "step_time_s": ("breakdown", "s"),
    PEAK_MEMORY: ("breakdown", "B"),
    "mfu": ("breakdown", "-"),
    "tokens_per_second": ("breakdown", "1/s"),
    "run_time_s": ("run", "s"),
    "run_cost_usd": ("run", "$"),
}


def study_page(study: BaseStudy, launches: Launches) -> str:
    """HTML of a study; a `DseError` if it has no finished trials."""
    if not len(study.table):
        raise DseError(f"study {study.name!r}: no finished trials yet")
    plan: Record = study.attributes.get(PLAN, {})
    front = opened(study.table)
    on_front = len(study.table.front()) if len(study.space.objectives) > 1 else len(front)
    data = {
        "kind": "study",
        "name": study.name,
        "words": study_words(study.name, None if study.storage == DEFAULT_URL else study.storage),
        "objectives": [
            {"name": o.name.replace("_", " "), "unit": o.unit, "least": o.direction == "minimize"}
            for o in study.space.objectives
        ],
        "space": study.space.text,
        "versions": study.attributes.get("dse:versions", {}),
        "infeasible": infeasible_text(study),
        **({} if plan else {"search": search_data(study)}),
        **(
            front_data(study, front, plan, launches) | {"count": on_front}
            if front
            else {"question": study.name, "designs": []}
        ),
    }
    return page(f"{data['question']}: dse report", data, "study.js")


def opened(table: TrialTable) -> list[dict[str, Any]]:
    """Designs that the page opens: the front; of a single objective the best feasible trials."""
    if len(table.space.objectives) > 1:
        return table.front().thinned().records()
    costs = table.costs[:, 0]
    rows = np.argsort(np.where(np.isnan(costs), np.inf, costs), kind="stable")[: int(np.isfinite(costs).sum())]
    return table.take(rows[:BEST]).records()


def front_data(study: BaseStudy, front: Sequence[Record], plan: Record, launches: Launches) -> dict[str, Any]:
    """The answer, the designs that open, and the designs around them."""
    space, best, second = study.space, front[0], alternative(study.space, front)
    named = proposed(space, front)
    rows = spread(len(front), OPENED, [*named, *((second[0],) if second else ())])
    records, places = with_run_lines(study, [front[row] for row in rows]), {row: at for at, row in enumerate(rows)}
    pages = DesignPages(space, study.profile, launches)
    designs = pages.designs(records)
    for row, text in named.items():
        designs[places[row]]["title"] = text
    varying = varying_parameters(space, front)
    notes = {places[row]: text for row, text in named.items()}
    lead = [f"Lead {text}" for text in [lead_text(space, best)] if text]
    changes = "; ".join(study.changes())  # parts of designs are those of the present cost model
    outdated = f"Numbers are of the cost model that searched, parts of the present one: {changes}."
    return {
        "question": question_text(space, best).replace("\xa0", " "),
        "description": space.description,
        "machine": bool(machine_parameters(space)),
        "exact": exact_texts(study, plan),
        "notes": [
            *([outdated] if changes else []),
            *lead,
            *plan.get("notes", ()),
            *(line.plain for line in table_notes(space, records, front, varying)),
        ],
        "assumed": plan.get("assumed", ""),
        "or": [second[1] + other_text(space, best, front[second[0]]), places[second[0]]] if second else [],
        "table": table_data(design_columns(space, records, varying, notes)),
        "axes": axes_data(space, records),
        "lines": lines_data(study.table, varying, records),
        "cloud": cloud_data(study.table),
        "designs": designs,
        "paths": [*pages.paths.places],
        "texts": [*pages.lines.places],
    }


def with_run_lines(study: BaseStudy, records: Sequence[Record]) -> list[Record]:
    """Records of designs with a sentence for each of their runs on a cluster."""
    told = study.told_runs()
    return [
        {**record, "ran": [f"Ran: {run_line(run, {run.trial: record['breakdown']['step_time_s']}).partition(': ')[2]}"
                           for run in told if run.trial == record["trial"]]}
        for record in records
    ] if told else [*records]  # fmt: skip


def proposed(space: Space, front: Sequence[Record]) -> dict[int, str]:
    """Row -> title of the designs to look at first: the best of each objective, and knees between two of them."""
    named = picks(space, front)
    if len(space.objectives) < 2 or len(front) < 3:
        return named
    values = np.array([[record["values"][o.key] for o in space.objectives] for record in front])
    costs = as_costs(values, space.directions)
    for pair in [tuple(range(len(space.objectives))), *combinations(range(len(space.objectives)), 2)]:
        if len(pair) > 1 and len(named) < PROPOSED:
            row = knee(costs[:, pair])
            names = " and ".join(space.objectives[at].name.replace("_", " ") for at in pair)
            named.setdefault(row, "knee" if len(space.objectives) == len(pair) else f"knee of {names}")
    return named


def knee(costs: FloatArray) -> int:
    """Row of the point that is nearest to the ideal, on axes that span the front, logarithmic where they can be."""
    axes = np.log(costs) if (costs > 0).all() else costs
    shares = (axes - axes.min(axis=0)) / np.maximum(np.ptp(axes, axis=0), np.finfo(float).tiny)
    return int(np.argmin((shares**2).sum(axis=1)))


def exact_texts(study: BaseStudy, plan: Record) -> list[str]:
    """A word for how the result was found, and a sentence about it."""
    if plan:
        return ["exact" if plan.get("exact") else "searched", plan["counts"]]
    certificate = quick_certificate(study)
    text = certificate_text(study.space, certificate).plain if certificate else ""
    evaluated = study.designs_priced or len(study.table)
    return [
        "exact" if certificate and certificate.found == certificate.of else "searched",
        f"{counted(evaluated, 'design')} evaluated. {text}",
    ]


def axes_data(space: Space, records: Sequence[Record]) -> list[dict[str, Any]]:
    """Quantities that axes may show: the objectives, then numbers of the breakdown and of the run."""
    axes: list[dict[str, Any]] = [
        {"name": o.name, "unit": o.unit, "values": [rounded(r["values"][o.key]) for r in records]}
        for o in space.objectives
    ]
    known = {o.key for o in space.objectives}
    for key, (group, unit) in NUMBERS.items():
        if key not in known and all(key in record.get(group, {}) for record in records):
            values = [rounded(record[group][key]) for record in records]
            axes.append({"name": bare_name(key, unit), "unit": unit, "values": values})
    return [{**axis, "name": axis["name"].replace("_", " ")} for axis in axes]


def cloud_data(table: TrialTable) -> dict[str, list[list[float]]]:
    """Objectives of feasible designs that others beat, and of infeasible ones; thinned."""
    numbers, values = table.front().numbers, table.values
    beaten = table.feasible & ~np.isin(table.numbers, numbers) & np.isfinite(values).all(axis=1)
    broken = ~table.feasible & np.isfinite(values).all(axis=1)
    clouds = {"dominated": values[beaten], "infeasible": values[broken]}
    return {
        name: [[rounded(value, 4) for value in row] for row in thinned(cloud, CLOUD).tolist()]
        for name, cloud in clouds.items()
    } | {"counts": [[float(len(cloud)) for cloud in clouds.values()]]}


def lines_data(table: TrialTable, varying: Sequence[str], records: Sequence[Record]) -> list[dict[str, Any]]:
    """Parameters and objectives as coordinates: of the opened designs first, then of other feasible trials."""
    space = table.space
    numbers = [record["trial"] for record in records]
    others = thinned(np.flatnonzero(table.feasible & ~np.isin(table.numbers, numbers)), LINES)
    every = [*records, *table.take(others).records()]
    lines: list[dict[str, Any]] = []
    for name in varying:
        parameter = space.recorded_by_name[name]
        if name in space.kernel_columns or not all(name in record["params"] for record in every):
            continue
        values = [record["params"][name] for record in every]
        used = sorted({*values}, key=parameter.code)
        coordinate: dict[str, Any] = {"name": name.replace("_", " "), "unit": parameter.unit}
        if len(used) <= 16:
            coordinate["texts"] = [parameter.shown(value) for value in used]
            values = [used.index(value) for value in values]
        lines.append({**coordinate, "values": values})
    for objective in space.objectives:
        values = [rounded(record["values"][objective.key], 4) for record in every]
        lines.append({"name": objective.name.replace("_", " "), "unit": objective.unit, "values": values})
    return lines


def search_data(study: BaseStudy) -> dict[str, Any]:
    """Facts of a search: trials, sampler, command, progress, importances of parameters."""
    history = study.hypervolume_history(CURVE)
    thinned_text = f" (the curve is that of {CURVE:,} trials, evenly spread)" if len(history) > CURVE else ""
    changes = history[history["hypervolume"].diff().ne(0) | (history.index == len(history) - 1)]
    name, space = quote(study.name), study.space
    is_built_in = space.name in shipped.names("spaces") and Space.load(space.name).text == space.text
    file = space.name if is_built_in else f"{name}.yaml"
    return {
        "facts": {
            "trials": f"{len(study.table):,}",
            "infeasible": f"{int((~study.table.feasible).sum()):,}",
            "sampler": study.plan.sampler,
            "seed": str(study.plan.seed),
            "hypervolume": f"{study.hypervolume:.3f}{thinned_text}",
        },
        "command": f"dse search {file} --study {name} --sampler {study.plan.sampler} "
        f"--seed {study.plan.seed} --budget {len(study.table)}",
        "progress": [[int(n), rounded(v)] for n, v in changes.to_numpy().tolist()],
        **importance_data(study),
    }


def importance_data(study: BaseStudy) -> dict[str, Any]:
    """Two shares of each parameter for each objective (`Importance`); of a long search from some of its trials."""
    table = study.table
    try:
        kept = table.take(thinned(np.flatnonzero(table.feasible), RANKED))
        result = importance(study.space, kept, study.profile)
    except DseError as error:
        return {"no_importance": str(error)}
    shares = zip(result.parameters, result.trials.T.tolist(), result.designs.T.tolist(), strict=True)
    return {
        "importance": [
            [name.replace("_", " "), [rounded(v, 3) for v in trials], [rounded(v, 3) for v in designs]]
            for name, trials, designs in shares
        ]
    }


def infeasible_text(study: BaseStudy) -> str:
    """The limits that trials break, and a change that would help; "" if all are feasible. Of many, it reads some."""
    rows = (~study.table.feasible).nonzero()[0]
    if not rows.size:
        return ""
    broken = BrokenLimits(study.space)
    seen = rows[spread(rows.size, MOST_INFEASIBLE, [])]
    for record in study.table.take(seen).each_record():
        broken.add(record)
    counts = ", ".join(f"{name.replace('_', ' ')} {count:,}" for name, count in broken.counts.items() if count)
    sample = f"of {seen.size:,} of them, " if seen.size < rows.size else ""
    unusable = counted(int(rows.size), "design" if PLAN in study.attributes else "trial")
    return f"{unusable} of {len(study.table):,} cannot be used ({sample}{counts}): {broken.text()}."
