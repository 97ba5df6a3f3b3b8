"""Workloads that several tests share: a small file by hand, and published files."""

import gzip
from dataclasses import replace

import numpy as np

from dse.adapters.simai.bandwidth import Busbw, Links
from dse.adapters.simai.files.aicb import read_workload
from dse.adapters.simai.workload_rows import StepRows
from tests.support.cases import cases
from tests.support.paths import TEST_DATA

#: A file of unlike numbers: every group, every collective, tokens in an unusual order.
SMALL = cases(__file__, "SMALL")

#: SimAI's example bandwidths of October and of December 2024. [GiB/s]
OCTOBER = Busbw(
    {
        **{("tp", kind): 200 for kind in ("all_reduce", "all_gather", "all_to_all")},
        **{("dp", kind): 45 for kind in ("all_reduce", "all_gather")},
    },
    pp=None,
)
DECEMBER = Busbw({
    ("tp", "all_reduce"): 300, ("tp", "all_gather"): 280, ("tp", "all_to_all"): 230,
    ("dp", "all_gather"): 380, ("ep", "all_gather"): 45, ("ep", "all_to_all"): 80,
}, pp=47.5)  # fmt: skip


def links(nvlink: float, nic: float, **counts: float) -> Links:
    """Servers of eight GPUs and eight NICs, unless told otherwise; bandwidths in GiB/s."""
    return Links.of(nvlink_bandwidth=nvlink * 2.0**30, nic_bandwidth=nic * 2.0**30, **counts)


def published(name: str) -> str:
    """The text of a file in `data/aicb`.

    `simai_2024_10` and `simai_moe_2024_11` are SimAI's example/workload_analytical.txt of these months.
    `gpt_13b_scaled` is AICB's GPT 13B before its first release. `deepseek_v3_32` is the file of AICB's generator
    (commit 23eec3c) for DeepSeek-V3 on 32 GPUs, with sections of 1 ns.
    """
    return gzip.decompress((TEST_DATA / f"aicb/{name}.txt.gz").read_bytes()).decode()


def sp_rows(**layout: float) -> StepRows:
    """The rows of SimAI's example of October 2024, with changes of its header."""
    file = read_workload(published("simai_2024_10"), "simai_2024_10.txt")
    return with_header(file.workload, **{"vpp": 8, "pp_message_bytes": 16777216, **layout})


def scaled_rows() -> StepRows:
    """The rows of AICB's GPT 13B before its first release."""
    return read_workload(published("gpt_13b_scaled"), "gpt_13b_scaled.txt").workload


def moe_rows() -> StepRows:
    """The rows of SimAI's example with experts."""
    return read_workload(published("simai_moe_2024_11"), "simai_moe_2024_11.txt").workload


def with_header(rows: StepRows, **layout: float) -> StepRows:
    """The same rows under another header."""
    changes = {name: np.array([float(value)]) for name, value in layout.items()}
    return replace(rows, layout=replace(rows.layout, **changes))
