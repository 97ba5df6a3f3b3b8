"""Finished trials as tables and as JSON, made from what the database holds without a record of each.

Studies have up to 10^6 trials. Stored JSON is decoded column by column, without an object for each trial."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from costmodel.columns import FloatArray, IntArray
from costmodel.rules.registry import NATIVE
from dse.predictions.intervals import EVIDENCE
from dse.pricing.evaluated import RECORD_KEYS, space_interval
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED
from dse.searching.trials.trial_attributes import BREAKDOWN, DERIVED, MARGINS
from dse.spaces.space import Space
from dse.storage.optuna_store import Store, StoredStudy
from dse.storage.trial_columns import TrialColumns

if TYPE_CHECKING:
    import pandas as pd

#: User attributes of a trial that tables show.
SHOWN: Final = (DERIVED, MARGINS, BREAKDOWN, DESIGNS_PRICED)

#: Between the members of a group, and of a design, as `json.dumps` indents them in an object of a study.
_MEMBER, _GROUP = ",\n        ", ",\n      "
_ENCODER: Final = json.JSONEncoder(separators=(_MEMBER, ": "), allow_nan=False)


@dataclass(frozen=True)
class DecodedDetails:
    """Attributes of some trials besides their values, one list each in the same order."""

    params: Mapping[str, list[Any]]  #: parameter -> values
    tables: Mapping[str, list[dict[str, float]]]  #: user attribute -> names and numbers
    designs_priced: list[int | None]
    texts: Mapping[str, list[str]]  #: user attribute -> JSON texts, "" where a trial has none
    completed: list[datetime | None]  #: when each was finished, in UTC


@dataclass(frozen=True)
class Details:
    """Attributes of the trials of a study besides their values, read when they are needed."""

    storage: str
    stored: StoredStudy

    @cached_property
    def keys(self) -> list[str]:
        """Keys of the breakdowns of all finished trials."""
        with Store(self.storage, "read") as store:
            return store.keys(self.stored, BREAKDOWN)

    @cached_property
    def priced(self) -> bool:
        """True if trials record the number of designs evaluated for them."""
        with Store(self.storage, "read") as store:
            return store.has(self.stored, DESIGNS_PRICED)

    def of(self, ids: IntArray, space: Space) -> DecodedDetails:
        """Details of some trials of a space, (trials,) identities. [-]

        Trials of earlier versions have no parameters for what was solved (`Space.solved`).
        """
        with Store(self.storage, "read") as store, store.snapshot():
            stored = store.details(self.stored.study_id, ids, SHOWN)
            with store.reading(self.stored.study_id, "trial_params"):
                params = {parameter.name: stored.params[parameter.name] for parameter in space.parameters}
                params |= {p.name: stored.params[p.name] for p in space.solved if p.name in stored.params}
            with store.reading(self.stored.study_id, "trial_user_attributes"):
                tables = {name: decoded_tables(stored.attributes[name]) for name in (DERIVED, MARGINS, BREAKDOWN)}
                counts = [int(text) if text else None for text in stored.attributes[DESIGNS_PRICED]]
        return DecodedDetails(params, tables, counts, stored.attributes, stored.completed)


@dataclass(frozen=True)
class StoredTrials:
    """Trials of a study, with what is stored of them."""

    space: Space
    profile: str
    columns: TrialColumns
    values: FloatArray  #: (trials, objectives), NaN where not finite [the unit of each]
    source: Details

    @cached_property
    def details(self) -> DecodedDetails:
        """Details that are stored of the trials."""
        return self.source.of(self.columns.ids, self.space)

    def frame(self) -> pd.DataFrame:
        """One row per trial: parameters, derived columns, objectives, margins, breakdown."""
        import pandas as pd

        space, details = self.space, self.details
        data: dict[str, Any] = {"trial": self.columns.numbers}
        data |= details.params
        objectives = {o.key: self.values[:, column] for column, o in enumerate(space.objectives)}
        margins = self._numbers(MARGINS, [limit.key for limit in space.limits])
        breakdown = self._numbers(BREAKDOWN, self.source.keys)
        for group in (
            self._numbers(DERIVED, [derived.name for derived in space.derived]),
            objectives,
            {f"margin_{name}": column for name, column in margins.items()},
            breakdown,
        ):
            data |= {name: column for name, column in group.items() if name not in data}
        times = breakdown.get("step_time_s", np.full(len(self.values), np.nan))
        data |= dict(zip(RECORD_KEYS, self.intervals(times), strict=False))
        if self.source.priced:
            counts = details.designs_priced
            data[DESIGNS_PRICED] = counts if None not in counts else pd.array(counts, dtype="Int64")
        data["feasible"] = self.columns.feasible
        data["completed"] = details.completed
        return pd.DataFrame(data)

    def _numbers(self, attribute: str, keys: Sequence[str]) -> dict[str, FloatArray]:
        """Columns of an attribute that maps names to numbers; NaN where a trial has none."""
        return number_columns(self.details.tables[attribute], keys)

    def intervals(self, times: FloatArray) -> tuple[list[float], list[float], list[str]] | tuple[()]:
        """Ends of the interval of each step time [s], and what it rests on; nothing of other profiles."""
        if self.profile != NATIVE or not len(times):
            return ()
        codes = {}
        for parameter in self.space.parameters:
            options = self.details.params[parameter.name]
            known = {value: parameter.code(value) for value in set(options)}
            codes[parameter.name] = np.array([known[value] for value in options])
        interval = space_interval(self.space, self.space.known_values(codes), len(times))
        evidence = [EVIDENCE[code] for code in interval.evidence.tolist()]
        return (times * interval.low).tolist(), (times * interval.high).tolist(), evidence

    def json_texts(self) -> Iterator[str]:
        """Each trial as JSON, indented as in an object of the study."""
        details = self.details
        keys = [objective.key for objective in self.space.objectives]
        times = np.array([row.get("step_time_s", math.nan) for row in details.tables[BREAKDOWN]])
        counts = details.designs_priced
        ends = zip(*self.intervals(times), strict=True) if self.profile == NATIVE else iter(())
        names = [*details.params]
        designs = zip(*(details.params[name] for name in names), strict=True)
        for row, design in enumerate(designs):
            values = [value if math.isfinite(value) else None for value in self.values[row].tolist()]
            members = {
                "trial": str(self.columns.numbers[row]),
                "params": _group(_ENCODER.encode(dict(zip(names, design, strict=True)))),
                "values": _group(_ENCODER.encode(dict(zip(keys, values, strict=True)))),
                "margins": _stored(details.texts[MARGINS][row]),
                "breakdown": _stored(details.texts[BREAKDOWN][row]),
            }
            if counts[row] is not None:
                members[DESIGNS_PRICED] = str(counts[row])
            for name, value in zip(RECORD_KEYS, next(ends, ()), strict=False):
                members[name] = _scalar(value)
            body = _GROUP.join(f'"{name}": {text}' for name, text in members.items())
            yield f"{{\n      {body}\n    }}"


def decoded_tables(texts: Sequence[str]) -> list[dict[str, float]]:
    """Mappings of names to numbers from their texts, all at once; nothing where there is no text.

    Raises `ValueError`, `TypeError`, `AttributeError` or `OverflowError` if one of them is something else.
    """
    rows: list[dict[str, float]] = json.loads(f"[{','.join(text or '{}' for text in texts)}]")
    if len(rows) != len(texts):
        raise ValueError("no table")
    for row in rows:
        math.fsum(row.values())
    return rows


def number_columns(rows: Sequence[dict[str, float]], keys: Sequence[str] | None = None) -> dict[str, FloatArray]:
    """Columns of mappings of names to numbers, (rows,), under some names or all that they have; NaN where one
    has none. [as stored]"""
    if keys is None:
        kinds = dict.fromkeys(tuple(row) for row in rows)
        keys = [*dict.fromkeys(key for kind in kinds for key in kind)]
    if not keys:
        return {}
    lacking = dict.fromkeys(keys, math.nan)
    every = [row if row.keys() == lacking.keys() else lacking | row for row in rows]
    of_row = itemgetter(*keys, keys[0])  # one more, so that it gives a tuple of one key too
    table = np.array([*map(of_row, every)], dtype=np.float64).T.copy()
    return dict(zip(keys, table, strict=False))


def _scalar(value: float | str) -> str:
    """A number or a word; null for what JSON cannot say."""
    if isinstance(value, str):
        return f'"{value}"'
    return repr(value) if math.isfinite(value) else "null"


def _group(text: str) -> str:
    """Members in lines of their own between braces."""
    return text if text == "{}" else f"{{\n        {text[1:-1]}\n      }}"


def _stored(text: str) -> str:
    """A mapping of names to numbers as it is stored, its members in lines of their own."""
    plain = text.count('"') == 2 * text.count('": ') and "NaN" not in text and "Infinity" not in text
    if plain:
        return _group(text.replace(", ", _MEMBER) or "{}")
    values = {key: value if math.isfinite(value) else None for key, value in json.loads(text).items()}
    return _group(_ENCODER.encode(values))
