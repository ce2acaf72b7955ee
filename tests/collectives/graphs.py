"""Graphs of the test vectors: capacities per direction, in the unit of the vectors."""

from __future__ import annotations

import itertools
import math

from busbw.collectives.bounds import CapacityGraph

Edges = list[tuple[int, int, int]]


def both(a: int, b: int, capacity: int) -> Edges:
    return [(a, b, capacity), (b, a, capacity)]


def star(gpus: int, capacity: int) -> CapacityGraph:
    return CapacityGraph.of_edges(gpus, [edge for gpu in range(gpus) for edge in both(gpu, gpus, capacity)])


def rails(nodes: int, gpus: int = 8, scale_up: int = 450, nic: int = 50, planes: int | None = None) -> CapacityGraph:
    """Nodes of GPUs on one NVSwitch each; NIC g of every node on plane g mod planes, one switch a plane."""
    planes, n = planes or gpus, nodes * gpus
    edges = []
    for gpu in range(n):
        edges += both(gpu, n + gpu // gpus, scale_up)
        edges += both(gpu, n + nodes + gpu % gpus % planes, nic)
    return CapacityGraph.of_edges(n, edges)


def grid(shape: tuple[int, ...], capacity: int, *, closed: bool) -> CapacityGraph:
    edges = []
    place = {at: index for index, at in enumerate(itertools.product(*(range(size) for size in shape)))}
    for at, index in place.items():
        for axis, size in enumerate(shape):
            if at[axis] + 1 < size or closed:
                to = (*at[:axis], (at[axis] + 1) % size, *at[axis + 1 :])
                edges += both(index, place[to], capacity)
    return CapacityGraph.of_edges(math.prod(shape), edges)


_MI250 = (
    "0-1:4 0-4:2 0-8:1 1-5:1 1-9:1 1-10:1 2-3:4 2-6:1 2-9:1 2-10:1 3-7:2 3-11:1 4-5:4 4-6:1 5-6:1 5-7:1 6-7:4 "
    "8-9:4 8-12:2 9-13:1 10-11:4 10-14:1 11-15:2 12-13:4 12-14:1 13-14:1 13-15:1 14-15:4"
)
"""Links of 50 between the 16 dies of an MI250 node. Source: liangyuRain/ForestColl, topologies.py."""


def mi250(nodes: int) -> CapacityGraph:
    """Nodes of 16 dies; from two on, a NIC of 16 a die to one switch."""
    edges = []
    for base in range(0, 16 * nodes, 16):
        for link in _MI250.split():
            ends, width = link.split(":")
            a, b = map(int, ends.split("-"))
            edges += both(a + base, b + base, 50 * int(width))
    if nodes > 1:
        edges += [edge for gpu in range(16 * nodes) for edge in both(gpu, 16 * nodes, 16)]
    return CapacityGraph.of_edges(16 * nodes, edges)
