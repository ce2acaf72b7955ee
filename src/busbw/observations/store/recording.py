"""A run that is recorded while it is measured: batches of rows that are there for good once `commit` has returned."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from busbw.errors import InputError
from busbw.observations.circumstances import Circumstances
from busbw.observations.secrets import redact_batch, redact_text
from busbw.observations.store.cells import MeasuredCell, cell_number
from busbw.observations.store.files import utf8, writing_to
from busbw.observations.store.layout import ROW_TABLES, RUN_FILE, RunId
from busbw.observations.store.places import Place
from busbw.observations.store.records import (
    Batch,
    Ended,
    Segment,
    artefact_of,
    json_of,
    recorded_run,
    this_writer,
)
from busbw.observations.tables import SCHEMA_VERSION, SCHEMAS, rows_of

__all__ = ["Recorder", "json_bytes", "parquet_of"]

Integers: TypeAlias = npt.NDArray[np.integer[Any]] | Sequence[int] | int | None
"""A value for each sample, one for all, or None: unknown."""

_ROW_GROUP_ROWS = 128 * 1024
"""As in `segments`."""
_WAITING_BYTES = 256 * 2**20
"""Arrow bytes of rows that wait for `commit`; more, and they are committed at once."""
_ZSTD_LEVEL = 1
"""Measured on 2 million lognormal times of 25 cells, 5 % noise, entropy 2.16 bytes: level 1, 3, 9 take 2.41, 2.39, 2.38 bytes each by streams, and 12, 14, 38 ns."""
_ENCODINGS = {
    "iteration": "DELTA_BINARY_PACKED",
    "time_ns": "DELTA_BINARY_PACKED",
    "start_ns": "DELTA_BINARY_PACKED",
    "arrival_ns": "BYTE_STREAM_SPLIT",
}
"""Measured as above, bytes a value with zstd: times 2.36 by differences, 2.41 by streams, 2.73 plain, 3.97 by dictionary; starts 2.33, 3.00,
4.19, 6.55; arrivals, exponential with a mean of 20 us, 2.29, 2.10, 2.26, 2.96. All other columns repeat, which dictionaries make nothing of."""
_PRUNING = ("run_id", "cell", "size_bytes", "rank", "iteration", "time_ns")
"""Columns whose least and greatest value stand beside each row group, so that queries pass over others. In all columns they would be a tenth
of a commit of 10,000 samples."""


class Recorder:
    """Takes samples and other rows of one run, a batch at a time.

    Rows wait in memory until `commit`; what it acknowledged stays, whatever becomes of this process. Any number of recorders, on any
    machines, may write into one run. Leaving the `with` block commits what waits and marks the run as done; an error marks it as died.
    For one thread.
    """

    def __init__(self, place: Place, run_id: RunId, name: str, circumstances: Circumstances, *, resume: bool) -> None:
        self.run_id, self._place = run_id, place
        self._artefact = artefact_of(run_id)
        self._writer = secrets.token_hex(8)
        self._number = 0
        self._open = True
        self._waiting: dict[str, list[pa.Table]] = {}
        self._waiting_bytes = 0
        self._cells: dict[MeasuredCell, int] = {}
        with self._writing():
            begun = RUN_FILE in place.names(run_id)
            if not begun:
                head = {
                    "schema": SCHEMA_VERSION,
                    "run_id": run_id,
                    "name": redact_text(utf8(name)),
                    "created_ns": time.time_ns(),
                    "circumstances": json_of(circumstances.redacted()),
                }
                place.create(run_id, RUN_FILE, json_bytes(head))
            writer = json_of(this_writer(self._writer, resume))
            place.write(run_id, {f"writer-{self._writer}.json": json_bytes({"schema": SCHEMA_VERSION, **writer})})

    def __enter__(self) -> Recorder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._open:
            return
        if error is None:
            self.finish()
            return
        try:
            self.commit()
        except InputError:  # the error that is on its way says more
            self._open = False
        if self._open:
            self.finish(died=f"{type(error).__name__}: {error}")

    def cells(self) -> dict[MeasuredCell, int]:
        """Cells that this run holds for good, of all its recorders, with the number of samples: what need not be measured again."""
        run, _ = recorded_run(self._place, self.run_id)
        return run.cells() if run else {}

    def samples(
        self,
        cell: MeasuredCell,
        *,
        time_ns: Integers,
        rank: Integers,
        iteration: Integers = None,
        calls: Integers = 1,
        start_ns: Integers = None,
        arrival_ns: Integers = None,
        peer: Integers = None,
        host: str | Mapping[int, str] | None = None,
    ) -> None:
        """Adds samples of one cell: arrays of equal length, or one value for all; columns as in `SCHEMAS["samples"]`.

        iteration: counted within each rank if None. host: one for all, or by rank. Raises ValueError for lengths that differ, or what is no integer.
        """
        self._check_open()
        given = {
            "rank": rank, "peer": peer, "iteration": iteration, "calls": calls, "time_ns": time_ns, "start_ns": start_ns,
            "arrival_ns": arrival_ns,
        }  # fmt: skip
        arrays = {name: _integers(name, value) for name, value in given.items()}
        lengths = {name: array.size for name, array in arrays.items() if array is not None and array.ndim}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} {length}" for name, length in lengths.items())
            raise ValueError(f"columns of samples differ in length: {told}")
        rows = next(iter(lengths.values()), 1)
        if not rows:
            return
        ranks = arrays["rank"]
        if ranks is not None and ranks.min() < 0:
            raise ValueError(f"rank {int(ranks.min())} is below 0")
        if ranks is not None and ranks.ndim and (ranks[1:] < ranks[:-1]).any():
            order = np.argsort(ranks, kind="stable")  # a rank's samples together cost fewer bytes
            arrays = {name: a[order] if a is not None and a.ndim else a for name, a in arrays.items()}
        if arrays["iteration"] is None:
            arrays["iteration"] = _counted(arrays["rank"], rows)
        schema = SCHEMAS["samples"]
        same = {
            "artefact": self._artefact,
            "run_id": self.run_id,
            "cell": cell_number(cell),
            "host": host,
            **cell._asdict(),
        }
        columns = [
            _column(arrays[field.name], rows, field.type)
            if field.name in arrays
            else _hosts(host, arrays["rank"], rows)
            if field.name == "host" and isinstance(host, Mapping)
            else _same(same.get(field.name), rows, field.type)
            for field in schema
        ]
        self._cells[cell] = self._cells.get(cell, 0) + rows
        self._wait("samples", pa.table(columns, names=schema.names))

    def append(self, table: str, rows: pa.RecordBatch | pa.Table | Iterable[Mapping[str, Any]]) -> None:
        """Adds rows of any table but samples: Arrow columns, or dictionaries. What is missing is NULL; `artefact` is filled in.

        Raises ValueError for another table, or columns that it does not have or that do not fit.
        """
        self._check_open()
        if table == "samples" or table not in ROW_TABLES:
            listed = ", ".join(name for name in ROW_TABLES if name != "samples")
            raise ValueError(
                f"no rows can be added to {table!r} here; tables: {listed}"
                + "; samples() adds samples" * (table == "samples")
            )
        schema = SCHEMAS[table]
        if not isinstance(rows, pa.RecordBatch | pa.Table):
            try:
                rows = rows_of(table, rows).batch
            except KeyError as error:
                raise ValueError(str(error.args[0])) from error
        unknown = set(rows.schema.names) - set(schema.names)
        if unknown:
            raise ValueError(f"table {table} has no column {', '.join(sorted(unknown))}")
        try:
            columns = [
                pa.array([self._artefact]).take(pa.array(np.zeros(rows.num_rows, np.int8)))
                if field.name == "artefact"
                else rows.column(field.name).cast(field.type)
                if field.name in rows.schema.names
                else pa.nulls(rows.num_rows, field.type)
                for field in schema
            ]
        except pa.ArrowException as error:
            raise ValueError(f"rows of {table} do not fit its columns: {error}") from error
        batches = pa.table(columns, schema=schema).combine_chunks().to_batches()
        if batches:
            self._wait(table, pa.Table.from_batches([redact_batch(batch) for batch in batches], schema))

    def commit(self) -> int:
        """How many rows of those that waited are durable and visible now: no crash undoes what has returned.

        Raises InputError if the store cannot be written; then nothing is known of these rows, and the recorder takes no more.
        """
        self._check_open()
        if not self._waiting:
            return 0
        self._number += 1
        batch = f"{self._writer}-{self._number:06d}"
        self._open = False
        with self._writing():
            files, segments = {}, {}
            for table, waiting in self._waiting.items():
                rows, name = pa.concat_tables(waiting), f"rows-{batch}-{table}.parquet"
                content, missing = parquet_of(table, rows)
                files[name] = memoryview(content)
                segments[table] = (Segment(name, rows.num_rows, content.size, missing),)
            record = Batch(batch, time.time_ns(), SCHEMA_VERSION, segments, tuple(self._cells.items()))
            self._place.write(self.run_id, {**files, f"commit-{batch}.json": json_bytes(json_of(record))})
        self._open = True
        self._waiting, self._waiting_bytes, self._cells = {}, 0, {}
        return sum(segment.rows for listed in segments.values() for segment in listed)

    @property
    def is_open(self) -> bool:
        """Whether it takes rows: until it is finished, or could not write."""
        return self._open

    def finish(self, *, died: str | None = None) -> None:
        """Commits what waits and says how this recorder ended: done, or died and why. Ends the recorder. Raises InputError.

        One that could not write has nothing to commit, and says how it ended if there is room for that.
        """
        if self._open:
            self.commit()
        ended = Ended("done" if died is None else "died", redact_text(utf8(died or "")), time.time_ns())
        self._open = False
        with self._writing():
            self._place.write(
                self.run_id, {f"end-{self._writer}.json": json_bytes({"schema": SCHEMA_VERSION, **json_of(ended)})}
            )

    def _wait(self, table: str, rows: pa.Table) -> None:
        self._waiting.setdefault(table, []).append(rows)
        self._waiting_bytes += rows.nbytes
        if self._waiting_bytes > _WAITING_BYTES:
            self.commit()

    def _writing(self) -> Any:
        return writing_to(self._place.shown)

    def _check_open(self) -> None:
        if not self._open:
            raise ValueError(f"this recorder of run {self.run_id} has ended, or could not write; begin another")


def parquet_of(table: str, rows: pa.Table) -> tuple[pa.Buffer, tuple[str, ...]]:
    """A Parquet file of rows of a table, in memory; and the columns that it leaves out, since they are NULL throughout."""
    missing = tuple(name for name in rows.schema.names if rows.column(name).null_count == rows.num_rows)
    rows = rows.drop_columns(list(missing)).unify_dictionaries()
    out = pa.BufferOutputStream()
    options: dict[str, Any] = {}
    if table == "samples":
        kept = set(rows.schema.names)
        options = {
            "use_dictionary": [name for name in rows.schema.names if name not in _ENCODINGS],
            "column_encoding": {name: encoding for name, encoding in _ENCODINGS.items() if name in kept},
            "write_statistics": [name for name in _PRUNING if name in kept],
        }
    pq.write_table(
        rows, out, compression="zstd", compression_level=_ZSTD_LEVEL, row_group_size=_ROW_GROUP_ROWS, store_schema=False, **options
    )  # fmt: skip
    return out.getvalue(), missing


def json_bytes(item: Any) -> bytes:
    """A record as it is written."""
    return json.dumps(item, separators=(",", ":")).encode("ascii")


def _integers(name: str, value: Integers) -> npt.NDArray[np.int64] | None:
    if value is None:
        return None
    array = np.asarray(value)
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(f"{name} holds {array.dtype}; integers are wanted, times in nanoseconds")
    if array.ndim > 1:
        raise ValueError(f"{name} has {array.ndim} dimensions; one value a sample is wanted")
    return array.astype(np.int64, copy=False)


def _counted(ranks: npt.NDArray[np.int64] | None, rows: int) -> npt.NDArray[np.int64]:
    """0, 1, ... within each run of equal ranks."""
    index = np.arange(rows, dtype=np.int64)
    if ranks is None or not ranks.ndim:
        return index
    starts = np.flatnonzero(np.concatenate([[True], ranks[1:] != ranks[:-1]]))
    return index - np.repeat(starts, np.diff(np.append(starts, rows)))


def _column(value: npt.NDArray[np.int64] | None, rows: int, kind: pa.DataType) -> pa.Array:
    if value is None:
        return pa.nulls(rows, kind)
    whole = np.broadcast_to(value, (rows,)) if value.ndim == 0 else value
    if kind == pa.int32() and whole.size and not -(2**31) <= int(whole.min()) <= int(whole.max()) < 2**31:
        raise ValueError(f"{int(whole.max())} does not fit into 32 bits")
    return pa.array(np.ascontiguousarray(whole)).cast(kind)


def _hosts(hosts: Mapping[int, str], ranks: npt.NDArray[np.int64] | None, rows: int) -> pa.Array:
    """The host of each sample's rank; NULL where the mapping has none."""
    if ranks is None:
        return _same(None, rows, pa.string())
    codes = np.full(int(ranks.max(initial=0)) + 1, -1, np.int32)
    names: dict[str, int] = {}
    for rank, host in hosts.items():
        if 0 <= rank < codes.size:
            codes[rank] = names.setdefault(host, len(names))
    found = np.broadcast_to(codes[ranks], (rows,))
    return pa.DictionaryArray.from_arrays(pa.array(found, mask=found < 0), pa.array(list(names), pa.string()))


def _same(value: Any, rows: int, kind: pa.DataType) -> pa.Array:
    """One value many times, as a dictionary where it is text."""
    if value is None:
        return pa.nulls(rows, pa.dictionary(pa.int32(), kind) if pa.types.is_string(kind) else kind)
    if pa.types.is_string(kind):
        return pa.DictionaryArray.from_arrays(pa.array(np.zeros(rows, np.int32)), pa.array([value], kind))
    return pa.repeat(pa.scalar(value, kind), rows)
