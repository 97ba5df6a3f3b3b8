"""Workloads: a model, and the kind of work that is done with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from costmodel.errors import DseError, suggestion
from costmodel.formats.model_file import AnyModel
from costmodel.lstm.model import LstmShape
from costmodel.steps.result.breakdown import Breakdown, ResultTable
from costmodel.training.blocks import Block
from costmodel.training.model import ModelShape


@dataclass(frozen=True, slots=True)
class KindOfWork:
    """A kind of work on models of a type, and the table of its results."""

    name: str
    about: str  #: what is evaluated, in a line
    model: type[Any]  #: what it is done with
    results: type[ResultTable]  #: columns and totals of what evaluation gives
    rate: float = 5e4  #: designs that are evaluated on one core, to the order of magnitude [1/s]
    #: Loads the native rules for it; None for the kinds that `native` has rules for.
    rules: Callable[[], Any] | None = None


TRAINING: Final = KindOfWork("training", "an optimizer step of a transformer", ModelShape, Breakdown)
LSTM_TRAINING: Final = KindOfWork("lstm_training", "an optimizer step of an LSTM language model", LstmShape, Breakdown)

#: Kinds of work by name; the first of a type of models is done with them where nothing is said. Others are added.
WORKS: Final[dict[str, KindOfWork]] = {work.name: work for work in (TRAINING, LSTM_TRAINING)}


@dataclass(frozen=True, slots=True)
class Workload:
    """A model and what is done with it: rules, tables of designs and result columns are found by it."""

    model: AnyModel
    work: KindOfWork

    @classmethod
    def of(cls, model: AnyModel, work: str = "") -> Workload:
        """The workload of a model, by the name of a kind of work, or the usual one of such models.

        Raises `DseError` if there is no such kind of work, or it is done with other models.
        """
        known: Mapping[str, KindOfWork] = {name: own for name, own in WORKS.items() if isinstance(model, own.model)}
        if work and work not in known:
            others = f"; {model.name} is no model for it" if work in WORKS else suggestion(work, known)
            raise DseError(f"work {work!r}: no kind of work here{others}")
        return cls(model, known[work] if work else next(iter(known.values())))

    @property
    def blocks(self) -> tuple[Block, ...]:
        """Blocks of the model's layers; () where it has none."""
        return self.model.blocks if isinstance(self.model, ModelShape) else ()
