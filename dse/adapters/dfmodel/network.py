"""Collectives, price and power of DFModel's networks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from costmodel.columns import FloatArray, divisors
from costmodel.errors import DseError
from dse.adapters.dfmodel.graph import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL
from dse.adapters.dfmodel.setup import AXES, GENERATIONS, Dimension, Setup

Shares = Mapping[int, Callable[[FloatArray], FloatArray]]

#: Kind of dimension -> collective -> share of the unsharded tensor that passes a link, of a group of g.
_SHARES: Final[Mapping[str, Shares]] = {
    "r": {ALL_REDUCE: lambda g: (g - 1) / g, ALL_GATHER: lambda g: (g - 1) / g, ALL_TO_ALL: lambda g: g * g / 8},
    "sw": {ALL_REDUCE: lambda g: (g - 1) / g, ALL_GATHER: lambda g: (g - 1) / g, ALL_TO_ALL: lambda g: g / 4},
    "fc": {ALL_REDUCE: lambda g: 1 / g, ALL_GATHER: lambda g: 1 / g, ALL_TO_ALL: lambda g: g**0},
}

#: Chips above which a system has links, and switches.
_LINKS_FROM, _SWITCHES_FROM = 2, 5

Ports = Callable[[FloatArray, FloatArray, FloatArray, FloatArray], tuple[FloatArray | float, ...]]

#: Topology -> ports of links, one entry a dimension, from sizes x, y, z and chips n. A port has the
#: bandwidth of its dimension.
_LINKS: Final[Mapping[str, Ports]] = {
    "sw": lambda x, y, z, n: (x,),
    "r": lambda x, y, z, n: (x,),
    "fc": lambda x, y, z, n: (x * (x - 1),),
    "r_r": lambda x, y, z, n: (n, n),
    "fc_fc": lambda x, y, z, n: (x * (x - 1) * y, y * (y - 1)),
    "r_fc": lambda x, y, z, n: (n, y * (y - 1)),
    "r_sw": lambda x, y, z, n: (n, y),
    "sw_sw": lambda x, y, z, n: (n, y),
    "r_r_r": lambda x, y, z, n: (n, n, n),
    "r_sw_sw": lambda x, y, z, n: (n, y * z, z),
    "sw_sw_sw": lambda x, y, z, n: (n, y * z, z),
}
_SWITCHES: Final[Mapping[str, Ports]] = {
    "sw": lambda x, y, z, n: (x,),
    "r": lambda x, y, z, n: (2.0,),
    "fc": lambda x, y, z, n: (0.0,),
    "r_r": lambda x, y, z, n: (2 * y, 2 * x),
    "fc_fc": lambda x, y, z, n: (0.0, y * y),
    "r_fc": lambda x, y, z, n: (2 * y, y * y),
    "r_sw": lambda x, y, z, n: (2 * y, y),
    "sw_sw": lambda x, y, z, n: (n, y),
    "r_r_r": lambda x, y, z, n: (2 * y * z, 2 * x * z, 2 * x * y),
    "r_sw_sw": lambda x, y, z, n: (2 * y * z, y * z, z),
    "sw_sw_sw": lambda x, y, z, n: (n, y * z, z),
}


def rate(setup: Setup, generation: str, role: str, collective: int) -> FloatArray:
    """Time of a collective for each byte of the unsharded tensor, without latency, (points,). [s/B]

    0 where no dimension serves the role.
    """
    dimension = setup.dimension(role)
    if dimension is None:
        return np.zeros_like(setup.num_chips)
    share = _SHARES[dimension.kind][collective](dimension.size) / dimension.bandwidth
    if collective != ALL_REDUCE:
        return share
    flat = _halves(setup, generation, role, dimension.kind) * share
    return np.where(setup.domain_size > 0, _domain_rate(setup, role, dimension), flat)


def _halves(setup: Setup, generation: str, role: str, kind: str) -> float:
    """Number of times that an all-reduce sends the tensor over the links: 1, or 2 for its two halves."""
    rules = GENERATIONS[generation]
    if kind == "fc":
        return rules.fully_connected
    if rules.halves is not None:
        return rules.halves
    return 2.0 if setup.doubled and (role != "DP" or rules.gradients) else 1.0


def _domain_rate(setup: Setup, role: str, own: Dimension) -> FloatArray:
    """Rate of an all-reduce inside domains of high bandwidth, then between them, over the role's own links.

    Between domains passes the share that is left of the tensor: a ring's over a domain's chips. A
    tensor-parallel group goes on over y, the pipeline's links: the rule of the reference.
    """
    beyond = (setup.dimension("PP") or own) if role == "TP" else own
    group, domain = own.size, np.maximum(setup.domain_size, 1)
    inside = np.minimum(group, domain)
    between = np.where(domain >= group, 1, group / domain)
    fast = (inside - 1) / (inside * setup.x_bandwidth)
    return fast + (between - 1) / (group * beyond.bandwidth)


def sized(setup: Setup) -> Setup:
    """A set-up of one row once for each way to size its open dimensions (size 0), in the order of x, y, z.

    Raises `DseError` if no sizes make the number of chips, with whole micro-batches on every replica.
    """
    chips = int(setup.num_chips.flat[0])
    given = [int(dimension.size.flat[0]) for dimension in setup.dimensions]
    if all(given):
        return setup
    *earlier, last = ([size] if size else divisors(chips) for size in given)
    *tables, ones = (table.ravel() for table in np.meshgrid(*earlier, [1.0], indexing="ij"))
    rest = chips / np.prod([*tables, ones], axis=0)
    sizes = np.stack([*tables, rest])[:, np.isin(rest, last)]
    rows = replace(setup, **dict(zip(AXES, sizes, strict=False)))
    whole = np.flatnonzero(rows.micro_batches % 1 == 0)
    if whole.size == 0:
        raise DseError(
            f"system.{setup.topology}: no sizes of the open dimensions make {chips} chips and whole "
            "micro-batches on every replica; change num_chip or global_batch_size"
        )
    return rows.take(whole)


def latency(setup: Setup, generation: str) -> FloatArray:
    """Time that each all-reduce of the tensor-parallel group adds. [s]"""
    if not GENERATIONS[generation].latency:
        return np.zeros_like(setup.num_chips)
    return np.where(setup.domain_size > 0, 0.0, 2 * setup.link_latency * (setup.degree("TP") - 1))


def transfer_rate(setup: Setup) -> FloatArray:
    """Time of a byte between pipeline stages; 0 without a pipeline. [s/B]"""
    pipeline = setup.dimension("PP")
    return np.zeros_like(setup.num_chips) if pipeline is None else 1 / pipeline.bandwidth


def system_price(setup: Setup) -> FloatArray:
    """Chips, DRAM, links and switches. [$]"""
    chip = setup.dram_bandwidth * setup.dram_price + setup.accelerator_price
    links, switches = port_bandwidths(setup)
    return setup.num_chips * chip + sum(links) * setup.link_price + sum(switches) * setup.switch_price


def system_power(setup: Setup) -> FloatArray:
    """Chips, DRAM, links and switches. [W]"""
    chip = setup.dram_bandwidth * setup.dram_power + setup.accelerator_power
    links, switches = port_bandwidths(setup)
    drawn: FloatArray | int = sum(
        port * getattr(setup, f"{axis}_link_power") for port, axis in zip(links, AXES, strict=False)
    )
    total: FloatArray = setup.num_chips * chip + drawn + sum(switches) * setup.switch_power
    return total


def port_bandwidths(setup: Setup) -> tuple[list[FloatArray], list[FloatArray]]:
    """Bandwidth of all ports of links and of switches, for each dimension. [B/s]"""
    n = setup.num_chips
    bandwidths = [dimension.bandwidth for dimension in setup.dimensions]
    tables = ((_LINKS, _LINKS_FROM), (_SWITCHES, _SWITCHES_FROM))
    links, switches = (
        [
            np.where(n >= least, ports * b, 0.0)
            for ports, b in zip(table[setup.topology](setup.x, setup.y, setup.z, n), bandwidths, strict=True)
        ]
        for table, least in tables
    )
    return links, switches
