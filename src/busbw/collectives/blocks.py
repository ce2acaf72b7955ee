"""Blocks split by peer: for runtimes whose thread blocks have one peer to send to and one to receive from.

A plan's block that talks to many peers becomes one block for each end of a FIFO. What stood in order before is ordered by flags where it must be:
where two instructions touch the same memory and one of them writes. All else may now run at the same time. No plan deadlocks by that: each order
in which the old blocks could run is one in which the new ones can, and FIFOs keep their order, as each has one block still.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np

from busbw.collectives.legality import aliases
from busbw.collectives.plan import (
    LOCAL,
    NO_INDEX,
    Buffer,
    Columns,
    ConnectionKind,
    Op,
    Order,
    Plan,
    RankBuilder,
    RankPlan,
)

__all__ = ["split_blocks", "spread_channels"]

_FUSED = (Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY_SEND, Op.RECV_REDUCE_SEND)
_MOVES = (Op.SEND, Op.RECV, Op.RECV_REDUCE_COPY, *_FUSED, Op.COPY, Op.REDUCE)
_APART = {Op.RECV_COPY_SEND: Op.RECV, Op.RECV_REDUCE_COPY_SEND: Op.RECV_REDUCE_COPY}
_Lane: TypeAlias = tuple[int, int, int]
"""A block to be: old block, and the connections (`via`) through which it sends and receives, LOCAL: none."""
_Clock: TypeAlias = dict[_Lane, int]
"""How many moves of each lane have been done."""


def split_blocks(plan: Plan) -> Plan:
    """The plan with one peer to send to, and one to receive from, for each block.

    A rank whose blocks have no more peers stays as it is. So does one that uses more than FIFOs, flags and its own memory, or sends on to several
    peers what it does not keep. Sends and receives get blocks of their own, but for instructions that do both.

    >>> from busbw.collectives.algorithms import direct_all_gather
    >>> from busbw.collectives.lowering import plan_of
    >>> plan = plan_of(direct_all_gather().bind(4))
    >>> len(plan.rank(0).blocks), len(split_blocks(plan).rank(0).blocks)
    (1, 6)
    """
    if not plan.blocks_in_order:
        return plan

    def split(rank: int) -> RankPlan:
        old = plan.rank(rank)
        if not any(_crowded(old, block) for block in range(len(old.blocks))):
            return old
        return _split(plan, old.unrolled()) or old

    return replace(plan, rank_plan=split)


def _crowded(rank: RankPlan, block: int) -> bool:
    """Whether a block has two peers in one direction, or connections of two channels. Loops over peers count as many."""
    rows = rank.rows(block)
    if rank.walks["via_step"][rows["walk"]].any():
        rank = rank.unrolled()
        rows = rank.rows(block)
    used = set(_connected(rows))
    kinds = Counter(int(rank.connections[via]["kind"]) for via in used)
    channels = {int(rank.connections[via]["channel"]) for via in used}
    return max(kinds.values(), default=0) > 1 or len(channels) > 1


def _connected(rows: Columns) -> list[int]:
    """The connections that rows use."""
    moving = (rows["op"] < Op.SYNC) | (rows["op"] == Op.OPERAND)
    return [int(via) for via in np.unique(rows["via"][moving & (rows["via"] != LOCAL)])]


@dataclass(slots=True)
class _Move:
    """An instruction: its rows, and once it has a lane, its place there and what it waits for."""

    rows: list[tuple[int, ...]]
    reads: list[tuple[int, int, int]]  # buffer, first chunk, chunks
    writes: list[tuple[int, int, int]]
    out: int = LOCAL
    into: int = LOCAL
    lane: _Lane = (0, LOCAL, LOCAL)
    waits: list[tuple[_Lane, int]] = field(default_factory=list)
    flagged: bool = False


@dataclass(frozen=True, slots=True)
class _Wait:
    """The wait of a block for another's flag."""

    block: int
    times: int


class _Set:
    """A flag that is set."""


_Item: TypeAlias = _Move | _Wait | _Set


def _split(plan: Plan, rank: RankPlan) -> RankPlan | None:
    """The rank with its blocks split; None if it has more than can be split."""
    blocks: list[list[_Item]] = []
    for block in range(len(rank.blocks)):
        items = _items(rank, block)
        if items is None:
            return None
        blocks.append(items)
    lanes = _Lanes(plan, rank)
    if not lanes.run(blocks):
        return None
    return lanes.build()


def _items(rank: RankPlan, block: int) -> list[_Item] | None:
    """The instructions of a block, those apart that receive for one peer and send on to another of several."""
    rows = rank.rows(block)
    moves: list[list[Columns]] = []
    ops: list[Op] = []
    for row, code in zip(
        rows, rows["op"].tolist(), strict=True
    ):  # numbers: numpy takes 2 us to compare one with a member of an enumeration
        if code == Op.OPERAND:
            moves[-1].append(row)
        else:
            moves.append([row])
            ops.append(Op(code))
    pairs = _kept_pairs(move for op, move in zip(ops, moves, strict=True) if op in _FUSED)
    items: list[_Item] = []
    for op, move in zip(ops, moves, strict=True):
        if op is Op.SYNC:
            continue  # within one block, whose instructions are in order anyway
        if op is Op.FLAG_SET and int(move[0]["order"]) == Order.RELEASE:
            items.append(_Set())
        elif op is Op.FLAG_WAIT and int(move[0]["order"]) == Order.ACQUIRE:
            items.append(_Wait(int(move[0]["via"]), int(move[0]["src"])))
        elif op in _FUSED and (int(move[0]["via"]), int(move[-1]["via"])) not in pairs:
            if op not in _APART or len(move) > 2:
                return None
            items += _apart(rank, op, move)
        elif op in _MOVES and all(_is_plain(rank, row) for row in move):
            items.append(_move(rank, move))
        else:
            return None
    return items


def _kept_pairs(fused: Iterator[list[Columns]]) -> set[tuple[int, int]]:
    """(receives from, sends to) of the instructions that stay whole: each connection in one pair, the most used first."""
    counted = Counter((int(move[0]["via"]), int(move[-1]["via"])) for move in fused)
    taken: set[int] = set()
    pairs = set()
    for pair, _ in counted.most_common():
        if not taken & set(pair):
            taken |= set(pair)
            pairs.add(pair)
    return pairs


def _is_plain(rank: RankPlan, row: Columns) -> bool:
    """Whether a row is local, or goes through a FIFO."""
    via = int(row["via"])
    return via == LOCAL or int(rank.connections[via]["kind"]) in (ConnectionKind.FIFO_IN, ConnectionKind.FIFO_OUT)


def _move(rank: RankPlan, rows: Sequence[Columns]) -> _Move:
    places: dict[str, list[tuple[int, int, int]]] = {"src": [], "dst": []}
    ends = {ConnectionKind.FIFO_OUT: LOCAL, ConnectionKind.FIFO_IN: LOCAL}
    for row in rows:
        for side, found in places.items():
            buffer = int(row[f"{side}_buffer"])
            if buffer != Buffer.NONE:
                found.append((buffer, int(row[side]), int(row["count"])))
        if int(row["via"]) != LOCAL:
            ends[ConnectionKind(int(rank.connections[row["via"]]["kind"]))] = int(row["via"])
    return _Move(
        [row.item() for row in rows],
        places["src"],
        places["dst"],
        ends[ConnectionKind.FIFO_OUT],
        ends[ConnectionKind.FIFO_IN],
    )


def _apart(rank: RankPlan, op: Op, rows: Sequence[Columns]) -> list[_Item]:
    """A receive that keeps what it got, and the send of that."""
    first, onward = rows[0].copy(), rows[0].copy()
    first["op"], first["more"] = _APART[op], 0
    onward["op"], onward["more"], onward["via"] = Op.SEND, 0, rows[1]["via"]
    onward["src_buffer"], onward["src"] = first["dst_buffer"], first["dst"]
    onward["dst_buffer"], onward["dst"], onward["reduction"] = Buffer.NONE, NO_INDEX, 0
    return [_move(rank, [first]), _move(rank, [onward])]


def _join(into: _Clock, other: _Clock) -> None:
    for lane, count in other.items():
        into[lane] = max(into.get(lane, 0), count)


class _Memory:
    """Which moves of one old block wrote and read each chunk last, in each way in which input and output may share memory."""

    def __init__(self, plan: Plan, rank: RankPlan) -> None:
        self.bases = []
        for in_place, meant in ((True, plan.in_place), (False, plan.out_of_place)):
            if meant:
                input_at, output_at, end = aliases(plan, rank, in_place)
                self.bases.append((input_at, output_at, end))
        self.written: dict[tuple[int, int], tuple[_Lane, int]] = {}
        self.read: dict[tuple[int, int], _Clock] = {}

    def cells(self, places: list[tuple[int, int, int]]) -> Iterator[tuple[int, int]]:
        """(way, chunk of memory) of all chunks of these places."""
        for way, bases in enumerate(self.bases):
            for buffer, first, count in places:
                yield from ((way, bases[buffer] + first + chunk) for chunk in range(count))

    def before(self, move: _Move) -> _Clock:
        """What must have been done before a move may touch what it touches."""
        needed: _Clock = {}
        for cell in self.cells(move.reads):
            if cell in self.written:
                _join(needed, dict([self.written[cell]]))
        for cell in self.cells(move.writes):
            if cell in self.written:
                _join(needed, dict([self.written[cell]]))
            _join(needed, self.read.get(cell, {}))
        return needed

    def done(self, move: _Move, lane: _Lane, count: int) -> None:
        """The move was made, the `count`th of its lane."""
        for cell in self.cells(move.reads):
            self.read.setdefault(cell, {})[lane] = count
        for cell in self.cells(move.writes):
            self.written[cell] = (lane, count)
            self.read.pop(cell, None)


class _Lanes:
    """Puts moves into lanes, in one order in which the old blocks could run."""

    def __init__(self, plan: Plan, rank: RankPlan) -> None:
        self.plan, self.rank = plan, rank
        self.moves: dict[_Lane, list[_Move]] = {}
        self.clocks: dict[_Lane, list[_Clock]] = {}

    def run(self, blocks: list[list[_Item]]) -> bool:
        """Whether every block came to its end; false where one waits for a flag that is never set."""
        sets: list[list[_Clock]] = [[] for _ in blocks]
        pending: list[_Clock] = [{} for _ in blocks]
        own: list[_Clock] = [{} for _ in blocks]
        memory = [_Memory(self.plan, self.rank) for _ in blocks]
        lanes = [_lanes_of(block, items) for block, items in enumerate(blocks)]
        places = [0] * len(blocks)
        moved = True
        while moved:
            moved = False
            for block, items in enumerate(blocks):
                while places[block] < len(items):
                    item = items[places[block]]
                    if isinstance(item, _Wait):
                        if not 0 <= item.block < len(blocks) or item.times > len(sets[item.block]):
                            break
                        if item.times > 0:
                            _join(pending[block], sets[item.block][item.times - 1])
                    elif isinstance(item, _Set):
                        reached = dict(pending[block])
                        _join(reached, own[block])
                        sets[block].append(reached)
                    else:
                        self._place(item, lanes[block][places[block]], memory[block], pending[block])
                        own[block][item.lane] = len(self.moves[item.lane])
                    places[block] += 1
                    moved = True
        return all(place == len(items) for place, items in zip(places, blocks, strict=True))

    def _place(self, move: _Move, lane: _Lane, memory: _Memory, pending: _Clock) -> None:
        needed = memory.before(move)
        if move.out == move.into == LOCAL and needed:  # its own moves go where what they need was done
            lane = max(needed, key=lambda one: (needed[one], one))
        moves = self.moves.setdefault(lane, [])
        clocks = self.clocks.setdefault(lane, [])
        known: _Clock = dict(clocks[-1]) if clocks else {}
        _join(needed, pending)
        open_ = {one: count for one, count in needed.items() if one != lane and count > known.get(one, 0)}
        implied = {
            one
            for one, count in open_.items()
            for other, at in open_.items()
            if other != one and self.clocks[other][at - 1].get(one, 0) >= count
        }
        for one, count in sorted(open_.items()):
            if one not in implied:
                move.waits.append((one, count))
                self.moves[one][count - 1].flagged = True
                _join(known, self.clocks[one][count - 1])
        moves.append(move)
        known[lane] = len(moves)
        clocks.append(known)
        move.lane = lane
        memory.done(move, lane, len(moves))

    def build(self) -> RankPlan:
        """The rank with a block for each lane, in the order in which they were met."""
        builder = RankBuilder(self.rank.rank, 0, 0)
        number = {lane: place for place, lane in enumerate(self.moves)}
        for lane, moves in self.moves.items():
            block, out, into = lane
            ends = [int(self.rank.connections[via]["channel"]) for via in (out, into) if via != LOCAL]
            made = builder.block(ends[0] if ends else int(self.rank.blocks[block]["channel"]))
            for move in moves:
                for other, count in move.waits:
                    made.wait_flag(number[other], sum(one.flagged for one in self.moves[other][:count]))
                made.rows += move.rows
                if move.flagged:
                    made.set_flag()
        built = builder.build()
        return replace(self.rank, instructions=built.instructions, blocks=built.blocks)


def _lanes_of(block: int, items: list[_Item]) -> list[_Lane]:
    """The lane of each item: of its connections; for one of the rank's own, of the next that has any, or the last."""
    pair: dict[int, _Lane] = {}
    for item in items:
        if isinstance(item, _Move) and LOCAL not in (item.out, item.into):
            pair[item.out] = pair[item.into] = (block, item.out, item.into)
    for item in items:
        if isinstance(item, _Move):
            for via, lane in ((item.out, (block, item.out, LOCAL)), (item.into, (block, LOCAL, item.into))):
                if via != LOCAL:
                    pair.setdefault(via, lane)
    found: list[_Lane] = []
    following: _Lane | None = None
    for item in reversed(items):
        if isinstance(item, _Move) and (item.out != LOCAL or item.into != LOCAL):
            following = pair[item.out if item.out != LOCAL else item.into]
        found.append(following if following is not None else (block, LOCAL, LOCAL))
    return found[::-1]


def spread_channels(plan: Plan, most: int) -> Plan:
    """The plan with connections on further channels, so that no rank has more than `most` blocks on one, as far as that goes.

    Connections that share a block stay on one channel together; two from one rank to another never share one. A plan that keeps to `most` stays as it is.
    """
    ranks = list(plan)
    ends = [[_ends(rank, block) for block in range(len(rank.blocks))] for rank in ranks]
    crowded = any(
        max(Counter(_channel(rank, block, met) for block, met in enumerate(blocks)).values(), default=0) > most
        for rank, blocks in zip(ranks, ends, strict=True)
    )
    if not crowded or any(rank.walks["via_step"].any() for rank in ranks):
        return replace(plan, rank_plan=ranks.__getitem__)
    together: dict[_Fifo, _Fifo] = {}

    def first(one: _Fifo) -> _Fifo:
        while together.setdefault(one, one) != one:
            together[one] = together[together[one]]
            one = together[one]
        return one

    for blocks in ends:
        for met in blocks:
            for one in met[1:]:
                together[first(one)] = first(met[0])
    members: dict[_Fifo, list[_Fifo]] = {}
    users: dict[_Fifo, list[int]] = {}
    taken: Counter[tuple[int, int]] = Counter()
    for rank, blocks in zip(ranks, ends, strict=True):
        for block, met in enumerate(blocks):
            if met:
                users.setdefault(first(met[0]), []).append(rank.rank)
            else:
                taken[rank.rank, int(rank.blocks[block]["channel"])] += 1
    for one in together:
        members.setdefault(first(one), []).append(one)
    pairs: set[tuple[int, int, int]] = set()
    channels: dict[_Fifo, int] = {}
    for root, fifos in members.items():
        needed = Counter(users.get(root, ()))
        channel = 0
        while any((channel, *one[1:]) in pairs for one in fifos) or any(
            taken[rank, channel] + n > most for rank, n in needed.items() if n <= most
        ):
            channel += 1
        for one in fifos:
            channels[one] = channel
            pairs.add((channel, *one[1:]))
        taken.update({(rank, channel): n for rank, n in needed.items()})
    return replace(plan, rank_plan=[_rechannelled(rank, channels) for rank in ranks].__getitem__)


_Fifo: TypeAlias = tuple[int, int, int]
"""(channel, source, destination)."""


def _fifo(rank: RankPlan, via: int) -> _Fifo:
    row = rank.connections[via]
    ends = (rank.rank, int(row["peer"]))
    return (int(row["channel"]), *(ends if row["kind"] == ConnectionKind.FIFO_OUT else ends[::-1]))


def _ends(rank: RankPlan, block: int) -> list[_Fifo]:
    """The FIFOs of a block."""
    vias = set(_connected(rank.rows(block)))
    kinds = (ConnectionKind.FIFO_IN, ConnectionKind.FIFO_OUT)
    return [
        _fifo(rank, via)
        for via in sorted(vias)
        if 0 <= via < len(rank.connections) and rank.connections[via]["kind"] in kinds
    ]


def _channel(rank: RankPlan, block: int, ends: list[_Fifo]) -> int:
    return ends[0][0] if ends else int(rank.blocks[block]["channel"])


def _rechannelled(rank: RankPlan, channels: dict[_Fifo, int]) -> RankPlan:
    connections, blocks = rank.connections.copy(), rank.blocks.copy()
    for via in range(len(connections)):
        if connections[via]["kind"] in (ConnectionKind.FIFO_IN, ConnectionKind.FIFO_OUT):
            connections["channel"][via] = channels.get(_fifo(rank, via), connections["channel"][via])
    made = replace(rank, connections=connections)
    for block in range(len(blocks)):
        blocks["channel"][block] = _channel(made, block, _ends(made, block))
    return replace(made, blocks=blocks)
