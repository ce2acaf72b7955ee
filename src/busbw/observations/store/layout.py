"""What lies where in a store.

    STORE/
        <run id>/                     a run, named after the contents of the files that it read
            manifest.json             the commit record, written last: a run without one is not there
            <table>-<sha256 of the artefact, 32 digits>[-NNNN].parquet
        artefacts/<sha256>            the file as it was handed over, secrets blanked byte for byte
        <run id>/                     a recorded run: rows that a benchmark wrote while it ran (`recording`)
            run.json                  what runs, since when, under which circumstances; without it the folder is no run
            writer-<writer>.json      one a process that writes: where it lives
            rows-<writer>-<number>-<table>.parquet
            commit-<writer>-<number>.json
                                      the commit record of a batch: the rows that it names are there, others are not
            end-<writer>.json         how that writer ended
            sealed-<number>.json      all of the above in one file, for what was compacted; the highest number counts
        .lock                         held while a run is published, for milliseconds
        .writers/<token>              one a writer, locked as long as it lives

Every file is written under a temporary name in its final folder, fsynced, renamed, and the folder fsynced. A writer
that is killed leaves temporary names and segments that no manifest names; readers do not see them, the next `begin`
removes them. Any number of writers and readers may use one store at a time. Runs of files that were read need file locks
(flock), which local disks, NFS and Lustre with `-o flock` have.

Recorded runs need none: no two writers make the same name, and a name appears by rename, which POSIX and NFS make atomic
within a folder. What is relied on besides: fsync of a file and of a folder lasts; renames within a folder reach the disk
in their order, as journals keep them (where they do not, a batch that was not acknowledged yet may show as damage after a
power failure); and a hard link is refused where the name exists (`run.json` and `sealed-` alone).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import TypeAlias

from busbw.observations.tables import SCHEMAS

__all__ = [
    "ARTEFACTS",
    "COMMIT",
    "END",
    "LOCK",
    "MANIFEST",
    "ROWS",
    "ROW_TABLES",
    "RUN_FILE",
    "RUN_ID",
    "SEALED",
    "SEGMENT",
    "SHA256",
    "TEMPORARY",
    "TOKEN",
    "WRITER",
    "WRITERS",
    "RunId",
    "run_id_of",
]  # fmt: skip

RunId: TypeAlias = str
"""32 hexadecimal digits: a function of the set of contents that the run read, and of nothing else."""

RUN_ID = re.compile(r"[0-9a-f]{32}")

SHA256 = re.compile(r"[0-9a-f]{64}")

SEGMENT = re.compile(r"(?P<table>[a-z_]+)-(?P<artefact>[0-9a-f]{32})(?:-[0-9]{4,})?\.parquet")

TOKEN = re.compile(r"(?P<run>[0-9a-f]{32})\.(?P<machine>[0-9a-f]{8})\.[0-9a-f]{16}")
"""A writer: its run, the kernel it runs on, and chance."""

TEMPORARY = re.compile(rf"\.{TOKEN.pattern}\..+")

_WRITER = "(?P<writer>[0-9a-f]{16})"
_BATCH = f"{_WRITER}-(?P<number>[0-9]{{6,}})"
RUN_FILE = "run.json"
WRITER = re.compile(rf"writer-{_WRITER}\.json")
COMMIT = re.compile(rf"commit-(?P<batch>{_BATCH})\.json")
END = re.compile(rf"end-{_WRITER}\.json")
SEALED = re.compile(r"sealed-(?P<number>[0-9]{6,})\.json")
ROWS = re.compile(rf"rows-{_BATCH}-(?P<table>[a-z_]+)\.parquet")

MANIFEST, LOCK, WRITERS, ARTEFACTS = "manifest.json", ".lock", ".writers", "artefacts"

ROW_TABLES = [table for table in SCHEMAS if table not in {"artefacts", "cells", "losses"}]
"""Tables that have segments; the others are kept in the manifests."""


def run_id_of(hashes: Iterable[str]) -> RunId:
    """The name of the run that reads artefacts with these hashes."""
    return hashlib.sha256("\n".join(sorted(set(hashes))).encode("ascii")).hexdigest()[:32]
