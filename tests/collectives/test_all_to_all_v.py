"""All-to-all with counts of any size, down to none."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from busbw.collectives import expand, violations
from busbw.collectives.algorithms import (
    direct_all_to_all_v,
    direct_moe_combine,
    direct_moe_dispatch,
    fast_all_to_all_v,
    pairwise_all_to_all_v,
    ring_all_gather,
    two_level_all_to_all_v,
)
from busbw.collectives.algorithms.all_to_all_v import birkhoff
from busbw.collectives.collective import Routing
from busbw.collectives.cost import cost
from busbw.collectives.exchange.busbw_json import read_busbw_json, write_busbw_json
from busbw.collectives.legality import verify_plan
from busbw.collectives.lowering import plan_of
from busbw.collectives.schedule_json import from_json, to_json
from busbw.errors import InputError

from .plan_runner import check_plan


@st.composite
def tables(draw: st.DrawFn, ranks: int, most: int = 6) -> np.ndarray:
    flat = draw(st.lists(st.integers(0, most), min_size=ranks * ranks, max_size=ranks * ranks))
    return np.array(flat).reshape(ranks, ranks)


@given(data=st.data(), nodes=st.integers(1, 3), gpus=st.integers(1, 3))
def test_every_element_arrives_in_its_place(data: st.DataObject, nodes: int, gpus: int):
    counts = data.draw(tables(nodes * gpus))
    for schedule in (
        direct_all_to_all_v(counts),
        pairwise_all_to_all_v(counts),
        two_level_all_to_all_v(counts, gpus),
        fast_all_to_all_v(counts, gpus),
    ):
        bound = schedule.bind()
        assert violations(bound) == []
        check_plan(plan_of(bound))
        assert verify_plan(plan_of(bound)).violations == ()


@given(data=st.data(), size=st.integers(1, 7))
def test_permutations_add_up_to_the_matrix_and_to_its_largest_sum(data: st.DataObject, size: int):
    """Birkhoff: the weights sum to the largest row or column sum; every entry is covered."""
    matrix = data.draw(tables(size, most=50))
    parts = birkhoff(matrix)
    covered = np.zeros_like(matrix)
    for weight, to in parts:
        assert sorted(to.tolist()) == list(range(size)) and weight > 0
        covered[np.arange(size), to] += weight
    assert (covered >= matrix).all()
    assert sum(weight for weight, _ in parts) == max(matrix.sum(0).max(), matrix.sum(1).max())
    assert len(parts) <= size * size - 2 * size + 2


def test_fast_keeps_all_nics_of_a_node_equally_busy():
    """One rank of node 0 sends 40 elements to one rank of node 1: 4 NICs carry 10 each; direct, one carries 40."""
    counts = np.zeros((8, 8), int)
    counts[0, 5] = 40
    for schedule, most in ((direct_all_to_all_v(counts), 40), (fast_all_to_all_v(counts, 4), 10)):
        moves = expand(schedule.bind())
        crossing = moves.src // 4 != moves.dst // 4
        assert np.bincount(moves.src[crossing]).max() == most


@given(data=st.data())
def test_fast_needs_the_nics_no_longer_than_any_schedule_must(data: st.DataObject):
    """Sum over steps of the busiest NIC's elements is the node matrix's largest row or column sum over gpus, rounded up a step."""
    nodes, gpus = 3, 2
    counts = data.draw(tables(nodes * gpus, most=30))
    moves = expand(fast_all_to_all_v(counts, gpus).bind())
    crossing = moves.src // gpus != moves.dst // gpus
    busy = 0
    rounds = np.unique(moves.step[crossing])
    for step in rounds:
        busy += np.bincount(moves.src[crossing & (moves.step == step)]).max()
    matrix = counts.reshape(nodes, gpus, nodes, gpus).sum((1, 3))
    np.fill_diagonal(matrix, 0)
    assert busy <= max(matrix.sum(0).max(), matrix.sum(1).max()) / gpus + len(rounds)


def test_the_cost_counts_the_largest_row_or_column():
    """Row sums 3, 7; column sums 4, 6; what stays is not sent: rank 1 sends 4, rank 0 receives 4."""
    found = cost(direct_all_to_all_v([[0, 3], [4, 3]]).bind())
    assert found.chunks == 7
    assert found.time_s(7 * 8, 1.0, 0.5) == pytest.approx(1.0 + 4 * 8 * 0.5)


@settings(max_examples=8)
@given(data=st.data(), ranks=st.integers(1, 4))
def test_counts_may_be_given_when_a_schedule_is_bound(data: st.DataObject, ranks: int):
    """One schedule of constant size for all counts, zeros and single elements too; its plan is that of the schedule made for these counts."""
    counts = data.draw(tables(ranks))
    for make in (direct_all_to_all_v, pairwise_all_to_all_v):
        bound = from_json(to_json(make())).bind(counts=counts)
        assert bound.ranks == ranks and violations(bound) == []
        plan = plan_of(bound)
        assert plan == plan_of(make(counts).bind()) and np.array_equal(plan.counts, counts)
        assert verify_plan(plan).legal
        assert read_busbw_json(write_busbw_json(plan), "x") == plan


def test_a_schedule_with_open_counts_says_what_it_needs():
    with pytest.raises(ValueError, match=r"direct_all_to_all_v needs counts: bind\(counts="):
        direct_all_to_all_v().bind(4)
    with pytest.raises(ValueError, match="direct_all_to_all_v was made for r=2, not 3"):
        direct_all_to_all_v().bind(3, counts=[[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="ring_all_gather takes no counts"):
        ring_all_gather().bind(2, counts=[[0, 1], [1, 0]])
    for odd in ([[1, 2]], [[0.5]], [], "text", [[1, 2], [3]]):
        with pytest.raises(ValueError, match="square table of whole numbers"):
            direct_all_to_all_v().bind(counts=odd)


def test_a_plan_of_experts_keeps_its_promise_in_our_json():
    """moe_dispatch has no name among plans' collectives: what it promises is written out, and checked when it is read."""
    routing = Routing.of([0, 1, 1], [[1], [0, 1], [2]], ranks=3)
    for schedule in (direct_moe_dispatch(routing), direct_moe_combine(routing)):
        plan = plan_of(schedule.bind())
        text = write_busbw_json(plan)
        again = read_busbw_json(text, "x")
        assert again == plan and verify_plan(again).unchecked == () and verify_plan(again).legal
        wrong = json.loads(text)
        wrong["promise"]["after"][0] = [2 for _ in wrong["promise"]["after"][0]]  # token 2 on rank 0, everywhere
        assert "wrong-result" in {one.rule for one in verify_plan(read_busbw_json(json.dumps(wrong), "x")).violations}
        wrong["promise"]["after"].pop()
        with pytest.raises(InputError, match="has 2 rows of after for 3 ranks"):
            read_busbw_json(json.dumps(wrong), "x")


def test_counts_are_checked():
    with pytest.raises(ValueError, match="square table of whole numbers without negative entries"):
        direct_all_to_all_v([[1, -1], [0, 0]])
    for huge in (float("inf"), float("nan"), 1e300, 1 << 62, (1 << 64) - 1, 1 << 70):  # JSON has them all
        with pytest.raises(ValueError, match=r"without negative entries, of 2\^53 at most"):
            direct_all_to_all_v([[1, huge], [0, 0]])
    with pytest.raises(ValueError, match="6 ranks are not a number of nodes of 4"):
        fast_all_to_all_v(np.ones((6, 6)), 4)
