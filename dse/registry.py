"""Adapters of other programs: functions that read, write and evaluate their files; the core does not name them.

Each folder of `dse.adapters` describes one program in `adapter.yaml`. The file names functions as ``module:function``,
with the module within the folder, and the registry imports a module when its function is first called: a command that
needs no adapter imports none. `Adapter` and the records below it have the meaning of each key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import content, data_beside
from costmodel.rules.registry import Profile, sources
from costmodel.rules.registry import all_columns as all_columns  # from here, with the adapters' profiles
from costmodel.rules.registry import design_profiles as design_profiles

#: The part of a file that decides its kind. [B]
HEAD: Final = 1 << 18

#: Forms that `dse` writes without an adapter -> ending of the file: tables of work, and the events of a step.
TABLES: Final = {"gemms": ".csv", "optimizer": ".csv", "trace": ".json"}


def load(reference: str) -> Any:
    """An attribute of a module, such as ``"os.path:join"``."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def call(reference: str, *arguments: Any) -> Any:
    """Result of a function, which is imported now; `partial(call, place)` is imported when it is called."""
    return load(reference)(*arguments)


@dataclass(frozen=True, kw_only=True, slots=True)
class FileKind:
    """A kind of file that describes a design or a workload, and how it is recognized.

    `pattern` is found in the first `HEAD` bytes of a file of the kind, or the function `begins` returns True for them.
    """

    name: str
    title: str  #: as messages name such a file, with its article
    pattern: str = ""
    begins: str = ""
    order: int = 0  #: kinds of a lower number are tried first
    endings: tuple[str, ...] = ()  #: file names that decide, for any content of the file
    usual_endings: tuple[str, ...] = ()  #: file names that decide where the content does not

    def fits(self, head: bytes) -> bool:
        """True for the first bytes of a file of this kind."""
        if self.begins:
            return bool(call(self.begins, head))
        return bool(self.pattern and re.search(self.pattern.encode(), head, re.MULTILINE))


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
    #: Column -> value that the framework has instead of one that it cannot state.
    instead: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkloadKind(FileKind):
    """A file of work that a profile evaluates by itself, with separate options in `dse evaluate`."""

    profile: str  #: the profile that evaluates a file where none is named, or a function of the path that returns it
    run: str  #: takes parsed arguments, prints the result and returns the exit code
    record: str  #: takes path, profile, whether it was asked for, options and `note`; returns the JSON
    formats: tuple[str, ...]  #: of the output
    options: Mapping[str, Any] = field(default_factory=dict)  #: title, about, and arguments as `argparse` has them
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: option -> its default

    def profile_of(self, path: Path) -> str:
        """The profile that evaluates a file where none is named."""
        return str(call(self.profile, path)) if ":" in self.profile else self.profile


@dataclass(frozen=True, kw_only=True, slots=True)
class ProgramSource:
    """A file that search spaces name as their workload, `workload: {KEY: FILE}`, and models of its schema."""

    key: str
    schema: str  #: of models that hold such a program
    data: str  #: takes a folder and the file or files in it, and returns the content of a model section
    read: str  #: takes a section and a name and returns the model
    system: str | None = None  #: of spaces that name none


@dataclass(frozen=True, kw_only=True, slots=True)
class Adapter:
    """One program that `dse` works with, and all its entry points."""

    name: str
    title: str  #: as messages name the program
    files: tuple[FileKind, ...] = ()
    exports: Mapping[str, str] = field(default_factory=dict)  #: form of `dse export` -> ending; "" for a folder
    write: str = ""  #: takes a run, the form and a profile; yields an `Artefact` for each design of the run
    design: str = ""  #: table of designs of such a run; by default `DesignPoints`
    profiles: tuple[Profile, ...] = ()  #: cost rules; `rules` takes the version and returns those for designs
    programs: tuple[ProgramSource, ...] = ()
    model_ending: str = ""  #: of configurations of models
    model_file: str = ""  #: a file that folders of models have
    #: Kind of measurements -> function that reads a file or folder, or holds it against predictions.
    measurements: Mapping[str, str] = field(default_factory=dict)
    import_model: str = ""  #: takes the path of one and a sequence length and returns an `ImportedModel`
    #: Takes the first bytes of a file and returns the kind of other output of the program that it is, else "".
    other_output: str = ""


@cache
def adapters() -> tuple[Adapter, ...]:
    """The adapters of all folders of `dse.adapters`, by name."""
    folder = Path(__file__).parent / "adapters"
    return tuple(_adapter(path) for path in sorted(folder.glob("*/adapter.yaml")))


def _adapter(path: Path) -> Adapter:
    """An adapter from its file, with functions by their full names."""
    name, kinds = path.parent.name, {True: LaunchForm, False: WorkloadKind}
    data = _full(data_beside(str(path)), f"dse.adapters.{name}.")
    data["files"] = tuple(kinds["ending" in entry](name=key, **entry) for key, entry in data.get("files", {}).items())
    data["programs"] = tuple(ProgramSource(key=key, **entry) for key, entry in data.get("programs", {}).items())
    data["profiles"] = tuple(_profile(key, **entry) for key, entry in data.get("profiles", {}).items())
    return Adapter(name=name, **data)


def _full(data: Any, package: str) -> Any:
    """Data of a file in which functions of a package have their full names, and lists are tuples."""
    if isinstance(data, dict):
        return {key: _full(value, package) for key, value in data.items()}
    if isinstance(data, list):
        return tuple(data)
    is_function = isinstance(data, str) and re.fullmatch(r"[a-z_]+(\.[a-z_]+)*:\w+", data)
    return package + data if is_function and not re.match(r"(dse|pathlib)\b", data) else data


def _profile(name: str, *, about: str, file: str = "", rules: str = "", version: str = "",
             works: tuple[str, ...] = (), columns: tuple[str, ...] = ()) -> Profile:  # fmt: skip
    designs = partial(call, rules, version) if rules else None
    return Profile(name, about, file, designs, version, works, columns)


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


# `adapter.yaml` files are read when a profile is first asked for
sources.append(lambda: [profile for adapter in adapters() for profile in adapter.profiles])


def program_sources() -> Sequence[ProgramSource]:
    """Files that search spaces can name as their workload."""
    return [source for adapter in adapters() for source in adapter.programs]


def model_importer(path: Path) -> Callable[..., Any] | None:
    """The function that reads a model of another program from a path; None where no adapter knows it."""
    for adapter in adapters():
        in_folder = path.is_dir() and (path / adapter.model_file).exists()
        if adapter.import_model and (in_folder or path.suffix == adapter.model_ending):
            importer: Callable[..., Any] = load(adapter.import_model)
            return importer
    return None


def measurement_reader(kind: str) -> Callable[..., Any]:
    """The function that reads files of a kind of measurements, such as ``"run_log"``."""
    references = (adapter.measurements[kind] for adapter in adapters() if kind in adapter.measurements)
    reader: Callable[..., Any] = load(next(references))
    return reader


def recognized(path: Path, head: bytes | None = None) -> FileKind | None:
    """The kind of a file by its name and content, which gzip may have packed; None if no adapter knows it.

    `head` is the first `HEAD` bytes if known. Raises `DseError` for unreadable files and other outputs of a program.
    """
    kinds = file_kinds().values()
    if kind := next((kind for kind in kinds if path.suffix in kind.endings), None):
        return kind
    head = content(path, HEAD) if head is None else head
    if len(head) == HEAD:
        head = head.rpartition(b"\n")[0] or head  # not in the middle of a character
    kind = next((kind for kind in kinds if kind.fits(head)), None)
    if isinstance(kind, LaunchForm):
        return kind
    if text := next(
        (text for adapter in adapters() if adapter.other_output and (text := call(adapter.other_output, head))), ""
    ):
        raise DseError(f"{path}: {text}")
    return kind
