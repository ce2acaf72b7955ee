"""What a plan is: columns of instructions, loops kept, ranks made when asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from busbw.collectives.algorithms import LIBRARY
from busbw.collectives.lowering import plan_of
from busbw.collectives.plan import Buffer, ConnectionKind, Op, Order, Plan, RankBuilder, RankPlan, Span, held_plan
from busbw.collectives.shapes import shapes_of


def ring_all_gather(ranks: int) -> Plan:
    """Step t: send block r-t to r+1; the first block comes from the input."""

    def one(rank: int) -> RankPlan:
        builder = RankBuilder(rank, 1, ranks)
        out, into = builder.send_to((rank + 1) % ranks), builder.receive_from((rank - 1) % ranks)
        block = builder.block()
        block.copy(Span(Buffer.INPUT, 0), Span(Buffer.OUTPUT, rank))
        block.send(Span(Buffer.INPUT, 0), out)
        with block.loop(ranks - 2):
            block.receive_send(into, Span(Buffer.OUTPUT, (rank - 1) % ranks, step=(-1,), wrap=ranks), out)
        block.receive(into, Span(Buffer.OUTPUT, (rank + 1) % ranks))
        return builder.build()

    return Plan("ring", "all_gather", ranks, ranks, one)


def test_an_instruction_takes_24_bytes():
    assert np.dtype("V24").itemsize == ring_all_gather(4).rank(0).instructions.dtype.itemsize


def test_a_loop_runs_its_rows_and_goes_round():
    """Rank 1 of 5 receives blocks 0, 4, 3 in its loop: r-1-t mod 5."""
    rows = ring_all_gather(5).rank(1).unrolled().instructions
    loop = rows[rows["op"] == Op.RECV_COPY_SEND]
    assert loop["dst"].tolist() == [0, 4, 3]
    assert Op.LOOP not in rows["op"]


@pytest.mark.parametrize(
    "name", ["ring_all_reduce", "direct_all_to_all", "bruck_all_to_all", "double_binary_tree_all_reduce"]
)
def test_what_loops_stand_for_is_counted_and_seen_without_writing_them_out(name):
    """Rows and channels' shapes are the same for a plan and for its ranks with all loops written out."""
    plan = plan_of(LIBRARY[name]().bind(5))
    written = [rank.unrolled() for rank in plan]
    assert [rank.written_out_rows for rank in plan] == [len(rank.instructions) for rank in written]
    assert shapes_of(plan) == shapes_of(replace(plan, rank_plan=written.__getitem__))


def test_a_loop_over_peers_uses_each_of_their_connections():
    """Two loops inside each other, the outer over two groups of two peers: all four are met; a loop that does not run meets none."""
    builder = RankBuilder(0, 1, 1)
    ways = [builder.send_to(peer) for peer in (1, 2, 3, 4)]
    builder.send_to(5)
    block = builder.block()
    with block.loop(2), block.loop(2):
        block.send(Span(Buffer.INPUT, 0), ways[0], via_step=(2, 1))
    with block.loop(0):
        block.send(Span(Buffer.INPUT, 0), 4)
    idle = [RankBuilder(rank, 1, 1).build() for rank in range(1, 6)]
    shape = shapes_of(held_plan([builder.build(), *idle], name="peers", collective="custom", chunks=1))
    assert [one.edges for one in shape] == [((0, 1), (0, 2), (0, 3), (0, 4))]


def test_inner_and_outer_loops_move_operands_by_their_own_steps():
    builder = RankBuilder(0, 16, 16)
    block = builder.block()
    with block.loop(2), block.loop(3):
        block.copy(Span(Buffer.INPUT, 1, step=(8, 2)), Span(Buffer.OUTPUT, 7, step=(0, 1), first=6, wrap=2))
    rows = builder.build().unrolled().instructions
    assert rows["src"].tolist() == [1, 3, 5, 9, 11, 13]
    assert rows["dst"].tolist() == [7, 6, 7, 7, 6, 7]


def test_a_plan_of_131072_ranks_is_made_rank_by_rank():
    plan = ring_all_gather(131_072)
    assert plan.rank(77).operations == 5


def test_what_a_rank_does_is_equal_however_its_tables_are_listed():
    def one(first: int) -> RankPlan:
        builder = RankBuilder(0, 2, 2)
        for peer in (first, 3 - first):
            builder.connect(ConnectionKind.MEMORY, peer)
        block = builder.block()
        block.signal(builder.connect(ConnectionKind.MEMORY, 1))
        block.wait(builder.connect(ConnectionKind.MEMORY, 2), order=Order.RELAXED)
        return builder.build()

    assert one(1) == one(2)
    header = {"name": "two", "collective": "custom", "chunks": 2}
    assert held_plan([one(1)], **header) == held_plan([one(2)], **header)
    assert held_plan([one(1)], **header) != held_plan([one(1)], **(header | {"chunks": 3}))


def test_wrong_use_of_a_builder_says_what_is_wrong():
    builder = RankBuilder(0, 4, 4)
    block = builder.block()
    with pytest.raises(ValueError, match="2 chunks are read, 1 written"):
        block.copy(Span(Buffer.INPUT, 0, 2), Span(Buffer.OUTPUT, 0, 1))
    with pytest.raises(ValueError, match="1 steps are given inside 0 loops"):
        block.copy(Span(Buffer.INPUT, 0, step=(1,)), Span(Buffer.OUTPUT, 0))
    with pytest.raises(ValueError, match="ranks 0 to 4, not 5"):
        ring_all_gather(5).rank(5)
