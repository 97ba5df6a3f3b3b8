"""The space of a question: a model, N chips of a system, and every legal layout.

The open parameters and their ranges follow from model and machine: tensor parallelism within a node, stages of whole
layers where they divide, context parallelism for long sequences, and the needs of experts.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from costmodel.columns import divisors
from costmodel.errors import ArgumentText, DseError, ParameterError, suggestion
from costmodel.formats import shipped
from costmodel.formats.framework_file import USUAL_FRAMEWORK, Framework, load_framework
from costmodel.formats.input_files import data_beside, dump, parse, read_text
from costmodel.formats.model_file import load_model
from costmodel.formats.quantity import plain_number, quantity, readable
from costmodel.formats.system_file import load_system
from costmodel.machine import System
from costmodel.training.blocks import MODULES, OFFLOAD_MODULES
from costmodel.training.design import DesignPoints
from costmodel.training.dimensions import BALANCING
from costmodel.training.model import ModelShape
from costmodel.training.precision import FORMATS
from dse.predictions import peak_spread
from dse.registry import model_importer
from dse.spaces.sections.frameworks import refused_model, software_of_others
from dse.spaces.sections.training_run import BY_EXPECTED, RENTAL
from dse.spaces.space import Space

#: Default tokens of a step: for models below, and from, LARGE_MODEL parameters.
SMALL_BATCH_TOKENS, LARGE_BATCH_TOKENS, LARGE_MODEL = 2**22, 2**24, 1e11
#: Tokens of a step of adapters: recipes of Megatron-Bridge have 128 sequences of 2,048.
ADAPTER_BATCH_TOKENS: Final = 2**18
#: The framework of quantized frozen weights: bitsandbytes keeps them with FSDP, Megatron-Bridge and torchtitan do not.
QUANTIZED_FRAMEWORK: Final = "pytorch_fsdp"
#: Most ranks of tensor parallelism: those of a usual node, or of larger ones as far as it pays.
USUAL_NODE, MOST_TP = 8, 16
MOST_PP, MOST_VPP, MOST_EP = 64, 12, 64
#: Tokens from which on sequences are shared out, least tokens of a rank's part, and most of a micro-batch.
LONG_SEQUENCE, LEAST_PART, MOST_IN_MICRO_BATCH = 16384, 4096, 32768
#: Largest distance between a number of chips without a legal layout and the suggested one.
MOST_AWAY: Final = 4096
#: Models of so few experts split each of them, too.
FEW_EXPERTS: Final = 16
#: Compute capability from which on tensor cores multiply bf16 (NVIDIA, CUDA C++ Programming Guide).
BF16_CAPABILITY: Final = 8
#: Pinned name -> the field of a question that an option sets.
PINNED: Final = {"world_size": "chips", "global_batch_size": "sequences", "seq_len": "seq_len", "lora_rank": "lora"}
#: Master weight and two moments of a parameter on a host, in fp32 (Megatron-LM, hybrid_optimizer.py). [B]
STATE_BYTES: Final = 12
#: Switches of modules whose inputs hosts may hold.
OFFLOADED: Final = {module.column for module in OFFLOAD_MODULES}
#: Rule of a plan -> its text, and the parameters that it needs.
RULES: Final[Mapping[str, Mapping[str, Any]]] = data_beside(__file__)


class NothingFits(ParameterError):
    """No layout of a question is legal, or none fits."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """The question of the best layout of a model on N chips."""

    model: str  #: name of a built-in model, or path of a model file or of a Hugging Face configuration
    given: PlannedModel | None = None  #: the model of a launch file
    system: str
    chips: int
    seq_len: int | None = None  #: None: the model's [tokens]
    sequences: int | None = None  #: of a step; None: as `batch_tokens` says
    batch_tokens: float | None = None  #: approximate tokens of a step; None: by the size of the model
    precision: Sequence[str] = ()  #: formats to choose from; () is bf16, or fp16 on chips without it
    framework: str = ""  #: "": the system's usual one, or `USUAL_FRAMEWORK`
    imbalance: float | None = None  #: tokens of the fullest rank of experts over the mean; None: the framework's
    headroom: str | None = None  #: memory of a chip that stays free, such as "4 GB" or "5 %"; None: by its peaks
    optimistic: bool = False  #: whether to rank by predicted step times in place of expected ones
    any_software: bool = False  #: whether layouts count that the framework cannot run
    tokens: float | None = None  #: of the whole run
    examples: float | None = None  #: of the whole run, in place of `tokens`: sequences, or pairs of them with `dpo`
    gpu_hour_price: float | None = None  #: rent of a GPU for an hour, with `tokens`; None: owned [$]
    max_days: float | None = None  #: that the whole run may take
    pins: Mapping[str, Any] = field(default_factory=dict)  #: values of the layout that are fixed
    lora: int = 0  #: rank of adapters of frozen weights; 0: all weights train [-]
    lora_targets: str = ""  #: a word of `LORA_TARGETS`; "": all linear layers
    quantized_base: str = ""  #: a word of `QUANTIZED_BASES`; "": 16 bits
    offload: bool = False  #: whether hosts may hold optimizer states and activations
    dpo: bool = False  #: whether a frozen reference model runs forward too
    document_len: int = 0  #: of the document of a token in packed sequences; 0: each sequence is one [tokens]


@dataclass(frozen=True)
class PlannedModel:
    """The model of a question."""

    name: str
    written: str | dict[str, Any]  #: as a space has it
    shape: ModelShape
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Planned:
    """The space of a question, and the defaults that it assumes."""

    data: dict[str, Any]  #: as its file has it
    space: Space
    model: PlannedModel
    framework: Framework
    runnable: bool  #: whether layouts are restricted to those that the framework can run
    assumed: tuple[ArgumentText, ...]  #: arguments that were left out, with their values


def planned_model(word: str, seq_len: int | None = None) -> PlannedModel:
    """The model of a name: a built-in one, a model file, or a Hugging Face configuration.

    Raises `DseError` for another file, or a model other than a transformer.
    """
    if import_model := model_importer(Path(word)):
        imported = import_model(Path(word), seq_len=seq_len)
        return PlannedModel(
            imported.model.name, {"name": imported.model.name, **imported.fields}, imported.model, imported.notes
        )
    shape = load_model(word)
    if not isinstance(shape, ModelShape):
        raise DseError(f"{word}: not a transformer; dse plans transformers")
    if (known := shipped.current_name(word, "models")) in shipped.names("models") and not Path(word).exists():
        return PlannedModel(shape.name, known, shape)
    data = parse(read_text(Path(word)), word).data
    return PlannedModel(shape.name, {"name": shape.name, **data}, shape)


def planned_space(question: Question) -> Planned:
    """The space of a question; one without a legal design is refused.

    Raises `DseError` for an unknown model, system or framework, or no legal layout, with a number of chips to take.
    """
    question = with_options(question)
    model = question.given or planned_model(question.model, question.seq_len)
    system = load_system(question.system)
    plan = _Layouts(question, model, system)
    lines = filter(None, (software_of_others(plan.framework, system), plan.precisions()[1], plan.host_memory))
    model = replace(model, notes=(*model.notes, *lines))
    if not question.any_software and (broken := refused_model(plan.framework, model.shape)):
        if question.framework:
            raise ParameterError(f"{broken}; name another {{framework}}, or leave it out to plan for any software")
        speed = f"at the speed of {plan.framework.title}"
        notes = (*model.notes, f"{broken}; layouts are what any software could run, {speed}")
        model, question = replace(model, notes=notes), replace(question, any_software=True)
        plan = _Layouts(question, model, system)
    data = plan.data(question.chips)
    space = Space.from_data(data)
    if space.legal.count == 0:
        raise NothingFits(plan.refusal(space))
    if question.pins:
        space = limited(space.pinned(question.pins), data).pinned(question.pins)
        data = {**space.data}
    left_out = {name: text for name, text in plan.assumed(question.chips) if name not in question.pins}
    assumed = tuple(ArgumentText(f"{{{name}}} {text}") for name, text in left_out.items())
    return Planned(data, space, model, plan.framework, not question.any_software, assumed)


def with_options(question: Question) -> Question:
    """The question with pinned sizes as the options that stand for them: ranges of layouts follow those.

    Raises `ParameterError` if an option has another value. The space refuses other texts.
    """
    pins, sizes = {**question.pins}, dict[str, Any]()
    for name, option in PINNED.items():
        if re.fullmatch("[1-9][0-9]*", str(pins.get(name))):
            sizes[option] = size = int(pins.pop(name))
            if getattr(question, option) not in (None, 0, size):
                raise ParameterError(f"{{set}} {name}={size}: another option says {getattr(question, option)}")
    return replace(question, pins=pins, **sizes)


def with_chips(question: Question, planned: Planned, chips: int) -> Space | None:
    """Space of a question for another number of chips, and the same batch; None where nothing is legal."""
    plan = _Layouts(question, planned.model, planned.space.system)
    data = plan.data(chips, batch=planned.data["given"]["global_batch_size"])
    space = Space.from_data(data) if plan.may_split(chips, data["given"]["global_batch_size"]) else None
    space = limited(space.set_to(question.pins), data) if space and question.pins else space
    return space if space and space.legal.count else None


def limited(space: Space, data: Mapping[str, Any]) -> Space:
    """A pinned space of a file's content: limits of its framework read names that only the pins set, too."""
    return Space.from_data({**space.data, "framework": data["framework"]})


class _Layouts:
    """Parameters that a question opens, for any number of chips."""

    def __init__(self, question: Question, model: PlannedModel, system: System) -> None:
        self.question, self.model, self.system = question, model, system
        self.shape = model.shape
        self.seq_len = int(question.seq_len or model.shape.seq_len)
        usual = QUANTIZED_FRAMEWORK if question.quantized_base else system.framework or USUAL_FRAMEWORK
        self.framework = load_framework(question.framework or usual)
        self.runs = {} if question.any_software else self.framework.runs
        layers = int(self.shape.num_layers)
        self.counted = layers % 4 != 0 and (layers + 2) % 8 == 0 and "count_embedding" not in self.runs
        self.whole = layers % 8 == 0 or self.counted
        self.shared_out = layers + (2 if self.counted else 0)
        self.even_parts = divisors(self.shared_out).astype(int).tolist()

    def tp(self, chips: int) -> list[int]:
        """Sizes of tensor parallelism: powers of two that divide heads and chips, within a node."""
        heads = int(self.shape.linear_key_heads)
        for sized in (self.shape.of_kernel(layer.stream) for layer in self.shape.kinds):
            heads = math.gcd(heads, int(sized.num_attention_heads))
            if sized.attention != "mla":
                heads = math.gcd(heads, int(sized.num_query_groups))
        node = int(self.system.network[0].size)
        most = min(max(node, USUAL_NODE), MOST_TP)
        return [size for size in powers_of_two(most) if heads % size == 0 and chips % size == 0]

    def pp(self, chips: int) -> list[int]:
        """Numbers of pipeline stages to choose from."""
        most = min(MOST_PP, int(self.shape.num_layers))
        sizes = {*self.even_parts, *([] if self.whole else powers_of_two(most // 2))}
        return sorted(size for size in sizes if size <= most and chips % size == 0)

    def vpp(self, stages: Sequence[int]) -> list[int]:
        """Numbers of chunks of a stage."""
        if not self.whole:
            return [1, 2, 4, 8] if len(stages) > 1 else [1]
        return [
            size
            for size in self.even_parts
            if size <= MOST_VPP and (size == 1 or any(pp > 1 and self.shared_out % (pp * size) == 0 for pp in stages))
        ]

    def cp(self, chips: int, batch: int) -> list[int]:
        """Ranks that share a sequence: for long ones, or where there are more replicas than sequences."""
        most = self.seq_len // LEAST_PART if self.seq_len >= LONG_SEQUENCE else 1
        replicas = chips // (max(self.tp(chips)) * max(self.pp(chips)))
        most = max(most, 2 ** math.ceil(math.log2(max(1, replicas / batch))))
        return [size for size in powers_of_two(most) if chips % size == 0 and self.seq_len % (2 * size) == 0]

    def batch(self, chips: int) -> int:
        """Sequences of a step: as given, or about the default tokens, in a number that the chips divide."""
        asked = self.question
        if asked.sequences:
            return asked.sequences
        large = self.shape.num_parameters >= LARGE_MODEL
        usual = ADAPTER_BATCH_TOKENS if asked.lora or asked.dpo else LARGE_BATCH_TOKENS if large else SMALL_BATCH_TOKENS
        tokens = asked.batch_tokens or usual
        wanted = max(1.0, tokens / self.seq_len)
        odd = chips // (chips & -chips)
        odd = odd if odd <= 2 * wanted else 1
        return int(odd * 2 ** max(0, round(math.log2(wanted / odd))))

    def may_split(self, chips: int, batch: int) -> bool:
        """True if some sizes use all chips and the whole batch."""
        sizes = map(math.prod, product(self.tp(chips), self.pp(chips), self.cp(chips, batch)))
        return any(chips % size == 0 and batch % (chips // size) == 0 for size in sizes)

    def parameters(self, chips: int, batch: int) -> dict[str, Any]:
        """Parameters of a design."""
        stages, cp = self.pp(chips), self.cp(chips, batch)
        fits = [n for n in (1, 2, 4, 8) if n == 1 or n * self.seq_len <= MOST_IN_MICRO_BATCH]
        shared = {"cp": cp, "cp_communication": ["p2p", "all_gather", "a2a"]} if len(cp) > 1 else {}
        modules = {}
        if self.shape.num_experts:
            modules = {f"recompute_{name}": [False, True] for name in ("layernorm", "moe_act")}
            modules |= {"recompute_mla_up_proj": [False, True]} if self.shape.attention == "mla" else {}
        precisions, _ = self.precisions()
        zero = [1, 2, 3] if self.runs or self.framework.given.get("zero", 1) == 1 else []
        opened = {
            "tp": self.tp(chips),
            **shared,
            "pp": stages,
            "vpp": self.vpp(stages),
            **(self.experts(chips) if self.shape.num_experts else {}),
            "micro_batch_size": fits,
            "recompute": ["none", "full"] if modules else ["none", "selective", "full"],
            **modules,
            **({"zero": zero} if zero else {}),
            **({"precision": precisions} if self.question.precision or precisions != ["bf16"] else {}),
            **({"schedule": self.schedules(stages)} if stages != [1] else {}),
            **{column: values for column, values in self.offloaded.items() if isinstance(values, list)},
        }
        return self.runnable(opened)

    def runnable(self, opened: dict[str, Any]) -> dict[str, Any]:
        """Parameters without the values that the framework cannot run; one value is left to its defaults."""
        usual = {"zero": self.framework.given.get("zero", 0), "schedule": "1f1b"}
        for column, runs in self.runs.items():
            idle = usual.get(column) if runs.where else None  # of designs that ask for none
            if column in opened:
                opened[column] = [value for value in opened[column] if str(value) in runs.words or value == idle]
        for module in MODULES:
            if self.runs and module.name not in self.framework.modules:
                opened.pop(module.column, None)
        return {column: values for column, values in opened.items() if values and values != [usual.get(column)]}

    @property
    def offloaded(self) -> dict[str, Any]:
        """Values, or a formula, of columns of tensors that hosts may hold; a `ParameterError` if there are none."""
        if not self.question.offload:
            return {}
        if not self.framework.offload:
            raise ParameterError(f"{{offload}}: not modelled for {self.framework.title}; name another {{framework}}")
        known = DesignPoints.domains(self.shape.blocks)
        return {column: values for column, values in self.framework.offload.items() if column in known}

    @property
    def host_memory(self) -> ArgumentText:
        """A line on the host memory that the question takes for granted; "" where all states are on chips."""
        states = STATE_BYTES * self.shape.num_parameters / self.question.chips
        line = (
            f"{{offload}}: hosts are assumed to have room for activations, and {readable(states, 'B')} of states a GPU"
        )
        return ArgumentText(line if self.question.offload and not self.question.lora else "")

    def schedules(self, stages: Sequence[int]) -> list[str]:
        """Schedules to choose from: those that fill pipelines best, or those of the framework."""
        best = ["1f1b", "zb_v"]
        if self.shape.num_experts and any(size % 2 == 0 for size in stages):
            best = ["1f1b", "dualpipe", "dualpipe_v"]
        known = list(self.runs["schedule"].words) if "schedule" in self.runs else best
        return [word for word in best if word in known] or ["1f1b", *known]

    def experts(self, chips: int) -> dict[str, Any]:
        """Parameters of a design with experts."""
        experts = int(self.shape.num_experts)
        spread = [size for size in powers_of_two(MOST_EP) if experts % size == 0 and chips % size == 0]
        return {
            "ep": spread,
            **({"etp": self.tp(chips)} if experts <= FEW_EXPERTS else {}),
            "dispatcher": ["all_to_all", "all_gather", "two_hop"],
            "overlap_ep": [False, True],
        }

    def precisions(self) -> tuple[list[str], ArgumentText]:
        """Formats to choose from: those asked for that both the chip and the framework have; and a line on the others.

        Raises `ParameterError` for an unknown format, and `NothingFits` if none is left.
        """
        for word in sorted({*self.question.precision} - {*FORMATS, *(row.units for row in FORMATS.values())}):
            raise ParameterError(f"{{precision}} {word!r}: not a number format{suggestion(word, FORMATS)}")
        chip = self.system.chip
        has = {word: not row.units or bool(np.any(chip.format_rate(row.units))) for word, row in FORMATS.items()}
        has["bf16"] = not 0 < np.max(chip.compute_capability) < BF16_CAPABILITY
        of_chip = [word for word in FORMATS if has[word]]
        of_framework = list(self.runs["precision"].words) if "precision" in self.runs else of_chip
        # "fp8", "mx" and "fp4" stand for the framework's first format of these units.
        named = {row.units: word for word, row in reversed([*FORMATS.items()]) if row.units and word in of_framework}
        asked = [*dict.fromkeys(named.get(word, word) for word in self.question.precision)] or of_chip[:1]
        others = [word for word in asked if word not in of_chip or word not in of_framework]
        sides = {self.framework.title: of_framework, self.system.name: of_chip}
        known = "; ".join(f"{name} has {', '.join(words)}" for name, words in sides.items() if {*others} - {*words})
        line = f"{{precision}} {','.join(others)}: {known}" if others else ""
        if asked == others:
            raise NothingFits(line)
        return [word for word in asked if word not in others], ArgumentText(line)

    @property
    def usable_memory(self) -> str:
        """Memory of a chip that layouts may take, as a formula."""
        capacity, asked = f"{self.system.dram.name}_capacity", self.question.headroom
        if asked is None:
            return f"{1 - peak_spread(self.framework.name).headroom_share:.3g} * {capacity}"
        return usable_memory(asked, capacity)

    def constraints(self, parameters: dict[str, Any]) -> dict[str, str]:
        """Constraints besides the rules of every space."""
        words: dict[str, Any] = {
            "layers": "(num_layers + count_embedding + count_loss)" if self.counted else "num_layers",
            "modules": " or ".join(name for name in parameters if name.startswith("recompute_")),
            "offloaded": " or ".join(name for name in parameters if name in OFFLOADED),
            "memory": self.usable_memory,
            "days": f"{self.question.max_days or 0:g}",
            **{name: parameters[name][0] for name in ("schedule", "zero") if name in parameters},
        }
        known = {*parameters, "whole" if self.whole else "uneven", "max_days" if self.question.max_days else ""}
        return {name: row["rule"].format(**words) for name, row in RULES.items() if known.issuperset(row["needs"])}

    def data(self, chips: int, batch: int | None = None) -> dict[str, Any]:
        """Content of the space's file."""
        batch = batch or self.batch(chips)
        parameters = self.parameters(chips, batch)
        given: dict[str, Any] = {"world_size": chips, "global_batch_size": batch}
        if self.seq_len != self.shape.seq_len:
            given["seq_len"] = self.seq_len
        if self.counted:
            given |= {"count_embedding": True, "count_loss": True}
        given |= self.imbalance | self.adapters | ({"reference_model": True} if self.question.dpo else {})
        if self.question.document_len:
            given["document_len"] = self.question.document_len
        groups = "tp * cp * pp" if "cp" in parameters else "tp * pp"
        derived = {
            "dp": f"world_size / ({groups})",
            "gradient_accumulation_steps": "global_batch_size / (dp * micro_batch_size)",
        }
        if self.framework.given.get("sharding", "megatron_sp") == "megatron_sp":
            derived["sequence_parallel"] = "tp > 1"
        derived |= {column: text for column, text in self.offloaded.items() if isinstance(text, str)}
        derived |= self.framework.derived
        framework: Any = self.question.framework or self.framework.name
        if self.runs:
            framework = {"name": framework, "limits": True}
        title = self.shape.title or self.shape.name
        return {
            "schema": "search_space/v1",
            "name": f"plan_{self.model.name}_{chips}",
            "description": f"How to split {title} over {chips:,} chips of {self.system.name}",
            "model": self.model.written,
            "system": self.question.system,
            "framework": framework,
            **self.run,
            "given": given,
            "parameters": parameters,
            "derived": derived,
            "constraints": self.constraints(parameters),
            "objectives": {
                "minimize": ["step_time" if self.question.optimistic else "step_time_expected", "peak_memory"]
            },
        }

    @property
    def imbalance(self) -> dict[str, float]:
        """The imbalance of experts, where it is asked for. Raises `ParameterError` without experts, or below 1."""
        if (asked := self.question.imbalance) is None:
            return {}
        if not self.shape.num_experts or not asked >= 1:
            expected = "a number from 1" if self.shape.num_experts else "a model with experts"
            raise ParameterError(f"{{imbalance}} {asked:g}: expected {expected}")
        return {"imbalance": asked}

    @property
    def adapters(self) -> dict[str, Any]:
        """Columns of adapters and frozen weights that the question fixes.

        Raises `ParameterError` if it has targets or a format of frozen weights without adapters, or too large a rank.
        """
        asked, widest = self.question, int(self.shape.hidden_size)
        if asked.lora > widest:
            raise ParameterError(f"{{lora}} {asked.lora}: expected at most the hidden size of the model, {widest}")
        for name, value in (("lora_targets", asked.lora_targets), ("quantized_base", asked.quantized_base)):
            if value and not asked.lora:
                raise ParameterError(f"{{{name}}} {value}: expected a rank of adapters too, such as {{lora}} 16")
        if asked.lora_targets == "query_value" and self.shape.q_lora_rank + self.shape.kv_lora_rank > 0:
            raise ParameterError("{lora_targets} query_value: this model makes them of latents; take qkv or attention")
        columns = {"lora_rank": asked.lora, "lora_targets": asked.lora_targets, "quantized_base": asked.quantized_base}
        apart = {"lora_fused": False} if asked.lora_targets == "query_value" else {}  # parts of a fused product
        return {name: value for name, value in columns.items() if value} | apart

    @property
    def run(self) -> dict[str, Any]:
        """The section of the whole run; none without tokens. Raises `ParameterError` if it has examples too."""
        asked = self.question
        rent = {RENTAL: f"{asked.gpu_hour_price:g} $/h"} if asked.gpu_hour_price else {}
        expected = {} if asked.optimistic else {BY_EXPECTED: True}
        if asked.tokens and asked.examples:
            raise ParameterError("{examples}: the run has {tokens}; leave one of them out")
        tokens = asked.tokens or (asked.examples or 0) * self.seq_len * (2 if asked.dpo else 1)
        return {"run": {"tokens": int(tokens), **expected, **rent}} if tokens else {}

    def assumed(self, chips: int) -> Iterator[tuple[str, str]]:
        """Arguments that were left out, each with the value that is assumed."""
        asked, batch = self.question, self.batch(chips)
        if not asked.seq_len:
            yield "seq_len", f"{self.seq_len}"
        if not asked.sequences:
            yield "global_batch_size", f"{batch} ({batch * self.seq_len / 1e6:.1f} million tokens)"
        if not asked.precision:
            yield "precision", self.precisions()[0][0]
        if not asked.framework:
            yield "framework", f"{self.framework.name}"
        if asked.headroom is None:
            spread = peak_spread(self.framework.name)
            yield (
                "headroom",
                f"'{100 * spread.headroom_share:.2g} %' (90 % of measured peaks of "
                f"{spread.software} are at most {spread.high:g} times the prediction)",
            )
        if "imbalance" in (said := self.framework.said(self.shape)) and asked.imbalance is None:
            method = BALANCING[self.shape.balancing]
            yield "imbalance", f"{said['imbalance']} (experts balanced by {method})"

    def refusal(self, space: Space) -> str:
        """The reason why no layout is legal, and numbers of GPUs that have legal layouts."""
        chips, batch = self.question.chips, self.batch(self.question.chips)
        asked = self.question.sequences
        message = f"no legal layout of {self.model.name} on {chips:,} {space.chip_word}{'s' * (chips != 1)}"
        if self.may_split(chips, batch):
            limits, title = self.framework.limits, self.framework.title
            blocking = space.legal.blocking()
            reasons = [f"in {title} {n.replace('_', ' ')} ({text})" for n, text in blocking if n in limits]
            reasons += [f"breaks {name} ({text})" for name, text in blocking if name not in limits]
            return f"{message}: {'; '.join(reasons)}"
        near = [other for other in self.near(chips) if self.may_split(other, asked or self.batch(other))]
        others = sorted(near[:1] + [other for other in near if (other > chips) != (near[0] > chips)][:1])
        message += f" with {batch:,} sequences a step"
        return f"{message}; use {{gpus}} {' or '.join(map(str, others))}" if others else message

    def near(self, chips: int) -> Iterator[int]:
        """Numbers of chips around one, the nearest first, up to twice as many and half as many."""
        for away in range(1, min(chips, MOST_AWAY) + 1):
            if chips - away >= max(1, chips // 2):
                yield chips - away
            yield chips + away


def usable_memory(headroom: str, capacity: str) -> str:
    """Memory that is left of a chip's, as a formula.

    Raises `DseError` if the headroom is neither a size nor a share below 1.

    >>> usable_memory("4 GB", "dram_capacity"), usable_memory("5 %", "dram_capacity")
    ('dram_capacity - 4 GB', '0.95 * dram_capacity')
    """
    text = headroom.strip()
    try:
        if text.endswith("%"):
            left = 1 - plain_number(text[:-1].strip()) / 100
            if 0 < left <= 1:
                return f"{left:g} * {capacity}" if left < 1 else capacity
        else:
            size = quantity(text)
            if size.value == 0:
                return capacity
            if size.value > 0 and size.dimension == quantity("1 B").dimension:
                return f"{capacity} - {text}"
    except ValueError:
        pass
    raise ParameterError(f"{{headroom}} {headroom!r}: expected a size or a share of memory, such as 4 GB, 5 % or 0")


def space_text(data: dict[str, Any]) -> str:
    """A space's content as a file that people change: a line for each name."""
    lines = []
    for key, value in data.items():
        if not isinstance(value, dict) or key == "given":
            lines.append(dump({key: value}, compact=isinstance(value, dict)))
            continue
        inner = "".join(dump({name: entry}, compact=isinstance(entry, list)) for name, entry in value.items())
        lines.append(f"{key}:\n" + "".join(f"  {line}\n" for line in inner.splitlines()))
    return "".join(lines)


def powers_of_two(most: int) -> Iterator[int]:
    """1, 2, 4, ... up to `most`."""
    return (2**power for power in range(max(1, most).bit_length()))
