"""Why a design costs what it does: trees that add up, whatever the design."""

from __future__ import annotations

import numpy as np
import pytest

from costmodel.steps.breakdown import PARTS, with_unit_suffix
from dse import Space
from dse.explain.explanation import explain
from dse.explain.paths import label
from dse.spaces.space import space_names

#: Designs of each space that are drawn.
DRAWN = 6

#: Space -> the profile that prices it, where the native one does not.
PROFILES = {"gpt_1t_4096_dfmodel": "dfmodel-gen3"}

#: What no shipped space explores, held fixed.
PINNED = [
    {"zero": 3, "overlap_grad_reduce": True},
    {"schedule": "dualpipe_v", "vpp": 2, "pp": 8},
    {"optimizer": "muon", "offload_optimizer": 0.5},
    {"offload_activations": 0.5, "recompute": "none"},
    {"overlap_tp": True, "sequence_parallel": True},
]


def explained(space, count=DRAWN, profile="native"):
    designs = space.decode(space.legal.random(count, np.random.default_rng(1)))
    return [explain(space, params, profile=profile) for params in designs]


def assert_adds_up(explanation):
    """Every leaf belongs to a part of the breakdown, and those of each part add up to it."""
    for total, tree, unit in (
        ("step_time", explanation.time, "seconds"),
        ("peak_memory", explanation.memory, "bytes"),
    ):
        whole = explanation.record["breakdown"][with_unit_suffix(total)]
        assert tree[unit].sum() == pytest.approx(whole, rel=1e-12)
        assert (tree[unit] > -1e-12 * whole).all()
        assert tree["path"].is_unique
        of_part = tree[unit].groupby(tree["path"].str[0]).sum()
        for part in PARTS[total]:
            priced = explanation.record["breakdown"][with_unit_suffix(part)]
            assert of_part.get(label(part), 0.0) == pytest.approx(priced, rel=1e-9, abs=1e-12 * whole)


@pytest.mark.parametrize("name", space_names())
def test_leaves_add_up_to_the_step_and_to_the_memory(name):
    for explanation in explained(Space.load(name), profile=PROFILES.get(name, "native")):
        assert_adds_up(explanation)


@pytest.mark.parametrize("pins", PINNED, ids=lambda pins: next(iter(pins)))
def test_leaves_add_up_where_no_shipped_space_goes(pins):
    space = Space.load("gpt3_175b_1024_a100").pinned(pins)
    for explanation in explained(space, count=3):
        assert_adds_up(explanation)


def test_a_profile_that_names_no_kernels_has_the_parts_of_its_breakdown():
    [explanation] = explained(Space.load("gpt3_175b_1024_a100"), count=1, profile="simai")
    assert_adds_up(explanation)
    assert explanation.kernels.empty


def test_kernels_are_those_of_the_step_and_none_beats_its_ceiling():
    explanation = explained(Space.load("gpt3_175b_1024_a100"), count=1)[0]
    kernels, breakdown = explanation.kernels, explanation.record["breakdown"]
    passes = sum(breakdown[f"{name}_time_s"] for name in ("forward", "backward", "recompute"))
    assert kernels["seconds"].sum() == pytest.approx(passes - breakdown["launch_bound_time_s"])
    assert (kernels["attained"] <= kernels["ceiling"] * (1 + 1e-12)).all()
    assert set(kernels["bound"]) <= {"arithmetic", "launch", *(m.name for m in explanation.system.memory)}
