"""Proof that a schedule keeps its promise at numbers of ranks at which nobody can execute all of them.

Ways, whichever fits; all are exact about every rank and chunk unless the proof says otherwise:

- One rank for all. If renumbering the ranks by a group that takes any rank to any other takes the schedule to itself (rotations along the axes; xor, or reflections, for powers
  of two), all ranks do the same, seen from themselves. Then one rank is executed: what arrives from a peer is what the rank itself holds, renumbered. Sets of
  contributors are kept as boxes (intervals along each axis, subcubes for xor); a union that is no box is not decided. That the group fits is shown
  by form (every rank expression is r + f(steps), every chunk index k r + f(steps)), on all ranks, or on a sample of ranks: `Proof.symmetry` says which.
- A reduce_scatter or reduce is proved backwards: where copies bring every chunk to every rank once, its way is a tree, and the tree sums in reverse. An
  all_reduce of two halves is proved by halves.
- Chunk by chunk, where all moves pass through one switch that sums and multicasts (`network_proof.py`).
- All moves at once, for collectives that only copy chunks to the place of their number (trees): a place holds its chunk or nothing.
- All ranks, few chunks (trees that sum). Contributors are kept as their number and the sum of a random 64-bit number each: a wrong set passes with a chance
  below 2^-50 (`Proof.method` says so).

What is proved, is proved for the sizes that were bound. The library's schedules are besides executed in full at every number of ranks up to 64 by the benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise, permutations

import numpy as np
from numpy.typing import NDArray

from busbw.collectives.collective import REDUCING
from busbw.collectives.expansion import COPY, NETWORK, REGIONS, Moves, Walk, expand, sent_by
from busbw.collectives.expressions import (
    Environment,
    Expr,
    IntArray,
    affine,
    const,
    evaluate,
    free_names,
    param,
    size,
    substitute,
)
from busbw.collectives.network_proof import messages_through_one_switch
from busbw.collectives.passes import reverse
from busbw.collectives.provenance import Fault
from busbw.collectives.schedule import BoundSchedule, Location, Mode, Node, Region, Seq, Transfer, transfers_of

__all__ = ["NotProvedError", "Proof", "prove"]

_SAMPLE = 24  # ranks on which a symmetry is tried where all are too many; a guess at what finds a rank that differs
_ROWS = 6_000_000  # messages of all ranks up to which a symmetry is checked on all of them
_EVENTS = 4_000_000  # moves of one rank that are executed
_STATE = 8_000_000  # ranks x chunks that the second way keeps
_PLACES = 100_000_000  # ranks x chunks of which it is kept whether they are filled
_STEPS = 4_096  # steps that the second way takes
_MOST_RANKS = 1 << 22  # beyond, columns of all ranks do not fit memory; several times the GPUs of any cluster announced


class NotProvedError(ValueError):
    """Neither way decides this schedule at these sizes; it may be right."""


@dataclass(frozen=True, slots=True)
class Proof:
    """How a bound schedule was proved, or what is wrong with it (`faults`).

    `symmetry`: how the renumbering was shown to fit: "by form", "on all ranks", "on 24 ranks"; "" for the second way.
    """

    ranks: int
    method: str
    symmetry: str
    moves: int
    faults: tuple[Fault, ...]
    once: bool = False  # every chunk came to every rank once, by copies

    @property
    def holds(self) -> bool:
        """Whether the promise is kept."""
        return not self.faults


def prove(bound: BoundSchedule) -> Proof:
    """The proof that a bound schedule keeps its promise, or its faults.

    Raises NotProvedError, with what is in the way, if neither way decides it.

    >>> from busbw.collectives.algorithms import ring_all_gather
    >>> proof = prove(ring_all_gather().bind(4096))
    >>> proof.holds, proof.method, proof.symmetry
    (True, 'one rank for all, rotation', 'by form')
    """
    if bound.ranks > _MOST_RANKS:
        raise NotProvedError(
            f"{bound.ranks} ranks are more than {_MOST_RANKS}, up to which columns of all ranks fit memory"
        )
    reasons: list[str] = []
    for way in (_one_switch, _halves_of_all_reduce, _backwards, _any_symmetry, _presence, _all_ranks):
        try:
            return way(bound)
        except ValueError as reason:  # NotProvedError, and moves that are too many to be written out
            reasons.append(str(reason))
    raise NotProvedError(
        f"{bound.schedule.name} with {bound.sizes_text} is not decided: " + "; ".join(filter(None, reasons))
    )


def _one_switch(bound: BoundSchedule) -> Proof:
    messages = messages_through_one_switch(bound)
    if messages is None:
        raise NotProvedError("")
    return Proof(bound.ranks, "chunks through one switch", "", messages, ())


def _any_symmetry(bound: BoundSchedule) -> Proof:
    reasons = []
    for group in _groups(bound):
        try:
            return _one_for_all(bound, group)
        except NotProvedError as reason:
            reasons.append(f"{group.name}: {reason}")
    raise NotProvedError(", ".join(reasons))


def _backwards(bound: BoundSchedule, *, by_symmetry: bool = False) -> Proof:
    """A reduce_scatter, reduce or gather by its reverse: where every chunk comes to every rank once, by copies, its way is a tree; backwards, the tree sums."""
    if bound.schedule.kind not in ("reduce_scatter", "reduce"):
        raise NotProvedError("")
    forwards = replace(bound, schedule=reverse(bound.schedule))
    for way in (_any_symmetry,) if by_symmetry else (_any_symmetry, _presence):
        try:
            proof = way(forwards)
        except (NotProvedError, ValueError):
            continue
        if proof.holds and proof.once:
            return replace(proof, method=f"backwards: {proof.method}")
    raise NotProvedError("its reverse is not decided, or brings chunks twice")


def _halves_of_all_reduce(bound: BoundSchedule) -> Proof:
    """An all_reduce made of a reduce_scatter and an all_gather, each proved."""
    body = bound.schedule.body
    if bound.schedule.kind != "all_reduce" or not isinstance(body, Seq) or bound.chunks % bound.ranks:
        raise NotProvedError("")
    children = [child for child in _flat(body) if not _idle(bound, child)]
    sums = [any(t.mode in (Mode.REDUCE, Mode.NETWORK_REDUCE) for t in transfers_of(child)) for child in children]
    place = sums.index(False) if False in sums else 0
    if not place or any(sums[place:]):
        raise NotProvedError("")
    proofs = []
    for kind, part in (("reduce_scatter", children[:place]), ("all_gather", children[place:])):
        half = replace(bound, schedule=replace(bound.schedule, kind=kind, body=Seq(tuple(part))))
        try:
            proof = _backwards(half, by_symmetry=True) if kind == "reduce_scatter" else _any_symmetry(half)
        except NotProvedError:
            proof = None
        if proof is None or not proof.holds:
            raise NotProvedError("")
        proofs.append(proof)
    first, second = proofs
    symmetry = ", then ".join(dict.fromkeys(p.symmetry for p in proofs if p.symmetry))
    return Proof(bound.ranks, f"{first.method}, then {second.method}", symmetry, first.moves + second.moves, ())


def _flat(node: Node) -> list[Node]:
    """What comes one after the other."""
    return [part for child in node.children for part in _flat(child)] if isinstance(node, Seq) else [node]


def _idle(bound: BoundSchedule, node: Node) -> bool:
    """Whether a transfer is no rank's, such as folding where nothing is left over."""
    if not isinstance(node, Transfer):
        return False
    env = bound.environment.having(**bound.coordinates())
    return (
        bound.ranks <= _ROWS
        and not free_names(node.guard) - set(bound.schedule.axes)
        and not np.any(evaluate(node.guard, env))
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """Renumberings of the ranks; element g takes rank 0 to g.

    Rotation and xor: rank x to x + g, digit by digit (`radix`, last counts fastest). Reflection: even g take x to g + x, odd g to g - x.
    """

    name: str
    radix: tuple[int, ...]

    @property
    def order(self) -> int:
        return int(np.prod(self.radix, dtype=np.int64))

    def act(self, g: IntArray, x: IntArray) -> IntArray:
        if self.name == "reflection":
            return np.where(g % 2 == 0, g + x, g - x) % self.order
        if all(n == 2 for n in self.radix):
            return np.bitwise_xor(g, x)
        if len(self.radix) == 1:
            return (g + x) % self.radix[0]
        digits = zip(np.unravel_index(g, self.radix), np.unravel_index(x, self.radix), self.radix, strict=True)
        return np.ravel_multi_index([(a + b) % n for a, b, n in digits], self.radix).astype(np.int64)

    def inverse(self, g: IntArray) -> IntArray:
        if self.name == "reflection":
            return np.where(g % 2 == 0, -g, g) % self.order
        if all(n == 2 for n in self.radix):
            return g
        if len(self.radix) == 1:
            return -g % self.radix[0]
        return np.ravel_multi_index(
            [-a % n for a, n in zip(np.unravel_index(g, self.radix), self.radix, strict=True)], self.radix
        ).astype(np.int64)


def _groups(bound: BoundSchedule) -> Iterator[_Group]:
    extents = tuple(extent for _, extent in bound.sizes)
    yield _Group("rotation", extents)
    ranks = bound.ranks
    if ranks > 2 and ranks & (ranks - 1) == 0:
        yield _Group("xor", (2,) * (ranks.bit_length() - 1))
        yield _Group("reflection", (ranks,))


@dataclass(frozen=True, slots=True)
class _Labels:
    """How a renumbering acts on chunk indices of each region: on the rank they belong to, or not at all (0).

    `each` chunks a rank, rank after rank; or, negative, that many times one chunk of every rank. `order`: of the axes by which the owners of `data` are
    counted, slowest first, where it is not that of the ranks.
    """

    each: tuple[int, ...]
    order: tuple[int, ...] = ()

    def act(self, group: _Group, region: IntArray, g: IntArray, index: IntArray) -> IntArray:
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

    def _owner(self, group: _Group, code: int, g: IntArray, owner: IntArray) -> IntArray:
        if not self.order or code:
            return group.act(g, owner)
        radix = [group.radix[axis] for axis in self.order]
        steps = [np.unravel_index(g, group.radix)[axis] for axis in self.order]
        digits = [(a + b) % n for a, b, n in zip(np.unravel_index(owner, radix), steps, radix, strict=True)]
        return np.ravel_multi_index(digits, radix).astype(np.int64)


def _one_for_all(bound: BoundSchedule, group: _Group) -> Proof:
    kind = bound.schedule.kind
    if kind not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "send_recv"):
        raise NotProvedError(f"a {kind} has a root, or counts, that renumbering moves")
    if any(t.group for t in transfers_of(bound.schedule.body)):
        raise NotProvedError("it works in the network")
    found = _labels(bound, group)
    if found is None:
        raise NotProvedError("renumbering changes it")
    labels, symmetry = found
    own = sent_by(bound, 0, most=_EVENTS)
    faults, once = _executed(bound, group, labels, own)
    return Proof(bound.ranks, f"one rank for all, {group.name}", symmetry, len(own), tuple(faults), once)


def _labels(bound: BoundSchedule, group: _Group) -> tuple[_Labels, str] | None:
    """The action on chunks for which every rank does what rank 0 does, and how that was shown."""
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
                    labels = _Labels((data, given, each[2][0] if given else 0, scratch), order)
                    symmetry = _fits(bound, group, labels)
                    if symmetry:
                        return labels, symmetry
    return None


def _fits(bound: BoundSchedule, group: _Group, labels: _Labels) -> str:
    """How it was shown that renumbering with these labels changes nothing; "" if it does."""
    if group.name == "rotation" and len(bound.sizes) == 1 and all(_by_form(bound, labels, t) for t in transfers_of(bound.schedule.body)):  # fmt: skip
        return "by form"
    check = _SymmetryCheck(bound, group, labels)
    check.visit(bound.schedule.body, bound.environment, 1, np.zeros(1, np.int64))
    if not check.fits:
        return _fits_in_any_order(bound, group, labels, check)
    return "on all ranks" if check.fewest == bound.ranks else f"on {check.fewest} ranks"


def _fits_in_any_order(bound: BoundSchedule, group: _Group, labels: _Labels, check: _SymmetryCheck) -> str:
    """The same where ranks do the same moves of a step in different turns of its loops: compares all that a rank sends."""
    own = sent_by(bound, 0, most=_EVENTS)
    few = check.everyone if len(own) * bound.ranks <= _ROWS // 8 else check.few
    key = _keys(own, own.dst, own.src_index, own.dst_index)
    for rank in few.tolist()[1:]:
        theirs = sent_by(bound, rank, most=_EVENTS)
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

    def __init__(self, bound: BoundSchedule, group: _Group, labels: _Labels) -> None:
        super().__init__(bound, _EVENTS)
        self.group, self.labels = group, labels
        self.fits = True
        self.fewest = bound.ranks
        rng = np.random.default_rng(bound.ranks)
        self.everyone = np.arange(bound.ranks, dtype=np.int64)
        some = np.concatenate([[0, 1, bound.ranks - 1], rng.integers(0, bound.ranks, _SAMPLE)])
        self.few = np.unique(some % bound.ranks)

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


def _by_form(bound: BoundSchedule, labels: _Labels, transfer: Transfer) -> bool:
    """Whether the transfer reads, for every rank r: r to r + f, chunks each r + f, under no condition on r."""
    (axis,) = bound.schedule.axes
    sizes = _constants(bound)
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


def _constants(bound: BoundSchedule) -> dict[Expr, Expr]:
    """Sizes and parameters as numbers."""
    return {size(a): const(n) for a, n in bound.sizes} | {param(n): const(v) for n, v in bound.params}


# One rank for all: what it holds


def _executed(bound: BoundSchedule, group: _Group, labels: _Labels, own: Moves) -> tuple[list[Fault], bool]:
    """Faults of rank 0 when all others do what it does, and whether each place was written once."""
    sender = group.inverse(own.dst)  # who sends rank 0 what rank 0 sends on: the g that takes dst to 0
    read = own.src_index  # in rank 0's own numbers
    written = labels.act(group, own.dst_region, sender, own.dst_index)
    offsets = np.concatenate([[0], np.cumsum([bound.extent(region) for region in REGIONS])])
    read_place, write_place = (offsets[own.src_region] + read).tolist(), (offsets[own.dst_region] + written).tolist()
    bounds = np.flatnonzero(np.diff(own.step, prepend=-1, append=-1)).tolist()
    if bound.schedule.kind in (*REDUCING, "barrier"):
        if group.name == "reflection":
            raise NotProvedError("sums are not followed")
        return _sums(bound, group, own, (read_place, write_place, sender.tolist(), bounds)), False
    if bound.schedule.kind == "all_gather":
        return _filled(bound, own, np.array(read_place, np.int64), np.array(write_place, np.int64))
    return _copies(bound, group, labels, own, (read_place, write_place, sender, bounds)), False


def _filled(bound: BoundSchedule, own: Moves, read: IntArray, written: IntArray) -> tuple[list[Fault], bool]:
    """An all_gather in which chunks keep their numbers: a place holds its chunk or nothing."""
    if not _keeps_numbers(own):
        raise NotProvedError("chunks change their numbers, or are summed")
    never = np.iinfo(np.int64).max
    since = np.full(bound.chunks, never)
    np.minimum.at(since, written, own.step)
    since[: bound.chunks // bound.ranks] = -1
    lacking = np.flatnonzero(since[read] >= own.step)
    faults = []
    if len(lacking):
        faults.append(_fault(bound, own, int(lacking[0]), "read-before-write", "is read before it is written"))
    if _distinct(written * (int(own.step.max(initial=0)) + 1) + own.step) != len(own):
        faults.append(_fault(bound, own, 0, "two-writers", "or another chunk is written twice in one step"))
    missing = np.flatnonzero(since == never)
    if len(missing):
        faults.append(Fault("missing", f"{_said(bound)}: at the end chunk {missing[0]} of every rank, counted from itself, was never written", count=len(missing)))  # fmt: skip
    once = _distinct(written) == len(written) and bool((written >= bound.chunks // bound.ranks).all())
    return faults, once


def _keeps_numbers(moves: Moves) -> bool:
    """Whether only data is copied, each chunk to the place of its number."""
    return bool((moves.src_region == 0).all() and (moves.dst_region == 0).all() and (moves.src_index == moves.dst_index).all() and (moves.action == COPY).all())  # fmt: skip


def _copies(
    bound: BoundSchedule, group: _Group, labels: _Labels, own: Moves, plan: tuple[list[int], list[int], IntArray, list[int]]
) -> list[Fault]:  # fmt: skip
    """Collectives without sums: a place holds (origin, index there), renumbered on the way."""
    reads, writes, sender, bounds = plan
    read_place, write_place = np.array(reads, np.int64), np.array(writes, np.int64)
    extents = [bound.extent(region) for region in REGIONS]
    offsets = np.concatenate([[0], np.cumsum(extents)])
    origin, index = np.full(offsets[-1], -1, np.int64), np.full(offsets[-1], -1, np.int64)
    chunk = np.arange(bound.chunks, dtype=np.int64)
    kind = bound.schedule.kind
    code = REGIONS.index(Region.INPUT)
    origin[offsets[code] + chunk], index[offsets[code] + chunk] = 0, chunk
    if (own.action != COPY).any():
        raise NotProvedError("it reduces what its kind only copies")
    faults: list[Fault] = []
    for first, last in _runs(bounds, own, write_place, read_place):
        at = slice(first, last)
        got, got_index = origin[read_place[at]], index[read_place[at]]
        if (got < 0).any():
            faults.append(_fault(bound, own, first + int(np.argmax(got < 0)), "read-before-write", "is read before it is written"))  # fmt: skip
            break
        places = write_place[at]
        if _distinct(places) != len(places):
            faults.append(_fault(bound, own, first, "two-writers", "is written twice in one step"))
            break
        origin[places] = group.act(sender[at], got)
        index[places] = labels.act(group, np.full(last - first, code), sender[at], got_index)
    if faults:
        return faults
    end = offsets[REGIONS.index(Region.OUTPUT)]
    has, has_index = origin[end : end + bound.chunks], index[end : end + bound.chunks]
    each = max(bound.chunks // bound.ranks, 1)
    if kind == "send_recv":
        wanted, wanted_index = np.full(bound.chunks, (bound.ranks - 1) % bound.ranks), chunk
    else:
        wanted, wanted_index = chunk // each, chunk % each
    wrong = np.flatnonzero((has != wanted) | (has_index != wanted_index))
    if len(wrong):
        faults.append(Fault("wrong-chunk", f"{_said(bound)}: at the end chunk {wrong[0]} of every rank, counted from itself, is missing or another", count=len(wrong)))  # fmt: skip
    return faults


def _runs(bounds: list[int], own: Moves, write_place: IntArray, read_place: IntArray) -> Iterator[tuple[int, int]]:
    """Steps, neighbouring ones joined while none reads or writes what one before it in the run has written: they may be told at once."""
    first = bounds[0] if bounds else 0
    if len(bounds) < 2:
        return
    if len(bounds) - 1 <= 64:
        yield from pairwise(bounds)
        return
    at = first
    writers: set[int] = set()
    places, reads = write_place.tolist(), read_place.tolist()
    for begin, end in pairwise(bounds):
        if begin > at and any(reads[i] in writers or places[i] in writers for i in range(begin, end)):
            yield at, begin
            at, writers = begin, set()
        writers.update(places[begin:end])
    yield at, bounds[-1]


def _sums(
    bound: BoundSchedule, group: _Group, own: Moves, plan: tuple[list[int], list[int], list[int], list[int]]
) -> list[Fault]:  # fmt: skip
    """Collectives with sums: a place holds a box of contributors, as seen from its rank."""
    reads, writes, senders, bounds = plan
    if (own.src_region != 0).any() or (own.dst_region != 0).any() or (own.src_index != own.dst_index).any():
        raise NotProvedError("sums move between places of different numbers")
    boxes = _boxes(group)
    idempotent = bound.schedule.kind == "barrier"
    start = boxes.one
    state: list[object] = [start] * bound.chunks
    copy = (own.action == COPY).tolist()
    for first, last in pairwise(bounds):
        if last - first == 1:
            arriving = [boxes.moved(state[reads[first]], senders[first])]
            order: range | list[int] = range(1)
        else:
            arriving = [boxes.moved(state[reads[i]], senders[i]) for i in range(first, last)]
            order = sorted(range(last - first), key=lambda i: boxes.order(senders[first + i]))
        for i in order:
            place = writes[first + i]
            if copy[first + i]:
                state[place] = arriving[i]
                continue
            joined = boxes.joined(state[place], arriving[i], overlap=idempotent)
            if joined is None:
                if boxes.overlap(state[place], arriving[i]):
                    return [_fault(bound, own, first + i, "counted-twice", "gets a contribution for the second time")]
                raise NotProvedError(f"in step {own.step[first]} contributors are no box")
            state[place] = joined
    wanted = range(bound.chunks)
    if bound.schedule.kind == "reduce_scatter":
        wanted = range(bound.chunks // bound.ranks)
    lacking = [chunk for chunk in wanted if not boxes.whole(state[chunk])]
    if lacking:
        return [Fault("wrong-contributors", f"{_said(bound)}: at the end chunk {lacking[0]} of every rank, counted from itself, lacks contributions", count=len(lacking))]  # fmt: skip
    return []


class _Intervals:
    """Sets of ranks of a rotation along one axis: (first, how many)."""

    one: tuple[int, int] = (0, 1)

    def __init__(self, size: int) -> None:
        self.size = size

    def moved(self, box, g: int):  # type: ignore[no-untyped-def]
        return ((box[0] + g) % self.size, box[1])

    def order(self, g: int) -> int:
        return -g % self.size

    def joined(self, a, b, *, overlap: bool):  # type: ignore[no-untyped-def]
        (x, n), (y, m) = a, b
        size = self.size
        if (x + n - y) % size == 0 and n + m <= size:
            return (x, n + m)
        if (y + m - x) % size == 0 and n + m <= size:
            return (y, n + m)
        if overlap:
            if (y - x) % size <= n:
                return (x, min(size, max(n, (y - x) % size + m)))
            if (x - y) % size <= m:
                return (y, min(size, max(m, (x - y) % size + n)))
        return None

    def overlap(self, a, b) -> bool:  # type: ignore[no-untyped-def]
        return bool((b[0] - a[0]) % self.size < a[1] or (a[0] - b[0]) % self.size < b[1])

    def whole(self, box) -> bool:  # type: ignore[no-untyped-def]
        return bool(box[1] == self.size)


class _Subcubes:
    """Sets of ranks under xor: (one member with the free bits 0, free bits)."""

    one: tuple[int, int] = (0, 0)

    def __init__(self, size: int) -> None:
        self.size = size

    def moved(self, box, g: int):  # type: ignore[no-untyped-def]
        return ((box[0] ^ g) & ~box[1], box[1])

    def order(self, g: int) -> int:
        return g

    def joined(self, a, b, *, overlap: bool):  # type: ignore[no-untyped-def]
        apart = a[0] ^ b[0]
        if a[1] == b[1] and apart and apart & (apart - 1) == 0:
            return (a[0] & ~apart, a[1] | apart)
        return a if overlap and a == b else None

    def overlap(self, a, b) -> bool:  # type: ignore[no-untyped-def]
        return bool((a[0] ^ b[0]) & ~(a[1] | b[1]) == 0)

    def whole(self, box) -> bool:  # type: ignore[no-untyped-def]
        return bool(box[1] == self.size - 1)


class _Products:
    """Sets of ranks of rotations along several axes: an interval along each."""

    def __init__(self, radix: tuple[int, ...]) -> None:
        self.radix = radix
        self.axes = [_Intervals(n) for n in radix]
        self.one = tuple((0, 1) for _ in radix)

    def _digits(self, g: int) -> list[int]:
        digits = []
        for n in reversed(self.radix):
            g, digit = divmod(g, n)
            digits.append(digit)
        return digits[::-1]

    def moved(self, box, g: int):  # type: ignore[no-untyped-def]
        return tuple(axis.moved(part, d) for axis, part, d in zip(self.axes, box, self._digits(g), strict=True))

    def order(self, g: int) -> tuple[int, ...]:
        return tuple(axis.order(d) for axis, d in zip(self.axes, self._digits(g), strict=True))

    def joined(self, a, b, *, overlap: bool):  # type: ignore[no-untyped-def]
        different = [i for i, (x, y) in enumerate(zip(a, b, strict=True)) if x != y]
        if len(different) != 1:
            return None
        (i,) = different
        part = self.axes[i].joined(a[i], b[i], overlap=overlap)
        return None if part is None else (*a[:i], (0, self.radix[i]) if part[1] == self.radix[i] else part, *a[i + 1 :])

    def overlap(self, a, b) -> bool:  # type: ignore[no-untyped-def]
        return all(axis.overlap(x, y) for axis, x, y in zip(self.axes, a, b, strict=True))

    def whole(self, box) -> bool:  # type: ignore[no-untyped-def]
        return all(axis.whole(part) for axis, part in zip(self.axes, box, strict=True))


def _boxes(group: _Group) -> _Intervals | _Subcubes | _Products:
    if group.name == "xor":
        return _Subcubes(group.order)
    return _Intervals(group.order) if len(group.radix) == 1 else _Products(group.radix)


# All ranks, few chunks


def _all_ranks(bound: BoundSchedule) -> Proof:
    kind, ranks, chunks = bound.schedule.kind, bound.ranks, bound.chunks
    if kind not in ("all_reduce", "broadcast", "reduce"):
        raise NotProvedError(f"a {kind} is decided by symmetry only")
    if ranks * chunks > _STATE or bound.value(bound.schedule.scratch):
        raise NotProvedError(f"{ranks} ranks hold {chunks} chunks each, and scratch")
    moves = expand(bound)
    if len(moves) and int(moves.step[-1]) >= _STEPS:
        raise NotProvedError(f"{int(moves.step[-1]) + 1} steps are too many to take one by one")
    rng = np.random.default_rng()
    mark = rng.integers(1, 1 << 63, ranks, dtype=np.uint64)
    mark_of: NDArray[np.uint64] = np.zeros((ranks, chunks), np.uint64)
    number = np.zeros((ranks, chunks), np.int64)
    if kind == "broadcast":
        mark_of[bound.root], number[bound.root] = mark[bound.root], 1
    else:
        mark_of[:], number[:] = mark[:, None], 1
    faults: list[Fault] = []
    bounds = np.flatnonzero(np.diff(moves.step, prepend=-1, append=-1)).tolist()
    for first, last in pairwise(bounds):
        at = slice(first, last)
        src, dst, read, written = moves.src[at], moves.dst[at], moves.src_index[at], moves.dst_index[at]
        if (read != written).any():
            raise NotProvedError("chunks change places")
        got, many = mark_of[src, read], number[src, read]
        if (many == 0).any():
            faults.append(_fault(bound, moves, first + int(np.argmax(many == 0)), "read-before-write", "is read before it is written"))  # fmt: skip
            break
        copies, network = moves.action[at] == COPY, moves.action[at] == NETWORK
        place = dst * chunks + written
        clash = np.isin(place[~copies], place[copies]).any() or np.isin(place[network], place[~network]).any()
        if clash or _distinct(place[copies]) != copies.sum() or _two_sums(place[network], moves.message[at][network]):
            faults.append(_fault(bound, moves, first, "two-writers", "is written by two transfers, one of them a copy"))
            break
        mark_of[dst[copies], written[copies]], number[dst[copies], written[copies]] = got[copies], many[copies]
        mark_of[dst[network], written[network]], number[dst[network], written[network]] = 0, 0
        np.add.at(mark_of, (dst[~copies], written[~copies]), got[~copies])
        np.add.at(number, (dst[~copies], written[~copies]), many[~copies])
    if not faults:
        wanted, count = (mark[bound.root], 1) if kind == "broadcast" else (mark.sum(dtype=np.uint64), ranks)
        wrong = (mark_of != wanted) | (number != count)
        if kind == "reduce":
            wrong = wrong[bound.root : bound.root + 1]
        if wrong.any():
            faults.append(Fault("wrong-contributors", f"{_said(bound)}: at the end rank {int(np.argwhere(wrong)[0][0])} lacks contributions, or has others", count=int(wrong.sum())))  # fmt: skip
    return Proof(ranks, "all ranks, 64-bit sums", "", len(moves), tuple(faults))


def _two_sums(place: IntArray, message: IntArray) -> bool:
    """Whether two messages form a sum in one place."""
    pairs = np.unique(np.stack([place, message]), axis=1)
    return bool(len(np.unique(pairs[0])) != pairs.shape[1])


def _presence(bound: BoundSchedule) -> Proof:
    """Collectives that only copy, chunks keeping their numbers: a place holds its chunk or nothing, so it is enough to know which are filled."""
    kind = bound.schedule.kind
    if kind not in ("broadcast", "scatter", "gather", "all_gather"):
        raise NotProvedError("")
    chunks = bound.chunks
    if bound.ranks * chunks > _PLACES and kind not in ("scatter", "gather"):
        raise NotProvedError(f"{bound.ranks} ranks hold {chunks} chunks each")
    try:
        moves = expand(bound, most=_EVENTS)
    except ValueError as reason:
        raise NotProvedError(str(reason)) from None
    if (moves.src_region != 0).any() or (moves.dst_region != 0).any() or (moves.src_index != moves.dst_index).any() or (moves.action != COPY).any():  # fmt: skip
        raise NotProvedError("chunks change their numbers, or are summed")
    if len(moves) and int(moves.step[-1]) >= _STEPS:
        raise NotProvedError(f"{int(moves.step[-1]) + 1} steps are too many to take one by one")
    every = np.arange(chunks, dtype=np.int64)
    owner = every // max(chunks // bound.ranks, 1)
    if chunks % bound.ranks and kind != "broadcast":
        raise NotProvedError("chunks can't be dealt out to the ranks")
    start = (owner if kind in ("gather", "all_gather") else bound.root) * chunks + every
    place = moves.dst * chunks + moves.dst_index
    order = np.argsort(place, kind="stable")  # by place, then by step
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    places, since = place[order][first], moves.step[order][first]
    read = moves.src * chunks + moves.src_index
    found = np.minimum(np.searchsorted(places, read), max(len(places) - 1, 0))
    there = (places[found] == read) & (since[found] < moves.step) if len(places) else np.zeros(0, bool)
    lacking = np.flatnonzero(~(there | np.isin(read, start)))
    faults = []
    if len(lacking):
        faults.append(_fault(bound, moves, int(lacking[0]), "read-before-write", "is read before it is written"))
    rows = place * (int(moves.step.max(initial=0)) + 1) + moves.step
    if _distinct(rows) != len(rows):
        faults.append(_fault(bound, moves, 0, "two-writers", "or another chunk is written twice in one step"))
    if kind in ("scatter", "gather"):
        wanted = (owner if kind == "scatter" else bound.root) * chunks + every
    else:
        wanted = np.arange(bound.ranks * chunks)
    held = np.concatenate([places, start])
    if kind in ("scatter", "gather"):
        missing = wanted[~np.isin(wanted, held)]
    else:
        filled = np.zeros(bound.ranks * chunks, bool)
        filled[held] = True
        missing = wanted[~filled[wanted]]
    if len(missing):
        faults.append(Fault("missing", f"{_said(bound)}: at the end data[{missing[0] % chunks}] of rank {missing[0] // chunks} was never written", count=len(missing)))  # fmt: skip
    once = len(places) == len(place) and not np.isin(start, places).any()
    return Proof(bound.ranks, "all moves", "", len(moves), tuple(faults), bool(once))


def _distinct(values: IntArray) -> int:
    """How many different values there are; sorting is several times faster here than hashing."""
    ordered = np.sort(values)
    return int(np.count_nonzero(np.diff(ordered))) + (len(ordered) > 0)


def _said(bound: BoundSchedule) -> str:
    return f"{bound.schedule.name} with {bound.sizes_text}"


def _fault(bound: BoundSchedule, moves: Moves, at: int, kind: str, text: str) -> Fault:
    transfer = bound.transfer(int(moves.transfer[at]))
    region = REGIONS[int(moves.src_region[at])]
    return Fault(
        kind,
        f"{_said(bound)}: {region}[{int(moves.src_index[at])}] of rank {int(moves.src[at])} {text} at step {int(moves.step[at])}",
        transfer.where,
        int(moves.step[at]),
    )
