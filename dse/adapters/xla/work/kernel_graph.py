"""The kernels of a module and what each waits for: tuples, views and asynchronous pairs seen through.

A computation that is called stands where the call is, a loop's body once with a count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any, Final, Literal, TypeAlias, TypeVar, cast

from costmodel.errors import DseError
from dse.adapters.xla.text.module import (
    COLLECTIVES,
    SOURCES,
    VIEWS,
    Computation,
    Instruction,
    Module,
    Shape,
    arrays_of,
    control_predecessors,
    parts,
    replaced,
    runs_of,
    shaped,
    unfolded_limit,
)
from dse.adapters.xla.work.cost_analysis import access, products_in, products_of_body
from dse.adapters.xla.work.matrix_products import Product
from dse.adapters.xla.work.trip_counts import trip_counts

#: What a tuple-shaped bitcast or a barrier means: each element passes on its own, or all wait for all.
Barriers = Literal["element", "barrier"]
BARRIERS: Final[tuple[Barriers, ...]] = ("element", "barrier")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One array: which kernel gives it, and what else has to be there before it may be read."""

    source: tuple[int, int] | None  #: kernel and which of its outputs; None for parameters and constants
    bytes: int  #: [B]
    waits: frozenset[int] = frozenset()  #: kernels
    parameter: int | None = None  #: of the program, where that gives it


Value: TypeAlias = "Leaf | tuple[Value, ...]"

Weight = TypeVar("Weight", bound=Any)  #: of a kernel in sums along chains


@dataclass(frozen=True, slots=True, eq=False)
class HloKernel:
    """A kernel of a device: an instruction, how often it runs, and what it reads."""

    name: str
    kind: str  #: "gemm", "collective", or the instruction
    count: int  #: runs per step: trips of the loops around it [-]
    instruction: Instruction
    products: tuple[Product, ...]
    reads: tuple[Leaf, ...]  #: arrays of its operands
    around: tuple[Instruction, ...] = ()  #: loops, calls and choices that run it, the outermost first
    uncounted: tuple[Instruction, ...] = ()  #: those loops among them whose trips are unknown and count once


@dataclass(frozen=True, slots=True)
class HloEdge:
    """A kernel waits for another: for an array of it, or without reading anything."""

    producer: int
    consumer: int
    output: int | None  #: which array of the producer
    bytes: int  #: [B]


@dataclass(frozen=True, slots=True, eq=False)
class HloGraph:
    """Kernels in an order in which they can run."""

    kernels: tuple[HloKernel, ...]
    edges: tuple[HloEdge, ...]
    root: tuple[Leaf, ...]  #: arrays that the program gives
    barriers: Barriers
    notes: tuple[str, ...]  #: what the text does not tell, and what was taken instead

    @property
    def pairs(self) -> set[tuple[int, int]]:
        """Distinct pairs of a kernel and one that waits for it."""
        return {(edge.producer, edge.consumer) for edge in self.edges}

    def before(self) -> list[list[int]]:
        """For each kernel, those it waits for."""
        before: list[list[int]] = [[] for _ in self.kernels]
        for producer, consumer in sorted(self.pairs):
            before[consumer].append(producer)
        return before

    def longest_path(self, weights: Sequence[Weight], larger: Callable[[Any, Any], Any] = max) -> Weight:
        """Largest sum of weights along a chain of kernels that wait for each other. [that of the weights]

        Weights are numbers, or arrays of equal shape with `np.maximum` as `larger`.
        """
        longest: list[Any] = []
        for weight, before in zip(weights, self.before(), strict=True):
            longest.append(weight + reduce(larger, (longest[place] for place in before), 0))
        return cast("Weight", reduce(larger, longest, 0))


def graph(module: Module, barriers: Barriers = "element") -> HloGraph:
    """The dataflow graph of a module's entry.

    `barriers` says how a tuple-shaped bitcast waits: "element" is pure data flow, in which a scheduler may move
    recomputation up to the forward pass; with "barrier" every element waits for all of the tuple. Raises `DseError` if
    a matrix product lacks attributes that its evaluation needs.
    """
    trips = trip_counts(module)
    total, runs = runs_of(module, trips)
    builder = _HloGraphBuilder(barriers, trips, runs if total > unfolded_limit(module) else {})
    if builder.runs:
        builder.notes.append(f"calls shared: {total:,} instructions run; each is listed once, with a count")
    parameters = [_given(each.shape, number) for number, each in enumerate(module.entry.parameters)]
    root = builder.run(module.entry, parameters, count=1, path="")
    return HloGraph(
        tuple(builder.kernels), tuple(builder.edges), tuple(arrays_of(root)), barriers, tuple(builder.notes)
    )


def has_barriers(module: Module) -> bool:
    """True if some instruction passes on a whole tuple, so that it may delay elements of it."""
    handing_on = VIEWS - {"tuple", "get-tuple-element"} | {"copy"}
    return any(each.shape.is_tuple and each.opcode in handing_on for each in module.instructions)


def _given(shape: Shape, parameter: int | None = None) -> Value:
    """The value of something that no kernel makes."""
    value: Value = shaped(shape, (Leaf(None, leaf.bytes, parameter=parameter) for leaf in shape.leaves()))
    return value


@dataclass(slots=True)
class _HloGraphBuilder:
    """Goes through computations in the order in which they run."""

    barriers: Barriers
    trips: Mapping[Instruction, int | None]  #: of loops
    runs: Mapping[Computation, int]  #: how often each runs, where what runs often is listed once; else none
    shared: dict[Computation, Value] = field(default_factory=dict)  #: what those that ran already give
    kernels: list[HloKernel] = field(default_factory=list)
    edges: list[HloEdge] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    around: list[Instruction] = field(default_factory=list)  #: what runs the kernels that are added now

    def run(self, computation: Computation, arguments: Sequence[Value], *, count: int, path: str) -> Value:
        """Add the kernels of a computation; the value of its root.

        One that runs so often that it is listed once gives what it gave the first time.
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
            self._control(instruction, made)
        if self.runs:
            self.shared[computation] = values[computation.root]
        return values[computation.root]

    def _value(self, instruction: Instruction, operands: Sequence[Value], count: int, path: str) -> Value:
        """The value of an instruction; a kernel is added for it if it is one."""
        opcode, part = parts(instruction.opcode)
        if opcode in SOURCES:
            return _given(instruction.shape)
        if opcode in VIEWS or (instruction.opcode == "copy" and instruction.shape.is_tuple):
            return self._seen_through(instruction, operands)
        if part in ("update", "done"):
            return _received(operands[0]) if opcode == "recv" else operands[0]
        if opcode in ("while", "conditional", "call", "async"):
            self.around.append(instruction)
            value = self._called(instruction, operands, count, path + instruction.name + "/")
            self.around.pop()
            return value
        return self._kernel(instruction, operands, count, path)

    def _seen_through(self, instruction: Instruction, operands: Sequence[Value]) -> Value:
        """The value of a view."""
        opcode = instruction.opcode
        if opcode == "tuple":
            return tuple(operands)
        if opcode == "get-tuple-element":
            whole = operands[0]
            assert not isinstance(whole, Leaf)  # the reader has checked
            return whole[int(instruction.attributes["index"])]
        if self.barriers == "barrier" and instruction.shape.is_tuple:
            own = list(arrays_of(operands[0]))
            sources = frozenset(leaf.source[0] for leaf in own if leaf.source)
            waits = sources.union(*(leaf.waits for leaf in own))
            value: Value = replaced(operands[0], lambda leaf: replace(leaf, waits=leaf.waits | waits))
            return value
        return operands[0]

    def _called(self, instruction: Instruction, operands: Sequence[Value], count: int, path: str) -> Value:
        """The value of a call, a loop or a conditional."""
        if instruction.opcode == "while":
            return self._loop(instruction, operands, count, path)
        if instruction.opcode == "conditional":
            branches = instruction.called
            taken = max(range(len(branches)), key=lambda place: _weight(branches[place]))
            self.notes.append(f"{path[:-1]}: the costliest of {len(branches)} branches is taken")
            return self.run(branches[taken], [operands[taken + 1]], count=count, path=path)
        return self.run(instruction.called[0], operands, count=count, path=path)

    def _loop(self, instruction: Instruction, operands: Sequence[Value], count: int, path: str) -> Value:
        """A loop: each kernel of its condition and body counts as often as the body runs."""
        trips = self.trips[instruction]
        if trips is None:
            self.notes.append(f"{path[:-1]}: trip count unknown; its body counts once")
        count *= 1 if trips is None else trips
        condition, body = instruction.called
        self.run(condition, operands, count=count, path=path)
        return self.run(body, operands, count=count, path=path)

    def _kernel(self, instruction: Instruction, operands: Sequence[Value], count: int, path: str) -> Value:
        """A kernel, and edges from those whose arrays it reads."""
        place = len(self.kernels)
        reads = tuple(leaf for operand in operands for leaf in arrays_of(operand))
        products = tuple(products_in(instruction))
        opcode = parts(instruction.opcode)[0]
        kind = "gemm" if products else "collective" if opcode in COLLECTIVES else opcode
        name, around = path + instruction.name, tuple(self.around)
        uncounted = tuple(each for each in around if each.opcode == "while" and self.trips[each] is None)
        self.kernels.append(HloKernel(name, kind, count, instruction, products, reads, around, uncounted))
        arrays = {leaf.source: leaf.bytes for leaf in reads if leaf.source}
        self.edges += [HloEdge(kernel, place, output, moved) for (kernel, output), moved in arrays.items()]
        waits = frozenset[int]().union(*(leaf.waits for leaf in reads)) - {kernel for kernel, _ in arrays}
        self.edges += [HloEdge(kernel, place, None, 0) for kernel in sorted(waits)]
        shape = output_shape(instruction)
        made: Value = shaped(shape, (Leaf((place, n), leaf.bytes) for n, leaf in enumerate(shape.leaves())))
        return made

    def _control(self, instruction: Instruction, made: Mapping[str, range]) -> None:
        """Edges from the kernels that an instruction must wait for without reading them."""
        for name in control_predecessors(instruction):
            if name not in made:
                raise DseError(f"{instruction.name}: control-predecessors: {name} is not defined before")
            for before, after in zip(made[name][-1:], made[instruction.name][:1], strict=False):
                self.edges.append(HloEdge(before, after, None, 0))


def output_shape(instruction: Instruction) -> Shape:
    """Shape of an instruction's output; of an asynchronous pair the result without the rest of its state."""
    opcode, part = parts(instruction.opcode)
    elements = instruction.shape.elements
    if part != "start" or len(elements) < 2 or opcode == "all-reduce":
        return instruction.shape
    return elements[0 if opcode == "copy" else 1]


def _received(value: Value) -> Value:
    """The data and the token of a `recv`, whose state holds a number between them."""
    return value if isinstance(value, Leaf) else (value[0], value[-1])


def _weight(computation: Computation) -> tuple[int, int]:
    """The cost of a branch that decides which one is larger: matrix products, then traffic. [FLOP], [B]"""
    flops = sum(product.flops for product in products_of_body(computation))
    return flops, sum(access(each).total for each in computation.instructions)
