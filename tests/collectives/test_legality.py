"""What a legal plan is, rule by rule: a plan that keeps it, and the smallest change that breaks it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from benchmarks.design.happens_before import unordered
from benchmarks.design.interleavings import final_states, is_right, leaves_early
from benchmarks.design.mutants import Judge, library_plans, mutants
from benchmarks.design.one_sided import group_plan, one_sided_plan, packet_plan, sliced_plan
from benchmarks.design.random_plans import compared

from busbw.collectives.legality import RULES, aliases, verify_plan
from busbw.collectives.plan import (
    LOCAL,
    Buffer,
    ConnectionKind,
    Op,
    Order,
    Plan,
    Promise,
    Protocol,
    RankBuilder,
    RankPlan,
    Span,
    held_plan,
)
from busbw.errors import InputError


def span(buffer: Buffer, index: int, count: int = 1) -> Span:
    return Span(buffer, index, count)


def exchange(fill: Callable[[RankBuilder, int], None], *, chunks: int = 2, **header: object) -> Plan:
    """all_gather of two ranks, one chunk each, out of place, by what `fill` does."""

    def one(rank: int) -> RankPlan:
        builder = RankBuilder(rank, chunks // 2, chunks, 2)
        fill(builder, rank)
        return builder.build()

    given = {"name": "exchange", "collective": "all_gather", "chunks": chunks} | header
    return held_plan([one(0), one(1)], **given)


def good(builder: RankBuilder, rank: int) -> None:
    block = builder.block()
    block.copy(span(Buffer.INPUT, 0), span(Buffer.OUTPUT, rank))
    block.send(span(Buffer.INPUT, 0), builder.send_to(1 - rank))
    block.receive(builder.receive_from(1 - rank), span(Buffer.OUTPUT, 1 - rank))


def rules(plan: Plan, **how: object) -> set[str]:
    return {violation.rule for violation in verify_plan(plan, **how).violations}


def test_two_ranks_that_swap_their_chunks_do_an_all_gather():
    verdict = verify_plan(exchange(good))
    assert verdict.legal and verdict.same_bits and not verdict.unchecked
    assert verdict.instructions == 6


def test_ranks_that_both_receive_first_wait_for_ever_and_the_circle_is_shown():
    def fill(builder: RankBuilder, rank: int) -> None:
        block = builder.block()
        block.receive(builder.receive_from(1 - rank), span(Buffer.OUTPUT, 1 - rank))
        block.send(span(Buffer.INPUT, 0), builder.send_to(1 - rank))

    (violation,) = verify_plan(exchange(fill)).violations
    assert violation.rule == "deadlock"
    assert [(step.rank, step.row) for step in violation.steps] == [(0, 0), (1, 0)]
    assert "the last for the first" in violation.message


def test_a_message_larger_than_a_slot_goes_in_several_where_the_target_cuts_it():
    """Three chunks of 2 MiB each way through a Simple FIFO of 2 slots of 2 MiB: neither sender comes to its receive."""

    def fill(builder: RankBuilder, rank: int) -> None:
        block = builder.block()
        block.copy(span(Buffer.INPUT, 0, 3), span(Buffer.OUTPUT, 3 * rank, 3))
        block.send(span(Buffer.INPUT, 0, 3), builder.send_to(1 - rank))
        block.receive(builder.receive_from(1 - rank), span(Buffer.OUTPUT, 3 - 3 * rank, 3))

    large = exchange(fill, chunks=6, max_bytes=6 * (2 << 20))
    assert verify_plan(large).legal
    assert rules(large, cut_messages=True) == {"fifo-depth"}
    assert verify_plan(replace(large, max_bytes=3 * (2 << 20)), cut_messages=True).legal  # two chunks fit in a slot


def test_a_message_that_nobody_receives_is_left_over():
    def fill(builder: RankBuilder, rank: int) -> None:
        good(builder, rank)
        builder.block().send(span(Buffer.INPUT, 0), builder.send_to(1 - rank, channel=1))
        builder.receive_from(1 - rank, channel=1)

    assert rules(exchange(fill)) == {"leftover-message"}


def test_a_peer_without_the_other_end_is_no_peer():
    def fill(builder: RankBuilder, rank: int) -> None:
        good(builder, rank)
        if rank == 0:
            builder.block().receive(builder.receive_from(1, channel=5), span(Buffer.SCRATCH, 0))

    assert "connection-missing" in rules(exchange(fill))


def test_two_blocks_do_not_write_into_one_fifo():
    def fill(builder: RankBuilder, rank: int) -> None:
        good(builder, rank)
        builder.block().send(span(Buffer.INPUT, 0), builder.send_to(1 - rank))

    assert "connection-shared" in rules(exchange(fill))


def test_both_ends_of_a_fifo_speak_one_protocol():
    def fill(builder: RankBuilder, rank: int) -> None:
        block = builder.block()
        block.copy(span(Buffer.INPUT, 0), span(Buffer.OUTPUT, rank))
        block.send(span(Buffer.INPUT, 0), builder.send_to(1 - rank, protocol=Protocol.LL))
        block.receive(builder.receive_from(1 - rank), span(Buffer.OUTPUT, 1 - rank))

    assert rules(exchange(fill)) == {"protocols-differ"}


def test_nothing_is_contributed_twice():
    """Rank 0 reduces what came and its own once more: ranks {0, 1} with {0}."""

    def one(rank: int) -> RankPlan:
        builder = RankBuilder(rank, 1, 1)
        block = builder.block()
        block.send(span(Buffer.INPUT, 0), builder.send_to(1 - rank))
        block.receive_reduce(span(Buffer.INPUT, 0), builder.receive_from(1 - rank), span(Buffer.OUTPUT, 0))
        if rank == 0:
            block.reduce(span(Buffer.OUTPUT, 0), span(Buffer.OUTPUT, 0), span(Buffer.INPUT, 0))
        return builder.build()

    (violation,) = verify_plan(held_plan([one(0), one(1)], name="x", collective="all_reduce", chunks=1)).violations
    assert violation.rule == "double-contribution"
    assert "of ranks 0 to 1 with that of ranks 0" in violation.message


def test_a_wrong_result_is_shown_with_the_steps_that_led_to_it():
    def fill(builder: RankBuilder, rank: int) -> None:
        block = builder.block()
        block.copy(span(Buffer.INPUT, 0), span(Buffer.OUTPUT, rank))
        block.send(span(Buffer.INPUT, 0), builder.send_to(1 - rank))
        block.receive(builder.receive_from(1 - rank), span(Buffer.SCRATCH, 0))
        block.copy(span(Buffer.INPUT, 0), span(Buffer.OUTPUT, 1 - rank))

    first, *_ = verify_plan(exchange(fill)).violations
    assert first.rule == "wrong-result" and "holds content 0, not 1" in first.message
    assert [(step.rank, step.row) for step in first.steps] == [(0, 3)]


def test_what_was_never_written_is_not_read():
    def fill(builder: RankBuilder, rank: int) -> None:
        good(builder, rank)
        builder.block().copy(span(Buffer.SCRATCH, 0), span(Buffer.SCRATCH, 1))

    assert rules(exchange(fill)) == {"uninitialised"}


@pytest.mark.parametrize(
    ("order", "broken"), [(Order.RELEASE, set()), (Order.RELAXED, {"weak-order"}), (None, {"race", "uninitialised"})]
)
def test_blocks_of_a_rank_are_ordered_by_flags_with_release_and_acquire(order, broken):
    """Block 1 copies what block 0 wrote; without the flag, the order of the two is open."""

    def fill(builder: RankBuilder, rank: int) -> None:
        second = builder.block()  # comes first in the file, so that the order of the file does not help
        first = builder.block()
        good(builder, rank)
        first.copy(span(Buffer.INPUT, 0), span(Buffer.SCRATCH, 0))
        if order is not None:
            first.set_flag(order)
            second.wait_flag(1, 1)
        second.copy(span(Buffer.SCRATCH, 0), span(Buffer.SCRATCH, 1))

    assert rules(exchange(fill)) <= broken
    assert bool(rules(exchange(fill))) == bool(broken)


def one_sided(handshake: bool, signals: bool = True) -> Plan:
    """all_gather of two ranks by a put into the peer's output."""

    def fill(builder: RankBuilder, rank: int) -> None:
        channel = builder.connect(ConnectionKind.MEMORY, 1 - rank)
        block = builder.block()
        block.copy(span(Buffer.INPUT, 0), span(Buffer.OUTPUT, rank))
        if handshake:
            block.signal(channel, order=Order.RELAXED)
            block.wait(channel, order=Order.RELAXED)
        block.put(span(Buffer.INPUT, 0), channel, span(Buffer.OUTPUT, rank))
        if signals:
            block.signal(channel)
            block.wait(channel)

    return exchange(fill)


def test_a_put_needs_to_know_that_its_peer_has_entered_and_to_tell_when_it_is_done():
    assert verify_plan(one_sided(handshake=True)).legal
    assert rules(one_sided(handshake=False)) == {"not-entered"}
    assert rules(one_sided(handshake=True, signals=False)) == {"race"}


def test_scratch_is_written_again_in_the_next_launch_only_when_it_has_been_read():
    """Rank 1 waits for 0's put into its scratch and copies it out; 0 may be in its next launch by then."""

    def fill(builder: RankBuilder, rank: int) -> None:
        channel = builder.connect(ConnectionKind.MEMORY, 1 - rank)
        block = builder.block()
        block.copy(span(Buffer.INPUT, 0), span(Buffer.OUTPUT, rank))
        block.put(span(Buffer.INPUT, 0), channel, span(Buffer.SCRATCH, 0))
        block.signal(channel)
        block.wait(channel)
        block.copy(span(Buffer.SCRATCH, 0), span(Buffer.OUTPUT, 1 - rank))

    assert rules(exchange(fill)) == {"relaunch-race"}
    assert verify_plan(exchange(fill, double_scratch=True)).legal


def test_a_signal_that_nobody_waits_for_is_left_over():
    def fill(builder: RankBuilder, rank: int) -> None:
        good(builder, rank)
        builder.block().signal(builder.connect(ConnectionKind.MEMORY, 1 - rank))

    assert rules(exchange(fill)) == {"leftover-signal"}


def test_a_semaphore_has_one_acquirer_and_ends_as_it_began():
    def fill(builder: RankBuilder, rank: int) -> None:
        good(builder, rank)
        semaphore = builder.semaphore(3)
        for _ in range(2):
            builder.block().acquire(semaphore)

    assert rules(exchange(fill)) == {"two-acquirers", "semaphore-balance"}


@pytest.mark.parametrize(
    ("order", "found"), [(Order.RELEASE, set()), (Order.RELAXED, {"two-acquirers"}), (None, {"two-acquirers"})]
)
def test_blocks_that_wait_one_after_the_other_may_share_signals(order: Order | None, found: set[str]):
    """Two signals of the peer; the second block waits once it has seen that the first block has its own. A flag that orders nothing, or none, leaves it open who takes which."""

    def fill(builder: RankBuilder, rank: int) -> None:
        good(builder, rank)
        channel = builder.connect(ConnectionKind.MEMORY, 1 - rank)
        first, second = builder.block(), builder.block()
        first.signal(channel)
        first.signal(channel)
        first.wait(channel)
        if order is not None:
            first.set_flag(order)
            second.wait_flag(first.block, 1)
        second.wait(channel)

    assert rules(exchange(fill)) == found


def test_a_signal_that_only_comes_after_the_first_wait_does_not_order_the_second():
    """The peer's second signal answers the first block's; the second block waits from the start and may take the first signal."""

    def fill(builder: RankBuilder, rank: int) -> None:
        good(builder, rank)
        there, back = (builder.connect(ConnectionKind.MEMORY, 1 - rank, place) for place in (0, 1))
        first, second, answering = builder.block(), builder.block(), builder.block()
        first.signal(there)
        first.wait(there)
        first.signal(back)
        answering.wait(back)
        answering.signal(there)
        second.wait(there)

    assert "two-acquirers" in rules(exchange(fill))


def test_as_many_blocks_meet_at_a_barrier_as_it_says():
    def fill(builder: RankBuilder, rank: int) -> None:
        good(builder, rank)
        builder.block().barrier(0, 3)
        builder.block().barrier(0, 3)

    assert rules(exchange(fill)) == {"deadlock"}


def test_threads_of_a_block_that_is_not_in_order_meet_at_syncs():
    """A put, then a signal by one thread: without a SYNC between, the signal says nothing of what the other threads stored."""
    plan = one_sided_plan()
    assert verify_plan(plan).legal

    def without(rank: RankPlan, which: int) -> RankPlan:
        syncs = np.flatnonzero(rank.instructions["op"] == Op.SYNC)
        kept = np.delete(rank.instructions, syncs[which])
        blocks = rank.blocks.copy()
        for side in ("first", "last"):
            blocks[side] = np.where(blocks[side] > syncs[which], blocks[side] - 1, blocks[side])
        return replace(rank, instructions=kept, blocks=blocks)

    broken = replace(plan, rank_plan=[without(plan.rank(0), 1), plan.rank(1)].__getitem__)
    assert rules(broken) == {"race"}


@pytest.mark.parametrize(
    "plan", [one_sided_plan(3), packet_plan(), group_plan(), sliced_plan()], ids=lambda plan: plan.name
)
def test_plans_in_the_manner_of_mscclpp_are_legal(plan):
    assert not verify_plan(plan).violations


def test_packets_need_a_second_scratch():
    """all_gather: my packets of the next launch may arrive before the peer has unpacked those of this one."""

    def one(rank: int) -> RankPlan:
        builder = RankBuilder(rank, 1, 2, 2)
        far = builder.connect(ConnectionKind.MAPPED, 1 - rank)
        block = builder.block()
        block.add(Op.PUT_PACKETS, [(far, span(Buffer.OUTPUT, rank), span(Buffer.SCRATCH, rank))])
        block.add(Op.UNPACK, [(LOCAL, span(Buffer.SCRATCH, 1 - rank), span(Buffer.OUTPUT, 1 - rank))])
        return builder.build()

    header = {"name": "x", "collective": "all_gather", "chunks": 2, "in_place": True, "out_of_place": False}
    assert verify_plan(held_plan([one(0), one(1)], double_scratch=True, **header)).legal
    assert rules(held_plan([one(0), one(1)], **header)) == {"relaunch-race"}


def test_a_packet_tells_that_its_writer_has_read_what_it_sends():
    """The peer's answer is made of my packet, so the peer has read it when the answer is here: one scratch is enough."""
    assert verify_plan(replace(packet_plan(), double_scratch=False)).legal


def test_a_barrier_lets_nobody_leave_before_all_have_entered():
    """Each of three ranks tells only the next one: rank 2 leaves before 1's token, which 0 did not wait for, says anything of 0."""

    def one(rank: int, rounds: int) -> RankPlan:
        builder = RankBuilder(rank, 0, 0, 1)
        block = builder.block()
        for _ in range(rounds):
            block.send(span(Buffer.SCRATCH, 0), builder.send_to((rank + 1) % 3))
            block.receive(builder.receive_from((rank - 1) % 3), span(Buffer.SCRATCH, 0))
        return builder.build()

    def ring(rounds: int) -> Plan:
        return held_plan([one(rank, rounds) for rank in range(3)], name="b", collective="barrier", chunks=1)

    assert verify_plan(ring(2)).legal
    assert rules(ring(1)) == {"not-a-barrier"}


def test_in_place_buffers_share_memory_as_the_collective_defines_it():
    """AG: input chunk c is output chunk r f + c; RS: output chunk c is input chunk r f + c; AR: the same."""
    rank = RankBuilder(2, 3, 12).build()
    plan = held_plan([rank] * 4, name="x", collective="all_gather", chunks=12)
    assert aliases(plan, rank, True) == (6, 0, 12)
    assert aliases(plan, rank, False) == (0, 3, 15)
    assert aliases(replace(plan, collective="reduce_scatter"), RankBuilder(2, 12, 3).build(), True) == (0, 6, 12)
    assert aliases(replace(plan, collective="all_reduce"), RankBuilder(2, 12, 12).build(), True) == (0, 0, 12)


def test_a_custom_collective_is_held_to_its_own_promise():
    """Rank r's chunk must end at the other rank; a plan without a promise says that its result was not checked."""
    swap = Promise(lambda rank: np.array([rank]), lambda rank: np.array([1 - rank]))

    def one(rank: int, target: int) -> RankPlan:
        builder = RankBuilder(rank, 1, 1)
        block = builder.block()
        block.send(span(Buffer.INPUT, 0), builder.send_to(1 - rank))
        block.receive(builder.receive_from(1 - rank), span(Buffer.OUTPUT, target))
        return builder.build()

    plan = held_plan([one(0, 0), one(1, 0)], name="swap", collective="custom", chunks=1, promise=swap)
    assert verify_plan(plan).legal
    assert "promises none" in verify_plan(replace(plan, promise=None)).unchecked[0]
    wrong = replace(plan, promise=Promise(swap.before, lambda rank: np.array([rank])))
    assert rules(wrong) == {"wrong-result"}


def test_a_plan_that_is_too_large_is_refused_with_a_reason():
    plan = held_plan([RankBuilder(0, 1 << 28, 1 << 28).build()], name="x", collective="custom", chunks=1)
    with pytest.raises(InputError, match="Verify it at fewer ranks"):
        verify_plan(plan)


def test_every_rule_has_a_name_and_a_sentence():
    assert len({rule.name for rule in RULES}) == len(RULES)
    assert all(rule.text.endswith(".") for rule in RULES)


@pytest.mark.parametrize("ranks", [2, 4])
def test_no_library_schedule_is_called_illegal(ranks):
    alarms = {name: verify_plan(plan).violations for name, plan in library_plans(ranks)}
    assert alarms
    assert {name: found for name, found in alarms.items() if found} == {}


def test_no_mutant_of_small_library_plans_is_missed():
    """A sample; `python -m benchmarks design --only D8` has them all."""
    judged = [
        (name, mutant.kind, mutant.rank, mutant.row, judge.judgement(mutant))
        for name, plan in library_plans(2)
        for judge in [Judge(plan)]
        for mutant in mutants(plan, 1, np.random.default_rng(len(name)))
    ]
    assert len(judged) > 300
    assert [one for one in judged if one[-1] == "missed"] == []


def test_every_order_of_a_racing_plan_is_tried_by_the_second_opinion():
    """Two blocks write one chunk: two ends. One block alone: one."""

    def plan(blocks: int) -> Plan:
        builder = RankBuilder(0, 2, 1)
        for number in range(blocks):
            builder.block().copy(span(Buffer.INPUT, number), span(Buffer.OUTPUT, 0))
        return held_plan([builder.build()], name="x", collective="custom", chunks=1)

    assert len(final_states(plan(2), False)) == 2
    assert len(final_states(plan(1), False)) == 1


def test_orders_that_differ_only_in_steps_that_commute_end_alike():
    """Every end that trying all orders finds is found by trying one of each kind, and no other."""
    for name, plan in library_plans(2):
        if all(len(plan.rank(rank).unrolled().instructions) <= 8 for rank in range(2)):
            assert final_states(plan, plan.in_place, every_order=True) == final_states(plan, plan.in_place), name


def test_every_order_of_a_library_plan_keeps_the_promise():
    """A second opinion on what the verifier calls legal: one end, and it is the right one."""
    for name, plan in library_plans(3):
        ends = final_states(plan, plan.in_place)
        assert len(ends) == 1, name
        assert (
            not leaves_early(plan, plan.in_place)
            if plan.collective == "barrier"
            else is_right(plan, ends, plan.in_place)
        ), name


def test_happens_before_of_a_run_sees_what_a_relaxed_flag_leaves_open():
    """One block copies and sets a flag, the other waits for it and copies on. Relaxed on either side, the flag orders nothing."""

    def plan(sets: Order, waits: Order) -> Plan:
        builder = RankBuilder(0, 1, 1, 1)
        first, second = builder.block(), builder.block()
        first.copy(span(Buffer.INPUT, 0), span(Buffer.SCRATCH, 0))
        first.set_flag(order=sets)
        second.wait_flag(0, 1, order=waits)
        second.copy(span(Buffer.SCRATCH, 0), span(Buffer.OUTPUT, 0))
        return held_plan([builder.build()], name="x", collective="all_reduce", chunks=1)

    assert unordered(plan(Order.RELEASE, Order.ACQUIRE), False) == set()
    for weak in (plan(Order.RELAXED, Order.ACQUIRE), plan(Order.RELEASE, Order.RELAXED)):
        assert unordered(weak, False) == {("rank 0 block 0 row 0, launch 0", "rank 0 block 1 row 1, launch 0")}
        assert rules(weak) == {"weak-order"}


def test_random_plans_are_judged_alike_by_the_verifier_and_by_trying():
    """A sample; `python -m benchmarks.design.random_plans` makes any number."""
    counts, found = compared(3, 24)
    assert found == []
    assert counts["illegal"] > 5
