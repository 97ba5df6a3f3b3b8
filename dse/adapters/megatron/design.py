"""Designs as settings of Megatron Core and Megatron-LM; the model's part is in `megatron_model`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from costmodel.formats.framework_file import launching
from costmodel.training.design import EVEN, MODERN
from costmodel.training.recompute_modules import MODULES
from costmodel.training.run import padded_vocabulary
from dse.adapters.megatron.model import model_losses, model_settings
from dse.launches.launch import Launch, refuse, written_layout

#: Setting -> column, of numbers that are left out where they are 1, or 0.
SIZES: Final = {
    "tensor_model_parallel_size": "tp",
    "pipeline_model_parallel_size": "pp",
    "context_parallel_size": "cp",
    "expert_model_parallel_size": "ep",
    "micro_batch_size": "micro_batch_size",
}
COUNTS: Final = {
    "decoder_first_pipeline_num_layers": "first_stage_layers",
    "decoder_last_pipeline_num_layers": "last_stage_layers",
    "microbatch_group_size_per_vp_stage": "group_size",
}
SWITCHES: Final = {
    "account_for_embedding_in_pipeline_split": "count_embedding",
    "account_for_loss_in_pipeline_split": "count_loss",
    "overlap_moe_expert_parallel_comm": "overlap_ep",
    "moe_shared_expert_overlap": "overlap_shared_expert",
    "overlap_grad_reduce": "overlap_grad_reduce",
    "fp8_param_gather": "fp8_parameters",
}
ATTENTION: Final[Mapping[str, Mapping[str, Any]]] = {
    "fused": {},
    "unfused": {"attention_backend": "unfused"},
    "flash_attention_2": {"attention_backend": "flash", "flash_attention_version": 2},
}
CROSS_ENTROPY: Final[Mapping[str, Mapping[str, Any]]] = {
    word: {"cross_entropy_loss_fusion": True, "cross_entropy_fusion_impl": word} for word in ("native", "te")
}
#: Most ranks of a node that DeepEP knows (csrc/kernels/legacy); HybridEP is for larger domains of NVLink. [-]
DEEPEP_NODE: Final = 8
#: What Megatron Core can do, and what it calls it.
MEGATRON: Final = launching("megatron")


def settings_of(launch: Launch) -> tuple[dict[str, Any], list[str]]:
    """A launch as settings, and the settings that Megatron Core lacks.

    Raises `NotExpressible` if Megatron Core cannot run such a design.
    """
    refuse(launch, "megatron")
    settings = {
        **model_settings(launch.model),
        **{s: int(launch[column]) for s, column in SIZES.items()},
        "padded_vocab_size": word_table(launch),
        "global_batch_size": launch.global_batch_size,
        **{s: int(launch[column]) for s, column in COUNTS.items() if launch[column]},
        **{s: True for s, column in SWITCHES.items() if launch[column]},
        **_pipeline(launch),
        **_recomputation(launch),
        **MEGATRON.word("zero", launch.zero_stage),
        **_optimizer(launch),
        **MEGATRON.word("precision", launch["precision"]),
        **ATTENTION.get(str(launch["attention"]), {}),
        **CROSS_ENTROPY.get(str(launch["cross_entropy"]), {}),
        **_overlaps(launch),
        **_experts(launch),
    }
    return settings, [*(f"model: {lost}" for lost in model_losses(launch.model)), *losses(launch)]


def word_table(launch: Launch) -> int:
    """Entries of the word table on all tensor-parallel ranks together, whatever the tokenizer has."""
    entries = int(np.max(padded_vocabulary(launch.model, launch.points.tp)))
    return entries + -entries % int(launch["tp"])


def _pipeline(launch: Launch) -> dict[str, Any]:
    """Chunks of the pipeline: as even as Megatron Core makes them, or written out."""
    settings: dict[str, Any] = {"use_tp_pp_dp_mapping": True} if launch["rank_order"] == "tp_cp_pp_dp" else {}
    ends = [launch[column] for column in ("first_stage_layers", "last_stage_layers")]
    layers = launch.model.num_layers + int(launch["count_embedding"]) + int(launch["count_loss"])
    uneven = layers % (launch["pp"] * launch["vpp"]) and not any(ends)
    if launch["pipeline_layout"] != EVEN or uneven:
        return {**settings, "pipeline_model_parallel_layout": written_layout(launch)}
    if launch["vpp"] > 1:
        settings["num_virtual_stages_per_pipeline_rank"] = int(launch["vpp"])
    return settings


def _recomputation(launch: Launch) -> dict[str, Any]:
    """Settings of recomputation."""
    word, layers = launch["recompute"], int(launch["recompute_layers"])
    if word == "full":
        method = launch["recompute_method"] if layers else "uniform"
        settings = {"recompute_method": method, "recompute_num_layers": layers or 1}
        return {"recompute_granularity": "full", **settings}
    modules = [m.name for m in MODULES if launch[m.column] or (m.selective and word == "selective")]
    if not modules:
        return {}
    return {"recompute_granularity": "selective", "recompute_modules": modules}


def _optimizer(launch: Launch) -> dict[str, Any]:
    """Settings of the optimizer and of the memory of its states."""
    settings: dict[str, Any] = {"optimizer": "muon"} if launch["optimizer"] == "muon" else {}
    if launch["shard_replicas"] > 1:
        settings["num_distributed_optimizer_instances"] = int(launch["shard_replicas"])
    if launch["moments"] == "bf16" or launch["store_param_remainders"]:
        settings["use_precision_aware_optimizer"] = True
    if launch["moments"] == "bf16":
        settings |= {"exp_avg_dtype": "bf16", "exp_avg_sq_dtype": "bf16"}
    if launch["offload_optimizer"]:
        share = float(launch["offload_optimizer"])
        settings |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": share}
        settings["use_precision_aware_optimizer"] = True
    if launch["gradient_reduction"] == "bf16":
        settings["grad_reduce_in_bf16"] = True
    if not launch["gradient_accumulation_fusion"]:
        settings["gradient_accumulation_fusion"] = False
    return settings


def _overlaps(launch: Launch) -> dict[str, Any]:
    """Settings of overlapped communication."""
    settings: dict[str, Any] = {"sequence_parallel": True} if launch.sequence_parallel else {}
    if launch.zero_stage and launch["overlap_grad_reduce"] and launch["overlap_param_gather"]:
        settings["overlap_param_gather"] = True
    if launch["tp_overlap"] == "chunked" and launch["tp"] > 1:
        settings["tp_comm_overlap"] = True
    if launch["vpp"] > 1 and launch["pp"] > 2 and not launch["overlap_p2p"]:
        settings["overlap_p2p_comm"] = False
    if launch["cp"] > 1:
        word = str(launch["cp_communication"])
        settings["cp_comm_type"] = MEGATRON.word("cp_communication", word)
        if word == "a2a_p2p":
            a2a = int(launch["cp_a2a"])
            settings["hierarchical_context_parallel_sizes"] = [a2a, int(launch["cp"]) // a2a]
    return settings


def _experts(launch: Launch) -> dict[str, Any]:
    """Settings of the exchange of tokens among experts."""
    if not launch.model.num_experts:
        return {}
    word = str(launch["dispatcher"])
    settings: dict[str, Any] = {
        "expert_tensor_parallel_size": int(launch["etp"]),
        "moe_token_dispatcher_type": MEGATRON.word("dispatcher", word),
    }
    if word == "two_hop":
        settings["moe_flex_dispatcher_backend"] = "deepep" if launch.node_size <= DEEPEP_NODE else "hybridep"
    if launch["capacity_factor"]:
        settings["moe_expert_capacity_factor"] = float(launch["capacity_factor"])
    return settings


def without_flag(launch: Launch) -> str:
    """The overlap of tensor parallelism where a script does not ask for `--tp-comm-overlap`.

    Exchanges of experts that overlap take the order of launches that it needs from it (`connections`).
    """
    return "none" if launch["overlap_ep"] else "gradients"


def losses(launch: Launch) -> list[str]:
    """Columns whose values Megatron Core has no setting for, as `name=value`."""
    tp, moments = launch["tp"] > 1, launch["moments"] == "bf16"
    sharded = launch.zero_stage > 0
    two = launch["pp"] == 2 and launch["vpp"] > 1 and not launch["overlap_p2p"]  # asks for the overlap
    said = ["chunked"] * launch.sequence_parallel + [without_flag(launch)]
    lost = {
        "attention": launch["attention"] == "flash_attention_1",
        "cross_entropy": launch["cross_entropy"] not in ("megatron", *CROSS_ENTROPY),
        "tp_overlap": tp and launch["tp_overlap"] not in said,
        "overlap_p2p": two or (launch["pp"] > 1 and launch["vpp"] == 1 and launch["overlap_p2p"]),
        "imbalance": launch.imbalance_differs,
        "offload_activations": bool(launch["offload_activations"]),
        "gradient_copy": bool(launch["gradient_copy"]),
        "store_param_remainders": (moments or launch["offload_optimizer"] > 0) and not launch["store_param_remainders"],
        "recompute_core_attn": bool(launch["recompute_core_attn"]),
        "reshard_after_forward": launch.zero_stage == 3 and not launch["reshard_after_forward"],
        "tiling": launch["tiling"] == "sample",
        "overlap_param_gather": False,
        "shard_replicas": launch["shard_replicas"] > 1 and not sharded,
    }
    assert lost.keys() <= {*MODERN, "attention", "tiling"}
    return [f"{name}={_shown(launch[name])}" for name, lacks in lost.items() if lacks]


def _shown(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
