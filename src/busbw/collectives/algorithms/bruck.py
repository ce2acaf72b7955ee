"""Bruck's algorithms, for any number of ranks and k ports.

all_gather: with w = (k + 1)^t blocks gathered, step t sends them to the ranks w, 2 w, .. k w before, and gets as many from behind; blocks r, r + 1 .. of rank r.
ceil(log_{k+1} p) steps, T = ceil(log_{k+1} p) alpha + n (p - 1)/(p k) beta (one port: n (p - 1)/p beta).
all_to_all: block i of a rank (i = how far behind the sender its receiver is) travels by the digits of i in base k + 1: in step t those with digit j
move j (k + 1)^t ranks on. ceil(log_{k+1} p) steps, T about log2 p (alpha + n/2 beta) for one port.
radix_all_to_all is the same in any base B, for one port: D = ceil(log_B p) digits, about D ((B - 1) alpha + (1 - 1/B) n beta), between Bruck (B = 2) and the direct exchange (B = p).

Source: Bruck, Ho, Kipnis, Upfal, Weathersby, "Efficient algorithms for all-to-all communications in multiport message-passing systems", IEEE TPDS 8 (1997).
"""

from __future__ import annotations

from busbw.collectives.builder import (
    Axis,
    blocks,
    build,
    chunks,
    copy,
    parallel,
    parameter,
    require,
    scratch,
    steps,
)
from busbw.collectives.expressions import Expr, ceil_log, const, digit, eq, maximum, minimum, power
from busbw.collectives.passes import reverse
from busbw.collectives.schedule import Schedule

__all__ = ["bruck_all_gather", "bruck_all_to_all", "bruck_reduce_scatter", "radix_all_to_all"]


def bruck_all_gather(ports: int = 1) -> Schedule:
    """All-gather by Bruck, with `ports` messages a rank and step."""

    def bruck(r: Axis) -> None:
        data = chunks(r.size)
        for t in steps(ceil_log(ports + 1, r.size)):
            have = power(ports + 1, t)
            for j in parallel(ports):
                away = (j + 1) * have
                r.send(data[r, maximum(minimum(have, r.size - away), 0)], to=r - away)

    return build("all_gather", _named("bruck_all_gather", ports), ("r",), bruck)


def bruck_reduce_scatter(ports: int = 1) -> Schedule:
    """Reduce-scatter by Bruck run backwards."""
    return reverse(bruck_all_gather(ports))


def bruck_all_to_all(ports: int = 1) -> Schedule:
    """All-to-all by Bruck: few, large messages; blocks pass through other ranks."""
    return build("all_to_all", _named("bruck_all_to_all", ports), ("r",), lambda r: _by_digits(r, const(ports + 1)))


def radix_all_to_all(radix: int = 4) -> Schedule:
    """All-to-all by the digits of the distance in this base (a default; bind(radix=...)): the larger, the more messages and the fewer bytes."""

    def by_digits(r: Axis) -> None:
        base = parameter("radix", radix)
        require(base >= 2, "a radix is at least 2")
        _by_digits(r, base)

    return build("all_to_all", "radix_all_to_all", ("r",), by_digits)


def _by_digits(r: Axis, base: Expr) -> None:
    inputs, outputs = blocks(r.size)
    held = scratch(r.size)  # place i: the block that has i ranks to go in all
    for i in parallel(r.size):
        copy(inputs[r + i], held[i])
    for t in steps(ceil_log(base, r.size)):
        far = power(base, t)
        for j in parallel(base - 1):
            for i in parallel(r.size):
                r.send(held[i], to=r + (j + 1) * far, when=eq(digit(i, base, t), j + 1))
    for i in parallel(r.size):
        copy(held[i], outputs[r - i])


def _named(name: str, ports: int) -> str:
    return name if ports == 1 else f"{name}_{ports}_ports"
