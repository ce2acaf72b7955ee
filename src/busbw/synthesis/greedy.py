"""A schedule by greedy matching of links and chunks in time, for ranks joined by point-to-point links.

The matching itself is C++: whenever a link is free it carries what is rarest (`busbw/schedule/matching.hpp`), or, where chunks have one destination,
what has the fewest other ways or the longest way (`busbw/schedule/delivery.hpp`). Here: into how many chunks a
rank's part is cut, how many of them a message may carry, and which ranks are a cluster that a chunk enters once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from busbw.synthesis import _matching
from busbw.synthesis.rank_links import RankLinks, cut_bound_s, hops_between, narrow_clusters, tight_clusters
from busbw.synthesis.transfers import Transfers

__all__ = ["GREEDY_COLLECTIVES", "synthesise_greedily"]

GREEDY_COLLECTIVES = (
    "all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce", "scatter", "gather", "all_to_all",
)  # fmt: skip

_PARTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
_MESSAGES = (1, 2, 4, 8, 16, 64, 256)
_ROUNDS_AHEAD = (8, 4, 2, 0)
_WORK = 24e6
"""Transfers times 64-bit words of a set of chunks: about half a second on one core of 2020; more ways are tried while it lasts."""
_MOST_TRANSFERS = 300_000
"""Parts are not cut so finely that a schedule has more, times the effort."""
_MOST_AT_ALL = 4e7
"""A schedule then takes 1 GB."""
_LONGEST_S = 4e6
"""Of all parts one after the other over the slowest link: int64 picoseconds end at 9.2e6 s."""
_MOST_TRIES = 40
_LOOK_CLOSER = 1.02
"""Time over the bound of the cuts known so far from where on others are looked for."""
_WORTH_MORE = 1.5
"""A guess: what entering once may cost then."""
_MOST_RANKS_CUT = 256
"""Least cuts between all ranks take about a second then."""
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
    Raises ValueError for a collective it has no way for and for more than 40 million transfers, RuntimeError if links leave a rank unreachable.

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
    for name, value in (("parts", parts), ("most_chunks", most_chunks)):
        if value is not None and value < 1:
            raise ValueError(f"{name} is at least 1, not {value}")
    if links.ranks * size_bytes / float(links.bandwidth_bytes_per_s.min(initial=np.inf)) > _LONGEST_S:
        raise ValueError(f"{size_bytes:g} bytes over the slowest link take too long to count in picoseconds")

    def best(task: _Task, cut: int | None = parts) -> Transfers:
        if (least := task.transfers(cut or 1)) > _MOST_AT_ALL:
            raise ValueError(
                f"{collective} over {links.ranks} ranks is at least {least:.3g} transfers, more than {_MOST_AT_ALL:.0e}: "
                "greedy matching writes every one down; take a schedule of the library or a forest"
            )
        found = _best_way(task, cut, most_chunks, effort)
        if found.time_s > _LOOK_CLOSER * task.bound_s and (finer := task.with_more_clusters()):
            return min(found, _best_way(finer, cut, most_chunks, effort), key=lambda way: way.time_s)
        return found

    back = links.reversed()
    match collective:
        case "all_gather" | "broadcast":
            return best(_Spread(links, size_bytes, seed, root if collective == "broadcast" else None))
        case "reduce_scatter" | "reduce":
            return best(_Spread(back, size_bytes, seed, root if collective == "reduce" else None)).time_reversed()
        case "all_reduce":
            scattered = best(_Spread(back, size_bytes, seed, None)).time_reversed()
            return scattered.then(best(_Spread(links, size_bytes, seed, None), scattered.chunks // links.ranks))
        case "gather":
            return best(_Delivery(back, size_bytes, seed, root)).time_reversed()
        case _:
            return best(_Delivery(links, size_bytes, seed, root if collective == "scatter" else None))


class _Task(Protocol):
    """What matching has to do, and what is known of it before."""

    links: RankLinks
    owners: int
    """Of parts that are cut."""
    chunk_bytes: float
    """With one chunk a part."""
    bound_s: float
    """About the least time, start-ups left out."""

    def transfers(self, parts: int) -> float:
        """Of a schedule."""

    def cost(self, parts: int) -> float:
        """Of one try, in units of `_WORK`."""

    def matched(self, parts: int, most_chunks: int, rounds_ahead: int) -> Transfers:
        """One try."""

    def with_more_clusters(self) -> _Task | None:
        """The same, knowing more of the links; None if there is nothing to know."""


class _Spread:
    """All chunks to all ranks, from their owners or from the root."""

    def __init__(
        self,
        links: RankLinks,
        size_bytes: float,
        seed: int,
        root: int | None,
        *,
        clusters: list[NDArray[np.int32]] | None = None,
    ) -> None:
        self.links, self.size_bytes, self.seed, self.root = links, size_bytes, seed, root
        self.owners = links.ranks if root is None else 1
        self.chunk_bytes = size_bytes / self.owners
        self.clusters = narrow_clusters(links) if clusters is None else clusters
        self.bound_s = cut_bound_s(links, size_bytes, self.clusters)

    def transfers(self, parts: int) -> float:
        """Everyone gets every chunk once."""
        return float(self.links.ranks - 1) * self.owners * parts

    def cost(self, parts: int) -> float:
        """Transfers times words of a set of chunks."""
        return self.transfers(parts) * (self.owners * parts / 64 + 2)

    def matched(self, parts: int, most_chunks: int, rounds_ahead: int) -> Transfers:
        """Greedy matching."""
        chunks, links = self.owners * parts, self.links
        source = np.arange(chunks, dtype=np.int32) // np.int32(parts)
        alpha_ps, chunk_ps = _times_ps(links, self.chunk_bytes / parts)
        found = _matching.spread(
            links.ranks,
            links.src,
            links.dst,
            alpha_ps,
            chunk_ps,
            source if self.root is None else np.full(chunks, self.root, np.int32),
            [members.tolist() for members in self.clusters],
            self.seed,
            most_chunks,
            rounds_ahead,
        )
        kind = "all_gather" if self.root is None else "broadcast"
        return _transfers(kind, links, chunks, self.chunk_bytes / parts, found, root=self.root)

    def with_more_clusters(self) -> _Spread | None:
        """With those that cost something, and those that only least cuts show; the latter for few ranks, because they take long."""
        if self.root is not None:
            return None
        clusters = narrow_clusters(self.links, _WORTH_MORE)
        if self.links.ranks <= _MOST_RANKS_CUT:
            clusters = tight_clusters(self.links, clusters)
        if len(clusters) == len(self.clusters):
            return None
        return _Spread(self.links, self.size_bytes, self.seed, None, clusters=clusters)


class _Delivery:
    """Each chunk to its one destination, from all ranks to all or from the root."""

    _ROUNDS = 4

    def __init__(self, links: RankLinks, size_bytes: float, seed: int, root: int | None) -> None:
        self.links, self.seed, self.root = links, seed, root
        self.owners = links.ranks if root is None else 1
        self.chunk_bytes = size_bytes / links.ranks
        hops = hops_between(links)
        self.hops = float((hops if root is None else hops[root]).sum())
        into = np.bincount(links.dst, links.bandwidth_bytes_per_s, links.ranks)
        out = np.bincount(links.src, links.bandwidth_bytes_per_s, links.ranks)
        port = float(np.minimum(into, out).min() if root is None else out[root])
        carried_s = self.hops * self.chunk_bytes / float(links.bandwidth_bytes_per_s.sum() or 1.0)
        self.bound_s = max(size_bytes * (1 - 1 / links.ranks) / port if port else 0.0, carried_s)

    def transfers(self, parts: int) -> float:
        """By the shortest ways."""
        return self.hops * parts

    def cost(self, parts: int) -> float:
        """A link looks through the destinations it leads to for each chunk; measured against the words of `_Spread`."""
        return self._ROUNDS * self.transfers(parts) * (self.links.ranks / 4 + 8)

    def matched(self, parts: int, most_chunks: int, rounds_ahead: int) -> Transfers:
        """Greedy delivery; what rounds_ahead is to `_Spread` it decides by what waits."""
        del rounds_ahead
        links, ranks = self.links, self.links.ranks
        alpha_ps, chunk_ps = _times_ps(links, self.chunk_bytes / parts)
        pair = np.arange(self.owners * ranks * parts, dtype=np.int32) // np.int32(parts)
        source, destination = np.divmod(pair, np.int32(ranks))
        found = _matching.deliver(
            ranks,
            links.src,
            links.dst,
            alpha_ps,
            chunk_ps,
            source if self.root is None else np.full(len(pair), self.root, np.int32),
            destination,
            self.seed,
            most_chunks,
            self._ROUNDS,
        )
        kind = "all_to_all" if self.root is None else "scatter"
        return _transfers(kind, links, ranks * parts, self.chunk_bytes / parts, found, root=self.root)

    def with_more_clusters(self) -> None:
        """Prices do what clusters do for `_Spread`."""


_Columns = tuple[NDArray[np.int32], NDArray[np.int32], NDArray[np.int64], NDArray[np.int64]]


def _times_ps(links: RankLinks, chunk_bytes: float) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Start-up and time of a chunk on each link; none takes no time at all."""
    alpha_ps = np.rint(links.alpha_s * 1e12).astype(np.int64)
    return alpha_ps, np.maximum(np.rint(chunk_bytes / links.bandwidth_bytes_per_s * 1e12), 1).astype(np.int64)


def _transfers(
    kind: str, links: RankLinks, chunks: int, chunk_bytes: float, columns: _Columns, *, root: int | None
) -> Transfers:
    link, chunk, begin_ps, end_ps = columns
    src, dst = links.src[link], links.dst[link]
    copied = np.zeros(len(link), bool)
    return Transfers(kind, links.ranks, chunks, chunk_bytes, root, chunk, src, dst, link, begin_ps, end_ps, copied)


def _best_way(task: _Task, parts: int | None, most_chunks: int | None, effort: float) -> Transfers:
    """The best of the ways tried.

    The way that the estimate favours comes first, then ways that differ from the best in one place, then the estimate's order.
    """
    work, bound_s = _WORK * effort, task.bound_s
    if not np.isfinite(bound_s):  # matching will say which rank can't be reached
        bound_s = 1.0
    cuts = (
        (parts,) if parts else [p for p in _PARTS if p == 1 or task.transfers(p) <= _MOST_TRANSFERS * max(effort, 1.0)]
    )
    messages = (most_chunks,) if most_chunks else _MESSAGES
    estimate = {
        _Way(p, m, a): _overhead(task.links, task.chunk_bytes / cut, message, bound_s) + 1e-9 * a
        for p, cut in enumerate(cuts)
        for m, message in enumerate(messages)
        for a in range(len(_ROUNDS_AHEAD))
        if (message == 1 and a == 0) or 1 < message <= max(1, cut * task.owners // 4) or most_chunks
    }
    cost = [task.cost(cut) for cut in cuts]
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
        found = task.matched(cuts[way.parts], messages[way.message], _ROUNDS_AHEAD[way.ahead])
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
