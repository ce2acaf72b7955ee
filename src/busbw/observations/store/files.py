"""Files that are written durably or not at all; folders that may vanish meanwhile; the lock of a store."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO

from busbw.errors import InputError
from busbw.observations.store.layout import LOCK, RUN_ID

__all__ = [
    "age_s",
    "create",
    "locked",
    "make_durable",
    "make_folder",
    "names_in",
    "remove",
    "remove_folder",
    "run_folders",
    "utf8",
    "writing_to",
]


@contextlib.contextmanager
def writing_to(root: Path | str) -> Iterator[None]:
    """Turns what the file system refuses into a message."""
    try:
        yield
    except OSError as error:
        if error.errno in {errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK}:
            cause, remedy = "its file system has no file locks", "Use a local disk, or mount with -o flock"
        elif error.errno in {errno.ENOSPC, errno.EDQUOT}:
            cause, remedy = error.strerror or str(error), "Free some space; what was committed before is safe"
        else:
            cause, remedy = (
                error.strerror or str(error),
                "Check that the folder can be written, or give another --store",
            )
        raise InputError(f"{root}: cannot write to the store: {cause}. {remedy}.") from error


@contextlib.contextmanager
def locked(root: Path) -> Iterator[None]:
    """Holds the store's lock; waits for it. The kernel releases it if the process dies."""
    descriptor = os.open(root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def create(path: Path, mode: int = 0o666) -> BinaryIO:
    """A new file. Raises FileExistsError."""
    return os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, mode), "wb")


def make_folder(folder: Path) -> None:
    """Makes a folder, durably, with the folders above it."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    make_durable([folder.parent])


def make_durable(paths: Sequence[Path]) -> None:
    """Waits until files and folders are on disk; many at a time, since a disk takes them in groups."""

    def sync(path: Path) -> None:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    if len(paths) == 1:
        sync(paths[0])
    elif paths:
        with ThreadPoolExecutor(min(16, len(paths))) as pool:
            list(pool.map(sync, paths))


def names_in(folder: Path) -> list[str]:
    """What lies in a folder; nothing if it isn't there."""
    try:
        return [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []


def age_s(path: Path) -> float:
    """Seconds since a file was last written or renamed."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return 0.0
    return time.time() - max(status.st_mtime, status.st_ctime)


def run_folders(root: Path) -> list[Path]:
    """Folders that are named like a run, committed or not; none if the store isn't there."""
    try:
        return [root / name for name in sorted(names_in(root)) if RUN_ID.fullmatch(name)]
    except NotADirectoryError:
        return []
    except OSError as error:
        raise InputError(
            f"{root}: cannot read the store: {error.strerror}. Check the permissions of the folder."
        ) from error


def remove(folder: Path, names: Iterable[str]) -> None:
    """Removes files of a folder, if they are there and this user may."""
    for name in names:
        with contextlib.suppress(PermissionError):  # another user's
            (folder / name).unlink(missing_ok=True)


def remove_folder(folder: Path) -> None:
    """Removes a folder if nothing is in it."""
    with contextlib.suppress(OSError):
        folder.rmdir()


def utf8(text: str) -> str:
    """Text that can be stored: bytes of a file name that are not UTF-8 become U+FFFD."""
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
