"""A second opinion on small plans, by trying every order in which blocks may run (`motion.py`). Shares nothing with the verifier.

`final_states` gives the set of all ends. Of orders that differ only in steps that commute it tries one: from each state only a stubborn set of
processes goes on (Valmari, LNCS 483, 1989). If a process in the set can take its step, every process that has yet to do something that does not
commute with it is in the set; if it can't, every process that has yet to give what it waits for. So whatever those outside do, the
first step of one inside can be moved to the front, and every end of the plan stays an end of what is tried. Two steps commute unless one
writes a cell that the other reads or writes, or both use one end of a FIFO or take from one counter.

`races` looks at every place to which blocks can come, all orders, with FIFOs without end: two steps that can both be taken next, of which one
writes what the other touches.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, TypeAlias

from benchmarks.design.motion import Instruction, Key, State, TooManyError, Values, World
from busbw.collectives.legality import promise_of
from busbw.collectives.plan import Plan

__all__ = ["End", "TooManyError", "final_states", "is_right", "leaves_early", "races"]

End: TypeAlias = tuple[bool, Any, Any, Any]
"""Whether all processes came to their end; if they did: outputs, messages left in FIFOs, signals left."""


class _Commuting:
    """Which processes have, from a place on, a step that does not commute with one, or that gives a key."""

    def __init__(self, world: World) -> None:
        self.world = world
        self._last: dict[Hashable, dict[int, int]] = {}
        self.givers: dict[Key, dict[int, int]] = {}
        for process, steps in enumerate(world.processes):
            for place, one in enumerate(steps):
                for cell in one.reads:
                    self._last.setdefault(("read", cell), {})[process] = place
                for cell in one.writes:
                    self._last.setdefault(("write", cell), {})[process] = place
                for key in one.alone:
                    self._last.setdefault(key, {})[process] = place
                for key in one.gives:
                    self.givers.setdefault(key, {})[process] = place
                for _, taken, _, _ in one.takes:
                    self.givers.setdefault(taken, {})[process] = place
        self._conflicts: dict[tuple[int, int], list[tuple[int, int]]] = {}

    def conflicts(self, process: int, place: int) -> list[tuple[int, int]]:
        """(other process, its last place that does not commute with the step at `place`)."""
        known = self._conflicts.get((process, place))
        if known is None:
            one = self.world.processes[process][place]
            keys: list[Hashable] = [("write", cell) for cell in one.reads]
            keys += [key for cell in one.writes for key in (("write", cell), ("read", cell))]
            found: dict[int, int] = {}
            for key in (*keys, *one.alone):
                for other, last in self._last.get(key, {}).items():
                    if other != process and found.get(other, -1) < last:
                        found[other] = last
            known = self._conflicts[process, place] = list(found.items())
        return known

    def smallest(self, state: State) -> list[int]:
        """Processes of a stubborn set that can take their step; the set with the fewest of them. Empty: none can."""
        best: list[int] = []
        lacking: dict[int, Key | None] = {}
        for process, steps in enumerate(self.world.processes):
            place = state.places[process]
            if place < len(steps):
                lacking[process] = self.world.lacks(state, steps[place])
        for seed in [process for process, key in lacking.items() if key is None]:
            enabled = self._closed(state, seed, lacking, len(best) or len(lacking) + 1)
            if enabled is None:
                continue
            best = enabled
            if len(best) == 1:
                break
        return best

    def _closed(self, state: State, seed: int, lacking: dict[int, Key | None], fewer_than: int) -> list[int] | None:
        """What can run of the least stubborn set with a process; None if that is not fewer."""
        inside, open_, enabled = {seed}, [seed], []
        while open_:
            process = open_.pop()
            key = lacking[process]
            if key is None:
                enabled.append(process)
                if len(enabled) >= fewer_than:
                    return None
                more: Iterator[tuple[int, int]] = iter(self.conflicts(process, state.places[process]))
            else:
                more = iter(self.givers.get(key, {}).items())
            for other, last in more:
                if other not in inside and state.places[other] <= last and other in lacking:
                    inside.add(other)
                    open_.append(other)
        return enabled


def final_states(
    plan: Plan, in_place: bool, most_states: int = 50_000, slots: int | None = 2, values: Values | None = None, *, every_order: bool = False
) -> set[End]:  # fmt: skip
    """All ends of a plan over every order. Raises TooManyError beyond `most_states` branchings, and for loops over slices.

    slots: messages that a FIFO holds; None: any number. every_order: tries also those that differ only in steps that commute.
    """
    world = World(plan, in_place, values, slots=slots)
    commuting = _Commuting(world)
    met: set[Any] = set()
    open_ = [world.first()]
    ends: set[End] = set()
    while open_:
        state = open_.pop()
        while True:
            able = world.able(state) if every_order else commuting.smallest(state)
            if not able:
                ends.add(_end(world, state))
                break
            if len(able) > 1:
                frozen = state.frozen()
                if frozen in met:
                    break
                met.add(frozen)
                if len(met) > most_states:
                    raise TooManyError(f"more than {most_states} branchings")
                for process in able[1:]:
                    other = state.copy()
                    world.run(other, process)
                    open_.append(other)
            world.run(state, able[0])
    return ends


def _end(world: World, state: State) -> End:
    if not world.done(state):
        return False, None, None, None
    left = []
    for key, given in state.numbers.items():
        if key[0] == "given":
            balance = given - state.numbers.get(("taken", *key[1:]), 0)
            left.append((key, balance))
    for key, taken in state.numbers.items():
        if key[0] == "taken" and ("given", *key[1:]) not in state.numbers and key[1] == "semaphore":
            left.append((key, -taken))
    messages = tuple(sorted((fifo, len(queue)) for fifo, queue in state.fifos.items() if queue))
    return True, world.outputs(state), messages, tuple(sorted((item for item in left if item[1]), key=repr))


def is_right(plan: Plan, ends: set[End], in_place: bool) -> bool:
    """Whether every order ends, with nothing left over and every promised chunk made of one contribution of each rank that had it."""
    promise = promise_of(plan)
    if promise is None:
        raise TooManyError("the plan promises nothing")
    parts = World(plan, in_place).parts
    holders: dict[int, list[int]] = {}
    for rank in range(plan.ranks):
        for content in promise.before(rank).tolist():
            holders.setdefault(int(content), []).append(rank)
    for done, outputs, messages, left in ends:
        if not done or messages or left:
            return False
        for rank in range(plan.ranks):
            for chunk, content in enumerate(promise.after(rank).tolist()):
                for part in range(parts if content >= 0 else 0):
                    wanted = sorted(
                        ((((who, (int(content), part))), 1) for who in holders.get(int(content), [])), key=repr
                    )
                    place = chunk * parts + part
                    if place >= len(outputs[rank]) or list(outputs[rank][place]) != wanted:
                        return False
    return True


def races(plan: Plan, in_place: bool, launches: int = 1, most_states: int = 200_000) -> set[tuple[str, str]]:
    """Pairs of steps that some order lets be next at once, where one writes what the other touches; callers' accesses among them.

    Nothing is left out, and FIFOs never fill. Raises TooManyError beyond `most_states` states.
    """
    world = World(plan, in_place, slots=None, launches=launches, callers=True)
    start = world.first()
    met = {tuple(start.places)}
    open_ = [start]
    found: set[tuple[str, str]] = set()
    while open_:
        state = open_.pop()
        able = world.able(state)
        nexts = [world.processes[process][state.places[process]] for process in able]
        for i, one in enumerate(nexts):
            for two in nexts[:i]:
                if _clash(one, two):
                    found.add((two.where, one.where) if two.where < one.where else (one.where, two.where))
        for process in able:
            after = state.copy()
            world.run(after, process, moving=False)
            if (places := tuple(after.places)) not in met:
                met.add(places)
                if len(met) > most_states:
                    raise TooManyError(f"more than {most_states} states")
                open_.append(after)
    return found


def _clash(one: Instruction, two: Instruction) -> bool:
    first, second = set(one.writes), set(two.writes)
    return bool(first & second or first.intersection(two.reads) or second.intersection(one.reads))


def leaves_early(plan: Plan, in_place: bool) -> bool:
    """Whether some rank may end before every rank has begun: each in turn is kept from beginning for ever, and all others go as far as they can.

    That is every order there is, because all that processes wait for only goes up.
    """
    for late in range(plan.ranks):
        world = World(plan, in_place, slots=None, callers=True)
        callers = len(world.processes) - plan.ranks
        state = world.first()
        while able := [process for process in world.able(state) if process != callers + late]:
            for process in able:
                world.run(state, process, moving=False)
        for rank in range(plan.ranks):
            caller = callers + rank
            if state.places[caller] == len(world.processes[caller]):
                return True
    return False
