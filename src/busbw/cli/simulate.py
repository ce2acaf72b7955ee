"""`busbw simulate`: collectives and task graphs on a cluster, event by event."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from busbw.cli.console import Page, given_path, note, print_json
from busbw.cli.predictions import pairs_of, rate, sizes_of, time_us
from busbw.cli.simulate_points import (
    Teller,
    described,
    exposed,
    names_of,
    nodes_of,
    rows_of_points,
    run_points,
    say_notes,
)
from busbw.errors import InputError

if TYPE_CHECKING:
    from busbw.collectives import BoundSchedule
    from busbw.collectives.plan import Plan
    from busbw.hardware import Cluster
    from busbw.simulation import Conditions, Limits, Timeline

__all__ = ["simulate"]

SCHEMA = 1
"""Number of the JSON shapes of `busbw simulate --json`."""

_ONE_LEVEL = {
    "all_reduce": "ring_all_reduce", "all_gather": "ring_all_gather", "reduce_scatter": "ring_reduce_scatter",
    "broadcast": "binomial_broadcast", "reduce": "binomial_reduce", "all_to_all": "direct_all_to_all", "gather": "direct_gather",
    "scatter": "direct_scatter", "send_recv": "ring_send_recv", "barrier": "dissemination_barrier",
}  # fmt: skip
_TWO_LEVELS = {
    "all_reduce": "hierarchical_all_reduce", "all_gather": "hierarchical_all_gather", "reduce_scatter": "hierarchical_reduce_scatter",
    "broadcast": "hierarchical_broadcast", "reduce": "hierarchical_reduce",
}  # fmt: skip
_LARGE = {"all_reduce": "hierarchical_all_reduce_trees"}
_MOST_RING_NODES = 4096
"""Up to which nodes make a ring unless told otherwise. A guess: its steps grow with nodes, and NCCL, too, takes trees there."""
_SHARES_SHOWN = 6

simulate = typer.Typer(help="Simulate a collective or a task graph on a cluster, event by event.", no_args_is_help=True)

_ClusterOption = Annotated[
    str,
    typer.Option("--cluster", metavar="NAME|FILE", help="A node of `busbw hardware`, or a file that describes one."),
]
_Nodes = Annotated[
    int | None,
    typer.Option(
        "--nodes", metavar="N", min=1, help="Number of nodes (hosts); what the file says, or 1, if not given."
    ),
]
_SeveralNodes = Annotated[
    list[str] | None,
    typer.Option(
        "--nodes",
        metavar="N|FROM:TO:FACTOR",
        help="Numbers of nodes (hosts); what the file says, or 1, if not given; may be repeated.",
    ),
]
_WhatIf = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="FIGURE=VALUE", help="A figure set anew, such as nic.rate=800Gb/s; may be repeated."),
]
_Routing = Annotated[
    str | None,
    typer.Option("--routing", metavar="HOW", help="d-mod-k, ecmp, spray, adaptive; the cluster's own if not given."),
]
_FailLink = Annotated[
    list[str] | None,
    typer.Option(
        "--fail-link",
        metavar="LINK[@AT[+REROUTE]]",
        help='A cable that is down, such as "leaf0 -> spine1@1ms+5ms"; may be repeated.',
    ),
]
_Degrade = Annotated[
    list[str] | None,
    typer.Option("--degrade-link", metavar="LINK=PART", help="A cable at a part of its rate; may be repeated."),
]
_Straggler = Annotated[
    list[str] | None,
    typer.Option("--straggler", metavar="RANK=SPEED", help="A rank at a part of its speed; may be repeated."),
]
_Spread = Annotated[
    float,
    typer.Option("--speed-spread", metavar="SIGMA", min=0, help="Deviation of ranks' speeds, drawn from each seed."),
]
_Seeds = Annotated[
    int, typer.Option("--seeds", metavar="N", min=1, help="Runs with seeds 0 to N - 1, of noise and ECMP.")
]
_TimeLimit = Annotated[
    float | None, typer.Option("--time-limit", metavar="S", help="Seconds after which what is known is shown.")
]
_MemoryLimit = Annotated[
    str | None, typer.Option("--memory-limit", metavar="SIZE", help="Memory after which what is known is shown.")
]
_Perfetto = Annotated[
    Path | None,
    typer.Option("--perfetto", parser=given_path, metavar="FILE.json", help="Write the tasks for ui.perfetto.dev."),
]
_Report = Annotated[
    Path | None,
    typer.Option(
        "--report",
        parser=given_path,
        metavar="FILE.html",
        help="Write a page of the first point: path, links, ranks over time.",
    ),
]
_Store = Annotated[
    Path | None,
    typer.Option(
        "--store",
        parser=given_path,
        metavar="DIR",
        help="Keep each point as it ends; points that are kept are not run again.",
    ),
]
_Engine = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="WHERE",
        help="Where points run: here, local[:N], dask://HOST:PORT, ray://HOST:PORT, mpi; auto: here, then local.",
    ),
]
_Json = Annotated[bool, typer.Option("--json", help="Print as JSON.")]


@simulate.command()
def collective(
    *,
    kind: Annotated[
        str | None,
        typer.Argument(
            metavar="COLLECTIVE",
            help="all-reduce, all-gather, all-to-all, broadcast ...; --schedule's own if not given.",
        ),
    ] = None,
    cluster: _ClusterOption,
    nodes: _SeveralNodes = None,
    schedule: Annotated[
        Path | None,
        typer.Option(
            "--schedule",
            parser=given_path,
            metavar="FILE",
            help="A schedule, as `busbw design` writes, or a plan: MSCCL XML, MSCCL++, ours. Plans run with NCCL's slots and slices.",
        ),
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            "--algorithm", metavar="NAME", help="A schedule of the library; hierarchical, ring or direct if not given."
        ),
    ] = None,
    sizes: Annotated[
        list[str] | None,
        typer.Option("--bytes", metavar="FROM:TO:FACTOR|SIZE", help="Sizes, as of nccl-tests; may be repeated."),
    ] = None,
    routing: _Routing = None,
    fail_link: _FailLink = None,
    degrade_link: _Degrade = None,
    straggler: _Straggler = None,
    speed_spread: _Spread = 0.0,
    seeds: _Seeds = 1,
    what_if: _WhatIf = None,
    fold: Annotated[bool, typer.Option("--fold/--no-fold", help="One rank for all that symmetry makes equal.")] = True,
    time_limit: _TimeLimit = None,
    memory_limit: _MemoryLimit = None,
    perfetto: _Perfetto = None,
    report: _Report = None,
    store: _Store = None,
    engine: _Engine = "auto",
    as_json: _Json = False,
) -> int:
    """Simulate a collective: time, what the critical path is made of, and what each fault costs.

    Flows share links max-min fairly; copies and sums inside a GPU take no time. Times are of the links alone: start-up
    of kernels, protocols and NCCL's own rings are not in them (`busbw predict` has them; `busbw design` finds better ones).

    \b
    Examples:
      busbw simulate collective all-reduce --cluster dgx-h100 --nodes 16
      busbw simulate collective all-to-all --cluster dgx-h100 --nodes 4 --routing ecmp --seeds 5 --bytes 64MiB
      busbw simulate collective all-reduce --cluster dgx-h100 --nodes 16 --bytes 1GiB --straggler 5=0.8
      busbw simulate collective --schedule best.json --cluster dgx-h100 --nodes 4
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.simulation import MOST_POINTS, Point  # noqa: PLC0415

    if kind is None and schedule is None:
        raise typer.BadParameter("what is simulated? Give a COLLECTIVE, or --schedule FILE.json.")
    if schedule is not None and algorithm is not None:
        raise typer.BadParameter("--schedule is an algorithm already; leave --algorithm out.")
    wanted: list[tuple[Cluster, BoundSchedule | Plan]] = []
    for count in nodes_of(nodes) if nodes else [None]:
        found = _cluster(cluster, count, what_if)
        if found.gpus < 2:
            raise typer.BadParameter(f"{found.nodes} x {found.name} is one GPU, which has nobody to talk to.")
        made = _from_file(schedule, kind, found) if schedule is not None else _schedule(kind or "", algorithm, found)
        wanted.append((found, made))
    found, bound = wanted[0]
    kind, name = names_of(bound)
    if kind == "barrier":
        if sizes:
            raise typer.BadParameter("--bytes: a barrier moves no data.")
        sizes = ["0"]
    elif 0 in sizes_of(sizes or []):
        raise typer.BadParameter(
            "--bytes: 0 bytes: sizes are 1 to 2^60-1; NCCL returns at once from a call that moves nothing."
        )
    conditions = _conditions(fail_link, degrade_link, straggler, speed_spread)
    limits = _limits(time_limit, memory_limit)
    asked: dict[str, Any] = {
        "collective": kind, "algorithm": algorithm, "routing": routing, "fail_link": fail_link, "degrade_link": degrade_link,
        "straggler": straggler, "speed_spread": speed_spread, "fold": fold,
    }  # fmt: skip
    swept = sizes_of(sizes or ["1GiB"])
    if len(wanted) * len(swept) * seeds > MOST_POINTS:
        raise typer.BadParameter(
            f"{len(wanted) * len(swept) * seeds:,} points of nodes, sizes and seeds; {MOST_POINTS:,} are run at most."
        )
    told = [(on, what, {**asked, **described(what, on, schedule)}) for on, what in wanted]
    points = [
        Point(
            what, on, size, conditions, routing, seed, fold, limits, with_causes=seed == 0 and not conditions.none,
            given={**said, "size_bytes": size, "seed": seed},
        )
        for on, what, said in told
        for size in swept
        for seed in range(seeds)
    ]  # fmt: skip
    outcomes = run_points(points, engine, store)
    rows = rows_of_points(points, outcomes)
    if rows and (perfetto is not None or report is not None):
        _draw(
            points[0].run(), f"{kind.replace('_', '-')} on {found.nodes} x {found.name}, {name}", rows, perfetto, report
        )
    if as_json:
        head = {"schema": SCHEMA, "collective": kind, "algorithm": name, "cluster": found.name}
        several = len(wanted) > 1
        where = {"nodes": None if several else found.nodes, "ranks": None if several else bound.ranks}
        print_json({**head, **where, "rows": rows})
    else:
        at = ", ".join(str(on.nodes) for on, _ in wanted)
        ranks = ", ".join(str(each.ranks) for _, each in wanted)
        _print(kind.replace("_", "-"), f"  {name}, {at} x {found.name} = {ranks} ranks", rows)
    return 0 if len(outcomes) == len(points) and all(outcome.is_whole for outcome in outcomes.values()) else 2


@simulate.command()
def graph(
    *,
    file: Annotated[
        Path,
        typer.Argument(
            parser=given_path,
            metavar="FILE|FOLDER",
            help="A task graph: our JSON, GOAL text, a Chakra or PyTorch profiler trace, HLO text of XLA; a folder: a trace of each rank.",
        ),
    ],
    cluster: _ClusterOption,
    nodes: _Nodes = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks",
            metavar="N",
            min=1,
            help="Ranks of the job; those without a trace do as the first of their group.",
        ),
    ] = None,
    flops: Annotated[
        float | None,
        typer.Option("--flops", metavar="PER_S", help="Operations per second, for Chakra nodes that have no duration."),
    ] = None,
    routing: _Routing = None,
    degrade_link: _Degrade = None,
    straggler: _Straggler = None,
    what_if: _WhatIf = None,
    time_limit: _TimeLimit = None,
    memory_limit: _MemoryLimit = None,
    perfetto: _Perfetto = None,
    report: _Report = None,
    as_json: _Json = False,
) -> int:
    """Simulate a graph of computations, messages and collectives, such as a training step that was traced.

    Computing takes the time that the trace says; messages and collectives what this cluster's links make of them. Communication
    that computing does not hide is said for the rank that has most of it.

    \b
    Examples:
      busbw simulate graph trace.goal --cluster dgx-h100 --nodes 2
      busbw simulate graph chakra/ --cluster dgx-h100 --nodes 2
      busbw simulate graph rank0.pt.trace.json.gz --cluster dgx-h100 --set nic.rate=800Gb/s
    """  # noqa: D301 - the backspace keeps the lines of the examples apart
    from busbw.errors import Losses  # noqa: PLC0415
    from busbw.simulation import Point, outcome_of, read_graph  # noqa: PLC0415

    found = _cluster(cluster, nodes, what_if)
    losses = Losses(str(file))
    tasks = read_graph(file, losses, ranks=ranks, flops_per_s=flops)
    for line in map(str, losses):
        note(line)
    conditions = _conditions(None, degrade_link, straggler, 0.0)
    point = Point(tasks, found, None, conditions, routing, limits=_limits(time_limit, memory_limit))
    run = point.run(Teller())
    outcome = outcome_of(point, run)
    say_notes(outcome)
    (row,) = rows_of_points([point], {0: outcome})
    row["exposed"] = exposed(run)
    _draw(run, f"{file.name} on {found.nodes} x {found.name}", [row], perfetto, report, names=tasks.names)
    if as_json:
        head = {
            "schema": SCHEMA,
            "tasks": len(tasks),
            "ranks": tasks.ranks,
            "cluster": found.name,
            "nodes": found.nodes,
        }
        print_json(
            {
                **head,
                "rows": [row],
                "losses": [
                    {"kind": one.kind, "path": one.path, "line": one.line, "detail": one.detail, "count": one.count}
                    for one in losses
                ],
            }
        )
    else:
        _print("graph", f"  {len(tasks)} tasks of {tasks.ranks} ranks on {found.nodes} x {found.name}", [row])
    return 0 if outcome.is_whole else 2


def _cluster(name: str, nodes: int | None, what_if: list[str] | None) -> Cluster:
    from busbw.hardware import find_cluster  # noqa: PLC0415 - reads the catalogue

    found, losses = find_cluster(name, nodes, pairs_of("--set", what_if or [], "nic.rate=800Gb/s"))
    for line in map(str, losses):
        note(line)
    return found


def _from_file(path: Path, text: str | None, cluster: Cluster) -> BoundSchedule | Plan:
    """The schedule of a file with the cluster's sizes, or its plan; it must be for as many ranks as the cluster has GPUs."""
    from busbw.collectives import collective_named  # noqa: PLC0415
    from busbw.collectives.exchange import read_plan, read_schedule  # noqa: PLC0415

    try:
        schedule = read_schedule(path)
    except InputError:
        found = read_plan(path)
        for line in map(str, found.losses):
            note(line)
        plan = found.plan
        if text is not None and collective_named(text) != plan.collective:
            raise typer.BadParameter(
                f"{path} is a plan of {plan.collective.replace('_', '-')}, not of {text}."
            ) from None
        if plan.ranks != cluster.gpus:
            raise InputError(
                f"{path}: {plan.name} is for {plan.ranks} ranks; {cluster.nodes} x {cluster.name} has {cluster.gpus} GPUs"
            ) from None
        return plan
    if text is not None and collective_named(text) != schedule.kind:
        raise typer.BadParameter(f"{path} is a schedule of {schedule.kind.replace('_', '-')}, not of {text}.")
    fixed = dict(schedule.fixed)
    sizes = {axis: fixed[axis] for axis in schedule.axes if axis in fixed}
    if len(sizes) < len(schedule.axes):
        shape = {1: (cluster.gpus,), 2: (cluster.nodes, cluster.node.gpus)}.get(len(schedule.axes))
        if shape is None:
            raise typer.BadParameter(
                f"{path} leaves the axes {', '.join(schedule.axes)} open; a cluster has nodes and GPUs."
            )
        sizes = {**dict(zip(schedule.axes, shape, strict=True)), **sizes}
    try:
        bound = schedule.bind(**sizes)
    except (ValueError, IndexError) as error:
        raise InputError(f"{path}: {error}") from None
    if bound.ranks != cluster.gpus:
        raise InputError(
            f"{path}: {schedule.name} with {bound.sizes_text} is for {bound.ranks} ranks; {cluster.nodes} x {cluster.name} has {cluster.gpus} GPUs"
        )
    return bound


def _schedule(text: str, algorithm: str | None, cluster: Cluster) -> BoundSchedule:
    from busbw.collectives import COLLECTIVES, collective_named  # noqa: PLC0415
    from busbw.collectives.algorithms import LIBRARY  # noqa: PLC0415

    kind = collective_named(text)
    if kind is None or kind not in _ONE_LEVEL:
        known = [name.replace("_", "-") for name in COLLECTIVES if name in _ONE_LEVEL]
        nearest = difflib.get_close_matches(text.lower().replace("_", "-"), known, 1, 0.0)[0]
        raise typer.BadParameter(
            f"{text} is no collective that can be simulated; nearest: {nearest}. There is {', '.join(known)}."
        )
    two = cluster.nodes > 1 and cluster.node.gpus > 1
    if algorithm is None and two and cluster.nodes > _MOST_RING_NODES and kind in _LARGE:
        algorithm = _LARGE[kind]
        note(
            f"{cluster.nodes} nodes: trees between them, because a ring would take {2 * (cluster.nodes - 1):,} steps. "
            f"--algorithm {_TWO_LEVELS[kind].replace('_', '-')} takes it all the same."
        )
    name = (algorithm or (_TWO_LEVELS.get(kind) if two else None) or _ONE_LEVEL[kind]).replace("-", "_")
    usable = [each for each, make in LIBRARY.items() if make().kind == kind]
    found = {each.replace("-", "_"): each for each in usable}.get(name)
    if found is None:
        nearest = difflib.get_close_matches(name, usable, 1, 0.0)[0]
        raise typer.BadParameter(
            f"--algorithm {algorithm}: no schedule for {kind}; nearest: {nearest}. There is {', '.join(usable)}."
        )
    schedule = LIBRARY[found]()
    sizes = {1: (cluster.gpus,), 2: (cluster.nodes, cluster.node.gpus)}.get(len(schedule.axes))
    if sizes is None:
        raise typer.BadParameter(
            f"--algorithm {algorithm}: {found} has {len(schedule.axes)} axes; a cluster has nodes and GPUs."
        )
    try:
        return schedule.bind(*sizes)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None


def _seconds(text: str, option: str) -> float:
    from busbw.hardware.what_if import parse_quantity  # noqa: PLC0415

    try:
        return 0.0 if text.strip() == "0" else parse_quantity(text, "time")
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}.") from None


def _conditions(
    fail_link: list[str] | None, degrade_link: list[str] | None, straggler: list[str] | None, speed_spread: float
) -> Conditions:
    from busbw.simulation import Conditions, LinkFailure  # noqa: PLC0415

    failures = []
    for text in fail_link or []:
        link, at, when = text.partition("@")
        begin, plus, reroute = when.partition("+")
        if not at:
            failures.append(LinkFailure(link.strip()))
            continue
        after = _seconds(reroute, "--fail-link") if plus else None
        at_s = _seconds(begin, "--fail-link")
        try:
            failures.append(LinkFailure(link.strip(), at_s, after))
        except ValueError as error:
            raise typer.BadParameter(f"--fail-link {text}: {error}.") from None
    try:
        slow = {int(rank): float(part) for rank, part in pairs_of("--straggler", straggler or [], "5=0.8").items()}
    except ValueError as error:
        raise typer.BadParameter(f"--straggler: {error}. Write RANK=SPEED, such as 5=0.8.") from None
    for rank, speed in slow.items():
        if speed > 1:
            note(
                f"--straggler {rank}={speed:g}: rank {rank} is simulated faster than its own speed; a straggler has a part below 1"
            )
    degraded: dict[str | int, float] = {}
    for text in degrade_link or []:
        link, _, part = text.rpartition("=")
        try:
            degraded[link.strip()] = float(part)
        except ValueError:
            raise typer.BadParameter(
                f'--degrade-link {text}: write LINK=PART, such as "leaf0 -> spine2=0.5".'
            ) from None
    try:
        return Conditions(slow, degraded, tuple(failures), speed_spread=speed_spread)
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None


def _limits(time_s: float | None, memory: str | None) -> Limits:
    from busbw.simulation import Limits  # noqa: PLC0415
    from busbw.units import parse_size  # noqa: PLC0415

    if time_s is not None and not time_s > 0:
        raise typer.BadParameter(f"--time-limit {time_s:g}: write seconds above 0.")
    try:
        return Limits(time_s, parse_size(memory) if memory is not None else None)
    except ValueError as error:
        raise typer.BadParameter(f"--memory-limit {memory}: {error}.") from None


def _draw(
    run: Timeline,
    title: str,
    rows: list[dict[str, Any]],
    perfetto: Path | None,
    report: Path | None,
    *,
    names: Sequence[str] = (),
) -> None:
    """The files of a run that were asked for."""
    if perfetto is not None:
        from busbw.reports.perfetto import write_perfetto  # noqa: PLC0415

        note(f"{write_perfetto(run, perfetto, names)} tasks written to {perfetto}")
    if report is not None:
        from busbw.reports.simulated import write_simulation  # noqa: PLC0415 - takes a second

        write_simulation(report, run, title, rows, names)
        note(f"report: {report}")


def _print(what: str, where: str, rows: list[dict[str, Any]]) -> None:
    from busbw.units import format_bytes  # noqa: PLC0415

    page = Page()
    page.line((what, "bold"), where)
    page.line()
    if not rows:
        return
    many = any(row["seeds"] > 1 for row in rows)
    swept = len({row["nodes"] for row in rows}) > 1
    columns = [
        ("nodes", True),
        ("size", True),
        ("time us", True),
        ("p99 us", True),
        ("algbw GB/s", True),
        ("busbw GB/s", True),
        ("most of it", False),
    ]
    page.table(
        [column for column in columns if {"p99 us": many, "nodes": swept}.get(column[0], True)],
        (
            [
                *([str(row["nodes"])] if swept else []),
                format_bytes(row["size_bytes"]) if row["size_bytes"] is not None else "-",
                time_us(row["time_s"]),
                *([time_us(row["p99_s"])] if many else []),
                rate(row["algbw_bytes_per_s"]) if "algbw_bytes_per_s" in row else "-",
                rate(row["busbw_bytes_per_s"]) if "busbw_bytes_per_s" in row else "-",
                next(iter(row["critical_path_s"]), "-"),
            ]
            for row in rows
        ),
    )
    last = rows[-1]
    if last["critical_path_s"]:
        page.line()
        page.line(("critical path of the last row", "bold"))
        shares = list(last["critical_path_s"].items())
        shown = [(name, part) for name, part in shares[:_SHARES_SHOWN]]
        rest = sum(part for _, part in shares[_SHARES_SHOWN:])
        if rest:
            shown.append((f"{len(shares) - _SHARES_SHOWN} more", rest))
        page.table(
            [("us", True), ("share", True), ("on", False)],
            ([time_us(part), f"{part / last['time_s']:.1%}", name] for name, part in shown),
        )
    if last.get("exposed"):
        told = last["exposed"]
        page.line()
        page.line(
            ("communication", "bold"),
            f"  {told['name']}: {time_us(told['communicating_s'])} us, of which {time_us(told['exposed_s'])} us while nothing computes; "
            f"it computes {time_us(told['computing_s'])} us",
        )
    if last["causes"]:
        page.line()
        page.line(("without each fault the last row takes less by", "bold"))
        page.table(
            [("us", True), ("fault", False)], ([time_us(cause["saves_s"]), cause["name"]] for cause in last["causes"])
        )
