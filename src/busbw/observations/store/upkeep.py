"""Upkeep of a store: many small files of a recorded run made few, old runs removed, what is there counted."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from busbw.errors import InputError, Loss
from busbw.observations.store.files import age_s, locked, make_durable, names_in, writing_to
from busbw.observations.store.layout import ARTEFACTS, COMMIT, END, MANIFEST, ROWS, RUN_FILE, SEALED, WRITER, RunId
from busbw.observations.store.manifest import all_runs
from busbw.observations.store.places import LocalPlace, Place
from busbw.observations.store.recording import json_bytes, parquet_of
from busbw.observations.store.records import Batch, Recorded, Segment, json_of, recorded_run, recorded_runs
from busbw.observations.tables import SCHEMA_VERSION, SCHEMAS

__all__ = ["Compacted", "Content", "Pruned", "compact", "content", "copy", "prune"]

_SEGMENT_ROWS = 4_000_000
"""Rows of a compacted segment: some 30 MB of samples; bounds the memory, about 1 GB."""
_LARGE_ROWS = 1_000_000
"""A segment as large as that is not written again."""


@dataclass(frozen=True, slots=True)
class Compacted:
    """What compaction did to one run."""

    run_id: RunId
    name: str
    files: tuple[int, int]
    """Before and after."""
    size_bytes: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Pruned:
    """A run that was removed, or would be."""

    run_id: RunId
    name: str
    created_ns: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Content:
    """What a store holds."""

    runs: int
    recorded: Counter[str]
    """Recorded runs by status."""
    rows: Counter[str]
    """By table, as the manifests count them; what several runs read counts for each."""
    files: int
    size_bytes: int
    leftover_bytes: int
    """Of files that no record names: their writer runs or was killed."""
    schemas: Counter[int]
    """Batches and runs by the schema version they were written with."""
    oldest_ns: int | None
    newest_ns: int | None
    problems: tuple[Loss, ...]


def compact(root: Path, *, stale_after_s: float, grace_s: float) -> list[Compacted]:
    """What was done to recorded runs of which several small segments were made one, and many records one.

    Writers and readers go on meanwhile. A compaction is one new record that says what it replaces; of two at a time one gives up. What
    was replaced stays for grace_s, for queries that began before, then goes; a longer query begins again. What crashed writers left,
    older than stale_after_s, is removed too. Raises InputError if the store cannot be written.
    """
    place = LocalPlace(root)
    before = {}
    with writing_to(root):
        for run_id in place.runs():
            run = _understood(place, run_id)
            if run is not None:
                before[run_id] = _sizes(root / run_id)
                if _is_worth_it(run):
                    _compact(place, run)
        if any(_sizes(root / run_id).keys() - sizes.keys() for run_id, sizes in before.items()):
            time.sleep(grace_s)
        done = []
        for run_id, sizes in before.items():
            run = _understood(place, run_id)
            if run is None:
                continue
            _remove_unnamed(place, run, stale_after_s)
            after = _sizes(root / run_id)
            if sizes.keys() != after.keys():
                bytes_of = (sum(sizes.values()), sum(after.values()))
                done.append(Compacted(run_id, run.name, (len(sizes), len(after)), bytes_of))
    return done


def _understood(place: LocalPlace, run_id: RunId) -> Recorded | None:
    """A recorded run of which nothing is damaged or missing: of others nothing is moved."""
    run, problems = recorded_run(place, run_id)
    return None if problems or (run is not None and run.missing) else run


def _is_worth_it(run: Recorded) -> bool:
    by_table = Counter(table for batch in run.batches for table in batch.segments if not _is_large(batch))
    return any(count > 1 for count in by_table.values()) or any(batch.schema < SCHEMA_VERSION for batch in run.batches)


def _is_large(batch: Batch) -> bool:
    return batch.schema == SCHEMA_VERSION and all(
        segment.rows >= _LARGE_ROWS for segments in batch.segments.values() for segment in segments
    )


def _compact(place: LocalPlace, run: Recorded) -> None:
    """Writes merged segments and the seal that puts them in the place of what they were made of."""
    small = [batch for batch in run.batches if not _is_large(batch)]
    token, number = secrets.token_hex(8), 0
    segments: dict[str, list[Segment]] = {}
    for table in sorted({table for batch in small for table in batch.segments}):
        paths = [place.root / run.run_id / segment.name for batch in small for segment in batch.segments.get(table, ())]
        for rows in _merged(table, paths):
            number += 1
            buffer, missing = parquet_of(table, rows)
            name = f"rows-{token}-{number:06d}-{table}.parquet"
            place.write(run.run_id, {name: memoryview(buffer)})
            segments.setdefault(table, []).append(Segment(name, rows.num_rows, buffer.size, missing))
    cells = Recorded.cells(replace(run, batches=tuple(small)))
    merged = Batch(
        f"{token}-{number:06d}", max(batch.committed_ns for batch in small), SCHEMA_VERSION,
        {table: tuple(listed) for table, listed in segments.items()}, tuple(cells.items()),
    )  # fmt: skip
    names = set(place.names(run.run_id))
    still_there = {match["batch"] for match in map(COMMIT.fullmatch, names) if match} & run.replaced
    seal = {
        "schema": SCHEMA_VERSION,
        "run": {
            "schema": SCHEMA_VERSION, "run_id": run.run_id, "name": run.name, "created_ns": run.created_ns,
            "circumstances": json_of(run.circumstances),
        },
        "writers": [json_of(writer) for writer in run.writers.values()],
        "ends": {name: json_of(end) for name, end in run.ends.items()},
        "batches": [json_of(batch) for batch in (*(b for b in run.batches if _is_large(b)), merged)],
        "replaced": sorted({batch.name for batch in small} | still_there),
    }  # fmt: skip
    # Whoever was first with this number has replaced some of the same batches: what was written here is named by nobody, and goes.
    if not place.create(run.run_id, f"sealed-{run.seal + 1:06d}.json", json_bytes(seal)):
        place.remove(run.run_id, [segment.name for listed in segments.values() for segment in listed])


def _merged(table: str, paths: Sequence[Path]) -> Iterator[pa.Table]:
    """The rows of many segments in few tables, columns as they are now."""
    schema = SCHEMAS[table]
    texts = [field.name for field in schema if pa.types.is_string(field.type)]
    waiting: list[pa.Table] = []
    rows = 0
    for path in paths:
        part = pq.read_table(path, partitioning=None, read_dictionary=texts)
        columns = [
            part.column(field.name) if field.name in part.schema.names else pa.nulls(part.num_rows, _kind(field, texts))
            for field in schema
        ]
        waiting.append(pa.table(columns, names=schema.names))
        rows += part.num_rows
        if rows >= _SEGMENT_ROWS:
            yield pa.concat_tables(waiting)
            waiting, rows = [], 0
    if waiting:
        yield pa.concat_tables(waiting)


def _kind(field: pa.Field, texts: Sequence[str]) -> pa.DataType:
    return pa.dictionary(pa.int32(), pa.string()) if field.name in texts else field.type


def _remove_unnamed(place: LocalPlace, run: Recorded, stale_after_s: float) -> None:
    """Removes what the seal replaced, and what nobody names and is old."""
    folder = place.root / run.run_id
    used = {segment.name for batch in run.batches for listed in batch.segments.values() for segment in listed}
    in_seal = run.replaced | run.sealed
    gone = []
    for name in place.names(run.run_id):
        if (match := COMMIT.fullmatch(name)) is not None:
            is_gone = match["batch"] in in_seal
        elif (match := SEALED.fullmatch(name)) is not None:
            is_gone = int(match["number"]) < run.seal
        elif (match := ROWS.fullmatch(name)) is not None:
            is_gone = name not in used and (
                f"{match['writer']}-{match['number']}" in run.replaced or _is_old(folder / name, stale_after_s)
            )
        elif name.startswith(".") and name.endswith(".part"):
            is_gone = _is_old(folder / name, stale_after_s)
        else:  # records of writers and ends are few, and tell which files are whose
            is_gone = False
        if is_gone:
            gone.append(name)
    place.remove(run.run_id, gone)


def _is_old(path: Path, stale_after_s: float) -> bool:
    return age_s(path) > stale_after_s


def prune(root: Path, *, before_ns: int, dry_run: bool = False, stale_after_s: float) -> list[Pruned]:
    """Runs that began before a moment, removed; those that would be, if dry_run. A run that is being written stays.

    Kept copies of files that no other run read go with theirs. Raises InputError if the store cannot be written.
    """
    runs, _ = all_runs(LocalPlace(root))
    recorded, _ = recorded_runs(LocalPlace(root))
    found = [
        Pruned(
            run.run_id, ", ".join(entry.path for entry in run.artefacts[:3]), run.created_ns, _size(root / run.run_id)
        )
        for run in runs
        if run.created_ns < before_ns
    ]
    found += [
        Pruned(run.run_id, run.name, run.created_ns, _size(root / run.run_id))
        for run in recorded
        if run.created_ns < before_ns and run.status() != "running"
    ]
    if found and not dry_run:
        with writing_to(root), locked(root):
            for one in found:
                _remove_run(root / one.run_id)
            left = {entry.sha256 for run in all_runs(LocalPlace(root))[0] for entry in run.artefacts}
            for name in names_in(root / ARTEFACTS):
                path = root / ARTEFACTS / name
                if name not in left and not name.startswith(".") and age_s(path) > stale_after_s:
                    path.unlink(missing_ok=True)
            make_durable([root])
    return sorted(found, key=lambda one: (one.created_ns, one.run_id))


def _remove_run(folder: Path) -> None:
    """What makes it a run goes first, so that nobody sees a part of it."""
    names = names_in(folder)
    first = [name for name in names if name in (MANIFEST, RUN_FILE) or SEALED.fullmatch(name)]
    for listed in (first, [name for name in names if name not in first]):
        for name in listed:
            (folder / name).unlink(missing_ok=True)
        make_durable([folder])
    folder.rmdir()


def copy(root: Path, target: Place) -> list[RunId]:
    """The runs of a folder that were copied to another store, since it lacked them or something of them.

    Records go last, manifests after all else, so that whoever reads the target meanwhile sees a run whole or, of a recorded one, whole
    batches. Kept copies of files stay. Raises InputError if the target cannot be written.
    """
    source = LocalPlace(root)
    runs, _ = all_runs(source)
    recorded, _ = recorded_runs(source)
    there = {run_id: set(target.names(run_id)) for run_id in target.runs()}
    named = {run.run_id: {name for entry in run.artefacts for name in entry.names()} for run in runs}
    for of in recorded:
        segments = {segment.name for batch in of.batches for listed in batch.segments.values() for segment in listed}
        named[of.run_id] = named.get(of.run_id, set()) | segments
    copied = []
    with writing_to(target.shown):
        for run_id, segments in named.items():
            names = [name for name in source.names(run_id) if name in segments or _is_record(name)]
            lacking = sorted(set(names) - there.get(run_id, set()), key=_place_in_order)
            if not lacking or MANIFEST in there.get(run_id, set()):
                continue
            for name in lacking:
                target.write(run_id, {name: source.read(run_id, name)})
            copied.append(run_id)
    return copied


def _place_in_order(name: str) -> tuple[int, str]:
    """Rows, then what says whose they are, then what makes them visible."""
    last = name == MANIFEST or COMMIT.fullmatch(name) or SEALED.fullmatch(name)
    return (0 if ROWS.fullmatch(name) or name.endswith(".parquet") else 2 if last else 1), name


def content(root: Path) -> Content:
    """What a store holds. Raises InputError for a folder that holds none."""
    place = LocalPlace(root)
    runs, problems = all_runs(place)
    recorded, wrong = recorded_runs(place)
    if not runs and not recorded and not problems and not wrong:
        raise InputError(
            f"{root}: holds no run. Fill a store: busbw read PATH... --store {root}, or busbw run ... --store {root}"
        )
    rows: Counter[str] = Counter()
    schemas: Counter[int] = Counter()
    for run in runs:
        for entry in run.artefacts:
            rows.update(entry.rows)
        schemas[run.schema] += 1
    named: set[Path] = set()
    for of in recorded:
        for batch in of.batches:
            schemas[batch.schema] += 1
            for table, segments in batch.segments.items():
                rows[table] += sum(segment.rows for segment in segments)
                named |= {root / of.run_id / segment.name for segment in segments}
    for run in runs:
        named |= {root / run.run_id / name for entry in run.artefacts for name in entry.names()}
        named |= {root / ARTEFACTS / entry.sha256 for entry in run.artefacts}
    files = {path: path.stat().st_size for path in root.rglob("*") if path.is_file()}
    leftover = sum(size for path, size in files.items() if path not in named and not _is_record(path.name))
    moments = [run.created_ns for run in runs] + [run.created_ns for run in recorded]
    return Content(
        len(runs), Counter(run.status() for run in recorded), rows, len(files), sum(files.values()), leftover, schemas,
        min(moments, default=None), max(moments, default=None), (*problems, *wrong),
    )  # fmt: skip


def _is_record(name: str) -> bool:
    return name in (MANIFEST, RUN_FILE) or any(kind.fullmatch(name) for kind in (COMMIT, END, SEALED, WRITER))


def _sizes(folder: Path) -> dict[str, int]:
    found = {}
    for name in names_in(folder):
        try:
            found[name] = (folder / name).stat().st_size
        except FileNotFoundError:
            continue
    return found


def _size(folder: Path) -> int:
    return sum(_sizes(folder).values())
