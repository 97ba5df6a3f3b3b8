"""`dse report`: one page that needs nothing else, as a browser shows it."""

import json
import re
import subprocess
import sys
from io import StringIO
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest

import dse
from costmodel import DesignPoints, load_model, load_system, step
from costmodel.steps.timeline import timelines as step_events
from dse import DseError, Space, Study
from dse.explaining.timeline import events_frame, folded, timelines
from dse.reporting.pages import study_page
from dse.reporting.pages.page import asset
from dse.reporting.pages.pipeline_data import pipeline_data
from dse.reporting.pictures.style import COLOURS, DOMINATED, PART_COLOURS, SCHEMES
from dse.reporting.pictures.style import FRONT as FRONT_COLOUR
from dse.searching.trials import trial_table
from tests.costmodel.steps.test_timeline import CHUNKS
from tests.support.browser import complaints, data_of, until
from tests.support.cases import cases
from tests.support.commands import outputs_of, stderr_of, stdout_of
from tests.support.paths import TEST_DATA
from tests.support.runs import run_of

#: Texts that a browser runs.
SCRIPTS = cases(__file__, "SCRIPTS")
KEPT, ROWS, OPENED, FILTER, PRESS, OUTSIDE, CONTRASTS, PASSES = SCRIPTS.values()
#: Parts of a step or of memory that have a colour.
PARTS = cases(__file__, "PARTS")


@pytest.fixture(scope="module")
def study(searched, small_space):
    """A study with infeasible designs among its trials."""
    return searched(Space.from_text(small_space), 60, "small", sampler="random")


@pytest.fixture(scope="module")
def report(tmp_path_factory, study):
    """The page of the study."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    stdout_of("report", "small", "-o", str(path), "--storage", study.storage)
    return path


def test_a_large_study_is_thinned_and_says_so(study, tmp_path, monkeypatch):
    """A page of 100,000 trials, or of a front of 50,000, takes seconds; the best of each objective stay."""
    front = study.table.front()
    assert len(front) > 3
    monkeypatch.setattr(trial_table, "MOST_RECORDS", 2)
    monkeypatch.setattr(study_page, "MOST_INFEASIBLE", 4)
    monkeypatch.setattr(study_page, "CURVE", 10)
    kept = front.thinned()
    assert len(kept) < len(front)
    assert (kept.costs.min(axis=0) == front.costs.min(axis=0)).all()
    page = json.dumps(data_of(study.report(tmp_path / "report.html")))
    assert f'"count": {len(front)}' in page
    assert "the curve is that of 10 trials, evenly spread" in page
    assert "of 4 of them, " in page


def test_a_study_without_trials_is_refused(small_space):
    Study.create(Space.from_text(small_space))
    assert "no finished trials yet" in stderr_of("report", "small", "-o", "x.html")


def test_a_picture_of_the_front_has_a_point_for_each_design(tmp_path, study):
    text, again = (study.report(tmp_path / f"{name}.svg").read_text() for name in ("one", "other"))
    assert text == again
    front, beaten = len(study.pareto_front()), study.table.feasible.sum() - len(study.pareto_front())
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == root[0].text == "Pareto front of small"
    assert "prefers-color-scheme: dark" in root[1].text
    paths = [path.get("fill") for path in root.iter("{http://www.w3.org/2000/svg}path")]
    assert paths.count(FRONT_COLOUR) == front + 1  # and that of the legend
    assert paths.count(DOMINATED) == beaten + 1


def test_the_page_holds_all_it_needs(report, study):
    text, data = report.read_text(), data_of(report)
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    assert not re.search(r"https?://(?!www\.w3\.org/)", text)
    front = study.pareto_front()
    assert [design["trial"] for design in data["designs"]] == front["trial"].tolist()
    assert "schema: search_space/v1" in data["space"]
    for design, time, memory in zip(data["designs"], front["step_time_s"], front["peak_memory_bytes"], strict=True):
        for tree, total in (("time", time), ("held", memory)):
            assert sum(design[tree][1::2]) == pytest.approx(total, rel=1e-5)
        for parts, total in (("step", time), ("memory", memory)):
            assert sum(value for _, value in design[parts]) == pytest.approx(total, rel=1e-4)


def test_launch_files_on_the_page_are_those_of_export(report, study):
    data = data_of(report)
    assert {form for design in data["designs"] for form in design["launch"]} >= {"megatron", "nemo"}
    for design in data["designs"]:
        for form, runs in design["launch"].items():
            lines = [line for first, count in zip(runs[::2], runs[1::2], strict=True)
                     for line in data["texts"][first : first + count]]  # fmt: skip
            assert "\n".join(lines) == study.export(design["trial"], form).content.decode()


def test_a_pipeline_folds_what_it_repeats(small_space):
    space = Space.from_text(small_space)
    [events] = timelines(space, [space.completed({"tp": 4, "pp": 4, "recompute": "none"})])
    kept, period = folded(events)
    assert period.count >= 2
    assert kept.num_points < events.num_points
    assert kept.end.max() + ((period.count - 1) * period.time) == pytest.approx(events.end.max(), rel=1e-9)
    time = events.end - events.start
    work = time[(events.start >= period.start - 1e-9) & (events.start < period.start + period.time - 1e-9)]
    rest = (kept.end - kept.start).sum()
    assert rest + (period.count - 1) * work.sum() == pytest.approx(time.sum(), rel=1e-9)


def folded_passes(events, stages):
    """Stage, kind, chunk, micro-batch, start and end of the passes of some stages of a folded step, in order."""
    kept, _ = folded(events.take(np.flatnonzero(np.isin(events.stage, [*stages]))))
    kept = events_frame(kept)
    names = ["stage", "kind", "chunk", "micro_batch", "start_s", "end_s"]
    return kept.sort_values(["stage", "start_s", "end_s"], kind="stable")[names].to_numpy().tolist()


def schedule_events(word, chunks, steps):
    """A step of GPT-3 by a schedule."""
    design = DesignPoints.of(tp=8, pp=8, vpp=chunks, schedule=word, gradient_accumulation_steps=steps, zero=1, dp=2)
    return next(step_events(run_of(load_model("gpt3_175b"), design, load_system("a100_80g_dgx"))))


@pytest.mark.slow
def test_a_pipeline_is_drawn_pass_by_pass(report, study, browser):
    """The browser draws every pass of a step from compressed data, under every schedule and for every design."""
    steps = [schedule_events(word, chunks, 80) for word, chunks in CHUNKS.items()]
    steps += timelines(study.space, [design["params"] for design in study.table.front().records()])
    stored = [pipeline_data(events) for events in steps]
    assert [design["pipeline"] for design in data_of(report)["designs"]] == json.loads(
        json.dumps(stored[len(CHUNKS) :])
    )
    assert sum("period" in data for data in stored) > len(CHUNKS) / 2
    [function] = re.findall(r"^function passes.*?^}$", asset("study.js"), flags=re.DOTALL | re.MULTILINE)
    driver = browser(report, width=1440)
    drawn = driver.execute_script(f"{function} {PASSES}", stored)
    for events, shown in zip(steps, drawn, strict=True):
        expected = folded_passes(events, {stage for stage, *_ in shown})
        assert [row[:4] for row in shown] == [row[:4] for row in expected]
        off = np.array([row[4:] for row in shown]) - [row[4:] for row in expected]
        assert np.abs(off).max() < 1e-3 * events.end.max()


@pytest.mark.parametrize(("width", "dark"), [(390, True), (1440, False)])
def test_a_browser_shows_it_without_complaint(width, dark, report, browser):
    driver = browser(report, width=width, dark=dark)
    run = driver.execute_script
    run("document.querySelectorAll('details').forEach(own => own.open = true)")
    for tab in ("Step tree", "Memory tree", "Kernels", "Pipeline", "Launch", "Neighbours"):
        run(PRESS, tab)
        driver.execute_async_script("setTimeout(arguments[0], 120)")
        assert run(OUTSIDE) == [], tab
    assert run("return document.documentElement.scrollWidth") <= width, "the page itself never scrolls sideways"
    assert complaints(driver) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.slow
def test_colours_differ_and_stand_out(dark, report, browser):
    driver = browser(report, width=1024, dark=dark)
    shown = driver.execute_script(CONTRASTS, PARTS)
    assert len({colour for *_, colour in shown}) == len(PARTS)
    assert min(shown, key=lambda pair: pair[1])[1] >= 3
    for name, ratio, _ in driver.execute_script(CONTRASTS, ["ink", "dim"]):
        assert ratio >= 4.5, name
    for name, ratio, _ in driver.execute_script(CONTRASTS, ["mark", "broken"]):
        assert ratio >= 3, name
    before = driver.execute_script("return getComputedStyle(document.body).color")
    driver.execute_script("document.getElementById('scheme').click()")
    assert driver.execute_script("return getComputedStyle(document.body).color") != before


def test_every_design_opens_by_click_key_row_and_address(report, study, browser):
    trials = study.pareto_front()["trial"].tolist()
    from selenium.webdriver import ActionChains, Keys

    driver = browser(report, width=1440)
    run = driver.execute_script
    assert run(OPENED).startswith(f"Trial {trials[0]}, fastest")
    run("document.querySelector('#front svg').focus()")
    for trial in trials[1:]:
        ActionChains(driver).send_keys(Keys.ARROW_RIGHT).perform()
        assert re.match(rf"Trial {trial}\b", run(OPENED))
        assert run("return location.hash") == f"#trial={trial}"
    driver.find_element("css selector", ".all tbody tr:nth-child(2) td:nth-child(2)").click()
    assert re.match(rf"Trial {trials[1]}\b", run(OPENED))
    driver.find_element("css selector", '.front[data-row="2"]').click()
    assert re.match(rf"Trial {trials[2]}\b", run(OPENED))
    driver.get(f"{report.as_uri()}#trial={trials[-1]}")
    until(driver, f"{OPENED}.startsWith('Trial {trials[-1]}')")
    run(PRESS, "Launch")
    text = driver.find_element("css selector", "#design pre").text
    assert text.split() == study.export(trials[-1], "megatron").content.decode().split()
    assert complaints(driver) == []


def test_two_designs_are_compared_by_differences_that_add_up(report, study, browser):
    front = study.pareto_front()
    one, other = front.iloc[0], front.iloc[-1]
    driver = browser(report, width=1440, fragment=f"trial={one['trial']}&against={other['trial']}")
    sums = driver.execute_script("return [...document.querySelectorAll('[data-sum]')].map(row => row.dataset.sum)")
    for total, key in zip(map(float, sums), ("step_time_s", "peak_memory_bytes"), strict=True):
        assert total == pytest.approx(other[key] - one[key], rel=1e-4)
    driver.execute_script(PRESS, "End comparison")
    assert driver.execute_script(OPENED).startswith(f"Trial {one['trial']}")


@pytest.mark.slow
def test_a_filter_keeps_rows_and_points(report, study, browser):
    front = study.pareto_front()
    shown = front["step_time_s"].map(lambda seconds: float(f"{seconds:.3g}"))  # as the table prints them
    middle = float(f"{shown.median():.3g}")
    bounds = {
        f"step time < {middle} s": shown < middle,
        f"<= {middle * 1000} ms": shown <= middle,
        "recompute = full": front["recompute"] == "full",
        "full": front["recompute"] == "full",
        "tp = 8 and recompute = none": (front["tp"] == 8) & (front["recompute"] == "none"),
        "< 40 GB": front["peak_memory_bytes"] < 40e9,
    }
    driver = browser(report, width=1440)
    run = driver.execute_script
    for text, kept in bounds.items():
        run(FILTER, text)
        assert run(ROWS) == kept.sum(), text
        assert run(KEPT) == kept.sum(), text
    run(FILTER, "nonsense < 4")
    assert run("return document.getElementById('filter').getAttribute('aria-invalid')") == "true"
    assert run(ROWS) == len(front)


def words(text):
    """Words and numbers of a text, without its punctuation, bars and commands."""
    return {word.strip("(),.:;*") for word in text.split()} - {""}


@pytest.mark.slow
def test_a_plan_page_says_all_that_the_terminal_says(tmp_path, browser):
    printed = stdout_of("plan", "llama3_70b", "--gpus", "256", "--system", "h100", "--tokens", "15T")
    printed = re.sub(r"^(Columns that do not fit:.*(\n[a-z_, ]+)?|\d+ more designs.*)$", "", printed, flags=re.M)
    stdout_of("report", "plan_llama3_70b_256")
    page = tmp_path / "plan_llama3_70b_256.html"
    assert page.stat().st_size < 1.5e6
    driver = browser(page, width=1440)
    visible = driver.execute_script("return document.querySelector('main').innerText")
    first = driver.execute_script("return document.querySelector('header').innerText")
    assert complaints(driver) == []
    lines = [line for line in printed.splitlines() if not re.search("[▁-▏─]", line)]
    unlike = {"Stored", "as", "study", "plan_llama3_70b_256", "per", "of", "trial"}
    assert not words(" ".join(lines)) - words(visible) - unlike
    for text in ("Llama 3.1 70B on 256 x h100_80g_dgx", "days", "tokens/s", "MFU", "exact", "dp 8", "64 accumulation"):
        assert text in first
    assert not re.search("sampler|hypervolume|seed|(?<!--)trial", visible, flags=re.IGNORECASE)


def titles(chart):
    """Titles of the axes of each panel of a front."""
    panels = chart.to_dict().get("hconcat", [chart.to_dict()])
    designs = [panel["layer"][0]["encoding"] for panel in panels]
    return [(drawn["x"]["title"], drawn["y"]["title"]) for drawn in designs]


def tables(chart):
    """Rows of a chart's data."""
    return [pd.read_csv(StringIO(rows)) for rows in chart.to_dict()["datasets"].values()]


@pytest.mark.slow
def test_figures_follow_the_objectives_of_the_study(small_space, study):
    assert titles(study.plot_front()) == [("step time", "peak memory")]
    space = Space.from_text(small_space)
    three = Study.create(space.with_objectives(["step_time", "mfu", "peak_memory"]), "three", storage=study.storage)
    three.run(40)
    pairs = [("step time", "peak memory"), ("step time", "mfu"), ("peak memory", "mfu")]
    assert titles(three.plot_front()) == pairs
    one = Study.create(space.with_objectives(["mfu"]), "one", storage=study.storage)
    one.run(20)
    [best] = [rows["y"] for rows in tables(one.plot_front()) if "row" in rows]
    # Versions of pandas read the last digit of a text in different ways.
    assert best.iloc[-1] == pytest.approx(one.pareto_front()["mfu"].max(), rel=1e-15)
    assert best.is_monotonic_increasing


#: Objectives of which the first one, two, three and four are drawn.
OBJECTIVES = ("step_time", "peak_memory", "maximize:mfu", "energy_per_step")


def symbols(svg):
    """Marks of designs that a drawn picture has."""
    return len(re.findall(r'aria-roledescription="(?:point|circle)"', svg))


@pytest.mark.parametrize("count", [1, 3])
def test_every_figure_of_a_study_is_really_drawn(small_space, tmp_path, count):
    """Vega-Lite's compiler draws each one: a specification that it refuses is not a picture."""
    space = Space.from_text(small_space).with_objectives(OBJECTIVES[:count])
    study = Study.create(space, "drawn", sampler="random")
    study.run(45)
    picture = study.report(tmp_path / "front.svg").read_text()
    ElementTree.fromstring(picture)
    panels = max(1, count * (count - 1) // 2)
    assert symbols(picture) >= panels * (1 if count == 1 else len(study.pareto_front()))
    for ending, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF-")) if count == 1 else ():
        assert study.report(tmp_path / f"front{ending}").read_bytes().startswith(start)
    data = data_of(study.report(tmp_path / "page.html"))
    assert len(data["axes"]) >= count
    assert 1 <= sum("title" in design for design in data["designs"]) <= 7


def test_bars_of_a_breakdown_add_up_to_it(toy_system, gpt):
    breakdown = step(gpt, toy_system, DesignPoints.of(tp=[1, 2], pp=2, gradient_accumulation_steps=8))
    for total in ("step_time", "peak_memory", "energy_per_step"):
        [bars] = tables(dse.plot_breakdown(breakdown, total, names=["a", "b"]))
        assert bars.groupby("design")["value"].sum().tolist() == pytest.approx(breakdown.columns()[total])
    with pytest.raises(DseError, match="did you mean 'step_time'"):
        dse.plot_breakdown(breakdown, "steptime")


def luminance(colour):
    """Relative luminance of a colour, as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_colours_of_pictures_differ_and_stand_out_on_both_papers():
    assert len({*PART_COLOURS.values()}) == len(PART_COLOURS)
    assert not {*PART_COLOURS.values(), *COLOURS} & {ink for scheme in SCHEMES.values() for ink in scheme}
    for *_, paper in SCHEMES.values():
        for colour in (*PART_COLOURS.values(), DOMINATED, FRONT_COLOUR):
            dark, light = sorted([luminance(colour), luminance(paper)])
            assert (light + 0.05) / (dark + 0.05) >= 3, colour


def test_nothing_that_draws_is_imported_before_something_is_drawn(tmp_path, small_space):
    (tmp_path / "small.yaml").write_text(small_space)
    code = "import sys; from dse.cli import main; main(['search', 'small.yaml', '--budget', '4']); "
    code += "print([name for name in ('altair', 'vl_convert') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.endswith("[]\n")


def test_a_name_leads_a_page_into_no_other_folder(tmp_path, monkeypatch, small_space):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    (tmp_path / "small.yaml").write_text(small_space)
    outputs_of("search", "../small.yaml", "--budget", "2", "--study", "../../page")
    assert stdout_of("report", "../../page") == "__.._page.html\n"
    assert {path.name for path in tmp_path.rglob("*.html")} == {"__.._page.html"}


@pytest.mark.slow
def test_a_compiled_program_has_a_page(tmp_path, browser):
    path = tmp_path / "step.html"
    program = str(TEST_DATA / "hlo" / "gpt.hlo")
    assert stdout_of("evaluate", program, "--system", "h100", "-o", str(path)) == ""
    printed = stdout_of("evaluate", program, "--system", "h100")
    data = data_of(path)
    assert sum(seconds for *_, seconds in data["tree"]) == pytest.approx(306e-6, rel=0.01)  # printed: 306 us
    assert sum(seconds for _, seconds in data["parts"]) == pytest.approx(data["step"], rel=1e-4)
    assert max(held for _, held, _ in data["held"]) == pytest.approx(8.03e3, rel=1e-3)
    driver = browser(path, width=390)
    driver.execute_script("document.querySelectorAll('details').forEach(own => own.open = true)")
    visible = driver.execute_script("return document.querySelector('main').innerText")
    cut = r"\.\.\.\S+|[─▀-▟]"  # ends of long names, rules and bars
    assert words(re.sub(cut, "", printed)) - words(visible) == set()
    assert driver.execute_script("return document.documentElement.scrollWidth") <= 390
    assert complaints(driver) == []
