"""`dse evaluate`: one design of a space, a launch script, a workload file; or a sweep of designs.

The input decides the rules: a space or a launch script is priced by the native model, an HLO module, DFModel set-up or
DeepFlow log by its adapter. A list of values (``tp=1,2,4``) makes a sweep."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.rules.registry import design_profiles, profiles
from dse.api.design_files import SPACE, kind_of_design, title_of
from dse.cli.options import add_changes, add_launch, add_output, add_workers, describe
from dse.cli.output import TABLE_ENDINGS, form_of
from dse.registry import call, launch_forms, load, workload_kinds

#: Options of layouts, be they of a space or of a launch script.
OF_LAYOUTS: Final = (
    *("profile", "format", "output", "sweep", "set", "objective", "tokens", "best", "designs"),
    *("jobs", "backend", "scheduler"),
)
#: Options of a space, and of a launch script.
OF_SPACES: Final = (*OF_LAYOUTS, "layout", "fit")
OF_LAUNCHES: Final = (*OF_LAYOUTS, "launch", "system", "gpus", "framework")


ABOUT: Final = (
    "Evaluate one design: step time, memory and where they go. DESIGN is recognized by content:\n"
    "  a space         built-in or YAML; --set names the design, --best completes it, --sweep a table\n"
    "  a launch file   Megatron-LM script or log, Megatron-Bridge, torchtitan, MaxText; needs --system\n"
    "  a program       HLO text of XLA\n"
    "  a workload      AICB (SimAI), DFModel set-up, DeepFlow configuration, hardware file or log\n"
    "Exits with 1 if the design does not fit."
)
EXAMPLES: Final = (
    "dse evaluate train.sh --system h100",
    "dse evaluate train.sh --system h100 --set tp=4",
    "dse evaluate gpt3_175b_1024_a100 --set tp=8 --set pp=16 --best",
    "dse evaluate gpt3_175b_1024_a100 --fit --set tp=8 --set pp=4 --set recompute=none",
    "dse evaluate gpt3_175b_1024_a100 --set tp=8 --sweep pp=8,16,32 --sweep micro_batch_size=1,2,4",
    "dse evaluate gpt3_175b_1024_a100 --set tp=8 --set recompute=full --sweep pp -o sweep.svg",
    "dse evaluate gpt_1t_codesign --designs designs.csv -o evaluated.parquet --jobs 4",
    "dse evaluate step.hlo --system h100 -o step.html",
    "dse evaluate workload.txt --gpus 1024 --gpu-type H100 --nic-type cx7",
    "dse evaluate a100_80GB.yaml --model-config LLM.yaml --set num_devices_per_node=1",
    "dse evaluate setup.txt --profile dfmodel-gen1 --format json | jq .final_s",
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse evaluate`; those that are not given are left out of the result."""
    describe(parser, about=ABOUT, examples=EXAMPLES)
    parser.add_argument("design", metavar="DESIGN", nargs="?", help="space, launch file or workload file")
    add_launch_files(parser)
    add_changes(parser)
    parser.add_argument("--best", action="store_true", help="fill unset parameters with the best feasible values")
    parser.add_argument(
        "--fit",
        action="store_true",
        help="change as few of the --set values as possible until the design fits; prints the changes",
    )
    add_sweeps(parser)
    parser.add_argument(
        "--format",
        choices=["table", "json", "csv", "parquet", "trace", "dfmodel"],
        help="table or json; csv and parquet of several designs; trace and dfmodel of programs "
        "(default: by the ending of FILE, else table)",
    )
    add_output(parser, "; FILE.svg, .png or .pdf is a picture of a --sweep, FILE.html a page of a program")
    for kind in workload_kinds().values():
        add_file_options(parser, kind.options)
    advanced = parser.add_argument_group("advanced")
    advanced.add_argument(
        "--profile",
        choices=[
            *dict.fromkeys([*design_profiles(), *(profile.name for profile in profiles().values() if profile.file)])
        ],
        help="cost model: native (default for layouts and HLO), simai, or a generation of DFModel",
    )
    add_workers(advanced)
    parser.set_defaults(defaults=suppressed(parser))


def add_file_options(parser: argparse.ArgumentParser, options: Mapping[str, Any]) -> None:
    """Add the options of a kind of file as a group; what converts a value is imported when there is one."""
    if not options:
        return
    group = parser.add_argument_group(options["title"], options.get("about"))
    for flag, words in options["arguments"].items():
        convert = {"type": partial(call, words["type"])} if "type" in words else {}
        group.add_argument(flag, **words | convert)


def add_launch_files(parser: argparse._ActionsContainer) -> None:
    """Add the system and the framework of a launch script."""
    text = "system of a launch file or an HLO module, such as h100 (`dse list systems`), or a file"
    add_launch(parser, text)
    for form in launch_forms():  # earlier spellings: ``--from-megatron FILE``
        launch_file = partial(lambda form, text: (form, Path(text)), form)
        parser.add_argument(f"--from-{form}", dest="launch", action="append", type=launch_file, help=argparse.SUPPRESS)


def suppressed(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """The defaults of a parser, which it leaves out of its results from now on."""
    defaults = {}
    for action in parser._actions:
        if action.dest != "help":
            defaults[action.dest], action.default = action.default, argparse.SUPPRESS
    return defaults


def add_sweeps(parser: argparse._ActionsContainer) -> None:
    """``--sweep`` and ``--designs``."""
    parser.add_argument(
        "--sweep",
        metavar="NAME=VALUES",
        nargs="?",
        const="",
        action="append",
        default=[],
        type=sweep_text,
        help="evaluate every value: 1,2,4 or 64:512:64 or 64:1024:x2, with units; NAME alone: all options; repeatable",
    )
    parser.add_argument(
        "--designs",
        metavar="FILE",
        type=Path,
        help="evaluate the designs of a CSV or Parquet file: one row each, columns named as parameters",
    )


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
    refuse_foreign(args, kind, str(design))
    asked = "profile" in args
    workload = workload_kinds().get(kind)
    known = {**args.defaults, **workload.defaults} if workload else args.defaults
    args = argparse.Namespace(**{**known, **vars(args), "design": Path(design) if kind != SPACE else design})
    if workload:
        endings = {**TABLE_ENDINGS, ".html": "html"} if "html" in workload.formats else TABLE_ENDINGS
        args.format = form_of(args.format, args.output if "output" in workload.defaults else None, endings)
        if args.format not in workload.formats:
            raise DseError(f"{args.design}: {workload.title} has no {args.format}; use {', '.join(workload.formats)}")
        args.profile_is_asked_for = asked
        args.profile = args.profile or workload.profile_of(args.design)
        return int(load(workload.run)(args))
    return int(import_module("dse.cli.layouts").run(args, kind))


def refuse_foreign(args: argparse.Namespace, kind: str, design: str) -> None:
    """Refuse options that do not belong to a kind of design; a `DseError` that names them."""
    taken: Sequence[str] = OF_SPACES if kind == SPACE else OF_LAUNCHES
    if kind in workload_kinds():
        taken = ("profile", "format", *workload_kinds()[kind].defaults)
    given = [name for name in vars(args) if name in args.defaults and name not in (*taken, "design")]
    if given:
        words = ", ".join("--" + name.replace("_", "-") for name in given)
        more = "; the space names its own system" if given == ["system"] and kind == SPACE else ""
        raise DseError(f"{design}: is {title_of(kind)}, which does not take {words}{more}")
