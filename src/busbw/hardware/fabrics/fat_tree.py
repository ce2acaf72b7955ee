"""Fat trees of any number of levels, with parallel links and over-subscription: parallel ports generalized fat trees.

PGFT(h; m; w; p) after E. Zahavi, "D-Mod-K routing providing non-blocking traffic for shift permutations on real life
fat trees", 2010: a switch of level l has m[l] children, each vertex below has w[l] parents, and p[l] cables join each
pair. Level 0 are NIC ports.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from busbw.hardware.fabrics.fabric import Fabric, LinkRates, link_rates_by_end
from busbw.hardware.links import FloatArray, IntArray

__all__ = ["FatTree", "fat_tree_shape"]


@dataclass(frozen=True)
class FatTree(Fabric):
    """A fat tree. A vertex of level l is numbered by the subtree it tops, then by its place among those that top it."""

    kind: ClassVar[str] = "fat-tree"

    endpoints: int
    down: tuple[int, ...]
    """m: children of a switch, by level from 1."""
    up: tuple[int, ...]
    """w: parents of a vertex below that level."""
    parallel: tuple[int, ...]
    """p: cables of each such pair."""
    rates: LinkRates
    slots: int = field(init=False)
    vertices: int = field(init=False)
    links: int = field(init=False)

    def __post_init__(self) -> None:
        levels = len(self.down)
        if not levels or len(self.up) != levels or len(self.parallel) != levels:
            raise ValueError("down, up and parallel need one number a level")
        if min(*self.down, *self.up, *self.parallel) < 1:
            raise ValueError("children, parents and cables must be at least 1")
        subtree = [math.prod(self.down[:level]) for level in range(levels + 1)]
        places = [math.prod(self.up[:level]) for level in range(levels + 1)]
        counts = [subtree[levels] // subtree[level] * places[level] for level in range(levels + 1)]
        cables = [counts[level] * self.up[level] * self.parallel[level] for level in range(levels)]
        if not 1 <= self.endpoints <= counts[0]:
            raise ValueError(f"{self.endpoints} NIC ports do not fit a tree of {counts[0]}")
        put = object.__setattr__
        put(self, "slots", counts[0])
        put(self, "vertices", sum(counts))
        put(self, "links", 2 * sum(cables))
        put(self, "_subtree", np.array(subtree, np.int64))
        put(self, "_places", np.array(places, np.int64))
        put(self, "_first_vertex", np.array([sum(counts[:level]) for level in range(levels + 2)], np.int64))
        put(self, "_first_cable", np.array([sum(cables[:level]) for level in range(levels + 1)], np.int64))
        put(self, "_m", np.array((*self.down, 1), np.int64))
        put(self, "_w", np.array((*self.up, 1), np.int64))
        put(self, "_p", np.array((*self.parallel, 1), np.int64))

    _subtree: ClassVar[IntArray]
    _places: ClassVar[IntArray]
    _first_vertex: ClassVar[IntArray]
    _first_cable: ClassVar[IntArray]
    _m: ClassVar[IntArray]
    _w: ClassVar[IntArray]
    _p: ClassVar[IntArray]

    @property
    def levels(self) -> int:
        """Levels of switches."""
        return len(self.down)

    def level(self, vertex: IntArray) -> IntArray:
        """0 for NIC ports, 1 for leaves, up to `levels` for roots."""
        return np.asarray(np.searchsorted(self._first_vertex, np.asarray(vertex), side="right") - 1, np.int64)

    def _place(self, vertex: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Level, subtree topped, place among those that top it."""
        if self.vertices <= np.size(vertex):  # asked for more often than there are: looked up
            level, top, place = self._places_of_all
            return level[vertex], top[vertex], place[vertex]
        return self._placed(vertex)

    def _placed(self, vertex: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        level = self.level(vertex)
        index = np.asarray(vertex) - self._first_vertex[level]
        top = index // self._places[level]
        return level, top, index - top * self._places[level]

    @cached_property
    def _places_of_all(self) -> tuple[IntArray, IntArray, IntArray]:
        return self._placed(np.arange(self.vertices, dtype=np.int64))

    def _above(self, level: IntArray, top: IntArray, slot: IntArray) -> NDArray[np.bool_]:
        return np.asarray(np.asarray(slot) // self._subtree[level] == top)

    def choices(self, vertex: IntArray, slot: IntArray) -> IntArray:
        """Cables to the child that holds the slot, else all cables upwards."""
        level, top, _ = self._place(vertex)
        upwards = self._w[level] * self._p[level]
        downwards = np.where(level > 0, self._p[level - 1], 0)
        return np.where(self._above(level, top, slot), downwards, upwards)

    def choice(self, vertex: IntArray, slot: IntArray, which: IntArray) -> IntArray:
        """Upwards way q leads to parent q mod w over cable q // w; downwards way q is cable q."""
        vertex, slot, which = np.broadcast_arrays(vertex, slot, which)
        level, top, place = self._place(vertex)
        index = vertex - self._first_vertex[level]
        upwards = 2 * (
            self._first_cable[np.minimum(level, self.levels - 1)] + index * (self._w * self._p)[level] + which
        )
        found = np.array(upwards, np.int64)
        down = self._above(level, top, slot)
        below = np.maximum(level[down] - 1, 0)
        child_top = slot[down] // self._subtree[below]
        parent = place[down] // self._places[below]
        child = child_top * self._places[below] + place[down] - parent * self._places[below]
        cable = child * (self._w * self._p)[below] + parent + self._w[below] * which[down]
        found[down] = 2 * (self._first_cable[below] + cable) + 1
        return found

    def spread(self, vertex: IntArray, slot: IntArray) -> IntArray:
        """Upwards j // (w1 ... wl) for destination j; downwards the cable that the same digit gives."""
        level, top, _ = self._place(vertex)
        below = np.maximum(level - 1, 0)
        digit = np.asarray(slot) // self._places[below] % (self._w[below] * self._p[below])
        return np.where(self._above(level, top, slot), digit // self._w[below], np.asarray(slot) // self._places[level])

    def link_ends(self, link: IntArray) -> tuple[IntArray, IntArray]:
        """Even links lead up, odd ones down."""
        if self.links <= np.size(link):
            one, other = self._ends_of_all
            return one[link], other[link]
        return self._link_ends(link)

    @cached_property
    def _ends_of_all(self) -> tuple[IntArray, IntArray]:
        return self._link_ends(np.arange(self.links, dtype=np.int64))

    def _link_ends(self, link: IntArray) -> tuple[IntArray, IntArray]:
        cable = np.asarray(link) // 2
        level = np.searchsorted(self._first_cable, cable, side="right") - 1
        ways = self._w[level] * self._p[level]
        index, way = (cable - self._first_cable[level]) // ways, (cable - self._first_cable[level]) % ways
        top, place = index // self._places[level], index % self._places[level]
        above = top // self._m[level] * self._places[level + 1] + place + self._places[level] * (way % self._w[level])
        low, high = self._first_vertex[level] + index, self._first_vertex[level + 1] + above
        down = np.asarray(link) % 2 == 1
        return np.where(down, high, low), np.where(down, low, high)

    def link_rates(self, link: IntArray) -> tuple[FloatArray, FloatArray]:
        """NIC rate below leaves, switch rate above."""
        return link_rates_by_end(self.rates, np.asarray(link) // 2 < self._first_cable[1])

    def vertex_name(self, vertex: int) -> str:
        """nic7, leaf3; above leaves level, subtree and place: spine0.2, core0.5."""
        level, top, place = (int(part) for part in self._place(np.array(vertex, np.int64)))
        if level == 0:
            return f"nic{vertex}"
        if level == 1 and self.up[0] == 1:
            return f"leaf{top}"
        name = "leaf" if level == 1 else "core" if level == self.levels and level > 2 else "spine"
        return f"{name}{top}.{place}" if level < self.levels or level == 1 else f"{name}{place}"

    def bisection_bytes_per_s(self) -> float:
        """The scarcest tier of half the tree: cables of a tier / 2 times their rate."""
        tiers = np.diff(self._first_cable) / 2
        rates = np.where(np.arange(self.levels) == 0, self.rates.nic_bytes_per_s, self.rates.switch_bytes_per_s)
        return float((tiers * rates).min())

    def oversubscription(self, level: int = 1) -> float:
        """Rate below a switch of a level divided by the rate above it; 1 is non-blocking. Roots have none above."""
        if not 1 <= level < self.levels:
            raise ValueError(f"level {level}: only levels 1 to {self.levels - 1} have links upwards")
        below = self.rates.nic_bytes_per_s if level == 1 else self.rates.switch_bytes_per_s
        upwards = self.up[level] * self.parallel[level] * self.rates.switch_bytes_per_s
        return self.down[level - 1] * self.parallel[level - 1] * below / upwards


def fat_tree_shape(
    endpoints: int, ports: int, *, levels: int | None = None, oversubscription: float = 1.0, leaf_multiple: int = 1
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """(down, up, parallel) of a tree of switches of `ports` ports that holds `endpoints` NIC ports.

    The fewest levels that hold them, unless levels is given. oversubscription is NIC ports to uplinks of a leaf, in
    ports. leaf_multiple: NIC ports of a leaf are a multiple of it, so that no NVLink domain is split. As many roots as
    the leaves need, no more; each pair joined by as many cables as fit. Raises ValueError where nothing fits.

    >>> fat_tree_shape(648, 36)
    ((18, 36), (1, 18), (1, 1))
    """
    if endpoints < 1 or ports < 2 or oversubscription <= 0 or leaf_multiple < 1:
        raise ValueError(f"{endpoints} NIC ports, {ports} switch ports, {oversubscription} to 1: nothing to build")
    if levels is not None and not 1 <= levels <= _MOST_LEVELS:
        raise ValueError(f"{levels} levels: 1 to {_MOST_LEVELS}")
    if levels == 1 or (levels is None and endpoints <= ports):
        if endpoints > ports:
            raise ValueError(f"{endpoints} NIC ports do not fit one switch of {ports} ports; take 2 levels")
        return (endpoints,), (1,), (1,)
    leaf = int(ports * oversubscription / (1 + oversubscription)) // leaf_multiple * leaf_multiple
    if leaf < 1:
        raise ValueError(f"a leaf of {ports} ports has no room for {leaf_multiple} NIC ports and their uplinks")
    uplinks = max(1, min(ports - leaf, round(leaf / oversubscription)))
    leaves = -(-endpoints // leaf)
    if levels == 2 or (levels is None and leaves <= ports):
        if leaves > ports:
            raise ValueError(
                f"{endpoints} NIC ports need {leaves} leaves; a spine of {ports} ports joins no more than "
                f"{ports}. Take 3 levels, larger switches or more over-subscription"
            )
        cables = max(cables for cables in range(1, uplinks + 1) if uplinks % cables == 0 and leaves * cables <= ports)
        return (leaf, leaves), (1, uplinks // cables), (1, cables)
    half = ports // 2
    height = levels or next((each for each in (3, 4) if leaves <= half ** (each - 2) * ports), _MOST_LEVELS)
    pods = -(-leaves // half ** (height - 2))
    if pods > ports:
        most = leaf * half ** (height - 2) * ports
        raise ValueError(
            f"{endpoints} NIC ports do not fit {height} levels of switches of {ports} ports, which hold {most}; take larger switches"
            + (f", or {height + 1} levels" if height < _MOST_LEVELS else ", or fewer nodes")
        )
    cables = max(cables for cables in range(1, half + 1) if half % cables == 0 and pods * cables <= ports)
    inner = (half,) * (height - 3)
    return (leaf, half, *inner, pods), (1, uplinks, *inner, half // cables), (1,) * (height - 1) + (cables,)


_MOST_LEVELS = 4
"""2 million NIC ports on switches of 64."""
