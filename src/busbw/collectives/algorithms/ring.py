"""Rings: every rank talks to its two neighbours only.

All-gather: in step t rank r passes block r - t on to rank r + 1. p - 1 steps, T = (p - 1) alpha + n (p - 1)/p beta.
Reduce-scatter: in step t rank r passes its sum of block r - t - 1 on, and the next rank adds its own. The same time.
All-reduce: reduce-scatter, then all-gather. 2 (p - 1) steps, T = 2 (p - 1) alpha + 2 n (p - 1)/p beta. Optimal in bytes.

Source: Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", JPDC 69 (2009).
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, Chunks, build, chunks, steps
from busbw.collectives.schedule import Schedule

__all__ = ["ring_all_gather", "ring_all_reduce", "ring_reduce_scatter"]


def _gather(r: Axis, data: Chunks) -> None:
    for t in steps(r.size - 1):
        r.send(data[r - t], to=r + 1)


def _reduce(r: Axis, data: Chunks) -> None:
    for t in steps(r.size - 1):
        r.send(data[r - t - 1], to=r + 1, reduce=True)


def ring_all_gather() -> Schedule:
    """All-gather round a ring.

    >>> print(ring_all_gather())
    ring_all_gather (all_gather over r; |r| chunks)
      for t in range(|r| - 1):
        copy data[r - t] of (r) to (r + 1)
    """

    def ring(r: Axis) -> None:
        _gather(r, chunks(r.size))

    return build("all_gather", "ring_all_gather", ("r",), ring)


def ring_reduce_scatter() -> Schedule:
    """Reduce-scatter round a ring."""

    def ring(r: Axis) -> None:
        _reduce(r, chunks(r.size))

    return build("reduce_scatter", "ring_reduce_scatter", ("r",), ring)


def ring_all_reduce() -> Schedule:
    """All-reduce round a ring: reduce-scatter, then all-gather."""

    def ring(r: Axis) -> None:
        data = chunks(r.size)
        _reduce(r, data)
        _gather(r, data)

    return build("all_reduce", "ring_all_reduce", ("r",), ring)
