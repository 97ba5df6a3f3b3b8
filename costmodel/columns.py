"""Frozen records of equally long NumPy columns, the factoring of repeated rows, and divisors.

A design, a machine or a cost is a row of a table. Each column of a table is one NumPy array, so that a formula
evaluates all designs at once. Points are the last axis; a column of one value holds it for all points. Most stages
read few of the columns, in which thousands of designs agree: `UniqueRows` finds the rows that differ, the stage
evaluates them, and each point gets the result of its row. For example, 16,384 layouts of GPT-3 have 84 different
micro-batches on a rank.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from operator import attrgetter
from reprlib import Repr
from typing import Any, Final, Self, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.intp]
BoolArray = NDArray[np.bool_]
AnyArray = TypeVar("AnyArray", FloatArray, BoolArray, IntArray)
AnyColumns = TypeVar("AnyColumns", bound="Columns")
AnyRecord = TypeVar("AnyRecord")

# glibc returns freed arrays of 128 KiB and more to the kernel, which clears their pages when they are allocated
# again. Once a larger block was freed, arrays up to its size stay with the process (mallopt(3), M_MMAP_THRESHOLD):
# its pages are never used.
np.empty(31 << 20, np.uint8)


def column(unit: str, default: float | None = None, **kind: Any) -> Any:
    """Dataclass field that holds one column, with its SI unit ("-" for a pure number).

    Other properties of a column are metadata of the field, by name.
    """
    metadata = {"unit": unit, **kind}
    if default is None:
        return field(metadata=metadata)
    shared = np.asarray(default, dtype=np.float64)
    shared.flags.writeable = False
    return field(default_factory=lambda: shared, metadata=metadata)


def grouped(pairs: Iterable[tuple[Any, AnyRecord]]) -> dict[Any, list[AnyRecord]]:
    """Items by their key, in the order in which they come.

    >>> grouped((number % 2, number) for number in (1, 2, 3))
    {1: [1, 3], 0: [2]}
    """
    groups: dict[Any, list[AnyRecord]] = {}
    for key, item in pairs:
        groups.setdefault(key, []).append(item)
    return groups


def short_repr(record: Any) -> str:
    """The `repr` of a large record: its class and fields, in at most ten lines of at most 100 columns."""
    brief = Repr()
    brief.maxlevel, brief.maxstring, brief.maxother = 2, 80, 80
    values = [(member.name, getattr(record, member.name)) for member in fields(record) if member.repr]
    lines = [f"    {name}={' '.join(brief.repr(value).split())}" for name, value in values]
    shown = [line if len(line) < 100 else f"{line[:96]}..." for line in lines[:8]]
    more = ["    ..."] if len(lines) > 8 else []
    return "\n".join([f"{type(record).__name__}(", *shown, *more]) + ")"


def column_family() -> Any:
    """Dataclass field that holds any number of columns by name. [-]"""
    return field(default_factory=dict, metadata={"family": True})


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """Fields of a record class, and getters that read the values of a record in one call, and others behind them."""

    units: dict[str, str]  #: SI unit of every column, by name, in order; columns of families are left out
    families: tuple[str, ...]  #: fields that hold columns by name
    names: tuple[str, ...]  #: all fields
    column_values: Callable[[Any], tuple[Any, ...]]
    values: Callable[[Any], tuple[Any, ...]]


def layout_of(record: type[Columns]) -> Layout:
    """Layout of a record class, computed once: small batches would spend a tenth of their time on it."""
    if record not in _LAYOUTS:
        units = {member.name: member.metadata["unit"] for member in fields(record) if "unit" in member.metadata}
        names = tuple(member.name for member in fields(record))
        families = tuple(member.name for member in fields(record) if "family" in member.metadata)
        tail = "__class__", "__class__"  # getters of two names or more return tuples; callers leave these out
        _LAYOUTS[record] = Layout(units, families, names, attrgetter(*units, *tail), attrgetter(*names, *tail))
    return _LAYOUTS[record]


_LAYOUTS: dict[type[Any], Layout] = {}


@dataclass(frozen=True, kw_only=True, eq=False)
class Columns:
    """A table: every column is a float64 array of shape (), (1,) or (points,).

    Columns of machines may have axes before that of points. Values that follow from columns are kept with the record.
    """

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Build from scalars, lists and arrays; non-column fields pass through untouched."""
        units = layout_of(cls).units
        return cls(**{k: np.asarray(v, dtype=np.float64) if k in units else v for k, v in values.items()})

    def columns(self) -> dict[str, FloatArray]:
        """Name -> array of every column, in order; families last."""
        layout = layout_of(type(self))
        table: dict[str, FloatArray] = dict(zip(layout.units, layout.column_values(self), strict=False))
        for family in layout.families:
            table.update(getattr(self, family))
        return table

    def arrays(self) -> list[FloatArray]:
        """Values of every column, in the order of `columns`."""
        layout = layout_of(type(self))
        families = (values for family in layout.families for values in getattr(self, family).values())
        return [*layout.column_values(self)[: len(layout.units)], *families]

    def with_columns(self, values: Mapping[str, FloatArray]) -> Self:
        """A copy of the record with other values in some of its columns."""
        layout = layout_of(type(self))
        arguments: dict[str, Any] = dict(zip(layout.names, layout.values(self), strict=False))
        arguments |= {name: array for name, array in values.items() if name in layout.units}
        for family in layout.families:
            if columns := arguments[family]:
                arguments[family] = {name: values.get(name, array) for name, array in columns.items()}
        return type(self)(**arguments)

    def map(self, function: Callable[[FloatArray], FloatArray]) -> Self:
        """A copy of the record with `function` applied to every column."""
        return self.with_columns({name: function(values) for name, values in self.columns().items()})

    def take(self, rows: IntArray | slice) -> Self:
        """Rows of the table; columns that hold one value for all points stay as they are."""
        columns = {name: of_points(values, rows) for name, values in self.columns().items() if is_long(values)}
        return self.with_columns(columns) if columns else self

    @cached_property
    def unique_rows(self) -> UniqueRows:
        """Rows that differ in some column."""
        return UniqueRows.of(*self.arrays())

    @property
    def num_points(self) -> int:
        """Length of the longest column."""
        return max((values.shape[-1] for values in self.columns().values() if values.ndim), default=1)


def concatenated(pieces: Sequence[AnyColumns]) -> AnyColumns:
    """One table from consecutive pieces of it; columns are as long as the piece, or one value in all."""
    first, tables = pieces[0], [piece.columns() for piece in pieces]
    if len(pieces) == 1:
        return first
    joined = {}
    for name in tables[0]:
        values = [table[name] for table in tables]
        if any(column.ndim for column in values):
            machines = np.broadcast_shapes(*(column.shape[:-1] for column in values))
            full = (
                np.broadcast_to(column, (*machines, column.shape[-1] if column.ndim else piece.num_points))
                for column, piece in zip(values, pieces, strict=True)
            )
            joined[name] = np.concatenate(list(full), axis=-1)
    return first.with_columns(joined)


def in_rows(pieces: Iterable[tuple[IntArray | slice, AnyColumns]], shape: int | tuple[int, ...]) -> AnyColumns:
    """One table from pieces of it and the rows of each, in any order; all columns are of one shape."""
    joined: dict[str, FloatArray] = {}
    for rows, piece in pieces:
        for name, values in piece.columns().items():
            joined.setdefault(name, np.empty(shape))[..., rows] = values
    return piece.with_columns(joined)


def broadcast_columns(**values: ArrayLike) -> dict[str, FloatArray]:
    """Columns of one common length from scalars and one-axis arrays.

    Raises `ValueError` if a value has more than one axis, is empty or not finite, or lengths differ.
    """
    arrays = {name: np.atleast_1d(np.asarray(value, dtype=np.float64)) for name, value in values.items()}
    for name, array in arrays.items():
        if array.ndim != 1:
            raise ValueError(f"{name}: expected a scalar or one axis, got shape {array.shape}")
        if array.size == 0:
            raise ValueError(f"{name}: expected at least one value")
        if not np.isfinite(array).all():
            raise ValueError(f"{name}: expected finite numbers")
    lengths = {name: array.size for name, array in arrays.items() if array.size != 1}
    if len(set(lengths.values())) > 1:
        raise ValueError("columns differ in length: " + ", ".join(f"{k}: {v}" for k, v in lengths.items()))
    length = next(iter(lengths.values()), 1)
    return {name: np.broadcast_to(array, (length,)) for name, array in arrays.items()}


#: Odd multiplier that mixes bits: 2^64 over the golden ratio.
MULTIPLIER: Final = 0x9E3779B97F4A7C15


def distinct_rows(*columns: FloatArray) -> tuple[IntArray, IntArray]:
    """First points of rows that differ in the given columns, (rows,), and the row of each point, (points,). [-]

    Points are the last axis of a column; a column of one value there cannot distinguish rows and is skipped.
    Rows are distinguished by the exact values: `x[rows][back]` equals `x` for each given column.

    >>> rows, back = distinct_rows(np.array([8.0, 4.0, 8.0]), np.array([1.0]))
    >>> rows.tolist(), back.tolist()
    ([0, 1], [0, 1, 0])
    """
    long = (column for column in columns if is_long(column) and column.strides[-1])  # no stride: one value, broadcast
    lines = [line for values in long for line in values.reshape(-1, values.shape[-1])]
    if lines and lines[0].size <= 1024:  # all at once, while they stay in the caches
        table = np.array(lines).view(np.uint64)
        varying = [*table[(table != table[:, :1]).any(axis=1)]]
    else:
        varying = [np.ascontiguousarray(line).view(np.uint64) for line in lines if (line != line[0]).any()]
    if not varying:
        points = max((values.shape[-1] for values in columns if values.ndim), default=1)
        return np.zeros(1, dtype=np.intp), np.zeros(points, dtype=np.intp)
    multiplier = MULTIPLIER
    rows, back = _distinct_numbers(_mixed(varying, multiplier))
    while not all((line == line[rows][back]).all() for line in varying):
        multiplier += 2  # rows that differ were mixed to the same number
        rows, back = _distinct_numbers(_mixed(varying, multiplier))
    return rows, back


@dataclass(frozen=True, slots=True, eq=False)
class UniqueRows:
    """Rows that differ among points, and the row of each point: a formula evaluates rows, points get the results.

    >>> unique = UniqueRows.of(np.array([8.0, 4.0, 8.0]))
    >>> unique.of_points(np.array([8.0, 4.0, 8.0])[unique.rows] ** 2).tolist()
    [64.0, 16.0, 64.0]
    """

    rows: IntArray  #: first point of each row; (unique,) [-]
    places: IntArray | None  #: row of each point; None where every point is a separate row [-]

    @classmethod
    def of(cls, *columns: FloatArray) -> Self:
        """Rows that differ in the given columns: `distinct_rows`."""
        rows, places = distinct_rows(*columns)
        return cls(rows, None if rows.size == places.size else places)

    def take(self, table: AnyRecord) -> AnyRecord:
        """The rows of a table of points."""
        return table if self.places is None else taken(table, self.rows)

    def each(self, values: AnyArray) -> AnyArray:
        """An array of rows, its first axis, with the row of each point."""
        return values if self.places is None else values[self.places]

    def spread(self, table: AnyRecord) -> AnyRecord:
        """A table of rows with the row of each point."""
        return table if self.places is None else taken(table, self.places)

    def of_points(self, values: FloatArray) -> FloatArray:
        """Values of rows, as values of points; one value for all rows is broadcast."""
        if self.places is None:
            return values
        if is_long(values):
            return of_points(values, self.places)
        return np.broadcast_to(values, np.broadcast_shapes(values.shape, self.places.shape))

    def at(self, points: IntArray) -> UniqueRows:
        """The rows of some of the points, or of the same ones several times; (..., points)."""
        return UniqueRows(self.rows, points if self.places is None else self.places[..., points])

    def behind(self, outer: UniqueRows) -> UniqueRows:
        """Composes two factorings: the rows of the points that are the rows of `outer`."""
        return self if outer.places is None else self.at(outer.places)


#: Points that are all separate rows.
EACH_ITS_OWN: Final = UniqueRows(np.zeros(0, dtype=np.intp), None)


def in_line(values: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """A column broadcast to a shape of several axes, as one axis; one value as it is."""
    return np.broadcast_to(values, shape).ravel() if values.size > 1 else values


def taken(record: AnyRecord, rows: IntArray | slice) -> AnyRecord:
    """A column, or a record, tuple or list of columns, for some of its points."""
    whole: Any = record
    if isinstance(whole, np.ndarray):
        whole = of_points(whole, rows) if is_long(whole) else whole
    elif isinstance(whole, tuple | list):
        whole = type(whole)(taken(part, rows) for part in whole)
    elif hasattr(whole, "take"):
        whole = whole.take(rows)
    else:
        whole = replace(whole, **{member.name: taken(getattr(whole, member.name), rows) for member in fields(whole)})
    return cast(AnyRecord, whole)


def is_long(values: FloatArray) -> bool:
    """True if a column has more than one value along the last axis, that of points."""
    return values.ndim > 0 and values.shape[-1] > 1


def of_points(values: AnyArray, rows: IntArray | slice) -> AnyArray:
    """Values of a column at some of its points, which are its last axis."""
    if isinstance(rows, np.ndarray) and rows.dtype == np.intp:  # neither a slice nor a mask
        if rows.ndim == 1 and not values.strides[-1] and rows.size <= values.shape[-1]:
            return values[..., : rows.size]  # of one value, broadcast
        return values.take(rows, axis=-1) if values.ndim > 1 else values[rows]  # faster than [..., rows]
    return values[..., rows]


def _mixed(columns: Sequence[NDArray[np.uint64]], multiplier: int) -> NDArray[np.uint64]:
    """One number for each row, by an odd multiplier; rows that are equal have the same."""
    numbers = columns[0].copy()
    for values in columns[1:]:
        numbers ^= numbers >> np.uint64(32)
        numbers *= np.uint64(multiplier)
        numbers ^= values
    return numbers


def _distinct_numbers(numbers: NDArray[np.uint64]) -> tuple[IntArray, IntArray]:
    """First place of each distinct number, and for each number its place among these.

    They are sorted by 16 mixed bits, several times faster than by 64, unless numbers that differ share these bits.
    """
    short = ((numbers ^ numbers >> np.uint64(32)) * np.uint64(MULTIPLIER) >> np.uint64(48)).astype(np.uint16)
    for keys in (short, numbers):
        order = np.argsort(keys, kind="stable" if keys is short else None)
        is_new, begins = (np.concatenate([[True], of[1:] != of[:-1]]) for of in (numbers[order], keys[order]))
        if is_new.sum() == begins.sum():
            break
    back = np.empty(numbers.size, dtype=np.intp)
    back[order] = np.cumsum(is_new) - 1
    return np.minimum.reduceat(order, np.flatnonzero(is_new)), back


def chosen(columns: Sequence[AnyArray], places: IntArray) -> AnyArray:
    """For each point the value of one of several columns; `places` are their indices, (points,). [-]"""
    values: Any = columns[0]
    for number, column in enumerate(columns[1:], start=1):
        values = np.where(places == number, column, values)
    return cast(AnyArray, values)


def largest(columns: Sequence[FloatArray]) -> IntArray:
    """For each point the index of the column with the largest value, the first of equal ones; (points,). [-]"""
    return np.asarray(np.stack(np.broadcast_arrays(*columns)).argmax(axis=0))


def distinct_table_rows(table: NDArray[Any]) -> tuple[IntArray, IntArray]:
    """Rows of a (rows, columns) table that differ, (kinds,) ascending, and the kind of each row, (rows,). [-]

    Rows are compared by their bytes, all columns at once: quicker than `distinct_rows` for many columns.

    >>> first, back = distinct_table_rows(np.array([[8, 1], [4, 1], [8, 1]]))
    >>> first.tolist(), back.tolist()
    ([0, 1], [0, 1, 0])
    """
    packed = np.ascontiguousarray(table)
    lines = packed.view(np.dtype((np.void, packed.itemsize * packed.shape[1]))).ravel()
    _, first, back = np.unique(lines, return_index=True, return_inverse=True)
    rank = np.argsort(np.argsort(first))
    return np.sort(first), rank[back]


def per_kernel(values: FloatArray) -> FloatArray:
    """A per-design column (points,) or scalar, as (points, 1): it broadcasts against (points, kernels)."""
    return np.atleast_1d(values)[:, np.newaxis]


#: The largest number whose divisors are looked for; its root is tried number by number.
LARGEST: Final = 1e13


def divisors(number: float) -> FloatArray:
    """Whole numbers that divide a whole number, in order. [-]

    >>> divisors(12).tolist()
    [1.0, 2.0, 3.0, 4.0, 6.0, 12.0]
    """
    if not (1 <= number <= LARGEST and float(number).is_integer()):
        raise ValueError(f"divisors({number:g}): expected a whole number from 1 to {LARGEST:g}")
    low = np.arange(1.0, np.floor(np.sqrt(number)) + 1)
    low = low[number % low == 0]
    return np.unique(np.concatenate([low, number / low]))
