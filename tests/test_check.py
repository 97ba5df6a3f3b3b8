"""A study knows what priced its trials: what is stored is what the cost model gives, or it is said."""

import json
import sqlite3
from dataclasses import replace

import numpy as np
import optuna
import pytest
import yaml

from costmodel.errors import DseError
from costmodel.formats import shipped
from dse.cli import main
from dse.library.study import Study
from dse.searching.record import study_changes
from dse.searching.record.creation import CONTINUED, DIGEST, VERSIONS
from dse.spaces.space import Space
from dse.storage.optuna_store import Store
from tests.servers import postgresql_server
from tests.test_workloads import chips

EXACT = {"recompute": {"options": ["none", "selective", "full"], "by": "exact"}}
HARDWARE = {"clock": {"from": "1 GHz", "to": "2 GHz"}, "tp": [1, 2, 4, 8], "pp": [1, 2, 4]}

#: Every kind of study: what its space changes in the small one, and how it is searched.
KINDS = {
    "plain": ({}, {}),
    "open hardware": ({"parameters": HARDWARE}, {}),
    "several systems": ({"system": ["a100_80g_dgx", "h100_80g_dgx"]}, {}),
    "exact": ({"parameters": {"tp": [1, 2, 4, 8], "pp": [1, 2, 4, 8], **EXACT}}, {}),
    "robust": ({"robust": True}, {}),
    "runs": ({"tokens": 1e12}, {}),
    "workloads": ({"workloads": True}, {}),
    "nsga2": ({}, {"sampler": "nsga2"}),
    "simai": ({}, {"profile": "simai"}),
    "dfmodel": ("gpt_1t_4096_dfmodel", {"profile": "dfmodel-gen3"}),
    "lstm": ("lstm_24b_power", {}),
}


def space_of(kind, small_space, given=None):
    """The space of a kind of study; `given` is what it holds fixed beside."""
    changes, _ = KINDS[kind]
    if isinstance(changes, str):
        return Space.load(changes).set_to(given or {})
    if "workloads" in changes:
        space = chips(large={"model": "gpt_22b", "weight": 1.0}, small={"model": "llama3_8b", "weight": 2.0})
        return space.set_to(given or {})
    data = yaml.safe_load(small_space)
    parts = {key: own for key, own in changes.items() if key in data}
    space = Space.from_data({**data, **parts}).set_to(given or {})
    space = space.robust() if "robust" in changes else space
    return space.with_tokens(changes["tokens"]) if "tokens" in changes else space


def differing(study):
    return [own for _, found in study.differing() for own in found]


def changed_in(storage, statement):
    """Change a database as somebody would by hand."""
    with sqlite3.connect(storage.removeprefix("sqlite:///")) as database:
        assert database.execute(statement).rowcount == 1
    database.close()


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/dse.db"


@pytest.fixture
def study(url, small_space):
    study = Study.create(Space.from_text(small_space), "small", storage=url, sampler="random")
    study.run(20)
    return study


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_study_is_checked_and_priced_anew(kind, url, small_space):
    _, how = KINDS[kind]
    study = Study.create(space_of(kind, small_space), "one", storage=url, **how)
    study.run(16)
    study = Study.load("one", storage=url)
    assert study.changes() == []
    assert differing(study) == []
    other = space_of(kind, small_space, {"kernel_launch": "50 us", "host_power_overhead": 1.7})
    lines = study_changes.content_changes(
        study.attributes[DIGEST]["content"], study_changes.content(other), other
    )
    assert all("kernel_launch" in line or "host_power_overhead" in line for line in lines)
    assert len(lines) == 2
    before = study.trials()
    study.settle("reprice", other)
    assert study.changes() == []
    assert differing(study) == []
    assert study.repricing.trials == study.repricing.changed == len(before)
    after = study.trials()
    objective = study.space.objectives[0]
    was = after[objective.key.replace(objective.name, f"{objective.name}_before")]
    np.testing.assert_array_equal(was, before[objective.key])
    study.run(20)  # goes on, over the new values
    assert differing(Study.load("one", storage=url)) == []
    assert len(study.table.front().records())


#: What somebody changes of trial 7: table, column, new value, which row; and a figure that is another then.
FORGED = {
    "a value": ("trial_values", "value = 0.001", "objective = 0", "values.step_time_s"),
    "a parameter": (
        *("trial_params", "param_value = (param_value + 1) % 3"),
        *("param_name = 'recompute'", "values.step_time_s"),
    ),
    "a breakdown": (
        *("trial_user_attributes", "value_json = replace(value_json, '\"mfu\": ', '\"mfu\": 1')"),
        *("\"key\" = 'breakdown'", "breakdown.mfu"),
    ),
    "a margin": ("trial_user_attributes", "value_json = '{}'", "\"key\" = 'margins'", "margins.fits_bytes"),
    "a violation": (
        *("trial_system_attributes", "value_json = CAST(-value_json AS TEXT)"),
        *("\"key\" = 'constraints:fits_bytes'", "feasible"),
    ),
}


def forge(study, what):
    """Change a figure of a trial; the figure."""
    table, change, row, figure = FORGED[what]
    trial = "(SELECT trial_id FROM trials WHERE number = 7)"
    changed_in(study.storage, f"UPDATE {table} SET {change} WHERE {row} AND trial_id = {trial}")
    return figure


@pytest.mark.parametrize("forged", FORGED)
def test_what_somebody_changed_in_the_database_is_found(forged, study, capsys):
    figure = forge(study, forged)
    command = ["check", "small", "--storage", study.storage]
    assert main([*command, "--format", "json"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert {own["trial"] for own in found["differences"]} == {7}
    assert figure in {own["column"] for own in found["differences"]}
    assert (found["n_checked"], found["n_differing"]) == (20, 1)
    assert main(command) == 1
    assert "1 of 20 trials are not as the cost model gives them" in capsys.readouterr().out
    assert main(["resume", "small", "--reprice", "--budget", "24", "--storage", study.storage]) == 0
    assert "20 trials priced anew: 1 changed" in capsys.readouterr().err
    assert main(command) == 0
    assert capsys.readouterr().out == "Study small: 24 trials priced again, all as stored.\n"


def test_a_forged_step_is_not_believed_when_a_search_goes_on(study):
    forge(study, "a value")
    again = Study.load("small", storage=study.storage)
    with pytest.raises(
        DseError, match=r"trial 7: step_time_s: 1 ms stored, the cost model gives .* s \(1 of 20"
    ):
        again.run(30)
    again.settle("accept")
    Study.load("small", storage=study.storage).run(30)  # taken as it is, and remembered
    assert {own.trial for own in differing(again)} == {7}


def slower(monkeypatch, factor):
    """A cost model by which everything takes longer."""
    from costmodel.profiles.registry import design_rules

    kind = type(design_rules("native", Space.load("gpt3_175b_1024_a100").workload))
    step = kind.step

    def changed(self, *args):
        found = step(self, *args)
        return replace(found, step_time=factor * found.step_time)

    monkeypatch.setattr(kind, "step", changed)


def test_another_cost_model_asks(study, monkeypatch, capsys):
    slower(monkeypatch, 1 + 1e-12)
    assert Study.load("small", storage=study.storage).changes() == []  # last bits
    slower(monkeypatch, 1.5)
    monkeypatch.setattr(study_changes, "versions", lambda: {"dse": "99.0"})
    command = ["resume", "small", "--budget", "30", "--storage", study.storage]
    assert main(command) == 1
    told = capsys.readouterr().err
    assert "version: dse " in told
    assert "99.0 now" in told
    assert "(20 of 20 looked at differ)" in told
    assert "--accept-changes" in told
    assert "--reprice" in told
    assert main([*command, "--reprice"]) == 0
    told = capsys.readouterr().err
    assert "20 trials priced anew: 20 changed, step_time by up to 50 %" in told
    table = Study.load("small", storage=study.storage).trials()
    np.testing.assert_allclose(table["step_time_s"][:20], 1.5 * table["step_time_before_s"][:20])
    assert table["step_time_before_s"][20:].isna().all()


def test_another_version_that_prices_alike_is_a_note(study, monkeypatch, caplog):
    made = study.attributes[VERSIONS]["dse"]
    now = {**study.attributes[VERSIONS], "dse": "99.0"}
    monkeypatch.setattr(study_changes, "versions", lambda: now)
    for budget in (22, 24):
        Study.load("small", storage=study.storage).run(budget)
    assert [record.getMessage() for record in caplog.records] == [
        f"dse: study small was made by dse {made}; 99.0 prices its designs alike"
    ]
    assert Study.load("small", storage=study.storage).attributes[CONTINUED] == [now]


def test_a_study_made_without_a_digest_goes_on(study, caplog):
    with Store(study.storage, "write") as store:
        store.drop_user_attrs(study._stored.study_id, [DIGEST, VERSIONS])
    Study.load("small", storage=study.storage).run(22)
    assert "was made without a digest" in caplog.text
    assert (
        Study.load("small", storage=study.storage).attributes[DIGEST].keys()
        == study.attributes[DIGEST].keys()
    )


@pytest.fixture
def shipped_files(tmp_path, monkeypatch):
    """The files that ship, where they can be changed."""
    for kind in ("models", "systems", "spaces", "frameworks"):
        (tmp_path / kind).mkdir()
        for path in (shipped.ROOT / kind).glob("*.yaml"):
            (tmp_path / kind / path.name).write_bytes(path.read_bytes())
    monkeypatch.setattr(shipped, "ROOT", tmp_path)
    return tmp_path


def test_a_system_that_ships_otherwise_is_named_with_both_values(url, small_space, shipped_files):
    space = Space.from_text(small_space)
    Study.create(space, "small", storage=url).run(10)
    path = shipped_files / "systems" / "a100_80g_dgx.yaml"
    text = path.read_text()
    assert "1.41 GHz" in text
    path.write_text(text.replace("1.41 GHz", "1.5 GHz"))
    with pytest.raises(
        DseError, match=r"system a100_80g_dgx: clock: 1.41 GHz stored, 1.5 GHz as it ships now"
    ):
        Study.load("small", storage=url).run(12)
    with pytest.raises(
        DseError, match=r"searches another space .*system clock: 1.41 GHz stored, 1.5 GHz now"
    ):
        Study.open(Space.from_text(small_space), "small", storage=url)
    kept = Study.load("small", storage=url)
    kept.settle("accept")  # with the system that it has
    kept.run(12)
    assert float(Study.load("small", storage=url).space.system.chip.clock) == 1.41e9
    taken = Study.open(Space.from_text(small_space), "small", storage=url, changes="reprice")
    assert float(taken.space.system.chip.clock) == 1.5e9
    assert differing(taken) == []
    taken.run(14)


def test_trials_that_another_space_has_not_are_not_taken_over(study, small_space):
    space = Space.from_text(small_space)
    for changed, why in (
        (space.pinned({"tp": 8}), "searches another space"),
        (space.set_to({"world_size": 32}), "is no design of this space"),
    ):
        with pytest.raises(DseError, match=why):
            Study.open(changed, "small", storage=study.storage, changes="reprice")
    assert differing(Study.load("small", storage=study.storage)) == []


def all_of(storage):
    """What a database holds of trials, and of their study."""
    with sqlite3.connect(storage.removeprefix("sqlite:///")) as database:
        tables = ("trial_values", "trial_user_attributes", "trial_system_attributes", "study_user_attributes")
        return [sorted(map(str, database.execute(f"SELECT * FROM {table}"))) for table in tables]


def test_pricing_anew_is_all_or_nothing(study, small_space, monkeypatch):
    from dse.searching.record import repricing

    before, renewed = all_of(study.storage), repricing._renewed
    monkeypatch.setattr(repricing, "_renewed", lambda *args: renewed(*args) and 1 / 0)
    other = Space.from_text(small_space).set_to({"kernel_launch": "50 us"})
    with pytest.raises(ZeroDivisionError):
        study.settle("reprice", other)
    assert all_of(study.storage) == before


def test_who_searches_a_study_meanwhile_ends_and_adds_nothing(study):
    def reprice(progress):
        if progress.complete == 20:
            Study.load("small", storage=study.storage).settle("reprice")

    with pytest.raises(DseError, match="another program has priced this study anew meanwhile"):
        study.run(40, progress=reprice)
    assert len(Study.load("small", storage=study.storage).trials()) == 20


def test_trials_of_other_programs_are_counted_and_not_checked(study, capsys):
    storage = optuna.storages.RDBStorage(study.storage)
    trial = optuna.load_study(study_name="small", storage=storage).ask()
    optuna.load_study(study_name="small", storage=storage).tell(trial, [0.001, 1.0])
    storage.engine.dispose()
    assert main(["check", "small", "--storage", study.storage]) == 0
    assert "1 trial of other programs cannot be checked" in capsys.readouterr().out
    assert study.pareto_front()["step_time_s"].min() > 0.001


def test_on_postgresql_too(small_space):
    with postgresql_server() as url:
        if url is None:
            pytest.skip("needs psycopg and the PostgreSQL server programs")
        study = Study.create(Space.from_text(small_space), "small", storage=url)
        study.run(16)
        other = Space.from_text(small_space).set_to({"kernel_launch": "50 us"})
        study = Study.open(other, "small", storage=url, changes="reprice")
        assert study.repricing.changed == 16
        assert differing(study) == []
        study.run(20)
        assert len(study.trials()["step_time_before_s"].dropna()) == 16
