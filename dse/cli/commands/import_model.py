"""`dse import`: a model file from the configuration of a Hugging Face model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from costmodel.formats.input_files import dump
from dse.api.files import import_model
from dse.cli.options import add_output, describe, positive, refuse_same
from dse.cli.output import form_of
from dse.cli.terminal import say
from dse.output import json_text, write_file
from dse.reporting.catalogue import model_text


def arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of `dse import`."""
    describe(
        parser,
        about="Write the model of a Hugging Face config.json as a model file, which spaces read.\n"
        "`dse plan` also takes the config.json itself. docs/planning.md lists the model families.",
        examples=[
            "dse import Llama-3.1-405B/config.json -o llama.yaml",
            "dse import config.json --format json | jq .parameters",
        ],
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="config.json, or the folder that holds it")
    add_output(parser)
    parser.add_argument("--format", choices=["yaml", "json"], help="default: by the ending of FILE, else yaml")
    parser.add_argument(
        "--seq-len",
        metavar="TOKENS",
        type=positive,
        help="training sequence length (default: that of the first training stage, at most 8192)",
    )


def run(args: argparse.Namespace) -> int:
    """Write a model file from a config.json of Hugging Face."""
    refuse_same(args.config, args.output)
    form = form_of(args.format, args.output, {".yaml": "yaml", ".yml": "yaml", ".json": "json"})
    imported = import_model(args.config, seq_len=args.seq_len)
    for note in imported.notes:
        say(note)
    if form == "json":
        counts = {"parameters": imported.model.num_parameters, "active_parameters": imported.model.active_parameters}
        record = {"model": dict(imported.fields), **{name: int(count) for name, count in counts.items()}}
        text = json_text(record | {"notes": list(imported.notes)}) + "\n"
    else:
        text = dump(imported.fields) + model_text(imported.model)
    if args.output:
        write_file(args.output, text.encode())
    else:
        sys.stdout.write(text)
    return 0
