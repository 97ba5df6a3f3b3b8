"""`dse report`: one page that needs nothing else, as a browser shows it."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from io import StringIO
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
import vl_convert

import dse
from dse import DseError, Space, Study
from dse.cli import main
from dse.reporting.pictures.front import CLOUD, FrontPicture, Shown, front_figure, thinned
from dse.reporting.pictures.style import DOMINATED
from dse.reporting.pictures.style import FRONT as FRONT_COLOUR
from tests.browser import browser, errors, opened, until

#: Where the bars, points and rows of a page are read.
FRONT = "document.querySelector('.pairs .plot')"
ROWS = "return [...document.querySelectorAll('.front tbody tr')].filter(r => !r.hidden).length"
#: Marks of the front that are as dark as they are when nothing is filtered.
DARK = f"""return [...{FRONT}.querySelectorAll('.mark-symbol path')].filter(path =>
    path.__data__?.datum?.row !== undefined && path.getAttribute('opacity') === '1').length"""
#: Where on the screen the first design of the front crosses the first coordinate of the lines.
FIRST_LINE = """const place = document.querySelector('[data-figure=parallel]');
    place.scrollIntoView({ block: 'center' });
    const { coordinate, at } = place.rows.find(one => one.row === 0);
    const box = place.querySelector('svg').getBoundingClientRect(), [left, top] = place.view.origin();
    return [box.x + left + place.view.scale('x')(coordinate), box.y + top + place.view.scale('y')(at)]"""


@pytest.fixture(scope="module")
def study(tmp_path_factory, small_space):
    """A study with infeasible designs among its trials."""
    storage = f"sqlite:///{tmp_path_factory.mktemp('storage') / 'dse.db'}"
    study = Study.create(Space.from_text(small_space), "small", storage=storage, sampler="random")
    study.run(60)
    return study


@pytest.fixture(scope="module")
def report(tmp_path_factory, study):
    """Its page."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    assert main(["report", "small", "-o", str(path), "--storage", study.storage]) == 0
    return path


def test_the_page_holds_all_it_needs(report, study):
    text = report.read_text()
    assert not re.search(
        r"<(script|link|img)[^>]+(src|href)=", re.sub("<script.*?</script>", "", text, flags=re.DOTALL)
    )
    assert not re.search(r"<script[^>]+src=", text)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, flags=re.DOTALL)[1])
    assert {"front0", "step_time", "peak_memory", "parallel", "hypervolume", "infeasible"} <= data["figures"].keys()
    assert "schema: search_space/v1" in text
    assert f"<dd>{len(study.pareto_front())} designs</dd>" in text


def test_a_study_of_another_program_or_without_trials_is_refused(capsys, tmp_path, small_space):
    storage = f"sqlite:///{tmp_path}/dse.db"
    Study.create(Space.from_text(small_space), storage=storage)
    assert main(["report", "small", "-o", str(tmp_path / "x.html"), "--storage", storage]) == 1
    assert "no finished trials yet" in capsys.readouterr().err


def test_a_picture_of_the_front_has_a_point_for_each_design(tmp_path, study):
    path = tmp_path / "front.svg"
    assert main(["report", "small", "-o", str(path), "--storage", study.storage]) == 0
    text = path.read_text()
    assert main(["report", "small", "-o", str(path), "--storage", study.storage]) == 0
    assert path.read_text() == text
    front, beaten = len(study.pareto_front()), study.table.feasible.sum() - len(study.pareto_front())
    root = ElementTree.fromstring(text)
    assert root.get("aria-label") == root[0].text == "Pareto front of small"
    assert "prefers-color-scheme: dark" in root[1].text
    paths = [path.get("fill") for path in root.iter("{http://www.w3.org/2000/svg}path")]
    assert paths.count(FRONT_COLOUR) == front + 1  # and that of the legend
    assert paths.count(DOMINATED) == beaten + 1


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_a_browser_draws_it_without_complaint(width, dark, report, tmp_path):
    with browser(tmp_path, width=width, dark=dark) as driver:
        opened(driver, report)
        assert errors(driver) == []
        run = driver.execute_script
        assert run("return document.documentElement.scrollWidth") <= width, "the page itself never scrolls sideways"
        assert run("return document.querySelectorAll('.plot:not(.vega-embed, [hidden] *)').length") == 0
        ink = f"return getComputedStyle({FRONT}.querySelector('.role-axis-title text')).fill"
        before = run(ink)
        run("document.getElementById('scheme').click()")
        assert run(ink) != before
        assert errors(driver) == []


def drag_around(driver, x, y):
    """Draw a box around a place of the screen."""
    from selenium.webdriver.common.action_chains import ActionChains

    chain = ActionChains(driver)
    mouse = chain.w3c_actions.pointer_action
    mouse.move_to_location(int(x) - 9, int(y) - 9).pointer_down().move_to_location(int(x) + 9, int(y) + 9).pointer_up()
    chain.perform()


def test_filters_brushes_and_rows_move_together(report, study, tmp_path):
    front = study.pareto_front()
    with browser(tmp_path, width=1400) as driver:
        opened(driver, report)
        run = driver.execute_script
        assert run(ROWS) == len(front)
        set_filter = """const [name, text] = arguments;
            const input = document.querySelector(`input[aria-label="filter ${name}"]`);
            input.value = text; input.dispatchEvent(new Event("input"));"""
        middle = float(front["step_time_s"].median())
        run(set_filter, "step_time", f"<{middle}")
        assert run(ROWS) == (front["step_time_s"] < middle).sum()
        assert run(DARK) == (front["step_time_s"] < middle).sum()
        run("document.getElementById('clear').click()")
        run(set_filter, "recompute", "full")
        assert run(ROWS) == (front["recompute"] == "full").sum()
        run(set_filter, "recompute", "")
        assert run(DARK) == len(front)
        drag_around(driver, *run(FIRST_LINE))
        until(driver, f"{ROWS} === {(front['tp'] == front['tp'][0]).sum()}")
        run("document.getElementById('clear').click()")
        until(driver, f"{ROWS} === {len(front)}")
        assert errors(driver) == []


def test_a_design_is_chosen_of_those_that_are_notable(report, tmp_path):
    with browser(tmp_path, width=1400) as driver:
        opened(driver, report)
        for name in ("timeline", "kernels"):
            group = f"document.querySelector('#{name} .group')"
            count = driver.execute_script(f"return {group}.querySelectorAll('button').length")
            for place in range(count):
                driver.execute_script(f"{group}.querySelectorAll('button')[{place}].click()")
                shown = driver.execute_script(f"""return [...{group}.querySelectorAll('.part')]
                    .filter(part => !part.hidden && part.querySelector('.plot')).length""")
                assert shown == 1
                until(driver, f"return !{group}.querySelector('.part:not([hidden]) .plot:not(.vega-embed)')")
        assert errors(driver) == []


def titles(chart):
    """Titles of the axes of each panel of a front."""
    panels = chart.to_dict().get("hconcat", [chart.to_dict()])
    designs = [panel["layer"][0]["encoding"] for panel in panels]
    return [(drawn["x"]["title"], drawn["y"]["title"]) for drawn in designs]


def tables(chart):
    """Rows of a chart's data."""
    return [pd.read_csv(StringIO(rows)) for rows in chart.to_dict()["datasets"].values()]


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


@pytest.mark.parametrize("count", range(1, 5))
def test_every_figure_of_a_study_is_really_drawn(small_space, tmp_path, count):
    """Vega-Lite's compiler draws each one: a specification that it refuses is no picture."""
    space = Space.from_text(small_space).with_objectives(OBJECTIVES[:count])
    study = Study.create(space, "drawn", storage=f"sqlite:///{tmp_path / 'dse.db'}", sampler="random")
    study.run(60)
    picture = study.report(tmp_path / "front.svg").read_text()
    ElementTree.fromstring(picture)
    panels = max(1, count * (count - 1) // 2)
    assert symbols(picture) >= panels * (1 if count == 1 else len(study.pareto_front()))
    for ending, start in ((".svg", b"<svg"), (".png", b"\x89PNG"), (".pdf", b"%PDF-")):
        assert study.report(tmp_path / f"front{ending}").read_bytes().startswith(start)
    others = (study.plot_parallel, study.plot_importance, study.plot_hypervolume)
    for plot in others if count == 3 else ():
        plot().save(tmp_path / "other.svg")
        assert (tmp_path / "other.svg").read_bytes().startswith(b"<svg")
    page = study.report(tmp_path / "page.html").read_text()
    figures = json.loads(re.search(r'id="data">(.*?)</script>', page, flags=re.DOTALL)[1])["figures"]
    assert sum(name.startswith("front") for name in figures) == panels
    for figure in figures.values():
        assert vl_convert.vegalite_to_svg(figure).startswith("<svg")


def test_bars_of_a_breakdown_add_up_to_it(toy_system, gpt):
    from costmodel import DesignPoints, step

    breakdown = step(gpt, toy_system, DesignPoints.of(tp=[1, 2], pp=2, gradient_accumulation_steps=8))
    for total in ("step_time", "peak_memory", "energy_per_step"):
        [bars] = tables(dse.plot_breakdown(breakdown, total, names=["a", "b"]))
        assert bars.groupby("design")["value"].sum().tolist() == pytest.approx(breakdown.columns()[total])
    with pytest.raises(DseError, match="did you mean 'step_time'"):
        dse.plot_breakdown(breakdown, "steptime")


def test_pictures_of_many_designs_are_thinned():
    rng = np.random.default_rng(0)
    many = FrontPicture(
        axes=[Shown("step_time", "s"), Shown("peak_memory", "B")],
        front=np.array([[1.0, 2.0], [2.0, 1.0]]),
        texts=[{"trial": "0"}, {"trial": "1"}],
        dominated=thinned(rng.uniform(2, 3, (50_000, 2))),
        infeasible=np.empty((0, 2)),
    )
    assert max(map(len, tables(front_figure(many)))) == CLOUD


def test_nothing_that_draws_is_imported_before_something_is_drawn(tmp_path, small_space):
    (tmp_path / "small.yaml").write_text(small_space)
    code = "import sys; from dse.cli import main; main(['search', 'small.yaml', '--budget', '4']); "
    code += "print([name for name in ('altair', 'vl_convert') if name in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert run.stdout.endswith("[]\n")


def test_a_name_leads_a_page_into_no_other_folder(tmp_path, monkeypatch, capsys, small_space):
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("DSE_STORAGE", raising=False)
    (tmp_path / "small.yaml").write_text(small_space)
    assert main(["search", "../small.yaml", "--budget", "2", "--study", "../../page"]) == 0
    capsys.readouterr()
    assert main(["report", "../../page"]) == 0
    assert capsys.readouterr().out == "__.._page.html\n"
    assert {path.name for path in tmp_path.rglob("*.html")} == {"__.._page.html"}
