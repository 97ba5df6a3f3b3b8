"""`dse export`: write a design as a launch script, a trace, or a file of another simulator."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from costmodel.errors import DseError
from dse.api.exports import write_artefact
from dse.api.study import Study
from dse.cli.output import PICTURES
from dse.cli.terminal import say
from dse.registry import export_forms


def run(args: argparse.Namespace) -> int:
    """Write a design as a file of another program."""
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
