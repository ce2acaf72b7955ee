"""Exchanges: a way for every ordered pair of GPUs that carries all-to-all at its bound, on any graph of links."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from math import floor

import numpy as np
from numpy.typing import NDArray

from busbw.collectives import Schedule, from_transfers
from busbw.collectives.bounds import CapacityGraph, Symmetry, all_to_all_bound
from busbw.synthesis import _forests

__all__ = ["Exchange", "route_exchange"]

_SWEEPS = 60
"""Rounds of moving pairs. A guess: most graphs need under ten."""
_SEEDS, _FEW_GPUS = 8, 64
"""Small graphs, where whole ways round coarsely, get several draws: milliseconds each."""
_MOST_PAIRS = 20_000_000
"""Ordered pairs: about a gigabyte in the router."""


@dataclass(frozen=True, slots=True, eq=False)
class Exchange:
    """One way for each ordered pair, through switches and GPUs that forward. Legend: N GPUs, E edges."""

    graph: CapacityGraph
    way_begin: NDArray[np.int64]
    """(N * N + 1,): the way from s to t is way_edges[way_begin[s * N + t] : way_begin[s * N + t + 1]]."""
    way_edges: NDArray[np.int32]
    load: NDArray[np.int64]
    """(E,) pairs that use an edge, counted from the ways."""
    bound: Fraction
    """Least inverse rate, as `inverse_rate`."""

    @property
    def inverse_rate(self) -> Fraction:
        """Seconds a byte of one pair: the largest of load / capacity, exactly."""
        share = self.load / self.graph.capacity
        near = np.flatnonzero(share >= share.max() * (1 - 1e-9))
        return max(Fraction(int(self.load[e]), int(self.graph.capacity[e])) for e in near) / self.graph.unit

    @property
    def quality(self) -> Fraction:
        """The bound over what the ways attain: 1 is optimal."""
        return self.bound / self.inverse_rate

    @property
    def depth(self) -> int:
        """Messages from source to destination, at most: a GPU that forwards adds one."""
        return int(self._hops().max(initial=0)) + 1

    def time_s(self, size_bytes: int) -> Fraction:
        """Time of an all-to-all with `size_bytes` a GPU when only rates count."""
        return Fraction(size_bytes, self.graph.gpus) * self.inverse_rate

    def schedule(self) -> Schedule:
        """The exchange as a Schedule like any other: a message's hops are its steps."""
        n = self.graph.gpus
        pair = np.repeat(np.arange(n * n), np.diff(self.way_begin))
        ends = self.graph.dst[self.way_edges] < n
        dst = self.graph.dst[self.way_edges][ends]
        owner, step = pair[ends], self._hops()[ends]
        src = np.where(step == 0, owner // n, np.concatenate([[0], dst[:-1]]))
        # What a GPU sends to itself goes from one buffer to the other.
        own = np.arange(n)
        columns = [np.concatenate(pair) for pair in ((own * 0, step), (own, src), (own, dst), (own * (n + 1), owner))]
        order = np.argsort(columns[0], kind="stable")
        step, src, dst, owner = (column[order] for column in columns)
        return from_transfers("all_to_all", n, n, step=step, src=src, dst=dst, chunk=owner, name="exchange")

    def _hops(self) -> NDArray[np.int64]:
        """For each edge of a way, the GPUs passed before it."""
        lands = (self.graph.dst[self.way_edges] < self.graph.gpus).astype(np.int64)
        before = np.concatenate([[0], np.cumsum(lands)[:-1]]) if len(lands) else lands
        length = np.diff(self.way_begin)
        first = np.minimum(self.way_begin[:-1], max(0, len(lands) - 1))
        return np.asarray(before - np.repeat(before[first] if len(before) else length, length), np.int64)


def route_exchange(
    graph: CapacityGraph, *, tolerance: Fraction = Fraction(1, 100), seed: int = 1, found: Symmetry | None = None
) -> Exchange:
    """Ways that attain the all-to-all bound within `tolerance` where the router finds such, loads counted exactly.

    Every pair takes one way whole, so on small graphs whole numbers alone may cost more than the tolerance. `quality` of the
    answer says what was attained. Raises ValueError where GPUs cannot reach one another, and for more pairs than fit memory.
    """
    if graph.gpus**2 > _MOST_PAIRS:
        raise ValueError(
            f"{graph.gpus} GPUs are {graph.gpus**2} pairs: more than fits memory; design one pod and repeat it"
        )
    bound = all_to_all_bound(graph, found).inverse_rate
    per_unit = bound * graph.unit
    best: Exchange | None = None
    seeds = range(seed, seed + (_SEEDS if graph.gpus <= _FEW_GPUS else 1))
    slacks = (Fraction(0), tolerance / (1 - tolerance)) if tolerance else (Fraction(0),)
    for slack, draw in itertools.product(slacks, seeds):
        rates, which = np.unique(graph.capacity, return_inverse=True)
        allowed = np.array([floor(per_unit * (1 + slack) * int(rate)) for rate in rates], np.int64)[which]
        _, begin, edges = _forests.route_pairs(*graph.columns()[:3], allowed, _SWEEPS, draw)
        made = Exchange(graph, begin, edges, _checked_load(graph, begin, edges), bound)
        if best is None or made.quality > best.quality:
            best = made
        if best.quality >= 1 - tolerance:
            break
    assert best is not None
    return best


def _checked_load(graph: CapacityGraph, begin: NDArray[np.int64], edges: NDArray[np.int32]) -> NDArray[np.int64]:
    """(E,) pairs that use each edge. Raises ValueError unless every pair has a way from source to destination."""
    n = graph.gpus
    length, pair = np.diff(begin), np.arange(n * n)
    apart = pair // n != pair % n
    if ((length > 0) != apart).any():
        raise ValueError("a pair has no way, or a GPU one to itself")
    first, last = graph.src[edges[begin[:-1][apart]]], graph.dst[edges[begin[1:][apart] - 1]]
    inner = np.ones(len(edges), bool)
    inner[begin[:-1][apart]] = False
    inside = np.flatnonzero(inner)
    broken = (graph.src[edges[inside]] != graph.dst[edges[inside - 1]]).any()
    if broken or (first != pair[apart] // n).any() or (last != pair[apart] % n).any():
        raise ValueError("a way does not lead from its source to its destination")
    return np.bincount(edges, minlength=len(graph)).astype(np.int64)
