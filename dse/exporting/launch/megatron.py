"""Scripts that start Megatron-LM: written from designs, and read."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from costmodel.errors import DseError, printable
from costmodel.formats.quantity import plain_number
from dse.exporting.launch.launch import PLACEHOLDERS, Launch
from dse.exporting.launch.megatron_command import not_there, training_command
from dse.exporting.launch.megatron_design import MEGATRON, SWITCHES, settings_of
from dse.exporting.launch.megatron_read import launch_of

#: Setting -> flag, where one is not the other with dashes.
FLAGS: Final = {
    "fp8": "--fp8-format",
    "fp4": "--fp4-format",
    "microbatch_group_size_per_vp_stage": "--microbatch-group-size-per-virtual-pipeline-stage",
}
#: Compute capability from which on the order of launches decides nothing (arguments.py). [-]
BLACKWELL: Final = 10
#: Settings that are on unless a flag says that they are not.
NEGATED: Final = {
    "add_bias_linear": ("--disable-bias-linear",),
    "overlap_p2p_comm": ("--no-overlap-p2p-communication",),
    "gradient_accumulation_fusion": ("--no-gradient-accumulation-fusion",),
    "torch_fsdp2_reshard_after_forward": ("--torch-fsdp2-no-reshard-after-forward",),
}
#: Flags of numbers, of words, of several words, and switches: those that are read.
NUMBERS: Final = (
    *("num_layers", "hidden_size", "num_attention_heads", "ffn_hidden_size", "kv_channels", "seq_length"),
    *("vocab_size", "num_experts", "moe_router_topk", "moe_ffn_hidden_size", "moe_latent_size"),
    *("moe_shared_expert_intermediate_size", "moe_router_num_groups", "moe_router_group_topk"),
    *("mtp_num_layers", "num_query_groups", "max_position_embeddings", "make_vocab_size_divisible_by"),
    "padded_vocab_size",
    *("window_attn_skip_freq", "linear_attention_freq", "linear_conv_kernel_dim", "linear_key_head_dim"),
    *("linear_value_head_dim", "linear_num_key_heads", "linear_num_value_heads", "q_lora_rank"),
    *("kv_lora_rank", "qk_head_dim", "qk_pos_emb_head_dim", "v_head_dim"),
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size"),
    *("expert_model_parallel_size", "expert_tensor_parallel_size", "micro_batch_size", "global_batch_size"),
    *("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers"),
    *("microbatch_group_size_per_vp_stage", "num_virtual_stages_per_pipeline_rank"),
    *("num_layers_per_virtual_pipeline_stage", "recompute_num_layers"),
    *("num_distributed_optimizer_instances", "flash_attention_version", "rotary_base"),
    *("rotary_seq_len_interpolation_factor", "yarn_original_max_position_embeddings", "no_rope_freq"),
)
SHARES: Final = (
    *("hidden_dropout", "attention_dropout", "optimizer_offload_fraction", "moe_expert_capacity_factor"),
    *("rotary_percent", "norm_epsilon", "activation_func_clamp_value", "glu_linear_offset", "mscale"),
    *("moe_router_topk_scaling_factor", "moe_aux_loss_coeff", "moe_router_bias_update_rate"),
    *("mtp_loss_scaling_factor", "rope_scaling_factor", "rotary_scaling_factor", "mscale_all_dim"),
    *("yarn_beta_fast", "yarn_beta_slow"),
)
WORDS: Final = (
    *("position_embedding_type", "normalization", "softmax_type", "window_size", "moe_layer_freq"),
    *("experimental_attention_variant", "pipeline_model_parallel_layout", "recompute_granularity"),
    *("recompute_method", "data_parallel_sharding_strategy", "optimizer", "exp_avg_dtype"),
    *("exp_avg_sq_dtype", "main_params_dtype", "fp8", "fp8_recipe", "fp4", "fp4_recipe"),
    *("moe_router_score_function", "moe_router_load_balancing_type", "moe_router_dtype", "rope_type"),
    *("attention_backend", "cp_comm_type", "moe_token_dispatcher_type", "moe_flex_dispatcher_backend"),
)
LISTS: Final = ("recompute_modules", "hierarchical_context_parallel_sizes")
ON: Final = (
    *SWITCHES,
    *("group_query_attention", "swiglu", "quick_geglu", "squared_relu", "add_qkv_bias"),
    *("untie_embeddings_and_output_weights", "qk_layernorm", "attention_output_gate"),
    *("moe_shared_expert_gate", "moe_router_enable_expert_bias", "multi_latent_attention"),
    *("moe_grouped_gemm", "use_tp_pp_dp_mapping", "recompute_activations", "use_distributed_optimizer"),
    *("use_megatron_fsdp", "use_torch_fsdp2", "use_precision_aware_optimizer", "optimizer_cpu_offload"),
    *("rotary_interleaved", "apply_layernorm_1p", "qk_l2_norm", "moe_router_pre_softmax"),
    *("use_rope_scaling", "no_rope_fusion"),
    *("grad_reduce_in_bf16", "sequence_parallel", "overlap_param_gather", "tp_comm_overlap", "bf16", "fp16"),
)
_UNSET: Final = (
    "no line of the script sets it; what its caller gives stands in quotes: 'NAME=8 train.sh ARGUMENT'"
)
#: Flags that decide nothing of what a step costs here: data, learning, logs, checkpoints and their like.
WITHOUT_COST: Final = re.compile(
    r"--(no-)?(data|train|valid|test|tokenizer|vocab-file|merge-file|lr|min-lr|weight-decay|adam|clip-grad|"
    r"init-method|log|eval|save|load|split|seed|tensorboard|wandb|timing|distributed|exit|rotary|use-rotary|"
    r"ckpt|async-save|dist-ckpt|use-dist-ckpt|manual-gc|num-workers|mock-data|use-mcore|transformer-impl|"
    r"norm-epsilon|loss-scale|initial-loss|min-loss|hysteresis|override|use-checkpoint|auto-detect|"
    r"check-for|finetune|num-dataset|dataloader|reset|eod|create-attention|bias-|masked-softmax|rope|"
    r"use-rope|persist-layer|attention-softmax|apply-|calculate-per|cross-entropy|moe-aux|moe-router|"
    r"moe-z|moe-permute|moe-pad|moe-deepep|enable-experimental|profile|use-pytorch|use-nsys|mtp-loss|"
    r"original-max|mscale|beta-|position-embedding|use-flash-attn|accumulate-allreduce|local-rank|"
    r"use-cpu-init|decoupled|start-weight|end-weight|world-size|rank|sft|legacy|straggler|ddp-|cuda-graph|"
    r"tiktoken|mmap|fp8-amax|fp8-margin|fp8-interval|DDP-impl|export-|modelopt|trust-remote|te-rng|"
    r"disable-|deterministic|nccl|empty-unused|bucket|delay-wgrad|keep-|fsdp-|init-model)"
)


def script(launch: Launch) -> tuple[str, list[str]]:
    """A shell script that starts a design, and what it does not say.

    Raises
    ------
    NotExpressible
        If Megatron-LM cannot run such a design.
    """
    settings, lost = settings_of(launch)
    nodes, each = launch.nodes
    lines = [
        "#!/usr/bin/env bash",
        f"# {launch.heading} on {launch.world_size:,} chips, for {MEGATRON.release}.",
        *(f"# Not said here, since Megatron-LM has no flag for it: {text}" for text in lost),
        "set -euo pipefail",
        "",
        "# What the design does not decide.",
        *(f": ${{{name}:?{text}}}" for name, text in PLACEHOLDERS.items()),
        "MEGATRON=${MEGATRON:-.}                # a checkout of Megatron-LM",
        "MASTER_ADDR=${MASTER_ADDR:-localhost} MASTER_PORT=${MASTER_PORT:-6000} NODE_RANK=${NODE_RANK:-0}",
        "",
        f"NNODES={nodes}",
        f"GPUS_PER_NODE={each}",
        *(f"export CUDA_DEVICE_MAX_CONNECTIONS={most}" for most in connections(launch)),
        "",
    ]
    for title, of_group in groups(settings).items():
        flags = [flag_text(name, value) for name, value in of_group.items()]
        lines += [f"{title}_ARGS=(", *(f"  {flag}" for flag in flags), ")"]
    lines += [
        "OTHER_ARGS=(",
        '  --data-path "$DATA_PATH"',
        '  --tokenizer-type HuggingFaceTokenizer --tokenizer-model "$TOKENIZER_MODEL"',
        '  --lr "$LEARNING_RATE" --train-iters "$TRAIN_STEPS"',
        '  --save "$CHECKPOINT_DIR" --save-interval "${SAVE_INTERVAL:-1000}" --load "$CHECKPOINT_DIR"',
        *(["  --ckpt-format fsdp_dtensor"] if settings.get("use_megatron_fsdp") else []),
        ")",
        "",
        'torchrun --nproc_per_node "$GPUS_PER_NODE" --nnodes "$NNODES" --node_rank "$NODE_RANK" \\',
        '  --master_addr "$MASTER_ADDR" --master_port "$MASTER_PORT" "$MEGATRON/pretrain_gpt.py" \\',
        "  " + " ".join(f'"${{{title}_ARGS[@]}}"' for title in (*groups(settings), "OTHER")),
    ]
    return "\n".join(lines) + "\n", lost


def connections(launch: Launch) -> list[int]:
    """Queues to a GPU that Megatron-LM asks for: one keeps the order of messages and kernels; none is said
    where it asks for none, or shards weights and needs more."""
    if launch.zero_stage > 1 or launch["tp"] * launch["cp"] == 1 or launch.compute_capability >= BLACKWELL:
        return []
    return [32] if launch["overlap_ep"] else [1]


def groups(settings: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Settings by what they are of, so that a reader finds them."""
    found: dict[str, dict[str, Any]] = {"MODEL": {}, "PARALLEL": {}, "TRAINING": {}}
    parallel = re.compile(
        r"parallel|pipeline|overlap|sequence|fsdp|distributed|dispatcher|cp_comm|account|vp_stage"
    )
    training = re.compile(
        r"batch_size|recompute|optimizer|exp_avg|fp8|fp4|bf16|fp16|attention_backend|flash|fusion|capacity"
    )
    for name, value in settings.items():
        place = "TRAINING" if training.search(name) else "PARALLEL" if parallel.search(name) else "MODEL"
        found[place][name] = value
    return found


def flag(setting: str) -> str:
    """The flag of a setting."""
    return FLAGS.get(setting, "--" + setting.replace("_", "-"))


def flag_text(setting: str, value: Any) -> str:
    """A flag with its value, as a shell reads it."""
    if value is True:
        return flag(setting)
    if value is False:
        return NEGATED[setting][0]
    values = value if isinstance(value, list) else [value]
    return " ".join(
        [flag(setting), *(shlex.quote(f"{own:g}" if isinstance(own, float) else str(own)) for own in values)]
    )


@dataclass
class Flags:
    """Settings of a command line, and flags that are not read."""

    settings: dict[str, Any] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, words: Sequence[str]) -> Flags:
        """The flags of a command.

        Raises
        ------
        DseError
            If a value is none of its flag's.
        """
        kinds = {flag(name): name for name in (*NUMBERS, *SHARES, *WORDS, *LISTS, *ON)}
        off = {name: setting for setting, names in NEGATED.items() for name in names}
        found, place = cls(), 0
        while place < len(words):
            name, equals, attached = words[place].partition("=")
            place += 1
            if not name.startswith("--"):
                continue
            values = [attached] if equals else []
            while place < len(words) and not words[place].startswith("--"):
                values.append(words[place])
                place += 1
            if name in kinds:
                found.settings[kinds[name]] = cls.value(kinds[name], name, values)
            elif name in off:
                found.settings[off[name]] = False
            elif not WITHOUT_COST.match(name) and name not in found.unread:
                found.unread.append(name)
        return found

    @staticmethod
    def value(setting: str, name: str, values: Sequence[str]) -> Any:
        """What a flag says."""
        if setting in ON:
            return True
        if setting in LISTS:
            return list(values)
        if not values:
            raise DseError(f"{name}: expected a value")
        if setting in WORDS:
            return values[0]
        try:
            number = plain_number(values[0])
        except ValueError:
            unset = f" ({_UNSET})" if "$" in values[0] else ""
            raise DseError(f"{name} {values[0]}: expected a number{unset}") from None
        whole = setting in NUMBERS
        if not 0 <= number < 2**53 or (whole and not number.is_integer()):
            raise DseError(f"{name} {values[0]}: expected {'a whole number' if whole else 'a number'} from 0")
        return int(number) if whole else number


def read_script(path: Path, chips: int | None = None) -> tuple[Launch, list[str]]:
    """What a script of Megatron-LM runs, and what of it is not read.

    Parameters
    ----------
    path : Path
        The script, or the flags alone; also as it is called, `TP=8 train.sh 7b`.
    chips : int, optional
        Chips of the run; by default as `torchrun`, `srun` or Slurm's lines say.

    Raises
    ------
    DseError
        If it is no such script, or says too little.
    """
    try:
        command = training_command(path)
        flags = Flags.of(command.flags)
        if "num_layers" not in flags.settings and command.missing:
            raise DseError(f"it does not say num_layers{not_there(command.missing)}")
        if not (world_size := chips or command.chips):
            raise DseError("does not say on how many chips; name them with --gpus N")
        name = re.sub(r"\W+", "_", path.stem).strip("_") or "launch"
        launch, notes = launch_of(
            flags.settings, world_size=world_size, node_size=command.node_size or 8, name=name
        )
    except DseError as error:
        raise DseError(f"{path}: {_line(str(error))}") from None
    if not flags.settings.keys() & {"vocab_size", "padded_vocab_size"}:
        notes.append(f"it does not say --vocab-size: {launch.model.vocab_size:,.0f} is assumed; "
                     "--set vocab_size=N names another")  # fmt: skip
    if flags.unread:
        notes.append(f"not read: {' '.join(flags.unread)}")
    return launch, [_line(note) for note in (*command.notes, *notes)]


def _line(text: str) -> str:
    """Words of a script as one line that any terminal shows."""
    return printable(" ".join(text.split()))
