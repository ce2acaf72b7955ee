"""One pass over a text: the C++ scanner takes it apart, every line reader gets its share.

Memory is one chunk and its batch, whatever the size of the file; lines without NCCL's marker are kept up to PLAIN_BUDGET_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from busbw.errors import Loss
from busbw.observations import SCHEMAS, Artefact, Rows
from busbw.readers._scan import LogScanner
from busbw.readers.base import Item, LineReader, PlainLine, Template

__all__ = ["PLAIN_BUDGET_BYTES", "TextScan", "fields_of", "scan_text"]

PLAIN_BUDGET_BYTES = 24 * 2**20
"""Text of lines that neither NCCL nor a known message printed, kept for the readers of tables and blocks."""

_LEVELS = np.array([None, "info", "warning", "trace", "call", "warning"], dtype=object)


class TextScan:
    """The grammar of all line readers together, compiled once."""

    def __init__(self, readers: Sequence[LineReader]) -> None:
        self.readers = tuple(readers)
        self.templates: tuple[Template, ...] = tuple(t for reader in self.readers for t in reader.templates)
        self.owner = np.array([i for i, reader in enumerate(self.readers) for _ in reader.templates], dtype=np.int64)
        self._patterns = [t.pattern for t in self.templates]
        self._field_names: list[list[str]] = LogScanner(self._patterns, 0).field_names()
        every_name = [name for names in self._field_names for name in names]
        self._names = pa.array(every_name or [""], type=pa.string())
        starts = np.cumsum([0, *(len(names) for names in self._field_names)])
        self._first_name = starts[:-1].astype(np.int64)
        self._events = pa.array([t.event for t in self.templates] or [""], type=pa.string())
        self._template_levels = np.array([t.level for t in self.templates], dtype=object)

    def scanner(self, plain_budget_bytes: int = PLAIN_BUDGET_BYTES) -> LogScanner:
        """A fresh scanner for one file."""
        return LogScanner(self._patterns, plain_budget_bytes)

    def events(
        self, raw: dict[str, Any], scanner: LogScanner, artefact: Artefact
    ) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
        """Batch of `events` for the lines of NCCL and of known messages, its template indices, and a mask of plain lines in raw."""
        template = raw["template_index"]
        plain = raw["level"] == 0
        kept = ~plain | (template >= 0)
        rows = np.flatnonzero(kept)
        n = len(rows)
        template_kept = template[rows]
        known = template_kept >= 0
        index = pa.array(np.where(known, template_kept, 0), type=pa.int32(), mask=~known)
        levels = _LEVELS[raw["level"][rows]]
        own = known & (raw["level"][rows] == 0)
        if own.any():
            levels = levels.copy()
            levels[own] = self._template_levels[template_kept[own]]
        columns = {
            "artefact": pa.repeat(pa.scalar(artefact.sha256), n),
            "line": pa.array(raw["line"][rows]),
            "byte_offset": pa.array(raw["byte_offset"][rows]),
            "event": self._events.take(index),
            "level": pa.array(levels, type=pa.string()),
            "time_ns": _nullable(raw["time_ns"][rows], pa.int64()),
            "host": _interned(raw["host"][rows], scanner.hosts()),
            "pid": _nullable(raw["pid"][rows], pa.int64()),
            "device": _nullable(raw["device"][rows], pa.int32()),
            "rank": _nullable(raw["rank"][rows], pa.int32()),
            "tid": _nullable(raw["tid"][rows], pa.int64()),
            "location": _interned(raw["location"][rows], scanner.locations()),
            "function": _interned(raw["function"][rows], scanner.functions()),
            "text": _strings(raw["text"]).take(pa.array(rows)),
            "fields": self._words(raw, rows),
        }
        schema = SCHEMAS["events"]
        return pa.RecordBatch.from_arrays([columns[f.name] for f in schema], schema=schema), template_kept, plain

    def _words(self, raw: dict[str, Any], rows: np.ndarray) -> pa.MapArray:
        begin = raw["field_begin"].astype(np.int64)
        counts = (begin[1:] - begin[:-1])[rows]
        offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        row_of_field = np.repeat(np.arange(len(rows)), counts)
        place = np.arange(len(row_of_field)) - offsets[:-1][row_of_field]
        values = _strings(raw["fields"]).take(pa.array(begin[:-1][rows][row_of_field] + place))
        template = raw["template_index"][rows]
        keys = (
            self._names.take(pa.array(self._first_name[template[row_of_field]] + place))
            if len(row_of_field)
            else pa.array([], pa.string())
        )
        return pa.MapArray.from_arrays(pa.array(offsets), keys, values)


def fields_of(events: pa.RecordBatch, *names: str) -> list[pa.Array]:
    """Columns of named fields of events that all come from templates with these fields; NULL where one lacks it."""
    column = events.column("fields")
    out = []
    for name in names:
        out.append(pa.compute.map_lookup(column, query_key=name, occurrence="first"))
    return out


def scan_text(
    artefact: Artefact,
    grammar: TextScan,
    progress: Callable[[int], None] | None = None,
    seen: set[str] | None = None,
    plain_budget_bytes: int = PLAIN_BUDGET_BYTES,
) -> Iterator[Item]:
    """Everything that the line readers find in a text, in batches, and what was left out as losses. Raises OSError.

    `progress` is called with the bytes of each chunk; names of readers that found something are added to `seen`.
    """
    found: set[str] = set() if seen is None else seen
    scanner = grammar.scanner(plain_budget_bytes)
    plain: list[PlainLine] = []
    for chunk in artefact.chunks():
        scanner.feed(chunk)
        yield from _batch(scanner, grammar, artefact, plain, found)
        if progress is not None:
            progress(len(chunk))
    scanner.finish()
    yield from _batch(scanner, grammar, artefact, plain, found)
    for reader in grammar.readers:
        if reader.signature is not None and any(reader.signature.search(line.text) for line in plain):
            for item in reader.read_lines(artefact, plain):
                found.add(reader.name)
                yield item
    yield from _losses(scanner.counts(), artefact)


def _batch(
    scanner: LogScanner, grammar: TextScan, artefact: Artefact, plain: list[PlainLine], found: set[str]
) -> Iterator[Item]:
    raw = scanner.take()
    if len(raw["line"]) == 0:
        return
    batch, template, is_plain = grammar.events(raw, scanner, artefact)
    if is_plain.any():
        plain.extend(_plain_lines(raw, np.flatnonzero(is_plain), scanner, grammar))
    if batch.num_rows:
        yield Rows("events", batch)
        if (template < 0).any():
            found.add("nccl-log")
        owner = np.where(template >= 0, grammar.owner[np.maximum(template, 0)], -1) if len(grammar.owner) else template
        for i, reader in enumerate(grammar.readers):
            mine = np.flatnonzero(owner == i)
            if len(mine):
                found.add(reader.name)
                yield from reader.derive(batch if len(mine) == batch.num_rows else batch.take(pa.array(mine)))


def _plain_lines(raw: dict[str, Any], rows: np.ndarray, scanner: LogScanner, grammar: TextScan) -> Iterator[PlainLine]:
    texts = _strings(raw["text"]).take(pa.array(rows)).to_pylist()
    hosts = _interned(raw["host"][rows], scanner.hosts()).to_pylist()
    for text, number, offset, rank, template, host in zip(
        texts,
        raw["line"][rows].tolist(),
        raw["byte_offset"][rows].tolist(),
        raw["rank"][rows].tolist(),
        raw["template_index"][rows].tolist(),
        hosts,
        strict=True,
    ):
        event = grammar.templates[template].event if template >= 0 else None
        yield PlainLine(number, offset, text, rank if rank >= 0 else None, host, event)


def _losses(counts: dict[str, int], artefact: Artefact) -> Iterator[Loss]:
    if counts["cut_lines"]:
        yield Loss(
            "long-line",
            artefact.path,
            counts["first_cut_line"],
            "a line longer than 64 KiB was read up to there",
            counts["cut_lines"],
        )
    if counts["plain_left_out"]:
        yield Loss(
            "unread-text",
            artefact.path,
            counts["first_plain_left_out"],
            f"more than {PLAIN_BUDGET_BYTES // 2**20} MiB of lines that no tool known here printed; cut the file down to the part of the failure",
            counts["plain_left_out"],
        )


def _strings(pair: tuple[np.ndarray, bytes]) -> pa.StringArray:
    offsets, data = pair
    return pa.StringArray.from_buffers(len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data))


def _interned(codes: np.ndarray, values: tuple[np.ndarray, bytes]) -> pa.StringArray:
    none = codes < 0
    words = _strings(values)
    if len(words) == 0:
        return pa.nulls(len(codes), pa.string())
    return words.take(pa.array(np.where(none, 0, codes), mask=none))


def _nullable(values: np.ndarray, dtype: pa.DataType) -> pa.Array:
    return pa.array(values, type=dtype, mask=values < 0)
