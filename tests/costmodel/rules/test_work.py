"""Workloads are records: what is done with a model brings its rules, its designs and its results."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest

from costmodel.columns import FloatArray, column
from costmodel.errors import DseError
from costmodel.formats.model_file import load_model
from costmodel.kernels.products import visited_share
from costmodel.rules import registry
from costmodel.rules import rules as work
from costmodel.rules.registry import register_work
from costmodel.rules.rules import KindOfWork, Rules
from costmodel.steps.breakdown import ResultTable
from costmodel.steps.transformer import transformer_step
from costmodel.training.design import DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.run import Run
from dse.pricing.evaluation import evaluate
from dse.pricing.sweep import evaluated_designs
from dse.pricing.workers import Workers
from dse.searching.exact.exact_front import exact_front
from dse.spaces.space import Space
from tests.support.cases import cases
from tests.support.runs import run_of

SPACE = cases(__file__, "SPACE")


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Prefill(ResultTable):
    """Reading prompts."""

    prompt_time: FloatArray = column("s")
    kernel_time: FloatArray = column("s", of="prompt_time")
    exposed_time: FloatArray = column("s", of="prompt_time")
    peak_memory: FloatArray = column("B")


def prefill(run: Run[ModelShape, DesignPoints]) -> Prefill:
    """The forward pass of a step of one micro-batch, and what is exposed in it."""
    step = transformer_step(run)
    exposed = (step.tp_communication_time + step.cp_communication_time) / 2
    return Prefill(
        prompt_time=step.forward_time + exposed,
        kernel_time=step.forward_time,
        exposed_time=exposed,
        peak_memory=step.weights_memory,
    )


@pytest.fixture
def space(monkeypatch) -> Iterator[Space]:
    """A space of another kind of work that is done with a model that is trained too."""
    monkeypatch.setattr(registry, "_SHIPPED", dict(registry._SHIPPED))
    monkeypatch.setattr(registry, "REGISTERED_WORK", {})
    monkeypatch.setattr(work, "WORKS", dict(work.WORKS))
    kind = KindOfWork("prefill", "reading prompts", ModelShape, Prefill)
    register_work(Rules(work=kind, design=DesignPoints, cost=prefill))
    yield Space.from_text(SPACE)
    registry._native_domains.cache_clear()


def test_a_second_kind_of_work_of_a_model_needs_no_profile(space):
    designs = space.legal.at(np.arange(int(space.legal.count)))
    actual = evaluate(space, designs)
    assert isinstance(actual.breakdown, Prefill)
    assert actual.breakdown.time is actual.breakdown.prompt_time
    assert Prefill.totals() == {"prompt_time": ("kernel_time", "exposed_time")}
    assert actual.feasible.all()
    training = evaluate(Space.from_text(SPACE.replace("workload:\n  kind: prefill\n", "")
                                        .replace("prompt_time", "step_time")
                                        .replace("exposed_time", "bubble_time")), designs)  # fmt: skip
    assert (actual.breakdown.time < training.breakdown.time).all()


def test_its_columns_are_named_in_formulas_tables_and_other_processes(space):
    here, elsewhere = (exact_front(space, workers=Workers(jobs), method="list") for jobs in (1, 2))
    assert [record["params"] for record in here.records()] == [record["params"] for record in elsewhere.records()]
    assert "prompt_time_s" in here.records()[0]["breakdown"]
    (named,) = evaluated_designs(space, {"tp": [2]}, 1).records
    assert named["derived"]["wait_share"] == pytest.approx(
        named["breakdown"]["exposed_time_s"] / named["breakdown"]["prompt_time_s"]
    )


def test_a_kind_of_work_is_known_and_fits_the_model(space):
    with pytest.raises(DseError, match=r"workload\.kind: work 'decode': no kind of work here"):
        Space.from_text(SPACE.replace("prefill", "decode"))
    with pytest.raises(DseError, match="gpt2_xl is not a model for it"):
        Space.from_text(SPACE.replace("prefill", "lstm_training"))
    with pytest.raises(DseError, match="work 'training': is built in"):
        register_work(Rules(work=work.TRAINING, design=DesignPoints, cost=prefill))
    with pytest.raises(DseError, match="profile simai: knows transformers only"):
        registry.design_rules("simai", space.workload)


@pytest.mark.parametrize("window", [{}, {"window": 96.0, "full_attention_every": 0.0}])
def test_tokens_one_by_one_meet_the_keys_that_a_sequence_meets(window):
    """Queries and keys are two lengths: a step of one query has all keys that came before."""
    model = replace(load_model("gpt2_xl"), seq_len=1000.0, **window)
    one_by_one = [replace(model, seq_len=1.0, context_len=float(before)) for before in range(1000)]
    windowed = bool(window)
    met = sum(step.keys_seen(windowed=windowed) for step in one_by_one)
    assert met == pytest.approx(1000 * model.keys_seen(windowed=windowed))
    halves = [replace(model, seq_len=500.0, context_len=before) for before in (0.0, 500.0)]
    assert sum(500 * half.keys_seen(windowed=windowed) for half in halves) == pytest.approx(met)


@pytest.mark.parametrize("window", [np.inf, 256.0])
def test_a_prompt_in_two_halves_visits_the_tiles_that_the_whole_does(window):
    whole = visited_share(4096.0, window) * 4096**2
    first = visited_share(2048.0, window) * 2048**2
    assert first + (visited_share(2048.0, window, context_len=2048.0) * 2048 * 4096) == whole


def test_keys_that_were_there_before_cost_attention_alone():
    model = load_model("llama3_405b")
    design = DesignPoints.of(tp=[1, 1, 2, 2], cp=[1, 2, 1, 2], attention=[0, 0, 0, 0])
    alone, behind = (transformer_step(run_of(replace(model, context_len=context), design)) for context in (0, 4096))
    assert (behind.forward_time > alone.forward_time).all()
    assert (behind.cp_communication_time >= alone.cp_communication_time).all()
    assert np.array_equal(behind.optimizer_time, alone.optimizer_time)
    assert np.array_equal(behind.tp_communication_time, alone.tp_communication_time)


SEARCHED = cases(__file__, "SEARCHED")
EVALUATED = """
import sys
from dse.cli import main
main([sys.argv[2], "gpt3_175b_1024_a100", "--set", "tp=8", "--set", "pp=16", "--set", "micro_batch_size=1"])
"""
LOADED = """
import re
wanted = re.compile(r"dse[.]adapters|sqlalchemy$|altair$|pandas$|optuna$")
print(sum(name.split(".")[0] in ("costmodel", "dse") for name in sys.modules))
print(*filter(wanted.match, sys.modules))
"""


@pytest.mark.parametrize(("command", "loaded", "most"), [
    ("search", {"optuna"}, 94), ("evaluate", set(), 86), ("explain", {"pandas"}, 90),
])  # fmt: skip
def test_a_command_loads_what_it_needs(tmp_path, command, loaded, most):
    """No adapter, no Optuna for one design, no SQLAlchemy for SQLite; pictures wait until they are asked for.

    And few modules of `costmodel` and `dse`, which only become fewer.
    """
    code = SEARCHED if command == "search" else EVALUATED
    words = [sys.executable, "-c", code + LOADED, f"sqlite:///{tmp_path}/study.db", command]
    *_, count, names = subprocess.run(words, capture_output=True, text=True, check=True).stdout.splitlines()
    assert {*names.split()} == loaded
    assert int(count) <= most
