"""Arguments of the commands that ask for designs: plan, search, resume, enumerate."""

from __future__ import annotations

import argparse
import re
from functools import partial
from pathlib import Path

from costmodel.formats.quantity import plain_number
from dse.cli.options import (
    DEFAULT_BUDGET,
    DEFAULT_SPACE,
    EXPORTED,
    add_changes,
    add_format,
    add_profile,
    add_robust,
    add_space,
    add_storage,
    add_study,
    add_workers,
    bounded,
    describe,
    exported,
    natural,
    positive,
    tokens,
)

#: Letters of large counts.
SCALES = {"": 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}


_AMOUNT = re.compile(
    r"\s*([\d_,]*\.?\d+(?:[eE]\d+)?)\s*([KMBT]?)\s*(tokens|sequences)?\s*", re.IGNORECASE | re.ASCII
)


def plan(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse plan`."""
    describe(
        parser,
        about="Find out how to split a model over so many chips of a system: every legal layout is priced,\n"
        "and the fastest, the smallest and the cheapest are shown, with what binds them. They are kept as\n"
        "a study, which `dse explain` and others take. What is not said is assumed, and named.",
        examples=[
            "dse plan llama3_405b --gpus 16384 --system h100_80g_dgx --tokens 15T",
            "dse plan Qwen3-30B-A3B/config.json --gpus 64 --system h200_141g_dgx --precision bf16,fp8",
            "dse plan llama3_70b --gpus 512 --system h100_80g_dgx --seq-len 131072 --save long.yaml",
            "dse plan llama3_70b --gpus 256 --system h100_80g_dgx --headroom 4GB",
        ],
    )
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="name of a shipped model (`dse models`), a model file, or a Hugging Face config.json",
    )
    parser.add_argument("--gpus", metavar="N", type=positive, required=True, help="chips of the run")
    parser.add_argument(
        "--system", metavar="S", required=True, help="a shipped system (`dse systems`), or a file"
    )
    add_workload(parser)
    parser.add_argument(
        "--objective",
        metavar="NAME",
        action="append",
        default=[],
        help="seek this in place of step_time and peak_memory, such as energy_per_step; repeatable",
    )
    add_output(parser)


def add_workload(parser: argparse.ArgumentParser) -> None:
    """Add arguments that say what is trained."""
    parser.add_argument(
        "--seq-len", metavar="TOKENS", type=positive, help="length of a sequence (the model's)"
    )
    parser.add_argument(
        "--global-batch-size",
        metavar="N",
        type=batch,
        help="sequences of a step, or about so many tokens: 2048, 16M tokens (by the size of the model)",
    )
    parser.add_argument(
        "--tokens", metavar="N", type=tokens, help="of the whole run, such as 15T: days and energy"
    )
    parser.add_argument("--max-days", metavar="DAYS", type=number, help="that the run of --tokens may take")
    parser.add_argument(
        "--precision",
        metavar="FORMAT,...",
        default="",
        help="formats of products to choose from: bf16 (default), fp16, fp8, fp8_blockwise, mxfp8, nvfp4",
    )
    parser.add_argument(
        "--framework",
        metavar="NAME",
        default="",
        help="software whose layouts are proposed (default: megatron_core; maxtext on TPUs)",
    )
    parser.add_argument(
        "--imbalance",
        metavar="RATIO",
        type=number,
        help="tokens of the fullest rank of experts over the mean: 1 where balance is forced (default: "
        "the framework's for what balances the experts)",
    )
    parser.add_argument(
        "--headroom",
        metavar="SIZE",
        help="memory of a chip that stays free, in GB or %%, such as 4GB or 5%%; 0: none (default: what the "
        "error of predicted peaks of the framework takes)",
    )


def add_output(parser: argparse.ArgumentParser) -> None:
    """What comes of it, and where."""
    parser.add_argument(
        "--budget",
        metavar="N",
        type=positive,
        default=DEFAULT_BUDGET,
        help=f"trials where designs are too many to list (default: {DEFAULT_BUDGET})",
    )
    parser.add_argument("--save", metavar="FILE", type=Path, help="also write the space, to change it")
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: plan_MODEL_N)")
    add_format(parser)
    add_workers(parser)
    add_storage(parser)


def amount(text: str) -> tuple[float, str, str]:
    """A count, its letter and its noun: ``16M tokens`` -> (16e6, "M", "tokens")."""
    match = _AMOUNT.fullmatch(text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a count, such as 2048, 16M tokens or 15T")
    value = float(match[1].replace("_", "").replace(",", "")) * SCALES[match[2].upper()]
    if not 0 < value < 1e18:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a count above 0")
    return value, match[2].upper(), (match[3] or "").lower()


def batch(text: str) -> tuple[int | None, float | None]:
    """Sequences of a step, or tokens of one.

    >>> batch("2048"), batch("16M tokens"), batch("4M")
    ((2048, None), (None, 16000000.0), (None, 4000000.0))
    """
    value, letter, noun = amount(text)
    if noun == "tokens" or (letter and noun != "sequences"):
        return None, value
    if not value.is_integer():
        raise argparse.ArgumentTypeError(f"{text!r}: expected whole sequences")
    return int(value), None


def number(text: str) -> float:
    """A number above 0."""
    try:
        value = plain_number(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def search(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse search`."""
    describe(
        parser,
        about="Search a space: run its study, or continue it, until it holds `budget` finished trials\n"
        "in all. Then print the Pareto front, and what binds the fastest design.",
        examples=[
            "dse search --budget 500",
            "dse search llama3_70b_512_h100 --set recompute=none --study no_recompute",
            "dse search my_space.yaml --objective step_time --objective energy_per_step --out results",
            "dse search --format json | jq '.front[0].params'",
            "dse search --profile simai --study simai --out results --emit aicb",
            "dse search --profile dfmodel-gen3 --set vpp=1 --set recompute=none --study dfmodel",
        ],
    )
    add_space(parser, default=DEFAULT_SPACE)
    parser.add_argument("--study", metavar="NAME", help="name of the study (default: that of the space)")
    parser.add_argument(
        "--sampler",
        metavar="NAME",
        help="what proposes designs: screening (default), nsga2, nsga3, tpe, gp or random; settled when a "
        "study starts",
    )
    parser.add_argument(
        "--seed",
        metavar="N",
        type=natural,
        help="source of randomness: the same seed gives the same trials (default: 0)",
    )
    add_steering(parser)
    add_profile(parser, ", settled when a study starts")
    add_run(parser, str(DEFAULT_BUDGET))
    parser.set_defaults(budget=DEFAULT_BUDGET)


def resume(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse resume`."""
    describe(
        parser,
        about="Continue a study until it holds `budget` finished trials in all. The database is all it\n"
        "needs: the space, its model and its system are stored in the study.",
        examples=["dse resume gpt3_175b_1024_a100", "dse resume gpt3_175b_1024_a100 --budget 2000"],
    )
    add_study(parser)
    add_run(parser, "that of the last run")


def add_steering(parser: argparse.ArgumentParser) -> None:
    """Where a search starts, and what it seeks."""
    parser.add_argument(
        "--start",
        metavar="NAME=VALUE,...",
        action="append",
        default=[],
        help="evaluate this design first, the rest of it as simple as is legal; or expert, the design that "
        "rules of thumb give; repeatable",
    )
    parser.add_argument(
        "--warm-start",
        metavar="STUDY",
        help="evaluate the best designs of another study first, or the nearest to them that are legal here",
    )
    add_robust(parser)
    parser.add_argument(
        "--focus",
        metavar="CONDITION",
        help="seek designs of this kind alone from now on, such as 'step_time < 15 s'; '' seeks all again",
    )


def add_run(parser: argparse.ArgumentParser, default_budget: str) -> None:
    """What both commands take."""
    parser.add_argument(
        "--budget",
        metavar="N",
        type=positive,
        help=f"finished trials in all, earlier runs included (default: {default_budget})",
    )
    add_workers(parser)
    add_storage(parser)
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        help="also write trials, front and hypervolume history there, as CSV and Parquet",
    )
    parser.add_argument(
        "--emit",
        metavar="FORMAT",
        type=exported,
        choices=EXPORTED,
        help="also write each design of the front for other programs, under DIR/FORMAT: "
        f"{', '.join(EXPORTED)}",
    )
    parser.add_argument(
        "--emit-all", action="store_true", help="--emit every finished trial, not the front alone"
    )
    add_format(parser)


def enumerate(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse enumerate`."""
    describe(
        parser,
        about="Evaluate every legal design of a space, or rule it out by bounds; print the exact Pareto\n"
        "front, and say how far a study is from it.",
        examples=[
            "dse enumerate gpt3_175b_1024_a100",
            "dse enumerate gpt_1t_codesign --jobs 2 -o front.parquet",
            "dse enumerate --certify gpt3_175b_1024_a100      the space is the study's own",
            "dse enumerate --bound my_codesign --evaluations 1e5",
        ],
    )
    parser.add_argument(
        "space",
        metavar="SPACE",
        nargs="?",
        help="name of a shipped space (`dse spaces`), or a YAML file (default: that of --certify)",
    )
    add_changes(parser)
    add_comparisons(parser)
    parser.add_argument(
        "--method",
        choices=("auto", "list", "bounds"),
        default="auto",
        help="list: evaluate every design; bounds: rule most of them out, where the machine is open; auto "
        "(default): bounds for large spaces where there are any. The front is the same",
    )
    add_profile(parser, ", that of the study with --certify")
    add_workers(parser)
    add_storage(parser)
    parser.add_argument(
        "--format",
        choices=("table", "json", "csv", "parquet"),
        help="a report to read, one JSON object, or the front as a table (default: what the ending of FILE "
        "says, else table)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there, not to stdout")


def add_comparisons(parser: argparse.ArgumentParser) -> None:
    """Studies to say something of."""
    parser.add_argument("--certify", metavar="STUDY", help="say how far this study is from the exact front")
    parser.add_argument(
        "--reference",
        metavar="STUDY",
        help="say how far this study is from what a long search of its space finds, where that is too large "
        "for an exact front",
    )
    parser.add_argument(
        "--bound",
        metavar="STUDY",
        help="say what no legal design can beat, by bounds that are stopped halfway, and how far this study "
        "is from that at most",
    )
    parser.add_argument(
        "--evaluations",
        metavar="N",
        type=partial(bounded, 1, 1e18, "a number above 0"),
        help="designs that --bound evaluates: the more, the closer (default: 1e6)",
    )
