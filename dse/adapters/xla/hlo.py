"""HLO modules: load, analyse and summarize the text that XLA prints; and compiled programs as workloads of spaces."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import content
from costmodel.rules.rules import WORKS, KindOfWork, Rules
from costmodel.steps.breakdown import Breakdown
from costmodel.training.design_table import Design
from dse.adapters.xla.analysis import Analysis
from dse.adapters.xla.steps.program import Program, program, program_data, program_step, read_program
from dse.adapters.xla.summary.figures import figures
from dse.adapters.xla.text.module import Computation, Instruction, Module, Shape
from dse.adapters.xla.text.parser import HEAD, other_text, parse
from dse.adapters.xla.work.kernel_graph import BARRIERS, HloGraph, graph

__all__ = [
    "BARRIERS", "Analysis", "Computation", "HloGraph", "Instruction", "Module", "Shape", "figures", "graph",
    "load_module", "parse", "program", "read_program",
]  # fmt: skip


#: Largest text of a module. [B]
MOST_BYTES: Final = 64 << 20


def load_module(path: Path, *, large: bool = False) -> Module:
    """The module in a file, which may be compressed by gzip; if it is `large`, it may take more than 5 s.

    Raises `DseError` if the file cannot be read, is not a compiled module or too large, or for the first mistake in it,
    with its line and token.
    """
    encoded = content(path, MOST_BYTES + 1)
    if len(encoded) > MOST_BYTES:
        raise DseError(f"{path}: more than {MOST_BYTES:,} bytes of text; no more are read")
    try:
        text = encoded.decode("utf-8-sig")
    except UnicodeDecodeError:
        what = other_text(encoded[:HEAD]) or "not a text file; expected HLO as XLA prints it, in UTF-8"
        raise DseError(f"{path}: {what}") from None
    return parse(text, str(path), large=large)


PROGRAM: Final = KindOfWork(
    "program", "a step of a compiled program", Program, Breakdown, rules=lambda: RULES,
    rate=lambda program: min(5e4, 1e6 / max(len(program.kernels), 1)),
)  # fmt: skip
WORKS[PROGRAM.name] = PROGRAM

#: The native rules for programs: a design is a machine, without a layout.
RULES: Final[Rules[Design]] = Rules(work=PROGRAM, design=Design, cost=lambda run: program_step(run.model, run.system))


def program_file(base: Path, name: Any, *, large: bool = False) -> dict[str, Any]:
    """The model section of a space that runs the program of an HLO module.

    Raises `DseError` if the file is not a module, or takes more than 5 s and is not said to be `large`.
    """
    return program_data(program(Analysis(load_module(base / str(name), large=large))))


large_program_file: Final = partial(program_file, large=True)
