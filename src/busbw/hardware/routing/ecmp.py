"""ECMP: a hash of the flow decides the port, the same for all its packets."""

from __future__ import annotations

import numpy as np

from busbw.hardware.fabrics import Fabric
from busbw.hardware.links import IntArray
from busbw.hardware.routing.trace import Routes, trace

__all__ = ["ecmp"]


def ecmp(
    fabric: Fabric, src: IntArray, dst: IntArray, flow: IntArray | int = 0, *, seed: int = 0, polarised: bool = False
) -> Routes:
    """Routes by a hash of source, destination, flow and switch.

    flow stands for what differs in the 5-tuple between queue pairs (RoCE's UDP source port). Switches hash with seeds
    of their own, unless polarised: then all with the same, and one tier's choice decides the next one's. Switches'
    own hashes (CRC variants) are not published; splitmix64 stands for them, so loads agree in distribution, not one by
    one. src, dst, flow: (F,).
    """
    src, dst, flow = np.broadcast_arrays(*(np.atleast_1d(np.asarray(part, np.int64)) for part in (src, dst, flow)))
    key = _mixed(_mixed(_mixed(src.astype(np.uint64)) ^ dst.astype(np.uint64)) ^ flow.astype(np.uint64))
    key = _mixed(key ^ np.uint64(seed))

    def pick(vertex: IntArray, _slot: IntArray, choices: IntArray, at: IntArray) -> IntArray:
        here = np.zeros(len(vertex), np.uint64) if polarised else _mixed(vertex.astype(np.uint64) + np.uint64(1))
        return (_mixed(key[at] ^ here) % choices.astype(np.uint64)).astype(np.int64)

    return trace(fabric, src, dst, pick)


def _mixed(value: np.typing.NDArray[np.uint64]) -> np.typing.NDArray[np.uint64]:
    """splitmix64. Source: S. Vigna, splitmix64.c (public domain), the finaliser."""
    with np.errstate(over="ignore"):
        value = value + np.uint64(0x9E3779B97F4A7C15)
        value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return value ^ (value >> np.uint64(31))
