"""The default sampler: it finds the designs of a batch by bulk evaluation, hundreds for each trial.

The cost model evaluates thousands of designs in the time that Optuna takes for one trial. So each batch searches the
space by itself and proposes the designs that add most to the front. Each round evaluates a few thousand designs in one
call: neighbours of the front's designs, crossings of them, and designs at random. Then bounds
(`dse.searching.bounding`) rule out a better best design of each objective, and of spaces where few designs decide it,
all designs but the exact front. Where they do not, the best design of each objective is polished: its components are
varied one by one, and combinations that should then be better are evaluated, until none is. Designs of a small front
are polished, too, without more cost by other objectives. A small space is evaluated whole. The result is an `Archive`,
from which the next batch goes on.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from threading import Lock
from typing import Any, Final

import numpy as np
import optuna
from numpy.random import Generator, SeedSequence
from numpy.typing import NDArray
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial

from costmodel.columns import BoolArray, FloatArray, IntArray
from costmodel.rules.rules import TRAINING, WorkloadRules
from costmodel.training.blocks import ASSIGNMENTS
from dse.fronts import FrontIndex, as_costs, low_and_span, most_dominating
from dse.pricing.evaluated import nominal_rate, rules_for, solves_shardings
from dse.pricing.evaluation import evaluate, untimed_margins
from dse.pricing.workers import Jobs, Pricer, Workers
from dse.searching.samplers.archive import BATCH_SIZE, DRAWS_EACH, Archive, DesignShare, Key, Known, least_beaten
from dse.spaces.lattice import Lattice, hashes
from dse.spaces.space import Space

#: Most designs evaluated in one call: enough to outweigh Python's overhead, few enough to learn from each.
ROUND: Final = 3072
#: Rounds of a batch at least: each learns from those before it.
ROUNDS: Final = 3
#: Share of the first batch's designs that are drawn at random, before anything is known.
DRAWN: Final = 0.15
#: Shares of a round that are crossings, and designs at random; the others are neighbours.
CROSSED, FRESH = 0.35, 0.15
#: Spaces of at most WHOLE times the designs of a batch are evaluated whole, which is less work than a search. IN_ORDER
#: times as many at the usual rate, since designs in order share stages.
WHOLE, IN_ORDER = 5, 6
#: Most designs evaluated for polishing, over those of the batch.
POLISHED: Final = 12
#: Designs of a small front that move in a batch, and combinations of each kind that are tried for one.
HELD, TRIED = 12, 64
#: Most designs and boxes of a bounded search for the best designs, and for the front, over those of the batch.
BEST_BOUNDED, FRONT_BOUNDED = 10, 4
#: Added to the time of infeasible shardings of a design, so that feasible ones come first. [s]
LATE: Final = 1e6
#: Least violation of a limit that has a logarithm of use. [-]
LEAST_USE: Final = 1e-9 - 1

#: Designs, and logarithms of their costs and uses of limits.
Effects = tuple[FloatArray, FloatArray]
#: Designs with their costs and violations.
Evaluated = tuple[FloatArray, FloatArray, FloatArray]


class Screening:
    """The search for the designs of one batch."""

    def __init__(self, sampler: ScreeningSampler, archive: Archive, budget: int, rng: Generator) -> None:
        self.sampler = sampler
        self.lattice = sampler.lattice
        self.archive = archive
        self.budget = budget
        self.rng = rng
        self.evaluated = 0  #: designs so far
        self._size = min(ROUND, max(budget // ROUNDS, 1))  # of a round
        self._known: NDArray[np.uint64] = np.empty(0, dtype=np.uint64)
        self._all: list[Evaluated] = []
        self._nearest: FloatArray = np.empty(0)  #: the design that breaks limits the least, once it was polished
        self._whole = sampler.screened is sampler.space and listed_whole(sampler.space, budget)

    def run(self, reserve: int, starts: FloatArray) -> Archive:
        """Spend the budget; the archive, with `reserve` designs in reserve where the front is small."""
        if self.archive.complete:
            return self.archive
        first = not len(self.archive.places)
        self._noted(starts)
        if self._whole:
            space, rules = self.lattice.space, self.sampler.rules
            for columns in space.legal.enumerate(4 * ROUND):  # once one is feasible, only those that fit are timed
                margins = untimed_margins(space, columns, rules) if len(self.archive.places) else None
                places = self.lattice.places(columns)
                self._noted(places if margins is None else places[(margins >= 0).all(axis=1)])
            self.archive, self.evaluated = replace(self.archive, complete=True), int(space.legal.count)
        else:
            drawn = max(int(self.budget * DRAWN), 1)
            for start in range(0, drawn if first else 0, self._size):
                self._noted(self._new(self.lattice.random(min(self._size, drawn - start), self.rng)))
            while self.evaluated < self.budget - self._size // 2:
                self._round()
            if not (first and self._bounded()):
                self._polish()
        return replace(self.archive.thinned(), reserve=self._reserve(reserve))

    def _bounded(self) -> bool:
        """Find the best design of each objective by bounds, proved or not, then the front; True if that ended."""
        from dse.searching.bounding.bounds import problem_of  # of open machines
        from dse.searching.bounding.branching import BoundBroken, LeastCosts, Search, start, still_open

        pricer, most = Pricer(self.sampler.screened, self.sampler.rules), IN_ORDER * WHOLE * self.budget
        if not (problem := problem_of(pricer, most)):
            return False
        proved = problem.proved and pricer.space is self.sampler.space
        problem = replace(problem, lenient=not proved)
        with suppress(BoundBroken):
            boxes = start(problem)
            self.evaluated += problem.num_layouts
            for index, most in ((LeastCosts, BEST_BOUNDED), (FrontIndex, FRONT_BOUNDED)):
                rows = still_open(problem, index(self.archive.costs), boxes)[0]
                search = Search(problem, Workers(), boxes.take(rows), self.archive.costs, index)
                search.run(most=most * self.budget)
                self.evaluated += search.evaluated
                whole = index is FrontIndex and proved and not search.waiting
                before = self.archive.take(np.arange(0)) if whole else self.archive
                self.archive = before.joined(self.lattice.places(search.designs), search.costs, ties=whole)
                if search.waiting:
                    return False
                self.archive = replace(self.archive, best_proved=proved)
            self.archive = replace(self.archive, complete=whole, explored=np.full(len(self.archive.places), 3.0))
            return True
        return False

    def _noted(self, places: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Costs and violations of limits of designs, which are kept where nothing beats them."""
        if not len(places):
            return np.empty((0, self.archive.costs.shape[1])), np.empty((0, 0))
        costs, excess = self.sampler.evaluated(places)
        self.evaluated += len(places)
        self._all.append((places, *summed(costs, excess)))
        self.archive = self.archive.joined(places, self._all[-1][1], ties=self._whole)
        return costs, excess

    def _new(self, places: FloatArray) -> FloatArray:
        """Designs among some that no round of this batch has had, each once."""
        keys, first = np.unique(hashes(places), return_index=True)
        new = ~np.isin(keys, self._known, assume_unique=True)
        self._known = np.concatenate([self._known, keys[new]])
        return places[np.sort(first[new])]

    def _round(self) -> None:
        """Evaluate in one call neighbours of the front, its crossings, mostly of the best designs, and random ones."""
        front, near = self.archive, self._near()
        best = front.costs.argmin(axis=0) if len(front.costs) else np.empty(0, dtype=np.intp)
        children = self.lattice.crossed(front.places, best, int(self._size * CROSSED), self.rng)
        near = self._new(np.concatenate([near, children]))
        if len(front.places) and front.explored.all():  # a small front, so two steps away, too
            room = max(int(self._size * (1 - FRESH)) - len(near), 0)
            parents = self.rng.permutation(len(front.places))[: 1 + 2 * room // max(len(self.lattice.pairs), 1)]
            pairs = self.lattice.moved(front.places[parents], self.lattice.pairs)[0]
            near = np.concatenate([near, self._new(self.rng.permutation(pairs)[:room])])
        free = max(int(self._size * FRESH), self._size - len(near), 1)
        self._noted(np.concatenate([near, self.lattice.random(free, self.rng)]))

    def _near(self) -> FloatArray:
        """Neighbours of some designs of the front whose neighbours are not evaluated yet."""
        unexplored = self.rng.permutation(np.flatnonzero(self.archive.explored == 0))
        most = int(self._size * (1 - CROSSED - FRESH)) // max(len(self.lattice.one_step), 1)
        parents = unexplored[: max(most, 1)]
        self.archive.explored[parents] = 1
        return self.lattice.moved(self.archive.places[parents], self.lattice.one_step)[0]

    def _polish(self) -> None:
        """Move the best design of each objective until no combination of components that should be better is.

        Where nothing is feasible yet, the design that breaks limits the least moves. Then some designs of a small front
        move, which should cost no more by other objectives.
        """
        most = self.evaluated + POLISHED * self.budget
        while self.evaluated < most and (here := self._unpolished()):
            [effects] = self._effects(here[0][np.newaxis], most - self.evaluated)
            designs = self._combined(here[0], effects, here[1], self._size)
            self._noted(self._new(designs[: max(most - self.evaluated, 0)]))
        rows = self.rng.permutation(np.flatnonzero(self.archive.explored < 2))[:HELD]
        if rows.size and len(self.archive.places) <= BATCH_SIZE:
            self.archive.explored[rows] = 2
            designs = self.archive.places[rows]
            moved = zip(designs, self._effects(designs, self.budget), strict=True)
            self._noted(self._new(np.concatenate([self._combined(*of, 0, TRIED, held=True) for of in moved])))

    def _unpolished(self) -> tuple[FloatArray, int] | None:
        """The best design of an objective, or the one nearest to feasibility, and the objective; None once polished."""
        for objective, best in enumerate(self.archive.costs.argmin(axis=0) if len(self.archive.costs) else ()):
            if self.archive.explored[best] != 3:
                self.archive.explored[best] = 3
                return self.archive.places[best], objective
        if len(self.archive.costs):
            return None
        places, _, violations = joined(self._all)
        last, self._nearest = self._nearest, places[violations.argmin()]
        return None if np.array_equal(last, self._nearest) else (self._nearest, 0)

    def _combined(self, best: FloatArray, effects: list[Effects], objective: int, most: int,
                  *, held: bool = False) -> FloatArray:  # fmt: skip
        """Designs that should be better, whose components are those of evaluated designs that differ in one alone.

        Components may act on each other, so designs with two other components are among them too; `most` of each kind.
        [-] They should not cost more by other objectives if these are `held`.
        """
        from dse.searching.samplers.knapsack import combined, paired

        now, objectives = effects[0][1][0], self.archive.costs.shape[1]
        others = [other for other in range(objectives) if held and other != objective]
        columns = [objective, *others, *range(objectives, now.size)]
        changes = [(logs - now)[:, columns] for _, logs in effects]
        finite = [np.isfinite(change).all(axis=1) for change in changes]
        if not finite[0][0]:
            return best[np.newaxis][:0]
        changes = [change[rows] for change, rows in zip(changes, finite, strict=True)]
        room, rounds = np.r_[np.zeros(len(others)), -now[objectives:]], 1 if held else len(changes)
        chosen = np.concatenate([combined(changes, room, rounds)[:most], paired(changes, room, most)])
        designs = best
        for (places, _), rows, numbers in zip(effects, finite, chosen.T, strict=True):
            designs = np.where(places[rows][numbers] != best, places[rows][numbers], designs)
        return designs[self.lattice.legal(designs)]

    def _effects(self, designs: FloatArray, most: int) -> list[list[Effects]]:
        """Designs that differ from each of some in one component alone, about `most` in all, in one call. [-]"""
        tables = [table for design in designs for table in self.lattice.varied(design)]
        places, owners = np.concatenate(tables), np.repeat(np.arange(len(tables)), [*map(len, tables)])
        drawn = self.rng.random(len(places)) < most / len(places)
        kept = np.flatnonzero(drawn | np.r_[True, owners[1:] > owners[:-1]])  # a table begins with the design
        places, owners = places[kept], owners[kept]
        logs = logarithms(*self._noted(places))
        ends, count = np.flatnonzero(np.diff(owners)) + 1, len(tables) // len(designs)
        effects = [*zip(np.split(places, ends), np.split(logs, ends), strict=True)]
        return [effects[at : at + count] for at in range(0, len(tables), count)]

    def _reserve(self, n: int) -> FloatArray:
        """The designs next to the front; where nothing is feasible, those next to feasibility."""
        if int((~self.archive.sent).sum()) >= n or not self._all:
            return self.archive.reserve
        places, costs, violations = joined(self._all)
        if not len(self.archive.places):
            return places[np.argsort(violations, kind="stable")[:n]]
        front = {row.tobytes() for row in self.archive.places}
        rows = least_beaten(costs, self.archive.costs, n + len(front))
        return places[[row for row in rows if places[row].tobytes() not in front]][:n]


def summed(costs: FloatArray, excess: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Costs, NaN where infeasible; and the sum of violations, or where all limits hold the least margin, below 0."""
    tightest = excess.max(axis=1, initial=-1.0)
    broken = (tightest > 0) | ~np.isfinite(costs).all(axis=1)
    violations = np.where(broken, np.maximum(excess, 0.0).sum(axis=1), tightest)
    return np.where(broken[:, None], np.nan, costs), violations


def logarithms(costs: FloatArray, excess: FloatArray) -> FloatArray:
    """(designs, objectives + limits) Logarithms of costs, with their signs, and of the uses of limits; or NaN. [-]"""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.column_stack([np.sign(costs) * np.log(np.abs(costs)), np.log1p(np.maximum(excess, LEAST_USE))])
    return np.where(np.isfinite(logs), logs, np.nan)


def joined(parts: Iterable[Evaluated]) -> Evaluated:
    """Designs of several calls as one table."""
    places, costs, violations = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    return places, costs, violations


#: Study attribute: the number of batches, their archive, and the number of designs.
FOUND: Final = "dse:screening"
#: Trial attribute, and study attribute: designs that were evaluated to find it, or all its trials.
DESIGNS_PRICED: Final = "designs_priced"

#: State of a study before its first batch.
NOTHING: Final = {"batches": 0, "starts": 0, "focus": "", DESIGNS_PRICED: 0}

#: CPU time of bulk evaluation for each trial. [s]
TIME_SHARE: Final = 0.9e-3
#: The first batch evaluates as many designs as FIRST_BATCH others.
FIRST_BATCH: Final = 3
#: How far beyond the worst values of a front its hypervolume is measured, as a share of its span.
BEYOND: Final = 0.1
#: Beaten designs that are kept to become trials when there are no others.
RESERVE: Final = 1024


class ScreeningSampler(BaseSampler):
    """Proposes designs found by bulk evaluation: see `dse.searching.samplers.screening_sampler`.

    It works on any Optuna study whose trials suggest the parameters of a space; other parameters are drawn at random.
    Its archive is an attribute of the study, so that a study that is loaded again is continued.

    Random numbers follow from `seed` and the number of the batch. [-] Batches have `batch_size` trials; for each,
    `designs_per_trial` designs are evaluated by `rules`, by default the number that takes some milliseconds. [-]
    `focus` is a condition that designs have to satisfy, such as ``step_time < 15 s``. Designs come from `share`
    (default: all) and the starting points, without those in `taken`; of a space with exact parameters, outer designs.

    >>> space = Space.load("gpt3_175b_1024_a100")
    >>> study = optuna.create_study(directions=["minimize", "minimize"], sampler=ScreeningSampler(space))
    >>> trial = study.ask(ScreeningSampler(space).distributions)
    """

    def __init__(
        self, space: Space, *, rules: WorkloadRules | None = None, seed: int = 0, batch_size: int = BATCH_SIZE,
        designs_per_trial: int | None = None, focus: str = "", taken: Collection[Key] | Known = (),
        share: DesignShare | None = None, jobs: Jobs = 1,
    ) -> None:  # fmt: skip
        self.space = space.focused(focus) if focus else space
        self.focus = focus
        self.taken = taken
        self.share = share
        self.rules = rules or rules_for(space)
        self.seed = seed
        self.batch_size = batch_size
        self.designs_per_trial = designs_per_trial or designs_per_trial_of(space)
        self.jobs = jobs
        self.lattice = Lattice(self.space)
        self.distributions = {p.name: p.distribution for p in space.parameters}
        self._queue: list[tuple[dict[str, Any], int]] = []
        self._others = optuna.samplers.RandomSampler(seed=seed)
        self._lock = Lock()

    def reseed_rng(self) -> None:
        self._others.reseed_rng()

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.distributions

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        with self._lock:
            if not self._queue:
                self._queue = self.next_batch(study)
            params, evaluated = self._queue.pop(0)
        study._storage.set_trial_user_attr(trial._trial_id, DESIGNS_PRICED, evaluated)
        return {
            name: params[name] if distribution in (self.distributions.get(name),)  # compares identities first
            else self.sample_independent(study, trial, name, distribution)
            for name, distribution in search_space.items()
        }  # fmt: skip

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self._others.sample_independent(study, trial, param_name, param_distribution)

    def next_batch(self, study: Study) -> list[tuple[dict[str, Any], int]]:
        """Designs of the next batch, each with the number of designs that were evaluated for it."""
        memory = study._storage.get_study_system_attrs(study._study_id).get(FOUND, NOTHING)
        number, archive = memory["batches"], self._archive(memory)
        rng = np.random.default_rng(SeedSequence([self.seed, number]))
        budget = self.designs_per_trial * self.batch_size * (1 if number else FIRST_BATCH)
        search = Screening(self, archive, budget, rng)
        starts = self._starts[len(self._starts) if self.share else memory["starts"] :][: self.batch_size]
        archive = search.run(RESERVE, starts)
        chosen, archive = self._chosen(archive, starts)
        if missing := self.batch_size - len(chosen):
            drawn = self.lattice.random(missing * DRAWS_EACH, rng)
            owners, taken = self._owners(drawn)
            rows = distinct(np.flatnonzero(self._open(drawn) & ~taken), owners)
            chosen = np.concatenate([chosen, drawn[np.r_[rows, : len(drawn)][:missing]]])
        attribute = {
            "batches": number + 1,
            "starts": len(self._starts) if self.share else memory["starts"] + len(starts),
            "focus": self.focus,
            DESIGNS_PRICED: memory[DESIGNS_PRICED] + search.evaluated,
            "archive": archive.packed(),
        }
        study._storage.set_study_system_attr(study._study_id, FOUND, attribute)
        shares = np.diff(np.arange(self.batch_size + 1) * search.evaluated // self.batch_size).tolist()
        return list(zip(self.space.decode(self.lattice.columns(chosen)), shares, strict=True))

    def _archive(self, memory: Mapping[str, Any]) -> Archive:
        """Designs found by earlier batches; evaluated again where they had another focus."""
        shape = len(self.space.parameters), len(self.space.objectives)
        empty = Archive.empty(*shape)
        if not memory["batches"]:
            return empty
        archive = Archive.unpacked(memory["archive"], *shape)
        if memory["focus"] == self.focus:
            return archive
        places = np.concatenate([archive.places, archive.reserve])
        places = places[self.lattice.legal(places)]
        return empty.joined(places, summed(*self.evaluated(places))[0]) if len(places) else empty

    def evaluated(self, places: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Costs of designs, less is better, and by how much they exceed each limit, as a share of it."""
        columns = self.lattice.columns(places)
        if self.screened is not self.space:
            shardings = [self.screened.by_name["sharding"].code(word) for word in ASSIGNMENTS]
            columns = {name: np.tile(column, len(shardings)) for name, column in columns.items()}
            columns["sharding"] = np.repeat(shardings, len(places))
        evaluation = evaluate(self.screened, columns, rules=self.rules, jobs=self.jobs)
        costs = as_costs(evaluation.values, self.space.directions)
        times = evaluation.breakdown.columns().get("step_time", costs[:, 0]) + np.where(evaluation.feasible, 0.0, LATE)
        rows = np.arange(len(places))
        rows += np.nan_to_num(times, nan=np.inf).reshape(-1, len(places)).argmin(axis=0) * len(places)
        return costs[rows], evaluation.violations[rows]

    @cached_property
    def screened(self) -> Space:
        """The space in which designs are screened; the best of its shardings counts.

        Solving for shardings takes twenty times as long as evaluating one. So designs are screened with the named
        shardings, which `solve` tries too: its time is no longer than theirs.
        """
        if not solves_shardings(self.space) or evaluated_whole(self.space):
            return self.space
        return self.space.with_assignments

    @cached_property
    def _starts(self) -> FloatArray:
        """The space's starting points, as places."""
        return self.lattice.places(self.space.encode(self.space.starting_points))

    def _chosen(self, archive: Archive, starts: FloatArray) -> tuple[FloatArray, Archive]:
        """The designs of a batch: starts, the best of each objective, those that add most, then the reserve."""
        owners, taken = self._owners(np.concatenate([starts, archive.places, archive.reserve]))
        ends = [len(starts), len(starts) + len(archive.places)]
        (_, of_front, others), (_, known, beaten) = np.split(owners, ends), np.split(taken, ends)
        sent = archive.sent | (archive.places[:, None] == starts).all(axis=2).any(axis=1) | known
        archive = replace(archive, sent=sent)
        rows = self._rows(archive, of_front, self.batch_size - len(starts))
        sent[rows] = True
        free = np.flatnonzero(self._open(archive.reserve) & ~beaten & ~np.isin(others, of_front[rows]))
        free = free[np.sort(np.unique(others[free], return_index=True)[1])]
        spare = archive.reserve[free[: self.batch_size - len(starts) - rows.size]]
        left = replace(archive, reserve=archive.reserve[free[len(spare) :]])
        return np.concatenate([starts, archive.places[rows], spare]), left

    def _rows(self, archive: Archive, owners: IntArray, size: int) -> IntArray:
        """At most `size` rows of the front that were not sent, no two of one outer design."""
        unsent = ~archive.sent & self._open(archive.places)
        fresh = np.flatnonzero(unsent)
        if not fresh.size:
            return fresh
        best = np.unique(archive.costs.argmin(axis=0))
        rows = distinct(best[unsent[best]], owners)[:size]
        taken = np.concatenate([archive.costs[archive.sent], archive.costs[rows]])
        more = wanted = size
        while rows.size < size and more == wanted:  # else nothing adds anything
            rest = fresh[~np.isin(owners[fresh], owners[rows])]
            wanted = size - rows.size
            chosen = rest[most_dominating(archive.costs[rest], wanted, corner(archive.costs), taken)]
            taken, more = np.concatenate([taken, archive.costs[chosen]]), chosen.size
            rows = np.concatenate([rows, distinct(chosen, owners)])
        equal = fresh[~np.isin(owners[fresh], owners[rows])]  # adds nothing, but is no worse
        return np.concatenate([rows, distinct(equal, owners)[: size - rows.size]])

    def _open(self, places: FloatArray) -> BoolArray:
        """(designs,) Which designs this batch may propose, as far as its share goes."""
        if self.share is None or not len(places):
            return np.ones(len(places), dtype=bool)
        return self.share.has(self.lattice.columns(places))

    def _owners(self, places: FloatArray) -> tuple[IntArray, BoolArray]:
        """Numbers that tell outer designs apart, and whether these are trials already, (designs,) each."""
        outer = [at for at, parameter in enumerate(self.space.parameters) if not parameter.exact]
        _, first, owners = np.unique(places[:, outer], axis=0, return_index=True, return_inverse=True)
        designs = self.space.decode(self.lattice.columns(places[first]))
        taken = np.array([self.space.outer.key(design) in self.taken for design in designs], dtype=bool)
        return owners.ravel(), taken[owners.ravel()]


def distinct(rows: IntArray, owners: IntArray) -> IntArray:
    """The rows whose owner none before them has. [-]"""
    return rows[np.sort(np.unique(owners[rows], return_index=True)[1])]


def corner(costs: FloatArray) -> FloatArray:
    """Where the hypervolume of a front ends: somewhat beyond its worst values. [the unit of each]"""
    return np.asarray(costs.max(axis=0) + BEYOND * low_and_span(costs)[1])


def listed_whole(space: Space, budget: int) -> bool:
    """True if a batch that may evaluate `budget` designs evaluates every legal design. [-]"""
    more = IN_ORDER if nominal_rate(space) >= TRAINING.rate(space.workload.model) else 1
    return space.legal.count <= WHOLE * more * budget


def evaluated_whole(space: Space) -> bool:
    """True if the first batch of a study evaluates every legal design."""
    return listed_whole(space, FIRST_BATCH * BATCH_SIZE * designs_per_trial_of(space, screened=False))


def designs_per_trial_of(space: Space, *, screened: bool = True) -> int:
    """Designs to be evaluated for one trial: the number that takes `TIME_SHARE` at their `nominal_rate`. [-]"""
    return max(1, round(TIME_SHARE * nominal_rate(space, screened=screened)))
