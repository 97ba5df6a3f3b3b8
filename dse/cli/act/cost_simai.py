"""`dse cost --profile simai`: an AICB workload by SimAI's closed forms."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from typing import Any

import numpy as np

from costmodel.errors import DseError
from costmodel.profiles.simai import REVISIONS, Busbw, Links, Overlap, SimaiReport, missing, price
from costmodel.profiles.simai.bandwidth import GPU_TYPES, NIC_TYPES
from costmodel.profiles.simai.files.aicb import GPUS, REQUIRED, VPP, WorkloadFile, load_workload
from costmodel.profiles.simai.files.busbw import load_busbw
from costmodel.profiles.simai.files.endtoend import endtoend_csv
from costmodel.profiles.simai.workload_rows import StepRows
from dse.cli.act.words import USUAL_GPU
from dse.records.tables import json_text
from dse.records.text import show
from dse.reporting.programs.simai_report import simai_record, simai_report

#: The newest revisions that take a file of bus bandwidths, and the links of a machine.
WITH_FILE, WITH_LINKS = "simai-2024-12", "simai-2025-07"


def run(args: argparse.Namespace) -> int:
    """Read, evaluate, write."""
    file = load_workload(args.file)
    network, revision = network_of(args)
    overlap = Overlap(dp=args.dp_overlap, tp=args.tp_overlap, ep=args.ep_overlap, pp=args.pp_overlap)
    check_header(file, revision, args)
    report = price(
        usual_chunks(file, args),
        network,
        revision=revision,
        world_size=args.gpus,
        gpus_per_server=args.gpus_per_server,
        overlap=overlap,
        strict=args.strict_compat,
    )
    lacking = missing(report, network, revision=revision, overlap=overlap)
    for text in lacking:
        print(f"dse: {args.file}: {text}", file=sys.stderr)
    write(args, report, revision, lacking)
    return 0


def usual_chunks(file: WorkloadFile, args: argparse.Namespace) -> StepRows:
    """The rows to price; without vpp in the header one chunk a stage, unless a revision is asked for.

    SimAI leaves the number of chunks undefined there, and so its bubble.
    """
    rows = file.executed
    if args.profile_is_asked_for or VPP in file.tokens:
        return rows
    print(f"dse: {args.file}: header: {VPP}: missing, so taken to be 1", file=sys.stderr)
    return replace(rows, layout=replace(rows.layout, vpp=np.ones_like(rows.layout.pp)))


def network_of(args: argparse.Namespace) -> tuple[Busbw | Links, str]:
    """The bandwidths that the arguments give, and the revision that takes them."""
    revision = args.profile
    if revision == "simai":
        revision = WITH_FILE if args.busbw else WITH_LINKS
    if REVISIONS[revision].bandwidth == "file":
        if not args.busbw:
            raise DseError(f"{revision}: takes its bandwidths from a file; name one with --busbw")
        return load_busbw(args.busbw), revision
    if args.busbw:
        raise DseError(f"{revision}: takes no --busbw any more; leave it out, or take --profile {WITH_FILE}")
    gpu = args.gpu_type or USUAL_GPU
    if args.nvlink_bandwidth is None and args.gpu_type is None:
        print(f"dse: {args.file}: no --gpu-type named, so priced on {gpu}s", file=sys.stderr)
    links = Links.of(
        gpus_per_server=args.gpus_per_server,
        nics_per_server=args.nics_per_server or args.gpus_per_server,
        nvlink_bandwidth=args.nvlink_bandwidth or GPU_TYPES[gpu] * 2.0**30,
        nic_bandwidth=args.nic_bandwidth or NIC_TYPES[args.nic_type] * 2.0**30,
    )
    return links, revision


def check_header(file: WorkloadFile, revision: str, args: argparse.Namespace) -> None:
    """Refuse a header that the revision cannot read; note GPUs that are not those of the file."""
    lacking = [token for token in REQUIRED[revision] if token not in file.tokens]
    if lacking:
        raise DseError(f"{args.file}:1: {', '.join(lacking)}: missing; {revision} needs them")
    if args.gpus is None and GPUS not in file.tokens:
        raise DseError(f"{args.file}:1: {GPUS}: missing; say how many there are with --gpus")
    written = file.tokens.get(GPUS)
    if args.gpus is not None and written is not None and int(float(written)) != args.gpus:
        print(f"dse: {args.file}:1: {GPUS}: {written} there, and {args.gpus} counted", file=sys.stderr)


def write(args: argparse.Namespace, report: SimaiReport, revision: str, lacking: list[str]) -> None:
    """The report, as a person, a program or SimAI's own tools read it."""
    if args.format == "csv":
        sys.stdout.write(endtoend_csv(report, args.file.stem, revision=revision))
        return
    if args.format == "json":
        head: dict[str, Any] = {
            "file": str(args.file),
            "profile": revision,
            "gpus": int(report.world_size[0]),
        }
        print(json_text({**head, "missing": lacking, **simai_record(report, strict=args.strict_compat)}))
        return
    show(sys.stdout, lambda width: simai_report(report, revision))
