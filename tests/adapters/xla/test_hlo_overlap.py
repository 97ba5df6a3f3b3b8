"""Messages beside kernels: what is exposed, and between which bounds a step lies."""

import re
from dataclasses import replace

import pytest

from costmodel import load_system
from costmodel.formats.shipped import ROOT
from dse.adapters.xla import hlo
from dse.adapters.xla.steps.overlap import ProgramTimes, program_times, streams
from dse.adapters.xla.work.kernel_graph import BARRIERS
from tests.support.cases import cases
from tests.support.commands import json_of, stderr_of, stdout_of
from tests.support.hlo_texts import DATA, GPT, LOOP, OLD_PRINTER, TRANSFORMER, analysed, program

TEXTS = {"old": OLD_PRINTER, "loop": LOOP, "transformer": TRANSFORMER, "gpt": GPT}
SUM = "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT s = f32[] add(a, b) }\n"
ALL = "replica_groups={{0,1,2,3}}, to_apply=sum"
#: Computations of a loop that sums a row while it changes it.
TURN = cases(__file__, "TURN")


def timed(text: str, **times: float) -> tuple[float, dict[str, float]]:
    """A step in which kernels and messages take what is given, and what is exposed of each message."""
    analysis = analysed(text)
    graph = analysis.barrier_graph
    names = [kernel.name.rpartition("/")[2] for kernel in graph.kernels]
    given = [times.get(name, 0.0) for name in names]
    order = streams(analysis, graph)
    exposed = order.exposed(given)
    kernels = sum(given[index] for index in range(len(names)) if index not in order.messages)
    return kernels + sum(exposed), {names[index]: exposed[index] for index in order.messages}


def test_a_message_hides_behind_kernels_that_do_not_wait_for_it():
    """Of 5 s, 3 pass beside `other`, which is written after what waits for the sum."""
    body = "  x = f32[9] parameter(0)\n  made = f32[9] sine(x)\n"
    body += f"  summed = f32[9] all-reduce(made), {ALL}\n  used = f32[9] cosine(summed)\n"
    body += "  other = f32[9] tanh(x)\n  ROOT y = f32[9] add(used, other)"
    times = {"made": 1.0, "summed": 5.0, "used": 2.0, "other": 3.0, "y": 1.0}
    assert timed(program(body, before=SUM), **times) == (9.0, {"summed": 2.0})


def test_an_asynchronous_message_runs_where_the_schedule_puts_it():
    """Started after `late`, it has 1 s beside it; a message in one piece holds up the kernels."""
    body = "  x = f32[9] parameter(0)\n  late = f32[9] sine(x)\n"
    body += f"  begun = f32[9] all-reduce-start(x), {ALL}\n  beside = f32[9] tanh(x)\n"
    body += "  done = f32[9] all-reduce-done(begun)\n  used = f32[9] cosine(done)\n"
    body += f"  whole = f32[9] all-reduce(x), {ALL}\n  last = f32[9] abs(x)\n"
    body += "  ROOT y = (f32[9], f32[9], f32[9], f32[9], f32[9]) tuple(late, beside, used, whole, last)"
    text = program(body, before=SUM, header=", is_scheduled=true")
    times = {"late": 2.0, "begun": 4.0, "beside": 1.0, "used": 1.0, "whole": 3.0, "last": 5.0}
    assert timed(text, **times) == (2 + 4 + 1 + 3 + 5, {"begun": 3.0, "whole": 3.0})
    assert timed(text.replace(", is_scheduled=true", ""), **times) == (9.0, {"begun": 0.0, "whole": 0.0})


def test_a_loop_with_messages_has_both_streams_to_itself():
    """Ten turns of 1 s beside 2 s: in each 1 s is exposed, and none of it behind what stands outside."""
    body = "  x = f32[9] parameter(0)\n  z = s32[] constant(0)\n  t = (s32[], f32[9]) tuple(z, x)\n"
    body += "  w = (s32[], f32[9]) while(t), condition=more, body=turn, "
    body += 'backend_config={"known_trip_count":{"n":"10"}}\n'
    body += "  o = f32[9] get-tuple-element(w), index=1\n  out = f32[9] cosine(x)\n"
    body += "  ROOT y = f32[9] add(o, out)"
    times = {"m": 20.0, "k": 10.0, "out": 7.0}  # of all turns
    assert timed(program(body, before=SUM + TURN), **times) == (27.0, {"m": 10.0})


def bounds_hold(times: ProgramTimes) -> None:
    """Longest path, step and sum in this order, and the parts of the step add up."""
    slack = 1 + 1e-12
    assert (times.longest_path <= times.step * slack).all()
    assert (times.step <= times.breakdown.step_time * slack).all()
    parts = times.kernels + sum(times.exposed.values()) + times.slowed + times.breakdown.host_time
    assert parts == pytest.approx(times.step)
    assert (times.slowed >= 0).all()


@pytest.mark.parametrize("name", TEXTS)
def test_a_step_lies_between_the_longest_path_and_the_sum(name):
    analysis = analysed(TEXTS[name])
    scheduled = replace(analysis.module, attributes={**analysis.module.attributes, "is_scheduled": "true"})
    for form in (analysis, hlo.Analysis(scheduled)):
        for barriers in BARRIERS:
            for system in ("a100_80g_dgx", "tpu_v5e_pod"):
                bounds_hold(program_times(form, hlo.program(form), form.of(barriers), load_system(system)))


def test_what_hides_slows_kernels_by_the_cores_that_it_takes():
    """As `exposed_time` has it for designs: with half of the cores taken, half of what hides comes back."""
    analysis = analysed(OLD_PRINTER)
    program_, graph, system = hlo.program(analysis), analysis.graph, load_system("a100_80g_dgx")
    taken = {f"{kind}_collective_cores": 0.0 for kind in ("tp", "dp")}
    free = program_times(analysis, program_, graph, system.with_quantities(taken))
    half = dict.fromkeys(taken, system.chip.cores / 2)
    slow = program_times(analysis, program_, graph, system.with_quantities(half))
    messages = free.breakdown.step_time - free.kernels - free.breakdown.host_time
    hidden = messages - sum(free.exposed.values())
    assert free.slowed == 0 < hidden
    assert slow.slowed == pytest.approx(hidden / 2)


def test_systems_that_are_too_small_say_so(tmp_path):
    text = (ROOT / "systems" / "a100_80g_dgx.yaml").read_text()
    small, tight = tmp_path / "small.yaml", tmp_path / "tight.yaml"
    small.write_text(re.sub(r"(\n    size: \{value: )\d+", r"\g<1>4", text))
    tight.write_text(text.replace("capacity: {value: 81920 MiB", "capacity: {value: 1 GB"))
    assert not json_of("cost", DATA / "transformer.hlo", "--system", tight)["memory"]["fits"]
    assert "Note: small has 4 devices, too few" in stdout_of("cost", DATA / "transformer.hlo", "--system", small)


WRONG = cases(__file__, "WRONG")


@pytest.mark.parametrize("options", WRONG)
def test_options_that_modules_do_not_take(options):
    told = stderr_of("cost", str(DATA / "loop.hlo"), *options.split())
    assert told.count("\n") == 1
    assert WRONG[options] in told
