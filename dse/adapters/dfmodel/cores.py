"""Cycles of kernels that share the cores of a chip, where no utilization is given.

A kernel of m rows and n columns takes `lanes` times `stages` cores, each a systolic array, and passes its blocks in
rounds: ceil(m / (lanes width)) ceil(n / (stages height)). Kernels of a fused group run side by side, and the slowest
sets the pace. The reference leaves the split of the cores to an integer program; here it is found exactly. Only the
fewest parts of each number of rounds matter, and the least pace that all kernels can keep is found by halving.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, FloatArray, IntArray, distinct_table_rows, per_kernel, taken
from dse.adapters.dfmodel.graph import DfmodelGraph
from dse.adapters.dfmodel.setup import Setup

#: The most layouts, or kernels in groups, that are looked at together.
CHUNK: Final = 1 << 18


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shards:
    """The part of a kernel that one chip holds for one tile; (points, kernels)."""

    m: FloatArray  #: outer and m together [-]
    k: FloatArray
    n: FloatArray
    output_bytes: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class _Kernels:
    """Kernels of one kind or more on chips, as products of matrices; (rows,)."""

    m: FloatArray  #: lanes share it [-]
    n: FloatArray  #: stages share it [-]
    steps: FloatArray  #: cycles for each block of m and n that the arrays hold [-]
    width: FloatArray  #: of an array, along m [-]
    height: FloatArray  #: of an array, along n [-]
    cores: FloatArray  #: lanes times stages at most [-]

    def rounds(self, row: IntArray, lanes: FloatArray, stages: FloatArray) -> FloatArray:
        """Blocks of m and n that pass one after another, of kernels on layouts; (layouts,). [-]"""
        rounds = np.ceil(self.m[row] / (lanes * self.width[row]))
        return rounds * np.ceil(self.n[row] / (stages * self.height[row]))

    def num_layouts(self) -> FloatArray:
        """Bound on the lanes x stages that matter for each row. [-]"""
        lanes, stages = (_most_parts(*of, self.cores) for of in ((self.m, self.width), (self.n, self.height)))
        most: FloatArray = self.cores * (1 + np.log(self.cores))
        return np.minimum(lanes * stages, most)


def fewest_cycles(
    graph: DfmodelGraph, setup: Setup, part: Shards, streams: FloatArray, within: FloatArray, whole: BoolArray
) -> FloatArray:
    """Cycles of the slowest kernel of each group under the best split of the cores, (points, groups); exact. [-]

    `streams` are tiles times repetitions, (points, kernels). [-] `within` is 1 where a kernel is of a group, (kernels,
    groups); `whole` marks groups of one kernel, which takes all the cores. Infinite where a group has more kernels than
    there are cores.

    Designs of the same shards on the same cores are looked at once, and so are kernels alike in all designs. Of
    lanes and stages only those count that are the fewest for a number of rounds: twice the root of the shard's length.
    """
    points = np.broadcast_shapes(part.m.shape, streams.shape, (setup.num_points, 1))[0]
    shards = as_products(graph, setup, part, streams)
    # A kernel without elements only communicates: it takes a core, and no cycle.
    table = np.stack(
        [np.broadcast_to(np.maximum(v, index < 2), (points, len(graph))) for index, v in enumerate(shards)]
    )
    chips = np.stack([np.broadcast_to(v, (points,)) for v in (setup.array_width, np.floor(setup.cores))])
    first, back = distinct_table_rows(np.vstack([np.moveaxis(table, 2, 1).reshape(-1, points), chips]).T)
    table, chips = table[:, first], chips[:, first]
    kinds, kind = distinct_table_rows(np.moveaxis(table, 2, 0).reshape(len(graph), -1))
    counts = np.equal.outer(np.arange(kinds.size), kind) @ within
    alike, group = distinct_table_rows(counts.T)
    m_shard, n_shard, of_steps, heights = table[:, :, kinds].reshape(4, -1)
    widths, cores = np.repeat(chips, kinds.size, axis=1)
    kernels = _Kernels(m_shard, n_shard, of_steps, widths, heights, cores)
    cycles = _by_groups(kernels, counts[:, alike])[:, group][back]
    if not np.any(whole):
        return cycles
    alone = _on_all_cores(kernels).reshape(first.size, -1)
    return np.where(whole, alone[:, counts.argmax(axis=0)][back], cycles)


def least_work(graph: DfmodelGraph, setup: Setup, part: Shards, streams: FloatArray) -> FloatArray:
    """Cycles of kernels on all cores if no core waited; (points, kernels). No split of the cores takes fewer. [-]"""
    rows, columns, steps, height = as_products(graph, setup, part, streams)
    blocks = np.ceil(rows / per_kernel(setup.array_width)) * np.ceil(columns / height)
    return blocks * steps / per_kernel(np.floor(setup.cores))


def as_products(
    graph: DfmodelGraph, setup: Setup, part: Shards, streams: FloatArray
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Rows and columns of kernels as products on the arrays, cycles of a block, and columns that an array holds. [-]

    A vector kernel has one stage and passes n columns in turn: a product whose k is n, and n is 1. A kernel with its
    own mapping has stages that share k, and n columns in turn.
    """
    shares_k, systolic = graph.own_stages, graph.systolic
    steps = np.where(systolic & ~shares_k, part.k, part.n) * streams
    height = np.where(shares_k, per_kernel(setup.effective_stages), per_kernel(setup.array_height))
    return part.m, np.where(shares_k, part.k, np.where(systolic, part.n, 1)), steps, height


def _by_groups(kernels: _Kernels, counts: FloatArray) -> FloatArray:
    """Fewest cycles of groups with `counts` kernels of each kind; (points, groups). [-]"""
    filled, used = np.flatnonzero(counts.any(axis=0)), np.flatnonzero(counts.any(axis=1))
    cycles = np.zeros((kernels.m.size // len(counts), counts.shape[1]))
    used_kernels = taken(kernels, np.arange(kernels.m.size).reshape(-1, len(counts))[:, used].ravel())
    loads = used_kernels.num_layouts().reshape(-1, used.size).sum(axis=1) + np.count_nonzero(counts)
    parts = [slice(part.start * used.size, part.stop * used.size) for part in _chunks(loads)]
    balanced = [_balanced(taken(used_kernels, part), counts[np.ix_(used, filled)]) for part in parts]
    cycles[:, filled] = np.concatenate(balanced)
    return cycles


def _chunks(loads: FloatArray) -> Iterator[slice]:
    """Consecutive rows whose loads add up to `CHUNK` at most, or single ones."""
    total, first = np.cumsum(loads), 0
    while first < total.size:
        before = total[first - 1] if first else 0.0
        last = max(first + 1, int(np.searchsorted(total, before + CHUNK, side="right")))
        yield slice(first, last)
        first = last


def _most_parts(length: FloatArray, unit: FloatArray, most: FloatArray) -> FloatArray:
    """Numbers of parts that `_fewest_parts` looks at. [-]"""
    needed: FloatArray = 2 * np.ceil(np.sqrt(length / unit))
    return np.minimum(most, needed)


def _fewest_parts(length: FloatArray, unit: FloatArray, most: FloatArray) -> tuple[IntArray, FloatArray]:
    """The fewest parts for each number of rounds in which units pass a part of a length: row and parts, ascending. [-]

    `length`, `unit` (elements that pass at a time) and `most` (parts) are (rows,) arrays. [-]

    Of r * r units or fewer, more than r parts take fewer than r rounds: 1 ... r parts, and the fewest for
    r ... 1 rounds, are all there are.
    """
    row, column_in_row = _ragged(_most_parts(length, unit, most))
    length, unit, most = length[row], unit[row], most[row]
    root = np.ceil(np.sqrt(length / unit))
    of_rounds = np.maximum(np.ceil(length / ((2 * root - column_in_row) * unit)), root)
    parts = np.minimum(np.where((column_in_row < root) | (most <= 2 * root), column_in_row + 1, of_rounds), most)
    new = np.concatenate([np.ones(1, dtype=bool), (np.diff(row) > 0) | (np.diff(parts) > 0)])
    return row[new], parts[new]


def _ragged(counts: FloatArray) -> tuple[IntArray, IntArray]:
    """Row of each item, and its position within the row, for rows of `counts` items."""
    whole = counts.astype(np.intp)
    row = np.repeat(np.arange(whole.size), whole)
    return row, np.arange(row.size) - np.repeat(np.cumsum(whole) - whole, whole)


def _on_all_cores(kernels: _Kernels) -> FloatArray:
    """Fewest cycles of kernels that take all cores, no fewer; (rows,). [-]"""
    tables = []
    for part in _chunks(np.sqrt(kernels.cores)):
        lane_kernels = taken(kernels, part)
        row, column = _ragged(np.floor(np.sqrt(lane_kernels.cores)))
        divides = lane_kernels.cores[row] % (column + 1) == 0
        row, one = row[divides], column[divides] + 1.0
        other = lane_kernels.cores[row] / one
        rounds = np.minimum(lane_kernels.rounds(row, one, other), lane_kernels.rounds(row, other, one))
        tables.append(np.minimum.reduceat(rounds, np.flatnonzero(np.diff(row, prepend=-1))) * lane_kernels.steps)
    return np.concatenate(tables)


def _curves(kernels: _Kernels) -> tuple[IntArray, FloatArray, FloatArray]:
    """Rows, cycles and cores of the layouts that no other of their row beats in both; (layouts,).

    Cores ascend within a row, cycles descend.
    """
    tables = []
    for part in _chunks(kernels.num_layouts()):
        lane_kernels = taken(kernels, part)
        lane_row, lanes = _fewest_parts(lane_kernels.m, lane_kernels.width, lane_kernels.cores)
        stage_row, stages = _fewest_parts(lane_kernels.n, lane_kernels.height, lane_kernels.cores)
        span = lane_kernels.cores.max() + 1
        first, last = (
            np.searchsorted(stage_row * span + stages, lane_row * span + most, side="right")
            for most in (0, lane_kernels.cores[lane_row] // lanes)
        )
        of_lane, within = _ragged((last - first).astype(np.float64))
        row, of_stage = lane_row[of_lane], first[of_lane] + within
        cores = lanes[of_lane] * stages[of_stage]
        rounds = lane_kernels.rounds(row, lanes[of_lane], stages[of_stage]).astype(np.int64)
        order = np.argsort(row * span + cores)
        row, cores, rounds = row[order], cores[order], rounds[order]
        # The fewest rounds on each number of cores: each row starts below the one before.
        fewest = np.minimum.accumulate(rounds - row * (rounds.max() + 1))
        kept = np.flatnonzero(np.diff(fewest, prepend=0))
        row, cores, rounds = row[kept], cores[kept], rounds[kept]
        tables.append((row + part.start, rounds * lane_kernels.steps[row], cores))
    rows, cycles_, cores_ = zip(*tables, strict=True)
    return np.concatenate(rows), np.concatenate(cycles_), np.concatenate(cores_)


def _balanced(kernels: _Kernels, counts: FloatArray) -> FloatArray:
    """Fewest cycles within which all kernels of a group are done, all cores shared out; (points, groups). [-]

    The set of groups that fit only changes at cycles that one of the kernels may take, hence the least of those limits
    at which a group fits, found by halving, is the least of all.
    """
    num_kinds = counts.shape[0]
    cores = kernels.cores[::num_kinds, np.newaxis]
    limits, bounds, needed = _limits(kernels, num_kinds)
    group, kind = np.nonzero(counts.T)
    starts, times = np.flatnonzero(np.diff(group, prepend=-1)), counts[kind, group]
    shape = (cores.size, counts.shape[1])
    low, last = (np.broadcast_to(edge[:, np.newaxis], shape) for edge in (bounds[:-1], bounds[1:]))
    high = last
    while np.any(low < high):
        middle = (low + high) // 2
        tried = np.minimum(middle, last - 1)[:, group]
        fits = np.add.reduceat(needed[tried, kind] * times, starts, axis=1) <= cores
        low, high = np.where(fits | (low == high), low, middle + 1), np.where(fits, middle, high)
    return np.where(low < last, limits[np.minimum(low, last - 1)], np.inf)


def _limits(kernels: _Kernels, num_kinds: int) -> tuple[FloatArray, IntArray, FloatArray]:
    """Cycles that kernels of a point may take, ascending, and cores that each kind needs to stay within them. [-]

    Returns limits, (limits,); the first limit of each point, (points + 1,); and cores, (limits, kinds), one more than
    there are where none will do.
    """
    row, cycles, cores = _curves(kernels)
    values, code = np.unique(cycles, return_inverse=True)
    point_code = np.sort(row // num_kinds * values.size + code)
    point, code_of = np.divmod(point_code[np.diff(point_code, prepend=-1) > 0], values.size)
    asked = point[:, np.newaxis] * num_kinds + np.arange(num_kinds)
    # The first layout of the kernel asked for whose cycles are no more: codes descend within a row.
    at = np.searchsorted(row * values.size - code, asked * values.size - code_of[:, np.newaxis])
    is_asked = np.append(row, -1)[at] == asked
    needed = np.where(is_asked, np.append(cores, 0)[at], kernels.cores[asked] + 1)
    bounds = np.searchsorted(point, np.arange(kernels.m.size // num_kinds + 1))
    return values[code_of], bounds, needed
