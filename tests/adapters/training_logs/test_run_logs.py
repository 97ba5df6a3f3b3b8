"""Logs of frameworks, in the words that they print."""

import pytest

from costmodel import DseError
from dse.adapters.training_logs.log import read_log
from tests.support.cases import by_table

STEP = (
    " [2026-01-05 10:00:00] iteration {}/ 100 | consumed samples: 512 | elapsed time per iteration (ms): {} | lr: 1\n"
)
MEGATRON = (
    STEP.format(1, 30000.0)
    + "[Rank 0] (after 1 iterations) memory (MB) | allocated: 40000.0 | max allocated: 60000.0 | reserved: 62000.0"
    " | max reserved: 64000.0\n" + STEP.format(2, 10100.0) + STEP.format(3, 9900.0) + STEP.format(4, 10000.0)
)


@by_table("text", "framework", "seconds", "memory")
def test_steps_after_warm_up_and_reserved_memory(tmp_path, text, framework, seconds, memory):
    (tmp_path / "run.log").write_text(text)
    run = read_log(tmp_path / "run.log", tokens_of_gpu=16384)
    assert (run["software"], run["failed"]) == (framework, "")
    assert run["step_time"] == pytest.approx(seconds)
    assert run["peak_memory"] == (None if memory is None else pytest.approx(memory))


@by_table("died")
def test_a_run_out_of_memory_has_no_step_time(tmp_path, died):
    (tmp_path / "run.log").write_text(MEGATRON + died)
    run = read_log(tmp_path / "run.log", tokens_of_gpu=1)
    assert run["failed"] == "oom"
    assert "step_time" not in run


@by_table("text", "message")
def test_a_log_without_an_answer_gets_one_line(tmp_path, text, message):
    (tmp_path / "run.log").write_text(text)
    with pytest.raises(DseError, match=message):
        read_log(tmp_path / "run.log", tokens_of_gpu=1)
