"""All-to-all with counts known only at run time: counts[s, d] elements go from rank s to rank d. The schedule is made when they are known.

A chunk is one element here. A rank's input lies ordered by destination, its output by source, without gaps.

Direct: 1 step, T = alpha + max row or column sum b. Pairwise: p - 1 steps, sum over t of the largest counts[r, r + t].
Two-level: to the local rank on the destination's rail, then along rails, as `two_level_all_to_all`.
FAST (two tiers): flows between nodes are dealt out to the ranks of the node first, so that all NICs carry the same; the node-to-node matrix is taken apart into
permutations (Birkhoff), one a step; at the end what arrived is handed to its owner. The NICs are busy for max(row sum, column sum of the node matrix)/L, to an element a step, which no
schedule can beat; number of steps: permutations + 2.

Source: arXiv 2505.09764 (FAST) for the two-tier scheme; Birkhoff, "Tres observaciones sobre el algebra lineal" (1946) for the decomposition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from busbw.collectives.builder import (
    Axis,
    Chunks,
    blocks,
    build,
    copy,
    fixed_size,
    open_table,
    parallel,
    scratch,
    steps,
    table_of,
    together,
    transfer,
)
from busbw.collectives.counts import checked_counts
from busbw.collectives.expressions import IntArray
from busbw.collectives.schedule import Schedule

__all__ = [
    "birkhoff", "direct_all_to_all_v", "fast_all_to_all_v", "pairwise_all_to_all_v", "two_level_all_to_all_v",
]  # fmt: skip


def _before(counts: IntArray) -> IntArray:
    """Where each block of a row begins, blocks laid without gaps."""
    return np.cumsum(counts, axis=1) - counts


def _buffers(counts: IntArray) -> tuple[Chunks, Chunks]:
    """Input and output as long as the longest of any rank, and the table by which everyone knows the counts."""
    table_of("counts", counts)
    return blocks(int(max(counts.sum(0).max(), counts.sum(1).max(), 1)))


def direct_all_to_all_v(counts: Any = None) -> Schedule:
    """All messages at once. Without counts it is for any number of ranks, and bind(counts=...) gives them.

    >>> from busbw.collectives.provenance import violations
    >>> violations(direct_all_to_all_v([[0, 3], [1, 2]]).bind()), violations(direct_all_to_all_v().bind(counts=[[0, 3], [1, 2]]))
    ([], [])
    """
    return _to_each(None if counts is None else checked_counts(counts), "direct_all_to_all_v", at_once=True)


def pairwise_all_to_all_v(counts: Any = None) -> Schedule:
    """One message a rank and step. Without counts it is for any number of ranks, and bind(counts=...) gives them."""
    return _to_each(None if counts is None else checked_counts(counts), "pairwise_all_to_all_v", at_once=False)


def _to_each(counts: IntArray | None, name: str, *, at_once: bool) -> Schedule:
    def exchange(r: Axis) -> None:
        if counts is None:
            many, longest = open_table("counts", "counts"), open_table("longest", "longest")
            begins, lands = open_table("begins", "row_starts"), open_table("lands", "column_starts")
            inputs, outputs = blocks(longest(0))
        else:
            inputs, outputs = _buffers(counts)
            fixed_size(r, len(counts))
            many = table_of("many", counts)
            begins, lands = table_of("begins", _before(counts)), table_of("lands", _before(counts.T))
        copy(inputs[begins(r, r), many(r, r)], outputs[lands(r, r), many(r, r)])
        for t in (parallel if at_once else steps)(r.size - 1, "t"):
            to = r + t + 1
            r.send(
                inputs[begins(r, to), many(r, to)], to=to, into=outputs[lands(to, r), many(r, to)], when=many(r, to) > 0
            )

    return build("all_to_all_v", name, ("r",), exchange)


def two_level_all_to_all_v(counts: Any, gpus: int) -> Schedule:
    """Inside the node to the rank on the destination's rail, then along rails."""
    table = checked_counts(counts)
    nodes = _nodes(table, gpus)
    four = table.reshape(nodes, gpus, nodes, gpus)  # from (n, g) to (m, j)
    held = four.transpose(0, 3, 2, 1).reshape(nodes * gpus, nodes * gpus)  # on (n, j): for node m, from local rank g
    held_at = _before(held)

    def levels(node: Axis, gpu: Axis) -> None:
        inputs, outputs = _buffers(table)
        fixed_size(node, nodes)
        fixed_size(gpu, gpus)
        keeps = scratch(int(max(held.sum(1).max(), 1)))
        many, begins = table_of("many", table), table_of("begins", _before(table))
        place = table_of("place", held_at)
        own = node * gpus + gpu
        for m in parallel(node.size, "m"):
            for i in parallel(gpu.size, "i"):
                j = (gpu + i) % gpu.size
                to = m * gpus + j
                transfer(
                    inputs[begins(own, to), many(own, to)],
                    to={gpu: j},
                    into=keeps[place(node * gpus + j, m * gpus + gpu), many(own, to)],
                    when=many(own, to) > 0,
                )
        rail = table_of("rail", held.reshape(nodes * gpus, nodes, gpus).sum(2))
        lands = table_of("lands", _before(table.T))
        for i in parallel(node.size, "i"):
            m = (node + i) % node.size
            transfer(
                keeps[place(own, m * gpus), rail(own, m)],
                to={node: m},
                into=outputs[lands(m * gpus + gpu, node * gpus), rail(own, m)],
                when=rail(own, m) > 0,
            )

    return build("all_to_all_v", "two_level_all_to_all_v", ("node", "gpu"), levels)


def birkhoff(matrix: Any) -> list[tuple[int, IntArray]]:
    """The matrix as a sum of permutations with weights: (weight, column of each row) whose weights add up to its largest row or column sum.

    Entries of the matrix may be filled up: row i of a permutation stands for min(weight, what is left of the entry). At most n^2 - 2 n + 2 of them.

    >>> [(w, list(map(int, p))) for w, p in birkhoff([[0, 2], [2, 1]])]
    [(2, [1, 0]), (1, [0, 1])]
    """
    from scipy.sparse import csr_matrix  # noqa: PLC0415 - a third of a second that no other schedule needs
    from scipy.sparse.csgraph import maximum_bipartite_matching  # noqa: PLC0415

    left = checked_counts(matrix).copy()
    total = int(max(left.sum(0).max(), left.sum(1).max()))
    rows, columns = total - left.sum(1), total - left.sum(0)
    for i in range(len(left)):  # filled up until all rows and columns have the same sum
        for j in range(len(left)):
            more = min(rows[i], columns[j])
            left[i, j] += more
            rows[i] -= more
            columns[j] -= more
    found = []
    while total > 0:
        values = np.unique(left[left > 0])  # the largest weight that a permutation can have is one of them
        low, high = 0, len(values) - 1
        best = None
        while low <= high:
            middle = (low + high) // 2
            match = maximum_bipartite_matching(csr_matrix(left >= values[middle]), perm_type="column")
            if (match >= 0).all():
                best, low = match, middle + 1
            else:
                high = middle - 1
        if best is None:
            raise ArithmeticError("a matrix with equal sums has a permutation; this one lost it")  # Birkhoff's theorem
        weight = int(left[np.arange(len(left)), best].min())
        found.append((weight, np.asarray(best, np.int64)))
        left[np.arange(len(left)), best] -= weight
        total -= weight
    return found


def _nodes(counts: IntArray, gpus: int) -> int:
    if gpus < 1 or len(counts) % gpus:
        raise ValueError(f"{len(counts)} ranks are not a number of nodes of {gpus}")
    return len(counts) // gpus


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements of one flow that travel together: from s to d, `skip` of the flow before them, over the NICs of local rank `rail`, in round `turn` (-1: inside)."""

    s: int
    d: int
    skip: int
    count: int
    rail: int
    turn: int


def _fast_pieces(counts: IntArray, gpus: int) -> tuple[list[_Piece], int]:
    nodes = _nodes(counts, gpus)
    between = counts.reshape(nodes, gpus, nodes, gpus).sum((1, 3))
    np.fill_diagonal(between, 0)
    rounds = birkhoff(between) if between.any() else []
    pieces = [
        _Piece(int(s), int(d), 0, int(counts[s, d]), int(s) % gpus, -1)
        for s, d in zip(*np.nonzero(counts), strict=True)
        if s // gpus == d // gpus
    ]
    sent = np.zeros_like(counts)
    open_flows = {
        (n, m): [
            (s, d) for s in range(n * gpus, (n + 1) * gpus) for d in range(m * gpus, (m + 1) * gpus) if counts[s, d]
        ]
        for n in range(nodes)
        for m in range(nodes)
        if n != m
    }
    for turn, (weight, to) in enumerate(rounds):
        for n in range(nodes):
            m = int(to[n])
            amount = min(weight, int(between[n, m])) if n != m else 0
            between[n, m] -= amount if n != m else 0
            for rail in range(gpus):  # equal shares, to an element
                share = amount * (rail + 1) // gpus - amount * rail // gpus
                while share:
                    s, d = open_flows[n, m][0]
                    take = min(share, int(counts[s, d] - sent[s, d]))
                    pieces.append(_Piece(s, d, int(sent[s, d]), take, rail, turn))
                    sent[s, d] += take
                    share -= take
                    if sent[s, d] == counts[s, d]:
                        open_flows[n, m].pop(0)
    return pieces, len(rounds)


def fast_all_to_all_v(counts: Any, gpus: int) -> Schedule:
    """All-to-all over nodes of `gpus` ranks with balanced NICs: deal out, permutations between nodes, hand over.

    Raises ValueError if the ranks can't be dealt out to such nodes.
    """
    table = checked_counts(counts)
    pieces, rounds = _fast_pieces(table, gpus)
    begins, lands = _before(table), _before(table.T)
    held = np.zeros(len(table), np.int64)  # scratch taken so far on each rank
    rows: dict[tuple[str, str], list[tuple[int, ...]]] = {}

    def place(rank: int, count: int) -> int:
        held[rank] += count
        return int(held[rank]) - count

    for p in pieces:
        at = ("input", p.s, int(begins[p.s, p.d]) + p.skip)
        end = ("output", p.d, int(lands[p.d, p.s]) + p.skip)
        if p.turn < 0:
            stops = [(0, at, end)]
        else:
            leaves, enters = p.s // gpus * gpus + p.rail, p.d // gpus * gpus + p.rail
            away = at if leaves == p.s else ("scratch", leaves, place(leaves, p.count))
            there = end if enters == p.d else ("scratch", enters, place(enters, p.count))
            stops = [(0, at, away), (1 + p.turn, away, there), (1 + rounds, there, end)]
        for step, read, written in stops:
            if read != written:
                rows.setdefault((read[0], written[0]), []).append(
                    (step, read[1], written[1], read[2], written[2], p.count)
                )

    def levels(r: Axis) -> None:
        inputs, outputs = _buffers(table)
        fixed_size(r, len(table))
        regions = {"input": inputs, "output": outputs}
        if held.any():
            regions["scratch"] = scratch(int(held.max()))
        looked_up = []
        for (read, written), those in sorted(rows.items()):
            column = np.array(sorted(those), np.int64).T
            tag = f"{read[0]}{written[0]}"
            first = table_of(f"row_{tag}", np.searchsorted(column[0], np.arange(rounds + 3)))
            titles = ("src", "dst", "from", "into", "count")
            looked_up.append((regions[read], regions[written], first, [table_of(f"{t}_{tag}", c) for t, c in zip(titles, column[1:], strict=True)]))  # fmt: skip
        for t in steps(rounds + 2):
            with together():
                for there, here, first, (src, dst, begin, into, count) in looked_up:
                    for i in parallel(first(t + 1) - first(t)):
                        e = first(t) + i
                        source, target = there[begin(e), count(e)], here[into(e), count(e)]
                        transfer(source, frm={r: src(e)}, to={r: dst(e)}, into=target)

    return build("all_to_all_v", "fast_all_to_all_v", ("r",), levels)
