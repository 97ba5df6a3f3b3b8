"""System files: a chip, its memory and its network in YAML -> `System`; files with constants replaced.

Each constant is a value with its unit, kind (data sheet, fitted, assumed) and source. All mistakes of a file are
reported at once. `with_constants` edits the text in place, so that comments of a calibrated file stay."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from functools import cache
from math import prod
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import yaml

from costmodel.columns import layout_of
from costmodel.errors import suggestion
from costmodel.formats import shipped
from costmodel.formats.input_files import Section, parse
from costmodel.formats.quantity import readable
from costmodel.machine import (
    Chip,
    Host,
    LinkTier,
    MachinePart,
    MemoryLevel,
    Modules,
    Range,
    Software,
    System,
    part_ranges,
)  # fmt: skip

SCHEMA: Final = "system/v1"
#: How a constant is known: printed by the maker, timed, adjusted to timings, a guess that is said to be one,
#: or arithmetic on other constants.
KINDS: Final = ("datasheet", "measured", "fitted", "assumed", "derived")
AnyPart = TypeVar("AnyPart", bound=MachinePart)


def system_names() -> list[str]:
    """Names of the built-in systems."""
    return shipped.names("systems")


def load_system(name_or_path: str | Path) -> System:
    """A system by the name of a built-in one, or by path; all callers share a built-in one, which is read once.

    Raises `DseError` with one line for each mistake in the file.

    >>> load_system("h100") is load_system("h100_80g_dgx"), load_system("h100").chip.clock.flags.writeable
    (True, False)
    """
    path = shipped.located(name_or_path, "systems", Path())
    return _built_in(path) if path.parent == shipped.ROOT / "systems" else _loaded(path)


def _loaded(path: Path) -> System:
    """The system of a file; callers may share it, so that its numbers cannot be written to."""
    name, _, section = shipped.opened(path, "systems")
    system = read_system(section, name)
    section.source.finish()
    for values in system.quantities().values():
        values.setflags(write=False)
    return system


_built_in: Final = cache(_loaded)


def read_system(section: Section, name: str) -> System:
    """The system that a mapping describes; mistakes are noted in its source, and stand-ins returned."""
    keys = ("schema", "name", "description", "framework", "chip", "memory", "network", "host", "software", "modules")
    section.only(keys)
    section.word("schema", [SCHEMA])
    section.text("description", required=False)
    memory = section.section("memory").sections("memory level")
    network = section.section("network").sections("tier of links")
    for index, part in enumerate(names := [*memory, *network]):
        if not part.isidentifier() or part in ("host", "software", "modules") or part in names[:index]:
            known = suggestion(part, ("sram", "l2", "dram", "node", "fabric"))
            section.mistake(None, f"{part}: not a name of its own for a memory level or a tier of links{known}")
    return System(
        name=section.text("name", required=False) or name,
        chip=_part(Chip, section.section("chip")),
        memory=tuple(_part(MemoryLevel, level, name=key) for key, level in memory.items()),
        network=tuple(_tier(tier, key) for key, tier in network.items()),
        host=_part(Host, section.section("host", required=False)),
        software=_part(Software, section.section("software", required=False)),
        modules=_part(Modules, section.section("modules", required=False)),
        framework=section.text("framework", required=False),
    )


def _tier(section: Section, name: str) -> LinkTier:
    """One tier of links; notes axes of a torus that are not those of its chips."""
    tier = _part(LinkTier, section, name=name)
    axes = [float(axis) for axis in tier.axes]
    chips = prod(max(axis, 1.0) for axis in axes)
    if (axes[0] > 0 and chips != tier.size) or sorted(axes, key=lambda axis: axis == 0) != axes:
        section.mistake(
            None, f"torus of {', '.join(f'{axis:g}' for axis in axes)}: expected axes of {tier.size:g} chips, x first"
        )
    return tier


def _part(record: type[AnyPart], section: Section, **names: str) -> AnyPart:
    """One record, a constant for each of its columns."""
    units = layout_of(record).units
    derived = {key for key, made in vars(record).items() if isinstance(made, property)}
    section.only({*units, *derived}, "quantity")
    for key in derived & section.data.keys():
        names_of_it = [name for name in vars(record)[key].fget.__code__.co_names if name in units]
        section.mistake(key, f"follows from {', '.join(names_of_it)}; change one of those")
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


#: Digits of a constant that is written.
DIGITS: Final = 4


def quantity_place(system: System, quantity: str) -> tuple[str, ...]:
    """Keys of a system file under which a quantity stands: ``("network", "node", "latency")``."""
    levels, tiers = ({part.name for part in parts} for parts in (system.memory, system.network))
    for prefix, part in system.parts().items():
        name = quantity.removeprefix(prefix)
        if quantity.startswith(prefix) and name in layout_of(type(part)).units:
            key = prefix.removesuffix("_")
            above = ("memory",) if key in levels else ("network",) if key in tiers else ()
            return (*above, key or "chip", name)
    raise KeyError(quantity)


def written(value: float, unit: str) -> str:
    """A constant as files write it.

    >>> written(0.81234567, "-"), written(3.21987e-6, "s")
    ('0.8123', '3.220 us')
    """
    return readable(value, unit, digits=DIGITS)


def with_constants(
    text: str, name: str, constants: Mapping[tuple[str, ...], Mapping[str, str]], description: str
) -> str:
    """The text of a system file `name` with other constants and another description.

    `constants` maps places (`quantity_place`) to value, kind, source, and perhaps standard_error; new ones are added to
    their part. Raises `DseError` if the result does not load.
    """
    for path, constant in constants.items():
        flow = ", ".join(f"{key}: {_scalar(key, value)}" for key, value in constant.items())
        text = _placed(text, path, f"{{{flow}}}")
    text = _placed(text, ("description",), _scalar("source", description))
    section = parse(text, name)
    read_system(section, name)
    section.source.finish()
    return text


def _scalar(key: str, value: str) -> str:
    """A word or a quantity as it is, a sentence in quotes."""
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"' if key == "source" else value


def _placed(text: str, keys: tuple[str, ...], value: str) -> str:
    """The text with a value at a place, which is made if there is none."""
    node: Any = yaml.compose(text, Loader=yaml.SafeLoader)
    for depth, key in enumerate(keys):
        node_value = next((node_value for name, node_value in node.value if name.value == key), None)
        if node_value is None:
            return _added(text, node, keys[depth:], value)
        node = node_value
    return text[: node.start_mark.index] + value + text[_end(node) :]


def _added(text: str, mapping: Any, keys: tuple[str, ...], value: str) -> str:
    """The text with a value below keys that a mapping lacks, at its end."""
    for key in reversed(keys[1:]):
        value = f"{{{key}: {value}}}"
    end = _end(mapping)
    if mapping.flow_style:
        comma = ", " if mapping.value else ""
        return f"{text[: end - 1]}{comma}{keys[0]}: {value}{text[end - 1 :]}"
    indent = " " * mapping.value[0][0].start_mark.column
    line = text.find("\n", end)
    rest = text[line:] if line >= 0 else "\n"
    return f"{text[: line if line >= 0 else len(text)]}\n{indent}{keys[0]}: {value}{rest}"


def _end(node: Any) -> int:
    """End of the text of a node: the marks of a block include the comments that follow it."""
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        return int(node.end_mark.index)
    return _end(node.value[-1][1])
