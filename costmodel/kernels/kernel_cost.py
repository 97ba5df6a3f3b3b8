"""Time and energy of some kernels and their collectives, as one table that adds up."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, column, column_family
from costmodel.kernels.items import Items, added
from costmodel.machine.system import LinkTier, MemoryLevel

#: Times of a `KernelCost` that come on top of its kernels'.
BESIDE_KERNELS: Final = ("tp_time", "cp_time", "ep_time", "offload_time")

#: All that makes up its `total_time`, what of that waits for memories and hosts, and its energies.
TIMES: Final = ("time", *BESIDE_KERNELS)
WAITING: Final = ("memory_bound_time", "launch_bound_time")
ENERGIES: Final = ("compute_energy", "memory_energy", "link_energy")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelCost(Columns):
    """Time and energy of some kernels and their collectives; (points,) each.

    `items` say what it is made of, where a run is itemized; they add up and are multiplied as all else here.
    """

    time: FloatArray = column("s", 0)
    tp_time: FloatArray = column("s", 0)
    cp_time: FloatArray = column("s", 0)
    ep_time: FloatArray = column("s", 0)
    offload_time: FloatArray = column("s", 0)  #: waiting for activations on their way to hosts and back
    lent_time: FloatArray = column("s", 0)  #: of it beside exchanges of another pass: those of experts
    compute_energy: FloatArray = column("J", 0)
    memory_energy: FloatArray = column("J", 0)
    link_energy: FloatArray = column("J", 0)
    launches: FloatArray = column("-", 0)
    memory_bound_time: FloatArray = column("s", 0)  #: of it in kernels that wait for a memory level
    launch_bound_time: FloatArray = column("s", 0)  #: of it waiting for the host to launch kernels
    items: Items = column_family()

    def __add__(self, other: KernelCost) -> KernelCost:
        sums = self.present()
        for name, values in other.present().items():
            sums[name] = sums[name] + values if name in sums else values
        return KernelCost(**sums, items=added(self.items, other.items))

    def __mul__(self, count: FloatArray | float) -> KernelCost:
        products = {name: values * count for name, values in self.present().items()}
        return KernelCost(**products, items={name: values * count for name, values in self.items.items()})

    def only(self, names: Collection[str]) -> KernelCost:
        """The cost with some of its columns and all items; the other columns are 0."""
        kept = {name: values for name, values in self.present().items() if name in names}
        return KernelCost(**kept, items=self.items)

    def present(self) -> dict[str, FloatArray]:
        """The columns that are not 0 for all designs because nothing of their kind is there."""
        columns: dict[str, FloatArray] = {}
        for name, nothing in _NOTHING.items():
            values = getattr(self, name)
            if values is not nothing and (values.ndim or values):
                columns[name] = values
        return columns

    @property
    def total_time(self) -> FloatArray:
        """Kernels, exposed collectives, and waiting for hosts. [s]"""
        time = self.time
        for name in BESIDE_KERNELS:
            part = getattr(self, name)
            if part.ndim or part:
                time = time + part
        return time

    @property
    def window(self) -> FloatArray:
        """Time beside which exchanges of replicas may run: what is not lent to those of another pass. [s]"""
        return self.total_time - self.lent_time if self.lent_time.ndim else self.total_time


def either(where: BoolArray, one: KernelCost, other: KernelCost) -> KernelCost:
    """One cost where a condition holds, another elsewhere; (points,) each."""
    columns, others = one.present(), other.present()
    names = dict.fromkeys((*columns, *others))
    nothing = np.zeros(())
    items = {
        name: np.where(where, one.items.get(name, nothing), other.items.get(name, nothing))
        for name in dict.fromkeys((*one.items, *other.items))
    }
    chosen = {n: np.where(where, columns.get(n, nothing), others.get(n, nothing)) for n in names}
    return KernelCost(**chosen, items=items)


#: What the columns of a `KernelCost` hold where nothing of their kind is there.
_NOTHING: Final = KernelCost().columns()

Summand = TypeVar("Summand", FloatArray, KernelCost)


def weighted_sum(values: Sequence[Summand], counts: Sequence[FloatArray | float]) -> Summand:
    """So many of each value, added up from the first to the last; counts beyond the values do not matter."""
    total = values[0] * counts[0]
    for value, count in zip(values[1:], counts[1:], strict=False):
        total = total + value * count
    return total


def traffic_energy(moved: Sequence[FloatArray], through: Sequence[MemoryLevel | LinkTier]) -> FloatArray:
    """Energy of bytes moved through each memory level, or sent over each tier of links. [J]"""
    return weighted_sum(moved, [part.energy for part in through])
