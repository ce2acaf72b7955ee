"""The shape of a plan's channels: who sends data to whom, and whether that is a ring, a tree, or something else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

from busbw.collectives.plan import Buffer, ConnectionKind, Op, Plan

__all__ = ["Shape", "shapes_of"]

_DATA = (
    Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND, Op.PUT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH, Op.GET,
    Op.PUT_PACKETS, Op.FORWARD_PACKETS, Op.REDUCE, Op.REDUCE_PACKETS, Op.MULTICAST, Op.MULTICAST_PACKETS, Op.GROUP_REDUCE,
    Op.GROUP_REDUCE_MULTICAST,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Shape:
    """Who sends data to whom on a channel."""

    channel: int
    ranks: int
    edges: tuple[tuple[int, int], ...]
    """(source, destination), sorted."""

    @property
    def name(self) -> str:
        """`ring of n`, `tree of n`, `both ways along a tree of n`, `all to all of n`, or `graph of n`."""
        met = {rank for edge in self.edges for rank in edge}
        n, edges = len(met), set(self.edges)
        pairs = {(min(edge), max(edge)) for edge in edges}
        after = dict(self.edges)
        if n > 1 and len(edges) == n == len(after) and _walk(after, self.edges[0][0]) == n:
            return f"ring of {n}"
        if n > 1 and len(edges) == n * (n - 1):
            return f"all to all of {n}"
        if n > 1 and len(pairs) == n - 1 and _connected(pairs, n):
            both = len(edges) == 2 * len(pairs)
            return f"{'both ways along a tree' if both else 'tree'} of {n}"
        return f"graph of {n}"


def _walk(after: dict[int, int], start: int) -> int:
    """Ranks met until a walk comes back to where it began."""
    at, steps = after.get(start, start), 1
    while at != start and steps <= len(after):
        at, steps = after.get(at, start), steps + 1
    return steps


def _connected(pairs: set[tuple[int, int]], ranks: int) -> bool:
    near: dict[int, list[int]] = defaultdict(list)
    for a, b in pairs:
        near[a].append(b)
        near[b].append(a)
    met, open_ = set(), [next(iter(near))]
    while open_:
        at = open_.pop()
        if at not in met:
            met.add(at)
            open_ += near[at]
    return len(met) == ranks


def shapes_of(plan: Plan) -> list[Shape]:
    """The shape of each channel over which data goes, in order of channels. Looks at every rank."""
    edges: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for rank in plan:
        unrolled = rank.unrolled()
        op = Op.OPERAND
        for row in unrolled.instructions:
            if row["op"] != Op.OPERAND:
                op = Op(int(row["op"]))
            via = int(row["via"])
            if op not in _DATA or not 0 <= via < len(rank.connections):
                continue
            connection = rank.connections[via]
            loads = op is Op.GET or (op is Op.REDUCE and row["src_buffer"] != Buffer.NONE)
            for peer in _peers(plan.ranks, rank.rank, connection, rank.groups):
                edges[int(connection["channel"])].add((peer, rank.rank) if loads else (rank.rank, peer))
    return [Shape(channel, plan.ranks, tuple(sorted(edges[channel]))) for channel in sorted(edges)]


def _peers(ranks: int, own: int, connection: object, groups: tuple[object, ...]) -> Iterator[int]:
    kind, peer = int(connection["kind"]), int(connection["peer"])  # type: ignore[index]
    if kind == ConnectionKind.SWITCH:
        members: tuple[int, ...] = groups[peer].ranks if peer < len(groups) else ()  # type: ignore[attr-defined]
        yield from (member for member in members if member != own)
    elif kind != ConnectionKind.FIFO_IN and peer < ranks:
        yield peer
