"""Launch files of any framework: a model, one design, and the chips of the run; written and read by adapters.

A `Launch` has a value for each column of the design. A form, such as megatron, has a writer and a reader in its
adapter. `launch_space` turns a launch into a search space of one design, which every command takes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.errors import DseError, printable
from costmodel.formats.framework_file import Framework, launching, load_framework
from costmodel.formats.input_files import dump, file_bytes, plain_text
from costmodel.formats.quantity import readable
from costmodel.steps.pipeline.stages import chunk_sizes
from costmodel.steps.transformer import transformer_footprint
from costmodel.training.design import EVEN, DesignPoints, PipelineLayout
from costmodel.training.design_table import Domain
from costmodel.training.model import ModelShape
from costmodel.training.run import TransformerRun
from dse.output import Artefact
from dse.registry import launch_forms, load
from dse.spaces.sections.frameworks import broken_rules, conditions_met, refused_model, shown, without_limits_of_models
from dse.spaces.space import Space

Value = str | int | float | bool

#: A name that users fill in -> its meaning.
PLACEHOLDERS: Final = {
    "DATA_PATH": "prefix of the tokenized data",
    "TOKENIZER_MODEL": "tokenizer: a file or a Hugging Face name",
    "CHECKPOINT_DIR": "where checkpoints go",
    "LEARNING_RATE": "peak learning rate, such as 1.5e-4",
    "TRAIN_STEPS": "optimizer steps of the run",
}
#: Most that a launch file may hold. [characters]
LONGEST: Final = 1_000_000
#: Chips of a host at most; and of one host of a rack that has more, as of GB200 NVL72. [-]
MOST_OF_A_HOST: Final = 16
CHIPS_OF_A_TRAY: Final = 4
#: Columns that a launch file may omit: `dp` and the rest follow from the chips and the batch.
COUNTED: Final = ("dp", "gradient_accumulation_steps")
#: Column that no launch file states: it depends on the training of the router.
UNSTATED: Final = "imbalance"


class NotExpressible(DseError):
    """A design that a framework cannot run."""


@dataclass(frozen=True)
class Launch:
    """A run of a framework: a model, and a value for each column of its design."""

    model: ModelShape
    design: Mapping[str, Value]  #: all columns of the model's designs, words and switches as text and bool
    node_size: int  #: chips of a node [-]
    framework: str = ""  #: whose rules evaluate the design, a name or a path; "": none
    compute_capability: float = 0.0  #: of its chips; 0: unknown, or no chips of CUDA [-]
    devices: int = 1  #: that JAX has for each chip [-]
    anyway: bool = False  #: whether a model is written that its framework cannot train as it is
    #: Reason that the framework of its form cannot run it, "" if it can; None: not yet examined.
    refused: str | None = field(default=None, compare=False, repr=False)
    #: Settings of the file that was read, by their names in Megatron Core; empty in other frameworks.
    settings: Mapping[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of_run(cls, run: TransformerRun, framework: str = "") -> list[Launch]:
        """Launches of the designs of a run."""
        known, machine = DesignPoints().columns() | run.design.columns(), run.system
        domains = {name: domain for name, domain in DesignPoints.domains(run.model.blocks).items() if name in known}
        chip = machine.chip
        columns = [machine.network[0].size, chip.compute_capability, chip.jax_devices, *(known[n] for n in domains)]
        rows = np.stack(np.broadcast_arrays(np.zeros(run.num_points), *columns)[1:], axis=1).tolist()
        designs = [dict(zip(domains, map(decoded, domains.values(), codes), strict=True)) for _, _, _, *codes in rows]
        pairs = zip(designs, rows, strict=True)
        return [cls(run.model, design, int(row[0]), framework, row[1], int(row[2])) for design, row in pairs]

    @classmethod
    def of(cls, model: ModelShape, design: Mapping[str, Value], node_size: int) -> Launch:
        """A launch from the columns that differ from their defaults."""
        domains = DesignPoints.domains(model.blocks)
        defaults = DesignPoints().columns()
        usual = {name: decoded(domains[name], defaults[name].item()) for name in domains if name in defaults}
        return cls(model, {**usual, **design}, node_size)

    @property
    def heading(self) -> str:
        """The name of the model in one line of a comment."""
        return printable(" ".join((self.model.title or self.model.name).split()))

    def __getitem__(self, column: str) -> Any:
        """The value of a column; of one that other models alone have the default."""
        if column in self.design:
            return self.design[column]
        return decoded(DesignPoints.declared()[column], DesignPoints().columns()[column].item())

    @cached_property
    def points(self) -> DesignPoints:
        """The design as a table of one row."""
        return DesignPoints.of(blocks=self.model.blocks, **{name: [value] for name, value in self.design.items()})

    @property
    def zero_stage(self) -> int:
        """Stage of sharded data parallelism."""
        return int(self["zero"])

    @property
    def sequence_parallel(self) -> bool:
        """True if tensor parallelism splits sequences too."""
        return bool(self["sharding"] == "megatron_sp")

    @property
    def world_size(self) -> int:
        """Number of chips that a launch takes. [-]"""
        return int(self.points.world_size.item())

    @property
    def global_batch_size(self) -> int:
        """Sequences of an optimizer step."""
        return int(self.points.global_batch_size.item())

    @property
    def nodes(self) -> tuple[int, int]:
        """Nodes of the run, and chips of each: hosts, where a node is a rack of them."""
        most = self.node_size if self.node_size <= MOST_OF_A_HOST else CHIPS_OF_A_TRAY
        gpus = next(size for size in range(min(most, self.world_size), 0, -1) if self.world_size % size == 0)
        return self.world_size // gpus, gpus

    @property
    def torchrun(self) -> str:
        """The command that starts the processes of a node; several nodes meet on the first."""
        meeting = " --rdzv-backend c10d --rdzv-endpoint FIRST_NODE:29500" if self.nodes[0] > 1 else ""
        return "torchrun --nnodes {} --nproc-per-node {}{}".format(*self.nodes, meeting)

    def lost(self, conditions: Mapping[str, str]) -> list[str]:
        """Columns whose values a form has no setting for, as `name=value`; `UNSTATED` where its framework has another.

        `conditions` of these values are by patterns of columns; a pattern with "*" leaves out values that are defaults.
        """
        said = load_framework(self.framework).said(self.model) if self.framework else {}
        rules = {UNSTATED: f"{UNSTATED} != {said.get(UNSTATED, 1)}"} if UNSTATED in self.design else {}
        for pattern, condition in conditions.items():
            names = [name for name in self.design if fnmatchcase(name, pattern)]
            rules |= {name: condition for name in names if "*" not in pattern or self.differs(name)}
        met = conditions_met(rules, self.model, self.points)
        return [f"{name}={shown(self[name])}" for name in met]

    def differs(self, column: str) -> bool:
        """True if a column differs from its default."""
        usual = DesignPoints().columns().get(column)
        return usual is not None and self[column] != decoded(DesignPoints.declared()[column], usual.item())

    def chunks(self) -> list[int]:
        """Layers of each chunk of the pipeline, in the order of the model. [-]"""
        return [int(size) for size in chunk_sizes(self.model.num_layers, self.points)[0][0]]


def decoded(domain: Domain, code: float) -> Value:
    """A value of a column as files write it."""
    if domain.words:
        return str(domain.words[int(code)])
    return bool(code) if domain.switch else int(code) if float(code).is_integer() else float(code)


def even_or_written(model: ModelShape, design: Mapping[str, Value], text: str) -> dict[str, Value]:
    """`pipeline_layout` and `vpp` of a written layout: "even" where chunks are as they are without it.

    That may be where embedding and loss count as layers.

    Raises `DseError` if the text is not a layout, or not of such a pipeline.
    """
    layout, pp = PipelineLayout.parse(text), max(int(design["pp"]), 1)
    vpp, rest = divmod(len(layout.layers), pp)
    if rest or sum(layout.layers) != model.num_layers:
        raise DseError(
            f"pipeline layout {text}: {len(layout.layers)} chunks of {sum(layout.layers):g} layers; expected "
            f"a multiple of {pp} chunks, and {model.num_layers:g} layers"
        )
    sizes, last = [int(size) for size in layout.layers], layout.mtp == len(layout.layers) - 1
    for counted in ({}, {"count_embedding": True, "count_loss": True}) if last else ():
        staged = {"schedule": design["schedule"]} if "schedule" in design else {}
        if Launch.of(model, {"pp": pp, "vpp": vpp, **staged, **counted}, 1).chunks() == sizes:
            return {"vpp": vpp, "pipeline_layout": EVEN, **counted}
    return {"vpp": vpp, "pipeline_layout": text}


def written_layout(launch: Launch) -> str:
    """The layout of a pipeline as Megatron-LM writes it: `Ett|tt|ttL`."""
    sizes, mtp = launch.chunks(), len(launch.chunks()) - 1
    if launch["pipeline_layout"] != EVEN:
        return str(launch["pipeline_layout"])
    chunks = ["t" * size if size < 3 else f"t*{size}" for size in sizes]
    chunks[mtp] += "m" * int(launch.model.mtp_layers)
    return "|".join(("E" * (chunk == 0)) + text + "L" * (chunk == mtp) for chunk, text in enumerate(chunks))


def model_data(model: ModelShape) -> dict[str, Any]:
    """A model as the content of a model file."""
    plain, apart = dict[str, Any](), ("layers", "features", "name", "numerics")
    for item in fields(model):
        value = getattr(model, item.name)
        if item.init and item.name not in apart and value is not None and value != item.default:
            plain[item.name] = int(value) if isinstance(value, float) and value.is_integer() else value
    kinds = {key: {"mixer": a or "none", "mlp": b or "none", **dict(sizes)} for key, (a, b, sizes) in model.layer_kinds}
    plain |= ({"layer_kinds": kinds} if kinds else {}) | ({"numerics": said} if (said := model.numerics.said()) else {})
    return {"schema": "model/v1", "name": model.name, "source": "flags of a launch file", **plain}


def launch_space(launch: Launch, system: str, name: str, changes: Mapping[str, str] | None = None) -> Space:
    """A search space of one design: that of a launch file, on a built-in system or one of a file.

    `changes` replace columns of the file, as `Space.pinned` takes them. Raises `DseError` if the system or the
    framework is unknown, or the design is not legal.
    """
    usual = Launch.of(launch.model, {}, 1).design
    said = load_framework(launch.framework).said(launch.model) if launch.framework else {}
    written = {
        column: value
        for column, value in launch.design.items()  # for which nothing else is left to the framework
        if value != usual.get(column) or (column in said and column != UNSTATED)
    }
    sizes = {column: [launch[column]] for column in ("tp", "pp", "vpp", "cp", "micro_batch_size", "precision")}
    others = {column: value for column, value in written.items() if column not in (*sizes, *COUNTED)}
    data = {
        "schema": "search_space/v1",
        "name": name,
        "description": f"{launch.model.title or launch.model.name} as {name} runs it",
        "model": model_data(launch.model),
        "system": system,
        **({"framework": launch.framework} if launch.framework else {}),
        "given": {"world_size": launch.world_size, "global_batch_size": launch.global_batch_size},
        "parameters": {**sizes, **{column: [value] for column, value in others.items()}},
        "derived": {
            "dp": "world_size / (tp * pp * cp)",
            "gradient_accumulation_steps": "global_batch_size / (dp * micro_batch_size)",
        },
        "constraints": {"fits_in_memory": "peak_memory <= dram_capacity"},
        "objectives": {"minimize": ["step_time", "peak_memory"]},
    }
    space = Space.from_text(dump(data))
    return space.pinned(changes, replace=True) if changes else space


def path_and_part(path: Path) -> tuple[Path, str]:
    """A launch file and the part of it that is asked for: ``configs.py:llama3_8b``; "" if it has one part."""
    name, python, part = str(path).rpartition(".py:")
    return (Path(f"{name}.py"), part) if python else (path, "")


def script_file(path: Path) -> Path:
    """The file of a launch: of ``configs.py:llama3_8b``, and of a script as it is called, too."""
    words = (Path(word) for word in (str(path_and_part(path)[0]), *str(path).split()))
    return next((candidate for candidate in words if candidate.is_file()), path)


def launch_text(path: Path) -> str:
    """Text of a launch file. Raises `DseError` if it cannot be read, is not text, or far longer than any."""
    data = file_bytes(path, LONGEST)
    if b"\0" in data:
        raise DseError(f"{path}: expected a launch file: text of at most {LONGEST:,} characters")
    try:
        return plain_text(data.decode())
    except UnicodeDecodeError:
        raise DseError(f"{path}: expected a launch file: text in UTF-8") from None


def refuse(launch: Launch, form: str) -> None:
    """Refuse a model or a design that the software of a form of launch files cannot run.

    Raises `NotExpressible` with an alternative that works.
    """
    [examined] = [launch] if launch.refused is not None else with_refusals([launch], form)
    if examined.refused:
        raise NotExpressible(examined.refused)


def with_refusals(launches: Sequence[Launch], form: str) -> list[Launch]:
    """Launches of one model with the reasons why the framework of a form cannot run them."""
    reasons, waiver = refusals(launches, launching(form)), "; --anyway writes it and lists the losses"
    forced = [replace(launch, anyway=True) for launch in launches]
    others = refusals(forced, launching(form)) if any(reasons) else reasons
    return [
        replace(launch, refused=why[0] + waiver * (not launch.anyway and not others_why) if why else "")
        for launch, why, others_why in zip(launches, reasons, others, strict=True)
    ]


def refusals(launches: Sequence[Launch], framework: Framework) -> list[list[str]]:
    """Reasons why a framework cannot run each of some launches of one model, with alternatives; none if it can."""
    model, framework = launches[0].model, without_limits_of_models(framework) if launches[0].anyway else framework
    if refused := refused_model(framework, model):
        return [[refused] for _ in launches]
    names = ("node_size", "compute_capability")
    known = {name: [float(getattr(launch, name)) for launch in launches] for name in names}
    machine = {name: np.array(values) for name, values in known.items() if all(values)}
    return broken_rules(framework, model, [launch.design for launch in launches], machine)


def with_line(message: str, text: str, names: Sequence[str] = ()) -> str:
    """A message about a setting, with the line of the launch file that states the setting first.

    `names` are spellings of the setting in the file; by default its name in the message.

    >>> with_line("tp_size 3: expected 1, 2 or 4", "# tp_size\\npp_size: 2\\ntp_size: 3")
    'line 3: tp_size 3: expected 1, 2 or 4'
    """
    first = re.match(r"(--[a-z][\w-]*|[a-z]+_\w+)", message)
    for name in names or ([first[0]] if first else []):
        if stated := re.search(rf"^(?:[^#\n]*[^\w#\n-])??{re.escape(name)}(?![\w-])", text, re.MULTILINE):
            return f"line {text.count(chr(10), 0, stated.start()) + 1}: {message}"
    return message


def with_peaks(
    run: TransformerRun, point: int, launch: Launch, lost: Sequence[str], instead: Mapping[str, str]
) -> tuple[list[str], bool, bool]:
    """Losses with the peak of memory of values `instead`; whether it differs; whether one design of a run fits."""
    domains = DesignPoints.domains(run.model.blocks)
    words = {f"{name}={launch[name]}": (name, word) for name, word in instead.items()}
    changed = [words[text] for text in lost if text in words]
    if not changed:
        return [*lost], False, True
    run = run.take(np.array([point]))  # whose machine may be another than that of other designs
    codes = {name: np.array([float([*domains[name].words].index(word))]) for name, word in changed}
    before, after = (transformer_footprint(run.of(run.design.with_columns(new))) for new in ({}, codes))
    if before is None or after is None:
        return [*lost], False, True
    old, new = (readable(table["peak_memory"].item(), "B") for table in (before, after))
    peak = f"{new}, not {old}" if new != old else f"the peak stays {old}"
    named = {text: f"{text} ({name}={word}: {peak})" for text, (name, word) in words.items()}
    texts = [named.get(text, text) for text in lost]
    return texts, new != old, bool((after["peak_memory"] <= run.system.dram.capacity).all())


Writer = Callable[["Launch"], tuple[str, list[str]]]
Reader = Callable[[Path, int | None], tuple["Launch", list[str]]]

#: The comment with the framework whose rules evaluated a design: its name or path; "none" without one.
_FRAMEWORK: Final = re.compile(r"^# dse framework: (.*\S)$", re.MULTILINE)


def launch_files(run: TransformerRun, form: str, framework: str = "", *,
                 anyway: bool = False) -> Iterator[Artefact]:  # fmt: skip
    """Designs as launch files, one of `launch_forms()`; `framework` is the one that evaluates them, "" none.

    With `anyway`, a model is written that the framework cannot train; notes list the losses.
    """
    write: Writer = load(launch_forms()[form].write)
    usual = load_framework(run.system.framework) if run.system.framework else launching(form)
    if form not in usual.launch:
        other = f"use --format {usual.launch[0]}" if usual.launch else "dse writes no launch files for it"
        text = f"system {run.system.name} trains with {usual.title}, not {launching(form).title}; {other}"
        yield from [Artefact(None, (text,))] * run.num_points
        return
    launches = [replace(launch, anyway=anyway) for launch in Launch.of_run(run, framework)]
    for point, launch in enumerate(with_refusals(launches, form)):
        if launch["reference_model"] and not anyway:
            reason = f"reference_model=true: {launching(form).title} has no preference optimization; NeMo RL and TRL do"
            yield Artefact(None, (f"{reason}; --anyway writes the training of the model without one",))
            continue
        try:
            refuse(launch, form)
            text, lost = write(launch)
        except NotExpressible as error:
            yield Artefact(None, (str(error),))
            continue
        lost, differs, fits = with_peaks(run, point, launch, lost, launch_forms()[form].instead)
        if not fits and not anyway:
            other = next((f"; take --format {other}" for other in usual.launch if other != form), "")
            yield Artefact(None, (f"no setting for {'; '.join(lost)}: more than a chip has{other}",))
            continue
        if launch["pp"] == 1 and launch.differs("schedule"):  # all micro-batches at once, without stages
            lost = [*lost, f"schedule={launch['schedule']}"]
        length = launch.model.document_len
        stated = {f"document_len={length:g}": length, "reference_model=true": launch["reference_model"]}
        lost = [*lost, *(text for text, value in stated.items() if value)]
        notes = (f"{form} has no setting for {'; '.join(lost)}",) if lost else ()
        evaluated_by = rf"\g<0>\n# dse framework: {framework or 'none'}"  # below the first line of its comment
        yield Artefact(re.sub(r"^# .*$", evaluated_by, text, count=1, flags=re.M).encode(), notes, differs)


def read_launch(path: Path, form: str, chips: int | None = None,
                framework: str = "") -> tuple[Launch, list[str]]:  # fmt: skip
    """The launch of a file, and notes on settings that are not read; `form` is one of `launch_forms()`.

    Its framework is `framework`; else the one that the file says; else the form's own.

    Raises `DseError` if it is no such file, or says too little.
    """
    read: Reader = load(launch_forms()[form].read)
    launch, notes = read(path, chips)
    file = script_file(path)
    said = _FRAMEWORK.search(launch_text(file)) if file.is_file() else None
    named = "" if said and said[1] == "none" else said[1] if said else launching(form).name
    return replace(launch, framework=framework or named), notes
