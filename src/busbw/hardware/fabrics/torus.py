"""Tori of any number of dimensions: every endpoint forwards, no switches."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from busbw.hardware.fabrics.fabric import Fabric, LinkRates
from busbw.hardware.links import FloatArray, IntArray

__all__ = ["Torus"]


@dataclass(frozen=True)
class Torus(Fabric):
    """A torus; endpoint e has coordinates e in the mixed radix of `shape`, the last dimension fastest.

    Every ring closes; a dimension of 2 joins its two ends by two cables. All links have the switch rate.
    """

    kind: ClassVar[str] = "torus"

    endpoints: int
    shape: tuple[int, ...]
    rates: LinkRates
    slots: int = field(init=False)
    vertices: int = field(init=False)
    links: int = field(init=False)

    def __post_init__(self) -> None:
        if not self.shape or min(self.shape) < 2:
            raise ValueError(f"shape {self.shape}: every dimension needs at least 2")
        slots = math.prod(self.shape)
        if self.endpoints != slots:
            raise ValueError(f"a torus of {self.shape} has {slots} endpoints, not {self.endpoints}")
        put = object.__setattr__
        put(self, "slots", slots)
        put(self, "vertices", slots)
        put(self, "links", 2 * slots * len(self.shape))

    def _strides(self) -> list[int]:
        return [math.prod(self.shape[axis + 1 :]) for axis in range(len(self.shape))]

    def _useful(self, vertex: IntArray, slot: IntArray) -> IntArray:
        """(..., 2 axes) bool: whether a step forwards (2 a) or backwards (2 a + 1) along axis a leads nearer."""
        vertex, slot = np.broadcast_arrays(np.asarray(vertex), np.asarray(slot))
        steps = []
        for size, stride in zip(self.shape, self._strides(), strict=True):
            ahead = (slot // stride - vertex // stride) % size
            steps += [(ahead > 0) & (2 * ahead <= size), (ahead > 0) & (2 * ahead >= size)]
        return np.stack(steps, -1)

    def choices(self, vertex: IntArray, slot: IntArray) -> IntArray:
        """One way a dimension that is not there yet, two where both ways round are equally long."""
        return np.asarray(self._useful(vertex, slot).sum(-1), np.int64)

    def choice(self, vertex: IntArray, slot: IntArray, which: IntArray) -> IntArray:
        """Ways in the order of dimensions, forwards first; way 0 alone is dimension-ordered routing."""
        useful = self._useful(vertex, slot)
        vertex = np.broadcast_to(np.asarray(vertex), useful.shape[:-1])
        step = ((np.cumsum(useful, -1) == np.asarray(which)[..., None] + 1) & useful).argmax(-1)
        axis, back = step // 2, step % 2
        size, stride = np.array(self.shape)[axis], np.array(self._strides())[axis]
        at = vertex // stride % size
        before = vertex + np.where(at == 0, size - 1, -1) * stride
        owner = np.where(back == 1, before, vertex)
        return np.asarray(2 * (owner * len(self.shape) + axis) + back, np.int64)

    def link_ends(self, link: IntArray) -> tuple[IntArray, IntArray]:
        """Even links lead forwards from the vertex that owns the cable, odd ones back to it."""
        cable, back = np.asarray(link) // 2, np.asarray(link) % 2 == 1
        owner, axis = cable // len(self.shape), cable % len(self.shape)
        size, stride = np.array(self.shape)[axis], np.array(self._strides())[axis]
        after = owner + np.where(owner // stride % size == size - 1, 1 - size, 1) * stride
        return np.where(back, after, owner), np.where(back, owner, after)

    def link_rates(self, link: IntArray) -> tuple[FloatArray, FloatArray]:
        """The switch rate everywhere."""
        shape = np.shape(link)
        return np.full(shape, self.rates.switch_bytes_per_s), np.full(shape, self.rates.switch_latency_s)

    def spread(self, vertex: IntArray, slot: IntArray) -> IntArray:
        """0: D-mod-k on a torus is dimension order, which is what tori without adaptive routing do."""
        return np.zeros(np.broadcast_shapes(np.shape(vertex), np.shape(slot)), np.int64)

    def vertex_name(self, vertex: int) -> str:
        """The coordinates: nic(0,3,1)."""
        at = (str(vertex // stride % size) for size, stride in zip(self.shape, self._strides(), strict=True))
        return f"nic({','.join(at)})"

    def bisection_bytes_per_s(self) -> float:
        """Two cuts across the longest dimension, at its middle and where it closes."""
        return 2 * (self.slots // max(self.shape)) * self.rates.switch_bytes_per_s
