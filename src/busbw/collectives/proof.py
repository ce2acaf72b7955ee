"""Proof that a schedule keeps its promise at numbers of ranks at which nobody can execute all of them.

Ways, whichever fits; all are exact about every rank and chunk unless the proof says otherwise:

- One rank for all. If renumbering the ranks by a group that takes any rank to any other takes the schedule to itself (rotations along the axes; xor, or reflections, for powers
  of two), all ranks do the same, seen from themselves. Then one rank is executed: what arrives from a peer is what the rank itself holds, renumbered. Sets of
  contributors are kept as boxes (`rank_boxes.py`); a union that is no box is not decided. How it was shown that the group fits (`symmetries.py`),
  `Proof.symmetry` says.
- A reduce_scatter or reduce is proved backwards: where copies bring every chunk to every rank once, its way is a tree, and the tree sums in reverse. What is made of
  collectives one after the other is proved by stages (`stages.py`).
- Chunk by chunk, where all moves pass through one switch that sums and multicasts (`network_proof.py`).
- All moves at once, for collectives that only copy chunks to the place of their number (trees): a place holds its chunk or nothing.
- All ranks, few chunks (trees that sum). Contributors are kept as their number and the sum of a random 64-bit number each: a wrong set passes with a chance
  below 2^-50 (`Proof.method` says so).

What is proved, is proved for the sizes that were bound. The library's schedules are besides executed in full at every number of ranks up to 64 by the benchmarks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from busbw.collectives.collective import REDUCING
from busbw.collectives.expansion import COPY, NETWORK, REGIONS, Moves, expand, sent_by
from busbw.collectives.expressions import IntArray
from busbw.collectives.network_proof import messages_through_one_switch
from busbw.collectives.passes import reverse
from busbw.collectives.provenance import Fault
from busbw.collectives.rank_boxes import boxes_of
from busbw.collectives.schedule import BoundSchedule, Region, transfers_of
from busbw.collectives.stages import settled, stages
from busbw.collectives.symmetries import MOST_MOVES, Group, Labels, fitting_labels, groups

__all__ = ["NotProvedError", "Proof", "prove"]

_STATE = 8_000_000  # ranks x chunks that the second way keeps
_PLACES = 100_000_000  # ranks x chunks of which it is kept whether they are filled
_STEPS = 4_096  # steps that the second way takes
_WIDEST = 1 << 62  # numbers of places and steps fit int64
_MOST_RANKS = 1 << 22  # beyond, columns of all ranks do not fit memory; several times the GPUs of any cluster announced


_CHANGED = "renumbering changes it"


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
    return _decided(settled(bound))


def _decided(bound: BoundSchedule) -> Proof:
    """The proof of a settled schedule."""
    reasons: list[str] = []
    for way in (_one_switch, _by_stages, _backwards, _any_symmetry, _presence, _all_ranks):
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
    for by_form in (True, False):
        for group in groups(bound):
            try:
                return _one_for_all(bound, group, by_form=by_form)
            except NotProvedError as reason:
                reasons.append("" if by_form and str(reason) == _CHANGED else f"{group.name}: {reason}")
    reasons = list(dict.fromkeys(filter(None, reasons)))
    raise NotProvedError(", ".join(reasons))


def _backwards(bound: BoundSchedule) -> Proof:
    """A reduce_scatter, reduce or gather by its reverse: where every chunk comes to every rank once, by copies, its way is a tree; backwards, the tree sums."""
    if bound.schedule.kind not in ("reduce_scatter", "reduce"):
        raise NotProvedError("")
    forwards = replace(bound, schedule=reverse(bound.schedule))
    for way in (_any_symmetry, _presence):
        try:
            proof = way(forwards)
        except (NotProvedError, ValueError):
            continue
        if proof.holds and proof.once:
            return replace(proof, method=f"backwards: {proof.method}")
    raise NotProvedError("its reverse is not decided, or brings chunks twice")


def _by_stages(bound: BoundSchedule) -> Proof:
    """A schedule made of collectives one after the other, each proved."""
    for parts in stages(bound):
        try:
            proofs = [_decided(part) for part in parts]
        except NotProvedError:
            continue
        if all(proof.holds for proof in proofs):
            symmetry = ", then ".join(dict.fromkeys(proof.symmetry for proof in proofs if proof.symmetry))
            method = ", then ".join(proof.method for proof in proofs)
            return Proof(bound.ranks, method, symmetry, sum(proof.moves for proof in proofs), ())
    raise NotProvedError("")


def _one_for_all(bound: BoundSchedule, group: Group, *, by_form: bool) -> Proof:
    kind = bound.schedule.kind
    if kind not in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "barrier", "send_recv"):
        raise NotProvedError(f"a {kind} has a root, or counts, that renumbering moves")
    if any(t.group for t in transfers_of(bound.schedule.body)):
        raise NotProvedError("it works in the network")
    found = fitting_labels(bound, group, by_form=by_form)
    if found is None:
        raise NotProvedError(_CHANGED)
    labels, symmetry = found
    own = sent_by(bound, 0, most=MOST_MOVES)
    faults, once = _executed(bound, group, labels, own)
    return Proof(bound.ranks, f"one rank for all, {group.name}", symmetry, len(own), tuple(faults), once)


# One rank for all: what it holds


def _executed(bound: BoundSchedule, group: Group, labels: Labels, own: Moves) -> tuple[list[Fault], bool]:
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
        plan = (read_place, write_place, sender.tolist(), bounds)
        if bound.extent(Region.SCRATCH) or (own.src_index != own.dst_index).any():
            return _sums_anywhere(bound, group, labels, own, plan), False
        return _sums(bound, group, own, plan), False
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
    bound: BoundSchedule, group: Group, labels: Labels, own: Moves, plan: tuple[list[int], list[int], IntArray, list[int]]
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
    bound: BoundSchedule, group: Group, own: Moves, plan: tuple[list[int], list[int], list[int], list[int]]
) -> list[Fault]:  # fmt: skip
    """Collectives with sums: a place holds a box of contributors, as seen from its rank."""
    reads, writes, senders, bounds = plan
    if _two_writers(own, np.array(writes, np.int64)):
        return [_fault(bound, own, 0, "two-writers", "or another chunk is written by two transfers in one step, one of them a copy")]  # fmt: skip
    boxes = boxes_of(group)
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


def _two_writers(own: Moves, written: IntArray) -> bool:
    """Whether in some step a copy goes to a place to which another transfer goes."""
    _, row = np.unique(written * (int(own.step.max(initial=0)) + 1) + own.step, return_inverse=True)
    return bool((np.bincount(row)[row[own.action == COPY]] > 1).any()) if len(row) else False


_MOST_SUMS = 1 << 20  # moves that are followed one by one; a guess at a few seconds


def _sums_anywhere(
    bound: BoundSchedule, group: Group, labels: Labels, own: Moves, plan: tuple[list[int], list[int], list[int], list[int]]
) -> list[Fault]:  # fmt: skip
    """The same where sums are formed beside the data, too: a place holds (chunk, box of contributors), both as seen from its rank, or nothing."""
    reads, writes, senders, bounds = plan
    if len(own) > _MOST_SUMS:
        raise NotProvedError(f"{len(own)} moves of sums between places of different numbers")
    if _two_writers(own, np.array(writes, np.int64)):
        return [_fault(bound, own, 0, "two-writers", "or another chunk is written by two transfers in one step, one of them a copy")]  # fmt: skip
    boxes = boxes_of(group)
    state: dict[int, tuple[int, object]] = {chunk: (chunk, boxes.one) for chunk in range(bound.chunks)}
    copy = (own.action == COPY).tolist()

    def seen(chunk: int, sender: int) -> int:
        return int(labels.act(group, np.zeros(1, np.int64), np.array([sender]), np.array([chunk]))[0])

    for first, last in pairwise(bounds):
        empty = [i for i in range(first, last) if reads[i] not in state]
        if empty:
            return [_fault(bound, own, empty[0], "read-before-write", "is read before it is written")]
        held = [state[reads[i]] for i in range(first, last)]
        arriving = [(seen(chunk, senders[first + i]), boxes.moved(box, senders[first + i])) for i, (chunk, box) in enumerate(held)]  # fmt: skip
        for i in sorted(range(last - first), key=lambda i: boxes.order(senders[first + i])):
            place, (chunk, box) = writes[first + i], arriving[i]
            if copy[first + i]:
                state[place] = (chunk, box)
                continue
            if place not in state:
                return [_fault(bound, own, first + i, "read-before-write", "goes where nothing is to be summed with")]
            here, sum_so_far = state[place]
            if here != chunk:
                return [_fault(bound, own, first + i, "mixed-chunks", "is reduced with another chunk")]
            joined = boxes.joined(sum_so_far, box, overlap=bound.schedule.kind == "barrier")
            if joined is None:
                if boxes.overlap(sum_so_far, box):
                    return [_fault(bound, own, first + i, "counted-twice", "gets a contribution for the second time")]
                raise NotProvedError(f"in step {own.step[first]} contributors are no box")
            state[place] = (chunk, joined)
    each = bound.chunks // bound.ranks
    wanted = range(each) if bound.schedule.kind == "reduce_scatter" else range(bound.chunks)
    lacking = [chunk for chunk in wanted if state[chunk][0] != chunk or not boxes.whole(state[chunk][1])]
    if lacking:
        return [Fault("wrong-contributors", f"{_said(bound)}: at the end chunk {lacking[0]} of every rank, counted from itself, lacks contributions, or is another", count=len(lacking))]  # fmt: skip
    return []


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
        summing = ~copies & ~network
        if (number[dst[summing], written[summing]] == 0).any():
            faults.append(_fault(bound, moves, first, "read-before-write", "or another chunk is reduced into a place before it is written"))  # fmt: skip
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
        moves = expand(bound, most=MOST_MOVES)
    except ValueError as reason:
        raise NotProvedError(str(reason)) from None
    if (moves.src_region != 0).any() or (moves.dst_region != 0).any() or (moves.src_index != moves.dst_index).any() or (moves.action != COPY).any():  # fmt: skip
        raise NotProvedError("chunks change their numbers, or are summed")
    if bound.ranks * chunks * (int(moves.step.max(initial=0)) + 1) >= _WIDEST:
        raise NotProvedError("places times steps are too many to be numbered")
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
    lacking = np.flatnonzero(~(there | _among(read, start)))
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
        missing = wanted[~_among(wanted, np.sort(held))]
    else:
        filled = np.zeros(bound.ranks * chunks, bool)
        filled[held] = True
        missing = wanted[~filled[wanted]]
    if len(missing):
        faults.append(Fault("missing", f"{_said(bound)}: at the end data[{missing[0] % chunks}] of rank {missing[0] // chunks} was never written", count=len(missing)))  # fmt: skip
    once = len(places) == len(place) and not _among(start, places).any()
    return Proof(bound.ranks, "all moves", "", len(moves), tuple(faults), bool(once))


def _among(values: IntArray, ordered: IntArray) -> NDArray[np.bool_]:
    """Which values there are among ordered ones; several times faster here than numpy's isin, which hashes."""
    if not len(ordered):
        return np.zeros(len(values), bool)
    found = np.minimum(np.searchsorted(ordered, values), len(ordered) - 1)
    return np.equal(ordered[found], values)


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
