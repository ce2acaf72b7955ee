"""What the channel search finds for one algorithm: how many channels, how fast, over which GPUs and nets."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

from busbw.nccl.topology import PathType

__all__ = ["ChannelGraph", "Pattern"]


class Pattern(IntEnum):
    """The shape of a channel, numbered as in NCCL's graph files."""

    BALANCED_TREE = 1
    """A GPU takes the tree's parent and one child, its neighbour the other child."""
    SPLIT_TREE = 2
    """A GPU takes the parent, its neighbour both children."""
    TREE = 3
    """One GPU takes all traffic between nodes."""
    RING = 4
    NVLS = 5
    COLLNET_DIRECT = 6


@dataclass(frozen=True, slots=True)
class ChannelGraph:
    """Channels of one pattern. GPUs and nets are named by their place in the topology graph."""

    pattern: Pattern
    least_channels: int
    most_channels: int
    cross_nic: int = 0
    """0 a channel stays on one rail, 1 it need not, 2 pairs of channels exchange theirs on every other node."""
    channels: int = 0
    intra_gb_per_s: float = 0.0
    """One channel inside a node."""
    inter_gb_per_s: float = 0.0
    """One channel between nodes."""
    latency_inter_us: float = 0.0
    type_intra: PathType = PathType.LOC
    """The worst path between GPUs that was allowed."""
    type_inter: PathType = PathType.LOC
    """The worst path between GPU and net that was allowed."""
    same_channels: int = 0
    """1 if all channels pass the GPUs in one order."""
    hops: int = 0
    gpus: tuple[tuple[int, ...], ...] = ()
    """For each channel its GPUs in order; an NVLS channel has its head alone."""
    nets: tuple[tuple[int, int], ...] = ()
    """For each channel the net it comes in by and the one it leaves by; empty on one node."""
