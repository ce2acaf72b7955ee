"""Forests: spanning trees that carry a collective at its throughput bound, on any graph of links, symmetric or not.

The packing itself is C++ (`busbw/schedule/forest_packing.hpp`). Here: how many trees a root gets and how many may share a
link, which the bound of the rounded graph decides; and the exact check of what came out.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from math import floor, lcm

import numpy as np
from numpy.typing import NDArray

from busbw.collectives import Schedule, Tree, forest
from busbw.collectives.bounds import CapacityGraph, Symmetry, least_flow_from, symmetry, throughput_bound, time_bound
from busbw.synthesis import _forests

__all__ = ["FOREST_COLLECTIVES", "Forest", "evened", "pack_forest", "tree_depths"]

FOREST_COLLECTIVES = ("all_gather", "reduce_scatter", "all_reduce", "broadcast", "reduce")

_MOST_TREES = 64
"""Of one root. A guess: every tree is a chunk of its own, and a chunk wants some KiB."""
_MOST_ENTRIES = 40_000_000
"""Trees times GPUs: half a gigabyte in the packer."""
_SMALL = 400_000
"""Trees times GPUs below which several depth prices are tried and the flattest forest is taken: some tenths of a second."""
_DEPTH_PRICES = (0.01, 0.1, 0.001)
"""What a step further from the root costs beside links. Guesses: large ones make flat trees, small ones leave more room."""
_SWEEPS, _FEW_SWEEPS = 200, 20
"""Rounds of moving; the few are for tries that may only better a good forest. Guesses: most packings take under ten."""
_WIDEST = Fraction(1, 4)
"""How far above the bound a rounded one is looked for."""


_MOST_UNITS = 1 << 53
"""Of one capacity: sums of some hundred fit 64 bits. A guess."""
_MOST_SCALE = 1 << 20
"""By what capacities are multiplied so that all are whole numbers again; a guess that leaves room for 64 bits."""


def evened(graph: CapacityGraph) -> CapacityGraph | None:
    """The graph with links narrower than a GPU's widest one taken as a whole fraction of it, rounded down; None if they are that already.

    Rates whose ratio is odd (450 GB/s of NVLink beside 63 GB/s of PCIe) are met exactly only by many trees, deep ones among them. At 450 and 450/8 fewer and flatter trees
    do, within a per cent or two of the bound; whatever they carry fits the true links.

    >>> evened(CapacityGraph.of_edges(2, [(0, 2, 450), (2, 0, 450), (0, 3, 63), (3, 0, 63), (1, 2, 450), (2, 1, 450), (1, 3, 63), (3, 1, 63)])).capacity.tolist()
    [8, 1, 8, 1, 8, 8, 1, 1]
    """
    top = int(graph.capacity[graph.src < graph.gpus].max(initial=0))
    narrow = graph.capacity < top
    if not narrow.any():
        return None
    share = -(-top // graph.capacity[narrow])  # this many times the narrow link is at least the widest
    scale = lcm(*np.unique(share).tolist())
    if scale > _MOST_SCALE or int(graph.capacity.max()) > _MOST_UNITS // scale:
        return None
    capacity = graph.capacity * scale
    capacity[narrow] = top * (scale // share)
    if (capacity == graph.capacity * scale).all():
        return None
    common = int(np.gcd.reduce(capacity))
    return replace(graph, capacity=capacity // common, unit=graph.unit * common / scale)


@dataclass(frozen=True, slots=True, eq=False)
class Forest:
    """`trees_per_root` trees a root, each carrying an equal part of the root's data. Legend: T trees, N GPUs, E edges."""

    collective: str
    graph: CapacityGraph
    """As data flow from roots; reduce_scatter and reduce run it backwards, so their graph is the reversed one."""
    trees_per_root: int
    root: NDArray[np.int32]
    """(T,)."""
    parent: NDArray[np.int32]
    """(T, N): the GPU above each GPU, -1 at the root."""
    way: NDArray[np.int32]
    """(T, N): index into ways: how data get from the parent to the GPU; -1 at the root."""
    way_begin: NDArray[np.int32]
    way_edges: NDArray[np.int32]
    """Way w is the edges way_edges[way_begin[w] : way_begin[w + 1]], from the parent through switches."""
    load: NDArray[np.int64]
    """(E,) trees that use an edge, counted from the ways."""
    bound: Fraction
    """Least inverse rate, as `inverse_rate`."""

    @property
    def inverse_rate(self) -> Fraction:
        """Seconds a byte of one root's data: the largest of load / trees_per_root / capacity, exactly."""
        capacity = self.graph.capacity
        load = self.load
        if self.collective == "all_reduce":
            load = load + self._turned_load()
        # Comparing fractions one by one is slow; floats find the few that matter.
        share = load / capacity
        near = np.flatnonzero(share >= share.max() * (1 - 1e-9))
        most = max(Fraction(int(load[e]), int(capacity[e])) for e in near)
        return most / self.trees_per_root / self.graph.unit

    @property
    def quality(self) -> Fraction:
        """The bound over what the forest attains: 1 is optimal."""
        return self.bound / self.inverse_rate

    @property
    def depth(self) -> int:
        """Messages from a root to the furthest GPU, over all trees."""
        return int(tree_depths(self.root, self.parent).max())

    @property
    def peers(self) -> int:
        """GPUs that one GPU sends to, at most."""
        child = np.broadcast_to(np.arange(self.graph.gpus), self.parent.shape)
        used = self.parent >= 0
        pairs = np.unique(self.parent[used].astype(np.int64) * self.graph.gpus + child[used])
        return int(np.bincount(pairs // self.graph.gpus).max())

    def time_s(self, size_bytes: int) -> Fraction:
        """Time of a collective of nccl-tests' size when only rates count."""
        part = size_bytes if self.collective in ("broadcast", "reduce") else Fraction(size_bytes, self.graph.gpus)
        return part * self.inverse_rate

    def way_name(self, tree: int, gpu: int) -> str:
        """The switches between a GPU and its parent."""
        way = int(self.way[tree, gpu])
        edges = self.way_edges[self.way_begin[way] : self.way_begin[way + 1] - 1]
        return ", ".join(self.graph.name(int(vertex)) for vertex in self.graph.dst[edges])

    def trees(self, *, paths: bool = False) -> list[Tree]:
        """The trees as the Schedule takes them; with paths, the switches on every way."""
        made = []
        for tree, root in enumerate(self.root):
            named = {int(gpu): self.way_name(tree, int(gpu)) for gpu in np.flatnonzero(self.parent[tree] >= 0) if paths}
            made.append(Tree(int(root), self.parent[tree].tolist(), 1, named))
        return made

    def schedule(self, *, paths: bool = False) -> Schedule:
        """The forest as a Schedule like any other."""
        return forest(self.collective, self.trees(paths=paths))

    def _turned_load(self) -> NDArray[np.int64]:
        """What the way up loads: the same links in the other direction. Raises ValueError where one has none."""
        keys = self.graph.src.astype(np.int64) * self.graph.vertices + self.graph.dst
        turned = self.graph.dst.astype(np.int64) * self.graph.vertices + self.graph.src
        back = np.minimum(np.searchsorted(keys, turned), len(keys) - 1)
        if (missing := (keys[back] != turned) & (self.load > 0)).any():
            edge = int(np.flatnonzero(missing)[0])
            ends = f"{self.graph.name(int(self.graph.src[edge]))} to {self.graph.name(int(self.graph.dst[edge]))}"
            raise ValueError(f"the link from {ends} has no way back, so all_reduce cannot go up its trees")
        load = np.zeros_like(self.load)
        np.add.at(load, back[self.load > 0], self.load[self.load > 0])
        return load


def pack_forest(
    graph: CapacityGraph,
    collective: str = "all_gather",
    *,
    root: int = 0,
    tolerance: Fraction = Fraction(1, 100),
    trees_per_root: int | None = None,
    most_depth: int | None = None,
    seed: int = 1,
    found: Symmetry | None = None,
) -> Forest:
    """Trees that attain the throughput bound within `tolerance` where the packer finds such, checked exactly.

    all_gather, reduce_scatter, all_reduce: trees from every GPU; broadcast, reduce: from `root`. All-reduce goes up every tree,
    then down. trees_per_root: as few as round within the tolerance if None. `quality` of the answer says what was attained: the
    packer is a heuristic, the bound and the check are not. Raises ValueError where GPUs cannot reach one another (within
    most_depth), for other collectives, and for forests that would not fit memory.
    """
    if collective not in FOREST_COLLECTIVES:
        raise ValueError(f"{collective!r} is no tree's work; forests carry {', '.join(FOREST_COLLECTIVES)}")
    if graph.gpus < 2:
        raise ValueError("one GPU has nobody to send to")
    single = collective in ("broadcast", "reduce")
    flowing = graph.reversed() if collective in ("reduce_scatter", "reduce") else graph
    rounding = _Rounding(flowing, root if single else None, found if flowing is graph else None)
    starts = [root] if single else list(range(graph.gpus))
    bound = rounding.inverse_rate
    if collective == "all_reduce":
        bound = time_bound(graph, collective, graph.gpus, found=found).time_s
    most = min(_MOST_TREES, _MOST_ENTRIES // (len(starts) * graph.gpus))
    if most < (trees_per_root or 1):
        raise ValueError(
            f"{len(starts)} roots of {graph.gpus} GPUs need {trees_per_root or 1} trees each: more than fits memory; "
            "design one pod and repeat it"
        )
    count = trees_per_root or rounding.fewest_trees(most, tolerance)
    best: Forest | None = None
    for limit, depth_price in rounding.tries(count, tolerance):
        allowed = rounding.allowed(limit)
        roots = np.repeat(np.array(starts, np.int32), count)
        sweeps = _SWEEPS if best is None or best.quality < 1 - tolerance else _FEW_SWEEPS
        _, parent, way, _, begin, edges = _forests.pack(
            flowing.is_gpu, flowing.src, flowing.dst, allowed, roots, most_depth or 0, sweeps, depth_price, seed
        )
        load = _checked_load(flowing, roots, parent, way, (begin, edges))
        made = Forest(collective, flowing, count, roots, parent, way, begin, edges, load, bound)
        if best is None or _is_better(made, best, tolerance):
            best = made
        if best.quality >= 1 - tolerance and len(roots) * graph.gpus > _SMALL:
            break
    assert best is not None
    return best


def _is_better(one: Forest, other: Forest, tolerance: Fraction) -> bool:
    """Within the tolerance the flatter, else the faster."""
    good = 1 - tolerance
    if one.quality >= good and other.quality >= good:
        return (one.depth, -one.quality) < (other.depth, -other.quality)
    return one.quality > other.quality


class _Rounding:
    """How many whole trees links may carry so that a packing exists: the bound of the rounded graph says so."""

    def __init__(self, graph: CapacityGraph, root: int | None, found: Symmetry | None) -> None:
        self.graph, self.root = graph, root
        self.found = symmetry(graph, fixed=root) if found is None or root is not None else found
        self.rates, self.which = np.unique(graph.capacity, return_inverse=True)
        self.inverse = self._inverse(graph) * graph.unit
        """Per unit of capacity."""

    @property
    def inverse_rate(self) -> Fraction:
        return self.inverse / self.graph.unit

    def _inverse(self, graph: CapacityGraph) -> Fraction:
        if self.root is not None:
            return 1 / least_flow_from(graph, self.root, self.found)
        return throughput_bound(graph, self.found).inverse_rate

    def allowed(self, limit: Fraction) -> NDArray[np.int64]:
        """(E,) trees an edge may carry where a unit of capacity carries `limit`."""
        return np.array([floor(limit * int(rate)) for rate in self.rates], np.int64)[self.which]

    def _fits(self, limit: Fraction, count: int) -> bool:
        graph = self.graph
        whole = CapacityGraph.of_columns(
            graph.gpus, graph.vertices, graph.src.astype(np.int64), graph.dst.astype(np.int64), self.allowed(limit)
        )
        try:
            return self._inverse(whole) <= Fraction(1, count)
        except ValueError:  # rounded down to nothing, some GPU is cut off
            return False

    def limits(self, count: int, widest: Fraction) -> list[Fraction]:
        """Where the rounded graph changes, from the bound up to `widest` above it."""
        low, high = count * self.inverse, count * self.inverse * (1 + widest)
        steps = {low, high}
        for rate in self.rates:
            steps.update(
                Fraction(trees, int(rate)) for trees in range(floor(low * int(rate)) + 1, floor(high * int(rate)) + 1)
            )
        return sorted(steps)

    def least_limit(self, count: int) -> Fraction | None:
        """The least limit at which `count` trees a root can be packed; None if that is too far above the bound."""
        steps = self.limits(count, _WIDEST)
        if not self._fits(steps[-1], count):
            return None
        low, high = 0, len(steps) - 1
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._fits(steps[middle], count) else (middle + 1, high)
        return steps[low]

    def fewest_trees(self, most: int, tolerance: Fraction) -> int:
        """The least number of trees a root whose rounding costs no more than the tolerance; else the number that costs least."""
        costs = {}
        for count in range(1, most + 1):
            limit = self.least_limit(count)
            if limit is None:
                continue
            costs[count] = limit / count / self.inverse
            if costs[count] * (1 - tolerance) <= 1:
                return count
        return min(costs, key=lambda count: (costs[count], count)) if costs else most

    def tries(self, count: int, tolerance: Fraction) -> Iterator[tuple[Fraction, float]]:
        """Limits and depth prices to try, the most promising first."""
        least = self.least_limit(count) or count * self.inverse * (1 + _WIDEST)
        most = count * self.inverse / (1 - tolerance)
        steps = [step for step in self.limits(count, _WIDEST) if least <= step <= max(most, least)]
        loosest = steps[-1] if steps else least
        for limit in dict.fromkeys((least, loosest)):
            for depth_price in _DEPTH_PRICES:
                yield limit, depth_price


def tree_depths(root: NDArray[np.int32], parent: NDArray[np.int32]) -> NDArray[np.int64]:
    """(T, N) messages from the root. Raises ValueError for parents that are no spanning tree."""
    trees, gpus = parent.shape
    row = np.arange(trees)[:, None]
    at_root = np.arange(gpus)[None, :] == root[:, None]
    if not np.array_equal(parent < 0, at_root) or parent.max(initial=0) >= gpus:
        raise ValueError("every GPU but the root needs a parent among the GPUs")
    # Pointers jump twice as far each time, so a circle shows after log2 N rounds.
    above = np.where(at_root, np.arange(gpus)[None, :], parent).astype(np.int64)
    depth = (~at_root).astype(np.int64)
    for _ in range(max(1, gpus.bit_length())):
        if (above == root[:, None]).all():
            break
        depth += depth[row, above]
        above = above[row, above]
    if not (above == root[:, None]).all():
        raise ValueError("a tree's parents go round in a circle")
    return np.asarray(depth, np.int64)


def _checked_load(
    graph: CapacityGraph,
    root: NDArray[np.int32],
    parent: NDArray[np.int32],
    way: NDArray[np.int32],
    ways: tuple[NDArray[np.int32], NDArray[np.int32]],
) -> NDArray[np.int64]:
    """(E,) trees that use each edge, counted anew. Raises ValueError unless all trees span, along ways that exist."""
    tree_depths(root, parent)
    begin, edges = ways
    length = np.diff(begin)
    if (length < 1).any():
        raise ValueError("a way has no links")
    first, last = graph.src[edges[begin[:-1]]], graph.dst[edges[begin[1:] - 1]]
    inner = np.ones(len(edges), bool)
    inner[begin[:-1]] = False
    inside = np.flatnonzero(inner)
    if (graph.src[edges[inside]] != graph.dst[edges[inside - 1]]).any() or (
        graph.src[edges[inside]] < graph.gpus
    ).any():
        raise ValueError("a way is broken, or leads through a GPU")
    used = parent >= 0
    child = np.broadcast_to(np.arange(graph.gpus), parent.shape)
    if (first[way[used]] != parent[used]).any() or (last[way[used]] != child[used]).any():
        raise ValueError("a way does not lead from parent to child")
    uses = np.bincount(way[used], minlength=len(length))
    return np.bincount(edges, weights=np.repeat(uses, length), minlength=len(graph)).astype(np.int64)
