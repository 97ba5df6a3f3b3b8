"""Files of DeepFlow's second and present generation: hardware and model, with values that the user sets.

A hardware file of the second generation holds its model too; the command line of that program states the sizes and the
split of a run. The present generation has a model file. `setups.yaml` lists keys and differences of the generations.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.errors import DseError, suggestion
from costmodel.formats.input_files import Section, data_beside, parse, read_text, scalar
from dse.adapters.deepflow.chips import DEGREES, MEMORIES, SCOPES, SRAMS, Values
from dse.adapters.deepflow.configuration import PARTS, LstmWorkload, broken_guards
from dse.adapters.deepflow.tiled_products import DATAFLOWS

_DATA: Final = data_beside(__file__)
GENERATIONS: Final[Mapping[str, Mapping[str, Any]]] = _DATA["generations"]
SECOND, PRESENT = GENERATIONS
#: Last word of a figure of a block -> the unit that DeepFlow prints it in. [SI units]
UNITS: Final[Mapping[str, float]] = _DATA["units"]
#: Prefixes of units in files. [B]
_PREFIXES: Final = {"K": 2.0**10, "M": 2.0**20, "G": 2.0**30, "T": 2.0**40}
#: Most cells of a step, over all layers. [-]
MOST_CELLS: Final = 200_000
#: Folders of a stored run of the second generation: its study, and its command line.
_STORED: Final = re.compile(r"/([^/]+)/(CR|RC)_N\d+_k(\d+)_k(\d+)_d(\d+)_l(\d+)/")
#: Key -> its words in the order of their codes; a split may have another word, which names no kind.
WORDS: Final[Mapping[str, tuple[Any, ...]]] = {
    "dataflow": DATAFLOWS, "t": (None, "CR", "RC"), "type": MEMORIES, "scope": SCOPES, "auto": (False, None),
    **dict.fromkeys((f"kp_{part}_type" for part in PARTS), (-1, 1, 2)),
}  # fmt: skip
#: Paths that may be null.
_NULLABLE: Final = {"scheduling_param.t", "scheduling_param.kp1", "scheduling_param.kp2", "model_param.ffn_mult"}
#: Blocks of counts, paths in them that are none or may be another number, and paths that others are divided by.
COUNTS: Final = ("model_param.", "scheduling_param.kp", "scheduling_param.dp", "scheduling_param.lp", "search.")
FREE: Final = {"model_param.ffn_mult", "model_param.communication_time", "model_param.data_scale",
                *(f"scheduling_param.kp_{part}_type" for part in PARTS)}  # fmt: skip
_TOTALS: Final = {"area_breakdown.proc_chip_area_budget", "power_breakdown.TDP", "system_hierarchy.num_nodes_per_wafer"}
#: Column of a workload -> its path.
_COLUMNS: Final[Mapping[str, str]] = _DATA["workload"]


@dataclass(frozen=True, kw_only=True, slots=True)
class ChipSetup:
    """Hardware files and their models, as numbers by their path."""

    generation: str
    sheet: Values  #: by the names and meanings of the present generation (`completed`); (points,) columns
    mode: str  #: a key of `models` in `setups.yaml`
    notes: tuple[str, ...] = ()  #: of values that are assumed or ignored

    @property
    def rules(self) -> Mapping[str, Any]:
        """Values that differ between generations."""
        return GENERATIONS[self.generation]

    def model(self, key: str) -> FloatArray:
        """A number of the model. [-]"""
        return self.sheet[f"model_param.{key}"]

    def split(self, key: str) -> FloatArray:
        """A number of the split. [-]"""
        return self.sheet[f"scheduling_param.{key}"]

    @property
    def workload(self) -> LstmWorkload:
        """The LSTM language model of the set-up and its split. Products in one piece have no kind of split."""
        columns = {name: self.sheet[path] for name, path in _COLUMNS.items()}
        for part in PARTS:
            dim1, dim2, kind = (self.split(f"kp_{part}_{end}") for end in ("dim1", "dim2", "type"))
            whole = (dim1 == 1) & (dim2 == 1) | (part == "projection")  # which no step has
            columns |= {f"{part}_dim1": dim1, f"{part}_dim2": dim2, f"{part}_kind": np.where(whole, 0.0, kind)}
        return LstmWorkload.of(**columns)


def keys_of(generation: str, mode: str = "", *, optional: bool = True) -> dict[str, None]:
    """Paths of the numbers in files of a generation, in their order, with those of the models of a mode or of all."""
    rules, models = GENERATIONS[generation], _DATA["models"]
    stated = _DATA["stated"] if rules["states"] else {}
    tables = [rules["blocks"], {"model_param": [models.get(mode, ())] if mode else models.values()}]
    tables += [{block: [keys] for block, keys in table.items()} for table in (rules["optional"], stated) if optional]
    return {f"{block}.{key}": None for table in tables for block in table for keys in table[block] for key in keys}


def is_setup(head: bytes) -> bool:
    """True for the first bytes of a hardware or model file."""
    return bool(re.search(rb"^[ \t]*(tech_param|model_param)[ \t]*:", head, re.MULTILINE))


def profile_of(path: Path) -> str:
    """The generation of a hardware file."""
    return SECOND if "model_param" in parse(read_text(path), str(path)) else PRESENT


def read_setup(path: Path, generation: str, model_path: Path | None, values: Mapping[str, str]) -> ChipSetup:
    """The set-up of files, with `values` set by key or path; a `DseError` has one line for each mistake."""
    hardware = parse(read_text(path), str(path))
    if "tech_param" not in hardware:
        raise DseError(f"{path}: describes a model: evaluate a hardware file with --model-config {path}")
    if "shared_mem" in hardware.section("area_breakdown", required=False):
        raise DseError(
            f"{path}: area_breakdown.shared_mem: not read, as in DeepFlow; describe it as schema: deepflow/v1"
        )
    if (generation == SECOND) != ("model_param" in hardware):
        raise DseError(f"{path}: is not a file of {generation}: model_param is in files of {SECOND} alone")
    if (generation == SECOND) == bool(model_path):
        has = "holds its model: leave --model-config out" if model_path else (
            "describes hardware: name its model file, such as --model-config GEMM.yaml")  # fmt: skip
        raise DseError(f"{path}: {has}")
    model = parse(read_text(model_path), str(model_path)) if model_path else hardware
    stored = _STORED.search(path.absolute().as_posix()) if generation == SECOND else None
    reader = SetupReader(hardware, model, generation)
    numbers, mode = reader.stated(dict(values), stored)
    return ChipSetup(generation=generation, sheet=completed(numbers, generation), mode=mode, notes=(*reader.notes,))


def number(path: str, value: Any, needed: bool) -> float:
    """The number of a path, 0 where it is missing and not `needed`, NaN where it may be null and is.

    Raises `ValueError` if the path may not have the value.
    """
    if value is None and (path in _NULLABLE or not needed):
        return np.nan if path in _NULLABLE else 0.0
    code = _code(path, value)
    if path.startswith(COUNTS) and path not in FREE and not (code >= 1 and code.is_integer()):
        raise ValueError(f"{value!r}: expected a whole number from 1")
    least = 1e-30 if path in _TOTALS else 0
    if not (least <= code < 1e30 or path.endswith(".t")):
        raise ValueError(f"{value!r}: expected a number from {least:g} to 1e30")
    return code


def _code(path: str, value: Any) -> float:
    """A number, text such as "80 GB" in powers of 1024, or the code of a word. [B]"""
    words = WORDS.get(path.rpartition(".")[2])
    if words:
        if value not in words and not path.endswith(".t"):
            raise ValueError(f"{value!r} is not a value{suggestion(str(value), map(str, words))}")
        return float(words.index(value)) if value in words else np.nan
    if isinstance(value, int | float):
        return float(value)
    pieces = value.split() if isinstance(value, str) and "network" not in path else []
    units = [piece for piece in pieces if not piece.isdigit()]
    if len(units) < len(pieces) and units and re.match("[KMGT][bB]", units[0]):
        whole = next(int(piece) for piece in pieces if piece.isdigit())
        return whole * _PREFIXES[units[0][0]] / (8 if units[0][1] == "b" else 1)
    raise ValueError(f"{value!r}: expected a number; sizes may be a whole number and a unit, such as '80 GB'")


def flattened(data: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    """Path and value of each entry of a mapping and of those in it."""
    for key, value in data.items():
        yield from flattened(value, f"{path}{key}.") if isinstance(value, dict) else [(f"{path}{key}", value)]


class SetupReader:
    """Reads the files of a set-up, which are one in the second generation."""

    def __init__(self, hardware: Section, model: Section, generation: str, *, defaults: bool = True) -> None:
        self.hardware, self.model, self.generation = hardware, model, generation
        self.rules = {**GENERATIONS[generation], **({} if defaults else {"command_line": {}})}
        self.flat = dict(flattened(hardware.data))
        self.flat |= {path: value for path, value in flattened(model.data) if path.startswith("model_param.")}
        self.notes: list[str] = []

    def stated(self, values: dict[str, str], stored: re.Match[str] | None) -> tuple[Values, str]:
        """Numbers of the files by path, and the mode; `stored` are the folders of a stored run."""
        if stored:
            options = dict(zip(("t", "kp1", "kp2", "dp", "lp"), stored.groups()[1:], strict=True))
            options |= {"tile_candidates": str(self.rules["studies"].get(stored[1], self.rules["candidates"]))}
            self.notes.append(f"the folder of a stored run states {', '.join(map('='.join, options.items()))}")
            values = options | values
        elif self.generation == SECOND:
            self.notes.append(_DATA["later"])
        modes, stated = _DATA["models"], self.flat.pop("model_param.mode", "LSTM")
        mode = str(values.pop("mode", stated))
        if self.generation == SECOND and mode == "GEMM":  # which the command line states, not the file
            self.flat = {path: value for path, value in self.flat.items() if not path.startswith("model_param.")}
        if mode not in modes:
            self.mistake("model_param.mode", f"{mode!r} is not a value{suggestion(mode, modes)}")
        required, known = keys_of(self.generation, mode, optional=False), keys_of(self.generation, mode)
        self.replace(values, known)
        for block, keys in groupby(required, key=lambda path: path.rpartition(".")[0]):
            if missing := [repr(path.rpartition(".")[2]) for path in keys if path not in self.flat]:
                comma = "," if missing[2:] else ""
                listed = f"s: {', '.join(missing[:-1])}{comma} and " if missing[1:] else ": "
                self.mistake(block, f"missing {len(missing)} required positional argument{listed}{missing[-1]}")
        sheet = self.numbers(required, known)
        self.note_unknown(known)
        for section in (self.model, self.hardware):
            section.source.finish()
        for net in (f"breakdown.network.{name}" for name in DEGREES):
            if np.any((sheet[f"power_{net}"] == 0) & (sheet[f"area_{net}"] > 0)):
                self.notes.append(f"power_{net} is 0: as in DeepFlow, links keep a rounding error")
        return sheet, mode

    def mistake(self, path: str, what: str) -> None:
        """Note a mistake in the file that has a path."""
        source = self.model.source if path.startswith("model_param") else self.hardware.source
        source.mistake(tuple(path.split(".")), what)

    def replace(self, values: dict[str, str], known: Collection[str]) -> None:
        """Set values by key or path; the command line of the second generation replaces the model of the file."""
        for option, (key, default) in self.rules["command_line"].items():
            path, text = f"model_param.{key}", values.pop(option, None)
            if path not in known:
                continue
            if text is None and self.flat.get(path) != default:
                self.notes.append(f"{option}={default}, the default of DeepFlow's command line, replaces {path}")
            self.flat[path] = default if text is None else scalar(text)
        for name, text in values.items():
            paths = [path for path in sorted({*known, *self.flat}) if f".{path}".endswith(f".{name}")]
            if len(paths) != 1:
                more = f"in {', '.join(paths)}; write the path" if paths else f"unknown key{suggestion(name, known)}"
                raise DseError(f"{self.hardware.source.name}: --set {name}: {more}")
            self.flat[paths[0]] = scalar(text)

    def numbers(self, required: Collection[str], known: Collection[str]) -> Values:
        """The numbers of known paths: 0 where an optional one is missing, NaN where one may be null and is."""
        sheet, needed = Values(), {*required} & self.flat.keys()
        for path in known:
            try:
                sheet[path] = np.array([number(path, self.flat.get(path), path in needed)])
            except ValueError as error:
                self.mistake(path, str(error))
        return sheet

    def note_unknown(self, known: Collection[str]) -> None:
        """Note keys that are not read; DeepFlow refuses those of some blocks."""
        for path in sorted(self.flat.keys() - {*known}):
            if path.startswith(("sw_param.", "scheduling_param.", "model_param.", "memory_hierarchy.")):
                self.mistake(path, f"unknown key{suggestion(path, known)}")
            elif not path.startswith("network_topology.") and not path.endswith("controller_power_per_link"):
                self.notes.append(f"{path} is not read, as in DeepFlow{suggestion(path, known)}")


def completed(stated: Values, generation: str) -> Values:
    """Numbers of files by the names and meanings of the present generation: areas, powers, nodes, and one split."""
    unstated = dict.fromkeys((f"{block}.{key}" for block, keys in _DATA["stated"].items() for key in keys), np.zeros(1))
    sheet, rules = unstated | stated, GENERATIONS[generation]
    budgets = {"area_breakdown": "proc_chip_area_budget", "power_breakdown": "TDP"}
    for path in stated:
        block, _, part = path.partition(".")
        if block not in budgets or part.endswith(("budget", "TDP")):
            continue
        whole = sheet[f"{block}.{budgets[block]}"]
        if rules["fractions"]:
            sheet[path] = sheet[path] * whole
        elif part in SRAMS.values():
            sheet[path] = sheet[path] / whole * whole  # rounds as the reference does
    system, core, split = "system_hierarchy.", "tech_param.core.", "scheduling_param."
    if generation == SECOND:
        sheet["area_breakdown.device_area_budget"] = sheet["area_breakdown.node_area_budget"]
        sheet[f"{core}FMA_d1"] = sheet[f"{core}FMA_d2"] = sheet[f"{core}FMA_width"]
        sheet[f"{system}num_nodes"] = np.ceil(sheet[f"{system}num_workers"] / sheet[f"{system}num_nodes_per_wafer"])
    else:
        sheet[f"{system}num_workers"] = sheet[f"{system}num_nodes"] * sheet[f"{system}num_devices_per_node"]
    for path in (f"{split}kp_{part}_{end}" for part in PARTS for end in ("dim1", "dim2", "type")):
        given = sheet[split + {"dim1": "kp1", "dim2": "kp2", "type": "t"}[path[-4:]]]
        sheet[path] = np.where(np.isnan(given), sheet[path], given)
    return sheet


def problems(setup: ChipSetup) -> Iterator[tuple[str, BoolArray]]:
    """Reasons why DeepFlow refuses set-ups, in its words if it has any, and the rows; also mistakes that end it."""
    sheet, dp, lp = setup.sheet, setup.split("dp"), setup.split("lp")
    kp1, kp2, workers = setup.split("kp1"), setup.split("kp2"), sheet["system_hierarchy.num_workers"]
    if len({float(sheet[f"memory_hierarchy.l{level}.type"][0]) for level in range(4)}) < 4:
        one_each = "memory_hierarchy: expected each of SRAM-R, SRAM-L1, SRAM-L2 and DRAM on one level"
        yield one_each, np.ones(1, dtype=bool)
    if setup.rules["states"]:
        both = ~np.isnan(kp1 + kp2)
        unequal = dp * lp * np.where(both, kp1 * kp2, 1.0) != workers
        for number, whole in product(np.unique(workers), (False, True)):
            names = "dp, lp, kp1 and kp2" if whole else "dp, lp"
            reason = f"Product of {names} must be equal to number of workers, which is {number:g}"
            yield reason, unequal & (workers == number) & (both == whole)
        yield "Data parallelism requires dp_inter to be True", (dp > 1) & (sheet["system_hierarchy.dp_inter"] == 0)
        for block in ("tech_param.core", "tech_param.DRAM"):
            stopped = sheet[f"{block}.operating_frequency"] + sheet[f"{block}.nominal_frequency"] <= 0
            yield f"{block} needs operating_frequency or nominal_frequency", stopped
    if setup.mode == "LSTM":
        work = setup.workload
        softmax, batch = work.split("softmax"), work.shard_batch
        guards = {name: rows for name, rows in broken_guards(work).items() if name.startswith(("hidden", "softmax"))}
        guards["softmax.dim1: does not divide the batch of a data shard"] = softmax.is_rc & (batch % softmax.dim1 != 0)
        empty = "dim1: exceeds the batch of a data shard, so that products are empty"
        guards |= {f"{part}.{empty}": work.split(part).is_cr & (batch < work.split(part).dim1) for part in PARTS[:2]}
        yield from ((f"kp_{name.replace('.', '_')}", rows) for name, rows in guards.items())
        cells = np.maximum(work.seq_len * work.num_layers, lp)
        yield f"seq_len * num_layers and lp: at most {MOST_CELLS:,} cells are scheduled", cells > MOST_CELLS
        indexed = (lp == 2) & (work.num_layers > 1)
        yield "lp: DeepFlow stops with an IndexError at lp 2; take 1, or 3 and more", indexed
    else:
        typeless = np.isnan(setup.split("t") + kp1 * kp2) & (kp1 * kp2 != 1)
        yield "Incorrect parallelism type, CR: Column-Row, RC: Row-Column", typeless
