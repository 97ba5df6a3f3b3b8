"""An HLO module on several machines: which of them for this program."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from costmodel.errors import ParameterError
from costmodel.formats.quantity import readable
from costmodel.formats.system_file import load_system, system_names
from costmodel.machine.system import System, stacked
from dse.adapters.xla.report.cost_record import ModuleCost, chips
from dse.adapters.xla.report.step_times import time_text, times_record, unknown_text
from dse.adapters.xla.steps.overlap import ProgramTimes, program_times, unknown_loops
from dse.output.text import counted, percent
from dse.reporting.design_table import Column, drawn, fitted

if TYPE_CHECKING:
    import pandas as pd

Record = Mapping[str, Any]


def machines(named: str) -> list[System]:
    """Machines that a list names, apart by commas; all that ship for none.

    Raises `DseError` for a name that is none, or one given twice.
    """
    names = [name.strip() for name in named.split(",")] if named else system_names()
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ParameterError(f"{{sweep}}: {twice}: given twice")
    if "" in names:
        raise ParameterError(f"{{sweep}} {named}: an empty name between commas")
    return [load_system(name) for name in names]


def sweep_record(cost: ModuleCost, systems: Sequence[System]) -> dict[str, Any]:
    """A module on each of some machines, as JSON has it: those that it fits on first, by time."""
    rows = list(_rows(cost, systems))
    order = {"": 0, "too little memory": 1}
    rows.sort(key=lambda row: (order.get(row["problem"], 2), row.get("times", {}).get("step_s", 0.0)))
    return {
        "file": cost.file,
        "module": cost.program.name,
        "devices": cost.program.devices,
        "profile": "native",
        "barriers": cost.barriers,
        "notes": cost.notes(),
        "systems": rows,
    }


def _rows(cost: ModuleCost, systems: Sequence[System]) -> Iterator[dict[str, Any]]:
    """A row for each machine."""
    graph = cost.analysis.of(cost.barriers)
    unknown = unknown_loops(graph)
    large = [chips(system) for system in systems]
    enough = [place for place, size in enumerate(large) if size >= cost.program.devices]
    for place, size in enumerate(large):
        if place not in enough:
            yield {"system": systems[place].name, "problem": f"has {counted(size, 'device')}"}
    for places, stack in stacked([systems[place] for place in enough]):
        times = program_times(cost.analysis, cost.program, graph, stack)
        for own, place in enumerate(places):
            machine = cost.on_machine(systems[enough[place]])
            yield _row(machine, times, unknown, own)


def _row(machine: ModuleCost, times: ProgramTimes, unknown: Sequence[str], place: int) -> dict[str, Any]:
    """A machine's times, memory, dollars and joules."""
    assert machine.system is not None
    memory = machine.memory()
    return {
        "system": machine.system.name,
        "problem": "" if memory["fits"] else "too little memory",
        "times": times_record(times, unknown, place),
        "memory": {name: memory[name] for name in ("program_bytes", "needed_bytes", "capacity_bytes", "fits")},
        "energy_per_step_j": float(times.energy[place]),
        "system_price_usd": float(times.breakdown.system_price[place]),
    }


def sweep_report(record: Record, width: int) -> list[RenderableType]:
    """The machines in a table."""
    rows = record["systems"]
    title = f"{record['module']} on {counted(int(record['devices']), 'device')}"
    shown: list[RenderableType] = [Text(f"{title}: a step on {counted(len(rows), 'system')}")]
    why = next((unknown_text(row["times"]) for row in rows if "times" in row), "")
    shown += [*([Text(f"{why}, so that times are lower bounds")] if why else []), Text()]
    columns = sweep_columns(rows)
    kept, left_out = fitted(columns, width)
    shown += drawn(kept)
    if left_out:
        shown.append(Text(f"Columns that do not fit: {', '.join(left_out)}"))
    return [*shown, *(Text(f"Note: {note}") for note in record["notes"])]


def sweep_columns(rows: Sequence[Record]) -> list[Column]:
    """Columns of the table; the last word of a row is what keeps the program from a machine."""
    timed = [row for row in rows if "times" in row]

    def cells(text: Any) -> list[str]:
        return [text(row) if "times" in row else "-" for row in rows]

    def time(key: str) -> list[str]:
        return cells(lambda row: time_text(row["times"][key], row["times"]))

    def exposed(row: Record) -> str:
        return readable(sum(row["times"]["exposed_s"].values()), "s")

    words = [row["problem"] for row in rows]
    columns = [Column("system", ("system",), [row["system"] for row in rows], left=True)]
    columns += [Column("step", ("step",), time("step_s"))]
    if any(row["times"]["exposed_s"] for row in timed):
        columns += [
            Column("exposed messages", ("exposed", "messages"), cells(exposed), 1),
            Column("without overlap", ("without", "overlap"), time("serial_s"), 7),
            Column("longest path", ("longest", "path"), time("longest_path_s"), 6),
        ]
    columns += [
        Column("mfu", ("mfu",), cells(lambda row: percent(row["times"]["mfu"])), 5),
        Column("needed", ("memory", "needed"), cells(lambda row: _bytes(row, "needed_bytes")), 2),
        Column("there", ("memory", "there"), cells(lambda row: _bytes(row, "capacity_bytes")), 2),
        Column("energy", ("energy", "a step"), cells(lambda row: readable(row["energy_per_step_j"], "J")), 4),
        Column("price", ("price",), cells(lambda row: readable(row["system_price_usd"], "$")), 3),
    ]
    return [*columns, *([Column("", ("",), words, left=True)] if any(words) else [])]


def _bytes(row: Record, name: str) -> str:
    return readable(row["memory"][name], "B")


def sweep_frame(record: Record) -> pd.DataFrame:
    """The machines as a table of plain columns, one for each figure."""
    import pandas as pd

    return pd.DataFrame([dict(_plain(row)) for row in record["systems"]])


def _plain(row: Record, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in row.items():
        if isinstance(value, Mapping):
            yield from _plain(value, "exposed_" if name == "exposed_s" else "")
        elif isinstance(value, list):
            yield name, " ".join(value)
        else:
            yield (f"{prefix}{re.sub('[^a-z]+', '_', name)}_s" if prefix else name), value
