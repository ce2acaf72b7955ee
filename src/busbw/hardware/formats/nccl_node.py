"""A node as NCCL topology XML and back: what NCCL_TOPO_FILE takes, what NCCL_TOPO_DUMP_FILE wrote.

The XML itself is read and written by `nccl_topo_xml`; here its elements become vertices and links. NVLinks of AMD
(`xgmi`, as RCCL writes) are read and written too.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import numpy as np

from busbw.errors import Loss
from busbw.hardware.blueprints import CpuId, Node, PcieRoot
from busbw.hardware.catalogue import pcie_bytes_per_s
from busbw.hardware.formats.nccl_topo_xml import (
    C2c,
    Cpu,
    Gpu,
    NcclTopology,
    Net,
    NvLink,
    Other,
    Pci,
    System,
    TopologyElement,
)
from busbw.hardware.formats.nccl_topo_xml import Nic as NicElement
from busbw.hardware.formats.read_nodes import NodeParts, accelerator_of, count_losses, latency_s, pcie_link_of_rate
from busbw.hardware.links import C2C, CPU, GPU, NVLINK, NVSWITCH, PCIE, PCIE_SWITCH, NodeGraph

__all__ = ["node_from_nccl_topology", "node_to_nccl_topology"]

_GT_PER_S = {1: "2.5", 2: "5.0", 3: "8.0", 4: "16.0", 5: "32.0", 6: "64.0"}
_GENERATION = {float(speed): generation for generation, speed in _GT_PER_S.items()}
_INVISIBLE_SWITCH = "fffffff:ffff:ff"
_C2C_LINKS = 10
"""C2C links of a GPU. Source: NCCL topology XML of GB200 hosts."""
_UNKNOWN_PCIE = (3, 16)
"""What NCCL takes for a link of unknown speed and width. Source: NVIDIA/nccl 2.30.7, src/graph/topo.cc."""
_UNKNOWN_NET_BYTES_PER_S = 10e9 / 8
"""What NCCL takes for a net without a speed. Source: the same file."""


def node_to_nccl_topology(node: Node) -> NcclTopology:
    """The node as NCCL's topology file describes it; `write_nccl_topology` makes the XML of it.

    Bus ids are made up, one bus a switch; NCCL_TOPO_FILE needs those of the machine. Affinities are left out.
    """
    graph = node.graph
    cpus = [int(vertex) for vertex in np.flatnonzero(graph.kind == CPU)]
    return NcclTopology((System((("version", "1"),), tuple(_Writer(node, graph).cpus(cpus))),), f"<{node.name}>")


class _Writer:
    """Numbers buses while it walks the tree."""

    def __init__(self, node: Node, graph: NodeGraph) -> None:
        self.node, self.graph = node, graph
        self.bus = 0
        cc = node.accelerator.compute_capability
        gfx = re.search(r"gfx(\w+)", node.accelerator.architecture)
        self.sm = str(cc) if cc is not None else gfx.group(1) if gfx else "0"
        self.amd = gfx is not None
        self.links = graph.links
        self.gpu_bus: dict[int, str] = {}

    def cpus(self, cpus: Sequence[int]) -> Iterator[Cpu]:
        # Bus ids first: an NVLink names its peer, which may stand below another CPU.
        for cpu in cpus:
            self._name_buses(cpu, cpu, "")
        for cpu in cpus:
            told = self.node.cpu_id
            attributes = [("numaid", str(int(self.graph.number[cpu]))), ("arch", told.architecture)]
            attributes += [("vendor", told.vendor)] if told.vendor else []
            attributes += [("familyid", str(told.family))] if told.family is not None else []
            attributes += [("modelid", str(told.model))] if told.model is not None else []
            yield Cpu(tuple(attributes), tuple(self._below(cpu, -1)))

    def _pcie(self, vertex: int, above: int) -> Iterator[tuple[int, int]]:
        """Links and vertices below a vertex."""
        for link in np.flatnonzero((self.links.src == vertex) & (self.links.kind == PCIE)):
            if self.links.dst[link] != above:
                yield int(link), int(self.links.dst[link])

    def _ordered(self, vertex: int, above: int) -> list[tuple[int, int]]:
        # Switches come by number, so that reading numbers them the same; devices of a switch after them.
        return sorted(self._pcie(vertex, above), key=lambda pair: (self.graph.kind[pair[1]] != PCIE_SWITCH, pair[1]))

    def _name_buses(self, vertex: int, above: int, prefix: str) -> None:
        for slot, (_, below) in enumerate(self._ordered(vertex, above)):
            if self.graph.kind[below] == PCIE_SWITCH:
                self.bus += 1
                self.gpu_bus[below] = f"0000:{self.bus:02x}:00.0"
                self._name_buses(below, vertex, f"{self.bus:02x}")
            elif prefix:
                self.gpu_bus[below] = f"0000:{prefix}:{slot + 1:02x}.0"
            else:
                self.bus += 1
                self.gpu_bus[below] = f"0000:{self.bus:02x}:00.0"

    def _below(self, vertex: int, above: int) -> Iterator[Pci]:
        for link, below in self._ordered(vertex, above):
            kind = int(self.graph.kind[below])
            rate = float(self.links.bandwidth_bytes_per_s[link])
            children: tuple[TopologyElement, ...]
            if kind == PCIE_SWITCH:
                class_, preferred, children = "0x060400", None, tuple(self._below(below, vertex))
            elif kind == GPU:
                class_, preferred = "0x030200", self.node.accelerator.pcie_generation.value
                children = (self._gpu(below),)
            else:
                generation = self.node.nic.pcie_generation
                class_, preferred = "0x020700", generation.value if generation else None
                children = (NicElement((), (self._net(below),)),)
            generation_, width = pcie_link_of_rate(rate, preferred)
            attributes = (
                ("busid", self.gpu_bus[below]),
                ("class", class_),
                ("link_speed", f"{_GT_PER_S[generation_]} GT/s PCIe"),
                ("link_width", str(width)),
            )
            yield Pci(attributes, children)

    def _gpu(self, vertex: int) -> Gpu:
        number = str(int(self.graph.number[vertex]))
        children: list[TopologyElement] = []
        per_link = self.node.nvlink_bytes_per_s or 0.0
        for link in np.flatnonzero(self.links.src == vertex):
            rate, to = float(self.links.bandwidth_bytes_per_s[link]), int(self.links.dst[link])
            if self.links.kind[link] == NVLINK and per_link:
                switch = self.graph.kind[to] == NVSWITCH
                attributes = (
                    ("target", _INVISIBLE_SWITCH if switch else self.gpu_bus[to]),
                    ("count", str(round(rate / per_link))),
                    ("tclass", "0x068000" if switch else "0x030200"),
                )
                children.append(Other(attributes, name="xgmi") if self.amd else NvLink(attributes))
            elif self.links.kind[link] == C2C:
                mb_s = round(rate / _C2C_LINKS / 1e6)
                children.append(C2c((("bw", str(mb_s)), ("count", str(_C2C_LINKS)))))
        attributes_ = (("dev", number), ("sm", self.sm), ("rank", number), ("gdr", "1"))
        return Gpu(attributes_, tuple(children))

    def _net(self, vertex: int) -> Net:
        number = int(self.graph.number[vertex])
        mbit_s = round(self.node.nic_rate_bytes_per_s * 8 / 1e6)
        attributes = (
            *(("name", f"mlx5_{number}"), ("dev", str(number)), ("latency", "0"), ("speed", str(mbit_s))),
            *(("port", "1"), ("guid", hex(0x1000 + number)), ("maxconn", "131072"), ("gdr", "1")),
        )
        return Net(attributes)


def node_from_nccl_topology(
    topology: NcclTopology, name: str, accelerator: str | None = None
) -> tuple[Node, list[Loss]]:
    """The node a topology file describes, and what was lost.

    accelerator names the GPU; without, the usual product of its compute capability is taken, and `sources` says so.
    GPUs and NICs are numbered in the order of `dev`. Nets without GPUDirect are left out where others have it.
    Losses: `node-more-hosts` (only the first is taken), `node-unknown-link` (PCIe speed or width), `node-unknown-rate`
    (a NIC without a speed), `node-left-out`.
    Raises InputError for a file without GPUs, or with GPUs the catalogue does not know.
    """
    return _Reader(topology, name).node(accelerator)


class _Reader:
    def __init__(self, topology: NcclTopology, name: str) -> None:
        self.topology = topology
        self.parts = NodeParts(name, topology.path)
        self.losses: list[Loss] = []
        self.switches = 0
        hosts = dict.fromkeys(cpu.host_hash for cpu in topology.cpus)
        self.cpus = [cpu for cpu in topology.cpus if cpu.host_hash == next(iter(hosts))] if hosts else []
        if len(hosts) > 1:
            self._lose("node-more-hosts", 0, f"{len(hosts)} hosts in one file; the first is taken as the node")
            self.parts.domain_nodes = len(hosts)
        pcis = [pci for cpu in self.cpus for pci in cpu.walk() if isinstance(pci, Pci)]
        gpus = [pci for pci in pcis if pci.is_gpu and not pci.is_bridge]
        self.gpu_of = {id(pci): number for number, pci in enumerate(sorted(gpus, key=_device_of_gpu))}
        self.gpu_at = {pci.bus_id: self.gpu_of[id(pci)] for pci in gpus}
        nets = [element for cpu in self.cpus for element in cpu.walk() if isinstance(element, Net)]
        direct = [net for net in nets if net.gpudirect_rdma is not False and "+" not in (net.name or "")]
        kept = direct or [net for net in nets if "+" not in (net.name or "")]
        for net in nets:
            if net not in kept:
                self._lose("node-left-out", net.line, f"net {net.name} has no GPUDirect, or is a merged pair; left out")
        bare = [pci for pci in pcis if pci.is_nic and not pci.is_bridge] if not nets else []
        self.nic_of: dict[int, int] = {
            id(element): number for number, element in enumerate([*sorted(kept, key=lambda n: n.device or 0), *bare])
        }

    def node(self, accelerator: str | None) -> tuple[Node, list[Loss]]:
        parts = self.parts
        if self.cpus:
            cpu = self.cpus[0]
            parts.cpu_id = CpuId(cpu.architecture or "x86_64", cpu.vendor, cpu.family, cpu.model)
        for order, cpu in enumerate(self.cpus):
            numa = cpu.numa_node if cpu.numa_node is not None and cpu.numa_node not in parts.numas else order
            parts.numas.append(numa)
            parts.builder.add(CPU, numa)
            for pci in cpu.children:
                if isinstance(pci, Pci):
                    self._root(pci, numa)
        parts.gpus = len(self.gpu_of)
        gpus = [element for cpu in self.cpus for element in cpu.walk() if isinstance(element, Gpu)]
        capability = next((gpu.compute_capability for gpu in gpus if gpu.compute_capability), None)
        product = accelerator_of(accelerator, capability, self.topology.path, c2c=bool(parts.c2c_bytes_per_s))
        guess = "named by the user" if accelerator else f"a guess: the usual GPU of sm_{capability}"
        path = self.topology.path
        sources = {"links": path, "accelerator": guess, "nic": "rates: " + path + "; product: a guess by its rate"}
        return parts.node(product, sources), count_losses(self.losses)

    def _root(self, pci: Pci, numa: int) -> None:
        gpus: list[int] = []
        nics: list[int] = []
        self._walk(pci, (CPU, numa), numa, gpus, nics)
        if gpus or nics:
            generation, width = self._link(pci)
            self.parts.roots.append(PcieRoot(numa, tuple(gpus), tuple(nics), generation, width, pci.is_bridge))

    def _walk(self, pci: Pci, above: tuple[int, int], numa: int, gpus: list[int], nics: list[int]) -> None:
        builder, rate = self.parts.builder, pcie_bytes_per_s(*self._link(pci))
        if id(pci) in self.gpu_of:
            number = self.gpu_of[id(pci)]
            gpus.append(number)
            builder.join(above, builder.add(GPU, number), rate, latency_s("pcie"), PCIE)
            self._gpu(pci, number, numa)
            return
        nets = [net for net in pci.walk() if isinstance(net, Net) and id(net) in self.nic_of]
        if not pci.is_bridge:
            if len(nets) > 1:  # ports share the slot of their adapter
                above = self._switch(above, rate)
            for net in nets:
                self._nic(self.nic_of[id(net)], net.speed_bytes_per_s, above, rate, nics)
            if id(pci) in self.nic_of:
                self._nic(self.nic_of[id(pci)], None, above, rate, nics)
            return
        if not any(id(below) in self.gpu_of or id(below) in self.nic_of for below in pci.walk()):
            return
        switch = self._switch(above, rate)
        for child in pci.children:
            if isinstance(child, Pci):
                self._walk(child, switch, numa, gpus, nics)

    def _switch(self, above: tuple[int, int], rate: float) -> tuple[int, int]:
        switch = self.parts.builder.add(PCIE_SWITCH, self.switches)
        self.switches += 1
        self.parts.builder.join(above, switch, rate, latency_s("pcie"), PCIE)
        return switch

    def _nic(self, number: int, speed: float | None, above: tuple[int, int], rate: float, nics: list[int]) -> None:
        nics.append(number)
        if speed is None:
            self._lose("node-unknown-rate", 0, f"NIC {number} has no speed; taken as 10 Gb/s, as NCCL does")
        vertex = self.parts.nic(number, speed or _UNKNOWN_NET_BYTES_PER_S)
        self.parts.builder.join(above, vertex, rate, latency_s("pcie"), PCIE)

    def _gpu(self, pci: Pci, number: int, numa: int) -> None:
        self.parts.numa_of_gpu[number] = numa
        for element in pci.walk():
            link = _nvlink(element)
            if isinstance(element, C2c) and element.bytes_per_s:
                self.parts.c2c_bytes_per_s[number] = element.bytes_per_s
            elif link is not None and link.count:
                peer = self.gpu_at.get(link.target)
                if peer is not None:
                    pair = (min(number, peer), max(number, peer))
                    self.parts.mesh[pair] = max(self.parts.mesh.get(pair, 0), link.count)
                elif link.to_switch:
                    self.parts.switched[number] = self.parts.switched.get(number, 0) + link.count

    def _link(self, pci: Pci) -> tuple[int, int]:
        generation, width = _GENERATION.get(pci.link_gt_per_s or 0.0), pci.link_width
        if generation is None or not width or width < 0:
            detail = f"link of {pci.bus_id} has no speed or width; taken as Gen3 x16, as NCCL does"
            self._lose("node-unknown-link", pci.line, detail)
        return generation or _UNKNOWN_PCIE[0], width if width and width > 0 else _UNKNOWN_PCIE[1]

    def _lose(self, kind: str, line: int, detail: str) -> None:
        self.losses.append(Loss(kind, self.topology.path, line or None, detail))


def _nvlink(element: TopologyElement) -> NvLink | None:
    if isinstance(element, NvLink):
        return element
    if isinstance(element, Other) and element.name == "xgmi":
        return NvLink(element.attributes, element.children, element.line)
    return None


def _device_of_gpu(pci: Pci) -> int:
    """The number of a GPU's function; 0 where the file does not say, so that the order of the file decides."""
    return next((gpu.device or 0 for gpu in pci.walk() if isinstance(gpu, Gpu)), 0)
