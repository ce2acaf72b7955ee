"""hwloc's XML (`lstopo --of xml`), versions 2 and 3: NUMA nodes, PCIe bridges, GPUs and NICs of a host.

It tells of no NVLink; a GPU that is sold on an NVSwitch board is taken to have all its links there. The host's name and
serial numbers are not read.
"""

from __future__ import annotations

import re

from busbw.errors import InputError, Loss
from busbw.hardware.blueprints import CpuId, Node, PcieRoot
from busbw.hardware.catalogue import Accelerator, find_accelerator, load_catalogue, pcie_bytes_per_s
from busbw.hardware.formats.read_nodes import NodeParts, accelerator_of, count_losses, latency_s, pcie_link_of_rate
from busbw.hardware.formats.xml import XmlElement, read_elements
from busbw.hardware.links import CPU, GPU, PCIE, PCIE_SWITCH

__all__ = ["node_from_hwloc"]

_DOCTYPE = re.compile(r'<!DOCTYPE\s+topology\s+SYSTEM\s+"hwloc2?\.dtd"\s*>')
"""The one declaration hwloc writes; it names a file and declares nothing."""
_GPU_CLASSES = ("0302", "0300", "0380", "1200")
"""3D and display controllers, and processing accelerators (AMD Instinct)."""
_GPU_VENDORS = ("10de", "1002")
_NIC_CLASSES = ("0200", "0207")
_NICS = {
    **{"15b3:1013": "ConnectX-4", "15b3:1017": "ConnectX-5", "15b3:1019": "ConnectX-5", "15b3:101b": "ConnectX-6"},
    **{"15b3:1021": "ConnectX-7", "15b3:1023": "ConnectX-8", "15b3:a2dc": "BlueField-3"},
    **{"1d0f:efa0": "EFA-v1", "1d0f:efa1": "EFA-v2", "1d0f:efa2": "EFA-v3", "1d0f:efa3": "EFA-v3"},
}
"""Adapters by PCI id. Source: from memory, unverified; efa2: aws/aws-ofi-nccl, lstopo of a p5en."""
_GPUS = {
    **{"10de:1db1": "V100-SXM2-16GB", "10de:1db5": "V100-SXM2-32GB", "10de:20b0": "A100-SXM-40GB"},
    **{"10de:20b2": "A100-SXM-80GB", "10de:2330": "H100-SXM-80GB", "10de:2335": "H200-SXM-141GB"},
    **{"10de:2342": "GH200-96GB", "10de:2901": "B200-SXM", "10de:2941": "GB200", "10de:3182": "B300-SXM"},
    **{"10de:26b9": "L40S", "1002:74a1": "MI300X"},
}
"""GPUs by PCI id, used where the file has no name. Source: from memory, unverified."""


def node_from_hwloc(data: bytes | str, path: str, name: str, accelerator: str | None = None) -> tuple[Node, list[Loss]]:
    """The node an hwloc file describes, and what was lost: `node-left-out` (management NICs), `node-unknown-link`.

    NICs are the network functions with an OpenFabrics device below, where there is one; their rate is that of the
    product. Raises InputError for a file without GPUs, and for GPUs that are not known.
    """
    text = data.decode("utf-8", errors="replace") if isinstance(data, bytes) else data
    elements, losses = read_elements(_DOCTYPE.sub("", text, count=1), path)
    if elements[0].name != "topology":
        raise InputError(f"{path}:{elements[0].line}: <{elements[0].name}> is no hwloc topology. Pass lstopo --of xml.")
    return _Reader(elements[0], path, name, losses).node(accelerator)


class _Reader:
    def __init__(self, root: XmlElement, path: str, name: str, losses: list[Loss]) -> None:
        self.root, self.path, self.losses = root, path, list(losses)
        self.parts = NodeParts(name, path)
        self.switches = 0
        functions = [element for element in _walk(root) if element.get("type") == "PCIDev"]
        self.gpus = [f for f in functions if _class(f) in _GPU_CLASSES and _id(f)[:4] in _GPU_VENDORS]
        networks = [f for f in functions if _class(f) in _NIC_CLASSES]
        fabric = [f for f in networks if any(_is_fabric(below) for below in _walk(f))] or [
            f for f in networks if _id(f) in _NICS
        ]
        for function in networks:
            if function not in fabric:
                detail = f"network function {function.get('pci_busid')} has no RDMA device; left out"
                self.losses.append(Loss("node-left-out", path, function.line, detail))
        self.number = {id(f): index for index, f in enumerate(self.gpus)} | {
            id(f): index for index, f in enumerate(fabric)
        }
        self.fabric = {id(f) for f in fabric}
        self.is_gpu = {id(f) for f in self.gpus}

    def node(self, accelerator: str | None) -> tuple[Node, list[Loss]]:
        product, guess = self._product(accelerator)
        info = {each.get("name"): each.get("value") for each in _walk(self.root) if each.name == "info"}
        arch = "arm64" if info.get("Architecture") == "aarch64" else info.get("Architecture") or "x86_64"
        self.parts.cpu_id = CpuId(
            arch, info.get("CPUVendor"), _int(info.get("CPUFamilyNumber")), _int(info.get("CPUModelNumber"))
        )
        self.parts.cpu_name = info.get("CPUModel") or "not stated"
        self._walk_machine(self.root, 0)
        self.parts.gpus = len(self.gpus)
        if product.scale_up_shape.value == "switch" and product.nvlinks.value and len(self.gpus) > 1:
            self.parts.switched = dict.fromkeys(range(len(self.gpus)), product.nvlinks.value)
        sources = {
            "links": self.path,
            "accelerator": guess,
            "nvlink": "hwloc says nothing of NVLink; all links to NVSwitches where the product is sold so: a guess",
            "nic": "product by PCI id, rate of the product",
        }
        return self.parts.node(product, sources), count_losses(self.losses)

    def _product(self, accelerator: str | None) -> tuple[Accelerator, str]:
        if accelerator is not None or not self.gpus:
            if not self.gpus:
                raise InputError(f"{self.path}: no GPU in it, so it describes no node. Run lstopo on a host with GPUs.")
            return accelerator_of(accelerator, None, self.path), "named by the user"
        for element in _walk(self.gpus[0]):
            if element.get("name") in ("GPUModel", "PCIDevice"):
                told = element.get("value") or ""
                bracket = re.search(r"\[(.+)\]", told)
                found = find_accelerator(told) or find_accelerator(bracket.group(1) if bracket else None)
                if found is not None:
                    return found, f"{element.get('name')} of {self.path}"
        by_id = _GPUS.get(_id(self.gpus[0]))
        return accelerator_of(by_id, None, self.path), f"PCI id {_id(self.gpus[0])}: from memory, unverified"

    def _walk_machine(self, element: XmlElement, numa: int) -> None:
        nodeset = element.get("nodeset") or ""
        mask = re.fullmatch(r"0x([0-9a-f]{1,16})", nodeset)
        if mask is not None and int(mask.group(1), 16):
            bits = int(mask.group(1), 16)
            numa = (bits & -bits).bit_length() - 1
        for child in element.children:
            if child.get("type") in ("Bridge", "PCIDev"):
                gpus: list[int] = []
                nics: list[int] = []
                self._pcie(child, None, numa, gpus, nics)
            elif child.name == "object":
                self._walk_machine(child, numa)

    def _pcie(
        self, element: XmlElement, above: tuple[int, int] | None, numa: int, gpus: list[int], nics: list[int]
    ) -> None:
        """Bridges with one branch are ports, and passed through; the first with more is a switch."""
        if id(element) in self.is_gpu or id(element) in self.fabric:
            root = above is None
            self._device(element, above or self._cpu(numa), numa, gpus, nics)
            if root:
                self._root(element, numa, gpus, nics, switch=False)
            return
        branches = [child for child in element.children if child.name == "object" and self._holds(child)]
        host_bridge = (element.get("bridge_type") or "").startswith("0-")
        if host_bridge:
            for branch in branches:
                self._pcie(branch, None, numa, [], [])
            return
        if len(branches) <= 1:
            for branch in branches:
                self._pcie(branch, above, numa, gpus, nics)
            return
        switch = self.parts.builder.add(PCIE_SWITCH, self.switches)
        self.switches += 1
        self.parts.builder.join(
            above or self._cpu(numa), switch, pcie_bytes_per_s(*self._link(element)), latency_s("pcie"), PCIE
        )
        for branch in branches:
            self._pcie(branch, switch, numa, gpus, nics)
        if above is None:
            self._root(element, numa, gpus, nics, switch=True)

    def _root(self, element: XmlElement, numa: int, gpus: list[int], nics: list[int], *, switch: bool) -> None:
        self.parts.roots.append(PcieRoot(numa, tuple(gpus), tuple(nics), *self._link(element), switch))

    def _cpu(self, numa: int) -> tuple[int, int]:
        if numa not in self.parts.numas:
            self.parts.numas.append(numa)
        return self.parts.builder.add(CPU, numa)

    def _device(self, element: XmlElement, above: tuple[int, int], numa: int, gpus: list[int], nics: list[int]) -> None:
        number, rate = self.number[id(element)], pcie_bytes_per_s(*self._link(element))
        if id(element) in self.is_gpu:
            gpus.append(number)
            self.parts.numa_of_gpu[number] = numa
            vertex = self.parts.builder.add(GPU, number)
        else:
            nics.append(number)
            product = load_catalogue().nics[_NICS.get(_id(element), "ConnectX-7")]
            vertex = self.parts.nic(number, product.rate_bytes_per_s.value or 0.0)
        self.parts.builder.join(above, vertex, rate, latency_s("pcie"), PCIE)

    def _holds(self, element: XmlElement) -> bool:
        return any(id(below) in self.is_gpu or id(below) in self.fabric for below in _walk(element))

    def _link(self, element: XmlElement) -> tuple[int, int]:
        """Generation and width; a bridge without a speed takes that of the fastest link below it."""
        speeds = [_float(e.get("pci_link_speed")) for e in _walk(element) if e.get("pci_link_speed")]
        own = _float(element.get("pci_link_speed")) or max((s for s in speeds if s), default=0.0)
        if not own:
            detail = f"{element.get('pci_busid')} has no link speed; taken as Gen3 x16"
            self.losses.append(Loss("node-unknown-link", self.path, element.line, detail))
            return 3, 16
        return pcie_link_of_rate(own * 1e9, None)


def _walk(element: XmlElement) -> list[XmlElement]:
    found, stack = [], [element]
    while stack:
        each = stack.pop()
        found.append(each)
        stack.extend(reversed(each.children))
    return found


def _class(function: XmlElement) -> str:
    return (function.get("pci_type") or "")[:4].lower()


def _id(function: XmlElement) -> str:
    found = re.search(r"\[([0-9a-f]{4}:[0-9a-f]{4})\]", (function.get("pci_type") or "").lower())
    return found.group(1) if found else ""


def _is_fabric(element: XmlElement) -> bool:
    """An OpenFabrics device: osdev_type 3 in hwloc 2, bit 32 in hwloc 3 (which writes a mask)."""
    kind = _int(element.get("osdev_type"))
    return kind is not None and (kind == 3 or bool(kind & 32))


def _int(text: str | None) -> int | None:
    return int(text) if text is not None and re.fullmatch(r"[0-9]{1,9}", text, re.ASCII) else None


def _float(text: str | None) -> float:
    return float(text) if text is not None and re.fullmatch(r"[0-9]{1,6}(\.[0-9]{1,12})?", text, re.ASCII) else 0.0
