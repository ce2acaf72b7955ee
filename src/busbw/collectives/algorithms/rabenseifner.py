"""Rabenseifner's all-reduce: recursive halving, then recursive doubling.

2 log2 p steps, T = 2 log2 p alpha + 2 n (p - 1)/p beta. Where p is no power of two, p - 2^m ranks hand their vector to a neighbour before and
get the result after: two more steps, and 2 n beta more for them.

Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004.
"""

from __future__ import annotations

from busbw.collectives.algorithms.recursive_doubling import (
    recursive_doubling_all_gather,
    recursive_halving_reduce_scatter,
)
from busbw.collectives.passes import compose, folded
from busbw.collectives.schedule import Schedule

__all__ = ["rabenseifner_all_reduce"]


def rabenseifner_all_reduce() -> Schedule:
    """All-reduce by halving and doubling, for any number of ranks."""
    powers = compose(recursive_halving_reduce_scatter(), recursive_doubling_all_gather(), "rabenseifner_all_reduce")
    return folded(powers)
