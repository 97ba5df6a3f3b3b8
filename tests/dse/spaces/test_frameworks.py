"""Framework files: their values for designs and machines, and spaces with a framework."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, DseError, load_model, load_system, step
from costmodel.formats.framework_file import framework_names, load_framework
from costmodel.formats.input_files import dump
from costmodel.rules.registry import all_columns
from dse.spaces.sections.frameworks import broken_rules, refused_model
from dse.spaces.space import Space
from tests.support import rules
from tests.support.cases import by_table, cases

SPLIT = {"tp": 8, "pp": 8, "dp": 2, "gradient_accumulation_steps": 16, "recompute": "selective"}


def step_of(system="a100_80g_dgx", model="gpt3_175b", **columns):
    """A step of some designs."""
    return step(load_model(model), load_system(system), DesignPoints.of(**{**SPLIT, **columns}))


@pytest.mark.parametrize("name", framework_names())
def test_built_in_frameworks_have_values_of_columns_and_quantities(name):
    """A formula that does not parse, or has unknown names, would keep nothing."""
    framework = load_framework(name)
    assert framework.description
    assert {*framework.given} <= {*all_columns(), *load_system("h100_80g_dgx").units()}
    declared = DesignPoints.declared()
    for column, runs in framework.runs.items():
        words = declared[column].words
        assert {*runs.words} <= {*words} if words else all(word.isdigit() for word in runs.words), column
    usual = {name: next(iter(runs.words), "1f1b") for name, runs in framework.runs.items() if name == "schedule"}
    for model in ("gpt3_175b", "deepseek_v3", "qwen3_next_80b_a3b"):
        assert isinstance(broken_rules(framework, load_model(model), [usual], {}), list)


def test_a_value_follows_what_balances_the_experts(tmp_path):
    """Dense models have none of it; a file says it for every method."""
    for name, (loss, bias) in {"megatron_core": (1.3, 1.1), "torchtitan": (1.1, 1.1), "nanotron": (None,) * 2}.items():
        framework = load_framework(name)
        assert framework.said(load_model("mixtral_8x7b")).get("imbalance") == loss
        assert framework.said(load_model("deepseek_v3")).get("imbalance") == bias
        assert "imbalance" not in framework.said(load_model("llama3_8b"))
    text = "given: {imbalance: {value: {aux_loss: 1.3}, kind: assumed, source: mine}}"
    (tmp_path / "mine.yaml").write_text(f"schema: framework/v1\ndescription: mine\n{text}\n")
    with pytest.raises(DseError, match="expected a value, one for each of aux_loss, bias, or conditions"):
        load_framework(tmp_path / "mine.yaml")


def test_limits_of_a_framework_are_constraints_of_a_space_that_asks_for_them():
    opened = {"tp": [4, 8], "zero": [1, 2, 3], "optimizer": ["adam", "muon"], "schedule": ["1f1b", "zb_v"]}
    free = space_of(framework="megatron_core", parameters=opened)
    kept = space_of(framework={"name": "megatron_core", "limits": True}, parameters=opened)
    assert {*kept.data["constraints"]} == {"fsdp_steps_with_adam"}
    assert free.legal.count > kept.legal.count
    assert not rules.broken_rules(kept, {"tp": 4, "zero": 1, "optimizer": "muon", "schedule": "1f1b"})
    assert rules.broken_rules(kept, {"tp": 4, "zero": 3, "optimizer": "muon", "schedule": "1f1b"})
    assert Space.from_text(kept.text).fingerprint == kept.fingerprint


EXPERTS = cases(__file__, "EXPERTS")


@by_table("system", "otherwise")
def test_overlaps_that_exclude_each_other_before_blackwell_leave_the_better_one(system, otherwise):
    """Megatron-LM, arguments.py: one connection keeps the order of tensor parallelism, experts want 32."""
    space = space_of(system=system, **EXPERTS)
    assert ("tp_overlap" in space.by_name) == (otherwise == "none")
    actual = {}
    for design in (asked for batch in space.legal.enumerate() for asked in space.decode(batch)):
        actual[design["tp"], design["ep"], design["overlap_ep"]] = design.get("tp_overlap", "chunked")
    assert actual[2, 8, True] == otherwise
    assert actual[2, 8, False] == actual[1, 8, True] == "chunked"
    assert len(actual) == space.legal.count  # one choice for each layout


def test_overlaps_that_exclude_each_other_are_refused_by_name():
    megatron, model = load_framework("megatron_core"), load_model("mixtral_8x7b")
    both = {"tp": 2, "ep": 8, "overlap_ep": True, "tp_overlap": "chunked", "sequence_parallel": True}
    [[why]] = broken_rules(megatron, model, [both], {"compute_capability": 9.0})
    assert "exchanges or tensors overlap" in why
    fine = (({}, 10.0), ({"tp_overlap": "none"}, 9.0), ({"overlap_ep": False}, 9.0), ({"tp": 1}, 9.0))
    for changed, capability in fine:
        assert broken_rules(megatron, model, [{**both, **changed}], {"compute_capability": capability}) == [[]]


@by_table("node", "ep", "fits")
def test_two_hops_reach_as_far_as_the_library_of_their_nodes(node, ep, fits):
    """DeepEP has kernels for 20 nodes of 8 ranks, HybridEP on racks for those of one NVLink domain."""
    model = load_model("deepseek_v3")
    for dispatcher, legal in (("two_hop", fits), ("all_to_all", True)):
        design = {"ep": ep, "dispatcher": dispatcher}
        [broken] = broken_rules(load_framework("megatron_core"), model, [design], {"node_size": float(node)})
        assert (broken == []) == legal


@pytest.mark.parametrize(("parameters", "pins", "actual"), cases(__file__, "aliases"))
def test_an_alias_is_set_by_the_name_that_a_space_has(parameters, pins, actual):
    space = space_of(parameters={"tp": [4, 8], **parameters}).pinned(pins)
    values = space.known_values(space.legal.random(1, np.random.default_rng(0)))
    assert {name: np.asarray(values[name]).item() for name in actual} == actual


def test_a_space_that_names_a_column_and_its_alias_is_refused():
    named = {"zero": [0, 1], "distributed_optimizer": [False, True]}
    with pytest.raises(DseError, match="distributed_optimizer: is zero: 1 by another name; leave it out"):
        space_of(parameters={"tp": [4, 8], **named})
    both = {"sharding": "solve", "sequence_parallel": True}
    with pytest.raises(DseError, match="sequence_parallel: is sharding: megatron_sp by another name"):
        space_of(parameters={"tp": [4, 8], "sharding": ["megatron", "solve"]}).pinned(both)


def test_a_model_that_a_framework_has_not_is_refused_by_name():
    torchtitan = load_framework("torchtitan")
    assert refused_model(torchtitan, load_model("llama3_8b")) == ""
    assert "not in torchtitan, which has" in refused_model(torchtitan, load_model("gpt3_175b"))
    assert "experts came later" in refused_model(load_framework("megatron_lm_2021"), load_model("mixtral_8x7b"))


def space_of(**parts):
    """A small space, some parts of it changed."""
    data = cases(__file__, "SPACE")
    return Space.from_text(dump({**data, **parts}))


def test_a_space_has_what_its_framework_says_but_for_its_own():
    space = space_of(framework="megatron_deepspeed")
    assert space.framework == "megatron_deepspeed"
    assert space.given["gradient_accumulation_fusion"] == 0
    given = {"world_size": 64, "global_batch_size": 64, "attention": "fused"}
    assert space_of(framework="megatron_deepspeed", given=given).given["attention"] == 1
    opened = space_of(framework="megatron_core", parameters={"tp": [4, 8], "distributed_optimizer": [False, True]})
    assert "zero" not in opened.given
    switched = space_of(framework="megatron_core", parameters={"tp": [4, 8], "overlap_tp": [False, True]})
    assert "tp_overlap" not in switched.given


def test_a_framework_file_says_where_values_come_from(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("schema: framework/v1\ndescription: mine\ngiven:\n  attention: fused\n")
    with pytest.raises(DseError, match="a value says where it comes from"):
        load_framework(path)
    path.write_text(path.read_text().replace("fused", "{value: nosuch, kind: documented, source: mine}"))
    with pytest.raises(DseError, match=r"framework: .*mine\.yaml: given\.attention: 'nosuch' is not a value"):
        space_of(framework=str(path))


def test_more_overlap_of_tensor_parallelism_is_never_slower():
    """None, as in 2021; behind gradients of weights; and products in pieces as well."""
    actual = step_of(tp_overlap=["none", "gradients", "chunked"], sequence_parallel=1)
    times = actual.tp_communication_time
    assert times[0] > times[1] > times[2]
    assert step_of(overlap_tp=1, sequence_parallel=1).tp_communication_time == pytest.approx(times[2])


def test_gradients_that_are_added_up_by_themselves_cost_ten_bytes_for_each_weight():
    """Read in 16 bits; read and written in fp32: once for each micro-batch."""
    fused, separate = (step_of(gradient_accumulation_fusion=word).backward_time for word in (1, 0))
    model, system = load_model("gpt3_175b"), load_system("a100_80g_dgx")
    weights = model.num_layers * 12 * model.hidden_size**2 / SPLIT["tp"] / SPLIT["pp"]
    bytes_moved = 10 * weights * SPLIT["gradient_accumulation_steps"]
    expected = bytes_moved / (system.dram.bandwidth * system.dram.efficiency)
    assert separate - fused == pytest.approx(expected, rel=0.1)


def test_launches_that_block_come_on_top_of_what_runs():
    """Ahead, dispatch hides behind kernels that take longer; blocking, each launch adds its own."""
    model, system = load_model("gpt3_175b"), load_system("a100_80g_dgx")
    ahead, half, blocking = (
        step(model, system.with_quantities({"software_blocking_launches": share}), DesignPoints.of(**SPLIT))
        for share in (0.0, 0.5, 1.0)
    )
    assert ahead.launch_bound_time == 0
    assert blocking.launch_bound_time > 0
    assert half.launch_bound_time == pytest.approx(blocking.launch_bound_time / 2)


@by_table("model", "why")
def test_models_that_megatron_core_cannot_train_are_refused_by_name(model, why):
    assert refused_model(load_framework("megatron_core"), load_model(model)).startswith(f"model {model}: {why}")


@by_table("shape", "numerics", "rule")
def test_limits_read_words_switches_and_numerics_of_a_model(shape, numerics, rule):
    """Each alone decides whether Llama 3 8B with it is still a model of Megatron Core."""
    model = load_model("llama3_8b")
    changed = replace(model, **shape, numerics=replace(model.numerics, **numerics))
    refused = refused_model(load_framework("megatron_core"), changed)
    assert rule in refused
    assert bool(refused) == bool(rule)


@by_table("framework", "model", "pins", "rule")
def test_limits_of_a_framework_read_designs(framework, model, pins, rule):
    """types.py of MaxText: "FP8 quantization is not compatible with gradient accumulation"; mamba_context_parallel.py
    of Megatron Core: ranks share heads, and groups are shared too or repeated.
    """
    [broken] = broken_rules(load_framework(framework), load_model(model), [{"zero": 3, **pins}], {})
    assert bool(broken) == bool(rule)
    assert all(rule in text for text in broken)


def test_a_release_has_the_values_before_later_ones(tmp_path):
    """25.06 is before 25.09 and after 24.01; a year is its end; a name without a file stands for a release."""
    newest, old, oldest = (
        load_framework(name) for name in ("megatron_core", "megatron_core@25.06", "megatron_lm@2021")
    )
    assert "sustained" not in newest.said(None)
    chips = {"compute_capability": 10.0, "node_size": 72.0}
    assert old.said(None, lambda name: chips.get(name, np.nan))["sustained"] == 0.66
    assert "sustained" not in old.said(None)
    assert (old.name, oldest.name) == ("megatron_core@25.06", "megatron_core@2019")
    assert oldest.given["attention"] == "unfused"
    assert load_framework("megatron_lm_2021") == oldest
    assert load_framework("torchtitan_2026").given == load_framework("torchtitan").given
    given = "given: {zero: {value: 1, kind: assumed, source: mine}}"
    releases = "releases: {one: 3, '25.11': {changed: a, source: b}}"
    (tmp_path / "mine.yaml").write_text(f"schema: framework/v1\ndescription: mine\n{given}\n{releases}\n")
    with pytest.raises(DseError, match=r"releases\.one"):
        load_framework(tmp_path / "mine.yaml")
