"""Forms of launch files: who writes and who reads each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Final

from costmodel.training.run import TransformerRun
from dse.exporting.launch.launch import Launch, NotExpressible
from dse.records.artefact import Artefact

Writer = Callable[["Launch"], tuple[str, list[str]]]
Reader = Callable[[Path, int | None], tuple["Launch", list[str]]]

#: Form of a launch file -> ending of the file.
LAUNCH_FORMS: Final[Mapping[str, str]] = {
    "megatron": ".sh",
    "nemo": ".yaml",
    "torchtitan": ".toml",
    "maxtext": ".yml",
}
#: Forms that are read, too.
READ_FORMS: Final = ("megatron", "nemo", "torchtitan")


def launch_files(run: TransformerRun, form: str) -> Iterator[Artefact]:
    """Designs as launch files of a framework, one of `LAUNCH_FORMS`."""
    write: Writer = import_module(f"dse.exporting.launch.{form}").script
    for point in range(run.num_points):
        try:
            text, lost = write(Launch.of_run(run, point))
        except NotExpressible as error:
            yield Artefact(None, (str(error),))
            continue
        notes = (f"{form} cannot say {'; '.join(lost)}",) if lost else ()
        yield Artefact(text.encode(), notes)


def read_launch(path: Path, form: str, chips: int | None = None) -> tuple[Launch, list[str]]:
    """What a launch file runs, and what of it is not read; `form` is one of `READ_FORMS`.

    Raises
    ------
    DseError
        If it is no such file, or says too little.
    """
    read: Reader = import_module(f"dse.exporting.launch.{form}").read_script
    return read(path, chips)
