"""Answers about launch files: which of two is faster and why, and what could explain a measured step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.text import Text

from costmodel.formats.quantity import readable
from dse.explaining.measured_gap import MeasuredGap
from dse.output.text import percent
from dse.reporting.answers import numbers_text, question_text, wrapped
from dse.reporting.design_table import Column, drawn, interval_text
from dse.reporting.designs.neighbours_report import change_text, relative

if TYPE_CHECKING:
    from dse.reporting.study_report import Report


def pair_report(pair: Any, exceeded: Sequence[str], width: int) -> Report:
    """The faster file and by how much, both designs, and the parts of the difference; of a `LaunchPair`."""
    one, other = (record["breakdown"] for record in pair.records)
    slower, memory = (other[key] - one[key] for key in ("step_time_s", "peak_memory_bytes"))
    word = "slower" if slower > 0 else "faster"
    speed = f"{percent(abs(pair.change))} {word} than" if slower else "as fast as"
    more = f"{readable(abs(memory), 'B')} {'more' if memory > 0 else 'less'} memory"
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
    reached, leads = one["step_time_s"], []
    for part in pair.parts:
        reached += part.step_time_change
        leads.append(readable(reached, "s"))
    columns = [
        Column("changed", ("changed",), [flags_text(part) for part in pair.parts], left=True),
        Column("step", ("step time",), [change_text(p.step_time_change, "s") for p in pair.parts]),
        Column("share", ("",), [relative(p.step_time_change, one["step_time_s"]) for p in pair.parts], 2),
        Column("leads to", ("leads to",), leads, 1),
        Column("memory", ("memory",), [change_text(p.peak_memory_change, "B") for p in pair.parts]),
    ]
    return [*wrapped(lines, width), Text(), *wrapped([("", said)], width), Text(), *drawn(columns)]


def settings_text(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Changed settings: ``tp 8 to 4, pp 2 to 4``."""
    return ", ".join(f"{name} {_shown(old)} to {_shown(new)}" for name, (old, new) in changes.items())


def flags_text(part: Any) -> str:
    """Flags of a `ChangedSetting`, a line each, and the settings where no flag decides them."""
    lines = []
    for name, (old, new) in part.flags.items():
        switch = isinstance(new if old is None else old, bool)
        value = "" if switch else f" {_shown(old if new is None else new)}"
        if old is None or new is None or switch:
            lines.append(f"{'without' if new is None or new is False else 'with'} {name}{value}")
        else:
            lines.append(f"{name} {_shown(old)} to {_shown(new)}")
    return "\n".join(lines) or settings_text(part.changes)


def _shown(value: Any) -> str:
    """A value as options write it."""
    return str(value).lower() if isinstance(value, bool) else str(value) or "none"


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
    table = [
        Column("cause", ("cause",), [cause.name for cause in gap.causes], left=True),
        Column("step", ("step time",), [readable(cause.step_time, "s") for cause in gap.causes], 1),
        Column("share", ("of the gap",), [percent(cause.share) for cause in gap.causes]),
    ]
    checks = [("", f"- {cause.name}: {cause.check}") for cause in gap.causes[1:MOST_CHECKS]]
    return [*wrapped([*lines, ("", said)], width), Text(), *drawn(table), Text(), *wrapped(checks, width)]


#: Causes whose checks are listed. [-]
MOST_CHECKS = 5
