"""AICB's rows of a model's layers: which kernels each stands for, and their times.

Attention and an MLP have a row up to their last product and one from there on; latent attention has one for
each product; experts have one, beside the two of an expert that all tokens share.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError
from costmodel.kernels.attention import fused_attention
from costmodel.kernels.kernel_cost import KernelCost
from costmodel.profiles.simai.aicb_rows import LATENT_ROWS
from costmodel.steps.micro_batch.kernel_sums import DIRECTIONS, CostTable
from costmodel.steps.micro_batch.micro_batch import MicroBatch, cost_table
from costmodel.training.blocks import MTP_JOIN, Block, kinds_beyond, kinds_without_word
from costmodel.training.design import RECOMPUTE_FULL
from costmodel.training.kernel_kind import Kernel
from costmodel.training.model import ModelShape
from costmodel.training.recompute_modules import MODULES
from costmodel.training.run import RankRun
from costmodel.workload.kernel_tables import PASSES, total
from costmodel.workload.transformer import BIAS_GRADIENTS, Part, every_part

#: Blocks that the rows of a layer stand for.
HALVES: Final = ("attention", "mlp")
#: The row of routed experts.
EXPERTS_ROW: Final = "mlp_moelayer"

#: Row -> times of its three passes, (points,) each. [s]
RowTimes = dict[str, list[FloatArray]]

#: Why a model has no rows.
UNKNOWN_LAYERS: Final = "AICB's rows are of layers of attention and an MLP, all alike"
UNKNOWN_ORDER: Final = (
    f"{UNKNOWN_LAYERS}, or of latent attention and experts, behind dense layers if there are any"
)


def check_alike(model: ModelShape) -> None:
    """Refuse a model whose layers are others than attention and an MLP, all alike."""
    names = tuple(block.name for layer in model.kinds for block in layer.blocks)
    if names != HALVES or kinds_beyond(model.kinds):
        raise DseError(f"model {model.name}: {UNKNOWN_LAYERS}")


def check_layers(model: ModelShape) -> None:
    """Refuse a model that has layers whose rows are not known, or in an order that is not."""
    layers = [layer for layer, _ in model.sequence]
    shapes = {tuple(block.name for block in layer.blocks) for layer in layers}
    sparse = [any(kernel.of_experts for kernel in layer.kernels) for layer in layers]
    narrow = model.num_experts and model.features["expert_in"] != model.hidden_size
    if (
        shapes != {HALVES}
        or kinds_without_word(layers, "aicb")
        or sparse not in ([False], [True], [False, True])
        or narrow
    ):
        raise DseError(f"model {model.name}: {UNKNOWN_ORDER}")


def rows_of(part: Part) -> dict[str, tuple[str, ...]]:
    """Row -> the kernels of a layer that it stands for.

    The one kernel that reduces the gradients of all biases goes with the first row of the last block.
    """
    found: dict[str, list[str]] = {}
    start: list[str] = []
    for block in part.layer.blocks if part.layer else ():
        own = {} if block == MTP_JOIN else block_rows(block)
        if not own:  # what comes before the first row belongs to it
            start = [kernel.name for kernel in block.kernels]
        for row, names in own.items():
            found[row], start = [*start, *names], []
    first = next(row for row in found if row.startswith(HALVES[-1]))
    found[first].append(BIAS_GRADIENTS)
    return {row: tuple(names) for row, names in found.items()}


def block_rows(block: Block) -> dict[str, list[str]]:
    """Row -> kernels of a block."""
    if any(kernel.of_experts for kernel in block.kernels):
        return expert_block_rows(block)
    if any(kernel.kind.name == "latent" for kernel in block.kernels):
        return latent_block_rows(block)
    names = [kernel.name for kernel in block.kernels]
    last = max(place for place, kernel in enumerate(block.kernels) if kernel.splits_weight)
    return {f"{block.name}_column": names[:last], f"{block.name}_row": names[last:]}


def latent_block_rows(block: Block) -> dict[str, list[str]]:
    """Rows of latent attention: each product with what follows it, the first with the norm before."""
    rows: dict[str, list[str]] = {}
    waiting: list[str] = []
    for kernel in block.kernels:
        if kernel.name in LATENT_ROWS:
            rows[LATENT_ROWS[kernel.name]], waiting = [*waiting, kernel.name], []
        elif rows:
            rows[[*rows][-1]].append(kernel.name)
        else:
            waiting.append(kernel.name)
    return rows


def expert_block_rows(block: Block) -> dict[str, list[str]]:
    """Rows of experts: the routed ones with all that is of none, and the two of a shared one."""
    rows: dict[str, list[str]] = {EXPERTS_ROW: []}
    shared = [kernel for kernel in block.kernels if is_shared(kernel)]
    if shared:
        last = max(place for place, kernel in enumerate(shared) if kernel.splits_weight)
        rows["mlp_column"] = [kernel.name for kernel in shared[:last]]
        rows["mlp_row"] = [kernel.name for kernel in shared[last:]]
    rows[EXPERTS_ROW] = [kernel.name for kernel in block.kernels if kernel not in shared]
    return rows


def is_shared(kernel: Kernel) -> bool:
    """Whether a kernel is of an expert that all tokens share."""
    return bool({"shared_up", "shared_ffn", "unit"} & {kernel.reads, kernel.makes})


def row_times(run: RankRun, costs: MicroBatch) -> list[RowTimes]:
    """Arithmetic of each row of one layer of each kind, of the embedding, of the head, and of a module of
    multi-token prediction.

    The rows share out what the evaluation says of a whole layer, waiting for the host included, by the times
    of their kernels. What recomputation repeats is in the forward pass.
    """
    table, found = cost_table(run), []
    modules = max(run.model.mtp_layers, 1)
    for place, part in enumerate(every_part(run.model)):
        passes = costs.forward[place].time, costs.backward[place].time
        if part.layer is None:
            name = "embedding_layer" if place == len(run.model.kinds) else "final_column"
            found.append({name: outer_times(table, part.name, costs.forward[place], costs.backward[place])})
            continue
        own = layer_times(run, part, table)
        repeated = again_times(run, part, table) if place < len(costs.again) else {}
        if part.layer == run.model.mtp_layer and run.model.mtp_layers:
            passes = passes[0] / modules, passes[1] / modules
        for places, whole in zip(((0,), (1, 2)), passes, strict=True):
            share_out(own, places, whole)
        if repeated:
            share_out(repeated, (0,), costs.again[place].time)
            for name, times in own.items():
                times[0] = np.where(
                    run.design.recompute == RECOMPUTE_FULL, 2 * times[0], times[0] + repeated[name][0]
                )
        found.append(own)
    return found


def layer_times(run: RankRun, part: Part, table: CostTable) -> RowTimes:
    """Times of the kernels of each row. [s]"""
    found = {}
    for name, kernels in rows_of(part).items():
        times = [table.kernels_time(part, kernels, of_pass) for of_pass in PASSES]
        for core in cores(part, kernels):
            for place, of_pass in ((0, "forward"), (1, "backward")):
                times[place] = times[place] + fused_attention(run, core, of_pass).time
        found[name] = times
    return found


def again_times(run: RankRun, part: Part, table: CostTable) -> RowTimes:
    """Times of the kernels of each row that modules repeat, forward. [s]"""
    found: RowTimes = {}
    for name, names in rows_of(part).items():
        repeated = np.zeros(run.num_points)
        for kernel in (kernel for kernel in part.kernels if kernel.name in names):
            there = run.design.recomputes([module for module in MODULES if module.has(kernel)])
            time = table.kernels_time(part, [kernel.name], "forward")
            for core in cores(part, [kernel.name]):
                time = time + fused_attention(run, core, "forward").time
            repeated = repeated + np.where(there, time, 0.0)
        found[name] = [repeated]
    return found


def cores(part: Part, names: list[str] | tuple[str, ...]) -> Iterator[Kernel]:
    """Attention cores among some kernels of a layer."""
    return (kernel for kernel in part.kernels if kernel.is_core and kernel.name in names)


def share_out(times: RowTimes, places: tuple[int, ...], whole: FloatArray) -> None:
    """Scale passes of all rows so that they add up to a whole; nothing is shared out among nothing. [s]"""
    own = sum((passes[place] for passes in times.values() for place in places), start=np.zeros(()))
    scale = np.divide(whole, own, out=np.zeros(np.broadcast_shapes(own.shape, whole.shape)), where=own > 0)
    for passes in times.values():
        for place in places:
            passes[place] = passes[place] * scale


def outer_times(table: CostTable, part: str, forward: KernelCost, backward: KernelCost) -> list[FloatArray]:
    """Times of the passes over the embedding or the head. [s]"""
    shares = []
    for of_pass in DIRECTIONS["backward"]:
        dense, thin = table.gemms.select(of_pass, part), table.pointwise.select(of_pass, part)
        shares.append(total(table.gemm_costs.time[:, dense]) + total(table.pointwise_times[:, thin]))
    return [forward.time, *(backward.time * share / (shares[0] + shares[1]) for share in shares)]
