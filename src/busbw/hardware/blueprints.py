"""Node blueprints: which GPUs, NICs and links a known kind of server holds, and the smallest form of a cluster of them.

The blueprints lie in `blueprints.json` beside this module, with a source per part. GPUs and NICs are numbered as NCCL
numbers them, from 0. Real machines of one kind differ in NUMA numbering and cabling; a topology file of the machine
itself always says more than its blueprint.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib import resources
from types import MappingProxyType

from busbw.hardware.catalogue import Accelerator, Nic, NvSwitch, load_catalogue, pcie_bytes_per_s

__all__ = ["Cluster", "Node", "PcieRoot", "find_node", "load_nodes"]

_GIGA = 1e9
_BITS_PER_BYTE = 8


@dataclass(frozen=True, slots=True)
class PcieRoot:
    """A PCIe switch, or a root port with nothing between: the devices below it share its link to the CPU."""

    numa_node: int
    gpus: tuple[int, ...]
    nics: tuple[int, ...]
    generation: int
    width: int

    @property
    def bytes_per_s(self) -> float:
        """The link to the CPU, one direction, after line coding."""
        return pcie_bytes_per_s(self.generation, self.width)


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

    def __post_init__(self) -> None:
        below = sorted(gpu for root in self.pcie for gpu in root.gpus)
        if below != list(range(self.gpus)):
            raise ValueError(f"{self.name}: PCIe roots hold GPUs {below}, the node has 0 to {self.gpus - 1}")
        nics = sorted(nic for root in self.pcie for nic in root.nics)
        if nics != list(range(len(nics))):
            raise ValueError(f"{self.name}: NICs {nics} are not numbered 0 to {len(nics) - 1}, each once")
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


@dataclass(frozen=True, slots=True)
class Cluster:
    """`nodes` nodes of one kind. The fabric between them is taken as non-blocking."""

    name: str
    node: Node
    nodes: int

    def __post_init__(self) -> None:
        if self.nodes < 1:
            raise ValueError(f"cluster {self.name!r} has {self.nodes} nodes; at least 1 is needed")

    @property
    def gpus(self) -> int:
        """All GPUs."""
        return self.nodes * self.node.gpus

    @property
    def nvlink_domains(self) -> int:
        """NVLink domains the nodes form when placed densely, racks filled one after another."""
        return -(-self.nodes // self.node.nvlink_domain_nodes)


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
    nic, nvswitch, roots = entry["nic"], entry["nvswitch"], entry["pcie"]
    sources = entry["sources"]
    if not (isinstance(nic, dict) and isinstance(roots, list) and isinstance(sources, dict)):
        raise TypeError(f"blueprints.json: {name}: nic and sources must be objects, pcie a list")
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
            )
            for root in roots
        ),
        nvswitch=catalogue.nvswitches[nvswitch["name"]] if isinstance(nvswitch, dict) else None,
        nvswitches=int(nvswitch["count"]) if isinstance(nvswitch, dict) else 0,
        nvlink_domain_nodes=int(str(entry["nvlink_domain_nodes"])),
        cpu=str(entry["cpu"]),
        sources=MappingProxyType({str(part): str(source) for part, source in sources.items()}),
    )
