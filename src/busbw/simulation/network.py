"""The links between ranks: of a cluster with its nodes, or of a bare fabric whose endpoints are the ranks.

Ways are computed for the pairs that a program uses. Legend: F pairs, C crossings of links by ways, L links in use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from busbw.hardware.cluster import Cluster
from busbw.hardware.fabrics import Fabric, FatTree
from busbw.hardware.fabrics.rail_optimised import RailOptimised
from busbw.hardware.links import FloatArray, IntArray
from busbw.hardware.routing import d_mod_k, ecmp, least_loaded, spray
from busbw.simulation import _flow
from busbw.simulation.program import Carried

__all__ = ["Network", "Ways", "picoseconds", "rate_units"]

RATE_UNITS_PER_BYTE = 1024
"""Of cpp/include/busbw/sim/time.hpp."""
_SPRAY_UNIT = 1 << 20
"""Parts into which a sprayed flow is cut where its paths have no common denominator below that."""


def picoseconds(time_s: FloatArray | float) -> IntArray:
    """Whole picoseconds nearest to times in seconds."""
    return np.rint(np.asarray(time_s, np.float64) * 1e12).astype(np.int64)


def rate_units(rate_bytes_per_s: FloatArray | float) -> IntArray:
    """Rates in the simulator's unit, 1/1024 byte per second."""
    return np.rint(np.asarray(rate_bytes_per_s, np.float64) * RATE_UNITS_PER_BYTE).astype(np.int64)


@dataclass(frozen=True, slots=True, eq=False)
class Ways:
    """The links of each pair, one after another."""

    begin: IntArray
    """(F + 1,) where each pair's crossings begin."""
    link: IntArray
    """(C,)."""
    share: IntArray
    """(C,) parts of share_unit of the flow that cross the link."""
    latency_ps: IntArray
    """(F,) from the first byte's start to its arrival."""
    share_unit: int = 1


@dataclass(frozen=True)
class Network:
    """Where ranks sit and how they reach one another. Rank r is GPU r of a cluster, endpoint r of a fabric."""

    place: Cluster | Fabric
    routing: str
    seed: int = 0
    """Of ECMP."""
    dead: frozenset[int] = frozenset()
    """Links that ways go round."""
    slow: Mapping[int, float] = field(default_factory=dict)
    """What part of its rate a link has, by link."""

    @classmethod
    def of(cls, place: Cluster | Fabric, routing: str | None = None, seed: int = 0) -> Network:
        """The network of a cluster or fabric; routing is the cluster's own if not given, D-mod-k on a fabric."""
        if routing is None:
            routing = place.routing if isinstance(place, Cluster) else "d-mod-k"
        if routing not in ("d-mod-k", "ecmp", "spray", "adaptive"):
            raise ValueError(f"routing {routing!r} is unknown; there is d-mod-k, ecmp, spray, adaptive")
        return cls(place, routing, seed)

    @property
    def ranks(self) -> int:
        """Ranks there is room for."""
        return self.place.gpus if isinstance(self.place, Cluster) else self.place.endpoints

    @property
    def links(self) -> int:
        """All links, used or not."""
        return self.place.links

    @cached_property
    def fabric(self) -> Fabric | None:
        """The network between NICs; None where there is none."""
        if isinstance(self.place, Cluster):
            return self.place.fabric if self.place.nics else None
        return self.place

    @cached_property
    def tree(self) -> FatTree | None:
        """The fabric where it is a tree."""
        return self.fabric if isinstance(self.fabric, FatTree) else None

    @property
    def first_fabric_link(self) -> int:
        """Links before it are inside nodes."""
        return self.place.links - self.fabric.links if self.fabric is not None else self.place.links

    def outside(self, src: IntArray, dst: IntArray) -> NDArray[np.bool_]:
        """(F,) which pairs of ranks have the network between them, rather than one NVLink domain."""
        if not isinstance(self.place, Cluster):
            return np.not_equal(src, dst)
        ranks = self.place.node.gpus * self.place.node.nvlink_domain_nodes
        return np.not_equal(src // ranks, dst // ranks)

    @property
    def _unit(self) -> int:
        """Parts of a whole flow."""
        return _SPRAY_UNIT if self.routing == "spray" else 1

    def rates_of(self, links: IntArray) -> tuple[FloatArray, FloatArray]:
        """Bandwidth in bytes per second and latency in seconds, (L,) each."""
        if isinstance(self.place, Cluster):
            rate, latency = self.place.rates_of(links)
        else:
            rate, latency = self.place.link_rates(links)
        rate = np.array(np.broadcast_to(rate, np.shape(links)), np.float64)
        for link, part in self.slow.items():
            rate[np.asarray(links) == link] *= part
        return rate, np.broadcast_to(latency, np.shape(links))

    def link_name(self, link: int) -> str:
        """A link for people."""
        if isinstance(self.place, Cluster):
            return self.place.link_name(link)
        one, other = self.place.link_ends(np.array([link]))
        return f"{self.place.vertex_name(int(one[0]))} -> {self.place.vertex_name(int(other[0]))}"

    def rank_name(self, rank: int) -> str:
        """A rank with its host and GPU."""
        if isinstance(self.place, Cluster):
            node, gpu = divmod(rank, self.place.node.gpus)
            return f"rank {rank} ({self.place.host(node)} gpu{gpu})"
        return f"rank {rank}"

    def ways(self, src: IntArray, dst: IntArray) -> Ways:
        """The ways of pairs of ranks. src, dst: (F,). A rank reaches itself over no link.

        Raises ValueError where no way leads.
        """
        src, dst = np.asarray(src, np.int64), np.asarray(dst, np.int64)
        if len(src) and (min(src.min(), dst.min()) < 0 or max(src.max(), dst.max()) >= self.ranks):
            raise ValueError(f"the program has ranks up to {max(src.max(), dst.max())}, the cluster {self.ranks}")
        if isinstance(self.place, Cluster):
            return self._cluster_ways(self.place, src, dst)
        if self.routing == "spray":
            return self._finish(len(src), *self._sprayed(self.place, src, dst, np.arange(len(src))))
        return self._finish(len(src), *_flat(self._fabric_links(self.place, src, dst)))

    def trees(self, poster: IntArray, peers: IntArray, kind: Carried) -> Ways:
        """The links of multicasts and sums between posters and their peers, each once. poster: (F,), peers: (F, k), -1 nobody.

        A sum's tree are the ways of the peers to the poster, merged; copies go such a tree backwards. In an NVLink domain the switch reads the
        poster's part from its GPU, and writes its copy there, too; across nodes what goes to all turns back before it reaches the poster.
        latency_ps is that of the farthest peer. Spray and adaptive routing split no tree: it is as by D-mod-k.
        Raises ValueError where no switch lies between them.
        """
        poster, peers = np.asarray(poster, np.int64), np.asarray(peers, np.int64)
        if self.routing in ("spray", "adaptive"):
            whole = self._unit
            tree = replace(self, routing="d-mod-k").trees(poster, peers, kind)
            return Ways(tree.begin, tree.link, tree.share * whole, tree.latency_ps, whole)
        row, column = np.nonzero(peers >= 0)
        inward = self.ways(peers[row, column], poster[row])
        hops = np.diff(inward.begin)
        if (hops < 2).any():
            at = int(row[np.flatnonzero(hops < 2)[0]])
            raise ValueError(
                f"{self.rank_name(int(poster[at]))} reaches a peer over a link of their own: no switch there adds or copies. "
                "Take an algorithm that does neither in the network."
            )
        pair = np.repeat(np.arange(len(row)), hops)
        place = np.arange(len(pair)) - inward.begin[pair]
        # The end of each way, from the last switch on: one link in a domain, from the last link of the fabric on outside.
        last = np.full(len(row), -1, np.int64)
        across = inward.link >= self.first_fabric_link
        np.maximum.at(last, pair[across], place[across])
        tail = place >= np.where(last >= 0, last, hops - 1)[pair]
        inner = tail & (last < 0)[pair]
        flow, link = row[pair], inward.link
        body, body_flow = link[~tail], flow[~tail]
        parts = {
            "peers up": (body_flow, body), "peers down": (body_flow, body ^ 1),
            "up": (flow[tail], link[tail] ^ 1), "down": (flow[tail], link[tail]),
            "own up": (flow[inner], link[inner] ^ 1), "own down": (flow[inner], link[inner]),
        }  # fmt: skip
        once = {name: np.unique(np.stack(part), axis=1) for name, part in parts.items()}
        wanted = {
            Carried.MULTICAST: ("up", "peers down", "own down"),
            Carried.SUM: ("peers up", "up", "down"),
        }.get(kind, ("peers up", "up", "down", "peers down", "own up", "own down"))
        flow, link = np.concatenate([once[name] for name in wanted], axis=1)
        order = np.argsort(flow, kind="stable")
        farthest = np.zeros(len(poster), np.int64)
        np.maximum.at(farthest, row, inward.latency_ps)
        begin = np.searchsorted(flow[order], np.arange(len(poster) + 1))
        return Ways(begin, link[order], np.ones(len(order), np.int64), farthest)

    def _fabric_links(self, fabric: Fabric, src: IntArray, dst: IntArray) -> IntArray:
        """(F, H) links of single-path routings, -1 after the last, round dead links where there are any."""
        at = self.first_fabric_link

        if self.routing == "adaptive":
            if len(src) > _MOST_ADAPTIVE:
                raise ValueError(
                    f"adaptive routing of {len(src)} pairs; at most {_MOST_ADAPTIVE} are placed. Take spray."
                )
            load = np.zeros(fabric.links)
            load[[link - at for link in self.dead if link >= at]] = np.inf
            links = least_loaded(fabric, src, dst, load).links
            return np.where(links >= 0, links + at, -1)

        def found(src: IntArray, dst: IntArray, attempt: int) -> IntArray:
            if isinstance(fabric, FatTree) and not attempt:
                return _padded(*_flow.tree_ways(*self.tree_arguments(fabric, src, dst)))
            if self.routing == "ecmp" or attempt:
                flow = np.full(len(src), attempt, np.int64)
                return ecmp(fabric, src, dst, flow, seed=self.seed).links
            return d_mod_k(fabric, src, dst).links

        links = found(src, dst, 0)
        dead = np.array(sorted(link - at for link in self.dead if link >= at), np.int64)
        if len(dead):
            for attempt in range(1, _MOST_ATTEMPTS + 1):
                lost = np.flatnonzero(np.isin(links, dead).any(-1))
                if not len(lost):
                    break
                again = found(src[lost], dst[lost], attempt)
                width = max(links.shape[1], again.shape[1])
                links = np.pad(links, ((0, 0), (0, width - links.shape[1])), constant_values=-1)
                links[lost] = np.pad(again, ((0, 0), (0, width - again.shape[1])), constant_values=-1)
            else:
                row = int(lost[0])
                raise ValueError(
                    f"no way leads from {self._endpoint_name(int(src[row]))} to {self._endpoint_name(int(dst[row]))} "
                    f"once {', '.join(self.link_name(link) for link in sorted(self.dead)[:4])} is down. "
                    "Give the fabric another path, or degrade the link instead of failing it."
                )
        return np.where(links >= 0, links + at, -1)

    def tree_arguments(self, tree: FatTree, src: IntArray, dst: IntArray) -> tuple[Any, ...]:
        """What the core's `tree_ways` takes for pairs of endpoints."""
        plain = not isinstance(tree, RailOptimised)
        src, dst = np.ascontiguousarray(src), np.ascontiguousarray(dst)
        slots = (src, dst) if plain else (tree.slot(src), tree.slot(dst))
        shape = list(tree.down), list(tree.up), list(tree.parallel)
        return (*shape, *slots, src, dst, self.seed, self.routing == "ecmp")

    def _endpoint_name(self, endpoint: int) -> str:
        if isinstance(self.place, Cluster):
            node, nic = divmod(endpoint, self.place.node.nics)
            return f"{self.place.host(node)} nic{nic}"
        return f"rank {endpoint}"

    def _sprayed(
        self, fabric: Fabric, src: IntArray, dst: IntArray, rows: IntArray
    ) -> tuple[IntArray, IntArray, IntArray, IntArray]:
        """Row, link, share in parts of _SPRAY_UNIT, hop."""
        if self.dead:
            raise ValueError("spray round links that are down is not simulated. Degrade them, or take ecmp or d-mod-k.")
        routes = spray(fabric, src, dst)
        share = np.maximum(1, np.rint(routes.fraction * _SPRAY_UNIT)).astype(np.int64)
        return rows[routes.flow], routes.link + self.first_fabric_link, share, routes.hop

    def _cluster_ways(self, cluster: Cluster, src: IntArray, dst: IntArray) -> Ways:
        node, graph = cluster.node, cluster.node.graph
        (node_a, gpu_a), (node_b, gpu_b) = np.divmod(src, node.gpus), np.divmod(dst, node.gpus)
        size, domain = len(graph.links), node.nvlink_domain_nodes
        outside = node_a // domain != node_b // domain
        inside = ~outside & (node_a != node_b)
        # Links inside nodes depend only on which GPUs of their nodes, so each kind of pair is asked for once.
        kind = (gpu_a * node.gpus + gpu_b) * 3 + np.where(outside, 2, np.where(inside, 1, 0))
        heads: list[tuple[IntArray, IntArray]] = []
        tails: list[tuple[IntArray, IntArray]] = []
        for each in np.unique(kind):
            rows = np.flatnonzero(kind == each)
            first = int(rows[0])
            a, b = int(src[first]), int(dst[first])
            links = cluster.routes(np.array([a]), np.array([b]), how="d-mod-k").links[0]
            links = links[links >= 0]
            inner = links[links < cluster.nodes * size]
            for link in inner:
                at_a = int(link) // size == int(node_a[first])
                base = node_a if at_a else node_b
                (heads if at_a else tails).append((rows, int(link) % size + base[rows] * size))
        parts: list[tuple[IntArray, IntArray, IntArray, IntArray]] = []
        unit = self._unit
        for place, (rows, link) in enumerate(heads):
            parts.append((rows, link, np.full(len(rows), unit), np.full(len(rows), place)))
        if outside.any():
            fabric, rows = cluster.fabric, np.flatnonzero(outside)
            rail = np.array([node.rail_of_gpu(gpu) for gpu in range(node.gpus)], np.int64)
            one, other = node_a * node.nics + rail[gpu_a], node_b * node.nics + rail[gpu_b]
            if self.routing == "spray":
                row, link, share, hop = self._sprayed(fabric, one[rows], other[rows], rows)
                parts.append((row, link, share, hop + _MANY_HOPS))
            else:
                row, link, share, hop = _flat(self._fabric_links(fabric, one[rows], other[rows]))
                parts.append((rows[row], link, share, hop + _MANY_HOPS))
        for place, (rows, link) in enumerate(tails):
            parts.append((rows, link, np.full(len(rows), unit), np.full(len(rows), 2 * _MANY_HOPS + place)))
        if not parts:
            nothing = np.empty(0, np.int64)
            return self._finish(len(src), nothing, nothing, nothing, nothing)
        row, link, share, hop = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
        return self._finish(len(src), row, link, share, hop)

    def _finish(self, pairs: int, row: IntArray, link: IntArray, share: IntArray, hop: IntArray) -> Ways:
        """Ordered by pair and hop. The latency is that of the links, for a sprayed flow of its longest path."""
        order = np.lexsort((hop, row))
        row, link, share, hop = row[order], link[order], share[order], hop[order]
        begin = np.searchsorted(row, np.arange(pairs + 1))
        latency = picoseconds(self.rates_of(link)[1]) if len(link) else np.empty(0, np.int64)
        if self.routing == "spray":
            unit = _SPRAY_UNIT
            first = np.flatnonzero(np.r_[True, (np.diff(row) != 0) | (np.diff(hop) != 0)]) if len(row) else row
            slowest = np.maximum.reduceat(latency, first) if len(first) else latency
            total = np.bincount(row[first], weights=slowest.astype(np.float64), minlength=pairs).astype(np.int64)
            return Ways(begin, link, share, total, unit)
        summed = np.concatenate(([0], np.cumsum(latency)))
        return Ways(begin, link, share, summed[begin[1:]] - summed[begin[:-1]])


def _padded(begin: IntArray, link: NDArray[np.int32]) -> IntArray:
    """(F, H) links of each way, -1 after the last."""
    lengths = np.diff(begin)
    out = np.full((len(lengths), int(lengths.max(initial=0))), -1, np.int64)
    out[np.arange(out.shape[1]) < lengths[:, None]] = link
    return out


_MANY_HOPS = 1 << 20
_MOST_ATTEMPTS = 64
"""Other hashes that are tried to go round dead links. A guess; a fabric with 2 live paths of n needs about n."""


_MOST_ADAPTIVE = 200_000
"""Pairs that adaptive routing places one by one: some 10 s. A guess at what a user waits."""


def _flat(links: IntArray) -> tuple[IntArray, Any, IntArray, IntArray]:
    """Row, link, share and hop of a padded matrix of links."""
    row, hop = np.nonzero(links >= 0)
    return row, links[row, hop], np.ones(len(row), np.int64), hop
