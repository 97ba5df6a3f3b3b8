"""Designs, launch files, systems and plans side by side, and a design next to its measurement: the faster, and why.

Differences are attributed to parts of the step, so that they add up to the difference of the totals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from rich.text import Text

from costmodel.columns import FloatArray
from costmodel.formats.quantity import readable
from costmodel.machine import System, chip_power, chip_price
from dse.explaining.measured_gap import MeasuredGap
from dse.output import ROWS_SHOWN, Report, percent, ranked_rate, ranked_time
from dse.reporting.answers import joined, layout_text, memory_text, numbers_text, question_text, wrapped
from dse.reporting.design_table import PER_GPU, Column, columns_of, drawn, fitted_table, interval_text, thousands
from dse.reporting.designs.changes_report import change_text, relative
from dse.spaces.sections.frameworks import shown


def pair_report(pair: Any, exceeded: Sequence[str], width: int) -> Report:
    """The faster file and by how much, both designs, and the parts of the difference; of a `LaunchPair`."""
    one, other = (record["breakdown"] for record in pair.records)
    slower, memory = (other[key] - one[key] for key in ("step_time_s", "peak_memory_bytes"))
    word = "slower" if slower > 0 else "faster"
    speed = f"{percent(abs(pair.change))} {word} than" if slower else "as fast as"
    more = f"{readable(abs(memory), 'B')} {'more' if memory > 0 else 'less'} memory" if memory else "the same memory"
    lines = [("", f"{pair.files[1]} is {speed} {pair.files[0]}, with {more}.")]
    lines += [("", f"{line}.") for line in exceeded]
    labels = ("Before", "After")
    lines += [
        (label, f"{numbers_text(space, record)} ({question_text(space, record)})")
        for label, space, record in zip(labels, pair.spaces, pair.records, strict=True)
    ]
    if not pair.parts:
        return [*wrapped([*lines, ("", "No setting that the cost model reads has changed.")], width)]
    said = "Settings changed one after another, the largest effect first; the parts add up to the difference."
    reached, rows = one["step_time_s"], []
    for part in pair.parts:
        reached, change = reached + part.step_time_change, relative(part.step_time_change, one["step_time_s"])
        changes = change_text(part.step_time_change, "s"), change, readable(reached, "s")
        rows.append((flags_text(part), *changes, change_text(part.peak_memory_change, "B")))
    table = drawn(columns_of(("changed", "step time", "", "leads to", "memory"), rows))
    return [*wrapped(lines, width), Text(), *wrapped([("", said)], width), Text(), *table]


def flags_text(part: Any) -> str:
    """Flags of a `ChangedSetting`, a line each, and the settings where no flag decides them."""
    lines = []
    for name, (old, new) in part.flags.items():
        switch = isinstance(new if old is None else old, bool)
        value = "" if switch else f" {shown(old if new is None else new)}"
        if old is None or new is None or switch:
            lines.append(f"{'without' if new is None or new is False else 'with'} {name}{value}")
        else:
            lines.append(f"{name} {shown(old)} to {shown(new)}")
    return "\n".join(lines) or ", ".join(f"{n} {shown(old)} to {shown(new)}" for n, (old, new) in part.changes.items())


def gap_report(gap: MeasuredGap, width: int) -> Report:
    """The measured step against the predicted one, the first check, and the causes as a table."""
    explanation, record = gap.explanation, gap.explanation.record
    predicted, mfu = explanation.step_time, record["breakdown"].get("mfu", 0.0)
    low, high = gap.interval
    slower = gap.measured / predicted - 1
    speed = f"{percent(abs(slower))} {'slower' if slower > 0 else 'faster'} than predicted"
    inside = low <= gap.measured <= high
    verdict = f"{'inside' if inside else 'outside'} the 90 % interval"
    utilization = f", {percent(mfu * predicted / gap.measured)} MFU" if mfu else ""
    interval = f" (90 %: {interval_text(record)})" if "evidence" in record else ""
    lines = [
        ("", f"Measured {readable(gap.measured, 's')} a step{utilization}: {speed}, {verdict}."),
        ("", f"Predicted {readable(predicted, 's')}{interval}{f', {percent(mfu)} MFU' if mfu else ''}."),
    ]
    if mfu * predicted > gap.measured:
        lines.append(("", "More than 100 % MFU is not possible: check the time, the number of GPUs and the batch."))
    if inside:
        lines.append(("", "The difference is within the accuracy of the prediction."))
    elif gap.causes:
        lines.append(("", f"Check first: {gap.causes[0].name}. {gap.causes[0].check}."))
    elif slower > 0 and not gap.causes:
        lines.append(("", "No candidate cause that the cost model can evaluate slows this design down."))
    lines.append(("", "Data loading, checkpoints and evaluation are not modelled: time a step without them."))
    if not gap.causes or inside:
        return [*wrapped(lines, width)]
    distance = readable(gap.measured - predicted, "s")
    said = f"Candidate causes, each evaluated alone; closest to the gap of {distance} first:"
    rows = [(cause.name, readable(cause.step_time, "s"), percent(cause.share)) for cause in gap.causes]
    table = drawn(columns_of(("cause", "step time", "of the gap"), rows))
    checks = [("", f"- {cause.name}: {cause.check}") for cause in gap.causes[1:MOST_CHECKS]]
    return [*wrapped([*lines, ("", said)], width), Text(), *table, Text(), *wrapped(checks, width)]


#: Causes whose checks are listed. [-]
MOST_CHECKS = 5


#: Quantities that a comparison begins with.
HEADLINE = (
    *("peak_flop_rate", "dram_bandwidth", "dram_capacity", "node_bandwidth", "fabric_bandwidth"),
    *("chip_price", "chip_power"),
)
#: Derived quantities: name -> unit, and value of a system.
DERIVED: dict[str, tuple[str, Callable[[System], FloatArray]]] = {
    "peak_flop_rate": ("FLOP/s", lambda system: system.chip.peak_flop_rate),
    "chip_price": ("$", chip_price),
    "chip_power": ("W", chip_power),
}


def system_quantities(system: System) -> dict[str, tuple[str, float]]:
    """Unit and value of every quantity of a machine, derived ones first. [SI units]"""
    units = system.units()
    derived = {name: (unit, value_of(value_from(system))) for name, (unit, value_from) in DERIVED.items()}
    return derived | {name: (units[name], value_of(quantity)) for name, quantity in system.quantities().items()}


def value_of(values: FloatArray) -> float:
    """The one value of a quantity. [its unit]"""
    return float(np.ravel(values)[0])


def differing(one: System, other: System) -> list[dict[str, Any]]:
    """Quantities in which two machines differ: name, unit, values, and their ratio; NaN where none. [-]"""
    left, right = system_quantities(one), system_quantities(other)
    rows = []
    for name in dict.fromkeys((*left, *right)):
        unit = (left.get(name) or right[name])[0]
        values = [quantities.get(name, (unit, float("nan")))[1] for quantities in (left, right)]
        if values[0] != values[1] and not all(np.isnan(values)):
            ratio = values[1] / values[0] if values[0] else float("nan")
            rows.append({"quantity": name, "unit": unit, "values": values, "ratio": ratio})
    return rows


def system_report(one: System, other: System, width: int) -> Report:
    """The ratios of rates, memory and price; then the table of `differing`, its first rows."""
    rows = sorted(differing(one, other), key=lambda row: row["quantity"] not in HEADLINE)
    if not rows:
        return [Text(f"Systems {one.name} and {other.name} are alike.")]
    cells = [
        (row["quantity"], *("-" if np.isnan(v) else readable(v, row["unit"]) for v in row["values"]), ratio_text(row))
        for row in rows[:ROWS_SHOWN]
    ]
    names = ("quantity", one.name, other.name, "ratio")
    table = fitted_table(columns_of(names, cells, leave_out={one.name: 1, other.name: 1}), width)
    headline = [f"{ratio_text(row)} x {row['quantity']}" for row in rows if row["quantity"] in HEADLINE]
    text = f"{other.name} has {joined(headline)} of {one.name}." if headline else ""
    count = f"Systems {one.name} and {other.name}: {len(rows)} quantities differ."
    more = len(rows) - len(cells)
    return [
        *wrapped([("", part) for part in (text, count) if part], width),
        Text(),
        *table,
        *([Text(f"{more} more: --format json")] if more else []),
    ]


def ratio_text(row: dict[str, Any]) -> str:
    """The ratio of a quantity; "" where it has none."""
    return f"{row['ratio']:.3g}" if np.isfinite(row["ratio"]) else ""


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
    studies = ", ".join(row.plan.study.name for row in rows)
    more = [("", f"Each row is a study, for `dse explain` and `dse export`: {studies}.")]
    sizes = sorted({int(row.plan.study.space.constants["global_batch_size"]) for row in rows})
    text = f"Batches differ ({', '.join(map(str, sizes))} sequences a step); --global-batch-size fixes one."
    head = wrapped([*lines, ("", _whose_dollars(rows)), *([("", text)] if len(sizes) > 1 else [])], width)
    return [*head, Text(), *fitted_table(_columns(rows), width), Text(), *wrapped([*absent, *more], width)]


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
        rents = [f"${price:,.2f} a GPU-hour of {name}" for name, price in prices.items()]
        return f"Dollars: rented, {', '.join(rents)}."
    renting = "--gpu-hour-price 2.50 gives those of renting"
    if "run" in rows[0].record:
        return f"Dollars: owned, by purchase prices, power and lifetime of the system files; {renting}."
    return f"--tokens 15T adds days and dollars; {renting}."


def _columns(rows: list[Any]) -> list[Column]:
    """Columns of the table; where it is too wide the layout goes first."""
    pairs = [(row.plan.study.space, row.record) for row in rows]
    short = ("tp", "pp", "vpp", "cp", "ep", "dp")
    layouts = [layout_text(*pair, short).replace("\xa0", " ").replace(", vpp 1,", ",") for pair in pairs]
    memory = [memory_text(space, record).partition(" (")[0] for space, record in pairs]
    runs, dollars = [_run(row) for row in rows], [_dollars(row).partition(" for")[0] for row in rows]
    heading = "cost" if any(runs) else "$ for 1B\ntokens"
    word = "GPU" if {space.chip_word for space, _ in pairs} == {"GPU"} else "chip"
    return [
        Column("system", [row.system for row in rows], left=True),
        Column(f"{word}s", [f"{row.gpus:,}" for row in rows]),
        Column("step", [readable(ranked_time(record), "s") for _, record in pairs]),
        Column(f"tokens/s\nper {word}", [f"{ranked_rate(record, PER_GPU):,.0f}" for _, record in pairs]),
        Column("MFU", [percent(ranked_rate(record, "mfu")) for _, record in pairs], 2),
        Column("memory", memory, 1),
        *([Column("run", runs)] if any(runs) else []),
        *([Column(heading, dollars)] if {*dollars} != {"-"} else []),
        Column("best layout", layouts, 3, left=True),
    ]
