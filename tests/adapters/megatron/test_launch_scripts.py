"""Launch scripts of Megatron-LM as people write them: what they start is followed, and nothing is run."""

from __future__ import annotations

import subprocess

import pytest

from costmodel import DseError
from dse.adapters.megatron import launch as megatron
from dse.adapters.megatron.command import training_command
from dse.adapters.megatron.shell.shell import Script
from dse.adapters.megatron.shell.words import whole_arithmetic

MODEL = "--num-layers 24 --hidden-size 2304 --num-attention-heads 24 --seq-length 2048 --vocab-size 51200"


def read(folder, text, chips=None, name="train.sh"):
    """The launch of a script."""
    (folder / name).write_text(text)
    return megatron.read_script(folder / name, chips)


#: Scripts that call `run`, by what of the language they use.
SCRIPTS = {
    "nested quotes": 'D="$(dirname "$(dirname "/a/b/c")")"\nrun "$D" "${E:-"x y"}" "$(echo "a \'b\'")"',
    "all quotes": 'run "a \'b\'" \'c "d"\' e\\ f "\\$g" `basename /x/y.sh .sh` ""',
    "strings of flags": 'A=" --x 1 \\\n --y 2"\nrun $A "$A" x$A',
    "continued strings": 'N=4\nA="\\\n --x "y" \\\n $N "\nrun $A',
    "arrays": 'A=(1 "2 3" # two\n)\nA+=(4)\nA=("${A[@]}" --z)\nrun "${A[@]}" ${A[1]} ${#A[@]} "${A[*]}" $A',
    "subscripts": 'A=(1 2 4 8); i=1\nrun ${A[-1]} ${A[-3]} ${A[$i+1]} ${A[i]} "${A[$((i - 1))]}"',
    "defaults": "run ${1:-a} ${2-b} ${TP:=8} $TP ${TP:+c} ${NO:+d} ${NO:-$((TP * 2))}",
    "arithmetic": "N=4\nrun $((N * 8)) $(( (N > 2) + 1 )) $((-7 / 2)) $((32 % 7))",
    "if": "S=8b\nif [ $S == 1b ]; then L=1; elif [[ $S = 8* && -n $S ]]; then L=3; else L=8; fi\nrun $L",
    "unset": 'if [ -z "$X" ] || [ "$Y" -gt 3 ]; then L=1; fi\n[[ -n $X ]] && L=2\n((L == 1)) && M=5\nrun $M',
    "arguments": "while [[ $# -gt 0 ]]; do case $1 in --x) X=$2; shift 2;; esac; done\nrun ${X:-0}",
    "loops without a turn": "while ((i > 8)); do i=1; done\nfor a in $E; do A+=$a; done\nrun ${i:-0}",
    "subshells": "X=1; (X=2; run $X); echo 5 | while read y; do X=$y; done; run $X",
    "exports": "X=1; export Y=2\nbash -c 'run ${X:-0} $Y'; X=3 bash -c 'run $X'; run $X",
    "lines of assignments": "T=2 P=4\n\nA=(--t $T)\nA+=(\n--p $P)\n# note\nrun ${A[@]}\nT=8 P=$T\nrun $T $P",
    "exit": "if [ -z $N ]; then run a; exit 0; fi\nrun b",
    "cut words": "N=2\nM=x\nrun [0]*$N+[1]*$N /a-$N-b/$M.$N $N:$M,$N",
    "functions that change nothing": "say() { echo $1 >&2; }\nsay a\nrun b",
    "texts as commands": "C='run $N'\nN='2 3'\neval $C\neval \"run '$N'\"",
    "here-documents": "cat > /dev/null <<EOF\n{1}\nEOF\nrun a 2> /dev/null # note",
    "signs in quotes": 'A=\'a;b|c<d>e&f(g)\' B="x#y"\nrun "$A" "$B" a#b \'<<EOF\' "if" fi',
    "brackets": "{ X=1; }; ( X=2 )\nif { true; } then { run $X; } fi\n! false && run ok",
    "keywords as words": "A=(if done { case)\nrun ${A[@]} for } in do",
    "case within a substitution": "A=$(echo $(echo b))\nf() { case $1 in a) echo x;; (b|c) echo y; esac; }\nrun $A",
    "pipelines": "X=1; X=2 | run a | cat; run $X\nX=3 && run $X || run c",
    "here-document and a chain": "cat <<-E > /dev/null && run a\n\tif ( {\n\tE\nrun b",
    "two here-documents": "cat <<A <<'B' > /dev/null; run c\n(\nA\n'\nB\nrun d",
    "nested ifs": "X=1\nif [ $X = 1 ]; then if [[ $X > 2 || $X == 1 ]]; then run a; fi\nelse run c; fi",
    "variables of one command": "A=1\nA=2 run $A\nA=3 B=$A run ${B:-0} $A; run $A ${B:-0}\nD=; C=4 $D; run $C",
    "unset values": "X=$X; run ${X:-5} ${X:+set} ${#X}",
    "blanks at the ends of values": "A=' a b '\nrun x$A--y $A$A ${A}z \"$A\"",
    "empty words": 'B="$@"; A=(x "${E:-}" "${B[@]}")\nrun "$@" ${#A[@]} "${A[@]}" "${B[@]}" ""',
    "empty arrays": 'A=()\nrun ${A-u} ${A+v} ${#A[@]} "${A[@]}" ${A[0]:-w}',
    "quotes in defaults": "run ${A:-'a b'} ${B:-\"c d\" e} \"${C:-'f g'}\" ${D-h i} x${E:-'j k'}y",
    "first items": "A=(1 2 3)\nA=4; A[3]=5\nrun ${A[@]} ${#A[@]}",
    "loops over an empty word": "for x in $E; do X=1; done\nrun ${X:-0}",
    "error branches": 'if [ "$#" -gt 9 ]; then exit 1; fi\n[ -d /tmp ] || exit 1\nrun a',
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_mean_what_they_do_to_bash(name, tmp_path):
    """Bash runs what is followed here."""
    program = "run() { printf '%s\\n' run \"$@\"; }\nexport -f run\n" + SCRIPTS[name]
    ran = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    commands = [own[own.index("run") :] for own in Script.read(SCRIPTS[name]).commands if "run" in own]
    assert [word for command in commands for word in command] == ran.stdout.splitlines()


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("X=$1\nrun $X ${Y} $(nvidia-smi -L | wc -l)", ["run", "$1", "${Y}", "$(nvidia-smi)"]),
        ('if [ -z "$1" ]; then echo usage; exit 1; fi\nL=2\nrun $L', ["run", "2"]),
        ("if grep -q x /f; then L=1; else L=2; fi\nrun $L", ["grep", "-q", "x", "/f", "run", "1"]),
        ('N=2\nC="python t.py --x $N"\nsrun sh -c "$C"', ["srun", "sh", "-c", "python", "t.py", "--x", "2"]),
        ("sbatch --wrap='python t.py --x 2'", ["sbatch", "python", "t.py", "--x", "2"]),
        ("N=1\nfor i in 2 3; do N=$i; done\nrun $N", ["run", "$(for:2)"]),
        ("N=1\nf() { N=2; }\nf\nrun $N", ["run", "$(function:2)"]),
        ("N=8; ((N /= 2)); M=1; let M=M*2; read K <<< 5\nrun $N $M $K",
         ["run", "$(arithmetic:1)", "$(let:1)", "$(read:1)"]),
        ("V=abc; A=(a b c)\nrun ${V:1} ${V%c} ${!V} ${A[@]:1} {1..3}",
         ["run", "$(V)", "$(V)", "$(V)", "$(A)", "$(braces)"]),
        ('S=8b\ncase "$S" in 8b) L=32;; *) L=80;; esac\nrun $L', ["run", "$(case:2)"]),
        ("for h in a b; do read -r X Y <<< $h; printf -v Z %s $h; done\nrun $X $Y $Z",
         ["run", "$(for:1)", "$(for:1)", "$(for:1)"]),
        ("mapfile -t A < <(ls)\ndiff <(ls) b\nrun ${A[0]}", ["diff", "$(substitution:2)", "b", "run", "$(mapfile:1)"]),
        ("while [ $# -gt 0 ]; do shift; done\nrun a", ["run", "a"]),
        ("set -- a b\nfor x in a; do shift; done\nrun $1", ["run", "$(for:2)"]),
        ("A=(1 2)\nrun ${A[-5]} ${A[x.y]}", ["run", "$(subscript:2)", "$(subscript:2)"]),
        ("declare -A H=([7b]=32)\nrun ${H[7b]} ${H[@]}", ["run", "$(declare:1)", "$(declare:1)"]),
    ],
)  # fmt: skip
def test_what_no_script_says_stays_as_it_is_written(script, words):
    """Arguments, answers of programs; branches that leave with an error are not taken, texts are followed."""
    assert [word for own in Script.read(script).commands for word in own] == words


def test_files_beside_a_script_are_read_and_those_that_it_starts_followed(tmp_path):
    (tmp_path / "conf").mkdir()
    (tmp_path / "conf" / "8b.sh").write_text('export ARGS="--num-layers $NLS"\n')
    (tmp_path / "SRUN.sh").write_text('#SBATCH --ntasks-per-node=8\nsrun sh -c "python gpt.py ${ARGS}"\n')
    head = "#SBATCH -N 4 --exclusive\nNLS=36\n"
    for source in (
        ". `pwd`/conf/8b.sh",
        'source "$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)/conf/8b.sh"',
        'D="$(cd -- "$(dirname -- "$0")" &> /dev/null && pwd)"; source $D/conf/8b.sh',
        "source $ROOT/conf/8b.sh",
        "source /other/machine/conf/8b.sh",
        "S=8b; source conf/$S.sh",
    ):
        script = Script.read(f"{head}{source}\nsbatch --nodes=2 SRUN.sh\n", tmp_path / "run.sh")
        assert script.commands == [
            ["sbatch", "--nodes=2", "srun", "sh", "-c", "python", "gpt.py", "--num-layers", "36"]
        ]
        assert (script.slurm["--nodes"], script.slurm["--ntasks-per-node"]) == ("2", "8")
    assert Script.read("source none.sh", tmp_path / "run.sh").missing == ["none.sh"]


# Narayanan et al., SC'21, Table 1, as Megatron-LM's own script of it chooses: GPUs and global batch.
TABLE_1 = [("1.7B", 1.7, 32, 512), ("39B", 39.1, 512, 1536), ("76B", 76.1, 1024, 1792)]
CHOICES = """\
if [ ${MODEL_SIZE} == "1.7B" ]; then
    TP=1; PP=1; MBS=16; GBS=512; NLS=24; HS=2304; NAH=24; NNODES=4
    MEGATRON_EXTRA_PARAMS="--activations-checkpoint-method uniform "
elif [ ${MODEL_SIZE} == "39B" ]; then
    TP=8; PP=2; MBS=4; GBS=1536; NLS=48; HS=8192; NAH=64; NNODES=64
elif [ ${MODEL_SIZE} == "76B" ]; then
    TP=8; PP=4; MBS=2; GBS=1792; NLS=60; HS=10240; NAH=80; NNODES=128
    MEGATRON_EXTRA_PARAMS="--activations-checkpoint-method uniform --num-layers-per-virtual-pipeline-stage 5"
else
    echo "Invalid configuration"; exit 1
fi
. `pwd`/CONFIG.sh
. `pwd`/SBATCH.sh
exit 0
"""
CONFIG = """\
export MEGATRON_PARAMS=" ${MEGATRON_EXTRA_PARAMS} \\
	--tensor-model-parallel-size ${TP} --pipeline-model-parallel-size ${PP} \\
	--micro-batch-size ${MBS} --global-batch-size ${GBS} --num-layers ${NLS} --hidden-size ${HS} \\
        --num-attention-heads ${NAH} --seq-length 2048 --vocab-size 51200 --fp16"
"""


@pytest.mark.parametrize(("size", "billions", "chips", "batch"), TABLE_1)
def test_the_choice_of_a_script_decides(tmp_path, size, billions, chips, batch):
    (tmp_path / "CONFIG.sh").write_text(CONFIG)
    (tmp_path / "SBATCH.sh").write_text("sbatch --nodes=${NNODES} --export=MEGATRON_PARAMS SRUN.sh\n")
    (tmp_path / "SRUN.sh").write_text(
        '#SBATCH -t 0:30:00 --mem=0 --ntasks-per-node=8\nCMD="python -u ${DIR}/pretrain_gpt.py '
        '${MEGATRON_PARAMS}"\nsrun -l --output=%x_`date`.log sh -c "${CMD}"\n'
    )
    launch, notes = read(tmp_path, f"MODEL_SIZE={size}\n" + CHOICES)
    assert (launch.world_size, launch.global_batch_size) == (chips, batch)
    assert launch.model.num_parameters / 1e9 == pytest.approx(billions, abs=0.05)
    assert launch["recompute"] == ("full" if size != "39B" else "none")
    assert launch["vpp"] == (3 if size == "76B" else 1)
    assert not [note for note in notes if "not read" in note]


def test_what_a_caller_gives_stands_before_the_script_and_behind_it(tmp_path):
    text = f"torchrun --nproc_per_node ${{GPUS:-8}} pretrain_gpt.py {MODEL} --micro-batch-size $1 --bf16"
    with pytest.raises(DseError, match=r"--micro-batch-size \$1: expected a number .no line"):
        read(tmp_path, text)
    launch, _ = megatron.read_script(tmp_path / "train.sh 4")
    assert (launch.world_size, launch["micro_batch_size"]) == (8, 4)
    launch, _ = megatron.read_script(type(tmp_path)(f"GPUS=16 {tmp_path}/train.sh 2"))
    assert (launch.world_size, launch["micro_batch_size"]) == (16, 2)


def test_a_file_of_flags_alone_is_read_with_a_number_of_chips(tmp_path):
    text = f'A=1\nMODEL_ARGS=" {MODEL} "\nOTHER=(--swiglu --micro-batch-size 2)\n'
    with pytest.raises(DseError, match="name it with --gpus N"):
        read(tmp_path, text)
    launch, notes = read(tmp_path, text, 8)
    assert launch.model.gated_mlp
    assert launch.global_batch_size == 16
    assert notes[0] == "no command in it has flags: those of MODEL_ARGS, OTHER are read"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        ("pretrain_bert.py", "pretrain_bert.py: trains BERT, an encoder"),
        ("pretrain_t5.py", "pretrain_t5.py: trains T5, an encoder and a decoder"),
        ("pretrain_vlm.py", "pretrain_vlm.py: trains a model that sees or hears"),
        ("examples/multimodal/train.py", "multimodal/train.py: trains a model that sees or hears"),
        ("pretrain_retro.py", "pretrain_retro.py: trains RETRO"),
        ("../../pretrain_mamba.py", "pretrain_mamba.py: trains layers of Mamba and attention in an order"),
        ("pretrain_gpt.py --hybrid-override-pattern M-M*-", "--hybrid-override-pattern: trains layers of Mamba"),
        ("pretrain_gpt.py --img-h 448", "--img-h: trains a model that sees or hears"),
        ("tools/run_text_generation_server.py", "run_text_generation_server.py: does not train"),
        ("-m examples.inference.offline_inference", "offline_inference: does not train"),
    ],
)
def test_programs_that_train_no_model_here_are_refused_by_name(tmp_path, command, why):
    with pytest.raises(DseError, match=why) as caught:
        read(tmp_path, f"torchrun --nproc_per_node 8 python {command} {MODEL}\n", 8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("launcher", "chips"),
    [
        ("torchrun --nproc_per_node 8 --nnodes 4", (32, 8)),
        ("python -m torch.distributed.run --nproc-per-node=4", (4, 4)),
        ("srun -N 2 --ntasks-per-node=8 python", (16, 8)),
        ("srun --ntasks-per-node=1 torchrun --nproc_per_node 8 --nnodes 2", (16, 8)),
        ("mpirun -np 64 python", (64, None)),
        ("deepspeed --num_gpus 8 --num_nodes 3", (None, None)),
        ("torchrun --nproc_per_node $(nvidia-smi -L | wc -l)", (None, None)),
    ],
)  # fmt: skip
def test_launchers_say_the_chips(tmp_path, launcher, chips):
    (tmp_path / "a.sh").write_text(f"{launcher} pretrain_gpt.py {MODEL}")
    found = training_command(tmp_path / "a.sh")
    assert (found.chips, found.node_size) == chips
    assert found.flags[:2] == ["--num-layers", "24"]


@pytest.mark.parametrize(
    "text",
    [
        *("((" * 4000, "$((" * 4000, '"$(' * 3000, "if " * 5000, "case x in " * 3000, "<<" * 3000),
        "A='python x.py --" + "a=( " * 9000 + "'\n" + 'sh -c "$A"\n' * 30,
        *("a|" * 50_000, "a=(" * 30_000, "<<A\n" * 20_000, "\0" * 50_000, "x " * 60_000),
        *("a() { a; }; a", "while :; do :; done", "source a.sh", "bash a.sh --x", "X=1 " * 5000),
        "for a in 1 2 3 4 5; do for b in 1 2 3 4 5 6 7 8 9; do X+=$X$X; done; done; X=$X$X",
    ],
)  # fmt: skip
def test_hostile_scripts_end(tmp_path, text):
    with pytest.raises(DseError):
        read(tmp_path, text, 8, name="a.sh")


def test_digits_of_arithmetic_are_ascii():
    with pytest.raises(ValueError, match="٣"):
        whole_arithmetic("٣ + 1")
