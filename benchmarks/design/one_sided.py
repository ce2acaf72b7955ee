"""Plans in the manner of MSCCL++: puts, signals, packets, groups, semaphores, slices. Written here, after the format; legal as they stand."""

from __future__ import annotations

from busbw.collectives.plan import (
    LOCAL,
    Buffer,
    ConnectionKind,
    Op,
    Order,
    Plan,
    Protocol,
    RankBuilder,
    RankPlan,
    Reduction,
    Span,
    held_plan,
)

__all__ = ["group_plan", "one_sided_plan", "packet_plan", "port_plan", "sliced_plan"]


def _span(buffer: Buffer, index: int, count: int = 1) -> Span:
    return Span(buffer, index, count)


def one_sided_plan(ranks: int = 2) -> Plan:
    """all_gather, in place: handshake, put my chunk into everybody's output, signal, wait. Two blocks share each chunk."""

    def one(rank: int) -> RankPlan:
        builder = RankBuilder(rank, 1, ranks)
        for part in range(2):
            block = builder.block()
            peers = [peer for peer in range(ranks) if peer != rank]
            channels = [builder.connect(ConnectionKind.MEMORY, peer, part) for peer in peers]
            mapped = [builder.connect(ConnectionKind.MAPPED, peer) for peer in peers]
            block.signal(*channels, order=Order.RELAXED)
            block.wait(*channels, order=Order.RELAXED)
            block.sync()
            rows = [(via, _span(Buffer.OUTPUT, rank), _span(Buffer.OUTPUT, rank)) for via in mapped]
            block.add(Op.PUT, rows, share=(part, 2))
            block.sync()
            block.signal(*channels)
            block.wait(*channels)
        return builder.build()

    return held_plan(
        [one(rank) for rank in range(ranks)], name="one-sided", collective="all_gather", chunks=ranks, in_place=True, out_of_place=False,
        blocks_in_order=False, threads_per_block=1024, alignment_bytes=16,
    )  # fmt: skip


def port_plan(ranks: int = 2, *, strong: bool = True) -> Plan:
    """all_gather between nodes: handshake, a put of each half of my chunk to everybody, one signal behind both, wait. strong=False: the signal overtakes the puts' halves."""

    def one(rank: int) -> RankPlan:
        builder = RankBuilder(rank, 2, 2 * ranks)
        ports = [builder.connect(ConnectionKind.PORT, peer) for peer in range(ranks) if peer != rank]
        early = [builder.connect(ConnectionKind.PORT, peer, 1) for peer in range(ranks) if peer != rank]
        block = builder.block()
        block.copy(_span(Buffer.INPUT, 0, 2), _span(Buffer.OUTPUT, 2 * rank, 2))
        block.signal(*ports)
        block.wait(*ports)
        for half in range(2):
            mine = _span(Buffer.OUTPUT, 2 * rank + half)
            block.add(Op.PUT, [(via, _span(Buffer.INPUT, half), mine) for via in ports])
        told = ports if strong else early
        block.signal(*told)
        block.flush(*ports)
        block.wait(*told)
        return builder.build()

    return held_plan([one(rank) for rank in range(ranks)], name="ports", collective="all_gather", chunks=2 * ranks)


def packet_plan() -> Plan:
    """all_reduce of two ranks, in place: each sends the other's half as packets, reduces its own, sends that back, and unpacks."""
    return _halves([_packet_rank(rank) for rank in range(2)])


def _packet_rank(rank: int) -> RankPlan:
    peer = 1 - rank
    builder = RankBuilder(rank, 2, 2, 4)
    far = builder.connect(ConnectionKind.MAPPED, peer)
    block = builder.block()
    block.add(Op.PUT_PACKETS, [(far, _span(Buffer.INPUT, peer), _span(Buffer.SCRATCH, rank))])
    mine = _span(Buffer.INPUT, rank)
    block.add(
        Op.REDUCE_PACKETS,
        [(LOCAL, mine, mine), (LOCAL, _span(Buffer.SCRATCH, peer), None), (far, None, _span(Buffer.SCRATCH, 2 + rank))],
    )
    block.sync()
    block.add(Op.UNPACK, [(LOCAL, _span(Buffer.SCRATCH, 2 + peer), _span(Buffer.INPUT, peer))])
    return builder.build()


def _halves(ranks: list[RankPlan]) -> Plan:
    return held_plan(
        ranks, name="packets", collective="all_reduce", chunks=2, in_place=True, out_of_place=False, protocol=Protocol.LL,
        blocks_in_order=False, threads_per_block=1024, alignment_bytes=16, double_scratch=True,
    )  # fmt: skip


def group_plan(ranks: int = 4) -> Plan:
    """all_reduce through a switch, in place: handshake, each reduces and stores its chunk of all, handshake."""

    def one(rank: int) -> RankPlan:
        builder = RankBuilder(rank, ranks, ranks)
        channels = [builder.connect(ConnectionKind.MEMORY, peer) for peer in range(ranks) if peer != rank]
        group = builder.group(range(ranks), Buffer.INPUT)
        block = builder.block()
        block.signal(*channels, order=Order.RELAXED)
        block.wait(*channels, order=Order.RELAXED)
        block.sync()
        mine = _span(Buffer.INPUT, rank)
        block.add(Op.GROUP_REDUCE_MULTICAST, [(group, mine, mine)], reduction=Reduction.SUM)
        block.sync()
        block.signal(*channels)
        block.wait(*channels)
        return builder.build()

    return held_plan(
        [one(rank) for rank in range(ranks)], name="group", collective="all_reduce", chunks=ranks, in_place=True, out_of_place=False,
        blocks_in_order=False, threads_per_block=1024, alignment_bytes=16,
    )  # fmt: skip


def sliced_plan() -> Plan:
    """all_gather of two ranks, in place, slice by slice: one block tells the other, by a semaphore, that a slice of the peer may be fetched."""

    def one(rank: int) -> RankPlan:
        peer = 1 - rank
        builder = RankBuilder(rank, 1, 2)
        channel, far = builder.connect(ConnectionKind.MEMORY, peer), builder.connect(ConnectionKind.MAPPED, peer)
        ready, done = builder.semaphore(), builder.connect(ConnectionKind.MEMORY, peer, 1)
        first, second = builder.block(), builder.block()
        with first.slices(65536, 1):
            first.signal(channel)
            first.wait(channel)
            first.sync()
            first.release(ready)
        with second.slices(65536, 1):
            second.acquire(ready)
            second.sync()
            second.get(_span(Buffer.OUTPUT, peer), far, _span(Buffer.OUTPUT, peer))
        second.sync()
        second.signal(done)
        second.wait(done)
        return builder.build()

    return held_plan(
        [one(rank) for rank in range(2)], name="sliced", collective="all_gather", chunks=2, in_place=True, out_of_place=False,
        blocks_in_order=False, threads_per_block=1024, alignment_bytes=16,
    )  # fmt: skip
