"""Files that a design becomes in the hands of other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from costmodel.columns import IntArray
from costmodel.errors import DseError, ParameterError, suggestion
from costmodel.formats.framework_file import framework_names, load_framework
from costmodel.profiles.dfmodel import DataflowDesign, DfmodelGraph
from costmodel.profiles.dfmodel.assigned import design_sharding, unsupported_columns, unsupported_shardings
from costmodel.profiles.dfmodel.design import DataflowRun, design_setup
from costmodel.profiles.dfmodel.evaluation import evaluate, loads
from costmodel.profiles.dfmodel.files import setup_bytes, setup_message, setup_text
from costmodel.profiles.dfmodel.files.setup_files import Message
from costmodel.profiles.dfmodel.layer import model_graph
from costmodel.profiles.dfmodel.mapping import fastest_mapping, layer_ways, sram_shortage
from costmodel.profiles.dfmodel.setup import OVERLAPS
from costmodel.profiles.registry import profile_named
from costmodel.profiles.simai import ENDLESS, endless_rows
from costmodel.profiles.simai.design_rows import design_workload, rows_know
from costmodel.profiles.simai.files.aicb import workload_file
from costmodel.profiles.work import TRAINING
from costmodel.steps.transformer import resolve_sharding
from costmodel.training.run import TransformerRun, rank_run
from costmodel.training.sharding import SHARDINGS
from dse.explaining.timeline import traces
from dse.explaining.work_tables import WORK_TABLES, csv_text, work_tables
from dse.exporting.astra_sim.export import astra_sim_files
from dse.exporting.chakra.step import chakra_traces
from dse.exporting.launch.forms import LAUNCH_FORMS, launch_files
from dse.pricing.evaluation import transformer_run
from dse.pricing.space_rules import NATIVE
from dse.records.artefact import Artefact
from dse.records.tables import writable_directory, write_file
from dse.reporting.programs.dfmodel_report import shortages
from dse.searching.study import BaseStudy
from dse.searching.trials.trial_attributes import LAYOUTS
from dse.searching.trials.trial_table import Selection
from dse.spaces.space import Space

#: Form of an artefact -> ending of its file.
FORMS = {
    "aicb": ".txt",
    "astra-sim": "",  # a folder
    "chakra": "",  # a folder
    "dfmodel": ".txt",
    "dfmodel-binary": ".pb",
    "gemms": ".csv",
    "optimizer": ".csv",
    "trace": ".json",
    **LAUNCH_FORMS,
}

#: Designs whose artefacts are made at once.
CHUNK = 1024


def artefacts(space: Space, designs: Sequence[Mapping[str, Any]], form: str, *, profile: str = NATIVE,
              anyway: bool = False) -> Iterator[Artefact]:  # fmt: skip
    """The files of some designs of a space, one after the other.

    `form` is a key of `FORMS`: "aicb", the workload of the slowest stage; "trace", the events of a step; "chakra",
    these as files, one for a rank of each stage; "astra-sim", one for every rank, with their network; "gemms" and
    "optimizer", tables of `dse.explaining.work_tables`; one of `LAUNCH_FORMS`; else the graph of a layer with the
    set-up of DFModel, as text or in binary. `profile` evaluated the designs. With `anyway`, launch files of models are
    written that their framework cannot train. Raises `DseError` if such models have no such form.
    """
    if form not in FORMS:
        raise ParameterError(f"{{format}}: unknown form {form!r}{suggestion(form, FORMS)}")
    if space.workload.work != TRAINING:
        raise DseError(f"space {space.name}: {form} knows transformers only")
    if form in WORK_TABLES:
        yield from (Artefact(csv_text(rows).encode(), ()) for rows in work_tables(form, space, designs))
        return
    for start in range(0, len(designs), CHUNK):
        run = transformer_run(space, space.encode(designs[start : start + CHUNK]), DataflowDesign)
        if form == "aicb":
            yield from workloads(run)
        elif form == "trace":
            yield from traces(run)
        elif form == "chakra":
            yield from chakra_traces(run)
        elif form == "astra-sim":
            yield from astra_sim_files(run)
        elif form in LAUNCH_FORMS:
            notes = own_machine(space)
            for file in launch_files(run, form, space.framework, anyway=anyway):
                yield replace(file, notes=(*file.notes, *notes)) if file.content else file
        else:
            yield from graphs(run, form, profile)


def own_machine(space: Space) -> tuple[str, ...]:
    """A note where a space says otherwise what machine or software does, which no launch file has."""
    said = load_framework(space.framework).given if space.framework in framework_names() else {}
    own = {*(p.name for p in space.parameters), *(d.name for d in space.derived)}
    own |= {name for name, value in space.given.items() if said.get(name) != value}
    changed = sorted(own & space.system.units().keys())
    return (f"of the machine, no launch file says {', '.join(changed)}",) if changed else ()


def workloads(run: TransformerRun) -> Iterator[Artefact]:
    """Designs as AICB's workloads; shardings that its rows cannot say become the nearest that they can."""
    run = run.of(resolve_sharding(run.model, run.system, run.design))
    shape, points = rank_run(run).design, range(run.num_points)
    named, numbers = shape.assignments.named, np.broadcast_to(shape.assignment, (len(points),)).tolist()
    notes: list[tuple[str, ...]] = [() for _ in points]
    codes = np.broadcast_to(run.design.sharding, (len(points),)).copy()
    for point in np.flatnonzero(~np.broadcast_to(rows_know(rank_run(run)), (len(points),))).tolist():
        words = shape.assignments.words(numbers[point])
        lost = {name: {k: w for k, w in words.items() if shape.assignments.words(own)[k] != w}
                for name, own in named.items()}  # fmt: skip
        nearest = min(lost, key=lambda name: len(lost[name]))
        codes[point] = SHARDINGS.index(nearest)
        kernels = ", ".join(f"{kernel} by {word}" for kernel, word in lost[nearest].items())
        notes[point] = (f"rows cannot split {kernels}; they are those of sharding={nearest}",)
    rows = design_workload(run.of(replace(run.design, sharding=codes)))
    for point in points:
        file = workload_file(rows, point=point)
        endless = [f"row {name}: {ENDLESS}" for name in endless_rows(file.workload)]
        yield Artefact(file.text.encode(), (*notes[point], *endless))


def graphs(run: DataflowRun, form: str, profile: str) -> Iterator[Artefact]:
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

    Raises
    ------
    DseError
        If DFModel has no such network or tiles, or no groups fit the SRAM.

    Notes
    -----
    Groups are found without a limit of DRAM, as searches find them: there the native memory counts.
    """
    setup, generation, groups = design_setup(run), rules.generation, None
    if not setup.kernel_by_kernel:
        ways = layer_ways(run.model, run.precision.element_bytes)
        endless = replace(setup, dram_bytes=np.zeros(1))
        found = fastest_mapping(graph, endless, sharding, ways, generation=generation)
        if found is None:
            short = sram_shortage(loads(graph, setup, sharding, generation))
            raise DseError(f"execution=dataflow: no groups fit: {short}")
        groups = found.groups
    message = setup_message(graph, setup, sharding, generation=rules.blocks, groups=groups)
    priced = evaluate(graph, setup, sharding, generation=generation, groups=groups)
    member = np.arange(len(graph)) if groups is None else groups
    return message, [f"does not fit: {line}" for line in shortages(graph, setup, member, priced)]


def trial_artefact(study: BaseStudy, number: int | None, form: str, winner: int = 0,
                   workload: str | None = None, *, anyway: bool = False) -> Artefact:  # fmt: skip
    """The file of one finished trial of a study, or of another winner of it; by default of the best design.

    Raises `DseError` if there is no such trial or winner, or no front, or the design has no such file.
    """
    table = study.table
    found = table.front() if number is None else table.found()
    rows = np.arange(min(1, len(found))) if number is None else np.flatnonzero(found.numbers == number)
    if winner >= len(rows) > 0:
        held = f"it has {len(rows)}, from 0 to {len(rows) - 1}"
        raise DseError(f"study {study.name!r}: trial {number}: no winner {winner}; {held}")
    for trial in found.take(rows[winner : winner + 1]).trials:
        space, params = one_workload(study, trial, workload)
        file = next(artefacts(space, [params], form, profile=study.profile, anyway=anyway))
        if file.content is None:
            raise DseError(f"study {study.name!r}: trial {trial.number}: {file.notes[0]}")
        return file
    if number is None:
        raise ParameterError(f"study {study.name!r}: has found nothing feasible; name a trial with {{trial}}")
    known = table.numbers
    held = f"it holds {len(known)}, from {min(known)} to {max(known)}" if len(known) else "it holds none yet"
    raise DseError(f"study {study.name!r}: no finished trial {number}; {held}")


def one_workload(study: BaseStudy, trial: FrozenTrial, name: str | None) -> tuple[Space, Mapping[str, Any]]:
    """The space and the design of a trial; of one of its workloads where it has several.

    Raises `DseError` if there is no such workload, or it has no layout on this machine.
    """
    spaces = {own.name: own.space for own in study.space.workloads}
    if name is None and not spaces:
        return study.space, trial.params
    if name not in spaces:
        known = suggestion(name or "", spaces) if spaces else "; it has but one"
        raise ParameterError(f"study {study.name!r}: {{workload}} {name or 'missing'}: name one of them{known}")
    layout = trial.user_attrs[LAYOUTS].get(name)
    if layout is None:
        raise DseError(f"study {study.name!r}: trial {trial.number}: {name} has no layout on this machine")
    return spaces[name], {**trial.params, **layout}


def write_artefact(path: Path, file: Artefact) -> None:
    """Write a file, or a folder of files; nothing where the design has none.

    Raises `DseError` if it cannot be written, or if the folder has files of another design.
    """
    if isinstance(file.content, bytes):
        write_file(path, file.content)
    elif file.content:
        writable_directory(path)
        endings = {Path(name).suffix for name in file.content}
        others = {own.name for own in path.iterdir() if own.suffix in endings} - file.content.keys()
        if others:
            raise DseError(f"{path}: has files of another design, such as {min(others)}; name another folder")
        for name, content in file.content.items():
            write_file(path / name, content)


def write_artefacts(
    study: BaseStudy, directory: Path, part: Selection, form: str, *, note: Callable[[str], None]
) -> None:
    """Write a file per design of the front, or per finished trial, to a directory, which is created.

    `form` is a key of `FORMS`; `note` is called with each note of a file. Raises `DseError` if a file cannot be
    written.
    """
    if study.space.workloads:
        raise DseError("--emit: of several workloads; `dse export STUDY --trial N --workload NAME` writes one")
    writable_directory(directory)
    shown = study.table.front() if part == "front" else study.table
    for block in shown.blocks():
        designs = [trial.params for trial in block.trials]
        files = artefacts(study.space, designs, form, profile=study.profile)
        for trial, place, file in zip(block.trials, block.winners.tolist(), files, strict=True):
            winner = f"_winner_{place}" if place else ""
            path = directory / f"trial_{trial.number:05d}{winner}{FORMS[form]}"
            write_artefact(path, file)
            for text in file.notes:
                note(f"{path}: {text}")
