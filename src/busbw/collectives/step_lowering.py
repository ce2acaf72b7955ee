"""What a rank does, written out step by step, neighbouring chunks joined.

Within a step a rank sends first, then moves its own chunks, then receives; several pieces between the same two ranks go in rounds of one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import numpy as np

from busbw.collectives.expansion import COPY, NETWORK, REDUCE, REGIONS, Moves, expand
from busbw.collectives.expressions import IntArray
from busbw.collectives.layout import Emit, Layout, experts_of
from busbw.collectives.plan import LOCAL, BlockBuilder, ConnectionKind, Op, Span
from busbw.collectives.schedule import BoundSchedule, Channels, Mode, Node, Par, Pipeline, Region, Seq, Transfer

__all__ = ["MovesByRank", "own_move", "written_out"]

_FIRST = -2  # who acts: the first rank of the group


def own_move(block: BlockBuilder, op: Op, source: Span, target: Span) -> None:
    """Adds a move within the rank: a COPY, or a REDUCE into the target."""
    if op is Op.COPY:
        block.copy(source, target)
    else:
        block.add(Op.REDUCE, [(LOCAL, target, target), (LOCAL, source, None)])


@dataclass(frozen=True, slots=True)
class _Act:
    """One operation of this rank: `role` is send, local, receive, or join (a step through the switch)."""

    key: tuple[int, int]  # segment, step of it
    role: str
    channel: int
    peer: int
    read: tuple[Region, int, int, int] | None  # region, chunk, first and last slice + 1
    written: tuple[Region, int, int, int] | None
    count: int
    reduce: bool
    transfer: int


@dataclass(frozen=True, slots=True)
class _Slicing:
    """For each transfer the slicings around it, and for each move its segment."""

    around: list[tuple[tuple[bool, int], ...]]
    segments: IntArray


class MovesByRank:
    """The moves of a schedule, rank by rank. From the third rank on all are written out at once, if they are few: a walk through the tree for each takes longer."""

    def __init__(self, bound: BoundSchedule) -> None:
        self.bound = bound
        self._asked = 0
        self._all: Moves | None = None
        self._rows: list[tuple[IntArray, IntArray]] = []

    def of(self, rank: int) -> Moves:
        """Those that the rank makes or gets."""
        self._asked += 1
        if self._asked == _FEW_RANKS:
            try:
                self._all = expand(self.bound, most=_MOST_AT_ONCE)
            except ValueError:  # too many: rank by rank, then
                self._all = None
            else:
                self._rows = [_by_rank(end, self.bound.ranks) for end in (self._all.src, self._all.dst)]
        if self._all is None:
            return expand(self.bound, rank=rank)
        mine = [order[begin[rank] : begin[rank + 1]] for order, begin in self._rows]
        return self._all.taken(np.union1d(*mine))


_FEW_RANKS = 3
_MOST_AT_ONCE = 500_000
"""Moves that are kept, at 104 bytes each. A guess at what nobody misses."""


def _by_rank(end: IntArray, ranks: int) -> tuple[IntArray, IntArray]:
    """(places in order of this end, where each rank's begin)."""
    order = np.argsort(end, kind="stable")
    return order, np.searchsorted(end[order], np.arange(ranks + 1))


def written_out(bound: BoundSchedule, rank: int, layout: Layout, known: MovesByRank | None = None) -> dict[int, Emit]:
    """The rank's operations by channel, every step written out."""
    moves = expand(bound, rank=rank) if known is None else known.of(rank)
    moves = moves.taken(
        np.lexsort((moves.dst_index, moves.src_index, moves.dst, moves.src, moves.transfer, moves.step))
    )
    pieces = list(_pieces(moves, joined=bound.schedule.kind != "moe_combine"))
    slicing = _Slicing(_slices(bound, bound.schedule.body), _segments(bound, moves))
    acts = [act for piece in pieces for act in _acts(bound, layout, moves, piece, slicing)]
    if bound.schedule.kind == "moe_combine":
        acts = _first_part_copied(acts, np.flatnonzero(experts_of(bound)[0][:, rank] == 0))
    channels = sorted({act.channel for act in acts})
    if not _independent(acts):
        ordered = _ordered(acts)
        return {0: lambda block: _emit(block, bound, layout, ordered)} if acts else {}

    def emitter(channel: int) -> Emit:
        ordered = _ordered([act for act in acts if act.channel == channel])
        return lambda block: _emit(block, bound, layout, ordered)

    return {channel: emitter(channel) for channel in channels}


def _slices(
    bound: BoundSchedule, node: Node, outer: tuple[tuple[bool, int], ...] = ()
) -> list[tuple[tuple[bool, int], ...]]:
    """For each transfer the slicings around it, outermost first: (whether a pipeline, number of slices)."""
    if isinstance(node, Transfer):
        return [outer]
    if isinstance(node, Seq | Par):
        return [found for child in node.children for found in _slices(bound, child, outer)]
    if isinstance(node, Pipeline):
        outer = (*outer, (True, bound.value(node.parts)))
    elif isinstance(node, Channels):
        outer = (*outer, (False, bound.value(node.count)))
    return _slices(bound, node.body, outer)


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


def _pieces(moves: Moves, *, joined: bool = True) -> Iterator[tuple[int, int]]:
    """Moves of one step, transfer and pair of ranks whose chunks are neighbours at both ends, of moves in that order: (first move, how many)."""
    if not len(moves):
        return
    cut = np.ones(len(moves), bool)
    same = np.ones(len(moves) - 1, bool)
    for name in ("step", "transfer", "src", "dst", "channel"):
        same &= np.diff(getattr(moves, name)) == 0
    for name in ("src_index", "dst_index"):
        same &= np.diff(getattr(moves, name)) == 1
    cut[1:] = ~same if joined else True
    first = np.flatnonzero(cut)
    yield from zip(first.tolist(), np.diff(first, append=len(moves)).tolist(), strict=True)


def _acts(
    bound: BoundSchedule, layout: Layout, moves: Moves, piece: tuple[int, int], slicing: _Slicing
) -> Iterator[_Act]:
    """What this rank does for a piece, once for each slice."""
    first, count = piece
    rank, slices, segments = layout.rank, slicing.around, slicing.segments
    number = int(moves.transfer[first])
    node = bound.transfer(number)
    src, dst = int(moves.src[first]), int(moves.dst[first])
    action = int(moves.action[first])
    cuts = slices[number]
    shares = math.prod(n for _, n in cuts)
    width = layout.fine // shares
    regions = REGIONS[int(moves.src_region[first])], REGIONS[int(moves.dst_region[first])]
    pieces = [(first, count)] if shares == 1 else [(first + i, 1) for i in range(count)]
    for at, many in pieces:
        for share in range(shares):
            late, channel, rest = 0, int(moves.channel[at]), share
            places = []
            for _, n in reversed(cuts):
                rest, place = divmod(rest, n)
                places.append(place)
            for (pipelined, n), place in zip(cuts, reversed(places), strict=True):
                if pipelined:
                    late += place
                else:
                    channel = channel * n + place
            key = (int(segments[at]), int(moves.step[at]) + late)
            read = (regions[0], int(moves.src_index[at]), share * width, (share + 1) * width)
            written = (regions[1], int(moves.dst_index[at]), share * width, (share + 1) * width)
            if node.group:
                acting = dst if node.mode is Mode.NETWORK_REDUCE else src if node.mode is Mode.MULTICAST else _FIRST
                yield _Act(key, "join", channel, acting, read, written, many, action == NETWORK, number)
            elif src == dst:
                yield _Act(key, "local", channel, -1, read, written, many, action == REDUCE, number)
            elif src == rank:
                yield _Act(key, "send", channel, dst, read, None, many, False, number)
            else:
                yield _Act(key, "receive", channel, src, None, written, many, action != COPY, number)


def _first_part_copied(acts: list[_Act], empty: IntArray) -> list[_Act]:
    """Operations in which the first part of a sum that reaches a rank without one of its own is stored instead of added."""
    without, met = set(empty.tolist()), set[tuple[int, int]]()
    found: dict[int, _Act] = {}
    for number, act in sorted(enumerate(acts), key=lambda item: (item[1].key, item[0])):
        slot = (act.written[1], act.written[2]) if act.written is not None else None
        first = slot is not None and slot[0] in without and slot not in met
        if slot is not None:
            met.add(slot)
        found[number] = replace(act, reduce=False) if first else act
    return [found[number] for number in range(len(acts))]


def _touched(place: tuple[Region, int, int, int], count: int) -> Iterator[tuple[Region, int, int]]:
    region, index, first, _ = place
    for i in range(count):
        yield region, index + i, first


def _independent(acts: list[_Act]) -> bool:
    """Whether no channel writes what another one touches."""
    if len({act.channel for act in acts}) < 2:
        return True
    users: dict[tuple[Region, int, int], set[int]] = {}
    writers: dict[tuple[Region, int, int], set[int]] = {}
    for act in acts:
        if act.role == "join":
            return False
        for place, who in ((act.read, users), (act.written, writers)):
            if place is not None:
                for spot in _touched(place, act.count):
                    users.setdefault(spot, set()).add(act.channel)
                    if who is writers:
                        writers.setdefault(spot, set()).add(act.channel)
    return all(len(users[spot]) == 1 for spot in writers)


def _ordered(acts: list[_Act]) -> list[list[_Act]]:
    """The steps, each as a list of operations in an order that reads before it writes."""
    steps: dict[tuple[int, int], list[_Act]] = {}
    for act in acts:
        steps.setdefault(act.key, []).append(act)
    return [_within_step(steps[key]) for key in sorted(steps)]


def _within_step(acts: list[_Act]) -> list[_Act]:
    """Rounds of sends and receives, one piece for each pair and round; all sends first where a later one reads what was received."""
    turn: dict[tuple[str, int, int], int] = {}
    ranked = []
    for act in acts:
        lane = (act.role, act.peer, act.channel)
        turn[lane] = turn.get(lane, -1) + 1
        ranked.append((turn[lane] if act.role in ("send", "receive") else 0, act))
    phase = {"send": 0, "join": 0, "local": 1, "receive": 2}
    for key in (
        lambda item: (item[0], phase[item[1].role]),
        lambda item: (phase[item[1].role], item[0]),
    ):
        ordered = [act for _, act in sorted(ranked, key=key)]
        if _reads_first(ordered):
            return ordered
    first = acts[0]
    raise ValueError(
        f"step {first.key[1]}: a rank's own moves read what others of the same step write; take two steps, or scratch"
    )


def _reads_first(acts: list[_Act]) -> bool:
    written: set[tuple[Region, int, int]] = set()
    for act in acts:
        if act.read is not None and act.role != "join" and any(spot in written for spot in _touched(act.read, act.count)):  # fmt: skip
            return False
        if act.written is not None:
            written.update(_touched(act.written, act.count))
    return True


def _emit(block: BlockBuilder, bound: BoundSchedule, layout: Layout, steps: list[list[_Act]]) -> None:
    """Adds the operations of these steps."""

    def span(place: tuple[Region, int, int, int], count: int) -> Span:
        region, index, first, last = place
        buffer, begin, _ = layout.places[region]
        return Span(buffer, begin + index * layout.fine + first, (count - 1) * layout.fine + last - first)

    met: tuple[int, ...] = ()
    for acts in steps:
        joins = [act for act in acts if act.role == "join"]
        if not joins:
            met = ()
        for group in sorted({bound.transfer(act.transfer).group for act in joins}):  # the same order on all ranks
            mine = [act for act in joins if bound.transfer(act.transfer).group == group]
            met = _through_switch(block, bound, mine, met, span)
        for act in acts:
            if act.role == "local" and act.read is not None and act.written is not None:
                source, target = span(act.read, act.count), span(act.written, act.count)
                own_move(block, Op.REDUCE if act.reduce else Op.COPY, source, target)
            elif act.role == "send" and act.read is not None:
                block.send(span(act.read, act.count), block.rank.send_to(act.peer, act.channel))
            elif act.role == "receive" and act.written is not None:
                target, via = span(act.written, act.count), block.rank.receive_from(act.peer, act.channel)
                if act.reduce:
                    block.receive_reduce(target, via, target)
                else:
                    block.receive(via, target)


def _through_switch(
    block: BlockBuilder,
    bound: BoundSchedule,
    joins: list[_Act],
    met: tuple[int, ...],
    span: Callable[[tuple[Region, int, int, int], int], Span],
) -> tuple[int, ...]:
    """What one group does through the switch in a step: it meets, its ranks do their part, it meets again. Whom this rank met last."""
    rank = block.rank.rank
    here = {axis: int(x[0]) for axis, x in bound.coordinates(np.array([rank])).items()}
    node = bound.transfer(joins[0].transfer)
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

    if met != members:
        meet()
    done: set[object] = set()
    for act in joins:
        mode = bound.transfer(act.transfer).mode
        if act.read is None or act.written is None or (act.transfer, act.read, act.written) in done:
            continue
        source, target = span(act.read, act.count), span(act.written, act.count)
        if (members[0] if act.peer == _FIRST else act.peer) == rank:
            done.add((act.transfer, act.read, act.written))
            if mode is Mode.MULTICAST:
                block.add(Op.MULTICAST, [(block.rank.group(members, target.buffer), source, target)])
            elif mode is Mode.NETWORK_REDUCE:
                block.add(Op.GROUP_REDUCE, [(block.rank.group(members, source.buffer), source, target)])
            else:
                block.add(Op.GROUP_REDUCE_MULTICAST, [(block.rank.group(members, source.buffer), source, target)])
    meet()
    return members
