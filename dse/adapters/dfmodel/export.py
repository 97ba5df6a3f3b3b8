"""Designs as set-ups of DFModel, text or binary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from costmodel.columns import IntArray
from costmodel.errors import DseError
from costmodel.rules.registry import profile_named
from costmodel.steps.transformer import resolve_sharding
from costmodel.training.run import TransformerRun, rank_run
from dse.adapters.dfmodel.assigned import design_sharding, unsupported_columns, unsupported_shardings
from dse.adapters.dfmodel.design import DataflowDesign, DataflowRun, design_setup
from dse.adapters.dfmodel.evaluation import evaluate, loads
from dse.adapters.dfmodel.files import setup_bytes, setup_message, setup_text
from dse.adapters.dfmodel.files.setup_files import Message
from dse.adapters.dfmodel.graph import DfmodelGraph
from dse.adapters.dfmodel.layer import model_graph
from dse.adapters.dfmodel.mapping import fastest_mapping, layer_ways, sram_shortage
from dse.adapters.dfmodel.report import shortages
from dse.adapters.dfmodel.setup import OVERLAPS
from dse.output.artefact import Artefact


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
    rules = FileVersions.of(profile, run.design)
    try:
        message, short = design_message(run, graph, sharding, rules)
    except DseError as error:
        return Artefact(None, (str(error),))
    lost = (*unsupported_shardings(graph, layer, words), *unsupported_columns(run.design, 0))
    content = setup_text(message).encode() if form == "dfmodel" else setup_bytes(message)
    return Artefact(content, (*lost, *rules.note(form), *short))


@dataclass(frozen=True, slots=True)
class FileVersions:
    """Generations of DFModel that a file is made by."""

    generation: str  #: whose rules choose the groups of kernels
    blocks: str  #: whose names and words the file has

    @classmethod
    def of(cls, profile: str, design: DataflowDesign) -> FileVersions:
        """Rules of the profile that evaluated a design; otherwise the first that can say its overlap."""
        newest = OVERLAPS[int(design.overlap[0])] == "compute_memory"
        priced_by = profile_named(profile)
        own = priced_by.version if priced_by.file == "dfmodel" else "gen3" if newest else "gen1"
        return cls(own, "gen3" if newest else own)

    def note(self, form: str) -> Iterator[str]:
        """Note that a file looks like one of another generation, where it does."""
        looks = "gen3" if self.blocks in ("gen2b", "gen3") else self.blocks if form == "dfmodel" else "gen1"
        if looks != self.generation:
            yield f"looks like a file of {looks}; price it with --profile dfmodel-{self.generation}"


def design_message(
    run: DataflowRun, graph: DfmodelGraph, sharding: IntArray, rules: FileVersions
) -> tuple[Message, list[str]]:
    """The set-up of one design, its kernels alone or in their fastest groups, and what these lack.

    Raises `DseError` if DFModel has no such network or tiles, or no groups fit the SRAM.

    Groups are found without a limit of DRAM, as searches find them: there the native memory counts.
    """
    setup, generation, groups = design_setup(run), rules.generation, None
    if not setup.kernel_by_kernel:
        ways = layer_ways(run.model, run.precision.element_bytes)
        endless = replace(setup, dram_bytes=np.zeros(1))
        mapping = fastest_mapping(graph, endless, sharding, ways, generation=generation)
        if mapping is None:
            short = sram_shortage(loads(graph, setup, sharding, generation))
            raise DseError(f"execution=dataflow: no groups fit: {short}")
        groups = mapping.groups
    message = setup_message(graph, setup, sharding, generation=rules.blocks, groups=groups)
    priced = evaluate(graph, setup, sharding, generation=generation, groups=groups)
    member = np.arange(len(graph)) if groups is None else groups
    return message, [f"does not fit: {line}" for line in shortages(graph, setup, member, priced)]
