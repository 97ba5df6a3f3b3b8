"""Spaces that choose splits and tiles kernel by kernel: what is written out, legal, and refused."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from costmodel import DesignPoints, DseError
from costmodel.kernels.gemm import gemm_cost
from costmodel.kernels.output_tiles import TILE_SHARES
from costmodel.steps.transformer import step
from costmodel.training.blocks import DECODER
from costmodel.training.design import MOST_TILE_EXPONENT, tiled_products
from costmodel.training.sharding import assignments_of
from costmodel.workload.kernel_tables import Gemms, Label
from dse.pricing.evaluation import evaluate
from dse.records.tables import exact_record
from dse.searching.exact.exact_front import exact_front, priced_design
from dse.spaces.space import Space

#: Kernel -> ways to split it.
OPTIONS = assignments_of((DECODER,)).options

SPACE = """
schema: search_space/v1
model: gpt_22b
system: a100_80g_dgx
given: {{world_size: 64, global_batch_size: 128, {given}}}
parameters:
  tp: [2, 8]
  pp: [1, 4]
  {parameters}
derived:
  dp: world_size / (tp * pp)
  gradient_accumulation_steps: global_batch_size / dp
constraints:
  fits_in_memory: peak_memory <= dram_capacity
objectives: {{minimize: [step_time, peak_memory]}}
"""


def space(given="attention: fused", parameters="recompute: [none, full]") -> Space:
    return Space.from_text(SPACE.format(given=given, parameters=parameters))


SAMPLED = "attention: fused, sharding: sample, tiling: sample"


def test_each_split_and_each_tile_exponent_is_a_parameter():
    names = space(SAMPLED).by_name
    for kernel, ways in OPTIONS.items():
        assert names[f"{kernel}_sharding"].choices == tuple(ways)
    for product in {*tiled_products()} - {"scores", "context"}:  # which fused attention has not
        for axis in "mn":
            assert names[f"{product}_tile_{axis}"].choices == (0, 1, 2)
    assert "scores_tile_m" not in names


def test_unfused_attention_has_tiles_of_its_own():
    assert "scores_tile_m" in space("attention: unfused, tiling: sample").by_name
    assert "context_tile_n" in space("tiling: sample", "attention: [unfused, fused]").by_name


def test_all_splits_are_legal_and_six_tiles_of_nine():
    """Tiles are the candidates of the solver: 4 layouts x 2 recomputations x 1,728 splits x 6^5 tiles."""
    assert space(SAMPLED).legal.count == 4 * 2 * 1728 * 6**5
    assert 6 == len(TILE_SHARES) < (MOST_TILE_EXPONENT + 1) ** 2


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
    own = space(SAMPLED + ", qkv_sharding: row", "mlp_norm_sharding: [sequence]")
    assert "qkv_sharding" not in own.by_name
    assert own.by_name["mlp_norm_sharding"].choices == ("sequence",)
    assert own.pinned({"mlp_up_tile_m": 2}).legal.values_of("mlp_up_tile_n") == [1, 2]


def test_a_sampled_space_is_read_back_from_its_text():
    sampled = space(SAMPLED)
    assert Space.from_text(sampled.text).fingerprint == sampled.fingerprint


@pytest.mark.parametrize(
    ("given", "parameters", "message"),
    [
        (
            "attention: fused",
            "sharding: [solve, sample]",
            "sample is no option beside others; write it under",
        ),
        ("qkv_sharding: row", "vpp: [1]", "qkv_sharding: counts with sharding: sample alone"),
        ("tiling: solve", "head_tile_n: [0, 1]", "head_tile_n: counts with tiling: sample alone"),
        (
            "sharding: solve",
            "sequence_parallel: [false, true]",
            "sequence_parallel: is sharding: megatron_sp by",
        ),
        ("sharding: megatron_xp", "vpp: [1]", "'megatron_xp' is not a value; did you mean 'megatron_sp'"),
        ("tiling: sample", "qkv_tile_m: [0, 3]", "qkv_tile_m: 3: expected a whole number from 0 to 2"),
    ],
)
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


def test_what_was_solved_is_told_beside_each_design():
    own = space(parameters="sharding: [megatron, solve]")
    plain, solved = (
        priced_design(own, {"tp": 8, "pp": 4, "sharding": name}) for name in ("megatron", "solve")
    )
    assert "splits" not in plain
    assert {*solved["splits"]} == {*OPTIONS}
    records = exact_record(exact_front(own))["front"]
    assert {("splits" in record) for record in records if record["params"]["sharding"] == "solve"} == {True}


def test_a_named_sharding_is_an_option_like_others():
    """Megatron's two and the best of all, side by side in one search."""
    own = space(parameters="sharding: [megatron, megatron_sp, solve]")
    found = evaluate(own, next(own.legal.enumerate()))
    times = found.values[:, 0].reshape(4, 3)
    assert np.all(times[:, 2] <= times[:, :2].min(axis=1))


def products(**shape):
    one = np.ones(1)
    rows = [(Label("qkv", "forward", "layer"), (shape["m"], shape["n"], shape["k"], one, 2.0, one))]
    return Gemms.stack(rows)


@pytest.mark.parametrize(
    ("shape", "of_largest_block"),
    [
        ((4096, 640, 1111), True),
        ((4096, 2560, 8192), True),
        ((96, 16384, 8192), False),
        ((640, 640, 16384), False),
    ],
)
def test_the_solved_tile_is_no_slower_than_any_that_can_be_told(shape, of_largest_block, toy_system):
    """Told are tiles of the largest block of a core; the solver has those of others too."""
    gemms = products(**dict(zip("mnk", (float(size) * np.ones(1) for size in shape), strict=True)))
    solved = gemm_cost(gemms, toy_system, element_bytes=2.0)
    told = {
        shares: gemm_cost(
            gemms, toy_system, element_bytes=2.0, tiles=tuple(np.full((1, 1), s) for s in shares)
        )
        for shares in itertools.product((1.0, 0.5, 0.25), repeat=2)
    }
    times = {shares: cost.time.item() for shares, cost in told.items()}
    assert {shares for shares, time in times.items() if np.isfinite(time)} == {*TILE_SHARES}
    best = min(times, key=times.__getitem__)
    assert (times[best] == solved.time.item()) == of_largest_block
    assert solved.time.item() <= times[best]
    assert told[best].traffic[1] == solved.traffic[1] or not of_largest_block
    assert len(set(times.values())) > 2


def test_free_tiles_beside_told_ones(gpt, toy_system):
    """Where `tiling` is "solve", the exponents of a design count for nothing."""
    layout = {"tp": 4, "gradient_accumulation_steps": 4, "qkv_tile_m": 0, "qkv_tile_n": 1}
    found = step(gpt, toy_system, DesignPoints.of(tiling=["solve", "sample"], **layout)).step_time
    plain = step(gpt, toy_system, DesignPoints.of(tp=4, gradient_accumulation_steps=4)).step_time
    assert found[0] == plain[0] < found[1]


def test_a_tile_that_is_no_candidate_is_refused():
    for m, n in ((0, 0), (0, 2), (2, 0)):
        with pytest.raises(
            DseError, match=f"mlp_up_tile_n: {m} and {n}; expected two that differ by at most 1"
        ):
            DesignPoints.of(tiling=["solve", "sample"], mlp_up_tile_m=m, mlp_up_tile_n=n)
    with pytest.raises(DseError, match="mlp_up_tile_m: expected a whole number from 0 to 2, got 3"):
        DesignPoints.of(mlp_up_tile_m=3)
