"""Launch files, which start a design in Megatron-LM, NeMo, torchtitan or MaxText, and their costs."""

import json
import os
import re
import subprocess
import sys
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest
import yaml

from costmodel import DesignPoints, DseError, load_model
from costmodel.formats import shipped
from costmodel.formats.framework_file import launching
from costmodel.formats.model_file import model_names
from costmodel.steps.transformer import transformer_step
from costmodel.training.dimensions import Numerics
from costmodel.training.model import ModelShape
from costmodel.training.run import Run
from dse.adapters.maxtext import launch as maxtext
from dse.adapters.megatron import launch as megatron
from dse.adapters.megatron.model import KEYS, model_losses, model_settings, pattern, settings_model
from dse.adapters.megatron.shell.shell import Script
from dse.adapters.megatron_bridge import launch as nemo
from dse.adapters.torchtitan import launch as torchtitan
from dse.adapters.torchtitan.design import TABLES, flavor_of, flavored
from dse.api.exports import artefacts
from dse.launches.launch import Launch, NotExpressible, launch_files, launch_space, read_launch
from dse.pricing.evaluation import evaluate, transformer_run
from dse.registry import launch_forms, load
from dse.spaces.question import Question, planned_space
from dse.spaces.space import Space
from tests.support.cases import by_table, cases
from tests.support.commands import json_of, outputs_of, stderr_of, stdout_of
from tests.support.launch_files import read_text
from tests.support.paths import ROOT

#: A script as people have it: variables, arrays, comments, continued lines, flags of no cost, an unknown one.
SCRIPT = cases(__file__, "SCRIPT")


def run_of(space, **pins):
    """The run of a space's usual design, with some columns pinned."""
    return transformer_run(space, space.encode([space.completed(pins)]), DesignPoints)


def meaning(launch):
    """A design, with columns as they are where they say something."""
    tp = launch["tp"] > 1
    words = {
        "zero": launch.zero_stage,
        "sequence_parallel": tp and launch.sequence_parallel,
        "tp_overlap": launch["tp_overlap"] if tp else "",
    }
    others = {"sharding", *words}
    return words | {name: value for name, value in launch.design.items() if name not in others}


def expressible(module, run):
    """A launch and its file if the framework has all of its settings; else None."""
    launch = Launch.of_run(run)[0]
    try:
        text, lost = module.script(launch)
    except NotExpressible:
        return None
    return None if lost else (launch, text)


# There and back


@pytest.mark.parametrize("module", [megatron, nemo], ids=["megatron", "nemo"])
@pytest.mark.parametrize("name", [name for name in shipped.names("spaces") if not name.startswith("lstm")])
def test_a_design_comes_back_from_its_file_and_costs_the_same_to_the_bit(name, module, tmp_path):
    space = Space.load(name)
    if name == "deepseek_v3_2048_h800":  # Megatron Core keeps remainders alone
        space = space.pinned({"store_param_remainders": True})
    runs = [run_of(space, **design) for design in ({}, *space.starting_points)]
    files = [(run, *file) for run in runs if (file := expressible(module, run))]
    assert files or name in ("gpt3_175b_kernels", "gpt3_175b_codesign")
    for run, launch, text in files:
        back, notes = read_text(module, text, tmp_path, launch.world_size if module is nemo else None)
        assert (notes, meaning(back)) == ([], meaning(launch))
        before, after = transformer_step(run), transformer_step(Run(back.model, run.system, back.points))
        assert (after.step_time[0], after.peak_memory[0]) == (before.step_time[0], before.peak_memory[0])


FLAVORS = cases(__file__, "FLAVORS")


@pytest.mark.parametrize("name", FLAVORS)
def test_flavors_of_torchtitan_that_do_not_ship_are_models_too(name):
    assert (model := flavored(*name.split())).num_parameters == FLAVORS[name]
    assert flavor_of(model) == tuple(name.removesuffix("_flex").split())


def test_toml_of_older_torchtitan_is_refused_by_name(tmp_path):
    (tmp_path / "job.toml").write_text("[model]\nname = 'llama3'\nflavor = '8B'\n")
    with pytest.raises(DseError, match=r"TOML is of torchtitan 0\.2\.2 and older; dse reads Python"):
        read_launch(tmp_path / "job.toml", "torchtitan", 8)


def test_chunks_of_torchtitan_count_embedding_and_output_as_a_layer_each(tmp_path):
    """`generate_llm_fqn_per_model_part` of torchtitan: 48 layers over 4 stages."""
    parallel = "ParallelismConfig(data_parallel_shard_degree=2, pipeline_parallel_degree=4)"
    text = (
        "from torchtitan.models.qwen3 import model_registry\n"
        'def job():\n    return Trainer.Config(model_spec=model_registry("30B-A3B", '
        f"converters=[LoRAConverter.Config()]), parallelism={parallel}, training=TrainingConfig())\n"
    )
    launch, notes = read_text(torchtitan, text, tmp_path)
    assert "LoRAConverter without target_modules: its adapter beside the output matrix is not read" in notes
    assert launch.chunks() == [12, 13, 12, 11]


@pytest.mark.parametrize("name", model_names())
def test_every_model_comes_back_that_megatron_core_has(name):
    model = load_model(name)
    if not isinstance(model, ModelShape) or model_losses(model):
        return
    if name.startswith("qwen3_next"):  # with keys of another width than values, which no built-in model has
        model = replace(model, linear_key_head_dim=64.0)
    back = settings_model(model_settings(model), name)
    same = ["num_parameters", "active_parameters", "mtp_parameters"]
    if model.window < model.seq_len:  # a window as long as the sequence is not written: attention is causal
        same += ["forward_flops_per_sequence", *["sequence"] * (back.num_layers == model.num_layers)]  # else branches
    assert {figure: getattr(back, figure) for figure in same} == {figure: getattr(model, figure) for figure in same}
    assert {*model_settings(model)} <= megatron.READ | megatron.NEGATED.keys()
    asked = {"no_rope_fusion": model.index_topk, "kv_channels": model.hidden_size % model.num_attention_heads}
    assert {name for name, value in asked.items() if value} <= model_settings(model).keys()  # by asserts of Megatron-LM


@by_table("form", "pp", "vpp", "first")
def test_hybrid_models_have_their_pipeline_in_the_pattern(form, pp, vpp, first, tmp_path):
    """88 layers in chunks of 44 or 11, and one module of multi-token prediction behind a slash."""
    module = {"megatron": megatron, "nemo": nemo}[form]
    model, design = load_model("nemotron_3_super_120b_a12b"), {"pp": pp, "vpp": vpp, "gradient_accumulation_steps": 8}
    launch = Launch.of(model, {**design, "overlap_p2p": vpp > 1}, 8)
    text, lost = module.script(launch)
    pattern = re.search(r"hybrid.layer.pattern:? '?([ME*|/]+)", text)[1]
    main, prediction = pattern.split("/")
    assert (lost, main.count("|"), main.replace("|", ""), prediction) == ([], pp * vpp - 1, model.layer_order, "*E")
    assert main.partition("|")[0].endswith(first)
    back, notes = read_text(module, text, tmp_path, launch.world_size)
    assert (back["pp"], back["vpp"], back.chunks(), notes) == (pp, vpp, launch.chunks(), [])
    assert (back.model.num_parameters, back.model.mtp_parameters) == (model.num_parameters, model.mtp_parameters)


@pytest.mark.parametrize("module", [megatron, nemo], ids=["megatron", "nemo"])
@pytest.mark.parametrize("field", ["name", "title"])
def test_no_name_of_a_model_is_a_command(module, field):
    launch = Launch.of_run(run_of(Space.load("qwen3_235b_256_gb200")))[0]
    named = replace(launch, model=replace(launch.model, **{"title": "", field: "m\ntouch x\r\x85touch y\x1b"}))
    text = module.script(named)[0]
    assert "# m touch x touch y\\x1b on 256 chips" in text
    assert len(text.split("\n")) == len(module.script(launch)[0].split("\n"))


@by_table("form", "name", "pins", "why")
def test_what_a_framework_cannot_run_is_refused(form, name, pins, why):
    launch = launch_of(name, 64, pins) if name in model_names() else Launch.of_run(run_of(Space.load(name, pins)))[0]
    with pytest.raises(NotExpressible, match=why):
        load(launch_forms()[form].write)(launch)


def planned(model, system, chips=64):
    """A plan's space, and a design of it."""
    plan = planned_space(Question(model=model, system=system, chips=chips))
    return plan, plan.space.completed({})


def launch_of(model, chips, pins, system="h100_80g_dgx", **options):
    """The launch of a planned design."""
    space = planned_space(Question(model=model, system=system, chips=chips, **options)).space
    return Launch.of_run(run_of(space, **pins), space.framework)[0]


def test_a_model_that_megatron_cannot_train_is_written_on_demand_alone():
    plan, params = planned("gemma_4_31b", "h100_80g_dgx")
    [refused] = artefacts(plan.space, [params], "megatron")
    assert (plan.runnable, refused.content) == (False, None)
    assert ": in Megatron Core layers have two norms" in refused.notes[0]
    assert refused.notes[0].endswith("; --anyway writes it and lists the losses")
    [written] = artefacts(plan.space, [params], "megatron", anyway=True)
    for lost in ("norms_per_layer=4", "embedding_scale=True", "gate=geglu"):
        assert f"model: {lost}".encode() in written.content
        assert f"model: {lost}" in written.notes[0]
    pipelined = Launch.of(load_model("gemma_4_31b"), {"schedule": "zb_v", "pp": 2}, 8)
    with pytest.raises(NotExpressible, match="schedule=zb_v: Megatron Core has 1f1b"):
        megatron.script(replace(pipelined, anyway=True))


@by_table("model", "options", "why")
def test_a_script_of_another_model_or_another_training_is_written_on_demand_alone(model, options, why):
    plan = planned_space(Question(model=model, system="h100", chips=64, **options))
    params = plan.space.completed({})
    [refused] = artefacts(plan.space, [params], "megatron")
    assert refused.content is None
    assert re.search(f"{why}.*--anyway", refused.notes[0])
    [written] = artefacts(plan.space, [params], "megatron", anyway=True)
    assert written.content


@pytest.mark.parametrize(("vocabulary", "fits"), [(32_000, True), (3_000_000, False)])
def test_a_loss_that_needs_more_memory_is_named_or_refused(vocabulary, fits):
    """Logits of three million entries do not fit on 80 GB with the loss of Megatron-LM."""
    run = run_of(framework_space("llama3_8b", "megatron_core", {"tp": 1, "zero": 3, "recompute": "full"}))
    run = replace(run, model=replace(run.model, vocab_size=vocabulary))
    [file] = launch_files(run, "megatron", "megatron_core")
    assert bool(file.content) == fits
    capacity = run.system.dram.capacity * np.array([1.0, 100.0])  # of each design's machine
    several = replace(run, system=run.system.with_quantities({"dram_capacity": capacity}))
    several = several.of(run.design.map(lambda values: np.broadcast_to(values, (2,))))
    assert [bool(one.content) for one in launch_files(several, "megatron", "megatron_core")] == [fits, True]
    peak = r"the peak stays \d.* GB" if fits else r"\d.* GB, not \d.* GB"
    assert re.search(rf"no setting for cross_entropy=te \(cross_entropy=megatron: {peak}\)", file.notes[0])
    assert ("more than a chip has; take --format nemo" in file.notes[0]) != fits


@by_table("system", "form", "why")
def test_chips_get_files_of_software_that_runs_on_them(system, form, why):
    plan, params = planned("llama3_8b", system)
    assert (form in plan.framework.launch) == (not why)
    [file] = artefacts(plan.space, [params], form, anyway=True)  # the design does not fit
    assert why in " ".join(file.notes)
    assert bool(file.content) == (not why)


@pytest.mark.parametrize(("imbalance", "lost"), [(1.3, []), (1.0, ["imbalance=1"])])
def test_an_imbalance_that_is_not_the_frameworks_is_said_to_be_lost(imbalance, lost):
    """A script of a plan comes back with the framework's, which no flag states."""
    launch = launch_of("mixtral_8x7b", 64, {"tp": 1, "pp": 4, "ep": 8}, imbalance=imbalance)
    script, losses = megatron.script(launch)
    assert [text for text in losses if "imbalance" in text] == lost
    assert script.count("# Megatron-LM has no flag for: imbalance=1") == len(lost)
    back = launch_space(replace(launch, design={**launch.design, "imbalance": 1}), "h100_80g_dgx", "back")
    assert back.given["imbalance"] == 1.3


#: Gives scripts to Megatron-LM's own parser, checks and configuration, on a machine without GPUs.
JUDGES = [up / "shared/clients/megatron_accepts.py" for up in Path(__file__).parents]
JUDGE = next((path for path in JUDGES if path.exists()), None)


@pytest.mark.skipif(not os.environ.get("MEGATRON_LM"), reason="MEGATRON_LM names no checkout of Megatron-LM")
@pytest.mark.skipif(JUDGE is None, reason="who gives scripts to Megatron-LM is not here")
@by_table("model", "chips", "pins")
def test_megatron_lm_accepts_what_is_planned(model, chips, pins, tmp_path):
    """With a Python that has torch and einops, which MEGATRON_PYTHON names."""
    (tmp_path / "train.sh").write_text(megatron.script(launch_of(model, chips, pins))[0])
    python = os.environ.get("MEGATRON_PYTHON", sys.executable)
    command = [python, JUDGE, os.environ["MEGATRON_LM"], tmp_path / "train.sh"]
    assert "1 of 1 accepted" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


@by_table("tp", "zero", "overlap", "most")
def test_queues_to_a_gpu_are_as_many_as_megatron_asks_for(tp, zero, overlap, most):
    """arguments.py: one for the order of messages; more where weights are gathered, or exchanges overlap."""
    model = load_model("deepseek_v2_lite")
    columns = {"tp": tp, "dp": 8, "ep": 4, "zero": zero, "overlap_ep": overlap}
    columns["sharding"] = "megatron_sp" if tp > 1 else "megatron"
    assert re.findall(r"CUDA_DEVICE_MAX_CONNECTIONS=(\d+)", megatron.script(Launch.of(model, columns, 8))[0]) == most
    blackwell = replace(Launch.of(model, columns, 8), compute_capability=10.0)
    assert "CUDA_DEVICE_MAX_CONNECTIONS" not in megatron.script(blackwell)[0]


@by_table("system", "overlap", "backend")
def test_a_script_of_overlapped_exchanges_comes_back_with_its_overlap_of_tensors(system, overlap, backend, tmp_path):
    """Without a flag for tensor parallelism nothing of it overlaps beside exchanges that do."""
    pins = {"tp": 2, "ep": 8, "overlap_ep": True, "dispatcher": "two_hop", "pp": 1}
    written = launch_of("qwen3_30b_a3b", 16, pins, system=system)
    assert written["tp_overlap"] == overlap
    text, lost = megatron.script(written)
    assert lost == ["cross_entropy=te"]  # Megatron-LM refuses the loss of Transformer Engine (arguments.py)
    assert "cross-entropy" not in text
    assert f"--moe-flex-dispatcher-backend {backend}" in text
    launch, _ = read_text(megatron, text, tmp_path, 16)
    assert launch["tp_overlap"] == overlap


@pytest.mark.parametrize("conditions", [
    KEYS["lost"], KEYS["lost_properties"], KEYS["lost_numerics"], TABLES["lost"], maxtext.KEYS["lost"],
])  # fmt: skip
def test_conditions_of_losses_read_known_names(conditions):
    """A condition with an unknown name would never hold."""
    columns, model = DesignPoints.declared(), load_model("deepseek_v3")
    sizes = {*columns, *(field.name for of in (model, model.numerics) for field in fields(of))}
    for text in conditions.values():
        assert {*re.findall(r"(\w+) (?:[!=]=|[<>])", text)} <= {*sizes, "1", "2"}
        words = re.findall(r"(\w+) [!=]= ([a-z]\w*)", text)
        assert not [pair for pair in words if pair[0] in columns and pair[1] not in {*columns[pair[0]].words, *sizes}]


@pytest.mark.parametrize("name", [name for name in model_names() if name != "lstm_24b"])
def test_numerics_come_back_or_are_said_to_be_lost(name):
    model = load_model(name)
    back = settings_model(model_settings(model), name).numerics
    differ = {item.name for item in fields(Numerics) if getattr(back, item.name) != getattr(model.numerics, item.name)}
    assert differ <= {"gate", *(text.partition("=")[0] for text in model_losses(model))}


#: Form, framework whose rules price the design, model, and the design.
PRICED = cases(__file__, "PRICED")


@pytest.mark.parametrize(("form", "framework", "model", "pins"), PRICED)
def test_a_file_keeps_the_framework_and_the_chips_that_priced_it(form, framework, model, pins, tmp_path):
    space = framework_space(model, framework, pins)
    [file] = artefacts(space, [space.completed({})], form)
    assert b"no_rope_fusion" not in file.content  # flags that Megatron-Bridge has by another name
    assert (b"export NVTE_CPU_OFFLOAD_V1=1" in file.content) == (b"--offload-modules" in file.content)  # arguments.py
    path = tmp_path / f"launch{launch_forms()[form].ending}"
    path.write_bytes(file.content)
    launch, notes = read_launch(path, form)
    lost = cases(__file__, "LOST").get(model, [])
    assert (launch.framework, launch.world_size, [*file.notes, *notes]) == (framework, 64, lost)
    again = launch_space(launch, "h100_80g_dgx", "again")
    one, other = (evaluate(same, same.encode([same.completed({})])).breakdown for same in (space, again))
    assert (one.step_time[0], one.peak_memory[0]) == (other.step_time[0], other.peak_memory[0])


#: A space of 64 chips.
SPACE = cases(__file__, "SPACE")


def framework_space(model, framework, pins):
    """A space of one design of 64 chips."""
    experts = load_model(model).num_experts > 0
    columns = {"tp": 1, "pp": 1, "vpp": 1, "micro_batch_size": 1, "sequence_parallel": pins["tp"] > 1, **pins}
    columns |= {"etp": pins["tp"] if framework.startswith("maxtext") else 1} if experts else {}
    parameters = {name: [value] for name, value in columns.items()}
    data = {**SPACE, "model": model, "framework": framework, "parameters": parameters}
    return Space.from_data(data)


@pytest.mark.parametrize("form", launch_forms())
def test_a_file_says_that_no_framework_priced_it(form, tmp_path):
    space = framework_space("llama3_8b", "torchtitan", {"tp": 2, "recompute": "full"})
    [file] = artefacts(space, [space.completed({})], form)
    path = tmp_path / f"launch{launch_forms()[form].ending}"
    text = file.content.decode()
    path.write_bytes(text.replace("framework: torchtitan", "framework: none").replace("\n", "\r\n").encode())
    assert read_launch(path, form)[0].framework == ""
    assert read_launch(path, form, framework="maxtext")[0].framework == "maxtext"
    path.write_text(text.replace("# dse framework: torchtitan\n", ""))
    assert read_launch(path, form)[0].framework == launching(form).name


#: As people write them: one configuration made of another.
CONFIGURATIONS = cases(__file__, "CONFIGURATIONS")


#: Form -> a short file of it, and its part; form, a change of the file, and the error or the note that follows.
SHORT = cases(__file__, "SHORT") | {"torchtitan": CONFIGURATIONS, "megatron": SCRIPT}


@pytest.mark.parametrize(("form", "before", "after", "message"), cases(__file__, "MESSAGES"))
def test_a_value_that_a_framework_does_not_have_is_refused_or_named(form, before, after, message, tmp_path):
    assert before in SHORT[form]
    path, part = tmp_path / f"a{launch_forms()[form].ending}", ":on_64" if form == "torchtitan" else ""
    (tmp_path / "extended.yml").write_text("mu_dtype: bfloat16\n")
    path.write_text(SHORT[form].replace(before, after, 1))
    with pytest.raises(DseError, match=re.escape(message)):
        raise DseError(" ".join(read_launch(Path(f"{path}{part}"), form, 64 if form != "megatron" else None)[1]))


def test_functions_of_a_module_are_read_and_not_run(tmp_path):
    path, made = tmp_path / "configs.py", tmp_path / "made"
    path.write_text(CONFIGURATIONS + f"\nopen({str(made)!r}, 'w')\n")
    launch, [] = torchtitan.read_script(Path(f"{path}:on_64"))
    columns = ("tp", "dp", "micro_batch_size", "recompute", "cuda_graphs")  # disable_cuda_graphs is False by default
    stated = [launch.model.name, launch.world_size, launch.global_batch_size, *(launch[name] for name in columns)]
    assert [*stated, made.exists()] == ["llama3_8b", 64, 128, 2, 32, 2, "full", "full_iteration", False]
    with pytest.raises(DseError, match=r"several configurations: name one as FILE\.py:NAME, of base, on_64"):
        torchtitan.read_script(path)
    with pytest.raises(DseError, match="does not say on how many chips; name them with --gpus N"):
        torchtitan.read_script(Path(f"{path}:base"))


def test_maxtext_has_the_numerics_of_a_model_and_reads_the_rest_as_base_yml_has_it(tmp_path):
    run = run_of(framework_space("deepseek_v2_lite", "maxtext", {"tp": 1, "ep": 8}))
    settings = yaml.safe_load(maxtext.script(Launch.of_run(run)[0])[0])
    assert [settings[key] for key in ("rope_type", "normalization_layer_epsilon")] == ["yarn", 1e-6]
    on_tpus = Launch.of(load_model("llama3_8b"), {"cp": 4, "cp_communication": "p2p", "zero": 3}, 256)
    assert yaml.safe_load(maxtext.script(on_tpus)[0])["use_tokamax_splash"]  # which types.py asks for
    launch, _ = read_text(maxtext, "model_name: llama3-8b\nici_fsdp_parallelism: 16\ndcn_data_parallelism: 2", tmp_path)
    assert (launch.model.name, launch.model.seq_len, launch["micro_batch_size"]) == ("llama3_8b", 2048, 12)
    assert (launch.world_size, launch.zero_stage, launch["shard_replicas"]) == (32, 3, 2)


@by_table("program", "form")
def test_real_programs_accept_what_is_written_for_them(program, form, tmp_path):
    """`MAXTEXT=checkout`, and a Python that has what the program needs: `MAXTEXT_PYTHON`."""
    if not os.environ.get(variable := program.upper()):
        pytest.skip(f"{variable} names no checkout")
    launches = [row for row in PRICED if row[0] == form]
    for number, (_, framework, model, pins) in enumerate(launches):
        space = framework_space(model, framework, pins)
        [file] = artefacts(space, [space.completed({})], form)
        (tmp_path / f"launch_{number}{launch_forms()[form].ending}").write_bytes(file.content)
    judge = ROOT / "tests/support/accepting_programs.py"
    python = os.environ.get(f"{variable}_PYTHON", sys.executable)
    command = [python, judge, program, os.environ[variable], *tmp_path.iterdir()]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    assert f"{len(launches)} of {len(launches)} accepted" in said


# Scripts that people have


def test_a_script_of_megatron_is_priced_as_the_design_that_it_runs(tmp_path):
    (tmp_path / "train.sh").write_text(SCRIPT)
    actual, said = outputs_of("evaluate", "train.sh", "--system", "a100_80g_dgx", "--format", "json")
    assert said.splitlines()[0] == "dse: train.sh: not read: --fancy-new-flag"
    pins = {"tp": 8, "pp": 16, "vpp": 3, "micro_batch_size": 1, "sequence_parallel": "true",
            "distributed_optimizer": "true", "recompute": "none", "overlap_p2p": "true",
            "software_update_copies": 1}  # fmt: skip
    sets = [word for name, value in pins.items() for word in ("--set", f"{name}={value}")]
    assert json.loads(actual)["breakdown"] == json_of("evaluate", "gpt3_175b_1024_a100", *sets)["breakdown"]


def test_a_table_says_what_is_run(tmp_path):
    (tmp_path / "train.sh").write_text(SCRIPT)
    read = ["evaluate", "train.sh", "--system", "h100_80g_dgx"]
    text = stdout_of(*read)
    assert re.search(r"^(Fits|Tight) +tp 8, pp 16, vpp 3, dp \d+, micro-batch\s+1,", text, flags=re.MULTILINE)
    assert re.search(r"\d s a step", text)
    large = [*read, "--set", "pp=1", "--set", "vpp=1"]
    assert "Does not fit: " in stdout_of(*large, code=1)
    assert json_of(*large, code=1)["feasible"] is False


def test_columns_of_a_launch_file_can_be_changed(tmp_path):
    """The changed script and the changed design cost the same; the number of chips stays."""
    text = SCRIPT.replace("TP=8", "TP=4").replace("size 1 -", "size 2 --context-parallel-size 2 -")
    (tmp_path / "train.sh").write_text(SCRIPT)
    (tmp_path / "changed.sh").write_text(text)
    pins = ("--set", "tp=4", "--set", "cp=2", "--set", "micro_batch_size=2")
    script = json_of("evaluate", "changed.sh", "--system", "h200_141g_dgx")
    design = json_of("evaluate", "train.sh", *pins, "--system", "h200_141g_dgx")
    assert design["breakdown"] == script["breakdown"]
    assert design["params"] == {**script["params"], "tp": 4, "cp": 2, "micro_batch_size": 2}
    assert design["breakdown"]["world_size"] == 1024


@by_table("more", "why")
def test_changes_of_a_launch_file_that_make_no_sense_are_refused(tmp_path, more, why):
    (tmp_path / "train.sh").write_text(SCRIPT)
    out, err = outputs_of("evaluate", "train.sh", "--system", "h100_80g_dgx", *more, code=1)
    assert not out
    assert why in err.splitlines()[-1]


@by_table("change", "why")
def test_a_script_that_says_no_run_gives_one_line(tmp_path, change, why):
    with pytest.raises(DseError, match=why) as caught:
        read_text(megatron, SCRIPT.replace(*change), tmp_path)
    assert "\n" not in str(caught.value)


HOSTILE = {
    torchtitan: [
        *("def a():\n return a()", "def a(:", "(" * 9999, "x = 1", "def a(): return Trainer.Config()"),
        "def a(): return Trainer.Config(model_spec=model_registry(9**9**9))",
        "\n".join(f"def f{n}():\n x = f{n + 1}()\n return f{n + 1}()" for n in range(40)) + "\ndef f40(): return 1",
    ],
    megatron: [
        *("", "\0", "(" * 5000, "echo $((((((", "x --num-layers", "x --num-layers 4 --hidden-size", "x \\"),
        *("'", "A=(", "x --moe-layer-freq ([0]*9999999)", "${A:-" * 3000 + "}" * 3000),
        "A=1\n" + "A=$A$A$A$A$A$A$A$A\n" * 30,
        "x --num-layers 4 --hidden-size 8 --num-attention-heads 3 --seq-length 4 --num-experts 2",
        "x --pipeline-model-parallel-layout 'E|(((t|)*9999)*9999)*9999L' --num-layers 4 --hidden-size 8 "
        "--num-attention-heads 2 --seq-length 4",
    ],
}  # fmt: skip


@pytest.mark.parametrize(("module", "text"), [(module, text) for module in HOSTILE for text in HOSTILE[module]])
def test_hostile_files_give_one_line(tmp_path, module, text):
    with pytest.raises(DseError) as caught:
        read_text(module, text, tmp_path, 8)
    assert len(str(caught.value).splitlines()) == 1


def test_nothing_in_a_script_is_run(tmp_path):
    target = tmp_path / "made"
    text = SCRIPT.replace("TP=8", f"TP=8; touch {target}; A=$(touch {target}); B=`touch {target}`")
    read_text(megatron, text, tmp_path)
    assert not target.exists()


def test_commands_arrays_and_arithmetic_are_written_out():
    script = 'A=(1 "2 3")\nB=${C:-4}\nrun "${A[@]}" --n $((B * (2 + 1))) \'$B\' "$B" # no $B\n'
    assert Script.read(script).commands == [["run", "1", "2 3", "--n", "12", "$B", "4"]]


def test_layers_are_lists_as_python_has_them():
    assert pattern("([0]*1+[1]*2)") == [0, 1, 1]
    assert pattern("[1,0]*2") == [1, 0, 1, 0]
    with pytest.raises(DseError, match="expected a number, or a list of layers"):
        pattern("__import__('os')")


@by_table("arguments", "why")
def test_what_a_launch_file_wants_is_said(tmp_path, arguments, why):
    (tmp_path / "train.sh").write_text(SCRIPT)
    assert why in stderr_of("evaluate", *arguments)


#: A script without its number of layers.
SMALL = cases(__file__, "SMALL")


@pytest.mark.parametrize("flags", ["--enable-mhc-connections", "--enable-hyper-connections --num-residual-streams 4"])
def test_megatron_has_several_residual_streams(flags, tmp_path):
    """As its arguments call them since August 2026, and before; four streams are the default."""
    model = replace(load_model("llama3_8b"), num_residual_streams=4.0)
    settings = model_settings(model)
    assert settings["mhc_num_residual_streams"] == 4
    assert settings_model(settings, "llama3_8b").num_parameters == model.num_parameters
    assert not [lost for lost in model_losses(model) if "stream" in lost]
    launch, _ = read_text(megatron, f"{SMALL} --num-layers 4 {flags}", tmp_path, 8)
    assert launch.model.num_residual_streams == 4


def test_a_pattern_of_layers_decides_their_number(tmp_path):
    """As in Megatron-LM, which ignores --num-layers beside it (arguments.py)."""
    text = f"{SMALL} --num-layers 3 --hybrid-layer-pattern M-M*-/*-"
    model = read_text(megatron, text, tmp_path, 8)[0].model
    assert (model.num_layers, model.layer_order, model.mtp_layers) == (5, "M-M*-", 1)


def test_attention_of_8_bits_comes_back_from_megatron_bridge(tmp_path):
    """Megatron-LM has no argument for it, and runs 16 bits instead; the peak of memory is the same."""
    pins = {"tp": 1, "zero": 3, "recompute": "full", "attention": "fused_fp8", "precision": "fp8_tensorwise"}
    run = run_of(framework_space("llama3_8b", "megatron_core", {**pins, "cross_entropy": "native"}))
    [launch] = Launch.of_run(run)
    text, lost = nemo.script(launch)
    assert not [line for line in lost if "attention" in line]
    assert read_text(nemo, text, tmp_path)[0]["attention"] == "fused_fp8"
    [file] = launch_files(run, "megatron", "megatron_core")
    assert b"fp8-dot-product" not in file.content
    assert "attention=fused_fp8 (attention=fused: the peak stays" in file.notes[0]
