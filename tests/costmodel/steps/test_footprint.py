"""Memory, prices and limits that need no times are the same without them, to the last bit."""

import numpy as np
import pytest

from benchmarks.workers import switches
from costmodel import DesignPoints
from costmodel.formats.input_files import dump
from costmodel.steps.transformer import FOOTPRINT, TIMES_ALONE
from dse.pricing.evaluated import machine, rules_for
from dse.pricing.evaluation import evaluate, evaluate_unique, untimed_margins
from dse.spaces.space import Space
from tests.support.cases import by_table

SWITCHES = {name: [*(DesignPoints.domains()[name].words or (False, True))] for name in TIMES_ALONE}
SPACES = ("gpt3_175b_1024_a100", "gpt_1t_codesign", "deepseek_v3_2048_h800", "llama3_405b_16384_h100")


def opened(name: str, **parts: object) -> Space:
    """A shipped space with everything open that changes times alone, and two schedules."""
    data = {key: value for key, value in Space.load(name).data.items() if key != "layouts"}
    more = {**SWITCHES, "schedule": ["1f1b", "gpipe"]}
    again = {*more, *(name for name, alias in DesignPoints.aliases.items() if alias.column in more)}
    data["parameters"] = {k: v for k, v in data["parameters"].items() if k not in again} | more
    data["given"] = {key: value for key, value in data["given"].items() if key not in again}
    return Space.from_text(dump({**data, **parts}))


@pytest.mark.parametrize("name", SPACES)
def test_a_footprint_is_that_of_the_whole_step(name):
    space = opened(name)
    columns, rules = space.legal.random(400, np.random.default_rng(0)), rules_for(space)
    known, whole = space.known_values(columns), evaluate(space, columns)
    actual = rules.footprint(machine(space, known), known)
    for column in FOOTPRINT:
        assert (actual[column] == getattr(whole.breakdown, column)).all(), column
    assert (untimed_margins(space, columns, rules) == whole.margins).all()


def test_designs_that_are_alike_are_evaluated_once():
    """Of neighbours in a space of switches, half differ in some that change nothing beside the others."""
    space = switches()
    starts = np.random.default_rng(0).integers(int(space.legal.count) - 64, size=40)
    columns, rules = space.legal.at(np.add.outer(starts, np.arange(64)).ravel()), rules_for(space)
    known, whole = space.known_values(columns), evaluate(space, columns)
    actual = evaluate_unique(space, columns, rules)
    assert rules.unique(machine(space, known), known).rows.size < whole.num_points / 2
    for column, values in whole.breakdown.columns().items():
        assert (actual.breakdown.columns()[column] == values).all(), column
    assert (actual.values == whole.values).all()
    assert (actual.margins == whole.margins).all()


@by_table("constraint", "untimed")
def test_limits_that_ask_for_times_wait_for_them(constraint, untimed):
    derived = Space.load(SPACES[0]).data["derived"]
    more = {"headroom": "dram_capacity - peak_memory", "rate": "tokens_per_second"}
    space = opened(SPACES[0], constraints={"mine": constraint}, derived={**derived, **more})
    columns, rules = space.legal.random(100, np.random.default_rng(0)), rules_for(space)
    margins = untimed_margins(space, columns, rules)
    assert (margins is not None) == untimed
    assert margins is None or (margins == evaluate(space, columns).margins).all()


def test_profiles_that_find_all_at_once_have_no_footprint():
    space = Space.load(SPACES[0])
    assert untimed_margins(space, space.legal.random(3, np.random.default_rng(0)), rules_for(space, "simai")) is None
