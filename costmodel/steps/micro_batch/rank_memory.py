"""Parameters, activations and buffers of each part of a model on one rank, for any pipeline.

Each kernel states the bytes that it keeps for its backward pass and the parameters that it multiplies by. A rank has
its share of both by the kernel's sharding. Recomputation drops the tensors that the modules that run again have kept.
Stages of a pipeline multiply these amounts by their layers and micro-batches (`costmodel.steps.stage_memory`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Final

import numpy as np

from costmodel.columns import BoolArray, Columns, FloatArray, column
from costmodel.kernels.kernel_tables import biased, biases, is_quantised, operand_bytes, some_narrow, weights_of
from costmodel.training.blocks import HEAD, MODULES, OFFLOAD_MODULES, Layer, is_layer_norm
from costmodel.training.design import CP_A2A, CP_ALL_GATHER, RECOMPUTE_FULL, RECOMPUTE_NONE
from costmodel.training.kernel_kind import Kernel
from costmodel.training.precision import is_narrow
from costmodel.training.run import RankRun, is_packed, padded_vocabulary, some_adapters, trained_share


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class PartMemory(Columns):
    """Parameters and activations of one part of the model on one rank of any pipeline; (points,) each."""

    #: That replicas have in common, those of experts aside; a weight in NF4 counts as its share of 16 bits.
    parameters: FloatArray = column("-", 0)
    expert_parameters: FloatArray = column("-", 0)
    trained: FloatArray = column("-", 0)  #: of the parameters, those that have gradients and optimizer states
    trained_experts: FloatArray = column("-", 0)
    quantised: FloatArray = column("-", 0)  #: of the parameters, those that products read in fewer bits
    quantised_experts: FloatArray = column("-", 0)
    kept: FloatArray = column("B", 0)  #: of a micro-batch, for its backward pass
    hosted: FloatArray = column("B", 0)  #: of kept ones, those of modules that hosts hold in between
    moved: FloatArray = column("B", 0)  #: that these modules move to a host, and back
    everything: FloatArray = column("B", 0)  #: kept activations of a layer without recomputation
    working: FloatArray = column("B", 0)  #: while the part runs, in addition to kept tensors
    logits: FloatArray = column("-", 0)  #: of a micro-batch


#: Quantities of a system that `rank_memory` reads: whether formats need transposed copies, and kept activations.
MEMORY_READS: Final = ("mx_speedup", "software_kept_activations", "software_kept_gathers", "software_repeated_keys")


def rank_memory(run: RankRun) -> list[PartMemory]:
    """Memory of each part that `MicroBatch` has, from the shape of a rank.

    The embedding keeps the mask of its dropout: s b h / t of [Korthikanti2022]_. The head needs the inputs of the last
    norm and of the product, 4 s b h / t, and logits until its backward pass, which follows at once; of these nothing is
    kept. Inputs and masks are on every rank without sequence parallelism. A stage decides on the head's parameters.
    """
    model, shape, mask = run.model, run.design, 1.0 if run.model.dropout else 0.0
    logits = run.tokens * run.vocabulary_share
    padding = (padded_vocabulary(model, shape.tp) - model.vocab_size) * model.hidden_size
    table, trains = (model.embedding_parameters + padding) / shape.tp, trained_share(run)
    embedding = PartMemory(
        parameters=table,
        trained=table * trains,
        kept=run.tokens * model.hidden_size / shape.shards(shape.stream) * mask,
    )
    width = 2 * model.hidden_size + (model.features["stream"] if model.num_residual_streams > 1 else 0.0)
    heads, inputs = 1.0 + model.mtp_layers, run.bytes_of(width) / shape.shards(HEAD.kernels[0])
    head = PartMemory(working=heads * inputs, logits=heads * logits)
    if count := model.mtp_layers:
        ahead, norms = layer_memory(run, model.mtp_layer), count * model.norm_parameters
        every = ahead.map(lambda values: count * values)
        mtp = replace(
            every, parameters=every.parameters + norms, trained=every.trained + norms * trains, working=ahead.working
        )
        return [*(layer_memory(run, layer) for layer in model.kinds), embedding, head, mtp]
    return [*(layer_memory(run, layer) for layer in model.kinds), embedding, head]


def layer_parameters(run: RankRun, layer: Layer) -> FloatArray:
    """Parameters of one layer on one rank, those of routed experts aside. [-]

    Matrices of products are split, and biases where they are added to a split output; norms, routers and
    latents are on every rank, and parameters of attention cores are split by heads.
    """
    return sum(kernel_parameters_of(run, layer).values(), start=np.zeros(()))


def kernel_parameters_of(run: RankRun, layer: Layer) -> dict[str, FloatArray]:
    """Kernel -> its share of `layer_parameters`. [-]"""
    model, added = run.model, {kernel: biases(run, layer, kernel)[0] for kernel in biased(run, layer)}
    shares = {}
    for kernel in (kernel for kernel in layer.kernels if not kernel.of_experts):
        size = model.kernel_parameters(kernel) - model.bias_size(kernel)
        shares[kernel.name] = (np.full(1, size) if kernel.is_whole else size / run.design.tp) + added.get(kernel, 0.0)
    return shares


def expert_parameters(run: RankRun, layer: Layer) -> FloatArray:
    """Parameters of the routed experts of one layer on one rank. [-]"""
    return sum(run.model.kernel_parameters(k) for k in layer.kernels if k.of_experts) / (run.design.ep * run.design.etp)


def expert_parameters_of(run: RankRun, layer: Layer) -> dict[str, FloatArray]:
    """Kernel -> its share of `expert_parameters`. [-]"""
    kernels = [kernel for kernel in layer.kernels if kernel.of_experts]
    return {k.name: run.model.kernel_parameters(k) / (run.design.ep * run.design.etp) for k in kernels}


def quantised_parameters(run: RankRun, layer: Layer) -> tuple[FloatArray, FloatArray]:
    """Matrices of a layer on a rank that products read in a narrow format: all but experts, and these. [-]

    Nothing where no design has such a format.
    """
    model, shape, narrow = run.model, run.design, [k for k in layer.kernels if is_quantised(k)]
    if not some_narrow(run):
        return np.zeros(()), np.zeros(())
    share = np.where(is_narrow(shape.precision) & ~is_packed(run), 1.0, 0.0)
    split = sum(model.weights(k) for k in narrow if k.splits_weight) / shape.tp
    whole = sum(model.weights(k) for k in narrow if k.is_whole)
    experts = sum(model.weights(k) for k in narrow if k.of_experts) / (shape.ep * shape.etp)
    return share * (split + whole), share * experts


def layer_memory(run: RankRun, layer: Layer) -> PartMemory:
    """Parameters and activations of one layer and micro-batch on one rank, (points,). [-], [B]

    For GPT the activations are the table of [Korthikanti2022]_: s b h (10 + 24/t + 5 a s / (h t)), the 10 split by t in
    sequence parallelism, the term in a s dropped by selective recomputation, and 2 s b h (the input of the layer) when
    recomputation is full. Fused attention keeps one fp32 number per row of scores instead. Modules that are recomputed
    drop the tensors of `LayerModule.frees`. Recomputed tensors are alive again for a while: those of one layer that
    it would keep without recomputation; the widest output and its gradient, and the widest gathered input.
    """
    run = run.of_kernel(layer.stream)  # a layer's kernels have dimensions in common
    shape, recompute = run.design, run.design.recompute
    full, recomputed = recompute == RECOMPUTE_FULL, (recompute > RECOMPUTE_NONE) | (shape.recomputed_modules > 0)
    more = run.system.software.kept_activations
    everything = selected = more * layer_activations(run, layer, recomputing=False)
    if recomputed.any():
        selected = more * layer_activations(run, layer, recomputing=True)
    again = np.where(recomputed, everything - np.where(full, 0.0, selected), 0.0)
    wide = run.tokens * widest_tensors(run, layer)
    if any(kernel.of_experts for kernel in layer.kernels):
        sizes = run.model.features
        wide = np.maximum(wide, run.expert_tokens * (2 * sizes["expert_up"] / shape.etp + sizes["expert_in"]))
    quantised, quantised_experts = quantised_parameters(run, layer)
    hosted, moved = offloaded_inputs(run, layer) if shape.offloaded_modules.any() else (np.zeros(()), np.zeros(()))
    weights, trains = [layer_parameters(run, layer), expert_parameters(run, layer)], trained_share(run)
    trained = [size * trains for size in weights]
    if some_adapters(run):
        weights, trained, beside = with_adapters(run, layer, weights, trained)
        wide = wide + beside
    return PartMemory(
        parameters=weights[0],
        expert_parameters=weights[1],
        trained=trained[0],
        trained_experts=trained[1],
        quantised=quantised,
        quantised_experts=quantised_experts,
        kept=np.where(full, run.activation_bytes() / shape.shards(layer.stream), selected),
        hosted=more * hosted,
        moved=more * moved,
        everything=everything,
        working=again + run.precision.element_bytes * (wide + sequence_buffers(run, layer)),
    )


def with_adapters(
    run: RankRun, layer: Layer, weights: Sequence[FloatArray], trained: Sequence[FloatArray]
) -> tuple[list[FloatArray], list[FloatArray], FloatArray]:
    """Weights and trained parameters of a layer with its adapters, those of experts second; its largest weight in NF4.

    That weight is dequantized while its product runs; (points,) each. [-], [elements]
    """
    from costmodel.kernels.adapters import NF4_BYTES, adapter_parameters, may_adapt

    adapters = [kernel for kernel in layer.kernels if may_adapt(kernel)]
    added = sum((adapter_parameters(run, kernel) for kernel in adapters), start=np.zeros(()))
    saved, packed = 1 - NF4_BYTES / run.precision.element_bytes, np.where(is_packed(run), 1.0, 0.0)
    shares, sizes, largest = (run.design.tp, run.design.ep * run.design.etp), [np.zeros(()), np.zeros(())], np.zeros(())
    for kernel in adapters:
        size = run.model.weights(kernel) / (1.0 if kernel.is_whole else shares[kernel.of_experts])
        sizes[kernel.of_experts] = sizes[kernel.of_experts] + size
        largest = np.maximum(largest, size)
    kept = [weight - packed * saved * size if np.any(size > 0) else weight
            for weight, size in zip(weights, sizes, strict=True)]  # fmt: skip
    return [kept[0] + added, kept[1]], [trained[0] + added, trained[1]], packed * largest


def sequence_buffers(run: RankRun, layer: Layer) -> FloatArray:
    """Keys and values of other ranks of a sequence: of one, or of all where they are gathered. [elements]"""
    exchanged = [kernel.kind.exchanged for kernel in layer.kernels]
    keys_values = sum(
        of.keys_values(run.model) * (run.design.tp if of.whole else 1.0) for of in exchanged if of.keys_values
    )
    shape = run.design
    gathered = np.where(shape.cp_communication == CP_ALL_GATHER, shape.cp - 1, np.minimum(shape.cp - 1, 1.0))
    held = np.where(shape.cp_communication == CP_A2A, 0.0, gathered)
    return held * run.tokens * keys_values * run.key_repeats / shape.tp


def layer_activations(run: RankRun, layer: Layer, *, recomputing: bool) -> FloatArray:
    """Bytes kept of a layer's forward pass on a rank, less the part that recomputed modules drop, or all of it."""
    shape = run.design
    inputs = sum((kept for _, kept in kept_inputs(run, layer, recomputing=recomputing)), start=np.zeros(()))
    cores, scores, rows = 0.0, shape.attention == 0, shape.attention > 0
    others: FloatArray | float = 0.0
    for kernel in layer.kernels:
        inside = [one for one in MODULES if recomputing and one.kind == "checkpoint" and one.has(kernel)]
        if kernel.is_core:
            cores += 1
            scores = scores & ~shape.recomputes(inside)
            for module in inside:
                rows = rows & ~shape.is_on(module)
        elif kernel.kind.kept.inside:
            inner = kernel.kind.kept.inside(run, kernel)
            others = others + (np.where(shape.recomputes(inside), 0.0, inner) if inside else inner)
    return inputs + (cores * core_activation_bytes(run, scores, rows) + others) / shape.tp


def offloaded_inputs(run: RankRun, layer: Layer) -> tuple[FloatArray, FloatArray]:
    """Bytes of a layer's kept inputs that hosts hold by modules, and those that move to them, (points,) each. [B]

    An attention core moves its output too, and inputs that are recomputed for other kernels (Megatron-LM,
    fine_grained_activation_offload.py). A norm that one product reads is of that product's module: Transformer Engine
    runs both as one, and Megatron-LM has no separate norm there (gpt_layer_specs.py).
    """
    shape, hosted, moved = run.design, np.zeros(()), np.zeros(())
    both = (kept_inputs(run, layer, recomputing=recomputing) for recomputing in (True, False))
    for (kernel, kept), (_, whole) in zip(*both, strict=True):
        readers = [reader for reader in layer.kernels if kernel.name in reader.inputs]
        fused = len(readers) == 1 and readers[0].megatron == "column" and is_layer_norm(kernel)
        owner = readers[0] if fused else kernel
        leaves = reduce(np.maximum, (shape.is_on(m) for m in OFFLOAD_MODULES if m.has(owner)), np.zeros(1))
        hosted = hosted + leaves * kept
        output = run.activation_bytes(kernel.makes) / shape.tp if kernel.is_core else 0.0
        moved = moved + leaves * (whole + output if kernel.is_core else kept)
    return hosted, moved


def kept_inputs(run: RankRun, layer: Layer, *, recomputing: bool) -> Iterator[tuple[Kernel, FloatArray]]:
    """Bytes that a rank keeps of the input of each kernel of a layer's forward pass, (points,). [B]

    Tensors inside of its attention core are left out. A gradient needs the input of its kernel, and that of a dropout
    its mask. A gathered input is kept in the form in which the kernel before it wrote it, unless `kept_gathers` is 1;
    one in a narrow format in that format, except the output of an attention core, which is kept in 16 bits.
    """
    shape, of_products = run.design, dict[Kernel, list[tuple[BoolArray, bool, BoolArray]]]()
    formats, adapters, as_gathered = some_narrow(run), some_adapters(run), run.system.software.kept_gathers > 0
    if adapters:
        from costmodel.kernels.adapters import LoraAdapter
    for kernel in layer.kernels:
        before = layer.input_of(kernel)
        is_shared = shape.shards(kernel) == shape.tp
        kept = kernel.kind.kept.input(run, kernel)
        if dropping := [module for module in MODULES if recomputing and module.frees(before, kernel)]:
            kept = np.where(shape.recomputes(dropping), 0.0, kept)
        made, needs = np.zeros(()), np.ones((), dtype=bool)  # by adapters, and whether the input is needed
        if adapters and kernel.kind.matrix:  # frozen products keep nothing, adapters their inputs as they are gathered
            made = LoraAdapter.of(run.model, run.design, kernel).made
            needs = (trained_share(run) > 0) | (made > 0)
            kept = np.where(needs, kept, 0.0)
        by_adapter = made > 0
        if kernel.kind.matrix and not kernel.of_experts:
            is_shared = shape.is_split(kernel, "row") | (shape.shards(before) == shape.tp)
            is_shared = is_shared & ~((by_adapter | as_gathered) & shape.is_split(kernel, "column") & (shape.tp > 1))
            narrow = is_quantised(kernel) and not before.is_core
            # an input that one product keeps is not kept again by others
            for others, alike, is_kept in of_products.setdefault(before, []):
                twice = (narrow != alike) & is_narrow(shape.precision) if formats else False
                kept = np.where((is_shared == others) & is_kept & ~np.asarray(twice), 0.0, kept)
            of_products[before].append((is_shared, narrow, needs))
        if formats and is_quantised(kernel) and not layer.input_of(kernel).is_core:
            kept = kept * np.where(by_adapter, 1.0, operand_bytes(run) / run.precision.element_bytes)
        kept = np.where(is_shared, kept / shape.tp, kept)
        if by_adapter.any():  # outputs of A: whole on each rank
            kept = kept + run.precision.element_bytes * (run.expert_tokens if kernel.of_experts else run.tokens) * made
        yield kernel, kept


def core_activation_bytes(run: RankRun, keeps_scores: BoolArray, keeps_rows: BoolArray) -> FloatArray:
    """Bytes kept inside an attention core, of all heads: scores, or if fused a number per row of them. [B]"""
    w, mask = run.precision.element_bytes, 1.0 if run.model.dropout else 0.0
    rows = run.tokens * run.model.num_attention_heads
    # Softmax, its dropout's mask and result.
    scores = rows * run.model.key_len * (2 * w + mask if mask else w)
    return np.where(keeps_scores, scores, np.where(keeps_rows, 4.0 * rows, 0.0))


def widest_tensors(run: RankRun, layer: Layer) -> FloatArray:
    """Features for each token of the widest output split by columns, its gradient, and the widest gathered input."""
    shape, output, gathered = run.design, np.zeros(np.shape(run.design.tp)), np.zeros(np.shape(run.design.tp))
    for product in weights_of(layer):
        is_split = shape.is_split(product, "column")
        if product.megatron == "column":
            output = np.maximum(output, run.model.features[product.makes] / np.where(is_split, shape.tp, 1.0))
        gathers = is_split & (shape.shards(layer.input_of(product)) > 1) & (run.system.software.kept_gathers == 0)
        gathered = np.maximum(gathered, np.where(gathers, run.model.features[product.reads], 0.0))
    return 2 * output + gathered
