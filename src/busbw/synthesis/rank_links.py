"""Links between ranks as an edge list, the clusters that narrow links bound, and the bound that their cuts give.

Legend: L directed links. A cable is two links, one a direction.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from math import inf

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import breadth_first_order, connected_components, maximum_flow, shortest_path

from busbw.collectives.bounds import CapacityGraph

__all__ = ["RankLinks", "cut_bound_s", "hops_between", "narrow_clusters", "tight_clusters"]

_SINKHORN_ROUNDS = 50
"""A guess: switches with like ports need a few."""
_TINY = 1e-300
_DISTINCT = 1.05
"""A guess: bandwidths closer than this are one class, so that measured ones do not make a cluster a link."""
_WORTH = 1.5
"""A guess: what entering once may cost where the first search left a bottleneck unused."""
_FLOW_UNITS = 10_000
"""Of the widest link, for maximum flows in integers."""
_MOST_CLASSES = 16
"""A guess: classes of bandwidth that are looked at, the widest first; hierarchies have two to five levels."""


@dataclass(frozen=True, slots=True, eq=False)
class RankLinks:
    """Every directed link between ranks, column by column. Link i goes from rank src[i] to rank dst[i]; two may be parallel."""

    ranks: int
    src: NDArray[np.int32]
    """(L,)."""
    dst: NDArray[np.int32]
    """(L,)."""
    bandwidth_bytes_per_s: NDArray[np.float64]
    """(L,), one direction."""
    alpha_s: NDArray[np.float64]
    """(L,), start-up time of a message; the link is busy with it."""

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self) if field.name != "ranks"}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of links differ in length: {lengths}")
        if self.ranks < 1:
            raise ValueError(f"there is at least one rank, not {self.ranks}")
        if not len(self):
            return
        ends = np.concatenate([self.src, self.dst])
        if ends.min() < 0 or ends.max() >= self.ranks:
            raise ValueError(f"a link ends at rank {int(ends.max())}; ranks are 0 to {self.ranks - 1}")
        if (self.src == self.dst).any():
            raise ValueError(f"link {int(np.argmax(self.src == self.dst))} leads from a rank to itself")
        if not (np.isfinite(self.bandwidth_bytes_per_s).all() and (self.bandwidth_bytes_per_s > 0).all()):
            raise ValueError("bandwidths are positive; leave a broken link out")
        if not (np.isfinite(self.alpha_s).all() and (self.alpha_s >= 0).all()):
            raise ValueError("start-up times are not negative")

    def __len__(self) -> int:
        return len(self.src)

    @classmethod
    def of(cls, ranks: int, rows: Iterable[tuple[int, int, float, float]]) -> RankLinks:
        """Links of rows (src, dst, bytes/s, alpha in seconds)."""
        kept: Sequence[tuple[int, int, float, float]] = list(rows)
        src, dst, rate, alpha = zip(*kept, strict=True) if kept else ((), (), (), ())
        return cls(
            ranks,
            np.array(src, np.int32),
            np.array(dst, np.int32),
            np.array(rate, np.float64),
            np.array(alpha, np.float64),
        )

    @classmethod
    def unwound(cls, graph: CapacityGraph, alpha_s: float) -> RankLinks:
        """Links between the GPUs of a graph, each switch replaced by links from all its neighbours to all others.

        What enters a switch from a neighbour is shared out in proportion to what leads on, within what the switch's links carry.
        Schedules for it run on the graph; the other way round much is lost, since a GPU can no longer send all it has to one other.
        Capacities are bytes per second.

        >>> star = CapacityGraph.of_edges(3, [(a, b, 100) for g in range(3) for a, b in ((g, 3), (3, g))])
        >>> links = RankLinks.unwound(star, 1e-6)
        >>> len(links), links.bandwidth_bytes_per_s.tolist()
        (6, [50.0, 50.0, 50.0, 50.0, 50.0, 50.0])
        """
        out: list[dict[int, float]] = [{} for _ in range(graph.vertices)]
        into: list[set[int]] = [set() for _ in range(graph.vertices)]
        for a, b, capacity in zip(graph.src.tolist(), graph.dst.tolist(), graph.capacity.tolist(), strict=True):
            out[a][b] = capacity * float(graph.unit)
            into[b].add(a)
        for switch in range(graph.gpus, graph.vertices):
            sources, targets = sorted(into[switch]), sorted(out[switch])
            entering = np.array([out[a].pop(switch) for a in sources])
            leaving = np.array([out[switch][b] for b in targets])
            other = np.array([[a != b for b in targets] for a in sources], float).reshape(len(sources), len(targets))
            carried = _shared_out(entering, leaving, other)
            for b in targets:
                into[b].discard(switch)
            for row, a in zip(carried, sources, strict=True):
                for share, b in zip(row.tolist(), targets, strict=True):
                    if share > 0:
                        out[a][b] = out[a].get(b, 0.0) + share
                        into[b].add(a)
            out[switch] = {}
        return cls.of(
            graph.gpus, [(a, b, rate, alpha_s) for a in range(graph.gpus) for b, rate in sorted(out[a].items())]
        )

    def reversed(self) -> RankLinks:
        """The same links, each the other way."""
        return RankLinks(self.ranks, self.dst, self.src, self.bandwidth_bytes_per_s, self.alpha_s)


def _shared_out(
    entering: NDArray[np.float64], leaving: NDArray[np.float64], allowed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """A matrix with these sums of rows and columns, zero where not allowed: in proportion (Sinkhorn 1967), and less where that is not possible."""
    carried = allowed * leaving[None, :]
    for _ in range(_SINKHORN_ROUNDS):
        carried *= (entering / np.maximum(carried.sum(axis=1), _TINY))[:, None]
        carried *= (leaving / np.maximum(carried.sum(axis=0), _TINY))[None, :]
    carried *= np.minimum(entering / np.maximum(carried.sum(axis=1), _TINY), 1.0)[:, None]
    return carried


def _strong_components(links: RankLinks, used: NDArray[np.bool_]) -> NDArray[np.int32]:
    shape = (links.ranks, links.ranks)
    ones = np.ones(int(used.sum()), np.int8)
    matrix = coo_array((ones, (links.src[used], links.dst[used])), shape=shape).tocsr()
    labels: NDArray[np.int32] = connected_components(matrix, directed=True, connection="strong")[1]
    return labels


def narrow_clusters(links: RankLinks, worth: float = 1.02) -> list[NDArray[np.int32]]:
    """Sets of ranks that wide links connect strongly and that narrower ones enter, widest first; nested or disjoint.

    Only those where entering once costs next to nothing: with every chunk entering the cluster once, over links in proportion to their
    bandwidth, and spreading inside, no member takes longer than `worth` times what the cut round the cluster or round some rank does.
    """
    if not len(links):
        return []
    rates = np.unique(links.bandwidth_bytes_per_s)[::-1]
    thresholds = [rates[0]]
    for rate in rates[1:]:
        if thresholds[-1] > rate * _DISTINCT:
            thresholds.append(rate)
    found = []
    seen: set[bytes] = set()
    for narrower in thresholds[1 : _MOST_CLASSES + 1]:
        labels = _strong_components(links, links.bandwidth_bytes_per_s > narrower * _DISTINCT)
        order = np.argsort(labels, kind="stable")
        for members in np.split(order, np.flatnonzero(np.diff(labels[order])) + 1):
            if 1 < len(members) < links.ranks and members.tobytes() not in seen:
                seen.add(members.tobytes())
                if _cost_of_entering_once(links, members) <= worth:
                    found.append(members.astype(np.int32))
    return found


def tight_clusters(links: RankLinks, known: Sequence[NDArray[np.int32]] = ()) -> list[NDArray[np.int32]]:
    """Sets of ranks whose cut is a bottleneck though its links are as wide as others: what is known, then the tightest; nested or disjoint.

    Of all least cuts between two ranks (the N - 1 of Gusfield's tree, "Very simple methods for all pairs network flow analysis", 1990, on
    bandwidths of both directions together), both sides; those whose bound is at least half of the tightest.
    """
    units = np.rint(links.bandwidth_bytes_per_s / links.bandwidth_bytes_per_s.max() * _FLOW_UNITS).astype(np.int32)
    both = coo_array(
        (np.tile(np.maximum(units, 1), 2), (np.r_[links.src, links.dst], np.r_[links.dst, links.src])),
        shape=(links.ranks, links.ranks),
    ).tocsr()
    above = np.zeros(links.ranks, np.int64)
    candidates: dict[bytes, tuple[float, NDArray[np.int64]]] = {}
    for rank in range(1, links.ranks):
        flow = maximum_flow(both, rank, int(above[rank]))
        residual = both - flow.flow
        residual.data[residual.data < 0] = 0
        residual.eliminate_zeros()
        near = np.zeros(links.ranks, bool)
        near[breadth_first_order(residual, rank, return_predecessors=False)] = True
        later = np.arange(links.ranks) > rank
        above[later & near & (above == above[rank])] = rank
        for members in (np.flatnonzero(near), np.flatnonzero(~near)):
            if 1 < len(members) < links.ranks:
                candidates[members.tobytes()] = (
                    cut_bound_s(links, 1.0, [members.astype(np.int32)], ranks_too=False),
                    members,
                )
    least = max(cut_bound_s(links, 1.0), *(bound for bound, _ in candidates.values()), 0.0)
    kept = list(known)
    for bound, members in sorted(candidates.values(), key=lambda pair: (-pair[0], len(pair[1]))):
        inside = np.isin(links.src, members) & np.isin(links.dst, members)
        is_nested = all(len(np.intersect1d(members, other)) in (0, len(members), len(other)) for other in kept)
        is_new = all(len(members) != len(other) or (members != other).any() for other in kept)
        is_connected = len(np.unique(_strong_components(links, inside)[members])) == 1
        if (
            bound >= least / 2
            and is_nested
            and is_new
            and is_connected
            and _cost_of_entering_once(links, members) <= _WORTH
        ):
            kept.append(members.astype(np.int32))
    return kept


def _cost_of_entering_once(links: RankLinks, members: NDArray[np.int64]) -> float:
    inside = np.zeros(links.ranks, bool)
    inside[members] = True
    to_member = inside[links.dst]
    rate = np.where(to_member, links.bandwidth_bytes_per_s, 0.0)
    from_outside = np.bincount(links.dst, np.where(inside[links.src], 0.0, rate), links.ranks)[members]
    from_inside = np.bincount(links.dst, np.where(inside[links.src], rate, 0.0), links.ranks)[members]
    total = float(from_outside.sum())
    if total == 0:
        return inf
    outer = 1 - len(members) / links.ranks
    rest = (1 - 1 / links.ranks) - outer * from_outside / total
    least = max(outer / total, cut_bound_s(links, 1.0))
    return float((rest / from_inside).max() / least)


def cut_bound_s(
    links: RankLinks, size_bytes: float, clusters: Iterable[NDArray[np.int32]] = (), *, ranks_too: bool = True
) -> float:
    """The least time of an all_gather of size_bytes in all: the slowest cut round a rank or a cluster, start-up left out.

    max over cuts of size (1 - |members| / ranks) / bandwidth into the members; ranks_too: each rank is one. Infinite if something can't be reached.
    """
    into = np.bincount(links.dst, links.bandwidth_bytes_per_s, links.ranks)
    if links.ranks == 1:
        return 0.0
    if ranks_too and into.min() == 0:
        return inf
    worst = (1 - 1 / links.ranks) / float(into.min()) if ranks_too else 0.0
    for members in clusters:
        inside = np.zeros(links.ranks, bool)
        inside[members] = True
        total = float(links.bandwidth_bytes_per_s[inside[links.dst] & ~inside[links.src]].sum())
        if total == 0:
            return inf
        worst = max(worst, (1 - len(members) / links.ranks) / total)
    return size_bytes * worst


def hops_between(links: RankLinks) -> NDArray[np.float64]:
    """(ranks, ranks): links on the shortest way from one rank to another; infinite where there is none."""
    ones = np.ones(len(links))
    matrix = coo_array((ones, (links.src, links.dst)), shape=(links.ranks, links.ranks)).tocsr()
    hops: NDArray[np.float64] = shortest_path(matrix, unweighted=True)
    return hops
