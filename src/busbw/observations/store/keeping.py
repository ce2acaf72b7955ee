"""The kept copy of an artefact: secrets blanked before a byte of it touches the disk."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from busbw.errors import Loss
from busbw.observations.artefacts import DATABASE_HEADER, Artefact
from busbw.observations.secrets import redact
from busbw.observations.store.files import create, writing_to

__all__ = ["keep_copy"]

_OVERLAP_BYTES = 256 * 2**10
"""What `redact` sees on either side of a cut. Linux bounds a variable at 128 KiB (MAX_ARG_STRLEN, execve(2))."""

_COMPRESSED = (b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\x00", b"BZh", b"PK\x03\x04")
"""First bytes of gzip, zstd, xz, bzip2, zip: no secret is seen in them. Source: RFC 1952, RFC 8878, manuals."""


def keep_copy(artefact: Artefact, copy: Path, root: Path, progress: Callable[[], None]) -> Loss | None:
    """None once the redacted copy of an artefact is written; else the loss, and no copy is left.

    progress: called after each piece. Raises InputError, naming `root`, if the store cannot be written.
    """
    reason: Loss | None = None
    digest = hashlib.sha256()
    try:
        if artefact.head(8).startswith(_COMPRESSED):
            reason = Loss(
                "compressed-not-kept", artefact.path, None, "No copy is kept, secrets inside cannot be blanked."
            )
        elif artefact.head(len(DATABASE_HEADER)) == DATABASE_HEADER:
            reason = Loss(
                "database-not-kept", artefact.path, None, "No copy is kept: blanking secrets would damage its pages."
            )
        else:
            with writing_to(root), create(copy, 0o600) as out:
                for piece in _redacted(_source(artefact, digest)):
                    out.write(piece)
                    progress()
            if digest.hexdigest() != artefact.sha256:
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
    if reason is not None:
        copy.unlink(missing_ok=True)
    return reason


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
