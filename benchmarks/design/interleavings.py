"""A second opinion on small plans, by trying: every order in which blocks may run. Small and slow, shares nothing with the verifier.

`final_states` runs all ranks of a plan, one instruction at a time, in every order, and gives the set of all ends. `behaviours` does the same with
one rank alone, to which the messages of the whole plan (`streams`) come at once: what it sends on each FIFO and leaves in memory. If a changed
rank sends the same in every order of its blocks, the streams of the plan solve the equations of the changed plan, too; a network of processes
that read and write FIFOs computes the least solution, whatever the order (Kahn, IFIP 1974), so nothing but a beginning of those
streams; and as one bounded run of the changed plan came to its end with empty FIFOs, all of them. That is the proof for more ranks
than can be tried.

A value is a multiset of contributions (who, which chunk), so that a doubled one shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

from busbw.collectives.legality import aliases, promise_of
from busbw.collectives.plan import LOCAL, Buffer, ConnectionKind, Op, Plan, RankPlan

__all__ = ["Streams", "TooManyError", "behaviours", "final_states", "same_program", "streams", "swap_is_free"]

Value: TypeAlias = tuple[tuple[Any, int], ...] | None
"""Contributions with how often, sorted; None: nothing was written there."""

Streams: TypeAlias = dict[tuple[Any, ...], list[tuple[Value, ...]]]
"""Messages of each FIFO, in order."""

_FIFO_OPS = (Op.SEND, Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)


class TooManyError(Exception):
    """More states than were to be looked at, or an instruction that is not known here."""


def _sum(*values: Value) -> Value:
    if any(value is None for value in values):
        return (("nothing", 1),)
    total: Counter[Any] = Counter()
    for value in values:
        total.update(dict(value or ()))
    return tuple(sorted(total.items(), key=repr))


@dataclass(frozen=True)
class _Instruction:
    op: Op
    rows: tuple[tuple[int, int, int, int, int, int], ...]  # via, source buffer, first, target buffer, first, count
    count: int


def _program(rank: RankPlan, block: int) -> list[_Instruction]:
    rows = rank.rows(block)
    out, place = [], 0
    while place < len(rows):
        mine = rows[place : place + 1 + int(rows[place]["more"])]
        place += len(mine)
        if (rank.walks[mine["walk"]]["parts"] != 1).any() or mine[0]["op"] == Op.SLICES:
            raise TooManyError("shares and slices are not known here")
        operands = tuple(
            (int(r["via"]), int(r["src_buffer"]), int(r["src"]), int(r["dst_buffer"]), int(r["dst"]), int(r["count"]))
            for r in mine
        )
        out.append(_Instruction(Op(int(mine[0]["op"])), operands, int(mine[0]["count"])))
    return out


class _World:
    """A plan in motion. State: places of blocks, memory, FIFOs, counters, flags, who waits at barriers."""

    def __init__(
        self, plan: Plan, in_place: bool, alone: int | None = None, slots: int = 2, given: Streams | None = None
    ) -> None:
        self.plan, self.alone, self.slots, self.given = plan, alone, slots, given or {}
        self.sent: Streams = {}
        self.reduced = False
        wanted = [alone] if alone is not None else range(plan.ranks)
        self.ranks = {rank: plan.rank(rank).unrolled() for rank in wanted}
        self.base: dict[tuple[int, int], int] = {}
        self.size: dict[tuple[int, int], int] = {}
        self.cells = 0
        memory: dict[int, Value] = {}
        promise = promise_of(plan)
        for number, rank in self.ranks.items():
            before = promise.before(number) if promise else range(rank.input_chunks)
            sizes = self._sizes(rank, in_place, len(before))
            input_at, output_at, both = aliases(plan, _resized(rank, sizes), in_place)
            for buffer, first in ((Buffer.INPUT, input_at), (Buffer.OUTPUT, output_at), (Buffer.SCRATCH, both)):
                self.base[number, buffer] = self.cells + first
                self.size[number, buffer] = sizes[buffer]
            for place, content in enumerate(before):
                if place < sizes[0]:
                    who = number if promise or alone is None else "self"
                    memory[self.cells + input_at + place] = (((who, int(content) if promise else place), 1),)
            self.cells += both + rank.scratch_chunks
        self.memory = tuple(memory.get(cell) for cell in range(self.cells))
        self.blocks = [(number, block) for number, rank in self.ranks.items() for block in range(len(rank.blocks))]
        self.programs = [_program(self.ranks[number], block) for number, block in self.blocks]
        self.touched = self._visible()

    def _sizes(self, rank: RankPlan, in_place: bool, before: int) -> tuple[int, int, int]:
        inputs, outputs = rank.input_chunks, rank.output_chunks
        if in_place:
            inputs, outputs = inputs or before, outputs or inputs or before
        return inputs, outputs, rank.scratch_chunks

    def start(self) -> tuple[Any, ...]:
        """The first state."""
        return (0,) * len(self.blocks), self.memory, (), (), (0,) * len(self.blocks), ()

    def cell(self, rank: int, buffer: int, first: int, count: int) -> range | None:
        """Cells of chunks; None outside of the buffer."""
        if buffer == Buffer.NONE or first < 0 or count < 1 or first + count > self.size.get((rank, buffer), 0):
            return None
        at = self.base[rank, buffer] + first
        return range(at, at + count)

    def accesses(self, block: int, one: _Instruction) -> tuple[set[int], set[int]]:
        """Cells that an instruction reads, and writes; every rank's where it goes through a switch or to a peer."""
        number = self.blocks[block][0]
        if one.op >= Op.SYNC or one.op in (Op.SIGNAL, Op.WAIT):
            return set(), set()
        inside = one.op in _FIFO_OPS or all(via == LOCAL for via, *_ in one.rows)
        owners = {number} if inside else set(self.ranks)
        reads = {c for _, s, f, _, _, n in one.rows for owner in owners for c in self.cell(owner, s, f, n) or ()}
        writes = {c for _, _, _, t, a, n in one.rows for owner in owners for c in self.cell(owner, t, a, n) or ()}
        return reads, writes

    def _visible(self) -> tuple[dict[int, set[int]], dict[int, set[int]]]:
        """Blocks that read each cell, and that write it."""
        readers: dict[int, set[int]] = {}
        writers: dict[int, set[int]] = {}
        for block, program in enumerate(self.programs):
            for one in program:
                for cells, by in zip(self.accesses(block, one), (readers, writers), strict=True):
                    for cell in cells:
                        by.setdefault(cell, set()).add(block)
        return readers, writers

    @property
    def reaches_peers(self) -> bool:
        """Whether anything but messages passes between ranks."""
        return any(
            one.op not in _FIFO_OPS and one.op < Op.SYNC and any(via != LOCAL for via, *_ in one.rows)
            for program in self.programs
            for one in program
        )

    def is_private(self, block: int, one: _Instruction) -> bool:
        """Whether nobody can see when this instruction runs: no other block writes what it reads, or touches what it writes."""
        if (
            one.op in _FIFO_OPS
            or one.op >= Op.SYNC
            or one.op in (Op.SIGNAL, Op.WAIT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH)
        ):
            return one.op is Op.SYNC
        reads, writes = self.accesses(block, one)
        readers, writers = self.touched
        alone = {block}
        return all(writers.get(cell, alone) <= alone for cell in reads | writes) and all(
            readers.get(cell, alone) <= alone for cell in writes
        )

    def _alone_suffices(self, block: int, one: _Instruction) -> bool:
        """Whether no other order needs to be tried while this instruction can run.

        If nobody can see it; and, where `reduced`, signals and waits: a counter has one that waits, so a token that is there stays, and who
        gives one more takes nothing from anybody. They commute with all that others can do (persistent sets, Godefroid, LNCS 1032).
        """
        return self.is_private(block, one) or (self.reduced and one.op in (Op.SIGNAL, Op.WAIT))

    def steps(self, state: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
        """The states that one more instruction leads to; only the first of those that nobody else can see, if there is one."""
        places = state[0]
        for block, place in enumerate(places):
            if place < len(self.programs[block]) and self._alone_suffices(block, self.programs[block][place]):
                after = self.after(state, block)
                if after is not None:
                    yield after
                    return
        for block, place in enumerate(places):
            if place < len(self.programs[block]):
                after = self.after(state, block)
                if after is not None:
                    yield after

    def after(self, state: tuple[Any, ...], block: int) -> tuple[Any, ...] | None:
        """The state after a block's next instruction; None if it waits."""
        places, memory, fifos, counters, flags, met = state
        number, _ = self.blocks[block]
        one = self.programs[block][places[block]]
        changed = list(memory)
        queues, counts, raised, meeting = dict(fifos), dict(counters), list(flags), dict(met)
        moved = self._run(one, number, block, changed, queues, counts, raised, meeting)
        if moved is None:
            return None
        ahead = list(places)
        ahead[block] += 1 if moved else 0
        return (
            tuple(ahead), tuple(changed), tuple(sorted(queues.items(), key=repr)), tuple(sorted(counts.items())), tuple(raised),
            tuple(sorted(meeting.items())),
        )  # fmt: skip

    def _run(self, one: _Instruction, number: int, block: int, memory: list[Value], queues: Any, counts: Any, flags: list[int], meeting: Any) -> bool | None:  # fmt: skip  # noqa: PLR0917
        if one.op in _FIFO_OPS:
            return True if self._fifo(one, number, memory, queues) else None
        if one.op in (Op.COPY, Op.REDUCE, Op.PUT, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH, Op.GET):
            self._move(one, number, memory)
            if one.op not in (Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH):
                return True
        if one.op in (Op.MULTICAST, Op.GROUP_REDUCE, Op.GROUP_REDUCE_MULTICAST):
            self._switch(one, number, memory)
            return True
        if one.op in (Op.SIGNAL, Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH, Op.WAIT):
            return self._signal(one, number, counts)
        if one.op in (Op.RELEASE, Op.ACQUIRE):
            return self._semaphore(one, number, counts)
        if one.op is Op.FLAG_SET:
            flags[block] += 1
            return True
        if one.op is Op.FLAG_WAIT:
            via, _, times, *_ = one.rows[0]
            other = self.blocks.index((number, via)) if (number, via) in self.blocks else None
            return True if other is not None and flags[other] >= times else None
        if one.op is Op.BARRIER:
            return self._barrier(one, number, block, meeting)
        if one.op in (Op.SYNC, Op.FLUSH):
            return True
        raise TooManyError(f"{one.op.name} is not known here")

    def _barrier(self, one: _Instruction, number: int, block: int, meeting: Any) -> bool | None:
        key = (number, one.rows[0][0])
        waiting, let_go = meeting.get(key, ((), ()))
        if block in let_go:
            rest = tuple(other for other in let_go if other != block)
            meeting[key] = (waiting, rest)
            return True
        if block in waiting:
            return None
        waiting = (*waiting, block)
        if len(waiting) < one.count:
            meeting[key] = (waiting, let_go)
            return False
        meeting[key] = ((), tuple(sorted(set(let_go) | set(waiting) - {block})))
        return True

    def _way(self, number: int, via: int) -> tuple[int, int, int, int] | None:
        table = self.ranks[number].connections
        if not 0 <= via < len(table):
            return None
        row = table[via]
        return int(row["kind"]), int(row["peer"]), int(row["channel"]), int(row["protocol"])

    def _fifo(self, one: _Instruction, number: int, memory: list[Value], queues: Any) -> bool:
        via, source, first, target, at, count = one.rows[0]
        receives, sends = one.op is not Op.SEND, one.op not in (Op.RECV, Op.RECV_REDUCE_COPY)
        reads = one.op not in (Op.RECV, Op.RECV_COPY_SEND)
        writes = one.op not in (Op.SEND, Op.RECV_REDUCE_SEND)
        from_way = self._way(number, via) if receives else None
        to_way = self._way(number, via if one.op is Op.SEND else one.rows[-1][0]) if sends else None
        came: list[Value] = []
        if receives:
            if from_way is None or from_way[0] != ConnectionKind.FIFO_IN:
                return True
            key = ("fifo", from_way[2], from_way[1], number)
            waiting = queues.get(key, ())
            if self.alone is not None:
                met = queues.get(("taken", key), 0)
                queues["taken", key] = met + 1
                stream = self.given.get(key, [])
                came = list(stream[met]) if met < len(stream) else [(((key, met, place), 1),) for place in range(count)]
            elif not waiting:
                return False
            else:
                came = list(waiting[0])
        if sends:
            if to_way is None or to_way[0] != ConnectionKind.FIFO_OUT:
                return True
            out = ("fifo", to_way[2], number, to_way[1])
            if self.alone is None and len(queues.get(out, ())) >= self.slots:
                return False
        if receives and self.alone is None:
            rest = queues[key][1:]
            if rest:
                queues[key] = rest
            else:
                del queues[key]
        own = self.cell(number, source, first, count) if reads else None
        into = self.cell(number, target, at, count) if writes else None
        values: list[Value] = came
        if reads:
            mine = [memory[cell] for cell in own or ()]
            values = mine if not receives else [_sum(a, b) for a, b in zip(came, mine, strict=False)]
            if receives and len(came) != len(mine):
                values.append((("lost", 1),))
        if writes:
            cells = list(into or ())
            if len(cells) != len(values):
                values = [(("lost", 1),)] * len(cells)
            for cell, value in zip(cells, values, strict=True):
                memory[cell] = value
        if sends:
            queues[out] = (*queues.get(out, ()), tuple(values))
            self.sent.setdefault(out, []).append(tuple(values))
        return True

    def _move(self, one: _Instruction, number: int, memory: list[Value]) -> None:
        if one.op is Op.REDUCE:
            total: list[Value] | None = None
            for via, source, first, _, _, count in one.rows:
                cells = self.cell(self._owner(number, via), source, first, count)
                if cells is not None:
                    values = [memory[cell] for cell in cells]
                    total = values if total is None else [_sum(a, b) for a, b in zip(total, values, strict=False)]
            for via, _, _, target, at, count in one.rows:
                for cell, value in zip(
                    self.cell(self._owner(number, via), target, at, count) or (), total or (), strict=False
                ):
                    memory[cell] = value
            return
        for via, source, first, target, at, count in one.rows:
            here, there = number, self._owner(number, via)
            src = self.cell(there if one.op is Op.GET else here, source, first, count)
            dst = self.cell(here if one.op is Op.GET else there, target, at, count)
            for cell, value in zip(dst or (), [memory[cell] for cell in src or ()], strict=False):
                memory[cell] = value

    def _owner(self, number: int, via: int) -> int:
        way = self._way(number, via)
        return number if way is None or via == LOCAL else way[1]

    def _switch(self, one: _Instruction, number: int, memory: list[Value]) -> None:
        for via, source, first, target, at, count in one.rows:
            way = self._way(number, via)
            if way is None or way[0] != ConnectionKind.SWITCH:
                continue
            members = self.ranks[number].groups[way[1]].ranks
            readers = members if one.op is not Op.MULTICAST else (number,)
            writers = members if one.op is not Op.GROUP_REDUCE else (number,)
            values: list[Value] | None = None
            for member in readers:
                mine = [memory[cell] for cell in self.cell(member, source, first, count) or ()]
                values = mine if values is None else [_sum(a, b) for a, b in zip(values, mine, strict=False)]
            for member in writers:
                for cell, value in zip(self.cell(member, target, at, count) or (), values or (), strict=False):
                    memory[cell] = value

    def _signal(self, one: _Instruction, number: int, counts: Any) -> bool | None:
        keys = []
        for via, *_ in one.rows:
            way = self._way(number, via)
            if way is None:
                continue
            ends = (way[1], number) if one.op is Op.WAIT else (number, way[1])
            keys.append((way[0], way[2], *ends))
        needed = Counter(keys)
        if one.op is Op.WAIT:
            if any(counts.get(key, 0) < times for key, times in needed.items()):
                return None
            for key, times in needed.items():
                counts[key] -= times
        else:
            for key, times in needed.items():
                counts[key] = counts.get(key, 0) + times
        return True

    def _semaphore(self, one: _Instruction, number: int, counts: Any) -> bool | None:
        for via, *_ in one.rows:
            key = (-1, via, number, number)
            now = counts.get(key, self.ranks[number].semaphores[via])
            if one.op is Op.ACQUIRE:
                if now <= 0:
                    return None
                counts[key] = now - 1
            else:
                counts[key] = now + 1
        return True


def _resized(rank: RankPlan, sizes: tuple[int, int, int]) -> RankPlan:
    return RankPlan(
        rank.rank,
        sizes[0],
        sizes[1],
        sizes[2],
        rank.instructions,
        rank.blocks,
        rank.connections,
        rank.walks,
        rank.groups,
        rank.semaphores,
    )


def _ends(world: _World, most_states: int) -> set[tuple[Any, ...]]:
    met = {world.start()}
    open_ = list(met)
    ends = set()
    while open_:
        state = open_.pop()
        last = True
        for after in world.steps(state):
            last = False
            if after not in met:
                met.add(after)
                open_.append(after)
                if len(met) > most_states:
                    raise TooManyError(f"more than {most_states} states")
        if last:
            ends.add(state)
    return ends


def final_states(
    plan: Plan, in_place: bool, most_states: int = 200_000, slots: int = 2, *, reduced: bool = False
) -> set[tuple[Any, ...]]:
    """All ends of a plan over every order: whether it ended, what is in every output, what was left in FIFOs and counters.

    reduced: leaves out orders that differ only in when signals are given and taken. Raises TooManyError beyond `most_states` states, and for
    packets, shares and slices.
    """
    world = _World(plan, in_place, slots=slots)
    world.reduced = reduced
    out = set()
    for places, memory, fifos, counters, _, _ in _ends(world, most_states):
        done = all(place == len(program) for place, program in zip(places, world.programs, strict=True))
        results = tuple(
            memory[world.base[rank, Buffer.OUTPUT] + chunk]
            for rank in world.ranks
            for chunk in range(world.size[rank, Buffer.OUTPUT])
        )
        left = tuple((key, value) for key, value in counters if value)
        out.add((done, results if done else None, fifos if done else None, left if done else None))
    return out


def same_program(plan: Plan, other: Plan, in_place: bool) -> bool:
    """Whether two plans run the same instructions on the same cells of memory: buffers may have two names, and orders know no memory order."""
    one, two = _World(plan, in_place), _World(other, in_place)
    if one.blocks != two.blocks or one.memory != two.memory:
        return False
    return all(_resolved(one, block) == _resolved(two, block) for block in range(len(one.blocks)))


def swap_is_free(plan: Plan, rank: int, row: int, in_place: bool) -> bool:
    """Whether the instruction at a row of a rank (loops written out) and the one behind it may change places, given that the result ends.

    Two signals or waits: counters are FIFOs of tokens, and a network of FIFOs computes the same whatever the order (Kahn), if it ends. A copy or
    reduction where nobody else looks, and a signal or wait: nobody sees which came first. Two that move data and of which neither writes
    where the other reads or writes: what comes between them is ordered with neither, so in a plan without races it touches neither.
    """
    world = _World(plan, in_place)
    number, place = 0, row
    unrolled = world.ranks[rank]
    for block, bounds in enumerate(unrolled.blocks):
        if bounds["first"] <= row < bounds["last"]:
            number = world.blocks.index((rank, block))
            before = unrolled.instructions[bounds["first"] : row]["op"]
            place = int((before != Op.OPERAND).sum())
    one, two = world.programs[number][place : place + 2]
    tokens = (Op.SIGNAL, Op.WAIT, Op.SYNC)
    if one.op in tokens and two.op in tokens:
        return True
    if one.op in tokens or two.op in tokens:
        return world.is_private(number, two if one.op in tokens else one)
    if one.op in _FIFO_OPS or two.op in _FIFO_OPS or one.op >= Op.SYNC or two.op >= Op.SYNC:
        return False
    first, second = world.accesses(number, one), world.accesses(number, two)
    return not (first[1] & (second[0] | second[1]) or second[1] & first[0])


def _resolved(world: _World, block: int) -> list[tuple[Any, ...]]:
    number = world.blocks[block][0]
    out: list[tuple[Any, ...]] = []
    for one in world.programs[block]:
        for via, source, first, target, at, count in one.rows:
            way = world._way(number, via) if one.op < Op.SYNC else via
            owner = number if one.op in _FIFO_OPS or via == LOCAL or way is None or isinstance(way, int) else way[1]
            owner = number if isinstance(way, tuple) and way[0] == ConnectionKind.SWITCH else owner
            sides = (
                world.cell(owner if one.op is Op.GET else number, source, first, count),
                world.cell(owner, target, at, count),
            )
            if (
                one.op not in _FIFO_OPS
                and one.op < Op.SYNC
                and any(
                    cells is None and buffer != Buffer.NONE
                    for cells, buffer in zip(sides, (source, target), strict=True)
                )
            ):
                return [("outside", block, len(out))]
            out.append((one.op, way, sides, first if one.op >= Op.SYNC else None, count if one.op >= Op.SYNC else None))
    return out


def streams(plan: Plan, in_place: bool) -> Streams:
    """The messages of every FIFO in one run of a plan."""
    world = _World(plan, in_place)
    state: tuple[Any, ...] | None = world.start()
    while state is not None:
        state = next(world.steps(state), None)
    return world.sent


def behaviours(
    plan: Plan, rank: int, in_place: bool, given: Streams | None = None, most_states: int = 50_000
) -> set[tuple[Any, ...]]:
    """What one rank does over every order of its blocks, if all messages come: its streams out, how many it took in, its output.

    given: the messages; whatever is not given is a message like no other.

    Raises TooManyError beyond `most_states` states, and for instructions that touch a peer's memory or wait for a peer's signal.
    """
    world = _World(plan, in_place, alone=rank, given=given)
    if world.reaches_peers:
        raise TooManyError("the rank does more than send and receive")
    out = set()
    for places, memory, fifos, _, _, _ in _ends(world, most_states):
        done = all(place == len(program) for place, program in zip(places, world.programs, strict=True))
        results = tuple(
            memory[world.base[rank, Buffer.OUTPUT] + chunk] for chunk in range(world.size[rank, Buffer.OUTPUT])
        )
        out.add((done, results, fifos))
    return out
