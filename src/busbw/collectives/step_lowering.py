"""What a rank does, written out step by step, neighbouring chunks joined.

Within a step a rank sends first, then moves its own chunks, then receives; several pieces between the same two ranks go in rounds of one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from busbw.collectives.expansion import COPY, NETWORK, REDUCE, REGIONS, Moves, expand, ragged
from busbw.collectives.expressions import IntArray
from busbw.collectives.layout import Emit, Layout, experts_of, refinement_of
from busbw.collectives.plan import INSTRUCTION, LOCAL, NO_INDEX, BlockBuilder, Buffer, ConnectionKind, Op, Span
from busbw.collectives.schedule import BoundSchedule, Channels, Mode, Node, Par, Pipeline, Seq, Transfer

__all__ = ["MovesByRank", "own_move", "written_out"]

BoolArray: TypeAlias = npt.NDArray[np.bool_]

_SEND, _JOIN, _LOCAL, _RECEIVE = range(4)  # roles; JOIN: a part in what goes through the switch
_PHASE = np.array([0, 0, 1, 2])  # by role: when in a step
_FIRST = -2  # who acts in a JOIN: the first rank of the group


def own_move(block: BlockBuilder, op: Op, source: Span, target: Span) -> None:
    """Adds a move within the rank: a COPY, or a REDUCE into the target."""
    if op is Op.COPY:
        block.copy(source, target)
    else:
        block.add(Op.REDUCE, [(LOCAL, target, target), (LOCAL, source, None)])


@dataclass(frozen=True, slots=True)
class _Acts:
    """Operations of this rank, column by column, one row an operation. A operations.

    Places are in chunks of the plan from the start of a region; what a role does not read or write holds any value.
    """

    step: IntArray  # (A,)
    segment: IntArray  # (A,) `_segments`; operations run in order of (segment, step)
    role: IntArray  # (A,) _SEND, _JOIN, _LOCAL or _RECEIVE
    channel: IntArray  # (A,)
    peer: IntArray  # (A,) of a JOIN: who acts
    read_region: IntArray  # (A,) index into REGIONS
    read_first: IntArray  # (A,)
    written_region: IntArray  # (A,)
    written_first: IntArray  # (A,)
    count: IntArray  # (A,) chunks of the plan
    reduce: IntArray  # (A,) 0 or 1
    transfer: IntArray  # (A,)

    def __len__(self) -> int:
        return len(self.step)

    def taken(self, which: IntArray | BoolArray) -> _Acts:
        """The operations at these places."""
        return _Acts(*(getattr(self, f.name)[which] for f in fields(self)))

    @property
    def reads(self) -> BoolArray:
        """(A,) whether it reads its first place."""
        found: BoolArray = self.role != _RECEIVE
        return found

    @property
    def writes(self) -> BoolArray:
        """(A,) whether it writes its second place."""
        found: BoolArray = self.role != _SEND
        return found


@dataclass(frozen=True, slots=True)
class _Ordered:
    """Operations of some ranks, by rank, lane and order of running. A lane is a channel, or, where channels of a rank touch the same chunks, all of them."""

    acts: _Acts
    begin: IntArray  # (ranks + 1,) where those of each rank begin
    lane: IntArray  # (A,)
    first_rank: int

    def of(self, rank: int) -> tuple[_Acts, IntArray]:
        place = rank - self.first_rank
        rows = np.arange(self.begin[place], self.begin[place + 1])
        return self.acts.taken(rows), self.lane[rows]


class MovesByRank:
    """What each rank of a schedule does, for those who ask for several.

    All moves are written out at once, if they are few: a walk through the tree for each rank takes longer. Where ranks are many, that begins with the third that is asked for.
    Ranks are then worked out some at a time, and the last of these are kept: ask in order. Asking raises ValueError where that comes to more than
    `most_operations` operations.
    """

    def __init__(self, bound: BoundSchedule, most_operations: int | None = None) -> None:
        self.bound = bound
        self._most = most_operations
        self._asked = 0 if bound.ranks > _FEW_RANKS else _FEW_ASKED - 1
        self._all: Moves | None = None
        self._rows: list[tuple[IntArray, IntArray]] = []
        self._at_once = 1
        self._last: _Ordered | None = None

    def ordered(self, rank: int) -> _Ordered:
        """What some ranks do, this one among them."""
        self._asked += 1
        if self._asked == _FEW_ASKED:
            try:
                self._all = expand(self.bound, most=_MOST_MOVES)
            except ValueError:  # too many: rank by rank, then
                self._all = None
            else:
                self._all = self._all.taken(_in_order(self._all))
                self._rows = [_by_rank(end, self.bound.ranks) for end in (self._all.src, self._all.dst)]
                self._at_once = max(1, _MOVES_AT_ONCE * self.bound.ranks // (2 * len(self._all) + 1))
        if self._all is None:
            return _of_one(self.bound, rank, self._most)
        if self._last is None or not 0 <= rank - self._last.first_rank < len(self._last.begin) - 1:
            first = rank - rank % self._at_once
            last = min(first + self._at_once, self.bound.ranks)
            mine = [order[begin[first] : begin[last]] for order, begin in self._rows]
            self._last = _ordered(self.bound, self._all.taken(np.union1d(*mine)), first, last, self._most)
        return self._last


_FEW_ASKED = 3
_FEW_RANKS = 64
"""A guess: up to here all moves take no longer than those of two ranks do."""
_MOST_MOVES = 500_000
"""Moves that are kept, at 104 bytes each. A guess at what nobody misses."""
_MOVES_AT_ONCE = 50_000
"""Moves whose ranks are worked out together. A guess: much more than numpy's overhead, little memory."""


def _of_one(bound: BoundSchedule, rank: int, most: int | None = None) -> _Ordered:
    moves = expand(bound, rank=rank)
    return _ordered(bound, moves.taken(_in_order(moves)), rank, rank + 1, most)


def _in_order(moves: Moves) -> IntArray:
    return np.lexsort((moves.dst_index, moves.src_index, moves.dst, moves.src, moves.transfer, moves.step))


def _by_rank(end: IntArray, ranks: int) -> tuple[IntArray, IntArray]:
    """(places in order of this end, where each rank's begin)."""
    order = np.argsort(end, kind="stable")
    return order, np.searchsorted(end[order], np.arange(ranks + 1))


def written_out(bound: BoundSchedule, rank: int, layout: Layout, known: MovesByRank | None = None) -> dict[int, Emit]:
    """The rank's operations by channel, every step written out."""
    acts, lane = (_of_one(bound, rank) if known is None else known.ordered(rank)).of(rank)

    def emitter(channel: int) -> Emit:
        mine = acts.taken(lane == channel)
        return lambda block: _emit(block, bound, layout, mine)

    return {channel: emitter(channel) for channel in np.unique(lane).tolist()}


def _slices(
    bound: BoundSchedule, node: Node, outer: tuple[tuple[bool, int], ...] = ()
) -> list[tuple[tuple[bool, int], ...]]:
    """For each transfer the slicings around it, outermost first: (whether a pipeline, number of slices)."""
    if isinstance(node, Transfer):
        return [outer]
    if isinstance(node, Seq | Par):
        return [found for child in node.children for found in _slices(bound, child, outer)]
    if isinstance(node, Pipeline):
        outer = (*outer, (True, _at_least_one(bound.value(node.parts), "a pipeline of", "parts")))
    elif isinstance(node, Channels):
        outer = (*outer, (False, _at_least_one(bound.value(node.count), "its data on", "channels")))
    return _slices(bound, node.body, outer)


def _at_least_one(count: int, before: str, things: str) -> int:
    if count < 1:
        raise ValueError(f"The schedule has {before} {count or 'zero'} {things}; one is the least")
    return count


def _segments(bound: BoundSchedule, moves: Moves) -> IntArray:
    """The segment of each move: one after the other, all of a segment in the same pipeline or in none."""
    pipelines: list[int] = []

    def walk(node: Node, pipeline: int) -> None:
        if isinstance(node, Transfer):
            pipelines.append(pipeline)
        elif isinstance(node, Seq | Par):
            for child in node.children:
                walk(child, pipeline)
        else:
            walk(node.body, id(node) if isinstance(node, Pipeline) and not pipeline else pipeline)

    walk(bound.schedule.body, 0)
    inside = np.array(pipelines, np.int64)[moves.transfer] if len(moves) else np.zeros(0, np.int64)
    return np.cumsum(np.diff(inside, prepend=inside[:1]) != 0) if len(moves) else inside


def _pieces(moves: Moves, *, joined: bool) -> tuple[IntArray, IntArray]:
    """Moves of one step, transfer and pair of ranks whose chunks are neighbours at both ends, of moves in that order: (first move, how many)."""
    cut = np.ones(len(moves), bool)
    if joined and len(moves):
        same = np.ones(len(moves) - 1, bool)
        for name in ("step", "transfer", "src", "dst", "channel"):
            same &= np.diff(getattr(moves, name)) == 0
        for name in ("src_index", "dst_index"):
            same &= np.diff(getattr(moves, name)) == 1
        cut[1:] = ~same
    first = np.flatnonzero(cut)
    return first, np.diff(first, append=len(moves))


def _acts(bound: BoundSchedule, moves: Moves, fine: int) -> tuple[_Acts, IntArray]:
    """(what ranks do for these moves, once for each slice; the rank of each), for every move what the sender does, then the receiver. Moves are in order."""
    around = _slices(bound, bound.schedule.body)
    shares = np.array([math.prod(n for _, n in cuts) for cuts in around], np.int64)
    first, many = _pieces(moves, joined=bound.schedule.kind != "moe_combine")
    sliced = shares[moves.transfer[first]] > 1
    move, item, _ = ragged(np.where(sliced, many, 1))
    at, many = first[item] + move, np.where(sliced, 1, many)[item]
    share, item, _ = ragged(shares[moves.transfer[at]])
    at, many = at[item], many[item]
    transfer = moves.transfer[at]
    late, channel = np.zeros(len(at), np.int64), moves.channel[at].copy()
    for number in np.unique(transfer).tolist():
        mine, inner = transfer == number, int(shares[number])
        for pipelined, n in around[number]:
            inner //= n
            place = share[mine] // inner % n
            if pipelined:
                late[mine] += place
            else:
                channel[mine] = channel[mine] * n + place
    step = moves.step[at] + late
    segment = _segments(bound, moves)[at]
    width = fine // shares[transfer]
    src, dst, action = moves.src[at], moves.dst[at], moves.action[at]
    nodes = [bound.transfer(number) for number in range(len(around))]
    group = np.array([bool(node.group) for node in nodes], bool)[transfer]
    acting = np.where(
        np.array([node.mode is Mode.NETWORK_REDUCE for node in nodes], bool)[transfer], dst,
        np.where(np.array([node.mode is Mode.MULTICAST for node in nodes], bool)[transfer], src, _FIRST),
    )  # fmt: skip
    reduce = np.where(group, action == NETWORK, np.where(src == dst, action == REDUCE, action != COPY)).astype(np.int64)

    def side(role: IntArray, peer: IntArray) -> list[IntArray]:
        return [
            step, segment, np.where(group, _JOIN, np.where(src == dst, _LOCAL, role)), channel, np.where(group, acting, peer),
            moves.src_region[at], moves.src_index[at] * fine + share * width, moves.dst_region[at], moves.dst_index[at] * fine + share * width,
            (many - 1) * fine + width, reduce, transfer,
        ]  # fmt: skip

    sends, receives = side(np.full(len(at), _SEND), dst), side(np.full(len(at), _RECEIVE), src)
    other = np.flatnonzero(src != dst)
    order = np.argsort(np.concatenate([np.arange(len(at)), other]), kind="stable")
    columns = [np.concatenate([a, b[other]])[order] for a, b in zip(sends, receives, strict=True)]
    return _Acts(*columns), np.concatenate([src, dst[other]])[order]


def _check_few(bound: BoundSchedule, moves: Moves, most: int) -> None:
    """Raises ValueError if these moves, in order, come to more than `most` operations of the ranks that send."""
    shares = np.array([math.prod(float(n) for _, n in cuts) for cuts in _slices(bound, bound.schedule.body)])
    first, many = _pieces(moves, joined=bound.schedule.kind != "moe_combine")
    each = shares[moves.transfer[first]]
    operations = np.where(each > 1, each * many, 1.0).sum()
    if operations > most:
        raise ValueError(
            f"{bound.schedule.name} with {bound.sizes_text} comes to {operations:,.0f} operations of some ranks, written out; {most:,} are taken of all. "
            "Bind it to fewer ranks, chunks or slices"
        )


def _ordered(bound: BoundSchedule, moves: Moves, first_rank: int, last_rank: int, most: int | None = None) -> _Ordered:
    """What the ranks from `first_rank` to `last_rank` - 1 do for these moves, in an order that reads before it writes within each step.

    Rounds of sends and receives, one piece for each pair and round; all sends first where a later one reads what was received.
    """
    fine = refinement_of(bound)
    if most is not None:
        _check_few(bound, moves, most)
    acts, rank = _acts(bound, moves, fine)
    mine = np.flatnonzero((rank >= first_rank) & (rank < last_rank))
    mine = mine[np.lexsort((mine, rank[mine]))]
    acts, rank = acts.taken(mine), rank[mine]
    if bound.schedule.kind == "moe_combine":
        acts = _first_part_copied(bound, acts, rank, fine)
    lane = np.where(_shared_among_channels(acts, rank), 0, acts.channel)
    group = _numbered(rank, lane, acts.segment, acts.step)  # a step of one lane of one rank, numbered in order
    turn = np.where(
        (acts.role == _SEND) | (acts.role == _RECEIVE), _turns(group, acts.role, acts.peer, acts.channel), 0
    )
    phase = _PHASE[acts.role]
    order = np.lexsort((phase, turn, group))
    late = _reads_late(acts, group, order)
    if len(late):
        sends_first = np.isin(group, late)
        order = np.lexsort((np.where(sends_first, turn, phase), np.where(sends_first, phase, turn), group))
        if len(late := _reads_late(acts, group, order)):
            raise ValueError(
                f"step {acts.step[group == late[0]][0]}: a rank's own moves read what others of the same step write; take two steps, or scratch"
            )
    begin = np.searchsorted(rank[order], np.arange(first_rank, last_rank + 1))
    return _Ordered(acts.taken(order), begin, lane[order], first_rank)


def _first_part_copied(bound: BoundSchedule, acts: _Acts, rank: IntArray, fine: int) -> _Acts:
    """Operations in which the first part of a sum that reaches a rank without one of its own is stored instead of added."""
    has = experts_of(bound)[0]
    order = np.lexsort((acts.step, acts.segment, rank))
    order = order[acts.writes[order] & (has[acts.written_first[order] // fine, rank[order]] == 0)]
    _, first = np.unique(np.stack([rank[order], acts.written_first[order]]), axis=1, return_index=True)
    reduce = acts.reduce.copy()
    reduce[order[first]] = 0
    return replace(acts, reduce=reduce)


def _numbered(*columns: IntArray) -> IntArray:
    """For each row of these columns the place of its values among all that occur, in their order."""
    order = np.lexsort(columns[::-1])
    new = np.zeros(len(order), bool)
    for column in columns:
        new[1:] |= np.diff(column[order]) != 0
    found = np.empty(len(order), np.int64)
    found[order] = np.cumsum(new)
    return found


def _turns(*columns: IntArray) -> IntArray:
    """For each row how many before it have the same values."""
    same = _numbered(*columns)
    order = np.argsort(same, kind="stable")
    starts = np.searchsorted(same[order], same[order])
    found = np.empty(len(order), np.int64)
    found[order] = np.arange(len(order)) - starts
    return found


def _touched(acts: _Acts, which: BoolArray, *, written: bool) -> tuple[IntArray, IntArray]:
    """(operation, chunk of the plan that it reads or writes), of some operations; regions lie one behind the other."""
    chosen = np.flatnonzero(which)
    place, item, _ = ragged(acts.count[chosen])
    act = chosen[item]
    first, region = (acts.written_first, acts.written_region) if written else (acts.read_first, acts.read_region)
    return act, (first[act] + place) * len(REGIONS) + region[act]


def _shared_among_channels(acts: _Acts, rank: IntArray) -> BoolArray:
    """For each operation whether its rank has a channel that writes what another one touches, or one that goes through the switch."""
    shared = np.zeros(len(acts), bool)
    if not len(acts) or (acts.channel == acts.channel[0]).all():
        return shared
    several = np.zeros(int(rank.max()) + 1, bool)
    several[rank[acts.role == _JOIN]] = True
    reader, read = _touched(acts, acts.reads, written=False)
    writer, wrote = _touched(acts, acts.writes, written=True)
    spot = _numbered(rank[np.concatenate([writer, reader])], np.concatenate([wrote, read]))
    channel = acts.channel[np.concatenate([writer, reader])]
    lowest = np.full(int(spot.max()) + 1, channel.max())
    highest = np.full(len(lowest), channel.min())
    np.minimum.at(lowest, spot, channel)
    np.maximum.at(highest, spot, channel)
    several[rank[writer[(lowest < highest)[spot[: len(writer)]]]]] = True
    return several[rank]


def _reads_late(acts: _Acts, group: IntArray, order: IntArray) -> IntArray:
    """Steps (`group`) in which something is read that an operation before, in this order, has written."""
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    writer, wrote = _touched(acts, acts.writes, written=True)
    reader, read = _touched(acts, acts.reads & (acts.role != _JOIN), written=False)
    spot = _numbered(group[np.concatenate([writer, reader])], np.concatenate([wrote, read]))
    if not len(spot):
        return spot
    written_at = np.full(int(spot.max()) + 1, len(order))
    np.minimum.at(written_at, spot[: len(writer)], place[writer])
    return np.unique(group[reader[written_at[spot[len(writer) :]] < place[reader]]])


def _emit(block: BlockBuilder, bound: BoundSchedule, layout: Layout, acts: _Acts) -> None:
    """Adds these operations, which are in order."""
    if not (acts.role == _JOIN).any():
        block.rows += _rows(block, bound, layout, acts)
        return
    met: tuple[int, ...] = ()
    groups = [bound.transfer(number).group for number in range(int(acts.transfer.max()) + 1)]
    key = _numbered(acts.segment, acts.step)
    for step in range(int(key[-1]) + 1):
        here = acts.taken(key == step)
        joins = here.role == _JOIN
        if not joins.any():
            met = ()
        for group in sorted(
            {groups[number] for number in here.transfer[joins].tolist()}
        ):  # the same order on all ranks
            mine = joins & np.array([groups[number] == group for number in here.transfer.tolist()])
            met = _through_switch(block, bound, layout, here.taken(mine), met)
        block.rows += _rows(block, bound, layout, here.taken(~joins))


def _rows(block: BlockBuilder, bound: BoundSchedule, layout: Layout, acts: _Acts) -> list[tuple[int, ...]]:
    """The rows of operations without a switch, in this order; connections are made in the order of their first use."""
    reduces = (acts.role == _LOCAL) & (
        acts.reduce > 0
    )  # two operands: the target, which is also read, and what is added
    row, act, total = ragged(np.where(reduces, 2, 1))
    places = [layout.places.get(region, (Buffer.NONE, 0, 0)) for region in REGIONS]
    buffers, begins = (np.array([int(place[side]) for place in places], np.int64) for side in (0, 1))
    role, reducing, second = acts.role[act], acts.reduce[act] > 0, row > 0
    target = buffers[acts.written_region[act]], begins[acts.written_region[act]] + acts.written_first[act]
    source = buffers[acts.read_region[act]], begins[acts.read_region[act]] + acts.read_first[act]
    sums = reducing & (role != _SEND) & ~second  # reads the target, too
    reads, writes = (role != _RECEIVE) | sums, (role != _SEND) & ~second
    table = np.zeros(total, INSTRUCTION)
    kinds = np.array([[Op.SEND, Op.SEND], [0, 0], [Op.COPY, Op.REDUCE], [Op.RECV, Op.RECV_REDUCE_COPY]])
    table["op"] = np.where(second, Op.OPERAND, kinds[role, reducing.astype(np.int64)])
    table["more"] = reduces[act] & ~second
    table["src_buffer"] = np.where(reads, np.where(sums, target[0], source[0]), Buffer.NONE)
    table["dst_buffer"] = np.where(writes, target[0], Buffer.NONE)
    table["src"] = np.where(reads, np.where(sums, target[1], source[1]), NO_INDEX)
    table["dst"] = np.where(writes, target[1], NO_INDEX)
    table["via"] = _vias(block, bound, acts)[act]
    table["count"] = acts.count[act]
    rows: list[Any] = table.tolist()
    return rows


def _vias(block: BlockBuilder, bound: BoundSchedule, acts: _Acts) -> IntArray:
    """The connection of each operation, LOCAL for those within the rank."""
    remote = np.flatnonzero(acts.role != _LOCAL)
    way = (acts.channel[remote] * bound.ranks + acts.peer[remote]) * 2 + (acts.role[remote] == _RECEIVE)
    _, first, which = np.unique(way, return_index=True, return_inverse=True)
    vias = np.empty(len(first), np.int64)
    for place in np.argsort(first).tolist():
        at = remote[first[place]]
        kind = ConnectionKind.FIFO_IN if acts.role[at] == _RECEIVE else ConnectionKind.FIFO_OUT
        vias[place] = block.rank.connect(kind, int(acts.peer[at]), int(acts.channel[at]))
    found = np.full(len(acts), LOCAL)
    found[remote] = vias[which]
    return found


def _through_switch(
    block: BlockBuilder, bound: BoundSchedule, layout: Layout, joins: _Acts, met: tuple[int, ...]
) -> tuple[int, ...]:
    """What one group does through the switch in a step: it meets, its ranks do their part, it meets again. Whom this rank met last."""
    rank = block.rank.rank
    here = {axis: int(x[0]) for axis, x in bound.coordinates(np.array([rank])).items()}
    node = bound.transfer(int(joins.transfer[0]))
    everyone = bound.coordinates()
    inside = np.ones(bound.ranks, bool)
    for axis in bound.schedule.axes:
        if axis not in node.group:
            inside &= everyone[axis] == here[axis]
    members = tuple(np.flatnonzero(inside).tolist())

    def meet() -> None:
        ways = [block.rank.connect(ConnectionKind.MEMORY, peer) for peer in members if peer != rank]
        for first in range(0, len(ways), 256):
            block.signal(*ways[first : first + 256])
        for first in range(0, len(ways), 256):
            block.wait(*ways[first : first + 256])

    def span(region: int, first: int, count: int) -> Span:
        buffer, begin, _ = layout.places[REGIONS[region]]
        return Span(buffer, begin + first, count)

    if met != members:
        meet()
    names = ("transfer", "peer", "count", "read_region", "read_first", "written_region", "written_first")
    operations = zip(*(getattr(joins, name).tolist() for name in names), strict=True)
    for transfer, peer, count, *places in dict.fromkeys(operations):
        if (members[0] if peer == _FIRST else peer) != rank:
            continue
        mode = bound.transfer(transfer).mode
        source, target = span(places[0], places[1], count), span(places[2], places[3], count)
        if mode is Mode.MULTICAST:
            block.add(Op.MULTICAST, [(block.rank.group(members, target.buffer), source, target)])
        elif mode is Mode.NETWORK_REDUCE:
            block.add(Op.GROUP_REDUCE, [(block.rank.group(members, source.buffer), source, target)])
        else:
            block.add(Op.GROUP_REDUCE_MULTICAST, [(block.rank.group(members, source.buffer), source, target)])
    meet()
    return members
