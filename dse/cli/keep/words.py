"""Arguments of check, validate, calibrate, the catalogues and delete."""

from __future__ import annotations

import argparse
from pathlib import Path

from dse.cli.options import add_format, add_storage, add_study, add_workers, describe


def check(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse check`."""
    describe(
        parser,
        about="Evaluate 100 trials of a study again, from its first to its last, or all of them, and say\n"
        "which stored figures are not, to the last bit, what the cost model gives: after an update of\n"
        "dse, or where somebody may have changed the database. Nothing is written. Exit code 1 if any\n"
        "figure differs.",
        examples=["dse check gpt3_175b_1024_a100", "dse check gpt3_175b_1024_a100 --all --format json"],
    )
    add_study(parser)
    parser.add_argument("--all", action="store_true", help="evaluate every trial")
    add_format(parser)
    add_workers(parser)
    add_storage(parser)


def validate(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse validate`."""
    describe(
        parser,
        about="Price measured runs, layers, memory and kernels, and say how far off the predictions are:\n"
        "errors of each data set, the order of layouts, and which rows cannot be priced and why.\n"
        "Without a file, the published figures that ship. docs/validation.md lists the columns.",
        examples=[
            "dse validate",
            "dse validate measured.csv -o report.html",
            "dse validate mine.csv --system my_cluster.yaml --format json | jq .datasets",
        ],
    )
    parser.add_argument(
        "file",
        metavar="MEASUREMENTS.csv",
        nargs="?",
        type=Path,
        help="a row for each run, layer or kernel (default: the figures that ship, each with its source)",
    )
    parser.add_argument(
        "--system",
        metavar="SYSTEM",
        help="price all rows on this machine: name of a shipped one (`dse systems`), or a YAML file "
        "(default: the one that a row's column hw names)",
    )
    parser.add_argument(
        "--format",
        choices=["text", "json"],
        default="text",
        help="tables to read, or one JSON object with every row (default: text)",
    )
    parser.add_argument(
        "-o",
        dest="out",
        metavar="FILE",
        type=Path,
        help="write a page too, such as report.html: pictures, tables, every row",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with 1 if a row is not expressed (default: 0)"
    )


def calibrate(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse calibrate`."""
    describe(
        parser,
        about="Fit a few physical constants of a system to products, collectives and steps of one machine:\n"
        "as many as predict rows that are held out better, and none that the rows cannot tell apart.\n"
        "Writes a system file in which each says its standard error and the rows that it rests on.\n"
        "docs/validation.md lists the columns; benchmarks/measure_gpu.py fills them.",
        examples=[
            "dse calibrate mine.csv --system h100_80g_dgx -o my_system.yaml",
            "dse calibrate mine.csv --system a100_80g_dgx --framework nanotron -o my_system.yaml",
            "dse calibrate mine.csv --system my_system.yaml --format json | jq .constants",
        ],
    )
    parser.add_argument(
        "file", metavar="MEASUREMENTS.csv", type=Path, help="a row for each product, collective or step"
    )
    parser.add_argument(
        "--system",
        metavar="SYSTEM",
        required=True,
        help="what the machine is like: name of a shipped one (`dse systems`), or a YAML file",
    )
    parser.add_argument(
        "--framework",
        metavar="NAME",
        help="software of steps whose rows name none (`dse frameworks`); also where its constants begin",
    )
    parser.add_argument(
        "--format",
        choices=["text", "json"],
        default="text",
        help="tables, or one JSON object (default: text)",
    )
    parser.add_argument(
        "-o", dest="out", metavar="FILE", type=Path, help="system file to write, such as my_system.yaml"
    )


#: Command -> what it lists, and something that ships.
KINDS = {
    "spaces": ("search spaces", "gpt3_175b_1024_a100"),
    "models": ("models", "gpt3_175b"),
    "systems": ("systems", "a100_80g_dgx"),
    "frameworks": ("training frameworks", "megatron_core"),
}


def catalogue(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse spaces`, `dse models`, `dse systems` and `dse frameworks`."""
    kind = parser.prog.split()[-1]
    what, example = KINDS[kind]
    one = kind.removesuffix("s")
    describe(
        parser,
        about=f"List the {what} that ship with the package, or print the file of one.",
        examples=[f"dse {kind}", f"dse {kind} {example} > my_{one}.yaml      to change it"],
    )
    parser.add_argument("name", metavar="NAME", nargs="?", help=f"print this {one} as YAML")
    add_format(parser)
    parser.set_defaults(kind=kind)


def delete(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse delete`."""
    describe(
        parser,
        about="Delete a study and all of its trials from the database. Asks first on a terminal;\n"
        "there is no way back. Files that were written of it stay.",
        examples=["dse delete gpt3_175b_1024_a100", "dse delete no_recompute --yes"],
    )
    add_study(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask")
    add_storage(parser)
