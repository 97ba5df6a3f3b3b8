"""Work, traffic, graph and memory of HLO modules: by hand, by their programs, by XLA, by laws."""

import csv
import re
import sys
from functools import partial

import pytest

from costmodel import DseError
from dse.adapters.xla import hlo
from dse.adapters.xla.work.cost_analysis import Access, Work, access, work_of
from tests.support.cases import cases
from tests.support.hlo_texts import (
    GOLDEN,
    GPT,
    OLD_PRINTER,
    PRINTERS,
    SEED,
    TRANSFORMER,
    analysed,
    figures,
    needs_reference,
    program,
    without_metadata,
)

SUM = "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }"

# Instruction on x = f32[6,10] -> flops, transcendentals, bytes read, bytes written.
RULES = cases(__file__, "RULES")


@pytest.mark.parametrize("written", RULES)
def test_work_and_traffic_by_the_rules_of_xla(written):
    body = (
        "  x = f32[6,10] parameter(0)\n  zero = f32[] parameter(1)\n  i = s32[] parameter(2)\n"
        f"  row = f32[1,10] parameter(3)\n  ROOT y = {written}"
    )
    root = hlo.parse(program(body, before=SUM), "text").entry.root
    flops, transcendentals, read, moved = RULES[written]
    assert work_of(root, {}) == Work(flops, transcendentals)
    assert access(root) == Access(read, moved)


# Custom calls and dots of the same product: 4 x C[6, 10] = A[6, 7] B[7, 10].
PRODUCTS = cases(__file__, "PRODUCTS")


@pytest.mark.parametrize("written", PRODUCTS)
def test_a_product_is_the_same_however_it_is_called(written):
    told = figures(
        program(f"  a = f32[4,6,7] parameter(0)\n  b = f32[4,7,10] parameter(1)\n  ROOT c = {PRODUCTS[written]}")
    )
    assert told["gemm.flops_total"] == 2 * 4 * 6 * 7 * 10
    assert told["gemm.shape.b4_m6_n10_k7_beta0"] == "1 ops 3360 flops"
    assert told["kind.gemm.bytes"] == 4 * 4 * (6 * 7 + 7 * 10 + 6 * 10)


# Change of a text -> what the message says.
DAMAGED = {
    ('["1"]', '["one"]'): "gemm: a matrix product whose backend_config tells no dot_dimension_numbers",
    ('["1"]', '["7"]'): "gemm: f32[6,7] by f32[7,10] over dimensions",
    ("{}: (2, {})", "{}: (9, {})"): "gemm: output_to_operand_aliasing: there is no operand 9",
    ("={{0,1},{2,3}}", "={{0,1},2}"): "reduced: replica_groups={{0,1},2}: no known way to name groups",
    ("control-predecessors={%reduced}", "control-predecessors={%reducer}"): "reducer is not defined before",
}


@pytest.mark.parametrize("change", DAMAGED)
def test_what_cannot_be_priced_is_named(change):
    old, new = (text.replace('"', r"\"") for text in change)
    with pytest.raises(DseError) as caught:
        figures(OLD_PRINTER.replace(old, new))
    assert DAMAGED[change] in str(caught.value)


def test_edges_carry_the_output_that_is_read_and_its_bytes():
    graph = analysed(OLD_PRINTER).graph
    names = [kernel.name for kernel in graph.kernels]
    reads = [(leaf.source, leaf.bytes, kernel.name) for kernel in graph.kernels for leaf in kernel.reads if leaf.source]
    assert {(names[number], name, output, size) for (number, output), size, name in reads} == {
        ("bias", "gemm", 0, 240),
        ("gemm", "reduced", 0, 240),
        ("reduced", "fusion", 0, 240),
        ("fusion", "highest", 1, 24),
    }
    edges = {(names[before], names[after]) for before, after in graph.edges}
    assert edges == {(names[source[0]], name) for source, _, name in reads} | {("reduced", "highest")}


# As compilers leave recomputation: late waits for nothing but what it reads, or also for the gradient.
BARRIER = cases(__file__, "BARRIER")


@pytest.mark.parametrize("view", ["bitcast", "opt-barrier"])
def test_both_meanings_of_a_barrier(view):
    analysis = analysed(program(BARRIER.format(view=view)))
    assert analysis.of("element").edges == {(1, 2)}
    assert analysis.of("barrier").edges == {(1, 2), (0, 2)}


def test_an_asynchronous_pair_is_one_kernel():
    groups = "replica_groups={{0,1}}, dimensions={0}"
    split = f"s = (f32[4], f32[8]) all-gather-start(x), {groups}\n  g = f32[8] all-gather-done(s)"
    whole = f"g = f32[8] all-gather(x), {groups}"
    told, same = (
        figures(program(f"  x = f32[4] parameter(0)\n  {gather}\n  ROOT y = f32[8] negate(g)"))
        for gather in (split, whole)
    )
    for name in ("graph.kernels", "graph.edges", "all-gather.1x2.payload_bytes", "kind.collective.bytes"):
        assert told[name] == same[name]
    assert told["all-gather.1x2.ring_wire_bytes_per_device"] == 32 / 2


def test_calls_and_choices_are_seen_through():
    before = "cheap { p = f32[4] parameter(0)\n ROOT n = f32[4] negate(p) }\n"
    before += "dear { p = f32[4] parameter(0)\n s = f32[4] sine(p)\n ROOT n = f32[4] cosine(s) }"
    body = "  x = f32[4] parameter(0)\n  i = pred[] parameter(1)\n  c = f32[4] call(x), to_apply=cheap\n"
    body += "  ROOT y = f32[4] conditional(i, c, c), true_computation=cheap, false_computation=dear"
    graph = analysed(program(body, before=before)).graph
    assert [kernel.name for kernel in graph.kernels] == ["c/n", "y/s", "y/n"]
    assert graph.edges == {(0, 1), (1, 2)}
    assert graph.notes == ("y: the costliest of 2 branches is taken",)


# make_modules.py: 2 layers, 64 hidden, 256 in the MLP, 4 heads of 16, 512 words, 4 x 32 tokens; mesh 4 x 2.
TOKENS, LAYERS, TP = 128, 2, 2
WEIGHTS = [64 * 192, 64 * 64, 64 * 256, 256 * 64]  # of products in a layer


def test_products_of_a_transformer_are_those_of_its_formula():
    layer = 2 * TOKENS * sum(WEIGHTS) / TP + 2 * 2 * (4 * 4 / TP) * 32 * 32 * 16
    head = 2 * TOKENS * 64 * 512 / TP
    unused = 2 * TOKENS * WEIGHTS[-1] / TP  # what a layer ends with need not be recomputed
    assert figures(TRANSFORMER)["gemm.flops_total"] == 3 * (LAYERS * layer + head) + LAYERS * (layer - unused)


def test_weights_and_moments_of_a_transformer():
    told = figures(TRANSFORMER)
    parameters = 512 * 64 + LAYERS * (64 + sum(WEIGHTS))
    assert told["params.global_elements"] == parameters
    assert told["state.weights"] == "23..33"  # after the count, the means and the squares
    assert told["adam.sqrt"] == told["params.local_elements"] == (parameters - LAYERS * 64) / TP + LAYERS * 64


def test_gradients_of_a_transformer_with_its_table_twice():
    """The table's gradients as words and as head are reduced before they are added up."""
    told = figures(TRANSFORMER)
    assert told["mesh.shape"] == "4x2 (dp,tp)"
    assert told["grad_sync.f32_elements"] == told["params.local_elements"] + 512 * 64 / TP


def test_totals_and_memory_as_xla_printed_them_when_it_compiled_the_transformer():
    """jax 0.10.2: cost_analysis(), in single precision, and memory_analysis(), with room for alignment."""
    told = figures(TRANSFORMER)
    assert told["xla.flops"] == pytest.approx(66334456, rel=1e-6)
    assert told["xla.transcendentals"] == 197248
    assert told["xla.bytes_accessed"] == 18696964
    assert told["xla.bytes_accessed_out"] == 6703320
    assert told["entry.parameter_bytes"] == 788484
    assert told["memory.text_order_peak_temp_bytes"] == pytest.approx(1154336, rel=1e-3)


def test_names_decide_no_number():
    told, changed = figures(TRANSFORMER), figures(without_metadata(TRANSFORMER))
    named = ("file.", "gemm.phase.", "adam.", "grad_sync.", "model.")
    same = {name for name in told if not name.startswith(named)}
    assert {name: told[name] for name in same} == {name: changed[name] for name in same}
    assert set(analysed(without_metadata(TRANSFORMER)).phases) == {"unknown"}


# gpt.hlo, by hand: 15 tokens, 12 hidden, 6 of them on one device; weights of a layer of 12 x 6, 6 x 12,
# 12 x 24 and 24 x 12; 2 heads for 3 sequences, with scores of 5 x 5; 7 words of 14.
LAYER = 2 * 15 * (72 + 72 + 288 + 288) + 2 * 2 * 6 * 5 * 5 * 3
TABLE = 2 * 15 * 7 * 12
LOCAL = 2 * (72 + 72 + 288 + 288) + 7 * 12 + 5 * 12
BY_HAND = {
    # what it trains
    "model.layers": 2, "model.hidden": 12, "model.heads_global": 4, "model.head_dim": 3, "model.ffn": 48,
    "model.vocab_padded": 14, "model.max_positions": 5, "model.sequence": 5,
    "model.micro_batch_per_dp_replica": 3, "model.global_batch": 6, "model.compute_dtype": "f16",
    "model.master_dtype": "f32", "model.rematerialisation": "yes", "model.gradient_accumulation": "no",
    "model.gradient_clipping": "no", "model.optimizer": "SGD", "mesh.devices": 4, "mesh.shape": "2x2 (dp,tp)",
    # parameters: all but the positions are split; the table's gradients are reduced as words and as head
    "state.weights": "0..9", "batch.inputs": "10 s32[3,5]", "params.tensors": 10,
    "params.local_elements": LOCAL, "params.global_elements": 2 * LOCAL - 5 * 12,
    "params.replicated_tensors": 1, "params.tp_sharded_tensors": 9, "grad_sync.f16_elements": LOCAL + 7 * 12,
    # products: backward two for each forward one, but words have no gradient; one of each layer again
    "gemm.phase.fwd_embedding": f"1 ops {TABLE} flops", "gemm.phase.bwd_embedding": f"1 ops {TABLE} flops",
    "gemm.phase.fwd_encoder": f"12 ops {2 * LAYER} flops",
    "gemm.phase.bwd_encoder": f"24 ops {4 * LAYER} flops",
    "gemm.phase.recompute_encoder": f"2 ops {2 * 2 * 15 * 72} flops",
    "gemm.phase.fwd_head": f"1 ops {TABLE} flops", "gemm.phase.bwd_head": f"2 ops {2 * TABLE} flops",
    "gemm.shape.b6_m5_n5_k3_beta0": "4 ops 3600 flops", "gemm.batched_count": 2 * 6, "gemm.beta1_count": 0,
    # the longest chain: 4 kernels of words, 10 of a layer, head, its error and their sum, 12 of a layer back,
    # the words' gradient, its sum over replicas, that with the head's, the update
    "graph.longest_path_kernels": 4 + 2 * 10 + 3 + 2 * 12 + 4,
    "graph.longest_path_gemm_flops": 4 * TABLE + 2 * 2 * LAYER,
    # sums over both devices of a model: one of words, two of a layer each way, one of the head's error
    "all-reduce.2x2.groups": "[[0,1],[2,3]]", "all-reduce.2x2.count": 10,
    "all-reduce.2x2.payload_bytes": 10 * 2 * 15 * 12, "all-reduce.2x2.2.groups": "[[0,2],[1,3]]",
    "all-reduce.2x2.2.operands": 11, "all-reduce.2x2.2.payload_bytes": 2 * (LOCAL + 7 * 12),
    # as the first gradient is made: weights in f16, words, inputs of layers and MLPs, scores, context and MLP
    # of both layers, the last error, the head's gradient and the new one
    "memory.text_order_peak_at": "gd1", "memory.text_order_peak_temp_bytes": 2 * (
        1440 + 105 + 2 * (180 + 180) + 2 * (150 + 90 + 360) + 180 + 84 + 288),
    "memory.largest_kernel_working_set_bytes": 2 * 2 * (LOCAL + 7 * 12),
    # jaxlib 0.10.2, hlo_module_cost_analysis
    "xla.flops": 169626, "xla.transcendentals": 0, "xla.bytes_accessed": 93978,
    "xla.bytes_accessed_out": 34968,
}  # fmt: skip


def test_figures_of_a_gpt_by_hand():
    told = figures(GPT)
    assert {name: told[name] for name in BY_HAND} == BY_HAND


def test_what_frees_memory_runs_early():
    """Arrays of 400 B: three live at once as written, two once the first is summed up before the others."""
    body = "  x = f32[100] parameter(0)\n  zero = f32[] constant(0)\n  a = f32[100] sine(x)\n"
    body += "  b = f32[100] cosine(x)\n  c = f32[100] tanh(b)\n"
    body += "  sum_a = f32[] reduce(a, zero), dimensions={0}, to_apply=sum\n  d = f32[] sqrt(sum_a)\n"
    body += "  sum_c = f32[] reduce(c, zero), dimensions={0}, to_apply=sum\n  ROOT y = f32[] add(d, sum_c)"
    told = figures(program(body, before=SUM))
    assert told["memory.text_order_peak_temp_bytes"] == 3 * 400
    assert told["memory.eager_dW_order_peak_temp_bytes"] == 2 * 400 + 4


def chain(steps: int) -> str:
    """A module of products and sums, each of which reads both of the step before."""
    lines = ["x0 = f32[8,8] parameter(0)", "y0 = f32[8,8] negate(x0)"]
    for step in range(1, steps):
        given = f"(x{step - 1}, y{step - 1}), "
        lines.append(f"x{step} = f32[8,8] dot{given}lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}")
        lines.append(f'y{step} = f32[8,8] add{given}metadata={{op_name="layer/{step}/add"}}')
    return program("\n".join(lines))


def lines_run(function) -> int:
    """Lines of Python that run while a function does."""
    count = 0

    def trace(_frame, event, _argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def test_reading_takes_work_in_proportion_to_the_text():
    """800 instructions about four times as much as 200, and not sixteen times."""
    short, long = (lines_run(partial(figures, chain(steps))) for steps in (100, 400))
    assert short < long < 4.4 * short


# XLA's own reader alone can tell if it takes the text; test_hlo_counts_of_xla.py asks it where it is installed.
PROSE = {"xla.accepts_text"}

# Of these the first word is told; the rest of the golden row is what people have read beyond it.
WORDS = (
    "model.gradient_accumulation", "model.rematerialisation", "model.gradient_clipping", "model.optimizer",
)  # fmt: skip


@needs_reference("test_figures_of_a_gpt_by_hand and what XLA printed of transformer.hlo")
def test_the_reference_module_to_the_last_integer_however_it_is_printed():
    told = figures(SEED.read_text())
    changed = figures(PRINTERS["all of it"](SEED.read_text()))
    assert {name for name in told if told[name] != changed.get(name)} == {"file.sha256", "file.bytes"}
    with GOLDEN.open(newline="") as file:
        golden = {row["quantity"]: row["value"] for row in csv.DictReader(file)}
    assert golden.keys() - told.keys() == PROSE
    for name in golden.keys() - PROSE:
        if name.startswith(("xla.", "xla_dot.", "xla_per_op.")):
            assert told[name] == pytest.approx(float(golden[name]), rel=1e-6), name
        elif name in WORDS:
            assert told[name] == re.match(r"\w+", golden[name])[0], name
        elif name.startswith("toy_machine."):
            assert told[name] == pytest.approx(float(golden[name]), rel=1e-9), name
        else:
            assert str(told[name]) == golden[name], name
