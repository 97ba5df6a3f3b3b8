"""A study knows what evaluated its trials: what is stored is what the cost model gives, or it is said."""

import re
import sqlite3

import optuna
import pytest
import yaml

from costmodel.errors import DseError
from dse.api.study import Study
from dse.cli import main
from dse.spaces.space import Space
from tests.dse.pricing.test_workloads import chips
from tests.support.cases import cases
from tests.support.commands import json_of, stderr_of, stdout_of
from tests.support.runs import slower

#: Every kind of study: what its space changes in the small one, and how it is searched.
KINDS = cases(__file__, "KINDS")


def space_of(kind, small_space):
    """The space of a kind of study."""
    changes, _ = KINDS[kind]
    if isinstance(changes, str):
        return Space.load(changes)
    if "workloads" in changes:
        return chips(large={"model": "gpt_22b", "weight": 1.0}, small={"model": "llama3_8b", "weight": 2.0})
    data = yaml.safe_load(small_space)
    parts = {key: section for key, section in changes.items() if key in data}
    space = Space.from_data({**data, **parts})
    space = space.robust() if "robust" in changes else space
    return space.with_tokens(changes["tokens"]) if "tokens" in changes else space


@pytest.fixture
def study(small_space):
    study = Study.create(Space.from_text(small_space), "small", sampler="random")
    study.run(20)
    return study


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_study_is_evaluated_again_to_the_bit(kind, small_space):
    _, how = KINDS[kind]
    Study.create(space_of(kind, small_space), "one", **how).run(16)
    study = Study.load("one")
    assert study.changes() == []
    assert [*study.differing()] == [(len(study.table), [])]


#: What somebody changes of trial 7: table, column, new value, which row; and a figure that is another then.
FORGED = cases(__file__, "FORGED")


def forged(what):
    """Name of a figure of a trial, after somebody changed it in the database."""
    table, change, row, figure = FORGED[what]
    trial = "(SELECT trial_id FROM trials WHERE number = 7)"
    with sqlite3.connect("dse.db") as database:
        update = database.execute(f"UPDATE {table} SET {change} WHERE {row} AND trial_id = {trial}")
        assert update.rowcount == 1
    database.close()
    return figure


@pytest.mark.parametrize("what", FORGED)
def test_what_somebody_changed_in_the_database_is_found(what, study):
    figure = forged(what)
    actual = json_of("check", "small", code=1)
    assert {difference["trial"] for difference in actual["differences"]} == {7}
    assert figure in {difference["column"] for difference in actual["differences"]}
    assert (actual["n_checked"], actual["n_differing"]) == (20, 1)
    assert "1 of 20 trials differ from the cost model" in stdout_of("check", "small", code=1)


def test_a_forged_step_is_not_believed_when_a_search_goes_on(study):
    forged("a value")
    again = Study.load("small")
    with pytest.raises(DseError, match=r"trial 7: step_time_s: 1 ms stored, the cost model gives .* s \(1 of 20"):
        again.run(30)


def test_a_sample_of_a_study_is_checked_unless_all_is_asked_for(study, monkeypatch):
    monkeypatch.setattr("dse.cli.commands.studies.SAMPLE", 3)
    assert stdout_of("check", "small") == "Study small: 3 trials evaluated again, all as stored.\n"
    assert stdout_of("check", "small", "--all") == "Study small: 20 trials evaluated again, all as stored.\n"


def test_a_search_goes_on_over_last_bits_which_a_check_finds(study, monkeypatch):
    slower(monkeypatch, 1 + 1e-12)
    again = Study.load("small")
    assert again.changes() == []
    assert {difference.trial for _, actual in again.differing() for difference in actual} == {*range(20)}


def test_under_another_cost_model_a_study_is_not_continued(study, monkeypatch):
    slower(monkeypatch, 1.5)
    monkeypatch.setattr("dse.searching.study_attributes.versions", lambda: {"dse": "99.0"})
    [line] = stderr_of("resume", "small", "--budget", "30").splitlines()
    assert re.fullmatch(
        r"dse: study 'small': its trials were evaluated differently: version: dse \S+ stored, 99.0 now; "
        r"trial 0: step_time_s: .* stored, the cost model gives .* \(20 of 20 looked at differ\); "
        r"`dse studies small --check` lists the differences; start a new study from its best designs: "
        r"`dse search ... --study NEW --warm-start small`",
        line,
    )
    assert len(Study.load("small").table) == 20


def test_what_a_refusal_proposes_begins_anew(study, small_space, tmp_path, monkeypatch):
    (tmp_path / "small.yaml").write_text(small_space)
    slower(monkeypatch, 1.5)
    command = ["search", "small.yaml", "--sampler", "random", "--budget", "20"]
    assert main([*command, "--study", "new", "--warm-start", "small"]) == 0
    new, old = (Study.load(name) for name in ("new", "small"))
    assert new.changes() == []
    best = old.pareto_front().iloc[0]
    same = (new.trials()[["tp", "pp", "recompute"]] == best[["tp", "pp", "recompute"]]).all(axis=1)
    assert new.trials()[same]["step_time_s"].item() == pytest.approx(1.5 * best["step_time_s"])


def test_another_system_is_another_study_and_both_values_are_named(study, small_space):
    text = Space.from_text(small_space).text
    assert "1.41 GHz" in text
    for other, what in (
        (Space.from_text(text.replace("1.41 GHz", "1.5 GHz")), r"system\S*clock: 1.41 GHz stored, 1.5 GHz now"),
        (Space.from_text(text).set_to({"clock": "1.5 GHz"}), "given.clock: none stored, 1.5 GHz now"),
    ):
        with pytest.raises(DseError, match=rf"searches another space \(differs in \w+\): {what}; continue"):
            Study.open(other, "small", storage=study.storage)


def test_trials_of_other_programs_are_counted_and_not_checked(study):
    storage = optuna.storages.RDBStorage(study.storage)
    trial = optuna.load_study(study_name="small", storage=storage).ask()
    optuna.load_study(study_name="small", storage=storage).tell(trial, [0.001, 1.0])
    storage.engine.dispose()
    assert "1 trial of other programs cannot be checked" in stdout_of("check", "small")
    assert study.pareto_front()["step_time_s"].min() > 0.001
