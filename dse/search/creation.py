"""What a study keeps about itself in its database, so that this alone is enough to go on."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

import numpy as np
import optuna
import yaml

from costmodel.errors import DseError
from dse.fronts.hypervolume import Box
from dse.fronts.pareto import as_costs
from dse.pricing.evaluation import evaluate, remedies
from dse.pricing.profiles import NATIVE, rules_for
from dse.search.history import BOX
from dse.search.samplers import lanes_of, sampler_choice
from dse.spaces.space import Space
from dse.storage.optuna_store import Store, StoredStudy

#: Attributes of a study in the database, beside those of `dse.search.history`.
SPACE, SPACE_NAME, FINGERPRINT = "dse:space", "dse:space_name", "dse:fingerprint"
SAMPLER, SEED, BATCH_SIZE = "dse:sampler", "dse:seed", "dse:batch_size"
BUDGET, PROFILE, FOCUS, VERSIONS = "dse:budget", "dse:profile", "dse:focus", "dse:versions"
LANES, INNER = "dse:lanes", "dse:exact_parameters"

#: Legal designs, drawn when a study is created, that span the box in which hypervolume is measured.
BOX_SAMPLE = 1024
#: The same of machines, each of which has all layouts of its workloads priced.
MACHINES_SAMPLE = 64


def new_attributes(space: Space, sampler: str, seed: int, profile: str = NATIVE) -> dict[str, Any]:
    """What a study keeps about itself, so that the database alone is enough to go on."""
    return {
        SPACE: space.text,
        SPACE_NAME: space.name,
        FINGERPRINT: space.fingerprint,
        SAMPLER: sampler,
        SEED: seed,
        BATCH_SIZE: sampler_choice(sampler).batch_size,
        LANES: lanes_of(sampler, space),
        PROFILE: profile,
        BOX: sampled_box(space, profile),
        VERSIONS: versions(),
    } | ({INNER: [parameter.name for parameter in space.inner]} if space.inner else {})


def new_study(store: Store, name: str, space: Space, attributes: Mapping[str, Any]) -> StoredStudy:
    """Store a study that has no trials yet; if another process was first, its study."""
    return store.create_study(
        name,
        [objective.direction for objective in space.objectives],
        metric_names=[objective.key for objective in space.objectives],
        user_attrs=attributes,
    )


def sampled_box(space: Space, profile: str = NATIVE) -> list[list[float]]:
    """Ideal and reference point from random legal designs, the feasible ones if there are any.

    It depends on space and profile alone, so hypervolumes of studies of one space can be compared.
    """
    points = MACHINES_SAMPLE if space.workloads else BOX_SAMPLE
    designs = space.legal.random(points, np.random.default_rng(0))
    evaluation = evaluate(space, designs, rules=rules_for(space, profile))
    costs = as_costs(evaluation.values, [objective.direction for objective in space.objectives])
    usable = np.isfinite(costs).all(axis=1)
    if (usable & evaluation.feasible).any():
        usable &= evaluation.feasible
    if not usable.any():
        unpriced = np.isnan(evaluation.breakdown.step_time)
        wanting = remedies(space, profile, {name: column[unpriced] for name, column in designs.items()})
        raise DseError(
            f"space {space.name}: no legal design has finite objectives under profile {profile}"
            + (f", {wanting}" if wanting else "; check its expressions, and what the profile knows")
        )
    box = Box.around(costs[usable])
    return [box.ideal.tolist(), box.reference.tolist()]


def versions() -> dict[str, str]:
    """What made a study: program and libraries."""
    return {
        "dse": version("dse"),
        "optuna": optuna.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }


def differences(one: Space, other: Space) -> list[str]:
    """Which keys of two spaces differ, as their files spell them."""
    texts = yaml.safe_load(one.text), yaml.safe_load(other.text)
    keys = dict.fromkeys(key for text in texts for key in text if key != "description")
    return [key for key in keys if texts[0].get(key) != texts[1].get(key)]
