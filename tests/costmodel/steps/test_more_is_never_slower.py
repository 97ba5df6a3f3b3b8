"""More of what a machine has never makes a layout slower, cheaper or less hungry: `System.never_slower`."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, LstmDesign, ModelShape, load_system
from costmodel.columns import column_units
from costmodel.lstm import lstm_step_of
from costmodel.steps.transformer import transformer_step
from costmodel.training.run import Run
from dse import Space
from dse.pricing.evaluated import machine
from dse.pricing.evaluation import transformer_run
from tests.support.laws import WHOLE, more_of_each, on_machines

SPACES = ("gpt_1t_codesign", "gpt3_175b_1024_a100", "mixtral_8x22b_128_h100", "lstm_24b_power")
POINTS = 60


def random_run(name, rng):
    """Random layouts of a space, each on a machine of its own about that of the space, and what this one has."""
    space = Space.load(name)
    columns = space.legal.random(POINTS, rng)
    if isinstance(space.model, ModelShape):
        run = transformer_run(space, columns, DesignPoints)
    else:
        known = space.known_values(columns)
        own = {name: known[name] for name in column_units(LstmDesign) if name in known}
        run = Run(space.model, machine(space, known), LstmDesign.of(**own))
    known = {name: run.system.quantities()[name] for name in run.system.never_slower()}
    drawn = {
        name: values * rng.uniform(0.5, 2.0, POINTS) for name, values in known.items() if np.isfinite(values).all()
    }
    drawn |= {name: np.ceil(drawn[name]) for name in WHOLE}
    return replace(run, system=run.system.with_quantities(drawn)), drawn


def is_lawful(design):
    """Designs of 1F1B with no pipeline, or whose replicas exchange once a step; (points,)."""
    if not isinstance(design, DesignPoints):
        return np.ones(POINTS, dtype=bool)
    lawful = design.is_1f1b & ((design.pp == 1) | (design.zero <= 1))
    assert lawful.sum() > POINTS / 4
    return np.broadcast_to(lawful, (POINTS,))


def test_the_quantities_are_those_that_work_is_divided_by():
    told = set(load_system("a100_80g_dgx").never_slower())
    assert {"cores", "clock", "sram_capacity", "l2_capacity", "dram_capacity", "dram_bandwidth"} <= told
    assert {"node_bandwidth", "fabric_bandwidth", "host_link_bandwidth"} <= told
    assert not told & {"array_height", "array_width", "node_size", "tile_latency", "collective_cores"}


@pytest.mark.parametrize("name", SPACES)
def test_more_is_never_slower_cheaper_or_less_hungry(name):
    rng = np.random.default_rng(SPACES.index(name))
    run, less = random_run(name, rng)
    lawful, better = is_lawful(run.design), more_of_each(less, rng)
    cost = transformer_step if isinstance(run.model, ModelShape) else lstm_step_of
    before, *after = on_machines(run, [{}, *better.values()], cost)
    for quantity, found in zip(better, after, strict=True):
        assert np.isfinite(found.step_time).all()
        assert (found.step_time <= before.step_time * (1 + 1e-12))[lawful].all(), quantity
        assert (found.system_price >= before.system_price * (1 - 1e-12)).all(), quantity
        assert (found.system_power >= before.system_power * (1 - 1e-12)).all(), quantity
