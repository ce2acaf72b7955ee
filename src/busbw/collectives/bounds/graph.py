"""CapacityGraph: what bounds are computed on: GPUs, switches, and what each link between them carries, exactly."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import gcd, lcm

import numpy as np
from numpy.typing import NDArray

from busbw.hardware import VERTEX_KINDS, Cluster, Node
from busbw.hardware.links import GPU, NIC, NVLINK, IntArray

__all__ = ["Capacity", "CapacityGraph"]

Capacity = int | float | Fraction
Int32Array = NDArray[np.int32]
_MOST_UNITS = 1 << 61
"""Of all capacities together: what maximum flows in 64 bits add up (`busbw/schedule/throughput_bound.hpp`)."""
_FINEST = 1 << 40
"""Units of the largest capacity, where they have to be rounded: a part in 10^12, finer than any rate is known, and 2 million such links add up."""


@dataclass(frozen=True, slots=True, eq=False)
class CapacityGraph:
    """A directed graph. Vertices 0 to gpus - 1 are GPUs, which hold and forward data; the others are switches, which forward.

    Edge e carries capacity[e] * unit at most. Edges are sorted by (src, dst), at most one a pair, none from a vertex to
    itself, none of capacity 0. Legend: V vertices, E edges.
    """

    gpus: int
    vertices: int
    src: Int32Array
    """(E,) int32."""
    dst: Int32Array
    """(E,) int32."""
    capacity: IntArray
    """(E,) int64, in units; their greatest common divisor is 1."""
    unit: Fraction
    """Bytes per second, or whatever the caller's capacities were in."""
    names: tuple[str, ...] = ()
    """Of vertices; empty where nobody gave any."""

    @classmethod
    def of_edges(
        cls, gpus: int, edges: Iterable[tuple[int, int, Capacity]], names: Sequence[str] = ()
    ) -> CapacityGraph:
        """A graph of edges (from, to, capacity), one direction each; parallel ones add up. Floats are taken as they are.

        Where that does not fit 64 bits (measured rates of many links, all different), every capacity is rounded to the nearest multiple of 2^-40 of the
        largest, none to 0: bounds are then exact for rates that are off by a part in 10^12 of the largest.
        Raises ValueError for capacities that are negative, ends below 0, and less than one GPU.

        >>> CapacityGraph.of_edges(2, [(0, 1, 50), (1, 0, 50), (0, 1, 25)]).capacity.tolist()
        [3, 2]
        """
        rows = list(edges)
        exact = [Fraction(capacity) for _, _, capacity in rows]
        scale = lcm(*(capacity.denominator for capacity in exact)) if exact else 1
        ends = np.array([(a, b) for a, b, _ in rows], np.int64).reshape(-1, 2)
        numbers = [capacity.numerator * (scale // capacity.denominator) for capacity in exact]
        common = gcd(*numbers) or 1
        if sum(numbers) // common > _MOST_UNITS:
            largest = max(exact)
            numbers = [max(1, round(capacity / largest * _FINEST)) if capacity else 0 for capacity in exact]
            scale, common = 1, 1
            unit = largest / _FINEST
        else:
            unit = Fraction(common, scale)
        return cls.of_columns(
            gpus,
            max(gpus, len(names), int(ends.max(initial=-1)) + 1),
            ends[:, 0],
            ends[:, 1],
            np.array([number // common for number in numbers], np.int64),
            unit=unit,
            names=names,
        )

    @classmethod
    def of_columns(
        cls,
        gpus: int,
        vertices: int,
        src: IntArray,
        dst: IntArray,
        capacity: IntArray,
        *,
        unit: Fraction = Fraction(1),
        names: Sequence[str] = (),
    ) -> CapacityGraph:
        """A graph of columns in any order; parallel edges add up. Raises ValueError as `of_edges`."""
        if gpus < 1 or vertices < gpus:
            raise ValueError(f"{gpus} GPUs among {vertices} vertices: at least one GPU is needed")
        if len(src) and (min(src.min(), dst.min()) < 0 or max(src.max(), dst.max()) >= vertices):
            raise ValueError(f"edges end at vertices outside 0 to {vertices - 1}")
        if len(capacity) and capacity.min() < 0:
            raise ValueError("a capacity is negative")
        if names and len(names) != vertices:
            raise ValueError(f"{len(names)} names for {vertices} vertices")
        used = (src != dst) & (capacity > 0)
        pair, where = np.unique(src[used] * vertices + dst[used], return_inverse=True)
        total = np.zeros(len(pair), np.int64)
        np.add.at(total, where, capacity[used])
        common = int(np.gcd.reduce(total)) if len(total) else 1
        return cls(
            gpus,
            vertices,
            (pair // vertices).astype(np.int32),
            (pair % vertices).astype(np.int32),
            total // common,
            unit * common,
            tuple(names),
        )

    @classmethod
    def of_cluster(cls, cluster: Cluster) -> CapacityGraph:
        """What carries the traffic of a cluster: scale-up links, NICs and the fabric; capacities in bytes per second.

        An NVSwitch domain is one vertex. A NIC that serves one GPU is an edge from that GPU to its leaf, of the least of
        its line rate and its way over PCIe; one that several share is a vertex each way. Nodes without NVLink or the like
        keep their PCIe switches, sockets and NICs as vertices. Elsewhere what GPUs and NICs of one PCIe switch share otherwise is not
        modelled, so bounds hold, but may be lower than such a node allows. Rates are rounded to whole bytes per second.
        """
        return _of_cluster(cluster)

    def __len__(self) -> int:
        return len(self.src)

    @property
    def is_gpu(self) -> NDArray[np.uint8]:
        """(V,) uint8."""
        return (np.arange(self.vertices) < self.gpus).astype(np.uint8)

    def name(self, vertex: int) -> str:
        """A vertex for people."""
        if self.names:
            return self.names[vertex]
        return f"gpu{vertex}" if vertex < self.gpus else f"switch{vertex - self.gpus}"

    def edge(self, src: int, dst: int) -> int:
        """The number of an edge. Raises KeyError where there is none."""
        keys = self.src.astype(np.int64) * self.vertices + self.dst
        place = int(np.searchsorted(keys, src * self.vertices + dst))
        if place == len(keys) or keys[place] != src * self.vertices + dst:
            raise KeyError(f"no link from {self.name(src)} to {self.name(dst)}")
        return place

    def without(self, edges: Iterable[int] | IntArray) -> CapacityGraph:
        """The graph with some edges gone: failed links, one direction each."""
        kept = np.ones(len(self), bool)
        kept[np.asarray(list(edges), np.int64)] = False
        return CapacityGraph.of_columns(
            self.gpus,
            self.vertices,
            self.src[kept].astype(np.int64),
            self.dst[kept].astype(np.int64),
            self.capacity[kept],
            unit=self.unit,
            names=self.names,
        )

    def cables(self) -> IntArray:
        """(C, 2) int64: pairs of edges that are the two directions of one cable; edges of one direction are left out."""
        keys = self.src.astype(np.int64) * self.vertices + self.dst
        back = np.searchsorted(keys, self.dst.astype(np.int64) * self.vertices + self.src)
        back = np.minimum(back, max(0, len(self) - 1))
        edge = np.arange(len(self))
        paired = (self.src < self.dst) & (self.src[back] == self.dst) & (self.dst[back] == self.src)
        return np.stack([edge[paired], back[paired]], 1).astype(np.int64)

    def reversed(self) -> CapacityGraph:
        """The graph with every edge turned round: what gathers there, broadcasts here."""
        return CapacityGraph.of_columns(
            self.gpus,
            self.vertices,
            self.dst.astype(np.int64),
            self.src.astype(np.int64),
            self.capacity,
            unit=self.unit,
            names=self.names,
        )

    def without_cables(self, cluster: Cluster, cables: Iterable[str]) -> CapacityGraph:
        """The graph of this cluster less one cable for each name, both directions: "leaf0 -> spine2", "nic9 -> leaf1", as simulations call them.

        Of parallel cables the others stay. Raises ValueError for what is not there.
        """
        left = [int(capacity) * self.unit for capacity in self.capacity]
        table = cluster.fabric.link_table()
        place = {cluster.fabric.vertex_name(v): v for v in range(cluster.fabric.vertices)}
        for cable in cables:
            ends = [end.strip() for end in re.split(r"<->|->|-", cable)]
            if len(ends) != 2 or any(end not in place for end in ends):
                if not len(table.src):
                    raise ValueError(f"no cable {cable!r}: the fabric has none")
                there = " -> ".join(cluster.fabric.vertex_name(int(v)) for v in (table.src[-1], table.dst[-1]))
                raise ValueError(f"no cable {cable!r}: write two ends of the fabric, such as {there}")
            between = (table.src == place[ends[0]]) & (table.dst == place[ends[1]])
            vertices = [self._place(cluster, place[end], end) for end in ends]
            if not between.any():
                near = np.unique(table.dst[table.src == place[ends[0]]])[:4]
                there = ", ".join(cluster.fabric.vertex_name(int(v)) for v in near) or "nothing"
                raise ValueError(f"no cable leads from {ends[0]} to {ends[1]}; {ends[0]} has cables to {there}")
            rate = float(table.bandwidth_bytes_per_s[between][0])
            for a, b in (vertices, vertices[::-1]):
                edge = self.edge(a, b)
                left[edge] -= min(left[edge], Fraction(round(rate)))
        kept = np.array([int(capacity) for capacity in left], np.int64)
        return CapacityGraph.of_columns(
            self.gpus, self.vertices, self.src.astype(np.int64), self.dst.astype(np.int64), kept, names=self.names
        )

    def _place(self, cluster: Cluster, vertex: int, name: str) -> int:
        """Our vertex for one of the fabric; for a NIC, the GPU or the NIC that has its link."""
        if vertex >= cluster.fabric.slots:
            return self.names.index(name)
        endpoints = np.arange(cluster.nodes * cluster.node.nics)
        found = np.flatnonzero(cluster.fabric.slot(endpoints) == vertex)
        if not len(found):
            raise ValueError(f"no NIC sits at {name}")
        node, nic = divmod(int(found[0]), cluster.node.nics)
        gpus = _gpus_of_nic(cluster.node, nic)
        if len(gpus) != 1:
            raise ValueError(
                f"{name} serves GPUs {', '.join(map(str, gpus))} of its node: failing it is not modelled here"
            )
        return node * cluster.node.gpus + gpus[0]

    def columns(self) -> tuple[NDArray[np.uint8], Int32Array, Int32Array, IntArray]:
        """is_gpu, src, dst, capacity: the order in which `_bounds` takes them."""
        return self.is_gpu, self.src, self.dst, self.capacity


def _of_cluster(cluster: Cluster) -> CapacityGraph:
    node, graph = cluster.node, cluster.node.graph
    n, nodes, per_node = cluster.gpus, cluster.nodes, node.gpus
    names = [f"{cluster.host(place)}:gpu{gpu}" for place in range(nodes) for gpu in range(per_node)]
    src: list[IntArray] = []
    dst: list[IntArray] = []
    rate: list[NDArray[np.float64]] = []

    def add(a: IntArray, b: IntArray, bytes_per_s: NDArray[np.float64] | float) -> None:
        a, b, carried = np.broadcast_arrays(a, b, bytes_per_s)
        src.append(a.astype(np.int64))
        dst.append(b.astype(np.int64))
        rate.append(carried.astype(np.float64))

    every = np.arange(nodes, dtype=np.int64)
    vertex = np.full((nodes, len(graph.kind)), -1, np.int64)
    for place in np.flatnonzero(graph.kind == GPU):
        vertex[:, place] = every * per_node + graph.number[place]
    scale_up = graph.links.kind == NVLINK
    pcie_only = not scale_up.any()
    kept = np.ones(len(graph.links), bool) if pcie_only else scale_up
    switch_kind = VERTEX_KINDS.index("nvswitch")
    for place in np.unique(np.concatenate([graph.links.src[kept], graph.links.dst[kept]])):
        if graph.kind[place] == GPU:
            continue
        shared = graph.kind[place] == switch_kind
        owner = every // node.nvlink_domain_nodes if shared else every
        vertex[:, place] = len(names) + owner
        names += [
            f"{graph.name(int(place))} of {'domain' if shared else 'node'} {i}" for i in range(int(owner[-1]) + 1)
        ]
    for link in np.flatnonzero(kept):
        add(
            vertex[:, graph.links.src[link]],
            vertex[:, graph.links.dst[link]],
            float(graph.links.bandwidth_bytes_per_s[link]),
        )
    if cluster.nics and nodes > 1:
        nics = graph.kind == NIC
        _add_network(cluster, names, add, vertex[:, nics][:, np.argsort(graph.number[nics])] if pcie_only else None)
    columns = [np.concatenate(part) if part else np.empty(0) for part in (src, dst, rate)]
    whole = np.rint(columns[2]).astype(np.int64)
    return CapacityGraph.of_columns(
        n, len(names), columns[0].astype(np.int64), columns[1].astype(np.int64), whole, names=names
    )


def _add_network(cluster: Cluster, names: list[str], add: Callable[..., None], nics: IntArray | None) -> None:
    """nics: (nodes, NICs) vertices of NICs that are part of the graph already."""
    node, fabric, nodes, per_node = cluster.node, cluster.fabric, cluster.nodes, cluster.node.gpus
    users = {nic: _gpus_of_nic(node, nic) for nic in range(node.nics)}
    table, every = fabric.link_table(), np.arange(nodes, dtype=np.int64)
    ports = np.bincount(table.src[table.src < fabric.slots], minlength=fabric.slots)
    out, into = np.full(fabric.vertices, -1, np.int64), np.full(fabric.vertices, -1, np.int64)
    limit = np.full(fabric.vertices, np.inf)
    for nic, gpus in users.items():
        slots = fabric.slot(every * node.nics + nic)
        if nics is not None:
            out[slots] = into[slots] = nics[:, nic]
            continue
        if not gpus:
            continue
        if len(gpus) == 1 and (ports[slots] == 1).all():
            out[slots] = into[slots] = every * per_node + gpus[0]
            limit[slots] = node.gpu_nic_path(gpus[0], nic).bandwidth_bytes_per_s
            continue
        ways = ("nic",) if fabric.kind == "torus" else ("nic out", "nic in")
        vertices = [len(names) + way * nodes + every for way in range(len(ways))]
        for way in ways:
            names += [f"{cluster.host(place)}:{way} {nic}" for place in range(nodes)]
        out[slots], into[slots] = vertices[0], vertices[-1]
        for gpu in gpus:
            width = node.gpu_nic_path(gpu, nic).bandwidth_bytes_per_s
            add(every * per_node + gpu, vertices[0], width)
            add(vertices[-1], every * per_node + gpu, width)
    used = np.ones(fabric.vertices, bool)
    used[: fabric.slots] = out[: fabric.slots] >= 0
    for _ in range(3):  # switches with nothing below, level by level: what a partly filled fabric would not buy
        live = used[table.src] & used[table.dst]
        neighbours = np.bincount(table.src[live], minlength=fabric.vertices)
        below = np.bincount(table.src[live & (table.dst < table.src)], minlength=fabric.vertices)
        used[fabric.slots :] &= (neighbours[fabric.slots :] > 0) & (below[fabric.slots :] > 0) | (
            np.full(fabric.vertices - fabric.slots, fabric.kind in ("graph", "dragonfly+"))
        )
    switches = np.flatnonzero(used[fabric.slots :]) + fabric.slots
    out[switches] = into[switches] = len(names) + np.arange(len(switches))
    names += [fabric.vertex_name(int(switch)) for switch in switches]
    live = used[table.src] & used[table.dst]
    a, b = table.src[live], table.dst[live]
    add(out[a], into[b], np.minimum(table.bandwidth_bytes_per_s[live], np.minimum(limit[a], limit[b])))


def _gpus_of_nic(node: Node, nic: int) -> list[int]:
    """The GPUs whose traffic a NIC carries. NICs near several GPUs are shared out among them where each gets one or more."""
    near = [gpu for gpu in range(node.gpus) if nic in node.nearest_nics(gpu)]
    if not near:
        return []
    nics = node.nearest_nics(near[0])
    if len(nics) >= len(near) and all(node.nearest_nics(gpu) == nics for gpu in near):
        return [near[nics.index(nic) * len(near) // len(nics)]]
    return [gpu for gpu in near if node.rail_of_gpu(gpu) == nic] or near
