"""The fastest groups of kernels for many designs: found once for each chip, share of the work and tile."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import numpy as np

from costmodel.columns import IntArray, distinct_rows
from costmodel.profiles.dfmodel.graph import DfmodelGraph
from costmodel.profiles.dfmodel.layer import model_graph
from costmodel.profiles.dfmodel.mapping import fastest_mapping, fused_ways
from costmodel.profiles.dfmodel.setup import BATCH, IDLE, NETWORK, Setup
from costmodel.profiles.dfmodel.sharding import least_moving
from costmodel.solve.fusion import Groupings
from costmodel.training.model import ModelShape

#: Columns that decide where arithmetic counts.
_RATES: Final = ("cores", "array_width", "array_height", "frequency", "utilization", "dram_bandwidth")


@lru_cache(maxsize=16)
def sharded_graph(model: ModelShape, element_bytes: float) -> tuple[DfmodelGraph, IntArray]:
    """The graph of a layer, and the sharding that moves least, whatever the layout.

    Parameters
    ----------
    model : ModelShape
        The transformer.
    element_bytes : float
        Size of an operand. [B]
    """
    graph = model_graph(model, element_bytes=element_bytes)
    return graph, least_moving(graph).choices


@lru_cache(maxsize=16)
def layer_ways(model: ModelShape, element_bytes: float) -> Groupings:
    """All legal ways to fuse the kernels of a layer, with as many groups as kernels of either direction.

    Parameters
    ----------
    model : ModelShape
        The transformer.
    element_bytes : float
        Size of an operand. [B]
    """
    graph, _ = sharded_graph(model, element_bytes)
    of_either = max(np.count_nonzero(graph.backward), np.count_nonzero(~graph.backward))
    return fused_ways(graph, 2 * int(of_either))


def fastest_groups(
    model: ModelShape, setup: Setup, *, element_bytes: float, generation: str
) -> Iterator[tuple[IntArray, IntArray]]:
    """Rows that share their fastest groups, and these; rows whose tiles exceed the SRAM are left out.

    Parameters
    ----------
    model : ModelShape
        The transformer.
    setup : Setup
        (points,) columns.
    element_bytes : float
        Size of an operand. [B]
    generation : str
        Rules of the reference: a key of `GENERATIONS`.

    Notes
    -----
    Arithmetic and the network take the same time however kernels are grouped, so that they do not count
    where they add to a group's time. Nor does the bubble, or DRAM, on whose capacity the caller decides.
    The utilization is given, as designs have it.
    """
    bare = _decisive(setup)
    columns = {name: np.broadcast_to(v, (setup.num_points,)) for name, v in bare.columns().items()}
    rows, back = distinct_rows(*columns.values())
    back = np.broadcast_to(back, (setup.num_points,))
    shared = tuple((name, getattr(bare, name)) for name in ("topology", "roles", "overlap", "doubled"))
    for place, row in enumerate(rows):
        own = tuple((name, float(values[row])) for name, values in columns.items())
        groups = _groups(model, element_bytes, generation, (*shared, *own))
        if groups is not None:
            yield np.flatnonzero(back == place), groups


def _decisive(setup: Setup) -> Setup:
    """The set-up with one value in each column that does not decide on the fastest groups.

    DRAM has no limit here: on its capacity the caller decides.
    """
    one, endless, nothing = np.ones(1), np.full(1, np.inf), np.zeros(1)
    alike: dict[str, Any] = dict.fromkeys(IDLE, one)
    alike |= dict.fromkeys(("dram_bytes", "second_dram_bandwidth", "second_dram_bytes"), nothing)
    if setup.overlap == "perfect":
        return replace(setup, **alike)
    alike |= dict.fromkeys((*NETWORK, *BATCH), one) | {"domain_size": nothing, "link_latency": nothing}
    alike |= {"x": setup.degree("TP"), "x_bandwidth": endless}
    if setup.overlap == "none":
        alike |= dict.fromkeys(_RATES, one) | {"frequency": endless}
    return replace(setup, topology="sw", roles=("TP",), **alike)


@lru_cache(maxsize=4096)
def _groups(
    model: ModelShape, element_bytes: float, generation: str, row: tuple[tuple[str, Any], ...]
) -> IntArray | None:
    """The fastest groups of one row of decisive columns; None where none fit."""
    graph, sharding = sharded_graph(model, element_bytes)
    setup = Setup.of(**dict(row), kernel_by_kernel=False)
    ways = layer_ways(model, element_bytes)
    found = fastest_mapping(graph, setup, sharding, ways, generation=generation)
    return None if found is None else found.groups
