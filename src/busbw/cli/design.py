"""`busbw design`: the best schedules for a collective on a cluster, beside what no schedule can beat."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, given_path, note, print_json
from busbw.cli.plans import SCHEDULE, write_as
from busbw.cli.predictions import pairs_of, sizes_of, three, time_us
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.synthesis import Candidate, Design

__all__ = ["design"]

SCHEMA = 1
"""Number of the JSON shape of `busbw design --json`."""
_SHOWN = 8
"""Candidates in the table; JSON has all."""


def design(  # noqa: PLR0917 - an option each
    collective: Annotated[
        str, typer.Argument(metavar="COLLECTIVE", help="all-reduce, all-gather, all-to-all, broadcast ...")
    ],
    cluster: Annotated[
        str,
        typer.Option(
            "--cluster", metavar="NAME|FILE", help="A node of `busbw hardware`, or a file that describes one."
        ),
    ],
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Number of nodes (hosts).")] = 1,
    size: Annotated[str, typer.Option("--bytes", metavar="SIZE", help="Size, as of nccl-tests.")] = "256MiB",
    objective: Annotated[
        str, typer.Option("--objective", metavar="WHAT", help="latency, throughput, or at-size: at --bytes.")
    ] = "at-size",
    root: Annotated[int, typer.Option("--root", metavar="RANK", help="Of broadcast, reduce, gather, scatter.")] = 0,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIGURE=VALUE", help="A figure set anew, such as nic.rate=800Gb/s; may be repeated."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=given_path,
            metavar="FILE",
            help="Write the best schedule; by FILE's ending or --to, as a plan.",
        ),
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="FORMAT", help="schedule-json, msccl-xml, mscclpp-json, busbw-json or goal, of --out."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", metavar="NAME", help="The runtime to write --out for, such as msccl.")
    ] = None,
    in_place: Annotated[
        bool, typer.Option("--in-place", help="--out as a plan with one buffer for input and output, as NCCL has it.")
    ] = False,
    draw: Annotated[
        Path | None,
        typer.Option("--draw", parser=given_path, metavar="FILE.svg", help="Draw the best schedule's tree or step."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print as JSON.")] = False,
) -> None:
    """Find the best schedules for a collective, and how far they are from what none can beat whose switches neither add nor copy.

    Candidates are the library's algorithms and schedules made for this cluster: trees and ways at the bound of its links.
    They are ranked by a model of steps and busiest links; it knows neither protocols nor NCCL's limits.

    --out writes the best as a schedule if FILE ends in .json, bound to this cluster; else as `busbw convert` would: what the
    target can't say is named.

    \b
    Examples:
      busbw design all-reduce --cluster dgx-h100 --nodes 4
      busbw design all-gather --cluster dgx-h100 --nodes 16 --objective throughput --out best.json --draw best.svg
      busbw design all-reduce --cluster dgx-a100 --bytes 64KiB
      busbw design all-gather --cluster dgx-h100 --out best.xml --target msccl
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.collectives import collective_named  # noqa: PLC0415 - loads numpy
    from busbw.collectives.bounds import CapacityGraph  # noqa: PLC0415
    from busbw.hardware import find_cluster  # noqa: PLC0415 - reads the catalogue
    from busbw.synthesis import DESIGNED, OBJECTIVES, message_alpha_s  # noqa: PLC0415
    from busbw.synthesis import design as designed  # noqa: PLC0415

    name = collective_named(collective)
    if name not in DESIGNED or name is None:
        known = ", ".join(word.replace("_", "-") for word in DESIGNED)
        raise typer.BadParameter(f"{collective} is not designed here; these are: {known}.")
    if objective not in OBJECTIVES:
        raise typer.BadParameter(f"--objective {objective}: there is {', '.join(OBJECTIVES)}.")
    sizes = sizes_of([size])
    if len(sizes) != 1:
        raise typer.BadParameter(f"--bytes {size}: one size, such as 256MiB.")
    if nodes < 1:
        raise typer.BadParameter(f"--nodes {nodes}: a cluster has at least one node.")
    found, losses = find_cluster(cluster, nodes, pairs_of("--set", what_if or [], "nic.rate=800Gb/s"))
    for line in map(str, losses):
        note(line)
    if found.gpus < 2:
        raise typer.BadParameter(f"{nodes} x {found.name} is one GPU, which has nobody to talk to.")
    if not 0 <= root < found.gpus:
        raise typer.BadParameter(f"--root {root}: ranks are 0 to {found.gpus - 1}.")
    try:
        graph = CapacityGraph.of_cluster(found)
    except ValueError as error:
        raise typer.BadParameter(f"{nodes} x {found.name}: {error}.") from None
    result = designed(
        graph,
        name,
        sizes[0],
        alpha_s=message_alpha_s(found),
        objective=objective,
        gpus_per_node=found.gpus_per_domain,
        root=root,
    )
    if not result.candidates:
        raise typer.BadParameter(f"{result.ranks} ranks: {result.left_out[0][0]}: {result.left_out[0][1]}.")
    best = result.candidates[0]
    if out is None and (to or target or in_place):
        raise typer.BadParameter("--to, --target and --in-place say how --out is written; give --out FILE.")
    if out is not None:
        best, what, text = _written(result, out, to, target, size, found.gpus_per_domain, in_place)
        out.write_text(text, encoding="utf-8")
        note(f"{what}: {out}")
    if draw is not None:
        from busbw.reports import schedule_svg, standalone  # noqa: PLC0415 - takes a second

        title = f"{name.replace('_', '-')} on {nodes} x {found.name}: {best.name}"
        draw.write_text(standalone(schedule_svg(best, title)), encoding="utf-8")
        note(f"drawing: {draw}")
    if as_json:
        print_json(_as_json(result, found.name, nodes, objective))
    else:
        _print(result, found.name, nodes, objective)


def _written(  # noqa: PLR0917 - an option each
    result: Design, out: Path, to: str | None, target: str | None, size: str, per_node: int, in_place: bool
) -> tuple[Candidate, str, str]:
    """The best schedule that the file can hold, what the file holds, and its text: the schedule with its sizes fixed, or a plan of it."""
    from busbw.collectives.exchange import plan_file_of  # noqa: PLC0415 - loads numpy
    from busbw.collectives.schedule_json import to_json  # noqa: PLC0415

    best = result.candidates[0]
    bound = best.bind()
    if to == SCHEDULE or (to is None and target is None and out.suffix == ".json"):
        return best, "schedule", to_json(replace(bound.schedule, fixed=bound.sizes, params=bound.params)) + "\n"
    first: InputError | None = None
    for candidate in result.candidates[:_SHOWN]:
        bound = candidate.bind()
        try:
            file = plan_file_of(bound, bound.schedule.name, in_place=in_place)
            text = write_as(file, str(out), to, target, size, per_node)
        except InputError as error:
            note(f"{candidate.name} is not written: {_short(error)}")
            first = first or error
            continue
        if candidate is not best:
            note(f"{candidate.name} is written: {candidate.time_s / best.time_s:.2f} times as long as {best.name}")
        return candidate, "plan", text
    raise first or InputError(f"{out}: no candidate can be written")


def _short(error: InputError) -> str:
    """The first two lines of an error."""
    return " ".join(line.strip() for line in str(error).splitlines()[:2])


def _print(result: Design, cluster: str, nodes: int, objective: str) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page = Page()
    what = format_bytes(result.size_bytes) if objective == "at-size" else objective
    page.line((result.collective.replace("_", "-"), "bold"), f"  {what}  {nodes} x {cluster} = {result.ranks} ranks")
    page.line()
    if objective == "throughput":
        page.line(f"bound  {_rate(result.size_bytes / result.bound_s)} GB/s: {result.bound.because}")
    else:
        rates, steps = float(result.bound.time_s), result.least_steps * result.alpha_s
        page.line(f"bound  {time_us(rates)} us: {result.bound.because}")
        page.line(
            f"       {time_us(steps)} us: {result.least_steps} step{'s' * (result.least_steps != 1)} of {time_us(result.alpha_s)} us"
        )
    page.line()
    columns = [
        ("schedule", False), ("from", False), ("steps", True), ("slices", True), ("peers", True),
        *((("algbw GB/s", True),) if objective == "throughput" else (("time us", True), ("algbw GB/s", True))),
        ("over the bound", True),
    ]  # fmt: skip
    page.table(columns, (_row(result, candidate, objective) for candidate in result.candidates[:_SHOWN]))
    hidden = len(result.candidates) - _SHOWN
    if hidden > 0:
        page.line()
        page.line(f"{hidden} slower not shown; --json has all.")
    for name, reason in result.left_out:
        note(f"left out: {name}: {reason}")


def _row(result: Design, candidate: Candidate, objective: str) -> list[str]:
    rate = _rate(result.size_bytes / candidate.time_s)
    return [
        candidate.name,
        candidate.origin,
        str(candidate.steps),
        str(candidate.parts),
        str(candidate.peers),
        *([rate] if objective == "throughput" else [time_us(candidate.time_s), rate]),
        f"{result.gap(candidate):.1%}",
    ]


def _rate(bytes_per_s: float) -> str:
    return three(bytes_per_s / 1e9)


def _as_json(result: Design, cluster: str, nodes: int, objective: str) -> dict[str, Any]:
    return {
        "schema": SCHEMA,
        "collective": result.collective,
        "cluster": cluster,
        "nodes": nodes,
        "ranks": result.ranks,
        "objective": objective,
        "size_bytes": result.size_bytes,
        "alpha_s": result.alpha_s,
        "bound": {
            "time_s": result.bound_s,
            "rates_s": float(result.bound.time_s),
            "least_steps": result.least_steps,
            "because": result.bound.because,
            "is_attained": result.bound.is_attained,
        },
        "candidates": [
            {
                "name": candidate.name,
                "origin": candidate.origin,
                "steps": candidate.steps,
                "parts": candidate.parts,
                "peers": candidate.peers,
                "time_s": candidate.time_s,
                "over_bound": result.gap(candidate),
                "trees_per_root": candidate.forest.trees_per_root if candidate.forest is not None else None,
                "depth": candidate.forest.depth if candidate.forest is not None else None,
            }
            for candidate in result.candidates
        ],
        "left_out": [{"name": name, "reason": reason} for name, reason in result.left_out],
    }
