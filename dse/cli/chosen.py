"""The space, and the files, that arguments of a command name."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from costmodel.errors import DseError, suggestion
from dse.records.text import design_text
from dse.spaces.space import Params, Space


def changed_space(args: argparse.Namespace) -> Space:
    """The space that `add_space` arguments describe.

    Raises
    ------
    DseError
        If it does not load, or cannot be changed so.
    """
    if not args.space:
        raise DseError("name a space (`dse spaces` lists those that ship), or a launch file")
    space, pins = Space.load(args.space), dict(args.set)
    if args.tokens:
        space = space.with_tokens(args.tokens)
    if len(pins) < len(args.set):
        raise DseError(f"--set: {next(n for n in pins if sum(n == m for m, _ in args.set) > 1)}: given twice")
    if args.layout:
        if args.layout not in space.layouts:
            have = "; it has none" if not space.layouts else suggestion(args.layout, space.layouts)
            raise DseError(f"--layout {args.layout}: no layout of space {space.name}{have}")
        pins = {**space.layouts[args.layout], **pins}
    if pins:
        space = space.pinned(pins)
    return space.with_objectives(args.objective) if args.objective else space


def say_what_was_open(space: Space, params: Params) -> None:
    """Name the parameters that the user did not, with what they were taken to be."""
    taken = {p.name: params[p.name] for p in space.parameters if len(p.choices or "open") > 1}
    if taken:
        print(f"dse: not named by --set, so taken: {design_text(space, taken)}", file=sys.stderr)


def refuse_same(read: Path | None, written: Path | None) -> None:
    """Refuse to write a file over the one that is read; a `DseError`."""
    if read and written and written.exists() and read.exists() and written.samefile(read):
        raise DseError(f"-o {written}: is the file that is read; name another")
