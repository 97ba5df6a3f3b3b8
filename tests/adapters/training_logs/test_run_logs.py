"""Logs of frameworks, in the words that they print."""

import pytest

from costmodel import DseError
from dse.adapters.training_logs.log import read_log
from tests.support.cases import by_table

STEPS = "Step Time : 4.50s GPU utilization: 1.0MODEL_TFLOP/s/GPU\n" * 4


@by_table("text", "framework", "seconds", "memory")
def test_steps_after_warm_up_and_reserved_memory(tmp_path, text, framework, seconds, memory):
    (tmp_path / "run.log").write_text(text)
    run = read_log(tmp_path / "run.log", tokens_of_gpu=16384)
    assert (run["software"], run["failed"], run["step_time"]) == (framework, "", pytest.approx(seconds))
    assert run["peak_memory"] == (None if memory is None else pytest.approx(memory))


@by_table("died")
def test_a_run_out_of_memory_has_no_step_time(tmp_path, died):
    (tmp_path / "run.log").write_text(STEPS + died)
    run = read_log(tmp_path / "run.log", tokens_of_gpu=1)
    assert (run["failed"], "step_time" in run) == ("oom", False)


@by_table("text", "message")
def test_a_log_without_an_answer_gets_one_line(tmp_path, text, message):
    (tmp_path / "run.log").write_text(text)
    with pytest.raises(DseError, match=message):
        read_log(tmp_path / "run.log", tokens_of_gpu=1)
