"""Search spaces: what a file says, what is wrong with it, what can be pinned, what pricing makes of it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import numpy as np
import optuna
import pytest

from costmodel import DesignPoints, DseError, load_model, load_system
from costmodel.formats import shipped
from costmodel.formats.input_files import dump, parse
from costmodel.rules.rules import TRAINING, Rules
from dse.pricing.evaluated import rules_for
from dse.pricing.evaluation import evaluate, transformer_run
from dse.spaces.space import Space
from tests.support.paths import ROOT

TOY = """
schema: search_space/v1
name: toy
description: A space to read
model: gpt_22b
system: a100_80g_dgx
given: {world_size: 64, global_batch_size: 128, budget: 60 GB, attention: unfused}
parameters:
  tp: [1, 2, 4, 8]
  pp: divisors(num_layers)
  micro_batch_size: powers_of_two(1, 4)
  recompute: [none, selective, full]
  distributed_optimizer: [false, true]
  clock: {from: 1 GHz, to: 1.41 GHz}
derived:
  gradient_accumulation_steps: global_batch_size / (dp * micro_batch_size)  # in any order
  dp: world_size / (tp * pp)
  cost: system_price * step_time
constraints:
  divides_heads: num_attention_heads % tp == 0
  whole_stages: num_layers % pp == 0
  in_budget: peak_memory <= budget
objectives:
  minimize: [step_time, cost]
  maximize: [mfu]
"""


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


def test_distributions_are_optunas(toy):
    assert toy.by_name["tp"].distribution() == optuna.distributions.CategoricalDistribution((1, 2, 4, 8))
    assert toy.by_name["clock"].distribution() == optuna.distributions.FloatDistribution(1e9, 1.41e9)


def test_a_range_may_have_steps_and_a_scale():
    ranges = {
        "cores": {"from": 64, "to": 128, "step": 32},
        "dram_bandwidth": {"from": "1 TB/s", "to": "4 TB/s", "scale": "log"},
        "dram_capacity": {"from": "40 GB", "to": "80 GB", "step": "20 GB"},
    }
    space = Space.from_text(changed(parameters={**parse(TOY, "").data["parameters"], **ranges}))
    assert space.by_name["cores"].distribution() == optuna.distributions.IntDistribution(64, 128, step=32)
    assert space.by_name["cores"].value(96.0) == 96
    assert space.by_name["dram_bandwidth"].distribution() == optuna.distributions.FloatDistribution(
        1e12, 4e12, log=True
    )
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


def test_a_space_finds_its_model_beside_itself(tmp_path):
    own = dump({**parse("{schema: model/v1, source: here, num_layers: 4, hidden_size: 64}", "m").data,
                "num_attention_heads": 8})  # fmt: skip
    (tmp_path / "own.yaml").write_text(own, encoding="utf-8")
    (tmp_path / "space.yaml").write_text(changed(model="./own.yaml"), encoding="utf-8")
    space = Space.load(tmp_path / "space.yaml")
    assert (space.model.name, space.model.num_layers) == ("own", 4)
    assert Space.from_text(space.text).model == space.model


def test_designs_turn_into_columns_and_back(toy):
    columns = toy.legal.random(20, np.random.default_rng(1))
    designs = toy.decode(columns)
    assert isinstance(designs[0]["tp"], int)
    assert isinstance(designs[0]["distributed_optimizer"], bool)
    assert designs[0]["recompute"] in ("none", "selective", "full")
    again = toy.encode(designs)
    assert all(np.array_equal(again[name], columns[name]) for name in columns)


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


MISTAKES = [
    ({"schema": "search_space/v2"}, "schema: 'search_space/v2' is not a value; did you mean"),
    ({"schema": None}, "schema: missing"),
    ({"parametres": {}}, "parametres: unknown key; did you mean 'parameters'?"),
    ({"model": "gpt3_175"}, "model: unknown model 'gpt3_175'; did you mean 'gpt3_175b'?"),
    ({"model": None}, "model: expected a name, a path, or the model itself"),
    ({"model": 3}, "model: expected a name, a path, or the model itself"),
    ({"model": {"schema": "model/v1", "source": "x", "num_layers": 4}}, "hidden_size: missing"),
    ({"system": "./none.yaml"}, "none.yaml: no such file"),
    ({"given": {"world_size": 64, "globl_batch_size": 1}}, "did you mean 'global_batch_size'?"),
    ({"given": {"world_size": 6.5}}, "given.world_size: 6.5: expected a whole number"),
    ({"given": {"world_size": "64 GB"}}, "given.world_size: '64 GB': expected a number"),
    ({"given": {"dram_capacity": 80}}, "expected a number and a unit, such as '80 GB'"),
    (
        {"given": {"attention": "flash"}},
        "given.attention: 'flash' is not a value; did you mean 'flash_attention_1' or 'flash_attention_2'?",
    ),
    ({"given": {"num_layers": 5}}, "given.num_layers: already means something else"),
    ({"given": {"step_time": "5 s"}}, "given.step_time: already means something else"),
    ({"given": {"unheard_of": 5}}, "given.unheard_of: unknown name, and no formula uses it"),
    ({"parameters": None}, "parameters: missing"),
    ({"parameters": {}}, "parameters: expected at least one"),
    ({"parameters": {"mirco_batch_size": [1]}}, "unknown parameter; did you mean 'micro_batch_size'?"),
    ({"parameters": {"tp": []}}, "parameters.tp: []: expected options"),
    ({"parameters": {"tp": [1, 2, 2]}}, "parameters.tp: 2 is listed twice"),
    ({"parameters": {"tp": [0, 2]}}, "parameters.tp: 0: expected a whole number of at least 1"),
    ({"parameters": {"tp": [1.5]}}, "parameters.tp: 1.5: expected a whole number of at least 1"),
    ({"parameters": {"tp": "multiples(1, 1, 1e5)"}}, "parameters.tp: 100000 options; expected 1 to 4096"),
    ({"parameters": {"recompute": "divisors(4)"}}, "expected a list of some of none, selective, full"),
    ({"parameters": {"clock": ["0 GHz", "1 GHz"]}}, "parameters.clock: 0: expected more than nothing"),
    ({"given": {"global_batch_size": 1e300}}, "expected a whole number of at least 1"),
    ({"parameters": {"tp": "divisors(dp)"}}, "dp: unknown name"),
    ({"parameters": {"tp": "num_layers"}}, "parameters.tp: 'num_layers': expected options"),
    ({"parameters": {"tp": {"from": 1}}}, "expected {from: ..., to: ...}"),
    ({"parameters": {"tp": {"from": 1, "to": 8}}}, "expected whole numbers: add kind: integer"),
    ({"parameters": {"tp": {"from": 8, "to": 1, "kind": "integer"}}}, "expected from < to"),
    ({"parameters": {"recompute": ["none", "al"]}}, "'al' is not a value"),
    ({"parameters": {"distributed_optimizer": [0, "yes"]}}, "'yes': expected true or false"),
    ({"parameters": {"clock": [1.4]}}, "1.4: expected a number and a unit, such as '1.41 GHz'"),
    ({"parameters": {"clock": ["1.4 GB"]}}, "this is in B"),
    ({"parameters": {"dp": [1], "tp": [1]}}, "derived.dp: already means something else"),
    ({"derived": {"dp": "pp + gradient_accumulation_steps", "gradient_accumulation_steps": "dp"}}, "each needs itself"),
    ({"derived": {"dp": "world_size / tpp"}}, "derived.dp: 'world_size / tpp': tpp: unknown name"),
    ({"derived": {"dp": "step_time / 1 s"}}, "derived.dp: must be known before pricing"),
    ({"derived": {"dp": "budget"}}, "derived.dp: 'budget' is in B; expected -"),
    ({"derived": {"node_bandwidth": "clock"}}, "'clock' is in 1/s; expected B/s"),
    ({"derived": {"gradient_acumulation_steps": 1}}, "did you mean 'gradient_accumulation_steps'?"),
    ({"constraints": {"fits": "peak_memory"}}, "constraints.fits: 'peak_memory' is no condition"),
    ({"constraints": {"fits": "peak_memory <= 80"}}, "units differ: B against a pure number"),
    ({"constraints": {"fits": ["a"]}}, "constraints.fits: ['a']: expected a formula"),
    ({"objectives": {"minimize": []}}, "objectives: expected at least one"),
    ({"objectives": None}, "objectives: missing"),
    ({"objectives": {"minimise": ["step_time"]}}, "unknown key; did you mean 'minimize'?"),
    ({"objectives": {"minimize": ["step_tim"]}}, "step_tim: no column of this name; did you mean 'step_time'?"),
    ({"objectives": {"minimize": ["step_time", "step_time_s"]}}, "step_time: given twice"),
    ({"objectives": {"minimize": ["recompute"]}}, "recompute: no column of this name"),
]


@pytest.mark.parametrize(("keys", "message"), MISTAKES)
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


def test_a_whole_design_can_be_pinned():
    space = Space.load("gpt3_175b_1024_a100")
    [params] = space.decode(space.legal.random(1, np.random.default_rng(5)))
    assert space.pinned(params).legal.count == 1


IMPOSSIBLE = [
    ({"tp": "7"}, "tp=7: not an option; tp can be 1, 2, 4, 8"),
    ({"tp": "many"}, "tp can be 1, 2, 4, 8"),
    ({"recompute": "al"}, "recompute can be none, selective, full"),
    ({"clock": "2 GHz"}, "clock=2 GHz: out of range; clock can be 1 GHz to 1.41 GHz"),
    ({"clock": "2 GB"}, "this is in B"),
    ({"tq": 1}, "tq: not a name of space toy"),
    ({"micro_bach_size": 1}, "did you mean 'micro_batch_size'?"),
    ({"dp": 4}, "dp: follows from other names here (dp: world_size / (tp * pp)); pin those"),
    ({"tp": 8, "pp": 12}, "pp can be 1, 2, 4, 8 beside the others"),
    ({"pp": 3}, "pp can be 1, 2, 4, 8, 16"),
    ({"dram_capacity": "40"}, "given.dram_capacity: '40': expected a number and a unit, such as '80 GB'"),
    ({"pp": 3}, "dp (world_size / (tp * pp), expected a whole number of at least 1)"),
]


@pytest.mark.parametrize(("pins", "message"), IMPOSSIBLE)
def test_an_impossible_pin_says_what_would_be_possible(toy, pins, message):
    with pytest.raises(DseError) as caught:
        toy.pinned(pins)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_objectives_can_be_chosen_by_name(toy):
    space = toy.with_objectives(["peak_memory_bytes", "tokens_per_second", "minimize:mfu", "maximize:cost"])
    found = {(objective.name, objective.direction) for objective in space.objectives}
    assert found == {
        ("peak_memory", "minimize"),
        ("tokens_per_second", "maximize"),
        ("mfu", "minimize"),
        ("cost", "maximize"),
    }
    for wrong in ("step_tiem", "least:step_time", "minimize:"):
        with pytest.raises(DseError):
            toy.with_objectives([wrong])


def test_pricing_gives_values_margins_and_violations(toy):
    columns = toy.legal.random(200, np.random.default_rng(0))
    found = evaluate(toy, columns)
    assert found.num_points == 200
    assert found.values[:, 0] == pytest.approx(found.breakdown.step_time)
    assert found.values[:, 1] == pytest.approx(found.breakdown.system_price * found.breakdown.step_time)
    assert found.margins[:, 0] == pytest.approx(60e9 - found.breakdown.peak_memory)
    assert found.violations[:, 0] == pytest.approx(found.breakdown.peak_memory / 60e9 - 1)
    assert (found.feasible == (found.margins[:, 0] >= 0)).all()
    assert 0 < found.feasible.mean() < 1
    assert found.derived["dp"] * columns["tp"] * columns["pp"] == pytest.approx(64)


@pytest.mark.parametrize("jobs", [1, 2])
def test_chunks_and_processes_change_nothing(toy, jobs):
    columns = toy.legal.random(100, np.random.default_rng(0))
    whole, parts = evaluate(toy, columns), evaluate(toy, columns, chunk=33, jobs=jobs)
    for one, other in zip(
        (whole.values, whole.margins, whole.violations, whole.feasible, *whole.breakdown.columns().values()),
        (parts.values, parts.margins, parts.violations, parts.feasible, *parts.breakdown.columns().values()),
        strict=True,
    ):
        assert np.array_equal(one, other)


def test_a_design_without_a_number_is_infeasible(toy):
    """Pricing that gives no number must not look like a good design."""
    from costmodel.steps.transformer import transformer_step

    def broken(run):
        return transformer_step(run).map(lambda values: values * np.nan)

    rules = replace(rules_for(toy), rules=Rules(work=TRAINING, design=DesignPoints, cost=broken))
    found = evaluate(toy, toy.legal.random(4, np.random.default_rng(0)), rules=rules)
    assert not found.feasible.any()
    assert (found.violations > 0).all()
    assert np.isfinite(found.violations).all()


def test_spaces_are_found_by_name_or_path(tmp_path):
    assert "gpt3_175b_1024_a100" in shipped.names("spaces")
    with pytest.raises(DseError, match="did you mean 'gpt3_175b_1024_a100'"):
        Space.load("gpt3_175b_1024_a10")
    with pytest.raises(DseError, match="no such file"):
        Space.load(tmp_path / "none.yaml")
    with pytest.raises(DseError, match="is a directory"):
        Space.load(tmp_path)


def test_models_and_systems_load_by_name_from_costmodel():
    assert load_model("gpt3_175b").num_layers == 96
    assert load_system("a100_80g_dgx").chip.cores == 108


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
