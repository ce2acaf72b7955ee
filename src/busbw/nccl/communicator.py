"""A communicator as NCCL sets it up: topology, channels and cost table of a cluster of equal nodes, and its choices."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np

from busbw.errors import InputError
from busbw.hardware import find_node, load_nodes, node_topology
from busbw.hardware.formats.nccl_topo_xml import NcclTopology, read_nccl_topology
from busbw.nccl.choice import Call, Choice, Choices, FloatTable, call_causes, choose, estimated_times_us
from busbw.nccl.connect import channel_count, nvls_channel_count
from busbw.nccl.constants import DEFAULT_VERSION, Constants, load_constants
from busbw.nccl.costs import CostInputs, CostTable, cost_table
from busbw.nccl.graphs import ChannelGraph, Pattern
from busbw.nccl.paths import Paths
from busbw.nccl.search import NodeSearch
from busbw.nccl.settings import Settings
from busbw.nccl.topology import Kind, PathType, TopologyGraph, topology_graph
from busbw.nccl.words import Algorithm, Function, Protocol, function_of

__all__ = ["Communicator", "communicator", "named_topology"]

_HOPPER = 90
_MOST_RANKS = 1 << 31
"""Ranks are C ints. Source: NVIDIA/nccl 2.30.7, src/include/comm.h."""


@dataclass(frozen=True, slots=True)
class Communicator:
    """What NCCL has found out by the end of ncclCommInitRank."""

    gpus_per_node: int
    nets_per_node: int
    max_gb_per_s: float
    """The fastest path between a GPU and a net, or between GPUs on one node."""
    total_gb_per_s: float
    """All NVLinks of a GPU, or its PCIe link."""
    table: CostTable
    settings: Settings

    @property
    def inputs(self) -> CostInputs:
        """Counts, hardware and channels that the table is made of."""
        return self.table.inputs

    @property
    def constants(self) -> Constants:
        """The version's numbers."""
        return self.table.constants

    def choices(self, function: Function, sizes_bytes: Iterable[int], call: Call | None = None) -> Choices:
        """What NCCL runs for each size. Raises InputError where settings leave nothing to run."""
        sizes, call = _sizes(sizes_bytes), call or Call()
        return choose(self.table, function, sizes, call)

    def choice(self, collective: str, size_bytes: int, call: Call | None = None) -> Choice:
        """What NCCL runs for a collective in our spelling.

        Raises InputError for a collective that is made of sends and has no choice, and where settings leave nothing.
        """
        function = function_of(collective)
        if function is None:
            raise InputError(
                f"{collective}: NCCL chooses an algorithm for all_reduce, all_gather, reduce_scatter, broadcast and reduce; "
                "others are sends and receives."
            )
        return self.choices(function, [size_bytes], call)[0]

    def times_us(self, function: Function, sizes_bytes: Iterable[int], call: Call | None = None) -> FloatTable:
        """NCCL's estimate of every cell, (S, A, P) float32; infinite where the cell is off."""
        sizes, call = _sizes(sizes_bytes), call or Call()
        return estimated_times_us(self.table, function, sizes, call)

    def why_off(
        self, function: Function, call: Call | None = None
    ) -> dict[tuple[Algorithm, Protocol], tuple[str, ...]]:
        """For each cell of a function that is off what switched it off."""
        return {
            (algorithm, protocol): causes
            for algorithm in Algorithm
            for protocol in Protocol
            if (
                causes := self.table.off.get((function, algorithm, protocol), ())
                + call_causes(function, algorithm, self.inputs, call or Call())
            )
        }


def communicator(
    topology: NcclTopology,
    nodes: int,
    settings: Settings | None = None,
    version: str = DEFAULT_VERSION,
    *,
    multicast: bool | None = None,
    net_rates_exchanged: bool = True,
) -> Communicator:
    """The communicator of all GPUs of `nodes` equal nodes; the topology is that of one node.

    multicast: whether the hardware offers NVLS; None: Hopper or later behind an NVSwitch. net_rates_exchanged: ranks tell
    each other the rate of their nets before NVLS channels are counted, as in a running job; recordings of NCCL's code
    without ranks lack it. Raises InputError for impossible counts and for what `topology_graph` refuses.
    """
    settings = settings or Settings()
    constants = load_constants(version)
    if nodes < 1:
        raise InputError(f"{nodes} nodes: a communicator has at least one node.")
    node = _node(topology, nodes > 1, settings, version, multicast)
    gpus = len(node.graph.gpus)
    _check_counts(topology, nodes, node)
    capability = node.graph.least_capability
    net_rate = node.slowest_net_gb_per_s if net_rates_exchanged and nodes > 1 else 0.0
    channels = channel_count(
        node.ring, node.tree, capability=capability, nodes=nodes, settings=settings, constants=constants
    )
    nvls_channels = 0
    if node.heads.channels:
        nvls_channels = nvls_channel_count(
            capability=capability,
            nodes=nodes,
            ranks_per_node=gpus,
            net_gb_per_s=net_rate,
            settings=settings,
            constants=constants,
        )
    inputs = CostInputs(
        nodes=nodes,
        ranks=nodes * gpus,
        least_capability=capability,
        most_capability=node.graph.most_capability,
        cpu_model=node.graph.cpu_model,
        nvls=node.heads.channels > 0,
        ring=node.ring,
        tree=node.tree,
        nvls_graph=node.heads,
        channels=channels,
        nvls_channels=nvls_channels,
    )
    return Communicator(
        gpus_per_node=gpus,
        nets_per_node=len(node.graph.nets),
        max_gb_per_s=node.max_gb_per_s,
        total_gb_per_s=node.total_gb_per_s,
        table=cost_table(inputs, constants, settings),
        settings=settings,
    )


def named_topology(cluster: str, nodes: int, settings: Settings) -> tuple[NcclTopology, int, list[str]]:
    """The topology of a file or of a blueprint, how many nodes NCCL sees, and notes.

    nodes counts hosts. Hosts of a blueprint that share NVLink are filled domain by domain and count as one node, unless
    NCCL_MNNVL_ENABLE=0; a file counts as one node, however many hosts it holds. Raises InputError for what is neither,
    with the nearest name, and for domains that are not filled evenly.
    """
    path = Path(cluster)
    if path.is_file():
        topology, losses = read_nccl_topology(path.read_bytes(), cluster)
        return topology, nodes, [str(loss) for loss in losses]
    node = find_node(cluster)
    if node is None:
        nearest = difflib.get_close_matches(cluster.lower(), load_nodes(), 1, 0.0)[0]
        raise InputError(
            f"{cluster}: no such file, and no such node; nearest: {nearest}. `busbw hardware` lists nodes, and "
            "NCCL_TOPO_DUMP_FILE makes NCCL write the file of a machine."
        )
    if nodes < 1:
        raise InputError(f"{nodes} nodes: a communicator has at least one node.")
    hosts = min(nodes, node.nvlink_domain_nodes) if settings.mnnvl else 1
    if nodes % hosts:
        fewer = nodes // hosts * hosts
        raise InputError(
            f"{nodes} nodes of {cluster} fill NVLink domains of {hosts} unevenly, which is not modelled; "
            f"nearest: {fewer} or {fewer + hosts}."
        )
    topology, notes = node_topology(node, hosts)
    if hosts > 1:
        notes.append(f"{hosts} hosts share NVLink, so NCCL counts them as one node: {nodes // hosts} in all.")
    return topology, nodes // hosts, notes


@dataclass(frozen=True, slots=True)
class _Node:
    """What was found in one node, alone or among several; the number of nodes does not matter to it."""

    graph: TopologyGraph
    ring: ChannelGraph
    tree: ChannelGraph
    heads: ChannelGraph
    max_gb_per_s: float
    total_gb_per_s: float
    slowest_net_gb_per_s: float


@lru_cache(maxsize=64)
def _node(
    topology: NcclTopology, several_nodes: bool, settings: Settings, version: str, multicast: bool | None
) -> _Node:
    """Searched once for each topology and settings: a search takes up to seconds."""
    constants = load_constants(version)
    graph = topology_graph(topology, constants)
    if several_nodes and not graph.nets:
        raise InputError(
            f"{topology.path}: no <net>, so nodes could not reach each other. Pass a file written with the network plugin "
            "loaded, or --nodes 1."
        )
    if len(graph.hosts) > 1 and not settings.mnnvl:
        raise InputError(
            f"{topology.path}: holds {len(graph.hosts)} hosts, and NCCL_MNNVL_ENABLE=0 makes each of them a node of its own. "
            "Pass the file of one host and as many --nodes."
        )
    paths = Paths(graph, constants, settings)
    _refuse_islands(paths)
    search = NodeSearch(paths, constants, several_nodes)
    ring = search.ring()
    tree = search.tree(ring)
    offered = graph.has_nvswitch and graph.least_capability >= _HOPPER if multicast is None else multicast
    wanted = settings.nvls == 1 or (settings.nvls and offered)
    heads = search.nvls() if wanted and len(graph.gpus) > 1 else ChannelGraph(Pattern.NVLS, 1, 1)
    slowest = paths.slowest_net_gb_per_s() if several_nodes else 0.0
    return _Node(graph, ring, tree, heads, search.max_gb_per_s, search.total_gb_per_s, slowest)


def _refuse_islands(paths: Paths) -> None:
    graph = paths.graph
    for gpu in graph.gpus[1:]:
        if paths.gpu_to(0, Kind.GPU)[graph.gpus.index(gpu)].type >= PathType.NET:
            raise InputError(
                f"{graph.path}: GPUs of ranks {graph.gpus[0].rank} and {gpu.rank} have no way to each other but the network, so "
                "they are no one node. Pass the file of one host, or of hosts that NVLink joins."
            )


def _check_counts(topology: NcclTopology, nodes: int, node: _Node) -> None:
    gpus = len(node.graph.gpus)
    if nodes * gpus >= _MOST_RANKS:
        raise InputError(
            f"{topology.path}: {nodes} nodes of {gpus} GPUs are more ranks than NCCL can number ({_MOST_RANKS - 1})."
        )


def _sizes(sizes_bytes: Iterable[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    sizes = list(sizes_bytes)
    wrong = next((size for size in sizes if size < 0 or size >= 1 << 63), None)
    if wrong is not None:
        raise InputError(f"{wrong} bytes: sizes are 0 to 2^63-1.")
    return np.array(sizes, np.int64)
