"""Why the reference has no number for a workload, in words."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from costmodel.profiles.simai.bandwidth import Busbw, Links
from costmodel.profiles.simai.efficiency import SIZES
from costmodel.profiles.simai.revision import REVISIONS
from costmodel.profiles.simai.time import LARGEST_PP_MESSAGE, Overlap, SimaiReport
from costmodel.profiles.simai.workload_rows import COLLECTIVES, GROUPS, StepRows

#: A longer time of a row never ends. [ns]
LONGEST_TIME = 2.0**31
ENDLESS = "a time of 2^31 ns or more, on which SimAI never ends"


def missing(
    report: SimaiReport, network: Busbw | Links, *, revision: str, overlap: Overlap | None = None
) -> list[str]:
    """What the first workload of a report lacks for a whole answer, one text each.

    Parameters
    ----------
    report : SimaiReport
        As `price` gave it.
    network, revision, overlap
        What `price` was given.
    """
    texts = [
        *(f"row {name}: {ENDLESS}; split it" for name in endless_rows(report.workload)),
        *untimed_rows(report, network),
        *undefined_header(report, revision),
        *undefined_messages(report, network, overlap or Overlap()),
    ]
    return list(dict.fromkeys(texts))


def endless_rows(workload: StepRows) -> list[str]:
    """Names of the first workload's rows with a time that SimAI never gets past."""
    endless = (np.rint(workload.time[0] * 1e9) >= LONGEST_TIME).any(axis=1) & (workload.counts[0] > 0)
    return list(dict.fromkeys(workload.names[row] for row in np.flatnonzero(endless).tolist()))


def untimed_rows(report: SimaiReport, network: Busbw | Links) -> Iterator[str]:
    """Collectives without a time, or with one that overflowed."""
    workload = report.workload
    present = workload.present[0][:, None] > 0
    found: dict[tuple[str, str], dict[str, None]] = {}
    for row, place in np.argwhere(report.undefined[0] & present).tolist():
        group = GROUPS[int(workload.group[0, row, place])]
        large = workload.message_bytes[0, row, place] > SIZES[-1]
        why = reason(int(report.group_size[0, row, place]), bool(large), network)
        kind = COLLECTIVES[int(workload.collective[0, row, place])]
        found.setdefault((f"over {group}", why), {})[f"{kind} of {workload.names[row]}"] = None
    for (group, why), whose in found.items():
        first, *more = whose
        yield f"{first}{f' and {len(more)} more' if more else ''}, {group}: {why}"


def reason(size: int, large: bool, network: Busbw | Links) -> str:
    """Why a collective has no time."""
    if size < 1:
        return "a group of none; ep is larger than the number of replicas"
    if large and isinstance(network, Links):
        return "more than 16 GiB, beyond SimAI's efficiency tables; split the message"
    if isinstance(network, Busbw):
        return "no bandwidth for it in the file; add one"
    if size <= 1:
        return "a group of one, where SimAI divides 0 by 0; write NONE"
    return "no whole NIC is left for a member of the group; raise the NICs per server"


def undefined_header(report: SimaiReport, revision: str) -> Iterator[str]:
    """Tokens without which there is no bubble."""
    layout, rules = report.workload.layout, REVISIONS[revision]
    for token, name in (("ga", "gradient_accumulation_steps"), (rules.bubble_by, rules.bubble_by)):
        if np.isnan(getattr(layout, name)[0]) and layout.pp[0] > 1:
            older = ", or price by simai-2024-10, which knows none" if token == "vpp" else ""
            yield f"header: {token}: missing, so that SimAI's bubble is no number; add '{token}: N'{older}"


def undefined_messages(report: SimaiReport, network: Busbw | Links, overlap: Overlap) -> Iterator[str]:
    """What keeps messages between stages from having a time."""
    message = float(report.workload.layout.pp_message_bytes[0])
    if message >= LARGEST_PP_MESSAGE:
        yield "header: pp_comm: 2^31 bytes or more, on which SimAI aborts; split the micro-batch"
    if isinstance(network, Busbw) and network.pp is None and message > 0 and overlap.pp < 1:
        yield "messages between stages: no bandwidth in the file of bus bandwidths; add PP: {busbw: ...}"
