"""A measured step, or the trace of one, held against the predicted step.

`causes.yaml` lists changes of the design or the machine that real runs suffer from, such as half the network
bandwidth. The cost model evaluates each alone; its share of the gap says whether it could explain the gap. An adapter
reads traces and compares them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from costmodel.columns import short_repr
from costmodel.errors import DseError, ParameterError
from costmodel.formats.input_files import data_beside
from dse.arguments import Paths
from dse.explaining.explanation import Explanation
from dse.pricing.evaluation import evaluated_design
from dse.registry import measurement_reader

#: Causes below this share of the predicted step are left out. [-]
SLIGHT: Final = 0.002


@dataclass(frozen=True)
class Cause:
    """A candidate cause, evaluated alone."""

    name: str
    changes: Mapping[str, Any]  #: setting or quantity -> value [SI units]
    step_time: float  #: with the cause [s]
    share: float  #: of the gap that it could explain [-]
    check: str  #: the counter or command that would show it


@dataclass(frozen=True)
class MeasuredGap:
    """A measured step, the predicted one, and the causes that could explain the gap, the closest first."""

    __repr__ = short_repr

    explanation: Explanation
    measured: float  #: [s]
    causes: tuple[Cause, ...]

    @property
    def interval(self) -> tuple[float, float]:
        """Ends of the 90 % interval of the predicted step. [s]"""
        record, usual = self.explanation.record, self.explanation.step_time
        return record.get("step_time_low_s", usual), record.get("step_time_high_s", usual)

    def to_json(self) -> dict[str, Any]:
        """Both steps and the causes as JSON has them."""
        low, high = self.interval
        causes = [
            {"cause": cause.name, "changes": dict(cause.changes), "step_time_s": cause.step_time,
             "share_of_gap": cause.share, "check": cause.check} for cause in self.causes
        ]  # fmt: skip
        predicted = {"predicted_s": self.explanation.step_time, "low_s": low, "high_s": high}
        return {"measured_s": self.measured, **predicted, "causes": causes}


def measured_gap(
    explanation: Explanation, *, measured_step_time: float | None = None, measured_mfu: float | None = None
) -> MeasuredGap:
    """Hold a measured step against a design's prediction, and rank the causes that could explain the gap.

    Raises `DseError` if neither or both are given, or one is out of range.

    Parameters
    ----------
    explanation : Explanation
        The design, as `dse.explain` explains it.
    measured_step_time : float, optional
        Measured time of a step. [s]
    measured_mfu : float, optional
        Measured MFU in place of the time, a share such as 0.30. [-]
    """
    if (measured_step_time is None) == (measured_mfu is None):
        raise ParameterError("give one of {measured_step_time} and {measured_mfu}")
    if measured_mfu is not None:
        if not 0 < measured_mfu <= 1:
            hint = f"{measured_mfu / 100:.2f}" if 1 < measured_mfu <= 100 else "0.30"
            raise ParameterError(f"{{measured_mfu}} {measured_mfu:g}: MFU is a share: {hint}")
        measured_step_time = explanation.step_time * explanation.record["breakdown"]["mfu"] / measured_mfu
    assert measured_step_time is not None
    predicted = explanation.step_time
    causes = [cause for cause in _causes(explanation, measured_step_time - predicted) if cause.share > 0]
    causes.sort(key=lambda cause: -min(cause.share, 1 / cause.share))  # those that come closest to the gap
    return MeasuredGap(explanation, measured_step_time, tuple(causes))


def _causes(explanation: Explanation, gap: float) -> Iterator[Cause]:
    """Causes that slow the design down, each evaluated alone; none where the measured step is faster."""
    system, predicted = explanation.system, explanation.step_time
    quantities = {name: float(value) for name, value in system.quantities().items()}
    tried: list[tuple[str, Mapping[str, Any], str]] = []
    for row in data_beside(__file__, "causes.yaml"):
        for tier in [tier_name.name for tier_name in system.network] if "{}" in row["cause"] else [""]:
            factors = {name.format(tier): factor for name, factor in row.get("factors", {}).items()}
            scaled = {name: quantities[name] * factors[name] for name in factors if name in quantities}
            if changes := {**row.get("settings", {}), **scaled}:
                tried.append((row["cause"].format(tier), changes, row["check"]))
    for cause, changed, check in tried if gap > 0 else []:
        slower = _step_time(explanation, changed) - predicted
        if slower > SLIGHT * predicted:
            yield Cause(cause, changed, predicted + slower, slower / gap, check)


def _step_time(explanation: Explanation, changes: Mapping[str, Any]) -> float:
    """Step time of the design with a change, NaN where it is not legal. [s]"""
    try:
        space = explanation.space.pinned(changes, replace=True)
        params = space.completed({**explanation.params, **{n: v for n, v in changes.items() if n in space.by_name}})
        return float(evaluated_design(space, params)["breakdown"]["step_time_s"])
    except DseError:
        return float("nan")


def trace_gap(explanation: Explanation, traces: Paths) -> Any:
    """Hold traces of the PyTorch profiler against the prediction: where a run loses time.

    The result has the `parts` of the step and its `kernels`, predicted and measured. Raises `DseError` if a file cannot
    be read, or is no such trace with kernels of a GPU and steps.

    Parameters
    ----------
    explanation : Explanation
        The design, as `dse.explain` explains it.
    traces : sequence of str or Path
        Files of one rank each; the first is held against the prediction, all of them against each other.
    """
    if not traces:
        raise ParameterError("{traces}: expected at least one file")
    return measurement_reader("trace_gap")(explanation, [*map(Path, traces)])
