"""Input files, read strictly: of bounded size, unpacked by gzip, YAML with the line of each mistake.

`parse` turns a text into a `Section`, which readers ask for one key after the other. A mistake is noted with its line,
and the reader goes on with a stand-in: one run reports all mistakes of a file. Scalars follow YAML 1.2 rather than 1.1:
``1e12`` is a number; ``on``, ``yes`` and ``12:30`` are words. Aliases are refused, since they let a small file grow.
"""

from __future__ import annotations

import gzip
import os
import re
import select
import stat
import time
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Final, TypeVar

import yaml

from costmodel.errors import DseError, shortened, suggestion
from costmodel.formats.quantity import LONGEST_NUMBER, si_value

#: How long a pipe may be silent. [s]
SILENCE = 10.0
#: Most that is read of a pipe, and at once. [B]
MOST_PIPED, AT_ONCE = 64 << 20, 1 << 16

#: Pipe -> when it was last written to, and its content, which cannot be read again. [-] -> [ns]
_READ: Final[dict[tuple[int, int], tuple[int, bytes]]] = {}


def piped(path: Path, largest: int) -> bytes:
    """Content of a pipe up to where its writer closes it; a pipe that was read is remembered.

    Raises `DseError` if it is more than `largest` or `MOST_PIPED` [B], or nothing comes for `SILENCE`.
    """
    status = path.stat()
    pipe, room = (status.st_dev, status.st_ino), min(largest, MOST_PIPED)
    written, content = _READ.get(pipe, (-1, b""))
    if written != status.st_mtime_ns:
        content = _drained(path, room)
        _READ[pipe] = path.stat().st_mtime_ns, content
    if len(content) > room:
        raise DseError(f"{path}: a pipe of more than {room:,} bytes; copy its content to a file")
    return content


def _drained(path: Path, room: int) -> bytes:
    """All that comes out of a pipe, or a byte more than there is room for. [B]"""
    pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # does not wait for a writer
    pieces, size, last = list[bytes](), 0, time.monotonic()
    try:
        while size <= room:
            left = last + SILENCE - time.monotonic()
            if left <= 0:
                raise DseError(f"{path}: a pipe that is silent for {SILENCE:g} s; copy its content to a file")
            if not select.select([pipe], [], [], left)[0]:
                continue
            piece = os.read(pipe, min(AT_ONCE, room + 1 - size))
            if piece:
                pieces.append(piece)
                size, last = size + len(piece), time.monotonic()
            elif pieces:
                break
            else:
                time.sleep(0.01)  # no writer has come yet
    finally:
        os.close(pipe)
    return b"".join(pieces)


_GZIP: Final = b"\x1f\x8b"
#: Largest file of a kind that a person writes: YAML, JSON, a table of measurements. [B]
LARGEST_WRITTEN: Final = 4 << 20
#: Largest file of a kind that a program writes. [B]
LARGEST: Final = 1 << 30
#: Largest unpacked size of a packed file, and the largest ratio to its packed size beyond that. [B], [-]
UNPACKED, RATIO = 32 << 20, 50


def checked_file(path: Path, largest: int = LARGEST) -> int | None:
    """Size of a file that may be read; None of a pipe. [B]

    Raises `DseError` for no file, no regular file or pipe (a device need not end), or more than `largest` bytes. [B]
    """
    try:
        status = path.stat()
    except (OSError, ValueError) as error:
        raise DseError(f"{path}: {unreadable(error)}") from None
    if stat.S_ISDIR(status.st_mode):
        raise DseError(f"{path}: is a directory")
    if stat.S_ISFIFO(status.st_mode):
        return None
    if not stat.S_ISREG(status.st_mode):
        raise DseError(f"{path}: not a regular file; copy its content to one")
    if status.st_size > largest:
        raise DseError(f"{path}: {status.st_size:,} bytes; at most {largest:,} are read")
    return status.st_size


def unreadable(error: OSError | ValueError) -> str:
    """Why a file cannot be read, in a few words."""
    return ((error.strerror if isinstance(error, OSError) else None) or str(error)).lower()


def file_bytes(path: Path, largest: int = LARGEST) -> bytes:
    """The content of a file or a pipe of at most `largest` bytes.

    Raises `DseError` if it cannot be read, or `checked_file` or `piped` refuses it.
    """
    is_pipe = checked_file(path, largest) is None
    try:
        return piped(path, largest) if is_pipe else path.read_bytes()
    except OSError as error:
        raise DseError(f"{path}: {unreadable(error)}") from None


def content(path: Path, most: int | None = None) -> bytes:
    """The first bytes of a file, or all, unpacked if it is packed.

    Raises `DseError` if it cannot be read, or unpacks to more than files of text do.
    """
    size = checked_file(path)
    try:
        file: BinaryIO
        if size is None:
            whole = piped(path, LARGEST)
            file, size = BytesIO(whole), len(whole)
        else:
            file = path.open("rb")
        with file:
            packed = file.read(len(_GZIP)) == _GZIP
            file.seek(0)
            room = max(UNPACKED, RATIO * size) if packed else size
            source = gzip.GzipFile(fileobj=file) if packed else file
            chunk = source.read(room + 1 if most is None else most)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DseError(f"{path}: damaged gzip file: {error}") from None
    except OSError as error:
        raise DseError(f"{path}: {unreadable(error)}") from None
    if len(chunk) > room:
        raise DseError(f"{path}: unpacks to more than {room:,} bytes; unpack it if you trust it")
    return chunk


T = TypeVar("T")
Location = tuple[str | int, ...]

_INT: Final = re.compile(r"[-+]?[0-9]+")
_FLOAT: Final = re.compile(r"[-+]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][-+]?[0-9]+)?")
_CONSTANTS: Final[dict[str, bool | None]] = {
    **dict.fromkeys(("true", "True"), True),
    **dict.fromkeys(("false", "False"), False),
    **dict.fromkeys(("null", "~", ""), None),
}
_PARSER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_WRITER: Final[Any] = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
#: Levels of nesting that a file may have: more than any file of ours has.
DEEPEST: Final = 30


def scalar(text: str) -> str | int | float | bool | None:
    """Value that an unquoted word of a file stands for.

    >>> [scalar(word) for word in ("8", "1e12", "on", "true", "017", "80 GB")]
    [8, 1000000000000.0, 'on', True, 17, '80 GB']
    """
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text) if len(text) <= LONGEST_NUMBER else text
    return float(text) if len(text) <= LONGEST_NUMBER and _FLOAT.fullmatch(text) else text


class _Dumper(_WRITER):  # type: ignore[misc]  # a class of PyYAML, with libyaml or without
    """Writer of texts that `scalar` reads back: it quotes a text exactly where it would be read as another type."""

    yaml_implicit_resolvers: dict[str, list[Any]] = {}  # noqa: RUF012  (PyYAML's own attribute)

    def ignore_aliases(self, data: Any) -> bool:
        return True


for _tag, _pattern, _first in (
    ("tag:yaml.org,2002:int", _INT, "-+0123456789"),
    ("tag:yaml.org,2002:float", _FLOAT, "-+.0123456789"),
    ("tag:yaml.org,2002:bool", re.compile("true|True|false|False"), "tTfF"),
    ("tag:yaml.org,2002:null", re.compile("null|~|"), ["n", "~", ""]),
):
    _Dumper.add_implicit_resolver(_tag, re.compile(f"(?:{_pattern.pattern})$"), list(_first))


def dump(data: Mapping[str, Any], *, compact: bool = False) -> str:
    """YAML text that `parse` reads back as the same data, keys in order; compact: lists in one line."""
    flow = None if compact else False
    options: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "default_flow_style": flow}
    return str(yaml.dump(dict(data), Dumper=_Dumper, width=120, **options))


#: Mistakes that one message tells, and mistakes from which a file is not read on.
MOST_LISTED_MISTAKES, MOST_MISTAKES = 20, 1000


@dataclass
class Source:
    """One text, where its parts stand, and the mistakes found in it so far."""

    name: str
    lines: dict[Location, int] = field(default_factory=dict)
    mistakes: list[tuple[int, str]] = field(default_factory=list)
    origins: dict[Location, tuple[Location, str]] = field(default_factory=dict)  #: of parts that another file adds

    def mistake(self, at: Location, what: str) -> None:
        """Note that the part at `at` is wrong, or its file if another part names one that it comes from."""
        at, file = self.origins.get(at, (at, ""))
        line = next((self.lines[at[:n]] for n in range(len(at), -1, -1) if at[:n] in self.lines), 0)
        where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in at).lstrip(".").replace("\n", "\\n")
        self.note(line, f"{where + ': ' if where else ''}{file}{what}")

    def note(self, line: int, what: str) -> None:
        """Note that a line, counted from 1, is wrong; 0 where it is unknown."""
        self.mistakes.append((line, f"{self.name}{f':{line}' if line else ''}: {shortened(what)}"))
        if len(self.mistakes) >= MOST_MISTAKES:
            self.finish()

    def finish(self) -> None:
        """Raise noted mistakes as one `DseError`, with a line for each of the first in the order of the file."""
        if self.mistakes:
            listed = [*dict.fromkeys(text for _, text in sorted(self.mistakes))]
            if (more := len(listed) - MOST_LISTED_MISTAKES) > 0:
                least = "at least " * (len(self.mistakes) >= MOST_MISTAKES)
                listed[MOST_LISTED_MISTAKES:] = [f"{self.name}: and {least}{more} more mistakes"]
            raise DseError("\n".join(listed))


def exact_text(path: Path, expected: str, *, largest: int = LARGEST_WRITTEN) -> str:
    """Text of a file of at most `largest` bytes, unchanged; `expected` names the format for messages.

    Raises `DseError` if it cannot be read, is too large, or is not text.
    """
    try:
        return file_bytes(path, largest).decode("utf-8")
    except UnicodeDecodeError:
        raise DseError(f"{path}: not a text file; expected {expected}") from None


def plain_text(text: str) -> str:
    """A text without a byte order mark, whose lines end as they do here.

    >>> plain_text("\\ufeffa\\r\\nb\\rc").splitlines()
    ['a', 'b', 'c']
    """
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def read_text(path: Path, expected: str = "YAML in UTF-8", *, largest: int = LARGEST_WRITTEN) -> str:
    """The `plain_text` of a file of at most `largest` bytes; `expected` names the format for messages.

    Raises `DseError` if it cannot be read, is too large, or is not text.
    """
    return plain_text(exact_text(path, expected, largest=largest))


def data_beside(module: str, name: str = "") -> Any:
    """Content of the YAML file next to a module, by its ``__file__``: with the module's name, or another `name`."""
    path = Path(module)
    return yaml.load((path.with_name(name) if name else path.with_suffix(".yaml")).read_text(), Loader=_PARSER)


def parse(text: str, name: str) -> Section:
    """The mapping that a text holds.

    Raises `DseError` if the text is not YAML, or is something else than a mapping.
    """
    source = Source(name)
    reader = _Events(text, source)
    try:
        data = reader.document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, at = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        raise DseError(f"{name}:{line}:{at}: not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise DseError(f"{name}: not YAML: {' '.join(str(error).split())}") from None
    source.finish()
    if not isinstance(data, dict):
        what = "empty; expected" if data is None else "expected"
        raise DseError(f"{name}: {what} keys and values, such as 'schema: search_space/v1'")
    return Section(source, (), data)


class _Events:
    """Builds plain data from the parser's events, one after the other.

    PyYAML's own tree would let nesting overflow the stack, and aliases make a small file large.
    """

    def __init__(self, text: str, source: Source) -> None:
        self.events: Iterator[Any] = yaml.parse(text, Loader=_PARSER)
        self.source = source

    def document(self) -> Any:
        """Data of the only document; None where there is none."""
        next(self.events)  # start of the stream
        if isinstance(next(self.events), yaml.StreamEndEvent):
            return None
        data = self.value(next(self.events), ())
        next(self.events)  # end of the document
        after = next(self.events)
        if not isinstance(after, yaml.StreamEndEvent):
            self.source.mistake((), f"one document expected, and another begins on line {_line(after)}")
        return data

    def value(self, event: Any, at: Location) -> Any:
        """Data of a scalar, or of all events up to the end of a list or mapping."""
        self.source.lines[at] = _line(event)
        if len(at) > DEEPEST:
            raise yaml.MarkedYAMLError(problem="nested too deeply", problem_mark=event.start_mark)
        if isinstance(event, yaml.AliasEvent):
            self.source.mistake(at, "aliases (&name, *name) are not understood; write the value out")
            return None
        if event.tag is not None:
            self.source.mistake(at, "tags (!name) are not understood; write the value alone")
        if isinstance(event, yaml.MappingStartEvent):
            return self.mapping(at)
        if isinstance(event, yaml.SequenceStartEvent):
            return self.items(at)
        return scalar(event.value) if event.implicit[0] else event.value

    def items(self, at: Location) -> list[Any]:
        """Data of the items of a list."""
        items: list[Any] = []
        while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
            items.append(self.value(event, (*at, len(items))))
        return items

    def mapping(self, at: Location) -> dict[str, Any]:
        """Data of a mapping; notes repeated keys."""
        data: dict[str, Any] = {}
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key, line = getattr(event, "value", f"line {_line(event)}"), _line(event)
            first = self.source.lines[(*at, key)] if key in data else None
            self.value(event, (*at, key))
            if not isinstance(event, yaml.ScalarEvent):
                self.source.mistake((*at, key), "expected a word before each ':'")
            elif "".join(key.splitlines()) != key:
                self.source.mistake((*at, key), "a name has no line breaks")
            value = self.value(next(self.events), (*at, key))
            self.source.lines[(*at, key)] = line
            if first is not None:
                self.source.mistake((*at, key), f"already given on line {first}")
            data[key] = value
        return data


def _line(event: Any) -> int:
    """Line of an event, from 1."""
    return int(event.start_mark.line) + 1


@dataclass
class Section:
    """A mapping of a file, read key by key.

    A mistake is noted and a stand-in handed out, so that one reading finds them all.
    """

    source: Source
    at: Location
    data: dict[str, Any]

    def __contains__(self, key: str) -> bool:
        return key in self.data

    def __iter__(self) -> Iterator[str]:
        return iter(self.data)

    def mistake(self, key: str | None, what: str) -> None:
        """Note a mistake in the value of `key`, or in the section itself."""
        self.source.mistake(self.at if key is None else (*self.at, key), what)

    def only(self, known: Collection[str], what: str = "key") -> None:
        """Note every key that is not known."""
        for key in self.data:
            if key not in known:
                self.mistake(key, f"unknown {what}{suggestion(key, known)}")

    def value(self, key: str, read: Callable[[Any], T], stand_in: T, *, required: bool = True) -> T:
        """`read(value)`; notes the message of its ValueError, and a key that is required and missing."""
        if key not in self.data:
            if required:
                self.mistake(None, f"{key}: missing")
            return stand_in
        try:
            return read(self.data[key])
        except ValueError as error:
            self.mistake(key, str(error))
            return stand_in

    def text(self, key: str, *, required: bool = True) -> str:
        """The text under a key."""
        return self.value(key, _text, "", required=required)

    def word(self, key: str, words: Collection[str], *, default: str | None = None) -> str:
        """The value of a key that is one of some words."""

        def read(value: Any) -> str:
            if isinstance(value, str) and value in words:
                return value
            raise ValueError(f"{value!r} is not a value{suggestion(str(value), words)}")

        return self.value(key, read, default or next(iter(words)), required=default is None)

    def switch(self, key: str, *, default: bool) -> bool:
        """The value of a key that is true or false."""

        def read(value: Any) -> bool:
            if isinstance(value, bool):
                return value
            raise ValueError(f"{value!r}: expected true or false")

        return self.value(key, read, default, required=False)

    def number(self, key: str, unit: str = "-", *, default: float | None = None) -> float:
        """The number under a key, in the SI unit given."""
        stand_in = float("nan") if default is None else default
        return self.value(key, lambda value: si_value(value, unit), stand_in, required=default is None)

    def section(self, key: str, *, required: bool = True) -> Section:
        """The mapping under a key, as a section."""

        def read(value: Any) -> dict[str, Any]:
            if isinstance(value, dict):
                return value
            raise ValueError(f"expected keys and values, got {'nothing' if value is None else repr(value)}")

        return Section(self.source, (*self.at, key), self.value(key, read, {}, required=required))

    def mapping(self, key: str) -> Mapping[str, Any]:
        """The mapping under a key as it is; {} for another value, which the reader of the section reports."""
        written = self.data.get(key)
        return written if isinstance(written, dict) else {}

    def sections(self, what: str) -> dict[str, Section]:
        """Every value of this mapping, each a mapping itself."""
        if not self.data and not self.source.mistakes:
            self.mistake(None, f"expected at least one {what}")
        return {key: self.section(key) for key in self.data}


def _text(value: Any) -> str:
    if isinstance(value, str) and value.strip():
        return value
    raise ValueError(f"{value!r}: expected a text")
