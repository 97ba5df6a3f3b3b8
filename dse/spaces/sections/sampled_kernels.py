"""`sharding: sample` and `tiling: sample` of a search space, written out as one parameter for each choice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from costmodel.formats.strict_yaml import Section
from costmodel.kernels.output_tiles import has_room
from costmodel.machine.system import System
from costmodel.training.design import TILE_EDGES, kernel_of_tile, tile_columns
from costmodel.training.design_table import Domain
from costmodel.training.kinds import ATTENTION_PRODUCTS

#: Edges of tiles, and bytes of the operands that on-chip memory has to have room for.
EDGES: Final = np.array(TILE_EDGES, dtype=np.float64)
SIXTEEN_BITS: Final = 2.0  #: [B]

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
        fits = has_room(EDGES, EDGES, system, SIXTEEN_BITS)
        largest = int(EDGES[np.broadcast_to(fits, EDGES.shape)].max(initial=EDGES[0]))
        for kernel in _tiled(tiles, given, parameters):
            m, n = tile_columns(kernel)
            added |= {name: [edge for edge in TILE_EDGES if edge <= 2 * largest] for name in (m, n)}
            rules[f"{kernel}_tile_is_compact"] = f"{m} <= 2 * {n} and {n} <= 2 * {m}"
            rules[f"{kernel}_tile_has_room"] = f"min({m}, {n}) <= {largest}"
    new = {name: options for name, options in added.items() if name not in named}
    constraints = {**rules, **section.mapping("constraints")}
    if not added:
        return section
    data = {**section.data, "parameters": {**parameters, **new}, "constraints": constraints}
    return Section(section.source, section.at, data)


def _tiled(tiles: Iterable[str], given: Mapping[str, Any], parameters: Mapping[str, Any]) -> Iterator[str]:
    """Products of each pass that some design has: fused attention has none of its own."""
    unfused = "attention" in parameters or given.get("attention") == "unfused"
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
            section.section("parameters").mistake(
                name, "sample is no option beside others; write it under given"
            )
        explicit = next((column for column in columns if column in {*given, *parameters}), None)
        if explicit and given.get(name) != "sample":
            section.mistake(None, f"{explicit}: counts with {name}: sample alone; write that under given")
