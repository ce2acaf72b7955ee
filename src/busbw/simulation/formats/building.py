"""A task graph in the making, for formats that name collectives: each becomes the transfers of a schedule between its ranks.

A collective of a rank begins when what it comes after on that rank has ended; a transfer between two ranks needs both of them there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from busbw.collectives.algorithms import LIBRARY
from busbw.collectives.expansion import expand
from busbw.errors import InputError
from busbw.hardware.links import IntArray
from busbw.simulation.graph import COMPUTE, RECEIVE, SEND, TRANSFER, TaskGraph

__all__ = ["ALGORITHMS", "MOST_TASKS", "GraphBuilder"]

MOST_TASKS = 10_000_000
"""Of a graph: a guess at what memory holds; a task takes some 300 bytes before it runs."""
_MOST_MEMBERS = 1024
"""Of a collective in a graph: a ring of them is two million messages."""
ALGORITHMS: Mapping[str, str] = {
    "all_reduce": "ring_all_reduce", "all_gather": "ring_all_gather", "reduce_scatter": "ring_reduce_scatter",
    "broadcast": "binomial_broadcast", "reduce": "binomial_reduce", "all_to_all": "direct_all_to_all", "gather": "direct_gather",
    "scatter": "direct_scatter", "barrier": "dissemination_barrier",
}  # fmt: skip
"""The schedule of the library that a collective of a graph runs as."""


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """A collective of n ranks: transfers between places 0 to n - 1, and which of them come after which."""

    src: IntArray
    dst: IntArray
    chunks: IntArray
    of_chunks: int
    before: IntArray
    after: IntArray


@lru_cache(maxsize=256)
def _shape(kind: str, ranks: int) -> _Shape:
    """What each step sends waits for all that its sender has sent and received in the step before."""
    if ranks > _MOST_MEMBERS:
        raise InputError(
            f"a {kind} of {ranks:,} ranks: graphs hold those of {_MOST_MEMBERS:,} at most. `busbw simulate collective` takes any number."
        )
    bound = LIBRARY[ALGORITHMS[kind]]().bind(ranks)
    moves = expand(bound, whole=True)
    away = moves.src != moves.dst
    if int(away.sum()) > MOST_TASKS:
        raise InputError(
            f"a {kind} of {ranks} ranks has {int(away.sum()):,} messages; {MOST_TASKS:,} tasks are simulated."
        )
    step, src, dst = (np.asarray(column[away], np.int64) for column in (moves.step, moves.src, moves.dst))
    count = np.asarray(moves.count[away], np.int64)
    # One message a step and pair, whatever it is cut into.
    key = (step * ranks + src) * ranks + dst
    keys, inverse = np.unique(key, return_inverse=True)
    chunks = np.bincount(inverse, weights=count, minlength=len(keys)).astype(np.int64)
    step, pair = np.divmod(keys, ranks * ranks)
    src, dst = np.divmod(pair, ranks)
    before: list[IntArray] = []
    after: list[IntArray] = []
    last: dict[int, list[int]] = {}
    for number in np.unique(step).tolist():
        now = np.flatnonzero(step == number)
        for task in now.tolist():
            earlier = last.get(int(src[task]), [])
            before.append(np.array(earlier, np.int64))
            after.append(np.full(len(earlier), task, np.int64))
        met: dict[int, list[int]] = {}
        for task in now.tolist():
            met.setdefault(int(src[task]), []).append(task)
            met.setdefault(int(dst[task]), []).append(task)
        last |= met
    nothing = np.empty(0, np.int64)
    return _Shape(
        src, dst, chunks, max(1, bound.chunks), np.concatenate([nothing, *before]), np.concatenate([nothing, *after])
    )


@dataclass(slots=True)
class GraphBuilder:
    """Columns of tasks and edges, as they come."""

    ranks: int
    path: str
    kind: list[int] = field(default_factory=list)
    rank: list[int] = field(default_factory=list)
    peer: list[int] = field(default_factory=list)
    size: list[int] = field(default_factory=list)
    time_ps: list[int] = field(default_factory=list)
    match: list[int] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    before: list[IntArray] = field(default_factory=list)
    after: list[IntArray] = field(default_factory=list)

    def task(
        self,
        kind: int,
        rank: int,
        name: str,
        *,
        time_ps: int = 0,
        peer: int = -1,
        size: int = 0,
        after: Iterable[int] = (),
    ) -> int:
        """A task's number. after: tasks that end before it begins."""
        number = len(self.kind)
        if number >= MOST_TASKS:
            raise InputError(
                f"{self.path}: more than {MOST_TASKS:,} tasks. Take fewer ranks, or cut the trace to one step."
            )
        self.kind.append(kind)
        self.rank.append(rank)
        self.peer.append(peer)
        self.size.append(size)
        self.time_ps.append(time_ps)
        self.match.append(-1)
        self.names.append(name)
        self.comes_after(number, after)
        return number

    def compute(self, rank: int, name: str, time_ps: int, after: Iterable[int] = ()) -> int:
        """A computation."""
        return self.task(COMPUTE, rank, name, time_ps=time_ps, after=after)

    def send(self, rank: int, name: str, peer: int, size: int, after: Iterable[int] = ()) -> int:
        """A message; its receive is told by `matched`."""
        return self.task(SEND, rank, name, peer=peer, size=size, after=after)

    def receive(self, rank: int, name: str, size: int, after: Iterable[int] = ()) -> int:
        """The other end of a message."""
        return self.task(RECEIVE, rank, name, size=size, after=after)

    def matched(self, receive: int, send: int) -> None:
        """Says which send a receive waits for."""
        self.match[receive] = send

    def unmatched(self, task: int) -> None:
        """A send or receive without its other end takes no time."""
        self.kind[task], self.peer[task], self.size[task] = COMPUTE, -1, 0

    def comes_after(self, task: int, earlier: Iterable[int]) -> None:
        """Edges into a task."""
        found = np.fromiter(earlier, np.int64)
        if len(found):
            self.before.append(found)
            self.after.append(np.full(len(found), task, np.int64))

    def collective(
        self,
        kind: str,
        members: Sequence[int],
        size_bytes: int,
        *,
        name: str,
        entered: Mapping[int, int],
        left: Mapping[int, int],
    ) -> None:
        """The transfers of a collective. entered, left: tasks that stand for a member's coming and going; of members without, the first one's.

        A barrier's messages have a byte each.
        """
        first = next(iter(entered.values()))
        if len(members) < 2:
            for member, task in left.items():
                self.comes_after(task, [entered[member]])
            return
        shape = _shape(kind, len(members))
        base, count = len(self.kind), len(shape.src)
        if base + count > MOST_TASKS:
            raise InputError(
                f"{self.path}: more than {MOST_TASKS:,} tasks. Take fewer ranks, or cut the trace to one step."
            )
        ranks = np.array(members, np.int64)
        sizes = np.maximum(1, -(-shape.chunks * max(size_bytes, 1) // shape.of_chunks))
        self.kind += [TRANSFER] * count
        self.rank += ranks[shape.src].tolist()
        self.peer += ranks[shape.dst].tolist()
        self.size += sizes.tolist()
        self.time_ps += [0] * count
        self.match += [-1] * count
        self.names += [name] * count
        tasks = base + np.arange(count)
        comes = np.array([entered.get(member, first) for member in members], np.int64)
        self.before += [base + shape.before, comes[shape.src], comes[shape.dst]]
        self.after += [base + shape.after, tasks, tasks]
        place = {member: at for at, member in enumerate(members)}
        for member, task in left.items():
            at = place[member]
            own = tasks[(shape.src == at) | (shape.dst == at)]
            self.comes_after(task, [entered[member], *own.tolist()])

    def graph(self) -> TaskGraph:
        """The graph, not yet checked for cycles."""
        nothing = np.empty(0, np.int64)
        kind, rank, peer, size, time, match = (
            np.array(column, np.int64)
            for column in (self.kind, self.rank, self.peer, self.size, self.time_ps, self.match)
        )
        before, after = np.concatenate([nothing, *self.before]), np.concatenate([nothing, *self.after])
        return TaskGraph(self.ranks, kind, rank, peer, size, time, match, before, after, tuple(self.names))
