"""Renumberings of the ranks under which a schedule stays the same: rotations along the axes, xor, reflections.

That one fits is shown by form (every rank expression is r + f(steps), every chunk index k r + f(steps)), on all ranks, or on a sample of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import numpy as np

from busbw.collectives.expansion import REGIONS, Moves, Walk, sent_by
from busbw.collectives.expressions import (
    Environment,
    Expr,
    IntArray,
    affine,
    evaluate,
    free_names,
    substitute,
    var,
)
from busbw.collectives.forms import Leaf, Range, Terms, bounds, change, leaves, terms, unwrapped
from busbw.collectives.schedule import BoundSchedule, Location, Transfer, transfers_of
from busbw.collectives.stages import constants

__all__ = ["MOST_MOVES", "Group", "Labels", "fitting_labels", "groups"]

_SAMPLE = 24  # ranks on which a symmetry is tried where all are too many; a guess at what finds a rank that differs
_ROWS = 6_000_000  # messages of all ranks up to which a symmetry is checked on all of them
MOST_MOVES = 4_000_000
"""Moves of one rank that are executed. A guess at what fits memory."""


@dataclass(frozen=True, slots=True)
class Group:
    """Renumberings of the ranks; element g takes rank 0 to g.

    Rotation and xor: rank x to x + g, digit by digit (`radix`, last counts fastest). Reflection: even g take x to g + x, odd g to g - x.
    """

    name: str
    radix: tuple[int, ...]

    @property
    def order(self) -> int:
        """Number of elements, which is that of the ranks."""
        return int(np.prod(self.radix, dtype=np.int64))

    def act(self, g: IntArray, x: IntArray) -> IntArray:
        """Where g takes rank x."""
        if self.name == "reflection":
            return np.where(g % 2 == 0, g + x, g - x) % self.order
        if all(n == 2 for n in self.radix):
            return np.bitwise_xor(g, x)
        if len(self.radix) == 1:
            return (g + x) % self.radix[0]
        digits = zip(np.unravel_index(g, self.radix), np.unravel_index(x, self.radix), self.radix, strict=True)
        return np.ravel_multi_index([(a + b) % n for a, b, n in digits], self.radix).astype(np.int64)

    def inverse(self, g: IntArray) -> IntArray:
        """What undoes g."""
        if self.name == "reflection":
            return np.where(g % 2 == 0, -g, g) % self.order
        if all(n == 2 for n in self.radix):
            return g
        if len(self.radix) == 1:
            return -g % self.radix[0]
        return np.ravel_multi_index(
            [-a % n for a, n in zip(np.unravel_index(g, self.radix), self.radix, strict=True)], self.radix
        ).astype(np.int64)


def groups(bound: BoundSchedule) -> Iterator[Group]:
    """Groups that may fit a schedule of these sizes, the likeliest first."""
    extents = tuple(extent for _, extent in bound.sizes)
    yield Group("rotation", extents)
    ranks = bound.ranks
    if ranks > 2 and ranks & (ranks - 1) == 0:
        yield Group("xor", (2,) * (ranks.bit_length() - 1))
        yield Group("reflection", (ranks,))


@dataclass(frozen=True, slots=True)
class Labels:
    """How a renumbering acts on chunk indices of each region: on the rank they belong to, or not at all (0).

    `each` chunks a rank, rank after rank; or, negative, that many times one chunk of every rank. `order`: of the axes by which the owners of `data` are
    counted, slowest first, where it is not that of the ranks.
    """

    each: tuple[int, ...]
    order: tuple[int, ...] = ()

    def act(self, group: Group, region: IntArray, g: IntArray, index: IntArray) -> IntArray:
        """Where g takes these chunks."""
        found = index.copy()
        for code, each in enumerate(self.each):
            if not each:
                continue
            here = np.flatnonzero(region == code)
            moving = np.broadcast_to(g, index.shape)[here]
            if each > 0:
                owner, inside = np.divmod(index[here], each)
                found[here] = self._owner(group, code, moving, owner) * each + inside
            else:
                layer, owner = np.divmod(index[here], group.order)
                found[here] = layer * group.order + group.act(moving, owner)
        return found

    def _owner(self, group: Group, code: int, g: IntArray, owner: IntArray) -> IntArray:
        if not self.order or code:
            return group.act(g, owner)
        radix = [group.radix[axis] for axis in self.order]
        steps = [np.unravel_index(g, group.radix)[axis] for axis in self.order]
        digits = [(a + b) % n for a, b, n in zip(np.unravel_index(owner, radix), steps, radix, strict=True)]
        return np.ravel_multi_index(digits, radix).astype(np.int64)


def fitting_labels(bound: BoundSchedule, group: Group, *, by_form: bool) -> tuple[Labels, str] | None:
    """The action on chunks for which every rank does what rank 0 does, and how that was shown: by form only, or by looking at ranks."""
    by = _reads_by_form(bound, group) if by_form else _fits
    for labels in _possible_labels(bound, group):
        symmetry = by(bound, group, labels)
        if symmetry:
            return labels, symmetry
    return None


def _possible_labels(bound: BoundSchedule, group: Group) -> Iterator[Labels]:
    each = []
    for region in REGIONS:
        extent = bound.extent(region)
        shared = bool(bound.ranks) and extent % bound.ranks == 0
        many = extent // bound.ranks
        each.append(([many, 0] if many < 2 else [many, 0, -many]) if shared and extent else [0])
    if bound.schedule.kind in ("all_gather", "reduce_scatter"):
        each[0] = each[0][:1]
    if bound.schedule.kind == "all_to_all":
        each[1], each[2] = each[1][:1], each[2][:1]
    orders: list[tuple[int, ...]] = [()]
    if bound.schedule.kind == "all_reduce" and group.name == "rotation" and len(group.radix) > 1:
        orders += list(permutations(range(len(group.radix))))[1:]
    for data in each[0]:
        for order in orders if data > 0 else orders[:1]:
            for given in each[1]:
                for scratch in each[3]:
                    yield Labels((data, given, each[2][0] if given else 0, scratch), order)


def _reads_by_form(bound: BoundSchedule, group: Group) -> Callable[[BoundSchedule, Group, Labels], str]:
    """How labels are tried by form; the tree is read once."""
    read = leaves(bound.schedule.body, constants(bound), dict(bound.sizes))
    found = None if read is None else [leaf for leaf in read if not leaf.idle]
    alone = group.name == "rotation" and len(bound.sizes) == 1

    def reads(bound: BoundSchedule, group: Group, labels: Labels) -> str:
        if alone and all(_by_form(bound, labels, t) for t in transfers_of(bound.schedule.body)):
            return "by form"
        if found is None:
            return ""
        if group.name == "rotation":
            return "by form" if all(_turns(bound, labels, leaf) for leaf in found) else ""
        return "by form" if _swaps_by_form(bound, group, labels, found) else ""

    return reads


def _fits(bound: BoundSchedule, group: Group, labels: Labels) -> str:
    """How it was shown that renumbering with these labels changes nothing; "" if it does."""
    check = _SymmetryCheck(bound, group, labels)
    check.visit(bound.schedule.body, bound.environment, 1, np.zeros(1, np.int64))
    if not check.fits:
        return _fits_in_any_order(bound, group, labels, check)
    return "on all ranks" if check.fewest == bound.ranks else f"on {check.fewest} ranks"


def _fits_in_any_order(bound: BoundSchedule, group: Group, labels: Labels, check: _SymmetryCheck) -> str:
    """The same where ranks do the same moves of a step in different turns of its loops: compares all that a rank sends."""
    own = sent_by(bound, 0, most=MOST_MOVES)
    few = check.everyone if len(own) * bound.ranks <= _ROWS // 8 else check.few
    key = _keys(own, own.dst, own.src_index, own.dst_index)
    for rank in few.tolist()[1:]:
        theirs = sent_by(bound, rank, most=MOST_MOVES)
        if len(theirs) != len(own):
            return ""
        back = group.inverse(np.full(len(own), rank, np.int64))
        read = labels.act(group, theirs.src_region, back, theirs.src_index)
        written = labels.act(group, theirs.dst_region, back, theirs.dst_index)
        if not np.array_equal(_keys(theirs, group.act(back, theirs.dst), read, written), key):
            return ""
    return "on all ranks" if len(few) == bound.ranks else f"on {len(few)} ranks"


def _keys(moves: Moves, dst: IntArray, read: IntArray, written: IntArray) -> IntArray:
    """Moves as rows that can be compared, sorted, (n, 5)."""
    code = (moves.src_region * 4 + moves.dst_region) * 4 + moves.action
    rows = np.stack([moves.step, dst, read, written, code], axis=1)
    return rows[np.lexsort(rows.T[::-1])]


class _SymmetryCheck(Walk):
    """Compares what each transfer does for rank x with what it does for rank 0, renumbered."""

    def __init__(self, bound: BoundSchedule, group: Group, labels: Labels, ranks: int | None = None) -> None:
        super().__init__(bound, MOST_MOVES)
        self.group, self.labels = group, labels
        self.fits = True
        self.fewest = bound.ranks
        rng = np.random.default_rng(bound.ranks)
        self.everyone = np.arange(bound.ranks, dtype=np.int64)
        some = np.concatenate([[0, 1, bound.ranks - 1], rng.integers(0, bound.ranks, _SAMPLE)])
        self.few = np.unique(some % bound.ranks)
        if ranks is not None:
            self.everyone = self.few = np.arange(ranks, dtype=np.int64)

    def transfer(self, node: Transfer, env: Environment, batch: int, start: IntArray) -> None:
        del start
        axes = self.bound.schedule.axes
        if not self.fits or set(node.domain(axes)) != set(axes):
            self.fits = False
            return
        ranks = self.everyone if batch * self.bound.ranks <= _ROWS else self.few
        self.fewest = min(self.fewest, len(ranks))
        width = max(1, _ROWS // (8 * max(len(ranks), 1)))
        for first in range(0, batch, width):
            some = {n: np.asarray(x)[first : first + width, None] for n, x in env.variables.items()}
            self.fits = self.fits and self._same(node, env, some, ranks, min(width, batch - first))

    def _same(self, node: Transfer, env: Environment, loops: dict[str, IntArray], ranks: IntArray, items: int) -> bool:
        coordinates = {axis: x[None, :] for axis, x in self.bound.coordinates(ranks).items()}
        here = Environment({**loops, **coordinates}, env.sizes, env.params, env.tables)
        extents = [extent for _, extent in self.bound.sizes]
        shape = (items, len(ranks))

        def value(expr: Expr) -> IntArray:
            return np.broadcast_to(np.asarray(evaluate(expr, here), np.int64), shape)

        guard, count, stride = value(node.guard) != 0, value(node.source.count), value(node.source.stride)
        if any((x != x[:, :1]).any() for x in (guard, count, stride)):
            return False
        used = np.flatnonzero(guard[:, 0] & (count[:, 0] > 0))
        if not len(used):
            return True
        for coordinate in (node.src, node.dst):
            flat = np.ravel_multi_index([value(e) % n for e, n in zip(coordinate, extents, strict=True)], extents)[used]
            if (flat != self.group.act(ranks[None, :], flat[:, :1])).any():
                return False
        return all(self._same_chunks(value(p.index)[used], p, count[used, 0], stride[used, 0], ranks) for p in (node.source, node.target))  # fmt: skip

    def _same_chunks(self, index: IntArray, place: Location, many: IntArray, stride: IntArray, ranks: IntArray) -> bool:
        extent, code = self.bound.extent(place.region), REGIONS.index(place.region)
        if extent == 0:
            return False
        index = index % extent
        first, each = np.broadcast_to(index[:, :1], index.shape), self.labels.each[code]
        if (many == 1).all() or not each or (self.group.name == "rotation" and len(self.bound.sizes) == 1):
            moving = np.broadcast_to(ranks[None, :], index.shape)
            wanted = self.labels.act(self.group, np.full(index.size, code), moving.ravel(), first.ravel()).reshape(
                index.shape
            )
        elif self.group.name == "xor" and each == 1 and (stride == 1).all():
            low = many[:, None] - 1  # whole subcubes go to whole subcubes
            if (many[:, None] & low).any() or (first & low).any():
                return False
            wanted = first ^ (ranks[None, :] & ~low)
        else:
            return False
        return bool((index == wanted).all())


def _by_form(bound: BoundSchedule, labels: Labels, transfer: Transfer) -> bool:
    """Whether the transfer reads, for every rank r: r to r + f, chunks each r + f, under no condition on r."""
    (axis,) = bound.schedule.axes
    sizes = constants(bound)
    if axis in free_names(transfer.guard) | free_names(transfer.source.count) | free_names(transfer.source.stride):
        return False
    for expr in (*transfer.src, *transfer.dst):
        form = affine(substitute(expr, sizes), axis)
        if form is None or form[1].op != "const" or int(form[1].value) % bound.ranks != 1 % bound.ranks:
            return False
    for place in (transfer.source, transfer.target):
        form = affine(substitute(place.index, sizes), axis)
        extent = bound.extent(place.region)
        each = labels.each[REGIONS.index(place.region)]
        if form is None or form[1].op != "const" or (int(form[1].value) - each) % max(extent, 1):
            return False
    return True


_PIECE = "piece of a message"
"""The variable of the chunks of a message; no loop has this name, for it has blanks."""


def _swaps_by_form(bound: BoundSchedule, group: Group, labels: Labels, found: list[Leaf]) -> bool:
    """Whether all even ranks do the same, seen from themselves, by form, and ranks 0 and 1 mirror each other (reflection); or all is r xor f (xor)."""
    if len(bound.sizes) != 1:
        return False
    ((axis, ranks),) = bound.sizes
    follows = _mirrored if group.name == "reflection" else _exchanged
    if not all(follows(bound, labels, leaf.transfer, axis) for leaf in found):
        return False
    if group.name == "xor":
        return True
    check = _SymmetryCheck(bound, group, labels, ranks=min(2, ranks))
    check.visit(bound.schedule.body, bound.environment, 1, np.zeros(1, np.int64))
    return check.fits


def _plain(bound: BoundSchedule, transfer: Transfer, used: set[str]) -> bool:
    """Whether it ranges over all ranks, to one rank each, and neither condition nor number of chunks depends on these variables."""
    axes = bound.schedule.axes
    places = (transfer.source, transfer.target)
    conditions = (transfer.guard, *(place.count for place in places), *(place.stride for place in places))
    named = frozenset[str]().union(*(free_names(expr) for expr in conditions))
    return not transfer.group and set(transfer.domain(axes)) == set(axes) and not named & used


def _mirrored(bound: BoundSchedule, labels: Labels, transfer: Transfer, axis: str) -> bool:
    """Whether ranks r and r + 2 do the same, seen from themselves."""
    if not _plain(bound, transfer, {axis}):
        return False
    if any(change(unwrapped(expr, bound.ranks), axis, 2) != 1 for expr in (*transfer.src, *transfer.dst)):
        return False
    for place in (transfer.source, transfer.target):
        each = labels.each[REGIONS.index(place.region)]
        if each not in (0, 1) or place.count.op != "const" or place.count.value != 1 or change(unwrapped(place.index, bound.extent(place.region)), axis, 2) != each:  # fmt: skip
            return False
    return True


def _exchanged(bound: BoundSchedule, labels: Labels, transfer: Transfer, axis: str) -> bool:
    """Whether rank r sends to r xor f, chunks r xor f."""
    if not _plain(bound, transfer, {axis}):
        return False

    def flips(expr: Expr) -> bool:
        if expr.op == "xor":
            first, second = expr.args
            return any(flips(a) and axis not in free_names(b) for a, b in ((first, second), (second, first)))
        return expr == var(axis)

    if not all(flips(expr) for expr in (*transfer.src, *transfer.dst)):
        return False
    for place in (transfer.source, transfer.target):
        code = REGIONS.index(place.region)
        if labels.each[code] not in (0, 1) or place.count.op != "const" or place.count.value != 1:
            return False
        if not (flips(place.index) if labels.each[code] else axis not in free_names(place.index)):
            return False
    return True


@dataclass(frozen=True, slots=True)
class _Turning:
    """What the variables of a transfer do when its ranks turn: some must stay, some turn with an axis; `split`: the loops that its message is, at either place.

    Pieces at both places are the same only if they are split along the same axes in turn.
    """

    used: set[str]
    turned: dict[str, str]
    split: list[list[str]]


def _turns(bound: BoundSchedule, labels: Labels, leaf: Leaf) -> bool:
    """Whether rotation along the axes changes nothing, read off the expressions.

    Ranks are x + f along each axis, chunk indices one digit (x + f) mod n an axis and a rest below `each`. Where a digit is a loop over all values instead, in one step,
    turning it along with the ranks changes only the order of its turns.
    """
    transfer, sizes = leaf.transfer, dict(bound.sizes)
    by = _Turning(set(), {}, [])
    if not _plain(bound, transfer, set(sizes)):
        return False
    for expr in (transfer.guard, *(e for p in (transfer.source, transfer.target) for e in (p.count, p.stride))):
        by.used.update(free_names(expr))
    for coordinates in (transfer.src, transfer.dst):
        for axis, expr in zip(sizes, coordinates, strict=True):
            if sizes[axis] == 1:
                continue
            total = terms(expr, leaf.ranges)
            turning = _one_digit(total, axis, sizes, 1)
            if turning is None or any(total.without(turning).named(a) for a in sizes):
                return False
            by.used.update(free_names(expr) - set(sizes))
    for place in (transfer.source, transfer.target):
        if not _place_turns(bound, labels, leaf, place, by):
            return False
    if by.split[0] != by.split[1] and any(name.startswith(_PIECE) for name in by.turned):
        return False
    return not by.used & by.turned.keys()


def _one_digit(total: Terms, axis: str, sizes: dict[str, int], factor: int) -> Expr | None:
    """The one term that holds this axis, if it is x + f modulo its size, with this factor."""
    holding = total.named(axis)
    if len(holding) != 1 or total.of[holding[0]] != factor:
        return None
    (term,) = holding
    if term == var(axis):
        return term
    if term.op != "mod" or term.args[1].op != "const" or int(term.args[1].value) != sizes[axis]:
        return None
    inner = terms(term.args[0], {})
    rest = inner.without(var(axis))
    if (inner.of.get(var(axis), 0) - 1) % sizes[axis] or any(rest.named(a) for a in sizes):
        return None
    return term


def _pieces(bound: BoundSchedule, leaf: Leaf, place: Location, weights: list[tuple[str, int]]) -> dict[str, tuple[int, Range, int]] | None:  # fmt: skip
    """The chunks of a message as loops: (factor, range, how many if always that many) by name. One loop an axis where they fill whole digits of these weights."""
    if place.count.op == "const" and int(place.count.value) == 1:
        return {}
    most = bounds(place.count, leaf.ranges)
    if most is None or place.stride.op != "const":
        return None
    stride, left = int(place.stride.value), most[1]
    if most[0] == most[1] and most[1] > 0:
        found: dict[str, tuple[int, Range, int]] = {}
        for axis, weight in weights[next((i for i, (_, weight) in enumerate(weights) if weight == stride), len(weights)) :]:  # fmt: skip
            extent = dict(bound.sizes)[axis]
            if left == 1 or left % extent:
                break
            found[f"{_PIECE} along {axis}"] = (weight, (0, extent - 1), extent)
            left //= extent
        if left == 1:
            return found
    return {_PIECE: (stride, (0, max(most[1], 1) - 1), most[1] if most[0] == most[1] else 0)}


def _place_turns(bound: BoundSchedule, labels: Labels, leaf: Leaf, place: Location, by: _Turning) -> bool:  # fmt: skip
    """Whether the chunks of a place turn with the ranks. Adds the loops that its message is, and what its variables do."""
    code, sizes = REGIONS.index(place.region), dict(bound.sizes)
    each, extent = labels.each[code], bound.extent(place.region)
    if extent == 0:
        return False
    axes, weights, weight = list(sizes), [], max(each, 1)
    for position in reversed(labels.order if code == 0 and labels.order else range(len(sizes))):
        weights.append((axes[position], weight))
        weight *= sizes[axes[position]]
    pieces = _pieces(bound, leaf, place, weights)
    if pieces is None:
        return False
    by.split.append(list(pieces))
    total = terms(place.index, leaf.ranges)
    total = Terms({**total.of, **{var(name): factor for name, (factor, _, _) in pieces.items()}}, total.constant)
    ranges = leaf.ranges | {name: within for name, (_, within, _) in pieces.items()}
    whole = leaf.whole | {name: many for name, (_, _, many) in pieces.items() if many}
    for axis, factor in weights if each else []:
        if sizes[axis] == 1:
            continue
        digit = _one_digit(total, axis, sizes, factor)
        if digit is not None:
            by.used.update(free_names(digit) - {axis})
        else:
            loops = [str(t.value) for t, many in total.of.items() if many == factor and t.op == "var" and whole.get(str(t.value)) == sizes[axis]]  # fmt: skip
            if total.named(axis) or not loops or by.turned.setdefault(loops[0], axis) != axis:
                return False
            digit = var(loops[0])
        total = total.without(digit)
    by.used.update({name for term in total.of for name in free_names(term)})
    if by.used & set(sizes):
        return False
    within = total.bounds(ranges)
    if each > 0:
        return within is not None and within[0] >= 0 and within[1] < each
    if each == 0:
        return True
    layered = all(many % bound.ranks == 0 for many in (*total.of.values(), total.constant))
    return layered and within is not None and within[0] >= 0 and within[1] < extent
