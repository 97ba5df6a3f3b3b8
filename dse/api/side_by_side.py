"""Plans on several systems and numbers of GPUs side by side: the fastest layout of each, with its cost.

Dollars are those of an owner, by the prices of the system file, or of a renter, at a price for a GPU-hour.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from costmodel.columns import short_repr
from costmodel.errors import ParameterError, suggestion
from dse.api.searching import PlannedStudy
from dse.output import Record, ranked_rate, ranked_time
from dse.spaces.question import NothingFits


@dataclass(frozen=True)
class PlanRow:
    """The fastest layout on a number of GPUs of a system, or the reason why none fits."""

    system: str
    gpus: int
    plan: PlannedStudy | NothingFits
    gpu_hour_price: float | None = None  #: rent [$]; None: the GPUs are owned

    @cached_property
    def record(self) -> Record | None:
        """The fastest layout; None where none fits."""
        if isinstance(self.plan, NothingFits) or not (front := self.plan.study.table.front().records()):
            return None
        return min(front, key=ranked_time)

    @property
    def cost(self) -> float | None:
        """Cost of the run, or without tokens the rent for a billion of them; None where unknown. [$]"""
        run = (self.record or {}).get("run", {})
        if self.record is None or self.gpu_hour_price is None:
            return float(run["run_cost_usd"]) if "run_cost_usd" in run else None
        rate = ranked_rate(self.record, "tokens_per_second_per_gpu")
        return float(self.gpu_hour_price * (run["gpu_hours"] if run else 1e9 / rate / 3600))

    def to_json(self) -> dict[str, Any]:
        """The row as JSON has it."""
        head: dict[str, Any] = {"system": self.system, "gpus": self.gpus, "fits": self.record is not None}
        if self.record is None or isinstance(self.plan, NothingFits):
            return {**head, "reason": str(self.plan)}
        owner = "owned" if self.gpu_hour_price is None else "rented"
        money = {"dollars": owner, "gpu_hour_price": self.gpu_hour_price, "cost_usd": self.cost}
        keys = ("trial", "params", "values", "breakdown", "step_time_low_s", "step_time_high_s", "run")
        figures = {key: self.record[key] for key in keys if key in self.record}
        return {**head, "study": self.plan.study.name, **figures, **money}


@dataclass(frozen=True)
class PlanTable:
    """Plans side by side, in the order in which they were given."""

    __repr__ = short_repr

    rows: tuple[PlanRow, ...]

    @property
    def fastest(self) -> PlanRow | None:
        """The row with the most tokens per second; None where nothing fits."""
        rates = [ranked_rate(row.record, "tokens_per_second") if row.record else 0.0 for row in self.rows]
        return self.rows[rates.index(max(rates))] if any(rates) else None

    @property
    def cheapest(self) -> PlanRow | None:
        """The row with the lowest cost; None where no cost is known."""
        costs = {at: row.cost for at, row in enumerate(self.rows) if row.cost is not None}
        return self.rows[min(costs, key=lambda at: costs[at])] if costs else None


def compare_plans(
    plans: Mapping[tuple[str, int], PlannedStudy | NothingFits],
    *,
    gpu_hour_price: float | Mapping[str, float] | None = None,
) -> PlanTable:
    """Plans of one model side by side, with the cheapest and the fastest.

    Parameters
    ----------
    plans : mapping
        System and number of GPUs -> result of `dse.plan`, or its error where nothing fits.
    gpu_hour_price : float or mapping, optional
        Rent of a GPU for an hour, or that of each system, as in ``{"h100": 2.5, "b200": 4.2}``; by default
        the GPUs are owned. [$]
    """
    prices = prices_of(list(dict.fromkeys(name for name, _ in plans)), gpu_hour_price)
    return PlanTable(tuple(PlanRow(name, gpus, plan, prices.get(name)) for (name, gpus), plan in plans.items()))


def prices_of(systems: Sequence[str], asked: float | Mapping[str, float] | None) -> dict[str, float]:
    """The price of a GPU-hour of each system; none where GPUs are owned. [$]"""
    if not isinstance(asked, Mapping):
        return {} if asked is None else dict.fromkeys(systems, float(asked))
    if unknown := next((name for name in asked if name not in systems), None):
        raise ParameterError(f"{{gpu_hour_price}}: {unknown}: not planned{suggestion(unknown, systems)}")
    if missing := next((name for name in systems if name not in asked), None):
        raise ParameterError(f"{{gpu_hour_price}}: no price of {missing}; give one for each system")
    return dict(asked)
