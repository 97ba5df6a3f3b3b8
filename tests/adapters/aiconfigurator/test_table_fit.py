"""Fits to kernel tables: synthetic Parquet tables of a machine whose constants are known."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from costmodel import load_system
from dse import calibrate, validate_kernels
from dse.adapters.aiconfigurator.tables import KINDS, KernelSample, is_kept_apart
from dse.adapters.aiconfigurator.times import sample_times
from dse.calibration.constants import candidates
from tests.support.cases import cases
from tests.support.commands import json_of

#: Constants of the machine that the tables below are of.
KNOWN = cases(__file__, "KNOWN")


def shapes(kind: str, rng: np.random.Generator) -> pd.DataFrame:
    """Shapes of training's sizes."""
    count = 300
    if kind == "products":
        table = pd.DataFrame({name: rng.choice([512, 768, 1024, 2048, 4096, 8192], count) for name in "mnk"})
        return table.assign(gemm_dtype=rng.choice(["bfloat16", "fp8"], count))
    if kind == "attention":
        table = pd.DataFrame({"batch_size": rng.choice([1, 2, 4], count), "isl": rng.choice([512, 2048, 8192], count)})
        table = table.assign(num_heads=rng.choice([8, 16, 32], count), num_key_value_heads=8)
        return table.assign(head_dim=rng.choice([64, 128, 256], count), attn_dtype="bfloat16")
    table = pd.DataFrame({"num_gpus": rng.choice([2, 4, 8], count), "message_size": 2 ** rng.integers(8, 28, count)})
    return table.assign(op_name=rng.choice(["all_gather", "all_reduce", "alltoall"], count), nccl_dtype="half")


@pytest.fixture(scope="module")
def tables(tmp_path_factory) -> Path:
    """A folder with tables of products, attention and collectives whose times are those of the known machine."""
    folder, rng = tmp_path_factory.mktemp("tables"), np.random.default_rng(0)
    machine = load_system("h100_80g_dgx").with_quantities(KNOWN)
    for kind in ("products", "attention", "collectives"):
        release = folder / "h100_sxm" / kind / ("nccl" if kind == "collectives" else "trtllm") / "1.0.0"
        release.mkdir(parents=True)
        table = shapes(kind, rng).drop_duplicates(ignore_index=True)
        formats = {word: names[0] for word, names in KINDS[kind]["formats"].items()}
        rows = table.assign(format=table[KINDS[kind]["format"]].map(formats), kernel="x")
        if kind == "collectives":
            rows["message_bytes"] = 2 * rows["message_size"]
        times = sample_times(KernelSample("h100_sxm", kind, "h100", rows, 0, {}), machine)
        table.assign(kernel_source="x", latency=1e3 * times).to_parquet(release / f"{KINDS[kind]['file']}.parquet")
    return folder


@pytest.fixture(scope="module")
def fitted(tables, tmp_path_factory) -> tuple[Path, dict]:
    """The file and the record of a fit to all tables."""
    path = tmp_path_factory.mktemp("fitted") / "fitted.yaml"
    return path, json_of("calibrate", "--tables", str(tables), "--system", "h100", "-o", str(path))


@pytest.mark.slow
def test_a_fit_finds_the_constants_of_the_machine_that_was_timed(tables, fitted):
    path, record = fitted
    assert max(Counter(constant["rows"] for constant in record["constants"]).values()) <= 15
    actual = load_system(path).quantities()
    for name in ("matrix_efficiency", "fp8_efficiency", "node_efficiency", "node_launch", "exponentials"):
        assert actual[name] == pytest.approx(KNOWN[name], rel=0.1), name
    before, after = (validate_kernels(tables, system=system) for system in ("h100", str(path)))
    for was, now in zip(before["sizes"], after["sizes"], strict=True):
        assert now["kept_apart"]["median_abs_error_percent"] < 3
        assert now["kept_apart"]["median_abs_error_percent"] < was["kept_apart"]["median_abs_error_percent"]


@pytest.mark.slow
def test_a_file_says_what_its_constants_rest_on(fitted):
    path, record = fitted
    assert "kind: fitted" in path.read_text()
    assert "shapes of products of aiconfigurator (trtllm 1.0.0): median error of" in path.read_text()
    assert record["left_out"]["fp4_efficiency"] == "no row depends on it"


@pytest.mark.slow
def test_shapes_that_are_kept_apart_do_not_change_a_fit(tables, fitted, tmp_path):
    """Kept-apart rows that are ten times as slow."""
    table_path = Path("h100_sxm", "collectives", "nccl", "1.0.0", "nccl_perf.parquet")
    table = pd.read_parquet(tables / table_path)
    apart = is_kept_apart(table[["num_gpus", "message_size"]])
    (tmp_path / table_path).parent.mkdir(parents=True)
    table.assign(latency=table["latency"] * np.where(apart, 10.0, 1.0)).to_parquet(tmp_path / table_path)
    other = calibrate(tables=tmp_path, system="h100").stages[-1]
    usual = {one["name"]: one["after"] for one in fitted[1]["constants"] if one["rows"] == other.name}
    assert {one.name: one.after for one in other.constants} == usual


@pytest.mark.parametrize("name", ["h100_80g_dgx", "b200_180g_dgx", "tpu_v5e_pod", "gb300_288g_nvl72"])
def test_no_fit_leaves_the_values_that_the_reader_accepts(name):
    system = load_system(name)
    ranges = system.ranges()
    for constants in candidates(system).values():
        assert all(ranges[one.name].holds([one.low, one.high]).all() for one in constants)
