"""NCCL's cost table: latency and bandwidth of every function, algorithm and protocol, and what switched a cell off.

Formulas after NVIDIA/nccl 2.30.7, src/graph/tuning.cc. NCCL holds the figures as floats, so each is rounded to float32
where NCCL stores it; without that, ties and printed digits would differ. Times are microseconds, rates 1e9 bytes a
second of algorithm bandwidth. The table ranks algorithms; it does not predict times.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from busbw.nccl.constants import Constants
from busbw.nccl.graphs import ChannelGraph, Pattern
from busbw.nccl.settings import Settings
from busbw.nccl.topology import PathType, float32
from busbw.nccl.words import Algorithm, Function, Protocol

__all__ = ["Cell", "CostInputs", "CostTable", "cost_table"]

Cell = tuple[Function, Algorithm, Protocol]
FloatTable = npt.NDArray[np.float32]
IntTable = npt.NDArray[np.int64]

_VOLTA, _AMPERE, _HOPPER, _BLACKWELL = 70, 80, 90, 100
_COLLNET = (Algorithm.CollNetDirect, Algorithm.CollNetChain)
_NVLS = (Algorithm.NVLS, Algorithm.NVLSTree)
_GATHERING = (Function.AllGather, Function.ReduceScatter)
_FUNCTIONS_OF: dict[Function, tuple[Algorithm, ...]] = {
    Function.Broadcast: (Algorithm.Ring,),
    Function.Reduce: (Algorithm.Ring,),
    Function.AllGather: (Algorithm.Ring, Algorithm.CollNetDirect, Algorithm.NVLS, Algorithm.PAT),
    Function.ReduceScatter: (Algorithm.Ring, Algorithm.CollNetDirect, Algorithm.NVLS, Algorithm.PAT),
    Function.AllReduce: tuple(a for a in Algorithm if a is not Algorithm.PAT),
}


@dataclass(frozen=True, slots=True)
class CostInputs:
    """What the table is made of."""

    nodes: int
    ranks: int
    least_capability: int
    most_capability: int
    cpu_model: str
    nvls: bool
    """Whether the communicator uses NVLS."""
    ring: ChannelGraph
    tree: ChannelGraph
    nvls_graph: ChannelGraph
    channels: int
    """Channels of the communicator, twice those of the search or more."""
    nvls_channels: int

    @property
    def ranks_per_node(self) -> float:
        """Ranks over nodes."""
        return self.ranks / self.nodes

    def graph(self, algorithm: Algorithm) -> ChannelGraph | None:
        """The channels an algorithm runs on; None for CollNet, which is not searched for."""
        if algorithm in _COLLNET:
            return None
        if algorithm in _NVLS:
            return self.nvls_graph
        return self.ring if algorithm is Algorithm.Ring else self.tree


@dataclass(frozen=True, slots=True)
class CostTable:
    """F = 5 functions, A = 7 algorithms, P = 3 protocols, in the order of `words`. A bandwidth of 0: the cell is off."""

    inputs: CostInputs
    constants: Constants
    latency_us: FloatTable  # (F, A, P)
    gb_per_s: FloatTable  # (F, A, P), algorithm bandwidth
    max_threads: IntTable  # (A, P)
    thread_bytes: IntTable  # (A, P), what a thread must get before another one is worth it
    meaningless: frozenset[Cell]
    """Cells that NCCL has no code for: Broadcast by trees, NVLS with LL ..."""
    off: dict[Cell, tuple[str, ...]]
    """For each cell that is off what switched it off, all causes. A call may switch off more: `choice.call_causes`."""


def cost_table(inputs: CostInputs, constants: Constants, settings: Settings) -> CostTable:
    """The table of a communicator. A single rank moves nothing: all its cells are off."""
    shape = (len(Function), len(Algorithm), len(Protocol))
    latency, rate = np.zeros(shape, np.float32), np.zeros(shape, np.float32)
    off: dict[Cell, tuple[str, ...]] = {}
    model = _Model(inputs, constants, settings)
    for function in Function:
        for algorithm in Algorithm:
            for protocol in Protocol:
                causes = tuple(_causes(inputs, settings, function, algorithm, protocol))
                graph = inputs.graph(algorithm)
                modelled = inputs.ranks > 1 and graph is not None and graph.channels > 0
                if graph is not None and modelled and _exists(function, algorithm, protocol):
                    latency[function, algorithm, protocol] = model.latency_us(function, algorithm, protocol, graph)
                    if not causes:
                        rate[function, algorithm, protocol] = model.gb_per_s(function, algorithm, protocol, graph)
                if causes:
                    off[function, algorithm, protocol] = causes
    threads, each = _max_threads(inputs, constants, settings), _thread_bytes(inputs, constants, settings)
    nothing = frozenset((f, a, p) for f in Function for a in Algorithm for p in Protocol if not _exists(f, a, p))
    return CostTable(inputs, constants, latency, rate, threads, each, nothing, off)


def _exists(function: Function, algorithm: Algorithm, protocol: Protocol) -> bool:
    simple_only = algorithm in (*_NVLS, *_COLLNET, Algorithm.PAT)
    return algorithm in _FUNCTIONS_OF[function] and (not simple_only or protocol is Protocol.Simple)


def _causes(
    inputs: CostInputs, settings: Settings, function: Function, algorithm: Algorithm, protocol: Protocol
) -> Iterator[str]:
    """What switches a cell off."""
    if inputs.ranks == 1:
        yield "one rank: nothing to move but a copy"
        return
    if algorithm not in _FUNCTIONS_OF[function]:
        yield f"{function.name} has no {algorithm.name}"
        return
    if not _exists(function, algorithm, protocol):
        yield f"{algorithm.name} moves Simple only"
        return
    algorithms, protocols = settings.allowed_algorithms(function), settings.allowed_protocols(function)
    if algorithms is not None and algorithm not in algorithms:
        yield f"NCCL_ALGO={settings.text_of('NCCL_ALGO')}"
    if protocols is not None and protocol not in protocols:
        yield f"NCCL_PROTO={settings.text_of('NCCL_PROTO')}"
    if algorithm in _COLLNET:
        wanted = settings.text_of("NCCL_COLLNET_ENABLE") not in ("", "0")
        yield "CollNet is not modelled yet" if wanted else "CollNet is off (NCCL_COLLNET_ENABLE is 0)"
    elif algorithm in _NVLS:
        yield from _nvls_causes(inputs, settings, algorithm)
    elif algorithm is Algorithm.PAT:
        yield from _pat_causes(inputs, settings)
    graph = inputs.graph(algorithm)
    if protocol is Protocol.LL128 and graph is not None and protocols is None:
        yield from _ll128_causes(inputs, settings, graph)


def _nvls_causes(inputs: CostInputs, settings: Settings, algorithm: Algorithm) -> Iterator[str]:
    if not inputs.nvls:
        if settings.nvls == 0:
            yield "NCCL_NVLS_ENABLE=0"
        elif inputs.ranks_per_node < 2:
            yield "one GPU a node"
        else:
            yield "no multicast: it needs Hopper or later, all on NVSwitch"
    elif inputs.nvls_graph.channels < 2:
        yield "the search found fewer than two heads"
    if algorithm is Algorithm.NVLSTree and inputs.nodes == 1:
        yield "one node"
    if algorithm is Algorithm.NVLS and inputs.nodes > 1:
        yield "several nodes, and CollNet is off"


def _pat_causes(inputs: CostInputs, settings: Settings) -> Iterator[str]:
    if inputs.least_capability < 60:
        yield "a GPU before sm_60"
    elif settings.pat == 0:
        yield "NCCL_PAT_ENABLE=0"
    elif settings.pat == 2 and inputs.nodes != inputs.ranks:
        yield "more than one rank a node"


def _ll128_causes(inputs: CostInputs, settings: Settings, graph: ChannelGraph) -> Iterator[str]:
    capability = inputs.least_capability
    over_c2c = settings.ll128_c2c and capability >= _HOPPER
    farthest = PathType.PXN if over_c2c else PathType.PXB
    if graph.type_inter > farthest:
        yield f"GPU to NIC is {graph.type_inter.name}, farther than {farthest.name}"
    if graph.type_intra > PathType.NVB:
        yield f"GPU to GPU is {graph.type_intra.name}, no NVLink"
    if inputs.most_capability != capability and capability < _HOPPER:
        yield "GPUs of different generations"
    if capability < _VOLTA:
        yield "a GPU before sm_70"


class _Model:
    """The formulas."""

    def __init__(self, inputs: CostInputs, constants: Constants, settings: Settings) -> None:
        self.inputs = inputs
        self.rates = constants.bandwidth
        self.times = constants.latency
        self.settings = settings
        capability = inputs.least_capability
        self.generation = (capability >= _AMPERE) + (capability >= _HOPPER) + (capability >= _BLACKWELL)
        self.scale = min(inputs.nodes, 3) - 1

    def steps(self, function: Function) -> int:
        """Steps of a ring."""
        ranks = self.inputs.ranks
        if function is Function.AllReduce:
            return 2 * (ranks - 1)
        return ranks - 1 if function in _GATHERING else ranks

    def cap(self, name: str, row: int | None = None) -> float:
        """A limit by generation, or another row, and scale."""
        return float(self.rates[name][self.generation if row is None else row][self.scale])

    def ll_cap(self) -> float:
        """What LL moves at most: by generation on one node, by make of CPU over several."""
        several = 1 if self.inputs.cpu_model == "amd" else 0
        return self.cap("ll_cap", None if self.inputs.nodes == 1 else several)

    def gb_per_s(self, function: Function, algorithm: Algorithm, protocol: Protocol, graph: ChannelGraph) -> float:
        """Algorithm bandwidth of a cell."""
        channels, rates = graph.channels, self.rates
        one = graph.intra_gb_per_s if self.inputs.nodes <= 2 else graph.inter_gb_per_s
        if algorithm in _NVLS:
            one = self._nvls_channel(function, algorithm, graph)
        bus = float32(channels * one)
        if algorithm is Algorithm.Ring and protocol is Protocol.LL:
            bus = float32(min(self.ll_cap(), bus * rates["ring_ll_share"]))
        elif algorithm is Algorithm.Ring and protocol is Protocol.LL128:
            bus = float32(min(bus * rates["ll128_share"], channels * self.cap("ring_ll128_cap")))
        elif algorithm is Algorithm.Tree:
            bus = self._tree(protocol, bus, channels)
        elif algorithm is Algorithm.PAT:
            bus = float32(bus * rates["pat_share"])
        if algorithm is not Algorithm.Ring and function in _GATHERING:
            return bus
        by_steps = algorithm in (Algorithm.Ring, *_NVLS)
        return float32(bus * (float32(self.inputs.ranks / self.steps(function)) if by_steps else 0.5))

    def _nvls_channel(self, function: Function, algorithm: Algorithm, graph: ChannelGraph) -> float:
        channels, per_node = graph.channels, float32(self.inputs.ranks_per_node)
        efficiency = float32(self.rates["nvls_efficiency"][self.generation])
        intra = float32(float32(float32(graph.intra_gb_per_s * efficiency) * (channels - 1)) / channels)
        if function is Function.AllReduce:
            intra = float32(intra * 2)
        else:
            intra = float32(intra * float32((per_node - 1) / per_node))
        if algorithm is Algorithm.NVLS:
            return min(intra, graph.inter_gb_per_s)
        twice = 2 if self.inputs.nodes <= 2 else 1
        return min(intra, graph.inter_gb_per_s * twice, float32(self.cap("nvls_tree_cap")))

    def _tree(self, protocol: Protocol, bus: float, channels: int) -> float:
        rates = self.rates
        bus = float32(min(bus * rates["tree_share"], channels * self.cap("tree_cap")))
        if protocol is Protocol.LL:
            bus = float32(min(bus / rates["tree_ll_divisor"], self.ll_cap()))
        elif protocol is Protocol.LL128:
            part, whole = rates[
                "tree_ll128_share_one_node" if self.inputs.nodes == 1 else "tree_ll128_share_several_nodes"
            ]
            bus = float32(min(bus * (part / whole), channels * self.cap("tree_ll128_cap")))
        if self.inputs.tree.pattern is Pattern.TREE:
            bus = float32(bus * rates["one_gpu_tree_share"])
        return bus

    def latency_us(self, function: Function, algorithm: Algorithm, protocol: Protocol, graph: ChannelGraph) -> float:
        """Latency of a cell."""
        nodes, ranks = self.inputs.nodes, self.inputs.ranks
        base = float32(self.times["base"][algorithm][protocol])
        intra, inter = self._hops(algorithm, protocol, graph)
        depth = nodes.bit_length() - 1
        if algorithm is Algorithm.Ring:
            return self._ring_latency(function, protocol, graph)
        if algorithm is Algorithm.Tree:
            inside = float32((ranks // nodes - 1) * intra)
            return float32(base + float32(2 * float32(inside + float32(depth * inter))))
        if algorithm is Algorithm.NVLS:
            return float32(intra + inter) if nodes > 1 else intra
        if algorithm is Algorithm.NVLSTree:
            return float32(base + float32(intra + float32(2 * depth * inter)))
        return float32(base + (depth * (inter / self.times["pat_net_share"]) + ranks * self.times["pat_per_rank"]))

    def _hops(self, algorithm: Algorithm, protocol: Protocol, graph: ChannelGraph) -> tuple[float, float]:
        """Latency of a hop inside a node and between nodes."""
        intra = float32(self._hardware(graph)[algorithm][protocol])
        exposed = self.inputs.ranks_per_node == 1
        inter = float32(self.times["net"][Algorithm.Tree if exposed else algorithm][protocol])
        inter = float32(inter + graph.latency_inter_us)
        if protocol is Protocol.Simple:  # once more, for the flush
            inter = float32(inter + graph.latency_inter_us)
        return intra, inter

    def _hardware(self, graph: ChannelGraph) -> list[list[float]]:
        """Latencies inside a node, by algorithm and protocol."""
        if graph.type_intra == PathType.NVL:
            return list(self.times["nvlink"])
        table = [list(row) for row in self.times["pci"]]
        if self.inputs.cpu_model == "power":
            table[Algorithm.Tree][Protocol.Simple] = table[Algorithm.Ring][Protocol.Simple]
        return table

    def _ring_latency(self, function: Function, protocol: Protocol, graph: ChannelGraph) -> float:
        nodes, steps = self.inputs.nodes, self.steps(function)
        base = float32(self.times["base"][Algorithm.Ring][protocol])
        if function in (Function.Broadcast, Function.Reduce):
            table = self._hardware(graph) if nodes == 1 else self.times["net"]
            if graph.same_channels:
                return float32(base + float32(table[Algorithm.Ring][protocol]))
            row = Algorithm.Tree if protocol is Protocol.Simple else Algorithm.Ring
            return float32(base + float32(steps * float32(table[row][protocol])))
        intra, inter = self._hops(Algorithm.Ring, protocol, graph)
        crossings = 0
        if nodes > 1:
            intra = max(intra, self._post(protocol))
            crossings = 2 * (nodes - 1) if function is Function.AllReduce else nodes - 1
        return float32(base + float32(float32((steps - crossings) * intra) + float32(crossings * inter)))

    def _post(self, protocol: Protocol) -> float:
        """What posting to the network costs, whatever a step inside the node takes."""
        post = self.times["post"]
        given = self.settings.net_overhead_us
        known = self.inputs.cpu_model if self.inputs.cpu_model in ("intel", "amd") else "other"
        cost = float32(post[known] if given is None else given)
        return float32(cost * post["simple_factor"]) if protocol is Protocol.Simple else cost


def _max_threads(inputs: CostInputs, constants: Constants, settings: Settings) -> IntTable:
    limits = constants.threads
    threads = np.full((len(Algorithm), len(Protocol)), 0, np.int64)
    threads[[*_COLLNET, *_NVLS], Protocol.Simple] = limits["most"]
    ring_rate = float32(inputs.ring.intra_gb_per_s * inputs.ring.channels)
    slow = ring_rate <= limits["slow_ring_up_to"]
    simple = {Algorithm.Ring: limits["simple_slow_ring" if slow else "simple"], Algorithm.Tree: limits["simple"]}
    for algorithm, default in simple.items():
        threads[algorithm, Protocol.Simple] = settings.threads or default
        threads[algorithm, Protocol.LL] = settings.threads or limits["ll"]
        threads[algorithm, Protocol.LL128] = settings.ll128_threads or limits["ll128"]
    return threads


def _thread_bytes(inputs: CostInputs, constants: Constants, settings: Settings) -> IntTable:
    given = constants.threads["per_thread_bytes"]
    table = np.empty((len(Algorithm), len(Protocol)), np.int64)
    table[:] = (given["ll"], given["ll128"], given["simple"])
    table[Algorithm.Ring, Protocol.LL] *= inputs.ranks
    table[list(_COLLNET), Protocol.Simple] = given["collnet"]
    for place, value in enumerate(settings.thread_thresholds):
        if value >= 0:
            table[place // len(Protocol), place % len(Protocol)] = value
    return table
