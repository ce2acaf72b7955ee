"""The schedule that NCCL's choice stands for: its rings, trees and switches as a `Schedule`, rank by rank.

Rings and trees are those of the channel search, joined between nodes as in NVIDIA/nccl 2.30.7, src/graph/connect.cc: a ring goes through node after node;
a tree is a chain of GPUs inside a node and a double binary tree between nodes. Ranks are numbered node by node, GPUs as NCCL numbers them.
What a protocol or a number of warps changes is when bytes move, so it is not in the schedule.
"""

from __future__ import annotations

from itertools import pairwise

from busbw.collectives import BoundSchedule, Tree, forest
from busbw.collectives.algorithms import (
    double_binary_tree_all_reduce,
    hierarchical_all_reduce,
    multi_ring_all_gather,
    multi_ring_all_reduce,
    multi_ring_reduce_scatter,
    nvls_all_gather,
    nvls_all_reduce,
    nvls_reduce_scatter,
    pat_all_gather,
    pat_reduce_scatter,
)
from busbw.errors import InputError
from busbw.nccl.choice import Choice
from busbw.nccl.communicator import Communicator
from busbw.nccl.connect import double_binary_tree
from busbw.nccl.graphs import ChannelGraph, Pattern
from busbw.nccl.words import Algorithm, Function

__all__ = ["ring_orders", "schedule", "trees"]

_MOST_ENTRIES = 1 << 24
"""Ranks times channels that are written into a table: 128 MiB."""
_EXCHANGED = 2
"""cross_nic at which pairs of channels exchange their ways on every other node."""


def schedule(choice: Choice, model: Communicator) -> BoundSchedule:
    """What runs, with a chunk for each channel and each part of the vector.

    Raises InputError for CollNet, NVLS of several nodes other than all_reduce, which has no schedule here yet, and for more ranks than fit a table.
    """
    function, algorithm = choice.function, choice.algorithm
    ranks, nodes = model.inputs.ranks, model.inputs.nodes
    if algorithm in (Algorithm.Ring, Algorithm.Tree) and ranks * choice.channels > _MOST_ENTRIES:
        raise InputError(
            f"{ranks} ranks x {choice.channels} channels: rings and trees are written rank by rank, up to {_MOST_ENTRIES} entries. "
            "Ask for fewer nodes."
        )
    if algorithm is Algorithm.Ring:
        orders = ring_orders(model, choice.channels)
        if function in (Function.Broadcast, Function.Reduce):
            chains = [_chain(order) for order in orders]
            return forest(function.name.lower(), chains, name=f"nccl_ring_{function.name.lower()}").bind()
        made = {
            Function.AllReduce: multi_ring_all_reduce,
            Function.AllGather: multi_ring_all_gather,
            Function.ReduceScatter: multi_ring_reduce_scatter,
        }[function]
        return made(orders).bind()
    if algorithm is Algorithm.Tree and function is Function.AllReduce:
        return forest("all_reduce", trees(model, choice.channels), name="nccl_tree_all_reduce").bind()
    if algorithm is Algorithm.PAT:
        return (pat_all_gather() if function is Function.AllGather else pat_reduce_scatter()).bind(ranks)
    if algorithm is Algorithm.NVLS and nodes == 1:
        inside = {
            Function.AllReduce: nvls_all_reduce,
            Function.AllGather: nvls_all_gather,
            Function.ReduceScatter: nvls_reduce_scatter,
        }[function]
        return inside().bind(ranks)
    if algorithm is Algorithm.NVLSTree and function is Function.AllReduce:
        tree = double_binary_tree_all_reduce()
        levels = hierarchical_all_reduce(nvls_reduce_scatter(), tree, nvls_all_gather())
        return levels.bind(nodes, model.gpus_per_node)
    raise InputError(f"{algorithm.name} {function.name} over {nodes} nodes: its schedule is not known here.")


def ring_orders(model: Communicator, channels: int) -> list[list[int]]:
    """The order in which each channel's ring visits the ranks.

    Channels repeat those of the search. Where its pairs exchange their NICs on every other node, odd nodes take their partner's order.
    """
    ring, per_node = model.inputs.ring, model.gpus_per_node
    found = []
    for channel in range(channels):
        order: list[int] = []
        for node in range(model.inputs.nodes):
            place = channel % ring.channels
            if ring.cross_nic == _EXCHANGED and node % 2 and place ^ 1 < ring.channels:
                place ^= 1
            order += [node * per_node + gpu for gpu in ring.gpus[place]]
        found.append(order)
    return found


def trees(model: Communicator, channels: int) -> list[Tree]:
    """The tree of each channel: channels of the first half go up the first tree over nodes, the others the second."""
    graph, nodes = model.inputs.tree, model.inputs.nodes
    return [
        _tree(graph, channel, nodes, model.gpus_per_node, second=channel >= model.inputs.channels // 2)
        for channel in range(channels)
    ]


def _tree(graph: ChannelGraph, channel: int, nodes: int, per_node: int, *, second: bool) -> Tree:
    """A chain of GPUs in each node; the pattern says which of its first two GPUs takes the parent and which a child."""
    chain = graph.gpus[channel % graph.channels]
    neighbour = min(1, per_node - 1)
    takes = {
        Pattern.TREE: (0, 0),
        Pattern.BALANCED_TREE: (neighbour, 0),
        Pattern.SPLIT_TREE: (neighbour, neighbour),
    }[graph.pattern]  # connect.cc: child 0's and child 1's GPU, by place in the chain
    parent, root = [-1] * (nodes * per_node), 0
    for node in range(nodes):
        for place in range(1, per_node):
            parent[node * per_node + chain[place]] = node * per_node + chain[place - 1]
        here = double_binary_tree(node, nodes)[second]
        top = node * per_node + chain[0]
        if here.up == -1:
            root = top
            continue
        child = double_binary_tree(here.up, nodes)[second].down.index(node)
        parent[top] = here.up * per_node + chain[takes[child]]
    return Tree(root, parent)


def _chain(order: list[int]) -> Tree:
    """The ring without the link that closes it, from rank 0 on."""
    begin = order.index(0)
    turned = order[begin:] + order[:begin]
    parent = [-1] * len(order)
    for above, rank in pairwise(turned):
        parent[rank] = above
    return Tree(0, parent)
