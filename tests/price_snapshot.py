"""Prices of some thousands of designs as one commit gave them: our own output, a snapshot and no truth.

A case is a table of designs, drawn once, with what they cost. `python -m tests.price_snapshot` prices them
again and says how far each column moved, in relative size, and in how many rows not to the bit; with
`--keep CASE ...` the new prices of a case are kept, under the commit that made them.
"""

import argparse
import contextlib
import io
import json
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

import dse
from costmodel import DesignPoints, LstmDesign, load_model, load_system, lstm_step, step
from dse.cli import main as command

FOLDER: Final = Path(__file__).parent / "data" / "snapshot"
DEEPFLOW_DOCS: Final = Path(__file__).parents[1] / "docs" / "deepflow.md"

#: Relative size below which two prices are the same: machines differ in the last bits. [-]
TOLERANCE: Final = 1e-13

Table = dict[str, np.ndarray]


def cases() -> dict[str, tuple[Callable[[], pd.DataFrame] | None, Callable[[pd.DataFrame], Table]]]:
    """Name -> functions that draw and price the designs of a case; None where the designs are in the file alone."""
    spaces = {
        "-".join(["space", name, profile, *map(str, pins.values())]): (
            lambda name=name, n=n, pins=pins: drawn_designs(name, n, pins),
            lambda frame, name=name, profile=profile, pins=pins: space_prices(frame, name, profile, pins),
        )
        for name, profile, n, pins in SPACES
    }
    return {
        **spaces,
        "layouts": (None, layout_prices),
        "explicit": (None, layout_prices),
        "lstm": (None, lstm_prices),
        "files": (files, file_figures),
        "exports": (exports, export_numbers),
    }


NO_PINS: Final[Mapping[str, Any]] = {}
DFMODEL: Final = ("dfmodel-gen1", "dfmodel-gen2a", "dfmodel-gen2b", "dfmodel-gen3")
#: Space, profile, designs, pins.
SPACES: Final[tuple[tuple[str, str, int, Mapping[str, Any]], ...]] = (
    ("gpt3_175b_1024_a100", "native", 300, NO_PINS),
    ("gpt3_175b_kernels", "native", 300, NO_PINS),
    ("gpt_1t_codesign", "native", 400, NO_PINS),
    ("gpt_1t_power_split", "native", 300, NO_PINS),
    ("llama3_70b_512_h100", "native", 300, NO_PINS),
    ("lstm_24b_power", "native", 300, NO_PINS),
    ("gpt3_175b_1024_a100", "simai", 150, NO_PINS),
    ("llama3_70b_512_h100", "simai", 150, NO_PINS),
    ("gpt_1t_codesign", "simai", 100, NO_PINS),
    *(("gpt_1t_4096_dfmodel", profile, 80, NO_PINS) for profile in DFMODEL),
    ("gpt3_175b_1024_a100", "dfmodel-gen1", 60, {"vpp": 1, "recompute": "none"}),
    *(
        ("gpt_1t_4096_dfmodel", profile, 30, {"execution": "dataflow", "tile_size": 4, "overlap": overlap})
        for profile, overlap in (("dfmodel-gen1", "perfect"), ("dfmodel-gen3", "compute_memory"))
    ),
)


def drawn_designs(name: str, points: int, pins: Mapping[str, Any]) -> pd.DataFrame:
    """Random legal designs of a space, a column of words and numbers each."""
    space = dse.Space.load(name, pins)
    return pd.DataFrame(space.decode(space.legal.random(points, np.random.default_rng(0))))


def space_prices(frame: pd.DataFrame, name: str, profile: str, pins: Mapping[str, Any]) -> Table:
    """Objectives, margins, derived columns and breakdowns of designs under a profile."""
    from dse.pricing.evaluated import rules_for

    space = dse.Space.load(name, pins)
    records: list[Any] = frame.to_dict("records")
    columns = space.encode(records)
    evaluation = dse.evaluate(space, columns, rules=rules_for(space, profile))
    return {
        "feasible": evaluation.feasible.astype(float),
        **{f"margin {limit.name}": evaluation.margins[:, i] for i, limit in enumerate(space.limits)},
        **{f"violation {limit.name}": evaluation.violations[:, i] for i, limit in enumerate(space.limits)},
        **{f"value {goal.name}": evaluation.values[:, i] for i, goal in enumerate(space.objectives)},
        **{f"derived {column}": values for column, values in evaluation.derived.items()},
        **evaluation.breakdown.columns(),
    }


def layout_prices(frame: pd.DataFrame) -> Table:
    """The breakdown of each layout: a model on a system whose quantities have factors, such as `times cores`."""
    tables = []
    for (model, name), rows in frame.rename(columns=str).groupby(["model", "system"], sort=False):
        system = load_system(str(name))
        known = system.quantities()
        factors = {column.removeprefix("times "): rows[column] for column in map(str, rows) if "times " in column}
        opened = {q: known[q] * factor.to_numpy() for q, factor in factors.items() if q in known}
        columns: dict[str, Any] = {
            name: rows[name].to_numpy() if rows[name].dtype.kind in "if" else rows[name].tolist()
            for name in map(str, rows)
            if name not in ("model", "system") and "times " not in name
        }
        shared = np.array(columns.pop("sequence_parallel")) > 0
        columns["sharding"] = np.where(shared, "megatron_sp", columns["sharding"]).tolist()
        evaluated = step(load_model(str(model)), system.with_quantities(opened), DesignPoints.of(**columns))
        tables.append(pd.DataFrame(evaluated.columns(), index=rows.index))
    table = pd.concat(tables).sort_index()
    return {str(name): table[name].to_numpy() for name in table}


def lstm_prices(frame: pd.DataFrame) -> Table:
    """The breakdown of each layout."""
    tables = []
    for name, rows in frame.groupby("system", sort=False):
        design = LstmDesign.of(**{column: rows[column].tolist() for column in map(str, rows) if column != "system"})
        evaluated = lstm_step(load_model("lstm_24b"), load_system(str(name)), design)
        tables.append(pd.DataFrame(evaluated.columns(), index=rows.index))
    table = pd.concat(tables).sort_index()
    return {str(name): table[name].to_numpy() for name in table}


#: File beside this one, or text, and the options it is evaluated with.
COMMANDS: Final = (
    "hlo/transformer.hlo --system a100_80g_dgx",
    "hlo/transformer.hlo --system open_chip_pod --barriers element",
    "hlo/trainer.hlo --system h100_80g_dgx",
    "hlo/loop.hlo --system v100_32g_dgx2",
    "deepflow.yaml --profile deepflow",
    "aicb.txt --profile simai --gpu-type H100",
    "aicb.txt --profile simai-2025-07 --gpu-type A100 --dp-overlap 0.5 --tp-overlap 0.25 --pp-overlap 0.5",
    *(f"dfmodel.txt --profile {profile}" for profile in DFMODEL),
    "dfmodel.txt --profile dfmodel-gen1 --resolve --groups 12 --tile-size best",
)


def files() -> pd.DataFrame:
    """Commands that price a file, and the figures of each, a row a figure."""
    figures = [(line, name) for line in COMMANDS for name in cost_figures(line)]
    return pd.DataFrame(figures, columns=["command", "figure"])


def file_figures(frame: pd.DataFrame) -> Table:
    """The numbers that the commands print."""
    printed = {line: cost_figures(line) for line in dict.fromkeys(frame["command"])}
    numbers = [printed[line].get(name, np.nan) for line, name in zip(frame["command"], frame["figure"], strict=True)]
    return {"number": np.array(numbers)}


def cost_figures(line: str) -> dict[str, float]:
    """Numbers of the JSON that `dse cost` prints, by their way through it."""
    import tempfile

    name, *options = line.split()
    with tempfile.TemporaryDirectory() as folder:
        path = written_file(name, Path(folder))
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            code = command(["cost", str(path), *options, "--format", "json"])
    assert code == 0, line
    return dict(numbers_in(json.loads(out.getvalue()), ""))


def written_file(name: str, folder: Path) -> Path:
    """A file of the tests' data, the documented configuration, or what a design exports."""
    if (FOLDER.parent / name).exists():
        return FOLDER.parent / name
    path = folder / name
    if name == "deepflow.yaml":
        [text] = re.findall(r"```yaml\n(schema: deepflow.*?)```", DEEPFLOW_DOCS.read_text(), flags=re.DOTALL)
        path.write_text(text)
    else:
        path.write_bytes(next(exported(name.removesuffix(".txt"), GPT3, [SPLIT]))[0])
    return path


def numbers_in(value: Any, way: str) -> Iterator[tuple[str, float]]:
    """Numbers of nested lists and mappings."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from numbers_in(inner, f"{way}/{key}")
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from numbers_in(inner, f"{way}/{index}")
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield way, float(value)


GPT3: Final = "gpt3_175b_1024_a100"
SPLIT: Final[Mapping[str, Any]] = {
    "tp": 8, "pp": 16, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": True, "recompute": "none",
    "distributed_optimizer": True,
}  # fmt: skip
#: Space, form, designs.
EXPORTS: Final = (
    (GPT3, "aicb", (SPLIT, {**SPLIT, "vpp": 3, "recompute": "full"}, {**SPLIT, "sequence_parallel": False})),
    (GPT3, "dfmodel", (SPLIT, {**SPLIT, "tp": 2, "sequence_parallel": False})),
    ("llama3_70b_512_h100", "aicb", ({**SPLIT, "overlap_grad_reduce": True, "pp": 8},)),
    ("llama3_70b_512_h100", "dfmodel", ({**SPLIT, "overlap_grad_reduce": False, "pp": 8},)),
)


def exported(form: str, space: str, designs: list[Mapping[str, Any]]) -> Iterator[tuple[bytes, tuple[str, ...]]]:
    """Content and notes of the files that designs become."""
    from dse.api.exports import artefacts

    for file in artefacts(dse.Space.load(space), designs, form):
        content = file.content or b""
        assert isinstance(content, bytes), "a folder"
        yield content, file.notes


def exports() -> pd.DataFrame:
    """Words and numbers of exported files, a row a token; the prices are the numbers."""
    rows = [
        (space, form, index, token if number is None else "#") for space, form, index, token, number in export_tokens()
    ]
    return pd.DataFrame(rows, columns=["space", "form", "design", "token"])


def export_numbers(frame: pd.DataFrame) -> Table:
    """The numbers among the tokens; NaN for words, and everywhere once the words are others."""
    tokens = list(export_tokens())
    same = [token if number is None else "#" for *_, token, number in tokens] == frame["token"].tolist()
    numbers = [np.nan if number is None else number for *_, number in tokens]
    return {"number": np.array(numbers) if same else np.full(len(frame), np.inf)}


def export_tokens() -> Iterator[tuple[str, str, int, str, float | None]]:
    """Space, form, design, token, and its value where it is a number."""
    for space, form, designs in EXPORTS:
        for index, (content, notes) in enumerate(exported(form, space, [*designs])):
            for token in re.findall(r"[^\s,=\"()\[\]\\:;]+", content.decode() + "\n".join(notes)):
                try:
                    number = float(token)
                except ValueError:
                    number = None
                yield space, form, index, token, number


def stored(name: str) -> tuple[pd.DataFrame, Table, str]:
    """Designs and prices of a case as they were kept, and the commit that made the prices."""
    table = pq.read_table(FOLDER / f"{name}.parquet")
    frame = table.to_pandas()
    prices = {c.removeprefix("= "): frame[c].to_numpy() for c in frame if c.startswith("= ")}
    designs = frame[[c for c in frame if not c.startswith("= ")]]
    return designs, prices, table.schema.metadata[b"commit"].decode()


def keep(name: str, designs: pd.DataFrame, prices: Table) -> None:
    """Write a case, under the commit that is checked out."""
    commit = subprocess.run(["git", "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    table = pa.Table.from_pandas(designs.assign(**{f"= {c}": v for c, v in prices.items()}), preserve_index=False)
    table = table.replace_schema_metadata({**(table.schema.metadata or {}), b"commit": commit.strip().encode()})
    pq.write_table(table, FOLDER / f"{name}.parquet", compression="zstd")


def moved(old: np.ndarray, new: np.ndarray) -> tuple[float, int]:
    """The largest relative change of a column, and in how many rows it is another number."""
    differs = ~((old == new) | (np.isnan(old) & np.isnan(new)))
    if not differs.any():
        return 0.0, 0
    a, b = old[differs], new[differs]
    with np.errstate(invalid="ignore"):
        change = np.abs(a - b) / np.maximum(np.abs(a), np.abs(b))
    return float(np.where(np.isfinite(change), change, np.inf).max()), int(differs.sum())


def main() -> None:
    """Price every case again, and say what moved."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--keep", nargs="+", metavar="CASE", default=[], help="cases whose new prices count")
    args = parser.parse_args()
    for name, (draw, price) in cases().items():
        if draw and not (FOLDER / f"{name}.parquet").exists():
            designs = draw()
            keep(name, designs, price(designs))
            print(f"{name}: {len(designs)} rows, new")
            continue
        designs, old, commit = stored(name)
        new = price(designs)
        changes = {column: moved(old[column], new[column]) for column in old.keys() & new.keys()}
        changes = {column: change for column, change in sorted(changes.items()) if change[1]}
        print(f"{name}: {len(designs)} rows of {commit[:9]}: {'as they were' if not changes else ''}")
        for column, (relative, rows) in changes.items():
            print(f"    {column}: {rows} rows, by up to {relative:.2g}")
        for column in old.keys() ^ new.keys():
            print(f"    {column}: {'gone' if column in old else 'new'}")
        if name in args.keep:
            keep(name, designs, new)


if __name__ == "__main__":
    main()
