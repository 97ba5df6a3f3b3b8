"""Files and formats of results: that of ``--format``, else that of the ending of ``-o FILE``."""

from __future__ import annotations

import os
import secrets
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NoReturn

from rich.console import RenderableType

from costmodel.errors import DseError
from dse.cli.terminal import discard_output
from dse.output import NotWritten, json_text, plain_text, show, write_file

#: Ending of a file -> its format.
TABLE_ENDINGS: Final[Mapping[str, str]] = {".txt": "table", ".csv": "csv", ".json": "json", ".parquet": "parquet"}

#: Ending of a file -> form of the picture in it.
PICTURES: Final[Mapping[str, str]] = {f".{form}": form for form in ("svg", "png", "pdf")}

#: Form of a table or a picture -> ending of its file.
ENDINGS: Final[Mapping[str, str]] = {form: ending for ending, form in {**TABLE_ENDINGS, **PICTURES}.items()}

#: Rows that a table shows where it is not written to a file. [-]
MOST_ROWS: Final = 20
#: A table in a file leaves nothing out. [characters]
FILE_WIDTH: Final = 400


def form_of(asked: str | None, output: Path | None, endings: Mapping[str, str] = TABLE_ENDINGS) -> str:
    """The output format: as requested, else by the ending of the file; a file without an ending gets a table.

    Raises `DseError` for an ending that says nothing.

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
    """Refuse a file with another ending, with a `DseError`; a name without an ending passes."""
    if output and output.suffix and output.suffix.lower() not in endings:
        refuse_ending(output, endings)


def refuse_ending(output: Path, endings: Iterable[str]) -> None:
    """Say which endings there are. Always raises `DseError`."""
    *others, last = endings
    known = f"{', '.join(others)} or {last}" if others else last
    raise DseError(f"-o {output}: cannot write {output.suffix} files; end the name in {known}")


def checked_place(output: Path | None) -> None:
    """Check, before long work, that its result can be written; None is standard output.

    Raises `DseError` if the folder is not there or cannot be written, or the file is a folder.
    """
    if output is None or (output.exists() and not (output.is_file() or output.is_dir())):
        return  # such as /dev/stdout
    if output.is_dir():
        raise DseError(f"-o {output}: is a folder; name a file in it")
    if not output.parent.is_dir():
        raise DseError(f"-o {output}: no folder {str(output.parent)!r}; create it first")
    if not os.access(output.parent, os.W_OK | os.X_OK):
        raise DseError(f"-o {output}: its folder cannot be written; name another place")


def write_result(write: Callable[[Path | None], None], output: Path | None, ending: str) -> None:
    """Write a result that took long to find; elsewhere if that fails.

    `write` writes it to a file, or to stdout if given None; it may be called several times. `ending` is that of a file
    that takes the place of stdout. Raises `DseError` if it was written elsewhere, saying where, or nowhere.
    """
    try:
        write(output)
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except NotWritten as error:
        rescue(write, error.failure, output or Path(f"dse-result{ending}"))
    except OSError as error:
        discard_output()
        rescue(write, f"output: {error.strerror or error}", Path(f"dse-result{ending}"))


def rescue(write: Callable[[Path | None], None], failure: str, named: Path) -> NoReturn:
    """Write a result to the first writable folder, under a similar name, and report the name.

    Always raises `DseError`.
    """
    from dse.storage.atomic_files import refuges

    for folder in refuges():
        path = folder / f"{named.stem}.{secrets.token_hex(4)}{named.suffix}"
        try:
            write(path)
        except NotWritten:
            continue
        raise DseError(f"{failure}; the result is in {path}")
    raise DseError(f"{failure}; no other folder takes the result either")


def write_content(content: Iterable[bytes], form: str, output: Path | None) -> None:
    """A file's content, to the file or to stdout.

    Raises `DseError` if the file cannot be written, or the content is not text and stdout is a terminal.
    """
    if output:
        write_file(output, content)
        return
    if form != "parquet":
        sys.stdout.writelines(piece.decode() for piece in content)
        return
    if sys.stdout.isatty():
        raise DseError("parquet is not for reading on a terminal; name a file with -o, or pipe it")
    sys.stdout.buffer.writelines(content)


def write_json(value: Any, output: Path | None) -> None:
    """One JSON object, to the file or to stdout."""
    write_content([f"{json_text(value)}\n".encode()], "json", output)


def write_report(report: Callable[[int], Iterable[RenderableType]], output: Path | None) -> None:
    """A report to read, to the file or to stdout: made for the width there is."""
    if output:
        write_file(output, plain_text(report(FILE_WIDTH), FILE_WIDTH).encode())
    else:
        show(sys.stdout, report)


def write_answer(
    form: str, record: Any, report: Callable[[int], Iterable[RenderableType]], output: Path | None = None
) -> None:
    """An answer as one JSON object, if `form` is "json", else as a report to read."""
    if form == "json":
        write_json(record, output)
    else:
        write_report(report, output)
