"""An artefact is one file a user handed over: the thing every row points into."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["CHUNK_BYTES", "DATABASE_HEADER", "Artefact", "is_database", "sha256_of"]

CHUNK_BYTES = 4 * 2**20
"""How much of a file is in memory at a time."""
DATABASE_HEADER = b"SQLite format 3\0"
"""First bytes of an SQLite file. Source: sqlite.org/fileformat2.html, section 1.3."""


@dataclass(frozen=True, slots=True)
class Artefact:
    """One file: its content hash names it everywhere, its path is for people."""

    sha256: str
    path: str
    """As shown to the user: relative to what was given on the command line."""
    file: Path
    """Where the bytes are now."""
    size_bytes: int

    @classmethod
    def of(cls, file: Path, shown_as: str) -> Artefact:
        """The artefact at `file`. Raises OSError if it cannot be read."""
        return cls(sha256_of(file), shown_as, file, file.stat().st_size)

    @classmethod
    def written(cls, pieces: Iterable[bytes], file: Path, shown_as: str) -> Artefact:
        """The artefact made of these pieces, hashed while they are written to a new file that only its owner reads. Raises OSError."""
        digest, size = hashlib.sha256(), 0
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as out:
            for piece in pieces:
                digest.update(piece)
                size += len(piece)
                out.write(piece)
        return cls(digest.hexdigest(), shown_as, file, size)

    def chunks(self) -> Iterator[bytes]:
        """The bytes in pieces of at most CHUNK_BYTES. Raises OSError."""
        with self.file.open("rb") as stream:
            while chunk := stream.read(CHUNK_BYTES):
                yield chunk

    def head(self, size: int = 64 * 1024) -> bytes:
        """The first bytes, for telling formats apart. Raises OSError."""
        with self.file.open("rb") as stream:
            return stream.read(size)


def is_database(file: Path) -> bool:
    """Whether a file is a database, which has rows and no lines. Raises OSError."""
    with file.open("rb") as stream:
        return stream.read(len(DATABASE_HEADER)) == DATABASE_HEADER


def sha256_of(file: Path) -> str:
    """Content hash of a file, hexadecimal. Raises OSError."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
