"""Search spaces: their files and mistakes in them, pins, and evaluations of their designs."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from optuna.distributions import FloatDistribution, IntDistribution

from costmodel import DesignPoints, DseError
from costmodel.formats import shipped
from costmodel.formats.input_files import dump, parse
from costmodel.rules.rules import TRAINING, Rules
from costmodel.steps.transformer import transformer_step
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate, transformer_run
from dse.spaces.space import Space
from tests.support.cases import cases
from tests.support.paths import ROOT

TOY = cases(__file__, "TOY")


@pytest.fixture(scope="module")
def toy() -> Space:
    return Space.from_text(TOY)


def changed(**keys):
    """The toy space with some of its keys replaced, or left out where None."""
    data = {**parse(TOY, "toy").data, **keys}
    return dump({key: value for key, value in data.items() if value is not None})


def test_a_file_is_read_into_parameters_rules_limits_and_objectives(toy):
    assert (toy.name, toy.description) == ("toy", "A space to read")
    assert toy.given == {"world_size": 64, "global_batch_size": 128, "budget": 60e9, "attention": 0}
    assert toy.by_name["pp"].choices == (1, 2, 3, 4, 6, 8, 12, 16, 24, 48)
    assert toy.by_name["recompute"].choices == ("none", "selective", "full")
    assert (toy.by_name["clock"].low, toy.by_name["clock"].high) == (1e9, 1.41e9)
    order = [derived.name for derived in toy.derived]
    assert order.index("dp") < order.index("gradient_accumulation_steps")
    assert {rule.name for rule in toy.rules} >= {"divides_heads", "whole_stages"}
    assert [(limit.name, limit.key) for limit in toy.limits] == [("in_budget", "in_budget_bytes")]
    assert [(o.key, o.direction) for o in toy.objectives] == [
        ("step_time_s", "minimize"), ("cost", "minimize"), ("mfu", "maximize")
    ]  # fmt: skip


def test_a_range_may_have_steps_and_a_scale():
    ranges = {
        "cores": {"from": 64, "to": 128, "step": 32},
        "dram_bandwidth": {"from": "1 TB/s", "to": "4 TB/s", "scale": "log"},
        "dram_capacity": {"from": "40 GB", "to": "80 GB", "step": "20 GB"},
    }
    space = Space.from_text(changed(parameters={**parse(TOY, "").data["parameters"], **ranges}))
    assert space.by_name["cores"].distribution == IntDistribution(64, 128, step=32)
    assert space.by_name["cores"].value(96.0) == 96
    assert space.by_name["dram_bandwidth"].distribution == FloatDistribution(1e12, 4e12, log=True)
    assert space.by_name["dram_capacity"].options.tolist() == [40e9, 60e9, 80e9]


def test_the_text_of_a_space_needs_no_other_file(toy, tmp_path):
    path = tmp_path / "space.yaml"
    path.write_text(toy.text, encoding="utf-8")
    again = Space.load(path)
    assert again.fingerprint == toy.fingerprint
    assert again.text == toy.text
    assert "num_layers: 48" in toy.text
    assert "kind: datasheet" in toy.text


def test_a_fingerprint_tells_what_matters_from_what_does_not(toy):
    same = TOY.replace("A space to read", "Other words").replace("name: toy", "name: other")
    same = same.replace("60 GB", "60000 MB").replace("system_price * step_time", "system_price  *step_time")
    assert Space.from_text(same).fingerprint != toy.fingerprint  # a formula is compared as it is written
    assert Space.from_text(same.replace("  *step", " * step")).fingerprint == toy.fingerprint
    for old, new in (("60 GB", "61 GB"), ("[1, 2, 4, 8]", "[1, 2, 8, 4]"), ("mfu", "tokens_per_second")):
        assert Space.from_text(TOY.replace(old, new)).fingerprint != toy.fingerprint
    of_first_release = "95adf7174ac37ce2a977a900d0b305dfb93100a1a5a6309639c763e43b8617f3"  # its studies continue
    assert Space.load("llama3_70b_512_h100").fingerprint == of_first_release


def test_a_space_finds_its_model_beside_itself(tmp_path):
    model = "{schema: model/v1, source: here, num_layers: 4, hidden_size: 64, num_attention_heads: 8}"
    (tmp_path / "own.yaml").write_text(model, encoding="utf-8")
    (tmp_path / "space.yaml").write_text(changed(model="./own.yaml"), encoding="utf-8")
    space = Space.load(tmp_path / "space.yaml")
    assert (space.model.name, space.model.num_layers) == ("own", 4)
    assert Space.from_text(space.text).model == space.model


def test_given_values_reach_the_design_and_the_system():
    given = {"world_size": 64, "global_batch_size": 128, "budget": "60 GB"}
    given |= {"attention": "fused", "seq_len": 4096, "dram_capacity": "40 GB"}
    space = Space.from_text(changed(given=given))
    run = transformer_run(space, space.legal.random(3, np.random.default_rng(0)), DesignPoints)
    system, design = run.system, run.design
    assert (design.attention == 1).all()
    assert system.dram.capacity == 40e9
    assert (system.chip.clock < 1.41e9).all()
    assert (design.tp * design.pp * design.dp == 64).all()
    assert space.model.seq_len == 4096


@pytest.mark.parametrize(("keys", "message"), cases(__file__, "MISTAKES"))
def test_a_wrong_file_says_what_is_wrong(keys, message):
    with pytest.raises(DseError) as caught:
        Space.from_text(changed(**keys))
    assert message in str(caught.value)
    assert all(line.startswith("space:") for line in str(caught.value).splitlines())


def test_all_mistakes_are_told_at_once():
    text = TOY.replace("tp: [1, 2, 4, 8]", "tpp: [1, 2, 4, 8]").replace("<= budget", "<= bugdet")
    with pytest.raises(DseError) as caught:
        Space.from_text(text.replace("maximize", "maximise"))
    assert len(str(caught.value).splitlines()) >= 4


def test_pins_hold_parameters_and_given_values_fixed(toy):
    space = toy.pinned({"tp": "8", "recompute": "full", "distributed_optimizer": "true", "clock": "1.2 GHz",
                        "budget": "50 GB", "seq_len": 1024, "dram_bandwidth": 1e12})  # fmt: skip
    [design, *_] = space.decode(space.legal.random(1, np.random.default_rng(0)))
    assert design["tp"] == 8
    assert (design["recompute"], design["distributed_optimizer"], design["clock"]) == ("full", True, 1.2e9)
    assert space.given["budget"] == 50e9
    assert space.model.seq_len == 1024
    assert space.system.dram.bandwidth == 1e12
    assert Space.from_text(space.text).fingerprint == space.fingerprint
    assert space.by_name.keys() == toy.by_name.keys()


@pytest.mark.parametrize(("pins", "message"), cases(__file__, "IMPOSSIBLE"))
def test_an_impossible_pin_says_what_would_be_possible(toy, pins, message):
    with pytest.raises(DseError) as caught:
        toy.pinned(pins)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_objectives_can_be_chosen_by_name(toy):
    space = toy.with_objectives(["peak_memory_bytes", "tokens_per_second", "minimize:mfu", "maximize:cost"])
    directions = {objective.name: objective.direction for objective in space.objectives}
    assert {name for name, direction in directions.items() if direction == "minimize"} == {"peak_memory", "mfu"}
    assert {name for name, direction in directions.items() if direction == "maximize"} == {"tokens_per_second", "cost"}
    for wrong in ("step_tiem", "least:step_time", "minimize:"):
        with pytest.raises(DseError):
            toy.with_objectives([wrong])


def test_pricing_gives_values_margins_and_violations(toy):
    columns = toy.legal.random(200, np.random.default_rng(0))
    actual = evaluate(toy, columns)
    assert actual.num_points == 200
    assert actual.values[:, 0] == pytest.approx(actual.breakdown.step_time)
    assert actual.values[:, 1] == pytest.approx(actual.breakdown.system_price * actual.breakdown.step_time)
    assert actual.margins[:, 0] == pytest.approx(60e9 - actual.breakdown.peak_memory)
    assert actual.violations[:, 0] == pytest.approx(actual.breakdown.peak_memory / 60e9 - 1)
    assert (actual.feasible == (actual.margins[:, 0] >= 0)).all()
    assert 0 < actual.feasible.mean() < 1
    assert actual.derived["dp"] * columns["tp"] * columns["pp"] == pytest.approx(64)


@pytest.mark.parametrize("jobs", [1, 2])
def test_chunks_and_processes_change_nothing(toy, jobs):
    columns = toy.legal.random(100, np.random.default_rng(0))
    whole, parts = evaluate(toy, columns), evaluate(toy, columns, chunk=33, jobs=jobs)
    for name in ("values", "margins", "violations", "feasible"):
        np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
    for name, column in whole.breakdown.columns().items():
        np.testing.assert_array_equal(parts.breakdown.columns()[name], column)


@pytest.mark.parametrize("lost", [("step_time",), ("step_time", "peak_memory")])
def test_a_design_without_a_number_is_infeasible(toy, lost):
    """A cost that is no number must not look like a good design, nor a design without a step by its memory alone."""

    def broken(run):
        return transformer_step(run).with_columns(dict.fromkeys(lost, np.full(run.num_points, np.nan)))

    rules = replace(rules_for(toy), rules=Rules(work=TRAINING, design=DesignPoints, cost=broken))
    designs = toy.legal.random(4, np.random.default_rng(0))
    actual = evaluate(toy.with_objectives(["peak_memory"]), designs, rules=rules)
    assert not actual.feasible.any()
    assert (actual.violations[:, 0] > 0).all() or "peak_memory" not in lost
    assert np.isfinite(actual.violations).all()


def test_spaces_are_found_by_name_or_path(tmp_path):
    assert "gpt3_175b_1024_a100" in shipped.names("spaces")
    with pytest.raises(DseError, match="did you mean 'gpt3_175b_1024_a100'"):
        Space.load("gpt3_175b_1024_a10")
    with pytest.raises(DseError, match="no such file"):
        Space.load(tmp_path / "none.yaml")
    with pytest.raises(DseError, match="is a directory"):
        Space.load(tmp_path)


def test_reading_a_space_imports_neither_optuna_nor_pandas():
    code = "import sys, dse.pricing.evaluation; from dse.spaces.space import Space; "
    code += "Space.load('gpt3_175b_1024_a100').legal.count; "
    code += "print([name for name in ('optuna', 'pandas', 'sqlalchemy', 'joblib') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_documented_space_loads():
    page = (ROOT / "docs" / "search_spaces.md").read_text(encoding="utf-8")
    example = page.split("```yaml\n")[1].split("```")[0]
    space = Space.from_text(example)
    assert [limit.name for limit in space.limits] == ["in_budget"]
    assert space.by_name["clock"].options.tolist() == pytest.approx([1e9, 1.1e9, 1.2e9, 1.3e9, 1.4e9])
    assert evaluate(space, space.legal.random(50, np.random.default_rng(0))).feasible.any()
