"""A plan run by processes that send and receive over TCP: on one machine, or on hosts that share nothing else.

One process a rank, one connection a FIFO. A rank's blocks take turns in one thread: each goes on until it has to wait, and where all wait the
kernel says what has arrived. What peers' memory is needed for, puts and signals and switches, is not run here: hosts have no memory in common.
"""

from __future__ import annotations

import os
import selectors
import socket
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.collectives.collective import DTYPE_BYTES
from busbw.collectives.plan import Buffer, Columns, ConnectionKind, Op, Plan, RankBuilder, Reduction, Span, held_plan
from busbw.execution.communicator import PRIMITIVES, GaveUpError
from busbw.execution.linking import LinkedPlan, link
from busbw.execution.run import CallBuffers, as_flat, check_operation, forked, gave_up, known_dtype, run
from busbw.execution.sockets import KEY_BYTES, Address, Incoming, Message, Outgoing, connect_all, listen

__all__ = ["SocketRank", "run_on_sockets"]

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_WHOLE = 1 << 40
"""Of a slot: a message is never cut."""
_SENDS = (Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_RECEIVES = (Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_REDUCES = (Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_COUNTERS = (Op.FLAG_SET, Op.FLAG_WAIT, Op.RELEASE, Op.ACQUIRE, Op.BARRIER, Op.SYNC)
_RUN_HERE = {*_SENDS, *_RECEIVES, *_COUNTERS, Op.COPY, Op.REDUCE}
_ALWAYS_NUMPY = ("sum", "prod")
_MESSAGE, _SLOT = PRIMITIVES.index("a message"), PRIMITIVES.index("a free slot")
_WAITS = {
    Op.FLAG_WAIT: PRIMITIVES.index("a flag"),
    Op.ACQUIRE: PRIMITIVES.index("a signal"),
    Op.BARRIER: PRIMITIVES.index("a barrier"),
}


@dataclass(frozen=True, slots=True)
class _Operand:
    """Where the pieces of an operand lie in a buffer, a piece a chunk, and how much of each is there: the last chunk ends with its buffer."""

    buffer: Buffer
    at: tuple[int, ...]
    there: tuple[int, ...]
    shape: tuple[int, ...]
    """Lengths that rows say, for both ends of a message alike."""


@dataclass(slots=True)
class _Step:
    """A row as it runs once."""

    op: Op
    sources: list[_Operand] = field(default_factory=list)
    targets: list[_Operand] = field(default_factory=list)
    into: Incoming | None = None
    out: Outgoing | None = None
    reduction: Reduction = Reduction.CALL
    numbers: tuple[int, ...] = ()
    """Semaphores; of a barrier its number and its blocks; of a flag the block and how often it is set."""


class _Block:
    """A block and how far it is."""

    def __init__(self, number: int, steps: list[_Step]) -> None:
        self.number, self.steps = number, steps
        self.at = 0
        self.message: Message | None = None
        """That its step has received, and could not send on yet."""
        self.goal: int | None = None
        """Arrivals at a barrier that it waits for."""

    @property
    def ended(self) -> bool:
        return self.at == len(self.steps)

    def shapes_from(self, end: Incoming) -> Iterator[tuple[int, ...]]:
        """Of the messages that come from a peer."""
        return ((step.sources or step.targets)[0].shape for step in self.steps if step.into is end)


class SocketRank:
    """One rank of a plan, connected with its peers: `SocketRank(plan, rank, elements, addresses)(source)`; close it in the end.

    All ranks make one with the same plan, elements (of the input of each rank, or one number for all), addresses (each rank's, in order) and key, and
    call it together. listener: a socket that listens at this rank's address; made if None. buffer_bytes: see `sockets.listen`.
    wait_s: without anything that arrives or leaves. Raises ValueError for a plan that reaches into peers' memory, GaveUpError for a peer that is not there.
    """

    def __init__(
        self,
        plan: Plan,
        rank: int,
        elements: int | Sequence[int],
        addresses: Sequence[Address],
        dtype: str = "float32",
        *,
        listener: socket.socket | None = None,
        key: bytes = bytes(KEY_BYTES),
        wait_s: float = 30.0,
        buffer_bytes: int | None = None,
    ) -> None:
        if len(addresses) != plan.ranks:
            raise ValueError(f"plan {plan.name!r} is for {plan.ranks} ranks, {len(addresses)} addresses are given")
        if not 0 <= rank < plan.ranks:
            raise ValueError(f"plan {plan.name!r} has ranks 0 to {plan.ranks - 1}, not {rank}")
        if len(key) != KEY_BYTES:
            raise ValueError(f"a key has {KEY_BYTES} bytes, not {len(key)}")
        self.rank, self._wait_s, self._dtype = rank, wait_s, known_dtype(dtype)
        each = [elements] * plan.ranks if isinstance(elements, int) else list(elements)
        refuse_one_sided(plan)
        self.linked = linked = link(plan, each, DTYPE_BYTES[dtype], slot_bytes=_WHOLE)
        unrolled = plan.rank(rank).unrolled()
        ends: tuple[dict[tuple[int, int], int], dict[tuple[int, int], int]] = {}, {}
        for way, connection in zip(linked.ranks[rank].ways, unrolled.connections, strict=True):
            if way["kind"] in (ConnectionKind.FIFO_OUT, ConnectionKind.FIFO_IN):
                end = ends[0 if way["kind"] == ConnectionKind.FIFO_OUT else 1]
                end[int(way["peer"]), int(connection["channel"])] = int(way["slots"])
        own = listener or listen(addresses[rank], buffer_bytes)
        try:
            self._out, self._into = connect_all(
                rank, addresses, *ends, own, key=key, wait_s=wait_s, buffer_bytes=buffer_bytes
            )
        finally:
            own.close()
        try:
            self._blocks = list(_compiled(linked, rank, self._out, self._into))
        except BaseException:
            self.close()
            raise
        for incoming in self._into.values():
            incoming.most_bytes = max(
                (sum(shape) for block in self._blocks for shape in block.shapes_from(incoming)), default=0
            )
        self._scratch = np.zeros(linked.spaces[rank][2].size_bytes, np.uint8)
        self._half = 0
        self._semaphores = list(unrolled.semaphores)
        self._flags: list[int] = []
        self._barriers: dict[int, int] = {}

    def __enter__(self) -> SocketRank:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections; peers that still wait for this rank give up."""
        for connection in [end.connection for end in self._out.values()] + [
            end.connection for end in self._into.values()
        ]:
            connection.close()

    def __call__(self, source: Any, target: Any = None, op: str = "sum", *, times: int = 1) -> Array:
        """This rank's output, in `target` if there is one. times: runs in a row."""
        check_operation(op)
        given, made = as_flat(source), None if target is None else as_flat(target)
        buffers = CallBuffers.of(self.linked, self.rank, given, made, self._dtype)
        reduce = _Reducer(self._dtype, op)
        with selectors.DefaultSelector() as selector:
            for _ in range(times):
                self._run([buffers.source, buffers.target, self._scratch], reduce, selector)
                self._half ^= 1
        return buffers.finished(op, self.linked.plan)

    def _run(self, memory: list[Bytes], reduce: _Reducer, selector: selectors.BaseSelector) -> None:
        half = self.linked.spaces[self.rank][2].half_bytes * self._half
        memory = [*memory[:2], memory[2][half:]]
        self._flags = [0] * len(self._blocks)
        self._barriers = {}
        for block in self._blocks:
            block.at = 0
        active = list(self._blocks)
        until = time.monotonic() + self._wait_s
        while True:
            moved = False
            for block in active:
                while not block.ended and self._attempt(block, memory, reduce):
                    block.at += 1
                    moved = True
            active = [block for block in active if not block.ended]
            if not active and all(end.idle for end in self._out.values()):
                return
            if not (moved and active):
                moved = self._await(selector, until)
            if moved:
                until = time.monotonic() + self._wait_s
            elif time.monotonic() > until:
                raise GaveUpError(self._waits_for(active))

    def _await(self, selector: selectors.BaseSelector, until: float) -> bool:
        """Sleeps until something can arrive or leave; whether something did."""
        known = selector.get_map()
        wanted: dict[socket.socket, tuple[int, Incoming | Outgoing]] = {
            end.connection: (selectors.EVENT_READ, end) for end in self._into.values() if not end.full
        } | {end.connection: (selectors.EVENT_WRITE, end) for end in self._out.values() if not end.idle}
        for connection in [key.fileobj for key in known.values() if key.fileobj not in wanted]:
            selector.unregister(connection)
        for connection, (event, end) in wanted.items():
            if connection not in known:
                selector.register(connection, event, end)
        ready = selector.select(max(0.0, until - time.monotonic()))
        moved = [key.data.pump() for key, _ in ready]
        return any(moved)

    def _waits_for(self, active: list[_Block]) -> str:
        plan = self.linked.plan
        if not active:
            end = next(end for end in self._out.values() if not end.idle)
            report = (1, _SLOT, 0, end.peer, end.sent, end.sent - 1)
            return gave_up(report, self.rank, plan.name, self._wait_s, deadline=True)
        block = active[0]
        step = block.steps[block.at]
        if step.into is not None and block.message is None:
            report = (1, _MESSAGE, block.number, step.into.peer, step.into.taken + 1, step.into.taken)
        elif step.out is not None:
            report = (1, _SLOT, block.number, step.out.peer, step.out.sent + 1, step.out.sent)
        else:
            report = (1, _WAITS.get(step.op, 0), block.number, self.rank, 1, 0)
        return gave_up(report, self.rank, plan.name, self._wait_s, deadline=True)

    def _attempt(self, block: _Block, memory: list[Bytes], reduce: _Reducer) -> bool:
        """Does a block's next step, if it need not wait."""
        step = block.steps[block.at]
        if step.op in _COUNTERS:
            return self._count(block, step)
        if step.op is Op.COPY:
            for source, target in zip(step.sources, step.targets, strict=True):
                _store(memory, target, _read(memory, source))
            return True
        if step.op is Op.REDUCE:
            self._reduce(step, memory, reduce)
            return True
        if step.into is not None and block.message is None:
            block.message = step.into.take()
            if block.message is None:
                return False
            self._refuse_other_size(step, block.message)
            if step.op in _REDUCES:
                mine = _read(memory, step.sources[0])
                block.message = reduce.pieces(step.reduction, block.message, mine, step.sources[0].shape)
            if step.targets:
                _store(memory, step.targets[0], block.message)
        if step.out is None:
            block.message = None
            return True
        if step.out.full:
            step.out.pump()
            if step.out.full:
                return False
        step.out.send(_read(memory, step.sources[0]) if step.into is None else block.message or Message(_NOTHING))
        block.message = None
        return True

    def _refuse_other_size(self, step: _Step, message: Message) -> None:
        shape = (step.sources or step.targets)[0].shape
        right = len(message.lengths) == len(shape) if message.lengths else len(message.data) == sum(shape)
        if not right and step.into is not None:
            raise GaveUpError(
                f"rank {self.rank} of plan {self.linked.plan.name!r} got {len(message.data)} bytes of rank {step.into.peer}, {sum(shape)} were due: "
                "both must be called with the same plan, sizes and types; `busbw verify` tells what the plan asks"
            )

    def _reduce(self, step: _Step, memory: list[Bytes], reduce: _Reducer) -> None:
        total = _read(memory, step.sources[0])
        for source in step.sources[1:]:
            total = reduce.pieces(step.reduction, total, _read(memory, source), source.shape)
        for target in step.targets:
            _store(memory, target, total)

    def _count(self, block: _Block, step: _Step) -> bool:
        match step.op:
            case Op.FLAG_SET:
                self._flags[block.number] += 1
            case Op.FLAG_WAIT:
                other, times = step.numbers
                return self._flags[other] >= times
            case Op.RELEASE:
                for semaphore in step.numbers:
                    self._semaphores[semaphore] += 1
            case Op.ACQUIRE:
                if any(self._semaphores[semaphore] < step.numbers.count(semaphore) for semaphore in step.numbers):
                    return False
                for semaphore in step.numbers:
                    self._semaphores[semaphore] -= 1
            case Op.BARRIER:
                barrier, blocks = step.numbers
                if block.goal is None:
                    here = self._barriers.get(barrier, 0)
                    block.goal = (here // blocks + 1) * blocks
                    self._barriers[barrier] = here + 1
                if self._barriers[barrier] < block.goal:
                    return False
                block.goal = None
        return True


_NOTHING = np.empty(0, np.uint8)


# What rows do, once sizes are known


def refuse_one_sided(plan: Plan) -> None:
    """Raises ValueError for a plan that does more than send, receive and work in its own memory."""
    for rank in plan:
        op = rank.instructions["op"]
        owner = np.maximum.accumulate(np.where(op != Op.OPERAND, np.arange(len(op)), 0)) if len(op) else op
        acts = op[owner]
        known = [int(one) for one in (*_RUN_HERE, Op.LOOP, Op.SLICES, Op.OPERAND)]
        far = np.isin(acts, [int(Op.COPY), int(Op.REDUCE)]) & (rank.instructions["via"] >= 0)
        for place in np.flatnonzero(~np.isin(acts, known) | far)[:1].tolist():
            raise ValueError(
                f"plan {plan.name!r}: rank {rank.rank} has a {Op(int(acts[place])).name} in the memory of a peer, which sockets do not reach. They run plans "
                "that send and receive, as `busbw.collectives.plan_of` makes them of a schedule"
            )


def _compiled(
    linked: LinkedPlan, rank: int, out: dict[tuple[int, int], Outgoing], into: dict[tuple[int, int], Incoming]
) -> Iterator[_Block]:
    plan = linked.plan.rank(rank).unrolled()
    connections = [(int(one["peer"]), int(one["channel"])) for one in plan.connections]

    def operand(row: Any, side: str, slices: Sequence[tuple[int, int]]) -> _Operand:
        buffer, index, count = Buffer(int(row[f"{side}_buffer"])), int(row[side]), int(row["count"])
        chunk, first, last = linked.chunk_bytes, 0, count * linked.chunk_bytes
        for turn, size in slices:
            first = min(turn * size, last)
            last = min(first + size, last)
        walk = plan.walks[row["walk"]]
        part, parts = int(walk["part"]), int(walk["parts"])
        if parts > 1:
            whole = last - first
            cuts = [
                whole if one == parts else whole * one // parts // linked.grain * linked.grain
                for one in (part, part + 1)
            ]
            first, last = first + cuts[0], first + cuts[1]
        space = linked.spaces[rank][buffer]
        at, there, shape = [], [], []
        for number in range(first // chunk, -(-last // chunk)):
            begin, end = max(first - number * chunk, 0), min(last - number * chunk, chunk)
            within = (index + number) % space.chunks_per_part * chunk + begin
            at.append((index + number) // space.chunks_per_part * space.part_bytes + within)
            there.append(max(0, min(end - begin, space.part_bytes - within)))
            shape.append(end - begin)
        return _Operand(buffer, tuple(at), tuple(there), tuple(shape))

    def step(rows: Columns, slices: Sequence[tuple[int, int]]) -> _Step:
        row, op = rows[0], Op(int(rows[0]["op"]))
        made = _Step(op, reduction=Reduction(int(row["reduction"])))
        if op in (Op.FLAG_WAIT, Op.BARRIER):
            made.numbers = (int(row["via"]), int(row["src" if op is Op.FLAG_WAIT else "count"]))
        elif op in (Op.RELEASE, Op.ACQUIRE):
            made.numbers = tuple(rows["via"].tolist())
        if op in _COUNTERS:
            return made
        if op in _RECEIVES:
            made.into = into[connections[int(row["via"])]]
        if op in _SENDS:
            made.out = out[connections[int(rows[1 if op in _RECEIVES else 0]["via"])]]
        for one in rows if op in (Op.COPY, Op.REDUCE) else rows[:1]:
            for side, operands in (("src", made.sources), ("dst", made.targets)):
                if one[f"{side}_buffer"] != Buffer.NONE:
                    operands.append(operand(one, side, slices))
        return made

    def steps(rows: Columns, first: int, last: int, slices: tuple[tuple[int, int], ...]) -> Iterator[_Step]:
        at = first
        while at < last:
            row = rows[at]
            if row["op"] == Op.SLICES:
                body, size = at + 1 + int(row["dst"]), int(row["src"])
                for turn in range(-(-int(row["count"]) * linked.chunk_bytes // size)):
                    yield from steps(rows, at + 1, body, (*slices, (turn, size)))
                at = body
                continue
            behind = at + 1 + int(row["more"])
            yield step(rows[at:behind], slices)
            at = behind

    for number in range(len(plan.blocks)):
        rows = plan.rows(number)
        yield _Block(number, list(steps(rows, 0, len(rows), ())))


# Bytes


def _read(memory: list[Bytes], one: _Operand) -> Message:
    """A copy of what an operand holds."""
    space = memory[one.buffer]
    if not one.at:
        return Message(_NOTHING)
    together = all(a + n == b for a, n, b in zip(one.at, one.there, one.at[1:], strict=False))
    if together:
        data = space[one.at[0] : one.at[0] + sum(one.there)].copy()
    else:
        data = np.concatenate([space[at : at + there] for at, there in zip(one.at, one.there, strict=True)])
    return Message(data, None if one.there == one.shape else one.there)


def _store(memory: list[Bytes], one: _Operand, message: Message) -> None:
    space, begin = memory[one.buffer], 0
    for at, there, length in zip(one.at, one.there, message.lengths or one.shape, strict=True):
        taken = min(there, length)
        space[at : at + taken] = message.data[begin : begin + taken]
        begin += length


class _Reducer:
    """The arithmetic of a call."""

    def __init__(self, dtype: str, op: str) -> None:
        self._dtype, self._op = dtype, op

    def pieces(self, reduction: Reduction, one: Message, other: Message, shape: tuple[int, ...]) -> Message:
        """What one op other is, piece by piece, as long as the shorter of both."""
        op = self._op if reduction is Reduction.CALL else reduction.name.lower()
        if one.lengths == other.lengths:
            return Message(self._of(one.data, other.data, op), one.lengths)
        mine, theirs = one.lengths or shape, other.lengths or shape
        lengths = tuple(map(min, mine, theirs))
        made = [
            self._of(one.data[a : a + n], other.data[b : b + n], op)
            for a, b, n in zip(_begins(mine), _begins(theirs), lengths, strict=True)
        ]
        return Message(np.concatenate(made), lengths)

    def _of(self, one: Bytes, other: Bytes, op: str) -> Bytes:
        op = "sum" if op == "avg" else op
        if self._dtype in np.sctypeDict and (op in _ALWAYS_NUMPY or "int" in self._dtype):
            ufunc: Any = {"sum": np.add, "prod": np.multiply, "min": np.minimum, "max": np.maximum}[op]
            out = np.empty_like(one)
            with np.errstate(all="ignore"):
                ufunc(one.view(self._dtype), other.view(self._dtype), out=out.view(self._dtype))
            return out
        # Types that numpy lacks, and what NaN does to min and max: by the arithmetic of the other back ends.
        kind = f"uint{8 * DTYPE_BYTES[self._dtype]}" if self._dtype not in np.sctypeDict else self._dtype
        both = np.concatenate([one, other]).view(kind)
        (result,) = run(_pair(), [both], op, dtype=self._dtype) if len(both) else (both,)
        return result.view(np.uint8)


def _begins(lengths: Sequence[int]) -> list[int]:
    return [0, *np.cumsum(lengths[:-1]).tolist()] if lengths else []


def _pair() -> Plan:
    """Of one rank: its output is its first chunk op its second."""
    rank = RankBuilder(0, 2, 1)
    rank.block().reduce(Span(Buffer.OUTPUT, 0), Span(Buffer.INPUT, 0), Span(Buffer.INPUT, 1))
    return held_plan([rank.build()], name="pair", collective="custom", chunks=2)


# All ranks on this machine


def run_on_sockets(plan: Plan, arrays: list[Array], op: str, dtype: str, wait_s: float) -> list[Array]:
    """The output of every rank, each a process of this machine, over the loopback interface."""
    refuse_one_sided(plan)
    sizes, key = [array.size for array in arrays], os.urandom(KEY_BYTES)
    link(plan, sizes, DTYPE_BYTES[dtype])  # raises here what is wrong with the sizes
    listeners: list[socket.socket] = []
    try:
        listeners.extend(listen(("127.0.0.1", 0)) for _ in arrays)
        addresses = [one.getsockname()[:2] for one in listeners]

        def as_rank(rank: int) -> Array:
            for other, one in enumerate(listeners):
                if other != rank:
                    one.close()
            with SocketRank(
                plan, rank, sizes, addresses, dtype, listener=listeners[rank], key=key, wait_s=wait_s
            ) as comm:
                return comm(arrays[rank], op=op)

        return forked(plan.ranks, as_rank)
    finally:
        for one in listeners:
            one.close()
