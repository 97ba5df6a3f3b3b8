"""Rows of a table of measured runs as the cost model takes them: model, machine, design.

What a row leaves out is decided by what its software usually does (`CONVENTIONS`), by one rule for all
rows of a source, never by how well a row agrees. A row that leaves out what no such rule can say, its split
over ranks or its time, is not expressed: `NotExpressed` names what it lacks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from costmodel import ModelShape, model_names
from costmodel.formats.quantity import plain_number
from costmodel.training.precision import FORMATS
from dse.validation.expressed import Expressed, Machine, NotExpressed, Value, number_of, shipped_model
from dse.validation.frameworks import convention_of
from dse.validation.hardware import NODE, machine_of
from dse.validation.table import MeasuredRow

#: Models that have more to say than the columns of a table: experts, latent attention, windows.
MODELS: Final[Mapping[str, tuple[str, Mapping[str, float]]]] = {
    "DeepSeek-V3-671B": ("deepseek_v3", {}),
    # SimuMax prices layers without multi-token prediction, one of them dense.
    "deepseek-v3 (4 layers)": ("deepseek_v3", {"num_layers": 4, "first_dense_layers": 1, "mtp_layers": 0}),
    "deepseek-v2 (4 layers)": ("deepseek_v2", {"num_layers": 4, "first_dense_layers": 1}),
    "nemotron4-15b": ("nemotron_4_15b", {}),
    "nemotron4-340b": ("nemotron_4_340b", {}),
}

#: Pattern of `dtype` -> word of `precision`, the first that is found. NVIDIA's recipes scale whole tensors
#: unless they say otherwise: by sub-channels (sc) or in MX formats.
PRECISIONS: Final = (
    (r"nvfp4|fp4", "nvfp4"),
    (r"mxfp8|fp8-mx|^mx$", "mxfp8"),
    (r"fp8.*(block|sc\b)", "fp8_blockwise"),
    (r"fp8", "fp8_tensorwise"),
    (r"^$|bf16|fp16|bfloat16|float16|mixed|unstated", "bf16"),
)

#: Words of a switch, as commands print them -> its column.
SWITCHES: Final = {"true": 1.0, "false": 0.0}

#: Pattern of `schedule` -> word of the design's. ZB-1p and ZB-2p are searched under the memory of these two.
SCHEDULES: Final = (
    (r"^$|^none|1F1B|interleaved|unstated", "1f1b"),
    (r"ZB-(1p|H1)", "zb_h1"),
    (r"ZB-(2p|H2)", "zb_h2"),
    (r"ZB-?V", "zb_v"),
    (r"DualPipe-?V", "dualpipe_v"),
    (r"DualPipe", "dualpipe"),
    (r"GPipe", "gpipe"),
    (r"breadth|BFS", "breadth_first"),
)

#: Pattern of `opt_shard` -> columns that it says, the first that is found.
SHARDINGS: Final[tuple[tuple[str, Mapping[str, Value]], ...]] = (
    (r"SHARD_GRAD_OP", {"zero": 3, "reshard_after_forward": 0}),
    (r"zero(-| |-stage-| stage )?0|^none|^DDP", {"zero": 0}),
    (r"zero(-| |-stage-| stage )?1|distributed optimizer", {"zero": 1}),
    (r"zero(-| |-stage-| stage )?2|params kept after forward", {"zero": 2}),
    (r"zero(-| |-stage-| stage )?3|FSDP|HSDP|FULL_SHARD", {"zero": 3}),
    (r"^unstated", {}),
)

#: Share of a layer's forward pass that selective recomputation of operators repeats: PyTorch's policy keeps
#: every other product [torchtitan, `_apply_op_sac`], which leaves w_k, w_o and w_3 of seven to be repeated:
#: 0.37 of the weights of Llama 8B, 0.39 of those of 70B.
OPERATORS_REPEATED: Final = 3 / 8


def expressed_row(row: MeasuredRow, system: str | None = None) -> Expressed:
    """A row as the cost model takes it, on its own machine or on a system that is named.

    Raises `NotExpressed`, naming what it lacks; `DseError` if its model or its machine contradicts itself.
    """
    given = pairs_of(row.given)
    own = {name: value for name, value in given.items() if name in ModelShape.__dataclass_fields__}
    model = model_of(row, own)
    columns = pairs_of(row.design) if row.design else values_of(with_split(row), model)
    if "precision" in columns:
        columns["precision"] = precision_of(str(columns["precision"]), "precision")
    machine = machine_of(row, system)
    if system is None:
        differing = {name: number_of(name, value) for name, value in given.items() if name not in own}
        of_software = convention_of(row).quantities
        machine = Machine(machine.name, {**of_software, **machine.quantities, **differing})
    run = Expressed(model, machine, columns)
    if row.gpus and run.ranks != row.gpus:
        raise NotExpressed(f"a split that multiplies out to its GPUs ({run.ranks:g} of {row.gpus:g})")
    parts = model.num_layers + model.mtp_layers + len(("embedding", "head"))
    if run.count("pp", "vpp") > parts:
        raise NotExpressed(f"a layer for each of its {run.count('pp', 'vpp'):g} chunks of a pipeline")
    return run


def pairs_of(text: str) -> dict[str, Value]:
    """`name=value ...` as a mapping: numbers, switches as 0 and 1, and words.

    Raises `NotExpressed` for a word that is no such pair.

    >>> pairs_of("tp=8 overlap_ep=true precision=mxfp8")
    {'tp': 8.0, 'overlap_ep': 1.0, 'precision': 'mxfp8'}
    """
    pairs = [word.partition("=") for word in text.split()]
    if any(not (name and value) for name, _, value in pairs):
        raise NotExpressed(f"{text!r} as name=value ...")
    return {name: _number(value) for name, _, value in pairs}


def _number(text: str) -> Value:
    if text in SWITCHES:
        return SWITCHES[text]
    try:
        return plain_number(text)
    except ValueError:
        return text


def precision_of(text: str, column: str) -> str:
    """The number format that a cell names; `NotExpressed` if it names none."""
    return text if text in FORMATS else matched(text, PRECISIONS, column)


def matched(text: str, patterns: tuple[tuple[str, str], ...], column: str) -> str:
    """The word that the first pattern found in a text stands for.

    Raises `NotExpressed` if none is found: naming the column.
    """
    for pattern, word in patterns:
        if re.search(pattern, text, flags=re.IGNORECASE):
            return word
    raise NotExpressed(f"a meaning of {text!r} in the column {column}")


def plain(name: str) -> str:
    """A name without what spellings differ in."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*\)", "", name.lower()))


@cache
def _shipped_models() -> dict[str, str]:
    """Plain name -> name of every model that ships."""
    return {plain(name): name for name in model_names()}


def model_of(row: MeasuredRow, differing: Mapping[str, Any]) -> ModelShape:
    """The model of a row: a shipped one of its name, or GPT, or Llama-like where the MLP is gated.

    Columns describe dense models; of one with experts, or of which a row has no dimensions, the shipped file
    of its name has more to say.
    """
    seq: dict[str, Any] = {"seq_len": row.seq} if row.seq else {}
    if row.model in MODELS:
        name, own = MODELS[row.model]
        return shipped_model(name, {**own, **seq, **differing})
    shipped = _shipped_models()
    if row.model in shipped.values():
        return shipped_model(row.model, {**seq, **differing})
    if (not row.hidden or row.moe_experts) and plain(row.model) in shipped:
        layers = {"num_layers": row.layers} if row.layers else {}
        return shipped_model(shipped[plain(row.model)], {**layers, **seq, **differing})
    if not (row.hidden and row.layers and row.heads and row.seq):
        raise NotExpressed("the dimensions of the model")
    return ModelShape(**{**_fields(row), **differing})


def _fields(row: MeasuredRow) -> dict[str, Any]:
    """Fields of a model that is made of a row's columns."""
    gated, convention = bool(row.gated), convention_of(row)
    fields: dict[str, Any] = {
        "gated_mlp": gated,
        "normalization": "rms_norm" if gated else "layer_norm",
        "position_embedding": "rotary" if gated else "learned",
        "biases": not gated,
        "dropout": not gated,
        "tied_embeddings": not gated,
    }
    if "tied embeddings" in row.notes or not convention.model.get("tied_embeddings"):
        fields |= convention.model
    if row.moe_experts:
        fields |= {
            "num_experts": row.moe_experts,
            "moe_topk": row.moe_topk,
            "moe_ffn_hidden_size": row.moe_ffn or row.ffn,
        }
    return {
        "name": row.model,
        "num_layers": row.layers,
        "hidden_size": row.hidden,
        "num_attention_heads": row.heads,
        "num_query_groups": row.kv_heads,
        "ffn_hidden_size": row.ffn,
        "seq_len": row.seq,
        "vocab_size": row.vocab or convention.head,
        # Megatron-LM's --make-vocab-size-divisible-by
        "vocab_multiple": 128.0 if convention.framework.startswith("megatron") else 0.0,
        **fields,
    }


def with_split(row: MeasuredRow) -> MeasuredRow:
    """A row with the sizes of all groups of ranks: one that it leaves out is what its GPUs leave for it.

    Raises `NotExpressed` if they leave a choice.
    """
    split = {name: getattr(row, name) for name in ("tp", "cp", "pp", "dp")}
    lacking = [name for name, size in split.items() if not size]
    rest = row.gpus / math.prod(size for size in split.values() if size)
    if lacking and (rest == 1 or (rest > 1 and len(lacking) == 1)):
        return replace(row, **dict.fromkeys(lacking, rest))
    if lacking:
        raise NotExpressed(f"its split over ranks ({', '.join(lacking)})")
    return row


def counts_of(row: MeasuredRow) -> dict[str, float]:
    """Ranks and batch of a row; `NotExpressed` where it has no batch."""
    convention = convention_of(row)
    vpp = row.vpp
    if row.schedule.startswith("interleaved") and vpp == 1:
        vpp = 2.0  # the fewest chunks that interleave
    vpp = float(convention.columns.get("vpp", vpp))
    sequences, mbs, ga = row.gbs / row.dp, row.mbs, row.ga
    if not (mbs or ga):
        if not sequences:
            raise NotExpressed("its batch")
        staged = convention.micro_batches == "one for each stage"
        ga = min(row.pp * vpp, sequences) if staged else sequences
    if not (sequences or (mbs and ga)):
        ga = ga or 1.0  # a micro-batch for itself
        sequences = (mbs or 1.0) * ga
    mbs = mbs or sequences / ga
    return {
        **{name: getattr(row, name) for name in ("tp", "cp", "pp", "dp")},
        "vpp": vpp,
        "micro_batch_size": mbs,
        "gradient_accumulation_steps": ga or sequences / mbs,
    }


def last_stage_of(row: MeasuredRow, model: ModelShape) -> dict[str, Value]:
    """Layers of the last stage, where the head counts as many as it has their parameters."""
    if row.pp == 1 or not convention_of(row).balanced:
        return {}
    of_layers = sum(model.layer_parameters(layer) * count for layer, count in model.kinds.items())
    head = model.vocab_size * model.hidden_size / (of_layers / model.num_layers)
    return {"last_stage_layers": max(1, round((model.num_layers + head) / row.pp - head))}


def sharding_of(row: MeasuredRow) -> dict[str, Value]:
    """Sharding of states among the replicas of a row, and overlap of their exchanges."""
    values = convention_of(row).stated
    if row.opt_shard:
        found = [columns for pattern, columns in SHARDINGS if re.search(pattern, row.opt_shard, re.IGNORECASE)]
        if not found:
            raise NotExpressed(f"a meaning of {row.opt_shard!r} in the column opt_shard")
        values |= found[0]
    groups = re.search(r"groups of (\d+)", row.opt_shard)
    together = float(groups[1]) if groups else NODE if row.opt_shard.startswith("HSDP") else row.dp
    if together < row.dp:
        values["shard_replicas"] = row.dp / together
    if values.get("zero") == 3 and row.pp > 1:
        values["reshard_after_forward"] = 0  # torchtitan's default where there are stages
    if row.dp_overlap:
        values["overlap_grad_reduce"] = int(row.dp_overlap.startswith("yes"))
    if values.get("zero", 0) != 1 or not values.get("overlap_grad_reduce"):
        values.pop("overlap_param_gather", None)
    values.pop("vpp", None)
    return values


def recompute_of(row: MeasuredRow) -> dict[str, Value]:
    """Recomputation of a row; empty where neither the row nor its software states one."""
    word = row.recompute.split(" ")[0]
    if word in ("", "unstated"):
        return {"recompute": convention_of(row).columns.get("recompute", "none")}
    shares = {"selective(layer)": convention_of(row).layers_repeated, "selective(op)": OPERATORS_REPEATED}
    share = shares.get(word, 1.0)
    if share < 1:
        return {"recompute": "full", "recompute_layers": max(1, round(share * row.layers / row.pp))}
    return {"recompute": "full" if word in shares else word.split("(")[0]}


def values_of(row: MeasuredRow, model: ModelShape) -> dict[str, Value]:
    """The design of a row, by its columns."""
    convention, counts = convention_of(row), counts_of(row)
    usual = str(convention.stated["attention"])
    split = (
        row.seq_par
        if row.seq_par >= 0
        else row.tp > 1 and convention.stated.get("sharding", "megatron_sp") == "megatron_sp"
    )
    differs = row.attn_kernel != "" and usual == "unfused"
    fused = "fused" if differs else usual
    values: dict[str, Value] = {
        **counts,
        **sharding_of(row),
        **recompute_of(row),
        **last_stage_of(row, model),
        "sharding": "megatron_sp" if split else "megatron",
        "attention": "unfused" if row.attn_kernel == "unfused" else fused,
        "precision": precision_of(row.dtype, "dtype"),
        "schedule": matched(row.schedule, SCHEDULES, "schedule"),
        **({"tp_overlap": "chunked" if row.tp_overlap.startswith("yes") else "gradients"} if row.tp_overlap else {}),
    }
    if counts["cp"] == 1:
        values.pop("cp_communication", None)
    if model.num_experts:
        far = row.hw.startswith(("GB", "B300"))  # whose recipes dispatch by HybridEP
        values |= {"ep": row.ep, "etp": 1, "dispatcher": "two_hop" if far else "all_to_all"}
    if "policy PURE" in row.notes:  # of Composer: gradients are reduced in 16 bits too
        values["gradient_reduction"] = "bf16"
    if "tokendrop" in row.model:
        values["capacity_factor"] = 1
    return values


def measured_time(row: MeasuredRow, run: Expressed) -> float:
    """Time of the step of a row, as it is printed or follows from a printed rate of one chip. [s]

    Raises `NotExpressed` if a row has neither.
    """
    if row.iter_time_s:
        return row.iter_time_s
    tokens = run.sequences * run.model.seq_len / run.ranks  # of one chip
    if row.tokens_s_gpu:
        return tokens / row.tokens_s_gpu
    passes = 4 if row.tflops_kind.startswith("hardware") and run.columns.get("recompute") == "full" else 3
    flops = passes * run.model.forward_flops(causal=halved(row))
    if row.tflops_gpu:
        return float(tokens * flops / (row.tflops_gpu * 1e12))
    if row.mfu:
        return float(tokens * flops / (row.mfu * run.machine.system.chip.peak_flop_rate.item()))
    raise NotExpressed("its time")


def halved(row: MeasuredRow) -> bool:
    """True if the FLOPs of a row's rate count only the causal half of attention."""
    if "attention in full" in row.tflops_kind:
        return False
    return "causal" in row.tflops_kind or convention_of(row).halved
