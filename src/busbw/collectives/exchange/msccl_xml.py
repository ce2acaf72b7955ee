"""MSCCL XML, as its two interpreters read it: microsoft/msccl and RCCL.

Offsets are local to the executing GPU, for `rrc`, `rrs` and `rrcs` too: that is how both interpreters read them, though msccl-tools writes
the sender's. One file holds all GPUs. A step waits for a flag of another block (`depid`, `deps`) and sets its block's flag (`hasdep`).
Sources: ROCm/rccl 0cbce2a7, src/misc/msccl/msccl_parser.cc and src/device/msccl_kernel_impl.h; microsoft/msccl b23e9cd5.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np

from busbw.collectives.blocks import split_blocks, spread_channels
from busbw.collectives.exchange.json_fields import MAX_BYTES
from busbw.collectives.exchange.targets import TARGETS, Target, limit_violation
from busbw.collectives.legality import Violation
from busbw.collectives.plan import (
    LOCAL,
    Buffer,
    Columns,
    ConnectionKind,
    Op,
    Order,
    Plan,
    Protocol,
    RankBuilder,
    RankPlan,
    Span,
    held_plan,
)
from busbw.errors import InputError, Loss, Losses
from busbw.hardware.formats.xml import XmlElement, XmlKind, read_elements

__all__ = ["dialect_of", "lint_text", "looks_like_msccl_xml", "rank_limits", "read_msccl_xml", "write_msccl_xml"]

_PROTOCOLS = {"Simple": Protocol.SIMPLE, "LL": Protocol.LL, "LL128": Protocol.LL128}
_BUFFERS = {"i": Buffer.INPUT, "o": Buffer.OUTPUT, "s": Buffer.SCRATCH}
_COLLECTIVES = {word: ours for target in (TARGETS["msccl"], TARGETS["rccl"]) for ours, word in target.collectives} | {
    "send": "custom",
    "recv": "custom",
}
_OPS = {
    "s": Op.SEND,
    "r": Op.RECV,
    "rcs": Op.RECV_COPY_SEND,
    "rrc": Op.RECV_REDUCE_COPY,
    "rrs": Op.RECV_REDUCE_SEND,
    "rrcs": Op.RECV_REDUCE_COPY_SEND,
    "cpy": Op.COPY,
    "re": Op.REDUCE,
}
_TYPES = {op: word for word, op in _OPS.items()}
_SENDS = (Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_READS = (Op.SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND, Op.COPY, Op.REDUCE)
_WRITES = (Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_COPY_SEND, Op.COPY, Op.REDUCE)
_MSCCL_MAX_BYTES = 128 << 20
"""maxBytes where msccl finds none. Source: microsoft/msccl b23e9cd5, src/graph/xml.cc."""
_NO_LIMIT = 2**63 - 1
_MOST_CHUNKS = 1 << 20
"""Chunks of a buffer that are read; the interpreters' int16 offsets reach 32767."""
_MOST_NAME = 63
_PLAN = XmlKind("plan", "as msccl-tools or busbw wrote it", MAX_BYTES, 4095 * 1024)
"""What one file of 1024 ranks may hold: each rank reads 4095 elements at most."""
_ALGO_ATTRIBUTES = {
    *("name", "proto", "nchannels", "nchunksperloop", "ngpus", "coll", "inplace", "outofplace", "minBytes", "maxBytes", "nthreads"),
}  # fmt: skip


def looks_like_msccl_xml(head: bytes) -> bool:
    """Whether the first bytes of a file are of this format."""
    return re.match(rb"\s*(<\?xml[^>]*\?>\s*)?(<!--.*?-->\s*)*<algo\b", head, re.DOTALL) is not None


def dialect_of(root: XmlElement) -> str:
    """Which runtime an `algo` is for: `msccl` if it has a word that only msccl reads, else `rccl` if it has what only RCCL needs.

    Only RCCL needs `outofplace`; only msccl reads `nthreads`, and the collectives `reduce_scatter` and `custom`. What has neither is for msccl, whose
    files are written without `outofplace`, so that they are not taken for RCCL's.
    """
    if root.get("coll") in ("reduce_scatter", "custom") or root.get("nthreads") is not None:
        return "msccl"
    return "rccl" if root.get("outofplace") is not None else "msccl"


# Reading


@dataclass(slots=True)
class _Step:
    op: Op
    src: Span
    dst: Span
    waits: list[tuple[int, int]]  # block, step number
    flagged: bool
    number: int


@dataclass(slots=True)
class _Block:
    channel: int
    send: int
    receive: int
    steps: list[_Step] = field(default_factory=list)
    flags: list[int] = field(default_factory=list)  # numbers of the steps that set the flag


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.losses = Losses(path)

    def wrong(self, element: XmlElement, what: str) -> InputError:
        return InputError(f"{self.path}:{element.line}: <{element.name}> {what}")

    def number(self, element: XmlElement, name: str, least: int, most: int = 2**31 - 1) -> int:
        value = element.get(name)
        if value is None:
            raise self.wrong(element, f"has no attribute {name}; both interpreters need it")
        if not re.fullmatch(r"-?[0-9]{1,19}", value) or not least <= int(value) <= most:
            raise self.wrong(element, f"{name} is {value[:40]!r}; a number from {least} to {most} is needed")
        return int(value)

    def word(self, element: XmlElement, name: str, known: dict[str, object] | None = None) -> str:
        value = element.get(name)
        if value is None:
            raise self.wrong(element, f"has no attribute {name}; both interpreters need it")
        if known is not None and value not in known:
            raise self.wrong(element, f"{name} is {value[:40]!r}; it must be one of {', '.join(known)}")
        return value


def read_msccl_xml(data: bytes | str, path: str, target: str | None = None) -> tuple[Plan, Target, list[Loss]]:
    """The plan that the interpreters make of a file, which of them it is for, and what was lost.

    Losses: `ignored-attribute`, `ignored-element` (no interpreter reads them), `empty-step` (0 chunks), `trailing-nop` (no interpreter waits
    for it), `nop-with-hasdep`, and those of `hardware.formats.xml`. Raises InputError for what both interpreters refuse.
    """
    elements, losses = read_elements(data, path, _PLAN)
    reader = _Reader(path)
    if len(elements) != 1 or elements[0].name != "algo":
        raise InputError(
            f"{path}:{elements[0].line}: <{elements[0].name}> is no MSCCL algorithm; its root is one <algo>"
        )
    root = elements[0]
    dialect = TARGETS[target or dialect_of(root)]
    ranks = reader.number(root, "ngpus", 1, 1024)
    chunks = reader.number(root, "nchunksperloop", 1, _MOST_CHUNKS)
    channels = reader.number(root, "nchannels", 1, 1024)
    collective = _COLLECTIVES.get(reader.word(root, "coll"), "")
    if not collective:
        raise reader.wrong(root, f"coll is {root.get('coll')!r}; it must be one of {', '.join(sorted(_COLLECTIVES))}")
    for name, _ in root.attributes:
        if name not in _ALGO_ATTRIBUTES:
            reader.losses.add("ignored-attribute", root.line, f"{name}: no interpreter reads it")
    protocol = _PROTOCOLS[reader.word(root, "proto", dict(_PROTOCOLS))]
    in_place = reader.number(root, "inplace", 0, 1) == 1
    out_of_place = reader.number(root, "outofplace", 0, 1) == 1 if root.get("outofplace") is not None else not in_place
    if not in_place and not out_of_place:
        raise reader.wrong(root, "inplace and outofplace are both 0: it is never used")
    least = reader.number(root, "minBytes", 0, 2**62) if root.get("minBytes") is not None else 0
    most: int | None = _MSCCL_MAX_BYTES if dialect.name == "msccl" else None
    if root.get("maxBytes") is not None:
        most = reader.number(root, "maxBytes", 0, _NO_LIMIT) or (None if dialect.name == "rccl" else 0)
        most = None if most == _NO_LIMIT else most
    gpus: dict[int, RankPlan] = {}
    for element in root.children:
        if element.name != "gpu":
            reader.losses.add("ignored-element", element.line, f"<{element.name[:40]}>: no interpreter reads it")
            continue
        rank = _gpu(reader, element, ranks, channels, protocol)
        if rank.rank in gpus:
            raise reader.wrong(element, f"gpu {rank.rank} stands there twice")
        gpus[rank.rank] = rank
    missing = [rank for rank in range(ranks) if rank not in gpus]
    if missing:
        raise reader.wrong(root, f"ngpus is {ranks}, but there is no gpu {missing[0]}")
    plan = held_plan(
        [gpus[rank] for rank in range(ranks)],
        name=root.get("name") or "",
        collective=collective,
        chunks=chunks,
        in_place=in_place,
        out_of_place=out_of_place,
        protocol=protocol,
        min_bytes=least,
        max_bytes=most,
        threads_per_block=reader.number(root, "nthreads", 1, 1 << 20) if root.get("nthreads") is not None else None,
    )
    return plan, dialect, [*losses, *reader.losses]


def _gpu(reader: _Reader, gpu: XmlElement, ranks: int, channels: int, protocol: Protocol) -> RankPlan:
    rank = reader.number(gpu, "id", 0, ranks - 1)
    inputs, outputs, scratch = (reader.number(gpu, f"{letter}_chunks", 0, _MOST_CHUNKS) for letter in "ios")
    blocks: dict[int, _Block] = {}
    for element in gpu.children:
        if element.name != "tb":
            reader.losses.add("ignored-element", element.line, f"<{element.name[:40]}>: no interpreter reads it")
            continue
        number = reader.number(element, "id", 0, 4095)
        if number in blocks:
            raise reader.wrong(element, f"gpu {rank} has two blocks {number}")
        blocks[number] = _block(reader, element, rank, ranks, channels)
    if sorted(blocks) != list(range(len(blocks))):
        raise reader.wrong(
            gpu,
            f"block {next(b for b in range(len(blocks)) if b not in blocks)} is missing: ids go from 0 without a hole",
        )
    builder = RankBuilder(rank, inputs, outputs, scratch)
    for number in range(len(blocks)):
        _fill(builder, blocks[number], blocks, protocol)
    return builder.build()


def _block(reader: _Reader, tb: XmlElement, rank: int, ranks: int, channels: int) -> _Block:
    send, receive = (reader.number(tb, name, -1, ranks - 1) for name in ("send", "recv"))
    if rank in (send, receive):
        raise reader.wrong(tb, f"gpu {rank} can't be its own peer")
    block = _Block(reader.number(tb, "chan", 0, channels - 1), send, receive)
    waits: list[tuple[int, int]] = []
    nops: XmlElement | None = None
    counter = 0
    for place, step in enumerate(step for step in tb.children if _is_step(reader, step)):
        if reader.number(step, "s", 0) != place:
            raise reader.wrong(step, f"s is {step.get('s')}, but it is step {place} of its block")
        kind = reader.word(step, "type", {**_OPS, "nop": None})
        depends, deps = reader.number(step, "depid", -1, 4095), reader.number(step, "deps", -1)
        flagged = reader.number(step, "hasdep", 0, 1) == 1
        count = reader.number(step, "cnt", 0)
        spans = [
            Span(
                _BUFFERS[reader.word(step, f"{side}buf", dict(_BUFFERS))],
                reader.number(step, f"{side}off", -1),
                max(count, 1),
            )
            for side in ("src", "dst")
        ]
        if depends >= 0:
            waits.append((depends, deps))
        if kind == "nop":
            nops = step
            if flagged:
                reader.losses.add("nop-with-hasdep", step.line, "a nop sets no flag in either interpreter")
            continue
        if waits and depends < 0:
            raise reader.wrong(
                step, "follows nops with dependences but has none itself; both interpreters refuse the file"
            )
        nops = None
        counter += max(len(waits) - 1, 0)
        op = _OPS[kind]
        if op in _SENDS and block.send < 0:
            raise reader.wrong(step, f"type {kind} sends, but its block has no send peer")
        if op.name.startswith("RECV") and block.receive < 0:
            raise reader.wrong(step, f"type {kind} receives, but its block has no recv peer")
        if count == 0:
            reader.losses.add("empty-step", step.line, "cnt is 0: RCCL moves nothing, msccl writes outside of an array")
        else:
            block.steps.append(_Step(op, spans[0], spans[1], waits, flagged, counter))
        if flagged:
            block.flags.append(counter)
        if count == 0 and (waits or flagged):
            raise reader.wrong(
                step, "moves nothing (cnt 0) but takes part in dependences: no interpreter's reading can be kept"
            )
        waits, counter = [], counter + 1
    if waits and nops is not None:
        reader.losses.add("trailing-nop", nops.line, "no step follows, so no interpreter waits for it")
    return block


def _is_step(reader: _Reader, element: XmlElement) -> bool:
    if element.name == "step":
        return True
    reader.losses.add("ignored-element", element.line, f"<{element.name[:40]}>: no interpreter reads it")
    return False


def _fill(builder: RankBuilder, source: _Block, blocks: dict[int, _Block], protocol: Protocol) -> None:
    block = builder.block(source.channel)
    for step in source.steps:
        for other, number in step.waits:
            flags = blocks[other].flags if other in blocks else []
            met = sum(1 for flag in flags if flag < number) + 1  # the first flag at or behind that step
            block.wait_flag(other, met)
        into = (
            builder.receive_from(source.receive, source.channel, protocol)
            if step.op not in (Op.SEND, Op.COPY, Op.REDUCE)
            else LOCAL
        )
        out = builder.send_to(source.send, source.channel, protocol) if step.op in _SENDS else LOCAL
        if step.op is Op.REDUCE:
            block.reduce(step.dst, step.dst, step.src)
        elif step.op is Op.SEND:
            block.send(step.src, out)
        else:
            src, dst = step.src if step.op in _READS else None, step.dst if step.op in _WRITES else None
            block.add(step.op, [(into, src, dst), *([(out, None, None)] if step.op in _SENDS else [])])
        if step.flagged:
            block.set_flag()


# Writing


def write_msccl_xml(plan: Plan, target: Target) -> tuple[str, list[Violation]]:
    """The file, and all that the target can't say or take; the file is of use only if that list is empty.

    Blocks with several peers in one direction are split by peer, and dealt out to channels if there are too many (`blocks.py`); loops are written out; a reduction of n chunks becomes n - 1 steps; more chunks than a step takes become several steps, on both
    sides alike. Of a plan that has none of these, reading the file gives the same plan again.
    """
    plan = split_blocks(plan)
    if target.blocks_per_channel is not None:
        plan = spread_channels(plan, target.blocks_per_channel)
    violations: list[Violation] = []
    word = target.word(plan.collective)
    if word is None:
        violations.append(_cannot(target, f"the collective {plan.collective}"))
    if plan.protocol is Protocol.ZERO_COPY:
        violations.append(_cannot(target, "zero copy"))
    if plan.root != 0:
        violations.append(_cannot(target, f"root {plan.root}: the file has no root"))
    if plan.double_scratch or plan.shared_scratch:
        violations.append(_cannot(target, "a second or shared scratch"))
    if target.name == "msccl" and plan.in_place and plan.out_of_place:
        violations.append(_cannot(target, "both in place and out of place: inplace says one of them"))
    if len(plan.name) > _MOST_NAME or re.search(r'["<>&\t\r\n]', plan.name):
        violations.append(_cannot(target, f"the name {plan.name[:80]!r}: at most {_MOST_NAME} plain characters"))
    violations += limit_violation(target, "ranks", plan.ranks, target.ranks, f"plan {plan.name!r}")
    lines: list[str] = []
    channels = 1
    for rank in plan:
        writer = _Writer(plan, target, rank, violations)
        channels = max(channels, writer.channels)
        lines += writer.lines()
    violations += limit_violation(target, "channels", channels, target.channels, f"plan {plan.name!r}")
    most = plan.max_bytes if plan.max_bytes is not None else 0
    if target.name == "msccl" and plan.max_bytes is None:
        most = _NO_LIMIT
    attributes = {
        "name": plan.name,
        "proto": next((word for word, one in _PROTOCOLS.items() if one == plan.protocol), "Simple"),
        "nchannels": channels,
        "nchunksperloop": plan.chunks,
        "ngpus": plan.ranks,
        "coll": word or plan.collective,
        "inplace": int(plan.in_place),
        **({"outofplace": int(plan.out_of_place)} if target.name == "rccl" else {}),
        "minBytes": plan.min_bytes,
        "maxBytes": most,
    }
    if plan.threads_per_block is not None:
        if target.name == "rccl":
            violations.append(_cannot(target, f"{plan.threads_per_block} threads a block: RCCL decides"))
        attributes["nthreads"] = plan.threads_per_block
    return "\n".join([f"<algo {_attributes(attributes)}>", *lines, "</algo>", ""]), violations


def rank_limits(plan: Plan, target: Target, rank: RankPlan) -> list[Violation]:
    """The limits of the target that a rank of the plan exceeds, as it will be written; one far too long is only counted.

    Blocks of one channel are not, because they are spread over several when all ranks are written.
    """
    length = int((rank.unrolled().instructions["op"] < Op.SYNC).sum())
    if far := limit_violation(target, "XML nodes", length, target.nodes_per_rank, f"rank {rank.rank}"):
        return far
    violations: list[Violation] = []
    split = split_blocks(replace(plan, rank_plan=lambda _: rank))
    for _ in _Writer(plan, target, split.rank(rank.rank), violations).lines():
        pass
    return [one for one in violations if one.rule == "target-limit" and "blocks on one channel" not in one.message]


def _cannot(target: Target, what: str) -> Violation:
    return Violation("target-cannot-say", f"{target.name} can't say {what}")


def _attributes(values: dict[str, object]) -> str:
    return " ".join(f'{name}="{value}"' for name, value in values.items())


@dataclass(frozen=True, slots=True)
class _OutStep:
    type: str
    src: tuple[str, int]
    dst: tuple[str, int]
    count: int
    waits: tuple[tuple[int, int], ...] = ()  # block, how often its flag must be set
    flagged: bool = False


class _Writer:
    """Writes one GPU."""

    def __init__(self, plan: Plan, target: Target, rank: RankPlan, violations: list[Violation]) -> None:
        self.plan, self.target, self.rank, self.violations = plan, target, rank.unrolled(), violations
        self.told: Counter[str] = Counter()
        self.blocks = [self._steps(block) for block in range(len(self.rank.blocks))]
        self.peers = [self._peers(block) for block in range(len(self.rank.blocks))]
        self.channels = 1 + max((channel for _, _, channel in self.peers), default=0)
        self._check_groups()

    def cannot(self, block: int, what: str) -> None:
        """Tells it once a rank."""
        self.told[what] += 1
        if self.told[what] == 1:
            self.violations.append(_cannot(self.target, f"{what} (rank {self.rank.rank} block {block})"))

    def _check_groups(self) -> None:
        if self.rank.groups:
            self.cannot(0, "multicast groups")
        if self.rank.semaphores:
            self.cannot(0, "semaphores")
        where = f"rank {self.rank.rank}"
        self.violations += limit_violation(self.target, "blocks", len(self.blocks), self.target.blocks_per_rank, where)
        per_channel = Counter(channel for _, _, channel in self.peers)
        most = max(per_channel.values(), default=0)
        self.violations += limit_violation(
            self.target, "blocks on one channel", most, self.target.blocks_per_channel, where
        )

    def _peers(self, block: int) -> tuple[int, int, int]:
        """(send peer, receive peer, channel) of a block."""
        rows = self.rank.rows(block)
        found: dict[int, tuple[int, int]] = {}
        moving = (rows["op"] < Op.SYNC) | (rows["op"] == Op.OPERAND)
        for via in np.unique(rows["via"][moving & (rows["via"] >= 0)]).tolist():
            connection = self.rank.connections[via]
            kind = int(connection["kind"])
            here = (int(connection["peer"]), int(connection["channel"]))
            if kind not in (ConnectionKind.FIFO_IN, ConnectionKind.FIFO_OUT):
                self.cannot(block, f"a connection of kind {ConnectionKind(kind).name}: it has FIFOs only")
            elif found.setdefault(kind, here) != here:
                self.cannot(block, "a block with two peers in one direction")
            if connection["slots"]:
                self.cannot(block, f"a FIFO of {connection['slots']} slots: the runtime decides")
            if connection["protocol"] != self.plan.protocol:
                self.cannot(block, "two protocols in one plan")
        out, into = found.get(ConnectionKind.FIFO_OUT), found.get(ConnectionKind.FIFO_IN)
        channels = {channel for _, channel in found.values()} | (
            {int(self.rank.blocks[block]["channel"])} if not found else set()
        )
        if len(channels) > 1:
            self.cannot(block, "a block on two channels")
        return out[0] if out else -1, into[0] if into else -1, max(channels, default=0)

    def _steps(self, block: int) -> list[_OutStep]:
        rows = self.rank.rows(block)
        steps: list[_OutStep] = []
        waits: list[tuple[int, int]] = []
        fresh = False  # the last step may still get a flag
        place = 0
        while place < len(rows):
            row = rows[place]
            op, more = Op(int(row["op"])), rows[place + 1 : place + 1 + int(row["more"])]
            place += 1 + len(more)
            if op is Op.FLAG_WAIT:
                self._order(block, row, Order.ACQUIRE)
                waits.append((int(row["via"]), int(row["src"])))
                fresh = False
            elif op is Op.FLAG_SET:
                self._order(block, row, Order.RELEASE)
                if not fresh:
                    self.cannot(block, "a flag that is set other than by a step")
                else:
                    steps[-1] = replace(steps[-1], flagged=True)
                fresh = False
            elif op is Op.SYNC:
                continue  # a step ends with one anyway
            elif op in _TYPES:
                made = list(self._split(block, op, row, more))
                if made:
                    made[0] = replace(made[0], waits=tuple(waits))
                    waits = []
                    steps += made
                    fresh = True
            else:
                self.cannot(
                    block, f"{op.name}: it has sends, receives and moves within a rank; write it for mscclpp-0.10"
                )
        if waits:
            self.cannot(block, "a wait for a flag behind the last step")
        return steps

    def _order(self, block: int, row: Columns, order: Order) -> None:
        if int(row["order"]) != order:
            self.cannot(block, f"a relaxed {Op(int(row['op'])).name}")

    def _split(self, block: int, op: Op, row: Columns, more: Columns) -> Iterator[_OutStep]:
        """An instruction as steps: one, or several where it reduces many chunks or moves more than a step takes."""
        if self.rank.walks[row["walk"]]["parts"] != 1 or any(
            self.rank.walks[one["walk"]]["parts"] != 1 for one in more
        ):
            self.cannot(block, "a share of a chunk")
        if row["reduction"]:
            self.cannot(block, "a reduction of its own: it is the caller's")
        if op is Op.REDUCE:
            if (
                any(one["via"] != LOCAL or one["dst_buffer"] != Buffer.NONE for one in (row, *more) if one is not row)
                or row["via"] != LOCAL
            ):
                self.cannot(block, "a reduction with chunks of a peer, or to several places")
                return
            into = _place(row, "dst")
            if _place(row, "src") != into:
                yield from self._pieces("cpy", _place(row, "src"), into, int(row["count"]))
            for one in more:
                yield from self._pieces("re", _place(one, "src"), into, int(one["count"]))
        elif op is Op.COPY:
            for one in (row, *more):
                yield from self._pieces("cpy", _place(one, "src"), _place(one, "dst"), int(one["count"]))
        else:
            src = _place(row, "src") if op in _READS else ("i", -1)
            dst = _place(row, "dst") if op in _WRITES else ("o", -1)
            yield from self._pieces(_TYPES[op], src, dst, int(row["count"]))

    def _pieces(self, kind: str, src: tuple[str, int], dst: tuple[str, int], count: int) -> Iterator[_OutStep]:
        most = self.target.chunks_per_step or count
        for first in range(0, max(count, 1), most):
            moved = [(buffer, index + first if index >= 0 else index) for buffer, index in (src, dst)]
            if self.target.index is not None and max(index for _, index in moved) > self.target.index:
                self.cannot(0, f"a chunk index above {self.target.index}")
            yield _OutStep(kind, moved[0], moved[1], min(most, count - first))

    def lines(self) -> Iterator[str]:
        """The lines of this GPU."""
        numbered = [list(_numbered(steps)) for steps in self.blocks]
        flags = [[number for number, step in steps if step.flagged and step.type != "nop"] for steps in numbered]
        where = f"rank {self.rank.rank}"
        nodes = 1 + self.plan.ranks + len(numbered) + sum(len(steps) for steps in numbered)
        self.violations += limit_violation(self.target, "XML nodes", nodes, self.target.nodes_per_rank, where)
        sizes = zip(
            ("i_chunks", "o_chunks", "s_chunks"),
            (self.rank.input_chunks, self.rank.output_chunks, self.rank.scratch_chunks),
            strict=True,
        )
        yield f"  <gpu {_attributes({'id': self.rank.rank, **dict(sizes)})}>"
        for block, steps in enumerate(numbered):
            send, receive, channel = self.peers[block]
            here = f"{where} block {block}"
            self.violations += limit_violation(self.target, "steps", len(steps), self.target.steps_per_block, here)
            yield f"    <tb {_attributes({'id': block, 'send': send, 'recv': receive, 'chan': channel})}>"
            for number, step in steps:
                yield f"      <step {_attributes(self._step(block, number, step, flags))}/>"
            yield "    </tb>"
        yield "  </gpu>"

    def _step(self, block: int, number: int, step: _OutStep, flags: list[list[int]]) -> dict[str, object]:
        depends, deps = -1, -1
        if step.waits:
            depends, times = step.waits[-1]
            known = flags[depends] if 0 <= depends < len(flags) else []
            if not 1 <= times <= len(known):
                self.cannot(block, "a wait for a flag that is not set so often")
            else:
                deps = known[times - 1]
        return {
            "s": number,
            "type": step.type,
            "srcbuf": step.src[0],
            "srcoff": step.src[1],
            "dstbuf": step.dst[0],
            "dstoff": step.dst[1],
            "cnt": step.count,
            "depid": depends,
            "deps": deps,
            "hasdep": int(step.flagged),
        }


_WORDS = {int(buffer): word for word, buffer in _BUFFERS.items()}


def _place(row: Columns, side: str) -> tuple[str, int]:
    return _WORDS.get(int(row[f"{side}_buffer"]), "i"), int(row[side])


def _numbered(steps: list[_OutStep]) -> Iterator[tuple[int, _OutStep]]:
    """Steps with the nops that carry further dependences, by number."""
    number = 0
    for step in steps:
        for wait in step.waits[:-1]:
            yield number, _OutStep("nop", ("i", -1), ("o", -1), 0, (wait,))
            number += 1
        yield number, replace(step, waits=step.waits[-1:])
        number += 1


# Lint


def lint_text(text: str, path: str, target: Target) -> list[Violation]:
    """What the interpreters' own parser, which is no XML parser, refuses or misreads in a text that is XML."""
    found: list[Violation] = []

    def tell(offset: int, what: str) -> None:
        found.append(Violation("target-parser", f"{path}:{text.count(chr(10), 0, offset) + 1}: {what}"))

    bare = re.sub(r"<!--.*?-->", lambda match: re.sub(r"[^\n]", " ", match.group()), text, flags=re.DOTALL)
    if (declaration := re.search(r"<\?", bare)) is not None:
        tell(declaration.start(), "an XML declaration; the parser expects > behind the last value")
    outside = re.sub(r'"[^"]*"', lambda match: re.sub(r"[^\n]", "v", match.group()), bare)
    for pattern, what in (
        (r"\t", "a tab outside of a value; the parser expects <"),
        (r"<[^>]*\n[^>]*>", "a line break inside a tag"),
        (r"<[^>]*=\s*'", "single quotes around a value; the parser looks for a double quote to end it"),
        (r"<[^>]*[^ \n>]  +[^ >]", "two blanks between attributes: each counts as an attribute"),
        (r"<!\[CDATA\[|&[#a-z]", "CDATA or an entity"),
    ):
        if (match := re.search(pattern, outside)) is not None:
            tell(match.start(), what)
    root = re.search(r"<algo\b[^>]*>", bare)
    if root is not None:
        needed = ("outofplace", "minBytes", "maxBytes") if target.name == "rccl" else ("name",)
        for name in needed:
            if not re.search(rf'\b{name}="', root.group()):
                tell(root.start(), f"<algo> has no {name}, which {target.name} needs")
        word = re.search(r'\bcoll="([^"]*)"', root.group())
        if (
            word is not None
            and word.group(1) not in {word for _, word in target.collectives}
            and word.group(1) not in ("send", "recv")
        ):
            tell(root.start(), f"coll {word.group(1)!r} is refused by {target.name}")
    return found
