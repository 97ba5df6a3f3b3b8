"""StepPasses of a training step by what kernels read: forward, backward, and the update.

The error that backpropagation starts with depends on all products of the forward pass. Of the two operands
of a product that makes a gradient, one is of the forward pass; the other, an error, depends on more products.
The error that depends on the fewest is the first, and what it depends on is the forward pass.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import cached_property

from costmodel.hlo.flow import FlowStep, Source
from costmodel.hlo.operations import multiplies
from costmodel.hlo.provenance import Provenance


class StepPasses:
    """Which pass steps are of, by what they depend on.

    Parameters
    ----------
    provenance : Provenance
        What the steps of a program are made of.
    repeated : collection
        Products that are known to be computed again.
    """

    def __init__(self, provenance: Provenance, repeated: Collection[FlowStep]) -> None:
        self.provenance = provenance
        flow = provenance.flow
        products = [step for step in flow.steps if multiplies(step) and step not in repeated]
        bits: dict[Source, int] = {step: 1 << bit for bit, step in enumerate(products)}
        self._products = flow.after(bits, again=False)

    @cached_property
    def forward(self) -> int | None:
        """Bits of the products of the forward pass; None where no gradient tells."""
        errors = [self._error(step) for step in self.provenance.gradients if multiplies(step)]
        told = [bits for bits in errors if bits]
        return min(told, key=int.bit_count) if told else None

    def _error(self, product: FlowStep) -> int:
        """Bits of the products that the error depends on which a product multiplies; 0 where none is told."""
        first, second = (self._products.get(source, 0) for source in product.reads[:2])
        if first == second or first & second not in (first, second):
            return 0
        return first | second

    def after_loss(self, step: FlowStep) -> bool:
        """Whether something that a step reads depends on the whole forward pass."""
        assert self.forward is not None
        reads = (self._products.get(source, 0) for source in step.reads)
        return any(bits & self.forward == self.forward for bits in reads)

    @cached_property
    def _after_gradients(self) -> Mapping[Source, int]:
        return self.provenance.flow.after(dict.fromkeys(self.provenance.gradients, 1), again=False)

    @cached_property
    def updating(self) -> frozenset[FlowStep]:
        """Steps in which gradients meet what is kept, or are scaled by a number made of gradients."""
        leading, after = self.provenance.leading, self._after_gradients
        starts: dict[Source, int] = {
            step: 1
            for step in self.provenance.flow.steps
            if (step in leading and any(isinstance(source, int) for source in step.reads))
            or (step.shape.size <= 1 and after.get(step, 0))
        }
        met = self.provenance.flow.after(starts, again=False)
        own = (step for step in self.provenance.flow.steps if met.get(step, 0) and after.get(step, 0))
        return frozenset(step for step in own if step in leading or step.shape.size <= 1)
