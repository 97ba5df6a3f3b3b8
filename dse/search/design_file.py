"""A file of designs, one a row, in columns named as the parameters of a space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.columns import column_units
from costmodel.errors import DseError, suggestion
from costmodel.formats.packed import file_bytes
from costmodel.steps.breakdown import Breakdown, with_unit_suffix
from dse.pricing.intervals import RECORD_KEYS
from dse.search.sweep import normal
from dse.search.trial_table import WINNER
from dse.spaces.space import Space

if TYPE_CHECKING:
    import pandas as pd

#: Columns of tables of designs that say nothing of which design it is.
FINDINGS: Final = {
    "trial",
    WINNER,
    "feasible",
    "legal",
    "reason",
    "completed",
    "designs_priced",
    *RECORD_KEYS,
}


def read_designs(space: Space, path: Path, note: Callable[[str], None]) -> tuple[dict[str, list[Any]], int]:
    """What a file names of each design, and how many there are.

    Columns that tables of designs have beside parameters are passed over.

    Parameters
    ----------
    space : Space
        What they are designs of.
    path : Path
        A CSV or Parquet file.
    note : callable
        Told what is passed over.

    Raises
    ------
    DseError
        If it cannot be read, holds no design, or has a column that is none of the space's.
    """
    frame = _frame(path)
    findings = FINDINGS | {with_unit_suffix(name) for name in column_units(Breakdown)}
    findings |= {objective.key for objective in space.objectives} | {d.name for d in space.derived}
    columns = [str(name) for name in frame.columns]
    passed = [n for n in columns if n not in space.by_name and (n in findings or n.startswith("margin_"))]
    named = [name for name in columns if name not in passed]
    for name in named:
        if name not in space.settable:
            hint = suggestion(name, space.settable)
            raise DseError(f"{path}: column {name!r}: not a name of space {space.name}{hint}")
    if not named or not len(frame):
        raise DseError(f"{path}: holds no designs; expected a row for each, in columns named as parameters")
    if passed:
        note(f"{path}: results among its columns are not read: {', '.join(map(str, passed[:6]))}"
             + (f" and {len(passed) - 6} more" if len(passed) > 6 else ""))  # fmt: skip
    return {name: _values(space, path, name, frame[name].tolist()) for name in named}, len(frame)


def _frame(path: Path) -> pd.DataFrame:
    """The file as a table; of text, cells as they are written."""
    import pandas as pd

    ending = path.suffix.lower()
    if ending not in (".csv", ".parquet"):
        raise DseError(f"--designs {path}: expected a .csv or a .parquet file")
    content = BytesIO(file_bytes(path))
    try:
        if ending == ".parquet":
            return pd.read_parquet(content)
        return pd.read_csv(content, dtype=str, keep_default_na=False, skipinitialspace=True)
    except OSError as error:
        raise DseError(f"{path}: {error.strerror or error}") from None
    except (ValueError, UnicodeError) as error:  # errors of both parsers are ValueErrors
        raise DseError(f"{path}: not a table that can be read ({str(error).splitlines()[0]})") from None


def _values(space: Space, path: Path, name: str, cells: Sequence[Any]) -> list[Any]:
    """A column in SI units; None where a cell is blank."""
    import pandas as pd

    known: dict[Any, Any] = {}
    for row, cell in enumerate(cells, start=1):
        if cell in known:
            continue
        blank = not cell.strip() if isinstance(cell, str) else bool(pd.isna(cell))
        try:
            known[cell] = None if blank else normal(space, name, cell)
        except DseError as error:
            raise DseError(f"{path}: row {row}: {error}") from None
    return [known[cell] for cell in cells]
