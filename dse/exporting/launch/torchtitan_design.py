"""Designs in the words of torchtitan: sections of a configuration -> `Launch`, and columns -> settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from costmodel.errors import DseError, suggestion
from costmodel.formats.framework_file import launching
from costmodel.training.model import ModelShape
from dse.exporting.launch.launch import Launch, NotExpressible, even_or_written
from dse.exporting.launch.megatron_read import batch
from dse.exporting.launch.torchtitan_models import CONVERTER_WORDS, converters, flavored, flavors, layers_of_chunks
from dse.spaces.sections.frameworks import is_same

#: What torchtitan can do, and what it calls it.
TORCHTITAN: Final = launching("torchtitan")
#: Column -> layers that the first or the last stage has less: written beside modules by name, which decide.
LESS_LAYERS: Final = {
    "count_embedding": "pipeline_parallel_first_stage_less_layers",
    "count_loss": "pipeline_parallel_last_stage_less_layers",
}


def launch_of(content: Mapping[str, Any], chips: int | None = None) -> Launch:
    """The run that the sections of a configuration describe.

    Raises
    ------
    DseError
        If they say too little, or what is not known; or an error of Python where they are of other kinds.
    """
    parallel, training = (content.get(name, {}) for name in ("parallelism", "training"))
    model = _read_model(content.get("model", {}), training)
    design = _read_design(content, model)
    world_size = chips or _world_size(parallel, design)
    dp = world_size // max(design["tp"] * design["pp"] * design["cp"], 1)
    total = int(training.get("global_batch_size", -1))
    local = int(training.get("local_batch_size", 8))
    design |= batch({"global_batch_size": total if total > 0 else local * dp}, design, world_size)
    return Launch.of(model, {**design, **_read_shards(parallel, design)}, 8)


def _read_model(part: Mapping[str, Any], training: Mapping[str, Any]) -> ModelShape:
    wanted = (str(part.get("name", "llama3")), str(part.get("flavor", "debugmodel")))
    model = flavored(TORCHTITAN, *wanted)
    if model is None:
        known = [" ".join(own) for own in flavors(TORCHTITAN)]
        raise DseError(f"model {' '.join(wanted)}: not known{suggestion(' '.join(wanted), known)}")
    mtp_layers = float(part.get("num_mtp_layers", 0))
    return replace(model, seq_len=float(training.get("seq_len", 2048)), mtp_layers=mtp_layers)


def _world_size(parallel: Mapping[str, Any], design: Mapping[str, Any]) -> int:
    shard = int(parallel.get("data_parallel_shard_degree", -1))
    if shard < 1:
        raise DseError("does not say on how many chips; name them with --gpus N")
    replicas = int(parallel.get("data_parallel_replicate_degree", 1))
    return shard * replicas * int(design["tp"] * design["pp"] * design["cp"])


def _read_shards(parallel: Mapping[str, Any], design: Mapping[str, Any]) -> dict[str, Any]:
    """Stage of sharded data parallelism."""
    replicas = int(parallel.get("data_parallel_replicate_degree", 1))
    if replicas >= design["dp"] > 1 and design["cp"] == 1:
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
    local = int(training.get("local_batch_size", 8))
    micro = parallel.get("pipeline_parallel_microbatch_size", 1) if staged else local
    design |= {"micro_batch_size": int(micro), "overlap_grad_reduce": True, "vpp": 1}
    design["attention"] = "flash_attention_2"
    if staged:
        known = {
            own: (name, place > 0)
            for name, pair in TORCHTITAN.runs["schedule"].words.items()
            for place, own in enumerate(pair)
            if own
        }
        flat = {own.lower(): own for own in known}
        word = flat.get(str(word).lower().replace("_", ""), word)
        if word not in known:
            raise DseError(f"pipeline_parallel_schedule: {word!r}: not known{suggestion(str(word), known)}")
        design |= {"schedule": "gpipe" if word == "GPipe" else known[word][0]}
        design |= _read_chunks(parallel, design, model, several=known[word][1])
    return design | _read_groups(parallel, design, model) | _read_rest(content)


def _read_groups(parallel: Mapping[str, Any], design: Mapping[str, Any], model: ModelShape) -> dict[str, Any]:
    """How ranks of a group work together."""
    found: dict[str, Any] = {}
    if design["tp"] > 1:
        found["sharding"] = "megatron_sp" if parallel.get("enable_sequence_parallel", True) else "megatron"
        found["tp_overlap"] = "chunked" if parallel.get("enable_async_tensor_parallel") else "gradients"
    if design["cp"] > 1:
        rotate = parallel.get("context_parallel_rotate_method", "allgather")
        found["cp_communication"] = TORCHTITAN.value("cp_communication", rotate, "all_gather")
    if model.num_experts:
        ep = int(parallel.get("expert_parallel_degree", 1))
        etp = int(parallel.get("expert_tensor_parallel_degree", 1)) if ep > 1 else design["tp"]
        backend = parallel.get("expert_parallel_comm_backend", "standard")
        found |= {"ep": ep, "etp": etp}
        found["dispatcher"] = TORCHTITAN.value("dispatcher", backend, "two_hop") if ep > 1 else "all_to_all"
    return found


def _read_rest(content: Mapping[str, Any]) -> dict[str, Any]:
    """What runs again, and in which format."""
    word = content.get("activation_checkpoint", {}).get("mode", "selective")
    found: dict[str, Any] = {"recompute": word if word in TORCHTITAN.runs["recompute"].words else "full"}
    if content.get("training", {}).get("enable_cpu_offload"):
        found["offload_optimizer"] = 1
    for precision, words in CONVERTER_WORDS.items():
        if words & {*converters(content)}:
            found["precision"] = precision
    return found


def _read_chunks(
    parallel: Mapping[str, Any], design: Mapping[str, Any], model: ModelShape, *, several: bool
) -> dict[str, Any]:
    """Chunks of the pipeline: by their modules, or by layers of each."""
    parts = parallel.get("module_fqns_per_model_part")
    less = {column: int(parallel.get(setting, 0)) for column, setting in LESS_LAYERS.items()}
    if parts:
        sizes = [sum(str(name).startswith("layers.") for name in part) for part in parts]
        as_said = {"vpp": len(sizes) // design["pp"], **{column: count > 0 for column, count in less.items()}}
        staged = {name: design[name] for name in ("pp", "schedule")}
        if Launch.of(model, {**staged, **as_said}, 1).chunks() == sizes:
            return as_said
    else:
        sizes = layers_of_chunks(parallel, int(model.num_layers), design["pp"], several=several)
    return even_or_written(model, design, f"E{'|'.join('t' * size for size in sizes)}L")


def unread(content: Mapping[str, Any]) -> list[str]:
    """What of a configuration is read as something else."""
    notes = []
    if "float8" in converters(content):
        notes.append("float8 with a scale for each row is read as fp8_tensorwise")
    if content.get("activation_checkpoint", {}).get("mode", "selective") == "selective":
        notes.append("activation_checkpoint.mode selective is read as that of attention alone")
    if content.get("activation_checkpoint", {}).get("mode") == "memory_budget":
        notes.append("activation_checkpoint.mode memory_budget is read as full")
    known = set[str]().union(*CONVERTER_WORDS.values())
    if unread := [word for word in converters(content) if word not in known]:
        notes.append(f"model.converters {', '.join(unread)}: not read")
    return notes


def flavor_of(model: ModelShape) -> tuple[str, str]:
    """Name and flavor of a model there. Raises `NotExpressible` if there is none."""
    for found in flavors(TORCHTITAN):
        if is_same(flavored(TORCHTITAN, *found), model):
            return found
    known = ", ".join(TORCHTITAN.models)
    raise NotExpressible(f"model {model.name}: {TORCHTITAN.release} has it not; it has {known}")


def losses(launch: Launch) -> list[str]:
    """Columns whose values torchtitan has no setting for, as `name=value`."""
    modules = [name for name in launch.design if name.startswith("recompute_") and launch.differs(name)]
    lost = {
        "attention": launch["attention"] != "flash_attention_2",
        "rank_order": launch["rank_order"] != "tp_cp_ep_dp_pp",
        "zero": not launch.zero_stage and launch["dp"] == 1,  # fully_shard of one rank
        "shard_replicas": launch.zero_stage > 0
        and launch["cp"] == 1 < launch["dp"] == launch["shard_replicas"],
        "recompute": launch["recompute"] == "selective",  # there: all but every other product
        "overlap_grad_reduce": not launch["overlap_grad_reduce"] and launch.world_size > launch["pp"],
        "overlap_param_gather": bool(launch["overlap_grad_reduce"]) and not launch["overlap_param_gather"],
        "store_param_remainders": bool(launch["store_param_remainders"]),
        "gradient_copy": bool(launch["gradient_copy"]),
        "fp8_parameters": bool(launch["fp8_parameters"]) and launch["precision"] != "fp8_tensorwise",
        "tp_overlap": launch["tp"] > 1 and launch["tp_overlap"] == "none",
        "moments": launch["moments"] != "fp32",
        "gradient_reduction": launch["gradient_reduction"] != "fp32",
        "offload_optimizer": launch["offload_optimizer"] not in (0, 1),
        "offload_activations": bool(launch["offload_activations"]),
        "overlap_ep": bool(launch["overlap_ep"]),
        "overlap_shared_expert": bool(launch["overlap_shared_expert"]),
        "capacity_factor": bool(launch["capacity_factor"]),
        "imbalance": launch.imbalance_differs,
        "dispatcher": launch["ep"] == 1 and launch["dispatcher"] != "all_to_all",
        "overlap_p2p": launch["pp"] > 1 and launch["overlap_p2p"],
        "group_size": launch["group_size"] not in (0, launch["pp"]),
        "gradient_accumulation_fusion": not launch["gradient_accumulation_fusion"],
        "tiling": launch["tiling"] == "sample",
        **{name: launch["recompute"] != "full" or name == "recompute_layers" for name in modules},
    }
    return [f"{name}={str(launch[name]).lower()}" for name, there in lost.items() if there]


def degrees(launch: Launch) -> dict[str, Any]:
    """Sizes of groups, and whether weights are sharded again after the forward pass."""
    copies = int(launch["shard_replicas"]) if launch.zero_stage else int(launch["dp"])
    return {
        "data_parallel_replicate_degree": copies,
        "data_parallel_shard_degree": int(launch["dp"]) // copies,
        "fsdp_reshard_after_forward": "always" if launch["reshard_after_forward"] else "never",
        "tensor_parallel_degree": int(launch["tp"]),
        "context_parallel_degree": int(launch["cp"]),
    }


def stages(launch: Launch) -> dict[str, Any]:
    """Stages of the pipeline, with their modules by name."""
    sizes, first, parts = launch.chunks(), 0, []
    for size in sizes:
        parts.append([f"layers.{layer}" for layer in range(first, first + size)])
        first += size
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", "lm_head"]
    return {
        **{setting: int(launch[column]) for column, setting in LESS_LAYERS.items()},
        "pipeline_parallel_degree": int(launch["pp"]),
        "pipeline_parallel_schedule": TORCHTITAN.word("schedule", launch["schedule"])[launch["vpp"] > 1],
        "module_fqns_per_model_part": parts,
    }
