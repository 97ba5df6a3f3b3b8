"""Configurations of torchtitan as designs."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from costmodel.errors import DseError, suggestion
from costmodel.formats.model_file import load_model
from costmodel.training.model import ModelShape
from dse.export.launch.launch import Launch, even_or_written, launch_text
from dse.export.launch.megatron_read import batch
from dse.export.launch.torchtitan_names import CONVERTERS, FLAVORS, RECOMPUTE, ROTATIONS, SCHEDULES


def read_script(path: Path, chips: int | None = None) -> tuple[Launch, list[str]]:
    """What a configuration of torchtitan runs, and what of it is not read.

    Raises
    ------
    DseError
        If it is no such file, or says too little.
    """
    try:
        content = tomllib.loads(launch_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise DseError(f"{path}: expected TOML ({error})") from None
    model_part, parallel, training = (content.get(name, {}) for name in ("model", "parallelism", "training"))
    try:
        model = _read_model(model_part, training)
        design = _read_design(content, model)
        world_size = chips or _world_size(parallel, design)
        micro = design["micro_batch_size"]
        dp = world_size // max(design["tp"] * design["pp"] * design["cp"], 1)
        total = int(training.get("global_batch_size", -1))
        local = int(training.get("local_batch_size", 8))
        settings = {"global_batch_size": total if total > 0 else local * dp}
        design |= batch(settings, {**design, "micro_batch_size": micro}, world_size)
        return Launch.of(model, {**design, **_read_shards(parallel, design)}, 8), _unread(content)
    except (DseError, ValueError, TypeError, AttributeError, ZeroDivisionError) as error:
        raise DseError(f"{path}: {error}") from None


def _read_model(part: Mapping[str, Any], training: Mapping[str, Any]) -> ModelShape:
    wanted = (str(part.get("name", "llama3")), str(part.get("flavor", "debugmodel")))
    shipped = next((name for name, own in FLAVORS.items() if own == wanted), None)
    if shipped is None:
        known = [" ".join(own) for own in FLAVORS.values()]
        raise DseError(f"model {' '.join(wanted)}: not known{suggestion(' '.join(wanted), known)}")
    model = load_model(shipped)
    assert isinstance(model, ModelShape)
    return replace(model, seq_len=float(training.get("seq_len", 2048)))


def _world_size(parallel: Mapping[str, Any], design: Mapping[str, Any]) -> int:
    shard = int(parallel.get("data_parallel_shard_degree", -1))
    if shard < 1:
        raise DseError("does not say on how many chips; name them with --gpus N")
    replicas = int(parallel.get("data_parallel_replicate_degree", 1))
    return shard * replicas * int(design["tp"] * design["pp"] * design["cp"])


def _read_shards(parallel: Mapping[str, Any], design: Mapping[str, Any]) -> dict[str, Any]:
    """Stage of sharded data parallelism."""
    replicas = int(parallel.get("data_parallel_replicate_degree", 1))
    if replicas >= design["dp"] and design["cp"] == 1:
        return {"zero": 0}
    word = parallel.get("fsdp_reshard_after_forward", "default")
    kept = word == "never" or (word == "default" and design["pp"] > 1)
    return {"zero": 3, "reshard_after_forward": not kept, "shard_replicas": replicas}


def _read_design(content: Mapping[str, Any], model: ModelShape) -> dict[str, Any]:
    parallel, training = content.get("parallelism", {}), content.get("training", {})
    degrees = {"tp": "tensor", "cp": "context", "pp": "pipeline"}
    design: dict[str, Any] = {
        own: int(parallel.get(f"{word}_parallel_degree", 1)) for own, word in degrees.items()
    }
    staged, word = design["pp"] > 1, parallel.get("pipeline_parallel_schedule", "1F1B")
    micro = (
        parallel.get("pipeline_parallel_microbatch_size", 1)
        if staged
        else training.get("local_batch_size", 8)
    )
    design |= {"micro_batch_size": int(micro), "overlap_grad_reduce": True, "vpp": 1}
    design["attention"] = "flash_attention_2"
    if staged:
        known = {
            own: (name, place > 0)
            for name, pair in SCHEDULES.items()
            for place, own in enumerate(pair)
            if own
        }
        if word not in known:
            raise DseError(f"pipeline_parallel_schedule: {word!r}: not known{suggestion(str(word), known)}")
        design |= {
            "schedule": "gpipe" if word == "GPipe" else known[word][0],
        }
        design |= _read_chunks(parallel, design, model, several=known[word][1])
    return design | _read_groups(parallel, design, model) | _read_rest(content)


def _read_groups(parallel: Mapping[str, Any], design: Mapping[str, Any], model: ModelShape) -> dict[str, Any]:
    """How ranks of a group work together."""
    found: dict[str, Any] = {}
    if design["tp"] > 1:
        found["sequence_parallel"] = True
        found["tp_overlap"] = "chunked" if parallel.get("enable_async_tensor_parallel") else "gradients"
    if design["cp"] > 1:
        rotate = parallel.get("context_parallel_rotate_method", "allgather")
        found["cp_communication"] = next(
            (own for own, name in ROTATIONS.items() if name == rotate), "all_gather"
        )
    if model.num_experts:
        backend = parallel.get("expert_parallel_comm_backend", "standard")
        found |= {
            "ep": int(parallel.get("expert_parallel_degree", 1)),
            "etp": int(parallel.get("expert_tensor_parallel_degree", 1)),
        }
        found["dispatcher"] = "two_hop" if backend == "deepep" else "all_to_all"
    return found


def _read_rest(content: Mapping[str, Any]) -> dict[str, Any]:
    """What runs again, and in which format."""
    word = content.get("activation_checkpoint", {}).get("mode", "selective")
    found: dict[str, Any] = {"recompute": word if word in RECOMPUTE else "full"}
    if content.get("training", {}).get("enable_cpu_offload"):
        found["offload_optimizer"] = 1
    converters = content.get("model", {}).get("converters", [])
    for precision, names in CONVERTERS.items():
        if any(name in converters or name.rpartition(".")[2] in converters for name in names):
            found["precision"] = precision
    float8 = content.get("quantize", {}).get("linear", {}).get("float8", {})
    if found.get("precision") == "fp8_tensorwise" and float8.get("enable_fsdp_float8_all_gather"):
        found["fp8_parameters"] = True
    return found


def _read_chunks(
    parallel: Mapping[str, Any], design: Mapping[str, Any], model: ModelShape, *, several: bool
) -> dict[str, Any]:
    """Chunks of the pipeline: by their modules, or by layers of each."""
    parts = parallel.get("module_fqns_per_model_part")
    if parts:
        sizes = [sum(str(name).startswith("layers.") for name in part) for part in parts]
        texts = ["t" * size for size in sizes]
        return even_or_written(
            model, design, "|".join(["E" + texts[0], *texts[1:]]) + "L" if len(texts) > 1 else f"E{texts[0]}L"
        )
    less = {
        f"count_{own}": int(parallel.get(f"pipeline_parallel_{place}_stage_less_layers", 1))
        for own, place in (("embedding", "first"), ("loss", "last"))
    }
    if any(count > 1 for count in less.values()):
        raise DseError(
            "pipeline stages with several layers less: name modules with module_fqns_per_model_part"
        )
    found: dict[str, Any] = {name: True for name, count in less.items() if count}
    each = parallel.get("pipeline_parallel_layers_per_stage")
    layers = int(model.num_layers) + sum(less.values())
    chunks = -(-layers // int(each)) if each else design["pp"] * (2 if several else 1)
    if chunks % design["pp"]:
        raise DseError(f"{chunks} chunks: expected a multiple of pipeline_parallel_degree = {design['pp']}")
    return {**found, "vpp": chunks // design["pp"]}


def _unread(content: Mapping[str, Any]) -> list[str]:
    notes = []
    if content.get("activation_checkpoint", {}).get("mode", "selective") == "selective":
        notes.append("activation_checkpoint.mode selective is read as that of attention alone")
    if content.get("activation_checkpoint", {}).get("mode") == "memory_budget":
        notes.append("activation_checkpoint.mode memory_budget is read as full")
    return notes
