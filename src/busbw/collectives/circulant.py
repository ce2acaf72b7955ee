"""Which block travels when in the round-optimal broadcast over a circulant graph, for any number of ranks.

p ranks, q = ceil(log2 p), skips s_k = ceil(p / 2^(q - k)), so s_0 = 1 and s_q = p. Rank v (counted from the root) gets a block from v - s_k in rounds
k, k + q, k + 2 q ..; in q rounds it gets q different ones. Numbered within one turn of q rounds, one of them is of this turn, b_v, the others are of the turn before, -1 .. -q without b_v - q.

b_v is the last of the skips, largest first, that sum to v. For the others: in round k the block comes from the rank at the first partial sum, over the skips not used yet,
largest first, that lies above v + p - s_(k+1) and at most at v + p - s_k; the last skip of that sum is the block, and is used up. b_v counts as used; the skip s_q = p stands for it.

Source: Traeff, "Optimal broadcast schedules in logarithmic time with applications to broadcast, all-broadcast, reduction and all-reduction", arXiv 2312.11236; the
search is his, told here round by round. His four conditions are tested for all p up to some hundred (`tests/collectives/test_circulant.py`).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

__all__ = ["received_blocks", "skips"]


def skips(ranks: int) -> list[int]:
    """s_0 .. s_q.

    >>> skips(13)
    [1, 2, 4, 7, 13]
    """
    rounds = max(ranks - 1, 0).bit_length()
    return [-(-ranks // (1 << (rounds - k))) for k in range(rounds + 1)]


@lru_cache(maxsize=16)
def received_blocks(ranks: int) -> NDArray[np.int64]:
    """(q, p) int64: [k, v] is the block that rank v gets in round k of a turn; negative ones are of the turn before.

    The root's column, 0, is what it sends: block k in round k. 131,072 ranks take a second or two.

    >>> received_blocks(4).tolist()
    [[0, 0, -2, -1], [1, -1, 1, 0]]
    """
    s = skips(ranks)
    rounds = len(s) - 1
    rank = np.arange(ranks)
    own, left = np.full(ranks, rounds), rank.copy()
    for e in reversed(range(rounds)):
        taken = s[e] <= left
        left[taken] -= s[e]
        own[taken] = e
    free = np.arange(rounds + 1)[:, None] != own[None, :]
    before = np.full(ranks, 2 * ranks)
    found = np.empty((rounds, ranks), np.int64)
    for k in range(rounds):
        high = np.minimum(rank + ranks - s[k], before - 1)
        low = rank + ranks - s[k + 1]
        at, last = np.zeros(ranks, np.int64), np.zeros(ranks, np.int64)
        for e in reversed(range(rounds + 1)):
            taken = free[e] & (at + s[e] <= high) & (at <= low)
            at[taken] += s[e]
            last[taken] = e
        free[last, rank] = False
        before = at
        found[k] = np.where(last == rounds, own, last - rounds)
    found[:, 0] = np.arange(rounds)
    found.setflags(write=False)
    return found
