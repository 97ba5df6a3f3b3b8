"""Formulas of search spaces: parsed, checked for names and units, and turned into functions of columns.

The grammar is Python's, read with `ast`, and nothing is evaluated by Python: arithmetic, comparisons,
``and or not`` (or ``& | ~``), ``a if c else b``, some functions, words of a column (``recompute == full``),
and quantities with units (``72 GiB``).

Formulas may call functions, of dse or registered by a user. A condition has a margin, the distance to its limit.
"""

from __future__ import annotations

import ast
import re
import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, Final, Literal

import numpy as np

from costmodel.columns import FloatArray, divisors
from costmodel.errors import DseError, suggestion
from costmodel.formats.quantity import PURE_NUMBER, QUANTITY_IN_FORMULA, Dimension, dimension, quantity, unit_name
from costmodel.steps.breakdown import daly_goodput, daly_interval


def powers_of_two(low: float, high: float) -> FloatArray:
    """Powers of two from `low` to `high`. [-]

    >>> powers_of_two(1, 10).tolist()
    [1.0, 2.0, 4.0, 8.0]
    """
    powers: FloatArray = np.exp2(np.arange(-64.0, 65.0))
    return powers[(powers >= low) & (powers <= high)]


def multiples(step: float, low: float, high: float) -> FloatArray:
    """Multiples of `step` from `low` to `high`, in the unit of all three. [-]

    >>> multiples(16, 20, 64).tolist()
    [32.0, 48.0, 64.0]
    """
    if not (step > 0 and (high - low) / step <= 1e6):
        raise ValueError("multiples(step, low, high): expected a step above 0, and at most a million steps")
    return step * np.arange(np.ceil(low / step), np.floor(high / step) + 1)


#: Functions that give a parameter's options: name -> function, number of arguments.
LISTS: Final[dict[str, tuple[Callable[..., FloatArray], int]]] = {
    "divisors": (divisors, 1),
    "powers_of_two": (powers_of_two, 2),
    "multiples": (multiples, 3),
}
#: Functions of one number: name -> function, whether it takes a quantity and keeps its unit.
OF_ONE: Final[dict[str, tuple[Callable[[Any], Any], bool]]] = {
    "abs": (np.abs, True),
    "ceil": (np.ceil, False),
    "floor": (np.floor, False),
    "round": (np.round, False),
    "log2": (np.log2, False),
    "sqrt": (np.sqrt, False),
}
#: Functions of any number of numbers of one unit.
OF_MANY: Final[dict[str, Callable[[Any, Any], Any]]] = {"min": np.minimum, "max": np.maximum}


@dataclass(frozen=True)
class UnitFunction:
    """A function with a unit for each of its arguments and for its result."""

    name: str
    function: Callable[..., Any]  #: arrays of one length, one for each of `of` -> an array of that length
    of: tuple[str, ...]  #: units of its arguments
    unit: str  #: of the result

    @property
    def dimensions(self) -> tuple[Dimension, ...]:
        """Dimensions that the arguments of a function have."""
        return tuple(dimension(unit) for unit in self.of)

    @property
    def dimension(self) -> Dimension:
        """Dimension of the result."""
        return dimension(self.unit)

    def __call__(self, *arguments: Any) -> FloatArray:
        """Values of the function, one for each row. [SI units]

        Raises `DseError` if that is not a number for each row.
        """
        rows = np.broadcast_arrays(*(np.asarray(argument, dtype=np.float64) for argument in arguments))
        scaled = [row / quantity(f"1 {unit}").value for row, unit in zip(rows, self.of, strict=True)]
        given = quantity(f"1 {self.unit}").value * np.asarray(self.function(*scaled), dtype=np.float64)
        if given.shape not in (rows[0].shape, ()):
            raise DseError(
                f"{self.name}: gave an array of shape {given.shape} for arguments of shape {rows[0].shape}; "
                "expected a number for each row"
            )
        return given


#: Formulas of the cost model, by name.
OF_MODEL: Final = {
    function.name: function
    for function in (
        UnitFunction("daly_interval", daly_interval, ("s", "s"), "s"),
        UnitFunction("daly_goodput", daly_goodput, ("s", "s", "s", "s"), "-"),
    )
}
#: Functions that `formula_function` has made known, by name.
OWN: Final[dict[str, UnitFunction]] = {}


def formula_function(
    *, of: Sequence[str] = ("-",), unit: str = "-", name: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Make a function of arrays known to the formulas of all spaces that are read from then on.

    A space that calls it, and a study of it, is read where it was registered before. Workers get it with the space.

    Raises `DseError` for a name that formulas have, or an unknown unit.

    Parameters
    ----------
    of : sequence of str
        The unit in which it gets each of its arguments, arrays of one length.
    unit : str
        The unit of the result, a number for each row.
    name : str, optional
        Its name in formulas; by default the name of the function.

    Examples
    --------
    >>> @formula_function(of=["mm2"], unit="$")
    ... def mask_set(die_area):
    ...     return 10e6 + 20e3 * die_area
    >>> mask_set(800)
    26000000.0
    """

    def known(function: Callable[..., Any]) -> Callable[..., Any]:
        called = name or function.__name__
        if not called.isidentifier() or called in (*LISTS, *OF_ONE, *OF_MANY, *OF_MODEL):
            raise DseError(f"function {called!r}: expected a name that formulas do not have yet")
        for one in (*of, unit):
            quantity(f"1 {one}")
        OWN[called] = UnitFunction(called, function, tuple(of), unit)
        return function

    return known


#: Name -> values of every column a formula may use.
Values = Mapping[str, Any]
Function = Callable[[Values], Any]

#: Margin of a strict inequality at its limit: infeasible, by nothing that matters.
JUST_OUTSIDE: Final = float(np.finfo(np.float64).tiny)


@dataclass(frozen=True, slots=True)
class Margin:
    """Distance of a condition from its limit; at least 0 where it holds."""

    function: Callable[[Values], tuple[Any, Any]]  #: values -> margin and scale, both in `dimension`
    dimension: Dimension


@dataclass(frozen=True, slots=True)
class Compiled:
    """A formula as a function of columns."""

    kind: Literal["number", "boolean", "word", "list"]
    function: Function
    dimension: Dimension = PURE_NUMBER
    margin: Margin | None = None  #: of a condition
    constant: float | None = None  #: value of a formula that is a number written out

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


def fixed(value: float, dimension: Dimension = PURE_NUMBER) -> Compiled:
    """A number written out."""
    return Compiled("number", lambda v: value, dimension, constant=value)


def truth(holds: Function) -> Compiled:
    """A condition that has no distance from its limit: 1 where it holds, -1 where not."""
    margin = Margin(lambda v: (np.where(holds(v), 1.0, -1.0), 1.0), PURE_NUMBER)
    return Compiled("boolean", holds, margin=margin)


def comparison(operator: str, holds: Function, a: Function, b: Function, dimension: Dimension) -> Compiled:
    """``a <= b`` and its like: the margin is the difference of the sides, its scale the right side."""

    def margin(values: Values) -> tuple[Any, Any]:
        left, right = a(values), b(values)
        room = np.subtract(left, right) if operator in (">", ">=") else np.subtract(right, left)
        scale = np.abs(right)
        scale = np.where((scale > 0) & (scale < np.inf), scale, 1.0)
        if operator == "==":
            return -np.abs(room), scale
        if operator == "!=":
            room = np.abs(room)
        if operator in ("<", ">", "!="):
            room = np.where(room == 0, -JUST_OUTSIDE, room)
        return room, scale

    return Compiled("boolean", holds, margin=Margin(margin, dimension))


def negated(condition: Compiled) -> Compiled:
    """not: the margin turns round. At the limit itself the condition holds, so that this does not."""
    assert condition.margin is not None
    holds, margin = condition.function, condition.margin.function

    def turned(values: Values) -> tuple[Any, Any]:
        distance, scale = margin(values)
        return np.where(distance == 0, -JUST_OUTSIDE, np.negative(distance)), scale

    turned_margin = Margin(turned, condition.margin.dimension)
    return Compiled("boolean", lambda v: np.logical_not(holds(v)), margin=turned_margin)


def joined(parts: Sequence[Compiled], *, all_of: bool) -> Compiled:
    """and: the worst of the margins, relative to their scales; or: the best.

    The margin keeps its unit where all parts have the same, else it is relative.
    """
    functions = [part.function for part in parts]
    margins = [part.margin for part in parts if part.margin is not None]
    same = len({margin.dimension for margin in margins}) == 1
    combine = np.logical_and if all_of else np.logical_or

    def margin(values: Values) -> tuple[Any, Any]:
        pairs = [margin.function(values) for margin in margins]
        best, best_scale = pairs[0]
        for other, scale in pairs[1:]:
            lower = other / scale < best / best_scale
            chosen = lower if all_of else np.logical_not(lower)
            best, best_scale = np.where(chosen, other, best), np.where(chosen, scale, best_scale)
        return (best, best_scale) if same else (best / best_scale, 1.0)

    return Compiled(
        "boolean",
        lambda v: reduce(combine, [f(v) for f in functions]),
        margin=Margin(margin, margins[0].dimension if same else PURE_NUMBER),
    )


#: Most characters of a formula. Reading a number takes the square of its digits. [characters]
LONGEST: Final = 10_000
_LONG_NUMBER: Final = re.compile(r"[0-9_]{1000}")
#: Neither filters of warnings nor the recursion depth of Python's parser belong to one thread.
_PARSING: Final = threading.Lock()
#: A count with a suffix, such as 20M; with B it would be bytes.
_COUNT_IN_FORMULA: Final = re.compile(r"(?<![\w.$])([0-9]+\.?[0-9]*)([KMT])\b(?!/)")
_UNDERSCORED: Final = re.compile(r"(?<![\w.'\"])[0-9][0-9.]*_")
_SINGLE_EQUALS: Final = re.compile(r"(?<![<>=!])=(?!=)")
#: A word such as 1f1b, which Python would not read as a name.
WORD_FROM_A_DIGIT: Final = re.compile(r"(?<![\w.'\"])[0-9]+[a-df-wyz][0-9]+[a-z]\w*")


@dataclass(frozen=True, slots=True)
class Name:
    """Properties of a column that a formula may use before it has values."""

    dimension: Dimension = PURE_NUMBER
    words: Sequence[str] = ()  #: of a column that is written in words; a word's code is its place
    boolean: bool = False


@dataclass(frozen=True)
class Expression:
    """A formula that has been parsed, its names not yet looked up."""

    text: str
    tree: ast.expr
    quantities: Mapping[str, str]  #: name in the tree, in the place of a quantity -> its text

    @classmethod
    @lru_cache(4096)
    def parse(cls, text: str) -> Expression:
        """Read a formula by the grammar. Raises `DseError` if the text is not a formula."""
        if len(text) > LONGEST or _LONG_NUMBER.search(text):
            raise DseError(f"'{text[:40]}...': not a formula: longer than any ({len(text):,} characters)")
        if _UNDERSCORED.search(text):
            raise DseError(f"{text!r}: not a formula: a number has no underscores")
        quantities: dict[str, str] = {}

        def stand_in(match: re.Match[str]) -> str:
            name = f"quantity_{len(quantities)}_"
            quantities[name] = match[0]
            return name

        try:
            with _PARSING, warnings.catch_warnings():
                warnings.simplefilter("error")  # text with a warning of Python is not a formula either
                plain = _COUNT_IN_FORMULA.sub(lambda count: f"{count[1]}e{({'K': 3, 'M': 6, 'T': 12})[count[2]]}", text)
                spelt = QUANTITY_IN_FORMULA.sub(stand_in, plain)
                spelt = WORD_FROM_A_DIGIT.sub(r"'\g<0>'", spelt)
                tree = ast.parse(spelt.strip(), mode="eval").body
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            what = error.msg if isinstance(error, SyntaxError) else str(error)
            what += "; equality is ==" if _SINGLE_EQUALS.search(text) else ""
            raise DseError(f"{text!r}: not a formula: {what}") from None
        return cls(" ".join(text.split()), tree, quantities)

    @cached_property
    def names(self) -> frozenset[str]:
        """Names that occur, words included, functions not."""
        called = {id(node.func) for node in ast.walk(self.tree) if isinstance(node, ast.Call)}
        names = {n.id for n in ast.walk(self.tree) if isinstance(n, ast.Name) and id(n) not in called}
        return frozenset(names - self.quantities.keys())

    @cached_property
    def called(self) -> frozenset[str]:
        """Names of the functions that it calls."""
        calls = (node.func for node in ast.walk(self.tree) if isinstance(node, ast.Call))
        return frozenset(function.id for function in calls if isinstance(function, ast.Name))

    def compiled(self, known: Mapping[str, Name]) -> Compiled:
        """The formula as a function of the columns that are known.

        Raises `DseError` for an unknown name, operands of different units, or mixed numbers, words and conditions.
        """
        try:
            return _Compiler(known, self.quantities).visit(self.tree)
        except _Mistake as mistake:
            raise DseError(f"{self.text!r}: {mistake}") from None
        except RecursionError:
            raise DseError(f"'{self.text[:40]}...': not a formula: nested too deeply") from None


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
_COMPARISONS: Final[dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]]] = {
    ast.LtE: ("<=", np.less_equal),
    ast.Lt: ("<", np.less),
    ast.GtE: (">=", np.greater_equal),
    ast.Gt: (">", np.greater),
    ast.Eq: ("==", np.equal),
    ast.NotEq: ("!=", np.not_equal),
}


class _Compiler:
    """Walks a formula once; each node becomes a closure with its kind and unit."""

    def __init__(self, known: Mapping[str, Name], quantities: Mapping[str, str]) -> None:
        self.known = known
        self.quantities = quantities

    def visit(self, node: ast.expr) -> Compiled:
        """A node of any kind: a method for each that the grammar has."""
        method: Callable[[Any], Compiled] = getattr(self, f"visit_{type(node).__name__}", self.refused)
        return method(node)

    def refused(self, node: ast.expr) -> Compiled:
        raise _Mistake(f"{self.written(node)} is not understood in a formula")

    def number(self, node: ast.expr) -> Compiled:
        """A node that must be a number; a condition counts as 0 or 1."""
        visited = self.visit(node)
        if visited.kind == "boolean":
            return Compiled("number", lambda v: np.asarray(visited.function(v), dtype=np.float64))
        if visited.kind != "number":
            raise _Mistake(f"{self.written(node)} is a {visited.kind}; expected a number")
        return visited

    def condition(self, node: ast.expr) -> Compiled:
        """A node that must be a condition."""
        visited = self.visit(node)
        if visited.kind != "boolean":
            raise _Mistake(
                f"{self.written(node)} is not a condition; comparisons joined by & | ~ need parentheses "
                "(or write and, or, not)"
            )
        return visited

    def written(self, node: ast.expr) -> str:
        """A node as the file has it."""
        text = ast.unparse(node)
        for name, quantity_text in self.quantities.items():
            text = text.replace(name, quantity_text)
        return repr(text)

    def visit_Constant(self, node: ast.Constant) -> Compiled:
        if isinstance(node.value, bool):
            return truth(lambda v: node.value)
        if not isinstance(node.value, int | float) or abs(node.value) > 1e300:
            return self.refused(node)
        return fixed(float(node.value))

    def visit_Name(self, node: ast.Name) -> Compiled:
        name = node.id
        if name in self.quantities:
            try:
                written = quantity(self.quantities[name])
            except ValueError as error:
                raise _Mistake(f"{self.quantities[name]}: {error}") from None
            return fixed(written.value, written.dimension)
        if name in ("true", "false"):
            return truth(lambda v: name == "true")
        if name == "inf":
            return fixed(np.inf)
        if name not in self.known:
            raise _Mistake(f"{name}: unknown name{suggestion(name, self.known)}")
        column = self.known[name]
        if column.boolean:
            return truth(lambda v: np.not_equal(v[name], 0))
        return Compiled("word" if column.words else "number", lambda v: v[name], column.dimension)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Compiled:
        if isinstance(node.op, ast.Not | ast.Invert):
            return negated(self.condition(node.operand))
        operand = self.number(node.operand)
        sign = -1.0 if isinstance(node.op, ast.USub) else 1.0
        if operand.constant is not None:
            return fixed(sign * operand.constant, operand.dimension)
        return Compiled("number", lambda v: sign * operand.function(v), operand.dimension)

    def visit_BinOp(self, node: ast.BinOp) -> Compiled:
        if isinstance(node.op, ast.BitAnd | ast.BitOr):
            parts = [self.condition(node.left), self.condition(node.right)]
            return joined(parts, all_of=isinstance(node.op, ast.BitAnd))
        if type(node.op) not in _ARITHMETIC:
            return self.refused(node)
        left, right = self.number(node.left), self.number(node.right)
        combine, a, b = _ARITHMETIC[type(node.op)], left.function, right.function
        return Compiled("number", lambda v: combine(_real(a(v)), b(v)), self.unit_of(node, left, right))

    def unit_of(self, node: ast.BinOp, left: Compiled, right: Compiled) -> Dimension:
        """Unit of an operation; the operands of a sum must agree."""
        if isinstance(node.op, ast.Mult):
            return _product(left.dimension, right.dimension, 1)
        if isinstance(node.op, ast.Div):
            return _product(left.dimension, right.dimension, -1)
        if isinstance(node.op, ast.Pow):
            whole = right.constant is not None and right.constant.is_integer()
            if right.dimension != PURE_NUMBER or (left.dimension != PURE_NUMBER and not whole):
                raise _Mistake(f"{self.written(node)}: a quantity needs a whole number as exponent")
            return _product(PURE_NUMBER, left.dimension, int(right.constant or 0) if whole else 0)
        common = self.agreed(node, left, right)
        return PURE_NUMBER if isinstance(node.op, ast.FloorDiv) else common

    def agreed(self, node: ast.expr, *operands: Compiled) -> Dimension:
        """The unit that all operands have; a 0 written out has any."""
        measured = [operand for operand in operands if operand.constant != 0] or [operands[0]]
        units = list(dict.fromkeys(operand.dimension for operand in measured))
        if len(units) > 1:
            shown = ["a pure number" if u == PURE_NUMBER else unit_name(u) for u in units]
            raise _Mistake(f"{self.written(node)}: units differ: {' against '.join(shown)}")
        return units[0]

    def visit_Compare(self, node: ast.Compare) -> Compiled:
        sides = [node.left, *node.comparators]
        parts = [
            self.compared(ast.Compare(left, [operator], [right]))
            for left, operator, right in zip(sides, node.ops, sides[1:], strict=False)
        ]
        return parts[0] if len(parts) == 1 else joined(parts, all_of=True)

    def compared(self, node: ast.Compare) -> Compiled:
        """A comparison of two sides."""
        if type(node.ops[0]) not in _COMPARISONS:
            return self.refused(node)
        sign, compare = _COMPARISONS[type(node.ops[0])]
        of_words, left, right = self.sides(node.left, node.comparators[0])
        a, b = left.function, right.function
        if of_words:
            return truth(lambda v: compare(a(v), b(v)))
        return comparison(sign, lambda v: compare(a(v), b(v)), a, b, self.agreed(node, left, right))

    def sides(self, left: ast.expr, right: ast.expr) -> tuple[bool, Compiled, Compiled]:
        """True if a comparison is of words, and its sides; a word is its code in the other column."""
        for column, word in ((left, right), (right, left)):
            known = self.known.get(column.id) if isinstance(column, ast.Name) else None
            if known is None or not known.words:
                continue
            text = word.id if isinstance(word, ast.Name) else getattr(word, "value", None)
            if text not in known.words:
                hint = suggestion(str(text), known.words)
                raise _Mistake(f"{self.written(word)} is not a value of {ast.unparse(column)}{hint}")
            code = fixed(float(known.words.index(str(text))))
            return (True, self.visit(column), code) if column is left else (True, code, self.visit(column))
        return False, self.number(left), self.number(right)

    def visit_BoolOp(self, node: ast.BoolOp) -> Compiled:
        return joined([self.condition(part) for part in node.values], all_of=isinstance(node.op, ast.And))

    def visit_IfExp(self, node: ast.IfExp) -> Compiled:
        test, yes, no = self.condition(node.test), self.number(node.body), self.number(node.orelse)
        return Compiled(
            "number", lambda v: np.where(test.function(v), yes.function(v), no.function(v)), self.agreed(node, yes, no)
        )

    def visit_Call(self, node: ast.Call) -> Compiled:
        name = node.func.id if isinstance(node.func, ast.Name) else ast.unparse(node.func)
        known = (*LISTS, *OF_ONE, *OF_MANY, *OF_MODEL, *OWN)
        if name not in known or node.keywords:
            advice = ", or make one known by dse.formula_function in Python"
            raise _Mistake(f"{name}: unknown function{suggestion(name, known)}{advice}")
        arguments = [self.number(argument) for argument in node.args]
        measured = OWN.get(name) or OF_MODEL.get(name)
        many, listed = max(1, len(arguments)), LISTS.get(name, (None, 1))[1]
        wanted = len(measured.of) if measured else many if name in OF_MANY else listed
        if len(arguments) != wanted:
            raise _Mistake(f"{name}: expected {wanted} argument{'s' * (wanted > 1)}, got {len(arguments)}")
        return self.measured(node, measured, arguments) if measured else self.plain(node, name, arguments)

    def plain(self, node: ast.Call, name: str, arguments: Sequence[Compiled]) -> Compiled:
        """A function of numbers that share a unit."""
        functions, common = [argument.function for argument in arguments], self.agreed(node, *arguments)
        if name in LISTS:
            return Compiled("list", lambda v: LISTS[name][0](*(f(v) for f in functions)), common)
        if name in OF_MANY:
            return Compiled("number", lambda v: reduce(OF_MANY[name], [f(v) for f in functions]), common)
        function, keeps_unit = OF_ONE[name]
        if not keeps_unit and common != PURE_NUMBER:
            raise _Mistake(f"{self.written(node)}: expected a pure number, got {unit_name(common)}")
        return Compiled("number", lambda v: function(functions[0](v)), common)

    def measured(self, node: ast.Call, called: UnitFunction, arguments: Sequence[Compiled]) -> Compiled:
        """A function with a unit for each of its arguments."""
        for argument, argument_unit, unit in zip(node.args, arguments, called.dimensions, strict=True):
            if argument_unit.dimension != unit and argument_unit.constant != 0:
                unit_found, expected = unit_name(argument_unit.dimension), unit_name(unit)
                raise _Mistake(f"{called.name}: {self.written(argument)} is in {unit_found}; expected {expected}")
        functions = [argument.function for argument in arguments]
        return Compiled("number", lambda v: called(*(f(v) for f in functions)), called.dimension)


def _real(value: Any) -> Any:
    """A number as NumPy has it: written-out numbers divide by zero without an exception too."""
    return np.float64(value) if isinstance(value, float) else value


def _product(a: Dimension, b: Dimension, power: int) -> Dimension:
    return tuple(x + power * y for x, y in zip(a, b, strict=True))
