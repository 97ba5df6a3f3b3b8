"""Rules by which a profile evaluates workloads of one kind, and the kinds of work: records whose types stay together.

A workload is a model and the kind of work that is done with it, such as training. Rules take its designs on machines
and return a table of costs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from costmodel.columns import BoolArray, FloatArray, UniqueRows
from costmodel.errors import DseError, suggestion
from costmodel.formats.model_file import AnyModel
from costmodel.kernels.kernel_cost import Items
from costmodel.lstm import LstmDesign, LstmShape, lstm_items, lstm_step_of
from costmodel.machine import System
from costmodel.steps.breakdown import Breakdown, ResultTable
from costmodel.steps.transformer import reasons, remedies, transformer_footprint, transformer_items, transformer_step
from costmodel.training.blocks import Block
from costmodel.training.design import DesignPoints, canonical
from costmodel.training.design_table import Design, Domain
from costmodel.training.model import ModelShape
from costmodel.training.ranks import ORDER
from costmodel.training.run import Run


@dataclass(frozen=True, slots=True)
class KindOfWork:
    """A kind of work on models of a type, and the table of its results."""

    name: str
    about: str  #: description in one line
    model: type[Any]  #: type of the model
    results: type[ResultTable]  #: columns and totals of the results
    rate: Callable[[Any], float] = lambda model: 5e4  #: designs of a model evaluated on one core, about [1/s]
    #: Loads the native rules for it; None for those of `RULES`.
    rules: Callable[[], Any] | None = None
    reads_system: bool = True  #: else its models describe the machine


TRAINING: Final = KindOfWork("training", "an optimizer step of a transformer", ModelShape, Breakdown)
LSTM_TRAINING: Final = KindOfWork("lstm_training", "an optimizer step of an LSTM language model", LstmShape, Breakdown)

#: Kinds of work by name; the first of a type of models is done with them where nothing is said. Others are added.
WORKS: Final[dict[str, KindOfWork]] = {work.name: work for work in (TRAINING, LSTM_TRAINING)}


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and its kind of work, which select rules, tables of designs and result columns."""

    model: AnyModel
    work: KindOfWork

    @classmethod
    def of(cls, model: AnyModel, work: str = "") -> Workload:
        """The workload of a model, by the name of a kind of work, or the usual one of the model.

        Raises `DseError` if there is no such kind of work, or it is done with other models.
        """
        known: Mapping[str, KindOfWork] = {name: work for name, work in WORKS.items() if isinstance(model, work.model)}
        if work and work not in known:
            others = f"; {model.name} is not a model for it" if work in WORKS else suggestion(work, known)
            raise DseError(f"work {work!r}: no kind of work here{others}")
        return cls(model, known[work] if work else next(iter(known.values())))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks of the model's layers; () where it has none."""
        return self.model.blocks if isinstance(self.model, ModelShape) else ()


AnyRun = TypeVar("AnyRun")
AnyDesign = TypeVar("AnyDesign", bound=Design)


@dataclass(frozen=True)
class Unsupported(Generic[AnyRun]):
    """Designs that a profile has no number for."""

    column: str  #: the column at fault
    missing: Callable[[AnyRun], BoolArray]  #: whether there is no number; (points,)
    reason: Callable[[AnyRun, int], str]  #: why one design has no cost, and how to correct it
    pin: str  #: value of the column that always does


@dataclass(frozen=True, kw_only=True)
class Rules(Generic[AnyDesign]):
    """Rules of a profile for one kind of work: its table of designs, and the functions that evaluate them.

    Functions take a `Run` of the work's model with that table; (points,) columns.
    """

    work: KindOfWork
    design: type[AnyDesign]
    cost: Callable[[Run[Any, AnyDesign]], ResultTable]
    #: Total -> design columns whose product it is.
    products: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    unread: Callable[[str], bool] = lambda column: False  #: columns of the table that the rules do not know
    #: The items of the columns of one design's results; empty where they are unknown.
    parts: Callable[[Run[Any, AnyDesign]], Items] = lambda run: {}
    #: Columns of the results that need no times, to the last bit; None where all do.
    needs: Callable[[Run[Any, AnyDesign]], dict[str, FloatArray] | None] = lambda run: None
    #: The same designs, equal where columns that change nothing are all that differs.
    canonical: Callable[[AnyDesign], AnyDesign] = lambda design: design
    why: Callable[[Run[Any, AnyDesign]], list[str]] = lambda run: []
    what_would_do: Callable[[Run[Any, AnyDesign]], str] = lambda run: ""

    @property
    def domains(self) -> Mapping[str, Domain]:
        """Design column of any built-in model -> values that it may take."""
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
        native_columns = {name: known[name] for name in self.columns if name in known}
        design = self.rules.design.of(blocks=self.workload.blocks, **native_columns)
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
        """The designs that `step` distinguishes."""
        run = self.run(system, known)
        return UniqueRows.of(*run.of(self.rules.canonical(run.design)).columns())

    def reasons(self, system: System, known: Mapping[str, Any]) -> list[str]:
        """Reasons why the first of several designs has no number, with remedies; empty where it has one."""
        return self.rules.why(self.run(system, known))

    def remedies(self, system: System, known: Mapping[str, Any]) -> str:
        """Reasons why designs have no number, with the number of designs and remedies; "" if unknown."""
        return self.rules.what_would_do(self.run(system, known))


_BATCH: Final = ("dp", "micro_batch_size", "gradient_accumulation_steps")

#: Totals of transformer designs.
TRANSFORMER_TOTALS: Final[Mapping[str, tuple[str, ...]]] = {"world_size": ORDER, "global_batch_size": _BATCH}


#: The native cost model as a profile: transformers and LSTM language models.
RULES: Final = (
    Rules(
        work=TRAINING,
        design=DesignPoints,
        cost=transformer_step,
        parts=transformer_items,
        needs=transformer_footprint,
        canonical=canonical,
        products=TRANSFORMER_TOTALS,
        why=reasons,
        what_would_do=remedies,
    ),
    Rules(
        work=LSTM_TRAINING,
        design=LstmDesign,
        cost=lstm_step_of,
        parts=lstm_items,
        products={"world_size": ("hidden_dim1", "hidden_dim2", "dp"), "global_batch_size": _BATCH},
    ),
)
