"""SimAI's automatic bandwidths and times once more: one collective at a time, branch by branch."""

from __future__ import annotations

import math

import numpy as np

from dse.adapters.simai.bandwidth import TABLES

NIC, NVLINK, ALL_TO_ALL = 1, 2, 3
COLUMNS = {1: 0, 2: 1, 4: 2, 8: 3, 16: 4, 32: 5, 64: 6, 128: 7, 9: 8}
FIXED = {2: 10000, 4: 12000, 8: 15000, 16: 66000, 32: 135000, 64: 200000, 128: 320000}


def bus_bandwidth(kind, nvlink, nic, nics, nodes, per_node):
    """Bandwidth [GiB/s] and whether NVLink bounds it; None where there is none."""
    if nics < 1 or nodes < 1 or per_node < 1 or nodes * per_node == 1:
        return None, False
    if kind == "all_to_all":
        if nodes == 1:
            return nvlink, True
        ranks = nodes * per_node
        return nic * nics / per_node * (ranks - 1) / ((nodes - 1) * per_node), False
    if nodes == 1:
        return nvlink, False
    if per_node == 1:
        return nic * nics, False
    crossing = nic * nics > nvlink
    inner = nvlink * per_node / (per_node - 1) if crossing else nvlink
    return min(inner, nic * nics), inner < nic * nics


def share(table, nodes, size):
    """Efficiency relative to the largest message."""
    values = TABLES[table][COLUMNS.get(nodes, 4)]
    sizes = [2.0**power for power in range(24, 35)]
    return np.interp(size, sizes, values) / values[-1]


def collective_time(kind, group, of_pass, size, *, tp, ep, dp, gpus, nics, nvlink, nic):
    """Time in ns; None where the reference has none. `of_pass` is "forward", or anything else."""
    if of_pass == "forward" and 0 < size < 4096:
        size = 4096
    replicas = dp // ep if group == "dp_ep" else dp
    n = replicas if of_pass == "weight_gradient" else ep if group == "ep" else tp
    if 1 < size < 2**20:
        return FIXED.get(n, 0)
    if group == "tp":
        place = (1, tp, nics) if tp <= gpus else (tp // gpus, gpus, nics)
    elif n <= 1:
        return 0
    elif group == "ep" and tp * n <= gpus:
        place = (1, gpus // tp, nics)
    elif group == "ep":
        place = (tp * n // gpus, max(gpus // tp, 1), nics // gpus if tp > gpus else nics // tp)
    else:
        block = tp if group == "dp" else tp * ep
        place = (n, gpus // block, nics // block) if block <= gpus else (n, 1, nics // gpus)
    nodes, per_node, own_nics = place
    bandwidth, by_nvlink = bus_bandwidth(kind, nvlink, nic, own_nics, nodes, per_node)
    if bandwidth is None:
        return None if size else 0
    ratio = 1.0
    if group == "tp" and kind in ("all_gather", "reduce_scatter"):
        ratio = share(NVLINK if by_nvlink else NIC, 1 if tp < gpus else tp // gpus, size)
    elif group == "tp" and kind == "all_to_all":
        ratio = share(ALL_TO_ALL, 1 if tp <= gpus else tp // gpus, size)
    elif group == "ep" and kind == "all_to_all":
        spread = 9 if tp >= gpus else tp * n // gpus
        ratio = share(ALL_TO_ALL, 1 if tp * n <= gpus else spread, size)
    factor = 2 if kind == "all_reduce" else 1
    reached = float(np.float32(ratio * bandwidth))
    return math.floor(size / 2**30 / reached * 1e9 * factor * (n - 1) / n)
