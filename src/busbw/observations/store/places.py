"""Where a store lies: a folder whose files appear whole and stay, whatever keeps them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol, TypeVar

from busbw.observations.store.files import (
    create,
    make_durable,
    make_folder,
    names_in,
    remove,
    remove_folder,
    run_folders,
)

__all__ = ["LocalPlace", "Place", "mapped"]


class Place(Protocol):
    """The root of a store. A run is a folder of files; none is ever changed once its name is there."""

    shown: str
    """As the user wrote it."""
    threads: int
    """How many records are read at a time."""

    def runs(self) -> list[str]:
        """Folders that are named like a run, sorted."""
        ...

    def names(self, run: str) -> list[str]:
        """Files of a run; none if it isn't there."""
        ...

    def read(self, run: str, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, OSError."""
        ...

    def write(self, run: str, files: Mapping[str, bytes | memoryview]) -> None:
        """Returns once all files are there for good; each appears whole, and in this order. Raises OSError."""
        ...

    def create(self, run: str, name: str, content: bytes) -> bool:
        """The same for one file, unless the name exists: whether it did not. Raises OSError."""
        ...

    def remove(self, run: str, names: Iterable[str]) -> None:
        """Removes files, if they are there; then the folder, if it is empty."""
        ...


_T = TypeVar("_T")


def mapped(place: Place, work: Callable[[str], _T], runs: Iterable[str]) -> list[_T]:
    """What `work` makes of each run, as many at a time as the place bears."""
    if place.threads == 1:
        return [work(run) for run in runs]
    with ThreadPoolExecutor(place.threads) as pool:
        return list(pool.map(work, runs))


class LocalPlace:
    """A folder of this machine, or one that several machines mount."""

    threads = 1

    def __init__(self, root: Path) -> None:
        self.root, self.shown = root, str(root)

    def runs(self) -> list[str]:
        """Folders that are named like a run, sorted."""
        return [folder.name for folder in run_folders(self.root)]

    def names(self, run: str) -> list[str]:
        """Files of a run; none if it isn't there."""
        return names_in(self.root / run)

    def read(self, run: str, name: str) -> bytes:
        """The content of a file. Raises FileNotFoundError, OSError."""
        return (self.root / run / name).read_bytes()

    def write(self, run: str, files: Mapping[str, bytes | memoryview]) -> None:
        """Returns once all files are there for good; each appears whole, and in this order. Raises OSError."""
        folder = self.root / run
        make_folder(folder)
        written = {self._written(folder, name, content): folder / name for name, content in files.items()}
        make_durable(list(written))
        for temporary, path in written.items():
            temporary.replace(path)
        make_durable([folder])

    def create(self, run: str, name: str, content: bytes) -> bool:
        """The same for one file, unless the name exists: whether it did not. Raises OSError."""
        folder = self.root / run
        make_folder(folder)
        temporary = self._written(folder, name, content)
        make_durable([temporary])
        try:
            (folder / name).hardlink_to(temporary)
        except FileExistsError:
            return False
        finally:
            temporary.unlink()
        make_durable([folder])
        return True

    def remove(self, run: str, names: Iterable[str]) -> None:
        """Removes files, if they are there; then the folder, if it is empty."""
        remove(self.root / run, names)
        remove_folder(self.root / run)

    def _written(self, folder: Path, name: str, content: bytes | memoryview) -> Path:
        temporary = folder / f".{name}.{os.getpid()}.{secrets.token_hex(8)}.part"
        with create(temporary) as out:
            out.write(content)
        return temporary
