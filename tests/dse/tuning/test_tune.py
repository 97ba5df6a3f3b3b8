"""`dse tune`: runs are stored, change the next choice, can be removed; sweeps are replayed."""

import csv
import json
import math
import re
import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

import dse
from costmodel.formats.shipped import located
from dse import DseError, Study
from dse.cli import main
from tests.support.browser import data_of
from tests.support.cases import by_table
from tests.support.commands import json_of, stderr_of, stdout_of
from tests.support.paths import ROOT

NAME = "plan_llama3_8b_16"
#: Measured sweeps of one collection.
SWEEPS = ROOT.parent / "shared" / "measured" / "layout_sweeps.csv"


@pytest.fixture(scope="module")
def planned(tmp_path_factory):
    """A database with a plan of 16 GPUs of a system file."""
    path = tmp_path_factory.mktemp("planned") / "dse.db"
    system = shutil.copy(located("h100_80g_dgx", "systems", path), path.with_name("cluster.yaml"))
    dse.plan("llama3_8b", gpus=16, system=str(system), storage=f"sqlite:///{path}")
    return path


@pytest.fixture
def study(planned, tmp_path):
    shutil.copy(planned, tmp_path)
    return Study.load(NAME)


def tuned(*words):
    return json_of("tune", NAME, *words)


def predicted_time(study, trial):
    trials = study.trials()
    return trials.step_time_s[trials.trial == trial].item()


@pytest.mark.slow
def test_a_plan_is_tuned_by_runs_until_more_speed_is_unlikely(study):
    actual = tuned()
    for _ in range(12):
        if not actual["proposals"]:
            break
        [one] = actual["proposals"]
        predicted = predicted_time(study, one["trial"])
        actual = tuned("--tell", str(one["trial"]), "--step-time", f"{1.2 * predicted}")
    assert not actual["proposals"]
    assert actual["chance"] < 0.05
    runs = study.runs()
    assert actual["best"] == runs.trial[runs.step_time_s.idxmin()]
    assert (runs.step_time_s / runs.predicted_step_time_s).to_numpy() == pytest.approx(1.2)


@pytest.mark.slow
def test_a_proposal_is_expected_to_take_as_long_as_in_its_plan():
    """Experts, whose expected time is far above the predicted one."""
    plan = dse.plan("qwen3_30b_a3b", gpus=16, system="h200_141g_dgx")
    [first] = plan.study.ask()
    trials = plan.study.trials()
    [row] = trials[trials.trial == first.trial].to_dict("records")
    assert row["step_time_expected_s"] > 1.15 * row["step_time_s"]
    assert first.step_time == pytest.approx(row["step_time_expected_s"], rel=0.05)


def test_proposals_are_trials_with_launch_scripts(study):
    actual = tuned("--parallel", "3")
    trials = [one["trial"] for one in actual["proposals"]]
    assert len({*trials}) == 3
    for trial in trials:
        assert stdout_of("export", NAME, "--trial", str(trial), "--format", "megatron")


def test_ask_and_tell_as_optuna_has_them(study):
    [first] = study.ask()
    study.tell(first.trial, failed="oom")
    [second] = study.ask()
    assert second.trial != first.trial
    study.tell(second.trial, step_time=3.0, spread=0.01, peak_memory=40e9, software="megatron_core@26.04")
    [died, ran] = Study.load(NAME).runs().to_dict("records")
    assert (died["failed"], ran["software"]) == ("oom", "megatron_core@26.04")
    assert math.isnan(died["step_time_s"])


@pytest.mark.slow
def test_tables_and_the_page_show_runs_beside_predictions(study, tmp_path):
    assert "measured_step_time_s" not in study.trials()
    for time in (3.0, 5.0, 4.0):
        study.tell(0, step_time=time, peak_memory=10e9 * time)
    study.tell(1, failed="oom")
    trials = study.trials().set_index("trial")
    assert trials.loc[0, ["measured_step_time_s", "measured_peak_memory_bytes"]].tolist() == [4.0, 50e9]
    assert trials.loc[1, "measured_failed"] == "oom"
    assert trials.measured_step_time_s.notna().sum() == 1
    printed = stdout_of("show", NAME, "--trials")
    assert "ran: 4 s" in printed
    assert "ran out of memory" in printed
    assert main(["show", NAME, "--where", "step_time > 0 s", "-o", str(tmp_path / "front.json")]) == 0
    assert len(json.loads((tmp_path / "front.json").read_text())["runs"]) == 4
    assert "Ran: 5 s a step" in str(data_of(study.report(tmp_path / "page.html"))).replace("\\xa0", " ")


def test_explain_shows_runs_of_its_trial(study):
    predicted = predicted_time(study, 0)
    study.tell(0, step_time=1.25 * predicted)
    assert re.search(r"Ran .*\(\+25\.0 %\)", stdout_of("explain", NAME, "--trial", "0"))
    assert json_of("explain", NAME, "--trial", "0")["runs"][0]["step_time_s"] == pytest.approx(1.25 * predicted)
    assert json_of("explain", NAME, "--trial", "1")["runs"] == []


def test_concurrent_tells_lose_nothing(study):
    def tell(time):
        Study.load(NAME).tell(0, step_time=time)

    with ThreadPoolExecutor(8) as pool:
        [*pool.map(tell, [2.0 + at for at in range(8)])]
    assert sorted(run.step_time for run in study.told_runs()) == [2.0 + at for at in range(8)]


def test_a_run_told_by_mistake_is_removed(study):
    error = stderr_of("tune", NAME, "--tell", "1", "--step-time", "5ms", code=0)
    assert "5 ms a step: at the peak rate it takes" in error
    told = study.tell(0, step_time=1.0)
    assert [run["trial"] for run in tuned("--forget", told.id)["runs"]] == [1]
    with pytest.raises(DseError, match="no run"):
        dse.tuning.study_candidates.remove(study, told.id)


def test_no_layout_is_left_once_each_failed():
    fixed = {"tp": 8, "pp": 1, "micro_batch_size": 1, "recompute": "none", "zero": 1, "vpp": 1}
    study = dse.plan("llama3_8b", gpus=8, system="h100", set=fixed).study
    study.tell(study.ask()[0].trial, failed="oom")
    assert "each layout of this study failed" in stdout_of("tune", study.name)


def test_a_log_is_told_with_its_trial(study, tmp_path):
    (tmp_path / "run.log").write_text("Step Time : 4.50s GPU utilization: 1.0MODEL_TFLOP/s/GPU\n" * 5)
    [run] = tuned("--tell", "0", "--log", "run.log")["runs"]
    assert (run["step_time_s"], run["software"]) == (4.5, "megatron_bridge")


@pytest.mark.parametrize(("factor", "words"), [(1.6, "(90 %: "), (0.7, "rather than 0.80 (at its bound")])
def test_the_system_is_kept_with_what_runs_moved(study, tmp_path, factor, words):
    predicted = predicted_time(study, 0)
    for _ in range(6):
        study.tell(0, step_time=factor * predicted)
    assert words in stdout_of("tune", NAME, "--save-system", "mine.yaml")
    mine, learned = dse.load_system(tmp_path / "mine.yaml").quantities(), tuned()["learned"]
    assert [mine[one["name"]] for one in learned] == pytest.approx([one["after"] for one in learned], rel=1e-3)
    assert main(["plan", "llama3_8b", "--gpus", "16", "--system", "./mine.yaml"]) == 0


def test_a_run_as_predicted_teaches_no_constant(study):
    study.tell(0, step_time=predicted_time(study, 0), spread=0.0)
    assert tuned()["learned"] == []


@by_table("words", "message")
def test_mistakes_get_one_line(study, words, message):
    assert message in stderr_of("tune", *words)


def test_a_study_that_opens_the_machine_is_refused():
    assert main(["search", "gpt_1t_codesign", "--budget", "5", "--study", "chips", "--sampler", "random"]) == 0
    assert "opens the machine" in stderr_of("tune", "chips")


@pytest.mark.skipif(not SWEEPS.exists(), reason="measured sweeps are not there")
def test_replays_of_measured_sweeps_find_the_best_layout_sooner_than_predictions_alone(tmp_path):
    """Two groups of one and two nodes; docs/tuning.md has all twelve."""
    with SWEEPS.open() as file:
        rows = [row for row in csv.DictReader(file) if row["group"].startswith(("28x3072 v131072|1n", "32x4096"))]
    with (tmp_path / "sweeps.csv").open("w") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows([*rows, rows[0]])  # one is given twice
    record = json_of("tune", "--replay", "sweeps.csv", "--runs", "5")
    assert [group["candidates"] for group in record["groups"]] == [107, 55]
    assert record["mean"]["5"] > 0.99
    assert record["mean"]["1"] >= record["model_only_mean"]["1"]
