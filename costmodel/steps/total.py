"""What the steps of all workloads have in common: pricing in chunks, and adding the parts up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from costmodel.columns import Columns, FloatArray, concatenated
from costmodel.machine.price import chip_power, chip_price
from costmodel.machine.system import System
from costmodel.steps.breakdown import BOUNDS, PARTS, Breakdown

#: Designs that are priced at once: enough to drown Python's overhead, few enough to bound memory.
CHUNK = 16384

AnyDesign = TypeVar("AnyDesign", bound=Columns)


def in_chunks(
    price: Callable[[System, AnyDesign], Breakdown], system: System, design: AnyDesign
) -> Breakdown:
    """Price designs a chunk at a time, so that memory does not grow with their number."""
    points = max(design.num_points, *(values.size for values in system.quantities().values()))
    design = design.map(lambda values: np.broadcast_to(values, (points,)))
    return concatenated(
        [
            price(system.take(rows), design.take(rows))
            for rows in (slice(start, start + CHUNK) for start in range(0, points, CHUNK))
        ]
    )


def host_time(system: System, world_size: FloatArray, computing: FloatArray) -> FloatArray:
    """Time of a step outside of the chips, and of waiting for the slowest node. [s]"""
    nodes = np.maximum(world_size / system.network[0].size, 1.0)
    return system.host.step_overhead + system.host.straggler * np.log2(nodes) * computing


def added_up(
    parts: Mapping[str, FloatArray],
    system: System,
    *,
    world_size: FloatArray,
    tokens: FloatArray,
    model_flops: FloatArray,
) -> Breakdown:
    """The table of a step from its parts.

    Parameters
    ----------
    parts : mapping of (points,) arrays
        Columns that `PARTS` and `BOUNDS` name, but for `idle_energy`; those left out are 0. [s], [B], [J]
    system : System
        Machine.
    world_size : (points,) array
        Chips. [-]
    tokens, model_flops : (points,) array
        Of a step. [-], [FLOP]
    """
    zero = np.zeros_like(world_size)
    columns = {name: parts.get(name, zero) for names in (*PARTS.values(), BOUNDS) for name in names}

    def sum_of(total: str) -> FloatArray:
        first, *others = (columns[name] for name in PARTS[total])
        for values in others:
            first = first + values
        return first

    step_time = sum_of("step_time")
    columns["idle_energy"] = world_size * step_time * (system.chip.idle_power + system.host.power)
    energy = sum_of("energy_per_step")
    return Breakdown(
        **columns,
        step_time=step_time,
        peak_memory=sum_of("peak_memory"),
        energy_per_step=energy,
        tokens_per_second=tokens / step_time,
        model_flops=model_flops,
        mfu=model_flops / (step_time * world_size * system.chip.peak_flop_rate),
        world_size=world_size,
        system_price=world_size * chip_price(system),
        system_power=world_size * chip_power(system),
        average_power=energy / step_time * system.host.power_overhead,
    )
