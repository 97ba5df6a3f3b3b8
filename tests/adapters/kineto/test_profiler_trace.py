"""Traces of the PyTorch profiler: parts of a step as Holistic Trace Analysis counts them, products, slow ranks."""

import gzip
import json

import pytest

import dse
from dse import DseError
from dse.adapters.kineto.trace import kind_of, read_trace
from tests.support.cases import by_table, cases
from tests.support.commands import json_of, stdout_of

SPACE = "llama3_70b_512_h100"
DESIGN = {"tp": 4, "pp": 4}

#: Kernels of a step: name, stream, begin and duration. [us]
KERNELS = cases(__file__, "KERNELS")
STEP = 100


def trace(steps=2, rank=0, scale=1.0, dims=None):
    """A trace of equal steps; the first kernel is a product of operands with some dimensions."""
    events = []
    for step in range(steps):
        begin = STEP * step
        events.append(
            {"name": f"ProfilerStep#{step + 3}", "cat": "user_annotation", "ts": begin, "dur": STEP, "tid": 1}
        )
        for index, (name, stream, at, time) in enumerate(KERNELS):
            identity = len(KERNELS) * step + index
            args = {"stream": stream, "correlation": identity, "External id": identity, "device": rank}
            cat = "gpu_memcpy" if name.startswith("Mem") else "kernel"
            event = {"name": name, "cat": cat, "ts": begin + at, "dur": scale * time, "tid": stream, "args": args}
            launch = {"name": "cudaLaunchKernel", "cat": "cuda_runtime", "ts": begin + at - 5, "dur": 2, "tid": 1}
            events += [event, {**launch, "args": {"correlation": identity, "External id": identity}}]
        if dims:
            args = {"External id": len(KERNELS) * step, "Input Dims": dims}
            events.append({"name": "aten::mm", "cat": "cpu_op", "ts": begin, "dur": 9, "tid": 1, "args": args})
    events = [{"ph": "X", "pid": rank, **event} for event in events]
    return {"schemaVersion": 1, "distributedInfo": {"rank": rank, "world_size": 2}, "traceEvents": events}


@pytest.fixture
def written(tmp_path):
    def write(name="rank0.json", **changes):
        path, text = tmp_path / name, json.dumps(trace(**changes)).encode()
        path.write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        return path

    return write


@pytest.mark.parametrize("name", ["rank0.json", "rank0.json.gz"])
def test_parts_of_a_step_are_those_of_holistic_trace_analysis(written, name):
    """HTA 0.5.0 prints idle 70 us of the 280 from the first to the last kernel, and 52.5 % overlap.

    The steps begin 10 us before their first kernel, and end 10 us after their last one.
    """
    actual = read_trace(written(name, steps=3))
    assert (actual.steps, actual.rank, actual.launches) == (3, 0, 6)
    assert actual.step_time == pytest.approx(100e-6)
    assert 3 * actual.idle == pytest.approx(70e-6 + 20e-6)
    assert 1 - actual.exposed / actual.communication == pytest.approx(0.525)
    assert actual.waited == 1  # each kernel starts 5 us after its launch


def test_products_are_matched_by_their_shape(written):
    explanation = dse.explain(SPACE, DESIGN)
    first = explanation.gemms.iloc[0]
    path = written(dims=[[int(first.m), int(first.k)], [int(first.k), int(first.n)]])
    [row] = dse.trace_gap(explanation, [path]).kernels
    assert first["product"] in row.name
    assert (row.launches, row.measured) == (1, pytest.approx(30e-6))
    sizes = sorted((first.m, first.n, first.k))
    same = [gemm for gemm in explanation.gemms.to_dict("records") if sorted((gemm["m"], gemm["n"], gemm["k"])) == sizes]
    assert row.predicted == pytest.approx(sum(gemm["time_s"] for gemm in same) / len(same))


def test_a_slow_rank_is_named(written):
    ranks = [str(written(f"rank{rank}.json", rank=rank, scale=1.5 if rank == 1 else 1)) for rank in range(3)]
    words = ["explain", SPACE, "--set", "tp=4", "--set", "pp=4", "--trace", *ranks]
    out = " ".join(stdout_of(*words).split())
    assert "rank 1 computes 81 us, the median of 3 ranks 54 us" in out
    assert "The GPU waits for the host: 100 % of 6 kernels start as soon as they are launched" in out
    record = json_of(*words)
    assert record["measured_s"] == pytest.approx(100e-6)
    assert [rank["rank"] for rank in record["ranks"]] == [0, 1, 2]


@pytest.mark.parametrize(("content", "message"), [
    (b"{", "not a trace of the PyTorch profiler"),
    (b'{"traceEvents": 3}', "it has no traceEvents"),
    (b'{"traceEvents": []}', "no steps"),
    (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "gemm", "ts": 1}]}', "an event without 'dur'"),
    (json.dumps({"traceEvents": [*trace()["traceEvents"], {"ph": "X", "cat": "cuda_runtime", "name": ""}]}).encode(),
     "an event without 'ts'"),
    (json.dumps({"traceEvents": trace()["traceEvents"][:1]}).encode(), "no kernels of a GPU within the steps"),
])  # fmt: skip
def test_a_file_that_is_no_trace_gets_one_line(tmp_path, content, message):
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    with pytest.raises(DseError, match=message):
        read_trace(path)


def test_events_without_arguments_are_read(tmp_path):
    recorded = trace()
    recorded["traceEvents"] = [event | {"args": None} for event in recorded["traceEvents"]]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(recorded))
    actual = read_trace(path)
    assert actual.idle == pytest.approx(30e-6)
    assert actual.waited != actual.waited


@by_table("name", "kind")
def test_kernels_of_other_libraries_have_kinds(name, kind):
    assert kind_of(name) == kind
