"""Recursive doubling and halving: partners at distances 1, 2, 4 ... exchange all they have. For powers of two; all_reduce folds other numbers.

all_gather: in step t ranks r and r xor 2^t exchange their 2^t blocks. log2 p steps, T = log2 p alpha + n (p - 1)/p beta.
reduce_scatter (recursive halving) is its reverse. The same time.
all_reduce: in step t they exchange and add the whole vector. log2 p steps, T = log2 p (alpha + n beta); two more steps and 2 n beta where p is no power of two.

Source: Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", IJHPCA 19 (2005).
"""

from __future__ import annotations

from busbw.collectives.builder import Axis, build, chunks, require, steps
from busbw.collectives.expressions import Expr, eq, floor_log, power
from busbw.collectives.passes import folded, reverse
from busbw.collectives.schedule import Schedule

__all__ = [
    "log2", "recursive_doubling_all_gather", "recursive_doubling_all_reduce", "recursive_halving_reduce_scatter", "require_power_of_two",
]  # fmt: skip


def log2(r: Axis) -> Expr:
    """The number of binary digits of a rank, for powers of two."""
    return floor_log(2, r.size)


def require_power_of_two(r: Axis) -> None:
    """bind() refuses other sizes."""
    require(eq(power(2, log2(r)), r.size), f"the number of ranks along {r} must be a power of two")


def recursive_doubling_all_gather() -> Schedule:
    """All-gather by recursive doubling.

    >>> print(recursive_doubling_all_gather())
    recursive_doubling_all_gather (all_gather over r; |r| chunks)
      for t in range(floor_log(2, |r|)):
        copy data[r // pow(2, t) * pow(2, t) : pow(2, t)] of (r) to (r ^ pow(2, t))
    """

    def doubling(r: Axis) -> None:
        require_power_of_two(r)
        data = chunks(r.size)
        for t in steps(log2(r)):
            far = power(2, t)
            r.send(data[r // far * far, far], to=r ^ far)

    return build("all_gather", "recursive_doubling_all_gather", ("r",), doubling)


def recursive_halving_reduce_scatter() -> Schedule:
    """Reduce-scatter by recursive halving: the largest message first, to the farthest partner."""
    return reverse(recursive_doubling_all_gather())


def recursive_doubling_all_reduce() -> Schedule:
    """All-reduce by recursive doubling of the whole vector, for any number of ranks."""

    def doubling(r: Axis) -> None:
        require_power_of_two(r)
        data = chunks(1)
        for t in steps(log2(r)):
            r.send(data[0], to=r ^ power(2, t), reduce=True)

    return folded(build("all_reduce", "recursive_doubling_all_reduce", ("r",), doubling))
