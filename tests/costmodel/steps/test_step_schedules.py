"""Pipeline schedules and unequal stages inside a step, against the schedules timed by themselves."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, DseError, load_model, step
from costmodel.steps.micro_batch.micro_batch import micro_batches
from costmodel.steps.pipeline import pipeline_step as passes
from costmodel.steps.pipeline.stages import every_stage
from costmodel.training.design import SCHEDULE_WORDS
from costmodel.training.run import Run, rank_run
from dse.api.study import Study
from dse.spaces.space import Space
from tests.support.cases import by_table, cases
from tests.support.pipelines import pipeline_times

#: A pipeline that every schedule can run, with the chunks that it wants.
CHUNKS = dict(zip(SCHEDULE_WORDS, (1, 1, 2, 1, 1, 2, 1, 2), strict=True))
PIPELINE = {"tp": 8, "pp": 8, "gradient_accumulation_steps": 32, "sequence_parallel": 1}


@pytest.fixture(scope="module")
def gpt():
    """GPT-3 without a head or a table to speak of: stages of the same layers take the same time."""
    return replace(load_model("gpt3_175b"), vocab_size=1)


def of_schedule(word, **columns):
    return DesignPoints.of(**{**PIPELINE, "vpp": CHUNKS[word], "schedule": word, **columns})


@pytest.mark.parametrize("word", SCHEDULE_WORDS)
def test_a_step_takes_what_its_schedule_does(gpt, a100, word):
    """Equal stages: the passes of twelve layers each, timed by `pipeline_times`."""
    design = of_schedule(word, overlap_p2p=1)
    cost, run = step(gpt, a100, design), Run(gpt, a100, design)
    one = micro_batches(rank_run(run))
    forward, backward, weight = (
        12 * part[0].total_time.item() / CHUNKS[word] for part in (one.forward, one.backward, one.weight)
    )
    alone = pipeline_times(
        schedule=word, pp=PIPELINE["pp"], vpp=CHUNKS[word],
        gradient_accumulation_steps=PIPELINE["gradient_accumulation_steps"], forward_time=forward,
        input_gradient_time=backward - weight, weight_gradient_time=weight,
        message_time=passes.pipeline_hop(run, rank_run(run)).time,
    )  # fmt: skip
    others = ("dp_communication_time", "optimizer_time", "host_time")
    pipeline = cost.step_time.item() - sum(getattr(cost, name).item() for name in others)
    assert pipeline == pytest.approx(alone.makespan.item(), rel=6e-3)  # norm and embedding


@by_table("word", "held")
def test_activations_of_the_fullest_rank_follow_the_schedule(gpt, a100, word, held):
    """In micro-batches: m, p, p, 2 p - 1, 2 p chunks of half a stage, and p + 1."""
    one = step(gpt, a100, of_schedule("1f1b", gradient_accumulation_steps=1)).activations_memory.item()
    assert step(gpt, a100, of_schedule(word)).activations_memory.item() == pytest.approx(held * one, rel=0.05)


def test_a_pipeline_with_two_ends_holds_the_model_twice(gpt, a100):
    once, twice = (step(gpt, a100, of_schedule(word, dp=4, zero=1)) for word in ("1f1b", "dualpipe"))
    assert twice.weights_memory.item() == pytest.approx(2 * once.weights_memory.item(), rel=0.01)
    assert twice.gradients_memory.item() == pytest.approx(2 * once.gradients_memory.item(), rel=0.01)
    assert twice.optimizer_memory.item() == pytest.approx(once.optimizer_memory.item(), rel=0.01)


def layers(model, **columns):
    """Layers of each rank."""
    stages = every_stage(model, DesignPoints.of(**columns))
    return [stage.num_layers.item() for stage in stages]


def test_embedding_and_loss_count_as_layers():
    """Llama 3.1 405B: 126 layers over 16 stages, one less on the first and on the last."""
    llama = load_model("llama3_405b")
    assert layers(llama, pp=16, count_embedding=1, count_loss=1) == [7, *[8] * 14, 7]
    assert layers(llama, pp=16, vpp=8, count_embedding=1, count_loss=1) == [7, *[8] * 14, 7]
    assert layers(llama, pp=16, vpp=2, count_loss=1)[-1] == 7


def test_layers_of_the_first_and_last_stage_may_be_told():
    """DeepSeek-V3: 61 layers over 16 stages."""
    v3 = load_model("deepseek_v3")
    assert layers(v3, pp=16, first_stage_layers=3, last_stage_layers=2) == [3, *[4] * 14, 2]
    assert layers(v3, pp=8, last_stage_layers=5) == [8] * 7 + [5]
    assert layers(v3, pp=16, vpp=2, schedule="zb_v", first_stage_layers=5) == [5, *[4] * 11, *[3] * 4]


def test_a_v_has_embedding_and_head_on_its_first_rank():
    stages = every_stage(load_model("gpt3_175b"), DesignPoints.of(pp=4, vpp=2, schedule="zb_v"))
    assert [stage.has_embedding.item() for stage in stages] == [1, 0, 0, 0]
    assert [stage.has_head.item() for stage in stages] == [1, 0, 0, 0]


@pytest.mark.parametrize(("columns", "wanted"), cases(__file__, "what_a_schedule_cannot_run_is_said"))
def test_what_a_schedule_cannot_run_is_said(gpt, a100, columns, wanted):
    with pytest.raises(DseError, match=wanted):
        step(gpt, a100, DesignPoints.of(**{**PIPELINE, **columns}))


SPACE = cases(__file__, "SPACE")


def test_every_legal_design_of_a_space_is_one_that_its_schedule_can_run():
    space = Space.from_text(SPACE)
    [designs] = space.legal.enumerate()
    known = space.known_values(designs)
    assert {SCHEDULE_WORDS[int(code)] for code in designs["schedule"]} == {*SCHEDULE_WORDS}
    columns = ("pp", "vpp", "schedule", "group_size", "dp", "gradient_accumulation_steps", "recompute")
    cost = step(space.model, space.system, DesignPoints.of(tp=2, **{name: known[name] for name in columns}))
    assert np.isfinite(cost.step_time).all()


def test_layouts_are_among_the_first_designs_of_a_search(tmp_path):
    space = Space.from_text(SPACE)
    study = Study.open(space, storage=f"sqlite:///{tmp_path}/study.db")
    study.run(20)
    first = study.trials().head(2)
    assert first.schedule.tolist() == ["zb_v", "1f1b"]
    assert first.vpp.tolist() == [2, 3]


def test_a_layout_that_pins_contradict_is_left_out():
    assert Space.from_text(SPACE).pinned({"pp": 8}).starting_points == []


def test_a_layout_names_parameters_and_their_options():
    with pytest.raises(DseError, match="shedule: no parameter of this space; did you mean 'schedule'"):
        Space.from_text(SPACE.replace("schedule: zb_v,", "shedule: zb_v,"))
    with pytest.raises(DseError, match="not an option"):
        Space.from_text(SPACE.replace("folded: {pp: 4", "folded: {pp: 3"))
