"""States of a training step, the sources of arrays, and the pass that each kernel belongs to.

A parameter of the program is state if the program gives a new value for it: an array that takes its memory, or of its
shape and made of it by sums and scales. Of the state, weights are the arrays that matrix products depend on, except
caches, which are filled in part, arrays that only feed updates, and all state of programs whose names show no training;
other state that decides the new value of only one weight belongs to that weight.

Between a gradient and the new value of its weight, elements are scaled, summed and moved, each in place. The gradient
comes from a sum over the batch: a product, a reduction, a scatter. Going back from the new value to these operations
finds the gradients, without names in the program.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from math import prod
from typing import Final, Literal, TypeGuard, get_args

import numpy as np

from costmodel.columns import grouped
from dse.adapters.xla.buffers.liveness import aliased_outputs
from dse.adapters.xla.text.module import Instruction, Module, reached
from dse.adapters.xla.training import data_flow
from dse.adapters.xla.training.data_flow import Flow, FlowStep, Source
from dse.adapters.xla.work.kernel_graph import HloGraph, HloKernel
from dse.adapters.xla.work.matrix_products import product_instructions

_TILES: Final = re.compile(r"devices=\[(\d+(?:,\d+)*)\]")
_SOFTENING: Final = ("exponential", "exponential-minus-one", "logistic", "tanh")
_WEIGHTS: Final = re.compile(r"b?f\d")


@dataclass(frozen=True, slots=True, eq=False)
class TrainingState:
    """Parameters of a program by their content."""

    weights: tuple[Instruction, ...]
    companions: Mapping[Instruction, tuple[Instruction, ...]]  #: weight -> state that is kept only for it
    counters: tuple[Instruction, ...]  #: scalars among the state
    others: tuple[Instruction, ...]  #: all other state: statistics, averages, arrays that several weights share
    inputs: tuple[Instruction, ...]  #: parameters without a new value in the step
    updates: Mapping[Instruction, Source]  #: parameter -> source of its new value

    @property
    def moments(self) -> tuple[tuple[Instruction, ...], ...]:
        """Copies of the weights' shapes that are kept for each of them; none where their number differs."""
        rows = [self.companions[weight] for weight in self.weights]
        same = all(kept_per_element(kept, weight) for weight in self.weights for kept in self.companions[weight])
        return tuple(zip(*rows, strict=True)) if same and len({len(row) for row in rows}) == 1 else ()

    @property
    def kept(self) -> list[Instruction]:
        """State but the weights: counters, moments, statistics."""
        kept = [array for row in self.companions.values() for array in row]
        return [*self.counters, *kept, *self.others]


#: Parameter -> its own bit, or the bits of those that decide its new value.
Bits = Mapping[Instruction, int]


def training_state(module: Module, flow: Flow) -> TrainingState:
    """The roles of the parameters of a module's entry computation."""
    updates = _updates(module, flow)
    arrays = [parameter for parameter in updates if parameter.shape.dims]
    summed_up = [array for array in arrays if _WEIGHTS.match(array.shape.dtype) and not _is_filled(array, updates)]
    bits = {array: 1 << bit for bit, array in enumerate(arrays)}
    after = flow.after(bits, again=False)
    decided = {array: after.get(updates[array], 0) for array in arrays}
    used = reduce(int.__or__, (after.get(step, 0) for step in flow.steps if data_flow.multiplies(step)), 0)
    multiplied = [array for array in summed_up if used & bits[array]]
    weights = _trained(multiplied, bits, decided)
    rest = [array for array in arrays if array not in weights]
    companions = _companions(weights, rest, bits, decided)
    kept = {array for row in companions.values() for array in row}
    return TrainingState(
        weights=tuple(weights),
        companions=companions,
        counters=tuple(parameter for parameter in updates if not parameter.shape.dims),
        others=tuple(array for array in rest if array not in kept),
        inputs=tuple(parameter for parameter in module.entry.parameters if parameter not in updates),
        updates=updates,
    )


def _updates(module: Module, flow: Flow) -> dict[Instruction, Source]:
    """Parameter -> its new value, in the order of their numbers.

    An array takes the memory of any parameter of its shape, which need not be one that it is made of: if it is made
    only of others, those count. If no array takes the memory of another, sums do not distinguish an update from a layer
    that adds to its operand: then the program has to name its gradients.
    """
    memory = aliased_outputs(module)
    made_of = [_terms(source) for source in flow.root]
    updates = {
        parameter: flow.root[output]
        for output, parameter in memory.items()
        if parameter in made_of[output] or not made_of[output]
    }
    given = {output for output, parameter in memory.items() if parameter in updates}
    named = any("transpose(" in instruction.attributes.get("metadata", "") for instruction in module.instructions)
    waiting = [index for index, _ in enumerate(made_of) if index not in given and (named or index in memory)]
    holders = grouped((term, position) for position, index in enumerate(waiting) for term in made_of[index])
    missing = np.array([float(len(made_of[index] - updates.keys())) for index in waiting])
    for _ in waiting:  # those that are made of one parameter first
        fewest = int(np.where(missing, missing, len(updates) + 1).argmin())
        missing[fewest], output = np.inf, waiting[fewest]
        terms = sorted(made_of[output], key=lambda parameter: int(parameter.argument))
        overwritten = [memory[output]] if output in memory else []
        free = next((parameter for parameter in (*terms, *overwritten) if parameter not in updates), None)
        if free is not None:
            updates[free] = flow.root[output]
            missing[holders.get(free, [])] -= 1
    return {parameter: updates[parameter] for parameter in module.entry.parameters if parameter in updates}


def _terms(new: Source) -> set[Instruction]:
    """Parameters of an array's shape that are terms of it."""
    terms = reached([new], lambda source: data_flow.summed(source) if isinstance(source, FlowStep) else ())
    return {term for term in terms if new and _is_parameter(term) and term.shape == new.shape}


def _is_parameter(source: Source) -> TypeGuard[Instruction]:
    return isinstance(source, Instruction) and source.opcode == "parameter"


def _is_filled(array: Instruction, updates: Mapping[Instruction, Source]) -> bool:
    """True if a new value is the old one with some elements replaced, as in a cache, and no sum with it."""
    new = updates[array]
    if not isinstance(data_flow.behind(new), FlowStep):
        return False
    moving = data_flow.MOVING | {"maximum"}  # of arrays that compilers pad to join
    moved = _reached([new], moving)
    sums = [source for source in moved if isinstance(source, FlowStep) and source.opcode not in moving]
    return array in moved and array not in _reached(sums, data_flow.LINEAR)


def _reached(sources: Iterable[Source], opcodes: frozenset[str]) -> set[Source]:
    """Sources, and their operands as far back as instructions of some kinds go."""

    def before(source: Source) -> Sequence[Source]:
        if not isinstance(source, FlowStep) or source.opcode not in opcodes:
            return ()
        return source.reads if source.opcode in (data_flow.CARRIED, "maximum") else data_flow.summed(source)

    return set(reached(sources, before))


def _trained(multiplied: Sequence[Instruction], bits: Bits, decided: Bits) -> list[Instruction]:
    """Parameters that matrix products depend on, except those that only feed the updates of others.

    A trained array decides, by its gradients, at least all that is decided by any other array whose new value it
    decides. An array that is kept for it decides less: a momentum that products make orthogonal, only its weight.
    """
    rows = [f"{others:0{len(bits)}b}" for others in decided.values()][::-1]  # the last array and bit first
    columns = ("".join(column) for column in zip(*rows, strict=True))
    decides = {array: int(column, 2) for array, column in zip(reversed(list(bits)), columns, strict=True)}
    alike: dict[int, int] = {}  # bits of the arrays that decide the same
    for array in multiplied:
        alike[decides[array]] = alike.get(decides[array], 0) | bits[array]

    def only_feeds(array: Instruction) -> bool:
        fed = decides[array] & ~bits[array]
        more = (others & ~bits[array] for others, members in alike.items() if fed & members)
        return any(fed | other == other != fed for other in more)

    return [array for array in multiplied if not only_feeds(array)]


def _companions(
    weights: Sequence[Instruction], rest: Sequence[Instruction], bits: Bits, decided: Bits
) -> dict[Instruction, tuple[Instruction, ...]]:
    """Weight -> the arrays that its new value depends on, and that of no other weight does."""
    alone = [array for array in rest if sum(bool(decided[weight] & bits[array]) for weight in weights) == 1]
    return {weight: tuple(array for array in alone if decided[weight] & bits[array]) for weight in weights}


def kept_per_element(kept: Instruction, weight: Instruction) -> bool:
    """True if a state has one element for every element of a weight, on this device or on all."""
    same_shape = kept.shape.dims == weight.shape.dims
    return same_shape or prod(global_dims(kept)) == prod(global_dims(weight))


def global_dims(parameter: Instruction) -> tuple[int, ...]:
    """Dimensions of the whole array, from the piece of one device and its sharding. [elements]"""
    tiles = _TILES.search(parameter.attributes.get("sharding", ""))
    dims = parameter.shape.dims
    if tiles is None:
        return dims
    return tuple(dim * int(tile) for dim, tile in zip(dims, tiles[1].split(","), strict=False))


def numbers(parameters: Iterable[Instruction]) -> str:
    """Parameter numbers as a range, where they are one.

    Parameters are in the order of their numbers, as `TrainingState` has them.
    """
    listed = [int(parameter.argument) for parameter in parameters]
    if len(listed) > 1 and listed == list(range(listed[0], listed[-1] + 1)):
        return f"{listed[0]}..{listed[-1]}"
    return ",".join(map(str, listed))


#: Marks: of new inputs for each step, of the number of a device among all, and of state that is kept besides weights.
#: Those of weights follow, one bit each.
INPUT, DEVICE, KEPT = 1, 2, 4
_FIRST_WEIGHT: Final = 3


class Provenance:
    """Dependencies of each operation of a program, and the operations between gradients and updates."""

    def __init__(self, flow: Flow, state: TrainingState) -> None:
        self.flow = flow
        self.state = state
        self.weights = {weight: index for index, weight in enumerate(state.weights)}
        self.any_weight = ((1 << len(self.weights)) - 1) << _FIRST_WEIGHT

    @cached_property
    def made_of(self) -> Mapping[Source, int]:
        """Marks of all that each step depends on, the first time round each loop."""
        return self.flow.after(self._marks, again=False)

    @cached_property
    def _marks(self) -> dict[Source, int]:
        marks: dict[Source, int] = dict.fromkeys(self.state.inputs, INPUT)
        marks |= dict.fromkeys(self.state.kept, KEPT)
        marks |= {weight: 1 << (_FIRST_WEIGHT + bit) for weight, bit in self.weights.items()}
        return marks | {step: DEVICE for step in self.flow.steps if step.opcode in ("partition-id", "replica-id")}

    @cached_property
    def depends_on(self) -> Mapping[Source, int]:
        """Marks of all that each step depends on, in any run of its loops."""
        return self.flow.after(self._marks)

    def weights_in(self, source: Source) -> int:
        """Bits of the weights that an array is made of, if no input and nothing else that is kept is."""
        marks = self.made_of.get(source, 0)
        return 0 if marks & (INPUT | KEPT) else marks >> _FIRST_WEIGHT

    @cached_property
    def multiplied_by(self) -> frozenset[int]:
        """Bits of the weights in each operand of each matrix product."""
        return frozenset(self.weights_in(source) for product in self.products for source in product.reads)

    @cached_property
    def readers(self) -> Mapping[Source, Sequence[FlowStep]]:
        """Steps that read a source."""
        return grouped((source, step) for step in self.flow.steps for source in dict.fromkeys(step.reads))

    @cached_property
    def led(self) -> Mapping[Instruction, set[FlowStep]]:
        """Weight -> the steps between its gradients and its update, and the updates of its kept state."""
        updates = self.state.updates
        return {
            weight: self._back([updates[array] for array in (weight, *self.state.companions[weight])])
            for weight in self.state.weights
        }

    @cached_property
    def leading(self) -> Mapping[FlowStep, int]:
        """Steps between gradients and updates -> bits of the weights whose."""
        gradient_bits: dict[FlowStep, int] = {}
        for weight, steps in self.led.items():
            for step in steps:
                gradient_bits[step] = gradient_bits.get(step, 0) | 1 << self.weights[weight]
        return gradient_bits

    @cached_property
    def gradients(self) -> Mapping[FlowStep, int]:
        """Steps that sum a gradient over the batch -> bits of its weights."""
        gradients: dict[FlowStep, int] = {}
        for step, weights in self.leading.items():
            for source in data_flow.handed_on(step):
                if isinstance(source, FlowStep) and source not in self.leading and source.shape.size > 1:
                    gradients[source] = gradients.get(source, 0) | weights
        return gradients

    @cached_property
    def after_kept(self) -> Mapping[Source, int]:
        """Bits of the kept state of a weight, by its position, on all that depends on it: only updates."""
        rows = self.state.companions.values()
        bits = {array: 1 << index for row in rows for index, array in enumerate(row)}
        return self.flow.after(bits, again=False)

    @cached_property
    def squares(self) -> Mapping[Source, Sequence[FlowStep]]:
        """Array -> operations that sum its squares."""
        factors = ((data_flow.square_factor(step), step) for step in self.flow.steps)
        return grouped((factor, step) for factor, step in factors if factor is not None)

    def later_readers(
        self, step: Source, passes: Callable[[FlowStep], bool] = data_flow.hands_on
    ) -> Iterator[FlowStep]:
        """Readers of a step, and readers of the results of those that pass on their operands."""

        def before(source: Source) -> Iterator[Source]:
            return filter(passes, self.readers.get(source, ()))

        passing = reached([step], before)
        return (reader for step in passing for reader in self.readers.get(step, ()))

    @cached_property
    def products(self) -> Mapping[FlowStep, int]:
        """Matrix products -> a bit for each."""
        return {step: 1 << bit for bit, step in enumerate(filter(data_flow.multiplies, self.flow.steps))}

    @cached_property
    def after_products(self) -> Mapping[Source, int]:
        """Bits of the products that each step depends on."""
        return self.flow.after(self.products, again=False)

    @cached_property
    def after_gradients(self) -> Mapping[Source, int]:
        """Marks, 1, of all that depends on gradients."""
        return self.flow.after(dict.fromkeys(self.gradients, 1), again=False)

    def _back(self, sources: Iterable[Source]) -> set[FlowStep]:
        """Steps between some sources and sums over the batch, or numbers, or parameters."""

        def before(step: FlowStep) -> Iterable[FlowStep]:
            on = data_flow.handed_on(step)
            return filter(self._leads, (*on, *(data_flow.added_to(step) for step in on if isinstance(step, FlowStep))))

        return set(reached(filter(self._leads, sources), before))

    def _leads(self, source: Source) -> TypeGuard[FlowStep]:
        """True if an operation depends on states, or returns their elements in place or moved."""
        if not isinstance(source, FlowStep) or source.shape.size <= 1:
            return False
        placed = source.reads[2:] if source.opcode == "dynamic-update-slice" else ()
        if any(self.made_of.get(index, 0) & INPUT for index in placed):  # by the input, as a scatter does
            return False
        return bool(self.after_kept.get(source, 0)) or data_flow.elementwise(source) or data_flow.hands_on(source)

    @cached_property
    def multiplied(self) -> frozenset[Source]:
        """Steps and parameters that matrix products of either pass depend on, later in the step."""
        sources = set[Source]()
        for step in reversed(self.flow.steps):
            if step in sources or (data_flow.multiplies(step) and step.shape.size > 1 and step not in self.leading):
                sources.update(step.reads)
        return frozenset(sources)

    def beyond(self, ends: Mapping[FlowStep, int], *, later: bool = True) -> Mapping[Source, int]:
        """Bits of the `ends` that each step leads to, or comes from, through steps that are no ends.

        Passes go over all steps, so that time grows with the program and not with the number of ways through it.
        """
        bits: dict[Source, int] = {}
        steps = self.flow.steps[::-1] if later else self.flow.steps
        carried, changed = any(step.opcode == data_flow.CARRIED for step in steps), True
        while changed:
            changed = False
            for step in steps:
                total = 0
                for other in self.readers.get(step, ()) if later else step.operands:
                    total |= ends[other] if other in ends else bits.get(other, 0)
                if total != bits.get(step, 0):
                    bits[step], changed = total, carried
        return bits

    def multiplying(self, marks: Mapping[FlowStep, int], *, softened: bool = False) -> Mapping[Source, int]:
        """Marks, as bits, of the next steps that bring activations and weights together, and of the last before.

        With `softened`, only of those with an exponential on the way, as between the products of attention.
        """
        bits: dict[Source, int] = {}
        ends = {step: marks.get(step, 0) for step in self.meeting}
        exponentials = [step for step in self.flow.steps if softened and step.opcode in _SOFTENING]
        for later in (True, False):
            near = self.beyond(ends, later=later)
            if softened:
                through = {step: near.get(step, 0) for step in exponentials} | dict.fromkeys(ends, 0)
                near = self.beyond(through, later=later)
            for source, total in near.items():
                bits[source] = bits.get(source, 0) | total
        return bits

    def is_own_slice(self, step: FlowStep) -> bool:
        """True if a step slices an array where the device's own number says."""
        places = step.reads[1:] if step.opcode == "dynamic-slice" else ()
        return any(self.made_of.get(source, 0) & DEVICE for source in places)

    @cached_property
    def sliced_later(self) -> Collection[Source]:
        """Elementwise and moving steps with the device's own slices later, and these."""
        passing = {step for step in self.flow.steps if data_flow.elementwise(step) or data_flow.hands_on(step)}
        slices = {step for step in passing if self.is_own_slice(step)}
        ends = {step: int(step in slices) for step in self.flow.steps if step in slices or step not in passing}
        bits = self.beyond(ends)
        return {step for step in passing if bits.get(step) or step in slices}

    @cached_property
    def meeting(self) -> Sequence[FlowStep]:
        """Steps that bring activations and weights together: products, lookups of rows, and sums into rows."""
        return [step for step in self.flow.steps if data_flow.multiplies(step) or self.looks_up(step)]

    def looks_up(self, step: FlowStep) -> bool:
        """True if an operation reads rows of a weight, or sums the gradient of a weight into its rows."""
        if step.opcode == "gather":
            return bool(self.weights_in(step.reads[0]))
        return step.opcode in ("scatter", "dynamic-update-slice") and step in self.gradients

    def weights_of(self, product: FlowStep) -> int | None:
        """Bits of the weights that a step reads, or sums the gradients of; None where it does neither."""
        by_gradient = self.gradients.get(product, 0) if data_flow.multiplies(product) or self.looks_up(product) else 0
        sides = [self.weights_in(source) for source in product.reads[:2]]
        return by_gradient or max(sides) or None


class StepPasses:
    """Passes of steps by their dependencies, if some products are known to be computed again."""

    def __init__(self, provenance: Provenance, repeated: Collection[FlowStep]) -> None:
        self.provenance = provenance
        self.counted = sum(bit for product, bit in provenance.products.items() if product not in repeated)

    @cached_property
    def forward(self) -> int | None:
        """Bits of the products of the forward pass; None where no gradient tells."""
        errors = (self._error(step) for step in self.provenance.gradients if data_flow.multiplies(step))
        return min(filter(None, errors), key=int.bit_count, default=None)

    def _error(self, product: FlowStep) -> int:
        """Bits of the products that the error depends on which a product multiplies; 0 where unknown."""
        after = self.provenance.after_products
        first, second = (after.get(source, 0) & self.counted for source in product.reads[:2])
        return 0 if first == second or first & second not in (first, second) else first | second

    @cached_property
    def updating(self) -> frozenset[FlowStep]:
        """Steps in which gradients meet kept state, or are scaled by a number made of gradients."""
        leading, after = self.provenance.leading, self.provenance.after_gradients
        starts = {
            step: 1
            for step in self.provenance.flow.steps
            if (step in leading and any(map(_is_parameter, step.reads)))
            or (step.shape.size <= 1 and after.get(step, 0))
        }
        met = self.provenance.flow.after(starts, again=False)
        between = (step for step in self.provenance.flow.steps if met.get(step, 0) and after.get(step, 0))
        update = {step for step in between if step in leading or step.shape.size <= 1}
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

    A kernel with "transposed" in its name is in the backward pass. Recomputed kernels have it in their names too. Newer
    names mark them; where older ones only name the region, its kernels that read no gradient are recomputed. Where
    names decide nothing, operands do: kernels after the loss are in the backward pass, and those where gradients meet
    kept state, in the optimizer. If no product makes a gradient, a kernel that is not differentiated and reads a
    gradient is in the optimizer, and a kernel without a name is in the latest pass that it reads from.
    """
    names = [_name(kernel) for kernel in graph.kernels]
    if not any(names):
        return ["unknown"] * len(names)
    steps: list[list[FlowStep]] = [[] for _ in names]
    for step in provenance.flow.steps:
        if step.kernel is not None:
            steps[step.kernel].append(step)
    kernels_of_products = [(step, step.kernel) for step in provenance.products]
    repeated = {step for step, kernel in kernels_of_products if kernel is not None and _REPEATED.search(names[kernel])}
    passes = StepPasses(provenance, repeated)
    phases_of_kernels: list[Phase] = []
    for index, name in enumerate(names):
        read = [phases_of_kernels[leaf.source[0]] for leaf in graph.kernels[index].reads if leaf.source]
        after_gradient = "backward" in read or "optimizer" in read
        phase = _named(name, after_gradient=after_gradient) or _by_reads(steps[index], passes)
        if phase is None and name:  # it is not differentiated
            phase = "optimizer" if after_gradient else "forward"
        latest: Phase = max(read, key=PHASES.index, default="forward")
        phases_of_kernels.append(phase or latest)
    return phases_of_kernels


def _name(kernel: HloKernel) -> str:
    """The name of a kernel in the program; where it tells no pass, the name of its matrix products."""
    op_name = kernel.instruction.op_name
    names = [op_name, *(product.op_name for product in product_instructions(kernel.instruction))]
    return next((name for name in names if _BACKWARD.search(name) or "jvp" in name), op_name)


def _named(name: str, *, after_gradient: bool) -> Phase | None:
    """The pass that a name tells."""
    if _BACKWARD.search(name):
        in_region = _REPEATED_REGION.search(name) and not after_gradient
        return "recompute" if in_region or _REPEATED.search(name) else "backward"
    return "recompute" if _REPEATED.search(name) else "forward" if "jvp" in name else None


def _by_reads(steps: Sequence[FlowStep], passes: StepPasses) -> Phase | None:
    """The pass of a kernel by its operands."""
    if passes.forward is None or not steps:
        return None
    models = (step for step in steps if data_flow.multiplies(step) and not passes.provenance.after_kept.get(step, 0))
    if passes.updating.isdisjoint(steps) or any(models):
        reads = (passes.provenance.after_products.get(source, 0) for step in steps for source in step.reads)
        return "backward" if any(bits & passes.forward == passes.forward for bits in reads) else "forward"
    return "optimizer"


def part(kernel: HloKernel) -> str:
    """The part of a transformer that a kernel belongs to: "embedding", "encoder", or else "head"."""
    name = kernel.instruction.op_name
    return "embedding" if _EMBEDDING.search(name) else "encoder" if _LAYERS.search(name) else "head"
