"""Arguments of the commands that say why: explain, compare, report, tables of studies."""

from __future__ import annotations

import argparse
from pathlib import Path

from costmodel.profiles.registry import design_profiles
from dse.cli.options import (
    add_changes,
    add_format,
    add_profile,
    add_robust,
    add_storage,
    add_study,
    add_trial,
    describe,
    port,
)

FORMATS = ("table", "csv", "json", "parquet")


def studies(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse studies`."""
    describe(
        parser,
        about="List the studies of a database: their trials, and their best feasible values.",
        examples=["dse studies", "dse studies --storage postgresql://me@host/dse --format json"],
    )
    add_format(parser)
    add_storage(parser)


def pareto(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse pareto`."""
    add_table(parser, "pareto", "Print the Pareto front of a study: the designs that no other beats.")


def trials(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse trials`."""
    text = "Print every finished trial of a study: in their order, infeasible ones marked."
    add_table(parser, "trials", text)


def add_table(parser: argparse.ArgumentParser, name: str, about: str) -> None:
    """Arguments of a command that prints designs of a study."""
    describe(
        parser,
        about=f"{about} All formats but the table\nhold everything that pricing says about a design.",
        examples=[f"dse {name} gpt3_175b_1024_a100", f"dse {name} gpt3_175b_1024_a100 -o {name}.csv"],
    )
    add_study(parser)
    if name == "pareto":
        add_robust(parser)
    parser.add_argument("--format", choices=FORMATS, help="default: what the ending of FILE says, else table")
    add_columns(parser)
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there, not to stdout")
    add_storage(parser)


def add_columns(parser: argparse.ArgumentParser) -> None:
    """``--columns NAME,...``."""
    parser.add_argument(
        "--columns",
        metavar="NAME,...",
        type=name_list,
        help="only these, in this order, such as tp,clock,mfu (`dse columns SPACE` lists them)",
    )


def name_list(text: str) -> list[str]:
    """Names between commas."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r}: expected names between commas, such as tp,mfu")
    return names


def report(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse report`."""
    describe(
        parser,
        about="Write a study as one page that needs no network: the front by every pair of objectives, its\n"
        "notable designs and what binds them, a step of each, parameters, how the search went, what is\n"
        "infeasible and why, and the space. A FILE that ends in .svg becomes a picture of the front.",
        examples=["dse report gpt3_175b_1024_a100", "dse report gpt3_175b_1024_a100 -o front.svg"],
    )
    add_study(parser)
    parser.add_argument(
        "-o",
        dest="out",
        metavar="FILE",
        type=Path,
        help="where to write it: a page, or a picture if it ends in .svg (default: STUDY.html)",
    )
    add_storage(parser)


def dashboard(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse dashboard`."""
    describe(
        parser,
        about="Serve optuna-dashboard to a browser of this machine, until Ctrl-C: studies as they grow,\n"
        "their feasible front alone, and every number of a breakdown as a column that can be sorted.\n"
        "Needs it: pip install 'dse-training[dashboard]'.",
        examples=["dse dashboard", "dse dashboard --port 8000 --storage postgresql://me@host/dse"],
    )
    parser.add_argument("--port", metavar="N", type=port, default=8080, help="default: 8080; 0: any free one")
    add_storage(parser)


def explain(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse explain`."""
    describe(
        parser,
        about="Say where the time and the memory of one design go, kernel by kernel: parts that add up to\n"
        "the step and to the peak. Then what binds it, which changes make room, and what one step of each\n"
        "parameter would change. Beside another design: why this one, and why not the other.\n"
        "The design is one of a study, or with --set one of a space.",
        examples=[
            "dse explain gpt3_175b_1024_a100",
            "dse explain gpt3_175b_1024_a100 --trial 12 --against 40",
            'dse explain gpt3_175b_1024_a100 --against "tp=8 pp=16"',
            "dse explain llama3_70b_512_h100 --set tp=4 --set pp=4 --format json | jq .time",
        ],
    )
    parser.add_argument("study", metavar="STUDY", help="name of a study; with --set or --layout, a space")
    add_trial(parser)
    parser.add_argument(
        "--against",
        metavar="DESIGN",
        help='another design to compare with: a trial\'s number, or what it changes, such as "tp=8 pp=16"',
    )
    parser.add_argument("--all", action="store_true", help="every kernel, exchange and neighbour")
    add_format(parser)
    add_changes(parser)
    add_profile(parser, " (of a study: the study's own)")
    add_storage(parser)


def sensitivity(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse sensitivity`."""
    describe(
        parser,
        about="Take each parameter of a design one step up and down, and each quantity of its machine a\n"
        "hundredth up and down, and say what that does to the step time: a tornado of bars. An elasticity\n"
        "is the percentage of step time that one per cent more of a quantity adds.",
        examples=[
            "dse sensitivity gpt3_175b_1024_a100 --trial 12",
            "dse sensitivity gpt3_175b_1024_a100 -o tornado.svg",
            "dse sensitivity llama3_70b_512_h100 --set tp=4 --format json | jq .elasticities",
        ],
    )
    parser.add_argument("study", metavar="STUDY", help="name of a study; with --set or --layout, a space")
    add_trial(parser)
    parser.add_argument("--all", action="store_true", help="every parameter and quantity")
    parser.add_argument(
        "--format", choices=["table", "json", "csv"], help="default: what the ending of FILE says, else table"
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        type=Path,
        help="write there, not to stdout: a picture if FILE ends in .svg",
    )
    add_changes(parser)
    add_profile(parser, " (of a study: the study's own)")
    add_storage(parser)


def importance(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse importance`."""
    describe(
        parser,
        about="Say which parameters tell the best trials of a study from the others, and which explain the\n"
        "objectives over the whole space, whatever the sampler has looked at.",
        examples=[
            "dse importance gpt3_175b_1024_a100",
            "dse importance gpt3_175b_1024_a100 --format json | jq .objectives.step_time_s",
        ],
    )
    add_study(parser)
    add_format(parser)
    add_storage(parser)


def columns(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse columns`."""
    describe(
        parser,
        about="List every name that formulas of a space, --set, --objective and --columns may use, by\n"
        "group, with its unit, what it is, and what it means.",
        examples=["dse columns gpt3_175b_1024_a100", "dse columns gpt_1t_codesign memory",
                  "dse columns my_space.yaml --format csv -o columns.csv"],
    )  # fmt: skip
    parser.add_argument(
        "space", metavar="SPACE", help="name of a shipped space (`dse spaces`), or a YAML file"
    )
    parser.add_argument(
        "word", metavar="WORD", nargs="?", default="", help="only those that have it in name or meaning"
    )
    parser.add_argument(
        "--format", choices=["table", "json", "csv"], help="default: what the ending of FILE says, else table"
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there, not to stdout")


def compare(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse compare`."""
    describe(
        parser,
        about="Two studies: their fronts, who dominates whom, their best designs and what differs in them.\n"
        "Two systems: the quantities that differ.\n"
        "One study: price its feasible designs by another profile, or on another machine, as well, and\n"
        "compare how both rank them by the study's first objective.",
        examples=[
            "dse compare gpt3_175b_1024_a100 gpt3_without_sp",
            "dse compare gpt3_175b_1024_a100 --system h100_80g_dgx",
            "dse compare a100_80g_dgx h100_80g_dgx      also files: ./mychip.yaml",
            "dse compare gpt3_175b_1024_a100 --profile simai --format json | jq .rank_correlation",
        ],
    )
    parser.add_argument(
        "study", metavar="STUDY", help="name of a study (`dse studies`), a system, or its file"
    )
    parser.add_argument("other", metavar="OTHER", nargs="?", help="another one to compare with")
    parser.add_argument(
        "--profile",
        choices=design_profiles(),
        help="the other cost model (default: native, or simai where that is the study's)",
    )
    parser.add_argument(
        "--system", metavar="NAME", help="the other machine: one that ships (`dse systems`), or a YAML file"
    )
    add_format(parser)
    add_storage(parser)
