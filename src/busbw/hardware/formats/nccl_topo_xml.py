"""NCCL's topology XML, written with NCCL_TOPO_DUMP_FILE and read with NCCL_TOPO_FILE: what NCCL believes of a host.

A tree: system, cpu, pci (switches, bridges, devices), gpu with nvlink and c2c, nic with net. Elements and attributes
after NCCL 2.30.7, src/graph/xml.h and xml.cc; others are kept as they stand, so that writing gives back what was read.
Numbers that are no numbers read as None and count as a loss. A fragment quoted in a report is read too, and says so in
its losses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from busbw.errors import InputError, Loss, Losses
from busbw.hardware.catalogue import PCIE_GT_PER_S, pcie_bytes_per_s
from busbw.hardware.formats.xml import XmlElement, read_elements, write_elements

__all__ = [
    "C2c",
    "Cpu",
    "Gpu",
    "NcclTopology",
    "Net",
    "Nic",
    "NvLink",
    "Other",
    "Pci",
    "PcieBottleneck",
    "System",
    "TopologyElement",
    "read_nccl_topology",
    "write_nccl_topology",
]

_GIGA = 1e9
_BITS_PER_BYTE = 8
_GENERATION_OF_SPEED = {speed: generation for generation, speed in PCIE_GT_PER_S.items()}
_WARRANTED_GENERATION, _WARRANTED_WIDTH = 3, 8
"""The slowest link a GPU or a switch above one is run on by design: Gen3 x8, as in desktops with two slots. A guess;
every GPU of the catalogue has Gen3 x16 or better."""


@dataclass(frozen=True, slots=True)
class TopologyElement:
    """What every element has: attributes as printed, children, and the line it stood on."""

    attributes: tuple[tuple[str, str], ...] = ()
    children: tuple[TopologyElement, ...] = ()
    line: int = field(default=0, compare=False)

    tag: ClassVar[str] = ""
    integers: ClassVar[tuple[str, ...]] = ()
    """Attributes that NCCL reads as decimal integers."""

    @property
    def element_name(self) -> str:
        """The element's name in the file."""
        return self.tag

    def get(self, name: str) -> str | None:
        """An attribute as printed; None where it is absent."""
        return next((value for key, value in self.attributes if key == name), None)

    def integer(self, name: str) -> int | None:
        """An attribute as an integer, decimal or 0x; None where it is absent or no number."""
        return _integer(self.get(name))

    def walk(self) -> Iterator[TopologyElement]:
        """The element and all below it, in the order of the file."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class System(TopologyElement):
    """The root: one host, or several with multi-node NVLink."""

    tag: ClassVar[str] = "system"
    integers: ClassVar[tuple[str, ...]] = ("version",)

    @property
    def version(self) -> int | None:
        """1 so far."""
        return self.integer("version")


@dataclass(frozen=True, slots=True)
class Cpu(TopologyElement):
    """A NUMA node."""

    tag: ClassVar[str] = "cpu"
    integers: ClassVar[tuple[str, ...]] = ("numaid", "familyid", "modelid")

    @property
    def numa_node(self) -> int | None:
        """NUMA node, -1 where the kernel does not say."""
        return self.integer("numaid")

    @property
    def architecture(self) -> str | None:
        """x86_64, arm64 or ppc64."""
        return self.get("arch")

    @property
    def vendor(self) -> str | None:
        """GenuineIntel, AuthenticAMD ..."""
        return self.get("vendor")

    @property
    def family(self) -> int | None:
        """CPU family."""
        return self.integer("familyid")

    @property
    def model(self) -> int | None:
        """CPU model; NCCL takes the rate between sockets from it."""
        return self.integer("modelid")

    @property
    def host_hash(self) -> str | None:
        """The host it belongs to, where NVLink spans several."""
        return self.get("host_hash")


@dataclass(frozen=True, slots=True)
class Pci(TopologyElement):
    """A PCIe function: bridge, GPU, NIC or NVSwitch, with the link above it."""

    tag: ClassVar[str] = "pci"
    integers: ClassVar[tuple[str, ...]] = ("link_width",)

    @property
    def bus_id(self) -> str | None:
        """Domain, bus, device, function, e.g. 0000:01:00.0."""
        return self.get("busid")

    @property
    def is_bridge(self) -> bool:
        """PCI class 0x0604: a switch or a bridge."""
        return self._has_class("0x0604")

    @property
    def is_gpu(self) -> bool:
        """PCI class 0x0302 or 0x0300 (display), or with a gpu below."""
        return self._has_class("0x0302", "0x0300") or any(isinstance(child, Gpu) for child in self.children)

    @property
    def is_nic(self) -> bool:
        """PCI class 0x02, or with a nic below."""
        return self._has_class("0x02") or any(isinstance(child, Nic) for child in self.children)

    @property
    def link_gt_per_s(self) -> float | None:
        """Transfers a second and lane, 1e9; None where NCCL could not read it ("" or "Unknown")."""
        found = re.match(r"\s*(\d+(?:\.\d+)?)\s*GT/s", self.get("link_speed") or "")
        return float(found.group(1)) if found else None

    @property
    def link_generation(self) -> int | None:
        """PCIe generation of the link; None where no generation has its speed."""
        return _GENERATION_OF_SPEED.get(self.link_gt_per_s or 0.0)

    @property
    def link_width(self) -> int | None:
        """Lanes; 0 where NCCL could not read it, it then takes 16."""
        return self.integer("link_width")

    @property
    def link_bytes_per_s(self) -> float | None:
        """The link above the function, one direction, after line coding; None where speed or width is not known."""
        if self.link_generation is None or not self.link_width or self.link_width < 0:
            return None
        return pcie_bytes_per_s(self.link_generation, self.link_width)

    def _has_class(self, *prefixes: str) -> bool:
        return (self.get("class") or "").lower().startswith(prefixes)


@dataclass(frozen=True, slots=True)
class Gpu(TopologyElement):
    """A GPU as NCCL sees it."""

    tag: ClassVar[str] = "gpu"
    integers: ClassVar[tuple[str, ...]] = ("dev", "sm", "rank", "gdr")

    @property
    def device(self) -> int | None:
        """CUDA device number in its process's view (NVML index)."""
        return self.integer("dev")

    @property
    def compute_capability(self) -> int | None:
        """90 for sm_90; for AMD the digits of gfx."""
        return self.integer("sm")

    @property
    def rank(self) -> int | None:
        """Rank in the communicator that wrote the file."""
        return self.integer("rank")

    @property
    def gpudirect_rdma(self) -> bool | None:
        """Whether NICs may reach its memory directly; None where the file does not say."""
        return _flag(self.integer("gdr"))

    @property
    def nvlinks(self) -> int:
        """NVLinks to all targets together."""
        return sum(child.count or 0 for child in self.children if isinstance(child, NvLink))

    @property
    def has_c2c(self) -> bool:
        """Joined to its CPU by C2C, so that its PCIe link carries no data to speak of (GH200, GB200, GB10)."""
        return any(isinstance(child, C2c) for child in self.children)


@dataclass(frozen=True, slots=True)
class NvLink(TopologyElement):
    """NVLinks of a GPU to one target."""

    tag: ClassVar[str] = "nvlink"
    integers: ClassVar[tuple[str, ...]] = ("count",)

    @property
    def target(self) -> str | None:
        """Bus id of the peer; fffffff:ffff:ff is an NVSwitch the host does not see."""
        return self.get("target")

    @property
    def count(self) -> int | None:
        """Number of links."""
        return self.integer("count")

    @property
    def to_switch(self) -> bool:
        """Whether the target is an NVSwitch: PCI class 0x0680, or an invisible device."""
        return (self.get("tclass") or "").startswith("0x0680") or (self.target or "").lower() == "fffffff:ffff:ff"


@dataclass(frozen=True, slots=True)
class C2c(TopologyElement):
    """Chip-to-chip links of a GPU to its CPU."""

    tag: ClassVar[str] = "c2c"
    integers: ClassVar[tuple[str, ...]] = ("bw", "count")

    @property
    def bytes_per_s(self) -> float | None:
        """All links together, one direction: bw is MB/s of one link."""
        bandwidth, count = self.integer("bw"), self.integer("count")
        return None if bandwidth is None or count is None else bandwidth * count * 1e6


@dataclass(frozen=True, slots=True)
class Nic(TopologyElement):
    """A network adapter; its ports are the nets below."""

    tag: ClassVar[str] = "nic"


@dataclass(frozen=True, slots=True)
class Net(TopologyElement):
    """A network device NCCL can use: one port of a NIC, or a merged pair."""

    tag: ClassVar[str] = "net"
    integers: ClassVar[tuple[str, ...]] = ("dev", "speed", "port", "maxconn", "gdr")

    @property
    def name(self) -> str | None:
        """mlx5_0, eth0, ..."""
        return self.get("name")

    @property
    def device(self) -> int | None:
        """The number NCCL prints as NET/n."""
        return self.integer("dev")

    @property
    def speed_bytes_per_s(self) -> float | None:
        """Line rate, one direction; NCCL takes 10 Gb/s where the file says 0 or less, which is None here."""
        speed_mbit_s = self.integer("speed")
        return speed_mbit_s * 1e6 / _BITS_PER_BYTE if speed_mbit_s and speed_mbit_s > 0 else None

    @property
    def gpudirect_rdma(self) -> bool | None:
        """Whether it can reach GPU memory directly; None where the file does not say."""
        return _flag(self.integer("gdr"))


@dataclass(frozen=True, slots=True)
class Other(TopologyElement):
    """An element this reader has no name for (pcilink, and whatever a later NCCL adds)."""

    name: str = ""

    @property
    def element_name(self) -> str:
        """The element's name in the file."""
        return self.name


@dataclass(frozen=True, slots=True)
class PcieBottleneck:
    """A PCIe link much slower than what hangs below it warrants."""

    pci: Pci
    bytes_per_s: float
    warranted_bytes_per_s: float
    reason: str
    """What warrants more: "bridge above a GPU", "GPU", "net mlx5_0 of 200 Gb/s"."""


@dataclass(frozen=True, slots=True)
class NcclTopology:
    """A topology file: one `system`, or what a fragment holds."""

    roots: tuple[TopologyElement, ...]
    path: str = field(default="", compare=False)

    @property
    def is_fragment(self) -> bool:
        """True where the file is no complete `system`, so what it lacks may exist."""
        return len(self.roots) != 1 or not isinstance(self.roots[0], System)

    def walk(self) -> Iterator[TopologyElement]:
        """Every element in the order of the file."""
        for root in self.roots:
            yield from root.walk()

    @property
    def cpus(self) -> tuple[Cpu, ...]:
        """NUMA nodes."""
        return tuple(element for element in self.walk() if isinstance(element, Cpu))

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """GPUs."""
        return tuple(element for element in self.walk() if isinstance(element, Gpu))

    @property
    def nets(self) -> tuple[Net, ...]:
        """Network devices."""
        return tuple(element for element in self.walk() if isinstance(element, Net))

    @property
    def pcis(self) -> tuple[Pci, ...]:
        """PCIe functions."""
        return tuple(element for element in self.walk() if isinstance(element, Pci))

    def without_gpudirect(self) -> tuple[Gpu | Net, ...]:
        """GPUs and nets that say gdr="0". Normal for sockets, for GeForce, and with C2C before NCCL 2.26."""
        devices: list[Gpu | Net] = [*self.gpus, *self.nets]
        return tuple(device for device in devices if device.gpudirect_rdma is False)

    def pcie_bottlenecks(self, nic_share: float = 0.6) -> tuple[PcieBottleneck, ...]:
        """PCIe links far below what the devices under them warrant.

        A GPU, and a bridge above one, warrants at least Gen3 x8. A NIC, and a bridge above NICs only, warrants
        nic_share of the line rate of its fastest net; 0.6 lets a NIC in a slot of the generation before pass (0.63), as
        many servers are built, and two steps down not. Silent on links of unknown speed or width, on NVSwitches, on
        merged nets, and on GPUs joined by C2C. NCCL writes the highest speed a device supports, not the one it idles
        at, so a slow link here is a riser, a virtual bridge, or a topology file that says so.
        """
        return tuple(found for pci in self.pcis if (found := _bottleneck(pci, nic_share)) is not None)


def read_nccl_topology(data: bytes | str, path: str) -> tuple[NcclTopology, list[Loss]]:
    """The topology in a document or a fragment of one, and what was lost.

    Losses: those of `xml.read_elements`, `topology-bad-attribute` (a number that is none), `topology-unknown-element`.
    Raises InputError where no XML or no element of a topology is found, and for a DOCTYPE.
    """
    elements, losses = read_elements(data, path)
    topology = NcclTopology(tuple(_typed(element) for element in elements), path)
    if all(isinstance(root, Other) for root in topology.roots):
        raise InputError(
            f"{path}:{elements[0].line}: <{elements[0].name}> is no NCCL topology. "
            "Pass the file that NCCL_TOPO_DUMP_FILE names."
        )
    return topology, losses + _attribute_losses(topology)


def write_nccl_topology(topology: NcclTopology) -> str:
    """The topology as XML that NCCL_TOPO_FILE takes; reading it gives the same topology."""
    return write_elements([_plain(root) for root in topology.roots])


_TYPES: dict[str, type[TopologyElement]] = {kind.tag: kind for kind in (System, Cpu, Pci, Gpu, NvLink, C2c, Nic, Net)}
_KNOWN_OTHERS = frozenset({"pcilink", "xgmi"})  # of RCCL


def _typed(element: XmlElement) -> TopologyElement:
    children = tuple(_typed(child) for child in element.children)
    kind = _TYPES.get(element.name)
    if kind is None:
        return Other(element.attributes, children, element.line, name=element.name)
    return kind(element.attributes, children, element.line)


def _plain(element: TopologyElement) -> XmlElement:
    children = tuple(_plain(child) for child in element.children)
    return XmlElement(element.element_name, element.attributes, children, element.line)


def _attribute_losses(topology: NcclTopology) -> list[Loss]:
    losses = Losses(topology.path)
    for element in topology.walk():
        if isinstance(element, Other) and element.name not in _KNOWN_OTHERS:
            detail = f"<{element.name[:40]}> is unknown here; it was kept, not understood"
            losses.add("topology-unknown-element", element.line, detail)
        for name in element.integers:
            value = element.get(name)
            if value and element.integer(name) is None:
                detail = f"{name}={value[:40]!r} of <{element.element_name}> is no number; taken as unknown"
                losses.add("topology-bad-attribute", element.line, detail)
    return list(losses)


def _bottleneck(pci: Pci, nic_share: float) -> PcieBottleneck | None:
    actual = pci.link_bytes_per_s
    if actual is None:
        return None
    below = list(pci.walk())
    gpus = [element for element in below if isinstance(element, Gpu) and not element.has_c2c]
    needs = []
    if gpus:
        what = "GPU" if pci.is_gpu and not pci.is_bridge else "bridge above a GPU"
        needs.append((pcie_bytes_per_s(_WARRANTED_GENERATION, _WARRANTED_WIDTH), what))
    nets = [
        (element.speed_bytes_per_s or 0.0, element)
        for element in below
        if isinstance(element, Net) and "+" not in (element.name or "")
    ]
    if nets and not any(isinstance(element, Gpu) for element in below):
        speed, net = max(nets, key=lambda pair: pair[0])
        gbps = speed * _BITS_PER_BYTE / _GIGA
        needs.append((nic_share * speed, f"net {net.name or net.device} of {gbps:g} Gb/s"))
    warranted, reason = max(needs, default=(0.0, ""))
    if actual >= warranted:
        return None
    return PcieBottleneck(pci, actual, warranted, reason)


def _integer(text: str | None) -> int | None:
    if text is None or not re.fullmatch(r"\s*[+-]?(?:0[xX][0-9a-fA-F]{1,16}|[0-9]{1,18})\s*", text, re.ASCII):
        return None
    return int(text, 16 if "x" in text.lower() else 10)


def _flag(value: int | None) -> bool | None:
    return None if value is None else value != 0
