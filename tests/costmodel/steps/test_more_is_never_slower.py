"""More of what a machine has never makes a layout slower, cheaper or less hungry: `System.never_slower`."""

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
from tests.support.laws import FOLLOWING, WHOLE

SPACES = ("gpt_1t_codesign", "gpt3_175b_1024_a100", "mixtral_8x22b_128_h100", "lstm_24b_power")
POINTS = 60


def random_run(name, rng):
    """Random layouts of a space, each on a machine of its own about that of the space."""
    space = Space.load(name)
    columns = space.legal.random(POINTS, rng)
    if isinstance(space.model, ModelShape):
        run = transformer_run(space, columns, DesignPoints)
    else:
        known = space.known_values(columns)
        own = {name: known[name] for name in column_units(LstmDesign) if name in known}
        run = Run(space.model, machine(space, known), LstmDesign.of(**own))
    known = {name: run.system.quantities()[name] for name in run.system.never_slower()}
    drawn = {name: values * rng.uniform(0.5, 2.0, POINTS) for name, values in known.items()}
    return run, {**drawn, **{name: np.ceil(drawn[name]) for name in WHOLE}}


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
    lawful = is_lawful(run.design)
    cost = transformer_step if isinstance(run.model, ModelShape) else lstm_step_of
    before = cost(Run(run.model, run.system.with_quantities(less), run.design))
    for quantity, values in less.items():
        if not np.isfinite(values).all():
            continue
        more = {**less, quantity: values * rng.uniform(1.05, 4.0, POINTS)}
        if quantity in WHOLE:
            more[quantity] = np.ceil(more[quantity])
        if other := FOLLOWING.get(quantity):
            more[other] = less[other] * more[quantity] / values
        after = cost(Run(run.model, run.system.with_quantities(more), run.design))
        assert np.isfinite(after.step_time).all()
        assert (after.step_time <= before.step_time * (1 + 1e-12))[lawful].all(), quantity
        assert (after.system_price >= before.system_price * (1 - 1e-12)).all(), quantity
        assert (after.system_power >= before.system_power * (1 - 1e-12)).all(), quantity
