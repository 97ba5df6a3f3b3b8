"""Rules by which a profile evaluates workloads of one kind: a record whose types stay together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from costmodel.columns import BoolArray, FloatArray, UniqueRows
from costmodel.kernels.items import Items
from costmodel.machine.system import System
from costmodel.rules.work import KindOfWork, Workload
from costmodel.steps.result.breakdown import ResultTable
from costmodel.training.design_table import Design, Domain
from costmodel.training.run import Run

AnyRun = TypeVar("AnyRun")
AnyDesign = TypeVar("AnyDesign", bound=Design)


@dataclass(frozen=True)
class Unsupported(Generic[AnyRun]):
    """Designs that a profile has no number for."""

    column: str  #: what is at fault
    missing: Callable[[AnyRun], BoolArray]  #: whether there is no number; (points,)
    reason: Callable[[AnyRun, int], str]  #: why one design has none, and what would do
    pin: str  #: value of the column that always does


@dataclass(frozen=True, kw_only=True)
class Rules(Generic[AnyDesign]):
    """Rules of a profile for one kind of work: its table of designs, and what evaluates them.

    Functions take a `Run` of the work's model with that table; (points,) columns.
    """

    work: KindOfWork
    design: type[AnyDesign]
    cost: Callable[[Run[Any, AnyDesign]], ResultTable]
    #: Total -> design columns whose product it is.
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: Callable[[str], bool] = lambda column: False  #: columns of the table that the rules do not know
    #: What the columns of one design's results are made of; nothing where that is not known.
    parts: Callable[[Run[Any, AnyDesign]], Items] = lambda run: {}
    #: Columns of the results that need no times, to the last bit; None where all do.
    needs: Callable[[Run[Any, AnyDesign]], dict[str, FloatArray] | None] = lambda run: None
    #: The same designs, equal where columns that change nothing are all that differs.
    canonical: Callable[[AnyDesign], AnyDesign] = lambda design: design
    why: Callable[[Run[Any, AnyDesign]], list[str]] = lambda run: []
    what_would_do: Callable[[Run[Any, AnyDesign]], str] = lambda run: ""

    @property
    def domains(self) -> Mapping[str, Domain]:
        """Design column of any model that ships -> values that it may take."""
        return {**self.design.declared(), **self.design.domains()}


@dataclass(frozen=True, slots=True)
class WorkloadRules:
    """Rules of a profile for designs of a workload, given as columns of all known values."""

    profile: str
    workload: Workload
    rules: Rules[Any]

    @property
    def columns(self) -> Mapping[str, Domain]:
        """Design column that the rules read -> values that it may take."""
        domains = self.rules.design.domains(self.workload.blocks)
        return {name: domain for name, domain in domains.items() if not self.rules.unread(name)}

    @property
    def totals(self) -> Mapping[str, tuple[str, ...]]:
        """Total -> design columns whose product it is."""
        return self.rules.products

    def run(self, system: System, known: Mapping[str, Any]) -> Run[Any, Any]:
        """Designs from their columns; names that are none are left out."""
        own = {name: known[name] for name in self.columns if name in known}
        design = self.rules.design.of(blocks=self.workload.blocks, **own)
        return Run(self.workload.model, system, design)

    def step(self, system: System, known: Mapping[str, Any]) -> ResultTable:
        """Evaluate each design; (points,) columns. [s], [B], [J], [$], [W]"""
        return self.rules.cost(self.run(system, known))

    def items(self, system: System, known: Mapping[str, Any]) -> Items:
        """Parts that `step` of one design adds up; empty where they are unknown. [s], [B], [FLOP], [-]"""
        return self.rules.parts(self.run(system, known))

    def footprint(self, system: System, known: Mapping[str, Any]) -> dict[str, FloatArray] | None:
        """Columns of `step` that need no times, to the last bit; None where all do. [B], [-], [$], [W]"""
        return self.rules.needs(self.run(system, known))

    def unique(self, system: System, known: Mapping[str, Any]) -> UniqueRows:
        """The designs that `step` tells apart."""
        run = self.run(system, known)
        return UniqueRows.of(*run.of(self.rules.canonical(run.design)).columns())

    def reasons(self, system: System, known: Mapping[str, Any]) -> list[str]:
        """Why the first of some designs has no number, and what would do; nothing where it has one."""
        return self.rules.why(self.run(system, known))

    def remedies(self, system: System, known: Mapping[str, Any]) -> str:
        """Reasons why designs have no number, with the number of such designs, and remedies; "" if unknown."""
        return self.rules.what_would_do(self.run(system, known))
