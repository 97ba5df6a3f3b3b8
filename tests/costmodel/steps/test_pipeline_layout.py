"""Layers of chunks as Megatron-LM's layout strings say them."""

import pytest

from costmodel import DesignPoints, DseError, load_model, load_system, step
from costmodel.steps.pipeline.stages import every_stage
from costmodel.training.design import PipelineLayout
from dse.spaces.space import Space
from tests.support.cases import cases

V3 = "Et*3|(tt|)*29,m|L"  # of DeepSeek-V3 on 16 stages of two chunks, in Megatron-LM's documentation
STAGES = {"pp": 16, "vpp": 2, "gradient_accumulation_steps": 32}


def test_a_text_says_the_layers_of_every_chunk():
    layout = PipelineLayout.parse(V3)
    assert layout.layers == (3, *[2] * 29, 0, 0)
    assert layout.mtp == 30
    assert PipelineLayout.parse("Ett|tttL") == PipelineLayout((2, 3), 1)


@pytest.mark.parametrize("text", ["tt|L", "Ett", "Ett|tEL", "Ett|x|L", "", "(((", "Et*99999999999|L"])
def test_what_is_no_layout_is_refused(text):
    with pytest.raises(DseError, match="pipeline_layout"):
        PipelineLayout.parse(text)


def test_chunks_go_around_the_ranks():
    """The first rank has chunks 0 and 16; multi-token prediction is on the last but one, the loss alone."""
    stages = every_stage(load_model("deepseek_v3"), DesignPoints.of(**STAGES, pipeline_layout=V3))
    assert [stage.num_layers.item() for stage in stages] == [5, *[4] * 13, 2, 2]
    assert [stage.counts[-1].item() for stage in stages] == [*[0] * 14, 1, 0]
    assert [stage.has_head.item() for stage in stages] == [*[0] * 15, 1]


def test_a_layout_that_spares_the_ends_is_faster():
    """The last stage has two heads and a layer ahead: with fewer layers it no longer paces the others."""
    model, system = load_model("deepseek_v3"), load_system("h800_80g_dgx")
    designs = DesignPoints.of(blocks=model.blocks, **STAGES, dp=4, ep=4, pipeline_layout=["even", V3])
    even, spared = step(model, system, designs).step_time
    assert spared < 0.8 * even


def test_a_layout_is_of_one_model_and_pipeline():
    model, system = load_model("deepseek_v3"), load_system("h800_80g_dgx")
    with pytest.raises(DseError, match=r"61 layers, 32 chunks; expected 61 in pp \* vpp = 16"):
        step(model, system, DesignPoints.of(pp=8, vpp=2, pipeline_layout=V3))
    with pytest.raises(DseError, match="expected 96"):
        step(load_model("gpt3_175b"), system, DesignPoints.of(**STAGES, pipeline_layout=V3))


def test_a_space_takes_layouts_as_words():
    space = Space.from_text(cases(__file__, "SPACE"))
    assert [design["pipeline_layout"] for design in space.decode(next(space.legal.enumerate()))] == ["even", V3]
