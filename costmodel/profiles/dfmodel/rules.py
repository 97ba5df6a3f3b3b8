"""DFModel as a profile: a generation's rules for designs of transformers."""

from __future__ import annotations

from functools import cache, partial

from costmodel.profiles.dfmodel.design import DataflowDesign
from costmodel.profiles.dfmodel.step import dataflow_step, reasons, remedies
from costmodel.profiles.native import TRANSFORMER_TOTALS
from costmodel.profiles.rules import DesignRules, Rules
from costmodel.training.design import MODERN, splits_kernels
from costmodel.training.model import ModelShape


def _unread(column: str) -> bool:
    """Columns that the reference has no rules for, or settles itself: how kernels are split."""
    return splits_kernels(column) or column in MODERN


@cache
def rules_of(generation: str) -> tuple[DesignRules, ...]:
    """The rules of one generation."""
    return (
        Rules(
            model=ModelShape,
            design=DataflowDesign,
            cost=partial(dataflow_step, generation=generation),
            products=TRANSFORMER_TOTALS,
            unread=_unread,
            why=partial(reasons, generation=generation),
            what_would_do=remedies,
        ),
    )
