"""Tables of Hugging Face architectures: which keys of a `config.json` give which fields of a model."""

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
    full_every: int | str = 0  #: every so many layers see all keys where others have a window; or its key
    sparse_step: str = ""  #: key: every so many layers have experts
    once: tuple[str, ...] = ()  #: keys that a model file can only say to be 1, or absent


@cache
def families() -> Mapping[str, Family]:
    """`model_type` of a configuration -> its family, from `families.yaml`."""
    data = data_beside(__file__)
    return {name: Family(**{**own, "once": tuple(own.get("once", ()))}) for name, own in data.items()}


#: Other words for the same -> the family's own; `_text` behind a word says the same.
ALIASES: Final = {
    "gemma3": "gemma3_text",
    **dict.fromkeys(("kimi_k2", "kimi_k25", "glm4_moe_lite"), "deepseek_v3"),
    **dict.fromkeys(("granite", "smollm3", "helium", "phi3"), "llama"),
    **dict.fromkeys(("ministral", "ministral3"), "mistral"),
    **dict.fromkeys(("qwen2_vl", "qwen2_5_vl"), "qwen2"),
    "qwen3_vl": "qwen3",
    "qwen3_vl_moe": "qwen3_moe",
    "glm4v": "glm4",
    "glm4v_moe": "glm4_moe",
    "granitemoeshared": "granitemoe",
}
_INDEXED: Final = "attention over keys that an indexer picks"
_MIXED: Final = "layers of Mamba, attention and MLPs in an order of their own"
_UNLIKE: Final = "layers whose heads differ from one another"
#: `model_type` -> what of it no kind of kernel here says.
REFUSED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("deepseek_v32", "glm_moe_dsa"), _INDEXED),
    **dict.fromkeys(("deepseek_v4", "deepseek_ref"), "compressed keys, and several residual streams"),
    **dict.fromkeys(("minimax_m3", "minimax_m3_vl"), "attention over blocks of keys that an indexer picks"),
    **dict.fromkeys(("nemotron_h", "jamba", "bamba", "zamba", "zamba2", "falcon_h1", "granitemoehybrid"), _MIXED),
    **dict.fromkeys(("mamba", "mamba2", "rwkv", "lfm2"), "layers without attention"),
    **dict.fromkeys(("gemma4", "gemma3n", "mimo_v2_flash", "step3p7", "step3p5", "nemotron-nas"), _UNLIKE),
    **dict.fromkeys(("kimi_linear", "kimi_k3"), "Kimi delta attention"),
    **dict.fromkeys(("minimax", "minimax_text_01"), "lightning attention"),
    **dict.fromkeys(("bloom", "mpt"), "positions by ALiBi"),
    **dict.fromkeys(("t5", "bart", "bert", "roberta", "whisper"), "an encoder"),
}
