"""The front of a study as an SVG picture that follows the reader's light or dark scheme."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.formats.quantity import readable
from costmodel.plotting import BROKEN, FRONT, NOTABLE, SCHEMES
from dse.figures.front import FrontPicture, Shown, far_apart

#: Size of one panel, and of the part around its axes. [pixels]
WIDTH, HEIGHT, LEFT, BELOW, ABOVE, EDGE = 560.0, 380.0, 76.0, 52.0, 16.0, 18.0

#: Ticks that an axis should have, about. [-]
TICKS: Final = 6


@dataclass(frozen=True, slots=True)
class PanelAxis:
    """A linear or logarithmic axis over a stretch of pixels."""

    shown: Shown
    low: float  #: [the unit shown, or log10 of it]
    high: float  #: [the unit shown, or log10 of it]
    log: bool
    start: float  #: [pixels]
    end: float  #: [pixels]

    @classmethod
    def of(cls, shown: Shown, values: FloatArray, start: float, end: float) -> PanelAxis:
        """An axis on which all values are, with some room."""
        log = far_apart(values)
        scaled = np.log10(values) if log else values
        low, high = float(scaled.min()), float(scaled.max())
        room = 0.04 * (high - low) or 0.05 * abs(high) or 1.0
        return cls(shown, low - room, high + room, log, start, end)

    def place(self, value: float) -> float:
        """Of a value. [pixels]"""
        scaled = math.log10(value) if self.log else value
        return self.start + (scaled - self.low) / (self.high - self.low) * (self.end - self.start)

    def ticks(self) -> Iterator[float]:
        """Round values: 1, 2 and 5 times powers of ten, or steps of such. [the unit shown]"""
        if self.log:
            for decade in range(math.floor(self.low), math.ceil(self.high) + 1):
                for value in (digit * 10.0**decade for digit in (1, 2, 5)):
                    if self.low <= math.log10(value) <= self.high:
                        yield value
            return
        size = 10.0 ** math.floor(math.log10((self.high - self.low) / TICKS))
        step = next(n * size for n in (1, 2, 5, 10) if (self.high - self.low) / (n * size) <= TICKS)
        for n in range(math.ceil(self.low / step), math.floor(self.high / step) + 1):
            yield n * step


def front_svg(picture: FrontPicture, title: str) -> str:
    """SVG of every pair of axes, side by side.

    Parameters
    ----------
    picture : FrontPicture
        What is drawn.
    title : str
        What it is read out as.
    """
    panels = "".join(
        f'<g transform="translate({place * WIDTH:g} 0)">{panel_svg(picture, pair)}</g>'
        for place, pair in enumerate(picture.pairs)
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH * len(picture.pairs):g} {HEIGHT:g}" '
        f'role="img" aria-label="{escape(title)}"><title>{escape(title)}</title><style>{style()}</style>'
        f'<rect class="paper" width="100%" height="100%"/>{panels}</svg>\n'
    )


def style() -> str:
    """CSS of both schemes."""

    def of(scheme: str) -> str:
        ink, dim, line, paper = SCHEMES[scheme]
        return (
            f"text {{ fill: {dim}; }} .title {{ fill: {ink}; }} .line {{ stroke: {line}; }} "
            f".paper {{ fill: {paper}; }} .note {{ fill: {ink}; paint-order: stroke; stroke: {paper}; "
            "stroke-width: 3; }"
        )

    return (
        "text { font: 12px system-ui, -apple-system, 'Segoe UI', sans-serif; } .line { fill: none; } "
        f".cloud {{ fill: #808a9b; opacity: .4; }} .front {{ fill: {FRONT}; }} "
        f".stair {{ fill: none; stroke: {FRONT}; stroke-width: 1.3; }} "
        f".ring {{ fill: none; stroke: {NOTABLE}; stroke-width: 2; }} .broken {{ fill: {BROKEN}; }} "
        f"{of('light')} @media (prefers-color-scheme: dark) {{ {of('dark')} }}"
    )


def panel_svg(picture: FrontPicture, pair: tuple[int, int]) -> str:
    """One pair of axes with its points."""
    across, up = pair
    every = np.concatenate([picture.front, picture.dominated])
    x = PanelAxis.of(picture.axes[across], every[:, across], LEFT, WIDTH - EDGE)
    y = PanelAxis.of(picture.axes[up], every[:, up], HEIGHT - BELOW, ABOVE)
    dots = [
        f'<circle class="{kind}" cx="{x.place(row[across]):.1f}" cy="{y.place(row[up]):.1f}" r="{size}"/>'
        for kind, size, rows in (("cloud", 2.2, picture.dominated), ("front", 3.8, picture.front))
        for row in rows.tolist()
    ]
    stair = staircase(picture, x, y) if len(picture.axes) == 2 else ""
    return f"{grid(x, y)}{stair}{''.join(dots)}{notes(picture, pair, x, y)}"


def grid(x: PanelAxis, y: PanelAxis) -> str:
    """Lines, numbers and titles of both axes."""
    drawn = []
    for tick in x.ticks():
        at, label = x.place(tick), escape(readable(tick, x.shown.unit))
        drawn.append(f'<path class="line" d="M{at:.1f} {y.end:g}V{y.start:g}"/>')
        drawn.append(f'<text x="{at:.1f}" y="{y.start + 18:g}" text-anchor="middle">{label}</text>')
    for tick in y.ticks():
        at, label = y.place(tick), escape(readable(tick, y.shown.unit))
        drawn.append(f'<path class="line" d="M{x.start:g} {at:.1f}H{x.end:g}"/>')
        drawn.append(f'<text x="{x.start - 8:g}" y="{at + 4:.1f}" text-anchor="end">{label}</text>')
    names = [escape(axis.shown.name.replace("_", " ")) for axis in (x, y)]
    middle_x, middle_y = (x.start + x.end) / 2, (y.start + y.end) / 2
    return (
        f"{''.join(drawn)}"
        f'<text class="title" x="{middle_x}" y="{HEIGHT - 10}" text-anchor="middle">{names[0]}</text>'
        f'<text class="title" transform="translate(14 {middle_y}) rotate(-90)" text-anchor="middle">'
        f"{names[1]}</text>"
    )


def staircase(picture: FrontPicture, x: PanelAxis, y: PanelAxis) -> str:
    """The line below which nothing was found."""
    rows = picture.front[np.argsort(picture.front[:, 0], kind="stable")].tolist()
    steps = [f"M{x.place(rows[0][0]):.1f} {y.place(rows[0][1]):.1f}"]
    for row in rows[1:]:
        across, up = f"H{x.place(row[0]):.1f}", f"V{y.place(row[1]):.1f}"
        steps.append(across + up if picture.axes[0].direction == "minimize" else up + across)
    return f'<path class="stair" d="{"".join(steps)}"/>'


def notes(picture: FrontPicture, pair: tuple[int, int], x: PanelAxis, y: PanelAxis) -> str:
    """Rings around notable designs; what they are best at stands beside them where there is one panel."""
    drawn = []
    for row, text in picture.notable.items():
        at_x, at_y = (axis.place(picture.front[row, of]) for axis, of in zip((x, y), pair, strict=True))
        anchor = "end" if at_x > (x.start + x.end) / 2 else "start"
        shift = -11 if anchor == "end" else 11
        drawn.append(
            f'<circle class="ring" cx="{at_x:.1f}" cy="{at_y:.1f}" r="7"><title>{escape(text)}</title>'
            "</circle>"
        )
        if len(picture.axes) == 2:
            drawn.append(
                f'<text class="note" x="{at_x + shift:.1f}" y="{at_y - 9:.1f}" text-anchor="{anchor}">'
                f"{escape(text)}</text>"
            )
    return "".join(drawn)
