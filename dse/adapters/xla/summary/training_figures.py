"""The model that a program trains, and its method: recomputation, accumulation, clipping, and the optimizer.

Weights of layers show hidden size and MLP width, products with square outputs show attention, a table shows the
vocabulary, and trips of loops show the number of layers. The method follows by general rules from the operands of
instructions and the state that the program keeps for each weight. A figure that the text does not determine is left
out. Settings, for example a learning rate, are values of constants, which are never read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property, reduce
from itertools import groupby
from math import prod
from typing import Final, TypeGuard

from costmodel.columns import grouped
from dse.adapters.xla.analysis import Analysis
from dse.adapters.xla.text.module import Instruction, reached
from dse.adapters.xla.training import data_flow
from dse.adapters.xla.training.data_flow import FlowStep, Source
from dse.adapters.xla.training.provenance import INPUT, KEPT, Provenance, global_dims, kept_per_element, numbers

Figures = dict[str, int | float | str]

_LAYER: Final = re.compile(r"(?:layers?|blocks?|\bh)[/_.](\d+)")


def model_figures(analysis: Analysis) -> Figures:
    """The model, its number formats, its batch and the mesh of devices; undetermined figures are left out."""
    figures: Figures = {"mesh.devices": analysis.devices}
    products = Counter[str]()
    for kernel in analysis.graph.kernels:
        for product in kernel.products:
            products[product.operands[0].dtype] += kernel.count * product.flops
    if products:
        figures["model.compute_dtype"] = products.most_common(1)[0][0]
    if analysis.state.weights:
        figures["model.master_dtype"] = analysis.state.weights[0].shape.dtype
    if analysis.state.inputs:
        runs = groupby(analysis.state.inputs, key=lambda entry: str(entry.shape))
        figures["batch.inputs"] = ", ".join(f"{numbers(run)} {shape}" for shape, run in runs)
    figures |= mesh_figures(analysis) | gradient_figures(analysis)
    tokens, given = step_tokens(analysis), given_tokens(analysis)
    if given:
        figures["model.micro_batch_per_dp_replica"] = given[0]
    if tokens:
        figures |= {"model.sequence": tokens[1], "model.global_batch": tokens[0]}
    if given and "tp" in analysis.axes:
        figures.update(transformer_figures(analysis, given[0], analysis.axes["tp"]))
    return figures


_TOKENS: Final = ("s32", "u32", "s64", "u64", "s16", "u16")


def given_tokens(analysis: Analysis) -> tuple[int, int] | None:
    """Sequences, and tokens of each, that one device is given; None where no input tells. [-]"""
    return _commonest(analysis, {word: word.shape.dims for word in _words(analysis)})


def _words(analysis: Analysis) -> list[Instruction]:
    """Whole-numbered inputs of the fewest dimensions beyond one: others than the last count sequences."""
    inputs = (given for given in analysis.state.inputs if given.shape.dtype in _TOKENS and given.shape.size)
    several = [array for array in inputs if len(array.shape.dims) > 1]
    return [array for array in several if len(array.shape.dims) == min(len(one.shape.dims) for one in several)]


def _commonest(analysis: Analysis, dims: Mapping[Instruction, tuple[int, ...]]) -> tuple[int, int] | None:
    """Sequences and tokens that most inputs have, by their dimensions on one device or on all."""
    counted = Counter[tuple[int, int]]()
    for source, (*rows, columns) in dims.items():
        counted[prod(rows), columns * _positions(analysis, source) // source.shape.dims[-1]] += 1
    return counted.most_common(1)[0][0] if counted else None


def _positions(analysis: Analysis, words: Instruction) -> int:
    """Tokens of a sequence that the model reads: fewer than are given where the last ones are only predicted.

    So it is where all that reads the sequence takes slices of more than half of it.
    """
    length = words.shape.dims[-1]
    lengths, readers = set[int](), analysis.provenance.readers

    def after(source: Source) -> Iterator[Source]:
        for reader in readers.get(source, ()):
            whole = reader.instruction.operands[0].shape.dims if reader.opcode == "slice" else ()
            cut = [dim for dim, before in zip(reader.shape.dims, whole, strict=False) if dim < before == length]
            if (
                not cut
                and reader.shape.dtype in _TOKENS
                and (data_flow.hands_on(reader) or data_flow.elementwise(reader))
            ):
                yield reader
            else:
                lengths.add(cut[0] if cut else length)

    start: Source = words
    list(reached([start], after))
    most = max(lengths, default=length)
    return most if 2 * most > length else length


def step_tokens(analysis: Analysis) -> tuple[int, int] | None:
    """Sequences, and tokens of each, of a step on all devices; None where the text does not tell. [-]

    By the sharding of the inputs, else by the axes of the mesh.
    """
    given, axes, words = given_tokens(analysis), analysis.axes, _words(analysis)
    if given is None:
        return None
    if all("sharding" in word.attributes for word in words):
        return _commonest(analysis, {word: global_dims(word) for word in words})
    if "dp" not in axes and analysis.devices > 1:
        return None
    return given[0] * axes.get("dp", 1), given[1] * axes.get("cp", 1)


def mesh_figures(analysis: Analysis) -> Figures:
    """Axes of the mesh of devices by purpose; an axis whose devices are unknown is left out."""
    axes = {name: analysis.axes[name] for name in ("dp", "pp", "cp", "tp", "ep") if name in analysis.axes}
    figures: Figures = {f"mesh.{name}": size for name, size in axes.items()}
    across = [name for name in axes if name != "ep"]  # experts lie across the others
    if len(across) > 1 and prod(axes[name] for name in across) == analysis.devices:
        figures["mesh.shape"] = f"{'x'.join(str(axes[name]) for name in across)} ({','.join(across)})"
    return figures


def gradient_figures(analysis: Analysis) -> Figures:
    """Elements that replicas sum to gradients, by type."""
    elements = Counter[str]()
    for number, collective in analysis.collectives.items():
        if collective.name != "all-gather" and collective.purpose in ("data parallel", "fully sharded"):
            kernel = analysis.graph.kernels[number]
            for operand in kernel.instruction.operands:
                elements[operand.shape.dtype] += kernel.count * operand.shape.size
    return {f"grad_sync.{dtype}_elements": count for dtype, count in elements.items()}


def transformer_figures(analysis: Analysis, micro_batch: int, tp: int) -> Figures:
    """Dimensions of a transformer with heads split over `tp` devices.

    Scores are the batched products with square outputs; a matrix of layers occurs once in each layer, and a table once
    more.
    """
    names = [_LAYER.search(kernel.instruction.op_name) for kernel in analysis.graph.kernels]
    layers = len({int(name[1]) for name in names if name})
    scores = [p for kernel in analysis.graph.kernels for p in kernel.products if p.batch > 1 and p.m == p.n]
    figures: Figures = {"model.layers": layers} if layers else {}
    if not scores or not layers:
        return figures
    head_dim, heads = scores[0].k, scores[0].batch // micro_batch * tp
    hidden = heads * head_dim
    matrices = Counter(dims for weight in analysis.state.weights if len(dims := global_dims(weight)) == 2)
    tables = sorted(
        (rows for (rows, columns), count in matrices.items() if columns == hidden and count % layers == 1), reverse=True
    )
    widths = [columns for (rows, columns), count in matrices.items() if rows == hidden and count >= layers]
    figures |= {"model.hidden": hidden, "model.heads_global": heads, "model.head_dim": head_dim}
    if widths:
        figures["model.ffn"] = max(widths)
    figures.update(dict(zip(("model.vocab_padded", "model.max_positions"), tables, strict=False)))
    return figures


#: Roots, by which methods such as Adam divide.
_ROOTS: Final = frozenset(("sqrt", "rsqrt"))


class OptimizerRules:
    """Properties of the new values of states that identify an optimizer."""

    def __init__(self, provenance: Provenance) -> None:
        self.provenance = provenance
        self.state = provenance.state

    @cached_property
    def changed(self) -> list[Instruction]:
        """Weights that the step changes."""
        updates = self.state.updates
        return [weight for weight in self.state.weights if isinstance(data_flow.behind(updates[weight]), FlowStep)]

    def name(self) -> str | None:
        """The method's name; None where the rules tell none.

        SGD keeps nothing, its updates being sums of weights and gradients that are scaled by numbers; momentum is the
        same with one array, and Muon multiplies matrices made of that array, for some of the weights. Adam keeps two
        arrays, and divides one of them by a root of the kept arrays. In AdamW the update multiplies weights by a number
        and adds that to a term that depends on the moments, and not to a gradient. Methods that keep the same, such as
        NAdam, pass for Adam; those that take norms of weights, such as LAMB, and all others are left out; so is one
        whose updates are held back for some steps.
        """
        if not self.changed or self.held_back:
            return None
        names = {self._of(weight) for weight in self.changed}
        if "muon" in names:
            return "muon"
        if names == {"Adam", "AdamW"}:  # which lets some weights not decay
            return "AdamW"
        return names.pop() if len(names) == 1 else None

    def _of(self, weight: Instruction) -> str | None:
        """The method by which one weight is updated."""
        kept = self.state.companions[weight]
        steps_to_weight = self.provenance.led[weight]
        alike = all(kept_per_element(state, weight) for state in kept)
        if any(map(data_flow.multiplies, steps_to_weight)):
            return "muon" if len(kept) == 1 and alike else None
        if self._takes_norm(weight):
            return None
        used = {step.opcode for step in steps_to_weight if self.provenance.after_kept.get(step, 0)}
        if not used & _ROOTS:
            return ("SGD", "momentum")[len(kept)] if len(kept) < 2 and self._is_linear(weight) else None
        divided = any(self.provenance.after_kept.get(source, 0) for source in self._divided(steps_to_weight))
        if not divided or not alike or len(kept) != 2:
            return None
        return "AdamW" if self._decays(weight, steps_to_weight) else "Adam"

    @cached_property
    def _after_roots(self) -> Mapping[Source, int]:
        """Marks, 1, of all that depends on roots of kept arrays."""
        kept = self.provenance.after_kept
        roots = {step: 1 for step in self.provenance.leading if step.opcode in _ROOTS and kept.get(step, 0)}
        return self.provenance.flow.after(roots, again=False)

    def _divided(self, steps: set[FlowStep]) -> list[Source]:
        """Arrays made of gradients that are divided by roots of kept arrays."""
        rooted, after = self._after_roots, self.provenance.after_gradients
        factors = (step.reads[:2] for step in steps if step.opcode in ("multiply", "divide"))
        return [
            source for pair in factors if any(rooted.get(factor, 0) for factor in pair)
            for source in pair if after.get(source, 0) and not rooted.get(source, 0) and not data_flow.collected(source)
        ]  # fmt: skip

    @cached_property
    def held_back(self) -> bool:
        """True if a state decides whether weights change at all in a step."""
        return bool(self.changed) and all(self._chosen(weight) for weight in self.changed)

    def _chosen(self, weight: Instruction) -> bool:
        new = data_flow.behind(self.state.updates[weight])
        if not isinstance(new, FlowStep) or new.opcode not in ("select", "chosen"):
            return False
        same = any(data_flow.behind(source) is weight for source in new.reads[1:])
        return same and self.provenance.made_of.get(new.reads[0], 0) & (INPUT | KEPT) == KEPT  # as of a step counter

    def _takes_norm(self, weight: Instruction) -> bool:
        """True if an update is scaled by a norm of its weight."""
        squares = dict.fromkeys(self.provenance.squares.get(weight, ()), 1)
        if not squares:
            return False
        after = self.provenance.flow.after(squares, again=False)
        return any(
            after.get(source, 0) and data_flow.collected(source)
            for step in self.provenance.led[weight]
            for source in step.reads
        )

    def _is_linear(self, weight: Instruction) -> bool:
        """True if an update is a linear combination of the weight, its gradients and states."""
        gradients = self.provenance.gradients
        ends = {weight, *self.state.companions[weight], *gradients}

        def is_open(source: Source) -> TypeGuard[FlowStep]:
            return isinstance(source, FlowStep) and source not in gradients and not data_flow.collected(source)

        terms = reached(
            [self.state.updates[weight]], lambda source: data_flow.summed(source) if is_open(source) else ()
        )
        return all(
            self._scales(term)
            if is_open(term)
            else term in ends or data_flow.is_constant(term) or data_flow.collected(term)
            for term in terms
        )

    @staticmethod
    def _scales(step: FlowStep) -> bool:
        """True if an operation is a sum, or a product with numbers."""
        if step.opcode not in data_flow.LINEAR and not data_flow.passes_on(step):
            return False
        arrays = [
            not (data_flow.is_constant(data_flow.behind(source)) or data_flow.collected(source))
            for source in step.reads
        ]
        return not arrays[1] if step.opcode == "divide" else step.opcode != "multiply" or sum(arrays) < 2

    def _decays(self, weight: Instruction, steps: set[FlowStep]) -> bool:
        """True if a weight times a number is added to a value that depends on moments."""
        scaled = [
            step for step in steps
            if step.opcode == "multiply" and any(_piece(source) is weight for source in step.reads)
            and self._scales(step) and not self._is_zero(step)
        ]  # fmt: skip
        return any(self._added_to_moments(step, steps) for step in scaled)

    def _is_zero(self, step: FlowStep) -> bool:
        """True if an operation multiplies by zero, as a weight decay that is switched off does."""
        factors = filter(None, map(data_flow.behind, step.reads))
        return any(
            isinstance(factor, Instruction) and factor.opcode == "constant" and factor.argument in ("0", "-0")
            for factor in factors
        )

    def _added_to_moments(self, step: FlowStep, steps: set[FlowStep]) -> bool:
        """True if the first value that a decayed weight is added to depends on moments."""
        seen, waiting = {step}, [step]
        while waiting:
            here = waiting.pop()
            for reader in self.provenance.readers.get(here, ()):
                if reader not in steps or reader in seen or reader.opcode not in data_flow.LINEAR:
                    continue
                others = [source for source in reader.reads if source is not here]
                if reader.opcode in ("add", "subtract"):
                    if any(self.provenance.after_kept.get(source, 0) for source in others):
                        return True
                    if any(self.provenance.after_gradients.get(source, 0) for source in others):
                        continue
                seen.add(reader)
                waiting.append(reader)
        return False


def _piece(source: Source) -> Source:
    """The parameter that an array is, or is a slice of."""
    source = data_flow.behind(source)
    while isinstance(source, FlowStep) and source.opcode in ("slice", "dynamic-slice"):
        source = data_flow.behind(source.reads[0])
    if isinstance(source, FlowStep) and data_flow.passes_on(source):
        pieces = {_piece(read) for read in source.reads}
        return next(iter(pieces)) if len(pieces) == 1 else source
    return source


_ANSWERS: Final = {False: "no", True: "yes"}
#: Sums over devices.
_ACROSS: Final = ("all-reduce", "reduce-scatter")


def training_figures(analysis: Analysis) -> Figures:
    """Yes or no, and a word; nothing where the text names no gradients.

    - Rematerialisation: kernels that are named as computed again.
    - Optimizer: see `OptimizerRules.name`.
    - Gradient accumulation: a loop whose runs depend on each other only by sums, among them the
      gradients of all weights; gradients of all weights that are sums of terms without a common product; micro-batches
      through a pipeline; an updated array that is added to and has no other reader, or updates that a count of steps
      holds back. Its absence is stated only if the optimizer is known, which then accounts for all that the step keeps.
    - Gradient clipping: all updates depend on one number, and that on sums of squares of all gradients.
      Clipping value by value does not count.
    """
    if "backward" not in analysis.phases:
        return {}
    optimizers, sums = OptimizerRules(analysis.provenance), _Sums(analysis)
    figures: Figures = {"model.rematerialisation": _ANSWERS["recompute" in analysis.phases]}
    optimizer = optimizers.name()
    accumulates = sums.in_loop or sums.unrolled or sums.kept() or optimizers.held_back
    if optimizer or accumulates:
        figures["model.gradient_accumulation"] = _ANSWERS[accumulates]
    rows = given_tokens(analysis)
    if sums.steps:
        figures["model.gradient_accumulation_steps"] = sums.steps
    if rows and (sums.in_loop or sums.unrolled):  # these are of all micro-batches
        whole = sums.steps and not rows[0] % sums.steps
        figures["model.micro_batch_per_dp_replica"] = rows[0] // sums.steps if whole else "unknown"
    if optimizers.changed and sums.every:
        figures["model.gradient_clipping"] = _ANSWERS[sums.clips()]
    return figures | ({"model.optimizer": optimizer} if optimizer else {})


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
        carried = (step for step in self.flow.steps if step.opcode == data_flow.CARRIED and len(step.reads) > 1)
        return grouped((step.body, step) for step in carried)

    @cached_property
    def _accumulating(self) -> Instruction | None:
        """Loop over micro-batches; None where there is none."""
        for body, carried in self.loops.items():
            totals = [step for step in carried if self._adds_up(step)]
            weights = reduce(int.__or__, (self.provenance.leading[step] for step in totals), 0)
            if totals and weights == self.every and self._independent(body, carried):
                return carried[0].instruction
        return None

    @property
    def in_loop(self) -> bool:
        """True if gradients are summed over the trips of a loop, or over micro-batches of a pipeline."""
        return self._accumulating is not None or bool(self._through_pipeline)

    @cached_property
    def _through_pipeline(self) -> int:
        """Micro-batches that go through a pipeline in a loop; 0 where there is none. [-]"""
        return max((ticks - waits for ticks, waits in self.analysis.pipelines.values()), default=0)

    @cached_property
    def steps(self) -> int:
        """Runs of the loop over micro-batches; 0 where there is none, or where the text tells no number."""
        if self._accumulating is None or self._through_pipeline:
            return self._through_pipeline
        return self.analysis.graph.trips[self._accumulating] or 0

    def _adds_up(self, carried: FlowStep) -> bool:
        """True if a loop adds gradients to every element of an array."""
        if carried not in self.provenance.leading:
            return False

        def before(source: Source) -> Iterable[Source]:
            if not isinstance(source, FlowStep):
                return ()
            if source.opcode == "add" or source.opcode in _ACROSS:
                return map(data_flow.behind, source.reads)
            return map(
                data_flow.behind, source.reads[1:] if source.opcode == "select" else (data_flow.added_to(source),)
            )

        terms = set(reached([data_flow.behind(carried.reads[1])], before))
        return carried in terms and len(terms) > 2

    def _independent(self, body: tuple[str, ...], carried: list[FlowStep]) -> bool:
        """True if products in a loop depend on none of the arrays that the loop changes."""
        marks = {step: 1 for step in carried if step.shape.size > 1 and "f" in step.shape.dtype}
        after = self.flow.after(marks, again=False)
        inside = (step for step in self.flow.steps if step.loops[: len(body)] == body)
        factors = (source for step in inside if data_flow.multiplies(step) for source in step.reads[:2])
        return not any(after.get(source, 0) for source in factors)

    @cached_property
    def unrolled(self) -> bool:
        """True if the gradient of every weight is a sum of terms that share no product."""
        terms: dict[int, list[int]] = {}
        for step, weights in self.provenance.gradients.items():
            products = self.provenance.after_products.get(step, 0)
            for weight in self.provenance.weights.values():
                if weights >> weight & 1 and products:
                    terms.setdefault(weight, []).append(products)
        apart = (reduce(int.__or__, sets).bit_count() == sum(map(int.bit_count, sets)) for sets in terms.values())
        return bool(terms) and all(len(sets) > 1 for sets in terms.values()) and all(apart)

    def kept(self) -> bool:
        """True if an updated array is only added to, and has no other use."""
        readers: dict[Source, list[FlowStep]] = {}
        for step in self.flow.steps:
            if data_flow.behind(step) is step:  # else it hands on its operands
                for source in dict.fromkeys(data_flow.behind(source) for source in step.reads):
                    readers.setdefault(source, []).append(step)
        for array, new in self.updates.items():
            total = data_flow.behind(new)
            adds = isinstance(total, FlowStep) and total.opcode == "add"
            if array.shape.dims and adds and readers.get(array) == [total] and total not in readers:
                return True
        return False

    def clips(self) -> bool:
        """True if the update of every weight depends on one number made of squares of all gradients."""
        squares = self.provenance.squares.items()
        marks = {step: self._of_gradients(factor) for factor, steps in squares for step in steps}
        squared = self.flow.after(marks, again=False)
        norms = [step for step in self.flow.steps if data_flow.collected(step) and squared.get(step, 0) == self.every]
        after = self.flow.after(dict.fromkeys(norms, 1), again=False)
        with_gradients = (weight for weight, bit in self.provenance.weights.items() if self.every >> bit & 1)
        return all(after.get(self.updates[weight], 0) for weight in with_gradients)

    def _of_gradients(self, source: Source) -> int:
        """Bits of the weights whose gradients an array holds, scaled perhaps."""
        provenance = self.provenance

        def own(step: Source) -> int:
            if not isinstance(step, FlowStep) or step.shape.size <= 1:
                return 0
            return provenance.gradients.get(step, 0) | provenance.leading.get(step, 0)

        def before(step: Source) -> Sequence[Source]:
            if not isinstance(step, FlowStep) or step.shape.size <= 1 or own(step):
                return ()
            return data_flow.handed_on(step) if data_flow.elementwise(step) or data_flow.hands_on(step) else ()

        return reduce(int.__or__, map(own, reached([source], before)), 0)
