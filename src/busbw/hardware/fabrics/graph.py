"""Any graph of switches: what a file of a real fabric gives."""

from __future__ import annotations

from collections import OrderedDict
from typing import ClassVar

import numpy as np

from busbw.hardware.fabrics.fabric import Fabric
from busbw.hardware.links import FloatArray, IntArray, LinkTable

__all__ = ["GraphFabric"]

_KEPT_DISTANCES = 1024
"""Destinations whose distances are kept. A guess: 8 MB for a fabric of 1,000 vertices."""


class GraphFabric(Fabric):
    """Vertices 0 to slots - 1 are NIC ports, which forward nothing; the others are switches.

    Links are rows of a table; cable c must be rows 2c and 2c + 1. Distances are found by breadth-first search for each
    destination when it is asked for.
    """

    kind: ClassVar[str] = "graph"

    def __init__(self, table: LinkTable, slots: int, names: tuple[str, ...]) -> None:
        """Raises ValueError for a table whose rows are no pairs of directions, or ends without a name."""
        if len(table) % 2 or not (
            np.array_equal(table.src[::2], table.dst[1::2]) and np.array_equal(table.dst[::2], table.src[1::2])
        ):
            raise ValueError("links must come in pairs, one a direction of a cable")
        if slots < 1 or slots > len(names) or (len(table) and int(table.src.max()) >= len(names)):
            raise ValueError(f"{slots} NIC ports, {len(names)} names: every vertex needs one")
        self.endpoints = self.slots = slots
        self.vertices = len(names)
        self.links = len(table)
        self.names = names
        self._table = table
        self._order = np.argsort(table.src, kind="stable")
        self._first = np.searchsorted(table.src[self._order], np.arange(len(names) + 1))
        self._distances: OrderedDict[int, IntArray] = OrderedDict()

    def distances(self, slot: int) -> IntArray:
        """(V,) int64: links from every vertex to a slot; -1 where no way leads there."""
        found = self._distances.pop(slot, None)
        if found is None:
            found = np.full(self.vertices, -1, np.int64)
            found[slot] = 0
            frontier = np.array([slot], np.int64)
            while len(frontier):
                # Cables have both directions, so a search along links from the slot finds the way to it.
                near = np.zeros(self.vertices, bool)
                near[frontier] = True
                reached = np.unique(self._table.dst[near[self._table.src]])
                reached = reached[found[reached] < 0]
                found[reached] = found[frontier[0]] + 1
                frontier = reached[reached >= self.slots]
        self._distances[slot] = found
        while len(self._distances) > _KEPT_DISTANCES:
            self._distances.popitem(last=False)
        return found

    def ways(self, vertex: int, slot: int) -> IntArray:
        """The links that lead nearer, in the order of the table."""
        distances = self.distances(slot)
        links = self._order[self._first[vertex] : self._first[vertex + 1]]
        nearer = (distances[self._table.dst[links]] == distances[vertex] - 1) & (distances[vertex] > 0)
        return np.asarray(links[nearer], np.int64)

    def choices(self, vertex: IntArray, slot: IntArray) -> IntArray:
        """Links that lead nearer."""
        count = np.vectorize(lambda v, d: len(self.ways(int(v), int(d))), otypes=[np.int64])
        return np.asarray(count(vertex, slot), np.int64)

    def choice(self, vertex: IntArray, slot: IntArray, which: IntArray) -> IntArray:
        """In the order of the table, which is that of ports where the file has them."""
        pick = np.vectorize(lambda v, d, k: self.ways(int(v), int(d))[int(k)], otypes=[np.int64])
        return np.asarray(pick(vertex, slot, which), np.int64)

    def link_ends(self, link: IntArray) -> tuple[IntArray, IntArray]:
        """As in the table."""
        return self._table.src[link], self._table.dst[link]

    def link_rates(self, link: IntArray) -> tuple[FloatArray, FloatArray]:
        """As in the table."""
        return self._table.bandwidth_bytes_per_s[link], self._table.latency_s[link]

    def vertex_name(self, vertex: int) -> str:
        """As in the file."""
        return self.names[vertex]

    def link_table(self) -> LinkTable:
        """The table itself."""
        return self._table

    def bisection_bytes_per_s(self) -> None:
        """None: the least cut of any graph into halves is NP-hard to find."""
        return None
