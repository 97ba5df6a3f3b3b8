"""Configurations of MaxText: written from designs, and read.

Keys are those of AI-Hypercomputer/maxtext `src/maxtext/configs/base.yml` (commit e591f30cb of 2026-08-22).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd, prod
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.framework_file import launching
from costmodel.formats.input_files import dump, parse
from costmodel.training.model import ModelShape
from dse.adapters.maxtext.model import keys_model, model_keys, model_losses
from dse.launches.launch import MOST_OF_A_HOST, PLACEHOLDERS, Launch, launch_text, refuse, with_line

#: What MaxText can do, and what it calls it.
MAXTEXT: Final = launching("maxtext")
OF_SOFTWARE: Final = ("cross_entropy", "store_param_remainders", "gradient_reduction")


def script(launch: Launch) -> tuple[str, list[str]]:
    """The configuration of a design, and the settings that it lacks.

    Raises `NotExpressible` if MaxText cannot run such a design.
    """
    refuse(launch, "maxtext")
    lost = [*model_losses(launch.model), *losses(launch)]
    content: dict[str, Any] = {
        "base_config": "base.yml",
        "run_name": "RUN_NAME",
        "base_output_directory": "CHECKPOINT_DIR",
        "dataset_path": "DATA_PATH",
        "tokenizer_path": "TOKENIZER_MODEL",
        "learning_rate": "LEARNING_RATE",
        "steps": "TRAIN_STEPS",
        **model_keys(launch.model),
        **mesh(launch),
        **_training(launch),
    }
    lines = [
        f"# {launch.heading} on {launch.world_size:,} chips, for {MAXTEXT.release}:",
        "# python3 -m maxtext.trainers.pre_train.train THIS_FILE",
        *(f"# MaxText has no key for: {text}" for text in lost),
        "# Fill in what the design does not decide:",
        *(f"#   {name}: {text}" for name, text in {**PLACEHOLDERS, "RUN_NAME": "name of the run"}.items()),
    ]
    return "\n".join(lines) + "\n" + dump(content), lost


def losses(launch: Launch) -> list[str]:
    """Columns whose values MaxText has no key for, as `name=value`."""
    modules = [name for name in launch.design if name.startswith("recompute_") and launch.differs(name)]
    silent = (
        *("overlap_ep", "overlap_shared_expert", "offload_activations", "moments"),
        *("rank_order", "fp8_parameters", "group_size", "gradient_copy"),
    )
    lost = [name for name in (*silent, *modules) if launch.differs(name)]
    sharded = launch.zero_stage == 3
    others = {
        "dispatcher": launch["dispatcher"] != "all_to_all",
        "imbalance": launch.imbalance_differs,
        "tp_overlap": launch["tp"] > 1 and launch["tp_overlap"] != "gradients",
        "recompute": launch["recompute"] == "selective",
        "offload_optimizer": launch["offload_optimizer"] not in (0, 1),
        "overlap_grad_reduce": not launch["overlap_grad_reduce"],
        "overlap_param_gather": not launch["overlap_param_gather"],
        "overlap_p2p": launch["pp"] > 1 and launch["overlap_p2p"],
        "gradient_accumulation_fusion": not launch["gradient_accumulation_fusion"],
        "reshard_after_forward": sharded and not launch["reshard_after_forward"],
        "cp_a2a": launch["cp_communication"] == "a2a_p2p" and launch["cp"] > 1,
        "attention": launch["attention"] not in ("fused", "unfused"),
        **{name: launch[name] != MAXTEXT.given[name] for name in OF_SOFTWARE},
        "zero": not sharded and launch["dp"] == 1,
        "shard_replicas": launch["shard_replicas"] > 1 and (not sharded or launch["dp"] == launch["shard_replicas"]),
        "tiling": launch["tiling"] == "sample",
    }
    lost += [name for name, lacks in others.items() if lacks]
    return [f"{name}={str(launch[name]).lower()}" for name in lost]


def mesh(launch: Launch) -> dict[str, int]:
    """Sizes of the axes of the mesh: within a node (or a slice), and between nodes."""
    split = "tensor_sequence" if launch.sequence_parallel else "tensor"
    dp, ep, copies = int(launch["dp"]), int(launch["ep"]), int(launch["shard_replicas"])
    dp //= ep
    data, fsdp = (dp, 1) if launch.zero_stage < 3 else (copies, dp // copies)
    sizes = {split: int(launch["tp"]), "context": int(launch["cp"]), "expert": ep, "fsdp": fsdp,
             "data": data, "pipeline": int(launch["pp"])}  # fmt: skip
    inside = launch.nodes[1] if launch.node_size <= MOST_OF_A_HOST else launch.world_size
    keys: dict[str, int] = {}
    for axis, size in sizes.items():
        near = gcd(size, inside)
        inside //= near
        keys |= {f"ici_{axis}_parallelism": near, f"dcn_{axis}_parallelism": size // near}
    return keys


def _training(launch: Launch) -> dict[str, Any]:
    """Batch, pipeline, recomputation, number formats."""
    micro, steps = int(launch["micro_batch_size"]), int(launch["gradient_accumulation_steps"])
    staged = launch["pp"] > 1
    replica = int(launch["tp"]) * int(launch["cp"]) * int(launch["pp"])
    keys: dict[str, Any] = {
        "per_device_batch_size": micro * (steps if staged else 1) / replica,
        "gradient_accumulation_steps": 1 if staged else steps,
        "remat_policy": MAXTEXT.word("recompute", launch["recompute"]),
        "quantization": MAXTEXT.word("precision", launch["precision"]),
        "dtype": "float16" if launch["precision"] == "fp16" else "bfloat16",
        "attention": "dot_product" if launch["attention"] == "unfused" else "autoselected",
        "opt_type": MAXTEXT.word("optimizer", launch["optimizer"]),
        "shard_optimizer_over_data": launch.zero_stage == 1,
        "hardware": "gpu" if launch.node_size <= MOST_OF_A_HOST else "HARDWARE",
    }
    if staged:
        keys["num_pipeline_microbatches"] = steps
        keys["num_layers_per_pipeline_stage"] = launch.chunks()[0]
        keys["num_pipeline_repeats"] = int(launch["vpp"])
    if launch["cp"] > 1:
        keys["context_parallel_strategy"] = MAXTEXT.word("cp_communication", launch["cp_communication"])
    if launch["capacity_factor"]:
        keys |= {"capacity_factor": float(launch["capacity_factor"]), "sparse_matmul": False}
    if launch["offload_optimizer"] == 1:
        keys["optimizer_memory_host_offload"] = True
    return keys


def read_script(path: Path, chips: int | None = None) -> tuple[Launch, list[str]]:
    """The run of a MaxText configuration, and notes on settings that are not read.

    Raises `DseError` if it is no such file, or says too little.
    """
    text = launch_text(path)
    keys = parse(text, str(path)).data
    try:
        if not any(str(key).startswith(("ici_", "dcn_", "base_")) or key == "model_name" for key in keys):
            raise DseError("no key of MaxText's model or mesh in it")
        model = keys_model(keys, path.stem)
        design = _read_mesh(keys, chips)
        design |= _read_training(keys, design, model)
        design["etp"] = design["tp"]
        known = {name: v for name, v in design.items() if name not in ("ep", "etp") or model.num_experts}
        return Launch.of(model, known, 8), _unread(keys)
    except (DseError, ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise DseError(f"{path}: {with_line(str(error), text)}") from None


#: Axes of the mesh -> column; the rest of data parallelism is told apart below.
AXES: Final = {"tensor": "tp", "tensor_sequence": "tp", "context": "cp", "context_usp_ulysses": "cp",
               "expert": "ep", "pipeline": "pp"}  # fmt: skip


def _read_mesh(keys: Mapping[str, Any], chips: int | None) -> dict[str, Any]:
    """Sizes of groups, and what weights are sharded over.

    Raises `DseError` if an axis takes what is left of the chips, and nobody says how many these are.
    """
    names = {f"{link}_{axis}_parallelism": axis for link in ("ici", "dcn")
             for axis in (*AXES, "fsdp", "fsdp_transpose", "data")}  # fmt: skip
    usual = {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}
    said = {name: int(keys.get(name, usual.get(name, 1))) for name in names}
    known = prod(size for size in said.values() if size > 0)
    left = [name for name, size in said.items() if size < 0]
    if left and not chips:
        raise DseError(f"does not say on how many chips ({left[0]}: -1); name them with --gpus N")
    if left:
        said |= dict.fromkeys(left, 1) | {left[-1 if len(left) == 1 else 0]: int(chips or known) // known}
    sizes = {axis: prod(said[name] for name, of in names.items() if of == axis) for axis in names.values()}
    design: dict[str, Any] = {"tp": 1, "cp": 1, "ep": 1, "pp": 1}
    for axis, column in AXES.items():
        design[column] *= sizes[axis]
    fsdp = sizes["fsdp"] * sizes["fsdp_transpose"]
    sharded = fsdp * design["ep"] * design["cp"] > 1 or sizes["data"] == 1
    design["dp"] = sizes["data"] * fsdp * design["ep"]
    design["zero"] = 3 if sharded else int(bool(keys.get("shard_optimizer_over_data")))
    design |= {"shard_replicas": sizes["data"]} if sharded else {}
    return design | ({"sharding": "megatron_sp"} if sizes["tensor_sequence"] > 1 else {})


def _read_training(keys: Mapping[str, Any], design: Mapping[str, Any], model: ModelShape) -> dict[str, Any]:
    """Batch, pipeline, recomputation, number formats."""
    replica = design["tp"] * design["cp"] * design["pp"]
    local = float(keys.get("per_device_batch_size", 12)) * replica
    staged, steps = design["pp"] > 1, int(keys.get("gradient_accumulation_steps", 1))
    if staged:
        asked = int(keys.get("num_pipeline_microbatches", -1))
        steps = asked if asked > 0 else design["pp"]
        local /= steps
    micro = round(local)
    if micro < 1 or abs(local - micro) > 1e-6:
        raise DseError(f"per_device_batch_size: {local:g} sequences per micro-batch; expected a whole number")
    policy = str(keys.get("remat_policy", "full"))
    columns: dict[str, Any] = {
        "micro_batch_size": micro,
        "gradient_accumulation_steps": steps,
        "recompute": MAXTEXT.value("recompute", policy, "full"),
        "precision": MAXTEXT.value("precision", str(keys.get("quantization") or ""), "fp8_tensorwise"),
        "attention": "unfused" if keys.get("attention") == "dot_product" else "fused",
        "optimizer": MAXTEXT.value("optimizer", keys.get("opt_type", "adamw"), "adam"),
        "overlap_grad_reduce": True,
        "vpp": 1,
        **{name: MAXTEXT.given[name] for name in OF_SOFTWARE},
    }
    if staged:
        chunk_layers = int(keys.get("num_layers_per_pipeline_stage", 1)) * design["pp"]
        columns["vpp"] = int(model.num_layers) // chunk_layers
        columns["schedule"] = "gpipe" if columns["vpp"] == 1 else "breadth_first"
    if design["cp"] > 1:
        word = keys.get("context_parallel_strategy", "all_gather")
        columns["cp_communication"] = MAXTEXT.value("cp_communication", word, "all_gather")
    if float(keys.get("capacity_factor", -1)) > 0:
        columns["capacity_factor"] = float(keys["capacity_factor"])
    if keys.get("optimizer_memory_host_offload"):
        columns["offload_optimizer"] = 1
    return columns


def _unread(keys: Mapping[str, Any]) -> list[str]:
    """Settings that are read as something else."""
    notes = []
    policy = str(keys.get("remat_policy", "full"))
    if policy not in MAXTEXT.runs["recompute"].words.values():
        notes.append(f"remat_policy {policy} is read as full")
    quantized = str(keys.get("quantization") or "")
    if quantized not in MAXTEXT.runs["precision"].words.values():
        notes.append(f"quantization {quantized} is read as fp8")
    return notes
