"""The cost of an HLO module as one nested record: figures, and with a system times and their parts.

The step time with overlap lies between the longest path and the kernels one after the other; the record has all three.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final, Self

import numpy as np
from rich.table import Table

from costmodel.columns import FloatArray
from costmodel.errors import DseError, ParameterError
from costmodel.formats.chrome_trace import Arrow, Span, chrome_trace
from costmodel.formats.quantity import readable
from costmodel.formats.system_file import load_system
from costmodel.kernels.collectives import held_ranks
from costmodel.machine.system import System
from costmodel.steps.result.breakdown import with_unit_suffix
from dse.adapters.xla import hlo
from dse.adapters.xla.steps.overlap import ProgramTimes, program_times, unknown_loops
from dse.adapters.xla.steps.program import Program, ProgramKernel
from dse.adapters.xla.summary.figures import collectives_by_group
from dse.adapters.xla.text.module import custom_call_target
from dse.adapters.xla.work.kernel_graph import Barriers
from dse.adapters.xla.work.matrix_products import is_known
from dse.output.text import counted, percent

Record = Mapping[str, Any]

#: Meaning of a barrier -> how a report puts it.
_BARRIERS: Final = {
    "barrier": "each array read through a barrier waits for all of them",
    "element": "each array read through a barrier waits for itself alone",
}


def times_record(times: ProgramTimes, unknown_loops: Sequence[str]) -> dict[str, Any]:
    """Times of a step on one machine, as JSON has them."""

    def of(values: FloatArray) -> float:
        return float(values[0])

    return {
        "step_s": of(times.step),
        "serial_s": of(times.breakdown.step_time),
        "longest_path_s": of(times.longest_path),
        "kernels_s": of(times.kernels),
        "exposed_s": {name: of(own) for name, own in times.exposed.items()},
        "slowed_s": of(times.slowed),
        "host_s": of(times.breakdown.host_time),
        "mfu": of(times.mfu),
        "messages_start": "as the text starts them" if times.as_written else "as soon as they can",
        "is_lower_bound": bool(unknown_loops),
        "loops_of_unknown_count": list(unknown_loops),
    }


def time_text(seconds: float, times: Record) -> str:
    """A time, marked where loops run an unknown number of times, so that it is the least there is."""
    return f"{'>= ' if times['is_lower_bound'] else ''}{readable(seconds, 's')}"


def unknown_text(times: Record) -> str:
    """The reason why times are lower bounds; "" where they are not."""
    loops = times["loops_of_unknown_count"]
    if not loops:
        return ""
    named = loops[0] if len(loops) == 1 else f"{loops[0]} and {counted(len(loops) - 1, 'other loop')}"
    return f"{named} {'runs' if len(loops) == 1 else 'run'} an unknown number of times"


def parts_of_step(times: Record) -> list[tuple[str, float]]:
    """Parts of a step, indented, with their times; exposed messages follow below their sum. [s]"""
    exposed = sorted(times["exposed_s"].items(), key=lambda each: -each[1])
    rows = [("  kernels", times["kernels_s"]), ("  exposed messages", sum(times["exposed_s"].values()))]
    rows += [(f"    {name}", seconds) for name, seconds in exposed]
    rows += [("  cores that messages take", times["slowed_s"]), ("  host", times["host_s"])]
    return [(name, seconds) for name, seconds in rows if seconds]


def times_table(record: Record) -> Table:
    """Times of a step, each with what it rests on."""
    times = record["times"]
    words = {
        "a step": f"messages beside kernels start {times['messages_start']}; {percent(times['mfu'])} of the peak rate",
        "without overlap": f"one after the other; {percent(record['breakdown']['mfu'])} of the peak rate",
        "longest path": f"no overlap can beat it; {_BARRIERS[record['barriers']]}",
    }
    why = unknown_text(times)
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True, justify="right")
    table.add_column()

    def row(name: str, seconds: float, said: str = "") -> None:
        table.add_row(name, time_text(seconds, times), f"{why}; {said}" if why and said else why or said)

    row("a step", times["step_s"], words["a step"])
    for name, seconds in parts_of_step(times):
        row(name, seconds)
    row("without overlap", times["serial_s"], words["without overlap"])
    row("longest path", times["longest_path_s"], words["longest path"])
    return table


#: Kernels that a record lists by themselves.
HEAVIEST: Final = 12


def chips(system: System) -> int:
    """Devices of a whole machine. [-]"""
    return int(np.ravel(held_ranks(system.network)[-1])[0])


@dataclass(frozen=True)
class ModuleCost:
    """An HLO module, perhaps with a system that it runs on."""

    file: str
    analysis: hlo.Analysis
    program: Program
    barriers: Barriers
    system: System | None

    @classmethod
    def of(cls, path: Path, barriers: Barriers, system: str | None) -> Self:
        """Read a module and a system. Raises `DseError` if either is wrong."""
        analysis = hlo.Analysis(hlo.load_module(path))
        try:
            program = hlo.program(analysis)
        except DseError as error:
            raise DseError(f"{path}: {error}") from None
        if system and not program.kernels:
            raise ParameterError(f"{path}: runs no kernels, so that there is nothing to price; leave out {{system}}")
        return cls(str(path), analysis, program, barriers, load_system(system) if system else None)

    def on(self, system: str) -> Self:
        """Record of a module on a system."""
        return replace(self, system=load_system(system))

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
            record["times"] = times_record(self.whole, unknown_loops(self.analysis.of(self.barriers)))
            record["longest_path_time_s"] = record["times"]["longest_path_s"]
            record["heaviest"] = self.heaviest()
        return {**record, "figures": hlo.figures(self.analysis)}

    def notes(self) -> list[str]:
        """Assumptions for what the text does not say."""
        notes = list(self.analysis.graph.notes)
        if self.system and (size := chips(self.system)) < self.program.devices:
            notes.append(f"{self.system.name} has {counted(size, 'device')}, too few for this program")
        opaque: dict[str, int] = {}
        for kernel in self.analysis.graph.kernels:
            if kernel.kind == "custom-call" and not is_known(kernel.instruction):
                name = custom_call_target(kernel.instruction) or "unnamed"
                opaque[name] = opaque.get(name, 0) + kernel.count
        notes += [f"{counted(count, 'call')} of {name}: priced by its arrays alone" for name, count in opaque.items()]
        return notes

    def memory(self) -> dict[str, Any]:
        """Memory of one device, and with a system its capacity."""
        schedule, held = hlo.memory(self.analysis)
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
        for place, kernel in enumerate(self.program.kernels):
            for name, count in runs(kernel).items():
                fresh = {"name": name, "count": 0.0, "flops": 0.0, "bytes": 0.0, "at_least": False}
                row = rows.setdefault(name, fresh)
                row["at_least"] |= bool(self.analysis.graph.kernels[place].uncounted)
                row["count"] += count
                row["flops"] += count * (kernel.flops + sum(p.flops for p in kernel.products))
                row["bytes"] += count * kernel.bytes_moved
                if self.system:
                    own = float(self.times[place]) * count / kernel.count if kernel.count else 0.0
                    row["time_s"] = row.get("time_s", 0.0) + own
        return sorted(rows.values(), key=lambda row: -row.get("time_s", row["bytes"]))

    def heaviest(self) -> list[dict[str, Any]]:
        """Kernels that take longest."""
        order = np.argsort(-self.times, kind="stable")[:HEAVIEST]
        return [self._kernel(int(place)) for place in order]

    def _kernel(self, place: int) -> dict[str, Any]:
        kernel = self.program.kernels[place]
        return {
            "name": kernel.name,
            "kind": kernel.kind,
            "phase": kernel.phase,
            "count": kernel.count,
            "at_least": bool(self.analysis.graph.kernels[place].uncounted),
            "flops": kernel.flops + sum(p.flops for p in kernel.products),
            "bytes": kernel.bytes_moved,
            "time_s": float(self.times[place]),
            "op_name": self.analysis.graph.kernels[place].instruction.op_name,
        }

    def communication(self) -> list[dict[str, Any]]:
        """Messages by what they are for, the largest first; the time of one is of what most of it is for."""
        rows: dict[str, dict[str, Any]] = {}
        for place, each in self.analysis.collectives.items():
            count = self.analysis.graph.kernels[place].count
            for purpose, moved in each.payloads:
                row = rows.setdefault(purpose, {"name": purpose, "kinds": set(), "payload_bytes": 0})
                row["kinds"].add(each.name)
                row["payload_bytes"] += count * moved
                if self.system:
                    own = float(self.times[place]) if purpose == each.purpose else 0.0
                    row["time_s"] = row.get("time_s", 0.0) + own
        found = [{**row, "kinds": sorted(row["kinds"])} for row in rows.values()]
        return sorted(found, key=lambda row: -row["payload_bytes"])

    def collectives(self) -> list[dict[str, Any]]:
        """Messages by kind and groups of devices, the largest first."""
        places: dict[int, int] = {id(each): place for place, each in self.analysis.collectives.items()}
        kernels, rows = self.analysis.graph.kernels, []
        for name, own in collectives_by_group(self.analysis).items():
            placed = own[0][1].placement
            row: dict[str, Any] = {
                "name": name,
                "groups": placed.groups,
                "size": placed.size,
                "stride": placed.stride,
                "reducers": sorted({each.reducer for _, each in own if each.reducer}),
                "count": sum(count for count, _ in own),
                "at_least": any(kernels[places[id(each)]].uncounted for _, each in own),
                "payload_bytes": sum(count * each.payload_bytes for count, each in own),
            }
            if self.system:
                row["time_s"] = float(sum(self.times[places[id(each)]] for _, each in own))
            rows.append(row)
        return sorted(rows, key=lambda row: -row["payload_bytes"])

    def trace(self) -> dict[str, Any]:
        """The kernels one after the other, with the arrays that pass between them, as a Chrome trace.

        Raises `DseError` without a system, which gives no times.
        """
        if self.system is None:
            raise DseError(f"{self.file}: a trace is of kernels with times; of this, ask for table or json")
        details = {"file": self.file, "system": self.system.name, "barriers": self.barriers}
        graph = self.analysis.of(self.barriers)
        arrows = [
            Arrow(edge.producer, edge.consumer, {"output": edge.output, "bytes": edge.bytes}) for edge in graph.edges
        ]
        return chrome_trace(f"{self.program.name}, 1 of {self.program.devices:g}", self._spans(), arrows, details)

    def _spans(self) -> Sequence[Span]:
        ends = np.cumsum(self.times)
        spans = []
        for place, kernel in enumerate(self.program.kernels):
            row = self._kernel(place)
            lane = "messages" if kernel.message else "kernels"
            details = {key: row[key] for key in ("phase", "count", "flops", "bytes", "op_name")}
            start = float(ends[place] - self.times[place])
            spans.append(Span(kernel.name, kernel.kind, lane, start, row["time_s"], details))
        return spans
