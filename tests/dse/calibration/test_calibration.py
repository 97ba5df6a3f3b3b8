"""`dse calibrate`: known constants are found again, those that rows cannot tell are left, files load."""

import csv
import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks import measure_gpu
from costmodel import load_system
from costmodel.formats.input_files import parse
from costmodel.formats.shipped import located
from costmodel.formats.system_file import quantity_place, read_system, with_constants
from dse.calibration.calibration import calibrated, folds, selected
from dse.calibration.constants import COLLECTIVES, KERNELS, STEPS, candidates
from dse.calibration.measurements import measurements
from dse.validation.comparison import compared
from dse.validation.table import COLUMNS, MeasuredRow, read_table
from tests.support.commands import json_of, stderr_of, stdout_of

SYSTEM = "h100_80g_dgx"
SHIPPED = located(SYSTEM, "systems", Path())
#: What the machine of these tests differs in from the shipped one.
TRUTH = {"matrix_efficiency": 0.76, "node_launch": 2e-5, "sustained": 0.9, "host_dispatch": 1e-4}
#: Standard deviation of repeated measurements. [-]
NOISE = 0.01

OWN = MeasuredRow(row_type="kernel_gemm", dataset="own", dtype="bf16", op="all_gather", latency_us=1)
PRODUCTS = [
    replace(OWN, id=f"{m} {n} {k}", m=m, n=n, k=k)
    for m in (128, 1024, 8192)
    for n, k in ((4096, 4096), (1536, 12288), (28672, 8192), (512, 512))
]
GATHERS = [
    replace(OWN, row_type="kernel_coll", id=f"{ranks} {size}", msg_bytes=size, n_ranks=ranks)
    for ranks in (2, 4, 8)
    for size in (2.0**14, 2.0**20, 2.0**26, 2.0**30)
]
RUN = MeasuredRow(
    row_type="train_step", dataset="own", framework="megatron_core", model="gpt", iter_time_s=1.0, layers=24,
    heads=16, seq=2048, vocab=51200, dtype="bf16", recompute="none", tp=2, pp=1, mbs=1, attn_kernel="flash",
)  # fmt: skip
STEPS_OF_ONE_NODE = [
    replace(RUN, id=f"{hidden} {ga}", hidden=hidden, ffn=4 * hidden, gpus=8, dp=4, ga=ga, gbs=4 * ga)
    for hidden in (512, 1024, 4096, 8192)
    for ga in (2, 4, 8)
]


def timed(rows, truth=TRUTH, noise=NOISE):
    """Rows as the machine of these tests runs them."""
    machine = load_system(SYSTEM).with_quantities(truth)
    actual = []
    for measured in measurements(compared(rows, SYSTEM), SYSTEM, machine).values():
        times = np.exp(measured.log_ratios({})[0]) * [row.iter_time_s or row.latency_us * 1e-6 for row in measured.rows]
        times *= np.exp(noise * np.random.default_rng(1).standard_normal(len(times)))
        actual += [
            replace(row, iter_time_s=time) if row.iter_time_s else replace(row, latency_us=time * 1e6)
            for row, time in zip(measured.rows, times.tolist(), strict=True)
        ]
    return actual


@pytest.fixture(scope="module")
def calibration():
    """Of a machine that differs from the shipped one in constants of all kinds."""
    return calibrated(timed([*PRODUCTS, *GATHERS, *STEPS_OF_ONE_NODE]), SYSTEM)


@pytest.mark.slow
def test_known_constants_are_found_again(calibration):
    """Within three standard errors, and those are small; nothing else moves far."""
    actual = {constant.name: constant for stage in calibration.stages for constant in stage.constants}
    for name, value in TRUTH.items():
        assert abs(actual[name].after - value) < 3 * actual[name].standard_error
        assert actual[name].standard_error < 0.1 * value


@pytest.mark.slow
def test_rows_held_out_are_met_as_well_as_their_noise_lets(calibration):
    for stage in calibration.stages:
        assert np.abs(stage.before).mean() > 5 * NOISE
        assert np.abs(stage.after).mean() < 1.5 * NOISE
        assert np.abs(stage.held_out).mean() < 2.5 * NOISE


@pytest.mark.slow
def test_the_file_loads_and_prices_as_fitted(calibration, tmp_path):
    """Lines of other constants are those of the shipped file, comments too."""
    path = tmp_path / "mine.yaml"
    path.write_text(calibration.text)
    system, told = load_system(path), {constant.name for stage in calibration.stages for constant in stage.constants}
    for name, value in calibration.system.quantities().items():
        np.testing.assert_array_equal(system.quantities()[name], value, err_msg=name)
    rows = compared(timed(STEPS_OF_ONE_NODE), str(path))
    np.testing.assert_allclose([np.log1p(one.error) for one in rows], calibration.stages[-1].after, atol=1e-12)
    changed = {*SHIPPED.read_text().splitlines()} - {*calibration.text.splitlines()}
    assert len(changed) == len(told) + 1  # and the description


def test_a_machine_that_is_as_shipped_keeps_its_constants():
    for stage in calibrated(timed([*PRODUCTS, *GATHERS], {}), SYSTEM).stages:
        for constant in stage.constants:
            assert constant.after == pytest.approx(constant.before, rel=NOISE)
        assert len(stage.constants) < 2 < len(stage.left_out)


def test_what_rows_cannot_tell_apart_is_said():
    """Of two constants whose product alone matters one is fitted."""
    rows = timed(STEPS_OF_ONE_NODE)
    steps = measurements(compared(rows, SYSTEM), SYSTEM, load_system(SYSTEM))[STEPS]
    constants = [one for stage in [*candidates(steps.system).values()][::-1] for one in stage]
    why = selected(
        steps, constants, {one.name: steps.system.quantities()[one.name].item() for one in constants}
    ).left_out
    assert why["matrix_efficiency"] == "rows cannot tell it from sustained"
    assert why["host_straggler"] == "no row depends on it"  # which is for several nodes
    assert why["fabric_launch"] == "no row depends on it"


def test_kernels_do_not_tell_what_a_chip_holds_for_hours():
    """They run at the clock of a burst."""
    kernels = measurements(compared(timed(PRODUCTS), SYSTEM), SYSTEM, load_system(SYSTEM))[KERNELS]
    np.testing.assert_array_equal(*kernels.log_ratios({"sustained": np.array([0.5, 0.9])}))


def test_rows_of_one_configuration_are_held_out_together():
    held = folds(["a", "a", "b", "c", "c", "d"], 3)
    assert sum(held).tolist() == [1] * 6
    for fold in held:
        assert fold[0] == fold[1]
        assert fold[3] == fold[4]
    assert len(folds(["a", "a", "b", "b"], 5)) == 4  # too few of them: single rows


def test_constants_are_written_where_they_stand():
    """Into blocks and into braces, with comments, and into parts that a file has not."""
    system = load_system(SYSTEM)
    assert quantity_place(system, "node_in_switch_rate") == ("network", "node", "in_switch_rate")
    assert quantity_place(system, "clock") == ("chip", "clock")
    block = "clock: # of a boost\n    value: 1 GHz\n    kind: assumed\n    source: mine\n  # below\n"
    text = re.sub(r"clock: .*\n", block, SHIPPED.read_text()) + "software: {}\n"
    new = {("chip", "clock"): "2 GHz", ("chip", "mx_speedup"): "3", ("software", "pointwise_kernels"): "4"}
    constants = {at: {"value": value, "kind": "fitted", "source": 'a "fit"'} for at, value in new.items()}
    changed = with_constants(text, "own", constants, "mine")
    system = read_system(parse(changed, "own"), "own")
    actual = [system.quantities()[name].item() for name in ("clock", "mx_speedup", "software_pointwise_kernels")]
    assert actual == [2e9, 3, 4]
    assert changed.count("#") == text.count("#")


def test_a_standard_error_is_a_quantity():
    text = SHIPPED.read_text().replace("dispatch: {", "dispatch: {standard_error: 3 W, ")
    section = parse(text, "own")
    read_system(section, "own")
    with pytest.raises(Exception, match=r"host.dispatch.standard_error: '3 W': expected a number and a unit"):
        section.source.finish()


def test_what_a_gpu_is_measured_by_is_priced(tmp_path, capsys):
    """Every row that `benchmarks/measure_gpu.py` times on eight GPUs; without one it says what it needs."""
    table = tmp_path / "own.csv"
    planned = [replace(row, latency_us=1.0) for row in measure_gpu.plan(8)]
    measure_gpu.write(table, planned, "H100-SXM5-80GB", "a script")
    rows = compared(read_table(table), SYSTEM)
    assert len(rows) == len(planned) > 300
    assert [one.why_not for one in rows if not one.predicted_s > 0] == []
    assert measurements(rows, SYSTEM, load_system(SYSTEM)).keys() == {KERNELS, COLLECTIVES}
    assert measure_gpu.main(["--dry-run", "--only", "kernel_stream"]) == 0
    assert "row_type=kernel_stream" in capsys.readouterr().out
    if importlib.util.find_spec("torch") is None:
        assert measure_gpu.main([]) == 1
        assert "needs PyTorch" in capsys.readouterr().err


def write(path, rows):
    """A table of measurements as a CSV file."""
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, [*COLUMNS])
        table.writeheader()
        for row in rows:
            values = {name: getattr(row, name) for name in COLUMNS}
            table.writerow({name: value for name, value in values.items() if value not in ("", 0.0, -1.0)})


def test_the_command_prints_errors_of_rows_held_out(tmp_path):
    write(tmp_path / "mine.csv", timed(PRODUCTS))
    text = stdout_of("calibrate", "mine.csv", "--system", SYSTEM, "-o", "mine.yaml")
    assert "matrix_efficiency" in text
    assert "held out" in text
    assert "no row depends on it" in text
    record = json_of("calibrate", "mine.csv", "--system", "mine.yaml")
    assert not record["constants"]  # it is calibrated already
    assert record["errors"][0]["held_out"]["mean_abs_error_percent"] < 200 * NOISE


@pytest.mark.parametrize("count", [1, 2])
def test_rows_that_determine_no_constant_give_one_scale(count, tmp_path):
    """Twice the predicted time is a scale of 2; its error is known from two rows on, and the reason is stated."""
    rows = compared(timed(PRODUCTS), SYSTEM)[:count]
    factors = (2.0,) if count == 1 else (1.0, 4.0)
    doubled = [replace(one.row, latency_us=1e6 * factor * one.predicted_s, kernel_tflops=0.0)
               for one, factor in zip(rows, factors, strict=True)]  # fmt: skip
    write(tmp_path / "mine.csv", doubled)
    text = " ".join(stdout_of("calibrate", "mine.csv", "--system", SYSTEM, "-o", "mine.yaml").split())
    assert "Rows of kernels take 2 times as long as predicted" in text
    assert ("1 row: the error is unknown" if count == 1 else "standard error") in text
    assert ("1 row is too few to hold some out" in text) == (count == 1)
    [scale] = json_of("calibrate", "mine.csv", "--system", SYSTEM, "-o", "mine.yaml")["scales"]
    assert scale["measured_over_predicted"] == pytest.approx(2, rel=1e-3)
    assert scale["standard_error"] == (None if count == 1 else pytest.approx(2 * np.log(4) / 2, rel=1e-3))


TWO_MACHINES = [replace(row, hw=hw) for row, hw in zip(PRODUCTS, ("H100-SXM5-80GB", "A100-SXM4-80GB"), strict=False)]


@pytest.mark.parametrize(("rows", "options", "message"), [
    (PRODUCTS, ["--system", "nosuch"], "unknown system 'nosuch'"),
    (PRODUCTS, ["--framework", "megatrn"], "unknown framework 'megatrn'"),
    ([], [], "mine.csv: no rows below its heading"),
    ([replace(RUN, row_type="memory", mem_gb="80")], [], "no row to fit; most lack "),
    (TWO_MACHINES, [], "rows of 2 machines (a100_80g_dgx, h100_80g_dgx): calibrate one at a time"),
])  # fmt: skip
def test_bad_input_is_one_clear_line(rows, options, message, tmp_path):
    write(tmp_path / "mine.csv", rows)
    [line] = stderr_of("calibrate", "mine.csv", "--system", SYSTEM, *options).splitlines()
    assert message in line
