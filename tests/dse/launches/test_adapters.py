"""Adapters of LoRA in launch files, in the words of frameworks; and whether any column of designs is forgotten."""

import re

import pytest

from costmodel import load_model
from costmodel.training.design import EVERY_MODULE, DesignPoints
from dse.adapters.megatron_bridge import launch as bridge
from dse.adapters.torchtitan import launch as torchtitan
from dse.api.exports import artefacts
from dse.launches.launch import Launch, NotExpressible
from dse.spaces.question import Question, planned_space
from tests.house import ROOT
from tests.support.launch_files import read_text

LAYOUT = {"tp": 1, "pp": 1, "dp": 8, "gradient_accumulation_steps": 2, "zero": 1, "overlap_grad_reduce": True,
          "cross_entropy": "te"}  # fmt: skip


def launch_with(model="llama3_8b", **columns):
    return Launch.of(load_model(model), {**LAYOUT, **columns}, 8)


def read_back(form, launch, folder):
    """Text of a launch file, losses, and the launch that it starts."""
    text, lost = form.script(launch)
    return text, lost, read_text(form, text, folder)[0]


@pytest.mark.parametrize("model", ["llama3_8b", "nemotron_h_8b"])
@pytest.mark.parametrize(("targets", "fused"), [
    *((targets, fused) for targets in ("all_linear", "attention", "mlp", "qkv") for fused in (True, False)),
    ("query_value", False), ("all_but_mixers", True),
])  # fmt: skip
def test_megatron_bridge_has_a_section_for_adapters(tmp_path, targets, fused, model):
    launch = launch_with(model, lora_rank=16, lora_targets=targets, lora_fused=fused)
    text, lost, actual = read_back(bridge, launch, tmp_path)
    assert ("lora" in " ".join(lost), "pretrained_checkpoint: PRETRAINED_CHECKPOINT" in text) == (False, True)
    assert f"_target_: megatron.bridge.peft.{'lora.LoRA' if fused else 'canonical_lora.CanonicalLoRA'}" in text
    expected = targets if model == "nemotron_h_8b" else targets.replace("all_but_mixers", "all_linear")
    assert (actual["lora_rank"], actual["lora_targets"], actual["lora_fused"]) == (16, expected, fused)
    assert ("- in_proj\n  - out_proj" in text) == (model == "nemotron_h_8b" and targets in ("all_linear", "attention"))


def test_megatron_bridge_names_the_products_of_latent_attention():
    launch = launch_with("deepseek_v2_lite", lora_rank=8, lora_targets="attention", ep=1)
    assert "- linear_kv_down_proj\n  - linear_kv_up_proj\n  - linear_proj" in bridge.script(launch)[0]


@pytest.mark.parametrize("targets", ["all_linear", "attention", "mlp", "qkv"])
def test_torchtitan_has_a_converter_for_adapters(tmp_path, targets):
    columns = {"zero": 3, "cross_entropy": "chunked", "store_param_remainders": True, "attention": "flash_attention_2"}
    launch = launch_with(lora_rank=8, lora_targets=targets, lora_fused=False, **columns)
    text, lost, actual = read_back(torchtitan, launch, tmp_path)
    assert not [line for line in lost if "lora" in line]
    assert "from torchtitan.components.lora import LoRAConverter" in text
    assert 'initial_load_path=environ["PRETRAINED_CHECKPOINT"]' in text
    assert (actual["lora_rank"], actual["lora_targets"], actual["lora_fused"]) == (8, targets, False)


def test_queries_and_values_have_adapters_apart():
    with pytest.raises(NotExpressible, match=r"lora_targets=query_value .* lora_fused=0"):
        bridge.script(launch_with(lora_rank=8, lora_targets="query_value", lora_fused=True))
    planned = planned_space(Question(model="llama3_8b", system="h100", chips=8, lora=8, lora_targets="query_value"))
    assert planned.space.given["lora_fused"] == 0


@pytest.mark.parametrize("form", ["aicb", "chakra", "astra-sim", "dfmodel"])
def test_other_simulators_have_no_adapters(form):
    planned = planned_space(Question(model="llama3_8b", system="h100", chips=8, lora=16))
    first = {parameter.name: parameter.choices[0] for parameter in planned.space.parameters}
    [file] = artefacts(planned.space, [first], form)
    assert file.content is None
    assert file.notes == (f"{form} cannot express lora_rank",)


#: Columns that are parts of others, and those of modules, which patterns and frameworks name.
PARTS = {"first_stage_layers", "last_stage_layers", "cp_a2a", "quantized_base", "activation_offload_fraction",
         "recompute_method", "recompute_layers",
         *DesignPoints.aliases, *(module.column for module in EVERY_MODULE)}  # fmt: skip


@pytest.mark.parametrize("adapter", ["megatron", "maxtext", "torchtitan"])
def test_adapters_name_every_column_of_designs(adapter):
    """A column that neither an adapter nor the file of its framework names is left out without a word."""
    folders = f"dse/adapters/{adapter}/**/*.py", f"dse/adapters/{adapter}/*.yaml", "dse/launches/*.py"
    files = [file for pattern in (*folders, f"search_spaces/frameworks/{adapter}*.yaml") for file in ROOT.glob(pattern)]
    assert {*DesignPoints.declared()} - PARTS <= {word for f in files for word in re.findall(r"\w+", f.read_text())}
