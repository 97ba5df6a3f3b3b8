"""A whole training run in words: how long, what for, and how often it is interrupted."""

from __future__ import annotations

from costmodel.formats.quantity import readable, readable_count
from dse.report.text import Record, percent
from dse.spaces.runs import UNITS

#: Columns of a run that tables of designs have; reports say the others of one design, files of all.
IN_TABLES = ("run_time", "run_cost")

#: What a run takes, beside its time and its emissions -> unit.
SPENT = {"run_cost_usd": "$", "run_energy_j": "J"}

#: Below, minutes are shown in seconds; above, in hours. [s]
A_MINUTE, HOURS = 60.0, 7200.0


def run_text(record: Record) -> str:
    """The run of a design: ``15T tokens: 73.7 days, 29.0M GPU-hours, $72.5M, 30.5 GWh, ...``."""
    run = record["run"]
    if "run_time_s" not in run:
        return f"{readable_count(run['tokens'])} tokens: such a run never ends"
    parts = [
        readable(run["run_time_s"], UNITS["run_time"]),
        f"{readable_count(run['gpu_hours'])} GPU-hours",
        *(readable(run[key], unit) for key, unit in SPENT.items() if key in run),
        *([f"{emitted(run['run_emissions_kg'])} CO2"] if "run_emissions_kg" in run else []),
    ]
    between = run["run_time_s"] / run["failures"]
    return (
        f"{readable_count(run['tokens'])} tokens: {', '.join(parts)}; goodput {percent(run['goodput'])}: "
        f"a failure each {duration(between)}, a checkpoint each {duration(run['checkpoint_interval_s'])}"
    )


def emitted(mass: float) -> str:
    """Three digits of a mass, in tonnes where there are some. [kg]

    >>> emitted(6.912e6), emitted(340.0)
    ('6,910 t', '340 kg')
    """
    tonnes = float(f"{mass / 1e3:.3g}")
    return f"{tonnes:,.0f} t" if tonnes >= 100 else readable(mass, "kg")


def duration(seconds: float) -> str:
    """A time between two events, in minutes where that reads better. [s]

    >>> [duration(s) for s in (42.0, 250.0, 11160.0)]
    ['42 s', '4.2 min', '3.1 h']
    """
    return f"{seconds / 60:.2g} min" if A_MINUTE <= seconds < HOURS else readable(seconds, "s", digits=2)
