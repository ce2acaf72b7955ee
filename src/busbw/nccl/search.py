"""The channel search: which tries NCCL makes, in which order, until it has the channels of a ring, a tree or of NVLS.

A try (`_search.ChannelSearch`, C++) lays channels at given speeds and distances. First come wishes high, then they are
lowered one by one until a try succeeds; then speeds are raised as far as they go. Rules after NVIDIA/nccl 2.30.7,
src/graph/search.cc.

The tries are C++ because NCCL's budget is half a million steps: a DGX A100 among others takes 532,480, which took
39 s in Python and takes 0.1 s here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from busbw.nccl._search import Channels, ChannelSearch, Wish
from busbw.nccl.constants import Constants
from busbw.nccl.graphs import ChannelGraph, Pattern
from busbw.nccl.paths import Path, Paths
from busbw.nccl.topology import Kind, Link, PathType, Vertex, float32

__all__ = ["NodeSearch"]

_AMPERE_AND_BEFORE, _HOPPER = 80, 90
"""Compute capabilities at which the order of tries changes. Source: NVIDIA/nccl 2.30.7, src/graph/search.cc."""
_PERFECT = -1
_CROSSING = (Pattern.RING, Pattern.BALANCED_TREE, Pattern.SPLIT_TREE)
"""Patterns that may leave by another net than they came in by."""


class NodeSearch:
    """The search of one node, alone or among several. Searches come in NCCL's order: ring, tree, NVLS."""

    def __init__(self, paths: Paths, constants: Constants, several_nodes: bool) -> None:
        self.paths = paths
        self.graph = paths.graph
        self.constants = constants
        self.several_nodes = several_nodes
        self.max_gb_per_s, self.total_gb_per_s = self._rates()
        """The fastest path between GPU and net, or between GPUs on one node; all NVLinks or the PCIe link of a GPU."""
        self._capability = self.graph.least_capability
        self._speeds = [float32(speed) for speed in constants.speeds_gb_per_s(self._capability, several_nodes)]
        self._order: dict[int, tuple[list[int], list[list[int]]]] = {}
        self._tries = _channel_search(paths)

    def ring(self) -> ChannelGraph:
        """Rings: as many as fit, up to half of all channels, because each is used twice."""
        least = 2 if self._is_split() else 1
        return self._search(Pattern.RING, least, self.constants.search["max_channels"] // 2)

    def tree(self, ring: ChannelGraph) -> ChannelGraph:
        """Trees, exactly as many as rings."""
        return self._search(Pattern.BALANCED_TREE, ring.channels, ring.channels)

    def nvls(self) -> ChannelGraph:
        """Heads that pull from the NVSwitch; none without a switch, before Hopper, or for one GPU alone."""
        if len(self.graph.gpus) < 2 or not self.graph.has_nvswitch or self._capability < _HOPPER:
            nearest = self._distances()[0]
            return ChannelGraph(Pattern.NVLS, 1, 1, type_intra=nearest[0], type_inter=nearest[1])
        most = min(self.constants.search["max_nvls_heads"], len(self.graph.gpus))
        least = 1 if self.several_nodes else most  # on one node every GPU is a head
        return self._search(Pattern.NVLS, least, most)

    def _search(self, pattern: Pattern, least_channels: int, most_channels: int) -> ChannelGraph:
        may_cross = self._may_cross(pattern)
        if len(self.graph.gpus) == 1 and pattern is not Pattern.RING:
            pattern = Pattern.TREE
        wish = Wish(int(pattern), self.several_nodes, least_channels, most_channels)
        best = Channels(wish)
        self._lower_until_found(wish, best, may_cross)
        self._double(best)
        self._raise_while_found(best)
        if best.channels == 0 and pattern is not Pattern.NVLS:
            return self._simple_order(best.wish)
        return _as_graph(best, len(self.graph.gpus), self.several_nodes)

    def _try(self, wish: Wish, best: Channels) -> int:
        """One try; the steps it had left, -1 if nothing can be better."""
        limits = self.constants.search
        budget = limits["steps_same_channels"] if wish.same_channels else limits["steps_a_try"]
        nets, nets_of_gpu = self._nets_in_order(wish.type_inter)
        return self._tries.attempt(wish, best, nets, nets_of_gpu, budget, limits["steps_pci_order"])

    def _is_enough(self, left: int, best: Channels) -> bool:
        return left == _PERFECT or best.channels * best.wish.inter >= self.total_gb_per_s

    def _lower_until_found(self, wish: Wish, best: Channels, may_cross: int) -> None:
        """The first pass: gives up one demand after another, the least dear first, until nothing can be better."""
        limits = self.constants.search
        (nearest_intra, nearest_inter), (farthest_intra, farthest_inter) = self._distances()
        pattern = wish.pattern
        start = best.wish
        start.cross_nic = wish.cross_nic = 1 if may_cross == 1 else 0
        start.same_channels = wish.same_channels = pattern != Pattern.NVLS
        start.type_intra, start.type_inter = int(nearest_intra), int(nearest_inter)
        wish.type_intra, wish.type_inter = int(nearest_intra), int(nearest_inter)
        speed = self._first_speed(wish)
        wish.intra = wish.inter = self._speeds[speed]
        budget = limits["steps_in_all"]
        same_channels_at_first = wish.same_channels
        while True:
            budget -= limits["steps_same_channels"] if wish.same_channels else limits["steps_a_try"]
            left = self._try(wish, best)
            if self._is_enough(left, best):
                return
            through_amd = self.graph.cpu_model == "amd" and wish.type_intra == PathType.SYS
            if wish.same_channels and not through_amd:
                wish.same_channels = False
                continue
            wish.same_channels = same_channels_at_first
            budget += left
            if budget < 0 and best.channels:
                return
            if self._capability >= _HOPPER and wish.pattern == Pattern.BALANCED_TREE:
                wish.pattern = int(Pattern.TREE)
                continue
            wish.pattern = best.wish.pattern
            none_yet = best.channels == 0
            limit = wish.type_inter if self.several_nodes else farthest_intra
            if wish.type_intra < limit and (none_yet or wish.type_intra < best.wish.type_intra):
                wish.type_intra += 1
                continue
            wish.type_intra = int(nearest_intra)
            farther = wish.type_inter < farthest_inter and self.several_nodes
            if farther and (none_yet or wish.type_inter < best.wish.type_inter or wish.type_inter < PathType.PXN):
                wish.type_inter += 1
                continue
            wish.type_inter = int(nearest_inter)
            if may_cross == 2 and wish.cross_nic == 0 and best.wish.pattern in (Pattern.RING, Pattern.BALANCED_TREE):
                wish.cross_nic = 2
                continue
            wish.cross_nic = 1 if may_cross == 1 else 0
            last = speed == len(self._speeds) - 1
            worth = none_yet or (not last and self._speeds[speed + 1] / best.wish.inter > limits["slowest_kept_share"])
            if last or not worth:
                return
            speed += 1
            wish.intra = wish.inter = self._speeds[speed]

    def _raise_while_found(self, best: Channels) -> None:
        """The second pass: the same channels at higher speeds; rings at both, trees inside the node, NVLS between."""
        wish = best.wish.copy()
        speed = next((i for i, known in enumerate(self._speeds) if known <= best.wish.inter), len(self._speeds) - 1)
        wish.intra = wish.inter = self._speeds[speed]
        wish.least_channels = best.channels
        left = _PERFECT
        while left != 0 and speed > 0:
            now = best.wish
            if now.pattern == Pattern.RING:
                wish.intra = wish.inter = self._speeds[speed - 1]
            elif now.pattern == Pattern.NVLS and wish.inter == now.inter and wish.inter < wish.intra * 2:
                wish.least_channels = wish.most_channels = best.channels
                wish.inter = self._speeds[speed - 1]
            elif wish.intra == now.intra and wish.intra < wish.inter * 2:
                wish.intra = self._speeds[speed - 1]
            else:
                return
            speed -= 1
            left = self._try(wish, best)

    def _double(self, best: Channels) -> None:
        """Twice the channels at half the speed, where one channel's share is more than a block of threads moves."""
        limits, wish = self.constants.search, best.wish
        if best.channels == 0 or wish.pattern == Pattern.NVLS or wish.intra < limits["double_channels_from"]:
            return
        slow = wish.intra < limits["double_channels_after_ampere_from"]
        if (
            self._capability > _AMPERE_AND_BEFORE
            and slow
            and best.channels > limits["double_channels_after_ampere_up_to"]
        ):
            return
        channels = min(best.channels * 2, wish.most_channels)
        more, share, gpus = channels - best.channels, -(-channels // best.channels), len(self.graph.gpus)
        kept_gpus, kept_nets = best.gpus[: best.channels * gpus], best.nets[: best.channels * 2]
        best.gpus = kept_gpus + kept_gpus[: more * gpus]
        best.nets = kept_nets + kept_nets[: more * 2]
        wish.intra, wish.inter = wish.intra / share, wish.inter / share
        best.channels = channels

    def _simple_order(self, wish: Wish) -> ChannelGraph:
        """What NCCL falls back to when no try succeeds: one channel in the order of the GPUs, marked as very slow."""
        gpus = tuple(range(len(self.graph.gpus)))
        ends = [self.paths.net_for(gpu, 0) for gpu in (gpus[0], gpus[-1])]
        slow: float = self.constants.search["fallback"]
        graph = ChannelGraph(
            Pattern(wish.pattern),
            wish.least_channels,
            wish.most_channels,
            cross_nic=wish.cross_nic,
            channels=1,
            intra_gb_per_s=slow,
            type_intra=PathType.SYS,
            type_inter=PathType.DIS,
            same_channels=1,
            gpus=(gpus,),
        )
        first, last = ends
        if first is None or last is None:
            return graph
        nets = ((first, last),) if self.several_nodes else ()
        return replace(graph, type_inter=PathType.SYS, inter_gb_per_s=slow, nets=nets)

    def _rates(self) -> tuple[float, float]:
        if not self.several_nodes and len(self.graph.gpus) == 1:
            local: float = self.constants.links["local"]
            return local, local
        fastest = total = 0.0
        for device in self.graph.vertices[Kind.DEV]:
            reached = self.paths.of(device, Kind.NET if self.several_nodes else Kind.DEV)
            fastest = max([fastest, *(path.gb_per_s for path in reached if path.links)])
            nvlinks = sum(link.gb_per_s for link in device.links if link.type == PathType.NVL)
            pci = [link.gb_per_s for link in device.links if link.type == PathType.PIX]
            total = max(total, nvlinks, pci[-1] if pci else 0.0)
        return fastest, total

    def _first_speed(self, wish: Wish) -> int:
        devices = len(self.graph.vertices[Kind.DEV])
        total = self.total_gb_per_s
        if devices > 1 and wish.pattern != Pattern.RING:  # others do not come back to where they began
            total *= devices / (devices - 1)
        fits = (
            i
            for i, speed in enumerate(self._speeds)
            if speed <= self.max_gb_per_s and speed * wish.least_channels <= total
        )
        return next(fits, len(self._speeds) - 1)

    def _may_cross(self, pattern: Pattern) -> int:
        several_nets = len(self.graph.nets) > 1
        return self.paths.settings.cross_nic if several_nets and pattern in _CROSSING else 0

    def _distances(self) -> tuple[tuple[PathType, PathType], tuple[PathType, PathType]]:
        """The nearest types that may be wished for, inside and between nodes, and the farthest."""
        nearest, farthest = (PathType.LOC, PathType.PIX), (PathType.SYS, PathType.SYS)
        if len(self.graph.gpus) > 1:
            spans = self.paths.span(Kind.GPU)
            nearest, farthest = (spans[0], nearest[1]), (spans[1], farthest[1])
        if self.several_nodes:
            spans = self.paths.span(Kind.NET)
            nearest, farthest = (nearest[0], spans[0]), (spans[1], spans[1])
        if self._capability < _HOPPER:
            farthest = (farthest[0], PathType.SYS)
        return nearest, farthest

    def _is_split(self) -> bool:
        """Whether NVLink joins the GPUs in two groups, with something slower between."""
        gpus = range(len(self.graph.gpus))
        group = list(gpus)
        for gpu in gpus:
            for other in range(gpu + 1, len(group)):
                if self.paths.gpu_to(gpu, Kind.GPU)[other].type == PathType.NVL:
                    group[other] = group[gpu]
        return sum(size > 1 for size in Counter(group).values()) == 2

    def _nets_in_order(self, farthest: int) -> tuple[list[int], list[list[int]]]:
        """Nets in the order in which they are tried: for all GPUs together, and for each."""
        if not self.several_nodes:
            return [], [[] for _ in self.graph.gpus]
        if farthest not in self._order:
            gpus = range(len(self.graph.gpus))
            self._order[farthest] = (self._nets_of(gpus, farthest), [self._nets_of([gpu], farthest) for gpu in gpus])
        return self._order[farthest]

    def _nets_of(self, gpus: range | list[int], farthest: int) -> list[int]:
        """First the nets that GPUs take as their own, then others, nearest first."""
        own = [self.paths.nets_for(gpu) for gpu in gpus]
        if len(self.graph.hosts) > 1 and self.paths.settings.scatter_nets:
            longest = max(map(len, own))
            preferred = [nets[place] for place in range(longest) for nets in own if place < len(nets)]
        else:
            preferred = [net for nets in own for net in nets]
        found = dict.fromkeys(preferred)
        policy = self.paths.settings.nets_per_gpu
        most = policy * len(gpus) if policy else len(self.graph.nets)
        for net in self._by_distance(gpus, farthest):
            if len(found) >= most:
                break
            found.setdefault(net)
        return list(found)

    def _by_distance(self, gpus: range | list[int], farthest: int) -> Iterator[int]:
        most = self.constants.search["max_channels"]
        for type_ in range(farthest + 1):
            for gpu in gpus:
                for net, path in enumerate(self.paths.gpu_to(gpu, Kind.NET)[:most]):
                    if path.type == type_:
                        yield net


def _as_graph(found: Channels, gpus: int, several_nodes: bool) -> ChannelGraph:
    wish, count = found.wish, found.channels
    width = 1 if wish.pattern == Pattern.NVLS else gpus
    rows = [tuple(found.gpus[channel * gpus : channel * gpus + width]) for channel in range(count)]
    nets = [(found.nets[channel * 2], found.nets[channel * 2 + 1]) for channel in range(count)] if several_nodes else []
    return ChannelGraph(
        Pattern(wish.pattern),
        wish.least_channels,
        wish.most_channels,
        cross_nic=wish.cross_nic,
        channels=count,
        intra_gb_per_s=wish.intra,
        inter_gb_per_s=wish.inter,
        latency_inter_us=found.latency_us,
        type_intra=PathType(wish.type_intra),
        type_inter=PathType(wish.type_inter),
        same_channels=int(wish.same_channels),
        hops=wish.hops,
        gpus=tuple(rows),
        nets=tuple(nets),
    )


def _channel_search(paths: Paths) -> ChannelSearch:
    """The node as the columns that tries work on. Ends of paths: GPUs, then nets, then the NVSwitch."""
    graph = paths.graph
    switches = graph.vertices[Kind.NVS][:1]
    ends: list[Vertex] = [*graph.gpus, *graph.nets, *switches]
    links = [link for vertex in graph.every() for link in vertex.links]
    place = {link: i for i, link in enumerate(links)}
    types: list[int] = []
    rates: list[float] = []
    begin, steps = [0], list[int]()
    for start in ends:
        for kind, count in ((Kind.GPU, len(graph.gpus)), (Kind.NET, len(graph.nets)), (Kind.NVS, len(switches))):
            found = paths.of(start, kind)
            for index in range(count):
                path = found[index] if found else None
                types.append(int(path.type) if path else int(PathType.DIS))
                rates.append(path.gb_per_s if path else 0.0)
                if path:
                    steps += _steps(start, path, place)
                begin.append(len(steps) // 4)
    asics = {net.asic: i for i, net in enumerate(graph.nets)}
    local = [paths.local(net, Kind.GPU) for net in graph.nets]
    net_numbers = [
        figure
        for i, net in enumerate(graph.nets)
        for figure in (
            asics[net.asic],
            net.port,
            net.rail,
            net.plane,
            -1 if paths.gpu_of_net[i] is None else paths.gpu_of_net[i],
            int(local[i][1] != PathType.DIS),
        )
    ]
    return ChannelSearch(
        np.array([link.gb_per_s for link in links], np.float32),
        np.array(types, np.int32),
        np.array(rates, np.float32),
        np.array(begin, np.int32),
        np.array(steps, np.int32),
        np.array([net.net_gb_per_s for net in graph.nets], np.float32),
        np.array([net.latency_us for net in graph.nets], np.float32),
        np.array(net_numbers, np.int32),
        [gpus for gpus, _ in local],
        np.array([end for gpu in graph.gpus for end in _pci_link(gpu, place)], np.int32),
        bool(switches),
    )


_BEFORE_AMPERE = 80


def _steps(start: Vertex, path: Path, place: dict[Link, int]) -> Iterator[int]:
    """Four numbers a link: itself, the reverse link that is loaded too, the divisor of that share, the peer overhead."""
    through_intel = any(link.end.kind is Kind.CPU and link.end.cpu_model == "intel" for link in path.links)
    overhead = path.type == PathType.PHB and start.kind is Kind.GPU and through_intel
    for link in path.links:
        divisor = 0
        if link.end.kind is Kind.DEV and link.end.capability < _BEFORE_AMPERE and start.kind is not Kind.GPU:
            divisor = 8
        elif link.end.kind is Kind.CPU and link.end.cpu_model == "power" and link.type == PathType.NVL:
            divisor = 1
        reverse = -1
        if divisor:
            reverse = place[next(back for back in link.end.links if back.end is link.start and back.type == link.type)]
        yield from (place[link], reverse, divisor or 1, int(overhead and link.type == PathType.PIX))


def _pci_link(gpu: Vertex, place: dict[Link, int]) -> tuple[int, int]:
    """A GPU's PCIe link, up and down; -1 without one."""
    device = gpu.parent
    for link in device.links if device else ():
        if link.type == PathType.PIX:
            back = next((one for one in link.end.links if one.end is device), link)
            return place[link], place[back]
    return -1, -1
