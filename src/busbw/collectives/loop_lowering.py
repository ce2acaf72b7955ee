"""What a rank does with the loops of its schedule kept: where, for this rank, peers and chunks move evenly from step to step.

So it is in rings, pairwise exchange, direct exchange. `UnevenError` says that it is not, or that the form of the expressions does not tell;
`step_lowering.py` writes such a rank out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from busbw.collectives.expressions import ZERO, Expr, IntArray, const, free_names, size, substitute, var
from busbw.collectives.inversion import solve
from busbw.collectives.layout import EXPERTS, Emit, Layout
from busbw.collectives.passes import replaced
from busbw.collectives.plan import MAX_LOOPS, BlockBuilder, ConnectionKind, Op, RankBuilder, Span
from busbw.collectives.schedule import BoundSchedule, Location, Loop, Mode, Node, Par, Seq, Transfer
from busbw.collectives.step_lowering import own_move

__all__ = ["UnevenError", "kept_loops"]

_MOST_PEERS = 65_536  # connections of one rank that a loop over peers may list; a guess at what a runtime can open


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


class UnevenError(Exception):
    """Something moves unevenly, or can't be told by form: the rank's moves must be written out."""


def kept_loops(bound: BoundSchedule, rank: int, layout: Layout) -> dict[int, Emit]:
    """The rank's operations by channel with loops kept. Raises UnevenError if the schedule doesn't allow that for this rank."""
    if layout.fine != 1 or bound.schedule.kind in EXPERTS:
        raise UnevenError
    here = {var(axis): const(int(x[0])) for axis, x in bound.coordinates(np.array([rank])).items()}
    known = {size(axis): const(extent) for axis, extent in bound.sizes}
    known |= {Expr("param", (), name): const(value) for name, value in bound.params}
    return {0: _Maker(bound, rank, layout, here, known).node(bound.schedule.body, ())}


class _Maker:
    """Turns parts of the tree into functions that add their operations to a block."""

    def __init__(
        self, bound: BoundSchedule, rank: int, layout: Layout, here: Mapping[Expr, Expr], known: Mapping[Expr, Expr]
    ) -> None:  # fmt: skip
        self.bound, self.rank, self.layout, self.here, self.known = bound, rank, layout, here, known
        self.sizes = dict(bound.sizes)

    def node(self, node: Node, rounds: tuple[_Round, ...]) -> Emit:
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
        raise UnevenError

    def loop(self, node: Loop, rounds: tuple[_Round, ...], inside: Callable[[Node, tuple[_Round, ...]], Emit]) -> Emit:
        count = self.constant(node.count)
        body = node.body
        if node.descending:
            body = _with(body, {var(node.var): const(count - 1) - var(node.var)})
        if count <= 1:
            return inside(_with(body, {var(node.var): ZERO}), rounds) if count == 1 else lambda block: None
        if len(rounds) == MAX_LOOPS:
            raise UnevenError
        part = inside(body, (*rounds, _Round(node.var, count)))

        def repeated(block: BlockBuilder) -> None:
            with block.loop(count):
                place = len(block.rows)
                part(block)
            if len(block.rows) == place:  # this rank has nothing to do in it
                block.rows.pop()

        return repeated

    def step(self, node: Node, rounds: tuple[_Round, ...]) -> Emit:
        """One step: all sends, then local moves, then what arrives."""
        leaves = list(_leaves(node, ()))
        if not all(len(rounds) + len(inner) <= MAX_LOOPS for _, inner in leaves):
            raise UnevenError
        emits: list[Emit] = []
        peers: dict[str, set[int]] = {"send": set(), "receive": set()}
        for role in ("send", "local", "receive"):
            for transfer, inner in leaves:
                if transfer.group or (transfer.channel != ZERO) or transfer.local != (role == "local"):
                    if transfer.local and role != "local":
                        continue
                    if not transfer.local and role == "local":
                        continue
                    raise UnevenError
                made = self.operation(transfer, inner, rounds, role)
                if made is not None:
                    emit, reached = made
                    if role in peers:
                        if peers[role] & reached or (len(leaves) > 1 and role == "send" and not reached):
                            raise UnevenError  # several pieces between two ranks go in rounds
                        peers[role] |= reached
                    emits.append(emit)
        locals_ = [transfer for transfer, _ in leaves if transfer.local]
        if locals_ and (len(leaves) > 1 or not _apart(locals_[0])):
            raise UnevenError

        def all_of_them(block: BlockBuilder) -> None:
            for emit in emits:
                emit(block)

        return all_of_them

    def operation(
        self, node: Transfer, inner: tuple[Loop, ...], rounds: tuple[_Round, ...], role: str
    ) -> tuple[Emit, set[int]] | None:
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
            raise UnevenError
        solved = {var(a): _wrapped(e, self.sizes[a]) for a, e in found.items()} | dict(self.known)
        for axis, expr in zip(axes, mine, strict=True):  # conditions on the rank must not depend on the step
            value = _linear(substitute(expr, solved), names)
            if value.steps or value.base % self.sizes[axis] != int(self.here[var(axis)].value):
                if not value.steps:
                    return None
                if any(step % self.sizes[axis] for step in value.steps.values()):
                    raise UnevenError
        guard = _linear(substitute(node.guard, solved), names)
        if guard.steps:
            raise UnevenError
        if not guard.base:
            return None
        turns = []
        for loop in inner:
            if loop.descending:
                raise UnevenError
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
            raise UnevenError
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
            return self.looped(turns_, lambda block: own_move(block, op, source, target)), set()
        grid = self.peers(other, names, every)
        if grid.size > _MOST_PEERS or (grid == self.rank).any():
            raise UnevenError
        pieces = math.prod(r.count for r in turns_)
        if pieces > 1 and len(np.unique(grid[(0,) * len(rounds)])) < pieces:
            raise UnevenError  # several pieces for one peer in one step
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
            raise UnevenError
        return self.looped(turns_, emit), set(grid.ravel().tolist())

    def looped(self, turns: tuple[_Round, ...], emit: Emit) -> Emit:
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
                raise UnevenError
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
            raise UnevenError
        base, steps = value.base % extent, value.of(rounds)
        lowest = base + sum(min(0, s * (r.count - 1)) for s, r in zip(steps, rounds, strict=True))
        highest = base + sum(max(0, s * (r.count - 1)) for s, r in zip(steps, rounds, strict=True)) + count
        if lowest >= 0 and highest <= extent:
            return Span(buffer, first + base, count, steps)
        if count > 1 and (extent % count or base % count or any(s % count for s in steps)):
            raise UnevenError  # a piece would begin at the end of the buffer and go on at its start
        return Span(buffer, first + base, count, steps, first, extent)

    def constant(self, expr: Expr) -> int:
        value = substitute(substitute(expr, self.known), self.here)
        if value.op != "const":
            raise UnevenError
        return int(value.value)


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
        raise UnevenError


def _with(node: Node, replacements: Mapping[Expr, Expr]) -> Node:
    """The tree with variables replaced."""
    return replaced(node, replacements)


def _wrapped(expr: Expr, extent: int) -> Expr:
    return expr if expr.op == "const" and 0 <= int(expr.value) < extent else expr % extent


def _linear(expr: Expr, names: set[str]) -> _Linear:
    """The expression as a linear one in these variables. Raises UnevenError if it is none."""
    if expr.op == "const":
        return _Linear(int(expr.value), {})
    if expr.op == "mod" and expr.args[1].op == "const":
        inner = _linear(expr.args[0], names)
        wrap = int(expr.args[1].value)
        if inner.wrap not in (0, wrap):
            raise UnevenError
        return _Linear(inner.base % wrap, inner.steps, wrap) if inner.steps else _Linear(inner.base % wrap, {})
    if expr.op in ("add", "sub", "mul"):
        a, b = (_linear(arg, names) for arg in expr.args)
        wraps = {w for w in (a.wrap, b.wrap) if w}
        if expr.op == "mul":
            if (a.steps and b.steps) or wraps:
                raise UnevenError
            scaled, factor = (a, b.base) if not b.steps else (b, a.base)
            return _Linear(scaled.base * factor, {n: s * factor for n, s in scaled.steps.items()})
        if len(wraps) > 1:
            raise UnevenError
        sign = 1 if expr.op == "add" else -1
        steps = {n: a.steps.get(n, 0) + sign * b.steps.get(n, 0) for n in {*a.steps, *b.steps}}
        return _Linear(a.base + sign * b.base, {n: s for n, s in steps.items() if s}, wraps.pop() if wraps else 0)
    if expr.op == "var" and str(expr.value) in names:
        return _Linear(0, {str(expr.value): 1})
    raise UnevenError


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
    """(first connection, rows further a turn of each loop). Raises UnevenError if they don't lie evenly."""
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
        raise UnevenError
    return origin, steps
