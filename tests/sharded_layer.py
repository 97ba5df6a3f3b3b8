"""A small layer that is run twice: whole, and by ranks that hold shards and exchange what an assignment says.

The kernels are simple, but fussy about layouts: norms need all features, and the activation function
squares, so that summands must have been added up before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from costmodel import DesignPoints, ModelShape
from costmodel.steps.tensor_parallel import Change, changes
from costmodel.training.precision import MIXED_PRECISION
from costmodel.training.sharding import EDGES, Edge, ways_of

Array = NDArray[np.float64]
AXIS = {"sequence": 0, "column": 1}

MODEL = ModelShape(
    num_layers=1, hidden_size=8, num_attention_heads=4, head_size=3, ffn_hidden_size=20, seq_len=4
)
INTO = {edge.end: [e for e in EDGES if e.end == edge.end and e.part == "layer"] for edge in EDGES}
OUT_OF = {edge.start: [e for e in EDGES if e.start == edge.start and e.part == "layer"] for edge in EDGES}


def centred(x: Array) -> Array:
    return x - x.mean(axis=1, keepdims=True)


def attended(x: Array) -> Array:
    """Heads one after the other, each with query, key and value of 3."""
    query, key, value = np.moveaxis(x.reshape(len(x), -1, 3, 3), 2, 0)
    return (query + 2 * key + 3 * value).reshape(len(x), -1)


def attended_back(gradient: Array) -> Array:
    heads = gradient.reshape(len(gradient), -1, 1, 3)
    return (heads * np.array([1.0, 2.0, 3.0])[:, np.newaxis]).reshape(len(gradient), -1)


#: Kernel that is no product -> its forward pass, and its input's gradient from its output's and the input.
POINTWISE: dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]] = {
    "attention_norm": (centred, lambda g, x: centred(g)),
    "mlp_norm": (centred, lambda g, x: centred(g)),
    "core": (attended, lambda g, x: attended_back(g)),
    "activation": (lambda x: x**2, lambda g, x: 2 * x * g),
    "attention_residual": (lambda x: x, lambda g, x: g),
    "mlp_residual": (lambda x: x, lambda g, x: g),
}
SHAPES = {"qkv": (8, 36), "projection": (12, 8), "mlp_up": (8, 20), "mlp_down": (20, 8)}
ORDER = (
    *("attention_norm", "qkv", "core", "projection", "attention_residual"),
    *("mlp_norm", "mlp_up", "activation", "mlp_down", "mlp_residual"),
)


def shared_out(whole: Array, layout: str, tp: int) -> list[Array]:
    if layout in AXIS:
        return np.split(whole, tp, axis=AXIS[layout])
    return [whole / tp if layout == "partial" else whole] * tp


def exchanged(shards: list[Array], held: str, needed: str, collective: str | None) -> list[Array]:
    """What ranks hold after a collective, or after cutting out their own share of what they hold."""
    tp = len(shards)
    if collective in ("all_gather", "all_to_all"):
        whole = np.concatenate(shards, axis=AXIS[held])
    elif collective in ("all_reduce", "reduce_scatter"):
        whole = np.sum(shards, axis=0)
    elif held == needed:
        return shards
    else:
        assert held == "replicated"
        whole = shards[0]
    assert needed in (AXIS if collective in ("all_to_all", "reduce_scatter", None) else {"replicated"})
    return shared_out(whole, needed, tp)


@dataclass
class Layer:
    """One run of the layer by the ranks of a design, forward and backward."""

    design: DesignPoints
    weights: dict[str, Array]
    outputs: dict[str, list[Array]] = field(default_factory=dict)
    kept: dict[str, tuple[list[Array], str]] = field(default_factory=dict)
    weight_gradients: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tp = int(self.design.tp[0])

    def side(self, kernel: str, side: str) -> str:
        return str(getattr(list(ways_of(kernel).values())[int(self.design.split(kernel)[0])], side))

    def changes(self, edge: Edge) -> tuple[list[Change], list[Change]]:
        return changes(edge, MODEL, self.design, MIXED_PRECISION)

    def carried(self, edge: Edge) -> list[Array]:
        """An activation as the consumer needs it."""
        forward = self.changes(edge)[0]
        name = forward[0].name if forward else None
        return exchanged(
            self.outputs[edge.start], self.side(edge.start, "gives"), self.side(edge.end, "needs"), name
        )

    def forward(self, given: Array) -> Array:
        self.outputs["mlp_residual"] = shared_out(given, self.side("mlp_residual", "gives"), self.tp)
        for kernel in ORDER:
            inputs = [self.carried(edge) for edge in INTO[kernel]]
            summed = [np.sum(each, axis=0) for each in zip(*inputs, strict=True)]
            last, gathers = INTO[kernel][-1], kernel in SHAPES and self.regathers(kernel)
            held = self.side(last.start, "gives") if gathers else self.side(kernel, "needs")
            self.kept[kernel] = (self.outputs[last.start] if gathers else summed, held)
            if kernel in SHAPES:
                self.outputs[kernel] = [
                    x @ w for x, w in zip(summed, self.weight_shards(kernel), strict=True)
                ]
            else:
                self.outputs[kernel] = [POINTWISE[kernel][0](x) for x in summed]
        shards, layout = self.outputs["mlp_residual"], self.side("mlp_residual", "gives")
        return np.concatenate(shards, axis=AXIS[layout]) if layout in AXIS else shards[0]

    def regathers(self, kernel: str) -> bool:
        return any(
            change.hidden_by == (kernel, "activation_gradient") for change in self.changes(INTO[kernel][0])[1]
        )

    def weight_shards(self, kernel: str) -> list[Array]:
        way = list(ways_of(kernel))[int(self.design.split(kernel)[0])]
        return np.split(self.weights[kernel], self.tp, axis=1 if way == "column" else 0)

    def backward(self, gradient: Array) -> Array:
        """Gradient of the layer's input; those of weights are kept."""
        layout = self.side("mlp_residual", "gradient_needs")
        whole = {"mlp_residual": shared_out(gradient, layout, self.tp)}
        for kernel in reversed(ORDER):
            inputs = self.through(kernel, whole.pop(kernel))
            for edge in INTO[kernel]:
                back = [c for c in self.changes(edge)[1] if c.hidden_by != (kernel, "activation_gradient")]
                needed = self.side(edge.start, "gradient_needs")
                name = back[0].name if back else None
                shards = exchanged(inputs, self.side(kernel, "gradient_gives"), needed, name)
                before = whole.get(edge.start, [np.zeros(1)] * self.tp)
                whole[edge.start] = [a + b for a, b in zip(before, shards, strict=True)]
        shards = whole["mlp_residual"]
        return np.concatenate(shards, axis=AXIS[layout]) if layout in AXIS else shards[0]

    def through(self, kernel: str, gradients: list[Array]) -> list[Array]:
        """Gradients of a kernel's input from those of its output."""
        kept, held = self.kept[kernel]
        if kernel not in SHAPES:
            return [POINTWISE[kernel][1](g, x) for g, x in zip(gradients, kept, strict=True)]
        if self.regathers(kernel):
            kept = exchanged(kept, held, "replicated", "all_gather")
        way = list(ways_of(kernel))[int(self.design.split(kernel)[0])]
        products = [x.T @ g for x, g in zip(kept, gradients, strict=True)]
        self.weight_gradients[kernel] = np.concatenate(products, axis=1 if way == "column" else 0)
        return [g @ w.T for g, w in zip(gradients, self.weight_shards(kernel), strict=True)]
