"""Memory that several processes map, with nothing left behind: a name lives only until all have mapped what it names."""

from __future__ import annotations

import mmap
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

__all__ = ["HEAD_BYTES", "SharedMemoryError", "map_all"]

_FOLDER = Path("/dev/shm")
_POLL_S = 0.0005
HEAD_BYTES = 4096
"""At the start of each rank's memory; byte r says that rank r has mapped it. What follows is the caller's."""


class SharedMemoryError(Exception):
    """Memory could not be shared; the message says with whom and how to mend it."""


def map_all(name: str, rank: int, ranks: int, size_bytes: int, wait_s: float) -> list[mmap.mmap]:
    """The memory of all ranks in their order, each HEAD_BYTES and size_bytes long: this rank's is made, zeros, the others' are awaited.

    Every rank calls it with the same name and size. When it returns, this rank's name is gone; the memory goes with the last process,
    however it ends. Raises SharedMemoryError if a rank does not come within wait_s, and for a name that is in use.
    """
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,200}", name):
        raise SharedMemoryError(f"{name!r} is no name for shared memory: letters, digits, '_', '-' and '.'")
    if not 0 <= rank < ranks <= HEAD_BYTES:
        raise SharedMemoryError(f"rank {rank} of {ranks}: ranks are counted from 0, up to {HEAD_BYTES}")
    until = time.monotonic() + wait_s
    length = -(-(HEAD_BYTES + size_bytes) // mmap.PAGESIZE) * mmap.PAGESIZE
    mine = _made(_path(name, rank), length)
    try:
        found = []
        for other in range(ranks):
            mapped = mine if other == rank else _opened(name, other, length, until)
            mapped[rank] = 1
            found.append(mapped)
        everyone = b"\1" * ranks
        _wait(lambda: mine[:ranks] == everyone, until, lambda: f"rank {mine[:ranks].find(0)} of {name}")
        return found
    finally:
        _path(name, rank).unlink(missing_ok=True)


def _path(name: str, rank: int) -> Path:
    return _FOLDER / f"busbw-{name}-{rank}"


def _made(path: Path, length: int) -> mmap.mmap:
    hidden = path.with_name(path.name + ".new")
    try:
        handle = os.open(hidden, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise SharedMemoryError(f"{hidden} exists: another job has this name. Choose another, or remove it.") from None
    except OSError as error:
        raise SharedMemoryError(f"{hidden} can't be made: {error.strerror}. Shared memory is needed there.") from None
    try:
        os.posix_fallocate(handle, 0, length)  # now, not as a bus error later
        mapped = mmap.mmap(handle, length)
        hidden.rename(path)  # whoever sees the name sees all of it
        return mapped
    except OSError as error:
        hidden.unlink(missing_ok=True)
        raise SharedMemoryError(
            f"{hidden}: {length} bytes are not to be had: {error.strerror}. Give {_FOLDER} more room (docker run --shm-size)."
        ) from None
    finally:
        os.close(handle)


def _opened(name: str, rank: int, length: int, until: float) -> mmap.mmap:
    path = _path(name, rank)
    _wait(path.exists, until, lambda: f"rank {rank} of {name}")
    try:
        handle = os.open(path, os.O_RDWR)
    except OSError as error:
        raise SharedMemoryError(f"{path}: {error.strerror}. All ranks must belong to one user.") from None
    try:
        theirs = os.fstat(handle).st_size
        if theirs != length:
            raise SharedMemoryError(
                f"rank {rank} shares {theirs} bytes, this rank {length}: all must ask for the same."
            )
        return mmap.mmap(handle, length)
    finally:
        os.close(handle)


def _wait(come: Callable[[], bool], until: float, who: Callable[[], str]) -> None:
    while not come():
        if time.monotonic() > until:
            raise SharedMemoryError(f"{who()} did not come. See its log; all ranks must run on this machine.")
        time.sleep(_POLL_S)
