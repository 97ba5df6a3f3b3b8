"""`dse report`: a study as one page, or its front as a picture."""

from __future__ import annotations

import argparse
from pathlib import Path

from dse.cli.output import checked_ending
from dse.library.study import Study
from dse.records.tables import write_file
from dse.reporting.pages.study_page import study_page, study_picture
from dse.storage.atomic_files import file_name


def run(args: argparse.Namespace) -> int:
    """Read, draw, write."""
    checked_ending(args.out, (".html", ".svg"))
    study = Study.load(args.study, storage=args.storage)
    out = args.out or Path(f"{file_name(study.name)}.html")
    made = study_picture(study) if out.suffix == ".svg" else study_page(study)
    write_file(out, made.encode())
    print(out)
    return 0
