"""What a study remembers of how its trials came about, and how that differs from what holds now.

Space, model and system are remembered as what they say, not as how a file words it; the cost model as what it
gives for a few designs of the space, not as its code: a comment changes nothing, and neither do last bits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

import numpy as np

from costmodel.formats import shipped
from costmodel.formats.model_file import load_model
from costmodel.formats.quantity import readable
from costmodel.formats.system_file import load_system
from dse.spaces.formulas.names import MODEL_SETTINGS
from dse.spaces.sections.objectives import Constraint
from dse.spaces.sections.parameters import Parameter
from dse.spaces.sections.several_systems import SYSTEM
from dse.spaces.space import Space

#: What of a space is told apart, and how messages call it. Of models and systems only names that both have
#: are compared: what another version adds shows in what the cost model gives.
SECTIONS: Final[Mapping[str, str]] = {
    "model": "model",
    "system": "system",
    "given": "given",
    "parameters": "parameter",
    "derived": "derived column",
    "rules": "rule",
    "limits": "limit",
    "objectives": "objective",
    "workloads": "workloads",
}
GROWING: Final = ("model", "system")

#: Of a text that is too long to be kept, and to be shown. [characters]
LONGEST: Final = 200

#: Section -> name -> value.
Content = dict[str, dict[str, Any]]


def content(space: Space) -> Content:
    """What decides the results of a space, by section and name; quantities are in SI units.

    Numbers that are not finite are texts, and what is too long is a hash of itself.
    """
    model = {name: value for name, value in asdict(space.model).items() if name != "title"}
    of_system = {name: float(values) for name, values in space.system.quantities().items()}
    given = {name: value for name, value in space.given.items() if name not in {*MODEL_SETTINGS, *of_system}}
    by_system = quantities_by_system(space)
    derived = {d.name: d.expression for d in space.derived if d.name not in by_system}
    found: dict[str, dict[str, Any]] = {
        "model": model,
        "system": of_system | {f"{n} of {s}": v for n, own in by_system.items() for s, v in own.items()},
        "given": given,
        "parameters": {p.name: parameter_text(p) for p in space.parameters},
        "derived": derived,
        "rules": texts(space.rules),
        "limits": texts(space.limits),
        "objectives": {o.name: o.direction for o in space.objectives},
    }
    for own in space.workloads:
        for section, values in content(own.space).items():
            if section != "system":  # all run on one
                found[section] |= {f"{own.name}.{name}": value for name, value in values.items()}
    if space.workloads:
        found["workloads"] = {f"weight of {own.name}": own.weight for own in space.workloads}
        found["workloads"]["combine"] = space.data.get("combine", "")
    return {section: {n: plain(v) for n, v in values.items()} for section, values in found.items()}


def quantities_by_system(space: Space) -> dict[str, dict[str, float]]:
    """Of a space of several machines: quantity that they differ in -> machine -> value. [SI units]"""
    machines = space.by_name.get(SYSTEM)
    if machines is None or not machines.choices:
        return {}
    codes = np.array([machines.code(name) for name in machines.choices])
    return {
        derived.name: dict(
            zip(
                map(str, machines.choices),
                np.broadcast_to(
                    np.asarray(derived.formula({**space.constants, SYSTEM: codes}), dtype=np.float64),
                    codes.shape,
                ).tolist(),
                strict=True,
            )
        )
        for derived in space.derived
        if derived.parameters == {SYSTEM} and derived.needs == (derived.name,) and not derived.evaluated
    }


def parameter_text(parameter: Parameter) -> str:
    """All that a parameter can be, and how it is chosen."""
    values = (
        parameter.described()
        if parameter.choices is None
        else ", ".join(map(parameter.shown, parameter.choices))
    )
    kinds = {"log": parameter.log, "integer": parameter.integer, "exact": parameter.exact}
    return " ".join([values, *(f"({kind})" for kind, there in kinds.items() if there)])


def texts(conditions: Sequence[Constraint]) -> dict[str, str]:
    """Name -> formula."""
    return {condition.name: condition.expression for condition in conditions}


def plain(value: Any) -> Any:
    """A value as every reader of JSON knows it, no longer than `LONGEST`."""
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if isinstance(value, bool | int | float | None):
        return value
    text = value if isinstance(value, str) else json.dumps(value, sort_keys=True)
    if len(text) <= LONGEST:
        return text
    return f"{text[:40]}... (sha256 {hashlib.sha256(text.encode()).hexdigest()[:12]})"


def content_changes(
    before: Mapping[str, Mapping[str, Any]], after: Mapping[str, Mapping[str, Any]], space: Space
) -> list[str]:
    """What differs between two contents, a line each, the first as stored and the second as it is now.

    Parameters
    ----------
    before, after : mapping
        As `content` gives them.
    space : Space
        Whose system says what unit each quantity has.
    """
    lines = []
    for section, called in SECTIONS.items():
        old, new = before.get(section, {}), after.get(section, {})
        for name in dict.fromkeys((*old, *new)):
            one_sided = (name in old) != (name in new)
            if old.get(name) == new.get(name) or (one_sided and section in GROWING):
                continue
            unit = unit_of(space, name.partition(" of ")[0].rpartition(".")[2])
            was, is_now = both_texts(old.get(name), new.get(name), unit)
            lines.append(f"{called} {name}: {was} stored, {is_now} now")
    return lines


def both_texts(old: Any, new: Any, unit: str) -> tuple[str, str]:
    """Two values for people, to so many digits that they differ; "none" where there is none."""
    shown = value_text(old, unit), value_text(new, unit)
    return shown if shown[0] != shown[1] else (repr(old), repr(new))


def unit_of(space: Space, name: str) -> str:
    """SI unit of a name of a space; "-" where it has none."""
    return space.system.units().get(name) or space.unit_of(name)


def value_text(value: Any, unit: str) -> str:
    """A value for people."""
    if value is None:
        return "none"
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return readable(value, unit, digits=6)


def shipped_parts(space: Space) -> dict[str, dict[str, Any]]:
    """Quantities of the systems and fields of the models that ship, where the space has them as they are.

    A study has its own copy of them; that which ships may become another.
    """
    found: dict[str, dict[str, Any]] = {}
    for kind, data in named_parts(space):
        name = str(data.get("name", ""))
        if name not in shipped.names(kind):
            continue
        _, _, section = shipped.opened(name, kind)
        if without_name(section.data) == without_name(data):
            found[f"{kind.removesuffix('s')} {name}"] = shipped_values(kind, name)
    if not {f"system {name}" for name in systems_of(space)[:1]} <= found.keys():
        return found
    others = [name for name in systems_of(space)[1:] if name in shipped.names("systems")]
    return found | {f"system {name}": shipped_values("systems", name) for name in others}


def named_parts(space: Space) -> list[tuple[str, Mapping[str, Any]]]:
    """The system and the models of a space as its data have them, each with its kind."""
    models = [own.space.data["model"] for own in space.workloads] or [space.data["model"]]
    return [("systems", space.data["system"]), *(("models", model) for model in models)]


def without_name(data: Mapping[str, Any]) -> dict[str, Any]:
    """What a file says beside its name."""
    return {key: value for key, value in data.items() if key != "name"}


def systems_of(space: Space) -> list[str]:
    """Names of the machines of a space; its own is the first."""
    machines = space.by_name.get(SYSTEM)
    return list(dict.fromkeys((space.system.name, *(machines.words if machines else ()))))


def shipped_values(kind: str, name: str) -> dict[str, Any]:
    """Quantities of a system that ships, or fields of a model."""
    if kind == "systems":
        return {key: plain(float(values)) for key, values in load_system(name).quantities().items()}
    return {key: plain(value) for key, value in asdict(load_model(name)).items() if key != "title"}


def shipped_changes(before: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What parts that ship say otherwise than they did, a line each; those that ship no more stay as known.

    Parameters
    ----------
    before : mapping
        As `shipped_parts` gave it.
    """
    lines = []
    for part, old in before.items():
        kind, _, name = part.partition(" ")
        if name not in shipped.names(f"{kind}s"):
            continue
        units = load_system(name).units() if kind == "system" else {}
        new = shipped_values(f"{kind}s", name)
        for key in old:
            if key in new and old[key] != new[key]:
                was, is_now = both_texts(old[key], new[key], units.get(key, "-"))
                lines.append(f"{part}: {key}: {was} stored, {is_now} as it ships now")
    return lines


def with_shipped(space: Space) -> Space:
    """The space with the systems and models that ship as they are now, in the place of its copies of them."""
    data, parts = dict(space.data), shipped_names(space)
    if space.workloads:
        entries = data["workloads"]
        data["workloads"] = {
            own.name: {**entries[own.name], "model": own.space.model.name}
            if f"model {own.space.model.name}" in parts
            else entries[own.name]
            for own in space.workloads
        }
    elif f"model {space.model.name}" in parts:
        data["model"] = space.model.name
    systems = systems_of(space)
    if not all(f"system {name}" in parts for name in systems):
        return Space.from_data({**data, "name": space.name})
    data["system"] = systems if SYSTEM in space.by_name else space.system.name
    if SYSTEM in space.by_name:
        copies = quantities_by_system(space)
        data["derived"] = {key: own for key, own in data["derived"].items() if key not in copies}
    return Space.from_data({**data, "name": space.name})


def shipped_names(space: Space) -> set[str]:
    """Kind and name of all parts of a space that have the name of one that ships."""
    parts = [*named_parts(space), *(("systems", {"name": name}) for name in systems_of(space))]
    return {
        f"{kind.removesuffix('s')} {data['name']}"
        for kind, data in parts
        if data.get("name") in shipped.names(kind)
    }


def incompatible(space: Space, other: Space) -> str:
    """What keeps the trials of one space from being trials of another; "" where nothing does."""
    one, two = content(space), content(other)
    differing = [key for key in ("parameters", "objectives", "workloads") if one.get(key) != two.get(key)]
    return " and ".join(differing)
