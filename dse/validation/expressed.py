"""A measured training run expressed as a model, a system and a design, and the parts that cannot be expressed.

A row names a model, a system, a framework and settings. Names of hardware stand for built-in systems. Settings that it
does not give are the framework's defaults, which depend on no data set. A setting without a counterpart makes the row
not expressed, with a reason.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, lru_cache
from math import nan
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np

from costmodel import DesignPoints, DseError, ModelShape, System, load_model, load_system, step, system_names
from costmodel.columns import concatenated, grouped
from costmodel.formats.framework_file import USUAL_FRAMEWORK, Framework, holds, is_condition, load_framework
from costmodel.formats.quantity import quantity
from costmodel.formats.shipped import current_name
from costmodel.training.design_table import Domain
from dse.registry import all_columns
from dse.validation.table import WORDS, MeasuredRow

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


#: How rows state a fabric: adapters, the rate of one, and whose they are.
STATED_RATE: Final = r"(?:(\d+)x )?(?:[A-Za-z ]*)(?<![\d.])(\d+(?:\.\d+)?) Gb/s(?: [A-Za-z]+)*?(?: per (node|GPU)|\)|$)"

#: Bytes of the all-reduce that jobs test their links with [B], and its bus bandwidth on healthy links. [B/s]
TESTED: Final = 2e9
HEALTHY: Final = 200e9

#: Chips of a node where a row does not say.
NODE: Final = 8.0


def machine_of(row: MeasuredRow, system: str | None = None) -> Machine:
    """The machine of a row: a requested one, or a built-in one with the fabric that the row states.

    Raises `NotExpressed` if no built-in system has the row's hardware.
    """
    if system is not None:
        return Machine(system)
    if row.hw in system_names():
        return Machine(row.hw)
    meant: dict[str, Any] = next(
        (meaning for pattern, meaning in WORDS["hardware"].items() if re.search(pattern, row.hw)), {}
    )
    name, differing = meant.get("system", ""), {key: float(meant[key]) for key in meant if key != "system"}
    if not name and (name := current_name(row.hw, "systems")) not in system_names():
        raise NotExpressed(f"a system for {row.hw or 'its hardware'}")
    per_node = row.gpus_per_node or NODE
    called, other = WORDS["fabrics"].get(name, ("$^", name))
    name = other if re.search(called, f"{row.hw} {row.inter_node}") else name
    if tested := re.match(r"measured all-reduce ([\d.]+) GB/s over the job", row.inter_node):
        waits = latencies(float(tested[1]) * 1e9, row.gpus, system_named(name))
        return Machine(name, {**differing, **(waits if row.gpus > per_node else {})})
    rate = fabric_rate(row.inter_node or row.hw, per_node)
    return Machine(name, {**differing, **({"fabric_bandwidth": rate} if rate else {})})


def latencies(bandwidth: float, gpus: float, system: System) -> dict[str, float]:
    """Latency of each tier of links by the bus bandwidth of an all-reduce over all GPUs of a job [B/s], in [s].

    Healthy jobs of 32 to 512 GPUs reach `HEALTHY`. In others the bandwidth falls as one over the number of GPUs: each
    step of a ring takes longer, 2 for each GPU. `TESTED` is fitted: tensor-parallel collectives of these jobs.
    """
    step = TESTED * (1 / bandwidth - 1 / HEALTHY) / gpus
    return {f"{tier.name}_latency": max(step, tier.latency.item()) for tier in system.network}


def fabric_rate(text: str, per_node: float) -> float | None:
    """Bandwidth between nodes of one GPU, as a row writes it; None where it states none. [B/s]"""
    match = re.search(STATED_RATE, text)
    if not match:
        return None
    bits = float(match[1] or 1) * float(match[2]) * 1e9
    shared = match[3] == "node" or (match[3] is None and match[1])
    return bits / 8 / (per_node if shared else 1.0)


EMPTY: Final[Mapping[str, Value]] = MappingProxyType({})
#: Settings of framework files that are rules of reading rows.
RULES: Final = frozenset({"micro_batches", "last_stage", "recomputed_layers", "causal_flops"})


@dataclass(frozen=True, slots=True)
class Defaults:
    """Settings of the runs of a framework on a machine, unless a row states others."""

    columns: Mapping[str, Value] = field(default_factory=dict)  #: columns of designs
    quantities: Mapping[str, float] = field(default_factory=dict)  #: quantities of systems [SI units]
    model: Mapping[str, Any] = field(default_factory=dict)  #: fields of a model that is made of a row's columns
    #: Rules of reading: `micro_batches`, `last_stage`, `recomputed_layers` and `causal_flops` (docs/validation.md).
    rules: Mapping[str, Any] = field(default_factory=dict)


def framework_of(row: MeasuredRow, system: System | None = None) -> Framework:
    """The framework that a row names, in its release; else the usual one of its system.

    Raises `NotExpressed` if it names unknown software.
    """
    return _loaded(row.framework or (system.framework if system else "") or USUAL_FRAMEWORK)


@cache
def _loaded(name: str) -> Framework:
    try:
        return load_framework(name)
    except DseError as error:
        unknown = "unknown framework" in str(error)
        raise NotExpressed(f"a framework {name}" if unknown else str(error)) from None


def defaults_of(
    framework: Framework, model: ModelShape | None = None, system: System | None = None,
    stated: Mapping[str, Value] = EMPTY,
) -> Defaults:  # fmt: skip
    """The defaults of a framework for a model on a system, and the stated columns of a design; switches as 0 or 1.

    Columns that the framework derives, such as `overlap_p2p`, follow from the stated ones. Other columns count as 0.
    """
    quantities = system.quantities() if system else {}

    def known(name: str) -> Value:
        absent = 0.0 if stated and name in all_columns() else nan
        return stated[name] if name in stated else float(getattr(model, name, quantities.get(name, absent)))

    said = framework.assumed(model, known)
    said |= {name: holds(text, known) for name, text in framework.derived.items() if stated and is_condition(text)}
    parts: dict[str, dict[str, Any]] = {"columns": {}, "quantities": {}, "model": {}, "rules": {}}
    for name, value in said.items():
        if name in all_columns():
            parts["columns"][name] = float(value) if isinstance(value, bool | int | float) else value
        elif name in ModelShape.__dataclass_fields__:
            parts["model"][name] = value
        elif name in RULES:
            parts["rules"][name] = value
        else:
            parts["quantities"][name] = quantity(value).value if isinstance(value, str) else float(value)
    return Defaults(**parts)


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
