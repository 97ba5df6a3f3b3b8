"""`dse import`: a model file from the configuration of a Hugging Face model."""

from __future__ import annotations

import argparse
import sys

from costmodel.formats.input_files import dump
from dse.api.files import import_model
from dse.cli.options import refuse_same
from dse.cli.output import form_of
from dse.cli.terminal import say
from dse.output import json_text, write_file
from dse.reporting.catalogue import model_text


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
