"""Reports at the end of a command.

The answer comes first: the best design with its numbers, then the front, then the bottleneck. A front in one objective
is a list of the best; in several, rows that are much slower than the fastest are counted only."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from shlex import quote
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from costmodel.columns import layout_of
from costmodel.formats.quantity import readable
from costmodel.steps.breakdown import UNIT_SUFFIX, Breakdown
from dse.output import ROWS_SHOWN, UNITS, Record, Report, column_text, counted, design_text, percent, ranked_time
from dse.pricing.evaluation import kernels_text, with_kernels
from dse.reporting import answers, design_table
from dse.reporting.binding import binding_tables
from dse.spaces.sections.training_run import UNITS as RUN_UNITS
from dse.spaces.space import Space

if TYPE_CHECKING:
    from dse.searching.exact.certificate import Certificate, StudyBound, Surroundings
    from dse.searching.exact.exact_front import ExactFront
    from dse.searching.study import BaseStudy, Summary
#: Columns of the breakdown that the first lines on a design do not say.
SUMMARY = ("tokens_per_second", "energy_per_step_j", "system_price_usd", "system_power_w")


def study_report(study: BaseStudy, width: int, *, storage: str | None = None) -> Report:
    """The answer of a study: its best design, a second one, then the front and the bottleneck."""
    table = study.table
    on_front = table.front()
    front = on_front.thinned().records()
    evaluated = study.designs_priced or len(table)
    noun = "design" if design_table.machine_parameters(study.space) or "tp" not in study.space.chosen else "layout"
    heading = f"{counted(evaluated, noun)} evaluated, {len(on_front):,} on the Pareto front."
    if len(front) < len(on_front):
        heading += f" {len(front):,} of these, spread over the front, are compared below."
    if infeasible := len(table) - int(table.feasible.sum()):
        heading += f" {infeasible:,} of {counted(len(table), 'trial')} do not fit."
    if not front:
        return [Text(f"Study {study.name}: {heading}")]
    name = answers.study_words(study.name, storage)
    explained = [f"dse explain {name}"] if study.space.workload.work.reads_system else []
    commands = [*explained, f"dse report {name} -o {quote(study.name)}.html"]
    lines = [("", heading), *answers.front_lines(study.space, front, commands)]
    return front_report(study.space, front, lines, width, more=f"dse show {name}")


def exact_report(exact: ExactFront, width: int) -> Report:
    """The exact front of a space."""
    heading = f"Space {exact.space.name}: {counted(exact.legal, 'legal design')}, "
    if exact.is_partial:
        heading = f"PARTIAL: {exact.evaluated:,} of {exact.legal:,} legal designs of space {exact.space.name}, "
    if exact.infeasible is None:
        heading += f"{exact.evaluated:,} evaluated and the rest ruled out by {exact.proof}"
    else:
        counts = [f"{name} {count:,}" for name, count in exact.broken.items() if count]
        heading += f"{exact.infeasible:,} infeasible" + (f" ({', '.join(counts)})" if counts else "")
    front = exact.records()
    if not front:
        return [Text(heading + ".")]
    heading += f"; {counted(len(front), 'design')} on the "
    heading += "Pareto front of these alone." if exact.is_partial else "exact Pareto front."
    lines = [("", heading), *answers.front_lines(exact.space, front, [])]
    return front_report(exact.space, front, lines, width, more="--format json")


def front_report(
    space: Space, front: Sequence[Record], lines: Sequence[answers.Line], width: int, *, more: str
) -> Report:
    """A front below the lines of its answer: the rows worth considering, and the bottleneck of its best design."""
    picked, times = answers.picks(space, front), [ranked_time(record) for record in front]
    slowest = math.inf if design_table.machine_parameters(space) else answers.TOO_SLOW * min(times)
    worth = [row for row, time in enumerate(times) if not time > slowest]
    second = answers.alternative(space, front)
    always = {*picked, *(second or ())[:1]} & {*worth}
    rows = [worth[number] for number in spread(len(worth), ROWS_SHOWN, [worth.index(row) for row in always])]
    notes = {index: picked[row] for index, row in enumerate(rows) if row in picked}
    table = design_table.design_table(space, [front[row] for row in rows], width, notes, front)
    shown: Report = [*answers.wrapped(lines, width), Text(), *table]
    if len(rows) < len(front):
        hidden, slow = counted(len(front) - len(rows), "more design"), len(front) - len(worth)
        hidden += f", {slow:,} of them slower than {answers.TOO_SLOW:g} times the fastest" if slow else ""
        shown.append(Text(f"{hidden}: {more}"))
    [best] = with_kernels(space, [dict(front[0])])
    below = [*design_lines(space, best), *([design_table.failures_text(best)] if "run" in best else [])]
    return [*shown, *(Text(line) for line in below), Text(), *binding_tables(space, best, width)]


def design_lines(space: Space, record: Record) -> list[str]:
    """The shardings and tiles of a design, if the space chooses them, and the layout of each of several workloads."""
    lines = [*design_table.workload_lines(space, record)]
    if text := kernels_text(space, record["params"]):
        how = "solved for each design" if space.solved else "sampled"
        design = f"trial {record['trial']}" if "trial" in record else "this design"
        lines.insert(0, f"Kernels of {design} ({how}): {text}.")
    return lines


def spread(count: int, shown: int, always: Sequence[int]) -> list[int]:
    """At most `shown` rows spread evenly over a front, both ends and the notable ones among them.

    >>> spread(100, 5, always=[42])
    [0, 33, 42, 66, 99]
    """
    for even in range(min(count, shown), 1, -1):
        rows = {round(number * (count - 1) / (even - 1)) for number in range(even)} | set(always)
        if len(rows) <= shown:
            return sorted(rows)
    return sorted({0, count - 1, *always})


def evaluation_report(
    space: Space, record: Record, width: int, *, instead: str = "", commands: Sequence[str] = (),
    brief: bool = False,
) -> Report:  # fmt: skip
    """An evaluated design: if it fits, its numbers, a design that would fit instead, then its parts.

    With `brief`, the first lines name the sizes of groups and batches, and no switches.
    """
    heading: list[answers.Line] = [("", answers.question_text(space, record))]
    if math.isnan(record["breakdown"]["step_time_s"]):
        text = f"The profile has no number for {answers.layout_text(space, record)}."
        return [*answers.wrapped([*heading, ("", text)], width)]
    lines = [*heading, answers.verdict_line(space, record, brief=brief)]
    lines += [("Instead", f"{instead}.")] if instead else []
    if "evidence" in record:
        lines.append(("Interval", f"{design_table.EVIDENCE_TEXTS[record['evidence']]}."))
    if "run" in record:
        lines.append(("Run", design_table.run_text(space, record)))
    below = [
        answers.place_text(space, record),
        design_table.failures_text(record) if "run" in record else "",
        *design_lines(space, record),
    ]
    return [
        *answers.wrapped([*lines, *answers.next_lines(commands)], width),
        Text(),
        *(Text(line) for line in below if line),
        quantities_table(space, record),
        Text(),
        *binding_tables(space, record, width),
    ]


def quantities_table(space: Space, record: Record) -> Table:
    """Energy, cost and power of a design, and its derived columns."""
    results, figures, values = space.workload.work.results, record["breakdown"], dict[str, str]()
    units = {results.key(name): unit for name, unit in layout_of(results).units.items()}
    for column in SUMMARY if results is Breakdown else (name for name in units if figures[name] == figures[name]):
        text = column_text(record, column) if column in UNITS else readable(figures[column], units[column])
        values[column.removesuffix(UNIT_SUFFIX[units[column]])] = text
    for derived in space.derived:
        if derived.name in record["derived"] and not ("run" in record and derived.name in RUN_UNITS):
            values[derived.name] = readable(record["derived"][derived.name], derived.unit)
    return design_table.facts((name.replace("_", " "), value) for name, value in values.items())


def rounded(share: float, to: Callable[[float], int]) -> str:
    """A share that is rounded up or down, so that a statement with it holds."""
    return f"{to(share * 1e4) / 100:.2f} %"


def certificate_text(space: Space, certificate: Certificate) -> Text:
    """Distance of a study from the exact front, in words."""
    within = f", within {certificate.focus!r}" if certificate.focus else ""
    study = f"Study {certificate.study}{within}, after {counted(certificate.trials, 'trial')}"
    if certificate.found == certificate.of:
        return Text(f"{study}: has found all {certificate.of:,} designs of the exact front.")
    missed = ""
    if certificate.worst_missed is not None:
        missed = f" Worst match: {design_text(space, certificate.worst_missed)}."
    return Text(
        f"{study}: has {rounded(certificate.hypervolume_ratio, math.floor)} of the exact hypervolume, "
        f"{certificate.found:,} of the {certificate.of:,} designs of the exact front, and for each of the "
        f"others one that is at most {rounded(certificate.worst_gap, math.ceil)} worse in any objective. "
        f"Best values: {'; '.join(regrets(certificate))}.{missed}"
    )


def surroundings_text(around: Surroundings) -> Text:
    """Search around the best design of a study whose distance to the exact front is unknown, in words."""
    study = f"Study {around.study}, after {counted(around.trials, 'trial')}: "
    bound = f" For a bound: `dse enumerate --bound {quote(around.study)}`" if around.open_machine else ""
    evaluated = f"{around.evaluated:,} designs were evaluated."
    if around.proved:
        return Text(
            f"{study}no legal design is better by {', '.join(around.proved)}: bounds prove it. {evaluated} "
            f"The distance of other designs to the exact front is unknown.{bound}"
        )
    better = f"{around.better:,} are" if around.better else "none is"
    return Text(
        f"{study}distance to the best possible unknown. {evaluated} Of {around.designs:,} designs around the best by "
        f"{around.objective}, {better} better.{bound}"
    )


def regrets(certificate: Certificate) -> list[str]:
    """Distance of the best found from the best possible, by objective, and how many are better."""
    texts = []
    for name, gap in certificate.gaps.items():
        rank = certificate.ranks[name]
        better = "" if rank is None else f", {counted(rank, 'design')} better"
        texts.append(f"{name} {percent(gap)} worse than the best possible{better}" if gap else f"{name} the best")
    return texts


def studies_table(summaries: Sequence[Summary]) -> Report:
    """Table of the studies of a database."""
    if not summaries:
        return [Text("No studies yet; `dse search` starts one.")]
    table = design_table.ruled_table()
    for heading in ("study", "space", "sampler", "trials", "best"):
        table.add_column(heading, no_wrap=heading in ("study", "space"))
    for study in summaries:
        counts = {
            "finished": study.complete,
            "infeasible": study.infeasible,
            "failed": study.failed,
            "running": study.running,
            f"not read (`dse studies {quote(study.name)}` reads them)": study.unread,
        }
        states = [f"{count:,} {state}" for state, count in counts.items() if count or state == "finished"]
        best = [best_text(key, value) for key, value in study.best.items()]
        table.add_row(study.name, study.space or "-", study.sampler or "-", "\n".join(states), "\n".join(best) or "-")
    return [table]


def best_text(key: str, value: float) -> str:
    """The best value of an objective, by its name in tables."""
    if key not in UNITS:
        return f"{key} {value:.4g}"
    return f"{key.removesuffix(UNIT_SUFFIX[UNITS[key]])} {readable(value, UNITS[key])}"


def listing(rows: Sequence[Mapping[str, Any]], width: int) -> Report:
    """Table of built-in files; descriptions go below it."""
    from dse.reporting import catalogue

    columns = [
        design_table.Column(
            catalogue.heading(fact),
            [catalogue.fact_text(fact, row.get(fact, "-")) for row in rows],
            leave_out=index,
            left=isinstance(rows[0][fact], str),
            title=tuple(catalogue.heading(fact).split()),
        )
        for index, fact in enumerate(fact for fact in rows[0] if fact not in catalogue.BELOW)
    ]
    report: Report = design_table.fitted_table(columns, width)
    for row in rows:
        if "description" in row:
            sought = f" Objectives: {', '.join(row['objectives'])}." if "objectives" in row else ""
            report += [Text(), Text(f"{row['name']}: {row['description']}.{sought}")]
    return report


def plan_report(
    study: BaseStudy,
    counts: str,
    notes: Sequence[str],
    commands: Sequence[str],
    width: int,
    more: Sequence[answers.Line] = (),
) -> Report:
    """The answer of a plan: the layout to use, a second one, the run, the next commands; then the front."""
    front, space = study.table.front().records(), study.space
    if not front:
        return [Text(f"Study {study.name}: no layout fits.")]
    answer = [
        ("", answers.question_text(space, front[0])),
        *answers.front_lines(space, front, ()),
        *more,
        *answers.next_lines(commands),
    ]
    return [
        *front_report(space, front, answer, width, more=f"dse show {study.name}"),
        Text(),
        *(Text(note) for note in notes),
        Text(f"{counts} Stored as study {study.name}."),
    ]


def bound_text(bound: StudyBound, space: Space) -> Text:
    """The largest possible distance of the best values of a study from the optimum, in words."""
    units = {objective.key: objective.unit for objective in space.objectives}
    numbers = {
        key: f"{v:,.4g}" if units[key] in ("-", "1/s") else readable(v, units[key]) for key, v in bound.limits.items()
    }
    columns_of_rows = [
        f"{name}: no design is better than {numbers[key]}, the best found "
        + (f"is within {rounded(gap, math.ceil)}" if 0 < gap < math.inf else "is above it" if gap else "reaches it")
        for key, (name, gap) in zip(numbers, bound.gaps.items(), strict=True)
    ]
    left = f"{bound.boxes_left:,} box{'es' * (bound.boxes_left != 1)} left" if bound.boxes_left else "nothing left"
    return Text(
        f"Study {bound.study}, after {counted(bound.trials, 'trial')}: bounds of all legal designs, "
        f"{bound.designs_priced:,} evaluated and {left}: {'; '.join(columns_of_rows)}. The study has "
        f"at least {rounded(bound.hypervolume_ratio, math.floor)} of the exact hypervolume. This is "
        "no certificate: the best possible value lies between."
        + (" The bounds are numerical: no evaluated design is better than them." if not bound.proved else "")
    )
