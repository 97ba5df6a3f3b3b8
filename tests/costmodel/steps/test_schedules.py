"""Pipeline schedules: figures that others printed, closed forms, another simulator, and laws."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

from costmodel.steps.pipeline import schedules
from costmodel.steps.pipeline.schedules import NONE, order
from costmodel.steps.pipeline.simulation import TimedPasses, ends_of_ranks
from tests.support.cases import cases
from tests.support.paths import TEST_DATA
from tests.support.pipelines import TIMES, pipeline_times
from tests.support.scalar_pipeline import ORDERS, Action, simulated

PUBLISHED = pd.read_csv(TEST_DATA / "schedules_published.csv", comment="#")
SIMULATED = pd.read_csv(TEST_DATA / "schedules_simulated.csv", comment="#")
FIGURES = ("makespan", "span", "idle", "idle_in_span", "peak_until_b", "peak_until_w", "messages")
F, B, W = 5.0, 7.0, 3.0
#: 1F1B with several chunks has a name in sources.
SCHEDULES = {**schedules.SCHEDULES, "interleaved": schedules.SCHEDULES["1f1b"]}


def scales(texts: pd.Series, ranks: int) -> np.ndarray:
    """Scales of the ranks, as words, as rows of an array; 1 where nothing is said."""
    rows = np.ones((len(texts), ranks))
    for row, text in zip(rows, texts, strict=True):
        if isinstance(text, str):
            row[: text.count(" ") + 1] = [float(word) for word in text.split()]
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
        group_size=table.get("group", 0.0), forward_time=table.f, input_gradient_time=table.b,
        weight_gradient_time=table.w, message_time=table.comm, pair_time=table.pair,
        stage_scale=scales(table.stage_scale, int(table.p.max())) if "stage_scale" in table else 1.0,
    )  # fmt: skip
    predictions = pd.DataFrame(vars(times))
    predictions["bubble_rate_of_span"] = 1 - table.m * table.v * (table.f + table.b + table.w) / predictions.span
    predictions["idle_rate"] = predictions.idle / predictions.makespan
    return predictions


def timed(schedule: str, p: float, m: Any, v: Any = 1, **more: Any) -> SimpleNamespace:
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


def random_pipelines(rng: np.random.Generator, number: int, most: int) -> dict[str, Any]:
    """Random cases as arguments of `pipeline_times`."""
    names = ("schedule", "pp", "vpp", "gradient_accumulation_steps", "group_size")
    sizes = dict(zip(names, zip(*(random_case(rng, most) for _ in range(number)), strict=True), strict=True))
    scale = np.where(rng.random((number, 1)) < 0.5, rng.uniform(0.8, 1.3, (number, 8)), 1.0)
    times = rng.uniform(0, 2, (len(TIMES), number)) * [[1], [1], [1], [1], [0.4]]
    times[3, ::2], times[4, ::3] = 0, 0
    return {**sizes, **dict(zip(TIMES, times, strict=True)), "stage_scale": scale}


@pytest.mark.parametrize(("seed", "most"), [(0, 12), (1, 40), (2, 150)])
def test_a_scalar_simulator_says_the_same(seed, most):
    """Each rank runs its written list, one action at a time; long pipelines among them."""
    given = random_pipelines(np.random.default_rng(seed), 80, most)
    actual = vars(pipeline_times(**given))
    for row, (schedule, p, v, m, n, f, b, w, pair, comm, scale) in enumerate(zip(*given.values(), strict=True)):
        expected = simulated(schedule, p, m, v, n, f=f, b=b, w=w, comm=comm, pair=pair or None, scale=scale.tolist())
        assert {name: actual[name][row] for name in FIGURES} == pytest.approx(expected, rel=1e-9, abs=1e-9), row


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
    longer = {name: 7 * time for name, time in zip(TIMES, (F, B, W, 13.0, 0.5), strict=True)}
    np.testing.assert_allclose(timed(schedule, 6, m, v, **given | longer).span, 7 * actual.span)
    assert (np.diff(actual.makespan) > 0).all()
    assert (actual.idle >= 0).all()
    assert (actual.idle_in_span <= actual.idle).all()
    assert (actual.peak_until_w >= actual.peak_until_b).all()
    assert schedule == "dualpipe" or (timed(schedule, 1, m, v).idle == 0).all()


def test_a_batch_is_its_rows_one_by_one():
    given = random_pipelines(np.random.default_rng(3), 40, 60)
    given = {name: np.concatenate([values] * 3) for name, values in given.items()}  # some pieces are wide, some not
    batch = vars(pipeline_times(**given))
    for row in range(120):
        alone = vars(pipeline_times(**{name: values[row : row + 1] for name, values in given.items()}))
        assert alone == {name: batch[name][row : row + 1] for name in batch}, row


def test_long_pipelines_by_their_beginning_and_end_are_those_run_in_full():
    """Some settle after few micro-batches and the rest is added; others never do."""
    rng = np.random.default_rng(5)
    for schedule in [word for word, row in schedules.SCHEDULES.items() if not row.chunk_by_chunk]:
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
