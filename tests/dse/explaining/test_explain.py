"""Explanations of costs: trees that add up, whatever the design."""

import re
import shlex

import numpy as np
import pytest

from costmodel.formats import shipped
from costmodel.steps.breakdown import PARTS, with_unit_suffix
from dse import Space, Study
from dse.explaining.explanation import Difference, explain
from dse.explaining.neighbours import neighbourhoods, neighbours
from dse.output import part_name
from dse.pricing.evaluation import evaluated_design
from tests.support.cases import by_table, cases
from tests.support.commands import json_of, stderr_of, stdout_of
from tests.support.paths import ROOT
from tests.support.rules import broken_rules

#: Designs of each space that are drawn.
DRAWN = 2

#: Space -> the profile that prices it, where the native one does not.
PROFILES = {"gpt_1t_4096_dfmodel": "dfmodel-gen3"}

#: Columns that no built-in space explores, held fixed.
PINNED = cases(__file__, "PINNED")


def explained(space, count=DRAWN, profile="native"):
    designs = space.decode(space.legal.random(count, np.random.default_rng(1)))
    explanations = [explain(space, params, profile=profile) for params in designs]
    return [explanation for explanation in explanations if np.isfinite(explanation.record["breakdown"]["step_time_s"])]


def assert_leaves_alone(paths):
    """No value stands above others in the tree."""
    branches = {path[:depth] for path in paths for depth in range(1, len(path))}
    assert len({*paths}) == len(paths)
    assert not branches & {*paths}


def assert_adds_up(explanation):
    """Every leaf belongs to a part of the breakdown, and those of each part add up to it."""
    for total, tree, unit in (("step_time", explanation.time, "seconds"), ("peak_memory", explanation.memory, "bytes")):
        whole = explanation.record["breakdown"][with_unit_suffix(total)]
        assert tree[unit].sum() == pytest.approx(whole, rel=1e-12)
        assert (tree[unit] > -1e-12 * whole).all()
        assert_leaves_alone(tree["path"])
        of_part = tree[unit].groupby(tree["path"].str[0]).sum()
        for part in PARTS[total]:
            evaluated = explanation.record["breakdown"][with_unit_suffix(part)]
            assert of_part.get(part_name(part), 0.0) == pytest.approx(evaluated, rel=1e-9, abs=1e-12 * whole)


@pytest.mark.parametrize("name", shipped.names("spaces"))
def test_leaves_add_up_to_the_step_and_to_the_memory(name):
    for explanation in explained(Space.load(name), profile=PROFILES.get(name, "native")):
        assert_adds_up(explanation)


@pytest.mark.parametrize("pins", PINNED, ids=lambda pins: next(iter(pins)))
def test_leaves_add_up_where_no_shipped_space_goes(pins):
    space = Space.load("gpt3_175b_1024_a100").pinned(pins)
    for explanation in explained(space, count=3):
        assert_adds_up(explanation)


def test_a_profile_that_names_no_kernels_has_the_parts_of_its_breakdown():
    [explanation] = explained(Space.load("gpt3_175b_1024_a100"), count=1, profile="simai")
    assert_adds_up(explanation)
    assert explanation.kernels.empty


def test_kernels_are_those_of_the_step_and_none_beats_its_ceiling():
    explanation = explained(Space.load("gpt3_175b_1024_a100"), count=1)[0]
    kernels, breakdown = explanation.kernels, explanation.record["breakdown"]
    passes = sum(breakdown[f"{name}_time_s"] for name in ("forward", "backward", "recompute"))
    assert kernels["seconds"].sum() == pytest.approx(passes - breakdown["launch_bound_time_s"])
    assert (kernels["attained"] <= kernels["ceiling"] * (1 + 1e-12)).all()
    assert set(kernels["bound"]) <= {"arithmetic", "launch", *(m.name for m in explanation.system.memory)}


def test_the_ceiling_of_a_kernel_is_that_of_its_format():
    """H100: 989 TFLOP/s in 16 bits and 1,979 in 8 (NVIDIA H100 data sheet); the head keeps 16 bits."""
    pins = {"precision": "fp8_tensorwise", "attention": "fused_fp8", "recompute": "none"}
    kernels = explained(Space.load("llama3_70b_512_h100").pinned(pins), count=1)[0].kernels
    most = kernels.assign(name=kernels["path"].str[-1]).groupby("name")["ceiling"].max() / 1e12
    assert most[["mlp up", "core", "head"]].to_list() == pytest.approx([1979, 1979, 989], rel=1e-3)
    assert (kernels["attained"] <= kernels["ceiling"] * (1 + 1e-12)).all()


@pytest.mark.parametrize("name", ["gpt3_175b_1024_a100", "deepseek_v3_2048_h800", "lstm_24b_power"])
def test_a_difference_adds_up_to_that_of_the_steps(name):
    one, other = explained(Space.load(name), count=2)
    actual = Difference(one, other)
    assert actual.time["seconds"].sum() == pytest.approx(other.step_time - one.step_time, abs=1e-9 * one.step_time)
    assert_leaves_alone(actual.time["path"])
    more = other.peak_memory - one.peak_memory
    assert actual.memory["bytes"].sum() == pytest.approx(more, abs=1e-9 * one.peak_memory)
    back = Difference(other, one).time.set_index("path")["seconds"]
    assert (back + actual.time.set_index("path")["seconds"]).abs().max() < 1e-12 * one.step_time
    assert Difference(one, one).time.empty


@pytest.mark.parametrize("name", ["gpt3_175b_1024_a100", "gpt_1t_codesign", "lstm_24b_power"])
def test_a_neighbour_costs_what_pricing_it_alone_says(name):
    space = Space.load(name)
    [explanation] = explained(space, count=1)
    actual = neighbours(explanation)
    assert actual
    for neighbour in actual:
        assert not broken_rules(space, neighbour.params)
        assert neighbour.changes
        assert {n: new for n, (_, new) in neighbour.changes.items()}.items() <= neighbour.params.items()
        breakdown = evaluated_design(space, neighbour.params)["breakdown"]
        change = breakdown["step_time_s"] - explanation.step_time
        assert neighbour.step_time_change == pytest.approx(change, abs=1e-9 * explanation.step_time)
        change = breakdown["peak_memory_bytes"] - explanation.peak_memory
        assert neighbour.peak_memory_change == pytest.approx(change, abs=1e-9 * explanation.peak_memory)


def test_levers_make_room_and_faster_designs_that_break_the_limit_bind_it():
    space = Space.load("gpt3_175b_1024_a100")
    tight = {"tp": 4, "pp": 8, "vpp": 12, "micro_batch_size": 1, "recompute": "full"}
    explanation = explain(space, space.completed(tight | {"distributed_optimizer": False}))
    [(_, bound)] = neighbourhoods([explanation])
    assert bound.limit.name == "fits_in_memory"
    assert bound.levers
    for lever in bound.levers:
        assert lever.margins[bound.limit.key] > bound.margin
    costs = [lever.step_time_change for lever in bound.levers]
    assert costs == sorted(costs)
    assert all(design.step_time_change < 0 and not design.feasible for design in bound.faster)


def leaves(rows, unit):
    """Sum over the leaves of a tree. [unit]"""
    return sum(row[unit] for row in rows)


def test_json_adds_up_and_names_everything(stored):
    actual = json_of("explain", "small", "--against", "3")
    breakdown, other = actual["breakdown"], actual["against"]["breakdown"]
    assert leaves(actual["time"], "seconds") == pytest.approx(breakdown["step_time_s"], rel=1e-9)
    assert leaves(actual["memory"], "bytes") == pytest.approx(breakdown["peak_memory_bytes"], rel=1e-9)
    slower = other["step_time_s"] - breakdown["step_time_s"]
    assert leaves(actual["difference"], "seconds") == pytest.approx(slower, abs=1e-9)
    assert {"hidden", "kernels", "neighbours", "levers", "binding", "stages"} <= actual.keys()
    assert actual["trial"] == Study.load("small").table.front().trials[0].number


def test_the_report_fits_a_hundred_columns_and_a_screen_and_a_half(stored):
    text = stdout_of("explain", "small")
    lines = text.splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 78
    for word in ("qkv", "bound by", "tp communication", "memory", "Bottleneck: ", "one step away"):
        assert word in text
    assert len(stdout_of("explain", "small", "--all").splitlines()) > len(lines)


def test_a_design_against_another_is_told_by_what_differs(stored):
    out = stdout_of("explain", "small", "--trial", "1", "--against", "recompute=full")
    assert "why the step differs" in out
    assert max(map(len, out.splitlines())) <= 100
    argv = ["explain", "llama3_70b_512_h100", "--set", "tp=8", "--set", "pp=2"]
    out = stdout_of(*argv)
    assert out.splitlines()[1].startswith("Step   ")
    assert "\nLayout tp 8, pp 2, " in out
    assert "tp 8 to 4" in out  # what was named is no less open to its neighbours
    assert "tp 8 to 4" in stdout_of(*argv, "--against", "tp=4")


@by_table("argv", "says")
def test_what_cannot_be_explained_is_refused_in_a_line(argv, says, stored):
    error = stderr_of("explain", *argv)
    assert says in error
    assert error.startswith("dse: ")


def test_the_page_of_the_docs_prints_what_the_commands_do(stored):
    """Rows by their names: numbers move with the cost model."""
    page = (ROOT / "docs" / "explaining.md").read_text()
    actual = re.findall(r"```sh\n(dse .*?)\n```\n\n```text\n(.*?)```", page, flags=re.DOTALL)
    assert len(actual) == 3
    for command, text in actual:
        assert row_names(text) <= row_names(stdout_of(*shlex.split(command)[1:]))


def row_names(text):
    """Names at the beginning of the lines of a table: kernels, parts."""
    return {*re.findall(r"^ *([a-z][a-z ]+?)  ", text, flags=re.MULTILINE)}
