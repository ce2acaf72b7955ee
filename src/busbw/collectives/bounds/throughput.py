"""The throughput bound of all-gather and reduce-scatter on any graph, exactly, with the cut that shows it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from busbw.collectives import _bounds
from busbw.collectives.bounds.graph import CapacityGraph
from busbw.collectives.bounds.symmetry import Symmetry, symmetry

__all__ = ["ThroughputBound", "throughput_bound"]


@dataclass(frozen=True, slots=True, eq=False)
class ThroughputBound:
    """The rate x* at which every GPU can send its data to all others at once, and the cut that no algorithm can beat."""

    gpus: int
    inverse_rate: Fraction
    """1/x*: seconds a byte of one GPU's data, where capacities are bytes per second."""
    cut: NDArray[np.bool_]
    """(V,) bool: a set of vertices whose outgoing links carry the data of all its GPUs at least once."""
    cut_gpus: int
    cut_capacity: Fraction
    """Of the links that leave the cut."""
    flows: int
    """Maximum flows that were computed."""

    @property
    def algbw(self) -> Fraction:
        """Gathered bytes over time: N x*."""
        return self.gpus / self.inverse_rate

    def time_s(self, size_bytes: int) -> Fraction:
        """Least time of an all-gather to, or a reduce-scatter of, `size_bytes` a GPU: size / N / x*."""
        return Fraction(size_bytes, self.gpus) * self.inverse_rate


def throughput_bound(graph: CapacityGraph, found: Symmetry | None = None) -> ThroughputBound:
    """The exact optimum of all-gather and reduce-scatter when only rates count.

    1/x* = max over sets S that miss a GPU of |GPUs in S| / out(S); time = size / N * 1/x*. It is attained by packing
    trees (J. Edmonds, "Edge-disjoint branchings", 1973); reduce-scatter is all-gather on reversed links, which has the same
    bound where links have equal rates both ways. One destination an orbit is looked at: an automorphism carries a flow to
    one onto a flow to another. Raises ValueError where GPUs cannot reach one another, and for less than two GPUs.
    """
    if graph.gpus < 2:
        raise ValueError("one GPU has nobody to gather from")
    found = symmetry(graph) if found is None else found
    destinations, _ = found.representatives(graph.gpus)
    capacity, gpus, cut, flows = _bounds.throughput_bound(*graph.columns(), destinations.astype(np.int32))
    inside = np.asarray(cut, bool)
    if capacity == 0:
        stuck = graph.name(int(np.flatnonzero(inside)[0]))
        lost = graph.name(int(np.flatnonzero(~inside[: graph.gpus])[0]))
        raise ValueError(f"no way leads from {stuck} to {lost}: nothing can be gathered there")
    out = capacity * graph.unit
    return ThroughputBound(graph.gpus, gpus / out, inside, gpus, out, flows)
