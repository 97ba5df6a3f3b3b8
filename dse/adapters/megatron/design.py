"""Settings of Megatron Core and Megatron-LM as designs, and designs as settings; the model's part is in `model`.

The framework file lists the words of each column. A launch holds the settings of the file that was read, by their names
in Megatron Core.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from costmodel.errors import DseError, shortened
from costmodel.formats.framework_file import launching
from costmodel.formats.input_files import scalar
from costmodel.training.blocks import MODULES, OFFLOAD_MODULES
from costmodel.training.design import EVEN, DesignPoints
from costmodel.training.model import ModelShape
from costmodel.training.run import padded_vocabulary
from dse.adapters.megatron.model import (
    BALANCES,
    KEYS,
    branches,
    model_losses,
    model_settings,
    settings_model,
    usual_vocabulary,
)
from dse.launches.adapters import read_peft
from dse.launches.launch import Launch, NotExpressible, even_or_written, refuse, written_layout
from dse.spaces.sections.frameworks import conditions_met

#: Setting -> column, of numbers that are left out where they are 1, or 0.
SIZES: Final[Mapping[str, str]] = KEYS["sizes"]
#: Most ranks of a node that DeepEP knows (csrc/kernels/legacy); HybridEP is for larger domains of NVLink. [-]
DEEPEP_NODE: Final = 8
#: Capabilities of Megatron Core, and their names.
MEGATRON: Final = launching("megatron")

#: Largest difference of parameters of a model that its settings may make. [-]
SAME_SIZE: Final = 1e-3


def settings_of(launch: Launch) -> tuple[dict[str, Any], list[str]]:
    """A launch as settings, and the settings that Megatron Core lacks.

    Raises `NotExpressible` if Megatron Core cannot run such a design.
    """
    refuse(launch, "megatron")
    of_model, lost = model_settings(launch.model), model_losses(launch.model)
    if lost and not launch.anyway:
        refuse_another_model(launch.model, of_model, lost)
    entries = int(np.max(padded_vocabulary(launch.model, launch.points.tp)))
    settings = {
        **of_model,
        **{s: int(launch[column]) for s, column in SIZES.items()},
        "padded_vocab_size": entries + -entries % int(launch["tp"]),  # for any tokenizer
        "global_batch_size": launch.global_batch_size,
        **{s: int(launch[column]) for s, column in KEYS["counts"].items() if launch[column]},
        **{s: True for s, column in KEYS["switches"].items() if launch[column]},
        **_pipeline(launch),
        **_recomputation(launch),
        **MEGATRON.word("zero", launch.zero_stage),
        **_of_columns(launch),
        **MEGATRON.word("precision", launch["precision"]),
        **KEYS["attention"].get(str(launch["attention"]), {}),
        **KEYS["cross_entropy"].get(str(launch["cross_entropy"]), {}),
        **_experts(launch),
        **MEGATRON.word("cuda_graphs", launch["cuda_graphs"]),
    }
    if launch.model.index_topk:  # fused kernels; those of cuDNN need Hopper (dsa_cudnn_kernels.py)
        settings["dsa_kernel_backend"] = "cudnn" if launch.compute_capability >= 9 else "tilelang"
    if launch["cuda_graphs"] == "layers":
        settings["cuda_graph_modules"] = conditions_met(KEYS["graphs"], launch.model)
    if "hybrid_layer_pattern" in settings:
        settings = _hybrid_pipeline(launch, settings)
    return settings, [*(f"model: {text}" for text in lost), *launch.lost(KEYS["lost"])]


def variables(launch: Launch, settings: Mapping[str, Any]) -> list[str]:
    """Variables of the environment that a run needs, as `NAME=value`.

    One queue to a GPU keeps the order of messages and kernels, which GPUs before Blackwell need (arguments.py); with
    ZeRO 2 and 3, more are needed.
    """
    ordered = launch.zero_stage < 2 and launch["tp"] * launch["cp"] > 1 and launch.compute_capability < 10
    needed = [f"CUDA_DEVICE_MAX_CONNECTIONS={32 if launch['overlap_ep'] else 1}"] if ordered else []
    needed += [variable for name, variable in KEYS["environment"].items() if name in settings]
    return needed if "cuda_graph_impl" in settings else [*needed, KEYS["environment_without_graphs"]]


def refuse_another_model(model: ModelShape, settings: Mapping[str, Any], lost: Sequence[str]) -> None:
    """Refuse a model that settings describe with another number of parameters. Raises `NotExpressible`."""
    trained = settings_model(settings, model.name).num_parameters
    if abs(trained / model.num_parameters - 1) > SAME_SIZE:
        raise NotExpressible(
            f"model {model.name}: Megatron Core would train {trained / 1e9:.1f}B parameters, not "
            f"{model.num_parameters / 1e9:.1f}B, without settings for {'; '.join(lost)}; --anyway writes it"
        )


def _pipeline(launch: Launch) -> dict[str, Any]:
    """Chunks of the pipeline: as even as Megatron Core makes them, or written out."""
    ends = [launch[column] for column in ("first_stage_layers", "last_stage_layers")]
    layers = launch.model.num_layers + int(launch["count_embedding"]) + int(launch["count_loss"])
    uneven = layers % (launch["pp"] * launch["vpp"]) and not any(ends)
    if launch["pipeline_layout"] != EVEN or uneven:
        return {"pipeline_model_parallel_layout": written_layout(launch)}
    return {"num_virtual_stages_per_pipeline_rank": int(launch["vpp"])} if launch["vpp"] > 1 else {}


def _hybrid_pipeline(launch: Launch, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of a hybrid model, whose pattern has "|" between the chunks of the pipeline."""
    order, *prediction = settings["hybrid_layer_pattern"].split("/")
    ends = (np.cumsum(launch.chunks()) * branches(launch.model)).tolist()
    chunks = [order[start:end] for start, end in zip([0, *ends], ends, strict=False)]
    text = "/".join(["|".join(chunks), *prediction])
    kept = {name: value for name, value in settings.items() if not name.startswith(tuple(KEYS["in_pattern"]))}
    return kept | {"hybrid_layer_pattern": text}


def _read_hybrid_pipeline(settings: Mapping[str, Any]) -> str:
    """The chunks of a hybrid model's pattern as a layout; "" where it has none."""
    order, *prediction = str(settings.get("hybrid_layer_pattern", "")).split("/")
    chunks = "|".join("t" * len(chunk) for chunk in order.split("|"))
    return f"E{chunks}{'m' * len(prediction)}L" if "|" in order else ""


def _recomputation(launch: Launch) -> dict[str, Any]:
    """Settings of recomputation and of modules whose inputs hosts hold; or of layers whose activations they hold.

    Megatron Core combines layers on hosts with neither.
    """
    word, layers = launch["recompute"], int(launch["recompute_layers"])
    if word == "full":
        method = launch["recompute_method"] if layers else "uniform"
        counted = (layers or 1) * branches(launch.model)
        return {"recompute_granularity": "full", "recompute_method": method, "recompute_num_layers": counted}
    modules = [m.name for m in MODULES if launch[m.column] or (m.selective and word == "selective")]
    offloaded = [m.name for m in OFFLOAD_MODULES if launch[m.column]]
    settings = {**KEYS["offload"], "offload_modules": offloaded} if offloaded else {}
    settings |= {name: launch[name] for name in ("activation_offload_fraction",) if offloaded and launch[name] < 1}
    if modules:
        return {**settings, "recompute_granularity": "selective", "recompute_modules": modules}
    away = int(float(launch["offload_activations"]) * launch.model.num_layers + 1e-6) % int(launch.model.num_layers)
    return settings | ({"cpu_offloading_num_layers": away} if away and launch["pp"] == 1 else {})


def _of_columns(launch: Launch) -> dict[str, Any]:
    """Settings of the optimizer, of its memory and of overlapped communication."""
    rows = KEYS["of_columns"]
    met = conditions_met({name: row["where"] for name, row in rows.items()}, launch.model, launch.points)
    settings = {name: value for row in met for name, value in rows[row]["settings"].items()}
    settings = {name: value for name, value in settings.items() if value is not None}
    settings |= {"sequence_parallel": True} if launch.sequence_parallel else {}
    if launch["shard_replicas"] > 1:
        settings["num_distributed_optimizer_instances"] = int(launch["shard_replicas"])
        settings |= MEGATRON.word("outer_dp_sharding_strategy", launch["outer_dp_sharding_strategy"])
    if launch["offload_optimizer"]:
        settings |= {"optimizer_cpu_offload": True, "optimizer_offload_fraction": float(launch["offload_optimizer"])}
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


def _read_graphs(settings: Mapping[str, Any], model: ModelShape) -> dict[str, Any]:
    """CUDA graphs; no column for graphs that leave out more of a layer than routed experts."""
    asked = f"{settings.get('cuda_graph_impl', 'none')} {settings.get('cuda_graph_modules')}"
    words = {*re.findall(r"\b(?:none|full_iteration|moe_router|attn|mamba|mlp)\b", asked)}
    if words & {"none", "full_iteration"}:
        return {"cuda_graphs": "none" if "none" in words else "full_iteration"}
    needed = {*conditions_met(KEYS["graphs"], model)} - {"moe_preprocess"}
    return {"cuda_graphs": "layers"} if not words or words >= needed else {}


def launch_of(settings: Mapping[str, Any], *, world_size: int, node_size: int,
              name: str) -> tuple[Launch, list[str]]:  # fmt: skip
    """The launch that settings describe, with Megatron-LM's defaults, and notes on settings read otherwise.

    Raises `DseError` if settings contradict each other, or say too little.
    """
    for setting in KEYS["choices"].keys() & {key for key, value in settings.items() if value}:
        of_kind(setting, settings[setting], KEYS["choices"][setting])
    model = settings_model(settings, name)
    design: dict[str, Any] = {column: int(settings.get(s, 1)) for s, column in SIZES.items()}
    design |= {column: int(settings[s]) for s, column in KEYS["counts"].items() if s in settings}
    design |= {column: True for s, column in KEYS["switches"].items() if settings.get(s)}
    design["vpp"] = 1
    design |= _read_pipeline(settings, design, model.num_layers)
    if layout := settings.get("pipeline_model_parallel_layout") or _read_hybrid_pipeline(settings):
        design |= even_or_written(model, design, str(layout))
    design |= _read_recomputation(settings) | _read_optimizer(settings)
    design |= _read_overlaps(settings, design)
    design |= _read_attention(settings) | read_peft(settings, MEGATRON, model) | _read_graphs(settings, model)
    if settings.get("fine_grained_activation_offloading"):
        design |= {m.column: True for m in OFFLOAD_MODULES if m.name in settings.get("offload_modules", ())}
        design["activation_offload_fraction"] = settings.get("activation_offload_fraction", 1.0)
    if settings.get("cpu_offloading_num_layers") and settings.get("cpu_offloading", True):
        design["offload_activations"] = settings["cpu_offloading_num_layers"] / model.num_layers
    if model.num_experts:
        design |= _read_experts(settings, design)
    ends = [design.get(f"{end}_stage_layers", 0) for end in ("first", "last")]
    if sum(ends) == model.num_layers and design["pp"] == 2:
        design.pop("last_stage_layers")  # the first stage decides
    known = DesignPoints.domains(model.blocks)
    notes = [f"{column}: of no effect on this model" for column in design if column not in (*known, "ep")]
    design = {name: value for name, value in design.items() if value is not None and name in known}
    design |= batch(settings, design, world_size)
    notes += [] if "cuda_graphs" in design else ["CUDA graphs of some modules alone: the host launches all kernels"]
    return replace(Launch.of(model, design, node_size), settings=dict(settings)), [*_otherwise(settings), *notes]


def of_kind(name: str, value: Any, kind: str) -> Any:
    """The value of a setting of a kind, such as "a whole number" or "one of a, b"; `DseError` for other values."""
    read: Any = scalar(value.replace("_", "")) if isinstance(value, str) and "number" in kind else value
    is_number = type(read) in (int, float) and abs(read) < 2**53
    fits = {
        "a whole number": is_number and read % 1 == 0,
        "a number": is_number,
        "true or false": read in (0, 1),
        "a list": isinstance(read, list),
        "a text": isinstance(read, str),
    }
    if not fits.get(kind, read in kind.removeprefix("one of ").split(", ")):
        raise DseError(f"{name}: {shortened(repr(value))}: expected {kind}")
    return int(read) if kind == "a whole number" else read


def batch(settings: Mapping[str, Any], design: Mapping[str, Any], world_size: int) -> dict[str, int]:
    """Replicas (1 where chips are 0) and micro-batches, which must be whole. Raises `DseError` if they are not."""
    sizes = {name: design.get(name, 1) for name in ("tp", "cp", "pp", "ep", "etp", "micro_batch_size")}
    for name, size in sizes.items():
        if size < 1:
            raise DseError(f"{name}: {size}: expected a whole number from 1")
    group, experts = sizes["tp"] * sizes["cp"], sizes["ep"] * sizes["etp"]
    for words, size in (("tp * cp * pp", group * sizes["pp"]), ("pp * ep * etp", sizes["pp"] * experts)):
        if world_size % size:
            raise DseError(f"{world_size:,} chips: expected a multiple of {words} = {size}; --gpus N names others")
    dp, micro = (world_size // (group * sizes["pp"]) or 1), sizes["micro_batch_size"]
    total = int(settings.get("global_batch_size", dp * micro if world_size else 0))
    if schedule := " ".join(settings.get("step_batch_size_schedule", ())):
        total = of_kind("step_batch_size_schedule", schedule.rpartition(":")[2], "a whole number")
    steps, rest = divmod(total, dp * micro)
    if rest or not steps:
        factors = f"dp * micro-batch = {dp} * {micro} on {world_size:,} chips"
        raise DseError(f"global batch of {total:,}: expected a multiple of {factors}")
    return {"dp": dp, "gradient_accumulation_steps": steps}


def _read_pipeline(settings: Mapping[str, Any], design: Mapping[str, Any], layers: float) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if "num_virtual_stages_per_pipeline_rank" in settings:
        columns["vpp"] = int(settings["num_virtual_stages_per_pipeline_rank"])
    elif (key := "num_layers_per_virtual_pipeline_stage") in settings:
        counted = layers + sum(bool(design.get(f"count_{end}")) for end in ("embedding", "loss"))
        chunk = int(settings[key])
        if chunk < 1 or counted % (chunk * design["pp"]):
            raise DseError(f"{key}: {counted:g} layers do not divide into chunks of {chunk} on {design['pp']} stages")
        columns["vpp"] = int(counted // (chunk * design["pp"]))
    if settings.get("use_tp_pp_dp_mapping"):
        columns["rank_order"] = "tp_cp_pp_dp"
    return columns


def _read_recomputation(settings: Mapping[str, Any]) -> dict[str, Any]:
    word = "selective" if settings.get("recompute_activations") else settings.get("recompute_granularity")
    if word == "full":
        layers = int(settings.get("recompute_num_layers", 1))
        method = settings.get("recompute_method", "uniform")
        alone = method == "uniform" and layers == 1
        return {"recompute": "full"} | ({} if alone else {"recompute_method": method, "recompute_layers": layers})
    if word != "selective":
        return {}
    modules = settings.get("recompute_modules", ["core_attn"])
    known = {module.name: module for module in MODULES}
    columns: dict[str, Any] = {known[m].column: True for m in modules if m in known and not known[m].selective}
    return columns | ({"recompute": "selective"} if "core_attn" in modules else {})


def _read_optimizer(settings: Mapping[str, Any]) -> dict[str, Any]:
    zero = MEGATRON.runs["zero"].words
    stages = {zero[stage]["data_parallel_sharding_strategy"]: int(stage) for stage in ("2", "3")}
    columns: dict[str, Any] = {}
    if settings.get("use_megatron_fsdp"):
        strategy = settings.get("data_parallel_sharding_strategy", "optim_grads_params")
        columns["zero"] = {**stages, "optim": 1, "no_shard": 0}.get(str(strategy), 3)
    elif settings.get("use_torch_fsdp2"):
        columns["zero"] = 3
        columns["reshard_after_forward"] = bool(settings.get("torch_fsdp2_reshard_after_forward", True))
    elif settings.get("use_distributed_optimizer") or settings.get("optimizer") == "dist_muon":
        columns["zero"] = 1
    if settings.get("num_distributed_optimizer_instances", 1) != 1:
        columns["shard_replicas"] = int(settings["num_distributed_optimizer_instances"])
        if settings.get("use_megatron_fsdp"):
            columns["outer_dp_sharding_strategy"] = settings.get("outer_dp_sharding_strategy")
    if "muon" in str(settings.get("optimizer", "adam")):
        columns["optimizer"] = "muon"
    if settings.get("optimizer_cpu_offload"):  # HybridDeviceOptimizer keeps all states in fp32
        columns["offload_optimizer"] = float(settings.get("optimizer_offload_fraction", 1.0))
    elif settings.get("use_precision_aware_optimizer"):
        columns["store_param_remainders"] = settings.get("main_params_dtype", "fp32") == "fp32"
        columns["moments"] = "bf16" if settings.get("exp_avg_dtype") in ("bf16", "fp16") else "fp32"
    sums_in_fp32 = settings.get("accumulate_allreduce_grads_in_fp32") or not settings.get("fp16")
    # all of 16 bits; FSDP2 reduces gradients in the format of weights (torch_fully_sharded_data_parallel.py)
    if settings.get("grad_reduce_in_bf16") or settings.get("use_torch_fsdp2") or not sums_in_fp32:
        columns["gradient_reduction"] = "bf16"
    if settings.get("gradient_accumulation_fusion") is False:
        columns["gradient_accumulation_fusion"] = False
    return columns


def _read_overlaps(settings: Mapping[str, Any], design: Mapping[str, Any]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    if settings.get("sequence_parallel"):  # of no effect where tp is 1, until it is changed
        columns["sharding"] = "megatron_sp"
    if settings.get("overlap_grad_reduce") and not settings.get("overlap_param_gather"):
        sharded = any(settings.get(s) for s in ("use_distributed_optimizer", "use_megatron_fsdp"))
        columns |= {"overlap_param_gather": False} if sharded else {}
    if settings.get("tp_comm_overlap") and design["tp"] > 1:
        columns["tp_overlap"] = "chunked"
    elif design["tp"] > 1 and design.get("overlap_ep"):
        columns["tp_overlap"] = "none"  # its exchanges need the order of launches that they overlap in (`variables`)
    if design["vpp"] > 1 and design["pp"] > 1 and settings.get("overlap_p2p_comm", True):
        columns["overlap_p2p"] = True
    if design["cp"] > 1:
        given = settings.get("cp_comm_type", "p2p")
        columns["cp_communication"] = MEGATRON.value("cp_communication", given, "p2p")
        sizes = settings.get("hierarchical_context_parallel_sizes")
        if columns["cp_communication"] == "a2a_p2p" and sizes:
            if not re.fullmatch("[1-9][0-9]{0,8}", str(sizes[0])):
                raise DseError(f"hierarchical_context_parallel_sizes: {sizes[0]!r}: expected sizes, such as 8 2")
            columns["cp_a2a"] = int(sizes[0])
    return columns


def _read_attention(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Number format, attention kernel and kernels of the loss."""
    columns: dict[str, Any] = {"precision": "fp16" if settings.get("fp16") else "bf16"}
    if settings.get("fp4"):
        columns["precision"] = "nvfp4"
    elif settings.get("fp8"):
        formats = MEGATRON.runs["precision"].words
        recipes = {option["fp8_recipe"]: word for word, option in formats.items() if "fp8_recipe" in option}
        columns["precision"] = recipes.get(str(settings.get("fp8_recipe", "delayed")), "fp8_tensorwise")
    fused = settings.get("cross_entropy_loss_fusion")
    columns["cross_entropy"] = settings.get("cross_entropy_fusion_impl", "native") if fused else "megatron"
    backend = settings.get("attention_backend")
    sparse = settings.get("experimental_attention_variant"), settings.get("dsa_kernel_backend", "none")
    if "local" in (backend, settings.get("transformer_impl")) or backend == "unfused" or sparse == ("dsa", "none"):
        columns["attention"] = "unfused"
    elif backend == "flash" and str(settings.get("flash_attention_version")) == "2":
        columns["attention"] = "flash_attention_2"
    else:
        columns["attention"] = "fused_fp8" if settings.get("fp8_dot_product_attention") else "fused"
    return columns


def _read_experts(settings: Mapping[str, Any], design: Mapping[str, Any]) -> dict[str, Any]:
    dispatcher = settings.get("moe_token_dispatcher_type", "allgather")
    return {
        "etp": int(settings.get("expert_tensor_parallel_size", design["tp"])),
        "dispatcher": MEGATRON.value("dispatcher", dispatcher, "all_to_all"),
        "capacity_factor": settings.get("moe_expert_capacity_factor") or None,
    }


def _otherwise(settings: Mapping[str, Any]) -> list[str]:
    """Settings that are read with another meaning."""
    stated, formats = settings.get, ("bf16", "fp16", "fp8", "fp4")
    balance = stated("moe_router_load_balancing_type", BALANCES[0])
    in_flight = stated("fine_grained_offloading_max_inflight_offloads", 1)
    known = {"recompute_modules": {m.name for m in MODULES}, "offload_modules": {m.name for m in OFFLOAD_MODULES}}
    unknown = {name: [m for m in stated(name) or () if m not in names] for name, names in known.items()}
    masks = float(stated("micro_batch_size", 1)) * float(stated("seq_length", 0)) ** 2
    missing = {name: row for name, row in KEYS["missing"].items() if (stated(name) or "none") == "none"}
    lines = {
        "position_embedding_type alibi is read as none": stated("position_embedding_type") == "alibi",
        "fp8_recipe delayed is read as tensorwise": stated("fp8") and stated("fp8_recipe", "delayed") == "delayed",
        f"experts balanced by {balance} are evaluated as uneven as with an auxiliary loss":
            balance not in BALANCES and not stated("moe_router_enable_expert_bias"),
        "of every group of layers the last is read as the one with experts, not the first":
            re.fullmatch("0*([2-9]|[1-9][0-9]+)", str(stated("moe_layer_freq", 1))),
        f"masks of attention, {masks / 1e9:.3g} GB, are not counted; set --no-create-attention-mask-in-dataloader":
            masks > 1e9 and stated("create_attention_mask_in_dataloader", True),
        **{f"without {name} {row['note']}": stated(row["with"]) for name, row in missing.items()},
        **{f"{name} {', '.join(modules)}: not modelled": modules for name, modules in unknown.items()},
        f"fine_grained_offloading_max_inflight_offloads {in_flight} is read as 1":
            in_flight != 1 and stated("fine_grained_activation_offloading"),
        "fp32, since neither --bf16 nor --fp16 is there, is read as bf16": not any(map(stated, formats)),
        "no vocabulary is stated: {:,.0f} entries{} are assumed; --set vocab_size=N names another".format(
            *usual_vocabulary(settings)
        ): not settings.keys() & {"vocab_size", "padded_vocab_size"},
        "its router balances experts by force: --set imbalance=1 evaluates them so":
            stated("moe_router_force_load_balancing"),
        f"step_batch_size_schedule {' '.join(stated('step_batch_size_schedule', ()))}: its last batch is evaluated":
            stated("step_batch_size_schedule"),
        f"optimizer {stated('optimizer')} is read as adam":
            stated("optimizer", "adam") not in ("adam", "muon", "dist_muon"),
    }  # fmt: skip
    return [line for line, holds in lines.items() if holds]
