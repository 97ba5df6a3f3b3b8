"""Layers of a Hugging Face configuration: the family of the model, then mixer and MLP of each layer for a model file.

`families.yaml` has a row for each family: rules that turn the keys of a `config.json` into the fields of a model. A
`model_type` is a family, another word for one, or refused with a reason.

Configurations write the kinds of layers as a list of words, as a text of letters, as numbers of layers, or as a period.
All become a list of (mixer, MLP, dimensions). Where periods say the same, the model file has periods: "every 6th layer
has full attention, the first 3 are dense" is shorter than 62 letters. Otherwise it has an order of letters.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from string import ascii_letters
from typing import Any, Final

from costmodel.formats.input_files import data_beside
from costmodel.training.dimensions import LAYER_LETTERS, Sizes


@dataclass(frozen=True, slots=True)
class Family:
    """Rules for reading the configurations of an architecture."""

    title: str
    keys: Mapping[str, str]  #: field of a model -> key; several, by "|": the one that is present
    fixed: Mapping[str, Any]  #: fields that all models of the family share
    defaults: Mapping[str, Any] = field(default_factory=dict)  #: key -> value where a file is silent
    window: str = "sliding_window"  #: key of the keys that a query sees
    window_switch: str = ""  #: key that must be true for the window to count
    types: str = "layer_types"  #: key of a list with a word for each layer, or of a text with a letter
    mixers: Mapping[Any, str] = field(default_factory=dict)  #: word of such a list -> mixer, beyond `MIXERS`
    full_at: str = ""  #: key of the numbers of layers with full attention
    first_layer: int = 0  #: number of the first layer in these lists
    full_every: int | str = 0  #: period of layers that see all keys where others have a window; or its key
    full_offset: str = ""  #: key: the first of these layers, from 0; the last of each group without one
    rest: str = ""  #: mixer of the last layers, which are too few for a group; that of other groups without one
    other: str = ""  #: mixer of layers without full attention; a window without one
    one_branch: bool = False  #: True if a layer has a mixer or an MLP, by its word
    ordered: bool = False  #: True if the list of `types` or of `full_at` must be present
    sparse_step: str = ""  #: key of the period of layers with experts
    sparse_offset: str = ""  #: key: the first of these layers, from 0; the last of each group without one
    mtp_order: str = ""  #: key of the layers of multi-token prediction, as `types`; one of `types`: its last words
    sizes: Mapping[str, Mapping[str, str]] = field(default_factory=dict)  #: mixer -> field of its layers -> key
    #: Key of a list with a word for each layer -> word -> dimensions of layers with the word, as values or keys.
    by_word: Mapping[str, Mapping[Any, Mapping[str, Any]]] = field(default_factory=dict)
    #: Key of a number of layers -> dimensions of the first layers.
    first: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    shared_keys: str = ""  #: key of the number of last layers that see the keys and values of earlier ones
    only: Mapping[str, Any] = field(default_factory=dict)  #: key -> its only value, or the key or formula of it
    least: Mapping[str, int] = field(default_factory=dict)  #: field -> its least value, unlike that of other families
    #: Field, or MIXER_parameters or MLP_parameters (weights of no kernel in a layer of the kind) -> formula.
    formulas: Mapping[str, str] = field(default_factory=dict)
    optional: tuple[str, ...] = ()  #: fields that models of the family may lack, such as those of experts
    pattern: str = ""  #: letters of what a layer of the configuration is here
    apart: str = ""  #: how models of the family differ from what a model file can say


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
            kinds[letters[layer]] = {name: word for name, word in words.items() if word not in (full, "dense")}
            kinds[letters[layer]] |= dict(sizes)
    return {"layer_order": "".join(letters[layer] for layer in layers)} | ({"layer_kinds": kinds} if kinds else {})


MIXERS: Final[Mapping[Any, str]] = WORDS["mixers"]
MLPS: Final[Mapping[str, str]] = WORDS["mlps"]


@dataclass(frozen=True, slots=True)
class LayerReader:
    """Reads the layers of one configuration; mistakes go to `mistake`."""

    family: Family
    value: Callable[[str], Any]  #: value of a key, or None
    whole: Callable[[str, Any], int]  #: a key's value as a whole number
    mistake: Callable[[str | None, str], None]

    def fields(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a model file for its layers, from the other fields of the model."""
        for key, only in self.family.only.items():
            most = model.get(only, self.value(only)) if isinstance(only, str) else only
            allowed = (most if isinstance(most, list) else [most]) + [None] * (not self.family.defaults.get(key))
            if not isinstance(value := self.value(key), list) and value not in allowed:
                self.mistake(key, f"{value!r}: a model file can only say {most!r}")
        if order := self.family.pattern * int(model.get("num_layers", 1)):
            return {"num_layers": len(order), "layer_order": order, "first_dense_layers": 0}
        if isinstance(blocks := self.value("block_configs"), list):
            return in_letters([self._block(block, model) for block in blocks], "full")
        words, ahead = self._words(), model.get("mtp_layers", 0)
        if self.family.ordered and not words and not isinstance(self.value(self.family.full_at), list):
            self.mistake(None, f"{self.family.types.split('|')[-1]}: missing")
        last = words[len(words) - ahead :] if ahead and len(words) == model.get("num_layers", 0) + ahead else ()
        words = words[: len(words) - len(last)]  # the last are of multi-token prediction
        count = len(words) or int(model.get("num_layers", 1))
        window, switch = self.value(self.family.window), self.family.window_switch
        is_on = window is not None and (not switch or self.value(switch) is True)
        fields: dict[str, Any] = {"window": self.whole(self.family.window, window)} if is_on else {}
        full = plain = "latent" if model.get("attention") == "mla" else "full"
        mixers = self._mixers(words, count, "window" if fields else "")
        if model.get("index_topk") and ("full" not in mixers or not words):
            full = "sparse"
        mixers = [full if mixer == "full" else mixer for mixer in mixers]
        mlps = self._mlps(words, count, model)
        stated = model.get("num_layers", count)
        if {len(mixers), count} != {stated}:
            self.mistake(self.family.types or None, f"{len(mixers)} layers, but the model has {stated}")
            return {}
        sizes = self._dimensions(mixers, model)
        layers = list(zip(mixers, mlps, sizes, strict=True))
        fields = fields if {"window", "compressed"} & {*mixers} else {}
        ordered = None if model.get("index_topk") and full == plain else periods(layers, model, full)
        if ordered is None:
            of_mtp = self._ahead(last) if ahead else []
            ordered = {"first_dense_layers": 0} | in_letters([*layers, *of_mtp], plain)
            order = ordered["layer_order"]
            ordered |= {"layer_order": order[:count]} | ({"mtp_order": order[count:]} if of_mtp else {})
        of_kinds = sum(model.get(f"{word}_parameters", 0) for word in (*mixers, *mlps))
        others = {"other_parameters": model.get("other_parameters", 0) + of_kinds}
        return {"num_layers": count} | fields | ordered | others

    def _ahead(self, last: Sequence[Any]) -> list[LayerOfModel]:
        """Layers of multi-token prediction, from the last words of `types` or from another list."""
        key, of_types = self.family.mtp_order, self.family.mtp_order in self.family.types.split("|")
        words = last if of_types else self.value(key) if key else ()
        known, words = self._known(key, words if isinstance(words, list | str) else ())
        sizes, mlp = self.family.by_word.get(key, {}), "experts" if of_types else ""
        return [(known[word], MLPS.get(str(word), mlp), tuple(sizes.get(str(word), {}).items())) for word in words]

    def _block(self, block: Any, model: Mapping[str, Any]) -> tuple[str, str, Sizes]:
        """Layer of an architecture search: attention and an MLP of any size; one of them may be missing."""
        parts = [block.get(name) if isinstance(block, dict) else None for name in ("attention", "ffn")]
        attention, ffn = (part if isinstance(part, dict) else {"replace_with_linear": True} for part in parts)
        has = [not part.get("no_op") for part in (attention, ffn)]
        if not any(has) or attention.get("replace_with_linear") or ffn.get("replace_with_linear"):
            self.mistake("block_configs", "expected attention or an MLP in each block, and no linear layers instead")
            return "full", "dense", ()
        sizes = {}
        if has[0]:
            heads = max(self.whole("n_heads_in_group", attention.get("n_heads_in_group")), 1)
            sizes["num_query_groups"] = model.get("num_attention_heads", 1) // heads
        if has[1]:
            key = "ffn_mult" if ffn.get("intermediate_size") is None else "intermediate_size"
            size = ffn.get(key)
            if key == "ffn_mult" and isinstance(size, int | float) and size is not True and 0 < size <= 1e9:
                size = math.ceil(int(2 * size * model.get("hidden_size", 0) / 3) / 256) * 256
            sizes["ffn_hidden_size"] = self.whole(key, size)
        return "full" if has[0] else "", "dense" if has[1] else "", tuple(sizes.items())

    def _words(self) -> Sequence[Any]:
        """The list of words, or the text of letters, for the layers; () without one."""
        for key in self.family.types.split("|"):
            if isinstance(words := self.value(key), list | str) and words:
                return self._known(key, words)[1]
        return ()

    def _known(self, key: str, words: Sequence[Any]) -> tuple[Mapping[Any, str], Sequence[Any]]:
        """Mixers by word, and words of layers; no words where one is unknown."""
        known = {**MIXERS, **self.family.mixers}
        if odd := [word for word in words if not isinstance(word, str | int) or word not in known]:
            self.mistake(key, f"{str(odd[0])[:40]!r}: unknown kind of layer")
        return known, words if not odd else ()

    def _mixers(self, words: Sequence[Any], count: int, window: str) -> list[str]:
        """Mixer of each layer; "full" stands for full or latent attention."""
        family = self.family
        mixers = [{**MIXERS, **family.mixers}[word] for word in words]
        if words:
            return ["full" if mixer == "window" and not window else mixer for mixer in mixers]
        other = family.other or window or "full"
        if isinstance(rotated := self.value("no_rope_layers"), list) and rotated and window:
            return [window if one else "full" for one in rotated]
        if family.full_at and isinstance(numbers := self.value(family.full_at), list):
            return ["full" if number + family.first_layer in numbers else other for number in range(count)]
        every: Any = family.full_every
        if isinstance(every, str):
            every = self.whole(every, self.value(every) or 0)
        if family.window_switch and window:
            first = self.whole("max_window_layers", self.value("max_window_layers") or 0)
            return ["full"] * min(first, count) + [window] * (count - first)
        full = marks(count, every, self._offset(family.full_offset, every))
        rest = count % every if family.rest and every else 0
        return ["full" if mark else other for mark in full[: count - rest]] + [family.rest] * rest

    def _offset(self, key: str, every: int) -> int:
        """Number of the first layer of a period."""
        value = self.value(key) if key else None
        return every - 1 if value is None else self.whole(key, value)

    def _mlps(self, words: Sequence[Any], count: int, model: Mapping[str, Any]) -> list[str]:
        """MLP of each layer."""
        if self.family.one_branch or any(word in MLPS for word in words):
            return [MLPS.get(word, "") for word in words] or [""] * count
        family, first = self.family, int(model.get("first_dense_layers", 0))
        if not model.get("num_experts"):
            return ["dense" if model.get("ffn_hidden_size", 1) else ""] * count
        step = self.whole(family.sparse_step, self.value(family.sparse_step) or 1) if family.sparse_step else 1
        sparse = marks(count, step, self._offset(family.sparse_offset, step))
        last = self.value("moe_layer_end_index")
        last = count - 1 if last in (None, -1) else self.whole("moe_layer_end_index", last)
        sparse = [mark and first <= number <= last for number, mark in enumerate(sparse)]
        if isinstance(numbers := self.value("moe_layers|moe_layers_enum"), list | str) and numbers != "":
            listed = numbers.split(",") if isinstance(numbers, str) else map(str, numbers)
            marked = {word.strip() for word in listed}
            sparse = [str(number) in marked for number in range(count)]
        if isinstance(kinds := self.value("mlp_layer_types|is_moe_layer|moe_layer_freq"), list):
            sparse = [kind not in ("dense", 0) for kind in kinds]
        if isinstance(dense := self.value("mlp_only_layers"), list):
            sparse = [mark and number not in dense for number, mark in enumerate(sparse)]
        if len(sparse) < count:
            self.mistake(None, f"mlp_layer_types, moe_layer_freq: {len(sparse)} layers; the model has {count}")
        return ["experts" if mark else "dense" for mark in [*sparse, *[False] * count][:count]]

    def _dimensions(self, mixers: Sequence[str], model: Mapping[str, Any]) -> list[Sizes]:
        """Dimensions of each layer that differ from the model's."""
        sizes = [self._sizes(mixer, model) for mixer in mixers]
        for key, of_word in self.family.by_word.items():
            marked = words if isinstance(words := self.value(key), list) else []
            if "..." in marked:  # a default: the words behind it repeat
                marked = marked[: (at := marked.index("..."))] + marked[at + 1 :] * len(mixers)
            added = [of_word.get(str(word), {}).items() for word in [*marked, *[None] * len(mixers)]]
            stated = [[(name, model.get(size, size)) for name, size in more] for more in added]  # a formula's name
            sizes = [(*more, *of) for of, more in zip(sizes, stated, strict=False)]
        for key, more in self.family.first.items():
            first = 0 if isinstance(value := self.value(key), list) else self.whole(key, value or 0)
            sizes = [(*of, *more.items()) if number < first else of for number, of in enumerate(sizes)]
        return self._with_shared_keys(self._of_single_layers(sizes, model), model)

    def _of_single_layers(self, sizes: Sequence[Sizes], model: Mapping[str, Any]) -> list[Sizes]:
        """Dimensions of layers by their number: `per_layer_config` of transformers 5, and lists ``KEY_per_layer``."""
        by_number = self.value("per_layer_config")
        fields = {key: name for name, keys in self.family.keys.items() for key in keys.split("|")}
        changes: list[tuple[Any, Any]] = [*by_number.items()] if isinstance(by_number, dict) else []
        for key in fields:
            listed = self.value(f"{key}_per_layer")
            changes += enumerate({key: value} for value in listed) if isinstance(listed, list) else []
        kept = [dict(of) for of in sizes]
        by_name = {str(number): layer for number, layer in enumerate(kept)}
        for number, keys in changes:
            layer = by_name.get(str(number).lstrip("0") or "0")
            for key, value in keys.items() if isinstance(keys, dict) else ():
                if key not in fields or layer is None:
                    self.mistake("per_layer_config", f"{number}: {key}: a model file cannot state it of one layer")
                elif (size := value if isinstance(value, bool) else self.whole(key, value)) != model.get(fields[key]):
                    layer[fields[key]] = size
        return [tuple(layer.items()) for layer in kept]

    def _with_shared_keys(self, sizes: Sequence[Sizes], model: Mapping[str, Any]) -> list[Sizes]:
        """Dimensions of layers; the last may see keys and values of earlier layers, with a wider MLP."""
        key = self.family.shared_keys
        shared = self.whole(key, self.value(key) or 0) if key else 0
        wide = self.value("use_double_wide_mlp") is True
        more = (("reuses_keys", True), *([("ffn_hidden_size", 2 * model.get("ffn_hidden_size", 0))] if wide else []))
        return [(*of, *more) if number >= len(sizes) - shared else of for number, of in enumerate(sizes)]

    def _sizes(self, mixer: str, model: Mapping[str, Any]) -> Sizes:
        """Dimensions of layers with a mixer that differ from the model's."""
        sizes, by_number = {}, self.value("per_layer_config") is not self.family.defaults.get("per_layer_config")
        for name, key in self.family.sizes.get(mixer, {}).items():
            value = model.get(key, self.value(key))
            if value not in (None, model.get(name, False)) and (isinstance(value, bool) or not by_number):
                sizes[name] = value if isinstance(value, bool) else self.whole(key, value)
        return tuple(sizes.items())
