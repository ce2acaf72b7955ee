"""From schedules to what ranks run: loops kept, and the bars of the design (D10)."""

from __future__ import annotations

import pytest

from busbw.collectives import Schedule
from busbw.collectives.algorithms import (
    LIBRARY,
    bruck_all_gather,
    direct_all_to_all,
    pairwise_all_to_all,
    ring_all_gather,
    ring_all_reduce,
)
from busbw.collectives.builder import Axis, blocks, chunks, copy, parallel, scratch, together
from busbw.collectives.builder import schedule as record
from busbw.collectives.legality import verify_plan
from busbw.collectives.lowering import lower, plan_of
from busbw.collectives.passes import pipelined
from busbw.collectives.plan import ConnectionKind, Op

from .plan_runner import check_plan


def operations(schedule: Schedule, *sizes: int, rank: int = 0, **how) -> list[str]:
    return [Op(op).name for op in lower(schedule.bind(*sizes), rank, **how).instructions["op"]]


def test_a_ring_of_any_size_is_two_loops():
    """2 loops of a send and a receive; in place nothing else."""
    for ranks in (3, 131_072):
        assert operations(ring_all_reduce(), ranks, rank=ranks - 1, in_place=True) == [
            "LOOP", "SEND", "RECV_REDUCE_COPY", "LOOP", "SEND", "RECV",
        ]  # fmt: skip


def test_out_of_place_the_input_is_copied_first():
    assert operations(ring_all_gather(), 4) == ["COPY", "LOOP", "SEND", "RECV"]


def test_chunks_of_a_ring_go_round_in_their_buffer():
    """Rank 1 of 4 sends 1, 0, 3, 2 and receives 0, 3, 2."""
    plan = lower(ring_all_gather().bind(4), 1, in_place=True).unrolled().instructions
    assert plan["src"][plan["op"] == Op.SEND].tolist() == [1, 0, 3]
    assert plan["dst"][plan["op"] == Op.RECV].tolist() == [0, 3, 2]


def test_a_pairwise_exchange_walks_over_its_peers():
    """A loop of a send to the next peer and a receive from the one before, over 2 (p - 1) connections."""
    assert operations(pairwise_all_to_all(), 64) == ["COPY", "LOOP", "SEND", "RECV"]
    plan = lower(pairwise_all_to_all().bind(8), 3)
    out = plan.connections["kind"] == ConnectionKind.FIFO_OUT
    assert plan.connections["peer"][out].tolist() == [4, 5, 6, 7, 0, 1, 2]
    assert plan.connections["peer"][~out].tolist() == [2, 1, 0, 7, 6, 5, 4]


def test_neighbouring_chunks_travel_as_one_message():
    """Bruck's third step of 8 ranks: rank 0 sends blocks 0 .. 3 in one."""
    plan = lower(bruck_all_gather().bind(8), 0, in_place=True).instructions
    assert plan["count"][plan["op"] == Op.SEND].tolist() == [1, 2, 4]


def test_one_rank_costs_what_it_does_not_what_all_do():
    """A plan of 131,072 ranks: 6 instructions each, whichever is asked for."""
    plan = plan_of(ring_all_reduce().bind(131_072), in_place=True)
    assert {plan.rank(r).operations for r in (0, 1, 65_536, 131_071)} == {6}


@pytest.mark.parametrize("kind", ["all_reduce", "all_gather", "reduce_scatter", "broadcast"])
def test_in_place_and_out_of_place_compute_the_same(kind: str):
    for name, make in LIBRARY.items():
        schedule = make()
        if schedule.kind == kind and name != "torus_all_reduce_3d":
            for bound in list(schedule.bindings(4))[:2]:
                check_plan(plan_of(bound, in_place=True))


def test_other_collectives_are_not_run_in_place():
    with pytest.raises(ValueError, match="all_to_all is not run in place"):
        plan_of(direct_all_to_all().bind(4), in_place=True)


def test_channels_are_blocks_of_their_own():
    """Two rings that share no chunk: two blocks, the second waits for the copy of the input that the first made."""

    @record("all_gather")
    def two_ways(r: Axis) -> None:
        data = chunks(2 * r.size)
        with together():
            for i in parallel(r.size - 1):
                r.send(data[2 * r], to=r + i + 1, channel=0)
            for i in parallel(r.size - 1):
                r.send(data[2 * r + 1], to=r - i - 1, channel=1)

    plan = lower(two_ways.bind(4), 2)
    assert plan.blocks["channel"].tolist() == [0, 1]
    assert Op(plan.rows(1)[0]["op"]) is Op.FLAG_WAIT
    check_plan(plan_of(two_ways.bind(4)))


def test_channels_that_share_chunks_stay_in_one_block():
    @record("all_reduce")
    def shared(r: Axis) -> None:
        data = chunks(1)
        for i in parallel(r.size - 1):
            r.send(data[0], to=r + i + 1, reduce=True, channel=i)

    assert len(lower(shared.bind(4), 0).blocks) == 1
    check_plan(plan_of(shared.bind(4)))


def test_two_own_chunks_do_not_change_places_in_one_step():
    """Whatever comes first destroys what the other reads."""

    @record("all_to_all")
    def swap(r: Axis) -> None:
        inputs, _ = blocks(r.size)
        held = scratch(2)
        copy(inputs[0], held[0])
        copy(inputs[1], held[1])
        with together():
            copy(held[0], held[1])
            copy(held[1], held[0])

    with pytest.raises(ValueError, match="take two steps, or scratch"):
        lower(swap.bind(2), 0)


def test_two_ranks_do_change_chunks_in_one_step():
    """Both send before they receive: recursive doubling of one chunk, in place."""
    assert operations(LIBRARY["recursive_doubling_all_reduce"](), 2, in_place=True) == ["SEND", "RECV_REDUCE_COPY"]


def test_a_pipeline_interleaves_its_slices():
    """A chain of 3, 4 slices: rank 1 receives slice i + 1 after it has sent slice i."""
    names = operations(LIBRARY["chain_broadcast"](), 3, rank=1, in_place=True)
    assert names == ["RECV", "SEND"]
    plan = lower(LIBRARY["chain_broadcast"]().bind(3, parts=4), 1, in_place=True).instructions
    assert [Op(op).name for op in plan["op"]] == ["RECV"] + ["SEND", "RECV"] * 3 + ["SEND"]


def test_slices_that_pass_through_two_groups_in_one_step_meet_each_in_its_own():
    """While one slice is summed over the nodes, the next is summed inside a node: two groups of the switch in one step."""
    schedule = pipelined(LIBRARY["hierarchical_all_reduce_sharp"](), 2)
    for shape in ((2, 2), (3, 2)):
        for in_place in (False, True):
            assert verify_plan(plan_of(schedule.bind(*shape), in_place=in_place)).violations == ()


@pytest.mark.parametrize("name", ["torus_all_reduce", "swing_all_reduce", "hierarchical_all_reduce_sharp", "census_all_reduce", "binomial_scatter"])  # fmt: skip
def test_a_rank_is_the_same_whether_it_is_lowered_alone_or_after_others(name: str):
    """From the third rank on, what all do is written out once."""
    bound = list(LIBRARY[name]().bindings(8))[:2][-1]
    plan = plan_of(bound)
    for rank in range(bound.ranks):
        together, alone = plan.rank(rank), lower(bound, rank)
        for columns in ("instructions", "blocks", "connections", "walks"):
            assert getattr(together, columns).tobytes() == getattr(alone, columns).tobytes()
