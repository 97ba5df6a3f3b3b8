"""Passes of a training step by what kernels read, and each kernel's pass and part of the model."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Final, Literal, get_args

from dse.adapters.xla.training.data_flow import FlowStep, Source
from dse.adapters.xla.training.operations import multiplies
from dse.adapters.xla.training.provenance import Provenance
from dse.adapters.xla.work.cost_analysis import product_instructions
from dse.adapters.xla.work.kernel_graph import HloGraph, HloKernel


class StepPasses:
    """Passes of steps by what they depend on, where some products are known to be computed again."""

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
        known = [bits for bits in errors if bits]
        return min(known, key=int.bit_count) if known else None

    def _error(self, product: FlowStep) -> int:
        """Bits of the products that the error depends on which a product multiplies; 0 where unknown."""
        first, second = (self._products.get(source, 0) for source in product.reads[:2])
        if first == second or first & second not in (first, second):
            return 0
        return first | second

    def after_loss(self, step: FlowStep) -> bool:
        """True if an operand of an operation depends on the whole forward pass."""
        assert self.forward is not None
        reads = (self._products.get(source, 0) for source in step.reads)
        return any(bits & self.forward == self.forward for bits in reads)

    @cached_property
    def updating(self) -> frozenset[FlowStep]:
        """Steps in which gradients meet what is kept, or are scaled by a number made of gradients."""
        leading, after = self.provenance.leading, self.provenance.after_gradients
        starts: dict[Source, int] = {
            step: 1
            for step in self.provenance.flow.steps
            if (step in leading and any(isinstance(source, int) for source in step.reads))
            or (step.shape.size <= 1 and after.get(step, 0))
        }
        met = self.provenance.flow.after(starts, again=False)
        own = (step for step in self.provenance.flow.steps if met.get(step, 0) and after.get(step, 0))
        update = {step for step in own if step in leading or step.shape.size <= 1}
        return frozenset(update.union(filter(self.provenance.after_kept.get, self.provenance.flow.steps)))


#: Passes, and the runs of kernels that fill or drain a pipeline.
Phase = Literal["forward", "recompute", "backward", "optimizer", "unknown", "bubble"]
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)

_BACKWARD: Final = re.compile(r"transpose\(")
_REPEATED: Final = re.compile(r"rematted_computation")
_REPEATED_REGION: Final = re.compile(r"(?:remat|checkpoint)\(")
_EMBEDDING: Final = re.compile(r"embed|wte|wpe", re.IGNORECASE)
_LAYERS: Final = re.compile(r"encoder|decoder|layers?\b|layer_|blocks?\b|block_|attention|attn|mlp", re.IGNORECASE)


def phases(graph: HloGraph, provenance: Provenance) -> list[Phase]:
    """The pass of each kernel; "unknown" of all where the text has no names.

    A name that says "transposed" is of the backward pass. What is recomputed bears that name too. Newer names tell it
    apart; where older ones tell the region alone, its kernels that read no gradient are recomputed. What such names
    leave open goes by what it reads: what comes after the loss is of the backward pass, and where gradients meet what
    is kept, of the optimizer. Where no product makes a gradient, what is not differentiated and reads a gradient is the
    optimizer, and a kernel without a name is of the latest pass that it reads from.
    """
    names = [_name(kernel) for kernel in graph.kernels]
    if not any(names):
        return ["unknown"] * len(names)
    steps: list[list[FlowStep]] = [[] for _ in names]
    for step in provenance.flow.steps:
        if step.kernel is not None:
            steps[step.kernel].append(step)
    repeated = {
        step for name, own in zip(names, steps, strict=True) if _REPEATED.search(name)
        for step in own if multiplies(step)
    }  # fmt: skip
    passes = StepPasses(provenance, repeated)
    data: list[list[int]] = [[] for _ in names]
    for edge in graph.edges:
        if edge.output is not None:
            data[edge.consumer].append(edge.producer)
    found: list[Phase] = []
    for place, name in enumerate(names):
        read = [found[before] for before in data[place]]
        found.append(_named(name, read) or _by_reads(steps[place], passes) or _latest(name, read))
    return found


def _name(kernel: HloKernel) -> str:
    """The name of a kernel in the program; where it tells no pass, the name of its matrix products."""
    own = kernel.instruction.op_name
    names = [own, *(each.op_name for each in product_instructions(kernel.instruction))]
    return next((name for name in names if _BACKWARD.search(name) or "jvp" in name), own)


def _named(name: str, read: Sequence[Phase]) -> Phase | None:
    """The pass that a name tells."""
    if _BACKWARD.search(name):
        after_gradient = any(phase in ("backward", "optimizer") for phase in read)
        in_region = _REPEATED_REGION.search(name) and not after_gradient
        return "recompute" if in_region or _REPEATED.search(name) else "backward"
    if _REPEATED.search(name):
        return "recompute"
    return "forward" if "jvp" in name else None


def _by_reads(steps: Sequence[FlowStep], passes: StepPasses) -> Phase | None:
    """The pass that what a kernel reads tells."""
    if passes.forward is None or not steps:
        return None
    models = (step for step in steps if multiplies(step) and not passes.provenance.after_kept.get(step, 0))
    if passes.updating.isdisjoint(steps) or any(models):
        return "backward" if any(map(passes.after_loss, steps)) else "forward"
    return "optimizer"


def _latest(name: str, read: Sequence[Phase]) -> Phase:
    """The pass of what is not differentiated, or has no name, by those that it reads from."""
    if not name:
        return max(read, key=PHASES.index, default="forward")
    after_gradient = any(phase in ("backward", "optimizer") for phase in read)
    return "optimizer" if after_gradient else "forward"


def part(kernel: HloKernel) -> str:
    """The part of a transformer that a kernel belongs to: "embedding", "encoder", or else "head"."""
    name = kernel.instruction.op_name
    if _EMBEDDING.search(name):
        return "embedding"
    return "encoder" if _LAYERS.search(name) else "head"
