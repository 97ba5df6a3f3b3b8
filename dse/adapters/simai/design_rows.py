"""The workload of a design, row by row: AICB's rows, filled from the native model; and SimAI's closed forms on them.

Arithmetic comes from the kernels that `micro_batches` finds, group sizes and messages from the design, and parameters
from the model. Recomputed kernels are added to the forward pass, as in AICB. Attention and an MLP have a row up to
their last product and one from there on; latent attention has one for each product; experts have one, besides the two
of an expert that all tokens share.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, distinct_rows, taken
from costmodel.errors import DseError
from costmodel.kernels.kernel_cost import KernelCost
from costmodel.kernels.kernel_tables import BIAS_GRADIENTS, Part, dispatched_bytes, every_part, total
from costmodel.kernels.products import fused_attention
from costmodel.machine import System
from costmodel.rules.registry import NATIVE
from costmodel.rules.rules import TRAINING, TRANSFORMER_TOTALS, Rules
from costmodel.steps.breakdown import BOUNDS, PARTS, Breakdown, assemble_breakdown
from costmodel.steps.micro_batch.exchanges import sent_copies
from costmodel.steps.micro_batch.micro_batch import (
    DIRECTIONS,
    KERNEL_CHUNK,
    CostTable,
    MicroBatch,
    cost_table,
    micro_batches,
)
from costmodel.steps.micro_batch.rank_memory import PartMemory, rank_memory
from costmodel.steps.pipeline.pipeline_step import slowest_stage
from costmodel.steps.pipeline.stages import Stage, pipeline_stages
from costmodel.steps.stage_memory import sum_over_stage, trained_parameters
from costmodel.steps.transformer import resolve_sharding, transformer_step
from costmodel.steps.update import fullest_update, weight_update
from costmodel.training.blocks import MODULES, MTP_JOIN, SHARDINGS, Block, kinds_beyond, kinds_unknown_to
from costmodel.training.design import MODERN, RECOMPUTE_FULL, DesignPoints, recomputes_otherwise
from costmodel.training.kernel_kind import PASSES, Kernel
from costmodel.training.model import ModelShape
from costmodel.training.run import RankRun, TransformerRun, rank_run
from dse.adapters.simai import workload_rows as aicb
from dse.adapters.simai.bandwidth import Links
from dse.adapters.simai.files.aicb import workload_file
from dse.adapters.simai.time import ENDLESS, endless_rows, price
from dse.adapters.simai.workload_rows import (
    LATENT_ROWS,
    NOTHING,
    MessageShape,
    Parallelism,
    Pass,
    Row,
    StepRows,
    Times,
    Ways,
)
from dse.output import Artefact

#: Blocks that the rows of a layer stand for.
HALVES: Final = ("attention", "mlp")
#: The row of routed experts.
EXPERTS_ROW: Final = "mlp_moelayer"

#: Row -> times of its three passes, (points,) each. [s]
RowTimes = dict[str, list[FloatArray]]

#: Why a model has no rows.
UNKNOWN_LAYERS: Final = "AICB's rows are of layers of attention and an MLP, all alike"
UNKNOWN_ORDER: Final = f"{UNKNOWN_LAYERS}, or of latent attention and experts, behind dense layers if there are any"


def check_layers(model: ModelShape) -> None:
    """Refuse a model that has layers whose rows are not known, or in an order that is not."""
    layers = [layer for layer, _ in model.sequence]
    shapes = {tuple(block.name for block in layer.blocks) for layer in layers}
    sparse = [any(kernel.of_experts for kernel in layer.kernels) for layer in layers]
    narrow = model.num_experts and model.features["expert_in"] != model.hidden_size
    if (
        shapes != {HALVES}
        or kinds_unknown_to("aicb", layers)
        or sparse not in ([False], [True], [False, True])
        or narrow
    ):
        raise DseError(f"model {model.name}: {UNKNOWN_ORDER}")


def rows_of(part: Part) -> dict[str, tuple[str, ...]]:
    """Row -> the kernels of a layer that it stands for.

    The one kernel that reduces the gradients of all biases goes with the first row of the last block.
    """
    lists: dict[str, list[str]] = {}
    start: list[str] = []
    for block in part.layer.blocks if part.layer else ():
        rows_of_block = {} if block == MTP_JOIN else block_rows(block)
        if not rows_of_block:  # kernels before the first row belong to it
            start = [kernel.name for kernel in block.kernels]
        for row, names in rows_of_block.items():
            lists[row], start = [*start, *names], []
    first = next(row for row in lists if row.startswith(HALVES[-1]))
    lists[first].append(BIAS_GRADIENTS)
    return {row: tuple(names) for row, names in lists.items()}


def block_rows(block: Block) -> dict[str, list[str]]:
    """Row -> kernels of a block."""
    if any(kernel.of_experts for kernel in block.kernels):
        return expert_block_rows(block)
    if any(kernel.kind.name == "latent" for kernel in block.kernels):
        return latent_block_rows(block)
    names = [kernel.name for kernel in block.kernels]
    last = max(index for index, kernel in enumerate(block.kernels) if kernel.splits_weight)
    return {f"{block.name}_column": names[:last], f"{block.name}_row": names[last:]}


def latent_block_rows(block: Block) -> dict[str, list[str]]:
    """Rows of latent attention: each product with the kernels after it, the first with the norm before."""
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
        last = max(index for index, kernel in enumerate(shared) if kernel.splits_weight)
        rows["mlp_column"] = [kernel.name for kernel in shared[:last]]
        rows["mlp_row"] = [kernel.name for kernel in shared[last:]]
    rows[EXPERTS_ROW] = [kernel.name for kernel in block.kernels if kernel not in shared]
    return rows


def is_shared(kernel: Kernel) -> bool:
    """True if a kernel belongs to an expert that all tokens share."""
    return bool({"shared_up", "shared_ffn", "unit"} & {kernel.reads, kernel.makes})


def row_times(run: RankRun, costs: MicroBatch) -> list[RowTimes]:
    """Arithmetic of each row of one layer of each kind, of the embedding, of the head, and of a module of
    multi-token prediction.

    The rows share out the evaluated times of a whole layer, waiting for the host included, by the times of their
    kernels. Recomputed kernels are in the forward pass.
    """
    table, rows_of_layers = cost_table(run), []
    modules = max(run.model.mtp_layers, 1)
    for index, part in enumerate(every_part(run.model)):
        passes = costs.forward[index].time, costs.backward[index].time
        if part.layer is None:
            name = "embedding_layer" if index == len(run.model.kinds) else "final_column"
            rows_of_layers.append(
                {name: times_beside_layers(table, part.name, costs.forward[index], costs.backward[index])}
            )
            continue
        times_of_part = layer_times(run, part, table)
        repeated = again_times(run, part, table) if index < len(costs.again) else {}
        if part.layer == run.model.mtp_layer and run.model.mtp_layers:
            passes = passes[0] / modules, passes[1] / modules
        for places, whole in zip(((0,), (1, 2)), passes, strict=True):
            share_out(times_of_part, places, whole)
        if repeated:
            share_out(repeated, (0,), costs.again[index].time)
            for name, times in times_of_part.items():
                times[0] = np.where(run.design.recompute == RECOMPUTE_FULL, 2 * times[0], times[0] + repeated[name][0])
        rows_of_layers.append(times_of_part)
    return rows_of_layers


def layer_times(run: RankRun, part: Part, table: CostTable) -> RowTimes:
    """Times of the kernels of each row. [s]"""
    repeated = {}
    for name, kernels in rows_of(part).items():
        times = [table.kernels_time(part, kernels, of_pass) for of_pass in PASSES]
        for core in cores(part, kernels):
            for number, of_pass in ((0, "forward"), (1, "backward")):
                times[number] = times[number] + fused_attention(run, core, of_pass).time
        repeated[name] = times
    return repeated


def again_times(run: RankRun, part: Part, table: CostTable) -> RowTimes:
    """Times of the kernels of each row that modules repeat, forward. [s]"""
    times: RowTimes = {}
    for name, names in rows_of(part).items():
        repeated = np.zeros(run.num_points)
        for kernel in (kernel for kernel in part.kernels if kernel.name in names):
            is_repeated = run.design.recomputes([module for module in MODULES if module.has(kernel)])
            time = table.kernels_time(part, [kernel.name], "forward")
            for core in cores(part, [kernel.name]):
                time = time + fused_attention(run, core, "forward").time
            repeated = repeated + np.where(is_repeated, time, 0.0)
        times[name] = [repeated]
    return times


def cores(part: Part, names: list[str] | tuple[str, ...]) -> Iterator[Kernel]:
    """Attention cores among some kernels of a layer."""
    return (kernel for kernel in part.kernels if kernel.is_core and kernel.name in names)


def share_out(times: RowTimes, places: tuple[int, ...], whole: FloatArray) -> None:
    """Scale passes of all rows so that they add up to a whole; nothing is shared out among nothing. [s]"""
    total = sum((passes[position] for passes in times.values() for position in places), start=np.zeros(()))
    scale = np.divide(whole, total, out=np.zeros(np.broadcast_shapes(total.shape, whole.shape)), where=total > 0)
    for passes in times.values():
        for position in places:
            passes[position] = passes[position] * scale


def times_beside_layers(table: CostTable, part: str, forward: KernelCost, backward: KernelCost) -> list[FloatArray]:
    """Times of the passes over the embedding or the head. [s]"""
    shares = []
    for of_pass in DIRECTIONS["backward"]:
        dense, thin = table.gemms.select(of_pass, part), table.pointwise.select(of_pass, part)
        shares.append(total(table.gemm_costs.time[:, dense]) + total(table.pointwise_times[:, thin]))
    return [forward.time, *(backward.time * share / (shares[0] + shares[1]) for share in shares)]


#: Why a design has no rows.
UNKNOWN_SPLITS: Final = "AICB's rows know two ways to split kernels; take sharding: megatron or megatron_sp"


def design_workload(run: TransformerRun) -> StepRows:
    """Rows of the slowest stage of each design.

    Their times add up to the forward, backward, recomputation and optimizer time of `step`, of passes that follow each
    other; an embedding or a head that the slowest stage does not have takes no time. Raises `DseError` if kernels have
    a sharding that is explicit or solved, or layers are not attention and an MLP or experts, dense ones first.

    Unlike AICB's own, messages of weights and gradients are as long as the rank's parameters, and depend on whether the
    optimizer is distributed; vpp is the design's. A module of multi-token prediction, which AICB does not have, has the
    rows of a layer and of a head after the head. Experts always exchange an all-to-all of all copies, with any
    dispatcher.
    """
    check_layers(run.model)
    check_designs(run)
    run = run.of(run.design.map(lambda values: np.broadcast_to(values, (run.num_points,))))
    run = run.of(resolve_sharding(run.model, run.system, run.design, precision=run.precision))
    ranks = rank_run(run)
    if not rows_know(ranks).all():
        raise DseError(UNKNOWN_SPLITS)
    rows, back = distinct_rows(*ranks.columns())
    unique = ranks.take(rows)
    costs = micro_batches(unique)
    pieces = [
        row_times(unique.take(part), taken(costs, part))
        for part in np.split(np.arange(rows.size), range(KERNEL_CHUNK, rows.size, KERNEL_CHUNK))
    ]
    times = [
        {name: [np.concatenate([alike[name][position] for alike in same])[back] for position in range(3)]
         for name in same[0]}
        for same in zip(*pieces, strict=True)
    ]  # fmt: skip
    parameters = [part.take(back) for part in rank_memory(unique)]
    return filled_rows(run, ranks, taken(costs, back), parameters, times)


def check_designs(run: TransformerRun) -> None:
    """Refuse designs that AICB's rows cannot say."""
    design = run.design
    if (design.cp > 1).any():
        raise DseError("AICB rows have no context parallelism; take cp: 1")
    if run.model.num_experts and ((design.etp > 1) & (design.etp != design.tp)).any():
        raise DseError("AICB's rows share out experts among all tensor-parallel ranks or none; take etp: 1")
    unlike = recomputes_otherwise(design)
    if kinds_beyond(run.model.kinds):  # whose rows are of modules
        unlike = [name for name in unlike if name == "recompute_layers"]
    if unlike:
        raise DseError(f"AICB's rows repeat attention cores or whole layers, all of them; leave out {unlike[0]}")


def rows_know(ranks: RankRun) -> BoolArray:
    """Where kernels are split as one of the named assignments does: (points,)."""
    named = [*ranks.design.assignments.named.values()]
    known: BoolArray = np.isin(ranks.design.assignment, named) | (ranks.design.tp == 1)
    return known


def filled_rows(
    run: TransformerRun, ranks: RankRun, costs: MicroBatch, parameters: list[PartMemory], times: list[RowTimes]
) -> StepRows:
    """The template with times, messages and counts of each design."""
    stage = slowest_stage(run, costs, costs.whole)
    shape, kinds = message_shape(run, ranks), len(run.model.kinds)
    sections = ["leading", "layer"][-kinds:]
    [first] = ([values * stage.has_embedding for values in pass_values] for pass_values in times[kinds].values())
    reduced = Pass(first[0], "all_reduce", shape.activation_bytes, happens=run.design.tp > 1)
    rows = [
        *weight_rows(run, parameters, shape),
        *(Row("embedding_layer", section, reduced, Pass(first[1]), Pass(first[2]))
          for section in ("first", "next")),
        *(row for time, section in zip(times, sections, strict=False)
          for row in filled_layer(shape, ranks, time, section)),
        *closing_rows(shape, ranks, stage, times[kinds + 1 :], int(run.model.mtp_layers)),
        *aicb.epilogue(shape),
    ]  # fmt: skip
    return StepRows.of(
        rows,
        layers=stage.layers[-1],
        leading_layers=stage.layers[0] if kinds > 1 else 0.0,
        micro_batches=run.design.gradient_accumulation_steps,
        layout=file_header(run, shape),
    )


def filled_layer(run: MessageShape, ranks: RankRun, times: RowTimes, section: str) -> Iterator[Row]:
    """The rows of a kind of layer."""
    shared = run.sequence_parallel > 0
    latent = {kernel: times[name] for kernel, name in LATENT_ROWS.items() if name in times}
    if latent:
        yield from aicb.latent_rows(run, latent, shared, section)
        yield aicb.whole_row("attention_layer_mla", run, added(latent.values()), ~shared, section)
    else:
        yield from half_rows(run, "attention", times, shared, section)
    if EXPERTS_ROW in times:
        yield from filled_experts(run, ranks, times[EXPERTS_ROW], section)
    if f"{HALVES[1]}_column" in times:
        yield from half_rows(run, HALVES[1], times, shared, section)


def half_rows(run: MessageShape, part: str, times: RowTimes, shared: BoolArray, section: str) -> Iterator[Row]:
    """Half a layer: two rows in sequence parallelism, and one without."""
    column, row = (times[f"{part}_{way}"] for way in ("column", "row"))
    yield aicb.column_row(f"{part}_column", section, run, column, shared)
    yield aicb.row_row(f"{part}_row", section, run, row, shared)
    yield aicb.whole_row(f"{part}_layer", run, added([column, row]), ~shared, section)


def added(rows: Iterable[Times]) -> list[FloatArray]:
    """Times of several rows together, pass by pass. [s]"""
    return [sum(passes[1:], start=passes[0]) for passes in zip(*rows, strict=True)]


def filled_experts(run: MessageShape, ranks: RankRun, times: Times, section: str) -> Iterator[Row]:
    """The rows of experts: ranks send data in the format of the design, and gradients likewise."""
    design, size = ranks.design, ranks.precision.element_bytes
    spread, split = run.ep > 1, (design.etp > 1) & (run.tp > 1)
    on_way, back = (
        Pass(NOTHING, "all_to_all", np.floor(sent_copies(ranks, message)), "ep", spread)
        for message in (dispatched_bytes(ranks), size)
    )
    whole = np.floor(sent_copies(ranks, size) * design.etp)
    counts = 2 * run.ep * run.num_experts * run.tp  # bytes that tell all ranks the tokens of each expert
    routed = Pass(times[0], "all_gather", counts, happens=spread | split)
    yield Row(EXPERTS_ROW, section, routed, Pass(times[1]), Pass(times[2]))
    gathered, scattered = (Pass(NOTHING, kind, whole, happens=split) for kind in ("all_gather", "reduce_scatter"))
    for forward, backward in [(on_way, back), (gathered, scattered), (scattered, gathered), (back, on_way)]:
        yield Row(EXPERTS_ROW, section, forward, backward, Pass(NOTHING))


def closing_rows(run: MessageShape, ranks: RankRun, stage: Stage, times: list[RowTimes], modules: int) -> Iterator[Row]:
    """The head; after it modules that predict further tokens, each with the head once more."""
    [head] = times[0].values()
    head = [values * stage.has_head / (1 + modules) for values in head]
    shared, further = run.sequence_parallel > 0, stage.counts[-1] > 0
    for module in range(1 + modules):
        has_part = further | (stage.has_head > 0) | (module == 0)
        for row in filled_layer(run, ranks, times[1], "closing") if module else ():
            yield replace(row, present=row.present & further)
        yield aicb.column_row("final_column", "closing", run, head, shared & has_part)
        forward, backward, weights = (Pass(values) for values in head)
        yield Row("final_layer", "closing", forward, backward, weights, ~shared & has_part)


def message_shape(run: TransformerRun, ranks: RankRun) -> MessageShape:
    """The shape of a design that sets the sizes of AICB's rows."""
    design, shape, one = run.design, ranks.design, np.ones_like(run.design.tp)
    return MessageShape(
        **{name: getattr(run.model, name) * one for name in ("hidden_size", "seq_len", "num_experts")},
        **{name: getattr(design, name) for name in ("tp", "micro_batch_size")},
        ep=design.ep if run.model.num_experts else one,
        dp=np.floor(design.world_size / (design.tp * design.pp)),
        sequence_parallel=shape.is_split(shape.stream, "sequence") * one,
    )


def file_header(run: TransformerRun, shape: MessageShape) -> Parallelism:
    """The header of a design's file. With sequence parallelism a stage sends the share of a rank."""
    design, ranks = run.design, np.where(shape.sequence_parallel > 0, shape.tp, 1.0)
    return Parallelism(
        **{name: getattr(design, name) for name in ("tp", "pp", "vpp", "gradient_accumulation_steps", "world_size")},
        ep=shape.ep,
        pp_message_bytes=np.where(design.pp > 1, shape.activation_bytes / ranks, 0.0),
    )


def weight_rows(run: TransformerRun, parts: list[PartMemory], shape: MessageShape) -> list[Row]:
    """Gathering of weights and reduction of gradients, scattered where the optimizer is distributed."""
    design, sharded = run.design, run.design.zero > 0
    stages = pipeline_stages(run.model, design).foremost
    both = [[sum_over_stage(stage, parts, name) for stage in stages] for name in ("parameters", "expert_parameters")]
    stage, parameters, experts = fullest_update(stages, [*zip(*both, strict=True)])
    update, casts = weight_update(run, parts, stages, [trained_parameters(run, stage, parts) for stage in stages])
    cast = casts.time

    def ways(owned: FloatArray, group: str) -> tuple[Pass, Ways]:
        gradients = np.floor(owned * stage.copies * run.precision.gradient_bytes)
        weights = np.where(sharded, np.floor(owned * stage.copies * run.precision.element_bytes), 0.0)
        scattered, reduced = (Pass(NOTHING, kind, gradients, group) for kind in ("reduce_scatter", "all_reduce"))
        gathered = Pass(NOTHING, "all_gather", weights, group, happens=sharded)
        return gathered, [(scattered, sharded), (reduced, ~sharded)]

    reduced = Pass(
        NOTHING, "all_reduce", shape.activation_bytes, happens=shape.tp > 1
    )  # over the tensor-parallel group
    return [
        *aicb.prologue(*ways(parameters, "dp"), update.time, np.maximum(cast, NOTHING)),
        Row("embedding_grads", "prologue", Pass(NOTHING), reduced, Pass(NOTHING)),
        *aicb.expert_weight_rows(*ways(experts, "dp_ep"), shape.ep != shape.dp),
    ]


def workloads(run: TransformerRun, form: str = "aicb", profile: str = NATIVE) -> Iterator[Artefact]:
    """Designs as AICB's workloads; shardings that its rows cannot say become the nearest that they can."""
    run = run.of(resolve_sharding(run.model, run.system, run.design))
    shape, points = rank_run(run).design, range(run.num_points)
    named, numbers = shape.assignments.named, np.broadcast_to(shape.assignment, (len(points),)).tolist()
    notes: list[tuple[str, ...]] = [() for _ in points]
    codes = np.broadcast_to(run.design.sharding, (len(points),)).copy()
    for point in np.flatnonzero(~np.broadcast_to(rows_know(rank_run(run)), (len(points),))).tolist():
        words = shape.assignments.words(numbers[point])
        lost = {name: {k: w for k, w in words.items() if shape.assignments.words(value)[k] != w}
                for name, value in named.items()}  # fmt: skip
        nearest = min(lost, key=lambda name: len(lost[name]))
        codes[point] = SHARDINGS.index(nearest)
        kernels = ", ".join(f"{kernel} by {word}" for kernel, word in lost[nearest].items())
        notes[point] = (f"rows cannot split {kernels}; they are those of sharding={nearest}",)
    rows = design_workload(run.of(replace(run.design, sharding=codes)))
    for point in points:
        file = workload_file(rows, point=point)
        endless = [f"row {name}: {ENDLESS}" for name in endless_rows(file.workload)]
        yield Artefact(file.text.encode(), (*notes[point], *endless))


#: The revision that derives bandwidths from a machine.
REVISION: Final = "simai-2025-07"


def machine_links(system: System) -> Links:
    """A system as the reference sees it: servers of the first tier's size, a NIC for every chip."""
    node, fabric = system.network[0], system.network[-1]
    return Links(
        gpus_per_server=node.size,
        nics_per_server=node.size,
        nvlink_bandwidth=node.bandwidth * node.efficiency,
        nic_bandwidth=fabric.bandwidth * fabric.efficiency,
    )


def simai_step(run: TransformerRun) -> Breakdown:
    """Evaluate one optimizer step of each design, as `costmodel.step` does.

    (points,) columns. Communication, bubble and so the step are SimAI's, which hides nothing behind arithmetic and has
    no host; arithmetic, memory, costs and the energy of the work are the native model's. NaN where SimAI has no number.
    [s], [B], [J], [$], [W]

    Raises `DseError` where `design_workload` does, and for models with experts or latent attention.
    """
    names = tuple(block.name for layer in run.model.kinds for block in layer.blocks)
    if names != HALVES or kinds_beyond(run.model.kinds):
        raise DseError(f"model {run.model.name}: {UNKNOWN_LAYERS}")
    native = transformer_step(run)
    totals = price(design_workload(run), machine_links(run.system), revision=REVISION).totals
    others = native.backward_time + native.recompute_time + native.optimizer_time
    parts = {
        **{name: values for name, values in native.columns().items() if name in _PARTS},
        "forward_time": totals.total_compute_time - others,
        "tp_communication_time": totals.exposed_tp_time + totals.exposed_ep_time,
        "pp_communication_time": totals.exposed_pp_time,
        "bubble_time": totals.bubble_time,
        "dp_communication_time": totals.exposed_dp_time + totals.exposed_dp_ep_time,
        "host_time": np.zeros_like(others),
    }
    return assemble_breakdown(
        parts,
        run.system,
        world_size=native.world_size,
        tokens=run.design.global_batch_size * run.model.seq_len,
        model_flops=native.model_flops,
    )


#: Columns that add up to others, except the idle energy, which follows from the time of the step.
_PARTS: Final = {*BOUNDS, *(name for parts in PARTS.values() for name in parts)} - {"idle_energy"}


def rules_of(version: str) -> tuple[Rules[DesignPoints], ...]:
    """The rules for designs, of one version."""
    return (
        Rules(
            work=TRAINING, design=DesignPoints, cost=simai_step, products=TRANSFORMER_TOTALS, unread=MODERN.__contains__
        ),
    )
