"""Evaluates a compiled program on machines: kernels by tilings and rooflines, messages on their links."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, concatenated, distinct_rows
from costmodel.kernels.collectives import CollectiveCost, all_to_all, collective, send_recv
from costmodel.kernels.gemm import gemm_cost
from costmodel.kernels.kernel_cost import pointwise_time, traffic_energy
from costmodel.machine.system import System
from costmodel.steps.result.assembly import assemble_breakdown, host_time
from costmodel.steps.result.breakdown import Breakdown
from costmodel.training.design_table import Design
from costmodel.training.ranks import Group
from costmodel.workload.kernel_tables import total
from dse.adapters.xla.steps.program import Message, Program

#: Operand size for which a chip's matrix rate is given; other sizes run in proportion. [B]
RATED_BYTES = 2.0

#: Machines evaluated at once: (points, kernels) arrays that fit into a core's cache.
CHUNK = 512


@dataclass(frozen=True, slots=True, eq=False)
class ProgramCost:
    """Price of each kernel of a program, all its runs; every array has shape (points, kernels)."""

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
        cost = gemm_cost(gemms, _at_width(system, element_bytes), element_bytes=element_bytes)
        energies = np.zeros(time.shape)
        for column, place in enumerate(places):
            products[:, place] += cost.time[:, column]
            waiting[:, place] += np.where(cost.memory_bound[:, column], cost.time[:, column], 0.0)
            flops[:, place] += cost.flops[:, column]
            energies[:, place] += traffic_energy([moved[:, column] for moved in cost.traffic], system.memory)
        near_energy += energies
    memory_bound = np.where(products > time, waiting > products / 2, memory_bound)
    time = np.maximum(time, products)
    links = np.zeros(time.shape)
    for place, kernel in enumerate(program.kernels):
        if kernel.message is not None:
            sent = message_cost(kernel.message, system)
            time[:, place] = np.maximum(sent.time, products[:, place])  # work may stand beside it
            links[:, place] = traffic_energy(sent.bytes_sent, system.network)
    memory_energy = near_energy + far_bytes * np.atleast_1d(system.dram.energy)[:, np.newaxis]
    per_flop = np.atleast_1d(system.chip.flop_energy)[:, np.newaxis]
    compute_energy = flops * per_flop
    return ProgramCost(time * counts, memory_bound, compute_energy * counts, memory_energy * counts, links * counts)


def _at_width(system: System, element_bytes: float) -> System:
    """The machine with the matrix rate that it has for operands of a size."""
    efficiency = system.chip.matrix_efficiency * (RATED_BYTES / element_bytes)
    return replace(system, chip=replace(system.chip, matrix_efficiency=efficiency))


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

    Kernels and messages run one after the other. Messages count to the axis of the mesh that they are for;
    numbers, inputs and what is unknown count to data-parallel communication.
    The host launches ahead: its time to dispatch kernels is that of another framework, and left out.
    """
    program = program.grouped()
    quantities = system.quantities()
    points = max(values.size for values in quantities.values())
    rows, back = distinct_rows(*quantities.values())
    chunks = np.split(rows, range(CHUNK, rows.size, CHUNK))
    breakdown = concatenated([_priced(program, system.take(chunk), chunk.size) for chunk in chunks])
    return breakdown.map(lambda values: np.broadcast_to(values, rows.size)[back]) if points > 1 else breakdown


def _priced(program: Program, system: System, points: int) -> Breakdown:
    """Evaluate a step on a chunk of machines."""
    devices = np.full(points, program.devices)
    cost = program_cost(program, system)
    times = _times(program, cost)
    computing = sum((times[key] for key in _COMPUTING), np.zeros(points))
    zero = np.zeros(points)
    parts = {
        **times,
        "host_time": host_time(system, devices, computing),
        "memory_bound_time": _memory_bound_time(program, cost),
        "weights_memory": zero + program.weights_bytes,
        "optimizer_memory": zero + program.optimizer_bytes,
        "activations_memory": zero + program.temporaries_bytes,
        "buffers_memory": zero + program.inputs_bytes,
        "reserved_memory": zero + system.chip.reserved_memory,
        "compute_energy": devices * total(cost.compute_energy),
        "memory_energy": devices * total(cost.memory_energy),
        "link_energy": devices * total(cost.link_energy),
    }
    return assemble_breakdown(
        parts, system, world_size=devices, tokens=zero + program.tokens, model_flops=zero + program.model_flops
    )


#: Times of kernels; the others are of messages.
_COMPUTING = ("forward_time", "backward_time", "recompute_time", "optimizer_time", "bubble_time")
#: What a message is for -> the axis that its time counts to.
AXES: Final = {
    "tensor parallel": "tp", "sequence parallel": "tp", "context parallel": "cp", "expert parallel": "ep",
    "pipeline parallel": "pp", "data parallel": "dp", "fully sharded": "dp", "input": "dp", "scalars": "dp",
    "unknown": "dp",
}  # fmt: skip
_COMMUNICATING = tuple(f"{axis}_communication_time" for axis in ("tp", "cp", "ep", "pp", "dp"))


def _times(program: Program, cost: ProgramCost) -> dict[str, FloatArray]:
    """Column of a breakdown -> sum of its kernels' times, (points,). [s]"""
    places: dict[str, list[int]] = {name: [] for name in (*_COMPUTING, *_COMMUNICATING)}
    for place, kernel in enumerate(program.kernels):
        if kernel.message is None:
            phase = "forward" if kernel.phase == "unknown" else kernel.phase
            places[f"{phase}_time"].append(place)
        else:
            places[f"{AXES[kernel.message.purpose]}_communication_time"].append(place)
    return {name: total(cost.time[:, own]) for name, own in places.items()}


def _memory_bound_time(program: Program, cost: ProgramCost) -> FloatArray:
    """Time of the kernels before the optimizer that wait for memory, (points,). [s]"""
    places = [
        place for place, kernel in enumerate(program.kernels) if kernel.message is None and kernel.phase != "optimizer"
    ]
    return total(np.where(cost.memory_bound, cost.time, 0.0)[:, places])
