"""Adaptive routing: a switch takes the port with the least queued among those that lead nearer."""

from __future__ import annotations

import numpy as np

from busbw.hardware.fabrics import Fabric
from busbw.hardware.links import FloatArray, IntArray
from busbw.hardware.routing.trace import Routes

__all__ = ["candidates", "least_loaded"]


def candidates(fabric: Fabric, vertex: int, dst: int) -> IntArray:
    """(C,) int64: the links a switch may choose from towards an endpoint, ascending, each once; empty where it is."""
    slot = fabric.slot(np.array([dst]))
    at = np.array([vertex], np.int64)
    choices = int(fabric.choices(at, slot)[0])
    if not choices:
        return np.empty(0, np.int64)
    which = np.arange(choices)
    return np.unique(fabric.choice(np.repeat(at, choices), np.repeat(slot, choices), which))


def least_loaded(fabric: Fabric, src: IntArray, dst: IntArray, load: FloatArray, weight: float = 1.0) -> Routes:
    """Routes of flows that arrive one after another, each taking the least loaded candidate at every vertex.

    load: (L,) float64, by link; `weight` is added to it for every link taken. Ties go to the lowest link. A bound from
    above for what adaptive switches do, which see queues, not flows. Raises ValueError where no way leads on.
    """
    src, dst = np.broadcast_arrays(np.atleast_1d(np.asarray(src, np.int64)), np.atleast_1d(np.asarray(dst, np.int64)))
    if load.shape != (fabric.links,):
        raise ValueError(f"load has shape {load.shape}, the fabric {fabric.links} links")
    routes: list[list[int]] = []
    for one, other in zip(src, dst, strict=True):
        at, to = (int(fabric.slot(np.array([end]))[0]) for end in (one, other))
        route: list[int] = []
        while at != to:
            links = candidates(fabric, at, int(other))
            if not len(links):
                raise ValueError(f"no way leads from endpoint {one} to endpoint {other}")
            link = int(links[np.argmin(load[links])])
            load[link] += weight
            route.append(link)
            at = int(fabric.link_ends(np.array([link]))[1][0])
        routes.append(route)
    longest = max((len(route) for route in routes), default=0)
    return Routes(np.array([route + [-1] * (longest - len(route)) for route in routes], np.int64).reshape(-1, longest))
