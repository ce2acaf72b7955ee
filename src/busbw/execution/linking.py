"""A plan made ready to run on buffers of a size: where each counter, slot, buffer and piece lies. What it gives is read by `busbw/device/program.hpp`.

Chunks have one size everywhere, a multiple of a cache line; the last chunk of a buffer is cut where the buffer ends, so any number of elements will do.
A message that does not fit a slot makes the rows run several times, each time for a piece of every chunk.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.collectives.legality import FIFO_SLOTS
from busbw.collectives.plan import Buffer, Columns, ConnectionKind, Op, Plan, Protocol, RankPlan

__all__ = ["MOST_RANKS", "WAY", "LinkedPlan", "LinkedRank", "SpaceOf", "link"]

Numbers = npt.NDArray[np.uint64]
Bytes = npt.NDArray[np.uint8]

MOST_RANKS = 64  # window.hpp, kMostRanks
_LINE = 64
_LINE_OF_LL128 = 120  # bytes of data
_SLOT_BYTES = {
    Protocol.SIMPLE: 128 << 10,
    Protocol.LL: 16 << 10,
    Protocol.LL128: 32 << 10,
    Protocol.ZERO_COPY: 128 << 10,
}
"""Data that a slot holds at most, unless one message of the least size needs more. On a CPU it passes through a cache: half a level-2 cache
of 256 KiB for data, less for packets, which are for small messages. A guess. Zero copy is run as SIMPLE with one slot."""
WAY = np.dtype(
    [
        ("kind", "u1"),
        ("protocol", "u1"),
        ("slots", "u2"),
        ("peer", "i4"),
        ("their", "u8"),
        ("mine", "u8"),
        ("slots_at", "u8"),
        ("slot_bytes", "u8"),
        ("count_at", "u8"),
    ]
)
"""program.hpp, Way."""
_RING_HEAD_BYTES = 3 * _LINE  # network.hpp, Ring
_RING_ORDERS = 64
"""Orders that a port's ring holds; a block that posts more waits for the proxy. A guess: a line each."""
_FIFO = (Op.SEND, Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_PACKETS = (Op.PACK, Op.UNPACK, Op.PUT_PACKETS, Op.FORWARD_PACKETS, Op.REDUCE_PACKETS, Op.MULTICAST_PACKETS)
_REACHES_PEERS = (
    Op.REDUCE, Op.PUT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH, Op.GET, Op.MULTICAST, Op.GROUP_REDUCE, Op.GROUP_REDUCE_MULTICAST,
)  # fmt: skip
_NEVER = 1 << 62
"""Chunks of a part that never ends."""


@dataclass(frozen=True, slots=True)
class SpaceOf:
    """A buffer: `parts` equal parts of part_bytes; chunks are counted anew in each."""

    parts: int
    chunks_per_part: int
    part_bytes: int
    half_bytes: int = 0

    @property
    def size_bytes(self) -> int:
        """Of the whole buffer."""
        return max(self.parts * self.part_bytes, 2 * self.half_bytes)


@dataclass(frozen=True, slots=True)
class LinkedRank:
    """What one rank runs, as columns of bytes, and the numbers of program.hpp, Program."""

    plan: RankPlan
    ways: Columns
    groups: npt.NDArray[np.uint32]
    block_runs: Numbers
    """program.hpp, BlockRun, of each block: two numbers."""
    semaphores: Numbers

    @property
    def columns(self) -> tuple[Bytes, Bytes, Bytes, Bytes, Bytes]:
        """rows, blocks, walks, ways, groups, as bytes."""
        plan = self.plan
        return (
            _bytes(plan.instructions),
            _bytes(plan.blocks),
            _bytes(plan.walks),
            _bytes(self.ways),
            _bytes(self.groups),
        )


@dataclass(frozen=True, slots=True)
class LinkedPlan:
    """A plan for buffers of a size on all its ranks."""

    plan: Plan
    ranks: tuple[LinkedRank, ...]
    spaces: tuple[tuple[SpaceOf, ...], ...]
    """Of each rank: input, output, scratch, packets."""
    in_place: bool
    chunk_bytes: int
    run_bytes: int
    grain: int
    runs: int
    blocks_at: int
    barriers_at: int
    semaphores_at: int
    proxy_at: int
    wire_bytes: int
    reaches_peers: bool
    """Whether a rank touches the input or output of another, so that these must lie in memory that all map."""

    def numbers(self, rank: int) -> Numbers:
        """Of Program, in the order in which the binding takes them."""
        return np.array(
            [
                rank, self.plan.ranks, len(self.ranks[rank].plan.blocks), self.plan.blocks_in_order, self.chunk_bytes,
                self.run_bytes, self.grain, self.runs, self.blocks_at, self.barriers_at, self.semaphores_at,
                self.proxy_at,
            ], np.uint64,
        )  # fmt: skip

    def space_table(self) -> Numbers:
        """chunks_per_part, part_bytes, half_bytes of every rank's spaces, in a row."""
        return np.array(
            [
                n
                for of in self.spaces
                for space in of
                for n in (space.chunks_per_part, space.part_bytes, space.half_bytes)
            ],
            np.uint64,
        )

    def set_semaphores(self, rank: int, wire: Bytes) -> None:
        """Writes the initial values of a rank's semaphores into its wire window, before the first launch."""
        for place, value in enumerate(self.ranks[rank].semaphores):
            at = self.semaphores_at + place * 2 * _LINE
            wire[at : at + 8] = np.frombuffer(np.uint64(value).tobytes(), np.uint8)

    def most_bytes(self, space: int) -> int:
        """The largest size of a space on any rank."""
        return max(of[space].size_bytes for of in self.spaces)


def link(plan: Plan, elements: Sequence[int], element_bytes: int, *, slot_bytes: int | None = None) -> LinkedPlan:
    """The plan for these numbers of input elements, one a rank (of a rank without an input, such as a broadcast's leaf, those of its output).

    slot_bytes: data that a slot holds at most, None: by protocol. Raises ValueError for elements that the collective can't have, and for plans that
    can't be run here: more than 64 ranks, an end of a connection that is missing.
    """
    if plan.ranks > MOST_RANKS:
        raise ValueError(f"plan {plan.name!r} is for {plan.ranks} ranks; at most {MOST_RANKS} are run here")
    if len(elements) != plan.ranks:
        raise ValueError(f"plan {plan.name!r} is for {plan.ranks} ranks, inputs of {len(elements)} are given")
    ranks = tuple(plan)
    in_place = not plan.out_of_place
    shapes = [_shapes(plan, rank, elements, element_bytes) for rank in ranks]
    rows = [rank.instructions for rank in ranks]
    lines = any((rank.connections["protocol"] == Protocol.LL128).any() for rank in ranks)
    grain = np.lcm(_LINE, _LINE_OF_LL128).item() if lines else _LINE
    largest = max(
        (space.part_bytes / space.chunks_per_part for both in shapes for space in both if space.chunks_per_part),
        default=0,
    )
    chunk = _up(max(1, int(np.ceil(largest))), grain)
    messages = [row["count"][np.isin(row["op"], _FIFO)] for row in rows]
    most_chunks = max((int(counts.max()) for counts in messages if len(counts)), default=0)
    sliced = any((row["op"] == Op.SLICES).any() for row in rows)
    protocols = {Protocol(int(p)) for rank in ranks for p in _fifo_protocols(rank)}
    run = _run_bytes(chunk, most_chunks, grain, [slot_bytes or _SLOT_BYTES[p] for p in protocols], sliced)
    runs = -(-chunk // run)
    layout = _Layout(plan, ranks, run * most_chunks)
    has_packets = any(np.isin(row["op"], _PACKETS).any() for row in rows)
    halves = 2 if plan.double_scratch else 1
    spaces = []
    for rank, (source, target) in zip(ranks, shapes, strict=True):
        scratch = max(rank.scratch_chunks, 1) * chunk if rank.scratch_chunks else 0
        packets = 2 * scratch if has_packets else 0
        spaces.append(
            (
                source, target, SpaceOf(halves, _NEVER, scratch, scratch if halves > 1 else 0),
                SpaceOf(halves, _NEVER, packets, packets if halves > 1 else 0),
            )
        )  # fmt: skip
    linked = tuple(
        LinkedRank(
            rank,
            layout.ways(place),
            _groups(rank),
            np.array(
                [
                    number
                    for block in range(len(rank.blocks))
                    for number in (_times_set(rank, block, chunk), _leading_sends(rank, block, layout.ways(place)))
                ],
                np.uint64,
            ),
            np.array(rank.semaphores, np.uint64),
        )
        for place, rank in enumerate(ranks)
    )
    reaches = any(_reaches_peers(rank) for rank in ranks)
    return LinkedPlan(
        plan, linked, tuple(spaces), in_place, chunk, run, grain, runs, layout.blocks_at, layout.barriers_at, layout.semaphores_at, layout.proxy_at,
        layout.wire_bytes, reaches,
    )  # fmt: skip


def _bytes(table: Columns) -> Bytes:
    return np.ascontiguousarray(table).view(np.uint8).reshape(-1)


def _up(value: int, grain: int) -> int:
    return -(-value // grain) * grain


def _run_bytes(chunk: int, most_chunks: int, grain: int, slots: list[int], sliced: bool) -> int:
    """Of a chunk, so many that a message of most_chunks fits the smallest slot. A plan that slices by itself is not cut."""
    if not most_chunks or sliced:
        return chunk
    return min(chunk, max(grain, min(slots) // most_chunks // grain * grain))


def _shapes(plan: Plan, rank: RankPlan, elements: Sequence[int], element_bytes: int) -> tuple[SpaceOf, SpaceOf]:
    """Input and output of a rank."""
    given = elements[rank.rank] * element_bytes
    kind, p, chunks = plan.collective, plan.ranks, plan.chunks
    if kind in ("all_to_all_v", "custom"):
        each = _chunk_of_custom(plan, elements) * element_bytes
        return SpaceOf(rank.input_chunks, 1, each), SpaceOf(rank.output_chunks, 1, each)
    if len(set(elements)) > 1:
        raise ValueError(
            f"{kind} needs inputs of one size on all ranks, not {', '.join(map(str, elements[:8]))} elements"
        )
    if kind == "barrier":
        return SpaceOf(1, 1, 0), SpaceOf(1, 1, 0)
    part = chunks // p if chunks >= p else chunks
    whole, own = SpaceOf(1, chunks, given), SpaceOf(1, part, given)
    if kind in ("all_gather", "gather"):
        return own, SpaceOf(p, part, given)
    if kind in ("reduce_scatter", "scatter", "all_to_all"):
        if elements[rank.rank] % p:
            raise ValueError(f"{kind}: {elements[rank.rank]} elements have no equal part for each of {p} ranks")
        parts = SpaceOf(p, part, given // p)
        return parts, parts if kind == "all_to_all" else SpaceOf(1, part, given // p)
    return whole, whole


def _chunk_of_custom(plan: Plan, elements: Sequence[int]) -> int:
    """Elements of a chunk, from those ranks that have input."""
    found = set()
    for rank, count in zip(plan, elements, strict=True):
        chunks = rank.input_chunks
        if chunks and count % chunks:
            raise ValueError(
                f"rank {rank.rank} of plan {plan.name!r} has {chunks} chunks of input; {count} elements can't be cut so"
            )
        if chunks:
            found.add(count // chunks)
        elif count:
            raise ValueError(f"rank {rank.rank} of plan {plan.name!r} has no input; {count} elements are given")
    if len(found) > 1:
        raise ValueError(
            f"plan {plan.name!r}: ranks give chunks of {sorted(found)} elements; all chunks are of one size"
        )
    return found.pop() if found else 0


def _fifo_protocols(rank: RankPlan) -> Columns:
    kinds = rank.connections["kind"]
    found: Columns = rank.connections["protocol"][
        (kinds == ConnectionKind.FIFO_OUT) | (kinds == ConnectionKind.FIFO_IN)
    ]
    return found


def _reaches_peers(rank: RankPlan) -> bool:
    """Whether a row of this rank may touch a peer's input or output."""
    op = rank.instructions["op"]
    owner = np.maximum.accumulate(np.where(op != Op.OPERAND, np.arange(len(op)), 0)) if len(op) else op
    acts = np.isin(op[owner], _REACHES_PEERS) & (rank.instructions["via"] >= 0)
    users = (Buffer.INPUT, Buffer.OUTPUT)
    touches = np.isin(rank.instructions["src_buffer"], users) | np.isin(rank.instructions["dst_buffer"], users)
    return bool((acts & touches).any())


def _groups(rank: RankPlan) -> npt.NDArray[np.uint32]:
    """program.hpp, Multicast: members, then ranks."""
    table = np.zeros((len(rank.groups), 1 + MOST_RANKS), np.uint32)
    for place, group in enumerate(rank.groups):
        table[place, 0] = len(group.ranks)
        table[place, 1 : 1 + len(group.ranks)] = group.ranks
    return table


def _times_set(rank: RankPlan, block: int, chunk_bytes: int) -> int:
    """How often a block sets its flag in a run."""
    rows = rank.rows(block)

    def times(first: int, last: int) -> int:
        total, at = 0, first
        while at < last:
            row = rows[at]
            if row["op"] in (Op.LOOP, Op.SLICES):
                body = at + 1 + int(row["dst"])
                turns = (
                    int(row["count"])
                    if row["op"] == Op.LOOP
                    else -(-int(row["count"]) * chunk_bytes // int(row["src"]))
                )
                total += turns * times(at + 1, body)
                at = body
                continue
            total += row["op"] == Op.FLAG_SET
            at += 1
        return total

    return times(0, len(rows))


def _leading_sends(rank: RankPlan, block: int, ways: Columns) -> int:
    """How many rows at the start of a block may be run before the block's run before has ended: sends of what is there from the beginning.

    Runs touch different bytes, so only the FIFO's order counts: no later row of the block sends there, and its slots hold the messages of two
    runs. Then all of one run can end without the sends ahead of the next but one, and nobody waits in a circle.
    """
    if np.any(rank.walks["via_step"]):
        return 0
    rows = rank.rows(block)
    connection = [(int(way["peer"]), int(way["their"])) for way in ways]
    sent: dict[tuple[int, int], int] = {}
    leads = 0
    while leads < len(rows) and rows[leads]["op"] == Op.SEND:
        to = connection[rows[leads]["via"]]
        sent[to] = sent.get(to, 0) + 1
        if 2 * sent[to] > ways[rows[leads]["via"]]["slots"]:
            return 0
        leads += 1
    later = rows[leads:]
    others = later["via"][np.isin(later["op"], (*_FIFO, Op.OPERAND)) & (later["via"] >= 0)]
    return 0 if any(connection[via] in sent for via in others) else leads


class _Layout:
    """Where counters and slots lie in each rank's wire window. The first line is the report."""

    def __init__(self, plan: Plan, ranks: tuple[RankPlan, ...], message_bytes: int) -> None:
        self._plan, self._ranks = plan, ranks
        barriers = max((1 + int(via.max()) for via in map(_barriers_of, ranks) if len(via)), default=0)
        self.blocks_at = _LINE
        self.barriers_at = self.blocks_at + 2 * _LINE * max(len(rank.blocks) for rank in ranks)
        self.semaphores_at = self.barriers_at + _LINE * barriers
        self._places: list[dict[tuple[int, ...], tuple[int, int, int]]] = []
        ends = []
        self.proxy_at = self.semaphores_at + 2 * _LINE * max(len(rank.semaphores) for rank in ranks)
        begin = self.proxy_at + 2 * _LINE
        for rank in ranks:
            at, places = begin, dict[tuple[int, ...], tuple[int, int, int]]()
            for key, slots, slot_bytes in self._connections(rank, message_bytes):
                if key in places:
                    continue
                places[key] = (at, at + _LINE, at + 2 * _LINE)
                room = {
                    ConnectionKind.FIFO_IN: slots * slot_bytes,
                    ConnectionKind.PORT: _RING_HEAD_BYTES + slots * slot_bytes,
                }
                at += 2 * _LINE + room.get(ConnectionKind(key[0]), 0)
            self._places.append(places)
            ends.append(at)
        self.wire_bytes = max(ends)
        self._message_bytes = message_bytes

    def _connections(self, rank: RankPlan, message_bytes: int) -> Iterator[tuple[tuple[int, ...], int, int]]:
        """(kind, peer, channel), slots and bytes of one, of every connection that has counters."""
        for connection in rank.connections:
            kind = int(connection["kind"])
            if kind not in (ConnectionKind.MAPPED, ConnectionKind.SWITCH):
                yield (
                    (kind, int(connection["peer"]), int(connection["channel"])),
                    *_slots(rank, connection, self._ranks, message_bytes),
                )

    def ways(self, place: int) -> Columns:
        """WAY rows of a rank's connections."""
        rank = self._ranks[place]
        out = np.zeros(len(rank.connections), WAY)
        for row, connection in zip(out, rank.connections, strict=True):
            kind, peer, channel = int(connection["kind"]), int(connection["peer"]), int(connection["channel"])
            row["kind"], row["protocol"], row["peer"] = kind, connection["protocol"], peer
            if kind in (ConnectionKind.MAPPED, ConnectionKind.SWITCH):
                continue
            opposite = {
                ConnectionKind.FIFO_OUT: ConnectionKind.FIFO_IN,
                ConnectionKind.FIFO_IN: ConnectionKind.FIFO_OUT,
            }.get(ConnectionKind(kind), ConnectionKind(kind))
            mine = self._places[place][kind, peer, channel]
            theirs = self._places[peer].get((int(opposite), place, channel))
            if theirs is None:
                raise ValueError(
                    f"plan {self._plan.name!r}: rank {place} has a {ConnectionKind(kind).name} connection {channel} with rank {peer}, which has "
                    "no other end of it; `busbw verify` says more"
                )
            row["mine"], row["count_at"], row["their"] = mine[0], mine[1], theirs[0]
            row["slots"], row["slot_bytes"] = _slots(rank, connection, self._ranks, self._message_bytes)
            row["slots_at"] = (theirs if kind == ConnectionKind.FIFO_OUT else mine)[2]
        return out


def _barriers_of(rank: RankPlan) -> Columns:
    via: Columns = rank.instructions["via"][rank.instructions["op"] == Op.BARRIER]
    return via


def _slots(rank: RankPlan, connection: Any, ranks: tuple[RankPlan, ...], message_bytes: int) -> tuple[int, int]:
    """Slots of a FIFO, the fewer of what its ends say, and bytes of one."""
    kind, protocol = ConnectionKind(int(connection["kind"])), Protocol(int(connection["protocol"]))
    if kind is ConnectionKind.PORT:
        return _RING_ORDERS, _LINE
    if kind not in (ConnectionKind.FIFO_OUT, ConnectionKind.FIFO_IN):
        return 0, 0
    other = ConnectionKind.FIFO_IN if kind is ConnectionKind.FIFO_OUT else ConnectionKind.FIFO_OUT
    table = ranks[int(connection["peer"])].connections
    ends = table[(table["kind"] == other) & (table["peer"] == rank.rank) & (table["channel"] == connection["channel"])]
    said = [int(n) for n in (connection["slots"], *ends["slots"]) if n]
    slots = min([FIFO_SLOTS[protocol], *said]) if not said else min(said)
    wire = {Protocol.LL: 2 * message_bytes, Protocol.LL128: -(-message_bytes // _LINE_OF_LL128) * 128}.get(
        protocol, message_bytes
    )
    return slots, _up(max(wire, _LINE), _LINE)
