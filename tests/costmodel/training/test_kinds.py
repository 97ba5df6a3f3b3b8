"""Kinds of kernels are records: every question has an answer for each, and none is asked in vain."""

from dataclasses import fields, replace

import numpy as np
import pytest

from costmodel import DesignPoints, DseError, ModelShape, load_model, load_system, step
from costmodel.steps.micro_batch.rank_memory import layer_memory
from costmodel.training.blocks import LINEAR_MIXERS, MODULES, Block, Layer, LayerKind, layer_of
from costmodel.training.kernel_kind import Kernel, KernelKind
from costmodel.training.kinds import KINDS
from tests.support.cases import cases
from tests.support.commands import outputs_of, stderr_of, stdout_of
from tests.support.runs import ranks_of

#: A layer with each kind that stands in layers, experts and windows and linear mixers among them.
MIXERS = ("full", "window", "sparse", "compressed", *LINEAR_MIXERS)
LAYER_KINDS = [
    LayerKind(mixer, mlp, indexer=mixer in ("sparse", "compressed"), switches=frozenset({"compress_ratio"}))
    for mixer in (*MIXERS, "")
    for mlp in ("dense", "experts", "")
    if mixer or mlp
]

#: A model that has the dimensions that any of them reads.
EVERYTHING = ModelShape(
    num_layers=4, hidden_size=512, num_attention_heads=8, num_query_groups=2, ffn_hidden_size=1024,
    seq_len=4096, vocab_size=1000, window=256, num_experts=8, moe_topk=2, moe_ffn_hidden_size=256,
    linear_attention="gated_delta_net", linear_key_heads=4, linear_value_heads=8, linear_head_dim=64,
    linear_conv_kernel=4, linear_state_size=128, tied_embeddings=False,
    index_heads=4, index_head_dim=32, index_topk=512, linear_step_rank=32,
    q_lora_rank=128, o_groups=2, o_lora_rank=64, compress_ratio=4,
)  # fmt: skip


def model_of(layer: Layer) -> ModelShape:
    """The model with layers of one kind."""
    return replace(EVERYTHING, layers=((layer, 4),))


layers = pytest.mark.parametrize(
    "layer", [layer_of(kind) for kind in LAYER_KINDS], ids=["-".join(kind[:2]) for kind in LAYER_KINDS]
)


def test_a_kind_without_an_answer_does_not_load():
    answers = {member.name: getattr(KINDS["norm"], member.name) for member in fields(KernelKind)}
    for name in answers:
        with pytest.raises(TypeError, match=name):
            KernelKind(**{other: value for other, value in answers.items() if other != name})


def test_an_unknown_kind_says_which_are_known():
    with pytest.raises(DseError, match="kernel scan: atention: unknown kind; did you mean 'attention'"):
        Block("mixer", "scan  atention  hidden  < stream").kernels  # noqa: B018


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_an_answer_to_every_question(kind):
    """Numbers of work, parameters, memory and exchanges of a kernel of each kind, none of them negative."""
    layer = layer_of(LayerKind("full", "experts"))
    design = DesignPoints.of(blocks=layer.blocks, tp=2, cp=2, ep=2, sequence_parallel=1)
    rank = SplitByFirst(ranks_of(model_of(layer), design))
    kernel = Kernel("kernel", kind, "hidden", "hidden", "column" if kind.matrix and kind.matrix.split else "", ())
    assert {product.name for product in kind.products(rank, kernel)} == {*kernel.products}
    for product in kind.products(rank, kernel):
        assert all(np.all(np.asarray(size) > 0) for size in (*product.size, product.batch))
    for kernel_pass in kind.pointwise(rank, kernel):
        assert kernel_pass.of_pass in ("forward", "activation_gradient", "weight_gradient")
        assert np.all(kernel_pass.elements >= 0)
        assert kernel_pass.tensors > 0
    assert EVERYTHING.kernel_parameters(kernel) >= EVERYTHING.kernel_parameters(kernel, active=True) >= 0
    assert EVERYTHING.multiply_adds(kernel, causal=True) <= EVERYTHING.multiply_adds(kernel, causal=False)
    assert np.all(kind.kept.input(rank, kernel) >= 0)
    assert kind.about
    assert {*kind.recompute_modules} <= {module.name for module in MODULES}
    assert {*kind.software} <= {"megatron", "torchtitan", "maxtext", "aicb", "dfmodel"}


class SplitByFirst:
    """The view of a rank, with every kernel split by its first option."""

    def __init__(self, rank):
        self._rank = rank

    def __getattr__(self, name):
        return getattr(self._rank, name)

    def shards(self, kernel):
        return self._rank.tp

    def is_split(self, kernel, option):
        return np.full(1, option == next(iter(kernel.kind.shardings)))


@layers
def test_every_layer_is_priced_split_and_kept(layer):
    """Tensor parallelism, ZeRO, pipelines and recomputation of any kind of layer: numbers, in their order."""
    model, system = model_of(layer), load_system("h100_80g_dgx")
    points = DesignPoints.of(blocks=layer.blocks, tp=[1, 2], dp=8, zero=[0, 3], pp=[1, 2])
    assert np.isfinite(step(model, system, points).step_time).all()
    again = step(model, system, DesignPoints.of(blocks=layer.blocks, recompute=["none", "full"]))
    assert again.activations_memory[1] < again.activations_memory[0]
    assert again.recompute_time[1] > again.recompute_time[0] == 0
    halves = [layer_memory(ranks_of(model, DesignPoints.of(tp=tp)), layer) for tp in (1.0, 2.0)]
    assert halves[1].kept < halves[0].kept
    assert halves[1].parameters + halves[1].expert_parameters <= (halves[0].parameters + halves[0].expert_parameters)


def test_layers_of_one_branch_are_the_layer_of_both():
    """A mixer without an MLP, then an MLP without a mixer: parameters, work and times of one layer."""
    llama, system = load_model("llama3_8b"), load_system("a100_80g_dgx")
    mixer, mlp = (layer_of(LayerKind(*branches)) for branches in (("full", ""), ("", "dense")))
    assert [block.name for layer in (mixer, mlp) for block in layer.blocks] == ["attention", "mlp"]
    halves = replace(llama, num_layers=2 * llama.num_layers, layers=((mixer, 1), (mlp, 1)) * int(llama.num_layers))
    assert halves.num_parameters == llama.num_parameters
    assert halves.forward_flops_per_sequence == llama.forward_flops_per_sequence
    design = DesignPoints.of(tp=8, dp=4, micro_batch_size=4, recompute=["none", "selective"])
    whole, split = step(llama, system, design), step(halves, system, design)
    for name in ("forward_time", "backward_time", "tp_communication_time", "weights_memory", "step_time"):
        np.testing.assert_allclose(getattr(split, name), getattr(whole, name), rtol=1e-12)


def test_a_layer_keeps_keys_of_other_ranks_only_where_it_has_keys():
    """Buffers of a ring stand beside attention alone."""
    design = DesignPoints.of(cp=[1, 8])
    for mixer in MIXERS:
        layer = layer_of(LayerKind(mixer, "dense"))
        memory = layer_memory(ranks_of(replace(model_of(layer), seq_len=8192), design), layer)
        shared = any(kernel.kind.exchanged.keys_values for kernel in layer.kernels)
        assert (memory.working[1] > memory.working[0] / 8 * (1 + 1e-9)) == shared


#: Mamba-2 2.7B: layers of one branch, a mixer without an MLP.
MAMBA = ModelShape(
    num_layers=64, hidden_size=2560, num_attention_heads=80, seq_len=2048, vocab_size=50288, biases=False,
    normalization="rms_norm", position_embedding="rotary", dropout=False, linear_attention="mamba2",
    full_attention_every=0, linear_key_heads=1, linear_value_heads=80, linear_head_dim=64,
    linear_state_size=128, linear_conv_kernel=4, layers=((layer_of(LayerKind("mamba2", "")), 64),),
)  # fmt: skip


def test_mamba_2_has_the_parameters_and_the_work_that_are_published():
    """2.7 billion parameters [Dao2024]_; 2 h (2 d + 2 G N + heads) + 7 d N + 2 d h, as Megatron-LM counts."""
    assert MAMBA.num_parameters / 1e9 == pytest.approx(2.7, abs=0.05)
    h, d, n, heads = 2560, 2 * 2560, 128, 80
    layer = 2 * h * (2 * d + 2 * n + heads) + 7 * d * n + 2 * d * h
    assert MAMBA.forward_flops(causal=True) == 64 * layer + 2 * h * MAMBA.vocab_size


HYBRID = cases(__file__, "HYBRID")


def test_a_hybrid_of_mamba_2_is_planned_and_what_cannot_say_it_refuses_it(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "hybrid.yaml").write_text(HYBRID)
    outputs_of("plan", "./hybrid.yaml", "--gpus", "64", "--system", "h100_80g_dgx")
    study = "plan_hybrid_64"
    assert "Mamba-2 layers" in stdout_of("explain", study)
    refusals = {"megatron": "without settings for Mamba-2 and an MLP in one layer", "maxtext": "cannot express mamba2"}
    refusals |= {"aicb": "AICB's rows are of layers of attention and an MLP", "dfmodel": "DFModel's graph"}
    for form, why in refusals.items():
        assert why in stderr_of("export", study, "--format", form, "-o", "file")
