"""Launch scripts of Megatron-LM as people write them, and experiments of Primus: both are followed, and not run."""

import re
import subprocess

import pytest

from costmodel import DseError
from dse.adapters.megatron import launch as megatron
from dse.adapters.megatron.launch import training_command
from dse.adapters.megatron.shell.shell import Script
from dse.adapters.megatron.shell.words import whole_arithmetic
from dse.launches.launch import read_launch
from tests.support.cases import cases

MODEL = "--num-layers 24 --hidden-size 2304 --num-attention-heads 24 --seq-length 2048 --vocab-size 51200"


def read(folder, text, chips=None, name="train.sh"):
    """The launch of a script."""
    (folder / name).write_text(text)
    return megatron.read_script(folder / name, chips)


#: Scripts that call `run`, by what of the language they use.
SCRIPTS = cases(__file__, "SCRIPTS")


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_mean_what_they_do_to_bash(name, tmp_path):
    """Bash runs what is followed here."""
    program = "run() { printf '%s\\n' run \"$@\"; }\nexport -f run\n" + SCRIPTS[name]
    ran = subprocess.run(["bash", "-c", program], capture_output=True, text=True, check=False, cwd=tmp_path)
    commands = [words[words.index("run") :] for words in Script.read(SCRIPTS[name]).commands if "run" in words]
    assert [word for command in commands for word in command] == ran.stdout.splitlines()


@pytest.mark.parametrize(("script", "words"), cases(__file__, "what_no_script_says_stays_as_it_is_written"))
def test_what_no_script_says_stays_as_it_is_written(script, words):
    """Arguments, answers of programs; branches that leave with an error are not taken, texts are followed."""
    assert [word for command in Script.read(script).commands for word in command] == words


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
CHOICES = cases(__file__, "CHOICES")
CONFIG = cases(__file__, "CONFIG")


@pytest.mark.parametrize(("size", "billions", "chips", "batch"), TABLE_1)
def test_the_choice_of_a_script_decides(tmp_path, size, billions, chips, batch):
    (tmp_path / "CONFIG.sh").write_text(CONFIG)
    (tmp_path / "SBATCH.sh").write_text("sbatch --nodes=${NNODES} --export=MEGATRON_PARAMS SRUN.sh\n")
    (tmp_path / "SRUN.sh").write_text(
        '#SBATCH -t 0:30:00 --mem=0 --ntasks-per-node=8\nCMD="python -u ${DIR}/pretrain_gpt.py '
        '${MEGATRON_PARAMS}"\nsrun -l --output=%x_`date`.log sh -c "${CMD}"\n'
    )
    launch, notes = read(tmp_path, f"cat > p.yaml <<E\nmodules:\nE\nMODEL_SIZE={size}\n" + CHOICES)
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
    text = f'A=1\nMODEL_ARGS=" {MODEL} "\nOTHER=(--swiglu --micro-batch-size 2 --step-batch-size-schedule 0:8 1:32)\n'
    with pytest.raises(DseError, match="name it with --gpus N"):
        read(tmp_path, text)
    recipe = "MODEL_ARGS:\n  --swiglu: true\n  --bf16: false\n  --micro-batch-size: 2\n"
    recipe += re.sub(r"(--\S+) (\S+) ?", r"  \1: \2\n", MODEL)  # as in Megatron-LM's repository
    for written, batch, note in (
        (text, 32, "no command in it has flags: those of MODEL_ARGS, OTHER are read"),
        (recipe, 16, "MODEL_ARGS names no program: read as pretrain_gpt.py"),
    ):
        launch, notes = read(tmp_path, written, 8)
        assert (launch.model.gated_mlp, launch.global_batch_size, notes[0]) == (True, batch, note)
    (tmp_path / "recipe.yaml").write_text(f"{recipe}  --tensor-model-parallel-size: ${{TP}}\n")
    assert megatron.read_script(type(tmp_path)(f"TP=4 {tmp_path}/recipe.yaml"), 8)[0]["tp"] == 4


@pytest.mark.parametrize(("command", "why"), cases(__file__, "programs_that_train_no_model_here_are_refused_by_name"))
def test_programs_that_train_no_model_here_are_refused_by_name(tmp_path, command, why):
    with pytest.raises(DseError, match=why) as caught:
        read(tmp_path, f"torchrun --nproc_per_node 8 python {command} {MODEL}\n", 8)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("launcher", "chips"), cases(__file__, "launchers_of_programs_that_train_say_the_chips"))
def test_launchers_of_programs_that_train_say_the_chips(tmp_path, launcher, chips):
    (tmp_path / "a.sh").write_text(f"{launcher} {MODEL}")
    actual = training_command(tmp_path / "a.sh")
    assert [actual.chips, actual.node_size] == chips
    assert actual.flags[:2] == ["--num-layers", "24"]


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


# Primus: YAML files of a checkout that extend others


@pytest.fixture
def experiment(tmp_path):
    for name, text in cases(__file__, "CHECKOUT").items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path / "examples/llama.yaml"


def test_an_experiment_overrides_its_model_which_extends_another(experiment):
    launch, notes = read_launch(type(experiment)(f"PRIMUS_TP=2 {experiment}"), "megatron", 16)
    assert (launch.model.num_layers, launch.model.num_query_groups, launch.model.vocab_size) == (80, 8, 128_256)
    columns = ("tp", "dp", "zero", "micro_batch_size", "gradient_reduction")
    assert ([launch[name] for name in columns], notes[-1]) == ([2, 8, 3, 3, "bf16"], "not read: use_turbo_attention")


@pytest.mark.parametrize(("before", "after", "message"), cases(__file__, "refused"))
def test_experiments_of_other_models_and_frameworks_are_refused(experiment, before, after, message):
    experiment.write_text(experiment.read_text().replace(before, after))
    with pytest.raises(DseError, match=message):
        read_launch(experiment, "megatron", 16)
