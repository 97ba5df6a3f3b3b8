"""Time, energy and items of kernels and their collectives, as one table that adds up.

A kernel takes as long as the slowest of its arithmetic and of its traffic at each memory level: the roofline. Its
energy is dynamic: joules per FLOP and per byte. Items are rows of these sums, named by labels.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add, mul
from typing import Any, Final, TypeVar, cast

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, column, column_family, layout_of, per_kernel
from costmodel.kernels.kernel_tables import Pointwise
from costmodel.machine import LinkTier, MemoryLevel, System


@dataclass(frozen=True, slots=True)
class Item:
    """Labels of a row, which name the origin of a quantity; an unused label is "".

    Times of a column of a breakdown add up to it, and so do bytes.
    """

    quantity: str = ""  #: time, hidden, message, flops, launches, memory bound, bytes, "LEVEL bytes", rank
    column: str = ""  #: of a breakdown
    part: str = ""  #: of the model: a kind of layer, the embedding, the head
    of_pass: str = ""  #: over the part: forward, backward, recompute
    kind: str = ""  #: of a kernel: product, pointwise, attention
    kernel: str = ""  #: row of a block
    name: str = ""  #: of a piece of the kernel, or of a cost that is not a kernel
    kernel_pass: str = ""  #: forward, activation_gradient, weight_gradient; backward of fused kernels
    group: str = ""  #: ranks that take part in a collective
    collective: str = ""


#: The table: labels -> (points,) values, in SI units.
Items = Mapping[Item, FloatArray]


def quantities_of(item: Item, values: Mapping[str, FloatArray]) -> dict[Item, FloatArray]:
    """Rows of one thing, by quantity; each has an axis of points. [SI units]"""
    return {replace(item, quantity=name): column + np.zeros(1) for name, column in values.items()}


def labelled(items: Items, **labels: str) -> dict[Item, FloatArray]:
    """Items with some of their labels replaced. [SI units]"""
    return {replace(item, **labels): values for item, values in items.items()}


def added(items: Items, others: Items) -> Items:
    """Rows of two tables; those with the same labels are added up. [SI units]"""
    if not (items and others):
        return items or others
    both = {item: values + items[item] if item in items else values for item, values in others.items()}
    return {**items, **both}


def slowest_level(traffic: Sequence[FloatArray], levels: Sequence[MemoryLevel], *, repeats: FloatArray) -> FloatArray:
    """Longest of the levels' transfer times, (points, kernels); 0 where there is no level. [s]

    `traffic` has the bytes that each level moves once, `repeats` times. [B], [-]
    """
    time = np.zeros(repeats.shape)
    for moved, level in zip(traffic, levels, strict=False):
        np.maximum(time, repeats * moved / per_kernel(level.bandwidth * level.efficiency), out=time)
    return time


def pointwise_time(kernels: Pointwise, system: System) -> tuple[FloatArray, BoolArray]:
    """Time of kernels that read and write the farthest level once, and where memory sets it. [s], [-]

    Both are (points, kernels). The time is that of the slower of the vector lanes and the memory, plus the launch; an
    absent kernel takes none.

    A framework that fuses less runs `Software.pointwise_kernels` in place of each. Rows that are sorted on the way move
    at `Chip.sorting_efficiency` of the rate of others, casts at `Chip.cast_efficiency`; a cast also has its floor.
    """
    chip, launched = system.chip, kernels.count * per_kernel(system.software.pointwise_kernels)
    arithmetic = kernels.count * (kernels.flops / per_kernel(chip.vector_flop_rate))
    moved, floor = kernels.bytes_moved, per_kernel(chip.kernel_launch)
    for runs, efficiency in (("sorting", chip.sorting_efficiency), ("casting", chip.cast_efficiency)):
        alike = [label.runs == runs for label in kernels.labels]
        if any(alike):
            moved = moved / np.where(alike, per_kernel(efficiency), 1.0)
            floor = floor + np.where(alike, per_kernel(chip.cast_launch), 0.0) if runs == "casting" else floor
    transfer = slowest_level([moved], [system.dram], repeats=launched)
    return np.maximum(arithmetic, transfer) + launched * floor, transfer >= arithmetic


#: Times of a `KernelCost` that come on top of its kernels'.
BESIDE_KERNELS: Final = ("tp_time", "cp_time", "ep_time", "offload_time")

#: All parts of its `total_time`, the part that waits for memories and hosts, and its energies.
TIMES: Final = ("time", *BESIDE_KERNELS)
WAITING: Final = ("memory_bound_time", "launch_bound_time")
ENERGIES: Final = ("compute_energy", "memory_energy", "link_energy")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class KernelCost(Columns):
    """Time and energy of some kernels and their collectives; (points,) each.

    `items` are its parts, where a run is itemized; they are added and multiplied like all other columns.
    """

    time: FloatArray = column("s", 0)
    tp_time: FloatArray = column("s", 0)
    cp_time: FloatArray = column("s", 0)
    ep_time: FloatArray = column("s", 0)
    offload_time: FloatArray = column("s", 0)  #: waiting for activations on their way to hosts and back
    lent_time: FloatArray = column("s", 0)  #: part that overlaps with exchanges of experts of another pass
    compute_energy: FloatArray = column("J", 0)
    memory_energy: FloatArray = column("J", 0)
    link_energy: FloatArray = column("J", 0)
    launches: FloatArray = column("-", 0)
    memory_bound_time: FloatArray = column("s", 0)  #: of it in kernels that wait for a memory level
    launch_bound_time: FloatArray = column("s", 0)  #: of it waiting for the host to launch kernels
    items: Items = column_family()

    def __add__(self, other: KernelCost) -> KernelCost:
        return self.joined(other, add)

    def joined(self, other: KernelCost, plus: Callable[[FloatArray, FloatArray], FloatArray]) -> KernelCost:
        """The sum of both costs; `plus` adds up two columns."""
        sums, terms = self.present(), other.present()
        sums |= {name: plus(sums[name], values) if name in sums else values for name, values in terms.items()}
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
        columns = zip(_NOTHING, layout_of(KernelCost).column_values(self), _NOTHING.values(), strict=False)
        return {name: values for name, values, nothing in columns if values is not nothing and (values.ndim or values)}

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
        """Time that data-parallel communication can overlap with, not lent to exchanges of other passes. [s]"""
        return self.total_time - self.lent_time if self.lent_time.ndim else self.total_time


def either(where: BoolArray, one: KernelCost, other: KernelCost) -> KernelCost:
    """One cost where a condition holds, another elsewhere; (points,) each."""
    nothing = np.zeros(())

    def chosen(ones: Mapping[Any, FloatArray], others: Mapping[Any, FloatArray]) -> dict[Any, FloatArray]:
        names = dict.fromkeys((*ones, *others))
        return {name: np.where(where, ones.get(name, nothing), others.get(name, nothing)) for name in names}

    return KernelCost(**chosen(one.present(), other.present()), items=chosen(one.items, other.items))


#: Values of the columns of an empty `KernelCost`.
_NOTHING: Final = KernelCost().columns()

Summand = TypeVar("Summand", FloatArray, KernelCost)


def weighted_sum(values: Sequence[Summand], counts: Sequence[FloatArray | float]) -> Summand:
    """Sum of the values times their counts, in order; counts beyond the values do not matter."""
    return cast(Summand, reduce(_plus, map(mul, values, counts)))


def _plus(total: Any, term: Any) -> Any:
    """Their sum, in the memory of the total, a product that nothing else reads, where both have its shape."""
    if isinstance(total, KernelCost):
        return total.joined(term, _plus)
    return np.add(total, term, out=total if total.ndim and total.shape == term.shape else None)


def traffic_energy(moved: Sequence[FloatArray], through: Sequence[MemoryLevel | LinkTier]) -> FloatArray:
    """Energy of bytes moved through each memory level, or sent over each tier of links. [J]"""
    return weighted_sum(moved, [part.energy for part in through])
