"""`busbw verify`, `busbw convert`, `busbw show`: plans of collectives in files."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, given_path, note, print_json, problem
from busbw.cli.predictions import pairs_of
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.collectives.exchange import PlanFile
    from busbw.collectives.exchange.targets import Target
    from busbw.collectives.legality import Verdict, Violation

__all__ = ["SCHEDULE", "convert", "meant_by", "show", "verify", "write_as"]

_SOMETHING_WRONG = 1
SCHEDULE = "schedule-json"
"""A schedule in our JSON: what `busbw design` writes, and the other verbs read."""
_SHOWN = 8
"""Violations of one plan that are printed; JSON has all."""
_SHORT: dict[str | None, str] = {"msccl": "msccl", "rccl": "rccl", "mscclpp": "mscclpp-0.10", "busbw": "busbw"}
"""What --to takes beside formats: runtimes, each by the target that is meant."""
_ENDINGS = {".xml": "msccl-xml", ".goal": "goal", ".json": "busbw-json"}

_Bind = Annotated[
    list[str] | None,
    typer.Option(
        "--bind", metavar="AXIS=SIZE,...", help="Sizes of a schedule's axes, and parameters, that its file leaves open."
    ),
]

_Counts = Annotated[
    str | None,
    typer.Option(
        "--counts",
        metavar="FILE",
        help="JSON: what each rank sends to each, a row a rank, for a schedule of all-to-all-v that leaves it open.",
    ),
]

_InPlace = Annotated[
    bool, typer.Option("--in-place", help="A schedule's plan with one buffer for input and output, as NCCL has it.")
]


def verify(  # noqa: PLR0917 - an option each
    files: Annotated[
        list[str], typer.Argument(metavar="FILE...", help="Plans: MSCCL XML, MSCCL++ JSON, ours; or schedules.")
    ],
    target: Annotated[
        str | None, typer.Option("--target", metavar="NAME", help="The runtime that is to read them; guessed if none.")
    ] = None,
    bind: _Bind = None,
    counts: _Counts = None,
    in_place: _InPlace = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Check whether plans do what their collective promises, as their runtime would read them.

    Decided for every order in which ranks and blocks may run: deadlock, races, lost and doubled contributions, FIFOs that are too
    shallow, signals left over, memory that is used again too early, limits of the runtime. What is broken is shown as steps.
    A schedule is checked by the rules of schedules, and so is the plan that it is lowered to.
    Exit status 1 if a plan is wrong, else 2 if a file holds none.

    \b
    Examples:
      busbw verify allreduce.xml
      busbw verify plans/*.json --json
      busbw verify schedule.json --bind node=4,gpu=8
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.collectives.exchange import read_plan  # noqa: PLC0415 - loads numpy

    sizes, table = _sizes(bind), _table(counts)
    told: list[dict[str, Any]] = []
    unread: list[dict[str, str]] = []
    wrong = False
    for file in files:
        try:
            read = read_plan(given_path(file), target, sizes, table, in_place=in_place)
            broken = read.verify_schedule()
            verdict = read.verify()
        except InputError as error:
            problem(str(error))
            unread.append({"file": file, "reason": str(error)})
            continue
        wrong = wrong or not verdict.legal or bool(broken)
        if as_json:
            told.append(_to_json(read, verdict, broken))
        else:
            _print(read, verdict, broken)
    if as_json:
        print_json({"schema": 1, "plans": told, "unread": unread})
    if wrong:
        raise typer.Exit(_SOMETHING_WRONG)
    if unread:
        raise typer.Exit(2)


def convert(  # noqa: PLR0917 - an option each
    source: Annotated[str, typer.Argument(metavar="IN", help="A plan in any format, or a schedule.")],
    output: Annotated[str, typer.Argument(metavar="OUT", help="The file to write.")],
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="FORMAT", help="msccl-xml, mscclpp-json, busbw-json or goal; by OUT's ending if none."
        ),
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--target", metavar="NAME", help="The runtime to write for, such as rccl or mscclpp-0.10."),
    ] = None,
    size: Annotated[
        str | None, typer.Option("--bytes", metavar="SIZE", help="Size of the call; only goal needs it.")
    ] = None,
    per_node: Annotated[
        int | None,
        typer.Option(
            "--ranks-per-node",
            metavar="N",
            min=1,
            help="MSCCL++: ranks of other nodes are reached through ports. By the schedule's axis node if none.",
        ),
    ] = None,
    bind: _Bind = None,
    counts: _Counts = None,
    in_place: _InPlace = False,
) -> None:
    """Translate a plan. What the target can't say is named, and nothing is written.

    What is written was read back, and verified as the target reads it.

    \b
    Examples:
      busbw convert allreduce.xml allreduce.json --to busbw-json
      busbw convert plan.json plan.xml --target rccl
      busbw convert plan.json plan.goal --bytes 1MiB
      busbw convert schedule.json plan.xml --target msccl --bind r=8
      busbw convert schedule.json plan.json --to mscclpp-json --ranks-per-node 8
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.collectives.exchange import read_plan  # noqa: PLC0415 - loads numpy

    read = read_plan(given_path(source), sizes=_sizes(bind), counts=_table(counts), in_place=in_place)
    for loss in read.losses:
        note(str(loss))
    format_, _ = meant_by(output, to, target)
    for option, value, use in (("--bytes", size, "goal"), ("--ranks-per-node", per_node, "mscclpp-json")):
        if value is not None and format_ != use:
            raise typer.BadParameter(f"{option} {value}: only {use} needs it, and {output} is {format_}.")
    text = write_as(read, output, to, target, size, per_node)
    given_path(output).write_text(text, encoding="utf-8")


def write_as(  # noqa: PLR0917 - an option each
    read: PlanFile, output: str, to: str | None, target: str | None, size: str | None, per_node: int | None = None
) -> str:
    """The plan as text in the format that --to, --target or OUT's ending mean, read back and verified as its target reads it.

    Raises BadParameter for words that mean no format, InputError with all that the target can't say.
    """
    from busbw.collectives.exchange import FORMATS, target_named, write_file  # noqa: PLC0415 - loads numpy

    format_, meant = meant_by(output, to, target)
    if format_ == "goal":
        return _goal(read, size)
    writes_for = meant or (read.target if read.target.format == format_ else target_named(FORMATS[format_]))
    if writes_for.format != format_:
        raise typer.BadParameter(f"{writes_for.name} reads {writes_for.format}, not {format_}.")
    text, said = write_file(read, writes_for, per_node)
    if said:
        note(f"{output}: {said}")
    return text


def meant_by(output: str, to: str | None, target: str | None, also: Sequence[str] = ()) -> tuple[str, Target | None]:
    """The format that --to, --target or OUT's ending mean, and the target if one is named.

    Raises BadParameter for words that mean no format; it names all that there are, and `also`.
    """
    from busbw.collectives.exchange import FORMATS, target_named  # noqa: PLC0415 - loads numpy

    if to in _SHORT:
        target = target or _SHORT[to]
        to = None
    meant = target_named(target) if target is not None else None
    format_ = to or (meant.format if meant is not None else _ENDINGS.get(Path(output).suffix))
    if format_ is None or format_ not in (*FORMATS, "goal"):
        what = f"--to {to}" if to else f"the ending of {output} names no format; give --to"
        raise typer.BadParameter(f"{what}: there are {', '.join((*FORMATS, 'goal', *also))}.")
    if format_ == "goal" and meant is not None:
        raise typer.BadParameter(f"--target {meant.name}: it reads {meant.format}, not goal.")
    return format_, meant


def show(  # noqa: PLR0917 - an option each
    file: Annotated[str, typer.Argument(metavar="FILE", help="A plan in any format, or a schedule.")],
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Also draw its rings and trees, a channel a panel.")
    ] = None,
    bind: _Bind = None,
    counts: _Counts = None,
    in_place: _InPlace = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Say what a plan is: collective, ranks, channels, instructions of a rank, and the shape of each channel.

    \b
    Example:
      busbw show allreduce.xml --svg allreduce.svg
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.collectives.exchange import read_plan  # noqa: PLC0415 - loads numpy
    from busbw.collectives.shapes import shapes_of  # noqa: PLC0415

    read = read_plan(given_path(file), sizes=_sizes(bind), counts=_table(counts), in_place=in_place)
    for loss in read.losses:
        note(str(loss))
    shapes = shapes_of(read.plan)
    first = read.plan.rank(0)
    facts: dict[str, Any] = {
        "file": read.path,
        "name": read.plan.name,
        "collective": read.plan.collective,
        "ranks": read.plan.ranks,
        "chunks": read.plan.chunks,
        "in_place": read.plan.in_place,
        "out_of_place": read.plan.out_of_place,
        "protocol": read.plan.protocol.name.lower(),
        "target": read.target.name,
        "schedule": None if read.schedule is None else f"{read.schedule.schedule.name}, {read.schedule.sizes_text}",
        "min_bytes": read.plan.min_bytes,
        "max_bytes": read.plan.max_bytes,
        "blocks_of_rank_0": len(first.blocks),
        "operations_of_rank_0": first.operations,
        "scratch_chunks_of_rank_0": first.scratch_chunks,
    }
    if svg is not None:
        from busbw.reports.plan_figure import plan_svg  # noqa: PLC0415

        given_path(svg).write_text(plan_svg(read.plan.name, shapes), encoding="utf-8")
    if as_json:
        channels = [
            {"channel": one.channel, "shape": one.name, "edges": [list(edge) for edge in one.edges]} for one in shapes
        ]
        print_json({"schema": 1, **facts, "channels": channels})
        return
    page = Page()
    page.line(
        f"{read.plan.name or read.path}: {read.plan.collective} on {read.plan.ranks} ranks, for {read.target.name}"
    )
    for name, value in facts.items():
        if name not in ("file", "name", "collective", "ranks", "target") and (name != "schedule" or value is not None):
            page.line(f"  {name.replace('_', ' '):26}{'no limit' if value is None else value}")
    for one in shapes[:_SHOWN]:
        page.line(f"  channel {one.channel:<18}{one.name}, {len(one.edges)} links")
    if len(shapes) > _SHOWN:
        page.line(f"  and {len(shapes) - _SHOWN} channels more")


def _goal(read: PlanFile, size: str | None) -> str:
    from busbw.collectives.exchange.goal import write_goal  # noqa: PLC0415
    from busbw.collectives.work import check_written_out  # noqa: PLC0415
    from busbw.units import parse_size  # noqa: PLC0415

    if size is None:
        raise typer.BadParameter("goal needs --bytes, the size of the call.")
    try:
        size_bytes = parse_size(size)
    except ValueError as error:
        raise typer.BadParameter(f"--bytes {size}: {error}.") from None
    if read.schedule is not None:  # as it is simulated; a plan does not say any more what may be under way at once
        from busbw.simulation import task_program  # noqa: PLC0415 - loads numpy
        from busbw.simulation.formats.goal import write_goal as write_program  # noqa: PLC0415

        try:
            return "\n".join(write_program(task_program(read.schedule, size_bytes))) + "\n"
        except ValueError as error:
            raise InputError(f"{read.path}: GOAL can't say it: {error}") from None
    check_written_out(read.plan)
    lines, violations = write_goal(read.plan, size_bytes)
    if violations:
        raise InputError("\n".join(str(one) for one in violations))
    return "\n".join(lines) + "\n"


def _sizes(bind: list[str] | None) -> dict[str, int]:
    """--bind as sizes by name. Raises BadParameter for what is no whole number."""
    found = {}
    for name, value in pairs_of(
        "--bind", [one for text in bind or [] for one in text.split(",")], "node=4,gpu=8"
    ).items():
        if not re.fullmatch(r"[0-9]{1,9}", value):
            raise typer.BadParameter(f"--bind {name}={value}: a size is a whole number.")
        found[name] = int(value)
    return found


def _table(counts: str | None) -> Any:
    """--counts as a square table. Raises BadParameter for a file that holds none."""
    if counts is None:
        return None
    from busbw.collectives.counts import checked_counts  # noqa: PLC0415 - loads numpy

    try:
        return checked_counts(json.loads(given_path(counts).read_bytes()))
    except OSError as error:
        raise typer.BadParameter(f"--counts {counts}: {error.strerror}.") from None
    except (ValueError, RecursionError) as error:
        raise typer.BadParameter(f"--counts {counts}: {str(error)[:200]}.") from None


def _to_json(read: PlanFile, verdict: Verdict, broken: tuple[Violation, ...]) -> dict[str, Any]:
    return {
        "file": read.path,
        "target": read.target.name,
        "collective": read.plan.collective,
        "ranks": read.plan.ranks,
        "legal": verdict.legal and not broken,
        "instructions": verdict.instructions,
        "same_bits": verdict.same_bits,
        "unchecked": list(verdict.unchecked),
        "violations": [violation.to_json() for violation in verdict.violations],
        "schedule": None
        if read.schedule is None
        else {
            "name": read.schedule.schedule.name,
            "sizes": dict(read.schedule.sizes),
            "params": dict(read.schedule.params),
            "legal": not broken,
            "violations": [violation.to_json() for violation in broken],
        },
        "losses": [
            {"kind": loss.kind, "path": loss.path, "line": loss.line, "detail": loss.detail, "count": loss.count}
            for loss in read.losses
        ],
    }


def _print(read: PlanFile, verdict: Verdict, broken: tuple[Violation, ...]) -> None:
    page = Page()
    for loss in read.losses:
        note(str(loss))
    if read.schedule is not None:
        page.line(
            f"{read.path}: schedule ",
            ("wrong" if broken else "legal", "red" if broken else "green"),
            f": {read.schedule.schedule.name} with {read.schedule.sizes_text}",
        )
        _print_violations(page, broken)
    what = f"{read.plan.collective} on {read.plan.ranks} ranks as {read.target.name} reads it"
    bits = ", same bits on all ranks" if verdict.same_bits else ""
    page.line(
        f"{read.path}: " + ("plan " if read.schedule is not None else ""),
        (f"legal{bits}" if verdict.legal else "wrong", "green" if verdict.legal else "red"),
        f": {what}, {verdict.instructions} instructions",
    )
    for reason in verdict.unchecked:
        page.line(f"  not checked: {reason}")
    _print_violations(page, verdict.violations)


def _print_violations(page: Page, violations: tuple[Violation, ...]) -> None:
    for violation in violations[:_SHOWN]:
        page.prose(str(violation), "    ", "  ")
        for number, step in enumerate(violation.steps, 1):
            page.line(f"      {number:>2}  {step}")
    if len(violations) > _SHOWN:
        page.line(f"  and {len(violations) - _SHOWN} more; --json has them all")
