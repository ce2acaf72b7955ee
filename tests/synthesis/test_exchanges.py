"""Exchanges attain the all-to-all bound: one way a pair, loads counted exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from tests.collectives.graphs import both, grid, mi250, rails, star

from busbw.collectives.bounds import CapacityGraph
from busbw.collectives.provenance import violations
from busbw.synthesis import route_exchange


@pytest.mark.parametrize("graph", [star(8, 300), rails(8), grid((4, 4), 50, closed=False), mi250(2)])
def test_exchanges_are_near_the_bound(graph: CapacityGraph):
    """Whole ways round a little on small graphs."""
    made = route_exchange(graph)
    assert Fraction(95, 100) <= made.quality <= 1


def test_on_rails_of_32_nodes_every_nic_carries_what_the_cut_says():
    """248 pairs leave each GPU's share of the node's NICs: (N - 8) / 50."""
    made = route_exchange(rails(32))
    assert made.bound == Fraction(248, 50)
    assert made.quality >= Fraction(99, 100)


def test_failed_links_are_gone_round():
    """One of 8 nodes with 7 of 8 NICs."""
    graph = rails(8)
    failed = graph.without([graph.edge(3, 64 + 8 + 3), graph.edge(64 + 8 + 3, 3)])
    assert route_exchange(failed).quality >= Fraction(98, 100)


def test_a_middle_gpu_forwards():
    """In a line of three the ends' pair takes two messages; each link carries 2 pairs."""
    made = route_exchange(CapacityGraph.of_edges(3, [*both(0, 1, 1), *both(1, 2, 1)]))
    assert (made.depth, made.inverse_rate, made.quality) == (2, 2, 1)


@pytest.mark.parametrize("graph", [star(4, 1), rails(2, 4), grid((3, 3), 1, closed=True)])
def test_the_schedule_of_an_exchange_is_an_all_to_all(graph: CapacityGraph):
    """By provenance of every chunk."""
    assert violations(route_exchange(graph).schedule().bind()) == []


def test_pairs_that_would_not_fit_memory_are_refused():
    """16,384 GPUs are 268 million pairs."""
    with pytest.raises(ValueError, match="memory"):
        route_exchange(star(16_384, 1))
