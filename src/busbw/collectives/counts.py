"""Tables that a schedule leaves open until the counts of a call are known: all_to_all_v, whose counts[s, d] elements go from rank s to rank d.

A rank's input lies ordered by destination, its output by source, without gaps; so all places follow from the counts by the rules here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from busbw.collectives.expressions import IntArray, Table

__all__ = ["COUNT_RULES", "checked_counts", "tables_of_counts"]


def _row_starts(counts: IntArray) -> IntArray:
    return np.asarray(np.cumsum(counts, axis=1) - counts, np.int64)


def _longest(counts: IntArray) -> IntArray:
    return np.array([max(counts.sum(0).max(), counts.sum(1).max(), 1)], np.int64)


COUNT_RULES: dict[str, Callable[[IntArray], IntArray]] = {
    "counts": lambda counts: counts,
    "row_starts": _row_starts,
    "column_starts": lambda counts: _row_starts(counts.T),
    "longest": _longest,
}
"""Name of a rule: the table that it makes. counts: as given. row_starts[s, d]: where s's block for d begins in its input. column_starts[d, s]: where that
from s begins in d's output. longest[0]: elements of the longest buffer of any rank, at least 1."""


def checked_counts(counts: Any) -> IntArray:
    """The counts as a square table. Raises ValueError for anything else, and for negative ones.

    >>> checked_counts([[0, 3], [1, 2]]).sum(axis=1).tolist()
    [3, 3]
    """
    try:
        table = np.array(counts)
    except ValueError:
        table = np.zeros(0)
    square = table.ndim == 2 and table.shape[0] == table.shape[1] and len(table) > 0 and table.dtype.kind in "iuf"
    if not square or (table < 0).any() or (table > _MOST).any() or (table != np.floor(table)).any():
        raise ValueError(
            "counts must be a square table of whole numbers without negative entries, of 2^53 at most: row s is what rank s sends"
        )
    return table.astype(np.int64)


_MOST = 1 << 53
"""Elements from one rank to another: whole numbers are exact in a float, and sums of many rows in 64 bits."""


def tables_of_counts(rules: tuple[tuple[str, str], ...], counts: Any) -> tuple[tuple[str, Table], ...]:
    """The tables that these rules (name of a table, rule) make of the counts."""
    table = checked_counts(counts)
    return tuple((name, Table.of(COUNT_RULES[rule](table))) for name, rule in rules)
