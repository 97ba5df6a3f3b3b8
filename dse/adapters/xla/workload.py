"""Compiled programs as the workload of a search space: their rules, and how spaces read them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from costmodel.rules.rules import WORKS, KindOfWork, Rules
from costmodel.steps.result.breakdown import Breakdown
from costmodel.training.design_table import Design
from dse.adapters.xla.hlo import Analysis, load_module, program
from dse.adapters.xla.steps.program import Program, program_data, program_step, read_program

__all__ = ["PROGRAM", "RULES", "program_file", "read_program"]

PROGRAM: Final = KindOfWork(
    "program", "a step of a compiled program", Program, Breakdown, rate=2e3, rules=lambda: RULES
)
WORKS[PROGRAM.name] = PROGRAM

#: The native rules for programs: a design is a machine, without a layout.
RULES: Final[Rules[Design]] = Rules(work=PROGRAM, design=Design, cost=lambda run: program_step(run.model, run.system))


def program_file(path: Path) -> dict[str, Any]:
    """The model section of a space that runs the program of an HLO module.

    Raises `DseError` if the file is no module.
    """
    return program_data(program(Analysis(load_module(path))))
