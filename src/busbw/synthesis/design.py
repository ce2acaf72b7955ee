"""Candidates for a collective on a graph, from the library and from synthesis, ranked by what they would take.

The ranking here is an alpha-beta model that knows the links: a step costs alpha, a little for each message of its
busiest rank, and the time of its busiest link. `busbw.synthesis.timing` ranks them anew where the cluster is known.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from busbw.collectives import BoundSchedule, Mode, Schedule, expand
from busbw.collectives.algorithms import LIBRARY
from busbw.collectives.bounds import CapacityGraph, Symmetry, TimeBound, least_steps, symmetry, time_bound
from busbw.collectives.cost import cost
from busbw.collectives.expressions import param
from busbw.collectives.schedule import Pipeline, transfers_of
from busbw.hardware import Cluster
from busbw.synthesis.exchanges import Exchange, route_exchange
from busbw.synthesis.forests import FOREST_COLLECTIVES, Forest, evened, pack_forest, tree_depths
from busbw.synthesis.greedy import GREEDY_COLLECTIVES, synthesise_greedily
from busbw.synthesis.rank_links import RankLinks

__all__ = [
    "DESIGNED",
    "LEAST_SLICE",
    "MOST_GPUS",
    "NEEDS_SWITCHES",
    "OBJECTIVES",
    "SOFTWARE_S",
    "Candidate",
    "Design",
    "design",
    "message_alpha_s",
]

DESIGNED = (
    *("all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("broadcast", "reduce", "gather", "scatter"),
)
OBJECTIVES = ("latency", "throughput", "at-size")

NEEDS_SWITCHES = "needs switches that reduce or copy"
SOFTWARE_S = 2e-6
"""What a message costs beside the wires: a guess, near what NCCL's simple protocol takes a hop."""
_MESSAGE_S = 2e-7
"""What each further message that a rank sends in one step costs: a guess, near a NIC's and a proxy's few million a second."""
_MOST_RANKS = 1024
"""Ranks up to which library schedules are written out: a million messages each."""
_BY_FORM = (
    "ring_",
    "two_shot",
    "circulant_all_reduce",
    "census",
    "bruck_",
    "hierarchical_all",
    "hierarchical_reduce_scatter",
    "two_level",
)
"""Library schedules whose steps are counted by their form, so that any number of ranks can be."""
MOST_GPUS = 1 << 17
"""GPUs whose links are written out and bounded: 131,072 in 16,384 nodes take 13 s of CPU time (measured), memory and time grow with them."""
_MOST_PACKED = 2048
"""GPUs up to which forests are packed here: 1,024 take a second, 4,096 minutes."""
_MOST_MOVES = 4_000_000
_CELLS = 20_000_000
"""Steps times links whose loads are held at once: 160 MB."""
_TINY, _HUGE = 8, 1 << 40
"""Sizes that stand for latency and throughput alone."""
_MOST_PARTS = 4096
_BLOCKS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
_RADICES = (2, 3, 4, 8, 16, 32)
"""Values tried of the parameters `blocks` and `radix` of library schedules, where they fit."""
_FEW_MOVES = 300_000
"""Messages of a schedule up to which all values are tried: some tenths of a second each. A guess."""
LEAST_SLICE = 4096
"""Bytes: a guess; smaller slices are all start-up."""


@dataclass(frozen=True, slots=True)
class Busy:
    """How long links of one kind are busy: the busiest of each step, summed, and the busiest of all."""

    steps_s: float = 0.0
    whole_s: float = 0.0

    def through_s(self, parts: int) -> float:
        """The same in so many slices: one goes through all steps, each further one comes out as often as the busiest link lets it."""
        return self.steps_s / parts + self.whole_s * (parts - 1) / parts


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One way to run the collective."""

    name: str
    origin: str
    """library, forest, exchange, greedy or nccl."""
    schedule: Schedule | None = field(repr=False)
    """None for what NCCL does and no schedule here says."""
    sizes: tuple[tuple[str, int], ...]
    """The axes it is bound to."""
    steps: int
    """Steps in which ranks wait for one another, for one slice."""
    parts: int
    """Slices that follow each other through the steps; 1 where it has no pipeline."""
    peers: int
    """Ranks that one rank sends to, at most."""
    time_s: float
    forest: Forest | None = field(default=None, repr=False)
    steps_between: int = 0
    """Of the steps, those with messages between nodes (NVLink domains)."""
    more_messages: int = 0
    """Messages beyond the first of the busiest rank of each step, summed."""
    busy: tuple[Busy, Busy] = (Busy(), Busy())
    """Of links inside nodes, and of the network, one slice and all."""
    channels: int = 1
    timed_by: str = "model"
    """model, simulation (of the links; fitted: read off runs with fewer slices) or prediction (of NCCL)."""
    links_s: float | None = None
    """What the links take: simulated; of NCCL, its bytes at line rate, not below the bound; None where the model alone is known."""
    in_network: bool = False
    """Whether switches add or copy for it."""

    def bind(self) -> BoundSchedule:
        """The schedule for these ranks, with the parts that were best. Raises ValueError where there is none."""
        if self.schedule is None:
            raise ValueError(f"{self.name} is what NCCL does; it has no schedule here")
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
    switches: TimeBound | None = None
    """The bound where the cluster's switches add and copy; None where they do not."""
    latency_s: float | None = None
    """Of the links between the furthest GPUs, without software; None: alpha_s counts."""
    notes: tuple[str, ...] = ()

    @property
    def bound_s(self) -> float:
        """The larger of what rates and steps need at least, where switches neither add nor copy."""
        return self._at_least(self.bound)

    @property
    def switches_bound_s(self) -> float:
        """The same where the cluster's switches add and copy as they can: no schedule is faster."""
        return self._at_least(self.switches or self.bound)

    def _at_least(self, bound: TimeBound) -> float:
        a_step = self.alpha_s if self.latency_s is None else self.latency_s
        return max(float(bound.time_s), self.least_steps * a_step)

    def gap(self, candidate: Candidate) -> float:
        """How much longer than the bound of its kind a candidate takes on the links, as a share of it."""
        bound = self.switches_bound_s if candidate.in_network else self.bound_s
        took = candidate.time_s if candidate.links_s is None else candidate.links_s
        return took / bound - 1 if bound else 0.0

    @property
    def best(self) -> Candidate | None:
        """The fastest that has a schedule."""
        return next((candidate for candidate in self.candidates if candidate.schedule is not None), None)


def message_alpha_s(cluster: Cluster, *, near: bool = False) -> float:
    """Start-up time of a message between the furthest GPUs, or neighbours: links and switches on its way, and the software's part."""
    return cluster.path(0, 1 if near else cluster.gpus - 1).latency_s + SOFTWARE_S


def design(
    graph: CapacityGraph,
    collective: str,
    size_bytes: int,
    *,
    alpha_s: float,
    near_alpha_s: float | None = None,
    objective: str = "at-size",
    gpus_per_node: int | None = None,
    torus: Sequence[int] = (),
    root: int = 0,
    seed: int = 1,
    progress: Callable[[str], None] | None = None,
) -> Design:
    """Candidates ranked at `size_bytes`, or at a size where latency or throughput is all that counts.

    alpha_s: start-up of a message between nodes of `gpus_per_node` ranks; near_alpha_s: inside one (the same if None).
    torus: its extents, where the ranks are one, the last counting fastest.
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
    if graph.gpus > MOST_GPUS:
        raise ValueError(f"{graph.gpus:,} GPUs are more than {MOST_GPUS:,}, up to which schedules are designed")
    size = {"latency": _TINY, "throughput": _HUGE}.get(objective, size_bytes)
    say = progress or (lambda _: None)
    say(f"bounds of {graph.gpus} GPUs and {len(graph)} links")
    found = symmetry(graph)
    bound = time_bound(graph, collective, size, root=root, found=found)
    kept: list[Candidate] = []
    left_out: list[tuple[str, str]] = []
    exchange = route_exchange(graph, seed=seed, found=found) if graph.gpus <= _MOST_RANKS else None
    near_s = alpha_s if near_alpha_s is None else near_alpha_s
    model = _Model(graph, size, alpha_s, near_s, gpus_per_node or graph.gpus)
    if collective in FOREST_COLLECTIVES and graph.gpus > _MOST_PACKED:
        left_out.append(("forest", f"more than {_MOST_PACKED} GPUs take minutes; busbw.synthesis.pack_forest makes it"))
    elif collective in FOREST_COLLECTIVES:
        say("packing a forest")
        try:
            kept += _forests(model, graph, collective, root, seed, found)
        except ValueError as error:
            left_out.append(("forest", str(error)))
    if collective == "all_to_all" and exchange is not None:
        kept.append(model.of_exchange(exchange))
    if collective in GREEDY_COLLECTIVES and graph.vertices == graph.gpus:
        links = RankLinks.of(
            graph.gpus,
            [(int(a), int(b), float(c * graph.unit), alpha_s) for a, b, c in zip(graph.src, graph.dst, graph.capacity, strict=True)],
        )  # fmt: skip
        try:
            made = synthesise_greedily(collective, links, float(max(size, 1)), root=root, seed=seed)
        except ValueError as error:
            left_out.append(("greedy", str(error)))
        else:
            peers = _most_peers(made.src.astype(np.int64), made.dst.astype(np.int64), graph.gpus)
            steps = len(np.unique(made.begin_ps))
            kept.append(
                Candidate("greedy", "greedy", made.schedule(), (("r", graph.gpus),), steps, 1, peers, made.time_s)
            )
    for name, schedule in _library(collective):
        say(f"counting {name}")
        if exchange is None and not name.startswith(_BY_FORM):
            left_out.append((name, f"more than {_MOST_RANKS} ranks are not written out"))
            continue
        try:
            bound_to = _bound_to(schedule, graph.gpus, gpus_per_node, torus, root)
            variants = (
                model.of_cost(name, variant) if exchange is None else model.of_library(name, variant, exchange)
                for variant in _variants(bound_to, size)
            )  # fmt: skip
            kept.append(min(variants, key=lambda candidate: candidate.time_s))
        except ValueError as error:
            left_out.append((name, str(error)))
    kept.sort(key=lambda candidate: candidate.time_s)
    steps = least_steps(graph)
    return Design(collective, size, graph.gpus, alpha_s, bound, steps, tuple(kept), tuple(left_out))


def _forests(  # noqa: PLR0917 - as pack_forest
    model: _Model, graph: CapacityGraph, collective: str, root: int, seed: int, found: Symmetry
) -> Iterator[Candidate]:
    """The forest nearest the bound; one for evened links if it is flatter; one of a tree a root, which sends the fewest messages, whatever rates are odd."""
    first = pack_forest(graph, collective, root=root, seed=seed, found=found)
    yield model.of_forest(first)
    flatter = evened(graph)
    if flatter is not None:
        flat = pack_forest(flatter, collective, root=root, seed=seed)
        if flat.depth < first.depth:
            yield replace(model.of_forest(flat), name="forest_even")
    if first.trees_per_root > 1:
        single = pack_forest(graph, collective, root=root, seed=seed, found=found, trees_per_root=1)
        yield replace(model.of_forest(single), name="forest_one_tree")


def _library(collective: str) -> Iterator[tuple[str, Schedule]]:
    for name, make in LIBRARY.items():
        schedule = make()
        if schedule.kind == collective:
            yield name, _sliced(schedule) if len(schedule.axes) > 1 else schedule


def _sliced(schedule: Schedule) -> Schedule:
    """The schedule as a pipeline, so that its levels overlap."""
    if any(name == "parts" for name, _ in schedule.params):
        return schedule
    return replace(schedule, body=Pipeline(param("parts"), schedule.body), params=(*schedule.params, ("parts", 1)))


def _variants(bound: BoundSchedule, size_bytes: float) -> Iterator[BoundSchedule]:
    """The schedule with each value of its parameters `blocks` and `radix` that is worth trying."""
    named = dict(bound.params)
    if "blocks" in named:
        most = max(1, int(size_bytes) // LEAST_SLICE)
        tried = [m for m in _BLOCKS if m == 1 or (m <= most and m * bound.ranks <= _FEW_MOVES)]
        yield from (bound.bound_where(blocks=m) for m in tried)
    elif "radix" in named:
        tried = [base for base in _RADICES if base == 2 or base < bound.ranks]
        few = bound.ranks * bound.ranks <= _FEW_MOVES
        yield from (bound.bound_where(radix=base) for base in (tried if few else tried[2:3]))
    else:
        yield bound


def _bound_to(
    schedule: Schedule, ranks: int, gpus_per_node: int | None, torus: Sequence[int], root: int
) -> BoundSchedule:
    if any(transfer.mode not in (Mode.COPY, Mode.REDUCE) for transfer in transfers_of(schedule.body)):
        raise ValueError(NEEDS_SWITCHES)
    params = {"root": root} if any(name == "root" for name, _ in schedule.params) else {}
    if len(schedule.axes) == 1:
        return schedule.bind(ranks, **params)
    if schedule.axes == ("node", "gpu") and gpus_per_node and 1 < gpus_per_node < ranks and ranks % gpus_per_node == 0:
        return schedule.bind(ranks // gpus_per_node, gpus_per_node, **params)
    if schedule.axes[0] == "x" and len(torus) == len(schedule.axes) and math.prod(torus) == ranks:
        return schedule.bind(*torus, **params)
    raise ValueError("these ranks have other axes (nodes of several GPUs, a torus)")


@dataclass(frozen=True, slots=True, eq=False)
class _Started:
    """How long steps take to begin."""

    start_s: NDArray[np.float64]
    """(steps,)."""
    between: int
    """Steps with messages between nodes."""
    more: int
    """Messages beyond the first of the busiest rank of each step, summed."""


class _Model:
    """Time of steps whose messages take known ways."""

    def __init__(self, graph: CapacityGraph, size_bytes: int, alpha_s: float, near_s: float, per_node: int) -> None:
        self.graph, self.size, self.alpha_s, self.per_node = graph, size_bytes, alpha_s, per_node
        self.seconds_a_byte = 1.0 / (graph.capacity * float(graph.unit))
        self.near_s = near_s
        self.inside = _inside_nodes(graph, per_node)

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
        # It may have been packed for narrower links than there are (`evened`), and for those that lead back.
        graph = self.graph.reversed() if made.collective in ("reduce_scatter", "reduce") else self.graph
        on_these = replace(made, graph=graph)
        seconds = np.asarray(1.0 / (graph.capacity * float(graph.unit)), np.float64)
        inside = _inside_nodes(graph, self.per_node)
        cells = np.repeat(step[used], length[way]) * len(seconds) + made.way_edges[rows]
        load = np.bincount(cells, minlength=depth * len(seconds)).reshape(depth, -1) * (share * seconds)
        kinds = _largest_of_kinds(load, inside)
        parent = made.parent[used].astype(np.int64)
        child = np.broadcast_to(np.arange(self.graph.gpus), made.parent.shape)[used]
        steps = self._steps(step[used], parent, child, depth)
        both_ways = 2 if made.collective == "all_reduce" else 1
        total = float(on_these.inverse_rate) * share * made.trees_per_root
        time_s, parts = self._pipelined(
            np.tile(steps.start_s, both_ways), np.tile(kinds.max(1), both_ways), total
        )  # fmt: skip
        whole = _largest_of_kinds((made.load * share * seconds)[None, :], inside)[0] * both_ways
        sizes = (("r", self.graph.gpus),)
        return Candidate(
            "forest", "forest", made.schedule(), sizes, depth * both_ways, parts, made.peers, time_s, made,
            steps_between=steps.between * both_ways, more_messages=steps.more * both_ways, busy=_busy(kinds.sum(0) * both_ways, whole),
        )  # fmt: skip

    def of_exchange(self, made: Exchange) -> Candidate:
        schedule = made.schedule()
        bound = schedule.bind()
        moves = expand(bound, whole=True, most=_MOST_MOVES)
        # Hops of one pair follow each other; those of different pairs need not wait, so links are busy all the time.
        steps = self._steps(moves.step, moves.src, moves.dst, int(moves.step.max()) + 1)
        time_s = float(steps.start_s.sum()) + float(made.time_s(self.size))
        peers = _most_peers(moves.src, moves.dst, self.graph.gpus)
        busy = _largest_of_kinds((made.load * self.seconds_a_byte)[None, :], self.inside)[0]
        busy *= float(made.time_s(self.size)) / (busy.max() or 1.0)
        return Candidate(
            "exchange", "exchange", schedule, bound.sizes, made.depth, 1, peers, time_s,
            steps_between=steps.between, more_messages=steps.more, busy=_busy(busy, busy),
        )  # fmt: skip

    def of_library(self, name: str, bound: BoundSchedule, ways: Exchange) -> Candidate:
        moves = expand(bound, whole=True, most=_MOST_MOVES)
        away = moves.src != moves.dst
        step, src, dst, count = moves.step[away], moves.src[away], moves.dst[away], moves.count[away]
        if not len(step):
            raise ValueError("moves nothing")
        step = np.unique(step, return_inverse=True)[1].ravel()  # those in which ranks only copy are no steps
        steps = int(step.max()) + 1
        pair = src * self.graph.gpus + dst
        length = np.diff(ways.way_begin)
        chunk = self.size / bound.chunks
        kinds = np.zeros((steps, 2))
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
            kinds[first : first + here] = _largest_of_kinds(load * self.seconds_a_byte, self.inside)
            total += load.sum(0)
            begin = end
        started = self._steps(step, src, dst, steps)
        sliced = any(parameter == "parts" for parameter, _ in bound.schedule.params)
        taken = total * self.seconds_a_byte
        time_s, parts = self._pipelined(started.start_s, kinds.max(1), float(taken.max()), sliced=sliced)
        whole = _largest_of_kinds(taken[None, :], self.inside)[0]
        peers = _most_peers(src, dst, self.graph.gpus)
        schedule = replace(bound.schedule, params=bound.params)  # the root that was asked for
        return Candidate(
            name, "library", schedule, _named_sizes(bound), steps, parts, peers, time_s,
            steps_between=started.between, more_messages=started.more, busy=_busy(kinds.sum(0), whole),
            channels=int(moves.channel[away].max()) + 1,
        )  # fmt: skip

    def of_cost(self, name: str, bound: BoundSchedule) -> Candidate:
        """A library schedule for more ranks than are written out: steps and chunks of its busiest rank, over the links of GPU 0 inside its node or out of it."""
        counted = cost(bound)
        mine = self.graph.src == 0
        rate = [
            float(self.graph.capacity[mine & inside].sum() * self.graph.unit) for inside in (self.inside, ~self.inside)
        ]
        chunk = self.size / max(counted.chunks, 1)
        outer = bound.schedule.axes[0]
        one_level = len(bound.schedule.axes) == 1 or not rate[0]
        start, busiest, between, more = [], [], 0, 0
        total = np.zeros(2)
        for turn in counted.rounds:
            far = one_level or outer in turn.step
            loads = [(one_level or axis == outer, load) for axis, load in turn.step.items() if axis]
            if not loads:
                continue
            messages = [
                max(float(load.sent.max()), float(load.received.max())) / max(load.message, 1e-9) for _, load in loads
            ]
            extra = max(0, round(max(messages)) - 1)
            took = np.zeros(2)
            for out, load in loads:
                took[int(out)] += (
                    max(float(load.sent.max()), float(load.received.max())) * chunk / (rate[out] or max(rate))
                )
            start.append((turn.times, (self.alpha_s if far else self.near_s) + extra * _MESSAGE_S))
            busiest.append((turn.times, float(took.max())))
            total += turn.times * took
            between, more = between + turn.times * far, more + turn.times * extra
        if not start:
            raise ValueError("moves nothing")
        sliced = any(parameter == "parts" for parameter, _ in bound.schedule.params)
        times, starts = np.array([n for n, _ in start]), np.array([s for _, s in start])
        whole = np.array([s for _, s in busiest])
        time_s, parts = self._pipelined(
            np.repeat(starts, times) if times.sum() <= _CELLS else starts, np.repeat(whole, times) if times.sum() <= _CELLS else whole, float(total.max()), sliced=sliced
        )  # fmt: skip
        schedule = replace(bound.schedule, params=bound.params)
        return Candidate(
            name, "library", schedule, _named_sizes(bound), counted.steps, parts, 0, time_s,
            steps_between=between, more_messages=more, busy=_busy(total, total),
        )  # fmt: skip

    def _steps(self, step: NDArray[np.int64], src: NDArray[np.int64], dst: NDArray[np.int64], steps: int) -> _Started:
        """What it takes to begin each step: alpha, and what the rank with most messages takes to begin them all."""
        key, messages = np.unique(step * self.graph.gpus + src, return_counts=True)
        most = np.zeros(steps, np.int64)
        np.maximum.at(most, key // self.graph.gpus, messages)
        far = np.zeros(steps, bool)
        far[step[src // self.per_node != dst // self.per_node]] = True
        more = np.maximum(most - 1, 0)
        start = np.where(far, self.alpha_s, self.near_s) + more * _MESSAGE_S
        return _Started(start, int(far.sum()), int(more.sum()))

    def _pipelined(
        self, start: NDArray[np.float64], busiest: NDArray[np.float64], total: float, *, sliced: bool = True
    ) -> tuple[float, int]:
        """The least time over numbers of slices, and that number.

        One slice goes through all steps; each further one comes out as often as the busiest link lets it.
        """
        best, parts = float("inf"), 1
        choices: Sequence[int] = [1 << place for place in range(_MOST_PARTS.bit_length())] if sliced else [1]
        for count in choices:
            if count > 1 and self.size / count < LEAST_SLICE:
                break
            through = float(start.sum()) + float(busiest.sum()) / count
            time_s = through + (count - 1) * max(float(start.max()), total / count)
            if time_s < best:
                best, parts = time_s, count
        return best, parts


def _inside_nodes(graph: CapacityGraph, per_node: int) -> NDArray[np.bool_]:
    """(E,) whether a link lies inside a node (NVLink domain): between its GPUs, or at a switch that is named as one of it."""
    place = np.arange(graph.vertices) // per_node
    place[graph.gpus :] = -1
    own = np.array([" of domain " in name or " of node " in name for name in graph.names] or [False] * graph.vertices)
    same = (place[graph.src] == place[graph.dst]) & (place[graph.src] >= 0)
    return np.asarray(same | own[graph.src] | own[graph.dst])


def _largest_of_kinds(load: NDArray[np.float64], inside: NDArray[np.bool_]) -> NDArray[np.float64]:
    """(steps, 2): of each row of (steps, E) the largest load of a link inside nodes, and of the network."""
    return np.stack([load[:, kind].max(1, initial=0.0) for kind in (inside, ~inside)], axis=1)


def _busy(steps_s: NDArray[np.float64], whole_s: NDArray[np.float64]) -> tuple[Busy, Busy]:
    return Busy(float(steps_s[0]), float(whole_s[0])), Busy(float(steps_s[1]), float(whole_s[1]))


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
