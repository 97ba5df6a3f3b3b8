"""Rows of measured runs as the cost model takes them: their settings, gaps and figures."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system, step, system_names
from costmodel.kernels.collectives import collective
from costmodel.training.ranks import Group
from dse.validation.comparison import compared, usable_memory
from dse.validation.expressed import NotExpressed, breakdowns, fabric_rate, known_values, latencies, machine_of
from dse.validation.kernels import measured_kernel_time
from dse.validation.rows import expressed_row, measured_time, recompute_of
from dse.validation.table import SHIPPED, WORDS, MeasuredRow, read_table
from tests.support.cases import by_table, cases

STEPS, RUNS, VENDORS, MEMORY, ONE_GPU = (read_table(path) for path in SHIPPED)


@by_table("text", "gigabits")
def test_fabrics_are_rates_of_one_gpu(text, gigabits):
    assert fabric_rate(text, 8) == pytest.approx(gigabits * 1e9 / 8)
    assert fabric_rate("unstated", 8) is None


def test_a_bus_bandwidth_that_falls_with_the_job_is_one_latency():
    """A ring of n ranks takes 2 (n - 1) steps, whose latency is that of all jobs; healthy jobs have the shipped one."""
    system = load_system("h100_80g_efa")
    of_jobs = [latencies(800e9 * 8 / gpus, gpus, system)["node_latency"] for gpus in (128, 256, 512)]
    assert of_jobs == pytest.approx([of_jobs[0]] * 3, rel=0.25)
    healthy = latencies(216e9, 128, system)
    assert healthy == {f"{tier.name}_latency": tier.latency.item() for tier in system.network}


def test_names_of_hardware_stand_for_built_in_systems_and_nothing_is_guessed():
    assert {meaning["system"] for meaning in WORDS["hardware"].values()} <= {*system_names()}
    for text, name in cases(__file__, "names_of_hardware_stand_for_shipped_systems"):
        assert machine_of(row_of(hw=text)).name == name
    for text in ("V100-PCIe-16GB", "A100-PCIe-40GB", "GH200 (900 W)", "an abacus", ""):
        with pytest.raises(NotExpressed, match="a system for"):
            machine_of(row_of(hw=text))


def test_values_without_a_column_must_mean_what_a_design_without_it_does():
    domains = DesignPoints.domains()
    plain = {name: domain for name, domain in domains.items() if name not in ("precision", "overlap_tp")}
    assert known_values({"tp": 2, "precision": "bf16", "overlap_tp": 0}, plain) == {"tp": 2}
    with pytest.raises(NotExpressed, match="no column precision"):
        known_values({"precision": "mxfp8"}, plain)
    with pytest.raises(NotExpressed, match="recompute has no word some"):
        known_values({"recompute": "some"}, plain)


def row_of(**cells):
    """A row of the shipped table with other cells."""
    return replace(STEPS[0], **cells)


def test_software_that_nobody_knows_and_attention_that_cannot_be_are_named():
    odd = row_of(row_type="kernel_attention", op="forward", mbs=1.0, seq=1024.0, heads=12.0, kv_heads=8.0,
                 hidden=1536.0, latency_us=50.0)  # fmt: skip
    unknown, wrong, right = compared([row_of(framework="nanotrn"), odd, STEPS[1]])
    assert unknown.why_not == "a framework nanotrn"
    assert "does not divide" in wrong.why_not
    assert right.predicted_s > 0


def test_float8_of_torchtitan_gains_as_published():
    """Llama 3 8B on 8 H100s: 5,760 tokens/s in bf16, 6,424 with scales of rows, 7,186 of tensors (commit 7a04053)."""
    row = MeasuredRow(**cases(__file__, "float8_of_torchtitan"))
    formats = ("bf16", "fp8_rowwise", "fp8_tensorwise fp8_parameters=1")
    rows = compared([replace(row, design=f"{row.design} precision={word}") for word in formats])
    bf16, *eight_bits = (one.predicted_s for one in rows)
    assert [bf16 / step for step in eight_bits] == pytest.approx([6424 / 5760, 7186 / 5760], abs=0.05)


def test_selective_recomputation_of_layers_is_that_of_half_of_a_stage():
    row, model = row_of(recompute="selective(layer)", pp=4), load_model("llama3_70b")
    assert recompute_of(row, model) == {"recompute": "full", "recompute_layers": 10}
    assert recompute_of(row, model, 1.0) == {"recompute": "full"}


@by_table("cells", "lacks")
def test_what_a_row_lacks_is_named_and_others_are_evaluated(cells, lacks):
    wrong, right = compared([row_of(**cells), STEPS[1]])
    assert lacks in wrong.why_not
    assert right.predicted_s > 0


def test_words_of_a_row_become_words_of_a_design():
    row = row_of(dtype="fp8-sc", schedule="zero-bubble ZB-1p", opt_shard="HSDP", dp=16.0, gbs=0.0, tp=8.0, seq_par=-1.0)
    columns = expressed_row(row).columns
    assert columns["precision"] == "fp8_blockwise"
    assert columns["schedule"] == "zb_h1"
    assert (columns["zero"], columns["shard_replicas"]) == (3, 2)


def test_a_model_is_a_built_in_one_or_the_columns_of_its_row():
    assert expressed_row(row_of(hidden=0.0, model="Llama3 70B")).model.hidden_size == 8192
    model = expressed_row(row_of(model="my experts", moe_experts=64.0, moe_topk=2.0, moe_ffn=1024.0)).model
    assert (model.num_experts, model.moe_topk, model.moe_ffn_hidden_size) == (64, 2, 1024)


def test_runs_evaluated_together_cost_what_each_costs_for_itself():
    """Of one model and system, with fabrics and columns of their own."""
    runs = [expressed_row(row) for row in STEPS if row.model == "GPT-39.1B"][:5]
    runs[1] = replace(runs[1], machine=replace(runs[1].machine, quantities={"fabric_bandwidth": 3e9}))
    runs[2] = replace(runs[2], columns={**runs[2].columns, "zero": 2, "precision": "bf16"})
    for run, together in zip(runs, breakdowns(runs), strict=True):
        alone = step(run.model, run.machine.system, run.design())
        assert together["step_time"] == pytest.approx(alone.step_time.item(), rel=1e-12)
        assert together["peak_memory"] == alone.peak_memory.item()


def test_every_shipped_row_has_a_source_and_a_name_of_its_own():
    rows = [*STEPS, *RUNS, *VENDORS, *MEMORY]
    assert all(row.source and ("arXiv" in row.source or "/" in row.source) for row in rows)
    assert len({row.id for row in rows}) == len(rows)
    assert all(row.gpus for row in [*RUNS, *VENDORS, *MEMORY])


def test_both_conventions_of_model_flops_say_the_same_of_one_run():
    """Of V3's step of 19.926 s its authors print 432 TFLOP/s in full and 385 causal (arXiv 2505.09343, table
    4), multi-token prediction not counted."""
    [row] = [row for row in RUNS if row.id == "V3 2048 H800"]
    run = expressed_row(row)
    run = replace(run, model=replace(run.model, mtp_layers=0))
    for figure, kind in ((432, "model, attention in full"), (385, "model, causal attention")):
        rate = replace(row, iter_time_s=0.0, tflops_gpu=figure, tflops_kind=kind)
        assert measured_time(rate, run) == pytest.approx(19.926, rel=0.003)


def test_rates_and_times_of_one_published_run_agree():
    """Megatron-Bridge prints 326 tokens/s and 822 TFLOP/s, causal, of one of 1,024 H100."""
    [row] = [row for row in RUNS if row.id == "405B 1024 H100 fp8"]
    run = expressed_row(row)
    other = replace(row, tokens_s_gpu=0.0, tflops_gpu=822, tflops_kind="model, causal attention")
    assert measured_time(other, run) == pytest.approx(measured_time(row, run), rel=0.005)
    share = 822e12 / run.machine.system.chip.peak_flop_rate.item()
    assert measured_time(replace(other, tflops_gpu=0.0, mfu=share), run) == measured_time(other, run)


def test_the_bus_bandwidth_of_a_collective_is_its_time():
    """Bytes that a rank sends in a ring over the time; half of them in an all-gather."""
    row = MeasuredRow(row_type="kernel_coll", dataset="x", op="all_reduce", msg_bytes=8e9, n_ranks=8)
    assert measured_kernel_time(replace(row, latency_us=70e3)) == pytest.approx(0.07)
    assert measured_kernel_time(replace(row, busbw_gbps=200)) == pytest.approx(2 * 7 / 8 * 8 / 200)
    assert measured_kernel_time(replace(row, op="all-gather", busbw_gbps=100)) == pytest.approx(0.07)


def test_kernels_are_those_of_the_cost_model():
    kernel = MeasuredRow(row_type="kernel_coll", dataset="x", hw="H100", latency_us=1)
    reduced = replace(kernel, op="all_reduce", msg_bytes=1e8, n_ranks=16)
    product = replace(kernel, row_type="kernel_gemm", dtype="fp8", m=4096, n=4096, k=8192)
    slow = replace(product, dtype="bf16")
    rows = compared([reduced, product, slow, replace(product, hw="A100"), replace(reduced, op="scan")])
    network = load_system("h100_80g_dgx").network
    cost = collective("all_reduce", np.array([1e8]), Group.of_neighbours(np.array([16.0])), network)
    assert rows[0].predicted_s == cost.time.item()
    assert 1.5 < rows[2].predicted_s / rows[1].predicted_s < 2.2
    assert 2 * 4096 * 4096 * 8192 / rows[2].predicted_s < load_system("h100_80g_dgx").chip.peak_flop_rate.item()
    assert "a rate of its chip for fp8" in rows[3].why_not
    assert rows[4].why_not == "a collective scan"


def test_products_of_experts_are_one_call_or_one_each():
    """One call saves the launches of all experts but the first; their products are the same."""
    grouped = MeasuredRow(row_type="kernel_grouped", dataset="x", op="grouped", dtype="bf16", hw="H100", m=8 * 4096,
                          n=4096, k=7168, moe_experts=8, latency_us=1)  # fmt: skip
    one = replace(grouped, row_type="kernel_gemm", op="gemm", m=4096)
    together, alone, single, eight_bits, lacking = compared(
        [grouped, replace(grouped, op="sequential"), one, replace(grouped, dtype="fp8"), replace(grouped, n=0)]
    )
    assert alone.predicted_s == pytest.approx(8 * single.predicted_s)
    assert 6 < together.predicted_s / single.predicted_s < 9
    assert 1.4 < together.predicted_s / eight_bits.predicted_s < 2.2
    assert lacking.why_not == "its size (n)"


def test_passes_that_sort_or_cast_run_at_rates_of_their_kind():
    row = MeasuredRow(row_type="kernel_stream", dataset="x", hw="H100", msg_bytes=8e9, latency_us=1)
    chip = load_system("h100_80g_dgx").chip
    copy, gather, cast = compared([replace(row, op=op) for op in ("copy", "gather", "cast")])
    assert gather.predicted_s / copy.predicted_s == pytest.approx(1 / chip.sorting_efficiency.item(), rel=0.01)
    assert cast.predicted_s / copy.predicted_s == pytest.approx(1 / chip.cast_efficiency.item(), rel=0.01)


def test_attention_may_be_full_and_have_narrow_values():
    """A full mask visits all tiles; narrower values save their share of the products."""
    row = MeasuredRow(row_type="kernel_attention", dataset="x", op="forward", hw="H100", mbs=1, seq=16384, heads=16,
                      kv_heads=16, hidden=16 * 192, attn_kernel="cudnn", latency_us=1)  # fmt: skip
    changes = ({}, {"mask": "full"}, {"value_size": 128}, {"value_size": 192}, {"mask": "half"})
    causal, full, narrow, alike, unknown = compared([replace(row, **change) for change in changes])
    assert full.predicted_s / causal.predicted_s == pytest.approx(2, rel=0.02)
    assert (192 + 128) / (2 * 192) < narrow.predicted_s / causal.predicted_s < 1
    assert alike.predicted_s == causal.predicted_s
    assert unknown.why_not == "a mask of attention half; expected causal or full"


def test_switches_of_a_model_are_given_as_words():
    row = MeasuredRow(row_type="train_step", dataset="x", framework="torchtitan", model="mine", layers=2, hidden=256,
                      heads=4, ffn=512, gated=1, seq=512, vocab=1024, gpus=1, hw="H100", iter_time_s=1,
                      design="micro_batch_size=1 gradient_accumulation_steps=1")  # fmt: skip
    tied, untied = (replace(row, given=f"tied_embeddings={word}") for word in ("true", "false"))
    assert expressed_row(untied).model.num_parameters - expressed_row(tied).model.num_parameters == 256 * 1024
    assert compared([tied])[0].predicted_s > 0


def test_a_split_that_follows_from_the_gpus_need_not_be_said():
    """GPUs decide one unknown size, and two if nothing is left for either; else two are a choice."""
    row = row_of(gbs=64.0, ga=0.0, mbs=1.0, dp=0.0)
    for cells, split in (({"gpus": 64.0}, (8, 1, 8)), ({"gpus": 8.0, "pp": 0.0}, (8, 1, 1))):
        columns = expressed_row(replace(row, **cells)).columns
        assert (columns["tp"], columns["pp"], columns["dp"]) == split
    with pytest.raises(NotExpressed, match=r"its split over ranks \(pp, dp\)"):
        expressed_row(replace(row, gpus=64.0, pp=0.0))


def test_runs_have_the_usable_memory_of_their_system_or_of_another_chip_that_a_row_states():
    """80 GB is what an H100 is sold by; of 81,559 MiB its runs may use all. One of 96 GB is another."""
    system = load_system("h100_80g_dgx")
    assert usable_memory(system, 0) == usable_memory(system, 80) == 81559 * 2**20
    assert usable_memory(system, 96) == 96e9
