"""A study as one page that needs nothing else: what was found, why it is so, and how it was sought."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from shlex import quote
from typing import TYPE_CHECKING

from costmodel.errors import DseError
from dse.output.text import Record, counted, design_text, objective_texts
from dse.reporting.answers import picks
from dse.reporting.binding import sentence
from dse.reporting.design_table import varying_parameters
from dse.reporting.pages.front_table import front_table
from dse.reporting.pages.page import PageSection, asset, page, plot, table
from dse.reporting.pages.step_sections import kernel_sections, parts_section, timeline_sections
from dse.reporting.pictures.front import front_figure
from dse.reporting.pictures.progress import counts_figure
from dse.reporting.pictures.study_figures import front_picture, lines_figure, progress_figure, shares_figure
from dse.reporting.pictures.style import picture
from dse.reporting.studies.nothing_feasible import BrokenLimits

if TYPE_CHECKING:
    from dse.searching.study import BaseStudy


def study_page(study: BaseStudy) -> str:
    """HTML of a study. Raises `DseError` if it has no finished trials."""
    records, notable = front_of(study)
    sections = [
        *(found_sections(study, records, notable) if records else []),
        *([progress_section(study)] if records else []),
        *infeasible_sections(study),
        *space_sections(study),
    ]
    links = "".join(f'<a href="#{section.name}">{escape(section.title)}</a>' for section in sections)
    return page(
        f"{study.name}: dse report",
        f"{heading(study, records)}<nav>{links}</nav>{''.join(section.html for section in sections)}",
        style=asset("study.css"),
        figures={name: drawn for section in sections for name, drawn in section.figures.items()},
        scripts=(asset("study.js"),),
    )


def study_picture(study: BaseStudy, form: str) -> bytes:
    """The front of a study as a picture file of one of `dse.reporting.pictures.style.FORMS`.

    Raises `DseError` if it has no feasible trials.
    """
    records, notable = front_of(study)
    if not records:
        raise DseError(f"study {study.name!r}: no feasible trials, so no front")
    several = len(study.space.objectives) > 1
    front = front_picture(study.table, records, notable if several else None)
    return picture(front_figure(front, f"Pareto front of {study.name}"), form)


def front_of(study: BaseStudy) -> tuple[Sequence[Record], dict[int, str]]:
    """Designs of the front, and those of them that are best at something."""
    if not len(study.table):
        raise DseError(f"study {study.name!r}: no finished trials yet")
    records = study.table.front().records()
    found = picks(study.space, records) if records else {}
    return records, {row: title.replace("_", " ") for row, title in found.items()}


def heading(study: BaseStudy, records: Sequence[Record]) -> str:
    """What was searched, how, and how much was found."""
    space, trials = study.space, study.table
    infeasible = len(trials) - int(trials.feasible.sum())
    priced = study.designs_priced
    facts = {
        "Model": space.model.name,
        "System": space.system.name,
        "Objectives": ", ".join(o.name.replace("_", " ") for o in space.objectives),
        "Trials": f"{len(trials):,}" + (f", {infeasible:,} infeasible" if infeasible else ", all feasible"),
        **({"Designs priced": f"{priced:,}"} if priced else {}),
        "Pareto front": counted(len(records), "design"),
        "Hypervolume": f"{study.hypervolume:.3f}",
        "Sampler": f"{study.plan.sampler}, seed {study.plan.seed}",
    }
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts.items())
    about = f"<p>{escape(space.description)}.</p>" if space.description else ""
    return (
        f'<header><div><h1>{escape(study.name)}</h1>{about}</div><button id="scheme">Dark</button></header>'
        f'<dl class="facts">{listed}</dl>'
    )


def found_sections(study: BaseStudy, records: Sequence[Record], notable: Mapping[int, str]) -> list[PageSection]:
    """Sections on what the study found."""
    return [
        notable_section(study, records, notable),
        front_section(study, records, notable),
        parts_section(study, records, notable),
        *timeline_sections(study, records, notable),
        *kernel_sections(study, records, notable),
        parallel_section(study),
        importance_section(study),
    ]


def notable_section(study: BaseStudy, records: Sequence[Record], notable: Mapping[int, str]) -> PageSection:
    """The designs that are best at something, in words and as ``--set`` takes them."""
    space = study.space
    varying = varying_parameters(space, records)
    cards = "".join(
        f'<div class="card"><h3>{escape(title[0].upper() + title[1:])}</h3>'
        f'<p class="values">{escape(", ".join(objective_texts(space, records[row])))}</p>'
        f"<p>{escape(sentence(space, records[row]))}</p>"
        f"<code>trial {records[row]['trial']}: "
        f"{escape(design_text(space, records[row]['params'], varying))}</code></div>"
        for row, title in notable.items()
    )
    shared = [p.name for p in space.parameters if p.name not in varying]
    alike = design_text(space, records[0]["params"], shared)
    below = f'<p class="below">All have {escape(alike)}.</p>' if shared else ""
    about = "The best designs of the front by each objective, and the bottleneck of each."
    return PageSection("notable", "Notable designs", about, f'<div class="cards">{cards}</div>{below}')


def front_section(study: BaseStudy, records: Sequence[Record], notable: Mapping[int, str]) -> PageSection:
    """Every pair of objectives, and the front as a table."""
    several = len(study.space.objectives) > 1
    picture = front_picture(study.table, records, notable if several else None)
    figures = {f"front{place}": front_figure(picture, pairs=[pair]) for place, pair in enumerate(picture.pairs)}
    drawn = "".join(plot(name) for name in figures)
    about = "No other feasible design found is better in one objective without being worse in another. "
    if not several:
        about = "Each trial that was the best so far, and below it the designs that none found is better than. "
    about += "Drag over points to mark designs here and in the table; filters take words and numbers, "
    about += "such as <20, >=40 GB or full, and a click on a point finds its row."
    body = f'<div class="pairs">{drawn}</div>{front_table(study.space, records, notable)}'
    return PageSection("front", "Pareto front", about, body, figures)


def parallel_section(study: BaseStudy) -> PageSection:
    """Parameters and objectives as lines."""
    drawn = lines_figure(study.table)
    first = study.space.objectives[0].name.replace("_", " ")
    about = f"Each line is a feasible design, those of the front among them, coloured by {first}. "
    about += "Drag a box over one or more axes to keep what passes it: the table and the front above follow."
    body = f'<div class="wide"><div style="min-width: {drawn.width}px">{plot("parallel")}</div></div>'
    return PageSection("parallel", "Parameters and objectives", about, body, {"parallel": drawn})


def importance_section(study: BaseStudy) -> PageSection:
    """Which parameters matter, or why that is not known."""
    title = "Which parameters matter"
    try:
        drawn = shares_figure(study.table, study.profile)
    except DseError as error:
        return PageSection("importance", title, str(error), "")
    about = "Share of the variance of each objective that a parameter explains alone, over random legal "
    about += "designs of the space. Parameters of legal designs depend on each other: shares overlap, so the "
    about += "bars of an objective do not add up, and effects of several parameters together are in none."
    return PageSection("importance", title, about, plot("importance"), {"importance": drawn})


def progress_section(study: BaseStudy) -> PageSection:
    """How the search went."""
    about = "Share of a box, spanned by random legal designs, that the front dominates after each trial."
    figures = {"hypervolume": progress_figure(study.hypervolume_history())}
    return PageSection("search", "How the search went", about, plot("hypervolume"), figures)


def infeasible_sections(study: BaseStudy) -> list[PageSection]:
    """Which limits trials break, and what would help."""
    trials = study.table
    rows = (~trials.feasible).nonzero()[0]
    if not rows.size:
        return []
    broken = BrokenLimits(study.space)
    for record in trials.take(rows).each_record():
        broken.add(record)
    counts = {name: count for name, count in broken.counts.items() if count}
    about = f"{counted(int(rows.size), 'trial')} of {len(trials):,} cannot be used: {broken.text()}."
    figures = {"infeasible": counts_figure(counts, "trials")} if counts else {}
    return [PageSection("infeasible", "Infeasible designs", about, plot("infeasible") if counts else "", figures)]


def space_sections(study: BaseStudy) -> list[PageSection]:
    """What the study is of: enough to make it again."""
    command = (
        f"dse search {quote(study.name)}.yaml --study {quote(study.name)} --sampler {study.plan.sampler} "
        f"--seed {study.plan.seed} --budget {len(study.table)}"
    )
    versions = study.attributes.get("dse:versions", {})
    body = (
        f"<details><summary>{escape(study.name)}.yaml, the space with its model and system</summary>"
        f"<pre>{escape(study.space.text)}</pre></details><pre>{escape(command)}</pre>"
        f"{table(('program', 'version'), list(versions.items()), 'texts')}"
    )
    about = "The same space, seed and versions give the same trials."
    return [PageSection("space", "Space and versions", about, body)]
