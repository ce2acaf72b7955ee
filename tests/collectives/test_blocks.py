"""Blocks split by peer: one to send to and one to receive from, the same result, nothing that races."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from benchmarks.design.mutants import library_plans
from tests.collectives.plan_runner import check_plan

from busbw.collectives.algorithms import ring_all_reduce
from busbw.collectives.blocks import split_blocks
from busbw.collectives.exchange import TARGETS, write_plan
from busbw.collectives.legality import verify_plan
from busbw.collectives.lowering import plan_of
from busbw.collectives.plan import Buffer, ConnectionKind, Op, Plan, RankBuilder, Span, held_plan
from busbw.errors import InputError

FIFO_OPS = (Op.SEND, Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)


def most_peers(plan: Plan) -> int:
    """Peers of one block in one direction, at most; 0 without FIFOs."""
    most = 0
    for looped in plan:
        rank = looped.unrolled()
        for block in range(len(rank.blocks)):
            vias = {int(r["via"]) for r in rank.rows(block) if r["op"] in (*FIFO_OPS, Op.OPERAND) and r["via"] >= 0}
            most = max([most, *Counter(int(rank.connections[via]["kind"]) for via in vias).values()])
    return most


def uses_fifos_only(plan: Plan) -> bool:
    return all(
        (rank.connections["kind"] <= ConnectionKind.FIFO_IN).all() and not rank.groups and not rank.semaphores
        for rank in plan
    )


@pytest.mark.parametrize(("ranks", "each"), [(2, 1), (3, 1), (4, 4), (5, 6), (6, 12), (7, 12), (8, 16)])
def test_split_plans_of_the_library_have_one_peer_each_way_and_do_the_same(ranks, each):
    """A plan that is legal stays legal, computes what was promised, and reduces in the same order: same bits as before.

    At more ranks one plan of `each` is tried, to save time; `exported` below tells of all of them at 3 ranks.
    """
    tried = 0
    for number, (name, plan) in enumerate(library_plans(ranks)):
        if number % each != ranks % each:
            continue
        split = split_blocks(plan)
        if not uses_fifos_only(plan):
            assert split == plan, name
            continue
        assert most_peers(split) <= 1, name
        before, after = verify_plan(plan), verify_plan(split)
        assert after.legal, (name, after.violations[:1])
        assert after.same_bits == before.same_bits, name
        if plan.collective in ("all_reduce", "all_gather", "reduce_scatter", "broadcast", "all_to_all"):
            check_plan(split)
        tried += most_peers(plan) > 1
    assert (tried > 0) == (ranks > 2)  # of two ranks each has one peer


def test_a_plan_with_one_peer_each_way_stays_as_it_is():
    plan = plan_of(ring_all_reduce().bind(4))
    assert split_blocks(plan) == plan


def chain(*, keeps: bool) -> Plan:
    """Rank 0 has one chunk, rank 1 gets it and sends it on to ranks 2 and 3 by one instruction, and by another."""
    ranks = [RankBuilder(rank, int(rank == 0), 1) for rank in range(4)]
    first = ranks[0].block()
    first.send(Span(Buffer.INPUT, 0), ranks[0].send_to(1))
    first.send(Span(Buffer.INPUT, 0), ranks[0].send_to(1))
    first.copy(Span(Buffer.INPUT, 0), Span(Buffer.OUTPUT, 0))
    middle = ranks[1].block()
    for peer in (2, 3):
        into, out = ranks[1].receive_from(0), ranks[1].send_to(peer)
        if keeps:
            middle.receive_send(into, Span(Buffer.OUTPUT, 0), out)
        else:
            middle.receive_reduce_send(Span(Buffer.OUTPUT, 0), into, out)
    for rank in (2, 3):
        ranks[rank].block().receive(ranks[rank].receive_from(1), Span(Buffer.OUTPUT, 0))
    return held_plan([rank.build() for rank in ranks], name="chain", collective="broadcast", chunks=1)


def test_what_is_sent_on_to_several_peers_is_received_and_sent_apart():
    """One pair of connections stays whole; the second send waits for the receive that stands before it."""
    split = split_blocks(chain(keeps=True))
    rank = split.rank(1)
    words = [[Op(int(op)).name for op in rank.rows(block)["op"]] for block in range(len(rank.blocks))]
    assert words == [["RECV_COPY_SEND", "OPERAND", "RECV", "FLAG_SET"], ["FLAG_WAIT", "SEND"]]
    assert verify_plan(split).legal


def test_what_is_not_kept_cannot_be_sent_apart():
    plan = chain(keeps=False)
    assert split_blocks(plan) == plan


def test_waits_for_an_old_block_become_waits_for_all_that_it_did_before():
    """Block 1 reads what block 0 received from two peers; block 0 becomes two, and block 1 waits for both."""
    ranks = [RankBuilder(rank, 1, 3) for rank in range(3)]
    for rank, builder in enumerate(ranks):
        block, others = builder.block(), [other for other in range(3) if other != rank]
        for other in others:
            block.send(Span(Buffer.INPUT, 0), builder.send_to(other))
        for other in others:
            block.receive(builder.receive_from(other), Span(Buffer.OUTPUT, other))
        block.set_flag()
        second = builder.block(1)
        second.wait_flag(0, 1)
        second.copy(Span(Buffer.INPUT, 0), Span(Buffer.OUTPUT, rank))
    plan = held_plan([rank.build() for rank in ranks], name="x", collective="all_gather", chunks=3)
    split = split_blocks(plan)
    assert verify_plan(split).legal
    last = split.rank(0).rows(len(split.rank(0).blocks) - 1)
    assert last["op"].tolist().count(Op.FLAG_WAIT) == len(split.rank(0).blocks) - 1 == 4


def exported(ranks: int, target: str) -> tuple[int, int]:
    """Library plans, and how many of them are written for a target, read back and verified."""
    written = plans = 0
    for _, plan in library_plans(ranks):
        plans += 1
        try:
            write_plan(replace(plan, name="x"), TARGETS[target])
        except InputError:
            continue
        written += 1
    return plans, written


@pytest.mark.parametrize(("target", "written"), [("msccl", 76), ("rccl", 80)])
def test_most_plans_of_the_library_can_be_written_as_msccl_xml(target, written):
    """At 3 ranks all but those that use multicast, and collectives that the file has no word for; counted, so that a change shows."""
    assert exported(3, target) == (92, written)
