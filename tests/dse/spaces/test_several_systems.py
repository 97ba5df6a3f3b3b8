"""A list of systems in a space: which machine is a parameter, evaluated as it is in a space of its own."""

import numpy as np
import pytest

from costmodel import DseError
from costmodel.formats.input_files import dump
from dse.pricing.evaluation import evaluate
from dse.searching.exact.exact_front import exact_front
from dse.spaces.space import Space
from tests.support.cases import by_table, cases

SYSTEMS = ("a100_80g_dgx", "h100_80g_dgx", "gb200_186g_nvl72", "gaudi3_128g")


def space_of(system, **parts):
    data = cases(__file__, "SPACE") | {"system": system}
    return Space.from_text(dump({**data, **parts}))


@pytest.mark.parametrize("index", range(len(SYSTEMS)))
def test_each_machine_costs_what_it_costs_alone(index):
    several, alone = space_of([*SYSTEMS]), space_of(SYSTEMS[index])
    designs = alone.decode(alone.legal.random(12, np.random.default_rng(0)))
    expected = evaluate(alone, alone.encode(designs))
    among = evaluate(several, several.encode([{**design, "system": SYSTEMS[index]} for design in designs]))
    np.testing.assert_array_equal(among.values, expected.values)
    np.testing.assert_array_equal(among.margins, expected.margins)
    for name, values in expected.breakdown.columns().items():
        np.testing.assert_array_equal(among.breakdown.columns()[name], values, err_msg=name)


def test_the_front_is_that_of_the_machines_own_fronts_whichever_way_it_is_found():
    systems = SYSTEMS[:2]
    fronts = [exact_front(space_of([*systems]), method=method).costs for method in ("list", "bounds")]
    assert {*map(tuple, fronts[0])} == {*map(tuple, fronts[1])}
    expected = [tuple(cost) for system in systems for cost in exact_front(space_of(system)).costs]
    assert {*map(tuple, fronts[0])} <= {*expected}


def test_one_machine_can_be_pinned():
    pinned = space_of([*SYSTEMS]).pinned({"system": "h100_80g_dgx"})
    assert pinned.legal.count == space_of("h100_80g_dgx").legal.count
    with pytest.raises(DseError, match=r"'h200_141g_dgx' is not a value; known: .*; system can be h100_80g_dgx"):
        pinned.pinned({"system": "h200_141g_dgx"})


def test_what_the_space_says_of_a_quantity_holds_for_all_machines():
    several = space_of([*SYSTEMS[:2]], given={"world_size": 512, "global_batch_size": 512, "clock": "1 GHz"})
    assert "clock" not in {derived.name for derived in several.derived}
    assert "cores" in {derived.name for derived in several.derived}


@by_table("systems", "mistake")
def test_a_list_that_cannot_be_is_told_why(systems, mistake):
    with pytest.raises(DseError, match=mistake):
        space_of(systems)


def test_words_of_a_parameter_of_ones_own_stay_known_when_it_is_pinned():
    parameters = {"tp": [2, 4, 8], "pp": [8, 16], "cooling": ["air", "liquid"]}
    derived = {
        "dp": "world_size / (tp * pp)",
        "gradient_accumulation_steps": "global_batch_size / dp",
        "clock": "1.2 GHz if cooling == air else 1.4 GHz",
    }
    space = space_of("a100_80g_dgx", parameters=parameters, derived=derived)
    assert space.pinned({"cooling": "liquid"}).legal.count == space.legal.count / 2
    with pytest.raises(DseError, match="words: expected the words of a parameter that the space defines"):
        space_of("a100_80g_dgx", parameters={**parameters, "cooling": {"options": ["air"], "words": ["liquid"]}})
