"""What a step of the notable designs is made of: parts of a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

from costmodel.errors import DseError
from costmodel.formats.quantity import readable
from costmodel.steps.result.breakdown import PARTS, with_unit_suffix
from dse.explaining.explanation import explain
from dse.explaining.timeline import timeline
from dse.output.text import Record, counted
from dse.pricing.space_rules import NATIVE
from dse.reporting.binding import memory_capacity
from dse.reporting.pages.page import PageSection, plot
from dse.reporting.pictures.kernels import roofline_figure, tree_figure
from dse.reporting.pictures.style import bars_of_parts
from dse.reporting.pictures.timeline import drawn_stages, timeline_figure

if TYPE_CHECKING:
    import altair as alt

    from dse.searching.study import BaseStudy

#: A figure of a design, and a sentence on it.
Drawn = tuple[Sequence["alt.ChartType"], str]


def parts_section(study: BaseStudy, records: Sequence[Record], notable: Mapping[int, str]) -> PageSection:
    """Where time, memory and energy of the notable designs go."""
    picked = [records[row] for row in notable]
    names = [f"{title}\ntrial {records[row]['trial']}".replace(", ", ",\n") for row, title in notable.items()]
    figures = {}
    for total, unit in (("step_time", "s"), ("peak_memory", "B"), ("energy_per_step", "J")):
        parts = {
            name: [record["breakdown"].get(with_unit_suffix(name), 0.0) for record in picked] for name in PARTS[total]
        }
        limits = [memory_capacity(study.space, record) for record in picked] if unit == "B" else None
        figures[total] = bars_of_parts(parts, unit, names, title=total, limits=limits)
    body = "".join(map(plot, figures))
    about = "Parts of the step time, of the memory of the fullest GPU and of the energy of the notable designs. "
    about += "A line across a bar is the memory capacity of the GPU."
    return PageSection("parts", "Time, memory and energy", about, body, figures)


def timeline_sections(study: BaseStudy, records: Sequence[Record], notable: Mapping[int, str]) -> list[PageSection]:
    """One step of each notable design, where the native cost model timed it."""
    if study.profile != NATIVE:
        return []

    def drawn(record: Record) -> Drawn:
        events = timeline(study.space, record["params"])
        stages, shown = events["stage"].nunique(), drawn_stages(events)
        text = f"{counted(stages, 'stage')}, {counted(len(events), 'event')}"
        text += f"; stages {', '.join(map(str, shown))} are shown." if len(shown) < stages else "."
        return [timeline_figure(events)], text

    about = "Work of each pipeline stage in one optimizer step; gaps are idle time. Neighbouring "
    about += "micro-batches have two shades. Ctrl and the wheel zoom, dragging moves, a double click shows all."
    return [one_of_several("timeline", "One step, stage by stage", about, records, notable, drawn)]


def kernel_sections(study: BaseStudy, records: Sequence[Record], notable: Mapping[int, str]) -> list[PageSection]:
    """What each notable design's step is made of, and its kernels, where the native cost model timed it."""
    if study.profile != NATIVE:
        return []

    def drawn(record: Record) -> Drawn:
        found = explain(study.space, record["params"], profile=study.profile)
        step, figures = readable(found.step_time, "s"), [tree_figure(found.time, "step")]
        chip, kernels = found.system.chip, found.kernels
        if len(kernels):
            rates = float(chip.peak_flop_rate), float(found.system.dram.bandwidth)
            figures.append(roofline_figure(kernels, *rates))
        binding = kernels.groupby("bound")["seconds"].sum().to_dict()
        parts = [f"{readable(time, 's')} bound by {name!s}" for name, time in binding.items()]
        return figures, f"{step}; of its kernels {', '.join(parts)}." if parts else f"{step}."

    about = "The step of the slowest stage as a tree, and its kernels beneath the roofline of the chip, as large "
    about += "as their time. A click on a part of the tree shows that part alone."
    return [one_of_several("kernels", "Kernels", about, records, notable, drawn)]


def one_of_several(
    name: str,
    title: str,
    about: str,
    records: Sequence[Record],
    notable: Mapping[int, str],
    drawn: Callable[[Record], Drawn],
) -> PageSection:
    """A section with a figure for each notable design, of which one is shown at a time.

    A design that cannot be drawn says why in the place of its figures.
    """
    figures: dict[str, Any] = {}
    buttons, parts = [], []
    for row, what in notable.items():
        try:
            found, text = drawn(records[row])
            own = {f"{name}{row}-{place}": one for place, one in enumerate(found)}
            shown = f"<p>{escape(text)}</p>{''.join(map(plot, own))}"
            figures.update(own)
        except DseError as error:
            shown = f"<p>{escape(str(error))}</p>"
        buttons.append(f'<button data-name="{row}">{escape(what)}, trial {records[row]["trial"]}</button>')
        parts.append(f'<div class="part" data-name="{row}" hidden>{shown}</div>')
    body = f'<div class="group"><div class="tools">{"".join(buttons)}</div>{"".join(parts)}</div>'
    return PageSection(name, title, about, body, figures)
