"""SimAI as a profile: its closed forms for designs of transformers."""

from __future__ import annotations

from typing import Final

from costmodel.profiles.native import TRANSFORMER_TOTALS
from costmodel.profiles.rules import Rules
from costmodel.profiles.simai.design import simai_step
from costmodel.training.design import MODERN, DesignPoints
from costmodel.training.model import ModelShape

RULES: Final = (
    Rules(
        model=ModelShape,
        design=DesignPoints,
        cost=simai_step,
        products=TRANSFORMER_TOTALS,
        unread=MODERN.__contains__,
    ),
)
