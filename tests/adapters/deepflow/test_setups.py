"""Files of DeepFlow's second and present generation: printed figures, choices, batches, and files that are wrong."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from costmodel.formats.input_files import data_beside, dump
from dse.adapters.deepflow.setups import PRESENT, SECOND, read_setup
from dse.adapters.deepflow.summaries import setup_figures
from tests.support.cases import cases
from tests.support.commands import json_of, outputs_of, stderr_of, stdout_of
from tests.support.paths import ROOT, TEST_DATA

DOCS = (ROOT / "docs" / "deepflow.md").read_text()
#: Runs of the reference; a comment there has their source.
RUNS = data_beside(str(TEST_DATA / "deepflow_setups.yaml"))
SECOND_RUNS = {run["folder"]: run for run in RUNS["second"]["runs"]}
PRESENT_RUNS = {f"{run['mode']}-{index}": run for index, run in enumerate(RUNS["present"]["runs"])}


def nested(flat: dict[str, Any]) -> dict[str, Any]:
    """Values by path as nested mappings."""
    tree: dict[str, Any] = {}
    for path, value in flat.items():
        *blocks, key = path.split(".")
        inner = tree
        for block in blocks:
            inner = inner.setdefault(block, {})
        inner[key] = value
    return tree


def stored_run(folder: Path, name: str) -> Path:
    """The file of a run of the second generation, in folders that are named as the reference names them."""
    path = folder / name / "exp_config.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(dump(nested(RUNS["second"]["base"] | SECOND_RUNS[name]["changes"])))
    return path


def present_files(
    folder: Path, changes: dict[str, Any], model: dict[str, Any], removed: tuple[str, ...] = ()
) -> list[str]:
    """Arguments with a hardware file of an A100 with other values, and a model file."""
    flat = {path: value for path, value in (RUNS["present"]["base"] | changes).items() if path not in removed}
    (folder / "hardware.yaml").write_text(dump(nested(flat)))
    (folder / "model.yaml").write_text(dump({"model_param": model}))
    return [str(folder / "hardware.yaml"), "--model-config", str(folder / "model.yaml")]


def evaluated(*arguments: str) -> dict[str, Any]:
    """Figures of the JSON that `dse evaluate` prints."""
    figures: dict[str, Any] = json_of("evaluate", *arguments)["figures"]
    return figures


def wrong(figures: dict[str, Any], printed: str) -> dict[str, tuple[str, str]]:
    """Printed figures that differ: as this model prints them, and as the reference did."""
    differing = {}
    for entry in printed.split():
        name, _, text = entry.partition("=")
        number, unit = text.rstrip("KMi"), text[-2:]
        value, decimals = figures[name] / {"Ki": 2**10, "Mi": 2**20}.get(unit, 1), len(number.partition(".")[2])
        rounded = repr(float(value)) if decimals > 10 else f"{value:.{decimals}f}"
        if rounded != number:
            differing[name] = rounded, number
    return differing


@pytest.mark.parametrize("name", SECOND_RUNS)
def test_stored_runs_of_the_second_generation_have_every_printed_figure(name, tmp_path):
    """113 figures each; the split and the number of tile candidates are those of the folder."""
    printed = SECOND_RUNS[name]["printed"]
    assert len(printed.split()) == 113
    assert wrong(evaluated(str(stored_run(tmp_path, name))), printed) == {}


@pytest.mark.parametrize("name", PRESENT_RUNS)
def test_runs_of_the_present_generation_have_every_printed_figure(name, tmp_path):
    run = PRESENT_RUNS[name]
    figures = evaluated(*present_files(tmp_path, run["changes"], run["model"], tuple(run["removed"])))
    if run["mode"] != "GEMM":
        assert wrong(figures, run["printed"]) == {}
        return
    lines = [
        f"Best Order: {figures['order']}",
        f"Best Tile: {tuple(map(tuple, figures['tile']))}",
        f"Time: {figures['Time']}",
    ]
    lines += [f"L{level}: {binary(figures[f'L{level}'])}" for level in range(4)]
    assert "\n".join(lines) == run["printed"].strip()


def binary(value: float) -> str:
    """Bytes as the reference prints them, in powers of 1024."""
    power = min(int(np.log2(max(value, 1)) // 10), 4)
    return f"{value / 1024**power:.2f} {('B', 'KB', 'MB', 'GB', 'TB')[power]}"


GEMM = {"mode": "GEMM", "M": 8192, "K": 1024, "N": 2048}
SMALL = {"mode": "LSTM", "batch_size": 64, "vocab_size": 4096, "num_layers": 2, "layer_size": 512, "projection": 128,
         "seq_len": 4, "num_gates": 4, "num_non_linear": 5, "num_add": 8, "data_scale": 1}  # fmt: skip


def test_a_product_by_hand(tmp_path):
    """Two multiply-adds per cycle and unit bind: flop over the used rate, and one launch."""
    figures = evaluated(*present_files(tmp_path, {}, GEMM))
    rate = 512 * 1.41e9 * 432 * 0.75
    assert figures["Time"] == pytest.approx(8192 * 2048 * (2 * 1024 - 1) / rate + 9e-6, rel=1e-12)
    assert figures["L3"] == 2 * (8192 * 1024 + 1024 * 2048)  # outputs stay in the DRAM


def test_options_state_the_command_line(tmp_path):
    """Without them the sizes are the defaults of the reference's command line, whatever the file has."""
    name, path = next(iter(SECOND_RUNS)), tmp_path / "exp_config.yaml"
    stored_run(tmp_path, name).rename(path)
    [(kind, kp1, kp2, dp)] = re.findall(r"/(CR|RC)_N64_k(\d+)_k(\d+)_d(\d+)_l1/", name)
    options = [f"--set={text}" for text in (f"t={kind}", f"kp1={kp1}", f"kp2={kp2}", f"dp={dp}", "lp=1")]
    assert wrong(evaluated(str(path), *options), SECOND_RUNS[name]["printed"]) == {}
    told = outputs_of("evaluate", str(path), *options, "--set", "batch_size=512", "--format", "json")
    assert ("batch_size=4096" in told.err, "lengthens clipped ones" in told.err) == (False, True)
    assert json.loads(told.out)["figures"]["mem1.embedding"] < 31.0


MISTAKES = cases(__file__, "MISTAKES")


@pytest.mark.parametrize(("options", "said"), MISTAKES)
def test_a_wrong_setup_is_one_line(options, said, tmp_path):
    told = outputs_of("evaluate", *present_files(tmp_path, {}, GEMM), *(f"--set={text}" for text in options), code=1)
    assert (told.out, len(told.err.splitlines())) == ("", 1)
    assert said in told.err


def test_missing_keys_are_told_as_the_reference_does(tmp_path):
    keys = tuple(f"scheduling_param.{key}" for key in ("t", "kp1", "kp2"))
    error = stderr_of("evaluate", *present_files(tmp_path, {}, GEMM, keys))
    assert "scheduling_param: missing 3 required positional arguments: 't', 'kp1', and 'kp2'" in error
    error = stderr_of("evaluate", *present_files(tmp_path, {}, GEMM, ("tech_param.core.FMA_d2",)))
    assert "tech_param.core: missing 1 required positional argument: 'FMA_d2'" in error
    old = present_files(tmp_path, {"area_breakdown.shared_mem": 0.1}, GEMM)
    assert "shared_mem: not read" in stderr_of("evaluate", *old)


def test_files_need_each_other(tmp_path):
    hardware, _, model = present_files(tmp_path, {}, GEMM)
    for arguments, said in (
        ([hardware], "describes hardware: name its model file"),
        ([model], "describes a model: evaluate a hardware file with --model-config"),
        ([str(stored_run(tmp_path, next(iter(SECOND_RUNS)))), "--model-config", model], "holds its model"),
        ([hardware, "--model-config", model, "--profile", "deepflow-gen2"], "is not a file of deepflow-gen2"),
    ):
        assert said in stderr_of("evaluate", *arguments)


def test_splits_that_do_not_divide_are_refused(tmp_path):
    files = present_files(tmp_path, {"system_hierarchy.kp1_inter": True}, SMALL)
    for options, said in (
        ("num_nodes=3 kp1=3 t=CR", "kp_hidden_dim1: is neither 2 nor a multiple of 4"),
        ("num_nodes=4 kp1=4 t=CR batch_size=2", "kp_hidden_dim1: exceeds the batch of a data shard"),
        ("num_nodes=2 lp=2", "lp: DeepFlow stops with an IndexError at lp 2"),
    ):
        assert said in stderr_of("evaluate", *files, *(f"--set={option}" for option in options.split()))


@pytest.mark.parametrize("generation", [SECOND, PRESENT])
def test_a_batch_gives_the_bits_of_one_by_one_evaluation(generation, tmp_path):
    """Designs of other powers, splits and stages, which are scheduled together where they have one stage."""
    if generation == SECOND:
        setup = read_setup(stored_run(tmp_path, next(iter(SECOND_RUNS))), SECOND, None, {"seq_len": "3", "lp": "1"})
    else:
        files = present_files(tmp_path, {}, SMALL)
        setup = read_setup(Path(files[0]), PRESENT, Path(files[2]), {})
    points = {
        "scheduling_param.dp": [1, 4, 2], "scheduling_param.lp": [1, 1, 3], "power_breakdown.core": [50.0, 100.0, 70.0],
        "system_hierarchy.num_nodes": [64, 64, 64], "system_hierarchy.num_workers": [64, 64, 64],
        "system_hierarchy.dp_inter": [1, 1, 1], "system_hierarchy.lp_inter": [1, 1, 1],
    }  # fmt: skip
    columns = {path: np.array(values, dtype=np.float64) for path, values in points.items()}
    together = setup_figures(replace(setup, sheet=setup.sheet | columns))
    assert len(set(together["Time"])) == 3
    for row in range(3):
        alone = setup_figures(replace(setup, sheet=setup.sheet | {k: v[row : row + 1] for k, v in columns.items()}))
        for name, values in alone.items():
            assert np.array_equal(np.broadcast_to(together[name], 3)[row], values[0], equal_nan=True), name


SPACES = cases(__file__, "SPACES")


@pytest.mark.parametrize("name", SPACES)
def test_a_space_on_files_has_the_times_of_the_files(name, tmp_path, monkeypatch):
    """Each design has the time of its files to the bit; designs that DeepFlow does not run are infeasible."""
    present_files(tmp_path, {}, SMALL)
    monkeypatch.chdir(stored_run(tmp_path, next(iter(SECOND_RUNS))).parent if name == "second" else tmp_path)
    Path("space.yaml").write_text(dump(SPACES[name]["space"]))
    actual = json_of("enumerate", "space.yaml")
    assert [actual["n_legal"], actual["n_infeasible"]] == SPACES[name]["designs"]
    for costs, params in ((row["breakdown"], row["params"]) for row in actual["front"]):
        chosen = [f"--set={k}={params.get(v, v)}" for k, v in SPACES[name]["options"].items()]
        alone = evaluated(*SPACES[name]["files"], *chosen)
        assert (costs["step_time_s"], costs["tflops"]) == (alone["Time"], alone["hw.throughput"])
    assert "dse explain" not in stdout_of("search", "space.yaml", "--budget", "2")  # its runs have no parts


# Executed by the reference (d3db86a, `--gemm True`) for the configuration of energy_per_xbit/CR_N64_k8_k1_d8_l1/10.
SECOND_PRODUCTS = cases(__file__, "SECOND_PRODUCTS")


@pytest.mark.parametrize(("flow", "m", "k", "n", "t", "kp1", "kp2", "order", "tiles", "time"), SECOND_PRODUCTS)
def test_products_of_the_second_generation_take_what_the_reference_printed(flow, m, k, n, t, kp1, kp2, order, tiles,
                                                                           time, tmp_path):  # fmt: skip
    """The base of the stored runs is that configuration but for the links. Unsplit, K and N are exchanged."""
    path = tmp_path / "exp_config.yaml"
    links = {"nominal_area_per_link": 0.0033788108825683594, "nominal_energy_per_link": 2.5390625e-14}
    changes = {f"tech_param.network.inter_node.{key}": value for key, value in links.items()}
    path.write_text(dump(nested(RUNS["second"]["base"] | changes)))
    options = {"mode": "GEMM", "M": m, "K": k, "N": n, "t": t, "kp1": kp1, "kp2": kp2, "dataflow": flow}
    figures = evaluated(str(path), *(f"--set={name}={value}" for name, value in options.items()))
    assert (figures["order"], figures["tile"][:3], figures["Time"]) == (order, tiles, time)
