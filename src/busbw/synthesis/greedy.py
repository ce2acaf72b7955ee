"""A schedule by greedy matching of links and chunks in time, for ranks joined by point-to-point links.

The matching itself is C++ (`busbw/schedule/matching.hpp`): whenever a link is free it carries what is rarest. Here: into how many chunks a
rank's part is cut, how many of them a message may carry, and which ranks are a cluster that a chunk enters once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from busbw.synthesis import _matching
from busbw.synthesis.rank_links import RankLinks, cut_bound_s, narrow_clusters
from busbw.synthesis.transfers import Transfers

__all__ = ["GREEDY_COLLECTIVES", "synthesise_greedily"]

GREEDY_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")

_PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_MESSAGES = (1, 2, 4, 8, 16)
_ROUNDS_AHEAD = (4, 8, 2, 16)
_WORK = 24e6
"""Transfers times 64-bit words of a set of chunks: about half a second on one core of 2020; more ways are tried while it lasts."""
_MOST_TRIES = 40
_GOOD_ENOUGH = 1.001
"""Time over the bound from where on no other way is tried."""


@dataclass(frozen=True, slots=True)
class _Way:
    """How finely to cut; the last three are places in _PARTS, _MESSAGES and _ROUNDS_AHEAD."""

    parts: int
    message: int
    ahead: int


def synthesise_greedily(
    collective: str,
    links: RankLinks,
    size_bytes: float,
    *,
    root: int = 0,
    parts: int | None = None,
    most_chunks: int | None = None,
    seed: int = 0,
    effort: float = 1.0,
) -> Transfers:
    """The best schedule that greedy matching finds, within `effort` times about half a second of one core.

    size_bytes is the larger of a rank's buffers. parts: chunks of a rank's part (of the whole in broadcast and reduce); most_chunks: chunks
    of a message; what is not given is chosen. The same arguments give the same schedule on every machine.
    Raises ValueError for a collective it has no way for, RuntimeError if links leave a rank unreachable.

    >>> ring = RankLinks.of(4, [(r, (r + 1) % 4, 50e9, 0.0) for r in range(4)])
    >>> found = synthesise_greedily("all_gather", ring, 4e9, parts=1)
    >>> len(found), found.time_s  # three steps of 1 GB at 50 GB/s
    (12, 0.06)
    """
    if collective not in GREEDY_COLLECTIVES:
        raise ValueError(f"{collective}: greedy matching makes {', '.join(GREEDY_COLLECTIVES)}")
    if not size_bytes > 0:
        raise ValueError(f"size_bytes is positive, not {size_bytes}")
    if not 0 <= root < links.ranks:
        raise ValueError(f"root {root} is no rank; they are 0 to {links.ranks - 1}")

    def spread(of: RankLinks, cut: int | None, from_root: bool) -> Transfers:
        return _best_way(_Task(of, size_bytes, root if from_root else None, seed), cut, most_chunks, _WORK * effort)

    match collective:
        case "all_gather" | "broadcast":
            return spread(links, parts, collective == "broadcast")
        case "reduce_scatter" | "reduce":
            return spread(links.reversed(), parts, collective == "reduce").time_reversed()
        case _:
            scattered = spread(links.reversed(), parts, False).time_reversed()
            return scattered.then(spread(links, scattered.chunks // links.ranks, False))


@dataclass(frozen=True, slots=True)
class _Task:
    """All chunks to all ranks, from their owners or from the root."""

    links: RankLinks
    size_bytes: float
    root: int | None
    seed: int

    @property
    def owners(self) -> int:
        return self.links.ranks if self.root is None else 1

    def source(self, parts: int) -> NDArray[np.int32]:
        """The rank that has each chunk."""
        if self.root is None:
            return np.arange(self.owners * parts, dtype=np.int32) // np.int32(parts)
        return np.full(parts, self.root, np.int32)


def _best_way(task: _Task, parts: int | None, most_chunks: int | None, work: float) -> Transfers:
    """The best of the ways tried.

    The way that the estimate favours comes first, then ways that differ from the best in one place, then the estimate's order.
    """
    clusters = narrow_clusters(task.links)
    bound_s = cut_bound_s(task.links, task.size_bytes, clusters)
    cuts = (parts,) if parts else _PARTS
    messages = (most_chunks,) if most_chunks else _MESSAGES
    chunks = [task.owners * cut for cut in cuts]
    estimate = {
        _Way(p, m, a): _overhead(task.links, task.size_bytes / chunks[p], message, bound_s) + 1e-9 * a
        for p in range(len(cuts))
        for m, message in enumerate(messages)
        for a in range(len(_ROUNDS_AHEAD))
        if (message == 1 and a == 0) or 1 < message <= max(1, chunks[p] // 16) or most_chunks
    }
    cost = [float(task.links.ranks - 1) * count * (count / 64 + 2) for count in chunks]
    best: Transfers | None = None
    best_way: _Way | None = None
    for _ in range(_MOST_TRIES):
        open_ways = [way for way in estimate if cost[way.parts] <= (work if best is None else work / 4)]
        if not open_ways:
            if best is not None or not estimate:
                break
            open_ways = sorted(estimate, key=lambda way: cost[way.parts])[:1]
        near = [way for way in open_ways if best_way is not None and _differ_in_one(way, best_way)]
        way = min(near or open_ways, key=lambda way: estimate[way])
        work -= cost[way.parts]
        del estimate[way]
        found = _matched(task, cuts[way.parts], clusters, messages[way.message], _ROUNDS_AHEAD[way.ahead])
        if best is None or found.time_s < best.time_s:
            best, best_way = found, way
        if best.time_s <= bound_s * _GOOD_ENOUGH:
            break
    if best is None:
        raise ValueError("there is no way to cut the chunks")
    return best


def _differ_in_one(one: _Way, other: _Way) -> bool:
    """Whether one is next to the other in parts or message, or the same but for rounds_ahead."""
    apart = abs(one.parts - other.parts) + abs(one.message - other.message)
    return apart == 1 or (apart == 0 and one.ahead != other.ahead)


def _overhead(links: RankLinks, chunk_bytes: float, message: int, bound_s: float) -> float:
    """Expected time over the bound, less one. It only orders the ways.

    A link on the bottleneck spends alpha / (chunk time x chunks of a message) of its time on start-ups, and stands still for about a message
    while the first chunks come and the last ones go. The bottleneck is taken to be of the slowest links.
    """
    chunk_s = chunk_bytes / float(links.bandwidth_bytes_per_s.min(initial=np.inf)) or 1e-12
    alpha_s = float(links.alpha_s.max(initial=0.0))
    rounds = max(bound_s / chunk_s, 1.0)
    return alpha_s / (message * chunk_s) + (1 + max(0.0, message - 1.5)) / rounds


def _matched(
    task: _Task, parts: int, clusters: list[NDArray[np.int32]], most_chunks: int, rounds_ahead: int
) -> Transfers:
    links, source = task.links, task.source(parts)
    chunk_bytes = task.size_bytes / len(source)
    link, chunk, begin_ps, end_ps = _matching.spread(
        links.ranks,
        links.src,
        links.dst,
        np.rint(links.alpha_s * 1e12).astype(np.int64),
        np.maximum(np.rint(chunk_bytes / links.bandwidth_bytes_per_s * 1e12), 1).astype(np.int64),
        source,
        [members.tolist() for members in clusters],
        task.seed,
        most_chunks,
        rounds_ahead,
    )
    return Transfers(
        "all_gather" if task.root is None else "broadcast",
        links.ranks,
        len(source),
        chunk_bytes,
        task.root,
        chunk,
        links.src[link],
        links.dst[link],
        link,
        begin_ps,
        end_ps,
        np.zeros(len(link), bool),
    )
