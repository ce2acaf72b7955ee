"""A run being written: its rows, losses and kept copies, invisible until the commit."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from busbw.errors import Loss
from busbw.observations.artefacts import Artefact
from busbw.observations.secrets import redact_batch, redact_text
from busbw.observations.store.files import create, locked, make_durable, make_folder, names_in, utf8, writing_to
from busbw.observations.store.keeping import keep_copy
from busbw.observations.store.layout import ARTEFACTS, MANIFEST, ROW_TABLES, SEGMENT, RunId, run_id_of
from busbw.observations.store.leftovers import new_token, remove_writer, take_mark
from busbw.observations.store.manifest import Entry, Run, all_runs, choose, committed_run, is_whole, manifest_text
from busbw.observations.store.places import LocalPlace
from busbw.observations.store.segments import TableWriter
from busbw.observations.tables import SCHEMAS, Rows

__all__ = ["RunWriter"]

_WAITING_BYTES = 256 * 2**20
"""Arrow bytes that wait in memory, all tables of all artefacts together."""

_OPEN_SEGMENTS = 64
"""Segments open at a time; a table whose segment was closed goes on in the next one, NNNN + 1."""


class RunWriter:
    """Takes the rows of one run, a batch at a time, and makes all of them visible at `commit`, or none.

    Holds at most some hundred MB whatever the size of the artefacts. For one thread. Of artefacts with the same content
    the first one announced counts; rows and losses of the others would be the same again and are left out, their paths
    are kept.
    """

    def __init__(
        self, root: Path, artefacts: Sequence[Artefact], created_ns: int, *, look_in_others: bool = True
    ) -> None:
        self.run_id = run_id_of(artefact.sha256 for artefact in artefacts)
        self._root, self._folder, self._created_ns = root, root / self.run_id, created_ns
        self._token = new_token(self.run_id)
        self._open = True
        self._tables: dict[tuple[str, str], TableWriter] = {}
        self._waiting_bytes = 0
        self._losses: list[tuple[str, Loss]] = []
        self._kept: dict[str, Path] = {}
        self._entries: dict[str, Entry] = {}
        for artefact in artefacts:
            path, first = utf8(artefact.path), self._entries.get(artefact.sha256)
            if first is None:
                self._entries[artefact.sha256] = Entry(artefact.sha256, path, artefact.size_bytes)
            elif path != first.path and path not in first.copies:
                self._entries[artefact.sha256] = replace(first, copies=(*first.copies, path))
        self._in_place: frozenset[str] = frozenset()
        self._renames: dict[Path, str] = {}
        self._stored: set[str] = set()
        self._mark = take_mark(root, self._token)
        try:
            make_folder(self._folder)
            self._adopt(look_in_others)
        except BaseException:
            remove_writer(root, self._token)
            os.close(self._mark)
            raise

    def _adopt(self, look_in_others: bool) -> None:
        """Takes over what committed runs hold of the artefacts, by hard link: each run is whole without the others."""
        own = committed_run(self._folder)
        others = []
        if look_in_others:
            others = [run for run in all_runs(LocalPlace(self._root))[0] if run.run_id != self.run_id]
        chosen, _ = choose(others if own is None else [own, *others])
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

    def _link(self, run: Run, entry: Entry) -> bool:
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
        """Adds rows of an artefact, secrets in their texts blanked.

        Raises ValueError if it was not announced, or the rows do not fit their table.
        """
        self._announced(artefact)
        if rows.table not in ROW_TABLES:
            raise ValueError(f"no rows can be added to {rows.table!r}; tables: {', '.join(ROW_TABLES)}")
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
            self._tables[key] = TableWriter(
                self._temporary(f"{rows.table}-{artefact.sha256[:32]}"), SCHEMAS[rows.table]
            )
        table = self._tables[key]
        batch = redact_batch(rows.batch)
        table.wait(batch)
        self._waiting_bytes += batch.nbytes
        with writing_to(self._root):
            if table.fills_a_group:
                self._flush(table)
            while self._waiting_bytes > _WAITING_BYTES:
                self._flush(max(self._tables.values(), key=lambda table: table.waiting_bytes))

    def _flush(self, table: TableWriter) -> None:
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
            told = replace(loss, path=utf8(loss.path), detail=redact_text(utf8(loss.detail)))
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
        if (self._root / ARTEFACTS / sha256).exists() or sha256 in self._kept:
            return
        temporary = self._root / ARTEFACTS / f".{self._token}.{sha256}"
        reason = keep_copy(artefact, temporary, self._root, progress=lambda: os.utime(self._mark))
        if reason is None:
            self._kept[sha256] = temporary
        else:
            self._losses.append((sha256, replace(reason, path=utf8(reason.path))))

    def commit(self) -> RunId:
        """Makes the run visible and durable: no crash and no other writer undoes what has returned. Ends the writer."""
        self._check_open()
        with writing_to(self._root):
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
            make_durable([*self._renames, *self._kept.values()])
            with locked(self._root):
                self._publish()
        self._open = False
        return self.run_id

    def _publish(self) -> None:
        """Renames everything into place, the manifest last. The store's lock is held."""
        for sha256, temporary in self._kept.items():
            temporary.replace(self._root / ARTEFACTS / sha256)
        if self._kept:
            make_durable([self._root / ARTEFACTS])
        own = committed_run(self._folder)
        if own is not None and is_whole(own):
            return  # another writer of the same artefacts was first, or nothing was new
        for name in names_in(self._folder):
            if SEGMENT.fullmatch(name) and name not in self._in_place:
                (self._folder / name).unlink()
        for temporary, name in self._renames.items():
            temporary.replace(self._folder / name)
        make_durable([self._folder])
        temporary = self._temporary(MANIFEST)
        with create(temporary) as out:
            out.write(manifest_text(self.run_id, self._created_ns, self._entries.values(), self._losses))
        make_durable([temporary])
        temporary.replace(self._folder / MANIFEST)
        make_durable([self._folder, self._root])

    def _temporary(self, name: str) -> Path:
        return self._folder / f".{self._token}.{name}"

    def _is_first(self, artefact: Artefact) -> bool:
        return self._entries[artefact.sha256].path == utf8(artefact.path)

    def _announced(self, artefact: Artefact) -> None:
        self._check_open()
        entry = self._entries.get(artefact.sha256)
        if entry is None or utf8(artefact.path) not in (entry.path, *entry.copies):
            raise ValueError(f"{artefact.path} ({artefact.sha256}) was not announced to begin()")

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"run {self.run_id} was committed or left; begin another")

    def _leave(self) -> None:
        """Removes what this writer left under temporary names, and its mark."""
        with locked(self._root):
            remove_writer(self._root, self._token)
        os.close(self._mark)
