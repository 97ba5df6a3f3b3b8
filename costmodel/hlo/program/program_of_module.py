"""A module as a program that can be evaluated."""

from __future__ import annotations

from collections.abc import Mapping
from math import nan, prod
from typing import Final

from costmodel.hlo.analysis import Analysis
from costmodel.hlo.memory.reserved_memory import Reserved, needed, reserved
from costmodel.hlo.program.program import Dense, Message, MessageKind, Program, ProgramKernel
from costmodel.hlo.summary.model_figures import step_tokens
from costmodel.hlo.training.messages import Collective
from costmodel.hlo.training.state import global_dims
from costmodel.hlo.work.kernel_graph import HloKernel
from costmodel.hlo.work.matrix_products import Product

#: Collective -> how it is evaluated. A broadcast passes its message along a ring once, as a gather does, a
#: reduction to one device as a scatter.
_MESSAGES: Final[Mapping[str, MessageKind]] = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-broadcast": "all_gather",
    "collective-reduce": "reduce_scatter",
    "collective-permute": "send_recv",
    "send": "send_recv",
}


def program(analysis: Analysis) -> Program:
    """The tables of a module's kernels, in the order of the text."""
    state, module = analysis.state, analysis.module
    held = {
        "weights": state.weights,
        "optimizer": state.kept,
    }
    resident = {name: sum(each.shape.bytes for each in own) for name, own in held.items()}
    parameters = sum(each.shape.bytes for each in module.entry.parameters)
    tokens, needs = step_tokens(analysis), memory(analysis)[1]
    return Program(
        name=module.name,
        kernels=tuple(
            _kernel(analysis, place, kernel) for place, kernel in enumerate(analysis.graph.kernels)
        ),
        devices=analysis.devices,
        num_parameters=sum(prod(global_dims(each)) for each in state.weights),
        tokens=tokens[0] * tokens[1] if tokens else nan,
        weights_bytes=resident["weights"],
        optimizer_bytes=resident["optimizer"],
        inputs_bytes=parameters - resident["weights"] - resident["optimizer"],
        temporaries_bytes=needs.temporaries + needs.results,
    )


def memory(analysis: Analysis) -> tuple[str, Reserved]:
    """What one device holds, and the order of the instructions that it belongs to.

    A module that says that it is scheduled runs in the order of its text. For others that order is only one
    in which they can run; a scheduler has yet to choose, and is taken to free memory as soon as it can.
    """
    if analysis.module.is_scheduled:
        return "the text's order, which is its schedule", reserved(analysis.as_written)
    return "what frees memory first; the text is not scheduled", needed(analysis.freed_early)


def _kernel(analysis: Analysis, place: int, kernel: HloKernel) -> ProgramKernel:
    collective = analysis.collectives.get(place)
    return ProgramKernel(
        name=kernel.name,
        kind=kernel.kind,
        phase=analysis.phases[place],
        count=kernel.count,
        bytes_moved=analysis.access[place].total,
        flops=analysis.work[place].total,
        products=tuple(_dense(product) for product in kernel.products),
        message=None if collective is None else _message(collective),
    )


def _dense(product: Product) -> Dense:
    """A product, its operands as wide as the wider of them."""
    element_bytes = max(operand.element_bytes for operand in product.operands[:2])
    read_again = product.operands[2].element_bytes if product.beta else 0.0
    moved = product.output.element_bytes + read_again
    return Dense(product.batch, product.m, product.n, float(product.k * product.useful), element_bytes, moved)


def _message(collective: Collective) -> Message:
    placed, kind = collective.placement, _MESSAGES[collective.name]
    whole = collective.result_bytes if collective.name == "all-gather" else collective.payload_bytes
    return Message(kind, whole, placed.size, placed.stride, collective.purpose)
