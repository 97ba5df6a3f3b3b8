"""How a profile evaluates the designs of one kind of model: a record whose types stay together."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from costmodel.columns import BoolArray, FloatArray, IntArray, distinct_rows
from costmodel.errors import DseError
from costmodel.hlo.program import Program
from costmodel.machine.system import System
from costmodel.steps.breakdown import Breakdown
from costmodel.training.design_table import Design, Domain
from costmodel.training.model import AnyModel, ModelShape
from costmodel.training.run import Run

#: What a space explores: a model, or a program whose layout is fixed.
AnyWorkload = AnyModel | Program

AnyRun = TypeVar("AnyRun")
AnyShape = TypeVar("AnyShape", bound=AnyWorkload)
AnyDesign = TypeVar("AnyDesign", bound=Design)


@dataclass(frozen=True)
class Unsupported(Generic[AnyRun]):
    """Designs that a profile has no number for."""

    column: str  #: what is at fault
    missing: Callable[[AnyRun], BoolArray]  #: whether there is no number; (points,)
    reason: Callable[[AnyRun, int], str]  #: why one design has none, and what would do
    pin: str  #: value of the column that always does


class DesignRules(ABC):
    """What a profile says of designs of one kind of model, given as columns by name."""

    @abstractmethod
    def knows(self, model: AnyWorkload) -> bool:
        """Whether the model is of the kind."""

    @property
    @abstractmethod
    def domains(self) -> Mapping[str, Domain]:
        """Design column of any model of the kind that ships -> values that it may take."""

    @abstractmethod
    def columns(self, model: AnyWorkload) -> Mapping[str, Domain]:
        """Design column that the rules read -> values that it may take."""

    @property
    @abstractmethod
    def totals(self) -> Mapping[str, tuple[str, ...]]:
        """Total -> design columns whose product it is."""

    @abstractmethod
    def step(self, model: AnyWorkload, system: System, columns: Mapping[str, Any]) -> Breakdown:
        """Evaluate one optimizer step of each design; (points,) columns. [s], [B], [J], [$], [W]"""

    @abstractmethod
    def items(self, model: AnyWorkload, system: System, columns: Mapping[str, Any]) -> dict[str, FloatArray]:
        """What `step` of one design adds up, as `costmodel.steps.items` names it; nothing where not known."""

    @abstractmethod
    def footprint(
        self, model: AnyWorkload, system: System, columns: Mapping[str, Any]
    ) -> dict[str, FloatArray] | None:
        """Columns of `step` that need no times, to the last bit; None where all do. [B], [-], [$], [W]"""

    @abstractmethod
    def alike(
        self, model: AnyWorkload, system: System, columns: Mapping[str, Any]
    ) -> tuple[IntArray, IntArray]:
        """First rows of the designs that `step` tells apart, and the place of each among them. [-]"""

    @abstractmethod
    def reasons(self, model: AnyWorkload, system: System, columns: Mapping[str, Any]) -> list[str]:
        """Why the first of some designs has no number, and what would do; nothing where it has one."""

    @abstractmethod
    def remedies(self, model: AnyWorkload, system: System, columns: Mapping[str, Any]) -> str:
        """What designs without a number want for, with how many do, and what would do."""


def _none(column: str) -> bool:
    """Rules that know every column of their table."""
    return False


def _as_they_are(design: AnyDesign) -> AnyDesign:
    """Designs all of whose columns count."""
    return design


def _all_timed(run: object) -> None:
    """Rules that find everything with its times."""


def _no_items(run: object) -> dict[str, FloatArray]:
    """Rules that do not say what columns of a breakdown are made of."""
    return {}


def _no_reasons(run: object) -> list[str]:
    """Rules that have a number for every design."""
    return []


def _no_remedies(run: object) -> str:
    """Rules that have a number for every design."""
    return ""


@dataclass(frozen=True, kw_only=True)
class Rules(DesignRules, Generic[AnyShape, AnyDesign]):
    """Rules for one kind of model and its table of designs."""

    model: type[AnyShape]
    design: type[AnyDesign]
    cost: Callable[[Run[AnyShape, AnyDesign]], Breakdown]
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  #: as `totals`
    unread: Callable[[str], bool] = _none  #: columns of the table that the rules do not know
    #: What the columns of one design's breakdown are made of.
    parts: Callable[[Run[AnyShape, AnyDesign]], dict[str, FloatArray]] = _no_items
    #: Columns of a breakdown that need no times; None where all do.
    needs: Callable[[Run[AnyShape, AnyDesign]], dict[str, FloatArray] | None] = _all_timed
    #: The same designs, alike where columns that change nothing are all that differs.
    canonical: Callable[[AnyDesign], AnyDesign] = _as_they_are
    why: Callable[[Run[AnyShape, AnyDesign]], list[str]] = _no_reasons
    what_would_do: Callable[[Run[AnyShape, AnyDesign]], str] = _no_remedies

    def knows(self, model: AnyWorkload) -> bool:
        """Whether the model is of the kind."""
        return isinstance(model, self.model)

    @property
    def domains(self) -> Mapping[str, Domain]:
        """Design column of any model of the kind that ships -> values that it may take."""
        return {**self.design.declared(), **self.design.domains()}

    def columns(self, model: AnyWorkload) -> Mapping[str, Domain]:
        """Design column that the rules read -> values that it may take."""
        domains = (
            self.design.domains(model.blocks) if isinstance(model, ModelShape) else self.design.domains()
        )
        return {name: domain for name, domain in domains.items() if not self.unread(name)}

    @property
    def totals(self) -> Mapping[str, tuple[str, ...]]:
        """Total -> design columns whose product it is."""
        return self.products

    def run(self, model: AnyWorkload, system: System, columns: Mapping[str, Any]) -> Run[AnyShape, AnyDesign]:
        """Designs from their columns, and names that are none left out.

        Raises
        ------
        DseError
            If the model is of another kind.
        """
        if not isinstance(model, self.model):
            raise DseError(f"model {model.name}: not one that these rules know")
        known = self.columns(model)
        own = {name: values for name, values in columns.items() if name in known}
        blocks = model.blocks if isinstance(model, ModelShape) else ()
        return Run(model, system, self.design.of(blocks=blocks, **own))

    def step(self, model: AnyWorkload, system: System, columns: Mapping[str, Any]) -> Breakdown:
        """Evaluate one optimizer step of each design; (points,) columns. [s], [B], [J], [$], [W]"""
        return self.cost(self.run(model, system, columns))

    def items(self, model: AnyWorkload, system: System, columns: Mapping[str, Any]) -> dict[str, FloatArray]:
        """What `step` of one design adds up, as `costmodel.steps.items` names it; nothing where not known."""
        return self.parts(self.run(model, system, columns))

    def footprint(
        self, model: AnyWorkload, system: System, columns: Mapping[str, Any]
    ) -> dict[str, FloatArray] | None:
        """Columns of `step` that need no times, to the last bit; None where all do. [B], [-], [$], [W]"""
        return self.needs(self.run(model, system, columns))

    def alike(
        self, model: AnyWorkload, system: System, columns: Mapping[str, Any]
    ) -> tuple[IntArray, IntArray]:
        """First rows of the designs that `step` tells apart, and the place of each among them. [-]"""
        run = self.run(model, system, columns)
        return distinct_rows(*run.of(self.canonical(run.design)).columns())

    def reasons(self, model: AnyWorkload, system: System, columns: Mapping[str, Any]) -> list[str]:
        """Why the first of some designs has no number, and what would do; nothing where it has one."""
        return self.why(self.run(model, system, columns))

    def remedies(self, model: AnyWorkload, system: System, columns: Mapping[str, Any]) -> str:
        """What designs without a number want for, with how many do, and what would do."""
        return self.what_would_do(self.run(model, system, columns))
