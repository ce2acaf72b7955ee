"""Rows of the tables as a text file, one JSON object a line: what busbw itself finds, in a form that is kept and read as any tool's output.

The first line says what made them: {"busbw": "observations", "schema": 1, ...}; each other is {"table": NAME, column: value, ...}, unknown columns
left out. `busbw.readers.rows_file` reads it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from busbw.observations.tables import SCHEMA_VERSION, Rows

__all__ = ["ROWS_FILE", "rows_lines"]

ROWS_FILE = "observations"
"""What the first line says under `busbw`."""
_PLACE = ("artefact", "line", "byte_offset")


def rows_lines(said: Mapping[str, Any], rows: Iterable[Rows]) -> Iterator[str]:
    """The lines of a file of rows, ends of lines included; the same rows give the same bytes. said: what the first line tells besides.

    Where rows came from is not written: once read, they point into this file.
    """
    yield _line({"busbw": ROWS_FILE, "schema": SCHEMA_VERSION, **said})
    for part in rows:
        columns = [name for name in part.batch.schema.names if name not in _PLACE]
        for row in part.batch.select(columns).to_pylist():
            # Arrow gives a map as a list of pairs.
            known = {
                name: dict(value) if isinstance(value, list) and value and isinstance(value[0], tuple) else value
                for name, value in row.items()
                if value is not None
            }
            yield _line({"table": part.table, **known})


def _line(value: Mapping[str, Any]) -> str:
    return json.dumps(value, allow_nan=False) + "\n"
