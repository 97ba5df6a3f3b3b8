"""The kernels of a module and their dependencies, through tuples, views and asynchronous pairs.

A computation that is called stands where the call is, a loop's body once with a count.

Where the text gives no count, a counter with a constant step and a constant limit does. An integer of a loop's state is
followed through tuples, copies, conversions, fusions and calls. Its body gives it with a constant added; the condition
compares it with a value that the body does not change. Its first value comes from the call, in loops around it too.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal, TypeAlias, TypeVar

from costmodel.columns import grouped
from costmodel.errors import DseError
from dse.adapters.xla.text import module as hlo
from dse.adapters.xla.text.module import Computation, Instruction, Module, Shape
from dse.adapters.xla.work.cost_analysis import access
from dse.adapters.xla.work.matrix_products import Product, backend_config, products_in

#: Position of an array in a tuple of tuples.
Path: TypeAlias = "tuple[int, ...]"
#: Most digits of a count. [-]
MOST_DIGITS: Final = 18
#: Most steps by which integers of a module are followed. [-]
MOST_STEPS: Final = 300_000
#: Give their operand's values, perhaps in another type of integer or another layout.
_PASSING: Final = frozenset(("bitcast", "broadcast", "convert", "copy", "opt-barrier", "reshape"))
_ARITHMETIC: Final = {"add": int.__add__, "subtract": int.__sub__, "multiply": int.__mul__}
_MIRRORED: Final = {"LT": "GT", "LE": "GE", "GT": "LT", "GE": "LE", "EQ": "EQ", "NE": "NE"}


#: Number of a computation's parameter, and a position in it -> its value.
Parameters: TypeAlias = Callable[[int, Path], "int | None"]


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
    return {
        instruction: counter.trips(instruction) for instruction in module.instructions if instruction.opcode == "while"
    }


class _Integers:
    """Integers within one run of a computation, its parameters given."""

    def __init__(self, counter: _Counter, parameters: Parameters) -> None:
        self.counter = counter
        self.parameters = parameters
        self._known: dict[tuple[Instruction, Path], int | None] = {}

    def of(self, instruction: Instruction, path: Path = ()) -> int | None:
        """An array of an instruction's value; None where it is not an integer that can be followed."""
        key = instruction, path
        if key not in self._known and self.counter.goes_on():
            self._known[key] = None  # of a value that depends on itself
            self._known[key] = _held(instruction.shape, path, self._found(instruction, path))
        return self._known.get(key)

    def _found(self, instruction: Instruction, path: Path) -> int | None:
        opcode, operands = instruction.opcode, instruction.operands
        if opcode == "parameter":
            return self.parameters(int(instruction.argument), path)
        if opcode == "constant":
            match = re.fullmatch(r"[{\s]*(-?\d{1,20})[}\s]*", instruction.argument)
            return int(match[1]) if match else None
        if opcode == "tuple":
            return self.of(operands[path[0]], path[1:]) if path else None
        if opcode == "get-tuple-element":
            return self.of(operands[0], (int(instruction.attributes["index"]), *path))
        if opcode in _PASSING:
            return self.of(operands[0], path)
        if opcode == "copy-done":
            return self.of(operands[0].operands[0], path)
        if opcode in ("fusion", "call"):
            return self.within(instruction).of(instruction.called[0].root, path)
        if opcode == "while":
            return self.counter.kept(instruction, path, self.of(operands[0], path))
        if opcode in _ARITHMETIC:
            a, b = map(self.of, operands)
            return None if a is None or b is None else _ARITHMETIC[opcode](a, b)
        return None

    def within(self, call: Instruction) -> _Integers:
        """Integers of the computation that a fusion or a call runs."""
        return _Integers(self.counter, lambda number, path: self.of(call.operands[number], path))

    def comparison(self, root: Instruction) -> tuple[str, int] | None:
        """The comparison of a condition: direction, and the left side less the right one; None where it is not one."""
        if root.opcode in ("bitcast", "copy", "reshape"):
            return self.comparison(root.operands[0])
        if root.opcode in ("fusion", "call"):
            return self.within(root).comparison(root.called[0].root)
        direction = root.attributes.get("direction", "")
        if root.opcode != "compare" or direction not in _MIRRORED:
            return None
        a, b = map(self.of, root.operands)
        return None if a is None or b is None else (direction, a - b)


class _Counter:
    """Counts the trips of loops."""

    def __init__(self, module: Module) -> None:
        self._homes = {instruction: home for home in module.computations for instruction in home.instructions}
        self._callers = grouped((called, caller) for caller in self._homes for called in caller.called)
        self._steps = MOST_STEPS
        self._outside: dict[Computation, _Integers] = {}

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
            return _CountedLoop(self, loop).trips()
        except RecursionError:
            return None  # too long a way to follow

    def kept(self, loop: Instruction, path: Path, before: int | None) -> int | None:
        """An array of a loop's state after the loop, by its value before; None unless trips leave it unchanged."""
        alone = _Integers(self, lambda number, other: before if other == path else None)
        return before if before is not None and alone.of(loop.called[1].root, path) == before else None

    def around(self, instruction: Instruction) -> _Integers:
        """Integers of the computation of an instruction, wherever it is called; those on which all callers agree."""
        home = self._homes[instruction]
        if home not in self._outside:

            def parameter(number: int, path: Path) -> int | None:
                values_given = {self._given(caller, number, path) for caller in self._callers.get(home, ())}
                return values_given.pop() if len(values_given) == 1 else None

            self._outside[home] = _Integers(self, parameter)
        return self._outside[home]

    def _given(self, caller: Instruction, number: int, path: Path) -> int | None:
        """The value that a caller passes for a parameter, if it is a constant."""
        if caller.opcode not in ("while", "call", "fusion", "async-start"):
            return None
        value = self.around(caller).of(caller.operands[number], path)
        return self.kept(caller, path, value) if caller.opcode == "while" else value


class _CountedLoop:
    """A loop in whose state each trip adds constants to integers, as far as its condition depends on them.

    The first trip shows the constants; the last one, which follows from them, has to add the same.
    """

    def __init__(self, counter: _Counter, loop: Instruction) -> None:
        self.counter = counter
        self.loop = loop
        self.read: set[Path] = set()  #: arrays of the state that decide

    def trips(self) -> int | None:
        """Trip count of the loop. [-]"""
        condition, body = (computation.root for computation in self.loop.called)
        first, second = (self._integers(trip).comparison(condition) for trip in (0, 1))
        if first is None:
            return None
        direction, start = first
        trips = _first_failure(direction, start, second[1] - start if second else 0)
        if not trips or second is None:
            return trips
        last = self._integers(trips - 1)
        steady = all(last.of(body, path) == self._state(trips, 0, path) for path in self.read)
        ends_so = self._integers(trips).comparison(condition) == (direction, start + trips * (second[1] - start))
        return trips if steady and ends_so else None

    def _integers(self, trip: int) -> _Integers:
        """Integers of the condition and of the body after some trips."""
        return _Integers(self.counter, partial(self._state, trip))

    def _state(self, trip: int, number: int, path: Path) -> int | None:
        """An array of the state after some trips; None where it is unknown or would wrap around."""
        self.read.add(path)
        start = self.counter.around(self.loop).of(self.loop.operands[0], path)
        after = start if trip == 0 else self._integers(0).of(self.loop.called[1].root, path)
        if start is None or after is None:
            return None
        value = start + trip * (after - start)
        bits = hlo.BITS[_element(self.loop.shape, path).dtype]
        is_step = -(2 ** (bits - 1)) <= after - start < 2 ** (bits - 1)
        return value if is_step and _held(self.loop.shape, path, value) == value else None


def _element(shape: Shape, path: Path) -> Shape:
    """The array at a position of a tuple of tuples; the last tuple on the way where there is none."""
    return _element(shape.elements[path[0]], path[1:]) if path and path[0] < len(shape.elements) else shape


def _held(shape: Shape, path: Path, value: int | None) -> int | None:
    """An integer as an array's type holds it, wrapped around; None unless the array is one integer."""
    array = _element(shape, path)
    if value is None or array.is_tuple or array.size != 1 or not re.fullmatch(r"[su]\d+", array.dtype):
        return None
    low = -(2 ** (hlo.BITS[array.dtype] - 1)) if array.dtype[0] == "s" else 0
    held: int = (value - low) % 2 ** hlo.BITS[array.dtype] + low
    return held


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


#: Meaning of a tuple-shaped bitcast or a barrier: each element passes separately, or all wait for all.
Barriers = Literal["element", "barrier"]
BARRIERS: Final[tuple[Barriers, ...]] = ("element", "barrier")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array: the kernel that gives it, and other kernels that must end before it may be read."""

    source: tuple[int, int] | None  #: kernel and which of its outputs; None for parameters and constants
    bytes: int  #: [B]
    waits: frozenset[int] = frozenset()  #: kernels
    parameter: Instruction | None = None  #: of the program, where that gives it


Value: TypeAlias = "Leaf | tuple[Value, ...]"

Number = TypeVar("Number", int, float)


@dataclass(frozen=True, slots=True, eq=False)
class HloKernel:
    """A kernel of a device: an instruction, its number of runs, and its operands."""

    name: str
    kind: str  #: "gemm", "collective", or the instruction
    count: int  #: runs per step: trips of the loops around it [-]
    instruction: Instruction
    products: tuple[Product, ...]
    reads: tuple[Leaf, ...]  #: arrays of its operands
    around: tuple[Instruction, ...] = ()  #: loops, calls and choices that run it, the outermost first
    uncounted: tuple[Instruction, ...] = ()  #: those loops among them whose trips are unknown and count once


@dataclass(frozen=True, slots=True, eq=False)
class HloGraph:
    """Kernels in an order in which they can run."""

    kernels: tuple[HloKernel, ...]
    edges: Set[tuple[int, int]]  #: a kernel, and one that waits for it
    held: Set[tuple[int, int]]  #: further ones where barriers synchronize all their operands
    trips: Mapping[Instruction, int | None]  #: of each loop; None where the text does not tell [-]
    notes: tuple[str, ...]  #: quantities that the text does not give, and the values assumed

    def longest_path(self, weights: Sequence[Number]) -> Number:
        """Largest sum of weights along a chain of kernels that wait for each other. [that of the weights]"""
        before: list[set[int]] = [set() for _ in self.kernels]
        for producer, consumer in self.edges:
            before[consumer].add(producer)
        longest: list[Number] = []
        for weight, producers in zip(weights, before, strict=True):
            longest.append(weight + max((longest[producer] for producer in producers), default=0))
        return max(longest, default=0)


def graph(module: Module) -> HloGraph:
    """The dataflow graph of a module's entry.

    Its edges are pure data flow, in which a scheduler may move recomputation up to the forward pass. With those of
    `held`, each element of a tuple-shaped bitcast waits for all of the tuple. Raises `DseError` if a matrix product
    lacks attributes that its evaluation needs.
    """
    trips, repeated = trip_counts(module), hlo.repeated_instructions(module)
    builder = _HloGraphBuilder(trips, hlo.runs_of(module, trips) if repeated else {})
    if repeated:
        builder.notes.append(f"calls shared: {repeated:,} instructions run; each is listed once, with a count")
    parameters = [_given(parameter.shape, parameter) for parameter in module.entry.parameters]
    builder.run(module.entry, parameters, count=1, path="")
    return HloGraph(tuple(builder.kernels), builder.edges, builder.held, trips, tuple(builder.notes))


def _given(shape: Shape, parameter: Instruction | None = None) -> Value:
    """The value of something that no kernel makes."""
    value: Value = hlo.shaped(shape, (Leaf(None, leaf.bytes, parameter=parameter) for leaf in shape.leaves()))
    return value


@dataclass(slots=True)
class _HloGraphBuilder:
    """Goes through computations in the order in which they run."""

    trips: Mapping[Instruction, int | None]  #: of loops
    runs: Mapping[Computation, int]  #: runs of each, where a computation that runs often is listed once; else none
    shared: dict[Computation, Value] = field(default_factory=dict)  #: values of computations that already ran
    kernels: list[HloKernel] = field(default_factory=list)
    edges: set[tuple[int, int]] = field(default_factory=set)
    held: set[tuple[int, int]] = field(default_factory=set)  #: from kernels that only barriers wait for
    notes: list[str] = field(default_factory=list)
    around: list[Instruction] = field(default_factory=list)  #: instructions that run the kernels added now

    def run(self, computation: Computation, arguments: Sequence[Value], *, count: int, path: str) -> Value:
        """Add the kernels of a computation; the value of its root.

        A computation that is listed once because it runs often returns its first value again.
        """
        if computation in self.shared:
            return self.shared[computation]
        count = self.runs.get(computation, count)
        values: dict[Instruction, Value] = {}
        made: dict[str, range] = {}  # instruction -> its kernels
        for instruction in computation.instructions:
            first = len(self.kernels)
            operands = [values[operand] for operand in instruction.operands]
            if instruction.opcode == "parameter":
                values[instruction] = arguments[int(instruction.argument)]
            else:
                values[instruction] = self._value(instruction, operands, count, path)
            made[instruction.name] = range(first, len(self.kernels))
            for name in hlo.control_predecessors(instruction):
                if name not in made:
                    raise DseError(f"{instruction.name}: control-predecessors: {name} is not defined before")
                self.edges.update(zip(made[name][-1:], made[instruction.name][:1], strict=False))
        if self.runs:
            self.shared[computation] = values[computation.root]
        return values[computation.root]

    def _value(self, instruction: Instruction, operands: Sequence[Value], count: int, path: str) -> Value:
        """The value of an instruction; a kernel is added for it if it is one."""
        opcode, part = hlo.parts(instruction.opcode)
        if opcode in hlo.SOURCES:
            return _given(instruction.shape)
        if opcode in hlo.VIEWS or (instruction.opcode == "copy" and instruction.shape.is_tuple):
            return self._seen_through(instruction, operands)
        if part in ("update", "done"):
            state = operands[0]  # of a `recv` its data, a number, and its token
            return (state[0], state[-1]) if opcode == "recv" and not isinstance(state, Leaf) else state
        if opcode in hlo.CALLING:
            self.around.append(instruction)
            value = self._called(instruction, operands, count, path + instruction.name + "/")
            self.around.pop()
            return value
        return self._kernel(instruction, operands, count, path)

    def _seen_through(self, instruction: Instruction, operands: Sequence[Value]) -> Value:
        """The value of a view."""
        value: Value = hlo.viewed(instruction, operands)
        if instruction.opcode in ("tuple", "get-tuple-element") or not instruction.shape.is_tuple:
            return value
        arrays = list(hlo.arrays_of(value))
        waits = frozenset(leaf.source[0] for leaf in arrays if leaf.source).union(*(leaf.waits for leaf in arrays))
        held: Value = hlo.replaced(value, lambda leaf: replace(leaf, waits=waits))
        return held

    def _called(self, instruction: Instruction, operands: Sequence[Value], count: int, path: str) -> Value:
        """The value of a call, a loop or a conditional."""
        if instruction.opcode == "while":
            return self._loop(instruction, operands, count, path)
        if instruction.opcode == "conditional":
            branches = instruction.called
            taken = max(range(len(branches)), key=lambda number: _weight(branches[number]))
            self.notes.append(f"{path[:-1]}: the costliest of {len(branches)} branches is taken")
            return self.run(branches[taken], [operands[taken + 1]], count=count, path=path)
        return self.run(instruction.called[0], operands, count=count, path=path)

    def _loop(self, instruction: Instruction, operands: Sequence[Value], count: int, path: str) -> Value:
        """A loop: each kernel of its condition and body counts once for each run of the body."""
        trips = self.trips[instruction]
        if trips is None:
            self.notes.append(f"{path[:-1]}: trip count unknown; its body counts once")
        count *= 1 if trips is None else trips
        condition, body = instruction.called
        self.run(condition, operands, count=count, path=path)
        return self.run(body, operands, count=count, path=path)

    def _kernel(self, instruction: Instruction, operands: Sequence[Value], count: int, path: str) -> Value:
        """A kernel, and edges from those whose arrays it reads."""
        number = len(self.kernels)
        reads = tuple(leaf for operand in operands for leaf in hlo.arrays_of(operand))
        products = tuple(products_in(instruction))
        opcode = hlo.parts(instruction.opcode)[0]
        kind = "gemm" if products else "collective" if opcode in hlo.COLLECTIVES else opcode
        name, around = path + instruction.name, tuple(self.around)
        uncounted = tuple(loop for loop in around if loop.opcode == "while" and self.trips[loop] is None)
        self.kernels.append(HloKernel(name, kind, count, instruction, products, reads, around, uncounted))
        self.edges.update((leaf.source[0], number) for leaf in reads if leaf.source)
        self.held.update((kernel, number) for leaf in reads for kernel in leaf.waits)
        shape = hlo.output_shape(instruction)
        made: Value = hlo.shaped(shape, (Leaf((number, n), leaf.bytes) for n, leaf in enumerate(shape.leaves())))
        return made


def _weight(computation: Computation) -> tuple[int, int]:
    """The cost of a branch that decides which one is larger: matrix products, then traffic. [FLOP], [B]"""
    flops = sum(product.flops for instruction in computation.instructions for product in products_in(instruction))
    return flops, sum(access(instruction).total for instruction in computation.instructions)
