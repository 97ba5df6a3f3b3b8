"""Legal designs: all of them and only them, drawn evenly, and found near any proposal."""

import itertools
import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from costmodel import DseError
from costmodel.formats.input_files import dump
from dse.spaces import legal as legal_module
from dse.spaces.space import Space
from tests.support.cases import cases
from tests.support.rules import broken_rules

BASE = cases(__file__, "BASE")


def space_with(**parts) -> Space:
    return Space.from_text(dump({**BASE, **parts}))


OPTIONS: dict[str, list[Any]] = {
    "recompute": ["full", "none"], "tp": [1, 2, 3, 4, 6], "pp": [1, 2, 3, 4, 6, 12], "vpp": [1, 2, 3],
    "micro_batch_size": [1, 2, 4], "sequence_parallel": [True, False], "dram_capacity": [4e10, 8e10],
}  # fmt: skip


def by_brute_force() -> list[tuple[object, ...]]:
    """The rules of the small space once more, by plain Python on one design at a time."""
    return [
        design
        for design in itertools.product(*OPTIONS.values())
        for recompute, tp, pp, vpp, micro, sequence, capacity in [design]
        if 48 % (tp * pp) == 0
        and 96 % (48 // (tp * pp) * micro) == 0
        and 6 % tp == 0
        and 12 % (pp * vpp) == 0
        and (vpp == 1 or pp > 1)
        and (tp > 1 or not sequence)
    ]


SMALL = space_with()
LEGAL = set(by_brute_force())


def test_enumeration_is_what_brute_force_finds():
    listed = [SMALL.legal.key(d) for columns in SMALL.legal.enumerate(100) for d in SMALL.decode(columns)]
    assert SMALL.legal.count == len(listed) == len(set(listed))
    assert set(listed) == LEGAL


def test_draws_are_legal_and_even():
    draws = SMALL.legal.random(60 * int(SMALL.legal.count), np.random.default_rng(0))
    counts = Counter(map(SMALL.legal.key, SMALL.decode(draws)))
    assert counts.keys() == LEGAL
    assert max(abs(count - 60) for count in counts.values()) < 6 * math.sqrt(60)


proposals = st.fixed_dictionaries({name: st.sampled_from(options) for name, options in OPTIONS.items()})


@given(proposals, st.integers(0, 2**32))
@settings(max_examples=200)
def test_the_nearest_design_is_legal_and_keeps_what_it_can(proposal, seed):
    actual = SMALL.legal.nearest(proposal, np.random.default_rng(seed))
    assert SMALL.legal.key(actual) in LEGAL
    assert actual.keys() == proposal.keys()
    if SMALL.legal.key(proposal) in LEGAL:
        assert actual == proposal
    assert not broken_rules(SMALL, actual)
    # tp comes before what it is tied to, so that it stays wherever some design has it.
    assert (actual["tp"] == proposal["tp"]) == (proposal["tp"] != 4)


def test_neighbours_are_legal_and_come_to_all_others_in_the_end():
    [start] = SMALL.decode(SMALL.legal.random(1, np.random.default_rng(3)))
    keys = [SMALL.legal.key(design) for design in SMALL.legal.neighbours(start, np.random.default_rng(4))]
    assert set(keys) == LEGAL - {SMALL.legal.key(start)}
    near = [sum(a != b for a, b in zip(key, SMALL.legal.key(start), strict=True)) for key in keys]
    assert np.mean(near[:10]) < np.mean(near[-100:])


def test_rules_that_a_design_breaks_are_named():
    design = dict(zip(BASE["parameters"], ("full", 4, 1, 2, 1, False, 4e10), strict=True))
    assert {rule.name for rule in broken_rules(SMALL, design)} == {"tp_divides_heads", "interleaving_needs_a_pipeline"}


def test_a_space_without_a_legal_design_names_the_rules_that_exclude_each_other():
    rules = {**BASE["constraints"], "wide": "tp * pp >= 8", "narrow": "tp + pp <= 4"}
    empty = space_with(constraints=rules)
    assert empty.legal.count == 0
    assert [name for name, _ in empty.legal.blocking()] == ["wide", "narrow"]
    for ask in (lambda: empty.legal.random(1, np.random.default_rng(0)), lambda: empty.pinned({"vpp": 1})):
        with pytest.raises(DseError, match=r"wide \(tp \* pp >= 8\); narrow"):
            ask()


def test_sizes_must_use_the_whole_world_even_where_no_rule_says_so():
    parameters = {**BASE["parameters"], "dp": [1, 2, 4, 8]}
    derived = {"gradient_accumulation_steps": BASE["derived"]["gradient_accumulation_steps"]}
    space = space_with(parameters=parameters, derived=derived)
    [columns] = space.legal.enumerate(10**6)
    assert (columns["tp"] * columns["pp"] * columns["dp"] == 48).all()


RANGES = {
    "clock": {"from": "1 GHz", "to": "2 GHz"},
    "dram_bandwidth": {"from": "1 TB/s", "to": "8 TB/s", "scale": "log"},
}


def test_ranges_are_drawn_until_their_rules_hold():
    space = space_with(
        parameters={**BASE["parameters"], **RANGES},
        constraints={**BASE["constraints"], "balance": "dram_bandwidth <= 3 kB * clock"},
    )
    rng = np.random.default_rng(0)
    columns = space.legal.random(500, rng)
    assert math.isinf(space.legal.count)
    assert (columns["dram_bandwidth"] <= 3e3 * columns["clock"]).all()
    assert ((columns["clock"] >= 1e9) & (columns["clock"] <= 2e9)).all()
    [design] = space.decode(space.legal.random(1, rng))
    assert space.legal.nearest(design, rng) == design
    actual = space.legal.nearest({**design, "clock": 1e9, "dram_bandwidth": 8e12}, rng)
    assert actual["dram_bandwidth"] <= 3e3 * actual["clock"]
    others = itertools.islice(space.legal.neighbours(design, rng), 20)
    assert all(not broken_rules(space, other) for other in others)
    with pytest.raises(DseError, match="clock, dram_bandwidth: a range without steps has no end of designs"):
        next(space.legal.enumerate())


def test_ranges_whose_rules_never_hold_are_given_up(monkeypatch):
    monkeypatch.setattr(legal_module, "MOST_DRAWS", 10)
    space = space_with(
        parameters={**BASE["parameters"], **RANGES}, constraints={"never": "dram_bandwidth <= 1 B * clock"}
    )
    with pytest.raises(DseError, match="10 draws found no design that keeps never"):
        space.legal.random(1, np.random.default_rng(0))


def test_large_tables_grow_in_blocks_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(legal_module, "BLOCK_ROWS", 16)
    assert space_with().legal.count == SMALL.legal.count
    monkeypatch.setattr(legal_module, "MOST_ROWS", 50)
    with pytest.raises(DseError, match="more than 50 combinations of tp, pp, vpp"):
        _ = space_with().legal.count
