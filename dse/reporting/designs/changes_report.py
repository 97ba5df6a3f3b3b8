"""Changes of a design as text: its bottleneck, neighbours, the waterfall to another design, and sensitivities.

Each table has a row for a change and its effect on the step. Sensitivities are a tornado of text bars.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.explaining.explanation import Difference, Explanation, Path, block_names, gathered, kernel_of, summed
from dse.explaining.neighbours import Binding, Neighbour, Sensitivity
from dse.output import ROWS_SHOWN, Report, bar, counted, design_text, parameter_text, percent
from dse.reporting import answers
from dse.reporting.binding import bottleneck_text, sentence
from dse.reporting.design_table import Column, columns_of, drawn, fitted, fitted_table
from dse.reporting.designs.explanation_report import PASSES, SLIGHT, explanation_report, heading
from dse.spaces.space import Space

if TYPE_CHECKING:
    import pandas as pd

    from dse.explaining.importance import Importance

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
    lines = [("", answers.question_text(space, record)), (name, answers.numbers_text(space, record))]
    lines.append(("Bottleneck", f"{bottleneck_text(record)}."))
    lines.append(("Faster", faster_text(explanation, near, bound)))
    if bound.levers:
        lines.append((levers_label(bound), levers_text(explanation, bound)))
    lines.append(("Layout", answers.layout_text(space, record)))
    report: Report = [*answers.wrapped([*lines, *answers.next_lines(commands)], width), Text()]
    report += [*explanation_report(explanation, width, everything=everything), Text()]
    report.append(Text(sentence(explanation.space, explanation.record)))
    shown = near if everything else near[:NEIGHBOURS_SHOWN]
    if shown:
        title = f"one step away, best {explanation.space.objectives[0].name} first"
        report += [Text(), *fitted_table(neighbour_columns(explanation, shown, title, bound), width)]
    hidden = len(near) - len(shown)
    return [*report, Text(f"{counted(hidden, 'more neighbour')}: --all shows them")] if hidden else report


def faster_text(explanation: Explanation, near: Sequence[Neighbour], bound: Binding) -> str:
    """The fastest design one step away that fits, else the fastest that does not."""
    space = explanation.space
    fitting = [neighbour for neighbour in near if neighbour.feasible and neighbour.step_time_change < 0]
    if fitting:
        best = min(fitting, key=lambda neighbour: neighbour.step_time)
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


def levers_label(bound: Binding) -> str:
    """The label of levers, by the resource that they free: memory, or room below a limit."""
    return "To free memory" if bound.limit is None or bound.limit.unit == "B" else f"Limit {bound.limit.name}"


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
        Column(title, [changes_text(space, row.changes) for row in rows], left=True),
        Column("step time", [readable(row.step_time, "s") for row in rows], 4),
        Column("change", [relative(row.step_time_change, time) for row in rows]),
    ]
    if not others:
        columns.append(Column("memory", [readable(row.peak_memory, "B") for row in rows], 3))
    columns.append(Column("memory\nchange", memory, 1))
    for objective in others:
        value = float(explanation.record["values"][objective.key])
        changes = [relative(row.values[objective.key] - value, abs(value)) for row in rows]
        columns.append(Column(objective.name, changes, 3))
    if bound.limit:
        cells = [verdict(space, row, bound.limit.key) for row in rows]
        columns.append(Column("limits", cells, 2, left=True))
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


#: Branches of a part that are shown, and how deep those of exchanges and memory are named.
BRANCHES, DEPTH = 3, 4
#: Length of the longest bar. [characters]
HALF = 14


def difference_report(difference: Difference, width: int, *, everything: bool = False) -> Report:
    """The changes of the other design, then the differences of time and memory part by part."""
    one, other = difference.one, difference.other
    alike = {*difference.changes} <= {*one.space.by_name}
    changes = changes_text(one.space, difference.changes) if alike else design_text(other.space, other.params)
    slower = other.step_time - one.step_time
    verdict = "as fast" if not slower else "slower" if slower > 0 else "faster"
    text = f"{changes or 'the same parameters'}. "
    text += f"It is {verdict}" + (f" by {readable(abs(slower), 's')}" if slower else "")
    text += f" ({relative(slower, one.step_time)})" if slower else ""
    more = other.peak_memory - one.peak_memory
    text += f", {readable(abs(more), 'B')} {'more' if more > 0 else 'less'} memory" if more else ""
    broken = answers.broken_limits(other.space, other.record)
    text += f". It does not fit: {', '.join(broken.values())}." if broken else "."
    return [
        *answers.wrapped([*heading(one), (name_of(other).capitalize(), text)], width),
        Text(),
        *waterfall(difference, "step_time", width, everything=everything),
        Text(),
        *waterfall(difference, "peak_memory", width, everything=everything),
    ]


def name_of(explanation: Explanation) -> str:
    """A design as sentences call it."""
    return f"trial {explanation.trial}" if explanation.trial is not None else "the other design"


def waterfall(difference: Difference, total: str, width: int, *, everything: bool) -> Report:
    """From the total of one design to that of the other, part by part; each row adds to the one above."""
    is_time = total == "step_time"
    tree, column, unit = (difference.time, "seconds", "s") if is_time else (difference.memory, "bytes", "B")
    start, end = (getattr(explained, total) for explained in (difference.one, difference.other))
    parts, reached = gathered(tree, column, lambda _: 1), start
    longest = max(map(abs, parts.values()), default=1.0)
    rows = [("this design", "", readable(start, unit), "")]
    for path, value in parts.items():
        reached += value
        rows.append((path[0], change_text(value, unit), readable(reached, unit), signed_bar(value / longest)))
        for below, amount in branches(difference, tree, column, path, everything=everything):
            rows.append((f"  {' > '.join(below)}", change_text(amount, unit), "", ""))
    rows.append((name_of(difference.other), change_text(end - start, unit), readable(end, unit), ""))
    title, bars = f"why the {'step' if is_time else 'memory'} differs", f"{'saves':{HALF}}costs"
    columns = columns_of((title, "change", "leads to", bars), rows, left=(0, 3), leave_out={bars: 1})
    return drawn(fitted(columns, width)[0])


def branches(
    difference: Difference, tree: pd.DataFrame, column: str, path: Path, *, everything: bool
) -> list[tuple[Path, float]]:
    """Components of the difference of a part, the largest first; none if it has one. [of the tree]"""
    rows_of_path = tree[tree["path"].str[0] == path[0]]
    if everything:
        return [(key[1:], value) for key, value in gathered(rows_of_path, column, len).items() if len(key) > 1]
    blocks = {*block_names(difference.one.space).values()}
    names = summed(
        (kernel_of(below, blocks) if path[0] in PASSES else below[1:DEPTH], value)
        for below, value in zip(rows_of_path["path"], rows_of_path[column], strict=True)
    )
    most = BRANCHES if len(names) > 1 else 0
    whole = sum(map(abs, names.values()))
    order = sorted(names.items(), key=lambda item: -abs(item[1]))[:most]
    return [(name, value) for name, value in order if name and abs(value) >= SLIGHT * whole]


def signed_bar(share: float) -> str:
    """A bar to the left of the middle where less, to the right where more.

    >>> signed_bar(-0.5).rstrip(), signed_bar(1.0).strip()
    ('       ███████│', '│██████████████')
    """
    length = round(abs(share) * HALF)
    left = "█" * length if share < 0 else ""
    right = "█" * length if share > 0 else ""
    return f"{left:>{HALF}}│{right:<{HALF}}"


#: Length of the longest bar. [characters]
BAR = 8


def importance_report(name: str, importance: Importance, width: int) -> Report:
    """Importance of each parameter for each objective: among the best trials, and over all designs."""
    from dse.explaining.importance import DRAWN  # loads Optuna

    order = np.argsort(-(importance.trials[0] + importance.designs[0]), kind="stable").tolist()
    columns = [Column("parameter", [importance.parameters[at] for at in order], left=True)]
    for row, objective in enumerate(importance.space.objectives):
        for what, shares in (("trials", importance.trials[row]), ("space", importance.designs[row])):
            bars = [bar(share, BAR) if share >= 0.005 else "" for share in shares[order]]
            cells = [percent(share) for share in shares[order]]
            columns += [Column(f"{objective.name}\n{what}", cells, row), Column("", bars, 100 + row, left=True)]
    return [
        Text(f"Study {name}: importance of parameters, over {importance.n_trials:,} feasible trials."),
        Text(),
        *fitted_table(columns, width),
        Text(),
        Text("trials: how the best tenth of the trials differs from all trials (PED-ANOVA); sum 100 %."),
        Text(f"space: share of the variance that a parameter explains alone, over {DRAWN:,} random legal"),
        Text("designs. Parameters of legal designs depend on each other: shares overlap and do not add up."),
    ]


@dataclass(frozen=True, slots=True)
class TornadoRow:
    """A bar of a tornado chart, and its name."""

    name: str
    share: float  #: change of the step time, or an elasticity [-]
    text: str
    faint: bool = False  #: of a design that breaks a limit


def sensitivity_report(sensitivity: Sensitivity, width: int, *, everything: bool = False) -> Report:
    """Tornados: steps of parameters, steps of counts, and elasticities of the hardware."""
    report: Report = [*answers.wrapped(heading(sensitivity.explanation), width), Text()]
    parts = {
        "one step of a parameter": parameter_rows(sensitivity),
        "more parts of a chip": count_rows(sensitivity),
        "1 % more of a quantity": quantity_rows(sensitivity),
    }
    for title, rows in parts.items():
        shown = rows if everything else rows[:ROWS_SHOWN]
        if not shown:
            continue
        longest = max(abs(row.share) for row in rows) or 1.0
        limits = ("limits",) if any(row.faint for row in shown) else ()
        cells = [
            (row.name, row.text, signed_bar(row.share / longest), *("does not fit" * row.faint for _ in limits))
            for row in shown
        ]
        report += drawn(columns_of((title, "step time", "faster       slower", *limits), cells, left=(0, 2, 3)))
        if len(rows) > len(shown):
            report.append(Text(f"{len(rows) - len(shown)} more: --all shows them"))
        report.append(Text())
    return [*report, Text(f"{sensitivity.without} other quantities do not change the step time.")]


def parameter_rows(sensitivity: Sensitivity) -> list[TornadoRow]:
    """A bar for each step of a parameter."""
    space, rows = sensitivity.explanation.space, []
    for neighbour in sensitivity.parameters:
        [(name, (old, new))] = neighbour.changes.items()
        before, after = (parameter_text(space.by_name[name], value) for value in (old, new))
        share = sensitivity.change(neighbour)
        text = relative(share, 1.0)
        rows.append(TornadoRow(f"{name} {before} to {after}", share, text, not neighbour.feasible))
    return rows


def count_rows(sensitivity: Sensitivity) -> list[TornadoRow]:
    """A bar for the next larger number of each part of a chip."""
    return [
        TornadoRow(
            f"{e.quantity} {readable(e.value, e.unit)} to {readable(e.larger, e.unit)}",
            e.change,
            relative(e.change, 1.0),
        )
        for e in sensitivity.counts
    ]


def quantity_rows(sensitivity: Sensitivity) -> list[TornadoRow]:
    """A bar for each quantity."""
    return [
        TornadoRow(f"{e.quantity} of {readable(e.value, e.unit)}", e.elasticity, f"{e.elasticity:+.3f} %")
        for e in sensitivity.elasticities
    ]
