"""Cycles of kernels that share the cores of a chip, where no utilization is given."""

from __future__ import annotations

from bisect import bisect_left

import numpy as np

from costmodel.columns import FloatArray
from costmodel.profiles.dfmodel.graph import Graph
from costmodel.profiles.dfmodel.setup import Setup


def fewest_cycles(
    graph: Graph,
    setup: Setup,
    m: FloatArray,
    k: FloatArray,
    n: FloatArray,
    streams: FloatArray,
    within: FloatArray,
) -> FloatArray:
    """Cycles of the slowest kernel of each group under the best split of the cores; exact.

    Parameters
    ----------
    m, k, n : (points, kernels) array
        Shard of a kernel for one tile. [-]
    streams : (points, kernels) array
        Tiles, times repetitions. [-]
    within : (kernels, groups) array
        1 where a kernel is of a group. [-]

    Returns
    -------
    cycles : (points, groups) array
        Infinite where a group has more kernels than there are cores. [-]
    """
    points = np.broadcast_shapes(m.shape, streams.shape, (setup.num_points, 1))[0]
    table = [np.broadcast_to(a, (points, len(graph))) for a in (m, k, n, streams)]
    machine = [np.broadcast_to(a, (points,)) for a in (setup.array_width, setup.array_height, setup.cores)]
    cycles = np.empty((points, within.shape[1]))
    for point in range(points):
        width, height, cores = (float(a[point]) for a in machine)
        curves = _cycles_by_cores(
            graph, *(a[point] for a in table), width=width, height=height, cores=int(cores)
        )
        for group in range(within.shape[1]):
            cycles[point, group] = _balanced(curves[within[:, group] > 0])
    return cycles


def _cycles_by_cores(
    graph: Graph,
    m: FloatArray,
    k: FloatArray,
    n: FloatArray,
    streams: FloatArray,
    *,
    width: float,
    height: float,
    cores: int,
) -> FloatArray:
    """Fewest cycles of each kernel on 1, 2 ... cores, over all lanes x stages; (kernels, cores). [-]"""
    stages = np.concatenate([np.full(cores // stage, stage) for stage in range(1, cores + 1)])
    lanes = np.concatenate([np.arange(1, cores // stage + 1) for stage in range(1, cores + 1)])
    m, k, n, streams = (values[:, np.newaxis] for values in (m, k, n, streams))
    rows = np.ceil(m / (lanes * width))
    matrix = rows * np.ceil(n / (stages * height)) * k
    vector = np.where(stages == 1, rows * n, np.inf)
    cycles = np.where(graph.systolic[:, np.newaxis], matrix, vector) * streams
    best = np.full((cores, cycles.shape[0]), np.inf)
    np.minimum.at(best, lanes * stages - 1, cycles.T)
    return np.minimum.accumulate(best.T, axis=1)


def _balanced(curves: FloatArray) -> float:
    """Fewest cycles within which every kernel of a group is done, all cores shared out. [-]"""
    cores = curves.shape[1]
    if len(curves) == 0:
        return 0.0
    candidates = np.unique(curves)

    def fits(limit: float) -> bool:
        needed = cores + 1 - np.sum(curves <= limit, axis=1)  # one more than there are where none will do
        return bool(needed.max() <= cores and needed.sum() <= cores)

    least = bisect_left(candidates, True, key=fits)
    return float(candidates[least]) if least < candidates.size else float("inf")
