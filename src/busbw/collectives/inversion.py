"""Who sends to me? Rank expressions solved for the rank that a transfer speaks of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from busbw.collectives.expressions import Expr, fold_rank, free_names, substitute, unfold_rank, var

__all__ = ["solve"]


def solve(
    coordinates: Mapping[str, Expr], unknowns: Sequence[str], targets: Mapping[str, Expr]
) -> dict[str, Expr] | None:
    """The unknown axis coordinates for which `coordinates` equal `targets`, modulo the sizes of the axes; None if this can't be solved by form.

    What comes back is the only candidate: the caller must check that it is a solution, because conditions without unknowns are not looked at.
    Solved are sums, differences and xor with one unknown on one side, and folded ranks.

    >>> from busbw.collectives.expressions import const
    >>> r, t = var("r"), var("t")
    >>> print(solve({"r": r + t + 1}, ["r"], {"r": const(5)})["r"])
    4 - t
    """
    found: dict[str, Expr] = {}
    waiting = dict(coordinates)
    while len(found) < len(unknowns):
        for axis, expr in waiting.items():
            known = substitute(expr, {var(name): value for name, value in found.items()})
            open_names = free_names(known) & set(unknowns)
            if len(open_names) != 1:
                continue
            (name,) = open_names
            value = _inverse(known, targets[axis], name, axis)
            if value is None:
                return None
            found[name] = value
            del waiting[axis]
            break
        else:
            return None
    return found


def _inverse(expr: Expr, target: Expr, name: str, axis: str) -> Expr | None:
    """The value of variable `name` for which expr equals target modulo the size of the axis."""
    if expr.op == "var":
        return target
    holding = [place for place, arg in enumerate(expr.args) if name in free_names(arg)]
    if len(holding) != 1:
        return None
    place = holding[0]
    inner = expr.args[place]
    other = expr.args[1 - place] if len(expr.args) == 2 else None
    if expr.op == "add" and other is not None:
        return _inverse(inner, target - other, name, axis)
    if expr.op == "sub" and other is not None:
        return _inverse(inner, target + other if place == 0 else other - target, name, axis)
    if expr.op == "xor" and other is not None:  # of coordinates, not of what has been wrapped
        return _inverse(inner, target ^ other, name, axis) if inner.op == "var" else None
    if expr.op == "mod" and place == 0 and other == Expr("size", (), axis):
        return _inverse(inner, target, name, axis)
    if expr.op == "unfold" and place == 0 and other is not None:
        return _inverse(inner, fold_rank(target, other), name, axis) if inner.op in ("var", "xor") else None
    if expr.op == "fold" and place == 0 and other is not None:
        return _inverse(inner, unfold_rank(target, other), name, axis) if inner.op == "var" else None
    return None
