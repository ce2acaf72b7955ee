"""Scatter and gather down and up a binomial tree; broadcast and reduce made of them.

scatter: in step t the holders of 2^(s+1) blocks, s = ceil(log2 p) - 1 - t, hand the upper half of them 2^s ranks on. ceil(log2 p) steps, T = ceil(log2 p) alpha + n (p - 1)/p beta. gather is the reverse.
broadcast = scatter, then ring all_gather: ceil(log2 p) + p - 1 steps, T = (ceil(log2 p) + p - 1) alpha + 2 n (p - 1)/p beta. reduce = ring reduce_scatter, then gather: the same.

Source: van de Geijn's broadcast, in Barnett et al., "Interprocessor collective communication library", SHPCC 1994; Thakur et al., IJHPCA 19 (2005).
"""

from __future__ import annotations

from busbw.collectives.algorithms.ring import ring_all_gather, ring_reduce_scatter
from busbw.collectives.builder import Axis, build, chunks, parallel, parameter, steps, transfer
from busbw.collectives.expressions import ceil_log, minimum, power
from busbw.collectives.passes import compose, reverse
from busbw.collectives.schedule import Schedule

__all__ = ["binomial_gather", "binomial_scatter", "scatter_all_gather_broadcast", "scatter_gather_reduce"]


def binomial_scatter() -> Schedule:
    """Scatter down a binomial tree, for any number of ranks."""

    def tree(r: Axis) -> None:
        root = parameter("root", 0)
        data = chunks(r.size)
        levels = ceil_log(2, r.size)
        for t in steps(levels):
            far = power(2, levels - 1 - t)
            for i in parallel((r.size + far - 1) // (2 * far)):
                x = 2 * far * i
                upper = x + far
                transfer(data[root + upper, minimum(far, r.size - upper)], frm={r: root + x}, to={r: root + upper})

    return build("scatter", "binomial_scatter", ("r",), tree)


def binomial_gather() -> Schedule:
    """Gather up a binomial tree."""
    return reverse(binomial_scatter())


def scatter_all_gather_broadcast() -> Schedule:
    """Broadcast of large vectors: binomial scatter, then ring all-gather."""
    return compose(binomial_scatter(), ring_all_gather(), "scatter_all_gather_broadcast")


def scatter_gather_reduce() -> Schedule:
    """Reduce of large vectors: ring reduce-scatter, then binomial gather."""
    return compose(ring_reduce_scatter(), binomial_gather(), "scatter_gather_reduce")
