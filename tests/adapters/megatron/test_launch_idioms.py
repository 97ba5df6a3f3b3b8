"""Launch scripts in the idioms of the field: Bash runs them with stubs for programs, and its word counts."""

import os
import re
import subprocess
from itertools import pairwise
from pathlib import Path

import pytest

from costmodel import DseError
from dse.adapters.megatron import launch as megatron
from dse.adapters.megatron.launch import DATA, training_command
from tests.support.cases import cases
from tests.support.commands import json_of, stderr_of, stdout_of

MODEL = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096"
SIZES = "--micro-batch-size 1 --global-batch-size 256 --bf16"
SLURM = "#!/bin/bash\n#SBATCH --nodes=4\n#SBATCH --ntasks-per-node={tasks}\n#SBATCH --gres=gpu:8\n"
JOB = {"SLURM_NNODES": "4", "SLURM_JOB_NUM_NODES": "4", "SLURM_GPUS_ON_NODE": "8"}
ONE = SLURM.format(tasks=1)

#: Programs that write down their words; `srun` and `sbatch` start the rest of their words.
STUB = '#!/bin/bash\nprintf "%s\\0" "${0##*/}" "$@" > "$WORDS"\n'
STARTER = """#!/bin/bash
while [[ $1 == -* ]]; do case $1 in -N|-n|-w|-p|-J|-t) shift 2;; *) shift;; esac; done
export SLURM_PROCID=0 SLURM_LOCALID=0
case $1 in *.sh) exec bash "$@";; *) exec "$@";; esac
"""

#: Idiom -> script, and the GPUs of the run.
IDIOMS = cases(__file__, "IDIOMS")


def read(folder, text, chips=None):
    """The launch of a script, and notes."""
    (folder / "train.sh").write_text(text)
    return megatron.read_script(folder / "train.sh", chips)


def bash_words(folder, script):
    """The words of the program that a script starts at last."""
    stubs = folder / "stubs"
    stubs.mkdir()
    for name in ("torchrun", "python", "python3", "deepspeed", "clear"):
        (stubs / name).write_text(STUB if name != "clear" else "#!/bin/bash\n")
    for name in ("srun", "sbatch", "mpirun"):
        (stubs / name).write_text(STARTER.replace("shift 2", "shift 2" if name != "mpirun" else "shift 1"))
    (stubs / "mpirun").write_text('#!/bin/bash\nshift 2; while [[ $1 == -* ]]; do shift; done; exec "$@"\n')
    for stub in stubs.iterdir():
        stub.chmod(0o755)
    env = {"PATH": f"{stubs}:/usr/bin:/bin", "WORDS": str(folder / "words"), "HOME": "/root", **JOB}
    subprocess.run(["bash", str(script)], env=env, cwd=folder, check=False, capture_output=True, timeout=20)
    return (folder / "words").read_text().split("\0")[:-1]


@pytest.mark.parametrize("idiom", IDIOMS)
def test_scripts_are_read_as_bash_runs_them(idiom, tmp_path):
    text, gpus = IDIOMS[idiom]
    (tmp_path / "env.sh").write_text(f'ARGS="{MODEL} {SIZES}"\n')
    (tmp_path / "inner.sh").write_text("#SBATCH --nodes=8\nsrun python pretrain_gpt.py $ARGS\n")
    (tmp_path / "inner2.sh").write_text(
        "torchrun --nproc_per_node 8 --nnodes ${NN:-2} pretrain_gpt.py --tensor-model-parallel-size ${TP:-1} "
        f"--pipeline-model-parallel-size ${{PP:-1}} {MODEL} {SIZES}\n"
    )
    (tmp_path / "train.sh").write_text(text)
    words = bash_words(tmp_path, tmp_path / "train.sh")
    index = next(index for index, word in enumerate(words) if word.endswith(".py"))
    command = training_command(tmp_path / "train.sh")
    assert list(command.flags) == words[index + 1 :]
    assert command.chips == gpus
    if "--nproc_per_node" in words:
        launched = dict(pairwise(words))
        assert gpus == int(launched["--nproc_per_node"]) * int(launched.get("--nnodes", 1))
    launch, _ = megatron.read_script(tmp_path / "train.sh")
    assert launch.world_size == gpus


@pytest.mark.parametrize("launcher", cases(__file__, "a_launcher_that_does_not_decide_the_gpus_asks_for_them"))
def test_a_launcher_that_does_not_decide_the_gpus_asks_for_them(launcher, tmp_path):
    text = f"{launcher} pretrain_gpt.py {MODEL} {SIZES}\n"
    with pytest.raises(DseError, match="does not decide the number of GPUs; name it with --gpus N") as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)
    assert read(tmp_path, text, 64)[0].world_size == 64


@pytest.mark.parametrize(("text", "note"), cases(__file__, "what_depends_on_the_machine_or_is_read_otherwise_is_named"))
def test_what_depends_on_the_machine_or_is_read_otherwise_is_named(text, note, tmp_path):
    command = "torchrun --nproc_per_node 8 --nnodes ${N:-1} pretrain_gpt.py --tensor-model-parallel-size $TP"
    _, notes = read(tmp_path, f"{text}\n{command} {MODEL} {SIZES} $F\n")
    assert note in notes


def test_a_condition_that_decides_nothing_of_cost_is_not_named(tmp_path):
    """Most scripts load a checkpoint where there is one, and make folders."""
    text = '[ -d "$CKPT" ] || mkdir -p $CKPT\nif [ -f $CKPT/latest ]; then L="--load $CKPT"; fi\n'
    _, notes = read(tmp_path, f"{text}torchrun --nproc_per_node 8 pretrain_gpt.py --save x $L {MODEL} {SIZES}\n")
    assert not [note for note in notes if "depends" in note]


@pytest.mark.parametrize(("text", "why"), cases(__file__, "what_is_not_followed_is_refused_in_one_line"))
def test_what_is_not_followed_is_refused_in_one_line(text, why, tmp_path):
    command = "torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size $TP $F"
    with pytest.raises(DseError, match=why) as caught:
        read(tmp_path, f"{text}\n{command} {MODEL} {SIZES}\n")
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith("is exact: dse evaluate run.log") == ("DeepSpeed" not in why)


def test_the_output_of_bash_x_is_read_where_the_script_is_not(tmp_path):
    """It has the values that loops and `case` decide."""
    text = f"for TP in 1 2 4; do :; done\ncase 7b in 7b) N=2;; *) N=8;; esac\nA=({MODEL} --data-path 'a b' {SIZES})\n"
    text += 'torchrun --nproc_per_node 8 --nnodes $N pretrain_gpt.py --tensor-model-parallel-size $TP "${A[@]}"\n'
    with pytest.raises(DseError, match="line 1: `for` decides --tensor-model-parallel-size"):
        read(tmp_path, text)
    (tmp_path / "torchrun").write_text("#!/bin/bash\n")
    (tmp_path / "torchrun").chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    command = ["bash", "-x", str(tmp_path / "train.sh")]
    printed = subprocess.run(command, env=env, capture_output=True, text=True, check=True).stderr
    (tmp_path / "run.txt").write_text(printed)
    launch, _ = megatron.read_script(tmp_path / "run.txt")
    assert (launch.world_size, launch["tp"]) == (16, 4)


# Arguments: what is read, what costs nothing, what is named


@pytest.mark.parametrize(("flags", "attention"), cases(__file__, "attention_of_plain_pytorch_is_not_fused"))
def test_attention_of_plain_pytorch_is_not_fused(flags, attention, tmp_path):
    """`local` builds DotProductAttention, whose scores are in memory."""
    assert read(tmp_path, f"torchrun pretrain_gpt.py {MODEL} {SIZES} {flags}\n")[0]["attention"] == attention


@pytest.mark.parametrize(("tokenizer", "entries"), cases(__file__, "TOKENIZERS"))
def test_a_vocabulary_that_is_not_stated_is_that_of_a_known_tokenizer(tmp_path, tokenizer, entries):
    launch, notes = read(tmp_path, f"torchrun pretrain_gpt.py {MODEL} {SIZES} {tokenizer}\n")
    assert launch.model.vocab_size == entries
    assert f"no vocabulary is stated: {entries:,} entries" in " ".join(notes)


def test_arguments_that_are_not_read_are_named_and_those_without_cost_are_not(tmp_path):
    named = [
        "--no-bias-swiglu-fusion", "--no-masked-softmax-fusion", "--moe-router-padding-for-fp8",
        "--moe-pad-expert-input-to-capacity", "--moe-token-drop-policy", "--ddp-bucket-size",
        "--log-anything",
        "--use-checkpoint-args", "--data-anything", "--rotary-anything",
    ]  # fmt: skip
    silent = "--lr 1e-4 --data-path a b --log-interval 1 --save x --eval-iters 10 --tokenizer-type T --seed 1"
    words = " ".join(f"{name} position" for name in named)
    _, notes = read(tmp_path, f"torchrun pretrain_gpt.py {MODEL} {SIZES} {silent} {words} $MORE\n")
    assert f"not read: {' '.join(named)}" in notes
    assert "no line of the script sets $MORE: read as empty" in notes
    text = f"torchrun pretrain_gpt.py {MODEL} {SIZES} {silent} --moe-token-drop-policy probs\n"  # the default
    assert not [note for note in read(tmp_path, text)[1] if "not read" in note]


@pytest.mark.skipif(not os.environ.get("MEGATRON_LM"), reason="MEGATRON_LM names no checkout of Megatron-LM")
def test_every_argument_of_megatron_is_sorted():
    path = Path(os.environ["MEGATRON_LM"]) / "megatron/training/arguments.py"
    written = re.findall(r"add_argument\(\s*['\"]--([\w-]+)", path.read_text())
    flags = {name.removeprefix("--") for name in (*DATA["flags"].values(), *DATA["negated"].values())}
    flags |= {name.removeprefix("--") for name in DATA["earlier"]}
    kinds = ("numbers", "shares", "words", "lists", "switches", "without_cost", "derived")
    sorted_names = {name for kind in kinds for name in DATA[kind].split()} | DATA["not_read"].keys()
    missing = {name for name in written if name not in flags and name.replace("-", "_") not in sorted_names}
    switches = ("no-", "use-", "muon-no-", "output-", "overlap-p2p", "disable-")  # other names in a log: named
    others = {"kitchen-config-file", "kitchen-recipe-number"}
    assert {name for name in missing if not name.startswith(switches)} == others


#: The form in which Megatron-LM prints the arguments of a run.
LOG = cases(__file__, "LOG")
ARGUMENTS = cases(__file__, "ARGUMENTS")
SAME = cases(__file__, "SAME")


@pytest.mark.parametrize("rank", ["", "0: ", "[default0]:"])
def test_the_arguments_in_a_log_are_those_of_the_script(rank, tmp_path, monkeypatch):
    lines = (f"{rank}  {name} {'.' * (48 - len(name))} {value}" for name, value in ARGUMENTS.items())
    (tmp_path / "run.log").write_text(LOG.format(rank=rank, lines="\n".join(lines)))
    (tmp_path / "run.sh").write_text(SAME)
    logged, notes = megatron.read_script(tmp_path / "run.log")
    assert logged == megatron.read_script(tmp_path / "run.sh")[0]
    assert notes == ["not read: of_another_release"]
    monkeypatch.chdir(tmp_path)
    text = stdout_of("evaluate", "--system", "h100_80g_dgx", "--from-megatron", "run.log")
    assert text.startswith("run on 32 x h100_80g_dgx, ")
    assert " dp 4, " in text
    assert " 32 accumulation steps" in " ".join(text.split())
    assert "\n32 GPUs in 4 nodes\n" in text
    actual = json_of("evaluate", "--from-megatron", "run.sh", "--system", "h100_80g_dgx")
    assert actual["given"] == {"world_size": 32, "global_batch_size": 256}
    assert actual["derived"]["dp"] == 4


def test_numbers_of_a_log_are_checked_too(tmp_path):
    (tmp_path / "run.log").write_text(LOG.format(rank="", lines="  num_layers ... many"))
    with pytest.raises(DseError, match="num_layers many: expected a number"):
        megatron.read_script(tmp_path / "run.log")


def test_a_run_that_breaks_a_rule_is_refused_in_words(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = "--num-experts 8 --moe-router-topk 2 --expert-model-parallel-size 8 --pipeline-model-parallel-size 2"
    (tmp_path / "a.sh").write_text(
        f"torchrun --nproc_per_node 8 --nnodes 4 pretrain_gpt.py {MODEL} {SIZES} {flags} "
        "--overlap-moe-expert-parallel-comm --moe-token-dispatcher-type alltoall\n"
    )
    said = stderr_of("evaluate", "--from-megatron", "a.sh", "--system", "h100_80g_dgx").splitlines()[-1]
    assert "overlap_ep_has_a_micro_batch_beside" in said
    assert "schedule == dualpipe" in said
    assert not re.search(r"[0-9] == [0-9]", said)
    (tmp_path / "b.sh").write_text(f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} {SIZES}\n")
    assert "chip_has_bf16" in stderr_of("evaluate", "b.sh", "--system", "v100_32g_dgx2")


def test_sequence_parallelism_is_kept_for_designs_with_tp(tmp_path):
    text = f"torchrun --nproc_per_node 8 pretrain_gpt.py {MODEL} {SIZES} --sequence-parallel\n"
    assert read(tmp_path, text)[0]["sharding"] == "megatron_sp"


def test_nodes_that_a_system_does_not_have_are_named(tmp_path):
    program = f"pretrain_gpt.py {MODEL} {SIZES} --tensor-model-parallel-size 8"
    (tmp_path / "a.sh").write_text(f"torchrun --nproc_per_node 4 --nnodes 2 {program}\n")
    for changes, named in ([], True), (["--set", "node_size=4"], False):
        told = stderr_of("evaluate", tmp_path / "a.sh", "--system", "h100_80g_dgx", *changes, code=0)
        assert ("4 in the file, 8 on h100_80g_dgx; --set node_size=4" in told) == named
