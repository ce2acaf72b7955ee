"""The files a user named, standard input among them, without reports of our own; and whether any can be read."""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from busbw.cli.console import BytesRead, note
from busbw.errors import InputError, Loss
from busbw.observations import Artefact
from busbw.reports import GENERATOR

__all__ = ["Inputs", "found", "nothing_readable"]

_UNREADABLE = frozenset(
    {
        *("empty", "binary", "unreadable", "compressed", "not-utf-8", "not-a-file", "store-skipped"),
        *("damaged", "truncated", "too-large", "too-deep", "unsafe-name", "sparse-member", "not-unpacked"),
    }
)
"""Losses that leave nothing of a file."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """What the paths on the command line stand for."""

    artefacts: tuple[Artefact, ...]
    losses: tuple[Loss, ...]

    @property
    def size_bytes(self) -> int:
        """All files together."""
        return sum(artefact.size_bytes for artefact in self.artefacts)


@contextlib.contextmanager
def found(paths: Sequence[str], report: Path | None = None, *, stores: bool = False) -> Iterator[Inputs]:
    """Every file below the paths. What comes out of archives, and `-`, lies in a temporary folder until the block ends.

    stores: a path that is a store stands for the files of its latest run, STORE/RUN for those of that run; with a note which.
    Earlier reports of this command are left out, with a note. Raises InputError for paths that do not exist, folders
    without a file, and a report that would overwrite what is being read.
    """
    from busbw.readers import find_artefacts  # noqa: PLC0415 - loads every reader, which help pages can do without

    if report is not None and report.is_dir():
        raise InputError(f"{report}: is a folder; name the file of the report, such as {report / 'report.html'}.")
    with contextlib.ExitStack() as stack:
        if "-" in paths:
            if sys.stdin is None:
                raise InputError("-: there is no standard input. Pipe something into it, or name a file.")
            if paths.count("-") > 1:
                raise InputError("-: standard input can be read once; name it once.")
            if sys.stdin.isatty():
                note("reading standard input; end it with Ctrl-D")
        kept: list[Artefact] = []
        losses: list[Loss] = []
        spool = None
        with contextlib.suppress(OSError):  # files that lie unpacked need no folder
            spool = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="busbw-")))
        if stores:
            paths = list(_outside_stores(paths, kept, losses, spool))
        with BytesRead(_size_bytes(paths)) as progress:
            artefacts, more = find_artefacts(paths, spool, progress=progress)
        losses += more
        for artefact in artefacts:
            if _is_report(artefact):
                note(f"{artefact.path}: left out, a report of busbw")
            else:
                kept.append(artefact)
        if not kept and not losses:
            raise InputError(
                f"{' '.join(paths)}: no file in it that could be read. Name the folder that holds the job's output."
            )
        shown = {*(artefact.path for artefact in kept), *(loss.path for loss in losses)}
        if report is not None and report.exists() and _holds(report, shown):
            raise InputError(f"{report}: is one of the files to be read. Give the report another name.")
        yield Inputs(tuple(kept), tuple(losses))


def _outside_stores(
    paths: Sequence[str], kept: list[Artefact], losses: list[Loss], spool: Path | None
) -> Iterator[str]:
    """The paths that are no stores; files of those that are go into `kept`. Raises InputError where rows must be written and there is no room for it."""

    def folder() -> Path:
        if spool is None:
            raise InputError("no temporary folder can be made, which the rows of a recorded run need; set TMPDIR")
        return spool

    from busbw.observations.store.originals import originals  # noqa: PLC0415 - loads the store

    for given in paths:
        held = originals(Path(given), folder) if given not in ("", "-") else None
        if held is None:
            yield given
            continue
        if held.runs > 1:
            note(f"{given}: run {held.run_id}, the latest of {held.runs}; name {Path(given) / 'RUN'} for another")
        kept += held.artefacts
        losses += held.losses


def nothing_readable(artefacts: Sequence[tuple[str, Sequence[str]]], losses: Sequence[Loss]) -> list[Loss]:
    """Why no file at all could be read; empty where some file could. artefacts: (path, formats)."""
    fatal = [loss for loss in losses if loss.kind in _UNREADABLE]
    lost = {loss.path for loss in fatal}
    if all(path in lost and not formats for path, formats in artefacts):
        return fatal
    return []


def _size_bytes(paths: Sequence[str]) -> int:
    """Files below the paths, together, as they lie; what cannot be asked counts nothing."""
    from busbw.readers.reading import files_below  # noqa: PLC0415 - as above

    total = 0
    for path in paths:
        for file in files_below(Path(path), []) if path else []:
            with contextlib.suppress(OSError):
                total += file.stat().st_size
    return total


def _holds(file: Path, shown: set[str]) -> bool:
    """Whether one of these paths is this file, or lies in it because it is an archive."""
    shown = shown | {path[: mark.start()] for path in shown for mark in re.finditer("!", path)}
    for path in shown:
        with contextlib.suppress(OSError, ValueError):
            if file.samefile(path):
                return True
    return False


def _is_report(artefact: Artefact) -> bool:
    with contextlib.suppress(OSError):
        return GENERATOR.encode() in artefact.head(512)
    return False
