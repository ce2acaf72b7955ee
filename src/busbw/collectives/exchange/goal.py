"""GOAL text (LogGOPSim): the sends, receives and computations of a plan, and what waits for what.

GOAL knows no buffers, so this goes one way. A FIFO becomes messages with the channel as tag. Puts travel with the next signal on the way to
the same peer, because GOAL has no message that nobody receives. Copies and reductions are `calc`. A block is a `cpu`.
Source of the format: spcl/LogGOPSim, src/LogGOPSim/txt2bin.re.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from busbw.collectives.legality import Violation
from busbw.collectives.plan import LOCAL, Buffer, Columns, ConnectionKind, Op, Plan, RankPlan
from busbw.errors import InputError

__all__ = ["write_goal"]

_CANNOT = (
    Op.GET, Op.PACK, Op.UNPACK, Op.PUT_PACKETS, Op.FORWARD_PACKETS, Op.REDUCE_PACKETS, Op.MULTICAST, Op.MULTICAST_PACKETS,
    Op.GROUP_REDUCE, Op.GROUP_REDUCE_MULTICAST, Op.SLICES,
)  # fmt: skip
_RECEIVES = (Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_SENDS = (Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_REDUCES = (Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND, Op.REDUCE)


def write_goal(plan: Plan, size_bytes: int, calc_per_byte: float = 0.0) -> tuple[Iterator[str], list[Violation]]:
    """Lines of the file, rank by rank, and what GOAL can't say; the file is of use only if that list is empty.

    size_bytes: of the call. calc_per_byte: time of a copy or reduction, in the simulator's unit a byte. Raises InputError if size_bytes is no
    multiple of the plan's chunks.
    """
    if plan.chunks == 0 or size_bytes < 1 or size_bytes % plan.chunks:
        raise InputError(f"{size_bytes} bytes can't be cut into {plan.chunks} equal chunks; pass a multiple")
    violations = [
        Violation("target-cannot-say", f"GOAL can't say {op.name}")
        for op in _CANNOT
        if any((rank.instructions["op"] == op).any() for rank in plan)
    ]
    signals = _signal_bytes(plan, size_bytes // plan.chunks) if not violations else {}
    return _lines(plan, size_bytes // plan.chunks, calc_per_byte, signals), violations


def _lines(
    plan: Plan, chunk_bytes: int, calc: float, signals: dict[tuple[int, int, int, int], list[int]]
) -> Iterator[str]:
    yield f"num_ranks {plan.ranks}"
    for rank in plan:
        yield f"rank {rank.rank} {{"
        yield from _Rank(rank.unrolled(), chunk_bytes, calc, signals).lines()
        yield "}"


def _operations(rows: Columns) -> Iterator[tuple[Op, Columns]]:
    place = 0
    while place < len(rows):
        mine = rows[place : place + 1 + int(rows[place]["more"])]
        yield Op(int(mine[0]["op"])), mine
        place += len(mine)


def _way(rank: RankPlan, via: int) -> tuple[int, int, int]:
    """(kind, peer, channel) of a connection."""
    connection = rank.connections[via]
    return int(connection["kind"]), int(connection["peer"]), int(connection["channel"])


def _signal_bytes(plan: Plan, chunk_bytes: int) -> dict[tuple[int, int, int, int], list[int]]:
    """Bytes that travel with each signal, by (kind, channel, source, destination), in order."""
    out: dict[tuple[int, int, int, int], list[int]] = defaultdict(list)
    for rank in plan:
        for block in range(len(rank.blocks)):
            unsent: dict[int, int] = defaultdict(int)
            for op, rows in _operations(rank.unrolled().rows(block)):
                for row in rows:
                    if row["via"] == LOCAL or op not in (
                        Op.PUT,
                        Op.PUT_SIGNAL,
                        Op.PUT_SIGNAL_FLUSH,
                        Op.SIGNAL,
                        Op.REDUCE,
                    ):
                        continue
                    kind, peer, channel = _way(rank, int(row["via"]))
                    if op is not Op.SIGNAL and row["dst_buffer"] != Buffer.NONE:
                        unsent[peer] += int(row["count"]) * chunk_bytes
                    if op in (Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH, Op.SIGNAL):
                        out[kind, channel, rank.rank, peer].append(max(unsent.pop(peer, 0), 1))
    return out


class _Rank:
    """Writes one rank."""

    def __init__(
        self, rank: RankPlan, chunk_bytes: int, calc: float, signals: dict[tuple[int, int, int, int], list[int]]
    ) -> None:
        self.rank, self.chunk_bytes, self.calc, self.signals = rank, chunk_bytes, calc, signals
        self.labels = 0
        self.taken: dict[tuple[int, int, int, int], int] = defaultdict(int)
        self.flags: dict[tuple[int, int], str] = {}
        self.released: dict[int, list[str]] = defaultdict(list)
        self.after: list[str] = []
        self.waits: list[tuple[str, int, int]] = []
        self.acquires: list[tuple[str, int, int]] = []
        self.barriers: dict[int, list[str]] = defaultdict(list)

    def lines(self) -> Iterator[str]:
        """Its lines."""
        for block in range(len(self.rank.blocks)):
            yield from self._block(block)
        for label, other, times in self.waits:
            if (other, times) in self.flags:
                yield f"{label} requires {self.flags[other, times]}"
        for label, semaphore, number in self.acquires:
            if 0 <= number < len(self.released[semaphore]):
                yield f"{label} requires {self.released[semaphore][number]}"
        yield from self.after

    def _block(self, block: int) -> Iterator[str]:
        last = ""
        sets = 0
        acquired: dict[int, int] = defaultdict(int)
        for op, rows in _operations(self.rank.rows(block)):
            for text in self._texts(op, rows):
                self.labels += 1
                label = f"l{self.labels}"
                yield f"{label}: {text} cpu {block}"
                if last:
                    yield f"{label} requires {last}"
                last = label
            if op is Op.FLAG_SET:
                sets += 1
                self.flags[block, sets] = last
            elif op is Op.FLAG_WAIT:
                self.waits.append((last, int(rows[0]["via"]), int(rows[0]["src"])))
            elif op is Op.RELEASE:
                for semaphore in rows["via"].tolist():
                    self.released[semaphore].append(last)
            elif op is Op.ACQUIRE:
                for semaphore in rows["via"].tolist():
                    self.acquires.append((last, semaphore, acquired[semaphore] - self.rank.semaphores[semaphore]))
                    acquired[semaphore] += 1
            elif op is Op.BARRIER:
                self._meet(int(rows[0]["via"]), int(rows[0]["count"]), last)

    def _meet(self, barrier: int, blocks: int, label: str) -> None:
        """All that meet wait for one point, which waits for all: two computations of no time a block."""
        met = self.barriers[barrier]
        met.append(label)
        if len(met) % blocks == 0:
            group = met[-blocks:]
            self.after += [
                f"l{int(one[1:])} requires l{int(other[1:]) - 1}" for one in group for other in group if one != other
            ]

    def _texts(self, op: Op, rows: Columns) -> Iterator[str]:
        size = int(rows[0]["count"]) * self.chunk_bytes
        if op in _RECEIVES:
            _, peer, channel = _way(self.rank, int(rows[0]["via"]))
            yield f"recv {size}b from {peer} tag {channel}"
        if op in _REDUCES or op is Op.COPY:
            yield f"calc {round(size * max(len(rows) - (op is Op.REDUCE), 1) * self.calc)}"
        if op in _SENDS:
            _, peer, channel = _way(self.rank, int(rows[-1 if op is not Op.SEND else 0]["via"]))
            yield f"send {size}b to {peer} tag {channel}"
        if op in (Op.SIGNAL, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH, Op.WAIT):
            for row in rows:
                kind, peer, channel = _way(self.rank, int(row["via"]))
                ends = (peer, self.rank.rank) if op is Op.WAIT else (self.rank.rank, peer)
                way = (kind, channel, *ends)
                number = self.taken[way]
                self.taken[way] += 1
                sizes = self.signals.get(way, [])
                tag = channel * 2 + (kind == ConnectionKind.PORT)
                word = f"recv {{}}b from {peer}" if op is Op.WAIT else f"send {{}}b to {peer}"
                yield f"{word.format(sizes[number] if number < len(sizes) else 1)} tag {tag}"
        if op is Op.BARRIER:
            yield "calc 0"
            yield "calc 0"
        if op in (Op.FLAG_SET, Op.FLAG_WAIT, Op.RELEASE, Op.ACQUIRE):
            yield "calc 0"
