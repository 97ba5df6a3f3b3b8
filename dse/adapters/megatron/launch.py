"""Scripts that start Megatron-LM: written from designs, and read.

Writing turns a design into settings of Megatron Core and these into flags, grouped for readers. Reading runs the
script's variables and conditions (`shell`), takes its flags, and notes every flag that no setting reads. A script may
start several programs, and its words name models and data. Flags decide, then names: a script that trains another kind
of model, or with another engine, is refused by name.

`flags.yaml` sorts all arguments of Megatron-LM: those that are read, those that decide nothing of cost, and those that
may change cost and are not read. The last kind, and names in none of the lists, are named to the user: nothing is
passed over because its name is unknown.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError, printable
from costmodel.formats import shipped
from costmodel.formats.input_files import data_beside, parse
from costmodel.formats.quantity import plain_number
from dse.adapters.megatron.design import MEGATRON, launch_of, settings_of, variables
from dse.adapters.megatron.model import KEYS, NEEDED, provider
from dse.adapters.megatron.primus import primus_arguments
from dse.adapters.megatron.shell.shell import Script
from dse.adapters.megatron.shell.words import slurm_options, slurm_sizes
from dse.launches.launch import PLACEHOLDERS, Launch, NotExpressible, launch_text, script_file, with_line

DATA: Final[dict[str, Any]] = data_beside(__file__, "flags.yaml")
#: Names of arguments that are read, of each kind and of all.
NUMBERS, SHARES, WORDS, LISTS, ON = (
    tuple(str(DATA[kind]).split()) for kind in ("numbers", "shares", "words", "lists", "switches")
)
READ: Final = {*NUMBERS, *SHARES, *WORDS, *LISTS, *ON}
_WITHOUT_COST: Final = {*DATA["without_cost"].split()}
_DERIVED: Final = _WITHOUT_COST | {*DATA["derived"].split()}
_FLAGS: Final[dict[str, str]] = DATA["flags"]
NEGATED: Final[dict[str, str]] = DATA["negated"]
_UNSET: Final = "no line of the script sets it; write what its caller gives in quotes: 'NAME=8 train.sh ARGUMENT'"
#: Value that a statement decides which is not followed: `$(for:12)`, with its line, or `$(for:FILE:12)`.
_DECIDED: Final = re.compile(r"\$\(([a-z-]+):(?:([^:()]+):)?(\d+)\)")
#: The arguments that a run prints, and one of them; lines may begin with the rank.
_PRINTED: Final = re.compile(r"-{3,} arguments -{3,}\s*\n(.*?)-{3,} end of arguments -{3,}", re.DOTALL)
_ARGUMENT: Final = re.compile(r"^(?:\S*\d\S*[:\]] ?)?  ([A-Za-z_]\w*) \.* (.*?)\r?$", re.MULTILINE)
_RECIPE: Final = re.compile(r"^MODEL_ARGS:", re.MULTILINE)
_PRIMUS, _YAML = re.compile(r"^modules:", re.MULTILINE), (".yaml", ".yml")
_PADDED: Final = re.compile(r"padded vocab \(size: \d+\).*\(new size: (\d+)\)")


def flag(setting: str) -> str:
    """The flag of a setting."""
    return _FLAGS.get(setting, "--" + setting.replace("_", "-"))


def stated(setting: str, settings: Mapping[str, Any]) -> tuple[str, Any]:
    """The flag that states a setting, and its value; None without the flag."""
    if setting in NEGATED:
        return NEGATED[setting], True if settings.get(setting) is False else None
    return flag(setting), settings.get(setting)


def flag_text(setting: str, value: Any) -> str:
    """A flag with its value, as a shell reads it."""
    if value is True:
        return flag(setting)
    if value is False:
        return NEGATED[setting]
    values = value if isinstance(value, list) else [value]
    return " ".join(
        [flag(setting), *(shlex.quote(f"{item:g}" if isinstance(item, float) else str(item)) for item in values)]
    )


@dataclass
class Flags:
    """Settings of a run, and arguments that are not read."""

    settings: dict[str, Any] = field(default_factory=dict)
    unread: dict[str, str] = field(default_factory=dict)  #: argument -> its value, where it has one
    unset: list[str] = field(default_factory=list)  #: variables among the flags that no line of a script sets

    @classmethod
    def of(cls, words: Sequence[str]) -> Flags:
        """The flags of a command, with Megatron-LM's defaults for others.

        Raises `DseError` if a value does not fit its flag or is not known.

        >>> Flags.of(["--batch-size=2", "--swiglu", "--lr", "1e-4", "--fancy", "3"])
        Flags(settings={'micro_batch_size': 2, 'swiglu': True}, unread={'--fancy': '3'}, unset=[])
        """
        kinds = {flag(name): name for name in READ}
        off = {name: setting for setting, name in NEGATED.items()}
        flags = cls()
        for name, values in _pairs(words):
            argument = name.strip("-").replace("-", "_")
            unknown = next((value for value in values if "$(" in value), "")
            if unknown and argument not in _WITHOUT_COST:
                if decided := _DECIDED.search(unknown):
                    file = decided[2] and f"{decided[2]}: "
                    raise DseError(
                        f"{file or ''}line {decided[3]}: `{decided[1]}` decides {name or 'a word'}, and is not followed"
                    )
                raise DseError(f"{name} {unknown}: the script does not decide it")
            if argument in ("tokenizer_model", "tokenizer_type") and values:
                flags.settings[argument] = values[0]
            elif name in kinds:
                flags.settings[kinds[name]] = cls.value(kinds[name], name, values)
            elif name in off:
                flags.settings[off[name]] = False
            elif name and argument not in _WITHOUT_COST and values[:1] != DATA["not_read"].get(argument):
                flags.unread[name] = " ".join(values)
            takes = name and name not in off and kinds.get(name) not in ON
            flags.unset += [item for item in values[bool(takes) :] if item[:1] == "$" and argument != "data_path"]
        return flags

    @classmethod
    def of_arguments(cls, arguments: Iterable[tuple[str, str]]) -> Flags:
        """Settings of arguments, by their names in Megatron-LM, and their values as Python prints them."""
        flags, names = cls(), DATA["in_a_log"]
        for argument, value in arguments:
            name = names.get(argument, argument)
            if name in NEGATED or name in ON:
                is_on = value in ("True", "1")
                flags.settings |= {name: is_on} if name in NEGATED or is_on else {}
            elif name in READ and value != "None":
                flags.settings[name] = cls.value(name, name, _values(name, value))
            elif name == "world_size" or name.startswith("tokenizer_"):
                flags.settings[name] = int(value) if name == "world_size" else value
            elif name not in READ | _DERIVED and value not in DATA["not_read"].get(name, ("None", "False")):
                flags.unread[name] = value
        return flags

    @classmethod
    def of_file(cls, path: Path) -> Flags | None:
        """Arguments that a run of Megatron-LM printed, the last of several, or of Primus; None if there are none."""
        text = launch_text(file) if (file := script_file(path)).is_file() else ""
        if file.suffix in _YAML and _PRIMUS.search(text):  # scripts may write these lines to a file
            return cls.of_primus(*primus_arguments(path))
        if not (printed := _PRINTED.findall(text)):
            return None
        flags = cls.of_arguments(_ARGUMENT.findall(printed[-1]))
        if padded := _PADDED.findall(text):
            flags.settings["padded_vocab_size"] = int(padded[-1])
        return flags

    @classmethod
    def of_primus(cls, given: Mapping[str, Any], of_model: Mapping[str, Any], changed: Mapping[str, Any]) -> Flags:
        """The arguments of `primus_arguments`; raises `OtherTraining` if its model has a setting that is not read."""
        data = DATA["primus"]
        stand_for = [item for name, of in data["stands_for"].items() if given.get(name) for item in of.items()]
        left = {k: v for k, v in given.items() if k not in (*data["without_cost"].split(), *data["stands_for"])}
        flags = cls.of_arguments((name, str(value)) for name, value in (*left.items(), *stand_for))
        if others := [name for name in flags.unread if name in of_model or name in data["other"].split()]:
            raise OtherTraining(f"{', '.join(others)}: not known; a model or training with it has another cost")
        if isinstance(lora := given.get("lora"), dict) and lora.get("enabled", True):
            flags.settings["peft"] = {"_target_": data["lora"], **lora}
        return cls(flags.settings, {name: value for name, value in flags.unread.items() if name in changed})

    @property
    def notes(self) -> list[str]:
        """A line for variables that are read as empty, and one for arguments that are not read."""
        unset = [f"no line of the script sets {' '.join(self.unset)}: read as empty"] if self.unset else []
        return unset + ([f"not read: {' '.join(self.unread)}"] if self.unread else [])

    def changes(self, other: Flags) -> list[str]:
        """Flags of others that differ from these, as a shell reads them."""
        these, theirs = ({**side.unread, **side.settings} for side in (self, other))
        names = [name for name in {**these, **theirs} if these.get(name) != theirs.get(name)]
        return [
            f"no {name if name in self.unread else flag(name)}" if name not in theirs
            else f"{name} {theirs[name]}".strip() if name in other.unread else flag_text(name, theirs[name])
            for name in names
        ]  # fmt: skip

    @staticmethod
    def value(setting: str, name: str, values: Sequence[str]) -> Any:
        """The value of a flag."""
        if setting in ON:
            return True
        if setting in LISTS:
            return list(values)
        if not values:
            raise DseError(f"{name}: expected a value")
        unset = f" ({_UNSET})" if "$" in values[0] else ""
        if setting in WORDS and not unset:
            return values[0]
        try:
            number = plain_number(values[0])
        except ValueError:
            kind = "word" if setting in WORDS else "number"
            raise DseError(f"{name} {values[0]}: expected a {kind}{unset}") from None
        whole = setting in NUMBERS
        if not 0 <= number < 2**53 or (whole and not number.is_integer()):
            raise DseError(f"{name} {values[0]}: expected {'a whole number' if whole else 'a number'} from 0")
        return int(number) if whole else number


def _pairs(words: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Flags of today with their values; words before the first flag belong to the flag ""."""
    pairs: list[tuple[str, list[str]]] = [("", [])]
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("--") else ("", "", "")
        if not name:
            pairs[-1][1].append(word)
            continue
        for argument in DATA["earlier"].get(name, name).split():
            pairs += [(argument, [])] if argument.startswith("--") else []
            pairs[-1][1].extend([] if argument.startswith("--") else [argument])
        pairs[-1][1].extend([value] if equals else [])
    return iter(pairs)


def _values(name: str, text: str) -> list[str]:
    """Words of a value as logs and recipes have it: lists of Python, members of enumerations, formats of PyTorch."""
    if text.startswith("[") and name != "moe_layer_freq":
        return re.findall(r"[^][',\s]+", text)
    word = re.sub(r"^(torch|AttnBackend)\.", "", text)
    return [{"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}.get(word, word)]


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
    script, notes = followed(path, answers)
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
        if program in HYBRID_PROGRAMS and not any(
            re.match("--hybrid-(layer|override)-pattern", word) for word in flags
        ):
            raise OtherTraining(f"{program}: expected the order of its layers, --hybrid-layer-pattern")
        if program not in ("pretrain_gpt.py", *HYBRID_PROGRAMS, ""):
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


def followed(path: Path, answers: Mapping[int, int] | None) -> tuple[Script, list[str]]:
    """A script with the variables and arguments that its caller gives, and notes on it."""
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
    text, notes = launch_text(file), list[str]()
    if _RECIPE.search(text):
        text = command_of(parse(text, file.name).data["MODEL_ARGS"])
        notes.append(f"MODEL_ARGS names no program: read as {text.split()[0]}")
    return Script.read(text, file.absolute(), variables, words[1:] or None, answers), notes


def command_of(arguments: Any) -> str:
    """The command for MODEL_ARGS of a YAML file, the recipes in Megatron-LM's repository (_run_training.sh).

    >>> command_of({"--swiglu": True, "--num-experts": 1, "--blend": "[a b]"})
    'pretrain_gpt.py --swiglu --num-experts 1 --blend a b'
    """
    flags = {str(n): v for n, v in arguments.items() if v is not False} if isinstance(arguments, dict) else {}
    words = [HYBRID_PROGRAMS[0] if any(name.startswith("--hybrid") for name in flags) else "pretrain_gpt.py"]
    for name, value in flags.items():
        values = _values(name[2:].replace("-", "_"), str(value).strip("'\""))
        words += [name] if value is True or value is None else [name, *values]
    return " ".join(f'"{word}"' if "$" in word else shlex.quote(word) for word in words)  # with the caller's variables


def not_there(missing: Sequence[str]) -> str:
    """Words about a file that a script reads and that is not there; "" if there is none."""
    return f"; it reads {missing[0]}, which is not there" if missing else ""


def _flag_count(words: Iterable[str]) -> int:
    return sum(word.startswith("--") for word in words)


def _is_program(words: Sequence[str], at: int) -> bool:
    """True if a word of a command names a Python program, or a module that is not a launcher."""
    word = words[at]
    if at and words[at - 1] == "-m":
        return not word.startswith(("torch.", "deepspeed"))
    return word.endswith(".py") and not word.startswith("-") and not _LAUNCHERS.search(word)


def refuse(program: str, flags: Sequence[str], plan: str = "") -> None:
    """Refuse a program that trains another kind of model, or with another engine, which `plan` plans.

    Raises `DseError` that describes the program.
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


#: Most branches that depend on the machine. [-]
MOST_BRANCHES: Final = 32
_LOG: Final = "; `bash -x` prints a script that dse reads, and the log of a run is exact: dse evaluate run.log"


#: Programs that train hybrid models; the first is of today.
HYBRID_PROGRAMS: Final = ("pretrain_hybrid.py", "pretrain_mamba.py")
#: The script, with words between "@" where a design fills in lines.
TEMPLATE: Final = Path(__file__).with_name("script.sh")


def refuse_bridge_alone(launch: Launch) -> None:
    """Refuse a design that Megatron-Bridge can run and Megatron-LM cannot, unless it is written anyway."""
    model, rank = launch.model, launch["lora_rank"]
    if rank and not launch.anyway:
        reason = f"lora_rank={rank:g}: Megatron-LM has no adapters"
        raise NotExpressible(f"{reason}; take --format nemo, or --anyway to train all weights")
    if (name := provider(model)) and not launch.anyway:
        raise NotExpressible(f"model {model.name}: Megatron-Bridge alone has it ({name}); take --format nemo")


def script(launch: Launch) -> tuple[str, list[str]]:
    """A shell script that starts a design, and the settings that it cannot state.

    Raises `NotExpressible` if Megatron-LM cannot run the design.
    """
    refuse_bridge_alone(launch)
    settings, lost = settings_of(launch)
    settings = {name: value for name, value in settings.items() if name not in KEYS["provider_settings"]}
    for column, value, words in (("cross_entropy", "te", "cross_entropy"), ("attention", "fused_fp8", "fp8_dot")):
        if launch[column] == value:  # which Megatron-LM refuses, or has no argument for (arguments.py)
            lost = [*lost, f"{column}={value}"]
            settings = {name: stated for name, stated in settings.items() if not name.startswith(words)}
    nodes, gpus = launch.nodes
    packages = [of[settings[name]] for name, of in KEYS["packages"].items() if settings.get(name) in of]
    optional = {name: settings.pop(name) for name in KEYS["optional"] if name in settings}
    arrays = groups(settings | ({"ckpt_format": "fsdp_dtensor"} if "use_megatron_fsdp" in settings else {}))
    filled = {
        "COMMENTS": [
            f"# {launch.heading} on {launch.world_size:,} chips, for {MEGATRON.release}.",
            *(f"# Install {package}." for package in packages),
            *(f"# Megatron-LM has no flag for: {text}" for text in lost),
        ],
        "VALUES": [f": ${{{name}:?{text}}}" for name, text in PLACEHOLDERS.items()],
        "ENVIRONMENT": [f"export {variable}" for variable in variables(launch, settings)],
        "ARRAYS": [
            line
            for title, value in arrays.items()
            for line in (f"{title}_ARGS=(", *(f"  {flag_text(*flag)}" for flag in value.items()), ")")
        ],
        "OPTIONAL": [
            KEYS["optional_lines"].format(python=KEYS["optional"][name][value], flag=flag_text(name, value))
            for name, value in optional.items()
        ],
        "GROUPS": [" ".join(f'"${{{title}_ARGS[@]}}"' for title in (*arrays, "OTHER"))],
        "PROGRAM": [HYBRID_PROGRAMS[0] if "hybrid_layer_pattern" in settings else "pretrain_gpt.py"],
        "NODES": [f"{nodes}"],
        "GPUS": [f"{gpus}"],
        "TABLE": [f"{settings['padded_vocab_size']:,}"],
    }
    parts = re.split("@([A-Z]+)@", TEMPLATE.read_text())
    parts[1::2] = ["\n".join(filled[name]) for name in parts[1::2]]
    return "".join(parts), lost


def groups(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by subject, for readers."""
    arrays: dict[str, dict[str, Any]] = {"MODEL": {}, "PARALLEL": {}, "TRAINING": {}}
    for name, value in settings.items():
        title = next((title for title, words in DATA["groups"].items() if re.search(words, name)), "MODEL")
        arrays[title][name] = value
    return arrays


def read_script(path: Path, chips: int | None = None) -> tuple[Launch, list[str]]:
    """The run that a script of Megatron-LM starts, or that a log of one describes, and notes on unread settings.

    `path` is a script, its call (`TP=8 train.sh 7b`), flags alone, or a log with the arguments of the run. `chips`
    defaults to the GPUs in the log, of the launcher or of Slurm's lines; 0 are those of one replica. [-] Raises
    `DseError` if the file is none of these, or does not determine a run.
    """
    hint = "" if script_file(path).suffix in _YAML else _LOG
    try:
        logged = Flags.of_file(path)
        started = TrainingCommand([], logged.settings.get("world_size"), None, [], [], []) if logged else None
        command = started or training_command(path)
        flags = logged or Flags.of(command.flags)
        if "num_layers" not in flags.settings and command.missing:
            raise DseError(f"it does not say num_layers{not_there(command.missing)}")
        if command.plan and not flags.settings.keys() & {*NEEDED, "use_checkpoint_args"}:
            raise OtherTraining(f"no flag of a Megatron-LM model, such as --num-layers; {command.plan} needs no script")
        hint = ""
        if (world_size := command.chips if chips is None else chips) is None:
            raise DseError("does not decide the number of GPUs; name it with --gpus N")
        name = re.sub(r"\W+", "_", script_file(path).stem).strip("_") or "launch"
        launch, notes = launch_of(flags.settings, world_size=world_size, node_size=command.node_size or 8, name=name)
        notes = [*branch_notes(path, command, flags), *notes]
    except DseError as error:
        hint = "" if isinstance(error, OtherTraining) else hint
        raise DseError(f"{path}: {_line(_with_line(path, str(error)))}{hint}") from None
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
