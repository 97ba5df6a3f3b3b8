"""`dse export`: a design as a file that other programs read."""

from __future__ import annotations

import argparse
import sys

from costmodel.errors import DseError
from dse.cli.terminal import say
from dse.exporting.artefacts import write_artefact
from dse.library.study import Study


def run(args: argparse.Namespace) -> int:
    """Write a design as a file of another program."""
    if args.winner is not None and args.trial is None:
        raise DseError(f"--winner {args.winner}: needs --trial, whose winner it is")
    study = Study.load(args.study, storage=args.storage)
    own = {"winner": args.winner or 0, "workload": args.workload, "anyway": args.anyway}
    file = study.export(args.trial, args.format, **own)
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
