"""What one thread block of a plan does, as instructions of a task program.

Instructions name the block's ends, out0, out1 ... and in0, in1 ..., in the order of their first use; whom they lead to is the rank's affair
(`plans.py`), so ranks that do the same with other peers share one block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from busbw.collectives.plan import Columns, ConnectionKind, Op, Plan, Protocol, RankPlan
from busbw.simulation.program import Carried, Drain, Free, Instruction, Loop, Put, Receive, Send, Take
from busbw.simulation.runtimes import Fifo, Runtime

__all__ = ["Block", "BlockCode", "End", "protocol_of"]

_Bytes = Callable[[int], int]
"""Bytes of some chunks."""
_PACKETS = (Op.PACK, Op.UNPACK, Op.PUT_PACKETS, Op.FORWARD_PACKETS, Op.REDUCE_PACKETS, Op.MULTICAST_PACKETS)
_FLAGS = (Op.FLAG_SET, Op.FLAG_WAIT)
_MOST_INSTRUCTIONS = 2_000_000
"""Instructions of one block. A guess: some 200 bytes each."""


def protocol_of(plan: Plan, rank: RankPlan, connection: int) -> Protocol:
    """Of a connection: its own, where it has one, else the plan's."""
    own = Protocol(int(rank.connections[connection]["protocol"]))
    return own if own is not Protocol.SIMPLE else plan.protocol


@dataclass(frozen=True, slots=True)
class End:
    """One end of a way between blocks, as its block knows it: `what` of a connection or neighbour."""

    what: str
    """fifo, memory, pull, tree; token."""
    number: int
    """Row of the connection table; of a token which."""
    kind: Carried = Carried.MESSAGE


@dataclass(frozen=True, slots=True)
class Block:
    """What one thread block does: instructions that name ends by number; and the ends, out and in, in the order of their first use."""

    body: tuple[Instruction, ...]
    out: tuple[End, ...]
    into: tuple[End, ...]
    fifos: tuple[Protocol | None, ...]
    """Of each end out."""
    slots: tuple[int, ...]


@dataclass(slots=True)
class BlockCode:
    """One block's rows as instructions."""

    plan: Plan
    runtime: Runtime
    rank: RankPlan
    place: int
    crossing: Columns
    tiles: list[tuple[int, int]]
    out: dict[End, int] = field(default_factory=dict)
    into: dict[End, int] = field(default_factory=dict)
    flags_set: int = 0
    flags_seen: dict[int, int] = field(default_factory=dict)

    def block(self) -> Block:
        """The instructions, tile by tile, and what they name."""
        first, last = (int(self.rank.blocks[self.place][side]) for side in ("first", "last"))
        body: list[Instruction] = []
        for semaphore, value in enumerate(self.rank.semaphores):
            if value and self.only(Op.RELEASE, semaphore) == self.place:
                body += [Send(self.sends(End("token", self.semaphore(semaphore))), 0)] * value
        for times, numerator in self.tiles:
            self.flags_set, self.flags_seen = 0, {}
            tile = self.rows(first, last, (), partial(_share_of, numerator, max(self.plan.chunks, 1)))
            body += [Loop(times, tuple(tile))] if times > 1 else tile
        fifos = tuple(self.protocol(end.number) if end.what == "fifo" else None for end in self.out)
        slots = tuple(int(self.rank.connections[end.number]["slots"]) if end.what == "fifo" else 0 for end in self.out)
        return Block(tuple(body), tuple(self.out), tuple(self.into), fifos, slots)

    def protocol(self, row: int) -> Protocol:
        """Of a connection."""
        return protocol_of(self.plan, self.rank, row)

    def sends(self, end: End) -> str:
        """The name of an end out."""
        return f"out{self.out.setdefault(end, len(self.out))}"

    def receives(self, end: End) -> str:
        """The name of an end in; what comes back to who asked for it has an end out, too."""
        if end.kind is not Carried.MESSAGE:
            self.out.setdefault(end, len(self.out))
        return f"in{self.into.setdefault(end, len(self.into))}"

    def rows(self, first: int, last: int, turns: tuple[int, ...], bytes_of: _Bytes) -> list[Instruction]:
        """Rows first to last - 1, in the given turns of the loops around them that were written out."""
        found: list[Instruction] = []
        at = first
        while at < last:
            row = self.rank.instructions[at]
            op = Op(int(row["op"]))
            if op is Op.LOOP:
                body = at + 1 + int(row["dst"])
                found += self.loop(at + 1, body, int(row["count"]), turns, bytes_of)
                at = body
            elif op is Op.SLICES:
                body = at + 1 + int(row["dst"])
                size, total = int(row["src"]), bytes_of(int(row["count"]))
                for times, piece in _cut(total, size):
                    inside = self.rows(at + 1, body, turns, partial(_whole_slice, piece))
                    found += _repeated(times, inside)
                at = body
            else:
                rows = self.rank.instructions[at : at + 1 + int(row["more"])]
                found += self.operation(op, rows, turns, bytes_of)
                at += len(rows)
        return found

    def loop(self, first: int, last: int, count: int, turns: tuple[int, ...], bytes_of: _Bytes) -> list[Instruction]:
        """A loop; written out where its turns reach different peers, or count flags."""
        rows = self.rank.instructions[first:last]
        depth = len(turns)
        walks = self.rank.walks[rows["walk"]]
        stands = not np.isin(rows["op"], [int(op) for op in _FLAGS]).any()
        if stands and not (walks["via_step"][:, depth] != 0).any():
            return _repeated(count, self.rows(first, last, (*turns, 0), bytes_of))
        found: list[Instruction] = []
        for turn in range(count):
            found += self.rows(first, last, (*turns, turn), bytes_of)
            if len(found) > _MOST_INSTRUCTIONS:
                raise ValueError(
                    f"plan {self.plan.name}: block {self.place} of rank {self.rank.rank} has more than {_MOST_INSTRUCTIONS:,} instructions "
                    "once its loops are written out. Take fewer ranks, or an algorithm whose rounds are alike."
                )
        return found

    def operation(self, op: Op, rows: Columns, turns: tuple[int, ...], bytes_of: _Bytes) -> list[Instruction]:
        """One instruction with its operands."""
        if op in _PACKETS:
            raise ValueError(
                f"plan {self.plan.name}: rank {self.rank.rank} moves packets ({op.name}), which are not simulated. Take the plan's form that puts and signals."
            )
        first = rows[0]
        via = self.via(first, turns)
        size = self.size(first, bytes_of)
        if op is Op.SEND:
            return self.messages(None, via, size)
        if op in (Op.RECV, Op.RECV_REDUCE_COPY):
            return self.messages(via, None, size)
        if op in (Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND):
            return self.messages(via, self.via(rows[1], turns), size)
        if op in (Op.PUT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH, Op.SIGNAL, Op.FLUSH):
            return self.one_sided(op, rows, turns, bytes_of)
        if op is Op.WAIT:
            return [Receive(self.receives(End("memory", self.via(row, turns)))) for row in rows]
        if op in (Op.GET, Op.REDUCE):
            return self.remote(op, rows, turns, bytes_of)
        if op is Op.MULTICAST:
            name = self.sends(End("tree", via, Carried.MULTICAST))
            return [Put(name, size), Drain(name)]
        if op in (Op.GROUP_REDUCE, Op.GROUP_REDUCE_MULTICAST):
            end = End("tree", via, Carried.SUM if op is Op.GROUP_REDUCE else Carried.SUM_AND_STORE)
            return [Send(self.sends(end), size), Receive(self.receives(end))]
        return self.between_blocks(op, rows, turns)

    def via(self, row: Columns, turns: tuple[int, ...]) -> int:
        """The connection of a row in these turns."""
        step = self.rank.walks[int(row["walk"])]["via_step"]
        return int(row["via"]) + sum(int(step[depth]) * turn for depth, turn in enumerate(turns))

    def size(self, row: Columns, bytes_of: _Bytes) -> int:
        """What a row moves, in bytes."""
        parts = int(self.rank.walks[int(row["walk"])]["parts"])
        return -(-bytes_of(int(row["count"])) // max(parts, 1))

    def messages(self, source: int | None, target: int | None, size: int) -> list[Instruction]:
        """A send, a receive, or both at once, cut into what slots hold."""
        fifo = self.runtime.fifo(self.protocol(target if target is not None else source or 0))
        found: list[Instruction] = []
        for times, piece in _cut(size, fifo.message_bytes):
            inside: list[Instruction] = []
            arriving = self.receives(End("fifo", source)) if source is not None else ""
            if target is None:
                inside.append(Receive(arriving))
            else:
                leaving = self.sends(End("fifo", target))
                if source is not None:
                    inside.append(Take(arriving))
                inside.append(Send(leaving, _on_wire(piece, fifo)))
                if not self.crossing[target]:
                    inside.append(Drain(leaving))
                if source is not None:
                    inside.append(Free(arriving))
            found += _repeated(times, inside)
        return found

    def one_sided(self, op: Op, rows: Columns, turns: tuple[int, ...], bytes_of: _Bytes) -> list[Instruction]:
        """Puts, then signals, then flushes of each connection once."""
        puts: list[Instruction] = []
        ends: dict[int, str] = {}
        for row in rows:
            via = self.via(row, turns)
            ends[via] = self.sends(End("memory", via))
            if op in (Op.PUT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH):
                puts.append(Put(ends[via], self.size(row, bytes_of)))
        by_threads = [name for via, name in ends.items() if self.rank.connections[via]["kind"] != ConnectionKind.PORT]
        if puts:
            puts += map(Drain, by_threads)
        if op in (Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH, Op.SIGNAL):
            puts += [Send(name, 0) for name in ends.values()]
        if op in (Op.PUT_SIGNAL_FLUSH, Op.FLUSH):
            puts += map(Drain, ends.values())
        return puts

    def remote(self, op: Op, rows: Columns, turns: tuple[int, ...], bytes_of: _Bytes) -> list[Instruction]:
        """Loads from peers all at once, then stores to peers."""
        loads, stores = [], []
        for row in rows:
            if int(row["via"]) < 0:
                continue
            via, size = self.via(row, turns), self.size(row, bytes_of)
            if op is Op.GET or row["src"] >= 0:
                loads.append((End("pull", via, Carried.PULL), size))
            if op is Op.REDUCE and row["dst"] >= 0:
                stores.append((End("memory", via), size))
        return [
            *(Send(self.sends(end), size) for end, size in loads), *(Receive(self.receives(end)) for end, _ in loads),
            *(Put(self.sends(end), size) for end, size in stores), *(Drain(self.sends(end)) for end, _ in stores),
        ]  # fmt: skip

    # Between blocks of one rank: tokens, numbered so that both blocks find the same number.

    def between_blocks(self, op: Op, rows: Columns, turns: tuple[int, ...]) -> list[Instruction]:
        """Barriers, flags and semaphores: tokens."""
        first = rows[0]
        if op is Op.BARRIER:
            others = [b for b in self.users(Op.BARRIER, int(first["via"])) if b != self.place]
            barrier = 2 + 2 * int(first["via"])
            return [
                *(Send(self.sends(End("token", self.pair(barrier, self.place, b))), 0) for b in others),
                *(Receive(self.receives(End("token", self.pair(barrier, b, self.place)))) for b in others),
            ]
        if op is Op.FLAG_SET:
            self.flags_set += 1
            waiting = [b for b, times in self.flag_waits() if self.flags_set in times]
            return [Send(self.sends(End("token", self.pair(0, self.place, b))), 0) for b in waiting]
        if op is Op.FLAG_WAIT:
            setter, times = (
                int(first["via"]),
                self.flag_times(self.rank.walks[int(first["walk"])], int(first["src"]), turns),
            )
            if times <= self.flags_seen.get(setter, 0):
                return []
            self.flags_seen[setter] = times
            return [Receive(self.receives(End("token", self.pair(0, setter, self.place))))]
        if op in (Op.RELEASE, Op.ACQUIRE):
            found: list[Instruction] = []
            for row in rows:
                number = self.semaphore(self.via(row, turns))
                end = End("token", number)
                found.append(Send(self.sends(end), 0) if op is Op.RELEASE else Receive(self.receives(end)))
            return found
        return []  # COPY, SYNC: no time

    def flag_times(self, walk: Columns, src: int, turns: tuple[int, ...]) -> int:
        """How often the flag that a row waits for must have been set."""
        return src + sum(int(walk["src_step"][depth]) * turn for depth, turn in enumerate(turns))

    def flag_waits(self) -> list[tuple[int, set[int]]]:
        """Blocks that wait for this one's flag, and for which of its settings: each time they wait for more than before."""
        found = []
        for block in range(len(self.rank.blocks)):
            seen, last = set(), 0
            for row, turns in self.in_order(block):
                if row["op"] == Op.FLAG_WAIT and row["via"] == self.place:
                    times = self.flag_times(self.rank.walks[int(row["walk"])], int(row["src"]), turns)
                    if times > last:
                        seen.add(times)
                        last = times
            if seen:
                found.append((block, seen))
        return found

    def in_order(self, block: int) -> Iterator[tuple[Columns, tuple[int, ...]]]:
        """The rows of a block that hold flags, in order, loops around them written out."""

        def run(first: int, last: int, turns: tuple[int, ...]) -> Iterator[tuple[Columns, tuple[int, ...]]]:
            at = first
            while at < last:
                row = self.rank.instructions[at]
                if row["op"] == Op.LOOP:
                    end = at + 1 + int(row["dst"])
                    if np.isin(self.rank.instructions["op"][at + 1 : end], [int(op) for op in _FLAGS]).any():
                        for turn in range(int(row["count"])):
                            yield from run(at + 1, end, (*turns, turn))
                    at = end
                else:
                    yield row, turns
                    at += 1

        yield from run(int(self.rank.blocks[block]["first"]), int(self.rank.blocks[block]["last"]), ())

    def users(self, op: Op, number: int) -> list[int]:
        """Blocks with this instruction on a barrier or semaphore."""
        found = []
        for block in range(len(self.rank.blocks)):
            rows = self.rank.rows(block)
            head = np.where(rows["op"] != Op.OPERAND, np.arange(len(rows)), 0)
            owner: Columns = np.maximum.accumulate(head)
            if ((rows["op"][owner] == op) & (rows["via"] == number)).any():
                found.append(block)
        return found

    def only(self, op: Op, semaphore: int) -> int:
        """The block that does this to a semaphore, -1 nobody. Raises ValueError where there are several."""
        users = self.users(op, semaphore)
        if len(users) > 1:
            raise ValueError(
                f"plan {self.plan.name}: blocks {', '.join(map(str, users))} of rank {self.rank.rank} all use semaphore {semaphore} with {op.name}; "
                "one is simulated. Give each its own."
            )
        return users[0] if users else -1

    def semaphore(self, number: int) -> int:
        """The token of a semaphore. Raises ValueError where several blocks release or acquire it."""
        self.only(Op.RELEASE, number)
        self.only(Op.ACQUIRE, number)
        return self.pair(1, number, 0)

    def pair(self, what: int, one: int, other: int) -> int:
        """One number for three."""
        blocks = len(self.rank.blocks) + len(self.rank.semaphores) + 1
        return (what * blocks + one) * blocks + other


def _share_of(size_bytes: int, chunks: int, count: int) -> int:
    return -(-count * size_bytes // chunks)


def _whole_slice(piece: int, count: int) -> int:
    return piece if count else 0


def _on_wire(size: int, fifo: Fifo) -> int:
    return size if fifo.wire_bytes_per_byte == 1.0 else round(size * fifo.wire_bytes_per_byte)


def _cut(size: int, most: int | None) -> list[tuple[int, int]]:
    """How many pieces of which size; one of 0 bytes where there is nothing."""
    if most is None or size <= most:
        return [(1, size)]
    full, rest = divmod(size, most)
    return [(full, most), *([(1, rest)] if rest else [])]


def _repeated(times: int, body: list[Instruction]) -> list[Instruction]:
    if times <= 1 or not body:
        return body if times >= 1 else []
    return [Loop(times, tuple(body))]
