"""Candidates for a collective on a graph, from the library and from synthesis, ranked by what they would take.

The ranking is an alpha-beta model that knows the links: a step costs alpha, a little for each message of its
busiest rank, and the time of its busiest link.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from busbw.collectives import BoundSchedule, Mode, Schedule, expand
from busbw.collectives.algorithms import LIBRARY
from busbw.collectives.bounds import CapacityGraph, TimeBound, least_steps, symmetry, time_bound
from busbw.collectives.schedule import transfers_of
from busbw.hardware import Cluster
from busbw.synthesis.exchanges import Exchange, route_exchange
from busbw.synthesis.forests import FOREST_COLLECTIVES, Forest, pack_forest, tree_depths
from busbw.synthesis.greedy import GREEDY_COLLECTIVES, synthesise_greedily
from busbw.synthesis.rank_links import RankLinks

__all__ = ["DESIGNED", "OBJECTIVES", "Candidate", "Design", "design", "message_alpha_s"]

DESIGNED = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("broadcast", "reduce", "gather", "scatter"),
)
OBJECTIVES = ("latency", "throughput", "at-size")

_SOFTWARE_S = 2e-6
"""What a message costs beside the wires: a guess, near what NCCL's simple protocol takes a hop."""
_MESSAGE_S = 2e-7
"""What each further message that a rank sends in one step costs: a guess, near a NIC's and a proxy's few million a second."""
_MOST_RANKS = 1024
"""Ranks up to which library schedules are written out: a million messages each."""
_MOST_MOVES = 4_000_000
_CELLS = 20_000_000
"""Steps times links whose loads are held at once: 160 MB."""
_TINY, _HUGE = 8, 1 << 40
"""Sizes that stand for latency and throughput alone."""
_MOST_PARTS = 4096
_LEAST_SLICE = 4096
"""Bytes: a guess; smaller slices are all start-up."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One way to run the collective."""

    name: str
    origin: str
    """library, forest, exchange or greedy."""
    schedule: Schedule = field(repr=False)
    sizes: tuple[tuple[str, int], ...]
    """The axes it is bound to."""
    steps: int
    parts: int
    """Slices that follow each other through the steps; 1 where it has no pipeline."""
    peers: int
    """Ranks that one rank sends to, at most."""
    time_s: float
    forest: Forest | None = field(default=None, repr=False)

    def bind(self) -> BoundSchedule:
        """The schedule for these ranks, with the parts that were best."""
        named = dict(self.sizes)
        if any(name == "parts" for name, _ in self.schedule.params):
            named["parts"] = self.parts
        return self.schedule.bind(**named)


@dataclass(frozen=True, slots=True, eq=False)
class Design:
    """What was found, the fastest first."""

    collective: str
    size_bytes: int
    ranks: int
    alpha_s: float
    bound: TimeBound
    """When only rates count."""
    least_steps: int
    candidates: tuple[Candidate, ...]
    left_out: tuple[tuple[str, str], ...]
    """Names of schedules that were not ranked, and why."""

    @property
    def bound_s(self) -> float:
        """The larger of what rates and steps need at least."""
        return max(float(self.bound.time_s), self.least_steps * self.alpha_s)

    def gap(self, candidate: Candidate) -> float:
        """How much longer than the bound a candidate takes, as a share of it."""
        return candidate.time_s / self.bound_s - 1 if self.bound_s else 0.0


def message_alpha_s(cluster: Cluster) -> float:
    """Start-up time of a message between the furthest GPUs: links and switches on its way, and the software's part."""
    return cluster.path(0, cluster.gpus - 1).latency_s + _SOFTWARE_S


def design(
    graph: CapacityGraph,
    collective: str,
    size_bytes: int,
    *,
    alpha_s: float,
    objective: str = "at-size",
    gpus_per_node: int | None = None,
    root: int = 0,
    seed: int = 1,
) -> Design:
    """Candidates ranked at `size_bytes`, or at a size where latency or throughput is all that counts.

    Library schedules take one way for each pair of ranks, balanced as for an all-to-all; forests and exchanges take their own.
    Schedules that need switches which reduce or copy are left out, and said so. Raises ValueError for other collectives and
    objectives, and where GPUs cannot reach one another.
    """
    if collective not in DESIGNED:
        raise ValueError(f"{collective!r} is not designed here; {', '.join(DESIGNED)} are")
    if objective not in OBJECTIVES:
        raise ValueError(f"objective {objective!r} is unknown; there is {', '.join(OBJECTIVES)}")
    if graph.gpus < 2:
        raise ValueError("one GPU has nobody to talk to")
    size = {"latency": _TINY, "throughput": _HUGE}.get(objective, size_bytes)
    found = symmetry(graph)
    bound = time_bound(graph, collective, size, root=root, found=found)
    kept: list[Candidate] = []
    left_out: list[tuple[str, str]] = []
    exchange = route_exchange(graph, seed=seed, found=found) if graph.gpus <= _MOST_RANKS else None
    model = _Model(graph, size, alpha_s)
    if collective in FOREST_COLLECTIVES:
        try:
            kept.append(model.of_forest(pack_forest(graph, collective, root=root, seed=seed, found=found)))
        except ValueError as error:
            left_out.append(("forest", str(error)))
    if collective == "all_to_all" and exchange is not None:
        kept.append(model.of_exchange(exchange))
    if collective in GREEDY_COLLECTIVES and graph.vertices == graph.gpus:
        links = RankLinks.of(
            graph.gpus,
            [(int(a), int(b), float(c * graph.unit), alpha_s) for a, b, c in zip(graph.src, graph.dst, graph.capacity, strict=True)],
        )  # fmt: skip
        made = synthesise_greedily(collective, links, float(size), root=root, seed=seed)
        sizes = (("r", graph.gpus),)
        peers = _most_peers(made.src.astype(np.int64), made.dst.astype(np.int64), graph.gpus)
        kept.append(
            Candidate("greedy", "greedy", made.schedule(), sizes, len(np.unique(made.begin_ps)), 1, peers, made.time_s)
        )
    for name, schedule in _library(collective):
        if exchange is None:
            left_out.append((name, f"more than {_MOST_RANKS} ranks are not written out"))
            continue
        try:
            bound_to = _bound_to(schedule, graph.gpus, gpus_per_node, root)
            kept.append(model.of_library(name, bound_to, exchange))
        except ValueError as error:
            left_out.append((name, str(error)))
    kept.sort(key=lambda candidate: candidate.time_s)
    steps = least_steps(graph)
    return Design(collective, size, graph.gpus, alpha_s, bound, steps, tuple(kept), tuple(left_out))


def _library(collective: str) -> Iterator[tuple[str, Schedule]]:
    for name, make in LIBRARY.items():
        schedule = make()
        if schedule.kind == collective:
            yield name, schedule


def _bound_to(schedule: Schedule, ranks: int, gpus_per_node: int | None, root: int) -> BoundSchedule:
    if any(transfer.mode not in (Mode.COPY, Mode.REDUCE) for transfer in transfers_of(schedule.body)):
        raise ValueError("needs switches that reduce or copy")
    params = {"root": root} if any(name == "root" for name, _ in schedule.params) else {}
    if len(schedule.axes) == 1:
        return schedule.bind(ranks, **params)
    if schedule.axes == ("node", "gpu") and gpus_per_node and ranks > gpus_per_node and ranks % gpus_per_node == 0:
        return schedule.bind(ranks // gpus_per_node, gpus_per_node, **params)
    raise ValueError(f"has the axes {', '.join(schedule.axes)}, which these ranks do not")


class _Model:
    """Time of steps whose messages take known ways."""

    def __init__(self, graph: CapacityGraph, size_bytes: int, alpha_s: float) -> None:
        self.graph, self.size, self.alpha_s = graph, size_bytes, alpha_s
        self.seconds_a_byte = 1.0 / (graph.capacity * float(graph.unit))

    def of_forest(self, made: Forest) -> Candidate:
        depth = made.depth
        step = tree_depths(made.root, made.parent) - 1
        used = made.parent >= 0
        share = self.size / made.trees_per_root
        if made.collective not in ("broadcast", "reduce"):
            share /= self.graph.gpus
        length = np.diff(made.way_begin)
        way = made.way[used]
        rows = _rows(made.way_begin, way, length)
        graph = made.graph
        seconds = np.asarray(1.0 / (graph.capacity * float(graph.unit)), np.float64)
        busiest = self._busiest(np.repeat(step[used], length[way]), made.way_edges[rows], share, depth, seconds)
        parent = made.parent[used].astype(np.int64)
        start = self._start(step[used], parent, depth)
        both_ways = 2 if made.collective == "all_reduce" else 1
        total = float(made.inverse_rate) * share * made.trees_per_root
        time_s, parts = self._pipelined(np.tile(start, both_ways), np.tile(busiest, both_ways), total)
        sizes = (("r", self.graph.gpus),)
        return Candidate("forest", "forest", made.schedule(), sizes, depth * both_ways, parts, made.peers, time_s, made)

    def of_exchange(self, made: Exchange) -> Candidate:
        schedule = made.schedule()
        bound = schedule.bind()
        moves = expand(bound, whole=True, most=_MOST_MOVES)
        # Hops of one pair follow each other; those of different pairs need not wait, so links are busy all the time.
        start = float(self._start(moves.step, moves.src, int(moves.step.max()) + 1).sum())
        time_s = start + float(made.time_s(self.size))
        peers = _most_peers(moves.src, moves.dst, self.graph.gpus)
        return Candidate("exchange", "exchange", schedule, bound.sizes, made.depth, 1, peers, time_s)

    def of_library(self, name: str, bound: BoundSchedule, ways: Exchange) -> Candidate:
        moves = expand(bound, whole=True, most=_MOST_MOVES)
        away = moves.src != moves.dst
        step, src, dst, count = moves.step[away], moves.src[away], moves.dst[away], moves.count[away]
        if not len(step):
            raise ValueError("moves nothing")
        steps = int(step.max()) + 1
        pair = src * self.graph.gpus + dst
        length = np.diff(ways.way_begin)
        chunk = self.size / bound.chunks
        busiest = np.zeros(steps)
        total = np.zeros(len(self.graph))
        begin = 0
        per_batch = max(1, _CELLS // len(self.graph))
        for first in range(0, steps, per_batch):  # moves come in order of steps
            end = int(np.searchsorted(step, first + per_batch))
            some = pair[begin:end]
            rows = _rows(ways.way_begin, some, length)
            here = min(per_batch, steps - first)
            cells = np.repeat(step[begin:end] - first, length[some]) * len(self.graph) + ways.way_edges[rows]
            load = np.bincount(
                cells, weights=np.repeat(count[begin:end] * chunk, length[some]), minlength=here * len(self.graph)
            ).reshape(here, -1)
            busiest[first : first + here] = (load * self.seconds_a_byte).max(1)
            total += load.sum(0)
            begin = end
        start = self._start(step, src, steps)
        sliced = any(parameter == "parts" for parameter, _ in bound.schedule.params)
        time_s, parts = self._pipelined(start, busiest, float((total * self.seconds_a_byte).max()), sliced=sliced)
        peers = _most_peers(src, dst, self.graph.gpus)
        schedule = replace(bound.schedule, params=bound.params)  # the root that was asked for
        return Candidate(name, "library", schedule, _named_sizes(bound), steps, parts, peers, time_s)

    def _busiest(
        self, step: NDArray[np.int64], edge: NDArray[np.int32], share: float, steps: int, seconds: NDArray[np.float64]
    ) -> NDArray[np.float64]:
        load = np.bincount(step * len(seconds) + edge, minlength=steps * len(seconds)).reshape(steps, -1)
        return np.asarray((load * share * seconds).max(1), np.float64)

    def _start(self, step: NDArray[np.int64], src: NDArray[np.int64], steps: int) -> NDArray[np.float64]:
        """(steps,) start-up time: alpha, and what the rank with most messages takes to begin them all."""
        key, messages = np.unique(step * self.graph.gpus + src, return_counts=True)
        most = np.zeros(steps)
        np.maximum.at(most, key // self.graph.gpus, messages)
        return np.asarray(self.alpha_s + np.maximum(most - 1, 0) * _MESSAGE_S, np.float64)

    def _pipelined(
        self, start: NDArray[np.float64], busiest: NDArray[np.float64], total: float, *, sliced: bool = True
    ) -> tuple[float, int]:
        """The least time over numbers of slices, and that number.

        One slice goes through all steps; each further one comes out as often as the busiest link lets it.
        """
        best, parts = float("inf"), 1
        choices: Sequence[int] = [1 << place for place in range(_MOST_PARTS.bit_length())] if sliced else [1]
        for count in choices:
            if count > 1 and self.size / count < _LEAST_SLICE:
                break
            through = float(start.sum()) + float(busiest.sum()) / count
            time_s = through + (count - 1) * max(float(start.max()), total / count)
            if time_s < best:
                best, parts = time_s, count
        return best, parts


def _named_sizes(bound: BoundSchedule) -> tuple[tuple[str, int], ...]:
    root = tuple((name, value) for name, value in bound.params if name == "root")
    return (*bound.sizes, *root)


def _rows(
    begin: NDArray[np.int64] | NDArray[np.int32], way: NDArray[np.int64] | NDArray[np.int32], length: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Places in way_edges of the edges of ways, one after another."""
    sizes = length[way]
    first = np.repeat(begin[:-1][way], sizes)
    offset = np.arange(int(sizes.sum())) - np.repeat(np.cumsum(sizes) - sizes, sizes)
    return np.asarray(first, np.int64) + offset


def _most_peers(src: NDArray[np.int64], dst: NDArray[np.int64], ranks: int) -> int:
    pairs = np.unique(src[src != dst] * ranks + dst[src != dst])
    return int(np.bincount(pairs // ranks).max(initial=0))
