"""A file of designs, one a row, in columns named as the parameters of a space."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from costmodel.columns import column_units
from costmodel.errors import DseError, ParameterError, shortened, suggestion
from costmodel.formats.input_files import file_bytes
from costmodel.steps.breakdown import Breakdown, with_unit_suffix
from dse.pricing.evaluated import RECORD_KEYS, WINNER
from dse.pricing.sweep import normal
from dse.spaces.space import Space

if TYPE_CHECKING:
    import pandas as pd

#: Most columns of a file: tables of designs with all that is known of them have some hundred. [-]
MOST_COLUMNS: Final = 2000
#: Most cells of a Parquet file, which may be small for all of them. [-]
MOST_CELLS: Final = 20_000_000

#: Columns of tables of designs that say nothing of which design it is.
FINDINGS: Final = {"trial", WINNER, "feasible", "legal", "reason", "completed", "designs_priced", *RECORD_KEYS}


def read_designs(space: Space, path: Path, note: Callable[[str], None]) -> tuple[dict[str, list[Any]], int]:
    """Columns of the designs that a file names, and the number of designs.

    Columns that tables of designs have beside parameters are passed over.

    Raises `DseError` if it cannot be read, holds no design, or has a column that is none of the space's.
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
        raise ParameterError(f"{{designs}} {path}: expected a .csv or a .parquet file")
    content = BytesIO(file_bytes(path))
    try:
        if ending == ".parquet":
            return _parquet(content)
        if max(line.count(b",") for line in [b"", *content.getvalue().splitlines()]) > MOST_COLUMNS:
            raise ValueError(f"more than {MOST_COLUMNS:,} columns")
        return pd.read_csv(content, dtype=str, keep_default_na=False, skipinitialspace=True)
    except OSError as error:
        raise DseError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, ArithmeticError, LookupError, NotImplementedError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise DseError(f"{path}: not a table that can be read ({shortened(words)})") from None


def _parquet(content: BytesIO) -> pd.DataFrame:
    """The columns of numbers, words and truth values of a Parquet file.

    Raises an error of a reader if it is none, has a
    column of something else, or says that it has more than `MOST_CELLS`.
    """
    from pyarrow import lib, parquet, types

    try:
        file = parquet.ParquetFile(content)
        if file.metadata.num_rows * max(1, file.metadata.num_columns) > MOST_CELLS:
            raise ValueError(f"more than {MOST_CELLS:,} cells")
        kinds = (types.is_integer, types.is_floating, types.is_boolean, types.is_string, types.is_large_string)
        for column in file.schema_arrow:
            kind = column.type.value_type if types.is_dictionary(column.type) else column.type
            if not any(of_kind(kind) for of_kind in (*kinds, types.is_null, types.is_timestamp)):
                raise ValueError(f"column {column.name}: {kind}, no numbers or words")
        # What pandas says of itself is not read: it decides types, too.
        table = file.read()
        table.validate(full=True)  # texts in UTF-8, too
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        return frame.drop(columns=[name for name in frame.columns if str(name).startswith("__index_level_")])
    except lib.ArrowException as error:  # of which not all are errors of Python's kinds
        raise ValueError(str(error)) from error


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
