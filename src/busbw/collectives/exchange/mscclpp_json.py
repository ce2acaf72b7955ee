"""MSCCL++ execution plans of the second kind (releases 0.8 to 0.10), as their executor reads them.

`channel_ids`, `buffer_id` and `switch_channel_id` of an operation are places in its block's lists. Only `nop` and `barrier` order the threads of a
block between two operations, so `Plan.blocks_in_order` is false. Where the executor does other than its words say, the plan holds what it does:
`get` takes its source's index on the local side; `pws` and `pwsf` on memory channels signal nothing; a `put` on memory channels takes
the buffer of its first source for all; `flush` does nothing. Source: microsoft/mscclpp 1f5f065d, src/core/executor/execution_plan.cc and
src/core/include/execution_kernel.hpp.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from busbw.collectives.exchange.json_fields import Fields, read_json
from busbw.collectives.exchange.mscclpp_json_v1 import MEND, read_first_kind, write_first_kind
from busbw.collectives.exchange.targets import TARGETS, Target, limit_violation
from busbw.collectives.legality import Violation, row_in_words
from busbw.collectives.plan import (
    LOCAL,
    BlockBuilder,
    Buffer,
    Columns,
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
from busbw.errors import Loss, Losses

__all__ = ["looks_like_mscclpp_json", "read_mscclpp_json", "write_mscclpp_json"]

_BUFFERS = {"i": Buffer.INPUT, "o": Buffer.OUTPUT, "s": Buffer.SCRATCH}
_LETTERS = {int(buffer): letter for letter, buffer in _BUFFERS.items()}
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
    "sendrecv": "custom",
    "test": "custom",
    "custom": "custom",
}
_PROTOCOLS = {"Simple": Protocol.SIMPLE, "LL": Protocol.LL}
_REDUCTIONS = {"sum": Reduction.SUM, "min": Reduction.MIN, "max": Reduction.MAX}
_KINDS = {"memory": ConnectionKind.MEMORY, "port": ConnectionKind.PORT}
_MOST_CHUNKS = 1 << 20
_MOST_RANKS = 1 << 16
_MOST = 2**31 - 1
_NO_LIMIT = 2**64 - 1
_ALIGNMENT = 16
_THREADS = 1024
_FIRST_KIND = ("inputChunks", "outputChunks")
_PACKET_OPS = (Op.PACK, Op.UNPACK, Op.PUT_PACKETS, Op.FORWARD_PACKETS, Op.REDUCE_PACKETS, Op.MULTICAST_PACKETS)


def looks_like_mscclpp_json(value: Any) -> bool:
    """Whether a JSON value is a plan of either kind."""
    return isinstance(value, dict) and isinstance(value.get("gpus"), list) and "collective" in value


# Reading


@dataclass(slots=True)
class _Rank:
    """What a gpu declares, by global id."""

    builder: RankBuilder
    channels: dict[str, list[tuple[int, int]]] = field(
        default_factory=dict
    )  # kind -> (peer, how many-eth of that peer)
    groups: list[tuple[tuple[int, ...], Buffer]] = field(default_factory=list)
    remote: list[tuple[int, Buffer, tuple[str, ...]]] = field(default_factory=list)
    semaphores: int = 0


@dataclass(slots=True)
class _Block:
    """What a block may name, by place in its own lists."""

    rank: _Rank
    builder: BlockBuilder
    channels: dict[str, list[int]]  # kind -> via
    remote: dict[str, list[tuple[int, Buffer]]]  # kind -> (rank, buffer)
    packets: Protocol


def read_mscclpp_json(data: bytes | str, path: str, target: str | None = None) -> tuple[Plan, Target, list[Loss]]:
    """The plan that the executor makes of a file, the release it is for (the first that knows its operations), and what was lost.

    Losses: `flush-does-nothing`, `signal-left-out` (pws on memory channels), `get-offsets`, `mixed-sources`, `reduce-op-ignored`,
    `custom-collective`. Raises InputError for what the executor refuses or reads outside of its tables.
    """
    top = read_json(data, path)
    losses = Losses(path)
    gpus = list(top.objects("gpus"))
    if not 1 <= len(gpus) <= _MOST_RANKS:
        raise top.wrong(f"has {len(gpus)} gpus; 1 to {_MOST_RANKS} are needed")
    if any(gpus[0].has(name) for name in _FIRST_KIND):
        return read_first_kind(top, gpus, losses, target)
    word = top.text("collective", tuple(_COLLECTIVES))
    if word in ("sendrecv", "test"):
        losses.add("custom-collective", None, f"{word}: what it promises is not written down; it is read as custom")
    protocol = _PROTOCOLS[top.text("protocol", tuple(_PROTOCOLS))]
    ranks = [_gpu(gpu, place, len(gpus), protocol, losses) for place, gpu in enumerate(gpus)]
    most = top.number("max_message_size", 0, _NO_LIMIT, _NO_LIMIT)
    plan = held_plan(
        ranks,
        name=top.text("name"),
        collective=_COLLECTIVES[word],
        chunks=max(max(rank.input_chunks, rank.output_chunks) for rank in ranks),
        in_place=top.flag("inplace"),
        out_of_place=not top.flag("inplace"),
        protocol=protocol,
        blocks_in_order=False,
        min_bytes=top.number("min_message_size", 0, _NO_LIMIT, 0),
        max_bytes=None if most == _NO_LIMIT else most,
        threads_per_block=top.number("num_threads_per_block", 1, 1024, _THREADS),
        alignment_bytes=top.number("buffer_alignment", 1, 1 << 20, _ALIGNMENT),
        double_scratch=top.flag("use_double_scratch_buffer", False),
        shared_scratch=top.flag("reuse_resources", False),
    )
    return plan, TARGETS[target] if target else _first_release(plan), list(losses)


def _first_release(plan: Plan) -> Target:
    used = {name for rank in plan for name in _names(rank)}
    releases = ("mscclpp-0.8", "mscclpp-0.9", "mscclpp-0.10")
    return next(
        (TARGETS[name] for name in releases if used <= (TARGETS[name].operations or set())), TARGETS[releases[-1]]
    )


def _gpu(gpu: Fields, place: int, ranks: int, protocol: Protocol, losses: Losses) -> RankPlan:
    if gpu.number("id", 0, _MOST_RANKS) != place:
        raise gpu.wrong(f"has id {gpu.value['id']}; the executor takes element {place} for rank {place}")
    inputs, outputs, scratch = (
        gpu.number(f"{name}_chunks", 0, _MOST_CHUNKS) for name in ("input", "output", "scratch")
    )
    if not inputs and not outputs:
        raise gpu.wrong("has neither input nor output chunks")
    rank = _Rank(RankBuilder(place, inputs, outputs, scratch))
    for channel in gpu.objects("channels", []):
        _channel(rank, channel, place, ranks)
    for remote in gpu.objects("remote_buffers", []):
        access = tuple(str(kind) for kind in remote.items("access_channel_types"))
        if not set(access) <= set(_KINDS):
            raise remote.wrong(f"has access_channel_types {access}; memory and port are known")
        rank.remote.append(
            (_peer(remote, "rank", place, ranks), _BUFFERS[remote.text("type", tuple(_BUFFERS))], access)
        )
    for semaphore in gpu.objects("semaphores", []):
        rank.builder.semaphore(semaphore.number("init_value", 0, _MOST))
        rank.semaphores += 1
    for number, block in enumerate(gpu.objects("threadblocks")):
        if block.number("id", 0, _MOST) != number:
            raise block.wrong(f"has id {block.value['id']}; blocks are numbered in order, so {number} is needed")
        _threadblock(rank, block, protocol, losses)
    return rank.builder.build()


def _peer(fields: Fields, name: str, own: int, ranks: int) -> int:
    peer = fields.number(name, 0, ranks - 1)
    if peer == own:
        raise fields.wrong(f"has {name} {peer}, which is the gpu itself")
    return peer


def _channel(rank: _Rank, channel: Fields, own: int, ranks: int) -> None:
    kind = channel.text("channel_type", ("memory", "port", "switch"))
    if kind == "switch":
        letter = channel.text("buffer_type" if channel.has("buffer_type") else "buff", tuple(_BUFFERS))
        for group in channel.objects("rank_groups"):
            members = tuple(group.numbers("ranks", 0, ranks - 1))
            if own not in members or len(set(members)) != len(members):
                raise group.wrong(f"has ranks {members}: rank {own} must be in it, and each once")
            rank.groups.append((members, _BUFFERS[letter]))
        return
    if kind in rank.channels:
        raise channel.wrong(f"is a second entry of type {kind}")
    met: dict[int, int] = {}
    rank.channels[kind] = []
    for peer in channel.numbers("connected_to", 0, ranks - 1):
        if peer == own:
            raise channel.wrong(f"connects rank {own} to itself")
        rank.channels[kind].append((peer, met.get(peer, 0)))
        met[peer] = met.get(peer, 0) + 1


def _threadblock(rank: _Rank, fields: Fields, protocol: Protocol, losses: Losses) -> None:
    block = _Block(
        rank, rank.builder.block(), {"memory": [], "port": [], "switch": []}, {"memory": [], "port": []}, protocol
    )
    for channel in fields.objects("channels", []):
        kind = channel.text("channel_type", ("memory", "port", "switch"))
        known = len(rank.groups if kind == "switch" else rank.channels.get(kind, []))
        for number in channel.numbers("channel_ids", 0, _MOST):
            if number >= known:
                raise channel.wrong(f"names {kind} channel {number}; the gpu has {known}")
            if kind == "switch":
                members, buffer = rank.groups[number]
                block.channels[kind].append(rank.builder.group(members, buffer, protocol))
            else:
                peer, count = rank.channels[kind][number]
                block.channels[kind].append(rank.builder.connect(_KINDS[kind], peer, count, protocol))
    for refs in fields.objects("remote_buffer_refs", []):
        kind = refs.text("access_channel_type", tuple(_KINDS))
        for number in refs.numbers("remote_buffer_ids", 0, _MOST):
            if number >= len(rank.remote):
                raise refs.wrong(f"names remote buffer {number}; the gpu has {len(rank.remote)}")
            peer, buffer, access = rank.remote[number]
            if kind not in access:
                raise refs.wrong(
                    f"names remote buffer {number} for {kind} channels; it is declared for {', '.join(access)}"
                )
            block.remote[kind].append((peer, buffer))
    for operation in fields.objects("ops"):
        _Operation(block, operation, losses).add()


@dataclass(frozen=True, slots=True)
class _Operand:
    via: int
    span: Span
    kind: str  # local, memory, port, switch


@dataclass(slots=True)
class _Operation:
    """One operation of a file."""

    block: _Block
    fields: Fields
    losses: Losses

    def add(self, inside: bool = False) -> None:
        """Appends it to the plan's block."""
        name = self.fields.text("name")
        known = TARGETS["mscclpp-0.10"].operations or frozenset()
        if name not in known:
            raise self.fields.wrong(f"has name {name[:40]!r}, which no release's executor knows")
        if name == "pipeline":
            self._pipeline(inside)
            return
        getattr(self, "_" + name)()

    # Operands

    @property
    def _kind(self) -> str:
        return self.fields.text("channel_type", ("memory", "port", "switch", "none"), "none")

    def _sides(self) -> tuple[list[_Operand], list[_Operand]]:
        return self._operands("src_buff"), self._operands("dst_buff")

    def _operands(self, side: str) -> list[_Operand]:
        return [self._operand(one) for one in self.fields.objects(side, [])]

    def _operand(self, one: Fields) -> _Operand:
        index, size = one.number("index", 0, _MOST_CHUNKS), one.number("size", 1, _MOST_CHUNKS)
        if one.has("switch_channel_id"):
            vias = self.block.channels["switch"]
            number = one.number("switch_channel_id", 0, _MOST)
            if number >= len(vias):
                raise one.wrong(f"names switch channel {number} of its block, which has {len(vias)}")
            builder = self.block.rank.builder
            return _Operand(vias[number], Span(builder.group_of(vias[number]).buffer, index, size), "switch")
        if one.has("buffer_id"):
            kind = self._kind
            if kind not in _KINDS:
                raise one.wrong("names a remote buffer, but its operation has no channel_type memory or port")
            remote = self.block.remote[kind]
            number = one.number("buffer_id", 0, _MOST)
            if number >= len(remote):
                raise one.wrong(
                    f"names remote buffer {number} of its block for {kind} channels, which has {len(remote)}"
                )
            peer, buffer = remote[number]
            via = self.block.rank.builder.connect(ConnectionKind.MAPPED, peer)
            return _Operand(via, Span(buffer, index, size), kind)
        return _Operand(LOCAL, Span(_BUFFERS[one.text("type", tuple(_BUFFERS))], index, size), "local")

    def _channels(self) -> list[int]:
        kind = self._kind
        if kind not in ("memory", "port", "switch"):
            raise self.fields.wrong("needs a channel_type")
        vias = self.block.channels[kind]
        numbers = self.fields.numbers("channel_ids", 0, _MOST)
        for number in numbers:
            if number >= len(vias):
                raise self.fields.wrong(f"names {kind} channel {number} of its block, which has {len(vias)}")
        if not 1 <= len(numbers) <= 256:
            raise self.fields.wrong(f"names {len(numbers)} channels; 1 to 256 are needed")
        return [vias[number] for number in numbers]

    def _how(self) -> dict[str, Any]:
        how: dict[str, Any] = {}
        if self.fields.has("tbg_info"):
            info = self.fields.object("tbg_info")
            parts = info.number("tbg_size", 1, 4096)
            how["share"] = (info.number("tb_id", 0, parts - 1), parts)
        if self.fields.has("reduce_op"):
            word = self.fields.text("reduce_op", tuple(_REDUCTIONS))
            how["reduction"] = _REDUCTIONS[word]
            if word != "sum":
                self.losses.add("reduce-op-ignored", None, f"{self.fields.at}: {word} is asked for; the executor adds")
        return how

    def _need(self, operands: Sequence[_Operand], kinds: tuple[str, ...], what: str) -> None:
        for one in operands:
            if one.kind not in kinds:
                raise self.fields.wrong(f"has a {one.kind} operand as {what}; {' or '.join(kinds)} is needed")

    def _pairs(self, sources: tuple[str, ...], targets: tuple[str, ...]) -> list[tuple[_Operand, _Operand]]:
        src, dst = self._sides()
        self._need(src, sources, "source")
        self._need(dst, targets, "target")
        if len(src) != len(dst) or not src:
            raise self.fields.wrong(
                f"has {len(src)} sources and {len(dst)} targets; as many of each, at least 1, are needed"
            )
        for one, other in zip(src, dst, strict=True):
            if one.span.count != other.span.count:
                raise self.fields.wrong(f"moves {one.span.count} chunks to {other.span.count}")
        return list(zip(src, dst, strict=True))

    def _add(self, op: Op, rows: Sequence[tuple[int, Span | None, Span | None]], **how: Any) -> None:
        if not 1 <= len(rows) <= 256:
            raise self.fields.wrong(f"has {len(rows)} operands; 1 to 256 are needed")
        self.block.builder.add(op, rows, **(self._how() | how))

    # Operations

    def _nop(self) -> None:
        self.block.builder.sync()

    def _barrier(self) -> None:
        self.block.builder.barrier(
            self.fields.number("barrier_id", 0, _MOST), self.fields.number("num_threadblocks", 0, _MOST)
        )

    def _copy(self) -> None:
        self._add(Op.COPY, [(LOCAL, a.span, b.span) for a, b in self._pairs(("local",), ("local",))])

    def _put(self, op: Op = Op.PUT) -> None:
        pairs = self._pairs(("local",), tuple(_KINDS))
        if self._kind == "memory":
            if op is not Op.PUT:
                self.losses.add(
                    "signal-left-out",
                    None,
                    f"{self.fields.at}: on memory channels the executor puts and does not signal",
                )
            first = pairs[0][0].span.buffer
            if any(a.span.buffer != first for a, _ in pairs):
                self.losses.add(
                    "mixed-sources",
                    None,
                    f"{self.fields.at}: the executor takes the buffer of the first source for all",
                )
            self._add(Op.PUT, [(b.via, replace(a.span, buffer=first), b.span) for a, b in pairs])
            return
        self._add(op, [(via, a.span, b.span) for via, (a, b) in zip(self._ports(pairs), pairs, strict=True)])

    def _ports(self, pairs: Sequence[tuple[_Operand, _Operand]]) -> list[int]:
        """The channel of each pair; it must lead to the rank whose buffer is written."""
        vias = self._channels()
        if len(vias) != len(pairs):
            raise self.fields.wrong(f"has {len(pairs)} targets on {len(vias)} channels")
        builder = self.block.rank.builder
        for via, (_, target) in zip(vias, pairs, strict=True):
            if builder.peer_of(via) != builder.peer_of(target.via):
                raise self.fields.wrong(
                    f"writes to a buffer of rank {builder.peer_of(target.via)} on a channel to rank {builder.peer_of(via)}"
                )
        return vias

    def _pws(self) -> None:
        self._put(Op.PUT_SIGNAL)

    def _pwsf(self) -> None:
        self._put(Op.PUT_SIGNAL_FLUSH)

    def _get(self) -> None:
        rows = []
        for a, b in self._pairs(("memory",), ("local",)):
            if a.span.index != b.span.index:
                self.losses.add(
                    "get-offsets",
                    None,
                    f"{self.fields.at}: the executor takes the source's index for the local side, and the other way round",
                )
            rows.append((a.via, replace(a.span, index=b.span.index), replace(b.span, index=a.span.index)))
        self._add(Op.GET, rows)

    def _signal(self, order: Order = Order.RELEASE) -> None:
        self._add(Op.SIGNAL, [(via, None, None) for via in self._channels()], order=order)

    def _rlxsignal(self) -> None:
        self._signal(Order.RELAXED)

    def _wait(self, order: Order = Order.ACQUIRE) -> None:
        self._add(Op.WAIT, [(via, None, None) for via in self._channels()], order=order)

    def _rlxwait(self) -> None:
        self._wait(Order.RELAXED)

    def _flush(self) -> None:
        self.losses.add(
            "flush-does-nothing",
            None,
            f"{self.fields.at}: the executor goes through the targets of a flush, which has none",
        )

    def _reduce(self, op: Op, sources: tuple[str, ...], targets: tuple[str, ...]) -> None:
        src, dst = self._sides()
        if not src or not dst:
            raise self.fields.wrong("needs a source and a target")
        self._need([src[0], dst[0]], ("local",), "first operand")
        self._need(src[1:], sources, "further source")
        self._need(dst[1:], targets, "further target")
        if any(one.span.count != src[0].span.count for one in (*src, *dst)):
            raise self.fields.wrong("has operands of different sizes")
        rows = [(LOCAL, src[0].span, dst[0].span), *((one.via, one.span, None) for one in src[1:])]
        self._add(op, [*rows, *((one.via, None, one.span) for one in dst[1:])])

    def _re(self) -> None:
        self._reduce(Op.REDUCE, ("local",), ())

    def _res(self) -> None:
        self._reduce(Op.REDUCE, ("local",), ("memory",))

    def _rre(self) -> None:
        self._reduce(Op.REDUCE, ("memory",), ())

    def _rres(self) -> None:
        self._reduce(Op.REDUCE, ("memory",), ("memory",))

    def _cpkt(self) -> None:
        self._add(Op.PACK, [(LOCAL, a.span, b.span) for a, b in self._pairs(("local",), ("local",))])

    def _upkt(self) -> None:
        self._add(Op.UNPACK, [(LOCAL, a.span, b.span) for a, b in self._pairs(("local",), ("local",))])

    def _ppkt(self, op: Op = Op.PUT_PACKETS) -> None:
        pairs = self._pairs(("local",), tuple(_KINDS))
        vias = self._ports(pairs) if self._kind == "port" else [b.via for _, b in pairs]
        self._add(op, [(via, a.span, b.span) for via, (a, b) in zip(vias, pairs, strict=True)])

    def _rppkt(self) -> None:
        src, dst = self._sides()
        if len(src) == 1 and len(dst) > 1:  # one source goes to all targets
            self.fields.value["src_buff"] = self.fields.value["src_buff"] * len(dst)
        self._ppkt(Op.FORWARD_PACKETS)

    def _repkt(self) -> None:
        self._reduce(Op.REDUCE_PACKETS, ("local",), ())

    def _respkt(self) -> None:
        self._reduce(Op.REDUCE_PACKETS, ("local",), ("memory",))

    def _recpkt(self) -> None:
        self._reduce(Op.REDUCE_PACKETS, ("local",), ("local",))

    def _recspkt(self) -> None:
        self._reduce(Op.REDUCE_PACKETS, ("local",), ("local", "memory"))

    def _glres(self) -> None:
        rows = [(a.via, a.span, b.span) for a, b in self._pairs(("switch",), ("switch",)) if self._same(a, b)]
        self._add(Op.GROUP_REDUCE_MULTICAST, rows)

    def _same(self, a: _Operand, b: _Operand) -> bool:
        if a.via != b.via:
            raise self.fields.wrong("reads from one group and writes to another, which a plan does not say")
        return True

    def _gstore(self, op: Op = Op.MULTICAST) -> None:
        self._add(op, [(b.via, a.span, b.span) for a, b in self._pairs(("local",), ("switch",))])

    def _gstorepkt(self) -> None:
        self._gstore(Op.MULTICAST_PACKETS)

    def _semaphores(self) -> list[int]:
        numbers = self.fields.numbers("semaphore_ids", 0, _MOST)
        for number in numbers:
            if number >= self.block.rank.semaphores:
                raise self.fields.wrong(f"names semaphore {number}; the gpu has {self.block.rank.semaphores}")
        if not 1 <= len(numbers) <= 256:
            raise self.fields.wrong(f"names {len(numbers)} semaphores")
        return numbers

    def _sem_acquire(self) -> None:
        self.block.builder.acquire(*self._semaphores())

    def _sem_release(self) -> None:
        self.block.builder.release(*self._semaphores())

    def _pipeline(self, inside: bool) -> None:
        if inside:
            raise self.fields.wrong("is a pipeline within a pipeline")
        context = self.fields.object("iter_context")
        with self.block.builder.slices(
            context.number("unit_size", 1, _MOST), context.number("num_chunks", 1, _MOST_CHUNKS)
        ):
            for operation in self.fields.objects("ops"):
                _Operation(self.block, operation, self.losses).add(inside=True)


# Writing


def _cannot(target: Target, what: str) -> Violation:
    return Violation("target-cannot-say", f"{target.name} can't say {what}")


def _name(op: Op, order: Order, remote_sources: bool, targets: tuple[bool, bool]) -> str:
    """The executor's word. targets: whether there are further local, further remote targets."""
    simple = {
        Op.SYNC: "nop",
        Op.BARRIER: "barrier",
        Op.COPY: "copy",
        Op.PUT: "put",
        Op.PUT_SIGNAL: "pws",
        Op.PUT_SIGNAL_FLUSH: "pwsf",
        Op.GET: "get",
        Op.FLUSH: "flush",
        Op.PACK: "cpkt",
        Op.UNPACK: "upkt",
        Op.PUT_PACKETS: "ppkt",
        Op.FORWARD_PACKETS: "rppkt",
        Op.GROUP_REDUCE: "glre",
        Op.GROUP_REDUCE_MULTICAST: "glres",
        Op.MULTICAST: "gstore",
        Op.MULTICAST_PACKETS: "gstorepkt",
        Op.RELEASE: "sem_release",
        Op.ACQUIRE: "sem_acquire",
        Op.SLICES: "pipeline",
    }
    if op in simple:
        return simple[op]
    if op in (Op.SIGNAL, Op.WAIT):
        return ("rlx" if order is Order.RELAXED else "") + op.name.lower()
    if op is Op.REDUCE:
        return ("rres" if targets[1] else "rre") if remote_sources else ("res" if targets[1] else "re")
    if op is Op.REDUCE_PACKETS:
        return f"re{'c' if targets[0] else ''}{'s' if targets[1] else ''}pkt"
    return op.name


def _named(rows: Columns) -> Iterator[tuple[str, Columns]]:
    """Instructions of a block as the executor's words and their rows."""
    place = 0
    while place < len(rows):
        mine = rows[place : place + 1 + int(rows[place]["more"])]
        op, more = Op(int(mine[0]["op"])), mine[1:]
        remote = bool(((more["src_buffer"] != Buffer.NONE) & (more["via"] != LOCAL)).any())
        wrote = more["dst_buffer"] != Buffer.NONE
        targets = bool((wrote & (more["via"] == LOCAL)).any()), bool((wrote & (more["via"] != LOCAL)).any())
        yield _name(op, Order(int(mine[0]["order"])), remote, targets), mine
        place += len(mine)


def _names(rank: RankPlan) -> Iterator[str]:
    for block in range(len(rank.blocks)):
        for name, _ in _named(rank.rows(block)):
            yield name


def write_mscclpp_json(plan: Plan, target: Target) -> tuple[str, list[Violation]]:
    """The file, and all that the target can't say or take; the file is of use only if that list is empty.

    Loops are written out. Of a plan without loops whose stores and loads on memory channels go through MAPPED connections, reading the file
    gives the same plan again.
    """
    violations = list(_header_violations(plan, target))
    if target.first_kind:
        return write_first_kind(plan, target, violations)
    gpus = [_Writer(plan, target, rank.unrolled(), violations).gpu() for rank in plan]
    top = {
        "name": plan.name,
        "collective": target.word(plan.collective) or plan.collective,
        "protocol": "LL" if plan.protocol is Protocol.LL else "Simple",
        "inplace": plan.in_place,
        "reuse_resources": plan.shared_scratch,
        "gpus": gpus,
        "num_threads_per_block": plan.threads_per_block or _THREADS,
        "use_double_scratch_buffer": plan.double_scratch,
        "buffer_alignment": plan.alignment_bytes,
        "min_message_size": plan.min_bytes,
        "max_message_size": _NO_LIMIT if plan.max_bytes is None else plan.max_bytes,
    }
    return json.dumps(top, indent=1) + "\n", violations


def _header_violations(plan: Plan, target: Target) -> Iterator[Violation]:
    if target.word(plan.collective) is None:
        yield _cannot(target, f"the collective {plan.collective}")
    if plan.protocol not in (Protocol.SIMPLE, Protocol.LL):
        yield _cannot(target, f"the protocol {plan.protocol.name}")
    if plan.in_place and plan.out_of_place:
        yield _cannot(target, "both in place and out of place: inplace says one of them")
    if plan.blocks_in_order:
        yield _cannot(
            target,
            "blocks that run in order of themselves: put a SYNC where one instruction needs another, and set blocks_in_order to false",
        )
    used = {Op(int(op)) for rank in plan for op in set(rank.instructions["op"].tolist())}
    if plan.protocol is not Protocol.LL and used & set(_PACKET_OPS):
        yield _cannot(target, "packets in a plan whose protocol is not LL: its scratch has no room for their flags")


@dataclass(slots=True)
class _Writer:
    """Writes one gpu."""

    plan: Plan
    target: Target
    rank: RankPlan
    violations: list[Violation]
    channels: dict[str, list[int]] = field(default_factory=lambda: {"memory": [], "port": []})  # peers
    remote: dict[tuple[int, int], list[str]] = field(default_factory=dict)  # (rank, buffer) -> access types
    told: set[str] = field(default_factory=set)

    def cannot(self, what: str, rows: Columns | None = None, mend: str = "") -> None:
        """Tells it once a rank, with the operation and how to mend it, if they are given."""
        if what not in self.told:
            self.told.add(what)
            where = f"rank {self.rank.rank}" + (f": {row_in_words(self.rank, rows, 0)}" if rows is not None else "")
            self.violations.append(_cannot(self.target, f"{what} ({where}){'. ' + mend if mend else ''}"))

    def gpu(self) -> dict[str, Any]:
        """The gpu."""
        self._declare_channels()
        blocks = [self._block(block) for block in range(len(self.rank.blocks))]
        self.violations += limit_violation(
            self.target, "blocks", len(blocks), self.target.blocks_per_rank, f"rank {self.rank.rank}"
        )
        channels: list[dict[str, Any]] = [
            {"channel_type": kind, "connected_to": peers} for kind, peers in self.channels.items() if peers
        ]
        channels += [
            {
                "channel_type": "switch",
                "buffer_type": _LETTERS[int(group.buffer)],
                "rank_groups": [{"size": len(group.ranks), "ranks": list(group.ranks)}],
            }
            for group in self.rank.groups
        ]
        return {
            "id": self.rank.rank,
            "input_chunks": self.rank.input_chunks,
            "output_chunks": self.rank.output_chunks,
            "scratch_chunks": self.rank.scratch_chunks,
            "threadblocks": blocks,
            "channels": channels,
            "remote_buffers": [
                {"rank": peer, "type": _LETTERS[buffer], "access_channel_types": access}
                for (peer, buffer), access in self.remote.items()
            ],
            "semaphores": [{"init_value": value} for value in self.rank.semaphores],
        }

    def _declare_channels(self) -> None:
        """Each peer as often as its highest channel says: the nth of a peer is its nth occurrence."""
        for kind, connection in _KINDS.items():
            table = self.rank.connections[self.rank.connections["kind"] == connection]
            peers = list(dict.fromkeys(table["peer"].tolist()))
            self.channels[kind] = [
                peer for peer in peers for _ in range(int(table["channel"][table["peer"] == peer].max()) + 1)
            ]

    def _channel(self, via: int) -> int:
        """Global id of a channel."""
        connection = self.rank.connections[via]
        kind = "memory" if connection["kind"] == ConnectionKind.MEMORY else "port"
        return self.channels[kind].index(int(connection["peer"])) + int(connection["channel"])

    def _block(self, number: int) -> dict[str, Any]:
        block = _BlockWriter(self)
        rows = self.rank.rows(number)
        ops: list[dict[str, Any]] = []
        into, ends, place, steps = ops, -1, 0, 0
        for name, mine in _named(rows):
            if place == ends:
                into = ops
            place += len(mine)
            op = Op(int(mine[0]["op"]))
            if op is Op.SLICES:
                into = []
                ends = place + int(mine[0]["dst"])
                context = {"unit_size": int(mine[0]["src"]), "num_chunks": int(mine[0]["count"])}
                ops.append({"name": name, "iter_context": context, "ops": into})
                steps += 1
                if ends == place:
                    into = ops
                continue
            written = block.operation(op, name, mine)
            if written is not None:
                into.append(written)
                steps += 1
        where = f"rank {self.rank.rank} block {number}"
        self.violations += limit_violation(self.target, "operations", steps, self.target.steps_per_block, where)
        for kind, ids in (*block.channels.items(), *((f"remote {kind}", ids) for kind, ids in block.remote.items())):
            self.violations += limit_violation(
                self.target, f"{kind} channels or buffers", len(ids), self.target.channels_per_block, where
            )
        return {
            "id": number,
            "ops": ops,
            "channels": [{"channel_type": kind, "channel_ids": ids} for kind, ids in block.channels.items() if ids],
            "remote_buffer_refs": [
                {"access_channel_type": kind, "remote_buffer_ids": ids} for kind, ids in block.remote.items() if ids
            ],
        }


class _BlockWriter:
    def __init__(self, rank: _Writer) -> None:
        self.rank = rank
        self.channels: dict[str, list[int]] = {"memory": [], "port": [], "switch": []}
        self.remote: dict[str, list[int]] = {"memory": [], "port": []}

    @staticmethod
    def _place(ids: list[int], number: int) -> int:
        if number not in ids:
            ids.append(number)
        return ids.index(number)

    def _connection(self, via: int) -> tuple[ConnectionKind, int]:
        table = self.rank.rank.connections
        if not 0 <= via < len(table):
            return ConnectionKind.MAPPED, -1
        return ConnectionKind(int(table[via]["kind"])), int(table[via]["peer"])

    def operation(self, op: Op, name: str, rows: Columns) -> dict[str, Any] | None:
        """The operation as JSON; None if the target has no word for it."""
        target, writer = self.rank.target, self.rank
        if target.operations is not None and name not in target.operations:
            writer.cannot(f"{op.name} ({name})" if name != op.name else name, rows, MEND.get(op, ""))
            return None
        if op is Op.FLUSH:
            writer.cannot("FLUSH: its executor's flush does nothing; use PUT_SIGNAL_FLUSH")
            return None
        out: dict[str, Any] = {"name": name}
        if op is Op.BARRIER:
            if target.barriers is not None and rows[0]["via"] >= target.barriers:
                writer.cannot(f"barrier {rows[0]['via']}: there are {target.barriers}")
            return out | {"barrier_id": int(rows[0]["via"]), "num_threadblocks": int(rows[0]["count"])}
        if op in (Op.RELEASE, Op.ACQUIRE):
            self._order(op, rows[0], Order.RELEASE if op is Op.RELEASE else Order.ACQUIRE)
            writer.violations += limit_violation(
                target, "semaphores", len(rows), target.semaphores_per_operation, f"{name} of rank {writer.rank.rank}"
            )
            return out | {"semaphore_ids": rows["via"].tolist()}
        if op is Op.SYNC:
            return out
        kinds = {self._connection(int(via))[0] for via in rows["via"].tolist() if via != LOCAL}
        if op in (Op.SIGNAL, Op.WAIT):
            return self._channel_operation(out, rows, kinds)
        src = [self._operand(op, row, "src") for row in rows if row["src_buffer"] != Buffer.NONE]
        dst = [self._operand(op, row, "dst") for row in rows if row["dst_buffer"] != Buffer.NONE]
        out |= {"src_buff": src, "dst_buff": dst}
        self._check_operands(op, name, rows, kinds, max(len(src), len(dst)))
        if kinds:
            switch, port = ConnectionKind.SWITCH in kinds, ConnectionKind.PORT in kinds
            out["channel_type"] = "switch" if switch else "port" if port else "memory"
            if port:
                out["channel_ids"] = [
                    self._place(self.channels["port"], writer._channel(int(via))) for via in rows["via"].tolist()
                ]
            if switch:
                out["channel_ids"] = [self._switch(int(rows[0]["via"]))]
        reduction = Reduction(int(rows[0]["reduction"]))
        if reduction is not Reduction.CALL:
            out["reduce_op"] = reduction.name.lower()
            if reduction is not Reduction.SUM:
                writer.cannot(f"a reduction by {reduction.name}: its executor adds whatever is asked for")
        walk = writer.rank.walks[rows[0]["walk"]]
        if walk["parts"] > 1:
            out["tbg_info"] = {"tb_id": int(walk["part"]), "tbg_size": int(walk["parts"])}
        return out

    def _check_operands(self, op: Op, name: str, rows: Columns, kinds: set[ConnectionKind], operands: int) -> None:
        writer, target = self.rank, self.rank.target
        where = f"{name} of rank {writer.rank.rank}"
        writer.violations += limit_violation(target, "operands a side", operands, target.operands_per_side, where)
        if (
            len(
                {kind for kind in kinds if kind is not ConnectionKind.MAPPED}
                | ({ConnectionKind.MEMORY} if ConnectionKind.MAPPED in kinds else set())
            )
            > 1
        ):
            writer.cannot(f"{name} with connections of several kinds")
        if op in (Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH) and kinds != {ConnectionKind.PORT}:
            writer.cannot(f"{op.name} on memory channels: its executor would not signal; use PUT, SYNC, SIGNAL")
        if op is Op.PUT and ConnectionKind.PORT not in kinds and len(set(rows["src_buffer"].tolist())) > 1:
            writer.cannot("a PUT on memory channels from several buffers: its executor takes the first one's for all")
        if op is Op.GET and (rows["src"] != rows["dst"]).any():
            writer.cannot("a GET from one index to another: its executor mixes them up")
        if op in (Op.GET, Op.REDUCE, Op.REDUCE_PACKETS) and ConnectionKind.PORT in kinds:
            writer.cannot(f"{op.name} through a port")
        if op is Op.REDUCE:
            more = rows[1:]
            mixed = (more["src_buffer"] != Buffer.NONE) & (more["via"] == LOCAL)
            if name.startswith("rr") and mixed.any():
                writer.cannot("a reduction of local and remote chunks at once")
            if ((more["dst_buffer"] != Buffer.NONE) & (more["via"] == LOCAL)).any():
                writer.cannot("a reduction into several local places")
        if op is Op.REDUCE_PACKETS and ((rows[1:]["src_buffer"] != Buffer.NONE) & (rows[1:]["via"] != LOCAL)).any():
            writer.cannot("packets read from a peer")
        if op is Op.FORWARD_PACKETS and len({(int(row["src_buffer"]), int(row["src"])) for row in rows}) > 1:
            writer.cannot("FORWARD_PACKETS of several sources")
        walks = writer.rank.walks[rows["walk"]]
        if len(set(zip(walks["part"].tolist(), walks["parts"].tolist(), strict=True))) > 1:
            writer.cannot("operands of one operation shared in several ways")

    def _order(self, op: Op, row: Columns, order: Order) -> None:
        if row["order"] != order:
            self.rank.cannot(f"a {Order(int(row['order'])).name.lower()} {op.name}")

    def _channel_operation(
        self, out: dict[str, Any], rows: Columns, kinds: set[ConnectionKind]
    ) -> dict[str, Any] | None:
        target = self.rank.target
        if kinds not in ({ConnectionKind.MEMORY}, {ConnectionKind.PORT}):
            self.rank.cannot(f"{out['name']} on connections of kind {', '.join(sorted(kind.name for kind in kinds))}")
            return None
        word = "memory" if kinds == {ConnectionKind.MEMORY} else "port"
        where = f"{out['name']} of rank {self.rank.rank.rank}"
        self.rank.violations += limit_violation(target, "channels", len(rows), target.channels_per_operation, where)
        ids = [self._place(self.channels[word], self.rank._channel(int(via))) for via in rows["via"].tolist()]
        return out | {"channel_ids": ids, "channel_type": word}

    def _switch(self, via: int) -> int:
        return self._place(self.channels["switch"], self._connection(via)[1])

    def _operand(self, op: Op, row: Columns, side: str) -> dict[str, Any]:
        buffer, place = int(row[f"{side}_buffer"]), {"index": int(row[side]), "size": int(row["count"])}
        via = int(row["via"])
        kind, peer = self._connection(via)
        if via == LOCAL:
            return {"type": _LETTERS[buffer], **place}
        if kind is ConnectionKind.SWITCH:
            if op in (Op.MULTICAST, Op.MULTICAST_PACKETS) and side == "src":
                return {"type": _LETTERS[buffer], **place}
            return {"switch_channel_id": self._switch(via), **place}
        peers_side = {Op.GET: "src", Op.REDUCE: side, Op.REDUCE_PACKETS: side}.get(op, "dst")
        if side != peers_side:
            return {"type": _LETTERS[buffer], **place}
        access = "port" if kind is ConnectionKind.PORT else "memory"
        known = self.rank.remote.setdefault((peer, buffer), [])
        if access not in known:
            known.append(access)
        number = list(self.rank.remote).index((peer, buffer))
        return {"buffer_id": self._place(self.remote[access], number), **place}
