"""Launch files side by side, explained, and held against a measured step."""

import json
import re

import pytest

import dse
from costmodel.errors import DseError
from dse.cli import main
from tests.support.cases import cases
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


@pytest.fixture
def scripts(tmp_path):
    (tmp_path / "old.sh").write_text(SCRIPT)
    (tmp_path / "new.sh").write_text(NEW)


def test_the_parts_of_a_comparison_add_up_to_the_difference(scripts):
    pair = dse.compare_launches("old.sh", "new.sh", system="h100_80g_dgx")
    one, other = (record["breakdown"] for record in pair.records)
    for key, part in (("step_time_s", "step_time_change"), ("peak_memory_bytes", "peak_memory_change")):
        assert sum(getattr(own, part) for own in pair.parts) == pytest.approx(other[key] - one[key])
    names = [name for own in pair.parts for name in own.changes]
    assert sorted(names) == ["overlap_grad_reduce", "overlap_param_gather", "pp", "recompute", "tp"]
    alone = dse.launch_design("old.sh", system="h100_80g_dgx")
    assert pair.records[0]["breakdown"] == dse.evaluate_design(alone)["breakdown"]


def test_the_first_part_is_the_change_with_the_largest_effect_alone(scripts):
    pair = dse.compare_launches("old.sh", "new.sh", system="h100_80g_dgx")
    base = pair.records[0]["breakdown"]["step_time_s"]
    effects = {
        name: dse.evaluate_design(
            dse.launch_design("old.sh", system="h100_80g_dgx", set={name: value})
        )["breakdown"]["step_time_s"] - base
        for name, value in (("tp", 4), ("pp", 8), ("recompute", "none"), ("overlap_grad_reduce", True))
    }  # fmt: skip
    first = max(effects, key=lambda name: abs(effects[name]))
    assert [*pair.parts[0].changes] == [first]
    assert pair.parts[0].step_time_change == pytest.approx(effects[first])


def test_settings_that_are_legal_only_together_are_one_part(scripts, tmp_path):
    """On 16 ranks tp 8 leaves 2 stages, and pp 4 leaves tp 4: neither can change alone."""
    before = changed(("--nnodes 8", "--nnodes 2"), ("pipeline-model-parallel-size 4", "pipeline-model-parallel-size 2"))
    after = before.replace("tensor-model-parallel-size 8", "tensor-model-parallel-size 2")
    after = after.replace("pipeline-model-parallel-size 2", "pipeline-model-parallel-size 8")
    (tmp_path / "old.sh").write_text(before)
    (tmp_path / "new.sh").write_text(after)
    parts = dse.compare_launches("old.sh", "new.sh", system="b200_180g_dgx").parts
    one, *_ = parts
    assert {*one.changes} in ({"tp"}, {"tp", "pp"})
    assert {name for own in parts for name in own.changes} == {"tp", "pp"}


def test_other_batches_lengths_and_gpus_are_settings_too(scripts, tmp_path):
    (tmp_path / "new.sh").write_text(
        changed(("--nnodes 8", "--nnodes 16"), ("batch-size 512", "batch-size 1024"), ("h 8192", "h 4096"))
        if "h 8192" in SCRIPT
        else ""
    )
    pair = dse.compare_launches("old.sh", "new.sh", system="h100_80g_dgx")
    changes = {name: own for part in pair.parts for name, own in part.changes.items()}
    assert changes == {"GPUs": (64, 128), "global_batch_size": (512, 1024), "seq_len": (8192, 4096)}
    one, other = (record["breakdown"]["step_time_s"] for record in pair.records)
    assert sum(part.step_time_change for part in pair.parts) == pytest.approx(other - one)


def test_compare_answers_first_and_limits_decide_the_exit_code(scripts):
    compare = ["compare", "old.sh", "new.sh", "--system", "h100"]
    first, *rest = stdout_of(*compare).splitlines()
    assert re.fullmatch(r"new\.sh is [\d.]+ % faster than old\.sh, with [\d.]+ GB more memory\.", first)
    assert any(re.match(r"--tensor-model-parallel-size 8 to 4 +-[\d.]+ s ", line) for line in rest)
    found = json_of(*compare, "--max-memory", "80GB", "--max-step-time", "15", code=1)
    assert re.fullmatch(r"new\.sh needs 80\.\d GB, \d+ MB more than the limit of 80 GB", found["exceeded"][0])
    assert found["exceeded"][1].endswith("more than the limit of 15 s")
    assert found["step_time_change"] < 0
    assert main([*compare, "--max-memory", "85GB", "--max-step-time", "80 s"]) == 0


@pytest.mark.parametrize(("words", "message"), cases(__file__, "mistakes_are_one_line"))
def test_mistakes_are_one_line(words, message, scripts):
    [line] = stderr_of(*words).splitlines()
    assert message in line


def test_calls_of_one_script_are_compared_by_its_flags(scripts, tmp_path, capsys):
    text = SCRIPT.replace("parallel-size 8", "parallel-size ${TP:-8}").replace("--recompute-activations", "$MORE")
    (tmp_path / "train.sh").write_text(text)
    calls = ["TP=8 train.sh", "TP=4 MORE='--overlap-grad-reduce --swiglu' train.sh"]
    assert main(["compare", *calls, "--system", "h100", "--format", "json"]) == 1
    flags = {name: own for part in json.loads(capsys.readouterr().out)["parts"] for name, own in part["flags"].items()}
    assert flags == {
        "--tensor-model-parallel-size": {"from": 8, "to": 4},
        "--overlap-grad-reduce": {"from": None, "to": True},
    }
    assert main(["compare", *calls, "--system", "h100"]) == 1
    assert re.search(r"^with --overlap-grad-reduce +-", capsys.readouterr().out, flags=re.MULTILINE)


def test_a_flag_that_decides_two_settings_is_one_part(scripts):
    """Without --overlap-param-gather, --overlap-grad-reduce leaves the gathering of weights exposed."""
    parts = dse.compare_launches("old.sh", "new.sh", system="h100_80g_dgx").parts
    [part] = [own for own in parts if "--overlap-grad-reduce" in own.flags]
    assert {*part.changes} == {"overlap_grad_reduce", "overlap_param_gather"}


def test_an_evaluated_launch_file_names_the_next_command(scripts):
    _, fits, *rest = stdout_of("evaluate", "old.sh", "--system", "h100", "--set", "recompute=full").splitlines()
    assert fits.startswith("Fits   tp 8, pp 4, dp 2, micro-batch 1,")
    [command] = [line.removeprefix("Next   ") for line in rest if line.startswith("Next   ")]
    assert command == "dse explain old.sh --system h100 --set recompute=full"
    assert main(command.split()[1:]) == 0


def test_a_launch_file_is_explained_like_a_trial(scripts, capsys):
    found = json_of("explain", "old.sh", "--system", "h100")
    assert sum(row["seconds"] for row in found["time"]) == pytest.approx(found["breakdown"]["step_time_s"])
    assert main(["explain", "old.sh", "--system", "h100", "--against", "tp=4 pp=8"]) == 0
    assert "tp 8 to 4, pp 4 to 8. It is faster by" in capsys.readouterr().out


def test_a_file_that_is_no_launch_file_is_refused_by_name(scripts, tmp_path):
    (tmp_path / "space.yaml").write_text("schema: search_space/v1\n")
    with pytest.raises(DseError, match=r"space\.yaml: is a space; expected a launch script"):
        dse.launch_design("space.yaml", system="h100_80g_dgx")


# A measured step


def test_causes_are_evaluated_alone_and_ranked_by_how_close_they_come(scripts):
    explanation = dse.explain(dse.launch_design("old.sh", system="h100_80g_dgx"))
    predicted = explanation.step_time
    gap = dse.measured_gap(explanation, measured_step_time=1.3 * predicted)
    closeness = [min(own.share, 1 / own.share) for own in gap.causes]
    assert closeness == sorted(closeness, reverse=True)
    [clock] = [own for own in gap.causes if "clock" in own.name]
    lower = {"clock": 0.8 * float(explanation.system.chip.clock)}
    again = dse.evaluate_design(dse.launch_design("old.sh", system="h100_80g_dgx", set=lower))
    assert clock.step_time == again["breakdown"]["step_time_s"]
    assert clock.share == pytest.approx((clock.step_time - predicted) / (0.3 * predicted))
    assert "nvidia-smi" in clock.check


def test_the_answer_says_how_far_the_measured_step_is(scripts, capsys):
    measured = ["explain", "old.sh", "--system", "h100"]
    out = stdout_of(*measured, "--measured-mfu", "0.30")
    assert re.match(r"Measured [\d.]+ s a step, 30 % MFU: \d+ % slower than predicted, outside", out)
    assert "Check first: " in out
    assert "Data loading, checkpoints and evaluation are not modelled" in out
    out = " ".join(stdout_of(*measured, "--measured-step-time", "5").split())
    assert "faster than predicted" in out
    assert "More than 100 % MFU is not possible" in out
    predicted = dse.explain(dse.launch_design("old.sh", system="h100_80g_dgx")).step_time
    assert main([*measured, "--measured-step-time", f"{predicted * 1.01:.4f}"]) == 0
    assert "within the accuracy of the prediction" in capsys.readouterr().out
