"""Numerics of Hugging Face configurations: constants of a model's functions, from which no cost follows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from costmodel.formats.input_files import data_beside
from costmodel.training.dimensions import USUAL, plain

DATA: Final[dict[str, Any]] = data_beside(__file__)
_FAMILIES: Final[Mapping[str, Mapping[str, Any]]] = DATA["families"]
_KEYS: Final[Mapping[str, str]] = DATA["keys"]
_OF_EXPERTS: Final[Mapping[str, str]] = DATA["of_experts"]
_SCALING: Final[Mapping[str, str]] = DATA["scaling"]
_SCALINGS: Final[Mapping[str, int]] = DATA["scalings"]


def read_numerics(value: Callable[[str], Any], family: str, *, experts: bool) -> dict[str, Any]:
    """Fields of `Numerics` that a configuration gives and that differ from the defaults.

    `value` returns the value of a key, or None; "|" separates several keys, and a point precedes those of sections.
    `family` is the title of the model's family.
    """
    found: dict[str, Any] = {**_FAMILIES.get(family, {})}
    for name, key in {**_KEYS, **(_OF_EXPERTS if experts else {})}.items():
        found |= _number(name, value(key))
    scaling = value("rope_scaling|rope_parameters")
    own = scaling if isinstance(scaling, dict) else {}
    word = own.get("rope_type", own.get("type"))
    if isinstance(word, str) and word in _SCALINGS:
        found["rotary_scaling"] = word
        for name, key in [*_SCALING.items()][: _SCALINGS[word]]:
            found |= _number(name, own.get(key))
    if experts and value("scoring_func") == "sigmoid":
        found["router_score"] = "sigmoid"
    if experts and value("norm_topk_prob") is False:
        found["router_pre_softmax"] = True
    if experts and value("seq_aux") is True:
        found["router_balance"] = "seq_aux_loss"
    if value("use_qk_norm") is False:
        found.pop("qk_l2_norm", None)
    return {name: plain(own) for name, own in found.items() if own != getattr(USUAL, name)}


def _number(name: str, value: Any) -> dict[str, float]:
    """A field, if its value is a number from 0."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {name: float(value)} if is_number and 0 <= value < 1e12 else {}
