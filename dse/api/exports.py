"""Designs as files for other programs: launch files, inputs of simulators, traces and tables of work.

The registry of adapters knows the formats, and an adapter writes all designs of a study in one call. Each file comes
with notes on settings that it cannot express; a design without a file has notes that say why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial

from costmodel.errors import DseError, ParameterError, suggestion
from costmodel.formats.framework_file import is_built_in, load_framework
from costmodel.formats.quantity import si_value
from costmodel.rules.registry import NATIVE
from costmodel.rules.rules import TRAINING
from costmodel.training.design import DesignPoints
from costmodel.training.run import TransformerRun
from dse.explaining.explanation import WORK_TABLES, csv_text, work_tables
from dse.explaining.timeline import traces
from dse.launches.launch import launch_files
from dse.output import Artefact, writable_directory, write_file
from dse.pricing.evaluation import transformer_run
from dse.registry import export_forms, exporters, launch_forms, load
from dse.searching.study import BaseStudy
from dse.searching.trials.trial_table import LAYOUTS, Selection
from dse.spaces.space import Space

#: Designs whose artefacts are made at once.
CHUNK = 1024


def artefacts(space: Space, designs: Sequence[Mapping[str, Any]], form: str, *, profile: str = NATIVE,
              anyway: bool = False) -> Iterator[Artefact]:  # fmt: skip
    """The files of some designs of a space, one after the other.

    `form` is a key of `export_forms()`: a launch file, a file of another simulator, the events of a step ("trace"), or
    a table of `dse.explaining.explanation`. `profile` names the rules of the designs. With `anyway`, launch files are
    written even for models that their framework cannot train. Raises `DseError` if models have no file of the form.
    """
    if form not in (forms := export_forms()):
        raise ParameterError(f"{{format}}: unknown form {form!r}{suggestion(form, forms)}")
    if space.workload.work != TRAINING:
        raise DseError(f"space {space.name}: {form} knows transformers only")
    if form in WORK_TABLES:
        yield from (Artefact(csv_text(rows).encode(), ()) for rows in work_tables(form, space, designs))
        return
    adapter = exporters().get(form)
    table = load(adapter.design) if adapter and adapter.design else DesignPoints
    for start in range(0, len(designs), CHUNK):
        run = transformer_run(space, space.encode(designs[start : start + CHUNK]), table)
        if adapter and (lost := fine_tuning_columns(run)):
            reason = f"{form} cannot express {', '.join(lost)}"
            yield from [Artefact(None, (reason,))] * run.num_points
        elif adapter:
            yield from load(adapter.write)(run, form, profile)
        elif form == "trace":
            yield from traces(run)
        else:
            notes = own_machine(space)
            for file in launch_files(run, form, space.framework, anyway=anyway):
                yield replace(file, notes=(*file.notes, *notes)) if file.content else file


def fine_tuning_columns(run: TransformerRun) -> list[str]:
    """Columns of fine-tuning of some designs that other simulators do not have."""
    columns = run.design.columns()
    asked = [name for name in ("lora_rank", "reference_model") if (columns.get(name, np.zeros(1)) > 0).any()]
    return [*asked, *(["document_len"] if run.model.document_len else [])]


def design_launches(
    space: Space, profile: str, records: Sequence[Mapping[str, Any]]
) -> list[dict[str, tuple[str, bool]]]:
    """Launch files of designs: form -> text and True, or the reason why a framework cannot run it and False.

    The forms of the space's framework come first.
    """
    launches: list[dict[str, tuple[str, bool]]] = [{} for _ in records]
    usual = load_framework(space.framework).launch if is_built_in(space.framework) else ("megatron",)
    known = space.workload.work == TRAINING and not space.workloads
    for form in dict.fromkeys((*usual, *launch_forms())) if known else ():
        files = artefacts(space, [record["params"] for record in records], form, profile=profile)
        for launch, file in zip(launches, files, strict=True):
            text = file.content.decode() if isinstance(file.content, bytes) else file.notes[0]
            launch[form] = (text, file.content is not None)
    return launches


def own_machine(space: Space) -> tuple[str, ...]:
    """A note where a space changes quantities of the machine or the software, which no launch file has."""
    quantities, units, said = space.system.quantities(), space.system.units(), dict[str, Any]()
    if is_built_in(space.framework):
        said = load_framework(space.framework).said(space.model, lambda name: np.max(quantities.get(name, np.nan)))
    opened = {*(p.name for p in space.parameters), *(d.name for d in space.derived)}
    usual = {name: si_value(value, units[name]) for name, value in said.items() if name in units}
    opened |= {name for name, value in space.given.items() if usual.get(name) != value}
    changed = sorted(opened & units.keys())
    return (f"not in launch files: the machine's {', '.join(changed)}",) if changed else ()


def trial_artefact(study: BaseStudy, number: int | None, form: str, winner: int = 0,
                   workload: str | None = None, *, anyway: bool = False) -> Artefact:  # fmt: skip
    """The file of one finished trial of a study, or of another winner of it; by default of the best design.

    Raises `DseError` if there is no such trial or winner, or no front, or the design has no such file.
    """
    table = study.table
    designs = table.front() if number is None else table.found()
    rows = np.arange(min(1, len(designs))) if number is None else np.flatnonzero(designs.numbers == number)
    if winner >= len(rows) > 0:
        held = f"it has {len(rows)}, from 0 to {len(rows) - 1}"
        raise DseError(f"study {study.name!r}: trial {number}: no winner {winner}; {held}")
    for trial in designs.take(rows[winner : winner + 1]).trials:
        space, params = one_workload(study, trial, workload)
        file = next(artefacts(space, [params], form, profile=study.profile, anyway=anyway))
        if file.content is None:
            raise DseError(f"study {study.name!r}: trial {trial.number}: {file.notes[0]}")
        return file
    if number is None:
        raise ParameterError(f"study {study.name!r}: has no feasible design; name a trial with {{trial}}")
    known = table.numbers
    held = f"it holds {len(known)}, from {min(known)} to {max(known)}" if len(known) else "it holds none yet"
    raise DseError(f"study {study.name!r}: no finished trial {number}; {held}")


def one_workload(study: BaseStudy, trial: FrozenTrial, name: str | None) -> tuple[Space, Mapping[str, Any]]:
    """The space and the design of a trial; of one of its workloads where it has several.

    Raises `DseError` if there is no such workload, or it has no layout on this machine.
    """
    spaces = {workload.name: workload.space for workload in study.space.workloads}
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
        others = {file_path.name for file_path in path.iterdir() if file_path.suffix in endings} - file.content.keys()
        if others:
            raise DseError(f"{path}: has files of another design, such as {min(others)}; name another folder")
        for name, content in file.content.items():
            write_file(path / name, content)


def write_artefacts(
    study: BaseStudy, directory: Path, part: Selection, form: str, *, note: Callable[[str], None]
) -> None:
    """Write a file per design of the front, or per finished trial, to a directory, which is created.

    `form` is a key of `export_forms()`; `note` is called with each note of a file. Raises `DseError` if a file
    cannot be written.
    """
    if study.space.workloads:
        raise DseError("--emit: of several workloads; `dse export STUDY --trial N --workload NAME` writes one")
    writable_directory(directory)
    shown, ending = study.table.front() if part == "front" else study.table, export_forms()[form]
    for block in shown.blocks():
        designs = [trial.params for trial in block.trials]
        files = artefacts(study.space, designs, form, profile=study.profile)
        for trial, winner_number, file in zip(block.trials, block.winners.tolist(), files, strict=True):
            winner = f"_winner_{winner_number}" if winner_number else ""
            path = directory / f"trial_{trial.number:05d}{winner}{ending}"
            write_artefact(path, file)
            for text in file.notes:
                note(f"{path}: {text}")
