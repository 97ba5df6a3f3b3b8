"""Samplers by name, and the wrapper that makes their proposals legal and new.

Any Optuna sampler works. Its proposals need not be legal: the wrapper moves each to the nearest legal design that no
trial has yet, and draws one at random where there is none near."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np
import optuna
from numpy.random import SeedSequence
from optuna.distributions import BaseDistribution
from optuna.samplers import BaseSampler
from optuna.study import Study
from optuna.trial import FrozenTrial, TrialState

from costmodel.errors import DseError, suggestion
from costmodel.formats.input_files import data_beside
from costmodel.rules.rules import WorkloadRules
from dse.pricing.evaluated import rules_for
from dse.registry import load
from dse.searching.samplers.archive import DRAWS_EACH, DesignShare, Key, Known
from dse.spaces.sections.parameters import decoded
from dse.spaces.space import Params, Space


class SpaceExhausted(Exception):
    """Every legal design of the space has been proposed."""


@dataclass(frozen=True)
class Choice:
    """A sampler on offer."""

    description: str
    batch_size: int  #: trials that are proposed, and evaluated, together
    sampler: str = ""  #: module:class, made from a seed; "" draws legal designs
    options: Mapping[str, Any] = field(default_factory=dict)  #: of the class
    joint: bool = True  #: samples all parameters together; else it says which
    concurrency: int = 1  #: batches under way at a time, of a new study
    learns: bool = True  #: from trials, so that its first batch is drawn; else it proposes from the start
    needs: Sequence[str] = ()  #: packages that do not come with dse

    def build(self, space: Space, rules: WorkloadRules, seed: int, **options: Any) -> BaseSampler | None:
        """The sampler of a seed; one that does not learn from trials evaluates designs of the space by its rules."""
        inputs = {} if self.learns else {"space": space, "rules": rules}
        return load(self.sampler)(**self.options, **inputs, seed=seed, **options) if self.sampler else None


#: Name -> sampler, as ``--sampler`` takes it. A genetic population is a batch: generations end with batches.
SAMPLERS: Mapping[str, Choice] = {name: Choice(**row) for name, row in data_beside(__file__).items()}
DEFAULT_SAMPLER = "screening"


def sampler_choice(name: str) -> Choice:
    """The sampler of that name.

    Raises `DseError` for an unknown name, or one whose packages are not installed.
    """
    if name not in SAMPLERS:
        raise DseError(f"sampler {name!r}: unknown{suggestion(name, SAMPLERS)}")
    choice = SAMPLERS[name]
    missing = [package for package in choice.needs if find_spec(package) is None]
    if missing:
        raise DseError(f"sampler {name!r}: needs {' and '.join(missing)}; pip install {' '.join(missing)}")
    return choice


class LegalSampler(BaseSampler):
    """Makes each proposal of another sampler legal, and different from every design before it.

    A sampler that learns from trials has nothing to learn from at first: its first batch is the space's
    starting points, and others drawn uniformly from the legal designs. Later, a proposal is replaced by the
    nearest legal design, and one that was seen before by a new neighbour of it. `Study.ask` then records the
    design that is really evaluated. Of a space with exact parameters it samples the others.
    """

    def __init__(
        self, base: BaseSampler | None, space: Space, rng: np.random.Generator, *,
        seen: Collection[Key] | Known = (), share: DesignShare | None = None, joint: bool = True,
        learns: bool = True,
    ) -> None:  # fmt: skip
        self.base = base
        self.legal = space.outer
        self.parameters = self.legal.space.parameters
        self.rng = rng
        self.joint = joint
        self.distributions = {p.name: p.distribution for p in self.parameters}
        self.varying = {name: d for name, d in self.distributions.items() if not d.single()}
        self.before = seen
        self.proposed: set[Key] = set()
        self.share = share
        self.informed = base is not None and (bool(seen) or not learns)
        self.starts = space.starting_points if learns else []

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return self.distributions

    def sample_relative(self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]) -> Params:
        # A genetic sampler counts generations as it proposes, so it is asked even where its proposal is unused.
        proposal = self._proposal(self.base, study, trial) if self.base else {}
        legal = self.legal
        starts = [start for start in self.starts if not self.is_seen(legal.key(start))]
        if starts:
            params = starts[0]
        elif self.informed:
            params = legal.nearest(proposal, self.rng)
        else:
            params = self.drawn()
        if self.is_seen(legal.key(params)):
            new = (near for near in legal.neighbours(params, self.rng) if not self.is_seen(legal.key(near)))
            if (neighbour := next(new, None)) is None:
                raise SpaceExhausted
            params = neighbour
        self.proposed.add(legal.key(params))
        return params

    def is_seen(self, key: Key) -> bool:
        """True if a design is a trial, possibly one of very many, was proposed, or is of another share."""
        other_share = self.share is not None and not self.share.has_key(key)
        return other_share or key in self.proposed or key in self.before

    def _proposal(self, base: BaseSampler, study: Study, trial: FrozenTrial) -> Params:
        """The proposal of the base sampler, legal or not."""
        # Every trial has every parameter, so there is no need to look through all of them for a common set.
        together = self.varying if self.joint else base.infer_relative_search_space(study, trial)
        known = base.sample_relative(study, trial, together)
        return {
            name: known[name] if name in known else base.sample_independent(study, trial, name, distribution)
            for name, distribution in self.distributions.items()
        }

    def drawn(self) -> Params:
        """A design at random, of this share if one comes soon."""
        for _ in range(self.share.concurrency * DRAWS_EACH if self.share else 1):
            [params] = decoded(self.parameters, self.legal.random(1, self.rng))
            if self.share is None or self.share.has_key(self.legal.key(params)):
                break
        return params

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        raise AssertionError(f"{param_name}: every parameter is sampled relative to the others")

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        if self.base is not None:
            self.base.before_trial(study, trial)

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        if self.base is not None:
            self.base.after_trial(study, trial, state, values)


def legal_sampler(
    name: str, space: Space, seeds: SeedSequence, seen: Collection[Key] | Known, rules: WorkloadRules | None = None,
    *, custom: BaseSampler | None = None, share: DesignShare | None = None, **options: Any,
) -> LegalSampler:  # fmt: skip
    """A fresh sampler of that name for one batch.

    `name` is one of `SAMPLERS`; `custom` is a sampler of Optuna or the user that replaces it. The sampler draws from
    `seeds`, proposes designs of `share` (default: all), and none of `seen`. Samplers that evaluate designs use `rules`
    (default: the native cost model); `options` are those of `ScreeningSampler`.
    """
    if custom is not None:
        return LegalSampler(custom, space, np.random.default_rng(seeds), seen=seen, share=share, joint=False)
    choice = sampler_choice(name)
    more = {} if choice.learns else {**options, "taken": seen, "share": share}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        base = choice.build(space, rules or rules_for(space), int(seeds.generate_state(1)[0]), **more)
    return LegalSampler(
        base, space, np.random.default_rng(seeds), seen=seen, share=share, joint=choice.joint, learns=choice.learns
    )
