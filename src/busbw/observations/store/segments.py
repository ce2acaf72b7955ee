"""Rows of one table of one artefact on their way into Parquet files."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any, BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from busbw.observations.store.files import create

__all__ = ["TableWriter"]

_ROW_GROUP_ROWS = 128 * 1024
"""Near DuckDB's 122,880 rows a group, the unit of its parallelism. Source: DuckDB, "Parquet tips", row group size."""

_ROW_GROUP_BYTES = 32 * 2**20
"""Arrow bytes of one table of one artefact that wait in memory for their row group."""


class TableWriter:
    """Rows of one table of one artefact on their way to disk: some wait in memory, the others are in the parts."""

    def __init__(self, stem: Path, schema: pa.Schema) -> None:
        self._stem, self._schema = stem, schema
        self._waiting: list[pa.RecordBatch] = []
        self.waiting_rows = self.waiting_bytes = self.rows = 0
        self.parts: list[Path] = []
        self.last_flush = 0
        self._stream: BinaryIO | None = None
        self._writer: Any = None

    @property
    def is_open(self) -> bool:
        """Whether a part is being written."""
        return self._stream is not None

    @property
    def fills_a_group(self) -> bool:
        """Whether what waits is worth a row group."""
        return self.waiting_rows >= _ROW_GROUP_ROWS or self.waiting_bytes >= _ROW_GROUP_BYTES

    def wait(self, batch: pa.RecordBatch) -> None:
        """Takes rows into memory."""
        self._waiting.append(batch)
        self.waiting_rows += batch.num_rows
        self.waiting_bytes += batch.nbytes
        self.rows += batch.num_rows

    def flush(self) -> None:
        """Writes what waits into the open part, a new one if none is open."""
        if not self._waiting:
            return
        if self._stream is None:
            self.parts.append(self._stem.with_name(f"{self._stem.name}.{len(self.parts):04d}"))
            self._stream = create(self.parts[-1])
            self._writer = pq.ParquetWriter(self._stream, self._schema, compression="zstd")
        self._writer.write_table(pa.Table.from_batches(self._waiting, self._schema), row_group_size=_ROW_GROUP_ROWS)
        self._waiting, self.waiting_rows, self.waiting_bytes = [], 0, 0
        self.last_flush = time.monotonic_ns()

    def close(self) -> None:
        """Ends the open part; the next `flush` starts another."""
        if self._stream is not None:
            self._writer.close()
            self._stream.close()
        self._stream = self._writer = None

    def abandon(self) -> None:
        """Closes the file without caring whether it is whole: it is about to be removed."""
        self._waiting = []
        with contextlib.suppress(OSError):
            self.close()
