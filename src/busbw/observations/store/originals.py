"""The files that a run of a store was made of, as the store keeps them: what can be explained again, or read anew by a later version."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from busbw.errors import Loss
from busbw.observations.artefacts import Artefact
from busbw.observations.rows_file import rows_lines
from busbw.observations.store import Store
from busbw.observations.store.files import run_folders
from busbw.observations.store.layout import ARTEFACTS, ROW_TABLES, RUN_ID, RunId
from busbw.observations.store.manifest import Run, committed_run
from busbw.observations.store.records import Recorded
from busbw.observations.tables import Rows

__all__ = ["Originals", "originals"]

_TOO_MANY = ("samples",)
"""Tables whose rows are no line each: millions of calls, of which other tables hold what counts."""


@dataclass(frozen=True, slots=True)
class Originals:
    """Files of one run, under the paths that they had; secrets are blanked, every other byte is at its offset."""

    run_id: RunId
    artefacts: tuple[Artefact, ...]
    losses: tuple[Loss, ...]
    """Files that the store no longer keeps."""
    runs: int
    """Of the store; which was meant is to be said where there are several."""


def originals(path: Path, spool: Callable[[], Path]) -> Originals | None:
    """Those of a run, STORE/RUN, or of the latest run of a store; None if the path is neither.

    A run that was recorded while it ran has no file: its rows, but for samples, are written as one below `spool()`, a folder.
    """
    try:
        folder = path.resolve()
        if not folder.is_dir():
            return None
        inside = run_folders(folder)
        if not inside and not RUN_ID.fullmatch(folder.name):
            return None
        store = folder if inside else folder.parent
        found = [run for one in inside or [folder] if (run := _run(store, one)) is not None]
        if not found:
            return None
        run = max(found, key=lambda run: (run.created_ns, run.run_id))
        if isinstance(run, Recorded):
            return Originals(run.run_id, (_written(store, run, spool()),), (), len(found))
        return _kept(store, run, len(found))
    except OSError:
        return None


def _run(store: Path, folder: Path) -> Run | Recorded | None:
    return committed_run(folder) or Store(store).recorded(folder.name)


def _kept(store: Path, run: Run, runs: int) -> Originals:
    kept, lost = [], []
    for entry in run.artefacts:
        file = store / ARTEFACTS / entry.sha256
        if file.is_file():
            kept.append(Artefact(entry.sha256, entry.path, file, entry.size_bytes))
        else:
            lost.append(Loss("unreadable", entry.path, None, f"the store no longer keeps it ({ARTEFACTS}/{entry.sha256}); read the file itself"))  # fmt: skip
    return Originals(run.run_id, tuple(kept), tuple(lost), runs)


def _written(store: Path, run: Recorded, folder: Path) -> Artefact:
    """A recorded run's rows as a file of rows."""

    def rows() -> Iterator[Rows]:
        for table in ROW_TABLES:
            if table in _TOO_MANY or not any(table in batch.segments for batch in run.batches):
                continue
            answer = Store(store).query(f"SELECT * FROM {table} WHERE artefact = '{run.artefact}'").arrow()
            for batch in answer.to_batches():
                yield Rows(table, batch)

    said = {"run": run.run_id, "name": run.name}
    pieces = (line.encode() for line in rows_lines(said, rows()))
    own = Path(tempfile.mkdtemp(dir=folder))  # a run may be named twice
    return Artefact.written(pieces, own / f"{run.run_id}.jsonl", f"{run.name} ({run.run_id})")
