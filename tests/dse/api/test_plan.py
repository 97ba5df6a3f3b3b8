"""`dse plan`: from a model and a number of chips to the best layouts."""

import json
import re
import shutil

import numpy as np
import pytest

import dse
from costmodel import DseError
from dse import Space, Study
from dse.cli import main
from dse.searching.exact.exact_front import exact_front
from dse.spaces.question import Question, planned_space
from tests.support.cases import by_table
from tests.support.commands import json_of, outputs_of
from tests.support.hugging_face_configs import PUBLISHED
from tests.support.next_commands import check_next_commands
from tests.support.rules import broken_rules
from tests.support.runs import slower


def planned(model, chips, system="h100_80g_dgx", **more):
    """The answer to a question, with its space."""
    return planned_space(Question(model=model, system=system, chips=chips, **more))


def options(plan):
    """Parameters of a plan, and their options."""
    return {parameter.name: list(parameter.choices) for parameter in plan.space.parameters}


def asked(*argv, code=0):
    """Texts that `dse plan` prints to stdout and to stderr."""
    return outputs_of("plan", *argv, code=code)


LLAMA_8B = ("llama3_8b", "--gpus", "8", "--system", "h100_80g_dgx")


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The plan of a built-in model as a table and, planned again, as JSON; and the database of its study."""
    folder = tmp_path_factory.mktemp("plan")
    words = [*LLAMA_8B, "--storage", f"sqlite:///{folder}/dse.db"]
    return asked(*words), json_of("plan", *words, "--save", f"{folder}/space.yaml"), folder / "dse.db"


def test_a_question_without_a_file_is_answered(shipped):
    (out, err), *_ = shipped
    assert out.startswith("Llama 3.1 8B on 8 x h100_80g_dgx, megatron_core, bf16, 512 x 8,192 tokens a step\nUse ")
    for line in ("fastest", "least memory", "Bottleneck: ", "Stored as study plan_llama3_8b_8."):
        assert line in out
    assert err == (
        "dse: assumed: --seq-len 8192, --global-batch-size 512 (4.2 million tokens), --precision bf16, "
        "--framework megatron_core, --headroom '7.4 %' (90 % of measured peaks of Megatron Core are at most "
        "1.08 times the prediction)\n"
    )


def test_pinned_sizes_are_those_of_their_options():
    """Ranges of layouts and the batch follow them, and none is said to be assumed."""
    pinned = planned("llama3_8b", 16, pins={"seq_len": "131072", "precision": "bf16"})
    stated = planned("llama3_8b", 16, seq_len=131072)
    assert (options(pinned), pinned.space.given) == (options(stated), {**stated.space.given, "precision": 0})
    assert [text for text in stated.assumed if text not in pinned.assumed] == ["precision bf16"]
    with pytest.raises(DseError, match="set world_size=32: another option says 16"):
        planned("llama3_8b", 16, pins={"world_size": 32})


@by_table("model", "said")
def test_experts_are_as_balanced_as_the_framework_says(model, said):
    plan = planned(model, 128)
    assert plan.assumed[-1] == said
    assert plan.space.given["imbalance"] == float(said.split()[1])
    forced = planned(model, 128, imbalance=1.0)
    assert not any("imbalance" in text for text in forced.assumed)
    assert forced.space.given["imbalance"] == 1


@by_table("system", "asked", "notes", "formats")
def test_what_does_not_go_together_is_named(system, asked, notes, formats):
    plan = planned("llama3_8b", 64, system, **asked)
    assert [*plan.model.notes] == notes
    assert options(plan).get("precision") == formats


@by_table("model", "system", "framework")
def test_every_command_that_is_printed_as_next_works(model, system, framework, capsys):
    """All shipped models under all frameworks: tests/stress/test_next_commands.py."""
    check_next_commands(capsys, model, system, framework)


@pytest.mark.parametrize("framework", [[], ["--framework", "megatron_core"]])
def test_no_launch_file_is_proposed_for_chips_that_run_other_software(framework):
    assert "dse export" not in asked("gpt2_xl", "--gpus", "8", "--system", "trainium2_96g", *framework).out


def test_a_framework_may_be_a_file_of_ones_own(tmp_path):
    said = "given:\n  zero: {value: 3, kind: documented, source: mine}\n"
    runs = "runs:\n  schedule: {values: [1f1b], source: mine}\n"
    (tmp_path / "mine.yaml").write_text(f"schema: framework/v1\ndescription: mine\n{said}{runs}")
    out = asked(*LLAMA_8B, "--framework", "./mine.yaml").out
    assert "dse explain plan_llama3_8b_8" in out
    assert "dse export" not in out  # no form of launch files starts it


@pytest.mark.slow
def test_what_other_software_would_run_faster_is_said():
    """Halves of DualPipe hide exchanges of experts; Megatron Core has 1F1B."""
    out = asked("deepseek_v3", "--gpus", "1024", "--system", "h100_80g_dgx").out
    _, line = " ".join(out.split()).split("Not available in Megatron Core: ")
    assert re.search(r" would give [\d.]+ s \(-[\d.]+ %\)", line)
    assert "schedule=dualpipe_v: Megatron Core has 1f1b" in line
    front = Study.load("plan_deepseek_v3_1024").table.front().records()
    assert all("schedule" not in design["params"] for design in front)


def test_a_framework_runs_what_its_file_says():
    assert planned("gpt3_175b", 512, framework="pytorch_fsdp").space.completed({})["tp"] == 1


@pytest.mark.parametrize("framework", ["internevo", "megatron_deepspeed", "nanotron"])
def test_states_are_sharded_where_the_framework_shards_them_in_one_way(framework):
    assert options(planned("llama2_7b", 64, "a100_80g_dgx", framework=framework))["zero"] == [1]


def test_the_study_holds_the_exact_front_and_asking_again_adds_nothing(shipped):
    """JSON has the same front, and names the file of the space."""
    _, record, database = shipped
    assert record["exact"] is True
    space = Space.load(record["space_file"])
    assert record["n_legal"] == space.legal.count
    exact = exact_front(space).costs
    assert [design["values"]["step_time_expected_s"] for design in record["front"]] == exact[:, 0].tolist()
    study = Study.load("plan_llama3_8b_8", storage=f"sqlite:///{database}")
    assert study.table.feasible.all()
    assert len(study.table) == len(study.table.front()) == len(exact)
    assert study.table.front().numbers[0] == 0  # the fastest is trial 0


@pytest.mark.slow
def test_a_plan_ranks_by_expected_times_and_names_what_its_lead_rests_on():
    """Kinds of layers that no measured run on the chip has, or all of a chip without runs; not a measured kind."""
    assert "Lead " not in asked(*LLAMA_8B).out
    [best, *_] = Study.load("plan_llama3_8b_8").table.front().records()
    assert best["values"]["step_time_expected_s"] > best["breakdown"]["step_time_s"]
    experts = " ".join(asked("qwen3_30b_a3b", "--gpus", "16", "--system", "mi300x").out.split())
    assert re.search(r"[\d.]+ s a step expected \(predicted [\d.]+ s; 90 %", experts)
    assert "Lead rests on the cost model alone: too few such runs on this chip were measured." in experts
    assert "rests on its kinds of layers: too few" in asked("nemotron_h_8b", "--gpus", "64", "--system", "h100").out


@pytest.mark.slow
def test_an_optimistic_plan_ranks_by_predicted_times():
    record = json_of("plan", *LLAMA_8B, "--optimistic", "--tokens", "1B")
    space = planned("llama3_8b", 8, optimistic=True).space
    assert [objective.name for objective in space.objectives] == ["step_time", "peak_memory"]
    assert [design["values"]["step_time_s"] for design in record["front"]] == exact_front(space).costs[:, 0].tolist()
    [best, *_] = record["front"]
    steps = np.ceil(1e9 / (512 * 8192))
    assert best["run"]["run_time_s"] * best["run"]["goodput"] == pytest.approx(steps * best["values"]["step_time_s"])
    assert "expected" not in asked(*LLAMA_8B, "--optimistic").out


@pytest.mark.slow
def test_another_question_gets_another_study():
    asked(*LLAMA_8B)
    assert "Stored as study plan_llama3_8b_8_2." in asked(*LLAMA_8B, "--seq-len", "4096").out
    assert "searches another space" in asked(*LLAMA_8B, "--seq-len", "2048", "--study",
                                             "plan_llama3_8b_8", code=1).err  # fmt: skip


def test_a_plan_never_shows_results_of_another_cost_model(monkeypatch, tmp_path, shipped):
    """A study of an earlier cost model stays as it is, and the plan of the present one gets another name."""
    shutil.copy(shipped[-1], tmp_path)
    before = Study.load("plan_llama3_8b_8").pareto_front()["step_time_s"].min()
    slower(monkeypatch, 1.5)
    assert "Stored as study plan_llama3_8b_8_2." in asked(*LLAMA_8B).out
    assert Study.load("plan_llama3_8b_8_2").pareto_front()["step_time_s"].min() == pytest.approx(1.5 * before)
    again = asked(*LLAMA_8B, "--study", "plan_llama3_8b_8", code=1).err
    assert "its trials were evaluated differently" in again


def test_a_model_may_be_a_hugging_face_configuration(tmp_path, shipped):
    _, record, _ = shipped
    (tmp_path / "Llama-8B").mkdir()
    (tmp_path / "Llama-8B" / "config.json").write_text(json.dumps(PUBLISHED["Llama 3 8B"][0]))
    planned_again = json_of("plan", "Llama-8B", *LLAMA_8B[1:])
    assert planned_again["study"] == "plan_llama_8b_8"
    assert [design["params"] for design in planned_again["front"]] == [design["params"] for design in record["front"]]


@pytest.mark.parametrize("form", ["megatron", "nemo"])
def test_a_model_may_be_that_of_a_launch_file(form, shipped):
    _, record, database = shipped
    export = ["export", "plan_llama3_8b_8", "--trial", "0", "--format", form, "-o", "train.file"]
    assert main([*export, "--storage", f"sqlite:///{database}"]) == 0
    planned_again, err = asked("train.file", *LLAMA_8B[1:], "--format", "json")
    expected = [design["params"] | {"precision": "bf16"} for design in record["front"]]
    assert [design["params"] for design in json.loads(planned_again)["front"]] == expected
    assert "its model, --seq-len 8192, --global-batch-size 512, --precision bf16, --framework megatron_core\n" in err


def test_the_layout_of_a_launch_file_need_not_suit_the_gpus_of_its_plan(tmp_path):
    sizes = "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 1024 --vocab-size 32000"
    layout = "--tensor-model-parallel-size 8 --micro-batch-size 4 --global-batch-size 12"
    (tmp_path / "train.sh").write_text(f"python pretrain_gpt.py {sizes} {layout}\n")
    err = asked("train.sh", "--gpus", "12", "--system", "h100_80g_dgx", "--seq-len", "512").err
    assert "taken from it: its model, --global-batch-size 12, --precision bf16" in err


def test_what_is_opened_follows_from_model_and_machine():
    dense = options(planned("llama3_405b", 16384))
    assert dense["tp"] == [1, 2, 4, 8]  # eight key heads, nodes of eight
    assert dense["pp"] == [1, 2, 4, 8, 16, 32, 64]  # 126 layers, embedding and loss
    assert "cp" not in dense
    assert options(planned("llama3_405b", 16384, seq_len=131072))["cp"] == [1, 2, 4, 8, 16, 32]
    assert options(planned("qwen3_235b_a22b", 256))["tp"] == [1, 2, 4]  # four key heads
    experts = options(planned("deepseek_v3", 2048, precision=["bf16", "fp8_blockwise"]))
    assert experts["ep"] == [1, 2, 4, 8, 16, 32, 64]
    assert experts["precision"] == ["bf16", "fp8_blockwise"]
    assert not {"etp", "offload_optimizer"} & experts.keys()
    assert options(planned("deepseek_v3", 2048, offload=True))["offload_expert_fc1"] == [False, True]
    assert options(planned("mixtral_8x22b", 128))["etp"] == [1, 2, 4, 8]


@by_table("model", "chips", "layout")
def test_layouts_that_were_run_are_among_those_listed(model, chips, layout):
    space = planned(model, chips).space
    params = space.completed(layout)
    assert layout.items() <= params.items()
    assert not broken_rules(space, params)


@by_table("chips", "batch", "expected")
def test_a_batch_is_about_as_many_tokens_as_usual(chips, batch, expected):
    assert planned("llama3_70b", chips, batch_tokens=batch).data["given"]["global_batch_size"] == expected


def test_the_whole_run_is_the_tokens_at_the_rate_of_a_step():
    record = json_of("plan", *LLAMA_8B, "--tokens", "1B")
    [best, *_] = record["front"]
    useful = best["run"]["run_time_s"] * best["run"]["goodput"]
    steps = 1e9 / best["breakdown"]["tokens_per_second"] / best["breakdown"]["step_time_s"]
    assert useful == pytest.approx(np.ceil(steps) * best["values"]["step_time_expected_s"])
    assert planned("llama3_8b", 8, examples=50.0, seq_len=512, dpo=True).data["run"]["tokens"] == 50 * 2 * 512


def test_chips_that_no_layout_splits_are_refused_with_some_that_would_do():
    why = "no legal layout of llama3_405b on 7 GPUs with 64 sequences a step; use gpus 4 or 8"
    with pytest.raises(DseError, match=why):
        planned("llama3_405b", 7, sequences=64)
    planned("llama3_405b", 8, sequences=64)


@by_table("argv", "message")
def test_a_question_without_an_answer_says_what_would_do(argv, message):
    assert message in asked(*argv, code=1).err


def test_states_on_hosts_make_room():
    [best, *_] = json_of("plan", "llama3_70b", "--gpus", "8", "--system", "h100_80g_dgx", "--offload")["front"]
    assert best["params"]["offload_optimizer"] == 1


@pytest.mark.slow
def test_best_plans_stay_near_what_was_measured():
    """NVIDIA measured 4,916 tokens/s a GPU, in bf16; MegaScale's 65.3 % are the most on A100s."""
    qwen = planned("qwen3_235b_a22b", 256, system="gb200_186g_nvl72").space
    fastest = exact_front(qwen, method="list").costs[:, 0].min()
    assert (qwen.given["global_batch_size"] * qwen.model.seq_len) / fastest / 256 < 1.15 * 4916
    assert dse.plan("gpt3_175b", gpus=1024, system="a100_80g_dgx").study.pareto_front()["mfu"].max() < 0.66
