"""A store: one folder in which every run of reading leaves its rows, the originals they came from, and what was lost.

Imports nothing of busbw but errors and the rest of observations; what lies where on disk is told in `layout`.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from busbw.errors import InputError, Loss
from busbw.observations.artefacts import Artefact
from busbw.observations.circumstances import Circumstances
from busbw.observations.store.answers import Answer
from busbw.observations.store.cells import MeasuredCell, cell_number
from busbw.observations.store.files import locked, make_folder, writing_to
from busbw.observations.store.keeping import _redacted as _redacted
from busbw.observations.store.layout import ARTEFACTS, RUN_ID, SHA256, WRITERS, RunId
from busbw.observations.store.leftovers import remove_leftovers
from busbw.observations.store.manifest import all_runs, choose
from busbw.observations.store.objects import ObjectPlace, is_object_url
from busbw.observations.store.places import LocalPlace
from busbw.observations.store.querying import GoneError, answer
from busbw.observations.store.recording import Recorder
from busbw.observations.store.records import Recorded, recorded_run, recorded_runs
from busbw.observations.store.upkeep import Compacted, Content, Pruned, compact, content, copy, prune
from busbw.observations.store.writing import RunWriter

__all__ = [
    "Answer",
    "Content",
    "MeasuredCell",
    "Recorded",
    "Recorder",
    "RunId",
    "RunWriter",
    "Store",
    "cell_number",
    "is_object_url",
]

_STALE_AFTER_S = 6 * 3600.0
"""Age of leftovers to be removed if nothing tells that their writer lives. A guess: longer than reading takes."""

_TRIES = 5


class Store:
    """A folder of runs, asked in SQL. Nothing is created before the first `begin` or `record`.

    s3://BUCKET/PREFIX is a store in an object store: recorded, queried and compared as any other; files that are read go into a folder
    first (`copy_to`), as `busbw read` does. Raises InputError for another address.
    """

    def __init__(self, folder: Path | str, *, stale_after_s: float = _STALE_AFTER_S) -> None:
        self._place = ObjectPlace(str(folder)) if is_object_url(folder) else LocalPlace(Path(folder))
        self._stale_after_s = stale_after_s

    @property
    def shown(self) -> str:
        """Where it is, as the user wrote it."""
        return self._place.shown

    @property
    def folder(self) -> Path:
        """Its folder. Raises InputError if it is in an object store, where there is none."""
        if isinstance(self._place, LocalPlace):
            return self._place.root
        raise InputError(
            f"{self.shown}: this works on a folder. Keep a store in a folder and copy it: busbw store copy DIR {self.shown}"
        )

    def begin(
        self, artefacts: Sequence[Artefact], *, created_ns: int | None = None, look_in_others: bool = True
    ) -> RunWriter:
        """A writer for the rows of these artefacts, to be used in a `with` block; creates the store if needed.

        Artefacts that the store holds already are not written again (`RunWriter.is_stored`). created_ns: wall clock,
        now if None. look_in_others: False from who writes thousands of runs of one artefact each: other runs, and what killed writers left in
        them, are then not read, which would cost as much as all runs before. Raises ValueError without artefacts, InputError if the folder cannot be written, or if a later
        version of busbw wrote this run.
        """
        if not artefacts:
            raise ValueError("a run needs at least one artefact")
        for artefact in artefacts:
            if not SHA256.fullmatch(artefact.sha256):
                raise ValueError(f"{artefact.path}: {artefact.sha256!r} is no SHA-256 in hexadecimal")
        if self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder}: is a file, a store is a folder. Give another --store.")
        with writing_to(self.folder):
            root = self.folder.resolve()
            for folder in (root, root / WRITERS, root / ARTEFACTS):
                make_folder(folder)
            with locked(root):
                if look_in_others:
                    remove_leftovers(root, self._stale_after_s)
                now_ns = time.time_ns() if created_ns is None else created_ns
                return RunWriter(root, artefacts, now_ns, look_in_others=look_in_others)

    def record(
        self,
        name: str,
        circumstances: Circumstances | None = None,
        *,
        run_id: RunId | None = None,
        resume: bool = False,
    ) -> Recorder:
        """A recorder for rows of a benchmark that runs, to be used in a `with` block; creates the store if needed.

        name: of the run, for people. circumstances: those of this process if None. run_id: a run that others may have begun and write into
        too; a new one if None. resume: whether this recorder takes the place of recorders of that run that died (`Recorder.cells` says what
        they left). Raises ValueError for what is no run id, InputError if the folder cannot be written, or there is nothing to resume.
        """
        chosen = secrets.token_hex(16) if run_id is None else run_id
        if not RUN_ID.fullmatch(chosen):
            raise ValueError(f"{chosen!r} is no run id: 32 hexadecimal digits")
        if resume and self.recorded(chosen) is None:
            raise InputError(
                f"{self.shown}: no recorded run {chosen} to resume. See which there are: busbw query 'SELECT run_id, path, status FROM runs' --store {self.shown}"
            )
        if isinstance(self._place, LocalPlace) and self.folder.exists() and not self.folder.is_dir():
            raise InputError(f"{self.folder}: is a file, a store is a folder. Give another --store.")
        return Recorder(self._place, chosen, name, circumstances or Circumstances.here(), resume=resume)

    def recorded(self, run_id: RunId) -> Recorded | None:
        """A recorded run: status, circumstances, cells; None if there is none of this name."""
        return recorded_run(self._place, run_id)[0] if RUN_ID.fullmatch(run_id) else None

    def query(self, sql: str) -> Answer:
        """The answer to one SELECT (DuckDB's SQL) over the tables of `SCHEMAS` and `runs` (run_id, artefact, path, created_ns, status, ended_ns).

        Each artefact's rows are there once, however many runs read it: from the earliest run that has all of them. A
        query sees the store's folder and no other file, and writes nothing. A PIVOT lists its values (`IN (...)`).
        Raises InputError for SQL that DuckDB refuses, a store that isn't there or is empty, a segment that is missing.
        """
        for left in reversed(range(_TRIES)):
            try:
                return Answer(self._answer(sql))
            except GoneError:  # compacted since the records were read?
                if not left:
                    raise
        raise AssertionError("a query is tried at least once")

    def _answer(self, sql: str) -> pa.Table:
        runs, problems = all_runs(self._place)
        recorded, wrong = recorded_runs(self._place)
        problems += wrong
        if not runs and not recorded:
            damaged = "".join(f"\n{problem}" for problem in problems)
            raise InputError(
                f"{self.shown}: holds no committed run. Fill a store: busbw read PATH... --store {self.shown}{damaged}"
            )
        for run_of in recorded:
            if run_of.missing:
                raise InputError(
                    f"{self.shown}/{run_of.run_id}/{run_of.missing[0]}: this segment of {run_of.name} is gone, though its run names it "
                    f"({len(run_of.missing)} such in the run). Bring it back from a copy, or remove the folder {run_of.run_id} to do without its rows."
                )
        chosen, missing = choose(runs)
        if missing:
            run, entry, name = missing[0]
            raise InputError(
                f"{self.shown}/{run.run_id}/{name}: this segment of {entry.path} is gone, though its manifest names "
                f"it ({len(missing)} such in the store). Read the file again (busbw read {entry.path} --store "
                f"{self.shown}), or remove the folder {run.run_id} to do without its rows."
            )
        return answer(self._place, sql, runs, chosen, recorded)

    def compact(self, *, grace_s: float = 0.0) -> list[Compacted]:
        """Makes few files of the many of recorded runs, while others read and write, and says what was done.

        grace_s: how long queries that began before may go on; longer ones begin again. Raises InputError.
        """
        return compact(self.folder, stale_after_s=self._stale_after_s, grace_s=grace_s)

    def prune(self, *, before_ns: int, dry_run: bool = False) -> list[Pruned]:
        """Removes the runs that began before a moment, except those that are being written, and says which. Raises InputError."""
        return prune(self.folder, before_ns=before_ns, dry_run=dry_run, stale_after_s=self._stale_after_s)

    def copy_to(self, target: Store) -> list[RunId]:
        """Copies the runs that another store lacks, its records last, and says which. Raises InputError."""
        return copy(self.folder, target._place)

    def content(self) -> Content:
        """What is in the store: runs, rows, bytes, problems. Raises InputError for a folder that holds no run."""
        return content(self.folder)

    def has_runs(self) -> bool:
        """Whether anything in the folder is named like a run, committed or not: whether it is a store at all."""
        return bool(self._place.runs())

    def problems(self) -> list[Loss]:
        """Runs that are there but cannot be used: a manifest that does not parse, or of another schema version."""
        return [*all_runs(self._place)[1], *recorded_runs(self._place)[1]]

    def held(self) -> dict[str, str]:
        """Content hashes by path, of artefacts that a committed run holds whole; none of a store that is not there."""
        chosen, _ = choose(all_runs(self._place)[0])
        return {entry.path: sha256 for sha256, (_, entry) in chosen.items()}

    def kept(self, sha256: str) -> Path | None:
        """The kept copy of an artefact, secrets blanked and every other byte at its offset; None if it wasn't kept."""
        path = self.folder / ARTEFACTS / sha256
        return path if SHA256.fullmatch(sha256) and path.is_file() else None
