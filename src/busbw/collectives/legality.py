"""What a legal plan is, in rules that can be quoted, and the check that decides them.

`RULES` is the list. `verify_plan` decides it by running the plan once (`_verify`, C++): blocks are sequential, a FIFO has one writer and
one reader, counters only go up, so every maximal run ends in the same state, and one greedy run decides deadlock. If moreover no two accesses
race under happens-before, values are the same in every run, and one symbolic run decides them. A value is (content, ranks that contributed).
Happens-before: order within a block, messages of FIFOs, signals with release taken with acquire, flags, semaphores, barriers, the end of
a launch on one rank. That a FIFO was full orders nothing here: a plan that counts on it is called a race.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.collectives._verify import PlanCheck
from busbw.collectives.plan import (
    LOCAL,
    Buffer,
    Columns,
    ConnectionKind,
    Op,
    Order,
    Plan,
    Promise,
    Protocol,
    RankPlan,
)
from busbw.collectives.provenance import violations
from busbw.collectives.schedule import BoundSchedule
from busbw.errors import InputError

__all__ = [
    "FIFO_SLOTS",
    "RULES",
    "SCHEDULE_RULES",
    "Rule",
    "Step",
    "Verdict",
    "Violation",
    "aliases",
    "promise_of",
    "row_in_words",
    "verify_plan",
    "verify_schedule",
]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule: its name, and what it asks."""

    name: str
    text: str


RULES = (  # all but the last in the order of cpp/include/busbw/schedule/findings.hpp, enum Rule
    Rule("malformed", "Rows point only into their own tables: operations, walks, peers, groups, bodies of loops, operands."),
    Rule("bounds", "An operand lies within its buffer: index >= 0, count >= 1, index + count <= chunks of the buffer."),
    Rule("connection-shared", "An end of a FIFO belongs to one block; no other block writes, or reads, there."),
    Rule("connection-missing", "An instruction has the connection that it needs, and the peer has its other end."),
    Rule("protocols-differ", "Both ends of a FIFO speak one protocol."),
    Rule("counts-differ", "Who sends n chunks is received as n chunks; an operand read and an operand written are of one size."),
    Rule("deadlock", "Every block comes to its end."),
    Rule("fifo-depth", "Every block comes to its end even where messages are so large that each chunk of one takes a slot."),
    Rule("leftover-message", "Every message is received."),
    Rule("leftover-signal", "Every signal is waited for: otherwise a wait of the next launch ends too early."),
    Rule("semaphore-balance", "A semaphore ends with the value that it began with."),
    Rule("two-acquirers", "Of two blocks that wait on one semaphore, or on the signals of one connection, one waits after the other, by happens-before; else either may take the one that comes."),
    Rule("uninitialised", "Nothing is read that was not written, or an input, before."),
    Rule("mixed-chunks", "Only pieces of one content are reduced together."),
    Rule("double-contribution", "No rank's contribution is reduced twice into one chunk."),
    Rule("race", "Two accesses to one chunk of which one writes are ordered by happens-before, and so is the caller's, who reads the output when the call has ended."),
    Rule("weak-order", "They are ordered by operations with acquire and release, not by relaxed ones."),
    Rule("relaunch-race", "They are ordered even if one is of the next launch: who writes into a peer knows that the peer is done with what lay there."),
    Rule("not-entered", "Nobody touches the input or output of a peer that may not have entered the call yet: its caller may still read or write it."),
    Rule("wrong-result", "In the end each output chunk holds its content, with the contribution of each rank once."),
    Rule("packet-rewritten", "A place for packets is written once a launch: the second packet could be taken for the first."),
    Rule("packet-as-data", "What was written as packets is read as packets."),
    Rule("barrier-blocks", "As many blocks meet at a barrier as its instructions say."),
    Rule("too-long", "The run ends within the limit of instructions."),
    Rule("not-a-barrier", "Nobody leaves a barrier before everybody has entered it."),
    Rule("buffer-sizes", "Buffers have the chunks that the collective asks for."),
)  # fmt: skip
_SIZES = RULES[-1]
_IN_PLACE = 2
_MOST_PIECES = 1 << 27
"""Pieces of memory that are followed, at 16 bytes each: 2 GiB. A guess at what a user's machine spares."""
_MOST_INSTRUCTIONS = 200_000_000
FIFO_SLOTS = {Protocol.SIMPLE: 2, Protocol.LL: 8, Protocol.LL128: 8, Protocol.ZERO_COPY: 1}
"""Messages in flight on a FIFO. NCCL_STEPS is 8, a Simple chunk takes 4 of them in MSCCL. Source: NVIDIA/nccl, src/include/device.h;
ROCm/rccl, src/device/msccl_kernel_impl.h. Zero copy: a guess, the strictest."""
_SLOT_BYTES = {
    Protocol.SIMPLE: (4 << 20) // 2,
    Protocol.LL: (512 << 10) // 8 // 2,
    Protocol.LL128: 120 * 640 * 8 * 15 // 16,
    Protocol.ZERO_COPY: 1,
}
"""Data that a slot holds: 4 MiB of a Simple buffer in two; 512 KiB of an LL buffer in eight, half of it flags; LL128: 120 words a thread of
640 threads, one in 16 a flag. Source: ROCm/rccl 0cbce2a7, src/init.cc and src/misc/msccl/msccl_setup.cc; NVIDIA/nccl, src/include/device.h."""
_MOST_CHUNKS_PER_MESSAGE = 71
"""Source: ROCm/rccl 0cbce2a7, src/misc/msccl/msccl_setup.cc, maxAllowedCount."""
_SHARED_SCRATCH_BYTES = 64 << 20
"""Scratch of an MSCCL++ executor whose plans share it. Source: microsoft/mscclpp, src/core/executor/executor.cc."""
_SLICES = 3
"""Runs of a SLICES loop that are followed: the first, one between, the last. A guess that holds as bodies do the same each time."""
_STEPS_SHOWN = 24
_WHOLE = 2**32 - 1


@dataclass(frozen=True, slots=True)
class Step:
    """An instruction as a place in the plan, and in words."""

    rank: int
    block: int
    row: int
    turn: int
    text: str

    def __str__(self) -> str:
        if self.block < 0:
            return f"rank {self.rank}: {self.text}"
        again = f", turn {self.turn}" if self.turn > 0 else ""
        return f"rank {self.rank} block {self.block} row {self.row}{again}: {self.text}"


@dataclass(frozen=True, slots=True)
class Violation:
    """A rule that is broken: what, where, and the steps that show it."""

    rule: str
    message: str
    steps: tuple[Step, ...] = ()
    """A counter-example, in the order of the run."""
    times: int = 1
    """How often this rule is broken in the plan; a few are told in full."""

    def __str__(self) -> str:
        return f"{self.rule}: {self.message}"

    def to_json(self) -> dict[str, object]:
        """As JSON says it."""
        steps = [
            {"rank": step.rank, "block": step.block, "row": step.row, "turn": step.turn, "text": step.text}
            for step in self.steps
        ]
        return {"rule": self.rule, "message": self.message, "times": self.times, "steps": steps}


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check of a plan found."""

    violations: tuple[Violation, ...]
    instructions: int
    """Run, of all ranks, loops counted as often as they turn."""
    same_bits: bool
    """Whether every result is reduced in the same order on all ranks, so that floats agree bit by bit; False where no result is promised."""
    unchecked: tuple[str, ...] = field(default=())
    """What could not be decided, and why."""

    @property
    def legal(self) -> bool:
        """Whether no rule is broken."""
        return not self.violations


def verify_plan(plan: Plan, *, cut_messages: bool = False, most_instructions: int = _MOST_INSTRUCTIONS) -> Verdict:
    """All rules that a plan breaks. Everything is checked on every rank: memory and time grow with the instructions of the whole plan.

    cut_messages: as MSCCL's interpreters do, a message larger than a slot of the FIFO at `max_bytes` goes in several; otherwise a message is
    what a slot holds. A plan for use both in place and out of place is checked both ways. Raises InputError for a plan too large to be followed.
    """
    if plan.chunks > _MOST_PIECES // 8:  # what is promised of one rank takes 8 bytes a chunk
        raise InputError(
            f"plan {plan.name!r} has {plan.chunks:,} chunks, more than can be followed. Verify it at fewer"
        )
    ways = [in_place for in_place, meant in ((True, plan.in_place), (False, plan.out_of_place)) if meant]
    ranks = list(plan)
    verdicts = [
        _verify(plan, ranks, in_place, _chunks_per_message(plan) if cut_messages else _WHOLE, most_instructions)
        for in_place in ways
    ]
    if len(verdicts) < _IN_PLACE:
        return verdicts[0]
    known = {(violation.rule, violation.message) for violation in verdicts[0].violations}
    more = tuple(one for one in verdicts[1].violations if (one.rule, one.message) not in known)
    return Verdict(
        verdicts[0].violations + more,
        verdicts[0].instructions,
        all(verdict.same_bits for verdict in verdicts),
        verdicts[0].unchecked,
    )


# What is promised


def promise_of(plan: Plan) -> Promise | None:
    """Contents before and after the collective. None for a custom one that brings no promise, and for a barrier.

    A content is a number for "this part of the result". C chunks: all_reduce, reduce, broadcast, reduce_scatter and scatter have contents 0 to
    C - 1; send_recv, in which each rank sends to the next, r C + c; all_gather and gather r f + c for chunk c of rank r's f; all_to_all (s p + d) f + k for the kth chunk from s to d.
    """
    if plan.promise is not None:
        return plan.promise
    p, c, root, kind = plan.ranks, plan.chunks, plan.root, plan.collective
    whole, share = np.arange(c, dtype=np.int64), c // p
    none = np.empty(0, np.int64)

    def own(rank: int) -> IntArray:
        return np.arange(rank * share, (rank + 1) * share, dtype=np.int64)

    def at_root(rank: int) -> IntArray:
        return whole if rank == root else none

    if kind == "all_reduce":
        return Promise(lambda _: whole, lambda _: whole)
    if kind == "reduce":
        return Promise(lambda _: whole, at_root)
    if kind == "broadcast":
        return Promise(at_root, lambda _: whole)
    if kind == "reduce_scatter":
        return Promise(lambda _: whole, own)
    if kind == "scatter":
        return Promise(at_root, own)
    if kind == "all_gather":
        return Promise(own, lambda _: whole)
    if kind == "gather":
        return Promise(own, at_root)
    if kind == "all_to_all":
        part, peers = np.arange(share, dtype=np.int64), np.arange(p, dtype=np.int64)[:, None]
        return Promise(
            lambda rank: ((rank * p + peers) * share + part).reshape(-1),
            lambda rank: ((peers * p + rank) * share + part).reshape(-1),
        )
    if kind == "send_recv":
        return Promise(lambda rank: rank * c + whole, lambda rank: (rank - 1) % p * c + whole)
    if kind == "all_to_all_v" and plan.counts is not None:
        return _vector_promise(plan.counts)
    return None


def _vector_promise(counts: Columns) -> Promise:
    first = np.concatenate([[0], np.cumsum(counts.reshape(-1))])[:-1].reshape(counts.shape)

    def along(firsts: Columns, lengths: Columns) -> IntArray:
        runs = [np.arange(begin, begin + n, dtype=np.int64) for begin, n in zip(firsts, lengths, strict=True)]
        return np.concatenate(runs) if runs else np.empty(0, np.int64)

    return Promise(lambda rank: along(first[rank], counts[rank]), lambda rank: along(first[:, rank], counts[:, rank]))


def aliases(plan: Plan, rank: RankPlan, in_place: bool) -> tuple[int, int, int]:
    """(first chunk of input, first chunk of output, chunks of both together) in the memory of a rank.

    In place: output is input (all_reduce, reduce, broadcast, all_to_all); input chunk c is output chunk r f + c (all_gather, gather); output
    chunk c is input chunk r f + c (reduce_scatter, scatter). Out of place they lie one behind the other.
    """
    inputs, outputs = rank.input_chunks, rank.output_chunks
    if not in_place:
        return 0, inputs, inputs + outputs
    own = rank.rank * (plan.chunks // plan.ranks)
    if plan.collective in ("all_gather", "gather") and outputs >= own + inputs:
        return own, 0, max(outputs, own + inputs)
    if plan.collective in ("reduce_scatter", "scatter") and inputs >= own + outputs:
        return 0, own, max(inputs, own + outputs)
    return 0, 0, max(inputs, outputs)


def _too_large(plan: Plan) -> InputError:
    return InputError(
        f"plan {plan.name!r} has more than {_MOST_PIECES:,} chunks of memory to follow. Verify it at fewer ranks or chunks"
    )


def _sized(plan: Plan, rank: RankPlan, in_place: bool, wanted: tuple[int, int]) -> RankPlan:
    """The rank with a buffer of 0 chunks that shares memory with the other given its size."""
    if not in_place:
        return rank
    inputs, outputs = rank.input_chunks or wanted[0], rank.output_chunks or wanted[1]
    return RankPlan(
        rank.rank,
        inputs,
        outputs,
        rank.scratch_chunks,
        rank.instructions,
        rank.blocks,
        rank.connections,
        rank.walks,
        rank.groups,
        rank.semaphores,
    )


# The run


def _verify(
    plan: Plan, ranks: list[RankPlan], in_place: bool, chunks_per_message: int, most_instructions: int
) -> Verdict:
    promise = promise_of(plan)
    parts, slices, scratch_slices = _pieces(plan, ranks)
    check = PlanCheck(
        plan.blocks_in_order,
        plan.double_scratch,
        chunks_per_message,
        parts,
        slices,
        scratch_slices,
        [FIFO_SLOTS[protocol] for protocol in Protocol],
        most_instructions,
        plan.collective == "barrier",
    )
    violations: list[Violation] = []
    sized, pieces = [], 0
    widest = max((rank.input_chunks for rank in ranks), default=0)
    for rank in ranks:
        if pieces + rank.input_chunks > _MOST_PIECES:
            raise _too_large(plan)
        before, after = (
            (promise.before(rank.rank), promise.after(rank.rank)) if promise else (np.arange(rank.input_chunks), None)
        )
        if after is None:
            after = np.empty(0, np.int64)
            before = before + rank.rank * widest
        one = _sized(plan, rank, in_place, (len(before), len(after)))
        violations += _sizes(plan, one, len(before), len(after), promise is not None)
        input_at, output_at, memory = aliases(plan, one, in_place)
        pieces += memory * parts * slices + one.scratch_chunks * parts * scratch_slices * (1 + plan.double_scratch)
        if pieces > _MOST_PIECES:
            raise _too_large(plan)
        check.add_rank(
            one.instructions.view(np.uint8),
            one.blocks.view(np.uint8),
            one.connections.view(np.uint8),
            one.walks.view(np.uint8),
            [(list(group.ranks), int(group.buffer)) for group in one.groups],
            list(one.semaphores),
            [one.input_chunks, one.output_chunks, one.scratch_chunks],
            [input_at, output_at, 0],
            memory,
            np.ascontiguousarray(before[: one.input_chunks], np.int64),
            np.ascontiguousarray(after[: one.output_chunks], np.int64),
        )
        sized.append(one)
    known = promise is not None or plan.collective == "barrier"
    words = _Words(sized, check)
    rows = [row for row in check.run().tolist() if known or RULES[row[0]].name not in _OF_CONTENTS]
    violations += [words.violation(row) for row in rows if RULES[row[0]].name not in _STUCK]
    violations += words.stuck([row for row in rows if RULES[row[0]].name in _STUCK])
    unchecked = () if known else (f"the result, because {plan.collective} promises none",)
    once = {(one.rule, one.message): one for one in reversed(violations)}
    violations = [one for one in violations if once[one.rule, one.message] is one]
    return Verdict(tuple(violations), check.executed, known and check.bitwise_equal, unchecked)


def _chunks_per_message(plan: Plan) -> int:
    """Chunks that go through a FIFO as one message at the largest size_bytes: at least 1; a plan without a largest size gets 1."""
    if plan.max_bytes is None or plan.chunks == 0:
        return 1
    chunk_bytes = max(1, -(-plan.max_bytes // plan.chunks))
    return min(max(1, _SLOT_BYTES[plan.protocol] // chunk_bytes), _MOST_CHUNKS_PER_MESSAGE)


def _pieces(plan: Plan, ranks: list[RankPlan]) -> tuple[int, int, int]:
    """Into how many parts a chunk is shared; slices of a chunk, and of a scratch chunk."""
    parts, units = 1, set()
    for rank in ranks:
        parts = math.lcm(parts, *(int(n) for n in np.unique(rank.walks["parts"]) if n))
        loops = rank.instructions[rank.instructions["op"] == Op.SLICES]
        units |= set(loops["src"].tolist())
    if parts > _MOST_PIECES:
        raise InputError(f"plan {plan.name!r}: blocks share chunks in so many ways that {parts:,} parts are needed")
    if not units:
        return parts, 1, 1
    if not plan.shared_scratch:
        return parts, _SLICES, _SLICES
    chunks = max(1, *(rank.scratch_chunks for rank in ranks))
    room = max(1, _SHARED_SCRATCH_BYTES // chunks // max(1, *units))
    return parts, room + _SLICES - 1, room


def _sizes(plan: Plan, rank: RankPlan, inputs: int, outputs: int, promised: bool) -> Iterator[Violation]:
    if not promised:
        return
    for name, has, needs in (("input", rank.input_chunks, inputs), ("output", rank.output_chunks, outputs)):
        if has < needs:
            yield Violation(
                _SIZES.name,
                f"rank {rank.rank} has {has} {name} chunks; {plan.collective} of {plan.chunks} chunks on {plan.ranks} ranks needs {needs}",
            )


# Words


class _Words:
    """Tells findings of `_verify` in sentences."""

    def __init__(self, ranks: list[RankPlan], check: PlanCheck) -> None:
        self._ranks = ranks
        self._check = check

    def violation(self, row: list[int]) -> Violation:
        rule = RULES[row[0]].name
        at, other = self._step(row[1:5]), self._step(row[5:9])
        owner, buffer, chunk, got, wanted, got_set, wanted_set, times = row[9:]
        where = self._chunk(owner, buffer, chunk)
        tell = getattr(self, "_" + rule.replace("-", "_"), None)
        pair = tuple(step for step in (other, at) if step is not None)
        message: str
        steps: tuple[Step, ...] = pair
        if rule == "wrong-result":
            message = self._wrong(where, (got, wanted), (got_set, wanted_set))
            steps = self._history(owner, buffer, chunk)
        elif tell is not None:
            message = tell(at, other, where, got, wanted, got_set, wanted_set)
            if rule in ("mixed-chunks", "double-contribution") and at is not None:
                steps = self._history_of(at) or pair
        else:
            message = f"{at or 'the plan'}" + (f" and {other}" if other else "")
        return Violation(rule, message, steps, times)

    def stuck(self, rows: list[list[int]]) -> Iterator[Violation]:
        """All blocks that never end, as one violation: who waits for whom, round the circle if there is one."""
        if not rows:
            return
        waiting = {tuple(row[1:3]): row for row in rows}
        chain: list[tuple[int, ...]] = []
        at = tuple(rows[0][1:3])
        while at in waiting and at not in chain:
            chain.append(at)
            at = tuple(waiting[at][5:7])
        chain = chain[chain.index(at) :] if at in chain else chain
        steps = tuple(step for one in chain if (step := self._step(waiting[one][1:5])) is not None)
        ended = (
            ""
            if at in chain
            else (f"; block {at[1]} of rank {at[0]}, for which the last one waits, has ended" if at[0] >= 0 else "")
        )
        circle = "each waits for the next, the last for the first" if at in chain else "each waits for the next"
        rule = RULES[rows[0][0]].name
        message = f"{rows[0][-1]} blocks wait for ever; {circle}{ended}"
        yield Violation(rule, message, steps[:_STEPS_SHOWN], rows[0][-1])

    def _wrong(self, where: str, contents: tuple[int, int], sets: tuple[int, int]) -> str:
        (got, wanted), (got_set, wanted_set) = contents, sets
        if got < 0:
            return f"{where} is never written; it must hold content {wanted}"
        if got != wanted:
            return f"{where} holds content {got}, not {wanted}"
        return f"{where} holds content {wanted} of ranks {self._set(got_set)}, not of {self._set(wanted_set)}"

    @staticmethod
    def _bounds(at: Step, _o: Step, where: str, got: int, wanted: int, *_: int) -> str:
        return f"{at} takes {got} chunks from {where} on, which has {wanted} chunks"

    @staticmethod
    def _connection_shared(at: Step, other: Step, *_: Any) -> str:
        return f"{at} uses a connection that belongs to block {other.block} ({other})"

    @staticmethod
    def _connection_missing(at: Step, *_: Any) -> str:
        return f"{at} has no connection of the kind that it needs, or its peer has no other end of it"

    @staticmethod
    def _protocols_differ(at: Step, other: Step, _w: str, got: int, wanted: int, *_: int) -> str:
        return f"{at or other} and its peer speak {Protocol(got).name} and {Protocol(wanted).name}"

    @staticmethod
    def _counts_differ(at: Step, other: Step, _w: str, got: int, wanted: int, *_: int) -> str:
        if other is None:
            return f"{at} joins operands of {got} and {wanted} pieces"
        return f"{at} receives {wanted} chunks, but {other} sent {got}"

    @staticmethod
    def _leftover_message(at: Step, other: Step, _w: str, got: int, *_: int) -> str:
        return f"{got} messages of {at} are never received" + (f" by rank {other.rank}" if other else "")

    @staticmethod
    def _leftover_signal(at: Step, _o: Step, _w: str, got: int, *_: int) -> str:
        return f"{got} signals of {at} are never waited for"

    @staticmethod
    def _semaphore_balance(at: Step, _o: Step, _w: str, got: int, wanted: int, *_: int) -> str:
        return f"a semaphore of rank {at.rank} begins with {wanted} and ends with {got}"

    @staticmethod
    def _two_acquirers(at: Step, other: Step, *_: Any) -> str:
        return f"{at} waits on what block {other.block} waits on, too, and nothing orders them"

    @staticmethod
    def _uninitialised(at: Step, _o: Step, where: str, *_: int) -> str:
        return f"{at} reads {where}, which nothing has written"

    @staticmethod
    def _mixed_chunks(at: Step, _o: Step, _w: str, got: int, wanted: int, *_: int) -> str:
        return f"{at} reduces content {got} into content {wanted}"

    def _double_contribution(self, at: Step, _o: Step, _w: str, got: int, _n: int, one: int, two: int) -> str:
        return f"{at} reduces content {got} of ranks {self._set(one)} with that of ranks {self._set(two)}"

    @staticmethod
    def _race(at: Step, other: Step, where: str, *_: int) -> str:
        return f"{where}: nothing orders {at} and {other}"

    @staticmethod
    def _weak_order(at: Step, other: Step, where: str, *_: int) -> str:
        return f"{where}: only relaxed operations stand between {other} and {at}"

    @staticmethod
    def _relaunch_race(at: Step, other: Step, where: str, *_: int) -> str:
        return f"{where}: nothing orders {other} and, in the next launch, {at}"

    @staticmethod
    def _not_entered(at: Step, other: Step, where: str, *_: int) -> str:
        return f"{where}: {at} may come before rank {other.rank} has entered the call"

    @staticmethod
    def _packet_rewritten(at: Step, _o: Step, where: str, *_: int) -> str:
        return f"{at} writes packets to {where} a second time in one launch"

    @staticmethod
    def _packet_as_data(at: Step, _o: Step, where: str, *_: int) -> str:
        return f"{at} reads {where} as data; it holds packets"

    @staticmethod
    def _barrier_blocks(at: Step, _o: Step, _w: str, got: int, wanted: int, *_: int) -> str:
        return f"{at} says that {wanted} blocks meet; at least {got} come, or others say another number"

    @staticmethod
    def _not_a_barrier(at: Step, other: Step, *_: Any) -> str:
        return f"rank {at.rank} may leave before rank {other.rank} has entered"

    @staticmethod
    def _malformed(at: Step, *_: Any) -> str:
        return f"{at} points outside of its tables"

    @staticmethod
    def _too_long(at: Step, *_: Any) -> str:
        return f"the run was given up at {at}"

    def _set(self, number: int) -> str:
        runs = self._check.ranks_of(number)
        return ", ".join(f"{a}" if b == a + 1 else f"{a} to {b - 1}" for a, b in runs) or "none"

    def _chunk(self, owner: int, buffer: int, chunk: int) -> str:
        if owner < 0 or buffer < 0:
            return "memory"
        name = "no buffer" if buffer == Buffer.NONE else f"{Buffer(buffer).name.lower()}[{chunk}]"
        return f"{name} of rank {owner}"

    def _step(self, place: list[int]) -> Step | None:
        rank, block, row, turn = place
        if rank < 0:
            return None
        if block < 0:
            return Step(rank, -1, -1, -1, "its caller, before and after the call")
        plan = self._ranks[rank]
        rows = plan.rows(block) if block < len(plan.blocks) else plan.instructions[:0]
        text = row_in_words(self._ranks[rank], rows, row) if 0 <= row < len(rows) else "the end of the block"
        return Step(rank, block, row, turn, text)

    def _history(self, owner: int, buffer: int, chunk: int) -> tuple[Step, ...]:
        events = self._check.explain(owner, buffer, chunk).tolist()
        steps = [step for event in events[-_STEPS_SHOWN:] if (step := self._step(event)) is not None]
        return tuple(steps)

    def _history_of(self, at: Step) -> tuple[Step, ...]:
        row = self._ranks[at.rank].rows(at.block)[at.row]
        if row["walk"] or row["via"] != LOCAL or row["dst_buffer"] == Buffer.NONE:
            return ()
        return self._history(at.rank, int(row["dst_buffer"]), int(row["dst"]))


_STUCK = ("deadlock", "fifo-depth")
_OF_CONTENTS = ("mixed-chunks", "double-contribution")
"""Rules that a custom collective without a promise can't break: nobody knows which of its chunks belong together."""
_SYNC_WORDS = {Op.BARRIER: "barrier", Op.FLAG_WAIT: "flag of block", Op.RELEASE: "semaphore", Op.ACQUIRE: "semaphore"}


def row_in_words(rank: RankPlan, rows: Columns, place: int) -> str:
    """An instruction with its operands, such as `RECV_REDUCE_COPY input[3] -> output[3] from rank 2`."""
    row = rows[place]
    try:
        op = Op(int(row["op"]))
    except ValueError:
        return f"operation {int(row['op'])}"
    if op is Op.LOOP:
        return f"LOOP {row['count']} times over {row['dst']} rows"
    if op is Op.SLICES:
        return f"SLICES of {row['src']} bytes of {row['count']} chunks over {row['dst']} rows"
    words = [op.name]
    if row["order"] == Order.RELAXED and op in (
        Op.SIGNAL,
        Op.WAIT,
        Op.FLAG_SET,
        Op.FLAG_WAIT,
        Op.ACQUIRE,
        Op.RELEASE,
    ):
        words.append("relaxed")
    for operand in rows[place : place + 1 + int(row["more"])]:
        if op in _SYNC_WORDS:
            words.append(f"{_SYNC_WORDS[op]} {operand['via']}")
            continue
        words += _operand_in_words(rank, operand)
    if op is Op.FLAG_WAIT:
        words.append(f"set {row['src']} times")
    if op is Op.BARRIER:
        words.append(f"of {row['count']} blocks")
    return " ".join(words)


def _operand_in_words(rank: RankPlan, operand: Columns) -> list[str]:
    words = []
    sides = [_span(operand, side) for side in ("src", "dst") if operand[f"{side}_buffer"] != Buffer.NONE]
    if sides:
        words.append(" -> ".join(sides) if operand["src_buffer"] != Buffer.NONE else f"-> {sides[0]}")
    via = int(operand["via"])
    if 0 <= via < len(rank.connections):
        connection = rank.connections[via]
        kind = int(connection["kind"])
        name = {ConnectionKind.FIFO_IN: "from", ConnectionKind.FIFO_OUT: "to", ConnectionKind.SWITCH: "group"}
        word = name.get(ConnectionKind(kind), "with") if kind <= ConnectionKind.SWITCH else "with"
        peer = f"{word} {connection['peer']}" if word == "group" else f"{word} rank {connection['peer']}"
        words.append(peer + (f" channel {connection['channel']}" if connection["channel"] else ""))
    return words


def _span(operand: Columns, side: str) -> str:
    buffer = int(operand[f"{side}_buffer"])
    name = Buffer(buffer).name.lower() if buffer <= Buffer.SCRATCH else f"buffer {buffer}"
    index, count = int(operand[side]), int(operand["count"])
    moving = "~" if operand["walk"] else ""
    return f"{name}[{moving}{index}]" if count == 1 else f"{name}[{moving}{index}..{index + count - 1}]"


# Schedules

SCHEDULE_RULES = (
    Rule("read-before-write", "What a transfer reads, and what it reduces into, was written in an earlier step, or holds the rank's own data from the start."),
    Rule("two-writers", "In one step a place takes one copy, or one sum formed in the network, or reductions only."),
    Rule("mixed-chunks", "Only parts of one chunk are reduced together."),
    Rule("counted-twice", "No rank's contribution is reduced twice into one chunk; in a barrier, where an arrival is no sum, it may be."),
    Rule("missing", "In the end every place for which the collective promises something has been written."),
    Rule("wrong-chunk", "It holds the chunk that is promised for it."),
    Rule("wrong-contributors", "It holds the contributions of the ranks that are promised, and of no others."),
)  # fmt: skip
"""What a legal schedule keeps to, beside what can't be built at all: names that mean something, ends of a transfer with as many chunks.

Every step is executed for all ranks on (chunk, set of contributors), `provenance.run`; at more ranks than that can be done for, `proof.prove` decides.
"""


def verify_schedule(bound: BoundSchedule) -> tuple[Violation, ...]:
    """The rules of SCHEDULE_RULES that a bound schedule breaks, by executing it for all its ranks.

    Raises ValueError for one with too many moves to be written out.

    >>> from busbw.collectives.algorithms import ring_all_reduce
    >>> verify_schedule(ring_all_reduce().bind(8))
    ()
    """
    return tuple(
        Violation(fault.kind, f"{fault.where + ': ' if fault.where else ''}{fault.text}", times=fault.count)
        for fault in violations(bound)
    )
