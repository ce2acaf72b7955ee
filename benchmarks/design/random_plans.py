"""Random small plans, and whether the verifier and the second opinions agree: `python -m benchmarks.design.random_plans [--plans N] [--seed N]`.

Some are library plans with one to three changes, some are made of pieces at random: messages, signals, semaphores, flags, barriers, copies, puts, gets, in
any order, some of them relaxed. Compared are: whether every order ends; whether two accesses can come in either order, of one launch or of two, callers
included; what orders of memory leave open; whether the result is the promised one.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from benchmarks.design.happens_before import unordered
from benchmarks.design.interleavings import final_states, is_right, races
from benchmarks.design.motion import TooManyError
from benchmarks.design.mutants import CLASSES, library_plans
from busbw.collectives.legality import verify_plan
from busbw.collectives.plan import Buffer, ConnectionKind, Op, Order, Plan, RankBuilder, Span, held_plan

__all__ = ["compared", "disagreement", "random_plans"]

_UNLIKE = {
    "malformed", "bounds", "connection-shared", "connection-missing", "protocols-differ", "counts-differ", "two-acquirers", "barrier-blocks",
    "too-long", "packet-rewritten", "packet-as-data", "buffer-sizes",
}  # fmt: skip
"""Rules about what a plan is made of: a plan that breaks one has no one meaning to compare."""
_STUCK = {"deadlock", "fifo-depth"}
_RACES = {"race", "relaunch-race", "not-entered", "weak-order"}
_WRONG = {"wrong-result", "leftover-message", "leftover-signal", "semaphore-balance"}


def disagreement(plan: Plan) -> str | None:
    """What the verifier and a second opinion do not agree on; None if they agree. Raises TooManyError if there is nothing to compare with."""
    in_place = plan.in_place
    rules = {violation.rule for violation in verify_plan(plan).violations}
    if rules & _UNLIKE:
        raise TooManyError("it has no one meaning")
    ends = final_states(plan, in_place, 3_000)
    stuck = not all(done for done, *_ in ends)
    if stuck != bool(rules & _STUCK):
        return f"an order ends nowhere: {stuck}; the verifier says {sorted(rules)}"
    if stuck:
        return None
    far = any(_reaches(plan, rank) for rank in range(plan.ranks))
    launches = 2 if far else 1
    either = races(plan, in_place, launches, 8_000)
    said = bool(rules & _RACES)
    relaxed = any(_has_relaxed(plan, rank) for rank in range(plan.ranks))
    if either and not said:
        return f"{sorted(either)[0]} can come in either order; the verifier says {sorted(rules)}"
    if said and not either and not relaxed:
        return f"no two accesses can come in either order; the verifier says {sorted(rules)}"
    try:
        open_ = unordered(plan, in_place, launches)
    except TooManyError:
        open_ = None
    if open_ is not None and bool(open_) != said:
        return f"happens-before leaves open {sorted(open_)[:1]}; the verifier says {sorted(rules)}"
    if said:
        return None
    if len(ends) != 1:
        return f"{len(ends)} ends; the verifier says {sorted(rules)}"
    right = is_right(plan, ends, in_place)
    if (right and rules & _WRONG) or (not right and not rules):
        return f"the result is {'right' if right else 'wrong'}; the verifier says {sorted(rules)}"
    return None


def _reaches(plan: Plan, rank: int) -> bool:
    return bool(
        np.isin(
            plan.rank(rank).connections["kind"], (ConnectionKind.MAPPED, ConnectionKind.MEMORY, ConnectionKind.SWITCH)
        ).any()
    )


def _has_relaxed(plan: Plan, rank: int) -> bool:
    rows = plan.rank(rank).instructions
    ordered = np.isin(rows["op"], (Op.SIGNAL, Op.WAIT, Op.FLAG_SET, Op.FLAG_WAIT, Op.RELEASE, Op.ACQUIRE))
    return bool((ordered & (rows["order"] == Order.RELAXED)).any())


def random_plans(seed: int, many: int) -> Iterator[Plan]:
    """That many plans; the same for the same seed."""
    bases = [plan for ranks in (2, 3) for _, plan in library_plans(ranks) if _small(plan)]
    for number in range(many):
        lots = np.random.default_rng([seed, number])
        yield _changed(bases[int(lots.integers(len(bases)))], lots) if number % 4 == 0 else _of_pieces(lots)


def _small(plan: Plan) -> bool:
    return sum(len(plan.rank(rank).unrolled().instructions) for rank in range(plan.ranks)) <= 16


def _changed(plan: Plan, lots: np.random.Generator) -> Plan:
    ranks = [plan.rank(rank).unrolled() for rank in range(plan.ranks)]
    kinds = list(CLASSES.values())
    for _ in range(int(lots.integers(1, 4))):
        rank = int(lots.integers(len(ranks)))
        places = np.flatnonzero(ranks[rank].instructions["op"] != Op.OPERAND)
        if len(places):
            other = kinds[int(lots.integers(len(kinds)))](ranks[rank], int(places[int(lots.integers(len(places)))]))
            ranks[rank] = ranks[rank] if other is None else other
    return replace(plan, rank_plan=ranks.__getitem__)


def _of_pieces(lots: np.random.Generator) -> Plan:
    """An all_gather or all_reduce of two or three ranks with one or two blocks each, of a few pieces that mostly come in pairs."""
    ranks, blocks = 2 + int(lots.integers(4) == 0), int(lots.integers(1, 3))
    builders = [RankBuilder(rank, ranks, ranks, 2) for rank in range(ranks)]
    semaphores = [builder.semaphore(int(lots.integers(3) == 0)) for builder in builders]
    programs = [[builder.block(number) for number in range(blocks)] for builder in builders]

    def span() -> Span:
        return Span(Buffer(int(lots.integers(3))), int(lots.integers(2)), 1)

    def order(strong: Order) -> Order:
        return Order.RELAXED if lots.integers(5) == 0 else strong

    flags: Counter[tuple[int, int]] = Counter()
    for _ in range(int(lots.integers(3, 7))):
        here, there = (int(x) for x in lots.permutation(ranks)[:2])
        one, two = int(lots.integers(blocks)), int(lots.integers(blocks))
        mine, theirs = programs[here][one], programs[there][two]
        piece = int(lots.integers(8))
        if piece == 0:
            channel = one * 2 + two
            mine.send(span(), builders[here].send_to(there, channel))
            theirs.receive(builders[there].receive_from(here, channel), span())
        elif piece == 1:
            source = span()
            mine.put(source, builders[here].connect(ConnectionKind.MAPPED, there), replace(span(), count=source.count))
        elif piece == 2:
            mine.get(span(), builders[here].connect(ConnectionKind.MAPPED, there), span())
        elif piece in (3, 4):
            channel = one * 2 + two
            given = builders[here].connect(ConnectionKind.MEMORY, there, channel)
            awaited = builders[there].connect(ConnectionKind.MEMORY, here, channel)
            mine.signal(given, order=order(Order.RELEASE))
            theirs.wait(awaited, order=order(Order.ACQUIRE))
        elif piece == 5 and blocks > 1:
            programs[here][one].release(semaphores[here], order=order(Order.RELEASE))
            programs[here][0].acquire(semaphores[here], order=order(Order.ACQUIRE))
        elif piece == 6 and blocks > 1:
            flags[here, one] += 1
            mine.set_flag(order=order(Order.RELEASE))
            programs[here][1 - one].wait_flag(one, flags[here, one], order=order(Order.ACQUIRE))
        elif piece == 7 and blocks > 1 and lots.integers(2):
            for block in programs[here]:
                block.barrier(0, blocks)
        else:
            mine.copy(span(), span())
    made = [_shuffled(builder.build(), lots) for builder in builders]
    return held_plan(made, name="random", collective="all_reduce", chunks=ranks)


def _shuffled(rank, lots):  # type: ignore[no-untyped-def]
    """Sometimes with two neighbouring instructions swapped."""
    rows = rank.instructions
    if lots.integers(3) or len(rows) < 2:
        return rank
    other = CLASSES["swapped neighbours"](rank, int(lots.integers(len(rows) - 1)))
    return rank if other is None else other


def compared(seed: int, many: int) -> tuple[Counter[str], list[str]]:
    """How many plans were legal, illegal, or without a meaning to compare; and every disagreement."""
    counts: Counter[str] = Counter()
    found = []
    for number, plan in enumerate(random_plans(seed, many)):
        try:
            told = disagreement(plan)
        except TooManyError:
            counts["not compared"] += 1
            continue
        counts["legal" if verify_plan(plan).legal else "illegal"] += 1
        if told is not None:
            found.append(f"seed {seed}, plan {number}: {told}")
    return counts, found


def main() -> int:
    """Prints counts and disagreements; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.design.random_plans", description=__doc__)
    parser.add_argument("--plans", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    counts, found = compared(given.seed, given.plans)
    for line in found:
        print(line)
    print(
        f"{given.plans} plans: {', '.join(f'{times} {what}' for what, times in sorted(counts.items()))}; {len(found)} disagreements"
    )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
