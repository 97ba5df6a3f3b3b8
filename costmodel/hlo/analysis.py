"""A module with everything that is found out about it once: kernels with their work, collectives, state."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod

from costmodel.errors import DseError
from costmodel.hlo.eager_order import eager_order
from costmodel.hlo.graph import HloGraph, HloKernel, graph, output_shape
from costmodel.hlo.groups import GroupPlacement, Groups, groups_of, normalised, placement
from costmodel.hlo.liveness import Liveness, aliased_outputs, liveness
from costmodel.hlo.module import Computation, Instruction, Module
from costmodel.hlo.opcodes import parts
from costmodel.hlo.phases import Phase, phases
from costmodel.hlo.state import TrainingState, training_state
from costmodel.hlo.work import Access, Work, Workload, access


@dataclass(frozen=True, slots=True)
class Collective:
    """A message of a kernel, on each device of each group."""

    name: str  #: "all-reduce"
    groups: Groups
    operands: int
    payload_bytes: int  #: all operands on one device [B]
    result_bytes: int  #: [B]
    reducer: str  #: what it reduces by; empty where it does not

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


class Analysis:
    """What a module costs, apart from any machine."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._workload = Workload()

    @cached_property
    def graph(self) -> HloGraph:
        """Kernels in pure data flow."""
        return graph(self.module)

    @cached_property
    def barrier_graph(self) -> HloGraph:
        """The same kernels, where barriers hold back each element until all are there."""
        return graph(self.module, "barrier")

    def of(self, barriers: str) -> HloGraph:
        """The graph by one of the meanings of a barrier."""
        return self.graph if barriers == "element" else self.barrier_graph

    @cached_property
    def work(self) -> list[Work]:
        """Of one run of each kernel, besides matrix products."""
        return [self._workload.of(kernel.instruction) for kernel in self.graph.kernels]

    @cached_property
    def access(self) -> list[Access]:
        """Of one run of each kernel."""
        return [access(kernel.instruction) for kernel in self.graph.kernels]

    @cached_property
    def phases(self) -> list[Phase]:
        """Of each kernel."""
        return phases(self.graph)

    @cached_property
    def as_written(self) -> Liveness:
        """When arrays live in the order of the text."""
        return liveness(self.module, lambda computation: computation.instructions)

    @cached_property
    def freed_early(self) -> Liveness:
        """When arrays live in an order that frees memory as soon as it can."""
        given = frozenset(aliased_outputs(self.module))

        def order(computation: Computation) -> list[Instruction]:
            return eager_order(computation, given if computation is self.module.entry else frozenset())

        return liveness(self.module, order)

    @cached_property
    def state(self) -> TrainingState:
        """Weights and optimizer states."""
        return training_state(self.module, self.graph)

    @cached_property
    def collectives(self) -> dict[int, Collective]:
        """Kernel -> its message."""
        found = enumerate(self.graph.kernels)
        return {place: self._collective(kernel) for place, kernel in found if kernel.kind == "collective"}

    def _collective(self, kernel: HloKernel) -> Collective:
        instruction = kernel.instruction
        return Collective(
            name=parts(instruction.opcode)[0],
            groups=groups_of(instruction, self.devices),
            operands=len(instruction.operands),
            payload_bytes=instruction.operand_bytes,
            result_bytes=output_shape(instruction).bytes,
            reducer=instruction.called[0].root.opcode if instruction.called else "",
        )

    @cached_property
    def devices(self) -> int:
        """Devices that run the program: by its header, and by the groups that it names. [-]

        Raises
        ------
        DseError
            If a group names a device that the header does not count.
        """
        header = [self.module.attributes.get(key, "1") for key in ("replica_count", "num_partitions")]
        counted = prod(int(number) for number in header if number.isdecimal())
        written = {each.instruction.attributes.get("replica_groups", "") for each in self.graph.kernels}
        written |= {each.attributes.get("replica_groups", "") for each in self.module.entry.instructions}
        try:
            lists = [normalised(text) for text in written if text]
        except (ValueError, IndexError, ZeroDivisionError):
            return counted  # the kernel that has it is named when its groups are asked for
        named = 1 + max((device for groups in lists for group in groups for device in group), default=0)
        if 1 < counted < named:
            raise DseError(f"{self.module.name}: a group names device {named - 1} of {counted}")
        return max(counted, named)

    @cached_property
    def mesh(self) -> tuple[int, int] | None:
        """Replicas, and neighbours that share a model, where the groups of devices show both. [-]"""
        placed = [collective.placement for collective in self.collectives.values()]
        inner = {each.size for each in placed if each.size > 1 and each.stride == 1}
        for size in inner:
            outer = {each.size for each in placed if each.size > 1 and each.stride == size}
            if self.devices // size in outer:
                return self.devices // size, size
        return None
