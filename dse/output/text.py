"""Designs and numbers as text, and where text is printed."""

from __future__ import annotations

import io
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from costmodel.columns import column_units
from costmodel.errors import printable
from costmodel.formats.quantity import exact, readable
from costmodel.steps.result.breakdown import Breakdown, with_unit_suffix
from dse.spaces.space import Space

if TYPE_CHECKING:
    from dse.spaces.sections.parameters import Parameter

#: One design, nested as in JSON: params, derived, values, margins, breakdown, and perhaps its trial.
Record = Mapping[str, Any]

#: Step time of a breakdown, and the expected one, an objective of plans.
STEP_TIME, EXPECTED_TIME = "step_time_s", "step_time_expected_s"

#: Width of what goes to a file or another program. [characters]
PLAIN_WIDTH = 100

#: SI unit of every breakdown column, by its name in tables.
UNITS = {with_unit_suffix(name): unit for name, unit in column_units(Breakdown).items()}


def ranked_time(record: Record) -> float:
    """Step time that ranks a design: the expected one in plans, else the predicted one. [s]"""
    time: float = record["values"].get(EXPECTED_TIME, record["breakdown"].get(STEP_TIME, math.nan))
    return time


def ranked_rate(record: Record, name: str) -> float:
    """Rate of a design at its `ranked_time`, such as ``mfu``; 0 if the breakdown has none. [1/s], [-]"""
    rate: float = record["breakdown"].get(name, 0.0)
    expected = record["values"].get(EXPECTED_TIME)
    return rate * record["breakdown"][STEP_TIME] / expected if expected else rate


class SafeConsole(Console):
    """A console on which no name that is shown can steer the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """A text, what would steer the terminal written out."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """The pieces of what is shown, the same done to those that come as `Text`."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(printable(piece.text), piece.style)


def console(stream: TextIO) -> Console:
    """Console as wide as the terminal; elsewhere of plain text, as wide as `plain_width`."""
    if stream.isatty():
        return SafeConsole(file=stream, highlight=False, markup=False, emoji=False)
    return plain_console(stream, plain_width())


def plain_width() -> int:
    """Width of a pipe: ``$COLUMNS``, else of the terminal behind it, at most `PLAIN_WIDTH`. [characters]"""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isascii() and wanted.isdecimal() and len(wanted) <= 4 and int(wanted) > 0:
        return int(wanted)
    for number in (2, 0):  # a pager reads stdout of a command whose messages and keys are of the terminal
        with suppress(OSError):
            return min(os.get_terminal_size(number).columns or PLAIN_WIDTH, PLAIN_WIDTH)
    return PLAIN_WIDTH


def plain_console(stream: TextIO, width: int) -> Console:
    """A console without colour."""
    return SafeConsole(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system=None)


def show(stream: TextIO, report: Callable[[int], Iterable[RenderableType]]) -> None:
    """Print a report that is made for the width there is."""
    where = console(stream)
    if where.is_terminal:
        where.print(*report(where.width), sep="\n")
    else:
        stream.write(plain_text(report(where.width), where.width))


def plain_text(shown: Iterable[RenderableType], width: int) -> str:
    """Tables and lines as they are printed where there is no terminal."""
    buffer = io.StringIO()
    plain_console(buffer, width).print(*shown, sep="\n")
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def design_text(space: Space, params: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """A design as ``--set`` takes it: ``tp=8 pp=16 recompute=full``."""
    chosen = [name for name in params if name in space.by_name] if names is None else names
    return " ".join(f"{name}={parameter_text(space.by_name[name], params[name])}" for name in chosen)


def parameter_text(parameter: Parameter, value: Any) -> str:
    """A parameter's value as ``--set`` reads it back, without the space that would need quotes."""
    number = not isinstance(value, str | bool) and parameter.unit != "-"
    return (exact(value, parameter.unit) if number else parameter.shown(value)).replace(" ", "")


def column_text(record: Record, name: str) -> str:
    """A breakdown column of a design, by its name in tables, with its unit."""
    value = record["breakdown"][name]
    if UNITS[name] == "1/s":
        return f"{value:,.0f}"
    return percent(value) if UNITS[name] == "-" else readable(value, UNITS[name])


def percent(share: float) -> str:
    """A share for people.

    >>> percent(0.512), percent(0.0714)
    ('51 %', '7.1 %')
    """
    return f"{share:.0%}".replace("%", " %") if share >= 0.0995 else f"{share:.1%}".replace("%", " %")


def bar(share: float, length: int) -> str:
    """A bar in eighths of a character, as long as its share of `length`.

    >>> bar(0.5, 4), bar(0.6, 2), bar(0.001, 4)
    ('██', '█▎', '▏')
    """
    eighths = max(1, round(share * length * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def counted(number: int, thing: str) -> str:
    """A count with its noun.

    >>> counted(1, "design"), counted(5412, "design")
    ('1 design', '5,412 designs')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"
