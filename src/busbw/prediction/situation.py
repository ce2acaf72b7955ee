"""Situation: what a collective runs on, in the few figures the time model needs, taken from a Cluster or a table."""

from __future__ import annotations

from dataclasses import dataclass

from busbw.errors import InputError
from busbw.hardware import Accelerator, Cluster, load_nodes

__all__ = ["NETWORKS", "Situation", "gpu_class", "network_class", "situation_of"]

NETWORKS = ("infiniband", "roce", "efa-v1", "efa", "tcpx", "tcpxo", "slingshot", "sockets")
"""Classes of networks: their latencies and efficiencies differ by more than their rates. efa-v1: of p3dn, p4d and p4de, which
lacks RDMA writes, so that the plugin sends and receives (aws/aws-ofi-nccl, README: protocol SENDRECV or RDMA)."""
_EFA_V2_FROM = 90
"""Compute capability of the GPUs of p5, the first machine with RDMA writes."""

_CAPABILITIES = ((100, "blackwell"), (90, "hopper"), (80, "ampere"), (70, "volta"), (0, "pascal"))
_CDNA4 = ("MI350", "MI355")
_PCIE_BYTES_PER_S = {3: 15.75e9, 4: 31.5e9, 5: 63.0e9, 6: 121e9}
"""One direction of 16 lanes after line coding; Gen6 in FLIT mode a guess. Source: PCI-SIG, 128b/130b arithmetic."""


@dataclass(frozen=True, slots=True)
class Situation:
    """Equal NVLink domains joined by a network. A domain is a node, or the nodes that share NVLink."""

    ranks: int
    domains: int
    gpu: str
    """Class of GPU, such as hopper; key of the calibration."""
    intra_bytes_per_s: float
    """What one GPU can send to the others of its domain, line rate, one direction."""
    shape: str
    """switch, mesh (a link to each peer), pairs (bridges, and PCIe between pairs) or none (PCIe)."""
    network: str
    """One of NETWORKS; of no meaning in one domain."""
    network_bytes_per_s: float
    """What one domain can send to the others, line rate of its NICs, one direction."""
    nics: int
    """NICs of a domain."""
    nvls: bool
    """Whether the switch between GPUs reduces and multicasts."""
    sharp: bool
    """Whether switches of the network reduce (CollNet)."""
    library: str
    """NCCL or RCCL."""
    node: str = ""
    """Blueprint whose wiring NCCL's choice is modelled on; empty: its choice is not known."""

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.domains < 1 or self.ranks % self.domains:
            raise InputError(
                f"{self.ranks} ranks over {self.domains} domains: the ranks must be a positive multiple of the domains."
            )
        if self.domains > 1 and not self.network_bytes_per_s > 0:
            raise InputError("several domains and no network between them: give nodes NICs, or take one node.")

    @property
    def domain_ranks(self) -> int:
        """Ranks of one domain."""
        return self.ranks // self.domains


def gpu_class(accelerator: Accelerator) -> str:
    """The class of a GPU, a key of the calibration.

    >>> from busbw.hardware import find_accelerator
    >>> gpu_class(find_accelerator("H200 SXM5 141GB")), gpu_class(find_accelerator("MI300X"))
    ('hopper', 'cdna3')
    """
    capability = accelerator.compute_capability
    if capability is None:
        return "cdna4" if accelerator.name.startswith(_CDNA4) else "cdna3"
    name = next(name for least, name in _CAPABILITIES if capability >= least)
    return name if accelerator.scale_up_bytes_per_s.value else f"{name}-pcie"


def network_class(text: str, capability: int | None = None) -> str:
    """The class of a network by what a NIC or fabric is called; capability: of the GPUs, tells EFA's first generation.

    >>> network_class("EFA-v2"), network_class("Ethernet RoCE"), network_class("ConnectX-7 InfiniBand NDR")
    ('efa', 'roce', 'infiniband')
    >>> network_class("AWS EFA", 80), network_class("AWS EFA", 90), network_class("EFA-v1")
    ('efa-v1', 'efa', 'efa-v1')
    """
    folded = text.lower()
    if "efa" in folded and ("efa-v1" in folded or (capability or _EFA_V2_FROM) < _EFA_V2_FROM):
        return "efa-v1"
    for words, name in (
        (("tcpxo",), "tcpxo"),
        (("tcpx", "gvnic"), "tcpx"),
        (("ipoib", "tcp", "socket"), "sockets"),
        (("efa",), "efa"),
        (("slingshot", "cassini"), "slingshot"),
        (("roce", "ethernet", "thor", "pollara"), "roce"),
    ):
        if any(word in folded for word in words):
            return name
    return "infiniband"


def intra_rate(accelerator: Accelerator) -> tuple[float, str]:
    """Line rate between GPUs of a domain, bytes per second one direction, and its shape; PCIe where there is no NVLink."""
    rate, shape = accelerator.scale_up_bytes_per_s.value, accelerator.scale_up_shape.value or "none"
    if rate and shape != "bridge":
        return float(rate), shape
    generation = next((g for g in _PCIE_BYTES_PER_S if f"Gen{g}" in (accelerator.pcie.value or "")), 4)
    return _PCIE_BYTES_PER_S[generation], "none"


def situation_of(cluster: Cluster, ranks: int | None = None, *, mnnvl: bool = True, sharp: bool = False) -> Situation:
    """The situation of all GPUs of a cluster, or of its first `ranks` in whole nodes.

    Nodes that do not fill their NVLink domains are spread evenly, as schedulers place them: 32 trays of NVL72 are twice
    16. Raises InputError for impossible counts, and for nodes that cannot be spread so.
    """
    node = cluster.node
    ranks = cluster.gpus if ranks is None else ranks
    if ranks < 1 or ranks > cluster.gpus:
        raise InputError(f"{ranks} ranks: {cluster.name} with {cluster.nodes} nodes has 1 to {cluster.gpus} GPUs.")
    per_node = min(node.gpus, ranks)
    nodes = ranks // per_node
    if ranks % per_node:
        raise InputError(f"{ranks} ranks do not fill nodes of {node.gpus} GPUs; nearest: {nodes * per_node}.")
    hosts = _hosts_of_a_domain(cluster, nodes) if mnnvl else 1
    domains = nodes // hosts
    if domains > 1 and not node.nics:
        raise InputError(f"{cluster.name}: {nodes} nodes without NICs cannot reach each other; take --nodes 1.")
    rate, shape = intra_rate(node.accelerator)
    used = node.nics if per_node == node.gpus else max(1, node.nics * per_node // node.gpus)
    nic_rate = cluster.nic_bytes_per_s if node.nics else 0.0
    switched = node.nvswitch is not None and bool(node.nvswitch.in_switch_reduction.value)
    amd = node.accelerator.compute_capability is None
    return Situation(
        ranks=ranks,
        domains=domains,
        gpu=gpu_class(node.accelerator),
        intra_bytes_per_s=rate,
        shape=shape,
        network=network_class(node.nic.name, node.accelerator.compute_capability) if node.nics else "infiniband",
        network_bytes_per_s=used * nic_rate * hosts,
        nics=used * hosts,
        nvls=switched and (node.accelerator.compute_capability or 0) >= 90 and ranks // domains > 2,
        sharp=sharp,
        library="RCCL" if amd else "NCCL",
        node=node.name if node.name in load_nodes() else "",
    )


def _hosts_of_a_domain(cluster: Cluster, nodes: int) -> int:
    """Nodes that share NVLink: all of a domain, or as many, at least half of it, as make all domains alike."""
    most = cluster.node.nvlink_domain_nodes
    if nodes <= most:
        return nodes
    even = _even(nodes, most)
    if even:
        return even
    fewer, more = (
        next(n for n in way if n <= most or _even(n, most))
        for way in (range(nodes, 0, -1), range(nodes, nodes + most + 1))
    )
    raise InputError(
        f"{nodes} nodes of {cluster.name} cannot be spread evenly over NVLink domains of {most}, which is not modelled; "
        f"nearest: {fewer} or {more}."
    )


def _even(nodes: int, most: int) -> int:
    """The largest number of nodes a domain, at least half of `most`, that divides `nodes`; 0 if there is none."""
    return next((hosts for hosts in range(most, (most + 1) // 2 - 1, -1) if nodes % hosts == 0), 0)
