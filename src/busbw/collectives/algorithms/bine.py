"""Bine (binomial negabinary) trees and butterflies: binomial ones over negabinary names of ranks, with shorter distances.

broadcast: steps s = L - 1 .. 0; every rank that has the data passes it to its partner at distance |rho(s)| (`busbw.collectives.algorithms.swing`). log2 p steps, T = log2 p (alpha + n beta);
the distances sum to about 2/3 of the binomial tree's. reduce is the reverse.
reduce_scatter, all_gather, all_reduce: the butterfly with the far partner first in reduce_scatter and last in all_gather. Steps and bytes as Rabenseifner.
Powers of two; all_reduce folds others.

Source: De Sensi et al., "Bine trees: enhancing collective operations by optimizing communication locality", SC 2025 (arXiv 2508.17311).
"""

from __future__ import annotations

from busbw.collectives.algorithms.recursive_doubling import log2, require_power_of_two
from busbw.collectives.algorithms.swing import swing_partner
from busbw.collectives.builder import Axis, build, chunks, parallel, parameter, steps, transfer
from busbw.collectives.expressions import from_gray, negabinary, power
from busbw.collectives.passes import compose, folded, reverse
from busbw.collectives.schedule import Schedule

__all__ = ["bine_all_gather", "bine_all_reduce", "bine_broadcast", "bine_reduce", "bine_reduce_scatter"]


def bine_broadcast() -> Schedule:
    """Broadcast down a Bine tree, distances halving."""

    def tree(r: Axis) -> None:
        require_power_of_two(r)
        root = parameter("root", 0)
        data = chunks(1)
        for t in steps(log2(r)):
            s = log2(r) - 1 - t
            for i in parallel(power(2, t)):  # the ranks reached so far, each by the steps that are ones in i
                has = negabinary(from_gray(i * power(2, s + 1)))
                transfer(data[0], frm={r: root + has}, to={r: root + swing_partner(has, s)})

    return build("broadcast", "bine_broadcast", ("r",), tree)


def bine_reduce() -> Schedule:
    """Reduce up a Bine tree."""
    return reverse(bine_broadcast())


def bine_reduce_scatter() -> Schedule:
    """Reduce-scatter by the Bine butterfly, far partners first."""

    def butterfly(r: Axis) -> None:
        require_power_of_two(r)
        data = chunks(r.size)
        for t in steps(log2(r)):
            s = log2(r) - 1 - t
            partner = swing_partner(r, s)
            for i in parallel(power(2, s)):
                way = negabinary(from_gray(i))
                r.send(data[partner + (1 - 2 * (partner % 2)) * way], to=partner, reduce=True)

    return build("reduce_scatter", "bine_reduce_scatter", ("r",), butterfly)


def bine_all_gather() -> Schedule:
    """All-gather by the Bine butterfly, near partners first."""
    return reverse(bine_reduce_scatter())


def bine_all_reduce() -> Schedule:
    """All-reduce by Bine butterflies, for any number of ranks."""
    return folded(compose(bine_reduce_scatter(), bine_all_gather(), "bine_all_reduce"))
