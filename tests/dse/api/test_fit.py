"""`dse fit` and `dse evaluate --best`: the nearest design that works, and the best beside what is named."""

import itertools

from dse import Space, evaluate
from dse.pricing.evaluated import rules_for
from dse.searching.nearest_design import nearest_feasible
from tests.support.cases import by_table
from tests.support.commands import json_of, stderr_of, stdout_of

SPACE = "gpt3_175b_1024_a100"


def fitted(*sets, code=0):
    """The JSON of a fit."""
    return json_of("fit", SPACE, *itertools.chain(*(("--set", text) for text in sets)), code=code)


def test_what_fits_is_kept_and_the_rest_is_the_best():
    actual = fitted("tp=8", "pp=16")
    assert actual["feasible"] is True
    assert (actual["changed"], actual["broken"]) == ({}, {})
    space = Space.load(SPACE, {"tp": 8, "pp": 16})
    [*designs] = space.legal.enumerate(1 << 20)
    every = evaluate(space, designs[0])
    assert actual["values"]["step_time_s"] == every.values[every.feasible, 0].min()


def test_as_little_as_can_be_is_changed(small_space):
    """A second method: every design of a small space, one at a time, in plain Python."""
    space = Space.from_text(small_space)
    [designs] = space.legal.enumerate(1 << 20)
    actual = evaluate(space, designs)
    places = {p.name: {value: n for n, value in enumerate(p.choices)} for p in space.parameters}
    for tp, pp in itertools.product((1, 8), (1, 8)):
        named = {"tp": tp, "pp": pp, "recompute": "none"}

        def how_far(design, named=named):
            moved = {n: value for n, value in named.items() if design[n] != value}
            steps = sum(1 if n == "recompute" else abs(places[n][design[n]] - places[n][v]) for n, v in moved.items())
            return len(moved), steps

        rows = zip(space.decode(designs), actual.values.tolist(), actual.feasible.tolist(), strict=True)
        kept = [(*how_far(design), *values) for design, values, fits in rows if fits]
        fit = nearest_feasible(space, named, rules_for(space))
        assert (len(fit.changed), how_far(fit.params)[1]) == min(kept)[:2]
        assert fit.params == {**fit.params, **{n: v for n, v in named.items() if n not in fit.changed}}


def test_it_says_what_it_changed_and_which_limit_asked_for_it():
    actual = fitted("tp=1", "pp=8", "recompute=none")
    assert actual["broken"]["fits_in_memory"] < 0
    assert actual["changed"]
    said = " ".join(stdout_of("fit", SPACE, "--set", "tp=1", "--set", "pp=8", "--set", "recompute=none").split())
    assert "since whatever else is chosen, tp=1 pp=8 recompute=none breaks fits_in_memory by " in said


def test_a_value_that_is_no_option_or_breaks_a_rule_is_moved():
    assert fitted("tp=8", "pp=5")["changed"] == {"pp": {"asked": 5, "is": 4}}
    out = stdout_of("fit", SPACE, "--set", "tp=8", "--set", "pp=5")
    assert "pp=5: not an option; pp can be 1, 2, 3" in " ".join(out.split())


@by_table("sets", "message")
def test_a_wish_that_is_none_is_told_so(sets, message):
    assert message in stderr_of("fit", SPACE, *itertools.chain(*(("--set", text) for text in sets)))


def test_evaluate_best_completes_with_the_best_feasible_design():
    best = json_of("evaluate", SPACE, "--set", "tp=8", "--set", "pp=16", "--best")
    assert best["feasible"] is True
    assert best["values"] == fitted("tp=8", "pp=16")["values"]
    error = stderr_of("evaluate", SPACE, "--set", "dram_capacity=1 GB", "--best")
    assert "--best: no design with these values is feasible" in error
