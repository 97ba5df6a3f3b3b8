"""A small layer that is run twice: whole, and by ranks that hold shards and exchange what an assignment says.

The kernels are simple, but fussy about layouts: norms need all features, and the activation function
squares, so that summands must have been added up before.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from costmodel import ModelShape
from costmodel.steps.micro_batch.exchanges import LayoutChange, layout_changes
from costmodel.training.blocks import DECODER, Edge, Layer
from costmodel.training.kernel_kind import Kernel
from costmodel.training.run import RankRun

Array = NDArray[np.float64]
AXIS = {"sequence": 0, "column": 1}

MODEL = ModelShape(num_layers=1, hidden_size=8, num_attention_heads=4, head_size=3, ffn_hidden_size=20, seq_len=4)


def centred(x: Array) -> Array:
    return x - x.mean(axis=1, keepdims=True)


def attended(x: Array) -> Array:
    """Heads one after the other, each with query, key and value of 3."""
    query, key, value = np.moveaxis(x.reshape(len(x), -1, 3, 3), 2, 0)
    return (query + 2 * key + 3 * value).reshape(len(x), -1)


def attended_back(gradient: Array) -> Array:
    heads = gradient.reshape(len(gradient), -1, 1, 3)
    return (heads * np.array([1.0, 2.0, 3.0])[:, np.newaxis]).reshape(len(gradient), -1)


#: Kind of kernel without a weight -> its forward pass, and the gradient of its input.
POINTWISE: dict[str, tuple[Callable[[Array], Array], Callable[[Array, Array], Array]]] = {
    "norm": (centred, lambda g, x: centred(g)),
    "attention": (attended, lambda g, x: attended_back(g)),
    "activation": (lambda x: x**2, lambda g, x: 2 * x * g),
    "residual": (lambda x: x, lambda g, x: g),
}


def shapes(layer: Layer) -> dict[str, tuple[int, int]]:
    """Shapes of the weights of a layer."""
    sizes = {word: int(size) for word, size in MODEL.features.items()}
    products = [kernel for kernel in layer.kernels if kernel.splits_weight]
    return {kernel.name: (sizes[kernel.reads], sizes[kernel.makes]) for kernel in products}


def shared_out(whole: Array, layout: str, tp: int) -> list[Array]:
    if layout in AXIS:
        return np.split(whole, tp, axis=AXIS[layout])
    return [whole / tp if layout == "partial" else whole] * tp


def exchanged(shards: list[Array], held: str, needed: str, collective: str | None) -> list[Array]:
    """Shards of ranks after a collective, or after each rank has cut out its share."""
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


def joined(shards: list[Array], layout: str) -> Array:
    """A whole from what ranks hold of it."""
    return np.concatenate(shards, axis=AXIS[layout]) if layout in AXIS else shards[0]


@dataclass
class ShardedLayer:
    """One run of a layer by the ranks of a design, forward and backward."""

    run: RankRun
    weights: dict[str, Array]
    layer: Layer = DECODER
    outputs: dict[str, list[Array]] = field(default_factory=dict)
    kept: dict[str, tuple[list[Array], str]] = field(default_factory=dict)
    weight_gradients: dict[str, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.tp = int(self.run.design.tp[0])
        self.last = self.layer.stream

    def into(self, kernel: Kernel) -> list[Edge]:
        return [edge for edge in self.layer.edges if edge.end == kernel]

    def option(self, kernel: Kernel) -> str:
        return [*kernel.kind.shardings][int(self.run.design.place(kernel)[0])]

    def side(self, kernel: Kernel, side: str) -> str:
        return str(getattr(kernel.kind.shardings[self.option(kernel)], side))

    def changes(self, edge: Edge) -> tuple[list[LayoutChange], list[LayoutChange]]:
        return layout_changes(self.run, edge)

    def exchanged_once(self, edge: Edge, side: int) -> Edge | None:
        """The edge before this one whose exchange serves it too, of activations (0) or of gradients (1)."""
        if self.own(edge, side):
            return None
        needed = [change.name for change in self.own(replace(edge, sharing=()), side)]
        for other in edge.sharing:
            if needed and [change.name for change in self.own(replace(other, sharing=()), side)] == needed:
                return other
        return None

    def own(self, edge: Edge, side: int) -> list[LayoutChange]:
        """Collectives of an edge's activation or gradient, but for inputs that are gathered again."""
        again = ((edge.end.name,), "activation_gradient")
        return [change for change in self.changes(edge)[side] if change.hidden_by != again]

    def moved(self, shards: list[Array], edge: Edge, side: int) -> list[Array]:
        """Shards at the other end of an edge, after the collective of the edge."""
        ends = (edge.start, "gives", edge.end, "needs") if side == 0 else (
            edge.end, "gradient_gives", edge.start, "gradient_needs"
        )  # fmt: skip
        names = [change.name for change in self.own(edge, side)]
        held, needed = self.side(*ends[:2]), self.side(*ends[2:])
        return exchanged(shards, held, needed, names[0] if names else None)

    def inputs(self, kernel: Kernel) -> list[list[Array]]:
        """Activations as a kernel needs them: gathered once for several, added up before if that will do."""
        bundles: dict[Edge, list[Array]] = {}
        for edge in self.into(kernel):
            served = self.exchanged_once(edge, 0)
            shards = self.outputs[edge.start.name]
            if served is None:
                bundles[edge] = shards
            elif served.end == kernel:
                bundles[served] = [a + b for a, b in zip(bundles[served], shards, strict=True)]
            else:
                bundles[served] = shards
        return [self.moved(shards, edge, 0) for edge, shards in bundles.items()]

    def forward(self, given: Array) -> Array:
        self.outputs[self.last.name] = shared_out(given, self.side(self.last, "gives"), self.tp)
        for kernel in self.layer.kernels:
            summed = [np.sum(partial_sums, axis=0) for partial_sums in zip(*self.inputs(kernel), strict=True)]
            product, only = kernel.splits_weight, self.into(kernel)[0]
            gathers = product and self.regathers(kernel)
            held = self.side(only.start, "gives") if gathers else self.side(kernel, "needs")
            self.kept[kernel.name] = (self.outputs[only.start.name] if gathers else summed, held)
            if product:
                shards = self.weight_shards(kernel)
                self.outputs[kernel.name] = [x @ w for x, w in zip(summed, shards, strict=True)]
            else:
                self.outputs[kernel.name] = [POINTWISE[kernel.kind.name][0](x) for x in summed]
        return joined(self.outputs[self.last.name], self.side(self.last, "gives"))

    def regathers(self, kernel: Kernel) -> bool:
        back = self.changes(self.into(kernel)[0])[1]
        return any(change.hidden_by == ((kernel.name,), "activation_gradient") for change in back)

    def weight_shards(self, kernel: Kernel) -> list[Array]:
        axis = 1 if self.option(kernel) == "column" else 0
        return np.split(self.weights[kernel.name], self.tp, axis=axis)

    def backward(self, gradient: Array) -> Array:
        """Gradient of the layer's input; those of weights are kept."""
        layout = self.side(self.last, "gradient_needs")
        whole = {self.last.name: shared_out(gradient, layout, self.tp)}
        waiting: dict[Edge, list[Array]] = {}  # summands for an exchange that comes later
        for kernel in reversed(self.layer.kernels):
            inputs = self.through(kernel, whole.pop(kernel.name))
            for edge in self.into(kernel):
                shards, served = inputs, self.exchanged_once(edge, 1)
                if edge in waiting:
                    shards = [a + b for a, b in zip(shards, waiting.pop(edge), strict=True)]
                if served is not None and served.start == edge.start:
                    waiting[served] = shards
                    continue
                shards = self.moved(shards, served or edge, 1)
                before = whole.get(edge.start.name, [np.zeros(1)] * self.tp)
                whole[edge.start.name] = [a + b for a, b in zip(before, shards, strict=True)]
        assert not waiting
        return joined(whole[self.last.name], layout)

    def through(self, kernel: Kernel, gradients: list[Array]) -> list[Array]:
        """Gradients of a kernel's input from those of its output."""
        kept, held = self.kept[kernel.name]
        if not kernel.splits_weight:
            return [POINTWISE[kernel.kind.name][1](g, x) for g, x in zip(gradients, kept, strict=True)]
        if self.regathers(kernel):
            kept = exchanged(kept, held, "replicated", "all_gather")
        products = [x.T @ g for x, g in zip(kept, gradients, strict=True)]
        axis = 1 if self.option(kernel) == "column" else 0
        self.weight_gradients[kernel.name] = np.concatenate(products, axis=axis)
        return [g @ w.T for g, w in zip(gradients, self.weight_shards(kernel), strict=True)]


def check_ranks(alone: ShardedLayer, layers: Iterable[ShardedLayer], rng: np.random.Generator) -> None:
    """Layers on several ranks have the outputs and the gradients of the layer on one."""
    given, gradient = rng.normal(size=(2, 4, 8))
    expected = alone.forward(given), alone.backward(gradient)
    for layer in layers:
        np.testing.assert_allclose(layer.forward(given), expected[0], rtol=1e-9)
        np.testing.assert_allclose(layer.backward(gradient), expected[1], rtol=1e-8)
        for name, whole in alone.weight_gradients.items():
            np.testing.assert_allclose(layer.weight_gradients[name], whole, rtol=1e-8, atol=1e-9)
