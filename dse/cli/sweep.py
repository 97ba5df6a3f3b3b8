"""`dse evaluate --sweep` and `--designs`: many named designs, priced together."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from dse.cli.launch_options import asked_space
from dse.cli.options import add_workers
from dse.cli.output import ENDINGS, TABLE_ENDINGS, form_of, write_content, write_report, write_result

if TYPE_CHECKING:
    from dse.search.sweep import NamedDesigns
    from dse.spaces.space import Space

#: Ending of a file -> what is written there.
FORMS: Final = {**TABLE_ENDINGS, ".svg": "svg"}

EXAMPLES: Final = (
    "dse evaluate gpt3_175b_1024_a100 --set tp=8 --sweep pp=8,16,32 --sweep micro_batch_size=1,2,4",
    "dse evaluate gpt_1t_codesign --sweep 'node_bandwidth=200:800:x2 GB/s' --sweep tp -o sweep.svg",
    "dse evaluate gpt_1t_codesign --designs designs.csv -o priced.parquet --jobs 4",
)


def add_sweeps(parser: argparse.ArgumentParser) -> None:
    """``--sweep``, ``--designs``, ``-o`` and who prices."""
    parser.add_argument(
        "--sweep",
        metavar="NAME=VALUES",
        action="append",
        default=[],
        type=sweep,
        help="price the design at each of some values: 1,2,4 or 64:512:64 or 64:1024:x2, with units where "
        "there are any; NAME alone takes all options; repeatable: every combination",
    )
    parser.add_argument(
        "--designs",
        metavar="FILE",
        type=Path,
        help="price the designs of a CSV or Parquet file, one a row, in columns named as parameters",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write there, not to stdout; FILE.svg is a picture of a sweep",
    )
    add_workers(parser)


def sweep(text: str) -> tuple[str, str]:
    """``tp=1,2`` -> ``("tp", "1,2")``; ``tp`` -> ``("tp", "")``: all options."""
    name, equals, values = (part.strip() for part in text.partition("="))
    if not name or bool(equals) != bool(values):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUES, such as tp=1,2,4")
    return name, values


def run_sweep(args: argparse.Namespace) -> int:
    """Price all designs that were named; 1 when none is legal."""
    from dse.pricing.profiles import NATIVE
    from dse.pricing.workers import Workers
    from dse.report.text import counted
    from dse.search.sweep import combinations, priced

    form = form_of(args.format, args.output, FORMS)
    space = asked_space(args)
    refuse_together(args, form)
    if args.designs:
        from dse.search.design_file import read_designs

        table, rows = read_designs(space, args.designs, note)
    else:
        table = dict(combinations(swept(space, args.sweep)))
        rows = len(next(iter(table.values()), [None]))
    workers = Workers(args.jobs, args.backend, args.scheduler)
    found = priced(space, table, rows, profile=args.profile or NATIVE, jobs=workers)
    write_result(lambda where: write(found, form, where), args.output, ENDINGS[form])
    if found.legal:
        return 0
    note(f"nothing priced: none of {counted(len(found), 'design')} is legal")
    return 1


def refuse_together(args: argparse.Namespace, form: str) -> None:
    """Refuse options that do not go together; a `DseError`."""
    from costmodel.errors import DseError

    if args.designs and args.sweep:
        raise DseError("--designs and --sweep: name designs by a file or by values, not both")
    if args.designs and form == "svg":
        raise DseError("-o FILE.svg: is a picture of a --sweep; --designs have no order to draw them in")
    names = [name for name, _ in args.sweep]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise DseError(f"--sweep: {twice}: given twice")
    if both := next((name for name in names if name in dict(args.set)), None):
        raise DseError(f"{both}: --set holds it fixed, so there is nothing to --sweep")


def swept(space: Space, sweeps: Iterable[tuple[str, str]]) -> dict[str, list[Any]]:
    """Values of each name that is swept.

    Raises
    ------
    DseError
        If a name or a value is none.
    """
    from costmodel.errors import DseError
    from dse.spaces.sweeps import swept_values

    values: dict[str, list[Any]] = {}
    for name, text in sweeps:
        space.check_settable(name)
        if text:
            values[name] = swept_values(name, text, space.unit_of(name))
            continue
        parameter = space.by_name.get(name)
        options = parameter.options if parameter else None
        if parameter is None or options is None:
            raise DseError(f"--sweep {name}: has no list of options here; give values, such as {name}=1,2,4")
        values[name] = [parameter.value(code) for code in options.tolist()]
    return values


def write(found: NamedDesigns, form: str, output: Path | None) -> None:
    """The designs in one of the forms."""
    if form == "table":
        from dse.report.sweep_report import sweep_report

        write_report(lambda width: sweep_report(found, width), output)
    elif form == "svg":
        from dse.report.sweep_plot import sweep_plot

        write_content([sweep_plot(found).encode()], form, output)
    elif form == "json":
        write_content(json_pieces(found), form, output)
    else:
        from dse.export.tables import csv_pieces, parquet_pieces

        pieces = csv_pieces if form == "csv" else parquet_pieces
        write_content(pieces([found.to_frame()]), form, output)


def json_pieces(found: NamedDesigns) -> Iterator[bytes]:
    """One JSON object, a design to a line."""
    from dse.export.tables import EVALUATION_KEYS, json_text, only_finite

    head = {
        "space": found.space.name,
        "directions": {objective.key: objective.direction for objective in found.space.objectives},
        "named": list(found.names),
        "n_legal": found.legal,
        "n_feasible": found.feasible,
    }
    yield json_text({**head, "designs": []}).removesuffix("]\n}").encode()
    separator = ""
    for record in found.records:
        own = {key: record[key] for key in ("reason", *EVALUATION_KEYS) if key in record}
        yield f"{separator}\n    {json.dumps(only_finite(own), allow_nan=False)}".encode()
        separator = ","
    yield b"\n  ]\n}\n"


def note(text: str) -> None:
    """Say what the user should know beside the results."""
    print(f"dse: {text}", file=sys.stderr)
