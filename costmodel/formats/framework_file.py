"""Framework files: what training software does, in YAML -> `Framework`.

A framework is a list of values, each with its kind and source, for names that designs or machines have: the
attention kernel it calls, what it overlaps, how many kernels it runs in place of a fused one, how long its
host takes to dispatch one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costmodel.formats import shipped
from costmodel.formats.strict_yaml import Section
from costmodel.formats.system_file import KINDS

SCHEMA: Final = "framework/v1"
#: How a value is known: as constants of systems are, or as the software's documentation or code says.
FRAMEWORK_KINDS: Final = (*KINDS, "documented")


@dataclass(frozen=True, slots=True)
class Framework:
    """Values that hold where neither a design nor a machine says otherwise."""

    name: str
    description: str
    given: Mapping[str, Any]  #: column of designs, or quantity of systems -> value, as files write it


def framework_names() -> list[str]:
    """Names of the frameworks that ship."""
    return shipped.names("frameworks")


def load_framework(name_or_path: str | Path, base: Path | None = None) -> Framework:
    """A framework by the name of one that ships, or by path, which counts from `base`.

    Raises
    ------
    DseError
        With one line for each mistake in the file.
    """
    name, _, section = shipped.opened(name_or_path, "frameworks", base)
    section.only(("schema", "description", "given"))
    section.word("schema", [SCHEMA])
    description = section.text("description")
    given = _given(section.section("given"))
    section.source.finish()
    return Framework(name, description, given)


def _given(section: Section) -> dict[str, Any]:
    """Values by name; each says where it comes from."""
    given: dict[str, Any] = {}
    for name in section:
        if not isinstance(section.data[name], dict):
            section.mistake(name, "expected {value, kind, source}: a value says where it comes from")
            continue
        constant = section.section(name)
        constant.only(("value", "kind", "source"))
        constant.word("kind", FRAMEWORK_KINDS)
        constant.text("source")
        if "value" not in constant:
            constant.mistake(None, "value: missing")
        given[name] = constant.data.get("value")
    return given
