"""A plan in motion: its blocks as processes, one instruction a step. Small and slow, shares nothing with the verifier.

Whatever a process waits for is a number that only goes up: messages sent and taken, signals, flags, arrivals at a barrier, the gate that a
caller opens. Memory is cells; an access is a set of cells read and one written. A value is a multiset of contributions (who, which chunk), so
that a doubled one shows; it is kept as a number. An instruction that reaches outside of its buffer moves what no right plan moves.

Memory orders are not known here (every instruction is seen by all at once), puts through a NIC arrive at once, and loops over slices are refused.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np

from busbw.collectives.legality import aliases, promise_of
from busbw.collectives.plan import LOCAL, Buffer, ConnectionKind, Op, Order, Plan

__all__ = ["Cells", "Instruction", "Key", "State", "TooManyError", "Values", "World"]

Key: TypeAlias = tuple[Any, ...]
"""What a process waits for, or gives: ("sent", FIFO), ("taken", FIFO), ("given", counter), ("flag", block), ("met", barrier), ("gate", rank) ..."""
Cells: TypeAlias = tuple[int, ...]
Contributions: TypeAlias = tuple[tuple[Any, int], ...]

_FIFO_OPS = (Op.SEND, Op.RECV, Op.RECV_COPY_SEND, Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_PAIRS = (
    Op.COPY,
    Op.PUT,
    Op.PUT_SIGNAL,
    Op.PUT_SIGNAL_FLUSH,
    Op.GET,
    Op.PACK,
    Op.UNPACK,
    Op.PUT_PACKETS,
    Op.FORWARD_PACKETS,
)
_READ_PACKETS = (Op.UNPACK, Op.FORWARD_PACKETS)
_WRITE_PACKETS = (Op.PACK, Op.PUT_PACKETS, Op.FORWARD_PACKETS)
_SWITCH_OPS = (Op.MULTICAST, Op.GROUP_REDUCE, Op.GROUP_REDUCE_MULTICAST)


class TooManyError(Exception):
    """More states than were to be looked at, or an instruction that is not known here."""


class Values:
    """Multisets of contributions as numbers: 0 is what nothing was written to, 1 what was lost."""

    def __init__(self) -> None:
        self._known: list[Contributions] = [(("nothing", 1),), (("lost", 1),)]
        self._number = {value: number for number, value in enumerate(self._known)}
        self._sums: dict[tuple[int, int], int] = {}

    def one(self, who: object, content: object) -> int:
        """The contribution of one rank to one content."""
        return self._of((((who, content), 1),))

    def sum(self, a: int, b: int) -> int:
        """Both together."""
        key = (a, b) if a <= b else (b, a)
        if key not in self._sums:
            total: Counter[Any] = Counter(dict(self._known[a]))
            total.update(dict(self._known[b]))
            self._sums[key] = self._of(tuple(sorted(total.items(), key=repr)))
        return self._sums[key]

    def told(self, number: int) -> Contributions:
        """What a number means."""
        return self._known[number]

    def _of(self, value: Contributions) -> int:
        if value not in self._number:
            self._number[value] = len(self._known)
            self._known.append(value)
        return self._number[value]


LOST = 1


@dataclass(slots=True)
class Instruction:
    """One step of a process: what it waits for, what it gives, and how it moves values."""

    waits: list[tuple[Key, int]] = field(default_factory=list)
    """Number that each key must have reached."""
    takes: list[tuple[Key, Key, int, int]] = field(default_factory=list)
    """(key given, key taken, how many there were at first, how many it takes): given + at first - taken must be as large."""
    room: list[tuple[Key, Key]] = field(default_factory=list)
    """FIFOs (sent, taken) that need a free slot."""
    gives: list[Key] = field(default_factory=list)
    alone: list[Key] = field(default_factory=list)
    """Ends of FIFOs and counters that it uses: two that use one end do not commute."""
    reads: Cells = ()
    writes: Cells = ()
    moves: list[tuple[tuple[Cells, ...], str | None, tuple[Cells, ...], str | None]] = field(default_factory=list)
    """(lists of cells that are summed, FIFO whose message is summed with them, lists of cells written, FIFO sent to)."""
    relaxed: bool = False
    rank: int = 0
    where: str = ""


@dataclass(slots=True)
class State:
    """Where everything is. FIFOs hold values; what was sent and taken is in `numbers`."""

    places: list[int]
    memory: list[int]
    fifos: dict[Key, tuple[Cells, ...]]
    numbers: dict[Key, int]

    def copy(self) -> State:
        """Another one with the same contents."""
        return State(self.places.copy(), self.memory.copy(), self.fifos.copy(), self.numbers.copy())

    def frozen(self) -> tuple[Any, ...]:
        """The same as something to compare. What was given and taken follows from the places."""
        return tuple(self.places), tuple(self.memory), tuple(sorted((k, v) for k, v in self.fifos.items() if v))


class World:
    """Processes, cells and the first state of a plan.

    launches: how often the plan runs; with `callers`, each rank has a process that writes the input before each, and reads the output behind it.
    """

    def __init__(
        self, plan: Plan, in_place: bool, values: Values | None = None, *, slots: int | None = 2, launches: int = 1, callers: bool = False,
    ) -> None:  # fmt: skip
        self.plan, self.slots, self.values = plan, slots, values or Values()
        self.ranks = [plan.rank(rank).unrolled() for rank in range(plan.ranks)]
        self.parts = math.lcm(*(int(n) for rank in self.ranks for n in np.unique(rank.walks["parts"])))
        self.base: dict[tuple[int, int], int] = {}
        self.size: dict[tuple[int, int], int] = {}
        self.half: list[int] = []
        self.start: dict[int, int] = {}
        self.cells = 0
        self.weak = ""
        """An instruction that one run does not tell the order of."""
        self._lay_out(in_place)
        self.names: list[str] = []
        self.processes: list[list[Instruction]] = []
        for number, rank in enumerate(self.ranks):
            for block in range(len(rank.blocks)):
                self.names.append(f"rank {number} block {block}")
                self.processes.append(self._process(number, block, launches, callers))
        for number in range(plan.ranks) if callers else ():
            self.names.append(f"caller {number}")
            self.processes.append(self._caller(number, launches))

    def first(self) -> State:
        """Nothing has run."""
        memory = [self.start.get(cell, 0) for cell in range(self.cells)]
        return State([0] * len(self.processes), memory, {}, {})

    def outputs(self, state: State) -> tuple[tuple[Contributions, ...], ...]:
        """What lies in the output of each rank."""
        found = []
        for rank in range(self.plan.ranks):
            first = self.base[rank, Buffer.OUTPUT]
            cells = range(first, first + self.size[rank, Buffer.OUTPUT] * self.parts)
            found.append(tuple(self.values.told(state.memory[cell]) for cell in cells))
        return tuple(found)

    def done(self, state: State) -> bool:
        """Whether every process has come to its end."""
        return all(place == len(process) for place, process in zip(state.places, self.processes, strict=True))

    # Steps

    def lacks(self, state: State, one: Instruction) -> Key | None:
        """The first thing that an instruction still waits for; None if it can run."""
        numbers = state.numbers
        for key, least in one.waits:
            if numbers.get(key, 0) < least:
                return key
        for given, taken, at_first, many in one.takes:
            if numbers.get(given, 0) + at_first - numbers.get(taken, 0) < many:
                return given
        if self.slots is not None:
            for sent, taken in one.room:
                if numbers.get(sent, 0) - numbers.get(taken, 0) >= self.slots:
                    return taken
        return None

    def able(self, state: State) -> list[int]:
        """Processes that can take their next step."""
        found = []
        for process, steps in enumerate(self.processes):
            place = state.places[process]
            if place < len(steps) and self.lacks(state, steps[place]) is None:
                found.append(process)
        return found

    def run(self, state: State, process: int, *, moving: bool = True) -> None:
        """Takes the next step of a process, which must be able to."""
        one = self.processes[process][state.places[process]]
        state.places[process] += 1
        for _, taken, _, many in one.takes:
            state.numbers[taken] = state.numbers.get(taken, 0) + many
        if moving:
            self._move(state, one)
        for key in one.gives:
            state.numbers[key] = state.numbers.get(key, 0) + 1

    def _move(self, state: State, one: Instruction) -> None:
        memory, total = state.memory, self.values.sum
        for sources, came, targets, onward in one.moves:
            summed: list[int] | None = None
            if came is not None:
                queue = state.fifos[came]
                summed, state.fifos[came] = list(queue[0]), queue[1:]
            for cells in sources:
                mine = [memory[cell] for cell in cells]
                if summed is None:
                    summed = mine
                elif len(summed) == len(mine):
                    summed = [total(a, b) for a, b in zip(summed, mine, strict=True)]
                else:
                    summed = [LOST] * len(summed)
            summed = summed or []
            for cells in targets:
                for place, cell in enumerate(cells):
                    memory[cell] = summed[place] if len(summed) == len(cells) else LOST
            if onward is not None:
                state.fifos[onward] = (*state.fifos.get(onward, ()), tuple(summed))

    # Memory

    def _lay_out(self, in_place: bool) -> None:
        promise = promise_of(self.plan)
        for number, rank in enumerate(self.ranks):
            before = promise.before(number) if promise else np.arange(rank.input_chunks)
            inputs, outputs = rank.input_chunks, rank.output_chunks
            if in_place:
                inputs, outputs = inputs or len(before), outputs or inputs or len(before)
            sized = replace(rank, input_chunks=inputs, output_chunks=outputs)
            input_at, output_at, both = aliases(self.plan, sized, in_place)
            firsts = {Buffer.INPUT: input_at, Buffer.OUTPUT: output_at, Buffer.SCRATCH: both}
            for buffer, first in firsts.items():
                self.base[number, buffer] = self.cells + first * self.parts
                self.size[number, buffer] = sized.chunks_of(buffer)
            for place, content in enumerate(before[:inputs].tolist()):
                for part in range(self.parts if content >= 0 else 0):
                    cell = self.cells + (input_at + place) * self.parts + part
                    self.start[cell] = self.values.one(
                        number, (int(content), part) if promise else ("own", place, part)
                    )
            halves = 2 if self.plan.double_scratch else 1
            self.half.append(rank.scratch_chunks * self.parts)
            self.cells += (both + rank.scratch_chunks * halves) * self.parts

    def _range(self, rank: int, row: Any, side: str, launch: int, share: tuple[int, int]) -> Cells | None:
        """Cells of one operand; None outside of the buffer."""
        buffer, first, count = int(row[f"{side}_buffer"]), int(row[side]), int(row["count"])
        if buffer == Buffer.NONE or first < 0 or count < 1 or first + count > self.size.get((rank, buffer), 0):
            return None
        at = self.base[rank, buffer] + first * self.parts
        at += self.half[rank] if buffer == Buffer.SCRATCH and self.plan.double_scratch and launch % 2 else 0
        part, parts = share
        many = count * self.parts
        return tuple(range(at + many * part // parts, at + many * (part + 1) // parts))

    # Processes

    def _caller(self, rank: int, launches: int) -> list[Instruction]:
        """Writes the input, opens the gate, waits for all blocks of the rank, reads the output; again for each launch, and writes the input."""
        blocks = len(self.ranks[rank].blocks)
        sides = []
        for buffer in (Buffer.INPUT, Buffer.OUTPUT):
            first = self.base[rank, buffer]
            sides.append(tuple(range(first, first + self.size[rank, buffer] * self.parts)))
        steps = []
        for launch in range(launches + 1):
            if launch:
                steps.append(Instruction(waits=[(("end", rank), blocks * launch)], reads=sides[1], where=f"caller of rank {rank} returns"))  # fmt: skip
            steps.append(Instruction(writes=sides[0], gives=[("gate", rank)], where=f"caller of rank {rank} enters"))
        return steps

    def _process(self, number: int, block: int, launches: int, callers: bool) -> list[Instruction]:
        rank = self.ranks[number]
        rows = rank.rows(block)
        met: Counter[int] = Counter()
        steps: list[Instruction] = []
        for launch in range(launches):
            if callers:
                steps.append(Instruction(waits=[(("gate", number), launch + 1)], rank=number, where="enters"))
            place = 0
            while place < len(rows):
                mine = rows[place : place + 1 + int(rows[place]["more"])]
                for one in self._instructions(number, block, mine, met, launch):
                    one.rank, one.where = number, f"rank {number} block {block} row {place}, launch {launch}"
                    one.relaxed = self._is_relaxed(mine[0])
                    steps.append(one)
                place += len(mine)
            steps.append(Instruction(gives=[("end", number)], rank=number, where="ends"))
        return steps

    def _instructions(
        self, number: int, block: int, rows: Any, met: Counter[int], launch: int
    ) -> Iterator[Instruction]:
        op = Op(int(rows[0]["op"]))
        rank = self.ranks[number]
        if op in _READ_PACKETS or op in _WRITE_PACKETS or op is Op.REDUCE_PACKETS or self._by_nic(number, rows):
            self.weak = f"{op.name} is not known here"
        if op in _FIFO_OPS:
            yield self._through_fifo(number, op, rows, launch)
        elif op in _PAIRS or op in (Op.REDUCE, Op.REDUCE_PACKETS) or op in _SWITCH_OPS:
            yield self._data(number, op, rows, launch)
        elif op in (Op.SIGNAL, Op.WAIT):
            one = Instruction()
            self._signals(number, op, rows, one)
            yield one
        elif op in (Op.RELEASE, Op.ACQUIRE):
            one = Instruction()
            for via, many in Counter(int(row["via"]) for row in rows).items():
                key = ("given", "semaphore", number, via)
                if op is Op.RELEASE:
                    one.gives += [key] * many
                    continue
                one.takes.append((key, ("taken", *key[1:]), rank.semaphores[via], many))
                one.alone.append(("taken", *key[1:]))
            yield one
        elif op is Op.FLAG_SET:
            yield Instruction(gives=[("flag", number, block)])
        elif op is Op.FLAG_WAIT:
            other = int(rows[0]["via"])
            sets = int((rank.rows(other)["op"] == Op.FLAG_SET).sum()) if 0 <= other < len(rank.blocks) else 0
            times = int(rows[0]["src"])
            if times > sets:  # never, in any launch
                yield Instruction(waits=[(("never",), 1)])
            else:
                yield Instruction(waits=[(("flag", number, other), launch * sets + times)] if times > 0 else [])
        elif op is Op.BARRIER:
            barrier, count = int(rows[0]["via"]), int(rows[0]["count"])
            met[barrier] += 1
            key = ("met", number, barrier)
            yield Instruction(gives=[key])
            yield Instruction(waits=[(key, met[barrier] * count)])
        elif op in (Op.SYNC, Op.FLUSH):
            yield Instruction()
        else:
            raise TooManyError(f"{op.name} is not known here")

    def _by_nic(self, number: int, rows: Any) -> bool:
        links = [self._connection(number, int(row["via"])) for row in rows if rows[0]["op"] < Op.SYNC]
        return any(link is not None and link[0] == ConnectionKind.PORT for link in links)

    @staticmethod
    def _is_relaxed(row: Any) -> bool:
        ordered = (Op.SIGNAL, Op.WAIT, Op.FLAG_SET, Op.FLAG_WAIT, Op.RELEASE, Op.ACQUIRE)
        return row["op"] in ordered and row["order"] == Order.RELAXED

    def _share(self, number: int, row: Any) -> tuple[int, int]:
        walk = self.ranks[number].walks[row["walk"]]
        return int(walk["part"]), int(walk["parts"])

    def _connection(self, number: int, via: int) -> tuple[int, int, int] | None:
        """(kind, peer, channel); None if there is none."""
        table = self.ranks[number].connections
        if not 0 <= via < len(table):
            return None
        return int(table[via]["kind"]), int(table[via]["peer"]), int(table[via]["channel"])

    def _through_fifo(self, number: int, op: Op, rows: Any, launch: int) -> Instruction:
        receives, sends = op is not Op.SEND, op not in (Op.RECV, Op.RECV_REDUCE_COPY)
        reads, writes = op not in (Op.RECV, Op.RECV_COPY_SEND), op not in (Op.SEND, Op.RECV_REDUCE_SEND)
        one = Instruction()
        came: Any = None
        onward: Any = None
        if receives:
            link = self._connection(number, int(rows[0]["via"]))
            if link is None or link[0] != ConnectionKind.FIFO_IN:
                return one
            came = (link[2], link[1], number)
            one.takes.append((("sent", came), ("taken", came), 0, 1))
            one.alone.append(("reader", came))
        if sends:
            link = self._connection(number, int(rows[-1]["via"]) if receives else int(rows[0]["via"]))
            if link is None or link[0] != ConnectionKind.FIFO_OUT:
                return Instruction()
            onward = (link[2], number, link[1])
            one.room.append((("sent", onward), ("taken", onward)))
            one.gives.append(("sent", onward))
            one.alone.append(("writer", onward))
        share = self._share(number, rows[0])
        source = self._range(number, rows[0], "src", launch, share) if reads else None
        target = self._range(number, rows[0], "dst", launch, share) if writes else None
        one.reads, one.writes = source or (), target or ()
        one.moves.append(((source or (),) if reads else (), came, (target,) if target else (), onward))
        return one

    def _data(self, number: int, op: Op, rows: Any, launch: int) -> Instruction:
        one = Instruction()
        if op in _SWITCH_OPS:
            self._through_switch(number, op, rows, launch, one)
        elif op in (Op.REDUCE, Op.REDUCE_PACKETS):
            self._reduce(number, op, rows, launch, one)
        else:
            self._pairs(number, op, rows, launch, one)
        if op in (Op.PUT_SIGNAL, Op.PUT_SIGNAL_FLUSH):
            self._signals(number, op, rows, one)
        return one

    def _owner(self, number: int, row: Any) -> int | None:
        """Whose memory the side in brackets is in; None if the connection does not lead there."""
        if int(row["via"]) == LOCAL:
            return number
        link = self._connection(number, int(row["via"]))
        return (
            None
            if link is None or link[0] not in (ConnectionKind.MAPPED, ConnectionKind.MEMORY, ConnectionKind.PORT)
            else link[1]
        )

    def _pairs(self, number: int, op: Op, rows: Any, launch: int, one: Instruction) -> None:
        for row in rows:
            far = number if op in (Op.COPY, Op.PACK, Op.UNPACK) else self._owner(number, row)
            if far is None:
                continue
            here, there = (far, number) if op is Op.GET else (number, far)
            share = self._share(number, row)
            source, target = self._range(here, row, "src", launch, share), self._range(there, row, "dst", launch, share)
            if source is None or target is None:
                continue
            if op in _READ_PACKETS:
                one.waits += [(("packet", cell), launch + 1) for cell in source]
            if op in _WRITE_PACKETS:
                one.gives += [("packet", cell) for cell in target]
            one.reads, one.writes = one.reads + source, one.writes + target
            one.moves.append(((source,), None, (target,), None))

    def _reduce(self, number: int, op: Op, rows: Any, launch: int, one: Instruction) -> None:
        sources: list[Cells] = []
        targets: list[Cells] = []
        packets = op is Op.REDUCE_PACKETS
        for place, row in enumerate(rows):
            share, owner = self._share(number, row), self._owner(number, row)
            if row["src_buffer"] != Buffer.NONE:
                at = number if packets else owner
                cells = None if at is None else self._range(at, row, "src", launch, share)
                if cells is not None:
                    sources.append(cells)
                    if packets and place:
                        one.waits += [(("packet", cell), launch + 1) for cell in cells]
            if row["dst_buffer"] != Buffer.NONE:
                cells = None if owner is None else self._range(owner, row, "dst", launch, share)
                if cells is not None:
                    targets.append(cells)
                    if packets and place:
                        one.gives += [("packet", cell) for cell in cells]
        one.reads, one.writes = sum(sources, ()), sum(targets, ())
        one.moves.append((tuple(sources), None, tuple(targets), None))

    def _through_switch(self, number: int, op: Op, rows: Any, launch: int, one: Instruction) -> None:
        for row in rows:
            link = self._connection(number, int(row["via"]))
            if link is None or link[0] != ConnectionKind.SWITCH:
                continue
            members = self.ranks[number].groups[link[1]].ranks
            share = self._share(number, row)
            sources = [
                self._range(m, row, "src", launch, share) for m in (members if op is not Op.MULTICAST else (number,))
            ]
            targets = [
                self._range(m, row, "dst", launch, share) for m in (members if op is not Op.GROUP_REDUCE else (number,))
            ]
            read, written = (
                [cells for cells in sources if cells is not None],
                [cells for cells in targets if cells is not None],
            )
            one.reads, one.writes = one.reads + sum(read, ()), one.writes + sum(written, ())
            one.moves.append((tuple(read), None, tuple(written), None))

    def _signals(self, number: int, op: Op, rows: Sequence[Any], one: Instruction) -> None:
        links = [self._connection(number, int(row["via"])) for row in rows]
        ways = [link for link in links if link is not None and link[0] in (ConnectionKind.MEMORY, ConnectionKind.PORT)]
        for (kind, peer, channel), many in Counter(ways).items():
            if op is not Op.WAIT:
                one.gives += [("given", kind, number, peer, channel)] * many
                continue
            taken = ("taken", kind, peer, number, channel)
            one.takes.append((("given", kind, peer, number, channel), taken, 0, many))
            one.alone.append(taken)
