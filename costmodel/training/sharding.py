"""Shardings of kernels over a tensor-parallel group: layouts of activations, their changes, assignments.

A weight is always split, by columns or by rows, so that an assignment decides on time and activations
but not on the memory of parameters. The attention core is split by heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray, IntArray
from costmodel.training.blocks import Layer
from costmodel.training.kernel_kind import Kernel, TensorLayout

#: Layouts of an activation of (tokens, features): whole on every rank, split by tokens, split by features,
#: or as summands of the whole.
LAYOUTS: Final[tuple[TensorLayout, ...]] = ("replicated", "sequence", "column", "partial")

#: (layout held, layout needed) -> collective; what is not here is there already, or a slice of what is.
TRANSITIONS: Final[Mapping[tuple[TensorLayout, TensorLayout], str]] = {
    ("sequence", "replicated"): "all_gather",
    ("column", "replicated"): "all_gather",
    ("sequence", "column"): "all_to_all",
    ("column", "sequence"): "all_to_all",
    ("partial", "replicated"): "all_reduce",
    ("partial", "sequence"): "reduce_scatter",
    ("partial", "column"): "reduce_scatter",
}


#: Named assignments [Shoeybi2019]_, [Korthikanti2022]_: layout of activations that may be split by tokens.
#: Those within an MLP are split by features, and products as the rows of blocks say.
ASSIGNMENTS: Final[Mapping[str, TensorLayout]] = {"megatron": "replicated", "megatron_sp": "sequence"}

#: How shardings are chosen: a named assignment, the best in time or in bytes sent, or explicitly per kernel.
SHARDINGS: Final = (*ASSIGNMENTS, "solve", "solve_bytes", "sample")


def usual_sharding(kernel: Kernel, tokens: str) -> str:
    """Option of a kernel that Megatron-LM takes, with the layout of the kernels that it may split by tokens."""
    return {"tokens": tokens, "features": "column", "weight": kernel.megatron}[kernel.kind.usual_split]


@dataclass(frozen=True)
class Assignments:
    """All combinations of shardings of a model's kernels, numbered in mixed radix, the last kernel fastest.

    Kernels of one name are split alike. The embedding and the head are split by the vocabulary, and a norm
    outside of the layers as the residual stream is, as far as a norm can be.
    """

    layers: tuple[Layer, ...]  #: the kinds of a model
    last: Layer  #: the kind of its last layer

    @cached_property
    def kernels(self) -> dict[str, Kernel]:
        """Name -> kernel, of all kinds of layers; those without a choice last."""
        kernels = {kernel.name: kernel for layer in self.layers for kernel in layer.kernels}
        return dict(sorted(kernels.items(), key=lambda item: len(item[1].kind.shardings) == 1))

    @cached_property
    def options(self) -> dict[str, tuple[str, ...]]:
        """Kernel with a choice -> its shardings."""
        options = {name: tuple(kernel.kind.shardings) for name, kernel in self.kernels.items()}
        return {name: words for name, words in options.items() if len(words) > 1}

    @cached_property
    def _weights(self) -> dict[str, int]:
        """Kernel -> how far one of its options is from the next in the numbers of assignments. [-]"""
        sizes = [len(options) for options in self.options.values()]
        return {name: math.prod(sizes[number + 1 :]) for number, name in enumerate(self.options)}

    @cached_property
    def share_collectives(self) -> bool:
        """True if some edges share collectives, so that costs of edges depend on more than their ends."""
        return any(edge.sharing for layer in self.layers for edge in layer.edges)

    @property
    def count(self) -> int:
        """Number of assignments of the set. [-]"""
        return math.prod(len(options) for options in self.options.values())

    @property
    def stream(self) -> Kernel:
        """The kernel that makes the residual stream as layers leave it."""
        return self.last.stream

    @cached_property
    def named(self) -> dict[str, float]:
        """Name of an assignment -> its number. [-]"""
        kernels = [self.kernels[name] for name in self.options]
        return {
            name: self.number({kernel.name: usual_sharding(kernel, tokens) for kernel in kernels})
            for name, tokens in ASSIGNMENTS.items()
        }

    def number(self, words: Mapping[str, str]) -> float:
        """Number of the assignment that splits each kernel by the option named. [-]"""
        return sum(self._weights[name] * self.options[name].index(word) for name, word in words.items())

    def numbers(self, places: Mapping[str, Any]) -> FloatArray:
        """Numbers of assignments from the place of each kernel's option, (points,). [-]"""
        return np.asarray(sum(self._weights[name] * option for name, option in places.items()), dtype=np.float64)

    def place(self, numbers: FloatArray, kernel: str) -> IntArray:
        """A kernel's option in numbered assignments: (points,) places among its `options`. [-]"""
        return numbers.astype(np.intp) // self._weights[kernel] % len(self.options[kernel])

    def words(self, number: float) -> dict[str, str]:
        """Kernel -> how a numbered assignment splits it."""
        at = np.array([number])
        return {kernel: options[self.place(at, kernel)[0]] for kernel, options in self.options.items()}


@cache
def assignments_of(layers: tuple[Layer, ...], last: Layer | None = None) -> Assignments:
    """Assignments of kinds of layers; the last of them is that of the last layer unless another is given."""
    return Assignments(layers, last or layers[-1])
