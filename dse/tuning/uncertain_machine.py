"""Step times of designs on many machines that a cluster might be: the shipped constants, each with its uncertainty.

A constant of a system file is a data sheet's, or fitted to runs of another cluster. Real fabrics reach a third of the
rate of their links where many nodes exchange, hosts differ, and software changes. The machines here draw each constant
around its shipped value. Times on all of them tell how the times of two designs move together: a slow fabric delays
all designs that exchange gradients, and a run of one of them tells about the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from costmodel import step
from costmodel.columns import FloatArray
from costmodel.training.design import DesignPoints
from costmodel.training.run import TransformerRun
from dse.predictions.intervals import FABRIC_SPREAD

#: Machines that are drawn; their order is fixed. [-]
MACHINES: Final = 128
#: Designs that are evaluated at once. [-]
AT_ONCE: Final = 16384

#: Constant of a chip, a host or the software -> spread of its logarithm: chips of one kind hold 80 to 100 % of their
#: rate for hours, hosts and stragglers differ by factors.
SPREADS: Final = {
    "sustained": 0.15,
    "dram_efficiency": 0.1,
    "software_pointwise_kernels": 0.3,
    "dp_collective_cores": 0.5,
    "host_dispatch": 0.7,
    "host_straggler": 1.0,
}
#: The same of a tier of links, of which the innermost is well known.
INNER: Final = {"efficiency": 0.25, "launch": 0.7}
#: Rates between nodes are nominal, and only lower in practice.
OUTER: Final = {"efficiency": FABRIC_SPREAD, "launch": 0.7, "latency": 0.7}
#: Constants that cannot exceed 1.
SHARES: Final = ("sustained", "efficiency")


@dataclass(frozen=True, slots=True)
class Ensemble:
    """Logarithms of the step times of designs on drawn machines."""

    names: tuple[str, ...]  #: constants that differ
    shipped: FloatArray  #: their shipped values, (constants,) [unit of each]
    factors: FloatArray  #: logarithms of their factors, (machines, constants) [-]
    log_times: FloatArray  #: (machines, designs) [log s]


def ensemble(run: TransformerRun, machines: int = MACHINES) -> Ensemble:
    """Step times of the designs of a run on drawn machines; the first one is as shipped."""
    design: DesignPoints = run.design
    points, known = run.num_points, run.system.quantities()
    spreads = dict(SPREADS)
    for level, tier in enumerate(run.system.network):
        outer = level == len(run.system.network) - 1 and level > 0
        spreads |= {f"{tier.name}_{name}": spread for name, spread in (OUTER if outer else INNER).items()}
    names = [name for name in spreads if name in known and (np.nan_to_num(known[name]) > 0).all()]
    draws = np.random.default_rng(0).standard_normal((machines, len(names)))
    draws[0] = 0
    outermost = f"{run.system.network[-1].name}_efficiency"
    lowered = np.where(np.array(names) == outermost, -np.abs(draws), draws)
    factors = lowered * [spreads[name] for name in names]
    shipped = np.array([float(np.ravel(known[name])[0]) for name in names])
    for column, name in enumerate(names):
        if name.endswith(SHARES):
            factors[:, column] = np.minimum(factors[:, column], -np.log(shipped[column]))
    log_times = np.empty((machines, points))
    block = max(AT_ONCE // points, 1)
    for first in range(0, machines, block):
        drawn = np.arange(first, min(first + block, machines))
        rows = np.tile(np.arange(points), drawn.size)
        values = {
            name: np.broadcast_to(known[name], (points,))[rows] * np.exp(np.repeat(factors[drawn, column], points))
            for column, name in enumerate(names)
        }
        many = replace(run, system=run.system.take(rows).with_quantities(values), design=design.take(rows))
        times = step(many.model, many.system, many.design).step_time
        log_times[drawn] = np.log(times).reshape(drawn.size, points)
    return Ensemble(tuple(names), shipped, factors, log_times)
