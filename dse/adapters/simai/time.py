"""Times of rows and of the step in closed form, and why the reference has no number for some.

Times are whole nanoseconds in float64: the reference floors them one by one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, IntArray, column
from costmodel.errors import DseError
from dse.adapters.simai.bandwidth import (
    REVISIONS,
    SIZES,
    Bandwidths,
    Busbw,
    Links,
    Revision,
    derived_bandwidths,
    efficiency,
    file_bandwidths,
    single,
)
from dse.adapters.simai.workload_rows import COLLECTIVES, GROUPS, StepRows

#: Messages below this take a time that depends on the ranks alone. [B]
SMALL = 2.0**20
#: Ranks -> time of a small message; other groups get it for nothing. [ns]
SMALL_TIMES = {2: 10e3, 4: 12e3, 8: 15e3, 16: 66e3, 32: 135e3, 64: 200e3, 128: 320e3}
#: A larger message between stages aborts. [B]
LARGEST_PP_MESSAGE = 2.0**31

#: Side of `Bandwidths` that each pass reads.
SIDES = np.array([0, 0, 1])
NONE, ALL_REDUCE, BROADCAST = (COLLECTIVES.index(name) for name in ("none", "all_reduce", "broadcast"))
EP, DP_EP = GROUPS.index("ep"), GROUPS.index("dp_ep")


@dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """Shares of communication that hide behind arithmetic. [-]"""

    dp: float = 0.0
    tp: float = 0.0
    ep: float = 0.0
    pp: float = 1.0


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Totals(Columns):
    """Where the time of a step goes; (points,) columns, NaN where the reference has no number."""

    exposed_dp_time: FloatArray = column("s")
    exposed_dp_ep_time: FloatArray = column("s")
    exposed_tp_time: FloatArray = column("s")
    exposed_ep_time: FloatArray = column("s")
    exposed_pp_time: FloatArray = column("s")
    bubble_time: FloatArray = column("s")
    total_compute_time: FloatArray = column("s")
    total_exposed_time: FloatArray = column("s")
    total_time: FloatArray = column("s")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SimaiReport:
    """Results of the profile for workloads."""

    workload: StepRows
    world_size: FloatArray  #: (points,) GPUs of the run [-]
    group_size: FloatArray  #: (points, rows, passes) ranks that each collective counts, 0 without one [-]
    undefined: BoolArray  #: (points, rows, passes) where the reference has no number
    communication: FloatArray  #: (points, rows, passes) of each collective [ns]
    exposed: FloatArray  #: (points, rows, passes) the part that overlap leaves [ns]
    totals: Totals


def price(
    workload: StepRows, network: Busbw | Links, *, revision: str, world_size: FloatArray | float | None = None,
    gpus_per_server: float = 8.0, overlap: Overlap | None = None, strict: bool = False,
) -> SimaiReport:  # fmt: skip
    """Evaluate workloads by the rules of SimAI's analytical mode.

    Raises `DseError` if the revision takes other bandwidths, or the groups do not fit the GPUs.

    `network` has bus bandwidths from a file, or the machine's links, depending on `revision`, a key of `REVISIONS`.
    `world_size` is the number of GPUs of the run (default: that of the workload's header), `gpus_per_server` that of a
    machine whose bandwidths are known. [-] `overlap` has hidden shares, by default only those of pipeline messages.
    `strict` returns the reference's value where it overflows.
    """
    rules, layout = REVISIONS[revision], workload.layout
    if (rules.bandwidth == "links") != isinstance(network, Links):
        takes = {"links": "the links of the machine", "file": "a file of bus bandwidths"}[rules.bandwidth]
        raise DseError(f"{revision}: takes only {takes}")
    world = np.broadcast_to(
        np.asarray(layout.world_size if world_size is None else world_size, dtype=np.float64), (workload.num_points,)
    )
    if not (world >= layout.tp * layout.pp).all():
        raise DseError("world size: less than tp * pp of the header; say how many GPUs there are")
    if isinstance(network, Busbw):
        servers = np.asarray(gpus_per_server)
        bandwidths = file_bandwidths(network, layout, world, servers, rules)
    else:
        bandwidths = derived_bandwidths(network, layout, world, bandwidth_unit=rules.bandwidth_unit)
    return _report(workload, bandwidths, network, rules, world, overlap or Overlap(), strict)


def _report(
    workload: StepRows, bandwidths: Bandwidths, network: Busbw | Links, rules: Revision, world: FloatArray,
    overlap: Overlap, strict: bool,
) -> SimaiReport:  # fmt: skip
    """Times of every collective, their exposed parts, and their sums."""
    rows, passes = np.nonzero(~silent(workload.collective).all(axis=0))  # cells where anything is sent
    kind = workload.collective[:, rows, passes]
    where = (np.arange(workload.num_points)[:, None], SIDES[passes], workload.group[:, rows, passes])
    size = bandwidths.group_size[where]
    bandwidth = bandwidths.bandwidth[(*where, kind)]
    message = raised(workload.message_bytes[:, rows, passes], passes, rules)
    ratio = np.ones(())
    if rules.bandwidth == "links":
        ratio = efficiency(bandwidths.table[(*where, kind)], bandwidths.column[(*where, kind)], message)
    took = message_time(message, size, bandwidth * ratio, kind, rules)
    sent = ~silent(kind)
    undefined = sent & ~(np.isfinite(took) & (took >= 0)) & (strict | (message > 0))
    took = ticks(took) if strict else np.where(undefined, np.nan, np.floor(np.nan_to_num(took)))
    took = np.where(np.isnan(ratio), np.nan, took)

    def table(values: FloatArray) -> FloatArray:
        full = np.zeros(workload.time.shape)
        full[:, rows, passes] = np.where(sent, values, 0.0)
        return full

    communication = table(took)
    exposed = exposed_time(workload, communication, overlap, strict) if rules.overlaps else communication
    return SimaiReport(
        workload=workload,
        world_size=world,
        group_size=table(size),
        undefined=table(undefined.astype(np.float64)) > 0,
        communication=communication,
        exposed=exposed,
        totals=summed(workload, communication, exposed, network, rules, overlap, strict),
    )


def silent(collective: IntArray) -> BoolArray:
    """Cells in which nothing is sent: the reference has no broadcast."""
    return np.isin(collective, (NONE, BROADCAST))


def raised(message_bytes: FloatArray, passes: IntArray, rules: Revision) -> FloatArray:
    """Sizes with the smallest ones of the forward pass raised. [B]"""
    small = (passes == 0) & (message_bytes > 0) & (message_bytes < rules.least_forward_bytes)
    return np.where(small, rules.least_forward_bytes, message_bytes)


def message_time(
    message: FloatArray, size: FloatArray, bandwidth: FloatArray, collective: IntArray, rules: Revision
) -> FloatArray:
    """Time of a ring collective, or of a small message where those are distinguished. [ns]"""
    twice = np.where(collective == ALL_REDUCE, 2.0, 1.0)
    reached = single(bandwidth)
    with np.errstate(divide="ignore", invalid="ignore"):
        took = message / rules.bandwidth_unit / reached * 1e9 * twice * (size - 1) / size
    if rules.bandwidth == "file":
        return took
    fixed = np.select([size == ranks for ranks in SMALL_TIMES], [*SMALL_TIMES.values()], 0.0)
    return np.where((message > 1) & (message < SMALL), fixed, took)


def ticks(value: FloatArray) -> FloatArray:
    """A float as the reference's processor turns it into an unsigned 64-bit integer."""
    wrapped = np.where(value < 0, np.trunc(value) + 2.0**64, np.floor(value))
    wrapped = np.where(wrapped >= 2.0**64, 0.0, wrapped)
    return np.where(np.isnan(value), 2.0**63, wrapped)


def exposed_time(workload: StepRows, communication: FloatArray, overlap: Overlap, strict: bool) -> FloatArray:
    """Time of each collective that is not overlapped, in single precision as in the reference. [ns]"""
    among_experts = (workload.group[..., :1] == EP) & (workload.collective[..., :1] > 0)
    forward = np.where(among_experts, 1 - overlap.ep, 1 - overlap.tp)
    shares = np.concatenate([forward, forward, np.full_like(forward, 1 - overlap.dp)], axis=-1)
    left = single(single(communication) * single(shares))
    return ticks(left) if strict else np.floor(left)


def summed(
    workload: StepRows, communication: FloatArray, exposed: FloatArray, network: Busbw | Links, rules: Revision,
    overlap: Overlap, strict: bool,
) -> Totals:  # fmt: skip
    """Sums over rows, the bubble, and the messages between stages."""
    counts, layout = workload.counts, workload.layout
    compute = np.rint(workload.time * 1e9).sum(axis=-1)

    def over_rows(values: FloatArray) -> FloatArray:
        return np.asarray(np.where(counts > 0, counts * values, 0.0).sum(axis=1) * 1e-9)

    replicas = (workload.group[..., 2] == DP_EP) & (workload.collective[..., 2] > 0)
    experts = (workload.group[..., 0] == EP) & (workload.collective[..., 0] > 0)
    forward, weights = exposed[..., 0] + exposed[..., 1], exposed[..., 2]
    total_compute = over_rows(compute)
    parts = {
        "exposed_dp_time": over_rows(np.where(replicas, 0.0, weights)),
        "exposed_dp_ep_time": over_rows(np.where(replicas, weights, 0.0)),
        "exposed_tp_time": over_rows(np.where(experts, 0.0, forward)),
        "exposed_ep_time": over_rows(np.where(experts, forward, 0.0)),
    }
    counted = np.array([name != "embedding_layer" for name in workload.names])
    idle = over_rows(np.where(counted, compute + communication[..., 0] + communication[..., 1], 0.0))
    slots = layout.gradient_accumulation_steps * getattr(layout, rules.bubble_by)
    share = np.where((layout.pp == 1) & (not strict), 0.0, (layout.pp - 1) / slots)
    bubble = share * idle
    messages = exposed_messages(workload, network, rules, overlap, strict)
    total_exposed = sum(parts.values(), start=np.zeros(()))
    return Totals(
        **parts,
        exposed_pp_time=messages,
        bubble_time=bubble,
        total_compute_time=total_compute,
        total_exposed_time=total_exposed,
        total_time=total_compute + total_exposed + bubble + messages,
    )


def exposed_messages(
    workload: StepRows, network: Busbw | Links, rules: Revision, overlap: Overlap, strict: bool
) -> FloatArray:
    """Messages between stages. The newest revision divides by the overlap where a bandwidth should be. [s]"""
    layout, nothing = workload.layout, np.zeros(workload.num_points)
    message = np.floor(layout.pp_message_bytes)
    if not rules.overlaps:
        return nothing
    bandwidth = overlap.pp if isinstance(network, Links) else network.pp
    if bandwidth is None:
        return nothing if overlap.pp == 1 else np.where(message > 0, np.nan, 0.0)
    chunks = np.nan_to_num(layout.vpp * layout.gradient_accumulation_steps)
    with np.errstate(divide="ignore", invalid="ignore"):
        took = 2 * chunks * (message / rules.bandwidth_unit / np.float64(bandwidth) * 1e9) / 1e3
    whole = np.where(np.isfinite(took), np.floor(took), np.where(np.isnan(took) & strict, 2.0**63, 0.0))
    left = np.floor(whole * (1 - overlap.pp)) * 1e-6
    return np.where(message >= LARGEST_PP_MESSAGE, np.nan, left)


#: A longer time of a row never ends. [ns]
LONGEST_TIME = 2.0**31
ENDLESS = "a time of 2^31 ns or more, on which SimAI never ends"


def missing(report: SimaiReport, network: Busbw | Links, *, revision: str, overlap: Overlap | None = None) -> list[str]:
    """Reasons why the first workload of a report of `price` has no complete result, one text each."""
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
    reasons: dict[tuple[str, str], dict[str, None]] = {}
    for row, row_number in np.argwhere(report.undefined[0] & present).tolist():
        group = GROUPS[int(workload.group[0, row, row_number])]
        large = workload.message_bytes[0, row, row_number] > SIZES[-1]
        why = reason(int(report.group_size[0, row, row_number]), bool(large), network)
        kind = COLLECTIVES[int(workload.collective[0, row, row_number])]
        reasons.setdefault((f"over {group}", why), {})[f"{kind} of {workload.names[row]}"] = None
    for (group, why), whose in reasons.items():
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
            older = ", or evaluate by simai-2024-10, which knows none" if token == "vpp" else ""
            yield f"header: {token}: missing, so that SimAI's bubble is not a number; add '{token}: N'{older}"


def undefined_messages(report: SimaiReport, network: Busbw | Links, overlap: Overlap) -> Iterator[str]:
    """Reasons why messages between stages have no time."""
    message = float(report.workload.layout.pp_message_bytes[0])
    if message >= LARGEST_PP_MESSAGE:
        yield "header: pp_comm: 2^31 bytes or more, on which SimAI aborts; split the micro-batch"
    if isinstance(network, Busbw) and network.pp is None and message > 0 and overlap.pp < 1:
        yield "messages between stages: no bandwidth in the file of bus bandwidths; add PP: {busbw: ...}"
