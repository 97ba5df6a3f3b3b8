"""Memory that only has to be enough: of each layout, the smallest capacity that holds it.

What a chip's memory can hold changes no time, only the price and whether a layout fits. So a design with more
than its layout needs is beaten by the same with less, where price counts and nothing asks for more.
"""

from __future__ import annotations

import ast

import numpy as np

from costmodel.columns import IntArray
from dse.searching.exact.bounds import OF_LAYOUTS, Problem
from dse.searching.exact.machines import Forest
from dse.spaces.formulas.names import WITH_UNIT


def smallest_capacities(problem: Problem) -> tuple[int, IntArray] | None:
    """The forest of the capacity, and each layout's node of it; nothing where more may be worth its price.

    The first is the forest's position in the problem, the second a node of each layout: that of the smallest capacity
    with which the layout may keep all limits; -1 if none is enough. [-]
    """
    capacity = f"{problem.pricer.space.system.dram.name}_capacity"
    forests = [place for place, own in enumerate(problem.forests) if own.names == (capacity,)]
    if not forests or not only_has_to_be_enough(problem, capacity):
        return None
    ((place, own),) = ((place, problem.forests[place]) for place in forests)
    layouts = np.arange(problem.num_layouts)
    smallest = np.full(layouts.size, -1)
    for leaf in by_capacity(own)[::-1]:
        nodes = np.tile([other.roots[0] for other in problem.forests], (layouts.size, 1))
        nodes[:, place] = leaf
        smallest[problem.bounds(problem.unbounded(layouts, nodes))[1]] = leaf
    return place, smallest


def by_capacity(own: Forest) -> list[int]:
    """Nodes of single machines, the smallest first."""
    leaves = np.flatnonzero(own.below < 0)
    return [int(leaf) for leaf in leaves[np.argsort(own.low[leaves, 0])]]


def only_has_to_be_enough(problem: Problem, capacity: str) -> bool:
    """True if formulas ask for a small price, and limits of the capacity that it is enough."""
    space = problem.pricer.space
    asks_price = any(o.name == "system_price" and o.direction == "minimize" for o in space.objectives)
    costs = float(space.system.dram.price.min()) > 0
    opened = f"{space.system.dram.name}_price" in space.chosen
    others = [o.expression for o in space.objectives if o.name != "system_price"]
    others += [derived.expression for derived in space.derived if derived.evaluated]
    for limit in space.limits:
        if not _is_upper(problem.formulas[limit.expression].tree, capacity):
            others.append(limit.expression)
    used = {WITH_UNIT.get(name, name) for text in others for name in problem.formulas[text].names}
    return asks_price and costs and not opened and not {capacity, "system_price"} & used


def _is_upper(tree: ast.expr, capacity: str) -> bool:
    """True if a limit bounds a quantity of a layout by the capacity, or the price by something else."""
    if not (isinstance(tree, ast.Compare) and len(tree.ops) == 1):
        return False
    if not isinstance(tree.ops[0], ast.LtE | ast.Lt):
        return False
    left, right = tree.left, tree.comparators[0]
    if not isinstance(left, ast.Name):
        return False
    name = WITH_UNIT.get(left.id, left.id)
    if name == "system_price":
        return not {node.id for node in ast.walk(right) if isinstance(node, ast.Name)} & {capacity, name}
    return name in OF_LAYOUTS and isinstance(right, ast.Name) and right.id == capacity
