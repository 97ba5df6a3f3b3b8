"""What binds a design, what would relax it, and what one step in each direction would change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.explaining.explanation import Explanation
from dse.explaining.neighbours import Binding, Neighbour
from dse.records.text import counted, parameter_text
from dse.reporting.binding import sentence
from dse.reporting.design_table import lines_of, ruled_table
from dse.reporting.study_report import Report
from dse.spaces.space import Space

#: Rows of each table, unless all are asked for.
LEVERS_SHOWN, NEIGHBOURS_SHOWN = 5, 12


def neighbours_report(
    explanation: Explanation, beside: Sequence[Neighbour], bound: Binding, *, everything: bool = False
) -> Report:
    """The sentence that says what binds, levers, and neighbours."""
    lines: Report = [
        Text(sentence(explanation.space, explanation.record)),
        Text(binding_text(explanation.space, bound)),
    ]
    shown = beside if everything else beside[:NEIGHBOURS_SHOWN]
    if bound.levers:
        lines.append(Text(levers_text(explanation, bound)))
    if shown:
        title = f"one step away, best {explanation.space.objectives[0].name} first"
        lines += [Text(), neighbour_table(explanation, shown, title, bound)]
    hidden = len(beside) - len(shown)
    if hidden:
        lines.append(Text(f"{counted(hidden, 'more neighbour')}: --all shows them"))
    return lines


def binding_text(space: Space, bound: Binding) -> str:
    """Whether a limit keeps faster designs out, or how much room is left."""
    if bound.limit is None:
        return "The space has no limits."
    name, unit = bound.limit.name, bound.limit.unit
    if bound.margin < 0:
        return f"It breaks {name} by {readable(-bound.margin, unit)}."
    if not bound.faster:
        room = readable(bound.margin, unit)
        return f"No limit binds: no neighbour that is faster breaks {name}, which has {room} to spare."
    best = bound.faster[0]
    gain = readable(-best.step_time_change, "s")
    worst = readable(-best.margins[bound.limit.key], unit)
    return (
        f"{name} binds: {counted(len(bound.faster), 'neighbour')} would be faster but "
        f"break{'s' if len(bound.faster) == 1 else ''} it, such as {changes_text(space, best.changes)}, "
        f"faster by {gain}, over by {worst}."
    )


def levers_text(explanation: Explanation, bound: Binding) -> str:
    """Changes that make room beneath the limit, the cheapest first, with what they cost."""
    space, limit = explanation.space, bound.limit
    texts = []
    for lever in bound.levers[:LEVERS_SHOWN]:
        freed = -lever.peak_memory_change if limit is None else lever.margins[limit.key] - bound.margin
        room = readable(freed, "B" if limit is None else limit.unit)
        cost = relative(lever.step_time_change, explanation.step_time)
        texts.append(
            f"{changes_text(space, lever.changes)} ({room} more for {'no' if cost == '=' else cost} time)"
        )
    return f"Levers on {limit.name if limit else 'memory'}, the cheapest first: {'; '.join(texts)}."


def neighbour_table(explanation: Explanation, rows: Sequence[Neighbour], title: str, bound: Binding) -> Table:
    """A row for each neighbour: what it changes, and by how much step, memory and objectives move."""
    space, table = explanation.space, ruled_table()
    table.add_column(title, overflow="fold", min_width=30, vertical="bottom")
    others = [o for o in space.objectives if o.name not in ("step_time", "peak_memory")]
    limit = bound.limit
    names = ["step time", "change", "memory", *([] if others else ["change"])]
    for name in (*names, *("\n".join(lines_of(o.name)) for o in others)):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    if space.limits:
        title = "limits" if len(space.limits) == 1 else "breaks"
        table.add_column(title, no_wrap=True, vertical="bottom")
    for row in rows:
        cells = [readable(row.step_time, "s"), relative(row.step_time_change, explanation.step_time)]
        if not others:
            cells.append(readable(row.peak_memory, "B"))
        cells.append(change_text(row.peak_memory_change, "B"))
        for objective in others:
            own = float(explanation.record["values"][objective.key])
            cells.append(relative(row.values[objective.key] - own, abs(own)))
        if limit:
            cells.append(verdict(space, row, limit.key))
        table.add_row(changes_text(space, row.changes), *cells)
    return table


def verdict(space: Space, row: Neighbour, key: str) -> str:
    """Which limits a neighbour breaks; of a single one by how much."""
    broken = [limit for limit in space.limits if row.margins[limit.key] < 0]
    if not broken:
        return "kept" if len(space.limits) == 1 else ""
    first = next((limit for limit in broken if limit.key == key), broken[0])
    if len(space.limits) == 1:
        return f"over by {readable(-row.margins[first.key], first.unit)}"
    more = f" +{len(broken) - 1}" if len(broken) > 1 else ""
    return f"{first.name}{more}"


def changes_text(space: Space, changes: Mapping[str, tuple[Any, Any]]) -> str:
    """What a neighbour changes, in a line: ``tp 8 to 4, pp 8 to 16``."""
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
