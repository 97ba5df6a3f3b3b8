"""Models in launch files for Megatron-LM, held to Megatron-LM's own configurations of the same models."""

import os
import re
import shlex
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from costmodel import load_model
from costmodel.training.run import padded_vocabulary
from dse.adapters.megatron import launch as megatron
from dse.adapters.megatron.model import pattern
from dse.adapters.megatron_bridge import launch as nemo
from dse.launches.launch import Launch, launch_space
from tests.support.cases import by_table, cases
from tests.support.launch_files import read_text

#: A configuration in `examples/post_training/modelopt/conf` -> the built-in model.
CONFIGURATIONS = cases(__file__, "CONFIGURATIONS")
#: Flags that say how a model is run, exported or tokenized, not which model it is.
OF_THE_RUN = re.compile(
    r"--(save-interval|micro-batch-size|bf16|sequence-parallel|seq-length|max-position-embeddings|recompute-.*"
    r"|moe-layer-recompute|moe-token-dispatcher-type|moe-token-drop-policy|moe-shared-expert-overlap"
    r"|moe-grouped-gemm|no-.*-fusion|use-mcore-models|attention-softmax-in-fp32|tokenizer-type"
    r"|attention-backend|spec|is-hybrid-model|trust-remote-code|export-(model-type|force-local-attention|moe-apply-probs-on-input)"
    r"|vocab-size|make-vocab-size-divisible-by)$"  # which --padded-vocab-size decides
)
#: Other words for the same setting.
SPELLINGS = {
    "--export-qk-l2-norm": ("--qk-l2-norm", ""),
    "--use-rotary-position-embeddings": ("--position-embedding-type", "rope"),
    "--no-position-embedding": ("--position-embedding-type", "rope"),
}
#: Defaults of arguments.py and transformer_config.py; of latent attention the rope type is yarn.
DEFAULTS = cases(__file__, "DEFAULTS")
#: Models and flags whose exported value differs, each with its reason.
REASONS = cases(__file__, "REASONS")
CONF = "examples/post_training/modelopt/conf"


def flags_of(words):
    """Flags and their values, spelled one way, without those that are as by default."""
    actual, name = {}, ""
    for word in words:
        if word.startswith("--"):
            name, value = SPELLINGS.get(word, (word, ""))
            actual[name] = value
        else:
            actual[name] = f"{actual[name]} {plain(word)}".strip()
    if "--moe-layer-freq" in actual:
        actual["--moe-layer-freq"] = pattern(actual["--moe-layer-freq"])
    heads = float(actual["--hidden-size"]) / float(actual["--num-attention-heads"])
    usual = {**DEFAULTS, "--kv-channels": f"{heads:g}"}
    return {name: value for name, value in actual.items() if usual.get(name) != value and not OF_THE_RUN.match(name)}


def plain(word):
    try:
        return f"{float(word):g}"
    except ValueError:
        return word


def exported(name):
    text = megatron.script(Launch.of(load_model(name), {}, 8))[0]
    return flags_of(shlex.split(re.search(r"MODEL_ARGS=\((.*?)\n\)", text, re.DOTALL)[1]))


@pytest.mark.skipif(not os.environ.get("MEGATRON_LM"), reason="MEGATRON_LM names no checkout of Megatron-LM")
@pytest.mark.parametrize("configuration", CONFIGURATIONS)
def test_flags_of_a_model_are_those_of_megatrons_own_configuration(configuration):
    """Each difference has a reason in `REASONS`, and each reason a difference."""
    name, file = CONFIGURATIONS[configuration], Path(os.environ["MEGATRON_LM"], CONF, f"{configuration}.sh")
    command = ["bash", "-c", f'set -f; source {shlex.quote(str(file))}; printf "%s\\n" $MODEL_ARGS']
    theirs = flags_of(subprocess.run(command, capture_output=True, text=True, check=True).stdout.split())
    ours = exported(name)
    dropouts = {"--hidden-dropout", "--attention-dropout"}
    differ = {flag for flag in {*ours, *theirs} - dropouts if ours.get(flag) != theirs.get(flag)}
    assert differ == {flag for reason in REASONS if name in reason["models"] for flag in reason["flags"]}


def test_the_word_table_that_is_trained_is_the_one_that_is_evaluated():
    """Megatron-LM pads the 50,257 entries of GPT-2's vocabulary to 51,200 on 8 tensor-parallel ranks."""
    model = replace(load_model("gpt3_175b"), vocab_size=50257.0, vocab_multiple=128.0)
    launch = Launch.of(model, {"tp": 8}, 8)
    assert padded_vocabulary(model, launch.points.tp).item() == 51200
    assert "  --padded-vocab-size 51200\n" in megatron.script(launch)[0]
    actual = yaml.safe_load(nemo.script(launch)[0])["model"]
    assert (actual["vocab_size"], actual["should_pad_vocab"]) == (51200, False)


@pytest.mark.parametrize("flags", ["", "--vocab-size 50257", "--make-vocab-size-divisible-by 1"])
def test_a_padded_table_of_a_script_is_read_as_it_is(flags, tmp_path):
    """`_set_padded_vocab_size` of Megatron-LM leaves a size that is given."""
    text = (
        "torchrun --nproc_per_node 8 --nnodes 1 pretrain_gpt.py --num-layers 4 --hidden-size 512 --bf16 "
        "--num-attention-heads 8 --seq-length 1024 --tensor-model-parallel-size 8 --padded-vocab-size 50304 "
    )
    launch, notes = read_text(megatron, text + flags, tmp_path)
    assert (padded_vocabulary(launch.model, launch.points.tp), notes) == (50304, [])


def test_windows_count_the_keys_before_a_token_in_megatron(tmp_path):
    """`get_sliding_window_causal_mask` of Megatron-LM; Bridge: `sliding_window - 1`."""
    script, settings = (module.script(Launch.of(load_model("gpt_oss_20b"), {}, 8))[0] for module in (megatron, nemo))
    assert "--window-size 127,0" in script
    assert yaml.safe_load(settings)["model"]["window_size"] == [127, 0]
    assert read_text(megatron, script, tmp_path)[0].model.window == 128
    assert read_text(nemo, settings, tmp_path)[0].model.window == 128


@pytest.mark.parametrize("module", [megatron, nemo])
@by_table("name", "design", "capability", "flag", "setting", "attention", "message")
def test_settings_without_which_megatron_runs_others_are_written_and_their_lack_is_named(
    module, name, design, capability, flag, setting, attention, message, tmp_path
):
    stated = flag if module is megatron else setting
    text, _ = module.script(replace(Launch.of(load_model(name), design, 8), compute_capability=capability))
    launch, notes = read_text(module, text, tmp_path)
    [shown] = [form for form in (f"  {stated}\n", f"({stated})") if form in text]
    assert text.count(shown) == text.count(" PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True") == 1
    assert (launch.model.attention, launch.model.qk_norm, launch["attention"], notes) == ("mla", False, "fused", [])
    without, [note] = read_text(module, text.replace(shown, shown.replace(stated, "")), tmp_path)
    assert (without["attention"], message in note) == (attention, True)


#: Values that a script asks for.
ASKED = {"DATA_PATH": "data", "TOKENIZER_MODEL": "tokenizer", "CHECKPOINT_DIR": "checkpoints",
         "LEARNING_RATE": "1e-4", "TRAIN_STEPS": "100"}  # fmt: skip
TORCHRUN = '#!/usr/bin/env bash\nprintf "%s\\n" "$@"\n'
SCONTROL = '#!/usr/bin/env bash\n[[ "$*" == "show hostnames node[07-10]" ]] && printf "node%s\\n" 07 08 09 10\n'


def started(tmp_path, chips, **environment):
    """The process of a script, and the options that it gives to a stub of `torchrun`; `scontrol` is a stub too."""
    for name, text in {"torchrun": TORCHRUN, "scontrol": SCONTROL}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    (tmp_path / "train.sh").write_text(megatron.script(Launch.of(load_model("llama3_8b"), {"dp": chips}, 8))[0])
    path = f"{tmp_path}:{os.environ['PATH']}"
    command = ["bash", str(tmp_path / "train.sh")]
    done = subprocess.run(command, env={"PATH": path, **ASKED, **environment}, capture_output=True, text=True)
    words = done.stdout.splitlines()
    return done, dict(zip(words[::2], words[1::2], strict=False))


SLURM = {"SLURM_JOB_NODELIST": "node[07-10]", "SLURM_NODEID": "2", "SLURM_NNODES": "4", "SLURM_STEP_ID": "0",
         "SLURM_STEP_NUM_NODES": "4", "SLURM_STEP_NUM_TASKS": "4"}  # fmt: skip


@by_table("environment", "master", "rank")
def test_a_script_takes_its_nodes_from_slurm_or_from_the_environment(environment, master, rank, tmp_path):
    done, words = started(tmp_path, 32, **environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert (words["--nproc_per_node"], words["--nnodes"]) == ("8", "4")
    assert (words["--master_addr"], words["--node_rank"]) == (master, rank)


def test_a_script_without_slurm_says_which_node_it_is(tmp_path):
    done, words = started(tmp_path, 32)
    assert "NODE_RANK is not set: this node is taken as 0 of 4" in done.stderr
    assert (words["--master_addr"], words["--node_rank"]) == ("localhost", "0")
    done, words = started(tmp_path, 8)
    assert (done.stderr, words["--nnodes"], words["--node_rank"]) == ("", "1", "0")


@pytest.mark.parametrize(("chips", "meeting"), [(8, ""), (32, " --rdzv-backend c10d --rdzv-endpoint FIRST_NODE:29500")])
def test_nodes_of_torchrun_meet_on_the_first(chips, meeting):
    command = Launch.of(load_model("llama3_8b"), {"dp": chips}, 8).torchrun
    assert command == f"torchrun --nnodes {chips // 8} --nproc-per-node 8{meeting}"


@by_table("changes", "message")
def test_a_slurm_step_of_another_size_is_refused(changes, message, tmp_path):
    """As Slurm 22.05.8 sets these variables: fewer nodes, a task for each GPU, `sbatch train.sh` without srun."""
    done, words = started(tmp_path, 32, **{**SLURM, **changes})
    assert (done.returncode, words) == (1, {})
    assert done.stderr.startswith(message)
    assert done.stderr.count("\n") == 1


@by_table("model", "design", "system", "package")
def test_a_script_names_the_packages_that_it_needs(model, design, system, package):
    text, _ = megatron.script(Launch.of(load_model(model), design, system))
    actual = [line for line in text.splitlines() if line.startswith("# Install ")]
    assert [line.startswith(f"# Install {package}") for line in actual] == [True] * bool(package)


@by_table("flag", "balance", "coefficient")
def test_balance_of_experts_is_read_or_named(flag, balance, coefficient, tmp_path):
    """Choices of --moe-router-load-balancing-type: a loss, or another method, which a note names."""
    text, _ = megatron.script(Launch.of(load_model("mixtral_8x7b"), {"dp": 8}, 8))
    text = re.sub(r"--moe-aux-loss-coeff \S+", "--moe-aux-loss-coeff 0.01", text)
    text = text.replace("--swiglu", f"--swiglu --moe-router-load-balancing-type {flag}")
    launch, notes = read_text(megatron, text, tmp_path)
    numerics = launch.model.numerics
    assert (numerics.router_balance, numerics.router_aux_loss) == (balance, coefficient)
    assert [f"experts balanced by {flag}" in note for note in notes] == [True] * (flag != balance)
    assert launch_space(launch, "h100_80g_dgx", "read").model.num_experts == 8
