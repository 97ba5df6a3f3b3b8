"""Compiled programs on machines: what `dse cost` says, what spaces explore, and what always holds."""

import json
import re
from typing import Any

import numpy as np
import pytest

from costmodel import DseError, load_system
from costmodel.formats.quantity import readable
from costmodel.kernels.kernel_tables import Gemms, Label
from costmodel.kernels.products import gemm_cost
from costmodel.steps.breakdown import PARTS
from dse.adapters.xla import hlo
from dse.adapters.xla.report.cost_record import ModuleCost, time_of
from dse.adapters.xla.steps.program import Dense, Program, ProgramKernel, program_cost, program_step
from dse.api.study import Study
from dse.cli import main
from dse.spaces.space import Space
from tests.support.cases import cases
from tests.support.commands import json_of, outputs_of, stderr_of, stdout_of
from tests.support.hlo_texts import (
    DATA,
    GPT,
    LOOP,
    OLD_PRINTER,
    SEED,
    TRANSFORMER,
    UNCOUNTED,
    analysed,
    needs_reference,
)


def one_kernel(**kernel) -> Program:
    """A program of one kernel on eight devices."""
    row = {"name": "k", "kind": "k", "phase": "forward", "count": 1.0, "bytes_moved": 0.0, "flops": 0.0, **kernel}
    return Program(
        name="one", kernels=(ProgramKernel(**row),), devices=8.0, num_parameters=1.0, tokens=512.0,
        weights_bytes=3e9, optimizer_bytes=5e9, inputs_bytes=7.0, temporaries_bytes=11e9,
    )  # fmt: skip


def test_a_product_costs_what_the_native_model_says(toy_system):
    dense = Dense(batch=3, m=640, n=960, k=1280, element_bytes=2, output_bytes=2)
    table = Gemms.stack([(Label("k", "forward", "k"), (640, 960, 1280, 3, 2, 1))])
    native = gemm_cost(table, toy_system, element_bytes=2)
    cost = program_cost(one_kernel(products=(dense,), count=5.0), toy_system)
    assert cost.time[0, 0] == pytest.approx(5 * native.time[0, 0], rel=1e-12)


def test_other_work_takes_the_longer_of_lanes_and_memory(toy_system):
    dram, chip = toy_system.dram, toy_system.chip
    moved = program_cost(one_kernel(bytes_moved=1e9, flops=1.0), toy_system).time[0, 0]
    worked = program_cost(one_kernel(bytes_moved=1.0, flops=1e12), toy_system).time[0, 0]
    assert moved == pytest.approx(1e9 / (dram.bandwidth * dram.efficiency) + chip.kernel_launch)
    assert worked == pytest.approx(1e12 / chip.vector_flop_rate + chip.kernel_launch)


@pytest.mark.parametrize("text", [OLD_PRINTER, LOOP, TRANSFORMER, GPT], ids=["old", "loop", "transformer", "gpt"])
def test_parts_add_up_and_kernels_of_equal_cost_share_rows(text, toy_system):
    program = hlo.program(analysed(text))
    breakdown = program_step(program, toy_system)
    for whole, parts in PARTS.items():
        assert sum(getattr(breakdown, part) for part in parts) == pytest.approx(getattr(breakdown, whole))
    assert program_cost(program, toy_system).time.sum() + breakdown.host_time == pytest.approx(breakdown.step_time)
    assert sum(kernel.count for kernel in program.grouped().kernels) == sum(k.count for k in program.kernels)


def test_many_machines_at_once_are_priced_as_each_alone(toy_system):
    program = hlo.program(analysed(TRANSFORMER))
    bandwidths = np.linspace(0.5e12, 4e12, 700)
    many = program_step(program, toy_system.with_quantities({"dram_bandwidth": bandwidths}))
    assert (np.diff(many.step_time) <= 0).all()
    for index in (0, 511, 512, 699):
        one = program_step(program, toy_system.with_quantities({"dram_bandwidth": bandwidths[index]}))
        assert many.step_time[index] == one.step_time[0]


@pytest.fixture(scope="module")
def transformer() -> dict[str, Any]:
    """The record of the transformer on A100s."""
    return ModuleCost.of(DATA / "transformer.hlo", "barrier", "a100_80g_dgx").record()


def test_json_of_a_module_on_a_system(tmp_path):
    file = tmp_path / "step.json"
    assert stdout_of("cost", DATA / "transformer.hlo", "--system", "a100_80g_dgx", "-o", file) == ""
    record = json.loads(file.read_text())
    step = record["breakdown"]["step_time_s"]
    kernels = step - record["breakdown"]["host_time_s"]
    assert record["devices"] == 8
    assert record["barriers"] == "barrier"
    assert record["memory"]["schedule"] == "the text's order, which is its schedule"
    assert sum(row["time_s"] for row in record["kinds"]) == pytest.approx(kernels)
    assert sum(row["time_s"] for row in record["phases"]) == pytest.approx(kernels)
    assert record["heaviest"] == sorted(record["heaviest"], key=lambda row: -row["time_s"])
    assert max(row["time_s"] for row in record["heaviest"]) <= record["longest_path_time_s"] <= step
    messages = next(row["time_s"] for row in record["kinds"] if row["name"] == "collective")
    assert sum(row["time_s"] for row in record["collectives"]) == pytest.approx(messages)
    assert record["figures"]["gemm.count"] == 49


def test_without_a_system_the_usual_one_prices_and_says_so():
    file = DATA / "loop.hlo"
    for form in ("table", "json"):
        usual, said = outputs_of("cost", str(file), "--format", form)
        assert said == f"dse: {file}: no --system, so evaluated on a100_80g_dgx\n"
        assert usual == stdout_of("cost", file, "--system", "a100_80g_dgx", "--format", form)


def test_a_program_without_kernels_is_counted_and_not_priced(tmp_path):
    (tmp_path / "m.hlo").write_text("HloModule m\nENTRY e { a = f32[2] parameter(0) }")
    record = json_of("cost", tmp_path / "m.hlo")
    assert record["system"] is record.get("breakdown") is None


@pytest.mark.parametrize("width", [40, 80, 160])
def test_names_give_way_to_numbers(monkeypatch, width, transformer):
    """However narrow the page, each number stands as on a wide one, or its column is named below."""
    monkeypatch.setenv("COLUMNS", str(width))
    shown = stdout_of("cost", DATA / "transformer.hlo", "--system", "a100_80g_dgx")
    table = shown.partition("Heaviest kernels\n")[2].split("\n\n")[1]
    for row, line in zip(transformer["heaviest"], table.splitlines()[2:], strict=False):
        assert time_of(row) in line
        assert len(line) <= width
    assert "…" not in table
    assert width < 80 or "too wide" not in table


def test_exposed_messages_stand_below_their_sum_the_longest_first(transformer):
    shown = stdout_of("cost", DATA / "transformer.hlo", "--system", "a100_80g_dgx")
    longest_first = sorted(transformer["times"]["exposed_s"].values(), reverse=True)
    lines = re.search(r"\n  exposed messages +(.*)\n((?:    .*\n)+)", shown)
    assert lines[1] == readable(sum(longest_first), "s")
    seconds = [" ".join(line.split()[-2:]) for line in lines[2].splitlines()]
    assert seconds == [readable(time, "s") for time in longest_first if time]


def test_what_is_not_known_is_said(tmp_path):
    (tmp_path / "m.hlo").write_text(UNCOUNTED)
    shown = stdout_of("cost", tmp_path / "m.hlo")
    assert "Note: while.5: trip count unknown; its body counts once\n" in shown
    assert re.search(r"^a step +>= .* while.5 runs an unknown number of times;", shown, re.MULTILINE)
    assert re.search(r"^gemm +1 .* >= [\d.]+ us ", shown, re.MULTILINE)
    assert ">=" not in stdout_of("cost", DATA / "loop.hlo")
    call = 'b = f32[2] custom-call(a), custom_call_target="mine"'
    (tmp_path / "c.hlo").write_text(f"HloModule c\nENTRY e {{ a = f32[2] parameter(0)\n {call} }}")
    assert "Note: 1 call of mine: evaluated by its arrays alone\n" in stdout_of("cost", tmp_path / "c.hlo")


MISTAKES = cases(__file__, "MISTAKES")


@pytest.mark.parametrize("arguments", MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_1(arguments, tmp_path):
    cut = tmp_path / "cut.hlo"
    cut.write_text("HloModule m\nENTRY e {\n a = f32[2] parameter(0), sharding={replicated\n")
    told = stderr_of(*arguments.format(hlo=DATA / "loop.hlo", cut=cut).split())
    assert told.count("\n") == 1
    assert MISTAKES[arguments] in told


SPACE = cases(__file__, "SPACE")


def test_the_space_in_the_documentation_loads(folder):
    text = (DATA.parents[2] / "docs" / "hlo.md").read_text().split("```yaml\n")[1].split("```")[0]
    (folder / "step.hlo").write_text(TRANSFORMER)
    (folder / "documented.yaml").write_text(text)
    assert Space.load("./documented.yaml").legal.count == 9


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with a module and a space that names it."""
    (tmp_path / "transformer.hlo").write_text(TRANSFORMER)
    (tmp_path / "space.yaml").write_text(SPACE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_space_keeps_all_that_it_needs_of_the_module(folder, toy_system):
    space = Space.load("./space.yaml")
    (folder / "transformer.hlo").unlink()
    again = Space.from_text(space.text)
    assert again.fingerprint == space.fingerprint
    whole = program_step(hlo.program(analysed(TRANSFORMER)), toy_system)
    assert program_step(again.model, toy_system).step_time == pytest.approx(whole.step_time, rel=1e-12)


def test_a_search_explores_the_machine_and_resumes_without_the_module(folder):
    assert main(["search", "./space.yaml", "--budget", "10"]) == 0
    (folder / "transformer.hlo").unlink()
    outputs_of("resume", "space", "--budget", "18")
    best = Study.load("space", storage="sqlite:///dse.db").trials()["step_time_s"].min()
    system = load_system("a100_80g_dgx").with_quantities({"dram_bandwidth": 4e12, "node_bandwidth": 600e9})
    assert best == pytest.approx(program_step(hlo.program(analysed(TRANSFORMER)), system).step_time[0])


WRONG_SPACES = cases(__file__, "WRONG_SPACES")


@pytest.mark.parametrize("text", WRONG_SPACES)
def test_a_wrong_space_says_what_is_wrong(text, folder):
    instead, message = WRONG_SPACES[text]
    (folder / "space.yaml").write_text(SPACE.replace(text, instead))
    with pytest.raises(DseError) as caught:
        Space.load("./space.yaml")
    assert message in str(caught.value)


@needs_reference("test_without_a_system_the_usual_one_prices_and_says_so")
def test_the_reference_module_on_a_machine():
    record = json_of("cost", SEED, "--system", "h100_80g_dgx")
    assert record["memory"]["temporaries_bytes"] == 197997068
    breakdown = record["breakdown"]
    assert breakdown["tokens_per_second"] == pytest.approx(8192 / breakdown["step_time_s"])
