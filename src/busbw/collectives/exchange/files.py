"""Which format a file is in, and a plan to and from each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from busbw.collectives.exchange.busbw_json import looks_like_busbw_json, read_busbw_json, write_busbw_json
from busbw.collectives.exchange.json_fields import MAX_BYTES
from busbw.collectives.exchange.msccl_xml import lint_text, looks_like_msccl_xml, read_msccl_xml, write_msccl_xml
from busbw.collectives.exchange.mscclpp_json import looks_like_mscclpp_json, read_mscclpp_json, write_mscclpp_json
from busbw.collectives.exchange.targets import TARGETS, Target, target_named
from busbw.collectives.legality import Verdict, Violation, verify_plan
from busbw.collectives.plan import Plan
from busbw.errors import InputError, Loss

__all__ = ["FORMATS", "PlanFile", "parse_plan", "read_plan", "write_plan"]

FORMATS = {
    "msccl-xml": "rccl",
    "mscclpp-json": "mscclpp-0.10",
    "busbw-json": "busbw",
}
"""Each format with the target that is meant if none is named."""
_HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class PlanFile:
    """A plan as its target reads it from a file."""

    path: str
    plan: Plan
    target: Target
    losses: tuple[Loss, ...]
    unfit: tuple[Violation, ...]
    """Limits of the target that it exceeds, and what the target's parser would refuse."""

    def verify(self) -> Verdict:
        """The plan's verdict, with what makes the file unfit for its target before it."""
        verdict = verify_plan(self.plan, cut_messages=self.target.format == "msccl-xml")
        return Verdict((*self.unfit, *verdict.violations), verdict.instructions, verdict.same_bits, verdict.unchecked)


def read_plan(path: str | Path, target: str | None = None) -> PlanFile:
    """The plan that a file holds, as the target reads it; without one, as the runtime that the file looks written for.

    Raises InputError for a file that holds no plan, or one that its target refuses or can't make sense of.
    """
    place = Path(path)
    if not place.is_file():
        raise InputError(f"{path}: no such file")
    if place.stat().st_size > MAX_BYTES:
        raise InputError(f"{path}: larger than {MAX_BYTES:,} bytes; no plan is")
    return parse_plan(place.read_bytes(), str(path), target)


def parse_plan(data: bytes, path: str, target: str | None = None) -> PlanFile:
    """`read_plan` of the bytes of a file."""
    named = target_named(target) if target is not None else None
    losses: list[Loss]
    if looks_like_msccl_xml(data[:_HEAD_BYTES]):
        _must_be(path, named, "msccl-xml")
        plan, found, losses = read_msccl_xml(data, path, target)
        unfit = lint_text(data.decode("utf-8", errors="replace"), path, found)
        return PlanFile(path, plan, found, tuple(losses), (*unfit, *_limits(plan, found)))
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        value = None
    if looks_like_busbw_json(value):
        _must_be(path, named, "busbw-json")
        return PlanFile(path, read_busbw_json(data, path), TARGETS["busbw"], (), ())
    if looks_like_mscclpp_json(value):
        _must_be(path, named, "mscclpp-json")
        plan, found, losses = read_mscclpp_json(data, path, target)
        return PlanFile(path, plan, found, tuple(losses), tuple(_limits(plan, found)))
    if isinstance(value, dict) and {"kind", "axes", "body"} <= value.keys():
        raise InputError(
            f"{path}: a schedule, such as `busbw design --out` writes, and no plan. In Python "
            "busbw.collectives.plan_of(from_json(text).bind(ranks)) is its plan"
        )
    raise InputError(f"{path}: no plan. Known are MSCCL XML (<algo>), MSCCL++ execution plans and busbw's own JSON")


def _must_be(path: str, target: Target | None, format_: str) -> None:
    if target is not None and target.format != format_:
        raise InputError(f"{path}: is {format_}, which {target.name} does not read. Use convert")


def _limits(plan: Plan, target: Target) -> list[Violation]:
    """Limits of the target that a plan exceeds, as the writer of its format finds them."""
    _, violations = _WRITERS[target.format](plan, target)
    return [violation for violation in violations if violation.rule == "target-limit"]


def write_plan(plan: Plan, target: Target) -> str:
    """The plan as a file for a target, read back and verified under the target's own reading.

    Raises InputError with all that the target can't say or take, and if what it reads is not legal.
    """
    text, violations = _WRITERS[target.format](plan, target)
    if violations:
        raise InputError(
            f"plan {plan.name!r} does not fit {target.name}:\n" + "\n".join(str(one) for one in violations)
        )
    again = parse_plan(text.encode(), f"{plan.name} for {target.name}", target.name).verify()
    if not again.legal:
        told = "\n".join(str(one) for one in again.violations[:8])
        raise InputError(f"plan {plan.name!r}, read as {target.name} reads it, is not legal:\n{told}")
    return text


def _write_busbw(plan: Plan, _target: Target) -> tuple[str, list[Violation]]:
    return write_busbw_json(plan), []


_WRITERS = {"msccl-xml": write_msccl_xml, "mscclpp-json": write_mscclpp_json, "busbw-json": _write_busbw}
