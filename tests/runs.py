"""Runs for tests of single stages, on a machine that most of them do not look at."""

from __future__ import annotations

from costmodel import DesignPoints, ModelShape, System, load_system
from costmodel.training.run import RankRun, Run, TransformerRun, rank_run


def run_of(model: ModelShape, design: DesignPoints, system: System | None = None) -> TransformerRun:
    """A run of a model, laid out so."""
    return Run(model, system or load_system("a100_80g_dgx"), design)


def ranks_of(model: ModelShape, design: DesignPoints, system: System | None = None) -> RankRun:
    """What a rank sees of it."""
    return rank_run(run_of(model, design, system))
