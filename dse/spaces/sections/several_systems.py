"""`system` of a search space as a list: which machine is a parameter, and its quantities follow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from costmodel.formats.input_files import Section
from costmodel.machine.system import System

#: The parameter.
SYSTEM: Final = "system"


def written_out(section: Section, systems: Sequence[System]) -> Section:
    """A space with the parameter `system`, and each quantity that differs as a column derived from it.

    Values that the space itself gives to a quantity stay. `systems` are those that it lists, first the one of its
    parts.
    """
    if not systems:
        return section
    first, *others = systems
    for other in others:
        if list(other.parts()) != list(first.parts()):
            differing = sorted(set(other.parts()) ^ set(first.parts()))
            section.mistake(
                SYSTEM,
                f"{other.name} has other parts than {first.name} "
                f"({', '.join(part.rstrip('_') for part in differing)}); search it in a space of its own",
            )
            return section
    if len({system.name for system in systems}) < len(systems):
        section.mistake(SYSTEM, "names a system twice")
        return section
    own = {word for key in ("given", "parameters", "derived") for word in section.mapping(key)}
    units = first.units()
    tables = [_spelt_out(system).quantities() for system in systems]
    derived = {
        name: _looked_up([float(table[name]) for table in tables], [s.name for s in systems], unit)
        for name, unit in units.items()
        if name not in own and len({float(table[name]) for table in tables}) > 1
    }
    options = {SYSTEM: [system.name for system in systems]}
    data: dict[str, Any] = {
        **section.data,
        "parameters": {**options, **section.mapping("parameters")},
        "derived": {**derived, **section.mapping("derived")},
    }
    return Section(section.source, section.at, data)


def _spelt_out(system: System) -> System:
    """A machine with numbers where its file leaves the usual ones out."""
    chip = system.chip
    cores = {f"{kind}_collective_cores": chip.taken_cores(kind) for kind in ("tp", "cp", "ep", "dp")}
    memory = tuple(replace(level, nominal=level.sold_capacity) for level in system.memory)
    return replace(system, chip=replace(chip, **cores), memory=memory)


def _looked_up(values: Sequence[float], names: Sequence[str], unit: str) -> str:
    """A formula for the value of each system."""
    written = [_written(value, unit) for value in values]
    choices = [f"{value} if {SYSTEM} == {name} else " for value, name in zip(written, names, strict=True)]
    return "".join(choices[:-1]) + written[-1]


def _written(value: float, unit: str) -> str:
    """A number as formulas have it."""
    number = "inf * 1" if np.isinf(value) else repr(value)
    return number if unit == "-" else f"{number} {unit.replace(' ', ' * 1 ')}"
