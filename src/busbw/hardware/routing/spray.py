"""Packet spray: every packet of a flow takes a port of its own, so each carries an equal part."""

from __future__ import annotations

import numpy as np

from busbw.hardware.fabrics import Fabric
from busbw.hardware.links import IntArray
from busbw.hardware.routing.trace import SprayedRoutes

__all__ = ["spray"]


def spray(fabric: Fabric, src: IntArray, dst: IntArray) -> SprayedRoutes:
    """Flows split equally over the choices of every vertex. src, dst: (F,) endpoints.

    What a long flow of randomly sprayed packets carries on each link in the mean. Rows: up to the paths of a flow times
    their hops. Raises ValueError where no way leads on.
    """
    src, dst = np.broadcast_arrays(np.atleast_1d(np.asarray(src, np.int64)), np.atleast_1d(np.asarray(dst, np.int64)))
    at, slots = fabric.slot(src), fabric.slot(dst)
    flow, part, hop = np.arange(len(at)), np.ones(len(at)), 0
    rows: list[tuple[IntArray, ...]] = []
    fractions = []
    while (on_way := at != slots[flow]).any():
        at, flow, part = at[on_way], flow[on_way], part[on_way]
        choices = fabric.choices(at, slots[flow])
        if (choices < 1).any():
            lost = int(flow[np.flatnonzero(choices < 1)[0]])
            raise ValueError(f"no way leads from endpoint {src[lost]} to endpoint {dst[lost]}")
        repeat = np.repeat(np.arange(len(at)), choices)
        which = np.arange(len(repeat)) - np.repeat(np.cumsum(choices) - choices, choices)
        link = fabric.choice(at[repeat], slots[flow[repeat]], which)
        # One row a flow and link, one place a flow and vertex: paths that meet go on as one.
        flow, link, part = _merged(flow[repeat], link, (part / choices)[repeat])
        rows.append((flow, link, np.full(len(link), hop, np.int64)))
        fractions.append(part)
        flow, at, part = _merged(flow, fabric.link_ends(link)[1], part)
        hop += 1
    if not rows:
        nothing = np.empty(0, np.int64)
        return SprayedRoutes(nothing, nothing, np.empty(0), nothing)
    flows, links, hops = (np.concatenate(column) for column in zip(*rows, strict=True))
    return SprayedRoutes(flows, links, np.concatenate(fractions), hops)


def _merged(
    flow: IntArray, what: IntArray, part: np.typing.NDArray[np.float64]
) -> tuple[IntArray, IntArray, np.typing.NDArray[np.float64]]:
    """Parts of equal (flow, what) added up."""
    order = np.lexsort((what, flow))
    flow, what, part = flow[order], what[order], part[order]
    first = np.flatnonzero(np.r_[True, (np.diff(flow) != 0) | (np.diff(what) != 0)]) if len(flow) else order
    return flow[first], what[first], np.add.reduceat(part, first) if len(first) else part
