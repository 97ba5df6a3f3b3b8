"""What a step is made of, by names: kernels with their work and traffic, exchanges, states, activations.

An item is a quantity of something under a path of names, of which the first is a column of a `Breakdown`:
``"forward_time/layer 0/product/qkv/qkv/forward:time"``. Times of a column add up to it, and so do bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from costmodel.columns import FloatArray
from costmodel.kernels.cost import KernelCost
from costmodel.training.run import TransformerRun
from costmodel.workload.transformer import every_part

#: Passes over a stage, by the column of a breakdown that has their kernels.
PASS_COLUMNS: Final = ("forward_time", "backward_time", "recompute_time")

#: Breakdown column -> column of a `KernelCost` that it is the sum of, over passes.
EXCHANGES: Final = {
    "tp_communication_time": "tp_time",
    "cp_communication_time": "cp_time",
    "ep_communication_time": "ep_time",
    "offload_time": "offload_time",
}
#: Item of what kernels wait for their host.
LAUNCHES: Final = "waiting for launches:time"
#: First name of a cost's items -> breakdown column; those of kernels are of the pass that they are in.
COLUMN_OF: Final = {
    "tp": "tp_communication_time",
    "cp": "cp_communication_time",
    "exchange": "ep_communication_time",
}


def schedule_items(
    run: TransformerRun, passes: Sequence[Sequence[KernelCost]], counts: Sequence[Sequence[FloatArray]]
) -> dict[str, FloatArray]:
    """Items of all micro-batches of a step on the slowest stage.

    Parameters
    ----------
    run : TransformerRun
        Model, machines and designs, (points,).
    passes : sequence of sequences of KernelCost
        Forward, backward and what is recomputed of one micro-batch, each by part of the model; (points,).
        [s]
    counts : sequence of sequences of (points,) array
        How often each part is on the stage, for each pass. [-]

    Returns
    -------
    items : mapping of (points,) arrays
        Path and quantity -> value in a step. [s], [FLOP], [B], [-]
    """
    found: dict[str, FloatArray] = {}
    steps, names = run.design.gradient_accumulation_steps, [part.name for part in every_part(run.model)]
    for column, costs, of_stage in zip(PASS_COLUMNS, passes, counts, strict=True):
        for part, cost, count in zip(names, costs, of_stage, strict=False):
            whole, of_pass = cost * (count * steps), column.removesuffix("_time")
            found[f"{column}/{part}/{LAUNCHES}"] = whole.launch_bound_time
            for name, own in EXCHANGES.items():
                if own not in ("tp_time", "cp_time"):
                    found[f"{name}/{part}/{of_pass}:time"] = getattr(whole, own)
            for path, values in whole.items.items():
                kind = re.split("[/: ]", path)[0]
                under = f"{COLUMN_OF[kind]}/{part}/{of_pass}" if kind in COLUMN_OF else f"{column}/{part}"
                found[f"{under}/{path}"] = values
    return found
