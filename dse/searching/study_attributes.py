"""Attributes of a study in its database, which are enough to continue it.

The text of the space, the sampler, its seed and the size of a batch are fixed when the study is created, and so is the
box of hypervolumes: ideal and reference point of random designs. Budget and focus may change between runs. Attributes
are checked when a study is opened, since other programs write to the same tables.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from operator import index
from typing import Any, Final

import numpy as np
import optuna
import yaml

from costmodel.errors import DseError
from costmodel.installation import __version__
from costmodel.rules.registry import NATIVE
from dse.fronts import Box, as_costs
from dse.pricing.evaluated import rules_for, solves_shardings
from dse.pricing.evaluation import evaluate, remedies
from dse.searching.batches.history import BOX
from dse.searching.samplers.samplers import sampler_choice
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED, evaluated_whole
from dse.spaces.space import Space
from dse.storage.optuna_store import Store, StoredStudy, unreadable

#: Attributes of a study in the database, in addition to those of `dse.searching.batches.history`.
SPACE, SPACE_NAME, FINGERPRINT = "dse:space", "dse:space_name", "dse:fingerprint"
SAMPLER, SEED, BATCH_SIZE = "dse:sampler", "dse:seed", "dse:batch_size"
BUDGET, PROFILE, FOCUS, VERSIONS = "dse:budget", "dse:profile", "dse:focus", "dse:versions"
CONCURRENCY, INNER = "dse:lanes", "dse:exact_parameters"

#: Descriptive entries of a file, which change no value.
WORDS: Final = ("source", "kind", "description", "title", "name")

#: Legal designs, drawn when a study is created, that span the box in which hypervolume is measured; and machines in a
#: space of several workloads, since all layouts of each are evaluated.
BOX_SAMPLE, MACHINES_SAMPLE = 1024, 64
#: Most trials of a batch, and most batches under way, that a study may ask for. [-]
MOST_AT_ONCE: Final = 100_000


def new_attributes(space: Space, sampler: str, seed: int, profile: str = NATIVE) -> dict[str, Any]:
    """Attributes of a new study, which are enough to continue it."""
    box, choice = box_of(space, profile), sampler_choice(sampler)
    many = choice.learns or not evaluated_whole(space)  # else the first batch evaluates every design
    return {
        SPACE: space.text,
        SPACE_NAME: space.name,
        FINGERPRINT: space.fingerprint,
        SAMPLER: sampler,
        SEED: seed,
        BATCH_SIZE: choice.batch_size,
        CONCURRENCY: choice.concurrency if many else 1,
        PROFILE: profile,
        BOX: box,
        VERSIONS: versions(),
    } | ({INNER: [parameter.name for parameter in space.inner]} if space.inner else {})


def new_study(store: Store, name: str, space: Space, attributes: Mapping[str, Any]) -> StoredStudy:
    """Store a study that has no trials yet; if another process was first, its study."""
    return store.create_study(
        name, space.directions, metric_names=[objective.key for objective in space.objectives], user_attrs=attributes
    )


def check_attributes(store: Store, stored: StoredStudy) -> None:
    """Refuse a study whose attributes differ from those that dse stores.

    Raises `DseError` if it cannot be read.
    """
    attributes = stored.user_attrs
    with store.reading(stored.study_id, "study_user_attributes"):
        texts = (attributes[SPACE], attributes[FINGERPRINT], attributes[SAMPLER])
        "".join((*texts, *(attributes.get(name, "") for name in (SPACE_NAME, PROFILE, FOCUS))))
        "".join((*attributes.get(INNER, ()), *attributes.get(VERSIONS, {}).values()))
        counts = attributes[SEED], *(attributes.get(name, 0) for name in (BUDGET, DESIGNS_PRICED))
        if min(counts) < 0 or not all(
            0 < attributes.get(name, 1) <= MOST_AT_ONCE for name in (BATCH_SIZE, CONCURRENCY)
        ):
            raise ValueError("a count out of its range")
        list(map(index, (*counts, attributes[BATCH_SIZE], attributes.get(CONCURRENCY, 1))))
        ideal, reference = np.array(attributes[BOX], dtype=np.float64)
        if len(ideal) != len(stored.directions) or not np.isfinite([ideal, reference]).all():
            raise ValueError(f"{BOX} of other objectives")
        if not (ideal < reference).all():
            raise ValueError(f"{BOX} without an inside")


def stored_space(store: Store, stored: StoredStudy) -> Space:
    """The space of a study, whose attributes are checked.

    Raises `DseError` if dse did not make the study, or it cannot be read.
    """
    if SPACE not in stored.user_attrs:
        raise DseError(f"study {stored.name!r}: not made by dse, it holds no search space; use optuna.load_study")
    check_attributes(store, stored)
    try:
        return Space.from_text(stored.user_attrs[SPACE])
    except DseError as error:
        if functions := re.findall(r"(\w+): unknown function", str(error)):
            names = ", ".join(dict.fromkeys(functions))
            raise DseError(
                f"study {stored.name!r}: its formulas call {names}, which this process does not know; in "
                "Python, import the module that defines it with @dse.formula_function, then "
                f"dse.Study.load({stored.name!r})"
            ) from None
        raise unreadable(stored.name, store.where, f"study_user_attributes: {SPACE}", error) from error


def box_of(space: Space, profile: str) -> list[list[float]]:
    """Ideal and reference point of random legal designs, the feasible ones if there are any.

    They depend on space and profile alone, so hypervolumes of studies of one space can be compared. Where shardings are
    solved, all designs have Megatron-LM's: to solve them for random machines takes longest of all.
    """
    drawn = space.opened({"sharding": ["megatron_sp"]}) if solves_shardings(space) else space
    points = MACHINES_SAMPLE if space.workloads else BOX_SAMPLE
    designs = drawn.legal.random(points, np.random.default_rng(0))
    evaluation = evaluate(drawn, designs, rules=rules_for(drawn, profile))
    costs = as_costs(evaluation.values, space.directions)
    usable = np.isfinite(costs).all(axis=1)
    if (usable & evaluation.feasible).any():
        usable &= evaluation.feasible
    if not usable.any():
        unpriced = np.isnan(evaluation.breakdown.time)
        wanting = remedies(space, profile, {name: column[unpriced] for name, column in designs.items()})
        raise DseError(
            f"space {space.name}: no legal design has finite objectives under profile {profile}"
            + (f", {wanting}" if wanting else "; check its expressions and the profile")
        )
    box = Box.around(costs[usable])
    return [box.ideal.tolist(), box.reference.tolist()]


def versions() -> dict[str, str]:
    """Versions of the program and of the libraries that made a study."""
    numbers = {"dse": __version__, "optuna": optuna.__version__, "numpy": np.__version__}
    return {**numbers, "python": platform.python_version()}


def differences(one: Space, other: Space) -> list[str]:
    """Which keys of two spaces differ, as their files spell them."""
    texts = yaml.safe_load(one.text), yaml.safe_load(other.text)
    keys = dict.fromkeys(key for text in texts for key in text if key != "description")
    return [key for key in keys if texts[0].get(key) != texts[1].get(key)]


def changed_values(stored: Space, now: Space) -> list[str]:
    """Differences between two spaces, one line for each value, as their files write it."""
    old, new = (dict(leaves(yaml.safe_load(space.text))) for space in (stored, now))
    return [
        f"{name.removesuffix('.value')}: {old.get(name, 'none')} stored, {new.get(name, 'none')} now"
        for name in dict.fromkeys((*old, *new))
        if old.get(name) != new.get(name) and name.rpartition(".")[2] not in WORDS and not name.startswith("layouts.")
    ]


def leaves(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values within nested mappings, each under its keys; of a list of mappings by their names."""
    if isinstance(data, list) and data and all(isinstance(entry, dict) for entry in data):
        data = {str(entry.get("name", number)): entry for number, entry in enumerate(data)}
    if isinstance(data, dict):
        for key, value in data.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, data
