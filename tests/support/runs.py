"""Runs for tests of single stages, on a machine that most of them ignore; studies that are compared."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from costmodel import DesignPoints, ModelShape, System, load_model, load_system
from costmodel.rules.registry import design_rules
from costmodel.training.run import RankRun, Run, TransformerRun, rank_run
from dse.api.study import Study
from dse.searching.batches.loop import CLAIM, PARKED, Progress
from dse.spaces.space import Space
from dse.storage.optuna_store import Store


def designs(model: ModelShape, **columns: Any) -> DesignPoints:
    """Designs of a model, with the columns of its kernels."""
    return DesignPoints.of(blocks=model.blocks, **columns)


def named_run(model: str, system: str, **columns: Any) -> TransformerRun:
    """A run of a built-in model on a built-in system."""
    shape = load_model(model)
    return Run(shape, load_system(system), designs(shape, **columns))


def run_of(model: ModelShape, design: DesignPoints, system: System | None = None) -> TransformerRun:
    """A run of a model, laid out so."""
    return Run(model, system or load_system("a100_80g_dgx"), design)


def ranks_of(model: ModelShape, design: DesignPoints, system: System | None = None) -> RankRun:
    """The same run as one rank has it."""
    return rank_run(run_of(model, design, system))


def slower(monkeypatch, factor):
    """A cost model by which everything takes longer."""
    kind = type(design_rules("native", Space.load("gpt3_175b_1024_a100").workload))
    step = kind.step

    def changed(self, *args):
        actual = step(self, *args)
        return replace(actual, step_time=factor * actual.step_time)

    monkeypatch.setattr(kind, "step", changed)


def interrupting(trials: int) -> Callable[[Progress], None]:
    """A callback for progress that interrupts a run once it has stored some trials."""

    def interrupt(report: Progress) -> None:
        if report.complete >= trials:
            raise KeyboardInterrupt

    return interrupt


def told(study: Study) -> list[tuple[Any, ...]]:
    """Trials of a study, without times of day."""
    with Store(study.storage, "read") as store:
        trials = store.trials(store.study(study.name).study_id)
    return [(t.number, t.state, t.params, t.values, t.constraints, t.user_attrs) for t in trials]


def marks(study: Study) -> list[str]:
    """Claims and parked batches that the database holds."""
    attributes = Study.load(study.name, storage=study.storage).attributes
    return sorted(name for name in attributes if name.startswith((CLAIM, PARKED)))
