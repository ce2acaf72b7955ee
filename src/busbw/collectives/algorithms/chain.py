"""A pipelined chain: each rank passes slices on to the next.

broadcast: p - 1 hops, m slices: p - 2 + m steps, T = (p - 2 + m)(alpha + n/m beta); best m = sqrt((p - 2) n beta / alpha). reduce is the reverse.

Source: the usual derivation, as in van de Geijn, "Efficient global combine operations", DMCC 1991.
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, build, chunks, parameter, pipeline, steps, transfer
from busbw.collectives.passes import reverse
from busbw.collectives.schedule import Schedule

__all__ = ["chain_broadcast", "chain_reduce"]


def chain_broadcast(parts: int = 1) -> Schedule:
    """Broadcast along the chain root, root + 1, .. in `parts` slices (a default; bind(parts=...))."""

    def chain(r: Axis) -> None:
        root = parameter("root", 0)
        data = chunks(1)
        with pipeline(parameter("parts", parts)):
            for t in steps(r.size - 1):
                transfer(data[0], frm={r: root + t}, to={r: root + t + 1})

    return build("broadcast", "chain_broadcast", ("r",), chain)


def chain_reduce(parts: int = 1) -> Schedule:
    """Reduce along the chain towards the root."""
    return reverse(chain_broadcast(parts))
