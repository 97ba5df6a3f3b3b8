"""Configurations of torchtitan: written from designs, and read.

TOML as of torchtitan 0.2.2 (`torchtitan/config/job_config.py`), the last release that is configured by files.
Models are named there, not described; pipelines run by PyTorch's schedules.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any, Final

from costmodel.formats.model_file import load_model
from costmodel.training.model import ModelShape
from dse.export.launch.launch import PLACEHOLDERS, Launch, NotExpressible, refused_schedule
from dse.export.launch.torchtitan_names import (
    CONVERTERS,
    DISPATCHERS,
    FLAVORS,
    RECOMPUTE,
    ROTATIONS,
    SCHEDULES,
)
from dse.export.launch.torchtitan_read import read_script

__all__ = ["read_script", "script"]

VERSION: Final = "torchtitan 0.2.2"


def script(launch: Launch) -> tuple[str, list[str]]:
    """The configuration of a design, and what it does not say.

    Raises
    ------
    NotExpressible
        If torchtitan cannot run such a design.
    """
    name, flavor = flavor_of(launch.model)
    refuse(launch)
    lost = losses(launch)
    nodes, each = launch.nodes
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor, "hf_assets_path": "TOKENIZER_MODEL",
                  "converters": CONVERTERS[str(launch["precision"])]},
        "optimizer": {"name": "AdamW", "lr": "LEARNING_RATE"},
        "training": _training(launch),
        "parallelism": _parallelism(launch),
        "activation_checkpoint": _checkpointing(launch),
        "checkpoint": {"folder": "CHECKPOINT_DIR"},
        "compile": {"enable": True},
        **({"quantize.linear.float8": {"recipe_name": "tensorwise", "enable_fsdp_float8_all_gather":
            bool(launch["fp8_parameters"])}} if launch["precision"] == "fp8_tensorwise" else {}),
    }  # fmt: skip
    lines = [
        f"# {launch.heading} on {launch.world_size:,} chips, for {VERSION}:",
        f"# NGPU={each} torchrun --nnodes {nodes} --nproc_per_node {each} -m torchtitan.train "
        "--job.config_file THIS_FILE",
        *(f"# Not said here, since torchtitan has no setting for it: {text}" for text in lost),
        "# Fill in what the design does not decide:",
        *(f"#   {own}: {text}" for own, text in PLACEHOLDERS.items()),
    ]
    for title, part in sections.items():
        lines += ["", f"[{title}]", *(f"{key} = {json.dumps(value)}" for key, value in part.items())]
    return "\n".join(lines) + "\n", lost


def flavor_of(model: ModelShape) -> tuple[str, str]:
    """Name and flavor of a model there.

    Raises
    ------
    NotExpressible
        If there is none.
    """
    for shipped, found in FLAVORS.items():
        if _alike(load_model(shipped), model):
            return found
    raise NotExpressible(f"model {model.name}: {VERSION} has it not; it has {', '.join(FLAVORS)}")


def _alike(one: Any, other: ModelShape) -> bool:
    """Whether two models differ in name and settings alone."""
    return isinstance(one, ModelShape) and other == replace(
        one, name=other.name, title=other.title, seq_len=other.seq_len, vocab_multiple=other.vocab_multiple
    )


def refuse(launch: Launch) -> None:
    """Refuse what torchtitan has not.

    Raises
    ------
    NotExpressible
        Saying what would do.
    """
    refused_schedule(launch, "torchtitan", SCHEDULES)
    word, zero, sharding = str(launch["schedule"]), launch.zero_stage, str(launch["sharding"])
    several = launch["vpp"] > 1
    reasons = {
        f"schedule={word} with vpp={launch['vpp']}: torchtitan has no such schedule": (
            launch["pp"] > 1 and not SCHEDULES.get(word, ("", ""))[several]
        ),
        f"zero={zero}: torchtitan shards weights and all (zero=3), or nothing": zero in (1, 2),
        f"sharding={sharding}: torchtitan splits every kernel its own way": (
            sharding not in ("megatron", "megatron_sp")
        ),
        "sequence_parallel=false: torchtitan has it wherever tp > 1": (
            launch["tp"] > 1 and not launch.sequence_parallel
        ),
        f"cp_communication={launch['cp_communication']}: torchtitan has p2p and all_gather": (
            launch["cp"] > 1 and launch["cp_communication"] not in ROTATIONS
        ),
        f"dispatcher={launch['dispatcher']}: torchtitan has all_to_all and two_hop": (
            launch["ep"] > 1 and launch["dispatcher"] not in DISPATCHERS
        ),
        f"precision={launch['precision']}: torchtitan has {', '.join(CONVERTERS)}": (
            launch["precision"] not in CONVERTERS
        ),
        f"shard_replicas={launch['shard_replicas']}: torchtitan has whole copies among the {launch['dp']} "
        "replicas": launch["dp"] % launch["shard_replicas"] > 0,
        f"optimizer={launch['optimizer']}: torchtitan has adam": launch["optimizer"] != "adam",
    }
    if found := [reason for reason, there in reasons.items() if there]:
        raise NotExpressible(found[0])


def losses(launch: Launch) -> list[str]:
    """Columns whose values torchtitan has no setting for, as `name=value`."""
    modules = [name for name in launch.design if name.startswith("recompute_") and launch.differs(name)]
    lost = {
        "attention": launch["attention"] != "flash_attention_2",
        "rank_order": launch["rank_order"] != "tp_cp_ep_dp_pp",
        "recompute": launch["recompute"] == "selective",  # there: all but every other product
        "overlap_grad_reduce": not launch["overlap_grad_reduce"] and launch["dp"] * launch["cp"] > 1,
        "tp_overlap": launch["tp"] > 1 and launch.tp_overlap == "none",
        "moments": launch["moments"] != "fp32",
        "gradient_reduction": launch["gradient_reduction"] != "fp32",
        "offload_optimizer": launch["offload_optimizer"] not in (0, 1),
        "offload_activations": bool(launch["offload_activations"]),
        "overlap_ep": bool(launch["overlap_ep"]) and launch["schedule"] != "dualpipe_v",
        "overlap_shared_expert": bool(launch["overlap_shared_expert"]),
        "capacity_factor": bool(launch["capacity_factor"]),
        "imbalance": launch["imbalance"] != 1,
        "overlap_p2p": launch["pp"] > 1 and launch["overlap_p2p"],
        "group_size": launch["group_size"] not in (0, launch["pp"]),
        "gradient_accumulation_fusion": not launch["gradient_accumulation_fusion"],
        "tiling": launch["tiling"] == "sample",
        **{name: launch["recompute"] != "full" or name == "recompute_layers" for name in modules},
    }
    return [f"{name}={str(launch[name]).lower()}" for name, there in lost.items() if there]


def _training(launch: Launch) -> dict[str, Any]:
    micro, staged = int(launch["micro_batch_size"]), launch["pp"] > 1
    steps = int(launch["gradient_accumulation_steps"])
    return {
        "dataset_path": "DATA_PATH",
        "seq_len": int(launch.model.seq_len),
        "local_batch_size": micro * steps if staged else micro,
        "global_batch_size": launch.global_batch_size,
        "steps": "TRAIN_STEPS",
        **({"enable_cpu_offload": True} if launch["offload_optimizer"] == 1 else {}),
    }


def _parallelism(launch: Launch) -> dict[str, Any]:
    copies = int(launch["shard_replicas"]) if launch.zero_stage else int(launch["dp"])
    found: dict[str, Any] = {
        "data_parallel_replicate_degree": copies,
        "data_parallel_shard_degree": int(launch["dp"]) // copies,
        "fsdp_reshard_after_forward": "always" if launch["reshard_after_forward"] else "never",
        "tensor_parallel_degree": int(launch["tp"]),
        "enable_async_tensor_parallel": launch["tp"] > 1 and launch.tp_overlap == "chunked",
        "context_parallel_degree": int(launch["cp"]),
    }
    if launch["cp"] > 1:
        found["context_parallel_rotate_method"] = ROTATIONS[str(launch["cp_communication"])]
    if launch.model.num_experts:
        found |= {
            "expert_parallel_degree": int(launch["ep"]),
            "expert_tensor_parallel_degree": int(launch["etp"]),
        }
        found["expert_parallel_comm_backend"] = DISPATCHERS[str(launch["dispatcher"])]
    return found | (_pipeline(launch) if launch["pp"] > 1 else {})


def _pipeline(launch: Launch) -> dict[str, Any]:
    """Stages, with their modules by name."""
    sizes, first, parts = launch.chunks(), 0, []
    for size in sizes:
        parts.append([f"layers.{layer}" for layer in range(first, first + size)])
        first += size
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "output"]
    return {
        "pipeline_parallel_degree": int(launch["pp"]),
        "pipeline_parallel_schedule": SCHEDULES[str(launch["schedule"])][launch["vpp"] > 1],
        "pipeline_parallel_microbatch_size": int(launch["micro_batch_size"]),
        "module_fqns_per_model_part": parts,
    }


def _checkpointing(launch: Launch) -> dict[str, Any]:
    word = RECOMPUTE[str(launch["recompute"])]
    return {"mode": word, **({"selective_ac_option": "op"} if word == "selective" else {})}
