"""What a program trains, as far as its names, inputs, weights and groups of devices tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from math import prod
from typing import Final

from costmodel.hlo.analysis import Analysis
from costmodel.hlo.layers import scanned_layers
from costmodel.hlo.module import Instruction
from costmodel.hlo.state import global_dims, numbers

Figures = dict[str, int | float | str]

_LAYER: Final = re.compile(r"(?:layers?|blocks?|\bh)[/_.](\d+)")


def model_figures(analysis: Analysis) -> Figures:
    """The model, its number formats, its batch and the mesh of devices; what does not show is left out."""
    found: Figures = {"mesh.devices": analysis.devices}
    products = Counter[str]()
    for kernel in analysis.graph.kernels:
        for product in kernel.products:
            products[product.operands[0].dtype] += kernel.count * product.flops
    if products:
        found["model.compute_dtype"] = products.most_common(1)[0][0]
    if analysis.state.weights:
        found["model.master_dtype"] = analysis.state.weights[0].shape.dtype
    if analysis.state.inputs:
        found["batch.inputs"] = inputs_text(analysis.state.inputs)
    found |= mesh_figures(analysis) | gradient_figures(analysis)
    tokens, given = step_tokens(analysis), analysis.state.tokens()
    if given:
        found["model.micro_batch_per_dp_replica"] = given[0]
    if tokens:
        found |= {"model.sequence": tokens[1], "model.global_batch": tokens[0]}
    if given and "tp" in analysis.axes:
        found.update(transformer_figures(analysis, given[0], analysis.axes["tp"]))
    if "model.layers" not in found and (layers := scanned_layers(analysis)):
        found["model.layers"] = layers
    return found


def step_tokens(analysis: Analysis) -> tuple[int, int] | None:
    """Sequences, and tokens of each, of a step on all devices; None where the text does not tell. [-]

    By the sharding of the inputs, else by the axes of the mesh.
    """
    given, axes = analysis.state.tokens(), analysis.axes
    if given is None:
        return None
    whole = analysis.state.whole_tokens()
    if whole:
        return whole
    if "dp" not in axes and analysis.devices > 1:
        return None
    return given[0] * axes.get("dp", 1), given[1] * axes.get("cp", 1)


def mesh_figures(analysis: Analysis) -> Figures:
    """Axes of the mesh of devices by what they are for; none where devices of a kind are not told."""
    axes = {name: analysis.axes[name] for name in ("dp", "pp", "cp", "tp", "ep") if name in analysis.axes}
    found: Figures = {f"mesh.{name}": size for name, size in axes.items()}
    across = [name for name in axes if name != "ep"]  # experts lie across the others
    if len(across) > 1 and prod(axes[name] for name in across) == analysis.devices:
        found["mesh.shape"] = f"{'x'.join(str(axes[name]) for name in across)} ({','.join(across)})"
    return found


def inputs_text(inputs: Sequence[Instruction]) -> str:
    """Parameter numbers of the inputs, with their shapes."""
    runs = [(shape, list(own)) for shape, own in groupby(inputs, key=lambda each: str(each.shape))]
    return ", ".join(f"{numbers(own)} {shape}" for shape, own in runs)


def gradient_figures(analysis: Analysis) -> Figures:
    """Elements that replicas sum to gradients, by type."""
    elements = Counter[str]()
    for place, collective in analysis.collectives.items():
        if collective.name != "all-gather" and collective.purpose in ("data parallel", "fully sharded"):
            kernel = analysis.graph.kernels[place]
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
    found: Figures = {"model.layers": layers} if layers else {}
    if not scores or not layers:
        return found
    head_dim, heads = scores[0].k, scores[0].batch // micro_batch * tp
    hidden = heads * head_dim
    matrices = Counter(dims for each in analysis.state.weights if len(dims := global_dims(each)) == 2)
    tables = sorted(
        (rows for (rows, columns), count in matrices.items() if columns == hidden and count % layers == 1),
        reverse=True,
    )
    widths = [columns for (rows, columns), count in matrices.items() if rows == hidden and count >= layers]
    found |= {"model.hidden": hidden, "model.heads_global": heads, "model.head_dim": head_dim}
    if widths:
        found["model.ffn"] = max(widths)
    found.update(dict(zip(("model.vocab_padded", "model.max_positions"), tables, strict=False)))
    return found
