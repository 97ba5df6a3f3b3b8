"""How often what runs: computations that others call, by the trips of loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costmodel.hlo.text.module import Computation, Instruction, Module
from costmodel.hlo.text.opcodes import parts

#: Instructions of a program, those of each call among them, from which on what is called is listed once,
#: where they are also this many times those that are written. [-]
MOST_UNFOLDED, MOST_REPEATED = 20_000, 4
#: Most instructions of a fusion with those that stand in it, and most levels of calls. [-]
MOST_FUSED, DEEPEST = 100_000, 100
#: Instructions that run what they call where they stand.
CALLING: Final = frozenset(("while", "conditional", "call", "async"))


def unfolded_limit(module: Module) -> int:
    """Most instructions of a program that are listed one by one. [-]"""
    written = sum(len(each.instructions) for each in module.computations)
    return max(MOST_UNFOLDED, MOST_REPEATED * written)


def size_problem(computation: Computation, sizes: dict[Computation, tuple[int, int]]) -> str | None:
    """What is too large in a computation; None where nothing is.

    Parameters
    ----------
    computation : Computation
        One that calls none but those of `sizes`.
    sizes : dict
        Computation -> its instructions with those of fusions in it, and its levels of calls. [-] Its own
        size is added.
    """
    size, depth = len(computation.instructions), 0
    for each in computation.instructions:
        depth = max([depth, *(sizes[called][1] + 1 for called in each.called)])
        if each.opcode == "fusion":
            size += sizes[each.called[0]][0]
    sizes[computation] = size, depth
    if depth > DEEPEST:
        return f"{depth} levels of calls; at most {DEEPEST} are read"
    if size > len(computation.instructions) + MOST_FUSED:
        return f"fusions of {size:,} instructions; at most {MOST_FUSED:,} are read"
    return None


def runs_of(
    module: Module, trips: Mapping[Instruction, int | None] | None = None
) -> tuple[int, dict[Computation, int]]:
    """How many instructions run in a step, a loop's body once, and how often each computation does.

    Computations stand after those that they call, so that one way back from the entry finds both. Every
    branch of a choice counts.

    Parameters
    ----------
    module : Module
    trips : mapping, optional
        Loop -> how often its body runs, None where that is unknown; once each where it is not given. [-]
    """
    reached = {module.entry: 1}  # times that each stands in the program
    runs = {module.entry: 1}  # trips of loops multiplied
    for computation in reversed(module.computations):
        if computation not in reached:
            continue
        for each in computation.instructions:
            if parts(each.opcode)[0] not in CALLING or parts(each.opcode)[1] in ("update", "done"):
                continue
            known = (trips or {}).get(each)
            times = 1 if known is None else known
            for called in each.called:
                reached[called] = reached.get(called, 0) + reached[computation]
                runs[called] = runs.get(called, 0) + runs[computation] * times
    return sum(len(each.instructions) * times for each, times in reached.items()), runs
