"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from costmodel.formats.quantity import count_value, plain_number
from costmodel.profiles.registry import design_profiles

#: Forms of a file that a design becomes: those of `dse.exporting.artefacts.FORMS`.
EXPORTED = (
    *("aicb", "astra-sim", "chakra", "dfmodel", "dfmodel-binary", "trace"),
    *("megatron", "nemo", "torchtitan", "maxtext"),
)


def exported(form: str) -> str:
    """Name of a form of files, which earlier versions may have called otherwise."""
    return "torchtitan" if form == "torchtitan-python" else form


#: What `dse search` searches when no space is named.
DEFAULT_SPACE = "gpt3_175b_1024_a100"

#: Trials of a search when nothing else is said.
DEFAULT_BUDGET = 500


def describe(parser: argparse.ArgumentParser, *, about: str, examples: Sequence[str]) -> None:
    """Give the help of a command what it does, and examples."""
    parser.description = about
    parser.epilog = "\n".join(["examples:", *(f"  {example}" for example in examples)])


def add_study(parser: argparse.ArgumentParser) -> None:
    """The name of a study, of commands that read one."""
    parser.add_argument("study", metavar="STUDY", help="name of a study (`dse studies` lists them)")


def add_trial(parser: argparse.ArgumentParser) -> None:
    """``--trial``: one design of a study."""
    parser.add_argument(
        "--trial", metavar="N", type=natural, help="which trial (default: the best of the first objective)"
    )


def add_storage(parser: argparse.ArgumentParser) -> None:
    """``--storage URL``."""
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="database of the studies: sqlite:///FILE or postgresql://USER@HOST/NAME "
        "($DSE_STORAGE, else sqlite:///dse.db)",
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=partial(bounded, 0, 1e9, "a number of seconds, such as 60"),
        help="how long to wait for another program that has locked the database (default: 60)",
    )


def add_space(parser: argparse.ArgumentParser, *, default: str | None = None, optional: bool = False) -> None:
    """``SPACE`` with ``--set`` and ``--objective``."""
    usual = f" (default: {default})" if default else ""
    parser.add_argument(
        "space",
        metavar="SPACE",
        nargs="?" if default or optional else None,
        default=default,
        help=f"name of a shipped space (`dse spaces`), or a YAML file{usual}",
    )
    add_changes(parser)


def add_changes(parser: argparse.ArgumentParser) -> None:
    """``--set``, ``--objective`` and ``--tokens``: what to change in a space."""
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=pin,
        help="pin a parameter, or change what the space holds fixed; repeatable",
    )
    parser.add_argument(
        "--layout",
        metavar="NAME",
        help="pin the parameters that a layout of the space names, those of --set aside",
    )
    parser.add_argument(
        "--objective",
        metavar="NAME",
        action="append",
        default=[],
        help="replace the objectives by this column of the breakdown, such as step_time or "
        "maximize:tokens_per_second; repeatable",
    )
    parser.add_argument(
        "--tokens",
        metavar="N",
        type=tokens,
        help="judge whole training runs of so many tokens, such as 15T: adds run_time, run_cost, goodput",
    )


def add_robust(parser: argparse.ArgumentParser) -> None:
    """``--robust``."""
    parser.add_argument(
        "--robust",
        action="store_true",
        help="rank by the 95th percentile of the step time, the upper end of its 90 %% interval, wherever "
        "objectives and limits read a time, a rate or mfu",
    )


def add_profile(parser: argparse.ArgumentParser, note: str = "") -> None:
    """``--profile NAME``."""
    parser.add_argument(
        "--profile",
        choices=design_profiles(),
        help=f"rules of the cost model{note}: native (default); simai: arithmetic of native, the rest by "
        "SimAI's closed forms; or a generation of DFModel's",
    )


def add_format(parser: argparse.ArgumentParser) -> None:
    """``--format table|json``."""
    text = "a report to read, or one JSON object (default: table)"
    parser.add_argument("--format", choices=["table", "json"], default="table", help=text)


def add_jobs(parser: argparse.ArgumentParser) -> None:
    """``--jobs N``."""
    parser.add_argument(
        "--jobs", metavar="N", type=positive, default=1, help="processes that price designs (default: 1)"
    )


def add_workers(parser: argparse.ArgumentParser) -> None:
    """``--jobs``, ``--backend`` and ``--scheduler``: who evaluates."""
    add_jobs(parser)
    parser.add_argument(
        "--backend",
        choices=("processes", "dask"),
        default="processes",
        help="who evaluates: --jobs processes of this machine (default), or the workers of a Dask cluster",
    )
    parser.add_argument("--scheduler", metavar="URL", help="of the Dask cluster, such as tcp://10.0.0.1:8786")


def bounded(low: float, high: float, expected: str, text: str) -> float:
    """A number from `low` to `high`."""
    try:
        value = plain_number(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
    return value


def positive(text: str) -> int:
    """A whole number of at least 1."""
    return whole(text, 1)


def natural(text: str) -> int:
    """A whole number of at least 0."""
    return whole(text, 0)


def port(text: str) -> int:
    """A port of this machine; 0 is any free one."""
    if (number := natural(text)) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a port from 0 to 65535")
    return number


def whole(text: str, lowest: int) -> int:
    """A whole number of at least `lowest`."""
    try:
        number = int(text) if text.isascii() else lowest - 1
    except ValueError:
        number = lowest - 1
    if number < lowest:
        raise argparse.ArgumentTypeError(f"{text!r}: expected a whole number of at least {lowest}")
    return number


def tokens(text: str) -> float:
    """A count such as ``15T``."""
    try:
        return count_value(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def pin(text: str) -> tuple[str, str]:
    """``tp=8`` -> ``("tp", "8")``."""
    name, equals, value = (part.strip() for part in text.partition("="))
    if not (name and equals and value):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE, such as tp=8")
    return name, value
