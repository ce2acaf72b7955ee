"""Barrier by dissemination: in round t rank r tells r + 2^t all that it has heard of.

ceil(log2 p) steps, T = ceil(log2 p) alpha.

Source: Hensgen, Finkel, Manber, "Two algorithms for barrier synchronization", IJPP 17 (1988).
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, build, chunks, steps
from busbw.collectives.expressions import ceil_log, power
from busbw.collectives.schedule import Schedule

__all__ = ["dissemination_barrier"]


def dissemination_barrier() -> Schedule:
    """Barrier for any number of ranks."""

    def dissemination(r: Axis) -> None:
        arrived = chunks(1)
        for t in steps(ceil_log(2, r.size)):
            r.send(arrived[0], to=r + power(2, t), reduce=True)

    return build("barrier", "dissemination_barrier", ("r",), dissemination)
