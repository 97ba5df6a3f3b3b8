"""Collectives and pipeline schedules: published formulas and their limits."""

from dataclasses import replace

import numpy as np
import pytest

from costmodel import load_system
from costmodel.kernels.collectives import RING, collective, send_recv
from costmodel.steps.pipeline.stages import stage_layers
from costmodel.training.ranks import Group
from tests.support.cases import by_table

ONE = np.ones(1)


def time_of(name, message, group, system, stride=1.0):
    return collective(name, message * ONE, Group(group * ONE, stride * ONE), system.network).time.item()


def without_switches(system):
    return replace(system, network=tuple(replace(tier, in_switch=0 * ONE) for tier in system.network))


def test_ring_inside_a_node_matches_thakur_2005(toy_system):
    """All-gather of n bytes over p ranks: (p - 1) alpha + (p - 1)/p n beta; all-reduce twice that."""
    system = without_switches(toy_system)
    node = system.network[0]
    alpha, beta = node.latency, 1 / (node.bandwidth * node.efficiency)
    gather = 3 * alpha + 3 / 4 * 7e6 * beta + node.launch
    assert time_of("all_gather", 7e6, 4, system) == pytest.approx(gather)
    assert time_of("all_reduce", 7e6, 4, system) == pytest.approx(2 * gather - node.launch)


@pytest.mark.parametrize(("group", "stride"), [(4, 1), (12, 1), (6, 2), (5, 8)])
def test_all_reduce_is_reduce_scatter_and_all_gather(group, stride, toy_system):
    """Through rings; trees over nodes take fewer steps for the same bytes."""
    system = without_switches(toy_system)
    both = sum(time_of(name, 3e7, group, system, stride) for name in ("reduce_scatter", "all_gather"))
    one_node = group * stride <= system.network[0].size
    launch = system.network[0].launch if one_node else max(tier.launch for tier in system.network)
    whole = time_of("all_reduce", 3e7, group, system, stride)
    assert whole == pytest.approx(both - launch) if one_node else whole < both - launch


@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter"])
def test_every_step_of_a_ring_waits_for_its_slowest_hop(name, toy_system):
    """Twelve ranks in three nodes of four: eleven steps, each with a hop between nodes somewhere."""
    node, fabric = toy_system.network
    assert time_of(name, 1e-9, 12, toy_system) == pytest.approx(11 * fabric.latency + max(node.launch, fabric.launch))


def test_short_all_reduces_take_trees(toy_system):
    """A chain of four ranks in each of four nodes, and a binary tree of nodes: up and down [Sanders2009]_."""
    node, fabric = toy_system.network
    latency = 2 * (3 * node.latency + 2 * fabric.latency)
    expected = latency + max(node.launch, fabric.launch)
    assert time_of("all_reduce", 1e-9, 16, without_switches(toy_system)) == pytest.approx(expected)


def with_tiers(system, **columns):
    """The system with the same columns in every tier."""
    changed = {name: value * ONE for name, value in columns.items()}
    return replace(system, network=tuple(replace(tier, **changed) for tier in system.network))


def test_bandwidth_climbs_with_the_message(toy_system):
    """Half of it for the shortest messages; the longest ones lose the time of one filling."""
    quick = with_tiers(toy_system, latency=0.0, launch=0.0, in_switch=0.0)
    climbing = with_tiers(quick, ramp=1e7)
    sizes = 2.0 ** np.arange(4, 40)
    rate = [time_of("all_gather", size, 4, quick) / time_of("all_gather", size, 4, climbing) for size in sizes]
    assert rate[0] == pytest.approx(0.5, rel=1e-5)
    assert (np.diff(rate) > 0).all()
    lost = time_of("all_gather", 1e15, 4, climbing) - time_of("all_gather", 1e15, 4, quick)
    assert lost == pytest.approx(1e7 / toy_system.network[0].rate.item(), rel=1e-3)


@pytest.mark.parametrize("name", RING)
@pytest.mark.parametrize(("group", "stride"), [(2, 1), (4, 1), (16, 1), (5, 8)])
def test_more_bytes_never_take_less_and_never_jump(name, group, stride):
    """Steps of a percent in the message are at most steps of a percent in time, whatever is faster for it."""
    system = load_system("h100_80g_dgx")
    sizes = 1.01 ** np.arange(700, 2600)
    times = collective(name, sizes, Group(group * ONE, stride * ONE), system.network).time
    growth = times[1:] / times[:-1]
    assert (growth >= 1).all()
    assert (growth <= 1.01).all()


def test_a_rank_copies_what_it_has_for_itself(toy_system):
    """Of an all-gather among n ranks that is 1 / (n - 1) of what it sends: few ranks reach less."""
    quick = with_tiers(toy_system, latency=0.0, launch=0.0, in_switch=0.0)
    copying = with_tiers(quick, own_share=0.3)
    for n in (2, 3, 4):
        slower = time_of("all_gather", 1e9, n, copying) / time_of("all_gather", 1e9, n, quick)
        assert slower == pytest.approx(1 + 0.3 / (n - 1))


def test_switches_are_taken_where_they_are_faster(toy_system):
    """Two ranks send their message up once and half of the sum: a ring sends it once alone."""
    ring = without_switches(toy_system)
    assert time_of("all_reduce", 1e9, 2, toy_system) == time_of("all_reduce", 1e9, 2, ring)
    slow = with_tiers(toy_system, in_switch_rate=0.5)
    assert time_of("all_reduce", 1e9, 4, slow) == time_of("all_reduce", 1e9, 4, ring)


def test_switches_that_reduce_move_each_message_once(toy_system):
    node = toy_system.network[0]
    expected = 6 * node.latency + 5 / 4 * 1e9 / (node.bandwidth * node.efficiency) + node.launch
    assert time_of("all_reduce", 1e9, 4, toy_system) == pytest.approx(expected)
    assert time_of("all_reduce", 1e9, 4, toy_system) < time_of("all_reduce", 1e9, 4, without_switches(toy_system))


@pytest.mark.parametrize(("group", "stride", "nodes"), [(4, 1, 0), (12, 1, 3), (8, 2, 4), (5, 8, 5), (64, 1, 16)])
def test_a_ring_leaves_each_node_once(group, stride, nodes, toy_system):
    """Every rank sends 2 (n-1)/n of the message; of n hops, one per node goes over the fabric."""
    system = without_switches(toy_system)
    cost = collective("all_reduce", 1e9 * ONE, Group(group * ONE, stride * ONE), system.network)
    inside, across = (sent.item() for sent in cost.bytes_sent)
    assert inside + across == pytest.approx(2 * (group - 1) / group * 1e9)
    assert across == pytest.approx((inside + across) * nodes / group)


def test_three_tiers_each_carry_their_share_of_a_ring(toy_system):
    """Racks of 16 in nodes of 4: a ring of 64 ranks leaves 16 nodes, 4 of them for another rack."""
    node, fabric = without_switches(toy_system).network
    network = (node, replace(fabric, name="rack", size=16 * ONE), replace(fabric, name="row"))
    cost = collective("all_gather", 64e9 * ONE, Group.of_neighbours(64 * ONE), network)
    hops = np.array([sent.item() for sent in cost.bytes_sent]) / (63 / 64 * 64e9) * 64
    assert hops.tolist() == pytest.approx([48, 12, 4])


def test_a_message_to_the_next_stage_takes_the_widest_link_it_must(toy_system):
    node, fabric = toy_system.network
    for stride, tier in ((1, node), (4, fabric)):
        cost = send_recv(1e8 * ONE, Group(2 * ONE, stride * ONE), toy_system.network)
        assert cost.time == pytest.approx(tier.launch + tier.latency + 1e8 / (tier.bandwidth * tier.efficiency))
    assert send_recv(1e8 * ONE, Group(ONE, ONE), toy_system.network).time == 0


@by_table("layers", "pp", "vpp", "outer", "inner")
def test_left_over_layers_go_to_inner_stages_first(layers, pp, vpp, outer, inner):
    dealt = stage_layers(layers, pp, vpp, np.arange(pp))
    assert [dealt[-1], dealt[1:-1].max(initial=0)] == [outer, inner]
