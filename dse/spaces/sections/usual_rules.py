"""Rules that hold in every space: what a schedule, a group of ranks or a switch can be beside the others."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Final

from costmodel.formats.input_files import data_beside
from costmodel.training.design import DesignPoints
from dse.spaces.formulas.expressions import Expression


@dataclass(frozen=True, slots=True)
class UsualRule:
    """A condition, and the columns of which one must be open for it to matter."""

    name: str
    formula: str
    of: frozenset[str] = frozenset()

    def written_with(self, known: Collection[str]) -> str:
        """The formula with defaults in the place of columns that a space does not name.

        >>> UsualRule("r", "pp % 2 == 0 or schedule != zb_v", frozenset()).written_with({"schedule"})
        '1 % 2 == 0 or schedule != zb_v'
        >>> UsualRule("r", "pp % 2 == 0 or schedule != zb_v", frozenset()).written_with({"pp"})
        'pp % 2 == 0 or 1 != 5'
        """
        defaults, words = _defaults(), _words()

        def compared(found: re.Match[str]) -> str:
            column, sign, word = found.groups()
            if column in known or word not in words.get(column, ()):
                return found[0]
            return f"{defaults[column]:g} {sign} {words[column].index(word)}"

        def default(found: re.Match[str]) -> str:
            name = found[0]
            return f"{defaults[name]:g}" if name in defaults and name not in known else name

        return re.sub(r"\b[A-Za-z_]\w*", default, re.sub(r"\b(\w+) (==|!=) (\w+)", compared, self.formula))

    def expression(self, known: Collection[str]) -> Expression | None:
        """The formula as a space has it that knows some names; nothing where its model lacks one of them."""
        formula = Expression.parse(self.written_with(known))
        words = {word for column in _words().values() for word in column}
        return formula if formula.names <= {*known, *words} else None


@cache
def _defaults() -> dict[str, float]:
    """Column, or alias of one -> its default."""
    columns = {name: values.item() for name, values in DesignPoints().columns().items()}
    return {**columns, **dict.fromkeys(DesignPoints.aliases, 0.0)}


@cache
def _words() -> dict[str, Sequence[str]]:
    """Column -> its words, in the order of their codes."""
    return {name: domain.words for name, domain in DesignPoints.declared().items() if domain.words}


#: Rules by their file.
USUAL_RULES: Final = tuple(
    UsualRule(row["name"], row["formula"], frozenset(row["of"])) for row in data_beside(__file__)
)
