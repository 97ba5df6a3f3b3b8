"""The first lines of an answer: the design to use, an alternative, the cost of the run, the next command.

A person who asks for a layout gets a sentence before tables: the layout with all group sizes, its step time with the 90
% interval, tokens per second and GPU, MFU, and memory with the room left. The alternative is the fastest design that
leaves clearly more memory free, or on an open machine the cheapest that is nearly as fast.
"""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from shlex import quote
from typing import Any, Final

import numpy as np
from rich.text import Text

from costmodel.columns import FloatArray
from costmodel.formats.input_files import data_beside
from costmodel.formats.quantity import readable, readable_count
from costmodel.training.design import ADAPTERS, DesignPoints
from costmodel.training.design_table import shown as shown_column
from costmodel.training.model import ModelShape
from costmodel.training.precision import FORMATS
from dse.output import EXPECTED_TIME, STEP_TIME, Record, counted, percent, percent_more, ranked_rate, ranked_time
from dse.predictions import EVIDENCE, EXTRAPOLATED, TIGHT
from dse.pricing.evaluated import unmeasured
from dse.reporting.binding import memory_capacity, memory_verdict
from dse.reporting.design_table import PEAK_MEMORY, PER_GPU, interval_text, machine_parameters, pair_text, run_text
from dse.spaces.sections.parameters import Constraint, Objective
from dse.spaces.space import Space

#: Attribute of a study with the sentences about a plan: ``counts``, ``exact``, ``notes``, ``assumed``.
PLAN: Final = "dse:plan"
#: A label and its sentence; the label of a sentence that starts at the left edge is "".
Line = tuple[str, str]

#: Columns of a layout in the order in which sentences name them -> the words for a value.
LAYOUT: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["layout"]
#: Last word of a quantity of the machine -> the words for a value, which may name the part.
MACHINE: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["machine"]
#: Values that a full layout leaves out, since they switch something off.
OFF: Final = {**dict.fromkeys(("vpp", "cp", "ep", "etp"), "1"), "zero": "0", "recompute": "none"}
#: Objective -> the title of the design that is best by it.
TITLES: Final[Mapping[str, str]] = data_beside(__file__, "tables.yaml")["titles"]
#: Objectives that the numbers of every design say already.
SAID: Final = ("step_time", "step_time_expected", "step_time_high", "tokens_per_second", "tokens_per_second_per_gpu",
               "mfu", "peak_memory")  # fmt: skip
#: The blank before a unit, at which no line ends.
UNIT: Final = re.compile(r"(?<=\d) (?=(?:%|[kMGTPE]?i?B|[munp]?s|min|h|days|[kMG]?[WJ]|t|GPUs?)(?![\w]))")
#: Columns by which sentences are indented behind their labels. [characters]
INDENT: Final = 7
#: An alternative leaves this share of a GPU's memory free, and this much more than the best design. [-]
ROOMY, ROOMIER = 0.25, 0.10
#: The alternative of an open machine is at most this much worse by the first objective. [-]
NEARLY: Final = 1.2
#: Designs that take longer than this many times the fastest are not worth considering. [-]
TOO_SLOW: Final = 2.0


def wrapped(lines: Iterable[Line], width: int) -> list[Text]:
    """Sentences wrapped to a width; those with a label are indented by `INDENT`."""
    made = []
    for label, sentence in lines:
        text = UNIT.sub("\xa0", sentence)
        first = f"{label:<{INDENT}}" if len(label) < INDENT else f"{label}: "
        lines_wrapped = textwrap.wrap(
            text,
            width,
            initial_indent=first if label else "",
            subsequent_indent=" " * INDENT if label else "",
            break_on_hyphens=False,
            break_long_words=False,
        )
        made += [Text(line.replace("\xa0", " "), overflow="fold") for line in lines_wrapped]
    return made


def joined(parts: Iterable[str]) -> str:
    """Items of a sentence, with no line break inside an item."""
    return ", ".join(part.replace(" ", "\xa0") for part in parts if part)


def question_text(space: Space, record: Record) -> str:
    """The model, GPUs, system, software, number format and batch of a design, in a line."""
    known, model = known_values(space, record), space.model
    chips, batch, length = (known.get(n) for n in ("world_size", "global_batch_size", "seq_len"))
    machine_text = f"{int(chips):,} x {space.system.name}" if chips else space.system.name
    precision = known.get("precision", 0) if space.workload.work.reads_system and has_one_format(space) else ""
    precision = precision if isinstance(precision, str) else [*FORMATS][int(precision)]
    tokens = f"{int(batch):,} x {int(length):,} tokens a step" if batch and length else ""
    title = getattr(model, "title", "") or model.name
    subject = f"{title} on {machine_text}" if space.workload.work.reads_system else title
    return joined([subject, space.framework, precision, tokens, adapters_text(space, known)])


def has_one_format(space: Space) -> bool:
    """True if all designs of a space have the same number format."""
    return "precision" not in space.by_name or len(space.by_name["precision"].choices or ()) == 1


def adapters_text(space: Space, known: Mapping[str, Any]) -> str:
    """The rank of adapters and their parameters; "" where all weights train."""
    if not known.get("lora_rank") or not isinstance(space.model, ModelShape):
        return ""
    columns = [member.name for member in fields(DesignPoints) if member.metadata.get("of") == ADAPTERS]
    design = DesignPoints.of(**{name: known[name] for name in columns if name in known})
    trained, whole = trained_parameters(space.model, design).item(), space.model.num_parameters
    return (
        f"LoRA of rank {int(known['lora_rank'])}: {readable_count(trained)} of {readable_count(whole)} parameters train"
    )


def trained_parameters(model: ModelShape, design: DesignPoints) -> FloatArray:
    """Parameters of a model that each design trains: of its adapters, or all; (points,). [-]"""
    from costmodel.kernels.adapters import LoraAdapter, may_adapt

    adapters = np.zeros(np.shape(design.lora_rank))
    for layer, count in model.kinds.items():
        for kernel in filter(may_adapt, layer.kernels):
            sized = model.of_kernel(kernel)
            adapters = adapters + count * LoraAdapter.of(sized, design, kernel).parameters(sized, kernel)
    return np.where(design.lora_rank > 0, adapters, model.num_parameters + model.mtp_parameters)


def known_values(space: Space, record: Record) -> dict[str, Any]:
    """Constants of a space, and the derived columns and parameters of a design."""
    return {**space.constants, **record["derived"], **record["params"]}


def layout_text(space: Space, record: Record, names: Iterable[str] | None = None, *, brief: bool = False) -> str:
    """A design in words: its layout, then the parameters of its machine; `brief`: no other parameters."""
    known, machine = known_values(space, record), machine_parameters(space)
    skipped = {*LAYOUT, *space.kernel_columns, *(["schedule"] if known.get("pp") == 1 and names is None else [])}
    others = [name for name in space.by_name if name not in skipped and not brief]
    order = [*LAYOUT, *(n for n in others if n not in machine), *(n for n in others if n in machine)]
    titled = "precision" if has_one_format(space) else ""  # stands in the line of the question
    wanted = [name for name in order if (name != titled if names is None else name in {*names})]
    return joined(value_text(space, name, known[name], full=names is None) for name in wanted if name in known)


def value_text(space: Space, name: str, value: Any, *, full: bool) -> str:
    """A value of a design in words; "" where a full layout leaves it out."""
    parameter, declared = space.by_name.get(name), DesignPoints.declared()
    if parameter:
        text = parameter.shown(value)
    else:
        text = str(shown_column(value, declared[name])) if name in declared else f"{value:g}"
    if name == "distributed_optimizer" or (parameter and parameter.boolean):
        word = "ZeRO-1" if name == "distributed_optimizer" else name.replace("_", " ")
        return word if text in ("true", "True", "1") else "" if full else f"no {word}"
    if full and OFF.get(name) == text:
        return ""
    part, _, last = name.rpartition("_")
    words = LAYOUT.get(name) or (MACHINE.get(last) if name in space.system.units() else None)
    part = part.upper() if part in {level.name for level in space.system.memory} else part
    said = words.format("no" if text == "none" else text, part) if words else f"{name.replace('_', ' ')} {text}"
    return said.replace("steps", "step") if said.startswith("1 ") else said


def numbers_text(space: Space, record: Record) -> str:
    """Step time with its interval, tokens per second and GPU, MFU, memory, and the other objectives."""
    time, *expected = step_texts(record)
    remarks = [*expected, f"90 %: {interval_text(record)}"] if "evidence" in record else []
    rate, mfu = ranked_rate(record, PER_GPU), ranked_rate(record, "mfu")
    parts = [
        f"{time}{' (' + '; '.join(remarks) + ')' if remarks else ''}",
        f"{rate:,.0f} tokens/s/{space.chip_word}" if rate else "",
        f"{percent(mfu)} MFU" if mfu else "",
        memory_text(space, record),
    ]
    others = [o for o in space.objectives if o.name not in SAID and o.key in record["values"]]
    return joined([*parts, *(objective_text(o, record) for o in others)])


def step_texts(record: Record) -> list[str]:
    """The step time of a design: ``19.5 s a step``, or ``20.1 s a step expected`` and ``predicted 19.5 s``."""
    time = readable(ranked_time(record), "s")
    if EXPECTED_TIME not in record["values"]:
        return [f"{time} a step"]
    return [f"{time} a step expected", f"predicted {readable(record['breakdown'][STEP_TIME], 's')}"]


def objective_text(objective: Objective, record: Record) -> str:
    """An objective of a design: ``energy per step 12.1 MJ``, ``12.1 MW`` of the system's price and power."""
    if objective.name in ("system_price", "system_power"):
        return readable(record["values"][objective.key], objective.unit)
    return f"{objective.name.replace('_', ' ')} {readable(record['values'][objective.key], objective.unit)}"


def memory_text(space: Space, record: Record) -> str:
    """Memory of a design with the room left: ``75.1 of 85.5 GB (10.4 GB free)``; "" where unknown."""
    peak = record["breakdown"].get(PEAK_MEMORY, math.nan)
    sizes = pair_text(peak, "of", memory_capacity(space, record), "B")
    return f"{sizes} ({room_text(space, record)})" if peak > 0 else ""


def room_text(space: Space, record: Record) -> str:
    """The memory that a design leaves free, or lacks: ``10.4 GB free``."""
    free = memory_capacity(space, record) - record["breakdown"][PEAK_MEMORY]
    tight = ", tight" if memory_verdict(space, record) == TIGHT else ""
    return f"{readable(abs(free), 'B')} {'free' if free >= 0 else 'too much'}{tight}"


def title(objective: Objective) -> str:
    """The title of the design that is best by an objective."""
    extreme = "lowest" if objective.direction == "minimize" else "highest"
    return TITLES.get(objective.name, f"{extreme} {objective.name.replace('_', ' ')}")


def picks(space: Space, front: Sequence[Record]) -> dict[int, str]:
    """Row -> the objectives that it is best by, in words."""
    best: dict[int, list[str]] = {}
    for objective in space.objectives:
        row = min(range(len(front)), key=lambda i: objective.cost(front[i]["values"][objective.key]))
        best.setdefault(row, []).append(title(objective))
    return {row: ", ".join(dict.fromkeys(titles)) for row, titles in best.items()}


def alternative(space: Space, front: Sequence[Record]) -> tuple[int, str] | None:
    """Row of the second design that a front is worth reading for, and why; None if no design qualifies."""
    if machine_parameters(space):
        return cheaper(space, front)
    times = [ranked_time(record) for record in front]
    if not all(PEAK_MEMORY in r["breakdown"] for r in front) or math.isnan(sum(times)):
        return None
    capacity = memory_capacity(space, front[0])
    free = [1 - record["breakdown"][PEAK_MEMORY] / capacity for record in front]
    enough = max(ROOMY, free[0] + ROOMIER)
    roomy = [at for at, time in enumerate(times) if free[at] >= enough and time <= TOO_SLOW * times[0]]
    return (min(roomy, key=times.__getitem__), "") if roomy else None


def cheaper(space: Space, front: Sequence[Record]) -> tuple[int, str] | None:
    """The best design by the next objective among those nearly as good by the first, and its title."""
    first, *others = space.objectives
    wanted = next((o for o in others if o.name in ("system_price", "run_cost")), others[0] if others else None)
    costs = [record["values"][first.key] for record in front]
    if wanted is None or not costs[0] > 0:
        return None
    near = [at for at, cost in enumerate(costs) if max(cost / costs[0], costs[0] / cost) <= NEARLY]
    nearest = min(near, key=lambda at: wanted.cost(front[at]["values"][wanted.key]))
    return (nearest, f"{title(wanted)} within {percent(NEARLY - 1)}: ") if nearest else None


def front_lines(space: Space, front: Sequence[Record], commands: Sequence[str]) -> list[Line]:
    """The answer of a front, the best design of the first objective first, with the commands to run next."""
    best, second = front[0], alternative(space, front)
    label = title(space.objectives[0]).capitalize() if machine_parameters(space) else "Use"
    lines = [(label, f"{layout_text(space, best)}: {numbers_text(space, best)}")]
    if lead := lead_text(space, best):
        lines.append(("Lead", lead))
    lines += [("Run", run_text(space, best))] if "run" in best else []
    if second:
        row, reason = second
        lines.append(("Or", f"{reason}{other_text(space, best, front[row])}"))
    return [*lines, *next_lines(commands)]


def lead_text(space: Space, record: Record) -> str:
    """The features of the best design that too few measured runs have; "" for a measured kind."""
    if EXPECTED_TIME not in record["values"] or record.get("evidence") != EVIDENCE[EXTRAPOLATED]:
        return ""
    *others, last = unmeasured(space, record) or ["this combination of features"]
    which = f"{', '.join(others)} and {last}" if others else last
    return f"rests on {which}: too few such runs on this {space.chip_word} were measured."


def other_text(space: Space, best: Record, other: Record) -> str:
    """A second design by its differences from the best one: layout, step time, memory, other objectives."""
    one, two = known_values(space, best), known_values(space, other)
    differing = [n for n in two if one.get(n) != two[n] and (n in space.by_name or n == "dp")]
    differing = [name for name in differing if name not in space.kernel_columns]
    times = [ranked_time(record) for record in (best, other)]
    objectives = [o for o in space.objectives if o.name not in SAID]
    trial = f" (trial {other['trial']})" if "trial" in other else ""
    numbers = [
        f"{readable(times[1], 's')} ({percent_more(times[1] / times[0])})",
        memory_text(space, other),
        *(objective_text(o, other) for o in objectives),
    ]
    return f"with {layout_text(space, other, differing)}{trial}: {joined(numbers)}"


def next_lines(commands: Sequence[str]) -> list[Line]:
    """Commands to run next, one on each line to copy."""
    return [("Next" if not index else " ", command.replace(" ", "\xa0")) for index, command in enumerate(commands)]


def study_words(study: str, storage: str | None = None) -> str:
    """A study as the arguments of a command, which can be copied."""
    return quote(study) + (f" --storage {quote(storage)}" if storage else "")


def broken_limits(space: Space, record: Record) -> dict[Constraint, str]:
    """Limits that a design breaks, or has no number for, and by how much: ``2.37 GB too much``."""
    margins = {limit: record["margins"].get(limit.key) for limit in space.limits}
    broken = [limit for limit, margin in margins.items() if margin is None or not margin >= 0]
    return {limit: _broken_text(space, record, limit) for limit in broken}


def _broken_text(space: Space, record: Record, limit: Constraint) -> str:
    margin = record["margins"].get(limit.key)
    if margin is None or math.isnan(margin):
        return f"{limit.name} has no number"
    over = readable(-margin, limit.unit)
    free = memory_capacity(space, record) - record["breakdown"].get(PEAK_MEMORY, math.nan)
    if limit.unit == "B" and free < 0:
        return f"{readable(-free, 'B')} too much"
    return f"{over} too much for {limit.name} ({limit.expression})" if limit.unit != "-" else f"breaks {limit.name}"


def verdict_line(space: Space, record: Record, *, brief: bool = False) -> Line:
    """A design with its numbers behind the verdict: fits, tight, or by how much it does not fit."""
    text = f"{layout_text(space, record, brief=brief)}: {numbers_text(space, record)}"
    tight = memory_verdict(space, record) == TIGHT
    if record["feasible"]:
        return ("Tight" if tight else "Fits"), text
    broken = broken_limits(space, record)
    label = "Infeasible"
    if broken and all(limit.unit == "B" for limit in broken):
        label = "May not fit" if tight else "Does not fit"
    return label, f"{'; '.join(broken.values()) or 'no number'}. {text}"


def place_text(space: Space, record: Record) -> str:
    """GPUs and nodes of a design; "" where the space fixes no number."""
    chips, node = (int(known_values(space, record).get("world_size", 0)), int(np.max(space.system.network[0].size)))
    nodes = f" in {counted(-(-chips // node), 'node')}" if node > 1 else ""
    return f"{counted(chips, space.chip_word)}{nodes}" if chips else ""
