"""`dse sensitivity`: how much a step follows each parameter and each quantity of the hardware."""

from __future__ import annotations

import argparse
from typing import Final

from dse.cli.output import form_of, write_content, write_report
from dse.cli.understand.explain import named_design
from dse.explaining.sensitivity import sensitivity
from dse.records.tables import json_text
from dse.reporting.designs.sensitivity_report import sensitivity_report, table_text, tornado_svg

#: Ending of a file -> what is written there.
ENDINGS: Final = {".txt": "table", ".csv": "csv", ".json": "json", ".svg": "svg"}


def run(args: argparse.Namespace) -> int:
    """Sweep."""
    form = form_of(args.format, args.output, ENDINGS)
    found = sensitivity(named_design(args))
    if form == "table":
        write_report(lambda _: sensitivity_report(found, everything=args.all), args.output)
        return 0
    texts = {
        "json": lambda: json_text(found.to_json()) + "\n",
        "csv": lambda: table_text(found),
        "svg": lambda: tornado_svg(found),
    }
    write_content([texts[form]().encode()], form, args.output)
    return 0
