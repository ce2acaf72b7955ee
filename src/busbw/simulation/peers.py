"""Who sends to whom, as rules on rank numbers: shifts, all others along an axis, tables.

Legend: N ranks, R ranks that run a stream, k channels of one name that each of them sends on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from busbw.hardware.links import IntArray

__all__ = ["Others", "Peers", "Shift", "Table", "rule"]


@runtime_checkable
class Peers(Protocol):
    """A rule that says whom each rank sends to."""

    @property
    def fan(self) -> int:
        """k: channels of each sender."""
        ...

    def of(self, ranks: IntArray) -> IntArray:
        """(R, k): the ranks that these send to, column by column."""
        ...

    def senders(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """(R, k) each: who sends to these ranks, and on which column of theirs."""
        ...

    def column(self, sender: IntArray, receiver: IntArray) -> IntArray:
        """The column on which a rank sends to another, given that it does."""
        ...

    def survives(self, moved: IntArray) -> bool:
        """Whether renumbering ranks (r becomes moved[r]) leaves the rule as it is, columns in any order."""
        ...


def _strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))


@dataclass(frozen=True, slots=True)
class Shift:
    """Each rank sends to the one that is `by` further along each axis, round and round.

    Ranks are numbered row by row in `shape`.

    >>> Shift((4,), (1,)).of(np.arange(4)).ravel().tolist()
    [1, 2, 3, 0]
    """

    shape: tuple[int, ...]
    by: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.by) or min(self.shape, default=0) < 1:
            raise ValueError(f"a shift of {self.by} in {self.shape}: both need one number an axis, sizes from 1")

    @property
    def fan(self) -> int:
        """One."""
        return 1

    def _moved(self, ranks: IntArray, sign: int) -> IntArray:
        out = np.array(ranks, np.int64)
        for size, stride, by in zip(self.shape, _strides(self.shape), self.by, strict=True):
            if by % size:
                digit = out // stride % size
                out += ((digit + sign * by) % size - digit) * stride
        return out

    def of(self, ranks: IntArray) -> IntArray:
        """(R, 1)."""
        return self._moved(ranks, 1)[:, None]

    def senders(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """(R, 1) each."""
        return self._moved(ranks, -1)[:, None], np.zeros((len(ranks), 1), np.int64)

    def column(self, sender: IntArray, receiver: IntArray) -> IntArray:
        """Always 0."""
        return np.zeros(np.broadcast_shapes(np.shape(sender), np.shape(receiver)), np.int64)

    def survives(self, moved: IntArray) -> bool:
        """Asks every rank."""
        return np.array_equal(self._moved(moved, 1), moved[self._moved(np.arange(len(moved)), 1)])


@dataclass(frozen=True, slots=True)
class Others:
    """Each rank sends to all others along one axis of `shape`: first the next one, last the one before it.

    >>> Others((4,), 0).of(np.array([2])).tolist()
    [[3, 0, 1]]
    """

    shape: tuple[int, ...]
    axis: int

    def __post_init__(self) -> None:
        if not 0 <= self.axis < len(self.shape) or min(self.shape) < 1:
            raise ValueError(f"axis {self.axis} of {self.shape} is not there")

    @property
    def fan(self) -> int:
        """All but one."""
        return self.shape[self.axis] - 1

    def _along(self, ranks: IntArray, by: IntArray) -> IntArray:
        size, stride = self.shape[self.axis], math.prod(self.shape[self.axis + 1 :])
        ranks = np.asarray(ranks, np.int64)[:, None]
        digit, by = ranks // stride % size, by % size
        out = np.asarray(ranks + by * stride, np.int64)
        np.subtract(out, size * stride, out=out, where=by >= size - digit)
        return out

    def of(self, ranks: IntArray) -> IntArray:
        """(R, k)."""
        return self._along(ranks, np.arange(1, self.fan + 1))

    def senders(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """(R, k) each."""
        columns = np.arange(self.fan)
        return self._along(ranks, -1 - columns), np.broadcast_to(columns, (len(ranks), self.fan))

    def column(self, sender: IntArray, receiver: IntArray) -> IntArray:
        """How much further the receiver is, less 1."""
        size, stride = self.shape[self.axis], math.prod(self.shape[self.axis + 1 :])
        return np.asarray((receiver // stride - sender // stride) % size - 1, np.int64)

    def survives(self, moved: IntArray) -> bool:
        """Whether ranks of one group stay together."""
        size, stride = self.shape[self.axis], math.prod(self.shape[self.axis + 1 :])

        def group(rank: IntArray) -> IntArray:
            return np.asarray(rank // (stride * size) * stride + rank % stride, np.int64)

        became = np.full(len(moved), -1, np.int64)
        before, after = group(np.arange(len(moved))), group(moved)
        became[before] = after
        return np.array_equal(became[before], after)


@dataclass(frozen=True, slots=True, eq=False)
class Table:
    """Who sends to whom, written out: row i are the receivers of the i-th sender, all different; -1 is nobody.

    Ranks that run the sending stream and have no row send to nobody.
    """

    ranks: IntArray
    """(R,) the senders, ascending."""
    receivers: IntArray
    """(R, k)."""

    @property
    def fan(self) -> int:
        """Columns."""
        return int(self.receivers.shape[1])

    def of(self, ranks: IntArray) -> IntArray:
        """(R, k)."""
        if np.array_equal(ranks, self.ranks):
            return np.asarray(self.receivers, np.int64)
        row = np.minimum(np.searchsorted(self.ranks, ranks), len(self.ranks) - 1)
        return np.where((self.ranks[row] == ranks)[:, None], self.receivers[row], -1).astype(np.int64)

    def senders(self, ranks: IntArray) -> tuple[IntArray, IntArray]:
        """(R, k) each, as many columns as the rank with most senders has; -1 where a rank has fewer."""
        rows, columns = np.nonzero(self.receivers >= 0)
        to = self.receivers[rows, columns]
        order = np.argsort(to, kind="stable")
        to, source, column = to[order], self.ranks[rows[order]], columns[order]
        first, last = np.searchsorted(to, ranks, "left"), np.searchsorted(to, ranks, "right")
        most = int((last - first).max(initial=0))
        at = first[:, None] + np.arange(most)
        there = at < last[:, None]
        at = np.where(there, at, 0)
        return np.where(there, source[at], -1), np.where(there, column[at], -1)

    def column(self, sender: IntArray, receiver: IntArray) -> IntArray:
        """Looked up."""
        rows = self.receivers[np.searchsorted(self.ranks, sender)]
        return np.asarray((rows == np.asarray(receiver)[..., None]).argmax(-1), np.int64)

    def survives(self, moved: IntArray) -> bool:
        """Asks every sender."""
        if not np.array_equal(np.sort(moved[self.ranks]), self.ranks):
            return False
        renumbered = np.where(self.receivers >= 0, moved[np.maximum(self.receivers, 0)], -1)
        return np.array_equal(np.sort(self.of(moved[self.ranks]), 1), np.sort(renumbered, 1))


def rule(src: IntArray, dst: IntArray, size: IntArray, shape: tuple[int, ...]) -> tuple[Peers, IntArray]:
    """The shortest rule for pairs, ordered by source, and the sizes in its order."""
    ranks = int(np.prod(shape))
    senders, first = np.unique(src, return_index=True)
    fans = np.diff(np.r_[first, len(src)])
    fan = int(fans.max())
    if len(senders) == ranks and (fans == fan).all():
        by = [
            (d - s) % n
            for s, d, n in zip(np.unravel_index(src, shape), np.unravel_index(dst, shape), shape, strict=True)
        ]
        if fan == 1 and all((step == step[0]).all() for step in by):
            return Shift(shape, tuple(int(step[0]) for step in by)), size[:, None]
        for axis, step in enumerate(by):
            if fan == shape[axis] - 1 and all(not other.any() for place, other in enumerate(by) if place != axis):
                rule = Others(shape, axis)
                ordered = np.empty((ranks, fan), np.int64)
                ordered[src, step - 1] = size
                return rule, ordered
    receivers, sizes = np.full((len(senders), fan), -1, np.int64), np.zeros((len(senders), fan), np.int64)
    row = np.repeat(np.arange(len(senders)), fans)
    column = np.arange(len(src)) - np.repeat(first, fans)
    receivers[row, column], sizes[row, column] = dst, size
    return Table(senders, receivers), sizes
