"""MSCCL++ execution plans of the first kind (releases 0.5 to 0.7), as their executor reads them.

A channel joins a buffer here with a buffer there; an operation names channels by their number among the block's channels of the same buffers
and type. `put` and `get` move between the buffers of their channel. One `cnt` holds for the whole operation.
Source: microsoft/mscclpp 334b232e, src/executor/execution_plan.cc and src/include/execution_kernel.hpp.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from busbw.collectives.exchange.json_fields import Fields
from busbw.collectives.exchange.targets import TARGETS, Target, limit_violation
from busbw.collectives.legality import Violation, row_in_words
from busbw.collectives.plan import (
    LOCAL,
    BlockBuilder,
    Buffer,
    Columns,
    ConnectionKind,
    Op,
    Plan,
    Protocol,
    RankBuilder,
    RankPlan,
    Reduction,
    Span,
    held_plan,
)
from busbw.errors import Loss, Losses

__all__ = ["MEND", "read_first_kind", "write_first_kind"]

_BUFFERS = {"i": Buffer.INPUT, "o": Buffer.OUTPUT, "s": Buffer.SCRATCH}
_LETTERS = {int(buffer): letter for letter, buffer in _BUFFERS.items()}
_TYPES = {"memory": "memory", "sm": "memory", "port": "port", "proxy": "port", "nvls": "nvls"}
_KINDS = {"memory": ConnectionKind.MEMORY, "port": ConnectionKind.PORT}
_PROTOCOLS = {"Simple": Protocol.SIMPLE, "LL": Protocol.LL}
_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "alltoall": "all_to_all",
}
_MOST_CHUNKS = 1 << 20
_MOST = 2**31 - 1
_NO_LIMIT = 2**64 - 1
_THREADS = 1024
_RELEASES = ("mscclpp-0.5", "mscclpp-0.6", "mscclpp-0.7")

MEND = {
    Op.GROUP_REDUCE: "Its executor adds in the switch only if the switch stores the sum, too: take nvls_all_reduce, or a schedule of sends such as direct_reduce_scatter",
    Op.MULTICAST: "Write it for mscclpp-0.10, or take a schedule of sends such as direct_all_gather",
    Op.ACQUIRE: "Its blocks can't wait for each other one way: write it for mscclpp-0.10",
    Op.RELEASE: "Its blocks can't wait for each other one way: write it for mscclpp-0.10",
    Op.BARRIER: "Its blocks can't meet: write it for mscclpp-0.6 or later, or take fewer slices, so that one block holds it",
}
"""How to mend what no word of a release says."""
_Key = tuple[str, str, str]  # buffer here, buffer there, type


@dataclass(slots=True)
class _Block:
    builder: BlockBuilder
    rank: RankBuilder
    channels: dict[_Key, list[tuple[int, int]]] = field(default_factory=dict)  # (via, peer) of this block's channels
    protocol: Protocol = Protocol.SIMPLE


def read_first_kind(
    top: Fields, gpus: list[Fields], losses: Losses, target: str | None
) -> tuple[Plan, Target, list[Loss]]:
    """The plan, the release it is for, and what was lost: `custom-collective`, `chunk-groups`, `mixed-sources`, `flush-does-nothing`."""
    word = top.text("collective")
    if word not in _COLLECTIVES:
        losses.add("custom-collective", None, f"{word[:40]}: what it promises is not known; it is read as custom")
    protocol = _PROTOCOLS[top.text("protocol", tuple(_PROTOCOLS))]
    used: set[str] = set()
    ranks = [_gpu(gpu, place, len(gpus), protocol, losses, used) for place, gpu in enumerate(gpus)]
    most = top.number("max_message_size", 0, _NO_LIMIT, _NO_LIMIT)
    plan = held_plan(
        ranks,
        name=top.text("name"),
        collective=_COLLECTIVES.get(word, "custom"),
        chunks=max(max(rank.input_chunks, rank.output_chunks) for rank in ranks),
        in_place=top.flag("inplace"),
        out_of_place=not top.flag("inplace"),
        protocol=protocol,
        blocks_in_order=False,
        min_bytes=top.number("min_message_size", 0, _NO_LIMIT, 0),
        max_bytes=None if most == _NO_LIMIT else most,
        threads_per_block=top.number("num_threads_per_block", 1, 1024, _THREADS),
        alignment_bytes=16,
        double_scratch=protocol is Protocol.LL,
    )
    first = next((name for name in _RELEASES if used <= (TARGETS[name].operations or set())), _RELEASES[-1])
    return plan, TARGETS[target or first], list(losses)


def _gpu(gpu: Fields, place: int, ranks: int, protocol: Protocol, losses: Losses, used: set[str]) -> RankPlan:  # noqa: PLR0917
    if gpu.number("id", 0, _MOST) != place:
        raise gpu.wrong(f"has id {gpu.value['id']}; gpus are listed in order, so {place} is needed")
    inputs, outputs, scratch = (gpu.number(f"{name}Chunks", 0, _MOST_CHUNKS) for name in ("input", "output", "scratch"))
    if not inputs and not outputs:
        raise gpu.wrong("has neither input nor output chunks")
    if gpu.number("chunkGroups", 1, _MOST_CHUNKS, 1) != 1:
        losses.add(
            "chunk-groups", None, f"{gpu.at}: groups of chunks differ in where remainders go; a plan's chunks are equal"
        )
    rank = RankBuilder(place, inputs, outputs, scratch)
    channels: dict[_Key, list[tuple[int, int]]] = {}
    met: dict[tuple[str, int], int] = {}
    for channel in gpu.objects("channels", []):
        kind = _TYPES[channel.text("type", tuple(_TYPES))]
        if kind == "nvls":
            letter = channel.text("buff", tuple(_BUFFERS))
            for group in channel.objects("rankGroups"):
                members = tuple(group.numbers("ranks", 0, ranks - 1))
                if place not in members or len(set(members)) != len(members):
                    raise group.wrong(f"has ranks {members}: rank {place} must be in it, and each once")
                channels.setdefault((letter, letter, kind), []).append(
                    (rank.group(members, _BUFFERS[letter], protocol), -1)
                )
            continue
        key = (channel.text("srcbuff", tuple(_BUFFERS)), channel.text("dstbuff", tuple(_BUFFERS)), kind)
        for peer in channel.numbers("connectedTo", 0, ranks - 1):
            if peer == place:
                raise channel.wrong(f"connects rank {place} to itself")
            number = met.get((kind, peer), 0)
            met[kind, peer] = number + 1
            channels.setdefault(key, []).append((rank.connect(_KINDS[kind], peer, number, protocol), peer))
    for number, fields in enumerate(gpu.objects("threadblocks")):
        if fields.number("id", 0, _MOST) != number:
            raise fields.wrong(f"has id {fields.value['id']}; blocks are numbered in order, so {number} is needed")
        block = _Block(rank.block(), rank, protocol=protocol)
        for channel in fields.objects("channels", []):
            key = (
                channel.text("src", tuple(_BUFFERS)),
                channel.text("dst", tuple(_BUFFERS)),
                _TYPES[channel.text("ctype", tuple(_TYPES))],
            )
            for place_ in channel.numbers("cids", 0, _MOST):
                if place_ >= len(channels.get(key, [])):
                    raise channel.wrong(
                        f"names channel {place_} from {key[0]} to {key[1]} of type {key[2]}; the gpu has {len(channels.get(key, []))}"
                    )
                block.channels.setdefault(key, []).append(channels[key][place_])
        for operation in fields.objects("ops"):
            _Operation(block, operation, losses).add(used)
    return rank.build()


@dataclass(slots=True)
class _Operation:
    """One operation of a file."""

    block: _Block
    fields: Fields
    losses: Losses

    def add(self, used: set[str]) -> None:
        """Appends it to the plan's block."""
        name = self.fields.text("name")
        known = {word for release in _RELEASES for word in TARGETS[release].operations or ()}
        if name not in known:
            raise self.fields.wrong(f"has name {name[:40]!r}, which no release's executor knows")
        used.add(name)
        getattr(self, "_" + name)()

    def _count(self) -> int:
        return self.fields.number("cnt", 1, _MOST_CHUNKS)

    def _buffer(self, name: str) -> Buffer:
        return _BUFFERS[self.fields.text(name, tuple(_BUFFERS))]

    def _span(self, side: str) -> Span:
        return Span(self._buffer(f"{side}buff"), self.fields.number(f"{side}off", 0, _MOST_CHUNKS), self._count())

    def _kind(self) -> str:
        return _TYPES[self.fields.text("ctype", tuple(_TYPES))]

    def _ways(self, side: str) -> Iterator[tuple[int, int, Buffer, Buffer, int]]:
        """(via, peer, buffer here, buffer there, index) of each channel operand."""
        buffers = self.fields.object(f"{side}_buff")
        key = (buffers.text("src", tuple(_BUFFERS)), buffers.text("dst", tuple(_BUFFERS)), self._kind())
        known = self.block.channels.get(key, [])
        for one in self.fields.objects(f"{side}_cids"):
            number = one.number("id", 0, _MOST)
            if number >= len(known):
                raise one.wrong(
                    f"names channel {number} from {key[0]} to {key[1]} of its block, which has {len(known)}"
                )
            via, peer = known[number]
            yield via, peer, _BUFFERS[key[0]], _BUFFERS[key[1]], one.number("off", 0, _MOST_CHUNKS, 0)

    def _locals(self, side: str) -> list[Span]:
        spans = [
            Span(_BUFFERS[one.text("buff", tuple(_BUFFERS))], one.number("off", 0, _MOST_CHUNKS), self._count())
            for one in self.fields.objects(side)
        ]
        if any(span.buffer != spans[0].buffer for span in spans):
            self.losses.add(
                "mixed-sources", None, f"{self.fields.at}: the executor takes the first one's buffer for all"
            )
        return [Span(spans[0].buffer, span.index, span.count) for span in spans]

    def _mapped(self, via: int, peer: int) -> int:
        return via if self._kind() == "port" else self.block.rank.connect(ConnectionKind.MAPPED, peer)

    def _add(self, op: Op, rows: list[tuple[int, Span | None, Span | None]], **how: Any) -> None:
        if not 1 <= len(rows) <= 256:
            raise self.fields.wrong(f"has {len(rows)} operands; 1 to 256 are needed")
        self.block.builder.add(op, rows, **how)

    def _nop(self) -> None:
        self.block.builder.sync()

    def _barrier(self) -> None:
        self.block.builder.barrier(
            self.fields.number("barrier_id", 0, _MOST), self.fields.number("nthread_blocks", 0, _MOST)
        )

    def _put(self, op: Op = Op.PUT) -> None:
        ways, sources = list(self._ways("o")), self._locals("srcs")
        if len(ways) != len(sources):
            raise self.fields.wrong(f"has {len(sources)} sources and {len(ways)} channels")
        if op in (Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH) and self._kind() != "port":
            self.losses.add(
                "signal-left-out", None, f"{self.fields.at}: on memory channels the executor puts and does not signal"
            )
            op = Op.PUT
        rows: list[tuple[int, Span | None, Span | None]] = []
        for (via, peer, here, there, index), src in zip(ways, sources, strict=True):
            if here != src.buffer:
                self.losses.add(
                    "mixed-sources", None, f"{self.fields.at}: the channel's own buffer is read, whatever srcs says"
                )
            rows.append((self._mapped(via, peer), Span(here, src.index, src.count), Span(there, index, src.count)))
        self._add(op, rows)

    def _pws(self) -> None:
        self._put(Op.PUT_SIGNAL)

    def _pwsf(self) -> None:
        self._put(Op.PUT_SIGNAL_FLUSH)

    def _get(self) -> None:
        ways, targets = list(self._ways("i")), self._locals("dsts")
        if len(ways) != len(targets):
            raise self.fields.wrong(f"has {len(ways)} channels and {len(targets)} targets")
        self._add(
            Op.GET,
            [
                (self._mapped(via, peer), Span(there, index, dst.count), Span(here, dst.index, dst.count))
                for (via, peer, here, there, index), dst in zip(ways, targets, strict=True)
            ],
        )

    def _signal(self) -> None:
        self.block.builder.signal(*self._vias("o"))

    def _wait(self) -> None:
        self.block.builder.wait(*self._vias("i"))

    def _vias(self, side: str) -> list[int]:
        vias = [way[0] for way in self._ways(side)]
        if not 1 <= len(vias) <= 256 or self._kind() == "nvls":
            raise self.fields.wrong("needs 1 to 256 memory or port channels")
        return vias

    def _flush(self) -> None:
        self.block.builder.flush(*self._vias("o"))

    def _copy(self) -> None:
        self._add(Op.COPY, [(LOCAL, self._span("src"), self._span("dst"))])

    def _cpkt(self) -> None:
        self._add(Op.UNPACK, [(LOCAL, self._span("src"), self._span("dst"))])

    def _tpkt(self) -> None:
        self._add(Op.PACK, [(LOCAL, self._span("src"), self._span("dst"))])

    def _ppkt(self, op: Op = Op.PUT_PACKETS) -> None:
        ways, sources = list(self._ways("o")), self._locals("srcs")
        if len(sources) == 1:
            sources *= len(ways)
        if len(ways) != len(sources):
            raise self.fields.wrong(f"has {len(sources)} sources and {len(ways)} channels")
        self._add(
            op,
            [
                (self._mapped(via, peer), src, Span(there, index, src.count))
                for (via, peer, _, there, index), src in zip(ways, sources, strict=True)
            ],
        )

    def _rppkt(self) -> None:
        self._ppkt(Op.FORWARD_PACKETS)

    def _reduced(self, op: Op, sources: bool, sends: bool) -> None:
        rows: list[tuple[int, Span | None, Span | None]] = [(LOCAL, self._span("src"), self._span("dst"))]
        count = self._count()
        if sources:
            rows += [(LOCAL, span, None) for span in self._locals("srcs")]
        else:
            rows += [
                (self._mapped(via, peer), Span(there, index, count), None)
                for via, peer, _, there, index in self._ways("i")
            ]
        if sends:
            rows += [
                (self._mapped(via, peer), None, Span(there, index, count))
                for via, peer, _, there, index in self._ways("o")
            ]
        self._add(op, rows)

    def _re(self) -> None:
        self._reduced(Op.REDUCE, True, False)

    def _rs(self) -> None:
        self._reduced(Op.REDUCE, True, True)

    def _rrc(self) -> None:
        self._reduced(Op.REDUCE, False, False)

    def _rrcs(self) -> None:
        self._reduced(Op.REDUCE, False, True)

    def _rpkt(self) -> None:
        self._reduced(Op.REDUCE_PACKETS, True, False)

    def _rspkt(self) -> None:
        self._reduced(Op.REDUCE_PACKETS, True, True)

    def _glres(self) -> None:
        letter = self.fields.text("srcbuff", tuple(_BUFFERS))
        other = self.fields.text("dstbuff", tuple(_BUFFERS))
        ids = [next(self.fields.objects(f"{side}_cids"), None) for side in ("i", "o")]
        known = self.block.channels.get((letter, letter, "nvls"), [])
        numbers = [one.number("id", 0, _MOST) if one is not None else _MOST for one in ids]
        if letter != other or numbers[0] != numbers[1] or numbers[0] >= len(known):
            raise self.fields.wrong("needs one group of its block, the same to read and to write")
        self._add(Op.GROUP_REDUCE_MULTICAST, [(known[numbers[0]][0], self._span("src"), self._span("dst"))])


# Writing


def _name(op: Op, rows: Columns) -> str:
    more = rows[1:]
    remote = bool(((more["src_buffer"] != Buffer.NONE) & (more["via"] != LOCAL)).any())
    sends = bool(((more["dst_buffer"] != Buffer.NONE) & (more["via"] != LOCAL)).any())
    reduces = ("rrcs" if sends else "rrc") if remote else ("rs" if sends else "re")
    return {
        Op.SYNC: "nop",
        Op.BARRIER: "barrier",
        Op.COPY: "copy",
        Op.PUT: "put",
        Op.PUT_SIGNAL: "pws",
        Op.PUT_SIGNAL_FLUSH: "pwsf",
        Op.GET: "get",
        Op.SIGNAL: "signal",
        Op.WAIT: "wait",
        Op.FLUSH: "flush",
        Op.PACK: "tpkt",
        Op.UNPACK: "cpkt",
        Op.PUT_PACKETS: "ppkt",
        Op.FORWARD_PACKETS: "rppkt",
        Op.REDUCE: reduces,
        Op.REDUCE_PACKETS: "rspkt" if sends else "rpkt",
        Op.GROUP_REDUCE_MULTICAST: "glres",
    }.get(op, op.name)


def write_first_kind(plan: Plan, target: Target, violations: list[Violation]) -> tuple[str, list[Violation]]:
    """The file, and all that the target can't say or take.

    Every way between two buffers is a channel of its own here, and each has a signal of its own, so the nth signal channel of a plan is
    said by declaring it with the buffers that the data on it uses; signals without data go from input to input.
    """
    if plan.double_scratch != (plan.protocol is Protocol.LL):
        violations.append(_cannot(target, "a second scratch with a protocol other than LL, or none with LL"))
    if plan.shared_scratch:
        violations.append(_cannot(target, "a shared scratch"))
    if plan.alignment_bytes != 16:
        violations.append(_cannot(target, f"an alignment of {plan.alignment_bytes} bytes: it is 16"))
    gpus = [_Writer(plan, target, rank.unrolled(), violations).gpu() for rank in plan]
    top = {
        "name": plan.name,
        "collective": target.word(plan.collective) or plan.collective,
        "protocol": "LL" if plan.protocol is Protocol.LL else "Simple",
        "inplace": plan.in_place,
        "gpus": gpus,
        "num_threads_per_block": plan.threads_per_block or _THREADS,
        "use_double_scratch_buffer": plan.double_scratch,
        "min_message_size": plan.min_bytes,
        "max_message_size": _NO_LIMIT if plan.max_bytes is None else plan.max_bytes,
    }
    return json.dumps(top, indent=1) + "\n", violations


def _cannot(target: Target, what: str) -> Violation:
    return Violation("target-cannot-say", f"{target.name} can't say {what}")


class _Writer:
    """Writes one gpu. Signal channels come first, in order of (peer, number), so that they keep their numbers; data channels follow."""

    def __init__(self, plan: Plan, target: Target, rank: RankPlan, violations: list[Violation]) -> None:
        self.plan, self.target, self.rank, self.violations = plan, target, rank, violations
        self.told: set[str] = set()
        self.signals: dict[str, list[tuple[int, int]]] = {}
        for kind, connection in _KINDS.items():
            table = rank.connections[rank.connections["kind"] == connection]
            most: dict[int, int] = {}
            for peer, number in zip(table["peer"].tolist(), table["channel"].tolist(), strict=True):
                most[peer] = max(most.get(peer, -1), number)
            self.signals[kind] = [(peer, number) for peer, last in most.items() for number in range(last + 1)]
        self.data: dict[_Key, list[int]] = {}

    def cannot(self, what: str, rows: Columns | None = None, mend: str = "") -> None:
        """Tells it once a rank, with the operation and how to mend it, if they are given."""
        if what not in self.told:
            self.told.add(what)
            where = f"rank {self.rank.rank}" + (f": {row_in_words(self.rank, rows, 0)}" if rows is not None else "")
            self.violations.append(_cannot(self.target, f"{what} ({where}){'. ' + mend if mend else ''}"))

    def gpu(self) -> dict[str, Any]:
        """The gpu."""
        blocks = [self._block(number) for number in range(len(self.rank.blocks))]
        self.violations += limit_violation(
            self.target, "blocks", len(blocks), self.target.blocks_per_rank, f"rank {self.rank.rank}"
        )
        channels: list[dict[str, Any]] = [
            {"type": kind, "srcbuff": "i", "dstbuff": "i", "connectedTo": [peer for peer, _ in ends]}
            for kind, ends in self.signals.items()
            if ends
        ]
        for (here, there, kind), peers in self.data.items():
            if (here, there) == ("i", "i") and self.signals[kind]:
                channels[[one["type"] for one in channels].index(kind)]["connectedTo"] += peers
            else:
                channels.append({"type": kind, "srcbuff": here, "dstbuff": there, "connectedTo": peers})
        channels += [
            {
                "type": "nvls",
                "buff": _LETTERS[int(group.buffer)],
                "rankGroups": [{"size": len(group.ranks), "ranks": list(group.ranks)}],
            }
            for group in self.rank.groups
        ]
        return {
            "id": self.rank.rank,
            "inputChunks": self.rank.input_chunks,
            "outputChunks": self.rank.output_chunks,
            "scratchChunks": self.rank.scratch_chunks,
            "chunkGroups": 1,
            "threadblocks": blocks,
            "channels": channels,
        }

    def way(self, row: Columns, src: int, dst: int) -> tuple[_Key, int]:
        """The data channel between a buffer here and one there of a row's peer: its key, and its number among those of the key."""
        connection = self.rank.connections[int(row["via"])]
        kind = "port" if connection["kind"] == ConnectionKind.PORT else "memory"
        key = (_LETTERS.get(src, "i"), _LETTERS.get(dst, "i"), kind)
        peers = self.data.setdefault(key, [])
        peer = int(connection["peer"])
        if peer not in peers:
            peers.append(peer)
        shift = len(self.signals[kind]) if key[:2] == ("i", "i") else 0
        return key, peers.index(peer) + shift

    def signal_way(self, via: int) -> tuple[_Key, int]:
        """The channel of a signal."""
        connection = self.rank.connections[via]
        kind = "port" if connection["kind"] == ConnectionKind.PORT else "memory"
        return ("i", "i", kind), self.signals[kind].index((int(connection["peer"]), int(connection["channel"])))

    def group_way(self, via: int) -> tuple[_Key, int]:
        """The channel of a multicast group."""
        place = int(self.rank.connections[via]["peer"])
        letter = _LETTERS[int(self.rank.groups[place].buffer)]
        before = sum(_LETTERS[int(group.buffer)] == letter for group in self.rank.groups[:place])
        return (letter, letter, "nvls"), before

    def _block(self, number: int) -> dict[str, Any]:
        block = _BlockWriter(self)
        rows = self.rank.rows(number)
        ops, place = [], 0
        while place < len(rows):
            mine = rows[place : place + 1 + int(rows[place]["more"])]
            place += len(mine)
            written = block.operation(Op(int(mine[0]["op"])), mine)
            if written is not None:
                ops.append(written)
        where = f"rank {self.rank.rank} block {number}"
        self.violations += limit_violation(self.target, "operations", len(ops), self.target.steps_per_block, where)
        for kind in ("memory", "port", "nvls"):
            used = sum(len(ids) for key, ids in block.channels.items() if key[2] == kind)
            self.violations += limit_violation(
                self.target, f"{kind} channels", used, self.target.channels_per_block, where
            )
        return {
            "id": number,
            "ops": ops,
            "channels": [
                {"src": key[0], "dst": key[1], "ctype": key[2], "cids": ids} for key, ids in block.channels.items()
            ],
        }


class _BlockWriter:
    def __init__(self, rank: _Writer) -> None:
        self.rank = rank
        self.channels: dict[_Key, list[int]] = {}

    def _id(self, way: tuple[_Key, int]) -> int:
        ids = self.channels.setdefault(way[0], [])
        if way[1] not in ids:
            ids.append(way[1])
        return ids.index(way[1])

    def operation(self, op: Op, rows: Columns) -> dict[str, Any] | None:
        """The operation as JSON; None if the target has no word for it."""
        writer = self.rank
        name = _name(op, rows)
        if writer.target.operations is not None and name not in writer.target.operations:
            writer.cannot(op.name, rows, MEND.get(op, ""))
            return None
        out: dict[str, Any] = {"name": name}
        if op is Op.SYNC:
            return out
        if op is Op.BARRIER:
            return out | {"barrier_id": int(rows[0]["via"]), "nthread_blocks": int(rows[0]["count"])}
        if op in (Op.SIGNAL, Op.WAIT, Op.FLUSH):
            return self._signal(out, op, rows)
        walks = writer.rank.walks[rows["walk"]]
        if (walks["parts"] != 1).any():
            writer.cannot("a share of a chunk")
        if Reduction(int(rows[0]["reduction"])) is not Reduction.CALL:
            writer.cannot("a reduction of its own: its executor adds")
        counts = set(rows["count"].tolist())
        if len(counts) != 1:
            writer.cannot("operands of different sizes in one operation")
        out["cnt"] = int(rows[0]["count"])
        if op is Op.GROUP_REDUCE_MULTICAST:
            way = writer.group_way(int(rows[0]["via"]))
            ids = [{"id": self._id(way), "off": int(rows[0]["src"])}]
            return out | self._ends(rows[0], way[0][0]) | {"ctype": "nvls", "i_cids": ids, "o_cids": ids}
        if op in (Op.COPY, Op.PACK, Op.UNPACK):
            if len(rows) > 1:
                writer.cannot(f"{op.name} of several pairs")
            return out | self._ends(rows[0])
        if op in (Op.REDUCE, Op.REDUCE_PACKETS):
            return self._reduce(out, rows)
        return self._pairs(out, op, rows)

    @staticmethod
    def _ends(row: Columns, letter: str | None = None) -> dict[str, Any]:
        return {
            "srcbuff": letter or _LETTERS[int(row["src_buffer"])],
            "srcoff": int(row["src"]),
            "dstbuff": letter or _LETTERS[int(row["dst_buffer"])],
            "dstoff": int(row["dst"]),
        }

    def _signal(self, out: dict[str, Any], op: Op, rows: Columns) -> dict[str, Any]:
        if rows[0]["order"] == 0 and op is not Op.FLUSH:
            self.rank.cannot(f"a relaxed {op.name}")
        ways = [self.rank.signal_way(int(via)) for via in rows["via"].tolist()]
        if len({way[0] for way in ways}) > 1:
            self.rank.cannot(f"{op.name} on memory and port channels at once")
        side = "i" if op is Op.WAIT else "o"
        ids = [{"id": self._id(way), "off": 0} for way in ways]
        return out | {"ctype": ways[0][0][2], f"{side}_buff": {"src": "i", "dst": "i"}, f"{side}_cids": ids}

    def _pairs(self, out: dict[str, Any], op: Op, rows: Columns) -> dict[str, Any]:
        near, far = ("dst", "src") if op is Op.GET else ("src", "dst")
        kinds = {int(self.rank.rank.connections[int(via)]["kind"]) for via in rows["via"].tolist()}
        buffers = set(zip(rows[f"{near}_buffer"].tolist(), rows[f"{far}_buffer"].tolist(), strict=True))
        if len(kinds) > 1 or len(buffers) > 1:
            self.rank.cannot(f"{op.name} between several kinds of buffers or connections at once")
        if op in (Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH):
            self.rank.cannot(
                f"{op.name}: its signal goes with the data channel, which plans tell apart. Write it for mscclpp-0.10, or for ranks of one node"
            )
        if ConnectionKind.PORT in kinds:
            self.rank.cannot(
                f"{op.name} through a port: its data channel has signals of its own, which plans tell apart"
            )
        ways = [self.rank.way(row, int(row[f"{near}_buffer"]), int(row[f"{far}_buffer"])) for row in rows]
        key = ways[0][0]
        side, spans = ("i", "dsts") if op is Op.GET else ("o", "srcs")
        return out | {
            "ctype": key[2],
            spans: [{"buff": key[0], "off": int(row[near])} for row in rows],
            f"{side}_buff": {"src": key[0], "dst": key[1]},
            f"{side}_cids": [{"id": self._id(way), "off": int(row[far])} for way, row in zip(ways, rows, strict=True)],
        }

    def _reduce(self, out: dict[str, Any], rows: Columns) -> dict[str, Any]:
        out |= self._ends(rows[0])
        more = rows[1:]
        near = [row for row in more if row["src_buffer"] != Buffer.NONE and row["via"] == LOCAL]
        read = [row for row in more if row["src_buffer"] != Buffer.NONE and row["via"] != LOCAL]
        sent = [row for row in more if row["dst_buffer"] != Buffer.NONE]
        if (near and read) or any(row["via"] == LOCAL for row in sent):
            self.rank.cannot("a reduction of local and remote chunks at once, or into several local places")
            return out
        if not near and not read:
            self.rank.cannot("a reduction of one chunk")
        if near:
            out["srcs"] = [{"buff": _LETTERS[int(row["src_buffer"])], "off": int(row["src"])} for row in near]
            if len({int(row["src_buffer"]) for row in near}) > 1:
                self.rank.cannot("a reduction from several buffers: its executor takes the first one's for all")
        for side, operands, word in (("i", read, "src"), ("o", sent, "dst")):
            if not operands:
                continue
            if len({int(row[f"{word}_buffer"]) for row in operands}) > 1:
                self.rank.cannot("a reduction with several kinds of remote buffers")
            ways = [self.rank.way(row, int(rows[0]["dst_buffer"]), int(row[f"{word}_buffer"])) for row in operands]
            out["ctype"] = ways[0][0][2]
            out[f"{side}_buff"] = {"src": ways[0][0][0], "dst": ways[0][0][1]}
            out[f"{side}_cids"] = [
                {"id": self._id(way), "off": int(row[word])} for way, row in zip(ways, operands, strict=True)
            ]
        return out
