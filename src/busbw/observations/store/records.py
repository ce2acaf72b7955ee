"""What a recorded run says of itself: its batches, cells, circumstances, and whether it runs, is done, or died."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from busbw.errors import Loss
from busbw.observations.circumstances import Circumstances
from busbw.observations.store.cells import MeasuredCell, cell_number
from busbw.observations.store.layout import COMMIT, END, ROW_TABLES, ROWS, RUN_FILE, SEALED, WRITER, RunId
from busbw.observations.store.manifest import DamagedError, typed
from busbw.observations.store.places import Place, mapped
from busbw.observations.tables import SCHEMA_VERSION

__all__ = [
    "Batch",
    "Ended",
    "Recorded",
    "Segment",
    "Writer",
    "artefact_of",
    "cell_rows",
    "json_of",
    "recorded_run",
    "recorded_runs",
    "this_writer",
]

_T = TypeVar("_T")
_SILENT_S = 3600.0
"""A writer on another machine that committed nothing for so long counts as dead. A guess: longer than a cell takes."""
_TRIES = 20


@dataclass(frozen=True, slots=True)
class Segment:
    """One Parquet file of a batch."""

    name: str
    rows: int
    size_bytes: int
    missing: tuple[str, ...] = ()
    """Columns that are NULL throughout, which the file leaves out."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that were committed together."""

    name: str
    """<writer>-<number>; in what was compacted, sealed-<number>."""
    committed_ns: int
    schema: int
    segments: Mapping[str, tuple[Segment, ...]]
    """By table."""
    cells: tuple[tuple[MeasuredCell, int], ...]
    """With the number of samples."""


@dataclass(frozen=True, slots=True)
class Writer:
    """A process that writes into a run, and where it lives."""

    name: str
    host: str
    machine: str
    """Hash of the kernel and its space of process ids: where `pid` means something."""
    pid: int
    pid_started: int
    """Clock ticks since the kernel started: tells processes with the same number apart."""
    started_ns: int
    resumes: bool
    """Whether it goes on with what writers before it left."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a writer ended: done, or died and why."""

    status: str
    reason: str
    ended_ns: int


@dataclass(frozen=True, slots=True)
class Recorded:
    """A run that was recorded while it ran."""

    run_id: RunId
    name: str
    created_ns: int
    circumstances: Circumstances
    writers: Mapping[str, Writer]
    ends: Mapping[str, Ended]
    batches: tuple[Batch, ...]
    replaced: frozenset[str]
    """Names of batches whose rows lie in others now."""
    seal: int
    """Number of the highest seal; 0: none."""
    sealed: frozenset[str] = frozenset()
    """Names of batches that the seal lists."""
    missing: tuple[str, ...] = ()
    """Segments that a record names and the folder lacks."""

    @property
    def artefact(self) -> str:
        """What column `artefact` says in its rows."""
        return artefact_of(self.run_id)

    def cells(self) -> dict[MeasuredCell, int]:
        """Cells with their number of samples."""
        found: dict[MeasuredCell, int] = {}
        for batch in self.batches:
            for cell, samples in batch.cells:
                found[cell] = found.get(cell, 0) + samples
        return found

    def segments(self, table: str) -> list[tuple[Batch, Segment]]:
        """Segments of a table, in the order of their commits."""
        return [(batch, segment) for batch in self.batches for segment in batch.segments.get(table, ())]

    def status(self) -> str:
        """running, done, died.

        A writer that resumed answers for those that had died before it. Of the others: running if one lives, died if one did, else done.
        """
        counted: list[str] = []
        for writer in sorted(self.writers.values(), key=lambda writer: (writer.started_ns, writer.name)):
            if writer.resumes:
                counted = [status for status in counted if status != "died"]
            ended = self.ends.get(writer.name)
            counted.append(ended.status if ended else "running" if self._lives(writer) else "died")
        return "running" if "running" in counted else "died" if "died" in counted or not counted else "done"

    def ended_ns(self) -> int | None:
        """When the last writer ended; None while one has not."""
        missing = any(name not in self.ends for name in self.writers)
        return None if missing or not self.ends else max(end.ended_ns for end in self.ends.values())

    def _lives(self, writer: Writer) -> bool:
        if writer.machine == _machine():
            return _pid_started(writer.pid) == writer.pid_started
        heard = [batch.committed_ns for batch in self.batches if batch.name.startswith(writer.name)]
        return time.time() - max([writer.started_ns, *heard]) / 1e9 < _SILENT_S

    def settings(self) -> list[dict[str, Any]]:
        """Rows of `settings`: circumstances, and what tells where they come from."""
        said = self.circumstances
        listed = [(name, value, "environment") for name, value in said.environment.items()]
        listed += [(name, value, "version") for name, value in said.versions.items()]
        if said.topology:
            listed.append(("topology", said.topology, "topology"))
        if said.git_commit:
            changed = {True: " with changes", False: ""}.get(said.git_changed is True, "")
            listed.append(("git", said.git_commit + changed, "git"))
        return [
            {"artefact": self.artefact, "host": said.host, "name": name, "value": value, "origin": origin}
            for name, value, origin in listed
        ]


def artefact_of(run_id: RunId) -> str:
    """What stands for the artefact in rows of a recorded run, which has no file that was read: 64 hexadecimal digits as any other."""
    return hashlib.sha256(f"busbw recorded run {run_id}".encode("ascii")).hexdigest()


def this_writer(name: str, resumes: bool) -> Writer:
    """The process that calls."""
    pid = os.getpid()
    return Writer(name, platform.node(), _machine(), pid, _pid_started(pid) or 0, time.time_ns(), resumes)


def recorded_runs(place: Place) -> tuple[list[Recorded], list[Loss]]:
    """Every recorded run, earliest first, and what is wrong with others or with parts of them."""
    runs, problems = [], []
    for run, wrong in mapped(place, lambda run_id: recorded_run(place, run_id), place.runs()):
        problems += wrong
        if run is not None:
            runs.append(run)
    return sorted(runs, key=lambda run: (run.created_ns, run.run_id)), problems


def recorded_run(place: Place, run_id: RunId) -> tuple[Recorded | None, list[Loss]]:
    """One run, None if nothing was recorded there, and the records of it that cannot be used.

    Files that go while they are read were compacted: it begins again. What is missing after several times is.
    """
    for _ in range(_TRIES):
        run, problems, changed = _recorded_run(place, run_id)
        if not changed and (run is None or not run.missing):
            break
    return run, problems


def _recorded_run(place: Place, run_id: RunId) -> tuple[Recorded | None, list[Loss], bool]:
    """The same, and whether files went meanwhile."""
    names = set(place.names(run_id))
    problems: list[Loss] = []
    changed = False

    def read(name: str, parse: Callable[[Any], _T]) -> _T | None:
        """What a record says; None if it is damaged or gone."""
        nonlocal changed
        try:
            return parse(_checked(json.loads(place.read(run_id, name))))
        except FileNotFoundError:
            changed = True
            return None
        except DamagedError as damage:
            reason = str(damage)
        except OSError as error:
            reason = f"cannot be read: {error.strerror or error}."
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            reason = f"this record is damaged ({error!r:.200}), its rows cannot be found. Bring it back from a copy, or remove it."
        problems.append(Loss("damaged-manifest", f"{place.shown}/{run_id}/{name}", None, reason))
        return None

    seals = sorted((int(match["number"]), name) for name in names if (match := SEALED.fullmatch(name)))
    run = None
    if seals:
        number, name = seals[-1]
        run = read(name, lambda item: _sealed(run_id, item, number))
    if run is None and RUN_FILE in names:
        run = read(RUN_FILE, lambda item: _run(run_id, item))
    if run is None:
        return None, problems, changed
    writers, ends, batches = dict(run.writers), dict(run.ends), list(run.batches)
    known = run.replaced | {batch.name for batch in batches}
    for name in sorted(names):
        if (match := WRITER.fullmatch(name)) and match["writer"] not in writers:
            if writer := read(name, _writer):
                writers[match["writer"]] = writer
        elif (match := END.fullmatch(name)) and match["writer"] not in ends:
            if end := read(name, _end):
                ends[match["writer"]] = end
        elif (match := COMMIT.fullmatch(name)) and match["batch"] not in known and (batch := read(name, _batch)):
            batches.append(batch)
    batches.sort(key=lambda batch: (batch.committed_ns, batch.name))
    missing = tuple(
        segment.name
        for batch in batches
        for segments in batch.segments.values()
        for segment in segments
        if segment.name not in names
    )
    run = replace(run, writers=writers, ends=ends, batches=tuple(batches), missing=missing)
    return run, problems, changed


def json_of(item: Any) -> Any:
    """What is written of a part of a run; `_batch`, `_writer` and `_end` are the inverses."""
    if isinstance(item, Batch):
        return {
            "batch": item.name,
            "committed_ns": item.committed_ns,
            "schema": item.schema,
            "segments": {table: [asdict(segment) for segment in segments] for table, segments in item.segments.items()},
            "cells": [[*cell, samples] for cell, samples in item.cells],
        }
    return asdict(item)


def _checked(item: Any) -> Any:
    version = typed(typed(item, dict)["schema"], int)
    if version > SCHEMA_VERSION:
        raise DamagedError(
            f"written by a later version (schema {version}, this one knows {SCHEMA_VERSION}). Update busbw."
        )
    return item


def _sealed(run_id: RunId, item: Any, number: int) -> Recorded:
    batches = tuple(_batch(batch) for batch in item["batches"])
    return replace(
        _run(run_id, item["run"]),
        writers={writer["name"]: _writer(writer) for writer in item["writers"]},
        ends={of: _end(end) for of, end in item["ends"].items()},
        batches=batches,
        sealed=frozenset(batch.name for batch in batches),
        replaced=frozenset(typed(name, str) for name in item["replaced"]),
        seal=number,
    )


def _run(run_id: RunId, item: Any) -> Recorded:
    if item["run_id"] != run_id:
        raise ValueError(f"the record is another run's ({item['run_id']!r:.80})")
    told = item["circumstances"]
    circumstances = Circumstances(
        host=told["host"],
        argv=tuple(typed(word, str) for word in told["argv"]),
        environment={name: typed(value, str) for name, value in told["environment"].items()},
        versions={name: typed(value, str) for name, value in told["versions"].items()},
        topology=told["topology"],
        git_commit=told["git_commit"],
        git_changed=told["git_changed"],
    )
    return Recorded(
        run_id, typed(item["name"], str), typed(item["created_ns"], int), circumstances, {}, {}, (), frozenset(), 0
    )  # fmt: skip


def _writer(item: Any) -> Writer:
    return Writer(
        typed(item["name"], str), typed(item["host"], str), typed(item["machine"], str), typed(item["pid"], int),
        typed(item["pid_started"], int), typed(item["started_ns"], int), typed(item["resumes"], bool),
    )  # fmt: skip


def _end(item: Any) -> Ended:
    if item["status"] not in ("done", "died"):
        raise ValueError(f"{item['status']!r:.80} is no end of a run")
    return Ended(item["status"], typed(item["reason"], str), typed(item["ended_ns"], int))


def _batch(item: Any) -> Batch:
    segments: dict[str, tuple[Segment, ...]] = {}
    for table, listed in item["segments"].items():
        for segment in listed:
            match = ROWS.fullmatch(typed(segment["name"], str))
            if match is None or match["table"] != table or table not in ROW_TABLES:
                raise ValueError(f"{segment['name']!r:.80} is no segment of {table}")
        segments[table] = tuple(_segment(segment) for segment in listed)
    cells = tuple((MeasuredCell(*cell), typed(samples, int)) for *cell, samples in item["cells"])
    return Batch(
        typed(item["batch"], str), typed(item["committed_ns"], int), typed(item["schema"], int), segments, cells
    )


def _segment(item: Any) -> Segment:
    missing = tuple(typed(name, str) for name in item["missing"])
    return Segment(item["name"], typed(item["rows"], int), typed(item["size_bytes"], int), missing)


def cell_rows(runs: Iterable[Recorded]) -> Iterator[dict[str, Any]]:
    """Rows of `cells`."""
    for run in runs:
        for cell, samples in run.cells().items():
            yield {"run_id": run.run_id, "cell": cell_number(cell), **cell._asdict(), "samples": samples}


def _machine() -> str:
    """Names the running kernel and this process's space of process ids: containers of one host have several."""
    said = []
    for path in ("/proc/sys/kernel/random/boot_id", "/proc/self/ns/pid"):
        try:
            said.append(
                str(Path(path).readlink()) if path.startswith("/proc/self") else Path(path).read_text(encoding="ascii")
            )
        except OSError:
            said.append(platform.node())
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


def _pid_started(pid: int) -> int | None:
    """When a process started, in clock ticks; None if it is not there. 0 where /proc tells nothing but the process is there."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return None
        except OSError:
            return 0
        return 0
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[19])  # state and starttime: proc_pid_stat(5), fields 3 and 22
