"""`dse show`: the Pareto front or the trials of a study as a table."""

from __future__ import annotations

import argparse

from costmodel.errors import DseError
from dse.api.study import Study
from dse.cli.output import MOST_ROWS, form_of, write_content, write_report
from dse.cli.terminal import say
from dse.output import encoded, selected, table_pieces
from dse.reporting.studies.designs_report import chosen_frame, chosen_report, designs_report
from dse.reporting.studies.nothing_feasible import nothing_feasible
from dse.searching.trials.trial_table import Selection


def run(args: argparse.Namespace) -> int:
    """Print the front or the trials; 1 where the front is empty."""
    study = Study.load(args.study, storage=args.storage)
    part: Selection = "trials" if args.trials else "front"
    table = selected(study, part, where=args.where, sort=args.sort, descending=args.descending, top=args.top)
    form = form_of(args.format, args.output)
    most = None if args.top or args.output else MOST_ROWS
    if form == "json" and args.columns:
        raise DseError("--columns: JSON holds every column; choose among them with jq, or write csv")
    if form == "table" and args.columns:
        shown = chosen_report(study, table, args.columns, part, most)
        write_report(lambda width: shown, args.output)
    elif form == "table":
        write_report(lambda width: designs_report(study, table, part, width, most=most), args.output)
    elif args.columns:
        chosen = (chosen_frame(study.space, frame, args.columns) for frame in table.frames())
        write_content(table_pieces(chosen, form), form, args.output)
    else:
        write_content(encoded(study, table, part, form), form, args.output)
    if args.trials or study.table.feasible.any():
        return 0
    say(nothing_feasible(study.space, study.table.each_record(), study.profile))
    return 1
