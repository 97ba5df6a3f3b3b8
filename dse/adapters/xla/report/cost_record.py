"""The cost of an HLO module as one nested record, as a text report, and as a page.

The step time with overlap lies between the longest path and the kernels one after the other; the record has all three.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from costmodel.columns import FloatArray
from costmodel.errors import DseError, ParameterError
from costmodel.formats.quantity import readable
from costmodel.formats.system_file import load_system
from costmodel.kernels.collectives import held_ranks
from costmodel.machine import System
from costmodel.steps.breakdown import with_unit_suffix
from dse.adapters.xla import hlo
from dse.adapters.xla.steps.overlap import ProgramTimes, program_times
from dse.adapters.xla.steps.program import Program, ProgramKernel
from dse.adapters.xla.summary.figures import collectives_by_group
from dse.adapters.xla.text.module import custom_call_target
from dse.adapters.xla.work.kernel_graph import Barriers, HloGraph
from dse.adapters.xla.work.matrix_products import is_known
from dse.output import Record, bar, counted, percent, plain_text
from dse.reporting.design_table import GAP, Column, fitted_table, ruled_table
from dse.reporting.pages.page import page, rounded, table_data

#: Meaning of a barrier -> how a report puts it.
_BARRIERS: Final = {
    "barrier": "each array read through a barrier waits for all of them",
    "element": "each array read through a barrier waits for itself alone",
}


def times_record(times: ProgramTimes, graph: HloGraph) -> dict[str, Any]:
    """Times of a step on one machine, as JSON has them; lower bounds where a loop counts once."""
    uncounted = list(dict.fromkeys(loop.name for kernel in graph.kernels for loop in kernel.uncounted))

    return {
        "step_s": times.step.item(),
        "serial_s": times.breakdown.step_time.item(),
        "longest_path_s": times.longest_path.item(),
        "kernels_s": times.kernels.item(),
        "exposed_s": {name: times_of_kind.item() for name, times_of_kind in times.exposed.items()},
        "slowed_s": times.slowed.item(),
        "host_s": times.breakdown.host_time.item(),
        "mfu": times.mfu.item(),
        "messages_start": "as the text starts them" if times.as_written else "as soon as they can",
        "is_lower_bound": bool(uncounted),
        "loops_of_unknown_count": uncounted,
    }


def time_text(seconds: float, *, at_least: bool) -> str:
    """A time, marked where a loop runs an unknown number of times, so that it is the least there is."""
    return f"{'>= ' if at_least else ''}{readable(seconds, 's')}"


def unknown_text(times: Record) -> str:
    """The reason why times are lower bounds; "" where they are not."""
    loops = times["loops_of_unknown_count"]
    if not loops:
        return ""
    named = loops[0] if len(loops) == 1 else f"{loops[0]} and {counted(len(loops) - 1, 'other loop')}"
    return f"{named} {'runs' if len(loops) == 1 else 'run'} an unknown number of times"


def parts_of_step(times: Record) -> list[tuple[str, float]]:
    """Parts of a step, indented, with their times; exposed messages follow below their sum. [s]"""
    exposed = sorted(times["exposed_s"].items(), key=lambda purpose: -purpose[1])
    rows = [("  kernels", times["kernels_s"]), ("  exposed messages", sum(times["exposed_s"].values()))]
    rows += [(f"    {name}", seconds) for name, seconds in exposed]
    rows += [("  cores that messages take", times["slowed_s"]), ("  host", times["host_s"])]
    return [(name, seconds) for name, seconds in rows if seconds]


def times_table(record: Record) -> Table:
    """Times of a step, each with its basis."""
    times = record["times"]
    why, start = unknown_text(times), times["messages_start"]
    one_by_one = f"one after the other; {percent(record['breakdown']['mfu'])} of the peak rate"
    rows = [
        ("a step", times["step_s"], f"messages beside kernels start {start}; {percent(times['mfu'])} of the peak rate"),
        *((name, seconds, "") for name, seconds in parts_of_step(times)),
        ("without overlap", times["serial_s"], one_by_one),
        ("longest path", times["longest_path_s"], f"no overlap can beat it; {_BARRIERS[record['barriers']]}"),
    ]
    return facts_table(
        (name, time_text(seconds, at_least=times["is_lower_bound"]), "; ".join(filter(None, (why, words))))
        for name, seconds, words in rows
    )


def facts_table(rows: Iterable[tuple[str, str, str]]) -> Table:
    """Names, quantities, and remarks that wrap."""
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column()
    for row in rows:
        table.add_row(*row)
    return table


#: Kernels that a record lists by themselves.
HEAVIEST: Final = 12
#: The machine of a module for which none is named.
USUAL_SYSTEM: Final = "a100_80g_dgx"


@dataclass(frozen=True)
class ModuleCost:
    """An HLO module, and the system that its kernels run on."""

    file: str
    analysis: hlo.Analysis
    program: Program
    barriers: Barriers
    system: System | None  #: None where the program runs no kernels

    @classmethod
    def of(cls, path: Path, barriers: Barriers, system: str | None, *, large: bool = False) -> Self:
        """Read a module and a system, by default the usual one. Raises `DseError` if either is wrong."""
        analysis = hlo.Analysis(hlo.load_module(path, large=large))
        try:
            program = hlo.program(analysis)
        except DseError as error:
            raise DseError(f"{path}: {error}") from None
        if system and not program.kernels:
            raise ParameterError(f"{path}: runs no kernels, so that nothing can be evaluated; leave out {{system}}")
        machine = load_system(system or USUAL_SYSTEM) if program.kernels else None
        return cls(str(path), analysis, program, barriers, machine)

    @cached_property
    def whole(self) -> ProgramTimes:
        """Times of a step."""
        assert self.system is not None
        graph = self.analysis.of(self.barriers)
        return program_times(self.analysis, self.program, graph, self.system)

    @property
    def times(self) -> FloatArray:
        """All runs of each kernel, (kernels,). [s]"""
        times: FloatArray = self.whole.cost.time[0]
        return times

    def record(self) -> dict[str, Any]:
        """Everything, as JSON has it."""
        record: dict[str, Any] = {
            "file": self.file,
            "module": self.program.name,
            "devices": self.program.devices,
            "profile": "native",
            "system": self.system.name if self.system else None,
            "barriers": self.barriers,
            "notes": self.notes(),
            "memory": self.memory(),
            "communication": self.communication(),
            "collectives": self.collectives(),
            "kinds": self.sums(lambda kernel: {kernel.kind: kernel.count}),
            "phases": self.sums(lambda kernel: kernel.runs),
        }
        if self.system:
            record["breakdown"] = {
                with_unit_suffix(name): float(np.ravel(column)[0])
                for name, column in self.whole.breakdown.columns().items()
            }
            record["times"] = times_record(self.whole, self.analysis.graph)
            record["longest_path_time_s"] = record["times"]["longest_path_s"]
            record["heaviest"] = self.heaviest()
        return {**record, "figures": hlo.figures(self.analysis)}

    def notes(self) -> list[str]:
        """Assumptions for quantities that the text does not state."""
        notes = list(self.analysis.graph.notes)
        size = int(np.ravel(held_ranks(self.system.network)[-1])[0]) if self.system else 0  # devices of the machine
        if self.system and size < self.program.devices:
            notes.append(f"{self.system.name} has {counted(size, 'device')}, too few for this program")
        opaque = Counter[str]()
        for kernel in self.analysis.graph.kernels:
            if kernel.kind == "custom-call" and not is_known(kernel.instruction):
                opaque[custom_call_target(kernel.instruction) or "unnamed"] += kernel.count
        calls = [f"{counted(count, 'call')} of {name}" for name, count in opaque.items()]
        return notes + [f"{call}: evaluated by its arrays alone" for call in calls]

    def memory(self) -> dict[str, Any]:
        """Memory of one device, and with a system its capacity."""
        schedule, held = self.analysis.memory
        program = held.arguments + held.results + held.temporaries
        record: dict[str, Any] = {
            "schedule": schedule,
            "weights_bytes": self.program.weights_bytes,
            "optimizer_bytes": self.program.optimizer_bytes,
            "inputs_bytes": self.program.inputs_bytes,
            "results_bytes": held.results,
            "temporaries_bytes": held.temporaries,
            "temporaries_peak_at": held.peak_at,
            "program_bytes": program,
        }
        if held.most:
            known = program - held.temporaries
            record |= {"program_bytes_low": known + held.least, "program_bytes_high": known + held.most}
        if self.system:
            runtime, capacity = (
                float(np.ravel(values)[0]) for values in (self.system.chip.reserved_memory, self.system.dram.capacity)
            )
            record |= {
                "runtime_bytes": runtime,
                "needed_bytes": program + runtime,
                "capacity_bytes": capacity,
                "fits": program + runtime <= capacity,
            }
        return record

    def sums(self, runs: Callable[[ProgramKernel], Mapping[str, float]]) -> list[dict[str, Any]]:
        """Work, traffic and time of all kernels alike, by the runs under each name, the largest first."""
        rows: dict[str, dict[str, Any]] = {}
        for index, kernel in enumerate(self.program.kernels):
            for name, count in runs(kernel).items():
                fresh = {"name": name, "count": 0.0, "flops": 0.0, "bytes": 0.0, "at_least": False, "time_s": 0.0}
                row = rows.setdefault(name, fresh)
                row["at_least"] |= bool(self.analysis.graph.kernels[index].uncounted)
                row["count"] += count
                row["flops"] += count * (kernel.flops + sum(p.flops for p in kernel.products))
                row["bytes"] += count * kernel.bytes_moved
                row["time_s"] += float(self.times[index]) * count / kernel.count if kernel.count else 0.0
        return sorted(rows.values(), key=lambda row: -row["time_s"])

    def heaviest(self) -> list[dict[str, Any]]:
        """Kernels that take longest."""
        rows = []
        for number in np.argsort(-self.times, kind="stable")[:HEAVIEST].tolist():
            kernel, read = self.program.kernels[number], self.analysis.graph.kernels[number]
            rows.append({
                "name": kernel.name,
                "kind": kernel.kind,
                "phase": kernel.phase,
                "count": kernel.count,
                "at_least": bool(read.uncounted),
                "flops": kernel.flops + sum(p.flops for p in kernel.products),
                "bytes": kernel.bytes_moved,
                "time_s": float(self.times[number]),
                "op_name": read.instruction.op_name,
            })  # fmt: skip
        return rows

    def communication(self) -> list[dict[str, Any]]:
        """Messages by purpose, the largest first; the time of one counts to the purpose of most of its bytes."""
        rows: dict[str, dict[str, Any]] = {}
        for number, collective in self.analysis.collectives.items():
            count = self.analysis.graph.kernels[number].count
            for purpose, moved in collective.payloads:
                row = rows.setdefault(purpose, {"name": purpose, "kinds": set(), "payload_bytes": 0, "time_s": 0.0})
                row["kinds"].add(collective.name)
                row["payload_bytes"] += count * moved
                row["time_s"] += float(self.times[number]) if purpose == collective.purpose else 0.0
        record_rows = [{**row, "kinds": sorted(row["kinds"])} for row in rows.values()]
        return sorted(record_rows, key=lambda row: -row["payload_bytes"])

    def collectives(self) -> list[dict[str, Any]]:
        """Messages by kind and groups of devices, the largest first."""
        rows = []
        for name, places in collectives_by_group(self.analysis).items():
            members = [(self.analysis.graph.kernels[number], self.analysis.collectives[number]) for number in places]
            placed = members[0][1].placement
            rows.append({
                "name": name,
                "groups": placed.groups,
                "size": placed.size,
                "stride": placed.stride,
                "reducers": sorted({collective.reducer for _, collective in members if collective.reducer}),
                "count": sum(kernel.count for kernel, _ in members),
                "at_least": any(kernel.uncounted for kernel, _ in members),
                "payload_bytes": sum(kernel.count * collective.payload_bytes for kernel, collective in members),
                "time_s": float(sum(self.times[number] for number in places)),
            })  # fmt: skip
        return sorted(rows, key=lambda row: -row["payload_bytes"])


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
    sections: list[tuple[str, RenderableType]] = []
    if record["system"]:
        sections = [
            (f"Time of a step on {record['system']}", times_table(record)),
            ("Where the time goes", sums_table(record["kinds"], "kind")),
            ("By phase", sums_table(record["phases"], "phase")),
            ("Heaviest kernels", Group(*fitted_table(heaviest_columns(record["heaviest"], width), width))),
        ]
    if record["collectives"]:
        sections.append(("Communication by purpose", communication_table(record["communication"])))
        sections.append(("Collectives by group", collectives_table(record["collectives"])))
    return [*sections, ("Memory of one device", memory_table(record))]


def heading(record: Record) -> str:
    """Heading of a report: the program and its machine, and the total."""
    count = sum(row["count"] for row in record["kinds"])
    text = f"{record['module']} on {counted(int(record['devices']), 'device')}: {counted(int(count), 'kernel')}"
    flops = readable(record["figures"]["gemm.flops_total"], "FLOP", digits=4)
    return f"{text}, {flops} of matrix products on each."


def time_of(row: Record) -> str:
    """Time of kernels, marked where a loop around one of them runs an unknown number of times."""
    return time_text(row["time_s"], at_least=row["at_least"])


def sums_table(rows: Sequence[Record], what: str) -> Table:
    """Kernels alike, with their share of the time."""
    seconds = [row["time_s"] for row in rows]
    whole, longest = sum(seconds) or 1.0, max(seconds) or 1.0
    table = ruled_table(what, "count", "work", "traffic", "time", "share")
    table.add_column("", no_wrap=True)
    for row in rows:
        cells = [row["name"], f"{row['count']:,.0f}", readable(row["flops"], "FLOP"), readable(row["bytes"], "B")]
        drawn = bar(row["time_s"] / longest, _BAR) if row["time_s"] else ""
        table.add_row(*cells, time_of(row), percent(row["time_s"] / whole), drawn)
    return table


def heaviest_columns(rows: Sequence[Record], width: int) -> list[Column]:
    """Columns of kernels; names, also those in the program, have the room that numbers leave."""
    phases = [row["phase"] for row in rows]
    shown = [Column("phase", phases, 2, left=True)] if set(phases) - {"unknown"} else []
    shown += [
        Column("runs", [f"{row['count']:,.0f}" for row in rows], 1),
        Column("work", [readable(row["flops"], "FLOP") for row in rows], 3),
        Column("traffic", [readable(row["bytes"], "B") for row in rows], 4),
        Column("time", [time_of(row) for row in rows]),
    ]
    room = max(width - sum(column.width for column in shown) - GAP, _NAME)
    kernels = [end_of(row["name"], room) for row in rows]
    shown.insert(0, Column("kernel", kernels, left=True))
    room = width - sum(column.width for column in shown) - GAP
    names = [end_of(row["op_name"], room) for row in rows] if room >= _NAME else []
    if any(names):
        shown.append(Column("in the program", names, 5, left=True))
    return shown


def end_of(name: str, room: int) -> str:
    """The end of a name, which says most, without the parameters of an operation.

    >>> end_of("jit(main)/jvp(GPT)/layer/5/dense/dot_general[precision=None]", 28)
    '...layer/5/dense/dot_general'
    """
    name = name.partition("[")[0]
    return name if len(name) <= room else "..." + name[len(name) - room + 3 :].lstrip("/")


def communication_table(rows: Sequence[Record]) -> Table:
    """Messages by purpose."""
    table = ruled_table("for", "collectives", "payload", "time", texts=2)
    for row in rows:
        kinds = ", ".join(row["kinds"])
        table.add_row(row["name"], kinds, readable(row["payload_bytes"], "B"), readable(row["time_s"], "s"))
    return table


def collectives_table(rows: Sequence[Record]) -> Table:
    """Messages by kind and groups."""
    table = ruled_table("collective", "groups", "of", "stride", "reduces by", "count", "payload", "time")
    table.columns[4].justify = "left"
    for row in rows:
        kind = row["name"].partition(".")[0]
        reducers = ", ".join(row["reducers"]) or "-"
        cells = [kind, str(row["groups"]), str(row["size"]), f"{row['stride']:g}", reducers,
                 f"{row['count']:,}", readable(row["payload_bytes"], "B"), time_of(row)]  # fmt: skip
        table.add_row(*cells)
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
    return facts_table((name, readable(size, "B"), words) for name, size, words in rows)


#: Times of the picture of memory at most. [-]
TIMES: Final = 800


def program_page(cost: ModuleCost) -> str:
    """HTML of a module that has a system."""
    record = cost.record()
    times, memory = record["times"], record["memory"]
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
        "tree": [
            [kernel.phase, kernel.kind, kernel.name, rounded(float(time))]
            for kernel, time in zip(cost.program.kernels, cost.times, strict=True)
            if time > 0
        ],
        "messages": [
            [row["name"], ", ".join(row["kinds"]), row["payload_bytes"], row["time_s"]]
            for row in record["communication"]
        ],
        "held": held_memory(cost),
        "notes": record["notes"],
    }
    return page(str(data["question"]), data, "program.js")


def held_memory(cost: ModuleCost) -> list[list[Any]]:
    """Memory of temporaries over the instructions: place, bytes, and the kernel that runs; thinned. [-], [B]"""
    lifetimes = cost.analysis.lifetimes
    live, ran = lifetimes.live_bytes()[: len(lifetimes.ran)], lifetimes.ran
    if not len(live):
        return []
    block = -(-len(live) // TIMES)
    rows = [start + int(np.argmax(live[start : start + block])) for start in range(0, len(live), block)]
    return [[row, float(live[row]), ran[row]] for row in rows]
