"""The space, and the files, that arguments of a command name."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote
from typing import Any

from costmodel.errors import DseError
from dse.api.chosen_space import chosen_space
from dse.api.launch_files import launch_design
from dse.cli.terminal import say
from dse.output.text import design_text
from dse.spaces.space import Params, Space


def changed_space(args: argparse.Namespace) -> Space:
    """The space that `add_space` arguments describe.

    Raises `DseError` if it does not load, or cannot be changed so.
    """
    return chosen_space(args.design if "design" in args else args.space, **changes_of(args))


def launched_space(args: argparse.Namespace, form: str = "") -> Space:
    """The space of the one design that a launch file runs; settings that are not read go to stderr."""
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
    taken = {p.name: params[p.name] for p in space.parameters if len(p.choices or "open") > 1}
    if taken:
        say(f"unset parameters get: {design_text(space, taken)}")


def refuse_same(read: Path | None, written: Path | None) -> None:
    """Refuse to write a file over the one that is read; a `DseError`."""
    if read and written and written.exists() and read.exists() and written.samefile(read):
        raise DseError(f"-o {written}: is the file that is read; name another")
