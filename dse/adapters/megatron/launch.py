"""Scripts that start Megatron-LM: written from designs, and read.

Writing turns a design into settings of Megatron Core and these into flags, grouped for readers. Reading runs the
script's variables and conditions (`shell`), takes its flags, and notes every flag that no setting reads."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError, printable
from costmodel.formats.input_files import data_beside
from dse.adapters.megatron.command import (
    Flags,
    NoTraining,
    OtherTraining,
    TrainingCommand,
    flag,
    flag_text,
    not_there,
    training_command,
)
from dse.adapters.megatron.design import MEGATRON, launch_of, settings_of
from dse.adapters.megatron.model import NEEDED
from dse.launches.launch import PLACEHOLDERS, Launch, launch_text, script_file, with_line

#: Compute capability from which on the order of launches decides nothing (arguments.py). [-]
BLACKWELL: Final = 10
#: Most branches that depend on the machine. [-]
MOST_BRANCHES: Final = 32
_LOG: Final = "; `bash -x` prints a script that dse reads, and the log of a run is exact: dse evaluate run.log"


#: Setting and value -> package that Megatron-LM's own requirements leave out (moe/README.md, fp8_utils.py,
#: fp4_utils.py, extensions/transformer_engine.py, ssm/gated_delta_net.py, pyproject.toml).
PACKAGES: Final = {
    (setting, word): package
    for setting, words in data_beside(__file__, "keys.yaml")["packages"].items()
    for word, package in words.items()
}
#: The script, with words between "@" where a design fills in lines.
TEMPLATE: Final = Path(__file__).with_name("script.sh")


def script(launch: Launch) -> tuple[str, list[str]]:
    """A shell script that starts a design, and the settings that it cannot state.

    Raises `NotExpressible` if Megatron-LM cannot run the design.
    """
    settings, lost = settings_of(launch)
    nodes, gpus = launch.nodes
    arrays = groups(settings | ({"ckpt_format": "fsdp_dtensor"} if "use_megatron_fsdp" in settings else {}))
    filled = {
        "COMMENTS": [
            f"# {launch.heading} on {launch.world_size:,} chips, for {MEGATRON.release}.",
            *(f"# Install {text}." for (name, value), text in PACKAGES.items() if settings.get(name) == value),
            *(f"# Megatron-LM has no flag for: {text}" for text in lost),
        ],
        "VALUES": [f": ${{{name}:?{text}}}" for name, text in PLACEHOLDERS.items()],
        "CONNECTIONS": [f"export CUDA_DEVICE_MAX_CONNECTIONS={most}" for most in connections(launch)],
        "ARRAYS": [
            line
            for title, value in arrays.items()
            for line in (f"{title}_ARGS=(", *(f"  {flag_text(*flag)}" for flag in value.items()), ")")
        ],
        "GROUPS": [" ".join(f'"${{{title}_ARGS[@]}}"' for title in (*arrays, "OTHER"))],
        "NODES": [f"{nodes}"],
        "GPUS": [f"{gpus}"],
        "TABLE": [f"{settings['padded_vocab_size']:,}"],
    }
    parts = re.split("@([A-Z]+)@", TEMPLATE.read_text())
    parts[1::2] = ["\n".join(filled[name]) for name in parts[1::2]]
    return "".join(parts), lost


def connections(launch: Launch) -> list[int]:
    """Queues to a GPU that Megatron-LM asks for: one keeps the order of messages and kernels; none is said
    where it asks for none, or shards weights and needs more."""
    if launch.zero_stage > 1 or launch["tp"] * launch["cp"] == 1 or launch.compute_capability >= BLACKWELL:
        return []
    return [32] if launch["overlap_ep"] else [1]


def groups(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by what they are of, so that a reader finds them."""
    arrays: dict[str, dict[str, Any]] = {"MODEL": {}, "PARALLEL": {}, "TRAINING": {}}
    parallel = re.compile(
        r"parallel|pipeline|overlap|sequence|fsdp|distributed|dispatcher|cp_comm|account|vp_stage|ckpt"
    )
    training = re.compile(
        r"batch_size|recompute|optimizer|exp_avg|fp8|fp4|bf16|fp16|attention_backend|flash|fusion|capacity"
    )
    for name, value in settings.items():
        title = "TRAINING" if training.search(name) else "PARALLEL" if parallel.search(name) else "MODEL"
        arrays[title][name] = value
    return arrays


def read_script(path: Path, chips: int | None = None) -> tuple[Launch, list[str]]:
    """The run that a script of Megatron-LM starts, or that a log of one describes, and notes on unread settings.

    `path` is a script, its call (`TP=8 train.sh 7b`), flags alone, or a log with the arguments of the run. `chips`
    defaults to the GPUs in the log, of the launcher or of Slurm's lines. [-] Raises `DseError` if the file is none of
    these, or does not determine a run.
    """
    hint = _LOG
    try:
        logged = Flags.of_log(launch_text(path)) if path.is_file() else None
        started = TrainingCommand([], logged.settings.get("world_size"), None, [], [], []) if logged else None
        command = started or training_command(path)
        flags = logged or Flags.of(command.flags)
        if "num_layers" not in flags.settings and command.missing:
            raise DseError(f"it does not say num_layers{not_there(command.missing)}")
        if command.plan and not flags.settings.keys() & {*NEEDED, "use_checkpoint_args"}:
            raise OtherTraining(f"no flag of a Megatron-LM model, such as --num-layers; {command.plan} needs no script")
        hint = ""
        if not (world_size := chips or command.chips):
            raise DseError("does not decide the number of GPUs; name it with --gpus N")
        name = re.sub(r"\W+", "_", script_file(path).stem).strip("_") or "launch"
        launch, notes = launch_of(flags.settings, world_size=world_size, node_size=command.node_size or 8, name=name)
        notes = [*branch_notes(path, command, flags), *notes]
    except DseError as error:
        hint = "" if isinstance(error, OtherTraining) else hint
        raise DseError(f"{path}: {_line(_with_line(path, str(error)))}{hint}") from None
    if not flags.settings.keys() & {"vocab_size", "padded_vocab_size"}:
        notes.append(f"it does not say --vocab-size: {launch.model.vocab_size:,.0f} is assumed; "
                     "--set vocab_size=N names another")  # fmt: skip
    return launch, [_line(note) for note in (*command.notes, *notes, *flags.notes)]


def _with_line(path: Path, message: str) -> str:
    """A message about a flag, with the line of the script that states it."""
    file = script_file(path)
    words = {"global batch": "global_batch_size", "chips:": "tensor_model_parallel_size"}
    setting = next((words[word] for word in words if word in message[:24]), message.partition(":")[0])
    names = [message.split()[0]] if message.startswith("--") else [flag(setting)] if "_" in setting else []
    return with_line(message, launch_text(file), names) if names and file.is_file() else message


def branch_notes(path: Path, command: TrainingCommand, flags: Flags) -> Iterator[str]:
    """A line for each branch that is not read of a condition that depends on the machine, if it differs.

    Raises `DseError` if the script has too many of them.
    """
    branches = [(ordinal, arm) for ordinal, (_, count) in enumerate(command.asked) for arm in range(1, count)]
    if len(branches) > MOST_BRANCHES:
        raise DseError(f"{len(branches)} branches depend on the machine: more than {MOST_BRANCHES}")
    for ordinal, branch in branches:
        condition = command.asked[ordinal][0]
        head = f"{condition} depends on the machine: its first branch is read; another"
        try:
            other = training_command(path, {ordinal: branch})
            changes = flags.changes(Flags.of(other.flags))
        except NoTraining:
            continue
        except DseError as error:
            yield f"{head} cannot be read: {error}"
            continue
        if other.chips != command.chips:
            changes.append(f"{other.chips or 'an unknown number of'} GPUs")
        if changes:
            yield f"{head} has {', '.join(changes)}"


def _line(text: str) -> str:
    """Words of a script as one line that any terminal shows."""
    return printable(" ".join(text.split()))
