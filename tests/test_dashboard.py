"""`dse dashboard`: what optuna-dashboard is told of a study."""

from __future__ import annotations

import json
import socket
from typing import Any
from wsgiref.util import setup_testing_defaults

import pytest

from dse import DseError, Space, Study
from dse.cli import main
from dse.storage.dashboard import dashboard

pytest.importorskip("optuna_dashboard", reason="needs the `dashboard` extra")


@pytest.fixture(scope="module")
def study(tmp_path_factory, small_space):
    """A study with infeasible designs that no feasible one beats."""
    storage = f"sqlite:///{tmp_path_factory.mktemp('storage') / 'dse.db'}"
    study = Study.create(Space.from_text(small_space), storage=storage, sampler="random")
    study.run(48)
    return study


def told(application: Any, path: str) -> Any:
    """What the dashboard answers to a browser."""
    request: dict[str, Any] = {"PATH_INFO": path, "REQUEST_METHOD": "GET"}
    setup_testing_defaults(request)
    return json.loads(b"".join(application(request, lambda status, headers, info=None: None)))


def test_its_front_is_the_feasible_one_and_grows(study):
    application = dashboard(study.storage)
    [listed] = told(application, "/api/studies")["study_summaries"]
    assert listed["study_name"] == "small"
    shown = told(application, f"/api/studies/{listed['study_id']}")
    assert not study.table.feasible.all()
    assert {trial["number"] for trial in shown["best_trials"]} == {*study.pareto_front()["trial"]}
    states = {trial["number"]: trial["state"] for trial in shown["trials"]}
    feasible = dict(zip(study.table.numbers.tolist(), study.table.feasible.tolist(), strict=True))
    assert states == {number: "Complete" if kept else "Pruned" for number, kept in feasible.items()}


def test_numbers_of_a_trial_are_columns_that_can_be_sorted(study):
    shown = told(dashboard(study.storage), "/api/studies/1")
    columns = {column["key"]: column["sortable"] for column in shown["union_user_attrs"]}
    assert columns["bubble_time_s"]
    assert columns["dp"]
    assert columns["margin_fits_bytes"]
    row = study.trials().iloc[5]
    own = {pair["key"]: pair["value"] for pair in shown["trials"][5]["user_attrs"]}
    assert float(own["margin_fits_bytes"]) == row["margin_fits_bytes"]


def test_what_cannot_be_served_is_one_line(study, tmp_path, capsys):
    with pytest.raises(DseError, match="no database there"):
        dashboard(f"sqlite:///{tmp_path}/none.db")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        assert main(["dashboard", "--port", str(port), "--storage", study.storage]) == 1
    assert f"dse: --port {port}: Address already in use" in capsys.readouterr().err
