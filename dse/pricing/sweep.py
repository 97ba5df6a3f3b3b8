"""Designs that a user names, row by row: completed where they are open, and evaluated in one call.

The values of a sweep come as text, such as ``64:1024:x2`` or ``1,2,4``; every combination of them is a design. Designs
also come as a file, one a row, in columns named as the parameters of a space.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from io import BytesIO
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from costmodel.columns import BoolArray, FloatArray, IntArray, grouped, layout_of, short_repr
from costmodel.errors import DseError, ParameterError, shortened, suggestion
from costmodel.formats.input_files import file_bytes, scalar
from costmodel.formats.quantity import dimension, readable, si_value
from costmodel.rules.registry import NATIVE
from costmodel.steps.breakdown import Breakdown, with_unit_suffix
from dse.pricing.evaluated import RECORD_KEYS, WINNER, Evaluation, rules_for, time_intervals, with_intervals
from dse.pricing.evaluation import design_records, evaluate, with_kernels
from dse.pricing.workers import Jobs
from dse.spaces.formulas.expressions import Expression
from dse.spaces.formulas.names import MODEL_SETTINGS
from dse.spaces.legal import blocking_rules, completed_rows
from dse.spaces.sections.parameters import MOST_OPTIONS, Parameter, Value, written_options, written_value
from dse.spaces.space import Batch, Space

if TYPE_CHECKING:
    import pandas as pd


#: A number, and the text after it.
_NUMBER: Final = re.compile(r"\s*(\$?\s*[+-]?(?:\d[\d_]*\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*(.*?)\s*", re.ASCII)
_FACTOR: Final = re.compile(r"\s*[x*]\s*([\d.]+)\s*(.*?)\s*", re.ASCII)

EXAMPLES: Final = "1,2,4 or 64:1024:x2"


def swept_values(name: str, text: str, unit: str) -> list[Value]:
    """Values that a text stands for: a list ``a,b,c``, or a range ``a:b``, ``a:b:step`` or ``a:b:xfactor``.

    A number without a unit has that of the last number that has one. Ranges hold their ends where they meet them.
    `unit` is the SI unit of the name; "-" for pure numbers and words. Raises `DseError` for other texts.

    >>> swept_values("nodes", "64:512:x2", "-"), swept_values("recompute", "none,full", "-")
    ([64, 128, 256, 512], ['none', 'full'])
    >>> swept_values("node_bandwidth", "200:800:x2 GB/s", "B/s")
    [200000000000.0, 400000000000.0, 800000000000.0]
    """
    try:
        is_range = ":" in text
        values = stepped(text.split(":"), unit) if is_range else _list(text.split(","), unit)
    except ValueError as error:
        raise ParameterError(f"{{sweep}} {name}={text}: {error}; expected values such as {EXAMPLES}") from None
    if len(values) > MOST_OPTIONS:
        raise ParameterError(f"{{sweep}} {name}={text}: more than {MOST_OPTIONS:,} values")
    if len(set(values)) < len(values):
        twice = next(value for index, value in enumerate(values) if value in values[:index])
        shown = twice if unit == "-" else readable(float(twice), unit)
        raise ParameterError(f"{{sweep}} {name}={text}: {shown}: given twice")
    return values


def _list(parts: Sequence[str], unit: str) -> list[Value]:
    """Values one by one."""
    if not all(part.strip() for part in parts):
        raise ValueError("a value is missing")
    if unit == "-":
        return [text if (value := scalar(text)) is None else value for text in map(str.strip, parts)]
    return [si_value(part, unit) for part in _with_units(parts)]


def stepped(parts: Sequence[str], unit: str) -> list[Value]:
    """Values from an end to another, by steps or factors; one beyond `MOST_OPTIONS` if there are more. [-]"""
    if not 2 <= len(parts) <= 3 or not all(part.strip() for part in parts):
        raise ValueError("a range has two ends, and perhaps a step")
    factor = _FACTOR.fullmatch(parts[2]) if len(parts) == 3 else None
    ends = [*parts[:2], *([f"1 {factor[2]}".strip()] if factor else parts[2:])]
    if len(parts) == 2 and dimension(unit) != dimension("-"):
        raise ValueError("a range of quantities needs a step, such as 100:400:100 GB/s, or a factor x2")
    low, high, *steps = (Fraction(str(si_value(part, unit))) for part in _with_units(ends))
    by = Fraction(factor[1]) if factor else steps[0] if steps else Fraction(1)
    if low > high or (factor and (by <= 1 or low <= 0)) or (not factor and by <= 0):
        raise ValueError("a range goes up, by a step above 0 or a factor above 1")
    numbers = [low]
    while len(numbers) <= MOST_OPTIONS and (after := numbers[-1] * by if factor else numbers[-1] + by) <= high:
        numbers.append(after)
    whole = unit == "-" and all(value.denominator == 1 for value in numbers)
    return [int(value) if whole else float(value) for value in numbers]


def _with_units(parts: Sequence[str]) -> list[str]:
    """Numbers of a sweep; those without a unit take that of the last that has one."""
    units = [match[2] for part in parts if (match := _NUMBER.fullmatch(part)) and match[2]]
    shared = units[-1] if units else ""
    bare = [bool((match := _NUMBER.fullmatch(part)) and not match[2] and "$" not in part) for part in parts]
    return [f"{part} {shared}".strip() if is_bare else part for part, is_bare in zip(parts, bare, strict=True)]


#: Most rows that are evaluated at once; all legal designs of more combinations are for `dse enumerate`.
MOST_ROWS: Final = 1_000_000


@dataclass(frozen=True)
class PartOfDesigns:
    """Rows of one space: those that name the same parameters, and agree in the settings of the space."""

    space: Space  #: named values come first among its parameters
    named: tuple[str, ...]
    settings: Mapping[str, Value]  #: of this space, where rows are of several
    rows: IntArray  #: (points,) places in the whole
    columns: Batch  #: all parameters, (points,) each; of illegal designs those of a near one
    legal: BoolArray  #: (points,)
    evaluation: Evaluation  #: of the legal ones
    reasons: tuple[str, ...]  #: why a design is not legal, or not feasible; "" where it is
    profile: str

    def records(self) -> list[dict[str, Any]]:
        """One nested record per row, as in JSON; of illegal designs the named values, and the reason."""
        designs = {name: values[self.legal] for name, values in self.columns.items()}
        records = with_kernels(self.space, design_records(self.space, designs, self.evaluation))
        decoded = iter(with_intervals(self.space, records, self.profile))
        nothing: dict[str, Any] = {key: {} for key in ("derived", "values", "margins", "breakdown")}
        records = []
        for row, (legal, reason) in enumerate(zip(self.legal.tolist(), self.reasons, strict=True)):
            named = {name: self.space.by_name[name].value(float(self.columns[name][row])) for name in self.named}
            record = next(decoded) if legal else {"feasible": False, **nothing, "params": named}
            records.append({**record, "params": {**self.settings, **record["params"]}, "reason": reason})
        return records

    def to_frame(self) -> pd.DataFrame:
        """One row per design, the columns of a study's front except those of trials, and the reason."""
        import pandas as pd

        named = {**self.settings, **{p.name: self._shown(p) for p in self.space.parameters}}
        data = {**named, **self._numbers(), **named}  # named columns first, which stay as they are
        feasible = np.zeros(self.legal.size, dtype=bool)
        feasible[self.legal] = self.evaluation.feasible
        return pd.DataFrame({**data, "legal": self.legal, "feasible": feasible, "reason": self.reasons})

    def _shown(self, parameter: Parameter) -> Any:
        """Values of a parameter; None in illegal rows, unless the parameter was named."""
        import pandas as pd

        values = [parameter.value(code) for code in self.columns[parameter.name].tolist()]
        if parameter.name in self.named or self.legal.all():
            return values
        whole = all(type(value) is int for value in values)
        blanked = [value if legal else None for value, legal in zip(values, self.legal.tolist(), strict=True)]
        return pd.Series(blanked, dtype="Int64") if whole else blanked

    def _numbers(self) -> dict[str, Any]:
        """Results by their names in tables; NaN where designs are illegal."""
        evaluation, space = self.evaluation, self.space
        values = evaluation.values
        groups = [
            evaluation.derived,
            {o.key: values[:, index] for index, o in enumerate(space.objectives)},
            {f"margin_{limit.key}": evaluation.margins[:, index] for index, limit in enumerate(space.limits)},
            evaluation.breakdown.by_key(),
        ]
        numbers: dict[str, Any] = {}
        for group in groups:
            numbers |= {name: self._spread(values) for name, values in group.items() if name not in numbers}
        if self.profile != NATIVE:
            return numbers
        designs = {name: values[self.legal] for name, values in self.columns.items()}
        intervals = time_intervals(space, designs, np.broadcast_to(evaluation.breakdown.time, evaluation.num_points))
        return numbers | {name: self._spread(values) for name, values in intervals.items()}

    def _spread(self, values: NDArray[Any]) -> NDArray[Any]:
        """A column of the legal designs, over all of them: NaN, or None among words, where one is not legal."""
        column = np.full(self.legal.size, None if values.dtype == object else np.nan)
        column[self.legal] = values
        return column


@dataclass(frozen=True)
class NamedDesigns:
    """All rows, in the order in which they were named."""

    __repr__ = short_repr

    names: tuple[str, ...]
    parts: tuple[PartOfDesigns, ...]

    @property
    def space(self) -> Space:
        """Space of the first rows; those of the others have the same objectives and limits."""
        return self.parts[0].space

    def __len__(self) -> int:
        return sum(part.rows.size for part in self.parts)

    @property
    def legal(self) -> int:
        """Number of legal designs. [-]"""
        return sum(int(part.legal.sum()) for part in self.parts)

    @property
    def feasible(self) -> int:
        """Number of designs that also satisfy every limit. [-]"""
        return sum(int(part.evaluation.feasible.sum()) for part in self.parts)

    @cached_property
    def records(self) -> list[dict[str, Any]]:
        """One nested record per row."""
        records: list[dict[str, Any]] = [{}] * len(self)
        for part in self.parts:
            for row, record in zip(part.rows.tolist(), part.records(), strict=True):
                records[row] = record
        return records

    def to_frame(self) -> pd.DataFrame:
        """One row per design."""
        import pandas as pd

        if len(self.parts) == 1:
            return self.parts[0].to_frame()
        whole = pd.concat([part.to_frame() for part in self.parts], ignore_index=True)
        order = np.argsort(np.concatenate([part.rows for part in self.parts]))
        return whole.iloc[order].reset_index(drop=True)


def combinations(sweeps: Mapping[str, Sequence[Value]]) -> dict[str, list[Value]]:
    """Every combination of the values of some names, the last fastest, as a column for each name.

    Raises `DseError` if there are more than `MOST_ROWS`.

    >>> combinations({"tp": [1, 2], "pp": [4, 8]})
    {'tp': [1, 1, 2, 2], 'pp': [4, 8, 4, 8]}
    """
    count = int(np.prod([float(len(values)) for values in sweeps.values()]))
    if count > MOST_ROWS:
        raise ParameterError(
            f"{{sweep}}: {count:,} combinations; at most {MOST_ROWS:,} are evaluated one by one, "
            "`dse enumerate` finds the front of more"
        )
    rows = list(product(*sweeps.values()))
    return {name: [row[index] for row in rows] for index, name in enumerate(sweeps)}


def evaluated_designs(
    space: Space, table: Mapping[str, Sequence[Any]], rows: int, *, profile: str = NATIVE, jobs: Jobs = 1
) -> NamedDesigns:
    """Evaluate designs that are named by some of their values; other values are the simplest legal ones.

    Raises `DseError` if the space has no such name, or a value is impossible.

    `table` has `rows` values for each parameter, or for any other name that can be pinned: as a file writes them, or
    numbers in SI units; None where a row does not name it. Values need not be options of the space. [-]
    """
    columns = {}
    for name, written in table.items():
        values = {value: normal(space, name, value) for value in dict.fromkeys(written)}
        columns[name] = [values[value] for value in written]
    own_space = [name for name in columns if makes_a_space(space, name)]
    kinds = [column if name in own_space else [value is None for value in column] for name, column in columns.items()]
    parts = []
    for places in grouped((tuple(kind[row] for kind in kinds), row) for row in range(rows)).values():
        known = [name for name, column in columns.items() if column[places[0]] is not None]
        settings = {name: columns[name][places[0]] for name in known if name in own_space}
        named = {name: [columns[name][row] for row in places] for name in known if name not in own_space}
        parts.append(_part(space, settings, named, np.array(places), profile, jobs))
    return NamedDesigns(tuple(columns), tuple(parts))


def normal(space: Space, name: str, written: Any) -> Any:
    """A value as a number in SI units, a word or a boolean; None where it is blank.

    Raises `DseError` if it is in another unit.
    """
    value = scalar(written.strip()) if isinstance(written, str) else written
    unit, known = space.unit_of(name), space.by_name.get(name)
    try:
        if unit != "-":
            return si_value(value, unit) if isinstance(value, str) else value
        if value is not None and known:
            return written_value(value, unit, known.words, known.boolean)
    except ValueError as error:
        raise DseError(f"{name}: {error}") from None
    return value


def makes_a_space(space: Space, name: str) -> bool:
    """True if another value gives another space: a dimension of the model, or a value that options depend on."""
    if name in MODEL_SETTINGS:
        return True
    written = [written_options(entry) for entry in space.data["parameters"].values()]
    return any(name in Expression.parse(text).names for text in written if isinstance(text, str))


def _part(base: Space, settings: dict[str, Any], named: dict[str, list[Any]], rows: IntArray, profile: str,
          jobs: Jobs) -> PartOfDesigns:  # fmt: skip
    """Rows of one space, completed and evaluated."""
    space = base.set_to(settings) if settings else base
    opened = space.opened({name: list(dict.fromkeys(values)) for name, values in named.items()})
    codes = {name: _codes(opened.by_name[name], values) for name, values in named.items()}
    columns, legal = completed_rows(opened.legal, codes, rows.size)
    designs = {name: values[legal] for name, values in columns.items()}
    # Where nothing is legal, a space with legal designs gives the columns.
    priceable = opened if legal.any() else base
    evaluation = evaluate(priceable, designs, rules=rules_for(priceable, profile), jobs=jobs)
    reasons = np.full(rows.size, "", dtype=object)
    reasons[legal] = list(_infeasible(opened, evaluation, profile))
    barred = np.flatnonzero(~legal)
    if barred.size:
        checks = blocking_rules(opened.legal, codes, columns, barred)
        reasons[barred] = [
            f"not legal: {check.name} ({check.text})" if check else "not legal with the other values"
            for check in checks
        ]
    return PartOfDesigns(
        opened, tuple(named), settings, rows, columns, legal, evaluation, tuple(reasons.tolist()), profile
    )


def _codes(parameter: Parameter, values: Sequence[Any]) -> FloatArray:
    """Values of a parameter as its column holds them. [its unit]"""
    known = {
        value: value
        if parameter.unit != "-"
        else parameter.code(written_value(value, parameter.unit, parameter.words, parameter.boolean))
        for value in dict.fromkeys(values)
    }
    return np.array([known[value] for value in values], dtype=np.float64)


def _infeasible(space: Space, evaluation: Evaluation, profile: str) -> Iterator[str]:
    """Why designs are not feasible; "" where they are."""
    keys = [(limit.name, limit.unit) for limit in space.limits]
    for feasible, margins in zip(evaluation.feasible.tolist(), evaluation.margins.tolist(), strict=True):
        if feasible:
            yield ""
            continue
        broken = [
            f"{readable(-margin, unit)} too much for {name}" if np.isfinite(margin) else f"{name} has no number"
            for (name, unit), margin in zip(keys, margins, strict=True)
            if margin < 0
        ]
        yield ", ".join(broken) or f"no number under profile {profile}"


#: Most columns of a file: tables of designs with all that is known of them have some hundred. [-]
MOST_COLUMNS: Final = 2000
#: Most cells of a Parquet file, which may be small for all of them. [-]
MOST_CELLS: Final = 20_000_000

#: Columns of tables of designs that do not identify a design.
FINDINGS: Final = {"trial", WINNER, "feasible", "legal", "reason", "completed", "designs_priced", *RECORD_KEYS}


def read_designs(space: Space, path: Path, note: Callable[[str], None]) -> tuple[dict[str, list[Any]], int]:
    """Columns of the designs that a file names, and the number of designs.

    Columns of tables of designs that are not parameters are passed over.

    Raises `DseError` if it cannot be read, holds no design, or has a column that the space does not have.
    """
    frame = _frame(path)
    findings = FINDINGS | {with_unit_suffix(name) for name in layout_of(Breakdown).units}
    findings |= {objective.key for objective in space.objectives} | {d.name for d in space.derived}
    columns = [str(name) for name in frame.columns]
    passed = [n for n in columns if n not in space.by_name and (n in findings or n.startswith("margin_"))]
    named = [name for name in columns if name not in passed]
    for name in named:
        if name not in space.settable:
            hint = suggestion(name, space.settable)
            raise DseError(f"{path}: column {shortened(name)!r}: not a name of space {space.name}{hint}")
    if not named or not len(frame):
        raise DseError(f"{path}: holds no designs; expected a row for each, in columns named as parameters")
    if passed:
        note(f"{path}: results among its columns are not read: {', '.join(map(str, passed[:6]))}"
             + (f" and {len(passed) - 6} more" if len(passed) > 6 else ""))  # fmt: skip
    return {name: _values(space, path, name, frame[name].tolist()) for name in named}, len(frame)


def _frame(path: Path) -> pd.DataFrame:
    """The file as a table; of text, cells as they are written."""
    import pandas as pd

    if (ending := path.suffix.lower()) not in (".csv", ".parquet"):
        raise ParameterError(f"{{designs}} {path}: expected a .csv or a .parquet file")
    content = file_bytes(path)
    try:
        if ending == ".parquet":
            return _parquet(BytesIO(content))
        if content.count(b",") + content.count(b"\n") > MOST_CELLS:
            raise ValueError(f"more than {MOST_CELLS:,} cells")
        if max((line.count(b",") for line in BytesIO(content)), default=0) > MOST_COLUMNS:
            raise ValueError(f"more than {MOST_COLUMNS:,} columns")
        return pd.read_csv(BytesIO(content), dtype=str, keep_default_na=False, skipinitialspace=True)
    except OSError as error:
        raise DseError(f"{path}: {error.strerror or error}") from None
    except (ValueError, TypeError, ArithmeticError, LookupError, NotImplementedError) as error:
        words = " ".join(str(error).split()) or type(error).__name__
        raise DseError(f"{path}: not a table that can be read ({shortened(words)})") from None


def _parquet(content: BytesIO) -> pd.DataFrame:
    """The columns of numbers, words and truth values of a Parquet file.

    Raises an error of a reader if it is none, has a column of something else, or more than `MOST_CELLS`.
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
        # Metadata of pandas is not read: it decides types, too.
        table = file.read()
        table.validate(full=True)  # texts in UTF-8, too
        frame: pd.DataFrame = table.to_pandas(ignore_metadata=True)
        return frame.drop(columns=[name for name in frame.columns if str(name).startswith("__index_level_")])
    except lib.ArrowException as error:  # not all are errors of Python's kinds
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
            raise DseError(f"{path}: row {row}: {shortened(str(error))}") from None
    return [known[cell] for cell in cells]
