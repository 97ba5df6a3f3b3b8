"""Designs of models with experts and latent attention as AICB workloads, row by row."""

import numpy as np
import pytest

from costmodel import DseError, step
from dse.adapters.simai.design_rows import design_workload
from dse.adapters.simai.files.aicb import read_workload, workload_file
from dse.adapters.simai.time import missing, price
from tests.support.aicb_files import links, published
from tests.support.cases import cases
from tests.support.runs import named_run

#: Layouts of unlike numbers, with every way to recompute, of DeepSeek's models and of others with experts.
LATENT = cases(__file__, "LATENT")
GROUPED = {
    "tp": [2, 4, 2], "pp": [8, 1, 4], "ep": [8, 4, 2], "etp": [1, 4, 2], "dp": 8, "sequence_parallel": 1,
    "gradient_accumulation_steps": [8, 5, 6], "recompute": ["none", "selective", "full"],
}  # fmt: skip
DESIGNS = {"deepseek_v3": LATENT, "deepseek_v2_lite": LATENT, "mixtral_8x22b": GROUPED}
#: What rows take that have no time of their own, for the whole step. [s]
IDLE = 1e-5


def run_of(name, columns):
    return named_run(name, "h800_80g_dgx", **columns)


@pytest.mark.parametrize("name", DESIGNS)
def test_arithmetic_is_that_of_the_native_model(name):
    """Multi-token prediction, casts of weights and what modules recompute included."""
    run = run_of(name, DESIGNS[name])
    rows, native = design_workload(run), step(run.model, run.system, run.design)
    expected = native.forward_time + native.backward_time + native.recompute_time + native.optimizer_time
    assert (rows.counts * rows.time.sum(axis=2)).sum(axis=1) == pytest.approx(expected, abs=IDLE)


def test_rows_are_those_of_aicbs_own_generator():
    """Of DeepSeek-V3 on one stage, in 8 bits: names, collectives, and sizes of all but weights."""
    design = {"tp": 2, "ep": 8, "etp": 2, "dp": 16, "micro_batch_size": 1, "sequence_parallel": 1,
              "gradient_accumulation_steps": 2, "precision": "fp8_blockwise"}  # fmt: skip
    texts = workload_file(design_workload(run_of("deepseek_v3", design))).text, published("deepseek_v3_32")
    ours, theirs = ([line.split("\t") for line in text.splitlines()[2:]] for text in texts)
    prologue, ahead = 6, 5 + 5 + 2 + 1  # a module of multi-token prediction: attention, experts, a head
    body = [line for number, line in enumerate(ours) if number < prologue]
    layers = (len(theirs) - prologue - 7) // 2
    for start in (prologue, prologue + layers + ahead):
        body += ours[start : start + layers]
    body += ours[-7:]
    assert len(ours) == len(theirs) + 2 * ahead
    assert [line[0] for line in body] == [line[0] for line in theirs]
    different = set()
    for line, other in zip(body[prologue:], theirs[prologue:], strict=True):
        assert [line[at] for at in (3, 6, 9)] == [other[at] for at in (3, 6, 9)]
        different |= {(line[0], at, float(line[at]) / float(other[at])) for at in (4, 7) if line[at] != other[at]}
    assert different == {("mlp_moelayer", 7, 33 / 64)}  # gradients go to experts in 8 bits, too


def test_simai_evaluates_what_is_written():
    rows = design_workload(run_of("deepseek_v3", LATENT))
    for point in range(rows.num_points):
        text = workload_file(rows, point=point).text
        file = read_workload(text, "workload.txt")
        assert file.text == text
        report = price(file.workload, links(164.8, 48.5), revision="simai-2025-07")
        assert missing(report, links(164.8, 48.5), revision="simai-2025-07") == []
        assert (report.totals.exposed_ep_time > 0).all()


REFUSED = cases(__file__, "REFUSED")


@pytest.mark.parametrize(("name", "columns", "said"), REFUSED)
def test_what_rows_cannot_say_is_refused(name, columns, said):
    with pytest.raises(DseError, match=said):
        design_workload(run_of(name, columns))


def test_experts_that_gather_nothing_send_nothing_over_tensor_parallel_ranks():
    """Without shares of experts tokens are sent alone; replicas of whole experts reduce apart from others."""
    rows = design_workload(run_of("mixtral_8x22b", GROUPED))
    gathers = [
        [line.split("\t")[3] for line in workload_file(rows, point=point).text.splitlines() if "moelayer" in line][:5]
        for point in range(3)
    ]
    alone, shared = (["ALLGATHER", "ALLTOALL_EP", *both, "ALLTOALL_EP"] for both in (
        ["NONE"] * 2, ["ALLGATHER", "REDUCESCATTER"]))  # fmt: skip
    assert gathers == [alone, shared, shared]
    assert np.array_equal(rows.present[:, rows.names.index("moe_grad_norm2")] > 0, np.array(GROUPED["ep"]) != 8)
