"""Where the time, the memory, the energy and the money of a step go: the table that a step returns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from costmodel.columns import Columns, FloatArray, column, column_units

if TYPE_CHECKING:
    import pandas as pd

#: SI unit -> ending of a column's name in tables and JSON.
UNIT_SUFFIX = {
    "s": "_s",
    "B": "_bytes",
    "J": "_j",
    "W": "_w",
    "$": "_usd",
    "FLOP": "",
    "1/s": "",
    "-": "",
}


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Breakdown(Columns):
    """One optimizer step of each design; every column has shape (points,).

    The times up to `host_time` add up to `step_time`, the bytes up to `reserved_memory` to
    `peak_memory`, and the energies up to `idle_energy` to `energy_per_step`. Of the forward, backward and
    recompute times, `memory_bound_time` is spent in kernels that wait for a memory level, and
    `launch_bound_time` waiting for the host to launch kernels; the rest is arithmetic.
    """

    step_time: FloatArray = column("s")
    forward_time: FloatArray = column("s")
    backward_time: FloatArray = column("s")
    recompute_time: FloatArray = column("s")
    tp_communication_time: FloatArray = column("s")
    pp_communication_time: FloatArray = column("s")
    bubble_time: FloatArray = column("s")
    dp_communication_time: FloatArray = column("s")
    optimizer_time: FloatArray = column("s")
    host_time: FloatArray = column("s")

    peak_memory: FloatArray = column("B")
    weights_memory: FloatArray = column("B")
    gradients_memory: FloatArray = column("B")
    optimizer_memory: FloatArray = column("B")
    activations_memory: FloatArray = column("B")
    buffers_memory: FloatArray = column("B")
    reserved_memory: FloatArray = column("B")

    energy_per_step: FloatArray = column("J")
    compute_energy: FloatArray = column("J")
    memory_energy: FloatArray = column("J")
    link_energy: FloatArray = column("J")
    idle_energy: FloatArray = column("J")

    memory_bound_time: FloatArray = column("s")
    launch_bound_time: FloatArray = column("s")
    tokens_per_second: FloatArray = column("1/s")
    model_flops: FloatArray = column("FLOP")
    mfu: FloatArray = column("-")
    world_size: FloatArray = column("-")
    system_price: FloatArray = column("$")
    system_power: FloatArray = column("W")
    average_power: FloatArray = column("W")

    def to_frame(self) -> pd.DataFrame:
        """The table in pandas, column names with their units: ``step_time_s``, ``peak_memory_bytes``."""
        import pandas as pd

        return pd.DataFrame({with_unit_suffix(name): values for name, values in self.columns().items()})


#: Total -> the parts that add up to it.
PARTS: dict[str, tuple[str, ...]] = {
    "step_time": (
        "forward_time",
        "backward_time",
        "recompute_time",
        "tp_communication_time",
        "pp_communication_time",
        "bubble_time",
        "dp_communication_time",
        "optimizer_time",
        "host_time",
    ),
    "peak_memory": (
        "weights_memory",
        "gradients_memory",
        "optimizer_memory",
        "activations_memory",
        "buffers_memory",
        "reserved_memory",
    ),
    "energy_per_step": ("compute_energy", "memory_energy", "link_energy", "idle_energy"),
}

#: Times that are parts of forward, backward and recompute time together.
BOUNDS = ("memory_bound_time", "launch_bound_time")


def with_unit_suffix(name: str) -> str:
    """A breakdown column's name in tables and JSON, ending in its unit.

    >>> [with_unit_suffix(name) for name in ("step_time", "peak_memory", "mfu", "tokens_per_second")]
    ['step_time_s', 'peak_memory_bytes', 'mfu', 'tokens_per_second']
    """
    return name + UNIT_SUFFIX[column_units(Breakdown)[name]]
