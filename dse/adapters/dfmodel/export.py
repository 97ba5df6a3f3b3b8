"""Designs as set-ups of DFModel, text or binary: the sharding of the layer's graph, and notes on parts left out.

DFModel's own solver chooses the sharding that moves least. A file can also state one, so an exported design keeps the
split of the native model wherever the graph allows it, and a note names each kernel for which it does not. The file
has the blocks and words of the generation that evaluated the design, or of the first that has its overlap.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from costmodel.columns import IntArray
from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside
from costmodel.rules.registry import profile_named
from costmodel.steps.transformer import resolve_sharding
from costmodel.training.blocks import Layer
from costmodel.training.design import DesignPoints
from costmodel.training.kernel_kind import Kernel
from costmodel.training.run import TransformerRun, rank_run
from dse.adapters.dfmodel import graph as codes
from dse.adapters.dfmodel.design import DataflowDesign, DataflowRun, design_setup
from dse.adapters.dfmodel.evaluation import evaluate, loads
from dse.adapters.dfmodel.files import setup_bytes, setup_message, setup_text
from dse.adapters.dfmodel.files.setup_files import Message
from dse.adapters.dfmodel.graph import DfmodelGraph, options
from dse.adapters.dfmodel.layer import BEFORE, LOSS, fragment, model_graph
from dse.adapters.dfmodel.mapping import fastest_mapping, layer_ways, sram_shortage
from dse.adapters.dfmodel.report import shortages
from dse.adapters.dfmodel.setup import OVERLAPS
from dse.output import Artefact

#: Where the name of a gradient's kernel begins to differ from that of its kernel.
GRADIENT: Final = "_bwd"

_DATA: Final[dict[str, Any]] = data_beside(__file__)
#: Column -> the most that a file can express, and the note for designs with more.
_UNSUPPORTED: Final[Mapping[str, tuple[float, str]]] = _DATA["columns"]


def rows_of(graph: DfmodelGraph, layer: Layer) -> list[Kernel]:
    """For each kernel of a graph the row of the layer whose work it does."""
    rows = {line.split()[0]: layer.stream for line in (BEFORE, LOSS.replace(GRADIENT, ""))}
    for kernel in layer.kernels:
        rows[kernel.name] = kernel
        lines = fragment(kernel).forward.kernels.strip().splitlines()
        rows |= {line.split()[0]: kernel for line in lines}
    plain = (name.split(GRADIENT)[0].replace("SwiGLU", "GeLU") for name in graph.names)
    return [rows[name] for name in plain]


def design_sharding(graph: DfmodelGraph, layer: Layer, shardings: Mapping[str, str]) -> IntArray:
    """The dimension that each kernel is split by as in the native model, or the nearest legal one, (kernels,). [code]

    `shardings` maps rows of the layer to "replicated", "sequence" or "column", and to "column" or "row" for products.
    Attention is split by heads. Kernels that share out tokens are written whole, and their collective as an all-reduce.
    """
    asked = _asked(graph, layer, shardings)
    return np.array([_legal(graph, kernel, asked.get(kernel)) for kernel in range(len(graph))])


def unsupported_shardings(graph: DfmodelGraph, layer: Layer, shardings: Mapping[str, str]) -> Iterator[str]:
    """Rows whose split the graph cannot have, and the split that it has."""
    asked, written = _asked(graph, layer, shardings), design_sharding(graph, layer, shardings)
    rows = [row.name for row in rows_of(graph, layer)]
    wrong: dict[tuple[str, str], list[str]] = {}
    for name, word in shardings.items():
        index = rows.index(name)
        code = int(written[index])
        by_heads = asked[index] == codes.M and code == codes.OUTER  # heads are columns
        if code != asked[index] and not by_heads:
            wrong.setdefault((word, codes.SHARDINGS[code]), []).append(name)
    for (word, split), names in wrong.items():
        yield f"{', '.join(names)}: {word} cannot be expressed; split by {split}"


def unsupported_columns(design: DesignPoints, point: int) -> Iterator[str]:
    """Columns of one design that a file of any generation leaves out."""
    left_out = [words for name, (most, words) in _UNSUPPORTED.items() if getattr(design, name)[point] > most]
    if left_out:
        yield f"left out: {', '.join(left_out)}"


def _asked(graph: DfmodelGraph, layer: Layer, shardings: Mapping[str, str]) -> dict[int, int]:
    """Place of a kernel -> the code that a split asks for."""
    asked = {}
    for index, (name, row) in enumerate(zip(graph.names, rows_of(graph, layer), strict=True)):
        if row.name in shardings:
            _, gradient, ending = name.partition(GRADIENT)
            kind = f"product{gradient}{ending}" if row.splits_weight else "vector"
            asked[index] = codes.CODES[_DATA["dimensions"][kind][shardings[row.name]]]
    return asked


def _legal(graph: DfmodelGraph, kernel: int, asked: int | None) -> int:
    """The requested option where it is legal; otherwise unsharded, or the option that splits the work."""
    legal = options(graph, kernel)
    if asked in legal:
        return int(asked)
    whole = asked is not None and codes.NONE in legal
    return codes.NONE if whole else min(legal, key=codes.SPLIT_FIRST.index)


def setups(run: DataflowRun, form: str, profile: str) -> Iterator[Artefact]:
    """Designs as set-ups of DFModel."""
    graph = model_graph(run.model)
    resolved = run.of(resolve_sharding(run.model, run.system, run.design))
    for point in range(run.num_points):
        row = np.array([point])
        yield setup_artefact(graph, run.take(row), resolved.take(row), form, profile)


def setup_artefact(
    graph: DfmodelGraph, run: DataflowRun, resolved: TransformerRun, form: str, profile: str
) -> Artefact:
    """A design as DFModel's set-up, text or binary."""
    [layer], shape = run.model.kinds, rank_run(resolved).design
    words = shape.assignments.words(float(shape.assignment.flat[0]))
    sharding = design_sharding(graph, layer, words)
    generation, blocks = _generations(profile, run.design)
    try:
        message, short = design_message(run, graph, sharding, generation, blocks)
    except DseError as error:
        return Artefact(None, (str(error),))
    lost = (*unsupported_shardings(graph, layer, words), *unsupported_columns(run.design, 0))
    content = setup_text(message).encode() if form == "dfmodel" else setup_bytes(message)
    looks = (
        "gen3" if blocks in ("gen2b", "gen4", "gen5") else blocks if form == "dfmodel" or blocks == "gen3" else "gen1"
    )
    note = f"looks like a file of {looks}; evaluate it with --profile dfmodel-{generation}"
    return Artefact(content, (*lost, *[note] * (looks != generation), *short))


def _generations(profile: str, design: DataflowDesign) -> tuple[str, str]:
    """The generations whose rules choose the groups of kernels, and whose names and words the file has.

    Rules are those of the profile that evaluated the design; otherwise of the first that can say its overlap.
    """
    newest = OVERLAPS[int(design.overlap[0])] == "compute_memory"
    rules = profile_named(profile)
    generation = rules.version if rules.file == "dfmodel" else "gen3" if newest else "gen1"
    return generation, "gen3" if newest else "gen1" if generation in ("gen0", "gen1b") else generation


def design_message(
    run: DataflowRun, graph: DfmodelGraph, sharding: IntArray, generation: str, blocks: str
) -> tuple[Message, list[str]]:
    """The set-up of one design, its kernels alone or in their fastest groups, and the resources that these lack.

    Groups are found without a limit of DRAM, as searches find them. Raises `DseError` if DFModel has no such network or
    tiles, or no groups fit the SRAM.
    """
    setup, groups = design_setup(run), None
    if not setup.kernel_by_kernel:
        ways = layer_ways(run.model, run.precision.element_bytes)
        endless = replace(setup, dram_bytes=np.zeros(1))
        mapping = fastest_mapping(graph, endless, sharding, ways, generation=generation)
        if mapping is None:
            short = sram_shortage(loads(graph, setup, sharding, generation))
            raise DseError(f"execution=dataflow: no groups fit: {short}")
        groups = mapping.groups
    message = setup_message(graph, setup, sharding, generation=blocks, groups=groups)
    costs = evaluate(graph, setup, sharding, generation=generation, groups=groups)
    member = np.arange(len(graph)) if groups is None else groups
    return message, [f"does not fit: {line}" for line in shortages(graph, setup, member, costs)]
