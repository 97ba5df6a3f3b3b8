"""Cycles of kernels that share the cores of a chip, where no utilization is given."""

from __future__ import annotations

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray
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
    whole: BoolArray,
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
    whole : (points, groups) array of bool
        The group is one kernel, which takes all the cores.

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
        exact = _cycles_by_cores(
            graph, *(a[point] for a in table), width=width, height=height, cores=int(cores)
        )
        shared = _balanced(np.minimum.accumulate(exact, axis=1), within)
        alone = np.max(np.where(within > 0, exact[:, -1:], 0), axis=0)
        cycles[point] = np.where(whole[point], alone, shared)
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
    """Fewest cycles of each kernel on exactly 1, 2 ... cores, of lanes x stages; (kernels, cores). [-]"""
    stages, lanes, bounds = _lanes_and_stages(cores)
    m, k, n, streams = (values[:, np.newaxis] for values in (m, k, n, streams))
    rows = np.ceil(m / (lanes * width))
    matrix = rows * np.ceil(n / (stages * height)) * k
    vector = np.where(stages == 1, rows * n, np.inf)
    cycles = np.where(graph.systolic[:, np.newaxis], matrix, vector) * streams
    return np.minimum.reduceat(cycles, bounds, axis=1)


def _lanes_and_stages(cores: int) -> tuple[IntArray, IntArray, IntArray]:
    """Stages and lanes of all layouts by the cores that they take, and the first layout on each number."""
    stages = np.concatenate([np.full(cores // stage, stage) for stage in range(1, cores + 1)])
    lanes = np.concatenate([np.arange(1, cores // stage + 1) for stage in range(1, cores + 1)])
    order = np.argsort(lanes * stages, kind="stable")
    stages, lanes = stages[order], lanes[order]
    return stages, lanes, np.searchsorted(lanes * stages, np.arange(1, cores + 1))


def _balanced(curves: FloatArray, within: FloatArray) -> FloatArray:
    """Fewest cycles within which every kernel of a group is done, all cores shared out; (groups,). [-]

    Notes
    -----
    What suits a group only changes at cycles that one of its kernels may take, hence the least of those
    that suit it, found by halving, is the least of all.
    """
    cores = curves.shape[1]
    limits = np.unique(curves[np.isfinite(curves)])
    # Cores that a kernel needs to stay within a limit; one more than there are where none will do.
    needed = np.array([1 + np.searchsorted(-curve, -limits) for curve in curves], dtype=np.float64)
    low, high = np.zeros(within.shape[1], dtype=np.intp), np.full(within.shape[1], limits.size)
    while np.any(low < high):
        middle = (low + high) // 2
        taken = np.sum(needed[:, np.minimum(middle, limits.size - 1)] * within, axis=0)
        fits = taken <= cores
        low, high = np.where(fits | (low == high), low, middle + 1), np.where(fits, middle, high)
    cycles = np.append(limits, np.inf)[low]
    return np.where(within.any(axis=0), cycles, 0.0)
