"""SimAI's files of bus bandwidths: text -> `Busbw`.

Upstream's own files are not quite YAML: the first line is a title, a comma follows the name of a collective, in October
2024 with the size of a message after it, and entries of a group are not indented. All of that is understood; SimAI,
too, reads nothing between the comma and the colon.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from costmodel.formats.input_files import Section, data_beside, parse, plain_text, read_text
from dse.adapters.simai.bandwidth import UNDEFINED, Busbw

GROUPS: Final = {"TP": "tp", "DP": "dp", "EP": "ep"}
MESSAGES: Final = "PP"
COLLECTIVES: Final[dict[str, str]] = data_beside(__file__)["collectives"]

#: A line of upstream's: a name, a comma and the size of a message or nothing, a colon and a value.
_LINE: Final = re.compile(r"( *)(\w+)( *(?:, *(?:\d[\w.]*)? *)?):(.*)")


def load_busbw(path: Path) -> Busbw:
    """The bus bandwidths that a file holds.

    Raises `DseError` with one line for each mistake in the file.
    """
    return read_busbw(read_text(path), str(path))


def read_busbw(text: str, name: str) -> Busbw:
    """The bus bandwidths in a text; messages call it `name`.

    >>> read_busbw("TP: {allreduce: 300, allgather: 280}", "text").of("tp", "all_gather")
    280.0
    """
    section = parse(as_yaml(plain_text(text)), name)
    section.only((*GROUPS, MESSAGES), "group")
    bandwidths: dict[tuple[str, str], float] = {}
    for key, group in GROUPS.items():
        entries = section.section(key, required=False)
        entries.only(COLLECTIVES, "collective")
        for word, collective in COLLECTIVES.items():
            if entries.data.get(word) is not None:
                bandwidths[group, collective] = _bandwidth(entries, word)
    messages = section.section(MESSAGES, required=False)
    messages.only(("busbw",))
    pp = _bandwidth(messages, "busbw") if messages.data.get("busbw") is not None else None
    section.source.finish()
    return Busbw(bandwidths, pp)


def as_yaml(text: str) -> str:
    """Upstream's text as YAML, every word on its line and, where it can be, in its column.

    >>> as_yaml("test\\nTP:\\nallreduce,16384: 200\\nalltoall,:null\\n")
    '\\nTP:\\n  allreduce:       200\\n  alltoall:  null\\n'
    """
    lines = [line.expandtabs(2).rstrip() for line in text.split("\n")]
    first = next((index for index, line in enumerate(lines) if line.strip() and line[0] != "#"), 0)
    if not set(":{}").intersection(lines[first]):
        lines[first] = ""  # a title
    indent, of_group = "", False
    for row, line in enumerate(lines):
        match = _LINE.fullmatch(line)
        if not match:
            continue
        margin, key, size, value = match.groups()
        if key in (*GROUPS, MESSAGES) or not value.strip():
            indent, of_group = "  ", not value.strip()
        elif margin:
            indent = margin
        elif of_group:
            margin = indent
        lines[row] = f"{margin}{key}:{' ' * len(size)}{value if value[:1] in ('', ' ') else ' ' + value}"
    return "\n".join(lines)


def _bandwidth(section: Section, key: str) -> float:
    """A number above 0. [GiB/s]"""
    value = section.number(key)
    if not value > 0 and value == value:
        section.mistake(key, f"{section.data[key]!r}: expected more than 0, in GiB/s, or null")
        return UNDEFINED
    return value
