"""Lower bounds: test vectors as exact fractions, laws, and every cut of small graphs by hand."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.collectives.graphs import both, grid, mi250, rails, star

from busbw.collectives.bounds import (
    CapacityGraph,
    Symmetry,
    all_to_all_bound,
    least_steps,
    symmetry,
    throughput_bound,
    time_bound,
)
from busbw.hardware import find_cluster, load_nodes

GATHER = [
    # What, graph, 1/x*. L. Zhao et al., ForestColl, arXiv 2402.06787, and its repository's topologies.
    ("8 GPUs on a switch", star(8, 300), Fraction(7, 300)),
    ("2 x 8 A100, two planes", rails(2, nic=25, scale_up=300, planes=2), Fraction(6, 130)),
    ("4 x 8 A100", rails(4, nic=25, scale_up=300, planes=2), Fraction(3, 25)),
    ("8 x 8 A100", rails(8, nic=25, scale_up=300, planes=2), Fraction(7, 25)),
    ("16 MI250", mi250(1), Fraction(14, 300)),
    ("2 x 16 MI250", mi250(2), Fraction(75, 830)),
    ("rails, 2 nodes", rails(2), Fraction(3, 100)),
    ("rails, 4 nodes", rails(4), Fraction(31, 500)),
    ("rails, 8 nodes", rails(8), Fraction(7, 50)),
    ("rails, 32 nodes", rails(32), Fraction(31, 50)),
    ("rails, 128 nodes", rails(128), Fraction(127, 50)),
    ("rails, 512 nodes", rails(512), Fraction(511, 50)),
    ("torus 4x4", grid((4, 4), 50, closed=True), Fraction(3, 40)),
    ("mesh 4x4", grid((4, 4), 50, closed=False), Fraction(3, 20)),
    ("torus 8x8", grid((8, 8), 50, closed=True), Fraction(63, 200)),
    ("torus 16x16", grid((16, 16), 50, closed=True), Fraction(51, 40)),
    ("torus 32x32", grid((32, 32), 50, closed=True), Fraction(1023, 200)),
]


@pytest.mark.parametrize(("graph", "inverse"), [row[1:] for row in GATHER], ids=[row[0] for row in GATHER])
def test_throughput_bound_equals_the_published_optimum(graph: CapacityGraph, inverse: Fraction):
    """1/x* = max over cuts of GPUs inside over capacity out: exact, and the cut that comes with it has that ratio."""
    bound = throughput_bound(graph)
    assert bound.inverse_rate == inverse
    leaving = bound.cut[graph.src] & ~bound.cut[graph.dst]
    out = int(graph.capacity[leaving].sum()) * graph.unit
    assert bound.cut[: graph.gpus].sum() / out == inverse
    assert bound.algbw == graph.gpus / inverse


@pytest.mark.parametrize("nodes", [2, 4, 8, 32, 128])
def test_a_cluster_of_the_catalogue_has_the_bound_of_its_links(nodes: int):
    """DGX H100: NVSwitch 450 GB/s and a NIC of 50 GB/s a GPU, leaves without over-subscription: as the rails above."""
    cluster, _ = find_cluster("dgx-h100", nodes)
    bound = throughput_bound(CapacityGraph.of_cluster(cluster))
    assert bound.inverse_rate * 10**9 == throughput_bound(rails(nodes)).inverse_rate


def test_every_blueprint_has_a_bound_no_better_than_its_network():
    """All NICs of a node take in what the node lacks: N x* (N - L) / N <= NICs * rate."""
    for name, node in load_nodes().items():
        domain = node.nvlink_domain_nodes
        cluster, _ = find_cluster(name, 2 * domain)
        bound = throughput_bound(CapacityGraph.of_cluster(cluster))
        inside = node.gpus * domain
        assert (cluster.gpus - inside) / bound.inverse_rate <= node.network_bytes_per_s * domain * (1 + 1e-9), name


def every_cut(graph: CapacityGraph) -> Fraction:
    worst = Fraction(0)
    for chosen in itertools.product((False, True), repeat=graph.vertices):
        inside = np.array(chosen)
        if inside[: graph.gpus].all() or not inside[: graph.gpus].any():
            continue
        out = int(graph.capacity[inside[graph.src] & ~inside[graph.dst]].sum())
        worst = max(worst, int(inside[: graph.gpus].sum()) / (out * graph.unit)) if out else Fraction(10**9)
        if not out:
            break
    return worst


@given(data=st.data(), gpus=st.integers(2, 4), switches=st.integers(0, 3))
def test_throughput_bound_is_the_worst_of_all_cuts(data: st.DataObject, gpus: int, switches: int):
    """On graphs of up to 7 vertices every cut can be looked at."""
    n = gpus + switches
    links = data.draw(st.lists(st.tuples(st.integers(0, n - 1), st.integers(0, n - 1), st.integers(1, 9)), max_size=14))
    graph = CapacityGraph.of_edges(gpus, [(v, (v + 1) % n, 1) for v in range(n)] + links)
    assert throughput_bound(graph).inverse_rate == every_cut(graph)


def test_failed_links_give_the_bound_of_the_worst_node():
    """128 nodes, one of them with 7 of 8 NICs: 1016 GPUs' data enter over 7 * 50."""
    graph = rails(128)
    failed = graph.without([graph.edge(3, 1024 + 128 + 3), graph.edge(1024 + 128 + 3, 3)])
    assert throughput_bound(failed).inverse_rate == Fraction(1016, 350)


def test_symmetry_does_not_change_the_bound():
    """One destination an orbit gives what all destinations give."""
    graph = rails(16)
    cables = graph.cables()
    failed = graph.without(cables[np.random.default_rng(4).choice(len(cables), 5, replace=False)].ravel())
    alone = Symmetry(
        np.empty((0, failed.vertices), np.int32), np.arange(failed.vertices, dtype=np.int32), np.arange(len(failed), dtype=np.int32)
    )  # fmt: skip
    assert throughput_bound(failed).inverse_rate == throughput_bound(failed, alone).inverse_rate


def test_doubled_capacities_halve_the_bound_and_names_do_not_matter():
    """A law of units, and one of renumbering."""
    graph = grid((3, 4), 7, closed=False)
    edges = [
        (int(a), int(b), int(c) * graph.unit) for a, b, c in zip(graph.src, graph.dst, graph.capacity, strict=True)
    ]
    inverse = throughput_bound(graph).inverse_rate
    assert (
        throughput_bound(CapacityGraph.of_edges(12, [(a, b, 2 * c) for a, b, c in edges])).inverse_rate == inverse / 2
    )
    to = np.random.default_rng(5).permutation(12)
    moved = CapacityGraph.of_edges(12, [(int(to[a]), int(to[b]), c) for a, b, c in edges])
    assert throughput_bound(moved).inverse_rate == inverse


def test_a_gpu_that_nothing_reaches_is_an_error_that_names_it():
    """GPU 2 hears nobody."""
    with pytest.raises(ValueError, match="gpu2"):
        throughput_bound(CapacityGraph.of_edges(3, [*both(0, 1, 5), (2, 0, 5)]))


def test_graphs_that_cannot_be_are_refused():
    """Negative capacities, no GPU, names that do not fit."""
    with pytest.raises(ValueError, match="negative"):
        CapacityGraph.of_edges(2, [(0, 1, -1)])
    with pytest.raises(ValueError, match="GPU"):
        CapacityGraph.of_edges(0, [])
    with pytest.raises(ValueError, match="names"):
        CapacityGraph.of_edges(2, [(0, 2, 1)], ["a", "b"])


def test_orbits_of_rails():
    """GPUs, NVSwitches and planes; and links up and down of each kind."""
    found = symmetry(rails(5))
    assert (found.vertex_orbit.max() + 1, found.edge_orbit.max() + 1) == (3, 4)


def test_maps_are_automorphisms():
    """Each takes every link to a link of equal capacity."""
    graph = rails(6, 4)
    for image in symmetry(graph).maps:
        for a, b, capacity in zip(graph.src, graph.dst, graph.capacity, strict=True):
            assert graph.capacity[graph.edge(int(image[a]), int(image[b]))] == capacity


def test_vertices_that_refinement_cannot_tell_apart_are_no_orbit():
    """A 3-regular graph with a bridge: one class by refinement, but ends of the bridge are no images of the others.

    Twice a 5-vertex graph with one vertex of degree 2, these two joined. The cut at the bridge is the worst: 5 GPUs over 1.
    """
    half = [(0, 1), (0, 2), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4)]
    links = [both(a + base, b + base, 1) for base in (0, 5) for a, b in half] + [both(0, 5, 1)]
    graph = CapacityGraph.of_edges(10, itertools.chain.from_iterable(links))
    found = symmetry(graph)
    assert set(np.flatnonzero(found.vertex_orbit == found.vertex_orbit[0]).tolist()) <= {0, 5}
    assert throughput_bound(graph, found).inverse_rate == 5


EXCHANGE = [
    ("torus 4x4", grid((4, 4), 50, closed=True), Fraction(16, 100)),
    ("torus 8x8", grid((8, 8), 50, closed=True), Fraction(128, 100)),
    ("torus 32x32", grid((32, 32), 50, closed=True), Fraction(8192, 100)),
    ("rails, 2 nodes", rails(2), Fraction(16, 100)),
    ("rails, 4 nodes", rails(4), Fraction(48, 100)),
    ("rails, 128 nodes", rails(128), Fraction(2032, 100)),
]


@pytest.mark.parametrize(("graph", "inverse"), [row[1:] for row in EXCHANGE], ids=[row[0] for row in EXCHANGE])
def test_all_to_all_bound_equals_the_multi_commodity_optimum(graph: CapacityGraph, inverse: Fraction):
    """Torus: total distance over total capacity. Rails: (N - 8) pairs a NIC. The certificate is exact and the flow meets it."""
    bound = all_to_all_bound(graph)
    assert bound.inverse_rate == inverse
    assert bound.is_tight


def test_all_to_all_bound_of_an_irregular_graph_is_that_without_symmetry():
    """A path of three GPUs: each of the links between carries 2 units each way, the ends' pair and the neighbours'."""
    bound = all_to_all_bound(CapacityGraph.of_edges(3, [*both(0, 1, 1), *both(1, 2, 1)]))
    assert (bound.inverse_rate, bound.is_tight) == (2, True)


def test_all_to_all_of_failed_rails_is_the_cut_round_the_worst_node():
    """One of 16 nodes with 7 of 8 NICs: 8 * 120 pairs over 350."""
    graph = rails(16)
    failed = graph.without([graph.edge(0, 144), graph.edge(144, 0)])
    bound = all_to_all_bound(failed)
    assert (bound.inverse_rate, bound.is_tight) == (Fraction(8 * 120, 350), True)


def test_broadcast_reduce_scatter_and_gather_of_one_slow_port():
    """A star of 4 with ports of 10, GPU 3 with 5: broadcast and reduce wait for GPU 3; scatter sends it a quarter of 120."""
    graph = CapacityGraph.of_edges(4, [edge for gpu in range(4) for edge in both(gpu, 4, 5 if gpu == 3 else 10)])
    assert time_bound(graph, "broadcast", 120).time_s == 24
    assert time_bound(graph, "reduce", 120).time_s == 24
    assert time_bound(graph, "broadcast", 120, root=3).time_s == 24
    assert time_bound(graph, "scatter", 120).time_s == 9  # 90 leave the root at 10
    assert time_bound(graph, "gather", 120, root=3).time_s == 18  # 90 enter at 5


def test_all_reduce_on_equal_ports_is_twice_the_gather():
    """2 (N - 1) / N * size / port; rails: round nodes, 2 (P - 1) / P * size / (8 NICs)."""
    assert time_bound(star(8, 300), "all_reduce", 2400).time_s == Fraction(2 * 7 * 300, 300)
    bound = time_bound(rails(8), "all_reduce", 400)
    assert (bound.time_s, bound.is_attained) == (2 * Fraction(7, 8), True)


def test_all_reduce_with_switches_that_reduce_is_one_vector_over_a_port():
    """Whatever leaves a GPU leaves it once."""
    assert time_bound(star(8, 300), "all_reduce", 300, in_network=True).time_s == 1


def test_switches_that_add_inside_nodes_leave_the_way_between_nodes_as_it_is():
    """8 nodes of 8 whose NVSwitches add: 14 vectors between nodes, 400 into each; 4 of 2 GPUs: one vector out of a GPU, 4, takes longer than 6 into 4 nodes of 10."""
    graph = rails(8)
    nvswitches = range(64, 72)
    bound = time_bound(graph, "all_reduce", 400, summing=nvswitches)
    assert bound.time_s == 2 * Fraction(7, 8)
    small = rails(4, 2, scale_up=3, nic=1)
    assert time_bound(small, "all_reduce", 8, summing=range(8, 12)).time_s == max(Fraction(8, 2), 8 * Fraction(6, 8))
    assert time_bound(small, "all_reduce", 8).time_s >= time_bound(small, "all_reduce", 8, summing=range(8, 12)).time_s


def test_adding_switches_change_no_other_bound():
    """What a GPU must get or give passes its links whoever copies or adds."""
    graph = rails(4)
    for collective in ("all_gather", "reduce_scatter", "broadcast", "reduce"):
        assert time_bound(graph, collective, 4096, in_network=True) == time_bound(graph, collective, 4096)


def test_groups_by_rate_bound_all_reduce_where_the_tightest_cut_is_no_node():
    """36 nodes of 8 rails of 50: 70 vectors into 36 nodes of 400 take longer than 574 into 288 GPUs of 500."""
    assert time_bound(rails(36), "all_reduce", 400).time_s == Fraction(70, 36)


def test_all_reduce_of_three_in_a_line_takes_one_vector_a_link():
    """Reduce to the middle and back, pipelined, takes M / b; the sum of both bounds would say 4 M / 3 b."""
    bound = time_bound(CapacityGraph.of_edges(3, [*both(0, 1, 1), *both(1, 2, 1)]), "all_reduce", 3)
    assert (bound.time_s, bound.is_attained) == (3, False)


def test_least_steps_are_distance_or_doubling():
    """Opposite corners of an 8x8 torus are 8 apart; 32 GPUs double 5 times; through switches a message is one step."""
    assert least_steps(grid((8, 8), 1, closed=True)) == 8
    assert least_steps(rails(4), ports=1) == 5
    assert least_steps(star(8, 1)) == 1


def test_unknown_collectives_are_refused():
    """A barrier moves nothing."""
    with pytest.raises(ValueError, match="barrier"):
        time_bound(star(2, 1), "barrier", 8)
