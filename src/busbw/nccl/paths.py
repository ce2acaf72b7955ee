"""Paths between GPUs, NICs, CPUs and the NVSwitch: which links, how fast, of which type, and who is local to whom.

Rules after NVIDIA/nccl 2.30.7, src/graph/paths.cc and topo.cc: breadth first from every vertex, better type before
higher rate before fewer hops; then paths change where peer-to-peer or GPUDirect RDMA is not used, and where a NIC is
reached better through a neighbour's GPU (PXN).
"""

from __future__ import annotations

from dataclasses import dataclass

from busbw.errors import InputError
from busbw.nccl.constants import Constants
from busbw.nccl.settings import Settings
from busbw.nccl.topology import Kind, Link, PathType, TopologyGraph, Vertex

__all__ = ["Path", "Paths"]


@dataclass(frozen=True, slots=True)
class Path:
    """A way from one vertex to another. Without links it is the vertex itself (LOC) or no way at all (DIS)."""

    links: tuple[Link, ...]
    gb_per_s: float
    type: PathType

    @property
    def hops(self) -> int:
        """Number of links."""
        return len(self.links)


_NONE = Path((), 0.0, PathType.DIS)


class Paths:
    """All paths of a topology under given settings. GPUs, nets, CPUs are named by their place in the graph."""

    def __init__(self, graph: TopologyGraph, constants: Constants, settings: Settings) -> None:
        self.graph = graph
        self.settings = settings
        self._most_channels: int = constants.search["max_channels"]
        self._local_rate: float = constants.links["local"]
        self._back = _reverse_links(graph)
        self._table: dict[tuple[Vertex, Kind], list[Path]] = {}
        self._local: dict[tuple[Vertex, Kind], tuple[list[int], PathType]] = {}
        for kind in (Kind.CPU, Kind.DEV, Kind.GPU, Kind.NET, Kind.NVS):
            for index, vertex in enumerate(graph.vertices[kind]):
                self._spread(vertex, kind, index)
        self._keep_apart_without_peer_access()
        self._mark_nets_behind_c2c()
        self._relay_and_detour()
        self.gpu_of_net = [self._gpu_near_net(net) for net in range(len(graph.nets))]
        """For each net the GPU that NCCL pairs with it; None where no GPU takes it as its own."""

    def of(self, vertex: Vertex, kind: Kind) -> list[Path]:
        """Paths from a vertex to every vertex of a kind; empty where it reaches none."""
        return self._table.get((vertex, kind), [])

    def gpu_to(self, gpu: int, kind: Kind) -> list[Path]:
        """Paths from a GPU to every vertex of a kind."""
        return self.of(self.graph.gpus[gpu], kind)

    def span(self, kind: Kind) -> tuple[PathType, PathType]:
        """The nearest and the farthest type between GPUs and the vertices of a kind, a GPU to itself left out."""
        types = [
            path.type
            for gpu in range(len(self.graph.gpus))
            for index, path in enumerate(self.gpu_to(gpu, kind))
            if kind is not Kind.GPU or index != gpu
        ]
        return min(types, default=PathType.SYS), max(types, default=PathType.LOC)

    def local(self, vertex: Vertex, kind: Kind) -> tuple[list[int], PathType]:
        """The vertices of a kind with the fastest path, of those the nearest, and their type."""
        key = (vertex, kind)
        if (known := self._local.get(key)) is not None:
            return known
        paths = self.of(vertex, kind)
        rate, type_ = 0.0, PathType.DIS
        for path in paths:
            if path.gb_per_s > rate or (path.gb_per_s == rate and path.type < type_):
                rate, type_ = path.gb_per_s, path.type
        found = [i for i, path in enumerate(paths) if path.gb_per_s == rate and path.type == type_]
        self._local[key] = (found, type_)
        return found, type_

    def local_cpu(self, gpu: int) -> int:
        """The CPU of a GPU: of the local ones the one with fewest hops. Raises InputError where none is reached."""
        paths = self.gpu_to(gpu, Kind.CPU)
        near, _ = self.local(self.graph.gpus[gpu], Kind.CPU)
        if not near:
            raise InputError(
                f"{self.graph.path}: no way from GPU {self.graph.gpus[gpu].device} to a CPU. Is the file cut?"
            )
        return min(near, key=lambda cpu: paths[cpu].hops)

    def net_for(self, gpu: int, channel: int) -> int | None:
        """The net a GPU takes for a channel, so that GPUs that share nets begin at different ones; None without nets."""
        vertex = self.graph.gpus[gpu]
        nets, _ = self.local(vertex, Kind.NET)
        if not nets:
            return None
        sharers = max(1, len(self.local(self.graph.nets[nets[0]], Kind.GPU)[0]))
        policy = self.settings.nets_per_gpu
        if policy is None:
            policy = -(-len(nets) // sharers)
        used = min(policy, len(nets)) if policy else len(nets)
        first = vertex.device % sharers
        if len(nets) & (len(nets) - 1) == 0:
            first = _mirrored(first, len(nets))
        return nets[(first + channel % used) % len(nets)]

    def nets_for(self, gpu: int) -> list[int]:
        """The nets a GPU takes, channel by channel, each once."""
        nets: list[int] = []
        for channel in range(self._most_channels):
            net = self.net_for(gpu, channel)
            if net is None or (nets and net == nets[0]):
                break
            nets.append(net)
        return nets

    def slowest_net_gb_per_s(self) -> float:
        """The slowest path between a GPU and a net of its own; 0 without nets."""
        rates = [
            self.gpu_to(gpu, Kind.NET)[net].gb_per_s
            for gpu in range(len(self.graph.gpus))
            for net in self.nets_for(gpu)
        ]
        return min(rates, default=0.0)

    def uses_gpudirect(self, gpu: int, net: int, read: bool) -> bool:
        """Whether a NIC reaches a GPU's memory directly. read: the NIC reads, which is sending."""
        vertex, net_vertex = self.graph.gpus[gpu], self.graph.nets[net]
        if not (vertex.gpudirect and net_vertex.gpudirect):
            return False
        if read:
            wanted = self.settings.gdr_read
            if wanted == 0:
                return False
            if wanted < 0 and vertex.capability < 80 and len(self.graph.gpus) > 1:
                peers = self.gpu_to(gpu, Kind.GPU)
                if all(path.type != PathType.NVL for i, path in enumerate(peers) if i != gpu):
                    return False
        level = self.settings.gdr_level
        if level is None:
            level = PathType.P2C if self.settings.gdr_c2c else PathType.PXB
        path = self.gpu_to(gpu, Kind.NET)[net]
        if path.type == PathType.PXN:
            path = self.gpu_to(self._relay(path), Kind.NET)[net]
        return path.type <= level

    def _relay(self, path: Path) -> int:
        """The GPU that a PXN path goes through."""
        ends = [link.end for link in path.links[1:]]
        device = next(vertex for vertex in ends if vertex.kind is not Kind.NVS)
        gpus = self.graph.gpus
        return next(i for i, gpu in enumerate(gpus) if gpu.id[0] == device.id[0] and gpu.device == device.device)

    def _spread(self, base: Vertex, kind: Kind, index: int) -> None:
        """Finds the paths from every vertex to one, breadth first, and writes them into the table."""
        most_hops = 2 if kind is Kind.GPU else 1
        home = base.parent if kind is Kind.GPU else base
        best: dict[Vertex, Path] = {base: Path((), self._local_rate, PathType.LOC)}
        front = [base]
        while front:
            following: dict[Vertex, None] = {}
            for vertex in front:
                path = best[vertex]
                through_gpu = vertex.kind is Kind.DEV and vertex is not home
                for link in vertex.links:
                    other = link.end
                    if through_gpu and (link.type != PathType.LOC or other.kind is not Kind.GPU):
                        nvlink = link.type == PathType.NVL and other.kind is Kind.DEV
                        if self.settings.nvb_disable or not nvlink or path.hops > most_hops:
                            continue
                    rate = min(path.gb_per_s, link.gb_per_s)
                    type_ = max(path.type, _hop_type(vertex, link, path, most_hops))
                    known = best.get(other, _NONE)
                    better = type_ < known.type or (
                        type_ == known.type
                        and (known.gb_per_s < rate or (known.gb_per_s == rate and known.hops > path.hops + 1))
                    )
                    if better:
                        best[other] = Path((self._back[link], *path.links), rate, type_)
                        following[other] = None
            front = list(following)
        size = len(self.graph.vertices[kind])
        for vertex, path in best.items():
            self._table.setdefault((vertex, kind), [_NONE] * size)[index] = path

    def _go_through(self, middle: Vertex, start: Vertex, kind: Kind, index: int) -> None:
        """Replaces the path from start to a vertex by the one through a CPU or a GPU."""
        place = self.graph.vertices[middle.kind].index(middle)
        first, second = self.of(start, middle.kind)[place], self.of(middle, kind)[index]
        type_ = PathType.PXN if middle.kind is Kind.GPU else _merged(first.type, second.type)
        rate = min(first.gb_per_s, second.gb_per_s)
        self._replace(start, kind, index, Path(first.links + second.links, rate, type_))

    def _replace(self, start: Vertex, kind: Kind, index: int, path: Path) -> None:
        self._table[(start, kind)][index] = path
        self._local.pop((start, kind), None)

    def _keep_apart_without_peer_access(self) -> None:
        """GPUs farther apart than the peer-to-peer level talk through the memory of the receiver's CPU."""
        level = self.settings.p2p_level
        if level is None:
            pair_on_amd = self.graph.cpu_model == "amd" and len(self.graph.vertices[Kind.DEV]) <= 2
            level = PathType.SYS if pair_on_amd else PathType.PXB
        gpus = self.graph.gpus
        for receiver in range(len(gpus)):
            for vertex in gpus:
                if self.of(vertex, Kind.GPU)[receiver].type > level:
                    cpu = self.graph.vertices[Kind.CPU][self.local_cpu(receiver)]
                    self._go_through(cpu, vertex, Kind.GPU, receiver)

    def _mark_nets_behind_c2c(self) -> None:
        """A GPU joined to its CPU by C2C and its nets at that CPU are P2C apart, not PHB."""
        for gpu, vertex in enumerate(self.graph.gpus):
            cpu = self.local_cpu(gpu)
            for net in self.local(vertex, Kind.NET)[0]:
                net_vertex = self.graph.nets[net]
                to_cpu, net_to_cpu = self.of(vertex, Kind.CPU)[cpu], self.of(net_vertex, Kind.CPU)[cpu]
                if _merged(to_cpu.type, net_to_cpu.type) != PathType.P2C:
                    continue
                for start, kind, index in ((vertex, Kind.NET, net), (net_vertex, Kind.GPU, gpu)):
                    path = self.of(start, kind)[index]
                    self._replace(start, kind, index, Path(path.links, path.gb_per_s, min(PathType.P2C, path.type)))

    def _relay_and_detour(self) -> None:
        """Reaches nets through a neighbour's GPU where that is better, and through the CPU where GPUDirect is off."""
        for net, net_vertex in enumerate(self.graph.nets):
            for gpu, vertex in enumerate(self.graph.gpus):
                if not self.of(vertex, Kind.NET):
                    continue
                neighbour = None if self.settings.pxn_disable else self._gpu_near_net(net)
                if neighbour is not None and neighbour != gpu and self._relays(neighbour, gpu, net):
                    self._go_through(self.graph.gpus[neighbour], vertex, Kind.NET, net)
                if self.of(vertex, Kind.NET)[net].type < PathType.PHB and not self.uses_gpudirect(gpu, net, read=False):
                    cpu = self.graph.vertices[Kind.CPU][self.local_cpu(gpu)]
                    self._go_through(cpu, net_vertex, Kind.GPU, gpu)
                    self._go_through(cpu, vertex, Kind.NET, net)

    def _relays(self, neighbour: int, gpu: int, net: int) -> bool:
        """Whether a GPU sends through a neighbour's NIC: PXN."""
        near, own = self.gpu_to(neighbour, Kind.NET)[net], self.gpu_to(gpu, Kind.NET)[net]
        return (
            near.type <= (PathType.P2C if self.settings.pxn_c2c else PathType.PXB)
            and self.uses_gpudirect(neighbour, net, read=True)
            and self.gpu_to(neighbour, Kind.GPU)[gpu].type <= PathType.NVL
            and self.graph.gpus[neighbour].id[0] == self.graph.gpus[gpu].id[0]
            and (near.gb_per_s > own.gb_per_s or own.type > PathType.PXN)
        )

    def _gpu_near_net(self, net: int) -> int | None:
        gpus, _ = self.local(self.graph.nets[net], Kind.GPU)
        for channel in range(self._most_channels):
            for gpu in gpus:
                if self.net_for(gpu, channel) == net:
                    return gpu
        return None


def _reverse_links(graph: TopologyGraph) -> dict[Link, Link]:
    """For each link the first of its type back. Raises InputError for an NVLink that only one end names."""
    first: dict[tuple[Vertex, Vertex, PathType], Link] = {}
    links = [link for vertex in graph.every() for link in vertex.links]
    for link in links:
        first.setdefault((link.start, link.end, link.type), link)
    found = {}
    for link in links:
        back = first.get((link.end, link.start, link.type))
        if back is None:
            ends = [f"{vertex.kind.name} {vertex.device}" for vertex in (link.start, link.end)]
            raise InputError(
                f"{graph.path}: a link of type {link.type.name} leads from {ends[0]} to {ends[1]} and none back. "
                'Both GPUs of an NVLink must name it in an <nvlink target="...">.'
            )
        found[link] = back
    return found


def _hop_type(vertex: Vertex, link: Link, path: Path, most_hops: int) -> PathType:
    """What type of path a link makes of one that ends at its start."""
    if link.type == PathType.NET:
        return PathType.LOC
    if vertex.kind is Kind.PCI and link.end.kind is Kind.PCI:
        return PathType.PXB
    if link.type == PathType.PIX and Kind.CPU in (vertex.kind, link.end.kind):
        return PathType.PHB
    if vertex.kind is Kind.DEV and path.type == link.type == PathType.NVL and path.hops == most_hops:
        return PathType.NVB
    return link.type


def _merged(one: PathType, other: PathType) -> PathType:
    """The type of two paths in a row."""
    if {one, other} == {PathType.C2C, PathType.PHB}:
        return PathType.P2C
    return max(one, other)


def _mirrored(value: int, size: int) -> int:
    """The low bits of value in reverse, for a size that is a power of two: 0, 4, 2, 6 ... of 8."""
    width = size.bit_length() - 1
    return sum(1 << (width - 1 - bit) for bit in range(width) if value >> bit & 1)
