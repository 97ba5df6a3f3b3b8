"""Published runs of DFModel, from set-ups built here: what `dse evaluate` gives for the file as it stands.

Figures are those that the logs print; the tables name the run's folder and commit, in fengqian-ayce/DFModel or
kosho2013/DFModel. Where a solver stopped before the optimum, the exact optimum may not be slower.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dse.adapters.dfmodel.files import setup_message, setup_text
from dse.adapters.dfmodel.graph import published_sharding
from dse.adapters.dfmodel.layer import layer_graph
from dse.adapters.dfmodel.setup import Setup
from dse.cli import main
from tests.support.cases import by_table, cases
from tests.support.commands import json_of, stderr_of

BLOCKS = {1: "elementwise_input1", 2: "elementwise_input1_input2"}


def fields(**values: Any) -> str:
    """Fields of a text message; mappings are messages."""
    return "".join(f"{k} {{\n{fields(**v)}}}\n" if isinstance(v, dict) else f"{k}: {v}\n" for k, v in values.items())


def kernel(name: str, number: int, block: str, dims: tuple[int, ...], word: int = 2, **more: Any) -> str:
    """A kernel of dimensions outer, M, K, N or outer, M, N; its sizes follow."""
    outer, m, *k, n = dims
    of_block = dict(zip(("outer", "M", "K", "N"), (outer, m, *k, n) if k else (outer, m, "", n), strict=True))
    sizes: dict[str, Any] = {name: value for name, value in of_block.items() if value}
    sizes["output_tensor_size"] = float(outer * m * n * word)
    kind = more.pop("type", "SYSTOLIC" if block.startswith("gemm") else "SIMD")
    head: dict[str, Any] = {"name": f'"{name}"', "id": number, "config": more.pop("config", -1), "type": kind}
    if (direction := more.pop("fwd_bwd", "FWD")) is not None:
        head["fwd_bwd"] = direction
    return fields(kernels={**head, block: sizes | {"tiling": "NO_TILING"} | more})


def edges(pairs: Iterable[tuple[int, ...]]) -> str:
    """Connections; a third number marks one that carries nothing."""
    return "".join(
        fields(connections={"startIdx": s, "endIdx": e, **({"zero_out": "true"} if any(nothing) else {})})
        for s, e, *nothing in pairs
    )


def weighted(name: str, number: int, m: int, k: int, n: int, *, outer: int = 1, word: int = 2, **more: Any) -> str:
    """A product with a weight."""
    sizes = {"input_tensor_size": float(k * n * word), "weight_tensor_size": float(outer * m * k * word)}
    return kernel(name, number, "gemm_input1_weight", (outer, m, k, n), word, **{**sizes, **more})


#: What the file of each run states beside its graph, and what its log prints.
RUNS, PRINTED = cases(__file__, "RUNS"), cases(__file__, "PRINTED")
#: Prices and powers of a file that states none.
COST = cases(__file__, "COST")


def assert_printed(actual: dict[str, Any], run: str) -> None:
    """The figures of a run are those of its log."""
    for name, (value, tolerance) in PRINTED[run].items():
        assert actual[name] == pytest.approx(value, rel=tolerance), name


@pytest.fixture
def evaluated(tmp_path, capsys):
    """Figures of a set-up as it stands, with options, and what is said on standard error."""

    def run(graph: str, message: dict[str, Any], *options: str) -> dict[str, Any]:
        path = tmp_path / "setup.txt"
        path.write_text(f"dataflow_graph {{\n{graph}}}\n" + fields(**{"cost": COST, **message}))
        code = main(["evaluate", str(path), "--format", "json", *options])
        said = capsys.readouterr()
        return {"said": said.err} | ({} if code else json.loads(said.out))

    return run


def fft(side: int, k: int, word: int = 4) -> str:
    steps = [
        kernel(f"Step_{i}", i, "gemm_input1_weight", (1, side, k, side), word, fwd_bwd=None, **moved)
        for i, moved in enumerate(
            ({}, {"communication_type": "ALL_TO_ALL", "communication_size": float(side * side * word)}), start=1
        )
    ]
    return "".join(steps) + edges([(1, 2)])


@pytest.mark.parametrize("run", ["FFT of the first generation", "FFT of the second generation"])
def test_a_transposed_fft_on_two_tiers_of_switches(run, evaluated):
    first = "miscellany" in RUNS[run]
    actual = evaluated(fft(1036214, 159), RUNS[run], *(["--profile", "dfmodel-gen1b"] if first else []))
    assert_printed(actual, run)
    assert actual["network"] == "x 8 x y 128"
    assert not first or ", gen1b 1.36118 s; choose by --profile" in evaluated(fft(1036214, 159), RUNS[run])["said"]
    assert first or f"{actual['final_s']}\n" in Path("docs/dfmodel.md").read_text()


def linpack(rows: int, columns: int) -> str:
    steps = []
    for step, side in enumerate(range(rows, 0, -columns), start=1):
        panel = float(side * columns * 8)
        moved = {"communication_type": "BROADCAST", "communication_size": panel}
        moved |= {"communication_type_2": "POINT_TO_POINT", "communication_size_2": panel}
        steps.append(kernel(f"Iteration_{step}", step, "gemm_input1_input2", (1, side, side, columns), 8,
                            fwd_bwd=None, **moved))  # fmt: skip
    return "".join(steps) + edges((i, i + 1) for i in range(1, len(steps)))


@by_table("run", "builder", "arguments", "options", "bounds")
def test_exact_answers_are_within_bounds(run, builder, arguments, options, bounds, evaluated):
    actual = evaluated(globals()[builder](*arguments), RUNS[run], *options)
    assert bounds[0] <= actual["final_s"] <= bounds[1]


def panels(rows: int, columns: int, x: int, y: int, word: int) -> str:
    """Work and messages of one chip of a grid of x by y: a panel, its way along both dimensions, and the update."""
    kernels, pairs = [], []
    for step, side in enumerate(range(rows, 0, -columns)):
        (m, n), first = (-(-side // x), -(-side // y)), 4 * step
        settings: dict[str, Any] = {"config": step, "fwd_bwd": None, "tiling": "NO_TILING"}
        moved = [("BROADCAST", m * (y > 1)), ("POINT_TO_POINT", n * (x > 1))]
        kernels += [
            weighted(f"FACT_{step}", first + 1, m, columns, columns, word=word, **settings),
            *(
                f"kernels {{ id: {first + 2 + index} type: SYSTOLIC config: {step} gemm_input1_weight {{ tiling: "
                f"NO_TILING communication_type: {name} communication_size: {length * columns * word} }} }}\n"
                for index, (name, length) in enumerate(moved)
            ),
            weighted(f"UPDATE_{step}", first + 4, m, columns, n, word=word, **settings),
        ]
        pairs += [(first + 1, first + index) for index in (2, 3, 4)]
        pairs += [(first + index, first + 5) for index in (2, 3, 4) if side > columns]
    return "".join(kernels) + edges(pairs)


def recommender(width: int, layers: int, batch: int, exchange: int, exchanged: float, lookup: float) -> str:
    """MLP forward and backward, and gradients; the tables' layer exchanges embeddings in both directions."""
    kernels = []
    for name, first in (("", 1), ("_bwd", layers + 1)):
        for i in range(layers):
            layer = i + 1 if not name else layers - i
            tables = {"communication_type": "ALL_TO_ALL", "communication_size": exchanged, "memory_size": lookup}
            more: dict[str, Any] = {"fwd_bwd": "BWD" if name else "FWD", **(tables if layer == exchange else {})}
            kernels.append(weighted(f"MLP_{layer}{name}", first + i, width, width, batch, **more))
    for i in range(layers):
        moved: dict[str, Any] = {
            "communication_type": "ALL_REDUCE_PERIODIC",
            "communication_size": float(2 * width * width),
        }
        kernels.append(kernel(f"MLP_{layers - i}_bwd_weight_update", 2 * layers + 1 + i, "gemm_input1_input2",
                              (1, width, batch, width), fwd_bwd="BWD", **moved))  # fmt: skip
    one_to_last = range(1, layers)
    pairs = [(i, i + 1) for i in one_to_last] + [(2 * layers + 1 - i, 2 * layers - i) for i in range(layers, 1, -1)]
    pairs += [(i, 3 * layers - i) for i in one_to_last] + [(2 * layers - i, 3 * layers + 1 - i) for i in one_to_last]
    return "".join(kernels) + edges(sorted(pairs))


def test_a_recommender_exchanges_embeddings_and_sums_gradients(evaluated):
    graph = recommender(3375, 20, 512, 5, 6696000.0, 857088000.0)
    assert_printed(evaluated(graph, RUNS["recommender"]), "recommender")
    oldest = evaluated(graph, RUNS["oldest recommender"])
    assert_printed(oldest, "oldest recommender")
    assert oldest["per_config_ii_ns"][:5] == pytest.approx([52948.19479045051] * 4 + [17707592.31511254], rel=1e-12)
    assert oldest["all_config_ii_ns"] <= 38203567.8236903  # the solver was stopped


def layer(
    hidden: int, heads: int, width: int, tokens: int, cached: int = 0, tp: int = 1, word: int = 2, extra: bool = True
) -> str:
    """Forward pass of a layer; with a cache, of one token: caches are kernels, and weights are read from DRAM."""
    head, keys = hidden // heads, cached + tokens
    t: dict[str, Any] = {"tiling": "N_TILING"}

    def vector(name: str, number: int, m: int = hidden, outer: int = 1, n: int = tokens, kind: int = 1) -> str:
        return kernel(name, number, BLOCKS[kind], (outer, m, n), word, **t)

    def product(name: str, number: int, m: int, k: int, outer: int = 1) -> str:
        read: dict[str, Any] = {"memory_size": outer * m * k * word / tp} if cached else {}
        return weighted(name, number, m, k, tokens, outer=outer, word=word, **t, **read)

    c = 2 if cached else 0
    stored = word * hidden * cached / tp
    cache = {**t, "type": "SYSTOLIC", "memory_size": stored}
    cache |= {"sram_extra": stored, "dram_extra": stored} if extra else {}
    sizes: list[dict[str, Any]] = [{"input_tensor_1_size": float(word * hidden * n)} for n in (tokens, keys)]
    kernels = [vector("Add_Prev_Layer", 1), vector("LayerNorm_1", 2)]
    kernels += [product(name, i, head, hidden, heads) for i, name in enumerate("QKV", start=3)]
    for number, name in enumerate("KV"[:c], start=6):
        kernels.append(kernel(f"{name}_cache", number, BLOCKS[1], (heads, head, keys), word, **cache))
    kernels += [
        kernel("MHA_GEMM_1", 6 + c, "gemm_input1_input2", (heads, tokens, head, keys), word, **t, **sizes[0]),
        vector("SOFTMAX", 7 + c, tokens, heads, keys), vector("DropOut_1", 8 + c, tokens, heads, keys),
        kernel("MHA_GEMM_2", 9 + c, "gemm_input1_input2", (heads, head, keys, tokens), word, **t, **sizes[1]),
        product("PROJ_GEMM", 10 + c, hidden, hidden), vector("DropOut_2", 11 + c), vector("Add_1", 12 + c, kind=2),
        vector("LayerNorm_2", 13 + c), product("FFN0", 14 + c, width, hidden), vector("GeLU", 15 + c, width),
        product("FFN1", 16 + c, hidden, width), vector("DropOut_3", 17 + c), vector("Add_2", 18 + c, kind=2),
    ]  # fmt: skip
    cached_edges = [(4, 6), (5, 7), (3, 8), (6, 8, extra), (7, 11, extra)] if cached else [(3, 6), (4, 6), (5, 9)]
    pairs = [(1, 2), (2, 3), (2, 4), (2, 5), *cached_edges, (1, 12 + c), (12 + c, 18 + c)]
    return "".join(kernels) + edges([*pairs, *((i + c, i + c + 1) for i in range(6, 18))])


def test_a_token_is_decoded_with_caches_in_memory(evaluated):
    graph = layer(4096, 32, 14336, 1, 4096, 2)
    actual = evaluated(graph, RUNS["decode"])
    assert_printed(actual, "decode")
    assert (actual["profile"], actual["dram_bytes"]) == ("dfmodel-gen4", 872415232)
    assert actual["sram_bytes"] == [33554432 + 1183936 + 184549376]
    less = evaluated(graph, RUNS["decode in less memory"])
    assert "DRAM: at least 872,415,232 bytes are needed, 256 more than there are" in less["said"]


@by_table("run", "builder", "arguments")
def test_a_solved_run_is_met_to_the_printed_digits(run, builder, arguments, evaluated):
    assert_printed(evaluated(globals()[builder](*arguments), RUNS[run]), run)


def test_ties_of_inference_are_broken_as_published(evaluated):
    actual = evaluated(layer(8192, 64, 28672, 4096), RUNS["H100"])
    assert_printed(actual, "H100")
    assert actual["tile_size"] == 256
    fastest, slowest = actual["equal_shardings_s"]
    assert fastest < actual["final_s"] <= slowest * (1 + 1e-12)
    assert actual["equal_shardings"] == 6


def listed(kernels: list[tuple[Any, ...]], pairs: list[tuple[int, ...]]) -> str:
    """Kernels in rows of name, block, dimensions and settings, numbered from 1."""
    return "".join(kernel(n, i, b, tuple(d), **m) for i, (n, b, d, m) in enumerate(kernels, 1)) + edges(pairs)


def mamba(tokens: int, scan: list[str]) -> str:
    """A block of 32 channels around kernels of a scan, which are numbered from 4."""
    channels, last = 32, 3 + len(scan)
    t: dict[str, Any] = {"tiling": "N_TILING"}
    conv: dict[str, Any] = {"tiling": "M_TILING", "skip_weight": "true"}
    kernels = [
        weighted("Proj1", 1, channels, channels, tokens, **t), weighted("Proj2", 2, channels, channels, tokens, **t),
        kernel("Conv", 3, "gemm_input1_weight", (1, tokens, channels, 1), **conv), *scan,
        kernel("Multiply", last + 1, BLOCKS[2], (1, tokens, channels), tiling="M_TILING"),
        weighted("Proj3", last + 2, channels, channels, tokens, **t),
    ]  # fmt: skip
    return "".join(kernels) + edges([(1, 3), *((i, i + 1) for i in range(3, last + 2)), (2, last + 1)])


@pytest.mark.slow
def test_a_scan_takes_its_inputs_in_turn(evaluated):
    graph = mamba(524288, [kernel("Scan", 4, BLOCKS[1], (1, 1, 524288), num_input=32)])
    actual = evaluated(graph, RUNS["serial scan"])
    printed = 0.010497059843581612
    assert printed * (1 - 1e-3) <= actual["final_s"] <= printed
    assert [group for group in actual["groups"] if "Scan" in group] == [["Scan"]]


STAGE = {"skip_weight": "true", "use_effective_stage": "true"}


@pytest.mark.slow
def test_stages_of_a_scan_share_k(evaluated):
    scan = [
        kernel(f"Scan_stage_{i}", 4 + i, "gemm_input1_weight", (1, 524288, 5, 1), **STAGE, num_input=32)
        for i in range(4)
    ]
    assert_printed(evaluated(mamba(524288, scan), RUNS["scan in stages"]), "scan in stages")


def test_ffts_of_a_hyena_block_are_one_group(evaluated):
    """Six transforms of five stages, from kernel 0."""
    stages = [kernel(f"stage{i}", i, "gemm_input1_weight", (1, 2097152, 8, 1), **STAGE, num_input=1) for i in range(30)]
    joins = [kernel(f"join{i}", i, BLOCKS[2], (1, 2097152, 1), num_input=1) for i in range(30, 33)]
    chains = [(i, i + 1) for i in range(30) if i % 5 < 4]
    between = [(4, 30), (9, 30), (30, 10), (14, 31), (31, 15), (19, 32), (24, 32), (32, 25)]
    actual = evaluated("".join(stages + joins) + edges(chains + between), RUNS["Hyena"])
    assert_printed(actual, "Hyena")
    assert actual["profile"] == "dfmodel-gen2a"


def oldest(hidden: int, heads: int, tokens: int) -> str:
    """Graph of a layer as set-ups of the oldest generation have it, sharding and groups open."""
    graph, one = layer_graph(hidden, heads, tokens), np.ones(1)
    setup = Setup(
        topology="r", roles=("TP",), num_chips=one, cores=one, array_width=one, array_height=one, frequency=one,
        dram_bandwidth=one, x=one, x_bandwidth=one, hidden_size=one, head_size=one, num_attention_heads=one,
        seq_len=one, num_layers=one, global_batch_size=one,
    )  # fmt: skip
    message = setup_message(graph, setup, published_sharding(graph).choices)
    for node in message.dataflow_graph.kernels:
        node.config = -1
        getattr(node, node.WhichOneof("variant")).ClearField("sharding")
    for name in ("system", "cost", "miscellany"):
        message.ClearField(name)
    return setup_text(message).removeprefix("dataflow_graph {").rstrip().removesuffix("}")


@by_table("run", "shape", "options", "samples")
def test_the_oldest_files_name_an_optimization_and_no_groups_of_the_network(run, shape, options, samples, evaluated):
    actual = evaluated(oldest(*shape), RUNS[run], *options)
    assert_printed(actual, run)
    assert RUNS[run]["training"]["global_batch_size"] / actual["final_s"] == pytest.approx(samples, rel=1e-11)


# Ways to write a file


def test_a_file_on_one_line_is_the_same(tmp_path):
    text = "dataflow_graph {\n" + linpack(4096, 1024) + "}\n" + fields(cost=COST, **RUNS["small linpack"])
    actual = []
    for name, content in (("lines", text), ("line", " ".join(text.split())), ("note", f"# execution: {{\n{text}")):
        path = tmp_path / f"{name}.txt"
        path.write_text(content)
        actual.append(json_of("evaluate", str(path))["final_s"])
    assert actual[0] == actual[1] == actual[2]


@by_table("run", "change", "said")
def test_wrong_workloads_are_refused(run, change, said, tmp_path):
    text = "dataflow_graph {\n" + linpack(4096, 1024) + "}\n" + fields(**RUNS[run])
    (tmp_path / "setup.txt").write_text(text.replace(*change))
    assert said in stderr_of("evaluate", str(tmp_path / "setup.txt"))
