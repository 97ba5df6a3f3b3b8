"""Kernel tables: small synthetic Parquet tables with the columns of aiconfigurator and known errors."""

import hashlib
from collections.abc import Sequence
from functools import partial

import numpy as np
import pandas as pd
import pytest

from costmodel import DseError, load_system
from dse import validate_kernels
from dse.adapters.aiconfigurator.tables import is_kept_apart, samples
from dse.adapters.aiconfigurator.times import TIMES, library_system, library_times
from dse.validation.kernels import attention_times, burst_time, gemm_times
from dse.validation.table import MeasuredRow
from tests.support.cases import by_table
from tests.support.commands import json_of, stderr_of, stdout_of
from tests.support.paths import TEST_DATA

H100 = load_system("h100_80g_dgx").with_quantities({"sustained": 1.0})


def products(dtype: str = "bfloat16", count: int = 60) -> pd.DataFrame:
    rng = np.random.default_rng(1)
    m, n, k = (rng.choice([512, 640, 1024, 4096, 8192], size=count) for _ in range(3))
    return pd.DataFrame({"gemm_dtype": dtype, "kernel_source": "cublas", "m": m, "n": n, "k": k}).drop_duplicates()


def timed(table: pd.DataFrame, precision: str, factor: float) -> pd.DataFrame:
    shape = {name: table[name].to_numpy(dtype=float) for name in ("m", "n", "k")}
    return table.assign(latency=1e3 * factor * TIMES["products"](shape, precision, H100))


def stored(folder, table: pd.DataFrame, *, kind: str = "gemm", library: str = "trtllm", release: str = "1.0.0"):
    release_folder = folder / "h100_sxm" / kind / library / release
    release_folder.mkdir(parents=True)
    table.to_parquet(release_folder / f"{kind if kind != 'attention' else 'context_attention'}_perf.parquet")


def test_errors_are_those_by_which_a_table_differs_from_the_model(tmp_path):
    stored(tmp_path, timed(products(), "bf16", 1.25), library="cublas")
    record = validate_kernels(tmp_path, system="h100")
    [group] = record["sizes"]
    assert group["in_steps"]["bias_percent"] == pytest.approx(-20.0)
    assert group["median_abs_error_percent"] == pytest.approx(20.0)
    assert group["kept_apart"]["bias_percent"] == pytest.approx(-20.0)
    assert 0 < group["kept_apart"]["rows"] < group["rows"] == record["rows_in_tables"]
    assert (group["system"], group["format"], group["size"]) == ("h100_sxm", "bf16", "m, n, k >= 512")


def test_kernels_of_a_library_have_its_constants_and_steps_do_not(tmp_path):
    """On a built-in system; a system file of its own keeps its constants."""
    fitted = library_system("h100", "trtllm")
    shape = {name: np.array([512.0, 4096.0]) for name in ("m", "n", "k")}
    times = burst_time(partial(TIMES["products"], shape, "bf16"), fitted)
    assert fitted.quantities()["matrix_efficiency"] != H100.quantities()["matrix_efficiency"]
    table = pd.DataFrame({"gemm_dtype": "bfloat16", "kernel_source": "moe_cutlass", **shape})
    stored(tmp_path, table.assign(latency=1e3 * times))
    [sample] = samples(tmp_path, system="h100")
    assert [*sample.rows["family"]] == ["trtllm cutlass"] * 2
    np.testing.assert_allclose(library_times(sample), sample.rows["measured"], rtol=0.02)
    vllm, triton = (library_system("h100", name).quantities() for name in ("vllm", "vllm triton"))
    assert triton["modules_other_pairs"] > vllm["modules_other_pairs"]
    (tmp_path / "mine.yaml").write_text("schema: system/v1\nbase: h100_80g_dgx\n")
    mine = library_system(str(tmp_path / "mine.yaml"), "trtllm").quantities()
    assert mine["matrix_efficiency"] == H100.quantities()["matrix_efficiency"]


def test_rows_that_say_little_of_kernels_are_counted_apart(tmp_path):
    usual = timed(products(), "bf16", 1.0)
    stored(tmp_path, pd.concat([usual, usual.iloc[:3].assign(latency=1e-6), products("int8_wo").assign(latency=1.0)]))
    stored(tmp_path, timed(products("fp8_block"), "fp8_blockwise", 1.0).assign(latency=0.15), library="vllm")
    stored(tmp_path, usual.assign(power=690.0), library="sglang")
    stored(
        tmp_path, usual.iloc[:5].assign(latency=[np.nan, np.inf, 0, -1, 9], n=[1, 1, 1, 1, np.nan]), library="cublas"
    )
    experts = pd.read_csv(TEST_DATA / "experts_of_ranks.csv")
    stored(tmp_path, experts, kind="moe")
    record = validate_kernels(tmp_path)
    left_out = {one["reason"]: one["rows"] for one in record["left_out"]}
    assert left_out == {
        "an empty shape, or no time": 5,
        "faster than the data sheet allows": 3,
        "a number format without a formula": len(usual),
        "launched from Python, not from a CUDA graph": len(usual),
        "timed for a second, at the power limit": len(usual),
        "tokens of other ranks are computed": 2,  # of the kernel that is as slow on eight ranks as on one
    }
    assert record["rows_compared"] == len(usual) + len(experts) - 2


def test_kept_apart_shapes_are_those_whose_sha1_begins_with_8_to_f():
    shapes = pd.DataFrame({"m": [1, 4096, 8192], "n": [2, 512, 8192], "k": [3, 1024, 8192]})
    first = [hashlib.sha1(text).hexdigest()[0] for text in (b"1,2,3", b"4096,512,1024", b"8192,8192,8192")]
    assert list(is_kept_apart(shapes)) == [digit in "89abcdef" for digit in first]


def test_the_current_release_is_the_newest_with_half_of_the_shapes(tmp_path):
    for release, rows in (("1.3.0rc9", 40), ("1.3.0rc20", 30), ("1.3.0rc23", 5)):
        stored(tmp_path, timed(products(), "bf16", 1.0).iloc[:rows], release=release)
    releases = validate_kernels(tmp_path)["releases"]
    current = {"1.3.0rc20": True, "1.3.0rc23": False, "1.3.0rc9": False}
    assert {one["release"]: one["current"] for one in releases} == current


def test_a_draw_takes_as_many_rows_of_each_stratum_and_repeats(tmp_path):
    stored(tmp_path, pd.concat([timed(products(), "bf16", 1.0), timed(products("fp8"), "fp8_tensorwise", 1.0)]))
    [drawn], [again] = (list(samples(tmp_path, rows=20)) for _ in range(2))
    assert drawn.rows.groupby("format").size().to_dict() == {"bf16": 10, "fp8_tensorwise": 10}
    pd.testing.assert_frame_equal(drawn.rows, again.rows)


def one_value(shape: dict[str, float]) -> dict[str, np.ndarray]:
    return {name: np.array([value]) for name, value in shape.items()}


@pytest.mark.parametrize(("heads", "kv_heads", "size", "seq"), [(32, 8, 128, 4096), (24, 24, 64, 2000)])
def test_attention_and_products_cost_what_rows_of_measurements_do(heads, kv_heads, size, seq):
    row = MeasuredRow(row_type="kernel_attention", dataset="x", op="forward", mbs=3, seq=seq, heads=heads,
                      kv_heads=kv_heads, hidden=heads * size)  # fmt: skip
    shape = one_value({"batch_size": 3, "isl": seq, "num_heads": heads, "num_key_value_heads": kv_heads,
                       "head_dim": size})  # fmt: skip
    assert TIMES["attention"](shape, "bf16", H100) == pytest.approx(attention_times([row], "forward", H100))
    product = MeasuredRow(row_type="kernel_gemm", dataset="x", op="cast", m=512, n=1000, k=seq)
    of_table = TIMES["products"](one_value({"m": 512, "n": 1000, "k": seq}), "fp8_tensorwise", H100)
    assert of_table == pytest.approx(gemm_times([product], "fp8_tensorwise", H100))


def test_grouped_rows_take_the_products_of_the_experts_that_a_rank_holds():
    """Experts split over ranks, or their widths: half of the work each, as long as all experts have tokens."""
    shape = {"num_tokens": 65536, "hidden_size": 4096, "inter_size": 8192, "topk": 2, "num_experts": 8, "gated": 2.0}
    free = H100.with_quantities({"kernel_launch": 0.0, "expert_latency": 0.0, "tile_latency": 0.0})
    whole, ranks, widths = (
        TIMES["grouped"](one_value({**shape, "moe_tp_size": tp, "moe_ep_size": ep}), "bf16", free).item()
        for tp, ep in ((1, 1), (1, 2), (2, 1))
    )
    assert whole > (2 * 3 * 65536 * 2 * 4096 * 8192) / free.chip.matrix_flop_rate.item()
    assert ranks / whole == pytest.approx(0.5, rel=0.05)
    assert widths / whole == pytest.approx(0.5, rel=0.1)


@by_table("arguments", "message")
def test_a_folder_or_an_option_that_does_not_fit_is_refused(tmp_path, arguments: Sequence[str], message):
    stored(tmp_path, timed(products(), "bf16", 1.0))
    error = stderr_of("validate", "--kernels", str(tmp_path), *arguments)
    assert message in error
    assert error.count("\n") == 1


BROKEN = {"no column n, k": {}, "expected numbers, got bool": {"m": True}, "expected numbers, got list": {"m": [[8]]}}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_table_is_one_line(message, tmp_path):
    table = timed(products(), "bf16", 1.0).iloc[:1].assign(**BROKEN[message])
    stored(tmp_path, table if BROKEN[message] else table[["m"]])
    with pytest.raises(DseError, match=message):
        validate_kernels(tmp_path)
    next(tmp_path.rglob("*.parquet")).write_bytes(b"version https://git-lfs")
    with pytest.raises(DseError, match="not a Parquet file"):
        validate_kernels(tmp_path)


def test_the_command_prints_a_table_for_each_kind(tmp_path):
    stored(tmp_path, timed(products(), "bf16", 1.25), library="cublas")
    shown = stdout_of("validate", "--kernels", str(tmp_path))
    assert "Products, by format and size" in shown
    assert "h100_sxm" in shown
    assert "20 / 20" in shown
    assert json_of("validate", "--kernels", str(tmp_path), "--rows", "8")["rows_compared"] == 8
