"""Plans of sends and receives as plans of puts, signals and waits, which is what MSCCL++ executors run.

A send becomes a put into the receiver's memory and a signal, a receive a wait; what can't be put straight into its place goes through scratch
(`messages.py`). Before a block puts anything, it waits until the receiver has entered the launch: so no launch runs into the one before.
Threads of a block see each other's work at a SYNC only, so those are put where something depends. What one block can't hold is done by several, each
waiting for the one before. Ranks of other nodes are reached through ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TypeAlias

from busbw.collectives.legality import promise_of
from busbw.collectives.messages import (
    Event,
    Hear,
    Memory,
    Message,
    Move,
    Operand,
    Process,
    Receive,
    Tell,
    programs_of,
)
from busbw.collectives.plan import (
    LOCAL,
    BlockBuilder,
    ConnectionKind,
    Op,
    Plan,
    Protocol,
    RankBuilder,
    RankPlan,
    Span,
    held_plan,
)
from busbw.errors import InputError

__all__ = ["BlockLimits", "TooManyBlocksError", "as_custom", "one_sided"]

_THREADS = 1024
"""Threads of a block. Source: microsoft/mscclpp, the default of num_threads_per_block."""
_ALIGNMENT = 16
"""Bytes. Source: microsoft/mscclpp, the default of buffer_alignment."""
_MOVES = 16
"""Moves of a phase, so that one fits into a block with its SYNCs."""
_FEW = 4
"""Messages of a phase where ways are channels, too: 4 to tell, 4 to hear and 4 ways leave room in 16."""
_AROUND = 8
"""Operations that a block needs beside its phases: 2 signals, 2 waits, an acquire and a SYNC before; a SYNC and a release behind."""


@dataclass(frozen=True, slots=True)
class BlockLimits:
    """What a block holds. Source of the defaults: microsoft/mscclpp 1f5f065d, src/core/include/execution_common.hpp."""

    operations: int = 64
    channels: int = 16
    """And remote buffers, of each kind."""
    channels_per_operation: int = 8
    operands_per_side: int = 10
    ways_are_channels: bool = False
    """Whether each way from a buffer here to one there takes a channel, too (plans of the first kind)."""
    blocks: int | None = None
    """Of a rank; None: as many as it needs."""
    semaphores: bool = True
    """Whether blocks wait for each other by semaphores; else they meet at barriers."""


class TooManyBlocksError(InputError):
    """A rank needs more blocks than its runtime takes."""

    def __init__(self, name: str, rank: int, blocks: int, most: int) -> None:
        super().__init__(
            f"plan {name!r}: rank {rank} needs {blocks:,} blocks, and {most} are taken at most. Take fewer slices, or fewer ranks"
        )
        self.blocks = blocks


_Line: TypeAlias = tuple[Process, str, int]
"""A channel, as far as it is known before blocks are cut: the process at the other end, what it carries, its number."""


_Puts: TypeAlias = tuple[int, int, int]
"""A way of puts: peer, buffer here, buffer there."""


@dataclass(slots=True)
class _Work:
    """Waits, then moves, then signals."""

    hears: list[Message] = field(default_factory=list)
    moves: list[Move] = field(default_factory=list)
    tells: list[Message] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Operation:
    """One operation of a block to be: `name` is sync, move, wait, tell, acquire, release or port."""

    name: str
    messages: tuple[Message, ...] = ()
    move: Move | None = None


def one_sided(plan: Plan, ranks_per_node: int | None = None, limits: BlockLimits | None = None) -> Plan:
    """The plan with puts and signals instead of sends; a plan whose blocks are not in order is one already.

    ranks_per_node: ranks of other nodes are reached through ports; None: all memory is mapped. A collective that MSCCL++ has no word for stays
    what it is here (`as_custom`). Raises InputError for a plan with other operations, or that does not come to its end.

    >>> from busbw.collectives.algorithms import ring_all_gather
    >>> from busbw.collectives.legality import verify_plan
    >>> from busbw.collectives.lowering import plan_of
    >>> plan = one_sided(plan_of(ring_all_gather().bind(4)))
    >>> verify_plan(plan).legal
    True
    """
    if not plan.blocks_in_order:
        return plan
    ranks, programs = programs_of(plan)
    _fuse_groups(programs)
    return held_plan(
        _Maker(plan, ranks, programs, ranks_per_node, limits or BlockLimits()).ranks_made(),
        name=plan.name,
        collective=plan.collective,
        chunks=plan.chunks,
        in_place=plan.in_place,
        out_of_place=plan.out_of_place,
        root=plan.root,
        counts=plan.counts,
        promise=plan.promise,
        protocol=Protocol.SIMPLE,
        blocks_in_order=False,
        min_bytes=plan.min_bytes,
        max_bytes=plan.max_bytes,
        threads_per_block=plan.threads_per_block or _THREADS,
        alignment_bytes=_ALIGNMENT,
    )


# Switches


def _fuse_groups(programs: dict[Process, list[Event]]) -> None:
    """Where all ranks have a switch add chunks, meet, and then have it store them, adding and storing become one operation.

    An executor of MSCCL++ can't add in the switch without storing (`glre` is refused). Nobody else touches the chunk between, because a chunk that is
    added and stored by one rank is that rank's; the check of the plan sees it otherwise.
    """
    found = {process: _fusible(events) for process, events in programs.items()}
    adds = {
        process
        for process, events in programs.items()
        if any(isinstance(event, Move) and event.op is Op.GROUP_REDUCE for event in events)
    }
    if adds and all(found[process] is not None for process in adds):
        for process in adds:
            programs[process] = found[process] or []


def _fusible(events: list[Event]) -> list[Event] | None:
    """The program with its one run of additions in the switch fused; None if it has none, or several, or not these."""
    adds = [place for place, one in enumerate(events) if isinstance(one, Move) and one.op is Op.GROUP_REDUCE]
    stores = [place for place, one in enumerate(events) if isinstance(one, Move) and one.op is Op.MULTICAST]
    if not adds or len(adds) != len(stores) or adds[-1] > stores[0]:
        return None
    fused: list[Event] = []
    for add, store in zip(adds, stores, strict=True):
        one, other = events[add], events[store]
        if not isinstance(one, Move) or not isinstance(other, Move):
            return None
        (x,), (y,) = one.operands, other.operands
        if x.group is None or x.group != y.group or not x.src == x.dst == y.src == y.dst:
            return None
        fused.append(Move(Op.GROUP_REDUCE_MULTICAST, (x,)))
    between = events[adds[-1] + 1 : stores[0]]
    if any(not isinstance(one, Tell | Hear) for one in between) or any(
        not isinstance(one, Move) for one in (*events[adds[0] : adds[-1]], *events[stores[0] : stores[-1]])
    ):
        return None
    return [*events[: adds[0]], *between, *fused, *events[stores[-1] + 1 :]]


# Phases


class _Maker:
    """Makes the ranks of one plan."""

    def __init__(
        self,
        plan: Plan,
        ranks: list[RankPlan],
        programs: dict[Process, list[Event]],
        ranks_per_node: int | None,
        limits: BlockLimits,
    ) -> None:
        self.plan, self.ranks, self.limits = plan, ranks, limits
        self.memory = Memory(plan, ranks)
        self.node = ranks_per_node or plan.ranks
        self.phases = {process: self._phases(process, events) for process, events in programs.items()}
        self._coalesce()
        self.costs = {
            id(phase): 1 + sum(1 for _ in self.operations(process[0], [phase]))
            for process, phases in self.phases.items()
            for phase in phases
        }

    def through_port(self, message: Message) -> bool:
        """Whether a message leaves its node."""
        return message.sender[0] // self.node != message.receiver[0] // self.node

    def _phases(self, process: Process, events: list[Event]) -> list[_Work]:
        phases = [_Work()]
        pending: tuple[set[int], set[int]] = (set(), set())  # what puts through ports read and write
        most = min(self.limits.channels_per_operation, _FEW if self.limits.ways_are_channels else _MOVES)

        def fresh() -> None:
            phases.append(_Work())
            pending[0].clear()
            pending[1].clear()

        def hear(message: Message) -> None:
            if phases[-1].tells or len(phases[-1].hears) >= most:
                fresh()
            phases[-1].hears.append(message)

        def move(one: Move) -> None:
            read, written = self.memory.touched(process[0], one)
            if len(phases[-1].moves) >= _MOVES or written & (pending[0] | pending[1]) or read & pending[1]:
                fresh()
            phases[-1].moves.append(one)

        def tell(message: Message) -> None:
            if len(phases[-1].tells) >= most:
                fresh()
            phases[-1].tells.append(message)

        for event in events:
            if isinstance(event, Move):
                move(event)
            elif isinstance(event, Tell):
                tell(event.message)
            elif isinstance(event, Hear):
                hear(event.message)
            elif isinstance(event, Receive):
                hear(event.message)
                for one in _stored(event.message):
                    move(one)
            else:
                put = _put(event.message)
                if self.through_port(event.message):
                    tell(event.message)
                    read, written = self.memory.touched(process[0], put)
                    pending[0].update(read)
                    pending[1].update(written)
                else:
                    if len(phases[-1].tells) >= most:
                        fresh()
                    move(put)
                    tell(event.message)
        return phases

    def _coalesce(self) -> None:
        """One signal for all messages between two phases; each put through a port keeps its own."""
        said: dict[int, tuple[Process, int]] = {}
        heard: dict[int, tuple[Process, int]] = {}
        ways: dict[tuple[str, int, int, int], list[Message]] = {}
        for process, phases in self.phases.items():
            for number, phase in enumerate(phases):
                for message in phase.tells:
                    said[id(message)] = (process, number)
                    ways.setdefault(message.way, []).append(message)
                for message in phase.hears:
                    heard[id(message)] = (process, number)
        dropped: set[int] = set()
        for messages in ways.values():
            for one, following in pairwise(messages):
                same = said[id(one)] == said[id(following)] and heard[id(one)] == heard[id(following)]
                if same and not self.through_port(one):
                    dropped.add(id(one))
        for phases in self.phases.values():
            for phase in phases:
                phase.tells = [one for one in phase.tells if id(one) not in dropped]
                phase.hears = [one for one in phase.hears if id(one) not in dropped]

    # Blocks

    def ranks_made(self) -> list[RankPlan]:
        """The ranks, with as many peers in a block as its channels allow."""
        peers = self.limits.channels
        while True:
            cut = {process: self._cut(phases, peers) for process, phases in self.phases.items()}
            if self.limits.blocks is not None:
                self._count(cut, self.limits.blocks)
            blocks = _Blocks(self, cut)
            if blocks.fit or peers == 1:
                return blocks.build()
            peers //= 2

    def _count(self, cut: dict[Process, list[list[_Work]]], most: int) -> None:
        """Raises TooManyBlocksError if a rank has more than it may."""
        blocks = [0] * len(self.ranks)
        for (rank, _), pieces in cut.items():
            blocks[rank] += len(pieces)
        if max(blocks) > most:
            raise TooManyBlocksError(self.plan.name, blocks.index(max(blocks)), max(blocks), most)

    def _cut(self, phases: list[_Work], peers: int) -> list[list[_Work]]:
        """Phases, dealt out to blocks."""
        out: list[list[_Work]] = [[]]
        operations, met, ways = 0, set[_Line](), set[_Puts]()
        for phase in phases:
            lines = {_line(one, at_sender=True) for one in phase.tells} | {
                _line(one, at_sender=False) for one in phase.hears
            }
            more = _puts_of([phase])
            cost = self.costs[id(phase)]
            full = operations + cost > self.limits.operations - _AROUND
            if out[-1] and (full or self.crowded(len(met | lines), ways | more, peers)):
                out.append([])
                operations, met, ways = 0, set(), set()
            out[-1].append(phase)
            operations, met, ways = operations + cost, met | lines, ways | more
        return out

    def crowded(self, channels: int, ways: set[_Puts], most: int) -> bool:
        """Whether a block has more channels, or remote buffers, than it may."""
        if self.limits.ways_are_channels:
            return channels + len(ways) > most
        return channels > most or len({(peer, buffer) for peer, _, buffer in ways}) > self.limits.channels

    def operations(self, rank: int, phases: list[_Work]) -> Iterator[_Operation]:
        """The operations of phases, SYNCs where something depends."""
        state = _State()
        for phase in phases:
            for group in self._groups(phase.hears, at_sender=False):
                yield from state.meet(group, waits=True)
                yield _Operation("acquire" if group[0].way[0] == "flag" else "wait", tuple(group))
            for move, read, written in self._packed(rank, phase.moves):
                yield from state.touch(read, written)
                yield _Operation("move", (), move)
            for group in self._groups(phase.tells, at_sender=True):
                yield from state.meet(group, waits=False)
                name = "release" if group[0].way[0] == "flag" else "port" if self._puts(group[0]) else "tell"
                yield _Operation(name, tuple(group))

    def _packed(self, rank: int, moves: list[Move]) -> Iterator[tuple[Move, set[int], set[int]]]:
        """Moves with neighbours joined: (move, what it reads, what it writes)."""
        last: tuple[Move, set[int], set[int]] | None = None
        for move in moves:
            read, written = self.memory.touched(rank, move)
            if last is not None:
                joined = _joined(last[0], move, self.limits.operands_per_side)
                # what is stored by the first may be sent on by the second: the executor stores both from the same registers
                fused = joined is not None and joined.op is Op.REDUCE and move.op is Op.PUT
                apart = not written & (last[1] | last[2]) and (fused or not read & last[2])
                if joined is not None and (apart or joined.op is move.op is Op.REDUCE):
                    last = (joined, last[1] | read, last[2] | written)
                    continue
                yield last
            last = (move, read, written)
        if last is not None:
            yield last

    def _puts(self, message: Message) -> bool:
        return message.carries and self.through_port(message)

    def _groups(self, messages: list[Message], *, at_sender: bool) -> Iterator[list[Message]]:
        """Messages that one operation can tell or hear: of one kind, each on another channel."""
        group: list[Message] = []
        kinds: list[Callable[[Message], bool]] = [
            lambda one: one.way[0] == "flag",
            lambda one: one.way[0] != "flag" and not self.through_port(one),
            lambda one: one.way[0] != "flag" and self.through_port(one),
        ]
        for of_kind in kinds:
            lines: set[_Line] = set()
            for message in filter(of_kind, messages):
                line = _line(message, at_sender=at_sender)
                alone = at_sender and any(map(self._puts, (message, *group[:1])))
                if group and (line in lines or alone or len(group) == self.limits.channels_per_operation):
                    yield group
                    group, lines = [], set()
                group.append(message)
                lines.add(line)
            if group:
                yield group
            group = []


def _puts_of(phases: list[_Work]) -> set[_Puts]:
    """The ways of what phases put into mapped memory."""
    return {
        (
            operand.peer,
            _kinds(operand if operand.src is not None else replace(operand, src=move.operands[0].dst))[0],
            int(operand.dst.buffer),
        )
        for phase in phases
        for move in phase.moves
        for operand in move.operands
        if operand.peer >= 0 and operand.dst is not None
    }


def _line(message: Message, *, at_sender: bool) -> _Line:
    return (message.receiver if at_sender else message.sender, message.way[0], message.way[3])


def _put(message: Message) -> Move:
    source = message.source if message.forwards is None else message.forwards.place()
    return Move(Op.PUT, (Operand(source, message.place(), message.receiver[0]),))


def _stored(message: Message) -> Iterator[Move]:
    """What is done with a message that has arrived."""
    arrived = message.place()
    if message.plus is not None and message.into is not None:
        yield Move(Op.REDUCE, (Operand(message.plus, message.into), Operand(arrived, None)))
    elif message.plus is not None:
        yield Move(Op.REDUCE, (Operand(arrived, arrived), Operand(message.plus, None)))
    elif not message.straight and message.into is not None:
        yield Move(Op.COPY, (Operand(arrived, message.into),))


def _joined(one: Move, other: Move, most: int) -> Move | None:
    """Two moves as one, if an operation can say that: puts alike, reductions into one place, a reduction whose result is put."""
    first, second = one.operands[0], other.operands[0]
    if one.op is Op.PUT and other.op is Op.PUT and len(one.operands) < most:
        if _kinds(first) == _kinds(second):
            return Move(Op.PUT, one.operands + other.operands)
    elif one.op is Op.REDUCE and other.op is Op.REDUCE and len(one.operands) < most:
        local = all(operand.peer < 0 for operand in (*one.operands, *other.operands))
        same = first.dst == second.src == second.dst and len(other.operands) == 2
        if (
            local
            and same
            and _kinds(one.operands[-1]) == _kinds(other.operands[-1])
            and first.dst not in _sources(other)
        ):
            return Move(Op.REDUCE, (*one.operands, other.operands[1]))
    elif one.op is Op.REDUCE and other.op is Op.PUT and second.src == first.dst:
        sent = [operand for operand in one.operands if operand.peer >= 0]
        if len(sent) + 1 < most and all(_kinds(operand)[1] == _kinds(second)[1] for operand in sent):
            return Move(Op.REDUCE, (*one.operands, Operand(None, second.dst, second.peer)))
    return None


def _sources(move: Move) -> list[Span | None]:
    """What a reduction adds to its first operand."""
    return [operand.src for operand in move.operands[1:]]


def _kinds(operand: Operand) -> tuple[int, int, int]:
    """(buffer read, buffer written, chunks) of an operand."""
    src, dst = operand.src, operand.dst
    count = src.count if src is not None else dst.count if dst is not None else 0
    return (-1 if src is None else int(src.buffer), -1 if dst is None else int(dst.buffer), count)


@dataclass(slots=True)
class _State:
    """What has been done in a block since its last SYNC."""

    read: set[int] = field(default_factory=set)
    written: set[int] = field(default_factory=set)
    waited: set[_Line] = field(default_factory=set)
    told: set[_Line] = field(default_factory=set)

    def _sync(self) -> Iterator[_Operation]:
        for one in (self.read, self.written, self.waited, self.told):
            one.clear()
        yield _Operation("sync")

    def meet(self, group: list[Message], *, waits: bool) -> Iterator[_Operation]:
        """The SYNC that a wait or signal needs before it."""
        lines = {_line(one, at_sender=not waits) for one in group}
        used = self.waited if waits else self.told
        if lines & used or (not waits and (self.read or self.written or self.waited)):
            yield from self._sync()
        used |= lines

    def touch(self, read: set[int], written: set[int]) -> Iterator[_Operation]:
        """The SYNC that a move needs before it."""
        if self.waited or written & (self.read | self.written) or read & self.written:
            yield from self._sync()
        self.read |= read
        self.written |= written


# Blocks


class _Blocks:
    """The blocks of all ranks, with their channels."""

    def __init__(self, maker: _Maker, cut: dict[Process, list[list[_Work]]]) -> None:
        self.maker, self.cut = maker, cut
        self.numbers: dict[Process, int] = {}
        """The first block of each process."""
        blocks = [0] * len(maker.ranks)
        for (rank, old), pieces in cut.items():
            self.numbers[rank, old] = blocks[rank]
            blocks[rank] += len(pieces)
        self.channels: dict[tuple[object, ...], int] = {}
        sent: dict[int, Process] = {}
        heard: dict[int, Process] = {}
        kept: list[Message] = []
        for (rank, old), pieces in cut.items():
            for place, phases in enumerate(pieces):
                here = (rank, self.numbers[rank, old] + place)
                for phase in phases:
                    sent.update((id(one), here) for one in phase.tells)
                    heard.update((id(one), here) for one in phase.hears)
                    kept += phase.tells
        self.where = {id(one): (sent[id(one)], heard[id(one)]) for one in kept}
        counts: dict[tuple[int, int, ConnectionKind], int] = {}
        self.uses: dict[Process, dict[ConnectionKind, set[tuple[int, int]]]] = {}
        self.entries: dict[
            Process, tuple[list[tuple[ConnectionKind, int, int]], list[tuple[ConnectionKind, int, int]]]
        ] = {}
        greeted: set[tuple[object, ...]] = set()
        for message in kept:
            if message.way[0] == "flag":
                continue
            sender, receiver = self.where[id(message)]
            kind = ConnectionKind.PORT if maker.through_port(message) else ConnectionKind.MEMORY
            low, high = sorted((sender, receiver))
            key = (kind, low, high, message.way[0], message.way[3])
            if key not in self.channels:
                pair = (low[0], high[0], kind)
                self.channels[key] = counts.get(pair, 0)
                counts[pair] = self.channels[key] + 1
                for one, other in ((low, high), (high, low)):
                    self.uses.setdefault(one, {}).setdefault(kind, set()).add((other[0], self.channels[key]))
            if message.carries and (key, sender) not in greeted:
                greeted.add((key, sender))
                number = self.channels[key]
                self._entry(receiver)[0].append((kind, sender[0], number))
                self._entry(sender)[1].append((kind, receiver[0], number))

    def _entry(
        self, block: Process
    ) -> tuple[list[tuple[ConnectionKind, int, int]], list[tuple[ConnectionKind, int, int]]]:
        return self.entries.setdefault(block, ([], []))

    @property
    def fit(self) -> bool:
        """Whether no block has more channels of a kind than it may."""
        most = self.maker.limits.channels
        for (rank, old), pieces in self.cut.items():
            for place, phases in enumerate(pieces):
                kinds = self.uses.get((rank, self.numbers[rank, old] + place), {})
                memory = len(kinds.get(ConnectionKind.MEMORY, ()))
                if self.maker.crowded(memory, _puts_of(phases), most) or any(
                    len(used) > most for used in kinds.values()
                ):
                    return False
        return True

    def build(self) -> list[RankPlan]:
        """The ranks."""
        return [self._rank(rank) for rank in self.maker.ranks]

    def _rank(self, old: RankPlan) -> RankPlan:
        builder = RankBuilder(old.rank, old.input_chunks, old.output_chunks, old.scratch_chunks)
        meetings = _Meetings(builder, self.maker.limits.semaphores)
        for block in range(len(old.blocks)):
            pieces = self.cut[old.rank, block]
            first = self.numbers[old.rank, block]
            for place, phases in enumerate(pieces):
                made = builder.block()
                self._greet(made, (old.rank, first + place))
                if place:
                    meetings.hear(made, [(first + place - 1, first + place)])
                    made.sync()
                elif self.entries.get((old.rank, first), ((), ()))[1]:
                    made.sync()
                for operation in self.maker.operations(old.rank, phases):
                    self._add(made, operation, meetings)
                if place + 1 < len(pieces):
                    made.sync()
                    meetings.tell(made, [(first + place, first + place + 1)])
        return builder.build()

    def _greet(self, block: BlockBuilder, here: Process) -> None:
        """Tells whoever puts into this rank that it has entered, and waits for those into which it puts."""
        tells, hears = self.entries.get(here, ([], []))
        most = self.maker.limits.channels_per_operation
        for ways, add in ((tells, block.signal), (hears, block.wait)):
            for kind in (ConnectionKind.MEMORY, ConnectionKind.PORT):
                vias = [block.rank.connect(*way) for way in ways if way[0] is kind]
                for first in range(0, len(vias), most):
                    add(*vias[first : first + most])

    def _add(self, block: BlockBuilder, operation: _Operation, meetings: _Meetings) -> None:
        if operation.name == "sync":
            block.sync()
        elif operation.move is not None:
            rows = [(self._via(block.rank, one), one.src, one.dst) for one in operation.move.operands]
            block.add(operation.move.op, rows)
        elif operation.name in ("release", "acquire"):
            pairs = [(self.where[id(one)][0][1], self.where[id(one)][1][1]) for one in operation.messages]
            (meetings.tell if operation.name == "release" else meetings.hear)(block, pairs)
        elif operation.name == "port":
            (message,) = operation.messages
            (put,) = _put(message).operands
            if put.src is None or put.dst is None:
                raise ValueError("a put has a source and a target")
            block.put(put.src, self._channel(block.rank, message, tells=True), put.dst, Op.PUT_SIGNAL_FLUSH)
        else:
            tells = operation.name == "tell"
            vias = [self._channel(block.rank, one, tells=tells) for one in operation.messages]
            (block.signal if tells else block.wait)(*vias)

    def _channel(self, builder: RankBuilder, message: Message, *, tells: bool) -> int:
        sender, receiver = self.where[id(message)]
        kind = ConnectionKind.PORT if self.maker.through_port(message) else ConnectionKind.MEMORY
        low, high = sorted((sender, receiver))
        number = self.channels[kind, low, high, message.way[0], message.way[3]]
        return builder.connect(kind, (receiver if tells else sender)[0], number)

    @staticmethod
    def _via(builder: RankBuilder, operand: Operand) -> int:
        if operand.group is not None:
            return builder.group(operand.group.ranks, operand.group.buffer)
        return LOCAL if operand.peer < 0 else builder.connect(ConnectionKind.MAPPED, operand.peer)


class _Meetings:
    """How one block of a rank waits for another: a semaphore for each pair, or a barrier of two."""

    def __init__(self, builder: RankBuilder, semaphores: bool) -> None:
        self.builder, self.semaphores = builder, semaphores
        self.numbers: dict[tuple[int, int], int] = {}

    def _number(self, pair: tuple[int, int]) -> int:
        if pair not in self.numbers:
            self.numbers[pair] = self.builder.semaphore() if self.semaphores else len(self.numbers)
        return self.numbers[pair]

    def tell(self, block: BlockBuilder, pairs: list[tuple[int, int]]) -> None:
        """The block that others wait for has come here."""
        if self.semaphores:
            block.release(*(self._number(pair) for pair in pairs))
        else:
            self._meet(block, pairs)

    def hear(self, block: BlockBuilder, pairs: list[tuple[int, int]]) -> None:
        """The block waits for others."""
        if self.semaphores:
            block.acquire(*(self._number(pair) for pair in pairs))
        else:
            self._meet(block, pairs)

    def _meet(self, block: BlockBuilder, pairs: list[tuple[int, int]]) -> None:
        for pair in pairs:
            block.barrier(self._number(pair), 2)


def as_custom(plan: Plan) -> Plan:
    """The plan as a custom collective that promises what the plan's own promises, for files that have no word for it."""
    return replace(plan, collective="custom", root=0, counts=None, promise=promise_of(plan))
