"""`dse search` and `dse resume`: outputs, streams and exit codes."""

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dse import Space, Study
from dse.cli import main
from dse.pricing.evaluated import RECORD_KEYS
from dse.searching.batches.loop import Progress
from tests.support.commands import json_of, outputs_of, stderr_of
from tests.support.processes import HEEDING, begun

#: `dse` in a process of its own.
DSE = [sys.executable, "-c", "import sys; from dse.cli import main; sys.exit(main())"]


@pytest.fixture
def folder(tmp_path, monkeypatch, small_space):
    """A folder with a space in it, where the command is run."""
    monkeypatch.delenv("COLUMNS", raising=False)
    (tmp_path / "small.yaml").write_text(small_space)
    return tmp_path


def test_search_prints_a_report_to_stdout_and_progress_to_stderr(folder):
    out, err = outputs_of("search", "small.yaml", "--budget", "30")
    assert re.match(r"\d+ layouts evaluated, \d+ on the Pareto front\.", out)
    assert "fastest" in out
    assert "least memory" in out
    assert "Bottleneck: " in out
    assert "30/30 trials" in err


def test_json_is_one_object_of_the_contract(folder):
    study = json_of("search", "small.yaml", "--budget", "20")
    assert study.pop("certificate")["hypervolume_ratio"] <= 1
    assert list(study) == [
        *("study", "space", "directions", "n_complete", "n_infeasible", "n_designs_priced", "hypervolume", "front")
    ]
    assert (study["study"], study["space"], study["n_complete"]) == ("small", "small", 20)
    assert study["directions"] == {"step_time_s": "minimize", "peak_memory_bytes": "minimize"}
    for design in study["front"]:
        assert list(design) == [*("trial", "params", "values", "margins"), "breakdown", "designs_priced", *RECORD_KEYS]
        assert design["params"].keys() == {"tp", "pp", "recompute"}
        assert design["margins"]["fits_bytes"] >= 0
        assert design["values"]["step_time_s"] == design["breakdown"]["step_time_s"]


def test_resume_goes_on_to_the_budget_of_the_last_run(folder, monkeypatch):
    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("dse.searching.study.search", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Study.open(Space.load("small.yaml")).run(25)
    (folder / "small.yaml").unlink()  # the database is enough
    assert main(["resume", "small"]) == 0
    assert len(Study.load("small").trials()) == 25


def test_a_budget_or_a_space_that_is_used_up_is_said(folder):
    main(["search", "small.yaml", "--budget", "10"])
    assert "holds 10 finished trials already" in stderr_of("resume", "small", "--budget", "10", code=0)
    error = stderr_of("search", "small.yaml", "--set", "recompute=full", "--study", "full", code=0)
    assert "legal designs are evaluated, so the front is exact" in error


def test_pins_and_objectives_change_the_space(folder):
    objectives = ["--objective", "step_time", "--objective", "maximize:mfu"]
    study = json_of("search", "small.yaml", "--budget", "10", "--set", "tp=4", *objectives)
    assert study["directions"] == {"step_time_s": "minimize", "mfu": "maximize"}
    assert {design["params"]["tp"] for design in study["front"]} == {4}


def test_nothing_feasible_names_the_limit_the_closest_design_and_a_remedy(folder):
    """JSON is an object without designs."""
    search = ["search", "gpt3_175b_1024_a100", "--budget", "100", "--set", "dram_capacity=1 GB"]
    out, err = outputs_of(*search, code=1)
    assert out.startswith("Study gpt3_175b_1024_a100: 2,340 layouts evaluated, 0 on the Pareto front. 100 of 100")
    [line] = [line for line in err.splitlines() if line.startswith("dse: ")]
    assert line.startswith("dse: no feasible design among all 2,340: 100 of 100 break fits_in_memory, closest by ")
    assert " GB at tp=" in line
    study = json_of(*search, code=1)
    assert (study["front"], study["n_infeasible"], study["hypervolume"]) == ([], 100, 0.0)


def test_out_writes_tables_history_and_summary(folder):
    import pandas as pd

    assert main(["search", "small.yaml", "--budget", "20", "--out", "made/here"]) == 0
    made = folder / "made" / "here"
    assert len(pd.read_csv(made / "trials.csv")) == len(pd.read_parquet(made / "trials.parquet")) == 20
    front = pd.read_parquet(made / "pareto.parquet")
    assert list(front["trial"]) == list(pd.read_csv(made / "pareto.csv")["trial"])
    assert list(pd.read_csv(made / "hypervolume.csv")) == ["trial", "hypervolume"]
    assert len(json.loads((made / "study.json").read_text())["front"]) == len(front)


def test_out_that_cannot_be_written_is_refused_before_the_search(folder):
    (folder / "file").write_text("")
    error = stderr_of("search", "small.yaml", "--budget", "10", "--out", "file/out")
    assert error == "dse: file/out: cannot be created (Not a directory); name another folder\n"
    assert not (folder / "dse.db").exists()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_is_one_line(folder):
    main(["search", "small.yaml", "--budget", "10"])
    err = stderr_of("trials", "small", "--format", "csv", "-o", "/dev/full")
    assert err.startswith("dse: /dev/full: cannot be written (No space left on device)")
    assert err.count("\n") == 1


@pytest.mark.parametrize("number", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_search_exits_with_130_and_says_how_to_go_on(number, folder):
    search = begun(HEEDING, *DSE[1:], "search", "--budget", "100000")
    search.stderr.readline()  # the first line of progress: the search has begun
    search.send_signal(number)
    _, err = search.communicate(timeout=30)
    assert search.returncode == 130
    last = "dse: interrupted; every stored trial is kept. Continue: dse resume gpt3_175b_codesign"
    assert err.splitlines()[-1] == last


@pytest.mark.slow
def test_a_reader_that_has_seen_enough_is_no_error(folder):
    main(["search", "small.yaml", "--budget", "30"])
    script = f"set -o pipefail; {shlex.join(DSE)} trials small --format json | head -1"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")


def test_progress_lines_are_sparse_and_end_with_the_last_state(folder, capsys):
    from dse.cli.progress import lines

    update = lines(Space.load("small.yaml"), sys.stderr)
    for complete in range(0, 1001, 10):
        update(Progress(complete, 1000, 3, {"step_time_s": 1.5}))
    assert capsys.readouterr().err.splitlines() == [
        "0/1000 trials, 3 infeasible, best step_time 1.5 s",
        "1000/1000 trials, 3 infeasible, best step_time 1.5 s",
    ]


def test_on_a_terminal_progress_is_a_bar(folder, monkeypatch):
    pty = pytest.importorskip("pty")
    leader, follower = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    with os.fdopen(follower, "w") as terminal, contextlib.redirect_stderr(terminal):
        assert main(["search", "small.yaml", "--budget", "30"]) == 0
    shown = os.read(leader, 100_000).decode()
    assert "\r" in shown
    assert "30/30" in shown
