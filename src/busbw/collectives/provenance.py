"""What a schedule leaves behind, chunk by chunk: whose contributions, each how often. The reference meaning of a schedule.

Executes all ranks step by step, on (chunk, set of contributing ranks) instead of numbers. What goes wrong comes back as violations.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from busbw.collectives.collective import Routing
from busbw.collectives.expansion import COPY, NETWORK, REDUCE, REGIONS, Moves, expand
from busbw.collectives.expressions import IntArray
from busbw.collectives.schedule import BoundSchedule, Region, Transfer, transfers_of

__all__ = ["Fault", "State", "expected_state", "initial_state", "run", "violations"]

_MOST_BYTES = 1 << 30  # of one state; two are held. A guess at what a user's machine spares
_MOST_STEPS = 1 << 15
"""That a schedule is followed through, unless it has many ranks: 0.3 ms each (measured), ten seconds in all."""
_STEPS_A_RANK = 4
"""Steps for each rank. The library's longest, rings, take 2."""
_MANY = 8  # violations of one kind at one transfer that are told apart; more are only counted


@dataclass(frozen=True, slots=True)
class Fault:
    """A rule that a schedule breaks: kind, the sentence a user reads, where the transfer was written, and how many chunks it concerns."""

    kind: str
    text: str
    where: str = ""
    step: int = -1
    count: int = 1

    def __str__(self) -> str:
        return f"{self.where + ': ' if self.where else ''}{self.text} [{self.kind}]"


@dataclass(slots=True)
class State:
    """What each place holds. p ranks, n places (all regions, one after the other), w words of 64 ranks.

    `chunk` is -1 where nothing has been written.
    """

    chunk: IntArray  # (p, n)
    contributors: NDArray[np.uint64]  # (p, n, w)
    offsets: tuple[int, ...] = field(default=())  # where each of REGIONS begins

    @staticmethod
    def empty(bound: BoundSchedule) -> State:
        """Nothing written anywhere."""
        extents = [bound.extent(region) for region in REGIONS]
        offsets = tuple(int(x) for x in np.cumsum([0, *extents]))
        words = (bound.ranks + 63) // 64
        if bound.ranks * offsets[-1] * (1 + words) * 8 > _MOST_BYTES:
            raise ValueError(
                f"{bound.schedule.name} with {bound.sizes_text}: what {bound.ranks} ranks hold in {offsets[-1]} chunks each is too much to be followed. "
                "Take fewer ranks or chunks"
            )
        return State(
            np.full((bound.ranks, offsets[-1]), -1, np.int64),
            np.zeros((bound.ranks, offsets[-1], words), np.uint64),
            offsets,
        )

    def put(self, rank: IntArray, region: Region, index: IntArray, chunk: IntArray, contributors: IntArray) -> None:
        """Places hold these chunks, each with one contributor."""
        place = self.offsets[REGIONS.index(region)] + index
        self.chunk[rank, place] = chunk
        self.contributors[rank, place] = 0
        self.contributors[rank, place, contributors // 64] = np.uint64(1) << (contributors % 64).astype(np.uint64)

    def fill(self, rank: IntArray, region: Region, index: IntArray, chunk: IntArray, who: NDArray[np.uint64]) -> None:
        """Places hold these chunks with a set of contributors each (or one set for all)."""
        place = self.offsets[REGIONS.index(region)] + index
        self.chunk[rank, place] = chunk
        self.contributors[rank, place] = who

    def at(self, rank: int, region: Region, index: int) -> tuple[int, frozenset[int]] | None:
        """(chunk, ranks that contributed) of a place; None where nothing was written."""
        place = self.offsets[REGIONS.index(region)] + index
        if self.chunk[rank, place] < 0:
            return None
        bits = np.unpackbits(self.contributors[rank, place].view(np.uint8), bitorder="little")
        return int(self.chunk[rank, place]), frozenset(np.flatnonzero(bits).tolist())


def _everyone(ranks: int) -> NDArray[np.uint64]:
    """The set of all ranks. (w,) uint64."""
    bits = np.zeros((ranks + 63) // 64 * 64, np.uint8)
    bits[:ranks] = 1
    return np.packbits(bits, bitorder="little").view(np.uint64)


def _sets(wanted: IntArray) -> NDArray[np.uint64]:
    """Rows of 0 and 1 as sets of ranks. (T, w) uint64."""
    bits = np.zeros((wanted.shape[0], (wanted.shape[1] + 63) // 64 * 64), np.uint8)
    bits[:, : wanted.shape[1]] = wanted
    return np.packbits(bits, axis=1, bitorder="little").view(np.uint64)


def _grid(bound: BoundSchedule) -> tuple[IntArray, IntArray]:
    """All (rank, chunk)."""
    rank, chunk = np.divmod(np.arange(bound.ranks * bound.chunks, dtype=np.int64), bound.chunks)
    return rank, chunk


def _owner(bound: BoundSchedule) -> IntArray:
    """The rank to which each chunk of `data` belongs, (chunks,)."""
    each, rest = divmod(bound.chunks, bound.ranks)
    if rest:
        raise ValueError(
            f"{bound.schedule.name} with {bound.sizes_text}: {bound.chunks} chunks can't be dealt out to {bound.ranks} ranks; "
            f"{bound.schedule.kind} needs a multiple of the number of ranks"
        )
    return np.arange(bound.chunks, dtype=np.int64) // each


def _routing(bound: BoundSchedule) -> Routing:
    tables = dict(bound.schedule.tables)
    if not {"home", "wanted"} <= tables.keys():
        raise ValueError(f"{bound.schedule.name}: {bound.schedule.kind} needs the tables home and wanted")
    return Routing(tables["home"], tables["wanted"])


def initial_state(bound: BoundSchedule) -> State:
    """What each rank holds before the collective."""
    state, kind = State.empty(bound), bound.schedule.kind
    rank, chunk = _grid(bound)
    own = np.arange(bound.chunks, dtype=np.int64)
    root = np.full(bound.chunks, bound.root)
    if kind in ("all_reduce", "reduce_scatter", "reduce", "barrier"):
        state.put(rank, Region.DATA, chunk, chunk, rank)
    elif kind in ("all_gather", "gather"):
        state.put(_owner(bound), Region.DATA, own, own, _owner(bound))
    elif kind in ("broadcast", "scatter"):
        state.put(root, Region.DATA, own, own, root)
    elif kind == "moe_dispatch":
        home = _routing(bound).home.array
        state.put(home, Region.DATA, own, own, home)
    elif kind == "moe_combine":  # a rank without an expert of the token contributes nothing, but has a zero to add to
        state.put(rank, Region.DATA, chunk, chunk, rank)
        state.contributors[rank, state.offsets[0] + chunk] *= (
            _routing(bound).wanted.array[chunk, rank].astype(np.uint64)[:, None]
        )
    elif (counts := _counts(bound)) is not None:
        source, _, here, _, name = _elements(bound, counts)
        state.put(source, Region.INPUT, here, name, source)
    else:
        state.put(rank, Region.INPUT, chunk, rank * bound.chunks + chunk, rank)
    return state


def _counts(bound: BoundSchedule) -> IntArray | None:
    """counts[s, d] of an all_to_all_v; None if all are equal."""
    table = dict(bound.schedule.tables).get("counts")
    return table.array if bound.schedule.kind == "all_to_all_v" and table is not None else None


def _elements(bound: BoundSchedule, counts: IntArray) -> tuple[IntArray, IntArray, IntArray, IntArray, IntArray]:
    """Every element: source, destination, place in input, place in output, number. Blocks lie in order of ranks without gaps."""
    flat = counts.ravel()
    pair = np.repeat(np.arange(flat.size), flat)
    inside = np.arange(pair.size) - np.repeat(np.cumsum(flat) - flat, flat)
    source, destination = np.divmod(pair, bound.ranks)
    begins, lands = np.cumsum(counts, 1) - counts, np.cumsum(counts, 0) - counts
    return (
        source, destination, begins[source, destination] + inside, lands[source, destination] + inside, np.arange(pair.size)
    )  # fmt: skip


def expected_state(bound: BoundSchedule) -> State:
    """What each rank must hold afterwards; places that may hold anything are empty."""
    state, kind = State.empty(bound), bound.schedule.kind
    rank, chunk = _grid(bound)
    own = np.arange(bound.chunks, dtype=np.int64)
    root = np.full(bound.chunks, bound.root)
    if kind in ("all_reduce", "barrier"):
        state.fill(rank, Region.DATA, chunk, chunk, _everyone(bound.ranks))
    elif kind == "reduce_scatter":
        state.fill(_owner(bound), Region.DATA, own, own, _everyone(bound.ranks))
    elif kind == "reduce":
        state.fill(root, Region.DATA, own, own, _everyone(bound.ranks))
    elif kind == "all_gather":
        state.put(rank, Region.DATA, chunk, chunk, _owner(bound)[chunk])
    elif kind == "gather":
        state.put(root, Region.DATA, own, own, _owner(bound))
    elif kind == "broadcast":
        state.put(rank, Region.DATA, chunk, chunk, np.full(len(rank), bound.root))
    elif kind == "scatter":
        state.put(_owner(bound), Region.DATA, own, own, root)
    elif kind == "moe_dispatch":
        routing = _routing(bound)
        token, wanting = np.nonzero(routing.wanted.array)
        state.put(wanting, Region.DATA, token, token, routing.home.array[token])
    elif kind == "moe_combine":
        routing = _routing(bound)
        used = np.flatnonzero(routing.wanted.array.any(axis=1))
        state.fill(routing.home.array[used], Region.DATA, used, used, _sets(routing.wanted.array)[used])
    elif kind == "send_recv":
        before = (rank - 1) % bound.ranks
        state.put(rank, Region.OUTPUT, chunk, before * bound.chunks + chunk, before)
    elif (counts := _counts(bound)) is not None:
        source, destination, _, there, name = _elements(bound, counts)
        state.put(destination, Region.OUTPUT, there, name, source)
    else:
        each = bound.chunks // bound.ranks
        _owner(bound)  # refuses numbers of chunks that can't be dealt out
        source = chunk // each
        state.put(rank, Region.OUTPUT, chunk, source * bound.chunks + rank * each + chunk % each, source)
    return state


def run(bound: BoundSchedule, moves: Moves | None = None) -> tuple[State, list[Fault]]:
    """The state after the schedule, and the rules that it broke on the way.

    Rules: what is read has been written; a step copies into a place at most once, and then nothing is reduced into it; what is reduced is the same chunk;
    no contribution counts twice (in a barrier it may: an arrival is no sum). Raises ValueError for more steps than are followed.

    >>> from busbw.collectives.algorithms.ring import ring_all_reduce
    >>> state, broken = run(ring_all_reduce().bind(4))
    >>> state.at(3, Region.DATA, 1), broken
    ((1, frozenset({0, 1, 2, 3})), [])
    """
    moves = expand(bound) if moves is None else moves
    state = initial_state(bound)
    found = _Findings(bound, moves)
    offsets = np.array(state.offsets[:-1])
    read_place, write_place = offsets[moves.src_region] + moves.src_index, offsets[moves.dst_region] + moves.dst_index
    bounds = np.flatnonzero(np.diff(moves.step, prepend=-1, append=-1))
    most = max(_MOST_STEPS, _STEPS_A_RANK * bound.ranks)
    if len(bounds) > most:
        raise ValueError(
            f"{bound.schedule.name} with {bound.sizes_text} has {len(bounds) - 1:,} steps; {most:,} are followed. Make its loops shorter"
        )
    for first, last in pairwise(bounds):
        _step(state, moves, (read_place, write_place), np.arange(first, last), found)
    return state, found.violations


def violations(bound: BoundSchedule) -> list[Fault]:
    """Every rule that the bound schedule breaks, its postcondition included; empty for a correct one."""
    state, broken = run(bound)
    return [*broken, *_postcondition(bound, state)]


def _step(state: State, moves: Moves, places: tuple[IntArray, IntArray], now: IntArray, found: _Findings) -> None:
    """All moves of one step: everything is read, then everything is written."""
    read_place, write_place = places
    src, dst, action = moves.src[now], moves.dst[now], moves.action[now]
    chunk, who = state.chunk[src, read_place[now]], state.contributors[src, read_place[now]]
    found.add("read-before-write", now[chunk < 0], "is read at step {step} before it is written", reading=True)
    now, dst, action, who, chunk = now[chunk >= 0], dst[chunk >= 0], action[chunk >= 0], who[chunk >= 0], chunk[chunk >= 0]  # fmt: skip
    if not len(now):
        return
    place = write_place[now]
    key = dst * state.chunk.shape[1] + place
    order = np.lexsort((moves.src[now], key))
    key, now, action, chunk, who, dst, place = (
        key[order], now[order], action[order], chunk[order], who[order], dst[order], place[order],
    )  # fmt: skip
    first = np.flatnonzero(np.diff(key, prepend=-1))
    sizes = np.diff(first, append=len(key))
    group = np.repeat(np.arange(len(first)), sizes)
    copies = np.add.reduceat((action == COPY).astype(np.int64), first)
    network = np.add.reduceat((action == NETWORK).astype(np.int64), first)
    lone_sum = np.maximum.reduceat(moves.message[now], first) == np.minimum.reduceat(moves.message[now], first)
    clash = ((copies > 0) & (sizes > 1)) | ((network > 0) & ((network < sizes) | ~lone_sum))
    found.add("two-writers", now[clash[group]], "is written by two transfers at step {step}, one of them a copy")
    reducing = (action == REDUCE)[first]
    before_chunk = np.where(reducing, state.chunk[dst[first], place[first]], chunk[first])
    found.add("read-before-write", now[first[before_chunk < 0]], "is reduced into at step {step} before it is written")
    before_chunk = np.where(before_chunk < 0, chunk[first], before_chunk)
    mixed = chunk != before_chunk[group]
    found.add("mixed-chunks", now[mixed], "is reduced with another chunk at step {step}")
    held = state.contributors[dst[first], place[first]] * reducing[:, None].astype(np.uint64)
    union = np.bitwise_or.reduceat(who, first, axis=0) | held
    if found.counts_once:
        total = np.add.reduceat(_population(who), first) + _population(held)
        twice = (total != _population(union)) & (copies == 0)
        found.add("counted-twice", now[twice[group]], "gets a contribution for the second time at step {step}")
    state.chunk[dst[first], place[first]] = before_chunk
    state.contributors[dst[first], place[first]] = union


def _population(sets: NDArray[np.uint64]) -> IntArray:
    """Number of ranks in each set, (m, w) to (m,)."""
    counts = np.unpackbits(np.ascontiguousarray(sets).view(np.uint8), axis=-1).sum(axis=-1)
    return np.asarray(counts, np.int64)


class _Findings:
    """Collects violations, one for each kind and transfer, with a sentence about the first and the class of ranks."""

    def __init__(self, bound: BoundSchedule, moves: Moves) -> None:
        self.bound, self.moves = bound, moves
        self.transfers: list[Transfer] = list(transfers_of(bound.schedule.body))
        self.counts_once = bound.schedule.kind != "barrier"
        self.violations: list[Fault] = []
        self.seen: dict[tuple[str, int], int] = {}

    def add(self, kind: str, which: IntArray, text: str, *, reading: bool = False) -> None:
        for number in np.unique(self.moves.transfer[which]) if len(which) else ():
            these = which[self.moves.transfer[which] == number]
            seen = self.seen.get((kind, int(number)), 0)
            self.seen[kind, int(number)] = seen + 1
            if seen >= _MANY:
                continue
            move = int(these[0])
            moves = self.moves
            ranks = (moves.src if reading else moves.dst)[these]
            region, index = (
                (moves.src_region[move], moves.src_index[move]) if reading else (moves.dst_region[move], moves.dst_index[move])
            )  # fmt: skip
            step = int(moves.step[move])
            sentence = f"{self.bound.schedule.name} with {self.bound.sizes_text}: {REGIONS[int(region)]}[{int(index)}] of {rank_class(self.bound, ranks)} "
            self.violations.append(
                Fault(kind, sentence + text.format(step=step), self.transfers[int(number)].where, step, len(these))
            )


def rank_class(bound: BoundSchedule, ranks: Iterable[int] | IntArray) -> str:
    """These ranks in words: every rank, one coordinate that they share or lack, or a list.

    >>> from busbw.collectives.algorithms.ring import ring_all_gather
    >>> rank_class(ring_all_gather().bind(4), [1, 2, 3]), rank_class(ring_all_gather().bind(4), [2])
    ('ranks with r != 0', 'rank 2')
    """
    found = np.unique(np.asarray(list(ranks), np.int64))
    if len(found) == bound.ranks:
        return "every rank"
    if len(found) == 1:
        return f"rank {found[0]}"
    inside, everyone = bound.coordinates(found), bound.coordinates()
    for axis, extent in bound.sizes:
        values = np.unique(inside[axis])
        if len(found) != np.isin(everyone[axis], values).sum():
            continue
        if len(values) == 1:
            return f"ranks with {axis} = {values[0]}"
        if len(values) == extent - 1:
            return f"ranks with {axis} != {np.setdiff1d(np.arange(extent), values)[0]}"
    listed = ", ".join(str(rank) for rank in found[:4])
    return f"ranks {listed}" + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def _postcondition(bound: BoundSchedule, state: State) -> list[Fault]:
    """What the collective promises and the state does not hold."""
    wanted = expected_state(bound)
    asked = wanted.chunk >= 0
    found = []
    for kind, text, wrong in (
        ("missing", "was never written", asked & (state.chunk < 0)),
        ("wrong-chunk", "holds another chunk", asked & (state.chunk >= 0) & (state.chunk != wanted.chunk)),
        (
            "wrong-contributors",
            "lacks contributions, or has others",
            asked & (state.chunk == wanted.chunk) & (state.contributors != wanted.contributors).any(axis=2),
        ),
    ):
        rank, place = np.nonzero(wrong)
        if not len(rank):
            continue
        offset = int(np.searchsorted(state.offsets[1:], place[0], side="right"))
        which = rank_class(bound, rank[place == place[0]])
        sentence = f"{bound.schedule.name} with {bound.sizes_text}: at the end {REGIONS[offset]}[{int(place[0]) - state.offsets[offset]}] of {which} {text}"
        if kind == "wrong-contributors":
            has = state.at(int(rank[0]), REGIONS[offset], int(place[0]) - state.offsets[offset])
            needs = wanted.at(int(rank[0]), REGIONS[offset], int(place[0]) - state.offsets[offset])
            if has is not None and needs is not None:
                sentence += f": lacks {_few(needs[1] - has[1])}, has besides {_few(has[1] - needs[1])}"
        found.append(Fault(kind, sentence, count=len(rank)))
    return found


def _few(ranks: frozenset[int]) -> str:
    return ", ".join(str(rank) for rank in sorted(ranks)[:4]) + (" ..." if len(ranks) > 4 else "") if ranks else "none"
