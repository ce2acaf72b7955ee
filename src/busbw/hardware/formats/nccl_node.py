"""A node as NCCL topology XML and back: what NCCL_TOPO_FILE takes, what NCCL_TOPO_DUMP_FILE wrote.

The XML itself is read and written by `nccl_topo_xml`; here its elements become vertices and links. NVLinks of AMD
(`xgmi`, as RCCL writes) are read and written too. What is written is also what `busbw.nccl` searches for hardware that
nobody has.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import numpy as np

from busbw.errors import InputError, Loss, count_losses
from busbw.hardware.blueprints import CpuId, Node, PcieRoot
from busbw.hardware.catalogue import PCIE_GT_PER_S, pcie_bytes_per_s
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
from busbw.hardware.formats.read_nodes import (
    NodeParts,
    accelerator_of,
    latency_s,
    nvlink_rate,
    pcie_link_of_rate,
)
from busbw.hardware.links import C2C, CPU, GPU, NVLINK, NVSWITCH, PCIE, PCIE_SWITCH

__all__ = ["node_from_nccl_topology", "node_to_nccl_topology"]

_INVISIBLE_SWITCH = "fffffff:ffff:ff"
_C2C_LINKS = 10
"""C2C links of a GPU. Source: NCCL topology XML of GB200 hosts."""
_UNKNOWN_PCIE = (3, 16)
"""What NCCL takes for a link of unknown speed and width. Source: NVIDIA/nccl 2.30.7, src/graph/topo.cc."""
_UNKNOWN_NET_BYTES_PER_S = 10e9 / 8
"""What NCCL takes for a net without a speed. Source: the same file."""


def node_to_nccl_topology(node: Node, hosts: int = 1) -> tuple[NcclTopology, list[str]]:
    """The node, or several hosts of its kind in one NVLink domain, as NCCL finds them, and what had to be assumed.

    `write_nccl_topology` makes the XML of it. Bus ids are made up, one bus a switch; NCCL_TOPO_FILE needs those of the
    machine. Affinities are left out. NICs and GPUs are taken to have GPUDirect RDMA. Ranks go through all hosts.
    Raises InputError for more hosts than share NVLink.
    """
    if hosts < 1 or hosts > node.nvlink_domain_nodes:
        raise InputError(f"{node.name}: 1 to {node.nvlink_domain_nodes} hosts share NVLink, not {hosts}.")
    writer = _Writer(node, hosts)
    cpus = tuple(cpu for host in range(hosts) for cpu in writer.cpus(host))
    return NcclTopology((System((("version", "1"),), cpus),), f"<{node.name}>"), _assumptions(node)


def _assumptions(node: Node) -> list[str]:
    notes, cpu = [], node.cpu_id
    if "guess" in node.sources.get("cpu_id", ""):
        told = f"{cpu.vendor or cpu.architecture} family {cpu.family} model {cpu.model}"
        notes.append(f"{node.name}: the CPU is {node.cpu}; taken as {told}, a guess.")
    unsaid = node.read_graph is None and node.nvswitch is None and not node.nvlink_mesh and node.gpus > 1
    if unsaid and node.accelerator.scale_up_shape.value in ("mesh", "bridge"):
        notes.append(
            f"{node.name}: which GPUs NVLink joins is not stated; taken as none. "
            "NCCL_TOPO_DUMP_FILE makes NCCL write the file of such a machine."
        )
    return notes


class _Writer:
    """Numbers buses while it walks the tree."""

    def __init__(self, node: Node, hosts: int) -> None:
        self.node, self.graph, self.hosts = node, node.graph, hosts
        self.bus = 0
        cc = node.accelerator.compute_capability
        gfx = re.search(r"gfx(\w+)", node.accelerator.architecture)
        self.sm = str(cc) if cc is not None else gfx.group(1) if gfx else "0"
        self.amd = gfx is not None
        self.nvlink_bytes_per_s = nvlink_rate(node.accelerator) or node.mesh_link_bytes_per_s
        self.links = self.graph.links
        self.gpu_bus: dict[int, str] = {}
        self.numas = [int(vertex) for vertex in np.flatnonzero(self.graph.kind == CPU)]
        # Bus ids first: an NVLink names its peer, which may stand below another CPU.
        for cpu in self.numas:
            self._name_buses(cpu, cpu, "")

    def cpus(self, host: int) -> Iterator[Cpu]:
        """The NUMA nodes of one host."""
        for cpu in self.numas:
            told = self.node.cpu_id
            # The hash is made up, and needed only to tell hosts apart.
            attributes = [("host_hash", hex(host + 1))] if self.hosts > 1 else []
            attributes += [("numaid", str(int(self.graph.number[cpu]))), ("arch", told.architecture)]
            attributes += [("vendor", told.vendor)] if told.vendor else []
            attributes += [("familyid", str(told.family))] if told.family is not None else []
            attributes += [("modelid", str(told.model))] if told.model is not None else []
            yield Cpu(tuple(attributes), tuple(self._below(host, cpu, -1)))

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

    def _below(self, host: int, vertex: int, above: int) -> Iterator[Pci]:
        for link, below in self._ordered(vertex, above):
            kind = int(self.graph.kind[below])
            rate = float(self.links.bandwidth_bytes_per_s[link])
            children: tuple[TopologyElement, ...]
            if kind == PCIE_SWITCH:
                class_, preferred, children = "0x060400", None, tuple(self._below(host, below, vertex))
            elif kind == GPU:
                class_, preferred = "0x030200", self.node.accelerator.pcie_generation.value
                children = (self._gpu(host, below),)
            else:
                generation = self.node.nic.pcie_generation
                class_, preferred = "0x020700", generation.value if generation else None
                children = (NicElement((), (self._net(host, below),)),)
            generation_, width = pcie_link_of_rate(rate, preferred)
            attributes = (
                ("busid", self.gpu_bus[below]),
                ("class", class_),
                ("link_speed", f"{PCIE_GT_PER_S[generation_]:.1f} GT/s PCIe"),
                ("link_width", str(width)),
            )
            yield Pci(attributes, children)

    def _gpu(self, host: int, vertex: int) -> Gpu:
        number = int(self.graph.number[vertex])
        children: list[TopologyElement] = []
        per_link = self.nvlink_bytes_per_s
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
        rank = host * self.node.gpus + number
        attributes_ = (("dev", str(number)), ("sm", self.sm), ("rank", str(rank)), ("gdr", "1"))
        return Gpu(attributes_, tuple(children))

    def _net(self, host: int, vertex: int) -> Net:
        number, product = int(self.graph.number[vertex]), self.node.nic.name
        # Linux names adapters of these lines mlx5_<n> (drivers/infiniband/hw/mlx5); others get the name of the product.
        driver = "mlx5" if product.startswith(("ConnectX", "BlueField")) else re.sub(r"[^a-z0-9]", "", product.lower())
        guid = hex(0x1000 + host * self.node.nics + number)
        mbit_s = round(self.node.nic_rate_bytes_per_s * 8 / 1e6)
        attributes = (
            *(("name", f"{driver}_{number}"), ("dev", str(number)), ("latency", "0"), ("speed", str(mbit_s))),
            *(("port", "1"), ("guid", guid), ("maxconn", "131072"), ("gdr", "1")),
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
        generation, width = pci.link_generation, pci.link_width
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
