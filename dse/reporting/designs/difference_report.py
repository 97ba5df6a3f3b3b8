"""Why one design and not another, as a waterfall to read."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.explaining.difference import Difference, gathered
from dse.explaining.explanation import Explanation, Path, block_names, kernel_of, summed
from dse.output.text import design_text
from dse.reporting.answers import broken_limit_text, broken_limits, wrapped
from dse.reporting.design_table import ruled_table
from dse.reporting.designs.explanation_report import PASSES, SLIGHT, heading
from dse.reporting.designs.neighbours_report import change_text, changes_text, relative
from dse.reporting.study_report import Report

if TYPE_CHECKING:
    import pandas as pd

#: Branches of a part that are shown, and how deep those of exchanges and memory are named.
BRANCHES, DEPTH = 3, 4
#: Length of the longest bar. [characters]
HALF = 14


def difference_report(found: Difference, width: int, *, everything: bool = False) -> Report:
    """The changes of the other design, then the differences of time and memory part by part."""
    one, other = found.one, found.other
    alike = {*found.changes} <= {*one.space.by_name}
    changes = changes_text(one.space, found.changes) if alike else design_text(other.space, other.params)
    slower = other.step_time - one.step_time
    verdict = "as fast" if not slower else "slower" if slower > 0 else "faster"
    text = f"{changes or 'the same parameters'}. "
    text += f"It is {verdict}" + (f" by {readable(abs(slower), 's')}" if slower else "")
    text += f" ({relative(slower, one.step_time)})" if slower else ""
    more = other.peak_memory - one.peak_memory
    text += f", {readable(abs(more), 'B')} {'more' if more > 0 else 'less'} memory" if more else ""
    broken = [broken_limit_text(other.space, other.record, limit) for limit in broken_limits(other.space, other.record)]
    text += f". It does not fit: {', '.join(broken)}." if broken else "."
    return [
        *wrapped([*heading(one), (name_of(other).capitalize(), text)], width),
        Text(),
        waterfall(found, "step_time", everything=everything),
        Text(),
        waterfall(found, "peak_memory", everything=everything),
    ]


def name_of(explanation: Explanation) -> str:
    """A design as sentences call it."""
    return f"trial {explanation.trial}" if explanation.trial is not None else "the other design"


def waterfall(found: Difference, total: str, *, everything: bool) -> Table:
    """From the total of one design to that of the other, part by part; each row adds to the one above."""
    is_time = total == "step_time"
    tree, column, unit = (found.time, "seconds", "s") if is_time else (found.memory, "bytes", "B")
    start, end = (getattr(each, total) for each in (found.one, found.other))
    table = ruled_table()
    table.add_column("why the step differs" if is_time else "why the memory differs", no_wrap=True, min_width=34)
    for name in ("change", "leads to"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("saves" + " " * (HALF - 5) + "costs", no_wrap=True)
    table.add_row("this design", "", readable(start, unit), "", style="bold")
    parts, reached = gathered(tree, column, lambda _: 1), start
    longest = max(map(abs, parts.values()), default=1.0)
    for path, value in parts.items():
        reached += value
        cells = [change_text(value, unit), readable(reached, unit), signed_bar(value / longest)]
        table.add_row(path[0], *cells)
        for below, own in branches(found, tree, column, path, everything=everything):
            table.add_row(f"  {' > '.join(below)}", change_text(own, unit), "", "", style="dim")
    other = name_of(found.other)
    table.add_row(other, change_text(end - start, unit), readable(end, unit), "", style="bold")
    return table


def branches(
    found: Difference, tree: pd.DataFrame, column: str, path: Path, *, everything: bool
) -> list[tuple[Path, float]]:
    """Components of the difference of a part, the largest first; none if it has one. [of the tree]"""
    own = tree[tree["path"].str[0] == path[0]]
    if everything:
        return [(key[1:], value) for key, value in gathered(own, column, len).items() if len(key) > 1]
    blocks = {*block_names(found.one.space).values()}
    names = summed(
        (kernel_of(each, blocks) if path[0] in PASSES else each[1:DEPTH], value)
        for each, value in zip(own["path"], own[column], strict=True)
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
