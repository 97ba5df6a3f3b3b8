"""Plans on several systems and numbers of GPUs in one table."""

import re

import pytest

import dse
from costmodel.errors import DseError
from dse.output import selected
from tests.support.cases import by_table
from tests.support.commands import json_of, stderr_of, stdout_of

PLAN = ["plan", "llama3_8b", "--gpus", "8", "--system", "h100,b200", "--global-batch-size", "64"]


@pytest.mark.slow
def test_each_combination_is_a_row_and_a_study():
    rows = json_of(*PLAN, "--gpus", "8,16")["rows"]
    assert [(row["system"], row["gpus"]) for row in rows] == [
        ("h100", 8), ("h100", 16), ("b200", 8), ("b200", 16)
    ]  # fmt: skip
    assert len({row["study"] for row in rows}) == 4
    for row in rows:
        front = dse.Study.load(row["study"]).table.front().records()
        assert row["values"]["step_time_expected_s"] == min([one["values"]["step_time_expected_s"] for one in front])
    single = dse.plan("llama3_8b", gpus=8, system="b200_180g_dgx", global_batch_size=64)
    assert rows[2]["breakdown"]["step_time_s"] == single.study.table.front().records()[0]["breakdown"]["step_time_s"]


@pytest.mark.slow
def test_rented_dollars_are_hours_times_the_price():
    """GPU-hours at the price of each system; the cheapest and the fastest come first."""
    words = [*PLAN, "--tokens", "100B", "--gpu-hour-price", "h100=2.5,b200=4.2"]
    rows = json_of(*words)["rows"]
    for row in rows:
        assert row["cost_usd"] == pytest.approx({"h100": 2.5, "b200": 4.2}[row["system"]] * row["run"]["gpu_hours"])
        assert row["dollars"] == "rented"
    out = stdout_of(*words)
    cheapest = min(rows, key=lambda row: row["cost_usd"])
    fastest = max(rows, key=lambda row: row["breakdown"]["tokens_per_second"])
    first = "Cheapest and fastest" if cheapest == fastest else "Cheapest"
    assert out.startswith(f"{first}: {cheapest['gpus']} x {cheapest['system']} with ")
    assert cheapest == fastest or f"\nFastest: {fastest['gpus']} x {fastest['system']} with " in out
    assert "rented, $2.50 a GPU-hour of h100, $4.20 a GPU-hour of b200" in " ".join(out.split())


@pytest.mark.slow
def test_a_price_without_tokens_gives_the_rent_of_a_billion():
    for row in json_of(*PLAN, "--gpu-hour-price", "2")["rows"]:
        slower = row["values"]["step_time_expected_s"] / row["breakdown"]["step_time_s"]
        seconds = 1e9 / row["breakdown"]["tokens_per_second"] * slower
        assert row["cost_usd"] == pytest.approx(seconds / 3600 * row["gpus"] * 2)


def test_a_row_that_does_not_fit_says_so():
    out = " ".join(stdout_of("plan", "llama3_70b", "--gpus", "8,64", "--system", "h100").split())
    assert "8 x h100: none of " in out
    assert out.startswith("Fastest: 64 x h100 with ")
    out = stdout_of("plan", "llama3_70b", "--gpus", "2,4", "--system", "h100", code=1)
    assert out.startswith("No layout fits on any of these systems.")


@by_table("words", "message")
def test_mistakes_are_one_line(words, message):
    [line] = stderr_of(*PLAN, *words).splitlines()
    assert message in line


def test_the_rent_of_one_plan_is_part_of_its_answer():
    words = ["plan", "llama3_8b", "--gpus", "8", "--system", "h100", "--global-batch-size", "64", "--pp", "1"]
    front = json_of(*words, "--gpu-hour-price", "h100=2.5", "--tokens", "100B")["front"]
    assert json_of("show", "plan_llama3_8b_8")["front"] == front
    assert front[0]["run"]["run_cost_usd"] == pytest.approx(2.5 * front[0]["run"]["gpu_hours"])
    text = stdout_of(*words, "--gpu-hour-price", "2.5", "--tokens", "100B")
    assert re.match(r"Llama 3\.1 8B on 8 x h100_80g_dgx.*\nUse    tp ", text)
    assert re.search(r"\nRun    100B tokens: .*at \$2\.50 per GPU-hour \(rented\)", text)
    text = stdout_of(*words, "--gpu-hour-price", "2.5")
    best = dse.Study.load("plan_llama3_8b_8").table.front().records()[0]
    slower = best["values"]["step_time_expected_s"] / best["breakdown"]["step_time_s"]
    rent = 2.5 * 1e9 / best["breakdown"]["tokens_per_second_per_gpu"] * slower / 3600
    assert f"Rent   ${rent:.1f} for 1B tokens at $2.50 a GPU-hour; --tokens 15T gives" in text
    assert "--gpu-hour-price: b200: not planned" in stderr_of(*words, "--gpu-hour-price", "b200=2")


def test_a_plan_that_does_not_fit_names_an_option_in_the_table():
    out = stdout_of("plan", "llama3_70b", "--gpus", "8,32", "--system", "h100", "--global-batch-size", "64")
    assert "; enough: --gpus 32" in " ".join(out.split())
    with pytest.raises(DseError, match="; enough: gpus 32"):
        dse.plan("llama3_70b", gpus=8, system="h100_80g_dgx", global_batch_size=64)


def test_python_reads_arguments_where_commands_read_options():
    said = []
    dse.plan("llama3_8b", gpus=8, system="h100_80g_dgx", global_batch_size=64, note=said.append)
    assert said[-1].startswith("assumed: seq_len 8192, precision bf16, framework megatron_core, headroom '7.4 %'")
    with pytest.raises(DseError, match=r"^gpu_hour_price: of how many tokens"):
        dse.plan("llama3_8b", gpus=8, system="h100_80g_dgx", gpu_hour_price=2.5)
    study = dse.Study.load("plan_llama3_8b_8")
    with pytest.raises(DseError, match=r"^sort: mfo: no column"):
        selected(study, "front", sort="mfo")
    assert "dse: --sort: mfo: no column" in stderr_of("show", "plan_llama3_8b_8", "--sort", "mfo")
