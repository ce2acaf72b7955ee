"""How a row of a table broke: what readers of tables share."""

from __future__ import annotations

from busbw.errors import Losses

__all__ = ["add_broken_row"]


def add_broken_row(losses: Losses, line: int, column: int, columns: int, name: str, *, cut: bool) -> None:
    """Counts a row that breaks in a column (from 1): truncated-row if it ends there, else damaged-row."""
    mend = "the output is cut: run it again" if cut else "another program wrote into it: give it its own file"
    detail = f"a row breaks in column {column} of {columns} ({name}); {mend}"
    losses.add("truncated-row" if cut else "damaged-row", line, detail)
