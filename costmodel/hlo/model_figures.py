"""What a program trains, as far as its names, inputs, weights and groups of devices tell."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import groupby
from typing import Final

from costmodel.hlo.analysis import Analysis
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
    if analysis.mesh:
        dp, tp = analysis.mesh
        found |= {"mesh.shape": f"{dp}x{tp} (dp,tp)", "mesh.tp": tp, "mesh.dp": dp}
        found.update(gradient_figures(analysis))
    tokens = analysis.state.tokens()
    if tokens:
        found |= {"model.micro_batch_per_dp_replica": tokens[0], "model.sequence": tokens[1]}
    if tokens and analysis.mesh:
        found["model.global_batch"] = tokens[0] * analysis.mesh[0]
        found.update(transformer_figures(analysis, tokens[0], analysis.mesh[1]))
    return found


def inputs_text(inputs: Sequence[Instruction]) -> str:
    """Parameter numbers of the inputs, with their shapes."""
    runs = [(shape, list(own)) for shape, own in groupby(inputs, key=lambda each: str(each.shape))]
    return ", ".join(f"{numbers(own)} {shape}" for shape, own in runs)


def gradient_figures(analysis: Analysis) -> Figures:
    """Elements that replicas reduce in the backward pass, by type."""
    elements = Counter[str]()
    for place, collective in analysis.collectives.items():
        if analysis.phases[place] == "backward" and collective.placement.stride > 1:
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
