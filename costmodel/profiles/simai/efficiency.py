"""Measured efficiency of collectives by message size and number of nodes, as SimAI ships it [SimAI]_."""

from __future__ import annotations

from typing import Final

import numpy as np

from costmodel.columns import FloatArray, IntArray

#: Message sizes of the tables' rows: 16 MiB to 16 GiB. [B]
SIZES: Final = 2.0 ** np.arange(24, 35)

#: Nodes of the tables' columns; 9 stands for groups with one member per node, which share all NICs.
NODES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 9)
#: Column of a number of nodes that the tables do not have.
OTHER_NODES: Final = NODES.index(16)

_SHARED_NICS = [0.86, 0.92, 0.94, 0.94, 0.94, 0.95, 0.96, 0.96, 0.96, 0.96, 0.96]
_FLAT = [1.0] * 11  # nothing measured
_NIC = [
    [0.45, 0.55, 0.65, 0.69, 0.73, 0.76, 0.77, 0.78, 0.79, 0.8, 0.81],
    [0.32, 0.47, 0.5, 0.67, 0.85, 0.89, 0.92, 0.94, 0.95, 0.95, 0.96],
    [0.24, 0.38, 0.53, 0.67, 0.77, 0.85, 0.93, 0.94, 0.95, 0.96, 0.96],
    [0.13, 0.24, 0.39, 0.54, 0.69, 0.78, 0.9, 0.94, 0.95, 0.96, 0.96],
    [0.05, 0.11, 0.21, 0.38, 0.57, 0.73, 0.76, 0.92, 0.95, 0.96, 0.96],
    [0.044, 0.052, 0.106, 0.205, 0.387, 0.562, 0.74, 0.758, 0.923, 0.953, 0.957],
    [0.021, 0.042, 0.051, 0.107, 0.209, 0.384, 0.563, 0.745, 0.755, 0.914, 0.958],
    [0.0087, 0.021225, 0.04405, 0.0533, 0.1027, 0.1902, 0.314575, 0.553525, 0.740175, 0.7648, 0.919175],
    _SHARED_NICS,
]
_NVLINK = [
    _NIC[0],
    [0.55, 0.68, 0.74, 0.8, 0.84, 0.86, 0.87, 0.87, 0.88, 0.88, 0.88],
    [0.34, 0.6, 0.71, 0.74, 0.79, 0.86, 0.87, 0.87, 0.88, 0.88, 0.88],
    [0.16, 0.34, 0.62, 0.7, 0.78, 0.82, 0.86, 0.87, 0.88, 0.88, 0.88],
    [0.08, 0.16, 0.33, 0.65, 0.72, 0.75, 0.83, 0.86, 0.87, 0.88, 0.88],
    _FLAT,
    _FLAT,
    _FLAT,
    _SHARED_NICS,
]
_ALL_TO_ALL = [
    [0.44, 0.51, 0.6, 0.65, 0.7, 0.71, 0.74, 0.76, 0.77, 0.78, 0.78],
    [0.52, 0.63, 0.72, 0.76, 0.79, 0.8, 0.81, 0.81, 0.8, 0.8, 0.8],
    [0.67, 0.68, 0.83, 0.9, 0.92, 0.94, 0.94, 0.95, 0.95, 0.95, 0.95],
    [0.64, 0.67, 0.82, 0.85, 0.87, 0.89, 0.92, 0.93, 0.94, 0.94, 0.94],
    [0.62, 0.66, 0.66, 0.72, 0.75, 0.81, 0.85, 0.88, 0.89, 0.9, 0.9],
    _FLAT,
    _FLAT,
    _FLAT,
    _SHARED_NICS,
]

#: Which table a collective reads: none, then one per bottleneck.
WHOLE, NIC, NVLINK, ALL_TO_ALL = range(4)
TABLES: Final[FloatArray] = np.array([[_FLAT] * len(NODES), _NIC, _NVLINK, _ALL_TO_ALL])


def node_column(nodes: FloatArray) -> IntArray:
    """Column of the tables for a number of nodes. [-]"""
    return np.select([nodes == count for count in NODES], range(len(NODES)), OTHER_NODES).astype(np.intp)


def efficiency(table: IntArray, column: IntArray, message_bytes: FloatArray) -> FloatArray:
    """Share of the bandwidth that a message reaches, relative to the largest message.

    Parameters
    ----------
    table, column : array
        Which table, and which column of it. [-]
    message_bytes : array
        The whole tensor. [B]

    Returns
    -------
    share : array
        Linear between the rows; as the first row below 16 MiB, 1 for nothing, NaN beyond 16 GiB. [-]
    """
    row = np.clip(np.searchsorted(SIZES, message_bytes, side="right") - 1, 0, len(SIZES) - 2)
    low, high = TABLES[table, column, row], TABLES[table, column, row + 1]
    size = np.maximum(message_bytes, SIZES[0])
    share = low + (high - low) * (size - SIZES[row]) / (SIZES[row + 1] - SIZES[row])
    share = share / TABLES[table, column, -1]
    beyond = (message_bytes > SIZES[-1]) & (table != WHOLE)
    return np.where(beyond, np.nan, np.where(message_bytes == 0, 1.0, share))
