"""Samplers of the benchmark: functions of a problem and a seed that evaluate designs until `Spent` is raised.

To add one, write such a function and list it in `SAMPLERS`; ten lines suffice:

    def mine(problem: Problem, seed: int) -> None:
        rng = np.random.default_rng(seed)
        while True:
            rows = rng.integers(problem.sizes, size=(20, problem.sizes.size))
            costs, violations = problem.evaluate(rows)  # learn from these
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import optuna

from benchmarks.exploration.problem import Problem, Spent
from dse.api.study import Study
from dse.searching.samplers.samplers import SAMPLERS as OURS

Sampler = Callable[[Problem, int], None]


def ours(problem: Problem, seed: int, sampler: str = "screening") -> None:
    """A sampler of `dse search`: proposals are legal and new; `screening` evaluates many designs for each trial."""
    with tempfile.TemporaryDirectory() as folder:
        storage = f"sqlite:///{Path(folder)}/dse.db"
        study = Study.create(
            problem.space, "benchmark", storage=storage, sampler=sampler, seed=seed, profile=problem.profile
        )
        study.run(problem.budget)
        problem.record(study.table.costs)
        problem.evaluations = max(study.designs_priced, problem.evaluations)


def from_optuna(problem: Problem, seed: int, make: Callable[..., optuna.samplers.BaseSampler], **options: Any) -> None:
    """A sampler of Optuna as it comes, with the violation of limits and rules as its constraint."""

    def objective(trial: optuna.Trial) -> tuple[float, ...]:
        row = [
            trial.suggest_int(name, 0, int(size) - 1) if ordered
            else trial.suggest_categorical(name, range(int(size)))
            for name, size, ordered in zip(problem.names, problem.sizes, problem.ordered, strict=True)
        ]  # fmt: skip
        costs, violations = problem.evaluate(np.array(row))
        trial.set_user_attr("violation", float(violations[0]))
        return tuple(np.where(np.isfinite(costs[0]), costs[0], 1e30))

    def violation(trial: optuna.trial.FrozenTrial) -> list[float]:
        return [trial.user_attrs["violation"]]

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    sampler = make(seed=seed, constraints_func=violation, **options)
    study = optuna.create_study(directions=["minimize"] * problem.objectives, sampler=sampler)
    study.optimize(objective)


def random(problem: Problem, seed: int) -> None:
    """Legal designs, each as likely as any other."""
    rng = np.random.default_rng(seed)
    while True:
        problem.evaluate(problem.lattice.random(100, rng).astype(np.intp))


def from_pymoo(problem: Problem, seed: int) -> None:
    """NSGA-II of pymoo on whole numbers."""
    from pymoo.algorithms.moo.nsga2 import NSGA2
    from pymoo.core.problem import Problem as PymooProblem
    from pymoo.operators.crossover.sbx import SBX
    from pymoo.operators.mutation.pm import PM
    from pymoo.operators.repair.rounding import RoundingRepair
    from pymoo.operators.sampling.rnd import IntegerRandomSampling
    from pymoo.optimize import minimize

    class Rows(PymooProblem):  # type: ignore[misc]
        def _evaluate(self, x: Any, out: Any, *args: Any, **kwargs: Any) -> None:
            costs, violations = problem.evaluate(x.astype(int))
            left = len(x) - len(costs)
            out["F"] = np.pad(np.where(np.isfinite(costs), costs, 1e30), ((0, left), (0, 0)), constant_values=1e30)
            out["G"] = np.pad(violations, (0, left), constant_values=1.0)[:, None]

    sizes = problem.sizes.size
    rows = Rows(
        n_var=sizes, n_obj=problem.objectives, n_ieq_constr=1, xl=np.zeros(sizes), xu=problem.sizes - 1, vtype=int
    )
    repair = RoundingRepair()
    algorithm = NSGA2(
        pop_size=20, sampling=IntegerRandomSampling(), crossover=SBX(prob=1.0, eta=3.0, vtype=float, repair=repair),
        mutation=PM(prob=1.0, eta=3.0, vtype=float, repair=repair), eliminate_duplicates=True,
    )  # fmt: skip
    minimize(rows, algorithm, ("n_gen", 10**6), seed=seed)


def from_nevergrad(problem: Problem, seed: int, name: str = "NGOpt") -> None:
    """An optimizer of nevergrad, which combines objectives by hypervolume and takes the violation as a penalty."""
    import nevergrad as ng

    choices = [
        ng.p.TransitionChoice(range(int(size))) if ordered else ng.p.Choice(range(int(size)))
        for size, ordered in zip(problem.sizes, problem.ordered, strict=True)
    ]
    parametrization = ng.p.Tuple(*choices)
    parametrization.random_state.seed(seed)
    optimizer = ng.optimizers.registry[name](parametrization=parametrization, budget=problem.budget)
    scale = None
    while True:
        candidate = optimizer.ask()
        costs, violations = problem.evaluate(np.array(candidate.value))
        if np.isfinite(costs).all():
            scale = costs[0] if scale is None else scale
            optimizer.tell(candidate, (np.log(costs[0] / scale) + violations[0]).tolist())
        else:
            optimizer.tell(candidate, [1e3 * (1 + violations[0])] * problem.objectives)


def from_ax(problem: Problem, seed: int) -> None:
    """The default strategy of Ax, with the violation as an outcome constraint."""
    from ax.api.client import Client
    from ax.api.configs import ChoiceParameterConfig

    logging.getLogger("ax").setLevel(logging.ERROR)
    client = Client(random_seed=seed)
    client.configure_experiment(parameters=[
        ChoiceParameterConfig(name=name, values=[*range(int(size))], parameter_type="int", is_ordered=ordered)
        for name, size, ordered in zip(problem.names, problem.sizes, problem.ordered, strict=True) if size > 1
    ])  # fmt: skip
    names, worst = [f"cost{number}" for number in range(problem.objectives)], np.ones(problem.objectives)
    client.configure_optimization(", ".join(f"-{name}" for name in names), ["violation <= 0.0"])
    while True:
        for index, values in client.get_next_trials(max_trials=5).items():
            costs, violations = problem.evaluate(np.array([int(values.get(name, 0)) for name in problem.names]))
            worst = np.maximum(worst, np.where(np.isfinite(costs[0]), costs[0], 0.0))
            outcomes = dict(zip(names, np.minimum(costs[0], worst).tolist(), strict=True))
            client.complete_trial(index, raw_data={**outcomes, "violation": float(violations[0])})


#: Name -> sampler: those of `dse search`, then those of other libraries: `pip install pymoo nevergrad ax-platform`.
SAMPLERS: Final[Mapping[str, Sampler]] = {
    **{name: partial(ours, sampler=name) for name in OURS if name != "random"},
    "random": random,
    "optuna-nsga2": partial(from_optuna, make=optuna.samplers.NSGAIISampler, population_size=20),
    "optuna-tpe": partial(from_optuna, make=optuna.samplers.TPESampler),
    "pymoo-nsga2": from_pymoo,
    "nevergrad": from_nevergrad,
    "ax": from_ax,
}


def run(sampler: str, name: str, seed: int, budget: int) -> Problem:
    """A sampler's run on a space to the end of its budget. Raises `ImportError` if its library is missing."""
    problem = Problem(name, budget)
    with suppress(Spent):
        SAMPLERS[sampler](problem, seed)
    return problem
