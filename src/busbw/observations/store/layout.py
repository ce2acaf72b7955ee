"""What lies where in a store.

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

import hashlib
import re
from collections.abc import Iterable
from typing import TypeAlias

from busbw.observations.tables import SCHEMAS

__all__ = [
    "ARTEFACTS", "LOCK", "MANIFEST", "ROW_TABLES", "RUN_ID", "SEGMENT", "SHA256", "TEMPORARY", "TOKEN", "WRITERS",
    "RunId", "run_id_of",
]  # fmt: skip

RunId: TypeAlias = str
"""32 hexadecimal digits: a function of the set of contents that the run read, and of nothing else."""

RUN_ID = re.compile(r"[0-9a-f]{32}")

SHA256 = re.compile(r"[0-9a-f]{64}")

SEGMENT = re.compile(r"(?P<table>[a-z_]+)-(?P<artefact>[0-9a-f]{32})(?:-[0-9]{4,})?\.parquet")

TOKEN = re.compile(r"(?P<run>[0-9a-f]{32})\.(?P<machine>[0-9a-f]{8})\.[0-9a-f]{16}")
"""A writer: its run, the kernel it runs on, and chance."""

TEMPORARY = re.compile(rf"\.{TOKEN.pattern}\..+")

MANIFEST, LOCK, WRITERS, ARTEFACTS = "manifest.json", ".lock", ".writers", "artefacts"

ROW_TABLES = [table for table in SCHEMAS if table not in {"artefacts", "losses"}]
"""Tables that have segments; the other two are kept in the manifests."""


def run_id_of(hashes: Iterable[str]) -> RunId:
    """The name of the run that reads artefacts with these hashes."""
    return hashlib.sha256("\n".join(sorted(set(hashes))).encode("ascii")).hexdigest()[:32]
