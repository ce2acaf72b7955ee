"""What a plan orders by release and acquire, as a graph of one run: a second opinion where memory orders matter. Shares nothing with the verifier.

A plan in which happens-before orders every two accesses of one cell, of which one writes, behaves as some order of its blocks, whatever the memory does
(Adve and Hill, ISCA 1990; Boehm and Adve, PLDI 2008); orders of blocks are tried in `interleavings.py`. So a weaker memory order than
the plan had changes nothing if both hold: every order of the blocks ends alike, and nothing is unordered here.

Edges: from each step of a process to its next; from what gives a key to what waits for it, if both have their order; if one is relaxed, from where the
giver's rank was called. That a FIFO was full orders nothing.
"""

from __future__ import annotations

from collections import defaultdict

from benchmarks.design.motion import Key, TooManyError, World
from busbw.collectives.plan import Plan

__all__ = ["unordered"]


def unordered(plan: Plan, in_place: bool, launches: int = 1) -> set[tuple[str, str]]:
    """Pairs of steps of one run that touch one cell, of which one writes, and that nothing orders; callers' accesses among them.

    Raises TooManyError for what one run does not decide: counters with several givers, packets, threads that are not in order, puts by a NIC.
    """
    if not plan.blocks_in_order:
        raise TooManyError("threads that are not in order are not known here")
    world = World(plan, in_place, slots=None, launches=launches, callers=True)
    if world.weak:
        raise TooManyError(world.weak)
    state = world.first()
    known: list[int] = []  # for each step run, the steps before it, as bits
    last = [0] * len(world.processes)  # of each process, its steps so far
    given: dict[Key, list[tuple[int, int, bool, int]]] = defaultdict(
        list
    )  # steps known to the giver, process, relaxed, steps at its rank's call
    called = [0] * plan.ranks
    touched: dict[int, list[tuple[int, bool]]] = defaultdict(list)
    names: list[str] = []
    while able := world.able(state):
        process = able[0]
        one = world.processes[process][state.places[process]]
        before = last[process]
        for key, least in one.waits:
            for knowledge, _, relaxed, start in given[key][:least]:
                before |= start if relaxed or one.relaxed else knowledge
        for key, taken, at_first, many in one.takes:
            if len({giver for _, giver, _, _ in given[key]}) > 1:
                raise TooManyError("of several givers, either may be met")
            first = state.numbers.get(taken, 0) - at_first
            for knowledge, _, relaxed, start in given[key][max(first, 0) : max(first + many, 0)]:
                before |= start if relaxed or one.relaxed else knowledge
        event = len(known)
        known.append(before)
        names.append(one.where)
        last[process] = before | 1 << event
        if one.gives and one.gives[0][0] == "gate":
            called[one.gives[0][1]] = last[process]
        for key in one.gives:
            given[key].append((last[process], process, one.relaxed, called[one.rank]))
        for cell in set(one.reads) - set(one.writes):
            touched[cell].append((event, False))
        for cell in set(one.writes):
            touched[cell].append((event, True))
        world.run(state, process, moving=False)
    if not world.done(state):
        raise TooManyError("the plan does not end")
    found = set()
    for accesses in touched.values():
        for i, (two, writes) in enumerate(accesses):
            for one_event, wrote in accesses[:i]:
                if (writes or wrote) and not known[two] >> one_event & 1:
                    found.add((names[one_event], names[two]))
    return found
