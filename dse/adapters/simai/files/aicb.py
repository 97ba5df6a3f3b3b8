"""AICB workload files, which SimAI and ASTRA-sim read: text <-> a `StepRows` with its header; and SimAI's EndToEnd.csv.

A header of tokens, the number of rows, and rows of 12 fields: a name, a dependency that is always -1, then
time [ns], collective and size [B] of each pass, and a delay [ns]. Sizes are of the whole tensor. In EndToEnd.csv, the
report of the simai profile, times are in microseconds, bandwidths in the unit of the revision. Where a number is not
finite SimAI writes "NaN or Inf", and so does this.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.columns import FloatArray
from costmodel.errors import DseError, suggestion
from costmodel.formats.input_files import Source, data_beside, exact_text, plain_text
from dse.adapters.simai.bandwidth import REVISIONS, Revision
from dse.adapters.simai.time import ALL_REDUCE, SimaiReport, raised, silent
from dse.adapters.simai.workload_rows import COLLECTIVES, DEFAULT_GROUPS, GROUPS, Parallelism, StepRows

#: Training loops: the first word of a file. A micro-benchmark has no parallelism and no tokens.
TRAINING, MICRO = "HYBRID_TRANSFORMER_FWD_IN_BCKWD", "MICRO"

TP, EP, PP, VPP, GA = "model_parallel_NPU_group", "ep", "pp", "vpp", "ga"
GPUS, PP_COMM, CHECKPOINTS, INITIATES = "all_gpus", "pp_comm", "checkpoints", "checkpoint_initiates"

#: Tables of `tables.yaml`, which describes each; a collective is spelled without its suffix.
TABLES: Final = data_beside(__file__, "tables.yaml")
TOKENS: Final[Mapping[str, str]] = TABLES["tokens"]
SPELLED: Final = dict(zip(TABLES["spelled"], COLLECTIVES, strict=True))
#: Suffix of a group that is not the usual one of its pass.
SUFFIXES: Final = {"_DP_EP": "dp_ep", "_EP": "ep"}
KNOWN: Final = ("NONE", *(kind + suffix for kind in [*SPELLED][1:] for suffix in ("", *SUFFIXES)))

FIELDS: Final = 12
#: Numbers as rows have them, of no more digits than they need; and as AICB's divisions print them.
_WHOLE: Final = re.compile(r"[0-9]{1,40}")
_DECIMAL: Final = re.compile(r"[0-9]{1,40}(?:\.[0-9]{0,40})?")
#: Numbers from here on are not exact in seconds and back. [ns], [B]
TOO_LARGE: Final = 2.0**50
#: Largest file and header [B], and most different rows and lines of a file.
LARGEST, LONGEST_HEADER, MOST_ROWS, MOST_LINES = 64 << 20, 1 << 20, 200_000, 24_000_000


@dataclass(frozen=True)
class _Row:
    """A row as a file has it."""

    name: str
    times: tuple[float, ...]
    collectives: tuple[int, ...]
    groups: tuple[int, ...]
    sizes: tuple[float, ...]
    delay: float


class AicbReader(Source):
    """Reads the parts of a file and notes every mistake with its line."""

    def header(self, line: str) -> tuple[str, dict[str, str]]:
        """Training loop and tokens, from the first line."""
        loop, *words = line.split() or [""]
        if loop not in (TRAINING, MICRO):
            self.note(1, f"{loop!r}: expected a training loop, {TRAINING} or {MICRO}")
        tokens: dict[str, list[str]] = {}
        current: list[str] | None = None
        for word in words:
            if word.endswith(":") or word == PP_COMM:
                if word in tokens:
                    self.note(1, f"{word} given twice")
                current = tokens[word] = []
            elif current is None:
                self.note(1, f"{word!r}: expected a token with a colon, such as '{TP}: 8'")
            else:
                current.append(word)
        return loop, {token: " ".join(values) for token, values in tokens.items()}

    def rows(self, lines: Iterator[str]) -> list[_Row]:
        """Every row, from the second line on, their number; equal lines are read once, and empty ones hold nothing."""
        known: dict[str, _Row] = {}
        rows: list[_Row] = []
        rows_read, written = 0, next(lines, "").strip()
        for number, line in enumerate(lines, start=3):
            if not line.strip():
                continue
            rows_read, before = rows_read + 1, len(self.mistakes)
            row = known.get(line) or self.row(number, line)
            if row is not None:
                rows.append(row)
                if len(self.mistakes) == before:
                    known[line] = row
            if len(known) > MOST_ROWS:
                raise DseError(f"{self.name}: more than {MOST_ROWS:,} different rows")
        if not _WHOLE.fullmatch(written) or float(written) == 0:
            self.note(2, f"{written!r}: expected the number of rows, at least 1")
        elif float(written) != rows_read:
            self.note(2, f"{written} rows are declared, and {rows_read} are there")
        return rows

    def row(self, number: int, line: str) -> _Row | None:
        """Row of a line, checked field by field; None where it does not have the fields of one."""
        fields = line.split()
        if len(fields) != FIELDS:
            self.note(number, f"{len(fields)} fields; expected {FIELDS}")
            return None
        if fields[1] != "-1":
            self.note(number, f"dependency: {fields[1]!r}: expected -1, the only one that is understood")
        codes = [self.collective(number, column, fields[column]) for column in (3, 6, 9)]
        groups = [
            code[1] if code[1] >= 0 else GROUPS.index(usual) for code, usual in zip(codes, DEFAULT_GROUPS, strict=True)
        ]
        return _Row(
            fields[0],
            tuple(1e-9 * self.whole(number, column, fields[column], _WHOLE, "ns") for column in (2, 5, 8)),
            tuple(code[0] for code in codes),
            tuple(groups),
            tuple(self.whole(number, column, fields[column], _DECIMAL, "bytes") for column in (4, 7, 10)),
            1e-9 * self.whole(number, 11, fields[11], _WHOLE, "ns"),
        )

    def collective(self, number: int, field: int, word: str) -> tuple[int, int]:
        """Codes of a collective and of its group, -1 for the usual one of the pass."""
        if word not in KNOWN:
            self.note(number, f"field {field + 1}: {word!r}: unknown collective{suggestion(word, KNOWN)}")
            return 0, -1
        suffix = next((suffix for suffix in SUFFIXES if word.endswith(suffix)), "")
        code = COLLECTIVES.index(SPELLED[word.removesuffix(suffix)])
        return code, GROUPS.index(SUFFIXES[suffix]) if suffix else -1

    def whole(self, number: int, field: int, word: str, digits: re.Pattern[str], unit: str) -> float:
        """A whole number of ns or bytes; AICB's divisions leave a fraction of a byte, which does not count."""
        if not digits.fullmatch(word) or float(word) >= TOO_LARGE:
            self.note(number, f"field {field + 1}: {word!r}: expected a whole number of {unit} from 0 to 2^50")
            return 0.0
        return float(np.floor(float(word)))

    def layout(self, loop: str, tokens: Mapping[str, str], rows: list[_Row]) -> Parallelism:
        """The parallelism, as far as the header tells it."""
        needed = [TP, PP] if loop == TRAINING else []
        if any(row.groups[2] == GROUPS.index("dp_ep") for row in rows):
            needed.append(EP)
        for token in needed:
            if token not in tokens:
                where = " where a collective ends in _DP_EP" * (token == EP)
                self.note(1, f"{token}: missing; every reader needs it{where}")
        for token in (CHECKPOINTS, INITIATES):
            self.marks(token, tokens.get(token, "0"))
        columns: dict[str, Any] = {"tp": np.nan, "pp": np.nan}
        for token, column in TOKENS.items():
            if token in tokens:
                columns[column] = self.token(token, tokens[token])
        return Parallelism.of(**columns).map(np.atleast_1d)

    def marks(self, token: str, written: str) -> None:
        """Check a token that says how many rows it names, and which."""
        count, *rows = written.split() or [""]
        if not all(map(_WHOLE.fullmatch, (count, *rows))) or float(count) != len(rows):
            self.note(1, f"{token}: {written!r}: expected a count and as many rows, such as '1 6', or 0")

    def token(self, token: str, written: str) -> float:
        """Value of a token; a size may be written with a decimal point."""
        lowest = 0 if token == PP_COMM else 1
        value = float(written) if _DECIMAL.fullmatch(written) else np.nan
        if not (lowest <= value < TOO_LARGE) or (token != PP_COMM and not value.is_integer()):
            self.note(1, f"{token}: {written!r}: expected a whole number from {lowest}")
        return float(np.floor(value))


def template_of(rows: list[_Row], layout: Parallelism) -> StepRows:
    """A template in which every row occurs once."""

    def table(values: list[Any], kind: Any = np.float64) -> Any:
        return np.array(values, dtype=kind).reshape(1, len(rows), -1)

    once: FloatArray = np.ones(1)
    return StepRows(
        names=tuple(row.name for row in rows),
        sections=("prologue",) * len(rows),
        time=table([row.times for row in rows]),
        collective=table([row.collectives for row in rows], np.intp),
        group=table([row.groups for row in rows], np.intp),
        message_bytes=table([row.sizes for row in rows]),
        delay=np.array([[row.delay for row in rows]]),
        present=np.ones((1, len(rows))),
        layers=once,
        micro_batches=once,
        layout=layout,
    )


#: Tokens of a header in order. Old readers go by the position, new ones by name; both understand this order.
HEADER: Final = (TP, EP, PP, VPP, GA, GPUS, CHECKPOINTS, INITIATES, PP_COMM)

#: Revision of SimAI -> tokens that its reader cannot do without. The first one goes by their places.
REQUIRED: Final[Mapping[str, tuple[str, ...]]] = {
    "simai-2024-10": (TP, EP, PP, GA, GPUS),
    "simai-2024-12": (TP, PP),
    "simai-2025-07": (TP, PP),
}


@dataclass(frozen=True, kw_only=True)
class WorkloadFile:
    """One workload, and the header it has in a file."""

    loop: str
    words: Mapping[str, str]  #: token, with its colon if it has one -> value as written; all are kept
    workload: StepRows  #: of one design
    text: str  #: the file; of one that was read, to the byte

    @property
    def tokens(self) -> dict[str, str]:
        """Token -> value as written, in order."""
        return {word.removesuffix(":"): value for word, value in self.words.items()}

    @property
    def executed(self) -> StepRows:
        """The rows as SimAI runs them: recomputed rows count in the forward time.

        Before the backward pass over the row that `checkpoint_initiates` names, the forward pass runs again from the
        nearest row that `checkpoints` names. Of several rows SimAI reads the first, and it repeats no communication.
        """
        starts, end = self._marked(CHECKPOINTS), self._marked(INITIATES)
        if not starts or not end or not starts[0] < end[0] < len(self.workload.names):
            return self.workload
        time = self.workload.time.copy()
        time[:, starts[0] : end[0], 0] *= 2
        return replace(self.workload, time=time)

    def _marked(self, token: str) -> list[int]:
        """Rows that a token names, counted from 0."""
        count, *rows = self.tokens.get(token, "0").split() or ["0"]
        return [int(row) for row in rows] if count != "0" else []


def load_workload(path: Path) -> WorkloadFile:
    """The workload that a file holds.

    Raises `DseError` with one line for each mistake in the file.
    """
    return read_workload(exact_text(path, "an AICB workload", largest=LARGEST), str(path))


def read_workload(text: str, name: str) -> WorkloadFile:
    """The workload in a text; messages call it `name`.

    Raises `DseError` with one line for each mistake.
    """
    if text.count("\n") > MOST_LINES:
        raise DseError(f"{name}: more than {MOST_LINES:,} lines")
    lines, reader = (line[0] for line in re.finditer("^.*$", plain_text(text), re.MULTILINE)), AicbReader(name)
    if len(header := next(lines)) > LONGEST_HEADER:
        raise DseError(f"{name}:1: a header of {len(header):,} characters; at most {LONGEST_HEADER:,} are read")
    loop, words = reader.header(header)
    rows = reader.rows(lines)
    layout = reader.layout(loop, {word.removesuffix(":"): value for word, value in words.items()}, rows)
    reader.finish()
    return WorkloadFile(loop=loop, words=words, workload=template_of(rows, layout), text=text)


def workload_file(workload: StepRows, *, point: int = 0) -> WorkloadFile:
    """The workload of one design, number `point` [-]."""
    workload_of_point = workload.take(np.array([point]))
    values = {token: getattr(workload_of_point.layout, name)[0] for token, name in TOKENS.items()}
    words = {f"{token}:": str(int(values.get(token, 0))) for token in HEADER}
    rows = row_lines(workload_of_point)
    first = " ".join((TRAINING, *(f"{word} {value}" for word, value in words.items())))
    text = "\n".join([first, str(len(rows)), *rows, ""])
    return WorkloadFile(loop=TRAINING, words=words, workload=workload_of_point, text=text)


def row_lines(workload: StepRows) -> list[str]:
    """Every row of one design's step as the file has it."""
    point = 0
    times, sizes, delays = (
        np.rint(values[point] * scale).astype(np.int64).tolist()
        for values, scale in ((workload.time, 1e9), (workload.message_bytes, 1.0), (workload.delay, 1e9))
    )
    words = spelled(workload)
    lines = []
    for name, time, word, size, delay in zip(workload.names, times, words, sizes, delays, strict=True):
        passes = [f"{t}\t{w}\t{s}" for t, w, s in zip(time, word, size, strict=True)]
        lines.append("\t".join([name, "-1", *passes, str(delay)]))
    return [lines[row] for row in workload.unrolled(point).tolist()]


def spelled(workload: StepRows) -> list[list[str]]:
    """Collectives of the first design's rows and passes, as files spell them."""
    kinds, suffixes = list(SPELLED), {group: suffix for suffix, group in SUFFIXES.items()}
    return [
        [kinds[kind] + (suffixes.get(GROUPS[group], "") if kind else "") for kind, group in zip(*both, strict=True)]
        for both in zip(workload.collective[0].tolist(), workload.group[0].tolist(), strict=True)
    ]


#: Columns of the summary, and of the first revision's, with the totals that they hold.
SUMMARY: Final[Mapping[str, str]] = TABLES["summary"]
FIRST_SUMMARY: Final[Mapping[str, str]] = TABLES["first_summary"]

#: Places of forward, weight gradient and activation gradient: the order of the file's columns.
ORDER: Final = (0, 2, 1)


def endtoend_csv(report: SimaiReport, name: str, *, revision: str) -> str:
    """SimAI's text about the first workload of a report, for a run of this name.

    `revision` is a key of `REVISIONS`: the first one writes six decimals, and its summary last.
    """
    rules = REVISIONS[revision]
    totals = {key: float(values[0]) * 1e6 for key, values in report.totals.columns().items()}
    rows = row_table(report, name, rules)
    if not rules.overlaps:
        summary = ",".join(f"{title},{totals[key]:f}" for title, key in FIRST_SUMMARY.items())
        return "\n".join([*rows, summary, ""])
    whole = totals["total_time"]
    cells = [f"{shown(totals[key])} ({100 * totals[key] / whole:.2f}%)" for key in SUMMARY.values()]
    cells[-1] = shown(whole)
    head = ", ".join(["File name", *SUMMARY])
    return "\n".join([head, ", ".join([name, *cells]), *rows, ""])


def row_table(report: SimaiReport, name: str, rules: Revision) -> list[str]:
    """The heading of the rows, and every row in the order of the step."""
    bandwidths = "algbw,busbw"
    ways = ("fwd", "wg", "ig")
    head = ["layer_name", name, *(f"{way} compute" for way in ways), *(f"{way} exposed comm" for way in ways)]
    head += [f"{way} total comm,{bandwidths}" for way in ways]
    compute = np.rint(report.workload.time[0] * 1e9) / 1e3
    exposed, took = report.exposed[0] / 1e3, report.communication[0] / 1e3
    algbw, busbw = reached_bandwidths(report, took, rules)
    lines = []
    for row, title in enumerate(report.workload.names):
        cells = [title, name, *(number(values[row, at], rules) for values in (compute, exposed) for at in ORDER)]
        for at in ORDER:
            cells.append(number(took[row, at], rules))
            cells += [number(values[row, at], rules, decimals=2) for values in (algbw, busbw)]
        lines.append(",".join(cells))
    order = report.workload.unrolled(0).tolist()
    if rules.overlaps:
        return [",".join(head), *(lines[row] for row in order)]
    end = f",{float(report.totals.total_compute_time[0]) * 1e6:f}"
    return [",".join([*head, "workload finished at"]), *(lines[row] + end for row in order)]


def reached_bandwidths(report: SimaiReport, took: FloatArray, rules: Revision) -> tuple[FloatArray, FloatArray]:
    """(rows, passes) Message over time, and the part over a link; in single precision, as in SimAI."""
    workload = report.workload
    kind, size = workload.collective[0], report.group_size[0]
    message = raised(workload.message_bytes[0], np.arange(3), rules)
    with np.errstate(divide="ignore", invalid="ignore"):
        algbw = (message / took * 1e6 / rules.bandwidth_unit).astype(np.float32).astype(np.float64)
        twice = np.where(kind == ALL_REDUCE, 2.0, 1.0)
        busbw = np.where(silent(kind), 0.0, algbw * twice * (size - 1) / size)
    return algbw, busbw.astype(np.float32).astype(np.float64)


def number(value: float, rules: Revision, *, decimals: int = 0) -> str:
    """A number of a row."""
    places = decimals if rules.overlaps else 6
    return f"{value:.{places}f}" if places else shown(value)


def shown(value: float) -> str:
    """A whole number of microseconds."""
    return f"{value:.0f}" if np.isfinite(value) else "NaN or Inf"
