"""Configurations of NeMo's Megatron-Bridge: written from designs, and read; those of NeMo 1 are read too.

A configuration is the YAML of a ConfigContainer: sections such as `model`, `train`, `optimizer` and `ddp`, whose keys
are mostly flags of Megatron-LM with underscores. So a design goes through the settings of `dse.adapters.megatron`, and
this module only moves them: into sections, under other names, and into objects such as the mixed precision, which
decides over `ddp` as well.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError
from costmodel.formats.input_files import data_beside, dump, parse
from dse.adapters.megatron.design import MEGATRON, launch_of, of_kind, settings_of, variables
from dse.adapters.megatron.launch import DATA, LISTS, NUMBERS, ON, SHARES, WORDS
from dse.adapters.megatron.model import KEYS, pattern, provider
from dse.launches.adapters import ADAPTER_PLACEHOLDERS, LORA_COLUMNS, peft_section
from dse.launches.launch import PLACEHOLDERS, Launch, NotExpressible, launch_text, with_line

VERSION: Final = "Megatron-Bridge 0.7"
#: The comment that starts a configuration: nodes, and chips of each.
_TORCHRUN: Final = re.compile(r"^#.*\btorchrun --nnodes (\d{1,7}) --nproc-per-node (\d{1,7})\b", re.MULTILINE)

NAMES: Final = data_beside(__file__)
#: Setting -> section and key, where they are not `model` and its own name.
PLACES: Final[Mapping[str, tuple[str, str]]] = {name: tuple(address) for name, address in NAMES["places"].items()}
#: Recipe of `mixed_precision` -> settings; it overrides settings of `ddp`.
RECIPES: Final[Mapping[str, Mapping[str, Any]]] = {
    name: {**MEGATRON.runs["precision"].words[word], **others} for name, (word, others) in NAMES["recipes"].items()
}
_KNOWN: Final = {*NUMBERS, *SHARES, *WORDS, *LISTS, *ON, "add_bias_linear", "gradient_accumulation_fusion",
          "tokenizer_model", "tokenizer_type", *KEYS["provider_settings"]}  # fmt: skip


def script(launch: Launch) -> tuple[str, list[str]]:
    """The configuration of a design, and the settings that it lacks.

    Raises `NotExpressible` if Megatron Core cannot run such a design.
    """
    settings, lost = settings_of(launch)
    if settings.get("use_megatron_fsdp") and settings.get("use_tp_pp_dp_mapping"):
        raise NotExpressible("zero=2 or 3 with rank_order=tp_cp_pp_dp: Megatron-Bridge does not combine them")
    if "hybrid_layer_pattern" in settings and launch["vpp"] > 1:  # hybrid_provider.py
        raise NotExpressible(
            f"vpp={launch['vpp']}: Megatron-Bridge has no virtual stages of hybrid models; take --format megatron"
        )
    if launch.model.learned_positions and launch.model.position_embedding == "learned":
        lost = [*lost, f"model: learned_positions={launch.model.learned_positions:g}"]
    content, peft = _sections(settings), peft_section(launch, MEGATRON)
    name, row = provider(launch.model), NAMES["built_in"].get(settings.get("built_in"), {"lost": []})
    lost = [*(text for text in lost if not text.startswith((*LORA_COLUMNS, *["model: "] * bool(name)))), *row["lost"]]
    content["tokenizer"] = {"tokenizer_type": "HuggingFaceTokenizer", "tokenizer_model": "TOKENIZER_MODEL"}
    content["dataset"] = {"seq_length": int(launch.model.seq_len), "blend": [["DATA_PATH"], None]}
    content["checkpoint"] = {"save": "CHECKPOINT_DIR", "load": "CHECKPOINT_DIR"}
    if peft:
        content |= {"peft": peft}
        content["checkpoint"]["pretrained_checkpoint"] = "PRETRAINED_CHECKPOINT"
    if settings.get("use_megatron_fsdp"):
        content["checkpoint"]["ckpt_format"] = "fsdp_dtensor"
    content["optimizer"]["lr"] = "LEARNING_RATE"
    content["train"]["train_iters"] = "TRAIN_STEPS"
    name = next((other for setting, other in NAMES["providers_of"].items() if setting in settings), name)
    model = f", with {name} as its model" if name.endswith("Provider") else ""
    program = "finetune.py" if peft else "pretrain.py"
    lines = [
        f"# {launch.heading} on {launch.world_size:,} chips, for {VERSION}:",
        " ".join(["#", *variables(launch, settings), launch.torchrun, program, "--config-file THIS_FILE"]),
        f"# (it overrides vanilla_gpt_pretrain_config of megatron.bridge.recipes.gpt{model})",
        *(f"# Megatron-Bridge has no setting for: {text}" for text in lost),
        "# Fill in what the design does not decide:",
        *(f"#   {name}: {text}" for name, text in (PLACEHOLDERS | (ADAPTER_PLACEHOLDERS if peft else {})).items()),
    ]
    return "\n".join(lines) + "\n" + dump(content), lost


def _sections(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings in the sections of a configuration."""
    sections: dict[str, dict[str, Any]] = {"model": {}, "train": {}, "ddp": {}, "optimizer": {}}
    left = {name: value for name, value in settings.items() if name not in NAMES["implied"]}
    sections["model"] |= _provided(left)
    sections["mixed_precision"] = _mixed_precision(left)
    model = sections["model"]
    for name, keys in NAMES["activations"].items():
        model |= keys if left.pop(name, False) else {}
    if left.pop("untie_embeddings_and_output_weights", False):
        model["share_embeddings_and_output_weights"] = False
    if "window_size" in left:
        model["window_size"] = [int(size) for size in left.pop("window_size").split(",")]
    if "moe_layer_freq" in left:
        model["moe_layer_freq"] = pattern(left.pop("moe_layer_freq"))
    model |= {"apply_rope_fusion": False} if left.pop("no_rope_fusion", False) else {}
    model |= {"cpu_offloading": True} if "cpu_offloading_num_layers" in left else {}
    if "cuda_graph_impl" in left:
        model["use_te_rng_tracker"], sections["ddp"]["check_for_nan_in_grad"] = True, False
    chunks = left.get("hybrid_layer_pattern", "").count("|") + 1
    stages, several = left["pipeline_model_parallel_size"], "num_virtual_stages_per_pipeline_rank" in left
    if left.pop("overlap_p2p_comm", True) and stages > 1 and (several or chunks > stages or "layout" in str(left)):
        model |= {"overlap_p2p_comm": True, "batch_p2p_comm": False}
    # Megatron-Bridge pads no table that a file names, and fuses the loss
    model |= {"vocab_size": left.pop("padded_vocab_size"), "should_pad_vocab": False}
    model["cross_entropy_loss_fusion"] = False
    for name, value in left.items():
        latent = settings.get("multi_latent_attention") or name not in NAMES["plain_yarn"]
        section, key = PLACES.get(name, ("model", name)) if latent else ("model", NAMES["plain_yarn"][name])
        sections.setdefault(section, {})[key] = _written_value(name, value)
    return sections


def _provided(left: dict[str, Any]) -> dict[str, Any]:
    """Keys of the model that its provider has in place of settings, which are taken out; {} of other models."""
    if row := NAMES["built_in"].get(left.pop("built_in", "")):
        for setting in (*row["without"], *row["keys"]):
            left.pop(setting, None)
        return dict(row["keys"])
    numerics = {setting: left.pop(setting) for setting in KEYS["provider_settings"] if setting in left}
    if not (name := numerics.pop("provider", "")):
        return {}
    if "layer_spec" in name:
        return {"transformer_layer_spec": NAMES["layer_spec"]}
    left["geglu"], every = left.pop("quick_geglu"), left.pop("window_attn_skip_freq")
    scale = numerics.pop("query_pre_attn_scalar", left["kv_channels"])
    if name == "Gemma2ModelProvider":
        return {**numerics, "query_pre_attn_scalar": scale}
    return {
        "interleaved_attn_pattern": [every - 1, 1],
        "window_size": int(left.pop("window_size").split(",")[0]) + 1,
        "rotary_base": [numerics["local_rotary_base"], left.pop("rotary_base")],
        "softmax_scale": scale**-0.5,
        "rope_scaling_factor": left.pop("rotary_seq_len_interpolation_factor", 1),
    }


def _of_provider(content: Mapping[str, Any]) -> Mapping[str, Any]:
    """A configuration of a provider with the keys of other models; others as they are."""
    model = content["model"]
    for name, row in NAMES["built_in"].items():
        if all(model.get(key) == value for key, value in row["keys"].items()):
            kept = {key: value for key, value in model.items() if key not in row["keys"]}
            return {**content, "model": kept | {"built_in": name}}
    if other := [row["key"] for row in NAMES["built_in"].values() if row["key"] in model]:
        raise DseError(f"{other[0]}: dse reads that of {', '.join(NAMES['built_in'])} alone")
    said, known = f"{model.get('_target_')} {model.get('transformer_layer_spec')}", NAMES["providers"]
    if "hybrid_layer_pattern" in model:
        model = {**NAMES["hybrid_usual"], **model}
    marked = (name for name, row in known.items() if row["key"] in model or any(word in said for word in row["words"]))
    if not (name := next(marked, "")):
        return {**content, "model": model}
    model = {**known[name]["usual"], **model, "provider": name}
    model.pop("transformer_layer_spec", None)
    if kinds := model.pop("interleaved_attn_pattern", None):
        local, base = model["rotary_base"]
        model |= {"window_size": [model["window_size"] - 1, 0], "window_attn_skip_freq": sum(kinds),
                  "rotary_base": base, "local_rotary_base": local}  # fmt: skip
        scale, factor = round(model.pop("softmax_scale") ** -2, 6), model.pop("rope_scaling_factor")
        model |= {"seq_len_interpolation_factor": factor} if factor != 1 else {}
        model |= {"query_pre_attn_scalar": scale} if scale != model.get("kv_channels") else {}
    return {**content, "model": model}


def _mixed_precision(left: dict[str, Any]) -> dict[str, Any]:
    """Number formats, which are taken out of the settings: an object, since it decides over `ddp`."""
    kind = {"_target_": "torch.float16" if left.get("fp16") else "torch.bfloat16", "_call_": False}
    return {
        "_target_": "megatron.bridge.training.mixed_precision.MixedPrecisionConfig",
        **{name: left.pop(name) for name in NAMES["mixed_precision"] if name in left},
        "params_dtype": kind,
        "pipeline_dtype": kind,
        "grad_reduce_in_fp32": left.pop(
            "accumulate_allreduce_grads_in_fp32", not left.pop("grad_reduce_in_bf16", False)
        ),
    }


def _written_value(name: str, value: Any) -> Any:
    """A value as configurations write it: objects by their names in Python."""
    if name.endswith("_dtype"):
        return {"_target_": NAMES["dtypes"][value], "_call_": False}
    if name == "attention_backend":
        return {"_target_": "megatron.core.transformer.enums.AttnBackend", "_args_": [NAMES["backends"][value]]}
    return value


def read_script(path: Path, chips: int | None = None) -> tuple[Launch, list[str]]:
    """The launch of a configuration of Megatron-Bridge, and notes on keys that are not read.

    Chips are `chips`, else those of the `torchrun` in its comments; 0 are those of one replica. [-]

    Raises `DseError` if it is no such file, or says too little.
    """
    text = launch_text(path)
    started = _TORCHRUN.search(text)
    chips = int(started[1]) * int(started[2]) if started and chips is None else chips
    if chips is None:
        raise DseError(f"{path}: does not say on how many chips; name them with --gpus N")
    content = parse(text, str(path)).data
    sections = {"model": content.get("model") or "", **{name: content.get(name) or {} for name in NAMES["sections"]}}
    if wrong := [name for name, part in sections.items() if not isinstance(part, dict)]:
        raise DseError(f"{path}: {wrong[0]}: expected a section of this name, as Megatron-Bridge has it")
    try:
        as_today = _of_nemo_1 if "encoder_seq_length" in content["model"] else _of_provider
        settings, unread = _settings(as_today(content))
        settings["peft"] = content.get("peft")
        launch, notes = launch_of(settings, world_size=chips, node_size=8, name=path.stem)
    except (DseError, ValueError, TypeError) as error:
        raise DseError(f"{path}: {with_line(str(error), text)}") from None
    return launch, [*notes, *([f"not read: {' '.join(unread)}"] if unread else [])]


def _of_nemo_1(content: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration of NeMo 1 as Megatron-Bridge has it: batches, optimizer and number formats stood in `model`."""
    model = {NAMES["nemo_1"].get(key, key): value for key, value in content["model"].items()}
    model.setdefault("cross_entropy_loss_fusion", False)
    if times := re.fullmatch(r"\$\{multiply: *(\d+), *\$\{\.hidden_size\}\}", str(model.get("ffn_hidden_size"))):
        model["ffn_hidden_size"] = int(times[1]) * model["hidden_size"]
    gate, optim = str(model.get("activation", "gelu")).removeprefix("fast-"), model.get("optim") or {}
    of_kind("activation", gate, "one of gelu, swiglu, geglu, squared-relu")
    word, number = str(model.get("normalization", "layernorm")), str((content.get("trainer") or {}).get("precision"))
    model |= {"gated_linear_unit": gate in ("swiglu", "geglu"), "activation_func": gate.replace("-", "_"),
              "normalization": NAMES["nemo_1_words"].get(word, word), "should_pad_vocab": True,
              "layernorm_zero_centered_gamma": word == "layernorm1p"}  # fmt: skip
    precision = {"bf16": not number.startswith("16"), "fp16": number.startswith("16"), "fp8_recipe": "delayed",
                 "fp8": "hybrid" if model.pop("fp8", False) else None,
                 "grad_reduce_in_fp32": optim.get("grad_sync_dtype") not in ("bf16", 16)}  # fmt: skip
    ddp = {f"overlap_{today}": optim.get(f"overlap_{key}") for today, key in NAMES["nemo_1_overlaps"].items()}
    ddp["use_distributed_optimizer"] = "distributed" in str(optim.get("name"))
    train = {key: model.pop(key, None) for key in ("micro_batch_size", "global_batch_size")}
    tokenizer = {f"tokenizer_{key}": value for key, value in (model.get("tokenizer") or {}).items()}
    return {"model": model, "train": train, "ddp": ddp, "mixed_precision": precision, "tokenizer": tokenizer}


def _settings(content: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Settings of a configuration, and keys that may change the cost and are not read."""
    names = {at: name for name, at in PLACES.items()}
    names |= {("model", key): name for name, key in NAMES["plain_yarn"].items()}
    settings: dict[str, Any] = dict(NAMES["usual"])
    unread: list[str] = []
    precision = content.get("mixed_precision") or "bf16_mixed"
    if not isinstance(precision, dict):
        word = of_kind("mixed_precision", str(precision).replace("-", "_"), f"one of {', '.join(RECIPES)}")
        content = {**content, "mixed_precision": RECIPES[word]}
    for section in ("model", *NAMES["sections"], "mixed_precision"):
        for key, value in (content.get(section) or {}).items():
            name = names.get((section, key), key)
            if name in _KNOWN and value is not None:
                settings[name] = _read_value(name, value)
            elif value is None or key in NAMES["otherwise"] or str(value) in DATA["not_read"].get(key, ("False",)):
                continue
            elif section == "model" or key in DATA["not_read"] or key in NAMES["packing"]:
                unread.append(f"{section}.{key}")
    settings |= _renamed(content)
    overlap = content.get("comm_overlap")
    return settings | (_overlaps(overlap, settings) if overlap else {}), unread


def _overlaps(asked: Mapping[str, Any], settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a section `comm_overlap` replaces when a run is set up (training/comm_overlap.py)."""
    usual = {**NAMES["overlaps"], "overlap_p2p_comm": "num_virtual_stages_per_pipeline_rank" in settings}
    usual |= NAMES["sharded_overlaps"] if settings.get("use_distributed_optimizer") else {}
    return usual | {name: asked[name] for name in usual if asked.get(name) is not None}


def _read_value(name: str, value: Any) -> Any:
    """A value as flags have it."""
    if isinstance(value, dict):
        chosen = value.get("_args_")
        words = {str([code]): word for word, code in NAMES["backends"].items()}
        value = words.get(str(chosen), "auto") if name == "attention_backend" else value.get("_target_")
    if name.endswith("_dtype"):
        return {full: word for word, full in NAMES["dtypes"].items()}.get(str(value), str(value))
    if name == "moe_layer_freq" and isinstance(value, list):
        return f"[{','.join(str(item) for item in value)}]"
    if name in ON:
        return of_kind(name, value, "true or false")
    if name in (*NUMBERS, *SHARES):
        return of_kind(name, value, "a whole number" if name in NUMBERS else "a number")
    if name == "pipeline_model_parallel_layout" and isinstance(value, list):
        chunks = (chunk if isinstance(chunk, list) else [chunk] for chunk in value)
        return "|".join("".join(NAMES["layout"].get(str(word), str(word)) for word in chunk) for chunk in chunks)
    if name == "window_size":
        return ",".join(str(item) for item in value) if isinstance(value, list) else str(value)
    return value


def _renamed(content: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that a configuration names or nests differently from flags."""
    model = content["model"]
    seq_len = model.get("seq_length", 1024)
    settings: dict[str, Any] = {"max_position_embeddings": seq_len, "seq_length": seq_len}
    if (told := (content.get("dataset") or {}).get("seq_length", seq_len)) != seq_len:
        raise DseError(f"dataset.seq_length {told}: expected that of the model, {seq_len}")
    if not model.get("num_query_groups"):
        settings["group_query_attention"] = False
    gated = of_kind("gated_linear_unit", model.get("gated_linear_unit") or False, "true or false")
    if not re.search(r"None|glu|gelu|silu|relu|swish", activation := str(model.get("activation_func"))):
        raise DseError(f"activation_func: {activation}: not known; expected torch.nn.functional.silu, for example")
    quick, squared = "quick_gelu" in activation, "squared_relu" in activation
    settings |= {"swiglu": gated and not quick, "quick_geglu": gated and quick, "squared_relu": squared}
    tied = model.get("share_embeddings_and_output_weights", True) or False
    settings["untie_embeddings_and_output_weights"] = not of_kind("share_embeddings", tied, "true or false")
    settings |= {name: bool(model.get(name)) for name in ("overlap_p2p_comm", "cpu_offloading")}
    settings["cuda_graph_modules"] = model.get("cuda_graph_modules") or model.get("cuda_graph_scope") or []
    padded = of_kind("should_pad_vocab", model.get("should_pad_vocab") or False, "true or false")
    settings["make_vocab_size_divisible_by"] = model.get("make_vocab_size_divisible_by", 128) if padded else 1
    precision = content["mixed_precision"]
    settings |= {name: precision[name] for name in NAMES["mixed_precision"] if precision.get(name)}
    wide = precision.get("grad_reduce_in_fp32", True)
    return {**settings, "accumulate_allreduce_grads_in_fp32" if wide else "grad_reduce_in_bf16": True}
