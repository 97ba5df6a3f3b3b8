"""The native cost model as a profile: transformers, LSTM language models, compiled programs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costmodel.hlo.program import Program
from costmodel.hlo.step import program_step
from costmodel.profiles.rules import Rules
from costmodel.steps.footprint import transformer_footprint
from costmodel.steps.itemized import lstm_items, transformer_items
from costmodel.steps.lstm import lstm_step_of
from costmodel.steps.transformer import reasons, remedies, transformer_step
from costmodel.training.alike import canonical
from costmodel.training.design import DesignPoints
from costmodel.training.design_table import Design
from costmodel.training.lstm import LstmShape
from costmodel.training.lstm_design import LstmDesign
from costmodel.training.model import ModelShape
from costmodel.training.ranks import ORDER

_BATCH: Final = ("dp", "micro_batch_size", "gradient_accumulation_steps")

#: Totals of transformer designs.
TRANSFORMER_TOTALS: Final[Mapping[str, tuple[str, ...]]] = {"world_size": ORDER, "global_batch_size": _BATCH}

RULES: Final = (
    Rules(
        model=ModelShape,
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
        model=LstmShape,
        design=LstmDesign,
        cost=lstm_step_of,
        parts=lstm_items,
        products={"world_size": ("hidden_dim1", "hidden_dim2", "dp"), "global_batch_size": _BATCH},
    ),
    Rules(model=Program, design=Design, cost=lambda run: program_step(run.model, run.system)),
)
