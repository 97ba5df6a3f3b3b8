"""Designs that are the same but for columns that change nothing beside the others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from costmodel.columns import BoolArray
from costmodel.training.design import RECOMPUTE_FULL, DesignPoints
from costmodel.training.recomputation import MODULES
from costmodel.training.zero import ZERO

#: Stage that shares out weights, so that they are gathered.
SHARES_WEIGHTS: Final = len(ZERO) - 1


def _full(design: DesignPoints) -> BoolArray:
    return np.asarray(design.recompute == RECOMPUTE_FULL)


#: Column -> where it changes nothing.
IDLE: Final[Mapping[str, Callable[[DesignPoints], BoolArray]]] = {
    **dict.fromkeys((module.column for module in MODULES), _full),
    "reshard_after_forward": lambda design: design.zero_stage < SHARES_WEIGHTS,
    "overlap_param_gather": lambda design: (design.overlap_grad_reduce == 0) | (design.zero_stage == 0),
    "overlap_p2p": lambda design: design.pp == 1,
}


def canonical(design: DesignPoints) -> DesignPoints:
    """The same designs, with columns at their defaults where they change nothing.

    >>> canonical(DesignPoints.of(zero=[2, 3], reshard_after_forward=0)).reshard_after_forward.tolist()
    [1.0, 0.0]
    """
    usual, own = DesignPoints().columns(), design.columns()
    return design.with_columns(
        {name: np.where(idle(design), usual[name], own[name]) for name, idle in IDLE.items()}
    )
