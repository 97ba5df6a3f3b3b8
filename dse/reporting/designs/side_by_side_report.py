"""Plans on several systems in one table, with the cheapest and the fastest first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rich.text import Text

from costmodel.formats.quantity import readable
from dse.output.text import percent
from dse.reporting.answers import layout_text, memory_text, numbers_text, wrapped
from dse.reporting.design_table import PER_GPU, Column, drawn, fitted, thousands

if TYPE_CHECKING:
    from dse.reporting.study_report import Report


def side_by_side_report(table: Any, width: int) -> Report:
    """The answer, a row for each plan, and why plans do not fit; `table` is a `PlanTable`."""
    rows = [row for row in table.rows if row.record]
    absent = [
        ("", f"{row.gpus:,} x {row.system}: {getattr(row.plan, 'flags', row.plan)}")
        for row in table.rows
        if not row.record
    ]
    if not rows:
        return [*wrapped([("", "No layout fits on any of these systems."), *absent], width)]
    best = [("Cheapest", table.cheapest), ("Fastest", table.fastest)]
    if table.cheapest is table.fastest:
        best = [("Cheapest and fastest", table.fastest)]
    lines = [(label, _row_text(row)) for label, row in best if row]
    columns, left_out = fitted(_columns(rows), width)
    note = [("", f"Too wide to show: {', '.join(left_out)}.")] if left_out else []
    studies = ", ".join(row.plan.study.name for row in rows)
    more = [("", f"Each row is a study, for `dse explain` and `dse export`: {studies}.")]
    head = wrapped([*lines, ("", _whose_dollars(rows)), *_batches(rows)], width)
    return [*head, Text(), *drawn(columns), Text(), *wrapped([*note, *absent, *more], width)]


def _row_text(row: Any) -> str:
    """A row in a sentence."""
    space, run = row.plan.study.space, _run(row)
    cost = f", {_dollars(row)}" if row.cost is not None else ""
    numbers = f"{numbers_text(space, row.record)}{f', {run}' if run else ''}{cost}"
    return f"{row.gpus:,} x {row.system} with {layout_text(space, row.record)}: {numbers}."


def _run(row: Any) -> str:
    """Time of the whole run; "" without tokens."""
    return thousands(readable(row.record["run"]["run_time_s"], "s")) if "run" in row.record else ""


def _dollars(row: Any) -> str:
    """Cost of the run, or of a billion tokens."""
    if row.cost is None:
        return "-"
    return thousands(readable(row.cost, "$")) + ("" if "run" in row.record else " for 1B tokens")


def rent_text(row: Any) -> str:
    """Rent of a plan without tokens: ``$1,400 for 1B tokens at $2.50 a GPU-hour; --tokens 15T gives ...``."""
    return f"{_dollars(row)} at ${row.gpu_hour_price:,.2f} a GPU-hour; --tokens 15T gives days and the cost of the run"


def _whose_dollars(rows: list[Any]) -> str:
    """Who pays, and at which price."""
    prices = {row.system: row.gpu_hour_price for row in rows}
    if None not in prices.values():
        rents = [f"${own:,.2f} a GPU-hour of {name}" for name, own in prices.items()]
        return f"Dollars: rented, {', '.join(rents)}."
    renting = "--gpu-hour-price 2.50 gives those of renting"
    if "run" in rows[0].record:
        return f"Dollars: owned, by purchase prices, power and lifetime of the system files; {renting}."
    return f"--tokens 15T adds days and dollars; {renting}."


def _batches(rows: list[Any]) -> list[tuple[str, str]]:
    """A line where plans have other batches, so that steps are not alike."""
    found = sorted({int(row.plan.study.space.constants["global_batch_size"]) for row in rows})
    text = f"Batches differ ({', '.join(map(str, found))} sequences a step); --global-batch-size fixes one."
    return [("", text)] if len(found) > 1 else []


def _columns(rows: list[Any]) -> list[Column]:
    """Columns of the table; where it is too wide the layout goes first."""
    found = [(row.plan.study.space, row.record, row.record["breakdown"]) for row in rows]
    short = ("tp", "pp", "vpp", "cp", "ep", "dp")
    layouts = [layout_text(space, own, short).replace("\xa0", " ") for space, own, _ in found]
    memory = [memory_text(space, own).partition(" (")[0] for space, own, _ in found]
    runs, dollars = [_run(row) for row in rows], [_dollars(row).partition(" for")[0] for row in rows]
    heading = ("cost",) if any(runs) else ("$ for 1B", "tokens")
    return [
        Column("system", ("system",), [row.system for row in rows], left=True),
        Column("GPUs", ("GPUs",), [f"{row.gpus:,}" for row in rows]),
        Column("step", ("step",), [readable(own["step_time_s"], "s") for *_, own in found]),
        Column(PER_GPU, ("tokens/s", "per GPU"), [f"{own[PER_GPU]:,.0f}" for *_, own in found]),
        Column("mfu", ("MFU",), [percent(own["mfu"]) for *_, own in found], 2),
        Column("memory", ("memory",), memory, 1),
        *([Column("run", ("run",), runs)] if any(runs) else []),
        *([Column("cost", heading, dollars)] if {*dollars} != {"-"} else []),
        Column("layout", ("best layout",), layouts, 3, left=True),
    ]
