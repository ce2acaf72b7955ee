"""A plan written for a target: in the target's manner, within its limits, read back and verified as the target reads it.

A schedule whose plan is too large for its target is cut into fewer slices until it fits; a rank alone tells soon that a plan is too large.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from busbw.collectives.exchange.files import WRITERS, PlanFile, parse_plan, plan_file_of, told
from busbw.collectives.exchange.msccl_xml import rank_limits
from busbw.collectives.exchange.targets import Target
from busbw.collectives.legality import Violation, promise_of
from busbw.collectives.one_sided import BlockLimits, TooManyBlocksError, as_custom, one_sided
from busbw.collectives.plan import Op, Plan, RankPlan
from busbw.collectives.work import check_written_out
from busbw.errors import InputError

__all__ = ["fitted", "write_file", "write_plan"]

_SENDS = (Op.SEND, Op.RECV_COPY_SEND, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND)
_REDUCES = (Op.RECV_REDUCE_COPY, Op.RECV_REDUCE_SEND, Op.RECV_REDUCE_COPY_SEND, Op.REDUCE)
_A_TURN = 3
"""Operations of a block from one wait to the next, beside what it moves: the wait, a SYNC or two, a signal."""
_FEW = 4
"""Slices from whose blocks those of more are told."""
_ESTIMATE = 2
"""How far the estimate of operations may be above what comes out; a guess, measured at up to 1.5."""


class LimitError(InputError):
    """A plan that its target could say, if it were smaller."""


def write_plan(plan: Plan, target: Target, ranks_per_node: int | None = None) -> str:
    """The plan as a file for a target, read back and verified under the target's own reading.

    ranks_per_node: MSCCL++ reaches ranks of other nodes through ports; None: all memory is mapped. Raises InputError with all that the target
    can't say or take, and if what it reads is not legal.
    """
    fitting = fitted(plan, target, ranks_per_node)
    text, violations = WRITERS[target.format](fitting, target)
    if violations:
        limits = all(one.rule == "target-limit" for one in violations)
        raise (LimitError if limits else InputError)(_does_not_fit(plan, target, violations))
    read = parse_plan(text.encode(), f"{plan.name} for {target.name}", target.name, limits=False)
    again = replace(read, plan=replace(read.plan, promise=fitting.promise)).verify()
    if not again.legal:
        raise InputError(f"plan {plan.name!r}, read as {target.name} reads it, is not legal:\n{told(again.violations)}")
    return text


def _does_not_fit(plan: Plan, target: Target, violations: Sequence[Violation]) -> str:
    return f"plan {plan.name!r} does not fit {target.name}:\n{told(violations)}"


def fitted(plan: Plan, target: Target, ranks_per_node: int | None = None) -> Plan:
    """The plan in the manner of a target: for MSCCL++ puts and signals instead of sends, and a custom collective where it has no word for it.

    Raises InputError for a collective that can't be custom, for loops that are too long to be written out, and for a plan that does not come to its end.
    """
    if target.format != "busbw-json":
        check_written_out(plan)
    if target.format != "mscclpp-json":
        return plan
    if target.word(plan.collective) is None and promise_of(plan) is None:
        raise InputError(
            f"plan {plan.name!r} does not fit {target.name}: it can't say the collective {plan.collective}, which has no data by which to know it. "
            "Write it for goal or busbw-json"
        )
    empty = (
        [rank.rank for rank in plan if not rank.input_chunks or not rank.output_chunks]
        if plan.counts is not None
        else []
    )
    if empty:
        raise InputError(
            f"plan {plan.name!r} does not fit {target.name}: rank {empty[0]} sends or receives nothing, and its executor divides by its chunks. "
            "Write it for goal or busbw-json"
        )
    usual = BlockLimits()
    limits = BlockLimits(
        target.steps_per_block or usual.operations,
        target.channels_per_block or usual.channels,
        target.channels_per_operation or usual.channels_per_operation,
        target.operands_per_side or usual.operands_per_side,
        ways_are_channels=target.first_kind,
        blocks=target.blocks_per_rank,
        semaphores=not target.first_kind,
    )
    try:
        made = one_sided(plan, ranks_per_node, limits)
    except TooManyBlocksError as error:
        raise LimitError(f"{error} ({target.name})") from None
    except ValueError as error:  # of a plan that no rule holds for yet: a copy of one chunk onto many, say
        raise InputError(
            f"plan {plan.name!r} can't be put for {target.name}: {error}. `busbw verify` says what is wrong with it"
        ) from None
    return made if target.word(made.collective) else as_custom(made)


def write_file(read: PlanFile, target: Target, ranks_per_node: int | None = None) -> tuple[str, str]:
    """`write_plan` of a file's plan, and what was done so that it fits: a plan made of a schedule takes fewer slices, down to one.

    Raises InputError if nothing helps, with what one rank exceeds if that is seen before all are lowered.
    """
    per_node = ranks_per_node or read.ranks_per_node
    schedule = read.schedule
    first = dict(schedule.params).get("parts", 1) if schedule is not None else 1
    if schedule is None or first == 1:
        if too_large := _too_large(read.plan, target):
            raise InputError(too_large)
        return write_plan(read.plan, target, per_node), ""

    def cut(parts: int) -> Plan:
        return (
            read.plan
            if parts == first
            else plan_file_of(schedule.bound_where(parts=parts), read.path, in_place=read.plan.in_place).plan
        )

    parts, why = _most_slices(cut, first, target, per_node), ""
    while parts:
        try:
            why = _too_large(cut(parts), target)
            if not why:
                said = f"{parts} slices instead of {first}, so that it fits {target.name}" if parts != first else ""
                return write_plan(cut(parts), target, per_node), said
        except LimitError as error:
            why = str(error)
        parts //= 2
    raise InputError(why)


def _most_slices(cut: Callable[[int], Plan], first: int, target: Target, per_node: int | None) -> int:
    """How many of `first` slices, halved and halved again, are likely to fit: for MSCCL++ by the blocks that a few need."""
    if target.format != "mscclpp-json" or target.blocks_per_rank is None or first <= _FEW:
        return first
    try:
        blocks = max(len(rank.blocks) for rank in fitted(cut(_FEW), target, per_node))
    except LimitError:
        return _FEW // 2
    parts = first
    while parts > _FEW and blocks * parts > target.blocks_per_rank * _FEW:
        parts //= 2
    return parts


def _too_large(plan: Plan, target: Target) -> str:
    """Which limit of the target the first rank exceeds for certain, in words; empty: none is seen."""
    rank = plan.rank(0)
    if target.format != "busbw-json":
        check_written_out(plan, [rank])
    if target.format == "msccl-xml":
        violations = rank_limits(plan, target, rank)
        return _does_not_fit(plan, target, violations) if violations else ""
    if target.format != "mscclpp-json" or not plan.blocks_in_order or target.blocks_per_rank is None:
        return ""
    room = target.blocks_per_rank * (target.steps_per_block or 1) * _ESTIMATE
    needed = _operations(rank)
    if needed <= room:
        return ""
    return (
        f"plan {plan.name!r} does not fit {target.name}: rank 0 needs some {needed:,} operations; {target.blocks_per_rank} blocks of "
        f"{target.steps_per_block} are taken at most"
    )


def _operations(rank: RankPlan) -> int:
    """About how many operations a rank with puts and signals has: a turn each time it waits after it has signalled, and its moves."""
    found = 0
    rank = rank.unrolled()
    for block in range(len(rank.blocks)):
        ops = rank.rows(block)["op"]
        sends, receives = np.isin(ops, _SENDS), (ops >= Op.RECV) & (ops <= Op.RECV_REDUCE_COPY_SEND)
        said = ops[sends | receives]
        turns = int((np.isin(said[:-1], _SENDS) & (said[1:] != Op.SEND)).sum())
        found += _A_TURN * turns + int(np.isin(ops, _REDUCES).sum())
    return found
