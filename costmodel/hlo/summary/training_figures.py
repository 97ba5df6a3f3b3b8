"""How a program trains: whether it recomputes, accumulates and clips gradients, and by which optimizer.

Found by general rules from what its instructions read; what they leave open is left out. Settings, such as a
rate of learning, are values of constants, which are never read.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, reduce
from typing import Final

from costmodel.hlo.analysis import Analysis
from costmodel.hlo.summary.model_figures import Figures
from costmodel.hlo.training.data_flow import CARRIED, FlowStep, Source
from costmodel.hlo.training.operations import (
    added_to,
    behind,
    collected,
    elementwise,
    hands_on,
    multiplies,
    square_factor,
)
from costmodel.hlo.training.optimizers import OptimizerRules

#: Sums over devices.
_ACROSS: Final = ("all-reduce", "reduce-scatter")


def training_figures(analysis: Analysis) -> Figures:
    """Yes or no, and a word; nothing where the text names no gradients.

    Notes
    -----
    - Rematerialisation: kernels that are named as computed again.
    - Optimizer: see `OptimizerRules.name`.
    - Gradient accumulation: a loop whose runs depend on each other in nothing but sums, among them the
      gradients of all weights; gradients of all weights that are sums of what depends on no common product;
      micro-batches through a pipeline; an updated array that is added to, and that nothing else reads, or
      updates that a count of steps holds back. That there is none is said where the optimizer is known, which
      then accounts for all that the step keeps.
    - Gradient clipping: all updates depend on one number, and that on sums of squares of all gradients.
      Clipping value by value does not count.
    """
    if "backward" not in analysis.phases:
        return {}
    optimizers, sums = OptimizerRules(analysis.provenance), _Sums(analysis)
    found: Figures = {"model.rematerialisation": _yes("recompute" in analysis.phases)}
    optimizer = optimizers.name()
    accumulates = sums.in_loop or sums.unrolled or sums.kept() or optimizers.held_back
    if optimizer or accumulates:
        found["model.gradient_accumulation"] = _yes(accumulates)
    rows = analysis.state.tokens()
    if sums.steps:
        found["model.gradient_accumulation_steps"] = sums.steps
    if rows and (sums.in_loop or sums.unrolled):  # these are of all micro-batches
        whole = sums.steps and not rows[0] % sums.steps
        found["model.micro_batch_per_dp_replica"] = rows[0] // sums.steps if whole else "unknown"
    if optimizers.changed and sums.every:
        found["model.gradient_clipping"] = _yes(sums.clips())
    return found | ({"model.optimizer": optimizer} if optimizer else {})


def _yes(holds: bool) -> str:
    return "yes" if holds else "no"


class _Sums:
    """Sums of gradients: over micro-batches, over steps, and of their squares."""

    def __init__(self, analysis: Analysis) -> None:
        self.analysis = analysis
        self.provenance = analysis.provenance
        self.flow = analysis.flow
        self.updates = analysis.state.updates

    @cached_property
    def every(self) -> int:
        """Bits of the weights that have gradients."""
        return reduce(int.__or__, self.provenance.gradients.values(), 0)

    @cached_property
    def loops(self) -> Mapping[tuple[str, ...], list[FlowStep]]:
        """Loops -> the arrays that they change from run to run."""
        found: dict[tuple[str, ...], list[FlowStep]] = {}
        for step in self.flow.steps:
            if step.opcode == CARRIED and len(step.reads) > 1 and behind(step.reads[1]) is not step:
                found.setdefault(step.body, []).append(step)
        return found

    @cached_property
    def _accumulating(self) -> tuple[str, ...] | None:
        """A loop over micro-batches."""
        for body, carried in self.loops.items():
            totals = [step for step in carried if self._adds_up(step)]
            weights = reduce(int.__or__, (self.provenance.leading[step] for step in totals), 0)
            if totals and weights == self.every and (self._independent(body, carried) or self._is_pipeline):
                return body
        return None

    @property
    def in_loop(self) -> bool:
        """Whether gradients are summed over the runs of a loop."""
        return self._accumulating is not None

    @cached_property
    def steps(self) -> int:
        """Runs of the loop over micro-batches; 0 where there is none, or where the text tells no number."""
        if self._accumulating is None or self._is_pipeline:
            return 0
        path = self._accumulating[-1]
        runs = {
            each.count for each in self.analysis.graph.kernels if each.name.rpartition("/")[0] + "/" == path
        }
        outer = {each.count for each in self.analysis.graph.kernels if "/" not in each.name}
        unknown = any(note.startswith(f"{path[:-1]}: trip count") for note in self.analysis.graph.notes)
        return 0 if unknown or len(runs) != 1 or outer - {1} else runs.pop()

    @cached_property
    def _is_pipeline(self) -> bool:
        """Whether devices pass activations from stage to stage."""
        return any(each.purpose == "pipeline parallel" for each in self.analysis.collectives.values())

    def _adds_up(self, carried: FlowStep) -> bool:
        """Whether a loop adds gradients to an array, all over it."""
        if carried not in self.provenance.leading:
            return False
        terms, waiting = set[Source](), [carried.reads[1]]
        while waiting:
            source = behind(waiting.pop())
            if isinstance(source, FlowStep) and source not in terms:
                if source.opcode == "add" or source.opcode in _ACROSS:
                    waiting += source.reads
                else:
                    waiting += source.reads[1:] if source.opcode == "select" else (added_to(source),)
            terms.add(source)
        return carried in terms and len(terms) > 2

    def _independent(self, body: tuple[str, ...], carried: list[FlowStep]) -> bool:
        """Whether products in a loop depend on none of the arrays of numbers that it changes."""
        marks: dict[Source, int] = {
            step: 1 for step in carried if step.shape.size > 1 and "f" in step.shape.dtype
        }
        after = self.flow.after(marks, again=False)
        inside = (step for step in self.flow.steps if step.loops[: len(body)] == body)
        factors = (source for step in inside if multiplies(step) for source in step.reads[:2])
        return not any(after.get(source, 0) for source in factors)

    @cached_property
    def unrolled(self) -> bool:
        """Whether the gradient of every weight is a sum of terms that share no product."""
        products = [step for step in self.flow.steps if multiplies(step)]
        below = self.flow.after({step: 1 << bit for bit, step in enumerate(products)}, again=False)
        terms: dict[int, list[int]] = {}
        for step, weights in self.provenance.gradients.items():
            for place in self.provenance.weights.values():
                if weights >> place & 1 and below.get(step, 0):
                    terms.setdefault(place, []).append(below[step])
        return bool(terms) and all(_apart(own) for own in terms.values())

    def kept(self) -> bool:
        """Whether an updated array is added to and serves nothing else."""
        readers: dict[Source, list[FlowStep]] = {}
        for step in self.flow.steps:
            if behind(step) is step:  # else it hands on what it reads
                for source in dict.fromkeys(behind(each) for each in step.reads):
                    readers.setdefault(source, []).append(step)
        arrays = {int(each.argument) for each in self.analysis.module.entry.parameters if each.shape.dims}
        for number, new in self.updates.items():
            total = behind(new)
            adds = isinstance(total, FlowStep) and total.opcode == "add"
            if number in arrays and adds and readers.get(number) == [total] and total not in readers:
                return True
        return False

    def clips(self) -> bool:
        """Whether one number, made of squares of all gradients, is part of the update of every weight."""
        marks: dict[Source, int] = {}
        for step in self.flow.steps:
            weights = self._of_gradients(square_factor(step))
            if weights:
                marks[step] = weights
        squared = self.flow.after(marks, again=False)
        norms = [step for step in self.flow.steps if collected(step) and squared.get(step, 0) == self.every]
        after = self.flow.after(dict.fromkeys(norms, 1), again=False)
        places = self.provenance.weights.items()
        own = [self.updates[number] for number, place in places if self.every >> place & 1]
        return all(after.get(new, 0) for new in own)

    def _of_gradients(self, source: Source) -> int:
        """Bits of the weights whose gradients an array holds, scaled perhaps."""
        seen, waiting, weights = set[Source](), [source], 0
        while waiting:
            here = waiting.pop()
            if not isinstance(here, FlowStep) or here in seen or here.shape.size <= 1:
                continue
            seen.add(here)
            own = self.provenance.gradients.get(here, 0) | self.provenance.leading.get(here, 0)
            weights |= own
            if not own and (elementwise(here) or hands_on(here)):
                waiting += self.provenance.handed_on(here)
        return weights


def _apart(sets: list[int]) -> bool:
    """Whether there are several sets of bits, none of which have any in common."""
    return len(sets) > 1 and reduce(int.__or__, sets).bit_count() == sum(map(int.bit_count, sets))
