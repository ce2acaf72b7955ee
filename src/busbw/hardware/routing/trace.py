"""Routes as columns, and the walk that all deterministic routings share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from busbw.hardware.fabrics import Fabric
from busbw.hardware.links import FloatArray, IntArray

__all__ = ["Routes", "SprayedRoutes", "trace"]

_MOST_HOPS = 4096
"""More links than any shortest path of a fabric worth drawing. A guess, so that a broken fabric ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Routes:
    """One route a flow. F flows, H the most links of one."""

    links: IntArray
    """(F, H) int64: links in order, -1 after the last."""

    @property
    def lengths(self) -> IntArray:
        """(F,) int64: links of each route."""
        return np.asarray((self.links >= 0).sum(-1), np.int64)

    def loads(self) -> tuple[IntArray, IntArray]:
        """Links in use, ascending, and the flows on each."""
        return np.unique(self.links[self.links >= 0], return_counts=True)


@dataclass(frozen=True, slots=True, eq=False)
class SprayedRoutes:
    """Flows split over many links; row i says that `fraction[i]` of flow `flow[i]` crosses `link[i]`. R rows."""

    flow: IntArray
    """(R,) int64."""
    link: IntArray
    """(R,) int64."""
    fraction: FloatArray
    """(R,) float64, 0 to 1."""
    hop: IntArray
    """(R,) int64: place of the link on its path, from 0. Fractions of a flow sum to 1 over each hop."""

    def loads(self) -> tuple[IntArray, FloatArray]:
        """Links in use, ascending, and the flows on each, parts added up."""
        links, inverse = np.unique(self.link, return_inverse=True)
        return links, np.asarray(np.bincount(inverse, weights=self.fraction, minlength=len(links)), np.float64)


Pick = Callable[[IntArray, IntArray, IntArray, IntArray], IntArray]
"""(vertex, slot, choices, flow) -> which choice; all (A,) for the A flows still on their way."""


def trace(fabric: Fabric, src: IntArray, dst: IntArray, pick: Pick) -> Routes:
    """The routes that picking one choice a vertex gives. src, dst: (F,) endpoints.

    Raises ValueError for endpoints the fabric lacks, and where no way leads on.
    """
    src, dst = np.broadcast_arrays(np.atleast_1d(np.asarray(src, np.int64)), np.atleast_1d(np.asarray(dst, np.int64)))
    at, to = fabric.slot(src).copy(), fabric.slot(dst)
    hops: list[IntArray] = []
    while (on_way := np.flatnonzero(at != to)).size:
        if len(hops) >= _MOST_HOPS:
            raise ValueError(f"a route of more than {_MOST_HOPS} links: the fabric does not lead to its destination")
        vertex, slot = at[on_way], to[on_way]
        choices = fabric.choices(vertex, slot)
        if (choices < 1).any():
            lost = int(on_way[np.flatnonzero(choices < 1)[0]])
            raise ValueError(f"no way leads from endpoint {src[lost]} to endpoint {dst[lost]}")
        link = fabric.choice(vertex, slot, pick(vertex, slot, choices, on_way))
        hop = np.full(len(at), -1, np.int64)
        hop[on_way] = link
        hops.append(hop)
        at[on_way] = fabric.link_ends(link)[1]
    return Routes(np.stack(hops, -1) if hops else np.empty((len(at), 0), np.int64))
