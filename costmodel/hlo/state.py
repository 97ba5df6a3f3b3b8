"""What a training step keeps between steps: weights and optimizer states, by what overwrites them.

A parameter of the program whose memory the result takes is state. Where the state holds the same shapes three
times it is that of Adam, where twice that of a method with one moment; of the copies, the weights are those
that most kernels read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from costmodel.hlo.graph import HloGraph
from costmodel.hlo.liveness import aliased_outputs
from costmodel.hlo.module import Instruction, Module

_TILES: Final = re.compile(r"devices=\[(\d+(?:,\d+)*)\]")
_TOKENS: Final = ("s32", "u32", "s64", "u64", "s16", "u16")


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """Parameters of a program by what they hold."""

    weights: tuple[Instruction, ...]
    moments: tuple[tuple[Instruction, ...], ...]  #: one or two copies of the weights' shapes
    counters: tuple[Instruction, ...]  #: scalars among the state
    inputs: tuple[Instruction, ...]  #: what the step does not overwrite

    @property
    def is_adam(self) -> bool:
        """Whether each weight has two moments."""
        return len(self.moments) == 2

    def tokens(self) -> tuple[int, int] | None:
        """Sequences, and tokens of each, of one replica; None where no input tells. [-]

        The shape that most of the whole-numbered inputs of two dimensions have.
        """
        shapes = Counter(
            (each.shape.dims[0], each.shape.dims[1])
            for each in self.inputs
            if each.shape.dtype in _TOKENS and len(each.shape.dims) == 2
        )
        return shapes.most_common(1)[0][0] if shapes else None


def training_state(module: Module, graph: HloGraph) -> TrainingState:
    """What the parameters of a module's entry hold."""
    overwritten = set(aliased_outputs(module).values())
    parameters = module.entry.parameters
    state = [each for number, each in enumerate(parameters) if number in overwritten]
    arrays = [each for each in state if each.shape.dims]
    readers = Counter(leaf.parameter for kernel in graph.kernels for leaf in kernel.reads)
    copies = _copies(arrays)
    busiest = max(copies, key=lambda copy: sum(readers[int(each.argument)] for each in copy))
    return TrainingState(
        weights=busiest,
        moments=tuple(copy for copy in copies if copy is not busiest),
        counters=tuple(each for each in state if not each.shape.dims),
        inputs=tuple(each for number, each in enumerate(parameters) if number not in overwritten),
    )


def _copies(arrays: list[Instruction]) -> list[tuple[Instruction, ...]]:
    """The arrays in thirds or halves of equal shapes, else all together."""
    dims = [each.shape.dims for each in arrays]
    for count in (3, 2):
        length = len(arrays) // count
        if arrays and dims == dims[:length] * count:
            return [tuple(arrays[start : start + length]) for start in range(0, len(arrays), length)]
    return [tuple(arrays)]


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
