"""Intervals of predicted step times and peaks of memory, from measured runs.

Ratios of measured to predicted times are sorted into classes (software, chip, scale, stages, products): a design has
the interval of its class. Evidence for it depends on the *kind* of the design: the kernels of its layers, number
format, schedule, context parallelism and overlapped experts. A kind is measured where enough built-in runs of it are
known (`dse validate`); `predictions.yaml` counts them.

The best of many predictions is biased: a search picks the designs whose errors are favourable [Smith2006]_. The
expected time corrects for it. It is the mean of the interval's log-normal distribution, so the more uncertain of two
designs needs a larger lead; and exposed communication between nodes counts with the mean rate of real fabrics, which
is below the nominal rate.

Memory: the 90 % interval of built-in runs with a measured peak is `low` to `high` times the predicted memory; half of
them need more than `middle` times. A design fits if the upper end does, and does not if the middle does not: 97 % of
nanotron's runs that died on 80 GB GPUs exceed it (Tazi et al. 2025), and 0.4 % of those that ran. In between it is
tight. The room that a plan leaves free (`headroom_share`) follows from `high`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any, Final

import numpy as np
from numpy.typing import ArrayLike

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.formats.framework_file import listed_release
from costmodel.formats.input_files import data_beside
from costmodel.machine import System
from costmodel.steps.breakdown import UNIT_SUFFIX, Breakdown
from costmodel.training.design import DISPATCH_TWO_HOP, ONE_FORWARD_ONE_BACKWARD, SCHEDULE_WORDS, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.precision import FORMATS, is_narrow

#: Support of a prediction: runs of its kind on its chip with its software; with other software; neither.
EVIDENCE: Final = ("measured", "calibrated", "extrapolated")
MEASURED, CALIBRATED, EXTRAPOLATED = range(3)

#: Words of a class: distance between ranks, and kind of the products of layers.
ONE_NODE, NODES, WIDE_TP = "one node", "several nodes", "tensor parallelism across nodes"
DENSE, NARROW, EXPERTS, NARROW_EXPERTS = "dense", "8 bits", "experts", "experts, 8 bits"
SCALES: Final = (ONE_NODE, NODES, WIDE_TP)
LAYERS: Final = (DENSE, NARROW, EXPERTS, NARROW_EXPERTS)

#: Chips are the same where rates, compute capability and links within a node agree to this share. [-]
SAME_CHIP: Final = 0.01
#: Multiple of the chips of the largest measured run beyond which nothing is measured. [-]
BEYOND: Final = 4.0
#: Replaces the chip in classes of steps on any chip.
ANY_CHIP: Final = "any chip"
#: Fewest runs that measure a kind: two have no spread that a third could contradict. [-]
FEWEST_RUNS: Final = 3
#: Columns of designs that make kinds where they are on, or more than one rank.
CONTEXT, HIDDEN_EXPERTS, TWO_HOPS = "context parallelism", "EP communication overlap", "two-hop dispatch (DeepEP)"
ADAPTERS, REFERENCE = "adapters", "a reference model"
#: Word of a kind of packed documents.
PACKED: Final = "packed documents"
#: Word of a kind of long sequences, and the fewest tokens of one.
LONG, LONG_TOKENS = "long sequences", 32768

#: Half width of a 90 % interval in standard deviations. [-]
NINETY: Final = 1.645
#: Spread of the logarithm of a fabric's rate below its nominal rate, one-sided: all-reduces over 32 nodes of H100
#: reached 13 to 27 of 50 GB/s in published runs on EFA. [-]
FABRIC_SPREAD: Final = 0.8
#: Mean time of an exchange over a fabric of that spread over its time at the nominal rate, less 1. [-]
SLOWER_FABRIC: Final = math.exp(FABRIC_SPREAD**2 / 2) * (1 + math.erf(FABRIC_SPREAD / math.sqrt(2))) - 1

#: Software of a space that names none: all versions of Megatron, whose names begin so.
USUAL: Final = "megatron"


@dataclass(frozen=True, slots=True)
class Interval:
    """Between which multiples of its predicted time a step lies nine times of ten; (points,) each."""

    low: FloatArray  #: [-]
    high: FloatArray  #: [-]
    evidence: IntArray  #: places in `EVIDENCE` [-]
    mean: FloatArray  #: mean ratio of measured to predicted time, for any stages [-]
    #: Column of exposed communication -> True where its group spans nodes, (points,) each.
    between_nodes: Mapping[str, BoolArray] = field(default_factory=dict)

    def expected(self, costs: Mapping[str, ArrayLike]) -> FloatArray:
        """Expected step time of designs, (points,), from columns of their breakdown. [s]"""
        exposed = sum(np.asarray(costs[name]) * spans for name, spans in self.between_nodes.items())
        return np.asarray(self.mean * (np.asarray(costs["step_time"]) + SLOWER_FABRIC * exposed))


@dataclass(frozen=True, slots=True)
class MeasuredChip:
    """A chip with measured steps."""

    name: str  #: of a built-in system that has it
    peak: float  #: rate of its matrix units [FLOP/s]
    bandwidth: float  #: of its memory [B/s]
    largest: float  #: chips of the largest measured run [-]
    capability: float  #: compute capability, 0 where a chip has none [-]
    links: float  #: bandwidth within a node, one direction [B/s]

    def found_in(self, system: System) -> BoolArray:
        """True where the residuals include the chip of a system; (points,), or one value."""
        values = system.chip.peak_flop_rate, system.dram.bandwidth, system.network[0].bandwidth
        same = np.asarray(np.abs(system.chip.compute_capability - self.capability) < SAME_CHIP)
        for value, rate in zip(values, (self.peak, self.bandwidth, self.links), strict=True):
            same = same & (np.abs(value / rate - 1) < SAME_CHIP)
        return same


@dataclass(frozen=True, slots=True)
class Residuals:
    """Quantiles of measured over predicted times, by class."""

    classes: dict[tuple[str, ...], tuple[float, float]]  #: the words of a class -> low and high
    chips: tuple[MeasuredChip, ...]  #: those with measured steps
    kinds: Mapping[tuple[str, ...], int]  #: software, chip and words of a kind -> number of built-in measured runs
    unseen: tuple[float, float]  #: by which multiples those of a chip without measured steps are wider


CHIP_NUMBERS: Final = ("peak", "bandwidth", "largest", "capability", "links")


@cache
def residuals() -> Residuals:
    """The built-in table, written by ``benchmarks/intervals.py``."""
    data: dict[str, Any] = data_beside(__file__)
    classes = {tuple(one["of"]): (float(one["low"]), float(one["high"])) for one in data["classes"]}
    unseen = data["unseen_chips"]
    chips = tuple(MeasuredChip(str(one["name"]), *(float(one[name]) for name in CHIP_NUMBERS)) for one in data["chips"])
    kinds = {tuple(one["of"]): int(one["runs"]) for one in data["kinds"]}
    return Residuals(classes, chips, kinds, (float(unseen["low"]), float(unseen["high"])))


def wider_classes(framework: str, chip: str, scale: str, *, staged: bool, layers: str) -> list[tuple[str, ...]]:
    """The classes that a design is in, the narrowest first: those with most of its words, then those of its chip.

    Of these, classes of the listed release come before those of all releases, and of all of Megatron. The last has all.
    """
    regime = scale, layers, "stages" if staged else "no stages"
    names = (listed_release(framework), framework.partition("@")[0], USUAL)
    software = dict.fromkeys(names if framework.startswith(USUAL) else names[:2])
    return [
        *((name, of, *regime[:depth]) for depth in (3, 2, 1, 0) for of in (chip, ANY_CHIP) for name in software),
        (),
    ]


def known_ends(
    classes: Mapping[tuple[str, ...], Sequence[float]], wider: Callable[[str], list[tuple[str, ...]]], chip: str,
    measured: Collection[str],
) -> tuple[float, float]:  # fmt: skip
    """Low and high of the narrowest known class of a design; of a chip without measured steps, the union of classes.

    `wider` are the `wider_classes` of a chip. A chip that nobody measured is as uncertain as any measured one. [-]
    """
    chips = [chip] if chip in measured else [chip, *measured]
    narrowest = [classes[next(words for words in wider(one) if words in classes)] for one in chips]
    return min(ends[0] for ends in narrowest), max(ends[1] for ends in narrowest)


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
    precision, schedule, *others = codes
    kernels = {kernel.kind.name for layer in model.kinds for kernel in layer.kernels}
    words = dict(zip((CONTEXT, HIDDEN_EXPERTS, TWO_HOPS, ADAPTERS, REFERENCE), others, strict=False))
    words |= {LONG: model.seq_len >= LONG_TOKENS, PACKED: 0 < model.document_len < model.seq_len}
    rare = [word for word, is_on in words.items() if is_on]
    format_word = "16 bits" if layer_word(precision, experts=False) == DENSE else [*FORMATS][precision]
    return (" ".join(sorted(kernels)), format_word, SCHEDULE_WORDS[schedule], *rare)


def kind_codes(columns: Mapping[str, ArrayLike]) -> tuple[IntArray, ...]:
    """Format, schedule (1F1B without stages) and rare exchanges that are on, from columns of designs; (points,). [-]"""
    known = {**DesignPoints().columns(), **columns}
    staged = np.where(np.asarray(known["pp"]) > 1, known["schedule"], ONE_FORWARD_ONE_BACKWARD)
    hops = np.asarray(known["dispatcher"]) == DISPATCH_TWO_HOP
    above = {"cp": 1, "overlap_ep": 0, "lora_rank": 0, "reference_model": 0}
    context, overlap, *switches = (np.asarray(known[name]) > least for name, least in above.items())
    codes = known["precision"], staged, context, overlap, hops, *switches
    return tuple(np.asarray(code, dtype=np.intp) for code in codes)


def ranks_of(columns: Mapping[str, ArrayLike]) -> FloatArray:
    """Ranks of designs: as their columns say, or the product of the sizes of their groups. [-]"""
    sizes = (np.asarray(columns.get(name, 1.0)) for name in ("tp", "cp", "pp", "dp"))
    return np.asarray(columns["world_size"] if "world_size" in columns else math.prod(sizes))


def software_of(framework: str) -> str:
    """The software whose runs count for a framework: all versions of Megatron are one."""
    return USUAL if not framework or framework.startswith(USUAL) else framework.partition("@")[0]


def interval(framework: str, system: System, model: ModelShape, columns: Mapping[str, ArrayLike]) -> Interval:
    """Intervals of a batch of transformers' designs, (points,), and the measurements that they rest on.

    `framework` is the name of the software, "" if unknown; `columns` of designs hold words as their codes, and omitted
    ones have their defaults. [-] Intervals of extrapolated designs are wider by the errors on chips without measured
    steps.
    """
    known, design, ranks = residuals(), {**DesignPoints().columns(), **columns}, ranks_of(columns)
    tp, pp, cp, ep, etp = (design[name] for name in ("tp", "pp", "cp", "ep", "etp"))
    chip, largest = measured_chips(system)
    staged = np.asarray(np.asarray(pp) > 1, dtype=np.intp)
    codes = np.broadcast_arrays(np.atleast_1d(chip), scale_codes(system, tp, ranks), staged, *kind_codes(design))
    classes, evidence = _of_classes(known, framework or USUAL, model, codes)
    evidence = np.where(ranks > BEYOND * largest, EXTRAPOLATED, evidence)
    classes = np.where((evidence == EXTRAPOLATED)[:, None, None], classes * known.unseen, classes)
    (low, high), node = classes[:, 0].T, system.network[0].size
    groups = {"tp": tp, "cp": np.multiply(tp, cp), "ep": np.multiply(ep, etp), "pp": ranks, "dp": ranks}
    return Interval(
        low,
        high,
        np.asarray(evidence, dtype=np.intp),
        mean_ratio(classes[:, 1]),
        {f"{name}_communication_time": np.asarray(ranks) > node for name, ranks in groups.items()},
    )


def unmeasured_features(system: System, model: ModelShape, world_size: ArrayLike, codes: Sequence[int]) -> list[str]:
    """Features of one design that no measured kind on its chip has, in words; none if only their combination is new.

    A chip without measured kinds leaves the cost model alone. `codes` are those of `kind_codes`. [-]
    """
    known = residuals()
    number, largest = (float(np.max(values)) for values in measured_chips(system))
    chip = known.chips[int(number)].name if number < len(known.chips) else ""
    kinds = [words for (_, name, *words), runs in known.kinds.items() if name == chip and runs >= FEWEST_RUNS]
    (kernels, *usual), rare = (words := kind_words(model, codes))[:3], words[3:]
    if not kinds:
        return ["the cost model alone"]
    features = [] if any(kernels == of_kind[0] for of_kind in kinds) else ["its kinds of layers"]
    features += [word for word in (*usual, *rare) if not any(word in of_kind for of_kind in kinds)]
    ranks = float(np.max(world_size))
    return [*features, f"{ranks:,.0f} ranks"] if chip and ranks > BEYOND * largest else features


def widest(points: int) -> Interval:
    """The interval of designs that resemble no measured step; (points,) columns. [-]"""
    known = residuals()
    ends = np.broadcast_to(np.multiply(known.classes[()], known.unseen), (points, 2))
    low, high = ends.T
    return Interval(low, high, np.full(points, EXTRAPOLATED), mean_ratio(ends))


def mean_ratio(ends: FloatArray) -> FloatArray:
    """Means of log-normal ratios from the ends of their 90 % intervals, (..., 2). [-]

    >>> round(float(mean_ratio(np.array([0.8, 1.25]))), 3)
    1.009
    """
    logs = np.log(ends)
    deviation = (logs[..., 1] - logs[..., 0]) / (2 * NINETY)
    return np.asarray(np.exp(logs.mean(axis=-1) + deviation**2 / 2))


def _of_classes(
    known: Residuals, framework: str, model: ModelShape, columns: Sequence[IntArray]
) -> tuple[FloatArray, IntArray]:
    """Both classes of each design, (points, 2, 2), and its evidence, (points,): `_of_class`. [-]

    `columns` are codes of its chip, scale, stages and kind.
    """
    sizes = (len(known.chips) + 1, len(SCALES), 2, len(FORMATS), len(SCHEDULE_WORDS), *[2] * (len(columns) - 5))
    codes, back = np.unique(np.ravel_multi_index(tuple(columns), sizes), return_inverse=True)
    of_codes = [_of_class(known, framework, model, [int(c) for c in np.unravel_index(code, sizes)]) for code in codes]
    classes, evidence = (np.array(column)[back.ravel()] for column in zip(*of_codes, strict=True))
    return classes, evidence


def _of_class(
    known: Residuals, framework: str, model: ModelShape, places: Sequence[int]
) -> tuple[list[tuple[float, float]], int]:
    """Low and high of a class or the next wider known one; the same for any stages; its evidence.

    The second is for expected times: no layout is first only because runs with its number of stages had smaller errors.
    """
    chip, scale, staged, *kind = places
    name = known.chips[chip].name if chip < len(known.chips) else "another chip"
    layers = layer_word(kind[0], experts=model.num_experts > 0)
    wider = partial(wider_classes, framework, scale=SCALES[scale], staged=bool(staged), layers=layers)
    most = len(wider(name)[0])
    coarse = next(words for words in wider(name) if words in known.classes and len(words) < most)
    of_kind = (name, *kind_words(model, kind))
    runs = {software: count for (software, *rest), count in known.kinds.items() if (*rest,) == of_kind}
    own_runs, every = runs.get(software_of(framework), 0), sum(runs.values())
    evidence = MEASURED if own_runs >= FEWEST_RUNS else CALIBRATED if every >= FEWEST_RUNS else EXTRAPOLATED
    measured = [one.name for one in known.chips]
    return [known_ends(known.classes, wider, name, measured), known.classes[coarse]], evidence


def measured_chips(system: System) -> tuple[IntArray, FloatArray]:
    """Place of each design's chip among the measured ones, and the chips of the largest run of it. [-]

    A chip without measured steps has the place behind the last.
    """
    known = residuals().chips
    numbers: IntArray = np.asarray(len(known))
    largest: FloatArray = np.zeros(())
    for number, chip in enumerate(known):
        same = chip.found_in(system)
        numbers, largest = np.where(same, number, numbers), np.where(same, chip.largest, largest)
    return numbers, largest


#: Rates of a breakdown that follow from its step time, and their units.
RATES: Final = {"tokens_per_second": "1/s", "tokens_per_second_per_gpu": "1/s", "mfu": "-"}
#: Columns in addition to those of a breakdown, and their units: ends of the 90 % interval, and expected values.
INTERVAL_UNITS: Final[Mapping[str, str]] = {
    **{f"{name}_expected": unit for name, unit in {"step_time": "s", **RATES}.items()},
    **dict.fromkeys(("step_time_low", "step_time_high"), "s"),
    **{f"{name}_low": unit for name, unit in RATES.items()},
}
#: The same with their units, as tables show them -> the column.
INTERVAL_KEYS: Final = {name + UNIT_SUFFIX[unit]: name for name, unit in INTERVAL_UNITS.items()}

#: Column of a breakdown -> its expected value.
EXPECTED: Final[Mapping[str, str]] = {
    "step_time_s": "step_time_expected_s",
    **{name: f"{name}_expected" for name in ("step_time", *RATES)},
}
#: Column of a breakdown, or its expected value -> its end that is worse.
WORSE_END: Final[Mapping[str, str]] = {
    name: worse
    for column, expected in EXPECTED.items()
    for worse in [column.replace("step_time", "step_time_high") if "step" in column else f"{column}_low"]
    for name in (column, expected)
}


def ends(breakdown: Breakdown, of_step: Interval) -> dict[str, FloatArray]:
    """The columns of `INTERVAL_UNITS`, under both of their names; (points,) each. [s], [1/s], [-]"""
    rates = {name: getattr(breakdown, name) for name in RATES}
    expected = of_step.expected(breakdown.columns())
    columns = {
        "step_time_expected": expected,
        "step_time_low": breakdown.step_time * of_step.low,
        "step_time_high": breakdown.step_time * of_step.high,
        **{f"{name}_expected": rate * breakdown.step_time / expected for name, rate in rates.items()},
        **{f"{name}_low": rate / of_step.high for name, rate in rates.items()},
    }
    return {**columns, **{key: columns[name] for key, name in INTERVAL_KEYS.items()}}


def at_worse_ends(data: Mapping[str, Any]) -> dict[str, Any]:
    """A space, as its file has it, that is judged by the worse ends of intervals.

    Objectives, limits and derived columns read them wherever they read a step's time, rate or utilization.
    """
    sections = ("derived", "constraints", "objectives")
    return {**data, **{key: with_names(data[key], WORSE_END) for key in sections if key in data}}


def with_names(formulas: Any, names: Mapping[str, str]) -> Any:
    """A formula, or a list or mapping of formulas, with other names in place of some.

    >>> with_names("step_time < 2 s", EXPECTED), with_names({"minimize": ["mfu"]}, EXPECTED)
    ('step_time_expected < 2 s', {'minimize': ['mfu_expected']})
    """
    if isinstance(formulas, Mapping):
        return {key: with_names(formula, names) for key, formula in formulas.items()}
    if isinstance(formulas, list):
        return [with_names(formula, names) for formula in formulas]
    if not isinstance(formulas, str) or not names:
        return formulas
    return re.sub(rf"\b({'|'.join(names)})\b", lambda match: names[match[1]], formulas)


#: Verdicts on the memory of a design.
FITS, TIGHT, DOES_NOT_FIT = VERDICTS = ("fits", "tight", "does not fit")
#: Fewer runs with a measured peak than this give no separate distribution. [-]
FEWEST_PEAKS: Final = 16


@dataclass(frozen=True, slots=True)
class PeakSpread:
    """Spread of measured peaks of memory over predicted ones."""

    software: str  #: whose runs these are, in words
    runs: int
    low: float  #: 5th percentile of measured over predicted [-]
    middle: float  #: median [-]
    high: float  #: 95th percentile [-]

    @property
    def headroom_share(self) -> float:
        """Share of a chip's memory that a plan leaves free. [-]"""
        return max(1 - 1 / self.high, 0.0)

    def verdict(self, peak: float, capacity: float) -> str:
        """The verdict on a design, a word of `VERDICTS`."""
        if peak * self.middle > capacity:
            return DOES_NOT_FIT
        return FITS if peak * max(self.high, 1.0) <= capacity else TIGHT

    def __str__(self) -> str:
        """The spread in words."""
        return (
            f"measured peaks of {self.software} are {self.low:g} to {self.high:g} times the predicted ones "
            f"(90 % of {self.runs} runs)"
        )


#: Start of a framework's name -> spread of the built-in runs of these frameworks; the first match counts. It is that of
#: all runs where fewer than `FEWEST_PEAKS` match (fitted: `tests/dse/predictions/test_memory_fit.py`).
SPREADS: Final[Mapping[str, PeakSpread]] = {
    "megatron_core@20": PeakSpread("Megatron-LM of 2022", 20, 0.92, 0.95, 1.01),
    "megatron_core": PeakSpread("Megatron Core", 20, 0.94, 1.0, 1.08),
    "nanotron": PeakSpread("nanotron", 60, 0.89, 1.06, 1.25),
    "pytorch_fsdp": PeakSpread("plain PyTorch", 34, 0.96, 1.06, 1.22),
    "": PeakSpread("all frameworks", 142, 0.92, 1.03, 1.21),
}


def peak_spread(framework: str) -> PeakSpread:
    """The spread of measured peaks that designs of a framework are judged by."""
    name = framework or "megatron_core"
    return next(spread for start, spread in SPREADS.items() if name.startswith(start))
