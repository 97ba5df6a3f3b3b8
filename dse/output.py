"""Results as text, as JSON records, and as files of tables.

Numbers and designs have one spelling in all reports. JSON records and tables have the same keys, whose names end in
their units; tables are written as CSV or Parquet, in pieces, and appear whole or not at all. Rows of a study's table
are selected by condition, order and number.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TextIO

import numpy as np
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from costmodel.columns import BoolArray, layout_of, short_repr
from costmodel.errors import DseError, ParameterError, printable, suggestion
from costmodel.formats.quantity import exact, readable
from costmodel.steps.breakdown import Breakdown, with_unit_suffix
from dse.pricing.evaluated import RECORD_KEYS, rules_for
from dse.pricing.evaluation import evaluate, with_kernels
from dse.spaces.formulas.expressions import Expression
from dse.spaces.sections.parameters import keyed
from dse.spaces.space import FOCUS, Space

if TYPE_CHECKING:
    import pandas as pd

    from dse.searching.exact.exact_front import ExactFront
    from dse.searching.study import BaseStudy
    from dse.searching.trials.trial_table import Selection, TrialTable
    from dse.spaces.sections.parameters import Parameter

#: One design, nested as in JSON: params, derived, values, margins, breakdown, and perhaps its trial.
Record = Mapping[str, Any]

#: A report to read: its pieces, from top to bottom.
Report = list[RenderableType]
#: Rows of a table in a report, unless all are asked for.
ROWS_SHOWN: Final = 10

#: Step time of a breakdown, and the expected one, an objective of plans.
STEP_TIME, EXPECTED_TIME = "step_time_s", "step_time_expected_s"

#: Width of output to a file or another program. [characters]
PLAIN_WIDTH = 100

#: SI unit of every breakdown column, by its name in tables.
UNITS = {with_unit_suffix(name): unit for name, unit in layout_of(Breakdown).units.items()}


def ranked_time(record: Record) -> float:
    """Step time that ranks a design: the expected one in plans, else the predicted one. [s]"""
    time: float = record["values"].get(EXPECTED_TIME, record["breakdown"].get(STEP_TIME, math.nan))
    return time


def ranked_rate(record: Record, name: str) -> float:
    """Rate of a design at its `ranked_time`, such as ``mfu``; 0 if the breakdown has none. [1/s], [-]"""
    rate: float = record["breakdown"].get(name, 0.0)
    expected = record["values"].get(EXPECTED_TIME)
    return rate * record["breakdown"][STEP_TIME] / expected if expected else rate


class SafeConsole(Console):
    """A console on which no name that is shown can steer the terminal."""

    def render_str(self, text: str, **options: Any) -> Text:
        """A text with its terminal control characters escaped."""
        return super().render_str(printable(text), **options)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of the output, with control characters escaped in those that come as `Text` too."""
        for piece in super().render(renderable, options):
            yield piece if piece.control else Segment(printable(piece.text), piece.style)


def console(stream: TextIO) -> Console:
    """Console as wide as the terminal; elsewhere of plain text, as wide as `plain_width`."""
    if stream.isatty():
        return SafeConsole(file=stream, highlight=False, markup=False, emoji=False)
    return plain_console(stream, plain_width())


def plain_width() -> int:
    """Width of a pipe: ``$COLUMNS``, else of the terminal behind it, at most `PLAIN_WIDTH`. [characters]"""
    wanted = os.environ.get("COLUMNS", "")
    if wanted.isascii() and wanted.isdecimal() and len(wanted) <= 4 and int(wanted) > 0:
        return int(wanted)
    for number in (2, 0):  # a pager reads stdout of a command whose messages and keys are of the terminal
        with suppress(OSError):
            return min(os.get_terminal_size(number).columns or PLAIN_WIDTH, PLAIN_WIDTH)
    return PLAIN_WIDTH


def plain_console(stream: TextIO, width: int) -> Console:
    """A console without colour."""
    return SafeConsole(file=stream, width=width, highlight=False, markup=False, emoji=False, color_system=None)


def show(stream: TextIO, report: Callable[[int], Iterable[RenderableType]]) -> None:
    """Print a report that is made for the width there is."""
    where = console(stream)
    if where.is_terminal:
        where.print(*report(where.width), sep="\n")
    else:
        stream.write(plain_text(report(where.width), where.width))


def plain_text(shown: Iterable[RenderableType], width: int) -> str:
    """Tables and lines as they are printed where there is no terminal."""
    buffer = io.StringIO()
    plain_console(buffer, width).print(*shown, sep="\n")
    return "\n".join(line.rstrip() for line in buffer.getvalue().splitlines()) + "\n"


def design_text(space: Space, params: Mapping[str, Any], names: Iterable[str] | None = None) -> str:
    """A design as ``--set`` takes it: ``tp=8 pp=16 recompute=full``."""
    chosen = [name for name in params if name in space.by_name] if names is None else names
    return " ".join(f"{name}={parameter_text(space.by_name[name], params[name])}" for name in chosen)


def parameter_text(parameter: Parameter, value: Any) -> str:
    """A parameter's value as ``--set`` reads it back, without the space that would need quotes."""
    number = not isinstance(value, str | bool) and parameter.unit != "-"
    return (exact(value, parameter.unit) if number else parameter.shown(value)).replace(" ", "")


def column_text(record: Record, name: str) -> str:
    """A breakdown column of a design, by its name in tables, with its unit."""
    value = record["breakdown"][name]
    if UNITS[name] == "1/s":
        return f"{value:,.0f}"
    return percent(value) if UNITS[name] == "-" else readable(value, UNITS[name])


def part_name(column: str) -> str:
    """A breakdown column as the name of a part.

    >>> part_name("tp_communication_time"), part_name("weights_memory")
    ('tp communication', 'weights')
    """
    return column.rpartition("_")[0].replace("_", " ")


def percent(share: float) -> str:
    """A share for people.

    >>> percent(0.512), percent(0.0714)
    ('51 %', '7.1 %')
    """
    return f"{share:.0%}".replace("%", " %") if share >= 0.0995 else f"{share:.1%}".replace("%", " %")


def percent_more(ratio: float) -> str:
    """A ratio as a change with its sign.

    >>> percent_more(1.045), percent_more(0.9)
    ('+4.5 %', '-10.0 %')
    """
    return f"{100 * (ratio - 1):+.1f} %"


def bar(share: float, length: int) -> str:
    """A bar in eighths of a character, as long as its share of `length`.

    >>> bar(0.5, 4), bar(0.6, 2), bar(0.001, 4)
    ('██', '█▎', '▏')
    """
    eighths = max(1, round(share * length * 8))
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def counted(number: int, thing: str) -> str:
    """A count with its noun.

    >>> counted(1, "design"), counted(5412, "design")
    ('1 design', '5,412 designs')
    """
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def selected(
    study: BaseStudy, part: Selection, *, where: str | None = None, sort: str | None = None,
    descending: bool = False, top: int | None = None,
) -> TrialTable:  # fmt: skip
    """The front or the trials of a study, filtered by a condition, sorted by a column and cut to `top` rows. [-]

    `where` is a condition on columns, such as ``"step_time < 15 s"``; infeasible designs may satisfy it, too. `sort` is
    a column with or without its unit. Raises `DseError` if the condition is invalid, or a column is unknown.
    """
    table = study.table.front() if part == "front" else study.table
    if where and len(table):
        table = table.take(np.flatnonzero(satisfied(study, table, where)))
    if sort and len(table):
        frame = table.to_frame()
        names = column_names(study.space, frame)
        if sort not in names:
            raise ParameterError(f"{{sort}}: {sort}: no column of this study{suggestion(sort, names)}")
        order = frame[names[sort]].reset_index(drop=True).sort_values(ascending=not descending, kind="stable")
        table = table.take(order.index.to_numpy())
    return table if top is None else table.take(np.arange(min(top, len(table))))


def satisfied(study: BaseStudy, table: TrialTable, condition: str) -> BoolArray:
    """(trials,) True for the designs of a table that satisfy a condition. [-]"""
    space, trials = study.space, [{"params": params} for params in table.designs()]
    if names_solved(space, condition):  # a sampled space has these names as parameters
        solved = {"sharding" if parameter.words else "tiling" for parameter in space.solved}
        trials, space = with_kernels(space, trials), space.set_to(dict.fromkeys(sorted(solved), "sample"))
    space = space.focused(condition)
    designs = space.encode([trial["params"] for trial in trials])
    known = space.known_values(designs)
    for rule in space.rules:
        if rule.name == FOCUS:  # a condition on parameters alone
            margin, _ = rule.formula.margins(known)
            return np.broadcast_to(margin >= 0, len(table))
    margins = evaluate(space, designs, rules=rules_for(space, study.profile)).margins
    index = [limit.name for limit in space.limits].index(FOCUS)
    return np.asarray(margins[:, index] >= 0)


def names_solved(space: Space, condition: str) -> bool:
    """True if a condition names shardings or tiles that are solved for each design."""
    try:
        named = Expression.parse(condition).names
    except DseError:  # `Space.focused` reports the error
        return False
    return not named.isdisjoint(parameter.name for parameter in space.solved)


def column_names(space: Space, frame: pd.DataFrame) -> dict[str, str]:
    """Name of a column, with or without its unit -> the name in a table of a study."""
    known = {str(column): str(column) for column in frame.columns}
    units = UNITS | {objective.key: objective.unit for objective in space.objectives}
    units |= {limit.key: limit.unit for limit in space.limits}
    return {bare_name(key, unit): key for key, unit in units.items() if key in known} | known


def bare_name(key: str, unit: str) -> str:
    """A name in tables without its unit."""
    suffix = keyed("", unit)
    return key.removesuffix(suffix) if suffix else key


@dataclass(frozen=True)
class Artefact:
    """A file, and notes on problems that its reader may meet."""

    __repr__ = short_repr

    #: Of a file, or of several by name; None where the design has no such file, and the notes say why.
    content: bytes | Mapping[str, bytes] | None
    notes: tuple[str, ...]
    differs: bool = False  #: whether its run needs another amount of memory than the design


#: Keys of one design in JSON, in order: of a trial, and of a design that was evaluated for itself.
DESIGN_KEYS = (
    *("trial", "winner", "params", "layouts", "values", "margins", "run", "breakdown"),
    *("before", "designs_priced", *RECORD_KEYS),
)
EVALUATION_KEYS = (
    *("feasible", "given", "params", "derived", "layouts", "values", "margins", "run", "breakdown"),
    *RECORD_KEYS,
)

#: Column of a study's tables that is of the run and not of the design.
COMPLETED: Final = "completed"


def study_record(study: BaseStudy, part: Selection = "front") -> dict[str, Any]:
    """A study as one JSON object: its name and settings, its progress, and its front or its trials."""
    shown = study.table.front() if part == "front" else study.table
    return {
        **study_summary(study),
        part: [design_record(record) for record in with_kernels(study.space, shown.records())],
    }


def study_summary(study: BaseStudy) -> dict[str, Any]:
    """Summary of a study, with its progress."""
    table = study.table
    return {
        "study": study.name,
        "space": study.space.name,
        "directions": {objective.key: objective.direction for objective in study.space.objectives},
        "n_complete": len(table),
        "n_infeasible": int((~table.feasible).sum()),
        "n_designs_priced": study.designs_priced,
        "hypervolume": study.hypervolume,
        **({"runs": [run.to_json() for run in runs]} if (runs := study.told_runs()) else {}),
    }


def exact_record(exact: ExactFront) -> dict[str, Any]:
    """The exact front of a space as one JSON object."""
    return {
        "space": exact.space.name,
        "directions": {objective.key: objective.direction for objective in exact.space.objectives},
        "n_legal": exact.legal,
        "n_priced": exact.evaluated,
        "proof": exact.proof,
        **({"partial": True} if exact.is_partial else {}),
        "n_infeasible": exact.infeasible,
        "broken": exact.broken,
        "best": exact.best,
        "front": [design_record(record) for record in with_kernels(exact.space, exact.records())],
    }


def design_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Record of a design, with the keys of the JSON contract alone."""
    return {key: record[key] for key in DESIGN_KEYS if key in record}


def json_text(value: Any) -> str:
    """JSON that every reader accepts: a number that is not finite becomes null."""
    return json.dumps(only_finite(value), indent=2, allow_nan=False)


def json_line(value: Any) -> str:
    """The JSON of `json_text` in one line."""
    try:
        return json.dumps(value, allow_nan=False)
    except ValueError:
        return json.dumps(only_finite(value), allow_nan=False)


def only_finite(value: Any) -> Any:
    """Nested value with None for numbers that JSON cannot represent."""
    if isinstance(value, Mapping):
        return {key: only_finite(item) for key, item in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [only_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def encoded(study: BaseStudy, shown: TrialTable, part: Selection, form: str) -> Iterator[bytes]:
    """The front or the trials as a "csv", "json" or "parquet" file, piece by piece."""
    if form == "json":
        return json_object(study_summary(study), part, design_texts(study, shown))
    return table_pieces(timeless(shown.frames()), form)


def timeless(frames: Iterable[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    """Tables without the moments at which trials were finished: the same search writes the same bytes."""
    return (frame.drop(columns=COMPLETED) for frame in frames)


def json_object(
    head: Mapping[str, Any], key: str, items: Iterable[str], tail: Callable[[], Mapping[str, Any]] = dict
) -> Iterator[bytes]:
    """One JSON object in pieces: `head`, a list of JSON texts, then `tail`, which is known once all items are."""
    yield json_text({**head, key: []}).removesuffix("]\n}").encode()
    separator = ""
    for text in items:
        yield f"{separator}\n    {text}".encode()
        separator = ","
    more = "".join(f",\n  {json.dumps(name)}: {json.dumps(value)}" for name, value in tail().items())
    yield ("\n  ]" if separator else "]").encode() + f"{more}\n}}\n".encode()


def design_texts(study: BaseStudy, shown: TrialTable) -> Iterator[str]:
    """Designs as JSON, one by one, each in a line."""
    for block in shown.blocks():
        for record in with_kernels(study.space, block.records()):
            yield json_line(design_record(record))


def table_pieces(frames: Iterable[pd.DataFrame], form: str) -> Iterator[bytes]:
    """A table, in pieces of the same columns, as a "csv" or a "parquet" file."""
    return csv_pieces(frames) if form == "csv" else parquet_pieces(frames)


def csv_pieces(frames: Iterable[pd.DataFrame]) -> Iterator[bytes]:
    """A table, in pieces of the same columns, as CSV: numbers in full, true and false, times in UTC."""
    import pyarrow as pa
    from pyarrow import compute, csv

    for index, frame in enumerate(frames):
        if index == 0:
            yield f"{','.join(map(str, frame.columns))}\n".encode()
        table = pa.Table.from_pandas(frame, preserve_index=False)
        words = [column for column in table.columns if str(column.type) in ("string", "large_string")]
        special = any(compute.any(compute.match_substring_regex(word, '[",\r\n]')).as_py() for word in words)
        buffer = pa.BufferOutputStream()
        options = csv.WriteOptions(include_header=False, quoting_style="needed" if special else "none")
        csv.write_csv(table, buffer, options)
        yield buffer.getvalue().to_pybytes()


def parquet_pieces(frames: Iterable[pd.DataFrame]) -> Iterator[bytes]:
    """A table, in pieces of the same columns, as Parquet, which is small enough to be held whole."""
    import pyarrow as pa
    from pyarrow import parquet

    buffer, writer = pa.BufferOutputStream(), None
    for frame in frames:
        table = pa.Table.from_pandas(frame, preserve_index=False, schema=writer and writer.schema)
        writer = writer or parquet.ParquetWriter(buffer, table.schema)
        writer.write_table(table)
    if writer is not None:
        writer.close()
        yield buffer.getvalue().to_pybytes()


def write_study(study: BaseStudy, directory: Path) -> None:
    """Write front, trials and hypervolume history of a study, and its summary.

    Raises `DseError` if a file cannot be written; no half-written file stays behind.
    """
    writable_directory(directory)
    for name, table in (("pareto", study.table.front()), ("trials", study.table)):
        write_file(directory / f"{name}.csv", csv_pieces(timeless(table.frames())))
        write_file(directory / f"{name}.parquet", parquet_pieces(timeless(table.frames())))
    write_file(directory / "hypervolume.csv", csv_pieces([study.hypervolume_history()]))
    write_file(directory / "study.json", encoded(study, study.table.front(), "front", "json"))


def writable_directory(directory: Path) -> None:
    """Create a folder, and make sure that files can be written there.

    Raises `DseError` if they cannot.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DseError(f"{directory}: cannot be created ({error.strerror}); name another folder") from None
    if not os.access(directory, os.W_OK | os.X_OK):
        raise DseError(f"{directory}: cannot be written; change its permissions, or name another folder")


class NotWritten(DseError):
    """A file cannot be written: `failure` says which, and why."""

    def __init__(self, failure: str) -> None:
        super().__init__(f"{failure}; studies are not affected, name another place")
        self.failure = failure


def write_file(path: Path, content: bytes | Iterable[bytes]) -> None:
    """Write a file, in one piece or several, whole or not at all.

    It is written under a name that no other process has, and then takes its place: of several who write
    one file the last wins, and a link in its place is replaced, not followed.

    Raises `NotWritten` if it cannot be written.
    """
    special = path.exists() and not path.is_file()  # such as /dev/stdout
    pieces = [content] if isinstance(content, bytes) else content
    try:
        if special:
            with path.open("wb") as file:
                file.writelines(pieces)
        else:
            from dse.storage.atomic_files import write_beside

            write_beside(path, pieces, durable=True)
    except BrokenPipeError:  # the reader has seen enough
        raise
    except OSError as error:
        raise NotWritten(f"{path}: cannot be written ({error.strerror})") from None
