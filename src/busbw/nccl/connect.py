"""From search channels to the channels of a communicator: how many there are, and who is joined to whom between nodes.

Rules after NVIDIA/nccl 2.30.7, src/graph/connect.cc, trees.cc, src/transport/nvls.cc.
"""

from __future__ import annotations

from dataclasses import dataclass

from busbw.nccl.constants import Constants
from busbw.nccl.graphs import ChannelGraph
from busbw.nccl.settings import Settings

__all__ = ["TreePosition", "binary_tree", "channel_count", "double_binary_tree", "nvls_channel_count"]

_HOPPER, _BLACKWELL = 90, 100


def channel_count(
    ring: ChannelGraph, tree: ChannelGraph, *, capability: int, nodes: int, settings: Settings, constants: Constants
) -> int:
    """Channels that collectives run on: every search channel twice, four times on fast nodes with few of them."""
    rules = constants.channels
    channels: int = min(2 * min(ring.channels, tree.channels), constants.search["max_channels"])
    fast = capability >= _HOPPER and ring.intra_gb_per_s > rules["quadruple_ring_above"]
    if nodes > 1 and fast and channels < rules["quadruple_below_channels"]:
        channels *= 2
    channels = min(channels, settings.most_channels, settings.most_ctas)
    return max(channels, settings.least_channels, settings.least_ctas)


def nvls_channel_count(
    *,
    capability: int,
    nodes: int,
    ranks_per_node: int,
    net_gb_per_s: float,
    settings: Settings,
    constants: Constants,
) -> int:
    """Channels that NVLS and NVLSTree run on.

    net_gb_per_s: the slowest net that a GPU takes as its own. Only sm_100 and later over three and more nodes look at it.
    """
    rules = constants.channels
    channels: int
    if capability < _BLACKWELL:
        channels = rules["nvls_hopper"]
    elif nodes == 1:
        channels = rules["nvls_blackwell_one_node"]
    elif nodes == 2 or net_gb_per_s < rules["nvls_fewer_from_net"]:
        channels = rules["nvls_blackwell_several_nodes"]
    else:
        many_ranks = ranks_per_node > rules["nvls_fewer_up_to_ranks"] and net_gb_per_s >= rules["nvls_many_from_net"]
        channels = rules["nvls_blackwell_several_nodes" if many_ranks else "nvls_blackwell_fewer"]
    if settings.nvls_channels is not None:
        channels = settings.nvls_channels
    return max(settings.least_ctas, min(settings.most_ctas, channels))


@dataclass(frozen=True, slots=True)
class TreePosition:
    """A node's place in a tree over nodes; -1 where there is nobody."""

    up: int
    down: tuple[int, int]


def binary_tree(node: int, nodes: int) -> TreePosition:
    """A node's place in the binary tree whose leaves are every other node.

    A node's level is its lowest set bit: odd nodes are leaves, node 0 is the root with one child.

    >>> binary_tree(2, 5), binary_tree(0, 5)
    (TreePosition(up=4, down=(1, 3)), TreePosition(up=-1, down=(-1, 4)))
    """
    if not 0 <= node < nodes:
        raise ValueError(f"node {node} is none of 0 to {nodes - 1}")
    if node == 0:
        child = 1 << (nodes - 1).bit_length() - 1 if nodes > 1 else -1
        return TreePosition(-1, (-1, child))
    level = node & -node
    up = (node ^ level) | level << 1
    if up >= nodes:
        up = node ^ level
    below = level >> 1
    if not below:
        return TreePosition(up, (-1, -1))
    second = node + below
    while below and second >= nodes:
        below >>= 1
        second = node + below if below else -1
    return TreePosition(up, (node - (level >> 1), second))


def double_binary_tree(node: int, nodes: int) -> tuple[TreePosition, TreePosition]:
    """A node's places in both trees: who is a leaf in one has children in the other, so that all links carry both ways.

    The second tree is the first with nodes in reverse, or, for an odd number of nodes, moved on by one.
    Channels of the first half use the first tree, those of the second half the second.
    """
    first = binary_tree(node, nodes)
    if nodes % 2 == 0:
        mirrored = binary_tree(nodes - 1 - node, nodes)

        def back(other: int) -> int:
            return -1 if other == -1 else nodes - 1 - other
    else:
        mirrored = binary_tree((node - 1) % nodes, nodes)

        def back(other: int) -> int:
            return -1 if other == -1 else (other + 1) % nodes

    return first, TreePosition(back(mirrored.up), (back(mirrored.down[0]), back(mirrored.down[1])))
