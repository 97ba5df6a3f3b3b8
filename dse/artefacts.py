"""Files that a design becomes in the hands of other programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dse.export import writable_directory, write_file

if TYPE_CHECKING:
    from dse.export import Part
    from dse.space import Space
    from dse.study import Study

#: Form of an artefact -> ending of its file.
FORMS = {"aicb": ".txt"}

#: Designs whose artefacts are made at once.
CHUNK = 1024


@dataclass(frozen=True)
class Artefact:
    """A file, and what its reader will stumble over."""

    content: bytes
    notes: tuple[str, ...]


def artefacts(space: Space, designs: Sequence[Mapping[str, Any]], form: str) -> Iterator[Artefact]:
    """The files of some designs of a space, one after the other.

    Parameters
    ----------
    space : Space
        Where the designs come from.
    designs : sequence of mappings
        Their parameters.
    form : str
        A key of `FORMS`: "aicb", the workload of the slowest stage.

    Raises
    ------
    DseError
        If such models have no such form.
    """
    from costmodel.design import DesignPoints
    from costmodel.design_rows import design_workload
    from costmodel.errors import DseError
    from costmodel.formats.aicb import workload_file
    from costmodel.model import ModelShape
    from costmodel.profiles.simai import ENDLESS, endless_rows
    from dse.evaluate import priced_inputs

    assert form in FORMS
    if not isinstance(space.model, ModelShape):
        raise DseError(f"space {space.name}: {form} has rows for transformers only")
    for start in range(0, len(designs), CHUNK):
        some = designs[start : start + CHUNK]
        system, design = priced_inputs(space, space.encode(some))
        assert isinstance(design, DesignPoints)
        rows = design_workload(space.model, system, design)
        for point in range(len(some)):
            file = workload_file(rows, point=point)
            notes = [f"row {name}: {ENDLESS}" for name in endless_rows(file.workload)]
            yield Artefact(file.text.encode(), tuple(notes))


def trial_artefact(study: Study, number: int | None, form: str) -> Artefact:
    """The file of one finished trial of a study; by default of the best of its front.

    Raises
    ------
    DseError
        If there is no such trial, or no front.
    """
    from costmodel.errors import DseError

    table = study.table
    candidates = table.front().trials[:1] if number is None else table.trials
    for trial in candidates:
        if number in (None, trial.number):
            return next(artefacts(study.space, [trial.params], form))
    if number is None:
        raise DseError(f"study {study.name!r}: has found nothing feasible; name a trial with --trial")
    known = [trial.number for trial in table.trials]
    held = f"it holds {len(known)}, from {min(known)} to {max(known)}" if known else "it holds none yet"
    raise DseError(f"study {study.name!r}: no finished trial {number}; {held}")


def write_artefacts(
    study: Study, directory: Path, part: Part, form: str, *, note: Callable[[str], None]
) -> None:
    """Write a file per design of the front, or per finished trial.

    Parameters
    ----------
    study : Study
        Whose designs.
    directory : Path
        Where to; it is created.
    part : "front" or "trials"
        Which designs.
    form : str
        A key of `FORMS`.
    note : callable
        Called with what a reader of a file will stumble over.

    Raises
    ------
    DseError
        If a file cannot be written.
    """
    writable_directory(directory)
    trials = (study.table.front() if part == "front" else study.table).trials
    files = artefacts(study.space, [trial.params for trial in trials], form)
    for trial, file in zip(trials, files, strict=True):
        path = directory / f"trial_{trial.number:05d}{FORMS[form]}"
        write_file(path, file.content)
        for text in file.notes:
            note(f"{path}: {text}")
