"""Many simulations: run anywhere, each kept as it ends, those that are kept not run again.

A point that is kept is a run of a store: one file of rows (`busbw.observations.rows_file`), named after what was asked. The store publishes
it by a rename, so a sweep that is killed leaves whole points, and the next one begins with them.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import platform
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Executor, Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from busbw import __version__
from busbw.collectives.plan import Plan
from busbw.collectives.schedule import BoundSchedule
from busbw.errors import InputError, Loss
from busbw.hardware.cluster import Cluster
from busbw.observations import Artefact, Rows, rows_lines
from busbw.observations.store import Store
from busbw.readers.rows_file import READER
from busbw.simulation.analysis import critical_path
from busbw.simulation.causes import causes
from busbw.simulation.conditions import Conditions
from busbw.simulation.engines import engine
from busbw.simulation.graph import TaskGraph
from busbw.simulation.limits import Limits, Progress
from busbw.simulation.observed import observations
from busbw.simulation.program import TaskProgram
from busbw.simulation.simulate import simulate
from busbw.simulation.timeline import Timeline

__all__ = ["MOST_POINTS", "Kept", "Outcome", "Point", "outcome_of", "sweep"]

MOST_POINTS = 100_000
"""Of one sweep: a guess at what a folder of runs bears."""
_ALONE_S = 1.0
"""How long a sweep runs in this process before it asks for more: starting processes takes about as long."""
_AHEAD = 4
"""Points given to an executor for each that can run: a sweep is stopped soon, and does not hold all of its points at once."""
INTERRUPTED = "interrupted"
"""What `simulate` says of a run that Ctrl-C ended."""
_PREFIX = "simulate/"
"""Of the paths of points in a store."""


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation, whole: it can be sent to another machine."""

    what: BoundSchedule | Plan | TaskProgram | TaskGraph
    cluster: Cluster
    size_bytes: int | None = None
    conditions: Conditions = field(default_factory=Conditions)
    routing: str | None = None
    seed: int = 0
    """Of noise and of ECMP."""
    fold: bool = True
    limits: Limits = field(default_factory=Limits)
    with_causes: bool = False
    """Whether each condition's cost is found, a run each."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """What was asked, in JSON: it tells this point from others, and names it in a store."""

    @property
    def key(self) -> str:
        """The name of the point in a store, made of `given`."""
        asked = json.dumps(self.given, sort_keys=True, allow_nan=False)
        return hashlib.sha256(asked.encode()).hexdigest()[:32]

    def run(self, progress: Callable[[Progress], None] | None = None) -> Timeline:
        """The timeline. Raises what `simulate` raises."""
        return simulate(
            self.what,
            self.cluster,
            size_bytes=self.size_bytes,
            conditions=replace(self.conditions, seed=self.seed),
            routing=self.routing,
            seed=self.seed,
            fold=self.fold,
            limits=self.limits,
            progress=progress,
        )


@dataclass(frozen=True, slots=True)
class Outcome:
    """What remains of a simulation: a few figures in JSON, and rows."""

    figures: dict[str, Any]
    """time_s, stopped, messages, ranks_alike, critical_path_s, causes, notes."""
    lines: tuple[str, ...]
    """Of a file of rows; empty where the run was stopped."""

    @property
    def is_whole(self) -> bool:
        """Whether the run came to its end."""
        return self.figures["stopped"] is None


def outcome_of(point: Point, timeline: Timeline | None = None) -> Outcome:
    """What came out of a point, which is run unless its timeline is given."""
    run = point.run() if timeline is None else timeline
    figures: dict[str, Any] = {
        "time_s": run.time_s, "stopped": run.stopped, "messages": run.messages, "ranks_alike": run.folded, "critical_path_s": {},
        "causes": [], "notes": [],
    }  # fmt: skip
    if run.stopped is not None:
        return Outcome(figures, ())
    try:
        figures["critical_path_s"] = critical_path(run).shares_s
    except InputError as error:
        figures["notes"].append(str(error))
    if point.with_causes and not isinstance(point.what, TaskGraph):
        found = causes(
            point.what,
            point.cluster,
            replace(point.conditions, seed=point.seed),
            run,
            size_bytes=point.size_bytes,
            routing=point.routing,
            seed=point.seed,
            limits=point.limits,
        )
        figures["causes"] = [{"kind": cause.kind, "name": cause.name, "saves_s": cause.saves_s} for cause in found]
    lines = rows_lines({"simulated": {"given": dict(point.given), "figures": figures}}, observations(run))
    return Outcome(figures, tuple(lines))


class Kept:
    """The points of a store."""

    def __init__(self, folder: Path) -> None:
        self._store = Store(folder)
        self.found = 0
        """Points that were there already."""
        self._begun = False
        self._known = {
            Path(path).stem: sha256 for path, sha256 in self._store.held().items() if path.startswith(_PREFIX)
        }

    def get(self, point: Point) -> Outcome | None:
        """What was kept of a point; None where nothing was, or no longer can be read."""
        file = self._store.kept(self._known[point.key]) if point.key in self._known else None
        if file is None:
            return None
        try:
            lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
            told = json.loads(lines[0])["simulated"]
            if told["given"] != json.loads(json.dumps(dict(point.given))):
                return None
            figures = dict(told["figures"])
            missing = {"time_s", "stopped", "messages", "ranks_alike", "critical_path_s", "causes", "notes"} - set(
                figures
            )
            if missing:
                return None
            self.found += 1
            return Outcome(figures, tuple(lines))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def put(self, point: Point, outcome: Outcome) -> str:
        """Keeps a whole outcome; the run of the store that it became. Once this returns no crash undoes it."""
        with tempfile.TemporaryDirectory(prefix="busbw-point-") as scratch:
            pieces = (line.encode() for line in outcome.lines)
            artefact = Artefact.written(pieces, Path(scratch) / "rows", f"{_PREFIX}{point.key}.jsonl")
            with self._store.begin([artefact], look_in_others=not self._begun) as writer:
                for item in READER.read(artefact):
                    if isinstance(item, Rows):
                        writer.add(artefact, item)
                    elif isinstance(item, Loss):
                        writer.lose(artefact, item)
                writer.keep(artefact, [READER.name])
                run = writer.commit()
        self._begun = True
        self._known[point.key] = artefact.sha256
        return run


def sweep(
    points: Sequence[Point],
    *,
    executor: Executor | str = "auto",
    kept: Kept | None = None,
    done: Callable[[int], None] | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Iterator[tuple[int, Outcome]]:
    """The place and outcome of each point, as they end; kept ones first.

    executor: any, or the name of one (`busbw.simulation.engines`). auto: here for a second, then processes of this machine. done: told how many
    points have ended; progress: how far a point that runs in this process is. On Ctrl-C the sweep ends with what is done; a point that it stopped comes last, is not whole, and is not kept.
    Raises InputError where points are too many, and what the first point that fails raises.
    """
    if len(points) > MOST_POINTS:
        raise InputError(f"{len(points):,} points; {MOST_POINTS:,} are run at most. Take fewer sizes, nodes or seeds.")
    left: deque[int] = deque()
    count = 0

    def ended(outcome: Outcome, place: int, keep: bool) -> tuple[int, Outcome]:
        nonlocal count
        if keep and kept is not None and outcome.is_whole:
            kept.put(points[place], outcome)
        count += 1
        if done is not None:
            done(count)
        return place, outcome

    for place, point in enumerate(points):
        known = kept.get(point) if kept is not None else None
        if known is None:
            left.append(place)
        else:
            yield ended(known, place, False)
    if left:
        with contextlib.suppress(KeyboardInterrupt):
            for place, outcome in _run(points, left, executor, progress):
                yield ended(outcome, place, True)


def _run(
    points: Sequence[Point],
    left: deque[int],
    executor: Executor | str,
    progress: Callable[[Progress], None] | None,
) -> Iterator[tuple[int, Outcome]]:
    name = executor if isinstance(executor, str) else ""
    begun = time.monotonic()
    while left and name in ("auto", "here"):
        alone = name == "here" or len(left) == 1 or (os.cpu_count() or 1) == 1
        if not alone and time.monotonic() - begun > _ALONE_S:
            break
        place = left.popleft()
        outcome = outcome_of(points[place], points[place].run(progress))
        yield place, outcome
        if outcome.figures["stopped"] == INTERRUPTED:
            return
    with contextlib.ExitStack() as stack:
        if isinstance(executor, Executor):
            pool: Executor | None = executor
        else:
            pool = stack.enter_context(engine("local" if name == "auto" else name)) if left else None
        if pool is not None:
            yield from _spread(pool, points, left)


def _outcome_elsewhere(version: str, point: Point) -> Outcome:
    """What came out of a point that another process sent. Raises InputError if that one runs another version: figures would differ unseen."""
    if version != __version__:
        raise InputError(
            f"busbw is {version} where the sweep was begun, and {__version__} on {platform.node()}. Install the same version on all."
        )
    return outcome_of(point)


def _spread(pool: Executor, points: Sequence[Point], left: Iterable[int]) -> Iterator[tuple[int, Outcome]]:
    """Outcomes of an executor, as they come; a few points more than run are given to it at a time."""
    ahead = _AHEAD * max(os.cpu_count() or 1, getattr(pool, "_max_workers", 0) or 0, 16)
    waiting = iter(left)
    running: dict[Future[Outcome], int] = {}
    try:
        while True:
            for place in waiting:
                running[pool.submit(_outcome_elsewhere, __version__, points[place])] = place
                if len(running) >= ahead:
                    break
            if not running:
                return
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()
    finally:
        for future in running:
            future.cancel()
