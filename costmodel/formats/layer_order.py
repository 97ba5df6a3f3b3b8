"""Orders of layers in model files: a list of layers as periods where they say the same, or else as letters.

"Every 6th layer has full attention, the first 3 are dense" is shorter than 62 letters, and most models have periods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_letters
from typing import Any

from costmodel.training.dimensions import LAYER_LETTERS, Sizes

#: Mixer, MLP and dimensions of a layer.
LayerOfModel = tuple[str, str, Sizes]


def marks(count: int, every: int, offset: int) -> list[bool]:
    """True for layers `offset`, `offset + every` and so on, of `count`; for none where `every` is 0.

    >>> marks(4, 2, 1), marks(3, 1, 0), marks(2, 0, 0)
    ([False, True, False, True], [True, True, True], [False, False])
    """
    return [every > 0 and number % every == offset for number in range(count)]


def periods(layers: Sequence[LayerOfModel], model: Mapping[str, Any], full: str) -> dict[str, Any] | None:
    """Fields of periods that give these layers; None where periods cannot."""
    linear = model.get("linear_attention", "none")
    others = {mixer for mixer, _, _ in layers} - {full}
    if any(sizes or not mixer or not mlp for mixer, mlp, sizes in layers) or not others <= {"window", linear}:
        return None
    every, experts = period([mixer == full for mixer, _, _ in layers]), [mlp == "experts" for _, mlp, _ in layers]
    if every < 0 or len(others) > 1:
        return None
    fields: dict[str, Any] = {} if every == 1 else {"full_attention_every": every}
    if not any(experts):
        return fields if not model.get("num_experts") else None
    first, second = [*[number for number, mark in enumerate(experts) if mark], len(layers)][:2]
    dense = first + 1 - (step := second - first)
    if dense >= 0 and experts[first:] == marks(len(layers) - first, step, 0):
        return fields | {"first_dense_layers": dense, "moe_layer_freq": step}
    return None


def period(full: Sequence[bool]) -> int:
    """Which every-th layer has full attention: 0 none, 1 all; -1 where there is no such number.

    >>> period([False, True, False, True]), period([True, True]), period([True, False])
    (2, 1, -1)
    """
    every = full.index(True) + 1 if any(full) else 0
    return every if marks(len(full), every, every - 1) == list(full) else -1


def in_letters(layers: Sequence[LayerOfModel], full: str) -> dict[str, Any]:
    """An order of layers, with the kinds of layers that its letters stand for.

    A letter is the first of the mixer, a capital where the layer has experts, or one that is free.
    """
    letters = {layer: letter for letter, layer in LAYER_LETTERS.items()}
    kinds: dict[str, dict[str, Any]] = {}
    for layer in dict.fromkeys(layers):
        mixer, mlp, sizes = layer
        if layer not in letters:
            first = (mixer or mlp)[0]
            usual = first.upper() if mlp == "experts" else first
            taken = {*letters.values()}
            letters[layer] = next(letter for letter in usual + ascii_letters if letter not in taken)
            words = {"mixer": mixer or "none", "mlp": mlp or "none"}
            usual_words = {"mixer": full, "mlp": "dense"}
            kinds[letters[layer]] = {name: word for name, word in words.items() if word != usual_words[name]}
            kinds[letters[layer]] |= dict(sizes)
    return {"layer_order": "".join(letters[layer] for layer in layers)} | ({"layer_kinds": kinds} if kinds else {})
