"""Plans take what their slots, credits and slices let them; the times are worked out here."""

from dataclasses import replace

import numpy as np
import pytest

from busbw.collectives.algorithms import LIBRARY
from busbw.collectives.exchange import read_plan, target_named, write_plan
from busbw.collectives.lowering import plan_of
from busbw.collectives.plan import Buffer, ConnectionKind, Op, Plan, Protocol, RankBuilder, Span, held_plan
from busbw.errors import InputError
from busbw.hardware import find_cluster
from busbw.hardware.fabrics import LinkRates, SingleSwitch
from busbw.simulation import NCCL, WHOLE, Fifo, Runtime, plan_program, simulate

B, L = 50e9, 2e-6
"""Of a way: two links of a star, 1 us each."""
SLOT = 1 << 16
SENT_S = SLOT / B


def star(ranks):
    return SingleSwitch(ranks, LinkRates(B, B, 0.0, L / 2))


def dgx(nodes=1):
    return find_cluster("dgx-h100", nodes)[0]


def runtime(slots, slot_bytes=SLOT, **more):
    return Runtime("test", {Protocol.SIMPLE: Fifo(slots, slot_bytes, **more)})


def chain(ranks, messages):
    """Rank 0 sends, the others pass on, the last one receives: one chunk, cut into messages by the slots."""
    built = []
    for rank in range(ranks):
        builder = RankBuilder(rank, 1, 1)
        block, chunk = builder.block(), Span(Buffer.OUTPUT, 0)
        with block.loop(messages):
            if rank == 0:
                block.send(Span(Buffer.INPUT, 0), builder.send_to(1))
            elif rank == ranks - 1:
                block.receive(builder.receive_from(rank - 1), chunk)
            else:
                block.receive_send(builder.receive_from(rank - 1), chunk, builder.send_to(rank + 1))
        built.append(builder.build())
    return held_plan(built, name="chain", collective="broadcast", chunks=1)


@pytest.mark.parametrize("slots", [1, 2, 3, 4])
def test_a_connection_that_waits_for_credit_carries_its_slots_each_round_trip(slots):
    """k slots leave one after another; each is known to be free a way there and back after it left: k slots every t + 2 L."""
    rounds = 50
    found = simulate(chain(2, rounds * slots), star(2), size_bytes=SLOT, runtime=runtime(slots))
    period = SENT_S + 2 * L
    assert slots * SENT_S < period, "credit is what limits"
    assert found.time_s == pytest.approx((rounds - 1) * period + slots * SENT_S + L, rel=1e-6)


def test_with_slots_for_the_round_trip_the_link_is_never_idle():
    """Enough slots: the messages follow one another, and the last takes one latency."""
    slots = int((SENT_S + 2 * L) / SENT_S) + 2
    found = simulate(chain(2, 100), star(2), size_bytes=SLOT, runtime=runtime(slots))
    assert found.time_s == pytest.approx(100 * SENT_S + L, rel=1e-6)


def test_a_chain_takes_a_slice_a_stage():
    """k ways, n slices: (k - 1 + n) slices and k latencies. Source of the form: simulation of NCCL's channel pipeline."""
    ranks, slices = 5, 32
    found = simulate(chain(ranks, 1), star(ranks), size_bytes=slices * SLOT, runtime=runtime(64, slots_a_chunk=64))
    assert found.time_s == pytest.approx((ranks - 2 + slices) * SENT_S + (ranks - 1) * L, rel=1e-6)


def test_who_stores_itself_frees_a_slot_when_it_has_passed_it_on():
    """NVLink, one slot: a message leaves rank 0, then rank 1, which then gives the slot back: 2 t and two ways of latency each."""
    way, rate, messages = 0.6e-6, 450e9, 20
    found = simulate(chain(3, messages), dgx(), size_bytes=SLOT, runtime=runtime(1))
    assert found.time_s == pytest.approx(messages * (2 * SLOT / rate + 2 * way), rel=1e-5)


def test_a_proxy_frees_a_slot_when_the_message_has_come():
    """Through the network the sender's own buffer holds what is passed on: t and two ways of latency a message."""
    messages = 20
    found = simulate(chain(3, messages), star(3), size_bytes=SLOT, runtime=runtime(1))
    assert found.time_s == pytest.approx((messages - 1) * (SENT_S + 2 * L) + 2 * (SENT_S + L), rel=1e-6)


def test_overheads_of_messages_add_up_where_nothing_hides_them():
    """One slot: each message waits for its credit, then costs its sender o before its first byte."""
    o, messages = 3e-6, 20
    found = simulate(chain(2, messages), star(2), size_bytes=SLOT, runtime=runtime(1, overhead_s=o))
    assert found.time_s == pytest.approx((messages - 1) * (o + SENT_S + 2 * L) + o + SENT_S + L, rel=1e-6)


def test_a_nic_begins_so_many_messages_a_second():
    """Messages of 1 byte, one every 1 us, whatever the link could."""
    slow = Runtime("slow", {Protocol.SIMPLE: Fifo(0, 1)}, nic_gap_s=1e-6)
    found = simulate(chain(2, 1000), star(2), size_bytes=1, runtime=slow)
    assert found.time_s == pytest.approx(999e-6 + 1 / B + L, rel=1e-6)


@pytest.mark.parametrize(
    ("protocol", "factor"), [(Protocol.LL, 2.0), (Protocol.LL128, 128 / 120), (Protocol.SIMPLE, 1.0)]
)
def test_a_protocol_that_sends_flags_beside_data_takes_more_of_the_wire(protocol, factor):
    """LL: 8 of 16 bytes are data; LL128: 120 of 128."""
    size = 1 << 24
    found = simulate(replace(chain(2, 1), protocol=protocol), star(2), size_bytes=size, runtime=NCCL)
    assert found.time_s == pytest.approx(size * factor / B + L, rel=1e-4)


def test_nccl_has_four_slices_of_a_mebibyte_in_flight():
    """8 slots of 512 KiB in slices of 2. A ring of 4 on slow links: 3 steps of its quarter, all links busy but for the latency of each."""
    assert NCCL.fifo(Protocol.SIMPLE).messages == 4
    assert NCCL.fifo(Protocol.SIMPLE).message_bytes == 1 << 20
    size = 64 << 20
    found = simulate(plan_of(LIBRARY["ring_all_gather"]().bind(4)), star(4), size_bytes=size)
    tiles = 8  # of 2 MiB a chunk
    assert found.time_s == pytest.approx(3 * size / 4 / B + 3 * tiles * L, rel=0.02)


@pytest.mark.parametrize(
    "name",
    ["ring_all_reduce", "direct_all_gather", "rabenseifner_all_reduce", "binary_tree_all_reduce", "nvls_all_reduce"],
)
@pytest.mark.parametrize("size", [0, 1, 1_000_003, 1 << 24])
def test_folding_a_plan_changes_no_picosecond(name, size):
    """Folded and fast-forwarded, and neither."""
    plan = plan_of(LIBRARY[name]().bind(8))
    folded, plain = (simulate(plan, dgx(), size_bytes=size, fold=on, fast_forward=on) for on in (True, False))
    assert np.array_equal(folded.rank_ends_ps(), plain.rank_ends_ps())
    assert plain.folded == 1


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 6, 7])
def test_without_limits_a_ring_plan_takes_the_time_of_its_schedule(ranks):
    """2 (n - 1) steps of an n-th each."""
    bound = LIBRARY["ring_all_reduce"]().bind(ranks)
    found = simulate(plan_of(bound), star(ranks), size_bytes=1 << 20, runtime=WHOLE).time_s
    assert found == pytest.approx(2 * (ranks - 1) * ((1 << 20) / ranks / B + L), rel=1e-4)


def test_a_plan_of_a_file_takes_the_time_of_the_plan(tmp_path):
    """MSCCL XML there and back."""
    plan = plan_of(LIBRARY["ring_all_reduce"]().bind(4))
    (tmp_path / "ring.xml").write_text(write_plan(plan, target_named("rccl")))
    again = read_plan(tmp_path / "ring.xml").plan
    one, other = (simulate(p, star(4), size_bytes=1 << 22) for p in (plan, again))
    assert np.array_equal(one.rank_ends_ps(), other.rank_ends_ps())


def pair(fill):
    """A plan of two ranks with one chunk; `fill` makes each rank's block."""
    built = []
    for rank in range(2):
        builder = RankBuilder(rank, 1, 1)
        fill(rank, builder)
        built.append(builder.build())
    return held_plan(built, name="pair", collective="custom", chunks=1)


MINE, THEIRS = Span(Buffer.INPUT, 0), Span(Buffer.OUTPUT, 0)


@pytest.mark.parametrize("kind", [ConnectionKind.MEMORY, ConnectionKind.PORT])
def test_a_signal_comes_after_the_puts_before_it(kind):
    """Two puts and a signal: the waiter goes on when the second has arrived."""

    def fill(rank, builder):
        block, via = builder.block(), builder.connect(kind, 1 - rank)
        if rank == 0:
            block.put(MINE, via, THEIRS)
            block.put(MINE, via, THEIRS)
            block.signal(via)
        else:
            block.wait(via)

    assert simulate(pair(fill), star(2), size_bytes=SLOT).time_s == pytest.approx(2 * SENT_S + L, rel=1e-6)


def test_a_load_takes_the_way_there_and_back():
    """A get: the request, then the bytes."""

    def fill(rank, builder):
        block, via = builder.block(), builder.connect(ConnectionKind.MAPPED, 1 - rank)
        if rank == 0:
            block.get(MINE, via, THEIRS)

    assert simulate(pair(fill), star(2), size_bytes=SLOT).time_s == pytest.approx(SENT_S + 2 * L, rel=1e-6)


def test_a_block_waits_for_the_flag_of_another():
    """Block 1 sends back after block 0 has set its flag twice, which is after its second message has come."""

    def fill(rank, builder):
        out, into = builder.send_to(1 - rank), builder.receive_from(1 - rank)
        block = builder.block()
        if rank == 0:
            block.send(MINE, out)
            block.send(MINE, out)
            block.receive(into, THEIRS)
            return
        for _ in range(2):
            block.receive(into, THEIRS)
            block.set_flag()
        other = builder.block()
        other.wait_flag(0, 2)
        other.send(MINE, out)

    assert simulate(pair(fill), star(2), size_bytes=SLOT).time_s == pytest.approx(3 * SENT_S + 2 * L, rel=1e-6)


def test_blocks_meet_at_a_barrier_and_at_semaphores():
    """Both blocks go on when the later one has come."""

    def fill(rank, builder):
        out, into = builder.send_to(1 - rank), builder.receive_from(1 - rank)
        block = builder.block()
        if rank == 0:
            block.send(MINE, out)
            block.receive(into, THEIRS)
            return
        block.receive(into, THEIRS)
        block.barrier(0, 2)
        token = builder.semaphore()
        other = builder.block()
        other.barrier(0, 2)
        other.release(token)
        last = builder.block()
        last.acquire(token)
        last.send(MINE, out)

    assert simulate(pair(fill), star(2), size_bytes=SLOT).time_s == pytest.approx(2 * SENT_S + 2 * L, rel=1e-6)


def test_the_switch_sums_and_stores_each_shard_once():
    """NVLS as one instruction a rank, its n-th: every GPU gives S up and gets S down, and its own sum comes down and goes up: S (1 + 1 / n)."""
    ranks, size = 8, 1 << 30
    built = []
    for rank in range(ranks):
        builder = RankBuilder(rank, ranks, ranks)
        group = builder.group(range(ranks), Buffer.INPUT)
        builder.block().add(Op.GROUP_REDUCE_MULTICAST, [(group, Span(Buffer.INPUT, rank), Span(Buffer.INPUT, rank))])
        built.append(builder.build())
    plan = held_plan(built, name="nvls", collective="all_reduce", chunks=ranks)
    found = simulate(plan, dgx(), size_bytes=size)
    assert found.time_s == pytest.approx(size * (1 + 1 / ranks) / 450e9 + 0.6e-6, rel=1e-6)


def test_ranks_that_do_the_same_share_one_stream():
    """A ring is one kind of rank; so is its program."""
    program = plan_program(plan_of(LIBRARY["ring_all_reduce"]().bind(64)), 1 << 20, lambda src, dst: src != dst)
    assert len(program.streams) == 1
    assert len(program.channels) == 1


def test_a_plan_whose_ends_do_not_meet_is_refused():
    """A send that nobody receives, a receive that nobody sends, packets, and no size."""
    alone = pair(lambda rank, builder: builder.block().send(MINE, builder.send_to(1)) if rank == 0 else None)
    with pytest.raises(InputError, match="nobody receives on the FIFO from rank 0 to rank 1"):
        simulate(alone, star(2), size_bytes=8)
    deaf = pair(lambda rank, builder: builder.block().receive(builder.receive_from(0), THEIRS) if rank else None)
    with pytest.raises(InputError, match="nobody sends on the FIFO from rank 0 to rank 1"):
        simulate(deaf, star(2), size_bytes=8)
    with pytest.raises(InputError, match="needs size_bytes"):
        simulate(Plan("none", "custom", 1, 1, lambda rank: RankBuilder(rank, 1, 1).build()), star(2))
