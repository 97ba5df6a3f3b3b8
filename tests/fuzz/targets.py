"""Readers that take files of others, each at the door that a command uses."""

import contextlib
import io
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from costmodel import DseError, load_model, load_system
from costmodel.formats.framework_file import load_framework
from costmodel.formats.input_files import parse, read_text
from costmodel.formats.quantity import quantity, si_value, unit
from dse.adapters.deepflow.configuration import load_configuration
from dse.adapters.dfmodel.files import load_setup, setup_file
from dse.adapters.hugging_face.configuration import import_model
from dse.adapters.simai.files.aicb import load_workload
from dse.adapters.simai.files.busbw import load_busbw
from dse.adapters.xla import hlo
from dse.cli import parsed
from dse.launches.launch import read_launch
from dse.pricing.sweep import read_designs
from dse.spaces.formulas.expressions import Expression, Name
from dse.spaces.question import planned_model
from dse.spaces.space import Space
from dse.validation.table import read_table
from tests.fuzz import seeds

Reader = Callable[[Path], object]


@dataclass(frozen=True)
class Target:
    """A reader of files, and the files from which hostile ones are made."""

    read: Reader
    seeds: Callable[[], Iterable[bytes]]  #: files that it reads
    ending: str = ".txt"

    def __call__(self, data: bytes, folder: Path) -> str:
        """Read a file of some content; the message where it is refused, else nothing."""
        path = folder / f"input{self.ending}"
        path.write_bytes(data)
        try:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                self.read(path)
        except DseError as refused:
            return str(refused)
        return ""


def command(name: str, *options: str, file: str = "{}") -> Reader:
    """A whole command on the file, without the net below it; `file` is how the file is named."""

    @cache
    def arguments(path: Path) -> Any:
        return parsed([name, file.format(path), *options])

    def run(path: Path) -> object:
        args = arguments(path)
        return args.run(args)

    return run


def formula(path: Path) -> object:
    """A formula of a space."""
    known = {"tp": Name(), "step_time": Name((1, 0, 0, 0, 0, 0, 0))}
    return Expression.parse(read_text(path)).compiled(known)


def quantities(path: Path) -> None:
    """A quantity, read in the ways that there are: each may refuse it."""
    text = read_text(path)
    for read in (quantity, unit, lambda word: si_value(word, "B/s"), lambda word: si_value(word, "-")):
        with contextlib.suppress(ValueError):
            read(text)


@cache
def small_space() -> Space:
    """A space whose designs a file may hold."""
    return Space.from_text(seeds.SPACE)


def designs(path: Path) -> object:
    """Designs of a space."""
    return read_designs(small_space(), path, lambda note: None)


def launch(form: str) -> Reader:
    """A launch file of a framework."""
    return lambda path: read_launch(path, form, 8)


PRICED = ("--format", "json")
TARGETS: Final[Mapping[str, Target]] = {
    "yaml": Target(lambda path: parse(read_text(path), "x"), seeds.spaces, ".yaml"),
    "formula": Target(formula, partial(seeds.encoded, seeds.FORMULAS)),
    "quantity": Target(quantities, partial(seeds.encoded, seeds.QUANTITIES)),
    "space": Target(Space.load, seeds.spaces, ".yaml"),
    "priced-space": Target(command("evaluate", *PRICED), seeds.spaces, ".yaml"),
    "model": Target(load_model, partial(seeds.shipped, "models"), ".yaml"),
    "system": Target(load_system, partial(seeds.shipped, "systems"), ".yaml"),
    "framework": Target(load_framework, partial(seeds.shipped, "frameworks"), ".yaml"),
    "planned-model": Target(lambda path: planned_model(str(path)), seeds.hugging_face, ".json"),
    "hugging-face": Target(import_model, seeds.hugging_face, ".json"),
    "import": Target(command("import"), seeds.hugging_face, ".json"),
    "hlo": Target(lambda path: hlo.graph(hlo.load_module(path)), seeds.hlo_modules, ".hlo"),
    "priced-hlo": Target(command("cost", "--system", "h100_80g_dgx", *PRICED), seeds.hlo_modules, ".hlo"),
    "aicb": Target(load_workload, seeds.aicb),
    "priced-aicb": Target(
        command("cost", "--gpus", "96", "--gpu-type", "H100", "--nic-type", "cx7", *PRICED), seeds.aicb
    ),
    "busbw": Target(load_busbw, partial(seeds.encoded, seeds.BUSBW), ".yaml"),
    "dfmodel": Target(lambda path: setup_file(load_setup(path), "x"), seeds.dfmodel),
    "priced-dfmodel": Target(command("cost", *PRICED), seeds.dfmodel),
    "deepflow": Target(load_configuration, seeds.deepflow, ".yaml"),
    "priced-deepflow": Target(command("cost", *PRICED), seeds.deepflow, ".yaml"),
    "priced-deepflow-setup": Target(command("evaluate", *PRICED), seeds.deepflow_setups, ".yaml"),
    "megatron": Target(launch("megatron"), seeds.megatron, ".sh"),
    "torchtitan": Target(launch("torchtitan"), partial(seeds.settings, "torchtitan", "llama3_8b"), ".py"),
    "nemo": Target(launch("nemo"), partial(seeds.settings, "nemo", "gpt_22b"), ".py"),
    "measurements": Target(read_table, seeds.measurements, ".csv"),
    "validated": Target(command("validate", *PRICED), seeds.measurements, ".csv"),
    "designs": Target(designs, seeds.design_tables, ".csv"),
    "design-tables": Target(designs, seeds.parquet_tables, ".parquet"),
}
