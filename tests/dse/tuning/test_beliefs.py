"""Beliefs about designs after runs of others, the choice of the next run, and the end of runs."""

import math
from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, load_model, load_system, step
from costmodel.training.run import Run
from dse.calibration.posterior import conditioned
from dse.tuning.belief import UNLIKELY, RunCandidates, Told, best_run, decide, ensemble, likeness, noise_of

MODEL, SYSTEM = load_model("llama3_8b"), load_system("h100_80g_dgx")
#: Layouts of Llama 3 8B on 64 chips: (tp, pp, micro-batch size).
LAYOUTS = [(tp, pp, mbs) for tp in (1, 2, 4, 8) for pp in (1, 2, 4) for mbs in (1, 2, 4)]


def design(rows=None):
    tp, pp, mbs = np.array(LAYOUTS if rows is None else [LAYOUTS[row] for row in rows], dtype=float).T
    dp = 64 / (tp * pp)
    return DesignPoints.of(
        tp=tp, pp=pp, dp=dp, micro_batch_size=mbs, gradient_accumulation_steps=256 / (dp * mbs), sequence_parallel=1.0,
        distributed_optimizer=1.0, overlap_grad_reduce=1.0,
    )  # fmt: skip


@pytest.fixture(scope="module")
def candidates():
    run = Run(MODEL, SYSTEM, design())
    cost = step(MODEL, SYSTEM, design())
    return RunCandidates(ensemble(run, cost.step_time), run.design, cost.peak_memory, float(SYSTEM.dram.capacity))


def test_the_first_machine_is_as_shipped(candidates):
    shipped = step(MODEL, SYSTEM, design()).step_time
    np.testing.assert_allclose(np.exp(candidates.machines.log_times[0]), shipped, rtol=1e-12)


def test_conditioning_agrees_with_the_precision_of_a_joint_normal():
    """The second way: the inverse covariance of all entries and the noisy values of some."""
    rng = np.random.default_rng(3)
    factor = rng.standard_normal((5, 5))
    prior, rows, values, noise = factor @ factor.T, [0, 3], np.array([1.0, -2.0]), 0.4
    change, left, size = conditioned(prior, rows, values, noise)
    observed = np.eye(5)[rows]
    precision = np.linalg.inv(prior) + observed.T @ observed / noise**2
    np.testing.assert_allclose(left, np.linalg.inv(precision), rtol=1e-8)
    np.testing.assert_allclose(change, np.linalg.solve(precision, observed.T @ values / noise**2), rtol=1e-8)
    assert size == pytest.approx(values @ values / noise**2 - change @ precision @ change)


def test_a_run_moves_its_design_to_the_measured_time_and_its_neighbours_less(candidates):
    before, told = candidates.believed([]), Told(0, 1.5 * math.exp(candidates.machines.log_times[0, 0]))
    after = candidates.believed([told])
    near, far = likeness(candidates.design, len(LAYOUTS))[0].argsort()[[-2, 0]]
    moved = after.mean - before.mean
    assert abs(after.mean[0] - math.log(told.step_time)) < 0.1 * abs(moved[0])
    assert moved[0] > moved[near] > moved[far] > 0
    assert (after.deviation < before.deviation).all()


def test_a_slow_run_across_nodes_lowers_the_rate_of_the_fabric_and_not_that_of_the_node(candidates):
    index = LAYOUTS.index((1, 1, 1))  # gradients of all weights between nodes
    slow = [Told(index, 2.0 * math.exp(candidates.machines.log_times[0, index]))]
    names = [one.name for one in candidates.machines.constants]
    before, factors = candidates.constants([]), candidates.machines.factors
    np.testing.assert_allclose(before, [factors.mean(axis=0), factors.std(axis=0)])
    shift = candidates.constants(slow)[0] - before[0]
    assert shift[names.index("fabric_efficiency")] < 3 * min(shift[names.index("node_efficiency")], 0) < 1e-9


def test_a_run_out_of_memory_makes_larger_designs_unlikely_to_fit(candidates):
    smallest, *_, largest = np.argsort(candidates.memory)
    tight = replace(candidates, capacity=1.1 * candidates.memory[largest])
    before = tight.believed([]).fits
    near = int(np.argsort(candidates.memory)[-2])
    after = tight.believed([Told(near, math.nan, out_of_memory=True)]).fits
    assert after[near] < 0.6 < 0.8 < before[near]
    assert after[largest] < before[largest]
    assert after[smallest] == pytest.approx(1)


def test_repeats_give_the_noise():
    quiet, loud = [Told(0, 1.0), Told(0, 1.001)] * 6, [Told(0, 1.0), Told(0, 1.4)] * 6
    assert noise_of(quiet) < noise_of([]) < noise_of(loud)
    assert noise_of(loud) == pytest.approx(np.std(np.log([1.0, 1.4])), rel=0.2)


@pytest.mark.parametrize("seed", range(6))
def test_five_runs_find_a_layout_within_two_percent_on_machines_that_nobody_has_seen(candidates, seed):
    """The cluster differs in constants by factors, and each layout by an error of its own that nothing explains."""
    rng = np.random.default_rng(100 + seed)
    known = SYSTEM.quantities()
    changed = {
        "fabric_efficiency": known["fabric_efficiency"] * rng.uniform(0.2, 1.0),
        "node_efficiency": known["node_efficiency"] * rng.uniform(0.6, 1.0),
        "host_dispatch": known["host_dispatch"] * rng.uniform(0.5, 4),
        "sustained": known["sustained"] * rng.uniform(0.7, 1.0),
    }
    truth = step(MODEL, SYSTEM.with_quantities(changed), design()).step_time * np.exp(rng.normal(0, 0.02, len(LAYOUTS)))
    fits = candidates.memory < candidates.capacity
    told: list[Told] = []
    for _ in range(5):
        chosen = decide(candidates, told).runs
        if not chosen:
            break
        index = chosen[0].candidate
        told.append(Told(index, truth[index] if fits[index] else math.nan, out_of_memory=not fits[index]))
    assert best_run(told)[1] <= 1.02 * truth[fits].min()
    assert sum(run.out_of_memory for run in told) <= 1


def test_runs_end_once_all_others_are_unlikely_to_be_faster(candidates):
    """Where predictions are known to be good."""
    candidates = replace(candidates, doubt=0.1)
    shipped = np.exp(candidates.machines.log_times[0])
    places = np.argsort(shipped)[:12].tolist()
    told = [Told(index, float(shipped[index])) for index in places]
    assert decide(candidates, told[:1]).runs
    decision = decide(candidates, told)
    assert decision.chance < UNLIKELY
    assert (decision.runs, decision.best) == ((), places[0])


def test_the_best_two_are_repeated_where_noise_decides(candidates):
    shipped = np.exp(candidates.machines.log_times[0])
    order = np.argsort(shipped).tolist()
    noisy = [Told(order[0], time) for time in (0.9, 1.1, 0.9, 1.1)] + [Told(order[1], 1.001)]
    told = [*(Told(index, 9.0) for index in order[2:]), *noisy]
    [again] = decide(candidates, told).runs
    assert (again.repeats, again.candidate) == (True, order[1])


def test_several_runs_at_once_differ(candidates):
    assert len({run.candidate for run in decide(candidates, [], parallel=4).runs}) == 4


def test_narrow_intervals_of_predictions_leave_less_doubt(candidates):
    calm = replace(candidates, doubt=0.3).believed([])
    assert (calm.deviation < candidates.believed([]).deviation).all()
