"""Files and built-in data: measurements with predictions, constants of a machine, catalogues."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd

from costmodel.errors import ParameterError
from costmodel.formats.model_file import ImportedModel
from costmodel.formats.system_file import load_system
from dse.arguments import Paths
from dse.calibration.calibration import Calibration, calibrated
from dse.registry import adapters, load, measurement_reader, model_importer
from dse.reporting.catalogue import LISTS
from dse.reporting.designs.side_by_side_report import differing
from dse.validation.comparison import ComparedRow, compared
from dse.validation.table import SHIPPED, read_table


def validate(file: str | Path | None = None, *, system: str | None = None) -> list[ComparedRow]:
    """Predictions for measured rows, a record for each: `dse.validation.summary` counts their errors.

    Raises `DseError` if the file or the machine cannot be read.

    Parameters
    ----------
    file : str or Path, optional
        A CSV file with a row for each run, layer or kernel; by default the built-in published figures.
    system : str, optional
        Evaluate all rows on this machine instead of those that the rows name.
    """
    rows = [row for path in ([Path(file)] if file else SHIPPED) for row in read_table(path)]
    return compared(rows, system)


def validate_kernels(
    folder: str | Path, *, system: str | None = None, library: str = "", rows: int = 2000
) -> dict[str, Any]:
    """Errors of predicted kernels against Parquet tables of aiconfigurator, by kind, size, chip and release.

    `folder` is the folder `data` of aiconfigurator, or one within it; `rows` are drawn from the tables of each chip and
    kind [-]. With a `system` or a `library`, only tables of its chip or of the library and NCCL are compared. Raises
    `DseError` if the folder has no such tables.
    """
    errors: dict[str, Any] = measurement_reader("kernel_errors")(
        Path(folder), system=system, library=library, rows=rows
    )
    return errors


def calibrate(
    file: str | Path | None = None, *, system: str, framework: str | None = None,
    nccl_tests: Paths = (), tables: str | Path | None = None, library: str = "trtllm",
) -> Calibration:  # fmt: skip
    """Constants of a machine, fitted to measurements; ``.text`` of it is a system file.

    Raises `DseError` if a file cannot be read, or has no rows of this machine.

    Parameters
    ----------
    file : str or Path, optional
        A CSV file with a row for each product, collective or step.
    system : str
        The machine to start from: a built-in one, or a YAML file.
    framework : str, optional
        Software of steps whose rows name none.
    nccl_tests : sequence of str or Path
        Logs of nccl-tests.
    tables : str or Path, optional
        Instead, kernel tables of aiconfigurator: its folder `data`, or one within it.
    library : str
        Engine whose kernels are fitted to the tables: trtllm, vllm or sglang.
    """
    if tables:
        constants: Calibration = measurement_reader("kernel_constants")(Path(tables), system, library=library)
        return constants
    rows = read_table(Path(file)) if file else []
    rows += [row for path in nccl_tests for row in measurement_reader("collectives")(Path(path), system)]
    table = ", ".join(Path(path).name for path in (file, *nccl_tests) if path)
    return calibrated(rows, system, framework=framework, table=table)


def catalogue(kind: str) -> pd.DataFrame:
    """Everything built in of a kind, one row each: "spaces", "models", "systems" or "frameworks"."""
    if kind not in LISTS:
        raise ParameterError(f"kind: {kind!r}: expected {', '.join(LISTS)}")
    return pd.DataFrame(LISTS[kind]())


def import_model(path: str | Path, *, name: str = "", seq_len: float | None = None) -> ImportedModel:
    """The model that the configuration of another program describes.

    Raises `DseError` with one line for each mistake in the file.

    Parameters
    ----------
    path : str or Path
        A `config.json` of Hugging Face, or the folder of one.
    name : str, optional
        Name of the model; by default that of the file, or of its folder.
    seq_len : float, optional
        Length of a training sequence; by default that of the first training stage, at most 8192. [tokens]
    """
    importers = [load(adapter.import_model) for adapter in adapters() if adapter.import_model]
    read = model_importer(Path(path)) or importers[0]
    model: ImportedModel = read(Path(path), name=name, seq_len=seq_len)
    return model


def compare_systems(one: str, other: str) -> pd.DataFrame:
    """Quantities in which two machines differ: quantity, unit, both values, and their ratio.

    Raises `DseError` if there is no such system.
    """
    rows = differing(load_system(one), load_system(other))
    return pd.DataFrame(
        [{**row, **dict(zip((one, other), row["values"], strict=True))} for row in rows],
        columns=["quantity", "unit", one, other, "ratio"],
    )
