"""`dse import`: a model file from the configuration of a Hugging Face model."""

from __future__ import annotations

import argparse
import sys

from costmodel.formats.hugging_face import import_model
from costmodel.formats.strict_yaml import dump
from dse.cli.chosen import refuse_same
from dse.cli.output import form_of
from dse.records.tables import json_text, write_file
from dse.reporting.catalogue import model_text


def run(args: argparse.Namespace) -> int:
    """Write a model file from a config.json of Hugging Face."""
    refuse_same(args.config, args.output)
    form = form_of(args.format, args.output, {".yaml": "yaml", ".yml": "yaml", ".json": "json"})
    found = import_model(args.config, seq_len=args.seq_len)
    for note in found.notes:
        print(f"dse: {note}", file=sys.stderr)
    if form == "json":
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
