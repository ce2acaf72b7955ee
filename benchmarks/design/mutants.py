"""Wrong plans made of right ones, and whether the verifier sees it: `python -m benchmarks.design.mutants [--ranks N...] [--each N] [--seed N]`.

A mutant is killed if the verifier calls it illegal; equivalent if every order of its blocks ends as the plan did, which is tried
(`interleavings.py`) at every number of ranks, and if, where a memory order was weakened, release and acquire still order all accesses
(`happens_before.py`); missed if neither. What has too many orders to be tried counts as missed.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from benchmarks.design.happens_before import unordered
from benchmarks.design.interleavings import End, final_states, leaves_early
from benchmarks.design.motion import TooManyError, Values
from benchmarks.design.progress import Progress
from busbw.collectives.legality import verify_plan
from busbw.collectives.plan import LOCAL, Buffer, Columns, Op, Order, Plan, RankPlan
from busbw.collectives.schedule import Schedule

__all__ = ["CLASSES", "Judge", "Mutant", "Tally", "library_plans", "library_variants", "mutants", "tally"]

_MOVES = tuple(op for op in Op if op < Op.SYNC and op not in (Op.SIGNAL, Op.WAIT, Op.FLUSH))


@dataclass(frozen=True, slots=True)
class Mutant:
    """A plan with one thing changed at one rank."""

    kind: str
    rank: int
    row: int
    plan: Plan


def _whole(rows: Columns) -> list[int]:
    """Places of instructions (not of further operands)."""
    return np.flatnonzero(rows["op"] != Op.OPERAND).tolist()


def _at(rank: RankPlan, rows: Columns) -> RankPlan:
    """The rank with other rows; blocks keep their borders."""
    return replace(rank, instructions=rows)


def _cut(rank: RankPlan, first: int, length: int) -> RankPlan:
    """The rank without some rows."""
    rows = np.concatenate([rank.instructions[:first], rank.instructions[first + length :]])
    blocks = rank.blocks.copy()
    for side in ("first", "last"):
        blocks[side] = np.where(blocks[side] > first, blocks[side] - length, blocks[side])
    return replace(rank, instructions=rows, blocks=blocks)


def _changed(column: str, by: int) -> Callable[[RankPlan, int], RankPlan | None]:
    def change(rank: RankPlan, place: int) -> RankPlan | None:
        rows = rank.instructions.copy()
        side = {"src": "src_buffer", "dst": "dst_buffer"}.get(column)
        if rows[place]["op"] not in _MOVES or (side and rows[place][side] == Buffer.NONE) or rows[place]["count"] < 1:
            return None
        rows[column][place] += by
        return _at(rank, rows)

    return change


def _deleted(ops: tuple[Op, ...]) -> Callable[[RankPlan, int], RankPlan | None]:
    def delete(rank: RankPlan, place: int) -> RankPlan | None:
        if rank.instructions[place]["op"] not in ops:
            return None
        return _cut(rank, place, 1 + int(rank.instructions[place]["more"]))

    return delete


def _wrong_channel(rank: RankPlan, place: int) -> RankPlan | None:
    rows = rank.instructions.copy()
    via = int(rows[place]["via"])
    if rows[place]["op"] >= Op.SYNC or via == LOCAL:
        return None
    kinds = rank.connections["kind"]
    others = [other for other in range(len(kinds)) if kinds[other] == kinds[via] and other != via]
    if not others:
        return None
    rows["via"][place] = others[place % len(others)]
    return _at(rank, rows)


def _wrong_buffer(side: str) -> Callable[[RankPlan, int], RankPlan | None]:
    def change(rank: RankPlan, place: int) -> RankPlan | None:
        rows = rank.instructions.copy()
        now = int(rows[place][f"{side}_buffer"])
        if rows[place]["op"] not in _MOVES or now == Buffer.NONE:
            return None
        other = [
            buffer
            for buffer in (Buffer.INPUT, Buffer.OUTPUT, Buffer.SCRATCH)
            if buffer != now and rank.chunks_of(buffer)
        ]
        if not other:
            return None
        rows[f"{side}_buffer"][place] = other[place % len(other)]
        return _at(rank, rows)

    return change


def _swapped(rank: RankPlan, place: int) -> RankPlan | None:
    rows = rank.instructions
    length = 1 + int(rows[place]["more"])
    following = place + length
    block = next(block for block in rank.blocks if block["first"] <= place < block["last"])
    if following >= block["last"]:
        return None
    end = following + 1 + int(rows[following]["more"])
    return _at(rank, np.concatenate([rows[:place], rows[following:end], rows[place:following], rows[end:]]))


def _weakened(rank: RankPlan, place: int) -> RankPlan | None:
    rows = rank.instructions.copy()
    if rows[place]["order"] == Order.RELAXED:
        return None
    rows["order"][place] = Order.RELAXED
    return _at(rank, rows)


CLASSES: dict[str, Callable[[RankPlan, int], RankPlan | None]] = {
    "source offset": _changed("src", 1),
    "source offset back": _changed("src", -1),
    "target offset": _changed("dst", 1),
    "target offset back": _changed("dst", -1),
    "count": _changed("count", 1),
    "count less": _changed("count", -1),
    "deleted step": _deleted(_MOVES),
    "wrong channel": _wrong_channel,
    "wrong source buffer": _wrong_buffer("src"),
    "wrong target buffer": _wrong_buffer("dst"),
    "dropped dependence": _deleted((Op.FLAG_WAIT, Op.WAIT, Op.ACQUIRE, Op.BARRIER)),
    "dropped flag": _deleted((Op.FLAG_SET, Op.SIGNAL, Op.RELEASE)),
    "swapped neighbours": _swapped,
    "weakened order": _weakened,
}


def _with_rank(ranks: list[RankPlan], plan: Plan, changed: RankPlan) -> Plan:
    held = [*ranks[: changed.rank], changed, *ranks[changed.rank + 1 :]]
    return replace(plan, rank_plan=held.__getitem__)


def mutants(plan: Plan, each: int, lots: np.random.Generator) -> Iterator[Mutant]:
    """Up to `each` mutants of every class, at ranks and rows drawn by lot; loops are written out first."""
    ranks = [plan.rank(rank) for rank in range(plan.ranks)]
    unrolled = [rank.unrolled() for rank in ranks]
    tries = [(rank, place) for rank, one in enumerate(unrolled) for place in _whole(one.instructions)]
    for kind, change in CLASSES.items():
        made = 0
        for number in lots.permutation(len(tries)).tolist():
            rank, place = tries[number]
            changed = change(unrolled[rank], place)
            if changed is None:
                continue
            yield Mutant(kind, rank, place, _with_rank(ranks, plan, changed))
            made += 1
            if made == each:
                break


class Judge:
    """Judges mutants of one plan, whose own ends it keeps."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._values = Values()
        self._ends: set[End] | None = None

    def judgement(self, mutant: Mutant) -> str:
        """`killed`, `equivalent` or `missed`."""
        if not verify_plan(mutant.plan).legal:
            return "killed"
        in_place = self._plan.in_place
        try:
            if self._ends is None:
                self._ends = final_states(self._plan, in_place, values=self._values)
            same = final_states(mutant.plan, in_place, values=self._values) == self._ends
            if same and self._plan.collective == "barrier":
                same = not leaves_early(mutant.plan, in_place)
            if same and mutant.kind == "weakened order":
                same = not unordered(mutant.plan, in_place)
            return "equivalent" if same else "missed"
        except TooManyError:
            return "missed"


@dataclass(frozen=True, slots=True)
class Tally:
    """Counts by (class, judgement), and what was missed."""

    counts: Counter[tuple[str, str]]
    missed: tuple[str, ...]
    plans: int

    def total(self, judgement: str) -> int:
        """How many of all classes were judged so."""
        return sum(count for (_, one), count in self.counts.items() if one == judgement)


def library_plans(ranks: int, most_shapes: int | None = 2) -> Iterator[tuple[str, Plan]]:
    """Every library schedule at a number of ranks, in place where it can be, too; schedules of several axes in a few shapes, or all (None)."""
    from busbw.collectives.algorithms import LIBRARY

    for name, make in LIBRARY.items():
        schedule = make()
        for shape in list(_shapes(ranks, len(schedule.axes)))[:most_shapes]:
            yield from _plans(name, schedule, shape)


def library_variants(ranks: int) -> Iterator[tuple[str, Plan]]:
    """Every library schedule at a number of ranks as `library_plans` does not have it.

    Axes of 1, another root, 3 parts, on two channels, in two slices one step apart, with a block for each peer.
    """
    from busbw.collectives.algorithms import LIBRARY
    from busbw.collectives.blocks import split_blocks
    from busbw.collectives.passes import pipelined, replicate

    for name, make in LIBRARY.items():
        schedule = make()
        params = {param for param, _ in schedule.params}
        shapes = list(_shapes(ranks, len(schedule.axes)))[:1]
        for shape in [bound.sizes for bound in schedule.bindings(ranks)] if len(schedule.axes) > 1 else []:
            extents = tuple(extent for _, extent in shape)
            if 1 in extents:
                yield from _plans(name, schedule, extents)
        for shape in shapes:
            if "root" in params:
                yield from _plans(name, schedule, shape, root=ranks - 1)
            if "parts" in params:
                yield from _plans(name, schedule, shape, parts=3)
            yield from _plans(f"{name} on 2 channels", replicate(schedule, 2), shape)
            yield from _plans(f"{name} in 2 slices", pipelined(schedule, 2), shape)
            for label, plan in _plans(name, schedule, shape):
                yield f"{label}, a block a peer", split_blocks(plan)


def _plans(name: str, schedule: Schedule, shape: tuple[int, ...], **params: int) -> Iterator[tuple[str, Plan]]:
    """Out of place and in place, as far as it can be bound and lowered so."""
    from busbw.collectives.lowering import plan_of

    for in_place in (False, True):
        try:
            plan = plan_of(schedule.bind(*shape, **params), in_place=in_place)
            held = [plan.rank(rank) for rank in range(plan.ranks)]
        except ValueError:  # not for this number of ranks, or not in place
            continue
        given = "".join(f" {key}={value}" for key, value in params.items())
        label = f"{name} {'x'.join(map(str, shape))}{given}{' in place' if in_place else ''}"
        yield label, replace(plan, rank_plan=held.__getitem__)


def _shapes(ranks: int, axes: int) -> Iterator[tuple[int, ...]]:
    if axes == 1:
        yield (ranks,)
        return
    for first in range(2, ranks // 2 + 1):
        if ranks % first == 0:
            yield from ((first, *rest) for rest in _shapes(ranks // first, axes - 1) if rest[-1] > 1)


def tally(ranks: list[int], each: int, seed: int, notes: Progress | None = None) -> Tally:
    """All mutants of the library at these numbers of ranks. notes: what is known of plans already judged, and learns of others."""
    counts: Counter[tuple[str, str]] = Counter()
    missed: list[str] = []
    plans = 0
    for number in ranks:
        for name, plan in library_plans(number):
            plans += 1
            key = f"{number} {name}, {each} of a class, seed {seed}"
            found = notes.known(key) if notes else None
            if found is None:
                found = _judged(name, plan, each, np.random.default_rng([seed, number, *name.encode()]))
                if notes:
                    notes.learn(key, found)
            counts.update({(kind, judgement): times for kind, judgement, times in found["counts"]})
            missed += found["missed"]
        if notes:
            notes.say(f"{number} ranks: {plans} plans, {sum(counts.values())} mutants, {len(missed)} missed")
    return Tally(counts, tuple(missed), plans)


def _judged(name: str, plan: Plan, each: int, lots: np.random.Generator) -> dict[str, Any]:
    judge = Judge(plan)
    counts: Counter[tuple[str, str]] = Counter()
    missed = []
    for mutant in mutants(plan, each, lots):
        judgement = judge.judgement(mutant)
        counts[mutant.kind, judgement] += 1
        if judgement == "missed":
            missed.append(f"{name}: {mutant.kind} at rank {mutant.rank}, row {mutant.row}")
    return {"counts": [[*key, times] for key, times in counts.items()], "missed": missed}


def main() -> None:
    """Prints a table of classes and judgements, and every miss."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.design.mutants", description=__doc__)
    parser.add_argument("--ranks", nargs="+", type=int, default=list(range(2, 9)))
    parser.add_argument("--each", type=int, default=3, help="mutants of a class and plan")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    found = tally(given.ranks, given.each, given.seed, Progress("mutants"))
    judgements = ("killed", "equivalent", "missed")
    print(f"{'class':22}" + "".join(f"{one:>14}" for one in judgements))
    for kind in CLASSES:
        print(f"{kind:22}" + "".join(f"{found.counts[kind, one]:14}" for one in judgements))
    print(f"{'all':22}" + "".join(f"{found.total(one):14}" for one in judgements))
    for line in found.missed:
        print(f"missed: {line}")


if __name__ == "__main__":
    main()
