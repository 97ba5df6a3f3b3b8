"""The house as a picture: rooms on their floors, and which of them knows which; drawn from the source.

``python -m tests.house_picture`` writes ``docs/house.svg``.
"""

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import product

from tests.house import FILES, PACKAGES, ROOMS, ROOT, arrows_between, floors, tree

PICTURE = ROOT / "docs" / "house.svg"

#: Lengths of the picture. [px]
WIDTH, MARGIN, GAP, FLOOR_GAP, LINE, WIDEST = 1200, 24, 16, 34, 14, 372
#: Letters of small text in a pixel. [1/px]
LETTERS = 0.175

STYLE = """
text { font: 11px system-ui, sans-serif; fill: #33414e }
.title { font-weight: 600; font-size: 13px; fill: #10202e }
.package { font-weight: 600; font-size: 17px; fill: #10202e }
.small { fill: #6b7885 }
.room { fill: #fff; stroke: #b9c6d2 }
.costmodel { fill: #eef5ee } .dse { fill: #eef2f9 }
.knows { fill: none; stroke: #8fa3b5; stroke-width: 1.1 }
""".strip()


@dataclass(frozen=True)
class Box:
    """A room or a module as it stands in the picture."""

    name: str
    left: float
    top: float
    width: float
    height: float
    lines: tuple[tuple[str, str], ...]  #: class and text

    def svg(self) -> str:
        """The box with its text."""
        parts = [
            f'<rect class="room" x="{self.left:.0f}" y="{self.top:.0f}" width="{self.width:.0f}" '
            f'height="{self.height:.0f}" rx="5"/>'
        ]
        parts += [
            f'<text class="{kind}" x="{self.left + 9:.0f}" y="{self.top + 4 + LINE * index:.0f}">{escape(text)}</text>'
            for index, (kind, text) in enumerate(self.lines, 1)
        ]
        return "\n".join(parts)


def described(room: str, width: float) -> tuple[tuple[str, str], ...]:
    """Text of a box: name and modules, the first sentence of the docstring, the rooms inside by floor."""
    modules = sum(name.startswith(f"{room}.") and name not in ROOMS for name in FILES)
    counted = f"  {modules} modules" if room in ROOMS else ""
    about = (ast.get_docstring(tree(room)) or "").partition("\n\n")[0].replace("\n", " ").replace("`", "")
    inside = " \u2190 ".join(", ".join(floor) for floor in floors(room))
    letters = int(LETTERS * (width - 18))
    return (
        ("title", room.rpartition(".")[2] + counted),
        *(("", line) for line in textwrap.wrap(about, letters)),
        *(("small", line) for line in textwrap.wrap(inside, letters)),
    )


def placed(package: str, top: float) -> Iterator[Box]:
    """Boxes of a package: the floor that is read last stands on top."""
    for names in reversed(floors(package)):
        width = min((WIDTH - 2 * MARGIN - GAP * (len(names) - 1)) / len(names), WIDEST)
        left = (WIDTH - width * len(names) - GAP * (len(names) - 1)) / 2
        texts = [described(f"{package}.{name}", width) for name in names]
        height = LINE * max(map(len, texts)) + 12
        for index, (name, lines) in enumerate(zip(names, texts, strict=True)):
            yield Box(name, left + index * (width + GAP), top, width, height, lines)
        top += height + FLOOR_GAP


def direct(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Pairs of a relation without those that follow from the others."""
    names, known = {name for pair in pairs for name in pair}, set(pairs)
    for middle, above, below in product(names, names, names):
        if {(above, middle), (middle, below)} <= known:
            known.add((above, below))
    follows = {(a, c) for a, b, c in product(names, names, names) if {(a, b), (b, c)} <= known}
    return pairs - follows


def arrow(above: Box, below: Box) -> str:
    """A line from the foot of one box to the top of another."""
    x, y = above.left + above.width / 2, above.top + above.height
    to = min(max(x, below.left + 20), below.left + below.width - 20)
    to, end = (to + below.left + below.width / 2) / 2, below.top
    bend = (end - y) / 2
    return (
        f'<path class="knows" d="M{x:.0f} {y:.0f} C{x:.0f} {y + bend:.0f} {to:.0f} {end - bend:.0f} '
        f'{to:.0f} {end - 2:.0f}" marker-end="url(#head)"/>'
    )


def picture() -> str:
    """The whole house as SVG: the first package below the one that stands on it."""
    top, parts = float(MARGIN), list[str]()
    for package in reversed(PACKAGES):
        boxes = [*placed(package, top + 46)]
        by_name, foot = {box.name: box for box in boxes}, max(box.top + box.height for box in boxes)
        about = (ast.get_docstring(tree(package)) or "").partition("\n\n")[0]
        parts.append(
            f'<rect class="{package}" x="8" y="{top:.0f}" width="{WIDTH - 16}" '
            f'height="{foot - top + 16:.0f}" rx="9"/>'
            f'<text x="{MARGIN}" y="{top + 27:.0f}"><tspan class="package">{package}</tspan>'
            f"<tspan dx='12'>{escape(about)}</tspan></text>"
        )
        pairs = direct({*arrows_between(package)})
        parts += [arrow(by_name[a], by_name[b]) for a, b in sorted(pairs)]
        parts += [box.svg() for box in boxes]
        top = foot + 40
    head = (
        '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" '
        'markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#8fa3b5"/></marker>'
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {top:.0f}" role="img" '
        f'aria-label="Rooms and floors of the two packages">\n<style>{STYLE}</style>\n<defs>{head}</defs>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


if __name__ == "__main__":
    PICTURE.write_text(picture())
