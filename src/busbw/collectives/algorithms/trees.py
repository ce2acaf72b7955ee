"""Trees: k-nomial, binary, and the pair of binary trees that keeps every port busy.

k-nomial broadcast: step t: the k^t ranks that have the data pass it to k - 1 others each. ceil(log_k p) steps, T = ceil(log_k p) (alpha + (k - 1) n beta) on one port.
Binary tree: rank x (counted from the root) passes to 2 x + 1 and 2 x + 2. floor(log2 p) steps, each a message to two children; pipelined in m slices
T = (depth + m - 1)(alpha + 2 n/m beta). all_reduce: up, then down.
Double binary tree (all_reduce): interior ranks of one tree are leaves of the other, half the vector each. 2 ceil(log2 p) + m - 1 pipeline steps for m slices, in each of which a rank
moves up to 4 pieces of n/(2 m) each way: T <= (2 ceil(log2 p) + m - 1)(alpha + 2 n/m beta), 2 n beta for many slices.
Double binary tree (broadcast, reduce): the same two trees over all ranks but the root. ceil(log2 (p - 1)) + 1 steps; interior ranks pass on half the vector to two:
T = (ceil(log2 (p - 1)) + m)(alpha + n/m beta), n beta for many slices, half of what one binary tree takes.

Source: Sanders, Speck, Traeff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", Parallel Computing 35 (2009). The in-order tree (parent of x = 2^l (2 i + 1) is
2^(l+1) (i | 1), or 2^(l+1) i where that is no rank), mirrored for even and shifted for odd p, is NCCL's (src/graph/trees.cc, ncclGetBtree, ncclGetDtree).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from busbw.collectives.expressions import Expr, as_expr, ceil_log, floor_log, maximum, param, power, select
from busbw.collectives.passes import compose, reverse
from busbw.collectives.schedule import Pipeline, Schedule, Seq

__all__ = [
    "binary_tree_all_reduce", "binary_tree_broadcast", "binary_tree_reduce", "double_binary_tree_all_reduce", "double_binary_tree_broadcast",
    "double_binary_tree_reduce", "knomial_all_reduce", "knomial_broadcast", "knomial_reduce",
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


def _levels(ranks: Expr, at: Expr) -> Iterator[tuple[Expr, Expr]]:
    """(child, parent) of all edges between ranks of an in-order tree whose lowest binary digit is 2^at and their parents; 0 is the top."""
    bit = power(2, at)
    for i in parallel((ranks + bit - 1) // (2 * bit)):
        above = 2 * bit * (i - i % 2 + 1)
        yield bit * (2 * i + 1), select(above < ranks, above, 2 * bit * i)


def _place(tree: int, x: Expr, ranks: Expr) -> Expr:
    """The rank, modulo the ranks, at a place of the first tree, or of the second, in which the first one's interior ranks are leaves."""
    return x if tree == 0 else select(ranks % 2, x + 1, ranks - 1 - x)


def double_binary_tree_broadcast(parts: int = 1) -> Schedule:
    """Broadcast down two complementary binary trees over all ranks but the root, which feeds both, in `parts` slices (a default; bind(parts=...))."""

    def trees(r: Axis) -> None:
        root = parameter("root", 0)
        data = chunks(2)
        others = maximum(r.size - 1, 1)
        levels = ceil_log(2, others)

        def rank(tree: int, x: Expr) -> Expr:
            return root + 1 + _place(tree, x, others) % others

        with pipeline(parameter("parts", parts)):
            for _ in steps(r.size > 1, "top"):
                with together():
                    for tree in (0, 1):
                        transfer(data[tree], frm={r: root}, to={r: rank(tree, as_expr(0))}, channel=tree)
            for t in steps(levels):
                with together():
                    for tree in (0, 1):
                        for child, parent in _levels(others, levels - 1 - t):
                            transfer(data[tree], frm={r: rank(tree, parent)}, to={r: rank(tree, child)}, channel=tree)

    return build("broadcast", "double_binary_tree_broadcast", ("r",), trees)


def double_binary_tree_reduce(parts: int = 1) -> Schedule:
    """Reduce up two complementary binary trees, half the vector each."""
    return reverse(double_binary_tree_broadcast(parts))


def double_binary_tree_all_reduce(parts: int = 1) -> Schedule:
    """All-reduce over two complementary binary trees, in `parts` slices (a default; bind(parts=...))."""

    def trees(r: Axis) -> None:
        data = chunks(2)
        levels = ceil_log(2, r.size)

        def level(at: Expr, *, up: bool) -> None:
            with together():
                for tree in (0, 1):
                    for child, parent in _levels(r.size, at):
                        ends = (_place(tree, child, r.size), _place(tree, parent, r.size))
                        frm, to = ends if up else ends[::-1]
                        transfer(data[tree], frm={r: frm}, to={r: to}, reduce=up, channel=tree)

        with pipeline(parameter("parts", parts)):
            for t in steps(levels):
                level(t, up=True)
            for t in steps(levels):
                level(levels - 1 - t, up=False)

    return build("all_reduce", "double_binary_tree_all_reduce", ("r",), trees)
