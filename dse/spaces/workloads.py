"""`workloads` of a search space: several models on one machine, each laid out as is best for it.

    workloads:
      dense: {model: llama3_70b, weight: 0.7}
      experts: {model: mixtral_8x22b, weight: 0.3, given: {global_batch_size: 256}}
    combine: weighted_sum       # or worst
    best_by: step_time          # by which the layout of each is chosen

Parameters that are columns of a layout are exact: for each machine all of their legal values are evaluated, separately
for each workload. The outer parameters are a space of machines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Any, Final

from costmodel.formats.input_files import Section
from costmodel.rules.registry import all_columns
from costmodel.rules.rules import TRAINING
from dse.spaces.definition import AnySpace, Definition, SpaceWorkload
from dse.spaces.sections.parameters import directed

#: Sections of a space that this module reads.
KEY: Final = "workloads"
KEYS: Final = (KEY, "combine", "best_by")
#: How the steps of workloads become one.
COMBINATIONS: Final = ("weighted_sum", "worst")
#: Sections that say nothing of several workloads at once.
ALONE: Final = {
    "model": "each workload has its own",
    "workload": "each workload has its own",
    "run": "runs of several workloads are not combined; take one workload at a time",
}

#: Reads a space from a section, with a name.
Reader = Callable[[Section, str], AnySpace]


def machine_fields(section: Section, name: str, read_space: Reader[AnySpace]) -> dict[str, Any]:
    """Fields of the space of the machines on which several workloads run: nothing of their layouts.

    Raises `DseError` with one line for each mistake.
    """
    frame, workloads, data = _read_all(section, name, read_space)
    layouts = {parameter.name for parameter in frame.parameters if parameter.exact}
    changes = {
        "name": data.get("name", name),
        "data": data,
        "parameters": tuple(p for p in frame.parameters if not p.exact),
        "derived": tuple(d for d in frame.derived if not d.parameters & layouts),
        "rules": tuple(rule for rule in frame.rules if not rule.parameters & layouts),
        "workloads": workloads,
    }
    return {f.name: changes.get(f.name, getattr(frame, f.name)) for f in fields(Definition)}


def _read_all(
    section: Section, name: str, read_space: Reader[AnySpace]
) -> tuple[AnySpace, tuple[SpaceWorkload[AnySpace], ...], dict[str, Any]]:
    """The space as if its first workload were the only one, its workloads, and its content as `_data` writes it."""
    parts = section.section(KEY).sections("workload, such as dense: {model: llama3_70b}")
    for key, why in ALONE.items():
        if key in section:
            section.mistake(key, f"does not go with workloads: {why}")
    section.word("combine", COMBINATIONS, default=COMBINATIONS[0])
    best_by = section.text("best_by", required=False) or "step_time"
    weights = {}
    for key, described in parts.items():
        described.only(("model", "weight", "given"))
        if not key.isidentifier():
            described.mistake(None, "not a name; expected letters, digits and _")
        weights[key] = described.number("weight", default=1.0)
        if not 0 < weights[key] < float("inf"):
            described.mistake("weight", f"{weights[key]:g}: expected a number above 0")
    section.source.finish()
    common = _with_exact_layouts(section)
    frame = _read(section, common, next(iter(parts.values())), name, read_space)
    chosen = {**common, "objectives": directed([best_by])}
    spaces = {key: _read(section, chosen, part, f"{name}.{key}", read_space) for key, part in parts.items()}
    _check(section, frame, spaces)
    workloads = tuple(SpaceWorkload(key, weights[key], space) for key, space in spaces.items())
    return frame, workloads, _data(section, common, frame, workloads)


def _with_exact_layouts(section: Section) -> dict[str, Any]:
    """The settings that workloads share; parameters that are columns of layouts are exact."""
    data = {key: value for key, value in section.data.items() if key not in KEYS}
    parameters = dict(section.mapping("parameters"))
    for name, written in parameters.items():
        if name in all_columns():
            options = dict(written) if isinstance(written, Mapping) else {"options": written}
            parameters[name] = {"by": "exact", **options}
    return {**data, "parameters": parameters}


def _read(
    section: Section, common: Mapping[str, Any], part: Section, name: str, read_space: Reader[AnySpace]
) -> AnySpace:
    """The space of one workload."""
    given = {**(common.get("given") or {}), **part.mapping("given")}
    data = {**common, "model": part.data.get("model"), "given": given}
    return read_space(Section(section.source, section.at, data), name)


def _check(section: Section, frame: AnySpace, spaces: Mapping[str, AnySpace]) -> None:
    """Note values that several workloads cannot have; a `DseError` if there are any."""
    layouts = {parameter.name for parameter in frame.parameters if parameter.exact}
    of_layouts = layouts | {derived.name for derived in frame.derived if derived.parameters & layouts}
    if not layouts:
        section.mistake("parameters", "expected some of layouts, such as tp: [1, 2, 4, 8]")
    if len(layouts) == len(frame.parameters):
        section.mistake("parameters", "expected some of the machine, such as nodes: [16, 32]")
    for objective in frame.objectives:
        if objective.name in of_layouts:
            section.mistake("objectives", f"{objective.name}: belongs to the layout of one workload")
    for layout, values in frame.layouts.items():
        if layouts & {*values}:
            section.mistake("layouts", f"{layout}: layouts of workloads are found for each machine")
    for key, space in spaces.items():
        if space.workload.work != TRAINING:
            section.mistake(KEY, f"{key}: its model is not a transformer")
    if frame.reads_intervals:
        section.mistake(None, "several workloads have no intervals; take one workload at a time")
    section.source.finish()


def _data(
    section: Section, common: Mapping[str, Any], frame: AnySpace, workloads: tuple[SpaceWorkload[AnySpace], ...]
) -> dict[str, Any]:
    """The content of a file that needs no other."""
    first = {*section.section(KEY).section(workloads[0].name).mapping("given")}
    shared = common.get("given") or {}
    given = {name: value for name, value in frame.data.get("given", {}).items() if name not in first}
    entries = {
        workload.name: {
            "model": workload.space.data["model"],
            "weight": workload.weight,
            "given": dict(section.section(KEY).section(workload.name).mapping("given")),
        }
        for workload in workloads
    }
    data = {key: value for key, value in frame.data.items() if key != "model"}
    more = {key: section.data[key] for key in KEYS[1:] if key in section}
    return {**data, "given": {**given, **shared}, **more, KEY: entries}
