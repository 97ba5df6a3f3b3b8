"""HLO modules as graphs of DFModel: by hand, by the module's own totals, and what is told of the rest."""

from __future__ import annotations

import numpy as np
import pytest

from dse.adapters.dfmodel.files import graph_message, load_setup, setup_bytes, setup_text
from dse.adapters.dfmodel.graph import ALL_GATHER, ALL_REDUCE, ALL_TO_ALL, NOTHING, PERIODIC
from dse.adapters.dfmodel.mapping import group_windows
from dse.adapters.xla import hlo
from dse.adapters.xla.dataflow import Dataflow, dataflow
from dse.cli import main
from tests.support.hlo_texts import (
    GPT,
    LOOP,
    OLD_PRINTER,
    SEED,
    TRANSFORMER,
    analysed,
    figures,
    needs_reference,
    program,
    without_metadata,
)

TEXTS = {"old": OLD_PRINTER, "loop": LOOP, "transformer": TRANSFORMER, "gpt": GPT}
SUM = "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }"
#: The result's first array takes the memory of parameter 0, which is a weight by that.
UPDATED = ", input_output_alias={ {0}: (0, {}, may-alias) }"
DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def found(text: str, barriers: str = "element") -> Dataflow:
    return dataflow(analysed(text), barriers)


def edges(told: Dataflow) -> list[str]:
    """Edges by the names of their kernels, with - where nothing is read."""
    names = told.graph.names
    ends = zip(told.graph.start, told.graph.end, told.graph.zero_out, strict=True)
    return [f"{names[a]}{' - ' if nothing else ' > '}{names[b]}" for a, b, nothing in ends]


def shape(told: Dataflow, name: str) -> list[float]:
    """Outer, m, k and n of a kernel."""
    place = told.graph.names.index(name)
    return [float(getattr(told.graph, dim)[place]) for dim in ("outer", "m", "k", "n")]


def moved(told: Dataflow, name: str) -> tuple[int, float]:
    """What moves out of a kernel."""
    place = told.graph.names.index(name)
    return int(told.traffic.of_kernels[place]), float(told.traffic.kernel_bytes[place])


def test_a_module_by_hand():
    """The product's sum is its own; a sum that also waits for another message is a kernel."""
    told = found(OLD_PRINTER)
    graph = told.graph
    assert graph.names == ("bias", "gemm", "fusion", "fusion#1", "highest", "grown")
    assert edges(told) == [
        "bias > gemm", "gemm > fusion", "fusion - fusion#1", "fusion#1 > highest", "gemm - highest",
    ]  # fmt: skip
    assert shape(told, "gemm") == [1, 10, 7, 6]  # C[6, 10] = A[6, 7] W[7, 10]: features by tokens
    assert (graph.weighted[1], graph.first_bytes[1], graph.second_bytes[1]) == (True, 4 * 6 * 7, 4 * 7 * 10)
    assert moved(told, "gemm") == (ALL_REDUCE, 4 * 6 * 10)
    assert moved(told, "highest") == (ALL_REDUCE, 4 * 6)
    assert moved(told, "fusion") == (NOTHING, 0)
    assert shape(told, "fusion") == [1, 10, 1, 6]
    assert shape(told, "fusion#1") == [1, 6, 1, 1]
    assert told.notes == ()


@pytest.mark.parametrize("name", TEXTS)
def test_products_do_the_work_of_the_module(name):
    graph = found(TEXTS[name]).graph
    work = 2 * graph.outer * graph.m * graph.k * graph.n * graph.repeats
    assert work[graph.systolic].sum() == figures(TEXTS[name])["gemm.flops_total"]


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("barriers", hlo.BARRIERS)
def test_a_written_graph_is_read_and_written_byte_for_byte(name, barriers, tmp_path):
    told = found(TEXTS[name], barriers)
    text = setup_text(graph_message(told.graph, told.traffic))
    (tmp_path / "graph.txt").write_text(text)
    read = load_setup(tmp_path / "graph.txt")
    assert setup_text(read) == text
    (tmp_path / "graph.pb").write_bytes(setup_bytes(read))
    assert load_setup(tmp_path / "graph.pb") == read
    assert [kernel.name for kernel in read.dataflow_graph.kernels] == list(told.graph.names)


def test_every_kernel_and_every_array_that_is_read_is_there():
    """Second outputs are kernels of their own; sums that are alone are not."""
    analysis = analysed(TRANSFORMER)
    told = dataflow(analysis)
    names = {name.split("#")[0] for name in told.graph.names}
    left_out = {kernel.name for kernel in analysis.graph.kernels} - names
    collectives = {analysis.graph.kernels[place].name for place in analysis.collectives}
    assert left_out <= collectives
    sums = np.isin(told.traffic.of_kernels, (ALL_REDUCE, PERIODIC)).sum()
    assert sums == len(analysis.collectives)
    assert told.graph.levels().max() > 50  # and no cycle


@pytest.mark.parametrize("barriers", hlo.BARRIERS)
@pytest.mark.parametrize("name", TEXTS)
def test_no_edge_leads_back_to_the_forward_pass(name, barriers):
    """As the format wants it, so that groups of kernels can be found."""
    told = found(TEXTS[name], barriers)
    graph = told.graph
    assert not np.any(graph.backward[graph.start] & ~graph.backward[graph.end])
    assert np.all(group_windows(graph, 2 * len(graph))[0] >= 0)
    phases = analysed(TEXTS[name]).phases
    moved = [note for note in told.notes if note.startswith("kernels that wait for the backward pass")]
    assert len(moved) <= (0 if {*phases} == {"unknown"} else 1)


def test_what_waits_for_the_backward_pass_is_written_with_it():
    told = found(TRANSFORMER)
    place = told.graph.names.index("add_bitcast_fusion.5")
    assert told.graph.backward[place]
    assert told.notes[-1].startswith("kernels that wait for the backward pass, ")


def phase_of(analysis, name: str) -> str:
    """Pass of the kernel that a node is made of."""
    names = [kernel.name for kernel in analysis.graph.kernels]
    return analysis.phases[names.index(name)] if name in names else "unknown"


def test_passes_are_those_of_the_module():
    analysis = analysed(TRANSFORMER)
    graph = dataflow(analysis, "element").graph
    work = 2 * graph.outer * graph.m * graph.k * graph.n * graph.systolic
    forward = sum(
        product.flops
        for kernel, phase in zip(analysis.graph.kernels, analysis.phases, strict=True)
        for product in kernel.products
        if phase == "forward"
    )
    late = sum(
        size
        for size, name, is_late in zip(work, graph.names, graph.backward, strict=True)
        if is_late and phase_of(analysis, name) == "forward"
    )
    assert late > 0  # after a message that XLA has merged with one of the backward pass
    assert work[~graph.backward].sum() + late == forward
    assert work[graph.backward].sum() - late > 2 * forward  # gradients, and what is computed again
    unnamed = found(without_metadata(TRANSFORMER))
    assert not unnamed.graph.backward.any()
    assert unnamed.notes == ("the text names no passes: every kernel is of the forward pass",)


def test_gradients_that_replicas_sum_are_periodic():
    told = found(TRANSFORMER)
    periodic = told.traffic.of_kernels == PERIODIC
    assert periodic.any()
    assert told.graph.backward[periodic].all()
    assert told.traffic.kernel_bytes[periodic].sum() == 4 * figures(TRANSFORMER)["grad_sync.f32_elements"]


def test_a_loops_kernels_are_repeated():
    told = found(LOOP)
    product = int(np.flatnonzero(told.graph.systolic)[0])
    assert told.graph.repeats[product] == 7
    message = graph_message(told.graph, told.traffic)
    assert message.dataflow_graph.kernels[product].gemm_input1_input2.num_input == 7
    assert told.notes == ("no parameter is updated: no operand is known to be a weight",)


# Weight as the program has it -> which operand it is, and the product's m and n.
WEIGHTS = {
    "second operand": (f"y = f32[6,10] dot(x, w), {DIMS}", (True, 10, 6)),
    "first operand": (f"t = f32[10,7] transpose(w), dimensions={{1,0}}\n  y = f32[10,3] dot(t, z), {DIMS}",
                      (True, 10, 3)),
    "converted": (f"h = f16[7,10] convert(w)\n  g = f16[6,7] convert(x)\n  y = f16[6,10] dot(g, h), {DIMS}",
                  (True, 10, 6)),
    "none": (f"s = f32[7,10] multiply(w, v)\n  y = f32[6,10] dot(x, s), {DIMS}", (False, 10, 6)),
    "both": (f"t = f32[10,7] transpose(w), dimensions={{1,0}}\n  y = f32[10,10] dot(t, w), {DIMS}",
             (False, 10, 10)),
}  # fmt: skip


@pytest.mark.parametrize("kind", WEIGHTS)
def test_weights_are_parameters_that_are_updated_and_what_is_made_of_them_alone(kind):
    body, (weighted, m, n) = WEIGHTS[kind]
    given = "  w = f32[7,10] parameter(0)\n  x = f32[6,7] parameter(1)\n  v = f32[7,10] parameter(2)\n"
    given += "  z = f32[7,3] parameter(3)\n"
    end = "\n  u = f32[7,10] negate(w)\n  e = f32[] constant(0)\n  ROOT r = (f32[7,10], f32[]) tuple(u, e)"
    told = found(program(f"{given}  {body}{end}", header=UPDATED))
    place = told.graph.names.index("y")
    assert (told.graph.weighted[place], told.graph.m[place], told.graph.n[place]) == (weighted, m, n)


def test_a_weight_inside_a_fusion_is_found_and_other_work_is_told():
    fused = f"""fused {{ p = f32[7,10] parameter(0)
      q = f16[6,7] parameter(1)
      h = f16[7,10] convert(p)
      d = f16[6,10] dot(q, h), {DIMS}
      ROOT t = f16[6,10] tanh(d) }}"""
    body = "  w = f32[7,10] parameter(0)\n  x = f16[6,7] parameter(1)\n"
    body += "  y = f16[6,10] fusion(w, x), kind=kCustom, calls=fused\n  u = f32[7,10] negate(w)\n"
    body += "  ROOT r = (f32[7,10], f16[6,10]) tuple(u, y)"
    told = found(program(body, before=fused, header=UPDATED))
    assert shape(told, "y") == [1, 10, 7, 6]
    assert told.graph.weighted[told.graph.names.index("y")]
    assert told.notes[-1] == "fusions with matrix products, 1: the other work inside is left out"


def test_a_fusion_of_two_products_is_two_kernels_and_its_sum_a_third():
    fused = f"""fused {{ p = f32[6,7] parameter(0)
      q = f32[7,10] parameter(1)
      one = f32[6,10] dot(p, q), {DIMS}
      two = f32[6,6] dot(one, one), lhs_contracting_dims={{1}}, rhs_contracting_dims={{1}}
      zero = f32[] constant(0)
      ROOT rows = f32[6] reduce(two, zero), dimensions={{1}}, to_apply=sum }}"""
    body = "  x = f32[6,7] parameter(0)\n  w = f32[7,10] parameter(1)\n"
    body += "  y = f32[6] fusion(x, w), kind=kCustom, calls=fused\n  ROOT z = f32[6] negate(y)"
    told = found(program(body, before=f"{SUM}\n{fused}"))
    assert edges(told) == ["y > y.2", "y.2 > y#0", "y#0 > z"]
    assert (shape(told, "y"), shape(told, "y.2")) == ([1, 10, 7, 6], [1, 6, 10, 6])


def test_a_kernel_reads_its_largest_array_and_all_others():
    fused = "fused { p = f32[3] parameter(0)\n q = f32[6,7] parameter(1)\n r = f32[5] parameter(2)\n"
    body = "  x = f32[6,7] parameter(0)\n  y = f32[3] parameter(1)\n  z = f32[5] parameter(2)\n"
    body += "  ROOT k = f32[6,7] fusion(y, x, z), kind=kLoop, calls=fused"
    told = found(program(body, before=f"{fused} ROOT t = f32[6,7] negate(q) }}"))
    assert (told.graph.first_bytes.tolist(), told.graph.second_bytes.tolist()) == ([4 * 42], [4 * 8])


# Messages


def messages(text: str, result: str = "f32[6]") -> Dataflow:
    """A kernel of six elements, a message of two devices, and what reads it."""
    body = f"  x = f32[6] parameter(0)\n  a = f32[6] negate(x)\n  {text}\n  ROOT b = {result} negate(c)"
    return found(program(body, before=SUM))


def test_a_sum_whose_terms_are_read_elsewhere_is_a_kernel():
    groups = "replica_groups={{0,1}}, to_apply=sum"
    alone = messages(f"c = f32[6] all-reduce(a), {groups}")
    assert alone.graph.names == ("a", "b")
    assert moved(alone, "a") == (ALL_REDUCE, 24)
    shared = messages(f"d = f32[6] all-reduce(a), {groups}\n  c = f32[6] add(a, d)")
    assert shared.graph.names == ("a", "d", "c", "b")
    assert (moved(shared, "a"), moved(shared, "d")) == ((NOTHING, 0), (ALL_REDUCE, 24))


# Message -> what it gives, its code, and its bytes on the edge that feeds it.
EDGES = {
    "all-gather": ("f32[12] all-gather(a), replica_groups={{0,1}}, dimensions={0}", ALL_GATHER, 48),
    "reduce-scatter": (
        "f32[3] reduce-scatter(a), replica_groups={{0,1}}, dimensions={0}, to_apply=sum", ALL_GATHER, 24,
    ),
    "all-to-all": ("f32[6] all-to-all(a), replica_groups={{0,1}}, dimensions={0}", ALL_TO_ALL, 24),
    "collective-permute": ("f32[6] collective-permute(a), source_target_pairs={{0,1},{1,0}}", 5, 24),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_other_messages_move_on_the_edge_that_feeds_them(name):
    written, code, size = EDGES[name]
    told = messages(f"c = {written}", result=written.split()[0])
    assert edges(told) == ["a > c", "c > b"]
    assert told.traffic.of_edges.tolist() == [code, NOTHING]
    assert told.traffic.edge_bytes.tolist() == [size, 0]
    assert any(note.startswith("reduce-scatters, 1: written as gathers") for note in told.notes) == (
        name == "reduce-scatter"
    )


# The command


def test_the_command_writes_the_graph_and_tells_what_it_cannot_say(tmp_path, capsys):
    module = tmp_path / "loop.hlo"
    module.write_text(LOOP)
    assert main(["cost", str(module), "--format", "dfmodel"]) == 0
    out, err = capsys.readouterr()
    assert err == f"dse: {module}: no parameter is updated: no operand is known to be a weight\n"
    graph = tmp_path / "graph.txt"
    graph.write_text(out)
    assert setup_text(load_setup(graph)) == out
    assert main(["cost", str(graph)]) == 1
    assert capsys.readouterr().err == (
        f"dse: {graph}: a graph alone, without system and miscellany; whole set-ups are priced\n"
    )


def test_what_has_no_graph_is_refused(tmp_path, capsys):
    module = tmp_path / "empty.hlo"
    module.write_text(program("  ROOT x = f32[6] parameter(0)"))
    assert main(["cost", str(module), "--format", "dfmodel"]) == 1
    assert capsys.readouterr().err == f"dse: {module}: runs no kernels, so that there is no graph to write\n"
    assert main(["cost", str(module), "--format", "dfmodel", "--system", "a100_80g_dgx"]) == 1
    assert "dfmodel is the graph without a system; leave out --system" in capsys.readouterr().err


def test_a_gpt_as_a_graph():
    """Four weights of two layers, forward and for errors, one again; the table for words, head and errors."""
    told = found(GPT)
    graph = told.graph
    work = 2 * graph.outer * graph.m * graph.k * graph.n
    assert work[graph.systolic].sum() == figures(GPT)["gemm.flops_total"] == 157320
    assert graph.systolic.sum() == 43
    assert [name for name, traffic in zip(graph.names, told.traffic.of_kernels, strict=True)
            if traffic == PERIODIC] == ["all"]  # fmt: skip
    assert (told.traffic.of_kernels == ALL_REDUCE).sum() == 10
    written = setup_text(graph_message(graph, told.traffic))
    assert written.count("gemm_input1_weight {") == graph.weighted.sum() == 2 * (4 + 4 + 1) + 3


@needs_reference("test_a_gpt_as_a_graph")
def test_the_reference_module_as_a_graph():
    """Four weights of six layers, forward, again and backward; two tables, one of them twice as the head."""
    text = SEED.read_text()
    told = found(text)
    graph = told.graph
    work = 2 * graph.outer * graph.m * graph.k * graph.n
    assert work[graph.systolic].sum() == 631_360_192_512
    assert graph.systolic.sum() == 151
    assert (told.traffic.of_kernels == PERIODIC).sum() == 2
    assert (told.traffic.of_kernels == ALL_REDUCE).sum() == 41
    written = setup_text(graph_message(graph, told.traffic))
    assert written.count("gemm_input1_weight {") == graph.weighted.sum() == 6 * 3 * 4 + 4
