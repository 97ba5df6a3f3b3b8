"""A module with everything that is found out about it once: kernels with their work, collectives, state."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

from costmodel.errors import DseError
from dse.adapters.xla.buffers.eager_order import eager_order
from dse.adapters.xla.buffers.liveness import Liveness, aliased_outputs, liveness
from dse.adapters.xla.buffers.reserved_memory import Reserved, needed, reserved
from dse.adapters.xla.text.module import Computation, Instruction, Module, declared_devices, normalised, reach
from dse.adapters.xla.training.data_flow import Flow, flow
from dse.adapters.xla.training.messages import Collective, collectives, mesh_axes
from dse.adapters.xla.training.provenance import Phase, Provenance, TrainingState, phases, training_state
from dse.adapters.xla.work.cost_analysis import Access, Work, access, work_of
from dse.adapters.xla.work.kernel_graph import HloGraph, graph


class Analysis:
    """Cost of a module, independent of any machine."""

    def __init__(self, module: Module) -> None:
        self.module = module

    @cached_property
    def graph(self) -> HloGraph:
        """Kernels in pure data flow."""
        return graph(self.module)

    @cached_property
    def barrier_graph(self) -> HloGraph:
        """Kernels where barriers hold back each element until all are there."""
        return replace(self.graph, edges=self.graph.edges | self.graph.held)

    def of(self, barriers: str) -> HloGraph:
        """The graph by one of the meanings of a barrier."""
        return self.graph if barriers == "element" else self.barrier_graph

    @cached_property
    def work(self) -> list[Work]:
        """Work of one run of each kernel, besides matrix products."""
        bodies: dict[Computation, Work] = {}
        return [work_of(kernel.instruction, bodies) for kernel in self.graph.kernels]

    @cached_property
    def access(self) -> list[Access]:
        """Bytes that one run of each kernel reads and writes."""
        return [access(kernel.instruction) for kernel in self.graph.kernels]

    @cached_property
    def phases(self) -> list[Phase]:
        """Pass of the training step that each kernel is of."""
        return phases(self.graph, self.provenance)

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
    def lifetimes(self) -> Liveness:
        """When arrays live in the order of the schedule; of the text, or one that frees memory as soon as it can."""
        return self.as_written if self.module.is_scheduled else self.freed_early

    @cached_property
    def memory(self) -> tuple[str, Reserved]:
        """Memory of one device, and the order of the instructions that it belongs to.

        A module that says that it is scheduled runs in the order of its text. For others that order is only one
        in which they can run; a scheduler has yet to choose, and is taken to free memory as soon as it can.
        """
        if self.module.is_scheduled:
            given = (leaf for parameter in self.module.entry.parameters for leaf in parameter.shape.leaves())
            kernels = len(self.graph.kernels) if any("T(" in leaf.layout for leaf in given) else 0
            return "the text's order, which is its schedule", reserved(self.lifetimes, tpu_kernels=kernels)
        return "what frees memory first; the text is not scheduled", needed(self.lifetimes)

    @cached_property
    def flow(self) -> Flow:
        """Data flow: the uses of each array."""
        return flow(self.module, self.graph)

    @cached_property
    def state(self) -> TrainingState:
        """Weights, optimizer states and inputs among the parameters."""
        return training_state(self.module, self.flow)

    @cached_property
    def provenance(self) -> Provenance:
        """Provenance: the inputs that each array depends on, and its purpose."""
        return Provenance(self.flow, self.state)

    @cached_property
    def collectives(self) -> dict[int, Collective]:
        """Place of a kernel -> the message between devices that it is."""
        return collectives(self.graph, self.flow, self.provenance, self.devices)

    @cached_property
    def pipelines(self) -> dict[Instruction, tuple[int, int]]:
        """Loop that passes activations to the next stage -> its ticks, and those that a stage waits. [-]

        A stage waits one tick for each stage before it; the first ends that much before the last.
        """
        pipelines = dict[Instruction, tuple[int, int]]()
        for kernel_number, message in self.collectives.items():
            loops = [loop for loop in self.graph.kernels[kernel_number].around if loop.opcode == "while"]
            ticks = self.graph.trips[loops[-1]] if loops and message.purpose == "pipeline parallel" else None
            waits = reach(message.groups) - 1
            if message.name == "collective-permute" and ticks and ticks > waits:
                pipelines[loops[-1]] = ticks, max(waits, pipelines.get(loops[-1], (0, 0))[1])
        return pipelines

    @cached_property
    def devices(self) -> int:
        """Devices that run the program: by its header, and by the groups that it names. [-]

        Raises `DseError` if a group names a device that the header does not count.
        """
        counted = declared_devices(self.module.attributes)
        keys = ("replica_groups", "source_target_pairs")
        written = {instruction.attributes.get(key) for instruction in self.module.instructions for key in keys}
        try:
            lists = [normalised(text) for text in written if text]
        except (ValueError, IndexError, ZeroDivisionError):
            return counted  # the kernel that has it is named when its groups are asked for
        named = 1 + max((device for groups in lists for group in groups for device in group), default=0)
        if 1 < counted < named:
            raise DseError(f"{self.module.name}: a group names device {named - 1} of {counted}")
        return max(counted, named)

    @cached_property
    def axes(self) -> dict[str, int]:
        """Sizes of the axes of the mesh of devices that messages show: "dp", "tp", "cp", "ep", "pp". [-]"""
        return mesh_axes(self.collectives, self.devices)
