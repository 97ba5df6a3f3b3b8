"""Messages between devices: what each kernel sends, in which groups, and what for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from costmodel.hlo.flow import Flow, FlowStep
from costmodel.hlo.graph import HloGraph, output_shape
from costmodel.hlo.groups import GroupPlacement, Groups, connected, groups_of, placement
from costmodel.hlo.module import Instruction
from costmodel.hlo.opcodes import COLLECTIVES, parts
from costmodel.hlo.provenance import Provenance
from costmodel.hlo.purposes import Purpose, Purposes, own_slices


@dataclass(frozen=True, slots=True)
class Collective:
    """A message of a kernel, on each device of each group."""

    name: str  #: "all-reduce"
    groups: Groups
    operands: int
    payload_bytes: int  #: all operands on one device [B]
    result_bytes: int  #: [B]
    reducer: str  #: what it reduces by; empty where it does not
    payloads: tuple[tuple[Purpose, int], ...]  #: what it is for, with the bytes of its operands that are [B]

    @property
    def purpose(self) -> Purpose:
        """What most of it is for."""
        return max(self.payloads, key=lambda each: each[1])[0]

    @property
    def placement(self) -> GroupPlacement:
        """Where its groups lie."""
        return placement(self.groups)

    @property
    def ring_bytes(self) -> float:
        """What one device sends, where devices form a ring. [B]"""
        size = self.placement.size
        if self.name == "all-reduce":
            return 2 * (size - 1) / size * self.payload_bytes
        if self.name in ("all-gather", "reduce-scatter", "all-to-all"):
            return (size - 1) / size * max(self.payload_bytes, self.result_bytes)
        return float(self.payload_bytes)


def collectives(graph: HloGraph, flow: Flow, provenance: Provenance, devices: int) -> dict[int, Collective]:
    """Kernel -> its message, those inside fusions too.

    A compiler that hides a message behind other work writes it into each kernel that it runs beside, under
    one channel: the first of them has it. An all-reduce of which the same kernel cuts out each device's own
    slice is a reduce-scatter.

    Raises
    ------
    DseError
        If the text names groups in no known way.
    """
    sent: dict[int, dict[Instruction, list[FlowStep]]] = {}
    begun = set[tuple[object, ...]]()
    for step in flow.steps:
        if step.opcode not in COLLECTIVES or step.kernel is None:
            continue
        fused = graph.kernels[step.kernel].instruction is not step.instruction
        channel = step.loops, step.instruction.attributes.get("channel_id", step.instruction.name)
        if step.output == 0 and not (fused and channel in begun):
            sent.setdefault(step.kernel, {})[step.instruction] = []
        begun.add(channel)
        if step.instruction in sent.get(step.kernel, {}):
            sent[step.kernel][step.instruction].append(step)
    groups = {step: groups_of(step.instruction, devices) for step in flow.steps if step.opcode in COLLECTIVES}
    purposes = Purposes(provenance, groups).found
    found = {}
    for kernel, instructions in sent.items():
        each = max(instructions, key=lambda each: each.operand_bytes)
        found[kernel] = _collective(each, instructions[each], groups, purposes, provenance)
    return found


def _collective(
    instruction: Instruction,
    steps: Sequence[FlowStep],
    groups: Mapping[FlowStep, Groups],
    purposes: Mapping[FlowStep, Purpose],
    provenance: Provenance,
) -> Collective:
    """One message."""
    apart = len(steps) == len(instruction.operands)
    payloads: dict[Purpose, int] = {}
    for step in steps:
        array = instruction.operands[step.output].shape if apart else step.shape
        payloads[purposes[step]] = payloads.get(purposes[step], 0) + array.bytes
    name, result = parts(instruction.opcode)[0], output_shape(instruction).bytes
    slices = [[each for each in own_slices(provenance, step) if each.kernel == step.kernel] for step in steps]
    if name == "all-reduce" and all(slices):
        name, result = "reduce-scatter", sum(each.shape.bytes for own in slices for each in own[:1])
    return Collective(
        name=name,
        groups=groups[steps[0]],
        operands=len(instruction.operands),
        payload_bytes=instruction.operand_bytes,
        result_bytes=result,
        reducer=instruction.called[0].root.opcode if instruction.called else "",
        payloads=tuple(payloads.items()),
    )


_SUMMING: Final = ("all-reduce", "reduce-scatter")
#: Axis of a mesh -> what messages along it are for.
_AXES: Final[Mapping[str, tuple[Purpose, ...]]] = {
    "tp": ("tensor parallel", "sequence parallel"),
    "cp": ("context parallel",),
    "ep": ("expert parallel",),
    "pp": ("pipeline parallel",),
}


def mesh_axes(messages: Mapping[int, Collective], devices: int) -> dict[str, int]:
    """Sizes of the axes of the mesh of devices, as far as messages show them. [-]

    Gradients are summed over replicas, and where sequences are cut over the pieces too. Where none are, the
    devices that the other axes leave tell of replicas only if there are none.
    """
    found: dict[str, int] = {}
    for axis, purposes in _AXES.items():
        sizes = _sizes([each for each in messages.values() if each.purpose in purposes])
        if sizes:
            found[axis] = max(sizes, key=lambda size: sizes[size])
    summing = [
        each
        for each in messages.values()
        if each.purpose in ("data parallel", "fully sharded") and each.name in _SUMMING
    ]
    joined = connected(group for each in summing for group in each.groups)
    shared = max(map(len, joined), default=1)
    taken = found.get("tp", 1) * found.get("pp", 1) * found.get("cp", 1)
    if shared > 1 and not shared % found.get("cp", 1):
        found["dp"] = shared // found.get("cp", 1)
    elif taken == devices:
        found["dp"] = 1
    return found


def _sizes(messages: Sequence[Collective]) -> dict[int, int]:
    """Devices that messages connect -> bytes of such messages."""
    sizes: dict[int, int] = {}
    for each in messages:
        size = max(map(len, connected(each.groups)), default=1)
        if size > 1:
            sizes[size] = sizes.get(size, 0) + each.payload_bytes
    return sizes
