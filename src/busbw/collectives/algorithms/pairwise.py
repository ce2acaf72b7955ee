"""Pairwise exchange: in each step a rank sends to one rank and receives from one.

all_to_all: step t: rank r sends to r + t and receives from r - t; or, for powers of two, exchanges with r xor t. p - 1 steps, T = (p - 1)(alpha + n/p beta).

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005).
"""

from __future__ import annotations

from busbw.collectives.algorithms.recursive_doubling import require_power_of_two
from busbw.collectives.builder import Axis, blocks, build, copy, steps
from busbw.collectives.schedule import Schedule

__all__ = ["pairwise_all_to_all", "pairwise_exchange_all_to_all"]


def pairwise_all_to_all() -> Schedule:
    """All-to-all by rotation, for any number of ranks."""

    def pairwise(r: Axis) -> None:
        inputs, outputs = blocks(r.size)
        copy(inputs[r], outputs[r])
        for t in steps(r.size - 1):
            r.send(inputs[r + t + 1], to=r + t + 1, into=outputs[r])

    return build("all_to_all", "pairwise_all_to_all", ("r",), pairwise)


def pairwise_exchange_all_to_all() -> Schedule:
    """All-to-all by exchange with r xor t, for powers of two."""

    def pairwise(r: Axis) -> None:
        require_power_of_two(r)
        inputs, outputs = blocks(r.size)
        copy(inputs[r], outputs[r])
        for t in steps(r.size - 1):
            r.send(inputs[r ^ (t + 1)], to=r ^ (t + 1), into=outputs[r])

    return build("all_to_all", "pairwise_exchange_all_to_all", ("r",), pairwise)
