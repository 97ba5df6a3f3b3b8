"""Which optimizer a step runs, by what it keeps for each weight and by how new values are made.

Values of constants are never read: settings, such as a rate of learning, stay unknown.
"""

from __future__ import annotations

from functools import cached_property
from math import prod
from typing import Final

from costmodel.hlo.text.module import Instruction
from costmodel.hlo.training.data_flow import FlowStep, Source
from costmodel.hlo.training.operations import (
    LINEAR,
    behind,
    collected,
    number_of,
    passes_on,
    square_factor,
    summed,
)
from costmodel.hlo.training.provenance import Provenance
from costmodel.hlo.training.state import alike, global_dims

#: Instructions that tell methods apart: those with a root divide by it, those with a sign follow it.
_ROOTS: Final = frozenset(("sqrt", "rsqrt"))
_SIGN: Final = "sign"
#: Methods of which one is another with more, for some of the weights alone.
_WITH_MORE: Final = {frozenset(("Adam", "AdamW")): "AdamW", frozenset(("Adafactor", "a root")): "Adafactor"}


class OptimizerRules:
    """What tells an optimizer; new values of what it keeps."""

    def __init__(self, provenance: Provenance) -> None:
        self.provenance = provenance
        self.state = provenance.state
        kept = [each for row in self.state.companions.values() for each in row]
        self._after_kept = provenance.flow.after({int(each.argument): 1 for each in kept}, again=False)
        self._after_gradients = provenance.flow.after(dict.fromkeys(provenance.gradients, 1), again=False)

    @cached_property
    def changed(self) -> list[Instruction]:
        """Weights that the step changes."""
        return [
            each for each in self.state.weights
            if isinstance(behind(self.state.updates[int(each.argument)]), FlowStep)
        ]  # fmt: skip

    def name(self) -> str | None:
        """The method's name; None where the rules tell none.

        Notes
        -----
        SGD keeps nothing, its updates being sums of weights and gradients that are scaled by numbers;
        momentum is the same with one array, Adam keeps two, with a root of one. Adafactor keeps a row and a
        column in place of the second, where a weight has two dimensions. In AdamW the update multiplies
        weights by a number and adds that to what depends on the moments, and not to a gradient. Methods that
        keep the same, such as NAdam, pass for Adam; those that take norms of weights, such as LAMB, and all
        others are left out; so is one whose updates are held back for some steps.
        """
        if not self.changed or self.held_back or any(map(self._takes_norm, self.changed)):
            return None
        names = {self._of(each) for each in self.changed}
        found = next(iter(names)) if len(names) == 1 else _WITH_MORE.get(frozenset(map(str, names)))
        return None if found == "a root" else found

    def _of(self, weight: Instruction) -> str | None:
        """The method by which one weight is updated."""
        kept = self.state.companions[int(weight.argument)]
        own = self._leading(weight)
        used = {step.opcode for step in own if self._after_kept.get(step, 0)}
        if not used & _ROOTS:
            return ("SGD", "momentum")[len(kept)] if len(kept) < 2 and self._is_linear(weight) else None
        if _SIGN in used:
            return None
        if len(kept) == 2 and all(alike(each, weight) for each in kept):
            return "AdamW" if self._decays(weight, own) else "Adam"
        if len(kept) == 1:
            return "a root"
        return "Adafactor" if _factored(weight, kept) else None

    def _leading(self, weight: Instruction) -> set[FlowStep]:
        """Steps between the gradient of a weight and its new value."""
        return self.provenance.led[self.provenance.weights[int(weight.argument)]]

    @cached_property
    def held_back(self) -> bool:
        """Whether what is kept decides whether weights change at all in a step."""
        return bool(self.changed) and all(self._chosen(each) for each in self.changed)

    def _chosen(self, weight: Instruction) -> bool:
        new = behind(self.state.updates[int(weight.argument)])
        if not isinstance(new, FlowStep) or new.opcode not in ("select", "chosen"):
            return False
        same = any(behind(source) == int(weight.argument) for source in new.reads[1:])
        return same and self.provenance.decided_by_kept(new.reads[0])

    def _takes_norm(self, weight: Instruction) -> bool:
        """Whether an update is scaled by a norm of its weight."""
        number = int(weight.argument)
        squares: dict[Source, int] = {
            step: 1 for step in self.provenance.flow.steps if behind(square_factor(step)) == number
        }
        if not squares:
            return False
        after = self.provenance.flow.after(squares, again=False)
        return any(
            after.get(source, 0) and collected(source)
            for step in self._leading(weight)
            for source in step.reads
        )

    def _is_linear(self, weight: Instruction) -> bool:
        """Whether an update sums the weight, its gradients and what is kept, each times some number."""
        numbers = {int(weight.argument)} | {
            int(each.argument) for each in self.state.companions[int(weight.argument)]
        }
        seen, waiting = set[Source](), [self.state.updates[int(weight.argument)]]
        while waiting:
            source = waiting.pop()
            if source in seen or source is None or collected(source):
                continue
            seen.add(source)
            if not isinstance(source, FlowStep):
                if source not in numbers:
                    return False
            elif source not in self.provenance.gradients:
                if not self._scales(source):
                    return False
                waiting += summed(source)
        return True

    @staticmethod
    def _scales(step: FlowStep) -> bool:
        """Whether a step is a sum, or a product with numbers."""
        if step.opcode not in LINEAR and not passes_on(step):
            return False
        arrays = [not (behind(source) is None or collected(source)) for source in step.reads]
        if step.opcode == "divide":
            return not arrays[1]
        return step.opcode != "multiply" or sum(arrays) < 2

    def _decays(self, weight: Instruction, own: set[FlowStep]) -> bool:
        """Whether a weight times a number is added to what depends on moments."""
        number = int(weight.argument)
        scaled = [
            step for step in own
            if step.opcode == "multiply" and any(_piece(source) == number for source in step.reads)
            and self._scales(step) and not self._is_zero(step)
        ]  # fmt: skip
        return any(self._added_to_moments(step, own) for step in scaled)

    def _is_zero(self, step: FlowStep) -> bool:
        """Whether a step multiplies by zero, as a decay does that is switched off."""
        given = self.provenance.flow.given
        return any(number_of(each, given) in ("0", "-0") for each in step.instruction.operands)

    def _added_to_moments(self, step: FlowStep, own: set[FlowStep]) -> bool:
        """Whether the first thing that a decayed weight is added to depends on moments."""
        seen, waiting = {step}, [step]
        while waiting:
            here = waiting.pop()
            for reader in self.provenance.readers.get(here, ()):
                if reader not in own or reader in seen or reader.opcode not in LINEAR:
                    continue
                others = [source for source in reader.reads if source is not here]
                if reader.opcode in ("add", "subtract"):
                    if any(self._after_kept.get(source, 0) for source in others):
                        return True
                    if any(self._is_gradient(source) for source in others):
                        continue
                seen.add(reader)
                waiting.append(reader)
        return False

    def _is_gradient(self, source: Source) -> bool:
        return bool(self._after_gradients.get(source, 0))


def _piece(source: Source) -> Source:
    """The parameter that an array is, or is a slice of."""
    source = behind(source)
    while isinstance(source, FlowStep) and source.opcode in ("slice", "dynamic-slice"):
        source = behind(source.reads[0])
    if isinstance(source, FlowStep) and passes_on(source):
        pieces = {_piece(each) for each in source.reads}
        return next(iter(pieces)) if len(pieces) == 1 else source
    return source


def _factored(weight: Instruction, kept: tuple[Instruction, ...]) -> bool:
    """Whether of two dimensions of a weight each is kept alone, beside its other dimensions."""
    whole = prod(global_dims(weight))
    sizes = sorted(prod(global_dims(each)) for each in kept if not alike(each, weight))
    dims = sorted(size for size in global_dims(weight) if size > 1)
    pairs = ((a, b) for place, a in enumerate(dims) for b in dims[place + 1 :])
    return len(sizes) >= 2 and any(sizes[-2:] == sorted((whole // a, whole // b)) for a, b in pairs)
