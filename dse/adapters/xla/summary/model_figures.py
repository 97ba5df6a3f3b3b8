"""The model that a program trains, as far as names, inputs, weights, loops and device groups tell.

Weights of layers show hidden size and MLP width, products with square outputs show attention, a table shows the
vocabulary, and trips of loops show the number of layers. A figure that the text does not determine is left out."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from functools import reduce
from itertools import groupby
from math import prod
from typing import Final

from dse.adapters.xla.analysis import Analysis
from dse.adapters.xla.text.module import Instruction, reached
from dse.adapters.xla.training.data_flow import CARRIED, FlowStep, Source, elementwise, hands_on, multiplies
from dse.adapters.xla.training.provenance import global_dims, numbers
from dse.adapters.xla.work.kernel_graph import trip_counts


def scanned_layers(analysis: Analysis) -> int | None:
    """Layers of the model, where all lie in loops; None where the text does not tell. [-]

    A loop over layers slices weights that have as many rows as it has trips, at places that only its counter
    decides, and products with these slices make what the next trip multiplies: loops over experts or parts of
    a vocabulary hand nothing on. Loops with weights in common, as those of both passes, go through the same
    layers. Stages of a pipeline have as many each. Where as many matrices lie outside as one layer has, there
    may be further layers, and no number is given.
    """
    slices, trips = _slices(analysis), _trips_of_bodies(analysis)
    bodies = [
        (trips[body], bits)
        for body, slices_of_body in slices.items()
        if _hands_on(analysis, body, set(slices_of_body)) and (bits := _union(slices_of_body.values()))
    ]
    groups = list[tuple[int, int]]()
    for count, bits in bodies:
        shared = [group for group in groups if group[1] & bits]
        if any(group[0] != count for group in shared):
            return None
        groups = [group for group in groups if group not in shared]
        groups.append((count, bits | _union(group_bits for _, group_bits in shared)))
    matrices = _union(analysis.provenance.multiplied_by)
    fewest = min(((matrices & group_bits).bit_count() for _, group_bits in groups), default=0)
    if (matrices & ~_union(group_bits for _, group_bits in groups)).bit_count() >= fewest:
        return None
    return sum(count for count, _ in groups) * analysis.axes.get("pp", 1)


def _union(sets: Iterable[int]) -> int:
    return reduce(int.__or__, sets, 0)


def _trips_of_bodies(analysis: Analysis) -> dict[tuple[str, ...], int]:
    """Bodies of loops, by the loops around them -> trips; those of unknown number are left out. [-]"""
    trips = trip_counts(analysis.module)
    carried = (step for step in analysis.flow.steps if step.opcode == CARRIED)
    return {step.body: count for step in carried if (count := trips[step.instruction])}


def _slices(analysis: Analysis) -> dict[tuple[str, ...], dict[FlowStep, int]]:
    """Bodies of loops -> what takes the trip's own part of one weight, with the weight's bit."""
    trips, provenance = _trips_of_bodies(analysis), analysis.provenance
    rows = {1 << provenance.weights[int(weight.argument)]: _rows(weight) for weight in analysis.state.weights}
    slices: dict[tuple[str, ...], dict[FlowStep, int]] = {}
    for step in analysis.flow.steps:
        if step.opcode != "dynamic-slice" or not step.shape.dims or step.loops not in trips:
            continue
        (stack, first), bits = step.reads[:2], provenance.weights_in(step.reads[0])
        whole = step.instruction.operands[0].shape.dims
        is_row = whole == (trips[step.loops], *step.shape.dims[1:]) and step.shape.dims[0] == 1
        counted = isinstance(first, FlowStep) and not provenance.made_of.get(first, 0)
        if stack is not None and is_row and counted and rows.get(bits) == whole[0]:
            slices.setdefault(step.loops, {})[step] = bits
    return slices


def _rows(weight: Instruction) -> int:
    """Rows of a stack of weights, on a stage of a pipeline perhaps, of which each device holds one. [-]"""
    return next((dim for dim in weight.shape.dims if dim > 1), 0)


def _hands_on(analysis: Analysis, body: tuple[str, ...], slices: Set[FlowStep]) -> bool:
    """True if the next trip multiplies the result of this trip's products with slices of weights."""
    flow = analysis.flow
    carried = [step for step in flow.steps if step.opcode == CARRIED and step.body == body and len(step.reads) > 1]
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


Figures = dict[str, int | float | str]

_LAYER: Final = re.compile(r"(?:layers?|blocks?|\bh)[/_.](\d+)")


def model_figures(analysis: Analysis) -> Figures:
    """The model, its number formats, its batch and the mesh of devices; what does not show is left out."""
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
        figures["batch.inputs"] = inputs_text(analysis.state.inputs)
    figures |= mesh_figures(analysis) | gradient_figures(analysis)
    tokens, given = step_tokens(analysis), given_tokens(analysis)
    if given:
        figures["model.micro_batch_per_dp_replica"] = given[0]
    if tokens:
        figures |= {"model.sequence": tokens[1], "model.global_batch": tokens[0]}
    if given and "tp" in analysis.axes:
        figures.update(transformer_figures(analysis, given[0], analysis.axes["tp"]))
    if "model.layers" not in figures and (layers := scanned_layers(analysis)):
        figures["model.layers"] = layers
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
            if not cut and reader.shape.dtype in _TOKENS and (hands_on(reader) or elementwise(reader)):
                yield reader
            else:
                lengths.add(cut[0] if cut else length)

    start: Source = int(words.argument)
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
    """Axes of the mesh of devices by what they are for; an axis whose devices are unknown is left out."""
    axes = {name: analysis.axes[name] for name in ("dp", "pp", "cp", "tp", "ep") if name in analysis.axes}
    figures: Figures = {f"mesh.{name}": size for name, size in axes.items()}
    across = [name for name in axes if name != "ep"]  # experts lie across the others
    if len(across) > 1 and prod(axes[name] for name in across) == analysis.devices:
        figures["mesh.shape"] = f"{'x'.join(str(axes[name]) for name in across)} ({','.join(across)})"
    return figures


def inputs_text(inputs: Sequence[Instruction]) -> str:
    """Parameter numbers of the inputs, with their shapes."""
    runs = [(shape, list(run)) for shape, run in groupby(inputs, key=lambda entry: str(entry.shape))]
    return ", ".join(f"{numbers(run)} {shape}" for shape, run in runs)


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

    Scores are the batched products with square outputs; a matrix that layers have comes as often as they do,
    and a table once more.
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
