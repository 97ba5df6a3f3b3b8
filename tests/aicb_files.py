"""Workloads that several tests share: a small file by hand, and runs that published files came from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from costmodel.profiles.simai import Busbw, Links
from costmodel.profiles.simai.generator import GeneratorRun, LinearTimes, Sections, measured, prerelease
from costmodel.profiles.simai.workload_rows import StepRows

#: A file of unlike numbers: every group, every collective, tokens in an unusual order.
SMALL = """\
HYBRID_TRANSFORMER_FWD_IN_BCKWD pp: 3 model_parallel_NPU_group: 4 ep: 2 ga: 5 vpp: 2 colour: blue \
all_gpus: 96 checkpoints: 0 checkpoint_initiates: 0 pp_comm 1048576
5
grad\t-1\t7\tNONE\t0\t11\tNONE\t0\t13\tREDUCESCATTER\t3221225472\t100
embedding_layer\t-1\t17000\tALLREDUCE\t16777216\t19\tBROADCAST\t65536\t23\tNONE\t0\t100
mlp\t-1\t29000\tALLGATHER\t33554432\t31000\tREDUCESCATTER\t33554432\t37\tNONE\t0\t5
mlp\t-1\t41\tALLTOALL_EP\t67108864\t43\tALLTOALL_EP\t67108864\t47\tALLREDUCE_DP_EP\t134217728\t100
loss\t-1\t0\tALLREDUCE\t4\t0\tNONE\t0\t0\tNONE\t0\t100
"""

#: SimAI's example bandwidths of October and of December 2024. [GiB/s]
OCTOBER = Busbw(
    {
        **{("tp", kind): 200 for kind in ("all_reduce", "all_gather", "all_to_all")},
        **{("dp", kind): 45 for kind in ("all_reduce", "all_gather")},
    },
    pp=None,
)
DECEMBER = Busbw(
    {
        ("tp", "all_reduce"): 300,
        ("tp", "all_gather"): 280,
        ("tp", "all_to_all"): 230,
        ("dp", "all_gather"): 380,
        ("ep", "all_gather"): 45,
        ("ep", "all_to_all"): 80,
    },
    pp=47.5,
)


def links(nvlink: float, nic: float, **counts: float) -> Links:
    """Servers of eight GPUs and eight NICs, unless told otherwise; bandwidths in GiB/s."""
    return Links.of(nvlink_bandwidth=nvlink * 2.0**30, nic_bandwidth=nic * 2.0**30, **counts)


def nanoseconds(**times: int) -> dict[str, float]:
    """Times in seconds."""
    return {name: time * 1e-9 for name, time in times.items()}


#: The run of SimAI's example/workload_analytical.txt of October 2024, and the times of its sections.
SP_RUN = GeneratorRun.of(
    num_layers=128, hidden_size=16384, ffn_hidden_size=53248, seq_len=4096, vocab_size=50257,
    micro_batch_size=1, global_batch_size=128, tp=8, pp=16, world_size=1024, sequence_parallel=1, recompute=1,
)  # fmt: skip
SP_TIMES = Sections.of(
    **nanoseconds(
        attention=5729721, mlp=10557776, embedding=2456804, gradient_forward=1875968, gradient_backward=1879040
    )
)

#: SimAI's public MoE example (example/workload_analytical.txt from November 2024).
MOE_RUN = GeneratorRun.of(
    num_layers=96, hidden_size=6144, ffn_hidden_size=16384, seq_len=4096, vocab_size=50257,
    micro_batch_size=1, global_batch_size=9216, tp=2, pp=12, ep=16, num_experts=192, experts_per_token=4,
    world_size=9216, sequence_parallel=1, recompute=1,
)  # fmt: skip
MOE_TIMES = Sections.of(
    **nanoseconds(
        attention=1750840, mlp=7956367, embedding=622731, gradient_forward=14609152, gradient_backward=15091072
    )
)


def sp_rows(**layout: float) -> StepRows:
    """The rows of SimAI's example of October 2024, with a header of one's own."""
    return with_header(measured(SP_RUN, SP_TIMES, release="2024-10"), **layout)


def scaled_rows() -> StepRows:
    """The rows of AICB's GPT 13B before its first release: each column multiplied, a header set by hand."""
    run = GeneratorRun.of(
        num_layers=40, hidden_size=5120, ffn_hidden_size=20480, seq_len=2048, vocab_size=32000,
        micro_batch_size=1, global_batch_size=8, tp=8, pp=8, world_size=512, sequence_parallel=1,
    )  # fmt: skip
    times = LinearTimes.of(
        **nanoseconds(
            attention_column=375000,
            attention_row=376000,
            mlp_column=923000,
            mlp_row=1125000,
            gradient_forward=14565000,
            gradient_backward=13391000,
        )
    )
    return with_header(prerelease(run, times).scaled(times=(2, 2, 4), sizes=(4, 2, 1)), vpp=8)


def moe_rows() -> StepRows:
    """The rows of SimAI's MoE example, with its own size of a message between stages."""
    rows = measured(MOE_RUN, MOE_TIMES, release="2024-11")
    return with_header(rows, pp_message_bytes=251658240)


def with_header(rows: StepRows, **layout: float) -> StepRows:
    """The same rows under another header."""
    changes = {name: np.array([float(value)]) for name, value in layout.items()}
    return replace(rows, layout=replace(rows.layout, **changes))
