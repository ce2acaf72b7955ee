"""NCCL's own choice in a situation: its search and cost table on a blueprint of the GPUs, cut to the ranks and NICs there are."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.hardware import Accelerator, Node, load_nodes
from busbw.hardware.formats import node_to_nccl_topology
from busbw.hardware.formats.nccl_topo_xml import Cpu, Gpu, NcclTopology, Net, NvLink, TopologyElement
from busbw.nccl import Algorithm, Communicator, Protocol, communicator, function_of
from busbw.prediction.movement import Movement
from busbw.prediction.situation import Situation, gpu_class, intra_rate, network_class
from busbw.prediction.timing import sent_in_ll

__all__ = ["FASTEST", "blueprint_of", "chosen", "cut_topology", "is_tuned_by_plugin", "model_in"]

IntArray = npt.NDArray[np.int64]

FASTEST = -1
"""In place of a movement: nobody's choice is known, the fastest is taken."""
_MEGABIT = 1e6 / 8
_TUNED_BY_PLUGIN = ("efa",)
"""Networks whose plugin brings a tuner that replaces NCCL's choice, by what its vendor measured: nearer to the fastest.
Source: aws/aws-ofi-nccl, src/tuner; of the first generation, whose stacks are older, NCCL chooses."""
_ALL_PAIRS_FROM = 1024
"""Bytes from which RCCL lets all pairs of GPUs of a node exchange at once; below, its rings. Source: measured, ROCm/rocm-blogs,
mi300x-rccl-xgmi, RCCL 2.22.3: 23 us at 512 B, 13 us at 1 KiB."""


@lru_cache(maxsize=256)
def model_in(where: Situation) -> Communicator | None:
    """NCCL's communicator in a situation, on the blueprint that `where.node` names; None where there is none.

    The blueprint gives the wiring; GPUs, NICs and the rate of a NIC are those of the situation.
    """
    node = load_nodes().get(where.node)
    if node is None or where.library != "NCCL" or where.ranks < 2:
        return None
    hosts, per_host = _hosts(node, where.domain_ranks)
    if not hosts:
        return None
    try:
        topology, _ = node_to_nccl_topology(node, hosts)
        if where.domains > 1:
            nets = max(1, min(where.nics // hosts, node.nics))
            rate = where.network_bytes_per_s / hosts / nets
            topology = cut_topology(topology, per_host, nets, rate, gpudirect=where.network != "sockets")
        else:
            topology = cut_topology(topology, per_host)
        return communicator(topology, where.domains)
    except InputError:
        return None


def blueprint_of(accelerator: Accelerator, network: str = "", nics: int = 0) -> str:
    """The blueprint whose wiring is nearest: same links between GPUs; then the network, the NICs, the name of the GPU.

    >>> from busbw.hardware import find_accelerator
    >>> blueprint_of(find_accelerator("A100 SXM4 40GB"), "efa", 4), blueprint_of(find_accelerator("A100 SXM4 40GB"), "roce", 8)
    ('p4d', 'dgx-a100')
    """
    alike = [
        node
        for node in load_nodes().values()
        if gpu_class(node.accelerator) == gpu_class(accelerator)
        and intra_rate(node.accelerator) == intra_rate(accelerator)
    ]

    def distance(node: Node) -> tuple[bool, bool, bool]:
        theirs = _WIRED_AS.get(network_class(node.nic.name)) if node.nics else None
        return (
            bool(network) and theirs != _WIRED_AS.get(network),
            node.nics < nics,
            node.accelerator.name != accelerator.name,
        )

    return min(alike, key=distance).name if alike else ""


_WIRED_AS = {"infiniband": "infiniband", "roce": "infiniband", "tcpx": "tcpx", "tcpxo": "tcpx", "efa-v1": "efa", "efa": "efa", "slingshot": "slingshot", "sockets": "infiniband"}  # fmt: skip
"""Networks whose NICs sit in a node alike."""


def is_tuned_by_plugin(where: Situation) -> bool:
    """Whether the network's plugin decides instead of NCCL."""
    return where.domains > 1 and where.network in _TUNED_BY_PLUGIN


def _hosts(node: Node, domain_ranks: int) -> tuple[int, int]:
    """Nodes of a domain and GPUs of each; 0 nodes where they do not fit."""
    if domain_ranks <= node.gpus:
        return 1, domain_ranks
    hosts, rest = divmod(domain_ranks, node.gpus)
    return (hosts, node.gpus) if not rest and hosts <= node.nvlink_domain_nodes else (0, 0)


def chosen(
    where: Situation, model: Communicator | None, found: Sequence[Movement], collective: str, sizes_bytes: Iterable[int]
) -> IntArray:
    """For each size the place among movements of what NCCL runs, (S,); FASTEST where its choice is not known.

    Of movements that settings left, the one whose estimate by NCCL is lowest. CollNet, which the cost table lacks, is
    taken where it is alone.
    """
    sizes = np.fromiter(sizes_bytes, np.int64)
    unknown = np.full(len(sizes), FASTEST, np.int64)
    if len(found) == 1:
        return np.zeros(len(sizes), np.int64)
    if all(move.algorithm == "P2P" for move in found):
        protocols = [move.protocol for move in found]
        in_ll = sent_in_ll(sizes.astype(np.float64), 1 if collective == "send_recv" else where.ranks)
        return np.where(in_ll, protocols.index("LL"), protocols.index("Simple"))
    if any(move.algorithm == "AllPairs" for move in found):
        rings = next(
            (place for place, move in enumerate(found) if (move.algorithm, move.protocol) == ("Ring", "LL")), FASTEST
        )
        return np.where(sizes < _ALL_PAIRS_FROM, rings, FASTEST)
    function = function_of(collective)
    if is_tuned_by_plugin(where):
        return unknown
    if model is None or function is None or any(move.algorithm == "CollNetChain" for move in found):
        return unknown
    times = model.times_us(function, sizes.tolist())
    cells = np.stack(
        [times[:, Algorithm[move.algorithm], Protocol[move.protocol]] for move in found], axis=1
    )  # (S, movements)
    # The first of equals, as in NCCL's loop, which runs over algorithms in its own order.
    order = np.array(
        sorted(
            range(len(found)), key=lambda place: (Algorithm[found[place].algorithm], Protocol[found[place].protocol])
        )
    )
    best = order[cells[:, order].argmin(axis=1)]
    return np.where(np.isfinite(cells.min(axis=1)), best, unknown)


def cut_topology(
    topology: NcclTopology,
    gpus: int,
    nets: int | None = None,
    net_bytes_per_s: float | None = None,
    *,
    gpudirect: bool = True,
) -> NcclTopology:
    """The topology with the first `gpus` GPUs of each host, and `nets` of its NICs at another rate, or without GPUDirect.

    Of all GPUs' NICs every second, third ... stays, so that they stay spread over sockets; of some GPUs' the first ones.
    """
    hosts: dict[str | None, list[TopologyElement]] = {}
    for cpu in topology.cpus:
        hosts.setdefault(cpu.host_hash, []).append(cpu)
    dropped: set[int] = set()  # by id: hosts of a domain hold equal elements
    for cpus in hosts.values():
        inside = [element for cpu in cpus for element in cpu.walk()]
        here = [element for element in inside if isinstance(element, Gpu)]
        ports = [element for element in inside if isinstance(element, Net)]
        dropped |= {id(gpu) for gpu in here[gpus:]}
        if nets is not None and nets < len(ports):
            kept = ports[:nets] if gpus < len(here) else [ports[place * len(ports) // nets] for place in range(nets)]
            dropped |= {id(port) for port in ports} - {id(port) for port in kept}
    lost = {pci.bus_id for pci in topology.pcis if any(id(child) in dropped for child in pci.children)}
    speed = None if net_bytes_per_s is None else str(max(1, round(net_bytes_per_s / _MEGABIT)))
    ranks = iter(range(len(topology.gpus)))

    def cut(element: TopologyElement) -> TopologyElement | None:
        if id(element) in dropped or (isinstance(element, NvLink) and element.get("target") in lost):
            return None
        children = tuple(left for child in element.children if (left := cut(child)) is not None)
        if element.children and not children and not isinstance(element, Cpu | Gpu):
            return None
        attributes = element.attributes
        if isinstance(element, Gpu):
            rank = str(next(ranks))
            attributes = tuple((key, rank if key == "rank" else value) for key, value in attributes)
        if isinstance(element, Net):
            changed = ({"speed": speed} if speed is not None else {}) | ({} if gpudirect else {"gdr": "0"})
            attributes = tuple((key, changed.get(key, value)) for key, value in attributes)
        return replace(element, attributes=attributes, children=children)

    roots = tuple(left for root in topology.roots if (left := cut(root)) is not None)
    return NcclTopology(roots, topology.path)
