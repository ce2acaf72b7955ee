"""Points of `busbw simulate`: which, run where, kept in which store; and the rows they make."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from busbw.cli.console import PointsDone, note

if TYPE_CHECKING:
    from busbw.collectives import BoundSchedule
    from busbw.collectives.plan import Plan
    from busbw.hardware import Cluster
    from busbw.simulation import Outcome, Point, Progress, Timeline

__all__ = ["Teller", "described", "exposed", "names_of", "nodes_of", "rows_of_points", "run_points", "say_notes"]

_MOST_NODES = 1 << 24
_MOST_COUNTS = 1000


def nodes_of(texts: Sequence[str]) -> list[int]:
    """Numbers of nodes, as `--nodes` names them: N, A,B, FROM:TO:FACTOR. Raises BadParameter."""
    found: list[int] = []
    for word in (word for text in texts for word in text.split(",")):
        try:
            bounds = [int(part) for part in word.split(":")[:2]]
            factor = float(word.split(":")[2]) if word.count(":") > 1 else 2.0
        except ValueError:
            raise typer.BadParameter(f"--nodes {word}: write a number, or FROM:TO:FACTOR such as 2:64:2.") from None
        first, last = bounds[0], bounds[-1]
        if word.count(":") > 2 or not 1 <= first <= last <= _MOST_NODES or not factor >= 1.01:
            raise typer.BadParameter(
                f"--nodes {word}: 1 to {_MOST_NODES:,}, or FROM:TO:FACTOR with a factor above 1, such as 2:64:2."
            )
        size = float(first)
        while round(size) <= last and len(found) <= _MOST_COUNTS:
            if round(size) not in found:
                found.append(round(size))
            size *= factor
    if len(found) > _MOST_COUNTS:
        raise typer.BadParameter(f"--nodes: more than {_MOST_COUNTS} numbers. Take a larger factor.")
    return found


def names_of(what: BoundSchedule | Plan) -> tuple[str, str]:
    """The collective and the algorithm."""
    from busbw.collectives import BoundSchedule  # noqa: PLC0415

    return (what.schedule.kind, what.schedule.name) if isinstance(what, BoundSchedule) else (what.collective, what.name)


def described(what: BoundSchedule | Plan, cluster: Cluster, file: Path | None) -> dict[str, Any]:
    """What else than the words on the command line tells a point from others: the version, the schedule and the cluster as they are."""
    from busbw import __version__  # noqa: PLC0415
    from busbw.collectives import BoundSchedule  # noqa: PLC0415
    from busbw.collectives.schedule_json import to_json  # noqa: PLC0415
    from busbw.observations import sha256_of  # noqa: PLC0415

    def digest(text: str) -> str:
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    if file is not None:
        schedule = sha256_of(file)
    else:
        schedule = digest(to_json(what.schedule)) if isinstance(what, BoundSchedule) else digest(repr(what.header()))
    return {
        "version": __version__,
        "schedule": schedule,
        "ranks": what.ranks,
        "cluster": cluster.name,
        "nodes": cluster.nodes,
        "hardware": digest(repr((cluster.node, cluster.plan, cluster.routing))),
    }


_TOLD_EVERY_S = 5.0


class Teller:
    """Says how far a long run is, every few seconds."""

    def __init__(self) -> None:
        self.next_s = _TOLD_EVERY_S

    def __call__(self, at: Progress) -> None:
        """Says it, if it is time to."""
        if at.took_s < self.next_s:
            return
        self.next_s = at.took_s + _TOLD_EVERY_S
        if at.stage == "running":
            note(f"{at.took_s:.0f} s: {at.simulated_s * 1e6:.1f} us simulated, {at.messages:,} messages")
        else:
            note(f"{at.took_s:.0f} s: {at.stage}")


def run_points(points: Sequence[Point], engine: str, store: Path | None) -> dict[int, Outcome]:
    """Outcomes by place, of the points that came to an end before Ctrl-C. Says on stderr what was not run, and what was stopped."""
    from busbw.simulation import Kept, sweep  # noqa: PLC0415 - loads the store

    outcomes: dict[int, Outcome] = {}
    kept = Kept(store) if store is not None else None
    with PointsDone(len(points)) as bar, contextlib.suppress(KeyboardInterrupt):
        for place, outcome in sweep(points, executor=engine, kept=kept, done=lambda _: bar(1), progress=Teller()):
            outcomes[place] = outcome
    if kept is not None:
        again = f", {kept.found} of them already there" if kept.found else ""
        note(f"{sum(outcome.is_whole for outcome in outcomes.values())} points kept in {store}{again}")
    for place, outcome in sorted(outcomes.items()):
        say_notes(outcome, f" of point {place + 1}" if len(points) > 1 else "")
    if len(outcomes) < len(points):
        more = "; the same command goes on from there" if store is not None else "; with --store a sweep can go on"
        note(f"interrupted: {len(outcomes)} of {len(points)} points are done{more}")
    sys.stderr.flush()
    return outcomes


def say_notes(outcome: Outcome, of: str = "") -> None:
    """On stderr why a run was stopped, and what could not be told of it."""
    figures = outcome.figures
    if not outcome.is_whole:
        note(
            f"{figures['stopped']}: {figures['time_s'] * 1e6:.1f} us were simulated, {figures['messages']} messages; what follows "
            f"is what is known{of}"
        )
    for text in figures["notes"]:
        note(text)


def exposed(run: Timeline) -> dict[str, Any] | None:
    """Of the rank with most communication that computing does not hide, how much; None where it is not known, or nothing computes."""
    from busbw.errors import InputError  # noqa: PLC0415
    from busbw.simulation import exposure  # noqa: PLC0415

    try:
        found = exposure(run)
    except InputError:
        return None
    if not len(found.rank) or not found.computing_s.any():
        return None
    at = int(found.exposed_s.argmax())
    rank = int(found.rank[at])
    parts = {name: float(getattr(found, name)[at]) for name in ("computing_s", "communicating_s", "exposed_s")}
    return {"rank": rank, "name": run.network.rank_name(rank), **parts}


def rows_of_points(points: Sequence[Point], outcomes: Mapping[int, Outcome]) -> list[dict[str, Any]]:
    """A row for each number of nodes and size of which some point is done: its seeds together. Shares and causes are those of the first."""
    import numpy as np  # noqa: PLC0415

    from busbw.collectives import COLLECTIVES, bus_factor  # noqa: PLC0415
    from busbw.simulation import TaskGraph, TaskProgram  # noqa: PLC0415

    groups: dict[tuple[int, int | None], list[int]] = defaultdict(list)
    for place, point in enumerate(points):
        groups[point.cluster.nodes, point.size_bytes].append(place)
    rows = []
    for (nodes, size), places in groups.items():
        found = [outcomes[place].figures for place in places if place in outcomes]
        if not found:
            continue
        point, first = points[places[0]], found[0]
        times = np.array([one["time_s"] for one in found])
        time_s = float(np.median(times))
        row: dict[str, Any] = {"size_bytes": size, "nodes": nodes, "ranks": point.what.ranks, "time_s": time_s}
        row |= {"p99_s": float(np.quantile(times, 0.99)), "seeds": len(found), "stopped": first["stopped"]}
        if not isinstance(point.what, TaskGraph | TaskProgram) and size is not None and time_s > 0:
            kind, _ = names_of(point.what)
            if kind != "barrier":
                row["algbw_bytes_per_s"] = size / time_s
            if kind != "barrier" and kind in COLLECTIVES:
                row["busbw_bytes_per_s"] = size / time_s * bus_factor(kind, point.what.ranks)
        row |= {name: first[name] for name in ("messages", "ranks_alike", "critical_path_s", "causes")}
        rows.append(row)
    return rows
