"""Recomputation by module and by number of layers: bytes of a published table, time of the forward pass."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import DesignPoints, DseError, ModelShape, load_model, load_system, step
from costmodel.kernels.kernel_tables import parts_of
from costmodel.machine import System
from costmodel.rules.registry import design_rules
from costmodel.rules.rules import Workload
from costmodel.steps.micro_batch.micro_batch import cost_table, micro_batches
from costmodel.steps.micro_batch.rank_memory import layer_memory, rank_memory
from costmodel.steps.pipeline.stages import every_stage, pipeline_stages
from costmodel.steps.stage_memory import fullest_stage
from costmodel.training.blocks import MODULES
from dse.adapters.simai.design_rows import design_workload
from tests.support.cases import cases
from tests.support.runs import designs, ranks_of, run_of

W = 2  # bytes of an element
SWITCHES = [module.column for module in MODULES]
NEW = {*SWITCHES, "recompute_method", "recompute_layers"}


@pytest.fixture
def links(links) -> System:
    """Every byte sent costs a joule, on either tier; the host launches at once."""
    return links.with_quantities({"host_dispatch": 0.0})


def layers_of(model: ModelShape):
    """The dense layer, and the one with experts where the model has some."""
    kinds = [*model.kinds]
    return kinds[0], kinds[-1]


def freed_by_table(model: ModelShape) -> dict[str, tuple[float, float]]:
    """Module -> bytes for each token, in a dense layer and in one with experts; shared out over tp."""
    h, a, f = model.hidden_size, model.num_attention_heads, model.ffn_hidden_size
    score, value, k = model.score_size, model.value_size, model.moe_topk
    fe, fs, gated = model.moe_ffn_hidden_size, model.shared_ffn_hidden_size, 6 if model.gated_mlp else 4
    latent = 4 * a * score + 2 * a * value if model.attention == "mla" else 0
    moe = k * (2 * h + gated * fe) + 8 * model.num_experts
    return {
        "core_attn": (4 * a, 4 * a),
        "layernorm": (4 * h, 4 * h),
        "mla_up_proj": (latent, latent),
        "moe_act": (0, 2 * k * fe),
        "mlp": (gated * f, 0),
        "shared_experts": (0, gated * fs),
        "moe": (0, moe),
    }


@pytest.mark.parametrize("model", ["gpt3_175b", "llama3_8b", "deepseek_v3", "mixtral_8x7b"])
def test_each_module_frees_what_the_table_says_and_needs_it_while_it_runs(model):
    """Each row for a dense layer and one with experts; what a layer frees is there again for a while."""
    shape, tp, tokens = load_model(model), 4, 2 * 512
    shape = replace(shape, seq_len=512.0)
    dense, routed = layers_of(shape)
    table = freed_by_table(shape)
    has_dense = not any(kernel.of_experts for kernel in dense.kernels)
    has_experts = any(kernel.of_experts for kernel in routed.kernels)
    base = {"tp": tp, "micro_batch_size": 2, "sequence_parallel": 1}
    known = {*DesignPoints.domains(shape.blocks)}
    for module, freed in table.items():
        column = f"recompute_{module}"
        if column not in known:
            assert not any(amount for amount, has in zip(freed, (has_dense, has_experts), strict=True) if has)
            continue
        design = designs(shape, **base, **{column: [0, 1]})
        for layer, amount, has in ((dense, freed[0], has_dense), (routed, freed[1], has_experts)):
            if has:
                memory = layer_memory(ranks_of(shape, design), layer)
                kept, working = (np.broadcast_to(values, 2) for values in (memory.kept, memory.working))
                assert kept[0] - kept[1] == pytest.approx(amount * tokens / tp, rel=1e-9, abs=1e-3), module
                assert working[1] - working[0] == pytest.approx(kept[0] - kept[1], abs=1e-3)
                assert memory.everything == pytest.approx(kept[0])


def test_hosts_hold_inputs_of_offloaded_modules(h100):
    """In 16 bits (transformer_config.py, offload_modules); cores move their outputs too, and inputs that run again."""
    model = load_model("deepseek_v3")
    heads, k, expert = model.num_attention_heads, model.moe_topk, model.moe_ffn_hidden_size
    output, inputs = heads * model.value_size, heads * (2 * model.score_size + model.value_size)
    table = {"core_attn": inputs, "attn_proj": output, "expert_fc1": k * model.hidden_size, "moe_act": 2 * k * expert}
    table["fused_group_mlp"] = k * (model.hidden_size + 3 * expert)
    table |= dict.fromkeys(("attn_norm", "mlp_norm"), model.hidden_size)  # apart from products that read them
    table["qkv_linear"] = model.hidden_size + 2 * (model.q_lora_rank + model.kv_lora_rank)  # inputs of norms, too
    for module, features in table.items():
        columns = {f"offload_{module}": 1, "recompute_mla_up_proj": [0, 1]}
        memory = layer_memory(ranks_of(model, designs(model, **columns)), layers_of(model)[1])
        again, more = (0, output) if module == "core_attn" else (features, 0)
        assert memory.hosted / (W * model.seq_len) == pytest.approx([features, again])
        assert memory.moved / (W * model.seq_len) == pytest.approx(features + more)
    llama = load_model("llama3_8b")  # its norms are part of the products (gpt_layer_specs.py)
    memory = layer_memory(ranks_of(llama, designs(llama, offload_qkv_linear=1)), layers_of(llama)[0])
    assert memory.hosted / (W * llama.seq_len) == pytest.approx(2 * llama.hidden_size)
    half = designs(model, offload_expert_fc1=[0, 1, 1], activation_offload_fraction=[1, 1, 0.5])
    kept = step(model, h100, half).activations_memory / (W * model.seq_len * table["expert_fc1"])
    assert kept[0] - kept[1:] == pytest.approx([58 - 2, 29 - 2])  # 2 are on their way


def test_scores_of_unfused_attention_are_freed_as_by_selective_recomputation():
    """5 a s for each token, 2 a s without dropout."""
    for model, scores in (("gpt3_175b", 5), ("llama3_8b", 2)):
        shape = load_model(model)
        design = designs(shape, attention="unfused", recompute_core_attn=[0, 1])
        kept = layer_memory(ranks_of(shape, design), layers_of(shape)[0]).kept
        assert kept[0] - kept[1] == pytest.approx(scores * shape.num_attention_heads * shape.seq_len * shape.seq_len)


def again(model, system, **columns):
    """Kernels of the last kind of layer that run again."""
    run = ranks_of(model, designs(model, **columns), system)
    return micro_batches(run).again[-1 if not model.mtp_layers else len(model.kinds) - 1]


#: Module -> its rows of blocks.
ROWS = cases(__file__, "ROWS")


@pytest.mark.parametrize("module", ROWS)
def test_what_runs_again_takes_as_long_as_it_took_forward(module, links):
    model = load_model("deepseek_v2_lite")
    run = ranks_of(model, designs(model), links)
    part = parts_of(model)[len(model.kinds) - 1]
    expected = cost_table(run).kernels_time(part, ROWS[module], "forward")
    assert again(model, links, **{f"recompute_{module}": 1}).time == pytest.approx(expected)


def test_what_runs_again_sends_what_its_kernels_need(links):
    """An MLP gathers and scatters, a core goes around the ring, experts exchange tokens."""
    tp, cp, ep = 4, 2, 8
    llama, v3 = load_model("llama3_8b"), load_model("deepseek_v3")
    tokens, part = llama.seq_len / cp, (tp - 1) / tp
    layout = {"tp": tp, "cp": cp, "sequence_parallel": 1}

    def sent(model, module, **more):
        return again(model, links, **layout, **more, **{f"recompute_{module}": 1}).link_energy.item()

    assert sent(llama, "mlp") == pytest.approx(2 * part * W * tokens * llama.hidden_size)
    assert sent(llama, "core_attn") == pytest.approx((cp - 1) * 2 * W * tokens * llama.key_value_size / tp)
    assert sent(llama, "layernorm") == 0
    tokens, experts = v3.seq_len / cp, {"dp": 8, "ep": ep}
    assert sent(v3, "mla_up_proj", **experts) == pytest.approx(part * W * tokens * (v3.q_lora_rank + v3.kv_lora_rank))
    assert sent(v3, "moe_act", **experts) == 0
    routed = 2 * (ep - 1) / ep * W * tokens / tp * v3.moe_topk * v3.hidden_size
    assert sent(v3, "moe", **experts) == pytest.approx(routed)
    assert sent(v3, "shared_experts", **experts) == pytest.approx(2 * part * W * tokens * v3.hidden_size)


def test_modules_of_one_layer_add_up(links):
    """In time and in bytes, whichever are chosen together."""
    model, rng = load_model("deepseek_v2_lite"), np.random.default_rng(3)
    names = [column for column in SWITCHES if column != "recompute_moe"]
    alone = {name: again(model, links, **{name: 1}).total_time for name in names}
    layer = layers_of(model)[1]

    def kept(**columns):
        return layer_memory(ranks_of(model, designs(model, **columns)), layer).kept

    freed = {name: kept() - kept(**{name: 1}) for name in names}
    for chosen in rng.integers(0, 2, (10, len(names))).astype(bool):
        switches = [name for name, taken in zip(names, chosen, strict=True) if taken]
        columns = dict.fromkeys(switches, 1)
        assert again(model, links, **columns).total_time == pytest.approx(sum(alone[n] for n in switches))
        assert kept() - kept(**columns) == pytest.approx(sum(freed[name] for name in switches))


def test_the_published_set_of_deepseek_v3_frees_half_of_a_layer():
    """Norms, up projections, SwiGLU: 4 h + 4 a (dn + dr) + 2 a dv + 2 k fe for each token of a layer."""
    model = load_model("deepseek_v3")
    published = dict.fromkeys(("recompute_layernorm", "recompute_mla_up_proj", "recompute_moe_act"), 1)
    layout = {"pp": 16, "dp": 128, "ep": 64, "gradient_accumulation_steps": 120, "zero": 1}
    none, subset = (
        step(model, load_system("h800_80g_dgx"), designs(model, **layout, **more)) for more in ({}, published)
    )
    layers, in_flight = 4, 15  # of the second stage, which is the fullest: the first has three dense ones
    of_layer = 4 * 7168 + 4 * 128 * (128 + 64) + 2 * 128 * 128 + 2 * 8 * 2048
    freed = in_flight * layers * of_layer * model.seq_len
    assert none.activations_memory - subset.activations_memory == pytest.approx(freed)
    assert none.step_time < subset.step_time < 1.06 * none.step_time
    assert 0.4 < (freed / none.activations_memory).item() < 0.6


LAYOUT = {"tp": 2, "pp": 4, "vpp": 2, "dp": 2, "gradient_accumulation_steps": 8, "sequence_parallel": 1}


@pytest.mark.parametrize("model", ["llama3_8b", "deepseek_v2_lite", "gemma_2_27b"])
def test_all_layers_of_a_chunk_and_checkpoints_of_one_layer_are_full_recomputation(model):
    shape, system = load_model(model), load_system("h100_80g_dgx")
    full = step(shape, system, designs(shape, **LAYOUT, recompute="full")).columns()
    for method, layers in (("block", shape.num_layers), ("uniform", 1)):
        design = designs(shape, **LAYOUT, recompute="full", recompute_method=method, recompute_layers=layers)
        for name, values in step(shape, system, design).columns().items():
            np.testing.assert_array_equal(values, full[name], err_msg=name)


@pytest.mark.parametrize(("pp", "vpp"), [(1, 1), (2, 1), (4, 2), (5, 3), (8, 1)])
@pytest.mark.parametrize("model", ["llama3_8b", "deepseek_v2_lite", "gpt_oss_20b"])
def test_the_first_layers_of_each_chunk_are_recomputed(model, pp, vpp):
    """By walking through the layers, one after the other."""
    shape, leading = load_model(model), 2
    design = designs(shape, pp=pp, vpp=vpp, recompute="full", recompute_layers=leading)
    sequence = [kind for kind, count in shape.sequence for _ in range(int(count))]
    stages = every_stage(shape, design)
    sizes = [stage.num_layers.item() for stage in stages]
    actual = {(rank, kind): 0 for rank in range(pp) for kind in shape.kinds}
    for chunk in range(pp * vpp):
        rank, turn = chunk % pp, chunk // pp
        of_chunk = sizes[rank] // vpp + (turn < sizes[rank] % vpp)
        mine, sequence = sequence[: int(of_chunk)], sequence[int(of_chunk) :]
        for kind in mine[:leading]:
            actual[rank, kind] += 1
    assert not sequence
    for rank, stage in enumerate(stages):
        shares = stage.recomputed_shares
        counts = [(share * count).item() for share, count in zip(shares, stage.layers, strict=True)]
        assert counts == pytest.approx([actual[rank, kind] for kind in shape.kinds])


def test_layers_that_are_not_recomputed_keep_everything():
    """Recomputed layers keep 2 h, or one of each checkpoint does; the others keep all that they have."""
    model, pp, layers = load_model("llama3_8b"), 2, 16  # of each stage
    whole = {"pp": pp, "gradient_accumulation_steps": 8, "recompute": "full"}
    layer = layer_memory(ranks_of(model, designs(model, **whole)), layers_of(model)[0])
    inputs, in_flight = W * model.seq_len * model.hidden_size, pp  # on the first stage

    def first_stage(method, n):
        design = designs(model, **whole, recompute_method=method, recompute_layers=n)
        run, ranks = run_of(model, design), ranks_of(model, design)
        stages = pipeline_stages(model, design).foremost
        return fullest_stage(run, ranks, rank_memory(ranks), stages).memories[0]

    for n in (1, 3, 5, 16):
        block, uniform = (first_stage(method, n) for method in ("block", "uniform"))
        assert block.activations == pytest.approx(in_flight * (n * inputs + (layers - n) * layer.everything))
        assert uniform.activations == pytest.approx(in_flight * -(-layers // n) * inputs)
        alone = layer.everything if n < layers else 0  # layers behind are free by then
        assert uniform.buffers - block.buffers == pytest.approx((n - 1) * layer.everything + alone)


@pytest.mark.parametrize("model", ["gpt_22b", "llama3_8b", "mixtral_8x7b", "deepseek_v2_lite"])
def test_another_module_never_takes_less_time_or_more_memory(model):
    shape, system, rng = load_model(model), load_system("h100_80g_dgx"), np.random.default_rng(5)
    switches = [column for column in SWITCHES if column in DesignPoints.domains(shape.blocks)]
    few = {column: rng.integers(0, 2, 60) for column in switches}
    more = {column: np.maximum(values, rng.integers(0, 2, 60)) for column, values in few.items()}
    layout = {
        "tp": rng.choice([1, 2, 4], 60), "pp": rng.choice([1, 2, 4], 60), "dp": 4, "sequence_parallel": 1,
        "gradient_accumulation_steps": 8, "recompute": rng.choice(["none", "selective"], 60),
        "attention": rng.choice(["fused", "unfused"], 60),
    }  # fmt: skip
    less, much = (step(shape, system, designs(shape, **layout, **columns)) for columns in (few, more))
    assert (much.step_time >= less.step_time * (1 - 1e-12)).all()
    assert (much.peak_memory <= less.peak_memory * (1 + 1e-12)).all()
    full = step(shape, system, designs(shape, **{**layout, "recompute": "full"}))
    assert (full.step_time >= much.step_time * (1 - 1e-12)).all()
    assert (full.peak_memory <= much.peak_memory * (1 + 1e-12)).all()


#: Modules that a model has.
COLUMNS = cases(__file__, "COLUMNS")


@pytest.mark.parametrize("model", COLUMNS)
def test_designs_have_the_switches_of_modules_that_a_model_has(model):
    known = DesignPoints.domains(load_model(model).blocks)
    assert {column for column in SWITCHES if column in known} == {f"recompute_{n}" for n in COLUMNS[model]}
    for column in {*SWITCHES} - {*known}:
        with pytest.raises(DseError, match=f"{column}: unknown column"):
            designs(load_model(model), **{column: 1})


@pytest.mark.parametrize("columns", [{"recompute_mlp": 1}, {"recompute": "full", "recompute_layers": 2}])
def test_reference_models_refuse_what_their_files_cannot_say(columns):
    """Their spaces do not know the columns, and designs that have them are not written."""
    model, design = load_model("gpt_22b"), DesignPoints.of(**columns)
    for name in ("simai", "dfmodel-gen1", "dfmodel-gen3"):
        assert not NEW & {*design_rules(name, Workload.of(model)).columns}
    with pytest.raises(DseError, match="AICB's rows repeat attention cores or whole layers"):
        design_workload(run_of(model, design))
