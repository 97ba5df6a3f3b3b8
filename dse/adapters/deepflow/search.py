"""DeepFlow configurations as workloads of search spaces: `workload: {deepflow: hardware.yaml}`.

Every number of the files is a column of designs, and stays as in the files unless a space sets it. Its name is the
shortest end of its path that no other path has, with `_` for dots and hyphens (`kp1`, `L2_size`,
``area_breakdown_core``). DeepFlow's rules decide which designs run; the others have no number.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from costmodel.columns import FloatArray, column
from costmodel.errors import DseError
from costmodel.formats.input_files import Section, parse, read_text
from costmodel.rules.registry import register_work
from costmodel.rules.rules import KindOfWork, Rules
from costmodel.steps.breakdown import ResultTable
from costmodel.training.design_table import SWITCH, Design, Domain
from costmodel.training.run import Run
from dse.adapters.deepflow.chips import Values
from dse.adapters.deepflow.setups import (
    COUNTS,
    FREE,
    GENERATIONS,
    WORDS,
    ChipSetup,
    SetupReader,
    completed,
    keys_of,
    profile_of,
)
from dse.adapters.deepflow.step import GIB, MIB
from dse.adapters.deepflow.summaries import outcomes

#: Paths without columns: their words and counts hold for all designs of a batch.
_SHARED: Final = re.compile(r"^(memory_hierarchy|search|network_topology)\.|_type$|\.(auto|mode)$")


@dataclass(frozen=True, kw_only=True, slots=True)
class DeepflowModel:
    """A hardware file of DeepFlow with its model, as numbers."""

    dimensions: ClassVar[tuple[str, ...]] = ()
    counts: ClassVar[tuple[str, ...]] = ()
    num_parameters: ClassVar[float] = math.nan

    name: str
    generation: str
    mode: str
    numbers: tuple[tuple[str, float], ...]  #: by path; NaN where the file has null


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class DeepflowResults(ResultTable):
    """Results of designs by DeepFlow's rules; (points,) columns, NaN where DeepFlow runs none."""

    step_time: FloatArray = column("s")  #: of an LSTM, of a product, or of all tokens of an LLM
    training_step_time: FloatArray = column("s")  #: of an LLM with one pipeline stage
    shard_memory: FloatArray = column("B")  #: of a shard of an LSTM
    dram_size: FloatArray = column("B")
    chip_power: FloatArray = column("W")  #: that the blocks draw
    chip_area_mm2: FloatArray = column("-")  #: that the blocks fill
    tflops: FloatArray = column("-")  #: peak rate before utilization [TFLOP/s]


def design_columns() -> Iterator[tuple[str, str, Domain]]:
    """Column of designs, path of its number in files of any generation, and values that it may have."""
    paths = sorted({path for rules in GENERATIONS for path in keys_of(rules) if not _SHARED.search(path)})
    words = [re.split(r"[.-]", path) for path in paths]
    ends = [["precision"], *(split[-size:] for split in words for size in range(1, len(split) + 1))]
    for path, split in zip(paths, words, strict=True):
        key, sizes = path.rpartition(".")[2], range(1, len(split) + 1)
        domain = Domain() if path.startswith(COUNTS) and path not in FREE else Domain(low=0.0, whole=False)
        if key in WORDS:
            domain = Domain.of_words(word or "none" for word in WORDS[key])
        name = next(split[-size:] for size in sizes if ends.count(split[-size:]) == 1)
        yield "_".join(name), path, SWITCH if key.endswith("_inter") else domain


PATHS: Final = {name: path for name, path, _ in design_columns()}
#: Tables of designs; -1 where a number is that of the files.
DeepflowDesign: Final[Any] = make_dataclass(
    "DeepflowDesign",
    [(name, FloatArray, column("-", -1.0, domain=domain)) for name, _, domain in design_columns()],
    bases=(Design,), namespace={"__module__": __name__}, frozen=True, kw_only=True, slots=True, eq=False,
)  # fmt: skip


def _outcomes(run: Run[DeepflowModel, Any]) -> tuple[Values, list[str]]:
    """Figures of designs, and the reasons why DeepFlow does not run some; (points,)."""
    model, values = run.model, run.design.columns()
    given = {PATHS[name]: numbers for name, numbers in values.items() if numbers[0] >= 0}
    if unknown := sorted(given.keys() - keys_of(model.generation, model.mode)):
        raise DseError(f"{model.name}: files of {model.generation} in mode {model.mode} do not have {unknown[0]}")
    if (kind := "scheduling_param.t") in given:
        given[kind] = np.where(given[kind] > 0, given[kind], np.nan)
    sheet = completed({path: np.array([value]) for path, value in model.numbers} | given, model.generation)
    return outcomes(ChipSetup(generation=model.generation, sheet=sheet, mode=model.mode))


def results(run: Run[DeepflowModel, Any]) -> DeepflowResults:
    """Evaluate designs of the files of a set-up with other numbers; (points,) columns. [s], [B], [W], [mm2]"""
    figures, reasons = _outcomes(run)
    missing, zero = np.full(len(reasons), np.nan), np.zeros(len(reasons))

    def summed(*ends: str) -> FloatArray:
        return sum((v for name, v in figures.items() if name.endswith(ends)), zero if figures else missing)

    return DeepflowResults(
        step_time=figures.get("Time", missing), training_step_time=figures.get("step.total", missing),
        shard_memory=figures.get("mem2.total", missing) * GIB, dram_size=figures.get("hw.L3_size", missing) * MIB,
        chip_power=summed(".eff_power"), chip_area_mm2=summed(".eff_area", ".eff_ctrl_area"),
        tflops=figures.get("hw.throughput", missing),
    )  # fmt: skip


def why(run: Run[DeepflowModel, Any]) -> list[str]:
    """Why DeepFlow does not run the first of several designs; empty where it does."""
    return [reason for reason in _outcomes(run)[1][:1] if reason]


WORK: Final = KindOfWork(
    "deepflow", "a run of DeepFlow", DeepflowModel, DeepflowResults, rate=lambda model: 50, reads_system=False
)
register_work(Rules(work=WORK, design=DeepflowDesign, cost=results, why=why))


def setup_data(base: Path, written: Any) -> dict[str, Any]:
    """The model section of a space on a hardware file, or on a hardware file and a model file."""
    paths = [base / str(name) for name in (written if isinstance(written, list) else [written])]
    head = {"schema": "deepflow_setup/v1", "name": paths[0].stem, "generation": profile_of(paths[0])}
    return {key: value for path in paths for key, value in parse(read_text(path), str(path)).data.items()} | head


def read_model(section: Section, name: str) -> DeepflowModel:
    """The model of a section. Sizes are those of the files: no command line replaces them."""
    generation = section.word("generation", tuple(GENERATIONS))
    section.source.finish()
    content = {key: value for key, value in section.data.items() if key not in ("schema", "name", "generation")}
    part = Section(section.source, section.at, content)
    stated, mode = SetupReader(part, part, generation, defaults=False).stated({}, None)
    numbers = tuple((path, float(values[0])) for path, values in sorted(stated.items()))
    return DeepflowModel(name=section.text("name"), generation=generation, mode=mode, numbers=numbers)
