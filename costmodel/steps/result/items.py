"""Items of the passes of a step: kernels, exchanges and waiting on the slowest stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from costmodel.columns import FloatArray
from costmodel.kernels.kernel_cost import Item, Items, KernelCost, labelled
from costmodel.training.run import TransformerRun
from costmodel.workload.transformer import every_part

#: Passes over a stage, by the column of a breakdown that has their kernels.
PASS_COLUMNS: Final = ("forward_time", "backward_time", "recompute_time")

#: Breakdown column -> column of a `KernelCost` that it is the sum of; no items of passes are of it.
WITHOUT_ITEMS: Final = {"ep_communication_time": "ep_time", "offload_time": "offload_time"}
#: Name of what kernels wait for their host.
LAUNCHES: Final = "waiting for launches"


def schedule_items(
    run: TransformerRun, passes: Sequence[Sequence[KernelCost]], counts: Sequence[Sequence[FloatArray]]
) -> Items:
    """Items of all micro-batches of a step on the slowest stage. [s], [FLOP], [B], [-]

    `passes` are forward, backward and recomputation of one micro-batch, each by part of the model, (points,) [s];
    `counts` say how often each part is on the stage, for each pass. [-] Kernels belong to the column of their pass,
    exchanges to their own.
    """
    items: dict[Item, FloatArray] = {}
    steps, names = run.design.gradient_accumulation_steps, [part.name for part in every_part(run.model)]
    for column, costs, of_stage in zip(PASS_COLUMNS, passes, counts, strict=True):
        for part, cost, count in zip(names, costs, of_stage, strict=False):
            whole, of_pass = cost * (count * steps), column.removesuffix("_time")
            items[Item("time", column, part, name=LAUNCHES)] = whole.launch_bound_time
            for name, other_column in WITHOUT_ITEMS.items():
                items[Item("time", name, part, of_pass)] = getattr(whole, other_column)
            kernels = {item: values for item, values in whole.items.items() if not item.column}
            items |= labelled(kernels, column=column, part=part)
            exchanges = {item: values for item, values in whole.items.items() if item.column}
            items |= labelled(exchanges, part=part, of_pass=of_pass)
    return items
