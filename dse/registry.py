"""Adapters of other programs: what reads, writes and evaluates their files, without the core naming them.

Each folder of `dse.adapters` describes one program in an `Adapter`, a record in its `__init__`. What a record names
as ``module:attribute`` is imported when it is first used, so that looking at all adapters is cheap.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import content
from costmodel.rules.registry import Profile, sources
from costmodel.rules.registry import all_columns as all_columns  # from here, with the adapters' profiles
from costmodel.rules.registry import design_profiles as design_profiles

#: The part of a file that decides its kind. [B]
HEAD: Final = 1 << 18

#: Forms that `dse` writes without an adapter -> ending of the file: tables of work, and the events of a step.
TABLES: Final = {"gemms": ".csv", "optimizer": ".csv", "trace": ".json"}


def load(place: str) -> Any:
    """An attribute of a module, such as ``"os.path:join"``."""
    module, _, name = place.partition(":")
    return getattr(import_module(module), name)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileKind:
    """A kind of file that describes a design or a workload, and how it is recognized."""

    name: str
    title: str  #: as messages name such a file, with its article
    begins: Callable[[bytes], bool]  #: true for the first `HEAD` bytes of such a file
    order: int = 0  #: kinds of a lower number are tried first
    endings: tuple[str, ...] = ()  #: file names that decide whatever the file holds
    usual_endings: tuple[str, ...] = ()  #: file names that decide where the content does not


@dataclass(frozen=True, kw_only=True, slots=True)
class LaunchForm(FileKind):
    """A launch file of a framework: a model and the layout of one run.

    `write` takes a `Launch` and returns a text and the settings that are lost; `read` takes a path and a number of
    GPUs and returns a `Launch` and notes on settings that are not read.
    """

    ending: str  #: of the files that are written
    write: str
    read: str
    #: Where `Launch.settings` are flags: `stated` gives a flag and its value, `rebuilt` a launch from settings.
    stated: str = ""
    rebuilt: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadKind(FileKind):
    """A file of work that a profile evaluates by itself, with options of its own in `dse evaluate`."""

    profile: Callable[[Path], str]  #: the profile that evaluates a file where none is named
    run: str  #: takes parsed arguments, prints the result and returns the exit code
    record: str  #: takes path, profile, whether it was asked for, options and `note`; returns the JSON
    formats: tuple[str, ...]  #: of the output
    options: str = ""  #: adds the options to a parser
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: option -> its default


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramSource:
    """A file that search spaces name as their workload, `workload: {KEY: FILE}`, and models of its schema."""

    key: str
    schema: str  #: of models that hold such a program
    data: str  #: takes the path of a file and returns the content of a model section
    read: str  #: takes a section and a name and returns the model


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """One program beside `dse`, and all that is known of it."""

    name: str
    title: str  #: as messages name the program
    files: tuple[FileKind, ...] = ()
    exports: Mapping[str, str] = field(default_factory=dict)  #: form of `dse export` -> ending; "" for a folder
    write: str = ""  #: takes a run, the form and a profile; yields an `Artefact` for each design of the run
    design: str = ""  #: table of designs of such a run; by default `DesignPoints`
    profiles: tuple[Profile, ...] = ()  #: cost rules
    programs: tuple[ProgramSource, ...] = ()
    #: Tells paths of model configurations; takes a path and a sequence length and returns an `ImportedModel`.
    is_model: Callable[[Path], bool] = lambda path: False
    import_model: str = ""
    #: What a file is that this program prints beside its workloads, from its first bytes; "" if it is none.
    other_output: Callable[[bytes], str] = lambda head: ""


@cache
def adapters() -> tuple[Adapter, ...]:
    """The adapters of all folders of `dse.adapters`, by name."""
    folder = import_module("dse.adapters")
    names = [found.name for found in pkgutil.iter_modules(folder.__path__) if found.ispkg]
    return tuple(import_module(f"dse.adapters.{name}").ADAPTER for name in sorted(names))


@cache
def file_kinds() -> Mapping[str, FileKind]:
    """Name -> kind of file, in the order in which they are tried."""
    kinds = sorted((kind for adapter in adapters() for kind in adapter.files), key=lambda kind: kind.order)
    return {kind.name: kind for kind in kinds}


def launch_forms() -> Mapping[str, LaunchForm]:
    """Name -> form of launch files, such as ``"megatron"``."""
    return {name: kind for name, kind in file_kinds().items() if isinstance(kind, LaunchForm)}


def workload_kinds() -> Mapping[str, WorkloadKind]:
    """Name -> kind of file that a profile evaluates, such as ``"hlo"``."""
    return {name: kind for name, kind in file_kinds().items() if isinstance(kind, WorkloadKind)}


def exporters() -> Mapping[str, Adapter]:
    """Form of `dse export` -> the adapter that writes it; launch files aside."""
    return {form: adapter for adapter in adapters() for form in adapter.exports}


def export_forms() -> dict[str, str]:
    """Form of a file that a design becomes -> ending of the file; "" for a folder."""
    written = {form: adapter.exports[form] for form, adapter in exporters().items()}
    launches = {name: form.ending for name, form in launch_forms().items()}
    return {**dict(sorted({**written, **TABLES}.items())), **launches}


def adapter_profiles() -> Sequence[Profile]:
    """The cost rules of all adapters."""
    return [profile for adapter in adapters() for profile in adapter.profiles]


sources.append(adapter_profiles)  # the adapters are imported when a profile is first asked for


def program_sources() -> Sequence[ProgramSource]:
    """Files that search spaces can name as their workload."""
    return [source for adapter in adapters() for source in adapter.programs]


def model_importer(path: Path) -> Callable[..., Any] | None:
    """The function that reads a model of another program from a path; None where no adapter knows it."""
    return next((load(own.import_model) for own in adapters() if own.import_model and own.is_model(path)), None)


def recognized(path: Path, head: bytes | None = None) -> FileKind | None:
    """The kind of a file by its name and content, which gzip may have packed; None if no adapter knows it.

    `head` is the first `HEAD` bytes where they are known. Raises `DseError` if the file cannot be read, or is another
    output of a program.
    """
    kinds = file_kinds().values()
    if kind := next((kind for kind in kinds if path.suffix in kind.endings), None):
        return kind
    head = content(path, HEAD) if head is None else head
    if len(head) == HEAD:
        head = head.rpartition(b"\n")[0] or head  # not in the middle of a character
    kind = next((kind for kind in kinds if kind.begins(head)), None)
    if isinstance(kind, LaunchForm):
        return kind
    if text := next((text for own in adapters() if (text := own.other_output(head))), ""):
        raise DseError(f"{path}: {text}")
    return kind
