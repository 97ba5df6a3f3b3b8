"""Tables of measurements: CSV files, a row for each run, layer, memory or kernel that somebody measured.

Rows come from papers, logs and vendors, so that cells have many words for one thing; `words.yaml` has patterns of these
words and their meanings. An empty cell means that the source does not say: a default then takes its place, and is
reported. A row with a mistake is kept, with the cell and the expected text, so that it does not hide the others.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError, suggestion
from costmodel.formats import shipped
from costmodel.formats.input_files import data_beside, read_text
from costmodel.formats.quantity import plain_number
from costmodel.rules.registry import all_columns

#: Meanings of the words of rows, by column.
WORDS: Final[Mapping[str, Any]] = data_beside(__file__, "words.yaml")

#: Built-in tables, in the order in which they are shown: published figures, and those of `benchmarks/measure_steps.py`.
SHIPPED: Final = tuple(
    Path(__file__).parent / "data" / name
    for name in ("steps.csv", "runs.csv", "vendors.csv", "memory.csv", "one_gpu.csv")
)

#: Types of rows.
ROW_TYPES: Final = (
    *("train_step", "layer_time", "memory"),
    *("kernel_gemm", "kernel_grouped", "kernel_stream", "kernel_attention", "kernel_coll"),
)

#: Columns without which a table says nothing.
NEEDED: Final = {"row_type": f"one of {', '.join(ROW_TYPES)}", "dataset": "a name of rows that belong together"}

#: Rows that a table may have. [-]
MOST_ROWS: Final = 20_000

#: Larger numbers than anything that is measured are slips: of layers, and of anything else.
MOST_LAYERS: Final = 1e4
LARGEST: Final = 1e18
#: Smaller ones than this, and not 0, are too.
SMALLEST: Final = 1e-18


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredRow:
    """A row of a table of measurements: a field for each column that is read.

    An empty cell is an empty text, or the default of its column; 0 means that the row does not state it. Times are in
    seconds except `latency_us`, rates in the units that the names of columns give.
    """

    line: int = 0  #: of the file, the heading is 1
    mistake: str = ""  #: cells that are not understood, and the text that is expected there
    id: str = ""
    group: str = ""  #: runs of one model, batch and number of nodes, as `dse tune --replay` has them
    row_type: str
    dataset: str
    framework: str = ""  #: software and its release, such as megatron_core@25.11
    source: str = ""
    notes: str = ""
    hw: str = ""  #: name in tables, or a built-in system
    hw_mem_gb: float = 0.0
    gpus_per_node: float = 0.0
    inter_node: str = ""
    model: str = ""
    layers: float = 0.0
    hidden: float = 0.0
    heads: float = 0.0
    kv_heads: float = 0.0
    ffn: float = 0.0
    gated: float = 0.0
    seq: float = 0.0
    vocab: float = 0.0
    moe_experts: float = 0.0
    moe_topk: float = 0.0
    moe_ffn: float = 0.0
    attn_kernel: str = ""
    gpus: float = 0.0
    tp: float = 0.0
    pp: float = 0.0
    vpp: float = 0.0
    cp: float = 1.0
    ep: float = 1.0
    dp: float = 0.0
    mbs: float = 0.0
    gbs: float = 0.0
    ga: float = 0.0
    recompute: str = ""
    seq_par: float = -1.0  #: 0 or 1; below 0, the row does not say
    dtype: str = ""
    opt_shard: str = ""
    dp_overlap: str = ""
    tp_overlap: str = ""
    schedule: str = ""
    dispatcher: str = ""
    ep_overlap: str = ""
    cuda_graphs: str = ""
    offload: str = ""
    routing: str = ""  #: of tokens to experts: balanced by force, or learned
    given: str = ""  #: fields of the model and quantities of the system that differ, `name=value ...`
    design: str = ""  #: the whole design, `name=value ...`, instead of the columns from `tp` to `schedule`
    iter_time_s: float = 0.0
    tokens_s_gpu: float = 0.0
    tflops_gpu: float = 0.0
    tflops_kind: str = ""
    mfu: float = 0.0
    mem_gb: str = ""
    mem_kind: str = ""
    op: str = ""
    m: float = 0.0
    n: float = 0.0
    k: float = 0.0
    value_size: float = 0.0  #: width of a head of values, where queries have another
    mask: str = ""  #: "full" for attention that is not causal
    msg_bytes: float = 0.0
    n_ranks: float = 0.0
    latency_us: float = 0.0
    kernel_tflops: float = 0.0
    busbw_gbps: float = 0.0

    @property
    def is_kernel(self) -> bool:
        """True if a row is of a single kernel."""
        return self.row_type in ROW_TYPES and self.row_type.startswith("kernel")


#: Column -> True if it holds numbers; `line` and `mistake` are not columns.
COLUMNS: Final[Mapping[str, bool]] = {f.name: f.type == "float" for f in fields(MeasuredRow)[2:]}


def read_table(path: Path) -> list[MeasuredRow]:
    """The rows of a table of measurements; columns of other names are for people (`unread_columns`).

    A row with a cell that is not understood has its `mistake`.

    Raises `DseError` if the file is no such table.
    """
    heading, lines = csv_cells(path)
    lacking = [name for name in NEEDED if name not in heading]
    if lacking:
        wrong = f"no column {', '.join(lacking)}" if heading else "empty"
        usual = {"row_type": ROW_TYPES[0], "dataset": "mine"}
        raise DseError(
            f"{path}: {wrong}; begin the first line with {','.join(lacking)} and each row of a measured step "
            f"with {','.join(usual[name] for name in lacking)} (docs/validation.md lists all columns)"
        )
    if not lines:
        raise DseError(f"{path}: no rows below its heading; expected one for each measurement")
    if len(lines) > MOST_ROWS:
        raise DseError(f"{path}: {len(lines):,} rows, at most {MOST_ROWS:,} are read; split the table")
    rows = [measured_row(line, heading, cells) for line, cells in lines]
    firsts = {row.id: row for row in reversed(rows)}
    return [row if row is firsts[row.id] else _repeated(row, firsts[row.id]) for row in rows]


def _repeated(row: MeasuredRow, first: MeasuredRow) -> MeasuredRow:
    """A row with the id of an earlier row: its line follows the id, and a copy of all cells is a mistake."""
    copied = f"line {row.line}: the same row as line {first.line}" if replace(row, line=first.line) == first else ""
    return replace(row, id=f"{row.id}:{row.line}", mistake=row.mistake or copied)


def unread_columns(path: Path) -> list[str]:
    """Columns of a table that have names of designs, or of their costs, and are not read; others are for people."""
    taken = {*all_columns(), *shipped.spellings("columns"), "step_time", "step_time_s", "peak_memory"} - {*COLUMNS}
    return [name for name in csv_cells(path)[0] if name.lower() in taken]


def csv_cells(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """Heading of a CSV file, and the number and cells of each line that is not empty.

    Raises `DseError` if it is not a CSV file, or two columns have one name.
    """
    reader = csv.reader(io.StringIO(read_text(path, "a CSV file in UTF-8"), newline=""), strict=True)
    try:
        lines = [(reader.line_num, [cell.strip() for cell in cells]) for cells in reader if any(cells)]
    except csv.Error as error:
        raise DseError(f"{path}: not a CSV file ({error})") from None
    heading = lines[0][1] if lines else []
    if twice := next((name for name in heading if name and heading.count(name) > 1), None):
        raise DseError(f"{path}: column {twice!r}: given twice")
    return heading, lines[1:]


def measured_row(line: int, heading: list[str], cells: list[str]) -> MeasuredRow:
    """Row of a table, with its mistakes."""
    values: dict[str, Any] = {"line": line, "row_type": "", "dataset": ""}
    mistakes = []
    for name, text in zip(heading, cells, strict=False):
        if name not in COLUMNS or text in ("", "unstated"):
            continue
        if wrong := _mistake(name, text):
            mistakes.append(f"{name}: {text!r}: {wrong}")
        if not (wrong and COLUMNS[name]):
            values[name] = float(text) if COLUMNS[name] else text
    mistakes += [f"{name}: empty; expected {said}" for name, said in NEEDED.items() if not values[name]]
    if len(cells) != len(heading):
        mistakes = [f"{len(cells)} cells, expected {len(heading)} as in the heading"]
    mistake = f"line {line}: {'; '.join(mistakes)}" if mistakes else ""
    return MeasuredRow(**{**values, "id": values.get("id") or f"{values['dataset']}:{line}", "mistake": mistake})


def _mistake(name: str, text: str) -> str:
    """The mistake in a cell and the text that is expected there; empty if the cell is right."""
    if name == "row_type" and text not in ROW_TYPES:
        return f"not a type of row{suggestion(text, ROW_TYPES)}"
    if not COLUMNS[name] and name != "mem_gb":
        return ""
    try:
        number = plain_number(text.removeprefix(">") if name == "mem_gb" else text)
    except ValueError:
        return "expected a number" + (", or '>80' for what did not fit" if name == "mem_gb" else "")
    if number < 0:
        return "expected no negative number"
    if name == "mfu" and number > 1:
        return "expected a share of the peak rate, such as 0.42"
    most = MOST_LAYERS if name == "layers" else LARGEST
    return "" if number == 0 or SMALLEST <= number <= most else "expected a number that can be measured"
