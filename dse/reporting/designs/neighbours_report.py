"""The bottleneck of a design, changes that free memory or time, and its neighbours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.text import Text

from costmodel.formats.quantity import readable
from dse.explaining.explanation import Explanation
from dse.explaining.neighbours import Binding, Neighbour
from dse.output.text import counted, parameter_text
from dse.reporting.answers import layout_text, next_lines, numbers_text, question_text, wrapped
from dse.reporting.binding import bottleneck_text, sentence
from dse.reporting.design_table import Column, drawn, fitted, lines_of
from dse.reporting.designs.explanation_report import explanation_report
from dse.reporting.study_report import Report
from dse.spaces.space import Space

#: Rows of each table, unless all are asked for.
LEVERS_SHOWN, NEIGHBOURS_SHOWN = 3, 6


def explained_report(
    explanation: Explanation,
    near: Sequence[Neighbour],
    bound: Binding,
    width: int,
    *,
    everything: bool = False,
    commands: Sequence[str] = (),
) -> Report:
    """The numbers, the bottleneck and the first changes to try; then the layout, kernels, parts, memory, neighbours."""
    space, record = explanation.space, explanation.record
    name = "Step" if explanation.trial is None else f"Trial {explanation.trial}"
    lines = [("", question_text(space, record)), (name, numbers_text(space, record))]
    lines.append(("Bottleneck", f"{bottleneck_text(record)}."))
    lines.append(("Faster", faster_text(explanation, near, bound)))
    if bound.levers:
        lines.append((f"To free {freed_name(bound)}", levers_text(explanation, bound)))
    lines.append(("Layout", layout_text(space, record)))
    report: Report = [*wrapped([*lines, *next_lines(commands)], width), Text()]
    report += [*explanation_report(explanation, width, everything=everything), Text()]
    report.append(Text(sentence(explanation.space, explanation.record)))
    shown = near if everything else near[:NEIGHBOURS_SHOWN]
    if shown:
        title = f"one step away, best {explanation.space.objectives[0].name} first"
        report += [Text(), *drawn(fitted(neighbour_columns(explanation, shown, title, bound), width)[0])]
    hidden = len(near) - len(shown)
    return [*report, Text(f"{counted(hidden, 'more neighbour')}: --all shows them")] if hidden else report


def faster_text(explanation: Explanation, near: Sequence[Neighbour], bound: Binding) -> str:
    """The fastest design one step away that fits, else the fastest that does not."""
    space = explanation.space
    fitting = [each for each in near if each.feasible and each.step_time_change < 0]
    if fitting:
        best = min(fitting, key=lambda each: each.step_time)
        change = relative(best.step_time_change, explanation.step_time)
        return f"{changes_text(space, best.changes)}: {change} time."
    if bound.limit is None or not bound.faster:
        return "no design one step away is faster."
    best = bound.faster[0]
    change = relative(best.step_time_change, explanation.step_time)
    return (
        f"no design one step away that fits; {changes_text(space, best.changes)} ({change} time): "
        f"{verdict(space, best, bound.limit.key)}."
    )


def freed_name(bound: Binding) -> str:
    """The resource that levers free: memory, or the limit by its name."""
    return "memory" if bound.limit is None or bound.limit.unit == "B" else f"{bound.limit.name}"


def levers_text(explanation: Explanation, bound: Binding) -> str:
    """Changes that make room below the limit, the cheapest first, with the time that they cost."""
    space, limit = explanation.space, bound.limit
    texts = []
    for lever in bound.levers[:LEVERS_SHOWN]:
        freed = -lever.peak_memory_change if limit is None else lever.margins[limit.key] - bound.margin
        room = readable(freed, "B" if limit is None else limit.unit)
        cost = relative(lever.step_time_change, explanation.step_time)
        texts.append(f"{changes_text(space, lever.changes)} saves {room}, {'no' if cost == '=' else cost} time")
    return f"{'; '.join(texts)}."


def neighbour_columns(explanation: Explanation, rows: Sequence[Neighbour], title: str, bound: Binding) -> list[Column]:
    """Columns of a table of neighbours: changes, and the change of step time, memory and objectives."""
    space, time = explanation.space, explanation.step_time
    others = [o for o in space.objectives if o.name not in ("step_time", "peak_memory")]
    memory = [change_text(row.peak_memory_change, "B") for row in rows]
    columns = [
        Column("design", (title,), [changes_text(space, row.changes) for row in rows], left=True),
        Column("step time", ("step time",), [readable(row.step_time, "s") for row in rows], 4),
        Column("change", ("change",), [relative(row.step_time_change, time) for row in rows]),
    ]
    if not others:
        columns.append(Column("memory", ("memory",), [readable(row.peak_memory, "B") for row in rows], 3))
    columns.append(Column("memory change", ("memory", "change"), memory, 1))
    for objective in others:
        own = float(explanation.record["values"][objective.key])
        changes = [relative(row.values[objective.key] - own, abs(own)) for row in rows]
        columns.append(Column(objective.name, lines_of(objective.name), changes, 3))
    if bound.limit:
        cells = [verdict(space, row, bound.limit.key) for row in rows]
        columns.append(Column("limits", ("limits",), cells, 2, left=True))
    return columns


def verdict(space: Space, row: Neighbour, key: str) -> str:
    """The verdict on a neighbour: it fits, the excess, or the limits that it breaks."""
    broken = [limit for limit in space.limits if row.margins[limit.key] < 0]
    if not broken:
        return "fits"
    first = next((limit for limit in broken if limit.key == key), broken[0])
    if len(space.limits) == 1:
        return f"{readable(-row.margins[first.key], first.unit)} too much"
    more = f" +{len(broken) - 1}" if len(broken) > 1 else ""
    return f"breaks {first.name}{more}"


def changes_text(space: Space, changes: Mapping[str, tuple[Any, Any]]) -> str:
    """The changes of a neighbour in a line: ``tp 8 to 4, pp 8 to 16``."""
    texts = []
    for name, pair in changes.items():
        old, new = ("-" if value is None else parameter_text(space.by_name[name], value) for value in pair)
        texts.append(f"{name} {old} to {new}")
    return ", ".join(texts)


def relative(change: float, whole: float) -> str:
    """A change as a share, with its sign.

    >>> relative(0.31, 10.0), relative(0.0, 10.0), relative(-25.0, 10.0)
    ('+3.1 %', '=', '-250 %')
    """
    if not change:
        return "="
    share = 100 * change / whole
    if abs(share) >= 9.95:
        return f"{share:+.0f} %"
    return f"{share:+.1f} %" if abs(share) >= 0.05 else f"{share:+.2g} %"


def change_text(change: float, unit: str) -> str:
    """A change in its unit, with its sign.

    >>> change_text(-1.5e9, "B"), change_text(0.0, "B")
    ('-1.5 GB', '=')
    """
    return f"{'+' if change > 0 else '-'}{readable(abs(change), unit)}" if change else "="
