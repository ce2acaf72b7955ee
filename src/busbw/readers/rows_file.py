"""Rows that busbw itself wrote (`busbw simulate --store`): one JSON object a line, the first of which says so.

Format: `busbw.observations.rows_file`. Rows of tables that this version does not know are counted as losses.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pyarrow as pa

from busbw.errors import Losses
from busbw.observations import ROWS_FILE, SCHEMAS, Artefact, rows_of
from busbw.readers.base import Item

__all__ = ["READER"]

_HEAD = f'{{"busbw": "{ROWS_FILE}"'.encode()
_LONGEST_LINE = 1 << 20
_BATCH_ROWS = 10_000
_NO_ROWS = ("artefacts", "cells", "losses")


class RowsFileReader:
    """A file of rows."""

    name = "rows-file"

    def sniff(self, head: bytes) -> bool:
        """By its first key."""
        return head.startswith(_HEAD)

    def read(self, artefact: Artefact) -> Iterator[Item]:
        """The rows, each with its line here."""
        losses = Losses(artefact.path)
        waiting: dict[str, list[dict[str, Any]]] = {}
        for number, offset, line in _lines(artefact, losses):
            if number == 1:
                continue
            found = _row(line)
            if found is None:
                losses.add("damaged-row", number, "a line is cut or no row; write the file again")
                continue
            table, row = found
            if table not in SCHEMAS or table in _NO_ROWS:
                losses.add(
                    "unknown-table", number, f"this version has no table {table[:40]!r}; a later one wrote the file"
                )
                continue
            unknown = set(row) - set(SCHEMAS[table].names)
            if unknown:
                losses.add("unknown-column", number, f"{table} has no column {min(unknown)[:40]!r}, which was left out")
            kept = {name: value for name, value in row.items() if name not in unknown}
            rows = waiting.setdefault(table, [])
            rows.append(kept | {"artefact": artefact.sha256, "line": number, "byte_offset": offset})
            if len(rows) == _BATCH_ROWS:
                yield from _batch(table, waiting.pop(table), losses)
        for table, rows in waiting.items():
            yield from _batch(table, rows, losses)
        yield from losses


READER = RowsFileReader()


def _lines(artefact: Artefact, losses: Losses) -> Iterator[tuple[int, int, bytes]]:
    """Number, offset and bytes of each line; those too long are counted."""
    rest, number, offset, skipping = b"", 0, 0, False
    for chunk in itertools.chain(artefact.chunks(), [b"\n"]):
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            if skipping or len(line) > _LONGEST_LINE:
                losses.add("damaged-row", number, f"a line of more than {_LONGEST_LINE >> 20} MiB is no row")
            elif line.strip():
                yield number, offset, line
            offset, skipping = offset + len(line) + 1, False
        if len(rest) > _LONGEST_LINE:
            offset, rest, skipping = offset + len(rest), b"", True


def _row(line: bytes) -> tuple[str, dict[str, Any]] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(row, dict) or not isinstance(row.get("table"), str):
        return None
    return row.pop("table"), row


def _batch(table: str, rows: list[dict[str, Any]], losses: Losses) -> Iterator[Item]:
    """All rows at once; where one does not fit its table, one by one, to lose only that."""
    try:
        yield rows_of(table, rows)
        return
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        fitting = []
    for row in rows:
        try:
            rows_of(table, [row])
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            losses.add("damaged-row", row["line"], f"a value does not fit its column of {table}")
        else:
            fitting.append(row)
    if fitting:
        yield rows_of(table, fitting)
