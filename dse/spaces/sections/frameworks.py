"""`framework` of a search space, written out as values that all its designs share."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError, suggestion
from costmodel.formats.framework_file import load_framework
from costmodel.formats.strict_yaml import Section
from costmodel.profiles.registry import all_columns

#: Columns that say the same by two names: where a space has one, a framework is silent on the other.
ALIASES: Final = (
    ("zero", "distributed_optimizer"),
    ("sequence_parallel", "sharding"),
    ("tp_overlap", "overlap_tp"),
)


def written_out(section: Section, columns: Collection[str], quantities: Collection[str],
                base: Path) -> tuple[Section, str]:  # fmt: skip
    """A space with what its framework says under `given`, but for names that it has itself.

    Parameters
    ----------
    section : Section
        The space; mistakes are noted in its source.
    columns, quantities : collection of str
        What designs of its model and its system have. A framework may also name columns that designs of
        other models have.
    base : Path
        Where relative paths count from.

    Returns
    -------
    section : Section
        `framework` is a mapping then, of its name alone, so that no other file is needed.
    name : str
        The framework's; "" where there is none.
    """
    if "framework" not in section:
        return section, ""
    if isinstance(section.data["framework"], dict):
        own_name = section.section("framework")
        own_name.only(("name",))
        return section, own_name.text("name")
    name = section.text("framework")
    if not name:
        return section, ""
    try:
        framework = load_framework(name, base)
    except DseError as error:
        section.mistake("framework", str(error))
        return section, ""
    own = {word for key in ("given", "parameters", "derived") for word in section.mapping(key)}
    own |= {other for pair in ALIASES for one, other in (pair, pair[::-1]) if one in own}
    given: dict[str, Any] = {}
    for word, value in framework.given.items():
        if word in columns or word in quantities:
            given[word] = value
        elif word not in all_columns():
            known = [*columns, *quantities]
            section.mistake("framework", f"{framework.name}: {word}: no such name{suggestion(word, known)}")
    given = {word: value for word, value in given.items() if word not in own}
    data = {
        **section.data,
        "framework": {"name": framework.name},
        "given": {**given, **section.mapping("given")},
    }
    return Section(section.source, section.at, data), framework.name
