"""Python modules of configurations as calls and their arguments, read and never run.

Recent torchtitan configures a run by functions that return nested calls, such as ``Trainer.Config(...)``. Running a
file that somebody sent is no way to read it. The syntax tree is followed instead: assignments, attributes, arithmetic,
and functions of the same module. All else becomes a `Call` that remembers its arguments.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from costmodel.errors import DseError

#: Most steps of reading a module, and numbers that arithmetic may give. [-]
MOST_STEPS: Final = 100_000
MOST: Final = 2**53


@dataclass
class Call:
    """A call that is not followed: what is called, and with what; attributes that are set later included."""

    name: str  #: with the module that it is imported from: "torchtitan.models.llama3.model_registry"
    arguments: dict[str, Any] = field(default_factory=dict)
    positional: list[Any] = field(default_factory=list)

    def literal(self, name: str, default: Any) -> Any:
        """An argument, where it is a number, a text or a list; else the default."""
        value = self.arguments.get(name, default)
        return default if isinstance(value, Call) else value

    def call(self, name: str) -> Call:
        """An argument that is a call itself; one without arguments where it is none."""
        value = self.arguments.get(name)
        return value if isinstance(value, Call) else Call("")


#: Most dots in a line of a module.
MOST_DOTS: Final = 5_000


class PythonFunctions:
    """The functions of a module, and what they return.

    Assignments, attributes that are set, arithmetic and calls of functions of the same module are followed;
    conditions and loops are not.
    """

    def __init__(self, text: str, package: str) -> None:
        try:
            if any(line.count(".") > MOST_DOTS for line in text.splitlines()):
                raise ValueError  # the parser takes time that grows with the square of a dotted name
            tree = ast.parse(text)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            raise DseError("expected a Python module") from None
        self.steps = 0
        self.names: dict[str, Any] = {}
        self.functions = {function.name: function for function in tree.body if isinstance(function, ast.FunctionDef)}
        self.imported = dict(self._imports(tree, package))
        self._run(tree.body, self.names)

    @staticmethod
    def _imports(tree: ast.Module, package: str) -> list[tuple[str, str]]:
        """Name -> where it comes from; relative imports count from `package`."""
        names = []
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                module = ".".join(part for part in (package * (node.level > 0), node.module or "") if part)
                names += [(alias.asname or alias.name, f"{module}.{alias.name}") for alias in node.names]
        return names

    def results(self) -> dict[str, Any]:
        """Name -> value that each function without required arguments returns.

        Raises `DseError` if they call each other without end.
        """
        plain = [
            function for function in self.functions.values() if not (function.args.args or function.args.kwonlyargs)
        ]
        try:
            return {called.name: self._called(called, {}) for called in plain}
        except RecursionError:
            raise DseError("functions that call each other without end") from None

    def _called(self, function: ast.FunctionDef, given: Mapping[str, Any]) -> Any:
        """The value that a function returns for some arguments."""
        parameters = function.args
        defaults = [*zip(reversed(parameters.args), reversed(parameters.defaults), strict=False)]
        keywords = zip(parameters.kwonlyargs, parameters.kw_defaults, strict=True)
        defaults += [(name, value) for name, value in keywords if value]
        names = {name.arg: self.value(value, self.names) for name, value in defaults}
        return self._run(function.body, {**self.names, **names, **given})

    def _run(self, body: list[ast.stmt], names: dict[str, Any]) -> Any:
        """Statements one after the other, up to a `return`."""
        for statement in body:
            if isinstance(statement, ast.Return):
                return None if statement.value is None else self.value(statement.value, names)
            if isinstance(statement, ast.Assign | ast.AnnAssign) and statement.value is not None:
                targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
                value = self.value(statement.value, names)
                for target in targets:
                    self._assign(target, value, names)
        return None

    def _assign(self, target: ast.expr, value: Any, names: dict[str, Any]) -> None:
        if isinstance(target, ast.Name):
            names[target.id] = value
        elif isinstance(target, ast.Attribute):
            owner = self.value(target.value, names)
            if isinstance(owner, Call):
                owner.arguments[target.attr] = value

    def value(self, node: ast.expr, names: Mapping[str, Any]) -> Any:
        """An expression: a number, a text, a list, a mapping; a `Call` of whatever else.

        Raises `DseError` if reading takes too long.
        """
        self.steps += 1
        if self.steps > MOST_STEPS:
            raise DseError(f"takes more than {MOST_STEPS:,} steps to read")
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.List | ast.Tuple):
            return [self.value(item, names) for item in node.elts]
        if isinstance(node, ast.Name):
            return names[node.id] if node.id in names else Call(self.imported.get(node.id, node.id))
        if isinstance(node, ast.Attribute):
            owner = self.value(node.value, names)
            if not isinstance(owner, Call):
                return Call("")
            return owner.arguments.setdefault(node.attr, Call(f"{owner.name}.{node.attr}"))
        if isinstance(node, ast.BinOp | ast.UnaryOp):
            return self._number(node, names)
        return self._call(node, names) if isinstance(node, ast.Call) else Call("")

    def _call(self, node: ast.Call, names: Mapping[str, Any]) -> Any:
        positional = [self.value(argument, names) for argument in node.args]
        arguments = {argument.arg: self.value(argument.value, names) for argument in node.keywords if argument.arg}
        if isinstance(node.func, ast.Name) and (function := self.functions.get(node.func.id)):
            named = dict(zip((argument.arg for argument in function.args.args), positional, strict=False))
            return self._called(function, {**named, **arguments})
        callee = self.value(node.func, names)
        return Call(callee.name if isinstance(callee, Call) else "", arguments, positional)

    def _number(self, node: ast.BinOp | ast.UnaryOp, names: Mapping[str, Any]) -> Any:
        """Sums, differences and products of numbers."""
        if isinstance(node, ast.UnaryOp):
            value = self.value(node.operand, names)
            negated = isinstance(node.op, ast.USub) and isinstance(value, int | float)
            return -value if negated else Call("")
        one, other = self.value(node.left, names), self.value(node.right, names)
        if not all(isinstance(number, int | float) and abs(number) <= MOST for number in (one, other)):
            return Call("")
        if isinstance(node.op, ast.FloorDiv):
            return one // other if other else Call("")
        known = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul}
        return known[type(node.op)](one, other) if type(node.op) in known else Call("")
