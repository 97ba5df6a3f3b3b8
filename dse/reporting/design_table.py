"""A table of designs that fits a given width: shared values go below it, and columns without room are named.

`design_columns` makes all columns, `fitted` takes those for which the terminal has room, and notes below the table
name the others."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from string import ascii_uppercase
from typing import Any, Final

from rich import box
from rich.console import RenderableType
from rich.segment import Segment, Segments
from rich.table import Table
from rich.text import Text

from costmodel.formats.input_files import data_beside
from costmodel.formats.quantity import readable, readable_count
from costmodel.steps.breakdown import with_unit_suffix
from costmodel.training.design import kernel_of_tile, tile_columns
from dse.output import Record, design_text, percent, ranked_rate
from dse.predictions import TIGHT, peak_spread
from dse.reporting.binding import memory_verdict
from dse.spaces.sections.named_parts import SYSTEM
from dse.spaces.sections.parameters import Parameter
from dse.spaces.sections.training_run import RENTAL, UNITS
from dse.spaces.space import Space

#: Columns of a run that tables of designs have; reports say the others of one design, files of all.
IN_TABLES = ("run_time", "run_cost")


def run_text(space: Space, record: Record) -> str:
    """The run of a design: ``15T tokens: 73.7 days, 29.0M GPU-hours, $72.5M at $2.50 per GPU-hour``."""
    run = record["run"]
    if "run_time_s" not in run:
        return f"{readable_count(run['tokens'])} tokens: the run never ends"
    owned = "rented" if RENTAL in space.given else "owned"
    parts = [readable(run["run_time_s"], "s"), f"{readable_count(run['gpu_hours'])} GPU-hours"]
    if cost := run.get("run_cost_usd"):
        parts.append(f"{readable(cost, '$')} at ${cost / run['gpu_hours']:.2f} per GPU-hour ({owned})")
    return thousands(f"{readable_count(run['tokens'])} tokens: {', '.join(parts)}")


def failures_text(record: Record) -> str:
    """The energy and the failures of a run: ``Expect a failure every 8.2 days; checkpoint every 112 min.``"""
    run = record["run"]
    if "run_time_s" not in run:
        return ""
    every = readable(run["run_time_s"] / run["failures"], "s")
    checkpoint = readable(run["checkpoint_interval_s"], "s")
    goodput = percent(run["goodput"])
    spent = [readable(run["run_energy_j"], "J")] if "run_energy_j" in run else []
    spent += [f"{readable(run['run_emissions_kg'], 'kg')} CO2"] if "run_emissions_kg" in run else []
    taken = f"The run takes {' and '.join(spent)}. " if spent else ""
    text = f"Expect a failure every {every}; checkpoint every {checkpoint} (goodput {goodput})."
    return thousands(taken + text)


def thousands(text: str) -> str:
    """A text with commas in its long numbers."""
    return re.sub(r"\d{4,}", lambda digits: f"{int(digits[0]):,}", text)


def step_text(record: Record, workload: str) -> str:
    """The step time of a workload on a machine, or a dash where it has no layout."""
    return readable(record["breakdown"][f"{workload}.step_time_s"], "s") if workload in record["layouts"] else "-"


def workload_lines(space: Space, record: Record) -> Sequence[str]:
    """A line for each workload: ``dense (weight 0.7): 12.3 s, 84.1 GB with tp=8 pp=4``."""
    lines = []
    for workload in space.workloads:
        weight = "" if workload.weight == 1 else f" (weight {workload.weight:g})"
        if workload.name not in record["layouts"]:
            lines.append(f"{workload.name}{weight}: no legal layout")
            continue
        memory = readable(record["breakdown"][f"{workload.name}.peak_memory_bytes"], "B")
        layout = design_text(workload.space, record["layouts"][workload.name])
        lines.append(f"{workload.name}{weight}: {step_text(record, workload.name)}, {memory} with {layout}")
    return lines


#: Evidence for the interval of a prediction -> a sentence.
EVIDENCE_TEXTS: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["evidence"]

#: Blanks between two columns, one of them the line that `box.SIMPLE_HEAD` leaves blank. [characters]
GAP = 2

#: Column of a chip's memory.
PEAK_MEMORY = with_unit_suffix("peak_memory")

#: Column of tokens per second of one chip.
PER_GPU = "tokens_per_second_per_gpu"

#: Rows of a table that rich draws, a millisecond each.
ROWS_DRAWN = 1000


@dataclass(frozen=True)
class Column:
    """Column of a table in text: its heading, and a text per row."""

    name: str  #: by default its heading, with a line for each word between underscores or line breaks
    cells: list[str]
    leave_out: int = 0  #: of the columns that do not fit, the highest go first; 0 always stays
    left: bool = False
    group: str = ""  #: which columns it stands with: layout, kernels or chip
    title: tuple[str, ...] = ()  #: lines of another heading

    @property
    def heading(self) -> tuple[str, ...]:
        """Lines of the heading."""
        return self.title or tuple(re.split("[_\n]", self.name))

    @property
    def width(self) -> int:
        """Width of the widest line of a column. [characters]"""
        return max(map(len, (*self.heading, *"\n".join(self.cells).split("\n")))) + GAP


def design_table(
    space: Space, records: Sequence[Record], width: int, notes: Mapping[int, str] | None = None,
    among: Sequence[Record] | None = None, varying: Sequence[str] | None = None,
) -> list[RenderableType]:  # fmt: skip
    """A table of designs, and lines that name the parts left out."""
    among = among or records
    varying = varying_parameters(space, among) if varying is None else varying
    kept, left_out = fitted(design_columns(space, records, varying, notes), width)
    lines = table_notes(space, records, among, varying)
    if any(column.name == "sharding" for column in kept):
        lines += sharding_lines(space, records)
    return [*drawn(titled(kept)), *lines, *left_out]


def design_columns(
    space: Space, records: Sequence[Record], varying: Sequence[str], notes: Mapping[int, str] | None = None
) -> list[Column]:
    """Columns of a table of designs, however wide."""
    differing = [name for name in varying if len(records) == 1 or varies(records, "params", name)]
    return [
        *trial_columns(records),
        *parameter_columns(space, records, differing),
        *derived_columns(space, records),
        *objective_columns(space, records),
        *workload_columns(space, records),
        *interval_columns(records),
        *rate_columns(space, records),
        *([Column("", [notes.get(row, "") for row in range(len(records))], 1, left=True)] if notes else []),
    ]


def table_notes(space: Space, records: Sequence[Record], among: Sequence[Record], varying: Sequence[str]) -> list[Text]:
    """Lines below a table of designs: the evidence of intervals, shared parameters, tight memory."""
    alike = [p.name for p in space.parameters if p.name not in (*varying, *space.kernel_columns)]
    lines = []
    evidence = {record.get("evidence", "") for record in among}
    if len(evidence) == 1 and "" not in evidence:
        lines.append(Text(f"Interval: {EVIDENCE_TEXTS[evidence.pop()]}."))
    if alike and len(among) > 1:
        lines.append(Text("All have " + design_text(space, records[0]["params"], alike)))
    if "*" in tight_marks(space, records) and any(o.key == PEAK_MEMORY for o in space.objectives):
        lines.append(Text(f"* {TIGHT}: {peak_spread(space.framework)}"))
    return lines


def varying_parameters(space: Space, records: Sequence[Record]) -> list[str]:
    """Parameters that are not alike in all records; all of them where there is but one record."""
    names = [parameter.name for parameter in space.parameters]
    return [name for name in names if varies(records, "params", name)] if len(records) > 1 else names


def varies(records: Sequence[Record], group: str, name: str) -> bool:
    """True if records that have a value differ in it."""
    return len({record[group][name] for record in records if name in record[group]}) > 1


def trial_columns(records: Sequence[Record]) -> list[Column]:
    """The trial's number, where designs are trials, and which of its winners each is, where it has some."""
    numbers = [name for name in ("trial", "winner") if name in records[0]]
    return [Column(name, [str(record[name]) for record in records]) for name in numbers]


def machine_parameters(space: Space) -> set[str]:
    """Parameters of a space that are quantities of the machine, such as bandwidths."""
    return {*space.by_name} & {*space.system.units()}


def parameter_columns(space: Space, records: Sequence[Record], names: Sequence[str]) -> list[Column]:
    """Parameters in groups: the layout, the kernels, the machine. A narrow table loses columns of each group.

    Of the machine those with few different values go first. Kernels have two columns: how they are split, a
    letter for each way, and the tile that most products have.
    """
    machine, kernels = machine_parameters(space), {*space.kernel_columns}
    layout = [name for name in names if name not in machine | kernels]
    chip = [name for name in names if name in machine]
    values = {name: len({record["params"][name] for record in records}) for name in chip}
    groups = {
        "layout": ([parameter_column(space.recorded_by_name[name], records) for name in layout], layout),
        "kernels": (kernel_columns(space, records), []),
        "chip": (
            [parameter_column(space.recorded_by_name[name], records) for name in chip],
            sorted(chip, key=lambda name: -values[name]),
        ),
    }
    columns = []
    for title, (columns_of_group, order) in groups.items():
        ranked = order or [column.name for column in columns_of_group]
        columns += [
            replace(column, group=title, leave_out=2 + 3 * ranked.index(column.name)) for column in columns_of_group
        ]
    return columns


def titled(columns: Sequence[Column]) -> list[Column]:
    """Columns with the names of their groups above the first of each, where there are several groups."""
    if len({column.group for column in columns} - {""}) < 2:
        return [*columns]
    height = max(len(column.heading) for column in columns)
    shown_columns = []
    for before, column in zip(("", *(column_before.group for column_before in columns)), columns, strict=False):
        blank = ("",) * (height - len(column.heading))
        title = "" if column.group == before else column.group
        shown_columns.append(replace(column, title=(title, *blank, *column.heading)))
    return shown_columns


def parameter_column(parameter: Parameter, records: Sequence[Record], leave_out: int = 0) -> Column:
    """The column of a parameter, with a dash for records that do not have it."""
    values = [record["params"].get(parameter.name) for record in records]
    cells = ["-" if value is None else parameter.shown(value) for value in values]
    return Column(parameter.name, cells, leave_out, left=bool(parameter.words))


def kernel_columns(space: Space, records: Sequence[Record]) -> list[Column]:
    """Columns of the shardings and the usual tile of kernels, if records differ in them."""
    columns_of_kernels = []
    ways = [sharding_of(space, record) for record in records]
    if len({*ways}) > 1:
        letters = letters_of(ways)
        columns_of_kernels.append(Column("sharding", [letters[way] for way in ways], left=True))
    tiles = [usual_tile(space, record) for record in records]
    if len({*tiles}) > 1:
        columns_of_kernels.append(Column("usual_tile", tiles))
    return columns_of_kernels


def sharding_of(space: Space, record: Record) -> tuple[tuple[str, Any], ...]:
    """Names and values of the shardings that a trial records."""
    names = (name for name in space.kernel_columns if name.endswith("_sharding"))
    return tuple((name, record["params"][name]) for name in names if name in record["params"])


def letters_of(ways: Sequence[Any]) -> dict[Any, str]:
    """Letters for different values, in the order in which they come."""
    different = [*dict.fromkeys(ways)]
    return {way: ascii_uppercase[index] if index < 26 else f"#{index + 1}" for index, way in enumerate(different)}


def usual_tile(space: Space, record: Record) -> str:
    """The output tile that most products of a design have: ``128x256``."""
    params = record["params"]
    edges = [name for name in space.kernel_columns if name.endswith("_tile_m") and params.get(name)]
    tiles = Counter(
        "x".join(str(params[tile_column]) for tile_column in tile_columns(kernel_of_tile(name))) for name in edges
    )
    return tiles.most_common(1)[0][0] if tiles else ""


def sharding_lines(space: Space, records: Sequence[Record]) -> list[Text]:
    """The line that explains the letters of the column `sharding`: the kernels in which they differ."""
    ways = [sharding_of(space, record) for record in records]
    different = letters_of(ways)
    if len(different) < 2:
        return []
    varying = {name for name, _ in ways[0] if varies(records, "params", name)}
    texts = [
        f"{letter}: " + " ".join(f"{name.removesuffix('_sharding')}={value}" for name, value in way if name in varying)
        for way, letter in different.items()
    ]
    return [Text(f"Sharding {'; '.join(texts)}.")]


def derived_columns(space: Space, records: Sequence[Record]) -> list[Column]:
    """Derived columns that differ; they go first when it is narrow. Those that follow from the system belong to it."""
    units = {derived.name: derived.unit for derived in space.derived if derived.parameters != {SYSTEM}}
    left_out = {name for name in UNITS if "run" in records[0] and name not in IN_TABLES}
    left_out |= {objective.name for objective in space.objectives}
    return [
        Column(name, texts_of(records, "derived", name, unit), 1000 + index)
        for index, (name, unit) in enumerate(units.items())
        if varies(records, "derived", name) and name not in left_out
    ]


def texts_of(records: Sequence[Record], group: str, name: str, unit: str) -> list[str]:
    """A number of each record with its unit, or a dash where it has no finite one."""
    numbers = [record[group].get(name, math.nan) for record in records]
    return [readable(number, unit) if math.isfinite(number) else "-" for number in numbers]


def objective_columns(space: Space, records: Sequence[Record]) -> list[Column]:
    """Columns of objectives, which every table of designs has."""
    marks = tight_marks(space, records)
    return [
        Column(
            o.name,
            [
                readable(record["values"][o.key], o.unit) + (mark if o.key == PEAK_MEMORY else "")
                for record, mark in zip(records, marks, strict=True)
            ],
        )
        for o in space.objectives
    ]


def tight_marks(space: Space, records: Sequence[Record]) -> list[str]:
    """The mark behind the memory of each design: a star if it is tight, else a blank."""
    tight = [memory_verdict(space, record) == TIGHT for record in records]
    return [("*" if is_tight else " ") if any(tight) else "" for is_tight in tight]


def workload_columns(space: Space, records: Sequence[Record]) -> list[Column]:
    """The step time of each workload, where there are several."""
    return [
        Column(
            f"{workload.name} step time",
            [step_text(r, workload.name) for r in records],
            300,
            title=(workload.name, "step", "time"),
        )
        for workload in space.workloads
    ]


def interval_columns(records: Sequence[Record]) -> list[Column]:
    """The 90 % interval of each step time, and the evidence for it where that differs."""
    if not all("evidence" in record for record in records):
        return []
    columns = [Column("90 %\ninterval", [interval_text(r) for r in records], 400)]
    if len({record["evidence"] for record in records}) > 1:
        columns.append(Column("evidence", [r["evidence"] for r in records], 450, left=True))
    return columns


def interval_text(record: Record) -> str:
    """The interval of a design's step time: ``30.1 to 37.2 s``."""
    return pair_text(record["step_time_low_s"], "to", record["step_time_high_s"], "s")


def pair_text(one: float, word: str, other: float, unit: str) -> str:
    """Two quantities of one unit, printed once where both have the same prefix.

    >>> pair_text(75.1e9, "of", 85.5e9, "B"), pair_text(0.5, "to", 2.0, "s")
    ('75.1 of 85.5 GB', '500 ms to 2 s')
    """
    (first, prefix), (last, other_prefix) = (readable(value, unit).split(" ", 1) for value in (one, other))
    return f"{first}{'' if prefix == other_prefix else f' {prefix}'} {word} {last} {other_prefix}"


def rate_columns(space: Space, records: Sequence[Record]) -> list[Column]:
    """Model FLOPs utilization and tokens per second of one chip, where they are not objectives.

    Trials of earlier versions have no tokens per second of one chip.
    """
    rated = all("mfu" in record["breakdown"] for record in records)
    columns = [Column("mfu", [percent(ranked_rate(r, "mfu")) for r in records], 500)] if rated else []
    if all(PER_GPU in record["breakdown"] for record in records):
        cells = [f"{ranked_rate(record, PER_GPU):,.0f}" for record in records]
        columns.append(Column(PER_GPU, cells, 600, title=("tokens/s", f"per {space.chip_word}")))
    objectives = {objective.name for objective in space.objectives}
    return [column for column in columns if column.name not in objectives]


def fitted(columns: Sequence[Column], width: int) -> tuple[list[Column], list[Text]]:
    """The columns that fit, at least the first, and a line with the names of the others."""
    kept, left_out = list(columns), list[str]()
    while sum(column.width for column in kept) > width + GAP and len(kept) > 1:
        last = max(range(1, len(kept)), key=lambda number: (kept[number].leave_out, number))
        left_out.insert(0, kept.pop(last).name.replace("\n", " "))
    names = ", ".join(filter(None, left_out))
    return kept, [Text(f"Columns that do not fit: {names}")] if names else []


def columns_of(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    left: Sequence[int] = (0,),
    leave_out: Mapping[str, int] = {},
) -> list[Column]:
    """Columns of a table of cells: `left` are the places of words, `leave_out` the order in which columns go."""
    return [
        Column(heading, [*cells], leave_out.get(heading, 0), left=index in left, title=tuple(heading.split("\n")))
        for index, (heading, cells) in enumerate(zip(headings, zip(*rows, strict=True), strict=True))
    ]


def fitted_table(columns: Sequence[Column], width: int) -> list[RenderableType]:
    """The table of the columns that fit, and a line with the names of the others."""
    kept, left_out = fitted(columns, width)
    return [*drawn(kept), *left_out]


def drawn(columns: Sequence[Column]) -> list[RenderableType]:
    """The table itself; the rows of a long one that come after the first ones as lines, which is quicker."""
    table = ruled_table()
    for column in columns:
        heading = Text("\n".join(column.heading))
        table.add_column(
            heading,
            justify="left" if column.left else "right",
            vertical="bottom",
            no_wrap=True,
            min_width=column.width - GAP,
        )
    for row in zip(*(column.cells[:ROWS_DRAWN] for column in columns), strict=True):
        table.add_row(*row)
    aligned = [(column, f"{'<' if column.left else '>'}{column.width - GAP}") for column in columns]
    rest = [[format(cell, form) for cell in column.cells[ROWS_DRAWN:]] for column, form in aligned]
    lines = [Segment((" " * GAP).join(row)) for row in zip(*rest, strict=True)]
    return [table, Segments(lines, new_lines=True)] if lines else [table]


def rest_text(rows: int, shown: int, more: str) -> str:
    """The line below the first rows of a table: how to see the others."""
    return f"The first {shown} of {rows:,}; {more}."


def ruled_table(*headings: str, texts: int = 1) -> Table:
    """A table with a line below its headings, and no other; the first columns are `texts`, the others numbers."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, GAP - 1, 0, 0), show_edge=False)
    for index, heading in enumerate(headings):
        table.add_column(heading, justify="left" if index < texts else "right", no_wrap=True)
    return table


def facts(rows: Iterable[Sequence[str]]) -> Table:
    """Two columns without a heading."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, value in rows:
        table.add_row(name, value)
    return table
