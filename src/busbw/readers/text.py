"""One pass over a text: the C++ scanner takes it apart, every line reader gets its share.

Memory is one chunk and its batch, whatever the size of the file; lines without NCCL's marker are kept up to PLAIN_BUDGET_BYTES.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from busbw.errors import Loss
from busbw.observations import SCHEMAS, Artefact, Rows
from busbw.observations.artefacts import CHUNK_BYTES
from busbw.readers._scan import LogScanner
from busbw.readers.base import EventReader, Item, LineReader, PlainLine, TableReader, Template

__all__ = ["PLAIN_BUDGET_BYTES", "TextScan", "scan_text"]

PLAIN_BUDGET_BYTES = 24 * 2**20
"""Text of lines that neither NCCL nor a known message printed, kept for the readers of tables and blocks."""

_LEVELS = pa.array([None, "info", "warning", "trace", "call", "warning", "error"], type=pa.string())
"""By the scanner's number; the last one only templates give."""
_CODE_OF_LEVEL = {None: 0, "info": 1, "warning": 2, "error": 6}
_HEAD = ("line", "byte_offset", "time_ns", "host", "pid", "device", "rank", "tid", "location", "function")
_NO_INTEGER = np.iinfo(np.int64).min


class TextScan:
    """The grammar of all line readers together, compiled once. Templates with a table come before those without."""

    def __init__(self, readers: Sequence[LineReader]) -> None:
        self.readers = tuple(readers)
        self.templates: tuple[Template, ...] = tuple(t for reader in self.readers for t in reader.templates)
        self.owner = np.array([i for i, reader in enumerate(self.readers) for _ in reader.templates], dtype=np.int64)
        with_table = [i for i, t in enumerate(self.templates) if t.table is not None]
        self._compiled = LogScanner([t.pattern for t in self.templates], with_table, 0)
        self._field_names: list[list[str]] = self._compiled.field_names()
        self._field_types: list[str] = self._compiled.field_types()
        every_name = [name for names in self._field_names for name in names]
        self._names = pa.array(every_name or [""], type=pa.string())
        starts = np.cumsum([0, *(len(names) for names in self._field_names)])
        self._first_name = starts.astype(np.int64)
        self._events = pa.array([*(t.event for t in self.templates), None], type=pa.string())
        self._template_levels = np.array([_CODE_OF_LEVEL[t.level] for t in self.templates], dtype=np.int8)

    def scanner(self, plain_budget_bytes: int = PLAIN_BUDGET_BYTES) -> LogScanner:
        """A fresh scanner for one file."""
        return self._compiled.fresh(plain_budget_bytes)

    def events(
        self, raw: dict[str, Any], scanner: LogScanner, artefact: Artefact
    ) -> tuple[pa.RecordBatch, np.ndarray, np.ndarray]:
        """Batch of `events` for the lines of NCCL and of known messages, its template indices, and a mask of plain lines in raw."""
        template, level = raw["template_index"], raw["level"]
        plain = level == 0
        kept = ~plain | (template >= 0)
        text = _strings(raw["text"])
        head = {name: raw[name] for name in _HEAD}
        if not kept.all():  # a line that is left out has no fields
            rows = np.flatnonzero(kept)
            template, level, text = template[rows], level[rows], text.take(pa.array(rows))
            head = {name: values[rows] for name, values in head.items()}
        own = (level == 0) & (template >= 0)
        if own.any():
            level = np.where(own, self._template_levels[template] if len(self._template_levels) else level, level)
        field_counts = np.diff(raw["field_begin"])[kept]
        columns = {
            "artefact": pa.repeat(artefact.sha256, len(template)),
            "line": pa.array(head["line"]),
            "byte_offset": pa.array(head["byte_offset"]),
            "event": self._events.take(pa.array(template % len(self._events))),  # -1: the last one, NULL
            "level": _LEVELS.take(pa.array(level)),
            "time_ns": _nullable(head["time_ns"]),
            "host": _interned(head["host"], scanner.hosts()),
            "pid": _nullable(head["pid"]),
            "device": _nullable(head["device"]),
            "rank": _nullable(head["rank"]),
            "tid": _nullable(head["tid"]),
            "location": _interned(head["location"], scanner.locations()),
            "function": _interned(head["function"], scanner.functions()),
            "text": text,
            "fields": self._words(template, field_counts, raw["fields"]),
        }
        schema = SCHEMAS["events"]
        return pa.RecordBatch.from_arrays([columns[f.name] for f in schema], schema=schema), template, plain

    def _words(self, template: np.ndarray, counts: np.ndarray, fields: tuple[np.ndarray, bytes]) -> pa.MapArray:
        """What the fields of each line are called and hold, as maps."""
        ends = np.cumsum(counts, dtype=np.int32)
        begins = ends - counts
        name = np.repeat(self._first_name[template] - begins, counts) + np.arange(int(counts.sum()))
        return pa.MapArray.from_arrays(
            np.concatenate([[0], ends]).astype(np.int32), self._names.take(pa.array(name)), _strings(fields)
        )

    def rows(self, raw: dict[str, Any], scanner: LogScanner, artefact: Artefact) -> Iterator[tuple[LineReader, Rows]]:
        """Rows of the tables that lines go to, a template at a time, each with the reader whose template it is."""
        for index, taken in raw["rows"].items():
            table = self.templates[index].table
            reader = self.readers[self.owner[index]]
            if table is None:
                continue
            shape = zip(self._field_names[index], self._field_types[index], taken["fields"], strict=True)
            fields = {name: _field(kind, values) for name, kind, values in shape}
            n = len(taken["line"])
            columns = reader.columns(table, fields) if isinstance(reader, TableReader) else fields
            where = {
                "artefact": pa.repeat(artefact.sha256, n),
                "line": pa.array(taken["line"]),
                "byte_offset": pa.array(taken["byte_offset"]),
                "host": _interned(taken["host"], scanner.hosts()),
                "pid": _nullable(taken["pid"]),
                "device": _nullable(taken["device"]),
                "rank": _nullable(taken["rank"]),
            }
            yield reader, _table_rows(table, n, {**columns, **where})


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
    plain = _Plain(grammar)
    for chunk in artefact.chunks():
        scanner.feed(chunk)
        if len(chunk) == CHUNK_BYTES:  # a shorter one is the last: a small file is one batch
            yield from _batch(scanner, grammar, artefact, plain, found)
        if progress is not None:
            progress(len(chunk))
    scanner.finish()
    yield from _batch(scanner, grammar, artefact, plain, found)
    if plain.called:
        lines = plain.lines()
        for reader in grammar.readers:
            if reader in plain.called:
                for item in reader.read_lines(artefact, lines):
                    found.add(reader.name)
                    yield item
    yield from _losses(scanner.counts(), artefact)


def _batch(
    scanner: LogScanner, grammar: TextScan, artefact: Artefact, plain: _Plain, found: set[str]
) -> Iterator[Item]:
    raw = scanner.take()
    for reader, rows in grammar.rows(raw, scanner, artefact):
        found.add(reader.name)
        yield rows
    if len(raw["line"]) == 0:
        return
    batch, template, is_plain = grammar.events(raw, scanner, artefact)
    if is_plain.any():
        plain.add(raw, np.flatnonzero(is_plain), scanner)
    if batch.num_rows:
        if (template < 0).any():
            found.add("nccl-log")
        owner = np.where(template >= 0, grammar.owner[np.maximum(template, 0)], -1) if len(grammar.owner) else template
        derived: list[Iterator[Item]] = []
        as_they_are = np.ones(len(owner), dtype=bool)
        for i in np.unique(owner[owner >= 0]).tolist():
            reader, mine = grammar.readers[i], np.flatnonzero(owner == i)
            found.add(reader.name)
            events = batch if len(mine) == batch.num_rows else batch.take(pa.array(mine))
            if isinstance(reader, EventReader):
                events = reader.completed(events)
                as_they_are[mine] = False
                yield Rows("events", events)
            derived.append(reader.derive(events))
        if as_they_are.any():
            yield Rows("events", batch if as_they_are.all() else batch.filter(pa.array(as_they_are)))
        for items in derived:
            yield from items


_DIGITS = np.arange(256, dtype=np.uint8)
_DIGITS[ord("0") : ord("9") + 1] = ord("0")


class _Plain:
    """Lines without NCCL's marker, in columns until a reader wants them."""

    def __init__(self, grammar: TextScan) -> None:
        self._grammar = grammar
        self._batches: list[tuple[pa.StringArray, pa.StringArray, dict[str, np.ndarray]]] = []
        self._shapes: set[str] = set()
        self._waiting = [r for r in grammar.readers if r.signature is not None]
        self.called: list[LineReader] = []
        """Readers whose signature some line has."""

    def add(self, raw: dict[str, Any], rows: np.ndarray, scanner: LogScanner) -> None:
        """Keeps these lines of a batch. A log prints few shapes of lines very often, so signatures are looked for once a shape."""
        text = _strings(raw["text"]).take(pa.array(rows))
        hosts = _interned(raw["host"][rows], scanner.hosts())
        self._batches.append(
            (text, hosts, {name: raw[name][rows] for name in ("line", "byte_offset", "rank", "template_index")})
        )
        if not self._waiting:
            return
        new = set(_shapes(text).unique().to_pylist()) - self._shapes
        self._shapes |= new
        for reader in self._waiting[:]:
            if reader.signature is not None and any(map(reader.signature.search, new)):
                self.called.append(reader)
                self._waiting.remove(reader)

    def lines(self) -> list[PlainLine]:
        """All of them, in order."""
        events = [template.event for template in self._grammar.templates]
        return [
            PlainLine(
                number, offset, text, rank if rank >= 0 else None, host, events[template] if template >= 0 else None
            )
            for texts, hosts, columns in self._batches
            for text, host, number, offset, rank, template in zip(
                texts.to_pylist(), hosts.to_pylist(), *(columns[name].tolist() for name in columns), strict=True
            )
        ]


def _shapes(text: pa.StringArray) -> pa.StringArray:
    """The same lines with every digit a 0."""
    _, offsets, data = text.buffers()
    if data is None:
        return text
    return pa.StringArray.from_buffers(len(text), offsets, pa.py_buffer(_DIGITS[np.frombuffer(data, np.uint8)]))


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
    if len(values[0]) == 1:  # no value yet
        return pa.nulls(len(codes), pa.string())
    return _strings(values).take(_nullable(codes))


def _nullable(values: np.ndarray) -> pa.Array:
    """Negative is unknown."""
    return pa.array(values, mask=values < 0) if len(values) and values.min() < 0 else pa.array(values)


def _field(kind: str, values: Any) -> pa.Array:
    """A column of the scanner as `TableReader.columns` gets it; kind: the type's letter."""
    if kind in "di":
        return pa.array(values, mask=values == _NO_INTEGER) if values.min() == _NO_INTEGER else pa.array(values)
    if kind == "f":
        return pa.array(values, mask=np.isnan(values))
    if kind == "k":
        codes, words = values
        return pa.DictionaryArray.from_arrays(_nullable(codes), _strings(words))
    return _strings(values)


def _table_rows(table: str, n: int, columns: Mapping[str, pa.Array]) -> Rows:
    schema = SCHEMAS[table]
    arrays = [_fitted(columns[f.name], f.type) if f.name in columns else pa.nulls(n, f.type) for f in schema]
    return Rows(table, pa.RecordBatch.from_arrays(arrays, schema=schema))


def _fitted(values: pa.Array, dtype: pa.DataType) -> pa.Array:
    """The values in the column's type; a number that does not fit into it is damage and becomes NULL."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary.take(values.indices)
    if values.type == dtype:
        return values
    try:
        return values.cast(dtype)
    except pa.ArrowInvalid:
        cut = values.cast(dtype, safe=False)
        return pc.if_else(pc.equal(cut.cast(values.type, safe=False), values), cut, None)
