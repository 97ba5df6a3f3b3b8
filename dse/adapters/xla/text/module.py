"""An HLO module as it is written: its instructions by name, computations of them, and how often each runs.

The table of opcodes follows the counts of XLA's cost analysis. The value of an instruction is a tree of arrays, in the
form of its shape. Spellings of `replica_groups` become explicit lists of the devices that talk to each other.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from math import ceil, prod
from typing import Any, Final, TypeVar

import numpy as np

from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside

TABLES: Final[Mapping[str, Any]] = data_beside(__file__, "tables.yaml")


def _words(kind: str) -> frozenset[str]:
    return frozenset(TABLES["instructions"][kind].split())


#: Kinds of instructions; `tables.yaml` explains them.
ARITHMETIC, TRANSCENDENTAL, COLLECTIVES = map(_words, ("arithmetic", "transcendental", "collectives"))
VIEWS, SOURCES = map(_words, ("views", "sources"))
KNOWN: Final = frozenset[str]().union(*map(_words, TABLES["instructions"]))
#: Any instruction may be split in two, or three, around instructions that overlap with it.
_ASYNC_PARTS: Final = ("-start", "-update", "-done")


@lru_cache(maxsize=1024)
def parts(opcode: str) -> tuple[str, str]:
    """An instruction's own name, and which part of an asynchronous pair it is.

    >>> parts("all-gather-done"), parts("dot"), parts("send-done")
    (('all-gather', 'done'), ('dot', ''), ('send', 'done'))
    """
    for ending in _ASYNC_PARTS:
        if opcode.endswith(ending):
            return opcode.removesuffix(ending), ending[1:]
    return opcode, ""


#: Number format -> bits of one element.
BITS: Final[Mapping[str, int]] = {name: bits for bits, names in TABLES["bits"].items() for name in names.split()}


@dataclass(frozen=True, slots=True)
class Shape:
    """An array on one device, or a tuple of shapes; shapes that differ in their layout alone are equal."""

    dtype: str  #: "tuple" for a tuple
    dims: tuple[int, ...]  #: [elements]
    elements: tuple[Shape, ...] = ()  #: of a tuple
    layout: str = field(default="", compare=False)  #: as written: ``{1,0:T(8,128)S(1)}``

    @property
    def minor_to_major(self) -> tuple[int, ...]:
        """Dimensions in memory, the fastest first; the last is the fastest where the text does not say."""
        order = tuple(_numbers(self.layout.partition(":")[0]))
        usual = tuple(reversed(range(len(self.dims))))
        return order if set(order) == set(usual) and len(order) == len(usual) else usual

    @property
    def is_tuple(self) -> bool:
        """True if this is a tuple, also an empty one."""
        return self.dtype == "tuple"

    @property
    def size(self) -> int:
        """Elements of an array, or of all arrays of a tuple. [elements]"""
        return sum(element.size for element in self.elements) if self.is_tuple else prod(self.dims)

    @property
    def element_bytes(self) -> float:
        """Size of one element of an array. [B]"""
        return BITS[self.dtype] / 8

    @property
    def bytes(self) -> int:
        """Memory that it takes. [B]"""
        if self.is_tuple:
            return sum(element.bytes for element in self.elements)
        return ceil(prod(self.dims) * BITS[self.dtype] / 8)

    def leaves(self) -> Iterator[Shape]:
        """Arrays of a shape in order, those of nested tuples too."""
        if not self.is_tuple:
            yield self
        for element in self.elements:
            yield from element.leaves()

    def __str__(self) -> str:
        if self.is_tuple:
            return f"({', '.join(map(str, self.elements))})"
        return f"{self.dtype}[{','.join(map(str, self.dims))}]"


@dataclass(frozen=True, slots=True, eq=False)
class Instruction:
    """One line of a computation."""

    name: str
    shape: Shape
    opcode: str
    operands: tuple[Instruction, ...]
    argument: str  #: text in place of operands, of a constant or a parameter
    attributes: Mapping[str, str]  #: as written, strings without their quotes
    called: tuple[Computation, ...]  #: computations that it runs, in the order of its attributes

    @property
    def operand_bytes(self) -> int:
        """Bytes of operands, one that is read twice counted twice. [B]"""
        return sum(operand.shape.bytes for operand in self.operands)

    def numbers(self, key: str) -> list[int]:
        """Whole numbers of an attribute such as ``dimensions={1,0}``; [] where the text has none."""
        return [int(number) for number in re.findall(r"\d+", self.attributes.get(key, ""))]

    @property
    def op_name(self) -> str:
        """Name of the operation in the source program; "" where the text does not say."""
        name = _OP_NAME.search(self.attributes.get("metadata", ""))
        return name[1] if name else ""


@dataclass(frozen=True, eq=False)
class Computation:
    """Instructions, each after those it reads; those of the first of computations that differ in names alone."""

    name: str
    instructions: tuple[Instruction, ...]
    root: Instruction
    names: tuple[str, ...]  #: of the instructions in the text of this computation

    @cached_property
    def parameters(self) -> list[Instruction]:
        """Parameters in the order of their numbers."""
        parameters = [instruction for instruction in self.instructions if instruction.opcode == "parameter"]
        return sorted(parameters, key=lambda parameter: int(parameter.argument))

    @cached_property
    def users(self) -> Mapping[Instruction, dict[Instruction, list[int]]]:
        """Instruction -> those that read it, each with the places of it among the operands."""
        users = {instruction: dict[Instruction, list[int]]() for instruction in self.instructions}
        for instruction in self.instructions:
            for position, operand in enumerate(instruction.operands):
                users[operand].setdefault(instruction, []).append(position)
        return users


@dataclass(frozen=True, slots=True, eq=False)
class Module:
    """A program for one device of many: computations, each after those it runs."""

    name: str
    attributes: Mapping[str, str]
    computations: tuple[Computation, ...]
    entry: Computation
    sha256: str  #: of the text
    text_bytes: int  #: [B]

    @property
    def instructions(self) -> Iterator[Instruction]:
        """Instructions of all computations, in their order."""
        return (instruction for computation in self.computations for instruction in computation.instructions)

    @property
    def is_scheduled(self) -> bool:
        """True if instructions run in the order of the text."""
        return self.attributes.get("is_scheduled") == "true"


def output_shape(instruction: Instruction) -> Shape:
    """Shape of an instruction's output; of an asynchronous pair the result without the rest of its state."""
    opcode, part = parts(instruction.opcode)
    elements = instruction.shape.elements
    if part != "start" or len(elements) < 2 or opcode == "all-reduce":
        return instruction.shape
    return elements[0 if opcode == "copy" else 1]


def control_predecessors(instruction: Instruction) -> list[str]:
    """Names of those that an instruction waits for without reading them."""
    return re.findall(r"[\w.\-]+", instruction.attributes.get("control-predecessors", ""))


_OP_NAME: Final = re.compile(r'op_name="((?:[^"\\]|\\.)*+)', re.DOTALL)


def custom_call_target(instruction: Instruction) -> str:
    """The function that a custom call names; empty for other instructions."""
    return instruction.attributes.get("custom_call_target", "") if instruction.opcode == "custom-call" else ""


#: Instructions of a program, counted again for each call, above which called computations are listed once, if they are
#: also this many times the written ones. [-]
MOST_UNFOLDED, MOST_REPEATED = 20_000, 4
#: Most instructions of fusions that repeat others, and most levels of calls. [-]
MOST_FUSED, DEEPEST = 100_000, 100
#: Instructions that run the computations that they call in place.
CALLING: Final = frozenset(("while", "conditional", "call", "async"))


def repeated_instructions(module: Module) -> int:
    """Instructions that run in a step, a loop's body once; 0 where they are few enough to be listed one by one. [-]"""
    run = sum(len(computation.instructions) * times for computation, times in runs_of(module).items())
    written = sum(len(computation.instructions) for computation in module.computations)
    return run if run > max(MOST_UNFOLDED, MOST_REPEATED * written) else 0


def size_problem(computation: Computation, sizes: dict[Computation, tuple[int, int]], total: int) -> str | None:
    """The limit that a computation exceeds; None if it exceeds none.

    It calls only those of `sizes`: computation -> its instructions with those of fusions, and its levels of calls. [-]
    Its own size is added. `total` are the instructions of the text so far, which may all be of different fusions. [-]
    """
    size, depth = len(computation.instructions), 0
    for instruction in computation.instructions:
        depth = max([depth, *(sizes[called][1] + 1 for called in instruction.called)])
        if instruction.opcode == "fusion":
            size += sizes[instruction.called[0]][0]
    sizes[computation] = size, depth
    if depth > DEEPEST:
        return f"{depth} levels of calls; at most {DEEPEST} are read"
    if size > total + MOST_FUSED:
        return f"fusions of {size:,} instructions, of {total:,} in the text; at most {MOST_FUSED:,} more are read"
    return None


def runs_of(module: Module, trips: Mapping[Instruction, int | None] | None = None) -> dict[Computation, int]:
    """Number of times that each computation runs in a step. [-]

    Computations stand after those that they call, so that one way back from the entry finds it. Every branch of a
    choice counts. `trips` maps loops to the runs of their bodies, None where unknown; by default 1. [-]
    """
    runs = {module.entry: 1}
    for computation in reversed(module.computations):
        for instruction in computation.instructions if computation in runs else ():
            opcode, part = parts(instruction.opcode)
            if opcode in CALLING and part not in ("update", "done"):
                known = (trips or {}).get(instruction)
                for called in instruction.called:
                    runs[called] = runs.get(called, 0) + runs[computation] * (1 if known is None else known)
    return runs


Node = TypeVar("Node")


def reached(starts: Iterable[Node], following: Callable[[Node], Iterable[Node]]) -> Iterator[Node]:
    """Starts, and all nodes that follow from them directly or indirectly; every one once."""
    waiting = list(dict.fromkeys(starts))
    seen = set(waiting)
    while waiting:
        here = waiting.pop()
        yield here
        for follower in following(here):
            if follower not in seen:
                seen.add(follower)
                waiting.append(follower)


def shaped(shape: Shape, arrays: Iterator[Any]) -> Any:
    """A value in the form of a shape, tuples of its arrays in order."""
    return tuple(shaped(element, arrays) for element in shape.elements) if shape.is_tuple else next(arrays)


def array_count(instructions: Iterable[Instruction]) -> int:
    """Number of arrays that some instructions give. [-]"""
    return sum(1 for instruction in instructions for _ in instruction.shape.leaves())


def arrays_of(value: Any) -> Iterator[Any]:
    """Arrays of a value in order: tuples hold them, and they are none."""
    for element in value if isinstance(value, tuple) else (value,):
        if isinstance(element, tuple):
            yield from arrays_of(element)
        else:
            yield element


def replaced(value: Any, change: Callable[[Any], Any]) -> Any:
    """A value with each of its arrays changed."""
    return tuple(replaced(element, change) for element in value) if isinstance(value, tuple) else change(value)


def viewed(instruction: Instruction, operands: Sequence[Any]) -> Any:
    """Value of a view, by those of its operands: a tuple of them, an element of one, or one as it is."""
    if instruction.opcode == "tuple":
        return tuple(operands)
    if instruction.opcode == "get-tuple-element" and isinstance(operands[0], tuple):
        return operands[0][int(instruction.attributes["index"])]
    return operands[0]


Groups = tuple[tuple[int, ...], ...]

_LISTS: Final = re.compile(r"\{((?:\{[\d,\s]*\}[,\s]*)*)\}$")
_IOTA: Final = re.compile(r"\[([\d,\s]+)\](?:\s*<=\s*\[([\d,\s]+)\])?(?:\s*T\(([\d,\s]+)\))?$")
_MESH: Final = re.compile(
    r"@?mesh[\w.]*\s*\[(.*?)\]\s*(?:,\s*device_ids\s*=\s*\((\[[^()]*(?:\([^()]*\))?)\)\s*)?\{(.*)\}$", re.DOTALL
)
_AXIS: Final = re.compile(r"['\"]([^'\"]+)['\"]\s*=\s*(\d+)")
_AXIS_USED: Final = re.compile(r"['\"]([^'\"]+)['\"](?:\s*:\s*\((\d+)\)(\d+))?")


#: Most devices of a program, far more than any cluster has. [-]
MOST_DEVICES: Final = 1 << 22


@dataclass(frozen=True, slots=True)
class GroupPlacement:
    """Position of device groups in the numbering of all devices, which fills one node after the other."""

    groups: int
    size: int  #: devices of a group
    stride: float  #: mean distance between neighbours of the widest group


def groups_of(instruction: Instruction, devices: int) -> Groups:
    """The groups of devices that a collective runs in; all devices of the program where the text names none. [-]

    Raises `DseError` if the text names groups in an unknown way.
    """
    pairs = instruction.attributes.get("source_target_pairs")
    if pairs is not None:
        return tuple(pair for pair in _lists(pairs) if len(pair) == 2)
    written = instruction.attributes.get("replica_groups", "{}")
    try:
        groups = normalised(written)
    except (ValueError, IndexError, ZeroDivisionError) as error:
        raise DseError(f"{instruction.name}: replica_groups={written[:80]}: no known way to name groups") from error
    return groups or (tuple(range(devices)),)


def normalised(written: str) -> Groups:
    """Explicit lists from any spelling; no lists where all devices are meant.

    Raises `ValueError` or `IndexError` if it is not a known spelling.

    >>> normalised("{{0,2},{1,3}}")
    ((0, 2), (1, 3))
    >>> normalised("[2,2]<=[2,2]T(1,0)")
    ((0, 2), (1, 3))
    >>> normalised("mesh['data'=2,'model'=2] {'data'}")
    ((0, 2), (1, 3))
    """
    if _LISTS.match(written):
        return tuple(group for group in _lists(written) if group)
    iota = _IOTA.match(written)
    if iota:
        shape = _numbers(iota[1])
        return tuple(map(tuple, _iota(written).reshape(-1, prod(shape[1:])).tolist()))
    mesh = _MESH.match(written)
    if mesh:
        return _mesh(*mesh.groups())
    raise ValueError(written)


_SHARDED: Final = re.compile(r"\{devices=\[([\d,]+)\]\s*(<=\s*[^\s}]+|[\d,]+)([^}]*)")


def pieces(sharding: str) -> dict[int, tuple[int, ...]]:
    """Device -> place of its piece of an array along each dimension; none where all have the whole.

    >>> pieces("{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}")
    {0: (0, 0), 2: (0, 0), 1: (1, 0), 3: (1, 0)}
    """
    match = _SHARDED.match(sharding)
    if match is None:
        return {}
    tiles, rest = _numbers(match[1]), match[3].partition("last_tile_dims=")
    try:
        order = _iota(f"[{prod(tiles)}]{match[2]}") if match[2][0] == "<" else np.array(_numbers(match[2]))
    except ValueError:
        return {}  # no known way to name devices
    last = len(tiles) - (rest[2].count(",") + 1 if rest[2] else "last_tile_dim_replicate" in rest[0])
    places = zip(order.ravel().tolist(), np.ndindex(*tiles), strict=False)
    return {device: position[:last] for device, position in places}


def _lists(written: str) -> Groups:
    return tuple(tuple(_numbers(group)) for group in re.findall(r"\{([\d,\s]*)\}", written))


def _numbers(written: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", written)]


def _iota(written: str) -> np.ndarray[tuple[int, ...], np.dtype[np.int64]]:
    """``[4,2]<=[2,4]T(1,0)``: the numbers from 0 on in one shape, transposed, in another; or one alone."""
    match = _IOTA.match(written)
    if match is None:
        raise ValueError(written)
    shape = _numbers(match[1])
    source = _numbers(match[2]) if match[2] else shape
    if prod(source) > MOST_DEVICES:
        raise ValueError(written)
    order = _numbers(match[3]) if match[3] else list(range(len(source)))
    ids = np.arange(prod(source)).reshape(source).transpose(order)
    return ids.reshape(shape) if match[2] else ids


def _mesh(axes: str, device_ids: str | None, used: str) -> Groups:
    """Groups along some axes of a mesh; an axis may be used in part, as ``'x':(2)4``."""
    names: list[tuple[str, int]] = []  # of axes, with their parts as separate axes
    dims: list[int] = []
    wanted = {name: (before, size) for name, before, size in _AXIS_USED.findall(used)}
    for name, size in _AXIS.findall(axes):
        before, part = wanted.get(name, ("", ""))
        cut = [int(before), int(part), int(size) // (int(before) * int(part))] if part else [1, int(size), 1]
        names += [(name, axis) for axis in range(3)]
        dims += cut
    if set(wanted) - {name for name, _ in names}:
        raise ValueError(used)
    if prod(dims) > MOST_DEVICES:
        raise ValueError(axes)
    ids = np.arange(prod(dims)) if device_ids is None else _iota(device_ids)
    along = [index for index, (name, part) in enumerate(names) if name in wanted and part == 1]
    across = [axis for axis in range(len(names)) if axis not in along]
    size = prod(dims[axis] for axis in along)
    return tuple(map(tuple, ids.reshape(dims).transpose([*across, *along]).reshape(-1, size).tolist()))


def declared_devices(header: Mapping[str, str]) -> int:
    """Devices that the header of a module counts; at least 1. [-]"""
    written = [header.get(key, "1") for key in ("replica_count", "num_partitions")]
    return prod(int(number) for number in written if number.isdecimal()) or 1


def work_units(instruction: Instruction, devices: int) -> float:
    """Work to evaluate an instruction, by its arrays, operands and listed devices; a plain one has about 1.3. [-]

    `devices` are those of collectives that list none.
    """
    written = instruction.attributes.get("replica_groups") or instruction.attributes.get("source_target_pairs", "")
    sizes = [int(size) for _, size in _AXIS.findall(written)] or _numbers(written.partition("]")[0])
    listed = prod(sizes) if "[" in written else written.count(",")
    opcode, shapes = parts(instruction.opcode)[0], array_count([instruction]) + len(instruction.operands)
    slow = opcode in COLLECTIVES | {"convolution", "custom-call", "dot"} or bool(instruction.called)
    return 1 + slow + shapes / 10 + (listed or devices * (opcode in COLLECTIVES)) / 25


def placement(groups: Groups) -> GroupPlacement:
    """Where the largest groups lie.

    >>> placement(((0, 8), (1, 9)))
    GroupPlacement(groups=2, size=2, stride=8.0)
    """
    size = max(map(len, groups))
    widest = max(max(group) - min(group) for group in groups)
    return GroupPlacement(len(groups), size, widest / (size - 1) if size > 1 else 1.0)


def connected(groups: Iterable[Sequence[int]]) -> list[frozenset[int]]:
    """Devices that some groups connect, in one step or in more.

    >>> connected([(0, 1), (2, 3), (1, 3), (4, 5)])
    [frozenset({0, 1, 2, 3}), frozenset({4, 5})]
    """
    part_of = dict[int, set[int]]()
    for group in groups:
        joined = {id(part): part for part in map(part_of.get, group) if part}.values()
        largest = max(joined, key=len, default=set[int]())
        for part in (set(group), *joined):
            if part is not largest:
                largest |= part
                part_of |= dict.fromkeys(part, largest)
    return [frozenset(part) for part in {id(part): part for part in part_of.values()}.values()]


def reach(groups: Iterable[Sequence[int]]) -> int:
    """Most devices that groups connect. [-]"""
    return max(map(len, connected(groups)), default=1)
