"""A blueprint as the topology that NCCL would find in such a node, so that its search can run on hardware nobody has."""

from __future__ import annotations

import re

from busbw.errors import InputError
from busbw.hardware.blueprints import Node, PcieRoot
from busbw.hardware.formats.nccl_topo_xml import (
    C2c,
    Cpu,
    Gpu,
    NcclTopology,
    Net,
    Nic,
    NvLink,
    Pci,
    System,
    TopologyElement,
)

__all__ = ["node_topology"]

_SPEEDS = {1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe", 6: "64.0 GT/s PCIe"}  # fmt: skip
"""As Linux prints them. Source: drivers/pci/probe.c of Linux, pci_speed_string."""
_GPU_CLASS, _NIC_CLASS, _BRIDGE_CLASS, _SWITCH_CLASS = "0x030200", "0x020700", "0x060400", "0x068000"
_HIDDEN_SWITCH = "fffffff:ffff:ff"
_INTEL_MODELS = (("E5-26", 79), ("Platinum 81", 85), ("848", 143), ("857", 207))
"""CPU model by part of the name: Broadwell, Skylake, Sapphire Rapids, Emerald Rapids. Source: Linux, intel-family.h."""
_GRACE_C2C_MB_PER_S, _GRACE_C2C_LINKS = 44712, 10
"""NVLink-C2C of GB200 as NCCL prints it. Source: the recorded topologies of tests/nccl/goldens."""
_NET_MBIT = 8e-6


def node_topology(node: Node, hosts: int = 1) -> tuple[NcclTopology, list[str]]:
    """The topology of one node, or of several hosts in one NVLink domain, and what had to be assumed.

    NICs are taken to have GPUDirect RDMA. Devices that share a link to the CPU lie behind one PCIe switch. GPUs with C2C
    and their NICs have root ports of their own. Raises InputError for GPUs that NCCL does not run on, and where the
    blueprint does not say which GPUs NVLink joins.
    """
    accelerator = node.accelerator
    capability = accelerator.compute_capability
    if capability is None:
        raise InputError(f"{node.name}: {accelerator.name} is no NVIDIA GPU, so NCCL does not run there.")
    shape = accelerator.scale_up_shape.value
    if node.nvswitch is None and shape in ("mesh", "bridge"):
        raise InputError(
            f"{node.name}: the blueprint does not say which GPUs NVLink joins ({shape}). "
            "Pass the topology file of such a machine: NCCL_TOPO_DUMP_FILE writes it."
        )
    if hosts < 1 or hosts > node.nvlink_domain_nodes:
        raise InputError(f"{node.name}: 1 to {node.nvlink_domain_nodes} hosts share NVLink, not {hosts}.")
    builder = _Builder(node, capability)
    cpus = [cpu for host in range(hosts) for cpu in builder.cpus(host)]
    system = System(attributes=(("version", "1"),), children=tuple(cpus))
    return NcclTopology((system,), node.name), builder.notes


class _Builder:
    def __init__(self, node: Node, capability: int) -> None:
        self.node = node
        self.capability = capability
        self.notes: list[str] = []
        self.cpu = self._cpu()
        self.c2c = ("arch", "arm64") in self.cpu

    def cpus(self, host: int) -> list[Cpu]:
        """The NUMA nodes of one host, in the order of their first GPU, in which NCCL meets them."""
        found = []
        for numa in dict.fromkeys(root.numa_node for root in self.node.pcie):
            attributes = (("host_hash", hex(host + 1)), ("numaid", str(numa)), *self.cpu)
            roots = [(i, root) for i, root in enumerate(self.node.pcie) if root.numa_node == numa]
            children = [child for i, root in roots for child in self._root(host, i, root)]
            found.append(Cpu(attributes=attributes, children=tuple(children)))
        return found

    def _cpu(self) -> tuple[tuple[str, str], ...]:
        name = self.node.cpu
        if "Grace" in name:
            return (("arch", "arm64"),)
        if "AMD" in name or "EPYC" in name:
            return (("arch", "x86_64"), ("vendor", "AuthenticAMD"), ("familyid", "23"), ("modelid", "49"))
        model = next((model for part, model in _INTEL_MODELS if part in name), None)
        if model is None:
            model = 143
            self.notes.append(f"{self.node.name}: the CPU is {name}; taken as Intel Sapphire Rapids, a guess.")
        return (("arch", "x86_64"), ("vendor", "GenuineIntel"), ("familyid", "6"), ("modelid", str(model)))

    def _root(self, host: int, index: int, root: PcieRoot) -> list[Pci]:
        bus = f"{index + 1:02x}"
        link = (("link_speed", _SPEEDS[root.generation]), ("link_width", str(root.width)))
        gpus = [
            self._pci(f"0000:{bus}:{place + 1:02x}.0", _GPU_CLASS, self._gpu_link(link), self._gpu(host, gpu))
            for place, gpu in enumerate(root.gpus)
        ]
        nics = [
            self._pci(f"0000:{bus}:{place + 16:02x}.0", _NIC_CLASS, link, self._nic(host, nic))
            for place, nic in enumerate(root.nics)
        ]
        devices = gpus + nics
        if self.c2c or len(devices) == 1:
            return devices
        return [self._pci(f"0000:{bus}:00.0", _BRIDGE_CLASS, link, *devices)]

    def _gpu_link(self, link: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Beside C2C the PCIe link of a GPU has one lane. Source: the recorded topologies of tests/nccl/goldens."""
        return (link[0], ("link_width", "1")) if self.c2c else link

    def _pci(self, bus_id: str, class_: str, link: tuple[tuple[str, str], ...], *children: TopologyElement) -> Pci:
        return Pci(attributes=(("busid", bus_id), ("class", class_), *link), children=children)

    def _gpu(self, host: int, gpu: int) -> Gpu:
        node = self.node
        children: list[TopologyElement] = []
        if node.nvswitch is not None and node.accelerator.nvlinks.value:
            links = str(node.accelerator.nvlinks.value)
            children.append(NvLink((("target", _HIDDEN_SWITCH), ("count", links), ("tclass", _SWITCH_CLASS))))
        if self.c2c:
            children.append(C2c((("bw", str(_GRACE_C2C_MB_PER_S)), ("count", str(_GRACE_C2C_LINKS)))))
        rank = host * node.gpus + gpu
        attributes = (("dev", str(gpu)), ("sm", str(self.capability)), ("rank", str(rank)), ("gdr", "1"))
        return Gpu(attributes=attributes, children=tuple(children))

    def _nic(self, host: int, nic: int) -> Nic:
        mbit = round(self.node.nic_rate_bytes_per_s * _NET_MBIT)
        guid = 0x1000 + host * self.node.nics + nic
        net = Net(
            (
                ("name", f"{re.sub(r'[^a-z0-9]', '', self.node.nic.name.lower())}_{nic}"),
                ("dev", str(nic)),
                ("latency", "0"),
                ("speed", str(mbit)),
                ("port", "1"),
                ("guid", hex(guid)),
                ("maxconn", "131072"),
                ("gdr", "1"),
            )
        )
        return Nic(children=(net,))
