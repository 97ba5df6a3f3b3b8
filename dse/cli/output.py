"""Where results go, and in what form: what ``--format`` says, else the ending of ``-o FILE``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.console import RenderableType

#: Ending of a file -> what is written there.
TABLE_ENDINGS: Final[Mapping[str, str]] = {
    ".txt": "table",
    ".csv": "csv",
    ".json": "json",
    ".parquet": "parquet",
}

#: A table in a file leaves nothing out. [characters]
FILE_WIDTH: Final = 400


def form_of(asked: str | None, output: Path | None, endings: Mapping[str, str] = TABLE_ENDINGS) -> str:
    """What to write: as asked, else as the ending of the file says; a file without an ending has a table.

    Raises
    ------
    DseError
        For an ending that says nothing.

    >>> form_of(None, Path("front.csv")), form_of("json", Path("front.dat")), form_of(None, None)
    ('csv', 'json', 'table')
    """
    if asked or output is None:
        return asked or "table"
    ending = output.suffix.lower()
    if ending and ending not in endings:
        refuse_ending(output, endings)
    return endings.get(ending, "table")


def checked_ending(output: Path | None, endings: Iterable[str]) -> None:
    """Refuse, with a `DseError`, a file whose ending is none of those that are written; none is fine."""
    if output and output.suffix and output.suffix.lower() not in endings:
        refuse_ending(output, endings)


def refuse_ending(output: Path, endings: Iterable[str]) -> None:
    """Say which endings there are.

    Raises
    ------
    DseError
        Always.
    """
    from costmodel.errors import DseError

    *others, last = endings
    known = f"{', '.join(others)} or {last}" if others else last
    raise DseError(f"-o {output}: nothing here writes {output.suffix} files; end the name in {known}")


def write_content(content: Iterable[bytes], form: str, output: Path | None) -> None:
    """A file's content, to the file or to stdout.

    Raises
    ------
    DseError
        If the file cannot be written, or the content is no text and stdout is a terminal.
    """
    if output:
        from dse.export.tables import write_file

        write_file(output, content)
        return
    if form != "parquet":
        sys.stdout.writelines(piece.decode() for piece in content)
        return
    if sys.stdout.isatty():
        from costmodel.errors import DseError

        raise DseError("parquet is not for reading on a terminal; name a file with -o, or pipe it")
    sys.stdout.buffer.writelines(content)


def write_report(report: Callable[[int], Iterable[RenderableType]], output: Path | None) -> None:
    """A report to read, to the file or to stdout: made for the width there is."""
    from dse.report.text import plain_text, show

    if output:
        from dse.export.tables import write_file

        write_file(output, plain_text(report(FILE_WIDTH), FILE_WIDTH).encode())
    else:
        show(sys.stdout, report)
