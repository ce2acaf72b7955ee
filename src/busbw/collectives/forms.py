"""What can be read off expressions without a value for every rank: sums of terms, their bounds, how they change from rank to rank.

By it a schedule is shown to do the same for every rank, renumbered, without looking at all ranks. Sizes and parameters must have been replaced by numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TypeAlias

from busbw.collectives.expansion import step_names
from busbw.collectives.expressions import Expr, free_names, rebuilt, substitute, var
from busbw.collectives.expressions import const as constant
from busbw.collectives.schedule import Loop, Node, Par, Pipeline, Seq, Transfer

__all__ = ["Leaf", "Range", "Terms", "bounds", "change", "leaves", "simplified", "terms", "unwrapped"]

Range: TypeAlias = tuple[int, int]
_LARGEST = 62
"""The largest exponent of 2 that fits int64."""


def bounds(expr: Expr, ranges: Mapping[str, Range]) -> Range | None:
    """(least, most) that the expression can be, for variables within `ranges`, ends included; None if that is not told by its form.

    >>> bounds((var("r") - var("t")) % 4 * 2 + 1, {"r": (0, 7), "t": (0, 3)})
    (1, 7)
    """
    if expr.op == "const":
        return (int(expr.value), int(expr.value))
    if expr.op == "var":
        return ranges.get(str(expr.value))
    if expr.op in ("eq", "lt", "le", "and", "or"):
        return (0, 1)
    of = [bounds(arg, ranges) for arg in expr.args]
    if expr.op == "mod" and of[1] is not None and of[1][0] == of[1][1] > 0:
        least, most = of[0] or (-1, -1)
        return (least, most) if least >= 0 and most < of[1][0] else (0, of[1][0] - 1)
    if any(pair is None for pair in of):
        return None
    return _joined(expr.op, [pair for pair in of if pair is not None])


def _joined(op: str, of: list[Range]) -> Range | None:
    """The bounds of an operation on arguments with these bounds."""
    if op in ("min", "max"):
        pick = min if op == "min" else max
        return pick(of[0][0], of[1][0]), pick(of[0][1], of[1][1])
    if op == "select":
        return min(of[1][0], of[2][0]), max(of[1][1], of[2][1])
    if op == "add":
        return of[0][0] + of[1][0], of[0][1] + of[1][1]
    if op == "sub":
        return of[0][0] - of[1][1], of[0][1] - of[1][0]
    if op == "mul":
        corners = [a * b for a in of[0] for b in of[1]]
        return min(corners), max(corners)
    if op == "div" and of[1][0] > 0:
        corners = [a // b for a in of[0] for b in of[1]]
        return min(corners), max(corners)
    if op == "pow" and of[0] == (2, 2) and of[1][0] >= 0 and of[1][1] <= _LARGEST:
        return 1 << of[1][0], 1 << of[1][1]
    return None


@dataclass(frozen=True, slots=True)
class Terms:
    """An expression as `constant` + the sum of factor times term; terms are variables, or what is no sum."""

    of: dict[Expr, int]
    constant: int

    def named(self, name: str) -> list[Expr]:
        """The terms that hold a variable."""
        return [term for term in self.of if name in free_names(term)]

    def bounds(self, ranges: Mapping[str, Range]) -> Range | None:
        """(least, most) of the sum."""
        least = most = self.constant
        for term, factor in self.of.items():
            pair = bounds(term, ranges)
            if pair is None:
                return None
            least += min(factor * pair[0], factor * pair[1])
            most += max(factor * pair[0], factor * pair[1])
        return least, most

    def without(self, *gone: Expr) -> Terms:
        """The same without these terms."""
        return Terms({term: factor for term, factor in self.of.items() if term not in gone}, self.constant)

    def expr(self) -> Expr:
        """The sum as an expression."""
        found = constant(self.constant)
        for term, factor in self.of.items():
            found = found + term * factor
        return found


def terms(expr: Expr, ranges: Mapping[str, Range]) -> Terms:
    """The expression as a sum of terms; a remainder that changes nothing, for variables within `ranges`, is left out.

    >>> found = terms((var("g") % 8 + 3) * 16 + (var("r") - 1) % 16, {"g": (0, 7), "r": (0, 15)})
    >>> {str(term): factor for term, factor in found.of.items()}, found.constant
    ({'g': 16, '(15 + r) % 16': 1}, 48)
    """
    if expr.op == "const":
        return Terms({}, int(expr.value))
    if expr.op in ("add", "sub"):
        left, right = terms(expr.args[0], ranges), terms(expr.args[1], ranges)
        return _added(left, right, 1 if expr.op == "add" else -1)
    if expr.op == "mul":
        for one, other in (expr.args, expr.args[::-1]):
            factor = terms(other, ranges)
            if not factor.of:
                return _added(Terms({}, 0), terms(one, ranges), factor.constant)
    if expr.op == "mod":
        modulus, inner = terms(expr.args[1], ranges), terms(expr.args[0], ranges)
        if not modulus.of and modulus.constant > 0:
            m = modulus.constant
            within = inner.bounds(ranges)
            if within is not None and within[0] >= 0 and within[1] < m:
                return inner
            left_over = Terms({term: f for term, f in inner.of.items() if f % m}, inner.constant % m)
            if not left_over.of:
                return left_over
            return Terms({left_over.expr() % m: 1}, 0)
    return Terms({expr: 1}, 0)


def _added(left: Terms, right: Terms, factor: int) -> Terms:
    found = dict(left.of)
    for term, many in right.of.items():
        found[term] = found.get(term, 0) + many * factor
    return Terms({term: many for term, many in found.items() if many}, left.constant + right.constant * factor)


def simplified(expr: Expr, ranges: Mapping[str, Range]) -> Expr:
    """The expression without conditions and remainders that are decided for variables within `ranges`.

    >>> r = var("r")
    >>> print(simplified((r < 8) & (r % 8 < 3), {"r": (0, 7)}))
    r < 3
    """
    if not expr.args or expr.op == "table":
        return expr
    args = tuple(simplified(arg, ranges) for arg in expr.args)
    of = [bounds(arg, ranges) for arg in args]
    first, second = of[0], of[-1]
    if expr.op in ("lt", "le", "eq") and first is not None and second is not None:
        if first[1] < second[0] or (expr.op == "le" and first[1] <= second[0]):
            return constant(expr.op != "eq")
        if second[1] < first[0] or (expr.op == "lt" and second[1] <= first[0]):
            return constant(0)
    if expr.op == "and" and (0, 0) in of:
        return constant(0)
    if expr.op == "mod" and first is not None and second is not None and first[0] >= 0 and first[1] < second[0]:
        return args[0]
    if expr.op == "unfold" and first is not None and first[0] >= 0 and args[1].op == "const":
        ranks = int(args[1].value)
        if ranks > 0 and ranks & (ranks - 1) == 0:
            return args[0]
    return rebuilt(expr.op, args, expr.value)


def change(expr: Expr, axis: str, period: int) -> int | None:
    """K where the expression grows by k times `period` whenever the variable `axis` grows by `period`; None if that is not told by its form.

    >>> r, t = var("r"), var("t")
    >>> change(r + (1 - 2 * (r % 2)) * t, "r", 2), change(r * t, "r", 2)
    (1, None)
    """
    if axis not in free_names(expr):
        return 0
    if expr.op == "var":
        return 1
    by = [change(arg, axis, period) for arg in expr.args]
    if all(k == 0 for k in by):
        return 0
    if any(k is None for k in by):
        return None
    known = [k for k in by if k is not None]
    if expr.op in ("add", "sub"):
        return known[0] + known[1] if expr.op == "add" else known[0] - known[1]
    if expr.op == "mul":
        for one, k in ((expr.args[0], known[1]), (expr.args[1], known[0])):
            if one.op == "const":
                return int(one.value) * k
    if expr.op == "select" and known[0] == 0 and known[1] == known[2]:
        return known[1]
    if expr.op == "mod" and expr.args[1].op == "const":
        modulus = int(expr.args[1].value)
        return 0 if modulus > 0 and known[0] * period % modulus == 0 else None
    return None


def unwrapped(expr: Expr, modulus: int) -> Expr:
    """The expression without remainders that change nothing where only its remainder by `modulus` counts.

    >>> print(unwrapped((var("r") + 1) % 16 - var("t") % 4, 8))
    r + 1 - t % 4
    """
    if expr.op == "mod" and expr.args[1].op == "const" and int(expr.args[1].value) % modulus == 0:
        return unwrapped(expr.args[0], modulus) if expr.args[1].value else expr
    if expr.op in ("add", "sub"):
        return rebuilt(expr.op, tuple(unwrapped(arg, modulus) for arg in expr.args), 0)
    return expr


@dataclass(frozen=True, slots=True)
class Leaf:
    """A transfer with sizes as numbers, and the loops around it.

    `ranges`: of axes and loop variables. `whole`: loops in parallel that take every value below their count, by name; the number of steps inside depends on none of them.
    """

    transfer: Transfer
    ranges: dict[str, Range]
    whole: dict[str, int]

    @property
    def idle(self) -> bool:
        """Whether no rank makes it."""
        return self.transfer.guard == constant(0)


@dataclass(frozen=True, slots=True)
class _Around:
    ranges: dict[str, Range]
    whole: dict[str, int]


def leaves(body: Node, numbers: Mapping[Expr, Expr], axes: Mapping[str, int]) -> list[Leaf] | None:
    """Every transfer of a tree, in its order, with what is around it; None if the count of a loop has no bounds by its form.

    The guard of those that no rank makes is the constant 0, where that is told by its form.
    """
    return _leaves(body, numbers, _Around({axis: (0, extent - 1) for axis, extent in axes.items()}, {}))


def _leaves(node: Node, numbers: Mapping[Expr, Expr], around: _Around) -> list[Leaf] | None:
    if isinstance(node, Transfer):
        return [Leaf(_with(node, numbers, around.ranges), around.ranges, around.whole)]
    if isinstance(node, Seq | Par):
        found: list[Leaf] = []
        for child in node.children:
            inner = _leaves(child, numbers, around)
            if inner is None:
                return None
            found += inner
        return found
    count = substitute(node.count if isinstance(node, Loop) else constant(1), numbers)
    if not isinstance(node, Loop):
        sliced = free_names(node.parts if isinstance(node, Pipeline) else node.count)
        rest = {name: n for name, n in around.whole.items() if name not in sliced}
        return _leaves(node.body, numbers, replace(around, whole=rest))
    if count.op == "const" and int(count.value) == 1:
        return _leaves(node.body, {**numbers, var(node.var): constant(0)}, around)
    many = bounds(count, around.ranges)
    if many is None:
        return None
    whole = dict(around.whole)
    if node.parallel and count.op == "const" and node.var not in step_names(node.body):
        whole[node.var] = int(count.value)
    ranges = {**around.ranges, node.var: (0, max(many[1], 1) - 1)}
    return _leaves(node.body, numbers, replace(around, ranges=ranges, whole=whole))


def _with(t: Transfer, numbers: Mapping[Expr, Expr], ranges: Mapping[str, Range]) -> Transfer:
    def new(expr: Expr) -> Expr:
        return simplified(substitute(expr, numbers), ranges)

    source, target = (replace(p, index=new(p.index), count=new(p.count), stride=new(p.stride)) for p in (t.source, t.target))  # fmt: skip
    return replace(
        t,
        src=tuple(map(new, t.src)),
        dst=tuple(map(new, t.dst)),
        source=source,
        target=target,
        guard=new(t.guard),
    )
