"""A measured training run expressed as a model, a system and a design, and the parts that cannot be expressed.

A row names a model, a system, a framework and settings. Settings that it does not give are the framework's defaults. A
setting without a counterpart makes the row not expressed, with a reason."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel import DesignPoints, DseError, ModelShape, System, load_model, load_system, step
from costmodel.columns import concatenated, grouped
from costmodel.formats.framework_file import Framework
from costmodel.training.design_table import Domain
from dse.validation.table import WORDS

Value = float | str


class NotExpressed(DseError):
    """A run that cannot be evaluated, and the missing part."""


#: Columns of a design that a run may need, and their meaning where a design has no such column.
ABSENT: Final[Mapping[str, Sequence[Value]]] = WORDS["absent"]
#: Switches that are off, and counts that are 0, where a design has no such column.
NOTHING: Final[Sequence[Value]] = (0,)


def shipped_model(name: str, differing: Mapping[str, Any]) -> ModelShape:
    """A built-in transformer with some of its fields replaced."""
    model = load_model(name)
    if not isinstance(model, ModelShape):
        raise NotExpressed(f"{name} as a transformer")
    return replace(model, **differing)


def system_named(name: str) -> System:
    """A system by name or path, read once for all rows of a table as long as its file is the same."""
    path = Path(name)
    return _system_read(name, path.stat().st_mtime_ns if path.is_file() else 0)


@lru_cache(maxsize=64)
def _system_read(name: str, changed: int) -> System:
    return load_system(name)


@dataclass(frozen=True, slots=True)
class Machine:
    """A system by name or file, and quantities that differ from it."""

    name: str
    quantities: Mapping[str, float] = field(default_factory=dict)  #: [SI units]

    @property
    def system(self) -> System:
        """Machine of the run."""
        return system_named(self.name).with_quantities(self.quantities)


def systems(machines: Sequence[Machine]) -> System:
    """Machines of one name as one system, a point for each."""
    base = system_named(machines[0].name)
    usual = base.quantities()
    names = {name for machine in machines for name in machine.quantities}
    if not names:
        return base
    unchanged = {name: float(usual[name]) if name in usual else np.nan for name in names}
    return base.with_quantities(
        {name: [machine.quantities.get(name, unchanged[name]) for machine in machines] for name in names}
    )


def number_of(name: str, value: Value) -> float:
    """The number that a row gives for a quantity. [the unit of it]

    Raises `NotExpressed` if it is a word.
    """
    if isinstance(value, str):
        raise NotExpressed(f"a number for {name} ({value!r})")
    return float(value)


@dataclass(frozen=True, slots=True)
class Expressed:
    """A run as the cost model takes it: one design of a model on a machine."""

    model: ModelShape
    machine: Machine
    columns: Mapping[str, Value]  #: columns of the design, by name
    framework: Framework  #: its software, in its release
    assumed: Mapping[str, Any] = field(default_factory=dict)  #: settings that the row does not state

    def design(self) -> DesignPoints:
        """The design, a table of one row; `NotExpressed` says which column or word is missing here."""
        blocks = self.model.blocks
        return DesignPoints.of(blocks=blocks, **known_values(self.columns, DesignPoints.domains(blocks)))

    def count(self, *names: str) -> float:
        """Product of some columns of the design, each 1 where it is not named. [-]"""
        return float(np.prod([number_of(name, self.columns.get(name, 1)) for name in names]))

    @property
    def ranks(self) -> float:
        """Chips that it takes. [-]"""
        return self.count("tp", "cp", "pp", "dp")

    @property
    def sequences(self) -> float:
        """Sequences of a step. [-]"""
        return self.count("dp", "micro_batch_size", "gradient_accumulation_steps")


def known_values(values: Mapping[str, Value], domains: Mapping[str, Domain]) -> dict[str, Value]:
    """Values for which designs of some domains have columns; others must equal the meaning of a missing column.

    Raises `NotExpressed` for a column or a word that designs do not have.
    """
    known: dict[str, Value] = {}
    for name, value in values.items():
        if name in domains:
            words = domains[name].words
            if isinstance(value, str) and value not in words:
                raise NotExpressed(f"the column {name} has no word {value}")
            known[name] = value
        elif value not in ABSENT.get(name, NOTHING):
            raise NotExpressed(f"designs have no column {name}")
    return known


def breakdowns(runs: Sequence[Expressed]) -> list[dict[str, float] | DseError]:
    """Breakdown of each run, by column, or the reason why it cannot be evaluated. [SI units]

    Runs of one model and one system are evaluated together.
    """
    of_runs: list[dict[str, float] | DseError] = [{}] * len(runs)
    for places in grouped(((run.model, run.machine.name), number) for number, run in enumerate(runs)).values():
        for number, evaluated in zip(places, _together([runs[number] for number in places]), strict=True):
            of_runs[number] = evaluated
    return of_runs


def _together(runs: Sequence[Expressed]) -> list[dict[str, float] | DseError]:
    """Breakdowns of runs of one model and one system, evaluated one by one where some cannot be evaluated."""
    try:
        design = concatenated([run.design() for run in runs])
        cost = step(runs[0].model, systems([run.machine for run in runs]), design)
    except DseError as error:
        return [error] if len(runs) == 1 else [evaluated for run in runs for evaluated in _together([run])]
    columns = {name: np.broadcast_to(values, (len(runs),)) for name, values in cost.columns().items()}
    by_row = ({name: float(values[row]) for name, values in columns.items()} for row in range(len(runs)))
    no_rate = NotExpressed("a rate of its chip for that number format")
    return [of_run if np.isfinite(of_run["step_time"]) else no_rate for of_run in by_row]
