"""The links between ranks: of a cluster with its nodes, or of a bare fabric whose endpoints are the ranks.

Ways are computed for the pairs that a program uses. Legend: F pairs, C crossings of links by ways, L links in use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

__all__ = ["Network", "Ways", "merged", "picoseconds", "rate_units"]

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
    stripe: int | None = None
    """Of a GPU's NICs only this one; None: what leaves a node is cut evenly over all of its GPU's."""

    @classmethod
    def of(cls, place: Cluster | Fabric, routing: str | None = None, seed: int = 0) -> Network:
        """The network of a cluster or fabric; routing is the cluster's own if not given, D-mod-k on a fabric."""
        if routing is None:
            routing = place.routing if isinstance(place, Cluster) else "d-mod-k"
        if routing not in ("d-mod-k", "ecmp", "spray", "adaptive"):
            raise ValueError(f"routing {routing!r} is unknown; there is d-mod-k, ecmp, spray, adaptive")
        network = cls(place, routing, seed)
        _ = network.fabric  # so that nodes that do not fit are told before anything is laid out
        return network

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

    @cached_property
    def stripes(self) -> tuple[tuple[int, ...], ...]:
        """NICs of each GPU of a node that messages are cut over: as many each."""
        if not isinstance(self.place, Cluster) or not self.place.node.nics:
            return ()
        own = [self.place.node.nics_of_gpu(gpu) for gpu in range(self.place.node.gpus)]
        fewest = min(map(len, own))
        return tuple(nics[:fewest] if self.stripe is None else (nics[self.stripe],) for nics in own)

    @property
    def _stripe_count(self) -> int:
        return len(self.stripes[0]) if self.stripes else 1

    @property
    def _unit(self) -> int:
        """Parts of a whole flow that a crossing's share counts."""
        return (_SPRAY_UNIT if self.routing == "spray" else 1) * self._stripe_count

    def rates_of(self, links: IntArray) -> tuple[FloatArray, FloatArray]:
        """Bandwidth in bytes per second and latency in seconds, (L,) each."""
        if isinstance(self.place, Cluster):
            rate, latency = self.place.rates_of(links)
        else:
            rate, latency = self.place.link_rates(links)
        rate = np.array(np.broadcast_to(rate, np.shape(links)), np.float64)
        if self.slow:
            slow = np.array(sorted(self.slow), np.int64)
            part = np.array([self.slow[link] for link in slow.tolist()])
            at = np.searchsorted(slow, links).clip(max=len(slow) - 1)
            rate = np.where(slow[at] == links, rate * part[at], rate)
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
            tree = replace(self, routing="d-mod-k").trees(poster, peers, kind)
            whole = self._unit // tree.share_unit
            return Ways(tree.begin, tree.link, tree.share * whole, tree.latency_ps, self._unit)
        if (count := self._stripe_count) > 1:  # a tree for each NIC
            each = [replace(self, stripe=nic).trees(poster, peers, kind) for nic in range(count)]
            rows = np.concatenate([np.repeat(np.arange(len(poster)), np.diff(tree.begin)) for tree in each])
            order = np.argsort(rows, kind="stable")
            begin = np.searchsorted(rows[order], np.arange(len(poster) + 1))
            latency = np.max([tree.latency_ps for tree in each], axis=0)
            return Ways(
                begin,
                np.concatenate([tree.link for tree in each])[order],
                np.ones(len(order), np.int64),
                latency,
                count,
            )
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
        unit = self._unit
        parts: list[tuple[IntArray, ...]] = []

        def crossed(rows: IntArray, links: tuple[int, ...], nodes: IntArray, share: int, hop: int) -> None:
            """Links inside nodes, one after another."""
            for place, link in enumerate(links):
                whole = np.full(len(rows), share, np.int64)
                parts.append((rows, link + nodes[rows] * size, whole, np.full(len(rows), hop + place, np.int64)))

        for each in np.unique(kind):
            rows = np.flatnonzero(kind == each)
            first = int(rows[0])
            a, b = int(gpu_a[first]), int(gpu_b[first])
            if not outside[first]:
                links = cluster.routes(src[rows[:1]], dst[rows[:1]], how="d-mod-k").links[0]
                links = links[links >= 0]
                for place, link in enumerate(links.tolist()):
                    at_a = link // size == int(node_a[first])
                    crossed(rows, (link % size,), node_a if at_a else node_b, unit, place)
                continue
            share = unit // self._stripe_count
            for number, (here, there) in enumerate(zip(self._to_nics[a], self._to_nics[b], strict=True)):
                crossed(rows, here, node_a, share, number * _STRIPE)
                back = tuple(link ^ 1 for link in reversed(there))
                crossed(rows, back, node_b, share, number * _STRIPE + 2 * _MANY_HOPS)
        if outside.any():
            if not self.stripes:
                raise ValueError(f"cluster {cluster.name!r}: nodes without NICs reach no other NVLink domain")
            fabric, rows = cluster.fabric, np.flatnonzero(outside)
            for number in range(self._stripe_count):
                nics = np.array([own[number] for own in self.stripes], np.int64)
                one, other = node_a * node.nics + nics[gpu_a], node_b * node.nics + nics[gpu_b]
                if self.routing == "spray":
                    row, link, share_of, hop = self._sprayed(fabric, one[rows], other[rows], rows)
                else:
                    row, link, share_of, hop = _flat(self._fabric_links(fabric, one[rows], other[rows]))
                    row = rows[row]
                parts.append((row, link, share_of, hop + _MANY_HOPS + number * _STRIPE))
        if not parts:
            nothing = np.empty(0, np.int64)
            return self._finish(len(src), nothing, nothing, nothing, nothing)
        row, link, share_of, hop = (np.concatenate(column).astype(np.int64) for column in zip(*parts, strict=True))
        return self._finish(len(src), row, link, share_of, hop)

    @cached_property
    def _to_nics(self) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Links of a node from each GPU to each of its NICs."""
        node = self.place.node if isinstance(self.place, Cluster) else None
        if node is None:
            return ()
        graph = node.graph
        return tuple(
            tuple(graph.path(graph.vertex("gpu", gpu), graph.vertex("nic", nic)).links for nic in nics)
            for gpu, nics in enumerate(self.stripes)
        )

    def _finish(self, pairs: int, row: IntArray, link: IntArray, share: IntArray, hop: IntArray) -> Ways:
        """Ordered by pair, stripe and hop. The latency is that of the slowest stripe, for a sprayed flow of its longest path."""
        order = np.lexsort((hop, row))
        row, link, share, hop = row[order], link[order], share[order], hop[order]
        begin = np.searchsorted(row, np.arange(pairs + 1))
        latency = picoseconds(self.rates_of(link)[1]) if len(link) else np.empty(0, np.int64)
        if self.routing != "spray" and self._stripe_count == 1:
            summed = np.concatenate(([0], np.cumsum(latency)))
            return Ways(begin, link, share, summed[begin[1:]] - summed[begin[:-1]])
        total = np.zeros(pairs, np.int64)
        if len(row):
            first = _changes(row, hop)
            slowest, of = np.maximum.reduceat(latency, first), row[first]
            stripe = _changes(of, hop[first] // _STRIPE)
            np.maximum.at(total, of[stripe], np.add.reduceat(slowest, stripe))
        return Ways(begin, link, share, total, self._unit)


def merged(parts: Sequence[tuple[IntArray, Ways]], pairs: int) -> Ways:
    """The ways of all rows, of parts that each have some: (rows, ways)."""
    unit = max((part.share_unit for _, part in parts), default=1)
    latency = np.zeros(pairs, np.int64)
    for rows, part in parts:
        latency[rows] = part.latency_ps
    row = np.concatenate([np.repeat(rows, np.diff(part.begin)) for rows, part in parts])
    order = np.argsort(row, kind="stable")
    link = np.concatenate([part.link for _, part in parts])[order]
    share = np.concatenate([part.share * (unit // part.share_unit) for _, part in parts])[order]
    return Ways(np.searchsorted(row[order], np.arange(pairs + 1)), link, share, latency, unit)


def _changes(*columns: IntArray) -> IntArray:
    """Places where any of some columns differs from the one before."""
    differs = np.ones(len(columns[0]), bool)
    differs[1:] = np.any([np.diff(column) != 0 for column in columns], axis=0)
    return np.flatnonzero(differs)


def _padded(begin: IntArray, link: NDArray[np.int32]) -> IntArray:
    """(F, H) links of each way, -1 after the last."""
    lengths = np.diff(begin)
    out = np.full((len(lengths), int(lengths.max(initial=0))), -1, np.int64)
    out[np.arange(out.shape[1]) < lengths[:, None]] = link
    return out


_MANY_HOPS = 1 << 20
_STRIPE = 1 << 24
"""Between the hops of one stripe and those of the next."""
_MOST_ATTEMPTS = 64
"""Other hashes that are tried to go round dead links. A guess; a fabric with 2 live paths of n needs about n."""


_MOST_ADAPTIVE = 200_000
"""Pairs that adaptive routing places one by one: some 10 s. A guess at what a user waits."""


def _flat(links: IntArray) -> tuple[IntArray, Any, IntArray, IntArray]:
    """Row, link, share and hop of a padded matrix of links."""
    row, hop = np.nonzero(links >= 0)
    return row, links[row, hop], np.ones(len(row), np.int64), hop
