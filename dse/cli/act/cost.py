"""`dse cost`: evaluate a workload file."""

from __future__ import annotations

import argparse
from importlib import import_module

from costmodel.errors import DseError
from costmodel.profiles.files import kind_named
from dse.cli.act.words import COSTS
from dse.cli.output import form_of
from dse.library.workload_files import checked_kind


def run(args: argparse.Namespace) -> int:
    """Evaluate a file of another program, and write what it costs.

    Raises
    ------
    DseError
        If the file is of no kind that is evaluated, or not of the kind that its profile or its options want.
    """
    kind = checked_kind(args.file, args.profile)
    reader = COSTS[kind.name]
    refuse_foreign(args, kind.name, kind.title)
    args.format = form_of(args.format, vars(args).get("output"))
    if args.format not in reader.formats:
        raise DseError(f"{args.file}: {kind.title} has no {args.format}; ask for {', '.join(reader.formats)}")
    profile = args.profile or kind.profile(args.file)
    own = {**reader.defaults, **vars(args), "profile": profile, "profile_is_asked_for": bool(args.profile)}
    return int(import_module(reader.module).run(argparse.Namespace(**own)))


def refuse_foreign(args: argparse.Namespace, kind: str, title: str) -> None:
    """Refuse options that are for files of another kind: only options that were given are in `args`.

    Raises
    ------
    DseError
        Naming them, and what they are for.
    """
    for other, reader in COSTS.items():
        given = [name for name in reader.defaults if other != kind and name in args]
        if given:
            words = ", ".join("--" + name.replace("_", "-") for name in given)
            raise DseError(
                f"{args.file}: {words}: for {kind_named(other).title}, and this is {title}; leave it out"
            )
