"""A step in which messages run during kernels: two streams, and the exposed part of the messages.

Kernels run one after the other on one stream, messages on a second one. A message waits for its inputs, and kernels
wait for its result. A loop with messages has both streams inside one trip."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from costmodel.columns import FloatArray
from costmodel.kernels.collectives import exposed_time
from costmodel.kernels.kernel_tables import total
from costmodel.machine import System
from costmodel.steps.breakdown import Breakdown
from dse.adapters.xla.analysis import Analysis
from dse.adapters.xla.steps.program import AXIS_OF, Program, ProgramCost, program_cost, program_step
from dse.adapters.xla.text.module import Instruction, parts
from dse.adapters.xla.work.kernel_graph import HloGraph


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
    """A program's kernels and messages in the order in which they start.

    Kernels run one after the other, and messages on a second stream, also one after the other. A loop is one entry
    among the kernels; one with messages has both streams to itself.
    """

    whole: LoopBody
    messages: frozenset[int]
    waiting: frozenset[int]  #: messages that block all kernels after them in the order, also non-readers
    as_written: bool  #: a message starts no earlier than the kernels before it

    def exposed(self, times: FloatArray) -> FloatArray:
        """Time of each message in which no kernel runs, (points, kernels); 0 for kernels. [s]

        `times` are those of all runs of each kernel and message, (points, kernels). [s]
        """
        exposed = np.zeros(times.shape)
        _Clock(self, times, exposed).run(self.whole)
        return exposed


def streams(analysis: Analysis, graph: HloGraph) -> Streams:
    """The order in which a program's kernels and messages start, by one of the meanings of a barrier.

    A module that is scheduled with asynchronous collectives runs in the order of its text: an asynchronous collective
    starts where the text starts it and its readers wait for it; any other blocks the kernels. In other texts messages
    start in the order of the text, each as soon as its operands are ready, and kernels that wait for no message run
    before one that does.
    """
    messages = frozenset(analysis.collectives)
    kernels = ((number, graph.kernels[number]) for number in messages)
    words = (
        (number, parts(one.instruction.opcode)[1], {parts(op.opcode) for op in one.around}) for number, one in kernels
    )
    split = frozenset(number for number, word, around in words if word == "start" or ("async", "start") in around)
    as_written = analysis.module.is_scheduled and bool(split)
    whole = _loop_bodies(graph, messages)
    for body in _nested(whole):
        body.order = list(range(len(body.nodes))) if as_written else _early_messages(body, messages)
    return Streams(whole, messages, messages - split if as_written else frozenset(), as_written)


def _nested(body: LoopBody) -> list[LoopBody]:
    """Body of a loop, and bodies of loops inside it."""
    return [body, *(inner for node in body.nodes if isinstance(node, LoopBody) for inner in _nested(node))]


def _loop_bodies(graph: HloGraph, messages: frozenset[int]) -> LoopBody:
    """Kernels by the loops around them, and the dependencies among those of a loop."""
    whole = LoopBody()
    ways: list[list[tuple[LoopBody, int]]] = []  # kernel -> its node in each body around it
    open_loops: list[tuple[tuple[Instruction, ...], LoopBody]] = []
    for index, kernel in enumerate(graph.kernels):
        outer = kernel.around
        loops = [outer[: depth + 1] for depth, instruction in enumerate(outer) if instruction.opcode == "while"]
        shared = sum(1 for loop, (known, _) in zip(loops, open_loops, strict=False) if loop == known)
        del open_loops[shared:]
        for loop in loops[shared:]:
            inner = LoopBody()
            (open_loops[-1][1] if open_loops else whole).add(inner)
            open_loops.append((loop, inner))
        around = [whole, *(body for _, body in open_loops)]
        around[-1].add(index)
        ways.append([(body, len(body.nodes) - 1) for body in around])
        for body in around:
            body.sends |= index in messages
    for producer, consumer in graph.pairs:
        for (one, first), (other, second) in zip(ways[producer], ways[consumer], strict=False):
            if one is not other:
                break
            if first != second:
                one.before[second].add(first)
                break
    return whole


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
    placed = [False] * len(body.nodes)
    order: list[int] = []
    sent = waited = 0

    def finished(node: int) -> None:
        for follower in after[node]:
            missing[follower] -= 1
            if not missing[follower] and not sends[follower]:
                heapq.heappush(ready, follower)

    while len(order) < len(body.nodes):
        while sent < len(queue) and all(placed[before] for before in body.before[queue[sent]]):
            placed[queue[sent]] = True
            order.append(queue[sent])
            sent += 1
        if ready:
            node = heapq.heappop(ready)
            placed[node] = True
            order.append(node)
            finished(node)
        elif waited < sent:
            finished(queue[waited])
            waited += 1
    return order


@dataclass(slots=True)
class _Clock:
    """Times nodes in their order, all machines at once; every array has shape (points,). [s]"""

    streams: Streams
    times: FloatArray
    exposed: FloatArray

    def run(self, body: LoopBody) -> FloatArray:
        """Time of a body; adds up the exposed time of its messages. [s]"""
        kernels = messages = np.zeros(len(self.times))  # until when each stream is taken
        done: dict[int, FloatArray] = {}
        running: list[tuple[FloatArray, int]] = []
        for number in body.order:
            node = body.nodes[number]
            ready = np.zeros(len(self.times))
            for before in body.before[number]:
                ready = np.maximum(ready, done[before])
            if isinstance(node, LoopBody):
                kernels = self._wait(kernels, np.maximum(ready, messages) if node.sends else ready, running)
                kernels = done[number] = kernels + self.run(node)
                messages = kernels if node.sends else messages
            elif node in self.streams.messages:
                start = np.maximum(ready, messages)
                start = np.maximum(start, kernels) if self.streams.as_written else start
                done[number] = messages = start + self.times[:, node]
                running.append((start, node))
                if node in self.streams.waiting:
                    kernels = self._wait(kernels, messages, running)
            else:
                kernels = done[number] = self._wait(kernels, ready, running) + self.times[:, node]
        return self._wait(kernels, messages, running)

    def _wait(self, kernels: FloatArray, until: FloatArray, running: list[tuple[FloatArray, int]]) -> FloatArray:
        """Kernels wait for messages, which are exposed while they do; when they go on."""
        until = np.maximum(kernels, until)
        open_still = []
        for start, node in running:
            end = start + self.times[:, node]
            self.exposed[:, node] += np.maximum(np.minimum(end, until) - np.maximum(start, kernels), 0.0)
            if (end > until).any():
                open_still.append((start, node))
        running[:] = open_still
        return until


@dataclass(frozen=True, slots=True, eq=False)
class ProgramTimes:
    """A step with as much overlap as a machine allows, and without; every array has shape (points,)."""

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
        return self.breakdown.mfu * (self.breakdown.step_time / self.step)

    @property
    def energy(self) -> FloatArray:
        """Energy of the step with overlap, for which chips idle less long. [J]"""
        saved = 1 - self.step / self.breakdown.step_time
        return self.breakdown.energy_per_step - saved * self.breakdown.idle_energy


def program_times(analysis: Analysis, program: Program, graph: HloGraph, system: System) -> ProgramTimes:
    """Times of a step where messages run during kernels that do not wait for them.

    As in the native model, a message that overlaps with kernels takes the cores that the system gives to its kind; a
    transfer between stages takes none.
    """
    order, cost = streams(analysis, graph), program_cost(program, system)
    breakdown = program_step(program, system)
    exposed = order.exposed(cost.time)
    kernels = total(cost.time[:, [index for index, kernel in enumerate(program.kernels) if kernel.message is None]])
    zero = np.zeros(len(cost.time))
    by_name, slowed = dict[str, FloatArray](), zero
    places_of_kind: dict[tuple[str, str], list[int]] = {}
    for index, kernel in enumerate(program.kernels):
        if kernel.message is not None:
            places_of_kind.setdefault((analysis.collectives[index].name, kernel.message.purpose), []).append(index)
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
        longest_path=zero + graph.longest_path(list(cost.time.T), np.maximum),
        as_written=order.as_written,
    )


def unknown_loops(graph: HloGraph) -> list[str]:
    """Loops that run an unknown number of times, so that all times are of one trip at least."""
    return list(dict.fromkeys(loop.name for kernel in graph.kernels for loop in kernel.uncounted))
