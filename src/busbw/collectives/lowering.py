"""Schedule to Plan: what one rank does, produced when it is asked for.

Loops over steps stay loops where, for this rank, peers and chunks move evenly from step to step (`loop_lowering.py`); all else is written out
for this rank, in order of steps (`step_lowering.py`). Within a step a rank sends first, then moves its own chunks, then receives; so all ranks
work through one order of (step, round, send before receive), and no FIFO needs more than one slot. `layout.py`: where data lies.
"""

from __future__ import annotations

from functools import partial

import numpy as np

from busbw.collectives.expressions import IntArray
from busbw.collectives.kinds import COLLECTIVES
from busbw.collectives.layout import EXPERTS, Emit, Layout, counts_of, experts_of, refinement_of
from busbw.collectives.loop_lowering import UnevenError, kept_loops
from busbw.collectives.plan import BlockBuilder, Plan, Promise, RankBuilder, RankPlan
from busbw.collectives.schedule import BoundSchedule
from busbw.collectives.step_lowering import MovesByRank, written_out

__all__ = ["lower", "plan_of"]

_IN_PLACE = ("all_reduce", "all_gather", "reduce_scatter", "broadcast")


def plan_of(
    bound: BoundSchedule, *, in_place: bool = False, name: str | None = None, most_operations: int | None = None
) -> Plan:
    """The plan of a bound schedule; a rank is lowered when the plan is asked for it.

    most_operations: more of one rank are refused by ValueError, before they are made.
    Raises ValueError if `in_place` is asked for a collective whose schedule needs both buffers.

    >>> from busbw.collectives.algorithms.ring import ring_all_reduce
    >>> plan_of(ring_all_reduce().bind(131072)).rank(5).operations <= 64
    True
    """
    kind = bound.schedule.kind
    if in_place and kind not in _IN_PLACE:
        raise ValueError(f"{bound.schedule.name}: {kind} is not run in place; {', '.join(_IN_PLACE)} are")
    counts = counts_of(bound)
    return Plan(
        name or bound.schedule.name,
        kind if kind in COLLECTIVES else "custom",
        bound.ranks,
        bound.chunks * refinement_of(bound),
        partial(lower, bound, in_place=in_place, moves=MovesByRank(bound, most_operations)),
        in_place=in_place,
        out_of_place=not in_place,
        root=bound.root,
        counts=None if counts is None else counts * refinement_of(bound),
        promise=_promise(bound),
    )


def lower(
    bound: BoundSchedule, rank: int, *, in_place: bool = False, moves: MovesByRank | None = None
) -> RankPlan:  # fmt: skip
    """What one rank runs. moves: what all ranks do, where several of them are lowered.

    Raises ValueError for moves within one step and rank that no order makes right (two chunks that change places, say).
    """
    layout = Layout.of(bound, rank, in_place)
    try:
        return _filled(layout, kept_loops(bound, rank, layout))
    except UnevenError:
        return _filled(layout, written_out(bound, rank, layout, moves))


def _filled(layout: Layout, parts: dict[int, Emit]) -> RankPlan:
    """The rank plan with these operations, and the copies before and after them."""
    builder = RankBuilder(layout.rank, layout.input_chunks, layout.output_chunks, layout.scratch_chunks)
    lanes = _Lanes(builder)
    for source, target in layout.before:
        lanes.first().copy(source, target)
    for channel, emit in parts.items():
        emit(lanes.block(channel, spread=bool(layout.before)))
    for source, target in layout.after:
        lanes.last().copy(source, target)
    lanes.first()
    return builder.build()


def _promise(bound: BoundSchedule) -> Promise | None:
    """What a plan of moe_dispatch or moe_combine promises; the others are known by name."""
    if bound.schedule.kind not in EXPERTS:
        return None
    has, gets = experts_of(bound)
    part = np.arange(bound.chunks * refinement_of(bound), dtype=np.int64)

    return Promise(partial(_held_of, has, part), partial(_held_of, gets, part))


def _held_of(table: IntArray, part: IntArray, rank: int) -> IntArray:
    """Chunks that a rank has by a table of (chunks, ranks), each its own content; -1 where it has none."""
    return np.where(np.repeat(table[:, rank], len(part) // len(table)) > 0, part, -1)


class _Lanes:
    """The blocks of a rank, one a channel, and the flags by which they wait for what one of them did alone."""

    def __init__(self, builder: RankBuilder) -> None:
        self.builder = builder
        self.blocks: dict[int, BlockBuilder] = {}
        self.opened = False

    def first(self) -> BlockBuilder:
        """The block that does what comes before all channels."""
        if not self.blocks:
            self.blocks[0] = self.builder.block(0)
        return next(iter(self.blocks.values()))

    def block(self, channel: int, *, spread: bool) -> BlockBuilder:
        """The block of a channel; with `spread` it waits for the first one's preparations."""
        if channel not in self.blocks:
            lead = self.first() if spread else None
            if channel in self.blocks:
                return self.blocks[channel]
            self.blocks[channel] = self.builder.block(channel)
            if lead is not None:
                if not self.opened:
                    lead.set_flag()
                    self.opened = True
                self.blocks[channel].wait_flag(lead.block, 1)
        return self.blocks[channel]

    def last(self) -> BlockBuilder:
        """The first block, after it has waited for all others."""
        lead = self.first()
        for block in self.blocks.values():
            if block is not lead:
                block.set_flag()
                lead.wait_flag(block.block, 1)
        return lead
