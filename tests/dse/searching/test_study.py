"""A study is all in its database: the space, how it is searched, and what was found."""

import optuna
import pytest
from sqlalchemy.pool import NullPool

from costmodel.errors import DseError
from dse.api.study import Study
from dse.searching.batches.history import COUNTED
from dse.searching.study import studies
from dse.spaces.space import Space
from dse.storage.optuna_store import Store


@pytest.fixture(scope="module")
def study(searched, space):
    return searched(space, 100, "gpt3")


def test_the_database_alone_is_enough_to_go_on(study, space):
    loaded = Study.load("gpt3", storage=study.storage)
    assert loaded.space.fingerprint == space.fingerprint
    assert loaded.plan == study.plan
    assert loaded.space.legal.count == space.legal.count


def test_trials_are_a_table(study):
    trials = study.trials()
    assert trials["trial"].tolist() == list(range(100))
    assert {"tp", "dp", "step_time_s", "margin_fits_in_memory_bytes", "bubble_time_s"} <= set(trials.columns)
    assert (trials["feasible"] == (trials["margin_fits_in_memory_bytes"] >= 0)).all()
    assert trials["dp"].tolist() == (64 / (trials["tp"] * trials["pp"])).tolist()
    assert trials["completed"].dt.tz is not None
    assert not trials.columns.duplicated().any()


def test_the_front_is_feasible_and_what_optuna_calls_best(study):
    front = study.pareto_front()
    assert front["feasible"].all()
    assert front["step_time_s"].is_monotonic_increasing
    assert set(front["trial"]) == {trial.number for trial in study.optuna.best_trials}


def test_optuna_finds_its_own_study(study):
    assert study.optuna.metric_names == ["step_time_s", "peak_memory_bytes"]
    assert study.optuna.trials[3].user_attrs["breakdown"].keys() >= {"step_time_s", "mfu"}
    importances = optuna.importance.get_param_importances(study.optuna)  # for reaching the front
    assert importances.keys() <= {parameter.name for parameter in study.space.parameters}


def test_a_study_without_trials_has_empty_tables(space):
    study = Study.create(space, "new")
    assert study.trials().empty
    assert study.pareto_front().empty
    assert study.hypervolume == 0
    assert {"trial", "tp", "step_time_s"} <= set(study.trials().columns)


def test_a_study_of_another_space_is_refused(study, space):
    for other, difference in (
        (space.pinned({"tp": 8}), "parameters"),
        (space.with_objectives(["step_time"]), "objectives"),
        (space.pinned({"global_batch_size": 128}), "given"),
    ):
        with pytest.raises(DseError, match=rf"searches another space \(differs in {difference}\).*`dse resume gpt3`"):
            Study.open(other, "gpt3", storage=study.storage)


def test_another_seed_or_sampler_or_a_name_that_is_taken_is_refused(study, space):
    with pytest.raises(DseError, match="has seed 0, not 1"):
        Study.open(space, "gpt3", storage=study.storage, seed=1)
    with pytest.raises(DseError, match="has sampler screening, not random"):
        Study.open(space, "gpt3", storage=study.storage, sampler="random")
    with pytest.raises(DseError, match="already in"):
        Study.create(space, "gpt3", storage=study.storage)


def test_a_study_that_dse_did_not_make(url):
    storage = optuna.storages.RDBStorage(url, engine_kwargs={"poolclass": NullPool})  # or its pool stays open
    optuna.create_study(study_name="plain", storage=storage)
    with pytest.raises(DseError, match="not made by dse"):
        Study.load("plain", storage=url)


def test_studies_lists_what_a_database_holds(space, url):
    study = Study.create(space, "gpt3", storage=url, sampler="random")
    study.run(30)
    study.optuna.ask()
    [summary], trials = studies(url), study.trials()
    assert (summary.name, summary.sampler) == ("gpt3", "random")
    assert (summary.complete, summary.failed, summary.running) == (30, 0, 1)
    assert summary.infeasible == (~trials["feasible"]).sum()
    assert summary.best["step_time_s"] == trials.loc[trials["feasible"], "step_time_s"].min()


def test_studies_reads_only_the_trials_after_the_last_counts(space, url, monkeypatch):
    first_read = []
    Study.create(space, "gpt3", storage=url, sampler="nsga2").run(400)
    original = Store.columns

    def columns(store, stored, *, attribute=None, first=0):
        first_read.append(first)
        return original(store, stored, attribute=attribute, first=first)

    monkeypatch.setattr(Store, "columns", columns)
    counted = studies(url)
    with Store(url, "write") as store:
        store.drop_user_attrs(store.study("gpt3").study_id, [COUNTED])
    assert studies(url) == counted
    assert 0 == first_read[1] < 300 <= first_read[0] < 400
    monkeypatch.setattr("dse.searching.study.MOST_UNCOUNTED", 399)
    [unread] = studies(url)
    assert (counted[0].complete, unread.complete, unread.unread, unread.best) == (400, 400, 400, {})
    assert studies(url, "gpt3") == counted


def test_a_study_that_was_never_run_has_no_budget(space):
    study = Study.create(space)
    with pytest.raises(DseError, match=f"study '{space.name}': did not run yet and has no budget; name one"):
        study.run()


def test_a_bar_says_how_far_a_run_is(small_space, capsys):
    Study.create(Space.from_text(small_space)).run(24, progress=True)
    last = capsys.readouterr().err.split("\r")[-1]
    assert "24/24" in last
    assert "best step_time" in last
