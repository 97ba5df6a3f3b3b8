"""Rows of a table of measured runs as the cost model takes them: model, machine, design.

Settings that a row does not state are the defaults of its software in its release (`dse.validation.expressed`), by one
rule for all rows; `Expressed.assumed` lists them. A row without a split over ranks or a time, or with a cell that
is not understood, is not expressed: `NotExpressed` has the reason.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any, Final

from costmodel import DesignPoints, ModelShape, model_names
from costmodel.formats.framework_file import Framework
from costmodel.formats.quantity import plain_number
from costmodel.formats.shipped import current_name
from costmodel.training.blocks import MODULES
from costmodel.training.design_table import Domain
from costmodel.training.precision import FORMATS
from dse.validation.expressed import (
    NODE,
    Defaults,
    Expressed,
    Machine,
    NotExpressed,
    Value,
    defaults_of,
    framework_of,
    machine_of,
    number_of,
    shipped_model,
)
from dse.validation.table import WORDS, MeasuredRow

#: Values of designs for columns that neither a row nor its software states.
PLAIN: Final[Mapping[str, Value]] = {"recompute": "none", "precision": "bf16", "zero": 0.0, "overlap_ep": 0.0}

#: Fields of a model that recipes of its software set: passes of layers that look ahead, which may share weights.
RECIPE_FIELDS: Final = {"mtp_layers"}

#: Columns that recompute activations.
RECOMPUTING: Final = {"recompute", "recompute_layers", *(module.column for module in MODULES)}

#: Words of a switch, as commands print them -> its column.
SWITCHES: Final = {"true": 1.0, "false": 0.0}

#: A cell of `opt_shard`: its word, ranks that share states out, and a remark.
SHARDED: Final = re.compile(
    r"(?P<word>.+?)( over all dp ranks|( over)?( groups of)? (?P<groups>\d+))?( \((?P<remark>.*)\))?( unstated)?",
    re.IGNORECASE,
)
#: Words of a remark that say that weights stay after the forward pass.
KEPT: Final = {"SHARD_GRAD_OP": {"zero": 3, "reshard_after_forward": 0}, "params kept after forward": {"zero": 2}}

#: Fields of a model that are switches.
SWITCHED: Final = {name for name, field in ModelShape.__dataclass_fields__.items() if field.type == "bool"}

#: Share of a layer's forward pass that selective recomputation of operators repeats: PyTorch's policy keeps
#: every other product [torchtitan, `_apply_op_sac`], which leaves w_k, w_o and w_3 of seven to be repeated:
#: 0.37 of the weights of Llama 8B, 0.39 of those of 70B.
OPERATORS_REPEATED: Final = 3 / 8


def expressed_row(row: MeasuredRow, system: str | None = None) -> Expressed:
    """A row as the cost model takes it, on its own machine or on a system that is named.

    Raises `NotExpressed` with the missing part; `DseError` if its model or its machine contradicts itself.
    """
    given = pairs_of(row.given)
    fields = {name: bool(value) if name in SWITCHED else value
              for name, value in given.items() if name in ModelShape.__dataclass_fields__}  # fmt: skip
    machine = machine_of(row, system)
    framework = framework_of(row, machine.system)
    model, assumed = model_of(row, fields, framework)
    defaults = defaults_of(framework, model, machine.system)
    recipe = {name: defaults.model[name] for name in RECIPE_FIELDS - {*fields, *assumed} if name in defaults.model}
    model, assumed = replace(model, **recipe), {**assumed, **recipe}
    stated = stated_columns(row, model, defaults, assumed)
    defaults = defaults_of(framework, model, machine.system, stated)
    if system is None:
        differing = {name: number_of(name, value) for name, value in given.items() if name not in fields}
        machine = Machine(machine.name, {**defaults.quantities, **machine.quantities, **differing})
        assumed |= {name: value for name, value in defaults.quantities.items() if machine.quantities[name] == value}
    domains = DesignPoints.domains(model.blocks)
    usual = usual_columns(defaults, stated, domains)
    assumed |= {} if row.framework else {"framework": framework.name}
    assumed |= {name: value for name, value in PLAIN.items() if name in domains and name not in {**usual, **stated}}
    run = Expressed(model, machine, {**usual, **stated}, framework, {**usual, **assumed})
    if row.gpus and run.ranks != row.gpus:
        raise NotExpressed(f"a split that multiplies out to its GPUs ({run.ranks:g} of {row.gpus:g})")
    parts = model.num_layers + model.mtp_layers + len(("embedding", "head"))
    if run.count("pp", "vpp") > parts:
        raise NotExpressed(f"a layer for each of its {run.count('pp', 'vpp'):g} chunks of a pipeline")
    return run


def stated_columns(
    row: MeasuredRow, model: ModelShape, defaults: Defaults, assumed: dict[str, Any]
) -> dict[str, Value]:
    """Columns of the design that a row states; `assumed` takes values that follow from a rule of reading."""
    if not row.design:
        return {**values_of(with_split(row), model, defaults, assumed), **experts_of(row, model, defaults, assumed)}
    columns = pairs_of(row.design)
    row = replace(row, routing=str(columns.pop("routing", row.routing)))
    if str(columns.get("recompute", "")).startswith("selective("):
        stages = number_of("pp", columns.get("pp", 1))
        columns |= recompute_of(replace(row, recompute=str(columns["recompute"]), pp=stages), model)
    if "precision" in columns or row.dtype:
        columns["precision"] = precision_of(str(columns.get("precision", row.dtype)), "precision")
    return {**experts_of(row, model, defaults, {} if "imbalance" in columns else assumed), **columns}


def usual_columns(defaults: Defaults, stated: Mapping[str, Value], domains: Mapping[str, Domain]) -> dict[str, Value]:
    """Defaults for columns that a row does not state, as far as its design has them."""
    aliases = {alias.column for name, alias in DesignPoints.aliases.items() if name in stated}
    named = {*stated, *aliases, "imbalance"}
    named |= RECOMPUTING if any(name in RECOMPUTING for name in stated) else set()  # all of it, if a row states any
    usual = {name: value for name, value in defaults.columns.items() if name in domains and name not in named}
    both = {**usual, **stated}
    idle = {"overlap_param_gather"} if both.get("zero", 0) != 1 or not both.get("overlap_grad_reduce") else set()
    for size, names in (("tp", ("sharding", "tp_overlap")), ("cp", ("cp_communication",)), ("pp", ("vpp", "schedule"))):
        idle |= {*names} if both.get(size, 1) == 1 else set()
    usual = {name: value for name, value in usual.items() if name not in idle}
    if both.get("zero") == 3 and both.get("pp", 1) != 1 and "reshard_after_forward" not in both:
        usual["reshard_after_forward"] = 0.0  # the default of torchtitan and Megatron-FSDP with stages
    return usual


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
    try:
        return SWITCHES[text] if text in SWITCHES else plain_number(text)
    except ValueError:
        return text


def precision_of(text: str, column: str) -> str:
    """The number format that a cell names; `NotExpressed`, naming the column, if it names none."""
    if text in FORMATS:
        return text
    for pattern, word in WORDS["dtype"].items():
        if re.search(pattern, text, flags=re.IGNORECASE):
            return str(word)
    raise NotExpressed(f"a meaning of {text!r} in the column {column}")


def cell_word(row: MeasuredRow, column: str, text: str | None = None) -> Any:
    """Meaning of a cell, or of a `text` in it, by `words.yaml`; None for a cell that says nothing.

    Raises `NotExpressed`, naming the column, if no pattern matches.
    """
    cell = getattr(row, column)
    if cell in ("", "unstated"):
        return None
    for part in (text or cell, re.sub(r" \(.*\)$", "", cell)):
        for pattern, word in WORDS["cells"][column].items():
            if re.fullmatch(pattern, part, flags=re.IGNORECASE):
                return word
    raise NotExpressed(f"a meaning of {cell!r} in the column {column}")


def plain(name: str) -> str:
    """A name without the characters in which spellings differ."""
    return re.sub(r"[^a-z0-9]", "", re.sub(r"\(.*\)", "", name.lower()))


@cache
def _built_in_model(cell: str) -> str:
    """The built-in model that a cell names, in any spelling that `dse plan` takes; "" if there is none.

    >>> _built_in_model("qwen3.6-35b-a3b"), _built_in_model("glm5-2 (text)"), _built_in_model("unheard-of")
    ('qwen3_5_35b_a3b', 'glm_5_2', '')
    """
    name = current_name(re.sub(r"\s*\(.*\)", "", cell), "models")
    return name if name in model_names() else ""


def model_of(row: MeasuredRow, differing: Mapping[str, Any], framework: Framework) -> tuple[ModelShape, dict[str, Any]]:
    """The model of a row, and fields that are assumed: a built-in one, or GPT, or Llama-like where the MLP is gated.

    Columns describe dense models. For one with experts, or without dimensions in the row, the built-in file of its name
    counts; with fewer layers than this file it keeps the share of dense layers, and has no multi-token prediction.
    """
    seq: dict[str, Any] = {"seq_len": row.seq} if row.seq else {}
    shipped = _built_in_model(row.model)
    if row.model == shipped or (shipped and (not row.hidden or row.moe_experts)):
        model, cut = shipped_model(shipped, {}), {}
        if row.layers and row.layers < model.num_layers and row.model != shipped:
            dense = max(1, round(model.first_dense_layers * row.layers / model.num_layers))
            cut = {"first_dense_layers": min(dense, model.first_dense_layers), "mtp_layers": 0}
        layers = {"num_layers": row.layers} if row.layers and row.model != shipped else {}
        return shipped_model(shipped, {**layers, **cut, **seq, **differing}), cut
    if not (row.hidden and row.layers and row.heads and row.seq):
        raise NotExpressed("the dimensions of the model")
    like_gpt = dict.fromkeys(("biases", "dropout", "tied_embeddings"), not row.gated)
    assumed = {**like_gpt, "vocab_size": 51200.0, **defaults_of(framework).model}  # GPT-2's, padded for 8 ranks
    assumed = {name: value for name, value in assumed.items() if name != "vocab_size" or not row.vocab}
    return ModelShape(**{**assumed, **_fields(row, framework), **differing}), assumed


def _fields(row: MeasuredRow, framework: Framework) -> dict[str, Any]:
    """Fields of a model that is made of a row's columns."""
    fields: dict[str, Any] = {
        "name": row.model,
        "num_layers": row.layers,
        "hidden_size": row.hidden,
        "num_attention_heads": row.heads,
        "num_query_groups": row.kv_heads,
        "ffn_hidden_size": row.ffn,
        "seq_len": row.seq,
        # Megatron-LM's --make-vocab-size-divisible-by
        "vocab_multiple": 128.0 if framework.name.startswith("megatron") else 0.0,
        "gated_mlp": bool(row.gated),
        "normalization": "rms_norm" if row.gated else "layer_norm",
        "position_embedding": "rotary" if row.gated else "learned",
    }
    fields |= {"vocab_size": row.vocab} if row.vocab else {}
    if row.moe_experts:
        width = row.moe_ffn or row.ffn
        fields |= {"num_experts": row.moe_experts, "moe_topk": row.moe_topk, "moe_ffn_hidden_size": width}
    return fields


def with_split(row: MeasuredRow) -> MeasuredRow:
    """A row with the sizes of all groups of ranks: a missing one follows from the number of GPUs.

    Raises `NotExpressed` if they leave a choice.
    """
    split = {name: getattr(row, name) for name in ("tp", "cp", "pp", "dp")}
    lacking = [name for name, size in split.items() if not size]
    rest = row.gpus / math.prod(size for size in split.values() if size)
    if lacking and (rest == 1 or (rest > 1 and len(lacking) == 1)):
        return replace(row, **dict.fromkeys(lacking, rest))
    if lacking:
        batch = "" if row.gbs or row.mbs or row.ga else ", and its batch"
        raise NotExpressed(f"its split over ranks ({', '.join(lacking)}){batch}")
    return row


def counts_of(row: MeasuredRow, defaults: Defaults, assumed: dict[str, Any]) -> dict[str, float]:
    """Ranks and batch of a row; `NotExpressed` where it has no batch."""
    vpp = row.vpp or (float(defaults.columns.get("vpp", 1)) if row.pp > 1 else 1.0)
    if row.schedule.startswith("interleaved") and vpp == 1:
        vpp = 2.0  # the fewest chunks that interleave
    sequences, mbs, ga = row.gbs / row.dp, row.mbs, row.ga
    if sequences and mbs and ga and not math.isclose(sequences, mbs * ga):
        raise NotExpressed(f"a batch that multiplies out ({row.gbs:g} of {row.dp:g} * {mbs:g} * {ga:g})")
    if not (mbs or ga):
        if not sequences:
            raise NotExpressed("its batch")
        ga = min(row.pp * vpp, sequences) if defaults.rules.get("micro_batches") == "stages" else sequences
    if not (sequences or (mbs and ga)):
        ga = ga or 1.0  # a micro-batch for itself
        sequences = (mbs or 1.0) * ga
    mbs = mbs or sequences / ga
    counts = {"vpp": vpp, "micro_batch_size": mbs, "gradient_accumulation_steps": ga or sequences / mbs}
    follows = len([cell for cell in (row.gbs, row.mbs, row.ga) if cell]) > 1
    cells = {"vpp": row.vpp or row.pp == 1, "micro_batch_size": follows or row.mbs,
             "gradient_accumulation_steps": follows or row.ga}  # fmt: skip
    assumed |= {name: counts[name] for name, cell in cells.items() if not cell}
    return {**{name: getattr(row, name) for name in ("tp", "cp", "pp", "dp")}, **counts}


def sharding_of(row: MeasuredRow) -> dict[str, Value]:
    """Sharding of states among the replicas of a row, and overlap of their exchanges, as far as it states them."""
    values: dict[str, Value] = {}
    if cell := SHARDED.fullmatch(row.opt_shard):
        values["zero"] = cell_word(row, "opt_shard", cell["word"])
        for remark, columns in KEPT.items():
            values |= columns if remark in (cell["remark"] or "") else {}
        usual = NODE if cell["word"].upper() == "HSDP" else row.dp
        together = float(cell["groups"] or usual)
        if together < row.dp:
            values["shard_replicas"] = row.dp / together
    overlap = cell_word(row, "dp_overlap")
    return values if overlap is None else {**values, "overlap_grad_reduce": overlap}


def recompute_of(row: MeasuredRow, model: ModelShape, share: float = 1 / 2) -> dict[str, Value]:
    """Recomputation that a row states; of selected layers that of a `share` of them. [-]"""
    word = cell_word(row, "recompute")
    shares = {"selective(layer)": share, "selective(op)": OPERATORS_REPEATED}
    if word not in shares:
        return {"recompute": word} if word else {}
    layers = max(1, round(shares[word] * model.num_layers / row.pp))
    return {"recompute": "full", **({"recompute_layers": layers} if shares[word] < 1 else {})}


def experts_of(row: MeasuredRow, model: ModelShape, defaults: Defaults, assumed: dict[str, Any]) -> dict[str, Value]:
    """Dispatch, overlap, balance and offload that columns of a row state; without `routing`, experts are balanced."""
    named = {"dispatcher": "dispatcher", "ep_overlap": "overlap_ep"} if model.num_experts else {}
    values = {name: word for column, name in named.items() if (word := cell_word(row, column)) is not None}
    values |= dict.fromkeys((cell_word(row, "offload") or "").split(), 1.0)
    if graphs := cell_word(row, "cuda_graphs"):
        values["cuda_graphs"] = "none" if graphs == "partial" else graphs
        assumed |= {"cuda_graphs": "the host launches all kernels"} if graphs == "partial" else {}
    values |= {"offload_activations": 1.0} if "offloaded to the host" in row.recompute else {}
    routing = cell_word(row, "routing")
    if routing == "learned" and model.num_experts:
        values["imbalance"] = defaults.columns.get("imbalance", 1.0)
    assumed |= {"routing": "balanced"} if model.num_experts and not routing else {}
    return values


def values_of(row: MeasuredRow, model: ModelShape, defaults: Defaults, assumed: dict[str, Any]) -> dict[str, Value]:
    """The columns of the design that a row states."""
    fused, kernel = defaults.columns.get("attention", "unfused"), cell_word(row, "attn_kernel")
    fused = "fused" if fused == "unfused" else fused
    schedule = cell_word(row, "schedule")
    overlap = cell_word(row, "tp_overlap")
    values: dict[str, Value] = {
        **counts_of(row, defaults, assumed),
        **sharding_of(row),
        **recompute_of(row, model, defaults.rules.get("recomputed_layers", 1 / 2)),
        **({"sharding": "megatron_sp" if row.seq_par else "megatron"} if row.seq_par >= 0 else {}),
        **({"attention": fused if kernel == "flash" else kernel} if kernel else {}),
        **({"schedule": schedule} if schedule else {}),
        **({"tp_overlap": overlap} if overlap else {}),
        **({"precision": precision_of(row.dtype, "dtype")} if row.dtype else {}),
    }
    if row.pp > 1 and defaults.rules.get("last_stage") == "balanced":
        of_layers = sum(model.layer_parameters(layer) * count for layer, count in model.kinds.items())
        head = model.vocab_size * model.hidden_size / (of_layers / model.num_layers)
        values |= {"last_stage_layers": max(1, round((model.num_layers + head) / row.pp - head))}
        assumed["last_stage_layers"] = values["last_stage_layers"]
    return {**values, "ep": row.ep, "etp": 1} if model.num_experts else values


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
    flops = passes * run.model.forward_flops(causal=halved(row, run))
    if row.tflops_gpu:
        return float(tokens * flops / (row.tflops_gpu * 1e12))
    if row.mfu:
        return float(tokens * flops / (row.mfu * run.machine.system.chip.peak_flop_rate.item()))
    raise NotExpressed("its time (iter_time_s, tokens_s_gpu, tflops_gpu or mfu)")


def halved(row: MeasuredRow, run: Expressed) -> bool:
    """True if the FLOPs of a row's rate count only the causal half of attention."""
    if "attention in full" in row.tflops_kind:
        return False
    return "causal" in row.tflops_kind or bool(defaults_of(run.framework).rules.get("causal_flops"))
