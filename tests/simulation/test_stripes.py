"""A GPU with several NICs sends over all of them at once; p5 has four of 100 Gb/s each."""

import numpy as np
import pytest

from busbw.collectives.algorithms import LIBRARY
from busbw.hardware import find_cluster
from busbw.simulation import Channel as Connection
from busbw.simulation import Conditions, Receive, Send, Stream, Table, TaskProgram, simulate

NIC = 12.5e9
SIZE = 1 << 30


def message(cluster, src, dst):
    streams = Stream("src", (Send("one", SIZE),), np.array([src])), Stream("dst", (Receive("one"),), np.array([dst]))
    to = Table(np.array([src]), np.array([[dst]]))
    return TaskProgram(cluster.gpus, streams, (Connection("one", "src", "dst", to),))


@pytest.mark.parametrize("routing", ["d-mod-k", "ecmp", "spray"])
def test_a_message_between_nodes_is_cut_over_all_nics_of_its_gpu(routing):
    """A quarter goes through each of four NICs; the latency is that of one way."""
    cluster, _ = find_cluster("p5", 2)
    found = simulate(message(cluster, 0, 8), cluster, routing=routing)
    assert found.time_s == pytest.approx(SIZE / (4 * NIC), rel=1e-3)
    links, carried = found.link_bytes()
    first = cluster.links - cluster.fabric.links
    up = [
        int(n)
        for link, n in zip(links, carried, strict=True)
        if link >= first and "nic" in cluster.link_name(int(link))
    ]
    assert len(up) == 8 and np.ptp(up) <= 1 and up[0] == pytest.approx(SIZE / 4, abs=1)


def test_the_slowest_nic_of_a_gpu_sets_the_pace():
    """Parts are even, so with one of four at half its rate all take as long as that one."""
    cluster, _ = find_cluster("p5", 2)
    slow = Conditions(degraded_links={"nic0 -> leaf0": 0.5})
    found = simulate(message(cluster, 0, 8), cluster, conditions=slow)
    assert found.time_s == pytest.approx(SIZE / (4 * NIC / 2), rel=1e-3)


@pytest.mark.parametrize("name", ["hierarchical_all_reduce", "hierarchical_all_reduce_sharp"])
def test_folding_striped_messages_changes_no_picosecond(name):
    """Four nodes of p5, messages and sums in switches."""
    cluster, _ = find_cluster("p5", 4)
    bound = LIBRARY[name]().bind(4, 8)
    folded, plain = (simulate(bound, cluster, size_bytes=1 << 24, fold=on, fast_forward=on) for on in (True, False))
    assert np.array_equal(folded.rank_ends_ps(), plain.rank_ends_ps())
    assert plain.folded == 1
    assert folded.folded == (4 if name == "hierarchical_all_reduce" else 1), "one node asks for each sum in the fabric"


def test_sums_in_the_network_load_each_of_a_gpu_s_nics_once():
    """Rail by rail over 4 nodes, 8 rails of 4 NICs each: a GPU's eighth of the vector goes up and down in quarters."""
    cluster, _ = find_cluster("p5", 4)
    found = simulate(LIBRARY["hierarchical_all_reduce_sharp"]().bind(4, 8), cluster, size_bytes=SIZE)
    links, carried = found.link_bytes()
    first = cluster.links - cluster.fabric.links
    nics = [
        int(n)
        for link, n in zip(links, carried, strict=True)
        if link >= first and "nic" in cluster.link_name(int(link))
    ]
    assert nics and set(nics) == {SIZE // 8 // 4}
