"""The Python in which people write schedules.

A schedule is a function of its rank axes; it runs once, with symbolic coordinates, and what it says is recorded:

>>> @schedule("all_gather")
... def ring(r: Axis) -> None:
...     data = chunks(r.size)
...     for t in steps(r.size - 1):
...         r.send(data[r - t], to=r + 1)
>>> print(ring)
ring (all_gather over r; |r| chunks)
  for t in range(|r| - 1):
    copy data[r - t] of (r) to (r + 1)
>>> ring.bind(8).ranks
8

`for t in steps(n)` runs its body once, with t a variable: the loop is recorded, not unrolled. Values that depend on ranks or steps can't decide
a Python `if`; use `when=` and `select`. What a schedule means is said at the head of `busbw.collectives.schedule`.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from busbw.collectives.expressions import (
    ONE,
    ZERO,
    Expr,
    ExprLike,
    Table,
    as_expr,
    param,
    select,
    size,
    substitute,
    table,
    var,
)
from busbw.collectives.passes import renamed_loops, replaced, retabled, transformed
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
    "Axis", "Chunks", "add", "apply", "blocks", "build", "channels", "chunks", "copy", "fixed_size", "one_after_the_other", "open_table", "parallel", "parameter", "pipeline", "require", "schedule", "scratch", "steps",
    "table_of", "together", "transfer", "when",
]  # fmt: skip


class ScheduleError(ValueError):
    """A schedule that can't be recorded; the message begins with the user's file and line."""


@dataclass
class _Recording:
    """What a schedule function has said so far."""

    name: str
    kind: str
    axes: tuple[str, ...]
    frames: list[list[Node]] = field(default_factory=lambda: [[]])
    guards: list[Expr] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    chunks: Expr | None = None
    scratch: Expr = ZERO
    params: list[tuple[str, int | None]] = field(default_factory=list)
    requires: list[Requirement] = field(default_factory=list)
    tables: list[tuple[str, Table]] = field(default_factory=list)
    fixed: list[tuple[str, int]] = field(default_factory=list)
    open: list[tuple[str, str]] = field(default_factory=list)
    paths: tuple[str, ...] = ()

    def fresh(self, wanted: str) -> str:
        name, number = wanted, 1
        while name in self.names:
            number += 1
            name = f"{wanted}{number}"
        self.names.add(name)
        return name


_RECORDING: ContextVar[_Recording | None] = ContextVar("recording", default=None)


def _here() -> str:
    """The user's file and line: the first frame outside this module."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename in (__file__, contextmanager.__code__.co_filename):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def _recording() -> _Recording:
    recording = _RECORDING.get()
    if recording is None:
        raise ScheduleError(f"{_here()}: this can be said only inside a function marked @schedule(kind)")
    return recording


class Axis(Expr):
    """A rank axis: as an expression the coordinate of the rank; `size` is the number of ranks along it."""

    __slots__ = ()

    @property
    def size(self) -> Expr:
        """The number of ranks along this axis."""
        return size(str(self.value))

    def send(
        self,
        source: Location,
        *,
        to: ExprLike,
        into: Location | None = None,
        reduce: bool = False,
        when: ExprLike = 1,
        channel: ExprLike = 0,
        hops: ExprLike = 1,
    ) -> None:
        """Every rank sends `source` to the rank at coordinate `to` of this axis; the other coordinates stay.

        `into` is the place there (default: the same as here). `reduce`: it is reduced into what lies there.
        """
        transfer(source, to={self: to}, into=into, reduce=reduce, when=when, channel=channel, hops=hops)

    def multicast(self, source: Location, *, into: Location | None = None, when: ExprLike = 1) -> None:
        """Every rank's `source` is stored by all ranks along this axis, itself included, in one message through the switch."""
        transfer(source, into=into, when=when, mode=Mode.MULTICAST, over=(self,))

    def reduce_in_network(self, source: Location, *, into: Location | None = None, when: ExprLike = 1) -> None:
        """Every rank gets the sum of `source` over the ranks along this axis, formed by the switch."""
        transfer(source, into=into, when=when, mode=Mode.NETWORK_REDUCE, over=(self,))


@dataclass(frozen=True, slots=True)
class Chunks:
    """A region, to be indexed: `data[i]` is chunk i, `data[i, n]` are n chunks from i on, `data[i, n, s]` n chunks, s apart."""

    region: Region

    def __getitem__(self, where: ExprLike | tuple[ExprLike, ...]) -> Location:
        index, *rest = where if isinstance(where, tuple) else (where,)
        return Location(self.region, as_expr(index), *(as_expr(e) for e in rest))


def schedule(kind: str, name: str | None = None) -> Callable[[Callable[..., None]], Schedule]:
    """The decorator that turns a function of rank axes into a Schedule for this collective; parameters of the function are its axes."""

    def record(function: Callable[..., None]) -> Schedule:
        return build(kind, name or function.__name__, tuple(inspect.signature(function).parameters), function)

    return record


def build(kind: str, name: str, axes: tuple[str, ...], function: Callable[..., None]) -> Schedule:
    """The schedule that `function`, called with the axes, describes: `schedule` without a decorator.

    Raises ScheduleError, with the user's line, for what can't be recorded.
    """
    recording = _Recording(name, kind, axes, names=set(axes))
    token = _RECORDING.set(recording)
    try:
        function(*(Axis("var", (), axis) for axis in axes))
    finally:
        _RECORDING.reset(token)
    if recording.chunks is None:
        raise ScheduleError(
            f"{_here()}: {name} doesn't say into how many chunks its vector is cut: chunks(n) or blocks(n)"
        )
    return Schedule(
        name, kind, axes, recording.chunks, _one(recording.frames.pop()), recording.scratch, tuple(recording.params), tuple(recording.requires),
        tuple(recording.tables), recording.paths, tuple(dict.fromkeys(recording.fixed)), tuple(recording.open),
    )  # fmt: skip


def chunks(count: ExprLike) -> Chunks:
    """The `data` region of the collective, cut into `count` chunks."""
    _recording().chunks = as_expr(count)
    return Chunks(Region.DATA)


def blocks(count: ExprLike) -> tuple[Chunks, Chunks]:
    """The `input` and `output` regions of all_to_all(_v) or send_recv, each cut into `count` chunks."""
    _recording().chunks = as_expr(count)
    return Chunks(Region.INPUT), Chunks(Region.OUTPUT)


def scratch(count: ExprLike) -> Chunks:
    """Scratch of `count` chunks on every rank; one region a schedule."""
    _recording().scratch = as_expr(count)
    return Chunks(Region.SCRATCH)


def parameter(name: str, default: int | None = None) -> Expr:
    """A parameter that bind() may give, such as root; without a default it must be given."""
    _recording().params.append((name, default))
    return param(name)


def fixed_size(axis: Axis, extent: int) -> None:
    """The schedule is for this size of the axis only; bind() needn't give it."""
    _recording().fixed.append((str(axis.value), extent))


def require(condition: ExprLike, text: str) -> None:
    """bind() refuses sizes for which the condition is 0, and says the text."""
    _recording().requires.append(Requirement(as_expr(condition), text))


def table_of(name: str, values: Any) -> Callable[..., Expr]:
    """A constant table under this name; call the result with indices to look an entry up."""
    recording = _recording()
    name = recording.fresh(name)
    recording.tables.append((name, Table.of(values)))
    return lambda *index: table(name, *index)


def open_table(name: str, rule: str) -> Callable[..., Expr]:
    """A table that bind(counts=...) makes by a rule of `counts.COUNT_RULES`; call the result with indices to look an entry up."""
    recording = _recording()
    name = recording.fresh(name)
    recording.open.append((name, rule))
    return lambda *index: table(name, *index)


def steps(count: ExprLike, name: str = "t") -> Iterator[Expr]:
    """The variable of n rounds, one after the other.

    Written `for t in steps(n)`.
    """
    return _loop(count, name, parallel=False)


def parallel(count: ExprLike, name: str = "i") -> Iterator[Expr]:
    """The variable of n repetitions at once, in one step.

    Written `for i in parallel(n)`.
    """
    return _loop(count, name, parallel=True)


def _loop(count: ExprLike, name: str, *, parallel: bool) -> Iterator[Expr]:
    recording = _recording()
    name = recording.fresh(name)
    with _frame(lambda children: Loop(name, as_expr(count), _one(children), parallel)):
        yield var(name)


@contextmanager
def together() -> Iterator[None]:
    """A context in which everything said starts in the same step."""
    with _frame(lambda children: Par(tuple(children))):
        yield


@contextmanager
def one_after_the_other() -> Iterator[None]:
    """A context in which what is said happens in turn; needed only inside `together()`."""
    with _frame(_one):
        yield


@contextmanager
def pipeline(parts: ExprLike) -> Iterator[None]:
    """A context in which everything is done for `parts` slices of every chunk, each one step behind the one before."""
    with _frame(lambda children: Pipeline(as_expr(parts), _one(children))):
        yield


@contextmanager
def channels(count: ExprLike) -> Iterator[None]:
    """A context in which everything is done for `count` slices of every chunk, side by side on channels of their own."""
    with _frame(lambda children: Channels(as_expr(count), _one(children))):
        yield


@contextmanager
def _frame(finish: Callable[[list[Node]], Node]) -> Iterator[None]:
    recording = _recording()
    recording.frames.append([])
    yield
    node = finish(recording.frames.pop())
    recording.frames[-1].append(node)


def _one(children: list[Node]) -> Node:
    return children[0] if len(children) == 1 else Seq(tuple(children))


@contextmanager
def when(condition: ExprLike) -> Iterator[None]:
    """A context in which transfers happen only where the condition is not 0."""
    recording = _recording()
    recording.guards.append(as_expr(condition))
    yield
    recording.guards.pop()


def apply(
    other: Schedule,
    over: Mapping[str, Axis] | Axis,
    where: Callable[[Expr], Location],
    *,
    params: Mapping[str, ExprLike] | None = None,
    channel: Callable[[Expr], Expr] | None = None,
) -> None:
    """Another schedule becomes part of this one: along these axes, on the places that `where` gives for each of its chunks.

    `over`: our axis for each axis of the other (or the one). `where(c)`: the place of the other's chunk c here; it may hold several chunks. Our
    other axes are untouched: every group of ranks along `over` does the same at once. `params` may be expressions of ours.
    Raises ScheduleError for schedules that use scratch, input or output.
    """
    recording, line = _recording(), _here()
    axes = {other.axes[0]: over} if isinstance(over, Axis) else dict(over)
    if set(axes) != set(other.axes):
        raise ScheduleError(
            f"{line}: {other.name} has the axes {', '.join(other.axes)}; say along which of ours each runs"
        )
    if other.open:
        raise ScheduleError(f"{line}: {other.name} leaves counts open; give them before it becomes part of another")
    swap: dict[Expr, Expr] = {}
    for name, axis in axes.items():
        swap |= {var(name): axis, size(name): axis.size}
    for name, usual in other.params:
        given = (params or {}).get(name, usual)
        if given is None:
            raise ScheduleError(f"{line}: {other.name} needs its parameter {name}")
        swap[param(name)] = as_expr(given)
    names = {}
    for name, contents in other.tables:
        names[name] = recording.fresh(name)
        recording.tables.append((names[name], contents))
    shift = len(recording.paths)
    recording.paths += other.paths
    recording.requires += [
        Requirement(substitute(r.condition, swap), f"{other.name}: {r.text}") for r in other.requires
    ]
    recording.fixed += [(str(axes[name].value), extent) for name, extent in other.fixed]
    own = {axis: var(axis) for axis in recording.axes}
    guard = as_expr(1)
    for outer in recording.guards:
        guard = outer & guard
    extent = substitute(other.chunks, swap)

    def rank(coordinates: tuple[Expr, ...]) -> tuple[Expr, ...]:
        here = {str(axes[name].value): e for name, e in zip(other.axes, coordinates, strict=True)}
        return tuple((own | here).values())

    def place(source: Location, piece: Expr | None) -> Location:
        if source.region is not Region.DATA:
            raise ScheduleError(
                f"{line}: {other.name} uses {source.region}; only schedules that work in data can be applied"
            )
        index = source.index if piece is None else source.index + piece * source.stride
        return where(index % extent)

    def one(t: Transfer, piece: Expr | None) -> Transfer:
        path = t.path if not shift or t.path == NO_PATH else select(t.path < 0, -1, t.path + shift)
        return replace(
            t, src=rank(t.src), dst=rank(t.dst), source=place(t.source, piece), target=place(t.target, piece), guard=guard & t.guard,
            group=tuple(str(axes[name].value) for name in t.group), path=path, channel=channel(t.channel) if channel else t.channel,
        )  # fmt: skip

    def change(t: Transfer) -> Node:
        if t.source.count == ONE and t.target.count == ONE:
            return one(t, None)
        piece = recording.fresh("piece")
        return Loop(piece, t.source.count, one(t, var(piece)), parallel=True)

    body = retabled(replaced(renamed_loops(other.body, recording.fresh), swap), names)
    recording.frames[-1].append(transformed(body, change))


def add(node: Node) -> None:
    """A tree made elsewhere becomes part of this schedule here; its names must be known here."""
    _recording().frames[-1].append(node)


def transfer(
    source: Location,
    *,
    to: Mapping[Axis, ExprLike] | None = None,
    frm: Mapping[Axis, ExprLike] | None = None,
    into: Location | None = None,
    reduce: bool = False,
    when: ExprLike = 1,
    channel: ExprLike = 0,
    hops: ExprLike = 1,
    path: ExprLike = -1,
    mode: Mode | None = None,
    over: tuple[Axis, ...] = (),
) -> None:
    """A message from the rank at `frm` to the rank at `to`; coordinates that are not given are those of the rank that the schedule speaks of."""
    recording = _recording()
    where = _here()
    guard = as_expr(when)
    for outer in recording.guards:
        guard = outer & guard
    for given in (to or {}, frm or {}):
        for axis in given:
            if not isinstance(axis, Axis):
                raise ScheduleError(f"{where}: {axis} is no axis of {recording.name}")
    own = {axis: var(axis) for axis in recording.axes}
    src = own | {str(axis.value): as_expr(e) for axis, e in (frm or {}).items()}
    dst = own | {str(axis.value): as_expr(e) for axis, e in (to or {}).items()}
    recording.frames[-1].append(
        Transfer(
            tuple(src.values()), tuple(dst.values()), source, into or source, mode or (Mode.REDUCE if reduce else Mode.COPY), tuple(str(a.value) for a in over),
            guard, as_expr(channel), as_expr(path), as_expr(hops), where,
        )
    )  # fmt: skip


def copy(source: Location, into: Location, *, when: ExprLike = 1, reduce: bool = False) -> None:
    """Every rank copies (or reduces) `source` into another place of its own."""
    transfer(source, into=into, when=when, reduce=reduce)
