"""Parameters, FLOPs and activations against what their authors printed."""

import pytest

from costmodel import DesignPoints, DseError, ModelShape, load_model, load_system, step
from costmodel.steps.micro_batch.rank_memory import layer_memory, layer_parameters, rank_memory
from costmodel.steps.pipeline.stages import pipeline_stages
from costmodel.steps.stage_memory import fullest_stage, held_micro_batches
from costmodel.training.blocks import DECODER
from costmodel.training.precision import MIXED_PRECISION
from tests.support.cases import by_table, cases
from tests.support.runs import ranks_of, run_of

# Narayanan et al., SC'21, Table 1: vocab_size 51200, seq_len 2048.
TABLE_1 = cases(__file__, "TABLE_1")


def gpt(num_layers: float, hidden_size: float, num_attention_heads: float) -> ModelShape:
    return ModelShape(num_layers=num_layers, hidden_size=hidden_size, num_attention_heads=num_attention_heads)


@pytest.mark.parametrize(("num_layers", "hidden_size", "heads", "billions"), TABLE_1)
def test_parameter_count_matches_narayanan_2021_table_1(num_layers, hidden_size, heads, billions):
    model = gpt(num_layers, hidden_size, heads)
    assert model.num_parameters / 1e9 == pytest.approx(billions, abs=0.05)  # printed to 0.1


def test_parameter_count_matches_narayanan_2021_equation_2():
    """P = 12 l h^2 (1 + 13/(12h) + (V + s)/(12 l h)), which leaves out the final layer norm's 2 h."""
    layers, h, s, v = 24, 2304, 2048, 51200
    equation = 12 * layers * h**2 * (1 + 13 / (12 * h) + (v + s) / (12 * layers * h))
    assert gpt(layers, h, 24).num_parameters == pytest.approx(equation + 2 * h, rel=1e-15)


@pytest.mark.parametrize(("num_layers", "hidden_size", "heads", "_"), TABLE_1)
def test_flops_match_narayanan_2021_equation_3(num_layers, hidden_size, heads, _):
    """F = 96 B s l h^2 (1 + s/(6h) + V/(16 l h)): layers four times, logits thrice, attention in full."""
    model = gpt(num_layers, hidden_size, heads)
    s, v = model.seq_len, model.vocab_size
    logits = 2 * s * hidden_size * v
    iteration = 4 * (s * model.forward_flops(causal=False) - logits) + 3 * logits
    equation = (
        96 * s * num_layers * hidden_size**2
        * (1 + s / (6 * hidden_size) + v / (16 * num_layers * hidden_size))
    )  # fmt: skip
    assert iteration == pytest.approx(equation, rel=1e-14)


@pytest.mark.parametrize("name", ["llama2_7b", "llama2_70b", "llama3_8b", "llama3_405b", "gpt2_xl"])
def test_parameters_and_flops_of_rows_are_those_of_closed_forms(name):
    """Narayanan et al. 2021, and its like for grouped queries and gated MLPs, letter by letter."""
    model = load_model(name)
    h, f, s, v, layers = (
        getattr(model, name) for name in ("hidden_size", "ffn_hidden_size", "seq_len", "vocab_size", "num_layers")
    )
    queries, keys = model.num_attention_heads * model.head_size, model.num_query_groups * model.head_size
    up = 2 if model.gated_mlp else 1
    matrices = h * (queries + 2 * keys) + queries * h + up * h * f + f * h
    biases = queries + 2 * keys + h + up * f + h if model.biases else 0
    norms = 2 * (2 * h if model.normalization == "layer_norm" else h)
    assert sum(map(model.weights, DECODER.kernels)) == matrices
    assert model.layer_parameters(DECODER) == matrices + biases + norms
    assert model.forward_flops_per_sequence == layers * (2 * s * matrices + 2 * s * s * queries) + 2 * s * h * v


# Korthikanti et al. 2022, figure 1: num_layers, hidden_size, heads, tp, pp, vpp, micro-batch, micro-batches;
# then GiB of activations on the first stage without recomputation, and with selective recomputation and
# sequence parallelism; and GiB of parameters, gradients and optimizer states.
FIGURE_1 = cases(__file__, "FIGURE_1")


@pytest.mark.parametrize(("shape", "layout", "gibibytes"), FIGURE_1)
def test_memory_matches_korthikanti_2022_figure_1(shape, layout, gibibytes):
    model = gpt(*shape)
    tp, pp, vpp, micro_batch_size, steps = layout
    design = DesignPoints.of(
        tp=tp, pp=pp, vpp=vpp, micro_batch_size=micro_batch_size, gradient_accumulation_steps=steps,
        attention="unfused", recompute=["none", "selective"], sequence_parallel=[0, 1],
    )  # fmt: skip
    [in_flight, *_] = held_micro_batches(design, pipeline_stages(model, design).foremost)
    kept = model.num_layers / design.pp * in_flight * kept_by_a_layer(model, design)
    none, selective, states = gibibytes
    assert (kept / 2**30).tolist() == pytest.approx([none, selective], rel=1e-12)
    # The figure counts 18 bytes for each of the 12 l h^2 weights of the layers.
    bytes_per_weight = MIXED_PRECISION.element_bytes + MIXED_PRECISION.gradient_bytes + MIXED_PRECISION.state_bytes
    weights = model.num_layers * sum(map(model.weights, DECODER.kernels)) / (tp * pp)
    assert weights * bytes_per_weight / 2**30 == pytest.approx(states, rel=1e-12)


@by_table("recompute", "sequence_parallel", "per_sbh")
def test_activations_match_korthikanti_2022_table_2(recompute, sequence_parallel, per_sbh):
    model = gpt(48, 6144, 64)
    design = DesignPoints.of(tp=8, attention="unfused", recompute=recompute, sequence_parallel=sequence_parallel)
    assert kept_by_a_layer(model, design) / (model.seq_len * model.hidden_size) == pytest.approx(per_sbh, rel=1e-14)


def kept_by_a_layer(model, design):
    """Bytes of activations of a layer and micro-batch."""
    return layer_memory(ranks_of(model, design), DECODER).kept


def memories(model, design):
    """Memory of the stages that have more of something than those before: the first and the last."""
    run, ranks = run_of(model, design), ranks_of(model, design)
    stages = pipeline_stages(model, design).foremost
    return fullest_stage(run, ranks, rank_memory(ranks), stages).memories


def test_all_ranks_together_hold_all_parameters():
    """Norms and some biases are on every tensor-parallel rank; everything else is held once."""
    model = gpt(24, 2304, 24)
    assert layer_parameters(ranks_of(model, DesignPoints.of()), DECODER) == model.layer_parameters(DECODER)
    [only] = memories(model, DesignPoints.of())
    assert only.weights == 2 * model.num_parameters


@pytest.mark.parametrize(("columns", "message"), cases(__file__, "impossible_designs_are_refused"))
def test_impossible_designs_are_refused(columns, message):
    with pytest.raises(DseError, match=message):
        DesignPoints.of(**columns)


def test_an_argument_of_another_type_is_named():
    with pytest.raises(DseError, match="expected an object of class ModelShape, not 'gpt2_xl'"):
        step("gpt2_xl", load_system("h100_80g_dgx"), DesignPoints.of())
