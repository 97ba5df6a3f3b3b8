"""Step time of an HLO module: with overlap, and its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.table import Table

from costmodel.columns import FloatArray
from costmodel.formats.quantity import readable
from dse.adapters.xla.steps.overlap import ProgramTimes
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
