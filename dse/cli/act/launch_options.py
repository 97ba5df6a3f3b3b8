"""Launch files of training frameworks as what a command prices."""

from __future__ import annotations

import argparse
import sys
from typing import Final

from costmodel.errors import DseError
from dse.cli.chosen import changed_space
from dse.exporting.launch.forms import read_launch
from dse.exporting.launch.launch import launch_space
from dse.spaces.space import Space

#: Argument -> form of the file that it names.
FROM: Final = {f"from_{form}": form for form in ("megatron", "nemo", "torchtitan", "maxtext")}


def asked_space(args: argparse.Namespace) -> Space:
    """The space that a command names, or that of the launch file that it names; a `DseError` if neither."""
    if any(getattr(args, name) for name in FROM):
        if args.best:
            raise DseError("--best: a launch file leaves nothing open; change it with --set or --sweep")
        return launched_space(args)
    if own := next((name for name in ("system", "gpus", "framework") if getattr(args, name)), ""):
        raise DseError(f"--{own}: is of a launch file (--from-megatron); a space has its own")
    return changed_space(args)


def launched_space(args: argparse.Namespace) -> Space:
    """The space of the one design that a launch file runs; what of it is not read is said on stderr.

    Raises
    ------
    DseError
        If it cannot be read, or says too little.
    """
    [name, *others] = [own for own in FROM if getattr(args, own)]
    option = f"--{name.replace('_', '-')}"
    if others or args.space:
        raise DseError(f"{option}: prices one file; leave out {args.space or 'the other file'}")
    if not args.system:
        raise DseError(f"{option}: needs --system NAME, the machine (`dse systems` lists them)")
    if args.layout:
        raise DseError(f"--layout {args.layout}: {option} has no layouts of a space")
    path = getattr(args, name)
    launch, notes = read_launch(path, FROM[name], args.gpus, args.framework)
    for text in notes:
        print(f"dse: {path}: {text}", file=sys.stderr)
    space = launch_space(launch, args.system, launch.model.name, dict(args.set))
    if args.tokens:
        space = space.with_tokens(args.tokens)
    return space.with_objectives(args.objective) if args.objective else space
