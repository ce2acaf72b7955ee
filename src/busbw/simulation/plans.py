"""Plans as task programs: each thread block a stream, each connection a channel with its slots and credits.

A block works through its instructions in order. A SEND waits for a slot, a receive for a filled one; a slot that a receive has emptied is known
to the sender one latency later. Inside an NVLink domain the block itself stores the bytes, so it goes on when they have left; through the network a
proxy sends them, and the block goes on at once. A plan runs tile by tile, and messages are cut into slices, as the runtime says (`runtimes.py`):
so slots, slices and credits limit how far transfers overlap, whatever the algorithm.
Ranks whose blocks do the same to peers that do the same share one stream (colour refinement), so a plan's program is as small as its kinds of ranks.
Local copies and sums take no time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from busbw.collectives.plan import ConnectionKind, Op, Plan, Protocol, RankPlan
from busbw.hardware.links import IntArray
from busbw.simulation.limits import Watch
from busbw.simulation.peers import Peers, Table, rule
from busbw.simulation.plan_blocks import Block, BlockCode, End, protocol_of
from busbw.simulation.program import (
    Carried,
    Channel,
    Drain,
    Free,
    Instruction,
    Loop,
    Put,
    Receive,
    Send,
    Stream,
    Take,
    TaskProgram,
)
from busbw.simulation.runtimes import NCCL, Runtime

__all__ = ["plan_program"]

Outside = Callable[[IntArray, IntArray], NDArray[np.bool_]]
"""Which pairs of ranks reach each other through the network."""

_CONTROL = (Op.LOOP, Op.SLICES, Op.FLAG_SET, Op.FLAG_WAIT)
"""Instructions whose src and dst are numbers, not chunks."""
_THROUGH_FIFOS = (
    Op.SEND,
    Op.RECV,
    Op.RECV_COPY_SEND,
    Op.RECV_REDUCE_COPY,
    Op.RECV_REDUCE_SEND,
    Op.RECV_REDUCE_COPY_SEND,
)


def plan_program(
    plan: Plan,
    size_bytes: int,
    outside: Outside,
    runtime: Runtime = NCCL,
    watch: Watch | None = None,
) -> TaskProgram:
    """What every thread block does when a plan moves size_bytes. outside: which pairs of ranks have the network between them.

    Raises ValueError for instructions that are not simulated, and for connections whose two ends
    do not meet.
    """
    reader = _Reader(plan, size_bytes, outside, runtime)
    for rank in range(plan.ranks):
        reader.read(plan.rank(rank))
        if watch is not None:
            watch.look(f"rank {rank} of {plan.ranks} of the plan was read")
    return reader.program()


@dataclass(slots=True)
class _Reader:
    plan: Plan
    size_bytes: int
    outside: Outside
    runtime: Runtime
    ranks: list[tuple[RankPlan, bytes]] = field(default_factory=list)
    """Each without its instructions, and what kind it is."""
    samples: dict[bytes, tuple[RankPlan, NDArray[np.bool_]]] = field(default_factory=dict)
    """A rank of each kind, and which of its connections cross the network."""
    most_chunks: dict[Protocol, int] = field(default_factory=dict)
    """Chunks of the longest message."""
    blocks: list[Block] = field(default_factory=list)
    """Of all ranks, one after another."""
    rank_of: list[int] = field(default_factory=list)
    place_of: list[int] = field(default_factory=list)
    out_ends: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)
    in_ends: dict[tuple[object, ...], tuple[int, int]] = field(default_factory=dict)
    peers: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    """Ranks that an end out of a block reaches."""

    def read(self, rank: RankPlan) -> None:
        """Takes in a rank."""
        connections = rank.connections
        peer = connections["peer"].astype(np.int64)
        switched = connections["kind"] == ConnectionKind.SWITCH
        crossing = np.zeros(len(peer), bool)
        here = np.full(len(peer), rank.rank, np.int64)
        crossing[~switched] = self.outside(here[~switched], peer[~switched])
        key = _key(rank, crossing)
        if key not in self.samples:
            self.samples[key] = rank, crossing
            through = np.isin(rank.instructions["op"], [int(op) for op in _THROUGH_FIFOS])
            for row in rank.instructions[through]:
                protocol = protocol_of(self.plan, rank, int(row["via"]))
                self.most_chunks[protocol] = max(self.most_chunks.get(protocol, 1), int(row["count"]))
        self.ranks.append((dataclasses.replace(rank, instructions=rank.instructions[:0]), key))

    def tiles(self) -> list[tuple[int, int]]:
        """How often the plan runs, and the bytes of all chunks together in each of these runs."""
        chunks, size = max(self.plan.chunks, 1), self.size_bytes
        most = [
            (cap, count)
            for cap, count in ((self.runtime.fifo(p).chunk_bytes, n) for p, n in self.most_chunks.items())
            if cap is not None
        ]
        if not most:
            return [(1, size)]
        whole = max(1, min(cap // count for cap, count in most)) * chunks
        full, rest = divmod(size, whole)
        if not full:
            return [(1, size)]
        return [(full, whole), *([(1, rest)] if rest else [])]

    def lay_out(self) -> None:
        """The blocks of all ranks and the ends of their connections."""
        tiles = self.tiles()
        kinds = {
            key: tuple(
                BlockCode(self.plan, self.runtime, rank, place, crossing, tiles).block()
                for place in range(len(rank.blocks))
            )
            for key, (rank, crossing) in self.samples.items()
        }
        for rank, key in self.ranks:
            for place, block in enumerate(kinds[key] or (Block((), (), (), (), ()),)):
                stream = len(self.blocks)
                self.blocks.append(block)
                self.rank_of.append(rank.rank)
                self.place_of.append(place)
                for ordinal, end in enumerate(block.out):
                    self.note(self.out_ends, self.name(rank, place, end, True), (stream, ordinal))
                    self.peers[stream, ordinal] = self.reached(rank, end)
                for ordinal, end in enumerate(block.into):
                    self.note(self.in_ends, self.name(rank, place, end, False), (stream, ordinal))

    def note(
        self, ends: dict[tuple[object, ...], tuple[int, int]], name: tuple[object, ...], at: tuple[int, int]
    ) -> None:
        """Remembers an end. Raises ValueError where another block has it already."""
        other = ends.setdefault(name, at)
        if other != at:
            one, two = (f"block {self.place_of[stream]} of rank {self.rank_of[stream]}" for stream, _ in (other, at))
            raise ValueError(
                f"plan {self.plan.name}: {one} and {two} share {_said(name)}, and which of them a message is for cannot be told. "
                "Give each block a channel of its own."
            )

    def name(self, rank: RankPlan, place: int, end: End, out: bool) -> tuple[object, ...]:
        """What both ends of a way call it."""
        if end.what == "token":
            return ("token", rank.rank, end.number)
        if end.kind is not Carried.MESSAGE:
            return ("own", rank.rank, place, end)
        row = rank.connections[end.number]
        ends = (rank.rank, int(row["peer"])) if out else (int(row["peer"]), rank.rank)
        kind = "fifo" if end.what == "fifo" else ("memory", int(row["kind"]))
        return (kind, *ends, int(row["channel"]))

    def reached(self, rank: RankPlan, end: End) -> tuple[int, ...]:
        """Ranks at the other ends."""
        if end.what == "token":
            return (rank.rank,)
        row = rank.connections[end.number]
        if row["kind"] == ConnectionKind.SWITCH:
            return tuple(peer for peer in rank.groups[int(row["peer"])].ranks if peer != rank.rank)
        return (int(row["peer"]),)

    def program(self) -> TaskProgram:
        """Blocks by kind, and the channels between kinds."""
        self.lay_out()
        meets = self.met()
        colour = _refined(self.kind_of(), meets)
        rank = np.array(self.rank_of)
        order = np.argsort(colour, kind="stable")
        first = np.flatnonzero(np.r_[True, np.diff(colour[order]) != 0])
        groups = [group[np.argsort(rank[group])] for group in np.split(order, first[1:])]
        names = tuple(f"block{self.place_of[int(group[0])]}.{number}" for number, group in enumerate(groups))
        colouring = _Colouring(colour, names, meets)
        channels, streams = [], []
        for group in groups:
            lead = int(group[0])
            block, name = self.blocks[lead], colouring.name(lead)
            channels += [self.channel(group, ordinal, colouring) for ordinal in range(len(block.out))]
            known = {f"out{o}": f"{name}.{o}" for o in range(len(block.out))}
            for ordinal, end in enumerate(block.into):
                sender, there = meets[lead][len(block.out) + ordinal]
                if end.kind is not Carried.MESSAGE:
                    sender, there = lead, block.out.index(end)
                known[f"in{ordinal}"] = f"{colouring.name(sender)}.{there}"
            streams.append(Stream(name, _renamed(block.body, known), rank[group]))
        return TaskProgram(
            self.plan.ranks, tuple(streams), tuple(channels), {"plan": self.plan.name, "runtime": self.runtime.name}
        )

    def kind_of(self) -> list[int]:
        """A number for what each block does, its place in its rank included."""
        known: dict[tuple[int, int], int] = {}
        return [
            known.setdefault((id(block), place), len(known))
            for block, place in zip(self.blocks, self.place_of, strict=True)
        ]

    def met(self) -> list[list[tuple[int, int]]]:
        """Of each block for each end, out and then in, the block and end that it meets; (-1, 0) where nobody waits."""
        found: list[list[tuple[int, int]]] = [[(-1, 0)] * (len(b.out) + len(b.into)) for b in self.blocks]
        for name, (stream, ordinal) in self.out_ends.items():
            end = self.blocks[stream].out[ordinal]
            if name[0] == "own":
                continue
            other = self.in_ends.get(name)
            if other is None:
                if end.what == "fifo":
                    raise ValueError(f"plan {self.plan.name}: nobody receives on {_said(name)}")
                continue
            found[stream][ordinal] = other
            found[other[0]][len(self.blocks[other[0]].out) + other[1]] = (stream, ordinal)
        for name, (stream, ordinal) in self.in_ends.items():
            block = self.blocks[stream]
            if name[0] != "own" and found[stream][len(block.out) + ordinal][0] < 0:
                raise ValueError(
                    f"plan {self.plan.name}: nobody sends on {_said(name)}, and rank {self.rank_of[stream]} waits"
                )
        return found

    def channel(self, group: IntArray, ordinal: int, colouring: _Colouring) -> Channel:
        """The connections of one end of all blocks of a kind."""
        lead = int(group[0])
        block = self.blocks[lead]
        end = block.out[ordinal]
        source = colouring.name(lead)
        ranks = np.array([self.rank_of[s] for s in group], np.int64)
        to = np.array([self.peers[int(s), ordinal] for s in group], np.int64)
        name = f"{source}.{ordinal}"
        if end.kind is not Carried.MESSAGE:
            tree = self.rule(ranks, to[:, 0]) if end.kind is Carried.PULL else Table(ranks, to)
            return Channel(name, source, source, tree, kind=end.kind)
        other = colouring.meets[lead][ordinal][0]
        if other < 0:  # puts that no signal follows: told to whatever the peers run first
            others = {colouring.name(self.rank_of.index(int(peer))) for peer in to[:, 0]}
            if len(others) > 1:
                raise ValueError(
                    f"plan {self.plan.name}: rank {ranks[0]} and others put data that nobody waits for, to ranks of different kinds. "
                    "Let a signal follow the puts."
                )
            target = others.pop()
        else:
            target = colouring.name(other)
        peers = self.rule(ranks, to[:, 0])
        if end.what == "token":
            return Channel(name, source, target, peers, token=True)
        made = Channel(name, source, target, peers)
        if self.runtime.nic_gap_s and self.outside(ranks[:1], to[:1, 0])[0]:
            made = dataclasses.replace(made, gap_s=self.runtime.nic_gap_s, injector="nic")
        protocol = block.fifos[ordinal]
        if protocol is None:
            return made
        fifo = self.runtime.fifo(protocol)
        slots = block.slots[ordinal] or fifo.messages
        return dataclasses.replace(made, slots=slots, credit=True, overhead_s=fifo.overhead_s)

    def rule(self, ranks: IntArray, to: IntArray) -> Peers:
        return rule(ranks, to, np.zeros(len(ranks), np.int64), (self.plan.ranks,))[0]


@dataclass(frozen=True, slots=True)
class _Colouring:
    """Kinds of blocks by what they do and whom they meet."""

    colour: IntArray
    """(B,)."""
    names: tuple[str, ...]
    meets: list[list[tuple[int, int]]]

    def name(self, block: int) -> str:
        """The stream of a block."""
        return self.names[int(self.colour[block])]


def _said(name: tuple[object, ...]) -> str:
    if name[0] == "token":
        return f"a flag or semaphore of rank {name[1]}"
    what = "the FIFO" if name[0] == "fifo" else "the memory connection"
    return f"{what} from rank {name[1]} to rank {name[2]} on channel {name[3]}"


def _key(rank: RankPlan, crossing: NDArray[np.bool_]) -> bytes:
    """What decides which instructions blocks run, but not with whom or on which chunks."""
    rows = rank.instructions.copy()
    walks = rank.walks[rows["walk"]]
    flags = rows["op"] == Op.FLAG_WAIT
    moving = ~np.isin(rows["op"], [int(op) for op in _CONTROL])
    for side in ("src", "dst"):
        rows[side] = np.where(moving, np.minimum(rows[side], 0), rows[side])
    rows["walk"] = rows["src_buffer"] = rows["dst_buffer"] = rows["order"] = rows["reduction"] = 0
    steps = np.concatenate(
        [walks["via_step"], np.where(flags[:, None], walks["src_step"], 0), walks["parts"][:, None]], axis=1
    )
    kinds = rank.connections.copy()
    kinds["peer"] = kinds["channel"] = 0
    groups = repr([len(group.ranks) for group in rank.groups])
    parts = (rows, rank.blocks, steps, kinds, crossing)
    return b"|".join(
        (*(np.ascontiguousarray(part).tobytes() for part in parts), groups.encode(), repr(rank.semaphores).encode())
    )


def _renamed(body: tuple[Instruction, ...], known: Mapping[str, str]) -> tuple[Instruction, ...]:
    found: list[Instruction] = []
    for step in body:
        if isinstance(step, Loop):
            found.append(Loop(step.times, _renamed(step.body, known)))
        elif isinstance(step, (Send, Put, Receive, Take, Free, Drain)):
            found.append(dataclasses.replace(step, channel=known[step.channel]))
        else:
            found.append(step)
    return tuple(found)


def _refined(kind: list[int], meets: list[list[tuple[int, int]]]) -> IntArray:
    """(B,) colours of blocks: equal where they are of one kind and meet, end by end, blocks of one colour at the same ends."""
    colour = np.array(kind, np.int64)
    groups = [np.flatnonzero(colour == each) for each in np.unique(colour)]
    tables = [np.array([meets[b] for b in group], np.int64).reshape(len(group), -1, 2) for group in groups]
    count = len(groups)
    while True:
        found, colours = np.empty_like(colour), 0
        for group, table in zip(groups, tables, strict=True):
            other, end = table[:, :, 0], table[:, :, 1]
            rows = np.concatenate([colour[group][:, None], np.where(other >= 0, colour[other], -1), end], axis=1)
            unique, inverse = np.unique(rows, axis=0, return_inverse=True)
            found[group] = colours + np.ravel(inverse)
            colours += len(unique)
        colour = found
        if colours == count:
            return colour
        count = colours
