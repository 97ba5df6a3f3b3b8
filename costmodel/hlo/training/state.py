"""What a training step keeps between steps: weights and optimizer states, by what becomes of them.

A parameter of the program is state where the program gives a new value for it: an array that takes its
memory, or of its shape and made of it by sums and scales. Of the state, weights are the arrays that matrix
products depend on, but for caches, of which some places are filled anew, and in programs that by their names
train nothing; what else decides the new value of one weight alone belongs to that weight.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from math import prod
from typing import Final

from costmodel.hlo.memory.liveness import aliased_outputs
from costmodel.hlo.text.module import Instruction, Module, names_gradients
from costmodel.hlo.training.data_flow import CARRIED, Flow, FlowStep, Source
from costmodel.hlo.training.operations import LINEAR, MOVING, behind, multiplies, summed

_TILES: Final = re.compile(r"devices=\[(\d+(?:,\d+)*)\]")
_TOKENS: Final = ("s32", "u32", "s64", "u64", "s16", "u16")
_WEIGHTS: Final = re.compile(r"b?f\d")


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """Parameters of a program by what they hold."""

    weights: tuple[Instruction, ...]
    companions: Mapping[int, tuple[Instruction, ...]]  #: number of a weight -> what is kept for it alone
    counters: tuple[Instruction, ...]  #: scalars among the state
    others: tuple[
        Instruction, ...
    ]  #: of the state, all else: statistics, averages, what several weights share
    inputs: tuple[Instruction, ...]  #: what the step gives no new value for
    updates: Mapping[int, Source]  #: number of a parameter -> what makes its new value

    @property
    def moments(self) -> tuple[tuple[Instruction, ...], ...]:
        """As many copies of the weights' shapes as are kept for each of them; none where that differs."""
        rows = [self.companions[int(each.argument)] for each in self.weights]
        same = all(alike(kept, each) for each, row in zip(self.weights, rows, strict=True) for kept in row)
        return tuple(zip(*rows, strict=True)) if same and len({len(row) for row in rows}) == 1 else ()

    @property
    def kept(self) -> list[Instruction]:
        """All of the state but the weights."""
        own = [each for row in self.companions.values() for each in row]
        return [*self.counters, *own, *self.others]

    @property
    def is_adam(self) -> bool:
        """Whether each weight has two moments."""
        return len(self.moments) == 2

    def tokens(self) -> tuple[int, int] | None:
        """Sequences, and tokens of each, that one device is given; None where no input tells. [-]

        The shape that most of the whole-numbered inputs of two dimensions have.
        """
        return _commonest(each.shape.dims for each in self._words)

    def whole_tokens(self) -> tuple[int, int] | None:
        """The same of all devices, by the sharding of these inputs; None where they have none. [-]"""
        if not all("sharding" in each.attributes for each in self._words):
            return None
        return _commonest(map(global_dims, self._words))

    @property
    def _words(self) -> list[Instruction]:
        """Whole-numbered inputs of two dimensions."""
        return [each for each in self.inputs if each.shape.dtype in _TOKENS and len(each.shape.dims) == 2]


def _commonest(shapes: Iterable[tuple[int, ...]]) -> tuple[int, int] | None:
    """Rows and columns that most have."""
    counted = Counter((dims[0], dims[1]) for dims in shapes)
    return counted.most_common(1)[0][0] if counted else None


def training_state(module: Module, flow: Flow) -> TrainingState:
    """What the parameters of a module's entry hold."""
    parameters = module.entry.parameters
    updates = _updates(module, flow)
    arrays = [each for number, each in enumerate(parameters) if number in updates and each.shape.dims]
    summed_up = [
        each
        for each in arrays
        if _WEIGHTS.match(each.shape.dtype) and not _is_filled(int(each.argument), updates)
    ]
    weights = _multiplied(flow, summed_up)
    rest = [each for each in arrays if each not in weights]
    companions = _companions(flow, weights, rest, updates)
    own = {each for row in companions.values() for each in row}
    return TrainingState(
        weights=tuple(weights),
        companions=companions,
        counters=tuple(
            each for number, each in enumerate(parameters) if number in updates and not each.shape.dims
        ),
        others=tuple(each for each in rest if each not in own),
        inputs=tuple(each for number, each in enumerate(parameters) if number not in updates),
        updates=updates,
    )


def _updates(module: Module, flow: Flow) -> dict[int, Source]:
    """Parameter -> its new value.

    An array takes the memory of any parameter of its shape, which need not be what it is made of: where it is
    made of others alone, those count. Where nothing takes the memory of another, sums alone do not tell an
    update from a layer that adds to what it reads: then the program has to name its gradients.
    """
    memory = aliased_outputs(module)
    made_of = [_terms(module, source) for source in flow.root]
    found = {
        number: flow.root[place]
        for place, number in memory.items()
        if number in made_of[place] or not made_of[place]
    }
    given = {place for place, number in memory.items() if number in found}
    named = names_gradients(module)
    waiting = [place for place, _ in enumerate(made_of) if place not in given and (named or place in memory)]
    while waiting:  # those that are made of one parameter first
        place = min(waiting, key=lambda each: len(made_of[each] - found.keys()) or len(found) + 1)
        waiting.remove(place)
        free = made_of[place] - found.keys() or {memory.get(place, -1)} - found.keys() - {-1}
        if free:
            found[min(free)] = flow.root[place]
    return dict(sorted(found.items()))


def _terms(module: Module, new: Source) -> set[int]:
    """Parameters of an array's shape that are terms of it."""
    if not isinstance(new, FlowStep):
        return set() if new is None else {new}
    parameters = module.entry.parameters
    found, seen, waiting = set[int](), {new}, [new]
    while waiting:
        for source in summed(waiting.pop()):
            if isinstance(source, FlowStep) and source not in seen:
                seen.add(source)
                waiting.append(source)
            elif isinstance(source, int):
                found.add(source)
    shape = new.shape
    return {number for number in found if str(parameters[number].shape) == str(shape)}


def _is_filled(number: int, updates: Mapping[int, Source]) -> bool:
    """Whether a new value is the old one with other elements in places, as of a cache, and no sum with it."""
    new = updates[number]
    if not isinstance(behind(new), FlowStep):
        return False
    moved = _reached([new], MOVING)
    sums = [each for each in moved if isinstance(each, FlowStep) and each.opcode not in MOVING]
    return number in moved and number not in _reached(sums, LINEAR)


def _reached(sources: Iterable[Source], opcodes: frozenset[str]) -> set[Source]:
    """Some sources, and what they are made of as far back as instructions of some kinds go."""
    waiting, seen = list(sources), set[Source]()
    while waiting:
        source = waiting.pop()
        if source in seen:
            continue
        seen.add(source)
        if isinstance(source, FlowStep) and source.opcode in opcodes:
            waiting += source.reads if source.opcode == CARRIED else summed(source)
    return seen


def _multiplied(flow: Flow, arrays: Sequence[Instruction]) -> list[Instruction]:
    """Those of some parameters that matrix products depend on, the first time round each loop."""
    after = flow.after({int(each.argument): 1 << bit for bit, each in enumerate(arrays)}, again=False)
    used = reduce(int.__or__, (after.get(step, 0) for step in flow.steps if multiplies(step)), 0)
    return [each for bit, each in enumerate(arrays) if used >> bit & 1]


def _companions(
    flow: Flow, weights: Sequence[Instruction], rest: Sequence[Instruction], updates: Mapping[int, Source]
) -> dict[int, tuple[Instruction, ...]]:
    """Weight -> the arrays that its new value depends on, and that of no other weight does."""
    after = flow.after({int(each.argument): 1 << bit for bit, each in enumerate(rest)}, again=False)
    read = {int(each.argument): after.get(updates[int(each.argument)], 0) for each in weights}
    readers = Counter(bit for bits in read.values() for bit, _ in enumerate(rest) if bits >> bit & 1)
    return {
        number: tuple(each for bit, each in enumerate(rest) if bits >> bit & 1 and readers[bit] == 1)
        for number, bits in read.items()
    }


def alike(kept: Instruction, weight: Instruction) -> bool:
    """Whether an array is kept for every element of a weight, on this device or on all."""
    own = kept.shape.dims == weight.shape.dims
    return own or prod(global_dims(kept)) == prod(global_dims(weight))


def global_dims(parameter: Instruction) -> tuple[int, ...]:
    """Dimensions of the array of which a parameter is one device's piece, by its sharding. [elements]"""
    tiles = _TILES.search(parameter.attributes.get("sharding", ""))
    dims = parameter.shape.dims
    if tiles is None:
        return dims
    cut = [int(tile) for tile in tiles[1].split(",")]
    return tuple(dim * tile for dim, tile in zip(dims, cut, strict=False))


def numbers(parameters: Iterable[Instruction]) -> str:
    """Parameter numbers as a range, where they are one.

    Parameters are in the order of their numbers, as `TrainingState` has them.
    """
    listed = [int(each.argument) for each in parameters]
    if len(listed) > 1 and listed == list(range(listed[0], listed[-1] + 1)):
        return f"{listed[0]}..{listed[-1]}"
    return ",".join(map(str, listed))
