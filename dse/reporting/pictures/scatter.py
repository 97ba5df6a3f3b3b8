"""Predicted against measured figures as an SVG picture: logarithmic axes, lines of equal errors."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from costmodel.formats.quantity import readable

#: Size of the picture, and of the part around its axes. [pixels]
WIDTH, HEIGHT, LEFT, BELOW, EDGE = 760.0, 620.0, 84.0, 58.0, 18.0

#: Errors at which lines stand beside the diagonal. [-]
ERROR_LINES: Final = (0.10, 0.25)

#: Shapes of points, taken in turn: each series has a shape and a hue of its own.
SHAPES: Final = (
    '<circle r="4.2"/>',
    '<rect x="-3.8" y="-3.8" width="7.6" height="7.6"/>',
    '<path d="M0-5 4.8 3.6-4.8 3.6Z"/>',
    '<path d="M0-5.4 5.4 0 0 5.4-5.4 0Z"/>',
)

#: Between the hues of one series and the next, the golden angle: neighbours differ, however many there are.
#: [degrees]
HUE_STEP: Final = 137.508


@dataclass(frozen=True, slots=True)
class Point:
    """A measured figure with its prediction, and what is said of it."""

    measured: float  #: [SI unit of the picture]
    predicted: float  #: [SI unit of the picture]
    about: str


@dataclass(frozen=True, slots=True)
class Axes:
    """Both axes: the same powers of ten, so that the diagonal is where predictions are right."""

    low: float  #: [log10 of the unit]
    high: float  #: [log10 of the unit]

    @classmethod
    def of(cls, points: Sequence[Point]) -> Axes:
        """As many decades as the points need, and some room."""
        logs = [math.log10(value) for point in points for value in (point.measured, point.predicted)]
        return cls(min(logs) - 0.12, max(logs) + 0.12)

    def x(self, value: float) -> float:
        """Of a measured figure. [pixels]"""
        return LEFT + self._share(value) * (WIDTH - LEFT - EDGE)

    def y(self, value: float) -> float:
        """Of a prediction. [pixels]"""
        return HEIGHT - BELOW - self._share(value) * (HEIGHT - BELOW - EDGE)

    def _share(self, value: float) -> float:
        return (math.log10(value) - self.low) / (self.high - self.low)

    @property
    def ends(self) -> tuple[float, float]:
        """Smallest and largest figure. [SI unit of the picture]"""
        return 10.0**self.low, 10.0**self.high

    def ticks(self) -> Iterator[float]:
        """Powers of ten; of few decades, twice and five times them too. [SI unit of the picture]"""
        steps = (1, 2, 5) if self.high - self.low < 3 else (1,)
        for decade in range(math.floor(self.low), math.ceil(self.high) + 1):
            for step in steps:
                if self.low <= math.log10(step * 10.0**decade) <= self.high:
                    yield step * 10.0**decade


def colour(place: int) -> str:
    """CSS of a series: a hue of its own, as light as the scheme wants."""
    return f"hsl({place * HUE_STEP % 360:.0f} 68% var(--series))"


def scatter(series: Mapping[str, Sequence[Point]], what: str, unit: str, first: int = 0) -> str:
    """A picture of some series of points.

    Parameters
    ----------
    series : mapping
        Name -> points, one at least in all.
    what : str
        What is measured.
    unit : str
        Its SI unit.
    first : int
        Number of the first series on the page: series of several pictures have numbers of their own.
    """
    axes = Axes.of([point for points in series.values() for point in points])
    groups = []
    for place, (name, points) in enumerate(series.items()):
        marks = "".join(
            f'<g transform="translate({axes.x(p.measured):.1f} {axes.y(p.predicted):.1f})">'
            f"{SHAPES[place % len(SHAPES)]}<title>{escape(f'{name}: {p.about}')}</title></g>"
            for p in points
        )
        groups.append(f'<g class="series s{first + place}" style="--c:{colour(place)}">{marks}</g>')
    return (
        f'<svg viewBox="0 0 {WIDTH:g} {HEIGHT:g}" role="img" aria-label="{escape(what)}: predicted against '
        f'measured">{grid(axes, unit)}{error_lines(axes)}{titles(what)}{"".join(groups)}</svg>'
    )


def grid(axes: Axes, unit: str) -> str:
    """Lines and numbers of both axes."""
    low, high = axes.ends
    left, right, top, bottom = axes.x(low), axes.x(high), axes.y(high), axes.y(low)
    drawn = [f'<rect class="frame" x="{left}" y="{top}" width="{right - left}" height="{bottom - top}"/>']
    for tick in axes.ticks():
        x, y, label = axes.x(tick), axes.y(tick), readable(tick, unit)
        drawn += [
            f'<path class="grid" d="M{x:.1f} {top:.1f}V{bottom:.1f}M{left:.1f} {y:.1f}H{right:.1f}"/>',
            f'<text x="{x:.1f}" y="{bottom + 18:.1f}" text-anchor="middle">{label}</text>',
            f'<text x="{left - 8:.1f}" y="{y + 4:.1f}" text-anchor="end">{label}</text>',
        ]
    return "".join(drawn)


def error_lines(axes: Axes) -> str:
    """The diagonal, and lines of equal relative errors on both sides of it."""
    low, high = axes.ends
    drawn = [f'<path class="exact" d="M{axes.x(low)} {axes.y(low)}L{axes.x(high)} {axes.y(high)}"/>']
    for error in (sign * size for size in ERROR_LINES for sign in (1, -1)):
        start, end = max(low, low / (1 + error)), min(high, high / (1 + error))
        x, y = axes.x(start), axes.y(start * (1 + error))
        drawn.append(
            f'<path class="error" d="M{x:.1f} {y:.1f}L{axes.x(end):.1f} {axes.y(end * (1 + error)):.1f}">'
            f"<title>{error:+.0%}</title></path>"
        )
    return "".join(drawn)


def titles(what: str) -> str:
    """What the axes are."""
    middle_x, middle_y = (LEFT + WIDTH - EDGE) / 2, (HEIGHT - BELOW + EDGE) / 2
    return (
        f'<text class="axis" x="{middle_x}" y="{HEIGHT - 14}" text-anchor="middle">'
        f"measured {escape(what)}</text>"
        f'<text class="axis" transform="translate(16 {middle_y}) rotate(-90)" text-anchor="middle">'
        f"predicted {escape(what)}</text>"
    )


def legend(names: Sequence[str], first: int = 0) -> str:
    """The shape and hue of each series."""
    items = (
        f'<li class="k{first + place}" style="--c:{colour(place)}"><svg viewBox="-7 -7 14 14">'
        f'<g class="series">{SHAPES[place % len(SHAPES)]}</g></svg>{escape(name)}</li>'
        for place, name in enumerate(names)
    )
    return f'<ul class="legend">{"".join(items)}</ul>'
