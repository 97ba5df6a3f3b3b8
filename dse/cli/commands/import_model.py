"""`dse import`: a model file from the configuration of a Hugging Face model."""

from __future__ import annotations

import argparse

from costmodel.formats.input_files import dump
from dse.api.files import import_model
from dse.cli.options import refuse_same
from dse.cli.output import form_of, write_content
from dse.cli.terminal import say
from dse.output import json_text
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
    write_content([text.encode()], form, args.output)
    return 0
