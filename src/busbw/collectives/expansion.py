"""A bound schedule written out: every chunk that moves, as columns. For small numbers of ranks, and for samples of large ones."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

import numpy as np

from busbw.collectives.expressions import (
    ONE,
    Environment,
    Expr,
    IntArray,
    Value,
    const,
    evaluate,
    free_names,
    substitute,
    var,
)
from busbw.collectives.inversion import solve
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
    transfers_of,
)

__all__ = ["COPY", "NETWORK", "REDUCE", "REGIONS", "Moves", "Walk", "expand", "ragged", "sent_by", "step_names"]

_MOST = 20_000_000
"""Rows that are written out: 13 columns of 8 bytes each, 2 GB. A guess at what a user's machine spares."""

REGIONS = tuple(Region)
COPY, REDUCE, NETWORK = 0, 1, 2  # NETWORK: one addend of a sum that the network forms; the sum overwrites


@dataclass(frozen=True, slots=True)
class Moves:
    """Moves of single chunks, in order of steps. Move i takes a chunk from src[i] to dst[i] in step[i]. M moves.

    Regions are indices into REGIONS. `transfer` is the place of the transfer in `transfers_of(body)`. Moves of one `message` share step, src, dst and
    transfer and travel together.
    """

    step: IntArray  # (M,)
    src: IntArray  # (M,) rank
    dst: IntArray  # (M,) rank
    src_region: IntArray  # (M,)
    src_index: IntArray  # (M,)
    dst_region: IntArray  # (M,)
    dst_index: IntArray  # (M,)
    action: IntArray  # (M,) COPY, REDUCE or NETWORK
    channel: IntArray  # (M,)
    path: IntArray  # (M,) index into the schedule's paths, -1 for none
    transfer: IntArray  # (M,)
    message: IntArray  # (M,)
    count: IntArray  # (M,) chunks; 1 unless whole messages were asked for

    def __len__(self) -> int:
        return len(self.step)

    def taken(self, which: IntArray) -> Moves:
        """The moves at these places."""
        return Moves(*(getattr(self, f.name)[which] for f in fields(self)))


def expand(bound: BoundSchedule, *, rank: int | None = None, whole: bool = False, most: int = _MOST) -> Moves:
    """Every move of the schedule; with `rank` those that it sends or receives, for which nothing else is written out if the schedule allows.

    Slices of pipelines and channels are not told apart: each does the same. `whole`: one row a message, with the number of its chunks and the place of the first.

    Raises ValueError if there are more than `most` (they would not fit in memory), or if the two ends of a transfer count different chunks.

    >>> from busbw.collectives.algorithms.ring import ring_all_gather
    >>> moves = expand(ring_all_gather().bind(3))
    >>> [(int(t), int(s), int(d), int(c)) for t, s, d, c in zip(moves.step, moves.src, moves.dst, moves.src_index)]
    [(0, 0, 1, 0), (0, 1, 2, 1), (0, 2, 0, 2), (1, 0, 1, 2), (1, 1, 2, 0), (1, 2, 0, 1)]
    """
    walk = Walk(bound, most, rank, whole)
    walk.visit(bound.schedule.body, bound.environment, 1, np.zeros(1, np.int64))
    return walk.moves()


def sent_by(bound: BoundSchedule, rank: int, *, whole: bool = False, most: int = _MOST) -> Moves:
    """The moves that one rank makes, those within itself included, as `expand` has them."""
    walk = Walk(bound, most, rank, whole, sends_only=True)
    walk.visit(bound.schedule.body, bound.environment, 1, np.zeros(1, np.int64))
    moves = walk.moves()
    return moves.taken(np.flatnonzero(moves.src == rank))


class Walk:
    """Goes through the tree with a batch of environments at once: variables are arrays of one length. `transfer` is called once a leaf and batch."""

    def __init__(
        self, bound: BoundSchedule, most: int, rank: int | None = None, whole: bool = False, sends_only: bool = False
    ) -> None:
        self.bound = bound
        self.sends_only = sends_only
        self.rank = rank
        self.whole = whole
        self.here = {} if rank is None else {a: int(x[0]) for a, x in bound.coordinates(np.array([rank])).items()}
        self.most = most
        self.numbers = {id(transfer): number for number, transfer in enumerate(transfers_of(bound.schedule.body))}
        self.rows: list[list[IntArray]] = []
        self.count = 0
        self.messages = 0

    def moves(self) -> Moves:
        """What was written out so far, in order of steps."""
        if not self.rows:
            return Moves(*(np.zeros(0, np.int64) for _ in fields(Moves)))
        columns = [np.concatenate(parts) for parts in zip(*self.rows, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        return Moves(*(column[order] for column in columns))

    def visit(self, node: Node, env: Environment, batch: int, start: IntArray) -> None:
        """Goes through a part of the tree; `start` is the step in which it begins, for each environment."""
        if batch == 0:
            return
        if isinstance(node, Transfer):
            self.transfer(node, env, batch, start)
        elif isinstance(node, Seq):
            for child in node.children:
                self.visit(child, env, batch, start)
                start = start + steps_of(child, env, batch)
        elif isinstance(node, Par):
            for child in node.children:
                self.visit(child, env, batch, start)
        elif isinstance(node, Loop):
            inner, item, total = _unrolled(node, env, batch)
            base = start[item]
            if not node.parallel:
                base = base + _earlier(steps_of(node.body, inner, total), item, batch, descending=node.descending)
            self.visit(node.body, inner, total, base)
        else:
            self.visit(node.body, env, batch, start)

    def transfer(self, node: Transfer, env: Environment, batch: int, start: IntArray) -> None:
        """Writes a transfer out."""
        axes, sizes = self.bound.schedule.axes, dict(self.bound.sizes)
        domain = node.domain(axes)
        sending = self.candidates(node.src, domain, env, batch) if not node.group else None
        receiving = self.candidates(node.dst, domain, env, batch) if not node.group and not self.sends_only else None
        if self.sends_only and sending is not None:
            solved = {axis: _column(e, env, batch) % sizes[axis] for axis, e in sending.items()}
            self.admit(node, env.having(**solved), start, batch, "sends")
            return
        if self.rank is None or sending is None or receiving is None:
            self._bounded(batch * math.prod(sizes[axis] for axis in domain))
            env, item, total = _over_axes(env, batch, domain, sizes)
            self.admit(node, env, start[item], total)
            return
        for candidates, role in ((sending, "sends"), (receiving, "receives")):
            if role == "receives" and node.local:
                continue
            solved = {axis: _column(e, env, batch) % sizes[axis] for axis, e in candidates.items()}
            self.admit(node, env.having(**solved), start, batch, role)

    def candidates(
        self, rank: tuple[Expr, ...], domain: tuple[str, ...], env: Environment, batch: int
    ) -> dict[str, Expr] | None:
        """Coordinates in terms of loop variables for which these expressions can be this rank; None if that can't be told."""
        if self.rank is None:
            return None
        axes = self.bound.schedule.axes
        target = {axis: const(x) for axis, x in self.here.items()}
        found = solve(dict(zip(axes, rank, strict=True)), domain, target)
        if found is None and len(axes) == 1 and domain == axes and self._exchanges(rank[0], env, batch):
            return {axes[0]: substitute(rank[0], {var(axes[0]): target[axes[0]]})}
        return found

    def _exchanges(self, expr: Expr, env: Environment, batch: int) -> bool:
        """Whether the expression pairs ranks up, so that whom it sends to me is whom it sends me to; tried on all ranks."""
        ((axis, ranks),) = self.bound.sizes
        names = sorted(free_names(expr) - {axis})
        cases = _different([_column(var(name), env, batch) for name in names])
        if cases.shape[1] * ranks > self.most:
            return False
        everyone = np.arange(ranks, dtype=np.int64)
        for case in cases.T:
            here = env.having(**dict(zip(names, (int(x) for x in case), strict=True)))
            there = _column(expr, here.having(**{axis: everyone}), ranks) % ranks
            if (_column(expr, here.having(**{axis: there}), ranks) % ranks != everyone).any():
                return False
        return True

    def admit(self, node: Transfer, env: Environment, start: IntArray, total: int, role: str = "") -> None:
        """Writes out the moves of a transfer in environments that have its coordinates; with a role only those in which this rank plays it."""
        bound, axes, sizes = self.bound, self.bound.schedule.axes, dict(self.bound.sizes)
        extents = list(sizes.values())
        admitted = np.flatnonzero(_column(node.guard, env, total))
        if len(admitted) < total:
            env, start, total = _picked(env, admitted), start[admitted], len(admitted)
        if total == 0:
            return
        src = [_column(e, env, total) % sizes[a] for e, a in zip(node.src, axes, strict=True)]
        dst = [_column(e, env, total) % sizes[a] for e, a in zip(node.dst, axes, strict=True)]
        message = self.messages + np.arange(total)
        self.messages += total
        if node.group:
            many = math.prod(sizes[axis] for axis in node.group)
            self._bounded(total * (many * many if node.mode is Mode.NETWORK_ALL_REDUCE else many))
            members, item, total = _over_axes(Environment(), total, node.group, sizes)
            env, start, message = _picked(env, item), start[item], message[item]
            src, dst = [x[item] for x in src], [x[item] for x in dst]
            for place, axis in enumerate(axes):
                if axis in node.group:
                    along = np.asarray(members.variables[axis])
                    if node.mode is Mode.MULTICAST:
                        dst[place] = along
                    else:
                        src[place] = along
            if node.mode is Mode.NETWORK_ALL_REDUCE:
                members, item, total = _over_axes(Environment(), total, node.group, sizes)
                env, start, message = _picked(env, item), start[item], message[item]
                src, dst = [x[item] for x in src], [x[item] for x in dst]
                for place, axis in enumerate(axes):
                    if axis in node.group:
                        dst[place] = np.asarray(members.variables[axis])
        sender, receiver = np.ravel_multi_index(src, extents), np.ravel_multi_index(dst, extents)
        if self.rank is not None:
            mine = {"sends": sender == self.rank, "receives": (receiver == self.rank) & (sender != self.rank)}.get(
                role, (sender == self.rank) | (receiver == self.rank)
            )
            kept = np.flatnonzero(mine)
            env, start, message, total = _picked(env, kept), start[kept], message[kept], len(kept)
            sender, receiver = sender[kept], receiver[kept]
            if total == 0:
                return
        count = _column(node.source.count, env, total)
        if not np.array_equal(count, _column(node.target.count, env, total)):
            raise ValueError(
                f"{node.where}: {bound.schedule.name}: {node.source} and {node.target} hold different numbers of chunks"
            )
        piece, item, moved = ragged(np.minimum(count, 1) if self.whole else count)
        self._bounded(moved)
        action = {Mode.COPY: COPY, Mode.MULTICAST: COPY, Mode.REDUCE: REDUCE}.get(node.mode, NETWORK)
        self.count += moved

        def index(place: Location) -> IntArray:
            stride: IntArray = piece * _column(place.stride, env, total)[item]
            return _column(place.index, env, total)[item] + stride

        self.rows.append(
            [
                start[item],
                sender[item],
                receiver[item],
                *self._place(node.source, node, index(node.source)),
                *self._place(node.target, node, index(node.target)),
                np.full(moved, action, np.int64),
                _column(node.channel, env, total)[item],
                _column(node.path, env, total)[item],
                np.full(moved, self.numbers[id(node)], np.int64),
                message[item],
                count[item] if self.whole else np.ones(moved, np.int64),
            ]
        )

    def _place(self, place: Location, node: Transfer, index: IntArray) -> list[IntArray]:
        extent = self.bound.extent(place.region)
        if extent == 0 and len(index):
            raise ValueError(
                f"{node.where}: {self.bound.schedule.name}: {place} lies in a region that has no chunks with {self.bound.sizes_text}"
            )
        return [np.full(len(index), REGIONS.index(place.region), np.int64), index % max(extent, 1)]

    def _bounded(self, more: int) -> None:
        if self.count + more > self.most:
            raise ValueError(
                f"{self.bound.schedule.name} with {self.bound.sizes_text} has more than {self.most} moves: too many to write out. "
                "Lower single ranks, or take a sample."
            )


def steps_of(node: Node, env: Environment, batch: int) -> IntArray:
    """Steps that this part of a schedule takes, for each environment of a batch (pipelines and channels: one slice). (batch,) int64."""
    if isinstance(node, Transfer):
        return np.ones(batch, np.int64)
    if isinstance(node, Seq):
        return sum((steps_of(child, env, batch) for child in node.children), np.zeros(batch, np.int64))
    if isinstance(node, Par):
        longest: IntArray = np.zeros(batch, np.int64)
        for child in node.children:
            longest = np.maximum(longest, steps_of(child, env, batch))
        return longest
    if isinstance(node, Pipeline | Channels):
        return steps_of(node.body, env, batch)
    count = _column(node.count, env, batch)
    if not (step_names(node.body) & {node.var}):  # each round takes the same number of steps
        each = steps_of(node.body, env.having(**{node.var: np.zeros(batch, np.int64)}), batch)
        return np.where(count > 0, each, 0) if node.parallel else each * np.maximum(count, 0)
    inner, item, total = _unrolled(node, env, batch)
    found = np.zeros(batch, np.int64)
    if node.parallel:
        np.maximum.at(found, item, steps_of(node.body, inner, total))
    else:
        np.add.at(found, item, steps_of(node.body, inner, total))
    return found


def step_names(node: Node) -> frozenset[str]:
    """Variables on which the number of steps of this part depends."""
    if isinstance(node, Transfer):
        return frozenset()
    if isinstance(node, Seq | Par):
        return frozenset[str]().union(*(step_names(child) for child in node.children))
    own = free_names(node.count) if isinstance(node, Loop) else frozenset[str]()
    return own | step_names(node.body)


def _column(expr: Expr, env: Environment, batch: int) -> IntArray:
    """The value for each environment of the batch."""
    if expr == ONE:
        return np.ones(batch, np.int64)
    value: Value = evaluate(expr, env)
    return np.broadcast_to(np.asarray(value, np.int64), (batch,))


def _different(columns: list[IntArray]) -> IntArray:
    """The different columns of a table that is given row by row, (rows, different)."""
    if not columns:
        return np.zeros((0, 1), np.int64)
    if len(columns) == 1:
        ordered = np.sort(columns[0])
        return ordered[np.flatnonzero(np.diff(ordered, prepend=ordered[:1] - 1))][None, :]
    return np.unique(np.stack(columns), axis=1)


def _picked(env: Environment, which: IntArray) -> Environment:
    """The environment for some items of a batch, in this order."""
    return Environment({n: np.asarray(x)[which] for n, x in env.variables.items()}, env.sizes, env.params, env.tables)


def ragged(count: IntArray) -> tuple[IntArray, IntArray, int]:
    """(0 .. n-1 for each n of count, the item that each belongs to, how many). Raises ValueError for more than fit in memory."""
    count = np.maximum(count, 0)
    if count.sum(dtype=np.float64) > _MOST:  # as floats, which do not wrap
        raise ValueError(f"more than {_MOST} turns of loops, or chunks of messages: too many to write out")
    total = int(count.sum())
    item = np.repeat(np.arange(len(count)), count)
    first = np.cumsum(count) - count
    return np.arange(total) - first[item], item, total


def _unrolled(node: Loop, env: Environment, batch: int) -> tuple[Environment, IntArray, int]:
    """The batch with the loop's variable: (environments, item of the outer batch, how many)."""
    turn, item, total = ragged(_column(node.count, env, batch))
    return _picked(env, item).having(**{node.var: turn}), item, total


def _earlier(lengths: IntArray, item: IntArray, batch: int, *, descending: bool) -> IntArray:
    """Steps that the rounds before each round of the same item take."""
    totals = np.zeros(batch, np.int64)
    np.add.at(totals, item, lengths)
    before_item = np.cumsum(totals) - totals
    before = np.cumsum(lengths) - lengths - before_item[item]
    return totals[item] - before - lengths if descending else before


def _over_axes(
    env: Environment, batch: int, axes: tuple[str, ...], sizes: dict[str, int]
) -> tuple[Environment, IntArray, int]:
    """The batch times all coordinates along these axes."""
    extents = [sizes[axis] for axis in axes]
    many = int(np.prod(extents, dtype=np.int64)) if axes else 1
    item = np.repeat(np.arange(batch), many)
    flat = np.tile(np.arange(many), batch)
    found = np.unravel_index(flat, extents) if axes else ()
    coordinates: dict[str, Value] = {axis: np.asarray(x, np.int64) for axis, x in zip(axes, found, strict=True)}
    return _picked(env, item).having(**coordinates), item, batch * many
