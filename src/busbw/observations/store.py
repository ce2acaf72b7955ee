"""A store: one folder in which every run of reading leaves its rows, the originals they came from, and what was lost.

    STORE/
        <run id>/                     a run, named after the contents of the files that it read
            manifest.json             the commit record, written last: a run without one is not there
            <table>-<sha256 of the artefact, 32 digits>[-NNNN].parquet
        artefacts/<sha256>            the file as it was handed over, secrets blanked byte for byte
        .lock                         held while a run is published, for milliseconds
        .writers/<token>              one a writer, locked as long as it lives

Every file is written under a temporary name in its final folder, fsynced, renamed, and the folder fsynced. A writer
that is killed leaves temporary names and segments that no manifest names; readers do not see them, the next `begin`
removes them. Any number of writers and readers may use one store at a time. It needs file locks (flock), which local
disks, NFS and Lustre with `-o flock` have.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import hashlib
import json
import os
import platform
import re
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from busbw.errors import InputError, Loss
from busbw.observations.artefacts import Artefact
from busbw.observations.secrets import redact, redact_text
from busbw.observations.tables import SCHEMA_VERSION, SCHEMAS, Rows

__all__ = ["RunId", "RunWriter", "Store"]

RunId: TypeAlias = str
"""32 hexadecimal digits: a function of the set of contents that the run read, and of nothing else."""

_STALE_AFTER_S = 6 * 3600.0
"""Age of leftovers to be removed if nothing tells that their writer lives. A guess: longer than reading takes."""
_ROW_GROUP_ROWS = 128 * 1024
"""Near DuckDB's 122,880 rows a group, the unit of its parallelism. Source: DuckDB, "Parquet tips", row group size."""
_ROW_GROUP_BYTES = 32 * 2**20
"""Arrow bytes of one table of one artefact that wait in memory for their row group."""
_WAITING_BYTES = 256 * 2**20
"""Arrow bytes that wait in memory, all tables of all artefacts together."""
_OPEN_SEGMENTS = 64
"""Segments open at a time; a table whose segment was closed goes on in the next one, NNNN + 1."""
_OVERLAP_BYTES = 256 * 2**10
"""What `redact` sees on either side of a cut. Linux bounds a variable at 128 KiB (MAX_ARG_STRLEN, execve(2))."""
_MANIFEST_BYTES = 512 * 2**20
"""Largest manifest that is read: about a million artefacts."""

_RUN_ID = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_SEGMENT = re.compile(r"(?P<table>[a-z_]+)-(?P<artefact>[0-9a-f]{32})(?:-[0-9]{4,})?\.parquet")
_TOKEN = re.compile(r"(?P<run>[0-9a-f]{32})\.(?P<machine>[0-9a-f]{8})\.[0-9a-f]{16}")
"""A writer: its run, the kernel it runs on, and chance."""
_TEMPORARY = re.compile(rf"\.{_TOKEN.pattern}\..+")
_MANIFEST, _LOCK, _WRITERS, _ARTEFACTS = "manifest.json", ".lock", ".writers", "artefacts"
_ROW_TABLES = [table for table in SCHEMAS if table not in {"artefacts", "losses"}]
"""Tables that have segments; the other two are kept in the manifests."""
_RUNS_SCHEMA = pa.schema([("run_id", pa.string()), ("artefact", pa.string()), ("path", pa.string())])
_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh", b"PK\x03\x04")
"""First bytes of gzip, zstd, xz, bzip2, zip: no secret is seen in them. Source: RFC 1952, RFC 8878, manuals."""
_QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""What a query that only reads is made of (DuckDB's QueryNodeType); COPY and INSERT inside WITH are other nodes."""


class _DamagedError(Exception):
    """A manifest that cannot be used, and why."""


class _NewerError(_DamagedError):
    """A manifest of a later schema than this version knows: nothing is wrong with it."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One artefact of a run."""

    sha256: str
    path: str
    size_bytes: int
    copies: tuple[str, ...] = ()
    """Paths of other files of the run with the same bytes."""
    formats: tuple[str, ...] = ()
    segments: Mapping[str, Sequence[str]] = field(default_factory=dict)
    rows: Mapping[str, int] = field(default_factory=dict)

    def names(self) -> Iterator[str]:
        """Every segment of the artefact."""
        return (name for names in self.segments.values() for name in names)


@dataclass(frozen=True, slots=True)
class _Run:
    """A committed run: its manifest, and which of the segments it names are there."""

    run_id: RunId
    created_ns: int
    artefacts: tuple[_Entry, ...]
    losses: tuple[tuple[str, Loss], ...]
    """With the hash of the artefact."""
    files: frozenset[str]

    def missing(self, entry: _Entry) -> list[str]:
        """Segments of an artefact that the manifest names and the folder lacks."""
        return [name for name in entry.names() if name not in self.files]


class Store:
    """A folder of runs, asked in SQL. Nothing is created before the first `begin`."""

    def __init__(self, folder: Path, *, stale_after_s: float = _STALE_AFTER_S) -> None:
        self.folder = folder
        self._stale_after_s = stale_after_s

    def begin(self, artefacts: Sequence[Artefact], *, created_ns: int | None = None) -> RunWriter:
        """A writer for the rows of these artefacts, to be used in a `with` block; creates the store if needed.

        Artefacts that the store holds already are not written again (`RunWriter.is_stored`). created_ns: wall clock,
        now if None. Raises ValueError without artefacts, InputError if the folder cannot be written, or if a later
        version of busbw wrote this run.
        """
        if not artefacts:
            raise ValueError("a run needs at least one artefact")
        for artefact in artefacts:
            if not _SHA256.fullmatch(artefact.sha256):
                raise ValueError(f"{artefact.path}: {artefact.sha256!r} is no SHA-256 in hexadecimal")
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder}: is a file, a store is a folder. Give another --store.")
        with _writing(self.folder):
            root = self.folder.resolve()
            for folder in (root, root / _WRITERS, root / _ARTEFACTS):
                _make_folder(folder)
            with _locked(root):
                _remove_leftovers(root, self._stale_after_s)
                return RunWriter(root, artefacts, time.time_ns() if created_ns is None else created_ns)

    def query(self, sql: str) -> pa.Table:
        """The answer to one SELECT (DuckDB's SQL) over the tables of `SCHEMAS` and `runs` (run_id, artefact, path).

        Each artefact's rows are there once, however many runs read it: from the earliest run that has all of them. A
        query sees the store's folder and no other file, and writes nothing. A PIVOT lists its values (`IN (...)`).
        Raises InputError for SQL that DuckDB refuses, a store that isn't there or is empty, a segment that is missing.
        """
        runs, problems = self._runs()
        if not runs:
            damaged = "".join(f"\n{problem}" for problem in problems)
            raise InputError(
                f"{self.folder}: holds no committed run. Fill a store: busbw read PATH... --store {self.folder}"
                f"{damaged}"
            )
        chosen, missing = _choose(runs)
        if missing:
            run, entry, name = missing[0]
            raise InputError(
                f"{self.folder / run.run_id / name}: this segment of {entry.path} is gone, though its manifest names "
                f"it ({len(missing)} such in the store). Read the file again (busbw read {entry.path} --store "
                f"{self.folder}), or remove the folder {run.run_id} to do without its rows."
            )
        return _answer(self.folder, sql, runs, chosen)

    def problems(self) -> list[Loss]:
        """Runs that are there but cannot be used: a manifest that does not parse, or of another schema version."""
        return self._runs()[1]

    def kept(self, sha256: str) -> Path | None:
        """The kept copy of an artefact, secrets blanked and every other byte at its offset; None if it wasn't kept."""
        path = self.folder / _ARTEFACTS / sha256
        return path if _SHA256.fullmatch(sha256) and path.is_file() else None

    def _runs(self) -> tuple[list[_Run], list[Loss]]:
        """Every committed run, earliest first, and what is wrong with the others."""
        runs, problems = [], []
        for folder in _run_folders(self.folder):
            try:
                run = _read_run(folder)
            except _DamagedError as damage:
                problems.append(Loss("damaged-manifest", str(folder / _MANIFEST), None, str(damage)))
            else:
                if run is not None:
                    runs.append(run)
        return sorted(runs, key=lambda run: (run.created_ns, run.run_id)), problems


class RunWriter:
    """Takes the rows of one run, a batch at a time, and makes all of them visible at `commit`, or none.

    Holds at most some hundred MB whatever the size of the artefacts. For one thread. Of artefacts with the same content
    the first one announced counts; rows and losses of the others would be the same again and are left out, their paths
    are kept.
    """

    def __init__(self, root: Path, artefacts: Sequence[Artefact], created_ns: int) -> None:
        self.run_id = _run_id(artefact.sha256 for artefact in artefacts)
        self._root, self._folder, self._created_ns = root, root / self.run_id, created_ns
        self._token = f"{self.run_id}.{_machine()}.{secrets.token_hex(8)}"
        self._open = True
        self._tables: dict[tuple[str, str], _TableWriter] = {}
        self._waiting_bytes = 0
        self._losses: list[tuple[str, Loss]] = []
        self._kept: dict[str, Path] = {}
        self._entries: dict[str, _Entry] = {}
        for artefact in artefacts:
            path, first = _utf8(artefact.path), self._entries.get(artefact.sha256)
            if first is None:
                self._entries[artefact.sha256] = _Entry(artefact.sha256, path, artefact.size_bytes)
            elif path != first.path and path not in first.copies:
                self._entries[artefact.sha256] = replace(first, copies=(*first.copies, path))
        self._in_place: frozenset[str] = frozenset()
        self._renames: dict[Path, str] = {}
        self._stored: set[str] = set()
        self._mark = _take_mark(root, self._token)
        try:
            _make_folder(self._folder)
            self._adopt()
        except BaseException:
            _remove_writer(root, self._token)
            os.close(self._mark)
            raise

    def _adopt(self) -> None:
        """Takes over what committed runs hold of the artefacts, by hard link: each run is whole without the others."""
        own = _committed_run(self._folder)
        others = [run for run in Store(self._root)._runs()[0] if run.run_id != self.run_id]
        chosen, _ = _choose(others if own is None else [own, *others])
        for sha256, entry in self._entries.items():
            if sha256 not in chosen:
                continue
            run, stored = chosen[sha256]
            if run.run_id == self.run_id:
                self._in_place |= set(stored.names())
            elif not self._link(run, stored):
                continue
            self._stored.add(sha256)
            self._entries[sha256] = replace(entry, formats=stored.formats, segments=stored.segments, rows=stored.rows)
            self._losses += [(of, loss) for of, loss in run.losses if of == sha256]

    def _link(self, run: _Run, entry: _Entry) -> bool:
        """Whether every segment of an artefact could be linked, or copied, out of another run."""
        linked = {}
        for name in entry.names():
            source, temporary = self._root / run.run_id / name, self._temporary(name)
            try:
                temporary.hardlink_to(source)
            except FileNotFoundError:  # the run was removed a moment ago
                return False
            except OSError:  # a file system without hard links, or another user's file
                shutil.copyfile(source, temporary)
            linked[temporary] = name
        self._renames |= linked
        return True

    def __enter__(self) -> RunWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open = False
        for table in self._tables.values():
            table.abandon()
        with contextlib.suppress(OSError):  # what stays behind, the next `begin` removes
            self._leave()

    def is_stored(self, artefact: Artefact) -> bool:
        """Whether this artefact needs no reading: the store has its rows, or one announced before has its content."""
        return artefact.sha256 in self._stored or not self._is_first(artefact)

    def add(self, artefact: Artefact, rows: Rows) -> None:
        """Adds rows of an artefact. Raises ValueError if it was not announced, or the rows do not fit their table."""
        self._announced(artefact)
        if rows.table not in _ROW_TABLES:
            raise ValueError(f"no rows can be added to {rows.table!r}; tables: {', '.join(_ROW_TABLES)}")
        if not rows.batch.schema.equals(SCHEMAS[rows.table]):
            raise ValueError(f"columns of {rows.table} are {SCHEMAS[rows.table]}, got {rows.batch.schema}")
        if rows.batch.num_rows == 0 or self.is_stored(artefact):
            return
        if rows.batch.column(0).unique().to_pylist() != [artefact.sha256]:
            raise ValueError(
                f"rows of {rows.table} point into another artefact than {artefact.path} ({artefact.sha256})"
            )
        key = (rows.table, artefact.sha256)
        if key not in self._tables:
            self._tables[key] = _TableWriter(
                self._temporary(f"{rows.table}-{artefact.sha256[:32]}"), SCHEMAS[rows.table]
            )
        table = self._tables[key]
        table.wait(rows.batch)
        self._waiting_bytes += rows.batch.nbytes
        with _writing(self._root):
            if table.waiting_rows >= _ROW_GROUP_ROWS or table.waiting_bytes >= _ROW_GROUP_BYTES:
                self._flush(table)
            while self._waiting_bytes > _WAITING_BYTES:
                self._flush(max(self._tables.values(), key=lambda table: table.waiting_bytes))

    def _flush(self, table: _TableWriter) -> None:
        opened = [other for other in self._tables.values() if other.is_open and other is not table]
        if len(opened) >= _OPEN_SEGMENTS:
            min(opened, key=lambda other: other.last_flush).close()
        self._waiting_bytes -= table.waiting_bytes
        table.flush()
        os.utime(self._mark)

    def lose(self, artefact: Artefact, loss: Loss) -> None:
        """Counts damage met in an announced artefact. Raises ValueError if it was not announced."""
        self._announced(artefact)
        if not self.is_stored(artefact):
            told = replace(loss, path=_utf8(loss.path), detail=redact_text(_utf8(loss.detail)))
            self._losses.append((artefact.sha256, told))

    def keep(self, artefact: Artefact, formats: Sequence[str]) -> None:
        """Keeps a copy of an announced artefact, redacted; `formats` names the readers that took it.

        A compressed file is not kept, since its secrets cannot be seen; nor is one that changed after it was hashed.
        Both are counted as losses. Raises ValueError if the artefact was not announced.
        """
        self._announced(artefact)
        sha256 = artefact.sha256
        if not self._is_first(artefact):
            return
        if formats:
            self._entries[sha256] = replace(self._entries[sha256], formats=tuple(formats))
        if (self._root / _ARTEFACTS / sha256).exists() or sha256 in self._kept:
            return
        temporary = self._root / _ARTEFACTS / f".{self._token}.{sha256}"
        digest = hashlib.sha256()
        reason: Loss | None = None
        try:
            if artefact.head(8).startswith(_COMPRESSED):
                reason = Loss(
                    "compressed-not-kept", artefact.path, None, "No copy is kept, secrets inside cannot be blanked."
                )
            else:
                with _writing(self._root), _create(temporary, 0o600) as out:
                    for piece in _redacted(_source(artefact, digest)):
                        out.write(piece)
                        os.utime(self._mark)
                if digest.hexdigest() != sha256:
                    reason = Loss(
                        "changed-while-read",
                        artefact.path,
                        None,
                        "The file changed after it was hashed; no copy is kept. Read it again.",
                    )
        except _SourceError as error:
            reason = Loss("unreadable", artefact.path, None, f"No copy is kept: {error}.")
        except OSError as error:
            reason = Loss("unreadable", artefact.path, None, f"No copy is kept: {error.strerror}.")
        if reason is None:
            self._kept[sha256] = temporary
        else:
            temporary.unlink(missing_ok=True)
            self._losses.append((sha256, replace(reason, path=_utf8(reason.path))))

    def commit(self) -> RunId:
        """Makes the run visible and durable: no crash and no other writer undoes what has returned. Ends the writer."""
        self._check_open()
        with _writing(self._root):
            for (name, sha256), table in self._tables.items():
                entry = self._entries[sha256]
                table.flush()
                table.close()
                parts = {
                    part: f"{name}-{sha256[:32]}{f'-{number:04d}' if number else ''}.parquet"
                    for number, part in enumerate(table.parts)
                }
                self._renames |= parts
                self._entries[sha256] = replace(
                    entry,
                    segments={**entry.segments, name: list(parts.values())},
                    rows={**entry.rows, name: table.rows},
                )
            _make_durable([*self._renames, *self._kept.values()])
            with _locked(self._root):
                self._publish()
        self._open = False
        return self.run_id

    def _publish(self) -> None:
        """Renames everything into place, the manifest last. The store's lock is held."""
        for sha256, temporary in self._kept.items():
            temporary.replace(self._root / _ARTEFACTS / sha256)
        if self._kept:
            _make_durable([self._root / _ARTEFACTS])
        own = _committed_run(self._folder)
        if own is not None and _is_whole(own):
            return  # another writer of the same artefacts was first, or nothing was new
        for name in _names(self._folder):
            if _SEGMENT.fullmatch(name) and name not in self._in_place:
                (self._folder / name).unlink()
        for temporary, name in self._renames.items():
            temporary.replace(self._folder / name)
        _make_durable([self._folder])
        temporary = self._temporary(_MANIFEST)
        with _create(temporary) as out:
            out.write(_manifest(self.run_id, self._created_ns, self._entries.values(), self._losses))
        _make_durable([temporary])
        temporary.replace(self._folder / _MANIFEST)
        _make_durable([self._folder, self._root])

    def _temporary(self, name: str) -> Path:
        return self._folder / f".{self._token}.{name}"

    def _is_first(self, artefact: Artefact) -> bool:
        return self._entries[artefact.sha256].path == _utf8(artefact.path)

    def _announced(self, artefact: Artefact) -> None:
        self._check_open()
        entry = self._entries.get(artefact.sha256)
        if entry is None or _utf8(artefact.path) not in (entry.path, *entry.copies):
            raise ValueError(f"{artefact.path} ({artefact.sha256}) was not announced to begin()")

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"run {self.run_id} was committed or left; begin another")

    def _leave(self) -> None:
        """Removes what this writer left under temporary names, and its mark."""
        with _locked(self._root):
            _remove_writer(self._root, self._token)
        os.close(self._mark)


class _TableWriter:
    """Rows of one table of one artefact on their way to disk: some wait in memory, the others are in the parts."""

    def __init__(self, stem: Path, schema: pa.Schema) -> None:
        self._stem, self._schema = stem, schema
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_rows = self.waiting_bytes = self.rows = 0
        self.parts: list[Path] = []
        self.last_flush = 0
        self._stream: BinaryIO | None = None
        self._writer: Any = None

    @property
    def is_open(self) -> bool:
        return self._stream is not None

    def wait(self, batch: pa.RecordBatch) -> None:
        self._waiting.append(batch)
        self.waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        self.rows += batch.num_rows

    def flush(self) -> None:
        if not self._waiting:
            return
        if self._stream is None:
            self.parts.append(self._stem.with_name(f"{self._stem.name}.{len(self.parts):04d}"))
            self._stream = _create(self.parts[-1])
            self._writer = pq.ParquetWriter(self._stream, self._schema, compression="zstd")
        self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=_ROW_GROUP_ROWS)
        self._waiting, self.waiting_rows, self.waiting_bytes = [], 0, 0
        self.last_flush = time.monotonic_ns()

    def close(self) -> None:
        if self._stream is not None:
            self._writer.close()
            self._stream.close()
        self._stream = self._writer = None

    def abandon(self) -> None:
        """Closes the file without caring whether it is whole: it is about to be removed."""
        self._waiting = []
        with contextlib.suppress(OSError):
            self.close()


class _SourceError(Exception):
    """The artefact, not the store, could not be read."""


def _source(artefact: Artefact, digest: hashlib._Hash) -> Iterator[bytes]:
    """The bytes that were hashed, and not what was appended since. Updates the digest."""
    left = artefact.size_bytes
    try:
        for chunk in artefact.chunks():
            piece = chunk[:left]
            left -= len(piece)
            digest.update(piece)
            yield piece
            if not left:
                return
    except OSError as error:
        raise _SourceError(error.strerror or str(error)) from error


def _redacted(chunks: Iterable[bytes], overlap_bytes: int = _OVERLAP_BYTES) -> Iterator[bytes]:
    """`redact` of a file too large for memory: cut between lines where there are any, each cut seen from both sides.

    The same bytes as `redact` of the whole, provided no value is longer than overlap_bytes.
    """
    window, done = b"", 0
    for chunk in chunks:
        window += chunk
        end = len(window) - overlap_bytes
        if end <= done:
            continue
        cut = window.rfind(b"\n", done, end) + 1 or end
        yield redact(window)[done:cut]
        start = max(0, cut - overlap_bytes)
        start = window.rfind(b"\n", max(0, start - overlap_bytes), start) + 1 or start
        window, done = window[start:], cut - start
    yield redact(window)[done:]


# --- Runs on disk ---------------------------------------------------------------------------------------------------


def _run_id(hashes: Iterable[str]) -> RunId:
    return hashlib.sha256("\n".join(sorted(set(hashes))).encode("ascii")).hexdigest()[:32]


def _run_folders(root: Path) -> list[Path]:
    """Folders that are named like a run, committed or not; none if the store isn't there."""
    try:
        return [root / name for name in sorted(_names(root)) if _RUN_ID.fullmatch(name)]
    except NotADirectoryError:
        return []
    except OSError as error:
        raise InputError(
            f"{root}: cannot read the store: {error.strerror}. Check the permissions of the folder."
        ) from error


def _manifest(run_id: RunId, created_ns: int, entries: Iterable[_Entry], losses: Iterable[tuple[str, Loss]]) -> bytes:
    """The text of a manifest; `_read_run` is its inverse."""
    content = {
        "schema": SCHEMA_VERSION,
        "run_id": run_id,
        "created_ns": created_ns,
        "artefacts": [
            {
                "sha256": entry.sha256,
                "path": entry.path,
                "copies": list(entry.copies),
                "size_bytes": entry.size_bytes,
                "formats": list(entry.formats),
                "segments": {table: list(names) for table, names in entry.segments.items()},
                "rows": dict(entry.rows),
            }
            for entry in entries
        ],
        "losses": [
            {
                "artefact": of,
                "kind": loss.kind,
                "path": loss.path,
                "line": loss.line,
                "detail": loss.detail,
                "count": loss.count,
            }
            for of, loss in losses
        ],
    }
    return json.dumps(content, indent=1).encode("ascii")


def _read_run(folder: Path) -> _Run | None:
    """The run in a folder, None if nothing was committed there. Raises _DamagedError if the manifest cannot be used."""
    path = folder / _MANIFEST
    again = "Read its files again with --store to mend it, or remove the folder"
    try:
        if path.stat().st_size > _MANIFEST_BYTES:
            raise _DamagedError(f"the manifest is larger than {_MANIFEST_BYTES} bytes. {again}.")
        content = json.loads(path.read_bytes())
        version = _typed(content, dict)["schema"]
        if _typed(version, int) > SCHEMA_VERSION:
            raise _NewerError(
                f"written by a later version (schema {version}, this one knows {SCHEMA_VERSION}). Update busbw."
            )
        if version < SCHEMA_VERSION:
            raise _DamagedError(f"written by an earlier version (schema {version}, now {SCHEMA_VERSION}). {again}.")
        entries = tuple(_entry(item) for item in _typed(content["artefacts"], list))
        losses = tuple((_typed(item["artefact"], str), _loss(item)) for item in _typed(content["losses"], list))
        run_id, created_ns = _typed(content["run_id"], str), _typed(content["created_ns"], int)
        if run_id != folder.name or run_id != _run_id(entry.sha256 for entry in entries):
            raise _DamagedError(f"the manifest is another run's ({run_id}). {again}.")
        return _Run(run_id, created_ns, entries, losses, frozenset(_names(folder)))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise _DamagedError(f"cannot be read: {error.strerror}. Check its permissions.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise _DamagedError(f"the manifest is damaged ({error!r:.200}). {again}.") from error


def _entry(item: Any) -> _Entry:
    """Raises ValueError, KeyError or TypeError if this is no artefact of a manifest."""
    entry = _Entry(
        sha256=_typed(item["sha256"], str),
        path=_typed(item["path"], str),
        size_bytes=_typed(item["size_bytes"], int),
        copies=tuple(_typed(path, str) for path in item["copies"]),
        formats=tuple(_typed(name, str) for name in item["formats"]),
        segments={
            table: [_typed(name, str) for name in _typed(names, list)] for table, names in item["segments"].items()
        },
        rows={table: _typed(rows, int) for table, rows in item["rows"].items()},
    )
    if not _SHA256.fullmatch(entry.sha256):
        raise ValueError(f"{entry.sha256!r} is no SHA-256")
    for table, names in entry.segments.items():
        for name in names:
            match = _SEGMENT.fullmatch(name)
            if (
                match is None
                or match["table"] != table
                or match["artefact"] != entry.sha256[:32]
                or table not in _ROW_TABLES
            ):
                raise ValueError(f"{name!r} is no segment of {table}")
    return entry


def _loss(item: Any) -> Loss:
    line = item["line"]
    return Loss(
        kind=_typed(item["kind"], str),
        path=_typed(item["path"], str),
        line=None if line is None else _typed(line, int),
        detail=_typed(item["detail"], str),
        count=_typed(item["count"], int),
    )


def _typed(value: Any, kind: type) -> Any:
    """The value. Raises TypeError if it is of another type."""
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {value!r:.80}")
    return value


def _committed_run(folder: Path) -> _Run | None:
    """The run in a folder, None if there is none or it is damaged. Raises InputError if a later version wrote it."""
    try:
        return _read_run(folder)
    except _NewerError as newer:
        raise InputError(f"{folder / _MANIFEST}: {newer}") from newer
    except _DamagedError:
        return None


def _is_whole(run: _Run) -> bool:
    return not any(run.missing(entry) for entry in run.artefacts)


def _choose(runs: Sequence[_Run]) -> tuple[dict[str, tuple[_Run, _Entry]], list[tuple[_Run, _Entry, str]]]:
    """For each artefact the first run that has all its segments; for those without such a run the segments missing."""
    chosen: dict[str, tuple[_Run, _Entry]] = {}
    missing: dict[str, list[tuple[_Run, _Entry, str]]] = {}
    for run in runs:
        for entry in run.artefacts:
            if entry.sha256 in chosen:
                continue
            lacking = run.missing(entry)
            if lacking:
                missing.setdefault(entry.sha256, [(run, entry, name) for name in lacking])
            else:
                chosen[entry.sha256] = (run, entry)
    return chosen, [lack for sha256, lacks in missing.items() if sha256 not in chosen for lack in lacks]


# --- Asking ---------------------------------------------------------------------------------------------------------


def _answer(folder: Path, sql: str, runs: Sequence[_Run], chosen: Mapping[str, tuple[_Run, _Entry]]) -> pa.Table:
    """Runs the query in a database that has the views, can read the store's folder, and can be changed no more."""
    import duckdb  # noqa: PLC0415 - 0.15 s to load, and writers have no use for it

    root = folder.resolve()
    with contextlib.closing(duckdb.connect(":memory:")) as database:
        for table in _ROW_TABLES:
            _create_table(database, f"empty.{table}", SCHEMAS[table].empty_table())
            segments = [
                root / run.run_id / name for run, entry in chosen.values() for name in entry.segments.get(table, ())
            ]
            listed = ", ".join(_literal(_without_globs(str(segment))) for segment in segments)
            rows = (
                f"UNION ALL BY NAME FROM read_parquet([{listed}], union_by_name=true, hive_partitioning=false)"
                if segments
                else ""
            )
            try:
                database.execute(f'CREATE VIEW "{table}" AS FROM empty."{table}" {rows}')
            except duckdb.Error as error:
                raise InputError(
                    f"{folder}: a segment of {table} cannot be read: {error}. Remove its run and read the files again."
                ) from error
        for name, content in _manifest_tables(runs, chosen).items():
            _create_table(database, f"main.{name}", content)
        readable = ", ".join({_literal(str(root)), _literal(_without_globs(str(root)))})
        for setting in (
            "temp_directory = ''",
            "python_enable_replacements = false",
            "autoinstall_known_extensions = false",
            "autoload_known_extensions = false",
            f"allowed_directories = [{readable}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            database.execute(f"SET {setting}")
        try:
            statements = database.extract_statements(sql)
            if len(statements) != 1 or not _only_reads(database, sql):
                raise InputError(
                    _refusal(
                        folder, "one SELECT is wanted (a PIVOT lists its values with IN), nothing that writes or sets"
                    )
                )
            answer: pa.Table = database.sql(statements[0].query).to_arrow_table()
        except duckdb.Error as error:
            raise InputError(_refusal(folder, str(error))) from error
        return answer


def _only_reads(database: Any, sql: str) -> bool:
    """Whether a query is SELECT all through: DuckDB lets COPY and INSERT stand inside WITH."""
    ((text,),) = database.execute("SELECT json_serialize_sql(?::VARCHAR)", [sql]).fetchall()
    try:
        answer = json.loads(text)
    except RecursionError:
        return False
    if answer["error"]:
        return False
    pending: list[Any] = [answer["statements"]]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            kind = item.get("type")
            if isinstance(kind, str) and kind.endswith("_NODE") and kind not in _QUERY_NODES:
                return False
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return True


def _refusal(folder: Path, reason: str) -> str:
    return f"{folder}: the query was refused: {reason}\nTables: {', '.join(sorted([*SCHEMAS, 'runs']))}."


def _manifest_tables(runs: Sequence[_Run], chosen: Mapping[str, tuple[_Run, _Entry]]) -> dict[str, pa.Table]:
    """The tables that the manifests hold."""
    entries = [entry for _, entry in chosen.values()]
    losses = [(of, loss) for run in runs for of, loss in run.losses if of in chosen and chosen[of][0] is run]
    rows: dict[str, list[dict[str, Any]]] = {
        "artefacts": [
            {
                "artefact": entry.sha256,
                "path": entry.path,
                "size_bytes": entry.size_bytes,
                "formats": list(entry.formats),
            }
            for entry in entries
        ],
        "losses": [
            {
                "artefact": of,
                "path": loss.path,
                "line": loss.line,
                "kind": loss.kind,
                "detail": loss.detail,
                "count": loss.count,
            }
            for of, loss in losses
        ],
        "runs": [
            {"run_id": run.run_id, "artefact": entry.sha256, "path": path}
            for run in runs
            for entry in run.artefacts
            for path in (entry.path, *entry.copies)
        ],
    }
    return {name: pa.Table.from_pylist(listed, schema=SCHEMAS.get(name, _RUNS_SCHEMA)) for name, listed in rows.items()}


def _create_table(database: Any, name: str, content: pa.Table) -> None:
    schema, table = name.split(".")
    database.register("incoming", content)
    database.execute(f'CREATE SCHEMA IF NOT EXISTS "{schema}"')
    database.execute(f'CREATE TABLE "{schema}"."{table}" AS FROM incoming')
    database.unregister("incoming")


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _without_globs(path: str) -> str:
    """The path as a pattern that matches itself: DuckDB expands *, ? and [ in the names of files."""
    return re.sub(r"[*?\[]", r"[\g<0>]", path)


# --- Writers, locks and leftovers -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _writing(root: Path) -> Iterator[None]:
    """Turns what the file system refuses into a message."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}:
            cause, remedy = "its file system has no file locks", "Use a local disk, or mount with -o flock"
        elif error.errno in {errno.ENOSPC, errno.EDQUOT}:
            cause, remedy = error.strerror or str(error), "Free some space; what was committed before is safe"
        else:
            cause, remedy = (
                error.strerror or str(error),
                "Check that the folder can be written, or give another --store",
            )
        raise InputError(f"{root}: cannot write to the store: {cause}. {remedy}.") from error


@contextlib.contextmanager
def _locked(root: Path) -> Iterator[None]:
    """Holds the store's lock; waits for it. The kernel releases it if the process dies."""
    descriptor = os.open(root / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@functools.cache
def _machine() -> str:
    """Names the running kernel: among its processes a lock that can be taken tells for sure that its holder is gone."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        name = platform.node()
    return hashlib.sha256(name.encode()).hexdigest()[:8]


def _take_mark(root: Path, token: str) -> int:
    """Marks a writer as living: a file that it keeps locked. The store's lock is held."""
    descriptor = os.open(root / _WRITERS / token, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def _is_gone(mark: Path, stale_after_s: float) -> bool:
    """Whether the writer of a mark lives no more.

    Locks may not reach across machines: a writer on another one must also have been silent for long.
    """
    try:
        descriptor = os.open(mark, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:  # another user's
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return f".{_machine()}." in mark.name or _age_s(mark) > stale_after_s
    finally:
        os.close(descriptor)


def _age_s(path: Path) -> float:
    """Seconds since a file was last written or renamed."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0.0
    return time.time() - max(status.st_mtime, status.st_ctime)


def _remove_leftovers(root: Path, stale_after_s: float) -> None:
    """Removes what killed writers left. The store's lock is held, so nobody is publishing."""
    marks = root / _WRITERS
    for name in _names(marks):
        if _TOKEN.fullmatch(name) and _is_gone(marks / name, stale_after_s):
            _remove_writer(root, name)
    writing = {name.partition(".")[0] for name in _names(marks)}
    for folder in _run_folders(root):
        if folder.name in writing or (folder / _MANIFEST).exists():
            continue
        _remove(
            folder, [name for name in _names(folder) if _is_leftover(name) and _age_s(folder / name) > stale_after_s]
        )
        if _age_s(folder) > stale_after_s:
            _remove_folder(folder)


def _is_leftover(name: str) -> bool:
    return _SEGMENT.fullmatch(name) is not None or _TEMPORARY.fullmatch(name) is not None


def _remove_writer(root: Path, token: str) -> None:
    """Removes a writer's temporary files, segments it did not commit, and its mark. The store's lock is held."""
    folder = root / token.partition(".")[0]
    for place in (folder, root / _ARTEFACTS):
        _remove(place, [name for name in _names(place) if name.startswith(f".{token}.")])
    (root / _WRITERS / token).unlink(missing_ok=True)
    others = any(name.startswith(f"{folder.name}.") for name in _names(root / _WRITERS))
    if not (folder / _MANIFEST).exists() and not others:
        _remove(folder, [name for name in _names(folder) if _SEGMENT.fullmatch(name)])
        _remove_folder(folder)


def _names(folder: Path) -> list[str]:
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def _remove(folder: Path, names: Iterable[str]) -> None:
    for name in names:
        with contextlib.suppress(PermissionError):  # another user's
            (folder / name).unlink(missing_ok=True)


def _remove_folder(folder: Path) -> None:
    """Removes a folder if nothing is in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def _make_folder(folder: Path) -> None:
    """Makes a folder, durably, with the folders above it."""
    if folder.is_dir():
        return
    _make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    _make_durable([folder.parent])


def _create(path: Path, mode: int = 0o666) -> BinaryIO:
    """A new file. Raises FileExistsError."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")


def _make_durable(paths: Sequence[Path]) -> None:
    """Waits until files and folders are on disk; many at a time, since a disk takes them in groups."""

    def sync(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    if len(paths) == 1:
        sync(paths[0])
    elif paths:
        with ThreadPoolExecutor(min(16, len(paths))) as pool:
            list(pool.map(sync, paths))


def _utf8(text: str) -> str:
    """Text that can be stored: bytes of a file name that are not UTF-8 become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
