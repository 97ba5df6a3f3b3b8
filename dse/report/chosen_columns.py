"""Tables of a study with columns that the user names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from costmodel.errors import DseError, suggestion
from costmodel.formats.quantity import readable
from dse.report.design_table import Column, drawn, lines_of, trial_columns
from dse.report.study_report import Report
from dse.report.text import UNITS, Record, column_text
from dse.spaces.objectives import keyed
from dse.spaces.space import Space

if TYPE_CHECKING:
    import pandas as pd

    from dse.search.study import Study
    from dse.search.trial_table import Selection


def chosen_report(study: Study, part: Selection, names: Sequence[str]) -> Report:
    """The front or the trials of a study with some columns, in the order in which they are named.

    Raises
    ------
    DseError
        If one is no column.
    """
    records = (study.table.front() if part == "front" else study.table).records()
    if not records:
        raise DseError(f"study {study.name!r}: no designs to show yet")
    columns = [column_of(study.space, records, name) for name in names]
    return [*drawn([*trial_columns(records), *columns])]


def column_of(space: Space, records: Sequence[Record], name: str) -> Column:
    """A column of a table."""
    cells = [_cell(space, record, name) for record in records]
    if all(cell is None for cell in cells):
        raise DseError(f"--columns: {name}: no column of this study{suggestion(name, _known(records[0]))}")
    words = name in space.by_name and bool(space.by_name[name].words)
    return Column(name, lines_of(name), ["-" if cell is None else cell for cell in cells], left=words)


def _cell(space: Space, record: Record, name: str) -> str | None:
    """A value of a design for people; None where it has none of this name."""
    if name in record["params"]:
        return space.by_name[name].shown(record["params"][name])
    for unit, key in ((unit, key) for key, unit in UNITS.items() if name in (key, _bare(key, unit))):
        if key in record["breakdown"]:
            return (
                column_text(record, key) if unit in ("-", "1/s") else readable(record["breakdown"][key], unit)
            )
    for derived in space.derived:
        if name in (derived.name, keyed(derived.name, derived.unit)) and derived.name in record["derived"]:
            return readable(record["derived"][derived.name], derived.unit)
    for key, unit, values in _others(space, record):
        if name in (key, _bare(key, unit)):
            return readable(values[key], unit)
    return None


def _others(space: Space, record: Record) -> Iterator[tuple[str, str, Any]]:
    """Objectives, margins and ends of intervals: name in tables, unit, and where it stands."""
    yield from ((o.key, o.unit, record["values"]) for o in space.objectives if o.key in record["values"])
    yield from (
        (one.key, one.unit, record["margins"]) for one in space.limits if one.key in record["margins"]
    )
    yield from ((key, "s", record) for key in ("step_time_low_s", "step_time_high_s") if key in record)


def _bare(key: str, unit: str) -> str:
    """A name in tables without its unit."""
    suffix = keyed("", unit)
    return key.removesuffix(suffix) if suffix else key


def _known(record: Record) -> list[str]:
    """Names that there are."""
    groups = (record["params"], record["breakdown"], record["derived"], record["values"], record["margins"])
    return [name for group in groups for name in group]


def chosen_frame(space: Space, frame: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """Some columns of a study's table, with the number of the trial.

    Raises
    ------
    DseError
        If one is no column.
    """
    known: dict[str, str] = {str(column): str(column) for column in frame.columns}
    units = {
        **UNITS,
        **{o.key: o.unit for o in space.objectives},
        **{one.key: one.unit for one in space.limits},
    }
    known |= {
        _bare(key, unit): key for key, unit in units.items() if key in known and _bare(key, unit) not in known
    }
    for name in names:
        if name not in known:
            raise DseError(f"--columns: {name}: no column of this study{suggestion(name, known)}")
    chosen = dict.fromkeys(["trial", *(known[name] for name in names)])
    return frame[[name for name in chosen if name in frame.columns]]
