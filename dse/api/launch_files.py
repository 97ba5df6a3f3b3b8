"""Launch scripts and configurations as designs: read, compared, and held against a measured step.

`launch_design` gives the design of one file. `compare_launches` attributes the difference between two files to flags:
one group of settings after the other goes from the first file's values to the second's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Final

from costmodel.columns import short_repr
from costmodel.errors import ArgumentText, DseError
from costmodel.formats.framework_file import load_framework
from costmodel.formats.quantity import readable
from costmodel.formats.system_file import load_system
from costmodel.machine import System
from dse.api.design_files import kind_of_design, title_of
from dse.api.designs import Pins
from dse.launches.launch import COUNTED, MOST_OF_A_HOST, Launch, launch_space, model_data, read_launch
from dse.output import Record
from dse.pricing.evaluation import evaluated_design
from dse.registry import launch_forms, load
from dse.reporting.answers import room_text
from dse.spaces.question import PlannedModel, Question
from dse.spaces.sections.frameworks import software_of_others
from dse.spaces.space import Space


def launch_design(
    file: str | Path, *, system: str | Path, form: str = "", gpus: int | None = None, framework: str = "",
    set: Pins = None, note: Callable[[str], None] = lambda text: None,
) -> Space:  # fmt: skip
    """A space of one design: the run of a launch file on a system, for `evaluate_design` and `explain`.

    Raises `DseError` if the file is not recognized, or the design is not legal.

    Parameters
    ----------
    file : str or Path
        Script or log of Megatron-LM, configuration of Megatron-Bridge, torchtitan or MaxText.
    system : str or Path
        Built-in system, or a file.
    form : str
        Kind of the file, such as "megatron"; by default by its content.
    gpus : int, optional
        GPUs of the run; by default those of the file. [-]
    framework : str
        Framework whose rules evaluate it; by default that of the file.
    set : mapping, optional
        Values that replace those of the file, such as ``{"tp": 4}``.
    note : callable
        Called with each line on a setting that is not read.
    """
    launch = _launch(file, form, gpus, framework, note)
    for text in _misfits(launch, load_system(system), set or {}):
        note(text)
    return launch_space(launch, str(system), launch.model.name, set)


def _misfits(launch: Launch, system: System, pins: Mapping[str, Any]) -> Iterator[str]:
    """A line on each part of a launch that a system does not have: its software, its nodes."""
    if launch.framework and (unusual := software_of_others(load_framework(launch.framework), system)):
        yield unusual
    node, gpus = system.network[0], launch.node_size  # 8 where the file does not say
    size, name = int(node.size.max()), f"{node.name}_size"
    if gpus not in (8, size) and size <= MOST_OF_A_HOST and launch.world_size > gpus and name not in pins:
        yield f"GPUs of a node: {gpus} in the file, {size} on {system.name}; --set {name}={gpus} is that of the file"


def _launch(file: str | Path, form: str, gpus: int | None, framework: str, note: Callable[[str], None]) -> Launch:
    """The run that a launch file of any framework starts."""
    kind = form or kind_of_design(str(file))
    if kind not in launch_forms():
        raise DseError(f"{file}: is {title_of(kind)}; expected a launch script or configuration")
    launch, notes = read_launch(Path(file), kind, gpus, framework)
    for text in notes:
        note(f"{file}: {text}")
    return launch


def question_of(question: Question, form: str, note: Callable[[str], None]) -> Question:
    """A question with the model of the launch file that it names; its batch and software where the question is silent.

    Raises `DseError` as `launch_design` does.
    """
    for chips in (None, 0):  # the file's, or those of one replica of its layout
        with suppress(DseError):
            launch = _launch(question.model, form, chips, "", note)
            break
    else:
        launch = _launch(question.model, form, question.chips, "", note)
    software = load_framework(launch.framework) if launch.framework else None
    fits = not (software and software_of_others(software, load_system(question.system)))
    of_file = {
        "seq_len": int(launch.model.seq_len),
        "sequences": 0 if question.batch_tokens else launch.global_batch_size,
        "precision": (launch["precision"],) if fits else (),
        "framework": launch.framework if fits else "",
        "lora": int(launch["lora_rank"]),
        "lora_targets": launch["lora_targets"] if launch["lora_rank"] else "",
        "dpo": bool(launch["reference_model"]),
        "offload": bool(software and any(launch[column] for column in software.offload)),
    }
    taken: dict[str, Any] = {name: value for name, value in of_file.items() if value and not getattr(question, name)}
    shown = {"precision": f" {launch['precision']}", "dpo": "", "offload": ""}
    words = [f"{{{name}}}{shown.get(name, f' {value}')}" for name, value in taken.items()]
    text = ", ".join(words).replace("{sequences}", "{global_batch_size}")
    note(ArgumentText(f"{question.model}: its layout is not read; taken from it: its model, {text}"))
    return replace(question, given=PlannedModel(launch.model.name, model_data(launch.model), launch.model), **taken)


@dataclass(frozen=True)
class ChangedSetting:
    """A changed setting, or several that are legal only together, and the effect after those above it."""

    changes: Mapping[str, tuple[Any, Any]]  #: setting -> its values before and after
    step_time_change: float  #: [s]
    peak_memory_change: float  #: [B]
    #: Flags of the scripts that decide them -> their values before and after, None without the flag.
    flags: Mapping[str, tuple[Any, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class LaunchPair:
    """Two launch files on a system, and the changed settings that make the difference."""

    __repr__ = short_repr

    files: tuple[str, str]
    spaces: tuple[Space, Space]
    records: tuple[Record, Record]
    parts: tuple[ChangedSetting, ...]

    @property
    def change(self) -> float:
        """Change of the step time from the first file to the second, as a share of the first. [-]"""
        one, other = (record["breakdown"]["step_time_s"] for record in self.records)
        return float(other / one - 1)

    def exceeded(self, max_memory: float | None = None, max_step_time: float | None = None) -> list[str]:
        """A line for each limit that the second design exceeds, its own memory too. [B], [s]"""
        space, record = self.spaces[1], self.records[1]
        wanted = {"peak_memory_bytes": (max_memory, "B"), "step_time_s": (max_step_time, "s")}
        lines = [
            f"{self.files[1]} needs {readable(value, unit)}, {readable(value - most, unit)} more than the limit "
            f"of {readable(most, unit)}"
            for key, (most, unit) in wanted.items()
            if most is not None and (value := record["breakdown"][key]) > most
        ]
        misfit = [] if record["feasible"] else [f"{self.files[1]} does not fit: {room_text(space, record)}"]
        return misfit + lines

    def to_json(self) -> dict[str, Any]:
        """Both designs, the change, and its parts."""
        keys = ("feasible", "params", "breakdown", "margins", "step_time_low_s", "step_time_high_s")
        designs = [{key: record[key] for key in keys if key in record} for record in self.records]
        parts = [
            {
                "changes": {name: {"from": old, "to": new} for name, (old, new) in part.changes.items()},
                "flags": {name: {"from": old, "to": new} for name, (old, new) in part.flags.items()},
                "step_time_change_s": part.step_time_change,
                "peak_memory_change_bytes": part.peak_memory_change,
            }
            for part in self.parts
        ]
        both = [{"file": file, **design} for file, design in zip(self.files, designs, strict=True)]
        return {"designs": both, "step_time_change": self.change, "parts": parts}


def compare_launches(
    one: str | Path, other: str | Path, *, system: str | Path, gpus: int | None = None, framework: str = "",
    note: Callable[[str], None] = lambda text: None,
) -> LaunchPair:  # fmt: skip
    """Compare two launch files on a system, and attribute the difference to the changed settings.

    Raises `DseError` if a file is not recognized, or its design is not legal.

    Parameters
    ----------
    one, other : str or Path
        Launch files, as for `launch_design`.
    system, gpus, framework, note
        As for `launch_design`, of both files.
    """
    first, last = (_launch(file, "", gpus, framework, note) for file in (one, other))
    changes = _changes(first, last)

    def evaluated(names: frozenset[str]) -> Record | None:
        try:
            launch = _mixed(first, last, names)
            space = launch_space(launch, str(system), "mixed")
        except (DseError, ArithmeticError):
            return None
        return evaluated_design(space, space.completed({}))

    spaces = [launch_space(launch, str(system), launch.model.name) for launch in (first, last)]
    records = [evaluated_design(space, space.completed({})) for space in spaces]
    forms = [launch_forms()[kind_of_design(str(file))] for file in (one, other)]
    flags, parts = _flags(first, last, forms[0].rebuilt), []
    stated = next((load(form.stated) for form in forms if form.stated), None)
    for part in _attributed(records[0], records[1], changes, flags, evaluated):
        flags_of_part = [name for name, columns in flags.items() if columns & part.changes.keys()]
        if stated:
            values = [(stated(name, first.settings), stated(name, last.settings)[1]) for name in flags_of_part]
        else:  # two configurations, without a command line
            values = [((name, first.settings.get(name)), last.settings.get(name)) for name in flags_of_part]
        parts.append(replace(part, flags={name: (old, new) for (name, old), new in values}))
    return LaunchPair((str(one), str(other)), (spaces[0], spaces[1]), (records[0], records[1]), tuple(parts))


def _attributed(
    first: Record, last: Record, changes: Mapping[str, tuple[Any, Any]],
    flags: Mapping[str, frozenset[str]], evaluated: Callable[[frozenset[str]], Record | None],
) -> Iterator[ChangedSetting]:  # fmt: skip
    """Parts of the difference of two records: in each round the setting with the largest effect is changed.

    Settings that one flag decides, or that are legal only together, such as tp with pp, are changed together.
    The parts add up.
    """
    done, here = frozenset[str](), first
    groups = _groups(changes, flags)
    while left := [group for group in groups if not group <= done]:
        tried: dict[frozenset[str], Record] = {}
        for size in range(1, min(MOST_TOGETHER, len(left) - 1) + 1):
            together = [frozenset[str]().union(*combination) for combination in combinations(left, size)]
            if tried := {group: record for group in together if (record := evaluated(done | group)) is not None}:
                break
        tried = tried or {frozenset(changes) - done: last}
        names = max(tried, key=lambda group: abs(_totals_of(tried[group])[0] - _totals_of(here)[0]))
        parts = {name: pair for name, pair in changes.items() if name in names}
        (time, memory), (later_time, later_memory) = _totals_of(here), _totals_of(tried[names])
        yield ChangedSetting(parts, later_time - time, later_memory - memory)
        done, here = done | names, tried[names]


def _groups(names: Iterable[str], flags: Mapping[str, frozenset[str]]) -> list[frozenset[str]]:
    """Names of settings, those together that one flag decides."""
    groups = [frozenset([name]) for name in names]
    for columns in flags.values():
        shared = [group for group in groups if group & columns]
        groups = [group for group in groups if group not in shared]
        groups += [frozenset[str]().union(*shared)] if shared else []
    return groups


def _flags(first: Launch, last: Launch, rebuilt: str) -> dict[str, frozenset[str]]:
    """Settings of two scripts of Megatron-LM that differ -> names of `_changes` that each decides alone."""
    one, other = first.settings, last.settings
    flags = {}
    for name in {**one, **other} if one and other and rebuilt else ():
        for base, text in ((first, last), (last, first)):
            if one.get(name) == other.get(name):
                break
            settings = {**base.settings, name: text.settings.get(name)}
            known = {key: value for key, value in settings.items() if value is not None}
            try:
                tried, _ = load(rebuilt)(known, world_size=base.world_size, node_size=8, name=base.model.name)
            except DseError:  # legal only with other changes
                continue
            if columns := _changes(base, replace(tried, framework=base.framework)):
                flags[name] = frozenset(columns)
                break
    return flags


#: Most settings that are changed together before all that are left are one part. [-]
MOST_TOGETHER: Final = 2


def _totals_of(record: Record) -> tuple[float, float]:
    """Step time [s] and peak memory [B] of a record."""
    return record["breakdown"]["step_time_s"], record["breakdown"]["peak_memory_bytes"]


def _totals(launch: Launch) -> dict[str, Any]:
    """Settings of a run other than the columns of its design."""
    model = replace(launch.model, seq_len=1.0, name="", title="")
    return {
        "GPUs": launch.world_size,
        "global_batch_size": launch.global_batch_size,
        "seq_len": int(launch.model.seq_len),
        "framework": launch.framework,
        "model": model,
    }


def _changes(first: Launch, last: Launch) -> dict[str, tuple[Any, Any]]:
    """Settings that differ: setting -> its values in both."""
    one, other = _totals(first), _totals(last)
    pairs = {name: (one[name], other[name]) for name in one if one[name] != other[name]}
    if "model" in pairs:
        pairs["model"] = first.model.name, last.model.name
    columns = [name for name in {**first.design, **last.design} if name not in COUNTED]
    return pairs | {name: (first[name], last[name]) for name in columns if first[name] != last[name]}


def _mixed(first: Launch, last: Launch, names: frozenset[str]) -> Launch:
    """The first run with some settings of the last; `ArithmeticError` where ranks or batch do not divide."""
    of = {name: last if name in names else first for name in (*_totals(first), *last.design)}
    model = replace(of["model"].model, seq_len=of["seq_len"].model.seq_len)
    design = {name: of.get(name, first)[name] for name in of["model"].design}
    replicas, rest = divmod(of["GPUs"].world_size, int(design["tp"] * design["pp"] * design["cp"]))
    steps, left = divmod(of["global_batch_size"].global_batch_size, max(replicas, 1) * int(design["micro_batch_size"]))
    if rest or left or not replicas or not steps:
        raise ArithmeticError("ranks or sequences do not divide")
    design |= {"dp": replicas, "gradient_accumulation_steps": steps}
    return replace(of["GPUs"], model=model, design=design, framework=of["framework"].framework)
