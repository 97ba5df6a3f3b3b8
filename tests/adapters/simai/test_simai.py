"""SimAI's analytical mode: what the built simulators print, laws of each rule, and what has no number."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from costmodel.errors import DseError
from dse.adapters.simai.bandwidth import Busbw
from dse.adapters.simai.files.aicb import endtoend_csv, read_workload
from dse.adapters.simai.files.busbw import read_busbw
from dse.adapters.simai.time import Overlap, missing, price
from dse.adapters.simai.workload_rows import Parallelism, Pass, Row, StepRows
from tests.support.aicb_files import DECEMBER, OCTOBER, SMALL, links, moe_rows, scaled_rows, sp_rows, with_header
from tests.support.cases import cases
from tests.support.paths import TEST_DATA

NAN = float("nan")
H100, A100 = links(370.8, 48.5), links(240, 23.5)
FIRST, FILE, LINKS = "simai-2024-10", "simai-2024-12", "simai-2025-07"
# Printed by the simulators built at commits bf0a9a77, 4e66932a and 13696181, in microseconds; the last row
# is in upstream's pull request 294. They print whole ones, but for the first.
PRINTED = cases(__file__, "PRINTED")
ROWS = {"sp": sp_rows, "scaled": scaled_rows}
NETWORKS = {"October": OCTOBER, "December": DECEMBER, "H100": H100, "A100": A100, "slow H100": links(360, 48.5)}
TOTALS = ("exposed_dp", "exposed_tp", "exposed_pp", "bubble", "total_compute", "total_exposed", "total")


def microseconds(report, names=TOTALS):
    return [float(getattr(report.totals, f"{name}_time")[0]) * 1e6 for name in names]


@pytest.mark.parametrize(("rows", "header", "gpus", "revision", "network", "overlap", "printed"), PRINTED)
def test_totals_agree_with_the_simulators(rows, header, gpus, revision, network, overlap, printed):
    workload = with_header(ROWS[rows](), **header)
    report = price(workload, NETWORKS[network], revision=revision, world_size=gpus, overlap=Overlap(pp=overlap))
    tolerance = 1e-3 if revision == FIRST else 0.5 + 1e-3  # as printed
    assert microseconds(report) == pytest.approx(printed, abs=tolerance, nan_ok=True)


def test_experts_agree_with_the_total_that_upstream_publishes():
    report = price(moe_rows(), links(360, 48.5), revision=LINKS)
    assert microseconds(report, ["total"]) == pytest.approx([7545619], abs=0.5)


def one_row(kind, size, *, of_pass="forward", group=None, **layout):
    """A workload of a single collective."""
    passes = {of_pass: Pass(0.0, kind, size, group)}
    groups = {"tp": 8, "pp": 1, "vpp": 1, "gradient_accumulation_steps": 1, "world_size": 64, **layout}
    one = np.ones(1)
    return StepRows.of(
        [Row("row", "prologue", **passes)], layers=one, micro_batches=one,
        layout=Parallelism.of(**groups).map(np.atleast_1d),
    )  # fmt: skip


def communication(*args, network=H100, revision=LINKS, strict=False, gpus_per_server=8, **row):
    """Time of a single collective. [ns]"""
    rows = one_row(*args, **row)
    report = price(rows, network, revision=revision, strict=strict, gpus_per_server=gpus_per_server)
    return float(np.nansum(report.communication)) if not np.isnan(report.communication).any() else NAN


def test_any_group_on_any_machine_as_one_collective_at_a_time():
    """In single precision, so that a bandwidth may be its neighbour."""
    rows = pd.read_csv(TEST_DATA / "simai_collectives.csv", comment="#")
    assert 0 < rows.time.isna().sum() < 100
    for row in rows.itertuples():
        machine = links(row.nvlink, row.nic, gpus_per_server=row.gpus, nics_per_server=row.nics)
        groups = {"group": row.group, "tp": row.tp, "ep": row.ep, "world_size": row.tp * row.dp}
        actual = communication(row.kind, float(row.bytes), of_pass=row.of_pass, **groups, network=machine)
        assert actual == pytest.approx(row.time, rel=2e-7, abs=1, nan_ok=True), row


def test_a_ring_over_eight_ranks_by_hand():
    """448 MiB over 280 GiB/s, 7 of 8 parts: 1.3671875 ms."""
    assert communication("all_gather", 448 * 2.0**20, network=DECEMBER, revision=FILE) == 1367187


def test_small_messages_take_what_their_group_takes():
    assert communication("all_reduce", 2.0**19) == 15000
    assert communication("all_reduce", 2.0**19, tp=2) == 10000
    assert communication("all_reduce", 2.0**19, tp=6, world_size=66) == 0  # not one of the known sizes
    assert communication("all_reduce", 2.0**19, network=DECEMBER, revision=FILE) > 0


# group, pass, kind: GiB/s in the file of December; free where the reference leaves it out.
TOLD = cases(__file__, "TOLD")


@pytest.mark.parametrize(("group", "of_pass", "kind", "bandwidth"), TOLD)
def test_each_group_takes_its_bandwidth_from_the_file(group, of_pass, kind, bandwidth):
    size, ranks = 3 * 2.0**30, {"tp": 8, "ep": 4, "dp": 32, "dp_ep": 8}[group]
    took = communication(
        kind, size, of_pass=of_pass, group=group, ep=4, world_size=256, network=DECEMBER, revision=FILE
    )
    if bandwidth is None:
        assert np.isnan(took)
    else:
        twice = 2 if kind == "all_reduce" else 1
        assert took == np.floor(3 / bandwidth * 1e9 * twice * (ranks - 1) / ranks)


def test_a_single_server_reduces_over_nvlink_and_sends_the_rest_for_nothing():
    alone = {"tp": 2, "world_size": 8, "of_pass": "weight_gradient", "network": DECEMBER, "revision": FILE}
    assert communication("all_reduce", 2.0**30, **alone) == np.floor(1 / 300 * 1e9 * 2 * 3 / 4)
    assert communication("all_gather", 2.0**30, **alone) == 0


def test_overlap_hides_its_share_of_each_group():
    rows, half = read_workload(SMALL, "small").workload, Overlap(dp=0.5, tp=0.5, ep=0.5, pp=1)
    names = ["exposed_dp", "exposed_dp_ep", "exposed_tp", "exposed_ep"]
    whole, rest = (microseconds(price(rows, A100, revision=LINKS, overlap=o), names) for o in (Overlap(), half))
    assert min(whole) > 0
    assert rest == pytest.approx([value / 2 for value in whole], abs=0.005)


def test_the_bubble_leaves_out_the_embedding_and_weights():
    """(pp - 1) / (ga * vpp) of arithmetic and blocking communication, before overlap."""
    report = price(read_workload(SMALL, "small").workload, A100, revision=LINKS, overlap=Overlap(tp=0.5))
    compute = 7 + 11 + 13 + 29000 + 31000 + 37 + 41 + 43 + 47
    blocking = report.communication[0, [0, 2, 3, 4], :2].sum()
    [bubble] = microseconds(report, ["bubble"])
    assert bubble == pytest.approx((3 - 1) / (5 * 2) * (compute + blocking) / 1e3)


UNDEFINED = cases(__file__, "UNDEFINED")
MACHINES = NETWORKS | {"two NICs": links(300, 50, nics_per_server=2)}


@pytest.mark.parametrize(("header", "collective", "machine", "said", "shown"), UNDEFINED.values(), ids=UNDEFINED)
def test_what_has_no_number_is_said_and_shown_on_request(header, collective, machine, said, shown):
    rows = one_row(**collective) if collective else with_header(sp_rows(), **header)
    network = MACHINES[machine]
    revision = FILE if isinstance(network, Busbw) else LINKS
    report = price(rows, network, revision=revision)
    assert np.isnan(report.totals.total_time[0])
    assert said in " ".join(missing(report, network, revision=revision))
    strict = price(rows, network, revision=revision, strict=True)
    assert said in " ".join(missing(strict, network, revision=revision))
    total = strict.totals.total_time[0] * 1e9
    if shown is not None:
        assert total == pytest.approx(shown, nan_ok=True)


def test_endless_rows_and_large_messages_are_said():
    rows = sp_rows(pp_message_bytes=2.0**31)
    rows = replace(rows, time=rows.time * 1e3)
    report = price(rows, H100, revision=LINKS)
    said = " ".join(missing(report, H100, revision=LINKS))
    assert "row embedding_layer: a time of 2^31 ns or more" in said
    assert "pp_comm: 2^31 bytes or more" in said


def test_a_revision_takes_its_own_bandwidths():
    with pytest.raises(DseError, match="simai-2025-07: takes only the links of the machine"):
        price(sp_rows(), DECEMBER, revision=LINKS)
    with pytest.raises(DseError, match="simai-2024-10: takes only a file of bus bandwidths"):
        price(sp_rows(), H100, revision=FIRST)
    with pytest.raises(DseError, match="world size: less than tp \\* pp"):
        price(sp_rows(), H100, revision=LINKS, world_size=64)


UPSTREAM_FILE = cases(__file__, "UPSTREAM_FILE")


@pytest.mark.parametrize("text", [
    UPSTREAM_FILE,
    UPSTREAM_FILE.replace("  ", ""),
    UPSTREAM_FILE.replace("test\n", "").replace(",:", ":"),
], ids=["upstream", "without indentation", "as YAML"])  # fmt: skip
def test_bus_bandwidths_are_read_as_upstream_writes_them(text):
    busbw = read_busbw(text, "busbw.yaml")
    assert busbw.pp == 47.5
    for key, value in DECEMBER.by_name.items():
        assert busbw.of(*key) == value
    assert busbw.of("dp", "all_reduce") < 0


#: The file of October 2024, which names the size of a message with each collective.
FIRST_FILE = cases(__file__, "FIRST_FILE")


def test_the_bandwidths_of_october_2024_are_those_of_its_printed_totals():
    busbw = read_busbw(FIRST_FILE, "busbw.yaml")
    assert [busbw.of("tp", "all_to_all"), busbw.of("dp", "all_reduce"), busbw.pp] == [-1, -1, None]
    report = price(with_header(sp_rows(), vpp=NAN), busbw, revision=FIRST, world_size=1024)
    assert microseconds(report, ["total"]) == pytest.approx([8511719.675], abs=1e-3)


def test_mistakes_in_bus_bandwidths_are_told_with_their_lines():
    wrong = UPSTREAM_FILE.replace("alltoall,: 80", "altoall,: 80").replace("300", "-3")
    with pytest.raises(DseError) as told:
        read_busbw(wrong, "busbw.yaml")
    assert str(told.value).splitlines() == [
        "busbw.yaml:3: TP.allreduce: -3: expected more than 0, in GiB/s, or null",
        "busbw.yaml:12: EP.altoall: unknown collective; did you mean 'alltoall'?",
    ]


def test_the_csv_has_the_summary_and_rows_of_the_simulator():
    lines = endtoend_csv(price(scaled_rows(), DECEMBER, revision=FILE), "run", revision=FILE).splitlines()
    assert lines[0].startswith("File name, Expose DP comm, Expose DP_EP comm, Expose TP comm, Expose_EP_comm, ")
    assert lines[1] == (
        "run, 13933 (0.68%), 0 (0.00%), 139515 (6.78%), 0 (0.00%), 0 (0.00%), 954121 (46.34%), "
        "951592 (46.21%), 153448 (7.45%), 2059161"
    )
    assert lines[2].startswith("layer_name,run,fwd compute,wg compute,ig compute,fwd exposed comm,")
    grad_norm = lines[4].split(",")
    assert grad_norm[:8] == ["grad_norm", "run", "29130", "0", "26782", "37819", "13933", "0"]
    assert grad_norm[8:14] == ["37819", "320.00", "280.00", "13933", "434.29", "380.00"]
    assert len(lines) == 3 + 172


def test_the_first_csv_ends_with_its_summary():
    rows = with_header(sp_rows(), vpp=NAN)
    lines = endtoend_csv(price(rows, OCTOBER, revision=FIRST), "run", revision=FIRST).splitlines()
    assert lines[0].endswith(",workload finished at")
    words = lines[-1].split(",")
    assert words[::2] == ["DP comm", "Expose TP comm", "total exposed comm", "total comp", "bubble time", "Total time"]
    printed = [373393.543, 480331.682, 853725.225, 7213232.005, 444762.445, 8511719.675]
    assert [float(word) for word in words[1::2]] == pytest.approx(printed, abs=1e-3)
    assert len(lines) == 1 + 557 + 1


def test_the_csv_says_what_is_no_number_as_the_simulator_does():
    rows = with_header(sp_rows(), vpp=NAN)
    line = endtoend_csv(price(rows, H100, revision=LINKS), "run", revision=LINKS).splitlines()[1]
    assert line.startswith("run, 322654 (nan%), ")
    assert line.endswith(", NaN or Inf (nan%), 7213232 (nan%), 604263 (nan%), NaN or Inf")
