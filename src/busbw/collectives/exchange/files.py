"""Which format a file is in, and a plan to and from each; a schedule in our JSON is bound and lowered to one."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from busbw.collectives.exchange.busbw_json import looks_like_busbw_json, read_busbw_json, write_busbw_json
from busbw.collectives.exchange.json_fields import MAX_BYTES
from busbw.collectives.exchange.msccl_xml import lint_text, looks_like_msccl_xml, read_msccl_xml, write_msccl_xml
from busbw.collectives.exchange.mscclpp_json import looks_like_mscclpp_json, read_mscclpp_json, write_mscclpp_json
from busbw.collectives.exchange.targets import NEWEST, TARGETS, Target, target_named
from busbw.collectives.legality import Verdict, Violation, verify_plan, verify_schedule
from busbw.collectives.lowering import plan_of
from busbw.collectives.plan import Plan, RankPlan
from busbw.collectives.schedule import BoundSchedule, Schedule
from busbw.collectives.schedule_json import from_json, looks_like_schedule_json
from busbw.collectives.work import most_operations
from busbw.errors import InputError, Loss

__all__ = ["FORMATS", "WRITERS", "PlanFile", "parse_plan", "plan_file_of", "read_plan", "read_schedule", "told"]

FORMATS = {
    "msccl-xml": "rccl",
    "mscclpp-json": "mscclpp-0.10",
    "busbw-json": "busbw",
}
"""Each format with the target that is meant if none is named."""
_HEAD_BYTES = 4096
_SHOWN = 8
"""Violations that an error tells in full; the same is often wrong on every rank."""
_UNSOUND = (ValueError, IndexError, ArithmeticError)
"""What a schedule raises whose expressions have no value: sizes that do not fit, a place outside of a table, a division by zero."""
_MOST_RANKS = 1 << 14
"""Ranks of a schedule that is read from a file as a plan: each is lowered, which takes milliseconds. A guess at how long a user waits."""
_LISTED_BYTES = 16
"""Of a schedule's file, that list one operation at least: half a move, as no move is written in less than 32."""
_KEPT_ROWS = 1 << 20
"""Of ranks that were lowered, at 24 bytes each, kept for the next who asks. A guess at what nobody misses."""
_MOST_NAME = 63
"""Of a plan that is made of a schedule: what MSCCL XML takes. Composed schedules have longer names."""


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan as its target reads it from a file."""

    path: str
    plan: Plan
    target: Target
    losses: tuple[Loss, ...]
    unfit: tuple[Violation, ...]
    """Limits of the target that it exceeds, and what the target's parser would refuse."""
    schedule: BoundSchedule | None = None
    """What the plan was lowered from, if the file holds a schedule."""

    @property
    def ranks_per_node(self) -> int | None:
        """Ranks that share memory, if the schedule has an axis `node` before others."""
        axes = self.schedule.sizes if self.schedule is not None else ()
        return math.prod(size for _, size in axes[1:]) if len(axes) > 1 and axes[0][0] == "node" else None

    def verify_schedule(self) -> tuple[Violation, ...]:
        """The rules of schedules that its schedule breaks; none for a file that holds a plan.

        Raises InputError for a schedule with too many moves to be followed.
        """
        if self.schedule is None:
            return ()
        try:
            return verify_schedule(self.schedule)
        except _UNSOUND as error:
            raise InputError(f"{self.path}: {error}") from None

    def verify(self) -> Verdict:
        """The plan's verdict, with what makes the file unfit for its target before it."""
        verdict = verify_plan(self.plan, cut_messages=self.target.format == "msccl-xml")
        return Verdict((*self.unfit, *verdict.violations), verdict.instructions, verdict.same_bits, verdict.unchecked)


def read_plan(
    path: str | Path,
    target: str | None = None,
    sizes: Mapping[str, int] | None = None,
    counts: Any = None,
    *,
    in_place: bool = False,
) -> PlanFile:
    """The plan that a file holds, as the target reads it; without one, as the runtime that the file looks written for.

    sizes: of a schedule's axes, and its parameters, where the file does not fix them; counts: of an all_to_all_v that leaves them open. in_place:
    how a schedule is lowered; a plan is what it is.
    Raises InputError for a file that holds no plan, or one that its target refuses or can't make sense of.
    """
    return parse_plan(_bytes_of(path), str(path), target, sizes, counts, in_place=in_place)


def parse_plan(
    data: bytes,
    path: str,
    target: str | None = None,
    sizes: Mapping[str, int] | None = None,
    counts: Any = None,
    *,
    in_place: bool = False,
    limits: bool = True,
) -> PlanFile:  # fmt: skip
    """`read_plan` of the bytes of a file. limits: whether the target's are looked at, which writes the plan once more; a writer has seen to them."""
    named = target_named(target) if target is not None else None
    if target in NEWEST:
        target = None  # which release, the file says
    losses: list[Loss]
    is_xml = looks_like_msccl_xml(data[:_HEAD_BYTES])
    try:
        value = None if is_xml else json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if looks_like_schedule_json(value):
        _must_be(path, named, "schedule-json")
        bound = _bound(_schedule(data, path), path, sizes or {}, counts)
        most = most_operations(bound.ranks, len(data) // _LISTED_BYTES)
        return plan_file_of(bound, path, in_place=in_place, most=most)
    if in_place:
        raise InputError(
            f"{path}: a plan says itself whether it runs in place; only a schedule can be lowered to either"
        )
    if counts is not None:
        raise InputError(f"{path}: counts can be given to a schedule only, and this is none")
    if sizes:
        raise InputError(f"{path}: {', '.join(sizes)} can be bound in a schedule only, and this is none")
    if is_xml:
        _must_be(path, named, "msccl-xml")
        plan, found, losses = read_msccl_xml(data, path, target)
        unfit = lint_text(data.decode("utf-8", errors="replace"), path, found)
        return PlanFile(path, plan, found, tuple(losses), (*unfit, *(_limits(plan, found) if limits else ())))
    if looks_like_busbw_json(value):
        _must_be(path, named, "busbw-json")
        return PlanFile(path, read_busbw_json(data, path), TARGETS["busbw"], (), ())
    if looks_like_mscclpp_json(value):
        _must_be(path, named, "mscclpp-json")
        plan, found, losses = read_mscclpp_json(data, path, target)
        return PlanFile(path, plan, found, tuple(losses), tuple(_limits(plan, found) if limits else ()))
    raise InputError(
        f"{path}: no plan. Known are MSCCL XML (<algo>), MSCCL++ execution plans, busbw's own JSON and its schedules"
    )


def plan_file_of(
    bound: BoundSchedule, path: str, *, in_place: bool = False, most: int | None = None
) -> PlanFile:  # fmt: skip
    """A bound schedule as the plan that it is lowered to; `path` is where it came from. most: operations of all ranks that are taken; None: any number.

    A rank is lowered when the plan is asked for it; InputError is raised then for what no order makes right.
    """
    name = bound.schedule.name
    if bound.ranks > _MOST_RANKS:
        raise InputError(
            f"{path}: {name} is bound to {bound.ranks:,} ranks; plans are made for up to {_MOST_RANKS:,}. Bind fewer"
        )
    try:
        plan = plan_of(
            bound,
            in_place=in_place,
            name=name if len(name) <= _MOST_NAME else Path(path).stem[:_MOST_NAME],
            most_operations=most,
        )
    except _UNSOUND as error:
        raise InputError(f"{path}: {error}") from None

    lowered = _Lowered(path, f"{name} with {bound.sizes_text}", plan, most)
    return PlanFile(path, replace(plan, rank_plan=lowered), TARGETS["busbw"], (), (), bound)


class _Lowered:
    """The ranks of a plan, lowered when they are asked for, and the first of them kept. Raises InputError if those asked for come to more than `most`."""

    def __init__(self, path: str, what: str, plan: Plan, most: int | None) -> None:
        self._path, self._what, self._plan, self._most = path, what, plan, most
        self._kept: dict[int, RankPlan] = {}
        self._met: set[int] = set()
        self._rows = self._kept_rows = 0

    def __call__(self, rank: int) -> RankPlan:
        if rank in self._kept:
            return self._kept[rank]
        try:
            made = self._plan.rank_plan(rank)
        except _UNSOUND as error:
            raise InputError(f"{self._path}: rank {rank}: {error}") from None
        if rank not in self._met:
            self._met.add(rank)
            self._rows += len(made.instructions)
        if self._most is not None and self._rows > self._most:
            raise InputError(
                f"{self._path}: {self._what} comes to {self._rows:,} operations of {len(self._met)} of its ranks; {self._most:,} are taken of all. "
                "Bind it to fewer ranks, chunks or slices"
            )
        if self._kept_rows + len(made.instructions) <= _KEPT_ROWS:
            self._kept[rank] = made
            self._kept_rows += len(made.instructions)
        return made


def read_schedule(path: str | Path) -> Schedule:
    """The schedule that a file holds. Raises InputError for a file that holds none; a plan is none."""
    data = _bytes_of(path)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if not looks_like_schedule_json(value):
        raise InputError(
            f"{path}: no schedule, which is JSON with axes and a body; `busbw design --out FILE.json` writes one"
        )
    return _schedule(data, str(path))


def _bytes_of(path: str | Path) -> bytes:
    place = Path(path)
    if not place.is_file():
        raise InputError(f"{path}: {'a directory; pass the files in it' if place.is_dir() else 'no such file'}")
    if place.stat().st_size > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES:,} bytes; no plan is")
    return place.read_bytes()


def _schedule(data: bytes, path: str) -> Schedule:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: no schedule: {error}") from None
    try:
        return from_json(text)
    except ValueError as error:
        raise InputError(f"{path}: no schedule: {error}") from None


def _bound(schedule: Schedule, path: str, sizes: Mapping[str, int], counts: Any) -> BoundSchedule:
    """The schedule with the sizes given and those that the file fixes."""
    known = {
        *sizes,
        *(name for name, _ in schedule.fixed),
        *(name for name, value in schedule.params if value is not None),
    }
    if counts is not None and len(schedule.axes) == 1:
        known.add(schedule.axes[0])
    if schedule.open and counts is None:
        raise InputError(f"{path}: the schedule {schedule.name} is for any counts; say which: --counts FILE")
    if missing := [name for name in (*schedule.axes, *(name for name, _ in schedule.params)) if name not in known]:
        raise InputError(
            f"{path}: the schedule {schedule.name} is for any size of {', '.join(missing)}; say which: --bind {','.join(f'{name}=N' for name in missing)}"
        )
    try:
        return schedule.bind(counts=counts, **sizes)
    except _UNSOUND as error:
        raise InputError(f"{path}: {error}") from None


def _must_be(path: str, target: Target | None, format_: str) -> None:
    if target is not None and target.format != format_:
        raise InputError(f"{path}: is {format_}, which {target.name} does not read. Use convert")


def _limits(plan: Plan, target: Target) -> list[Violation]:
    """Limits of the target that a plan exceeds, as the writer of its format finds them."""
    _, violations = WRITERS[target.format](plan, target)
    return [violation for violation in violations if violation.rule == "target-limit"]


def told(violations: Sequence[Violation]) -> str:
    """A line each for a few violations, and how many more there are."""
    more = len(violations) - _SHOWN
    lines = [str(one) for one in violations[:_SHOWN]]
    return "\n".join([*lines, f"and {more} more"] if more > 0 else lines)


def _write_busbw(plan: Plan, _target: Target) -> tuple[str, list[Violation]]:
    return write_busbw_json(plan), []


WRITERS = {"msccl-xml": write_msccl_xml, "mscclpp-json": write_mscclpp_json, "busbw-json": _write_busbw}
