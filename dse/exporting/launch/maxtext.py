"""Configurations of MaxText, written from designs.

Keys are those of AI-Hypercomputer/maxtext `src/maxtext/configs/base.yml` (commit e591f30cb of 2026-08-22).
"""

from __future__ import annotations

from math import gcd
from typing import Any, Final

from costmodel.formats.framework_file import launching
from costmodel.formats.strict_yaml import dump
from costmodel.training.model import ModelShape
from dse.exporting.launch.launch import MOST_OF_A_HOST, PLACEHOLDERS, Launch, NotExpressible, refuse

#: What MaxText can do, and what it calls it.
MAXTEXT: Final = launching("maxtext")


def script(launch: Launch) -> tuple[str, list[str]]:
    """The configuration of a design, and what it does not say.

    Raises
    ------
    NotExpressible
        If MaxText cannot run such a design.
    """
    refuse(launch, "maxtext")
    lost = losses(launch)
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
        *(f"# Not said here, since MaxText has no key for it: {text}" for text in lost),
        "# Fill in what the design does not decide:",
        *(f"#   {name}: {text}" for name, text in {**PLACEHOLDERS, "RUN_NAME": "name of the run"}.items()),
    ]
    return "\n".join(lines) + "\n" + dump(content), lost


def model_keys(model: ModelShape) -> dict[str, Any]:
    """A model by MaxText's keys."""
    sizes = {
        "base_emb_dim": model.hidden_size,
        "base_num_query_heads": model.num_attention_heads,
        "base_num_kv_heads": model.num_query_groups,
        "head_dim": model.head_size,
        "base_mlp_dim": model.ffn_hidden_size,
        "base_num_decoder_layers": model.num_layers,
        "vocab_size": model.vocab_size,
        "max_target_length": model.seq_len,
        "first_num_dense_layers": model.first_dense_layers,
        "mtp_num_layers": model.mtp_layers,
    }
    found: dict[str, Any] = {name: int(size) for name, size in sizes.items() if size}
    if model.num_experts:
        found |= {
            "num_experts": int(model.num_experts),
            "num_experts_per_tok": int(model.moe_topk),
            "base_moe_mlp_dim": int(model.moe_ffn_hidden_size),
            "shared_experts": int(model.shared_ffn_hidden_size // model.moe_ffn_hidden_size),
            "routed_bias": model.router_bias,
            "interleave_moe_layer_step": int(model.moe_layer_freq),
        }
        if model.routing_groups:
            found |= {"n_routing_groups": int(model.routing_groups)}
            found |= {"topk_routing_group": int(model.routing_group_topk)}
    if model.attention == "mla":
        ranks = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
        found |= {"attention_type": "mla", **{name: int(getattr(model, name)) for name in ranks}}
    first = {"silu": "silu", "gelu": "gelu", "squared_relu": "squared_relu"}[model.activation]
    gated = "silu" if model.position_embedding == "rotary" else first  # of models whose file says no other
    found["mlp_activations"] = [gated, "linear"] if model.gated_mlp else [first]
    return found | {
        "decoder_block": block(model),
        "logits_via_embedding": model.tied_embeddings,
        "enable_dropout": model.dropout,
        "attention_bias": bool(model.qkv_bias),
        "use_qk_norm": model.qk_norm,
        "trainable_position_size": _positions(model),
    }


def _positions(model: ModelShape) -> int:
    learned = model.position_embedding == "learned"
    return int(model.learned_positions or model.seq_len) if learned else -1


def block(model: ModelShape) -> str:
    """MaxText's decoder block of a model.

    Raises
    ------
    NotExpressible
        If it has none.
    """
    if model.layers or model.linear_attention != "none" or model.window or model.parallel_block:
        raise NotExpressible(
            f"model {model.name}: its layers are of no decoder block that dse writes for MaxText"
        )
    if model.attention == "mla":
        return "deepseek"
    if model.position_embedding == "learned":
        return "gpt3"
    if model.num_experts:
        return "qwen3_moe" if model.qk_norm else "mixtral"
    return "qwen3" if model.qk_norm else "qwen2" if model.qkv_bias else "llama2"


def losses(launch: Launch) -> list[str]:
    """Columns whose values MaxText has no key for, as `name=value`."""
    modules = [name for name in launch.design if name.startswith("recompute_") and launch.differs(name)]
    silent = (
        *("imbalance", "overlap_ep", "overlap_shared_expert", "offload_activations", "moments"),
        *("gradient_reduction", "rank_order", "fp8_parameters", "group_size"),
    )
    lost = [name for name in (*silent, *modules) if launch.differs(name)]
    lost += ["dispatcher"] if launch["ep"] > 1 and launch["dispatcher"] != "all_to_all" else []
    lost += ["tp_overlap"] if launch["tp"] > 1 and launch.tp_overlap == "chunked" else []
    lost += ["recompute"] if launch["recompute"] == "selective" else []
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
    found: dict[str, int] = {}
    for axis, size in sizes.items():
        near = gcd(size, inside)
        inside //= near
        found |= {f"ici_{axis}_parallelism": near, f"dcn_{axis}_parallelism": size // near}
    return found


def _training(launch: Launch) -> dict[str, Any]:
    """Batch, pipeline, recomputation, number formats."""
    micro, steps = int(launch["micro_batch_size"]), int(launch["gradient_accumulation_steps"])
    staged = launch["pp"] > 1
    replica = int(launch["tp"]) * int(launch["cp"]) * int(launch["pp"])
    found: dict[str, Any] = {
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
        found["num_pipeline_microbatches"] = steps
        found["num_layers_per_pipeline_stage"] = launch.chunks()[0]
        found["num_pipeline_repeats"] = int(launch["vpp"])
    if launch["cp"] > 1:
        found["context_parallel_strategy"] = MAXTEXT.word("cp_communication", launch["cp_communication"])
    if launch["capacity_factor"]:
        found |= {"capacity_factor": float(launch["capacity_factor"]), "sparse_matmul": False}
    if launch["offload_optimizer"] == 1:
        found["optimizer_memory_host_offload"] = True
    return found
