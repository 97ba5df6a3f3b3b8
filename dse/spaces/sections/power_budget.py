"""Hardware from a power budget, as the system of a space: written out as ordinary parameters and formulas.

    system:
      derive: power_budget
      base: open_chip_pod                 # everything that power does not decide
      tdp: [700 W, 1000 W]
      fractions: {core: {from: 0.2, to: 0.6, step: 0.1}, sram: 0.05, ..., fabric: rest}

Each part of the chip works as fast as its share of the power lets it: the cores, every memory level and
every tier of links. Capacities follow bandwidths, as many banks of the base's as it takes. A share is a
number, or options to search, or the rest, by which the shares sum to one however the others are chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from costmodel.formats.input_files import Section
from costmodel.formats.quantity import si_value
from costmodel.machine import System

DERIVATIONS: Final = ("power_budget",)
REST: Final = "rest"
#: Rounding error of a sum of shares, or of nothing left.
_ROUNDING: Final = "1e-9"

#: Section of a space -> entries.
Entries = dict[str, dict[str, Any]]


def written_out(section: Section, base: System, base_data: Mapping[str, Any]) -> Section:
    """A space with `base` as its system, and the budget as parameters, given values and formulas.

    `base_data` is the content of the file of `base`. Raises `DseError` with one line for each mistake in the budget.
    """
    source = section.section("system")
    source.only(("derive", "base", "tdp", "fractions"))
    source.word("derive", DERIVATIONS)
    if "tdp" not in source:
        source.mistake(None, "tdp: missing; expected a power, such as 700 W, or options")
    parts = [*block_energies(base)]
    fractions = source.section("fractions")
    fractions.only(parts, "part")
    for part, quantity in block_energies(base).items():
        if float(base.quantities()[quantity]) <= 0:
            source.mistake("base", f"{quantity} of {base.name} is 0, so that power does not bound {part}")
    check_shares(fractions)
    source.value("tdp", partial(numbers_of, "W"), list[float](), required=False)

    added: Entries = {"given": {}, "parameters": {}, "derived": formulas(base), "constraints": {}}
    add_shares(added, fractions, parts)
    if "tdp" in source:
        added[kind_of(source.data["tdp"])]["tdp"] = source.data["tdp"]
    written = merged(section, base_data, added)
    section.source.finish()  # formulas would report only the consequences of these mistakes
    return written


def add_shares(added: Entries, fractions: Section, parts: Sequence[str]) -> None:
    """Add the shares of the power, and the rule that they are no more than all of it."""
    for part in parts:
        name = f"{part}_fraction"
        if part not in fractions:
            fractions.mistake(None, f"{part}: missing; expected a share, options, or {REST}")
        elif fractions.data[part] == REST:
            others = " + ".join(f"{other}_fraction" for other in parts if other != part)
            added["derived"][name] = f"1 - ({others})"
            added["constraints"][f"leaves_power_for_{part}"] = f"{name} >= {_ROUNDING}"
        else:
            added[kind_of(fractions.data[part])][name] = fractions.data[part]
    if REST not in fractions.data.values():
        total = " + ".join(f"{part}_fraction" for part in parts)
        added["constraints"]["stays_within_the_power"] = f"{total} <= 1 + {_ROUNDING}"


def block_energies(base: System) -> dict[str, str]:
    """Part that draws power -> the quantity that holds the energy of one unit of its work."""
    movers = [*(level.name for level in base.memory), *(tier.name for tier in base.network)]
    return {"core": "energy_per_flop", **{name: f"{name}_energy" for name in movers}}


def formulas(base: System) -> dict[str, str]:
    """Quantity -> how the budget decides it, idle power taken off first."""
    quantities = base.quantities()
    per_core = "2 * arrays_per_core * array_height * array_width * clock * sustained * matrix_efficiency"
    flop = "energy_per_flop"
    if float(quantities["nominal_clock"]):
        flop += " * max(clock / nominal_clock, least_voltage) ** 2"
    texts = {"cores": f"floor(core_fraction * (tdp - idle_power) / ({flop} * {per_core}))"}
    for part, energy in block_energies(base).items():
        if part != "core":
            texts[f"{part}_bandwidth"] = f"{part}_fraction * (tdp - idle_power) / {energy}"
    for level in base.memory:
        seconds = float(quantities[f"{level.name}_capacity"] / quantities[f"{level.name}_bandwidth"])
        texts[f"{level.name}_capacity"] = f"{level.name}_bandwidth * {seconds!r} s"
    return texts


def check_shares(fractions: Section) -> None:
    """Note shares that are not shares, and fixed ones that leave no power for the others."""
    fixed = []
    for part, written in fractions.data.items():
        if written == REST:
            continue
        shares = fractions.value(part, partial(numbers_of, "-"), list[float]())
        if not all(0 < share <= 1 for share in shares):
            nothing = "without power a level has no capacity, and a link no bandwidth"
            fractions.mistake(part, f"{written!r}: expected more than 0, and at most 1: {nothing}")
        fixed += shares if kind_of(written) == "given" else []
    if sum(fixed) > 1 + float(_ROUNDING):
        fractions.mistake(None, f"sum to {sum(fixed):.6g}; expected at most 1")
    if list(fractions.data.values()).count(REST) > 1:
        fractions.mistake(None, f"{REST}: given twice; one part takes what the others leave")


def numbers_of(unit: str, written: Any) -> list[float]:
    """The numbers that are written out in a value, in options, or as the ends of a range. [the unit given]"""
    if isinstance(written, dict) and "options" in written:
        return numbers_of(unit, written["options"])
    if isinstance(written, dict):
        return [si_value(written[key], unit) for key in ("from", "to") if key in written]
    if isinstance(written, str) and "(" in written:
        return []
    return [si_value(value, unit) for value in (written if isinstance(written, list) else [written])]


def kind_of(written: Any) -> str:
    """Section of a space that a value belongs to: one value is given, options are a parameter."""
    is_options = isinstance(written, list | dict) or (isinstance(written, str) and "(" in written)
    return "parameters" if is_options else "given"


def merged(section: Section, base_data: Mapping[str, Any], added: Entries) -> Section:
    """The space with more entries; their mistakes are reported at the line of the system."""
    data, source = {**section.data, "system": dict(base_data)}, section.source
    for key, entries in added.items():
        for name in entries:
            source.lines[key, name] = source.lines.get(("system",), 1)
            for other in ("given", "parameters", "derived"):
                if key != "constraints" and isinstance(here := section.data.get(other), dict) and name in here:
                    source.mistake((other, name), "follows from the power budget of the system")
        stated = section.data.get(key) or {}
        data[key] = {**stated, **entries} if isinstance(stated, dict) else stated  # reported when it is read
    return Section(source, section.at, data)
