"""`dse spaces`, `dse models`, `dse systems` and `dse frameworks`: what ships."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from dse.records.tables import json_text
from dse.records.text import show
from dse.reporting import catalogue
from dse.reporting.study_report import listing


def run(args: argparse.Namespace) -> int:
    """List the files of a kind, or print one."""
    if args.name:
        sys.stdout.write(catalogue.text_of(args.name, args.kind))
        return 0
    rows: list[dict[str, Any]] = catalogue.LISTS[args.kind]()
    if args.format == "json":
        print(json_text({args.kind: rows}))
        return 0
    show(sys.stdout, lambda width: listing(rows, width))
    return 0
