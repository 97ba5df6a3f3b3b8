"""Parts of the step time and of the peak memory of a design, and its bottleneck.

The bottleneck is the largest share of the step by the resource that it waits for. Limits such as memory, power and
price are given as distances."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from rich.table import Table
from rich.text import Text

from costmodel.formats.input_files import data_beside
from costmodel.formats.quantity import readable
from costmodel.rules.rules import TRAINING
from costmodel.steps.breakdown import PARTS, with_unit_suffix
from dse.output import EXPECTED_TIME, Record, bar, part_name, percent
from dse.predictions import TIGHT, peak_spread
from dse.spaces.space import Space

#: Length of the bar of the largest part. [characters]
BAR = 12

#: Part of a step or of memory -> its name in a sentence. Kernels are divided by their bottleneck instead.
PHRASES: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["parts"]
BOUND_PHRASES: Final = {"memory_bound_time": "memory traffic", "launch_bound_time": "kernel launches"}


@dataclass(frozen=True)
class Contribution:
    """A part of a total."""

    name: str
    value: float  #: [the unit of the total]
    share: float  #: of the total [-]

    @property
    def label(self) -> str:
        """The name without its quantity: ``tp communication``."""
        return part_name(self.name)


def parts_of(record: Record, total: str) -> list[Contribution]:
    """The parts of a breakdown's total that are above 0, the largest first.

    Trials of earlier versions lack parts that these versions did not have.
    """
    columns = record["breakdown"]
    whole = columns.get(with_unit_suffix(total), math.nan)
    values = {name: columns.get(with_unit_suffix(name), 0.0) for name in PARTS[total]}
    parts = [Contribution(name, value, value / whole) for name, value in values.items() if value > 0]
    return sorted(parts, key=lambda part: -part.value)


def memory_capacity(space: Space, record: Record) -> float:
    """Memory of one chip, a parameter or a constant of the system. [B]"""
    name = f"{space.system.dram.name}_capacity"
    chosen = {**record["derived"], **record["params"]}
    return float(chosen[name]) if name in chosen else float(space.system.dram.capacity)


def memory_verdict(space: Space, record: Record) -> str:
    """The verdict on memory, a word of `VERDICTS`; "" where peaks are not measured or not known."""
    if space.workload.work != TRAINING:
        return ""
    peak = record.get("breakdown", {}).get(with_unit_suffix("peak_memory"), math.nan)
    if math.isnan(peak):
        return ""
    return peak_spread(space.framework).verdict(peak, memory_capacity(space, record))


def binding_tables(space: Space, record: Record, width: int) -> list[Table | Text]:
    """Two tables of parts, side by side where they fit, and a sentence; none for work without memory."""
    used = record["breakdown"].get(with_unit_suffix("peak_memory"))
    if used is None:
        return []
    capacity, memory = memory_capacity(space, record), parts_of(record, "peak_memory")
    headroom = [Contribution("headroom_memory", capacity - used, (capacity - used) / used)] if capacity > used else []
    time = bars(step_title(record), parts_of(record, "step_time"), "s")
    space_used = bars(f"{readable(used, 'B')} of {readable(capacity, 'B')}", [*memory, *headroom], "B", capacity)
    both: Table | Text
    if width >= 90:
        both = Table.grid(padding=(0, 4, 0, 0))
        both.add_row(time, space_used)
        return [both, Text(), Text(sentence(space, record))]
    return [time, Text(), space_used, Text(), Text(sentence(space, record))]


def step_title(record: Record) -> str:
    """Title of the parts of a step: its time, called predicted where designs are ranked by their expected time."""
    word = "predicted" if EXPECTED_TIME in record["values"] else "per step"
    return f"{readable(record['breakdown'][with_unit_suffix('step_time')], 's')} {word}"


def bars(title: str, parts: Sequence[Contribution], unit: str, whole: float | None = None) -> Table:
    """A table of parts with their shares as bars."""
    table = Table.grid(padding=(0, 2, 0, 0))
    for justify in ("left", "right", "right", "left"):
        table.add_column(justify=justify, no_wrap=True)
    whole = whole or sum(part.value for part in parts)
    longest = max((part.value for part in parts), default=1.0)
    table.add_row(Text(title, style="bold"), "", "", "")
    for part in parts:
        drawn = bar(part.value / longest, BAR) if part.name in PHRASES else ""
        table.add_row(f"  {part.label}", readable(part.value, unit), percent(part.value / whole), drawn)
    return table


def sentence(space: Space, record: Record) -> str:
    """The bottleneck of a design, its largest part of memory, and its other limits."""
    largest = next(iter(parts_of(record, "peak_memory")), None)
    if largest is None:
        return ""
    memory = f"Memory is mostly {PHRASES[largest.name]}, {readable(largest.value, 'B')}."
    is_tight = memory_verdict(space, record) == TIGHT
    tight = f" Memory is tight: {peak_spread(space.framework)}." if is_tight else ""
    return f"Bottleneck: {bottleneck_text(record)}. {memory}{limits(space, record)}{tight}"


def bottleneck_text(record: Record) -> str:
    """The largest share of a step, and the next: ``arithmetic, 80 % of the step; next ..., 7.9 %``."""
    first, *others = sorted(binding_shares(record).items(), key=lambda item: -item[1])
    following = "".join(f"; next {name}, {percent(share)}" for name, share in others[:1])
    return f"{first[0]}, {percent(first[1])} of the step{following}"


def binding_shares(record: Record) -> dict[str, float]:
    """Bottleneck in words -> its share of the step. [-]"""
    shares: dict[str, float] = {}
    for part in parts_of(record, "step_time"):
        shares[PHRASES[part.name]] = shares.get(PHRASES[part.name], 0.0) + part.share
    whole = record["breakdown"][with_unit_suffix("step_time")]
    for name, phrase in BOUND_PHRASES.items():
        shares[phrase] = share = record["breakdown"].get(with_unit_suffix(name), 0.0) / whole
        shares["arithmetic"] = shares.get("arithmetic", 0.0) - share
    return {phrase: share for phrase, share in shares.items() if share > 0}


def limits(space: Space, record: Record) -> str:
    """Distance to each limit; where a design has room, memory is left out, which the tables show."""
    shown = [
        f"{limit.name}: {readable(abs(margin), limit.unit)} {'within' if margin >= 0 else 'beyond'} the limit"
        for limit in space.limits
        if (margin := record["margins"].get(limit.key)) is not None and (margin < 0 or limit.unit != "B")
    ]
    return f" {'; '.join(shown)}." if shown else ""
