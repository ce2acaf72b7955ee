"""Several rings at once, each with a share of the vector: every port of a rank is busy.

k rings: p - 1 steps for all_gather and reduce_scatter, T = (p - 1) alpha + n (p - 1)/(p k) beta with k ports a rank; all_reduce twice that. Worth it where the rings use
different links: on a fabric in which they share one, k rings are one ring with k channels.

A ring is the order in which it visits the ranks. `torus_rings` are the two edge-disjoint Hamiltonian cycles of a k x k torus.

Source: Bae, Bose, "Edge disjoint Hamiltonian cycles in k-ary n-cubes and hypercubes", IEEE Trans. Computers 52 (2003), Gray codes of the Lee distance.
"""

from __future__ import annotations

from collections.abc import Sequence

from busbw.collectives.builder import Axis, build, chunks, fixed_size, parallel, steps, table_of, transfer
from busbw.collectives.passes import compose, reverse
from busbw.collectives.schedule import Schedule

__all__ = ["multi_ring_all_gather", "multi_ring_all_reduce", "multi_ring_reduce_scatter", "torus_rings"]


def torus_rings(k: int) -> list[list[int]]:
    """Two Hamiltonian cycles of a k x k torus (rank = row k + column) that share no link, k >= 3.

    The first walks a row but for one link and steps down; the second is the first with rows and columns exchanged.

    >>> torus_rings(3)[0]
    [0, 1, 2, 5, 3, 4, 7, 8, 6]
    """
    if k < 3:
        raise ValueError(f"a torus of {k} x {k} has no two such cycles; k >= 3")
    walk = [(n // k, (n % k - n // k) % k) for n in range(k * k)]
    return [[a * k + b for a, b in walk], [b * k + a for a, b in walk]]


def multi_ring_all_gather(orders: Sequence[Sequence[int]], *, backwards: bool = False) -> Schedule:
    """All-gather over rings that visit the ranks in these orders, ring i on channel i.

    Raises ValueError if an order is no permutation of the ranks.
    """
    ranks = len(orders[0]) if orders else 0
    if not orders or any(sorted(order) != list(range(ranks)) for order in orders):
        raise ValueError("each ring visits every rank 0 .. p - 1 once")

    def rings(r: Axis) -> None:
        k = len(orders)
        data = chunks(r.size * k)
        fixed_size(r, ranks)
        visited = table_of("visited", orders)  # visited[i, x]: the rank at place x of ring i
        for i in parallel(k):
            for t in steps(r.size - 1):
                # r is a place on the ring here; place r passes on what came from t places before it
                there = r - 1 if backwards else r + 1
                origin = visited(i, r + t if backwards else r - t)
                transfer(data[origin * k + i], frm={r: visited(i, r)}, to={r: visited(i, there)}, channel=i)

    return build("all_gather", "multi_ring_all_gather", ("r",), rings)


def multi_ring_reduce_scatter(orders: Sequence[Sequence[int]]) -> Schedule:
    """Reduce-scatter over these rings, each in its direction."""
    return reverse(multi_ring_all_gather(orders, backwards=True))


def multi_ring_all_reduce(orders: Sequence[Sequence[int]]) -> Schedule:
    """All-reduce over these rings: reduce-scatter, then all-gather."""
    return compose(multi_ring_reduce_scatter(orders), multi_ring_all_gather(orders), "multi_ring_all_reduce")
