"""The first lines of plan, search, evaluate, explain and compare: the facts, and the width they keep to."""

import io
import os
import re
import shlex
from functools import cache

import pytest

from costmodel.formats.quantity import readable
from dse import Study
from dse.output import PLAIN_WIDTH, console
from dse.reporting.answers import INDENT, layout_text, wrapped
from tests.language import found_in
from tests.support.cases import cases
from tests.support.commands import json_of, stdout_of

WIDTHS = [60, 200]
#: A command of each kind; the first three make studies.
COMMANDS = cases(__file__, "COMMANDS")
pytestmark = pytest.mark.usefixtures("stored")


@pytest.fixture(scope="module")
def storage(tmp_path_factory):
    """A database with a plan, and searches of a layout and of an open machine."""
    url = f"sqlite:///{tmp_path_factory.mktemp('answers')}/dse.db"
    for name in ("plan", "search", "machine"):
        stdout_of(*COMMANDS[name].split(), "--storage", url)
    return url


@cache
def printed(name, width=200):
    """Lines of a command on a terminal of a width; run once, as nothing changes when it is run again."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", str(width))
        return stdout_of(*COMMANDS[name].split(), code=int(name == "evaluate")).splitlines()


def answer(name):
    """Lines of a command above the first blank one."""
    lines = printed(name)
    return lines[: lines.index("")]


def facts(study):
    """The numbers that an answer says of the best design of a study: by expected times in plans."""
    row = study.pareto_front().iloc[0]
    predicted = readable(row["step_time_s"], "s")
    time = row.get("step_time_expected_s", row["step_time_s"])
    step = f"{predicted} a step (" if time == row["step_time_s"] else f"a step expected (predicted {predicted}; "
    low, high = (readable(row[name], "s").split()[0] for name in ("step_time_low_s", "step_time_high_s"))
    return [
        f"tp {row['tp']}", f"pp {row['pp']}", f"dp {row['dp']:.0f}",
        f"{row['gradient_accumulation_steps']:.0f} accumulation steps", f"{readable(time, 's')} a step",
        f"{step}90 %: {low} to {high} s)",
        f"{row['tokens_per_second_per_gpu'] * row['step_time_s'] / time:,.0f} tokens/s/GPU",
        f"{100 * row['mfu'] * row['step_time_s'] / time:.0f} % MFU",
        f"{readable(row['peak_memory_bytes'], 'B').split()[0]} of ",
    ]  # fmt: skip


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", COMMANDS)
def test_no_line_is_wider_than_the_terminal_or_cut_and_no_table_has_more_than_ten_rows(name, width):
    lines = printed(name, width)
    assert [line for line in lines if (len(line) > width and "dse " not in line) or "…" in line] == []
    rules = [index for index, line in enumerate(lines) if line.startswith("──")]
    for rule in rules:
        rows = 0
        for line in lines[rule + 1 :]:
            if not line or re.match(r"[A-Z*]|\d+ more", line):
                break
            rows += not line.startswith("      ") or name in ("plan", "search", "machine")
        # Rows of parts of a step and of memory are as many as there are parts.
        assert rows <= 10 or lines[rule - 1].startswith(("parts", "memory", "why")), lines[rule - 1]


def test_a_plan_begins_with_the_layout_to_use_and_a_roomier_one():
    lines = answer("plan")
    assert len(lines) <= 6
    assert lines[0] == "Llama 3.1 8B on 8 x h100_80g_dgx, megatron_core, bf16, 512 x 8,192 tokens a step"
    study = Study.load("plan_llama3_8b_8")
    front = study.pareto_front()
    assert [lines[1][:4], lines[3][:3]] == ["Use ", "Or "]
    assert layout_text(study.space, study.table.front().records()[0], ["recompute"]) == "no\xa0recomputation"
    assert [fact for fact in facts(study) if fact not in lines[1]] == []
    best, capacity = front.iloc[0], float(study.space.system.dram.capacity)
    free = 1 - front["peak_memory_bytes"] / capacity
    name = "step_time_expected_s"
    roomy = front[(free >= max(0.25, free.iloc[0] + 0.1)) & (front[name] <= 2 * best[name])]
    second = roomy.sort_values(name).iloc[0]
    change = 100 * (second[name] / best[name] - 1)
    assert f"(trial {second['trial']}): {readable(second[name], 's')} ({change:+.1f} %)" in lines[3]
    assert f"({readable(capacity - second['peak_memory_bytes'], 'B')} free)" in lines[3]
    price = best["run_cost"] / best["gpu_hours"]
    assert lines[2].startswith(f"Run    1T tokens: {readable(best['run_time'], 's')}, ")
    assert lines[2].endswith(f"{readable(best['run_cost'], '$')} at ${price:.2f} per GPU-hour (owned)")
    words = [shlex.split(line.removeprefix("Next"))[:2] for line in lines[4:]]
    assert words == [["dse", "export"], ["dse", "explain"]]


def test_a_search_begins_with_counts_and_the_fastest_layout():
    lines = answer("search")
    study = Study.load("gpt3_175b_1024_a100")
    front = len(study.pareto_front())
    assert lines[0] == f"{study.designs_priced:,} layouts evaluated, {front} on the Pareto front."
    assert [fact for fact in facts(study) if fact not in " ".join(" ".join(lines).split())] == []
    assert "hypervolume" not in " ".join(lines)
    assert lines[-2].startswith("Next   dse explain gpt3_175b_1024_a100")


def test_a_search_of_machines_begins_with_the_fastest_and_the_cheapest_nearly_as_fast():
    text = " ".join(" ".join(answer("machine")).split())
    front = Study.load("gpt_1t_codesign").pareto_front()
    best = front.iloc[0]
    near = front[front["step_time_s"] <= 1.2 * best["step_time_s"]]
    cheapest = near.sort_values("system_price_usd").iloc[0]
    fastest, _, other = text.partition(" Or ")
    assert f"{readable(best['dram_bandwidth'], 'B/s')} DRAM" in fastest
    assert readable(best["system_price_usd"], "$") in fastest
    if cheapest["trial"] != best["trial"]:
        assert other.startswith("cheapest within 20 %: with ")
        assert f"(trial {cheapest['trial']})" in other
        assert readable(cheapest["system_price_usd"], "$") in other
    narrow = printed("machine", 80)
    heading = narrow[next(at for at, line in enumerate(narrow) if line.startswith("──")) - 1].split()
    assert {"clock", "bandwidth"} & {*heading}  # of the machine, and of the layout
    assert {"tp", "pp", "nodes"} & {*heading}


def test_an_evaluation_says_first_by_how_much_it_does_not_fit_and_what_would():
    lines = answer("evaluate")
    record = json_of(*COMMANDS["evaluate"].split(), code=1)
    over = readable(-record["margins"]["fits_in_memory_bytes"], "B")
    assert lines[1].startswith(f"Does not fit: {over} too much. tp 8, pp 4, dp 32, ")
    assert re.match(r"Instead: distributed_optimizer=true would fit, -\d\.\d % step time\.", lines[2])
    assert lines[3].startswith("Interval: based on measured runs of this kind with this framework on this chip")
    assert lines[4] == "Next   dse explain gpt3_175b_1024_a100 --set tp=8 --set pp=4"
    stdout_of(*shlex.split(lines[4])[2:])


def test_an_explanation_begins_with_the_bottleneck_and_what_frees_memory():
    lines = answer("explain")
    record = json_of(*COMMANDS["explain"].split())
    study = Study.load("gpt3_175b_1024_a100")
    assert [fact for fact in facts(study) if fact not in " ".join(" ".join(lines).split())] == []
    lines = [line for line in lines if not line.startswith("   ")]
    assert lines[2].startswith("Bottleneck: arithmetic, ")
    lever = record["levers"][0]
    saved = readable(-lever["peak_memory_change_bytes"], "B")
    names = ", ".join(f"{name} {change['from']} to" for name, change in lever["changes"].items())
    assert lines[4].startswith(f"To free memory: {names}")
    assert f" saves {saved}, " in lines[4]
    assert lines[5].startswith("Layout tp ")
    assert len(lines) <= 7
    stdout_of(*shlex.split(lines[-1].removeprefix("Next"))[1:])


def test_a_comparison_begins_with_the_better_study_and_by_how_much():
    lines = answer("compare")
    one, two = (Study.load(name).pareto_front() for name in ("plan_llama3_8b_8", "gpt3_175b_1024_a100"))
    times = sorted([one["step_time_s"].min(), two["step_time_s"].min()])
    change = 100 * (times[0] / times[1] - 1)
    winner = "plan_llama3_8b_8" if times[0] == one["step_time_s"].min() else "gpt3_175b_1024_a100"
    assert lines[0].startswith(f"Best step time: {winner} with {readable(times[0], 's')} ")
    assert re.search(rf"\({change:+.{0 if abs(change) >= 9.95 else 1}f} %\)", lines[0])
    assert lines[1].startswith("Best peak memory: ")


@pytest.mark.parametrize("name", COMMANDS)
def test_answers_are_in_plain_english(name):
    assert found_in(" ".join(printed(name))) == []


def test_a_pipe_is_as_wide_as_the_terminal_behind_it(monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    for columns, width in ((80, 80), (200, PLAIN_WIDTH)):
        monkeypatch.setattr(os, "get_terminal_size", lambda _, wide=columns: os.terminal_size((wide, 24)))
        assert console(io.StringIO()).width == width


def test_a_sentence_breaks_between_items_and_is_indented():
    lines = [line.plain for line in wrapped([("Use", "tp\xa08, micro-batch\xa01: 14.9 s a step")], 24)]
    assert lines == ["Use    tp 8,", "       micro-batch 1:", "       14.9 s a step"]
    assert all(line[:INDENT].strip() in ("Use", "") for line in lines)
