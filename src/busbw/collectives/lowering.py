"""Schedule to Plan: what one rank does, produced when it is asked for.

Loops over steps stay loops where, for this rank, peers and chunks move evenly from step to step (rings, pairwise exchange, direct
exchange); all else is written out for this rank, in order of steps, neighbouring chunks joined. Within a step a rank sends first,
then moves its own chunks, then receives; several pieces between the same two ranks go in rounds of one. So all ranks work through one order of
(step, round, send before receive), and no FIFO needs more than one slot.

Where `data` lies. In place: in the buffer that input and output share. Out of place: in output (all_reduce, all_gather, broadcast, moe_*), where the
rank's own input is copied first; in scratch for those whose output is smaller or not everywhere (reduce_scatter, reduce, gather, scatter), and
what is asked for is copied out at the end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

import numpy as np

from busbw.collectives.expansion import COPY, NETWORK, REDUCE, REGIONS, Moves, expand
from busbw.collectives.expressions import ZERO, Expr, IntArray, const, free_names, size, substitute, var
from busbw.collectives.inversion import solve
from busbw.collectives.kinds import COLLECTIVES
from busbw.collectives.passes import replaced
from busbw.collectives.plan import LOCAL, MAX_LOOPS, BlockBuilder, ConnectionKind, Op, Plan, RankBuilder, RankPlan, Span
from busbw.collectives.plan import Buffer as PlanBuffer
from busbw.collectives.schedule import (
    BoundSchedule,
    Channels,
    Location,
    Loop,
    Mode,
    Node,
    Par,
    Pipeline,
    Region,
    Seq,
    Transfer,
)

__all__ = ["lower", "plan_of"]

_IN_PLACE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")
_FIRST = -2  # who acts: the first rank of the group
_MOST_PEERS = 65_536  # connections of one rank that a loop over peers may list; a guess at what a runtime can open


def plan_of(bound: BoundSchedule, *, in_place: bool = False, name: str | None = None) -> Plan:
    """The plan of a bound schedule; a rank is lowered when the plan is asked for it.

    Raises ValueError if `in_place` is asked for a collective whose schedule needs both buffers.

    >>> from busbw.collectives.algorithms.ring import ring_all_reduce
    >>> plan_of(ring_all_reduce().bind(131072)).rank(5).operations <= 64
    True
    """
    kind = bound.schedule.kind
    if in_place and kind not in _IN_PLACE:
        raise ValueError(f"{bound.schedule.name}: {kind} is not run in place; {', '.join(_IN_PLACE)} are")
    counts = _counts(bound)
    return Plan(
        name or bound.schedule.name,
        kind if kind in COLLECTIVES else "custom",
        bound.ranks,
        bound.chunks * _refinement(bound),
        lambda rank: lower(bound, rank, in_place=in_place),
        in_place=in_place,
        out_of_place=not in_place,
        root=bound.root,
        counts=None if counts is None else counts * _refinement(bound),
    )


def lower(bound: BoundSchedule, rank: int, *, in_place: bool = False) -> RankPlan:
    """What one rank runs.

    Raises ValueError for moves within one step and rank that no order makes right (two chunks that change places, say).
    """
    layout = _Layout.of(bound, rank, in_place)
    try:
        return _filled(layout, _program(bound, rank, layout))
    except _UnevenError:
        return _filled(layout, _written_out(bound, rank, layout))


def _filled(layout: _Layout, parts: dict[int, _Emit]) -> RankPlan:
    """The rank plan with these operations, and the copies before and after them."""
    builder = RankBuilder(layout.rank, layout.input_chunks, layout.output_chunks, layout.scratch_chunks)
    lanes = _Lanes(builder)
    for source, target in layout.before:
        lanes.first().copy(source, target)
    for channel, emit in parts.items():
        emit(lanes.block(channel, spread=bool(layout.before)))
    for source, target in layout.after:
        lanes.last().copy(source, target)
    lanes.first()
    return builder.build()


def _counts(bound: BoundSchedule) -> IntArray | None:
    """counts[s, d] of an all_to_all_v; without a table of them every block is one chunk."""
    if bound.schedule.kind != "all_to_all_v":
        return None
    table = dict(bound.schedule.tables).get("counts")
    each = np.full((bound.ranks, bound.ranks), bound.chunks // bound.ranks, np.int64)
    return each if table is None else table.array


def _refinement(bound: BoundSchedule) -> int:
    """Into how many slices the plan cuts each chunk of the schedule, so that pipelines count in whole chunks."""

    def parts(node: Node) -> int:
        if isinstance(node, Transfer):
            return 1
        if isinstance(node, Seq | Par):
            return math.lcm(1, *(parts(child) for child in node.children))
        if isinstance(node, Pipeline):
            return bound.value(node.parts) * parts(node.body)
        return (bound.value(node.count) if isinstance(node, Channels) else 1) * parts(node.body)

    return parts(bound.schedule.body)


@dataclass(frozen=True, slots=True)
class _Layout:
    """Where the regions of a schedule lie in a rank's buffers, and what is copied before and after. Counts in chunks of the plan."""

    rank: int
    fine: int
    places: Mapping[Region, tuple[PlanBuffer, int, int]]  # buffer, first chunk, chunks
    input_chunks: int
    output_chunks: int
    scratch_chunks: int
    before: tuple[tuple[Span, Span], ...] = ()
    after: tuple[tuple[Span, Span], ...] = ()

    @staticmethod
    def of(bound: BoundSchedule, rank: int, in_place: bool) -> _Layout:
        fine = _refinement(bound)
        whole, own = bound.chunks * fine, bound.value(bound.schedule.scratch) * fine
        each = whole // bound.ranks
        kind = bound.schedule.kind
        i, o, s = PlanBuffer.INPUT, PlanBuffer.OUTPUT, PlanBuffer.SCRATCH
        mine = (rank * each, each)
        scratch = {Region.SCRATCH: (s, 0, own)}
        if kind in ("all_to_all", "all_to_all_v", "send_recv"):
            places = {Region.INPUT: (i, 0, whole), Region.OUTPUT: (o, 0, whole), **scratch}
            counts = _counts(bound)
            if counts is not None:
                return _Layout(
                    rank, fine, places, int(counts[rank].sum()) * fine, int(counts[:, rank].sum()) * fine, own
                )
            return _Layout(rank, fine, places, whole, whole, own)
        if kind == "barrier":
            return _Layout(rank, fine, {Region.DATA: (s, own, whole), **scratch}, 0, 0, own + whole)
        sizes = {
            "all_gather": (each, whole), "reduce_scatter": (whole, each), "gather": (each, whole), "scatter": (whole, each),
        }.get(kind, (whole, whole))  # fmt: skip
        data = PlanBuffer.INPUT if kind == "reduce_scatter" else PlanBuffer.OUTPUT
        if in_place:
            return _Layout(rank, fine, {Region.DATA: (data, 0, whole), **scratch}, *sizes, own)
        aside = kind in ("reduce_scatter", "reduce", "gather", "scatter")
        place = (s, own, whole) if aside else (o, 0, whole)
        at = place[1]
        brings = rank == bound.root if kind in ("broadcast", "scatter") else True
        takes = aside and (rank == bound.root if kind in ("reduce", "gather") else True)
        first = mine if kind in ("all_gather", "gather") else (0, whole)
        last = mine if kind in ("reduce_scatter", "scatter") else (0, whole)
        before = ((Span(i, 0, first[1]), Span(place[0], at + first[0], first[1])),) if brings else ()
        after = ((Span(place[0], at + last[0], last[1]), Span(o, 0, last[1])),) if takes else ()
        return _Layout(
            rank, fine, {Region.DATA: place, **scratch}, *sizes, own + whole if aside else own, before, after
        )

    def span(self, region: Region, index: int, count: int) -> Span:
        """Chunks of the schedule, as chunks of the plan."""
        buffer, first, _ = self.places[region]
        return Span(buffer, first + index * self.fine, count * self.fine)


class _Lanes:
    """The blocks of a rank, one a channel, and the flags by which they wait for what one of them did alone."""

    def __init__(self, builder: RankBuilder) -> None:
        self.builder = builder
        self.blocks: dict[int, BlockBuilder] = {}
        self.opened = False

    def first(self) -> BlockBuilder:
        """The block that does what comes before all channels."""
        if not self.blocks:
            self.blocks[0] = self.builder.block(0)
        return next(iter(self.blocks.values()))

    def block(self, channel: int, *, spread: bool) -> BlockBuilder:
        """The block of a channel; with `spread` it waits for the first one's preparations."""
        if channel not in self.blocks:
            lead = self.first() if spread else None
            if channel in self.blocks:
                return self.blocks[channel]
            self.blocks[channel] = self.builder.block(channel)
            if lead is not None:
                if not self.opened:
                    lead.set_flag()
                    self.opened = True
                self.blocks[channel].wait_flag(lead.block, 1)
        return self.blocks[channel]

    def last(self) -> BlockBuilder:
        """The first block, after it has waited for all others."""
        lead = self.first()
        for block in self.blocks.values():
            if block is not lead:
                block.set_flag()
                lead.wait_flag(block.block, 1)
        return lead


_Emit: TypeAlias = Callable[[BlockBuilder], None]


# Loops kept


@dataclass(frozen=True, slots=True)
class _Round:
    """A loop around operations: variable and how often it runs."""

    var: str
    count: int


@dataclass(frozen=True, slots=True)
class _Linear:
    """base + sum of step * variable, modulo `wrap` (0: none)."""

    base: int
    steps: Mapping[str, int]
    wrap: int = 0

    def of(self, rounds: tuple[_Round, ...]) -> tuple[int, ...]:
        return tuple(self.steps.get(r.var, 0) for r in rounds)


class _UnevenError(Exception):
    """Something moves unevenly, or can't be told by form: the rank's moves must be written out."""


def _program(bound: BoundSchedule, rank: int, layout: _Layout) -> dict[int, _Emit]:
    """The rank's operations by channel with loops kept. Raises _UnevenError if the schedule doesn't allow that for this rank."""
    if layout.fine != 1:
        raise _UnevenError
    here = {var(axis): const(int(x[0])) for axis, x in bound.coordinates(np.array([rank])).items()}
    known = {size(axis): const(extent) for axis, extent in bound.sizes}
    known |= {Expr("param", (), name): const(value) for name, value in bound.params}
    return {0: _Maker(bound, rank, layout, here, known).node(bound.schedule.body, ())}


class _Maker:
    """Turns parts of the tree into functions that add their operations to a block."""

    def __init__(
        self, bound: BoundSchedule, rank: int, layout: _Layout, here: Mapping[Expr, Expr], known: Mapping[Expr, Expr]
    ) -> None:  # fmt: skip
        self.bound, self.rank, self.layout, self.here, self.known = bound, rank, layout, here, known
        self.sizes = dict(bound.sizes)

    def node(self, node: Node, rounds: tuple[_Round, ...]) -> _Emit:
        if isinstance(node, Seq):
            parts = [self.node(child, rounds) for child in node.children]

            def sequence(block: BlockBuilder) -> None:
                for part in parts:
                    part(block)

            return sequence
        if isinstance(node, Loop) and not node.parallel:
            return self.loop(node, rounds, self.node)
        if isinstance(node, Transfer | Loop | Par):
            return self.step(node, rounds)
        raise _UnevenError

    def loop(
        self, node: Loop, rounds: tuple[_Round, ...], inside: Callable[[Node, tuple[_Round, ...]], _Emit]
    ) -> _Emit:
        count = self.constant(node.count)
        body = node.body
        if node.descending:
            body = _with(body, {var(node.var): const(count - 1) - var(node.var)})
        if count <= 1:
            return inside(_with(body, {var(node.var): ZERO}), rounds) if count == 1 else lambda block: None
        if len(rounds) == MAX_LOOPS:
            raise _UnevenError
        part = inside(body, (*rounds, _Round(node.var, count)))

        def repeated(block: BlockBuilder) -> None:
            with block.loop(count):
                place = len(block.rows)
                part(block)
            if len(block.rows) == place:  # this rank has nothing to do in it
                block.rows.pop()

        return repeated

    def step(self, node: Node, rounds: tuple[_Round, ...]) -> _Emit:
        """One step: all sends, then local moves, then what arrives."""
        leaves = list(_leaves(node, ()))
        if not all(len(rounds) + len(inner) <= MAX_LOOPS for _, inner in leaves):
            raise _UnevenError
        emits: list[_Emit] = []
        peers: dict[str, set[int]] = {"send": set(), "receive": set()}
        for role in ("send", "local", "receive"):
            for transfer, inner in leaves:
                if transfer.group or (transfer.channel != ZERO) or transfer.local != (role == "local"):
                    if transfer.local and role != "local":
                        continue
                    if not transfer.local and role == "local":
                        continue
                    raise _UnevenError
                made = self.operation(transfer, inner, rounds, role)
                if made is not None:
                    emit, reached = made
                    if role in peers:
                        if peers[role] & reached or (len(leaves) > 1 and role == "send" and not reached):
                            raise _UnevenError  # several pieces between two ranks go in rounds
                        peers[role] |= reached
                    emits.append(emit)
        locals_ = [transfer for transfer, _ in leaves if transfer.local]
        if locals_ and (len(leaves) > 1 or not _apart(locals_[0])):
            raise _UnevenError

        def all_of_them(block: BlockBuilder) -> None:
            for emit in emits:
                emit(block)

        return all_of_them

    def operation(
        self, node: Transfer, inner: tuple[Loop, ...], rounds: tuple[_Round, ...], role: str
    ) -> tuple[_Emit, set[int]] | None:
        """The operations of one transfer in one role, and the peers that they reach at a time; None if this rank has no part in it."""
        names = {r.var for r in rounds} | {loop.var for loop in inner}
        axes = self.bound.schedule.axes
        mine = node.dst if role == "receive" else node.src
        found = solve(
            {a: substitute(e, self.known) for a, e in zip(axes, mine, strict=True)},
            node.domain(axes),
            {a: self.here[var(a)] for a in axes},
        )
        if found is None:
            raise _UnevenError
        solved = {var(a): _wrapped(e, self.sizes[a]) for a, e in found.items()} | dict(self.known)
        for axis, expr in zip(axes, mine, strict=True):  # conditions on the rank must not depend on the step
            value = _linear(substitute(expr, solved), names)
            if value.steps or value.base % self.sizes[axis] != int(self.here[var(axis)].value):
                if not value.steps:
                    return None
                if any(step % self.sizes[axis] for step in value.steps.values()):
                    raise _UnevenError
        guard = _linear(substitute(node.guard, solved), names)
        if guard.steps:
            raise _UnevenError
        if not guard.base:
            return None
        turns = []
        for loop in inner:
            if loop.descending:
                raise _UnevenError
            turns.append(_Round(loop.var, self.constant(substitute(loop.count, solved))))
        if any(turn.count < 1 for turn in turns):
            return None
        counted = _linear(substitute(node.source.count, solved), names)
        stride = _linear(substitute(node.source.stride, solved), names)
        if (
            counted.steps
            or stride.steps
            or (counted.base != 1 and stride.base != 1)
            or node.source.count != node.target.count
        ):
            raise _UnevenError
        if counted.base < 1:
            return None
        every = (*rounds, *turns)
        source = self.span(node.source, solved, names, counted.base, every)
        target = self.span(node.target, solved, names, counted.base, every)
        other = [substitute(e, solved) for e in (node.src if role == "receive" else node.dst)]
        fixed = frozenset(names) - frozenset[str]().union(*(free_names(e) for e in other))
        every, turns_, source, target = _joined(every, len(rounds), source, target, fixed)
        if role == "local":
            op = Op.REDUCE if node.mode is Mode.REDUCE else Op.COPY
            return self.looped(turns_, lambda block: _own(block, op, source, target)), set()
        grid = self.peers(other, names, every)
        if grid.size > _MOST_PEERS or (grid == self.rank).any():
            raise _UnevenError
        pieces = math.prod(r.count for r in turns_)
        if pieces > 1 and len(np.unique(grid[(0,) * len(rounds)])) < pieces:
            raise _UnevenError  # several pieces for one peer in one step
        kind = ConnectionKind.FIFO_IN if role == "receive" else ConnectionKind.FIFO_OUT

        def emit(block: BlockBuilder) -> None:
            via, step = _connected(block.rank, kind, grid)
            if role == "send":
                block.add(Op.SEND, [(via, source, None)], via_step=step)
            elif node.mode is Mode.REDUCE:
                block.add(Op.RECV_REDUCE_COPY, [(via, target, target)], via_step=step)
            else:
                block.add(Op.RECV, [(via, None, target)], via_step=step)

        if not _evenly(grid):
            raise _UnevenError
        return self.looped(turns_, emit), set(grid.ravel().tolist())

    def looped(self, turns: tuple[_Round, ...], emit: _Emit) -> _Emit:
        """The operation inside loops over its pieces."""

        def nested(block: BlockBuilder, left: tuple[_Round, ...]) -> None:
            if not left:
                emit(block)
                return
            with block.loop(left[0].count):
                nested(block, left[1:])

        return lambda block: nested(block, turns)

    def peers(self, coordinates: list[Expr], names: set[str], rounds: tuple[_Round, ...]) -> IntArray:
        """The rank at these coordinates in every turn of the loops; one long in a loop on which it does not depend."""
        values = [_linear(expr, names) for expr in coordinates]
        flat = np.zeros([1] * max(len(rounds), 1), np.int64)
        for (_, extent), value in zip(self.bound.sizes, values, strict=True):
            if value.wrap not in (0, extent):
                raise _UnevenError
            along = np.full([1] * flat.ndim, value.base, np.int64)
            for place, r in enumerate(rounds):
                if step := value.steps.get(r.var, 0):
                    shape = [1] * flat.ndim
                    shape[place] = r.count
                    along = along + step * np.arange(r.count, dtype=np.int64).reshape(shape)
            flat = flat * extent + along % extent
        return flat

    def span(
        self, place: Location, solved: Mapping[Expr, Expr], names: set[str], count: int, rounds: tuple[_Round, ...]
    ) -> Span:
        buffer, first, extent = self.layout.places[place.region]
        value = _linear(substitute(place.index, solved), names)
        if value.wrap not in (0, extent) or extent == 0:
            raise _UnevenError
        base, steps = value.base % extent, value.of(rounds)
        lowest = base + sum(min(0, s * (r.count - 1)) for s, r in zip(steps, rounds, strict=True))
        highest = base + sum(max(0, s * (r.count - 1)) for s, r in zip(steps, rounds, strict=True)) + count
        if lowest >= 0 and highest <= extent:
            return Span(buffer, first + base, count, steps)
        if count > 1 and (extent % count or base % count or any(s % count for s in steps)):
            raise _UnevenError  # a piece would begin at the end of the buffer and go on at its start
        return Span(buffer, first + base, count, steps, first, extent)

    def constant(self, expr: Expr) -> int:
        value = substitute(substitute(expr, self.known), self.here)
        if value.op != "const":
            raise _UnevenError
        return int(value.value)


def _own(block: BlockBuilder, op: Op, source: Span, target: Span) -> None:
    if op is Op.COPY:
        block.copy(source, target)
    else:
        block.add(Op.REDUCE, [(LOCAL, target, target), (LOCAL, source, None)])


def _apart(node: Transfer) -> bool:
    """Whether a local move reads and writes different regions, so that its pieces may run in any order."""
    return node.source.region is not node.target.region


def _leaves(node: Node, loops: tuple[Loop, ...]) -> Iterator[tuple[Transfer, tuple[Loop, ...]]]:
    """The transfers of one step with the parallel loops around them."""
    if isinstance(node, Transfer):
        yield node, loops
    elif isinstance(node, Par):
        for child in node.children:
            yield from _leaves(child, loops)
    elif isinstance(node, Loop) and node.parallel:
        yield from _leaves(node.body, (*loops, node))
    else:
        raise _UnevenError


def _with(node: Node, replacements: Mapping[Expr, Expr]) -> Node:
    """The tree with variables replaced."""
    return replaced(node, replacements)


def _wrapped(expr: Expr, extent: int) -> Expr:
    return expr if expr.op == "const" and 0 <= int(expr.value) < extent else expr % extent


def _linear(expr: Expr, names: set[str]) -> _Linear:
    """The expression as a linear one in these variables. Raises _UnevenError if it is none."""
    if expr.op == "const":
        return _Linear(int(expr.value), {})
    if expr.op == "mod" and expr.args[1].op == "const":
        inner = _linear(expr.args[0], names)
        wrap = int(expr.args[1].value)
        if inner.wrap not in (0, wrap):
            raise _UnevenError
        return _Linear(inner.base % wrap, inner.steps, wrap) if inner.steps else _Linear(inner.base % wrap, {})
    if expr.op in ("add", "sub", "mul"):
        a, b = (_linear(arg, names) for arg in expr.args)
        wraps = {w for w in (a.wrap, b.wrap) if w}
        if expr.op == "mul":
            if (a.steps and b.steps) or wraps:
                raise _UnevenError
            scaled, factor = (a, b.base) if not b.steps else (b, a.base)
            return _Linear(scaled.base * factor, {n: s * factor for n, s in scaled.steps.items()})
        if len(wraps) > 1:
            raise _UnevenError
        sign = 1 if expr.op == "add" else -1
        steps = {n: a.steps.get(n, 0) + sign * b.steps.get(n, 0) for n in {*a.steps, *b.steps}}
        return _Linear(a.base + sign * b.base, {n: s for n, s in steps.items() if s}, wraps.pop() if wraps else 0)
    if expr.op == "var" and str(expr.value) in names:
        return _Linear(0, {str(expr.value): 1})
    raise _UnevenError


def _joined(
    every: tuple[_Round, ...], outer: int, source: Span, target: Span, free: frozenset[str]
) -> tuple[tuple[_Round, ...], tuple[_Round, ...], Span, Span]:
    """Innermost loops over neighbouring pieces turned into one longer piece; `free`: variables on which the peer does not depend."""
    while len(every) > outer:
        last = every[-1]
        evenly = all(span.step[-1:] == (span.count,) and not span.wrap for span in (source, target))
        if not evenly or last.var not in free:
            break
        source, target = (
            replace(span, count=span.count * last.count, step=span.step[:-1]) for span in (source, target)
        )
        every = every[:-1]
    return every, every[outer:], source, target


def _evenly(grid: IntArray) -> bool:
    """Whether the peers are one, or all different: then their connections can be listed one after the other."""
    return bool((grid == grid.flat[0]).all()) or (grid.size <= _MOST_PEERS and len(np.unique(grid)) == grid.size)


def _connected(rank: RankBuilder, kind: ConnectionKind, grid: IntArray) -> tuple[int, tuple[int, ...]]:
    """(first connection, rows further a turn of each loop). Raises _UnevenError if they don't lie evenly."""
    if (grid == grid.flat[0]).all():
        return rank.connect(kind, int(grid.flat[0])), ()
    rows = np.array([rank.connect(kind, int(peer)) for peer in grid.flat], np.int64).reshape(grid.shape)
    origin = int(rows.flat[0])
    steps = tuple(
        int(rows[tuple(int(a == axis) for a in range(rows.ndim))]) - origin if rows.shape[axis] > 1 else 0
        for axis in range(rows.ndim)
    )
    places = np.indices(rows.shape)
    if (rows != origin + sum(step * place for step, place in zip(steps, places, strict=True))).any():
        raise _UnevenError
    return origin, steps


# Written out


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


def _written_out(bound: BoundSchedule, rank: int, layout: _Layout) -> dict[int, _Emit]:
    """The rank's operations by channel, every step written out."""
    moves = expand(bound, rank=rank)
    moves = moves.taken(
        np.lexsort((moves.dst_index, moves.src_index, moves.dst, moves.src, moves.transfer, moves.step))
    )
    pieces = list(_pieces(moves))
    slicing = _Slicing(_slices(bound, bound.schedule.body), _segments(bound, moves))
    acts = [act for piece in pieces for act in _acts(bound, layout, moves, piece, slicing)]
    channels = sorted({act.channel for act in acts})
    if not _independent(acts):
        ordered = _ordered(acts)
        return {0: lambda block: _emit(block, bound, layout, ordered)} if acts else {}

    def emitter(channel: int) -> _Emit:
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


def _pieces(moves: Moves) -> Iterator[tuple[int, int]]:
    """Moves of one step, transfer and pair of ranks whose chunks are neighbours at both ends, of moves in that order: (first move, how many)."""
    if not len(moves):
        return
    cut = np.ones(len(moves), bool)
    same = np.ones(len(moves) - 1, bool)
    for name in ("step", "transfer", "src", "dst", "channel"):
        same &= np.diff(getattr(moves, name)) == 0
    for name in ("src_index", "dst_index"):
        same &= np.diff(getattr(moves, name)) == 1
    cut[1:] = ~same
    first = np.flatnonzero(cut)
    yield from zip(first.tolist(), np.diff(first, append=len(moves)).tolist(), strict=True)


def _acts(
    bound: BoundSchedule, layout: _Layout, moves: Moves, piece: tuple[int, int], slicing: _Slicing
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


def _emit(block: BlockBuilder, bound: BoundSchedule, layout: _Layout, steps: list[list[_Act]]) -> None:
    """Adds the operations of these steps."""

    def span(place: tuple[Region, int, int, int], count: int) -> Span:
        region, index, first, last = place
        buffer, begin, _ = layout.places[region]
        return Span(buffer, begin + index * layout.fine + first, (count - 1) * layout.fine + last - first)

    met: tuple[int, ...] = ()
    for acts in steps:
        joins = [act for act in acts if act.role == "join"]
        if joins:
            met = _through_switch(block, bound, joins, met, span)
        elif met:
            met = ()
        for act in acts:
            if act.role == "local" and act.read is not None and act.written is not None:
                source, target = span(act.read, act.count), span(act.written, act.count)
                _own(block, Op.REDUCE if act.reduce else Op.COPY, source, target)
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
    """A step through the switch: the group meets, its ranks do their part, the group meets again. Whom this rank met last."""
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
