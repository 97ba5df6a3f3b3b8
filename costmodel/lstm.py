"""LSTM language models: dimensions, designs, splits of their products over devices, and the time of a step.

A product of the hidden state with the weights is split by rows and columns over a grid of devices, as in DeepFlow; the
share of one device decides its kernels and its messages.

Work is that of one rank and one micro-batch. Kernels of the part "cell" happen once per layer and time step, those of
"layer" once per layer, the others once per model. The product of input and state with the weights runs step by step;
the gradient of the weights is one product over all steps.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import numpy as np

from costmodel.columns import BoolArray, FloatArray, column
from costmodel.kernels.collectives import collective
from costmodel.kernels.kernel_cost import Item, Items, KernelCost, labelled, pointwise_time, traffic_energy
from costmodel.kernels.kernel_tables import Gemms, Label, Pointwise, PointwiseRow, pointwise_rows
from costmodel.kernels.products import gemm_cost
from costmodel.machine import System
from costmodel.steps.breakdown import BOUNDS, LAUNCHES, Breakdown, assemble_breakdown, host_time, in_chunks
from costmodel.steps.micro_batch.micro_batch import CostTable, with_launch_overhead
from costmodel.steps.optimizer import optimizer_step
from costmodel.training.design_table import Design, words
from costmodel.training.dimensions import check_dimensions
from costmodel.training.kinds import loss_passes
from costmodel.training.precision import MIXED_PRECISION, Precision
from costmodel.training.ranks import Group, Ranks
from costmodel.training.run import Run

#: Kinds of split, by code. A column-row product splits the inner dimension over `dim1`, so that results
#: are partial sums; a row-column product splits rows over `dim1` and columns over `dim2`.
KINDS = ("none", "cr", "rc")
WHOLE, COLUMN_ROW, ROW_COLUMN = range(3)

Size = FloatArray | float
#: (m, n, k) of a product C[m, n] += A[m, k] B[k, n]. [elements]
Dimensions = tuple[FloatArray, FloatArray, FloatArray]


@dataclass(frozen=True, slots=True)
class Split:
    """The split of a product; (points,) columns. [-]"""

    kind: FloatArray  #: code of `KINDS`
    dim1: FloatArray
    dim2: FloatArray

    @property
    def is_cr(self) -> BoolArray:
        """Where the inner dimension is split."""
        return np.equal(self.kind, COLUMN_ROW)

    @property
    def is_rc(self) -> BoolArray:
        """Where rows and columns are split."""
        return np.equal(self.kind, ROW_COLUMN)

    @property
    def sharded(self) -> BoolArray:
        """Where there is a split at all."""
        return np.not_equal(self.kind, WHOLE)

    @property
    def rows(self) -> FloatArray:
        """Pieces that the rows of a product are cut into. [-]"""
        return np.where(self.is_rc, self.dim1, 1.0)

    @property
    def inner(self) -> FloatArray:
        """Pieces that the inner dimension of a product is cut into. [-]"""
        return np.where(self.is_cr, self.dim1, 1.0)

    @property
    def columns(self) -> FloatArray:
        """Pieces that the columns of a product are cut into. [-]"""
        return np.where(self.is_rc, self.dim2, 1.0)

    @property
    def shards(self) -> FloatArray:
        """Devices that share the product. [-]"""
        return self.rows * self.inner * self.columns

    def forward(self, m: Size, n: Size, k: Size) -> Dimensions:
        """One device's share of A[m, k] B[k, n]. [elements]"""
        return m / self.rows, n / self.columns, k / self.inner

    @property
    def weight_shards(self) -> FloatArray:
        """Devices that share the weights; the others hold the same ones. [-]"""
        return self.inner * self.columns


@dataclass(frozen=True, kw_only=True, slots=True)
class LstmShape:
    """An LSTM language model: embedding, layers of cells, projection, softmax over a vocabulary. [-]

    Raises `DseError` if a dimension is not positive.
    """

    #: Fields that count something, and so must be whole and positive.
    dimensions: ClassVar[tuple[str, ...]] = (
        "num_layers",
        "hidden_size",
        "projection_size",
        "vocab_size",
        "gates",
        "seq_len",
    )
    counts: ClassVar[tuple[str, ...]] = ()

    name: str = "model"
    title: str = ""  #: as it is published
    num_layers: float
    hidden_size: float
    projection_size: float
    vocab_size: float
    gates: float = 4.0
    seq_len: float = 20.0

    def __post_init__(self) -> None:
        check_dimensions(self)

    @property
    def gate_size(self) -> float:
        """Outputs of a cell's product, all gates together. [elements]"""
        return self.gates * self.hidden_size

    @property
    def parameters_per_layer(self) -> float:
        """The matrix from input and state to gates, and a bias per gate. [-]"""
        return (2 * self.hidden_size + 1) * self.gate_size

    @property
    def projection_parameters(self) -> float:
        """The matrix into the projection, with a bias. [-]"""
        return (self.hidden_size + 1) * self.projection_size

    @property
    def embedding_parameters(self) -> float:
        """Parameters of the word table. [-]"""
        return self.vocab_size * self.hidden_size

    @property
    def head_parameters(self) -> float:
        """The matrix into the vocabulary, with a bias. [-]"""
        return (self.projection_size + 1) * self.vocab_size

    @property
    def num_parameters(self) -> float:
        """Parameters of the model, each counted once. [-]"""
        cells = self.num_layers * self.parameters_per_layer
        return self.embedding_parameters + cells + self.projection_parameters + self.head_parameters

    @property
    def forward_flops_per_sequence(self) -> float:
        """Multiply-adds of the forward pass of one sequence, each counted as two. [FLOP]"""
        cell = self.num_layers * 2 * self.hidden_size * self.gate_size
        outside = self.projection_size * (self.hidden_size + self.vocab_size)
        return 2 * self.seq_len * (cell + outside)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class LstmDesign(Design):
    """Parallel configurations of an LSTM language model, one row each; every column has shape (points,). [-]

    The kinds hold codes of `KINDS`: products of cells and projection (hidden), and those into the vocabulary (softmax),
    are split over a group of `dim1 * dim2` chips.
    """

    dp: FloatArray = column("-", 1)
    micro_batch_size: FloatArray = column("-", 1)
    gradient_accumulation_steps: FloatArray = column("-", 1)
    hidden_kind: FloatArray = words(KINDS, WHOLE)
    hidden_dim1: FloatArray = column("-", 1)
    hidden_dim2: FloatArray = column("-", 1)
    softmax_kind: FloatArray = words(KINDS, WHOLE)
    softmax_dim1: FloatArray = column("-", 1)
    softmax_dim2: FloatArray = column("-", 1)

    @property
    def hidden(self) -> Split:
        """Split of cells and projection."""
        return Split(self.hidden_kind, self.hidden_dim1, self.hidden_dim2)

    @property
    def softmax(self) -> Split:
        """Split of the product into the vocabulary."""
        return Split(self.softmax_kind, self.softmax_dim1, self.softmax_dim2)

    def ranks(self, split: Split) -> Ranks:
        """The ranks as one of the splits sees them: shares of weights, then copies of them."""
        return Ranks({"shares": split.weight_shards, "rows": split.rows, "dp": self.dp})

    @property
    def world_size(self) -> FloatArray:
        """Chips of the run: a group holds the larger of both splits. [-]"""
        return self.dp * np.maximum(self.hidden.shards, self.softmax.shards)

    @property
    def global_batch_size(self) -> FloatArray:
        """Sequences of one optimizer step. [-]"""
        return self.dp * self.micro_batch_size * self.gradient_accumulation_steps


LstmRun = Run[LstmShape, LstmDesign]


#: Parts of the model: a cell runs for each layer and time step, "layer" for each layer, others once.
PARTS = ("cell", "layer", "embedding", "projection", "head")


def tokens(run: LstmRun) -> FloatArray:
    """Tokens of one micro-batch. [-]"""
    return run.design.micro_batch_size * run.model.seq_len


def lstm_gemms(run: LstmRun) -> Gemms:
    """Matrix products of the forward pass and of both gradients, (points, kernels).

    Gradients of weights are added to fp32 accumulators, which are read and written. With a row-column split, a device's
    share of a gradient is a partial sum: over n of that of the input, over m of that of the weights.
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
        own_rows, own_columns, inner = forward = split.forward(m, n, k)
        activation = own_rows, inner, own_columns  # dA[m, k] = dC[m, n] B^T[n, k]
        weight = inner, own_columns, split.forward(m_of_weights, n, k)[0]  # dB[k, n] = A^T[k, m] dC[m, n]
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


#: Size of one of the two statistics of a row of logits, its maximum and its sum. [B]
STATISTIC_BYTES = 4.0


def lstm_step(
    model: LstmShape, system: System, design: LstmDesign, *, precision: Precision = MIXED_PRECISION
) -> Breakdown:
    """Time, memory and energy of one optimizer step of each design; (points,) columns. [s], [B], [J], [$], [W]

    Parameters are those of `costmodel.step`. Nothing is refused here: rules of the caller check whether sizes divide.

    Cells run one after the other, layer by layer and step by step: there is no pipeline. A column-row
    split adds partial sums up after a product and gathers them on the way back; a row-column split gathers the
    outputs of its columns, adds partial sums up on the way back, and treats its rows as data shards. The embedding
    is split as the cells' weights are. `tp_communication_time` is that of the split products.
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
    """Parts of a step, columns of a `Breakdown`, and their items if itemized. [s], [B], [J]"""
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

    Kept for the backward pass are, per cell, gates, both states and the hyperbolic tangent; the embedding; the
    projection, whole on every column of the softmax; and fp32 logits. In addition, 16-bit logits and their gradient
    are alive, and partial sums of them where the softmax is split by columns and rows.
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
