"""Execution traces for Chakra: what a stage computes, sends and waits for, read back byte by byte."""

import json

import pytest

from costmodel import DesignPoints, load_model, load_system
from costmodel.kernels.kernel_cost import Item
from costmodel.steps.transformer import transformer_items
from dse.adapters.chakra.step import step_traces
from dse.pricing.evaluation import transformer_run
from dse.spaces.space import Space
from tests.support import chakra_files as wire
from tests.support.cases import cases
from tests.support.commands import outputs_of, stderr_of
from tests.support.runs import run_of

#: Layouts of GPT-3 on 64 chips, of every kind of schedule.
SCHEDULES = cases(__file__, "SCHEDULES")


def gpt3(**others):
    sizes = {"tp": 8, "pp": 4, "dp": 2, "gradient_accumulation_steps": 24, "sequence_parallel": True}
    design = DesignPoints.of(**{**sizes, **others})
    return run_of(load_model("gpt3_175b"), design, load_system("a100_80g_dgx"))


def of_space(name, **params):
    space = Space.load(name)
    return transformer_run(space, space.encode([{**space.completed({}), **params}]), DesignPoints)


def read(run):
    """Rank -> metadata and nodes, read back."""
    return {trace.rank: wire.decoded(trace.encoded()) for trace in step_traces(run)}


def replayed(traces):
    """End of the last node where each starts as soon as it may, a receive ending with its send. [us]"""
    ends, sent = {}, {}

    def ended(rank, node):
        if node["type"] == wire.RECEIVE and wire.key(node) not in sent:
            return False
        ready = max((ends[rank, other] for other in node["after"]), default=0)
        if node["type"] == wire.RECEIVE:
            ready = max(ready, sent[wire.key(node)])
        ends[rank, node["id"]] = ready + node["micros"]
        if node["type"] == wire.SEND:
            sent[wire.key(node)] = ends[rank, node["id"]]
        return True

    wire.run_in_order({rank: nodes for rank, (_, nodes) in traces.items()}, ended)
    return max(ends.values())


@pytest.fixture(scope="module", params=SCHEDULES)
def layout(request):
    run = gpt3(**SCHEDULES[request.param])
    return run, read(run)


def test_the_work_of_a_stage_is_that_of_the_model(layout):
    """All FLOP and bytes of the kernels of the slowest stage, as `dse explain` lists them."""
    run, traces = layout
    items = transformer_items(run)
    slowest = [*traces][int(items[Item("rank", name="slowest stage")].item())]
    computing = wire.of_type(traces[slowest][1], wire.COMPUTE)
    for attribute, quantity in {"num_ops": "flops", "tensor_size": f"{run.system.dram.name} bytes"}.items():
        listed = sum(values.item() for item, values in items.items() if item.quantity == quantity)
        assert sum(node.get(attribute, 0) for node in computing) == pytest.approx(listed, rel=1e-9)


def test_every_message_is_sent_once_and_received_once(layout):
    _, traces = layout
    assert all(wire.of_type(nodes, wire.SEND) and wire.of_type(nodes, wire.RECEIVE) for _, nodes in traces.values())
    wire.assert_messages_arrive({rank: nodes for rank, (_, nodes) in traces.items()})


def test_a_replay_ends_with_the_step(layout):
    """Nodes depend on earlier ones. Messages that the ends do not send are shared out over their chunks."""
    _, traces = layout
    for _, nodes in traces.values():
        assert [node["id"] for node in nodes] == [*range(len(nodes))]
        assert all(other < node["id"] for node in nodes for other in node["after"])
        assert all(node["after"] for node in nodes[1:])
    step_time = traces[0][0]["step_time_s"] * 1e6
    assert 0.99 * step_time <= replayed(traces) <= step_time + 1


def test_collectives_of_tensor_parallel_layers_have_their_bytes():
    """A layer with sequence parallelism gathers two inputs and scatters two outputs [Korthikanti2022]."""
    run = gpt3()
    model, traces = run.model, read(run)
    whole = model.seq_len * model.hidden_size * 2 * (2 * model.num_layers / 4)
    first = wire.of_type(traces[16][1], wire.COLLECTIVE, "forward 0 ")
    assert {node["comm_type"]: node["comm_size"] for node in first} == {
        wire.ALL_GATHER: whole / 8,
        wire.REDUCE_SCATTER: whole,
    }
    assert {node["comm_size"] for node in wire.of_type(traces[16][1], wire.SEND)} == {
        model.seq_len * model.hidden_size * 2 / 8
    }


def test_experts_exchange_the_copies_of_their_tokens():
    run = of_space("deepseek_v3_2048_h800", pp=4)
    model, traces = run.model, read(run)
    rank = [*traces][1]  # of layers with experts alone
    [exchange] = wire.of_type(traces[rank][1], wire.COLLECTIVE, "forward 0 stage 1 ep")
    layers = sum(model.kinds.values()) // 4 + 1
    there_and_back = 2 * model.seq_len * model.moe_topk * model.hidden_size * 2
    assert exchange["comm_type"] == wire.ALL_TO_ALL
    assert exchange["comm_size"] == layers * there_and_back


def test_groups_are_listed_with_their_ranks():
    """As PyTorch's traces do; names of groups are whole numbers."""
    for rank, (_, nodes) in read(gpt3()).items():
        assert nodes[0]["type"] == wire.METADATA
        groups = {group["pg_name"]: group for group in json.loads(nodes[0]["inputs"][2:-2])}
        assert {node["pg_name"] for node in wire.of_type(nodes, wire.COLLECTIVE)} == {*groups}
        ranks = {group["pg_desc"]: group["ranks"] for group in groups.values()}
        ends = {"embedding": [0, 48]} if rank in (0, 48) else {}  # its gradients are those of both
        assert ranks == {"tp": [*range(rank, rank + 8)], "dp whole": [rank, rank + 8], "world": [], **ends}
        assert all(name.isdigit() for name in groups)


@pytest.mark.parametrize(
    "name", ["llama3_70b_64_h100_fsdp", "mixtral_8x22b_128_h100", "llama3_405b_16384_h100_131k", "qwen3_235b_256_gb200"]
)
def test_designs_of_other_spaces_have_traces(name):
    """Sharded weights, experts, long sequences: what is exchanged has a size, and a replay ends in time."""
    traces = read(of_space(name))
    step_time = next(iter(traces.values()))[0]["step_time_s"] * 1e6
    assert 0.99 * step_time <= replayed(traces) <= step_time + 1
    collectives = [node for _, nodes in traces.values() for node in wire.of_type(nodes, wire.COLLECTIVE)]
    assert all(node["comm_size"] > 0 for node in collectives)


def test_a_folder_has_a_file_for_each_stage(small_study):
    command = ["export", "small", "--trial", "0", "--format", "chakra"]
    outputs_of(*command, "-o", "traces")
    files = {path.name for path in (small_study / "traces").iterdir()}
    assert "step.0.et" in files
    assert all(name.split(".")[1].isdigit() and name.endswith(".et") for name in files)
    assert "name a folder with -o DIR" in stderr_of(*command)
    (small_study / "traces" / "step.99999.et").touch()
    assert "files of another design, such as step.99999.et" in stderr_of(*command, "-o", "traces")
