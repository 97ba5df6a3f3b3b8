"""Data flow: the sources of every instruction, through tuples, calls, fusions and around loops.

`graph` has the dependencies of kernels; here fusions are opened, an array that a loop carries is its initial value or
the one that the loop's body makes, and a choice has the values of all of its branches.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Final, TypeAlias, TypeVar, cast

from dse.adapters.xla.text import module as hlo
from dse.adapters.xla.text.module import Computation, Instruction, Module, Shape
from dse.adapters.xla.work.kernel_graph import HloGraph
from dse.adapters.xla.work.matrix_products import is_product

#: Opcode of a step for an array that a loop carries, and for the value of a choice.
CARRIED, CHOSEN = "carried", "chosen"
#: Instructions that give a separate array for each operand.
_ONE_BY_ONE: Final = frozenset(("all-reduce", "all-gather", "reduce-scatter", "collective-permute"))
_NOTHING: Final = frozenset(("after-all", "iota"))
#: Instructions whose result has the values of their operand, converted or in another layout.
SAME_VALUES: Final = frozenset(("bitcast", "broadcast", "convert", "copy", "reshape", "transpose"))


@dataclass(slots=True, eq=False)
class FlowStep:
    """Part of an instruction that makes one array, and its operands."""

    kernel: int | None  #: that it is part of; None where it is of none
    opcode: str  #: without the ending of an asynchronous pair; or `CARRIED`, `CHOSEN`
    shape: Shape
    instruction: Instruction
    output: int  #: which of its instruction's arrays it is
    reads: tuple[Source, ...]
    loops: tuple[str, ...]  #: around it, the outermost first
    body: tuple[str, ...] = ()  #: of a carried array: including that loop

    @property
    def operands(self) -> list[FlowStep]:
        """Steps among its operands, parameters and constants left out."""
        return [source for source in self.reads if isinstance(source, FlowStep)]


#: A step, a parameter of the program or a constant, or None for other values that no kernel makes.
Source: TypeAlias = "FlowStep | Instruction | None"
#: Steps, parameters, or both.
AnySource = TypeVar("AnySource", bound=Source)
_Value: TypeAlias = "Source | tuple[_Value, ...]"


def behind(source: Source) -> Source:
    """The value before conversions, layout changes, slices that are joined again, and loops that carry it unchanged."""
    while isinstance(source, FlowStep):
        unchanged = source.opcode == CARRIED and len(source.reads) == 1 and source.body
        if not unchanged and source.opcode not in SAME_VALUES and not _is_joined(source):
            break
        source = source.operands[0].reads[0] if source.opcode == "custom-call" else source.reads[0]
    return source


def _is_joined(step: FlowStep) -> bool:
    """True if a call of the compiler joins slices with the array that they were cut from, after it moved them."""
    if step.opcode != "custom-call" or any(operand.opcode != "slice" for operand in step.operands):
        return False
    wholes = {operand.reads[0]: operand.instruction.operands[0].shape.size for operand in step.operands}
    return (
        len(step.operands) == len(step.reads)
        and list(wholes.values()) == [step.shape.size] == [sum(operand.shape.size for operand in step.operands)]
    )  # fmt: skip


@dataclass(slots=True, eq=False)
class Flow:
    """Steps, each after its operands except values carried around a loop, and the results of the program."""

    steps: Sequence[FlowStep]
    root: Sequence[Source]

    def after(self, marks: Mapping[AnySource, int], *, again: bool = True) -> dict[Source, int]:
        """Marks, as bits, on everything that depends on the marked steps and parameters, and on themselves.

        With `again`, a value that a loop carries depends on the result of its body, else on the first run alone.
        """
        marks_of: dict[Source, int] = dict(marks.items())
        changed = True
        while changed:
            changed = False
            for step in self.steps:
                old = bits = marks_of.get(step, 0)
                for source in step.reads:
                    bits |= marks_of.get(source, 0)
                if bits != old:
                    marks_of[step] = bits
                    changed = again
        return marks_of


def flow(module: Module, graph: HloGraph) -> Flow:
    """Steps of a module's entry and of all that it runs, each a part of one of its kernels."""
    places = {kernel.name: index for index, kernel in enumerate(graph.kernels)}
    walk = _Walk(places, share=hlo.repeated_instructions(module) > 0)
    parameters = [hlo.shaped(parameter.shape, repeat(parameter)) for parameter in module.entry.parameters]
    return Flow(walk.steps, list(hlo.arrays_of(walk.run(module.entry, parameters, _Around()))))


@dataclass(frozen=True, slots=True)
class _Around:
    """Calls, loops and the kernel that stand around instructions."""

    path: str = ""  #: names of calls, the outermost first
    kernel: int | None = None  #: a fusion that is a kernel, by its place
    loops: tuple[str, ...] = ()  #: the outermost first


@dataclass(slots=True)
class _Walk:
    """Goes through computations as the graph does, and through fusions too."""

    places: Mapping[str, int]  #: name of a kernel -> its place
    share: bool  #: whether a computation that runs often is gone through once
    steps: list[FlowStep] = field(default_factory=list)
    shared: dict[Computation, _Value] = field(default_factory=dict)

    def run(self, computation: Computation, arguments: Sequence[_Value], around: _Around) -> _Value:
        """Add the steps of a computation; returns the value of its root."""
        if computation in self.shared:
            return self.shared[computation]
        values: dict[Instruction, _Value] = {}
        for instruction in computation.instructions:
            operands = [values[operand] for operand in instruction.operands]
            if instruction.opcode == "parameter":
                values[instruction] = arguments[int(instruction.argument)]
            else:
                values[instruction] = self._value(instruction, operands, around)
        if self.share and around.kernel is None:
            self.shared[computation] = values[computation.root]
        return values[computation.root]

    def _value(self, instruction: Instruction, operands: Sequence[_Value], around: _Around) -> _Value:
        """Value that an instruction gives, with steps for the arrays that it makes."""
        opcode, part = hlo.parts(instruction.opcode)
        if opcode in _NOTHING or opcode == "constant":
            return cast(_Value, hlo.shaped(instruction.shape, repeat(None if opcode in _NOTHING else instruction)))
        if opcode == "get-tuple-element" or (instruction.shape.is_tuple and opcode in hlo.VIEWS | {"copy"}):
            return cast(_Value, hlo.viewed(instruction, operands))
        if part in ("update", "done"):
            whole = operands[0]
            return (whole[0], whole[-1]) if opcode == "recv" and isinstance(whole, tuple) else whole
        kernel = self.places.get(around.path + instruction.name) if around.kernel is None else around.kernel
        if opcode not in hlo.CALLING and opcode != "fusion":
            return self._made(instruction, opcode, operands, kernel, around.loops)
        inside = replace(around, path=f"{around.path}{instruction.name}/")
        if opcode == "fusion":
            return self.run(instruction.called[0], operands, replace(inside, kernel=kernel))
        if opcode in ("call", "async"):
            return self.run(instruction.called[0], operands, inside)
        if opcode == "while":
            return self._loop(instruction, operands[0], inside)
        return self._choice(instruction, operands, inside)

    def _made(
        self, made_by: Instruction, opcode: str, operands: Sequence[_Value], kernel: int | None, loops: tuple[str, ...]
    ) -> _Value:
        """A step for each array that an instruction gives."""
        reads, shape = list(hlo.arrays_of(tuple(operands))), hlo.output_shape(made_by)
        outputs = list(shape.leaves())
        apart = opcode in _ONE_BY_ONE and len(outputs) == len(reads)
        made = [
            FlowStep(kernel, opcode, leaf, made_by, output, (reads[output],) if apart else tuple(reads), loops)
            for output, leaf in enumerate(outputs)
        ]
        self.steps += made
        return cast(_Value, hlo.shaped(shape, iter(made)))

    def _loop(self, instruction: Instruction, first: _Value, inside: _Around) -> _Value:
        """A loop: each array that it carries is its initial value, or the one that the body makes."""
        condition, body = instruction.called
        carried = [
            FlowStep(None, CARRIED, shape, instruction, output, (source,), inside.loops)
            for output, (shape, source) in enumerate(zip(instruction.shape.leaves(), hlo.arrays_of(first), strict=True))
        ]
        self.steps += carried
        state = hlo.shaped(instruction.shape, iter(carried))
        inside = replace(inside, loops=(*inside.loops, inside.path))
        self.run(condition, [state], inside)
        last = self.run(body, [state], inside)
        made = list(hlo.arrays_of(last))
        changed = [behind(source) is not step for step, source in zip(carried, made, strict=True)]
        for step, source, is_new in zip(carried, made, changed, strict=True):
            step.body = inside.loops
            if is_new:
                step.reads = (*step.reads, source)
        for step in carried:  # values fetched again in each run from unchanged ones
            same = {behind(source) for source in step.reads}
            step.reads = step.reads[:1] if len(same) == 1 and None not in same else step.reads
        return last

    def _choice(self, instruction: Instruction, operands: Sequence[_Value], inside: _Around) -> _Value:
        """A choice: each array is the value of one of the branches."""
        by = tuple(hlo.arrays_of(operands[0]))
        given = [
            list(hlo.arrays_of(self.run(branch, [operand], inside)))
            for branch, operand in zip(instruction.called, operands[1:], strict=True)
        ]
        chosen = [
            FlowStep(None, CHOSEN, shape, instruction, output, (*by, *sources), inside.loops)
            for output, (shape, *sources) in enumerate(zip(instruction.shape.leaves(), *given, strict=True))
        ]
        self.steps += chosen
        return cast(_Value, hlo.shaped(instruction.shape, iter(chosen)))


#: Instructions that change the layout of, cut, join or pass on their operands.
MOVING: Final = SAME_VALUES.union(
    (CARRIED, CHOSEN),
    ("all-gather", "all-reduce", "all-to-all", "collective-broadcast", "collective-permute", "concatenate"),
    ("dynamic-slice", "dynamic-update-slice", "opt-barrier", "pad", "ragged-all-to-all"),
    ("reduce-precision", "reduce-scatter", "reverse", "select", "slice"),
)
#: Instructions that make sums of scaled arrays.
LINEAR: Final = MOVING | frozenset(("add", "subtract", "negate", "multiply", "divide"))
#: Calls that return their operands: of compilers, for schedules and placements.
_PASSING: Final = re.compile(
    r"async|sharding|full_?to_?shard|shard_?to_?full|move_?to|annotat|pin|bitcast|assume", re.IGNORECASE
)
#: Calls of libraries that multiply matrices, perhaps with other work.
_MULTIPLYING: Final = re.compile(r"gemm|matmul|conv|attention|fmha|triton", re.IGNORECASE)
_SORTING: Final = re.compile(r"top_?k|sort|partialreduce", re.IGNORECASE)


def passes_on(step: FlowStep) -> bool:
    """True if an operation is a call of the compiler that computes nothing."""
    return bool(_PASSING.search(hlo.custom_call_target(step.instruction)))


def multiplies(step: FlowStep) -> bool:
    """True if an operation is a matrix product, a convolution, or a library call with one.

    A library's product gives its scratch memory too, which is none.
    """
    if is_product(step.instruction):
        return step.output == 0
    return bool(_MULTIPLYING.search(hlo.custom_call_target(step.instruction))) and not passes_on(step)


def picks(step: FlowStep) -> bool:
    """True if an operation sorts, or finds the largest elements with their positions."""
    finds = step.opcode == "reduce" and len(step.instruction.operands) > 2
    return finds or step.opcode in ("sort", "topk") or bool(_SORTING.search(hlo.custom_call_target(step.instruction)))


def hands_on(step: FlowStep) -> bool:
    """True if an operation returns elements of its operand, possibly moved, or their sums over devices."""
    return step.opcode in MOVING or passes_on(step)


def elementwise(step: FlowStep) -> bool:
    """True if each output element depends on the operand elements at the same position."""
    return step.opcode in hlo.ARITHMETIC or step.opcode in hlo.TRANSCENDENTAL or step.opcode == "clamp"


def handed_on(step: FlowStep) -> Sequence[Source]:
    """Operands that an operation reads for their elements, not for positions."""
    if step.opcode in ("dynamic-slice", "pad"):
        return step.reads[:1]
    if step.opcode == "dynamic-update-slice":
        return step.reads[:2]
    return step.reads[1:] if step.opcode == "select" else step.reads


def summed(step: FlowStep) -> Sequence[Source]:
    """Operands that are a term, or the numerator, of a sum of scaled arrays; () for other operations.

    The value that a loop carries is the one that its body makes, if that differs.
    """
    if step.opcode == "divide":
        return step.reads[:1]
    if step.opcode == CARRIED:
        return step.reads[1:] or step.reads
    return handed_on(step) if step.opcode in LINEAR or passes_on(step) else ()


def collected(source: Source) -> bool:
    """True if an array is a number, or numbers side by side."""
    step = behind(source)
    if not isinstance(step, FlowStep):
        return False
    numbers = step.opcode == "concatenate" and all(
        isinstance(source, FlowStep) and source.shape.size <= 1 for source in step.reads
    )
    return step.shape.size <= 1 or numbers


def added_to(step: FlowStep) -> Source:
    """The operand that an operation adds its own result to: rows of a scatter, the third operand of a product."""
    if step.opcode in ("scatter", "dynamic-update-slice"):
        return step.reads[0]
    if step.opcode == "custom-call" and multiplies(step) and len(step.reads) > 2:
        return step.reads[2]
    return None


def is_constant(source: Source) -> bool:
    """True if an array is written in the program, or made of no data."""
    return source is None or (isinstance(source, Instruction) and source.opcode == "constant")


def square_factor(step: FlowStep) -> Source:
    """The array whose squares an operation sums, in one or several steps; None for other operations."""
    terms: Source = step
    while isinstance(terms, FlowStep) and terms.opcode in ("reduce", "reduce-window"):
        if terms.instruction.called[0].root.opcode != "add":
            break
        terms = behind(terms.reads[0])
    if not isinstance(terms, FlowStep) or terms.opcode not in (("dot",) if terms is step else ("multiply",)):
        return None
    first, second = (behind(source) for source in terms.reads[:2])
    return first if first == second else None
