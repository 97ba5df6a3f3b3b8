"""`dse cost`: price a workload file by the rules of a reference model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from costmodel.errors import DseError
from dse.cli.options import Commands, command

#: Rules that a file can be priced by.
PROFILES = ("deepflow", "dfmodel-gen1", "dfmodel-gen2a", "dfmodel-gen2b", "dfmodel-gen3")

#: Choices of published runs that `--prefer` names.
PREFERRED = ("gpt_1t", "megatron", "inference")


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "cost",
        run,
        summary="price a workload file",
        about="Price a workload file by the rules of a reference model: where the time and the memory go.",
        examples=[
            "dse cost lstm.yaml --profile deepflow",
            "dse cost lstm.yaml --profile deepflow --format json | jq .figures.Time",
            "dse cost setup.txt --profile dfmodel-gen1 --format json | jq .final_s",
            "dse cost setup.txt --resolve --prefer gpt_1t",
        ],
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="a DeepFlow configuration (docs/deepflow.md) or a DFModel set-up (docs/dfmodel.md)",
    )
    parser.add_argument(
        "--profile",
        choices=PROFILES,
        help="reference model whose rules price the file (default: told from the file)",
    )
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="a report to read, or one JSON object (default: table)",
    )
    parser.add_argument(
        "--resolve",
        action="store_true",
        help="DFModel: find the sharding that moves least, instead of the file's own",
    )
    parser.add_argument(
        "--prefer",
        choices=PREFERRED,
        help="DFModel: among equally good shardings take that of a published run; implies --resolve",
    )


def run(args: argparse.Namespace) -> int:
    """Read, price, write."""
    profile = args.profile or told_profile(args.file)
    if not profile.startswith("dfmodel") and (args.resolve or args.prefer):
        raise DseError(
            f"--resolve and --prefer: only for DFModel set-ups; {args.file} is priced by {profile}"
        )
    return _deepflow(args) if profile == "deepflow" else _dfmodel(args, profile)


def told_profile(file: Path) -> str:
    """The profile that a file's content asks for."""
    try:
        data = file.read_bytes()
    except OSError:
        return PROFILES[0]  # whose reader says what is wrong
    if file.suffix in (".yaml", ".yml"):
        return "deepflow"
    from costmodel.formats.dfmodel import is_setup, load_setup
    from costmodel.formats.dfmodel.files import ROOTS

    if not is_setup(data):
        return "deepflow"
    roots = {root: generation for generation, root in ROOTS.items()}  # of two generations the later
    return f"dfmodel-{roots[type(load_setup(file)).__name__]}"


def _deepflow(args: argparse.Namespace) -> int:
    from costmodel.formats.deepflow import load_configuration
    from costmodel.profiles.deepflow import price

    report = price(load_configuration(args.file))
    if args.format == "json":
        from dse.deepflow_report import figures

        return _write_json({"file": str(args.file), "profile": "deepflow", "figures": figures(report)})
    from dse.deepflow_report import deepflow_report
    from dse.text import show

    show(sys.stdout, lambda width: deepflow_report(report))
    return 0


def _dfmodel(args: argparse.Namespace, profile: str) -> int:
    from dse.dfmodel_report import dfmodel_report, figures, priced_file

    generation = profile.removeprefix("dfmodel-")
    resolve = args.resolve or args.prefer is not None
    report = priced_file(args.file, generation=generation, resolve=resolve, prefer=args.prefer)
    if args.format == "json":
        return _write_json({"file": str(args.file), "profile": profile, **figures(report)})
    from dse.text import show

    show(sys.stdout, lambda width: dfmodel_report(report))
    return 0


def _write_json(record: dict[str, Any]) -> int:
    from dse.export import json_text

    print(json_text(record))
    return 0
