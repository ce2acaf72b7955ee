"""Swing: butterflies whose partners stay near, for rings and tori.

In step s rank r talks to r + rho(s) if it is even and to r - rho(s) if odd; rho(s) = (1 - (-2)^(s+1))/3 = 1, -1, 3, -5, 11 .. Hops are |rho(s)| instead of 2^s.
reduce_scatter: rank r hands its partner q the blocks of all ranks that q reaches in later steps. log2 p steps, T = log2 p alpha + n (p - 1)/p beta; all_gather is the reverse.
all_reduce: both, 2 log2 p steps (bandwidth), or log2 p exchanges of the whole vector (latency). Powers of two; all_reduce folds others.

Which blocks: a path of steps j1 < j2 < .. from q ends at q +- (rho(j1) - rho(j2) + ..). The sum is the negabinary number whose digits are read off the
Gray code with ones at j1, j2 ..; its sign is that of the number of steps.

Source: De Sensi, Bonato, Saam, Hoefler, "Swing: short-cutting rings for higher bandwidth allreduce", NSDI 2024 (arXiv 2401.09356); the closed form of the
blocks is derived here and checked by the tests.
"""

from __future__ import annotations

from busbw.collectives.algorithms.recursive_doubling import log2, require_power_of_two
from busbw.collectives.builder import Axis, build, chunks, parallel, steps
from busbw.collectives.expressions import Expr, from_gray, negabinary, power, select
from busbw.collectives.passes import compose, folded, reverse
from busbw.collectives.schedule import Schedule

__all__ = ["swing_all_gather", "swing_all_reduce", "swing_all_reduce_latency", "swing_partner", "swing_reduce_scatter"]


def swing_partner(r: Expr, s: Expr) -> Expr:
    """The partner of rank r in step s."""
    rho = (1 - power(-2, s + 1)) // 3
    return select(r % 2, r - rho, r + rho)


def swing_reduce_scatter() -> Schedule:
    """Reduce-scatter by Swing."""

    def swing(r: Axis) -> None:
        require_power_of_two(r)
        data = chunks(r.size)
        for s in steps(log2(r), "s"):
            partner = swing_partner(r, s)
            for i in parallel(power(2, log2(r) - 1 - s)):
                way = from_gray(i * power(2, s + 1))
                sign = (1 - 2 * (partner % 2)) * (2 * (way % 2) - 1)
                r.send(data[partner + sign * negabinary(way)], to=partner, reduce=True)

    return build("reduce_scatter", "swing_reduce_scatter", ("r",), swing)


def swing_all_gather() -> Schedule:
    """All-gather by Swing."""
    return reverse(swing_reduce_scatter())


def swing_all_reduce() -> Schedule:
    """All-reduce by Swing, few bytes."""
    return folded(compose(swing_reduce_scatter(), swing_all_gather(), "swing_all_reduce"))


def swing_all_reduce_latency() -> Schedule:
    """All-reduce by Swing, few steps."""

    def swing(r: Axis) -> None:
        require_power_of_two(r)
        data = chunks(1)
        for s in steps(log2(r), "s"):
            r.send(data[0], to=swing_partner(r, s), reduce=True)

    return folded(build("all_reduce", "swing_all_reduce_latency", ("r",), swing))
