"""Logs of nccl-tests: tests, ranks and hosts, sizes and times; bandwidths are those that the log prints."""

import pytest

from costmodel import DseError
from dse.adapters.nccl_tests.log import read_nccl_tests
from dse.api.files import compare_systems
from tests.support.commands import outputs_of, stderr_of

#: Lines of version 2.17 as published for two nodes of four GH200 (docs.cscs.ch), and bus bandwidths there. [GB/s]
LINES = """
    33554432       8388608     float     sum      -1    686.5   48.88   85.54      0    686.6   48.87   85.52      0
    67108864      16777216     float     sum      -1   1090.5   61.54  107.69      0   1083.5   61.94  108.39      0
   134217728      33554432     float     sum      -1   1916.4   70.04  122.57      0   1907.8   70.35  123.11    N/A
"""
BUS = [85.54, 107.69, 122.57]
#: The same without an operation and a root, as earlier versions print all-gathers.
SHORT = "   134217728      33554432     float    916.4  146.46  128.15  0e+00    907.8  147.85  129.37  0e+00\n"


def log(program: str, hosts: dict[str, int], lines: str = LINES) -> str:
    names = [name for name, count in hosts.items() for _ in range(count)]
    ranks = [f"#  Rank {rank:2d} Group  0 Pid 20419{rank} on  {name} device  0 [0009:01:00] NVIDIA H100 80GB HBM3"
             for rank, name in enumerate(names)]  # fmt: skip
    return "\n".join([f"# Collective test starting: {program}", "# Using devices", *ranks, "# size count type", lines])


@pytest.fixture
def written(tmp_path):
    def write(*texts: str):
        path = tmp_path / "nccl.log"
        path.write_text("".join(texts))
        return path

    return write


def test_rows_have_the_bus_bandwidth_that_the_log_prints(written):
    rows = read_nccl_tests(written(log("all_reduce_perf", {"a": 8})), "h100_80g_dgx")
    assert {(row.op, row.n_ranks) for row in rows} == {("all_reduce", 8)}
    assert [row.msg_bytes / row.latency_us / 1e3 * 2 * 7 / 8 for row in rows] == pytest.approx(BUS, rel=1e-4)


def test_several_tests_in_one_log(written):
    text = (
        log("build/alltoall_perf_mpi", {"a": 8, "b": 8}),
        log("all_gather_perf", {"a": 4}, f"[1,0]<stdout>:{SHORT}"),
        log("broadcast_perf", {"a": 8}),
    )
    rows = read_nccl_tests(written(*text), "h100_80g_dgx")
    assert [(row.op, row.n_ranks) for row in rows] == [("all_to_all", 16)] * 3 + [("all_gather", 4)]
    assert rows[-1].latency_us == 916.4


@pytest.mark.parametrize(("text", "message"), [
    ("nothing\n", "no times of nccl-tests"),
    (LINES, "line 2: no line above names the test"),
    (log("all_reduce_perf", {"a": 4, "b": 4}), "2 hosts with 4 ranks; nodes of h100_80g_dgx have 8 GPUs"),
    (log("all_reduce_perf", {"a": 1}), "on several ranks"),
])  # fmt: skip
def test_a_log_that_is_not_understood_gets_one_line(written, text, message):
    with pytest.raises(DseError, match=message):
        read_nccl_tests(written(text), "h100_80g_dgx")


def test_links_are_calibrated_from_logs(written, tmp_path):
    """Of a machine whose all-reduces take twice the predicted time."""
    sizes = [2.0**power for power in range(20, 31)]
    shown = [
        f"{size:.0f} {size / 4:.0f} float sum -1 {12 + size / 130e3:.1f} 1 1 0 {12 + size / 130e3:.1f} 1 1 0"
        for size in sizes
    ]
    path = written(log("all_reduce_perf", {"a": 8}, "\n".join(shown) + "\n"))
    outputs_of("calibrate", "--nccl-tests", path, "--system", "h100", "-o", tmp_path / "mine.yaml")
    assert "nccl.log" in (tmp_path / "mine.yaml").read_text()
    assert compare_systems("h100_80g_dgx", str(tmp_path / "mine.yaml"))["quantity"].str.startswith("node_").any()
    assert "--nccl-tests LOG" in stderr_of("calibrate", "--system", "h100")
