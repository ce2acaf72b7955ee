"""Cluster: nodes of one kind, the fabric between them, and the links a transfer from GPU to GPU takes.

Nothing is stored by the number of nodes: a node's graph is kept once, the fabric is numbers, and the links of a route
are computed. GPUs are numbered node * GPUs a node + GPU, as ranks usually are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from busbw.hardware.blueprints import Node
from busbw.hardware.catalogue import Switch, load_catalogue
from busbw.hardware.fabrics import (
    DragonflyPlus,
    Fabric,
    FatTree,
    GraphFabric,
    LinkRates,
    NvlinkDomains,
    RailOptimised,
    SingleSwitch,
    Torus,
    fat_tree_shape,
    rail_shape,
)
from busbw.hardware.links import LINK_KINDS, NETWORK, FloatArray, IntArray, LinkTable, NodeGraph, Path
from busbw.hardware.routing import Routes, d_mod_k, ecmp

__all__ = ["FABRIC_KINDS", "ROUTINGS", "Cluster", "FabricPlan"]

FABRIC_KINDS = (
    *("automatic", "single-switch", "fat-tree", "rail-optimised"),
    *("nvlink-domains", "dragonfly+", "torus", "graph"),
)
ROUTINGS = ("d-mod-k", "ecmp", "spray", "adaptive")
"""How switches choose. `Cluster.routes` computes d-mod-k and ecmp; the others are for simulators, which split flows."""

_SWITCH_OF_GBPS = {200: "QM8700 (Quantum)", 400: "QM9700 (Quantum-2)", 800: "Q3400 (Quantum-X800)"}
"""The switch whose ports have the rate of a NIC. A guess where no switch is named."""
_GBIT = 1e9 / 8


@dataclass(frozen=True, slots=True)
class FabricPlan:
    """What the fabric between nodes shall be; the figures a kind does not use are ignored."""

    kind: str = "automatic"
    """One of FABRIC_KINDS. automatic: one switch if all NICs fit, else nvlink-domains or rail-optimised."""
    switch: Switch | None = None
    """None: the one whose ports have the NICs' rate, 64 ports of their rate where there is none."""
    levels: int | None = None
    """Of a tree; None: the fewest."""
    oversubscription: float = 1.0
    """Downlinks to uplinks of a leaf, in ports."""
    groups: int = 0
    """dragonfly+; 0: as many as needed."""
    shape: tuple[int, ...] = ()
    """torus: the nodes' NICs along each dimension."""
    graph: GraphFabric | None = None
    switch_ports: int | None = None
    switch_rate_bytes_per_s: float | None = None
    switch_latency_s: float | None = None
    nic_latency_s: float | None = None

    def __post_init__(self) -> None:
        if self.kind not in FABRIC_KINDS:
            raise ValueError(f"fabric kind {self.kind!r} is unknown; known: {', '.join(FABRIC_KINDS)}")
        if self.kind == "graph" and self.graph is None:
            raise ValueError("a fabric of kind graph needs its graph")


@dataclass(frozen=True)
class Cluster:
    """`nodes` nodes of one kind, numbered from 0 and placed densely: NVLink domains are filled one after another."""

    name: str
    node: Node
    nodes: int
    plan: FabricPlan = field(default_factory=FabricPlan)
    routing: str = "d-mod-k"
    hosts: tuple[str, ...] = ()
    """Names of the nodes, where a file gave them."""

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError(f"cluster {self.name!r} has {self.nodes} nodes; at least 1 is needed")
        if self.routing not in ROUTINGS:
            raise ValueError(f"routing {self.routing!r} is unknown; known: {', '.join(ROUTINGS)}")
        if self.hosts and len(self.hosts) != self.nodes:
            raise ValueError(f"{len(self.hosts)} host names for {self.nodes} nodes")

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.nodes * self.node.gpus

    @property
    def nics(self) -> int:
        """All NICs: the endpoints of the fabric, numbered node * NICs a node + NIC."""
        return self.nodes * self.node.nics

    @property
    def nvlink_domains(self) -> int:
        """NVLink domains the nodes form when placed densely, racks filled one after another."""
        return -(-self.nodes // self.node.nvlink_domain_nodes)

    @property
    def gpus_per_domain(self) -> int:
        """GPUs of a full NVLink domain; fewer where the cluster is smaller."""
        return min(self.nodes, self.node.nvlink_domain_nodes) * self.node.gpus

    @property
    def rails(self) -> int:
        """Planes of the fabric: NICs of a node."""
        return self.node.rails

    @property
    def nic_bytes_per_s(self) -> float:
        """What one NIC can move, one direction: the least of its line rate and its way to its GPU."""
        rates = [self.node.nic_rate_bytes_per_s]
        table: LinkTable = self._graph.links
        for gpu, rail in enumerate(self._rails):
            if rail is not None:
                rates.append(float(table.bandwidth_bytes_per_s[list(self._segment(gpu, "nic", rail))].min()))
        return min(rates)

    @property
    def network_bytes_per_s_per_gpu(self) -> float:
        """What each GPU can send into the fabric when all send at once, bytes per second; 0 without NICs."""
        return self.nic_bytes_per_s * self.node.nics / self.node.gpus if self.node.nics else 0.0

    @cached_property
    def fabric(self) -> Fabric:
        """The network between NICs. Raises ValueError where the plan has no room for them, or there are none."""
        if not self.nics:
            raise ValueError(f"{self.name}: nodes without NICs have no fabric")
        return _fabric(self)

    @property
    def switch(self) -> Switch | None:
        """The product of the fabric's switches: the plan's, else the one whose ports have the NICs' rate."""
        if self.plan.switch is not None:
            return self.plan.switch
        name = _SWITCH_OF_GBPS.get(round(self.node.nic_rate_bytes_per_s / _GBIT))
        return load_catalogue().switches[name] if name else None

    @property
    def link_rates(self) -> LinkRates:
        """Rates and latencies of the fabric's links."""
        switch, plan, nic = self.switch, self.plan, self.node.nic_rate_bytes_per_s
        latencies = load_catalogue().latencies
        network = switch.network if switch is not None else "infiniband" if self.node.nic.infiniband else "ethernet"
        hop = latencies[f"{network}_switch"].latency_s.value or 0.0
        if switch is not None and switch.port_latency_s.value:
            hop = switch.port_latency_s.value
        hop += latencies["cable"].latency_s.value or 0.0
        rate = plan.switch_rate_bytes_per_s or (
            switch.port_bytes_per_s.value if plan.switch is not None and switch else None
        )
        return LinkRates(
            nic,
            rate or nic,
            plan.nic_latency_s if plan.nic_latency_s is not None else latencies["nic"].latency_s.value or 0.0,
            plan.switch_latency_s if plan.switch_latency_s is not None else hop,
        )

    def domain_of_node(self, node: int) -> int:
        """The NVLink domain of a node."""
        return node // self.node.nvlink_domain_nodes

    def endpoint(self, node: int, nic: int) -> int:
        """The fabric's endpoint of a NIC."""
        return node * self.node.nics + nic

    def host(self, node: int) -> str:
        """A node's name: of the file it came from, else node<n>."""
        return self.hosts[node] if self.hosts else f"node{node}"

    # Links of the whole cluster are numbered node by node, each as its graph has them, then the fabric's.

    @property
    def links(self) -> int:
        """Directed links of all nodes and the fabric."""
        return self.nodes * len(self._graph.links) + (self.fabric.links if self.nics else 0)

    @cached_property
    def _graph(self) -> NodeGraph:
        return self.node.graph

    def routes(
        self, src: IntArray, dst: IntArray, *, how: str | None = None, flow: IntArray | int = 0, pxn: bool = False
    ) -> Routes:
        """The links from GPU to GPU, numbered over the whole cluster. src, dst: (F,) GPUs.

        Inside a node and an NVLink domain over NVLink, else PCIe; between domains through the NIC of each GPU's rail
        and the fabric. how: d-mod-k or ecmp, by default the cluster's routing where it is one of these, else d-mod-k.
        pxn: cross to the destination's rail over NVLink first, as NCCL does, so that the fabric's leaf suffices.
        Raises ValueError for GPUs the cluster lacks, and for nodes without NICs.
        """
        how = how or (self.routing if self.routing in ("d-mod-k", "ecmp") else "d-mod-k")
        if how not in ("d-mod-k", "ecmp"):
            raise ValueError(f"routes by {how!r} are not one path; take busbw.hardware.routing on the cluster's fabric")
        src, dst, flow = np.broadcast_arrays(*(np.atleast_1d(np.asarray(part, np.int64)) for part in (src, dst, flow)))
        if len(src) and (min(src.min(), dst.min()) < 0 or max(src.max(), dst.max()) >= self.gpus):
            raise ValueError(f"cluster {self.name!r} has GPUs 0 to {self.gpus - 1}")
        (node_a, gpu_a), (node_b, gpu_b) = np.divmod(src, self.node.gpus), np.divmod(dst, self.node.gpus)
        size, domain = len(self._graph.links), self.node.nvlink_domain_nodes
        outside = node_a // domain != node_b // domain
        rows: list[list[int]] = [[] for _ in src]
        through: list[IntArray] = [np.empty(0, np.int64)] * len(src)
        if outside.any():
            if None in self._rails:
                raise ValueError(f"cluster {self.name!r}: nodes without NICs reach no other NVLink domain")
            rail = np.array(self._rails, np.int64)
            at = np.flatnonzero(outside)
            leaves = rail[gpu_b[at]] if pxn else rail[gpu_a[at]]
            ends = node_a[at] * self.node.nics + leaves, node_b[at] * self.node.nics + rail[gpu_b[at]]
            found = d_mod_k(self.fabric, *ends) if how == "d-mod-k" else ecmp(self.fabric, *ends, flow[at])
            first = self.nodes * size
            for which, links, out in zip(at, found.links, leaves, strict=True):
                index = int(which)
                through[index] = links[links >= 0] + first
                rows[index] = [int(link) + int(node_a[index]) * size for link in self._out(int(gpu_a[index]), int(out))]
        for index in range(len(src)):
            a, b = int(gpu_a[index]), int(gpu_b[index])
            base_a, base_b = int(node_a[index]) * size, int(node_b[index]) * size
            if outside[index]:
                into = self._segment(b, "nic", int(rail[b]))
                rows[index] += [*map(int, through[index]), *(self._reverse[link] + base_b for link in reversed(into))]
            elif base_a == base_b:
                rows[index] = [link + base_a for link in self._segment(a, "gpu", b)]
            else:
                (up, _), (_, down) = self._nvswitch_links(a), self._nvswitch_links(b)
                rows[index] = [up + base_a, down + base_b]
        longest = max((len(row) for row in rows), default=0)
        return Routes(np.array([row + [-1] * (longest - len(row)) for row in rows], np.int64).reshape(-1, longest))

    def path(self, src: int, dst: int, **how: Any) -> Path:
        """One route with what it carries: links numbered over the cluster, no vertices. Arguments as of `routes`."""
        links = self.routes(np.array([src]), np.array([dst]), **how).links[0]
        rate, latency = self.rates_of(links)
        slowest = float(rate.min()) if len(rate) else float("inf")
        return Path(tuple(int(link) for link in links), (), slowest, float(latency.sum()))

    def rates_of(self, links: IntArray) -> tuple[FloatArray, FloatArray]:
        """Bandwidth in bytes per second and latency in seconds of links, one direction. links: (L,)."""
        inner, index, outer = self._split(links)
        table: LinkTable = self._graph.links
        rate, latency = np.empty(len(index)), np.empty(len(index))
        rate[inner], latency[inner] = table.bandwidth_bytes_per_s[index[inner]], table.latency_s[index[inner]]
        if outer.any():
            rate[outer], latency[outer] = self.fabric.link_rates(index[outer])
        return rate, latency

    def kinds_of(self, links: IntArray) -> IntArray:
        """(L,) int64: index into LINK_KINDS of links."""
        inner, index, _ = self._split(links)
        kinds = np.full(len(index), NETWORK, np.int64)
        kinds[inner] = self._graph.links.kind[index[inner]]
        return kinds

    def link_name(self, link: int) -> str:
        """A link for people: node3: gpu0 -> pcie_switch0; or leaf0 -> spine2."""
        inner, index, _ = self._split(np.array([link]))
        if inner[0]:
            table = self._graph.links
            ends = (self._graph.name(int(end[index[0]])) for end in (table.src, table.dst))
            return f"{self.host(link // len(table))}: {' -> '.join(ends)}"
        one, other = self.fabric.link_ends(index)
        return f"{self.fabric.vertex_name(int(one[0]))} -> {self.fabric.vertex_name(int(other[0]))}"

    def kind_name(self, link: int) -> str:
        """The word of LINK_KINDS for a link."""
        return LINK_KINDS[int(self.kinds_of(np.array([link]))[0])]

    def _split(self, links: IntArray) -> tuple[Any, IntArray, Any]:
        links, size = np.asarray(links, np.int64), len(self._graph.links)
        inner = links < self.nodes * size
        return inner, np.where(inner, links % size, links - self.nodes * size), ~inner

    def _out(self, gpu: int, nic: int) -> tuple[int, ...]:
        """From a GPU to a NIC; over a GPU of that NIC's rail where it is not the GPU's own."""
        peers = [peer for peer, rail in enumerate(self._rails) if rail == nic]
        if self._rails[gpu] == nic or not peers:
            return self._segment(gpu, "nic", nic)
        return self._segment(gpu, "gpu", peers[0]) + self._segment(peers[0], "nic", nic)

    def _segment(self, gpu: int, kind: str, number: int) -> tuple[int, ...]:
        """Links from a GPU to a GPU or NIC of its node, found once."""
        found = self._segments.get((gpu, kind, number))
        if found is None:
            found = self._graph.path(self._graph.vertex("gpu", gpu), self._graph.vertex(kind, number)).links
            self._segments[gpu, kind, number] = found
        return found

    @cached_property
    def _segments(self) -> dict[tuple[int, str, int], tuple[int, ...]]:
        return {}

    @cached_property
    def _rails(self) -> tuple[int | None, ...]:
        return tuple(self.node.rail_of_gpu(gpu) for gpu in range(self.node.gpus))

    def _nvswitch_links(self, gpu: int) -> tuple[int, int]:
        table, switch = self._graph.links, self._graph.vertex("nvswitch", 0)
        here = self._graph.vertex("gpu", gpu)
        up = np.flatnonzero((table.src == here) & (table.dst == switch))[0]
        return int(up), self._reverse[int(up)]

    @cached_property
    def _reverse(self) -> Mapping[int, int]:
        # A graph lists the two directions of a cable one after the other.
        return {link: link ^ 1 for link in range(len(self._graph.links))}

    def but(self, **changes: Any) -> Cluster:
        """The cluster with some fields changed; node fields as `node=dataclasses.replace(...)`."""
        return replace(self, **changes)


def _fabric(cluster: Cluster) -> Fabric:
    plan, node, rates = cluster.plan, cluster.node, cluster.link_rates
    switch = cluster.switch
    ports = plan.switch_ports or (switch.ports.value if switch is not None else None) or 64
    kind = plan.kind
    if kind == "automatic":
        wide = "nvlink-domains" if node.nvlink_domain_nodes > 1 else "rail-optimised"
        kind = "single-switch" if cluster.nics <= ports and plan.levels in (None, 1) else wide
    sized: dict[str, Any] = {"levels": plan.levels, "oversubscription": plan.oversubscription}
    if kind == "single-switch":
        if cluster.nics > ports:
            raise ValueError(f"{cluster.nics} NICs do not fit one switch of {ports} ports; take fat-tree")
        return SingleSwitch(cluster.nics, rates)
    if kind == "fat-tree":
        return FatTree(cluster.nics, *fat_tree_shape(cluster.nics, ports, **sized), rates)
    if kind == "rail-optimised":
        shape = rail_shape(cluster.nodes, node.nics, ports, **sized)
        return RailOptimised(cluster.nics, *shape, rates, node.nics)
    if kind == "nvlink-domains":
        return NvlinkDomains(cluster.nodes, node.nics, node.nvlink_domain_nodes, ports, rates, **sized)
    if kind == "torus":
        return Torus(cluster.nics, plan.shape, rates)
    if kind == "dragonfly+":
        return _dragonfly(cluster, ports, rates)
    if plan.graph is None or plan.graph.endpoints != cluster.nics:
        have = plan.graph.endpoints if plan.graph is not None else 0
        raise ValueError(f"the fabric's file has {have} NIC ports, {cluster.nodes} nodes have {cluster.nics}")
    return plan.graph


def _dragonfly(cluster: Cluster, ports: int, rates: LinkRates) -> DragonflyPlus:
    """Leaves half NICs and half uplinks, spines half leaves and half cables to other groups."""
    half = ports // 2
    size = half * half
    groups = cluster.plan.groups or max(2, -(-cluster.nics // size))
    cables = half * half // max(1, groups - 1)
    if cables < 1:
        raise ValueError(f"{groups} groups: a group has {size} cables to others, so at most {size + 1} can be joined")
    return DragonflyPlus(cluster.nics, groups, half, half, half, cables, rates)
