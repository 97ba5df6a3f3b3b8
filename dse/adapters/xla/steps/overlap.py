"""A step in which messages run during kernels: two streams, and the exposed part of the messages.

Kernels run one after the other on one stream, messages on a second one. A message waits for its inputs, and kernels
wait for its result. A loop with messages has both streams inside one trip."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from costmodel.columns import FloatArray, grouped
from costmodel.kernels.collectives import exposed_time
from costmodel.kernels.kernel_tables import total
from costmodel.machine import System
from costmodel.steps.breakdown import Breakdown
from dse.adapters.xla.analysis import Analysis
from dse.adapters.xla.steps.program import AXIS_OF, Program, ProgramCost, program_cost, program_step
from dse.adapters.xla.text.module import Instruction, parts
from dse.adapters.xla.work.kernel_graph import HloGraph, HloKernel


@dataclass(slots=True, eq=False)
class LoopBody:
    """One trip of a loop, or the program besides its loops: kernels, messages and loops in it."""

    nodes: list[int | LoopBody] = field(default_factory=list)  #: kernels by their places
    before: list[set[int]] = field(default_factory=list)  #: nodes that each waits for
    order: list[int] = field(default_factory=list)
    sends: bool = False  #: whether a message is among them

    def add(self, node: int | LoopBody) -> None:
        """Append a node that waits for none yet."""
        self.nodes.append(node)
        self.before.append(set())


@dataclass(frozen=True, slots=True, eq=False)
class Streams:
    """A program's kernels, loops and messages in the order in which they start."""

    whole: LoopBody
    messages: frozenset[int]
    waiting: frozenset[int]  #: messages that block all kernels after them in the order, also non-readers
    as_written: bool  #: a message starts no earlier than the kernels before it

    def exposed(self, times: Sequence[float]) -> list[float]:
        """Time of each message in which no kernel runs; 0 for kernels. [s]

        `times` are those of all runs of each kernel and message. [s]
        """
        exposed = [0.0] * len(times)
        self._time_of(self.whole, times, exposed)
        return exposed

    def _time_of(self, body: LoopBody, times: Sequence[float], exposed: list[float]) -> float:
        """Time of a body; adds up the exposed time of its messages. [s]"""
        kernels = messages = 0.0  # until when each stream is taken
        done: dict[int, float] = {}
        running: list[tuple[float, float, int]] = []  # messages: start, end, kernel
        for number in body.order:
            node = body.nodes[number]
            ready = max((done[before] for before in body.before[number]), default=0.0)
            if isinstance(node, LoopBody):
                kernels = _waited(kernels, max(ready, messages) if node.sends else ready, running, exposed)
                kernels = done[number] = kernels + self._time_of(node, times, exposed)
                messages = kernels if node.sends else messages
            elif node in self.messages:
                start = max(ready, messages, kernels if self.as_written else 0.0)
                done[number] = messages = start + times[node]
                running.append((start, messages, node))
                if node in self.waiting:
                    kernels = _waited(kernels, messages, running, exposed)
            else:
                kernels = done[number] = _waited(kernels, ready, running, exposed) + times[node]
        return _waited(kernels, messages, running, exposed)


def _waited(kernels: float, until: float, running: list[tuple[float, float, int]], exposed: list[float]) -> float:
    """When kernels go on that wait for messages, which are exposed while they do. [s]"""
    until = max(kernels, until)
    for start, end, node in running:
        exposed[node] += max(min(end, until) - max(start, kernels), 0.0)
    running[:] = [message for message in running if message[1] > until]
    return until


def streams(analysis: Analysis, graph: HloGraph) -> Streams:
    """The order in which a program's kernels and messages start, by one of the meanings of a barrier.

    A module that is scheduled with asynchronous collectives runs in the order of its text: an asynchronous collective
    starts where the text starts it and its readers wait for it; any other blocks the kernels. In other texts messages
    start in the order of the text, each as soon as its operands are ready, and kernels that wait for no message run
    before one that does.
    """
    messages = frozenset(analysis.collectives)
    split = frozenset(number for number in messages if _is_split(graph.kernels[number]))
    as_written = analysis.module.is_scheduled and bool(split)
    bodies = _loop_bodies(graph, messages)
    for body in bodies.values():
        body.order = list(range(len(body.nodes))) if as_written else _early_messages(body, messages)
    return Streams(bodies[()], messages, messages - split if as_written else frozenset(), as_written)


def _is_split(message: HloKernel) -> bool:
    """True if the text starts a message, and waits for it elsewhere."""
    opcodes = (message.instruction.opcode, *(caller.opcode for caller in message.around))
    return parts(opcodes[0])[1] == "start" or "async-start" in opcodes


def _loop_bodies(graph: HloGraph, messages: frozenset[int]) -> dict[tuple[Instruction, ...], LoopBody]:
    """Loop with its callers -> its kernels, and the dependencies among them; () -> those of no loop."""
    ways: list[list[tuple[LoopBody, int]]] = []  # kernel -> its node in each body around it
    bodies = {tuple[Instruction, ...](): LoopBody()}
    for index, kernel in enumerate(graph.kernels):
        around = [bodies[()]]
        for depth, instruction in enumerate(kernel.around):
            if instruction.opcode == "while":
                loop = kernel.around[: depth + 1]
                if loop not in bodies:
                    bodies[loop] = LoopBody()
                    around[-1].add(bodies[loop])
                around.append(bodies[loop])
        around[-1].add(index)
        ways.append([(body, len(body.nodes) - 1) for body in around])
        for body in around:
            body.sends |= index in messages
    for producer, consumer in graph.edges:
        for (one, first), (other, second) in zip(ways[producer], ways[consumer], strict=False):
            if one is not other:
                break
            if first != second:
                one.before[second].add(first)
                break
    return bodies


def _early_messages(body: LoopBody, messages: frozenset[int]) -> list[int]:
    """An order in which kernels that wait for messages come as late as they can, else that of the text."""
    sends = [node in messages for node in body.nodes]
    after: list[list[int]] = [[] for _ in body.nodes]
    for node, before in enumerate(body.before):
        for producer in before:
            after[producer].append(node)
    missing = [len(before) for before in body.before]
    ready = [node for node, count in enumerate(missing) if not count and not sends[node]]
    queue = [node for node, is_message in enumerate(sends) if is_message]
    placed = set[int]()
    order: list[int] = []
    sent = waited = 0

    def finished(node: int) -> None:
        for follower in after[node]:
            missing[follower] -= 1
            if not missing[follower] and not sends[follower]:
                heapq.heappush(ready, follower)

    while len(order) < len(body.nodes):
        if sent < len(queue) and placed.issuperset(body.before[queue[sent]]):
            node, sent = queue[sent], sent + 1
        elif ready:
            node = heapq.heappop(ready)
            finished(node)
        else:
            finished(queue[waited])
            waited += 1
            continue
        placed.add(node)
        order.append(node)
    return order


@dataclass(frozen=True, slots=True, eq=False)
class ProgramTimes:
    """A step with as much overlap as a machine allows, and without; every array has shape (1,)."""

    breakdown: Breakdown  #: one kernel or message after the other
    cost: ProgramCost  #: of each kernel
    step: FloatArray  #: with overlap: kernels, exposed messages, slowdown of kernels, and the host's time [s]
    kernels: FloatArray  #: only kernels [s]
    exposed: Mapping[str, FloatArray]  #: collective and its purpose -> time in which no kernel runs [s]
    slowed: FloatArray  #: that kernels lose to the cores of messages that run at the same time [s]
    longest_path: FloatArray  #: that no overlap can beat [s]
    as_written: bool  #: messages start where the text starts them

    @property
    def mfu(self) -> FloatArray:
        """Model FLOPs utilization of the step with overlap. [-]"""
        with np.errstate(invalid="ignore"):  # nan of a step that takes no time
            return self.breakdown.mfu * (self.breakdown.step_time / self.step)


def program_times(analysis: Analysis, program: Program, graph: HloGraph, system: System) -> ProgramTimes:
    """Times of a step where messages run during kernels that do not wait for them.

    As in the native model, a message that overlaps with kernels takes the cores that the system gives to its kind; a
    transfer between stages takes none.
    """
    order, cost = streams(analysis, graph), program_cost(program, system)
    breakdown = program_step(program, system)
    exposed = np.array([order.exposed(cost.time[0].tolist())])
    kernels = total(cost.time[:, [index for index, kernel in enumerate(program.kernels) if kernel.message is None]])
    zero = np.zeros(len(cost.time))
    by_name, slowed = dict[str, FloatArray](), zero
    places_of_kind = grouped(
        ((analysis.collectives[index].name, kernel.message.purpose), index)
        for index, kernel in enumerate(program.kernels)
        if kernel.message is not None
    )
    for (name, purpose), places in places_of_kind.items():
        whole, alone = total(cost.time[:, places]), total(exposed[:, places])
        by_name[f"{name}, {purpose}"] = alone
        axis = AXIS_OF[purpose]
        if axis != "pp":
            slowed = slowed + exposed_time(whole, whole - alone, system.chip, axis) - alone
    return ProgramTimes(
        breakdown=breakdown,
        cost=cost,
        step=kernels + sum(by_name.values(), zero) + slowed + breakdown.host_time,
        kernels=kernels,
        exposed=by_name,
        slowed=slowed,
        longest_path=zero + graph.longest_path(cost.time[0].tolist()),
        as_written=order.as_written,
    )
