"""The command of a launch script that trains: its flags and chips, and programs that no model here is of."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from costmodel.errors import DseError
from dse.exporting.launch.launch import launch_text
from dse.exporting.launch.shell import Script

#: Part of a program's name -> why no model here is what it runs.
_IDLE: Final = re.compile(
    r"generat|inference|server|eval|quantiz|export|convert|prune|preprocess|merge|index|mmlu|extract|main\.py"
)
_OTHERS: Final[Mapping[str, str]] = {
    r"bert": "trains BERT, an encoder",
    r"(^|[_/])t5": "trains T5, an encoder and a decoder",
    r"retro": "trains RETRO, a decoder that retrieves",
    r"vlm|llava|multimodal|mimo|vision|(^|_)vi?t[_.]|dino|inpaint|swin|clip_|omni|[23_]vl|-img-|mrope": (
        "trains a model that sees or hears, not its text part alone"
    ),
    r"(^|_)ict|biencoder|realm|orqa": "trains an encoder for retrieval",
    r"mamba|hybrid|(^|_)ssm": "trains layers of Mamba and attention in an order that no model file can say",
    r"(^|_)(rl|grpo|ppo|dpo|rlhf)[_.]": "trains on what the model itself writes, not on given sequences",
}
#: Flags that only such models have.
_OTHER_FLAGS: Final = re.compile(
    r"--(hybrid-(override|layer)-pattern|hybrid-\w+-ratio|is-hybrid-model|vision-\S+|img-[hw]|mrope-section"
    r"|retro-add-retriever)$"
)
_LAUNCHERS: Final = re.compile(r"(^|/)(distributed/(launch|run)|deepspeed/.*|torchrun)\.py$")
#: Flags of earlier releases -> today's words; what they say follows.
_EARLIER: Final[Mapping[str, tuple[str, ...]]] = {
    "--model-parallel-size": ("--tensor-model-parallel-size",),
    "--batch-size": ("--micro-batch-size",),
    "--encoder-seq-length": ("--seq-length",),
    "--encoder-num-layers": ("--num-layers",),
    "--checkpoint-activations": ("--recompute-granularity", "full"),
    "--activations-checkpoint-method": ("--recompute-granularity", "full", "--recompute-method"),
    "--checkpoint-num-layers": ("--recompute-num-layers",),
    "--activations-checkpoint-num-layers": ("--recompute-num-layers",),
}


@dataclass(frozen=True)
class TrainingCommand:
    """The flags of a run, and where it runs."""

    flags: Sequence[str]
    chips: int | None  #: of the run [-]
    node_size: int | None  #: chips of a node [-]
    missing: Sequence[str]  #: files that the script reads and that are not there
    notes: list[str]


def training_command(path: Path) -> TrainingCommand:
    """The command of a script that trains: the one with the most flags; else flags that its variables hold.

    Parameters
    ----------
    path : Path
        The script, or as it is called: with variables before it and arguments behind, `TP=8 train.sh 7b`.

    Raises
    ------
    DseError
        If there is none, or it trains what no model here is.
    """
    script, notes = _followed(path), []
    words = max(script.commands, key=_flag_count, default=[])
    start = next((place for place, word in enumerate(words) if _is_program(words, place)), None)
    flags = words if start is None else words[start + 1 :]
    if not _flag_count(flags):
        held = {name: own for name, own in script.variables.items() if _flag_count(" ".join(own).split())}
        flags, start = [word for own in held.values() for word in " ".join(own).split()], 0
        if not flags:
            raise DseError(f"no flag of Megatron-LM in it{not_there(script.missing)}")
        notes.append(f"no command in it has flags: those of {', '.join(held)} are read")
    elif start is not None:
        program = posixpath.basename(words[start])
        refuse(words[start], flags)
        if program not in ("pretrain_gpt.py", ""):
            notes.append(f"{program} is read as if it were pretrain_gpt.py")
        same = {tuple(own) for own in script.commands if words[start] in own and _flag_count(own) > 3}
        if len(same) > 1:
            notes.append(f"it starts {program} {len(same)} times: the longest command is read")
    refuse("", flags)
    chips, node_size = chips_of(script, words[:start])
    return TrainingCommand(present(flags), chips, node_size, script.missing, notes)


def _followed(path: Path) -> Script:
    """A script with what its caller gives."""
    variables: dict[str, list[str]] = {}
    words = [str(path)]
    if not path.exists() and " " in words[0]:
        try:
            words = shlex.split(words[0])
        except ValueError as error:
            raise DseError(f"expected a script and its arguments ({error})") from None
        while words and (given := re.fullmatch(r"([A-Za-z_]\w*)=(.*)", words[0])):
            variables[given[1]] = [given[2]]
            words = words[1:]
    file = Path(words[0] if words else path)
    return Script.read(launch_text(file), file.absolute(), variables, words[1:] or None)


def not_there(missing: Sequence[str]) -> str:
    """Words about a file that a script reads and that is not there; "" if there is none."""
    return f"; it reads {missing[0]}, which is not there" if missing else ""


def _flag_count(words: Iterable[str]) -> int:
    return sum(word.startswith("--") for word in words)


def _is_program(words: Sequence[str], place: int) -> bool:
    """Whether a word of a command names a program of Python, or a module that is no launcher."""
    word = words[place]
    if place and words[place - 1] == "-m":
        return not word.startswith(("torch.", "deepspeed"))
    return word.endswith(".py") and not word.startswith("-") and not _LAUNCHERS.search(word)


def refuse(program: str, flags: Sequence[str]) -> None:
    """Refuse a program that trains what no model here is.

    Raises
    ------
    DseError
        Saying what it does.
    """
    name = posixpath.basename(program)
    if _IDLE.search(name):
        raise DseError(f"{name}: does not train; expected a script that starts pretrain_gpt.py or its like")
    other = next((flag for flag in flags if _OTHER_FLAGS.match(flag.partition("=")[0])), "")
    for near in (name, other, *(["/".join(program.split("/")[-2:])] if "gpt" not in name else [])):
        for pattern, why in _OTHERS.items():
            if re.search(pattern, near):
                raise DseError(f"{near}: {why}; models here are decoders of text")


def present(words: Sequence[str]) -> list[str]:
    """Flags of earlier releases as today's.

    >>> present(["--activations-checkpoint-method", "uniform", "--batch-size=2"])
    ['--recompute-granularity', 'full', '--recompute-method', 'uniform', '--micro-batch-size', '2']
    """
    found: list[str] = []
    for word in words:
        name, equals, value = word.partition("=")
        known = _EARLIER.get(name)
        found += [word] if known is None else [*known, *([value] if equals else [])]
    return found


def chips_of(script: Script, launcher: Sequence[str]) -> tuple[int | None, int | None]:
    """Chips of the run, and of a node, where the launcher's words or Slurm's lines say so. [-]"""
    named: dict[str, str] = {}
    for place, word in enumerate(launcher):
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            named[name.replace("_", "-")] = value if equals else (*launcher, "")[place + 1]
    each_of = ("--nproc-per-node", "--num-gpus") if "--nproc-per-node" in named else ("--num-gpus",)
    tasks = () if "--nproc-per-node" in named else ("--ntasks-per-node",)
    slurm = (*tasks, "--gpus-per-node", "--gres")
    each = _count(*map(named.get, (*each_of, *tasks)), *map(script.slurm.get, slurm))
    nodes = _count(
        *(named.get(name) for name in ("--nnodes", "--num-nodes", "--nodes", "-N")),
        script.slurm.get("--nodes"),
    )
    whole = _count(
        *(named.get(name) for name in ("--ntasks", "-n", "-np", "--np")), script.slurm.get("--ntasks")
    )
    if each and not nodes and "--nproc-per-node" in named and "--nnodes" not in named:
        nodes = 1
    said = _count(*script.variables.get("WORLD_SIZE", ()))
    return (nodes * each if nodes and each else whole or said), each


def _count(*texts: str | None) -> int | None:
    """The first that is a number, or ends in one as `gpu:8` does."""
    for text in texts:
        if text and (number := re.search(r"(?:^|:)([0-9]{1,7})$", text)):
            return int(number[1]) or None
    return None
