"""Least time of a collective on a graph: what no algorithm can beat when only rates count, and the least number of steps."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from busbw.collectives import _bounds
from busbw.collectives.bounds.all_to_all import all_to_all_bound
from busbw.collectives.bounds.graph import CapacityGraph
from busbw.collectives.bounds.symmetry import Symmetry, symmetry
from busbw.collectives.bounds.throughput import ThroughputBound, throughput_bound

__all__ = ["TimeBound", "least_flow_from", "least_steps", "time_bound"]


@dataclass(frozen=True, slots=True)
class TimeBound:
    """A time that no algorithm can beat, and why."""

    time_s: Fraction
    """Exact, in seconds where capacities are bytes per second."""
    because: str
    """The links that carry what must cross, in words."""
    is_attained: bool
    """Whether some schedule is known to attain it, latency left out."""


def time_bound(
    graph: CapacityGraph,
    collective: str,
    size_bytes: int,
    *,
    root: int = 0,
    in_network: bool = False,
    found: Symmetry | None = None,
) -> TimeBound:
    """The least time of a collective of nccl-tests' size. Latency is left out.

    in_network: switches may reduce, which changes all_reduce alone: multicast saves no link of a cut.
    Raises ValueError for collectives that have no bound here, and where GPUs cannot reach one another.
    """
    if graph.gpus < 2:
        return TimeBound(Fraction(0), "one GPU moves nothing", True)
    if collective in ("all_gather", "reduce_scatter"):
        turned = graph if collective == "all_gather" else graph.reversed()
        bound = throughput_bound(turned, found if turned is graph else None)
        return TimeBound(bound.time_s(size_bytes), _cut_words(bound), True)
    if collective in ("broadcast", "reduce"):
        turned = graph if collective == "broadcast" else graph.reversed()
        least = least_flow_from(turned, root)
        way = "from" if collective == "broadcast" else "to"
        return TimeBound(size_bytes / least, f"{_rate(least)} is the least flow {way} {graph.name(root)}", True)
    if collective in ("scatter", "gather"):
        rate = _scatter_rate(graph if collective == "scatter" else graph.reversed(), root)
        return TimeBound(Fraction(size_bytes, graph.gpus) / rate, f"{_rate(rate)} to each GPU at once", True)
    if collective == "all_reduce":
        return _all_reduce(graph, size_bytes, in_network, found)
    if collective == "all_to_all":
        demand = all_to_all_bound(graph, found)
        why = f"links busy by distance: {_rate(1 / demand.inverse_rate)} a pair"
        return TimeBound(Fraction(size_bytes, graph.gpus) * demand.inverse_rate, why, demand.is_tight)
    raise ValueError(f"no bound is known here for {collective!r}")


def least_steps(graph: CapacityGraph, *, ports: int | None = None) -> int:
    """The least number of steps in which every GPU's data reaches every GPU: messages from GPU to GPU through switches.

    The largest distance between GPUs; with k ports, each GPU sending k messages a step, also ceil(log_(k+1) N).
    Raises ValueError where GPUs cannot reach one another.
    """
    steps = 0
    if ports is not None:
        reached = 1
        while reached < graph.gpus:
            reached *= ports + 1
            steps += 1
    starts, _ = symmetry(graph).representatives(graph.gpus)
    return max(steps, *(int(_gpu_hops(graph, int(start)).max()) for start in starts))


def _gpu_hops(graph: CapacityGraph, start: int) -> NDArray[np.int64]:
    """(N,) int64: messages from one GPU to each; switches on the way cost nothing."""
    hops = np.full(graph.vertices, -1, np.int64)
    hops[start] = 0
    frontier = np.zeros(graph.vertices, bool)
    frontier[start] = True
    step = 0
    while frontier.any():
        step += 1
        reached = np.zeros(graph.vertices, bool)
        wave = frontier
        while wave.any():
            new = np.zeros(graph.vertices, bool)
            new[graph.dst[wave[graph.src]]] = True
            new &= (hops < 0) & ~reached
            reached |= new
            wave = new & (np.arange(graph.vertices) >= graph.gpus)
        hops[reached] = step
        frontier = reached
        frontier[graph.gpus :] = False
    if (hops[: graph.gpus] < 0).any():
        lost = graph.name(int(np.flatnonzero(hops[: graph.gpus] < 0)[0]))
        raise ValueError(f"no way leads from {graph.name(start)} to {lost}")
    return hops[: graph.gpus]


def _four(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"


def _rate(rate: Fraction) -> str:
    return f"{_four(float(rate) / 1e9)} GB/s" if rate > 10**6 else f"{_four(float(rate))} a second"


def _cut_words(bound: ThroughputBound) -> str:
    left = bound.gpus - bound.cut_gpus
    return f"{_rate(bound.cut_capacity)} lead to {left} of {bound.gpus} GPUs, which need the data of {bound.cut_gpus} others"


def least_flow_from(graph: CapacityGraph, root: int, found: Symmetry | None = None) -> Fraction:
    """What a root can broadcast a second: the least of the flows to the others (J. Edmonds, 1973).

    found: symmetries that leave the root where it is. Raises ValueError where some GPU cannot be reached.
    """
    found = symmetry(graph, fixed=root) if found is None else found
    vertices, _ = found.representatives(graph.gpus)
    sinks = vertices[vertices != root].astype(np.int32)
    flow = int(_bounds.max_flow(*graph.columns(), root, sinks).min())
    if flow == 0:
        raise ValueError(f"no way leads from {graph.name(root)} to some GPU")
    return flow * graph.unit


def _scatter_rate(graph: CapacityGraph, root: int) -> Fraction:
    """The largest x so that a root sends x to every other GPU at the same time: min over cuts, found from cut to cut."""
    others = np.delete(np.arange(graph.gpus), root)
    sink = graph.vertices
    out = graph.src == root
    x = Fraction(int(graph.capacity[out].sum()), len(others))
    src = np.concatenate([graph.src, others]).astype(np.int32)
    dst = np.concatenate([graph.dst, np.full(len(others), sink)]).astype(np.int32)
    kinds = np.append(graph.is_gpu, np.uint8(0))
    while x > 0:
        capacity = np.concatenate([graph.capacity * x.denominator, np.full(len(others), x.numerator)])
        flow, side = _bounds.least_cut(kinds, src, dst, capacity, root, sink)
        if flow == x.numerator * len(others):
            return x * graph.unit
        inside = np.asarray(side, bool)
        leaving = inside[graph.src] & ~inside[graph.dst]
        x = Fraction(int(graph.capacity[leaving].sum()), int((~inside[others]).sum()))
    raise ValueError(f"no way leads from {graph.name(root)} to some GPU")


def _all_reduce(graph: CapacityGraph, size_bytes: int, in_network: bool, found: Symmetry | None) -> TimeBound:
    """The larger of two bounds: what one vector takes across a cut, and what groups of GPUs must tell one another.

    Across a cut between two GPUs one vector must pass, whoever reduces. Without switches that reduce, K groups of GPUs must pass 2 (K - 1) vectors between them, as K people need 2 (K - 1) one-way messages before each
    knows what all know; groups are the single GPUs, and what the tightest cut of all-gather leaves out, with its images.
    """
    found = symmetry(graph) if found is None else found
    across = min(least_flow_from(graph, 0), least_flow_from(graph.reversed(), 0))
    best = TimeBound(size_bytes / across, f"{_rate(across)} between two GPUs is all that one vector can cross", False)
    if in_network:
        return best
    gather = throughput_bound(graph, found)
    for groups in _partitions(graph, found, gather.cut):
        group = np.asarray(groups)
        entering = (group[graph.dst] >= 0) & (group[graph.src] != group[graph.dst])
        rate = int(graph.capacity[entering].sum()) * graph.unit
        count = int(group.max()) + 1
        time_s = 2 * (count - 1) * size_bytes / rate
        if time_s > best.time_s:
            why = f"{_rate(rate)} into {count} groups of GPUs must carry {2 * (count - 1)} vectors"
            best = TimeBound(time_s, why, False)
    # Reduce-scatter, then all-gather.
    composed = gather.time_s(size_bytes) + throughput_bound(graph.reversed()).time_s(size_bytes)
    return TimeBound(best.time_s, best.because, best.time_s == composed)


def _partitions(graph: CapacityGraph, found: Symmetry, cut: NDArray[np.bool_]) -> list[NDArray[np.int64]]:
    """(V,) int64 each: the group of a vertex, -1 for switches of none. Every GPU is in one."""
    single = np.where(np.arange(graph.vertices) < graph.gpus, np.arange(graph.vertices), -1)
    group = np.full(graph.vertices, -1, np.int64)
    queue = [np.flatnonzero(~cut)]
    count = 0
    while queue:
        members = queue.pop()
        if (group[members] >= 0).any():
            if len(np.unique(group[members])) > 1 or (group[members] < 0).any():
                return [single]  # images overlap
            continue
        group[members] = count
        count += 1
        queue += [image[members] for image in found.maps]
    return [single, group] if (group[: graph.gpus] >= 0).all() and count > 1 else [single]
