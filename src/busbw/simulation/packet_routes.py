"""Routes of packets as a graph of choices: what a switch may do with a packet for one destination.

A node is a vertex on the way to one destination; its choices are links, each with the node at its end. Flows that share
vertex and destination share nodes. Legend: F flows, N nodes, C choices, L links in use.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from busbw.errors import InputError
from busbw.hardware import Cluster, Fabric
from busbw.hardware.links import FloatArray, IntArray
from busbw.hardware.routing import Routes, d_mod_k, ecmp

__all__ = ["PacketRoutes", "packet_routes"]

_END = 0xFFFFFFFF
"""The node behind the last link, as the compiled module has it."""
_MOST_HOPS = 4096
"""As busbw.hardware.routing has it: so that a broken fabric ends."""


@dataclass(frozen=True, slots=True, eq=False)
class PacketRoutes:
    """Routes of flows, there and back, over links numbered anew in the order of the network's."""

    first: IntArray
    """(N + 1,) int64: where each node's choices begin."""
    link: IntArray
    """(C,) int64, index into link_ids."""
    node: IntArray
    """(C,) int64: node at the link's end, 2^32 - 1 at the destination."""
    forward: IntArray
    """(F,) int64: node where data begins; 2^32 - 1 where source and destination are one."""
    backward: IntArray
    """(F,) int64: node where what is answered begins."""
    link_ids: IntArray
    """(L,) int64: the network's number of each link in use."""
    bandwidth_bytes_per_s: FloatArray
    """(L,) float64."""
    latency_s: FloatArray
    """(L,) float64."""


def packet_routes(
    network: Cluster | Fabric, src: IntArray, dst: IntArray, *, fixed: str | None, flow: IntArray, seed: int = 0
) -> PacketRoutes:
    """Routes between endpoints of a fabric, or GPUs of a cluster, there and back. src, dst, flow: (F,).

    fixed: d-mod-k or ecmp, one path a flow, the same links that `busbw.hardware` gives; None: every choice of shortest
    paths. A flow whose source has several links out keeps to one of them, in turn by its place.
    Raises InputError where no way leads from one end to the other, and for endpoints that are not there.
    """
    # There and back in one go: what is answered to an endpoint takes the same ways as data to it.
    one, other, label = np.concatenate((src, dst)), np.concatenate((dst, src)), np.concatenate((flow, flow))
    try:
        ways = _ways(network, (one, other), fixed, label, seed)
    except ValueError as error:
        raise InputError(str(error)) from None
    graph = _Graph()
    begins = graph.add(network, ways, fixed is not None)
    forward, backward = begins[: len(src)], begins[len(src) :]
    first, link, node = graph.columns()
    link_ids, dense = _numbered(link)
    rate, latency = _rates(network, link_ids)
    return PacketRoutes(first, dense, node, forward, backward, link_ids, rate, latency)


def _rates(network: Cluster | Fabric, links: IntArray) -> tuple[FloatArray, FloatArray]:
    return network.rates_of(links) if isinstance(network, Cluster) else network.link_rates(links)


def _ways(
    network: Cluster | Fabric, ends: tuple[IntArray, IntArray], fixed: str | None, flow: IntArray, seed: int
) -> Routes:
    src, dst = ends
    if isinstance(network, Cluster):
        if fixed == "ecmp":
            return network.routes(src, dst, how="ecmp", flow=flow + (seed << 20))
        return network.routes(src, dst, how="d-mod-k")
    if fixed == "ecmp":
        return ecmp(network, src, dst, flow, seed=seed)
    return d_mod_k(network, src, dst)


class _Graph:
    """Collects nodes and choices; links by the network's numbers."""

    def __init__(self) -> None:
        self._counts: list[IntArray] = []
        self._links: list[IntArray] = []
        self._nodes: list[IntArray] = []
        self._size = 0

    def columns(self) -> tuple[IntArray, IntArray, IntArray]:
        """(first, link, node)."""
        nothing = [np.empty(0, np.int64)]
        counts = np.concatenate(self._counts or nothing)
        first = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        return first, np.concatenate(self._links or nothing), np.concatenate(self._nodes or nothing)

    def add(self, network: Cluster | Fabric, ways: Routes, fixed: bool) -> IntArray:
        """The node where each flow begins. ways: one route of each flow; unless fixed, its part in the fabric is all."""
        links, nowhere = ways.links, np.full(len(ways.links), _END, np.int64)
        fabric = network if isinstance(network, Fabric) else network.fabric if network.nics else None
        if fixed or fabric is None or not links.size:
            return self._chains(links, nowhere)
        base = 0 if isinstance(network, Fabric) else network.links - fabric.links
        hop = np.arange(links.shape[1])
        inside = links >= base
        crosses = np.asarray(inside.any(1), bool)
        begins = np.where(crosses, np.argmax(inside, 1), ways.lengths)
        ends = begins + inside.sum(1)
        # What follows the fabric is one chain a destination, shared by all that go there.
        behind = np.where((hop >= ends[:, None]) & crosses[:, None], links, -1)
        suffixes, which = np.unique(_packed(behind), axis=0, return_inverse=True)
        after = self._chains(suffixes, np.full(len(suffixes), _END, np.int64))
        starts, at = nowhere.copy(), np.flatnonzero(crosses)
        if len(at):
            vertex = fabric.link_ends(links[at, begins[at]] - base)[0]
            slot = fabric.link_ends(links[at, ends[at] - 1] - base)[1]
            # A destination is a slot and what follows it: the GPUs behind one NIC are several.
            pairs, goal = np.unique(slot * len(after) + which.reshape(-1)[at], return_inverse=True)
            goals = pairs // len(after), after[pairs % len(after)]
            starts[at] = self._tree((fabric, base), vertex, goal.reshape(-1), goals, at)
        return self._chains(np.where(hop < begins[:, None], links, -1), starts)

    def _chains(self, links: IntArray, after: IntArray) -> IntArray:
        """Nodes with one choice each, a row of links; `after` follows the last. The first node of each row."""
        lengths = (links >= 0).sum(1) if links.size else np.zeros(len(links), np.int64)
        total = int(lengths.sum())
        if not total:
            return after
        begins = self._size + np.cumsum(lengths) - lengths
        flat = links[links >= 0]
        following = self._size + np.arange(total, dtype=np.int64) + 1
        last = np.flatnonzero(lengths)
        following[begins[last] - self._size + lengths[last] - 1] = after[last]
        self._append(np.ones(total, np.int64), flat, following)
        return np.where(lengths > 0, begins, after)

    def _append(self, counts: IntArray, links: IntArray, nodes: IntArray) -> None:
        self._counts.append(counts)
        self._links.append(links)
        self._nodes.append(nodes)
        self._size += len(counts)

    def _tree(
        self,
        where: tuple[Fabric, int],
        vertex: IntArray,
        goal: IntArray,
        destinations: tuple[IntArray, IntArray],
        flow: IntArray,
    ) -> IntArray:
        """All shortest paths from vertices to goals; destinations: the slot of each goal and the node behind it."""
        fabric, base = where
        slot_of, after = destinations
        # By destination first, so that the nodes of one lie together.
        starts = goal * fabric.vertices + vertex
        frontier = _distinct(starts)
        keys: list[IntArray] = []
        counts: list[IntArray] = []
        links: list[IntArray] = []
        following: list[IntArray] = []
        while len(frontier):
            if len(keys) >= _MOST_HOPS:
                raise InputError(
                    f"a route of more than {_MOST_HOPS} links: the fabric does not lead to its destination"
                )
            to_goal, at = np.divmod(frontier, fabric.vertices)
            to = slot_of[to_goal]
            choices = fabric.choices(at, to)
            if (choices < 1).any():
                lost = int(np.flatnonzero(choices < 1)[0])
                raise InputError(
                    f"no way leads from {fabric.vertex_name(int(at[lost]))} to {fabric.vertex_name(int(to[lost]))}"
                )
            repeat = np.repeat(np.arange(len(frontier)), choices)
            number = np.arange(len(repeat)) - np.repeat(np.cumsum(choices) - choices, choices)
            link = fabric.choice(at[repeat], to[repeat], number)
            reached = fabric.link_ends(link)[1]
            there = reached == to[repeat]
            next_key = np.where(there, -1 - to_goal[repeat], to_goal[repeat] * fabric.vertices + reached)
            keys.append(frontier)
            counts.append(choices)
            links.append(link + base)
            following.append(next_key)
            frontier = _distinct(next_key[~there])
        key, count = np.concatenate(keys), np.concatenate(counts)
        # A vertex that ways of different lengths reach is there several times: the first stands for all.
        order = np.argsort(key, kind="stable")
        sorted_keys = key[order]
        kept = np.ones(len(key), bool)
        kept[1:] = sorted_keys[1:] != sorted_keys[:-1]
        order, sorted_keys = order[kept], sorted_keys[kept]
        # Choices in the order of their nodes.
        first, size = (np.cumsum(count) - count)[order], count[order]
        taken = np.repeat(first - (np.cumsum(size) - size), size) + np.arange(int(size.sum()))
        link, next_key = np.concatenate(links)[taken], np.concatenate(following)[taken]
        on = next_key >= 0
        node = np.empty(len(next_key), np.int64)
        node[~on] = after[-1 - next_key[~on]]
        node[on] = self._size + np.searchsorted(sorted_keys, next_key[on])
        base_node = self._size
        self._append(size, link, node)
        begin = base_node + np.searchsorted(sorted_keys, starts)
        several = size[begin - base_node]
        at = np.flatnonzero(several > 1)
        if len(at):  # a source with several links out: one node of its own
            first_choice = np.cumsum(size) - size
            pick = first_choice[begin[at] - base_node] + flow[at] % several[at]
            own = self._size + np.arange(len(at), dtype=np.int64)
            self._append(np.ones(len(at), np.int64), link[pick], node[pick])
            begin[at] = own
        return begin


def _distinct(keys: IntArray) -> IntArray:
    """Ascending, each once. Sorting is several times faster here than the hashing of numpy's `unique`."""
    ordered = np.sort(keys)
    return ordered[np.concatenate(([True], ordered[1:] != ordered[:-1]))] if len(ordered) else ordered


def _numbered(links: IntArray) -> tuple[IntArray, IntArray]:
    """Links in use, ascending, and the place of each of `links` among them."""
    if len(links) and int(links.max()) < 16 * len(links):  # a table of all is small
        used = np.zeros(int(links.max()) + 1, bool)
        used[links] = True
        return np.flatnonzero(used), (np.cumsum(used) - 1)[links]
    ids = _distinct(links)
    return ids, np.searchsorted(ids, links)


def _packed(links: IntArray) -> IntArray:
    """Rows with their links first and -1 after."""
    order = np.argsort(links < 0, axis=1, kind="stable")
    return np.take_along_axis(links, order, axis=1) if links.size else links


def as_uint32(column: IntArray) -> NDArray[np.uint32]:
    """A column as the compiled module takes it. Raises InputError where numbers do not fit."""
    if column.size and int(column.max()) > _END:
        raise InputError("more than 2^32 nodes or links: simulate fewer flows, or flows over fixed routes")
    return np.ascontiguousarray(column, np.uint32)
