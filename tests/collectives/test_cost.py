"""Costs counted from schedules against the formulas of the literature, derived here. a: alpha, b: beta, n: bytes, p: ranks."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from busbw.collectives import Tree, forest
from busbw.collectives.algorithms import (
    LIBRARY,
    binary_tree_broadcast,
    bruck_all_gather,
    bruck_all_to_all,
    chain_broadcast,
    direct_all_gather,
    direct_all_to_all,
    direct_reduce_scatter,
    dissemination_barrier,
    double_binary_tree_all_reduce,
    hierarchical_all_reduce,
    knomial_broadcast,
    multi_ring_all_gather,
    nvls_all_reduce,
    one_shot_all_reduce,
    pairwise_all_to_all,
    pat_all_gather,
    rabenseifner_all_reduce,
    recursive_doubling_all_reduce,
    ring_all_gather,
    ring_all_reduce,
    sharp_all_reduce,
    swing_all_reduce,
    torus_all_reduce,
    two_level_all_to_all,
    two_shot_all_reduce,
)
from busbw.collectives.cost import cost
from busbw.collectives.expansion import expand
from busbw.collectives.passes import pipelined, replicate, reverse

A, B, N = 1.0, 1e-3, 1e6


def time(schedule, *sizes: int, **how) -> float:
    return cost(schedule.bind(*sizes)).time_s(N, A, B, **how)


@given(p=st.integers(2, 40))
def test_rings_take_p_minus_1_rounds_of_one_block(p: int):
    """T = (p-1) a + n (p-1)/p b; all_reduce twice that."""
    once = (p - 1) * A + N * (p - 1) / p * B
    assert time(ring_all_gather(), p) == pytest.approx(once)
    assert time(ring_all_reduce(), p) == pytest.approx(2 * once)


@given(p=st.integers(2, 40))
def test_logarithmic_all_gathers_move_as_many_bytes_in_fewer_steps(p: int):
    """T = ceil(log2 p) a + n (p-1)/p b: Bruck and PAT, any p."""
    wanted = math.ceil(math.log2(p)) * A + N * (p - 1) / p * B
    for schedule in (bruck_all_gather(), pat_all_gather(), reverse(bruck_all_gather()), reverse(pat_all_gather())):
        assert time(schedule, p) == pytest.approx(wanted)


def test_bruck_with_two_ports_takes_log3_steps_and_half_the_time_a_byte():
    """9 ranks: 2 steps; 8/9 n over two ports."""
    assert time(bruck_all_gather(2), 9, ports=2) == pytest.approx(2 * A + N * 8 / 9 / 2 * B)


@pytest.mark.parametrize("m", [1, 2, 3, 5])
def test_butterflies_of_powers_of_two(m: int):
    """Rabenseifner, Swing and Bine: 2 log2 p a + 2 n (p-1)/p b. Whole vectors: log2 p (a + n b)."""
    p = 2**m
    wanted = 2 * m * A + 2 * N * (p - 1) / p * B
    for name in ("rabenseifner_all_reduce", "swing_all_reduce", "bine_all_reduce"):
        assert time(LIBRARY[name](), p) == pytest.approx(wanted)
    assert time(recursive_doubling_all_reduce(), p) == pytest.approx(m * (A + N * B))


@pytest.mark.parametrize("p", [3, 6, 7, 13])
def test_folding_costs_two_steps_and_two_vectors(p: int):
    """With q the largest power of two below p: 2 log2 q + 2 steps, and 2 n b on top."""
    q = 2 ** int(math.log2(p))
    wanted = (2 * math.log2(q) + 2) * A + (2 * (q - 1) / q + 2) * N * B
    assert time(rabenseifner_all_reduce(), p) == pytest.approx(wanted)
    assert time(swing_all_reduce(), p) == pytest.approx(wanted)


@given(p=st.integers(2, 40))
def test_direct_exchange_is_one_step(p: int):
    share = (p - 1) / p
    assert time(direct_all_gather(), p) == pytest.approx(A + N * share * B)
    assert time(direct_reduce_scatter(), p) == pytest.approx(A + N * share * B)
    assert time(direct_all_to_all(), p) == pytest.approx(A + N * share * B)
    assert time(two_shot_all_reduce(), p) == pytest.approx(2 * A + 2 * N * share * B)
    assert time(one_shot_all_reduce(), p) == pytest.approx(A + N * (p - 1) * B)


@given(p=st.integers(2, 40))
def test_all_to_all_pairwise_and_by_bruck(p: int):
    """Pairwise: (p-1)(a + n/p b). Bruck: in step t the blocks whose index has bit t, about half."""
    assert time(pairwise_all_to_all(), p) == pytest.approx((p - 1) * (A + N / p * B))
    steps = math.ceil(math.log2(p))
    blocks = sum(sum(i >> t & 1 for i in range(p)) for t in range(steps))
    assert time(bruck_all_to_all(), p) == pytest.approx(steps * A + N * blocks / p * B)


@pytest.mark.parametrize(("p", "k"), [(8, 2), (16, 4), (27, 3), (7, 2), (10, 4)])
def test_knomial_trees_send_k_minus_1_copies_a_step(p: int, k: int):
    """A rank sends min(k - 1, those left) copies in a step; full steps cost a + (k-1) n b."""
    steps = math.ceil(math.log(p, k) - 1e-9)
    whole = steps * A + steps * (k - 1) * N * B
    found = time(knomial_broadcast(k), p)
    assert found == pytest.approx(whole) if k**steps == p else found <= whole
    assert cost(knomial_broadcast(k).bind(p)).steps == steps


@pytest.mark.parametrize(("p", "m"), [(2, 1), (8, 1), (8, 10), (5, 64)])
def test_a_chain_in_m_slices_takes_p_minus_2_plus_m_steps(p: int, m: int):
    """T = (p - 2 + m)(a + n/m b)."""
    assert time(chain_broadcast(m), p) == pytest.approx((p - 2 + m) * (A + N / m * B))


def test_the_best_number_of_slices_of_a_chain():
    """m* = sqrt((p-2) n b / a): 18 ranks, n b / a = 1000: sqrt(16000) = 126."""
    times = {m: time(chain_broadcast(m), 18) for m in (100, 110, 126, 140, 160)}
    assert min(times, key=times.__getitem__) == round(math.sqrt(16 * 1000))


def test_a_pipelined_binary_tree_sends_two_copies_a_step():
    """15 ranks, depth 3: (3 + m - 1)(a + 2 n/m b); interior ranks have two children in every step of a full pipeline."""
    assert time(binary_tree_broadcast(20), 15) == pytest.approx(22 * (A + 2 * N / 20 * B))


@pytest.mark.parametrize("p", [4, 13, 16])
def test_the_double_tree_needs_two_vectors_a_port(p: int):
    """2 ceil(log2 p) + m - 1 steps of at most 4 pieces of n/(2m): for many slices (a and b apart) 2 n b in all."""
    m = 4000
    found = cost(double_binary_tree_all_reduce(m).bind(p))
    levels = math.ceil(math.log2(p))
    assert found.steps == 2 * levels + m - 1
    assert found.time_s(N, A, B) <= (2 * levels + m - 1) * (A + 2 * N / m * B)
    assert found.time_s(N, 0, B) == pytest.approx(2 * N * B, rel=0.01)


def test_in_network_reduction():
    """NVLS: every byte goes up once and 1/p of them comes down summed, and the other way round; SHARP: n up, n down, 2 h hops."""
    nvls = cost(nvls_all_reduce().bind(8))
    assert (nvls.steps, nvls.sent_share(), nvls.received_share()) == (2, 1 + 1 / 8, 1 + 1 / 8)
    assert cost(sharp_all_reduce().bind(8, height=3)).time_s(N, A, B) == pytest.approx(6 * A + N * B)


def test_slices_let_nvls_use_both_directions():
    """Stages overlap: n (1 + 1/p) b for many slices instead of 2 n b."""
    assert time(nvls_all_reduce(), 8) == pytest.approx(2 * A + 2 * N * B)
    assert cost(pipelined(nvls_all_reduce(), 1000).bind(8)).time_s(N, 0, B) == pytest.approx(N * 9 / 8 * B, rel=0.01)


@pytest.mark.parametrize("k", [2, 4, 5])
def test_a_torus_uses_all_its_ports(k: int):
    """k x k: 2 * 2 (k-1) steps; 4 copies of n/4, each 2 (n/4)(p-1)/p bytes, one on each of 4 ports."""
    p = k * k
    assert time(torus_all_reduce(), k, k, ports=4) == pytest.approx(4 * (k - 1) * A + 2 * N * (p - 1) / (4 * p) * B)
    assert cost(torus_all_reduce(3).bind(k, k, k)).steps == 6 * (k - 1)


def test_k_rings_on_k_ports():
    orders = [[0, 1, 2, 3, 4], [0, 2, 4, 1, 3]]
    found = cost(multi_ring_all_gather(orders).bind()).time_s(N, A, B, ports=2)
    assert found == pytest.approx(4 * A + N * 4 / 5 / 2 * B)


@given(nodes=st.integers(2, 6), gpus=st.integers(2, 8))
def test_a_hierarchy_pays_each_level_its_own_rate(nodes: int, gpus: int):
    """2 n (L-1)/L b_in + 2 (n/L)(P-1)/P b_out + 2 a_in + 2 (P-1) a_out."""
    schedule = hierarchical_all_reduce(direct_reduce_scatter(), ring_all_reduce(), direct_all_gather())
    found = cost(schedule.bind(nodes, gpus)).time_s(N, {"node": 7.0, "gpu": 1.0}, {"node": 9e-3, "gpu": 1e-3})
    inside = 2 * N * (gpus - 1) / gpus * 1e-3 + 2 * 1.0
    between = 2 * (N / gpus) * (nodes - 1) / nodes * 9e-3 + 2 * (nodes - 1) * 7.0
    assert found == pytest.approx(inside + between)


@given(nodes=st.integers(2, 6), gpus=st.integers(2, 8))
def test_two_level_all_to_all(nodes: int, gpus: int):
    """n (L-1)/L b_in + n (P-1)/P b_out + a_in + a_out."""
    found = cost(two_level_all_to_all().bind(nodes, gpus)).time_s(N, {"node": 7.0, "gpu": 1.0}, {"node": 9e-3, "gpu": 1e-3})  # fmt: skip
    assert found == pytest.approx(N * (gpus - 1) / gpus * 1e-3 + 1.0 + N * (nodes - 1) / nodes * 9e-3 + 7.0)


@given(p=st.integers(2, 100))
def test_a_barrier_is_log2_p_steps(p: int):
    assert cost(dissemination_barrier().bind(p)).steps == math.ceil(math.log2(p))


def test_channels_divide_messages_not_bytes():
    """A rank with 4 ports sends one message a step; on 4 channels it uses them all."""
    assert time(ring_all_gather(), 5, ports=4) == pytest.approx(4 * A + N * 4 / 5 * B)
    assert time(replicate(ring_all_gather(), 4), 5, ports=4) == pytest.approx(4 * A + N * 4 / 5 / 4 * B)


def test_a_reduction_costs_its_gamma():
    """reduce_scatter adds n (p-1)/p bytes a rank."""
    found = cost(LIBRARY["ring_reduce_scatter"]().bind(5))
    assert found.reduced_share() == pytest.approx(4 / 5)
    assert found.time_s(N, 0, 0, gamma_s_per_byte=1e-6) == pytest.approx(N * 4 / 5 * 1e-6)


@pytest.mark.parametrize("name", LIBRARY)
def test_bytes_counted_are_bytes_moved(name: str):
    """The cost's totals equal a count over all moves, written out."""
    schedule = LIBRARY[name]()
    if any(t in name for t in ("nvls", "sharp", "multicast")):
        pytest.skip("a multicast is one message and many moves")
    for ranks in (4, 6, 8):
        for bound in list(schedule.bindings(ranks))[:2]:
            moves = expand(bound)
            crossing = moves.src != moves.dst
            sent = [int((crossing & (moves.src == r)).sum()) for r in range(ranks)]
            assert cost(bound).sent_share() * bound.chunks == pytest.approx(max(sent))


def test_the_cost_of_a_ring_does_not_depend_on_how_many_turns_it_takes():
    found = cost(ring_all_reduce().bind(131_072))
    assert (found.steps, len(found.rounds)) == (262_142, 2)


def test_a_forest_costs_what_its_busiest_rank_sends():
    """A star of 5: the root sends 4 vectors in one step; a chain: one in each of 4."""
    star, chain = Tree(0, [-1, 0, 0, 0, 0]), Tree(0, [-1, 0, 1, 2, 3])
    assert cost(forest("broadcast", [star]).bind()).time_s(N, A, B) == pytest.approx(A + 4 * N * B)
    assert cost(forest("broadcast", [chain]).bind()).time_s(N, A, B) == pytest.approx(4 * (A + N * B))
    assert cost(forest("broadcast", [chain], parts=10).bind()).time_s(N, A, B) == pytest.approx(13 * (A + N / 10 * B))
