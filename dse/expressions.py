"""Formulas of search spaces: parsed, checked for names and units, and turned into functions of columns.

Python's grammar, read with `ast` and never evaluated by Python: arithmetic, comparisons, ``and or not``
(or ``& | ~``), ``a if c else b``, a few functions, words of a column (``recompute == full``), and
quantities with units (``72 GiB``).
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import FloatArray
from costmodel.errors import DseError, suggestion
from costmodel.formats.quantity import (
    PURE_NUMBER,
    QUANTITY_IN_FORMULA,
    Dimension,
    Quantity,
    quantity,
    unit_name,
)

#: Name -> values of every column a formula may use.
Values = Mapping[str, Any]
Function = Callable[[Values], Any]


@dataclass(frozen=True, slots=True)
class Name:
    """What a formula may know of a column before it has values."""

    dimension: Dimension = PURE_NUMBER
    words: tuple[str, ...] = ()  #: of a column that is written in words: word -> code, its place
    boolean: bool = False


@dataclass(frozen=True, slots=True)
class Margin:
    """How far a condition is from its limit; at least 0 where it holds."""

    function: Callable[[Values], tuple[Any, Any]]  #: values -> margin and scale, both in `dimension`
    dimension: Dimension


@dataclass(frozen=True, slots=True)
class Compiled:
    """A formula as a function of columns."""

    kind: Literal["number", "boolean", "word", "list"]
    function: Function
    dimension: Dimension = PURE_NUMBER
    words: tuple[str, ...] = ()
    margin: Margin | None = None
    constant: float | None = None

    def __call__(self, values: Values) -> Any:
        """Result for every row; a division by zero gives inf or nan, not a warning."""
        with np.errstate(all="ignore"):
            return self.function(values)

    def margins(self, values: Values) -> tuple[FloatArray, FloatArray]:
        """Margin of a condition, and the scale that makes margins comparable, for every row."""
        assert self.margin is not None
        with np.errstate(all="ignore"):
            margin, scale = self.margin.function(values)
        return np.asarray(margin, dtype=np.float64), np.asarray(scale, dtype=np.float64)


@dataclass(frozen=True)
class Expression:
    """A formula that has been parsed, its names not yet looked up."""

    text: str
    tree: ast.expr
    quantities: Mapping[str, Quantity]

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Read the grammar.

        Raises
        ------
        DseError
            If the text is no formula.
        """
        quantities: dict[str, Quantity] = {}

        def named(match: Any) -> str:
            quantities[f"_quantity_{len(quantities)}"] = quantity(match[0])
            return f"_quantity_{len(quantities) - 1}"

        try:
            tree = ast.parse(QUANTITY_IN_FORMULA.sub(named, text).strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            what = error.msg if isinstance(error, SyntaxError) else str(error)
            raise DseError(f"{text!r}: not a formula: {what}") from None
        return cls(" ".join(text.split()), tree, quantities)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names that occur, words included, functions not."""
        called = {id(node.func) for node in ast.walk(self.tree) if isinstance(node, ast.Call)}
        return frozenset(
            node.id
            for node in ast.walk(self.tree)
            if isinstance(node, ast.Name) and id(node) not in called and node.id not in self.quantities
        )

    def compiled(self, scope: Mapping[str, Name]) -> Compiled:
        """The formula as a function of the columns in `scope`.

        Raises
        ------
        DseError
            For an unknown name, operands whose units differ, or a mixture of numbers, words and conditions.
        """
        try:
            return _Compiler(scope, self.quantities).visit(self.tree)
        except _Mistake as mistake:
            raise DseError(f"{self.text!r}: {mistake}") from None
        except RecursionError:
            raise DseError(f"{self.text[:40]!r}...: not a formula: nested too deeply") from None


class _Mistake(Exception):
    """Something in a formula that cannot be compiled."""


_ARITHMETIC: Final[dict[type[ast.operator], Callable[[Any, Any], Any]]] = {
    ast.Add: np.add,
    ast.Sub: np.subtract,
    ast.Mult: np.multiply,
    ast.Div: np.divide,
    ast.FloorDiv: np.floor_divide,
    ast.Mod: np.mod,
    ast.Pow: np.power,
}
_COMPARISONS: Final[dict[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.LtE: np.less_equal,
    ast.Lt: np.less,
    ast.GtE: np.greater_equal,
    ast.Gt: np.greater,
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
}
#: Functions of one number; True where the result keeps the unit.
_FUNCTIONS: Final[dict[str, tuple[Callable[[Any], Any], bool]]] = {
    "abs": (np.abs, True),
    "ceil": (np.ceil, False),
    "floor": (np.floor, False),
    "round": (np.round, False),
    "log2": (np.log2, False),
    "sqrt": (np.sqrt, False),
}


def divisors(number: float) -> NDArray[np.float64]:
    """Whole numbers that divide a whole number, in order. [-]

    >>> divisors(12).tolist()
    [1.0, 2.0, 3.0, 4.0, 6.0, 12.0]
    """
    if not (1 <= number <= 1e12 and float(number).is_integer()):
        raise _Mistake(f"divisors({number:g}): expected a whole number of at least 1")
    low = np.arange(1.0, np.floor(np.sqrt(number)) + 1)
    low = low[number % low == 0]
    return np.unique(np.concatenate([low, number / low]))


def powers_of_two(low: float, high: float) -> NDArray[np.float64]:
    """Powers of two from `low` to `high`. [-]

    >>> powers_of_two(1, 10).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    powers: NDArray[np.float64] = np.exp2(np.arange(-64.0, 65.0))
    return powers[(powers >= low) & (powers <= high)]


def multiples(step: float, low: float, high: float) -> NDArray[np.float64]:
    """Multiples of `step` from `low` to `high`. [-]

    >>> multiples(16, 20, 64).tolist()
    [32.0, 48.0, 64.0]
    """
    if not (step > 0 and (high - low) / step <= 1e6):
        raise _Mistake("multiples(step, low, high): expected a step above 0, and at most a million steps")
    return step * np.arange(np.ceil(low / step), np.floor(high / step) + 1)


_LISTS: Final[dict[str, tuple[Callable[..., NDArray[np.float64]], int]]] = {
    "divisors": (divisors, 1),
    "powers_of_two": (powers_of_two, 2),
    "multiples": (multiples, 3),
}
_CALLS: Final = (*_FUNCTIONS, *_LISTS, "min", "max")


class _Compiler:
    """Walks a formula once; each node becomes a closure with its kind and unit."""

    def __init__(self, scope: Mapping[str, Name], quantities: Mapping[str, Quantity]) -> None:
        self.scope = scope
        self.quantities = quantities

    def visit(self, node: ast.expr) -> Compiled:
        method = getattr(self, "visit_" + type(node).__name__.lower(), None)
        if method is None:
            raise _Mistake(f"not understood in a formula: {ast.unparse(node)!r}")
        result: Compiled = method(node)
        return result

    def number(self, node: ast.expr) -> Compiled:
        """A node that must be a number; a condition counts as 0 or 1."""
        found = self.visit(node)
        if found.kind == "boolean":
            function = found.function
            return Compiled("number", lambda v: np.asarray(function(v), dtype=np.float64))
        if found.kind != "number":
            raise _Mistake(f"{ast.unparse(node)!r} is a {found.kind}; expected a number")
        return found

    def condition(self, node: ast.expr) -> Compiled:
        """A node that must be a condition."""
        found = self.visit(node)
        if found.kind != "boolean":
            raise _Mistake(
                f"{self.written(node)} is no condition; comparisons joined by & | ~ need parentheses, "
                "or write and, or, not"
            )
        return found

    def written(self, node: ast.expr) -> str:
        text = ast.unparse(node)
        for name, value in self.quantities.items():
            text = text.replace(name, f"{value.value:g} {unit_name(value.dimension)}")
        return repr(text)

    def visit_constant(self, node: ast.Constant) -> Compiled:
        value = node.value
        if isinstance(value, bool):
            return _truth(lambda v: value)
        if isinstance(value, int | float):
            return _fixed(float(value))
        raise _Mistake(f"not understood in a formula: {value!r}")

    def visit_name(self, node: ast.Name) -> Compiled:
        name = node.id
        if name in self.quantities:
            found = self.quantities[name]
            return Compiled("number", lambda v: found.value, found.dimension, constant=found.value)
        if name in ("true", "false"):
            return _truth(lambda v: name == "true")
        if name not in self.scope:
            raise _Mistake(f"{name}: unknown name{suggestion(name, self.scope)}")
        known = self.scope[name]
        if known.boolean:
            return _truth(lambda v: v[name] != 0)
        return Compiled("word" if known.words else "number", lambda v: v[name], known.dimension, known.words)

    def visit_unaryop(self, node: ast.UnaryOp) -> Compiled:
        if isinstance(node.op, ast.Not | ast.Invert):
            return _negated(self.condition(node.operand))
        operand = self.number(node.operand)
        function, sign = operand.function, -1.0 if isinstance(node.op, ast.USub) else 1.0
        constant = None if operand.constant is None else sign * operand.constant
        return Compiled("number", lambda v: sign * function(v), operand.dimension, constant=constant)

    def visit_binop(self, node: ast.BinOp) -> Compiled:
        if isinstance(node.op, ast.BitAnd | ast.BitOr):
            return _joined([self.condition(node.left), self.condition(node.right)],
                           all_of=isinstance(node.op, ast.BitAnd))  # fmt: skip
        if type(node.op) not in _ARITHMETIC:
            raise _Mistake(f"not understood in a formula: {ast.unparse(node)!r}")
        left, right = self.number(node.left), self.number(node.right)
        f, a, b = _ARITHMETIC[type(node.op)], left.function, right.function
        return Compiled("number", lambda v: f(a(v), b(v)), self.result(node, left, right))

    def result(self, node: ast.BinOp, left: Compiled, right: Compiled) -> Dimension:
        """Unit of an operation; operands of a sum must agree."""
        if isinstance(node.op, ast.Mult):
            return _combined(left.dimension, right.dimension, 1)
        if isinstance(node.op, ast.Div):
            return _combined(left.dimension, right.dimension, -1)
        if isinstance(node.op, ast.Pow):
            if right.dimension != PURE_NUMBER:
                raise _Mistake(f"{self.written(node)}: expected a number as exponent")
            if left.dimension == PURE_NUMBER:
                return PURE_NUMBER
            if right.constant is None or not right.constant.is_integer():
                raise _Mistake(f"{self.written(node)}: a quantity needs a whole number as exponent")
            return _combined(PURE_NUMBER, left.dimension, int(right.constant))
        common = self.agreed(node, left, right)
        return PURE_NUMBER if isinstance(node.op, ast.FloorDiv) else common

    def agreed(self, node: ast.expr, *operands: Compiled) -> Dimension:
        """The unit that all operands have; a literal 0 has any."""
        measured = [operand for operand in operands if operand.constant != 0] or [operands[0]]
        for other in measured[1:]:
            if other.dimension != measured[0].dimension:
                first, second = (
                    unit_name(o.dimension).replace("-", "a number") for o in (measured[0], other)
                )
                raise _Mistake(f"{self.written(node)}: units differ: {first} against {second}")
        return measured[0].dimension

    def visit_compare(self, node: ast.Compare) -> Compiled:
        sides = [node.left, *node.comparators]
        parts = [
            self.comparison(node, left, operator, right)
            for left, operator, right in zip(sides, node.ops, sides[1:], strict=False)
        ]
        return parts[0] if len(parts) == 1 else _joined(parts, all_of=True)

    def comparison(self, node: ast.expr, left: ast.expr, operator: ast.cmpop, right: ast.expr) -> Compiled:
        if type(operator) not in _COMPARISONS:
            raise _Mistake(f"not understood in a formula: {ast.unparse(node)!r}")
        first, second = self.operands(left, right)
        common = self.agreed(node, first, second)
        compare, a, b = _COMPARISONS[type(operator)], first.function, second.function
        holds: Function = lambda v: compare(a(v), b(v))  # noqa: E731
        if "word" in (first.kind, second.kind):
            return _truth(holds)
        return Compiled("boolean", holds, margin=_comparison_margin(operator, a, b, common))

    def operands(self, left: ast.expr, right: ast.expr) -> tuple[Compiled, Compiled]:
        """Both sides of a comparison; a word stands for its code in the column on the other side."""
        for column, word in ((left, right), (right, left)):
            known = self.scope.get(column.id) if isinstance(column, ast.Name) else None
            if known is None or not known.words:
                continue
            text = word.id if isinstance(word, ast.Name) else getattr(word, "value", None)
            if text not in known.words:
                raise _Mistake(f"{text!r} is not a value of {ast.unparse(column)}"
                               f"{suggestion(str(text), known.words)}")  # fmt: skip
            pair = self.visit(column), _fixed(float(known.words.index(str(text))))
            return pair if column is left else (pair[1], pair[0])
        return self.number(left), self.number(right)

    def visit_boolop(self, node: ast.BoolOp) -> Compiled:
        return _joined([self.condition(n) for n in node.values], all_of=isinstance(node.op, ast.And))

    def visit_ifexp(self, node: ast.IfExp) -> Compiled:
        test = self.condition(node.test).function
        yes, no = self.number(node.body), self.number(node.orelse)
        a, b = yes.function, no.function
        return Compiled("number", lambda v: np.where(test(v), a(v), b(v)), self.agreed(node, yes, no))

    def visit_call(self, node: ast.Call) -> Compiled:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        if name not in _CALLS or node.keywords:
            raise _Mistake(f"{name}: unknown function{suggestion(name, _CALLS)}")
        arguments = [self.number(argument) for argument in node.args]
        wanted = _LISTS[name][1] if name in _LISTS else 1 if name in _FUNCTIONS else max(1, len(arguments))
        if len(arguments) != wanted:
            raise _Mistake(f"{name}: expected {wanted} argument{'s' * (wanted > 1)}, got {len(arguments)}")
        functions = [argument.function for argument in arguments]
        if name in ("min", "max"):
            reduce = np.minimum if name == "min" else np.maximum
            return Compiled("number", lambda v: _reduced(reduce, [f(v) for f in functions]),
                            self.agreed(node, *arguments))  # fmt: skip
        common = self.agreed(node, *arguments)
        if name in _LISTS:
            build = _LISTS[name][0]
            return Compiled("list", lambda v: build(*(f(v) for f in functions)), common)
        function, keeps_unit = _FUNCTIONS[name]
        if not keeps_unit and common != PURE_NUMBER:
            raise _Mistake(f"{self.written(node)}: expected a pure number, got {unit_name(common)}")
        return Compiled("number", lambda v: function(functions[0](v)), common)


def _combined(a: Dimension, b: Dimension, power: int) -> Dimension:
    first, second, third, fourth, fifth, sixth = (x + power * y for x, y in zip(a, b, strict=True))
    return first, second, third, fourth, fifth, sixth


def _reduced(function: Any, values: list[Any]) -> Any:
    result = values[0]
    for value in values[1:]:
        result = function(result, value)
    return result


def _fixed(value: float) -> Compiled:
    return Compiled("number", lambda v: value, constant=value)


def _truth(holds: Function) -> Compiled:
    """A condition that has no distance from its limit: 1 where it holds, -1 where not."""
    return Compiled(
        "boolean", holds, margin=Margin(lambda v: (np.where(holds(v), 1.0, -1.0), 1.0), PURE_NUMBER)
    )


def _negated(condition: Compiled) -> Compiled:
    holds = condition.function
    assert condition.margin is not None
    margin, common = condition.margin.function, condition.margin.dimension

    def negated(values: Values) -> tuple[Any, Any]:
        distance, scale = margin(values)
        # At the limit itself the condition holds, so that its negation does not.
        return np.where(distance == 0, -_JUST_OUTSIDE, -distance), scale

    return Compiled("boolean", lambda v: np.logical_not(holds(v)), margin=Margin(negated, common))


#: Margin of a strict inequality at its limit: infeasible, by nothing that matters.
_JUST_OUTSIDE: Final = float(np.finfo(np.float64).tiny)


def _comparison_margin(operator: ast.cmpop, a: Function, b: Function, common: Dimension) -> Margin:
    """Distance from the limit: the difference of the sides, relative to the right one."""

    def margin(values: Values) -> tuple[Any, Any]:
        left, right = a(values), b(values)
        difference = np.subtract(right, left)
        scale = np.abs(right)
        scale = np.where((scale > 0) & (scale < np.inf), scale, 1.0)
        if isinstance(operator, ast.GtE | ast.Gt):
            difference = -difference
        if isinstance(operator, ast.Lt | ast.Gt):
            difference = np.where(difference == 0, -_JUST_OUTSIDE, difference)
        if isinstance(operator, ast.Eq):
            difference = -np.abs(difference)
        if isinstance(operator, ast.NotEq):
            difference = np.where(difference == 0, -_JUST_OUTSIDE, np.abs(difference))
        return difference, scale

    return Margin(margin, common)


def _joined(parts: list[Compiled], *, all_of: bool) -> Compiled:
    """and: the worst of the margins; or: the best. Margins of different units are compared by their scale."""
    combine = np.logical_and if all_of else np.logical_or
    functions = [part.function for part in parts]
    margins = [part.margin for part in parts if part.margin is not None]
    same = len({margin.dimension for margin in margins}) == 1

    def margin(values: Values) -> tuple[Any, Any]:
        pairs = [m.function(values) for m in margins]
        best, best_scale = pairs[0]
        for own, scale in pairs[1:]:
            closer = own / scale < best / best_scale
            chosen = closer if all_of else np.logical_not(closer)
            best, best_scale = np.where(chosen, own, best), np.where(chosen, scale, best_scale)
        return (best, best_scale) if same else (best / best_scale, 1.0)

    return Compiled("boolean", lambda v: _reduced(combine, [f(v) for f in functions]),
                    margin=Margin(margin, margins[0].dimension if same else PURE_NUMBER))  # fmt: skip
