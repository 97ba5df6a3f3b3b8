"""`dse cost`: evaluate a workload file."""

from __future__ import annotations

import argparse
from importlib import import_module

from costmodel.errors import DseError
from costmodel.formats.input_files import content
from costmodel.profiles.files import FILES, kind_named, kind_of
from costmodel.profiles.registry import profile_named
from dse.cli.act.words import COSTS
from dse.cli.output import form_of


def run(args: argparse.Namespace) -> int:
    """Read, evaluate, write.

    Raises
    ------
    DseError
        If the file is of no kind that is evaluated, or not of the kind that its profile or its options want.
    """
    kind = kind_of(args.file)
    asked = profile_named(args.profile).file if args.profile else None
    if kind is None and asked is None:
        what = "empty" if not content(args.file, 1) else "of no kind that is priced"
        titles = ", ".join(kind.title for kind in FILES)
        raise DseError(f"{args.file}: {what}; give {titles}, or say by --profile what it should be")
    if kind is not None and asked not in (None, kind.name):
        raise DseError(
            f"{args.file}: is {kind.title}, and --profile {args.profile} does not price one; leave it out"
        )
    kind = kind or kind_named(str(asked))
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
