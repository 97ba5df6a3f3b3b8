"""The kinds of models and programs there are: how each is laid out, and what prices it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from costmodel.columns import column_units
from costmodel.hlo.program import Program
from costmodel.hlo.step import program_step
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.lstm import lstm_step
from costmodel.steps.transformer import step
from costmodel.training.design import DesignPoints, Layout, LstmDesign
from costmodel.training.model import AnyModel, LstmShape, ModelShape

#: What a space explores: a model, or a program whose layout is fixed.
AnyWorkload = AnyModel | Program

_BATCH = ("dp", "micro_batch_size", "gradient_accumulation_steps")


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of model."""

    layout: type[Layout]  #: its designs
    totals: Mapping[str, tuple[str, ...]]  #: total -> columns of a layout whose product it is
    step: Callable[..., Breakdown]  #: (model, system, design) -> price of one optimizer step

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the layout's columns."""
        return tuple(column_units(self.layout))


#: Class of the model -> its kind.
WORKLOADS: Mapping[type[AnyWorkload], Workload] = {
    ModelShape: Workload(
        layout=DesignPoints,
        totals={"world_size": ("tp", "pp", "dp"), "global_batch_size": _BATCH},
        step=step,
    ),
    LstmShape: Workload(
        layout=LstmDesign,
        totals={"world_size": ("hidden_dim1", "hidden_dim2", "dp"), "global_batch_size": _BATCH},
        step=lstm_step,
    ),
    Program: Workload(layout=Layout, totals={}, step=program_step),
}


def workload_of(model: AnyWorkload) -> Workload:
    """The kind of a model."""
    return WORKLOADS[type(model)]
