"""How far off a predicted step may be: intervals from what validation left, and what they rest on.

Measured steps fall into classes, by their software, by how far their ranks stand apart, by whether layers are
in stages, and by what layers multiply. Of each class the table holds between which multiples of the predicted
time nine in ten of the measured ones lie. A design has the interval of its class, or of the next wider one
with rows enough; one on a chip of which no step was measured, or on far more chips, has a wider one.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import yaml
from numpy.typing import ArrayLike

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.formats.system_file import load_system
from costmodel.machine.system import System
from costmodel.training.precision import is_narrow

#: What a prediction rests on: steps of such designs on such chips; steps of that chip; neither.
EVIDENCE: Final = ("measured", "calibrated", "extrapolated")
MEASURED, CALIBRATED, EXTRAPOLATED = range(3)

#: Words of a class: how far ranks stand apart, and what layers multiply.
ONE_NODE, NODES, WIDE_TP = "one node", "several nodes", "tensor parallelism across nodes"
DENSE, NARROW, EXPERTS, NARROW_EXPERTS = "dense", "8 bits", "experts", "experts, 8 bits"
SCALES: Final = (ONE_NODE, NODES, WIDE_TP)
LAYERS: Final = (DENSE, NARROW, EXPERTS, NARROW_EXPERTS)

#: Chips are the same where their peak rate and the bandwidth of their memory agree to this share. [-]
SAME_CHIP: Final = 0.01
#: Beyond so many times the chips of the largest measured run nothing is measured. [-]
BEYOND: Final = 4.0

#: Frameworks of which one may be taken where a space names none: of fused kernels.
USUAL: Final = "megatron_core"


@dataclass(frozen=True, slots=True)
class Interval:
    """Between which multiples of its predicted time a step lies nine times of ten; (points,) each."""

    low: FloatArray  #: [-]
    high: FloatArray  #: [-]
    evidence: IntArray  #: places in `EVIDENCE` [-]


@dataclass(frozen=True, slots=True)
class Residuals:
    """Quantiles of measured over predicted times, by class."""

    classes: dict[tuple[str, ...], tuple[float, float]]  #: the words of a class -> low and high
    chips: dict[str, float]  #: shipped system of each chip with measured steps -> chips of the largest run
    unseen: tuple[float, float]  #: by which multiples those of a chip without measured steps are wider


@cache
def residuals() -> Residuals:
    """The table that ships, written by ``benchmarks/intervals.py``."""
    data: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "residuals.yaml").read_text())
    classes = {tuple(one["of"]): (float(one["low"]), float(one["high"])) for one in data["classes"]}
    unseen = data["unseen_chips"]
    return Residuals(classes, dict(data["chips"]), (float(unseen["low"]), float(unseen["high"])))


def wider_classes(framework: str, scale: str, staged: bool, layers: str) -> list[tuple[str, ...]]:
    """The classes that a design is in, the narrowest first."""
    stages = "stages" if staged else "no stages"
    words = (framework, scale, stages, layers)
    return [words[:depth] for depth in (4, 3, 2, 1, 0)]


def scale_codes(system: System, tp: ArrayLike, world_size: ArrayLike) -> IntArray:
    """How far ranks of each design stand apart: places in `SCALES`; (points,). [-]"""
    node = system.network[0].size
    codes = np.where(np.asarray(tp) > node, 2, np.where(np.asarray(world_size) > node, 1, 0))
    return np.asarray(codes, dtype=np.intp)


def layer_codes(precision: ArrayLike, *, experts: bool) -> IntArray:
    """What layers of each design multiply: places in `LAYERS`; (points,). [-]"""
    narrow = np.where(is_narrow(np.asarray(precision, dtype=np.float64)), 1, 0)
    return np.asarray(narrow + (2 if experts else 0), dtype=np.intp)


def interval(
    framework: str,
    system: System,
    *,
    world_size: ArrayLike,
    tp: ArrayLike = 1.0,
    pp: ArrayLike = 1.0,
    precision: ArrayLike = 0.0,
    experts: bool = False,
) -> Interval:
    """Intervals of a batch of transformers' designs, and what they rest on.

    Parameters
    ----------
    framework : str
        Name of their software; "" where it is not said.
    system : System
        Machines.
    world_size, tp, pp, precision : scalar or (points,) array
        Columns of the designs; words as their codes. [-]
    experts : bool
        Whether the model has layers with experts.

    Returns
    -------
    interval : Interval
        (points,) columns. [-]
    """
    known = residuals()
    scale, layers = scale_codes(system, tp, world_size), layer_codes(precision, experts=experts)
    staged = np.asarray(np.asarray(pp) > 1, dtype=np.intp)
    own = np.atleast_1d((scale * 2 + staged) * len(LAYERS) + layers)
    codes, back = np.unique(own, return_inverse=True)
    found = [_of_class(known, framework or USUAL, int(code)) for code in codes]
    low, high, depth = (np.array(column)[back.ravel()] for column in zip(*found, strict=True))
    seen, largest = measured_chips(system)
    far = ~seen | (np.asarray(world_size) > BEYOND * largest)
    evidence = np.where(far, EXTRAPOLATED, np.where(depth == 0, MEASURED, CALIBRATED))
    return Interval(
        np.where(seen, low, low * known.unseen[0]),
        np.where(seen, high, high * known.unseen[1]),
        np.asarray(evidence, dtype=np.intp),
    )


def widest(points: int) -> Interval:
    """The interval of what is like no measured step; (points,) columns. [-]"""
    known = residuals()
    low, high = known.classes[()]
    ends = low * known.unseen[0], high * known.unseen[1]
    return Interval(np.full(points, ends[0]), np.full(points, ends[1]), np.full(points, EXTRAPOLATED))


def _of_class(known: Residuals, framework: str, code: int) -> tuple[float, float, int]:
    """Low and high of a class or the next wider one that is known, and how many were passed over."""
    rest, layers = divmod(code, len(LAYERS))
    scale, staged = divmod(rest, 2)
    for depth, words in enumerate(wider_classes(framework, SCALES[scale], bool(staged), LAYERS[layers])):
        if words in known.classes:
            return (*known.classes[words], depth)
    raise AssertionError("the class of all steps is always known")


def measured_chips(system: System) -> tuple[BoolArray, FloatArray]:
    """Whether steps of each design's chip were measured, and the chips of the largest such run. [-]"""
    seen: BoolArray = np.zeros((), dtype=bool)
    largest: FloatArray = np.zeros(())
    for name, chips in residuals().chips.items():
        peak, bandwidth = _figures(name)
        same = np.abs(system.chip.peak_flop_rate / peak - 1) < SAME_CHIP
        same = same & (np.abs(system.dram.bandwidth / bandwidth - 1) < SAME_CHIP)
        seen, largest = seen | same, np.where(same, np.maximum(largest, chips), largest)
    return seen, largest


@cache
def _figures(name: str) -> tuple[float, float]:
    """Peak rate and bandwidth of memory of a shipped system. [FLOP/s], [B/s]"""
    system = load_system(name)
    return float(system.chip.peak_flop_rate), float(system.dram.bandwidth)
