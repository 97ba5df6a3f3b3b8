"""Launch scripts and configurations of training frameworks, as a space of one design."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from costmodel.errors import DseError
from dse.exporting.launch.forms import read_launch
from dse.exporting.launch.launch import launch_space
from dse.spaces.space import Space


def launched_space(path: Path, form: str, args: argparse.Namespace) -> Space:
    """The space of the one design that a launch file runs; settings that are not read go to stderr.

    Raises
    ------
    DseError
        If the file cannot be read, or does not determine a design.
    """
    if not args.system:
        raise DseError(f"{path}: add --system, such as --system h100 (`dse list systems` shows all)")
    launch, notes = read_launch(path, form, args.gpus, args.framework)
    for text in notes:
        print(f"dse: {path}: {text}", file=sys.stderr)
    space = launch_space(launch, args.system, launch.model.name, dict(args.set))
    if args.tokens:
        space = space.with_tokens(args.tokens)
    return space.with_objectives(args.objective) if args.objective else space
