"""Designs of a front as data of a page: numbers, parts, kernels, neighbours, pipeline and launch files.

All designs are explained in one batch. Texts and paths that many designs share are stored once, in a `Pool`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from costmodel.errors import DseError
from costmodel.formats.quantity import readable, readable_count
from costmodel.rules.registry import NATIVE
from costmodel.steps.breakdown import with_unit_suffix
from dse.explaining.explanation import Explanation, explanations
from dse.explaining.neighbours import Binding, Neighbour, neighbourhoods
from dse.explaining.timeline import timelines
from dse.output import Record, percent, ranked_rate
from dse.pricing.evaluation import with_kernels
from dse.reporting import answers
from dse.reporting.binding import memory_capacity, parts_of, sentence, step_title
from dse.reporting.design_table import (
    EVIDENCE_TEXTS,
    PEAK_MEMORY,
    PER_GPU,
    failures_text,
    interval_text,
    pair_text,
    run_text,
)
from dse.reporting.designs.changes_report import faster_text, levers_label, levers_text, neighbour_columns
from dse.reporting.designs.explanation_report import kernel_columns, stage_texts
from dse.reporting.pages.page import rounded, table_data
from dse.reporting.pages.pipeline_data import pipeline_data
from dse.reporting.study_report import design_lines
from dse.spaces.space import Space

if TYPE_CHECKING:
    import pandas as pd

#: Launch files of designs: form -> text, or the reason why the framework cannot run it, and True for a text.
Launches = Callable[[Sequence[Record]], list[dict[str, tuple[str, bool]]]]

#: Neighbours of a design at most. [-]
NEIGHBOURS: Final = 8


@dataclass
class Pool:
    """Values that are stored once, with their places."""

    places: dict[Any, int] = field(default_factory=dict)

    def place(self, value: Any) -> int:
        """Place of a value, which is added if it is new."""
        return self.places.setdefault(value, len(self.places))

    def runs(self, values: Iterable[Any]) -> list[int]:
        """Values as runs of neighbouring places: first place, length, first place, length."""
        runs: list[int] = []
        for index in map(self.place, values):
            if runs and index == runs[-2] + runs[-1]:
                runs[-1] += 1
            else:
                runs += [index, 1]
        return runs


@dataclass
class DesignPages:
    """Designs of one space as data of a page, and the pools that they share."""

    space: Space
    profile: str
    launches: Launches
    paths: Pool = field(default_factory=Pool)
    lines: Pool = field(default_factory=Pool)

    def designs(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Data of designs."""
        try:
            explained = explanations(self.space, records, self.profile)
            near = neighbourhoods(explained)
        except DseError as error:
            why = {"why": str(error)}
            return [self.summary(record) | why for record in records]
        pipelines = self.pipelines(records)
        return [
            self.summary(record) | self.reasons(explanation, *explained) | self.launch_data(files) | pipeline
            for record, explanation, explained, files, pipeline in zip(
                records, explained, near, self.launches(records), pipelines, strict=True
            )
        ]

    def summary(self, record: Record) -> dict[str, Any]:
        """Sentences and numbers of a design, and the parts of its totals."""
        space, [solved] = self.space, with_kernels(self.space, [dict(record)])
        solved.pop("trial", None)  # the page names it
        below = [
            answers.place_text(space, record), *design_lines(space, solved),
            f"Interval: {EVIDENCE_TEXTS[record['evidence']]}." if "evidence" in record else "",
            failures_text(record) if "run" in record else "", *record.get("ran", ()),
        ]  # fmt: skip
        return {
            "trial": record.get("trial", 0),
            "winner": record.get("winner", 0),
            "layout": answers.layout_text(space, record),
            "numbers": answers.numbers_text(space, record),
            "large": large_numbers(space, record),
            "run": run_text(space, record) if "run" in record else "",
            "below": [line for line in below if line],
            "sentence": sentence(space, record),
            "seconds": record["breakdown"][with_unit_suffix("step_time")],
            "per_step": step_title(record),
            "bytes": record["breakdown"].get(PEAK_MEMORY, 0.0),
            "capacity": memory_capacity(space, record),
            "step": [[part.label, rounded(part.value)] for part in parts_of(record, "step_time")],
            "memory": [[part.label, rounded(part.value)] for part in parts_of(record, "peak_memory")],
        }

    def reasons(self, explanation: Explanation, near: Sequence[Neighbour], bound: Binding) -> dict[str, Any]:
        """Trees of step and memory, kernels, and neighbours of a design."""
        title = f"one step away, best {explanation.space.objectives[0].name.replace('_', ' ')} first"
        data: dict[str, Any] = {
            "time": self.tree(explanation.time, "seconds"),
            "held": self.tree(explanation.memory, "bytes"),
            "hidden": self.tree(explanation.hidden, "seconds"),
            "stages": stage_texts(explanation),
            "faster": faster_text(explanation, near, bound),
        }
        if bound.levers:
            data["levers"] = [levers_label(bound), levers_text(explanation, bound)]
        if len(explanation.kernels):
            data["kernels"] = table_data(kernel_columns(explanation))
        if near:
            data["near"] = table_data(neighbour_columns(explanation, near[:NEIGHBOURS], title, bound))
        return data

    def tree(self, tree: pd.DataFrame, column: str) -> list[float]:
        """Leaves of a tree: place of the path, value, place of the path, value. [unit of the column]"""
        pairs = zip(tree["path"].tolist(), tree[column].tolist(), strict=True)
        return [number for path, value in pairs for number in (self.paths.place(path), rounded(value, 6))]

    def launch_data(self, files: Mapping[str, tuple[str, bool]]) -> dict[str, Any]:
        """Launch files of a design, and why frameworks cannot run it."""
        return {
            "launch": {form: self.lines.runs(text.split("\n")) for form, (text, runs) in files.items() if runs},
            "refused": {form: self.lines.place(text) for form, (text, runs) in files.items() if not runs},
        }

    def pipelines(self, records: Sequence[Record]) -> list[dict[str, Any]]:
        """Pipelines of designs; none by rules of other models."""
        if self.profile != NATIVE or self.space.workloads:
            return [{} for _ in records]
        try:
            steps = timelines(self.space, [record["params"] for record in records])
            return [{"pipeline": pipeline_data(events)} for events in steps]
        except DseError as error:
            return [{"no_pipeline": str(error)} for _ in records]


def large_numbers(space: Space, record: Record) -> list[list[str]]:
    """The numbers that answer first: value, name, and a line below."""
    breakdown, run = record["breakdown"], record.get("run", {})
    step, *predicted = answers.step_texts(record)
    time, _, name = step.partition(" a ")
    remarks = [*predicted, f"90 %: {interval_text(record)}"] if "evidence" in record else predicted
    numbers = [[time, f"a {name}", "; ".join(remarks)]]
    if rate := ranked_rate(record, "tokens_per_second"):
        texts = answers.numbers_text(space, record).replace("\xa0", " ").split(", ") if breakdown.get(PER_GPU) else []
        of_gpu = next((part for part in texts if "tokens/s" in part), "")
        numbers.append([readable_count(float(f"{rate:.3g}")), "tokens/s", of_gpu])
    if mfu := ranked_rate(record, "mfu"):
        numbers.append([percent(mfu), "MFU", ""])
    if answers.memory_text(space, record):
        value = pair_text(breakdown[PEAK_MEMORY], "of", memory_capacity(space, record), "B")
        numbers.append([value, "memory", answers.room_text(space, record)])
    if "run_time_s" in run:
        days, hours, *_ = run_text(space, record).partition(": ")[2].split(", ")
        numbers.append([days, f"for {readable_count(run['tokens'])} tokens", hours])
        if cost := run.get("run_cost_usd"):
            numbers.append([readable(cost, "$"), "cost", f"${cost / run['gpu_hours']:.2f} per GPU-hour"])
    for objective in space.objectives:
        if objective.name in ("system_price", "system_power", "energy_per_step"):
            text = answers.objective_text(objective, record).removeprefix(objective.name.replace("_", " ")).strip()
            numbers.append([text, objective.name.replace("_", " "), ""])
    return numbers
