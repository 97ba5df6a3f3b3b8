"""HLO text -> `Module`: the text of old and new printers, refused where XLA refuses it.

A name must be defined before it is used, once, and with the shape that its users write; a computation
must come before those that run it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

from costmodel.errors import DseError, suggestion
from costmodel.hlo.checks import parameters_problem, problem
from costmodel.hlo.counts import size_problem
from costmodel.hlo.cursor import Cursor
from costmodel.hlo.module import Computation, Instruction, Module, Shape
from costmodel.hlo.opcodes import KNOWN, known
from costmodel.hlo.other_texts import HEAD, other_text, partition_problem

_NAME: Final = r"%?([A-Za-z_][\w.\-]*)"
_HEAD: Final = re.compile(rf"\s*HloModule\s+{_NAME}")
_TABLE: Final = re.compile(
    r"\s*(?:FileNames|FunctionNames|FileLocations|StackFrames)[ \t]*(?:\n[ \t]*\d+[ \t].*)*\n"
)
_COMPUTATION: Final = re.compile(rf"\s*(ENTRY\s+)?{_NAME}\s*(?=[({{])")
_ARROW: Final = re.compile(r"\s*->")
_OPEN: Final = re.compile(r"\s*\{")
_INSTRUCTION: Final = re.compile(rf"\s*(ROOT\s+)?{_NAME}\s*=\s*")
_OPCODE: Final = re.compile(r"\s*([a-z][\w\-]*)(?=\()")
_BARE_OPERAND: Final = re.compile(rf"\s*{_NAME}\s*(?=[,)])")
_OPERAND: Final = re.compile(rf"\s*{_NAME}\s*(?=[,)])")
_ATTRIBUTE: Final = re.compile(r"\s*,\s*([A-Za-z_][\w\-]*)\s*=\s*")
_MESH: Final = re.compile(
    r"@?mesh[\w.]*\s*\[[^\]]*\]\s*(?:,\s*device_ids\s*=\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*)?"
)
#: More digits than a number of any program has.
_LONG_NUMBER: Final = re.compile(r"\d{1000}")
_PLAIN: Final = re.compile(r"[^\s,{}\[\]()\"]+")

#: Attributes that name computations.
CALLEES: Final = (
    "calls",
    "to_apply",
    "condition",
    "body",
    "branch_computations",
    "true_computation",
    "false_computation",
    "called_computations",
    "select",
    "scatter",
    "comparator",
)
_CALLEE: Final = re.compile(_NAME)


def parse(text: str, name: str) -> Module:
    """The module that a text describes.

    Parameters
    ----------
    text : str
        What XLA prints.
    name : str
        What to call the text in messages.

    Raises
    ------
    DseError
        For the first mistake, with its line and token; or for a text that is no compiled module, saying
        what it is.
    """
    encoded = text.encode()
    other = other_text(encoded[:HEAD])
    if other:
        raise DseError(f"{name}: {other}")
    cursor = Cursor(text, name)
    endless = _LONG_NUMBER.search(cursor.text)
    if endless:
        cursor.fail("a number longer than any", endless.start())
    try:
        module = _Parser(cursor).module(hashlib.sha256(encoded).hexdigest(), len(encoded))
    except RecursionError:
        cursor.fail("nested too deeply")
    whole = partition_problem(module)
    if whole:
        raise DseError(f"{name}: {whole}")
    return module


class _Parser:
    """Reads one module."""

    def __init__(self, cursor: Cursor) -> None:
        self.cursor = cursor
        self.computations: dict[str, Computation] = {}
        self.sizes: dict[Computation, tuple[int, int]] = {}

    def module(self, sha256: str, text_bytes: int) -> Module:
        """The whole text."""
        cursor = self.cursor
        name = cursor.expect(_HEAD, "'HloModule' and a name")[1]
        attributes = self.attributes()
        while cursor.match(_TABLE):
            pass
        entry: Computation | None = None
        while cursor.peek():
            start = cursor.at
            computation, is_entry = self.computation()
            if is_entry and entry:
                cursor.fail(f"a second ENTRY; {entry.name} is one", start)
            entry = computation if is_entry else entry
        if not self.computations:
            cursor.fail("expected a computation")
        computations = tuple(self.computations.values())
        return Module(name, attributes, computations, entry or computations[-1], sha256, text_bytes)

    def computation(self) -> tuple[Computation, bool]:
        """``ENTRY name (parameters) -> shape { instructions }``, and whether it is the entry."""
        cursor = self.cursor
        head = cursor.expect(_COMPUTATION, "a computation, such as ENTRY main {")
        name, result = head[2], None
        if name in self.computations:
            cursor.fail("defined twice", head.start(2))
        if cursor.peek() == "(":
            cursor.balanced()
            cursor.expect(_ARROW, "'->' and a shape")
            result = cursor.shape()
        cursor.expect(_OPEN, "'{'")
        computation = self.body(name)
        if result is not None and result != computation.root.shape:
            cursor.fail(
                f"{name} is said to give {result}, its root gives {computation.root.shape}", head.start(2)
            )
        wrong = size_problem(computation, self.sizes)
        if wrong:
            cursor.fail(f"{name}: {wrong}", head.start(2))
        self.attributes()
        self.computations[name] = computation
        return computation, bool(head[1])

    def body(self, name: str) -> Computation:
        """The instructions up to ``}``."""
        cursor = self.cursor
        defined: dict[str, Instruction] = {}
        root: Instruction | None = None
        while not cursor.taken("}"):
            head = cursor.expect(_INSTRUCTION, "an instruction, such as x = f32[] parameter(0), or '}'")
            if head[2] in defined:
                cursor.fail("defined twice", head.start(2))
            instruction = self.instruction(head[2], defined)
            defined[head[2]] = instruction
            if head[1]:
                if root is not None:
                    cursor.fail(f"a second ROOT; {root.name} is one", head.start(2))
                root = instruction
        if not defined:
            cursor.fail(f"{name} has no instructions", cursor.at - 1)
        instructions = tuple(defined.values())
        numbers = [int(each.argument) for each in instructions if each.opcode == "parameter"]
        wrong = parameters_problem(numbers)
        if wrong:
            cursor.fail(f"{name}: {wrong}", cursor.at - 1)
        return Computation(name, instructions, root or instructions[-1])

    def instruction(self, name: str, defined: dict[str, Instruction]) -> Instruction:
        """What follows ``name =``."""
        cursor = self.cursor
        shape = cursor.shape()
        opcode = cursor.expect(_OPCODE, "an instruction and its operands")
        if not known(opcode[1]):
            cursor.fail(f"unknown instruction{suggestion(opcode[1], KNOWN)}", opcode.start(1))
        argument, operands = "", tuple[Instruction, ...]()
        if opcode[1] in ("constant", "parameter"):
            argument = self.argument(opcode[1])
        else:
            operands = self.operands(defined)
        start = cursor.at
        attributes = self.attributes()
        called = self.called(attributes, start)
        instruction = Instruction(name, shape, opcode[1], operands, argument, attributes, called)
        wrong = problem(instruction)
        if wrong:
            cursor.fail(wrong, opcode.start(1))
        return instruction

    def argument(self, opcode: str) -> str:
        """The number of a parameter, or the literal of a constant as it is written."""
        start = self.cursor.at
        argument = self.cursor.balanced()[1:-1].strip()
        if opcode == "parameter" and not argument.isdecimal():
            self.cursor.fail("expected the number of a parameter", start + 1)
        return argument

    def operands(self, defined: dict[str, Instruction]) -> tuple[Instruction, ...]:
        """``(f32[2] a, b)``: names, with or without their shapes."""
        cursor = self.cursor
        operands: list[Instruction] = []
        cursor.at += 1
        while not cursor.taken(")"):
            if operands and not cursor.taken(","):
                cursor.fail("expected ',' or ')'")
            start = cursor.skip_space()
            shape: Shape | None = None
            found = cursor.match(_BARE_OPERAND)
            if found is None:
                shape = cursor.shape()
                found = cursor.expect(_OPERAND, "the name of an operand")
            operand = defined.get(found[1])
            if operand is None:
                cursor.fail("used, but not defined before", found.start(1))
            if shape is not None and shape != operand.shape:
                cursor.fail(f"{operand.name} is {operand.shape}, not {shape}", start)
            operands.append(operand)
        return tuple(operands)

    def attributes(self) -> dict[str, str]:
        """``, key=value`` as often as it comes."""
        cursor, attributes = self.cursor, dict[str, str]()
        while found := cursor.match(_ATTRIBUTE):
            if found[1] in attributes:
                cursor.fail("given twice", found.start(1))
            attributes[found[1]] = self.value()
        return attributes

    def value(self) -> str:
        """The value of an attribute: a string without its quotes, else the text up to a comma or a blank."""
        cursor = self.cursor
        start, character = cursor.at, cursor.peek()
        if character == '"':
            return cursor.balanced()[1:-1]
        if cursor.match(_MESH):
            cursor.skip_space()
        while ((character := cursor.text[cursor.at : cursor.at + 1]) and character in '{[("') or cursor.match(
            _PLAIN
        ):
            if character in ("{", "[", "(", '"'):
                cursor.balanced()
        if cursor.at == start:
            cursor.fail("expected a value")
        return cursor.text[start : cursor.at]

    def called(self, attributes: dict[str, str], at: int) -> tuple[Computation, ...]:
        """The computations that attributes name."""
        called: list[Computation] = []
        for key in CALLEES:
            for name in _CALLEE.findall(attributes[key]) if key in attributes else ():
                if name not in self.computations:
                    place = self.cursor.text.find(name, at)
                    self.cursor.fail(f"{key} names a computation that is not defined before", place)
                called.append(self.computations[name])
        return tuple(called)
