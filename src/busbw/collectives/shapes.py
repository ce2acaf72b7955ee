"""The shape of a plan's channels: who sends data to whom, and whether that is a ring, a tree, or something else."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from busbw.collectives.plan import Buffer, ConnectionKind, Op, Plan, RankPlan
from busbw.errors import InputError

__all__ = ["Shape", "shapes_of"]

_DATA = (
    Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND, Op.PUT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH, Op.GET,
    Op.PUT_PACKETS, Op.FORWARD_PACKETS, Op.REDUCE, Op.REDUCE_PACKETS, Op.MULTICAST, Op.MULTICAST_PACKETS, Op.GROUP_REDUCE,
    Op.GROUP_REDUCE_MULTICAST,
)  # fmt: skip
_MOST_MET = 1 << 22
"""Connections that a row in loops may name; more than a rank has anywhere. A guess."""


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
    """The shape of each channel over which data goes, in order of channels. Looks at every rank; loops are not written out.

    Raises InputError for a loop over more connections than are told apart.
    """
    edges: dict[int, set[tuple[int, int]]] = defaultdict(set)
    for rank in plan:
        for via, loads in _used(rank):
            connection = rank.connections[via]
            for peer in _peers(plan.ranks, rank.rank, connection, rank.groups):
                edges[int(connection["channel"])].add((peer, rank.rank) if loads else (rank.rank, peer))
    return [Shape(channel, plan.ranks, tuple(sorted(edges[channel]))) for channel in sorted(edges)]


def _used(rank: RankPlan) -> set[tuple[int, bool]]:
    """Connections over which a rank's data goes, and whether it comes by a load of this rank."""
    found: set[tuple[int, bool]] = set()
    for block in range(len(rank.blocks)):
        rows = rank.rows(block)
        heads = np.where(rows["op"] == Op.OPERAND, 0, np.arange(len(rows)))
        op = rows["op"][np.maximum.accumulate(heads)] if len(rows) else rows["op"]
        loads = (op == Op.GET) | ((op == Op.REDUCE) & (rows["src_buffer"] != Buffer.NONE))
        data = np.isin(op, _DATA) & (rows["op"] != Op.LOOP)
        steps = rank.walks["via_step"][rows["walk"]].any(axis=1)
        dead = np.zeros(len(rows), bool)
        loops = [
            (at, at + 1 + int(rows[at]["dst"]), int(rows[at]["count"]))
            for at in np.flatnonzero(rows["op"] == Op.LOOP).tolist()
        ]
        for at, end, turns in loops:
            if turns < 1:
                dead[at:end] = True
        for loaded in (False, True):
            still = data & ~steps & ~dead & (loads == loaded)
            found |= {(via, loaded) for via in np.unique(rows["via"][still]).tolist()}
        for at in np.flatnonzero(data & steps & ~dead).tolist():
            around = [turns for first, end, turns in loops if first < at < end]
            found |= {
                (via, bool(loads[at]))
                for via in _met(rank, int(rows[at]["via"]), rank.walks[rows[at]["walk"]]["via_step"].tolist(), around)
            }
    return {(via, loads_) for via, loads_ in found if 0 <= via < len(rank.connections)}


def _met(rank: RankPlan, via: int, steps: list[int], turns: list[int]) -> list[int]:
    """The numbers of connections that a row names in loops of so many turns, outermost first."""
    found = np.array([via], np.int64)
    for step, count in zip(steps, turns, strict=False):
        if step:
            if len(found) * count > _MOST_MET:
                raise InputError(
                    f"rank {rank.rank}: a loop goes over {len(found) * count:,} connections; up to {_MOST_MET:,} are told apart. Run it fewer times"
                )
            found = np.unique(found[:, None] + step * np.arange(count))
    return [int(one) for one in found]


def _peers(ranks: int, own: int, connection: object, groups: tuple[object, ...]) -> Iterator[int]:
    kind, peer = int(connection["kind"]), int(connection["peer"])  # type: ignore[index]
    if kind == ConnectionKind.SWITCH:
        members: tuple[int, ...] = groups[peer].ranks if peer < len(groups) else ()  # type: ignore[attr-defined]
        yield from (member for member in members if member != own)
    elif kind != ConnectionKind.FIFO_IN and peer < ranks:
        yield peer
