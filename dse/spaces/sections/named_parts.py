"""Files that a space names: its model, or the program that it runs, and its machines.

`system` may be a list: which machine is then a parameter, and each quantity that differs becomes a derived column, a
formula of that parameter. So later readers see one machine whose quantities depend on the design.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.errors import DseError
from costmodel.formats import shipped
from costmodel.formats.input_files import Section
from costmodel.formats.model_file import SCHEMAS, read_model
from costmodel.formats.system_file import read_system
from costmodel.machine import System
from costmodel.rules.rules import Workload
from dse.registry import load, program_sources
from dse.spaces.sections import frameworks

#: The parameter.
SYSTEM: Final = "system"


def written_out(section: Section, systems: Sequence[System]) -> Section:
    """A space with the parameter `system`, and each quantity that differs as a column derived from it.

    Values that the space gives to a quantity stay. `systems` are those that it lists, first the one of its parts.
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
    names_said = {word for key in ("given", "parameters", "derived") for word in section.mapping(key)}
    units = first.units()
    tables = [_spelt_out(system).quantities() for system in systems]
    derived = {
        name: _looked_up([float(table[name]) for table in tables], [s.name for s in systems], unit)
        for name, unit in units.items()
        if name not in names_said and len({float(table[name]) for table in tables}) > 1
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
    plain = ["inf * 1" if np.isinf(value) else repr(value) for value in values]
    written = plain if unit == "-" else [f"{number} {unit.replace(' ', ' * 1 ')}" for number in plain]
    choices = [f"{value} if {SYSTEM} == {name} else " for value, name in zip(written, names, strict=True)]
    return "".join(choices[:-1]) + written[-1]


def with_model(section: Section, name: str, base: Path) -> tuple[Section, Workload, Mapping[str, Any]]:
    """The space with its program written out, if any; the kind of work, and the content of the model's file."""
    work = ""
    if "workload" in section:
        source = section.section("workload")
        source.only((*(source_of_program.key for source_of_program in program_sources()), "kind"))
        if "kind" in source:
            work = source.text("kind")
        else:
            section = _with_program(section, base)
    part, model_name = _named(section, "model", "models", name, base)
    schema, readers = str(part.data.get("schema")), {source.schema: source.read for source in program_sources()}
    read = load(readers[schema]) if schema in readers and schema not in SCHEMAS else read_model
    model = read(part, model_name)
    section.source.finish()
    try:
        return section, Workload.of(model, work), part.data
    except DseError as error:
        section.section("workload").mistake("kind", str(error))
        section.source.finish()
        raise


def _with_program(section: Section, base: Path) -> Section:
    """A space with the program that `workload` names written out as its model."""
    source = section.section("workload")
    programs = {program.key: program for program in program_sources()}
    key = next((key for key in programs if key in source), "kind")
    source.value(key, str, "")
    if "model" in section:
        section.mistake("workload", "a space has a model or a workload, not both")
    section.source.finish()
    try:
        written = load(programs[key].data)(base, source.data[key])
    except DseError as error:
        source.mistake(key, str(error))
        section.source.finish()
        raise
    data = {key: value for key, value in section.data.items() if key != "workload"}
    return Section(section.source, section.at, {"system": programs[key].system, **data, "model": written})


def with_system(
    section: Section, name: str, base: Path, model: Any, columns: Collection[str]
) -> tuple[Section, str, System, Mapping[str, Any]]:
    """The space with the consequences of its machine and its software written out; the software's name; the machine,
    and the content of its file."""
    section, systems = _first_system(section, base)
    written = section.data.get("system")
    budget = isinstance(written, Mapping) and "derive" in written
    holder, key = (section.section("system"), "base") if budget else (section, "system")
    part, system_name = _named(holder, key, "systems", name, base)
    system = read_system(part, system_name)
    section.source.finish()
    if budget:
        from dse.spaces.sections import power_budget

        section = power_budget.written_out(section, system, part.data)
    quantities = _shared(systems or [system])
    section, framework = frameworks.written_out(section, model, columns, quantities, base)
    return written_out(section, systems), framework, system, part.data


def _shared(systems: Sequence[System]) -> dict[str, float]:
    """Quantity of the first system -> its value on all systems; NaN where they differ. [SI unit]"""
    first, *others = (system.quantities() for system in systems)
    return {
        name: float(value) if all(other.get(name) == value for other in others) else np.nan
        for name, value in first.items()
    }


def _first_system(section: Section, base: Path) -> tuple[Section, list[System]]:
    """The space with the first of a list of systems as its own, and all of them; none if it has one."""
    names = section.data.get("system")
    if not isinstance(names, list):
        return section, []
    if not names:
        section.mistake("system", "expected systems, such as [a100_80g_dgx, h100_80g_dgx]")
        section.source.finish()
    of_each = [Section(section.source, section.at, {**section.data, "system": name}) for name in names]
    parts = [_named(part, "system", "systems", "", base) for part in of_each]
    return of_each[0], [read_system(part, name) for part, name in parts]


def _named(section: Section, key: str, kind: str, name: str, base: Path) -> tuple[Section, str]:
    """The model or system that `key` names, gives the path of, or holds; and its name."""
    written = section.data.get(key)
    if isinstance(written, dict):
        return section.section(key), name
    if not isinstance(written, str):
        section.mistake(
            key if key in section else None, f"{key}: expected a name, a path, or the {kind.removesuffix('s')} itself"
        )
        section.source.finish()
    try:
        name, _, part = shipped.opened(str(written), kind, base)
    except DseError as error:
        section.mistake(key, str(error))
        section.source.finish()
        raise
    part.source.mistakes = section.source.mistakes  # reported together
    return part, name
