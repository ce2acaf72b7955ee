"""The all-to-all bound: a multi-commodity flow over classes of like links, certified by prices in exact fractions."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import lcm

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import dijkstra

from busbw.collectives.bounds.graph import CapacityGraph
from busbw.collectives.bounds.symmetry import Symmetry, classes_seen_from, symmetry
from busbw.collectives.bounds.throughput import throughput_bound

__all__ = ["AllToAllBound", "all_to_all_bound"]

_LARGEST_PROGRAM = 40_000
"""Variables of the linear program: 16,000 of an irregular graph of 64 GPUs take HiGHS some 10 s, measured."""
_FINEST_PRICE = 1_000_000
"""Denominator of prices made exact. A guess: prices of such programs are ratios of small numbers."""
_Entries = tuple[NDArray[np.integer], NDArray[np.integer], NDArray[np.float64]]
"""Rows, columns and numbers of a sparse matrix."""
_TIGHT = 1e-7
"""Relative gap at which the bound counts as attained: HiGHS solves to 1e-7 unless told otherwise."""


@dataclass(frozen=True, slots=True, eq=False)
class AllToAllBound:
    """The least time in which every GPU can send one unit to every other, and prices that prove it."""

    inverse_rate: Fraction
    """Seconds a byte of one pair, where capacities are bytes per second. Certified: no schedule is faster."""
    price: NDArray[np.float64]
    """(E,) float64: prices of links, largest 1. Sum over pairs of the cheapest way / sum of capacity * price = inverse_rate."""
    attained: float
    """What the flow needs, in floating point; inf where only the certificate was computed."""
    variables: int
    """Of the linear program."""

    @property
    def is_tight(self) -> bool:
        """Whether flow and certificate meet."""
        return self.attained <= float(self.inverse_rate) * (1 + _TIGHT)


def all_to_all_bound(graph: CapacityGraph, found: Symmetry | None = None) -> AllToAllBound:
    """The optimum of all-to-all when only rates count: T so that flows of one unit for every ordered pair fit T * capacity.

    One source an orbit, one variable a class of links that look alike from it (`classes_seen_from`). The dual's prices are
    rounded to fractions and the bound sum of distances / sum of capacity * price is computed from them exactly: it
    holds for any prices, so rounding can only weaken it. Graphs with too little symmetry for the program get the better of
    two certificates: all links priced 1 / capacity, or the cut of all-gather's bound. Raises ValueError where GPUs cannot reach one another.
    """
    if graph.gpus < 2:
        raise ValueError("one GPU has nobody to exchange with")
    found = symmetry(graph) if found is None else found
    sources, weights = found.representatives(graph.gpus)
    seen: list[tuple[NDArray[np.int32], NDArray[np.int32]]] = []
    variables = 0
    for source in sources:
        seen.append(classes_seen_from(graph, found, int(source)))
        variables += int(seen[-1][1].max()) + 1
        if variables > _LARGEST_PROGRAM:
            break
    candidates: list[list[Fraction]] = []
    attained = float("inf")
    if variables <= _LARGEST_PROGRAM:
        attained, duals = _solve(graph, found, sources, weights, seen)
        largest = float(duals.max())
        candidates.append([Fraction(float(y) / largest).limit_denominator(_FINEST_PRICE) for y in duals])
    else:
        orbit_capacity = np.zeros(int(found.edge_orbit.max()) + 1, np.int64)
        orbit_capacity[found.edge_orbit] = graph.capacity
        candidates.append([Fraction(1, int(capacity)) for capacity in orbit_capacity])
        candidates.append(_cut_prices(graph, found))
    proved = [(_certificate(graph, found, sources, weights, prices), prices) for prices in candidates]
    bound, prices = max(proved, key=lambda pair: pair[0])
    exact = bound / graph.unit
    price = np.array([float(y) for y in prices])[found.edge_orbit]
    return AllToAllBound(exact, price, attained / float(graph.unit), variables)


def _cut_prices(graph: CapacityGraph, found: Symmetry) -> list[Fraction]:
    cut = throughput_bound(graph, found).cut
    crossing = np.zeros(int(found.edge_orbit.max()) + 1, bool)
    crossing[found.edge_orbit[cut[graph.src] & ~cut[graph.dst]]] = True
    return [Fraction(int(crosses)) for crosses in crossing]


def _certificate(
    graph: CapacityGraph,
    found: Symmetry,
    sources: NDArray[np.int64],
    weights: NDArray[np.int64],
    prices: list[Fraction],
) -> Fraction:
    """Sum over pairs of the cheapest way over sum of capacity times price, in capacity units, exactly."""
    scale = lcm(*(price.denominator for price in prices))
    whole = [int(price * scale) for price in prices]
    if max(whole) > 2**53 // graph.vertices:  # what float64 adds without rounding along any way
        cap = 2**53 // graph.vertices
        largest = max(whole)
        whole = [price * cap // largest for price in whole]
    paid = np.array(whole, np.int64)[found.edge_orbit]
    # A link without a price must stay a link: scipy takes a stored 0 for one in explicit sparse matrices.
    ways = csr_matrix((paid.astype(np.float64), (graph.src, graph.dst)), (graph.vertices, graph.vertices))
    total = 0
    for start in range(0, len(sources), 256):
        some = sources[start : start + 256]
        distance = dijkstra(ways, indices=some)[:, : graph.gpus]
        if np.isinf(distance).any():
            raise ValueError("some GPUs cannot reach one another")
        for row, weight in zip(distance, weights[start : start + 256], strict=True):
            total += int(weight) * int(row.astype(np.int64).sum())
    spent = sum(int(c) * int(p) for c, p in zip(graph.capacity, paid, strict=True))
    return Fraction(total, spent)


def _solve(
    graph: CapacityGraph,
    found: Symmetry,
    sources: NDArray[np.int64],
    weights: NDArray[np.int64],
    seen: list[tuple[NDArray[np.int32], NDArray[np.int32]]],
) -> tuple[float, NDArray[np.float64]]:
    """The least T in capacity units, and the price of each orbit of links.

    HiGHS through scipy: highspy 1.16 prints a banner on standard output whenever a solver is made.
    """
    orbits = int(found.edge_orbit.max()) + 1
    size = np.bincount(found.edge_orbit, minlength=orbits)
    widest = float(graph.capacity.max())
    capacity = np.zeros(orbits)
    capacity[found.edge_orbit] = graph.capacity / widest  # numbers near 1, which the solver wants
    load: list[_Entries] = [(np.arange(orbits), np.zeros(orbits, np.int64), -size * capacity)]
    kept: list[_Entries] = []
    needed: list[NDArray[np.float64]] = []
    row, column = 0, 1
    for source, weight, (vertex_class, edge_class) in zip(sources, weights, seen, strict=True):
        classes, links = int(vertex_class.max()) + 1, int(edge_class.max()) + 1
        members = np.bincount(edge_class, minlength=links)
        first = np.zeros(links, np.int64)
        first[edge_class[::-1]] = np.arange(len(graph))[::-1]
        # Load of an orbit: every image of the source sends what this one does.
        load.append(
            (
                found.edge_orbit[first].astype(np.int64),
                column + np.arange(links),
                np.asarray(float(weight) * members, np.float64),
            )
        )
        # Conservation summed over a class: links into it less links out of it are its GPUs' units.
        into, out = vertex_class[graph.dst[first]], vertex_class[graph.src[first]]
        moving = np.flatnonzero(into != out)
        kept.append((row + into[moving], column + moving, members[moving].astype(float)))
        kept.append((row + out[moving], column + moving, -members[moving].astype(float)))
        units = np.bincount(vertex_class[: graph.gpus], minlength=classes).astype(float)
        units[vertex_class[source]] = 1.0 - graph.gpus
        needed.append(units)
        row, column = row + classes, column + links
    cost = np.zeros(column)
    cost[0] = 1.0
    solved = linprog(
        cost,
        A_ub=_matrix(load, orbits, column),
        b_ub=np.zeros(orbits),
        A_eq=_matrix(kept, row, column),
        b_eq=np.concatenate(needed),
        method="highs",
    )
    if solved.status != 0:
        raise ValueError(f"some GPUs cannot reach one another ({solved.message})")
    return float(solved.fun) / widest, np.maximum(-solved.ineqlin.marginals, 0.0)


def _matrix(entries: list[_Entries], rows: int, columns: int) -> csr_matrix:
    row, column, number = (np.concatenate(part) for part in zip(*entries, strict=True))
    return csr_matrix((number, (row, column)), (rows, columns))
