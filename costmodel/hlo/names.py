"""What the names that JAX leaves in a text say: what is of a gradient, what is computed again."""

from __future__ import annotations

import re
from typing import Final

from costmodel.hlo.module import Module

_BACKWARD: Final = re.compile(r"transpose\(")


def names_gradients(module: Module) -> bool:
    """Whether some instruction is named as made by differentiation."""
    return any(
        _BACKWARD.search(each.attributes.get("metadata", ""))
        for computation in module.computations
        for each in computation.instructions
    )
