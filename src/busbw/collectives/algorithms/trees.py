"""Trees: k-nomial, binary, and the pair of binary trees that keeps every port busy.

k-nomial broadcast: step t: the k^t ranks that have the data pass it to k - 1 others each. ceil(log_k p) steps, T = ceil(log_k p) (alpha + (k - 1) n beta) on one port.
Binary tree: rank x (counted from the root) passes to 2 x + 1 and 2 x + 2. floor(log2 p) steps, each a message to two children; pipelined in m slices
T = (depth + m - 1)(alpha + 2 n/m beta). all_reduce: up, then down.
Double binary tree (all_reduce): interior ranks of one tree are leaves of the other, half the vector each. 2 ceil(log2 p) + m - 1 pipeline steps for m slices, in each of which a rank
moves up to 4 pieces of n/(2 m) each way: T <= (2 ceil(log2 p) + m - 1)(alpha + 2 n/m beta), 2 n beta for many slices.

Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009). The in-order tree (parent of x = 2^l (2 i + 1) is
2^(l+1) (i | 1), or 2^(l+1) i where that is no rank), mirrored for even and shifted for odd p, is NCCL's (src/graph/trees.cc, ncclGetBtree, ncclGetDtree).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from busbw.collectives.builder import (
    Axis,
    build,
    chunks,
    parallel,
    parameter,
    pipeline,
    steps,
    together,
    transfer,
)
from busbw.collectives.expressions import Expr, ceil_log, floor_log, param, power, select
from busbw.collectives.passes import compose, reverse
from busbw.collectives.schedule import Pipeline, Schedule, Seq

__all__ = [
    "binary_tree_all_reduce", "binary_tree_broadcast", "binary_tree_reduce", "double_binary_tree_all_reduce", "knomial_all_reduce", "knomial_broadcast",
    "knomial_reduce",
]  # fmt: skip


def knomial_broadcast(k: int = 2) -> Schedule:
    """Broadcast down a k-nomial tree; binomial for k = 2."""
    if k < 2:
        raise ValueError(f"a k-nomial tree has k >= 2, not {k}")

    def tree(r: Axis) -> None:
        root = parameter("root", 0)
        data = chunks(1)
        for t in steps(ceil_log(k, r.size)):
            have = power(k, t)
            for x in parallel(have, "x"):
                for j in parallel(k - 1, "j"):
                    child = x + (j + 1) * have
                    transfer(data[0], frm={r: root + x}, to={r: root + child}, when=child < r.size)

    return build("broadcast", "binomial_broadcast" if k == 2 else f"{k}-nomial_broadcast", ("r",), tree)


def knomial_reduce(k: int = 2) -> Schedule:
    """Reduce up a k-nomial tree."""
    return reverse(knomial_broadcast(k))


def knomial_all_reduce(k: int = 2) -> Schedule:
    """All-reduce: up a k-nomial tree, then down."""
    return compose(knomial_reduce(k), knomial_broadcast(k))


def binary_tree_broadcast(parts: int = 1) -> Schedule:
    """Broadcast down a binary tree in `parts` slices (a default; bind(parts=...))."""

    def tree(r: Axis) -> None:
        root = parameter("root", 0)
        data = chunks(1)
        with pipeline(parameter("parts", parts)):
            for level in steps(floor_log(2, r.size), "level"):
                for i in parallel(power(2, level)):
                    x = power(2, level) - 1 + i
                    for side in parallel(2, "side"):
                        child = 2 * x + 1 + side
                        transfer(data[0], frm={r: root + x}, to={r: root + child}, when=child < r.size)

    return build("broadcast", "binary_tree_broadcast", ("r",), tree)


def binary_tree_reduce(parts: int = 1) -> Schedule:
    """Reduce up a binary tree."""
    return reverse(binary_tree_broadcast(parts))


def binary_tree_all_reduce(parts: int = 1) -> Schedule:
    """All-reduce: up a binary tree, then down, pipelined."""
    return _joined(binary_tree_reduce, binary_tree_broadcast, parts, "binary_tree_all_reduce")


def _joined(up: Callable[[int], Schedule], down: Callable[[int], Schedule], parts: int, name: str) -> Schedule:
    """One pipeline through both, instead of one after the other."""
    both = compose(up(parts), down(parts), name)
    if not isinstance(both.body, Seq):
        raise TypeError("compose makes a Seq")
    bodies = tuple(child.body for child in both.body.children if isinstance(child, Pipeline))
    return replace(both, body=Pipeline(param("parts"), Seq(bodies)))


def double_binary_tree_all_reduce(parts: int = 1) -> Schedule:
    """All-reduce over two complementary binary trees, in `parts` slices (a default; bind(parts=...))."""

    def trees(r: Axis) -> None:
        data = chunks(2)
        levels = ceil_log(2, r.size)

        def places(tree: int, x: Expr) -> Expr:
            if tree == 0:
                return x
            return select(r.size % 2, x + 1, r.size - 1 - x)

        def level(at: Expr, *, up: bool) -> None:
            """All edges between children with lowest binary digit 2^at and their parents, in both trees."""
            with together():
                for tree in (0, 1):
                    bit = power(2, at)
                    for i in parallel((r.size + bit - 1) // (2 * bit)):
                        child = bit * (2 * i + 1)
                        above = 2 * bit * (i - i % 2 + 1)
                        parent = select(above < r.size, above, 2 * bit * i)
                        ends = (places(tree, child), places(tree, parent))
                        frm, to = ends if up else ends[::-1]
                        transfer(data[tree], frm={r: frm}, to={r: to}, reduce=up, channel=tree)

        with pipeline(parameter("parts", parts)):
            for t in steps(levels):
                level(t, up=True)
            for t in steps(levels):
                level(levels - 1 - t, up=False)

    return build("all_reduce", "double_binary_tree_all_reduce", ("r",), trees)
