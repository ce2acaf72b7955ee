"""Links and vertices as columns: what a node, a fabric and a cluster are made of.

Legend: V vertices, L directed links. A cable is two links, one a direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["LINK_KINDS", "VERTEX_KINDS", "FloatArray", "IntArray", "LinkTable", "NodeGraph", "Path"]

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

VERTEX_KINDS = ("gpu", "nic", "cpu", "pcie_switch", "nvswitch", "switch")
"""What a vertex is; columns hold the index. cpu: a NUMA node. nvswitch: all chips of a domain as one crossbar. switch:
one network switch."""
LINK_KINDS = ("nvlink", "pcie", "c2c", "cpu", "network")
"""What a link is; columns hold the index. nvlink: all links of a pair together, Infinity Fabric too. cpu: between NUMA
nodes."""
GPU, NIC, CPU, PCIE_SWITCH, NVSWITCH, SWITCH = range(len(VERTEX_KINDS))
NVLINK, PCIE, C2C, CPU_LINK, NETWORK = range(len(LINK_KINDS))


@dataclass(frozen=True, slots=True, eq=False)
class LinkTable:
    """Every directed link, column by column. Link i goes from vertex src[i] to dst[i]."""

    src: IntArray
    """(L,) int64."""
    dst: IntArray
    """(L,) int64."""
    bandwidth_bytes_per_s: FloatArray
    """(L,) float64, one direction, after line coding, before protocol headers."""
    latency_s: FloatArray
    """(L,) float64: propagation and the device at its end, no queueing."""
    kind: IntArray
    """(L,) int64, index into LINK_KINDS."""

    def __post_init__(self) -> None:
        lengths = {field.name: len(getattr(self, field.name)) for field in fields(self)}
        if len(set(lengths.values())) > 1:
            raise ValueError(f"columns of links differ in length: {lengths}")

    def __len__(self) -> int:
        return len(self.src)

    @classmethod
    def of(cls, rows: Sequence[tuple[int, int, float, float, int]]) -> LinkTable:
        """A table of rows (src, dst, bytes/s, seconds, kind)."""
        src, dst, rate, latency, kind = zip(*rows, strict=True) if rows else ((), (), (), (), ())
        return cls(
            np.array(src, np.int64),
            np.array(dst, np.int64),
            np.array(rate, np.float64),
            np.array(latency, np.float64),
            np.array(kind, np.int64),
        )

    def equals(self, other: LinkTable) -> bool:
        """Whether all columns are equal, link by link."""
        return all(np.array_equal(getattr(self, field.name), getattr(other, field.name)) for field in fields(self))


@dataclass(frozen=True, slots=True)
class Path:
    """Links from one vertex to another, in order, with what they carry together."""

    links: tuple[int, ...]
    vertices: tuple[int, ...]
    """One more than links."""
    bandwidth_bytes_per_s: float
    """The slowest link, one direction; infinite where nothing moves."""
    latency_s: float
    """All links together, no queueing."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeGraph:
    """The devices of one host as vertices and what joins them. GPUs come first, then NICs, NUMA nodes, switches."""

    kind: IntArray
    """(V,) int64, index into VERTEX_KINDS."""
    number: IntArray
    """(V,) int64: GPU or NIC as NCCL numbers them, id of the NUMA node, switch in order."""
    links: LinkTable

    def vertex(self, kind: str, number: int) -> int:
        """The vertex of a device. Raises KeyError where the node has none."""
        found = np.flatnonzero((self.kind == VERTEX_KINDS.index(kind)) & (self.number == number))
        if not len(found):
            raise KeyError(f"no {kind} {number} in this node")
        return int(found[0])

    def name(self, vertex: int) -> str:
        """gpu0, nic1, cpu0, pcie_switch3."""
        return f"{VERTEX_KINDS[int(self.kind[vertex])]}{int(self.number[vertex])}"

    def count(self, kind: str) -> int:
        """Vertices of one kind."""
        return int(np.count_nonzero(self.kind == VERTEX_KINDS.index(kind)))

    def equals(self, other: NodeGraph) -> bool:
        """Whether vertices and links are the same, in the same order."""
        same = np.array_equal(self.kind, other.kind) and np.array_equal(self.number, other.number)
        return same and self.links.equals(other.links)

    def path(self, src: int, dst: int, *, pcie_only: bool = False) -> Path:
        """The path of fewest links, the widest of them; GPUs and NICs forward nothing.

        So a GPU reaches its peer over NVLink where there is one, and a NIC over C2C where that is wider than its PCIe
        link. pcie_only leaves NVLink out: the way of peer-to-peer with NVLink off. Raises ValueError where no path is.
        """
        if src == dst:
            return Path((), (src,), float("inf"), 0.0)
        usable = self.links.kind != NVLINK if pcie_only else np.ones(len(self.links), bool)
        best: dict[int, tuple[float, tuple[int, ...]]] = {src: (float("inf"), ())}
        frontier = dict(best)
        while frontier and dst not in best:
            reached: dict[int, tuple[float, tuple[int, ...]]] = {}
            for vertex, (rate, links) in frontier.items():
                if vertex != src and self.kind[vertex] in (GPU, NIC):
                    continue
                for link in np.flatnonzero((self.links.src == vertex) & usable):
                    to, wide = int(self.links.dst[link]), min(rate, float(self.links.bandwidth_bytes_per_s[link]))
                    if to not in best and (to not in reached or wide > reached[to][0]):
                        reached[to] = (wide, (*links, int(link)))
            best.update(reached)
            frontier = reached
        if dst not in best:
            raise ValueError(f"no path from {self.name(src)} to {self.name(dst)}")
        rate, links = best[dst]
        vertices = (src, *(int(self.links.dst[link]) for link in links))
        return Path(links, vertices, rate, float(self.links.latency_s[list(links)].sum()))


class GraphBuilder:
    """Collects vertices and cables of a node; `graph()` orders them GPUs, NICs, NUMA nodes, switches."""

    def __init__(self) -> None:
        self._vertices: dict[tuple[int, int], None] = {}
        self._cables: list[tuple[tuple[int, int], tuple[int, int], float, float, int]] = []

    def add(self, kind: int, number: int) -> tuple[int, int]:
        """A vertex, once."""
        self._vertices[kind, number] = None
        return kind, number

    def join(self, a: tuple[int, int], b: tuple[int, int], rate: float, latency_s: float, kind: int) -> None:
        """A cable, one link each way."""
        self._cables.append((a, b, rate, latency_s, kind))

    def graph(self) -> NodeGraph:
        """What was collected. Links: each cable there and back, in a fixed order."""
        order = sorted(self._vertices, key=self._rank)
        at = {vertex: index for index, vertex in enumerate(order)}
        rows: list[tuple[int, int, float, float, int]] = []
        cables = [
            (min(at[a], at[b]), max(at[a], at[b]), rate, latency, kind) for a, b, rate, latency, kind in self._cables
        ]
        for low, high, rate, latency, kind in sorted(cables):
            rows += [(low, high, rate, latency, kind), (high, low, rate, latency, kind)]
        kinds, numbers = np.array([k for k, _ in order], np.int64), np.array([n for _, n in order], np.int64)
        return NodeGraph(kinds, numbers, LinkTable.of(rows))

    def _rank(self, vertex: tuple[int, int]) -> tuple[Any, ...]:
        # NUMA nodes and switches stay in the order they were met; devices are ordered by number.
        kind, number = vertex
        return (kind, number if kind in (GPU, NIC) else list(self._vertices).index(vertex))
