"""Trip counts of loops for which the text gives none: a counter with a constant step and a constant limit.

An integer of a loop's state is followed through tuples, copies, conversions, fusions and calls. Its body
gives it with a constant added; the condition compares it with what the body leaves as it is. What the loop
starts with is looked up where it is called, in loops around it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

from costmodel.errors import DseError
from dse.adapters.xla.text.module import BITS, Computation, Instruction, Module
from dse.adapters.xla.work.matrix_products import backend_config

#: Where an array stands in a tuple of tuples.
Path: TypeAlias = "tuple[int, ...]"
#: Most digits of a count. [-]
MOST_DIGITS: Final = 18
#: Most steps by which integers of a module are followed. [-]
MOST_STEPS: Final = 300_000
#: Give their operand's values, perhaps in another type of integer or another layout.
_PASSING: Final = frozenset(("bitcast", "broadcast", "convert", "copy", "opt-barrier", "reshape"))
_MIRRORED: Final = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}


@dataclass(frozen=True, slots=True)
class _Term:
    """An integer: `scale` times an array of a loop's state, if any, and an offset."""

    offset: int
    low: int  #: the least that all types on its way can hold
    high: int
    state: Path | None = None
    scale: int = 0

    def plus(self, other: _Term, sign: int) -> _Term | None:
        """The sum, or the difference; None where two arrays of the state meet."""
        if self.state is not None and other.state is not None:
            return None
        state = other.state if self.state is None else self.state
        low, high = max(self.low, other.low), min(self.high, other.high)
        return _Term(self.offset + sign * other.offset, low, high, state, self.scale + sign * other.scale)

    def times(self, other: _Term) -> _Term | None:
        """The product; None where two arrays of the state meet."""
        if self.state is not None and other.state is not None:
            return None
        one, factor = (self, other.offset) if other.state is None else (other, self.offset)
        return replace(one, offset=one.offset * factor, scale=one.scale * factor)


#: Number of a computation's parameter, and a place in it -> what it is.
Parameters: TypeAlias = Callable[[int, Path], "_Term | None"]


def written_trip_count(loop: Instruction) -> int | None:
    """Trip count of a loop that the compiler wrote into its metadata. [-]

    Raises `DseError` if it noted something else than a number.
    """
    known = backend_config(loop).get("known_trip_count")
    if known is None:
        return None
    trips = known.get("n") if isinstance(known, dict) else known
    written = str(trips)
    if not (written.isascii() and written.isdecimal()) or len(written) > MOST_DIGITS:
        raise DseError(f"{loop.name}: known_trip_count: {written[:40]!r}: expected a whole number")
    return int(written)


def trip_counts(module: Module) -> dict[Instruction, int | None]:
    """Trip count of each loop of a module; None where the text does not tell. [-]"""
    counter = _Counter(module)
    return {each: counter.trips(each) for each in module.instructions if each.opcode == "while"}


class _Values:
    """Integers within one computation, its parameters given."""

    def __init__(self, counter: _Counter, parameters: Parameters) -> None:
        self.counter = counter
        self.parameters = parameters
        self._known: dict[tuple[Instruction, Path], _Term | None] = {}

    def of(self, instruction: Instruction, path: Path = ()) -> _Term | None:
        """An array of what an instruction gives; None where it is no integer that can be followed."""
        key = instruction, path
        if key not in self._known and self.counter.goes_on():
            self._known[key] = None  # of what would wait for itself
            self._known[key] = _held(instruction, path, self._found(instruction, path))
        return self._known.get(key)

    def _found(self, instruction: Instruction, path: Path) -> _Term | None:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "parameter":
            return self.parameters(int(instruction.argument), path)
        if opcode == "constant":
            return _constant(instruction)
        if opcode == "tuple":
            return self.of(operands[path[0]], path[1:])
        if opcode == "get-tuple-element":
            return self.of(operands[0], (int(instruction.attributes["index"]), *path))
        if opcode in _PASSING:
            return self.of(operands[0], path)
        if opcode == "copy-done":
            return self.of(operands[0].operands[0], path)
        if opcode in ("fusion", "call"):
            return self.within(instruction).of(instruction.called[0].root, path)
        if opcode == "while":
            kept = self.counter.state_after_body(instruction, path)
            return self.of(operands[0], path) if kept is not None and _is_kept(kept, path) else None
        if opcode in ("add", "subtract", "multiply"):
            a, b = map(self.of, operands)
            if a is None or b is None:
                return None
            return a.times(b) if opcode == "multiply" else a.plus(b, 1 if opcode == "add" else -1)
        return None

    def within(self, call: Instruction) -> _Values:
        """Integers of the computation that a fusion or a call runs."""
        return _Values(self.counter, lambda number, path: self.of(call.operands[number], path))

    def comparison(self, root: Instruction) -> tuple[str, _Term, _Term] | None:
        """The comparison of a condition: direction and both sides; None where it is not one comparison."""
        if root.opcode in ("bitcast", "copy", "reshape"):
            return self.comparison(root.operands[0])
        if root.opcode in ("fusion", "call"):
            return self.within(root).comparison(root.called[0].root)
        direction = root.attributes.get("direction", "")
        if root.opcode != "compare" or direction not in _MIRRORED:
            return None
        a, b = map(self.of, root.operands)
        return None if a is None or b is None else (direction, a, b)


class _Counter:
    """Counts the trips of loops."""

    def __init__(self, module: Module) -> None:
        self._callers: dict[Computation, list[tuple[Computation, Instruction]]] = {}
        self._homes = {each: home for home in module.computations for each in home.instructions}
        for each, home in self._homes.items():
            for called in each.called:
                self._callers.setdefault(called, []).append((home, each))
        self._steps = MOST_STEPS
        self._outside: dict[Computation, _Values] = {}
        self._inside: dict[Computation, _Values] = {}

    def goes_on(self) -> bool:
        """True if the limit of steps for following integers is not reached; counts a step."""
        self._steps -= 1
        return self._steps >= 0

    def trips(self, loop: Instruction) -> int | None:
        """Trip count of a loop. [-]"""
        written = written_trip_count(loop)
        if written is not None:
            return written
        try:
            return self._counted(loop)
        except RecursionError:
            return None  # too long a way to follow

    def _counted(self, loop: Instruction) -> int | None:
        condition = loop.called[0]
        compared = self._state(condition).comparison(condition.root)
        if compared is None:
            return None
        direction, *sides = compared
        lines = [self._line(loop, side) for side in sides]
        if lines[0] is None or lines[1] is None:
            return None
        (start, step), (limit, drift) = lines[0], lines[1]
        trips = _first_failure(direction, start - limit, step - drift)
        if trips is None or not all(
            side.low <= line[0] + line[1] * trips <= side.high
            for side, line in zip(sides, (lines[0], lines[1]), strict=True)
        ):
            return None  # it would wrap around
        return trips

    def _line(self, loop: Instruction, side: _Term) -> tuple[int, int] | None:
        """A side of a comparison before the first trip, and what each trip adds to it."""
        if side.state is None:
            return side.offset, 0
        after = self.state_after_body(loop, side.state)
        start = self._values(self._homes[loop]).of(loop.operands[0], side.state)
        before = self._state(loop.called[1]).parameters(0, side.state)
        if after is None or start is None or before is None:
            return None
        if replace(after, offset=0) != before:
            return None  # more than a constant is added, or a narrower type is passed through
        return side.scale * start.offset + side.offset, side.scale * after.offset

    def state_after_body(self, loop: Instruction, path: Path) -> _Term | None:
        """An array of a loop's state after a trip, by the state before it."""
        body = loop.called[1]
        return self._state(body).of(body.root, path)

    def _state(self, computation: Computation) -> _Values:
        """Integers of a loop's condition or body, by the state that it gets."""
        known = self._inside.get(computation)
        if known is None:
            whole = computation.parameters[0]

            def parameter(number: int, path: Path) -> _Term | None:
                return _held(whole, path, _Term(0, -(2**64), 2**64, path, 1))

            known = self._inside[computation] = _Values(self, parameter)
        return known

    def _values(self, computation: Computation) -> _Values:
        """Integers of a computation wherever it is called; those on which all callers agree."""
        known = self._outside.get(computation)
        if known is None:

            def parameter(number: int, path: Path) -> _Term | None:
                found = {self._given(*caller, number, path) for caller in self._callers.get(computation, ())}
                return found.pop() if len(found) == 1 else None

            known = self._outside[computation] = _Values(self, parameter)
        return known

    def _given(self, home: Computation, caller: Instruction, number: int, path: Path) -> _Term | None:
        """The value that a caller passes for a parameter, if it is a constant."""
        if caller.opcode == "while":
            after = self.state_after_body(caller, path)
            if after is None or not _is_kept(after, path):
                return None
        elif caller.opcode not in ("call", "fusion", "async-start"):
            return None
        return self._values(home).of(caller.operands[number], path)


def _is_kept(after: _Term, path: Path) -> bool:
    """True if a trip leaves an array of the state unchanged."""
    return (after.state, after.scale, after.offset) == (path, 1, 0)


def _held(instruction: Instruction, path: Path, term: _Term | None) -> _Term | None:
    """A term within what the type of an array can hold; None for another than one integer."""
    shape = instruction.shape
    for index in path:
        if index >= len(shape.elements):
            return None
        shape = shape.elements[index]
    if term is None or shape.is_tuple or shape.size != 1 or not re.fullmatch(r"[su]\d+", shape.dtype):
        return None
    bits = BITS[shape.dtype]
    lowest = -(2 ** (bits - 1)) if shape.dtype[0] == "s" or term.state is not None else 0
    offset = (term.offset - lowest) % 2**bits + lowest  # as it wraps around; what is added may be negative
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if shape.dtype[0] == "s" else (0, 2**bits - 1)
    return replace(term, offset=offset, low=max(term.low, low), high=min(term.high, high))


def _constant(instruction: Instruction) -> _Term | None:
    """A constant of one whole number."""
    found = re.fullmatch(r"[{\s]*(-?\d{1,20})[}\s]*", instruction.argument)
    return _Term(int(found[1]), -(2**64), 2**64) if found else None


def _first_failure(direction: str, start: int, step: int) -> int | None:
    """The first trip t for which start + t * step no longer compares with 0 as it should. [-]

    >>> _first_failure("LT", -10, 3), _first_failure("GE", 4, -2), _first_failure("NE", -9, 3)
    (4, 3, 3)
    """
    if direction in ("GT", "GE"):
        direction, start, step = _MIRRORED[direction], -start, -step
    if direction == "EQ":
        return 0 if start else 1 if step else None
    if direction == "NE":
        return 0 if start == 0 else -start // step if step and start % step == 0 and -start // step > 0 else None
    if start > 0 or (start == 0 and direction == "LT"):
        return 0
    if step <= 0:
        return None
    return -(start // step) if direction == "LT" else -start // step + 1
