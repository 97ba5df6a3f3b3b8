"""`sharding: sample` and `tiling: sample` of a search space, written out as one parameter for each choice."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from costmodel.formats.input_files import Section
from costmodel.formats.quantity import si_value
from costmodel.kernels.output_tiles import useful_edges
from costmodel.machine.system import System
from costmodel.training.blocks import Block
from costmodel.training.design import (
    FREE_TILES,
    SOLVE,
    SOLVE_BYTES,
    TILE_EDGES,
    UNFUSED,
    DesignPoints,
    kernel_of_tile,
    tile_columns,
)
from costmodel.training.design_table import Domain
from costmodel.training.kinds import ATTENTION_PRODUCTS
from dse.spaces.sections.parameters import Parameter, written_options

#: Size of the operands that on-chip memory has to have room for. [B]
SIXTEEN_BITS: Final = 2.0

#: What a sampled sharding needs of the sizes that it splits.
EVEN: Final = "hidden_size % tp == 0 and ffn_hidden_size % tp == 0 and seq_len % tp == 0"


def written_out(section: Section, columns: Mapping[str, Domain], system: System) -> Section:
    """A space with a parameter for the split of each kernel, and the tile of each product on a system.

    Names that the file has itself stay as they are. Mistakes are noted in the section's source. Models whose
    designs have no such `columns` are left to the reader of the file, which tells what it does not know.
    """
    if "sharding" not in columns:
        return section
    given = section.mapping("given")
    parameters = section.mapping("parameters")
    shardings = {name: columns[name] for name in columns if name.endswith("_sharding")}
    tiles = [name for name in columns if name.endswith(("_tile_m", "_tile_n"))]
    _check(section, given, parameters, {"sharding": [*shardings], "tiling": tiles})
    named = {*given, *parameters, *section.mapping("derived")}
    added: dict[str, Any] = {}
    rules: dict[str, str] = {}
    if given.get("sharding") == "sample":
        added |= {name: [*domain.words] for name, domain in shardings.items()}
        rules |= {"tp_splits_evenly": EVEN} if "tp" in named else {}
    if given.get("tiling") == "sample":
        options = tile_options(section, system)
        unfused = "attention" in parameters or given.get("attention") == "unfused"
        for kernel in _tiled(tiles, unfused=unfused):
            m, n = tile_columns(kernel)
            added |= dict.fromkeys((m, n), options)
            rules[f"{kernel}_tile_is_compact"] = f"{m} <= 2 * {n} and {n} <= 2 * {m}"
            rules[f"{kernel}_tile_has_room"] = f"min({m}, {n}) <= {options[-1] // 2}"
    new = {name: options for name, options in added.items() if name not in named}
    constraints = {**rules, **section.mapping("constraints")}
    if not added:
        return section
    data = {**section.data, "parameters": {**parameters, **new}, "constraints": constraints}
    return Section(section.source, section.at, data)


def solved_parameters(
    blocks: Iterable[Block], given: Mapping[str, float], parameters: Mapping[str, Parameter]
) -> tuple[Parameter, ...]:
    """Parameters for what a space leaves to the cost model: shardings of kernels, and tiles of products."""
    columns = DesignPoints.domains(blocks)
    codes = {name: {given[name]} for name in ("sharding", "tiling", "attention") if name in given}
    for name in ("sharding", "attention"):
        options = parameters[name].options if name in parameters else None
        codes |= {} if options is None else {name: {*options.tolist()}}
    names = []
    if codes.get("sharding", set()) & {SOLVE, SOLVE_BYTES}:
        names += [name for name in columns if name.endswith("_sharding")]
    if codes.get("tiling") == {float(FREE_TILES)}:
        tiles = [name for name in columns if name.endswith("_tile_m")]
        kernels = _tiled(tiles, unfused=UNFUSED in codes.get("attention", ()))
        names += [name for kernel in kernels for name in tile_columns(kernel)]
    return tuple(Parameter(name, "-", tuple(columns[name].words or (0, *TILE_EDGES))) for name in names)


def tile_options(section: Section, system: System) -> list[int]:
    """Edges of tiles that may be the best ones on a machine that the space has, ascending. [elements]"""
    opened = {**section.mapping("given"), **section.mapping("parameters")}
    quantities = ("cores", "arrays_per_core", "array_height", "array_width", f"{system.memory[0].name}_capacity")
    if any(name in section.mapping("derived") for name in quantities):
        return [*TILE_EDGES]
    units = system.units()
    try:
        values = {
            name: [si_value(value, units[name]) for value in listed_values(opened[name])]
            for name in quantities
            if name in opened
        }
    except ValueError:  # a formula; or a mistake, which the reader of the section reports
        return [*TILE_EDGES]
    grid = dict(zip(values, np.array([*itertools.product(*values.values())]).T, strict=True))
    edges = useful_edges(system.with_quantities(grid), SIXTEEN_BITS)
    return [edge for edge in TILE_EDGES if edge in edges]


def listed_values(written: Any) -> list[Any]:
    """Options of a parameter, the ends of a range, or one value, as a file has them.

    Raises `ValueError` if they are none of these.
    """
    written = written_options(written)
    if isinstance(written, dict):
        written = [written.get("from"), written.get("to")]
    return written if isinstance(written, list) else [written]


def _tiled(tiles: Iterable[str], *, unfused: bool) -> Iterator[str]:
    """Products of each pass that some design has: fused attention has none of its own."""
    kernels = dict.fromkeys(kernel_of_tile(name) for name in tiles)
    yield from (name for name in kernels if unfused or not name.startswith(ATTENTION_PRODUCTS))


def _check(
    section: Section,
    given: Mapping[str, Any],
    parameters: Mapping[str, Any],
    kernel_columns: Mapping[str, Sequence[str]],
) -> None:
    """Note choices that contradict each other: `kernel_columns` count where their name is "sample"."""
    for name, columns in kernel_columns.items():
        options = parameters.get(name)
        if isinstance(options, list) and "sample" in options:
            section.section("parameters").mistake(name, "sample is no option beside others; write it under given")
        explicit = next((column for column in columns if column in {*given, *parameters}), None)
        if explicit and given.get(name) != "sample":
            section.mistake(None, f"{explicit}: counts with {name}: sample alone; write that under given")
