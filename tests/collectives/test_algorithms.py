"""The library: what each algorithm leaves behind, and what its plan does, at numbers of ranks of all kinds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.collectives import Routing, expand, violations
from busbw.collectives.algorithms import (
    LIBRARY,
    direct_moe_combine,
    direct_moe_dispatch,
    double_binary_tree_all_reduce,
    double_binary_tree_broadcast,
    hierarchical_all_gather,
    hierarchical_all_reduce,
    knomial_broadcast,
    multi_ring_all_gather,
    multi_ring_all_reduce,
    multi_ring_reduce_scatter,
    pat_all_gather,
    rabenseifner_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    ring_reduce_scatter,
    swing_all_gather,
    torus_rings,
    two_level_moe_combine,
    two_level_moe_dispatch,
)
from busbw.collectives.algorithms.swing import swing_partner
from busbw.collectives.expressions import Environment, evaluate, var
from busbw.collectives.legality import verify_plan
from busbw.collectives.lowering import plan_of
from busbw.collectives.passes import compose, pipelined, replicate

from .plan_runner import check_plan

RANKS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 16, 17)
"""Powers of two, primes, and others; `python -m benchmarks design` tries all from 2 to 64."""


@pytest.mark.parametrize("name", LIBRARY)
def test_the_library_keeps_its_promises(name: str):
    """No rule is broken on the way, and at the end every place holds what the collective says, for first and last root."""
    schedule = LIBRARY[name]()
    tried = 0
    for ranks in RANKS:
        bindings = list(schedule.bindings(ranks))
        for bound in bindings[:: (len(bindings) + 5) // 6 or 1]:
            tried += 1
            assert violations(bound) == []
            if "root" in dict(bound.params):
                assert violations(bound.bound_where(root=ranks - 1)) == []
    assert tried >= 5


@pytest.mark.parametrize("name", [name for name in LIBRARY if LIBRARY[name]().kind != "barrier"])
def test_the_plans_of_the_library_compute_the_collective(name: str):
    """On numbers, with FIFOs of one slot."""
    schedule = LIBRARY[name]()
    for ranks in (2, 3, 4, 6, 8):
        bindings = list(schedule.bindings(ranks))
        for bound in bindings[:: (len(bindings) + 2) // 3 or 1]:
            check_plan(plan_of(bound))


@pytest.mark.parametrize("name", LIBRARY)
def test_large_prime_and_round_numbers_of_ranks(name: str):
    """61 and 64 ranks, one shape each."""
    for ranks in (61, 64):
        bindings = list(LIBRARY[name]().bindings(ranks))
        if bindings:
            assert violations(bindings[len(bindings) // 2]) == []


@given(ranks=st.integers(2, 6), data=st.data())
def test_rings_may_visit_the_ranks_in_any_order(ranks: int, data: st.DataObject):
    orders = [data.draw(st.permutations(range(ranks))) for _ in range(data.draw(st.integers(1, 3)))]
    for make in (multi_ring_all_gather, multi_ring_reduce_scatter, multi_ring_all_reduce):
        assert violations(make(orders).bind()) == []
    check_plan(plan_of(multi_ring_all_reduce(orders).bind()))


@given(k=st.integers(3, 12))
def test_the_two_rings_of_a_torus_share_no_link(k: int):
    """Each is a Hamiltonian cycle of neighbours, and together they use 2 k^2 undirected links: all."""
    links = set()
    for ring in torus_rings(k):
        assert sorted(ring) == list(range(k * k))
        for a, b in zip(ring, [*ring[1:], ring[0]], strict=True):
            (ra, ca), (rb, cb) = divmod(a, k), divmod(b, k)
            assert (ra == rb and (ca - cb) % k in (1, k - 1)) or (ca == cb and (ra - rb) % k in (1, k - 1))
            links.add(frozenset((a, b)))
    assert len(links) == 2 * k * k


def test_swing_walks_the_distances_of_its_paper():
    """rho = 1, -1, 3, -5, 11 (arXiv 2401.09356): even ranks go by rho, odd ones by -rho."""
    distances = [evaluate(swing_partner(var("r"), var("s")), Environment({"r": 100, "s": s})) - 100 for s in range(5)]
    assert distances == [1, -1, 3, -5, 11]
    assert evaluate(swing_partner(var("r"), var("s")), Environment({"r": 101, "s": 2})) == 101 - 3


def test_pat_sends_far_messages_small_and_near_ones_large():
    """16 ranks: distance 8, 4, 2, 1 carry 1, 2, 4, 8 blocks."""
    moves = expand(pat_all_gather().bind(16), whole=False)
    for step, distance, blocks in ((0, 8, 1), (1, 4, 2), (2, 2, 4), (3, 1, 8)):
        mine = (moves.step == step) & (moves.src == 0)
        assert set(((moves.dst - moves.src) % 16)[mine].tolist()) == {distance}
        assert mine.sum() == blocks


def test_pat_with_bounded_messages_takes_about_p_over_a_steps():
    """64 ranks, 4 blocks a message: distances 32, 16, 8 in one step each, then 8/4, 16/4, 32/4."""
    moves = expand(pat_all_gather(4).bind(64))
    assert moves.step.max() + 1 == 3 + 2 + 4 + 8
    assert np.unique(np.stack([moves.step, moves.src, moves.dst]), axis=1, return_counts=True)[1].max() == 4


def test_the_double_tree_makes_every_interior_rank_a_leaf_of_the_other_tree():
    for ranks in (6, 8, 13, 16):
        moves = expand(double_binary_tree_all_reduce().bind(ranks))
        up = moves.action == 1
        fathers = [set(moves.dst[up & (moves.src_index == tree)].tolist()) for tree in (0, 1)]
        assert len(fathers[0] & fathers[1]) <= 2  # the two roots


@pytest.mark.parametrize(("ranks", "root"), [(2, 0), (3, 2), (6, 1), (9, 0), (17, 5)])
def test_the_double_tree_broadcasts_in_a_step_more_than_the_others_are_levels_deep(ranks: int, root: int):
    """ceil(log2 (p - 1)) + 1 steps; every rank gets each half once, the root sends each once, and who passes on one half gets the other as a leaf."""
    bound = double_binary_tree_broadcast().bind(ranks, root=root)
    moves = expand(bound)
    assert int(moves.step.max()) == math.ceil(math.log2(ranks - 1))
    assert sorted(zip(moves.dst.tolist(), moves.src_index.tolist(), strict=True)) == [
        (rank, half) for rank in range(ranks) for half in (0, 1) if rank != root
    ]
    assert sorted(moves.src_index[moves.src == root].tolist()) == [0, 1]
    passing = [set(moves.src[moves.src_index == half].tolist()) - {root} for half in (0, 1)]
    assert len(passing[0] & passing[1]) <= 2  # the two tops
    check_plan(plan_of(bound))


@pytest.mark.parametrize("parts", [1, 2, 5])
def test_slices_change_no_result(parts: int):
    for schedule in (
        double_binary_tree_all_reduce(parts),
        pipelined(rabenseifner_all_reduce(), parts),
        replicate(ring_all_reduce(), parts),
        pipelined(replicate(ring_all_gather(), 2), parts),
        replicate(pipelined(knomial_broadcast(3), 2), parts),
    ):
        for ranks in (2, 5):
            check_plan(plan_of(schedule.bind(ranks)))


def test_hierarchies_nest():
    """Rings between pods of hierarchical nodes."""
    inner = hierarchical_all_gather(ring_all_gather(), ring_all_gather())
    schedule = hierarchical_all_gather(ring_all_gather(), inner)
    assert schedule.axes == ("outer_node", "node", "gpu") or len(schedule.axes) == 3
    assert violations(schedule.bind(3, 2, 2)) == []
    check_plan(plan_of(schedule.bind(2, 3, 2)))


def test_any_algorithm_inside_with_any_between():
    scatters = [ring_reduce_scatter, LIBRARY["recursive_halving_reduce_scatter"], LIBRARY["pat_reduce_scatter"]]
    betweens = [
        ring_all_reduce,
        rabenseifner_all_reduce,
        LIBRARY["binomial_all_reduce"],
        LIBRARY["one_shot_all_reduce"],
    ]
    gathers = [ring_all_gather, LIBRARY["bruck_all_gather"], swing_all_gather]
    for scatter in scatters:
        for between in betweens:
            for gather in gathers:
                assert violations(hierarchical_all_reduce(scatter(), between(), gather()).bind(3, 4)) == []


@st.composite
def routings(draw: st.DrawFn, ranks: int) -> Routing:
    tokens = draw(st.integers(1, 12))
    home = draw(st.lists(st.integers(0, ranks - 1), min_size=tokens, max_size=tokens))
    wanted = [draw(st.sets(st.integers(0, ranks - 1), max_size=4)) for _ in range(tokens)]
    return Routing.of(home, wanted, ranks)


@given(data=st.data(), nodes=st.integers(1, 3), gpus=st.integers(1, 4))
def test_tokens_reach_their_experts_and_their_sums_come_home(data: st.DataObject, nodes: int, gpus: int):
    routing = data.draw(routings(nodes * gpus))
    for schedule in (
        direct_moe_dispatch(routing),
        direct_moe_combine(routing),
        two_level_moe_dispatch(routing, gpus),
        two_level_moe_combine(routing, gpus),
    ):
        assert violations(schedule.bind()) == []
        assert verify_plan(plan_of(schedule.bind())).violations == ()


def test_two_level_dispatch_crosses_nodes_once_a_token_and_node():
    """One token of rank 0 for all 4 ranks of node 1 and one of node 2: 2 crossings instead of 5."""
    routing = Routing.of([0], [[4, 5, 6, 7, 9]], 12)
    direct, levels = expand(direct_moe_dispatch(routing).bind()), expand(two_level_moe_dispatch(routing, 4).bind())
    assert (direct.src // 4 != direct.dst // 4).sum() == 5
    assert (levels.src // 4 != levels.dst // 4).sum() == 2


def test_broadcast_of_a_scatter_and_an_all_gather():
    schedule = compose(LIBRARY["direct_scatter"](), LIBRARY["direct_all_gather"]())
    assert schedule.kind == "broadcast"
    assert violations(schedule.bind(5, root=3)) == []
