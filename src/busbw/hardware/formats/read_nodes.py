"""What the readers of machines share: the node under construction, and what is guessed where a file does not say.

A file of a tool names devices and links, rarely products. What is guessed is said: in the node's `sources`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from busbw.errors import InputError
from busbw.hardware.blueprints import CpuId, Node, PcieRoot, cpu_link, mesh_share_bytes_per_s
from busbw.hardware.catalogue import (
    PCIE_GT_PER_S,
    Accelerator,
    Nic,
    NvSwitch,
    find_accelerator,
    load_catalogue,
    pcie_bytes_per_s,
)
from busbw.hardware.links import C2C, CPU, CPU_LINK, GPU, NIC, NVLINK, NVSWITCH, GraphBuilder

__all__ = [
    "NodeParts",
    "accelerator_of",
    "latency_s",
    "nic_of_rate",
    "nvlink_rate",
    "nvswitch_of",
    "pcie_link_of_rate",
]

_GIGA = 1e9
_BITS_PER_BYTE = 8
_WIDTHS = (16, 8, 4, 2, 1)
_NIC_OF_GBPS = {100.0: "ConnectX-5", 200.0: "ConnectX-6", 400.0: "ConnectX-7", 800.0: "ConnectX-8"}
"""The usual adapter of a line rate. A guess: files give rates, not products."""
_SM_PRODUCT = {60: "P100-SXM2-16GB", 70: "V100-SXM2-32GB", 80: "A100-SXM-80GB", 89: "L40S", 90: "H100-SXM-80GB"}
"""The usual product of a compute capability where several share it. A guess."""


@dataclass(slots=True)
class NodeParts:
    """A node under construction. Numbers of GPUs and NICs are final: 0 upwards, without gaps."""

    name: str
    path: str
    builder: GraphBuilder = field(default_factory=GraphBuilder)
    roots: list[PcieRoot] = field(default_factory=list)
    numas: list[int] = field(default_factory=list)
    gpus: int = 0
    nic_rates_bytes_per_s: list[float] = field(default_factory=list)
    mesh: dict[tuple[int, int], int] = field(default_factory=dict)
    switched: dict[int, int] = field(default_factory=dict)
    """GPU -> NVLinks to an NVSwitch."""
    c2c_bytes_per_s: dict[int, float] = field(default_factory=dict)
    numa_of_gpu: dict[int, int] = field(default_factory=dict)
    cpu_id: CpuId = field(default_factory=lambda: CpuId("x86_64", None, None, None))
    cpu_name: str = "not stated"
    domain_nodes: int = 1

    def node(self, accelerator: Accelerator, sources: Mapping[str, str]) -> Node:
        """The node. Raises InputError for a file without GPUs."""
        if not self.gpus:
            raise InputError(f"{self.path}: no GPU in it, so it describes no node. Pass the file of a host with GPUs.")
        between = cpu_link(self.cpu_id)
        if between is not None and between.bytes_per_s.value:
            for index, a in enumerate(self.numas):
                for b in self.numas[index + 1 :]:
                    self.builder.join((CPU, a), (CPU, b), between.bytes_per_s.value, latency_s("cpu"), CPU_LINK)
        rate = nvlink_rate(accelerator) or 0.0
        for gpu, c2c in self.c2c_bytes_per_s.items():
            self.builder.join((CPU, self.numa_of_gpu[gpu]), (GPU, gpu), c2c, latency_s("cpu"), C2C)
        for gpu, links in self.switched.items():
            switch = self.builder.add(NVSWITCH, 0)
            self.builder.join((GPU, gpu), switch, links * rate, latency_s("nvlink") / 2, NVLINK)
        of_mesh = rate or mesh_share_bytes_per_s(accelerator, ((a, b, links) for (a, b), links in self.mesh.items()))
        for (a, b), links in self.mesh.items():
            self.builder.join((GPU, a), (GPU, b), links * of_mesh, latency_s("nvlink"), NVLINK)
        nic_rate = max(set(self.nic_rates_bytes_per_s), key=self.nic_rates_bytes_per_s.count, default=0.0)
        chip, chips = nvswitch_of(accelerator) if self.switched else (None, 0)
        return Node(
            name=self.name,
            title=f"read from {self.path}",
            accelerator=accelerator,
            gpus=self.gpus,
            nic=nic_of_rate(nic_rate),
            nic_rate_bytes_per_s=nic_rate or (nic_of_rate(nic_rate).rate_bytes_per_s.value or 1.0),
            pcie=tuple(self.roots),
            nvswitch=chip,
            nvswitches=chips,
            nvlink_domain_nodes=self.domain_nodes,
            cpu=self.cpu_name,
            sources=dict(sources),
            cpu_id=self.cpu_id,
            cpu_link=between if len(self.numas) > 1 else None,
            c2c_bytes_per_s=max(self.c2c_bytes_per_s.values(), default=None),
            nvlink_mesh=tuple((a, b, links) for (a, b), links in sorted(self.mesh.items())),
            read_graph=self.builder.graph(),
        )

    def nic(self, number: int, rate_bytes_per_s: float) -> tuple[int, int]:
        """A NIC's vertex, its line rate noted."""
        self.nic_rates_bytes_per_s.append(rate_bytes_per_s)
        return self.builder.add(NIC, number)


def latency_s(hop: str) -> float:
    """What a hop adds, from the catalogue; 0 where it does not know."""
    return load_catalogue().latencies[hop].latency_s.value or 0.0


def nvlink_rate(accelerator: Accelerator) -> float | None:
    """One link between GPUs, one direction, bytes per second; for a product without, that of its architecture."""
    if accelerator.nvlink_bytes_per_s is not None:
        return accelerator.nvlink_bytes_per_s
    same = [a for a in load_catalogue().accelerators.values() if a.architecture == accelerator.architecture]
    return next((a.nvlink_bytes_per_s for a in same if a.nvlink_bytes_per_s), None)


def accelerator_of(name: str | None, compute_capability: int | None, path: str, *, c2c: bool = False) -> Accelerator:
    """The product a user or a file names, else the usual one of a compute capability (sm_90, gfx942).

    Raises InputError where neither tells.
    """
    accelerators = load_catalogue().accelerators
    if name is not None:
        found = find_accelerator(name)
        if found is None:
            raise InputError(f"{path}: GPU {name!r} is not in the catalogue. `busbw hardware` lists what is.")
        return found
    if c2c:
        for product in ("GH200-96GB", "GB200", "GB300"):
            if accelerators[product].compute_capability == compute_capability:
                return accelerators[product]
    usual = _SM_PRODUCT.get(compute_capability or 0)
    if usual is not None:
        return accelerators[usual]
    for accelerator in accelerators.values():
        if compute_capability and (
            accelerator.compute_capability == compute_capability
            or accelerator.architecture.endswith(f"gfx{compute_capability}")
        ):
            return accelerator
    told = "says nothing of its GPUs" if compute_capability is None else f"has GPUs of sm_{compute_capability}"
    raise InputError(f"{path}: {told}, which the catalogue does not know. Name the GPU, e.g. --set gpu=H100-SXM-80GB.")


def nic_of_rate(rate_bytes_per_s: float) -> Nic:
    """The usual adapter of a line rate, the next faster one for rates between. A guess."""
    gbps = rate_bytes_per_s * _BITS_PER_BYTE / _GIGA
    fast_enough = [name for rate, name in _NIC_OF_GBPS.items() if rate >= gbps - 1e-6]
    return load_catalogue().nics[fast_enough[0] if fast_enough else "ConnectX-9"]


def nvswitch_of(accelerator: Accelerator) -> tuple[NvSwitch | None, int]:
    """The NVSwitch of a product's NVLink generation and how many an 8-GPU board has; (None, 0) where none is known."""
    link = accelerator.scale_up_link.value or ""
    for chip in load_catalogue().nvswitches.values():
        if link == f"NVLink {chip.nvlink_generation}":
            return chip, chip.per_baseboard.value or 1
    return None, 0


def pcie_link_of_rate(rate: float, preferred: int | None) -> tuple[int, int]:
    """Generation and width of a rate in bytes per second: the preferred generation if it fits, else the widest link.

    A rate that no link has gives the nearest.
    """
    fits = [
        (generation, width)
        for width in _WIDTHS
        for generation in PCIE_GT_PER_S
        if abs(pcie_bytes_per_s(generation, width) - rate) < 1e-9 * rate
    ]
    if not fits:
        return min(
            ((generation, width) for generation in PCIE_GT_PER_S for width in _WIDTHS),
            key=lambda link: abs(pcie_bytes_per_s(*link) - rate),
        )
    return next((link for link in fits if link[0] == preferred), fits[0])
