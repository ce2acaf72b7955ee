"""From paths to observations: which files there are, what each of them is, and everything it says."""

from __future__ import annotations

import atexit
import errno
import functools
import hashlib
import os
import shutil
import stat
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from busbw.errors import InputError, Loss
from busbw.observations import Artefact
from busbw.observations.store.layout import ARTEFACTS, MANIFEST, RUN_ID, WRITERS
from busbw.readers.archives import Limits, Unpacker, is_packed
from busbw.readers.base import FileReader, Item
from busbw.readers.registry import file_readers, line_readers
from busbw.readers.text import TextScan, scan_text

__all__ = ["ReadProgress", "Reading", "files_below", "find_artefacts", "read_artefact"]

ReadProgress = Callable[[int], None]
"""Called with the number of bytes just read."""

MAX_FILES = 20_000
_HASHED_BYTES = 256 * 2**10


def _utf_16(order: str = "") -> tuple[str, str]:
    return "not-utf-8", f"UTF-16 text; convert it first (iconv -f UTF-16{order} -t UTF-8)"


_MAGIC = {
    b"\x1f\x8b": ("compressed", "gzip file; unpack it first (gunzip)"),
    b"\x28\xb5\x2f\xfd": ("compressed", "zstd file; unpack it first (unzstd)"),
    b"BZh": ("compressed", "bzip2 file; unpack it first (bunzip2)"),
    b"\xfd7zXZ": ("compressed", "xz file; unpack it first (unxz)"),
    b"PK\x03\x04": ("compressed", "zip file; unpack it first (unzip)"),
    b"\xff\xfe": _utf_16(),
    b"\xfe\xff": _utf_16(),
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


def find_artefacts(
    paths: Sequence[str],
    spool: Path | None = None,
    *,
    limits: Limits | None = None,
    progress: ReadProgress | None = None,
) -> tuple[list[Artefact], list[Loss]]:
    """Every file below the given paths, in a stable order, and those that could not be opened.

    Archives stand for their members, shown as `bundle.tar.gz!node0/nccl.log`; a compressed file for what it expands to,
    under its own name. These, and `-`, standard input, are put below the folder `spool`, which its owner removes; without
    one, below a temporary folder that goes with the process. A file met twice is taken once. Stores of busbw are left
    out. `progress` gets the bytes of the files as they lie. Raises InputError for a path that does not exist or is
    empty and for more than MAX_FILES files.
    """
    artefacts: list[Artefact] = []
    losses: list[Loss] = []
    seen: set[str] = set()

    @functools.cache
    def folder() -> Path:
        return _spool_folder(spool)

    unpacker = Unpacker(folder, limits or Limits(), _refused, progress)
    for given in paths:
        if given == "-":
            artefacts += unpacker.stream(sys.stdin.buffer, "<stdin>")
            continue
        if not given:
            raise InputError("'': the path is empty. Name a file or folder; the current folder is written as a dot.")
        path = Path(given)
        try:
            path.lstat()
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"{given}: there is no such file or folder. Check the path; files are read where they are."
            ) from None
        except OSError as error:
            losses.append(_unreadable(path, error))
            continue
        for file in files_below(path, losses):
            try:
                mode = file.stat().st_mode
                resolved = os.path.realpath(file)
                if resolved in seen:
                    continue
                seen.add(resolved)
                if len(seen) > MAX_FILES:
                    raise InputError(f"{given}: more than {MAX_FILES} files below it. Name the folder of one job.")
                if not stat.S_ISREG(mode):
                    losses.append(Loss("not-a-file", str(file), None, _what_it_is(mode)))
                elif is_packed(_head(file)):
                    artefacts += unpacker.file(file, str(file))
                else:
                    artefacts.append(_hashed(file, progress))
            except OSError as error:
                losses.append(_unreadable(file, error))
    return artefacts, [*losses, *unpacker.losses]


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
    except (ValueError, OverflowError) as error:  # a number of thousands of digits, which no tool prints
        loss = Loss(
            "damaged-number",
            artefact.path,
            None,
            f"a number in it cannot be read ({error}); what follows it in this file was left out; cut the damaged lines",
        )
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
    try:
        return TextScan(line_readers())
    except ValueError as error:  # a reader's mistake, which must not pass for damage of a file
        raise TypeError(f"a template of a reader does not compile: {error}") from error


def _items(artefact: Artefact, reading: Reading, progress: ReadProgress | None) -> Iterator[Item]:
    if artefact.size_bytes == 0:
        yield Loss("empty", artefact.path, None, "the file is empty; was the output redirected, and did the job start?")
        return
    head = artefact.head()
    reader = _document_reader(head)
    if reader is not None:
        reading.formats = [reader.name]
        yield from reader.read(artefact)
        if progress is not None:
            progress(artefact.size_bytes)
        return
    refused = _why_no_text(head)
    if refused is not None:
        yield Loss(refused[0], artefact.path, None, refused[1])
        return
    seen: set[str] = set()
    yield from scan_text(artefact, _grammar(), progress, seen)
    reading.formats = sorted(seen)


def _document_reader(head: bytes) -> FileReader | None:
    return next((reader for reader in _document_readers() if reader.sniff(head)), None)


@functools.cache
def _document_readers() -> tuple[FileReader, ...]:
    return file_readers()


def _refused(head: bytes) -> tuple[str, str] | None:
    """Kind and detail of the loss of a file that begins like this; None for what may be read."""
    return None if _document_reader(head) is not None else _why_no_text(head)


def _why_no_text(head: bytes) -> tuple[str, str] | None:
    for magic, reason in _MAGIC.items():
        if head.startswith(magic):
            return reason
    halves = {"LE": (head[::2], head[1::2]), "BE": (head[1::2], head[::2])}
    for order, (characters, zeros) in halves.items():
        if len(zeros) > 3 and zeros.count(0) * 10 > len(zeros) * 9 and not _is_binary(characters):
            return _utf_16(order)
    return ("binary", "not a text; tools' output, logs, JSON and XML are read") if _is_binary(head) else None


def _is_binary(head: bytes) -> bool:
    controls = len(head) - len(head.translate(None, _CONTROLS))
    return head.count(0) * 200 > len(head) or controls * 20 > len(head)


def _what_it_is(mode: int) -> str:
    """Of something that is neither file nor folder, for people."""
    if stat.S_ISFIFO(mode) or stat.S_ISCHR(mode):
        name = "a pipe" if stat.S_ISFIFO(mode) else "a terminal or another device"
        return f"{name}, and only files are read; pipe it and use -: COMMAND | busbw explain -"
    return f"a {'socket' if stat.S_ISSOCK(mode) else 'device'}; only files are read"


def files_below(path: Path, losses: list[Loss]) -> list[Path]:
    """A folder's files in a stable order, MAX_FILES and a few at most, without those in stores; a file is itself."""
    if not os.path.isdir(path):  # noqa: PTH112 - Path.is_dir raises where a folder above cannot be searched
        return [path]

    def failed(error: OSError) -> None:
        losses.append(_unreadable(Path(error.filename or path), error))

    files: list[Path] = []
    for root, folders, names in os.walk(path, onerror=failed):
        if _is_store(Path(root), folders):
            folders.clear()
            detail = (
                "a store of busbw is no output of a job; `busbw query` asks it, and the originals are in its artefacts"
            )
            losses.append(Loss("store-skipped", root, None, detail))
            continue
        folders.sort()
        files.extend(Path(root) / name for name in sorted(names))
        if len(files) > MAX_FILES:
            break
    return files


def _is_store(folder: Path, folders: Sequence[str]) -> bool:
    """Whether a folder with these folders in it is a store: before, between and after its writers (observations/store/layout.py)."""
    if WRITERS in folders and ARTEFACTS in folders:
        return True
    return any(RUN_ID.fullmatch(name) and (folder / name / MANIFEST).is_file() for name in folders)


def _unreadable(file: Path, error: OSError) -> Loss:
    reason = f"cannot be read: {error.strerror or error}"
    if error.errno == errno.ELOOP:
        reason = "a symbolic link that leads back to itself; copy what it should lead to"
    elif error.errno == errno.ENOENT and file.is_symlink():
        target = os.readlink(file)  # noqa: PTH115 - as it is written, without normalising
        reason = f"a symbolic link to {target}, which is not there; copy what it leads to (cp -L, rsync -L, tar -h)"
    elif error.errno in (errno.EACCES, errno.EPERM):
        reason += "; check its permissions"
    else:
        reason += "; copy it to a local disk and read the copy"
    return Loss("unreadable", str(file), None, reason)


def _hashed(file: Path, progress: ReadProgress | None) -> Artefact:
    if progress is None:
        return Artefact.of(file, str(file))
    digest, size = hashlib.sha256(), 0
    with file.open("rb", buffering=0) as stream:
        while piece := stream.read(_HASHED_BYTES):
            digest.update(piece)
            size += len(piece)
            progress(len(piece))
    return Artefact(digest.hexdigest(), str(file), file, size)


def _head(file: Path) -> bytes:
    with file.open("rb") as stream:
        return stream.read(512)


def _spool_folder(spool: Path | None) -> Path:
    """A new folder below `spool`, or one that is removed when the process ends."""
    if spool is None:
        folder = Path(tempfile.mkdtemp(prefix="busbw-"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        return folder
    spool.mkdir(parents=True, exist_ok=True)
    return Path(tempfile.mkdtemp(dir=spool))
