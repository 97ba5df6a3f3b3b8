"""What trials and their attributes hold, checked when it is read, so that all else can rely on it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from optuna.trial import FrozenTrial

from dse.searching.samplers.exact_search import WINNERS
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED
from dse.searching.trials.trial_attributes import BREAKDOWN, DERIVED, LAYOUTS, MARGINS
from dse.spaces.space import Space
from dse.storage import shapes
from dse.storage.damage import DAMAGED, damaged
from dse.storage.optuna_store import Store, StoredStudy

#: Attribute of a trial -> what it holds.
OF_TRIALS: Final[Mapping[str, shapes.JsonShape]] = {
    BREAKDOWN: shapes.NUMBERS,
    DERIVED: shapes.NUMBERS,
    MARGINS: shapes.NUMBERS,
    LAYOUTS: shapes.LAYOUTS,
    WINNERS: shapes.WINNERS,
    DESIGNS_PRICED: shapes.COUNT,
}


def check_attribute(name: str, value: Any, where: str, trial: str) -> None:
    """Refuse an attribute of a trial that is not what dse stores under its name; see `JsonShape.check`."""
    if name in OF_TRIALS:
        OF_TRIALS[name].check(value, where, f"{trial}: trial_user_attributes: {name}")


def decoded_attribute(name: str, text: str, where: str, trial: str) -> Any:
    """An attribute of a trial from its text, checked.

    Raises
    ------
    DseError
        If it is none.
    """
    try:
        value = json.loads(text)
    except DAMAGED as error:
        expected = OF_TRIALS[name].expected
        raise damaged(where, f"{trial}: trial_user_attributes: {name}", text, expected) from error
    check_attribute(name, value, where, trial)
    return value


def stored_winners(
    store: Store, stored: StoredStudy, keys: Sequence[str], *, first: int = 0
) -> dict[int, list[dict[str, Any]]]:
    """Identity -> the winners of each finished trial of a number and later that has some, with some values.

    Raises
    ------
    DseError
        If they are something else.
    """
    found = store.attribute(stored, WINNERS, first=first)
    for trial_id, winners in found.items():
        right = OF_TRIALS[WINNERS].fits(winners)
        if not (right and all(own["values"].keys() >= {*keys} for own in winners)):
            place = f"study {stored.name!r}, trial_id {trial_id}: trial_user_attributes: {WINNERS}"
            raise damaged(store.where, place, winners, f"designs with their values of {', '.join(keys)}")
    return found


def decoded_tables(name: str, texts: Sequence[str], where: str, trial: Callable[[int], str]) -> list[Any]:
    """An attribute of some trials that maps names to numbers, from its texts; nothing where one has none.

    Raises
    ------
    DseError
        If one of them is something else.
    """
    try:
        rows: list[Any] = json.loads(f"[{','.join(text or '{}' for text in texts)}]")
        if len(rows) == len(texts) and all({*map(type, row.values())} <= {float} for row in rows):
            return rows
    except DAMAGED:
        pass  # one by one, to tell which
    return [decoded_attribute(name, text or "{}", where, trial(row)) for row, text in enumerate(texts)]


def check_params(space: Space, names: Iterable[Any], where: str, trial: str) -> None:
    """Refuse trials that lack a parameter of the space.

    Raises
    ------
    DseError
        Naming the database, the trial and what it has.
    """
    own = tuple(sorted(map(str, names)))
    if not space.by_name.keys() <= set(own):
        raise damaged(where, f"{trial}: trial_params", own, f"all of {', '.join(space.by_name)}")


def check_trials(space: Space, trials: Iterable[FrozenTrial], where: str, study: str) -> None:
    """Refuse trials that do not hold what dse stores; see `check_params` and `check_attribute`."""
    for trial in trials:
        place = f"study {study!r}, trial {trial.number}"
        check_params(space, trial.params, where, place)
        for name, value in trial.user_attrs.items():
            check_attribute(name, value, where, place)
