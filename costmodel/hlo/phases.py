"""What a kernel is for: its pass and its part of the model, as far as the program's own names tell.

Compilers keep, drop and merge such names, so that no cost depends on them.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from costmodel.hlo.graph import HloGraph, HloKernel

Phase = Literal["forward", "recompute", "backward", "optimizer", "unknown"]
PHASES: Final[tuple[Phase, ...]] = ("forward", "recompute", "backward", "optimizer", "unknown")

_BACKWARD: Final = re.compile(r"transpose\(")
_REPEATED: Final = re.compile(r"rematted_computation")
_REPEATED_REGION: Final = re.compile(r"(?:remat|checkpoint)\(")
_EMBEDDING: Final = re.compile(r"embed|wte|wpe", re.IGNORECASE)
_LAYERS: Final = re.compile(
    r"encoder|decoder|layers?\b|layer_|blocks?\b|block_|attention|attn|mlp", re.IGNORECASE
)


def phases(graph: HloGraph) -> list[Phase]:
    """The pass of each kernel.

    Notes
    -----
    A name that says "transposed" is of the backward pass. What is recomputed bears that name too. Newer names
    tell it apart; where older ones tell the region alone, its kernels that read no gradient are recomputed.
    What is not differentiated and reads a gradient is the optimizer. A kernel without a name is of the latest
    pass that it reads from.
    """
    found: list[Phase] = []
    named = any(kernel.instruction.op_name for kernel in graph.kernels)
    data: list[list[int]] = [[] for _ in graph.kernels]
    for edge in graph.edges:
        if edge.output is not None:
            data[edge.consumer].append(edge.producer)
    for kernel, before in zip(graph.kernels, data, strict=True):
        read = [found[place] for place in before]
        found.append(_phase(kernel.instruction.op_name, read) if named else "unknown")
    return found


def _phase(name: str, read: list[Phase]) -> Phase:
    if not name:
        return max(read, key=PHASES.index, default="forward")
    after_gradient = any(phase in ("backward", "optimizer") for phase in read)
    if _BACKWARD.search(name):
        in_region = _REPEATED_REGION.search(name) and not after_gradient
        return "recompute" if in_region or _REPEATED.search(name) else "backward"
    if "jvp" in name or not after_gradient:
        return "forward"
    return "optimizer"


def part(kernel: HloKernel) -> str:
    """The part of a transformer that a kernel belongs to: "embedding", "encoder", or else "head"."""
    name = kernel.instruction.op_name
    if _EMBEDDING.search(name):
        return "embedding"
    return "encoder" if _LAYERS.search(name) else "head"
