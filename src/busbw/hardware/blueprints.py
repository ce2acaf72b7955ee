"""Node blueprints: which GPUs, NICs, PCIe switches and NUMA nodes a known kind of server holds, and the links of them.

The blueprints lie in `blueprints.json` beside this module, with a source per part. GPUs and NICs are numbered as NCCL
numbers them, from 0. Real machines of one kind differ in NUMA numbering and cabling; a topology file of the machine
itself always says more than its blueprint.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

from busbw.hardware.catalogue import Accelerator, CpuLink, Nic, NvSwitch, load_catalogue, pcie_bytes_per_s
from busbw.hardware.links import (
    C2C,
    CPU,
    CPU_LINK,
    GPU,
    NIC,
    NVLINK,
    NVSWITCH,
    PCIE,
    PCIE_SWITCH,
    GraphBuilder,
    NodeGraph,
    Path,
)

__all__ = ["CpuId", "Node", "PcieRoot", "cpu_link", "find_node", "load_nodes", "mesh_share_bytes_per_s"]

_GIGA = 1e9
_MEGA = 1e6
_BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class CpuId:
    """What the kernel says a CPU is; NCCL takes the rate between sockets from it."""

    architecture: str
    """x86_64, arm64."""
    vendor: str | None
    """GenuineIntel, AuthenticAMD; None where the file does not say."""
    family: int | None
    model: int | None


@dataclass(frozen=True, slots=True)
class PcieRoot:
    """A PCIe switch, or a root port with nothing between: the devices below it share its link to the CPU."""

    numa_node: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...]
    generation: int
    width: int
    has_switch: bool = True
    """False where devices sit on root ports of the CPU, each with a link of its own."""
    gpu_link: tuple[int, int] | None = None
    """Generation and width of the link of each GPU; None: as the link to the CPU."""
    nic_link: tuple[int, int] | None = None
    """Generation and width of the link of each NIC; None: as the link to the CPU."""

    @property
    def bytes_per_s(self) -> float:
        """The link to the CPU, one direction, after line coding."""
        return pcie_bytes_per_s(self.generation, self.width)

    @property
    def gpu_bytes_per_s(self) -> float:
        """The link of one GPU, one direction, after line coding."""
        return pcie_bytes_per_s(*(self.gpu_link or (self.generation, self.width)))

    @property
    def nic_bytes_per_s(self) -> float:
        """The slot of one NIC, one direction, after line coding."""
        return pcie_bytes_per_s(*(self.nic_link or (self.generation, self.width)))


@dataclass(frozen=True, slots=True)
class Node:
    """One kind of host with its GPUs, NICs and links. On NVL72 systems a node is a compute tray of four GPUs."""

    name: str
    title: str
    accelerator: Accelerator
    gpus: int
    nic: Nic
    nic_rate_bytes_per_s: float
    """Line rate of one NIC in this node, one direction."""
    pcie: tuple[PcieRoot, ...]
    nvswitch: NvSwitch | None
    nvswitches: int
    """Chips in the NVLink domain the node belongs to; 0 where GPUs are joined without a switch."""
    nvlink_domain_nodes: int
    """Nodes that share one NVLink domain: 18 on NVL72 systems, 1 elsewhere."""
    cpu: str
    sources: Mapping[str, str]
    cpu_id: CpuId = CpuId("x86_64", None, None, None)
    cpu_link: CpuLink | None = None
    """What joins NUMA nodes; None where there is one, or nothing is known."""
    c2c_bytes_per_s: float | None = None
    """GPU to CPU beside PCIe, one direction, all links; None where there is none."""
    nvlink_mesh: tuple[tuple[int, int, int], ...] = ()
    """GPU, GPU, links between, each pair once; empty where a switch joins them, or nothing."""
    read_graph: NodeGraph | None = field(default=None, compare=False, repr=False)
    """The graph of a machine that was read from a file, which may be deeper than its PCIe roots tell."""

    def __post_init__(self) -> None:
        below = sorted(gpu for root in self.pcie for gpu in root.gpus)
        if below != list(range(self.gpus)):
            raise ValueError(f"{self.name}: PCIe roots hold GPUs {below}, the node has 0 to {self.gpus - 1}")
        nics = sorted(nic for root in self.pcie for nic in root.nics)
        if nics != list(range(len(nics))):
            raise ValueError(f"{self.name}: NICs {nics} are not numbered 0 to {len(nics) - 1}, each once")
        for a, b, links in self.nvlink_mesh:
            if not (0 <= a < self.gpus and 0 <= b < self.gpus and a != b and links >= 1):
                raise ValueError(f"{self.name}: {links} links between GPUs {a} and {b} cannot be")
        if self.nic_rate_bytes_per_s <= 0 or self.nvlink_domain_nodes < 1:
            raise ValueError(f"{self.name}: NIC rate and NVLink domain must be positive")

    @property
    def nics(self) -> int:
        """NICs that carry GPU traffic."""
        return sum(len(root.nics) for root in self.pcie)

    @property
    def network_bytes_per_s(self) -> float:
        """Line rate of all NICs together, one direction."""
        return self.nics * self.nic_rate_bytes_per_s

    @property
    def numa_nodes(self) -> tuple[int, ...]:
        """The NUMA nodes that have a device, ascending."""
        return tuple(sorted({root.numa_node for root in self.pcie}))

    def root_of_gpu(self, gpu: int) -> PcieRoot:
        """The PCIe switch or root port above a GPU. Raises KeyError for a GPU the node does not have."""
        for root in self.pcie:
            if gpu in root.gpus:
                return root
        raise KeyError(f"{self.name} has GPUs 0 to {self.gpus - 1}, not {gpu}")

    def nearest_nics(self, gpu: int) -> tuple[int, ...]:
        """The NICs closest to a GPU: under the same PCIe root, else on the same NUMA node, else all."""
        root = self.root_of_gpu(gpu)
        if root.nics:
            return root.nics
        same_numa = [other.nics for other in self.pcie if other.numa_node == root.numa_node]
        near = tuple(nic for nics in same_numa for nic in nics)
        return near or tuple(range(self.nics))

    @property
    def rails(self) -> int:
        """Planes of a rail-optimised fabric: NICs of a node, NIC r on rail r."""
        return self.nics

    def rail_of_gpu(self, gpu: int) -> int | None:
        """The NIC a GPU is meant to use: of its nearest, the one by its place among the GPUs near the same ones.

        None for a node without NICs.
        """
        nics = self.nearest_nics(gpu)
        if not nics:
            return None
        sharing = [other for other in range(self.gpus) if self.nearest_nics(other) == nics]
        return nics[sharing.index(gpu) * max(1, len(nics) // len(sharing)) % len(nics)]

    def nics_of_gpu(self, gpu: int) -> tuple[int, ...]:
        """All NICs that are a GPU's own: its even share of its nearest; the one of `rail_of_gpu` where GPUs share. Empty without NICs."""
        nics = self.nearest_nics(gpu)
        sharing = [other for other in range(self.gpus) if self.nearest_nics(other) == nics]
        each, rail = len(nics) // len(sharing), self.rail_of_gpu(gpu)
        if each > 1:
            return nics[sharing.index(gpu) * each : (sharing.index(gpu) + 1) * each]
        return () if rail is None else (rail,)

    @property
    def nvlink_bytes_per_s(self) -> float | None:
        """One NVLink, one direction; None for GPUs without, and where the number of links is not known."""
        return self.accelerator.nvlink_bytes_per_s

    @property
    def mesh_link_bytes_per_s(self) -> float:
        """One direction of one link of the mesh; of makes that give the rate of all links of a GPU only, its even share. 0: not known."""
        return self.nvlink_bytes_per_s or mesh_share_bytes_per_s(self.accelerator, self.nvlink_mesh)

    @property
    def graph(self) -> NodeGraph:
        """GPUs, NICs, NUMA nodes, PCIe switches and one NVSwitch as vertices; NVLink, PCIe, C2C and sockets as links.

        The NVSwitch vertex stands for all chips of the domain: each GPU has one link to it of its whole NVLink rate.
        """
        return self.read_graph if self.read_graph is not None else _graph(self)

    def gpu_nic_path(self, gpu: int, nic: int) -> Path:
        """From a GPU to a NIC of its node, as GPUDirect RDMA takes it. Raises KeyError for devices it does not have."""
        graph = self.graph
        return graph.path(graph.vertex("gpu", gpu), graph.vertex("nic", nic))

    def gpu_gpu_path(self, a: int, b: int, *, nvlink: bool = True) -> Path:
        """From GPU to GPU inside the node. Raises KeyError for GPUs it does not have."""
        graph = self.graph
        return graph.path(graph.vertex("gpu", a), graph.vertex("gpu", b), pcie_only=not nvlink)


def mesh_share_bytes_per_s(accelerator: Accelerator, mesh: Iterable[tuple[int, int, int]]) -> float:
    """One direction of one link, where only the rate of all links of a GPU is known: the share of the GPU with the most. 0: not known."""
    links: Counter[int] = Counter()
    for a, b, count in mesh:
        links.update({a: count, b: count})
    return (accelerator.scale_up_bytes_per_s.value or 0.0) / max(links.values(), default=1)


@lru_cache(maxsize=1)
def load_nodes() -> Mapping[str, Node]:
    """The blueprints shipped with the package by name, read once."""
    data = json.loads(resources.files(__package__).joinpath("blueprints.json").read_text(encoding="utf-8"))
    return MappingProxyType({name: _node(name, entry) for name, entry in data["nodes"].items()})


@lru_cache(maxsize=1)
def _aliases() -> Mapping[str, str]:
    data = json.loads(resources.files(__package__).joinpath("blueprints.json").read_text(encoding="utf-8"))
    return {alias: name for name, entry in data["nodes"].items() for alias in entry["aliases"]}


def find_node(name: str) -> Node | None:
    """The blueprint of a name or alias, case and underscores ignored; None where there is none.

    >>> find_node("HGX_H100").name
    'dgx-h100'
    """
    key = name.strip().lower().replace("_", "-")
    return load_nodes().get(_aliases().get(key, key))


def _node(name: str, entry: Mapping[str, object]) -> Node:
    catalogue = load_catalogue()
    nic, nvswitch, roots, cpu = entry["nic"], entry["nvswitch"], entry["pcie"], entry["cpu_id"]
    sources, c2c, mesh = entry["sources"], entry.get("c2c"), entry.get("nvlink_mesh", [])
    if not (isinstance(nic, dict) and isinstance(roots, list) and isinstance(sources, dict)):
        raise TypeError(f"blueprints.json: {name}: nic and sources must be objects, pcie a list")
    if not (isinstance(cpu, dict) and isinstance(mesh, list)):
        raise TypeError(f"blueprints.json: {name}: cpu_id must be an object, nvlink_mesh a list")
    return Node(
        name=name,
        title=str(entry["title"]),
        accelerator=catalogue.accelerators[str(entry["accelerator"])],
        gpus=int(str(entry["gpus"])),
        nic=catalogue.nics[nic["name"]],
        nic_rate_bytes_per_s=float(nic["rate_gbit_s"]) * _GIGA / _BITS_PER_BYTE,
        pcie=tuple(
            PcieRoot(
                int(root["numa_node"]),
                tuple(int(gpu) for gpu in root["gpus"]),
                tuple(int(index) for index in root["nics"]),
                int(root["generation"]),
                int(root["width"]),
                bool(root["switch"]),
                _link(root.get("gpu_link")),
                _link(root.get("nic_link")),
            )
            for root in roots
        ),
        nvswitch=catalogue.nvswitches[nvswitch["name"]] if isinstance(nvswitch, dict) else None,
        nvswitches=int(nvswitch["count"]) if isinstance(nvswitch, dict) else 0,
        nvlink_domain_nodes=int(str(entry["nvlink_domain_nodes"])),
        cpu=str(entry["cpu"]),
        sources={str(part): str(source) for part, source in sources.items()},
        cpu_id=CpuId(cpu["arch"], cpu["vendor"], cpu["family"], cpu["model"]),
        cpu_link=catalogue.cpu_links[cpu["link"]],
        c2c_bytes_per_s=float(c2c["link_mb_s"]) * _MEGA * int(c2c["links"]) if isinstance(c2c, dict) else None,
        nvlink_mesh=tuple((int(a), int(b), int(links)) for a, b, links in mesh),
    )


def _link(value: object) -> tuple[int, int] | None:
    return (int(value[0]), int(value[1])) if isinstance(value, list) else None


def cpu_link(cpu: CpuId) -> CpuLink | None:
    """What joins the sockets of a CPU, by the rule NCCL has; None where it has none for it.

    Source: NVIDIA/nccl 2.30.7, src/graph/topo.cc. Grace is told by arm64.
    """
    links = load_catalogue().cpu_links
    if cpu.architecture == "arm64":
        return links["Grace C2C"]
    if cpu.vendor == "AuthenticAMD":
        return links["Infinity Fabric"]
    if cpu.vendor != "GenuineIntel":
        return None
    model = cpu.model or 0
    steps = ((0xCF, "UPI Emerald Rapids"), (0x8F, "UPI Sapphire Rapids"), (0x55, "UPI Skylake"), (0, "QPI Broadwell"))
    return next(links[name] for least, name in steps if model >= least)


def _graph(node: Node) -> NodeGraph:
    latency = {name: hop.latency_s.value or 0.0 for name, hop in load_catalogue().latencies.items()}
    builder = GraphBuilder()
    cpus = {root.numa_node: builder.add(CPU, root.numa_node) for root in node.pcie}
    switches = 0
    for root in node.pcie:
        above = cpus[root.numa_node]
        if root.has_switch:
            above = builder.add(PCIE_SWITCH, switches)
            switches += 1
            builder.join(cpus[root.numa_node], above, root.bytes_per_s, latency["pcie"], PCIE)
        for gpu in root.gpus:
            builder.join(above, builder.add(GPU, gpu), root.gpu_bytes_per_s, latency["pcie"], PCIE)
            if node.c2c_bytes_per_s:
                builder.join(cpus[root.numa_node], (GPU, gpu), node.c2c_bytes_per_s, latency["cpu"], C2C)
        for nic in root.nics:
            builder.join(above, builder.add(NIC, nic), root.nic_bytes_per_s, latency["pcie"], PCIE)
    numas = list(cpus.values())
    if node.cpu_link is not None and node.cpu_link.bytes_per_s.value:
        for index, a in enumerate(numas):
            for b in numas[index + 1 :]:
                builder.join(a, b, node.cpu_link.bytes_per_s.value, latency["cpu"], CPU_LINK)
    if node.nvswitch is not None and node.accelerator.scale_up_bytes_per_s.value:
        nvswitch = builder.add(NVSWITCH, 0)
        for gpu in range(node.gpus):
            # Half of a GPU-to-GPU hop each side of the switch.
            builder.join(
                (GPU, gpu), nvswitch, node.accelerator.scale_up_bytes_per_s.value, latency["nvlink"] / 2, NVLINK
            )
    for one, other, links in node.nvlink_mesh:
        rate = node.mesh_link_bytes_per_s * links
        if rate:
            builder.join((GPU, one), (GPU, other), rate, latency["nvlink"], NVLINK)
    return builder.graph()
