"""Schedules become programs that take what their steps cost, folded or not."""

import numpy as np
import pytest

from busbw.collectives.algorithms import LIBRARY, chain_broadcast, ring_all_reduce
from busbw.collectives.cost import cost
from busbw.collectives.passes import pipelined
from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.hardware.fabrics import FatTree, LinkRates, SingleSwitch
from busbw.simulation import Conditions, LinkFailure, simulate, task_program

B, L = 50e9, 1e-6
SIZES = {1: (16,), 2: (4, 4), 3: (2, 2, 4)}
STAR = SingleSwitch(16, LinkRates(B, B, 0.0, L))
IN_NETWORK = [name for name in LIBRARY if "nvls" in name or "sharp" in name or "multicast" in name]
SKEWED = {"binary_tree_reduce", "binary_tree_all_reduce", "double_binary_tree_reduce"}
"""Ranks need not wait for the step's slowest: the simulation is faster than the sum of steps."""
SEVERAL_PORTS = {name for name in LIBRARY if name.startswith("torus")}
"""The cost counts a link an axis; the star has one link a rank."""


@pytest.mark.parametrize("name", [n for n in LIBRARY if n not in IN_NETWORK])
def test_on_one_switch_a_schedule_takes_its_alpha_beta_time(name):
    """alpha is a way's latency, beta 1 / B: every step of every rank waits for its bytes and one latency."""
    schedule = LIBRARY[name]()
    bound = schedule.bind(*SIZES[len(schedule.axes)])
    found = simulate(bound, STAR, size_bytes=1 << 20)
    stated = cost(bound).time_s(1 << 20, 2 * L, 1 / B)
    if name in SKEWED:
        assert found.time_s < stated
    elif name in SEVERAL_PORTS:
        assert found.time_s > stated
    else:
        assert found.time_s == pytest.approx(stated, rel=2e-4)  # whole bytes
    plain = simulate(bound, STAR, size_bytes=1 << 20, fold=False, fast_forward=False)
    assert np.array_equal(found.rank_ends_ps(), plain.rank_ends_ps())


NVLINK, NVLINK_S = 450e9, 0.6e-6
"""A way between two GPUs of a DGX H100, through its switches."""


@pytest.mark.parametrize(
    ("name", "time_s"),
    [
        ("nvls_all_gather", (1 << 30) / NVLINK + NVLINK_S),
        ("nvls_reduce_scatter", (1 << 30) / NVLINK + NVLINK_S),
        ("nvls_all_reduce", 2 * ((1 << 30) / NVLINK + NVLINK_S)),
        ("multicast_broadcast", (1 << 30) / NVLINK + NVLINK_S),
        ("sharp_all_reduce", 2 * (1 << 30) / NVLINK + NVLINK_S),
    ],
)
def test_a_tree_in_the_switch_loads_each_link_once(name, time_s):
    """A multicast store reaches its own GPU, too, and a sum reads its own GPU's part: n shards of an n-th are the whole buffer.

    A sum to all that one GPU asks for comes down to it and goes up again, beside its own part and copy: 2 S on its links.
    """
    cluster, _ = find_cluster("dgx-h100", 1)
    bound = LIBRARY[name]().bind(8)
    found = simulate(bound, cluster, size_bytes=1 << 30)
    plain = simulate(bound, cluster, size_bytes=1 << 30, fold=False, fast_forward=False)
    assert np.array_equal(found.rank_ends_ps(), plain.rank_ends_ps())
    assert found.time_s == pytest.approx(time_s, rel=1e-6)


def test_sums_in_leaves_and_spines_load_each_nic_once_a_direction():
    """SHARP over 4 leaves of 4: the vector up and the sum down, whatever the number of ranks: S / B and a way's latency."""
    rates = LinkRates(B, B, 0.0, L)
    tree = FatTree(16, (4, 4), (1, 4), (1, 1), rates)
    bound = LIBRARY["sharp_all_reduce"]().bind(16)
    found = simulate(bound, tree, size_bytes=1 << 30)
    assert found.time_s == pytest.approx((1 << 30) / B + 4 * L, rel=1e-6)
    _, load = found.link_bytes()
    assert (load == 1 << 30).all(), "each link of the tree carries the message once"
    links = found.link_bytes()[0]
    inner = 3 + 1  # up to a spine, and from there to the leaf where the tree turns back
    assert len(links) == 2 * (16 + inner)


def test_where_no_switch_adds_sums_in_the_network_are_refused():
    """Two GPUs on a link of their own: the mesh of MI300X."""
    graph = find_cluster("mi300x-8", 1)[0]
    with pytest.raises(InputError, match="no switch there adds or copies"):
        simulate(LIBRARY["multicast_broadcast"]().bind(8), graph, size_bytes=1 << 20)


def test_a_ring_stays_a_loop():
    """Its rounds differ only in which chunks move: two loops of one step for 131,072 ranks."""
    program = task_program(ring_all_reduce().bind(131_072), 1 << 30)
    assert len(program.channels) == 2
    assert len(program.streams[0].body) == 2


def test_a_pipelined_chain_takes_a_slice_a_stage():
    """k stages, n slices of s / (n B): (k - 1 + n) of them and k ways' latencies, as a slice leaves when the one before has."""
    ranks, size, parts = 5, 1 << 20, 16
    bound = pipelined(chain_broadcast(), parts).bind(ranks)
    found = simulate(bound, SingleSwitch(ranks, LinkRates(B, B, 0.0, L)), size_bytes=size).time_s
    stages = ranks - 1
    assert found == pytest.approx((stages - 1 + parts) * size / parts / B + stages * 2 * L, rel=1e-3)


def test_nodes_of_eight_fold_to_one_gpu_of_each_place_below_a_leaf():
    """64 DGX H100, leaves of 32 nodes on 8 rails: a ring by node keeps the turn of leaves and that of GPUs with their NICs."""
    cluster, _ = find_cluster("dgx-h100", 64)
    bound = LIBRARY["hierarchical_all_reduce"]().bind(64, 8)
    folded = simulate(bound, cluster, size_bytes=1 << 26)
    plain = simulate(bound, cluster, size_bytes=1 << 26, fold=False, fast_forward=False)
    assert folded.folded == 2 * 8
    assert np.array_equal(folded.rank_ends_ps(), plain.rank_ends_ps())


def test_a_schedule_needs_to_know_how_much_it_moves():
    """size_bytes is part of the question."""
    with pytest.raises(InputError, match="needs size_bytes"):
        simulate(ring_all_reduce().bind(4), SingleSwitch(4, LinkRates(B, B)))


def test_a_sum_in_switches_takes_no_other_way_while_it_runs():
    """A link that goes down later and is routed round: refused for trees, not computed wrongly."""
    tree = FatTree(16, (4, 4), (1, 4), (1, 1), LinkRates(B, B, 0.0, L))
    bound = LIBRARY["sharp_all_reduce"]().bind(16)
    later = Conditions(failed_links=(LinkFailure("leaf1 -> spine0", at_s=1e-3, reroute_s=1e-3),))
    with pytest.raises(InputError, match="only messages take other ways while they run"):
        simulate(bound, tree, size_bytes=1 << 30, conditions=later)


@pytest.mark.parametrize("name", ["hierarchical_all_reduce", "hierarchical_all_reduce_trees", "hierarchical_broadcast"])
@pytest.mark.parametrize("nodes", [9, 11, 19])
def test_rails_turn_where_the_last_leaves_are_not_full(name, nodes):
    """Leaves of 8 nodes, 8 of them a pod: the GPUs of a node are alike, each on its rail, whatever nodes the last leaves lack."""
    cluster, _ = find_cluster("dgx-h100", nodes, {"switch.ports": "16"})
    bound = LIBRARY[name]().bind(nodes, 8)
    folded, plain = (simulate(bound, cluster, size_bytes=1 << 22, fold=on, fast_forward=on) for on in (True, False))
    assert np.array_equal(folded.rank_ends_ps(), plain.rank_ends_ps())
    assert folded.folded == (1 if name == "hierarchical_broadcast" else 8), "one GPU has what is broadcast"
