"""A sweep as an SVG picture: an objective over the first swept name, a line for each value of the second."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.quantity import readable
from dse.reporting.designs.sweep_report import number, parameters_of
from dse.reporting.pictures.scatter import SHAPES, colour
from dse.searching.named.sweep import NamedDesigns
from dse.spaces.sections.parameters import Parameter

#: Size of the picture, and of what surrounds its axes. [pixels]
WIDTH, HEIGHT, LEFT, RIGHT, ABOVE, BELOW = 820.0, 520.0, 96.0, 190.0, 44.0, 62.0

#: Values that span more than so many times their least are drawn on a logarithmic axis. [-]
WIDE: Final = 8.0

#: Marks on an axis, about. [-]
TICKS: Final = 6

#: Room beside the outermost values, as a share of what they span. [-]
ROOM: Final = 0.04

STYLE: Final = """
svg { --series: 42%; background: #fff; font: 13px system-ui, sans-serif; fill: #222; }
.grid { stroke: #ddd; } .frame { fill: none; stroke: #999; }
.line { fill: none; stroke: var(--c); stroke-width: 1.8; } .mark { fill: var(--c); stroke: var(--c); }
.unfit { fill: #fff; stroke-width: 1.5; } .title { font-size: 15px; font-weight: 600; }
"""


@dataclass(frozen=True)
class Axis:
    """Where values are on an axis: by their logarithm, evenly, or one by one."""

    values: tuple[Any, ...]
    start: float  #: [pixels]
    end: float  #: [pixels]
    kind: str  #: "log", "linear" or "words"
    low: float = 0.0
    high: float = 1.0

    @classmethod
    def of(cls, values: Sequence[Any], start: float, end: float, *, from_zero: bool = False) -> Axis:
        """An axis that has room for some values."""
        distinct = tuple(dict.fromkeys(values))
        if any(isinstance(value, str | bool) for value in distinct):
            return cls(distinct, start, end, "words")
        low, high = float(min(distinct)), float(max(distinct))
        kind = "log" if low > 0 and high / low >= WIDE else "linear"
        if kind == "log":
            low, high = math.log10(low), math.log10(high)
        elif from_zero and low > 0:
            return cls(distinct, start, end, kind, 0.0, high * (1 + ROOM))
        room = ROOM * (high - low)
        return cls(distinct, start, end, kind, low - room, high + room)

    def at(self, value: Any) -> float:
        """Where a value is. [pixels]"""
        if self.kind == "words":
            share = (self.values.index(value) + 0.5) / len(self.values)
        else:
            own = math.log10(value) if self.kind == "log" else float(value)
            share = (own - self.low) / (self.high - self.low) if self.high > self.low else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self) -> Iterator[Any]:
        """Values that are marked: those there are where they are few, else round ones."""
        if self.kind == "words" or len(self.values) <= TICKS + 2:
            yield from self.values
        elif self.kind == "log":
            for decade in range(math.floor(self.low), math.ceil(self.high) + 1):
                for digit in (1, 2, 5):
                    if self.low <= math.log10(digit) + decade <= self.high:
                        yield digit * 10.0**decade
        else:
            yield from round_values(self.low, self.high)


def round_values(low: float, high: float) -> Iterator[float]:
    """About `TICKS` round numbers between two.

    >>> list(round_values(0.0, 11.0))
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    rough = (high - low) / TICKS or 1.0
    decade = 10.0 ** math.floor(math.log10(rough))
    step = next(digit * decade for digit in (1, 2, 5, 10) if digit * decade >= rough * 0.999)
    for place in range(math.ceil(low / step), math.floor(high / step) + 1):
        yield place * step


def sweep_plot(found: NamedDesigns) -> str:
    """The picture of a sweep.

    Of more than two names, the best design beside each value of the first two is drawn. Designs that break a
    limit are hollow; those that are not legal are left out.

    Raises
    ------
    DseError
        If nothing was swept, or no design has a number.
    """
    if not found.names:
        raise DseError("a picture needs a name to draw over: --sweep NAME=VALUES")
    objective = found.space.objectives[0]
    lines = best_of(found)
    if not lines:
        raise DseError("no design of these has a number to draw")
    by_name = {p.name: p for p in parameters_of(found)}
    first, second = by_name[found.names[0]], by_name[found.names[1]] if len(found.names) > 1 else None
    xs = [record["params"][first.name] for record in found.records]
    x = Axis.of(sorted(xs) if not any(isinstance(v, str | bool) for v in xs) else xs, LEFT, WIDTH - RIGHT)
    heights = [number(record, "values", objective.key) for line in lines.values() for record in line.values()]
    y = Axis.of([v for v in heights if v is not None], HEIGHT - BELOW, ABOVE, from_zero=True)
    drawn = [grid(x, y, first, objective.unit)]
    if any(not record["feasible"] for line in lines.values() for record in line.values()):
        drawn.append(f'<text x="{WIDTH - RIGHT + 14}" y="{HEIGHT - BELOW}">hollow: over a limit</text>')
    for place, (value, line) in enumerate(lines.items()):
        drawn.append(series(place, {own: line[own] for own in x.values if own in line}, x, y, objective.key))
        drawn.append(key(place, f"{second.name} {second.shown(value)}") if second else "")
    title = f"{found.space.name}: {objective.name.replace('_', ' ')} over {first.name.replace('_', ' ')}"
    title += f", the best of {', '.join(found.names[2:])}" if len(found.names) > 2 else ""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH:g} {HEIGHT:g}" width="{WIDTH:g}" '
        f'height="{HEIGHT:g}"><style>{STYLE}</style><title>{escape(title)}</title>'
        f'<text class="title" x="{LEFT}" y="26">{escape(title)}</text>{"".join(drawn)}'
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">'
        f"{escape(first.name.replace('_', ' '))}</text></svg>\n"
    )


def best_of(found: NamedDesigns) -> dict[Any, dict[Any, Mapping[str, Any]]]:
    """Value of the second name -> value of the first -> the best design beside both, feasible ones before."""
    objective = found.space.objectives[0]
    sign = 1.0 if objective.direction == "minimize" else -1.0
    lines: dict[Any, dict[Any, Mapping[str, Any]]] = {}
    ranks: dict[tuple[Any, Any], tuple[bool, float]] = {}
    for record in found.records:
        value = number(record, "values", objective.key)
        if value is None:
            continue
        own = record["params"]
        place = (own[found.names[1]] if len(found.names) > 1 else None, own[found.names[0]])
        rank = (not record["feasible"], sign * value)
        if place not in ranks or rank < ranks[place]:
            ranks[place] = rank
            lines.setdefault(place[0], {})[place[1]] = record
    return lines


def grid(x: Axis, y: Axis, first: Parameter, unit: str) -> str:
    """Frame, lines and numbers of both axes."""
    drawn = [
        f'<rect class="frame" x="{LEFT}" y="{ABOVE}" width="{WIDTH - RIGHT - LEFT}" '
        f'height="{HEIGHT - BELOW - ABOVE}"/>'
    ]
    for tick in x.ticks():
        label = first.shown(tick) if isinstance(tick, str | bool) else readable(tick, first.unit)
        drawn.append(
            f'<path class="grid" d="M{x.at(tick):.1f} {ABOVE}V{HEIGHT - BELOW}"/><text x="{x.at(tick):.1f}" '
            f'y="{HEIGHT - BELOW + 18}" text-anchor="middle">{escape(label)}</text>'
        )
    for tick in y.ticks() if y.kind == "log" else round_values(y.low, y.high):
        drawn.append(
            f'<path class="grid" d="M{LEFT} {y.at(tick):.1f}H{WIDTH - RIGHT}"/><text x="{LEFT - 8}" '
            f'y="{y.at(tick) + 4:.1f}" text-anchor="end">{escape(readable(tick, unit))}</text>'
        )
    return "".join(drawn)


def series(place: int, line: Mapping[Any, Mapping[str, Any]], x: Axis, y: Axis, objective: str) -> str:
    """A line through its designs, each with a mark."""
    points = [
        (x.at(value), y.at(record["values"][objective]), "mark" if record["feasible"] else "mark unfit")
        for value, record in line.items()
    ]
    path = " ".join(f"{across:.1f},{up:.1f}" for across, up, _ in points)
    marks = "".join(
        f'<g class="{kind}" transform="translate({across:.1f} {up:.1f})">{SHAPES[place % len(SHAPES)]}</g>'
        for across, up, kind in points
    )
    return f'<g style="--c:{colour(place)}"><polyline class="line" points="{path}"/>{marks}</g>'


def key(place: int, text: str) -> str:
    """A line of the legend."""
    at = f"translate({WIDTH - RIGHT + 22} {ABOVE + 10 + 20 * place})"
    mark = f'<g class="mark" style="--c:{colour(place)}">{SHAPES[place % len(SHAPES)]}</g>'
    return f'<g transform="{at}">{mark}<text x="12" y="4">{escape(text)}</text></g>'
