"""A schedule as stages that are collectives themselves: where each keeps its promise, the whole does.

- Halves. A reduce_scatter, then an all_gather, is an all_reduce; so is a reduce, then a broadcast. A scatter, then an all_gather, is a broadcast; a reduce_scatter, then a gather, a reduce.
  The second half only copies, and is proved from nothing but what the first promises: what else lies about is not read.
- Levels. A reduce_scatter along some axes, an all_reduce along the others of the shard that a rank then has, an all_gather along the first again, is an all_reduce. That every line of ranks
  does the same, on its own shard, is read off the expressions (`forms.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from busbw.collectives.expressions import Expr, const, free_names, param, size, substitute, var
from busbw.collectives.forms import Leaf, bounds, leaves, simplified, terms
from busbw.collectives.passes import transformed
from busbw.collectives.schedule import (
    BoundSchedule,
    Location,
    Loop,
    Mode,
    Node,
    Par,
    Region,
    Schedule,
    Seq,
    Transfer,
    transfers_of,
)

__all__ = ["constants", "settled", "stages"]

_HALVES = {
    "all_reduce": (("reduce_scatter", "all_gather"), ("reduce", "broadcast")),
    "broadcast": (("scatter", "all_gather"),),
    "reduce": (("reduce_scatter", "gather"),),
}
_DEALT = ("reduce_scatter", "all_gather", "scatter", "gather")
_MOST_CUTS = 4
"""Places at which a schedule of copies is cut on trial. A guess: each costs two proofs."""


def constants(bound: BoundSchedule) -> dict[Expr, Expr]:
    """Sizes and parameters as numbers."""
    return {size(a): const(n) for a, n in bound.sizes} | {param(n): const(v) for n, v in bound.params}


def settled(bound: BoundSchedule) -> BoundSchedule:
    """What it does with the chunks of one slice, whatever the channels: the same with numbers for sizes, without conditions that are decided, loops of one turn, and, at the top, transfers that no rank makes.

    >>> from busbw.collectives.algorithms import swing_all_reduce_latency
    >>> print(settled(swing_all_reduce_latency().bind(8)).schedule)
    swing_all_reduce_latency (all_reduce over r; 1 chunks)
      for s in range(3):
        reduce data[0] of (r) to (select(r % 2, r - (1 - pow(-2, s + 1)) // 3, r + (1 - pow(-2, s + 1)) // 3) % 8)
    """
    numbers = constants(bound)
    found = leaves(bound.schedule.body, numbers, dict(bound.sizes))
    if found is None:
        return bound
    made = iter([replace(leaf.transfer, channel=const(0), path=const(-1)) for leaf in found])
    body = _opened(bound.schedule.body, numbers, made)
    kept = tuple(child for child in _flat(body) if not (isinstance(child, Transfer) and child.guard == const(0)))
    return replace(bound, schedule=replace(bound.schedule, body=kept[0] if len(kept) == 1 else Seq(kept)))


def _opened(node: Node, numbers: dict[Expr, Expr], made: Iterator[Transfer]) -> Node:
    if isinstance(node, Transfer):
        return next(made)
    if isinstance(node, Loop):
        count = substitute(node.count, numbers)
        if count == const(1):
            return _opened(node.body, {**numbers, var(node.var): const(0)}, made)
        return replace(node, count=count, body=_opened(node.body, numbers, made))
    if isinstance(node, Seq | Par):
        return replace(node, children=tuple(_opened(child, numbers, made) for child in node.children))
    return _opened(node.body, numbers, made)


def _flat(node: Node) -> list[Node]:
    """What comes one after the other."""
    return [part for child in node.children for part in _flat(child)] if isinstance(node, Seq) else [node]


def stages(bound: BoundSchedule) -> Iterator[list[BoundSchedule]]:
    """Ways to see a settled schedule as collectives one after the other."""
    children = _flat(bound.schedule.body)
    levels = _levels(bound, children)
    if levels is not None:
        yield levels
    for kinds in _HALVES.get(bound.schedule.kind, ()):
        if bound.chunks % bound.ranks and set(kinds) & set(_DEALT):
            continue
        for cut in _cuts(children, bound.schedule.kind):
            parts = (children[:cut], children[cut:])
            yield [_part(bound, kind, some) for kind, some in zip(kinds, parts, strict=True)]


def _part(bound: BoundSchedule, kind: str, children: Sequence[Node]) -> BoundSchedule:
    return replace(bound, schedule=replace(bound.schedule, kind=kind, body=Seq(tuple(children))))


def _cuts(children: list[Node], kind: str) -> Iterator[int]:
    """Where the second half may begin: where only copies follow."""
    sums = [any(t.mode not in (Mode.COPY, Mode.MULTICAST) for t in transfers_of(child)) for child in children]
    if kind == "broadcast":
        if not any(sums):
            yield from range(1, min(len(children), _MOST_CUTS + 1))
    elif any(sums):
        cut = len(sums) - sums[::-1].index(True)
        if cut < len(children):
            yield cut


# Levels


def _levels(bound: BoundSchedule, children: list[Node]) -> list[BoundSchedule] | None:
    axes = bound.schedule.axes
    if bound.schedule.kind != "all_reduce" or len(axes) < 2 or len(children) < 3:
        return None
    read = [leaves(child, {}, dict(bound.sizes)) for child in children]
    along = [_moving(axes, found) for found in read]
    inner, outer = along[0], set(axes) - along[0]
    if not inner or not outer or any(not some or not (some <= inner or some <= outer) for some in along):
        return None
    first = next((i for i, some in enumerate(along) if not some <= inner), len(along))
    last = len(along) - next((i for i, some in enumerate(along[::-1]) if not some <= inner), len(along))
    shards = 1
    for axis in inner:
        shards *= dict(bound.sizes)[axis]
    if first >= last or last == len(along) or any(not some <= outer for some in along[first:last]) or bound.chunks % shards:  # fmt: skip
        return None
    spans = ((0, first, inner, 0), (first, last, outer, bound.chunks // shards), (last, len(along), inner, 0))
    parts = []
    for (begin, end, own, shard), kind in zip(spans, ("reduce_scatter", "all_reduce", "all_gather"), strict=True):
        made = [_narrowed(bound, leaf, own, shard) for found in read[begin:end] for leaf in found or ()]
        if any(narrow is None for narrow in made):
            return None
        body = _replaced(children[begin:end], [narrow for narrow in made if narrow is not None])
        kept = tuple(axis for axis in axes if axis in own)
        narrow = Schedule(f"{bound.schedule.name}, {kind} along {', '.join(kept)}", kind, kept, const(shard or bound.chunks), body, tables=bound.schedule.tables)  # fmt: skip
        parts.append(BoundSchedule(narrow, tuple((a, n) for a, n in bound.sizes if a in own)))
    return parts


def _moving(axes: tuple[str, ...], found: list[Leaf] | None) -> set[str]:
    """The axes along which these transfers go; none if that is not told."""
    if found is None:
        return set()
    return {
        axis
        for leaf in found
        if not leaf.idle
        for axis, src, dst in zip(axes, leaf.transfer.src, leaf.transfer.dst, strict=True)
        if axis in leaf.transfer.group or src != var(axis) or dst != var(axis)
    }


def _narrowed(bound: BoundSchedule, leaf: Leaf, own: set[str], shard: int) -> Transfer | None:
    """The transfer along some axes only, if every line of ranks along them does the same: on the same chunks, or (`shard` > 0) on its own shard of that size."""
    t, others = leaf.transfer, set(bound.schedule.axes) - own
    if leaf.idle:
        nowhere = replace(t.source, index=const(0), count=const(1), stride=const(1))
        return replace(t, src=(const(0),) * len(own), dst=(const(0),) * len(own), source=nowhere, target=nowhere, channel=const(0), path=const(-1), group=())  # fmt: skip
    if {t.source.region, t.target.region} != {Region.DATA}:
        return None
    places = []
    for place in (t.source, t.target):
        index = place.index
        if shard:
            inside = _in_shard(bound, leaf, place, others, shard)
            if inside is None:
                return None
            index = inside
        places.append(replace(place, index=index))
    narrow = _along(replace(t, source=places[0], target=places[1]), bound.schedule.axes, own)
    conditions = (t.guard, *(e for p in places for e in (p.index, p.count, p.stride)), *narrow.src, *narrow.dst)
    return None if any(free_names(expr) & others for expr in conditions) else narrow


def _along(t: Transfer, axes: tuple[str, ...], own: set[str]) -> Transfer:
    src, dst = (tuple(e for axis, e in zip(axes, ends, strict=True) if axis in own) for ends in (t.src, t.dst))
    return replace(t, src=src, dst=dst, channel=const(0), path=const(-1))


def _replaced(children: list[Node], made: list[Transfer]) -> Node:
    """The trees with these transfers instead of theirs, in order."""
    new = iter(made)
    return Seq(tuple(transformed(child, lambda _: next(new)) for child in children))


def _in_shard(bound: BoundSchedule, leaf: Leaf, place: Location, others: set[str], shard: int) -> Expr | None:
    """The chunk within the shard of the rank's own number along the other axes; None if it is not shown to lie in there."""
    total, weight = terms(place.index, leaf.ranges), shard
    for axis, extent in reversed(bound.sizes):
        if axis not in others:
            continue
        if extent > 1:
            if total.of.get(var(axis)) != weight:
                return None
            total = total.without(var(axis))
        weight *= extent
    many, apart, first = bounds(place.count, leaf.ranges), bounds(place.stride, leaf.ranges), total.bounds(leaf.ranges)
    if many is None or apart is None or first is None or apart[0] < 0:
        return None
    if first[0] < 0 or first[1] + max(many[1] - 1, 0) * apart[1] >= shard:
        return None
    return simplified(total.expr(), leaf.ranges)
