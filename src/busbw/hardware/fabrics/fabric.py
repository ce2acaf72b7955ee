"""Fabric: what every network offers, computed from numbers, so that its size costs nothing until routes are asked for.

Vertices are numbered from 0: first the places of NIC ports (slots), then switches. Links are numbered from 0, two a
cable. All methods take and return arrays of one shape: F flows or links at once. Legend: F any number, L links.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from busbw.hardware.links import NETWORK, FloatArray, IntArray, LinkTable

__all__ = ["Fabric", "LinkRates"]


@dataclass(frozen=True, slots=True)
class LinkRates:
    """Rates and latencies of a fabric's links, one direction."""

    nic_bytes_per_s: float
    """Links between NICs and switches."""
    switch_bytes_per_s: float
    """Links between switches."""
    nic_latency_s: float = 0.0
    """A NIC, once: added to links that begin or end at one."""
    switch_latency_s: float = 0.0
    """A cable and the switch at its end."""

    def __post_init__(self) -> None:
        if self.nic_bytes_per_s <= 0 or self.switch_bytes_per_s <= 0:
            raise ValueError("rates of links must be positive")
        if self.nic_latency_s < 0 or self.switch_latency_s < 0:
            raise ValueError("latencies must not be negative")


class Fabric(ABC):
    """A network between NIC ports. Immutable; no method allocates by the size of the fabric but `link_table`."""

    kind: ClassVar[str]
    endpoints: int
    """NIC ports attached, numbered node * NICs + NIC."""
    slots: int
    """Places for NIC ports: vertices 0 to slots - 1."""
    vertices: int
    """Slots and switches."""
    links: int
    """Directed links; link 2c and 2c + 1 are the two directions of cable c."""

    @property
    def switches(self) -> int:
        """Switches, those that a partly filled fabric would not need included."""
        return self.vertices - self.slots

    def slot(self, endpoint: IntArray) -> IntArray:
        """The vertex a NIC port sits at. Raises ValueError for a port that is not there."""
        ports = np.asarray(endpoint, np.int64)
        if ports.size and (ports.min() < 0 or ports.max() >= self.endpoints):
            raise ValueError(f"endpoint {ports.min()} to {ports.max()}: the fabric has 0 to {self.endpoints - 1}")
        return self._slot(ports)

    def _slot(self, endpoint: IntArray) -> IntArray:
        return endpoint

    @abstractmethod
    def choices(self, vertex: IntArray, slot: IntArray) -> IntArray:
        """How many ways lead on from a vertex along shortest paths to a slot; 0 at the slot, or where none leads."""

    @abstractmethod
    def choice(self, vertex: IntArray, slot: IntArray, which: IntArray) -> IntArray:
        """The link of way `which`, 0 to choices - 1. Two ways may share a link where more lead on behind it."""

    @abstractmethod
    def link_ends(self, link: IntArray) -> tuple[IntArray, IntArray]:
        """Source and destination vertex of links."""

    @abstractmethod
    def link_rates(self, link: IntArray) -> tuple[FloatArray, FloatArray]:
        """Bandwidth in bytes per second and latency in seconds of links, one direction."""

    @abstractmethod
    def vertex_name(self, vertex: int) -> str:
        """A name people can find on a drawing: nic12, leaf3, spine1.0."""

    @abstractmethod
    def bisection_bytes_per_s(self) -> float | None:
        """What crosses the middle in one direction at most, all slots filled, bytes per second; None where no formula gives it."""

    def spread(self, vertex: IntArray, slot: IntArray) -> IntArray:
        """The number that D-mod-k takes modulo the choices; a fabric without levels gives the destination itself."""
        return np.broadcast_to(slot, np.broadcast_shapes(np.shape(vertex), np.shape(slot)))

    def link_table(self) -> LinkTable:
        """Every link as columns: memory by the size of the fabric, so for small ones, drawings and exports."""
        link = np.arange(self.links, dtype=np.int64)
        src, dst = self.link_ends(link)
        rate, latency = self.link_rates(link)
        return LinkTable(src, dst, rate, latency, np.full(self.links, NETWORK, np.int64))


def link_rates_by_end(rates: LinkRates, touches_nic: NDArray[np.bool_]) -> tuple[FloatArray, FloatArray]:
    """Rate and latency of links, given which begin or end at a NIC."""
    rate = np.where(touches_nic, rates.nic_bytes_per_s, rates.switch_bytes_per_s)
    return rate, np.where(touches_nic, rates.nic_latency_s, 0.0) + rates.switch_latency_s
