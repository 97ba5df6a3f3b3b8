"""Tables of designs: the values that columns may hold, and the conversion of words and numbers to columns.

A column declares its domain: words, a switch, whole numbers from a least one, or shares. Tables hold codes of words as
float64, and broadcast: a column of one value stands for all points.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from numbers import Real
from typing import Any, ClassVar, Final, Self

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, broadcast_columns, column
from costmodel.errors import DseError, shortened, suggestion
from costmodel.machine import LARGEST
from costmodel.training.blocks import BLOCKS, Block


@dataclass(frozen=True, slots=True)
class Domain:
    """Values that a design column may take: codes of words, or whole numbers of a range."""

    words: Sequence[str] = ()  #: word -> code, its place
    switch: bool = False  #: off (0) or on (1)
    low: float = 1.0  #: [-]
    high: float = LARGEST  #: [-]
    whole: bool = True  #: whether it counts something

    @classmethod
    def of_words(cls, words: Iterable[str]) -> Domain:
        """Codes of the words of a column."""
        known = tuple(words)
        return cls(known, low=0.0, high=len(known) - 1.0)


SWITCH: Final = Domain(switch=True, low=0.0, high=1.0)


@dataclass(frozen=True, slots=True)
class Alias:
    """A switch that sets another column where it is on."""

    column: str  #: which it sets
    value: float  #: to a code or number [-]
    least: bool = False  #: whether larger numbers of the column agree with it

    def agrees(self, values: FloatArray) -> BoolArray:
        """Where values of the column are as the switch sets them; (points,)."""
        return np.asarray((values == self.value) | (self.least & (values > self.value)))


def words(options: Iterable[str], default: float = 0.0, **kind: Any) -> Any:
    """A column that holds codes of words."""
    return column("-", default, domain=Domain.of_words(options), **kind)


def switch(default: float = 0.0, **kind: Any) -> Any:
    """A column that is off by default."""
    return column("-", default, domain=SWITCH, **kind)


def count_or_none(**kind: Any) -> Any:
    """A column of whole numbers from 0, the default, which means the framework's usual value."""
    return column("-", 0.0, domain=Domain(low=0.0), **kind)


def ratio(low: float, default: float, **kind: Any) -> Any:
    """A column of numbers that need not be whole."""
    return column("-", default, domain=Domain(low=low, whole=False), **kind)


def share(default: float = 0, **kind: Any) -> Any:
    """A column of shares of something, from none of it to all; none by default."""
    return column("-", default, domain=Domain(low=0.0, high=1.0, whole=False), **kind)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Design(Columns):
    """Layouts of any work over chips; every column has shape (points,). [-]"""

    #: Switches that people and files may name in place of a column: tables of designs do not have them.
    aliases: ClassVar[Mapping[str, Alias]] = {}

    @classmethod
    def domains(cls, blocks: Iterable[Block] = BLOCKS) -> Mapping[str, Domain]:
        """Column -> values that it may take, those of single kernels of some blocks included."""
        return cls.declared()

    @classmethod
    @cache
    def declared(cls) -> Mapping[str, Domain]:
        """Column or alias -> values that it may take, those of some models alone included."""
        domains = {f.name: f.metadata.get("domain", Domain()) for f in fields(cls) if "unit" in f.metadata}
        return {**domains, **dict.fromkeys(cls.aliases, SWITCH)}

    @classmethod
    def of(cls, *, blocks: Iterable[Block] = BLOCKS, **values: Any) -> Self:
        """Build from scalars, lists and arrays, broadcast to one length; words are taken where there are any.

        Parameters
        ----------
        blocks : iterable of Block, optional
            Kernels of the model's layers, which may have columns.
        **values
            Columns by name, or their aliases; those not named take their defaults.

        Raises `DseError` for an unknown column or word, lengths that differ or are 0, a code or switch that is none, a
        count that is not whole and positive, or an alias that contradicts the column that it sets.
        """
        domains = cls.domains(blocks)
        for name in values:
            if name not in domains:
                raise DseError(f"design: {name}: unknown column{suggestion(name, domains)}")
        defaults = {name: array for name, array in cls().columns().items() if name not in values}
        try:
            given = {name: encoded(name, value, domains[name]) for name, value in values.items()}
            columns = broadcast_columns(**defaults, **given)
        except ValueError as error:
            raise DseError(f"design: {error}") from error
        for name in values:
            _check_column(name, columns[name], domains[name])
        made = cls._of_columns(cls._without_aliases(columns, values))
        made.check()
        return made

    @classmethod
    def _without_aliases(cls, columns: Mapping[str, FloatArray], named: Collection[str]) -> dict[str, FloatArray]:
        """Columns as aliases among them set those of a table; `DseError` where one that is named differs."""
        columns = dict(columns)
        for name, alias in cls.aliases.items() if cls.aliases.keys() & {*named} else ():
            on, column = columns.pop(name, np.zeros(())) > 0, columns[alias.column]
            differing = on & ~alias.agrees(column)
            if differing.any() and alias.column in named:
                domain = cls.declared()[alias.column]
                raise DseError(
                    f"design: {name}: is {alias.column}={shown(alias.value, domain)} by another name, and "
                    f"{alias.column} is {shown(column[differing][0], domain)}; leave one of them out"
                )
            columns[alias.column] = np.where(differing, alias.value, column)
        return columns

    @classmethod
    def _of_columns(cls, columns: Mapping[str, FloatArray]) -> Self:
        return cls(**columns)

    def check(self) -> None:
        """Refuse columns that contradict each other; `DseError` says which."""


def _check_column(name: str, values: FloatArray, domain: Domain) -> None:
    """Refuse a column with a value outside of its domain."""
    uneven = (values != np.floor(values)) & domain.whole
    wrong = values[(values < domain.low) | (values > domain.high) | uneven]
    if wrong.size:
        upper = "" if domain.high == LARGEST else f" to {domain.high:g}"
        kind = "a whole number" if domain.whole else "a number"
        raise DseError(f"design: {name}: expected {kind} from {domain.low:g}{upper}, got {wrong[0]:g}")


def shown(value: float, domain: Domain) -> str:
    """A value of a column as people write it."""
    return str(domain.words[int(value)]) if domain.words else f"{value:g}"


def encoded(name: str, value: Any, domain: Domain) -> FloatArray:
    """Codes of a column's words, where it has words; numbers and switches pass through. [-]

    Raises `DseError` for a word that is not one of the column's, or a value that is not a number.
    """

    def code(entry: Any) -> float:
        try:
            return float(entry if isinstance(entry, Real) else domain.words.index(entry))
        except (ValueError, OverflowError):
            wrong = shortened(str(entry))
            raise DseError(f"design: {name}: {wrong!r} is not a value{suggestion(wrong, domain.words)}") from None

    array = np.asarray(value)
    if array.dtype.kind in "biuf":
        return array.astype(np.float64)
    return np.array([code(entry) for entry in array.ravel().tolist()]).reshape(array.shape)
