"""Formulas over boxes: between which numbers a formula stays while its names move within theirs.

Ends are computed by the operations that evaluate the formula, and rounding is monotone: a result for the ends holds for
each design between them, to the last bit. Where nothing is known, ends are infinite.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.formats.quantity import quantity
from dse.spaces.formulas.expressions import OF_MANY, OF_MODEL, OF_ONE, OWN, Expression, Name
from dse.spaces.formulas.names import WITH_UNIT

#: Lower and upper ends. Those of a condition are 0 or 1: whether it holds for certain, whether it may hold.
Interval = tuple[FloatArray, FloatArray]

UNKNOWN: Final[Interval] = (np.array(-np.inf), np.array(np.inf))
#: Functions of one number that never fall as it grows; `abs` does.
RISING: Final = tuple(name for name in OF_ONE if name != "abs")


def point(values: Any) -> Interval:
    """An interval of one number."""
    ends = np.asarray(values, dtype=np.float64)
    return ends, ends


def interval_of(expression: Expression, known: Mapping[str, Interval], names: Mapping[str, Name]) -> Interval:
    """Ends of a number or a condition for known intervals of names. [SI units]

    A name that is not known may have any value; `names` are columns that are written in words.
    """
    with np.errstate(all="ignore"):
        return _Walker(known, names, expression.quantities).visit(expression.tree)


class _Walker:
    """Walks a formula that has been compiled before, so that its names and units are right."""

    def __init__(self, known: Mapping[str, Interval], names: Mapping[str, Name], quantities: Mapping[str, str]) -> None:
        self.known, self.names, self.quantities = known, names, quantities
        #: Where a visited part may be no number for some design: no comparison with it is certain.
        self.undefined: Any = False

    def visit(self, node: ast.expr) -> Interval:
        """Ends of a node; where they are not numbers, nothing is known."""
        method: Callable[[Any], Interval] = getattr(self, f"visit_{type(node).__name__}")
        low, high = method(node)
        undefined = np.isnan(low) | np.isnan(high)
        self.undefined = self.undefined | undefined | (np.isneginf(low) & np.isposinf(high))
        return np.where(undefined, -np.inf, low), np.where(undefined, np.inf, high)

    def visit_Constant(self, node: ast.Constant) -> Interval:
        return point(node.value)

    def visit_Name(self, node: ast.Name) -> Interval:
        if node.id in self.quantities:
            return point(quantity(self.quantities[node.id]).value)
        if node.id == "inf":
            return point(np.inf)
        if node.id in ("true", "false"):
            return point(node.id == "true")
        return self.known.get(WITH_UNIT.get(node.id, node.id), UNKNOWN)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Interval:
        low, high = self.visit(node.operand)
        if isinstance(node.op, ast.Not | ast.Invert):
            return _negated(_truth((low, high)))
        return (-high, -low) if isinstance(node.op, ast.USub) else (low, high)

    def visit_BinOp(self, node: ast.BinOp) -> Interval:
        a, b = self.visit(node.left), self.visit(node.right)
        return _OPERATIONS.get(type(node.op), _only_points(node.op))(a, b)

    def visit_Compare(self, node: ast.Compare) -> Interval:
        before, self.undefined = self.undefined, False
        sides = [node.left, *node.comparators]
        parts = [
            _COMPARISONS[type(operator)](*self.sides(left, right))
            for left, operator, right in zip(sides, node.ops, sides[1:], strict=False)
        ]
        surely, maybe = _joined(parts, np.minimum)
        undefined, self.undefined = self.undefined, before
        return np.where(undefined, 0.0, surely), np.where(undefined, 1.0, maybe)

    def sides(self, left: ast.expr, right: ast.expr) -> tuple[Interval, Interval]:
        """Ends of both sides of a comparison; a word is its code in the column on the other side."""
        for column, word in ((left, right), (right, left)):
            words = self.names[column.id].words if isinstance(column, ast.Name) and column.id in self.names else ()
            if words:
                text = word.id if isinstance(word, ast.Name) else getattr(word, "value", None)
                code = point(words.index(str(text)))
                return (self.visit(column), code) if column is left else (code, self.visit(column))
        return self.visit(left), self.visit(right)

    def visit_BoolOp(self, node: ast.BoolOp) -> Interval:
        parts = [_truth(self.visit(part)) for part in node.values]
        return _joined(parts, np.minimum if isinstance(node.op, ast.And) else np.maximum)

    def visit_IfExp(self, node: ast.IfExp) -> Interval:
        surely, maybe = _truth(self.visit(node.test))
        (yes_low, yes_high), (no_low, no_high) = self.visit(node.body), self.visit(node.orelse)
        low, high = np.minimum(yes_low, no_low), np.maximum(yes_high, no_high)
        low = np.where(surely > 0, yes_low, np.where(maybe > 0, low, no_low))
        return low, np.where(surely > 0, yes_high, np.where(maybe > 0, high, no_high))

    def visit_Call(self, node: ast.Call) -> Interval:
        assert isinstance(node.func, ast.Name)
        parts, name = [self.visit(argument) for argument in node.args], node.func.id
        if name in OWN:
            return UNKNOWN
        if name in OF_MANY:
            return _joined(parts, OF_MANY[name])
        if name in OF_MODEL:
            return _of_points(OF_MODEL[name], parts)
        ((low, high),) = parts
        if name in RISING:
            return OF_ONE[name][0](low), OF_ONE[name][0](high)
        ends = np.abs(low), np.abs(high)
        return np.where((low < 0) & (high > 0), 0.0, np.minimum(*ends)), np.maximum(*ends)


def _joined(parts: Sequence[Interval], function: Any) -> Interval:
    """A function that rises with all of its arguments."""
    low, high = parts[0]
    for other_low, other_high in parts[1:]:
        low, high = function(low, other_low), function(high, other_high)
    return low, high


def _of_points(function: Any, parts: Sequence[Interval]) -> Interval:
    """A function with unknown ends unless all of its arguments are points."""
    exact = np.all(np.broadcast_arrays(*(low == high for low, high in parts)), axis=0)
    value = function(*(low for low, _ in parts))
    return np.where(exact, value, -np.inf), np.where(exact, value, np.inf)


def _number(holds: Any) -> FloatArray:
    """A condition as 0 or 1."""
    return np.asarray(holds, dtype=np.float64)


def _truth(ends: Interval) -> Interval:
    """A condition; a column that is true or false is one."""
    low, high = ends
    return _number((low > 0) | (high < 0)), _number((low != 0) | (high != 0))


def _corners(function: Any, a: Interval, b: Interval) -> Interval:
    """A function that rises or falls with each of two arguments: its ends are at corners."""
    corners = np.stack(np.broadcast_arrays(*(function(x, y) for x in a for y in b)))
    return corners.min(axis=0), corners.max(axis=0)


def _quotient(a: Interval, b: Interval) -> Interval:
    low, high = _corners(np.divide, a, b)
    around = (b[0] <= 0) & (b[1] >= 0)
    return np.where(around, -np.inf, low), np.where(around, np.inf, high)


def _power(a: Interval, b: Interval) -> Interval:
    low, high = _corners(np.power, a, b)
    known = (a[0] > 0) | ((a[0] == a[1]) & (b[0] == b[1]))
    return np.where(known, low, -np.inf), np.where(known, high, np.inf)


def _only_points(operator: ast.operator) -> Callable[[Interval, Interval], Interval]:
    """An operation with unknown ends unless both sides are points: the remainder, and joined conditions."""
    if isinstance(operator, ast.BitAnd | ast.BitOr):
        function = np.minimum if isinstance(operator, ast.BitAnd) else np.maximum
        return lambda a, b: _joined([_truth(a), _truth(b)], function)
    return lambda a, b: _of_points(np.mod, [a, b])


def _less(a: Interval, b: Interval, compare: Any) -> Interval:
    return _number(compare(a[1], b[0])), _number(compare(a[0], b[1]))


def _equal(a: Interval, b: Interval) -> Interval:
    surely = (a[0] == a[1]) & (b[0] == b[1]) & (a[0] == b[0])
    return _number(surely), _number((a[0] <= b[1]) & (b[0] <= a[1]))


def _negated(condition: Interval) -> Interval:
    surely, maybe = condition
    return _number(maybe == 0), _number(surely == 0)


_OPERATIONS: Final[dict[type[ast.operator], Callable[[Interval, Interval], Interval]]] = {
    ast.Add: lambda a, b: (a[0] + b[0], a[1] + b[1]),
    ast.Sub: lambda a, b: (a[0] - b[1], a[1] - b[0]),
    ast.Mult: lambda a, b: _corners(np.multiply, a, b),
    ast.Div: _quotient,
    # NumPy's own quotient may be one less, for the remainder's sake
    ast.FloorDiv: lambda a, b: (np.floor((ends := _quotient(a, b))[0]) - 1, np.floor(ends[1])),
    ast.Pow: _power,
}
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Interval, Interval], Interval]]] = {
    ast.LtE: lambda a, b: _less(a, b, np.less_equal),
    ast.Lt: lambda a, b: _less(a, b, np.less),
    ast.GtE: lambda a, b: _less(b, a, np.less_equal),
    ast.Gt: lambda a, b: _less(b, a, np.less),
    ast.Eq: _equal,
    ast.NotEq: lambda a, b: _negated(_equal(a, b)),
}
