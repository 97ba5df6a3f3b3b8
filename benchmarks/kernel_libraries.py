"""Fits the kernels of inference libraries: ``python benchmarks/kernel_libraries.py DIR [--library trtllm]``.

DIR has the tables of aiconfigurator. Each chip of the tables gets a file ``search_spaces/kernels/LIBRARY/SYSTEM.yaml``
with the constants that `dse calibrate --tables` fits to the products, attention and grouped products of the library,
and ``search_spaces/kernels/nccl/SYSTEM.yaml`` with those of collectives. A library and a chip take some minutes.
``--experts`` writes the constants of each family of kernels of experts to ``dse/adapters/aiconfigurator/experts.yaml``.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml

from costmodel.formats import shipped
from dse.adapters import aiconfigurator
from dse.adapters.aiconfigurator.fit import TableRows, calibrated_to_tables, table_stage
from dse.adapters.aiconfigurator.tables import KINDS, SYSTEMS, samples
from dse.adapters.aiconfigurator.times import library_system

LIBRARIES: Final = ("trtllm", "vllm", "sglang")
KERNELS: Final = shipped.ROOT / "kernels"
EXPERTS: Final = Path(aiconfigurator.__file__).parent / "experts.yaml"
#: Rows that are drawn of experts of a chip and library, and the fewest of a family that are fitted. [-]
ROWS, FEWEST_ROWS = 8000, 40


def fitted(data: Mapping[str, Any]) -> dict[str, Any]:
    """The constants of a system file that have a standard error, in their parts."""
    parts = {name: value for name, value in data.items() if isinstance(value, dict)}
    constants = {name: value if "standard_error" in value else fitted(value) for name, value in parts.items()}
    return {name: value for name, value in constants.items() if value}


def write(path: Path, system: str, about: str, constants: Mapping[str, Any]) -> None:
    """Write constants as changes of a built-in system."""
    head = {"schema": "system/v1", "base": system, "description": about}
    path.parent.mkdir(parents=True, exist_ok=True)
    text = yaml.safe_dump({**head, **constants}, sort_keys=False, default_flow_style=None, width=10_000)
    path.write_text(text, encoding="utf-8")


def write_fits(text: str, system: str, library: str) -> None:
    """Write the constants of a calibrated system file: those of links to NCCL's file, all others to the library's."""
    constants = fitted(yaml.safe_load(text))
    links = constants.pop("network", {})
    write(KERNELS / library / f"{system}.yaml", system, f"kernels of {library} on the chip of {system}", constants)
    if links:
        write(KERNELS / "nccl" / f"{system}.yaml", system, f"NCCL in a node of {system}", {"network": links})


def expert_fits(tables: Path, folder: str, library: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Library and family of kernels of experts -> fitted constants in SI units, with errors of shapes kept apart."""
    for sample in samples(tables, system=SYSTEMS[folder], library=library, rows=ROWS):
        rows = sample.rows[sample.rows["current"] & sample.rows["size"].isin(KINDS[sample.kind]["fitted"])]
        if sample.kind != "grouped" or sample.folder != folder:
            continue
        for family, part in rows.groupby("family"):
            of_family = replace(sample, rows=part.reset_index(drop=True))
            machine, apart = library_system(SYSTEMS[folder], library), of_family.rows["kept_apart"].to_numpy(dtype=bool)
            if (~apart).sum() < FEWEST_ROWS:
                continue
            stage = table_stage(TableRows(machine, of_family), 0)
            yield (
                str(family),
                {
                    "constants": {one.name: float(f"{one.after:.4g}") for one in stage.constants},
                    "release": " ".join(sorted(part["release"].unique())),
                    "shapes": int((~apart).sum()),
                    "kept_apart": int(apart.sum()),
                    "median_error_percent": round(100 * float(np.median(np.abs(np.expm1(stage.after[apart])))), 1),
                },
            )


def write_experts(tables: Path) -> None:
    """Write constants of kernels of experts of all chips and libraries."""
    fits: dict[str, Any] = {}
    for folder, system in SYSTEMS.items():
        for library in LIBRARIES:
            if list((tables / folder).glob(f"*/{library}")):
                fits.setdefault(system, {}).update(expert_fits(tables, folder, library))
                print(system, library, {name: one["median_error_percent"] for name, one in fits[system].items()})
    head = "# Constants of families of kernels of experts, in SI units: benchmarks/kernel_libraries.py --experts.\n"
    EXPERTS.write_text(head + yaml.safe_dump(fits, sort_keys=False, default_flow_style=None, width=10_000))


def main() -> None:
    """Fit what the command line asks for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("tables", type=Path)
    parser.add_argument("--library", choices=LIBRARIES, action="append")
    parser.add_argument("--experts", action="store_true")
    asked = parser.parse_args()
    if asked.experts:
        write_experts(asked.tables)
    for library in () if asked.experts else asked.library or LIBRARIES:
        for folder, system in SYSTEMS.items():
            if list((asked.tables / folder).glob(f"*/{library}")):
                write_fits(calibrated_to_tables(asked.tables, system, library=library).text, system, library)


if __name__ == "__main__":
    main()
