"""`dse export`: write a design as a launch script, a trace, or a file of another simulator."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from costmodel.errors import DseError
from dse.api.exports import write_artefact
from dse.api.study import Study
from dse.cli.options import add_storage, add_study, add_trial, describe, natural
from dse.cli.output import PICTURES
from dse.cli.terminal import say
from dse.registry import export_forms

ABOUT: Final = (
    "Write a design of a study as a file for another program:\n"
    "  megatron, nemo, torchtitan, maxtext        launch scripts and configurations\n"
    "  aicb, astra-sim, dfmodel, dfmodel-binary   workloads and graphs for simulators\n"
    "  trace, chakra                              one step, for Perfetto or Chakra\n"
    "  gemms, optimizer                           reloads of each matrix product; clipping and update\n"
    "Paths and learning rates are variables of a launch script; it asks for them before it starts."
)
EXAMPLES: Final = (
    "dse export plan_llama3_70b_256 --format megatron -o train.sh",
    "dse export gpt3_175b_1024_a100 --trial 12 --format aicb -o workload.txt",
    "dse export gpt3_175b_1024_a100 --trial 12 --format trace -o step.json",
    "dse export gpt3_175b_codesign --trial 12 --format gemms -o gemms.csv",
    "dse export chips --trial 12 --winner 3       a space with parameters `by: exact`",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse export`."""
    describe(parser, about=ABOUT, examples=EXAMPLES)
    add_study(parser)
    add_trial(parser)
    forms = export_forms()
    parser.add_argument(
        "--format", choices=[*forms], default=next(iter(forms)), help=f"kind of file (default: {next(iter(forms))})"
    )
    parser.add_argument("-o", "--output", metavar="PATH", type=Path, help="file to write (chakra, astra-sim: a folder)")
    parser.add_argument(
        "--anyway",
        action="store_true",
        help="write a launch script of a model that the framework cannot train, and list the losses",
    )
    parser.add_argument(
        "--winner",
        metavar="K",
        type=natural,
        help="which inner design of the trial, as `dse show` numbers them (default: 0)",
    )
    parser.add_argument("--workload", metavar="NAME", help="which workload, in a space that has several (docs/runs.md)")
    add_storage(parser.add_argument_group("advanced"))


def run(args: argparse.Namespace) -> int:
    """Write a design as a file of another program."""
    if args.winner is not None and args.trial is None:
        raise DseError(f"--winner {args.winner}: needs --trial")
    refuse_ending(args.output, args.format)
    study = Study.load(args.study, storage=args.storage)
    choice = {"winner": args.winner or 0, "workload": args.workload, "anyway": args.anyway}
    file = study.export(args.trial, args.format, **choice)
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


def refuse_ending(output: Path | None, form: str) -> None:
    """Refuse a file whose ending belongs to another form; a `DseError` that names the form."""
    ending = output.suffix.lower().replace(".yml", ".yaml") if output else ""
    forms = export_forms()
    file_name = forms[form].replace(".yml", ".yaml")
    others = [name for name, other in forms.items() if ending and other.replace(".yml", ".yaml") == ending]
    if others and ending != file_name:
        raise DseError(f"-o {output}: --format {form} writes no {ending} files; use --format {' or '.join(others)}")
    if file_name and ending in (*PICTURES, ".html"):
        raise DseError(f"-o {output}: dse export writes no pictures; use `dse report` -o {output}")
