"""The cost of an HLO module as a text report, and as a page.

The page shows where the time goes, the kernels, the messages by purpose, and the memory over time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from costmodel.formats.quantity import readable
from dse.adapters.xla.report.cost_record import ModuleCost, parts_of_step, times_table
from dse.output.text import bar, counted, percent, plain_text
from dse.reporting.design_table import GAP, Column, drawn, fitted, ruled_table
from dse.reporting.pages.page import page, rounded, table_data

Record = Mapping[str, Any]

#: Length of the bar of the largest part. [characters]
_BAR: Final = 12

#: Least room for a name. [characters]
_NAME: Final = 16
#: Width of the tables of a page. [characters]
HEAVIEST_WIDTH: Final = 140


def hlo_report(record: Record, width: int) -> list[RenderableType]:
    """A module's record in tables."""
    shown: list[RenderableType] = [Text(heading(record)), Text()]
    for title, table in hlo_sections(record, width):
        shown += [Text(title, style="bold"), Text(), table, Text()]
    shown += [Text(f"Note: {note}") for note in record["notes"]]
    return shown if record["notes"] else shown[:-1]


def hlo_sections(record: Record, width: int) -> list[tuple[str, RenderableType]]:
    """Titles and tables of a module's record."""
    sections: list[tuple[str, RenderableType]] = [
        ("Where the time goes" if record["system"] else "Work and traffic", sums_table(record["kinds"], "kind")),
        ("By phase", sums_table(record["phases"], "phase")),
    ]
    if record["system"]:
        sections.insert(0, (f"Time of a step on {record['system']}", times_table(record)))
        sections.append(("Heaviest kernels", Group(*heaviest_table(record["heaviest"], width))))
    if record["collectives"]:
        sections.append(("Communication by purpose", communication_table(record["communication"])))
        sections.append(("Collectives by group", collectives_table(record["collectives"])))
    sections.append(("Memory of one device", memory_table(record)))
    return sections


def heading(record: Record) -> str:
    """Heading of a report: what is evaluated, and the total."""
    count = sum(row["count"] for row in record["kinds"])
    text = f"{record['module']} on {counted(int(record['devices']), 'device')}: {counted(int(count), 'kernel')}"
    flops = readable(record["figures"]["gemm.flops_total"], "FLOP", digits=4)
    text += f", {flops} of matrix products on each"
    return f"{text}." if record["system"] else f"{text}. --system prices it."


def time_of(row: Record) -> str:
    """Time of kernels; marked where a loop around one of them runs more often for all that is known."""
    return f"{'>= ' if row['at_least'] else ''}{readable(row['time_s'], 's')}"


def sums_table(rows: Sequence[Record], what: str) -> Table:
    """Kernels alike, with their share of the time, or of the traffic where no time is known."""
    timed = any("time_s" in row for row in rows)
    key = "time_s" if timed else "bytes"
    whole, longest = sum(row[key] for row in rows) or 1.0, max((row[key] for row in rows), default=0) or 1.0
    table = ruled_table(what, "count", "work", "traffic", *(["time"] if timed else []), "share")
    table.add_column("", no_wrap=True)
    for row in rows:
        cells = [row["name"], f"{row['count']:,.0f}", readable(row["flops"], "FLOP"), readable(row["bytes"], "B")]
        if timed:
            cells.append(time_of(row))
        drawn = bar(row[key] / longest, _BAR) if row[key] else ""
        table.add_row(*cells, percent(row[key] / whole), drawn)
    return table


def heaviest_table(rows: Sequence[Record], width: int) -> list[RenderableType]:
    """Kernels by themselves, and a line with the columns that do not fit."""
    kept, left_out = fitted(heaviest_columns(rows, width), width)
    return [*drawn(kept), *([Text(f"Columns that do not fit: {', '.join(left_out)}")] if left_out else [])]


def heaviest_columns(rows: Sequence[Record], width: int) -> list[Column]:
    """Columns of kernels, with the end of their names in the program where there is room.

    Names give way to numbers, which are never cut.
    """
    phases = [row["phase"] for row in rows]
    shown = [Column("phase", ("phase",), phases, 2, left=True)] if set(phases) - {"unknown"} else []
    shown += [
        Column("runs", ("runs",), [f"{row['count']:,.0f}" for row in rows], 1),
        Column("work", ("work",), [readable(row["flops"], "FLOP") for row in rows], 3),
        Column("traffic", ("traffic",), [readable(row["bytes"], "B") for row in rows], 4),
        Column("time", ("time",), [time_of(row) for row in rows]),
    ]
    room = max(width - sum(column.width for column in shown) - GAP, _NAME)
    kernels = [end_of(row["name"], room) for row in rows]
    shown.insert(0, Column("kernel", ("kernel",), kernels, left=True))
    room = width - sum(column.width for column in shown) - GAP
    names = [program_name(row["op_name"], room) for row in rows] if room >= _NAME else []
    if any(names):
        shown.append(Column("in the program", ("in the program",), names, 5, left=True))
    return shown


def program_name(op_name: str, room: int) -> str:
    """The end of a name, which says most.

    >>> program_name("jit(main)/jvp(GPT)/layer/5/dense/dot_general[precision=None]", 28)
    '...layer/5/dense/dot_general'
    """
    return end_of(op_name.partition("[")[0], room)


def end_of(name: str, room: int) -> str:
    """End of a name, as much as there is room for."""
    return name if len(name) <= room else "..." + name[len(name) - room + 3 :].lstrip("/")


def communication_table(rows: Sequence[Record]) -> Table:
    """Messages by what they are for."""
    timed = "time_s" in rows[0]
    table = ruled_table("for", "collectives", "payload", *(["time"] if timed else []), texts=2)
    for row in rows:
        cells = [row["name"], ", ".join(row["kinds"]), readable(row["payload_bytes"], "B")]
        table.add_row(*cells, *([readable(row["time_s"], "s")] if timed else []))
    return table


def collectives_table(rows: Sequence[Record]) -> Table:
    """Messages by kind and groups."""
    timed = "time_s" in rows[0]
    table = ruled_table()
    headings = ["collective", "groups", "of", "stride", "reduces by", "count", "payload", *(["time"] if timed else [])]
    for place, name in enumerate(headings):
        table.add_column(name, justify="left" if place in (0, 4) else "right", no_wrap=True)
    for row in rows:
        kind = row["name"].partition(".")[0]
        reducers = ", ".join(row["reducers"]) or "-"
        cells = [kind, str(row["groups"]), str(row["size"]), f"{row['stride']:g}", reducers,
                 f"{row['count']:,}", readable(row["payload_bytes"], "B")]  # fmt: skip
        table.add_row(*cells, *([time_of(row)] if timed else []))
    return table


def memory_table(record: Record) -> Table:
    """Memory of one device, and the order of kernels that it belongs to."""
    memory = record["memory"]
    rows = [
        ("weights", memory["weights_bytes"], ""),
        ("optimizer", memory["optimizer_bytes"], ""),
        ("inputs", memory["inputs_bytes"], ""),
    ]
    if not memory["weights_bytes"]:  # nothing is trained
        kept = ("kept", memory["optimizer_bytes"], "that the program gives new values for")
        rows = [*([kept] if kept[1] else []), ("inputs", memory["inputs_bytes"], "weights among them, if any")]
    order = f"for {memory['schedule']}"
    if "program_bytes_high" in memory:
        low, high = (readable(memory[f"program_bytes_{end}"], "B") for end in ("low", "high"))
        order = f"{low} to {high}, since texts for TPUs do not show all of it; {order}"
    rows += [
        ("results", memory["results_bytes"], "that are not in the memory of what is passed in"),
        ("temporaries", memory["temporaries_bytes"], f"most at {memory['temporaries_peak_at']}"),
        ("the program", memory["program_bytes"], order),
    ]
    if record["system"]:
        capacity = readable(memory["capacity_bytes"], "B")
        verdict = f"of {capacity}" if memory["fits"] else f"more than the {capacity} that a device has"
        rows += [
            ("runtime", memory["runtime_bytes"], f"driver, runtime and allocator, of {record['system']}"),
            ("in all", memory["needed_bytes"], verdict),
        ]
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column()
    table.add_column(justify="right")
    table.add_column()
    for name, size, words in rows:
        table.add_row(name, readable(size, "B"), words)
    return table


#: Times of the picture of memory at most. [-]
TIMES: Final = 800


def program_page(cost: ModuleCost) -> str:
    """HTML of a module that has a system."""
    record, times = cost.record(), cost.record()["times"]
    memory = record["memory"]
    data = {
        "kind": "program",
        "question": f"{record['module']} on {record['devices']:,.0f} x {record['system']}",
        "headline": heading(record),
        "large": [
            [readable(times["step_s"], "s"), "a step", f"{readable(times['serial_s'], 's')} without overlap"],
            [percent(times["mfu"]), "MFU", ""],
            [readable(memory["needed_bytes"], "B"), "memory", f"of {readable(memory['capacity_bytes'], 'B')}"],
        ],
        "fits": memory["fits"],
        "parts": [[name.strip(), rounded(seconds)] for name, seconds in parts_of_step(times) if name[2:3] != " "],
        "step": times["step_s"],
        "sections": [
            [name, plain_text([shown], HEAVIEST_WIDTH)] for name, shown in hlo_sections(record, HEAVIEST_WIDTH)
        ],
        "kernels": table_data(heaviest_columns(record["heaviest"], HEAVIEST_WIDTH)),
        "tree": kernel_tree(cost),
        "messages": [
            [row["name"], ", ".join(row["kinds"]), row["payload_bytes"], row["time_s"]]
            for row in record["communication"]
        ],
        "held": held_memory(cost),
        "notes": record["notes"],
    }
    return page(str(data["question"]), data, "program.js")


def kernel_tree(cost: ModuleCost) -> list[list[Any]]:
    """Kernels one after the other: phase, kind, name and time. [s]"""
    return [
        [kernel.phase, kernel.kind, kernel.name, rounded(float(time))]
        for kernel, time in zip(cost.program.kernels, cost.times, strict=True)
        if time > 0
    ]


def held_memory(cost: ModuleCost) -> list[list[Any]]:
    """Memory of temporaries over the instructions: place, bytes, and the kernel that runs; thinned. [-], [B]"""
    found = cost.analysis.as_written if cost.analysis.module.is_scheduled else cost.analysis.freed_early
    live, ran = found.live_bytes()[: len(found.ran)], found.ran
    if not len(live):
        return []
    block = -(-len(live) // TIMES)
    rows = [start + int(np.argmax(live[start : start + block])) for start in range(0, len(live), block)]
    return [[row, float(live[row]), ran[row]] for row in rows]
