"""`dse import`: a model file from the configuration of a Hugging Face model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from dse.cli.options import Commands, command, positive


def register(commands: Commands[argparse.ArgumentParser]) -> None:
    """Add the command."""
    parser = command(
        commands,
        "import",
        run,
        summary="a model file from a Hugging Face config.json",
        about="Write the model that a Hugging Face config.json describes as a model file, which spaces and\n"
        "`dse plan` take. Known are Llama, GPT-2, GPT-NeoX, Mistral, Mixtral, Qwen2 and Qwen3 with their\n"
        "mixtures of experts, Gemma 1 to 3, DeepSeek-V2 and V3, and gpt-oss.",
        examples=[
            "dse import Llama-3.1-405B/config.json -o llama.yaml",
            "dse import config.json --format json | jq .parameters",
        ],
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="a config.json, or the folder of one")
    parser.add_argument("-o", "--output", metavar="FILE", type=Path, help="write there, not to stdout")
    parser.add_argument(
        "--format",
        choices=["yaml", "json"],
        help="a model file, or one JSON object of its fields and its number of parameters (default: what the "
        "ending of FILE says, else yaml)",
    )
    parser.add_argument(
        "--seq-len",
        metavar="TOKENS",
        type=positive,
        help="length of a training sequence (default: what the model was first trained for, if the file "
        "says it, and 8192 at most)",
    )


def run(args: argparse.Namespace) -> int:
    """Import."""
    from costmodel.formats.hugging_face import import_model
    from costmodel.formats.strict_yaml import dump
    from dse.cli.options import refuse_same
    from dse.cli.output import checked_ending
    from dse.records.tables import json_text, write_file
    from dse.reporting.catalogue import model_text

    refuse_same(args.config, args.output)
    checked_ending(args.output, (".yaml", ".yml"))
    found = import_model(args.config, seq_len=args.seq_len)
    for note in found.notes:
        print(f"dse: {note}", file=sys.stderr)
    if (args.format or (args.output.suffix[1:] if args.output else "")) == "json":
        counts = {
            "parameters": found.model.num_parameters,
            "active_parameters": found.model.active_parameters,
        }
        record = {"model": dict(found.fields), **{name: int(count) for name, count in counts.items()}}
        text = json_text(record | {"notes": list(found.notes)}) + "\n"
    else:
        text = dump(found.fields) + model_text(found.model)
    if args.output:
        write_file(args.output, text.encode())
    else:
        sys.stdout.write(text)
    return 0
