"""Messages between devices: the arrays that each kernel sends, in which groups, and the purpose.

The purpose of a message follows from the data that it carries (weights, gradients, activations) and from the axis of
the mesh that its device groups span. Messages over one axis vote, by bytes, on the meaning of the axis."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Literal, get_args

from costmodel.formats.input_files import data_beside
from dse.adapters.xla.text.module import (
    COLLECTIVES,
    GroupPlacement,
    Groups,
    Instruction,
    connected,
    groups_of,
    output_shape,
    parts,
    pieces,
    placement,
    reach,
)
from dse.adapters.xla.training.data_flow import Flow, FlowStep, Source, collected, multiplies, picks
from dse.adapters.xla.training.provenance import INPUT, Provenance
from dse.adapters.xla.work.kernel_graph import HloGraph

Purpose = Literal[
    "data parallel", "fully sharded", "tensor parallel", "sequence parallel", "context parallel",
    "expert parallel", "pipeline parallel", "input", "scalars", "unknown",
]  # fmt: skip
PURPOSES: Final[tuple[Purpose, ...]] = get_args(Purpose)

#: Messages that pass their operands to a neighbour.
_SENDING: Final = ("collective-permute", "send")
_EXCHANGING: Final = ("all-to-all", "ragged-all-to-all")
_TABLES: Final = data_beside(__file__, "tables.yaml")
#: Kind of an axis of the mesh -> purposes that its messages may have; the first where the data flow gives another.
_KINDS: Final[Mapping[str, Sequence[Purpose]]] = _TABLES["kinds"]
#: Axis of a mesh -> purposes of messages whose time counts to it.
AXES: Final[Mapping[str, Sequence[Purpose]]] = _TABLES["axes"]
Axis = frozenset[frozenset[int]]
#: Bits of steps next to others: of any, and of one without weights; and the place of the first weight.
_ANY, _WEIGHTLESS, _WEIGHTS = 1, 2, 2


@dataclass(eq=False)
class Purposes:
    """Purposes of the messages of a program."""

    provenance: Provenance
    groups: Mapping[FlowStep, Groups]  #: message -> groups of devices
    counts: Mapping[FlowStep, int]  #: message -> how often it runs [-]
    #: Devices of a group -> bits of the weights that they hold in different parts.
    _parts: dict[tuple[int, ...], int] = field(default_factory=dict)

    @cached_property
    def found(self) -> Mapping[FlowStep, Purpose]:
        """Array of a message -> its purpose.

        Data flow does not decide everything: an axis has one kind of parallelism, even if a compiler moves other data
        along it: rows with other pieces, or integers with their positions.
        """
        purposes = {message: self._by_flow(message) for message in self.groups}
        if not self.provenance.weights:
            return purposes
        axes = self._axes
        votes: dict[Axis, Counter[Purpose]] = {}
        for message, purpose in purposes.items():
            votes.setdefault(axes[message], Counter())[purpose] += self.counts[message] * message.shape.bytes
        elected = {axis: self._kind(axis, votes[axis]) for axis in votes}
        for message, purpose in purposes.items():
            kinds = [kind for axis, kind in elected.items() if _is_finer(axis, axes[message])] or [
                elected[axes[message]]
            ]
            if purpose not in ("input", "scalars") and not any(purpose in _KINDS[kind] for kind in kinds):
                is_sum = purpose == "data parallel" and kinds[0] == "tensor"
                purposes[message] = "sequence parallel" if is_sum else _KINDS[kinds[0]][0]
        return purposes

    @cached_property
    def _axes(self) -> Mapping[FlowStep, Axis]:
        """Message -> groups of an axis over all devices; the message may connect only some of them, in a part of a
        ring."""
        joined = {
            message: frozenset(group for group in connected(groups) if len(group) > 1)
            for message, groups in self.groups.items()
        }
        devices = frozenset(device for axis in joined.values() for group in axis for device in group)
        even = [axis for axis in set(joined.values()) if len(set(map(len, axis))) == 1]
        whole = sorted(
            (axis for axis in even if frozenset().union(*axis) == devices), key=lambda axis: max(map(len, axis))
        )
        return {
            message: next((coarser for coarser in whole if axis == coarser or _is_finer(axis, coarser)), axis)
            for message, axis in joined.items()
        }

    def _kind(self, axis: Axis, votes: Counter[Purpose]) -> str:
        """The purpose of an axis of the mesh.

        Devices that sum the gradients of all matrices have different data, except those that get the same sequences and
        cut them. Of those that hold parts of matrices, stages of a pipeline pass activations on, experts have different
        data too, and other devices the same data.
        """
        groups = tuple(tuple(sorted(group)) for group in axis)
        matrices = [bits for bits in self.provenance.multiplied_by if bits]
        split_matrices = [bits for bits in matrices if self._has_parts(bits, groups)]
        if not split_matrices:
            if votes["fully sharded"] and max(map(len, groups), default=1) in self._sliced:
                return "tensor"
            kind = "sharded data" if votes["fully sharded"] else "data"
            words = [array for array in self.inputs if _is_words(array)]
            return kind if not words or self._cut(words, groups, slice(-1, None)) else f"{kind} by rows"
        several = self._has_several(groups)
        passed = votes["pipeline parallel"] > votes["tensor parallel"] + votes["sequence parallel"]
        if several and passed:
            return "pipeline"
        if not self._cut(self.inputs, groups, slice(None)) if self.inputs else 2 * len(split_matrices) > len(matrices):
            return "tensor"
        return "expert" if several and self._routes else "sharded data by rows"

    @cached_property
    def _routes(self) -> bool:
        """True if the program selects the largest of scores computed from inputs and weights, as a router does."""
        marks = map(self.provenance.depends_on.get, filter(picks, self.provenance.flow.steps))
        return any(mark & INPUT and mark & self.provenance.any_weight for mark in marks if mark)

    @cached_property
    def _sliced(self) -> set[int]:
        """Into how many pieces devices cut sequences that all of them are given. [-]"""
        words = filter(_is_words, self.provenance.state.inputs)
        slices = ((word, own_slices(self.provenance, word)) for word in words)
        pairs = ((array, cut) for array, cuts in slices for cut in cuts if cut.shape.dims)
        return {-(-array.shape.dims[-1] // cut.shape.dims[-1]) for array, cut in pairs if cut.shape.size}

    @cached_property
    def inputs(self) -> list[Instruction]:
        """Inputs whose sharding is in the text."""
        return [array for array in self.provenance.state.inputs if "sharding" in array.attributes]

    @staticmethod
    def _cut(inputs: Iterable[Instruction], groups: Groups, dims: slice) -> bool:
        """True if devices of a group hold different pieces of some parameter along some dimensions."""
        first = groups[0] if groups else ()
        told = [pieces(array.attributes.get("sharding", "")) for array in inputs]
        return any(len({counts[array][dims] for array in first if array in counts}) > 1 for counts in told)

    def _has_several(self, groups: Groups) -> bool:
        """True if devices of a group hold parts of stacks of matrices, split between matrices if that is known."""
        places, weights = self.provenance.weights, self.provenance.state.weights
        several = [weight for weight in weights if len(weight.shape.dims) > 2]
        split_weights = (weight for weight in several if self._has_parts(1 << places[weight], groups))
        told = any("sharding" in weight.attributes for weight in weights)
        return any(not told or self._cut([weight], groups, slice(-2)) for weight in split_weights)

    def _by_flow(self, message: FlowStep) -> Purpose:
        """The purpose of one array of a message."""
        provenance = self.provenance
        if message.shape.size <= 1 or all(map(collected, message.reads)):
            return "scalars"
        if not provenance.weights:
            return "unknown"
        updates = message in provenance.leading or bool(provenance.after_kept.get(message, 0))
        if updates and message not in provenance.multiplied:
            scattered = any(True for _ in own_slices(provenance, message))
            return "data parallel" if message.opcode == "all-reduce" and not scattered else "fully sharded"
        if provenance.weights_in(message):
            return "fully sharded"
        marks = provenance.depends_on.get(message, 0)
        if not marks & INPUT:
            return "unknown"
        return self._of_activations(message) if marks & provenance.any_weight else "input"

    def _of_activations(self, message: FlowStep) -> Purpose:
        """The purpose of a message that carries activations or their gradients."""
        groups, near = self.groups[message], self._near.get(message, 0)
        if self._has_parts(near >> _WEIGHTS, groups):
            if moved := self._of_tokens_moved(message):
                return moved
            return "sequence parallel" if self._splits_tokens(message) else "tensor parallel"
        if self._has_parts(near >> _WEIGHTS + len(self.provenance.weights), groups):  # by rows of a table
            multiplied = filter(None, self.provenance.multiplied_by)
            shares = all(self._has_parts(bits, groups) for bits in multiplied)
            return "tensor parallel" if shares else "fully sharded"
        if near & _WEIGHTLESS and message in self._by_attention:
            return "context parallel"
        return "data parallel" if near & (_ANY | _WEIGHTLESS) == _ANY and message.opcode == "all-reduce" else "unknown"

    @cached_property
    def _near(self) -> Mapping[Source, int]:
        """Bits of meetings next to each step: any, any without weights; then weights of products, and of lookups."""
        marks = {}
        for step in self.provenance.meeting:
            bits = self.provenance.weights_of(step)
            shift = _WEIGHTS if multiplies(step) else _WEIGHTS + len(self.provenance.weights)
            marks[step] = _ANY | (_WEIGHTLESS if bits is None else bits << shift)
        return self.provenance.multiplying(marks)

    @cached_property
    def _by_attention(self) -> Collection[Source]:
        """Steps next to a product of attention (two of activations alone, an exponential between), or its neighbour."""
        provenance = self.provenance
        weightless = {step: 1 for step in provenance.meeting if provenance.weights_of(step) is None}
        softened = provenance.multiplying(weightless, softened=True)
        weighing = {step: 1 for step in weightless if softened.get(step)}
        near = provenance.multiplying(weighing)
        attending = {step: 1 for step in weightless if step in weighing or near.get(step)}
        return {source for source, bits in provenance.multiplying(attending).items() if bits}

    def _of_tokens_moved(self, message: FlowStep) -> Purpose | None:
        """The purpose of moved tokens between devices with different weights; None for gathers and sums."""
        if message.opcode in _EXCHANGING and self._routes:
            return "expert parallel"
        if message.opcode not in _SENDING:
            return None
        sent_on = any(  # the array that a device received, or a sum of products with its parts
            reader is message or (reader.opcode == message.opcode and self.groups.get(reader) == self.groups[message])
            for reader in self.provenance.later_readers(message)
        )
        return "tensor parallel" if sent_on else "pipeline parallel"

    def _has_parts(self, weights: int, groups: Groups) -> bool:
        """True if devices of a group hold different parts of some weight, so that they never sum its gradient."""
        group = next((group for group in groups if len(group) > 1), ())
        if not group:
            return False
        if group not in self._parts:
            split = (bit for bit, sets in enumerate(self._summed) if not any({*group} <= summed for summed in sets))
            self._parts[group] = sum(1 << bit for bit in split)
        return bool(weights & self._parts[group])

    @cached_property
    def _summed(self) -> list[list[frozenset[int]]]:
        """For each weight the sets of devices that sum its gradient, in one message or more."""
        sums: dict[Groups, int] = {}  # groups -> weights whose gradients they sum, as bits
        for message, group in self.groups.items():
            kept = self.provenance.after_kept.get(message, 0)
            leads = 0 if kept else self.provenance.leading.get(message, 0)  # weights whose gradients it moves, as bits
            later = self.provenance.later_readers(message) if message.opcode in _SENDING else ()
            added = any(reader.opcode == "add" for reader in later)  # as in a sum by steps
            if message.opcode in ("all-reduce", "reduce-scatter") or added:
                sums[group] = sums.get(group, 0) | leads
        return [
            connected(part for group, leads in sums.items() if leads >> bit & 1 for part in group)
            for bit in self.provenance.weights.values()
        ]

    def _splits_tokens(self, message: FlowStep) -> bool:
        """True if a message gathers or scatters along another dimension than the last, the features."""
        if message.opcode == "all-reduce":
            dims = message.shape.dims
            slices = [cut.shape.dims for cut in own_slices(self.provenance, message)]
            return any(len(sizes) == len(dims) and sizes[-1] == dims[-1] for sizes in slices)
        written = message.instruction.attributes.get("dimensions", "")
        return written.strip("{}") != str(len(message.shape.dims) - 1)


def _is_words(instruction: Instruction) -> bool:
    """True if an input consists of rows of whole numbers."""
    return instruction.shape.dtype[0] in "su" and len(instruction.shape.dims) > 1


def _is_finer(axis: Axis, other: Axis) -> bool:
    """True if each group of an axis lies within a group of another axis and is smaller."""
    return axis != other and all(any(group <= whole for whole in other) for group in axis)


def own_slices(provenance: Provenance, message: Source) -> Iterator[FlowStep]:
    """Slices of a message that are taken where the device's own number says."""

    def passes(reader: FlowStep) -> bool:
        return reader in provenance.sliced_later and not provenance.is_own_slice(reader)

    return filter(provenance.is_own_slice, provenance.later_readers(message, passes))


@dataclass(frozen=True, slots=True)
class Collective:
    """A message of a kernel, on each device of each group."""

    name: str  #: "all-reduce"
    groups: Groups
    operands: int
    payload_bytes: int  #: all operands on one device [B]
    result_bytes: int  #: [B]
    reducer: str  #: operation of its reduction; empty where it does not reduce
    payloads: tuple[tuple[Purpose, int], ...]  #: its purposes, with the bytes of the operands of each [B]

    @property
    def purpose(self) -> Purpose:
        """The purpose of most of its bytes."""
        return max(self.payloads, key=lambda payload: payload[1])[0]

    @property
    def placement(self) -> GroupPlacement:
        """Number, size and stride of its groups."""
        return placement(self.groups)

    @property
    def ring_bytes(self) -> float:
        """Bytes that one device sends where devices form a ring. [B]"""
        size = self.placement.size
        if self.name == "all-reduce":
            return 2 * (size - 1) / size * self.payload_bytes
        if self.name in ("all-gather", "reduce-scatter", "all-to-all"):
            return (size - 1) / size * max(self.payload_bytes, self.result_bytes)
        return float(self.payload_bytes)


def collectives(graph: HloGraph, flow: Flow, provenance: Provenance, devices: int) -> dict[int, Collective]:
    """Kernel -> its message, those inside fusions too.

    A compiler that hides a message during other work writes it into each kernel that it overlaps with, under one
    channel: the first of them has it. An all-reduce whose kernel cuts out the slice of each device is a reduce-scatter.
    """
    sent: dict[int, dict[Instruction, list[FlowStep]]] = {}
    first: dict[tuple[object, ...], int] = {}  # channel -> kernel
    for step in flow.steps:
        if step.opcode not in COLLECTIVES or step.kernel is None:
            continue
        fused = graph.kernels[step.kernel].instruction is not step.instruction
        channel = step.loops, step.instruction.attributes.get("channel_id", step.instruction.name)
        if first.setdefault(channel, step.kernel) == step.kernel or not fused:
            sent.setdefault(step.kernel, {}).setdefault(step.instruction, []).append(step)
    groups = {step: groups_of(step.instruction, devices) for step in flow.steps if step.opcode in COLLECTIVES}
    counts = {step: 1 if step.kernel is None else graph.kernels[step.kernel].count for step in groups}
    purposes = Purposes(provenance, groups, counts)
    return {
        kernel: _collective(max(messages.values(), key=lambda steps: steps[0].instruction.operand_bytes), purposes)
        for kernel, messages in sent.items()
    }


def _collective(steps: Sequence[FlowStep], purposes: Purposes) -> Collective:
    """Message of a kernel from the arrays that it gives, by groups and purposes."""
    instruction = steps[0].instruction
    apart = len(steps) == len(instruction.operands)
    payloads = Counter[Purpose]()
    for step in steps:
        array = instruction.operands[step.output].shape if apart else step.shape
        payloads[purposes.found[step]] += array.bytes
    name, result = parts(instruction.opcode)[0], output_shape(instruction).bytes
    slices = [[cut for cut in own_slices(purposes.provenance, step) if cut.kernel == step.kernel] for step in steps]
    if name == "all-reduce" and all(slices):
        name, result = ("reduce-scatter", sum(cut.shape.bytes for cuts in slices for cut in cuts[:1]))
    return Collective(
        name=name,
        groups=purposes.groups[steps[0]],
        operands=len(instruction.operands),
        payload_bytes=instruction.operand_bytes,
        result_bytes=result,
        reducer=instruction.called[0].root.opcode if instruction.called else "",
        payloads=tuple(payloads.items()),
    )


def mesh_axes(messages: Mapping[int, Collective], devices: int) -> dict[str, int]:
    """Sizes of the axes of the mesh of devices, as far as messages show them. [-]

    Gradients are summed over replicas, and where sequences are cut over the pieces too. Where none are, the
    devices that the other axes leave tell of replicas only if there are none.
    """
    axes: dict[str, int] = {}
    for axis, purposes in AXES.items():
        sizes = Counter[int]()
        for message in messages.values():
            if message.purpose in purposes and axis != "dp":
                sizes[reach(message.groups)] += message.payload_bytes
        sizes.pop(1, None)
        if sizes:
            axes[axis] = sizes.most_common(1)[0][0]
    summing = [message for message in messages.values() if message.name in ("all-reduce", "reduce-scatter")]
    gradients = [message for message in summing if message.purpose in ("data parallel", "fully sharded")]
    shared = reach(group for message in gradients for group in message.groups)
    taken = axes.get("tp", 1) * axes.get("pp", 1) * axes.get("cp", 1)
    if shared > 1 and not shared % axes.get("cp", 1):
        axes["dp"] = min(shared // axes.get("cp", 1), devices // taken)
    elif taken == devices:
        axes["dp"] = 1
    return axes
