"""Candidates ranked by what they take on a cluster: what NCCL does by its prediction, all else by simulation of the links.

Both on one footing, the figures of the prediction's Calibration: of a schedule whose links were simulated,

    T = launch + steps inside x step + steps between x network step + further messages x message + links / share

with the step of the protocol (LL, LL128, Simple) that is fastest, less what the simulated links have of it, and share what NCCL's kernels
reach of links or NICs: of both kinds the larger share, and the time that the kind of the smaller one is busy lasts longer by as much as that is smaller (`shared_links_s`). A kernel that runs a schedule of one's own may be better or worse than NCCL's by as much as those figures differ.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from busbw.collectives import BoundSchedule
from busbw.collectives.algorithms import LIBRARY
from busbw.collectives.bounds import CapacityGraph, time_bound
from busbw.errors import InputError
from busbw.hardware import Cluster
from busbw.nccl import read_settings
from busbw.prediction import (
    Situation,
    load_calibration,
    movements,
    moves_of,
    parts,
    predict,
    situation_of,
)
from busbw.simulation import Conditions, Limits, LinkFailure, simulate
from busbw.synthesis.design import LEAST_SLICE, NEEDS_SWITCHES, SOFTWARE_S, Candidate, Design

__all__ = ["SWITCHES", "ranked_on", "shared_links_s", "summing_switches"]

SWITCHES = ("nvls", "sharp", "none")

_MOST_SLICES = 256
"""The simulator's limit."""
_MOST_BYTES = (1 << 60) - 1
_IN_NETWORK = ("NVLS", "NVLSTree", "CollNetChain")
_FULL_BYTES = 4096
"""As in `busbw.prediction.timing`."""
_ALWAYS, _HOPELESS = 6, 5.0
"""The model's first are always simulated; others unless it takes them to be so many times slower. It is off by up to 3 times: measured on 16 DGX H100."""
_SLICED, _FEW_SLICES = 4, 8
"""Candidates whose number of slices is looked for; others take at most so many."""
_WORK_S = 1.0
"""Work up to which a candidate's number of slices is looked for. Counted, not measured, so that the answer does not depend on how busy the machine is."""
_RUN_S, _WRITTEN_S, _LOWERED_S = 2e-5, 2.5e-6, 5e-4
"""What a simulated message takes, one that folding spares, and a step of a slice to be lowered: measured on forests, hierarchies and trees of 32 and 128 GPUs."""
_FITTED = (1, 2, 4)
"""Numbers of slices from whose times those of more are read; for hierarchies and forests on 128 GPUs within 0.5 % up to 32: measured."""
_SAMPLED = 64
"""GPUs of which the furthest is sought for the bound on latency; any will do for a bound."""
_MOST_WAYS = 256
"""Ranks up to which exchanges, a way for every pair, are simulated: beyond, a way each takes minutes to lower."""


def summing_switches(graph: CapacityGraph, cluster: Cluster, switches: str = "nvls") -> list[int]:
    """The switches that add and copy: none, NVSwitches where GPUs have NVLS (nvls), or also those of the fabric (sharp). Raises ValueError for other words."""
    if switches not in SWITCHES:
        raise ValueError(f"switches {switches!r}: there is {', '.join(SWITCHES)}")
    if switches == "none":
        return []
    try:
        nvls = situation_of(cluster).nvls
    except InputError:
        nvls = False
    names = [graph.name(vertex) for vertex in range(graph.gpus, graph.vertices)]
    inside = [name.startswith("nvswitch") for name in names]
    own = [" of domain " in name or " of node " in name or ":nic" in name for name in names]
    return [
        graph.gpus + place
        for place in range(len(names))
        if (nvls and inside[place]) or (switches == "sharp" and not own[place])
    ]


def ranked_on(
    cluster: Cluster,
    graph: CapacityGraph,
    found: Design,
    *,
    switches: str = "nvls",
    failed: Sequence[str] = (),
    limit_s: float = 60.0,
    progress: Callable[[str], None] | None = None,
) -> Design:
    """The design with NCCL's algorithms beside it, its candidates simulated in their order until `limit_s` seconds are over, and ranked anew.

    Those that were not simulated keep the model's links; a note says how many. graph: the cluster's, of which `found` is a design.
    failed: cables that are down, by the names of `CapacityGraph.without_cables`; NCCL's times do not know of them.
    """
    adding = summing_switches(graph, cluster, switches)
    sharp = switches == "sharp"
    notes: list[str] = []
    size = max(1, min(found.size_bytes, _MOST_BYTES))
    try:
        where: Situation | None = situation_of(cluster, sharp=sharp)
    except InputError as error:
        notes.append(f"NCCL's algorithms are not shown: {error}")
        where = None
    footing = _Footing.of(cluster, where, found, size)
    conditions = Conditions(failed_links=tuple(LinkFailure(cable) for cable in failed))
    if failed:
        notes.append("NCCL's times are those of the whole cluster: predictions know nothing of failed cables")
    simulator = _Simulator(
        cluster, size, footing, conditions, float(found.bound.time_s), time.monotonic() + limit_s, notes
    )
    timed: list[Candidate] = []
    left = 0
    sliced = 0
    for place, candidate in enumerate(found.candidates):
        many = candidate.origin == "exchange" and found.ranks > _MOST_WAYS
        if many or (place >= _ALWAYS and candidate.time_s > _HOPELESS * found.candidates[0].time_s):
            timed.append(footing.from_model(candidate))
            continue
        if simulator.left_s <= 0:
            left += 1
            timed.append(footing.from_model(candidate))
            continue
        if progress is not None:
            progress(f"simulating {candidate.name} ({place + 1} of {len(found.candidates)})")
        has_slices = candidate.schedule is not None and any(name == "parts" for name, _ in candidate.schedule.params)
        timed.append(simulator.timed(candidate, search=has_slices and sliced < _SLICED))
        sliced += has_slices
    if left:
        notes.append(
            f"{left} of {len(found.candidates)} candidates were not simulated within {limit_s:g} s; their links are the model's."
        )
    above = (
        time_bound(graph, found.collective, found.size_bytes, summing=adding)
        if adding and found.collective == "all_reduce"
        else None
    )
    if where is not None and where.ranks > 1:
        of_nccl = _of_nccl(cluster, where, found, simulator, sharp=sharp)
        timed += [candidate for candidate in of_nccl if switches != "none" or not candidate.in_network]
    timed.sort(key=lambda candidate: candidate.time_s)
    by_switches = any(candidate.in_network for candidate in timed)
    left_out = tuple(pair for pair in found.left_out if not (by_switches and pair[1] == NEEDS_SWITCHES))
    ranked = replace(
        found, candidates=tuple(timed), left_out=left_out, switches=above, latency_s=_least_latency_s(cluster, _root(found)) / found.least_steps, notes=(*found.notes, *dict.fromkeys(notes)),
    )  # fmt: skip
    at_least = (_at_least(ranked, candidate) for candidate in timed)
    return replace(ranked, candidates=tuple(sorted(at_least, key=lambda candidate: candidate.time_s)))


def _least_latency_s(cluster: Cluster, root: int) -> float:
    """What the links between a root and a GPU far from it take at least: straight, or through one more GPU of either's node (NVLink, then a rail)."""
    gpus = cluster.gpus
    others = {gpus - 1, *range(0, gpus, max(1, gpus // _SAMPLED))} - {root}
    far_s, far = max((cluster.path(root, gpu).latency_s, gpu) for gpu in others)
    per_node = min(cluster.node.gpus, gpus)
    near = {gpu // per_node * per_node + place for gpu in (root, far) for place in range(per_node)} - {root, far}
    relayed = (cluster.path(root, gpu).latency_s + cluster.path(gpu, far).latency_s for gpu in near if gpu < gpus)
    return min([far_s, *relayed])


def _at_least(ranked: Design, candidate: Candidate) -> Candidate:
    """The candidate, a prediction's links not below what no schedule can beat: it counts bytes of NICs and mean distances, not what each link must carry."""
    if candidate.timed_by != "prediction" or candidate.links_s is None:
        return candidate
    bound_s = ranked.switches_bound_s if candidate.in_network else ranked.bound_s
    return replace(candidate, links_s=max(candidate.links_s, bound_s), time_s=max(candidate.time_s, bound_s))


@dataclass(frozen=True, slots=True)
class _Footing:
    """What start-up costs and kernels reach, on a cluster."""

    figures: Mapping[str, float]
    near_s: float
    """Latency of links inside a node, which simulated times have already."""
    far_s: float
    through_host: bool
    fullness: float

    @staticmethod
    def of(cluster: Cluster, where: Situation | None, found: Design, size: int) -> _Footing:
        gpu, network = (where.gpu, where.network) if where is not None else ("", "")
        return _Footing(
            load_calibration().figures(gpu, network),
            cluster.path(0, 1).latency_s,
            cluster.path(0, cluster.gpus - 1).latency_s,
            where is not None and where.shape == "none" and where.domain_ranks > 2,
            min(1.0, size / (_FULL_BYTES * found.ranks)),
        )

    def time_s(self, candidate: Candidate, links_s: float) -> float:
        """T of the head of this module."""
        f = self.figures
        inside = candidate.steps - candidate.steps_between
        base = f["launch_s"] + (candidate.more_messages + candidate.parts - 1) * f["message_s"]
        if candidate.steps_between:
            base += f["network_launch_s"]
        best = float("inf")
        for step, full, payload, between, net_full, carried in (
            (1.0, self.fullness * f["step_full_s"], f["ll_factor"], 1.0, self.fullness * f["network_full_s"], f["network_ll_factor"]),
            (f["step_ll128_factor"], 0.0, f["ll128_factor"], f["network_ll128_factor"], 0.0, f["network_ll128_share"]),
            (f["step_simple_factor"], 0.0, 1.0, f["network_simple_factor"], 0.0, 1.0),
        ):  # fmt: skip
            shares = (
                f["ring_share"] * payload * (f["pcie_factor"] if self.through_host else 1.0),
                f["network_share"] * carried,
            )
            soft = inside * max(0.0, f["step_s"] * step + full - self.near_s)
            soft += candidate.steps_between * max(0.0, f["network_step_s"] * between + net_full - self.far_s)
            best = min(best, base + soft + shared_links_s(candidate, links_s, shares))
        return best

    def from_model(self, candidate: Candidate) -> Candidate:
        """The candidate with the model's time, less the software in it, in place of simulated links."""
        links_s = max(0.0, candidate.time_s - candidate.steps * SOFTWARE_S)
        return replace(candidate, time_s=self.time_s(candidate, links_s))


def shared_links_s(candidate: Candidate, links_s: float, shares: tuple[float, float]) -> float:
    """Time of the links when kernels reach these shares of those inside nodes and of the network.

    links / s + b (1 / t - 1 / s): s the larger share, t the other, b how long links of its kind are busy. Where the two kinds take turns, and where one does nothing, that is what each
    takes at its share; where both work at once it is a little too long. It never grows as a link gets faster, which a share taken from whichever kind is busiest would.
    """
    kinds = [(share, busy) for share, busy in zip(shares, candidate.busy, strict=True) if busy.whole_s > 0]
    if not kinds:
        return links_s / (shares[1] if candidate.steps_between else shares[0])
    best = max(share for share, _ in kinds)
    return links_s / best + sum(busy.through_s(candidate.parts) * (1 / share - 1 / best) for share, busy in kinds)


@dataclass(frozen=True, slots=True)
class _Simulator:
    cluster: Cluster
    size_bytes: int
    footing: _Footing
    conditions: Conditions
    least_s: float
    """What no links' time can be below, which one that is read off must not be either."""
    ends: float
    """When to stop, by time.monotonic."""
    notes: list[str]

    @property
    def left_s(self) -> float:
        return self.ends - time.monotonic()

    def timed(self, candidate: Candidate, *, search: bool) -> Candidate:
        """The candidate with simulated links; with the model's, and a note, where that is not possible.

        search: in the number of slices that is fastest, from one up.
        """
        if not search:
            return self._once(replace(candidate, parts=min(candidate.parts, _FEW_SLICES)))[0]
        times: dict[int, Candidate] = {}
        work_s = 0.0  # of one slice, about
        for slices in _FITTED:
            if slices > 1 and (self.size_bytes // slices < LEAST_SLICE or self.left_s <= 0):
                break
            tried, took_s = self._once(replace(candidate, parts=slices))
            if tried.timed_by != "simulation":
                break
            times[slices], work_s = tried, took_s / slices
        if not times:
            return tried
        guess = self._in_more_slices(times)
        while True:
            best = min(times.values(), key=lambda one: one.time_s)
            if guess is not None and (guess.parts in times or guess.time_s >= best.time_s):
                guess = None
            wanted = [guess.parts] if guess is not None else [best.parts * 2, best.parts // 2]
            sensible = (n for n in wanted if 1 <= n <= min(_MOST_SLICES, self.size_bytes // LEAST_SLICE))
            slices = next((n for n in sensible if n not in times), 0)
            if not slices or self.left_s <= 0 or work_s * slices > _WORK_S:
                return guess or best
            tried, took_s = self._once(replace(candidate, parts=slices))
            if tried.timed_by != "simulation":
                return best
            times[slices], work_s = tried, took_s / slices

    def _once(self, candidate: Candidate) -> tuple[Candidate, float]:
        """(the candidate, simulated with the slices it has; seconds that this should take on a quiet machine, whatever it took)."""
        limits = Limits(time_s=max(self.left_s, 0.1))
        try:
            ran = simulate(
                candidate.bind(), self.cluster, size_bytes=self.size_bytes, record=False, limits=limits, conditions=self.conditions,
            )  # fmt: skip
        except (InputError, ValueError) as error:
            self.notes.append(f"{candidate.name} was not simulated: {error}")
            return self.footing.from_model(candidate), 0.0
        if ran.stopped:
            self.notes.append(f"{candidate.name} was not simulated to its end: {ran.stopped}")
            return self.footing.from_model(candidate), 0.0
        timed = replace(candidate, links_s=ran.time_s, timed_by="simulation")
        work_s = ran.messages_run * (_RUN_S + _WRITTEN_S * ran.folded) + candidate.steps * candidate.parts * _LOWERED_S
        return replace(timed, time_s=self.footing.time_s(timed, ran.time_s)), work_s

    def _in_more_slices(self, times: Mapping[int, Candidate]) -> Candidate | None:
        """The candidate in the best number of slices beyond those that were simulated, its links' time read off A + B / slices + C slices.

        A: the busiest link. B: filling and draining. C: what a slice waits for the one before. Three times give all three.
        """
        known = sorted(times)[-len(_FITTED) :]
        if len(known) < len(_FITTED):
            return None
        one, two, four = (times[slices].links_s or 0.0 for slices in known)
        first = known[0]
        each = max(0.0, ((one - two) / 2 - (two - four)) / (1.5 * first))
        fill = 2 * first * (one - two + each * first)
        rest = one - fill / first - each * first
        if fill <= 0 or rest <= 0:
            return None
        found = None
        slices = 2 * known[-1]
        while slices <= _MOST_SLICES and self.size_bytes // slices >= LEAST_SLICE:
            links_s = max(self.least_s, rest + fill / slices + each * slices)
            read = replace(times[known[-1]], parts=slices, links_s=links_s, timed_by="simulation, fitted")
            read = replace(read, time_s=self.footing.time_s(read, links_s))
            found = read if found is None or read.time_s < found.time_s else found
            slices *= 2
        return found


def _of_nccl(
    cluster: Cluster, where: Situation, found: Design, simulator: _Simulator, *, sharp: bool
) -> Iterator[Candidate]:
    """What NCCL (RCCL) can do, an algorithm each with its fastest protocol, and what it chooses, by prediction."""
    collective, size = found.collective, simulator.size_bytes
    moves = movements(collective, where)
    if not moves:
        return
    settings = read_settings({"NCCL_COLLNET_ENABLE": "1"} if sharp else {})
    try:
        own = predict(cluster, collective, [size], settings=settings)
    except InputError as error:
        simulator.notes.append(f"{where.library}'s algorithms are not shown: {error}")
        return
    simulator.notes.extend(own.notes)
    times = parts(moves_of(moves, where, np.array([float(size)])), simulator.footing.figures).total_s
    fastest: dict[str, int] = {}
    for place, move in enumerate(moves):
        if move.algorithm not in fastest or times[place] < times[fastest[move.algorithm]]:
            fastest[move.algorithm] = place
    for algorithm, place in fastest.items():
        move, time_s, channels = moves[place], float(times[place]), 0
        is_own = algorithm == own.algorithm[0]
        if is_own:
            move = next(m for m in moves if (m.algorithm, m.protocol) == (algorithm, own.protocol[0]))
            time_s, channels = float(own.time_s[0]), own.channels[0] or 0
        bound = _schedule_of_nccl(algorithm, collective, where)
        wire = max(
            move.intra_wire / (where.intra_bytes_per_s * move.links),
            move.inter_wire / where.network_bytes_per_s if move.inter_wire else 0.0,
        )
        footing = simulator.footing
        links_s = size * wire + move.intra_steps * footing.near_s + move.inter_steps * footing.far_s
        yield Candidate(
            f"{where.library} {algorithm} {move.protocol}" + (" (its choice)" if is_own and channels else ""), "nccl",
            None if bound is None else bound.schedule, () if bound is None else bound.sizes,
            int(move.intra_steps + move.inter_steps), 1, 0, time_s, steps_between=int(move.inter_steps), channels=channels,
            timed_by="prediction", links_s=links_s, in_network=algorithm in _IN_NETWORK,
        )  # fmt: skip
    if collective == "broadcast" and where.nvls and where.domains == 1:
        f = simulator.footing.figures
        bound = LIBRARY["multicast_broadcast"]().bind(where.ranks, root=_root(found))
        time_s = f["launch_s"] + f["nvls_step_s"] + size / (where.intra_bytes_per_s * f["nvls_share"])
        links_s = size / where.intra_bytes_per_s + simulator.footing.near_s
        yield Candidate(
            "multicast_broadcast", "library", bound.schedule, _sizes(bound), 1, 1, 1, time_s, links_s=links_s, timed_by="prediction", in_network=True,
        )  # fmt: skip


def _root(found: Design) -> int:
    named = (dict(candidate.sizes) for candidate in found.candidates)
    return next((sizes["root"] for sizes in named if "root" in sizes), 0)


def _sizes(bound: BoundSchedule) -> tuple[tuple[str, int], ...]:
    return (*bound.sizes, *((name, value) for name, value in bound.params if name == "root"))


def _schedule_of_nccl(algorithm: str, collective: str, where: Situation) -> BoundSchedule | None:
    """The library's schedule that an algorithm of NCCL stands for, where there is one."""
    if algorithm == "NVLS" and where.domains == 1 and f"nvls_{collective}" in LIBRARY:
        return LIBRARY[f"nvls_{collective}"]().bind(where.ranks)
    if algorithm == "CollNetChain" and collective == "all_reduce" and where.domains > 1:
        return LIBRARY["hierarchical_all_reduce_sharp"]().bind(where.domains, where.domain_ranks)
    if algorithm == "PAT" and f"pat_{collective}" in LIBRARY:
        return LIBRARY[f"pat_{collective}"]().bind(where.ranks)
    return None
