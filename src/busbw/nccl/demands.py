"""What the channel search demands at first, and what it gives up, step by step, when a try finds nothing good enough.

The demands turn like the digits of an odometer: the first one is lowered as far as it goes; then it returns to where it
began and the next is lowered by one; and so on. Order and limits after NVIDIA/nccl 2.30.7, src/graph/search.cc.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from busbw.nccl._search import Channels, Wish
from busbw.nccl.graphs import Pattern
from busbw.nccl.topology import PathType, float32

__all__ = ["Demands", "Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """How far a node lets demands go."""

    nearest_intra: PathType
    farthest_intra: PathType
    nearest_inter: PathType
    farthest_inter: PathType
    speeds: tuple[float, ...]
    """Highest first."""
    first_speed: int
    slowest_kept_share: float
    """A speed below this share of the best one found is not tried."""
    cross_nic: int
    """0 channels keep to one rail, 1 they need not, 2 pairs may exchange theirs if nothing else helps."""
    simpler_trees: bool
    channels_apart: bool
    """Whether channels that differ may be tried where GPUs are SYS apart; not through AMD's CPUs."""
    several_nodes: bool


class Demands:
    """The demands of one search. `wish` holds them; `best` is what was found so far, which some of them look at."""

    def __init__(self, wish: Wish, best: Channels, limits: Limits) -> None:
        self.wish = wish
        self.best = best
        self.limits = limits
        self._pattern = wish.pattern
        self._same_channels = wish.pattern != Pattern.NVLS
        self._cross_nic = 1 if limits.cross_nic == 1 else 0
        self._speed = limits.first_speed
        for each in (wish, best.wish):
            each.cross_nic = self._cross_nic
            each.same_channels = self._same_channels
            each.type_intra, each.type_inter = int(limits.nearest_intra), int(limits.nearest_inter)
        wish.intra = wish.inter = limits.speeds[self._speed]
        self._digits: tuple[Callable[[], bool], ...] = (
            self._simpler_tree,
            self._farther_gpus,
            self._farther_nets,
            self._crossed_nics,
            self._slower,
        )

    def let_channels_differ(self) -> bool:
        """Lowers the first demand, that all channels pass the GPUs in one order; False if that is given up already."""
        wish = self.wish
        if wish.same_channels and (self.limits.channels_apart or wish.type_intra != PathType.SYS):
            wish.same_channels = False
            return True
        wish.same_channels = self._same_channels
        return False

    def lower(self) -> bool:
        """Lowers the next demand; False if none is left."""
        return any(digit() for digit in self._digits)

    def _simpler_tree(self) -> bool:
        """All traffic of a node through one GPU."""
        if self.limits.simpler_trees and self.wish.pattern == Pattern.BALANCED_TREE:
            self.wish.pattern = int(Pattern.TREE)
            return True
        self.wish.pattern = self.best.wish.pattern
        return False

    def _farther_gpus(self) -> bool:
        """A worse path between GPUs, but never worse than between GPU and net."""
        wish, limits = self.wish, self.limits
        farthest = wish.type_inter if limits.several_nodes else limits.farthest_intra
        if wish.type_intra < farthest and (not self.best.channels or wish.type_intra < self.best.wish.type_intra):
            wish.type_intra += 1
            return True
        wish.type_intra = int(limits.nearest_intra)
        return False

    def _farther_nets(self) -> bool:
        """A worse path between GPU and net; up to PXN even if something was found nearer."""
        wish, limits, best = self.wish, self.limits, self.best
        worth = not best.channels or wish.type_inter < best.wish.type_inter or wish.type_inter < PathType.PXN
        if limits.several_nodes and wish.type_inter < limits.farthest_inter and worth:
            wish.type_inter += 1
            return True
        wish.type_inter = int(limits.nearest_inter)
        return False

    def _crossed_nics(self) -> bool:
        """Pairs of channels that leave by each other's net."""
        crossing = self.best.wish.pattern in (Pattern.RING, Pattern.BALANCED_TREE)
        if self.limits.cross_nic == 2 and self.wish.cross_nic == 0 and crossing:
            self.wish.cross_nic = 2
            return True
        self.wish.cross_nic = self._cross_nic
        return False

    def _slower(self) -> bool:
        """The next lower speed."""
        speeds, best = self.limits.speeds, self.best
        if self._speed + 1 == len(speeds):
            return False
        following = speeds[self._speed + 1]
        if best.channels and float32(following / best.wish.inter) <= self.limits.slowest_kept_share:
            return False
        self._speed += 1
        self.wish.intra = self.wish.inter = following
        return True
