"""Bounds that no design beats: stopped halfway, on spaces whose designs can all be listed."""

from itertools import count
from signal import default_int_handler as stop

import pytest

from costmodel.errors import DseError
from dse.api.study import Study
from dse.cli import main
from dse.fronts import as_costs
from dse.searching.bounding import branching
from dse.searching.exact.certificate import study_bound
from dse.searching.exact.exact_front import exact_front
from dse.spaces.space import Space
from tests.dse.searching.test_enumeration import random_space
from tests.support.commands import json_of, stdout_of


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1])
def test_a_bound_is_never_above_the_best(tmp_path, monkeypatch, seed):
    monkeypatch.setattr("dse.searching.bounding.branching.WORTH_SENDING", 64)
    space = random_space(seed)
    study = Study.open(space, "some", storage=f"sqlite:///{tmp_path}/dse.db", sampler="random")
    study.run(60)
    exact = exact_front(space, method="list").costs
    share = study.hypervolume / study.box.hypervolume(exact)
    before = 0.0
    for evaluations in (1, 300, 3000, 1e9):
        actual = study_bound(study, evaluations=evaluations)
        limits = as_costs([*actual.limits.values()], [objective.direction for objective in space.objectives])
        assert (limits <= exact.min(axis=0)).all()
        assert before <= actual.hypervolume_ratio <= share * (1 + 1e-12)
        before = actual.hypervolume_ratio
    assert (actual.boxes_left, before) == (0, pytest.approx(share))
    assert (limits == exact.min(axis=0)).all()


@pytest.mark.slow
def test_a_bound_says_that_it_is_no_certificate(monkeypatch):
    """It may be interrupted, which loses no box of the interrupted round."""
    study = Study.open(Space.load("gpt_1t_power_split"), "split", sampler="random")
    study.run(40)
    assert "no certificate" in " ".join(stdout_of("enumerate", "--bound", "split", "--evaluations", "1e4").split())
    actual = json_of("enumerate", "--bound", "split", "--evaluations", "1e5")["bound"]
    assert actual["boxes_left"] > 0
    assert all(gap >= 0 for gap in actual["gaps"].values())
    assert main(["enumerate", "gpt_1t_power_split", "--bound", "split"]) == 1
    explored, calls = branching.explored, count(1)
    monkeypatch.setattr(branching, "explored", lambda one: explored(one) if next(calls) % 3 else stop(2, None))
    assert main(["enumerate", "--bound", "split"]) == 130
    interrupted = study_bound(study)
    assert interrupted.interrupted
    assert all(limit <= actual["limits"][name] for name, limit in interrupted.limits.items())


def test_spaces_without_bounds_have_none(small_space):
    study = Study.open(Space.from_text(small_space), "few")
    study.run(10)
    with pytest.raises(DseError, match="a longer search of another seed"):
        study_bound(study)
