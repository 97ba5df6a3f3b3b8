"""Which operands of matrix products are weights of the program, as it keeps them or in another form."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from costmodel.hlo.analysis import Analysis
from costmodel.hlo.text.module import Instruction
from costmodel.hlo.work.arithmetic import product_instructions
from costmodel.hlo.work.kernel_graph import HloGraph, HloKernel, Leaf, output_shape

#: Instructions through which an operand of a fused product is still the same array.
_SAME_ARRAY: Final = ("bitcast", "convert", "copy", "reshape", "transpose")


def weight_sides(analysis: Analysis, graph: HloGraph) -> list[tuple[int | None, ...]]:
    """For each product of each kernel which operand is a weight: 0, 1, or None where none or both are.

    A weight is a parameter that the step updates, and what kernels make of weights alone: a conversion, a
    gathered whole.
    """
    parameters = {int(each.argument) for each in analysis.state.weights}
    made: set[tuple[int, int]] = set()

    def is_weight(leaf: Leaf) -> bool:
        return leaf.parameter in parameters if leaf.source is None else leaf.source in made

    sides = []
    for place, kernel in enumerate(graph.kernels):
        sides.append(
            tuple(_side(kernel, product, is_weight) for product in product_instructions(kernel.instruction))
        )
        read = [leaf for leaf in kernel.reads if leaf.source is not None or leaf.parameter is not None]
        if read and not kernel.products and all(map(is_weight, read)):
            made |= {(place, output) for output, _ in enumerate(output_shape(kernel.instruction).leaves())}
    return sides


def _side(kernel: HloKernel, product: Instruction, is_weight: Callable[[Leaf], bool]) -> int | None:
    """The operand of one product that is a weight."""
    leaves = [_leaf(kernel, product, side) for side in (0, 1)]
    found = [side for side, leaf in enumerate(leaves) if leaf is not None and is_weight(leaf)]
    return found[0] if len(found) == 1 else None


def _leaf(kernel: HloKernel, product: Instruction, side: int) -> Leaf | None:
    """The array that a kernel reads for an operand of its product; None where it makes it itself."""
    own, operand = kernel.instruction, product.operands[side]
    if product is not own:
        while operand.opcode in _SAME_ARRAY:
            operand = operand.operands[0]
        if operand.opcode != "parameter" or operand not in own.called[0].instructions:
            return None
        side = int(operand.argument)
    before = sum(len(list(each.shape.leaves())) for each in own.operands[:side])
    return kernel.reads[before]
