"""The model that a program trains, as far as names, inputs, weights, loops and device groups tell.

Weights of layers show hidden size and MLP width, products with square outputs show attention, a table shows the
vocabulary, and trips of loops show the number of layers. A figure that the text does not determine is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from math import prod
from typing import Final

from dse.adapters.xla.analysis import Analysis
from dse.adapters.xla.text.module import Instruction, reached
from dse.adapters.xla.training.data_flow import Source, elementwise, hands_on
from dse.adapters.xla.training.provenance import global_dims, numbers

Figures = dict[str, int | float | str]

_LAYER: Final = re.compile(r"(?:layers?|blocks?|\bh)[/_.](\d+)")


def model_figures(analysis: Analysis) -> Figures:
    """The model, its number formats, its batch and the mesh of devices; what does not show is left out."""
    figures: Figures = {"mesh.devices": analysis.devices}
    products = Counter[str]()
    for kernel in analysis.graph.kernels:
        for product in kernel.products:
            products[product.operands[0].dtype] += kernel.count * product.flops
    if products:
        figures["model.compute_dtype"] = products.most_common(1)[0][0]
    if analysis.state.weights:
        figures["model.master_dtype"] = analysis.state.weights[0].shape.dtype
    if analysis.state.inputs:
        figures["batch.inputs"] = inputs_text(analysis.state.inputs)
    figures |= mesh_figures(analysis) | gradient_figures(analysis)
    tokens, given = step_tokens(analysis), given_tokens(analysis)
    if given:
        figures["model.micro_batch_per_dp_replica"] = given[0]
    if tokens:
        figures |= {"model.sequence": tokens[1], "model.global_batch": tokens[0]}
    if given and "tp" in analysis.axes:
        figures.update(transformer_figures(analysis, given[0], analysis.axes["tp"]))
    return figures


_TOKENS: Final = ("s32", "u32", "s64", "u64", "s16", "u16")


def given_tokens(analysis: Analysis) -> tuple[int, int] | None:
    """Sequences, and tokens of each, that one device is given; None where no input tells. [-]"""
    return _commonest(analysis, {word: word.shape.dims for word in _words(analysis)})


def _words(analysis: Analysis) -> list[Instruction]:
    """Whole-numbered inputs of the fewest dimensions beyond one: others than the last count sequences."""
    inputs = (given for given in analysis.state.inputs if given.shape.dtype in _TOKENS and given.shape.size)
    several = [array for array in inputs if len(array.shape.dims) > 1]
    return [array for array in several if len(array.shape.dims) == min(len(one.shape.dims) for one in several)]


def _commonest(analysis: Analysis, dims: Mapping[Instruction, tuple[int, ...]]) -> tuple[int, int] | None:
    """Sequences and tokens that most inputs have, by their dimensions on one device or on all."""
    counted = Counter[tuple[int, int]]()
    for source, (*rows, columns) in dims.items():
        counted[prod(rows), columns * _positions(analysis, source) // source.shape.dims[-1]] += 1
    return counted.most_common(1)[0][0] if counted else None


def _positions(analysis: Analysis, words: Instruction) -> int:
    """Tokens of a sequence that the model reads: fewer than are given where the last ones are only predicted.

    So it is where all that reads the sequence takes slices of more than half of it.
    """
    length = words.shape.dims[-1]
    lengths, readers = set[int](), analysis.provenance.readers

    def after(source: Source) -> Iterator[Source]:
        for reader in readers.get(source, ()):
            whole = reader.instruction.operands[0].shape.dims if reader.opcode == "slice" else ()
            cut = [dim for dim, before in zip(reader.shape.dims, whole, strict=False) if dim < before == length]
            if not cut and reader.shape.dtype in _TOKENS and (hands_on(reader) or elementwise(reader)):
                yield reader
            else:
                lengths.add(cut[0] if cut else length)

    start: Source = int(words.argument)
    list(reached([start], after))
    most = max(lengths, default=length)
    return most if 2 * most > length else length


def step_tokens(analysis: Analysis) -> tuple[int, int] | None:
    """Sequences, and tokens of each, of a step on all devices; None where the text does not tell. [-]

    By the sharding of the inputs, else by the axes of the mesh.
    """
    given, axes, words = given_tokens(analysis), analysis.axes, _words(analysis)
    if given is None:
        return None
    if all("sharding" in word.attributes for word in words):
        return _commonest(analysis, {word: global_dims(word) for word in words})
    if "dp" not in axes and analysis.devices > 1:
        return None
    return given[0] * axes.get("dp", 1), given[1] * axes.get("cp", 1)


def mesh_figures(analysis: Analysis) -> Figures:
    """Axes of the mesh of devices by what they are for; an axis whose devices are unknown is left out."""
    axes = {name: analysis.axes[name] for name in ("dp", "pp", "cp", "tp", "ep") if name in analysis.axes}
    figures: Figures = {f"mesh.{name}": size for name, size in axes.items()}
    across = [name for name in axes if name != "ep"]  # experts lie across the others
    if len(across) > 1 and prod(axes[name] for name in across) == analysis.devices:
        figures["mesh.shape"] = f"{'x'.join(str(axes[name]) for name in across)} ({','.join(across)})"
    return figures


def inputs_text(inputs: Sequence[Instruction]) -> str:
    """Parameter numbers of the inputs, with their shapes."""
    runs = [(shape, list(run)) for shape, run in groupby(inputs, key=lambda entry: str(entry.shape))]
    return ", ".join(f"{numbers(run)} {shape}" for shape, run in runs)


def gradient_figures(analysis: Analysis) -> Figures:
    """Elements that replicas sum to gradients, by type."""
    elements = Counter[str]()
    for number, collective in analysis.collectives.items():
        if collective.name != "all-gather" and collective.purpose in ("data parallel", "fully sharded"):
            kernel = analysis.graph.kernels[number]
            for operand in kernel.instruction.operands:
                elements[operand.shape.dtype] += kernel.count * operand.shape.size
    return {f"grad_sync.{dtype}_elements": count for dtype, count in elements.items()}


def transformer_figures(analysis: Analysis, micro_batch: int, tp: int) -> Figures:
    """Dimensions of a transformer with heads split over `tp` devices.

    Scores are the batched products with square outputs; a matrix that layers have comes as often as they do,
    and a table once more.
    """
    names = [_LAYER.search(kernel.instruction.op_name) for kernel in analysis.graph.kernels]
    layers = len({int(name[1]) for name in names if name})
    scores = [p for kernel in analysis.graph.kernels for p in kernel.products if p.batch > 1 and p.m == p.n]
    figures: Figures = {"model.layers": layers} if layers else {}
    if not scores or not layers:
        return figures
    head_dim, heads = scores[0].k, scores[0].batch // micro_batch * tp
    hidden = heads * head_dim
    matrices = Counter(dims for weight in analysis.state.weights if len(dims := global_dims(weight)) == 2)
    tables = sorted(
        (rows for (rows, columns), count in matrices.items() if columns == hidden and count % layers == 1), reverse=True
    )
    widths = [columns for (rows, columns), count in matrices.items() if rows == hidden and count >= layers]
    figures |= {"model.hidden": hidden, "model.heads_global": heads, "model.head_dim": head_dim}
    if widths:
        figures["model.ffn"] = max(widths)
    figures.update(dict(zip(("model.vocab_padded", "model.max_positions"), tables, strict=False)))
    return figures
