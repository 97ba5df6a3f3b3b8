"""DeepFlow configurations and set-ups in `dse evaluate`: the command, JSON, sweeps, and reports from `command.yaml`.

A sweep has every combination of the values that options of `--set` list, fastest first. A combination is read as a
separate set-up, so that DeepFlow's own rules decide which ones it can run. All of these are evaluated in one batch.
"""

from __future__ import annotations

import argparse
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from rich.console import RenderableType
from rich.text import Text

from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside, read_text
from costmodel.formats.quantity import readable
from dse.adapters.deepflow.configuration import is_log, load_configuration, load_log, power_notes
from dse.adapters.deepflow.setups import ChipSetup, read_setup
from dse.adapters.deepflow.step import plain, price
from dse.adapters.deepflow.summaries import printed_figures, runs, setup_figures
from dse.cli.output import MOST_ROWS, write_answer, write_report
from dse.cli.terminal import say
from dse.reporting.design_table import facts, ruled_table

#: Combinations of a sweep at most. [-]
MOST: Final = 5000
#: Figures of a design in a sweep that users trade against its time.
TRADED: Final = ("core.tot_area", "core.tot_power", "hw.throughput")


def listed(text: str) -> list[str]:
    """Values of an option: ``"2,4,8"``, or ``"36:132:12"`` from the first to the last in steps.

    >>> listed("CR"), listed("2,4"), listed("36:60:12")
    (['CR'], ['2', '4'], ['36', '48', '60'])
    """
    if len(parts := text.split(":")) != 3:
        return text.split(",")
    from dse.pricing.sweep import stepped  # loads all of spaces

    try:
        values = stepped(parts, "-", MOST)
    except ValueError as error:
        raise DseError(f"--set {text!r}: {error}; expected 2,4,8 or first:last:step, such as 36:132:12") from None
    if len(values) > MOST:
        raise DseError(f"--set {text!r}: at most {MOST:,} values")
    return [str(value) for value in values]


def sweep(
    path: Path, generation: str, model_path: Path | None, values: Mapping[str, list[str]], note: Callable[[str], None]
) -> dict[str, Any]:
    """Designs of a sweep, the fastest first, and the number of those that DeepFlow cannot run by reason.

    `values` are those of each option; `note` takes each line that is said of set-ups, once. Times are in s, areas in
    mm2, powers in W, throughputs in TFLOP/s. Raises `DseError` if there are more than `MOST` combinations, or DeepFlow
    can run none.
    """
    if (number := math.prod(map(len, values.values()))) > MOST:
        raise DseError(f"--set: {number:,} combinations; at most {MOST:,}")
    refused, batches = Counter[str](), dict[str, list[tuple[dict[str, str], ChipSetup]]]()
    for chosen in product(*values.values()):
        options = dict(zip(values, chosen, strict=True))
        try:
            setup = read_setup(path, generation, model_path, options)
        except DseError as error:
            refused[str(error)] += 1
        else:
            batches.setdefault(setup.mode, []).append((options, setup))
    designs = []
    for line in dict.fromkeys(line for batch in batches.values() for _, setup in batch for line in setup.notes):
        note(line)
    for batch in batches.values():
        first, sheets = batch[0][1], [setup.sheet for _, setup in batch]
        whole = replace(first, sheet={name: np.concatenate([sheet[name] for sheet in sheets]) for name in first.sheet})
        figures = setup_figures(whole)
        for row, why in enumerate(runs(whole, figures)):
            if why:
                refused[why] += 1
                continue
            numbers = {name: float(np.broadcast_to(figures[name], (len(batch),))[row]) for name in ("Time", *TRADED)}
            designs.append(batch[row][0] | numbers)
    if not designs:
        raise DseError(refused.most_common(1)[0][0])
    return {"designs": sorted(designs, key=lambda design: design["Time"]), "refused": dict(refused)}


#: Name of a report -> heading -> pairs, or columns, rows and cells of a table.
_REPORTS: Final[Mapping[str, Mapping[str, Any]]] = data_beside(__file__)
#: ``<figure>``, or ``<figure:format>`` with a unit, "kind", "bound" or a format of Python.
_FIGURE: Final = re.compile(r"<([^:>]+):?([^>]*)>")


def run(args: argparse.Namespace) -> int:
    """Evaluate a DeepFlow configuration, or a hardware file with its model."""
    options = {name: getattr(args, name) for name in ("model_config", "set") if name in args}
    data = record(args.design, args.profile, True, options, lambda note: say(f"{args.design}: {note}"))
    if args.format != "json" and "designs" in data:
        for why, count in data["refused"].items():
            say(f"{args.design}: {count} combinations do not run: {why}")
        most = len(data["designs"]) if args.output else MOST_ROWS
        write_report(lambda width: [design_rows(data["designs"], most)], args.output)
    else:
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
    values = {name: listed(text) for name, text in options.get("set", ())}
    if any(several[1:] for several in values.values()):
        return head | sweep(path, profile, options.get("model_config"), values, note)
    setup = read_setup(path, profile, options.get("model_config"), dict(options.get("set", ())))
    for line in setup.notes:
        note(line)
    try:
        return head | {"mode": setup.mode, "figures": printed_figures(setup)}
    except DseError as error:
        raise DseError(f"{path}: {error}") from None


def design_rows(designs: Sequence[Mapping[str, Any]], most: int) -> RenderableType:
    """At most `most` of the fastest designs of a sweep, with the options that differ among all."""
    units = {"Time": "s", "core.tot_area": "", "core.tot_power": "W", "hw.throughput": ""}
    names = [name for name in designs[0] if name not in units and len({design[name] for design in designs}) > 1]
    body = ruled_table(*names, "step time", "core area\nmm2", "core power", "TFLOP/s")
    for design in designs[:most]:
        numbers = (readable(design[name], unit) if unit else f"{design[name]:,.4g}" for name, unit in units.items())
        body.add_row(*(design[name] for name in names), *numbers)
    if len(designs) > most:
        body.caption = f"{most} of {len(designs):,} designs; --format json has all"
    return body


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
