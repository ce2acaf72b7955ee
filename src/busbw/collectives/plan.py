"""What runs: the instructions of every thread block of every rank, loops kept as loops.

A `Plan` is a header and a function from a rank to its `RankPlan`, so a plan over 131,072 ranks costs nothing until a rank is asked
for. A `RankPlan` is columns: one row of 24 bytes an instruction, and small tables that its rows point into. It is a superset of what
MSCCL XML and MSCCL++ execution plans say, so that both are read into it without loss.

Words: a chunk is the unit of every index and count here; `Plan.chunks` of them make up `size_bytes`, the larger of a rank's send and
receive buffers. A block is a thread block; its instructions run one after the other, blocks run at the same time. A connection is one
rank's end of a way to one peer. All indices are of the executing rank's own buffers, unless the row's connection says that they are the peer's.
`legality.py` says which plans are legal.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "BLOCK",
    "CONNECTION",
    "INSTRUCTION",
    "LOCAL",
    "MAX_LOOPS",
    "NO_INDEX",
    "WALK",
    "BlockBuilder",
    "Buffer",
    "ConnectionKind",
    "Group",
    "Op",
    "Order",
    "Plan",
    "Promise",
    "Protocol",
    "RankBuilder",
    "RankPlan",
    "Reduction",
    "Span",
    "held_plan",
]

Columns = npt.NDArray[Any]
"""A structured array; its dtype stands in the name of the field that holds it."""


class Op(IntEnum):
    """What an instruction does. "Rows" says which rows besides the first it has; x is the chunk that arrives, op the reduction.

    A pair is (src, dst) of one row. Where a row names a connection, the side named in brackets is in the peer's memory.
    """

    # Through a connection that is a FIFO: the sender waits for a free slot, the receiver for a filled one.
    SEND = 0
    """Sends src through `via`."""
    RECV = 1
    """dst = x."""
    RECV_COPY_SEND = 2
    """dst = x, and x is sent on through the connection of the one OPERAND row."""
    RECV_REDUCE_COPY = 3
    """dst = op(x, src)."""
    RECV_REDUCE_SEND = 4
    """op(x, src) is sent on through the connection of the one OPERAND row; nothing is stored."""
    RECV_REDUCE_COPY_SEND = 5
    """dst = op(x, src), which is sent on through the connection of the one OPERAND row."""
    # In this rank's memory.
    COPY = 6
    """dst = src; each OPERAND row is one pair more."""
    REDUCE = 7
    """dst = op(src, src of each OPERAND row that has one), stored in dst of each OPERAND row that has one, too. A row with a connection
    means the peer's memory: its src is loaded from there, its dst stored there. The first row is local."""
    # Peer's memory, one-sided.
    PUT = 8
    """[dst] = src; each OPERAND row is one pair more."""
    PUT_SIGNAL = 9
    """PUT, then SIGNAL of each connection."""
    PUT_SIGNAL_FLUSH = 10
    """PUT_SIGNAL, then FLUSH of each connection."""
    GET = 11
    """dst = [src]; each OPERAND row is one pair more."""
    SIGNAL = 12
    """One more signal for the peer; each OPERAND row is one connection more."""
    WAIT = 13
    """Waits for one more signal of the peer, and takes it; each OPERAND row is one connection more."""
    FLUSH = 14
    """Waits until all puts through this connection have left; each OPERAND row is one connection more."""
    # Packets: data and flag in one store; who reads one waits for its flag. They lie in scratch.
    PACK = 15
    """Packets dst = src, both local; each OPERAND row is one pair more."""
    UNPACK = 16
    """dst = packets src, both local; each OPERAND row is one pair more."""
    PUT_PACKETS = 17
    """Packets [dst] = src; each OPERAND row is one pair more. Through a PORT, which moves bytes, src are packets already, and not waited for."""
    FORWARD_PACKETS = 18
    """Packets [dst] = packets src; each OPERAND row is one pair more."""
    REDUCE_PACKETS = 19
    """dst = op(src, packets src of each OPERAND row that has one); each OPERAND row with a dst gets packets of it: the peer's with a
    connection, local without."""
    # Through a switch: `via` is a connection of kind SWITCH, its index the same on all ranks of the group.
    MULTICAST = 20
    """[dst] of all ranks of the group = src."""
    MULTICAST_PACKETS = 21
    """Packets [dst] of all ranks of the group = src."""
    GROUP_REDUCE = 22
    """dst = op([src] of all ranks of the group)."""
    GROUP_REDUCE_MULTICAST = 23
    """[dst] of all ranks of the group = op([src] of all ranks of the group)."""
    # Between the threads and blocks of one rank.
    SYNC = 24
    """The threads of this block wait for each other: what stands before is done for what stands behind."""
    BARRIER = 25
    """The `count` blocks that meet at barrier `via` wait for each other."""
    FLAG_SET = 26
    """This block's flag goes up by one; everything before in this block is visible to who waited for it."""
    FLAG_WAIT = 27
    """Waits until block `via` has set its flag `src` times since the start."""
    RELEASE = 28
    """Semaphore `via` of this rank goes up by one; each OPERAND row is one semaphore more."""
    ACQUIRE = 29
    """Waits until semaphore `via` is above 0 and takes one; each OPERAND row is one semaphore more."""
    # Control.
    LOOP = 30
    """The `dst` rows that follow run `count` times. Loops nest, at most `MAX_LOOPS` deep."""
    SLICES = 31
    """The `dst` rows that follow run once for each slice of `src` bytes of `count` chunks; the nth run moves the nth slice of every operand."""
    OPERAND = 32
    """One more operand of the instruction above; not an instruction itself."""


class Buffer(IntEnum):
    """Which of a rank's buffers an index is in. NONE: the row has no operand on that side."""

    INPUT = 0
    OUTPUT = 1
    SCRATCH = 2
    NONE = 255


class Order(IntEnum):
    """Memory order of SIGNAL, WAIT, FLAG_SET, FLAG_WAIT, RELEASE, ACQUIRE: what a RELAXED one does orders nothing but itself."""

    RELAXED = 0
    ACQUIRE = 1
    RELEASE = 2


class Reduction(IntEnum):
    """The op of an instruction that reduces. CALL: what the caller of the collective asked for."""

    CALL = 0
    SUM = 1
    MIN = 2
    MAX = 3


class Protocol(IntEnum):
    """How data and the news of its arrival travel on a connection. Source: NCCL's protocols; zero copy: straight between user buffers."""

    SIMPLE = 0
    LL = 1
    LL128 = 2
    ZERO_COPY = 3


class ConnectionKind(IntEnum):
    """What a connection is."""

    FIFO_OUT = 0
    """The writing end of a FIFO to the peer. One FIFO a (channel, source, destination)."""
    FIFO_IN = 1
    """The reading end."""
    MAPPED = 2
    """The peer's memory, mapped; nothing else. `channel` is 0."""
    MEMORY = 3
    """The peer's memory, mapped, and a pair of counters to signal with. The nth of a to b meets the nth of b to a; n is `channel`."""
    PORT = 4
    """The same through a NIC or copy engine, which a proxy drives."""
    SWITCH = 5
    """A multicast group of the switch; `peer` is its place in `RankPlan.groups`."""


LOCAL = -1
"""`via` of a row without a connection."""
NO_INDEX = -1
MAX_LOOPS = 3
"""How deep loops nest: parts of a pipeline, rounds, peers. A guess at what suffices; the columns are as wide."""

INSTRUCTION = np.dtype(
    [
        ("op", "u1"),  # Op
        ("order", "u1"),  # Order
        ("reduction", "u1"),  # Reduction
        ("more", "u1"),  # OPERAND rows that follow and belong to it
        ("src_buffer", "u1"),  # Buffer
        ("dst_buffer", "u1"),
        ("walk", "u2"),  # row of RankPlan.walks: how it moves from one run of a loop to the next
        ("via", "i4"),  # row of RankPlan.connections, or block, barrier, semaphore; LOCAL: none
        ("src", "i4"),  # first chunk read, NO_INDEX: none
        ("dst", "i4"),  # first chunk written
        ("count", "i4"),  # chunks
    ]
)
"""One row an instruction or further operand, 24 bytes."""

WALK = np.dtype(
    [
        ("src_step", "i4", (MAX_LOOPS,)),  # chunks that src moves a run of each enclosing loop, outermost first
        ("dst_step", "i4", (MAX_LOOPS,)),
        ("via_step", "i4", (MAX_LOOPS,)),  # rows of RankPlan.connections
        (
            "src_first",
            "i4",
        ),  # src stays in src_first .. src_first + src_wrap - 1, going round; src_wrap 0: it does not go round
        ("src_wrap", "i4"),
        ("dst_first", "i4"),
        ("dst_wrap", "i4"),
        ("part", "u2"),  # this block moves the part-th of `parts` equal slices of every operand
        ("parts", "u2"),
    ]
)
"""How the operands of a row move in loops, and which share of them is this block's. Row 0 always stands still and moves all."""

CONNECTION = np.dtype(
    [
        ("kind", "u1"),  # ConnectionKind
        ("protocol", "u1"),  # Protocol
        ("slots", "u2"),  # FIFO: messages in flight at most; 0: as many as the runtime gives the protocol
        ("peer", "i4"),
        ("channel", "i4"),
    ]
)

BLOCK = np.dtype(
    [
        ("first", "i4"),  # its rows are first .. last - 1
        ("last", "i4"),
        ("channel", "i4"),  # the channel that a runtime counts it under
    ]
)

_STANDING = (tuple([0] * MAX_LOOPS), tuple([0] * MAX_LOOPS), tuple([0] * MAX_LOOPS), 0, 0, 0, 0, 0, 1)


@dataclass(frozen=True, slots=True)
class Group:
    """A multicast group of a switch: its ranks, in order, and which buffer of theirs it spans."""

    ranks: tuple[int, ...]
    buffer: Buffer


@dataclass(frozen=True, slots=True, eq=False)
class RankPlan:
    """All that one rank does. Two are equal if they do the same by the same rows, wherever their tables list a connection or walk."""

    rank: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    instructions: Columns
    """(I,) INSTRUCTION, block after block."""
    blocks: Columns
    """(B,) BLOCK."""
    connections: Columns
    """(C,) CONNECTION."""
    walks: Columns
    """(W,) WALK, W >= 1."""
    groups: tuple[Group, ...] = ()
    semaphores: tuple[int, ...] = ()
    """Initial values."""

    def chunks_of(self, buffer: Buffer) -> int:
        """Chunks of a buffer."""
        return (self.input_chunks, self.output_chunks, self.scratch_chunks)[buffer]

    def rows(self, block: int) -> Columns:
        """The rows of a block, (n,) INSTRUCTION, a view."""
        first, last = self.blocks[block]["first"], self.blocks[block]["last"]
        return self.instructions[first:last]

    @property
    def operations(self) -> int:
        """Instructions, loops counted once; OPERAND rows are part of theirs."""
        return int(np.count_nonzero(self.instructions["op"] != Op.OPERAND))

    @property
    def written_out_rows(self) -> float:
        """How many rows `unrolled()` has, as a float, which does not wrap."""
        found = 0.0
        for block in range(len(self.blocks)):
            rows = self.rows(block)
            loops = rows["op"] == Op.LOOP
            times = np.ones(len(rows))
            for head in np.flatnonzero(loops).tolist():
                times[head + 1 : head + 1 + int(rows[head]["dst"])] *= max(int(rows[head]["count"]), 0)
            found += float(times[~loops].sum())
        return found

    def canonical(self) -> RankPlan:
        """The same with connections and walks listed in the order of their first use, once each."""
        connections, via = _by_first_use(self.connections, _via_of(self))
        walks, walk = _by_first_use(
            np.concatenate([_walk_table([]), self.walks]), np.concatenate([[0], self.instructions["walk"] + 1])
        )
        stepping = np.any(self.walks["via_step"])
        instructions = self.instructions.copy()
        instructions["walk"] = walk[1:]
        if not stepping:
            instructions["via"] = np.where(via >= 0, via, instructions["via"])
        return RankPlan(
            self.rank,
            self.input_chunks,
            self.output_chunks,
            self.scratch_chunks,
            instructions,
            self.blocks,
            self.connections if stepping else connections,  # a loop over peers relies on their order
            walks,
            self.groups,
            self.semaphores,
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, RankPlan):
            return NotImplemented
        a, b = self.canonical(), other.canonical()
        same = (a.rank, a.input_chunks, a.output_chunks, a.scratch_chunks, a.groups, a.semaphores) == (
            (b.rank, b.input_chunks, b.output_chunks, b.scratch_chunks, b.groups, b.semaphores)
        )
        return same and all(
            np.array_equal(getattr(a, name), getattr(b, name))
            for name in ("instructions", "blocks", "connections", "walks")
        )

    __hash__ = None  # type: ignore[assignment]  # columns are compared, not hashed

    def unrolled(self) -> RankPlan:
        """The same without LOOP rows: every run of a loop written out, walks resolved. SLICES stay, because slices depend on the size.

        Memory is 24 bytes times the rows written out: ask for ranks whose loops you can afford.
        """
        pieces, blocks, at = [], self.blocks.copy(), 0
        walks: list[tuple[int, int]] = [(0, 1)]
        for block in range(len(self.blocks)):
            rows = [
                _resolved(self, self.rows(block), walks, order, counters)
                for order, counters in _order_of(self.rows(block))
            ]
            piece = np.concatenate(rows) if rows else self.instructions[:0]
            pieces.append(piece)
            blocks[block]["first"], at = at, at + len(piece)
            blocks[block]["last"] = at
        table = _walk_table([(*_STANDING[:7], part, parts) for part, parts in walks[1:]])
        joined = np.concatenate(pieces) if pieces else self.instructions[:0]
        return RankPlan(
            self.rank,
            self.input_chunks,
            self.output_chunks,
            self.scratch_chunks,
            joined,
            blocks,
            self.connections,
            table,
            self.groups,
            self.semaphores,
        )


@dataclass(frozen=True, slots=True)
class Promise:
    """What a plan of a collective without a name promises.

    `before(rank)`: content of each of the rank's input chunks, (input chunks,) int64, -1: none. `after(rank)`: content that each output
    chunk must hold in the end, with the contribution of every rank that had it before, -1: anything. A content is any number >= 0.
    """

    before: Callable[[int], npt.NDArray[np.int64]]
    after: Callable[[int], npt.NDArray[np.int64]]


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """A collective as instructions. `plan.rank(r)` is what rank r runs; nothing is kept of it unless the function keeps it."""

    name: str
    collective: str
    """A name of `kinds.COLLECTIVES`, or "custom": then only `promise` says what the result must be."""
    ranks: int
    chunks: int
    """C: equal chunks that `size_bytes` is cut in."""
    rank_plan: Callable[[int], RankPlan]
    in_place: bool = False
    """Whether input and output share memory the way the collective defines it (`legality.py`, aliasing)."""
    out_of_place: bool = True
    """Whether it also runs on separate buffers; always true when it is not in place."""
    root: int = 0
    counts: Columns | None = None
    """(ranks, ranks) chunks from source to destination, of all_to_all_v only."""
    promise: Promise | None = None
    """Of a custom collective; no file format holds it."""
    protocol: Protocol = Protocol.SIMPLE
    blocks_in_order: bool = True
    """True: an instruction sees what those before it in its block did. False: only what stands before a SYNC or BARRIER (MSCCL++)."""
    min_bytes: int = 0
    max_bytes: int | None = None
    """size_bytes for which it is meant, both inclusive; None: no limit."""
    threads_per_block: int | None = None
    alignment_bytes: int = 1
    double_scratch: bool = False
    """Every other launch uses a second scratch."""
    shared_scratch: bool = False
    """Scratch and connections are shared with other plans of the runtime (MSCCL++ reuse_resources)."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.chunks < 0:
            raise ValueError(
                f"plan {self.name!r}: {self.ranks} ranks, {self.chunks} chunks; at least 1 and 0 are needed"
            )
        if not self.in_place and not self.out_of_place:
            raise ValueError(f"plan {self.name!r} runs neither in place nor out of place")
        if not 0 <= self.root < self.ranks:
            raise ValueError(f"plan {self.name!r}: root {self.root} is none of its {self.ranks} ranks")

    def rank(self, rank: int) -> RankPlan:
        """What a rank runs. Raises ValueError for a rank that the plan does not have."""
        if not 0 <= rank < self.ranks:
            raise ValueError(f"plan {self.name!r} has ranks 0 to {self.ranks - 1}, not {rank}")
        return self.rank_plan(rank)

    def __iter__(self) -> Iterator[RankPlan]:
        return (self.rank(rank) for rank in range(self.ranks))

    def header(self) -> dict[str, object]:
        """All but the ranks' instructions, by name of field."""
        names = [name for name in self.__dataclass_fields__ if name not in ("rank_plan", "counts", "promise")]
        return {name: getattr(self, name) for name in names} | {
            "counts": None if self.counts is None else self.counts.tolist()
        }

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return self.header() == other.header() and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment]


def held_plan(ranks: Sequence[RankPlan], *, name: str, collective: str, chunks: int, **header: Any) -> Plan:
    """A plan whose ranks are held in memory, such as one that was read from a file. `header`: further fields of `Plan`."""
    held = tuple(ranks)
    return Plan(name, collective, len(held), chunks, held.__getitem__, **header)


# Building


@dataclass(frozen=True, slots=True)
class Span:
    """Chunks of one buffer: `count` from `index` on.

    In loops the index moves by `step` a run, outermost loop first, and goes round within `first` .. `first + wrap - 1` if wrap is not 0.
    """

    buffer: Buffer
    index: int
    count: int = 1
    step: tuple[int, ...] = ()
    first: int = 0
    wrap: int = 0


_NOWHERE = Span(Buffer.NONE, NO_INDEX, 0)


@dataclass(slots=True)
class RankBuilder:
    """Makes a `RankPlan`: connect, then fill blocks.

    >>> rank = RankBuilder(0, input_chunks=2, output_chunks=2)
    >>> out, into = rank.send_to(1), rank.receive_from(1)
    >>> block = rank.block()
    >>> block.send(Span(Buffer.INPUT, 0), out)
    >>> block.receive_reduce(Span(Buffer.INPUT, 1), into, Span(Buffer.OUTPUT, 1))
    >>> rank.build().operations
    2
    """

    rank: int
    input_chunks: int
    output_chunks: int
    scratch_chunks: int = 0
    _blocks: list[BlockBuilder] = field(default_factory=list)
    _connections: dict[tuple[int, int, int, int, int], int] = field(default_factory=dict)
    _walks: dict[tuple[Any, ...], int] = field(default_factory=lambda: {_STANDING: 0})
    _groups: dict[Group, int] = field(default_factory=dict)
    _semaphores: list[int] = field(default_factory=list)

    def connect(
        self, kind: ConnectionKind, peer: int, channel: int = 0, protocol: Protocol = Protocol.SIMPLE, slots: int = 0
    ) -> int:
        """The `via` of a connection; the same arguments give the same one."""
        key = (int(kind), int(protocol), slots, peer, channel)
        return self._connections.setdefault(key, len(self._connections))

    def send_to(self, peer: int, channel: int = 0, protocol: Protocol = Protocol.SIMPLE, slots: int = 0) -> int:
        """The writing end of a FIFO to a peer."""
        return self.connect(ConnectionKind.FIFO_OUT, peer, channel, protocol, slots)

    def receive_from(self, peer: int, channel: int = 0, protocol: Protocol = Protocol.SIMPLE, slots: int = 0) -> int:
        """The reading end of a FIFO from a peer."""
        return self.connect(ConnectionKind.FIFO_IN, peer, channel, protocol, slots)

    def group(self, ranks: Sequence[int], buffer: Buffer, protocol: Protocol = Protocol.SIMPLE) -> int:
        """The `via` of a multicast group of the switch."""
        return self.connect(ConnectionKind.SWITCH, self.declare_group(ranks, buffer), 0, protocol)

    def declare_group(self, ranks: Sequence[int], buffer: Buffer) -> int:
        """The place of a multicast group among those of this rank."""
        return self._groups.setdefault(Group(tuple(ranks), buffer), len(self._groups))

    def peer_of(self, via: int) -> int:
        """The peer of a connection made here; of a SWITCH, the place of its group."""
        return list(self._connections)[via][3]

    def group_of(self, via: int) -> Group:
        """The group of a SWITCH connection made here."""
        return list(self._groups)[self.peer_of(via)]

    def semaphore(self, value: int = 0) -> int:
        """A new semaphore of this rank."""
        self._semaphores.append(value)
        return len(self._semaphores) - 1

    def block(self, channel: int = 0) -> BlockBuilder:
        """A new thread block."""
        self._blocks.append(BlockBuilder(self, len(self._blocks), channel))
        return self._blocks[-1]

    def walk(self, key: tuple[Any, ...]) -> int:
        """The row of `walks` with these values (WALK); it is made if it is new."""
        return self._walks.setdefault(key, len(self._walks))

    def build(self) -> RankPlan:
        """The rank plan. Raises ValueError if a loop is still open."""
        rows: list[tuple[int, ...]] = []
        blocks = []
        for block in self._blocks:
            if block.depth:
                raise ValueError(f"rank {self.rank}, block {block.block}: a loop is still open")
            blocks.append((len(rows), len(rows) + len(block.rows), block.channel))
            rows += block.rows
        return RankPlan(
            self.rank,
            self.input_chunks,
            self.output_chunks,
            self.scratch_chunks,
            np.array(rows, INSTRUCTION),
            np.array(blocks, BLOCK),
            np.array(list(self._connections), CONNECTION),
            np.array(list(self._walks), WALK),
            tuple(self._groups),
            tuple(self._semaphores),
        )


class BlockBuilder:
    """Appends instructions to a block, in order."""

    def __init__(self, rank: RankBuilder, block: int, channel: int) -> None:
        self.rank = rank
        self.block = block
        self.channel = channel
        self.depth = 0
        self.rows: list[tuple[int, ...]] = []

    def send(self, src: Span, via: int, **how: Any) -> None:
        """SEND."""
        self.add(Op.SEND, [(via, src, None)], **how)

    def receive(self, via: int, dst: Span, **how: Any) -> None:
        """RECV."""
        self.add(Op.RECV, [(via, None, dst)], **how)

    def receive_send(self, via: int, dst: Span, onward: int, **how: Any) -> None:
        """RECV_COPY_SEND."""
        self.add(Op.RECV_COPY_SEND, [(via, None, dst), (onward, None, None)], **how)

    def receive_reduce(self, src: Span, via: int, dst: Span, **how: Any) -> None:
        """RECV_REDUCE_COPY: dst = op(what arrives, src)."""
        self.add(Op.RECV_REDUCE_COPY, [(via, src, dst)], **how)

    def receive_reduce_send(self, src: Span, via: int, onward: int, dst: Span | None = None, **how: Any) -> None:
        """RECV_REDUCE_SEND; RECV_REDUCE_COPY_SEND if there is a dst."""
        op = Op.RECV_REDUCE_SEND if dst is None else Op.RECV_REDUCE_COPY_SEND
        self.add(op, [(via, src, dst), (onward, None, None)], **how)

    def copy(self, src: Span, dst: Span, **how: Any) -> None:
        """COPY."""
        self.add(Op.COPY, [(LOCAL, src, dst)], **how)

    def reduce(self, dst: Span, *sources: Span, **how: Any) -> None:
        """REDUCE of local chunks."""
        first, *others = sources
        self.add(Op.REDUCE, [(LOCAL, first, dst), *[(LOCAL, src, None) for src in others]], **how)

    def put(self, src: Span, via: int, dst: Span, op: Op = Op.PUT, **how: Any) -> None:
        """PUT, or one of its kin."""
        self.add(op, [(via, src, dst)], **how)

    def get(self, src: Span, via: int, dst: Span, **how: Any) -> None:
        """GET: dst is local, src the peer's."""
        self.add(Op.GET, [(via, src, dst)], **how)

    def signal(self, *via: int, order: Order = Order.RELEASE, **how: Any) -> None:
        """SIGNAL."""
        self.add(Op.SIGNAL, [(one, None, None) for one in via], order=order, **how)

    def wait(self, *via: int, order: Order = Order.ACQUIRE, **how: Any) -> None:
        """WAIT."""
        self.add(Op.WAIT, [(one, None, None) for one in via], order=order, **how)

    def flush(self, *via: int) -> None:
        """FLUSH."""
        self.add(Op.FLUSH, [(one, None, None) for one in via])

    def sync(self) -> None:
        """SYNC."""
        self.add(Op.SYNC, [(LOCAL, None, None)])

    def barrier(self, barrier: int, blocks: int) -> None:
        """BARRIER."""
        self.rows.append(_row(Op.BARRIER, via=barrier, count=blocks))

    def set_flag(self, order: Order = Order.RELEASE) -> None:
        """FLAG_SET."""
        self.rows.append(_row(Op.FLAG_SET, order=order))

    def wait_flag(self, block: int, times: int, step: tuple[int, ...] = (), order: Order = Order.ACQUIRE) -> None:
        """FLAG_WAIT: until block has set its flag `times` times, `step` more each run of the enclosing loops."""
        walk = self._walk(Span(Buffer.NONE, times, 0, step), _NOWHERE, (), (0, 1))
        self.rows.append(_row(Op.FLAG_WAIT, order=order, walk=walk, via=block, src=times))

    def release(self, *semaphores: int, order: Order = Order.RELEASE) -> None:
        """RELEASE."""
        self.add(Op.RELEASE, [(one, None, None) for one in semaphores], order=order)

    def acquire(self, *semaphores: int, order: Order = Order.ACQUIRE) -> None:
        """ACQUIRE."""
        self.add(Op.ACQUIRE, [(one, None, None) for one in semaphores], order=order)

    def add(
        self,
        op: Op,
        operands: Sequence[tuple[int, Span | None, Span | None]],
        *,
        order: Order = Order.RELAXED,
        reduction: Reduction = Reduction.CALL,
        via_step: tuple[int, ...] = (),
        share: tuple[int, int] = (0, 1),
    ) -> None:
        """Any instruction with operands (via, src, dst), the first in its own row.

        via_step: rows of the connection table that `via` moves a run of each enclosing loop. share: (part, parts) that this block moves.
        Raises ValueError if src and dst of one operand differ in count, or there are more operands than a row can say.
        """
        if not 1 <= len(operands) <= 256:
            raise ValueError(f"{op.name} takes 1 to 256 operands, not {len(operands)}")
        for place, (via, src, dst) in enumerate(operands):
            read, written = src or _NOWHERE, dst or _NOWHERE
            if src is not None and dst is not None and src.count != dst.count:
                raise ValueError(f"{op.name}: {src.count} chunks are read, {dst.count} written")
            self.rows.append(
                _row(
                    Op.OPERAND if place else op,
                    order=0 if place else order,
                    reduction=0 if place else reduction,
                    more=0 if place else len(operands) - 1,
                    src_buffer=read.buffer,
                    dst_buffer=written.buffer,
                    walk=self._walk(read, written, via_step, share),
                    via=via,
                    src=read.index,
                    dst=written.index,
                    count=max(read.count, written.count),
                )
            )

    @contextmanager
    def loop(self, times: int) -> Iterator[None]:
        """What is added inside runs `times` times."""
        with self._body(Op.LOOP, times, NO_INDEX):
            yield

    @contextmanager
    def slices(self, slice_bytes: int, chunks: int) -> Iterator[None]:
        """What is added inside runs once a slice of its operands."""
        with self._body(Op.SLICES, chunks, slice_bytes):
            yield

    @contextmanager
    def _body(self, op: Op, count: int, src: int) -> Iterator[None]:
        if op is Op.LOOP and self.depth == MAX_LOOPS:
            raise ValueError(f"loops nest at most {MAX_LOOPS} deep")
        place = len(self.rows)
        self.rows.append(())
        self.depth += op is Op.LOOP
        yield
        self.depth -= op is Op.LOOP
        self.rows[place] = _row(op, src=src, dst=len(self.rows) - place - 1, count=count)

    def _walk(self, src: Span, dst: Span, via_step: tuple[int, ...], share: tuple[int, int]) -> int:
        def wide(step: tuple[int, ...]) -> tuple[int, ...]:
            if len(step) > self.depth:
                raise ValueError(f"{len(step)} steps are given inside {self.depth} loops")
            return step + (0,) * (MAX_LOOPS - len(step))

        key = (wide(src.step), wide(dst.step), wide(via_step), src.first, src.wrap, dst.first, dst.wrap, *share)
        return self.rank.walk(key)


_USUAL = {"src_buffer": Buffer.NONE, "dst_buffer": Buffer.NONE, "via": LOCAL, "src": NO_INDEX, "dst": NO_INDEX}
_NAMES = INSTRUCTION.names or ()
_PLACES = {name: place for place, name in enumerate(_NAMES)}
_USUAL_ROW = [int(_USUAL.get(name, 0)) for name in _NAMES]


def _row(op: Op, **values: int) -> tuple[int, ...]:
    row = _USUAL_ROW.copy()
    row[0] = int(op)
    for name, value in values.items():
        row[_PLACES[name]] = int(value)
    return tuple(row)


# Tables


def _walk_table(rows: Sequence[tuple[Any, ...]]) -> Columns:
    return np.array([_STANDING, *rows], WALK)


def _via_of(plan: RankPlan) -> npt.NDArray[np.int64]:
    """(I,) row of the connection table, -1 where `via` means none or something else."""
    op = plan.instructions["op"].astype(np.int64)
    owner = np.maximum.accumulate(np.where(op != Op.OPERAND, np.arange(len(op)), 0)) if len(op) else op
    elsewhere = [Op.BARRIER, Op.FLAG_SET, Op.FLAG_WAIT, Op.RELEASE, Op.ACQUIRE, Op.LOOP, Op.SLICES]
    return np.where(np.isin(op[owner], elsewhere), -1, plan.instructions["via"])


def _by_first_use(table: Columns, places: npt.NDArray[np.int64]) -> tuple[Columns, npt.NDArray[np.int64]]:
    """A table with its used rows in the order of first use, equal rows once; and the places that point into it, -1 kept."""
    known: dict[bytes, int] = {}
    kept: list[int] = []
    renamed: dict[int, int] = {-1: -1}
    for place in places.tolist():
        if place in renamed:
            continue
        key = table[place].tobytes()
        if key not in known:
            known[key] = len(kept)
            kept.append(place)
        renamed[place] = known[key]
    return table[np.array(kept, np.intp)], np.array([renamed[place] for place in places.tolist()], np.int64)


def _order_of(rows: Columns) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Runs of a block's rows in the order of execution: places, and the counters of the loops around them (MAX_LOOPS,)."""
    heads = np.flatnonzero(rows["op"] == Op.LOOP).tolist()

    def run(
        first: int, last: int, counters: list[int]
    ) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
        at = begin = first
        while True:
            place = bisect_left(heads, at)
            at = heads[place] if place < len(heads) and heads[place] < last else last
            if at == last:
                break
            if at > begin:
                yield np.arange(begin, at), _counters(counters)
            body = at + 1 + int(rows[at]["dst"])
            for turn in range(int(rows[at]["count"])):
                yield from run(at + 1, body, [*counters, turn])
            at = begin = body
        if last > begin:
            yield np.arange(begin, last), _counters(counters)

    return run(0, len(rows), [])


def _counters(counters: list[int]) -> npt.NDArray[np.int64]:
    return np.array((counters + [0] * MAX_LOOPS)[:MAX_LOOPS], np.int64)


def _resolved(
    plan: RankPlan,
    rows: Columns,
    walks: list[tuple[int, int]],
    places: npt.NDArray[np.int64],
    counters: npt.NDArray[np.int64],
) -> Columns:
    """Rows as they run in one turn of the loops around them."""
    out: Columns = rows[places].copy()
    walk = plan.walks[out["walk"]]
    for side in ("src", "dst"):
        moved = out[side] + walk[f"{side}_step"] @ counters
        first, wrap = walk[f"{side}_first"], walk[f"{side}_wrap"]
        round_ = first + (moved - first) % np.maximum(wrap, 1)
        out[side] = np.where(wrap > 0, round_, moved)
    out["via"] += (walk["via_step"] @ counters).astype(np.int32)
    for place, (part, parts) in enumerate(zip(walk["part"].tolist(), walk["parts"].tolist(), strict=True)):
        if (part, parts) not in walks:
            walks.append((part, parts))
        out["walk"][place] = walks.index((part, parts))
    return out
