"""`dse export`: a design as a file that other programs read."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.cli.options import EXPORTED, Commands, add_storage, add_study, add_trial, command, natural
from dse.cli.terminal import say


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "export",
        run,
        summary="write a design of a study as a file for other programs",
        about="Write a design of a study as a file that other programs read: aicb is the workload of its\n"
        "slowest stage, row by row, for SimAI and ASTRA-sim, with arithmetic as the cost model prices it;\n"
        "dfmodel is the graph of a layer with its sharding, and the machine, as DFModel has them; dot and\n"
        "svg are pictures of that graph; trace is one step, event by event, for Perfetto and\n"
        "chrome://tracing; chakra is that step as execution traces of MLCommons Chakra, a folder with a\n"
        "file for one rank of each pipeline stage; megatron, nemo (Megatron-Bridge), torchtitan and maxtext\n"
        "are what starts the design there, with names for what it does not decide. svg needs Graphviz.",
        examples=[
            "dse export gpt3_175b_1024_a100 --trial 12 --format aicb -o workload.txt",
            "dse export gpt3_175b_1024_a100 > best.txt",
            "dse export chips --trial 12 --winner 3       a space with parameters `by: exact`",
            "dse export gpt3_175b_1024_a100 --trial 12 --format dfmodel -o setup.txt",
            "dse export gpt3_175b_1024_a100 --format svg -o layer.svg",
            "dse export gpt3_175b_1024_a100 --trial 12 --format trace -o step.json",
            "dse export gpt3_175b_1024_a100 --trial 12 --format chakra -o traces",
            "dse export gpt3_175b_1024_a100 --trial 12 --format megatron -o train.sh",
        ],
    )
    add_study(parser)
    add_trial(parser)
    parser.add_argument(
        "--winner",
        metavar="K",
        type=natural,
        help="which of the designs that the trial has found, as `dse pareto` numbers them (default: 0)",
    )
    parser.add_argument(
        "--workload", metavar="NAME", help="which workload, of a space that has several (docs/runs.md)"
    )
    parser.add_argument("--format", choices=EXPORTED, default=EXPORTED[0], help=f"default: {EXPORTED[0]}")
    parser.add_argument("-o", "--output", metavar="PATH", type=Path, help="write there (chakra: a folder)")
    add_storage(parser)


def run(args: argparse.Namespace) -> int:
    """Write the file."""
    from costmodel.errors import DseError
    from dse.exporting.artefacts import trial_artefact, write_artefact
    from dse.library.study import Study

    if args.winner is not None and args.trial is None:
        raise DseError(f"--winner {args.winner}: needs --trial, whose winner it is")
    study = Study.load(args.study, storage=args.storage)
    file = trial_artefact(study, args.trial, args.format, args.winner or 0, args.workload)
    assert file.content is not None
    if not (args.output or isinstance(file.content, bytes)):
        raise DseError(f"--format {args.format}: writes {len(file.content)} files; name a folder with -o DIR")
    for text in file.notes:
        say(f"{args.output or args.study}: {text}")
    if args.output:
        write_artefact(args.output, file)
    else:
        assert isinstance(file.content, bytes)
        sys.stdout.buffer.write(file.content)
        sys.stdout.buffer.flush()
    return 0
