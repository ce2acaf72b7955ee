"""The graph that NCCL makes of a topology file: GPUs, PCIe switches, CPUs, NVSwitch, NICs, and the links between them.

Rules after NVIDIA/nccl 2.30.7, src/graph/topo.cc. The order of vertices and links matters, because the channel search
takes the first of equals. Inside this room rates are 1e9 bytes a second (`_gb_per_s`), rounded to float32 as NCCL
holds them, so that its comparisons come out the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np

from busbw.errors import InputError
from busbw.hardware.formats.nccl_topo_xml import (
    C2c,
    Cpu,
    Gpu,
    NcclTopology,
    Net,
    Nic,
    NvLink,
    Other,
    Pci,
    System,
    TopologyElement,
)
from busbw.nccl.constants import Constants

__all__ = ["Kind", "Link", "PathType", "TopologyGraph", "Vertex", "float32", "topology_graph"]


class Kind(IntEnum):
    """What a vertex is, in NCCL's words; DEV is the GPU as a device, GPU a rank's view of it."""

    GPU = 0
    PCI = 1
    NVS = 2
    CPU = 3
    NIC = 4
    NET = 5
    DEV = 6


class PathType(IntEnum):
    """How far two vertices are apart, nearest first. Links have the types LOC, NVL, C2C, PIX (PCIe), SYS and NET."""

    LOC = 0
    NVL = 1
    NVB = 2
    C2C = 3
    PIX = 4
    PXB = 5
    P2C = 6
    PXN = 7
    PHB = 8
    SYS = 9
    NET = 10
    DIS = 11


@dataclass(eq=False, slots=True)
class Link:
    """A directed link."""

    type: PathType
    start: Vertex
    end: Vertex
    gb_per_s: float


@dataclass(eq=False, slots=True)
class Vertex:
    """A point of the graph. What only one kind has is None elsewhere."""

    kind: Kind
    id: tuple[int, int]
    """Host in the file, and bus id, NUMA node or device number."""
    links: list[Link] = field(default_factory=list)
    rank: int = -1
    device: int = -1
    """Number of the GPU (NVML) or of the net."""
    capability: int = 0
    gpudirect: bool = False
    parent: Vertex | None = None
    """The DEV of a GPU."""
    cpu_model: str = ""
    """power, arm, intel, amd, zhaoxin or other."""
    cpu_link_gb_per_s: float = 0.0
    pci_device: int = 0
    """Vendor, device and both subsystem ids in 64 bits."""
    asic: int = 0
    port: int = 0
    net_gb_per_s: float = 0.0
    latency_us: float = 0.0
    rail: int = -1
    plane: int = -1


class TopologyGraph:
    """All vertices by kind, in the order of the file."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.vertices: dict[Kind, list[Vertex]] = {kind: [] for kind in Kind}
        self.hosts: list[int] = []

    @property
    def gpus(self) -> list[Vertex]:
        """One a rank."""
        return self.vertices[Kind.GPU]

    @property
    def nets(self) -> list[Vertex]:
        """Network devices."""
        return self.vertices[Kind.NET]

    @property
    def has_nvswitch(self) -> bool:
        """Whether any GPU's NVLinks end in a switch."""
        return bool(self.vertices[Kind.NVS])

    @property
    def least_capability(self) -> int:
        """Compute capability of the oldest GPU."""
        return min(vertex.capability for vertex in self.vertices[Kind.DEV])

    @property
    def most_capability(self) -> int:
        """Compute capability of the newest GPU."""
        return max(vertex.capability for vertex in self.vertices[Kind.DEV])

    @property
    def cpu_model(self) -> str:
        """Make of the first CPU, which NCCL takes for all."""
        return self.vertices[Kind.CPU][0].cpu_model

    def every(self) -> Iterator[Vertex]:
        """All vertices."""
        for vertices in self.vertices.values():
            yield from vertices

    def find(self, kind: Kind, identity: tuple[int, int]) -> Vertex | None:
        """The vertex of a kind with an id; None if there is none."""
        return next((vertex for vertex in self.vertices[kind] if vertex.id == identity), None)

    def add(self, vertex: Vertex) -> Vertex:
        """Puts a vertex at the end of its kind."""
        self.vertices[vertex.kind].append(vertex)
        return vertex


def topology_graph(topology: NcclTopology, constants: Constants) -> TopologyGraph:
    """The graph of a topology file.

    Raises InputError, with the line, for a file without system, CPU or GPU, for attributes that NCCL needs and that are
    missing or no numbers, for GPU partitions (mlopart), and for hosts that no NVLink joins.
    """
    if topology.is_fragment:
        raise InputError(
            f"{topology.path}: a fragment of a topology. The search needs the whole <system> that NCCL_TOPO_DUMP_FILE wrote."
        )
    builder = _Builder(topology, constants)
    return builder.build()


def float32(value: float) -> float:
    """The value as a C float holds it."""
    return float(np.float32(value))


def connect(start: Vertex, end: Vertex, type_: PathType, gb_per_s: float) -> None:
    """Adds a directed link, or widens the one of that type. Links of a vertex stay sorted, widest first."""
    links = start.links
    link = next((known for known in links if known.end is end and known.type == type_), None)
    if link is None:
        link = Link(type_, start, end, 0.0)
        links.append(link)
    link.gb_per_s = float32(link.gb_per_s + float32(gb_per_s))
    place = links.index(link)
    links.pop(place)
    while place > 0 and links[place - 1].gb_per_s < link.gb_per_s:
        place -= 1
    links.insert(place, link)


class _Builder:
    def __init__(self, topology: NcclTopology, constants: Constants) -> None:
        self.topology = topology
        self.rates: Mapping[str, Any] = constants.links
        self.constants = constants
        self.graph = TopologyGraph(topology.path)

    def build(self) -> TopologyGraph:
        root = self.topology.roots[0]
        if not isinstance(root, System):
            raise InputError(f"{self.topology.path}: no <system>; pass the file that NCCL_TOPO_DUMP_FILE names.")
        cpus = [child for child in root.children if isinstance(child, Cpu)]
        for cpu in cpus:
            self._add_cpu(cpu)
        if not cpus or not self.graph.gpus:
            missing = "<cpu>" if not cpus else '<gpu> with a "rank" below a <pci>'
            raise InputError(f"{self.topology.path}: no {missing}, so NCCL would find nothing to connect.")
        ranks = [gpu.rank for gpu in self.graph.gpus]
        if len(set(ranks)) != len(ranks):
            raise InputError(
                f"{self.topology.path}: two GPUs have one rank; ranks are {ranks}. Number them 0, 1, 2 ..."
            )
        for add in (self._add_nvlink, self._add_c2c, self._add_pcilink):
            for cpu in cpus:
                host = self._host(cpu)
                for bus_id, parent, element in _with_bus_ids(cpu, None, cpu):
                    add(element, parent, bus_id, host)
        _flatten_broadcom_switches(self.graph)
        self._connect_cpus()
        for vertex in self.graph.vertices[Kind.CPU]:
            _put_upward_links_last(vertex, None)
        return self.graph

    def _error(self, element: TopologyElement, what: str) -> InputError:
        return InputError(f"{self.topology.path}:{element.line}: <{element.element_name}> {what}.")

    def _integer(self, element: TopologyElement, name: str, default: int | None = None) -> int:
        if element.get(name) is None and default is not None:
            return default
        value = element.integer(name)
        if value is None:
            raise self._error(element, f'needs {name}="..." as a number; it has {element.get(name)!r}')
        return value

    def _host(self, cpu: Cpu) -> int:
        text = cpu.host_hash or "0"
        try:
            identity = int(text, 16)
        except ValueError:
            raise self._error(cpu, f"has host_hash={text[:40]!r}, which is no hexadecimal number") from None
        if identity not in self.graph.hosts:
            self.graph.hosts.append(identity)
        return self.graph.hosts.index(identity)

    def _add_cpu(self, cpu: Cpu) -> None:
        host, numa = self._host(cpu), self._integer(cpu, "numaid")
        model, rate = self._cpu_model(cpu)
        vertex = self.graph.add(Vertex(Kind.CPU, (host, numa), cpu_model=model, cpu_link_gb_per_s=rate))
        for child in cpu.children:
            if isinstance(child, Pci):
                self._add_pci(child, vertex, host)
            elif isinstance(child, Nic):
                nic = self.graph.find(Kind.NIC, (host, 0))
                if nic is None:
                    nic = self.graph.add(Vertex(Kind.NIC, (host, 0)))
                    _join(vertex, nic, PathType.PIX, self.rates["local"])
                self._add_nets(child, nic, host)

    def _cpu_model(self, cpu: Cpu) -> tuple[str, float]:
        between = self.rates["between_cpus"]
        if cpu.architecture in ("ppc64", "arm64"):
            name = "power" if cpu.architecture == "ppc64" else "arm"
            return name, between[name]
        if cpu.architecture is None:
            raise self._error(cpu, 'needs arch="x86_64", "arm64" or "ppc64"')
        vendor = cpu.vendor or ""
        if cpu.architecture.startswith("x86_64") and vendor == "GenuineIntel":
            family, model = self._integer(cpu, "familyid"), self._integer(cpu, "modelid")
            newest_first = between["intel_by_model"]
            at_least = max(model, 0) if family == 6 else 0
            return "intel", next(rate for least, rate in newest_first if at_least >= least)
        if vendor == "AuthenticAMD":
            return "amd", between["amd"]
        if vendor in ("CentaurHauls", "  Shanghai  "):
            yongfeng = (cpu.family, cpu.model) == (7, 0x5B)
            return "zhaoxin", between["zhaoxin_yongfeng" if yongfeng else "zhaoxin"]
        return "other", between["other"]

    def _add_pci(self, pci: Pci, parent: Vertex, host: int) -> None:
        bus_id = self._bus_id(pci, pci.bus_id)
        rate = self._pci_rate(pci)
        for gpu in pci.children:
            if isinstance(gpu, Gpu):
                if gpu.get("rank") is None:
                    return  # a GPU of another job
                self._add_gpu(gpu, parent, host, bus_id, rate)
        nic = next((child for child in pci.children if isinstance(child, Nic)), None)
        kind = _pci_kind(pci.get("class") or "")
        if nic is not None:
            known = self.graph.find(Kind.NIC, (host, bus_id))
            vertex = known or self.graph.add(Vertex(Kind.NIC, (host, bus_id)))
            self._add_nets(nic, vertex, host)
            if known is None:
                _join(vertex, parent, PathType.PIX, rate)
        elif kind is Kind.PCI:
            vertex = self.graph.add(Vertex(Kind.PCI, (host, bus_id), pci_device=_pci_device(pci)))
            for child in pci.children:
                if isinstance(child, Pci):
                    self._add_pci(child, vertex, host)
            _join(vertex, parent, PathType.PIX, rate)

    def _pci_rate(self, pci: Pci) -> float:
        width = self._integer(pci, "link_width") or self.rates["pci_width_unknown"]
        if width < 0:
            raise self._error(pci, f"has link_width={width}; lanes are 1, 2, 4, 8, 16, or 0 for unknown")
        speed = pci.get("link_speed") or ""
        known = self.rates["pci_lane_100mbit"].items()
        lane = next((rate for text, rate in known if speed.startswith(text)), self.rates["pci_lane_100mbit_unknown"])
        return float(width * lane / 80)

    def _bus_id(self, element: TopologyElement, text: str | None) -> int:
        digits = (text or "").replace(":", "").replace(".", "")
        try:
            return int(digits, 16)
        except ValueError:
            raise self._error(element, f"has the bus id {text!r}; it must read like 0000:01:00.0") from None

    def _add_gpu(self, gpu: Gpu, parent: Vertex, host: int, bus_id: int, rate: float) -> None:
        if gpu.get("mlopart") is not None:
            raise self._error(gpu, "is a partition of a GPU (mlopart), which is not modelled")
        device = self.graph.find(Kind.DEV, (host, bus_id))
        number, capability = self._integer(gpu, "dev"), self._integer(gpu, "sm")
        if capability < 0:
            raise self._error(gpu, f"has sm={capability}; a compute capability reads like 90")
        if device is None:
            device = self.graph.add(Vertex(Kind.DEV, (host, bus_id), device=number, capability=capability))
            _join(device, parent, PathType.PIX, rate)
        shared = sum(link.end.kind is Kind.GPU for link in device.links)
        vertex = self.graph.add(
            Vertex(
                Kind.GPU,
                (host, shared << 40 | bus_id),
                rank=self._integer(gpu, "rank"),
                device=number,
                capability=capability,
                gpudirect=self._integer(gpu, "gdr") != 0,
                parent=device,
            )
        )
        _join(device, vertex, PathType.LOC, self.rates["local"])

    def _add_nets(self, nic: Nic, vertex: Vertex, host: int) -> None:
        for net in nic.children:
            if not isinstance(net, Net) or net.get("dev") is None or not self._integer(net, "net", 1):
                continue
            number = self._integer(net, "dev")
            mbit = self._integer(net, "speed", 0)
            rate = float32((mbit if mbit > 0 else self.rates["net_mbit_unknown"]) / 8000)
            added = self.graph.add(
                Vertex(
                    Kind.NET,
                    (host, number),
                    device=number,
                    gpudirect=self._integer(net, "gdr", 0) != 0,
                    asic=self._guid(net, (host << 56) + number),
                    port=self._integer(net, "port", 0),
                    net_gb_per_s=rate,
                    latency_us=self._latency(net),
                    rail=self._integer(net, "rail", -1),
                    plane=self._integer(net, "plane", -1),
                )
            )
            _join(vertex, added, PathType.NET, rate)

    def _guid(self, net: Net, default: int) -> int:
        text = net.get("guid")
        if text is None:
            return default
        try:
            return int(text, 16)
        except ValueError:
            raise self._error(net, f"has guid={text[:40]!r}, which is no hexadecimal number") from None

    def _latency(self, net: Net) -> float:
        try:
            return float32(float(net.get("latency") or 0))
        except ValueError:
            raise self._error(net, f"has latency={net.get('latency')!r}, which is no number of microseconds") from None

    def _add_nvlink(self, element: TopologyElement, gpu: TopologyElement, bus_id: str | None, host: int) -> None:
        if not isinstance(element, NvLink):
            return
        device = self._device_of(element, gpu, bus_id, host)
        if device is None:
            return
        kind = _pci_kind(element.get("tclass") or "")
        rate = self._integer(element, "count") * float32(self.constants.nvlink_gb_per_s(device.capability))
        if kind is Kind.GPU:
            peer = self.graph.find(Kind.DEV, (host, self._bus_id(element, element.target)))
            if peer is not None:
                connect(device, peer, PathType.NVL, rate)
            return
        if kind is Kind.CPU:
            remote = _local_cpu(device, None)
        else:
            switches = self.graph.vertices[Kind.NVS]
            remote = switches[0] if switches else self.graph.add(Vertex(Kind.NVS, (0, 0)))
        if remote is not None:
            _join(device, remote, PathType.NVL, rate)

    def _add_c2c(self, element: TopologyElement, gpu: TopologyElement, bus_id: str | None, host: int) -> None:
        if not isinstance(element, C2c):
            return
        device = self._device_of(element, gpu, bus_id, host)
        cpu = None if device is None else _local_cpu(device, None)
        if device is not None and cpu is not None:
            rate = self._integer(element, "bw") * self._integer(element, "count") / 1000
            _join(device, cpu, PathType.C2C, rate)

    def _device_of(
        self, element: TopologyElement, gpu: TopologyElement, bus_id: str | None, host: int
    ) -> Vertex | None:
        """The device of an nvlink or c2c; None where it stands under the second rank of a device, which counts it once."""
        if gpu.get("rank") is None:
            return None
        device = self.graph.find(Kind.DEV, (host, self._bus_id(element, bus_id)))
        if device is None:
            raise self._error(element, "stands under no GPU that NCCL knows; a <gpu> belongs into a <pci>")
        first = next(link.end for link in device.links if link.end.kind is Kind.GPU)
        return device if first.rank == gpu.integer("rank") else None

    def _add_pcilink(self, element: TopologyElement, _: TopologyElement, bus_id: str | None, host: int) -> None:
        if not isinstance(element, Other) or element.name != "pcilink":
            return
        here = self.graph.find(Kind.PCI, (host, self._bus_id(element, bus_id)))
        there = self.graph.find(Kind.PCI, (host, self._bus_id(element, element.get("target"))))
        if here is None:
            raise self._error(element, "stands under no PCIe switch")
        if there is not None:
            connect(here, there, PathType.LOC, self.rates["local"])

    def _connect_cpus(self) -> None:
        cpus = self.graph.vertices[Kind.CPU]
        for one in cpus:
            for other in cpus:
                if one is not other and one.id[0] == other.id[0]:
                    connect(one, other, PathType.SYS, one.cpu_link_gb_per_s)


def _with_bus_ids(
    element: TopologyElement, bus_id: str | None, parent: TopologyElement
) -> Iterator[tuple[str | None, TopologyElement, TopologyElement]]:
    """Every element below with the bus id of the nearest one that has any, and its parent."""
    yield bus_id, parent, element
    own = element.get("busid") or bus_id
    for child in element.children:
        yield from _with_bus_ids(child, own, element)


def _pci_kind(class_: str) -> Kind:
    """What a PCI class is to NCCL; anything unknown is a switch."""
    for prefix, kind in _PCI_CLASSES:
        if class_.startswith(prefix):
            return kind
    return Kind.PCI


_PCI_CLASSES = (
    ("0x060400", Kind.PCI),
    ("0x080100", Kind.PCI),
    ("0x068000", Kind.NVS),
    ("0x068001", Kind.CPU),
    ("0x03", Kind.GPU),
    ("0x02", Kind.NIC),
)
"""First match counts. Source: NVIDIA/nccl 2.30.7, src/graph/topo.cc."""


def _pci_device(pci: Pci) -> int:
    names = ("vendor", "device", "subsystem_vendor", "subsystem_device")
    return sum((pci.integer(name) or 0) << shift for name, shift in zip(names, (48, 32, 16, 0), strict=True))


def _join(one: Vertex, other: Vertex, type_: PathType, gb_per_s: float) -> None:
    connect(one, other, type_, gb_per_s)
    connect(other, one, type_, gb_per_s)


def _local_cpu(vertex: Vertex, came_from: Vertex | None) -> Vertex | None:
    """The CPU above a device, through PCIe switches only."""
    if vertex.kind is Kind.CPU:
        return vertex
    for link in vertex.links:
        upward = link.type == PathType.PIX and link.end is not came_from and link.end.kind in (Kind.PCI, Kind.CPU)
        if upward and (found := _local_cpu(link.end, vertex)) is not None:
            return found
    return None


_PEX_GEN4, _PEX_GEN5 = 0x1000C0101000A000, 0x1000C03010000000
"""Ids of Broadcom PEX switches, without the last twelve bits. Source: NVIDIA/nccl 2.30.7, src/graph/topo.cc."""


def _broadcom_generation(device: int, level: int) -> int:
    model = device & ~0xFFF
    if model == _PEX_GEN4:
        return 4
    return 5 if model == _PEX_GEN5 | level << 12 else 0


def _flatten_broadcom_switches(graph: TopologyGraph) -> None:
    """Joins switches that show themselves as two levels but carry the full rate across: one vertex for the whole."""
    switches = graph.vertices[Kind.PCI]
    place = 0
    while place < len(switches):
        top = switches[place]
        generation = _broadcom_generation(top.pci_device, 0)
        if not generation:
            place += 1
            continue
        parts = [
            link.end
            for link in top.links
            if link.end.kind is Kind.PCI and _broadcom_generation(link.end.pci_device, 1) == generation
        ]
        top.links = [link for link in top.links if link.end not in parts]
        for part in parts:
            for link in part.links:
                if link.end is top:
                    continue
                top.links.append(Link(link.type, top, link.end, link.gb_per_s))
                back = next((known for known in link.end.links if known.end is part), None)
                if back is not None:
                    back.end = top
            switches.remove(part)
        top.pci_device |= 0xFFFF  # it must not be joined again
        place = 0


def _put_upward_links_last(vertex: Vertex, above: Vertex | None) -> None:
    """Orders links as the search wants them: NVLink, PCIe down, PCIe up."""
    if above is not None:
        upward = next(link for link in vertex.links if link.end is above)
        vertex.links.remove(upward)
        vertex.links.append(upward)
    for link in list(vertex.links):
        if link.type == PathType.PIX and link.end is not above:
            _put_upward_links_last(link.end, vertex)
