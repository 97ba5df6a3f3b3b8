"""When each array of a program is made and last read, its size, and the arrays that share memory.

Calls and loops are written out in order. XLA's rules of aliases give the outputs of an instruction that are, or may be,
in the memory of one of its operands.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import accumulate, pairwise
from math import ceil, prod
from typing import Final, TypeAlias

import numpy as np

from costmodel.columns import FloatArray, grouped
from costmodel.errors import DseError
from dse.adapters.xla.text import module as hlo
from dse.adapters.xla.text.module import Computation, Instruction, Module, Shape

#: Output -> array among those that are read, each numbered through tuples in order.
InPlace = dict[int, int]

ALIAS: Final = re.compile(r"\{([\d,\s]*)\}\s*:\s*\(\s*(\d+)\s*(?:,\s*\{([\d,\s]*)\})?")

#: Element of an output from the same element of an operand.
ELEMENTWISE: Final = (hlo.ARITHMETIC | hlo.TRANSCENDENTAL | {"copy", "map"}) - {"rng", "rng-bit-generator"}


def overwritten(instruction: Instruction) -> InPlace:
    """Outputs that must lie in an operand's memory.

    Updates of slices, scatters and reductions over devices overwrite the updated operand, also as the last instruction
    of a fusion; other outputs where ``output_to_operand_aliasing`` has them.
    """
    opcode = hlo.parts(instruction.opcode)[0]
    in_place: InPlace = {}
    if opcode == "fusion":
        in_place = _fusion_updates(instruction.called[0])
    elif opcode in ("dynamic-update-slice", "set-dimension-size"):
        in_place = {0: 0}
    elif opcode == "scatter":
        in_place = {position: position for position in range((len(instruction.operands) - 1) // 2)}
    elif opcode == "all-reduce":
        in_place = {position: position for position in range(len(instruction.operands))}
    elif (opcode == "collective-permute" and len(instruction.operands) == 4) or opcode == "ragged-all-to-all":
        in_place = {0: hlo.array_count(instruction.operands[:1])}
    return in_place | written_aliases(instruction)


def written_aliases(instruction: Instruction) -> InPlace:
    """Outputs that the text lays into an operand's memory.

    Raises `DseError` if it names an operand that is not there.
    """
    aliases = {}
    for written, operand, _ in ALIAS.findall(instruction.attributes.get("output_to_operand_aliasing", "")):
        if int(operand) >= len(instruction.operands):
            raise DseError(f"{instruction.name}: output_to_operand_aliasing: there is no operand {operand}")
        first = _path(written)[:1] or (0,)
        aliases[first[0]] = hlo.array_count(instruction.operands[: int(operand)])
    return aliases


def _fusion_updates(body: Computation) -> InPlace:
    """Outputs of a fusion that update one of its parameters in place."""
    roots = body.root.operands if body.root.opcode == "tuple" else (body.root,)
    updated = ((output, _updated(root)) for output, root in enumerate(roots))
    return {
        output: hlo.array_count(body.parameters[: int(array.argument)])
        for output, array in updated
        if array is not None and array.opcode == "parameter"
    }


def _updated(root: Instruction) -> Instruction | None:
    """The array that an output of a fusion updates in place; None where it updates none."""
    if root.opcode == "get-tuple-element" and root.operands[0].opcode == "tuple":
        return _updated(root.operands[0].operands[int(root.attributes["index"])])
    if root.shape.is_tuple or 0 not in (written := overwritten(root)) or written[0] >= len(root.operands):
        return None
    source = root.operands[written[0]]
    return source.operands[0] if source.opcode == "bitcast" else source


def may_share(operand: Instruction, user: Instruction, output: int) -> bool:
    """Returns whether an output may lie in the memory of an operand, an array, that nothing reads later.

    `output` is the number of the array of `user`, counted through tuples in order.

    XLA's rule: the same shape and layout, and each element from the same element, through all of a fusion.
    """
    target = list(user.shape.leaves())[output]
    if user.opcode == "copy" or operand.opcode == "constant" or operand.shape.is_tuple:
        return False
    if target != operand.shape or target.layout != operand.shape.layout:
        return False
    places = [index for index, read in enumerate(user.operands) if read is operand]
    if user.opcode == "fusion":
        return _fusion_may_share(user, places[0])
    if user.opcode in ("scatter", "triangular-solve"):
        return places == [int(user.opcode == "triangular-solve")]
    return places == [output] if user.opcode == "sort" else user.opcode in ELEMENTWISE


def _fusion_may_share(fusion: Instruction, number: int) -> bool:
    """True if every use of a fusion's parameter passes it element by element to the root."""
    body, kind = fusion.called[0], fusion.attributes.get("kind", "")
    users = body.users
    parameter = body.parameters[number]
    if kind == "kOutput" and body.root.opcode == "add":
        operands = body.root.operands
        added = users[parameter].keys() == {body.root} and operands.count(parameter) == 1
        return added and any(operand.opcode in ("dot", "convolution") for operand in operands)
    if kind not in ("kLoop", "kInput"):
        return False
    every = hlo.reached([parameter], users.__getitem__)
    return all(
        instruction is parameter or instruction.opcode == "tuple" or instruction.opcode in ELEMENTWISE
        for instruction in every
    )


_TILE: Final = re.compile(r"T((?:\([\d,*]+\))+)")
_SPACE: Final = re.compile(r"S\((\d+)\)")


def memory_bytes(shape: Shape) -> int:
    """Memory of one array; none where it lies in another memory than the device's main one. [B]

    >>> memory_bytes(Shape("f32", (5, 100), layout="{1,0:T(8,128)}"))
    4096
    """
    layout = shape.layout
    space = _SPACE.search(layout)
    if space and space[1] != "0":
        return 0
    tile = _TILE.search(layout)
    if tile is None:
        return shape.bytes
    sizes = [max(int(size), 1) for size in re.findall(r"\d+", tile[1].partition(")")[0])]
    order = [int(dim) for dim in re.findall(r"\d+", layout.partition(":")[0])]
    if sorted(order) != list(range(len(shape.dims))):
        return shape.bytes
    dims = [*([1] * (len(sizes) - len(order))), *(shape.dims[dim] for dim in reversed(order))]
    inner = [ceil(dim / size) * size for dim, size in zip(dims[-len(sizes) :], sizes, strict=True)]
    return ceil(prod(dims[: -len(sizes)]) * prod(inner) * hlo.BITS[shape.dtype] / 8)


Order: TypeAlias = Callable[[Computation], Sequence[Instruction]]

#: Value of an instruction: the number of an array, or a tuple.
Tree: TypeAlias = "int | tuple[Tree, ...]"

#: Instructions that use their operands when the arrays inside are used.
_PASSING: Final = hlo.VIEWS | {"call", "while", "conditional"}


@dataclass(slots=True)
class Array:
    """One array of a program. Times count instructions in the order they run. [-]"""

    maker: Instruction
    holder: Instruction  #: the last to give only this array: its maker, or the one that picks it from a tuple
    output: int  #: which of the maker's arrays
    bytes: int  #: [B]
    start: int
    end: int  #: last time at which it is read
    given: bool  #: by the caller of the program, or a constant


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Arrays in one place of memory."""

    arrays: tuple[Array, ...]
    is_parameter: bool
    is_constant: bool  #: or a number that a device has
    is_output: bool
    overwritten: bool  #: a parameter whose memory the result takes

    @property
    def bytes(self) -> int:
        """Bytes of the largest array. [B]"""
        return max(array.bytes for array in self.arrays)

    def intervals(self) -> list[tuple[int, int]]:
        """When it holds something that is read later, both ends included, with time between them. [-]"""
        intervals: list[tuple[int, int]] = []
        for array in self.arrays:
            if intervals and array.start <= intervals[-1][1]:
                intervals[-1] = (intervals[-1][0], max(intervals[-1][1], array.end))
            else:
                intervals.append((array.start, array.end))
        return intervals


@dataclass(frozen=True, slots=True, eq=False)
class Liveness:
    """Buffers of a program in one order of its instructions."""

    buffers: tuple[Buffer, ...]
    ran: tuple[str, ...]  #: name of the kernel that runs at each time; empty where none does
    largest_kernel_bytes: int  #: most that one kernel alone reads and makes of temporary arrays [B]

    def live_bytes(self) -> FloatArray:
        """(times,) Memory of the buffers of the program itself, none in another's place. [B]"""
        taken = np.zeros(len(self.ran) + 2)
        for buffer in self.buffers:
            if not buffer.is_parameter and not buffer.is_constant:
                for start, end in buffer.intervals():
                    taken[start] += buffer.bytes
                    taken[end + 1] -= buffer.bytes
        return np.cumsum(taken)

    def peak(self) -> tuple[int, str]:
        """The largest of `live_bytes` [B], and the kernel that runs then."""
        live = self.live_bytes()
        at = int(live.argmax())
        return int(live[at]), next((name for name in self.ran[at:] if name), "")


def liveness(module: Module, order: Order) -> Liveness:
    """Buffers of a program whose computations run their instructions in an order."""
    run = _Run(order, shares=hlo.repeated_instructions(module) > 0)
    entry = module.entry
    parameters = [run.made(parameter.shape, parameter, given=True) for parameter in entry.parameters]
    root = run.run(entry, parameters, "")
    aliased = _tie(run, module, parameters, root)
    for array in hlo.arrays_of(tuple(parameters)):
        if array not in aliased:
            run.arrays[array].end = len(run.ran)
    homes = {run.home(number) for number, array in enumerate(run.arrays) if array.given}
    others = ((number for number in set(touched) if run.home(number) not in homes) for touched in run.touched)
    largest = max((sum(run.arrays[number].bytes for number in numbers) for numbers in others), default=0)
    return Liveness(tuple(_buffers(run, set(hlo.arrays_of(root)), aliased)), tuple(run.ran), largest)


def aliased_outputs(module: Module) -> dict[int, Instruction]:
    """Array of the result -> parameter whose memory it lives in, by the module's header."""
    first = [0, *accumulate(len([*shape.leaves()]) for shape in module.entry.root.shape.elements)]
    parameters = module.entry.parameters
    return {first[path[0]] if path else 0: parameters[number] for path, number, _ in header_aliases(module)}


#: Indices from a tuple down to an element of it.
Path: TypeAlias = tuple[int, ...]


def header_aliases(module: Module) -> list[tuple[Path, int, Path]]:
    """Paths within the result, the parameter whose memory each takes, and where in it, as the header says.

    Raises `DseError` if there is no such parameter, or element of it or of the result.
    """
    entry, aliases = module.entry, []
    where = f"{module.name}: input_output_alias"
    for written, number, path in ALIAS.findall(module.attributes.get("input_output_alias", "")):
        if int(number) >= len(entry.parameters):
            raise DseError(f"{where}: there is no parameter {number}")
        if not _has_element(entry.root.shape, _path(written)):
            raise DseError(f"{where}: the result has no element {{{written}}}")
        if not _has_element(entry.parameters[int(number)].shape, _path(path)):
            raise DseError(f"{where}: parameter {number} has no element {{{path}}}")
        aliases.append((_path(written), int(number), _path(path)))
    return aliases


def _path(written: str) -> Path:
    return tuple(map(int, re.findall(r"\d+", written)))


def _has_element(shape: Shape, path: Path) -> bool:
    return not path or (path[0] < len(shape.elements) and _has_element(shape.elements[path[0]], path[1:]))


def _tie(run: _Run, module: Module, parameters: Sequence[Tree], root: Tree) -> set[int]:
    """Put results into the memory of the parameters that the header gives; those parameters' arrays."""
    aliased = set()
    for written, number, path in header_aliases(module):
        target, source = reduce(_element, written, root), reduce(_element, path, parameters[number])
        for one, other in zip(hlo.arrays_of(target), hlo.arrays_of(source), strict=False):
            run.join(one, other)
            aliased.add(other)
    return aliased


def _element(tree: Tree, index: int) -> Tree:
    return () if isinstance(tree, int) else tree[index]


def _buffers(run: _Run, results: set[int], aliased: set[int]) -> Iterator[Buffer]:
    """The arrays that were joined, each buffer with its arrays in order."""
    for group in grouped((run.home(number), number) for number in range(len(run.arrays))).values():
        arrays = [run.arrays[number] for number in group if number not in run.passed]
        arrays.sort(key=lambda array: (array.start, array.end))
        for one, after in pairwise(arrays):
            after.end = max(one.end, after.end)
            one.end = min(one.end, after.start)
        given = [array for array in arrays if array.given]
        yield Buffer(
            tuple(arrays),
            is_parameter=any(lifetime.maker.opcode == "parameter" for lifetime in given),
            is_constant=any(lifetime.maker.opcode != "parameter" for lifetime in given),
            is_output=not results.isdisjoint(group),
            overwritten=not aliased.isdisjoint(group),
        )


@dataclass(slots=True)
class _Run:
    """Goes through computations in the order in which they run."""

    order: Order
    shares: bool  #: computations that run often are written out the first time alone
    arrays: list[Array] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    ran: list[str] = field(default_factory=list)  #: kernel at each time
    touched: list[Sequence[int]] = field(default_factory=list)  #: arrays that each kernel reads and writes
    passed: set[int] = field(default_factory=set)  #: stand-ins for arrays that a loop only reads
    seen: set[Computation] = field(default_factory=set)

    def made(self, shape: Shape, maker: Instruction, *, given: bool = False) -> Tree:
        """New arrays in the form of a shape, made now."""
        first, now = len(self.arrays), len(self.ran)
        for output, leaf in enumerate(shape.leaves()):
            self.arrays.append(Array(maker, maker, output, memory_bytes(leaf), now, now, given))
        self.parents += range(first, len(self.arrays))
        made: Tree = hlo.shaped(shape, iter(range(first, len(self.arrays))))
        return made

    def home(self, number: int) -> int:
        """The array that stands for all that share a buffer with one."""
        while self.parents[number] != number:
            self.parents[number] = self.parents[self.parents[number]]
            number = self.parents[number]
        return number

    def join(self, one: int, other: int) -> None:
        """Put two arrays into one buffer."""
        self.parents[self.home(one)] = self.home(other)

    def used(self, tree: Tree) -> None:
        """Note that an instruction reads arrays now."""
        for leaf in hlo.arrays_of(tree):
            self.arrays[leaf].end = max(self.arrays[leaf].end, len(self.ran))

    def run(self, computation: Computation, arguments: Sequence[Tree], path: str) -> Tree:
        """Run a computation; returns the value of its root."""
        if self.shares and computation in self.seen:
            return self.made(computation.root.shape, computation.root)
        self.seen.add(computation)
        values: dict[Instruction, Tree] = {}
        for instruction in self.order(computation):
            operands = [values[operand] for operand in instruction.operands]
            if instruction.opcode == "parameter":
                values[instruction] = arguments[int(instruction.argument)]
            else:
                values[instruction] = self.value(instruction, operands, path)
            if instruction.opcode not in _PASSING:
                self.used(tuple(operands))
                laid = written_aliases(instruction)
                made = [leaf for output, leaf in enumerate(hlo.arrays_of(values[instruction])) if output not in laid]
                self.touched.append([*hlo.arrays_of(tuple(operands)), *made])
            self.ran.append(path + instruction.name if instruction.opcode not in _PASSING | hlo.SOURCES else "")
        self.used(values[computation.root])
        return values[computation.root]

    def viewed(self, instruction: Instruction, operands: Sequence[Tree]) -> Tree:
        """The value of a view, which from now on holds the array that it gives."""
        value: Tree = hlo.viewed(instruction, operands)
        if isinstance(value, int):
            self.arrays[value].holder = instruction
        return value

    def value(self, instruction: Instruction, operands: Sequence[Tree], path: str) -> Tree:
        """Arrays that an instruction gives, new ones or those of its operands."""
        opcode, part = hlo.parts(instruction.opcode)
        inner = path + instruction.name + "/"
        if opcode in hlo.VIEWS:
            return self.viewed(instruction, operands)
        if instruction.opcode == "while":
            return self.loop(instruction, operands[0], inner)
        if instruction.opcode == "call":
            return self.run(instruction.called[0], operands, inner)
        if instruction.opcode == "conditional":
            return self.choice(instruction, operands, inner)
        if part == "start" and instruction.shape.is_tuple and opcode != "all-reduce":
            return self.started(instruction, opcode, operands, inner)
        if part in ("update", "done"):
            return self.finished(instruction, opcode, part, operands[0])
        made = self.made(instruction.shape, instruction, given=opcode in hlo.SOURCES)
        reads = list(hlo.arrays_of(tuple(operands)))
        for output, operand_number in overwritten(instruction).items():
            targets = list(hlo.arrays_of(made))
            if output < len(targets) and operand_number < len(reads):
                self.join(targets[output], reads[operand_number])
        return made

    def loop(self, instruction: Instruction, first: Tree, path: str) -> Tree:
        """Buffers of a loop: carried values share memory with its operand; values that it only reads pass through."""
        condition, body = instruction.called
        self.used(first)
        carried = self.made(instruction.shape, instruction)
        self.run(condition, [carried], path)
        root = self.run(body, [carried], path)
        result = self.made(instruction.shape, instruction)
        given: dict[int, int] = {}
        for begun, inside, last, ended in zip(*map(hlo.arrays_of, (first, carried, root, result)), strict=True):
            self.join(inside, begun)
            self.join(ended, begun)
            if inside == last:
                self.arrays[begun].end = max(self.arrays[begun].end, len(self.ran))
                self.passed |= {inside, ended}
                given[ended] = begun
            else:
                self.join(last, begun)
        kept: Tree = hlo.replaced(result, lambda array: given.get(array, array))
        return kept

    def choice(self, instruction: Instruction, operands: Sequence[Tree], path: str) -> Tree:
        """Result of a conditional, which all branches give in the same memory."""
        roots = [
            self.run(branch, [operand], path) for branch, operand in zip(instruction.called, operands[1:], strict=True)
        ]
        self.used(tuple(operands))
        made = self.made(instruction.shape, instruction)
        for root in roots:
            for first, second in zip(hlo.arrays_of(root), hlo.arrays_of(made), strict=False):
                self.join(first, second)
        return made

    def started(self, instruction: Instruction, opcode: str, operands: Sequence[Tree], path: str) -> Tree:
        """The first half of an asynchronous pair: its operands, then its results, then its state."""
        elements = instruction.shape.elements
        if opcode == "recv" or len(elements) < 2 or not operands:
            return self.made(instruction.shape, instruction)
        if opcode == "copy":
            first, second = self.made(elements[0], instruction), operands[0]
        else:
            first = tuple(operands) if elements[0].is_tuple else operands[0]
            runs = opcode == "async" and instruction.called
            second = self.run(instruction.called[0], operands, path) if runs else self.made(elements[1], instruction)
        return (first, second, *(self.made(element, instruction) for element in elements[2:]))

    def finished(self, instruction: Instruction, opcode: str, part: str, state: Tree) -> Tree:
        """The last half of an asynchronous pair."""
        if part == "update" or isinstance(state, int) or opcode == "all-reduce":
            return state
        whole = tuple(state)
        picked: Tree = whole[0] if opcode == "copy" else whole[min(1, len(whole) - 1)]
        if opcode in ("recv", "send"):
            picked = (whole[0], whole[-1]) if opcode == "recv" else whole[-1]
        conforms = sum(1 for _ in hlo.arrays_of(picked)) == hlo.array_count([instruction])
        return picked if conforms else self.made(instruction.shape, instruction)
