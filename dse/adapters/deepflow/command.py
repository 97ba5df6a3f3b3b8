"""DeepFlow configurations and set-ups in `dse evaluate`: the command, JSON, and reports from `command.yaml`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from rich.console import RenderableType
from rich.text import Text

from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside, read_text
from costmodel.formats.quantity import readable
from dse.adapters.deepflow.configuration import is_log, load_configuration, load_log, power_notes
from dse.adapters.deepflow.setups import read_setup
from dse.adapters.deepflow.step import plain, price
from dse.adapters.deepflow.summaries import printed_figures
from dse.cli.output import write_answer
from dse.cli.terminal import say
from dse.reporting.design_table import facts, ruled_table

#: Name of a report -> heading -> pairs, or columns, rows and cells of a table.
_REPORTS: Final[Mapping[str, Mapping[str, Any]]] = data_beside(__file__)
#: ``<figure>``, or ``<figure:format>`` with a unit, "kind", "bound" or a format of Python.
_FIGURE: Final = re.compile(r"<([^:>]+):?([^>]*)>")


def run(args: argparse.Namespace) -> int:
    """Evaluate a DeepFlow configuration, or a hardware file with its model."""
    options = {name: getattr(args, name) for name in ("model_config", "set") if name in args}
    data = record(args.design, args.profile, True, options, lambda note: say(f"{args.design}: {note}"))
    mode = data.get("mode", args.profile)
    write_answer(args.format, data, lambda width: report(mode, data["figures"]), args.output)
    return 0


def record(
    path: Path, profile: str, asked: bool, options: Mapping[str, Any], note: Callable[[str], None]
) -> dict[str, Any]:
    """The JSON of a configuration of the first generation, or of a hardware file of a later one."""
    head = {"file": str(path), "profile": profile}
    if profile == "deepflow":
        config, printed = load_log(path) if is_log(read_text(path).encode()) else (load_configuration(path), "")
        for line in filter(None, (printed, *power_notes(config))):
            note(line)
        return head | {"figures": plain(price(config))}
    setup = read_setup(path, profile, options.get("model_config"), dict(options.get("set", ())))
    for line in setup.notes:
        note(line)
    try:
        return head | {"mode": setup.mode, "figures": printed_figures(setup)}
    except DseError as error:
        raise DseError(f"{path}: {error}") from None


def report(name: str, figures: Mapping[str, Any]) -> list[RenderableType]:
    """The report of a name, section by section; pairs whose figures are missing are left out."""
    shown: list[RenderableType] = []
    for heading, section in _REPORTS[name].items():
        if isinstance(section, list):
            pairs = [pair for pair in section if all(match[1] in figures for match in _FIGURE.finditer(pair[1]))]
            body = facts((label, filled(text, figures)) for label, text in pairs)
        else:
            body = ruled_table(*section["columns"])
            for label, names in section["rows"].items():
                body.add_row(label, *(filled(cell.format(*names), figures) for cell in section["cells"]))
        shown += [Text(heading, style="bold"), Text(), body, Text()]
    return shown[:-1]


def filled(text: str, figures: Mapping[str, Any]) -> str:
    """A text with its figures; one that is not a number is unknown."""

    def written(match: re.Match[str]) -> str:
        values, form = [figures[name] for name in match[1].split(",")], match[2]
        value = values[0]
        if value != value:
            return "unknown"
        if form == "bound":
            return "memory" if value < values[1] else "compute"
        if form == "kind":
            return {-1: "whole", 1: "column-row", 2: "row-column"}[value]
        return readable(value, form, digits=4 if form in "sJW" else 3) if form.isalpha() else f"{value:{form}}"

    return _FIGURE.sub(written, text)
