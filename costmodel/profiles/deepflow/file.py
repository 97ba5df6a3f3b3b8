"""DeepFlow configurations: model, power budget and split in YAML -> `Configuration`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import numpy as np

from costmodel.formats.strict_yaml import Section, parse, read_text
from costmodel.profiles.deepflow import Configuration, broken_guards
from costmodel.profiles.deepflow.configuration import PARTS, Hardware, hardware, number_of_links
from costmodel.training.lstm import KINDS

SCHEMA: Final = "deepflow/v1"
LEVELS: Final = ("dram", "l2", "shared_memory")
BLOCKS: Final = ("core", *LEVELS, "link")
TOPOLOGIES: Final = ("mesh", "ring")

_WORKLOAD: Final = (
    "batch_size",
    "seq_len",
    "hidden_size",
    "gates",
    "num_layers",
    "projection_size",
    "vocab_size",
)
_TEXTS: Final = ("schema", "name", "description")
_REQUIRED: Final = ("workload", "power", "energy", "banks")
_OPTIONAL: Final = ("derate", "parallelism", "network")
#: Roundings that a sum of fractions is allowed.
_SUM_TOLERANCE: Final = 1e-9


def load_configuration(path: Path) -> Configuration:
    """The one configuration that a file describes.

    Raises
    ------
    DseError
        With one line for each mistake in the file.
    """
    return read_configuration(parse(read_text(path), str(path)))


def read_configuration(section: Section) -> Configuration:
    """The configuration that a mapping describes.

    Raises
    ------
    DseError
        With one line for each mistake: of a value first, and of values together once each is right.
    """
    section.word("schema", [SCHEMA])
    section.source.finish()  # of another kind of file every other key would be wrong
    section.only((*_TEXTS, *_REQUIRED, *_OPTIONAL))
    for key in ("name", "description"):
        section.text(key, required=False)
    for key in (key for key in _REQUIRED if key not in section):
        section.mistake(None, f"{key}: missing")
    section.source.finish()
    columns = {
        **_workload(section.section("workload")),
        **_power(section.section("power")),
        **_energies(section.section("energy")),
        **_banks(section.section("banks")),
        **_derates(section.section("derate", required=False)),
        **_parallelism(section.section("parallelism", required=False)),
        **_network(section.section("network", required=False)),
    }
    section.source.finish()
    config = Configuration.of(**columns)
    machine = hardware(config)
    _check_levels(section.section("power").section("fractions"), config, machine)
    _check_split(section.section("parallelism", required=False), config, machine)
    section.source.finish()
    return config


def _workload(section: Section) -> dict[str, float]:
    section.only((*_WORKLOAD, "element_bytes", "launch_overhead"))
    columns = {key: _count(section, key, default=4.0 if key == "gates" else None) for key in _WORKLOAD}
    columns["element_bytes"] = _above_zero(section, "element_bytes", "-", default=4.0)
    columns["launch_overhead"] = _at_least_zero(section, "launch_overhead", "s", default=0.0)
    return columns


def _power(section: Section) -> dict[str, float]:
    section.only(("tdp", "fractions"))
    fractions = section.section("fractions")
    fractions.only(BLOCKS)
    columns = {f"{block}_fraction": _at_least_zero(fractions, block, "-") for block in BLOCKS}
    return {"tdp": _above_zero(section, "tdp", "W"), **columns}


def _energies(section: Section) -> dict[str, float]:
    section.only(("flop", *LEVELS, "link"))
    columns = {f"{part}_energy": _above_zero(section, part, "J/B") for part in (*LEVELS, "link")}
    return {"flop_energy": _above_zero(section, "flop", "J"), **columns}


def _banks(section: Section) -> dict[str, float]:
    section.only(("stack", "bank"))
    columns = {}
    for kind in ("stack", "bank"):
        own = section.section(kind)
        own.only(("capacity", "bandwidth"))
        columns[f"{kind}_capacity"] = _above_zero(own, "capacity", "B")
        columns[f"{kind}_bandwidth"] = _above_zero(own, "bandwidth", "B/s")
    return columns


def _derates(section: Section) -> dict[str, float]:
    section.only(("core", "dram"))
    expected = "a share of the peak, more than 0 and at most 1"
    return {
        f"{part}_derate": _checked(section, part, "-", 1.0, lambda v: 0 < v <= 1, expected)
        for part in ("core", "dram")
    }


def _parallelism(section: Section) -> dict[str, float]:
    section.only(("dp", "lp", "hlp", *PARTS))
    columns = {key: _count(section, key, default=1.0) for key in ("dp", "lp", "hlp")}
    for part in PARTS:
        own = section.section(part, required=False)
        own.only(("kind", "dim1", "dim2"))
        kind = own.word("kind", KINDS, default="none")
        dims = [_count(own, key, default=1.0) for key in ("dim1", "dim2")]
        if kind == "none" and max(dims) > 1:
            own.mistake("kind", "none: dim1 and dim2 are 1 where nothing is split; or name a kind, cr or rc")
        if kind == "cr" and dims[1] > 1:
            own.mistake("dim2", "a column-row split (cr) has one dimension, dim1; rc splits by both")
        columns |= {
            f"{part}_kind": float(KINDS.index(kind)),
            f"{part}_dim1": dims[0],
            f"{part}_dim2": dims[1],
        }
    return columns


def _network(section: Section) -> dict[str, float]:
    section.only(("topology", "latency"))
    topology = section.word("topology", TOPOLOGIES, default="mesh")
    return {
        "mesh": 1.0 if topology == "mesh" else 0.0,
        "link_latency": _at_least_zero(section, "latency", "s", default=0.0),
    }


def _checked(
    section: Section,
    key: str,
    unit: str,
    default: float | None,
    holds: Callable[[float], bool],
    expected: str,
) -> float:
    """A number for which `holds`. [the unit given]"""
    value = section.number(key, unit, default=default)
    if not (np.isnan(value) or holds(value)):
        section.mistake(key, f"{section.data[key]!r}: expected {expected}")
    return value


def _count(section: Section, key: str, *, default: float | None) -> float:
    return _checked(section, key, "-", default, lambda v: v >= 1 and v.is_integer(), "a whole number from 1")


def _above_zero(section: Section, key: str, unit: str, *, default: float | None = None) -> float:
    return _checked(section, key, unit, default, lambda v: v > 0, "more than 0")


def _at_least_zero(section: Section, key: str, unit: str, *, default: float | None = None) -> float:
    return _checked(section, key, unit, default, lambda v: v >= 0, "no negative number")


def power_notes(config: Configuration) -> Iterator[str]:
    """That the shares of the first configuration give out more power than there is, where they do.

    Notes
    -----
    Like the reference, the profile gives each part its share whatever they sum to. Links draw theirs only
    where they exist, so that a split of the power can be tried on one device first.
    """
    drawing = [block for block in BLOCKS if block != "link" or number_of_links(config)[0] > 0]
    given = sum(float(getattr(config, f"{block}_fraction")[0]) for block in drawing)
    if given > 1 + _SUM_TOLERANCE:
        tdp = float(config.tdp[0])
        yield (
            f"power.fractions: {', '.join(drawing)} sum to {given:.6g}, {given * tdp:.6g} W of {tdp:.6g} W; "
            "each keeps its share, as in the reference; lower them to stay within tdp"
        )


def _check_levels(section: Section, config: Configuration, machine: Hardware) -> None:
    """Note blocks that their share of the power leaves without throughput, or without room for a tile."""
    if machine.flop_rate[0] == 0:
        section.mistake("core", "0: no arithmetic without power; expected more than 0")
    if machine.dram_capacity[0] == 0:
        section.mistake("dram", "0: the level has no capacity without power; expected more than 0")
    for level, tile in (("l2", machine.l2_tile), ("shared_memory", machine.shared_memory_tile)):
        if tile[0] == 0:
            share = float(getattr(config, f"{level}_fraction")[0])
            section.mistake(
                level, f"{share:g}: the level has no capacity for three elements; give it more power"
            )


def _check_split(section: Section, config: Configuration, machine: Hardware) -> None:
    """Note shards that do not divide, and splits without links."""
    for guard, broken in broken_guards(config).items():
        if broken[0]:
            where, _, what = guard.partition(": ")
            part, _, dimension = where.partition(".")
            owner = section.section(part) if dimension else section
            value = float(getattr(config, where.replace(".", "_"))[0])
            owner.mistake(dimension or part, f"{value:g} {what}")
    split = any(config.split(part).sharded[0] for part in ("hidden", "softmax", "projection"))
    if (split or config.dp[0] > 1 or config.lp[0] > 1) and machine.link_bandwidth[0] == 0:
        section.mistake(
            None, "a split model needs links: power.fractions.link above 0, and network.topology: mesh"
        )
