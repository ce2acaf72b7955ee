"""Dragonfly+: groups of leaves and spines, every spine with cables to other groups, every pair of groups joined.

After A. Shpiner et al., "Dragonfly+: low cost topology for scaling datacenters", HiPINEB 2017. Which port of a spine
leads to which group is a convention: here cable j of a group leads to the group j mod (groups - 1) + 1 further on, and
leaves from spine j mod spines.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from busbw.hardware.fabrics.fabric import Fabric, LinkRates, link_rates_by_end
from busbw.hardware.links import FloatArray, IntArray

__all__ = ["DragonflyPlus"]


@dataclass(frozen=True)
class DragonflyPlus(Fabric):
    """`groups` groups of `leaves` leaves and `spines` spines, all joined inside a group; minimal routes only."""

    kind: ClassVar[str] = "dragonfly+"

    endpoints: int
    groups: int
    leaves: int
    spines: int
    leaf_ports: int
    """NIC ports of a leaf."""
    global_cables: int
    """Cables between each pair of groups."""
    rates: LinkRates
    slots: int = field(init=False)
    vertices: int = field(init=False)
    links: int = field(init=False)

    def __post_init__(self) -> None:
        if min(self.groups, self.leaves, self.spines, self.leaf_ports, self.global_cables) < 1:
            raise ValueError("groups, leaves, spines, ports and cables must be at least 1")
        slots = self.groups * self.leaves * self.leaf_ports
        if not 1 <= self.endpoints <= slots:
            raise ValueError(f"{self.endpoints} NIC ports do not fit {slots}")
        put = object.__setattr__
        put(self, "slots", slots)
        put(self, "vertices", slots + self.groups * (self.leaves + self.spines))
        cables = slots + self.groups * self.leaves * self.spines
        put(self, "links", 2 * (cables + self.groups * (self.groups - 1) // 2 * self.global_cables))

    @property
    def spine_ports(self) -> int:
        """Most cables to other groups on one spine."""
        return -(-self.global_cables * (self.groups - 1) // self.spines)

    @property
    def _first_leaf(self) -> int:
        return self.slots

    @property
    def _first_spine(self) -> int:
        return self.slots + self.groups * self.leaves

    @property
    def _first_local(self) -> int:
        return self.slots

    @property
    def _first_global(self) -> int:
        return self.slots + self.groups * self.leaves * self.spines

    def _leaf_of(self, slot: IntArray) -> IntArray:
        return np.asarray(slot) // self.leaf_ports

    def _group_of(self, slot: IntArray) -> IntArray:
        return np.asarray(slot) // (self.leaf_ports * self.leaves)

    def _spine_of_cable(self, offset: IntArray, copy: IntArray) -> IntArray:
        """The spine, within its group, of cable `copy` to the group `offset` further on."""
        return (offset - 1 + copy * (self.groups - 1)) % self.spines

    def _global_link(self, group: IntArray, to: IntArray, copy: IntArray) -> IntArray:
        """The directed link of a cable between groups."""
        low, high = np.minimum(group, to), np.maximum(group, to)
        pair = low * (2 * self.groups - low - 1) // 2 + high - low - 1
        return np.asarray(2 * (self._first_global + pair * self.global_cables + copy) + (group > to), np.int64)

    def _parts(self, vertex: IntArray, slot: IntArray) -> tuple[Any, ...]:
        vertex, slot = np.broadcast_arrays(np.asarray(vertex), np.asarray(slot))
        is_spine = vertex >= self._first_spine
        is_leaf = (vertex >= self._first_leaf) & ~is_spine
        spine = (vertex - self._first_spine) % self.spines
        group = np.where(
            is_spine,
            (vertex - self._first_spine) // self.spines,
            np.where(is_leaf, (vertex - self._first_leaf) // self.leaves, self._group_of(vertex)),
        )
        return vertex, slot, is_leaf, is_spine, spine, group, self._group_of(slot)

    def _copies_here(self, spine: IntArray, offset: IntArray) -> NDArray[np.bool_]:
        """(F, copies) bool: which cables to a group leave from a spine."""
        copies = np.arange(self.global_cables)
        return np.asarray(self._spine_of_cable(offset[..., None], copies) == spine[..., None])

    def choices(self, vertex: IntArray, slot: IntArray) -> IntArray:
        """A leaf has one way a spine inside its group, one way a cable to another group; a spine its own cables."""
        vertex, slot, is_leaf, is_spine, spine, group, to = self._parts(vertex, slot)
        leaf = np.where(
            vertex - self._first_leaf == self._leaf_of(slot), 1, np.where(group == to, self.spines, self.global_cables)
        )
        offset = (to - group) % self.groups
        here = np.where(group == to, 1, self._copies_here(spine, offset).sum(-1))
        return np.where(is_spine, here, np.where(is_leaf, leaf, np.where(vertex == slot, 0, 1)))

    def choice(self, vertex: IntArray, slot: IntArray, which: IntArray) -> IntArray:
        """Towards another group way c of a leaf leads to the spine that has cable c."""
        vertex, slot, is_leaf, is_spine, spine, group, to = self._parts(vertex, slot)
        which = np.asarray(which)
        offset = (to - group) % self.groups
        leaf, target_leaf = vertex - self._first_leaf, self._leaf_of(slot)
        by_copy = self._spine_of_cable(np.maximum(offset, 1), which)
        towards = np.where(group == to, which % self.spines, by_copy)
        leaf_up = 2 * (self._first_local + leaf * self.spines + towards)
        leaf_way = np.where(leaf == target_leaf, 2 * slot + 1, leaf_up)
        spine_down = 2 * (self._first_local + target_leaf * self.spines + spine) + 1
        here = self._copies_here(spine, offset)
        nth = (np.cumsum(here, -1) == which[..., None] + 1) & here
        copy = nth.argmax(-1)
        other = np.where(group == to, (group + 1) % max(self.groups, 1), to)
        spine_way = np.where(group == to, spine_down, self._global_link(group, other, copy))
        return np.where(is_spine, spine_way, np.where(is_leaf, leaf_way, 2 * vertex))

    def link_ends(self, link: IntArray) -> tuple[IntArray, IntArray]:
        """Even links lead up, and from the lower group to the higher."""
        cable, back = np.asarray(link) // 2, np.asarray(link) % 2 == 1
        local = cable - self._first_local
        far = np.maximum(cable - self._first_global, 0)
        pair, copy = far // self.global_cables, far % self.global_cables
        low = np.zeros_like(pair)
        if self.groups > 1:
            starts = np.array([g * (2 * self.groups - g - 1) // 2 for g in range(self.groups)], np.int64)
            low = np.searchsorted(starts, pair, side="right") - 1
            low = np.minimum(low, self.groups - 2)
            high = pair - starts[low] + low + 1
        else:
            high = low
        a = self._first_spine + low * self.spines + self._spine_of_cable((high - low) % self.groups, copy)
        b = self._first_spine + high * self.spines + self._spine_of_cable((low - high) % self.groups, copy)
        leaf = local // self.spines
        one = np.where(
            cable < self._first_local, cable, np.where(cable < self._first_global, self._first_leaf + leaf, a)
        )
        spine = self._first_spine + leaf // self.leaves * self.spines + local % self.spines
        two = np.where(
            cable < self._first_local,
            self._first_leaf + cable // self.leaf_ports,
            np.where(cable < self._first_global, spine, b),
        )
        return np.where(back, two, one), np.where(back, one, two)

    def link_rates(self, link: IntArray) -> tuple[FloatArray, FloatArray]:
        """NIC rate below leaves, switch rate above."""
        return link_rates_by_end(self.rates, np.asarray(link) // 2 < self._first_local)

    def vertex_name(self, vertex: int) -> str:
        """nic7; leaf and spine with their group: leaf0.3, spine2.1."""
        if vertex < self.slots:
            return f"nic{vertex}"
        if vertex < self._first_spine:
            return f"leaf{(vertex - self._first_leaf) // self.leaves}.{(vertex - self._first_leaf) % self.leaves}"
        return f"spine{(vertex - self._first_spine) // self.spines}.{(vertex - self._first_spine) % self.spines}"

    def bisection_bytes_per_s(self) -> float:
        """Cables between two halves of the groups; of one group, between half its leaves and its spines."""
        if self.groups == 1:
            return (
                self.leaves
                / 2
                * min(self.spines * self.rates.switch_bytes_per_s, self.leaf_ports * self.rates.nic_bytes_per_s)
            )
        half = self.groups // 2
        return half * (self.groups - half) * self.global_cables * self.rates.switch_bytes_per_s
