"""AICB workloads in `dse evaluate`: evaluated by a revision of SimAI, as text and as a record.

Bandwidths of collectives come from a file, or follow from the links of a machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from costmodel.columns import grouped
from costmodel.errors import DseError, ParameterError
from costmodel.formats.input_files import data_beside
from costmodel.formats.quantity import readable
from costmodel.training.kernel_kind import PASSES
from dse.adapters.simai.bandwidth import GPU_TYPES, NIC_TYPES, REVISIONS, Busbw, Links
from dse.adapters.simai.files.aicb import GPUS, REQUIRED, VPP, WorkloadFile, endtoend_csv, load_workload
from dse.adapters.simai.files.busbw import load_busbw
from dse.adapters.simai.time import Overlap, SimaiReport, missing, price
from dse.adapters.simai.workload_rows import COLLECTIVES, GROUPS, StepRows
from dse.cli.output import write_answer, write_content
from dse.cli.terminal import say
from dse.output import percent
from dse.registry import workload_kinds
from dse.reporting.design_table import ruled_table

#: Column of `Totals` -> its name in the report, in the order in which they add up.
_PARTS: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["parts"]

#: Text that the reference prints for a value that is not a number.
NOT_FINITE: Final = "NaN or Inf"


def simai_record(report: SimaiReport, *, strict: bool = False) -> dict[str, Any]:
    """The first workload of a report as JSON: totals, and every row in the order of the step. [us]"""
    totals: dict[str, float | str] = {
        name.removesuffix("_time") + "_us": float(values[0]) * 1e6 for name, values in report.totals.columns().items()
    }
    if strict:
        totals = {key: value if np.isfinite(value) else NOT_FINITE for key, value in totals.items()}
    rows = row_records(report)
    return {**totals, "rows": [rows[row] for row in report.workload.unrolled().tolist()]}


def row_records(report: SimaiReport) -> list[dict[str, Any]]:
    """Every row of the template, pass by pass."""
    workload = report.workload
    cells = {
        "compute_us": np.rint(workload.time[0] * 1e9) / 1e3,
        "collective": np.array(COLLECTIVES)[workload.collective[0]],
        "group": np.array(GROUPS)[workload.group[0]],
        "group_size": report.group_size[0].astype(int),
        "message_bytes": workload.message_bytes[0].astype(int),
        "communication_us": report.communication[0] / 1e3,
        "exposed_us": report.exposed[0] / 1e3,
    }
    lists = {key: values.tolist() for key, values in cells.items()}  # (rows, passes)
    return [
        {"name": name, **{p: {key: of[row][at] for key, of in lists.items()} for at, p in enumerate(PASSES)}}
        for row, name in enumerate(workload.names)
    ]


def simai_report(report: SimaiReport, revision: str) -> list[RenderableType]:
    """The first workload of a report in tables: where the time goes, and which rows take it."""
    layout = report.workload.layout
    columns = {name: float(values[0]) for name, values in layout.columns().items() if name in _SHOWN}
    shape = ", ".join(f"{name} {value:g}" for name, value in columns.items() if np.isfinite(value))
    heading = f"{revision}, {report.world_size[0]:g} GPUs: {shape}"
    return [Text(heading, style="bold"), Text(), totals_table(report), Text(), rows_table(report)]


#: Most rows of a table for people.
MOST_SHOWN: Final = 1000
_SHOWN: Final = ("tp", "pp", "ep", "vpp")


def totals_table(report: SimaiReport) -> Table:
    """Where the time of the step goes."""
    whole = float(report.totals.total_time[0])
    table = Table.grid(padding=(0, 2, 0, 0))
    for name, text in _PARTS.items():
        value = float(getattr(report.totals, name)[0])
        share = percent(value / whole) if np.isfinite(whole) and whole > 0 else ""
        if value != 0:
            table.add_row(text, time_text(value), share)
    table.add_row(Text("step", style="bold"), time_text(whole), "")
    return table


def rows_table(report: SimaiReport) -> Table:
    """Rows of one name together, in the order of the step."""
    table = ruled_table(
        "row", "times", "arithmetic", *(f"{word}\nexposed" for word in ("forward", "backward", "weights"))
    )
    workload = report.workload
    counts, exposed = workload.counts[0], report.exposed[0] * 1e-9
    places = grouped((name, index) for index, name in enumerate(workload.names) if counts[index])
    for name, rows in islice(places.items(), MOST_SHOWN):
        arithmetic = float(counts[rows] @ workload.time[0, rows].sum(axis=1))
        cells = [time_text(float(value)) for value in (arithmetic, *(counts[rows] @ exposed[rows]))]
        table.add_row(name, f"{counts[rows].sum():g}", *cells)
    if len(places) > MOST_SHOWN:
        table.add_row(f"and {len(places) - MOST_SHOWN:,} more, which --format json has")
    return table


def time_text(seconds: float) -> str:
    """A time, or that there is none."""
    return readable(seconds, "s", digits=4) if np.isfinite(seconds) else "not given"


#: The GPU of a workload for which none is named.
USUAL_GPU = "H100"
#: The newest revisions of SimAI that take a file of bus bandwidths, and the links of a machine.
WITH_FILE, WITH_LINKS = "simai-2024-12", "simai-2025-07"

Note = Callable[[str], None]


@dataclass(frozen=True)
class SimaiCost:
    """An AICB workload, evaluated by a revision of SimAI."""

    path: Path
    report: SimaiReport
    revision: str
    lacking: list[str]  #: collectives for which the revision has no bandwidth or rule
    strict: bool

    def to_json(self) -> dict[str, Any]:
        """Totals and every row, as one JSON object."""
        head = {"file": str(self.path), "profile": self.revision, "gpus": int(self.report.world_size[0])}
        return {**head, "missing": self.lacking, **simai_record(self.report, strict=self.strict)}


def simai_cost(
    path: Path, *, profile: str = "simai", asked: bool = False, gpus: int | None = None,
    strict_compat: bool = False, dp_overlap: float = 0.0, tp_overlap: float = 0.0, ep_overlap: float = 0.0,
    pp_overlap: float = 1.0, note: Note = lambda text: None, **machine: Any,
) -> SimaiCost:  # fmt: skip
    """Evaluate an AICB workload.

    Raises `DseError` if the file cannot be read, or lacks fields that the revision needs.

    `profile` is "simai" or one of its revisions; `asked` is True if the user named it: a header without vpp is then
    evaluated as SimAI does. `gpus` is the number of GPUs of the run (default: the file's). [-] `strict_compat` shows
    the values of SimAI where it overflows or divides by zero. The overlaps are hidden shares of communication. [-]
    `note` is called with each assumption, and `machine` has the arguments of `network_of`.
    """

    def say(text: str) -> None:
        note(f"{path}{text}")

    file = load_workload(path)
    network, revision = network_of(profile, say, **machine)
    overlap = Overlap(dp=dp_overlap, tp=tp_overlap, ep=ep_overlap, pp=pp_overlap)
    check_header(path, file, revision, gpus, say)
    report = price(
        file.executed if asked else usual_chunks(file, say),
        network,
        revision=revision,
        world_size=gpus,
        gpus_per_server=machine.get("gpus_per_server", 8),
        overlap=overlap,
        strict=strict_compat,
    )
    lacking = missing(report, network, revision=revision, overlap=overlap)
    for text in lacking:
        say(f": {text}")
    return SimaiCost(path, report, revision, lacking, strict_compat)


def usual_chunks(file: WorkloadFile, say: Note) -> StepRows:
    """The rows to evaluate; without vpp in the header one chunk a stage.

    SimAI leaves the number of chunks undefined there, and so its bubble.
    """
    rows = file.executed
    if VPP in file.tokens:
        return rows
    say(f": header: {VPP}: missing, so taken to be 1")
    return replace(rows, layout=replace(rows.layout, vpp=np.ones_like(rows.layout.pp)))


def network_of(
    revision: str, say: Note, *, busbw: str | Path | None = None, gpus_per_server: int = 8,
    gpu_type: str | None = None, nvlink_bandwidth: float | None = None, nics_per_server: int | None = None,
    nic_type: str = "cx7", nic_bandwidth: float | None = None,
) -> tuple[Busbw | Links, str]:  # fmt: skip
    """The bandwidths of a file or of a machine [B/s], and the revision that takes them."""
    if revision == "simai":
        revision = WITH_FILE if busbw else WITH_LINKS
    if REVISIONS[revision].bandwidth == "file":
        if not busbw:
            raise ParameterError(f"{revision}: takes its bandwidths from a file; name one with {{busbw}}")
        return load_busbw(Path(busbw)), revision
    if busbw:
        raise ParameterError(f"{revision}: takes no {{busbw}} any more; leave it out, or take {{profile}} {WITH_FILE}")
    gpu = gpu_type or USUAL_GPU
    if nvlink_bandwidth is None and gpu_type is None:
        say(f": no --gpu-type named, so evaluated on {gpu}s")
    links = Links.of(
        gpus_per_server=gpus_per_server,
        nics_per_server=nics_per_server or gpus_per_server,
        nvlink_bandwidth=nvlink_bandwidth or GPU_TYPES[gpu] * 2.0**30,
        nic_bandwidth=nic_bandwidth or NIC_TYPES[nic_type] * 2.0**30,
    )
    return links, revision


def check_header(path: Path, file: WorkloadFile, revision: str, gpus: int | None, say: Note) -> None:
    """Refuse a header that the revision cannot read; note GPUs that are not those of the file."""
    lacking = [token for token in REQUIRED[revision] if token not in file.tokens]
    if lacking:
        raise DseError(f"{path}:1: {', '.join(lacking)}: missing; {revision} needs them")
    if gpus is None and GPUS not in file.tokens:
        raise ParameterError(f"{path}:1: {GPUS}: missing; say how many there are with {{gpus}}")
    written = file.tokens.get(GPUS)
    if gpus is not None and written is not None and int(float(written)) != gpus:
        say(f":1: {GPUS}: {written} there, and {gpus} counted")


def run(args: argparse.Namespace) -> int:
    """Evaluate an AICB workload by SimAI's closed forms."""
    cost = simai_cost(
        args.design,
        profile=args.profile,
        asked=args.profile_is_asked_for,
        note=say,
        **{name: getattr(args, name) for name in workload_kinds()["aicb"].defaults},
    )
    if args.format == "csv":
        table = endtoend_csv(cost.report, args.design.stem, revision=cost.revision)
        write_content([table.encode()], args.format, args.output)
    else:
        write_answer(args.format, cost.to_json(), lambda width: simai_report(cost.report, cost.revision), args.output)
    return 0


def record(
    path: Path, profile: str, asked: bool, options: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """The JSON of a workload; `options` are keyword arguments of `simai_cost`."""
    return simai_cost(path, profile=profile, asked=asked, note=note, **options).to_json()
