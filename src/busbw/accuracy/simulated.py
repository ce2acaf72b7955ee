"""A measured row simulated: NCCL's schedule on links that have the calibration's rates and latencies.

The calibration says what a GPU's links, a NIC and a step take; who waits for whom, and who shares what, the simulator finds from the schedule.
So the two differ where the closed form adds up what really overlaps, or overlaps what really adds up. What no simulated link knows comes from
the calibration as it is: launch, and what filling channels of rings and sends costs. Trees are cut into slices of the size with
which a pipeline would lose what the calibration says.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from busbw.accuracy.curves import movements_of, pick_of
from busbw.accuracy.measured import MeasuredRow, MeasuredTable, Refusal, curves_of
from busbw.accuracy.score import Score, ScoredRow, ScoredTable
from busbw.collectives import BoundSchedule, Tree
from busbw.collectives.algorithms import (
    LIBRARY,
    multi_ring_all_gather,
    multi_ring_all_reduce,
    multi_ring_reduce_scatter,
)
from busbw.errors import InputError
from busbw.hardware import Cluster, FabricPlan, Node, load_nodes
from busbw.hardware.blueprints import PcieRoot
from busbw.hardware.links import LinkTable, NodeGraph
from busbw.nccl import Algorithm, Choice, Protocol, function_of, schedule
from busbw.nccl.connect import double_binary_tree
from busbw.nccl.schedules import trees
from busbw.prediction import (
    FASTEST,
    Calibration,
    Movement,
    Parts,
    Situation,
    load_calibration,
    model_in,
    movements,
    moves_of,
    parts,
)
from busbw.prediction.movement import PROTOCOLS
from busbw.simulation import Carried, Channel, Instruction, Loop, Receive, Send, Stream, Table, TaskProgram, simulate

__all__ = ["cross_check", "score_simulated", "simulated_s"]

_FREE = 1e14
"""Bytes per second of a link that never limits."""
_MOST_SLICES = 128
_GPU, _NIC, _SWITCH, _PCIE = 0, 1, 3, 1  # places in hardware.links' VERTEX_KINDS and LINK_KINDS


def simulated_s(where: Situation, collective: str, move: Movement, size_bytes: int, found: Parts) -> float:
    """Seconds that a movement takes when its schedule is simulated. found: its parts by the closed form, one entry.

    Raises InputError for what has no schedule here, or is too large.
    """
    size = max(size_bytes, 1)
    steps_inside, steps_between = move.intra_steps, move.inter_steps
    launch, latency, network, fill = (
        float(column[0]) for column in (found.launch_s, found.latency_s, found.network_s, found.fill_s)
    )
    inside_s = (latency - network) / steps_inside if steps_inside else 0.0
    between_s = network / steps_between if steps_between else 0.0
    # Two limits near each other cost more than the slower one alone; the simulator has both, but not what their meeting costs.
    wire = float(found.total_s[0]) - launch - latency - fill
    meeting = wire / max(float(found.intra_s[0]), float(found.inter_s[0])) if wire > 0 else 1.0
    intra, inter = (float(column[0]) * meeting for column in (found.intra_s, found.inter_s))
    gpu_rate = size * move.intra_wire / intra if intra > 0 and move.intra_wire else _FREE
    nics = max(1, min(where.nics, where.domain_ranks))
    nic_rate = size * move.inter_wire / inter / nics if inter > 0 and move.inter_wire else _FREE
    extra, hop = launch + fill, (inside_s, between_s)
    what: BoundSchedule | TaskProgram | None = None
    if move.algorithm == "Tree":
        what, filled = _sliced(
            _trees_of(where, move, nics), where.ranks, size_bytes, (steps_inside + steps_between) * wire, fill
        )
        extra = launch + max(0.0, fill - filled)
    elif move.algorithm == "Ring" and collective in ("broadcast", "reduce"):
        what = _tree_program(_chains(where, nics), where.ranks, size_bytes, _MOST_SLICES, ways=(collective,))
    elif move.algorithm in ("NVLS", "NVLSTree") and collective == "all_reduce":
        # What the switch's own steps take has no hop to stand on. Reading the last slice's sum overlaps nothing.
        alone = wire * where.domain_ranks / (where.domain_ranks + 1)
        slices = max(1, min(_MOST_SLICES, round(alone / fill))) if fill > 0 else _MOST_SLICES
        extra, hop = launch + steps_inside * inside_s + max(0.0, fill - alone / slices), (0.0, between_s)
        what = _nvls_program(where, size_bytes, slices)
    elif move.algorithm == "P2P":
        hop = (inside_s, inside_s + between_s)  # each send has a step of its own, and the network on top
    cluster = _cluster(where, (gpu_rate, nic_rate), hop, nics, behind_port=move.algorithm == "Ring")
    if what is None:
        what = _schedule(where, collective, move, nics)
    return extra + simulate(what, cluster, size_bytes=size_bytes, record=False).time_s


def _sliced(
    trees: Sequence[Tree], ranks: int, size_bytes: int, filled_s: float, fill_s: float
) -> tuple[TaskProgram, float]:
    """Trees in as many slices as make their pipeline lose what the calibration says, and what it then loses.

    filled_s: what it loses in one slice, depth x wire time; q slices lose a q-th part of that.
    """
    slices = _MOST_SLICES if fill_s <= 0 else max(1, min(_MOST_SLICES, math.ceil(filled_s / fill_s)))
    return _tree_program(trees, ranks, size_bytes, slices), filled_s / slices


def _tree_program(
    trees: Sequence[Tree], ranks: int, size_bytes: int, slices: int, ways: Sequence[str] = ("reduce", "broadcast")
) -> TaskProgram:
    """Each tree a channel with its share of the vector: slices go up to the root and down again, as many on their way as there are hops.

    ways: only up, reduce, or only down, broadcast.
    """
    streams: list[Stream] = []
    channels: list[Channel] = []
    for number, tree in enumerate(trees):
        size = -(-size_bytes // (len(trees) * slices))
        up, down, turn = (f"{name}{number}" for name in ("up", "down", "turn"))
        made = _up_and_down(number, [tree], ranks, size)
        both = len(ways) > 1
        if "reduce" in ways:
            channels.append(made[0])
            turns = (Send(turn, 0),) if both else ()
            streams.append(Stream(up, (Loop(slices, (Receive(up), Send(up), *turns)),)))
        if "broadcast" in ways:
            channels.append(made[1])
            waits = (Receive(turn),) if both else ()
            streams.append(Stream(down, (Loop(slices, (*waits, Receive(down), Send(down))),)))
        if both:
            channels.append(made[2])
    return TaskProgram(ranks, tuple(streams), tuple(channels))


def _up_and_down(number: int, trees: Sequence[Tree], ranks: int, size_bytes: int) -> list[Channel]:
    """The channels of trees that have no rank in common: up to the roots, from up to down at the roots, down again."""
    parent = np.full(ranks, -1, np.int64)
    for tree in trees:
        parent = np.where(np.array(tree.parent) >= 0, tree.parent, parent)
    below = np.flatnonzero(parent >= 0)
    order = below[np.argsort(parent[below], kind="stable")]
    above = parent[order]
    first = np.searchsorted(above, above)
    fan = int(np.bincount(above, minlength=1).max(initial=1))
    children = np.full((ranks, fan), -1, np.int64)
    children[above, np.arange(len(order)) - first] = order
    everyone, roots = np.arange(ranks), np.array(sorted(tree.root for tree in trees))
    up, down, turn = (f"{name}{number}" for name in ("up", "down", "turn"))
    return [
        Channel(up, up, up, Table(everyone, parent[:, None]), np.full((ranks, 1), size_bytes)),
        Channel(down, down, down, Table(everyone, children), np.full((ranks, fan), size_bytes)),
        Channel(turn, up, down, Table(roots, roots[:, None]), token=True),
    ]


def _nvls_program(where: Situation, size_bytes: int, slices: int) -> TaskProgram:
    """Each GPU has the switch of its domain sum its part of the vector, slice by slice, and multicast the result.

    Between domains two trees a GPU lie between the two, each with half of its part.
    """
    ranks, inside = where.ranks, where.domain_ranks
    everyone = np.arange(ranks)
    others = everyone[:, None] // inside * inside + (everyone[:, None] + np.arange(1, inside)) % inside
    halves = 2 if where.domains > 1 else 1
    size = -(-size_bytes // (inside * halves * slices))
    peers = Table(everyone, others)
    sizes = np.full((ranks, 1), size)
    streams: list[Stream] = []
    channels: list[Channel] = []
    for half in range(halves):
        read, up, down, done = (f"{name}{half}" for name in ("read", "up", "down", "done"))
        total, copy, summed, turn = f"sum{half}", f"copy{half}", f"summed{half}", f"turn{half}"
        itself = Table(everyone, everyone[:, None])
        channels += [
            Channel(total, read, read, peers, sizes, kind=Carried.SUM),
            Channel(summed, read, up, itself, token=True),
            Channel(copy, down, done, peers, sizes, kind=Carried.MULTICAST),
        ]
        climb: tuple[Instruction, ...] = (Receive(summed), Send(turn, 0))
        descend: tuple[Instruction, ...] = (Receive(turn), Send(copy))
        if halves == 1:
            channels.append(Channel(turn, up, down, itself, token=True))
        else:
            channels += _up_and_down(half, _rail_trees(where, second=bool(half)), ranks, size)
            climb = (Receive(summed), Receive(up), Send(up), Send(turn, 0))
            descend = (Receive(turn), Receive(down), Send(down), Send(copy))
        streams += [
            Stream(read, (Loop(slices, (Send(total), Receive(total), Send(summed, 0))),)),
            Stream(up, (Loop(slices, climb),)),
            Stream(down, (Loop(slices, descend),)),
            Stream(done, (Loop(slices, (Receive(copy),)),)),
        ]
    return TaskProgram(ranks, tuple(streams), tuple(channels))


def _rail_trees(where: Situation, *, second: bool) -> list[Tree]:
    """Of each GPU of a domain and those in its place elsewhere, one of the two trees."""
    inside, found = where.domain_ranks, []
    places = [double_binary_tree(domain, where.domains)[second].up for domain in range(where.domains)]
    for gpu in range(inside):
        parent = [-1] * where.ranks
        for domain, up in enumerate(places):
            parent[domain * inside + gpu] = up * inside + gpu if up >= 0 else -1
        found.append(Tree(places.index(-1) * inside + gpu, parent))
    return found


def score_simulated(
    tables: Iterable[MeasuredTable], calibration: Calibration | Mapping[str, Calibration] | None = None
) -> Score:
    """Tables beside what simulating their rows gives, with the closed form's intervals moved along; as `score` takes calibrations.

    Rows of algorithms that have no schedule here are refused as unsupported.
    """
    given = calibration or load_calibration()
    found = []
    for table in tables:
        mine = given[table.campaign] if isinstance(given, Mapping) else given
        rows: list[ScoredRow] = []
        refused: list[Refusal] = []
        for row, simulated in _simulated_rows(table, mine):
            if isinstance(simulated, str):
                refused.append(Refusal(row.row, "unsupported", simulated))
            else:
                low, high = simulated[1] * simulated[0], simulated[2] * simulated[0]
                rows.append(ScoredRow(row.row, row.size_bytes, row.time_s, simulated[0], low, high, row.is_peak))
        found.append(ScoredTable(table, tuple(sorted(rows, key=lambda row: row.row)), (), (*table.refused, *refused)))
    return Score(tuple(found))


def cross_check(
    where: Situation,
    collective: str,
    sizes_bytes: Sequence[int],
    calibration: Calibration | None = None,
    *,
    protocols: Sequence[str] = PROTOCOLS,
) -> dict[tuple[str, str], list[float]]:
    """Simulated over closed-form time by algorithm and protocol, a ratio a size, of what can be simulated there."""
    figures = (calibration or load_calibration()).figures(where.gpu, where.network)
    ratios: dict[tuple[str, str], list[float]] = {}
    for move in (move for move in movements(collective, where) if move.protocol in protocols):
        found = parts(moves_of([move], where, np.array(sizes_bytes, np.float64)), figures)
        for place, size in enumerate(sizes_bytes):
            try:
                time_s = simulated_s(where, collective, move, size, _entry(found, place))
            except InputError:
                break
            ratio = time_s / float(found.total_s[place])
            ratios.setdefault((move.algorithm, move.protocol), []).append(ratio)
    return ratios


def _entry(found: Parts, place: int) -> Parts:
    return Parts(**{column.name: getattr(found, column.name)[[place]] for column in fields(Parts)})


def _simulated_rows(
    table: MeasuredTable, calibration: Calibration
) -> Iterator[tuple[MeasuredRow, tuple[float, float, float] | str]]:
    """Each row with the seconds that its simulation takes and the interval's factors, or the reason why there are none."""
    for rows in curves_of(table.rows):
        where, collective = rows[0].where, rows[0].collective
        moves = movements_of(rows[0])
        if not moves or where.ranks < 2:
            yield from ((row, "one rank" if moves else f"{collective} has no time model") for row in rows)
            continue
        sizes = np.array([row.size_bytes for row in rows], np.float64)
        block, figures = moves_of(moves, where, sizes), calibration.figures(where.gpu, where.network)
        pick = pick_of(where, moves, collective, sizes)
        fastest = parts(block, figures).total_s.reshape(len(sizes), len(moves)).argmin(axis=1)
        taken = np.where(pick == FASTEST, fastest, pick)
        found = parts(block.at(np.arange(len(sizes)) * len(moves) + taken), figures)
        low, high = calibration.factors(where, found, where.library == "NCCL")
        for place, row in enumerate(rows):
            one = _entry(found, place)
            try:
                time_s = simulated_s(where, collective, moves[int(taken[place])], row.size_bytes, one)
            except InputError as error:
                yield row, str(error)
            else:
                yield row, (time_s, float(low[place]), float(high[place]))


@lru_cache(maxsize=64)
def _node(ranks: int, nics: int, gpu_rate: float, step_s: float, behind_port: bool) -> Node:
    """A domain: GPUs round one switch; NICs at that switch, so that what leaves takes a GPU's port, too, or else at their GPUs."""
    like = next(iter(load_nodes().values()))
    own = ranks + nics
    kinds = [_GPU] * ranks + [_NIC] * nics + [_SWITCH]
    numbers = [*range(ranks), *range(nics), 0]
    rows: list[tuple[int, int, float, float, int]] = []
    for gpu in range(ranks):
        rows += [(gpu, own, gpu_rate, step_s / 2, _PCIE), (own, gpu, gpu_rate, step_s / 2, _PCIE)]
    for nic in range(nics):
        for end in [own] if behind_port else [gpu for gpu in range(ranks) if gpu * nics // ranks == nic]:
            rows += [(end, ranks + nic, _FREE, 0.0, _PCIE), (ranks + nic, end, _FREE, 0.0, _PCIE)]
    graph = NodeGraph(np.array(kinds, np.int64), np.array(numbers, np.int64), LinkTable.of(rows))
    roots = tuple(
        PcieRoot(0, tuple(gpu for gpu in range(ranks) if gpu * nics // ranks == nic), (nic,), 6, 16)
        for nic in range(nics)
    )
    return replace(
        like, name="domain", title="an NVLink domain", gpus=ranks, pcie=roots, nvswitch=None, nvswitches=0, nvlink_domain_nodes=1,
        nvlink_mesh=(), read_graph=graph,
    )  # fmt: skip


def _cluster(
    where: Situation, rates: tuple[float, float], steps_s: tuple[float, float], nics: int, *, behind_port: bool
) -> Cluster:
    """The situation's domains on one switch that blocks nothing; rates of a GPU's port and of a NIC, steps inside and between.

    A step between domains takes the switch; behind ports the links of two GPUs as well.
    """
    node = _node(where.domain_ranks, nics, rates[0], steps_s[0], behind_port)
    hop = max(0.0, steps_s[1] - (steps_s[0] if behind_port else 0.0)) / 2
    plan = FabricPlan(
        "single-switch", switch_rate_bytes_per_s=rates[1], nic_latency_s=0.0, switch_latency_s=hop, switch_ports=1 << 20
    )
    return Cluster("situation", replace(node, nic_rate_bytes_per_s=rates[1]), where.domains, plan)


@lru_cache(maxsize=64)
def _schedule(where: Situation, collective: str, move: Movement, nics: int) -> BoundSchedule:
    """What the movement runs: NCCL's own rings and trees where its search is known here, else rings and trees that start at each NIC in turn."""
    function, ranks = function_of(collective), where.ranks
    if move.algorithm == "P2P":
        return LIBRARY[_P2P[collective]]().bind(ranks)
    if move.algorithm == "AllPairs":
        return LIBRARY["two_shot_all_reduce"]().bind(ranks)
    model = model_in(where)
    if model is not None and function is not None and move.algorithm in Algorithm.__members__:
        channels = model.inputs.channels
        choice = Choice(function, 0, Algorithm[move.algorithm], Protocol[move.protocol], channels, 0, 0.0)
        return schedule(choice, model)
    if move.algorithm == "Ring":
        made = _RINGS.get(collective)
        if made is not None:
            return made(_orders(where, nics)).bind()
    raise InputError(f"{move.algorithm} of {collective} has no schedule here")


_P2P = {
    "all_to_all": "direct_all_to_all",
    "send_recv": "ring_send_recv",
    "gather": "direct_gather",
    "scatter": "direct_scatter",
}
_RINGS = {
    "all_reduce": multi_ring_all_reduce,
    "all_gather": multi_ring_all_gather,
    "reduce_scatter": multi_ring_reduce_scatter,
}


def _trees_of(where: Situation, move: Movement, nics: int) -> list[Tree]:
    model = model_in(where)
    return trees(model, model.inputs.channels) if model is not None else _trees(where, nics)


def _orders(where: Situation, nics: int) -> list[list[int]]:
    """A ring for each NIC: through domain after domain, leaving each by that NIC's GPU."""
    inside = where.domain_ranks
    starts = range(0, inside, max(1, inside // nics)) if where.domains > 1 else range(1)
    return [
        [domain * inside + (start + place) % inside for domain in range(where.domains) for place in range(inside)]
        for start in starts
    ]


def _chains(where: Situation, nics: int) -> list[Tree]:
    """The rings without the link that closes them, from rank 0's domain on."""
    found = []
    for order in _orders(where, nics):
        parent = [-1] * where.ranks
        for above, rank in pairwise(order):
            parent[rank] = above
        found.append(Tree(order[0], parent))
    return found


def _trees(where: Situation, nics: int) -> list[Tree]:
    """Two trees over domains for each NIC; in a domain a chain from that NIC's GPU on."""
    inside, found = where.domain_ranks, []
    for start in range(0, inside, max(1, inside // nics)):
        chain = [(start + place) % inside for place in range(inside)]
        for second in (False, True):
            parent, root = [-1] * where.ranks, 0
            for domain in range(where.domains):
                at = [domain * inside + gpu for gpu in chain]
                for above, below in pairwise(at):
                    parent[below] = above
                up = double_binary_tree(domain, where.domains)[second].up
                if up == -1:
                    root = at[0]
                else:
                    parent[at[0]] = up * inside + chain[0]
            found.append(Tree(root, parent))
    return found
