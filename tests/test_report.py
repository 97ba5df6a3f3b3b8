"""`dse report`: one page that needs nothing else, as a browser shows it."""

from __future__ import annotations

import json
import re
from xml.etree import ElementTree

import pytest

from dse import DseError, Space, Study
from dse.cli import main
from tests.browser import browser, errors, opened

pytest.importorskip("plotly", reason="needs the `report` extra")

#: Where the bars, points and rows of a page are read.
FRONT = "document.querySelector('.pairs .plot')"
ROWS = "return [...document.querySelectorAll('.front tbody tr')].filter(r => !r.hidden).length"
HOVER_FIRST = f"""const curve = {FRONT}.data.findIndex(trace => trace.customdata);
    Plotly.Fx.hover({FRONT}, [{{curveNumber: curve, pointNumber: 0}}]);"""
BRUSH_TP_OF_FIRST = """const lines = document.querySelector('[data-figure=parallel]');
    const at = lines.data[0].dimensions.find(one => one.label === 'tp').values[0];
    return Plotly.restyle(lines, {'dimensions[0].constraintrange': [[[at - 0.4, at + 0.4]]]}, [0]);"""


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
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=\"(?!data:|#)", text)
    data = json.loads(re.search(r'id="data">(.*?)</script>', text, flags=re.DOTALL)[1])
    assert {"front0", "step_time", "peak_memory", "parallel", "hypervolume", "infeasible"} <= data[
        "figures"
    ].keys()
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
    circles = [
        element.get("class") for element in ElementTree.parse(path).iter() if element.tag.endswith("}circle")
    ]
    assert circles.count("front") == len(study.pareto_front())
    assert circles.count("cloud") == study.table.feasible.sum() - len(study.pareto_front())


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 1400])
def test_a_browser_draws_it_without_complaint(width, dark, report, tmp_path):
    with browser(tmp_path, width=width, dark=dark) as driver:
        opened(driver, report)
        assert errors(driver) == []
        run = driver.execute_script
        assert run("return document.documentElement.scrollWidth") <= width, (
            "the page itself never scrolls sideways"
        )
        assert run("return document.querySelectorAll('.plot:not(.js-plotly-plot, [hidden] *)').length") == 0
        ink = f"return getComputedStyle({FRONT}.querySelector('.xtitle')).fill"
        before = run(ink)
        run("document.getElementById('scheme').click()")
        assert run(ink) != before
        assert errors(driver) == []


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
        selected = run(f"return {FRONT}.data.find(t => t.customdata).selectedpoints.length")
        assert selected == (front["step_time_s"] < middle).sum()
        run("document.getElementById('clear').click()")
        run(set_filter, "recompute", "full")
        assert run(ROWS) == (front["recompute"] == "full").sum()
        run(set_filter, "recompute", "")
        run(HOVER_FIRST)
        assert f"trial {front['trial'][0]}" in run(f"return {FRONT}.querySelector('.hoverlayer').textContent")
        run(BRUSH_TP_OF_FIRST)
        assert run(ROWS) == (front["tp"] == front["tp"][0]).sum()
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
                    .filter(part => !part.hidden && part.querySelector('.js-plotly-plot')).length""")
                assert shown == 1
        assert errors(driver) == []


def test_figures_follow_the_objectives_of_the_study(tmp_path, small_space, study):
    layout = study.plot_front().layout
    assert (layout.xaxis.title.text, layout.yaxis.title.text) == ("step time", "peak memory")
    space = Space.from_text(small_space)
    three = Study.create(
        space.with_objectives(["step_time", "mfu", "peak_memory"]), "three", storage=study.storage
    )
    three.run(40)
    drawn = three.plot_front()
    titles = [drawn.layout[f"{letter}axis{n}"].title.text for n in ("", 2, 3) for letter in "xy"]
    assert titles == ["step time", "peak memory", "step time", "mfu", "peak memory", "mfu"]
    one = Study.create(space.with_objectives(["mfu"]), "one", storage=study.storage)
    one.run(20)
    best = next(trace for trace in one.plot_front().data if trace.name == "best so far")
    assert best.y[-1] == one.pareto_front()["mfu"].max()
    assert list(best.y) == sorted(best.y)


def test_bars_of_a_breakdown_add_up_to_it(toy_system, gpt):
    from costmodel import DesignPoints, step

    breakdown = step(gpt, toy_system, DesignPoints.of(tp=[1, 2], pp=2, gradient_accumulation_steps=8))
    for total in ("step_time", "peak_memory", "energy_per_step"):
        bars = breakdown.plot(total, names=["a", "b"]).data
        assert [sum(bar.x[n] for bar in bars) for n in (0, 1)] == pytest.approx(breakdown.columns()[total])
    with pytest.raises(DseError, match="did you mean 'step_time'"):
        breakdown.plot("steptime")


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
