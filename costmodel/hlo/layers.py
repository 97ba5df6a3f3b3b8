"""How many layers a program goes through in loops: turns that each take a slice of stacked weights."""

from __future__ import annotations

from collections.abc import Iterable, Set
from functools import reduce

from costmodel.hlo.analysis import Analysis
from costmodel.hlo.flow import CARRIED, FlowStep, Source
from costmodel.hlo.module import Instruction
from costmodel.hlo.operations import multiplies
from costmodel.hlo.trip_counts import trip_counts


def scanned_layers(analysis: Analysis) -> int | None:
    """Layers of the model, where all lie in loops; None where the text does not tell. [-]

    Notes
    -----
    A loop over layers slices weights that have as many rows as it has turns, at places that only its counter
    decides, and products with these slices make what the next turn multiplies: loops over experts or parts of
    a vocabulary hand nothing on. Loops with weights in common, as those of both passes, go through the same
    layers. Stages of a pipeline have as many each. Where as many matrices lie outside as one layer has, there
    may be further layers, and none are told.
    """
    slices, turns = _slices(analysis), _turns(analysis)
    bodies = [
        (turns[body], bits)
        for body, own in slices.items()
        if _hands_on(analysis, body, set(own)) and (bits := _union(own.values()))
    ]
    groups = list[tuple[int, int]]()
    for count, bits in bodies:
        shared = [group for group in groups if group[1] & bits]
        if any(group[0] != count for group in shared):
            return None
        groups = [group for group in groups if group not in shared]
        groups.append((count, bits | _union(own for _, own in shared)))
    matrices = _union(analysis.provenance.multiplied_by)
    fewest = min(((matrices & own).bit_count() for _, own in groups), default=0)
    if (matrices & ~_union(own for _, own in groups)).bit_count() >= fewest:
        return None
    return sum(count for count, _ in groups) * analysis.axes.get("pp", 1)


def _union(sets: Iterable[int]) -> int:
    return reduce(int.__or__, sets, 0)


def _turns(analysis: Analysis) -> dict[tuple[str, ...], int]:
    """Bodies of loops, by the loops around them -> turns; those of unknown number are left out. [-]"""
    trips = trip_counts(analysis.module)
    carried = (step for step in analysis.flow.steps if step.opcode == CARRIED)
    return {step.body: count for step in carried if (count := trips[step.instruction])}


def _slices(analysis: Analysis) -> dict[tuple[str, ...], dict[FlowStep, int]]:
    """Bodies of loops -> what takes the turn's own part of one weight, with the weight's bit."""
    turns, provenance = _turns(analysis), analysis.provenance
    rows = {1 << provenance.weights[int(each.argument)]: _rows(each) for each in analysis.state.weights}
    found: dict[tuple[str, ...], dict[FlowStep, int]] = {}
    for step in analysis.flow.steps:
        if step.opcode != "dynamic-slice" or not step.shape.dims or step.loops not in turns:
            continue
        (stack, first), bits = step.reads[:2], provenance.weights_in(step.reads[0])
        whole = step.instruction.operands[0].shape.dims
        own = whole == (turns[step.loops], *step.shape.dims[1:]) and step.shape.dims[0] == 1
        counted = isinstance(first, FlowStep) and not provenance.made_of.get(first, 0)
        if stack is not None and own and counted and rows.get(bits) == whole[0]:
            found.setdefault(step.loops, {})[step] = bits
    return found


def _rows(weight: Instruction) -> int:
    """Rows of a stack of weights, on a stage of a pipeline perhaps, of which each device holds one. [-]"""
    return next((dim for dim in weight.shape.dims if dim > 1), 0)


def _hands_on(analysis: Analysis, body: tuple[str, ...], slices: Set[FlowStep]) -> bool:
    """Whether the next turn multiplies what products with slices of weights made in this one."""
    flow = analysis.flow
    carried = [
        step for step in flow.steps if step.opcode == CARRIED and step.body == body and len(step.reads) > 1
    ]
    state: dict[Source, int] = {step: 1 for step in carried if step.shape.size > 1}
    sliced: dict[Source, int] = dict.fromkeys(slices, 2)
    marks = flow.after(state | sliced, again=False)
    made: dict[Source, int] = {}
    for step in flow.steps:
        if step.loops[: len(body)] == body and multiplies(step):
            sides = [marks.get(source, 0) for source in step.reads[:2]]
            if 2 in sides and any(side & 1 for side in sides):
                made[step] = 1
    after = flow.after(made, again=False)
    return any(after.get(step.reads[1], 0) for step in state if isinstance(step, FlowStep))
