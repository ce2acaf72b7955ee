"""All-reduce of small vectors in ceil(log2 p) rounds for any number of ranks: sums over windows of ranks that double.

V_w(r) is the sum over the w ranks before r, W_w(r) = V_w(r) + x(r). A round takes w to 2 w or 2 w + 1, along the binary digits of p - 1: rank r adds V_w(r - w),
or W_w(r - w - 1). After the last digit V is the sum over all others. ceil(log2 p) rounds of the whole vector: T = ceil(log2 p)(alpha + n beta), where recursive doubling takes two more rounds
and 2 n beta more if p is no power of two. Every rank forms its sum in an order of its own, so results may differ in the last bits.

Source: Bar-Noy, Kipnis, Schieber, "An optimal algorithm for computing census functions in message-passing systems", Parallel Processing Letters 3 (1993); Bruck, Ho,
"Efficient global combine operations in multi-port message-passing systems", the same volume. Told from memory of their results; derived above.
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, build, chunks, copy, scratch, steps, together
from busbw.collectives.expressions import Expr, ceil_log, eq, power
from busbw.collectives.schedule import Schedule

__all__ = ["census_all_reduce"]


def census_all_reduce() -> Schedule:
    """All-reduce in ceil(log2 p) rounds."""

    def census(r: Axis) -> None:
        data = chunks(1)  # W
        held = scratch(2)  # V, and what has just come
        rounds = ceil_log(2, r.size)

        def window(t: Expr) -> tuple[Expr, Expr]:
            """(w before round t, the digit it takes)."""
            return (r.size - 1) // power(2, rounds - t), (r.size - 1) // power(2, rounds - 1 - t) % 2

        for t in steps(rounds - 1):
            w, digit = window(t)
            with together():
                r.send(data[0], to=r + w + 1, into=held[1], when=digit)
                r.send(held[0], to=r + w, into=held[1], when=eq(digit, 0))
            with together():
                copy(held[1], data[0], reduce=True)
                copy(held[1], held[0], when=eq(t, 0))
                copy(held[1], held[0], when=t > 0, reduce=True)
        for _ in steps(r.size > 1, "last"):
            w, digit = window(rounds - 1)
            with together():
                r.send(data[0], to=r + w + 1, when=digit, reduce=True)
                r.send(held[0], to=r + w, into=data[0], when=eq(digit, 0), reduce=True)

    return build("all_reduce", "census_all_reduce", ("r",), census)
