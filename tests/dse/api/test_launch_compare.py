"""Launch files side by side, explained, and held against a measured step."""

import re

import pytest

import dse
from costmodel.errors import DseError
from dse.cli import main
from tests.support.cases import by_table, cases
from tests.support.commands import json_of, stderr_of, stdout_of

SCRIPT = cases(__file__, "SCRIPT")


def changed(*pairs):
    text = SCRIPT
    for old, new in pairs:
        assert old in text
        text = text.replace(old, new)
    return text


NEW = changed(
    ("tensor-model-parallel-size 8", "tensor-model-parallel-size 4"),
    ("pipeline-model-parallel-size 4", "pipeline-model-parallel-size 8"),
    (" \\\n  --recompute-activations", " --overlap-grad-reduce"),
)


def written(folder):
    """Both scripts in a folder."""
    for name, text in (("old.sh", SCRIPT), ("new.sh", NEW)):
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def scripts(tmp_path):
    return written(tmp_path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The comparison of both scripts."""
    folder = written(tmp_path_factory.mktemp("pair"))
    return dse.compare_launches(folder / "old.sh", folder / "new.sh", system="h100_80g_dgx")


def breakdown(**changes):
    """Breakdown of the old script's design, with some settings changed."""
    return dse.evaluate_design(dse.launch_design("old.sh", system="h100_80g_dgx", set=changes))["breakdown"]


def test_the_parts_of_a_comparison_add_up_to_the_difference(pair, scripts):
    one, other = (record["breakdown"] for record in pair.records)
    for key, change in (("step_time_s", "step_time_change"), ("peak_memory_bytes", "peak_memory_change")):
        assert sum(getattr(part, change) for part in pair.parts) == pytest.approx(other[key] - one[key])
    names = [name for part in pair.parts for name in part.changes]
    assert sorted(names) == ["overlap_grad_reduce", "overlap_param_gather", "pp", "recompute", "tp"]
    assert one == breakdown()


def test_the_first_part_is_the_change_with_the_largest_effect_alone(pair, scripts):
    base = pair.records[0]["breakdown"]["step_time_s"]
    changes = {"tp": 4, "pp": 8, "recompute": "none", "overlap_grad_reduce": True}
    effects = {name: breakdown(**{name: value})["step_time_s"] - base for name, value in changes.items()}
    first = max(effects, key=lambda name: abs(effects[name]))
    assert [*pair.parts[0].changes] == [first]
    assert pair.parts[0].step_time_change == pytest.approx(effects[first])


def test_settings_that_are_legal_only_together_are_one_part(tmp_path):
    """On 16 ranks tp 8 leaves 2 stages, and pp 4 leaves tp 4: neither can change alone."""
    before = changed(("--nnodes 8", "--nnodes 2"), ("pipeline-model-parallel-size 4", "pipeline-model-parallel-size 2"))
    after = before.replace("tensor-model-parallel-size 8", "tensor-model-parallel-size 2")
    after = after.replace("pipeline-model-parallel-size 2", "pipeline-model-parallel-size 8")
    (tmp_path / "old.sh").write_text(before)
    (tmp_path / "new.sh").write_text(after)
    parts = dse.compare_launches("old.sh", "new.sh", system="b200_180g_dgx").parts
    assert {*parts[0].changes} in ({"tp"}, {"tp", "pp"})
    assert {name for part in parts for name in part.changes} == {"tp", "pp"}


def test_other_batches_lengths_and_gpus_are_settings_too(scripts, tmp_path):
    new = changed(("--nnodes 8", "--nnodes 16"), ("batch-size 512", "batch-size 1024"), ("h 8192", "h 4096"))
    (tmp_path / "new.sh").write_text(new)
    pair = dse.compare_launches("old.sh", "new.sh", system="h100_80g_dgx")
    changes = {name: change for part in pair.parts for name, change in part.changes.items()}
    assert changes == {"GPUs": (64, 128), "global_batch_size": (512, 1024), "seq_len": (8192, 4096)}
    one, other = (record["breakdown"]["step_time_s"] for record in pair.records)
    assert sum(part.step_time_change for part in pair.parts) == pytest.approx(other - one)


def test_compare_answers_first_and_limits_decide_the_exit_code(scripts):
    compare = ["compare", "old.sh", "new.sh", "--system", "h100"]
    first, *rest = stdout_of(*compare).splitlines()
    assert re.fullmatch(r"new\.sh is [\d.]+ % faster than old\.sh, with [\d.]+ GB more memory\.", first)
    assert any(re.match(r"--tensor-model-parallel-size 8 to 4 +-[\d.]+ s ", line) for line in rest)
    actual = json_of(*compare, "--max-memory", "80GB", "--max-step-time", "15", code=1)
    assert re.fullmatch(r"new\.sh needs 80\.\d GB, \d+ MB more than the limit of 80 GB", actual["exceeded"][0])
    assert actual["exceeded"][1].endswith("more than the limit of 15 s")
    assert actual["step_time_change"] < 0
    assert main([*compare, "--max-memory", "85GB", "--max-step-time", "80 s"]) == 0


@by_table("words", "message")
def test_mistakes_are_one_line(words, message, scripts):
    [line] = stderr_of(*words).splitlines()
    assert message in line


def test_calls_of_one_script_are_compared_by_its_flags(tmp_path):
    text = SCRIPT.replace("parallel-size 8", "parallel-size ${TP:-8}").replace("--recompute-activations", "$MORE")
    (tmp_path / "train.sh").write_text(text)
    calls = ["TP=8 train.sh", "TP=4 MORE='--overlap-grad-reduce --swiglu' train.sh"]
    parts = json_of("compare", *calls, "--system", "h100", code=1)["parts"]
    flags = {name: change for part in parts for name, change in part["flags"].items()}
    assert flags == {
        "--tensor-model-parallel-size": {"from": 8, "to": 4},
        "--overlap-grad-reduce": {"from": None, "to": True},
    }
    table = stdout_of("compare", *calls, "--system", "h100", code=1)
    assert re.search(r"^with --overlap-grad-reduce +-", table, flags=re.MULTILINE)


def test_a_flag_that_decides_two_settings_is_one_part(pair):
    """Without --overlap-param-gather, --overlap-grad-reduce leaves the gathering of weights exposed."""
    [part] = [part for part in pair.parts if "--overlap-grad-reduce" in part.flags]
    assert {*part.changes} == {"overlap_grad_reduce", "overlap_param_gather"}


def test_an_evaluated_launch_file_names_the_next_command(scripts):
    _, fits, *rest = stdout_of("evaluate", "old.sh", "--system", "h100", "--set", "recompute=full").splitlines()
    assert fits.startswith("Fits   tp 8, pp 4, dp 2, micro-batch 1,")
    [command] = [line.removeprefix("Next   ") for line in rest if line.startswith("Next   ")]
    assert command == "dse explain old.sh --system h100 --set recompute=full"
    assert main(command.split()[1:]) == 0


def test_a_launch_file_is_explained_like_a_trial(scripts):
    actual = json_of("explain", "old.sh", "--system", "h100")
    assert sum(row["seconds"] for row in actual["time"]) == pytest.approx(actual["breakdown"]["step_time_s"])
    out = stdout_of("explain", "old.sh", "--system", "h100", "--against", "tp=4 pp=8")
    assert "tp 8 to 4, pp 4 to 8. It is faster by" in out


def test_a_file_that_is_no_launch_file_is_refused_by_name(tmp_path):
    (tmp_path / "space.yaml").write_text("schema: search_space/v1\n")
    with pytest.raises(DseError, match=r"space\.yaml: is a space; expected a launch script"):
        dse.launch_design("space.yaml", system="h100_80g_dgx")


# A measured step


def test_causes_are_evaluated_alone_and_ranked_by_how_close_they_come(scripts):
    explanation = dse.explain(dse.launch_design("old.sh", system="h100_80g_dgx"))
    predicted = explanation.step_time
    gap = dse.measured_gap(explanation, measured_step_time=1.3 * predicted)
    closeness = [min(cause.share, 1 / cause.share) for cause in gap.causes]
    assert closeness == sorted(closeness, reverse=True)
    [clock] = [cause for cause in gap.causes if "clock" in cause.name]
    assert clock.step_time == breakdown(clock=0.8 * float(explanation.system.chip.clock))["step_time_s"]
    assert clock.share == pytest.approx((clock.step_time - predicted) / (0.3 * predicted))
    assert "nvidia-smi" in clock.check


def test_the_answer_says_how_far_the_measured_step_is(scripts, pair):
    measured = ["explain", "old.sh", "--system", "h100"]
    out = stdout_of(*measured, "--measured-mfu", "0.30")
    assert re.match(r"Measured [\d.]+ s a step, 30 % MFU: \d+ % slower than predicted, outside", out)
    assert "Check first: " in out
    assert "Data loading, checkpoints and evaluation are not modelled" in out
    out = " ".join(stdout_of(*measured, "--measured-step-time", "5").split())
    assert "faster than predicted" in out
    assert "More than 100 % MFU is not possible" in out
    near = 1.01 * pair.records[0]["breakdown"]["step_time_s"]
    assert "within the accuracy of the prediction" in stdout_of(*measured, "--measured-step-time", f"{near:.4f}")
