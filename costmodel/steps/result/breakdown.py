"""Where the time, the memory, the energy and the money of a step go: the table that a step returns."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import numpy as np

from costmodel.columns import Columns, FloatArray, column, column_units

if TYPE_CHECKING:
    import pandas as pd

#: SI unit -> ending of a column's name in tables and JSON.
UNIT_SUFFIX = {"s": "_s", "B": "_bytes", "J": "_j", "W": "_w", "$": "_usd", "kg": "_kg", "FLOP": "", "1/s": "", "-": ""}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ResultTable(Columns):
    """Results of a kind of work for each design; the first column is its time, such as that of a step.

    Every column has shape (points,). A column that declares a total, as ``of="step_time"``, is a part of it:
    the parts of a total add up to it.
    """

    @classmethod
    def totals(cls) -> dict[str, tuple[str, ...]]:
        """Total -> the parts that add up to it, in their order."""
        totals: dict[str, tuple[str, ...]] = {}
        for member in fields(cls):
            if total := member.metadata.get("of"):
                totals[total] = (*totals.get(total, ()), member.name)
        return totals

    @classmethod
    def key(cls, name: str) -> str:
        """A column's name in tables and JSON, ending in its unit."""
        return name + UNIT_SUFFIX[column_units(cls)[name]]

    @property
    def time(self) -> FloatArray:
        """The time that the work is about: of a step, of a token. [s]"""
        values: FloatArray = getattr(self, next(iter(column_units(type(self)))))
        return values

    @property
    def memory(self) -> FloatArray:
        """Memory of a device at its fullest moment; zeros for work that states none. [B]"""
        return self.columns().get("peak_memory", np.zeros(len(self.time)))

    def by_key(self) -> dict[str, FloatArray]:
        """Columns by their names in tables and JSON. [the unit that each ends in]"""
        return {self.key(name): values for name, values in self.columns().items()}

    def to_frame(self) -> pd.DataFrame:
        """The table in pandas, column names with their units: ``step_time_s``, ``peak_memory_bytes``."""
        import pandas as pd

        return pd.DataFrame(self.by_key())


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Breakdown(ResultTable):
    """One optimizer step of each design; every column has shape (points,).

    Of the forward, backward and recompute times, `memory_bound_time` is spent in kernels that wait for a memory level,
    and `launch_bound_time` waiting for the host to launch kernels; the rest is arithmetic.
    """

    step_time: FloatArray = column("s")
    forward_time: FloatArray = column("s", of="step_time")
    backward_time: FloatArray = column("s", of="step_time")
    recompute_time: FloatArray = column("s", of="step_time")
    tp_communication_time: FloatArray = column("s", of="step_time")
    cp_communication_time: FloatArray = column("s", of="step_time")
    ep_communication_time: FloatArray = column("s", of="step_time")
    offload_time: FloatArray = column("s", of="step_time")
    pp_communication_time: FloatArray = column("s", of="step_time")
    bubble_time: FloatArray = column("s", of="step_time")
    dp_communication_time: FloatArray = column("s", of="step_time")
    optimizer_time: FloatArray = column("s", of="step_time")
    host_time: FloatArray = column("s", of="step_time")

    peak_memory: FloatArray = column("B")
    weights_memory: FloatArray = column("B", of="peak_memory")
    gradients_memory: FloatArray = column("B", of="peak_memory")
    optimizer_memory: FloatArray = column("B", of="peak_memory")
    activations_memory: FloatArray = column("B", of="peak_memory")
    buffers_memory: FloatArray = column("B", of="peak_memory")
    reserved_memory: FloatArray = column("B", of="peak_memory")

    energy_per_step: FloatArray = column("J")
    compute_energy: FloatArray = column("J", of="energy_per_step")
    memory_energy: FloatArray = column("J", of="energy_per_step")
    link_energy: FloatArray = column("J", of="energy_per_step")
    idle_energy: FloatArray = column("J", of="energy_per_step")

    memory_bound_time: FloatArray = column("s")
    launch_bound_time: FloatArray = column("s")
    tokens_per_second: FloatArray = column("1/s")
    tokens_per_second_per_gpu: FloatArray = column("1/s")
    model_flops: FloatArray = column("FLOP")
    mfu: FloatArray = column("-")
    world_size: FloatArray = column("-")
    system_price: FloatArray = column("$")
    system_power: FloatArray = column("W")
    average_power: FloatArray = column("W")


#: Total -> the parts that add up to it.
PARTS: dict[str, tuple[str, ...]] = Breakdown.totals()

#: Times that are parts of forward, backward and recompute time together.
BOUNDS = ("memory_bound_time", "launch_bound_time")


def with_unit_suffix(name: str) -> str:
    """A breakdown column's name in tables and JSON, ending in its unit.

    >>> [with_unit_suffix(name) for name in ("step_time", "peak_memory", "mfu", "tokens_per_second")]
    ['step_time_s', 'peak_memory_bytes', 'mfu', 'tokens_per_second']
    """
    return Breakdown.key(name)
