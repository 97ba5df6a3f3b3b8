"""Spaces that choose splits and tiles kernel by kernel: their parameters, rules and errors."""

import itertools
import json

import numpy as np
import pytest

from costmodel import DesignPoints, DseError, load_model, load_system, resolve_tiling
from costmodel.kernels.kernel_tables import Gemms, Label
from costmodel.kernels.output_tiles import useful_edges
from costmodel.kernels.products import gemm_cost
from costmodel.steps.transformer import reasons, remedies, step, transformer_footprint
from costmodel.training.blocks import DECODER, assignments_of
from costmodel.training.design import SAMPLE, TILE_EDGES
from costmodel.training.run import Run
from dse.api.study import Study
from dse.output import exact_record, json_text, selected, study_record
from dse.pricing.evaluation import evaluate, evaluated_design
from dse.searching.exact.exact_front import exact_front
from dse.searching.samplers import screening_sampler
from dse.spaces.space import Space
from tests.support.cases import by_table, cases
from tests.support.commands import stdout_of
from tests.support.random_designs import random_system

#: Kernel -> ways to split it.
OPTIONS = assignments_of((DECODER,)).options

SPACE = cases(__file__, "SPACE")


def space(given="attention: fused", parameters="recompute: [none, full]") -> Space:
    return Space.from_text(SPACE.format(given=given, parameters=parameters))


SAMPLED = "attention: fused, sharding: sample, tiling: sample"

#: Edges of all explicit tiles, along m and n.
EDGES = [edge for edge in TILE_EDGES if 8 <= edge <= 2048]
TILES = [(m, n) for m, n in itertools.product(EDGES, repeat=2) if m <= 2 * n and n <= 2 * m]


def test_each_split_and_each_tile_edge_is_a_parameter():
    names = space(SAMPLED).by_name
    for kernel, ways in OPTIONS.items():
        assert names[f"{kernel}_sharding"].choices == tuple(ways)
    for product in ("qkv", "projection", "mlp_up", "mlp_down", "head"):
        for of_pass in ("", "_activation_gradient", "_weight_gradient"):
            for axis in "mn":
                choices = names[f"{product}{of_pass}_tile_{axis}"].choices
                assert choices == (8, 16, 32, 64, 128, 256, 512, 1024, 2048)
    assert not any(name.startswith(("scores", "context")) for name in names)  # which fused attention has not


def test_all_splits_are_legal_and_24_tiles_of_81():
    """4 layouts x 2 recomputations x 1,728 splits; tiles of five products, each with three passes.

    On an A100, whose cores together have no room for two tiles of 2048 by 2048.
    """
    assert space(SAMPLED).legal.count == pytest.approx(4 * 2 * 1728 * 24.0**15)
    assert len([pair for pair in TILES if min(pair) <= 1024]) == 24


def test_solving_is_no_worse_than_any_sample():
    drawn = space(SAMPLED)
    columns = drawn.legal.random(500, np.random.default_rng(3))
    sampled = evaluate(drawn, columns)
    named = {name: columns[name] for name in ("tp", "pp", "recompute")}
    solved = evaluate(space("attention: fused, sharding: solve"), named)
    fits = sampled.feasible
    assert fits.any()
    assert np.all(solved.values[fits, 0] <= sampled.values[fits, 0])
    assert np.all(solved.feasible[fits])
    assert (solved.values[fits, 0] < 0.98 * sampled.values[fits, 0]).any()


def test_names_of_the_file_stay_as_they_are():
    """A kernel may be pinned, or have fewer options."""
    pinned = space(SAMPLED + ", qkv_sharding: row", "mlp_norm_sharding: [sequence]")
    assert "qkv_sharding" not in pinned.by_name
    assert pinned.by_name["mlp_norm_sharding"].choices == ("sequence",)
    assert pinned.pinned({"mlp_up_tile_m": 32}).legal.values_of("mlp_up_tile_n") == [16, 32, 64]


@by_table("given", "parameters", "message")
def test_contradictions_are_told(given, parameters, message):
    with pytest.raises(DseError, match=message):
        space(given, parameters)


def test_no_rule_is_made_of_a_size_that_the_file_does_not_name():
    text = SPACE.format(given=SAMPLED, parameters="vpp: [1]").replace("tp: [2, 8]", "micro_batch_size: [1]")
    text = text.replace("world_size / (tp * pp)", "world_size / pp").replace("global_batch_size / dp", "2")
    assert "tp_splits_evenly" not in {rule.name for rule in Space.from_text(text).rules}


def test_an_lstm_has_no_kernels_of_a_layer_to_sample():
    text = SPACE.format(given="sharding: sample", parameters="hidden_dim1: [1, 2]")
    with pytest.raises(DseError) as told:
        Space.from_text(text.replace("gpt_22b", "lstm_24b"))
    assert "qkv_sharding" not in str(told.value)
    assert "given.sharding: unknown name" in str(told.value)


SOLVED = "attention: fused, sharding: solve, tiling: solve"


@pytest.fixture(scope="module")
def study(searched):
    """Eight trials whose kernels are solved."""
    return searched(space(SOLVED), 8, "solved")


def test_solved_kernels_are_parameters_of_every_trial(study):
    """In tables, in JSON and in Optuna's own study, with the names that a sampled space has."""
    names = {*space(SAMPLED).by_name} - {*space().by_name}
    assert len(names) == len(OPTIONS) + 2 * 15
    assert {p.name for p in study.space.solved} == names
    frame, [record, *_] = study.trials(), study_record(study)["front"]
    assert names <= {*frame.columns}
    assert names <= {*record["params"]}
    assert all(names <= {*trial.params} for trial in study.optuna.trials)
    assert json.loads(json_text(study_record(study, "trials")))["trials"][0]["params"].keys() >= names


def test_conditions_and_columns_name_solved_kernels(study):
    frame = study.trials()
    edge = int(frame["mlp_up_tile_m"].iloc[0])
    condition = f"mlp_up_tile_m == {edge} and qkv_sharding == column and step_time < 1000 s"
    actual = selected(study, "trials", where=condition).to_frame()
    assert 0 < len(actual) == len(frame[(frame["mlp_up_tile_m"] == edge) & (frame["qkv_sharding"] == "column")])
    show = ["show", "solved", "--storage", study.storage]
    assert str(edge) in stdout_of(*show, "--columns", "qkv_sharding,mlp_up_tile_m")


def test_a_trial_priced_with_its_recorded_kernels_takes_the_same_time(study):
    sampled = space(SAMPLED)
    for trial in study.optuna.trials:
        names = {name: value for name, value in trial.params.items() if name in sampled.by_name}
        assert evaluate(sampled, sampled.encode([names])).values[0, 0] == trial.values[0]


def test_a_design_without_a_product_records_no_tile_of_it():
    """Whatever other designs are in its batch: fused attention has no products of its own."""
    both = space("tiling: solve", "attention: [unfused, fused]")
    study = Study.create(both, "attention")
    study.run(8)
    for trial in study.optuna.trials:
        assert (trial.params["scores_tile_m"] > 0) == (trial.params["attention"] == "unfused")
    fused = evaluated_design(both, {"tp": 8, "pp": 4, "attention": "fused"})["params"]
    assert fused["scores_tile_m"] == 0
    assert fused["qkv_tile_m"] > 0


def test_records_say_what_was_solved():
    solved = space(parameters="sharding: [megatron, solve]")
    for name in ("megatron", "solve"):
        record = evaluated_design(solved, {"tp": 8, "pp": 4, "sharding": name})
        assert {f"{kernel}_sharding" for kernel in OPTIONS} <= {*record["params"]}
    assert all("qkv_sharding" in record["params"] for record in exact_record(exact_front(solved))["front"])
    assert "qkv_sharding" not in evaluated_design(space(), {"tp": 8, "pp": 4, "recompute": "none"})["params"]


def test_screening_with_named_shardings_finds_what_solving_for_each_finds(monkeypatch):
    """The sampler screens designs with Megatron-LM's shardings; trials are solved. Snapshot: the same fastest."""
    text = SPACE.format(given="attention: fused, sharding: solve", parameters="clock: {from: 1 GHz, to: 1.4 GHz}")
    wide = Space.from_text(text.replace("[2, 8]", "[2, 4, 8]").replace("[1, 4]", "[1, 2, 4, 8]"))
    fastest = []
    for name, whole in (("named", False), ("solved", True)):
        monkeypatch.setattr(screening_sampler, "solves_shardings", lambda _, w=whole: not w)
        study = Study.create(wide, name)
        study.run(50)
        fastest.append(study.table.front().values[0, 0])
    assert fastest[0] == pytest.approx(fastest[1], rel=2e-3)


def products(m, n, k):
    one = np.ones(1)
    return Gemms.stack([(Label("qkv", "forward", "layer"), (m * one, n * one, k * one, one, 2.0, one))])


@pytest.mark.parametrize("seed", range(6))
def test_the_solved_tile_takes_the_time_of_the_best_explicit_one(seed):
    """To the bit, on machines by chance; explicit tiles are all pairs of useful edges."""
    rng = np.random.default_rng(seed)
    system = random_system(rng)
    edges = useful_edges(system, 2.0)
    pairs = [(m, n) for m, n in itertools.product(edges, repeat=2) if m <= 2 * n and n <= 2 * m]
    for m, n, k in np.exp(rng.uniform(0, 11, (8, 3))).round():
        gemms = products(m, n, k)
        solved = gemm_cost(gemms, system, element_bytes=2.0)
        explicit = [
            gemm_cost(gemms, system, element_bytes=2.0, tiles=(np.full((1, 1), rows), np.full((1, 1), columns)))
            for rows, columns in pairs
        ]
        assert np.array([cost.time.item() for cost in explicit]).min() == solved.time.item()


CHIPS = ("a100_80g_dgx", "h100_80g_dgx", "gb200_186g_nvl72", "mi300x_192g", "tpu_v5p_pod", "trainium2_96g")


@pytest.mark.parametrize("name", CHIPS)
def test_resolved_tiles_are_as_fast_as_free_ones(name):
    """To the bit, whatever each core's share of on-chip memory is, and whatever is solved beside."""
    model, system = load_model("gpt3_175b"), load_system(name)
    cores = np.array([1, 7, 108, 128, 144, 216])
    system = system.with_quantities({"cores": cores, "sram_capacity": np.array([1, 30, 60, 60, 100, 4000]) * 2e6})
    layout = {"tp": 4, "pp": 16, "vpp": 6, "dp": 16, "gradient_accumulation_steps": 96}
    free = DesignPoints.of(sharding=["solve", "megatron"] * 3, **layout)
    resolved = resolve_tiling(model, system, free)
    assert (resolved.tiling == 1).all()
    assert (resolved.sharding == SAMPLE).tolist() == [True, False] * 3
    assert (step(model, system, resolved).step_time == step(model, system, free).step_time).all()


def test_a_tile_without_room_has_no_number():
    """Two tiles of 2048 by 2048 with fp32 sums take 50.3 MB, more than all cores of an A100 have: 49.5 MB."""
    model, system = load_model("gpt3_175b"), load_system("a100_80g_dgx")
    columns = {"tiling": ["sample", "sample", "solve"], "mlp_up_tile_m": [1024, 2048, 2048]}
    design = DesignPoints.of(tp=8, pp=12, **columns)
    assert np.isfinite(step(model, system, design).step_time).tolist() == [True, False, True]
    footprint = transformer_footprint(Run(model, system, design))
    assert np.isfinite(footprint["peak_memory"]).tolist() == [True, False, True]
    assert "no on-chip memory for a tile" in reasons(Run(model, system, design.take(np.array([1]))))[0]
    assert remedies(Run(model, system, design)).startswith("for tiles (1) that on-chip memory has no room")


def test_a_tile_that_is_no_candidate_is_refused():
    for m, n in ((64, 256), (512, 128), (48, 64)):
        with pytest.raises(DseError, match=f"mlp_up_tile_n: {m} and {n}; expected powers of two from 1 to 65536"):
            DesignPoints.of(tiling=["solve", "sample"], mlp_up_tile_m=m, mlp_up_tile_n=n)
    with pytest.raises(DseError, match="mlp_up_tile_m: expected a whole number from 0 to 65536, got 131072"):
        DesignPoints.of(mlp_up_tile_m=131072)
