"""The messages of a plan: which send meets which receive, and which of them may be put straight where they belong.

A message may be put straight into its place if all that touched the place before, on the rank that owns it, had happened before the message was
sent: the run of the plan says so, by vector clocks. All others need a place of their own in scratch, which is read when they are received.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from busbw.collectives.legality import aliases
from busbw.collectives.plan import LOCAL, Buffer, ConnectionKind, Group, Op, Plan, RankPlan, Span
from busbw.errors import InputError

__all__ = ["Event", "Hear", "Memory", "Message", "Move", "Operand", "Process", "Receive", "Send", "Tell", "programs_of"]

Process: TypeAlias = tuple[int, int]
"""(rank, block)."""
_Way: TypeAlias = tuple[str, int, int, int]
"""What carries messages in order: (kind, source, destination, channel); of flags (kind, rank, setter, waiter)."""
_Row: TypeAlias = tuple[int, ...]
"""The values of an INSTRUCTION row."""
_RECEIVES = (Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_SENDS_ON = (Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_TELLS = (Op.SEND, Op.SIGNAL, Op.FLAG_SET, *_SENDS_ON)
_MOST_BYTES = 2 << 30
"""Of all messages' clocks, if none had been received; a guess at what a user's machine spares."""
_GROUPS = (Op.MULTICAST, Op.MULTICAST_PACKETS, Op.GROUP_REDUCE, Op.GROUP_REDUCE_MULTICAST)


@dataclass(slots=True, eq=False)
class Message:
    """Something that one process tells another: a chunk that it sends, a signal, a flag."""

    way: _Way
    sender: Process = (-1, -1)
    receiver: Process = (-1, -1)
    source: Span | None = None
    forwards: Message | None = None
    """The message whose place in scratch holds what this one sends."""
    into: Span | None = None
    plus: Span | None = None
    """What it is reduced with when it is received."""
    straight: bool = False
    """Whether it is put into `into` at once; else into scratch."""
    slot: int = -1
    """Its first chunk in the receiver's scratch."""
    clock: npt.NDArray[np.int32] | None = None

    @property
    def carries(self) -> bool:
        """Whether there is data in it."""
        return self.source is not None or self.forwards is not None

    @property
    def count(self) -> int:
        """Its chunks."""
        span = self.source or self.into or self.plus
        return span.count if span is not None else 0

    def place(self) -> Span:
        """Where its data lie when it has arrived, in the receiver's memory."""
        if self.straight and self.into is not None:
            return self.into
        return Span(Buffer.SCRATCH, self.slot, self.count)


@dataclass(frozen=True, slots=True)
class Operand:
    """One operand of a move: `peer` is -1 for memory of the rank itself."""

    src: Span | None
    dst: Span | None
    peer: int = -1
    group: Group | None = None


@dataclass(frozen=True, slots=True)
class Move:
    """Moves data: within the rank, into a peer's memory, or through a switch."""

    op: Op
    operands: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Send:
    """A chunk is sent."""

    message: Message


@dataclass(frozen=True, slots=True)
class Receive:
    """It is received, and stored or reduced."""

    message: Message


@dataclass(frozen=True, slots=True)
class Tell:
    """A signal, or a flag that is set."""

    message: Message


@dataclass(frozen=True, slots=True)
class Hear:
    """It is waited for."""

    message: Message


Event: TypeAlias = Move | Send | Receive | Tell | Hear


def programs_of(plan: Plan) -> tuple[list[RankPlan], dict[Process, list[Event]]]:
    """The ranks without loops, with the scratch that they need, and what each block does, with messages matched and their places decided.

    Raises InputError for a plan with other operations, or one whose run does not come to its end.
    """
    one = plan.rank(0).unrolled()  # alone it tells what all would take
    told = plan.ranks * int(np.isin(one.instructions["op"], _TELLS).sum())
    if told * 4 * plan.ranks * len(one.blocks) > _MOST_BYTES:
        raise InputError(
            f"plan {plan.name!r}: some {told:,} messages between {plan.ranks} ranks are too many to be put in order. Take fewer ranks, or fewer slices"
        )
    ranks = [rank.unrolled() for rank in plan]
    reader = _Reader(plan, ranks)
    programs = {
        (rank.rank, block): list(reader.events(rank, block)) for rank in ranks for block in range(len(rank.blocks))
    }
    reader.check()
    scratch = _Run(plan, ranks, programs).run()
    return [replace(rank, scratch_chunks=chunks) for rank, chunks in zip(ranks, scratch, strict=True)], programs


class Memory:
    """Numbers of chunks of memory, one for each way in which input and output may share it."""

    def __init__(self, plan: Plan, ranks: list[RankPlan]) -> None:
        self.bases: list[list[tuple[int, int]]] = []
        for in_place, meant in ((True, plan.in_place), (False, plan.out_of_place)):
            if meant:
                self.bases.append([aliases(plan, rank, in_place)[:2] for rank in ranks])

    def cells(self, rank: int, span: Span) -> Iterator[int]:
        """The chunks of a span in a rank's memory."""
        if span.buffer is Buffer.SCRATCH:
            first = (((rank << 1 | 1) << 2) << 34) + span.index
            yield from range(first, first + span.count)
            return
        for way, bases in enumerate(self.bases):
            first = ((rank << 1) << 2 | way) << 34
            first += bases[rank][span.buffer] + span.index
            yield from range(first, first + span.count)

    def touched(self, rank: int, move: Move) -> tuple[set[int], set[int]]:
        """(read, written) by a move."""
        read: set[int] = set()
        written: set[int] = set()
        for one in move.operands:
            members = one.group.ranks if one.group is not None else (rank if one.peer < 0 else one.peer,)
            gathers = move.op in (Op.GROUP_REDUCE, Op.GROUP_REDUCE_MULTICAST)
            spreads = move.op not in (Op.GROUP_REDUCE, Op.REDUCE, Op.COPY)
            stores = one.peer >= 0 and move.op is Op.REDUCE
            if one.src is not None:
                for member in members if gathers else (rank,):
                    read.update(self.cells(member, one.src))
            if one.dst is not None:
                for member in members if spreads or stores else (rank,):
                    written.update(self.cells(member, one.dst))
        return read, written


class _Reader:
    """Turns rows into events; the nth that is told on a way is the nth that is heard there."""

    def __init__(self, plan: Plan, ranks: list[RankPlan]) -> None:
        self.plan, self.ranks = plan, ranks
        self.messages: dict[_Way, list[Message]] = {}
        self.told: Counter[_Way] = Counter()
        self.heard: Counter[_Way] = Counter()
        self.flags: dict[Process, dict[int, list[int]]] = {}
        """By setter: block that waits, and which of the setter's flags it waits for, in order."""
        for rank in ranks:
            for block in range(len(rank.blocks)):
                for row in rank.rows(block)[rank.rows(block)["op"] == Op.FLAG_WAIT]:
                    times = self.flags.setdefault((rank.rank, int(row["via"])), {}).setdefault(block, [])
                    if row["src"] > (times[-1] if times else 0):
                        times.append(int(row["src"]))

    def wrong(self, rank: RankPlan, block: int, what: str) -> InputError:
        """An error about a block."""
        return InputError(f"plan {self.plan.name!r}: rank {rank.rank} block {block} {what}")

    def events(self, rank: RankPlan, block: int) -> Iterator[Event]:
        """The events of a block."""
        rows = rank.rows(block).tolist()
        shares = rank.walks["parts"].tolist()
        place = sets = 0
        waited: Counter[int] = Counter()
        while place < len(rows):
            mine = rows[place : place + 1 + rows[place][3]]
            op = Op(mine[0][0])
            place += len(mine)
            if any(shares[row[6]] != 1 for row in mine):
                raise self.wrong(rank, block, f"moves a share of a chunk ({op.name}), which is not made one-sided")
            if op is Op.SYNC:
                continue  # blocks are in order
            if op is Op.SEND:
                yield self._send(rank, block, mine[0][7], source=_span(mine[0], "src"))
            elif op in _RECEIVES:
                yield from self._receive(rank, block, op, mine)
            elif op in (Op.COPY, Op.REDUCE) or op in _GROUPS:
                yield self._move(rank, block, op, mine)
            elif op in (Op.SIGNAL, Op.WAIT):
                for row in mine:
                    _, peer, channel = self._connection(rank, block, row[7])
                    ends = (rank.rank, peer) if op is Op.SIGNAL else (peer, rank.rank)
                    yield self._one(("signal", *ends, channel), rank, block, tells=op is Op.SIGNAL)
            elif op is Op.FLAG_SET:
                sets += 1
                for waiter, times in self.flags.get((rank.rank, block), {}).items():
                    if sets in times:
                        yield self._one(("flag", rank.rank, block, waiter), rank, block, tells=True)
            elif op is Op.FLAG_WAIT:
                setter, times = mine[0][7], mine[0][8]
                if times > waited[setter]:
                    waited[setter] = times
                    yield self._one(("flag", rank.rank, setter, block), rank, block, tells=False)
            else:
                raise self.wrong(rank, block, f"has {op.name}, which is not made one-sided")

    def _one(self, way: _Way, rank: RankPlan, block: int, *, tells: bool) -> Tell | Hear:
        message = self._message(way, rank, block, tells=tells)
        return Tell(message) if tells else Hear(message)

    def _message(self, way: _Way, rank: RankPlan, block: int, *, tells: bool) -> Message:
        """The next message of a way, seen from one end."""
        counter = self.told if tells else self.heard
        place = counter[way]
        counter[way] += 1
        known = self.messages.setdefault(way, [])
        if place == len(known):
            known.append(Message(way))
        if tells:
            known[place].sender = (rank.rank, block)
        else:
            known[place].receiver = (rank.rank, block)
        return known[place]

    def _connection(self, rank: RankPlan, block: int, via: int) -> tuple[ConnectionKind, int, int]:
        if not 0 <= via < len(rank.connections):
            raise self.wrong(rank, block, "names a connection that it has not")
        row = rank.connections[via]
        return ConnectionKind(int(row["kind"])), int(row["peer"]), int(row["channel"])

    def _send(
        self, rank: RankPlan, block: int, via: int, *, source: Span | None = None, forwards: Message | None = None
    ) -> Send:
        _, peer, channel = self._connection(rank, block, via)
        message = self._message(("fifo", rank.rank, peer, channel), rank, block, tells=True)
        message.source, message.forwards = source, forwards
        return Send(message)

    def _receive(self, rank: RankPlan, block: int, op: Op, rows: list[_Row]) -> Iterator[Event]:
        _, peer, channel = self._connection(rank, block, rows[0][7])
        message = self._message(("fifo", peer, rank.rank, channel), rank, block, tells=False)
        message.into, message.plus = _span(rows[0], "dst"), _span(rows[0], "src")
        yield Receive(message)
        if op in _SENDS_ON:
            stored = message.into
            yield self._send(rank, block, rows[1][7], source=stored, forwards=None if stored else message)

    def _move(self, rank: RankPlan, block: int, op: Op, rows: list[_Row]) -> Move:
        operands = []
        for row in rows:
            kind, peer, _ = (ConnectionKind.MAPPED, -1, 0) if row[7] == LOCAL else self._connection(rank, block, row[7])
            group = rank.groups[peer] if kind is ConnectionKind.SWITCH else None
            operands.append(Operand(_span(row, "src"), _span(row, "dst"), -1 if group is not None else peer, group))
        return Move(op, tuple(operands))

    def check(self) -> None:
        """Raises InputError for what is told and never heard, or the other way round."""
        for way, messages in self.messages.items():
            for message in messages:
                if message.sender[0] < 0 or message.receiver[0] < 0:
                    kind, *ends = way
                    raise InputError(
                        f"plan {self.plan.name!r}: a {kind} of {ends[:2]} channel {ends[2]} has one end only; `busbw verify` tells more"
                    )


def _span(row: _Row, side: str) -> Span | None:
    buffer, index = (row[4], row[8]) if side == "src" else (row[5], row[9])
    return None if buffer == Buffer.NONE else Span(Buffer(buffer), index, row[10])


class _Run:
    """One run of the plan, in which every message gets its place."""

    def __init__(self, plan: Plan, ranks: list[RankPlan], programs: dict[Process, list[Event]]) -> None:
        self.plan, self.memory, self.programs = plan, Memory(plan, ranks), programs
        self.number = {process: place for place, process in enumerate(programs)}
        self.clocks = {process: np.zeros(len(programs), np.int32) for process in programs}
        self.slots = [rank.scratch_chunks for rank in ranks]
        self.touched: dict[int, list[tuple[int, int, bool]]] = {}
        """By chunk of memory: who touched it since it was last written, when, and whether that wrote."""

    def run(self) -> list[int]:
        """Scratch chunks that each rank needs."""
        places = dict.fromkeys(self.programs, 0)
        waiting: dict[int, Process] = {}
        ready = list(self.programs)
        while ready:
            process = ready.pop()
            events = self.programs[process]
            while places[process] < len(events):
                event = events[places[process]]
                if isinstance(event, Receive | Hear) and event.message.clock is None:
                    waiting[id(event.message)] = process
                    break
                self._do(process, event)
                places[process] += 1
                if isinstance(event, Send | Tell) and id(event.message) in waiting:
                    ready.append(waiting.pop(id(event.message)))
        if waiting:
            rank, block = next(iter(waiting.values()))
            raise InputError(
                f"plan {self.plan.name!r}: rank {rank} block {block} waits for ever; `busbw verify` tells for what"
            )
        return self.slots

    def _do(self, process: Process, event: Event) -> None:
        clock, me = self.clocks[process], self.number[process]
        clock[me] += 1
        if isinstance(event, Move):
            self._touch(me, int(clock[me]), *self.memory.touched(process[0], event))
            return
        message = event.message
        if isinstance(event, Send | Tell):
            if message.source is not None:
                self._touch(me, int(clock[me]), self.memory.cells(process[0], message.source), ())
            message.clock = clock.copy()
            return
        sent = message.clock
        if sent is None:
            raise ValueError("a message is received before it is sent")  # what `run` waits for
        if isinstance(event, Receive):
            message.straight = message.plus is None and self._known(process[0], message, sent)
            if not message.straight:
                message.slot = self.slots[process[0]]
                self.slots[process[0]] += message.count
        np.maximum(clock, sent, out=clock)
        message.clock = _HEARD
        read = [] if message.plus is None else list(self.memory.cells(process[0], message.plus))
        stored = [] if message.into is None else list(self.memory.cells(process[0], message.into))
        self._touch(me, int(clock[me]), read, stored)

    def _known(self, rank: int, message: Message, sent: npt.NDArray[np.int32]) -> bool:
        """Whether the sender knew that all who had touched the message's place were done with it."""
        return message.into is not None and all(
            sent[who] >= when
            for cell in self.memory.cells(rank, message.into)
            for who, when, _ in self.touched.get(cell, ())
        )

    def _touch(self, who: int, when: int, read: Iterable[int], written: Iterable[int]) -> None:
        for cell in read:
            known = self.touched.setdefault(cell, [])
            known[:] = [one for one in known if one[0] != who or one[2]]
            known.append((who, when, False))
        for cell in written:
            self.touched[cell] = [(who, when, True)]


_HEARD = np.zeros(0, np.int32)
