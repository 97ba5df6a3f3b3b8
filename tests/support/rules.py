"""Rules of a space, held against one design."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from dse.spaces.sections.parameters import Constraint
from dse.spaces.space import Space


def broken_rules(space: Space, params: Mapping[str, Any]) -> list[Constraint]:
    """Rules that a design breaks."""
    values = space.known_values(space.encode([params]))
    return [rule for rule in space.rules if not np.all(rule.formula(values))]
