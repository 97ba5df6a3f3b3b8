"""SimAI's files of bus bandwidths: text -> `Busbw`.

Upstream's own file is not quite YAML: a title stands on its first line, a comma after its keys, and what
belongs to a group may not be indented. All of that is understood.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from costmodel.formats.strict_yaml import Section, parse, read_text
from costmodel.profiles.simai.bandwidth import UNDEFINED, Busbw

GROUPS: Final = {"TP": "tp", "DP": "dp", "EP": "ep"}
COLLECTIVES: Final = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}

_TITLE: Final = re.compile(r"\A\s*\w+\s*$(?=\n)", re.MULTILINE)
_COMMA: Final = re.compile(r"^(\s*\w+)\s*,\s*:", re.MULTILINE)
_UNINDENTED: Final = re.compile(rf"^(?=(?:{'|'.join(COLLECTIVES)}|busbw)\s*:)", re.MULTILINE)


def load_busbw(path: Path) -> Busbw:
    """The bus bandwidths that a file holds.

    Raises
    ------
    DseError
        With one line for each mistake in the file.
    """
    return read_busbw(read_text(path), str(path))


def read_busbw(text: str, name: str) -> Busbw:
    """The bus bandwidths that a text holds; `name` is what messages call it.

    >>> read_busbw("TP: {allreduce: 300, allgather: 280}", "text").of("tp", "all_gather")
    280.0
    """
    plain = _UNINDENTED.sub("  ", _COMMA.sub(r"\1:", _TITLE.sub("", text)))
    section = parse(plain, name)
    section.only((*GROUPS, "PP"), "group")
    bandwidths: dict[tuple[str, str], float] = {}
    for key, group in GROUPS.items():
        own = section.section(key, required=False)
        own.only(COLLECTIVES, "collective")
        for word, collective in COLLECTIVES.items():
            if own.data.get(word) is not None:
                bandwidths[group, collective] = _bandwidth(own, word)
    messages = section.section("PP", required=False)
    messages.only(("busbw",))
    pp = _bandwidth(messages, "busbw") if messages.data.get("busbw") is not None else None
    section.source.finish()
    return Busbw(bandwidths, pp)


def _bandwidth(section: Section, key: str) -> float:
    """A number above 0. [GiB/s]"""
    value = section.number(key)
    if not value > 0 and value == value:
        section.mistake(key, f"{section.data[key]!r}: expected more than 0, in GiB/s, or null")
        return UNDEFINED
    return value
