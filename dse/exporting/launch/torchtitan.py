"""Configurations of torchtitan: written from designs, and read."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError, suggestion
from costmodel.formats.framework_file import Framework, launching
from costmodel.training.model import ModelShape
from dse.exporting.launch.launch import (
    PLACEHOLDERS,
    Launch,
    NotExpressible,
    even_or_written,
    launch_text,
    refuse,
)
from dse.exporting.launch.megatron_read import batch
from dse.exporting.launch.torchtitan_releases import (
    CONVERTER_WORDS,
    EARLIER,
    converters,
    flavored,
    flavors,
    layers_of_chunks,
    nested,
)
from dse.spaces.sections.frameworks import is_same

#: What torchtitan can do, and what it calls it.
TORCHTITAN: Final = launching("torchtitan")
#: Whether DualPipeV hides exchanges of experts behind another micro-batch.
OVERLAPPED: Final = "pipeline_parallel_expert_parallel_overlap"
#: Column -> layers that the first or the last stage has less: written beside modules by name, which decide.
LESS_LAYERS: Final = {
    "count_embedding": "pipeline_parallel_first_stage_less_layers",
    "count_loss": "pipeline_parallel_last_stage_less_layers",
}


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
    try:
        keys = [f"{name}.{key}" for name, part in content.items() if isinstance(part, dict) for key in part]
        if moved := [key for key in keys if EARLIER.fullmatch(key)]:
            raise DseError(
                f"{moved[0]}: a key of torchtitan before 0.2; dse reads 0.2.2, so rename it as there"
            )
        return launch_of(content, TORCHTITAN, chips), unread(content)
    except (DseError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
        raise DseError(f"{path}: {error}") from None


def launch_of(content: Mapping[str, Any], framework: Framework, chips: int | None = None) -> Launch:
    """What the sections of a configuration run, by the names of torchtitan 0.2.2.

    Raises
    ------
    DseError
        If they say too little, or what is not known; or an error of Python where they are of other kinds.
    """
    parallel, training = (content.get(name, {}) for name in ("parallelism", "training"))
    model = _read_model(content.get("model", {}), training, framework)
    design = _read_design(content, model, framework)
    world_size = chips or _world_size(parallel, design)
    dp = world_size // max(design["tp"] * design["pp"] * design["cp"], 1)
    total = int(training.get("global_batch_size", -1))
    local = int(training.get("local_batch_size", 8))
    design |= batch({"global_batch_size": total if total > 0 else local * dp}, design, world_size)
    return Launch.of(model, {**design, **_read_shards(parallel, design)}, 8)


def _read_model(part: Mapping[str, Any], training: Mapping[str, Any], framework: Framework) -> ModelShape:
    wanted = (str(part.get("name", "llama3")), str(part.get("flavor", "debugmodel")))
    model = flavored(framework, *wanted)
    if model is None:
        known = [" ".join(own) for own in flavors(framework)]
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


def _read_design(content: Mapping[str, Any], model: ModelShape, framework: Framework) -> dict[str, Any]:
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
            for name, pair in framework.runs["schedule"].words.items()
            for place, own in enumerate(pair)
            if own
        }
        flat = {own.lower(): own for own in known}
        word = flat.get(str(word).lower().replace("_", ""), word)
        if word not in known:
            raise DseError(f"pipeline_parallel_schedule: {word!r}: not known{suggestion(str(word), known)}")
        design |= {"schedule": "gpipe" if word == "GPipe" else known[word][0]}
        design |= _read_chunks(parallel, design, model, several=known[word][1])
    return design | _read_groups(parallel, design, model, framework) | _read_rest(content, framework)


def _read_groups(parallel: Mapping[str, Any], design: Mapping[str, Any], model: ModelShape,
                 framework: Framework) -> dict[str, Any]:  # fmt: skip
    """How ranks of a group work together."""
    found: dict[str, Any] = {}
    if design["tp"] > 1:
        found["sharding"] = "megatron_sp" if parallel.get("enable_sequence_parallel", True) else "megatron"
        found["tp_overlap"] = "chunked" if parallel.get("enable_async_tensor_parallel") else "gradients"
    if design["cp"] > 1:
        rotate = parallel.get("context_parallel_rotate_method", "allgather")
        found["cp_communication"] = framework.value("cp_communication", rotate, "all_gather")
    if model.num_experts:
        ep = int(parallel.get("expert_parallel_degree", 1))
        etp = int(parallel.get("expert_tensor_parallel_degree", 1)) if ep > 1 else design["tp"]
        backend = parallel.get("expert_parallel_comm_backend", "standard")
        found |= {"ep": ep, "etp": etp}
        found["dispatcher"] = framework.value("dispatcher", backend, "two_hop") if ep > 1 else "all_to_all"
        overlapped = bool(parallel.get(OVERLAPPED, True)) and framework is TORCHTITAN
        found["overlap_ep"] = overlapped and ep > 1 and design.get("schedule") == "dualpipe_v"
    return found


def _read_rest(content: Mapping[str, Any], framework: Framework) -> dict[str, Any]:
    """What runs again, and in which format."""
    word = content.get("activation_checkpoint", {}).get("mode", "selective")
    found: dict[str, Any] = {"recompute": word if word in framework.runs["recompute"].words else "full"}
    if content.get("training", {}).get("enable_cpu_offload"):
        found["offload_optimizer"] = 1
    for precision, words in CONVERTER_WORDS.items():
        if words & {*converters(content)}:
            found["precision"] = precision
    float8 = nested(content, "float8")
    if found.get("precision") == "fp8_tensorwise" and float8.get("enable_fsdp_float8_all_gather"):
        found["fp8_parameters"] = True
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
    float8 = nested(content, "float8")
    if str(float8.get("recipe_name", "")).startswith("rowwise"):
        notes.append("float8 with a scale for each row is read as fp8_tensorwise")
    if content.get("activation_checkpoint", {}).get("mode", "selective") == "selective":
        notes.append("activation_checkpoint.mode selective is read as that of attention alone")
    if content.get("activation_checkpoint", {}).get("mode") == "memory_budget":
        notes.append("activation_checkpoint.mode memory_budget is read as full")
    known = set[str]().union(*CONVERTER_WORDS.values())
    if unread := [word for word in converters(content) if word not in known]:
        notes.append(f"model.converters {', '.join(unread)}: not read")
    return notes


def script(launch: Launch) -> tuple[str, list[str]]:
    """The configuration of a design, and what it does not say.

    Raises
    ------
    NotExpressible
        If torchtitan cannot run such a design.
    """
    name, flavor = flavor_of(launch.model, TORCHTITAN)
    refuse(launch, "torchtitan")
    lost = [
        *losses(launch),
        *([f"model: mtp_layers={launch.model.mtp_layers:g}"] if launch.model.mtp_layers else []),
    ]
    nodes, each = launch.nodes
    sections: dict[str, dict[str, Any]] = {
        "model": {"name": name, "flavor": flavor, "hf_assets_path": "TOKENIZER_MODEL",
                  "converters": TORCHTITAN.word("precision", launch["precision"])},
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
        f"# {launch.heading} on {launch.world_size:,} chips, for {TORCHTITAN.release}:",
        f"# NGPU={each} torchrun --nnodes {nodes} --nproc_per_node {each} -m torchtitan.train "
        "--job.config_file THIS_FILE",
        *(f"# torchtitan has no setting for: {text}" for text in lost),
        "# Fill in what the design does not decide:",
        *(f"#   {own}: {text}" for own, text in PLACEHOLDERS.items()),
    ]
    for title, part in sections.items():
        lines += ["", f"[{title}]", *(f"{key} = {json.dumps(value)}" for key, value in part.items())]
    return "\n".join(lines) + "\n", lost


def flavor_of(model: ModelShape, framework: Framework = TORCHTITAN) -> tuple[str, str]:
    """Name and flavor of a model there.

    Raises
    ------
    NotExpressible
        If there is none.
    """
    for found in flavors(framework):
        if is_same(flavored(framework, *found), model):
            return found
    known = ", ".join(framework.models)
    raise NotExpressible(f"model {model.name}: {framework.release} has it not; it has {known}")


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
        "overlap_ep": bool(launch["overlap_ep"]) and launch["schedule"] != "dualpipe_v",
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


def degrees(launch: Launch) -> dict[str, Any]:
    """Sizes of groups, and when weights are sharded again, by the names of all releases."""
    copies = int(launch["shard_replicas"]) if launch.zero_stage else int(launch["dp"])
    return {
        "data_parallel_replicate_degree": copies,
        "data_parallel_shard_degree": int(launch["dp"]) // copies,
        "fsdp_reshard_after_forward": "always" if launch["reshard_after_forward"] else "never",
        "tensor_parallel_degree": int(launch["tp"]),
        "context_parallel_degree": int(launch["cp"]),
    }


def _parallelism(launch: Launch) -> dict[str, Any]:
    found: dict[str, Any] = {
        **degrees(launch),
        "enable_async_tensor_parallel": launch["tp"] > 1 and launch["tp_overlap"] == "chunked",
    }
    if launch["cp"] > 1:
        found["context_parallel_rotate_method"] = TORCHTITAN.word(
            "cp_communication", launch["cp_communication"]
        )
    if launch.model.num_experts:
        found |= {
            "expert_parallel_degree": int(launch["ep"]),
            "expert_tensor_parallel_degree": int(launch["etp"]),
        }
        if launch["ep"] > 1:
            found["expert_parallel_comm_backend"] = TORCHTITAN.word("dispatcher", launch["dispatcher"])
    if launch["pp"] > 1:
        found |= stages(launch, TORCHTITAN, "output")
        found["pipeline_parallel_microbatch_size"] = int(launch["micro_batch_size"])
        if launch["schedule"] == "dualpipe_v":
            found[OVERLAPPED] = bool(launch["overlap_ep"])
    return found


def stages(launch: Launch, framework: Framework, last: str) -> dict[str, Any]:
    """Stages of the pipeline, with their modules by name; `last` is that of logits."""
    sizes, first, parts = launch.chunks(), 0, []
    for size in sizes:
        parts.append([f"layers.{layer}" for layer in range(first, first + size)])
        first += size
    parts[0].insert(0, "tok_embeddings")
    parts[-1] += ["norm", last]
    return {
        **{setting: int(launch[column]) for column, setting in LESS_LAYERS.items()},
        "pipeline_parallel_degree": int(launch["pp"]),
        "pipeline_parallel_schedule": framework.word("schedule", launch["schedule"])[launch["vpp"] > 1],
        "module_fqns_per_model_part": parts,
    }


def _checkpointing(launch: Launch) -> dict[str, Any]:
    word = str(TORCHTITAN.word("recompute", launch["recompute"]))
    return {"mode": word, **({"selective_ac_option": "op"} if word == "selective" else {})}
