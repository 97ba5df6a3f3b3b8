"""DeepFlow configurations: model, power budget and split in YAML -> `Configuration`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from costmodel.formats.input_files import Section, parse, read_text
from costmodel.lstm.model import KINDS
from dse.adapters.deepflow.configuration import PARTS, Configuration, Hardware, broken_guards, hardware, number_of_links

SCHEMA: Final = "deepflow/v1"
LEVELS: Final = ("dram", "l2", "shared_memory")
BLOCKS: Final = ("core", *LEVELS, "link")
TOPOLOGIES: Final = ("mesh", "ring")

_TEXTS: Final = ("schema", "name", "description")
_REQUIRED: Final = ("workload", "power", "energy", "banks")
_OPTIONAL: Final = ("derate", "parallelism", "network")
#: Roundings that a sum of fractions is allowed.
_SUM_TOLERANCE: Final = 1e-9


@dataclass(frozen=True, slots=True)
class _Number:
    """A number of the file: the column that it fills, its unit, and what must hold of it."""

    column: str
    unit: str
    holds: Callable[[float], bool]
    expected: str
    default: float | None = None  #: None where the file has to give it


def _count(column: str, default: float | None = None) -> _Number:
    return _Number(column, "-", lambda v: v >= 1 and v.is_integer(), "a whole number from 1", default)


def _above_zero(column: str, unit: str, default: float | None = None) -> _Number:
    return _Number(column, unit, lambda v: v > 0, "more than 0", default)


def _at_least_zero(column: str, unit: str, default: float | None = None) -> _Number:
    return _Number(column, unit, lambda v: v >= 0, "no negative number", default)


def _share(column: str) -> _Number:
    return _Number(column, "-", lambda v: 0 < v <= 1, "a share of the peak, more than 0 and at most 1", 1.0)


#: Numbers of each section, by their keys.
_WORKLOAD: Final = {
    **{key: _count(key) for key in ("batch_size", "seq_len", "hidden_size")},
    "gates": _count("gates", 4.0),
    **{key: _count(key) for key in ("num_layers", "projection_size", "vocab_size")},
    "element_bytes": _above_zero("element_bytes", "-", 4.0),
    "launch_overhead": _at_least_zero("launch_overhead", "s", 0.0),
}
_FRACTIONS: Final = {block: _at_least_zero(f"{block}_fraction", "-") for block in BLOCKS}
_ENERGIES: Final = {
    "flop": _above_zero("flop_energy", "J"),
    **{part: _above_zero(f"{part}_energy", "J/B") for part in (*LEVELS, "link")},
}
_BANKS: Final = {
    kind: {"capacity": _above_zero(f"{kind}_capacity", "B"), "bandwidth": _above_zero(f"{kind}_bandwidth", "B/s")}
    for kind in ("stack", "bank")
}
_DERATES: Final = {part: _share(f"{part}_derate") for part in ("core", "dram")}
_DEGREES: Final = {key: _count(key, 1.0) for key in ("dp", "lp", "hlp")}


def load_configuration(path: Path) -> Configuration:
    """The one configuration that a file describes.

    Raises `DseError` with one line for each mistake in the file.
    """
    return read_configuration(parse(read_text(path), str(path)))


def read_configuration(section: Section) -> Configuration:
    """The configuration that a mapping describes.

    Raises `DseError` with one line for each mistake: of a value first, and of values together once each is right.
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
        **_numbers(section.section("workload"), _WORKLOAD),
        **_power(section.section("power")),
        **_numbers(section.section("energy"), _ENERGIES),
        **_banks(section.section("banks")),
        **_numbers(section.section("derate", required=False), _DERATES),
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


def _numbers(section: Section, table: Mapping[str, _Number], *others: str) -> dict[str, float]:
    """Columns from the numbers of a section, which has other keys besides."""
    section.only((*table, *others))
    columns = {}
    for key, number in table.items():
        value = section.number(key, number.unit, default=number.default)
        if not (np.isnan(value) or number.holds(value)):
            section.mistake(key, f"{section.data[key]!r}: expected {number.expected}")
        columns[number.column] = value
    return columns


def _power(section: Section) -> dict[str, float]:
    tdp = _numbers(section, {"tdp": _above_zero("tdp", "W")}, "fractions")
    return tdp | _numbers(section.section("fractions"), _FRACTIONS)


def _banks(section: Section) -> dict[str, float]:
    section.only(_BANKS)
    columns = {kind: _numbers(section.section(kind), table) for kind, table in _BANKS.items()}
    return columns["stack"] | columns["bank"]


def _parallelism(section: Section) -> dict[str, float]:
    columns = _numbers(section, _DEGREES, *PARTS)
    for part in PARTS:
        own = section.section(part, required=False)
        dims = _numbers(own, {key: _count(f"{part}_{key}", 1.0) for key in ("dim1", "dim2")}, "kind")
        kind = own.word("kind", KINDS, default="none")
        if kind == "none" and max(dims.values()) > 1:
            own.mistake("kind", "none: dim1 and dim2 are 1 where nothing is split; or name a kind, cr or rc")
        if kind == "cr" and dims[f"{part}_dim2"] > 1:
            own.mistake("dim2", "a column-row split (cr) has one dimension, dim1; rc splits by both")
        columns |= {f"{part}_kind": float(KINDS.index(kind)), **dims}
    return columns


def _network(section: Section) -> dict[str, float]:
    latency = _numbers(section, {"latency": _at_least_zero("link_latency", "s", 0.0)}, "topology")
    return {"mesh": float(section.word("topology", TOPOLOGIES, default="mesh") == "mesh"), **latency}


def power_notes(config: Configuration) -> Iterator[str]:
    """Note that the shares of the first configuration give out more power than there is, where they do.

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
            section.mistake(level, f"{share:g}: the level has no capacity for three elements; give it more power")


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
        section.mistake(None, "a split model needs links: power.fractions.link above 0, and network.topology: mesh")
