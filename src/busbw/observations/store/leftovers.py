"""Which writers live, told by marks that they keep locked; and the removal of what the others left."""

from __future__ import annotations

import fcntl
import functools
import hashlib
import os
import platform
import secrets
from pathlib import Path

from busbw.observations.store.files import age_s, names_in, remove, remove_folder, run_folders
from busbw.observations.store.layout import (
    ARTEFACTS,
    MANIFEST,
    SEGMENT,
    TEMPORARY,
    TOKEN,
    WRITERS,
    RunId,
)

__all__ = ["new_token", "remove_leftovers", "remove_writer", "take_mark"]


def new_token(run_id: RunId) -> str:
    """A name for a writer that no other has: its run, the kernel it runs on, and chance."""
    return f"{run_id}.{_machine()}.{secrets.token_hex(8)}"


def take_mark(root: Path, token: str) -> int:
    """Marks a writer as living: a file that it keeps locked. The store's lock is held."""
    descriptor = os.open(root / WRITERS / token, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    return descriptor


def remove_leftovers(root: Path, stale_after_s: float) -> None:
    """Removes what killed writers left. The store's lock is held, so nobody is publishing."""
    marks = root / WRITERS
    for name in names_in(marks):
        if TOKEN.fullmatch(name) and _is_gone(marks / name, stale_after_s):
            remove_writer(root, name)
    writing = {name.partition(".")[0] for name in names_in(marks)}
    for folder in run_folders(root):
        if folder.name in writing or (folder / MANIFEST).exists():
            continue
        remove(
            folder, [name for name in names_in(folder) if _is_leftover(name) and age_s(folder / name) > stale_after_s]
        )
        if age_s(folder) > stale_after_s:
            remove_folder(folder)


def remove_writer(root: Path, token: str) -> None:
    """Removes a writer's temporary files, segments it did not commit, and its mark. The store's lock is held."""
    folder = root / token.partition(".")[0]
    for place in (folder, root / ARTEFACTS):
        remove(place, [name for name in names_in(place) if name.startswith(f".{token}.")])
    (root / WRITERS / token).unlink(missing_ok=True)
    others = any(name.startswith(f"{folder.name}.") for name in names_in(root / WRITERS))
    if not (folder / MANIFEST).exists() and not others:
        remove(folder, [name for name in names_in(folder) if SEGMENT.fullmatch(name)])
        remove_folder(folder)


def _is_gone(mark: Path, stale_after_s: float) -> bool:
    """Whether the writer of a mark lives no more.

    Locks may not reach across machines: a writer on another one must also have been silent for long.
    """
    try:
        descriptor = os.open(mark, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    except OSError:  # another user's
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return f".{_machine()}." in mark.name or age_s(mark) > stale_after_s
    finally:
        os.close(descriptor)


def _is_leftover(name: str) -> bool:
    return SEGMENT.fullmatch(name) is not None or TEMPORARY.fullmatch(name) is not None


@functools.cache
def _machine() -> str:
    """Names the running kernel: among its processes a lock that can be taken tells for sure that its holder is gone."""
    try:
        name = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii")
    except OSError:
        name = platform.node()
    return hashlib.sha256(name.encode()).hexdigest()[:8]
