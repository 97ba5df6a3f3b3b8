"""SimAI's analytical mode [SimAI]_: closed forms over the rows of a workload of AICB.

A profile over the shared rows. Where a rule of the reference is odd, the profile keeps it and says so in a
line; where the reference has no number, there is none here either, and `missing` says why.

Rooms in the order in which they are read; those on one line do not know each other:

    workload_rows
    bandwidth, aicb_rows
    time, design_rows, options
    files, rules
    report
    cost, export
    command
"""

from collections.abc import Sequence
from typing import Any

from costmodel.rules.registry import Profile
from costmodel.rules.rules import Rules
from dse.registry import Adapter, WorkloadKind


def _is_workload(head: bytes) -> bool:
    """The first line is a training loop and tokens, and the second a number of rows."""
    words, _, rest = head.partition(b"\n")
    return b"model_parallel_NPU_group" in words or (
        words.split()[:1] == [b"HYBRID_TRANSFORMER_FWD_IN_BCKWD"] and rest.split()[:1] != []
    )


def _rules() -> Sequence[Rules[Any]]:
    from dse.adapters.simai.rules import RULES

    return RULES


ADAPTER = Adapter(
    name="simai",
    title="SimAI",
    files=(
        WorkloadKind(
            name="aicb",
            title="an AICB workload",
            begins=_is_workload,
            profile=lambda path: "simai",
            run="dse.adapters.simai.command:run",
            record="dse.adapters.simai.command:record",
            formats=("table", "json", "csv"),
            options="dse.adapters.simai.options:add_options",
            defaults={
                **dict.fromkeys(("gpus", "busbw", "gpu_type", "nvlink_bandwidth", "nics_per_server", "nic_bandwidth")),
                "gpus_per_server": 8,
                "nic_type": "cx7",
                "strict_compat": False,
                "dp_overlap": 0.0,
                "tp_overlap": 0.0,
                "ep_overlap": 0.0,
                "pp_overlap": 1.0,
            },
        ),
    ),
    exports={"aicb": ".txt"},
    write="dse.adapters.simai.export:workloads",
    profiles=(
        Profile("simai", "arithmetic of native, the rest by SimAI's closed forms", "aicb", _rules, works=("training",)),
        Profile("simai-2024-10", "SimAI of October 2024: bus bandwidths from a file", "aicb"),
        Profile("simai-2024-12", "SimAI of December 2024: bus bandwidths from a file", "aicb"),
        Profile("simai-2025-07", "SimAI of July 2025: bandwidths from the machine", "aicb"),
    ),
)
