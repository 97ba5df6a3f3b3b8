"""`dse cost`: evaluate a workload file."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from costmodel.profiles.registry import PROFILES, profile_named
from dse.cli.act import cost_deepflow, cost_dfmodel, cost_hlo, cost_simai
from dse.cli.options import Commands, command
from dse.cli.output import form_of


class Reader(Protocol):
    """What reads, prices and writes files of one kind: a module of that name beside this one."""

    @property
    def FORMATS(self) -> tuple[str, ...]:
        """What `--format` may be."""

    @property
    def DEFAULTS(self) -> Mapping[str, Any]:
        """Options that it alone takes -> what they are unless given."""

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Declare them, absent unless given."""

    def run(self, args: argparse.Namespace) -> int:
        """Read, evaluate, write."""


#: Kind of file -> its reader.
READERS: Final[Mapping[str, Reader]] = {
    "hlo": cost_hlo,
    "aicb": cost_simai,
    "dfmodel": cost_dfmodel,
    "deepflow": cost_deepflow,
}

#: What the help shows.
EXAMPLES = [
    "dse cost step.hlo --system a100_80g_dgx",
    "dse cost step.hlo --sweep",
    "dse cost step.hlo --sweep h100_80g_dgx,tpu_v5p_pod -o systems.csv",
    "dse cost step.hlo.gz --format json | jq .figures",
    "dse cost step.hlo --system h100_80g_dgx --format trace > step.json",
    "dse cost lstm.yaml",
    "dse cost lstm.yaml --format json | jq .figures.Time",
    "dse cost workload.txt --gpus 1024 --gpu-type H100 --nic-type cx7",
    "dse cost workload.txt --profile simai-2024-12 --busbw busbw.yaml --gpus 1024 --format csv",
    "dse cost setup.txt --profile dfmodel-gen1 --format json | jq .final_s",
    "dse cost setup.txt --resolve --prefer gpt_1t",
    "dse cost setup.txt --format svg > layer.svg",
    "dse cost step.hlo --format dfmodel > graph.txt",
    "dse cost setup.txt --groups 40 --tile-size best",
]


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "cost",
        run,
        summary="price a workload file",
        about="Price a workload file: where time and memory go. Its content tells what it is: an HLO\n"
        "module is priced by the native model, other files by the rules of a reference model.",
        examples=EXAMPLES,
    )
    parser.add_argument(
        "file",
        metavar="FILE",
        type=Path,
        help="an HLO module, perhaps packed by gzip (docs/hlo.md), a DeepFlow configuration "
        "(docs/deepflow.md), an AICB workload (docs/aicb.md), or a DFModel set-up (docs/dfmodel.md)",
    )
    parser.add_argument(
        "--profile",
        choices=[profile.name for profile in PROFILES.values() if profile.file],
        help="whose rules price the file (default: native for HLO, simai for AICB, DFModel's by their "
        "generation)",
    )
    parser.add_argument(
        "--format",
        choices=["table", "json", "csv", "parquet", "trace", "dfmodel", "dot", "svg"],
        help="a report to read, one JSON object, SimAI's EndToEnd.csv or a row for each system of a --sweep, "
        "of an HLO module a timeline for Chrome's trace viewer or its graph for DFModel, or a picture of the "
        "graph of either; svg needs Graphviz (default: what the ending of OUT says, else table)",
    )
    for reader in READERS.values():
        reader.add_options(parser)


def run(args: argparse.Namespace) -> int:
    """Read, evaluate, write.

    Raises
    ------
    DseError
        If the file is of no kind that is evaluated, or not of the kind that its profile or its options want.
    """
    from costmodel.errors import DseError
    from costmodel.formats.input_files import content
    from costmodel.profiles.files import FILES, kind_named, kind_of

    kind = kind_of(args.file)
    asked = profile_named(args.profile).file if args.profile else None
    if kind is None and asked is None:
        what = "empty" if not content(args.file, 1) else "of no kind that is priced"
        titles = ", ".join(kind.title for kind in FILES)
        raise DseError(f"{args.file}: {what}; give {titles}, or say by --profile what it should be")
    if kind is not None and asked not in (None, kind.name):
        raise DseError(
            f"{args.file}: is {kind.title}, and --profile {args.profile} does not price one; leave it out"
        )
    kind = kind or kind_named(str(asked))
    reader = READERS[kind.name]
    refuse_foreign(args, kind.name, kind.title)
    args.format = form_of(args.format, vars(args).get("output"))
    if args.format not in reader.FORMATS:
        raise DseError(f"{args.file}: {kind.title} has no {args.format}; ask for {', '.join(reader.FORMATS)}")
    profile = args.profile or kind.profile(args.file)
    own = {**reader.DEFAULTS, **vars(args), "profile": profile, "profile_is_asked_for": bool(args.profile)}
    return int(reader.run(argparse.Namespace(**own)))


def refuse_foreign(args: argparse.Namespace, kind: str, title: str) -> None:
    """Refuse options that are for files of another kind: only options that were given are in `args`.

    Raises
    ------
    DseError
        Naming them, and what they are for.
    """
    from costmodel.errors import DseError
    from costmodel.profiles.files import kind_named

    for other, reader in READERS.items():
        given = [name for name in reader.DEFAULTS if other != kind and name in args]
        if given:
            words = ", ".join("--" + name.replace("_", "-") for name in given)
            raise DseError(
                f"{args.file}: {words}: for {kind_named(other).title}, and this is {title}; leave it out"
            )
