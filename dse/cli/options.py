"""Arguments that several commands share: their help, the types of their values, and the space that they name.

`add_...` functions add arguments to a parser. `changed_space` and `launched_space` turn them into a space, and import
what they need then, so that a command's help starts at once.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from costmodel.errors import DseError
from costmodel.formats.quantity import count_value, plain_number, quantity
from dse.cli.terminal import say
from dse.registry import design_profiles

if TYPE_CHECKING:
    from dse.spaces.space import Params, Space

#: What `dse search` searches when no space is named.
DEFAULT_SPACE = "gpt3_175b_codesign"

#: Trials of a search when nothing else is said.
DEFAULT_BUDGET = 500


def describe(parser: argparse.ArgumentParser, *, about: str, examples: Sequence[str]) -> None:
    """Set the description and the examples of a command's help."""
    parser.description = about
    parser.epilog = "\n".join(["examples:", *(f"  {example}" for example in examples)])


def add_study(parser: argparse._ActionsContainer) -> None:
    """``STUDY``: the name of a study."""
    parser.add_argument("study", metavar="STUDY", help="name of a study; `dse studies` lists them")


def add_trial(parser: argparse._ActionsContainer) -> None:
    """``--trial``: one design of a study."""
    parser.add_argument(
        "--trial",
        metavar="N",
        type=natural,
        help="number of the trial (default: the best trial of the first objective)",
    )


def add_storage(parser: argparse._ActionsContainer) -> None:
    """``--storage URL``."""
    parser.add_argument(
        "--storage",
        metavar="URL",
        help="database of the studies: sqlite:///FILE or postgresql://USER@HOST/NAME "
        "(default: $DSE_STORAGE, else sqlite:///dse.db)",
    )
    parser.add_argument(
        "--wait",
        metavar="SECONDS",
        type=partial(bounded, 0, 1e9, "a number of seconds, such as 60"),
        help="time to wait for a database that another program has locked (default: 60)",
    )


def add_space(parser: argparse._ActionsContainer, *, default: str | None = None) -> None:
    """``SPACE``, with the options of `add_changes`."""
    usual = f" (default: {default})" if default else ""
    parser.add_argument(
        "space",
        metavar="SPACE",
        nargs="?" if default else None,
        default=default,
        help=f"built-in space (`dse list spaces`) or YAML file{usual}",
    )
    add_changes(parser)


def add_changes(parser: argparse._ActionsContainer) -> None:
    """``--set``, ``--layout``, ``--objective`` and ``--tokens``: changes of a space."""
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        type=pin,
        help="set a parameter or a fixed value of the space, such as tp=8; repeatable",
    )
    parser.add_argument(
        "--layout", metavar="NAME", help="start from a named layout of the space; --set overrides its values"
    )
    parser.add_argument(
        "--objective",
        metavar="NAME",
        action="append",
        default=[],
        help="optimize this column instead of the objectives of the space, such as step_time or "
        "maximize:tokens_per_second; repeatable",
    )
    parser.add_argument(
        "--tokens",
        metavar="N",
        type=tokens,
        help="training tokens, such as 15T; adds days, GPU-hours and cost of the whole run",
    )


def add_profile(parser: argparse._ActionsContainer, note: str = "") -> None:
    """``--profile NAME``."""
    parser.add_argument(
        "--profile",
        choices=design_profiles(),
        help=f"cost model{note}: native (default); simai: SimAI's communication and overlap formulas; or a "
        "generation of DFModel",
    )


def add_format(parser: argparse._ActionsContainer) -> None:
    """``--format table|json``."""
    text = "table (default) or one JSON object"
    parser.add_argument("--format", choices=["table", "json"], default="table", help=text)


def add_workers(parser: argparse._ActionsContainer) -> None:
    """``--jobs``, ``--backend`` and ``--scheduler``: where designs are evaluated."""
    text = "number of processes that evaluate designs (default: 1)"
    parser.add_argument("--jobs", metavar="N", type=positive, default=1, help=text)
    parser.add_argument(
        "--backend",
        choices=("processes", "dask"),
        default="processes",
        help="where to evaluate: local processes (default) or a Dask cluster",
    )
    parser.add_argument("--scheduler", metavar="URL", help="Dask scheduler, such as tcp://10.0.0.1:8786")


def bounded(low: float, high: float, expected: str, text: str) -> float:
    """A number from `low` to `high`."""
    try:
        value = plain_number(text)
    except ValueError:
        value = float("nan")
    if not low <= value <= high:
        raise argparse.ArgumentTypeError(f"{text!r}: expected {expected}")
    return value


def share(text: str) -> float:
    """A share from 0 to 1."""
    return bounded(0, 1, "a share from 0 to 1", text)


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
        number = int(text) if text.isascii() and "_" not in text else lowest - 1
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
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUE, such as tp=8; quote < and >")
    return name, value


def number(text: str) -> float:
    """A number above 0."""
    try:
        value = plain_number(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: expected a number above 0")
    return value


def name_list(text: str) -> list[str]:
    """Names between commas."""
    names = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r}: expected names between commas, such as tp,mfu")
    return names


def add_output(parser: argparse._ActionsContainer, note: str = "") -> None:
    """``-o FILE``."""
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help=f"write to FILE instead of stdout{note}")


def physical(unit: str, example: str) -> Callable[[str], float]:
    """A type of arguments: a quantity above 0 of a unit, such as ``80GB``; seconds may go without."""

    def parsed(text: str) -> float:
        bare = unit == "s" and text.replace(".", "", 1).isdigit()
        try:
            waited = quantity(f"{text} s" if bare else text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None
        if waited.dimension != quantity(f"1 {unit}").dimension or waited.value <= 0:
            raise argparse.ArgumentTypeError(f"{text!r}: expected a quantity such as {example}")
        return waited.value

    return parsed


def add_launch(parser: argparse._ActionsContainer, system: str) -> None:
    """Add the options of launch files."""
    parser.add_argument("--system", metavar="NAME", help=system)
    parser.add_argument("--gpus", metavar="N", type=positive, help="number of GPUs (default: that of the file)")
    parser.add_argument(
        "--framework", metavar="NAME", default="", help="framework of a launch file (default: that of the file)"
    )


def changed_space(args: argparse.Namespace) -> Space:
    """The space that `add_space` arguments describe.

    Raises `DseError` if it does not load, or cannot be changed so.
    """
    from dse.api.designs import chosen_space

    return chosen_space(args.design if "design" in args else args.space, **changes_of(args))


def launched_space(args: argparse.Namespace, form: str = "") -> Space:
    """The space of the one design that a launch file runs; settings that are not read go to stderr."""
    from dse.api.designs import chosen_space
    from dse.api.launch_files import launch_design

    require_system(args.system, args.design)
    space = launch_design(args.design, form=form, system=args.system, gpus=args.gpus,
                          framework=args.framework, set=dict(args.set), note=say)  # fmt: skip
    return chosen_space(space, objective=args.objective, tokens=args.tokens)


def require_system(system: str | None, file: object) -> None:
    """Refuse a launch file without a system; a `DseError`."""
    if not system:
        raise DseError(f"{file}: add --system, such as --system h100 (`dse list systems` shows all)")


def changes_of(args: argparse.Namespace) -> dict[str, Any]:
    """Changes of a space by `add_changes` arguments, as keyword arguments of functions of `dse.api`."""
    if twice := next((n for n, _ in args.set if sum(n == m for m, _ in args.set) > 1), None):
        raise DseError(f"--set: {twice}: given twice")
    return {
        "set": dict(args.set), "layout": args.layout, "objective": args.objective, "tokens": args.tokens
    }  # fmt: skip


def set_words(args: argparse.Namespace) -> str:
    """The options of a launch file and the ``--set`` options of a command, as they are typed again."""
    given = {name: vars(args).get(name) for name in ("system", "gpus", "framework")}
    words = [f"--{name} {quote(str(value))}" for name, value in given.items() if value]
    words += [f"--set {quote(f'{name}={value}')}" for name, value in args.set]
    return "".join(f" {word}" for word in words)


def say_what_was_open(space: Space, params: Params) -> None:
    """Name the parameters that the user did not, with what they were taken to be."""
    from dse.output import design_text

    taken = {p.name: params[p.name] for p in space.parameters if len(p.choices or "open") > 1}
    if taken:
        say(f"unset parameters get: {design_text(space, taken)}")


def refuse_same(read: Path | None, written: Path | None) -> None:
    """Refuse to write a file over the one that is read; a `DseError`."""
    if read and written and written.exists() and read.exists() and written.samefile(read):
        raise DseError(f"-o {written}: is the file that is read; name another")
