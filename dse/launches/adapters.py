"""Adapters of LoRA in launch files: the modules that frameworks name for `lora_targets`, and sections that state them.

A framework file lists under `runs: lora_targets` the modules to which each word adds adapters. Megatron-Bridge has two
classes: `LoRA` for fused products (`fused`) and `CanonicalLoRA` for each projection (`apart`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.framework_file import Framework
from costmodel.training.model import ModelShape
from dse.launches.launch import Launch, NotExpressible

#: Columns of adapters that launch files state.
LORA_COLUMNS: Final = ("lora_rank", "lora_targets", "lora_fused")
#: Values that users fill in, in addition to `PLACEHOLDERS`.
ADAPTER_PLACEHOLDERS: Final = {
    "PRETRAINED_CHECKPOINT": "weights of the model, which stay frozen",
    "LORA_ALPHA": "scale of adapters, such as twice their rank",
}
#: Class of Megatron-Bridge -> key of the modules that it takes.
PEFT: Final = {"megatron.bridge.peft.lora.LoRA": "fused", "megatron.bridge.peft.canonical_lora.CanonicalLoRA": "apart"}
#: Modules of latent attention in the place of the fused product of queries, keys and values.
LATENT: Final = ("linear_q_proj", "linear_q_down_proj", "linear_q_up_proj", "linear_kv_down_proj", "linear_kv_up_proj")


def named_targets(modules: Collection[str], known: Mapping[str, Collection[str]], where: str) -> str:
    """The word of `lora_targets` that adds adapters to some modules.

    Raises `DseError`, which names the setting `where`, if no word does.
    """
    if word := next((word for word, names in known.items() if {*names} == {*modules}), ""):
        return word
    sets = "; ".join(f"{word}: {', '.join(names)}" for word, names in known.items())
    raise DseError(f"{where}: {', '.join(sorted(modules))}: expected the modules of one of these: {sets}")


def peft_section(launch: Launch, framework: Framework) -> dict[str, Any]:
    """The section `peft` of Megatron-Bridge; empty where all weights train.

    Raises `NotExpressible` if no class adds adapters to the targets.
    """
    if not launch["lora_rank"]:
        return {}
    latent = launch.model.attention == "mla"
    kind = "fused" if launch["lora_fused"] or latent else "apart"
    mixed = "mixed_" * (launch.model.linear_value_heads > 0)
    modules = framework.word("lora_targets", launch["lora_targets"])[mixed + kind]
    if not modules:
        raise NotExpressible(
            f"lora_targets={launch['lora_targets']} with one adapter for each fused product: take lora_fused=0"
        )
    if latent:
        modules = [word for name in modules for word in (LATENT if name == "linear_qkv" else (name,))]
    target = next(name for name, key in PEFT.items() if key == kind)
    return {"_target_": target, "target_modules": modules, "dim": int(launch["lora_rank"]), "alpha": "LORA_ALPHA"}


def read_peft(content: Mapping[str, Any], framework: Framework, model: ModelShape) -> dict[str, Any]:
    """Columns of adapters from the section `peft` of Megatron-Bridge. Raises `DseError` for other modules."""
    peft = content.get("peft")
    if not isinstance(peft, dict) or peft.get("_target_") not in PEFT:
        return {}
    kind, words = PEFT[peft["_target_"]], framework.runs["lora_targets"].words
    of_model = "mixed_" * (model.linear_value_heads > 0) + kind  # mixers have adapters too
    known = {word: modules[of_model] for word, modules in words.items() if modules[of_model]}
    named = peft.get("target_modules", words["all_linear"][kind])
    modules = {"linear_qkv" if name in LATENT else str(name) for name in named}
    targets = named_targets(modules, known, "peft.target_modules")
    return {"lora_rank": int(peft.get("dim", 32)), "lora_targets": targets, "lora_fused": kind == "fused"}
