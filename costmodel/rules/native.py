"""The native cost model as a profile: transformers and LSTM language models."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from costmodel.kernels.kernel_cost import Items
from costmodel.lstm.model import LstmDesign
from costmodel.rules.rules import LSTM_TRAINING, TRAINING, Rules
from costmodel.steps.breakdown import Breakdown
from costmodel.steps.transformer import reasons, remedies, transformer_footprint, transformer_items, transformer_step
from costmodel.training.design import DesignPoints, canonical
from costmodel.training.ranks import ORDER
from costmodel.training.run import Run

_BATCH: Final = ("dp", "micro_batch_size", "gradient_accumulation_steps")

#: Totals of transformer designs.
TRANSFORMER_TOTALS: Final[Mapping[str, tuple[str, ...]]] = {"world_size": ORDER, "global_batch_size": _BATCH}


def _lstm_step(run: Run[Any, Any]) -> Breakdown:
    """`lstm_step_of`, which is loaded for LSTM language models alone."""
    from costmodel.lstm.step import lstm_step_of

    return lstm_step_of(run)


def _lstm_items(run: Run[Any, Any]) -> Items:
    from costmodel.lstm.step import lstm_items

    return lstm_items(run)


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
        cost=_lstm_step,
        parts=_lstm_items,
        products={"world_size": ("hidden_dim1", "hidden_dim2", "dp"), "global_batch_size": _BATCH},
    ),
)
