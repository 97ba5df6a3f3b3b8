"""One transformer layer as a graph, of any kind of attention and MLP; forward alone, or backward too.

A kernel is a line: name, outer, m, k (- for vector kernels) and n, by the words of `layer_graph`; then * where its
second operand is a weight. An edge line is a kernel and the readers of its output. `{0}`, `{1}`, ... are the kernels
that make the row's inputs, `{gradient}` those that make the gradient of its output. Rows that the reference does not
have are written by their kind.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray, IntArray
from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside
from costmodel.training.blocks import DECODER, STREAM, Layer, kinds_unknown_to
from costmodel.training.kernel_kind import Kernel
from costmodel.training.model import ModelShape
from dse.adapters.dfmodel.graph import DfmodelGraph, K, N


@dataclass(frozen=True, slots=True)
class PassRows:
    """Kernels in one pass, and the edges that come with them, both in the file's order."""

    kernels: str = ""
    edges: str = ""


@dataclass(frozen=True, slots=True)
class Fragment:
    """A row of a block in the forward pass, in the backward pass, and in the gradients of its weights."""

    forward: PassRows
    output: str  #: the kernel that makes its output
    backward: PassRows = PassRows()
    gradient: str = ""  #: the kernels that make the gradient of its input; none in graphs that leave it out
    gradients: PassRows = PassRows()


#: Makes the residual stream before the first layer, and its gradient after the last.
BEFORE: Final = "Add_Prev_Layer 1 H - S"
LOSS: Final = "Loss_bwd 1 H - S"


def residual(drop: str, add: str, summands: int = 1) -> Fragment:
    """A dropout of the outputs of products, and the addition to the residual stream, the last input."""
    before, sums, edges = "{0}", [], []
    for summand in range(1, summands):
        sums.append(f"{add}_{summand} 1 H - S")
        edges.append(f"{before} > {add}_{summand}\n{{{summand}}} > {add}_{summand}")
        before = f"{add}_{summand}"
    edges.append(f"{before} > {drop}\n{drop} > {add}\n{{{summands}}} > {add}")
    kernels = [*sums, f"{drop} 1 H - S", f"{add} 1 H - S"]
    back = PassRows(f"{drop}_bwd 1 H - S", f"{{gradient}} > {drop}_bwd")
    return Fragment(PassRows("\n".join(kernels), "\n".join(edges)), add, back, f"{drop}_bwd")


def _fragment_of(data: Mapping[str, Any], **words: str) -> Fragment:
    """A fragment of `fragments.yaml`, with words in its slots."""

    def filled(part: Any) -> Any:
        if isinstance(part, dict):
            return PassRows(**{name: filled(text) for name, text in part.items()})
        for slot, word in words.items():
            part = part.replace(slot, word)
        return part

    return Fragment(**{name: filled(part) for name, part in data.items()})


WRITTEN: Final[Mapping[str, Any]] = data_beside(__file__, "fragments.yaml")


def template(of: str, NAME: str, READS: str = "", MAKES: str = "") -> Fragment:
    """A row of a kind; of a product with a weight, from some features to others."""
    return _fragment_of(WRITTEN["templates"][of], NAME=NAME, READS=READS, MAKES=MAKES)


#: Row -> how the reference writes it.
FRAGMENTS: Final = {
    "attention_residual": residual("DropOut_2", "Add_1"),
    "mlp_residual": residual("DropOut_3", "Add_2"),
    **{name: template(**data) if "of" in data else _fragment_of(data) for name, data in WRITTEN["rows"].items()},
}

#: Fields of a model that decide on the sizes of its graph.
SHAPE: Final = "hidden_size num_attention_heads seq_len num_query_groups head_size ffn_hidden_size gated_mlp dropout"
#: Features of the native model by the words of the graph.
WORDS: Final = {"hidden": "H", "attention": "nd", "up": "U", "ffn": "F"}


def fragment(kernel: Kernel) -> Fragment:
    """The fragment of the graph for one row of a block."""
    if kernel.name in FRAGMENTS:
        return FRAGMENTS[kernel.name]
    if kernel.splits_weight:
        return template("product", kernel.name, WORDS[kernel.reads], WORDS[kernel.makes])
    if kernel.kind.name == "residual":
        return residual(f"{kernel.name}_dropout", kernel.name, len(kernel.inputs) - 1)
    return template(kernel.kind.name, kernel.name)


Words = dict[str, FloatArray]


def model_graph(model: ModelShape, *, backward: bool = True, element_bytes: float = 2.0) -> DfmodelGraph:
    """The graph of one layer of a model whose layers are all alike, one sequence at a time.

    Rotary positions are left out, as the reference has no kernel for them. With `backward`, it has the kernels of the
    backward pass. `element_bytes` is the size of an element. [B] Raises `DseError` if the model has layers of several
    kinds, or kernels that the graph does not have.
    """
    if len(model.kinds) > 1:
        raise DseError(f"model {model.name}: has layers of several kinds; DFModel's graph is of one layer")
    if beyond := kinds_unknown_to("dfmodel", model.kinds):
        raise DseError(f"model {model.name}: has {', '.join(beyond)}; DFModel's graph has no such kernels")
    shape: dict[str, Any] = {name: getattr(model, name) for name in SHAPE.split()}
    return layer_graph(**shape, backward=backward, element_bytes=element_bytes, layer=next(iter(model.kinds)))


def layer_graph(
    hidden_size: FloatArray | float,
    num_attention_heads: FloatArray | float,
    seq_len: FloatArray | float,
    *,
    num_query_groups: FloatArray | float | None = None,
    head_size: FloatArray | float | None = None,
    ffn_hidden_size: FloatArray | float | None = None,
    gated_mlp: bool = False,
    dropout: bool = True,
    backward: bool = True,
    element_bytes: FloatArray | float = 2.0,
    layer: Layer | None = None,
) -> DfmodelGraph:
    """The graph of one layer, for one design or for many at once; by default that of GPT.

    Raises `DseError` if heads or groups do not divide the dimension that they split.

    Shapes are floats or (points,) columns. [-] By default there is one head of keys and values for each head,
    `head_size` is the hidden size over the heads, and `ffn_hidden_size` four times the hidden size. With `gated_mlp`,
    the first product of the MLP makes a gate as well, in one matrix of twice the width. `dropout` and `backward` add
    their kernels. `element_bytes` is the size of one element [B], `layer` the kernels, by default those of GPT.
    """
    if head_size is None and np.any(np.asarray(hidden_size) % num_attention_heads):
        raise DseError("num_attention_heads: does not divide the hidden size; choose one of its divisors")
    given = {
        "H": hidden_size,
        "n": num_attention_heads,
        "S": seq_len,
        "g": num_attention_heads if num_query_groups is None else num_query_groups,
        "d": hidden_size / np.asarray(num_attention_heads, dtype=np.float64) if head_size is None else head_size,
        "F": 4 * np.asarray(hidden_size) if ffn_hidden_size is None else ffn_hidden_size,
    }
    words = _words({name: np.asarray(value, dtype=np.float64) for name, value in given.items()}, gated_mlp)
    rows, edges = _written(layer or DECODER, backward)
    if not dropout:  # its readers read its input
        before = {end: start for start, end in edges if end.startswith("DropOut")}
        edges = [(before.get(start, start), end) for start, end in edges if end not in before]
        rows = [row for row in rows if not row[0].startswith("DropOut")]
    graph = _graph(rows, edges, words, np.asarray(element_bytes, dtype=np.float64))
    if gated_mlp:
        graph = replace(graph, names=tuple(name.replace("GeLU", "SwiGLU") for name in graph.names))
    return graph


def _written(layer: Layer, backward: bool) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """Kernel lines and edges of a layer, in the order of the reference's files.

    The backward pass goes through the rows in reverse, along the way of the products: the additions to the residual
    stream have no separate gradient. Weights get their gradients last.
    """
    made = _inputs_of(layer)
    forward, back, gradients = [PassRows(BEFORE)], [PassRows(LOSS)], []
    for block in layer.blocks:
        forward += [_filled(fragment(k).forward, made[block.name, k.name], []) for k in block.kernels]
    from_stream = LOSS.split()[0]
    for block in reversed(layer.blocks):
        makers = {block.kernels[-1].name: from_stream}  # of the gradient of each row's output
        for kernel in reversed(block.kernels):
            dims, inputs = fragment(kernel), made[block.name, kernel.name]
            given = makers[kernel.name].split()
            if dims.backward.kernels:
                sums, given = _summed(given, f"{kernel.name}_bwd_sum")
                back += [*sums, _filled(dims.backward, inputs, given)]
            gradients.append(_filled(dims.gradients, inputs, given))
            for name in kernel.inputs:
                if kernel.kind.name != "residual" or name != STREAM:
                    makers[name] = f"{dims.gradient} {makers.get(name, '')}".strip()
        from_stream = makers[STREAM]
    parts = [*forward, *back, *gradients] if backward else forward
    rows = [line.split() for part in parts for line in part.kernels.splitlines() if line.strip()]
    edges = (line.partition(">") for part in parts for line in part.edges.splitlines())
    return rows, [(producer.strip(), consumer) for producer, _, consumers in edges for consumer in consumers.split()]


def _inputs_of(layer: Layer) -> dict[tuple[str, str], list[str]]:
    """Block and row -> the kernels of the graph that make its inputs, in the order of the row."""
    makers_of, stream = {}, BEFORE.split()[0]
    for block in layer.blocks:
        outputs = {STREAM: stream}
        for kernel in block.kernels:
            makers_of[block.name, kernel.name] = [outputs[name] for name in kernel.inputs]
            outputs[kernel.name] = fragment(kernel).output
        stream = outputs[block.kernels[-1].name]
    return makers_of


def _summed(makers: list[str], name: str) -> tuple[list[PassRows], list[str]]:
    """Kernels that sum outputs of others until a kernel can read them, two at most, and the makers after that."""
    sums = []
    while len(makers) > 2:
        maker_name = f"{name}_{len(makers)}"
        sums.append(PassRows(f"{maker_name} 1 H - S", "\n".join(f"{maker} > {maker_name}" for maker in makers[:2])))
        makers = [maker_name, *makers[2:]]
    return sums, makers


def _filled(part: PassRows, inputs: Sequence[str], gradient: Sequence[str]) -> PassRows:
    """A part with the kernels around it in their places: a line for each that makes the gradient."""
    lines = [
        line.replace("{gradient}", name).format(*inputs)
        for line in part.edges.splitlines()
        for name in (gradient if "{gradient}" in line else [""])
    ]
    return PassRows(part.kernels, "\n".join(lines))


def _graph(
    rows: Sequence[Sequence[str]], edges: Sequence[tuple[str, str]], words: Words, element_bytes: FloatArray
) -> DfmodelGraph:
    """Sizes follow from dimensions, and those of inputs from their producers, in the order of the edges."""
    names = tuple(row[0] for row in rows)
    columns = (np.broadcast_arrays(*(words[row[field]] for row in rows)) for field in range(1, 5))
    outer, m, k, n = (np.stack(column, axis=-1) for column in columns)
    output = outer * m * n * element_bytes[..., np.newaxis]
    start, end = (np.array([names.index(edge[side]) for edge in edges]) for side in (0, 1))
    first, second = _inputs(output, start, end)
    weighted = np.array([row[5:] == ["*"] for row in rows])
    second = np.where(weighted, outer * m * k * element_bytes[..., np.newaxis], second)
    return DfmodelGraph(
        names=names,
        backward=np.array(["_bwd" in name for name in names]),
        systolic=np.array([row[3] != "-" for row in rows]),
        weighted=weighted,
        tiling=np.array([K if name.endswith("_weight_update") else N for name in names]),
        outer=outer, m=m, k=k, n=n,
        first_bytes=first, second_bytes=second, output_bytes=output,
        start=start, end=end,
    )  # fmt: skip


def _inputs(output: FloatArray, start: IntArray, end: IntArray) -> tuple[FloatArray, FloatArray]:
    """Sizes of the first and the second input of each kernel; one without producers reads its own output. [B]"""
    first, second = output.copy(), np.zeros_like(output)
    for column in range(output.shape[-1]):
        producers = start[end == column]
        for size, producer in zip((first, second), producers, strict=False):
            size[..., column] = output[..., producer]
    return first, second


def _words(given: Words, gated_mlp: bool) -> Words:
    """Dimensions that the tables name. [-]

    H hidden size, n heads, g groups of them, d head size, S sequence, r heads of a group, F size of the MLP,
    U width of its first product.
    """
    heads, groups, seq = given["n"], given["g"], given["S"]
    if np.any(heads % groups):
        raise DseError("num_query_groups: does not divide num_attention_heads; choose one of its divisors")
    return given | {
        **dict.fromkeys("1-", np.ones(())), "nd": heads * given["d"], "gd": groups * given["d"],
        "rS": heads / groups * seq, "U": (2 if gated_mlp else 1) * given["F"],
    }  # fmt: skip
