"""Layers as rows: one that does not ship is evaluated, split, solved and exported like those that do."""

import ast
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import costmodel
from costmodel import DesignPoints, DseError, ModelShape, load_model, resolve_sharding, step
from costmodel.kernels.kernel_tables import total, transformer_gemms
from costmodel.steps.micro_batch.exchanges import sent_bytes
from costmodel.steps.micro_batch.rank_memory import layer_memory
from costmodel.steps.pipeline.stages import every_stage, stage_layers
from costmodel.training.blocks import (
    ASSIGNMENTS,
    BLOCKS,
    DECODER,
    EMBEDDING,
    HEAD,
    Block,
    Layer,
    assignments_of,
    usual_sharding,
)
from costmodel.training.design import sharding_column
from costmodel.training.kernel_kind import Kernel
from costmodel.training.kinds import KINDS
from dse.adapters.dfmodel.export import design_sharding, rows_of
from dse.adapters.dfmodel.files import graph_message, setup_text
from dse.adapters.dfmodel.graph import Traffic, least_moving
from dse.adapters.dfmodel.layer import model_graph
from tests.support.cases import cases
from tests.support.runs import ranks_of
from tests.support.sharded_layer import MODEL, ShardedLayer, check_ranks, shapes

#: Attention and MLP side by side behind one norm, as in GPT-J, PaLM and MegaScale: no block that ships.
PARALLEL = Block("parallel", cases(__file__, "PARALLEL"))
LAYER = Layer((PARALLEL,))
EVERY = assignments_of((LAYER,))


def parallel(model: ModelShape) -> ModelShape:
    """The same model with the other layer."""
    return replace(model, layers=((LAYER, model.num_layers),))


def assigned(numbers: np.ndarray, **layout: object) -> DesignPoints:
    """Designs of one layout, one for each assignment."""
    columns = {sharding_column(kernel): EVERY.place(numbers, kernel) for kernel in EVERY.options}
    return DesignPoints.of(blocks=[PARALLEL], sharding="sample", **columns, **layout)


@pytest.mark.parametrize("block", [*BLOCKS, PARALLEL], ids=lambda block: block.name)
def test_rows_are_of_known_kinds_and_read_what_comes_before(block):
    made = {"stream"}
    for kernel in block.kernels:
        assert kernel.kind in KINDS.values()
        assert {*kernel.inputs} <= made
        assert (kernel.megatron != "") == kernel.splits_weight
        made.add(kernel.name)
    sizes = load_model("gpt3_175b").features
    assert all(kernel.reads in sizes and kernel.makes in sizes for kernel in block.kernels)


#: Modules that name no kernel of a transformer, though words of theirs are spelled like one.
OTHER_WORDS = {
    *("lstm", "deepflow", "deepflow_report", "power_budget"),  # models and machines of other making
    "phases",  # words in a compiled program's names
}


def test_kernels_are_named_where_they_are_described():
    """Few strings name a kernel of a layer, the embedding or the head: all else is derived."""
    names = {kernel.name for block in (*BLOCKS, EMBEDDING, HEAD) for kernel in block.kernels}
    package, actual = Path(costmodel.__file__).parents[1], []
    quoted = re.compile(f"[\"']({'|'.join(sorted(names))})[\"']")
    for path in sorted([*package.glob("costmodel/**/*.py"), *package.glob("dse/**/*.py")]):
        text = path.read_text()
        if OTHER_WORDS.isdisjoint({path.stem, *path.parent.parts}) and quoted.search(text):
            nodes = ast.walk(ast.parse(text))
            words = [node.value for node in nodes if isinstance(node, ast.Constant)]
            actual += [(path.name, word) for word in words if isinstance(word, str) and word in names]
    assert 0 < len(actual) < 60, actual


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_side_by_side_a_layer_has_all_but_a_norm(name, request, toy_system):
    """Parameters and products are the same; one norm less is run, and kept."""
    model = request.getfixturevalue(name)
    other = parallel(model)
    assert model.layer_parameters(DECODER) - other.layer_parameters(LAYER) == model.norm_parameters
    assert other.forward_flops_per_sequence == model.forward_flops_per_sequence
    design = DesignPoints.of(tp=[1, 2, 8], micro_batch_size=3)
    flops = [
        total(gemms.count * gemms.batch * gemms.m * gemms.n * gemms.k)
        for gemms in (transformer_gemms(ranks_of(shape, design)) for shape in (model, other))
    ]
    assert flops[0].tolist() == flops[1].tolist()
    one, two = step(model, toy_system, design), step(other, toy_system, design)
    assert np.all(two.forward_time < one.forward_time)
    # A norm keeps its input, and what comes after it the norm's output: s b h elements of two bytes each.
    kept = [layer_memory(ranks_of(shape, design), layer).kept for shape, layer in ((model, DECODER), (other, LAYER))]
    masks = 1 if model.dropout else 0
    assert (kept[0] - kept[1]).tolist() == [3 * model.seq_len * model.hidden_size * (4 + masks)] * 3


def test_ranks_compute_it_as_one_chip_does():
    """Forward, backward, and gradients of weights of every fifth assignment, by the exchanges of the cost model."""
    rng, model = np.random.default_rng(3), parallel(MODEL)
    weights = {name: rng.normal(size=shape) for name, shape in shapes(LAYER).items()}
    alone = ShardedLayer(ranks_of(model, assigned(np.zeros(1), tp=1)), weights, LAYER)
    assert EVERY.count == 2 * 2 * 2 * 3 * 2 * 2 * 3
    runs = (ranks_of(model, assigned(np.array([number]), tp=2)) for number in range(0, EVERY.count, 5))
    check_ranks(alone, (ShardedLayer(run, weights, LAYER) for run in runs), rng)


@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_its_best_sharding_is_found(name, request, toy_system):
    model = parallel(request.getfixturevalue(name))
    layout = {"tp": 4, "pp": 2, "gradient_accumulation_steps": 4, "micro_batch_size": 2}
    every = step(model, toy_system, assigned(np.arange(EVERY.count), **layout))
    solved = step(model, toy_system, DesignPoints.of(sharding="solve", **layout))
    assert solved.step_time == every.step_time[every.peak_memory <= toy_system.dram.capacity].min()
    design = resolve_sharding(model, toy_system, DesignPoints.of(sharding="solve_bytes", **layout))
    sent = [sum(map(sum, (sent_bytes(ranks_of(model, d), e) for e in LAYER.edges)))
            for d in (assigned(np.arange(EVERY.count), **layout), design)]  # fmt: skip
    assert sent[1] == sent[0].min()


def test_it_is_written_for_dfmodel(gpt):
    """Each weight has its product, its gradient, and the gradient of its input."""
    model = parallel(gpt)
    graph = model_graph(model)
    weighted = [name for name in graph.names if name in ("Q", "K", "V", "PROJ_GEMM", "FFN0", "FFN1")]
    assert len(weighted) == 6
    for name in weighted:
        assert {name, f"{name}_bwd", f"{name}_bwd_weight_update"} <= {*graph.names}
    native = transformer_gemms(ranks_of(model, DesignPoints.of(attention="unfused")))
    inside = [n for n, label in enumerate(native.labels) if label.kernel != "head"]
    flops = (native.count * native.batch * native.m * native.n * native.k)[0, inside].sum()
    assert (graph.outer * graph.m * graph.k * graph.n)[graph.systolic].sum() == flops
    assert graph.levels()[graph.names.index("residual")] == 10  # and it flows one way
    sharding = least_moving(graph).choices
    assert setup_text(graph_message(graph, Traffic.of(graph, sharding))).count("kernels {") == len(graph)


def test_the_graph_of_a_parallel_block_has_a_split_for_each_kernel(gpt):
    graph = model_graph(parallel(gpt))
    assert len(design_sharding(graph, LAYER, EVERY.words(EVERY.named["megatron_sp"]))) == len(graph.names)
    assert {row.name for row in rows_of(graph, LAYER)} == {kernel.name for kernel in PARALLEL.kernels}


def test_what_a_profile_has_no_rows_for_it_says(gpt, toy_system):
    with pytest.raises(DseError, match="layers of several kinds; DFModel's graph is of one layer"):
        model_graph(mixed(gpt, 3))
    with pytest.raises(DseError, match="mlp_norm_sharding: the model has no such kernel"):
        step(parallel(gpt), toy_system, DesignPoints.of(sharding="sample", mlp_norm_sharding="sequence"))
    with pytest.raises(DseError, match="norm_sharding: unknown column"):
        DesignPoints.of(norm_sharding="sequence")


# -- layers of several kinds --------------------------------------------------------------------------------


def mixed(model: ModelShape, first: float) -> ModelShape:
    """Some layers of GPT's, then the others side by side."""
    return replace(model, layers=((DECODER, first), (LAYER, model.num_layers - first)))


@pytest.mark.parametrize(("layers", "pp", "vpp"), [(24, 4, 3), (24, 1, 1), (30, 4, 2), (7, 2, 1), (62, 32, 1)])
def test_every_layer_is_on_one_stage(layers, pp, vpp):
    """Of each kind as many as the model has; each stage in all as in closed form."""
    model = ModelShape(num_layers=layers, hidden_size=64, num_attention_heads=4)
    first = layers // 3
    mixed_model = mixed(model, first)
    stages = every_stage(mixed_model, DesignPoints.of(pp=pp, vpp=vpp))
    counts = np.array([[kind.item() for kind in stage.layers] for stage in stages])
    assert counts.sum(axis=0).tolist() == [first, layers - first]
    dealt = stage_layers(layers, pp, vpp, np.arange(pp))
    assert counts.sum(axis=1).tolist() == dealt.tolist()
    assert dealt.sum() == layers
    assert dealt[1:-1].max(initial=0) == (dealt[1] if pp > 2 else 0)  # no inner stage has more than the second
    assert dealt[0] <= dealt[-1]
    if vpp == 1:  # and they follow one another in the order of the model
        assert np.flatnonzero(counts[:, 0]).tolist() == [*range(np.count_nonzero(counts[:, 0]))]


def test_counts_of_layers_sum_to_the_models():
    with pytest.raises(DseError, match="layers: expected 24 in all, as num_layers says"):
        ModelShape(num_layers=24, hidden_size=64, num_attention_heads=4, layers=((DECODER, 12), (LAYER, 11)))


@pytest.mark.parametrize("tokens", ASSIGNMENTS.values())
def test_named_assignments_split_every_kind_of_kernel_that_has_a_choice(tokens):
    for kind in KINDS.values():
        kernel = Kernel("kernel", kind, "hidden", "hidden", "row", ())
        assert (len(kind.shardings) > 1) == (kind.usual_split != "")
        assert len(kind.shardings) == 1 or usual_sharding(kernel, tokens) in kind.shardings
