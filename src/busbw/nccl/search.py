"""The channel search: which tries NCCL makes, in which order, until it has the channels of a ring, a tree or of NVLS.

A try (`_search.ChannelSearch`, C++) lays channels at given speeds and distances. Demands begin high and are lowered one
by one (`demands`) until a try succeeds; then speeds are raised as far as they go. Rules after NVIDIA/nccl 2.30.7,
src/graph/search.cc.

The tries are C++ because NCCL's budget is half a million steps: a DGX A100 among others takes 532,480, which took
39 s in Python and takes under a second here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from busbw.nccl._search import Channels, Wish
from busbw.nccl.columns import channel_search
from busbw.nccl.constants import Constants
from busbw.nccl.demands import Demands, Limits
from busbw.nccl.graphs import ChannelGraph, Pattern
from busbw.nccl.paths import Paths
from busbw.nccl.topology import Kind, PathType, float32

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
        self._speeds = tuple(map(float32, constants.speeds_gb_per_s(self._capability, several_nodes)))
        self._order: dict[int, tuple[list[int], list[list[int]]]] = {}
        self._tries = channel_search(paths)

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

    def _budget(self, wish: Wish) -> int:
        """Steps that a try may take."""
        limits = self.constants.search
        steps: int = limits["steps_same_channels"] if wish.same_channels else limits["steps_a_try"]
        return steps

    def _try(self, wish: Wish, best: Channels) -> int:
        """One try; the steps it had left, -1 if nothing can be better."""
        nets, nets_of_gpu = self._nets_in_order(wish.type_inter)
        in_order = self.constants.search["steps_pci_order"]
        return self._tries.attempt(wish, best, nets, nets_of_gpu, self._budget(wish), in_order)

    def _lower_until_found(self, wish: Wish, best: Channels, may_cross: int) -> None:
        """The first pass: lowers demands until nothing can be better, no demand is left, or the budget is spent."""
        limits = self.constants.search
        demands = Demands(wish, best, self._limits(wish, may_cross))
        budget = limits["steps_in_all"]
        while True:
            budget -= self._budget(wish)
            left = self._try(wish, best)
            if left == _PERFECT or float32(best.channels * best.wish.inter) >= self.total_gb_per_s:
                return
            if demands.let_channels_differ():
                continue
            budget += left
            if (budget < 0 and best.channels) or not demands.lower():
                return

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

    def _limits(self, wish: Wish, may_cross: int) -> Limits:
        nearest, farthest = self._distances()
        return Limits(
            nearest_intra=nearest[0],
            farthest_intra=min(farthest[0], PathType.NET),
            nearest_inter=nearest[1],
            farthest_inter=min(farthest[1], PathType.NET),
            speeds=self._speeds,
            first_speed=self._first_speed(wish),
            slowest_kept_share=self.constants.search["slowest_kept_share"],
            cross_nic=may_cross,
            simpler_trees=self._capability >= _HOPPER,
            channels_apart=self.graph.cpu_model != "amd",
            several_nodes=self.several_nodes,
        )

    def _first_speed(self, wish: Wish) -> int:
        devices = len(self.graph.vertices[Kind.DEV])
        total = self.total_gb_per_s
        if devices > 1 and wish.pattern != Pattern.RING:  # others do not come back to where they began
            total = float32(total * (devices / (devices - 1)))
        fits = (
            i
            for i, speed in enumerate(self._speeds)
            if speed <= self.max_gb_per_s and float32(speed * wish.least_channels) <= total
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
