"""`dse sensitivity`: how much a step follows each parameter and each quantity of the hardware."""

from __future__ import annotations

import argparse
from typing import Final

from dse.cli.output import form_of, write_content, write_report
from dse.cli.understand.explain import named_design
from dse.explaining.sensitivity import sensitivity
from dse.records.tables import json_text
from dse.reporting.designs.sensitivity_report import sensitivity_report, table_text

#: Ending of a file -> what is written there.
ENDINGS: Final = {".txt": "table", ".csv": "csv", ".json": "json", ".svg": "svg"}


def run(args: argparse.Namespace) -> int:
    """Print which parameters and quantities a design's step follows."""
    form = form_of(args.format, args.output, ENDINGS)
    found = sensitivity(named_design(args))
    if form == "table":
        write_report(lambda _: sensitivity_report(found, everything=args.all), args.output)
        return 0
    if form == "svg":
        from costmodel.plotting import svg
        from dse.reporting.pictures.tornado import tornado

        text = svg(tornado(found))
    else:
        text = table_text(found) if form == "csv" else json_text(found.to_json()) + "\n"
    write_content([text.encode()], form, args.output)
    return 0
