"""Itemized costs: a table with a row for each quantity of each thing, named by labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from costmodel.columns import FloatArray


@dataclass(frozen=True, slots=True)
class Item:
    """Labels of a row: what a quantity is of; a label that says nothing is "".

    Times of a column of a breakdown add up to it, and so do bytes.
    """

    quantity: str = ""  #: time, hidden, message, flops, launches, memory bound, bytes, "LEVEL bytes", rank
    column: str = ""  #: of a breakdown
    part: str = ""  #: of the model: a kind of layer, the embedding, the head
    of_pass: str = ""  #: over the part: forward, backward, recompute
    kind: str = ""  #: of a kernel: product, pointwise, attention
    kernel: str = ""  #: row of a block
    name: str = ""  #: of a piece of the kernel, or of what is no kernel
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
