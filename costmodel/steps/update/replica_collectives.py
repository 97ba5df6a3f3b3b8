"""Collectives of weights and gradients over the ranks that hold the same parameters, the replicas.

A rank holds parameters of two kinds: those of dense layers, which all `dp * cp` ranks at the same place of the model
have in common, and those of its experts, which fewer ranks do. The rows of `ZERO` list what replicas exchange. The
message of an exchange is the size of all weights or gradients that take part: 10.3 GB of bf16 gradients where a rank
of GPT-3 175B holds 5.1 billion parameters. Many designs of a study exchange the same messages in the same groups, so
that each collective is evaluated once for its distinct rows, and once for all parameters that the same group shares.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from costmodel.columns import BoolArray, FloatArray, UniqueRows, stacked_columns
from costmodel.kernels.collectives import collective, input_bytes
from costmodel.kernels.items import Item, Items, quantities_of
from costmodel.kernels.kernel_cost import KernelCost, traffic_energy
from costmodel.steps.memory.quantised_weights import exchanged_bytes
from costmodel.training.design import DesignPoints
from costmodel.training.optimizer_states import Exchange
from costmodel.training.ranks import Group, Sharing
from costmodel.training.run import TransformerRun


@dataclass(frozen=True, slots=True, eq=False)
class ReplicatedParameters:
    """Parameters of one rank that the same replicas hold; (points,) columns."""

    number: FloatArray  #: [-]
    quantised: FloatArray  #: of them, those that products read in fewer bits [-]
    sharing: Sharing  #: the replicas
    kind: str = "dp"  #: of replicas, as labels of items name it; "edp" of experts

    def group(self, exchange: Exchange) -> Group:
        """Replicas that take part in an exchange."""
        group: Group = getattr(self.sharing, exchange.over)
        return group

    def has_group(self, exchange: Exchange) -> bool:
        """False if no design has copies of sharded states, and the exchange is between such copies."""
        return exchange.over != "copies" or bool((self.sharing.copies.size > 1).any())


def overlaps(design: DesignPoints, exchange: Exchange) -> BoolArray:
    """Where an exchange runs beside kernels; (points,)."""
    gradients: BoolArray = design.overlap_grad_reduce > 0
    return gradients & (design.overlap_param_gather > 0) if exchange.of == "weights" else gradients


def message_bytes(run: TransformerRun, exchange: Exchange, parameters: ReplicatedParameters) -> FloatArray:
    """Message of a collective over replicas, the share of one of them between copies of sharded states. [B]"""
    message = exchanged_bytes(run, exchange, parameters.number, parameters.quantised)
    return message / parameters.sharing.shards.size if exchange.over == "copies" else message


#: Exchanges with equal keys cost the same: collective, states, how often, group; and whose parameters they are.
_Key = tuple[str, str, str, str, ReplicatedParameters]


def _key(exchange: Exchange, parameters: ReplicatedParameters) -> _Key:
    return exchange.collective, exchange.of, exchange.every, exchange.over, parameters


class ReplicaCollectives:
    """Costs of the collectives that replicas take part in, nothing hidden.

    Parameters
    ----------
    run : TransformerRun
        Model, machines and designs, (points,).
    wanted : iterable of (Exchange, ReplicatedParameters)
        The collectives.
    """

    def __init__(self, run: TransformerRun, wanted: Iterable[tuple[Exchange, ReplicatedParameters]]) -> None:
        self.run = run
        exchanges = {_key(*pair): pair for pair in wanted}
        messages = {key: message_bytes(run, *pair) for key, pair in exchanges.items()}
        groups = {id(parameters.sharing): parameters.sharing.groups for _, parameters in exchanges.values()}
        network = [values for tier in run.system.network for values in tier.columns().values()]
        sizes = [values for several in groups.values() for group in several for values in group.columns()]
        unique = UniqueRows.of(*messages.values(), *sizes, *network)
        tiers = [unique.take(tier) for tier in run.system.network]
        axes = max(1, *(values.ndim for values in network)) - 1  # of machines, before that of points
        of_group: dict[tuple[str, str, int], list[_Key]] = {}
        for key, (exchange, parameters) in exchanges.items():
            of_group.setdefault((exchange.collective, exchange.over, id(parameters.sharing)), []).append(key)
        self._costs: dict[_Key, KernelCost] = {}
        for (name, *_), keys in of_group.items():
            exchange, parameters = exchanges[keys[0]]
            stacked = stacked_columns([unique.values(messages[key]) for key in keys], axes)
            cost = collective(name, stacked, unique.take(parameters.group(exchange)), tiers)
            energy = traffic_energy(cost.bytes_sent, tiers)
            for key, time, joules in zip(keys, cost.time, energy, strict=True):
                self._costs[key] = unique.spread(KernelCost(time=time, link_energy=joules))
                if run.itemized:
                    self._costs[key] = replace(self._costs[key], items=_items(*exchanges[key], messages[key]))

    def of(self, exchange: Exchange, parameters: ReplicatedParameters) -> KernelCost:
        """A collective of weights, or of their gradients; (points,). [s], [J], [B]"""
        return self._costs[_key(exchange, parameters)]


def _items(exchange: Exchange, parameters: ReplicatedParameters, message: FloatArray) -> Items:
    """Bytes that a rank puts into an exchange, as an item. [B]"""
    group = f"{parameters.kind} {exchange.over}"
    label = Item(column="dp_communication_time", name=exchange.of, group=group, collective=exchange.collective)
    sent = input_bytes(exchange.collective, message, parameters.group(exchange).size)
    return quantities_of(label, {"message": sent})
