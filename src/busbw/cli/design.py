"""`busbw design`: the best schedules for a collective on a cluster, beside what no schedule can beat."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, given_path, note, print_json
from busbw.cli.plans import SCHEDULE, meant_by, write_as
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
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", metavar="N", help="Number of nodes (hosts); what the file says, or 1, if not given."),
    ] = None,
    size: Annotated[str, typer.Option("--bytes", metavar="SIZE", help="Size, as of nccl-tests.")] = "256MiB",
    objective: Annotated[
        str, typer.Option("--objective", metavar="WHAT", help="latency, throughput, or at-size: at --bytes.")
    ] = "at-size",
    root: Annotated[
        int | None,
        typer.Option("--root", metavar="RANK", help="Of broadcast, reduce, gather, scatter; 0 if not given."),
    ] = None,
    what_if: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="FIGURE=VALUE", help="A figure set anew, such as nic.rate=800Gb/s; may be repeated."
        ),
    ] = None,
    fail_link: Annotated[
        list[str] | None,
        typer.Option(
            "--fail-link",
            metavar="LINK",
            help='A cable that is down, such as "leaf0 -> spine1" or "nic9 -> leaf1"; may be repeated.',
        ),
    ] = None,
    switches: Annotated[
        str,
        typer.Option(
            "--switches",
            metavar="WHICH",
            help="Which switches add: nvls (where GPUs have it), sharp (the fabric's, too), none.",
        ),
    ] = "nvls",
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="S", min=0, help="Seconds to simulate candidates for; 0: none is.")
    ] = 60.0,
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
    """Find the best schedules for a collective, and how far they are from what none can beat.

    Candidates are the library's algorithms, what NCCL can do, and schedules made for this cluster: trees and ways at the bound of its links.
    They are ranked by time: what NCCL does by `busbw predict`, others by simulating their links, with the same start-ups and shares of links.

    --objective latency ranks at 8 bytes, throughput at 1 TiB, where start-ups count for nothing, at-size at --bytes.

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
    from busbw.collectives.collective import ROOTED  # noqa: PLC0415
    from busbw.hardware import find_cluster  # noqa: PLC0415 - reads the catalogue
    from busbw.hardware.fabrics.torus import Torus  # noqa: PLC0415
    from busbw.synthesis import DESIGNED, MOST_GPUS, OBJECTIVES, SWITCHES, message_alpha_s, ranked_on  # noqa: PLC0415
    from busbw.synthesis import design as designed  # noqa: PLC0415

    name = collective_named(collective)
    if name not in DESIGNED or name is None:
        known = ", ".join(word.replace("_", "-") for word in DESIGNED)
        raise typer.BadParameter(f"{collective} is not designed here; these are: {known}.")
    if root is not None and name not in ROOTED:
        raise typer.BadParameter(f"--root {root}: {collective} has no root; leave it out.")
    root = root or 0
    if objective not in OBJECTIVES:
        raise typer.BadParameter(f"--objective {objective}: there is {', '.join(OBJECTIVES)}.")
    if switches not in SWITCHES:
        raise typer.BadParameter(f"--switches {switches}: there is {', '.join(SWITCHES)}.")
    sizes = sizes_of([size])
    if len(sizes) != 1:
        raise typer.BadParameter(f"--bytes {size}: one size, such as 256MiB.")
    if nodes is not None and nodes < 1:
        raise typer.BadParameter(f"--nodes {nodes}: a cluster has at least one node.")
    found, losses = find_cluster(cluster, nodes, pairs_of("--set", what_if or [], "nic.rate=800Gb/s"))
    for line in map(str, losses):
        note(line)
    nodes = found.nodes
    if out is None and (to or target or in_place):
        raise typer.BadParameter("--to, --target and --in-place say how --out is written; give --out FILE.")
    if out is not None:
        _check_out(out, to, target, in_place)
    if found.gpus < 2:
        raise typer.BadParameter(f"{nodes} x {found.name} is one GPU, which has nobody to talk to.")
    if found.gpus > MOST_GPUS:
        raise typer.BadParameter(
            f"{nodes} x {found.name} are {found.gpus:,} GPUs; schedules are designed for up to {MOST_GPUS:,}. `busbw predict` tells what NCCL does at any number."
        )
    if not 0 <= root < found.gpus:
        raise typer.BadParameter(f"--root {root}: ranks are 0 to {found.gpus - 1}.")
    try:
        graph = CapacityGraph.of_cluster(found)
        if fail_link:
            graph = graph.without_cables(found, fail_link)
    except ValueError as error:
        raise typer.BadParameter(f"{nodes} x {found.name}: {error}.") from None
    say = progress_note(found.gpus)
    domain = found.gpus_per_domain if found.gpus % found.gpus_per_domain == 0 else found.node.gpus
    torus = found.fabric.shape if isinstance(found.fabric, Torus) and found.gpus == found.nodes else ()
    try:
        result = designed(
            graph,
            name,
            sizes[0],
            alpha_s=message_alpha_s(found),
            near_alpha_s=message_alpha_s(found, near=True),
            objective=objective,
            gpus_per_node=domain,
            torus=torus,
            root=root,
            progress=say,
        )
    except ValueError as error:
        raise typer.BadParameter(f"{nodes} x {found.name}: {error}.") from None
    result = ranked_on(
        found, graph, result, switches=switches, failed=fail_link or (), limit_s=time_limit, progress=say
    )
    if not result.candidates:
        raise typer.BadParameter(f"{result.ranks} ranks: {result.left_out[0][0]}: {result.left_out[0][1]}.")
    if result.best is None and (out is not None or draw is not None):
        raise typer.BadParameter(f"{result.ranks} ranks: no schedule is written out here for so many.")
    best = result.best
    if out is not None:
        if say is not None:
            say(f"writing {out}: every rank is written, read back and verified")
        best, what, text = _fastest_written(result, out, to, target, size, found.gpus_per_domain, in_place)
        out.write_text(text, encoding="utf-8")
        note(f"{what}, {best.name}: {out}")
    if draw is not None and best is not None:
        from busbw.reports import schedule_svg, standalone  # noqa: PLC0415 - takes a second

        title = f"{name.replace('_', '-')} on {nodes} x {found.name}: {best.name}"
        draw.write_text(standalone(schedule_svg(best, title)), encoding="utf-8")
        note(f"drawing: {draw}")
    if as_json:
        print_json(_as_json(result, found.name, nodes, objective))
    else:
        _print(result, found.name, nodes, objective)


_WRITTEN_AT_MOST = 12
"""Candidates tried for a target that cannot say the fastest."""
_MANY_RANKS = 64
"""Ranks from which progress is said; below, an answer takes a second or two."""


def progress_note(ranks: int) -> Callable[[str], None] | None:
    """What is under way, on stderr, where it may take a while."""
    return note if ranks >= _MANY_RANKS else None


def _fastest_written(  # noqa: PLR0917 - an option each
    result: Design, out: Path, to: str | None, target: str | None, size: str, per_node: int, in_place: bool
) -> tuple[Candidate, str, str]:
    """The fastest candidate that has a schedule and that the target can say; what the file holds; its text."""
    first: InputError | None = None
    for candidate in result.candidates[:_WRITTEN_AT_MOST]:
        if candidate.schedule is None:
            note(f"{candidate.name} is what NCCL does: no schedule to write")
            continue
        try:
            return (candidate, *_written(candidate, out, to, target, size, per_node, in_place))
        except InputError as error:
            first = first or error
            note(f"{candidate.name} is not written: {' '.join(map(str.strip, str(error).splitlines()[:2]))}")
    raise first or InputError(f"{out}: none of the fastest candidates has a schedule to write.")


def _is_schedule(out: Path, to: str | None, target: str | None) -> bool:
    """Whether the schedule itself is written, no plan of it."""
    return to == SCHEDULE or (to is None and target is None and out.suffix == ".json")


def _check_out(out: Path, to: str | None, target: str | None, in_place: bool) -> None:
    """Raises BadParameter for what --out can't be written as: before all is worked out."""
    if not _is_schedule(out, to, target):
        meant_by(str(out), to, target, (SCHEDULE,))
    elif target is not None or in_place:
        option = "--in-place" if target is None else f"--target {target}"
        raise typer.BadParameter(f"{option}: {out} is a schedule, which any plan is made of. Give --to, for a plan.")


def _written(  # noqa: PLR0917 - an option each
    best: Candidate, out: Path, to: str | None, target: str | None, size: str, per_node: int, in_place: bool
) -> tuple[str, str]:
    """What the file holds, and its text: the schedule with its sizes fixed, or a plan of it."""
    from busbw.collectives.exchange import plan_file_of  # noqa: PLC0415 - loads numpy
    from busbw.collectives.schedule_json import to_json  # noqa: PLC0415

    bound = best.bind()
    if _is_schedule(out, to, target):
        return "schedule", to_json(replace(bound.schedule, fixed=bound.sizes, params=bound.params)) + "\n"
    file = plan_file_of(bound, bound.schedule.name, in_place=in_place)
    return "plan", write_as(file, str(out), to, target, size, per_node)


def _print(result: Design, cluster: str, nodes: int, objective: str) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page = Page()
    what = format_bytes(result.size_bytes) if objective == "at-size" else objective
    page.line((result.collective.replace("_", "-"), "bold"), f"  {what}  {nodes} x {cluster} = {result.ranks} ranks")
    page.line()
    bounds = [("bound  ", result.bound)]
    if result.switches is not None:
        bounds.append(("       ", result.switches))
    for head, bound in bounds:
        switches = (
            "" if result.switches is None else "without sums in switches: " if bound is result.bound else "with them: "
        )
        if objective == "throughput":
            page.line(f"{head}{_rate(result.size_bytes / float(bound.time_s))} GB/s {switches}{bound.because}")
        else:
            page.line(f"{head}{time_us(float(bound.time_s))} us {switches}{bound.because}")
    if objective != "throughput":
        a_step = result.latency_s if result.latency_s is not None else result.alpha_s
        steps = result.least_steps
        page.line(
            f"       {time_us(steps * a_step)} us {steps} step{'s' * (steps != 1)} of {time_us(a_step)} us on the links"
        )
    page.line()
    columns = [
        ("schedule", False), ("from", False), ("steps", True), ("slices", True), ("channels", True), ("peers", True),
        ("time us", True), ("algbw GB/s", True), ("by", False), ("links us", True), ("over the bound", True),
    ]  # fmt: skip
    page.table(columns, (_row(result, candidate) for candidate in result.candidates[:_SHOWN]))
    hidden = len(result.candidates) - _SHOWN
    if hidden > 0:
        page.line()
        page.line(f"{hidden} slower not shown; --json has all.")
    together: dict[str, list[str]] = {}
    for name, reason in result.left_out:
        together.setdefault(reason, []).append(name)
    for reason, names in together.items():
        note(f"left out: {', '.join(names)}: {reason}")
    for said in result.notes:
        note(said)


def _row(result: Design, candidate: Candidate) -> list[str]:
    return [
        candidate.name,
        candidate.origin,
        str(candidate.steps),
        str(candidate.parts),
        str(candidate.channels or "-"),
        str(candidate.peers or "-"),
        time_us(candidate.time_s),
        _rate(result.size_bytes / candidate.time_s),
        candidate.timed_by,
        "-" if candidate.links_s is None else time_us(candidate.links_s),
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
            "switches_s": None if result.switches is None else result.switches_bound_s,
            "switches_because": None if result.switches is None else result.switches.because,
        },
        "candidates": [
            {
                "name": candidate.name,
                "origin": candidate.origin,
                "steps": candidate.steps,
                "parts": candidate.parts,
                "peers": candidate.peers,
                "channels": candidate.channels or None,
                "time_s": candidate.time_s,
                "timed_by": candidate.timed_by,
                "links_s": candidate.links_s,
                "in_network": candidate.in_network,
                "over_bound": result.gap(candidate),
                "trees_per_root": candidate.forest.trees_per_root if candidate.forest is not None else None,
                "depth": candidate.forest.depth if candidate.forest is not None else None,
            }
            for candidate in result.candidates
        ],
        "left_out": [{"name": name, "reason": reason} for name, reason in result.left_out],
        "notes": list(result.notes),
    }
