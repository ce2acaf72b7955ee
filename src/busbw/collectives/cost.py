"""What a schedule costs: steps, and chunks that the busiest rank moves in each; from these its alpha-beta time. Counted from the schedule, not from a formula.

A step is told for all ranks at once where every rank does the same (most loops), so a ring over 131,072 ranks costs what one over 8 does. Rounds that
load ranks equally are counted, not repeated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from busbw.collectives.expansion import REDUCE, Moves, expand
from busbw.collectives.expressions import Expr, const, evaluate, free_names, substitute, var
from busbw.collectives.inversion import solve
from busbw.collectives.passes import replaced
from busbw.collectives.schedule import BoundSchedule, Channels, Loop, Mode, Node, Par, Pipeline, Seq, Transfer

__all__ = ["Cost", "Load", "Round", "cost"]

_DENSE = 20_000_000  # (steps of a pipeline's body) x ranks up to which each of its steps is told exactly
_WRITTEN = 200_000_000  # rounds x ranks up to which rounds that load ranks differently are counted one by one

_AT_ONCE = 4_000_000  # messages of a loop that are written out at once

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Load:
    """What the ranks do in one step over one class of links, in chunks: one number if all do the same, else one a rank."""

    sent: FloatArray
    received: FloatArray
    reduced: FloatArray
    message: float  # chunks of the largest message
    hops: float = 1.0

    def __add__(self, other: Load) -> Load:
        return Load(
            self.sent + other.sent, self.received + other.received, self.reduced + other.reduced,
            max(self.message, other.message), max(self.hops, other.hops),
        )  # fmt: skip

    def scaled(self, factor: float, message: float = 1.0) -> Load:
        """The load of a slice of every chunk."""
        return Load(self.sent * factor, self.received * factor, self.reduced * factor, self.message * factor * message, self.hops)  # fmt: skip


Step = Mapping[str, Load]
"""The load of one step by class of links: the outermost axis along which a message moves; "" for what stays on its rank."""


@dataclass(frozen=True, slots=True)
class Round:
    """`times` steps that load the ranks alike."""

    times: int
    step: Step


@dataclass(frozen=True, slots=True)
class Cost:
    """The rounds of a bound schedule; `chunks` of them make up size_bytes."""

    rounds: tuple[Round, ...]
    chunks: int
    ranks: int
    steps: int = field(init=False)

    def __post_init__(self) -> None:
        steps = sum(r.times * max((int(load.hops) for axis, load in r.step.items() if axis), default=0) for r in self.rounds)  # fmt: skip
        object.__setattr__(self, "steps", steps)

    def sent_share(self) -> float:
        """Bytes that the busiest sender sends, over size_bytes.

        >>> from busbw.collectives.algorithms import ring_all_reduce
        >>> cost(ring_all_reduce().bind(8)).sent_share()
        1.75
        """
        return self._most("sent")

    def received_share(self) -> float:
        """Bytes that the busiest receiver receives, over size_bytes."""
        return self._most("received")

    def reduced_share(self) -> float:
        """Bytes that the busiest rank adds up, over size_bytes."""
        return self._most("reduced")

    def _most(self, column: str) -> float:
        total = np.zeros(1)
        for r in self.rounds:
            for axis, load in r.step.items():
                if axis or column == "reduced":
                    total = total + r.times * getattr(load, column)
        return float(total.max()) / self.chunks if self.chunks else 0.0

    def time_s(
        self,
        size_bytes: float,
        alpha_s: float | Mapping[str, float],
        beta_s_per_byte: float | Mapping[str, float],
        *,
        gamma_s_per_byte: float = 0.0,
        ports: int = 1,
    ) -> float:
        """Time by the alpha-beta model, seconds: each step costs its latency and the bytes of its busiest rank in its busier direction.

        alpha and beta may differ by axis: then a message counts for the outermost axis along which it moves, and classes of links work side by side.
        With several ports the messages of a rank share them, but none is cut.

        >>> from busbw.collectives.algorithms import ring_all_gather
        >>> cost(ring_all_gather().bind(5)).time_s(1000, alpha_s=1.0, beta_s_per_byte=0.01)  # 4 + 1000 * 4/5 * 0.01
        12.0
        """
        chunk = size_bytes / self.chunks if self.chunks else 0.0
        total = 0.0
        for r in self.rounds:
            slowest = 0.0
            for axis, load in r.step.items():
                adding = float(np.max(load.reduced)) * chunk * gamma_s_per_byte
                if not axis:
                    slowest = max(slowest, adding)
                    continue
                alpha = alpha_s if isinstance(alpha_s, int | float) else alpha_s[axis]
                beta = beta_s_per_byte if isinstance(beta_s_per_byte, int | float) else beta_s_per_byte[axis]
                busiest = float(np.maximum(load.sent, load.received).max())
                carried = max(busiest / ports, load.message) if ports > 1 else busiest
                slowest = max(slowest, load.hops * alpha + carried * chunk * beta + adding)
            total += r.times * slowest
        return total


def cost(bound: BoundSchedule) -> Cost:
    """What the bound schedule costs.

    Pipelines whose body has more steps times ranks than fit in memory count every step as busy as a full pipeline.
    """
    return Cost(tuple(_squeezed(_rounds(bound, bound.schedule.body, {}))), bound.chunks, bound.ranks)


def _rounds(bound: BoundSchedule, node: Node, known: dict[Expr, Expr]) -> list[Round]:
    """The rounds of a part of the schedule, its outer variables replaced by numbers."""
    if isinstance(node, Seq):
        return [r for child in node.children for r in _rounds(bound, child, known)]
    if isinstance(node, Pipeline):
        return _wavefront(_rounds(bound, node.body, known), bound.value(node.parts), bound.ranks)
    if isinstance(node, Channels):
        count = bound.value(node.count)
        return [
            Round(r.times, {a: load.scaled(1.0, 1 / count) for a, load in r.step.items()})
            for r in _rounds(bound, node.body, known)
        ]
    if _single_step(node):
        step = _step(bound, node, known)
        return [Round(1, step)] if step else []
    if isinstance(node, Par):
        return _side_by_side([_rounds(bound, child, known) for child in node.children])
    if isinstance(node, Loop):
        count = int(evaluate(substitute(node.count, known), bound.environment))
        if count < 1:
            return []
        if not node.parallel and not _matters(node.body, node.var):
            once = _rounds(bound, node.body, known | {var(node.var): const(0)})
            if all(load.sent.size == 1 for r in once for load in r.step.values()):
                return once * count if len(once) > 1 else [Round(r.times * count, r.step) for r in once]
        if not node.parallel and _single_step(node.body):
            first = replaced(node.body, known | {var(node.var): const(0)})
            if _even_step(bound, first) is None and (rounds := _counted_turns(bound, node, known, count)) is not None:
                return rounds
        if count * bound.ranks > _WRITTEN:
            raise ValueError(
                f"{bound.schedule.name} with {bound.sizes_text}: {count} rounds that load ranks differently are too many to count"
            )
        turns = [_rounds(bound, node.body, known | {var(node.var): const(i)}) for i in range(count)]
        if node.parallel:
            return _side_by_side(turns)
        return [r for turn in (reversed(turns) if node.descending else turns) for r in turn]
    raise TypeError(node)


def _single_step(node: Node) -> bool:
    if isinstance(node, Par):
        return all(_single_step(child) for child in node.children)
    if isinstance(node, Loop):
        return node.parallel and _single_step(node.body)
    return isinstance(node, Transfer)


def _matters(node: Node, name: str) -> bool:
    """Whether the load of this part may depend on the variable: shifted ranks load alike, counts and guards don't."""
    if isinstance(node, Seq | Par):
        return any(_matters(child, name) for child in node.children)
    if isinstance(node, Loop):
        return name in free_names(node.count) or _matters(node.body, name)
    if isinstance(node, Pipeline | Channels):
        return _matters(node.body, name)
    if any(name in free_names(e) for e in (node.guard, node.source.count, node.hops)):
        return True
    return any(name in free_names(e) and not _shift(e, name) for e in (*node.src, *node.dst))


def _shift(expr: Expr, name: str) -> bool:
    """Whether the variable only shifts (or xors) the whole expression, so that a permutation of ranks stays one."""
    if expr.op == "var":
        return True
    if expr.op in ("add", "sub", "xor", "mod", "mul"):
        holding = [arg for arg in expr.args if name in free_names(arg)]
        if expr.op == "mod":
            return len(holding) == 1 and holding[0] == expr.args[0] and _shift(expr.args[0], name)
        return len(holding) == 1 and (free_names(holding[0]) == {name} or _shift(holding[0], name))
    return free_names(expr) == {name}


def _step(bound: BoundSchedule, node: Node, known: dict[Expr, Expr]) -> Step:
    """The load of one step."""
    bare = replaced(node, known)
    even = _even_step(bound, bare)
    return _counted_step(bound, bare) if even is None else even


def _even_step(bound: BoundSchedule, node: Node) -> Step | None:
    """The load if every rank sends and receives the same, told by form; else None."""
    step: dict[str, Load] = {}
    axes = bound.schedule.axes
    environment = bound.environment
    for transfer, loops in _leaves(node, ()):
        names = {loop.var for loop in loops}
        axis = _link_class(transfer, axes)
        domain = transfer.domain(axes)
        fixed = (transfer.hops, *(loop.count for loop in loops))
        if any(free_names(e) for e in fixed) or (not transfer.group and set(domain) != set(axes)):
            return None
        if any(free_names(e) for e in (transfer.guard, transfer.source.count)):
            load = _admitted_load(bound, transfer, loops)
            if load is None:
                return None
            if load.sent.any():
                step[axis] = step[axis] + load if axis in step else load
            continue
        pieces = 1
        for loop in loops:
            pieces *= max(int(evaluate(loop.count, environment)), 0)
        if not int(evaluate(transfer.guard, environment)) or not pieces:
            continue
        count = float(max(int(evaluate(transfer.source.count, environment)), 0))
        hops = float(int(evaluate(transfer.hops, environment)))
        if transfer.group:
            load = _group_load(bound, transfer, domain, pieces * count, hops)
        elif _permutes(bound, transfer.src, names) and _permutes(bound, transfer.dst, names):
            moved = np.full(1, pieces * count)
            reduced = moved if transfer.mode is Mode.REDUCE else np.zeros(1)
            different = any(free_names(e) & names for e in (*transfer.src, *transfer.dst))
            load = Load(moved, moved, reduced, count if different else pieces * count, hops)
        else:
            return None
        if load is None:
            return None
        step[axis] = step[axis] + load if axis in step else load
    return step


def _admitted_load(bound: BoundSchedule, transfer: Transfer, loops: tuple[Loop, ...]) -> Load | None:
    """The load of a step whose guard or count depends on its parallel loops, but not on the rank; None where it isn't so by form."""
    names = {loop.var for loop in loops}
    if transfer.group or any(free_names(e) - names for e in (transfer.guard, transfer.source.count)):
        return None
    if not (_permutes(bound, transfer.src, names) and _permutes(bound, transfer.dst, names)):
        return None
    extents = [max(bound.value(loop.count), 0) for loop in loops]
    if math.prod(extents) > _DENSE:
        return None
    values = np.meshgrid(*(np.arange(n, dtype=np.int64) for n in extents), indexing="ij")
    variables = {loop.var: v.ravel() for loop, v in zip(loops, values, strict=True)}
    environment = bound.environment.having(**variables)
    total = math.prod(extents)
    admitted = np.broadcast_to(evaluate(transfer.guard, environment), total) != 0
    count = np.where(admitted, np.maximum(evaluate(transfer.source.count, environment), 0), 0)
    away = np.zeros(total, np.int64)  # which rank each goes to, seen from the one it leaves
    for (axis, extent), src, dst in zip(bound.sizes, transfer.src, transfer.dst, strict=True):
        seen = [
            (evaluate(dst, here) - np.asarray(evaluate(src, here))) % extent
            for here in (environment.having(**dict.fromkeys(bound.schedule.axes, place)) for place in (0, 1))
        ]
        if axis not in names and np.not_equal(*seen).any():
            return None
        away = away * extent + seen[0]
    moved = np.full(1, float(count.sum()))
    message = np.bincount(np.unique(away, return_inverse=True)[1].ravel(), count).max(initial=0)
    reduced = moved if transfer.mode is Mode.REDUCE else np.zeros(1)
    return Load(moved, moved, reduced, float(message), float(bound.value(transfer.hops)))


def _group_load(
    bound: BoundSchedule, transfer: Transfer, domain: tuple[str, ...], moved: float, hops: float
) -> Load | None:
    """The load of a step through the switch in which every rank of the domain takes part alike."""
    if transfer.src != transfer.dst or not all(e.op == "var" for e in transfer.src if free_names(e)):
        return None
    sizes = dict(bound.sizes)
    if set(domain) | set(transfer.group) != set(bound.schedule.axes):
        return None
    together = 1.0  # how many ranks of a group act in this step
    for axis in set(transfer.group) & set(domain):
        together *= sizes[axis]
    one, all_ = np.full(1, moved), np.full(1, moved * together)
    if transfer.mode is Mode.MULTICAST:
        return Load(one, all_, np.zeros(1), moved, hops)
    if transfer.mode is Mode.NETWORK_REDUCE:
        return Load(all_, one, np.zeros(1), moved, hops)
    return Load(all_, all_, np.zeros(1), moved, hops)


def _permutes(bound: BoundSchedule, rank: tuple[Expr, ...], names: set[str]) -> bool:
    """Whether the expression sends different ranks to different ranks, by form."""
    axes = bound.schedule.axes
    found = solve(dict(zip(axes, rank, strict=True)), axes, {axis: var(f"_{axis}") for axis in axes})
    if found is None or any(free_names(e) - names - set(axes) for e in rank):
        return False
    for (_, extent), expr in zip(bound.sizes, rank, strict=True):
        used = _operations(expr)
        if used & {"fold", "unfold"} or ("xor" in used and extent & (extent - 1)):
            return False  # these permute all ranks only where their number is a power of two
    return True


def _operations(expr: Expr) -> set[str]:
    return {expr.op}.union(*(_operations(arg) for arg in expr.args))


def _counted_step(bound: BoundSchedule, node: Node) -> Step:
    """The load of a step, all its moves written out."""
    alone = replace(bound, schedule=replace(bound.schedule, body=node))
    return _load_of(bound, [transfer for transfer, _ in _leaves(node, ())], expand(alone, whole=True))


def _counted_turns(bound: BoundSchedule, loop: Loop, known: dict[Expr, Expr], count: int) -> list[Round] | None:
    """The rounds of a loop of single steps, written out all at once; None where that is much."""
    bare = replaced(loop, known)
    if not isinstance(bare, Loop) or count * bound.ranks > _AT_ONCE:
        return None
    try:
        moves = expand(replace(bound, schedule=replace(bound.schedule, body=bare)), whole=True, most=_AT_ONCE)
    except ValueError:  # too many; told turn by turn, which may be cheaper by form
        return None
    leaves = [transfer for transfer, _ in _leaves(bare.body, ())]
    begin = np.searchsorted(moves.step, np.arange(count + 1))
    each = (moves.taken(np.arange(a, b)) for a, b in pairwise(begin.tolist()) if b > a)
    return [Round(1, _load_of(bound, leaves, some)) for some in each]


def _load_of(bound: BoundSchedule, leaves: list[Transfer], moves: Moves) -> Step:
    """The load of the moves of one step."""
    step: dict[str, Load] = {}
    for axis in dict.fromkeys(_link_class(t, bound.schedule.axes) for t in leaves):
        which = np.flatnonzero(np.isin(moves.transfer, [i for i, t in enumerate(leaves) if _link_class(t, bound.schedule.axes) == axis]))  # fmt: skip
        some = moves.taken(which)
        if not len(some):
            continue
        crossing = some.src != some.dst if axis else np.ones(len(some), bool)
        sent, received = np.zeros(bound.ranks), np.zeros(bound.ranks)
        switched = np.array([bool(leaf.group) for leaf in leaves])[some.transfer]
        plain = np.flatnonzero(crossing & ~switched)
        weight = some.count.astype(float)
        sent += np.bincount(some.src[plain], weight[plain], bound.ranks)
        received += np.bincount(some.dst[plain], weight[plain], bound.ranks)
        for number, transfer in enumerate(leaves):
            if not transfer.group:
                continue
            rows = np.flatnonzero(some.transfer == number)
            for ends, total in ((some.src, sent), (some.dst, received)):
                once = np.unique(np.stack([some.message[rows], ends[rows], some.count[rows]]), axis=1)
                np.add.at(total, once[1], once[2].astype(float))
        reduced = np.zeros(bound.ranks)
        adding = some.action == REDUCE
        np.add.at(reduced, some.dst[adding], weight[adding])
        pair = np.bincount(
            np.unique((some.src * bound.ranks + some.dst) * 65536 + some.channel, return_inverse=True)[1], weight
        )
        hops = max(float(int(evaluate(t.hops, bound.environment))) for t in leaves)
        step[axis] = Load(sent, received, reduced, float(pair.max(initial=0.0)), hops)
    return step


def _leaves(node: Node, loops: tuple[Loop, ...]) -> Iterator[tuple[Transfer, tuple[Loop, ...]]]:
    if isinstance(node, Transfer):
        yield node, loops
    elif isinstance(node, Par):
        for child in node.children:
            yield from _leaves(child, loops)
    elif isinstance(node, Loop):
        yield from _leaves(node.body, (*loops, node))


def _link_class(transfer: Transfer, axes: tuple[str, ...]) -> str:
    """The outermost axis along which a transfer moves; "" for local ones."""
    for axis, src, dst in zip(axes, transfer.src, transfer.dst, strict=True):
        if axis in transfer.group or src != dst:
            return axis
    return ""


def _side_by_side(children: list[list[Round]]) -> list[Round]:
    """Rounds of parts that run at once, step by step."""
    left = [[(r.times, r.step) for r in child] for child in children]
    found: list[Round] = []
    while any(left):
        running = [child for child in left if child]
        times = min(child[0][0] for child in running)
        step: dict[str, Load] = {}
        for child in running:
            for axis, load in child[0][1].items():
                step[axis] = step[axis] + load if axis in step else load
            remaining = child[0][0] - times
            child[:1] = [(remaining, child[0][1])] if remaining else []
        found.append(Round(times, step))
    return found


def _wavefront(body: list[Round], parts: int, ranks: int) -> list[Round]:
    """Rounds of a pipeline: in its step s, slice i does step s - i of the body."""
    steps = [r.step for r in body for _ in range(r.times)] if sum(r.times for r in body) <= _DENSE else []
    if not body or parts < 2:
        return body
    count = sum(r.times for r in body)
    axes = sorted({axis for r in body for axis in r.step})
    if count * ranks > _DENSE:
        full: dict[str, Load] = {}
        for r in body:
            for axis, load in r.step.items():
                more = Load(load.sent * r.times, load.received * r.times, load.reduced * r.times, load.message, load.hops)  # fmt: skip
                full[axis] = full[axis] + more if axis in full else more
        return [Round(count + parts - 1, {axis: load.scaled(1 / parts) for axis, load in full.items()})]
    found: list[dict[str, Load]] = [{} for _ in range(count + parts - 1)]
    for axis in axes:
        loads = [step.get(axis) for step in steps]
        wide = max(len(x.sent) for x in loads if x is not None)
        running = np.zeros((3, count + 1, wide))
        for place, one in enumerate(loads):
            if one is not None:
                running[0, place + 1], running[1, place + 1], running[2, place + 1] = (
                    one.sent,
                    one.received,
                    one.reduced,
                )
        running = np.cumsum(running, axis=1)
        message = max(x.message for x in loads if x is not None) / parts
        hops = max(x.hops for x in loads if x is not None)
        for at in range(count + parts - 1):
            window = running[:, min(at, count - 1) + 1] - running[:, max(0, at - parts + 1)]
            if window.any():
                found[at][axis] = Load(window[0] / parts, window[1] / parts, window[2] / parts, message, hops)
    return [Round(1, step) for step in found]


def _squeezed(rounds: list[Round]) -> Iterator[Round]:
    """Neighbouring rounds with the same load as one; those that move nothing left out."""
    last: Round | None = None
    for r in rounds:
        if not r.step:
            continue
        if last is not None and _same(last.step, r.step):
            last = Round(last.times + r.times, last.step)
            continue
        if last is not None:
            yield last
        last = r
    if last is not None:
        yield last


def _same(a: Step, b: Step) -> bool:
    return a.keys() == b.keys() and all(
        x.message == b[axis].message and x.hops == b[axis].hops and all(np.array_equal(getattr(x, n), getattr(b[axis], n)) for n in ("sent", "received", "reduced"))
        for axis, x in a.items()
    )  # fmt: skip
