"""Tables of an explanation: kernels by pass, the other parts of a step, and memory.

Rows follow the model: blocks of a layer, their kernels, then the parts of the step outside of kernels. Each kernel
shows its bottleneck and the share of the roofline that it reaches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from costmodel.columns import grouped
from costmodel.formats.quantity import readable, readable_count
from costmodel.rules.rules import TRAINING
from costmodel.steps.breakdown import PARTS
from dse.explaining.explanation import Explanation, Path, block_names, kernel_of, quantities, summed
from dse.output import ROWS_SHOWN, Report, bar, part_name, percent
from dse.reporting.answers import Line, layout_text, numbers_text, question_text
from dse.reporting.binding import memory_capacity
from dse.reporting.design_table import Column, fitted_table, ruled_table

if TYPE_CHECKING:
    import pandas as pd

#: Passes whose times are of kernels, as trees name them.
PASSES = ("forward", "backward", "recompute")
HEADINGS = {"recompute": ("re-", "compute")}
#: Shares of a step below which kernels of a block share one row; the first that leaves few rows. [-]
SMALL = (0.01, 0.02, 0.03, 0.04, 0.06, 0.08, 0.1, 0.2, 0.5, 1.0)
#: Length of the longest bar. [characters]
BAR = 10
#: Matrix products and parameter groups that a report shows, unless all are asked for.
WORK_SHOWN = 3
#: Width from which rows name the components of a part. [characters]
WIDE = 76
#: Components that a row names at most, and the share of the part below which it does not. [-]
SLIGHT = 0.02
NAMED = 3


@dataclass(frozen=True)
class KernelRow:
    """A kernel, or several: its time in each pass, and its work."""

    path: Path
    passes: Mapping[str, float]  #: [s]
    work: Mapping[str, float]  #: quantities of its items, summed

    @property
    def seconds(self) -> float:
        """In all passes. [s]"""
        return sum(self.passes.values())


def explanation_report(explanation: Explanation, width: int, *, everything: bool = False) -> Report:
    """Kernels of a design, the other parts of its step, and its memory."""
    report: Report = [Text(text) for text in stage_texts(explanation)]
    if len(explanation.kernels):
        report += [*fitted_table(kernel_columns(explanation, everything=everything), width), Text()]
    report += [other_lines(explanation, width, everything=everything), Text()]
    report += [memory_lines(explanation, width, everything=everything), Text()]
    return [*report, *gemm_lines(explanation, width, everything=everything),
            *optimizer_lines(explanation, width, everything=everything)]  # fmt: skip


def heading(explanation: Explanation) -> list[Line]:
    """The question and the design with its numbers."""
    of = "Design" if explanation.trial is None else f"Trial {explanation.trial}"
    space, record = explanation.space, explanation.record
    design = f"{layout_text(space, record)}: {numbers_text(space, record)}"
    return [("", question_text(space, record)), (of, design)]


def stage_texts(explanation: Explanation) -> list[str]:
    """The pipeline stages that the tables show; none without a pipeline."""
    stages = explanation.stages
    if not stages or explanation.record["params"].get("pp", 2) == 1:
        return []
    slow, full = stages["slowest stage"], stages["fullest stage"]
    return [f"Times of the slowest pipeline stage ({slow}, counted from 0); memory of the fullest ({full})."]


def kernel_rows(explanation: Explanation) -> list[KernelRow]:
    """Every kernel of the slowest stage, and the launches that parts of the model wait for."""
    blocks = {*block_names(explanation.space).values()}
    of_passes = (portion for portion in explanation.portions if portion.path[0] in PASSES and portion.path[1:])
    rows = []
    for path, portions in grouped((kernel_of(portion.path, blocks), portion) for portion in of_passes).items():
        passes = summed((portion.path[0], portion.value) for portion in portions if portion.quantity == "time")
        rows.append(KernelRow(path, passes, summed((portion.quantity, portion.value) for portion in portions)))
    return [row for row in rows if row.seconds > 0]


def kernel_columns(explanation: Explanation, *, everything: bool = False) -> list[Column]:
    """Columns of a table of kernels by block: time in each pass, bottleneck, and share of the roofline."""
    kernels = kernel_rows(explanation)
    passes = [name for name in PASSES if any(row.passes.get(name) for row in kernels)]
    unit, scale, digits = shown_unit(explanation.step_time)
    rows = shown_rows(kernels, explanation.step_time, everything=everything)

    def seconds(value: float) -> str:
        return f"{value / scale:.{digits}f}" if value else ""

    names = ["  " * indent + name for indent, name, _ in rows]
    shares = [percent(row.seconds / explanation.step_time) for _, _, row in rows]
    roofs = [roofline_cells(explanation, row) if len(row.path) > 1 else [""] * 4 for _, _, row in rows]
    return [
        Column(f"kernels, in {unit}", names, left=True),
        *(
            Column(p, [seconds(row.passes.get(p, 0.0)) for *_, row in rows], 5, title=HEADINGS.get(p, (p,)))
            for p in passes
        ),
        Column("in all", [seconds(row.seconds) for *_, row in rows]),
        Column("of\nstep", shares, 1),
        Column("bound by", [roof[0] for roof in roofs], 2, left=True),
        Column("FLOP/B", [roof[1] for roof in roofs], 7),
        Column("TFLOP/s", [roof[2] for roof in roofs], 6),
        Column("of\nroof", [roof[3] for roof in roofs], 3),
    ]


def shown_rows(kernels: Sequence[KernelRow], step_time: float, *, everything: bool) -> list[tuple[int, str, KernelRow]]:
    """Rows of `listed`, at most `ROWS_SHOWN` of them unless everything is asked for."""
    for small in SMALL:
        rows = [*listed(kernels, step_time, small, everything=everything)]
        if everything or len(rows) <= ROWS_SHOWN:
            break
    return rows


def shown_unit(step_time: float) -> tuple[str, float, int]:
    """Unit of the times in a column of a step's report, its size, and decimals. [s]"""
    if step_time >= 1.0:
        return "s", 1.0, 3 if step_time < 100 else 1
    return "ms", 1e-3, 2 if step_time < 0.1 else 1


def listed(
    rows: Sequence[KernelRow], step_time: float, small_share: float, *, everything: bool
) -> Iterable[tuple[int, str, KernelRow]]:
    """Indentation, name and row of parts, blocks and kernels; small kernels share a row."""
    parts = summed((row.path[:1], row.seconds) for row in rows)
    for part, seconds in parts.items():
        rows_of_part = [row for row in rows if row.path[:1] == part]
        if len(rows_of_part) == 1 and not everything:
            if seconds >= SMALL[0] ** 2 * step_time:
                yield 0, part[0], rows_of_part[0]
            continue
        yield 0, part[0], total(part, rows_of_part)
        for block in dict.fromkeys(row.path[1:-1] for row in rows_of_part):
            inside = [row for row in rows_of_part if row.path[1:-1] == block]
            if block:
                yield 1, block[0], total(part, inside)
            small = [row for row in inside if row.seconds < small_share * step_time and not everything]
            small = small if len(small) > 1 else []
            for row in inside:
                if row not in small:
                    yield 2 if block else 1, row.path[-1], row
            if 0 < len(small) < len(inside):  # the row of the block has the time of all its kernels
                yield 2 if block else 1, f"{len(small)} others", total((*part, "others"), small)


def total(path: Path, rows: Sequence[KernelRow]) -> KernelRow:
    """Several kernels as one row."""
    passes, work = (summed(item for row in rows for item in getattr(row, name).items()) for name in ("passes", "work"))
    return KernelRow(path, passes, work)


def roofline_cells(explanation: Explanation, row: KernelRow) -> list[str]:
    """Bottleneck of a kernel, its intensity, its rate, and the share of the roofline that it reaches."""
    if not row.work.get("launches"):
        return [""] * 4
    quantities_of_row = quantities(row.work, explanation.system)
    intensity, attained, ceiling = (float(quantities_of_row[name]) for name in ("intensity", "attained", "ceiling"))
    if not ceiling:
        return [str(quantities_of_row["bound"]), "", "", ""]
    return [
        str(quantities_of_row["bound"]),
        f"{intensity:,.0f}" if intensity >= 9.95 else f"{intensity:.1f}",
        f"{attained / 1e12:,.0f}" if attained >= 9.95e12 else f"{attained / 1e12:.2f}",
        percent(attained / ceiling),
    ]


def other_lines(explanation: Explanation, width: int, *, everything: bool) -> Table:
    """Parts of a step other than kernels: communication, the bubble, the optimizer, the host."""
    tree, hidden = explanation.time, explanation.hidden
    table = ruled_table()
    with_kernels = len(explanation.kernels) > 0
    table.add_column("parts of the step", overflow="fold", min_width=20)
    for name in ("time", "of step"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=BAR)
    if len(hidden):
        table.add_column("hidden", justify="right", no_wrap=True)
    named = not everything and width >= WIDE
    if named and any(len(path) > 1 and path[0] not in PASSES for path in tree["path"]):
        table.add_column("largest components", overflow="fold")
    behind = summed((path[:1], value) for path, value in leaves_of(hidden))
    parts = [part_name(part) for part in PARTS["step_time"]]
    shown = [part for part in parts if not (with_kernels and part in PASSES)]
    times = summed((path[:1], value) for path, value in leaves_of(tree))
    longest = max([times.get((part,), 0.0) for part in shown], default=0.0)
    if with_kernels:
        value = sum(times.get((part,), 0.0) for part in PASSES)
        table.add_row("kernels", readable(value, "s"), percent(value / explanation.step_time))
    for part in shown:
        value, away = times.get((part,), 0.0), behind.get((part,), 0.0)
        if not value and not away:
            continue
        drawn = bar(value / longest, BAR) if value else ""
        unseen = [readable(away, "s") if away else ""] if len(hidden) else []
        cells = [readable(value, "s") if value else "0", percent(value / explanation.step_time), drawn]
        below = {path: value for path, value in leaves_of(tree) if path[0] == part and len(path) > 1}
        if everything:
            table.add_row(part, *cells, *unseen)
            for path, value in sorted(below.items(), key=lambda item: -item[1]):
                share = percent(value / explanation.step_time)
                table.add_row(f"  {' > '.join(path[1:])}", readable(value, "s"), share)
        else:
            components = [children(below, "s", everything=False)] if below and named else []
            table.add_row(part, *cells, *unseen, *components)
    cells = [readable(explanation.step_time, "s"), "100 %", ""]
    table.add_row("step", *cells, style="bold")
    return table


def memory_lines(explanation: Explanation, width: int, *, everything: bool) -> Table:
    """Peak memory by part, with the room that is left."""
    tree, peak = explanation.memory, explanation.peak_memory
    capacity = memory_capacity(explanation.space, explanation.record)
    table = ruled_table()
    table.add_column("memory", no_wrap=True, min_width=20)
    for name in ("bytes", "of chip"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("", no_wrap=True, min_width=BAR)
    if width >= WIDE:
        table.add_column("largest components", overflow="fold")
    parts = summed((path[:1], value) for path, value in leaves_of(tree))
    for (part,), value in parts.items():
        drawn = bar(value / max(parts.values()), BAR)
        below = {path: value for path, value in leaves_of(tree) if path[0] == part and len(path) > 1}
        components = [children(below, "B", everything=everything)] if width >= WIDE else []
        table.add_row(part, readable(value, "B"), percent(value / capacity), drawn, *components)
    left = f"{readable(abs(capacity - peak), 'B')} {'free' if capacity >= peak else 'too much'}"
    of = [f"of {readable(capacity, 'B')}: {left}"] if width >= WIDE else []
    table.add_row("peak", readable(peak, "B"), percent(peak / capacity), "", *of, style="bold")
    return table


def gemm_lines(explanation: Explanation, width: int, *, everything: bool) -> Report:
    """Matrix products of a micro-batch: output tiles, and how often operands cross from each memory level."""
    shown = work_rows(explanation, "gemms", everything=everything)
    if isinstance(shown, str):
        return [Text(f"Reloads of operands: {shown}.")] if shown else []
    rows, hidden = shown
    levels = [name.removesuffix("_reload_AB") for name in rows.columns if name.endswith("_reload_AB")]
    columns_of_rows = [
        Column("matrix product", [name.replace("_", " ") for name in rows["product"]], left=True),
        Column("pass", [name.replace("_", " ") for name in rows["pass"]], left=True),
        Column("m, n, k", [f"{m:,} {n:,} {k:,}" for m, n, k in rows[["m", "n", "k"]].to_numpy().tolist()], 3),
        Column("tile", [f"{m:g}x{n:g}" for m, n in rows[["tile_m", "tile_n"]].to_numpy().tolist()]),
    ]
    for rank, level in enumerate(levels):
        reads = rows[[f"{level}_reload_{operand}" for operand in ("AB", "BC", "AC")]].to_numpy().tolist()
        cells = [" ".join(f"{often:.4g}" for often in reads_of_operand) for reads_of_operand in reads]
        columns_of_rows.append(Column(level, cells, 1 + rank, title=(level, "A B C")))
    columns_of_rows.append(Column("time", [readable(value, "s") for value in rows["time_s"]]))
    title = f"Reads of A and B and writes of C, by memory level, of one micro-batch{hidden}"
    return [Text(title), *fitted_table(columns_of_rows, width), Text()]


def work_rows(explanation: Explanation, kind: str, *, everything: bool) -> tuple[pd.DataFrame, str] | str:
    """Rows of a table of work with most time, in their order, and how many others there are, in words.

    If there is no table, the reason; "" if the design trains no transformer.
    """
    if explanation.space.workload.work != TRAINING:
        return ""
    table = explanation.work(kind)
    if isinstance(table, str) or everything or len(table) <= WORK_SHOWN:
        return table if isinstance(table, str) else (table, "")
    times = table.filter(regex="time_s$").sum(axis=1) * table.get("count", 1)
    longest = times.sort_values(ascending=False, kind="stable").index[:WORK_SHOWN]
    return table.loc[sorted(longest)], f" ({len(table) - WORK_SHOWN:,} more: --all)"


def optimizer_lines(explanation: Explanation, width: int, *, everything: bool) -> Report:
    """Gradient clipping and update by parameter group."""
    shown = work_rows(explanation, "optimizer", everything=everything)
    if isinstance(shown, str):
        return [Text(f"Optimizer by parameter group: {shown}.")] if shown else []
    rows, hidden = shown
    names = [name.replace("_", " ") for name in rows["group"]]
    heading = f"optimizer: parameter group{hidden}"
    columns_of_groups = [
        Column(heading, names, left=True),
        Column("parameters", [readable_count(value) for value in rows["owned"]]),
        Column("clipping", [readable(value, "s") for value in rows["gradclip_time_s"]]),
        Column("bytes of clipping", [readable(value, "B") for value in rows["gradclip_bytes"]], 2, title=("bytes",)),
        Column("update", [readable(value, "s") for value in rows["apply_grad_time_s"]]),
        Column("bytes of update", [readable(value, "B") for value in rows["apply_grad_bytes"]], 1, title=("bytes",)),
    ]
    return fitted_table(columns_of_groups, width)


def children(below: Mapping[Path, float], unit: str, *, everything: bool) -> str:
    """The components of a part, the largest first, named by the words in which they differ."""
    depth = 2
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
    few = order if everything else [amount for amount in order[:NAMED] if abs(amount[1]) >= SLIGHT * whole]
    texts = [f"{name} {readable(value, unit)}" for name, value in few]
    if len(order) > len(few):
        rest = sum(value for _, value in order[len(few) :])
        texts.append(f"others {readable(rest, unit)}")
    return (", " if not everything else "\n").join(texts)


def leaves_of(tree: pd.DataFrame) -> Iterable[tuple[Path, float]]:
    """Path and value of each leaf of a tree. [its unit]"""
    return zip(*(tree.iloc[:, at].tolist() for at in (0, 1)), strict=True)
