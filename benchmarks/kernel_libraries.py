"""Fits the kernels of inference libraries: ``python benchmarks/kernel_libraries.py DIR [--library trtllm]``.

DIR has the tables of aiconfigurator. Each chip of the tables gets a file ``search_spaces/kernels/LIBRARY/SYSTEM.yaml``
with the constants that `dse calibrate --tables` fits to the products, attention and grouped products of the library,
and ``search_spaces/kernels/nccl/SYSTEM.yaml`` with those of collectives. A library and a chip take some minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from costmodel.formats import shipped
from dse.adapters.aiconfigurator.fit import calibrated_to_tables
from dse.adapters.aiconfigurator.tables import SYSTEMS

LIBRARIES: Final = ("trtllm", "vllm", "sglang")
KERNELS: Final = shipped.ROOT / "kernels"


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


def main() -> None:
    """Fit what the command line asks for."""
    parser = argparse.ArgumentParser(description=str(__doc__).splitlines()[0])
    parser.add_argument("tables", type=Path)
    parser.add_argument("--library", choices=LIBRARIES, action="append")
    asked = parser.parse_args()
    for library in asked.library or LIBRARIES:
        for folder, system in SYSTEMS.items():
            if list((asked.tables / folder).glob(f"*/{library}")):
                write_fits(calibrated_to_tables(asked.tables, system, library=library).text, system, library)


if __name__ == "__main__":
    main()
