"""A compiled program as one page: where its time goes, its kernels, messages by purpose, and memory over time."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from costmodel.formats.quantity import readable
from dse.adapters.xla.report.cost_record import ModuleCost
from dse.adapters.xla.report.cost_report import HEAVIEST_WIDTH, heading, heaviest_columns, hlo_sections
from dse.adapters.xla.report.step_times import parts_of_step
from dse.output.text import percent, plain_text
from dse.reporting.pages.page import page, rounded, table_data

#: Times of the picture of memory at most. [-]
TIMES: Final = 800


def program_page(cost: ModuleCost) -> str:
    """HTML of a module that has a system."""
    record, times = cost.record(), cost.record()["times"]
    memory = record["memory"]
    data = {
        "kind": "program",
        "question": f"{record['module']} on {record['devices']:,.0f} x {record['system']}",
        "headline": heading(record),
        "large": [
            [readable(times["step_s"], "s"), "a step", f"{readable(times['serial_s'], 's')} without overlap"],
            [percent(times["mfu"]), "MFU", ""],
            [readable(memory["needed_bytes"], "B"), "memory", f"of {readable(memory['capacity_bytes'], 'B')}"],
        ],
        "fits": memory["fits"],
        "parts": [[name.strip(), rounded(seconds)] for name, seconds in parts_of_step(times) if name[2:3] != " "],
        "step": times["step_s"],
        "sections": [
            [name, plain_text([shown], HEAVIEST_WIDTH)] for name, shown in hlo_sections(record, HEAVIEST_WIDTH)
        ],
        "kernels": table_data(heaviest_columns(record["heaviest"], HEAVIEST_WIDTH)),
        "tree": kernel_tree(cost),
        "messages": [
            [row["name"], ", ".join(row["kinds"]), row["payload_bytes"], row["time_s"]]
            for row in record["communication"]
        ],
        "held": held_memory(cost),
        "notes": record["notes"],
    }
    return page(str(data["question"]), data, "program.js")


def kernel_tree(cost: ModuleCost) -> list[list[Any]]:
    """Kernels one after the other: phase, kind, name and time. [s]"""
    return [
        [kernel.phase, kernel.kind, kernel.name, rounded(float(time))]
        for kernel, time in zip(cost.program.kernels, cost.times, strict=True)
        if time > 0
    ]


def held_memory(cost: ModuleCost) -> list[list[Any]]:
    """Memory of temporaries over the instructions: place, bytes, and the kernel that runs; thinned. [-], [B]"""
    found = cost.analysis.as_written if cost.analysis.module.is_scheduled else cost.analysis.freed_early
    live, ran = found.live_bytes()[: len(found.ran)], found.ran
    if not len(live):
        return []
    block = -(-len(live) // TIMES)
    rows = [start + int(np.argmax(live[start : start + block])) for start in range(0, len(live), block)]
    return [[row, float(live[row]), ran[row]] for row in rows]
