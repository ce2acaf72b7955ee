"""`busbw verify`, `busbw convert`, `busbw show`: plans of collectives in files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, given_path, note, print_json, problem
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.collectives.exchange import PlanFile
    from busbw.collectives.legality import Verdict

__all__ = ["convert", "show", "verify"]

_SOMETHING_WRONG = 1
_SHOWN = 8
"""Violations of one plan that are printed; JSON has all."""


def verify(
    files: Annotated[list[str], typer.Argument(metavar="FILE...", help="Plans: MSCCL XML, MSCCL++ JSON, or ours.")],
    target: Annotated[
        str | None, typer.Option("--target", metavar="NAME", help="The runtime that is to read them; guessed if none.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Check whether plans do what their collective promises, as their runtime would read them.

    Decided for every order in which ranks and blocks may run: deadlock, races, lost and doubled contributions, FIFOs that are too
    shallow, signals left over, memory that is used again too early, limits of the runtime. What is broken is shown as steps.
    Exit status 1 if a plan is wrong, 2 if a file holds none.

    \b
    Examples:
      busbw verify allreduce.xml
      busbw verify plans/*.json --json
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.collectives.exchange import read_plan  # noqa: PLC0415 - loads numpy

    told: list[dict[str, Any]] = []
    wrong, unread = False, 0
    for file in files:
        try:
            read = read_plan(given_path(file), target)
            verdict = read.verify()
        except InputError as error:
            problem(str(error))
            unread += 1
            continue
        wrong = wrong or not verdict.legal
        if as_json:
            told.append(_to_json(read, verdict))
        else:
            _print(read, verdict)
    if as_json:
        print_json({"schema": 1, "plans": told})
    if unread == len(files):
        raise typer.Exit(2)
    if wrong:
        raise typer.Exit(_SOMETHING_WRONG)


def convert(
    source: Annotated[str, typer.Argument(metavar="IN", help="A plan in any format.")],
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
) -> None:
    """Translate a plan. What the target can't say is named, and nothing is written.

    What is written was read back, and verified as the target reads it.

    \b
    Examples:
      busbw convert allreduce.xml allreduce.json --to busbw-json
      busbw convert plan.json plan.xml --target rccl
      busbw convert plan.json plan.goal --bytes 1MiB
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.collectives.exchange import FORMATS, read_plan, target_named, write_plan  # noqa: PLC0415 - loads numpy

    endings = {".xml": "msccl-xml", ".goal": "goal", ".json": "busbw-json"}
    meant = target_named(target) if target is not None else None
    format_ = to or (meant.format if meant is not None else endings.get(Path(output).suffix))
    if format_ not in (*FORMATS, "goal"):
        what = f"--to {to}" if to else f"the ending of {output} names no format; give --to"
        raise typer.BadParameter(f"{what}: there are {', '.join((*FORMATS, 'goal'))}.")
    read = read_plan(given_path(source))
    for loss in read.losses:
        note(str(loss))
    if format_ == "goal":
        text = _goal(read, size)
    else:
        writes_for = meant or (read.target if read.target.format == format_ else target_named(FORMATS[format_]))
        if writes_for.format != format_:
            raise typer.BadParameter(f"{writes_for.name} reads {writes_for.format}, not {format_}.")
        text = write_plan(read.plan, writes_for)
    given_path(output).write_text(text, encoding="utf-8")


def show(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A plan in any format.")],
    svg: Annotated[
        str | None, typer.Option("--svg", metavar="FILE", help="Also draw its rings and trees, a channel a panel.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Say what a plan is: collective, ranks, channels, instructions of a rank, and the shape of each channel.

    \b
    Example:
      busbw show allreduce.xml --svg allreduce.svg
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.collectives.exchange import read_plan  # noqa: PLC0415 - loads numpy
    from busbw.collectives.shapes import shapes_of  # noqa: PLC0415

    read = read_plan(given_path(file))
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
        if name not in ("file", "name", "collective", "ranks", "target"):
            page.line(f"  {name.replace('_', ' '):26}{'no limit' if value is None else value}")
    for one in shapes[:_SHOWN]:
        page.line(f"  channel {one.channel:<18}{one.name}, {len(one.edges)} links")
    if len(shapes) > _SHOWN:
        page.line(f"  and {len(shapes) - _SHOWN} channels more")


def _goal(read: PlanFile, size: str | None) -> str:
    from busbw.collectives.exchange.goal import write_goal  # noqa: PLC0415
    from busbw.units import parse_size  # noqa: PLC0415

    if size is None:
        raise typer.BadParameter("goal needs --bytes, the size of the call.")
    try:
        size_bytes = parse_size(size)
    except ValueError as error:
        raise typer.BadParameter(f"--bytes {size}: {error}.") from None
    lines, violations = write_goal(read.plan, size_bytes)
    if violations:
        raise InputError("\n".join(str(one) for one in violations))
    return "\n".join(lines) + "\n"


def _to_json(read: PlanFile, verdict: Verdict) -> dict[str, Any]:
    return {
        "file": read.path,
        "target": read.target.name,
        "collective": read.plan.collective,
        "ranks": read.plan.ranks,
        "legal": verdict.legal,
        "instructions": verdict.instructions,
        "same_bits": verdict.same_bits,
        "unchecked": list(verdict.unchecked),
        "violations": [violation.to_json() for violation in verdict.violations],
        "losses": [
            {"kind": loss.kind, "path": loss.path, "line": loss.line, "detail": loss.detail, "count": loss.count}
            for loss in read.losses
        ],
    }


def _print(read: PlanFile, verdict: Verdict) -> None:
    page = Page()
    for loss in read.losses:
        note(str(loss))
    what = f"{read.plan.collective} on {read.plan.ranks} ranks as {read.target.name} reads it"
    bits = ", same bits on all ranks" if verdict.same_bits else ""
    page.line(
        f"{read.path}: ",
        (f"legal{bits}" if verdict.legal else "wrong", "green" if verdict.legal else "red"),
        f": {what}, {verdict.instructions} instructions",
    )
    for reason in verdict.unchecked:
        page.line(f"  not checked: {reason}")
    for violation in verdict.violations[:_SHOWN]:
        page.prose(str(violation), "    ", "  ")
        for number, step in enumerate(violation.steps, 1):
            page.line(f"      {number:>2}  {step}")
    if len(verdict.violations) > _SHOWN:
        page.line(f"  and {len(verdict.violations) - _SHOWN} more; --json has them all")
