"""`run` of a search space: a whole training run in place of a step, written out as values and formulas.

    run:
      tokens: 15T
      gpu_hour_price: 2.5 $/h

Its columns follow from those of a step, so that objectives, limits, tables and files have them like any derived column.
Entries that the section omits have a default, and each default a source.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any, Final

from costmodel.formats.input_files import Section, data_beside
from costmodel.formats.quantity import count_value, exact, si_value
from dse.predictions import EXPECTED, with_names
from dse.spaces.formulas.expressions import Expression

#: Section of a space that this module reads.
KEY: Final = "run"


DATA: Final[dict[str, Any]] = data_beside(__file__)
#: Entry of the section -> its default: unit, value or formula, kind ("measured", "assumed" or "derived"), and source.
DEFAULTS: Final[Mapping[str, Mapping[str, str]]] = DATA["defaults"]
#: Entry of a run whose steps take their expected times in place of the predicted ones.
BY_EXPECTED: Final = "expected"
#: Entry without a default: machines are rented at this price, or else bought.
RENTAL: Final = "gpu_hour_price"
RENTAL_UNIT: Final = "$/s"

#: Columns of a run in the order in which reports have them, and their units.
UNITS: Final[Mapping[str, str]] = DATA["units"]


def written_out(section: Section, dimensions: Collection[str]) -> Section:
    """A space with its run as given values and derived columns, except names that the space sets.

    Mistakes are noted in the section's source. `dimensions` are names of the model's.
    """
    if KEY not in section:
        return section
    run = section.section(KEY)
    run.only(("tokens", BY_EXPECTED, RENTAL, *DEFAULTS), "entry")
    tokens = run.value("tokens", count_value, 1.0)
    units = {RENTAL: RENTAL_UNIT, **{name: default["unit"] for name, default in DEFAULTS.items()}}
    stated = {name: run.value(name, partial(_positive, unit), 1.0) for name, unit in units.items() if name in run}
    taken = {name for key in ("given", "parameters", "derived") for name in section.mapping(key)}
    formulas = {**DATA["formulas"], **DATA["rented" if RENTAL in stated else "owned"]}
    if "global_batch_size" in taken and "seq_len" in dimensions:
        formulas |= DATA["by_batch"]
    given: dict[str, Any] = {name: exact(value, units[name]) for name, value in stated.items()}
    defaults = {name: default for name, default in DEFAULTS.items() if name not in {*given, *taken}}
    formulas |= {name: default["value"] for name, default in defaults.items() if default["kind"] == "derived"}
    given |= {name: default["value"] for name, default in defaults.items() if default["kind"] != "derived"}
    names = EXPECTED if run.switch(BY_EXPECTED, default=False) else {}
    formulas = _needed({name: with_names(text, names) for name, text in formulas.items() if name not in taken})
    read = {name for text in formulas.values() for name in Expression.parse(text).names}
    for name in ({*stated} & taken) | ({"tokens"} & taken):
        run.mistake(name, "the space says this itself, by the same name")
    for name in {*stated} - read - taken:
        run.mistake(name, "has no effect with the other entries")
    given = {name: value for name, value in given.items() if name in read}
    return _merged(section, {"given": {"tokens": int(tokens), **given}, "derived": formulas})


def _positive(unit: str, written: Any) -> float:
    """A quantity above nothing. [the unit given]"""
    value = si_value(written, unit)
    if not 0 < value < float("inf"):
        raise ValueError(f"{written!r}: expected more than 0")
    return value


def _needed(formulas: Mapping[str, str]) -> dict[str, str]:
    """Columns of a run, and of the defaults that are formulas those that some other one reads."""
    kept = dict(formulas)
    for name in ("checkpoint_time", "checkpoint_size"):
        if not any(name in Expression.parse(text).names for text in kept.values()):
            kept.pop(name, None)
    return kept


def _merged(section: Section, added: Mapping[str, Mapping[str, Any]]) -> Section:
    """The space with more entries; their mistakes are reported at the line of the run."""
    data, source = {key: value for key, value in section.data.items() if key != KEY}, section.source
    for key, entries in added.items():
        for name in entries:
            source.lines[key, name] = source.lines.get((KEY,), 1)
        stated = section.data.get(key) or {}
        data[key] = {**entries, **stated} if isinstance(stated, dict) else stated  # which is reported when it is read
    return Section(source, section.at, data)


def has_run(data: Mapping[str, Any]) -> bool:
    """True if a space, as its text has it, describes whole runs."""
    return "tokens" in (data.get("given") or {}) and "goodput" in (data.get("derived") or {})


def with_tokens(data: Mapping[str, Any], tokens: float) -> dict[str, Any]:
    """The text of a space whose runs have `tokens` tokens."""
    if has_run(data):
        return {**data, "given": {**data["given"], "tokens": int(tokens)}}
    return {**data, KEY: {"tokens": int(tokens)}}
