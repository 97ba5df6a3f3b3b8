"""`dse spaces`, `dse models`, `dse systems` and `dse frameworks`: what ships."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dse.cli.options import Commands, command

#: Command -> what it lists, and something that ships.
KINDS = {
    "spaces": ("search spaces", "gpt3_175b_1024_a100"),
    "models": ("models", "gpt3_175b"),
    "systems": ("systems", "a100_80g_dgx"),
    "frameworks": ("training frameworks", "megatron_core"),
}


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add a command for each kind."""
    for kind, (what, example) in KINDS.items():
        one = kind.removesuffix("s")
        parser = command(
            commands,
            kind,
            run,
            summary=f"list the {what} that ship",
            about=f"List the {what} that ship with the package, or print the file of one.",
            examples=[f"dse {kind}", f"dse {kind} {example} > my_{one}.yaml      to change it"],
        )
        parser.add_argument("name", metavar="NAME", nargs="?", help=f"print this {one} as YAML")
        parser.add_argument("--format", choices=["table", "json"], default="table", help="default: table")
        parser.set_defaults(kind=kind)


def run(args: argparse.Namespace) -> int:
    """List the files of a kind, or print one."""
    from dse.reporting import catalogue

    if args.name:
        sys.stdout.write(catalogue.text_of(args.name, args.kind))
        return 0
    rows: list[dict[str, Any]] = catalogue.LISTS[args.kind]()
    if args.format == "json":
        from dse.records.tables import json_text

        print(json_text({args.kind: rows}))
        return 0
    from dse.records.text import show
    from dse.reporting.study_report import listing

    show(sys.stdout, lambda width: listing(rows, width))
    return 0
