"""What a study keeps about itself, checked when it is read, so that all else can rely on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from costmodel.errors import DseError
from dse.searching.batches.history import BOX
from dse.searching.samplers.screening_sampler import DESIGNS_PRICED
from dse.searching.study_attributes import (
    ACCEPTED,
    BATCH_SIZE,
    BUDGET,
    FINGERPRINT,
    FOCUS,
    INNER,
    LANES,
    PROFILE,
    SAMPLER,
    SEED,
    SPACE,
    SPACE_NAME,
    VERSIONS,
)
from dse.spaces.space import Space
from dse.storage import shapes
from dse.storage.damage import damaged
from dse.storage.optuna_store import StoredStudy

#: Attribute -> what it holds.
SHAPES: Final[Mapping[str, shapes.JsonShape]] = {
    **dict.fromkeys((SPACE, SPACE_NAME, FINGERPRINT, SAMPLER, PROFILE, FOCUS), shapes.TEXT),
    **dict.fromkeys((SEED, BUDGET, DESIGNS_PRICED), shapes.COUNT),
    **dict.fromkeys((BATCH_SIZE, LANES), shapes.SIZE),
    BOX: shapes.BOX,
    VERSIONS: shapes.TEXTS,
    INNER: shapes.NAMES,
    ACCEPTED: shapes.COUNT,
}
#: Attributes that every study has.
NEEDED: Final = (SPACE, FINGERPRINT, SAMPLER, SEED, BATCH_SIZE, BOX)


def check_attributes(stored: StoredStudy, where: str) -> None:
    """Refuse a study whose own attributes are not what dse stores; `where` is the storage as shown.

    Raises
    ------
    DseError
        Naming the attribute, and what is expected.
    """
    for name, shape in SHAPES.items():
        if name in NEEDED or name in stored.user_attrs:
            place = f"study {stored.name!r}: study_user_attributes: {name}"
            shape.check(stored.user_attrs.get(name), where, place)
    own, place = stored.user_attrs[BOX], f"study {stored.name!r}: study_directions"
    if len(own[0]) != len(stored.directions):
        raise damaged(where, place, stored.directions, f"{len(own[0])}, as {BOX} has")


def stored_space(stored: StoredStudy, where: str) -> Space:
    """The space of a study, whose attributes are checked; `where` is the storage as shown.

    Raises
    ------
    DseError
        If dse did not make the study, or its attributes are damaged.
    """
    if SPACE not in stored.user_attrs:
        raise DseError(
            f"study {stored.name!r}: not made by dse, it holds no search space; use optuna.load_study"
        )
    check_attributes(stored, where)
    try:
        return Space.from_text(stored.user_attrs[SPACE])
    except DseError as error:
        place = f"study {stored.name!r}: study_user_attributes: {SPACE}"
        raise damaged(where, place, str(error).splitlines()[0], "a search space of this dse") from error
