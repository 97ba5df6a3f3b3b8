"""HLO text -> `Module`: old and new printers, refused where XLA refuses it; text of other compilers.

One pass goes through the text: computations, instructions, shapes, attributes. Errors name line and token. Text
of another compiler (StableHLO, a jaxpr, TorchInductor) is recognized, and the message names the right command."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final, NoReturn

from costmodel.errors import DseError, ParameterError, suggestion
from dse.adapters.xla.text import module as hlo
from dse.adapters.xla.text.module import Computation, Instruction, Module, Shape

#: Bytes at the start of a file that determine its kind. [B]
HEAD: Final = 1 << 16
#: How a program that one device runs is printed.
_PRINT: Final = hlo.TABLES["print"]
#: Beginnings of files that are not compiled modules, and a description of each kind.
_PATTERNS: Final = tuple(
    (re.compile(pattern.replace("{MLIR}", hlo.TABLES["mlir"]).encode("latin-1")), what.format(print=_PRINT))
    for pattern, what in hlo.TABLES["other_texts"]
)

#: A sharding that splits an array: among more than the copies that its last dimension may stand for.
_SPLIT: Final = re.compile(r"\bdevices=\[([\d,]+)\]")
_SPLITTING: Final = re.compile(r"Sharding|SPMD(?:FullToShard|ShardToFull)Shape|xla\.sdy\.\w+|local_xla\.sdy\.\w+")


def other_text(head: bytes) -> str:
    """Description of a file that begins so, with the command to use instead; "" where its kind is unknown.

    >>> other_text(b"{ lambda ; a:f32[]. let")[:34]
    'is a jaxpr, traced by JAX and not '
    """
    return next((what for pattern, what in _PATTERNS if pattern.match(head)), "")


def partition_problem(module: Module) -> str | None:
    """Why a module is not the program of one device; None where it is.

    A schedule is made last, for the program of one device. Before that, shardings state the split of arrays, and calls
    mark positions; after the split, collectives pass the parts.
    """
    if module.is_scheduled:
        return None
    every = list(module.instructions)
    marked = any(_SPLITTING.fullmatch(hlo.custom_call_target(instruction)) for instruction in every)
    split = any(_is_split(instruction) for instruction in every)
    exchanging = any(hlo.parts(instruction.opcode)[0] in hlo.COLLECTIVES for instruction in every)
    if marked or (split and not exchanging):
        return f"is not split among its devices yet: arrays are those of all together; {_PRINT}"
    return None


def _is_split(instruction: Instruction) -> bool:
    sharding = instruction.attributes.get("sharding", "")
    copies = sharding.count("last_tile_dim_replicate")
    rows = (re.findall(r"\d+", written) for written in _SPLIT.findall(sharding))
    return any(int(tile) > 1 for tiles in rows for tile in tiles[: len(tiles) - copies])


#: Most elements of an array, far more than any memory has; most brackets within each other; most instructions.
LARGEST, DEEPEST, MOST_INSTRUCTIONS = 10**18, 1000, 1_000_000
#: Work that fits into 5 s: `work_units` of instructions, and characters in one unit. [-]
MOST_WORK, CHARACTERS = 20_000, 1000
_STRING: Final = r'"(?:[^"\\]|\\.)*+"'
_STRING_OR_COMMENT: Final = re.compile(rf"{_STRING}|/\*.*?\*/", re.DOTALL)
_BRACKET: Final = re.compile(rf"{_STRING}|[\"(){{}}\[\]]", re.DOTALL)
_ARRAY: Final = re.compile(r"([a-z][a-z0-9]*)\[([^\]\[(){}\"]*)\](\{[^{}]*\})?")
_SPACE: Final = re.compile(r"\s*")
_TOKEN: Final = re.compile(r"[\w.%-]+|\S|$")
_CLOSING: Final = {"(": ")", "[": "]", "{": "}"}


def without_comments(text: str) -> str:
    """The text with blanks in place of comments; strings keep text that looks like one.

    >>> without_comments('a /*x*/ "/*y*/"')
    'a       "/*y*/"'
    """
    if "/*" not in text:
        return text
    return _STRING_OR_COMMENT.sub(
        lambda m: m[0] if m[0][0] == '"' else ("\n" * m[0].count("\n")).ljust(len(m[0])), text
    )


_OPERANDS, _FEWEST, _CALLED = (hlo.TABLES[key] for key in ("operands", "fewest_operands", "called"))


def problem(instruction: Instruction) -> str | None:
    """The mistake in an instruction; None where it has none."""
    opcode, operands, called = instruction.opcode, instruction.operands, instruction.called
    if opcode in _OPERANDS and len(operands) != _OPERANDS[opcode]:
        return f"expected {_OPERANDS[opcode]} operands, got {len(operands)}"
    if len(operands) < _FEWEST.get(opcode, 0):
        return f"expected at least {_FEWEST[opcode]} operands, got {len(operands)}"
    if opcode in _CALLED and len(called) != _CALLED[opcode]:
        return f"expected {_CALLED[opcode]} computations to run, got {len(called)}"
    if opcode == "get-tuple-element":
        whole, index = instruction.operands[0].shape, instruction.attributes.get("index", "")
        if not index.isdecimal() or int(index) >= len(whole.elements):
            return f"{whole} has no element {index or 'without an index'}"
        element = whole.elements[int(index)]
        return None if element == instruction.shape else f"element {index} is {element}, not {instruction.shape}"
    if opcode == "conditional":
        if len(called) != len(operands) - 1:
            return f"{len(called)} branches for {len(operands) - 1} operands"
        passed = [_passing_problem(*pair) for pair in zip(called, zip(operands[1:]), strict=True)]
    elif opcode in ("fusion", "call", "async-start", "while"):
        passed = [_passing_problem(computation, operands) for computation in called]
    else:
        return None
    return next(filter(None, passed), None)


def _passing_problem(called: Computation, operands: Sequence[Instruction]) -> str | None:
    """The mismatch of the arguments of a call and the parameters of its computation; None where they match."""
    if len(called.parameters) != len(operands):
        return f"{called.name} takes {len(called.parameters)} operands, got {len(operands)}"
    for parameter, operand in zip(called.parameters, operands, strict=True):
        if parameter.shape != operand.shape:
            return f"{called.name} takes {parameter.shape} for {parameter.name}, got {operand.shape}"
    return None


_NAME: Final = r"%?([A-Za-z_][\w.\-]*)"
_HEAD: Final = re.compile(rf"\s*HloModule\s+{_NAME}")
_TABLE: Final = re.compile(r"\s*(?:File(?:Name|Location)|FunctionName|StackFrame)s[ \t]*(?:\n[ \t]*+\d++[ \t].*+)*+\n")
_COMPUTATION: Final = re.compile(rf"\s*(ENTRY\s+)?{_NAME}\s*(?=[({{])")
_ARROW: Final = re.compile(r"\s*->")
_OPEN: Final = re.compile(r"\s*\{")
_INSTRUCTION: Final = re.compile(rf"\s*(ROOT\s+)?{_NAME}\s*=\s*")
_OPCODE: Final = re.compile(r"\s*([a-z][\w\-]*)(?=\()")
_NAMES: Final = re.compile(r"\(([\s%,\w.\-]+)\)")
_OPERAND: Final = re.compile(rf"\s*{_NAME}\s*(?=[,)])")
_ATTRIBUTE: Final = re.compile(r"\s*,\s*([A-Za-z_][\w\-]*)\s*=\s*")
_MESH: Final = re.compile(r"@?mesh[\w.]*\s*\[[^\]]*\]\s*(?:,\s*device_ids\s*=\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*)?")
#: More digits than a number of any program has.
_LONG_NUMBER: Final = re.compile(r"\d{1000}")
#: Words, strings, and brackets around no others.
_PIECES: Final = re.compile(
    rf'(?:[^\s,{{}}\[\]()"]++|\{{(?:[^{{}}\[\]()"]|{_STRING})*+\}}|\[[^{{}}\[\]()"]*+\]|\([^{{}}\[\]()"]*+\))++',
    re.DOTALL,
)
_CALLEE: Final = re.compile(_NAME)


def parse(text: str, name: str, *, large: bool = False) -> Module:
    """The module that a text of XLA describes; `name` is that of the text in messages.

    Raises `DseError` for the first mistake, with its line and token; for a text that is not a compiled module, with a
    description of it; or for one that takes more than 5 s to evaluate, unless it may be `large`.
    """
    encoded = text.encode()
    other = other_text(encoded[:HEAD])
    if other:
        raise DseError(f"{name}: {other}")
    parser = _Parser(text, name, MOST_INSTRUCTIONS if large else MOST_WORK)
    parser.spend(len(text) / CHARACTERS)
    endless = _LONG_NUMBER.search(parser.text)
    if endless:
        parser.fail("a number longer than any", endless.start())
    try:
        module = parser.module(hashlib.sha256(encoded).hexdigest(), len(encoded))
    except RecursionError:
        parser.fail("nested too deeply")
    if not hlo.repeated_instructions(module):
        parser.spent = len(text) / CHARACTERS
        parser.spend(sum(len(computation.instructions) * times for computation, times in hlo.runs_of(module).items()))
    whole = partition_problem(module)
    if whole:
        raise DseError(f"{name}: {whole}")
    return module


#: Metadata of an instruction, and names in it that tell the pass of a matrix product.
_METADATA: Final = re.compile(rf", metadata=\{{(?:[^{{}}\"]|{_STRING})*+\}}")
_OP_NAME: Final = re.compile(rf"op_name={_STRING}")
#: Calls whose computations show the names of their instructions; instructions that read their own name.
_SHOWING: Final = re.compile(r"(?:call|while|conditional|async-start)\([^\n]*")
_NAMED: Final = hlo.COLLECTIVES | {"async", "call", "conditional", "while"}
_PRODUCTS: Final = frozenset(("convolution(", "dot(", "ragged-dot(", "scaled-dot("))
_MADE: Final = re.compile(r"%([A-Za-z_][\w.\-]*) = ")
_USED: Final = re.compile(r"%([A-Za-z_][\w.\-]*)")
_WORD: Final = re.compile(r"[A-Za-z_][\w.\-]*+\(?")


class _Parser:
    """Reads the computations of one module, each after those that it runs; those that differ in names alone once."""

    def __init__(self, text: str, name: str, room: float) -> None:
        self.text = without_comments(text)
        self.name = name
        self.at = 0
        self._shapes: dict[str, Shape] = {}
        self.computations: dict[str, Computation] = {}
        self.forms: dict[tuple[object, ...], Computation] = {}
        self.equal: dict[str, Computation] = {}  # computation -> the first that differs in names alone
        self.shown = {name for call in _SHOWING.findall(self.text) for name in _CALLEE.findall(call)}
        self.shares = "ENTRY" in self.text  # else the last computation shows its names
        self.sizes: dict[Computation, tuple[int, int]] = {}
        self.searched = 0  # end of the text in which a line that closes a computation was looked for
        self.total = 0  # instructions of the computations so far
        self.room, self.spent = room, 0.0  # units of work
        self.devices = 1

    def fail(self, problem: str, at: int | None = None) -> NoReturn:
        """Report a problem at a position, by default the present one.

        Raises `DseError` with the line, the token, and the problem.
        """
        at = self.skip_space() if at is None else at
        line = self.text.count("\n", 0, at) + 1
        token = _TOKEN.match(self.text, at)
        shown = f"{token[0][:80]!r}" if token and token[0] else "the end of the text"
        raise DseError(f"{self.name}: line {line}: {shown}: {problem}")

    def spend(self, units: float) -> None:
        """Count work, up to the room for it."""
        self.spent += units
        if self.spent > self.room:
            lifted = (
                "that fit into 5 s; add {large} (in spaces: large_hlo)" if self.room == MOST_WORK else "of any program"
            )
            line = self.text.count("\n", 0, self.at) + 1
            raise ParameterError(
                f"{self.name}: {len(self.text):,} characters: more than the {self.room:,.0f} units of work {lifted}; "
                f"reading ended on line {line:,}"
            )

    def skip_space(self) -> int:
        """Go on to the next character that is not a blank."""
        self.at = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # may be empty
        return self.at

    def match(self, pattern: re.Pattern[str]) -> re.Match[str] | None:
        """Go past the match of a pattern at this position, if it matches."""
        result = pattern.match(self.text, self.at)
        if result:
            self.at = result.end()
        return result

    def expect(self, pattern: re.Pattern[str], wanted: str) -> re.Match[str]:
        """Go past a required pattern at this position."""
        match = self.match(pattern)
        if match is None:
            self.fail(f"expected {wanted}")
        return match

    def peek(self) -> str:
        """The next character that is not a blank; empty at the end."""
        return self.text[self.skip_space() : self.at + 1]

    def taken(self, character: str) -> bool:
        """True if the next character is this one; it is consumed."""
        if self.peek() != character:
            return False
        self.at += 1
        return True

    def balanced(self) -> str:
        """Go past a string, or from a bracket to the one that closes it; the text of it."""
        start, open_brackets = self.at, []
        for match in _BRACKET.finditer(self.text, start):
            self.at, token = match.end(), match[0]
            if token == '"':
                self.fail("a string that never ends", match.start())
            if token in _CLOSING:
                open_brackets.append(_CLOSING[token])
            elif token[0] != '"' and (not open_brackets or open_brackets.pop() != token):
                self.fail("closes nothing", match.start())
            if not open_brackets:
                return self.text[start : self.at]
            if len(open_brackets) > DEEPEST:
                break
        return self.fail(f"never closed, or around more than {DEEPEST:,} others", start)

    def shape(self, *, within: bool = False) -> Shape:
        """Go past a shape: ``f32[2,3]{1,0}`` or ``(f32[], s32[4])``; only outermost tuples are kept."""
        start = self.skip_space()
        if self.text.startswith("(", start):
            if within:
                return self._tuple_at(start)
            written = self.balanced()
            if written not in self._shapes:
                self._shapes[written] = self._tuple_at(start)
            return self._shapes[written]
        match = self.expect(_ARRAY, "a shape, such as f32[8,128]")
        if match[0] not in self._shapes:
            self._shapes[match[0]] = self._array(match)
        return self._shapes[match[0]]

    def _tuple_at(self, start: int) -> Shape:
        self.at = start + 1
        elements: list[Shape] = []
        while not self.taken(")"):
            if elements and not self.taken(","):
                self.fail("expected ',' or ')'")
            elements.append(self.shape(within=True))
        return Shape("tuple", (), tuple(elements))

    def _array(self, match: re.Match[str]) -> Shape:
        dtype, dims = match[1], match[2].strip()
        if dtype not in hlo.BITS:
            self.fail(f"unknown type of element; known: {', '.join(hlo.BITS)}", match.start())
        try:
            sizes = tuple(int(dim.replace("<=", "")) for dim in dims.split(",")) if dims else ()
        except ValueError:
            self.fail("expected whole numbers for dimensions", match.start())
        if any(size < 0 for size in sizes) or prod(sizes) > LARGEST:
            self.fail(f"expected dimensions of at most {LARGEST:.0e} elements together", match.start())
        return Shape(dtype, sizes, layout=match[3] or "")

    def module(self, sha256: str, text_bytes: int) -> Module:
        """Module of the whole text: its header, tables, computations and entry."""
        name = self.expect(_HEAD, "'HloModule' and a name")[1]
        attributes = self.attributes()
        self.devices = hlo.declared_devices(attributes)
        if self.devices > hlo.MOST_DEVICES:
            self.fail(f"{self.devices:,} devices; at most {hlo.MOST_DEVICES:,} are read")
        while self.match(_TABLE):
            pass
        entry: Computation | None = None
        while self.peek():
            start = self.at
            computation, is_entry = self.computation()
            if is_entry and entry:
                self.fail(f"a second ENTRY; {entry.name} is one", start)
            entry = computation if is_entry else entry
        if not self.computations:
            self.fail("expected a computation")
        computations = tuple(self.computations.values())
        return Module(name, attributes, computations, entry or computations[-1], sha256, text_bytes)

    def computation(self) -> tuple[Computation, bool]:
        """``ENTRY name (parameters) -> shape { instructions }``, and whether it is the entry."""
        head = self.expect(_COMPUTATION, "a computation, such as ENTRY main {")
        name, result = head[2], None
        if name in self.computations:
            self.fail("defined twice", head.start(2))
        if self.peek() == "(":
            self.balanced()
            self.expect(_ARROW, "'->' and a shape")
            result = self.shape()
        self.expect(_OPEN, "'{'")
        self.spend(1)
        shared = self.shares and not head[1] and name not in self.shown
        computation = self.shared(name) if shared else self.body(name)
        if result is not None and result != computation.root.shape:
            self.fail(f"{name} is said to give {result}, its root gives {computation.root.shape}", head.start(2))
        self.total += len(computation.instructions)
        if self.total > MOST_INSTRUCTIONS:
            self.fail(f"more than {MOST_INSTRUCTIONS:,} instructions", head.start(2))
        wrong = hlo.size_problem(computation, self.sizes, self.total)
        if wrong:
            self.fail(f"{name}: {wrong}", head.start(2))
        self.attributes()
        self.computations[name] = computation
        return computation, bool(head[1])

    def shared(self, name: str) -> Computation:
        """A computation with the instructions of an equal one, if the text has one before."""
        if self.at < self.searched:
            return self.body(name)
        end = self.text.find("\n}", self.at) + 2
        self.searched = end if end > 1 else len(self.text)
        body = self.text[self.at : end]
        form = self.form(body)
        equal = self.forms.get(form) if form else None
        if equal is not None:
            self.at, self.equal[name] = end, equal
            return replace(equal, name=name, names=tuple(_MADE.findall(_METADATA.sub("", body))))
        computation = self.body(name)
        if form and self.at == end:
            self.forms[form] = self.equal[name] = computation
        return computation

    def form(self, body: str) -> tuple[object, ...] | None:
        """All that a body says, its names replaced by numbers; None where it may show its names."""
        written = _METADATA.sub("", body)
        made = {made: number for number, made in enumerate(_MADE.findall(written))}
        names = _USED.findall(written)
        others = [self.equal.get(name) for name in names if name not in made]
        nameless = _USED.sub("%", written)
        words = {*_WORD.findall(nameless)}
        named = any(hlo.parts(word[:-1])[0] in _NAMED for word in words)
        if '"' in written or None in others or named or not words.isdisjoint(made):
            return None
        passes = ["transpose(" in body] if words.isdisjoint(_PRODUCTS) else _OP_NAME.findall(body)
        return nameless, tuple(made.get(name, -1) for name in names), tuple(others), tuple(passes)

    def body(self, name: str) -> Computation:
        """The instructions up to ``}``."""
        defined: dict[str, Instruction] = {}
        root: Instruction | None = None
        while not self.taken("}"):
            head = self.expect(_INSTRUCTION, "an instruction, such as x = f32[] parameter(0), or '}'")
            if head[2] in defined:
                self.fail("defined twice", head.start(2))
            if self.total + len(defined) >= MOST_INSTRUCTIONS:
                self.fail(f"more than {MOST_INSTRUCTIONS:,} instructions", head.start(2))
            instruction = self.instruction(head[2], defined)
            defined[head[2]] = instruction
            if head[1]:
                if root is not None:
                    self.fail(f"a second ROOT; {root.name} is one", head.start(2))
                root = instruction
        if not defined:
            self.fail(f"{name} has no instructions", self.at - 1)
        instructions = tuple(defined.values())
        numbers = sorted(int(instruction.argument) for instruction in instructions if instruction.opcode == "parameter")
        if numbers != list(range(len(numbers))):
            listed = ", ".join(map(str, numbers))
            self.fail(f"{name}: expected parameters numbered from 0 on, got {listed}", self.at - 1)
        return Computation(name, instructions, root or instructions[-1], tuple(defined))

    def instruction(self, name: str, defined: dict[str, Instruction]) -> Instruction:
        """Instruction from its shape on: the text after ``name =``."""
        shape = self.shape()
        opcode = self.expect(_OPCODE, "an instruction and its operands")
        if opcode[1] not in hlo.KNOWN and hlo.parts(opcode[1])[0] not in hlo.KNOWN:
            self.fail(f"unknown instruction{suggestion(opcode[1], hlo.KNOWN)}", opcode.start(1))
        argument, operands = "", tuple[Instruction, ...]()
        if opcode[1] in ("constant", "parameter"):
            argument = self.argument(opcode[1])
        else:
            operands = self.operands(defined)
        start = self.at
        attributes = self.attributes()
        called = self.called(attributes, start)
        instruction = Instruction(name, shape, opcode[1], operands, argument, attributes, called)
        self.spend(hlo.work_units(instruction, self.devices))
        wrong = problem(instruction)
        if wrong:
            self.fail(wrong, opcode.start(1))
        equal = tuple(self.equal.get(computation.name, computation) for computation in called)
        return replace(instruction, called=equal) if called else instruction

    def argument(self, opcode: str) -> str:
        """The number of a parameter, or the literal of a constant as it is written."""
        start = self.at
        argument = self.balanced()[1:-1].strip()
        if opcode == "parameter" and not argument.isdecimal():
            self.fail("expected the number of a parameter", start + 1)
        return argument

    def operands(self, defined: dict[str, Instruction]) -> tuple[Instruction, ...]:
        """``(f32[2] a, b)``: names, with or without their shapes."""
        start, plain = self.at, self.match(_NAMES)
        names = [name.strip().removeprefix("%") for name in plain[1].split(",")] if plain else [""]
        if all(map(defined.__contains__, names)):
            return tuple(map(defined.__getitem__, names))
        operands: list[Instruction] = []
        self.at = start + 1
        while not self.taken(")"):
            if operands and not self.taken(","):
                self.fail("expected ',' or ')'")
            start = self.skip_space()
            shape: Shape | None = None
            operand_match = self.match(_OPERAND)
            if operand_match is None:
                shape = self.shape()
                operand_match = self.expect(_OPERAND, "the name of an operand")
            operand = defined.get(operand_match[1])
            if operand is None:
                self.fail("used, but not defined before", operand_match.start(1))
            if shape is not None and shape != operand.shape:
                self.fail(f"{operand.name} is {operand.shape}, not {shape}", start)
            operands.append(operand)
        return tuple(operands)

    def attributes(self) -> dict[str, str]:
        """Any number of ``, key=value``."""
        attributes = dict[str, str]()
        while attribute := self.match(_ATTRIBUTE):
            if attribute[1] in attributes:
                self.fail("given twice", attribute.start(1))
            attributes[attribute[1]] = self.value()
        return attributes

    def value(self) -> str:
        """The value of an attribute: a string without its quotes, else the text up to a comma or a blank."""
        start = self.at
        if self.peek() == '"':
            return self.balanced()[1:-1]
        if self.match(_MESH):
            self.skip_space()
        while self.match(_PIECES) or self.text[self.at : self.at + 1] in ("{", "[", "(", '"'):
            if self.text[self.at : self.at + 1] in ("{", "[", "(", '"'):
                self.balanced()
        if self.at == start:
            self.fail("expected a value")
        return self.text[start : self.at]

    def called(self, attributes: dict[str, str], at: int) -> tuple[Computation, ...]:
        """The computations that attributes name."""
        called: list[Computation] = []
        for key in hlo.TABLES["callees"].split():
            for name in _CALLEE.findall(attributes[key]) if key in attributes else ():
                if name not in self.computations:
                    end = self.text.find(name, at)
                    self.fail(f"{key} names a computation that is not defined before", end)
                called.append(self.computations[name])
        return tuple(called)
