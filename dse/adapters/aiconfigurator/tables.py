"""Kernel tables of aiconfigurator: public Parquet files of timed kernels, filtered and sampled.

NVIDIA's aiconfigurator times products, grouped products of experts, attention and collectives of seven GPUs in
TensorRT-LLM, vLLM and SGLang: ``<system>/<kind>/<library>/<release>/<kernel>_perf.parquet``, 24.5 million rows, in
milliseconds a call, most in CUDA graphs with cold weights and hot inputs. The reader sets rows aside that say little of
a kernel: those launched from Python, those held for a second at the power limit, those with tokens of other ranks, and
impossible ones.

Rows are drawn from strata of equal size (number format, size class, library). Shapes whose SHA-1 begins with 8 to f are
kept apart: fits do not see them. The text that is hashed has the shape's columns in the order of `tables.yaml`, as
decimal numbers with commas between them, such as ``4096,8192,1024`` for m, n, k.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from costmodel import System
from costmodel.columns import BoolArray, FloatArray
from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside
from costmodel.training.precision import FORMATS
from dse.validation.expressed import system_named

_FILE: Final = data_beside(__file__, "tables.yaml")
#: Folder of a system -> the built-in system of its chip.
SYSTEMS: Final[Mapping[str, str]] = _FILE["systems"]
#: Kind of kernels -> its tables, shape, classes of sizes, and constants, in the words of the file.
KINDS: Final[Mapping[str, Mapping[str, Any]]] = _FILE["kinds"]
#: Classes of sizes of all kinds, ascending.
CLASSES: Final = [*dict.fromkeys(name for about in KINDS.values() for name in about["classes"].values())]
#: Quantities by which the chip of a system is recognized as that of a folder.
CHIP: Final = ("cores", "array_height", "dram_capacity", "dram_bandwidth")
#: Latency below which products in CUDA graphs have 5 % of their rows; launched from Python, they have none. [s]
EAGER: Final = 40e-6
#: Peak rates over those of the data sheet that chips reach at their highest clock. [-]
HIGHEST_CLOCK: Final = 1.1
#: Share of the shapes of a library's largest release that its current one has at least. [-]
COMPLETE: Final = 0.5
#: Time of a rank of eight, over that of one alone, from which it computes tokens of other ranks; and tokens for it. [-]
OTHERS_COMPUTED, MANY_TOKENS = 0.75, 4096
#: Rows of a release that is not current, over those of current ones. [-]
OLDER: Final = 0.1
#: Families of kernels of experts in their names.
FAMILY: Final = "(?:^|_)(triton|deepgemm|min_latency|nongated|cutlass|trtllm)"


@dataclass(frozen=True, slots=True)
class KernelSample:
    """Rows drawn from the tables of one system and kind.

    Columns: those of the shape, `format` (a precision or collective), `size` (its class), `library`, `release`,
    `kernel`, its `family`, `current` (of the library's newest complete release), `kept_apart`, and `measured`. [s]
    """

    folder: str
    kind: str
    system: str  #: name or file of the system that evaluates it
    rows: pd.DataFrame
    read: int  #: rows in its tables
    left_out: Mapping[str, int]  #: reason -> rows that were set aside


def folders_of(system: str | None) -> dict[str, str]:
    """Folder of a system -> the system that evaluates it: built-in ones, or the one whose chip is that of the folder.

    Raises `DseError` if no folder has the chip of the system.
    """
    if system is None:
        return dict(SYSTEMS)
    wanted = system_named(system).quantities()
    chips = {folder: system_named(name).quantities() for folder, name in SYSTEMS.items()}
    alike = {
        folder: system
        for folder, known in chips.items()
        if all(q in wanted and np.isclose(wanted[q], known[q], rtol=0.02) for q in CHIP)
    }
    if not alike:
        raise DseError(f"{system}: no kernel tables of this chip; the tables have {', '.join(SYSTEMS)}")
    return alike


def samples(
    folder: Path, *, system: str | None = None, library: str = "", rows: int = 2000, seed: int = 0
) -> Iterator[KernelSample]:
    """Rows of each system and kind below a folder: about `rows` of current releases, a tenth of that of others. [-]

    With a `library`, only its tables and those of NCCL are read. Raises `DseError` if a file cannot be read, or the
    folder has no tables of the systems.
    """
    if not folder.is_dir():
        raise DseError(f"{folder}: no folder; expected the folder `data` of aiconfigurator, or one within it")
    evaluated_by, empty = folders_of(system), True
    for kind, about in KINDS.items():
        files: dict[str, list[Path]] = {}
        for path in sorted(folder.resolve().rglob(f"{about['file']}.parquet")):
            if len(path.parts) > 4 and path.parts[-3] in (library or path.parts[-3], "nccl"):
                files.setdefault(path.parts[-5], []).append(path)
        for name in (name for name in evaluated_by if name in files):
            empty = False
            yield drawn_sample(kind, name, evaluated_by[name], files[name], rows, seed)
    if empty:
        raise DseError(f"{folder}: no kernel tables of {system or 'a built-in system'}; looked for "
                       f"{', '.join(evaluated_by)}/*/{library or '*'}/*/gemm_perf.parquet and the like")  # fmt: skip


def drawn_sample(kind: str, folder: str, system: str, paths: Sequence[Path], rows: int, seed: int) -> KernelSample:
    """Rows drawn from the tables of one system and kind; parameters as for `samples`."""
    left_out, read, tables = Counter[str](), 0, []
    for path in paths:
        table = read_kernel_table(path, kind)
        read += len(table)
        tables.append(usable_rows(table, kind, system_named(system), left_out))
    table = pd.concat(tables, ignore_index=True)
    shapes = table.drop_duplicates(["library", "release", "format", *KINDS[kind]["shape"]])
    table["current"] = table["release"] == table["library"].map(current_releases(shapes))
    table = table.iloc[np.random.default_rng(seed).permutation(len(table))]
    strata = ["current", "format", "size", "library"]
    number = table.groupby([*strata, "release"], observed=True).cumcount()
    counts = table[strata].drop_duplicates()["current"].value_counts()
    quota = np.ceil(np.where(table["current"], 1.0, OLDER) * rows / table["current"].map(counts))
    table = table[number < quota].reset_index(drop=True)
    table["kept_apart"] = is_kept_apart(table[KINDS[kind]["shape"]])
    return KernelSample(folder, kind, system, table, read, left_out)


def is_kept_apart(shapes: pd.DataFrame) -> BoolArray:
    """True for shapes that no fit may use: the SHA-1 of their numbers, joined by commas, begins with 8 to f."""
    texts = (",".join(str(int(value)) for value in shape) for shape in shapes.to_numpy())
    return np.array([hashlib.sha1(text.encode()).digest()[0] >= 128 for text in texts], dtype=bool)


def read_kernel_table(path: Path, kind: str) -> pd.DataFrame:
    """The rows of a table, latency in seconds as `measured`; its library and release are those of its folders.

    Raises `DseError` if the file is not a table of this kind.
    """
    from pyarrow import ArrowException, parquet, types  # slow to import

    about = KINDS[kind]
    needed = [*about["shape"], about["format"], "latency", "kernel_source"]
    wanted = {*needed, *about["only"], "nccl_dtype", "power"}
    try:
        schema = parquet.read_schema(path)
        table: pd.DataFrame = parquet.read_table(path, columns=[n for n in schema.names if n in wanted]).to_pandas()
    except (ArrowException, OSError) as error:
        raise DseError(f"{path}: not a Parquet file ({str(error).splitlines()[0]})") from None
    if lacking := [name for name in needed if name not in table]:
        raise DseError(f"{path}: no column {', '.join(lacking)}; expected a table {about['file']} of aiconfigurator")
    for name in table.columns:
        values, is_number = schema.field(name).type, name in (*about["shape"], "latency", "power")
        if table[name].dtype.kind not in "iuf" if is_number else types.is_nested(values):
            raise DseError(f"{path}: column {name}: expected {'numbers' if is_number else 'words'}, got {values}")
    if kind == "collectives":
        table["message_bytes"] = table["message_size"] * np.where(table.get("nccl_dtype", "half") == "int8", 1, 2)
    table = table.rename(columns={"kernel_source": "kernel"}).assign(measured=table.pop("latency") * 1e-3)
    table["kernel"] = table["kernel"].astype(str).fillna("")
    family = path.parts[-3] + " " + table["kernel"].str.extract(FAMILY, expand=False).fillna("")
    return table.assign(library=path.parts[-3], release=path.parts[-2], family=family)


def usable_rows(table: pd.DataFrame, kind: str, system: System, left_out: Counter[str]) -> pd.DataFrame:
    """The rows of a table that a formula can be compared with, with `format` and `size`; `left_out` counts others."""
    about, has_mx = KINDS[kind], bool(system.chip.mx_speedup > 0)
    shape = table[about["shape"]].assign(others=table.get("num_gpus", 2) - 1, measured=np.ceil(table["measured"]))
    whole = ((shape >= 1) & (shape < np.inf)).all(axis=1)
    left_out["an empty shape, or no time"] += int((~whole).sum())
    table = table[whole]
    precision = table[about["format"]].map({word: names[has_mx] for word, names in about["formats"].items()})
    usual = precision.notna() & True
    for name in table.columns.intersection([*about["only"]]):
        usual &= table[name].isin(about["only"][name])
    table = table.assign(format=precision)
    fastest = table.groupby("format")["measured"].transform("quantile", q=0.05)
    reasons = {
        "a number format without a formula": precision.isna(),
        "a distribution, window, step or cache without a formula": ~usual,
        "timed for a second, at the power limit": table["power"] > 0 if "power" in table else precision.isna(),
        "tokens of other ranks are computed": computes_others(table) if kind == "grouped" else precision.isna(),
        "launched from Python, not from a CUDA graph": (kind == "products") & (fastest > EAGER),
        "faster than the data sheet allows": table["measured"] <= least_times(table, kind, system),
    }
    kept = np.ones(len(table), dtype=bool)
    for reason, rows in reasons.items():
        left_out[reason] += int((rows & kept).sum())
        kept &= ~rows.to_numpy(dtype=bool)
    size = table[about["size"]].to_numpy(dtype=float)
    if kind == "products":  # a class for all edges from 512 on
        size = np.where(table[["m", "n", "k"]].min(axis=1) >= 512, np.inf, size)
    names = np.array([*about["classes"].values()])
    places = np.searchsorted([*about["classes"]], size, side="right") - 1
    return table.assign(size=pd.Categorical(names[places], categories=CLASSES))[kept]


def computes_others(table: pd.DataFrame) -> pd.Series[bool]:
    """True for rows of several ranks whose kernel takes about as long on one of eight ranks as on one that is alone.

    A rank of eight has an eighth of the work. SGLang 0.5.10 was timed with tokens of all ranks, since experts of other
    ranks were replaced by the first one of this rank (aiconfigurator, collector/sglang/collect_moe.py).
    """
    shape = table.columns.intersection([*KINDS["grouped"]["shape"], "distribution", "kernel", "format"])
    ranks, alike = table["moe_ep_size"], [*shape.drop("moe_ep_size")]
    alone = table.assign(alone=table["measured"].where(ranks == 1)).groupby(alike)["alone"].transform("min")
    share = (table["measured"] / alone).where((ranks == 8) & (table["num_tokens"] >= MANY_TOKENS))
    return (share.groupby([table["kernel"], table["format"]]).transform("median") > OTHERS_COMPUTED) & (ranks > 1)


def least_times(table: pd.DataFrame, kind: str, system: System) -> FloatArray:
    """Times that no kernel can go below: its arithmetic at the peak rate, or its bytes over the links. [s]"""
    shape = {name: table[name].to_numpy(dtype=float) for name in KINDS[kind]["shape"]}
    chip = system.chip
    if kind == "collectives":
        sent = table["message_bytes"].to_numpy(dtype=float) * (1 - 1 / shape["num_gpus"])
        return np.asarray(sent / system.network[0].bandwidth / HIGHEST_CLOCK)
    if kind == "products":
        flops = 2 * shape["m"] * shape["n"] * shape["k"]
    elif kind == "grouped":
        pairs = shape["num_tokens"] * shape["topk"] / shape["moe_ep_size"] / shape["moe_tp_size"]
        flops = 2 * 2 * pairs * shape["hidden_size"] * shape["inter_size"]
    else:
        flops = 2 * shape["batch_size"] * shape["isl"] ** 2 * shape["num_heads"] * shape["head_dim"]
    speedups = {name: chip.format_speedup(units).item() for name, of in FORMATS.items() if (units := of.units)}
    speedup = np.maximum(table["format"].map(speedups).fillna(1.0).to_numpy(dtype=float), 1.0)
    return np.asarray(flops / (chip.peak_flop_rate * speedup) / HIGHEST_CLOCK)


def current_releases(table: pd.DataFrame) -> pd.Series[str]:
    """Library -> its newest release among those that have half as many shapes as its largest, a row each."""
    counts = table.groupby("library")["release"].value_counts()
    complete = counts[counts >= COMPLETE * counts.groupby("library").transform("max")].reset_index()
    return complete.groupby("library")["release"].agg(lambda names: max(names, key=release_order))


def release_order(release: str) -> list[tuple[float, float, float]]:
    """Key that sorts releases: candidates before the release, posts behind it.

    >>> sorted(["0.5.9", "1.3.0rc20", "0.5.14", "1.3.0", "1.3.0rc5"], key=release_order)
    ['0.5.9', '0.5.14', '1.3.0rc5', '1.3.0rc20', '1.3.0']
    """
    parts = re.findall(r"(?:^|\.)(?:post)?(\d+)(rc)?(\d*)", release)
    return [(float(number), 0.0 if candidate else 1.0, float(of or 0)) for number, candidate, of in parts]
