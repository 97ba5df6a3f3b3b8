"""One step of each design with all that it is made of: the same evaluation, which says what it adds up."""

from __future__ import annotations

from dataclasses import replace

from costmodel.columns import FloatArray
from costmodel.steps.lstm import lstm_parts
from costmodel.steps.resolve_sharding import solution
from costmodel.steps.transformer import cost_of_passes, pass_costs, step_parts
from costmodel.training.run import LstmRun, TransformerRun, rank_run


def transformer_items(run: TransformerRun) -> dict[str, FloatArray]:
    """What columns of a breakdown are made of, by the names of `costmodel.steps.items`.

    Parameters
    ----------
    run : TransformerRun
        Model, machine and one design. [-]

    Returns
    -------
    items : mapping of (1,) arrays
        [s], [B], [FLOP], [-]

    Notes
    -----
    Times of kernels are those of the slowest stage, memory that of the fullest.
    """
    design = solution(run, cost_of_passes).design
    run = replace(run.of(design), itemized=True, system=run.system.sliced(design.world_size))
    ranks = rank_run(run)
    return _named(step_parts(run, ranks, pass_costs(run, ranks)))


def lstm_items(run: LstmRun) -> dict[str, FloatArray]:
    """The same of a language model of LSTM cells."""
    system = run.system.sliced(run.design.world_size)
    return _named(lstm_parts(replace(run, system=system, itemized=True)))


def _named(parts: dict[str, FloatArray]) -> dict[str, FloatArray]:
    """Items among columns: those that have a quantity."""
    return {name: values for name, values in parts.items() if ":" in name}
