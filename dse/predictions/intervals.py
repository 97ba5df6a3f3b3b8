"""Intervals of predicted step times: 90 % intervals from measured runs, as columns of formulas.

Ratios of measured to predicted times are sorted into classes (software, chip, scale, stages, products): a
design has the interval of its class. Evidence for it depends on the *kind* of the design: the kernels of its
layers, number format, schedule, context parallelism and overlapped experts. A kind is measured where enough
runs of it are among those that ship (`dse validate`); `residuals.yaml` counts them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.formats.framework_file import listed_release
from costmodel.formats.input_files import data_beside
from costmodel.machine.system import System
from costmodel.steps.result.breakdown import UNIT_SUFFIX, Breakdown
from costmodel.training.design import DISPATCH_TWO_HOP, ONE_FORWARD_ONE_BACKWARD, SCHEDULE_WORDS
from costmodel.training.model import ModelShape
from costmodel.training.precision import FORMATS, is_narrow

#: What a prediction rests on: runs of its kind on its chip with its software; with other software; neither.
EVIDENCE: Final = ("measured", "calibrated", "extrapolated")
MEASURED, CALIBRATED, EXTRAPOLATED = range(3)

#: Words of a class: how far ranks stand apart, and what layers multiply.
ONE_NODE, NODES, WIDE_TP = "one node", "several nodes", "tensor parallelism across nodes"
DENSE, NARROW, EXPERTS, NARROW_EXPERTS = "dense", "8 bits", "experts", "experts, 8 bits"
SCALES: Final = (ONE_NODE, NODES, WIDE_TP)
LAYERS: Final = (DENSE, NARROW, EXPERTS, NARROW_EXPERTS)

#: Chips are the same where rates, compute capability and links within a node agree to this share. [-]
SAME_CHIP: Final = 0.01
#: Beyond so many times the chips of the largest measured run nothing is measured. [-]
BEYOND: Final = 4.0
#: In place of a chip, in classes of steps on whatever chip.
ANY_CHIP: Final = "any chip"
#: Fewest runs that measure a kind: two have no spread that a third could contradict. [-]
FEWEST_RUNS: Final = 3
#: Columns of designs that make kinds where they are on, or more than one rank.
CONTEXT, HIDDEN_EXPERTS, TWO_HOPS = "context parallelism", "overlapped experts", "two hops"
#: Word of a kind of long sequences, and the fewest tokens of one.
LONG, LONG_TOKENS = "long sequences", 32768

#: Software of a space that names none: all versions of Megatron, whose names begin so.
USUAL: Final = "megatron"


@dataclass(frozen=True, slots=True)
class Interval:
    """Between which multiples of its predicted time a step lies nine times of ten; (points,) each."""

    low: FloatArray  #: [-]
    high: FloatArray  #: [-]
    evidence: IntArray  #: places in `EVIDENCE` [-]


@dataclass(frozen=True, slots=True)
class MeasuredChip:
    """A chip of which steps were measured."""

    name: str  #: of a shipped system that has it
    peak: float  #: rate of its matrix units [FLOP/s]
    bandwidth: float  #: of its memory [B/s]
    largest: float  #: chips of the largest measured run [-]
    capability: float  #: compute capability, 0 where a chip has none [-]
    links: float  #: bandwidth within a node, one direction [B/s]

    def found_in(self, system: System) -> BoolArray:
        """True where the residuals include the chip of a system; (points,), or one value."""
        values = system.chip.peak_flop_rate, system.dram.bandwidth, system.network[0].bandwidth
        same = np.asarray(np.abs(system.chip.compute_capability - self.capability) < SAME_CHIP)
        for value, own in zip(values, (self.peak, self.bandwidth, self.links), strict=True):
            same = same & (np.abs(value / own - 1) < SAME_CHIP)
        return same


@dataclass(frozen=True, slots=True)
class Residuals:
    """Quantiles of measured over predicted times, by class."""

    classes: dict[tuple[str, ...], tuple[float, float]]  #: the words of a class -> low and high
    chips: tuple[MeasuredChip, ...]  #: those with measured steps
    kinds: Mapping[tuple[str, ...], int]  #: software, chip and words of a kind -> measured runs that ship
    unseen: tuple[float, float]  #: by which multiples those of a chip without measured steps are wider


CHIP_NUMBERS: Final = ("peak", "bandwidth", "largest", "capability", "links")


@cache
def residuals() -> Residuals:
    """The table that ships, written by ``benchmarks/intervals.py``."""
    data: dict[str, Any] = data_beside(__file__, "residuals.yaml")
    classes = {tuple(one["of"]): (float(one["low"]), float(one["high"])) for one in data["classes"]}
    unseen = data["unseen_chips"]
    chips = tuple(MeasuredChip(str(one["name"]), *(float(one[name]) for name in CHIP_NUMBERS)) for one in data["chips"])
    kinds = {tuple(one["of"]): int(one["runs"]) for one in data["kinds"]}
    return Residuals(classes, chips, kinds, (float(unseen["low"]), float(unseen["high"])))


def wider_classes(framework: str, chip: str, scale: str, *, staged: bool, layers: str) -> list[tuple[str, ...]]:
    """The classes that a design is in, the narrowest first: those with most of its words, then those of its chip.

    Of these, classes of the listed release come before those of all releases, and of all of Megatron. The last has all.
    """
    regime = scale, "stages" if staged else "no stages", layers
    names = (listed_release(framework), framework.partition("@")[0], USUAL)
    software = dict.fromkeys(names if framework.startswith(USUAL) else names[:2])
    return [
        *((name, own, *regime[:depth]) for depth in (3, 2, 1, 0) for own in (chip, ANY_CHIP) for name in software),
        (),
    ]


def scale_codes(system: System, tp: ArrayLike, world_size: ArrayLike) -> IntArray:
    """Distance between the ranks of each design: codes of `SCALES`; (points,). [-]"""
    node = system.network[0].size
    codes = np.where(np.asarray(tp) > node, 2, np.where(np.asarray(world_size) > node, 1, 0))
    return np.asarray(codes, dtype=np.intp)


def layer_word(precision: int, *, experts: bool) -> str:
    """Products of the layers of a design, a word of `LAYERS`; its format is a code of `FORMATS`."""
    return LAYERS[bool(is_narrow(np.array([float(precision)]))[0]) + 2 * experts]


def kind_words(model: ModelShape, codes: Sequence[int]) -> tuple[str, ...]:
    """Words of the kind of a design, by its `kind_codes`: kernels, format, schedule, rare exchanges."""
    precision, schedule, context, experts, hops = codes
    kernels = {kernel.kind.name for layer in model.kinds for kernel in layer.kernels}
    words = {CONTEXT: context, HIDDEN_EXPERTS: experts, TWO_HOPS: hops, LONG: model.seq_len >= LONG_TOKENS}
    rare = [word for word, is_on in words.items() if is_on]
    format_word = "16 bits" if layer_word(precision, experts=False) == DENSE else [*FORMATS][precision]
    return (" ".join(sorted(kernels)), format_word, SCHEDULE_WORDS[schedule], *rare)


def kind_codes(
    precision: ArrayLike, schedule: ArrayLike, pp: ArrayLike, cp: ArrayLike, overlap_ep: ArrayLike,
    dispatcher: ArrayLike,
) -> tuple[IntArray, ...]:  # fmt: skip
    """Format, schedule (1F1B without stages), rare exchanges that are on; (points,) each. [-]"""
    staged = np.where(np.asarray(pp) > 1, schedule, ONE_FORWARD_ONE_BACKWARD)
    hops = np.asarray(dispatcher) == DISPATCH_TWO_HOP
    columns = precision, staged, np.asarray(cp) > 1, np.asarray(overlap_ep) > 0, hops
    return tuple(np.asarray(column, dtype=np.intp) for column in columns)


def software_of(framework: str) -> str:
    """The software whose runs count for a framework: all versions of Megatron are one."""
    return USUAL if not framework or framework.startswith(USUAL) else framework.partition("@")[0]


def interval(
    framework: str,
    system: System,
    model: ModelShape,
    *,
    world_size: ArrayLike,
    tp: ArrayLike = 1.0,
    pp: ArrayLike = 1.0,
    cp: ArrayLike = 1.0,
    precision: ArrayLike = 0.0,
    schedule: ArrayLike = ONE_FORWARD_ONE_BACKWARD,
    overlap_ep: ArrayLike = 0.0,
    dispatcher: ArrayLike = 0.0,
) -> Interval:
    """Intervals of a batch of transformers' designs, (points,), and the measurements that they rest on.

    `framework` is the name of the software, "" if unknown; the columns of designs hold words as their codes. [-]
    Intervals of extrapolated designs are wider by the errors on chips without measured steps.
    """
    known = residuals()
    chip, largest = measured_chips(system)
    staged = np.asarray(np.asarray(pp) > 1, dtype=np.intp)
    kind = kind_codes(precision, schedule, pp, cp, overlap_ep, dispatcher)
    columns = np.broadcast_arrays(np.atleast_1d(chip), scale_codes(system, tp, world_size), staged, *kind)
    sizes = (len(known.chips) + 1, len(SCALES), 2, len(FORMATS), len(SCHEDULE_WORDS), 2, 2, 2)
    codes, back = np.unique(np.ravel_multi_index(columns, sizes), return_inverse=True)
    found = [
        _of_class(known, framework or USUAL, model, [int(place) for place in np.unravel_index(code, sizes)])
        for code in codes
    ]
    low, high, evidence = (np.array(column)[back.ravel()] for column in zip(*found, strict=True))
    evidence = np.where(np.asarray(world_size) > BEYOND * largest, EXTRAPOLATED, evidence)
    wider = evidence == EXTRAPOLATED
    return Interval(
        np.where(wider, low * known.unseen[0], low),
        np.where(wider, high * known.unseen[1], high),
        np.asarray(evidence, dtype=np.intp),
    )


def widest(points: int) -> Interval:
    """The interval of what is like no measured step; (points,) columns. [-]"""
    known = residuals()
    low, high = known.classes[()]
    ends = low * known.unseen[0], high * known.unseen[1]
    return Interval(np.full(points, ends[0]), np.full(points, ends[1]), np.full(points, EXTRAPOLATED))


def _of_class(known: Residuals, framework: str, model: ModelShape, places: Sequence[int]) -> tuple[float, float, int]:
    """Low and high of a class or the next wider one that is known, and what its kind rests on."""
    chip, scale, staged, *kind = places
    name = known.chips[chip].name if chip < len(known.chips) else "another chip"
    layers = layer_word(kind[0], experts=model.num_experts > 0)
    wider = wider_classes(framework, name, SCALES[scale], staged=bool(staged), layers=layers)
    words = next(words for words in wider if words in known.classes)
    of_kind = (name, *kind_words(model, kind))
    runs = {software: count for (software, *rest), count in known.kinds.items() if (*rest,) == of_kind}
    own, every = runs.get(software_of(framework), 0), sum(runs.values())
    evidence = MEASURED if own >= FEWEST_RUNS else CALIBRATED if every >= FEWEST_RUNS else EXTRAPOLATED
    return (*known.classes[words], evidence)


def measured_chips(system: System) -> tuple[IntArray, FloatArray]:
    """Place of each design's chip among the measured ones, and the chips of the largest run of it. [-]

    A chip of which no step was measured has the place behind the last.
    """
    known = residuals().chips
    place: IntArray = np.asarray(len(known))
    largest: FloatArray = np.zeros(())
    for number, chip in enumerate(known):
        same = chip.found_in(system)
        place, largest = np.where(same, number, place), np.where(same, chip.largest, largest)
    return place, largest


#: Columns beside those of a breakdown, and their units: ends of the interval that holds nine of ten.
INTERVAL_UNITS: Final[Mapping[str, str]] = {
    "step_time_low": "s",
    "step_time_high": "s",
    "tokens_per_second_low": "1/s",
    "tokens_per_second_per_gpu_low": "1/s",
    "mfu_low": "-",
}
#: The same with their units, as tables show them -> the column.
INTERVAL_KEYS: Final = {name + UNIT_SUFFIX[unit]: name for name, unit in INTERVAL_UNITS.items()}

#: Column of a breakdown -> its end that is worse.
WORSE_END: Final[Mapping[str, str]] = {
    "step_time": "step_time_high",
    "step_time_s": "step_time_high_s",
    "tokens_per_second": "tokens_per_second_low",
    "tokens_per_second_per_gpu": "tokens_per_second_per_gpu_low",
    "mfu": "mfu_low",
}


def ends(breakdown: Breakdown, own: Interval) -> dict[str, FloatArray]:
    """The columns of `INTERVAL_UNITS`, under both of their names; (points,) each. [s], [1/s], [-]"""
    columns = {
        "step_time_low": breakdown.step_time * own.low,
        "step_time_high": breakdown.step_time * own.high,
        "tokens_per_second_low": breakdown.tokens_per_second / own.high,
        "tokens_per_second_per_gpu_low": breakdown.tokens_per_second_per_gpu / own.high,
        "mfu_low": breakdown.mfu / own.high,
    }
    return {**columns, **{key: columns[name] for key, name in INTERVAL_KEYS.items()}}


def at_worse_ends(data: Mapping[str, Any]) -> dict[str, Any]:
    """A space, as its file has it, that is judged by the worse ends of intervals.

    Objectives, limits and derived columns read them wherever they read a step's time, rate or utilization.
    """
    changed = dict(data)
    for key in ("derived", "constraints"):
        if isinstance(data.get(key), Mapping):
            changed[key] = {name: _worse(text) for name, text in data[key].items()}
    objectives = data.get("objectives")
    if isinstance(objectives, Mapping):
        changed["objectives"] = {
            direction: _worse(names) if isinstance(names, str) else [_worse(name) for name in names]
            for direction, names in objectives.items()
        }
    return changed


def _worse(text: Any) -> Any:
    """A formula with the names of worse ends."""
    if not isinstance(text, str):
        return text
    words = "|".join(WORSE_END)
    return re.sub(rf"\b({words})\b", lambda found: WORSE_END[found[1]], text)
