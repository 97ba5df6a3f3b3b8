"""What a person reads at the end of a command."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from costmodel.formats.quantity import readable
from costmodel.steps.result.breakdown import UNIT_SUFFIX, with_unit_suffix
from dse.predictions.memory_fit import TIGHT
from dse.pricing.evaluation import splits_text, with_splits
from dse.records.text import UNITS, Record, column_text, counted, design_text, objective_texts, percent
from dse.reporting import catalogue
from dse.reporting.binding import binding_tables, memory_verdict
from dse.reporting.design_table import (
    EVIDENCE_TEXTS,
    Column,
    design_table,
    drawn,
    fitted,
    interval_text,
    ruled_table,
    run_text,
    varying_parameters,
    workload_lines,
)
from dse.spaces.sections.training_run import UNITS as RUN_UNITS
from dse.spaces.space import Space

if TYPE_CHECKING:
    from dse.searching.exact.bounded import StudyBound
    from dse.searching.exact.certificate import Certificate
    from dse.searching.exact.exact_front import ExactFront
    from dse.searching.exact.long_search import Reference
    from dse.searching.study import BaseStudy
    from dse.searching.summaries import Summary
#: Rows of the front that a report shows.
ROWS_SHOWN = 12

#: Columns of the breakdown that sum a design up.
SUMMARY = (
    "step_time_s",
    "tokens_per_second",
    "tokens_per_second_per_gpu",
    "mfu",
    "peak_memory_bytes",
    "energy_per_step_j",
    "system_price_usd",
    "system_power_w",
)

Report = list[RenderableType]


def study_report(study: BaseStudy, width: int) -> Report:
    """What a study has found so far: counts, front, picks, and what binds the best design."""
    table = study.table
    infeasible = len(table) - int(table.feasible.sum())
    heading = f"Study {study.name}: {counted(len(table), 'trial')}, {infeasible} infeasible"
    if priced := study.designs_priced:
        heading += f", found among {priced:,} designs priced"
    front = table.front().records()
    if not front:
        return [Text(heading + ".")]
    heading += f"; {counted(len(front), 'design')} on the Pareto front, hypervolume {study.hypervolume:.3f}"
    heading += "." if study.hypervolume <= 1 else " (1 is the box that random designs span)."
    return [Text(heading), Text(), *front_report(study.space, front, width, more=f"dse pareto {study.name}")]


def exact_report(exact: ExactFront, width: int) -> Report:
    """The exact front of a space."""
    heading = f"Space {exact.space.name}: {counted(exact.legal, 'legal design')}, "
    if exact.is_partial:
        heading = f"PARTIAL: {exact.priced:,} of {exact.legal:,} legal designs of space {exact.space.name}, "
    if exact.infeasible is None:
        heading += f"{exact.priced:,} evaluated and the rest ruled out by bounds"
    else:
        heading += f"{exact.infeasible:,} infeasible" + broken_text(exact.broken)
    front = exact.records()
    if not front:
        return [Text(heading + ".")]
    heading += f"; {counted(len(front), 'design')} on the "
    heading += "Pareto front of these alone." if exact.is_partial else "exact Pareto front."
    return [Text(heading), Text(), *front_report(exact.space, front, width, more="--format json")]


def broken_text(broken: Mapping[str, int]) -> str:
    """How many designs break each limit, those that break none left out: `` (fits_in_memory 640)``."""
    counts = [f"{name} {count:,}" for name, count in broken.items() if count]
    return f" ({', '.join(counts)})" if counts else ""


def front_report(space: Space, front: Sequence[Record], width: int, *, more: str) -> Report:
    """A front: its rows, or some of them; its notable designs; what binds the best one.

    Parameters
    ----------
    space : Space
        Where the designs come from.
    front : sequence of records
        The designs, the best of the first objective first.
    width : int
        [characters]
    more : str
        Command or option that shows the whole front.
    """
    picked = picks(space, front)
    rows = spread(len(front), ROWS_SHOWN, list(picked))
    notes = {place: picked[row] for place, row in enumerate(rows) if row in picked}
    shown: Report = [*design_table(space, [front[row] for row in rows], width, notes, front)]
    if len(rows) < len(front):
        shown.append(Text(f"... {len(front) - len(rows)} more: {more}"))
    best = next(iter(picked))
    return [
        *shown,
        Text(),
        *picks_report(space, front, picked),
        Text(),
        Text(
            "What binds the fastest" + (f", trial {front[best]['trial']}" if "trial" in front[best] else "")
        ),
        Text(),
        *binding_tables(space, front[best], width),
    ]


def picks(space: Space, front: Sequence[Record]) -> dict[int, str]:
    """Row -> what it is best at: fastest, smallest memory, cheapest, and any other objective."""
    prices = {record["breakdown"][with_unit_suffix("system_price")] for record in front}
    wanted = {
        "fastest": with_unit_suffix("step_time"),
        "smallest memory": with_unit_suffix("peak_memory"),
        **(
            {"cheapest": with_unit_suffix("system_price")}
            if len(prices) > 1
            else {"least energy": with_unit_suffix("energy_per_step")}
        ),
    }
    best: dict[int, list[str]] = {}
    for title, column in wanted.items():
        row = min(range(len(front)), key=lambda i: front[i]["breakdown"][column])
        best.setdefault(row, []).append(title)
    for objective in space.objectives:
        if objective.key not in (*wanted.values(), with_unit_suffix("tokens_per_second")):
            sign = 1 if objective.direction == "minimize" else -1
            row = min(range(len(front)), key=lambda i: sign * front[i]["values"][objective.key])
            best.setdefault(row, []).append(f"best {objective.name}")
    return {row: ", ".join(titles) for row, titles in best.items()}


def spread(count: int, shown: int, always: Sequence[int]) -> list[int]:
    """At most `shown` rows spread evenly over a front, both ends and the notable ones among them.

    >>> spread(100, 5, always=[42])
    [0, 33, 42, 66, 99]
    """
    for even in range(min(count, shown), 1, -1):
        rows = {round(place * (count - 1) / (even - 1)) for place in range(even)} | set(always)
        if len(rows) <= shown:
            return sorted(rows)
    return sorted({0, count - 1, *always})


def picks_report(space: Space, front: Sequence[Record], picked: Mapping[int, str]) -> Report:
    """The notable designs, in words and as ``--set`` takes them, without what all of the front share."""
    varying = varying_parameters(space, front)
    shown: Report = []
    records = with_splits(space, [dict(front[row]) for row in picked])
    for record, title in zip(records, picked.values(), strict=True):
        trial = f"trial {record['trial']}, " if "trial" in record else ""
        trial += f"winner {record['winner']}, " if record.get("winner") else ""
        shown.append(Text.assemble((title, "bold"), f": {trial}{', '.join(objective_texts(space, record))}"))
        shown.append(Padding(design_text(space, record["params"], varying), (0, 0, 0, 2)))
        if "splits" in record:
            shown.append(Padding(splits_text(record), (0, 0, 0, 2)))
        if "run" in record:
            shown.append(Padding(run_text(record), (0, 0, 0, 2)))
        shown += [Padding(line, (0, 0, 0, 2)) for line in workload_lines(space, record)]
    return shown


def evaluation_report(space: Space, record: Record, width: int) -> Report:
    """Report of an evaluated design."""
    verdict = verdict_text(space, record)
    heading = [Text(f"{space.name}: {verdict} with {design_text(space, record['params'])}")]
    if math.isnan(record["breakdown"]["step_time_s"]):
        return [*heading, Text(), Text("The profile has no number for such a design.")]
    table = Table.grid(padding=(0, 2, 0, 0))
    for column in SUMMARY:
        table.add_row(
            column.removesuffix(UNIT_SUFFIX[UNITS[column]]).replace("_", " "), column_text(record, column)
        )
        if column == "step_time_s" and "evidence" in record:
            table.add_row("", f"{interval_text(record)}, 9 of 10: {EVIDENCE_TEXTS[record['evidence']]}")
    for derived in space.derived:
        if derived.name in record["derived"] and not ("run" in record and derived.name in RUN_UNITS):
            table.add_row(
                derived.name.replace("_", " "), readable(record["derived"][derived.name], derived.unit)
            )
    heading += [Text(text) for text in run_lines(space, record)]
    if "splits" in record:
        heading.append(Text(splits_text(record)))
    if "run" in record:
        heading += [Text(), Text(run_text(record))]
    if space.workloads:
        heading += [Text(), *(Text(line) for line in workload_lines(space, record))]
    return [*heading, Text(), table, Text(), *binding_tables(space, record, width)]


def run_lines(space: Space, record: Record) -> list[str]:
    """Chips, replicas and micro-batches of a design, in a line; none where the space fixes no chips."""
    known = {**space.given, **record["params"], **record["derived"]}
    chips, node = int(known.get("world_size", 0)), int(np.max(space.system.network[0].size))
    if not chips or "dp" not in known:
        return []
    name = "GPU" if np.max(space.system.chip.compute_capability) else "chip"
    nodes = f" ({counted(-(-chips // node), 'node')})" if node > 1 else ""
    steps = int(known.get("gradient_accumulation_steps", 1))
    batches = f"{steps:,} micro-batch{'es' * (steps != 1)}"
    return [f"on {counted(chips, name)}{nodes}, dp {known['dp']:g}, {batches}"]


def verdict_text(space: Space, record: Record) -> str:
    """Whether a design keeps all limits, and how sure that is of memory."""
    tight = memory_verdict(space, record) == TIGHT
    if record["feasible"]:
        return "feasible, tight in memory" if tight else "feasible"
    broken = [limit.unit for limit in space.limits if (record["margins"].get(limit.key) or 0.0) < 0]
    only_memory = bool(broken) and all(unit == "B" for unit in broken)
    return "tight in memory, may not fit" if tight and only_memory else "not feasible"


def certificate_text(space: Space, certificate: Certificate) -> Text:
    """How far a study is from the exact front, in words."""
    within = f", within {certificate.focus!r}" if certificate.focus else ""
    study = f"Study {certificate.study}{within}, after {counted(certificate.trials, 'trial')}"
    if certificate.found == certificate.of:
        return Text(f"{study}: has found all {certificate.of:,} designs of the exact front.")
    missed = ""
    if certificate.worst_missed is not None:
        missed = f" Matched worst: {design_text(space, certificate.worst_missed)}."
    return Text(
        f"{study}: has {100 * certificate.hypervolume_ratio:.2f} % of the exact hypervolume, "
        f"{certificate.found:,} of the {certificate.of:,} designs of the exact front, and for each of the "
        f"others one that is at most {percent(certificate.worst_gap)} worse in any objective. "
        f"Best values: {'; '.join(regrets(certificate))}.{missed}"
    )


def reference_text(reference: Reference) -> Text:
    """How far a study is from what a long search finds, in words."""
    gaps = [
        f"{name} {percent(gap)} worse than the best known" if gap else f"{name} the best known"
        for name, gap in reference.gaps.items()
    ]
    return Text(
        f"Study {reference.study}, after {counted(reference.trials, 'trial')}: has "
        f"{100 * reference.hypervolume_ratio:.2f} % of the hypervolume of all that is known, itself and a "
        f"reference run that priced {reference.designs_priced:,} designs, and for each design known one that "
        f"is at most {percent(reference.worst_gap)} worse in any objective. Best values: {'; '.join(gaps)}. "
        "This is no certificate: better designs may exist."
    )


def regrets(certificate: Certificate) -> list[str]:
    """Distance of the best found from the best possible, by objective, and how many are better."""
    texts = []
    for name, gap in certificate.gaps.items():
        rank = certificate.ranks[name]
        better = "" if rank is None else f", {counted(rank, 'design')} better"
        texts.append(
            f"{name} {percent(gap)} worse than the best possible{better}" if gap else f"{name} the best"
        )
    return texts


def studies_table(summaries: Sequence[Summary]) -> Report:
    """What a database holds."""
    if not summaries:
        return [Text("No studies yet; `dse search` starts one.")]
    table = ruled_table()
    for heading in ("study", "space", "sampler", "trials", "best"):
        table.add_column(heading, no_wrap=heading in ("study", "space"))
    for study in summaries:
        counts = {
            "finished": study.complete,
            "infeasible": study.infeasible,
            "failed": study.failed,
            "running": study.running,
        }
        states = [f"{count:,} {state}" for state, count in counts.items() if count or state == "finished"]
        best = [best_text(key, value) for key, value in study.best.items()]
        table.add_row(
            study.name, study.space or "-", study.sampler or "-", "\n".join(states), "\n".join(best) or "-"
        )
    return [table]


def best_text(key: str, value: float) -> str:
    """The best value of an objective, by its name in tables."""
    if key not in UNITS:
        return f"{key} {value:.4g}"
    return f"{key.removesuffix(UNIT_SUFFIX[UNITS[key]])} {readable(value, UNITS[key])}"


def listing(rows: Sequence[Mapping[str, Any]], width: int) -> Report:
    """What ships, one row each; descriptions go below the table."""
    columns = [
        Column(
            fact,
            tuple(catalogue.heading(fact).split()),
            [catalogue.fact_text(fact, row.get(fact, "-")) for row in rows],
            leave_out=place,
            left=isinstance(rows[0][fact], str),
        )
        for place, fact in enumerate(fact for fact in rows[0] if fact not in catalogue.BELOW)
    ]
    kept, left_out = fitted(columns, width)
    below = [Text(f"too wide to show: {', '.join(map(catalogue.heading, left_out))}")] if left_out else []
    for row in rows:
        if "description" in row:
            sought = f" Objectives: {', '.join(row['objectives'])}." if "objectives" in row else ""
            below += [Text(), Text(f"{row['name']}: {row['description']}.{sought}")]
    return [*drawn(kept), *below]


def plan_report(
    study: BaseStudy, heading: str, notes: Sequence[str], commands: Sequence[str], width: int
) -> Report:
    """The best layouts of a plan, what is to be said of them, and what to do next."""
    front = study.table.front().records()
    shown = front_report(study.space, front, width, more=f"dse pareto {study.name}") if front else []
    return [
        *(Text(heading), Text(), *shown, Text()),
        *(Text(f"{note}\n") for note in notes),
        Text(f"Kept as study {study.name}. Next:"),
        *(Padding(command, (0, 0, 0, 2)) for command in commands),
    ]


def bound_text(bound: StudyBound, space: Space) -> Text:
    """How far a study's best values are at most from the best possible, in words."""
    units = {own.key: own.unit for own in space.objectives}
    found = [
        f"{name} no better than {_limit_text(limit, units[key])}, of which the best found is "
        + (f"within {percent(gap)}" if gap else "that")
        for (key, limit), (name, gap) in zip(bound.limits.items(), bound.gaps.items(), strict=True)
    ]
    left = f"{counted(bound.boxes_left, 'box')} left" if bound.boxes_left else "nothing left"
    return Text(
        f"Study {bound.study}, after {counted(bound.trials, 'trial')}: bounds of all legal designs, "
        f"{bound.designs_priced:,} evaluated and {left}: {'; '.join(found)}. This is a bound, no "
        "certificate: the best possible lies between."
    )


def _limit_text(value: float, unit: str) -> str:
    """A value of an objective with its unit."""
    return f"{value:,.4g}" if unit in ("-", "1/s") else readable(value, unit)
