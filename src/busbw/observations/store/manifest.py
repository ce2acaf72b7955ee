"""The commit record of a run: what it says, how it is read and checked, which run answers for an artefact."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from busbw.errors import InputError, Loss
from busbw.observations.store.layout import MANIFEST, ROW_TABLES, SEGMENT, SHA256, RunId, run_id_of
from busbw.observations.store.places import LocalPlace, Place, mapped
from busbw.observations.tables import SCHEMA_VERSION

__all__ = [
    "DamagedError", "Entry", "Run", "all_runs", "choose", "committed_run", "is_whole", "manifest_text", "typed",
]  # fmt: skip

_MANIFEST_BYTES = 512 * 2**20
"""Largest manifest that is read: about a million artefacts."""


class DamagedError(Exception):
    """A manifest that cannot be used, and why."""


class _NewerError(DamagedError):
    """A manifest of a later schema than this version knows: nothing is wrong with it."""


@dataclass(frozen=True, slots=True)
class Entry:
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
class Run:
    """A committed run: its manifest, and which of the segments it names are there."""

    run_id: RunId
    created_ns: int
    artefacts: tuple[Entry, ...]
    losses: tuple[tuple[str, Loss], ...]
    """With the hash of the artefact."""
    files: frozenset[str]
    schema: int = SCHEMA_VERSION

    def missing(self, entry: Entry) -> list[str]:
        """Segments of an artefact that the manifest names and the folder lacks."""
        return [name for name in entry.names() if name not in self.files]


def manifest_text(
    run_id: RunId, created_ns: int, entries: Iterable[Entry], losses: Iterable[tuple[str, Loss]]
) -> bytes:
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


def committed_run(folder: Path) -> Run | None:
    """The run in a folder, None if there is none or it is damaged. Raises InputError if a later version wrote it."""
    try:
        return _read_run(LocalPlace(folder.parent), folder.name)
    except _NewerError as newer:
        raise InputError(f"{folder / MANIFEST}: {newer}") from newer
    except DamagedError:
        return None


def all_runs(place: Place) -> tuple[list[Run], list[Loss]]:
    """Every committed run, earliest first, and what is wrong with the others."""
    runs: list[Run] = []
    problems: list[Loss] = []

    def read(run_id: str) -> Run | Loss | None:
        try:
            return _read_run(place, run_id)
        except DamagedError as damage:
            return Loss("damaged-manifest", f"{place.shown}/{run_id}/{MANIFEST}", None, str(damage))

    for found in mapped(place, read, place.runs()):
        if isinstance(found, Run):
            runs.append(found)
        elif found is not None:
            problems.append(found)
    return sorted(runs, key=lambda run: (run.created_ns, run.run_id)), problems


def is_whole(run: Run) -> bool:
    """Whether every segment that the manifest names is there."""
    return not any(run.missing(entry) for entry in run.artefacts)


def choose(runs: Sequence[Run]) -> tuple[dict[str, tuple[Run, Entry]], list[tuple[Run, Entry, str]]]:
    """For each artefact the first run that has all its segments; for those without such a run the segments missing."""
    chosen: dict[str, tuple[Run, Entry]] = {}
    missing: dict[str, list[tuple[Run, Entry, str]]] = {}
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


def _read_run(place: Place, of: str) -> Run | None:
    """The run in a folder, None if nothing was committed there. Raises DamagedError if the manifest cannot be used."""
    again = "Read its files again with --store to mend it, or remove the folder"
    try:
        names = frozenset(place.names(of))
        if MANIFEST not in names:
            return None
        text = place.read(of, MANIFEST)
        if len(text) > _MANIFEST_BYTES:
            raise DamagedError(f"the manifest is larger than {_MANIFEST_BYTES} bytes. {again}.")
        content = json.loads(text)
        version = typed(content, dict)["schema"]
        if typed(version, int) > SCHEMA_VERSION:
            raise _NewerError(
                f"written by a later version (schema {version}, this one knows {SCHEMA_VERSION}). Update busbw."
            )
        if version < 1:
            raise DamagedError(f"there is no schema {version}. {again}.")
        entries = tuple(_entry(item) for item in typed(content["artefacts"], list))
        losses = tuple((typed(item["artefact"], str), _loss(item)) for item in typed(content["losses"], list))
        run_id, created_ns = typed(content["run_id"], str), typed(content["created_ns"], int)
        if run_id != of or run_id != run_id_of(entry.sha256 for entry in entries):
            raise DamagedError(f"the manifest is another run's ({run_id}). {again}.")
        return Run(run_id, created_ns, entries, losses, names, version)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise DamagedError(f"cannot be read: {error.strerror}. Check its permissions.") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise DamagedError(f"the manifest is damaged ({error!r:.200}). {again}.") from error


def _entry(item: Any) -> Entry:
    """Raises ValueError, KeyError or TypeError if this is no artefact of a manifest."""
    entry = Entry(
        sha256=typed(item["sha256"], str),
        path=typed(item["path"], str),
        size_bytes=typed(item["size_bytes"], int),
        copies=tuple(typed(path, str) for path in item["copies"]),
        formats=tuple(typed(name, str) for name in item["formats"]),
        segments={
            table: [typed(name, str) for name in typed(names, list)] for table, names in item["segments"].items()
        },
        rows={table: typed(rows, int) for table, rows in item["rows"].items()},
    )
    if not SHA256.fullmatch(entry.sha256):
        raise ValueError(f"{entry.sha256!r} is no SHA-256")
    for table, names in entry.segments.items():
        for name in names:
            match = SEGMENT.fullmatch(name)
            if (
                match is None
                or match["table"] != table
                or match["artefact"] != entry.sha256[:32]
                or table not in ROW_TABLES
            ):
                raise ValueError(f"{name!r} is no segment of {table}")
    return entry


def _loss(item: Any) -> Loss:
    line = item["line"]
    return Loss(
        kind=typed(item["kind"], str),
        path=typed(item["path"], str),
        line=None if line is None else typed(line, int),
        detail=typed(item["detail"], str),
        count=typed(item["count"], int),
    )


def typed(value: Any, kind: type) -> Any:
    """The value. Raises TypeError if it is of another type."""
    if type(value) is not kind:
        raise TypeError(f"expected {kind.__name__}, found {value!r:.80}")
    return value
