"""A schedule: which chunk moves from which rank to which, reduced or copied, after what. Symbolic in ranks and steps.

A schedule is a frozen tree. Its leaves are transfers; a transfer stands for one message of every rank (or of those its guard admits).
Its size does not depend on the number of ranks.

Meaning (what `provenance.run` executes and every consumer keeps to):

- Time is counted in steps. A transfer takes one; what a step reads, it reads before anything of that step is written.
- `Seq`: one child after the other. `Loop` in steps: one round after the other. `Par`, and `Loop` in parallel: all start in the same step.
- A location is (rank, region, chunk index). In one step a location takes one copy, or any number of reductions, applied in order of source rank.
- `Pipeline` and `Channels` cut every chunk in equal slices and do their body for each of them: slices in flight one step behind the
  other, or side by side. So they change when bytes move, never which.

Regions. Collectives that leave data where it is named (all_reduce, all_gather, reduce_scatter, broadcast, reduce, gather, scatter,
barrier, moe_*) work in `data`: the whole vector of `chunks` chunks, the same index on all ranks. all_gather, reduce_scatter, gather and scatter: chunk c
belongs to rank c // (chunks / ranks). all_to_all(_v) reads `input`, chunk d k + i for rank d, and writes `output`, chunk s k + i from rank s, k = chunks / ranks. send_recv:
rank r's `input` becomes the `output` of rank r + 1. `scratch` holds nothing before and is worth nothing after.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, TypeAlias

import numpy as np

from busbw.collectives.collective import KINDS, ROOTED, Collective
from busbw.collectives.counts import COUNT_RULES, checked_counts, tables_of_counts
from busbw.collectives.expressions import ONE, ZERO, Environment, Expr, IntArray, Table, const, evaluate, free_names

__all__ = [
    "BoundSchedule",
    "Channels",
    "Location",
    "Loop",
    "Mode",
    "Node",
    "Par",
    "Pipeline",
    "Region",
    "Requirement",
    "Schedule",
    "Seq",
    "Transfer",
    "transfers_of",
]  # fmt: skip

NO_PATH = const(-1)


class Region(StrEnum):
    """Where a chunk lies; see the head of this module."""

    DATA = "data"
    INPUT = "input"
    OUTPUT = "output"
    SCRATCH = "scratch"


class Mode(StrEnum):
    """What a transfer does at its destination."""

    COPY = "copy"
    REDUCE = "reduce"  # op(destination, arriving) is stored
    MULTICAST = "multicast"  # one source, stored by all ranks of the group
    NETWORK_REDUCE = "network_reduce"  # the sum over the group, formed in the network, stored by one rank
    NETWORK_ALL_REDUCE = "network_all_reduce"  # the sum over the group, formed in the network, stored by all of it


@dataclass(frozen=True, slots=True)
class Location:
    """`count` chunks of a region from `index` on, `stride` apart; indices wrap modulo the size of the region."""

    region: Region
    index: Expr
    count: Expr = ONE
    stride: Expr = ONE

    def __str__(self) -> str:
        many = "" if self.count == ONE else f" : {self.count}" + ("" if self.stride == ONE else f" by {self.stride}")
        return f"{self.region}[{self.index}{many}]"


@dataclass(frozen=True, slots=True)
class Transfer:
    """One message: `source` at rank `src` goes to `target` at rank `dst`.

    `src` and `dst` hold one coordinate an axis. The axes named in them are what the transfer ranges over: src = (r,), dst = (r + 1,) is
    a message from every rank. `group` names the axes over which multicast and network modes extend; coordinates there are not read.
    `guard`: only where it is not 0. `hops`: latencies that it costs (the height of a switch tree). `path`: index into the schedule's paths, -1 for none.
    `where` is the user's file and line.
    """

    src: tuple[Expr, ...]
    dst: tuple[Expr, ...]
    source: Location
    target: Location
    mode: Mode = Mode.COPY
    group: tuple[str, ...] = ()
    guard: Expr = ONE
    channel: Expr = ZERO
    path: Expr = NO_PATH
    hops: Expr = ONE
    where: str = ""

    def __eq__(self, other: object) -> bool:  # where a line stands is no part of what it does
        return isinstance(other, Transfer) and self._meaning() == other._meaning()

    def __hash__(self) -> int:
        return hash(self._meaning())

    def _meaning(self) -> tuple[object, ...]:
        return (
            self.src, self.dst, self.source, self.target, self.mode, self.group, self.guard, self.channel, self.path, self.hops,
        )  # fmt: skip

    @property
    def local(self) -> bool:
        """Whether source and destination are the same rank by their form."""
        return self.src == self.dst and not self.group

    def domain(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes that it ranges over, in the order of `axes`."""
        named = frozenset[str]().union(*(free_names(e) for e in (*self.src, *self.dst)))
        return tuple(axis for axis in axes if axis in named)


@dataclass(frozen=True, slots=True)
class Seq:
    """Children one after the other."""

    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Par:
    """Children at once, starting in the same step."""

    children: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Loop:
    """`body` for `var` = 0 .. count - 1: one after the other, or (`parallel`) all at once. `descending` counts down."""

    var: str
    count: Expr
    body: Node
    parallel: bool = False
    descending: bool = False


@dataclass(frozen=True, slots=True)
class Pipeline:
    """`body` for each of `parts` slices of its chunks; slice i does its step j in step i + j."""

    parts: Expr
    body: Node


@dataclass(frozen=True, slots=True)
class Channels:
    """`body` for each of `count` slices of its chunks, all at once; slice i uses channel c * count + i where the body says c."""

    count: Expr
    body: Node


Node: TypeAlias = Transfer | Seq | Par | Loop | Pipeline | Channels


@dataclass(frozen=True, slots=True)
class Requirement:
    """What sizes must fulfil: `condition` is not 0, else `text` says why."""

    condition: Expr
    text: str


@dataclass(frozen=True, slots=True)
class Schedule:
    """An algorithm for a collective, for any sizes of its axes.

    `axes`: rank axes, the last one counting fastest. `chunks`: of the vector that `size_bytes` measures. `scratch`: chunks of scratch a rank.
    `params`: names with defaults (None: must be given). Raises ValueError for expressions with unknown names.
    """

    name: str
    kind: str
    axes: tuple[str, ...]
    chunks: Expr
    body: Node
    scratch: Expr = ZERO
    params: tuple[tuple[str, int | None], ...] = ()
    requires: tuple[Requirement, ...] = ()
    tables: tuple[tuple[str, Table], ...] = ()
    paths: tuple[str, ...] = ()
    fixed: tuple[tuple[str, int], ...] = ()  # sizes of axes for which it was made
    open: tuple[tuple[str, str], ...] = ()
    """Tables that bind(counts=...) makes, by the rule of their name (`counts.COUNT_RULES`)."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"{self.name}: {self.kind!r} is no collective; they are {', '.join(KINDS)}")
        if unknown := {rule for _, rule in self.open} - set(COUNT_RULES):
            raise ValueError(f"{self.name}: no rule {', '.join(sorted(unknown))}; there is {', '.join(COUNT_RULES)}")
        _check_names(self)

    def bind(self, *sizes: int, counts: Any = None, **named: int) -> BoundSchedule:
        """This schedule with sizes: in the order of its axes, or by name; parameters by name; the counts of an all_to_all_v, if they are open.

        counts[s][d]: elements that rank s sends to rank d; the number of ranks need not be given beside it. Raises ValueError for missing or
        unknown names, for sizes that the algorithm can't do, and for counts that don't fit.
        """
        if counts is not None:
            return self._with_counts(counts).bind(*sizes, **named)
        if self.open:
            raise ValueError(
                f"{self.name} needs counts: bind(counts=[[...], ...]), a row a rank that says what it sends to each"
            )
        bound = self._bound(sizes, named)
        for requirement in self.requires:
            if not evaluate(requirement.condition, bound.environment):
                raise ValueError(f"{self.name} with {bound.sizes_text}: {requirement.text}")
        return bound

    def _with_counts(self, counts: Any) -> Schedule:
        """The schedule with its open tables made of these counts."""
        if not self.open:
            raise ValueError(f"{self.name} takes no counts: it is a {self.kind}, or was made with its own")
        made = tables_of_counts(self.open, counts)
        ranks = len(checked_counts(counts))
        fixed = ((self.axes[0], ranks),) if len(self.axes) == 1 else ()
        return replace(self, tables=self.tables + made, open=(), fixed=self.fixed + fixed)

    def _bound(self, sizes: tuple[int, ...], named: Mapping[str, int]) -> BoundSchedule:
        """Bound, whatever the algorithm requires."""
        if len(sizes) > len(self.axes):
            raise ValueError(f"{self.name} has {len(self.axes)} axes ({', '.join(self.axes)}), not {len(sizes)}")
        if odd := [value for value in (*sizes, *named.values()) if not isinstance(value, int | np.integer)]:
            raise ValueError(f"{self.name}: sizes and parameters are whole numbers, not {odd[0]!r}")
        given = dict(zip(self.axes, sizes, strict=False))
        if twice := given.keys() & named.keys():
            raise ValueError(f"{self.name}: {', '.join(sorted(twice))} given twice")
        given |= dict(named)
        defaults = {name: value for name, value in self.params if value is not None}
        known = {**defaults, **dict(self.fixed), **given}
        if unknown := given.keys() - set(self.axes) - {name for name, _ in self.params}:
            raise ValueError(
                f"{self.name} knows no {', '.join(sorted(unknown))}: axes {', '.join(self.axes)}; parameters {', '.join(n for n, _ in self.params) or 'none'}"
            )
        if missing := [name for name in (*self.axes, *(name for name, _ in self.params)) if name not in known]:
            raise ValueError(f"{self.name} needs {', '.join(missing)}: bind({missing[0]}=...)")
        for axis in self.axes:
            if known[axis] < 1:
                raise ValueError(f"{self.name}: axis {axis} has size {known[axis]}; it must be at least 1")
            if known[axis] != dict(self.fixed).get(axis, known[axis]):
                raise ValueError(f"{self.name} was made for {axis}={dict(self.fixed)[axis]}, not {known[axis]}")
        bound = BoundSchedule(
            self, tuple((a, known[a]) for a in self.axes), tuple((n, known[n]) for n, _ in self.params)
        )
        return bound

    def bindings(self, ranks: int) -> Iterator[BoundSchedule]:
        """Every way to bind the axes so that they make this many ranks, with default parameters; sizes that the algorithm can't do are left out.

        >>> s = Schedule("idle", "barrier", ("node", "gpu"), ONE, Seq(()))
        >>> [bound.sizes_text for bound in s.bindings(4)]
        ['node=1, gpu=4', 'node=2, gpu=2', 'node=4, gpu=1']
        """
        for shape in _factorisations(ranks, len(self.axes)):
            fixed = dict(self.fixed)
            if any(fixed.get(axis, extent) != extent for axis, extent in zip(self.axes, shape, strict=True)):
                continue
            bound = self._bound(shape, {})
            if all(evaluate(r.condition, bound.environment) for r in self.requires):
                yield bound

    def bind_to(self, collective: Collective, *sizes: int, **named: int) -> BoundSchedule:
        """This schedule bound for a call: the root is taken from it, sizes must multiply to its ranks (one axis: need not be given).

        Raises ValueError if kind or ranks differ.
        """
        if collective.kind != self.kind and {collective.kind, self.kind} != {"all_to_all", "all_to_all_v"}:
            raise ValueError(f"{self.name} is for {self.kind}, not {collective.kind}")
        if len(self.axes) == 1 and not sizes and not self.fixed and self.axes[0] not in named:
            sizes = (collective.ranks,)
        if collective.kind in ROOTED and any(name == "root" for name, _ in self.params):
            named = {"root": collective.root, **named}
        bound = self.bind(*sizes, **named)
        if bound.ranks != collective.ranks:
            raise ValueError(f"{self.name} is bound to {bound.sizes_text}, the collective has {collective.ranks} ranks")
        return bound

    def __str__(self) -> str:
        return f"{self.name} ({self.kind} over {', '.join(self.axes)}; {self.chunks} chunks)\n" + "\n".join(
            _lines(self.body, 1)
        )


@dataclass(frozen=True, slots=True)
class BoundSchedule:
    """A schedule with the sizes of its axes and its parameters."""

    schedule: Schedule
    sizes: tuple[tuple[str, int], ...]
    params: tuple[tuple[str, int], ...] = ()
    _transfers: tuple[Transfer, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_transfers", tuple(transfers_of(self.schedule.body)))

    @property
    def environment(self) -> Environment:
        """What names mean in its expressions."""
        tables = {name: table.array for name, table in self.schedule.tables}
        return Environment({}, dict(self.sizes), dict(self.params), tables)

    @property
    def ranks(self) -> int:
        """Number of ranks: the product of the axes."""
        return math.prod(extent for _, extent in self.sizes)

    @property
    def sizes_text(self) -> str:
        """Sizes and parameters as a user reads them."""
        return ", ".join(f"{name}={value}" for name, value in (*self.sizes, *self.params))

    @property
    def root(self) -> int:
        """The root rank; 0 if the schedule has none."""
        return dict(self.params).get("root", 0)

    def value(self, expr: Expr) -> int:
        """The value of an expression without variables."""
        return int(evaluate(expr, self.environment))

    @property
    def chunks(self) -> int:
        """Chunks of the vector that size_bytes measures."""
        return self.value(self.schedule.chunks)

    def extent(self, region: Region) -> int:
        """Chunks of a region, on every rank."""
        return self.value(self.schedule.scratch) if region is Region.SCRATCH else self.chunks

    def coordinates(self, ranks: IntArray | None = None) -> Mapping[str, IntArray]:
        """The coordinates of ranks (all by default) along each axis.

        >>> s = Schedule("idle", "barrier", ("node", "gpu"), ONE, Seq(()))
        >>> {axis: x.tolist() for axis, x in s.bind(2, 3).coordinates().items()}
        {'node': [0, 0, 0, 1, 1, 1], 'gpu': [0, 1, 2, 0, 1, 2]}
        """
        flat = np.arange(self.ranks, dtype=np.int64) if ranks is None else ranks
        found = np.unravel_index(flat, [extent for _, extent in self.sizes])
        return {axis: np.asarray(x, np.int64) for (axis, _), x in zip(self.sizes, found, strict=True)}

    def transfer(self, number: int) -> Transfer:
        """The transfer at this place of `transfers_of(body)`."""
        return self._transfers[number]

    def bound_where(self, **params: int) -> BoundSchedule:
        """The same with other parameters."""
        return replace(self, params=tuple((name, params.get(name, value)) for name, value in self.params))


def _factorisations(number: int, parts: int) -> Iterator[tuple[int, ...]]:
    if parts == 1:
        yield (number,)
        return
    for first in range(1, number + 1):
        if number % first == 0:
            for rest in _factorisations(number // first, parts - 1):
                yield (first, *rest)


def transfers_of(node: Node) -> Iterator[Transfer]:
    """The transfers of a tree, in the order in which they are written."""
    if isinstance(node, Transfer):
        yield node
    elif isinstance(node, Seq | Par):
        for child in node.children:
            yield from transfers_of(child)
    else:
        yield from transfers_of(node.body)


def _check_names(schedule: Schedule) -> None:
    """Raises for expressions with names that mean nothing where they stand."""
    params = frozenset(name for name, _ in schedule.params)
    tables = frozenset(name for name, _ in (*schedule.tables, *schedule.open))
    axes = frozenset(schedule.axes)

    def check(expr: Expr, variables: frozenset[str], what: str, where: str) -> None:
        at = f"{where}: " if where else ""
        for op, known in (("var", variables), ("size", axes), ("param", params), ("table", tables)):
            if unknown := free_names(expr, op) - known:
                hint = " (it must occur in the transfer's ranks, too)" if op == "var" and unknown <= axes else ""
                raise ValueError(
                    f"{at}{schedule.name}: {what} {expr} uses {', '.join(sorted(unknown))}, which means nothing here{hint}"
                )

    def walk(node: Node, variables: frozenset[str]) -> None:
        if isinstance(node, Transfer):
            if not len(node.src) == len(node.dst) == len(schedule.axes):
                raise ValueError(
                    f"{node.where}: {schedule.name}: a rank has {len(schedule.axes)} coordinates ({', '.join(schedule.axes)})"
                )
            if unknown := set(node.group) - axes:
                raise ValueError(f"{node.where}: {schedule.name}: group over {', '.join(unknown)}, which is no axis")
            for expr in (*node.src, *node.dst):
                check(expr, variables | axes, "rank", node.where)
            inside = variables | set(node.domain(schedule.axes))
            for place in (node.source, node.target):
                for expr in (place.index, place.count, place.stride):
                    check(expr, inside, "chunk", node.where)
            for what, expr in (
                ("guard", node.guard),
                ("channel", node.channel),
                ("path", node.path),
                ("hops", node.hops),
            ):
                check(expr, inside, what, node.where)
        elif isinstance(node, Seq | Par):
            for child in node.children:
                walk(child, variables)
        elif isinstance(node, Loop):
            if node.var in variables or node.var in axes:
                raise ValueError(f"{schedule.name}: loop variable {node.var} is used twice, one loop inside the other")
            check(node.count, variables, "loop count", "")
            walk(node.body, variables | {node.var})
        else:
            check(node.parts if isinstance(node, Pipeline) else node.count, frozenset(), "number of slices", "")
            walk(node.body, variables)

    for expr in (schedule.chunks, schedule.scratch, *(r.condition for r in schedule.requires)):
        check(expr, frozenset(), "size", "")
    walk(schedule.body, frozenset())


def _rank_text(coordinates: tuple[Expr, ...]) -> str:
    return ", ".join(str(c) for c in coordinates)


def _lines(node: Node, depth: int) -> Iterator[str]:
    pad = "  " * depth
    if isinstance(node, Transfer):
        to = node.target if node.target != node.source else ""
        over = f" over {', '.join(node.group)}" if node.group else ""
        when = "" if node.guard == ONE else f" when {node.guard}"
        yield f"{pad}{node.mode} {node.source} of ({_rank_text(node.src)}) to {to}{' of ' if to else ''}({_rank_text(node.dst)}){over}{when}"
    elif isinstance(node, Seq | Par):
        if isinstance(node, Par):
            yield f"{pad}together:"
        for child in node.children:
            yield from _lines(child, depth + isinstance(node, Par))
    elif isinstance(node, Loop):
        word = "for all" if node.parallel else "for"
        yield f"{pad}{word} {node.var} in {'reversed ' if node.descending else ''}range({node.count}):"
        yield from _lines(node.body, depth + 1)
    else:
        yield f"{pad}{'pipeline of ' + str(node.parts) if isinstance(node, Pipeline) else str(node.count) + ' channels'}:"
        yield from _lines(node.body, depth + 1)
