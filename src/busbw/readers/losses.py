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

    def add_broken_row(self, line: int, column: int, columns: int, name: str, *, cut: bool) -> None:
        """Counts a row that breaks in a column (from 1): truncated-row if it ends there, else damaged-row."""
        mend = "the output is cut: run it again" if cut else "another program wrote into it: give it its own file"
        detail = f"a row breaks in column {column} of {columns} ({name}); {mend}"
        self.add("truncated-row" if cut else "damaged-row", line, detail)

    def __iter__(self) -> Iterator[Loss]:
        return iter(self._met.values())
