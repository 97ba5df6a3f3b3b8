"""How a program trains: whether it recomputes, accumulates and clips gradients, and by which optimizer.

Found by general rules from the program's names for its passes and from what its instructions read; what they
leave open is left out. Settings, such as a rate of learning, are values of constants, which are never read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property, reduce
from itertools import accumulate
from typing import Final

from costmodel.hlo.analysis import Analysis
from costmodel.hlo.liveness import aliased_outputs
from costmodel.hlo.model_figures import Figures
from costmodel.hlo.opened import SAME_VALUES, OpenedInstruction, Source, behind, marked_after, opened
from costmodel.hlo.products import is_product

#: Instructions that tell methods apart: those with a root divide by it, those with a sign follow it.
_ROOTS: Final = ("sqrt", "rsqrt")
_SIGN: Final = "sign"

#: Instructions of which sums of scaled arrays are made, here and between devices.
_LINEAR: Final = frozenset(
    [
        *(*SAME_VALUES, "add", "subtract", "negate", "multiply", "divide", "slice", "concatenate", "pad"),
        *("all-reduce", "reduce-scatter", "all-gather", "dynamic-slice", "dynamic-update-slice"),
    ]
)
#: Passes whose results the updates are given.
_PASSES: Final = ("forward", "recompute", "backward")


def training_figures(analysis: Analysis) -> Figures:
    """Yes or no, and a word; nothing where the text names no gradients.

    Notes
    -----
    - Rematerialisation: kernels that are named as computed again.
    - Optimizer, by what the step keeps for each weight: SGD nothing, its updates being sums of weights and
      gradients that are scaled by numbers, momentum one array and neither its root
      nor its sign, Adam two, with a root of one. In AdamW the update multiplies weights by a number, and the
      arrays do not depend on that. Methods that keep the same, such as NAdam, pass for Adam; those that take
      norms of weights, such as LAMB, and all others are left out.
    - Gradient accumulation: a loop around both passes and not the updates; or an updated array that is added
      to, and that nothing else reads. That there is none is said where the optimizer is known, which then
      accounts for all that the step keeps.
    - Gradient clipping: all updates depend on one number, and that on a sum of squares of gradients. Clipping
      value by value does not count.
    """
    if "backward" not in analysis.phases:
        return {}
    rules = _Rules(analysis)
    found: Figures = {"model.rematerialisation": _yes("recompute" in analysis.phases)}
    optimizer, accumulates = rules.optimizer(), rules.loops_over_passes() or rules.adds_up()
    if optimizer or accumulates:
        found["model.gradient_accumulation"] = _yes(accumulates)
    if rules.weights_are_told:
        found["model.gradient_clipping"] = _yes(rules.clips())
    return found | ({"model.optimizer": optimizer} if optimizer else {})


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


class _Rules:
    """What the rules look at: instructions, what each depends on, and the new values of what is kept."""

    def __init__(self, analysis: Analysis) -> None:
        inside, root = opened(analysis.graph), analysis.graph.root
        self.analysis = analysis
        self.steps = inside.steps
        self.updates = {
            number: inside.source(root[place]) for place, number in aliased_outputs(analysis.module).items()
        }
        self.weights = {int(each.argument) for each in analysis.state.weights}
        self.moments = {int(each.argument) for moment in analysis.state.moments for each in moment}

    def after(self, marks: Iterable[Source]) -> dict[Source, int]:
        """The bit of each mark on all that depends on it."""
        return marked_after(self.steps, {mark: 1 << bit for bit, mark in enumerate(marks)})

    def in_products(self, sources: Iterable[Source]) -> int:
        """Bits of the sources that matrix products depend on."""
        after = self.after(sources)
        products = (after[step] for step in self.steps if is_product(step.instruction))
        return reduce(int.__or__, products, 0)

    @cached_property
    def weights_are_told(self) -> bool:
        """Whether what is taken for weights is in matrix products, and what goes with it is not."""
        every = (1 << len(self.weights)) - 1
        used = self.in_products(sorted(self.weights))
        return bool(self.weights) and used == every and not self.in_products(sorted(self.moments))

    def loops_over_passes(self) -> bool:
        """Whether a loop holds forward and backward kernels, and the updates are made outside."""
        kernels, inside = self.analysis.graph.kernels, dict[str, set[str]]()
        for kernel, phase in zip(kernels, self.analysis.phases, strict=True):
            loops = kernel.name.split("/")[:-1] if kernel.count > 1 else []
            for path in accumulate(loops, "{}/{}".format):
                inside.setdefault(path, set()).add(phase)
        new = [
            kernels[each.kernel].name for each in self.updates.values() if isinstance(each, OpenedInstruction)
        ]
        return any(
            phases >= {"forward", "backward"} and not any(name.startswith(f"{path}/") for name in new)
            for path, phases in inside.items()
        )

    def adds_up(self) -> bool:
        """Whether an updated array is added to and serves nothing else."""
        readers: dict[Source, list[OpenedInstruction]] = {}
        for step in self.steps:
            if behind(step) is step:  # else it hands on what it reads
                for source in dict.fromkeys(behind(each) for each in step.reads):
                    readers.setdefault(source, []).append(step)
        arrays = {int(each.argument) for each in self.analysis.module.entry.parameters if each.shape.dims}
        for number, new in self.updates.items():
            total = behind(new)
            adds = isinstance(total, OpenedInstruction) and total.instruction.opcode == "add"
            if number in arrays and adds and readers.get(number) == [total] and total not in readers:
                return True
        return False

    @cached_property
    def squares(self) -> dict[OpenedInstruction, Source]:
        """Sums of squares, and of what."""
        found: dict[OpenedInstruction, Source] = {}
        for step in self.steps:
            terms = _terms(step)
            factors = [behind(each) for each in terms.reads[:2]] if terms else []
            if factors and factors[0] is not None and factors[0] == factors[1]:
                found[step] = factors[0]
        return found

    def clips(self) -> bool:
        """Whether one number, made of squares of gradients, is part of the update of every weight."""
        phases = self.analysis.phases
        gradients = marked_after(self.steps, {s: 1 for s in self.steps if phases[s.kernel] == "backward"})
        squared = marked_after(self.steps, {square: 1 for square in self.squares if gradients[square]})
        scalars = [s for s in self.steps if s.instruction.shape.size == 1 and squared[s]]
        after = self.after(scalars)
        return reduce(int.__and__, (after.get(self.updates[each], 0) for each in self.weights)) != 0

    def optimizer(self) -> str | None:
        """The method's name; None where the rules tell none."""
        if not self.weights_are_told or self.weights & set(self.squares.values()):
            return None
        after = marked_after(self.steps, dict.fromkeys(self.moments, 1))
        done = {step.instruction.opcode for step in self.steps if after[step]}
        kept = len(self.analysis.state.moments)
        if kept == 2 and done.intersection(_ROOTS):
            return "AdamW" if self.decays() else "Adam"
        if kept == 1 and done.isdisjoint((*_ROOTS, _SIGN)):
            return "momentum"
        return "SGD" if kept == 0 and self.is_linear() else None

    def is_linear(self) -> bool:
        """Whether updates are sums of weights and gradients, each times some number."""
        phases, parameters = self.analysis.phases, self.analysis.module.entry.parameters
        news = [self.updates[each] for each in self.weights]
        makers = {new.kernel for new in news if isinstance(new, OpenedInstruction)}
        seen, waiting = set[OpenedInstruction](), [new for new in news if isinstance(new, OpenedInstruction)]
        while waiting:
            step = waiting.pop()
            given = phases[step.kernel] in _PASSES and step.kernel not in makers
            if step in seen or given or is_product(step.instruction):
                continue
            seen.add(step)
            read = [behind(each) for each in step.reads]
            arrays = [
                (parameters[each].shape if isinstance(each, int) else each.instruction.shape).size > 1
                for each in read
                if each is not None
            ]
            opcode = step.instruction.opcode.removesuffix("-start").removesuffix("-done")
            scales = opcode in ("multiply", "divide")
            if opcode not in _LINEAR or (scales and sum(arrays) > 1) or (opcode == "divide" and arrays[-1]):
                return False
            waiting += [
                each
                for each in read
                if isinstance(each, OpenedInstruction) and each.instruction.shape.size > 1
            ]
        return True

    def decays(self) -> bool:
        """Whether updates multiply weights by a number, and moments do not depend on that."""
        scaled = [step for step in self.steps if self._scales_a_weight(step)]
        after, used = self.after(scaled), self.in_products(scaled)
        in_moments = reduce(int.__or__, (after.get(self.updates[each], 0) for each in self.moments), 0)
        in_weights = reduce(int.__or__, (after.get(self.updates[each], 0) for each in self.weights), 0)
        return in_weights & ~used & ~in_moments != 0

    def _scales_a_weight(self, step: OpenedInstruction) -> bool:
        """Whether a step multiplies a weight by a constant or by one number."""
        if step.instruction.opcode != "multiply":
            return False
        first, second = (behind(each) for each in step.reads)
        other = second if first in self.weights else first
        number = other is None or (isinstance(other, OpenedInstruction) and other.instruction.shape.size == 1)
        return number and (first in self.weights or second in self.weights)


def _terms(step: OpenedInstruction) -> OpenedInstruction | None:
    """The product whose terms a step sums, be it itself."""
    instruction = step.instruction
    if instruction.opcode == "dot":
        return step
    if instruction.opcode != "reduce" or instruction.called[0].root.opcode != "add":
        return None
    terms = behind(step.reads[0])
    return terms if isinstance(terms, OpenedInstruction) and terms.instruction.opcode == "multiply" else None
