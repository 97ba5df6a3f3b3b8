"""What arrays are made of and what for: inputs, weights, gradients on their way to an update.

Between a gradient and the new value of its weight, elements are scaled, summed and moved, each where it is.
Before it stands what sums over the batch: a product, a reduction, a scatter. Going back from the new
value as far as these finds the gradients, whatever the program calls them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final

from costmodel.hlo.training.data_flow import Flow, FlowStep, Source
from costmodel.hlo.training.operations import added_to, elementwise, hands_on, multiplies
from costmodel.hlo.training.state import TrainingState

#: Marks: of what is given anew for each step, of where a device stands among all, and of what is kept besides
#: weights. Those of weights follow, one bit each.
INPUT, DEVICE, KEPT = 1, 2, 4
_FIRST_WEIGHT: Final = 3


class Provenance:
    """What each step of a program depends on, and which steps lead from gradients to updates."""

    def __init__(self, flow: Flow, state: TrainingState) -> None:
        self.flow = flow
        self.state = state
        self.weights = {int(each.argument): place for place, each in enumerate(state.weights)}
        self.any_weight = ((1 << len(self.weights)) - 1) << _FIRST_WEIGHT

    @cached_property
    def made_of(self) -> Mapping[Source, int]:
        """Marks of all that each step depends on, the first time round each loop."""
        return self.flow.after(self._marks, again=False)

    @cached_property
    def _marks(self) -> dict[Source, int]:
        marks: dict[Source, int] = {int(each.argument): INPUT for each in self.state.inputs}
        marks |= {int(each.argument): KEPT for each in self.state.kept}
        marks |= {number: 1 << (_FIRST_WEIGHT + place) for number, place in self.weights.items()}
        return marks | {
            step: DEVICE for step in self.flow.steps if step.opcode in ("partition-id", "replica-id")
        }

    @cached_property
    def depends_on(self) -> Mapping[Source, int]:
        """Marks of all that each step depends on, in whatever run of its loops."""
        return self.flow.after(self._marks)

    def weights_in(self, source: Source) -> int:
        """Bits of the weights that an array is made of, if no input and nothing else that is kept is."""
        marks = self.made_of.get(source, 0)
        return 0 if marks & (INPUT | KEPT) else marks >> _FIRST_WEIGHT

    def decided_by_kept(self, source: Source) -> bool:
        """Whether something depends on what is kept and on no input: a count of steps, say."""
        return self.made_of.get(source, 0) & (INPUT | KEPT) == KEPT

    @cached_property
    def multiplied_by(self) -> frozenset[int]:
        """Bits of the weights in each operand of each matrix product."""
        products = [step for step in self.flow.steps if multiplies(step)]
        return frozenset(self.weights_in(source) for step in products for source in step.reads)

    @cached_property
    def readers(self) -> Mapping[Source, Sequence[FlowStep]]:
        """Steps that read a source."""
        found: dict[Source, list[FlowStep]] = {}
        for step in self.flow.steps:
            for source in dict.fromkeys(step.reads):
                found.setdefault(source, []).append(step)
        return found

    @cached_property
    def led(self) -> Sequence[set[FlowStep]]:
        """For each weight the steps between its gradients and its update, and that of what is kept for it."""
        numbers = [int(weight.argument) for weight in self.state.weights]
        kept = [[int(each.argument) for each in self.state.companions[number]] for number in numbers]
        return [
            self._back([self.state.updates[each] for each in (number, *own)])
            for number, own in zip(numbers, kept, strict=True)
        ]

    @cached_property
    def leading(self) -> Mapping[FlowStep, int]:
        """Steps between gradients and updates -> bits of the weights whose."""
        found: dict[FlowStep, int] = {}
        for place, steps in enumerate(self.led):
            for step in steps:
                found[step] = found.get(step, 0) | 1 << place
        return found

    @cached_property
    def gradients(self) -> Mapping[FlowStep, int]:
        """Steps that sum over the batch what is then a gradient -> bits of the weights whose."""
        found: dict[FlowStep, int] = {}
        for step, weights in self.leading.items():
            for source in self.handed_on(step):
                if isinstance(source, FlowStep) and source not in self.leading and source.shape.size > 1:
                    found[source] = found.get(source, 0) | weights
        return found

    def _back(self, sources: Iterable[Source]) -> set[FlowStep]:
        """Steps between some sources and what sums over the batch, or numbers, or parameters."""
        seen = set[FlowStep]()
        waiting = [source for source in sources if self._leads(source)]
        while waiting:
            step = waiting.pop()
            if isinstance(step, FlowStep) and step not in seen:
                seen.add(step)
                on = self.handed_on(step)
                on = [*on, *(added_to(each) for each in on if isinstance(each, FlowStep))]
                waiting += [source for source in on if self._leads(source)]
        return seen

    def _leads(self, source: Source) -> bool:
        """Whether elements of a step are made of elements in the same place, or of others moved there."""
        if not isinstance(source, FlowStep) or source.shape.size <= 1:
            return False
        if source.opcode == "dynamic-update-slice" and self._placed_by_input(source):
            return False
        return elementwise(source) or hands_on(source)

    def _placed_by_input(self, step: FlowStep) -> bool:
        """Whether an update is to rows that the input names, as a scatter's are."""
        return any(self.made_of.get(source, 0) & INPUT for source in step.reads[2:])

    def handed_on(self, step: FlowStep) -> Sequence[Source]:
        """What a step reads for its elements, and not to know where they are."""
        if step.opcode in ("dynamic-slice", "pad"):
            return step.reads[:1]
        if step.opcode == "dynamic-update-slice":
            return step.reads[:2]
        return step.reads[1:] if step.opcode == "select" else step.reads

    @cached_property
    def multiplied(self) -> frozenset[Source]:
        """Steps and parameters that matrix products depend on, later in the step."""
        found = set[Source]()
        for step in reversed(self.flow.steps):
            if step in found or (multiplies(step) and step.shape.size > 1):
                found.update(step.reads)
        return frozenset(found)

    def multiplying(self, step: FlowStep, *, later: bool) -> Iterator[FlowStep]:
        """The next steps, or the last before, that bring activations and weights together."""
        seen, waiting = {step}, [step]
        while waiting:
            own = waiting.pop()
            for other in self.readers.get(own, ()) if later else own.operands:
                if multiplies(other) or self.looks_up(other):
                    yield other
                elif other not in seen:
                    seen.add(other)
                    waiting.append(other)

    def looks_up(self, step: FlowStep) -> bool:
        """Whether a step reads rows of a weight, or sums a weight's gradient into its rows."""
        if step.opcode == "gather":
            return bool(self.weights_in(step.reads[0]))
        return step.opcode in ("scatter", "dynamic-update-slice") and step in self.gradients

    def weights_of(self, product: FlowStep) -> int | None:
        """Bits of the weights that a step reads, or sums the gradients of; None where it does neither."""
        own = self.gradients.get(product, 0) if multiplies(product) or self.looks_up(product) else 0
        sides = [self.weights_in(source) for source in product.reads[:2]]
        return own or max(sides) or None
