"""Time of a step in which messages run beside kernels, and what of the messages is exposed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from costmodel.columns import FloatArray
from costmodel.hlo.analysis import Analysis
from costmodel.hlo.graph import HloGraph
from costmodel.hlo.program import Message, Program
from costmodel.hlo.step import AXES, ProgramCost, program_cost, program_step
from costmodel.hlo.streams import streams
from costmodel.kernels.collectives import exposed_time
from costmodel.machine.system import System
from costmodel.steps.breakdown import Breakdown
from costmodel.workload.kernels import total


@dataclass(frozen=True, slots=True, eq=False)
class ProgramTimes:
    """A step with as much overlap as a machine allows, and without; every array has shape (points,)."""

    breakdown: Breakdown  #: one kernel or message after the other
    cost: ProgramCost  #: of each kernel
    step: FloatArray  #: with overlap: kernels, what is exposed and slowed, and the host's [s]
    kernels: FloatArray  #: of them alone [s]
    exposed: Mapping[str, FloatArray]  #: collective and what it is for -> time in which no kernel runs [s]
    slowed: FloatArray  #: that kernels lose to the cores that messages beside them take [s]
    longest_path: FloatArray  #: that no overlap can beat [s]
    as_written: bool  #: messages start where the text starts them

    @property
    def all_exposed(self) -> FloatArray:
        """Time in which messages run and no kernel does. [s]"""
        return sum(self.exposed.values(), np.zeros(self.step.shape))

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
    """Times of a step where messages run beside kernels that do not wait for them.

    Parameters
    ----------
    analysis : Analysis
        Of the module.
    program : Program
        What one device runs, kernel by kernel as `graph` has them.
    graph : HloGraph
        What waits for what.
    system : System
        The machine; each quantity holds one value, or one per point.

    Notes
    -----
    As in the native model, a message beside kernels takes the cores from them that the system gives to its
    kind; a transfer between stages takes none.
    """
    order, cost = streams(analysis, graph), program_cost(program, system)
    breakdown = program_step(program, system)
    exposed = order.exposed(cost.time)
    messages = [kernel.message for kernel in program.kernels]
    kernels = total(cost.time[:, [place for place, message in enumerate(messages) if message is None]])
    zero = np.zeros(len(cost.time))
    by_name, slowed = dict[str, FloatArray](), zero
    names = {place: each.name for place, each in analysis.collectives.items()}
    for name, purpose, places in _kinds(messages, names):
        whole, alone = total(cost.time[:, places]), total(exposed[:, places])
        by_name[f"{name}, {purpose}"] = alone
        axis = AXES[purpose]
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


def _kinds(
    messages: Sequence[Message | None], names: Mapping[int, str]
) -> Iterator[tuple[str, str, list[int]]]:
    """Messages by their collective and what they are for."""
    found: dict[tuple[str, str], list[int]] = {}
    for place, message in enumerate(messages):
        if message is not None:
            found.setdefault((names[place], message.purpose), []).append(place)
    for (name, purpose), places in found.items():
        yield name, purpose, places


def unknown_loops(graph: HloGraph) -> list[str]:
    """Loops that run an unknown number of times, so that all times are of one turn at least."""
    return list(dict.fromkeys(loop.name for kernel in graph.kernels for loop in kernel.uncounted))
