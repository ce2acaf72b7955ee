"""Least time of a collective on a graph: what no algorithm can beat when only rates count, and the least number of steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from busbw.collectives import _bounds
from busbw.collectives.bounds.all_to_all import all_to_all_bound
from busbw.collectives.bounds.graph import CapacityGraph
from busbw.collectives.bounds.symmetry import Symmetry, symmetry
from busbw.collectives.bounds.throughput import ThroughputBound, throughput_bound

__all__ = ["TimeBound", "least_flow_from", "least_steps", "time_bound"]

_MOST_RATES = 16
"""Rates of links by which groups of GPUs are made, the fastest. A guess: a machine has a handful; measured ones may all differ."""


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
    summing: Iterable[int] = (),
    found: Symmetry | None = None,
) -> TimeBound:
    """The least time of a collective of nccl-tests' size. Latency is left out.

    summing: switches that add what comes in and copy what goes out, at the rate of their links (NVLS: the NVSwitches; SHARP: the fabric's); in_network: all do.
    That changes all_reduce alone: whoever adds or copies, into each GPU come the data of all others (all_gather), out of it go its addends to all others
    (reduce_scatter), and one vector passes each cut round a root (broadcast, reduce).
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
        switches = range(graph.gpus, graph.vertices) if in_network else summing
        return _all_reduce(graph, size_bytes, np.array(sorted(switches), np.int64), found)
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


def _all_reduce(graph: CapacityGraph, size_bytes: int, summing: NDArray[np.int64], found: Symmetry | None) -> TimeBound:
    """The larger of two bounds: what one vector takes across a cut, and what groups of GPUs must tell one another.

    Across a cut between two GPUs one vector must pass, whoever reduces. K groups of GPUs between which nothing adds must pass 2 (K - 1) vectors between them, as K people need 2 (K - 1) one-way messages before each
    knows what all know: what adds inside a group is part of it. Groups are the single GPUs, GPUs with the summing switches that join them, and what the tightest cut
    of all-gather leaves out, with its images; those that leave a summing switch outside are no such groups.
    """
    found = symmetry(graph) if found is None else found
    across = min(least_flow_from(graph, 0), least_flow_from(graph.reversed(), 0))
    best = TimeBound(size_bytes / across, f"{_rate(across)} between two GPUs is all that one vector can cross", False)
    gather = throughput_bound(graph, found)
    kinds = _partitions(graph, found, gather.cut)
    if len(summing):
        kinds = [group for group in (*kinds, _joined_by(graph, summing)) if (group[summing] >= 0).all()]
    for groups in kinds:
        group = np.asarray(groups)
        entering = (group[graph.dst] >= 0) & (group[graph.src] != group[graph.dst])
        rate = int(graph.capacity[entering].sum()) * graph.unit
        count = int(group.max()) + 1
        time_s = 2 * (count - 1) * size_bytes / rate if rate else Fraction(0)
        if time_s > best.time_s:
            why = f"{_rate(rate)} into {count} groups of GPUs must carry {2 * (count - 1)} vectors"
            best = TimeBound(time_s, why, False)
    if len(summing):
        return best
    # Reduce-scatter, then all-gather.
    composed = gather.time_s(size_bytes) + throughput_bound(graph.reversed()).time_s(size_bytes)
    return TimeBound(best.time_s, best.because, best.time_s == composed)


def _joined_by(graph: CapacityGraph, summing: NDArray[np.int64]) -> NDArray[np.int64]:
    """(V,) int64: the group of a vertex where summing switches are one with the GPUs at them; -1 for other switches."""
    adds = np.zeros(graph.vertices, bool)
    adds[summing] = True
    near = adds | (np.arange(graph.vertices) < graph.gpus)
    return _components(graph, near[graph.src] & near[graph.dst] & (adds[graph.src] | adds[graph.dst]))


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
    images = [group] if (group[: graph.gpus] >= 0).all() and count > 1 else []
    return [single, *images, *_joined_by_rate(graph)]


def _joined_by_rate(graph: CapacityGraph) -> Iterator[NDArray[np.int64]]:
    """(V,) int64 each: groups of GPUs that links of at least some rate join, the fastest first: nodes, racks."""
    for rate in np.unique(graph.capacity)[::-1][:_MOST_RATES]:
        group = _components(graph, graph.capacity >= rate)
        if 0 < group.max() < graph.gpus - 1:
            yield group


def _components(graph: CapacityGraph, joining: NDArray[np.bool_]) -> NDArray[np.int64]:
    """(V,) int64: the component of a vertex over these edges, of those that hold a GPU; -1 in others."""
    ends = (graph.src[joining], graph.dst[joining])
    links = coo_matrix((np.ones(len(ends[0]), bool), ends), (graph.vertices, graph.vertices))
    label = connected_components(links, directed=False)[1]
    kept, group = np.unique(label[: graph.gpus], return_inverse=True)
    place = np.minimum(np.searchsorted(kept, label), len(kept) - 1)
    found = np.where(kept[place] == label, place, -1)
    found[: graph.gpus] = group
    return np.asarray(found, np.int64)
