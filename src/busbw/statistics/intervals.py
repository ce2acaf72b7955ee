"""Sets of moments as sorted, disjoint intervals: what several streams did, taken together. Begin and end: (N,) int64; an end lies outside."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["Intervals", "common", "length", "union"]

Ints = npt.NDArray[np.int64]
Intervals = tuple[Ints, Ints]


def union(begin: npt.ArrayLike, end: npt.ArrayLike) -> Intervals:
    """The moments that lie in one of these intervals or more; empty and backward ones hold none.

    >>> [bound.tolist() for bound in union([0, 5, 3], [4, 6, 5])]
    [[0], [6]]
    """
    starts, ends = np.asarray(begin, np.int64), np.asarray(end, np.int64)
    whole = ends > starts
    order = np.argsort(starts[whole], kind="stable")
    starts, ends = starts[whole][order], np.maximum.accumulate(ends[whole][order])
    first = np.ones(starts.size, bool)
    first[1:] = starts[1:] > ends[:-1]
    last = np.roll(first, -1) if first.size else first
    return starts[first], ends[last]


def length(intervals: Intervals) -> int:
    """Their time together."""
    return int((intervals[1] - intervals[0]).sum())


def common(one: Intervals, other: Intervals) -> int:
    """The time that lies in both.

    >>> common(union([0, 10], [5, 20]), union([3], [12]))
    4
    """
    return (
        length(one)
        + length(other)
        - length(union(np.concatenate((one[0], other[0])), np.concatenate((one[1], other[1]))))
    )
