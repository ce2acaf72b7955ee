"""From paths to observations: which files there are, what each of them is, and everything it says."""

from __future__ import annotations

import functools
import os
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from busbw.errors import InputError, Loss
from busbw.observations import Artefact
from busbw.readers.base import Item
from busbw.readers.registry import file_readers, line_readers
from busbw.readers.text import TextScan, scan_text

__all__ = ["ReadProgress", "Reading", "find_artefacts", "read_artefact"]

ReadProgress = Callable[[int], None]
"""Called with the number of bytes just read."""

MAX_FILES = 20_000
_MAGIC = {
    b"\x1f\x8b": ("compressed", "gzip file; unpack it first (gunzip)"),
    b"\x28\xb5\x2f\xfd": ("compressed", "zstd file; unpack it first (unzstd)"),
    b"BZh": ("compressed", "bzip2 file; unpack it first (bunzip2)"),
    b"\xfd7zXZ": ("compressed", "xz file; unpack it first (unxz)"),
    b"PK\x03\x04": ("compressed", "zip file; unpack it first (unzip)"),
    b"\xff\xfe": ("not-utf-8", "UTF-16 text; convert it first (iconv -f UTF-16 -t UTF-8)"),
    b"\xfe\xff": ("not-utf-8", "UTF-16 text; convert it first (iconv -f UTF-16 -t UTF-8)"),
}


_CONTROLS = bytes(set(range(32)) - set(b"\t\n\r\x1b\x08\x0c"))
"""Characters that no text has; random bytes are an eighth of them."""


@dataclass(slots=True)
class Reading:
    """What became of one artefact. Complete once its items were consumed."""

    artefact: Artefact
    formats: list[str] = field(default_factory=list)
    """Names of the readers that found something, sorted. Empty: nobody recognised the file."""
    losses: list[Loss] = field(default_factory=list)


def find_artefacts(paths: Sequence[str], spool: Path | None = None) -> tuple[list[Artefact], list[Loss]]:
    """Every file below the given paths, in a stable order, and those that could not be opened.

    `-` is standard input, which is put into the folder `spool`. A file met twice is taken once. Raises InputError for a path that
    does not exist and for more than MAX_FILES files.
    """
    artefacts: list[Artefact] = []
    losses: list[Loss] = []
    seen: set[Path] = set()
    for given in paths:
        if given == "-":
            artefacts.append(_standard_input(spool or Path(tempfile.mkdtemp(prefix="busbw-"))))
            continue
        path = Path(given)
        if not os.path.lexists(path):
            raise InputError(
                f"{given}: there is no such file or folder. Check the path; files are read where they are."
            )
        files = _files_below(path, losses) if path.is_dir() else [path]
        for file in files:
            resolved = file.resolve()
            if resolved in seen:
                continue
            seen.add(resolved)
            if len(seen) > MAX_FILES:
                raise InputError(f"{given}: more than {MAX_FILES} files below it. Name the folder of one job.")
            try:
                mode = file.stat().st_mode
                if not stat.S_ISREG(mode):
                    losses.append(Loss("not-a-file", str(file), None, "a device, socket or pipe; only files are read"))
                    continue
                artefacts.append(Artefact.of(file, str(file)))
            except OSError as error:
                losses.append(_unreadable(file, error))
    return artefacts, losses


def read_artefact(artefact: Artefact, reading: Reading, progress: ReadProgress | None = None) -> Iterator[Item]:
    """Everything that any reader finds in a file. Losses are yielded and kept in `reading`; nothing is raised for what a file holds."""
    try:
        for item in _items(artefact, reading, progress):
            if isinstance(item, Loss):
                reading.losses.append(item)
            yield item
    except OSError as error:
        loss = _unreadable(artefact.file, error)
        reading.losses.append(loss)
        yield loss
    if not reading.formats and not reading.losses:
        loss = Loss(
            "unrecognised",
            artefact.path,
            None,
            "no reader knows anything in this file; `busbw read --help` lists the formats",
        )
        reading.losses.append(loss)
        yield loss


@functools.cache
def _grammar() -> TextScan:
    return TextScan(line_readers())


def _items(artefact: Artefact, reading: Reading, progress: ReadProgress | None) -> Iterator[Item]:
    if artefact.size_bytes == 0:
        yield Loss("empty", artefact.path, None, "the file is empty; was the output redirected, and did the job start?")
        return
    head = artefact.head()
    refused = _refused(head)
    if refused is not None:
        yield Loss(refused[0], artefact.path, None, refused[1])
        return
    for reader in file_readers():
        if reader.sniff(head):
            reading.formats = [reader.name]
            yield from reader.read(artefact)
            if progress is not None:
                progress(artefact.size_bytes)
            return
    seen: set[str] = set()
    yield from scan_text(artefact, _grammar(), progress, seen)
    reading.formats = sorted(seen)


def _refused(head: bytes) -> tuple[str, str] | None:
    for magic, reason in _MAGIC.items():
        if head.startswith(magic):
            return reason
    controls = len(head) - len(head.translate(None, _CONTROLS))
    if head.count(b"\0") * 200 > len(head) or controls * 20 > len(head):
        return "binary", "not a text; tools' output, logs, JSON and XML are read"
    return None


def _files_below(folder: Path, losses: list[Loss]) -> list[Path]:
    def failed(error: OSError) -> None:
        losses.append(_unreadable(Path(error.filename or folder), error))

    files: list[Path] = []
    for root, folders, names in os.walk(folder, onerror=failed):
        folders.sort()
        files.extend(Path(root) / name for name in sorted(names))
        if len(files) > MAX_FILES:
            break
    return files


def _unreadable(file: Path, error: OSError) -> Loss:
    reason = error.strerror or str(error)
    return Loss("unreadable", str(file), None, f"cannot be read: {reason}; check its permissions")


def _standard_input(spool: Path) -> Artefact:
    spool.mkdir(parents=True, exist_ok=True)
    file = spool / "stdin"
    with file.open("wb") as out:
        while chunk := sys.stdin.buffer.read(2**20):
            out.write(chunk)
    return Artefact.of(file, "<stdin>")
