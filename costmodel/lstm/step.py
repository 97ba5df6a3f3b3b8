"""One optimizer step of an LSTM language model, every design at once: its kernel tables, and what they cost.

Everything is of one rank and one micro-batch. Kernels of the part "cell" happen once per layer and time
step, those of "layer" once per layer, the others once per model. The product of input and state with the
weights runs step by step; the gradient of the weights is one product over all steps.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from costmodel.columns import BoolArray, FloatArray
from costmodel.kernels.collectives import collective
from costmodel.kernels.kernel_cost import Item, Items, KernelCost, labelled, pointwise_time, traffic_energy
from costmodel.kernels.kernel_tables import Gemms, Label, Pointwise, PointwiseRow, pointwise_rows
from costmodel.kernels.products import gemm_cost
from costmodel.lstm.model import LstmDesign, LstmRun, LstmShape, Split
from costmodel.machine import System
from costmodel.steps.breakdown import BOUNDS, LAUNCHES, Breakdown, assemble_breakdown, host_time, in_chunks
from costmodel.steps.micro_batch.micro_batch import CostTable, with_launch_overhead
from costmodel.steps.optimizer import optimizer_step
from costmodel.training.kinds import loss_passes
from costmodel.training.precision import MIXED_PRECISION, Precision
from costmodel.training.ranks import Group
from costmodel.training.run import Run

#: Parts of the model, how often each runs being for the step to say.
PARTS = ("cell", "layer", "embedding", "projection", "head")


def tokens(run: LstmRun) -> FloatArray:
    """Tokens of one micro-batch. [-]"""
    return run.design.micro_batch_size * run.model.seq_len


def lstm_gemms(run: LstmRun) -> Gemms:
    """Matrix products of the forward pass and of both gradients, (points, kernels).

    Gradients of weights are added to fp32 accumulators, which are read and written.
    """
    model, design, precision = run.model, run.design, run.precision
    rows_per_step, whole = design.micro_batch_size, tokens(run)
    hidden = model.hidden_size
    operand, accumulated = precision.element_bytes, 2 * precision.gradient_bytes
    table: list[tuple[str, str, Split, FloatArray, FloatArray, float, float]] = [
        # name, part of the weight gradient, split, m, m of the weight gradient, n, k
        ("cell", "layer", design.hidden, rows_per_step, whole, model.gate_size, 2 * hidden),
        ("projection", "projection", design.hidden, whole, whole, model.projection_size, hidden),
        ("head", "head", design.softmax, whole, whole, model.vocab_size, model.projection_size),
    ]
    rows = []
    for name, weight_part, split, m, m_of_weights, n, k in table:
        forward = split.forward(m, n, k)
        activation = split.activation_gradient(m, n, k)
        weight = split.weight_gradient(m_of_weights, n, k)
        rows += [
            (Label(name, "forward", name), (*forward, 1.0, operand, 1.0)),
            (Label(name, "activation_gradient", name), (*activation, 1.0, operand, 1.0)),
            (Label(name, "weight_gradient", weight_part), (*weight, 1.0, accumulated, 1.0)),
        ]
    return Gemms.stack(rows)


def lstm_pointwise(run: LstmRun) -> Pointwise:
    """Kernels without reuse of a cell, of the embedding and of the loss, (points, kernels).

    A cell is one kernel: forward it reads gates and state, and writes gates, both states and the hyperbolic tangent
    that the backward pass needs; back it reads these and both gradients, and writes the gradients of gates and state.
    """
    model, design, precision = run.model, run.design, run.precision
    gates = model.gates
    state = design.micro_batch_size * model.hidden_size / design.hidden.shards
    embedded = tokens(run) * model.hidden_size / design.hidden.shards
    logits = tokens(run) * model.vocab_size / design.softmax.shards
    sums = 2 * precision.gradient_bytes
    rows: list[PointwiseRow] = [
        (Label("cell", "forward", "cell"), state, 2 * gates + 4, 0, 8 * (gates + 1) + 4, 1.0),
        (Label("cell", "activation_gradient", "cell"), state, 2 * gates + 5, 0, 6 * gates + 10, 1.0),
        (Label("bias_gradient", "weight_gradient", "layer"), gates * embedded, 1, 0, 1, 1.0),
        (Label("embedding", "forward", "embedding"), embedded, 2, 0, 0, 1.0),
        (Label("embedding", "weight_gradient", "embedding"), embedded, 1, sums, 1, 1.0),
        *pointwise_rows(loss_passes(logits), "loss", "head"),
    ]
    return Pointwise.of_rows(rows, element_bytes=precision.element_bytes)


#: Number that a row of logits is summed up by, of which there are two: its maximum and its sum. [B]
STATISTIC_BYTES = 4.0


def lstm_step(
    model: LstmShape, system: System, design: LstmDesign, *, precision: Precision = MIXED_PRECISION
) -> Breakdown:
    """Time, memory and energy of one optimizer step of each design.

    Parameters
    ----------
    model : LstmShape
        The language model.
    system : System
        The machine; each quantity holds one value, or one per design.
    design : LstmDesign
        Parallel configurations, (points,). Nothing is refused here: whether sizes divide is for the
        caller's rules to say.
    precision : Precision
        Bytes of operands, gradients and optimizer states.

    Returns
    -------
    breakdown : Breakdown
        (points,) columns. [s], [B], [J], [$], [W]

    Notes
    -----
    Cells run one after the other, layer by layer and step by step: there is no pipeline. A column-row
    split adds partial sums up after a product and gathers them on the way back; a row-column split gathers
    what its columns give, adds partial sums up on the way back, and treats its rows as data shards. The
    embedding is split as the cells' weights are. `tp_communication_time` is that of the split products.
    """
    return lstm_step_of(Run(model, system, design, precision))


def lstm_step_of(run: LstmRun) -> Breakdown:
    """Step of each LSTM design of a run, as `lstm_step` gives it."""
    return in_chunks(lstm_chunk, run)


def lstm_items(run: LstmRun) -> Items:
    """Parts of a step of one design of an LSTM language model; (1,) arrays. [s], [FLOP], [-]"""
    system = run.system.sliced(run.design.world_size)
    return lstm_parts(replace(run, system=system, itemized=True))[1]


def lstm_chunk(run: LstmRun) -> Breakdown:
    """Costs of a chunk of designs, whose columns are all of one length."""
    run = replace(run, system=run.system.sliced(run.design.world_size))
    return assemble_breakdown(
        lstm_parts(run)[0],
        run.system,
        world_size=run.design.world_size,
        tokens=run.design.global_batch_size * run.model.seq_len,
        model_flops=3 * run.model.forward_flops_per_sequence * run.design.global_batch_size,
    )


def lstm_parts(run: LstmRun) -> tuple[dict[str, FloatArray], Items]:
    """Parts of a step, columns of a `Breakdown`, and what they are made of if itemized. [s], [B], [J]"""
    model, system, design = run.model, run.system, run.design
    gemms, pointwise = lstm_gemms(run), lstm_pointwise(run)
    costs = gemm_cost(gemms, system, element_bytes=run.precision.element_bytes)
    times, waits = pointwise_time(pointwise, system)
    table = CostTable(gemms, costs, pointwise, times, waits, system, itemized=run.itemized)
    times_run = {"cell": model.num_layers * model.seq_len, "layer": model.num_layers}
    passes = {"forward": KernelCost(), "backward": KernelCost()}
    for part in PARTS:
        changes = layout_changes(run, part)
        for direction, change in zip(passes, changes, strict=True):
            cost = with_launch_overhead(table.cost(part, direction) + change, system)
            labelled_cost = replace(cost, items=labelled(cost.items, column=f"{direction}_time", part=part))
            passes[direction] += labelled_cost * times_run.get(part, 1.0)
    both, steps = passes["forward"] + passes["backward"], design.gradient_accumulation_steps
    reduced, update = update_cost(run)
    ranks = design.world_size
    items: dict[Item, FloatArray] = {}
    for direction, cost in passes.items() if run.itemized else ():
        items |= {item: steps * values for item, values in cost.items.items()}
        items[Item("time", f"{direction}_time", name=LAUNCHES)] = steps * cost.launch_bound_time
    columns = {
        "forward_time": steps * passes["forward"].time,
        "backward_time": steps * passes["backward"].time,
        "tp_communication_time": steps * both.tp_time,
        "dp_communication_time": reduced.time,
        "optimizer_time": update.time,
        "host_time": host_time(system, ranks, steps * (both.time - both.launch_bound_time)),
        **{name: steps * getattr(both, name) for name in BOUNDS},
        **memories(run),
        "compute_energy": ranks * (steps * both.compute_energy + update.compute_energy),
        "memory_energy": ranks * (steps * both.memory_energy + update.memory_energy),
        "link_energy": ranks * (steps * both.link_energy + reduced.link_energy),
    }
    return columns, items


def layout_changes(run: LstmRun, part: str) -> tuple[KernelCost, KernelCost]:
    """Collectives of a part's split products, forward and backward."""
    model, design = run.model, run.design
    rows, whole, hidden = design.micro_batch_size, tokens(run), model.hidden_size
    products: dict[str, tuple[Split, FloatArray, float, float, float]] = {
        # split, m, columns of the result, columns of it that go on, columns of the input
        "cell": (design.hidden, rows, model.gate_size, hidden, 2 * hidden),
        "projection": (design.hidden, whole, model.projection_size, model.projection_size, hidden),
        "head": (design.softmax, whole, model.vocab_size, 0.0, model.projection_size),
    }
    if part not in products:
        return KernelCost(), KernelCost()
    split, m, n, gathered, k = products[part]
    w, own_rows = run.precision.element_bytes, m / split.rows
    change = partial(over_shards, run.system, split)
    forward = change("reduce_scatter", w * m * n, split.is_cr) + change(
        "all_gather", w * own_rows * gathered, split.is_rc & (gathered > 0)
    )
    if part == "head":
        forward += change("all_reduce", 2 * STATISTIC_BYTES * own_rows, split.sharded)
    backward = change("all_gather", w * m * n, split.is_cr) + change("reduce_scatter", w * own_rows * k, split.is_rc)
    return forward, backward


def over_shards(system: System, split: Split, name: str, message: FloatArray, chosen: BoolArray) -> KernelCost:
    """A collective between the devices that share a product's weights, where it is `chosen`."""
    members = split.weight_shards
    cost = collective(name, message, Group.of_neighbours(members), system.network)
    share = np.where(chosen & (members > 1), 1.0, 0.0)
    return KernelCost(
        tp_time=share * cost.time, link_energy=share * traffic_energy(cost.bytes_sent, system.network), launches=share
    )


def parameters(model: LstmShape, design: LstmDesign) -> tuple[FloatArray, FloatArray]:
    """Parameters on one rank: of embedding, cells and projection, and of the softmax. [-]"""
    cells = model.num_layers * model.parameters_per_layer
    shared = model.embedding_parameters + cells + model.projection_parameters
    return shared / design.hidden.weight_shards, model.head_parameters / design.softmax.weight_shards


def update_cost(run: LstmRun) -> tuple[KernelCost, KernelCost]:
    """Reduction of gradients over all that hold the same weights, and the optimizer."""
    design, network = run.design, run.system.network
    reduced = KernelCost()
    owned = parameters(run.model, design)
    for split, weights in zip((design.hidden, design.softmax), owned, strict=True):
        gradients = weights * run.precision.gradient_bytes
        cost = collective("all_reduce", gradients, design.ranks(split).group("rows", "dp"), network)
        reduced += KernelCost(time=cost.time, link_energy=traffic_energy(cost.bytes_sent, network))
    everyone = Group.of_neighbours(design.world_size)
    return reduced, optimizer_step(owned[0] + owned[1], run.system, everyone)


def memories(run: LstmRun) -> dict[str, FloatArray]:
    """Bytes of one rank, by part.

    Kept for the way back are, per cell, gates, both states and the hyperbolic tangent; the embedding; the
    projection, whole on every column of the softmax; and fp32 logits. Beside them live 16-bit
    logits with their gradient, and partial sums of them where the softmax is split by columns and rows.
    """
    model, design, precision = run.model, run.design, run.precision
    w, whole = precision.element_bytes, tokens(run)
    owned = sum(parameters(model, design), np.zeros(1))
    hidden, softmax = design.hidden, design.softmax
    cells = model.num_layers * (model.gates + 3) * model.hidden_size
    kept = w * whole * (cells + model.hidden_size) / hidden.shards
    logits = whole * model.vocab_size
    return {
        "weights_memory": owned * w,
        "gradients_memory": owned * precision.gradient_bytes,
        "optimizer_memory": owned * precision.state_bytes,
        "activations_memory": kept
        + w * whole * model.projection_size / (softmax.rows * softmax.inner)
        + 4.0 * logits / softmax.shards,
        "buffers_memory": 2 * w * logits / softmax.shards + np.where(softmax.inner > 1, w * logits, 0.0),
        "reserved_memory": np.broadcast_to(run.system.chip.reserved_memory, owned.shape),
    }  # fmt: skip
