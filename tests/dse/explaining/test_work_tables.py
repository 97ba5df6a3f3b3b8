"""Reload analysis of matrix products, and optimizer costs by parameter group: they are those of the step."""

import io
from typing import Any

import numpy as np
import pandas as pd
import pytest

from costmodel import DesignPoints, DseError, load_model, load_system, resolve_tiling, step
from costmodel.kernels.products import gemm_reloads
from costmodel.steps.transformer import parameter_groups, transformer_items
from costmodel.training.run import Run, rank_run
from dse.spaces.space import Space
from tests.support.commands import stdout_of

LAYOUTS: dict[str, dict[str, Any]] = {
    "gpt3_175b": {"tp": 8, "pp": 8, "dp": 16, "gradient_accumulation_steps": 96, "zero": 1},
    "llama3_70b": {"tp": [4, 8], "pp": [1, 4], "dp": 16, "zero": 3, "precision": ["bf16", "fp8_tensorwise"]},
    "deepseek_v3": {"pp": 16, "dp": 64, "ep": 64, "zero": 1, "gradient_accumulation_steps": 60, "moments": "bf16"},
}


def run_of(name: str, system: str = "h100_80g_dgx") -> Run:
    model, machine = load_model(name), load_system(system)
    design = DesignPoints.of(blocks=model.blocks, **LAYOUTS[name])
    return Run(model, machine, resolve_tiling(model, machine, design))


@pytest.mark.parametrize("system", ["h100_80g_dgx", "tpu_v5p_pod"])
@pytest.mark.parametrize("name", ["gpt3_175b", "deepseek_v3"])
def test_reloads_make_up_the_traffic_of_each_level(name, system):
    """Bytes of a level are those of both operands as often as they are read, and of the results."""
    actual = gemm_reloads(rank_run(run_of(name, system)))
    gemms = actual.gemms
    nearest, *levels = actual.levels.values()
    for level in levels:
        operands = 2 * gemms.batch * gemms.k * (gemms.m * level.of_a + gemms.n * level.of_b)
        results = gemms.output_bytes * gemms.batch * gemms.m * gemms.n * level.of_c
        np.testing.assert_allclose(operands + results, level.bytes_moved, rtol=1e-12)
        assert (level.of_c >= 1 - 1e-12).all()
        assert (level.of_a >= 1).all()
    np.testing.assert_array_equal(levels[0].of_a, np.ceil(gemms.n / actual.tile_n))
    np.testing.assert_allclose(nearest.of_c, 0.0, atol=1e-12)  # accumulators are in registers


def test_a_square_product_by_hand():
    """Tiles of 128 x 128 read each operand of a product of 1024 x 512 x 2048 once for each tile across."""
    model, system = load_model("gpt3_175b"), load_system("h100_80g_dgx")
    tiles = {f"qkv_tile_{axis}": 128 for axis in "mn"}
    resolved = resolve_tiling(model, system, DesignPoints.of(tp=8, tiling="sample", **tiles))
    actual = gemm_reloads(rank_run(Run(model, system, resolved)))
    m, n = 2048, 3 * 12288 / 8
    assert (actual.gemms.m[0, 0], actual.gemms.n[0, 0]) == (m, n)
    assert (actual.levels["l2"].of_a[0, 0], actual.levels["l2"].of_b[0, 0]) == (n / 128, m / 128)


def test_free_tiles_are_refused():
    model, system = load_model("gpt3_175b"), load_system("h100_80g_dgx")
    with pytest.raises(ValueError, match="resolve them first"):
        gemm_reloads(rank_run(Run(model, system, DesignPoints.of(tp=8))))


@pytest.mark.parametrize("name", LAYOUTS)
def test_groups_add_up_to_the_optimizer_of_the_step(name):
    run = run_of(name)
    groups = parameter_groups(run).values()
    for point in range(run.num_points):
        alone = run.take(np.array([point]))
        items = {
            item.name: np.asarray(values).item()
            for item, values in transformer_items(alone).items()
            if item.column == "optimizer_time" and item.quantity == "time"
        }
        launch = run.system.chip.kernel_launch.item()
        clipping, applying = (
            sum(np.broadcast_to(group[time], (run.num_points,))[point] for group in groups)
            for time in ("gradclip_time_s", "apply_grad_time_s")
        )
        assert clipping + launch == pytest.approx(items["clipping of gradients"], rel=1e-12)
        assert applying + launch == pytest.approx(items["update of weights"], rel=1e-12)
        every = clipping + applying + 2 * launch + items["all_reduce of the norm"]
        assert every == pytest.approx(step(alone.model, alone.system, alone.design).optimizer_time.item(), rel=1e-12)


def test_work_and_traffic_of_a_group_are_rule_op1_of_deepflow():
    """Clipping: 4 FLOP and 3 accesses of 4 bytes a parameter; the update: 3 FLOP and 7 (specs/deepflow.md)."""
    for group in parameter_groups(run_of("gpt3_175b")).values():
        assert group["gradclip_flops"] / group["owned"] == pytest.approx(4)
        assert group["gradclip_bytes"] / group["owned"] == pytest.approx(3 * 4)
        assert group["apply_grad_flops"] / group["owned"] == pytest.approx(3)
        assert group["apply_grad_bytes"] / group["owned"] == pytest.approx(7 * 4)


def test_groups_of_an_optimizer_that_shares_costs_are_refused():
    model, system = load_model("gpt3_175b"), load_system("h100_80g_dgx")
    design = resolve_tiling(model, system, DesignPoints.of(tp=8, optimizer="muon"))
    with pytest.raises(DseError, match="optimizer=adam"):
        parameter_groups(Run(model, system, design))


@pytest.fixture(scope="module")
def study(searched):
    return searched(Space.load("gpt3_175b_codesign"), 4, sampler="random")


def exported(study, trial, form):
    return pd.read_csv(io.BytesIO(study.export(trial, form).content))


@pytest.mark.slow
def test_every_trial_is_exported_as_graph_workload_and_tables(study):
    for trial in range(4):
        for form in ("dfmodel", "aicb"):
            assert study.export(trial, form).content
        gemms, params = exported(study, trial, "gemms"), study.optuna.trials[trial].params
        assert gemms[gemms["pass"] == "forward"].set_index("product").loc["qkv", "tile_m"] == params["qkv_tile_m"]
        assert {"dram_reload_AB", "l2_reload_BC", "sram_bytes", "time_s"} <= {*gemms.columns}
        groups = exported(study, trial, "optimizer")
        assert (groups["owned"] <= groups["parameters"]).all()


def test_explain_shows_reloads_and_groups(study):
    out = stdout_of("explain", study.name, "--storage", study.storage)
    for words in ("matrix product", "parameter group", "12 more: --all"):
        assert words in out
    explained = study.explain(0)
    assert len(explained.gemms) == 15
    assert {*explained.to_json()["optimizer"][0]} == {*explained.optimizer.columns}
