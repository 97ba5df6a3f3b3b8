"""The inputs of a DeepFlow run, read from YAML, and the machine that its power budget buys.

A `Configuration` has a row for each run: a model, a power budget, and a split. The power of each part decides its
bandwidth or its clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, broadcast_columns, column
from costmodel.errors import DseError
from costmodel.formats.input_files import Section, data_beside, parse, read_text
from costmodel.kernels.output_tiles import tile_edge
from costmodel.lstm import KINDS, Split


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LstmWorkload(Columns):
    """An LSTM language model and its split over devices, which all generations share; (points,) columns.

    Kinds of split hold the codes of `KINDS`.
    """

    batch_size: FloatArray = column("-")  #: sequences of one step, all data shards together
    seq_len: FloatArray = column("-")
    hidden_size: FloatArray = column("-")
    gates: FloatArray = column("-", 4)
    num_layers: FloatArray = column("-")
    projection_size: FloatArray = column("-")
    vocab_size: FloatArray = column("-")
    element_bytes: FloatArray = column("B", 4)
    launch_overhead: FloatArray = column("s", 0)

    dp: FloatArray = column("-", 1)
    lp: FloatArray = column("-", 1)  #: pipeline stages, those of embedding and softmax included
    hlp: FloatArray = column("-", 1)  #: pipeline stages of the hidden layers; of the first generation
    hidden_kind: FloatArray = column("-", 0)
    hidden_dim1: FloatArray = column("-", 1)
    hidden_dim2: FloatArray = column("-", 1)
    softmax_kind: FloatArray = column("-", 0)
    softmax_dim1: FloatArray = column("-", 1)
    softmax_dim2: FloatArray = column("-", 1)
    projection_kind: FloatArray = column("-", 0)
    projection_dim1: FloatArray = column("-", 1)
    projection_dim2: FloatArray = column("-", 1)
    embedding_kind: FloatArray = column("-", 0)
    embedding_dim1: FloatArray = column("-", 1)
    embedding_dim2: FloatArray = column("-", 1)

    @classmethod
    def of(cls, **values: object) -> Self:
        """Build from scalars, lists and arrays, broadcast to one length."""
        return cls(**broadcast_columns(**{name: np.asarray(v, dtype=np.float64) for name, v in values.items()}))

    def split(self, part: str) -> Split:
        """The split of the products of a part: "hidden", "softmax", "projection" or "embedding"."""
        return Split(*(getattr(self, f"{part}_{end}") for end in ("kind", "dim1", "dim2")))

    @property
    def shard_batch(self) -> FloatArray:
        """Sequences of one data shard. [-]"""
        return np.ceil(self.batch_size / self.dp)

    @property
    def tokens(self) -> FloatArray:
        """Tokens of one data shard. [-]"""
        return self.shard_batch * self.seq_len

    @property
    def gate_size(self) -> FloatArray:
        """Outputs of a cell's product, all gates together. [elements]"""
        return self.gates * self.hidden_size

    @property
    def num_parameters(self) -> FloatArray:
        """Weights and biases; rule NP1. [-]"""
        cells = (2 * self.hidden_size + 1) * self.gate_size * self.num_layers
        outputs = self.hidden_size * self.projection_size + (self.hidden_size + 1) * self.vocab_size
        return self.vocab_size * self.hidden_size + cells + outputs


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Configuration(LstmWorkload):
    """A workload and the power budget of its devices, first generation; (points,) columns.

    `mesh` is 1 where the links form a mesh.
    """

    tdp: FloatArray = column("W")
    core_fraction: FloatArray = column("-")
    dram_fraction: FloatArray = column("-")
    l2_fraction: FloatArray = column("-")
    shared_memory_fraction: FloatArray = column("-")
    link_fraction: FloatArray = column("-", 0)
    flop_energy: FloatArray = column("J")
    dram_energy: FloatArray = column("J/B")
    l2_energy: FloatArray = column("J/B")
    shared_memory_energy: FloatArray = column("J/B")
    link_energy: FloatArray = column("J/B")
    stack_capacity: FloatArray = column("B")
    stack_bandwidth: FloatArray = column("B/s")
    bank_capacity: FloatArray = column("B")
    bank_bandwidth: FloatArray = column("B/s")
    core_derate: FloatArray = column("-", 1)
    dram_derate: FloatArray = column("-", 1)
    mesh: FloatArray = column("-", 0)
    link_latency: FloatArray = column("s", 0)


#: Parts of the model whose products can be split.
PARTS = ("hidden", "softmax", "projection", "embedding")


def broken_guards(config: LstmWorkload) -> dict[str, BoolArray]:
    """Guards of the reference model -> where they are broken: shards that do not divide.

    Keys are the column, with a dot between part and dimension, and the fault of its value.
    """
    hidden, softmax, projection = (config.split(part) for part in ("hidden", "softmax", "projection"))
    inputs, outputs, size = 2 * config.hidden_size, config.gate_size, config.hidden_size
    a, b, cr, rc = hidden.dim1, hidden.dim2, hidden.is_cr, hidden.is_rc
    split, rows, columns = projection.is_rc, projection.dim1, projection.dim2
    return {
        "hidden.dim1: is neither 2 nor a multiple of 4": cr & (a != 2) & (a % 4 != 0),
        "hidden.dim1: does not divide 2 * hidden_size": cr & (inputs % a != 0),
        "hidden.dim1: does not divide the batch of a data shard": rc & (config.shard_batch % a != 0),
        "hidden.dim2: is neither 1, 2 nor a multiple of gates": rc & (b > 2) & (b % config.gates != 0),
        "hidden.dim2: does not divide gates * hidden_size": rc & (outputs % b != 0),
        "softmax.dim1: does not divide hidden_size": softmax.is_cr & (size % softmax.dim1 != 0),
        "softmax.dim2: does not divide hidden_size": softmax.is_rc & (size % softmax.dim2 != 0),
        "projection.dim1: does not divide hidden_size": projection.is_cr & (size % projection.dim1 != 0),
        "projection.dim1: does not divide the tokens of a data shard": split & (config.tokens % rows != 0),
        "projection.dim2: does not divide projection_size": split & (config.projection_size % columns != 0),
        "hlp: does not divide num_layers": config.num_layers % config.hlp != 0,
    }


#: Rates and sizes of a device, or of a kernel's share of it, by name.
Machine = Mapping[str, FloatArray]
#: Latency of the memory, charged once per memory-bound kernel. [s]
MEMORY_LATENCY = 50e-9


@np.errstate(divide="ignore", invalid="ignore")
def hardware(config: Configuration) -> Machine:
    """Rules HW1 to HW7, TL1 and RF1: each block's rate is its share of the power over the energy of one unit.

    (points,) columns. [FLOP/s], [B/s], [B], [elements], [FLOP/B] Rates are those after derating. Capacities come from
    the bandwidth before derating, in fractions of a bank.
    """
    dram, l2, shared = (
        getattr(config, f"{level}_fraction") * config.tdp / getattr(config, f"{level}_energy")
        for level in ("dram", "l2", "shared_memory")
    )
    l2_capacity, shared_capacity = (rate / config.bank_bandwidth * config.bank_capacity for rate in (l2, shared))
    links = number_of_links(config)
    per_link = config.link_fraction * config.tdp / np.maximum(links, 1.0)
    bandwidth = dram * config.dram_derate
    rate = config.core_fraction * config.tdp / config.flop_energy * config.core_derate
    return {
        "flop_rate": rate, "dram_bandwidth": bandwidth, "inflection": rate / bandwidth, "l2_bandwidth": l2,
        "dram_capacity": dram / config.stack_bandwidth * config.stack_capacity, "l2_capacity": l2_capacity,
        "shared_memory_capacity": shared_capacity,
        "link_bandwidth": np.where(links > 0, per_link / config.link_energy, 0.0),
        "l2_tile": tile_edge(l2_capacity, config.element_bytes),
        "shared_memory_tile": tile_edge(shared_capacity, config.element_bytes),
    }  # fmt: skip


def number_of_links(config: Configuration) -> FloatArray:
    """Links of a mesh that share the power for links; 0 elsewhere, and where nothing is split. [-]"""
    by_kernel = np.max([np.maximum(config.split(part).dim1, config.split(part).dim2) > 1 for part in PARTS], axis=0)
    groups, shards = (config.dp > 1) + 1.0 * (config.lp > 1) + by_kernel, config.dp * config.hidden_dim1
    links = np.where(groups < 3, groups * shards, 3 * shards * config.lp)
    return np.where(config.mesh > 0, links, 0.0)


def roofline(flops: FloatArray, dram_bytes: FloatArray, machine: Machine, *, l2_bytes: Any = 0.0) -> FloatArray:
    """Time of one kernel by rule RF3; arrays that broadcast against the machine's columns. [s]

    `flops` is work [FLOP], `dram_bytes` and `l2_bytes` are traffic [B].

    Differs from the native roofline, the slowest level: below the inflection the levels add up with one
    latency, and from there on arithmetic counts alone, even where the second level takes longer.
    """
    from_l2 = np.where(machine["l2_bandwidth"] > 0, l2_bytes / machine["l2_bandwidth"], 0.0)
    moving = dram_bytes / machine["dram_bandwidth"] + MEMORY_LATENCY + from_l2
    return np.where(flops / dram_bytes < machine["inflection"], moving, flops / machine["flop_rate"])


SCHEMA: Final = "deepflow/v1"
BLOCKS: Final = ("core", "dram", "l2", "shared_memory", "link")
_REQUIRED: Final = ("workload", "power", "energy", "banks")
_OPTIONAL: Final = ("derate", "parallelism", "network", "name", "description")
#: Section -> key -> column, unit, condition, and default of an optional number.
_DATA: Final = data_beside(__file__)
_NUMBERS: Final[Mapping[str, Mapping[str, Any]]] = _DATA["numbers"]
#: Condition of a number -> its test, and its name in messages.
_CONDITIONS: Final[Mapping[str, tuple[Callable[[float], bool], str]]] = {
    "count": (lambda v: v >= 1 and v.is_integer(), "a whole number from 1"),
    "above_zero": (lambda v: v > 0, "more than 0"),
    "at_least_zero": (lambda v: v >= 0, "no negative number"),
    "share": (lambda v: 0 < v <= 1, "a share of the peak, more than 0 and at most 1"),
}


def load_configuration(path: Path) -> Configuration:
    """The one configuration that a file describes, as `read_configuration` reads it."""
    return read_configuration(parse(read_text(path), str(path)))


def read_configuration(section: Section) -> Configuration:
    """The configuration that a mapping describes.

    Raises `DseError` with one line for each mistake: of a value first, and of values together once each is right.
    """
    section.word("schema", [SCHEMA])
    section.source.finish()  # of another kind of file every other key would be wrong
    section.only(("schema", *_REQUIRED, *_OPTIONAL))
    for key in ("name", "description"):
        section.text(key, required=False)
    for key in (key for key in _REQUIRED if key not in section):
        section.mistake(None, f"{key}: missing")
    section.source.finish()
    sections = {"": section}
    columns: dict[str, float] = {}
    for path, table in _NUMBERS.items():
        outer, _, key = path.rpartition(".")
        sections[path] = sections[outer].section(key, required=path.partition(".")[0] in _REQUIRED)
        columns |= _numbers(sections[path], table, path)
    for part in PARTS:
        dim1, dim2 = columns[f"{part}_dim1"], columns[f"{part}_dim2"]
        columns[f"{part}_kind"] = _kind(sections[f"parallelism.{part}"], dim1, dim2)
    columns["mesh"] = float(sections["network"].word("topology", ("mesh", "ring"), default="mesh") == "mesh")
    section.source.finish()
    config = Configuration.of(**columns)
    machine = hardware(config)
    _check_levels(sections["power.fractions"], config, machine)
    _check_split(sections["parallelism"], config, machine)
    section.source.finish()
    return config


def _numbers(section: Section, table: Mapping[str, Any], path: str) -> dict[str, float]:
    """Columns from the numbers of a section, which has sections besides, and words where its table has nothing."""
    section.only((*table, *(name.rpartition(".")[2] for name in _NUMBERS if name.rpartition(".")[0] == path)))
    columns = {}
    for key, (name, unit, condition, *default) in ((key, entry) for key, entry in table.items() if entry):
        value = section.number(key, unit, default=default[0] if default else None)
        holds, expected = _CONDITIONS[condition]
        if not (np.isnan(value) or holds(value)):
            section.mistake(key, f"{section.data[key]!r}: expected {expected}")
        columns[name] = value
    return columns


def _kind(section: Section, dim1: float, dim2: float) -> float:
    """Code of the kind of a split, which its dimensions must suit. [-]"""
    kind = section.word("kind", KINDS, default="none")
    if kind == "none" and max(dim1, dim2) > 1:
        section.mistake("kind", "none: dim1 and dim2 are 1 where nothing is split; or name a kind, cr or rc")
    if kind == "cr" and dim2 > 1:
        section.mistake("dim2", "a column-row split (cr) has one dimension, dim1; rc splits by both")
    return float(KINDS.index(kind))


def power_notes(config: Configuration) -> Iterator[str]:
    """Note if shares of the first configuration exceed its power; links draw theirs only where they exist."""
    drawing = [block for block in BLOCKS if block != "link" or number_of_links(config)[0] > 0]
    given = sum(float(getattr(config, f"{block}_fraction")[0]) for block in drawing)
    if given > 1 + 1e-9:  # and roundings
        tdp = float(config.tdp[0])
        yield (
            f"power.fractions: {', '.join(drawing)} sum to {given:.6g}, {given * tdp:.6g} W of {tdp:.6g} W; "
            "each keeps its share, as in the reference; lower them to stay within tdp"
        )


def _check_levels(section: Section, config: Configuration, machine: Machine) -> None:
    """Note blocks that their share of the power leaves without throughput, or without room for a tile."""
    if machine["flop_rate"][0] == 0:
        section.mistake("core", "0: no arithmetic without power; expected more than 0")
    if machine["dram_capacity"][0] == 0:
        section.mistake("dram", "0: the level has no capacity without power; expected more than 0")
    for level in ("l2", "shared_memory"):
        if machine[f"{level}_tile"][0] == 0:
            share = float(getattr(config, f"{level}_fraction")[0])
            section.mistake(level, f"{share:g}: the level has no capacity for three elements; give it more power")


def _check_split(section: Section, config: Configuration, machine: Machine) -> None:
    """Note shards that do not divide, and splits without links."""
    for guard, broken in broken_guards(config).items():
        if broken[0]:
            where, _, what = guard.partition(": ")
            part, _, dimension = where.partition(".")
            owner = section.section(part) if dimension else section
            value = float(getattr(config, where.replace(".", "_"))[0])
            owner.mistake(dimension or part, f"{value:g} {what}")
    split = any(config.split(part).sharded[0] for part in ("hidden", "softmax", "projection"))
    if (split or config.dp[0] > 1 or config.lp[0] > 1) and machine["link_bandwidth"][0] == 0:
        section.mistake(None, "a split model needs links: power.fractions.link above 0, and network.topology: mesh")


def is_log(head: bytes) -> bool:
    """True for the first bytes of a log that DeepFlow printed."""
    return bool(re.search(rb"^(inflection_point|comp_int): ", head, re.MULTILINE))


def load_log(path: Path) -> tuple[Configuration, str]:
    """The configuration that a log of DeepFlow echoes, and a note on it.

    Sizes follow from counts of kernels, rates from their times, capacities from the printed ones. Energies are not in
    the log: those of links are unknown, others 1 J for each FLOP and byte of a boundless power.
    """
    text, log, power = read_text(path), dict[str, float](), 2.0**100
    for name, pattern in _DATA["log"].items():
        if not (match := re.search(pattern, text, re.MULTILINE)):
            raise DseError(f"{path}: a log of DeepFlow without {name}, such as that of a split model; "
                           "give the configuration of its run, of schema deepflow/v1")  # fmt: skip
        log[name] = float(match[1].replace(",", ""))
    w, softmax = 4 / 3 * log["clip_bytes"] / log["clip_flop"], log["softmax_clip_flop"] / 4
    embedded = log["embedding_bytes"] / (2 * w)
    size = np.sqrt(embedded * softmax / (log["logits_flop"] / 5))
    gates, projection = log["clip_flop"] / 8 / size**2, log["projection_flop"] / 4 / size
    batch, cells = log["cell_flop"] / (3.25 * gates * size), (2 * size + 1) * gates * size
    layers = (log["parameters"] * 1e9 - 2 * softmax - size * projection) / cells
    bandwidth = log["update_bytes"] / (log["update_time"] - MEMORY_LATENCY)
    launch = (log["cell_time"] - log["cell_bytes"] / bandwidth - MEMORY_LATENCY) / 15
    rate, l2 = log["product_flop"] / (log["product_time"] - launch), log["l2_bandwidth"] * 2.0**40
    core, dram = round(rate / log["throughput"] / 1e12, 2), round(bandwidth / log["bandwidth"] / 2.0**30, 2)
    counts = {"hidden_size": size, "gates": gates, "vocab_size": softmax / size, "projection_size": projection,
              "batch_size": batch * log["dp"], "seq_len": embedded / size / batch, "num_layers": layers}  # fmt: skip
    config = Configuration.of(
        **{name: np.rint(value) for name, value in counts.items()}, dp=log["dp"], lp=log["lp"], hlp=log["hlp"],
        element_bytes=w, launch_overhead=launch, tdp=power, flop_energy=1, dram_energy=1, l2_energy=1,
        shared_memory_energy=1, link_energy=1, core_derate=core, dram_derate=dram, bank_bandwidth=l2,
        core_fraction=rate / core / power, dram_fraction=bandwidth / dram / power, l2_fraction=l2 / power,
        stack_bandwidth=bandwidth / dram, stack_capacity=log["capacity"] * 2.0**30,
        bank_capacity=log["l2_capacity"] * 2.0**20,
        shared_memory_fraction=l2 * log["shared_capacity"] / log["l2_capacity"] / power,
    ).with_columns({"link_energy": np.full(1, np.nan)})  # fmt: skip
    return config, f"evaluates the configuration that the log echoes; it printed Time: {log['time']:.8f}"
