"""Training steps as the installed JAX compiles them: memory as XLA assigns it, and bounds of their time."""

import pytest

from costmodel import load_system
from dse.adapters.xla import hlo
from dse.adapters.xla.steps.overlap import program_times
from tests.adapters.xla.test_hlo_overlap import bounds_hold
from tests.support.compiled_programs import Step, compiled

SHARDED = Step(mesh=(("fsdp", 4), ("tensor", 2)), layers=3, accumulate=2)
STEPS = {
    "loops, recomputed": Step(layers=4, dtype="bfloat16", remat=True),
    "unrolled, not donated": Step(layers=2, scan=False, optimizer="momentum", donate=False),
    "sharded": SHARDED,
}


@pytest.mark.parametrize("name", STEPS)
def test_memory_is_that_of_xlas_assignment(name):
    """Argument + output - alias + temporary bytes of memory_analysis(), within 10 %."""
    found = compiled(STEPS[name])
    told = found.memory
    whole = told.argument_size_in_bytes + told.output_size_in_bytes - told.alias_size_in_bytes
    _, held = hlo.memory(found.analysis)
    assert held.arguments == told.argument_size_in_bytes
    ours = held.arguments + held.results + held.temporaries
    assert ours == pytest.approx(whole + told.temp_size_in_bytes, rel=0.1)


def test_a_compiled_step_lies_between_its_bounds():
    analysis = compiled(SHARDED).analysis
    system = load_system("h100_80g_dgx")
    found = program_times(analysis, hlo.program(analysis), analysis.barrier_graph, system)
    bounds_hold(found)
    assert 0 < sum(found.exposed.values())[0] < found.breakdown.step_time[0] - found.kernels[0]
