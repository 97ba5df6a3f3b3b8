"""Families of Hugging Face architectures: rules that turn the keys of a `config.json` into the fields of a model.

`families.yaml` has a row for each family. A `model_type` is a family, another word for one, or refused with a reason.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

from costmodel.formats.input_files import data_beside


@dataclass(frozen=True, slots=True)
class Family:
    """Rules for reading the configurations of an architecture."""

    title: str
    keys: Mapping[str, str]  #: field of a model -> key; several, by "|": whichever there is
    fixed: Mapping[str, Any]  #: fields that all models of the family share
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: key -> value where a file is silent
    window: str = "sliding_window"  #: key of the keys that a query sees
    window_switch: str = ""  #: key that must be true for the window to count
    types: str = "layer_types"  #: key of a list with a word for each layer, or of a text with a letter
    mixers: Mapping[Any, str] = field(default_factory=dict)  #: word of such a list -> mixer, beyond `MIXERS`
    full_at: str = ""  #: key of the numbers of layers with full attention
    first_layer: int = 0  #: number of the first layer in such lists
    full_every: int | str = 0  #: every so many layers see all keys where others have a window; or its key
    full_offset: str = ""  #: key: the first of these layers, from 0; the last of each group without one
    other: str = ""  #: mixer of layers without full attention; a window without one
    sparse_step: str = ""  #: key: every so many layers have experts
    sparse_offset: str = ""  #: key: the first of these layers, from 0; the last of each group without one
    mtp_order: str = ""  #: key of the layers of multi-token prediction, as `types`
    sizes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  #: mixer -> field of its layers -> key
    #: Field -> key of a list with a word for each layer, and the word of layers without this dimension.
    reused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    shared_keys: str = ""  #: key: so many last layers see the keys and values of earlier ones
    once: tuple[str, ...] = ()  #: keys that a model file can only say to be 1, or absent
    optional: tuple[str, ...] = ()  #: fields that models of the family may lack, such as those of experts


@cache
def families() -> Mapping[str, Family]:
    """`model_type` of a configuration -> its family, from `families.yaml`; a row may be `like` one before it."""
    rows: dict[str, dict[str, Any]] = {}
    for name, row in data_beside(__file__, "families.yaml").items():
        base = rows.get(row.pop("like", ""), {})
        joined = {part: {**base[part], **rules} for part, rules in row.items() if isinstance(base.get(part), dict)}
        rows[name] = {**base, **row, **joined}
    return {name: Family(**row) for name, row in rows.items()}


WORDS: Final[Mapping[str, Any]] = data_beside(__file__, "words.yaml")
#: Other words for the same -> the family's own; `_text` behind a word says the same.
ALIASES: Final[Mapping[str, str]] = {word: name for name, words in WORDS["aliases"].items() for word in words}
#: `model_type` -> part of it that no kind of kernel here states.
REFUSED: Final[Mapping[str, str]] = {word: reason for reason, words in WORDS["refused"].items() for word in words}
