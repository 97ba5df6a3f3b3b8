"""A module as kernel tables of one device, and its cost on machines.

Kernels go through tilings and rooflines, messages over the links of their groups. A program is also a file of studies.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from math import nan, prod
from typing import Any, ClassVar, Final, Literal, Self, get_args

import numpy as np

from costmodel.columns import BoolArray, FloatArray, concatenated, distinct_rows
from costmodel.errors import suggestion
from costmodel.formats.input_files import Section, data_beside
from costmodel.kernels.collectives import CollectiveCost, all_to_all, collective, send_recv
from costmodel.kernels.kernel_cost import pointwise_time, traffic_energy
from costmodel.kernels.kernel_tables import Gemms, Label, Pointwise, total
from costmodel.kernels.products import gemm_cost
from costmodel.machine import System
from costmodel.steps.breakdown import Breakdown, assemble_breakdown, host_time
from costmodel.training.design_table import Design
from costmodel.training.ranks import Group
from dse.adapters.xla.analysis import Analysis
from dse.adapters.xla.summary.training_figures import step_tokens
from dse.adapters.xla.training.messages import AXES, PURPOSES, Collective
from dse.adapters.xla.training.provenance import PHASES, global_dims
from dse.adapters.xla.work.kernel_graph import HloKernel
from dse.adapters.xla.work.matrix_products import Product

MessageKind = Literal["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
MESSAGE_KINDS: Final[tuple[MessageKind, ...]] = get_args(MessageKind)


@dataclass(frozen=True, slots=True)
class Dense:
    """A batch of matrix products, C[m, n] = A[m, k] B[k, n]."""

    batch: float  #: [-]
    m: float  #: [elements]
    n: float  #: [elements]
    k: float  #: [elements]
    element_bytes: float  #: of an operand [B]
    output_bytes: float  #: moved per element of C [B]

    @property
    def flops(self) -> float:
        """Multiply-adds of the products, counted as two. [FLOP]"""
        return 2 * self.batch * self.m * self.n * self.k


@dataclass(frozen=True, slots=True)
class Message:
    """A collective in groups of devices; the message is the whole tensor."""

    kind: MessageKind
    message_bytes: float  #: [B]
    group_size: float  #: [-]
    stride: float  #: between neighbours of a group in the numbering of all devices [-]
    purpose: str = "unknown"  #: as `purposes` has it


@dataclass(frozen=True, slots=True)
class ProgramKernel:
    """A kernel that runs `count` times in a step: other work around matrix products, or a message."""

    name: str
    kind: str
    phase: str
    count: float  #: [-]
    bytes_moved: float  #: through the farthest memory, each array once [B]
    flops: float  #: besides matrix products [FLOP]
    products: tuple[Dense, ...] = ()
    message: Message | None = None
    idle: float = 0.0  #: runs among `count` that fill or drain a pipeline, and do no useful work [-]

    @property
    def runs(self) -> dict[str, float]:
        """Pass, or "bubble" -> runs of the kernel in it. [-]"""
        return {self.phase: self.count - self.idle} | ({"bubble": self.idle} if self.idle else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One step of a compiled program on each of its devices."""

    #: Names of dimensions for formulas.
    dimensions: ClassVar[tuple[str, ...]] = ("devices",)
    counts: ClassVar[tuple[str, ...]] = ()

    name: str
    kernels: tuple[ProgramKernel, ...]
    devices: float  #: [-]
    num_parameters: float  #: of the whole model [-]
    tokens: float  #: of a step on all devices; nan where they are unknown [-]
    weights_bytes: float  #: [B]
    optimizer_bytes: float  #: other state that a step overwrites [B]
    inputs_bytes: float  #: [B]
    temporaries_bytes: float  #: most that intermediate arrays take at once [B]

    def grouped(self) -> Self:
        """Program whose kernels of equal cost are one row, counted together, those of a bubble apart."""
        rows: dict[ProgramKernel, ProgramKernel] = {}
        for kernel in self.kernels:
            for phase, count in kernel.runs.items():
                part_kernel = replace(kernel, phase=phase, count=count, idle=0.0)
                cost = replace(part_kernel, name="", count=0)
                same = rows.get(cost)
                rows[cost] = replace(same, count=same.count + count) if same else part_kernel
        return replace(self, kernels=tuple(rows.values()))

    @property
    def model_flops(self) -> float:
        """Matrix products of all devices, those of recomputation and of bubbles left out. [FLOP]"""
        flops = [
            k.runs[k.phase] * product.flops
            for k in self.kernels
            if k.phase not in ("recompute", "bubble")
            for product in k.products
        ]
        return self.devices * sum(flops)

    def pointwise(self, points: int) -> Pointwise:
        """Traffic and work of every kernel besides matrix products, one run of each, (points, kernels)."""
        one = np.ones(points)
        rows = [(Label(k.name, k.phase, k.kind), (k.bytes_moved, k.flops, one)) for k in self.kernels]
        return Pointwise.stack(rows)

    def gemms(self, points: int) -> list[tuple[float, list[int], Gemms]]:
        """Matrix products by element size [B]: the kernel of each, and their table, (points, products)."""
        one = np.ones(points)
        tables = []
        for size in sorted({product.element_bytes for k in self.kernels for product in k.products}):
            places, rows = [], []
            for index, kernel in enumerate(self.kernels):
                for p in (p for p in kernel.products if p.element_bytes == size):
                    places.append(index)
                    label = Label(kernel.name, kernel.phase, kernel.kind)
                    rows.append((label, (p.m, p.n, p.k, p.batch, p.output_bytes, one)))
            tables.append((size, places, Gemms.stack(rows)))
        return tables


SCHEMA: Final = "program/v1"
_COUNTS: Final = ("devices", "num_parameters")
_BYTES: Final = ("weights_bytes", "optimizer_bytes", "inputs_bytes", "temporaries_bytes")
_ROW: Final = "[kind, phase, count, bytes, flops, products, message]"


def program_data(program: Program) -> dict[str, Any]:
    """The content of a program file."""
    known = {} if math.isnan(program.tokens) else {"tokens": program.tokens}
    return {
        "schema": SCHEMA,
        "name": program.name,
        **{key: getattr(program, key) for key in _COUNTS},
        **known,
        **{key: f"{getattr(program, key):.0f} B" for key in _BYTES},
        "kernels": [_row(kernel) for kernel in program.grouped().kernels],
    }


def _row(kernel: ProgramKernel) -> list[Any]:
    products = [list(astuple(product)) for product in kernel.products]
    message = list(astuple(kernel.message)) if kernel.message else []
    return [kernel.kind, kernel.phase, kernel.count, kernel.bytes_moved, kernel.flops, products, message]


def read_program(section: Section, name: str) -> Program:
    """The program that a mapping describes; mistakes are noted in its source, and stand-ins returned."""
    section.only(("schema", "name", "description", "tokens", "kernels", *_COUNTS, *_BYTES))
    section.text("description", required=False)
    kernels = section.value("kernels", _kernels, tuple[ProgramKernel, ...]())
    return Program(
        name=section.text("name", required=False) or name,
        kernels=kernels,
        tokens=section.number("tokens", default=math.nan),
        **{key: section.number(key) for key in _COUNTS},
        **{key: section.number(key, "B") for key in _BYTES},
    )


def _kernels(rows: Any) -> tuple[ProgramKernel, ...]:
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"expected rows, each {_ROW}")
    return tuple(_kernel(row, index) for index, row in enumerate(rows))


def _kernel(row: Any, number: int) -> ProgramKernel:
    if not isinstance(row, list) or len(row) != 7 or not all(isinstance(part, list) for part in row[5:]):
        raise ValueError(f"row {number}: expected {_ROW}")
    kind, phase, *numbers, products, message = row
    _word(phase, PHASES, "phase", number)
    count, moved, flops = _numbers(numbers, 3, number)
    dense = tuple(Dense(*_numbers(product, 6, number)) for product in products)
    return ProgramKernel(f"{kind}.{number}", str(kind), phase, count, moved, flops, dense, _message(message, number))


def _message(written: list[Any], number: int) -> Message | None:
    if not written:
        return None
    kind = _word(written[0], MESSAGE_KINDS, "message", number)
    purpose = _word(written[4] if len(written) == 5 else None, PURPOSES, "purpose", number)
    size, devices, stride = _numbers(written[1:4], 3, number)
    return Message(kind, size, devices, stride, purpose)


def _word(written: Any, words: Sequence[str], what: str, row: int) -> Any:
    if written not in words:
        raise ValueError(f"row {row}: {written!r} is not a {what}{suggestion(str(written), words)}")
    return written


def _numbers(written: Any, count: int, row: int) -> list[float]:
    """`count` numbers, none of them negative."""
    if not isinstance(written, list) or len(written) != count:
        raise ValueError(f"row {row}: {written!r}: expected {count} numbers")
    if not all(type(number) in (int, float) and number >= 0 for number in written):
        raise ValueError(f"row {row}: {written!r}: expected numbers, none of them negative")
    return [float(number) for number in written]


#: Collective -> how it is evaluated. A broadcast passes its message along a ring once, as a gather does, a
#: reduction to one device as a scatter.
_MESSAGES: Final[Mapping[str, MessageKind]] = data_beside(__file__, "tables.yaml")["messages"]


def program(analysis: Analysis) -> Program:
    """The tables of a module's kernels, in the order of the text."""
    state, module = analysis.state, analysis.module
    weights, kept, parameters = (
        sum(array.shape.bytes for array in arrays) for arrays in (state.weights, state.kept, module.entry.parameters)
    )
    tokens, needs = step_tokens(analysis), analysis.memory[1]
    return Program(
        name=module.name,
        kernels=tuple(_program_kernel(analysis, index, kernel) for index, kernel in enumerate(analysis.graph.kernels)),
        devices=analysis.devices,
        num_parameters=sum(prod(global_dims(weight)) for weight in state.weights),
        tokens=tokens[0] * tokens[1] if tokens else nan,
        weights_bytes=weights,
        optimizer_bytes=kept,
        inputs_bytes=parameters - weights - kept,
        temporaries_bytes=needs.temporaries + needs.results,
    )


def _program_kernel(analysis: Analysis, number: int, kernel: HloKernel) -> ProgramKernel:
    collective = analysis.collectives.get(number)
    idle = (waits / ticks for loop, (ticks, waits) in analysis.pipelines.items() if loop in kernel.around)
    return ProgramKernel(
        name=kernel.name,
        kind=kernel.kind,
        phase=analysis.phases[number],
        count=kernel.count,
        bytes_moved=analysis.access[number].total,
        flops=analysis.work[number].total,
        products=tuple(_dense(product) for product in kernel.products),
        message=None if collective is None else _sent(collective),
        idle=0.0 if collective else kernel.count * next(idle, 0.0),
    )


def _dense(product: Product) -> Dense:
    """A product, its operands as wide as the wider of them."""
    element_bytes = max(operand.element_bytes for operand in product.operands[:2])
    read_again = product.operands[2].element_bytes if product.beta else 0.0
    moved = product.output.element_bytes + read_again
    return Dense(product.batch, product.m, product.n, float(product.k * product.useful), element_bytes, moved)


def _sent(collective: Collective) -> Message:
    placed, kind = collective.placement, _MESSAGES[collective.name]
    whole = collective.result_bytes if collective.name == "all-gather" else collective.payload_bytes
    return Message(kind, whole, placed.size, placed.stride, collective.purpose)


#: Operand size for which a chip's matrix rate is given; other sizes run in proportion. [B]
RATED_BYTES = 2.0

#: Machines evaluated at once: (points, kernels) arrays that fit into a core's cache.
CHUNK = 512


@dataclass(frozen=True, slots=True, eq=False)
class ProgramCost:
    """Cost of each kernel of a program, all its runs; every array has shape (points, kernels)."""

    time: FloatArray  #: [s]
    memory_bound: BoolArray  #: whether a kernel waits for a memory level, for most of its time
    compute_energy: FloatArray  #: of one device [J]
    memory_energy: FloatArray  #: of one device [J]
    link_energy: FloatArray  #: of one device [J]


def program_cost(program: Program, system: System) -> ProgramCost:
    """Times [s] and energies [J] of all kernels of a program on one device, (points, kernels).

    A kernel takes the longer of its matrix products, evaluated by `gemm_cost`, and of the roofline of all its
    arrays and its other work. The matrix units are taken to be as much slower for an operand as it is wider.
    A torus is cut to a slice for the program's devices.
    """
    points = max(values.size for values in system.quantities().values())
    system = system.sliced(np.full(points, program.devices))
    pointwise = program.pointwise(points)
    counts = np.array([kernel.count for kernel in program.kernels])
    time, memory_bound = pointwise_time(pointwise, system)
    flops = np.broadcast_to(pointwise.flops, time.shape).copy()
    far_bytes = np.broadcast_to(pointwise.bytes_moved, time.shape).copy()
    near_energy = np.zeros(time.shape)
    products, waiting = np.zeros(time.shape), np.zeros(time.shape)
    for element_bytes, places, gemms in program.gemms(points):
        far_bytes[:, sorted(set(places))] = 0.0
        rated = system.chip.matrix_efficiency * (RATED_BYTES / element_bytes)
        machine = replace(system, chip=replace(system.chip, matrix_efficiency=rated))
        cost = gemm_cost(gemms, machine, element_bytes=element_bytes)
        energies = np.zeros(time.shape)
        for column, number in enumerate(places):
            products[:, number] += cost.time[:, column]
            waiting[:, number] += np.where(cost.memory_bound[:, column], cost.time[:, column], 0.0)
            flops[:, number] += cost.flops[:, column]
            energies[:, number] += traffic_energy([moved[:, column] for moved in cost.traffic], system.memory)
        near_energy += energies
    memory_bound = np.where(products > time, waiting > products / 2, memory_bound)
    time = np.maximum(time, products)
    links = np.zeros(time.shape)
    for index, kernel in enumerate(program.kernels):
        if kernel.message is not None:
            sent = message_cost(kernel.message, system)
            time[:, index] = np.maximum(sent.time, products[:, index])  # other work may be in the same kernel
            links[:, index] = traffic_energy(sent.bytes_sent, system.network)
    memory_energy = near_energy + far_bytes * np.atleast_1d(system.dram.energy)[:, np.newaxis]
    per_flop = np.atleast_1d(system.chip.flop_energy)[:, np.newaxis]
    return ProgramCost(time * counts, memory_bound, flops * per_flop * counts, memory_energy * counts, links * counts)


def message_cost(message: Message, system: System) -> CollectiveCost:
    """Time [s] and traffic [B] of a message, (points,)."""
    group = Group(np.array([message.group_size]), np.array([message.stride]))
    moved, network = np.array([message.message_bytes]), system.network
    if message.kind == "send_recv":
        return send_recv(moved, group, network)
    if message.kind == "all_to_all":
        return all_to_all(moved, group, network)
    return collective(message.kind, moved, group, network)


def program_step(program: Program, system: System, design: Design | None = None) -> Breakdown:
    """Evaluate one step of a program on each of some machines; (points,) columns. [s], [B], [J], [$], [W]

    `design` is not read, since a program's layout is fixed; it makes the signature that of `step`.

    Kernels and messages run one after the other. Messages count to the axis of the mesh of their purpose; numbers,
    inputs and unknown purposes count to data-parallel communication. The host launches ahead: its time to dispatch
    kernels is that of another framework, and left out.
    """
    program = program.grouped()
    quantities = system.quantities()
    points = max(values.size for values in quantities.values())
    rows, back = distinct_rows(*quantities.values())
    chunks = np.split(rows, range(CHUNK, rows.size, CHUNK))
    breakdown = concatenated([_of_chunk(program, system.take(chunk), chunk.size) for chunk in chunks])
    return breakdown.map(lambda values: np.broadcast_to(values, rows.size)[back]) if points > 1 else breakdown


def _of_chunk(program: Program, system: System, points: int) -> Breakdown:
    """Evaluate a step on a chunk of machines."""
    devices = np.full(points, program.devices)
    cost = program_cost(program, system)
    times = _times(program, cost)
    computing = sum((times[key] for key in _COMPUTING), np.zeros(points))
    zero = np.zeros(points)
    computed = [kernel.message is None and kernel.phase != "optimizer" for kernel in program.kernels]
    parts = {
        **times,
        "host_time": host_time(system, devices, computing),
        "memory_bound_time": total(np.where(cost.memory_bound, cost.time, 0.0)[:, computed]),
        "weights_memory": zero + program.weights_bytes,
        "optimizer_memory": zero + program.optimizer_bytes,
        "activations_memory": zero + program.temporaries_bytes,
        "buffers_memory": zero + program.inputs_bytes,
        "reserved_memory": zero + system.chip.reserved_memory,
        "compute_energy": devices * total(cost.compute_energy),
        "memory_energy": devices * total(cost.memory_energy),
        "link_energy": devices * total(cost.link_energy),
    }
    with np.errstate(divide="ignore", invalid="ignore"):  # a message to the device itself takes no time
        return assemble_breakdown(
            parts, system, world_size=devices, tokens=zero + program.tokens, model_flops=zero + program.model_flops
        )


#: Times of kernels; the others are of messages.
_COMPUTING = ("forward_time", "backward_time", "recompute_time", "optimizer_time", "bubble_time")
#: Purpose of a message -> the axis that its time counts to.
AXIS_OF: Final[Mapping[str, str]] = {purpose: axis for axis, purposes in AXES.items() for purpose in purposes}
_COMMUNICATING = tuple(f"{axis}_communication_time" for axis in AXES)


def _times(program: Program, cost: ProgramCost) -> dict[str, FloatArray]:
    """Column of a breakdown -> sum of its kernels' times, (points,). [s]"""
    places: dict[str, list[int]] = {name: [] for name in (*_COMPUTING, *_COMMUNICATING)}
    for index, kernel in enumerate(program.kernels):
        if kernel.message is None:
            phase = "forward" if kernel.phase == "unknown" else kernel.phase
            places[f"{phase}_time"].append(index)
        else:
            places[f"{AXIS_OF[kernel.message.purpose]}_communication_time"].append(index)
    return {name: total(cost.time[:, columns]) for name, columns in places.items()}
