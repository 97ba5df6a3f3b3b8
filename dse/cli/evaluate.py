"""`dse evaluate`: price one named design."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from dse.cli.options import Commands, add_space, changed_space, command

if TYPE_CHECKING:
    from dse.space import Space


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "evaluate",
        run,
        summary="price one design",
        about="Price one legal design of a space, named by --set: what a step costs, and what binds it.",
        examples=[
            "dse evaluate gpt3_175b_1024_a100 --set tp=8 --set pp=16 --set vpp=1 \\\n"
            "      --set micro_batch_size=1 --set recompute=selective --set sequence_parallel=true \\\n"
            "      --set distributed_optimizer=true",
        ],
    )
    add_space(parser)
    parser.add_argument(
        "--format",
        choices=["table", "json"],
        default="table",
        help="a report to read, or one JSON object (default: table)",
    )


def run(args: argparse.Namespace) -> int:
    """Price the design."""
    from dse.exact import priced_design

    space = changed_space(args)
    record = priced_design(space, only_design(space))
    if args.format == "json":
        from dse.export import EVALUATION_KEYS, json_text

        print(json_text({key: record[key] for key in EVALUATION_KEYS}))
        return 0
    from dse.report import evaluation_report
    from dse.text import show

    show(sys.stdout, lambda width: evaluation_report(space, record, width))
    return 0


def only_design(space: Space) -> dict[str, float | int | str | bool]:
    """The one legal design of a space.

    Raises
    ------
    DseError
        If there are several, saying what is left open.
    """
    from costmodel.errors import DseError

    if space.legal.count == 1:
        return space.decode(next(space.legal.enumerate(1)))[0]
    left_open = "; ".join(
        f"{p.name}: {p.described() if p.choices is None else ', '.join(map(p.shown, values))}"
        for p in space.parameters
        if len(values := space.legal.values_of(p.name)) != 1
    )
    count = "no end of" if space.legal.count == float("inf") else f"{space.legal.count:,.0f}"
    raise DseError(f"{space.name}: {count} legal designs are like that; --set these too: {left_open}")
