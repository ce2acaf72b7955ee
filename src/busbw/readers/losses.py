"""Damage of one file, counted by kind: what readers of tables share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from busbw.errors import Loss

__all__ = ["Losses"]


class Losses:
    """Losses of one file: of each kind the first place, and how often."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._met: dict[str, Loss] = {}

    def add(self, kind: str, line: int | None, detail: str) -> None:
        """Counts one. Line and detail are kept of the first of its kind."""
        known = self._met.get(kind)
        self._met[kind] = replace(known, count=known.count + 1) if known else Loss(kind, self._path, line, detail)

    def __iter__(self) -> Iterator[Loss]:
        return iter(self._met.values())
