"""Pipeline schedules: figures that others printed, closed forms, another simulator, and laws."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from costmodel import DseError, PipelineTimes, pipeline_times
from costmodel.steps.pipeline.schedules import NONE, SCHEDULES, order
from costmodel.steps.pipeline.simulation import TimedPasses, ends_of_ranks
from tests.support.cases import cases
from tests.support.paths import TEST_DATA
from tests.support.scalar_pipeline import ORDERS, Action, simulated

DATA = TEST_DATA
PUBLISHED = pd.read_csv(DATA / "schedules_published.csv", comment="#")
SIMULATED = pd.read_csv(DATA / "schedules_simulated.csv", comment="#")
#: The table that both were taken from, where it is there.
SPECS = next((up / "shared" / "specs" for up in Path(__file__).parents if (up / "shared").is_dir()), DATA)
GOLDEN = SPECS / "schedules_golden.csv"
FIGURES = ("makespan", "span", "idle", "idle_in_span", "peak_until_b", "peak_until_w", "messages")
F, B, W = 5.0, 7.0, 3.0


def scales(texts: pd.Series, ranks: int) -> np.ndarray:
    """Scales of the ranks, as words, as rows of an array; 1 where nothing is said."""
    rows = np.ones((len(texts), ranks))
    for row, text in zip(rows, texts, strict=True):
        if isinstance(text, str):
            given = [float(word) for word in text.split()]
            row[: len(given)] = given
    return rows


def pipeline_order(schedule: str, p: int, v: int, m: int, n: int = 0) -> list[list[tuple[Action, ...]]]:
    """Actions of each rank of a pipeline, in order; an entry is one action or the two of an overlapped pair.

    Stages of DualPipe's second chain, which starts on the last rank, count on from those of the first.
    """
    table = SCHEDULES[schedule].slots(p, v, m, n or p)
    orders: list[list[tuple[int, Action]]] = [[] for _ in range(p)]
    stages = table.forward.shape[1]
    for (chain, stage, micro), slot in np.ndenumerate(table.forward):
        weight = int(table.weight[chain, stage, micro])
        actions = {"F": int(slot), "A" if weight == NONE else "B": int(table.backward[chain, stage, micro])}
        actions |= {} if weight == NONE else {"W": weight}
        position = chain * stages + stage
        orders[table.rank[chain, stage]] += [(when, (kind, position, micro)) for kind, when in actions.items()]
    entries: list[list[tuple[Action, ...]]] = []
    for timed in orders:
        by_slot: dict[int, tuple[Action, ...]] = {}
        for when, action in sorted(timed, key=lambda one: (one[0], "FBAW".index(one[1][0]))):
            by_slot[when] = (*by_slot.get(when, ()), action)
        entries.append(list(by_slot.values()))
    return entries


def predicted(table: pd.DataFrame) -> pd.DataFrame:
    """Our columns for the rows of a table of figures, evaluated as one batch."""
    times = pipeline_times(
        schedule=table.schedule.tolist(), pp=table.p, vpp=table.v, gradient_accumulation_steps=table.m,
        group_size=table.get("group"), forward_time=table.f, input_gradient_time=table.b,
        weight_gradient_time=table.w, message_time=table.comm, pair_time=table.pair,
        stage_scale=scales(table.stage_scale, int(table.p.max())) if "stage_scale" in table else None,
    )  # fmt: skip
    predictions = pd.DataFrame(times.columns())
    predictions["bubble_rate_of_span"] = 1 - table.m * table.v * (table.f + table.b + table.w) / predictions.span
    predictions["idle_rate"] = predictions.idle / predictions.makespan
    return predictions


def timed(schedule: str, p: float, m: Any, v: Any = 1, **more: Any) -> PipelineTimes:
    """Times of pipelines with passes of three different primes, unless told otherwise."""
    passes = {"forward_time": F, "input_gradient_time": B, "weight_gradient_time": W}
    return pipeline_times(schedule=schedule, pp=p, vpp=v, gradient_accumulation_steps=m, **{**passes, **more})


def chunks(schedule: str) -> int:
    """Chunks per rank with which a schedule runs."""
    return {"interleaved": 3, "breadth_first": 2, "zb_v": 2, "dualpipe_v": 2}.get(schedule, 1)


def test_figures_of_the_sources():
    """Zero bubble, tables 2, 5 and 9; DeepSeek-V3, table 2; Narayanan 2021; Korthikanti 2022; Primus."""
    actual = predicted(PUBLISHED)
    assert len(PUBLISHED) == 96
    for row, figure in PUBLISHED.iterrows():
        assert actual.loc[row, figure.quantity] == pytest.approx(figure.value, rel=1e-12, abs=figure.tolerance), (
            figure.tolist()
        )


def test_cases_of_another_simulator():
    assert len(SIMULATED) == 108
    actual = predicted(SIMULATED)
    for name in FIGURES:
        np.testing.assert_allclose(actual[name], SIMULATED[name], rtol=1e-12, atol=1e-9, err_msg=name)


@pytest.mark.skipif(not GOLDEN.exists(), reason="not in this checkout; its rows are in tests/data")
def test_the_figures_are_copied_faithfully():
    golden = pd.read_csv(GOLDEN)
    for kind, ours in (("published", PUBLISHED), ("simulated", SIMULATED)):
        theirs = golden[golden.kind == kind][list(ours)].reset_index(drop=True)
        pd.testing.assert_frame_equal(ours, theirs, check_dtype=False)


@pytest.mark.parametrize("p", [1, 2, 3, 4, 6, 7])
@pytest.mark.parametrize("schedule", ORDERS)
def test_orders_are_those_of_the_sources(schedule, p):
    """Written out rank by rank, and read off the timetable."""
    for m in (1, 2, 3, 5, 8, 12, 14, 21):
        for v, n in ((chunks(schedule), p), (chunks(schedule), p + 1)):
            if legal(schedule, p, v, m, n):
                written = [ORDERS[schedule](p, m, v, n, i).entries for i in range(p)]
                assert pipeline_order(schedule, p, v, m, n) == written, (p, v, m, n)


def legal(schedule: str, p: int, v: int, m: int, n: int) -> bool:
    """True if a schedule can run this number of micro-batches."""
    sizes = [np.array([float(size)]) for size in (p, v, m, n)]
    return all(rule.met(*sizes).all() for rule in SCHEDULES[schedule].rules)


def random_case(rng: np.random.Generator, most: int) -> tuple[str, int, int, int, int]:
    """A schedule with sizes that it can run."""
    while True:
        schedule = str(rng.choice(list(ORDERS)))
        p, m = int(rng.integers(1, 9)), int(rng.integers(1, most))
        v = int(rng.integers(2, 5)) if schedule in ("interleaved", "breadth_first") else chunks(schedule)
        n = int(rng.integers(p, 2 * p + 1)) if schedule == "interleaved" else p
        if legal(schedule, p, v, m, n):
            return schedule, p, v, m, n


@pytest.mark.parametrize(("seed", "most"), [(0, 12), (1, 40), (2, 150)])
def test_a_scalar_simulator_says_the_same(seed, most):
    """Each rank runs its written list, one action at a time; long pipelines among them."""
    rng = np.random.default_rng(seed)
    cases = [random_case(rng, most) for _ in range(80)]
    schedule, p, v, m, n = zip(*cases, strict=True)
    f, b, w, pair = rng.uniform(0, 2, (4, len(cases)))
    comm = rng.choice([0, 0.1, 0.7], len(cases))
    pair[::2] = np.nan
    scale = np.where(rng.random((len(cases), 1)) < 0.5, rng.uniform(0.8, 1.3, (len(cases), 8)), 1.0)
    actual = pipeline_times(
        schedule=schedule, pp=p, vpp=v, gradient_accumulation_steps=m, group_size=n, forward_time=f,
        input_gradient_time=b, weight_gradient_time=w, message_time=comm, pair_time=pair, stage_scale=scale,
    ).columns()  # fmt: skip
    for row, case in enumerate(cases):
        expected = simulated(
            schedule[row], p[row], m[row], v[row], n[row],
            f=f[row], b=b[row], w=w[row], comm=comm[row],
            pair=None if np.isnan(pair[row]) else pair[row], scale=scale[row].tolist(),
        )  # fmt: skip
        assert {name: actual[name][row] for name in FIGURES} == pytest.approx(expected, rel=1e-9, abs=1e-9), case


#: Closed forms of equal ranks without messages: idle time where it is exact, as of p, m, v and passes.
IDLE = cases(__file__, "IDLE")


@pytest.mark.parametrize(("schedule", "v", "p", "m", "passes", "idle", "in_span"), IDLE)
def test_idle_time_in_closed_form(schedule, v, p, m, passes, idle, in_span):
    """Where ranks are equal and messages take no time. [Qi2024], [DeepSeek2024], [Narayanan2021]"""
    f, b, w = passes
    actual = timed(schedule, p, m, v, forward_time=f, input_gradient_time=b, weight_gradient_time=w)
    assert (actual.idle_in_span if in_span else actual.idle).item() == pytest.approx(idle)


@pytest.mark.parametrize("schedule", ORDERS)
def test_laws(schedule):
    """Slower messages and ranks are never faster; times in other units are the same in other units."""
    m, v = 12 * np.arange(1, 9), chunks(schedule)
    scale = np.array([[1.0, 0.9, 1.2, 1.1, 1.0, 1.3]])
    given = {"message_time": 0.5, "pair_time": 13.0, "stage_scale": scale}
    actual = timed(schedule, 6, m, v, **given)
    for slower in ({"message_time": 0.6}, {"stage_scale": scale + 0.1}, {"forward_time": F + 1}):
        assert (timed(schedule, 6, m, v, **given | slower).makespan >= actual.makespan).all()
    names = ("forward_time", "input_gradient_time", "weight_gradient_time", "message_time", "pair_time")
    longer = {name: 7 * time for name, time in zip(names, (F, B, W, 0.5, 13.0), strict=True)}
    np.testing.assert_allclose(timed(schedule, 6, m, v, **given | longer).span, 7 * actual.span)
    assert (np.diff(actual.makespan) > 0).all()
    assert (actual.idle >= 0).all()
    assert (actual.idle_in_span <= actual.idle).all()
    assert (actual.peak_until_w >= actual.peak_until_b).all()
    alone = timed(schedule, 1, m, v) if schedule != "dualpipe" else None
    assert alone is None or (alone.idle == 0).all()


def test_a_batch_is_its_rows_one_by_one():
    rng = np.random.default_rng(3)
    cases = [random_case(rng, 60) for _ in range(40)] * 3  # thrice: some pieces are wide, some are not
    schedule, p, v, m, n = map(list, zip(*cases, strict=True))
    f, b, w, pair, comm = rng.uniform(0.5, 2, (5, len(cases)))
    scale = rng.uniform(0.9, 1.1, (len(cases), 8))

    def run(rows: slice) -> dict[str, np.ndarray]:
        return pipeline_times(
            schedule=schedule[rows], pp=p[rows], vpp=v[rows], gradient_accumulation_steps=m[rows],
            group_size=n[rows], forward_time=f[rows], input_gradient_time=b[rows],
            weight_gradient_time=w[rows], message_time=comm[rows], pair_time=pair[rows],
            stage_scale=scale[rows],
        ).columns()  # fmt: skip

    batch = run(slice(None))
    for row in range(len(cases)):
        for name, value in run(slice(row, row + 1)).items():
            assert value.item() == batch[name][row], (name, cases[row])


def test_long_pipelines_by_their_beginning_and_end_are_those_run_in_full():
    """Some settle after few micro-batches and the rest is added; others never do."""
    rng = np.random.default_rng(5)
    for schedule in [word for word, row in SCHEDULES.items() if not row.chunk_by_chunk]:
        v = chunks(schedule)
        scale = np.ones((60, 6))
        scale[:, 5], scale[::3] = rng.uniform(0.9, 1.4, 60), rng.uniform(0.99, 1.01, (20, 6))
        comm = rng.uniform(0, 1, 60)
        actual = timed(schedule, 6, 240, v, message_time=comm, stage_scale=scale)
        passes = TimedPasses(
            forward=F * scale, backward=B * scale, weight=W * scale, pair=(F + B + W) * scale, message=comm
        )
        ends = ends_of_ranks([order(schedule, 6, v, 240, 6)], [np.arange(60)], passes)
        np.testing.assert_allclose(actual.makespan, ends.end.max(axis=1), rtol=1e-10)


@pytest.mark.parametrize(("wrong", "message"), cases(__file__, "MISTAKES"))
def test_mistakes_are_told_in_one_line(wrong, message):
    given = {
        "schedule": "1f1b", "pp": 4, "gradient_accumulation_steps": 12, "forward_time": F,
        "input_gradient_time": B, "weight_gradient_time": W,
    }  # fmt: skip
    with pytest.raises(DseError, match=message) as told:
        pipeline_times(**given | wrong)
    assert "\n" not in str(told.value)
