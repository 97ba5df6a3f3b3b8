"""Folders for ASTRA-sim: a trace for every rank, groups, network; with ASTRA_SIM=BINARY it runs them."""

import json
import os
import re
from collections import Counter, defaultdict
from math import prod

import pytest

from benchmarks.astra_sim import compared
from dse.adapters.astra_sim import export
from dse.adapters.astra_sim.export import astra_sim_files
from dse.adapters.astra_sim.program import phases
from tests.support import chakra_files as wire
from tests.support.cases import cases
from tests.support.commands import outputs_of
from tests.support.runs import named_run

H100, A100 = "h100_80g_dgx", "a100_80g_dgx"
OVERLAPS = {"zero": 1, "overlap_grad_reduce": True, "overlap_param_gather": True}
SPLIT = {"sequence_parallel": True, "gradient_accumulation_steps": 4}
#: Model, machine, layout: of every kind of parallelism, within nodes and across them.
DESIGNS = cases(__file__, "DESIGNS")


def design_run(name):
    model, system, layout = DESIGNS[name]
    return named_run(model, system, **layout)


def written(run):
    """Traces by rank, groups by name, sizes, bandwidths [B/ns] and latencies [ns] of tiers, our step [us]."""
    [file] = astra_sim_files(run)
    traces = {int(name.split(".")[1]): rank_nodes for name, rank_nodes in file.content.items() if name.endswith(".et")}
    groups = {name: tuple(ranks) for name, ranks in json.loads(file.content["groups.json"]).items()}
    lines = dict(re.findall(r"(\w+): \[ (.*) \]", file.content["network.yml"].decode()))
    network = {name: [*map(float, lines[name].split(", "))] for name in ("npus_count", "bandwidth", "latency")}
    rank_nodes = {rank: wire.decoded(traces[rank]) for rank in sorted(traces)}
    return {rank: nodes for rank, (_, nodes) in rank_nodes.items()}, groups, network, rank_nodes[0][0]["step_time_s"]


@pytest.fixture(scope="module", params=DESIGNS)
def folder(request):
    return written(design_run(request.param))


def test_every_rank_of_the_network_has_a_trace(folder):
    traces, _, network, _ = folder
    assert [*traces] == [*range(int(prod(network["npus_count"])))]


def test_groups_are_numbered_from_one_and_have_their_ranks(folder):
    traces, groups, _, _ = folder
    assert sorted(map(int, groups)) == [*range(1, len(groups) + 1)]
    ran = defaultdict(list)
    for rank, nodes in traces.items():
        for name in {node["pg_name"] for node in wire.of_type(nodes, wire.COLLECTIVE)}:
            of_group = [node for node in wire.of_type(nodes, wire.COLLECTIVE) if node["pg_name"] == name]
            ran[name].append((rank, [(node["comm_type"], node["comm_size"]) for node in of_group]))
    assert {name: tuple(rank for rank, _ in of_group) for name, of_group in ran.items()} == groups
    assert all(len({str(sequence) for _, sequence in of_group}) == 1 for of_group in ran.values())


def test_nodes_are_those_that_the_simulator_issues(folder):
    """It reads dependencies of data alone, and neither issues nor skips metadata; no message may be empty."""
    for nodes in folder[0].values():
        assert {node["type"] for node in nodes} <= {wire.COMPUTE, wire.COLLECTIVE, wire.SEND, wire.RECEIVE}
        assert [node["id"] for node in nodes] == [*range(len(nodes))]
        assert not any(node["control"] for node in nodes)
        assert all(other < node["id"] for node in nodes for other in node["after"])
        assert all(node["micros"] for node in wire.of_type(nodes, wire.COMPUTE))
        assert all(node["comm_size"] > 0 for node in nodes if node["type"] != wire.COMPUTE)
        assert all(
            node["comm_type"] in (wire.ALL_REDUCE, wire.ALL_GATHER, wire.REDUCE_SCATTER)
            for node in wire.of_type(nodes, wire.COLLECTIVE)
        )


def test_every_message_of_a_rank_is_received(folder):
    wire.assert_messages_arrive(folder[0])


def message_time(source, target, size, network):
    """As the back end times messages: over the innermost tier in which two ranks differ. [us]"""
    for joins, bandwidth, latency in zip(*network.values(), strict=True):
        if source % joins != target % joins:
            return (2 * latency + size / (bandwidth * 2**30 / 1e9)) / 1e3
        source, target = source // joins, target // joins
    raise AssertionError("a message to itself")


def ring_time(node, ranks, network):
    """A ring in which every step waits for its slowest message. [us]"""
    steps = (len(ranks) - 1) * (2 if node["comm_type"] == wire.ALL_REDUCE else 1)
    size = node["comm_size"] / (1 if node["comm_type"] == wire.ALL_GATHER else len(ranks))
    pairs = zip(ranks, (*ranks[1:], ranks[0]), strict=True)
    return steps * max(message_time(*pair, size, network) for pair in pairs)


def simulated(traces, groups, network):
    """End of the last node, each rank with one kernel and one message at a time, in order. [us]"""
    ends, arrived, sent = {}, defaultdict(dict), {}
    free = {(rank, kind): 0.0 for rank in traces for kind in ("kernel", "message")}

    def issued(rank, node):
        """True if a node has an end now, and does not wait for other ranks."""
        kind = "kernel" if node["type"] == wire.COMPUTE else "message"
        ready = max((ends[rank, other] for other in node["after"]), default=0.0)
        if node["type"] == wire.RECEIVE:
            if wire.key(node) not in sent:
                return False
            ends[rank, node["id"]] = max(ready, sent[wire.key(node)])
            return True
        start = max(ready, free[rank, kind])
        if node["type"] == wire.COLLECTIVE:
            ranks, waiting = groups[node["pg_name"]], arrived[node["pg_name"]]
            waiting[rank] = node["id"], start
            if len(waiting) < len(ranks):
                return False
            end = max(at for _, at in waiting.values()) + ring_time(node, ranks, network)
            for other, (number, _) in waiting.items():
                ends[other, number] = free[other, kind] = end
            waiting.clear()
            return True
        size = node["micros"]
        if node["type"] == wire.SEND:
            size = message_time(node["comm_src"], node["comm_dst"], node["comm_size"], network)
            sent[wire.key(node)] = start + size
        ends[rank, node["id"]] = free[rank, kind] = start + size
        return True

    wire.run_in_order(traces, lambda rank, node: (rank, node["id"]) in ends or issued(rank, node))
    return max(ends.values())


def test_a_simulation_ends_with_the_step(folder):
    """As the simulator times rings and messages; with its binary, the test below has the simulator itself."""
    traces, groups, network, step_time = folder
    assert simulated(traces, groups, network) == pytest.approx(step_time * 1e6, rel=0.1)


def test_rings_in_two_tiers_send_what_one_of_them_would():
    """Of 64 ranks on nodes of 8, a rank sends 7/8 of a tensor in its node, and its eighth's 7/8 beyond it."""
    inner, outer = phases("reduce_scatter", 64.0, [8, 8])
    assert (inner.sent, outer.sent) == (56, 7)
    assert [phase.sent for phase in phases("all_reduce", 64.0, [8, 8])] == [56, 14, 56]
    gathered = phases("all_gather", 1.0, [8, 8])
    assert [(phase.tier, phase.sent) for phase in gathered] == [(1, 7), (0, 56)]
    assert [phase.sent for phase in phases("all_to_all", 64.0, [8, 8])] == [7, 56]


@pytest.mark.parametrize("zero", [0, 3])
def test_a_large_job_has_fewer_replicas_and_as_many_bytes(zero, monkeypatch):
    """A rank sends the same bytes within its replica, and for others; the network has fewer ranks."""
    layout = {"tp": 4, "pp": 2, "dp": 16, "zero": zero, **SPLIT}

    def sent(file):
        traces, groups, network, _ = file
        actual = Counter()
        for node in wire.of_type(traces[0], wire.COLLECTIVE):
            ranks = len(groups[node["pg_name"]])
            whole = node["comm_size"] * (ranks if node["comm_type"] == wire.ALL_GATHER else 1)
            passes = 2 if node["comm_type"] == wire.ALL_REDUCE else 1
            if "norm" not in node["name"]:
                actual[node["name"]] += passes * whole * (ranks - 1) / ranks
        return network["npus_count"], actual

    whole, all_bytes = sent(written(named_run("llama3_8b", H100, **layout)))
    monkeypatch.setattr(export, "MOST_RANKS", 32)
    fewer, bytes_sent = sent(written(named_run("llama3_8b", H100, **layout)))
    assert (whole, fewer) == ([8, 16], [8, 4])
    assert bytes_sent == pytest.approx(all_bytes, rel=1e-6)


def test_experts_stay_in_their_stage_in_a_job_with_fewer_replicas(monkeypatch):
    """Eight experts on eight ranks need eight replicas of one rank each."""
    monkeypatch.setattr(export, "MOST_RANKS", 8)
    layout = {"pp": 2, "dp": 16, "ep": 8, "gradient_accumulation_steps": 2}
    _, groups, network, _ = written(named_run("mixtral_8x7b", H100, **layout))
    assert network["npus_count"] == [8, 4]
    assert tuple(range(8)) in groups.values()


def test_one_rank_is_refused_with_what_would_do():
    [file] = astra_sim_files(named_run("llama3_8b", H100))
    assert file.content is None
    assert "needs two at least; give it another, such as tp=2" in file.notes[0]


def test_a_folder_says_how_it_is_run(small_study):
    outputs_of("export", "small", "--trial", "0", "--format", "astra-sim", "-o", "step")
    files = {path.name for path in (small_study / "step").iterdir()}
    assert files >= {"step.0.et", "step.1.et", "groups.json", "network.yml", "links.yml", "system.json"}
    readme = (small_study / "step" / "README.md").read_text()
    assert all(f"`{name}`" in readme for name in files if not name.endswith((".et", ".md")))
    assert "--comm-group-configuration=groups.json" in readme


@pytest.mark.skipif("ASTRA_SIM" not in os.environ, reason="ASTRA_SIM names no AstraSim_Analytical_Congestion_Unaware")
@pytest.mark.parametrize("name", DESIGNS)
def test_astra_sim_runs_it_in_the_time_of_the_step(name):
    line = compared(os.environ["ASTRA_SIM"], next(astra_sim_files(design_run(name))))
    [off, _] = re.findall(r"([-+][\d.]+) %", line)
    finished, ranks = re.findall(r"(\d+) of (\d+) ranks", line)[0]
    assert finished == ranks
    assert abs(float(off)) < 10
