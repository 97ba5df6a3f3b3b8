"""`dse evaluate`: one design of a space, a launch script, a workload file; or a sweep of designs.

The input decides the rules: the native model evaluates a space or a launch script, an adapter evaluates an HLO module,
a DFModel set-up or a DeepFlow log. A list of values (``tp=1,2,4``) makes a sweep."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Final

from costmodel.errors import DseError
from costmodel.rules.registry import design_profiles, profiles
from dse.api.design_files import SPACE, kind_of_design, title_of
from dse.cli import options
from dse.cli.output import TABLE_ENDINGS, checked_place, form_of
from dse.registry import launch_forms, load, workload_kinds

#: Options of layouts, be they of a space or of a launch script.
OF_LAYOUTS: Final = (
    *("profile", "format", "output", "sweep", "set", "objective", "tokens", "best", "designs"),
    *("jobs", "backend", "scheduler"),
)
#: Options of a space, and of a launch script.
OF_SPACES: Final = (*OF_LAYOUTS, "layout", "fit")
OF_LAUNCHES: Final = (*OF_LAYOUTS, "launch", "system", "gpus", "framework")


def cost_models() -> list[str]:
    """Names of the profiles that evaluate layouts or files."""
    return list(dict.fromkeys([*design_profiles(), *(profile.name for profile in profiles().values() if profile.file)]))


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add a group of options for each kind of file, and earlier spellings such as ``--from-megatron FILE``."""
    for kind in workload_kinds().values():
        if kind.options:
            group = parser.add_argument_group(kind.options["title"], kind.options.get("about"))
            options.add_table(group, kind.options["arguments"], options)
    for form in launch_forms():
        launch_file = partial(lambda form, text: (form, Path(text)), form)
        parser.add_argument(f"--from-{form}", dest="launch", action="append", type=launch_file, help=argparse.SUPPRESS)


def suppress_defaults(parser: argparse.ArgumentParser) -> None:
    """Leave options that are not given out of the result; `run` adds the defaults of the kind of file."""
    defaults = {}
    for action in parser._actions:
        if action.dest != "help":
            defaults[action.dest], action.default = action.default, argparse.SUPPRESS
    parser.set_defaults(defaults=defaults)


def sweep_text(text: str) -> str:
    """``NAME=VALUES`` or ``NAME``, checked."""
    name, equals, values = (part.strip() for part in text.partition("="))
    if text and (not name or bool(equals) != bool(values)):
        raise argparse.ArgumentTypeError(f"{text!r}: expected NAME=VALUES, such as tp=1,2,4")
    return text


def run(args: argparse.Namespace) -> int:
    """Evaluate the design, the designs of a sweep, or a file.

    Raises `DseError` if the design is not recognized, or options do not belong to it.
    """
    launches = vars(args).get("launch", [])
    if len(launches) + ("design" in args) != 1:
        raise DseError(
            "evaluate: name one DESIGN: a space (`dse list spaces`), a launch script with --system, or a file"
        )
    kind, design = launches[0] if launches else (kind_of_design(args.design, vars(args).get("profile")), args.design)
    workload = workload_kinds().get(kind)
    of_workload = ("profile", "format", "output", *workload.defaults) if workload else ()
    refuse_foreign(args, kind, str(design), of_workload or (OF_SPACES if kind == SPACE else OF_LAUNCHES))
    asked = "profile" in args
    known = {**args.defaults, **workload.defaults} if workload else args.defaults
    args = argparse.Namespace(**{**known, **vars(args), "design": Path(design) if kind != SPACE else design})
    if workload:
        all_endings = {**TABLE_ENDINGS, ".html": "html"}
        endings = {ending: form for ending, form in all_endings.items() if form in workload.formats}
        args.format = form_of(args.format, args.output, endings)
        checked_place(args.output)
        if args.format not in workload.formats:
            raise DseError(f"{args.design}: {workload.title} has no {args.format}; use {', '.join(workload.formats)}")
        args.profile_is_asked_for = asked
        args.profile = args.profile or workload.profile_of(args.design)
        return int(load(workload.run)(args))
    return int(import_module("dse.cli.layouts").run(args, kind))


def refuse_foreign(args: argparse.Namespace, kind: str, design: str, taken: Sequence[str]) -> None:
    """Refuse options that a kind of design does not take; a `DseError` that names them."""
    given = [name for name in vars(args) if name in args.defaults and name not in (*taken, "design")]
    if given:
        words = ", ".join("--" + name.replace("_", "-") for name in given)
        more = "; the space names its own system" if given == ["system"] and kind == SPACE else ""
        raise DseError(f"{design}: is {title_of(kind)}, which does not take {words}{more}")
