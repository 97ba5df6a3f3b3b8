"""The command of a launch script that trains: its flags and chips, and programs that no model here is of.

A script may start several programs, and its words name models and data. Flags decide, then names: a script that
trains another kind of model, or with another engine, is refused by name."""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from costmodel.errors import DseError
from costmodel.formats import shipped
from dse.adapters.megatron.flags import DATA
from dse.adapters.megatron.shell.shell import Script
from dse.adapters.megatron.shell.words import slurm_options, slurm_sizes
from dse.launches.launch import launch_text

_LAUNCHERS: Final = re.compile(r"(^|/)(distributed/(launch|run)|deepspeed/.*|torchrun)\.py$")


class NoTraining(DseError):
    """A script that starts nothing with flags of Megatron-LM."""


class OtherTraining(DseError):
    """A program that trains nothing, or a model of another kind."""


@dataclass(frozen=True)
class TrainingCommand:
    """The flags of a run, and where it runs."""

    flags: Sequence[str]
    chips: int | None  #: GPUs of the run [-]
    node_size: int | None  #: GPUs of a node [-]
    missing: Sequence[str]  #: files that the script reads and that do not exist
    asked: Sequence[tuple[str, int]]  #: conditions that depend on the machine, and their branches
    notes: list[str]
    plan: str = ""  #: command that plans the run without the script


def training_command(path: Path, answers: Mapping[int, int] | None = None) -> TrainingCommand:
    """The command of a script that trains: the one with the most flags; else flags that its variables hold.

    `path` is a script or its call (`TP=8 train.sh 7b`). `answers` maps the ordinal of a condition that depends on the
    machine to its branch; 0, the default, where it holds. [-] Raises `DseError` if no command trains, or it trains a
    model of another kind.
    """
    script, notes = _followed(path, answers), []
    words = max(script.commands, key=_flag_count, default=[])
    start = next((at for at, word in enumerate(words) if _is_program(words, at)), None)
    flags = words if start is None else words[start + 1 :]
    chips, node_size = chips_of(script, words[:start])
    plan = plan_command(script, chips)
    if not _flag_count(flags):
        held = {name: values for name, values in script.variables.items() if _flag_count(" ".join(values).split())}
        flags, start = [word for values in held.values() for word in " ".join(values).split()], 0
        if not flags:
            raise NoTraining(f"no flag of Megatron-LM in it{not_there(script.missing)}; {plan} needs no script")
        notes.append(f"no command in it has flags: those of {', '.join(held)} are read")
    elif start is not None:
        program = posixpath.basename(words[start])
        refuse(words[start], flags, plan)
        if program not in ("pretrain_gpt.py", ""):
            notes.append(f"{program} is read as if it were pretrain_gpt.py")
        same = {tuple(values) for values in script.commands if words[start] in values and _flag_count(values) > 3}
        if len(same) > 1:
            notes.append(f"it starts {program} {len(same)} times: the longest command is read")
    refuse("", flags, plan)
    return TrainingCommand(flags, chips, node_size, script.missing, script.asked, notes, plan)


def plan_command(script: Script, chips: int | None) -> str:
    """The command that plans the run of a script: of the built-in model that its words name, if any."""
    known = shipped.names("models")
    words = (shipped.current_name(word, "models") for command in script.commands for word in command)
    model = next((word for word in words if word in known), "MODEL")
    return f"`dse plan {model} --gpus {chips if (chips or 1) > 1 else 'N'} --system S`"


def _followed(path: Path, answers: Mapping[int, int] | None) -> Script:
    """A script with the variables and arguments that its caller gives."""
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
    return Script.read(launch_text(file), file.absolute(), variables, words[1:] or None, answers)


def not_there(missing: Sequence[str]) -> str:
    """Words about a file that a script reads and that is not there; "" if there is none."""
    return f"; it reads {missing[0]}, which is not there" if missing else ""


def _flag_count(words: Iterable[str]) -> int:
    return sum(word.startswith("--") for word in words)


def _is_program(words: Sequence[str], at: int) -> bool:
    """True if a word of a command names a Python program, or a module that is no launcher."""
    word = words[at]
    if at and words[at - 1] == "-m":
        return not word.startswith(("torch.", "deepspeed"))
    return word.endswith(".py") and not word.startswith("-") and not _LAUNCHERS.search(word)


def refuse(program: str, flags: Sequence[str], plan: str = "") -> None:
    """Refuse a program that trains another kind of model, or with another engine, which `plan` plans.

    Raises `DseError`, saying what it does.
    """
    name = posixpath.basename(program)
    if re.search(DATA["idle"], name):
        raise OtherTraining(f"{name}: does not train; expected a script that starts pretrain_gpt.py")
    names = [flag.partition("=")[0] for flag in flags]
    for pattern, why in DATA["other_settings"].items():
        if argument := next((argument for argument in names if re.match(pattern, argument)), ""):
            raise OtherTraining(f"{argument}: {why}" + (f"; {plan} needs no script" if plan else ""))
    other = next((argument for argument in names if re.match(DATA["other_flags"], argument)), "")
    for near in (name, other, *(["/".join(program.split("/")[-2:])] if "gpt" not in name else [])):
        for pattern, why in DATA["other_models"].items():
            if re.search(pattern, near):
                raise OtherTraining(f"{near}: {why}; models here are decoders of text")


def chips_of(script: Script, launcher: Sequence[str]) -> tuple[int | None, int | None]:
    """GPUs of the run, and of a node, where the launcher's words and Slurm's lines decide them. [-]

    `torchrun` starts `--nproc_per_node` processes on each of `--nnodes` nodes, with defaults of 1; `srun` and
    `mpirun` start one process for each task. One process on a node of several GPUs decides nothing.
    """
    named: dict[str, str] = {}
    for at, word in enumerate(launcher):
        name, equals, value = word.partition("=")
        if name.startswith("-"):
            named[name.replace("_", "-")] = value if equals else (*launcher, "")[at + 1]
    programs = {posixpath.basename(word).removesuffix(".py") for word in launcher}
    step = " ".join(launcher).rpartition("srun ")[2] if "srun" in programs else ""
    nodes, tasks, gpus = slurm_sizes({**script.slurm, **slurm_options(f"#SBATCH {step}")})
    node_size: int | None = None
    if programs & {"torchrun", "torch.distributed.run", "torch.distributed.launch", "run", "launch"}:
        automatic = named.get("--nproc-per-node") in ("gpu", "auto")
        node_size = gpus if automatic else _count(named.get("--nproc-per-node", "1"))
        nodes = _count(named.get("--nnodes", "1"))
        tasks = nodes * node_size if nodes and node_size else None
    elif "srun" not in programs:
        tasks = _count(*(named.get(name) for name in ("-np", "--np", "-n"))) if "mpirun" in programs else None
        tasks = tasks or _count(*script.variables.get("WORLD_SIZE", ()))
    node_size = node_size or (tasks // nodes if tasks and nodes else None)
    if node_size == 1 and (gpus or 1) > 1:
        tasks = None
    return tasks, node_size


def _count(*texts: str | None) -> int | None:
    """The first whole number above 0."""
    return next((int(text) for text in texts if text and re.fullmatch(r"0*[1-9][0-9]{0,6}", text)), None)
