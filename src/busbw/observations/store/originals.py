"""The files that a run of a store was made of, as the store keeps them: what can be explained again, or read anew by a later version."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from busbw.errors import Loss
from busbw.observations.artefacts import Artefact
from busbw.observations.store.files import run_folders
from busbw.observations.store.layout import ARTEFACTS, RUN_ID, RunId
from busbw.observations.store.manifest import Run, committed_run

__all__ = ["Originals", "originals"]


@dataclass(frozen=True, slots=True)
class Originals:
    """Files of one run, under the paths that they had; secrets are blanked, every other byte is at its offset."""

    run_id: RunId
    artefacts: tuple[Artefact, ...]
    losses: tuple[Loss, ...]
    """Files that the store no longer keeps."""
    runs: int
    """Of the store; which was meant is to be said where there are several."""


def originals(path: Path) -> Originals | None:
    """Those of a run, STORE/RUN, or of the latest run of a store; None if the path is neither."""
    try:
        folder = path.resolve()
        if not folder.is_dir():
            return None
        if inside := run_folders(folder):
            return _of(folder, [run for one in inside if (run := committed_run(one)) is not None])
        run = committed_run(folder) if RUN_ID.fullmatch(folder.name) else None
        return None if run is None else _of(folder.parent, [run])
    except OSError:
        return None


def _of(store: Path, runs: Sequence[Run]) -> Originals | None:
    """The latest of these runs."""
    if not runs:
        return None
    run = max(runs, key=lambda run: (run.created_ns, run.run_id))
    kept, lost = [], []
    for entry in run.artefacts:
        file = store / ARTEFACTS / entry.sha256
        if file.is_file():
            kept.append(Artefact(entry.sha256, entry.path, file, entry.size_bytes))
        else:
            lost.append(Loss("unreadable", entry.path, None, f"the store no longer keeps it ({ARTEFACTS}/{entry.sha256}); read the file itself"))  # fmt: skip
    return Originals(run.run_id, tuple(kept), tuple(lost), len(runs))
