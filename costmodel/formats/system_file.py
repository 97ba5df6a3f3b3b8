"""System files: a chip, its memory and its network in YAML -> `System`.

Every constant says how it is known and where it comes from, or the file does not load.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from math import prod
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from costmodel.columns import column_units
from costmodel.errors import suggestion
from costmodel.formats import shipped
from costmodel.formats.strict_yaml import Section
from costmodel.machine.ranges import MachinePart, Range, part_ranges
from costmodel.machine.system import Chip, Host, LinkTier, MemoryLevel, Software, System

SCHEMA: Final = "system/v1"
#: How a constant is known: printed by the maker, timed, adjusted to timings, a guess that is said to be one,
#: or arithmetic on other constants.
KINDS: Final = ("datasheet", "measured", "fitted", "assumed", "derived")
AnyPart = TypeVar("AnyPart", bound=MachinePart)


def system_names() -> list[str]:
    """Names of the systems that ship."""
    return shipped.names("systems")


def load_system(name_or_path: str | Path) -> System:
    """A system by the name of one that ships, or by path.

    Raises
    ------
    DseError
        With one line for each mistake in the file.
    """
    name, _, section = shipped.opened(name_or_path, "systems")
    system = read_system(section, name)
    section.source.finish()
    return system


def read_system(section: Section, name: str) -> System:
    """The system that a mapping describes; mistakes are noted in its source, and stand-ins returned."""
    section.only(("schema", "name", "description", "chip", "memory", "network", "host", "software"))
    section.word("schema", [SCHEMA])
    section.text("description", required=False)
    memory = section.section("memory").sections("memory level")
    network = section.section("network").sections("tier of links")
    _check_names(section, [*memory, *network])
    return System(
        name=section.text("name", required=False) or name,
        chip=_part(Chip, section.section("chip")),
        memory=tuple(_part(MemoryLevel, level, name=key) for key, level in memory.items()),
        network=tuple(_tier(tier, key) for key, tier in network.items()),
        host=_part(Host, section.section("host", required=False)),
        software=_part(Software, section.section("software", required=False)),
    )


def _tier(section: Section, name: str) -> LinkTier:
    """One tier of links; notes axes of a torus that are not those of its chips."""
    tier = _part(LinkTier, section, name=name)
    axes = [float(axis) for axis in tier.axes]
    chips = prod(max(axis, 1.0) for axis in axes)
    if (axes[0] > 0 and chips != tier.size) or sorted(axes, key=lambda axis: axis == 0) != axes:
        section.mistake(
            None,
            f"torus of {', '.join(f'{axis:g}' for axis in axes)}: "
            f"expected axes of {tier.size:g} chips, x first",
        )
    return tier


def _part(record: type[AnyPart], section: Section, **names: str) -> AnyPart:
    """One record, a constant for each of its columns."""
    units = column_units(record)
    section.only(units, "quantity")
    optional = {f.name for f in fields(record) if f.default_factory is not MISSING}
    values: dict[str, Any] = {}
    for key, unit in units.items():
        if key in section or key not in optional:
            values[key] = _constant(section, key, unit, part_ranges(record)[key])
    return record.of(**names, **values)


def _constant(section: Section, key: str, unit: str, allowed: Range) -> float:
    """One number with its kind and source; NaN for one that is wrong. [the unit given]"""
    if key not in section:
        section.mistake(None, f"{key}: missing; expected {{value, kind, source}}")
        return np.nan
    if not isinstance(section.data[key], dict):
        section.mistake(key, "expected {value, kind, source}: a constant says where it comes from")
        return np.nan
    constant = section.section(key)
    constant.only(("value", "kind", "source", "standard_error"))
    constant.word("kind", KINDS)
    constant.text("source")
    value = constant.number("value", unit)
    if "standard_error" in constant and constant.number("standard_error", unit) < 0:
        constant.mistake("standard_error", "expected no negative number")
    if not allowed.holds(value):
        constant.mistake("value", allowed.refusal(value))
        return np.nan
    return value


def _check_names(section: Section, names: list[str]) -> None:
    """Note level and tier names that cannot prefix the names of quantities."""
    for place, name in enumerate(names):
        if not name.isidentifier() or name in ("host", "software") or name in names[:place]:
            known = suggestion(name, ("sram", "l2", "dram", "node", "fabric"))
            section.mistake(
                None, f"{name}: not a name of its own for a memory level or a tier of links{known}"
            )
