"""An explanation as a report to read: kernels by pass, what else a step is, and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from rich.table import Table
from rich.text import Text

from costmodel.formats.quantity import readable
from costmodel.steps.result.breakdown import PARTS
from dse.explaining.explanation import Explanation, Path, block_names, kernel_of, label, quantities, summed
from dse.records.text import bar, design_text, percent
from dse.reporting.binding import memory_capacity
from dse.reporting.design_table import ruled_table
from dse.reporting.study_report import Report

#: Passes whose times are of kernels, as trees name them.
PASSES = ("forward", "backward", "recompute")
HEADINGS = {"recompute": "re-\ncompute"}
#: Share of a step below which kernels of a block stand in one row. [-]
SMALL = 0.01
#: Length of the longest bar. [characters]
BAR = 10
#: Children of a part that are named beside it, and the share of it below which they are not. [-]
SLIGHT = 0.02
NAMED = 3


@dataclass
class KernelRow:
    """A kernel, or several: its time in each pass, and what it does."""

    path: Path
    passes: dict[str, float] = field(default_factory=dict)  #: [s]
    work: dict[str, float] = field(default_factory=dict)  #: quantities of its items, summed
    count: int = 1

    @property
    def seconds(self) -> float:
        """In all passes. [s]"""
        return sum(self.passes.values())

    def add(self, other: KernelRow) -> None:
        """Add an item to the sum."""
        for mine, own in ((self.passes, other.passes), (self.work, other.work)):
            for name, value in own.items():
                mine[name] = mine.get(name, 0.0) + value


def explanation_report(explanation: Explanation, *, everything: bool = False) -> Report:
    """What a design is, its kernels, what else its step is, and its memory."""
    report: Report = [*heading(explanation), Text()]
    if len(explanation.kernels):
        report += [kernel_lines(explanation, everything=everything), Text()]
    report += [other_lines(explanation, everything=everything), Text()]
    return [*report, memory_lines(explanation, everything=everything)]


def heading(explanation: Explanation) -> list[Text]:
    """The design, in two lines."""
    of = "Design" if explanation.trial is None else f"Trial {explanation.trial}"
    breakdown, stages = explanation.record["breakdown"], explanation.stages
    lines = [Text(f"{of} of {explanation.space.name}: {design_text(explanation.space, explanation.params)}")]
    text = f"A step takes {readable(explanation.step_time, 's')}, mfu {percent(breakdown['mfu'])}"
    if stages and explanation.record["params"].get("pp", 2) != 1:
        text += (
            f"; times are those of the slowest pipeline stage, {stages['slowest stage']} (from 0), "
            f"memory that of the fullest, {stages['fullest stage']}"
        )
    return [*lines, Text(f"{text}.")]


def kernel_rows(explanation: Explanation) -> list[KernelRow]:
    """Every kernel of the slowest stage, and what parts of the model wait for launches."""
    blocks = {*block_names(explanation.space).values()}
    rows: dict[Path, KernelRow] = {}
    for portion in explanation.portions:
        of_pass, *rest = portion.path
        if of_pass in PASSES and rest:
            path = kernel_of(portion.path, blocks)
            row = rows.setdefault(path, KernelRow(path))
            row.work[portion.quantity] = row.work.get(portion.quantity, 0.0) + portion.value
            if portion.quantity == "time":
                row.passes[of_pass] = row.passes.get(of_pass, 0.0) + portion.value
    return [row for row in rows.values() if row.seconds > 0]


def kernel_lines(explanation: Explanation, *, everything: bool) -> Table:
    """Kernels by block: time in each pass, what bounds them, and where they are beneath the roofline."""
    rows = kernel_rows(explanation)
    passes = [name for name in PASSES if any(row.passes.get(name) for row in rows)]
    unit, scale, digits = shown_unit(explanation.step_time)
    table = ruled_table()
    table.add_column(f"kernels, in {unit}", no_wrap=True, vertical="bottom")
    for name in (*passes, "in all", "of\nstep"):
        table.add_column(HEADINGS.get(name, name), justify="right", no_wrap=True, vertical="bottom")
    table.add_column("bound by", no_wrap=True, vertical="bottom")
    for name in ("FLOP/B", "TFLOP/s", "of\nroof"):
        table.add_column(name, justify="right", no_wrap=True, vertical="bottom")
    for indent, name, row in listed(rows, explanation.step_time, everything=everything):
        cells = [f"{row.passes[p] / scale:.{digits}f}" if row.passes.get(p) else "" for p in passes]
        cells.append(f"{row.seconds / scale:.{digits}f}")
        share = percent(row.seconds / explanation.step_time)
        roof = roofline_cells(explanation, row) if len(row.path) > 1 else []
        table.add_row("  " * indent + name, *cells, share, *roof)
    return table


def shown_unit(step_time: float) -> tuple[str, float, int]:
    """Unit in which times of a step stand below each other, its size, and decimals. [s]"""
    if step_time >= 1.0:
        return "s", 1.0, 3 if step_time < 100 else 1
    return "ms", 1e-3, 2 if step_time < 0.1 else 1


def listed(
    rows: Sequence[KernelRow], step_time: float, *, everything: bool
) -> Iterable[tuple[int, str, KernelRow]]:
    """Indentation, name and row: each part and block with what is in it, the small ones in one row."""
    parts = summed((row.path[:1], row.seconds) for row in rows)
    for part, seconds in parts.items():
        own = [row for row in rows if row.path[:1] == part]
        if len(own) == 1 and not everything:
            if seconds >= SMALL**2 * step_time:
                yield 0, part[0], own[0]
            continue
        yield 0, part[0], total(part, own)
        for block in dict.fromkeys(row.path[1:-1] for row in own):
            inside = [row for row in own if row.path[1:-1] == block]
            if block:
                yield 1, block[0], total(part, inside)
            small = [row for row in inside if row.seconds < SMALL * step_time and not everything]
            small = small if len(small) > 1 else []
            for row in inside:
                if row not in small:
                    yield 2 if block else 1, row.path[-1], row
            if small:
                rest = total((*part, "others"), small)
                others = "others" if len(small) < len(inside) else "kernels"
                yield 2 if block else 1, f"{len(small)} {others}", rest


def total(path: Path, rows: Iterable[KernelRow]) -> KernelRow:
    """Several kernels as one row."""
    found = KernelRow(path)
    for row in rows:
        found.add(row)
    return found


def roofline_cells(explanation: Explanation, row: KernelRow) -> list[str]:
    """What bounds a kernel, its intensity, what it attains, and the share of its ceiling that this is."""
    if not row.work.get("launches"):
        return []
    found = quantities(row.work, explanation.system)
    intensity, attained, ceiling = (float(found[name]) for name in ("intensity", "attained", "ceiling"))
    if not ceiling:
        return [str(found["bound"])]
    return [
        str(found["bound"]),
        f"{intensity:,.0f}" if intensity >= 9.95 else f"{intensity:.1f}",
        f"{attained / 1e12:,.0f}" if attained >= 9.95e12 else f"{attained / 1e12:.2f}",
        percent(attained / ceiling),
    ]


def other_lines(explanation: Explanation, *, everything: bool) -> Table:
    """What a step is beside its kernels: exchanges, the bubble, the optimizer, the host."""
    tree, hidden = explanation.time, explanation.hidden
    table = ruled_table()
    with_kernels = len(explanation.kernels) > 0
    title = "beside kernels" if with_kernels else "parts of a step"
    table.add_column(title, overflow="fold", min_width=20)
    for name in ("time", "of step"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=BAR)
    if len(hidden):
        table.add_column("hidden", justify="right", no_wrap=True)
    if not everything and any(len(path) > 1 and path[0] not in PASSES for path in tree["path"]):
        table.add_column("of which", overflow="fold")
    behind = summed((path[:1], value) for path, value in zip(*columns(hidden), strict=True))
    parts = [label(part) for part in PARTS["step_time"]]
    shown = [part for part in parts if not (with_kernels and part in PASSES)]
    times = summed((path[:1], value) for path, value in zip(*columns(tree), strict=True))
    longest = max([times.get((part,), 0.0) for part in shown], default=0.0)
    if with_kernels:
        value = sum(times.get((part,), 0.0) for part in PASSES)
        table.add_row("kernels", readable(value, "s"), percent(value / explanation.step_time))
    for part in shown:
        value, away = times.get((part,), 0.0), behind.get((part,), 0.0)
        if not value and not away:
            continue
        own = {path: v for path, v in zip(*columns(tree), strict=True) if path[0] == part}
        drawn = bar(value / longest, BAR) if value else ""
        unseen = [readable(away, "s") if away else ""] if len(hidden) else []
        cells = [readable(value, "s") if value else "0", percent(value / explanation.step_time), drawn]
        below = {path: value for path, value in own.items() if len(path) > 1}
        if everything:
            table.add_row(part, *cells, *unseen)
            for path, value in sorted(below.items(), key=lambda item: -item[1]):
                share = percent(value / explanation.step_time)
                table.add_row(f"  {' > '.join(path[1:])}", readable(value, "s"), share)
        else:
            table.add_row(part, *cells, *unseen, *([children(own, "s", everything=False)] if below else []))
    cells = [readable(explanation.step_time, "s"), "100 %", ""]
    table.add_row("step", *cells, style="bold")
    return table


def memory_lines(explanation: Explanation, *, everything: bool) -> Table:
    """Peak memory by part, with the room that is left."""
    tree, peak = explanation.memory, explanation.peak_memory
    capacity = memory_capacity(explanation.space, explanation.record)
    table = ruled_table()
    table.add_column("memory", no_wrap=True, min_width=20)
    for name in ("bytes", "of chip"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=BAR)
    table.add_column("of which", overflow="fold")
    parts = summed((path[:1], value) for path, value in zip(*columns(tree), strict=True))
    for (part,), value in parts.items():
        own = {path: v for path, v in zip(*columns(tree), strict=True) if path[0] == part}
        drawn = bar(value / max(parts.values()), BAR)
        below = children(own, "B", everything=everything)
        table.add_row(part, readable(value, "B"), percent(value / capacity), drawn, below)
    left = f"{readable(abs(capacity - peak), 'B')} {'free' if capacity >= peak else 'too much'}"
    of = f"of {readable(capacity, 'B')}: {left}"
    table.add_row("peak", readable(peak, "B"), percent(peak / capacity), "", of, style="bold")
    return table


def children(leaves: Mapping[Path, float], unit: str, *, everything: bool) -> str:
    """What a part is made of, the largest first, each named by what tells it from the others."""
    depth = 2
    below = {path: value for path, value in leaves.items() if len(path) > 1}
    if everything:
        named = {" > ".join(path[1:]): value for path, value in below.items()}
    else:
        if below and len({path[1:2] for path in below}) == 1 and len(next(iter(below))) > 2:
            depth = 3
        named = {}
        for path, value in below.items():
            name = next((word for word in path[1:] if "_" in word and " to " not in word), path[1:depth][-1])
            named[name.replace("_", "-")] = named.get(name.replace("_", "-"), 0.0) + value
    order = sorted(named.items(), key=lambda item: -abs(item[1]))
    whole = sum(map(abs, named.values()))
    few = order if everything else [each for each in order[:NAMED] if abs(each[1]) >= SLIGHT * whole]
    texts = [f"{name} {readable(value, unit)}" for name, value in few]
    if len(order) > len(few):
        rest = sum(value for _, value in order[len(few) :])
        texts.append(f"others {readable(rest, unit)}")
    return (", " if not everything else "\n").join(texts)


def columns(tree: object) -> tuple[list[Path], list[float]]:
    """Paths and values of a tree. [its unit]"""
    paths, values = (tree.iloc[:, at].tolist() for at in (0, 1))  # type: ignore[attr-defined]
    return paths, values
