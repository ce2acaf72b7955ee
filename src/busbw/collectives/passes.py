"""Schedules made of schedules: time-reversed, composed, embedded in larger ones, replicated, pipelined."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from busbw.collectives.expressions import (
    Expr,
    ExprLike,
    as_expr,
    eq,
    floor_log,
    maximum,
    power,
    select,
    size,
    substitute,
    unfold_rank,
    var,
)
from busbw.collectives.schedule import (
    NO_PATH,
    Channels,
    Location,
    Loop,
    Mode,
    Node,
    Par,
    Pipeline,
    Region,
    Requirement,
    Schedule,
    Seq,
    Transfer,
)

__all__ = [
    "compose",
    "folded",
    "pipelined",
    "renamed_axes",
    "renamed_loops",
    "replaced",
    "replicate",
    "retabled",
    "reverse",
    "transformed",
]

_REVERSED_KIND = {
    "all_gather": "reduce_scatter", "reduce_scatter": "all_gather", "broadcast": "reduce", "reduce": "broadcast", "scatter": "gather",
    "gather": "scatter", "all_reduce": "all_reduce", "all_to_all": "all_to_all", "all_to_all_v": "all_to_all_v", "moe_dispatch": "moe_combine",
    "moe_combine": "moe_dispatch",
}  # fmt: skip
_SUMS = ("all_gather", "reduce_scatter", "broadcast", "reduce", "all_reduce", "moe_dispatch", "moe_combine")


def transformed(
    node: Node, change: Callable[[Transfer], Node], expression: Callable[[Expr], Expr] | None = None
) -> Node:
    """The tree with every transfer changed; `expression` changes the counts of loops and slices."""
    counts = expression or (lambda e: e)
    if isinstance(node, Transfer):
        return change(node)
    if isinstance(node, Seq | Par):
        return replace(node, children=tuple(transformed(child, change, expression) for child in node.children))
    body = transformed(node.body, change, expression)
    if isinstance(node, Pipeline):
        return replace(node, parts=counts(node.parts), body=body)
    return replace(node, count=counts(node.count), body=body)


def replaced(node: Node, replacements: Mapping[Expr, Expr]) -> Node:
    """The tree with variables, sizes or parameters replaced in all expressions."""
    return _in_all_expressions(node, lambda expr: substitute(expr, replacements))


def renamed_loops(node: Node, fresh: Callable[[str], str]) -> Node:
    """The tree with the variables of its loops renamed by `fresh`."""
    if isinstance(node, Transfer):
        return node
    if isinstance(node, Seq | Par):
        return replace(node, children=tuple(renamed_loops(child, fresh) for child in node.children))
    body = renamed_loops(node.body, fresh)
    if isinstance(node, Loop):
        name = fresh(node.var)
        return replace(node, var=name, body=replaced(body, {var(node.var): var(name)}))
    return replace(node, body=body)


def retabled(node: Node, names: Mapping[str, str]) -> Node:
    """The tree with tables under other names."""
    if not names:
        return node

    def new(expr: Expr) -> Expr:
        args = tuple(new(arg) for arg in expr.args)
        return replace(expr, args=args, value=names[str(expr.value)] if expr.op == "table" else expr.value)

    return _in_all_expressions(node, new)


def _in_all_expressions(node: Node, new: Callable[[Expr], Expr]) -> Node:
    def place(where: Location) -> Location:
        return replace(where, index=new(where.index), count=new(where.count), stride=new(where.stride))

    def change(t: Transfer) -> Node:
        return replace(
            t, src=tuple(map(new, t.src)), dst=tuple(map(new, t.dst)), source=place(t.source), target=place(t.target),
            guard=new(t.guard), channel=new(t.channel), path=new(t.path), hops=new(t.hops),
        )  # fmt: skip

    return transformed(node, change, new)


def reverse(schedule: Schedule) -> Schedule:
    """The schedule run backwards in time: an all_gather becomes a reduce_scatter, a broadcast a reduce, a scatter a gather, and the other way round.

    Every message goes back where it came from; what was copied out is summed in, what was summed is copied out. reverse(reverse(s)) == s.
    Right for schedules that bring each chunk to each rank once (trees; sums formed once); `violations` tells for the others: exchanges of whole
    vectors, and broadcasts in which the root gets its own data back.
    Raises ValueError for schedules that keep copies in scratch (a scratch chunk may be a copy or a sum, which only its author knows)
    and for collectives that have no reverse.

    >>> from busbw.collectives.algorithms.ring import ring_all_gather
    >>> print(reverse(ring_all_gather()))
    reversed ring_all_gather (reduce_scatter over r; |r| chunks)
      for t in reversed range(|r| - 1):
        reduce data[r - t] of (r + 1) to (r)
    """
    if schedule.kind not in _REVERSED_KIND:
        raise ValueError(f"{schedule.name}: {schedule.kind} has no reverse")
    sums = schedule.kind in _SUMS
    swapped = {Mode.COPY: Mode.REDUCE, Mode.REDUCE: Mode.COPY} if sums else {Mode.COPY: Mode.COPY}
    swapped |= {Mode.MULTICAST: Mode.NETWORK_REDUCE, Mode.NETWORK_REDUCE: Mode.MULTICAST}
    regions = {Region.INPUT: Region.OUTPUT, Region.OUTPUT: Region.INPUT}

    def place(where: Location) -> Location:
        return replace(where, region=regions.get(where.region, where.region))

    def back(t: Transfer) -> Node:
        if t.mode not in swapped:
            raise ValueError(f"{t.where}: {schedule.name}: {t.mode} can't be reversed in {schedule.kind}")
        if sums and Region.SCRATCH in (t.source.region, t.target.region):
            raise ValueError(f"{t.where}: {schedule.name}: {t.source} to {t.target} can't be reversed: it uses scratch")
        return replace(t, src=t.dst, dst=t.src, source=place(t.target), target=place(t.source), mode=swapped[t.mode])

    def walk(node: Node) -> Node:
        if isinstance(node, Transfer):
            return back(node)
        if isinstance(node, Seq):
            return Seq(tuple(walk(child) for child in reversed(node.children)))
        if isinstance(node, Par):
            return _aligned_at_the_end(node, walk)
        if isinstance(node, Loop):
            return replace(node, body=walk(node.body), descending=not node.parallel and not node.descending)
        return replace(node, body=walk(node.body))

    prefix = "reversed "
    name = schedule.name.removeprefix(prefix) if schedule.name.startswith(prefix) else prefix + schedule.name
    return replace(schedule, name=name, kind=_REVERSED_KIND[schedule.kind], body=walk(schedule.body))


def _aligned_at_the_end(node: Par, walk: Callable[[Node], Node]) -> Node:
    """Children of a reversed Par start together, too: what ended early now begins early, which no data forbid, since they share none."""
    return Par(tuple(walk(child) for child in node.children))


def compose(first: Schedule, second: Schedule, name: str | None = None) -> Schedule:
    """One schedule after the other: reduce_scatter and all_gather make an all_reduce; scatter and all_gather a broadcast; reduce_scatter and gather a reduce.

    Raises ValueError if they don't fit: other axes, other chunks, or kinds that don't follow each other.

    >>> from busbw.collectives.algorithms.ring import ring_all_gather, ring_reduce_scatter
    >>> compose(ring_reduce_scatter(), ring_all_gather()).kind
    'all_reduce'
    """
    kinds = {
        ("reduce_scatter", "all_gather"): "all_reduce", ("reduce", "broadcast"): "all_reduce", ("scatter", "all_gather"): "broadcast",
        ("reduce_scatter", "gather"): "reduce", ("gather", "broadcast"): "all_gather",
    }  # fmt: skip
    kind = kinds.get((first.kind, second.kind))
    if kind is None:
        raise ValueError(f"{first.name} ({first.kind}) and {second.name} ({second.kind}) make no collective together")
    if first.axes != second.axes or first.chunks != second.chunks:
        raise ValueError(
            f"{first.name} cuts into {first.chunks} chunks over {', '.join(first.axes)}, {second.name} into {second.chunks} over {', '.join(second.axes)}"
        )
    tables, renamed = _merged_tables(first, second)
    scratch = first.scratch if first.scratch == second.scratch else maximum(first.scratch, second.scratch)
    params = dict(first.params) | dict(second.params)
    return Schedule(
        name or f"{first.name}, {second.name}", kind, first.axes, first.chunks, Seq((first.body, renamed)), scratch, tuple(params.items()),
        _once(first.requires + second.requires), tables, first.paths + second.paths, _once(first.fixed + second.fixed),
    )  # fmt: skip


def _once(items: tuple[object, ...]) -> tuple:  # type: ignore[type-arg]
    return tuple(dict.fromkeys(items))


def _merged_tables(first: Schedule, second: Schedule) -> tuple[tuple, Node]:  # type: ignore[type-arg]
    """(tables of both, the body of the second with its tables and paths under new numbers where they clash)."""
    taken = dict(first.tables)
    names: dict[str, str] = {}
    for name, contents in second.tables:
        new, number = name, 1
        while new in taken and taken[new] != contents:
            number += 1
            new = f"{name}{number}"
        taken[new] = contents
        names[name] = new
    shift = len(first.paths)

    def change(t: Transfer) -> Node:
        return t if not shift or t.path == NO_PATH else replace(t, path=select(t.path < 0, -1, t.path + shift))

    return tuple(taken.items()), transformed(retabled(second.body, names), change)


def folded(schedule: Schedule) -> Schedule:
    """The all_reduce over any number of ranks, made of one for powers of two.

    The p - 2^m ranks beyond give their vector to a neighbour first, sit out, and get the result at the end: two steps and 2 n bytes more for those.
    Source: Rabenseifner, "Optimization of collective reduction operations", ICCS 2004, section on non-powers of two.
    """
    if schedule.kind != "all_reduce" or len(schedule.axes) != 1:
        raise ValueError(f"{schedule.name}: only an all_reduce over one axis folds")
    (axis,) = schedule.axes
    r, p = var(axis), size(axis)
    active = power(2, floor_log(2, p))
    swap = {p: active}
    whole = Location(Region.DATA, as_expr(0), substitute(schedule.chunks, swap))
    twin = 2 * (p - active)

    def change(t: Transfer) -> Node:
        if t.group:
            raise ValueError(f"{t.where}: {schedule.name}: a group of ranks does not fold")
        src, dst = (unfold_rank(e % active, p) for e in (t.src[0], t.dst[0]))
        return replace(t, src=(src,), dst=(dst,), guard=(r < active) & t.guard)

    def neighbour(offset: int, mode: Mode) -> Transfer:
        which = eq(r % 2, 0 if offset > 0 else 1) & (r < twin)
        return Transfer((r,), (r + offset,), whole, whole, mode, guard=which, where="folded")

    body = transformed(replaced(schedule.body, swap), change)
    return replace(
        schedule,
        chunks=substitute(schedule.chunks, swap),
        scratch=substitute(schedule.scratch, swap),
        body=Seq((neighbour(1, Mode.REDUCE), body, neighbour(-1, Mode.COPY))),
        requires=tuple(Requirement(substitute(q.condition, swap), q.text) for q in schedule.requires),
    )


def replicate(schedule: Schedule, channels: ExprLike) -> Schedule:
    """The schedule on `channels` channels, an equal slice of every chunk on each."""
    return replace(schedule, name=f"{schedule.name} x{channels}", body=Channels(as_expr(channels), schedule.body))


def pipelined(schedule: Schedule, parts: ExprLike) -> Schedule:
    """The schedule with `parts` slices of every chunk in flight, each one step behind the one before."""
    return replace(schedule, name=f"{schedule.name} /{parts}", body=Pipeline(as_expr(parts), schedule.body))


def renamed_axes(schedule: Schedule, names: Mapping[str, str]) -> Schedule:
    """The schedule with other names of its axes.

    >>> from busbw.collectives.algorithms.ring import ring_all_gather
    >>> renamed_axes(ring_all_gather(), {"r": "gpu"}).axes
    ('gpu',)
    """
    new: dict[Expr, Expr] = {}
    for old, name in names.items():
        new |= {var(old): var(name), size(old): size(name)}
    body = replaced(schedule.body, new)

    def change(t: Transfer) -> Node:
        return replace(t, group=tuple(names.get(axis, axis) for axis in t.group))

    return replace(
        schedule,
        axes=tuple(names.get(axis, axis) for axis in schedule.axes),
        chunks=substitute(schedule.chunks, new),
        scratch=substitute(schedule.scratch, new),
        body=transformed(body, change),
        requires=tuple(Requirement(substitute(r.condition, new), r.text) for r in schedule.requires),
        fixed=tuple((names.get(axis, axis), extent) for axis, extent in schedule.fixed),
    )
