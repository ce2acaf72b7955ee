"""Symmetries of a network that a program keeps: ranks that they map onto one another do the same at the same time.

A tree's nodes are numbered in digits: place below a leaf, leaf of a pod, pod. Turning one digit of all nodes by one maps
the tree onto itself, and D-mod-k ways onto D-mod-k ways, if the digit lies whole in or outside every subtree number and
every residue that picks a port: on the way to slot j, the link between levels l-1 and l is told by the subtree of level
l-1 and by j mod (w1 ... wl pl) (see hardware/fabrics/fat_tree.py). Such turns commute and move every rank, so a run of
one rank of each orbit, with each link class carrying what its links carry, is the run of all.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from busbw.hardware.cluster import Cluster
from busbw.hardware.fabrics.rail_optimised import RailOptimised
from busbw.hardware.links import IntArray
from busbw.simulation.network import Network
from busbw.simulation.peers import Table
from busbw.simulation.program import Carried, Channel, TaskProgram

__all__ = ["Digit", "Orbits", "orbits_of"]


@dataclass(frozen=True, slots=True)
class Digit:
    """One digit of rank numbers, and where it stands in the numbers of tree slots."""

    rank_stride: int
    slot_stride: int
    size: int


@dataclass(frozen=True, slots=True, eq=False)
class NodeTurn:
    """What turning the GPUs of all nodes by one, each with its NIC, does to the links inside a node."""

    representative: IntArray
    """(links of a node,) one link of each that the turn maps onto one another."""
    size: IntArray
    """(links of a node,) how many they are."""


@dataclass(frozen=True)
class Orbits:
    """Ranks and links by what the kept turns map onto one another. Without digits everything stands for itself."""

    network: Network
    digits: tuple[Digit, ...]
    node_turn: NodeTurn | None = None
    """Of the digit that numbers GPUs inside nodes, where that one turns."""
    cycle: tuple[int, ...] = ()
    """GPUs of a node that turn among themselves, each with its rail, while the others stay: what a fault on some leaves."""

    @property
    def trivial(self) -> bool:
        """Whether every rank stands for itself alone."""
        return not self.digits and not self.cycle

    @property
    def order(self) -> int:
        """Ranks that each rank stands for where digits turn, which moves all."""
        return math.prod(digit.size for digit in self.digits)

    @property
    def unit(self) -> int:
        """Into how many parts a flow is to be cut, so that what a link of a class carries of it is a whole number."""
        return max(1, len(self.cycle))

    def flows(self, senders: IntArray) -> IntArray:
        """How many flows one of each sender stands for."""
        if not self.cycle:
            return np.full(len(senders), self.order, np.int64)
        return np.where(np.isin(np.asarray(senders) % self._gpus, self.cycle), len(self.cycle), 1)

    @property
    def _gpus(self) -> int:
        return self.network.place.node.gpus if isinstance(self.network.place, Cluster) else 1

    def cycle_ranks(self) -> IntArray:
        """Ranks whose GPUs turn among themselves."""
        ranks = np.arange(self.network.ranks, dtype=np.int64)
        return ranks[np.isin(ranks % self._gpus, self.cycle)]

    def representatives(self) -> IntArray:
        """One rank of each orbit, ascending: the one whose turned digits are 0."""
        ranks = np.arange(self.network.ranks, dtype=np.int64)
        for digit in self.digits:
            ranks = ranks[ranks // digit.rank_stride % digit.size == 0]
        return ranks[~np.isin(ranks % self._gpus, self.cycle[1:])] if self.cycle else ranks

    def canonical(self, ranks: IntArray) -> IntArray:
        """The representatives of ranks."""
        return self.aligned(ranks, ranks)

    def aligned(self, by: IntArray, ranks: IntArray) -> IntArray:
        """Where ranks come to lie when everything is turned so that `by` becomes a representative."""
        out = np.array(np.broadcast_to(ranks, np.broadcast_shapes(np.shape(by), np.shape(ranks))), np.int64)
        for digit in self.digits:
            stride = digit.rank_stride
            own = out // stride % digit.size
            out += ((own - np.asarray(by) // stride % digit.size) % digit.size - own) * stride
        if self.cycle:
            place = np.full(self._gpus, -1, np.int64)
            place[list(self.cycle)] = np.arange(len(self.cycle))
            turn, own = place[np.asarray(by) % self._gpus], place[out % self._gpus]
            moved = np.array(self.cycle)[(own - turn) % len(self.cycle)]
            out = np.where((own >= 0) & (turn >= 0), out // self._gpus * self._gpus + moved, out)
        return out

    def links(self, link: IntArray) -> tuple[IntArray, IntArray]:
        """The representative of each link, and how many links it stands for."""
        link = np.asarray(link, np.int64)
        if self.trivial:
            return link, np.ones(len(link), np.int64)
        first = self.network.first_fabric_link
        out, size = link.copy(), np.full(len(link), self.order, np.int64)
        inner = link < first
        if inner.any() and isinstance(self.network.place, Cluster):
            per_node = len(self.network.place.node.graph.links)
            node, local = np.divmod(link[inner], per_node)
            if self.node_turn is not None:
                size[inner] = self.order // (1 if self.cycle else self._gpus) * self.node_turn.size[local]
                local = self.node_turn.representative[local]
            turned = self.canonical(node * self._gpus) // self._gpus if self.digits else node
            out[inner] = turned * per_node + local
        if not inner.all():
            out[~inner], size[~inner] = self._tree_links(link[~inner] - first)
            out[~inner] += first
        return out, size

    def _tree_links(self, link: IntArray) -> tuple[IntArray, IntArray]:
        tree = self.network.tree
        assert tree is not None  # digits come of trees alone
        subtree, places, first_cable = _levels(tree.down, tree.up, tree.parallel)
        cable, size = link // 2, np.ones(len(link), np.int64)
        level = np.searchsorted(first_cable, cable, side="right") - 1
        ways = np.array([w * p for w, p in zip(tree.up, tree.parallel, strict=True)], np.int64)[level]
        index, way = np.divmod(cable - first_cable[level], ways)
        below, place = np.divmod(index, places[level])
        slot, residue, modulus = below * subtree[level], place + places[level] * way, places[level] * ways
        for digit in self.digits:
            within = digit.slot_stride % subtree[level] == 0
            slot = np.where(within, slot - slot // digit.slot_stride % digit.size * digit.slot_stride, slot)
            size *= np.where(within, digit.size, 1)
            if self.network.routing == "d-mod-k":
                part = np.minimum(modulus // digit.slot_stride, digit.size)
                turned = part > 1
                part = np.maximum(part, 1)
                residue = np.where(turned, residue - residue // digit.slot_stride % part * digit.slot_stride, residue)
                size *= np.where(turned, part, 1)
        if self.cycle:
            stride = tree.down[0]  # of rails, whose leaves lie side by side
            rail = slot // stride % self._gpus
            moves = (stride % subtree[level] == 0) & np.isin(rail, self.cycle)
            slot = np.where(moves, slot + (self.cycle[0] - rail) * stride, slot)
            size = np.where(moves, size * len(self.cycle), size)
            rail = residue // stride % self._gpus
            moves = (modulus % (stride * self._gpus) == 0) & np.isin(rail, self.cycle)
            residue = np.where(moves, residue + (self.cycle[0] - rail) * stride, residue)
            size = np.where(moves, size * len(self.cycle), size)
        way, place = np.divmod(residue, places[level])
        index = slot // subtree[level] * places[level] + place
        return 2 * (first_cable[level] + index * ways + way) + link % 2, size


def orbits_of(network: Network, program: TaskProgram, faulty: frozenset[int] | None = frozenset()) -> Orbits:
    """The orbits under all turns of digits that network and program keep.

    faulty: GPUs of nodes, by place, that conditions touch anywhere; then only the others turn among themselves. None:
    conditions touch everything.
    """
    nothing = Orbits(network, ())
    if network.tree is None or network.routing not in ("d-mod-k", "spray") or network.dead or faulty is None:
        return nothing
    if program.ranks != network.ranks:
        return nothing
    found = _digits(network)
    if faulty:
        return _orbits_of_rest(network, program, faulty)
    turn = _node_turn(network)
    digits = [digit for digit in found if digit.size > 1 and _kept_by_tree(network, digit)]
    kept = [digit for digit in digits if _kept_by_program(program, _turned(program.ranks, digit))]
    if turn is not None:  # even where the last leaves are not full: all rails lack the same nodes
        own = turn[0]
        if _kept_by_tree(network, own) and _kept_by_program(program, _turned(program.ranks, own)):
            return Orbits(network, (*kept, own), turn[1])
    return Orbits(network, tuple(kept))


def _orbits_of_rest(network: Network, program: TaskProgram, faulty: frozenset[int]) -> Orbits:
    """The orbits where GPUs that nothing is wrong with anywhere turn among themselves, each with its rail's leaves."""
    place, tree, nothing = network.place, network.tree, Orbits(network, ())
    if (
        not isinstance(place, Cluster)
        or not isinstance(tree, RailOptimised)
        or tree.levels < 2
        or network.routing != "d-mod-k"
    ):
        return nothing
    gpus = place.node.gpus
    cycle = tuple(gpu for gpu in range(gpus) if gpu not in faulty)
    turn = _node_turn(network, cycle)
    _, places, _ = _levels(tree.down, tree.up, tree.parallel)
    ports = [int(places[level]) * tree.up[level] * tree.parallel[level] for level in range(len(tree.down))]
    leaf = tree.down[0]
    apart = all(leaf % modulus == 0 or modulus % (leaf * gpus) == 0 for modulus in ports)
    messages = all(channel.kind is Carried.MESSAGE for channel in program.channels)
    if len(cycle) < 2 or turn is None or not apart or not messages:
        return nothing
    onto = np.arange(gpus)
    onto[list(cycle)] = [*cycle[1:], cycle[0]]
    ranks = np.arange(program.ranks, dtype=np.int64)
    moved = ranks // gpus * gpus + onto[ranks % gpus]
    return Orbits(network, (), turn[1], cycle) if _kept_by_program(program, moved) else nothing


def _node_turn(network: Network, cycle: tuple[int, ...] = ()) -> tuple[Digit, NodeTurn] | None:
    """The digit of GPUs inside nodes, where every GPU has a NIC of its own and all (or those of a cycle) are linked alike.

    None where they are not.
    """
    place, tree = network.place, network.tree
    if not isinstance(place, Cluster) or tree is None or place.node.gpus != place.node.nics or place.node.gpus < 2:
        return None
    node = place.node
    gpus, rails = node.gpus, [node.rail_of_gpu(gpu) for gpu in range(node.gpus)]
    if rails != list(range(gpus)):
        return None
    table = node.graph.links
    turned: dict[int, int] = {}
    here, other = np.arange(gpus), place.nodes - 1
    if other == 0 or other // node.nvlink_domain_nodes == 0:
        other = 0
    src = np.concatenate([np.repeat(here, gpus), here, here + other * gpus])
    dst = np.concatenate([np.tile(here, gpus), here + other * gpus, here])
    routes = place.routes(src, dst, how="d-mod-k").links
    row = {(int(a), int(b)): links[links >= 0] for a, b, links in zip(src, dst, routes, strict=True)}

    cycle = cycle or tuple(range(gpus))
    onto = {gpu: cycle[(at + 1) % len(cycle)] for at, gpu in enumerate(cycle)}

    def next_one(rank: int) -> int:
        return rank // gpus * gpus + onto.get(rank % gpus, rank % gpus)

    for (a, b), links in row.items():
        images = row[next_one(a), next_one(b)]
        if len(images) != len(links):
            return None
        for link, image in zip(links.tolist(), images.tolist(), strict=True):
            if link >= network.first_fabric_link:
                continue
            local, other_one = link % len(table), image % len(table)
            alike = table.bandwidth_bytes_per_s[local] == table.bandwidth_bytes_per_s[other_one]
            alike = alike and table.latency_s[local] == table.latency_s[other_one]
            if turned.setdefault(local, other_one) != other_one or not alike:
                return None
    if len(set(turned.values())) != len(turned):
        return None
    representative, size = np.arange(len(table)), np.ones(len(table), np.int64)
    for link in turned:
        orbit = [link]
        while (image := turned[orbit[-1]]) != link:
            orbit.append(image)
        representative[orbit], size[orbit] = min(orbit), len(orbit)
    railed = isinstance(tree, RailOptimised) and tree.levels > 1
    return Digit(1, tree.down[0] if railed else 1, gpus), NodeTurn(representative, size)


def _levels(
    down: tuple[int, ...], up: tuple[int, ...], parallel: tuple[int, ...]
) -> tuple[IntArray, IntArray, IntArray]:
    """Slots below a vertex, vertices that top the same slots, first cable upwards: by level from 0."""
    levels = len(down)
    subtree = np.array([math.prod(down[:level]) for level in range(levels + 1)], np.int64)
    places = np.array([math.prod(up[:level]) for level in range(levels + 1)], np.int64)
    cables = [
        int(subtree[-1] // subtree[level] * places[level]) * up[level] * parallel[level] for level in range(levels)
    ]
    return subtree, places, np.concatenate(([0], np.cumsum(cables)))


def _digits(network: Network) -> list[Digit]:
    """The digits of node numbers that tree, rails and NVLink domains make; none where the last tree is not full."""
    tree = network.tree
    assert tree is not None
    place = network.place
    nodes, nics = (place.nodes, place.node.nics) if isinstance(place, Cluster) else (place.endpoints, 1)
    domain, gpus = (place.node.nvlink_domain_nodes, place.node.gpus) if isinstance(place, Cluster) else (1, 1)
    subtree = [math.prod(tree.down[:level]) for level in range(1, len(tree.down))]
    railed = isinstance(tree, RailOptimised) and tree.levels > 1
    if railed and not isinstance(place, Cluster):
        return []  # endpoints of one node are no ranks of one place
    if any(below % nics for below in subtree[1 if railed else 0 :]):
        return []
    # Nodes below a leaf: all its slots where rails have leaves of their own, else its slots over NICs a node.
    bounds = [below if railed and level == 0 else below // nics for level, below in enumerate(subtree)]
    bounds = sorted({bound for bound in [*bounds, domain] if 1 < bound < nodes})
    digits, stride = [], 1
    for bound in [*bounds, nodes]:
        if bound % stride:
            return []
        leaf = tree.down[0]
        slots = stride if railed and stride < leaf else stride * nics
        digits.append(Digit(stride * gpus, slots, bound // stride))
        stride = bound
    return digits


def _kept_by_tree(network: Network, digit: Digit) -> bool:
    tree = network.tree
    assert tree is not None
    low, high = digit.slot_stride, digit.slot_stride * digit.size
    subtree, places, _ = _levels(tree.down, tree.up, tree.parallel)
    for level in range(len(tree.down)):
        below = int(subtree[level])
        if level and low % below and below % high:
            return False
        modulus = int(places[level]) * tree.up[level] * tree.parallel[level]
        apart = low % modulus == 0 or modulus % high == 0 or (modulus % low == 0 and high % modulus == 0)
        if network.routing == "d-mod-k" and not apart:
            return False
    return True


def _turned(ranks: int, digit: Digit) -> IntArray:
    """(N,) where each rank goes when a digit turns by one."""
    every, stride = np.arange(ranks, dtype=np.int64), digit.rank_stride
    own = every // stride % digit.size
    return np.asarray(every + ((own + 1) % digit.size - own) * stride, np.int64)


def _kept_by_program(program: TaskProgram, moved: IntArray) -> bool:
    for stream in program.streams:
        if stream.start_s is not None and len(np.unique(stream.start_s)) > 1:
            return False
        if stream.ranks is not None and not np.array_equal(np.sort(moved[stream.ranks]), stream.ranks):
            return False
    return all(channel.peers.survives(moved) and _sizes_kept(program, channel, moved) for channel in program.channels)


def _sizes_kept(program: TaskProgram, channel: Channel, moved: IntArray) -> bool:
    """Whether messages that leave their size open have the same size where renumbering takes them."""
    sizes = channel.size_bytes
    if sizes is None or not sizes.size or not np.ptp(sizes):
        return True
    if isinstance(channel.peers, Table):
        senders, to = channel.peers.ranks, channel.peers.receivers
    else:
        runs = next(stream.ranks for stream in program.streams if stream.name == channel.source)
        senders = runs if runs is not None else np.arange(program.ranks)
        to = channel.peers.of(senders)
    if len(sizes) != len(senders):
        return False
    if sizes.shape[1] != to.shape[1]:  # of a tree: one for all its peers
        order = np.argsort(moved[senders])
        return np.array_equal(sizes[order], sizes)
    row, column = np.nonzero(to >= 0)
    one, other, size = senders[row], to[row, column], sizes[row, column]
    key, image = one * program.ranks + other, moved[one] * program.ranks + moved[other]
    return np.array_equal(size[np.argsort(key)], size[np.argsort(image)])
