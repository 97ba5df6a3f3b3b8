"""Configurations of MaxText: written from designs, and read; models as their keys.

Keys are those of AI-Hypercomputer/maxtext `src/maxtext/configs/base.yml` (commit e591f30cb of 2026-08-22). Scripts that
start MaxText state them behind its configuration (`base.yml KEY=VALUE ...`), perhaps in a command for xpk.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from math import gcd, lcm, log2, prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from costmodel.errors import DseError, suggestion
from costmodel.formats.framework_file import launching
from costmodel.formats.input_files import data_beside, dump, parse, scalar
from costmodel.formats.model_file import load_model, model_names
from costmodel.formats.shipped import current_name
from costmodel.training.dimensions import Numerics
from costmodel.training.model import ModelShape
from dse.adapters.megatron.design import of_kind
from dse.adapters.megatron.launch import followed
from dse.launches.launch import (
    MOST_OF_A_HOST,
    PLACEHOLDERS,
    Launch,
    NotExpressible,
    launch_text,
    refuse,
    script_file,
    with_line,
)
from dse.spaces.sections.frameworks import conditions_met, is_same

#: Keys of the program and fields of models, from `keys.yaml`, which describes each table.
KEYS: Final[Mapping[str, Any]] = data_beside(__file__, "keys.yaml")
SIZES: Final[dict[str, str]] = KEYS["sizes"]
EXPERTS: Final[dict[str, str]] = KEYS["experts"]
PATTERNS: Final[Mapping[str, Any]] = KEYS["patterns"]
#: Key -> kind of its values.
KINDS: Final = {key: kind for kind, keys in KEYS["kinds"].items() for key in keys.split()}


def model_keys(model: ModelShape) -> dict[str, Any]:
    """The model in MaxText's keys, or its name. Raises `NotExpressible` if MaxText has none for its layers."""
    named = (name for name, known in KEYS["models"].items() if is_same(load_model(known), model))
    if name := next(named, ""):
        return {"model_name": name, "max_target_length": int(model.seq_len), **KEYS["beside"][name]}
    keys: dict[str, Any] = {key: int(getattr(model, field)) for key, field in SIZES.items() if getattr(model, field)}
    if model.num_experts:
        keys |= {key: int(getattr(model, field)) for key, field in EXPERTS.items()}
        keys["shared_experts"] = int(model.shared_ffn_hidden_size // model.moe_ffn_hidden_size)
        keys["routed_bias"] = model.router_bias and block(model) == "deepseek"
        if _experts_alone(model):  # where MaxText wants the same
            keys["base_mlp_dim"] = keys["base_moe_mlp_dim"]
        groups = {key: int(getattr(model, field)) for key, field in KEYS["groups"].items()}
        keys |= groups if model.routing_groups else {}
        if block(model) == "qwen3_moe":
            keys["norm_topk_prob"] = not model.numerics.router_pre_softmax
    if model.attention == "mla":
        keys |= {"attention_type": "mla", **{name: int(getattr(model, name)) for name in KEYS["latent"]}}
    gate = KEYS["gates"].get(model.numerics.gate, "silu")
    learned = model.position_embedding == "learned"
    if (style := block(model)) in PATTERNS:
        keys |= {key: int(getattr(model, field)) for key, field in PATTERNS[style][1].items()}
        keys |= {"gdn_key_head_dim": int(model.features["delta_key"])} if "gdn_key_head_dim" in keys else {}
    if style == "gemma2":  # a layer there is one with a window and one without
        keys["base_num_decoder_layers"] = int(model.num_layers // 2)
    if style == "llama4":
        cycle = lcm(int(model.full_attention_every), int(model.moe_layer_freq))
        keys |= {"inhomogeneous_layer_cycle_interval": cycle, "use_qk_norm": model.numerics.qk_l2_norm}
    keys.setdefault("use_qk_norm", model.qk_norm)
    numerics = _numerics_keys(model.numerics, latent=model.attention == "mla")
    keys |= {key: value for key, value in numerics.items() if KEYS["of_one_block"].get(key, style) == style}
    return keys | {
        "mlp_activations": [gate, "linear"] if model.gated_mlp else [model.activation],
        "decoder_block": style,
        "logits_via_embedding": model.tied_embeddings,
        "enable_dropout": model.dropout,
        "attention_bias": bool(model.qkv_bias),
        "trainable_position_size": int(model.learned_positions or model.seq_len) if learned else -1,
        **KEYS["beside"].get(style, {}),
    }


def _experts_alone(model: ModelShape) -> bool:
    """True if all layers have experts."""
    return model.num_experts > 0 and not model.first_dense_layers and model.moe_layer_freq == 1


def _numerics_keys(numerics: Numerics, *, latent: bool) -> dict[str, Any]:
    """Constants of functions; of the scaled rotations only those that MaxText reads."""
    said = {key: getattr(numerics, field) for key, field in KEYS["numerics"].items()}
    plain = {key: int(v) if float(v).is_integer() else v for key, v in said.items()}
    keys = {key: value for key, value in plain.items() if value or key in KEYS["always"]}
    if not latent:  # without a loss it balances experts of DeepSeek's block alone
        keys.pop("routed_bias_update_rate", None)
    keys["rope_type"] = KEYS["ropes"][numerics.rotary_scaling]
    if numerics.router_score != "softmax":
        keys["routed_score_func"] = numerics.router_score
    if numerics.glu_clamp:
        keys["mlp_activations_limit"] = numerics.glu_clamp
    if numerics.rotary_scaling == "linear":
        keys["rope_linear_scaling_factor"] = numerics.rotary_scaling_factor
    if numerics.rotary_scaling == "yarn":
        keys |= {key: int(getattr(numerics, field)) for key, field in KEYS["yarn"].items() if key != "mscale"}
        positions = numerics.rotary_scaling_factor * numerics.original_positions
        keys |= {"mscale": numerics.yarn_mscale, "max_position_embeddings": int(positions)}
    if latent or numerics.rotary_scaling == "yarn":
        keys["rope_interleave"] = numerics.rotary_interleaved
    return keys


def block(model: ModelShape) -> str:
    """MaxText's decoder block of a model. Raises `NotExpressible` if it has none."""
    several = model.window or model.linear_attention != "none"
    for style, (same, _) in PATTERNS.items() if several else ():
        if all(getattr(model, field) == value for field, value in same.items()):
            return style
    if model.layers or model.layer_order or several or model.parallel_block:
        raise NotExpressible(f"model {model.name}: dse writes no decoder block of MaxText with its layers")
    return conditions_met(KEYS["blocks"], model)[0]


def model_losses(model: ModelShape) -> list[str]:
    """Fields of a model that its keys do not give back, as `field=value`."""
    back = keys_model(model_keys(model), model.name)
    silent = {"name", "title", "numerics", "features", "layers", "vocab_multiple", "document_len"}
    silent |= {"activation"} if model.gated_mlp else set()
    silent |= set() if model.numerics.router_aux_loss else {"router_balance"}
    silent |= {"ffn_hidden_size"} if _experts_alone(model) else set()
    sides = ((model, back), (model.numerics, back.numerics))
    kept = [(field.name, *pair) for pair in sides for field in fields(pair[0]) if field.name not in silent]
    lost = [f"{name}={getattr(one, name)}" for name, one, other in kept if getattr(one, name) != getattr(other, name)]
    lost += [f"vocab_multiple={model.vocab_multiple:g}"] if model.vocab_multiple > 1 else []
    return [f"model: {text}" for text in lost]


def keys_model(keys: Mapping[str, Any], name: str) -> ModelShape:
    """The model that keys describe, with the defaults of base.yml.

    Raises `DseError` if it is one of MaxText's by name that is not known, or of a decoder block that is not.
    """
    known = str(keys.get("model_name", "default"))
    if known != "default" and "base_emb_dim" not in keys:
        return _named(known, keys)
    given = {**KEYS["defaults"], **keys}
    doublings = int(log2(int(of_kind("global_parameter_scale", str(given["global_parameter_scale"]), KEYS["scales"]))))
    given |= {key: given.get(key, 0) * 2 ** ((doublings + more) // 3) for key, more in KEYS["scaled"].items()}
    style = str(given["decoder_block"])
    blocks = ("llama2", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "deepseek", "gpt3", *PATTERNS)
    if style not in blocks:
        raise DseError(f"decoder_block {style}: not known{suggestion(style, blocks)}")
    sizes: dict[str, Any] = {field: float(given.get(key, 0)) for key, field in SIZES.items()}
    plain = style == "gpt3"
    first, *gated = map(str, given["mlp_activations"])
    latent = given.get("attention_type") == "mla" or style == "deepseek"
    positions = float(given.get("trainable_position_size", -1))
    same, own_keys = PATTERNS.get(style, ({}, {}))
    pattern = {**same, **{field: float(given.get(key, 0)) for key, field in own_keys.items()}}
    sizes["num_layers"] *= 2 if style == "gemma2" else 1
    if latent:
        sizes |= {"attention": "mla", **{rank: float(given.get(rank, 0)) for rank in KEYS["latent"]}}
    shape: dict[str, Any] = {
        "name": name,
        "gated_mlp": bool(gated),
        "activation": "silu" if gated else first,
        "normalization": "layer_norm" if plain else "rms_norm",
        "position_embedding": "learned" if positions > 0 else "rotary",
        "learned_positions": positions if positions > 0 and positions != sizes["seq_len"] else 0.0,
        "biases": plain,
        "qkv_bias": True if given.get("attention_bias") and not plain and style != "gpt_oss" else None,
        "dropout": bool(given["enable_dropout"]),
        "tied_embeddings": bool(given.get("logits_via_embedding")),
        "qk_norm": (bool(given.get("use_qk_norm")) and style != "llama4") or style.startswith("qwen3"),
        "numerics": _read_numerics(given, first if gated else "silu"),
    }
    return ModelShape(**{**shape, **sizes, **_read_experts(given), **pattern})


def _named(known: str, keys: Mapping[str, Any]) -> ModelShape:
    """A built-in model, by its name in MaxText, with the sizes that `keys` state."""
    if (shipped := current_name(known, "models")) not in model_names() or keys.get("global_parameter_scale", 1) != 1:
        raise DseError(f"model_name {known}: not built in; copy the keys of configs/models/{known}.yml into the file")
    model = load_model(shipped)
    assert isinstance(model, ModelShape)
    stated = {"max_target_length": KEYS["defaults"]["max_target_length"], "mtp_num_layers": 0, **keys}
    sizes: dict[str, Any] = {field: float(stated[key]) for key, field in (SIZES | EXPERTS).items() if key in stated}
    return replace(model, **sizes)


def _read_experts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Fields of experts; nothing where there is one."""
    if float(given["num_experts"]) <= 1:
        return {}
    fields = {field: float(given.get(key, 0)) for key, field in EXPERTS.items()}
    fields |= {field: max(float(given.get(key, 0)), 0.0) for key, field in KEYS["groups"].items()}
    fields["shared_ffn_hidden_size"] = float(given.get("shared_experts", 0)) * fields["moe_ffn_hidden_size"]
    return {**fields, "router_bias": bool(given.get("routed_bias"))}


def _read_numerics(given: Mapping[str, Any], gate: str) -> Numerics:
    """Constants of functions."""
    usual = Numerics()
    plain: dict[str, Any] = {f: float(given.get(key) or getattr(usual, f)) for key, f in KEYS["numerics"].items()}
    rope = str(given.get("rope_type", "default"))
    factor = float(given.get("rope_linear_scaling_factor", 1.0))
    scaling: dict[str, Any] = {"rotary_scaling": "linear", "rotary_scaling_factor": factor} if factor != 1 else {}
    if rope == "llama3.1":
        scaling = {"rotary_scaling": "llama3", **KEYS["llama"]}
    elif rope == "yarn":
        scaling = {"rotary_scaling": "yarn", **{f: float(given[key]) for key, f in KEYS["yarn"].items()}}
    latent, style = given.get("attention_type") == "mla" or rope == "yarn", str(given["decoder_block"])
    scaling |= {"gate": "geglu" if gate == KEYS["gates"]["geglu"] else "swiglu"}
    scaling |= {"rotary_interleaved": bool(given.get("rope_interleave", True)) if latent else False}
    if style == "llama4":
        every, normed = float(given.get("nope_layer_interval", 0)), bool(given.get("use_qk_norm"))
        scaling |= {"no_rope_every": every, "qk_l2_norm": normed}
    return Numerics(
        **{**plain, **scaling, **KEYS["implied"].get(style, {})},
        glu_clamp=max(float(given.get("mlp_activations_limit", 0.0)), 0.0),
        router_score="sigmoid" if given.get("routed_score_func") == "sigmoid" else "softmax",
        router_balance="seq_aux_loss" if int(given["num_experts"]) > 1 else "aux_loss",  # layers/moe.py
        router_pre_softmax=given["decoder_block"] == "qwen3_moe" and not given.get("norm_topk_prob", False),
    )


#: Capabilities of MaxText, and their names.
MAXTEXT: Final = launching("maxtext")


def script(launch: Launch) -> tuple[str, list[str]]:
    """The configuration of a design, and the settings that it lacks.

    Raises `NotExpressible` if MaxText cannot run such a design.
    """
    refuse(launch, "maxtext")
    lost = [*model_losses(launch.model), *launch.lost(KEYS["lost"])]
    content: dict[str, Any] = {**KEYS["filled_in"], **model_keys(launch.model), **mesh(launch), **_training(launch)}
    devices = f" of {launch.devices} devices" if launch.devices > 1 else ""
    lines = [
        f"# {launch.heading} on {launch.world_size:,} chips{devices}, for {MAXTEXT.release}:",
        "# python3 -m maxtext.trainers.pre_train.train THIS_FILE",
        f"# Measured runs set flags of XLA: {KEYS['flags_of_xla'][content['hardware']]}.",
        *(f"# MaxText has no key for: {text}" for text in lost),
        "# Fill in what the design does not decide:",
        *(f"#   {name}: {text}" for name, text in {**PLACEHOLDERS, "RUN_NAME": "name of the run"}.items()),
    ]
    return "\n".join(lines) + "\n" + dump(content), lost


def mesh(launch: Launch) -> dict[str, int]:
    """Sizes of the axes of the mesh: within a node (or a slice), and between nodes.

    Devices of a chip are neighbours on the innermost axis, `tensor`, or each has other sequences. Raises
    `NotExpressible` if neither is possible.
    """
    split = "tensor_sequence" if launch.sequence_parallel else "tensor"
    dp, ep, copies = int(launch["dp"]), int(launch["ep"]), int(launch["shard_replicas"])
    dp //= ep
    data, fsdp = (dp, 1) if launch.zero_stage < 3 else (copies, dp // copies)
    sizes = {split: int(launch["tp"]), "context": int(launch["cp"]), "expert": ep, "fsdp": fsdp,
             "data": data, "pipeline": int(launch["pp"])}  # fmt: skip
    devices, heads = launch.devices, launch.model.num_query_groups
    is_within = sizes[split] % devices == 0 or int(launch["micro_batch_size"]) % devices > 0
    sizes[split if is_within else "fsdp"] *= devices  # so that a chip has its weights once
    if devices > 1 and is_within and heads % sizes[split]:
        raise NotExpressible(f"{devices} devices a chip: {split} {sizes[split]} does not divide {heads:g} heads; "
                             f"expected a micro-batch of a multiple of {devices}")  # fmt: skip
    inside = launch.nodes[1] if launch.node_size <= MOST_OF_A_HOST else launch.world_size * devices
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
    replica = int(launch["tp"]) * int(launch["cp"]) * int(launch["pp"]) * launch.devices
    keys: dict[str, Any] = {
        "per_device_batch_size": micro * (steps if staged else 1) / replica,
        "gradient_accumulation_steps": 1 if staged else steps,
        "remat_policy": MAXTEXT.word("recompute", launch["recompute"]),
        "quantization": MAXTEXT.word("precision", launch["precision"]),
        "dtype": "float16" if launch["precision"] == "fp16" else "bfloat16",
        "attention": "dot_product" if launch["attention"] == "unfused" else "autoselected",
        "opt_type": MAXTEXT.word("optimizer", launch["optimizer"]),
        "shard_optimizer_over_data": launch.zero_stage == 1 or launch["outer_dp_sharding_strategy"] == "optim",
        "hardware": "gpu" if launch.compute_capability or launch.node_size <= MOST_OF_A_HOST else "tpu",
        **({"num_vocab_tiling": 8} if launch["cross_entropy"] == "chunked" else {}),
    }
    if staged:
        keys["num_pipeline_microbatches"] = steps
        keys["num_layers_per_pipeline_stage"] = launch.chunks()[0]
        keys["num_pipeline_repeats"] = int(launch["vpp"])
    if launch["cp"] > 1:
        word = keys["context_parallel_strategy"] = MAXTEXT.word("cp_communication", launch["cp_communication"])
        if word != "all_gather" and keys["hardware"] != "gpu":  # TPUs have it in this kernel alone (types.py)
            balanced = word == "ring" and not launch.model.mtp_layers
            keys |= {"attention": "flash", "use_tokamax_splash": True, "context_parallel_load_balance": balanced}
            keys |= {"packing": False} if launch.model.attention == "mla" else {}
    if launch["capacity_factor"]:
        keys |= {"capacity_factor": float(launch["capacity_factor"]), "sparse_matmul": False}
    if launch["offload_activations"] == 1 and launch["recompute"] == "full":
        keys |= {"remat_policy": "custom", "decoder_layer_input": "offload"}
    return keys | ({"optimizer_memory_host_offload": True} if launch["offload_optimizer"] == 1 else {})


class Slices(NamedTuple):
    """TPUs of a run, as the option `--device-type` of xpk names them."""

    chips: int | None = None  #: of all slices [-]
    number: int = 1
    devices: int = 1  #: that JAX has for each chip [-]


def _settings(path: Path) -> tuple[dict[str, Any], Slices]:
    """Keys of a configuration, or of the command of a script that starts MaxText, and its TPUs.

    Raises `DseError` if no command has a configuration, or the script does not decide a value.
    """
    if path.is_file() and not _COMMAND.search(text := launch_text(path)):
        return _with_base(path, str(path)), _slices(text)
    script, _ = followed(path, None)
    for words in sorted(script.commands, key=lambda words: sum("=" in word for word in words), reverse=True):
        at = next((at for at, word in enumerate(words) if at and word.endswith((".yml", ".yaml"))), 0)
        if not at or not re.search("maxtext", " ".join(words[:at]), re.IGNORECASE):
            continue
        file = script.located(words[at])
        if not file and Path(words[at]).name != "base.yml":
            raise DseError(f"it reads {words[at]}, which is not there")
        keys = _with_base(file, file.name) if file else {}
        for name, equals, value in (word.partition("=") for word in words[at + 1 :]):
            if equals and "$" in value and not re.search(r"(path|dir|directory|name|token|bucket|file)$", name):
                raise DseError(f"{name} {value}: no line of the script sets it; quote its call: 'NAME=8 train.sh'")
            is_list = value.startswith("[")
            keys |= {name: re.findall(r"[^][',\"\s]+", value) if is_list else scalar(value)} if equals else {}
        return keys, _slices(" ".join([*words[:at], launch_text(script_file(path))]))
    raise DseError("no command in it starts MaxText with a configuration, such as base.yml KEY=VALUE")


def _with_base(file: Path, name: str, extending: Sequence[Path] = ()) -> dict[str, Any]:
    """Keys of a configuration and of those that it extends, up to base.yml. Raises `DseError` if one is not there."""
    keys = parse(launch_text(file), name).data
    if Path(base := str(keys.get("base_config") or "base.yml")).name == "base.yml":
        return keys
    extended = [folder / base for folder in file.absolute().parents if (folder / base).is_file()]
    if not extended or extended[0] in extending:
        raise DseError(f"base_config {base}: expected a file in the folder of {file.name}, or above")
    return {**_with_base(extended[0], base, [*extending, extended[0]]), **keys}


def _slices(text: str) -> Slices:
    """TPUs that a script names: types for xpk have a topology of chips, or a number of cores (GoogleCloudPlatform/xpk).

    >>> _slices("--device-type=tpu7x-4x4x4"), _slices("--tpu-type v5p-128 --num-slices=2")
    (Slices(chips=64, number=1, devices=2), Slices(chips=128, number=2, devices=1))
    """
    named = re.search(r"--(?:device|tpu)[-_]type[= ](\w+)-(\d+(?:x\d+)*)\b", text)
    several, divided = re.search(r"--num[-_]slices[= ](\d+)", text), re.search(r"\btpu7x\b|chips of (\d) devices", text)
    number, devices = int(several[1]) if several else 1, int(divided[1] or 2) if divided else 1
    sizes = [int(size) for size in named[2].split("x")] if named else []
    cores = 2 if named and len(sizes) == 1 and named[1] in ("v4", "v5p", "tpu7x") else 1
    return Slices(prod(sizes) // cores * number if named else None, number, devices)


def read_script(path: Path, chips: int | None = None) -> tuple[Launch, list[str]]:
    """The run of a MaxText configuration or script, and notes on settings that are not read.

    `path` is a file, or the call of a script (`STEPS=5 run.sh`). Raises `DseError` if it is no such file, or says too
    little.
    """
    file = script_file(path)
    try:
        given, slices = _settings(path)
        kinds = {**{key: "a whole number" for key in given if key.endswith("_parallelism")}, **KINDS}
        keys = {key: of_kind(key, value, kinds[key]) if key in kinds else value for key, value in given.items()}
        if not any(re.search(KEYS["own"], str(key)) for key in keys):
            raise DseError("no key of MaxText's model or mesh in it")
        stated = {**(keys.get("lora") or {}), **keys}
        if other := [f"{key}: {text}" for key, text in KEYS["others"].items() if stated.get(key)]:
            raise DseError(f"{other[0]}; dse reads training of one model")
        model = keys_model(keys, re.sub(r"\W+", "_", file.stem))
        design = _read_mesh(keys, slices._replace(chips=chips or slices.chips))
        design |= {"etp": design["tp"]} | _read_training(keys, design, model, slices.devices)
        known = {name: v for name, v in design.items() if name not in ("ep", "etp") or model.num_experts}
        notes = [
            f"{key} {word} is read as {read}"
            for key, (column, usual, read) in KEYS["read_as"].items()
            if MAXTEXT.value(column, word := str(keys.get(key) or usual)) is None
        ]
        if slices.devices > 1:
            notes.append(f"JAX has {slices.devices} devices for each chip: batch and mesh are read as those of chips")
        return Launch.of(model, known, 8), [*notes, *_unread(keys)]
    except (DseError, ValueError, TypeError, ArithmeticError, LookupError) as error:
        raise DseError(f"{path}: {with_line(str(error), launch_text(file))}") from None


def _unread(keys: Mapping[str, Any]) -> Iterator[str]:
    """A line for keys that are not read, where their values may change the cost."""
    patterns = {key for same, of_block in (*PATTERNS.values(), *((beside, {}) for beside in KEYS["beside"].values()))
                for key in (*same, *of_block)}  # fmt: skip
    read = {*SIZES, *EXPERTS, *KEYS["numerics"], *patterns, *KEYS["read"].split(), *KEYS["unread"]}
    named = [key for key, value in KEYS["unread"].items() if keys.get(key, value) != value]
    named += [key for key in keys if not (key in read or re.search(r"_parallelism$", key) or _IDLE.search(key))]
    if named:
        yield f"not read: {' '.join(f'{key}={keys[key]}' for key in named)}"


#: Keys that decide nothing of cost, and a command that starts MaxText.
_IDLE: Final = re.compile(KEYS["without_cost"])
_COMMAND: Final = re.compile(r"^[^#\n]*\bpython[\d.]*\s+(-m\s+)?\S*maxtext", re.IGNORECASE | re.MULTILINE)


def _read_mesh(keys: Mapping[str, Any], slices: Slices) -> dict[str, Any]:
    """Sizes of groups of chips, and the ranks that weights are sharded over.

    Raises `DseError` if an axis takes the remaining chips, and their number is not given.
    """
    names = {f"{link}_{axis}_parallelism": axis for link in ("ici", "dcn")
             for axis in (*KEYS["axes"], "fsdp", "fsdp_transpose", "data")}  # fmt: skip
    usual = {"ici_fsdp_parallelism": -1, "dcn_data_parallelism": -1}
    said = {name: int(keys.get(name, usual.get(name, 1))) for name in names}
    if others := [k for k in keys if re.match(r"(ici|dcn)_\w+_parallelism$", k) and k not in names and keys[k] != 1]:
        raise DseError(f"{others[0]} {keys[others[0]]}: dse has no such axis")
    known, far = (prod(n for name, n in said.items() if n > 0 and name.startswith(of)) for of in ("", "dcn"))
    if left := [name for name, size in said.items() if size < 0]:
        if not slices.chips:
            raise DseError(f"does not say on how many chips ({left[0]}: -1); name them with --gpus N")
        of_slices = max(slices.number // far, 1) if len(left) > 1 else 1
        rest = (slices.chips or 0) * slices.devices // (known * of_slices)
        said |= dict.fromkeys(left, 1) | {left[-1]: of_slices} | {left[0]: rest}
    if slices.chips and prod(said.values()) != slices.chips * slices.devices:
        raise DseError(f"its mesh needs {'N x ' * bool(left)}{known:,} devices; --gpus {slices.chips} has others")
    sizes = {axis: prod(said[name] for name, of in names.items() if of == axis) for axis in names.values()}
    inner = ("tensor_sequence", "tensor", "fsdp", "data")
    if several := next((axis for axis in inner if sizes[axis] % slices.devices == 0), ""):
        sizes[several] //= slices.devices
    elif slices.devices > 1:
        raise DseError(f"ici_fsdp_parallelism: expected a multiple of {slices.devices}, the devices of a chip")
    design: dict[str, Any] = {"tp": 1, "cp": 1, "ep": 1, "pp": 1}
    for axis, column in KEYS["axes"].items():
        design[column] *= sizes[axis]
    fsdp = sizes["fsdp"] * sizes["fsdp_transpose"]
    sharded = fsdp * design["ep"] * design["cp"] > 1 or sizes["data"] == 1
    over_data = bool(keys.get("shard_optimizer_over_data"))
    design |= {"dp": sizes["data"] * fsdp * design["ep"], "zero": 3 if sharded else int(over_data)}
    outer = "optim" if over_data and sizes["data"] > 1 else "no_shard"
    design |= {"shard_replicas": sizes["data"], "outer_dp_sharding_strategy": outer} if sharded else {}
    return design | ({"sharding": "megatron_sp"} if sizes["tensor_sequence"] > 1 else {})


def _read_training(
    keys: Mapping[str, Any], design: Mapping[str, Any], model: ModelShape, devices: int
) -> dict[str, Any]:
    """Batch, pipeline, recomputation, number formats; JAX has `devices` for each chip."""
    replica = design["tp"] * design["cp"] * design["pp"] * devices
    local = keys.get("per_device_batch_size", 12) * replica
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
        "offload_activations": float(policy == "custom" and keys.get("decoder_layer_input") == "offload"),
        "attention": "unfused" if keys.get("attention") == "dot_product" else "fused",
        "optimizer": MAXTEXT.value("optimizer", keys.get("opt_type", "adamw"), "adam"),
        "overlap_grad_reduce": True,
        "vpp": 1,
        **{name: MAXTEXT.given[name] for name in KEYS["of_software"]},
        **({"cross_entropy": "chunked"} if int(keys.get("num_vocab_tiling", 1)) > 1 else {}),
    }
    if staged:
        chunk_layers = int(keys.get("num_layers_per_pipeline_stage", 1)) * design["pp"]
        columns["vpp"] = int(model.num_layers) // chunk_layers
        columns["schedule"] = "gpipe" if columns["vpp"] == 1 else "breadth_first"
    if design["cp"] > 1:
        word = keys.get("context_parallel_strategy", "all_gather")
        columns["cp_communication"] = MAXTEXT.value("cp_communication", word, "all_gather")
    columns |= {"capacity_factor": capacity} if (capacity := keys.get("capacity_factor", -1)) > 0 else {}
    return columns | ({"offload_optimizer": 1} if keys.get("optimizer_memory_host_offload") else {})
