"""Schedules as task programs: each step of a schedule is a message on a channel and a wait for those that come.

A rank does its steps in order: in each it posts what it sends, then waits for what it receives, so ranks run as far apart
as their data lets them. Loops whose rounds differ only in which chunks move stay loops. Parts that run side by side, and
slices of a pipeline, become streams of their own; a pipeline's slice enters a stage when the slice before it has left.
Not told: copies and sums inside a rank, which take no time here; slices over several channels, which share their links.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from busbw.collectives.expansion import expand
from busbw.collectives.expressions import Expr, const, evaluate, free_names, substitute, var
from busbw.collectives.passes import replaced
from busbw.collectives.schedule import BoundSchedule, Channels, Mode, Node, Par, Pipeline, Seq, Transfer
from busbw.collectives.schedule import Loop as Rounds
from busbw.hardware.links import IntArray
from busbw.simulation.limits import Watch
from busbw.simulation.peers import Others, Peers, Shift, rule
from busbw.simulation.program import (
    Carried,
    Channel,
    Drain,
    Instruction,
    Loop,
    Receive,
    Send,
    Stream,
    TaskProgram,
)

__all__ = ["task_program"]

_MOST_STEPS = 100_000
"""Steps written out one by one. A guess: beyond, expanding takes longer than any user waits."""
_MOST_SLICES = 256
"""Slices of a pipeline, a stream each. A guess."""
_MAIN = "rank"


def task_program(bound: BoundSchedule, size_bytes: int, watch: Watch | None = None) -> TaskProgram:
    """What every rank does when a schedule moves size_bytes, as a program without loss of who waits for whom.

    Chunks are size_bytes over the schedule's chunks, messages rounded up to whole bytes.
    Raises ValueError for schedules of too many different steps.
    """
    work = _Lowering(bound, size_bytes, watch or Watch())
    body = work.visit(bound.schedule.body, {}, 1, ())
    streams = (Stream(_MAIN, tuple(body)), *work.streams)
    return TaskProgram(bound.ranks, streams, tuple(work.channels), {"schedule": bound.schedule.name})


@dataclass(slots=True)
class _Lowering:
    bound: BoundSchedule
    size_bytes: int
    watch: Watch
    streams: list[Stream] = field(default_factory=list)
    channels: list[Channel] = field(default_factory=list)
    steps: int = 0
    current: str = _MAIN
    known_channels: dict[tuple[Node, str, int], tuple[list[str], list[tuple[str, str]]]] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(extent for _, extent in self.bound.sizes)

    def visit(self, node: Node, known: Mapping[Expr, Expr], slices: int, around: tuple[int, ...]) -> list[Instruction]:
        """The instructions of a part for the current stream; `around`: turns of the loops that it stands in."""
        if isinstance(node, Channels):
            return self.visit(node.body, known, slices, around)
        if _single_step(node):
            return self.step(replaced(node, dict(known)), slices)
        if isinstance(node, Seq):
            return [step for child in node.children for step in self.visit(child, known, slices, around)]
        if isinstance(node, Pipeline):
            return self.pipeline(node, known, slices, around)
        if isinstance(node, Par):
            return self.side_by_side(list(node.children), [known] * len(node.children), slices, around)
        if not isinstance(node, Rounds):
            raise TypeError(node)
        count = max(0, int(evaluate(substitute(node.count, dict(known)), self.bound.environment)))
        turns = [{**known, var(node.var): const(turn)} for turn in range(count)] if count <= _MOST_STEPS else []
        if node.parallel:
            return self.side_by_side([node.body] * count, turns, slices, around)
        if count and not _differs(node.body, node.var):
            body = self.visit(node.body, {**known, var(node.var): const(0)}, slices, (*around, count))
            return [Loop(count, tuple(body))] if body else []
        self.bounded(count)
        order = reversed(turns) if node.descending else turns
        return [step for turn in order for step in self.visit(node.body, turn, slices, around)]

    def bounded(self, more: int) -> None:
        self.steps += more
        if self.steps > _MOST_STEPS:
            raise ValueError(
                f"{self.bound.schedule.name} with {self.bound.sizes_text} has more than {_MOST_STEPS} steps that differ. "
                "Take fewer ranks, or an algorithm whose rounds are alike."
            )

    def step(self, node: Node, slices: int) -> list[Instruction]:
        """One step: all that is sent in it, then all that is received; the next begins when what was sent has left."""
        key = (node, self.current, slices)
        if key not in self.known_channels:
            self.bounded(1)
            self.watch.look(f"step {self.steps} of {self.bound.schedule.name} was written out")
            self.known_channels[key] = self.connect(node, slices), self.join(node, slices)
        plain, switched = self.known_channels[key]
        ready, trees = [name for name, _ in switched if name], [name for _, name in switched]
        names = [*plain, *trees]
        return [
            *map(Send, (*plain, *ready)), *map(Receive, ready), *map(Send, trees), *map(Receive, names), *map(Drain, names)
        ]  # fmt: skip

    def join(self, node: Node, slices: int) -> list[tuple[str, str]]:
        """The channels of sums and copies that switches make in a step, each after the one by which its members say that they have come.

        A sum leaves when all have come; no member waits for a message to know that, because the switch does.
        """
        made: list[tuple[str, str]] = []
        for transfer in _transfers(node):
            if not transfer.group:
                continue
            bound = dataclasses.replace(
                self.bound, schedule=dataclasses.replace(self.bound.schedule, body=_only(node, transfer))
            )
            moves = expand(bound, whole=True)
            if not len(moves):
                continue
            kind = _KINDS[transfer.mode]
            if kind is Carried.MULTICAST:
                poster, member = moves.src, moves.dst
            elif kind is Carried.SUM:
                poster, member = moves.dst, moves.src
            else:
                first = np.full(int(moves.message.max()) + 1, self.bound.ranks, np.int64)
                np.minimum.at(first, moves.message, moves.src)
                poster, member = first[moves.message], moves.src
            posters, peers, chunks = _groups(poster, member, moves.message, moves.count, self.bound.ranks)
            if not peers.shape[1]:
                continue
            sizes = -(-chunks * self.size_bytes // (self.bound.chunks * slices))
            rule_, transposed = _tree_rule(posters, peers, self.shape)
            ready = ""
            if kind is not Carried.MULTICAST:
                ready = f"ready{len(self.channels)}"
                self.channels.append(Channel(ready, self.current, self.current, transposed, token=True))
            made.append((ready, self.add(rule_, sizes[:, None], kind)))
        return made

    def connect(self, node: Node, slices: int) -> list[str]:
        """The channels of a step's messages; none where nothing leaves its rank."""
        even = _even_shifts(self.bound, node)
        whole = self.bound.chunks * slices
        if even is not None:
            return [
                self.add(peers, np.broadcast_to(-(-chunks * self.size_bytes // whole), (self.bound.ranks, peers.fan)))
                for peers, chunks in _joined(even, self.shape)
            ]
        bound = dataclasses.replace(self.bound, schedule=dataclasses.replace(self.bound.schedule, body=node))
        moves = expand(bound, whole=True)
        switched = np.array([bool(t.group) for t in _transfers(node)])
        away = (moves.src != moves.dst) & ~switched[moves.transfer]
        pair = moves.src[away] * self.bound.ranks + moves.dst[away]
        if not len(pair):
            return []
        pairs, inverse = np.unique(pair, return_inverse=True)
        chunks = np.bincount(inverse, weights=moves.count[away]).astype(np.int64)
        src, dst = np.divmod(pairs, self.bound.ranks)
        return [self.add(*rule(src, dst, -(-chunks * self.size_bytes // whole), self.shape))]

    def add(self, peers: Peers, sizes: IntArray, kind: Carried = Carried.MESSAGE) -> str:
        """A channel of a step."""
        name = f"step{len(self.channels)}"
        self.channels.append(Channel(name, self.current, self.current, peers, sizes, kind=kind))
        return name

    def side_by_side(
        self, parts: Sequence[Node], known: Sequence[Mapping[Expr, Expr]], slices: int, around: tuple[int, ...]
    ) -> list[Instruction]:
        """Parts as streams of their own, which start when the current one comes here; it goes on when all have ended."""
        self.bounded(len(parts))
        forks, joins = [], []
        for part, names in zip(parts, known, strict=True):
            fork, join = self.fork(part, names, slices, around)
            forks.append(Send(fork, 0))
            joins.append(Receive(join))
        return [*forks, *joins]

    def fork(self, part: Node, known: Mapping[Expr, Expr], slices: int, around: tuple[int, ...]) -> tuple[str, str]:
        """A stream for a part, and the channels that start it and that tell its end."""
        before, name = self.current, f"part{len(self.streams)}"
        place = len(self.streams)
        self.streams.append(Stream(name, ()))
        self.current = name
        body: list[Instruction] = self.visit(part, known, slices, around)
        self.current = before
        fork, join = self.token(before, name), self.token(name, before)
        self.streams[place] = Stream(name, _looped([Receive(fork), *body, Send(join, 0)], around))
        return fork, join

    def token(self, source: str, target: str) -> str:
        """A channel between streams of each rank that takes no time."""
        name = f"token{len(self.channels)}"
        self.channels.append(Channel(name, source, target, Shift(self.shape, (0,) * len(self.shape)), token=True))
        return name

    def pipeline(
        self, node: Pipeline, known: Mapping[Expr, Expr], slices: int, around: tuple[int, ...]
    ) -> list[Instruction]:
        """Each slice a stream; it enters a stage when the slice before it has left that stage, on this rank."""
        parts = self.bound.value(node.parts)
        if parts <= 1:
            return self.visit(node.body, known, slices, around)
        if parts > _MOST_SLICES:
            raise ValueError(f"a pipeline of {parts} slices; at most {_MOST_SLICES} are simulated. Take fewer.")
        stages = self.stages(node.body, known)
        before, forks, joins = self.current, [], []
        left: list[str] = []
        for part in range(parts):
            name, place = f"slice{len(self.streams)}", len(self.streams)
            self.streams.append(Stream(name, ()))
            self.current = name
            body: list[Instruction] = []
            waits, left = left, []
            for stage, (child, names) in enumerate(stages):
                inner = self.visit(child, names, slices * parts, around)
                if part:
                    at = next(i for i, c in enumerate(self.channels) if c.name == waits[stage])
                    self.channels[at] = dataclasses.replace(self.channels[at], target=name)
                    body.append(Receive(waits[stage]))
                body += inner
                if part + 1 < parts:
                    left.append(self.token(name, name))
                    body.append(Send(left[-1], 0))
            fork, join = self.token(before, name), self.token(name, before)
            forks.append(Send(fork, 0))
            joins.append(Receive(join))
            self.streams[place] = Stream(name, _looped([Receive(fork), *body, Send(join, 0)], around))
        self.current = before
        return [*forks, *joins]

    def stages(self, node: Node, known: Mapping[Expr, Expr]) -> list[tuple[Node, Mapping[Expr, Expr]]]:
        """The parts of a pipeline's body that follow one another."""
        if isinstance(node, Seq):
            return [stage for child in node.children for stage in self.stages(child, known)]
        if isinstance(node, Channels):
            return self.stages(node.body, known)
        if isinstance(node, Rounds) and not node.parallel:
            count = max(0, int(evaluate(substitute(node.count, dict(known)), self.bound.environment)))
            self.bounded(count)
            order = range(count - 1, -1, -1) if node.descending else range(count)
            return [s for turn in order for s in self.stages(node.body, {**known, var(node.var): const(turn)})]
        return [(node, known)]


def _looped(body: list[Instruction], around: tuple[int, ...]) -> tuple[Instruction, ...]:
    for count in reversed(around):
        body = [Loop(count, tuple(body))]
    return tuple(body)


def _single_step(node: Node) -> bool:
    if isinstance(node, Par):
        return all(_single_step(child) for child in node.children)
    if isinstance(node, Rounds):
        return node.parallel and _single_step(node.body)
    return isinstance(node, Transfer)


def _transfers(node: Node) -> list[Transfer]:
    if isinstance(node, Transfer):
        return [node]
    if isinstance(node, (Seq, Par)):
        return [leaf for child in node.children for leaf in _transfers(child)]
    return _transfers(node.body)


def _differs(node: Node, name: str) -> bool:
    """Whether who sends how much to whom may depend on a variable; which chunks do not count."""
    if isinstance(node, (Seq, Par)):
        return any(_differs(child, name) for child in node.children)
    if isinstance(node, Rounds):
        return name in free_names(node.count) or _differs(node.body, name)
    if isinstance(node, (Pipeline, Channels)):
        return _differs(node.body, name)
    read = (*node.src, *node.dst, node.guard, node.source.count, node.channel)
    return any(name in free_names(expr) for expr in read)


_KINDS = {
    Mode.MULTICAST: Carried.MULTICAST, Mode.NETWORK_REDUCE: Carried.SUM, Mode.NETWORK_ALL_REDUCE: Carried.SUM_TO_ALL,
}  # fmt: skip


def _only(node: Node, leaf: Transfer) -> Node:
    """A step with one of its transfers alone."""
    if isinstance(node, Par):
        return next(_only(child, leaf) for child in node.children if any(t is leaf for t in _transfers(child)))
    return dataclasses.replace(node, body=_only(node.body, leaf)) if isinstance(node, Rounds) else node


def _groups(
    poster: IntArray, member: IntArray, message: IntArray, chunks: IntArray, ranks: int
) -> tuple[IntArray, IntArray, IntArray]:
    """Posters, their peers (P, k), and how many chunks each moves. A message's rows name each of its members once or more."""
    first = np.unique(message, return_index=True)[1]
    posters, place = np.unique(poster[first], return_inverse=True)
    total = np.bincount(place, weights=chunks[first], minlength=len(posters)).astype(np.int64)
    pair = np.unique(poster * ranks + member)
    one, other = np.divmod(pair, ranks)
    kept = one != other
    one, other = one[kept], other[kept]
    counts = np.searchsorted(one, posters, "right") - np.searchsorted(one, posters)
    peers = np.full((len(posters), int(counts.max(initial=0))), -1, np.int64)
    column = np.arange(len(one)) - np.searchsorted(one, one)
    peers[np.searchsorted(posters, one), column] = other
    return posters, peers, total


def _tree_rule(posters: IntArray, peers: IntArray, shape: tuple[int, ...]) -> tuple[Peers, Peers]:
    """The rule from posters to peers, and the one back."""
    row, column = np.nonzero(peers >= 0)
    one, other = posters[row], peers[row, column]
    nothing = np.zeros(len(one), np.int64)
    back = np.lexsort((one, other))
    forth, _ = rule(one, other, nothing, shape)
    return forth, rule(other[back], one[back], nothing, shape)[0]


_MOST_SHIFTS = 64
"""Shifts of one step that become channels of their own; beyond, pairs are written out. A guess."""


def _even_shifts(bound: BoundSchedule, node: Node) -> dict[tuple[int, ...], int] | None:
    """Chunks by how far they go along each axis, where every rank sends alike; None where that cannot be told by form."""
    found: dict[tuple[int, ...], int] = {}
    axes, sizes = bound.schedule.axes, dict(bound.sizes)

    def leaf(transfer: Transfer, names: dict[str, int]) -> bool:
        env = bound.environment.having(**names)
        fixed = free_names(transfer.guard) | free_names(transfer.source.count)
        if transfer.group or fixed & set(axes) or set(transfer.domain(axes)) != set(axes):
            return False
        if not int(evaluate(transfer.guard, env)):
            return True
        by = []
        for axis, src, dst in zip(axes, transfer.src, transfer.dst, strict=True):
            if (free_names(src) | free_names(dst)) & set(axes) != {axis}:
                return False
            place = np.arange(sizes[axis])
            here, there = (np.asarray(evaluate(e, env.having(**{axis: place}))) for e in (src, dst))
            step = (there - here) % sizes[axis]
            if step.size == 0 or (step != step.flat[0]).any() or len(np.unique(here % sizes[axis])) != sizes[axis]:
                return False
            by.append(int(step.flat[0]))
        if any(by):
            chunks = int(evaluate(transfer.source.count, env))
            found[tuple(by)] = found.get(tuple(by), 0) + max(chunks, 0)
        return True

    def walk(part: Node, names: dict[str, int]) -> bool:
        if isinstance(part, Transfer):
            return leaf(part, names)
        if isinstance(part, Par):
            return all(walk(child, names) for child in part.children)
        if isinstance(part, Rounds):
            if free_names(part.count) & set(axes):
                return False
            count = int(evaluate(part.count, bound.environment.having(**names)))
            if count > _MOST_STEPS:
                return False
            return all(walk(part.body, {**names, part.var: turn}) for turn in range(count))
        return False

    return found if walk(node, {}) and len(found) <= max(_MOST_SHIFTS, *sizes.values()) else None


def _joined(shifts: dict[tuple[int, ...], int], shape: tuple[int, ...]) -> list[tuple[Peers, int]]:
    """Shifts as rules: those to all others along an axis as one, where they carry alike."""
    shifts = {by: chunks for by, chunks in shifts.items() if chunks}
    for axis, size in enumerate(shape):
        along = [tuple(step if a == axis else 0 for a in range(len(shape))) for step in range(1, size)]
        if size > 2 and set(along) == set(shifts) and len(set(shifts.values())) == 1:
            return [(Others(shape, axis), shifts[along[0]])]
    return [(Shift(shape, by), chunks) for by, chunks in shifts.items()]
