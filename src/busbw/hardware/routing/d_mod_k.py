"""D-mod-k: the destination alone decides the port, as static InfiniBand routing tables do (OpenSM's ftree)."""

from __future__ import annotations

from busbw.hardware.fabrics import Fabric
from busbw.hardware.links import IntArray
from busbw.hardware.routing.trace import Routes, trace

__all__ = ["d_mod_k"]


def d_mod_k(fabric: Fabric, src: IntArray, dst: IntArray) -> Routes:
    """Routes by destination. On a fat tree the up-port of level l is (j // (w1 ... wl)) mod (w p) for destination j.

    Source: E. Zahavi, "D-Mod-K routing ...", 2010, eq. for RLFT and PGFT. On a full tree no shift permutation of its
    slots shares a link. On fabrics without levels: destination mod choices. src, dst: (F,) endpoints.
    """
    return trace(fabric, src, dst, lambda vertex, slot, choices, _flow: fabric.spread(vertex, slot) % choices)
