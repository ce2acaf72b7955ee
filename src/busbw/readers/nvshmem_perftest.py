"""NVSHMEM's own performance tests: tables for people, and `&&&& PERF` lines (NVSHMEM_MACHINE_READABLE_OUTPUT=1).

Rows of zero are not printed. GB is 1e9 bytes. Latencies of *_latency tests are those of one call, of *_ping_lat a whole round trip
as printed. The size of alltoall, fcollect and reducescatter is the larger of a PE's buffers. Barriers and syncs print the threads of a
block under `size(B)`: their size is 0, since they move nothing. Message rates (MMPS) have no column and are counted as left out.
Source: NVIDIA/nvshmem perftest/common/utils.cu at 2d7d25f (3.4); tables in public issues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, Template, place
from busbw.readers.text_values import finite, nanoseconds
from busbw.units import GB

__all__ = ["READER"]

TEMPLATES: tuple[Template, ...] = (
    Template(
        "nvshmem_perftest.device",
        "^mype: {rank:d} mype_node: {local_rank:d} device name: {name:s} bus id: {bus:d}",
        "nvshmem perftest/common/utils.cu: init_wrapper",
        "info",
    ),
)

_PERF = re.compile(
    r"&&&& PERF (\S+?)___(.{1,64}?)___size__(\d{1,18})___(\S+) (-?\d{1,15}\.\d{6}|-?nan|inf) ([+-])(\S+)\s*"
)
_HEADER = re.compile(r"size\(B\)\s+(?:scope|count)\s{2,}.*")
_JOB = re.compile(r"#\s*([A-Za-z][\w<>:.-]{0,80})\s*")
_SIGNATURE = re.compile(r"^size\(B\)\s+(?:scope|count)\s|^&&&& PERF \S+___.*___size__\d")
_TITLE = re.compile(r"(.+?)\s?\(([^()]*)\)")
_GAP = re.compile(r"\s{2,}")
_COUNT = re.compile(r"\d{1,18}", re.ASCII)
_FIGURE = re.compile(r"-?\d{1,15}\.\d{3,6}|-?(?:nan|inf)", re.ASCII)
_THREE = re.compile(r"-?\d{1,15}\.\d{3}|-?(?:nan|inf)", re.ASCII)
_SIX = re.compile(r"-?\d{1,15}\.\d{6}|-?(?:nan|inf)", re.ASCII)
_RATES = {"gb/sec": GB, "gb/s": GB, "gb": GB}
_COLLECTIVES = (
    ("reducescatter", "reduce_scatter"), ("reduction", "all_reduce"), ("alltoall", "all_to_all"), ("fcollect", "all_gather"),
    ("bcast", "broadcast"), ("broadcast", "broadcast"), ("barrier", "barrier"), ("sync", "barrier"),
)  # fmt: skip
_WORDS = frozenset({"scope", "type", "redop"})


@dataclass(slots=True)
class _Table:
    """An open table. columns: (name, unit) by position."""

    job: str | None
    index: int
    columns: tuple[tuple[str, str | None], ...]


class NvshmemPerftestReader(Lines):
    """Results of NVSHMEM's performance tests, anywhere in a log."""

    name = "nvshmem-perftest"
    templates: Sequence[Template] = TEMPLATES
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """One row of `measurements` a row; an event `nvshmem_perftest.table` a table, with job and scope."""
        losses = Losses(artefact.path)
        rows: list[dict[str, Any]] = []
        events: list[dict[str, Any]] = []
        job: str | None = None
        table: _Table | None = None
        perf: tuple[str, str, str] | None = None
        tables = 0
        for line in lines:
            text = line.text
            if len(text) > 1024:
                continue
            if text.startswith("&&&& PERF"):
                found = _PERF.fullmatch(text)
                if found is None:
                    if "___" in text:
                        losses.add("damaged-row", line.number, "a PERF line is cut or damaged; run the test again")
                    continue
                key = (found[1], found[2], found[4])
                if key != perf:
                    perf, table, tables = key, None, tables + 1
                    events.append(
                        _event(
                            artefact, line, tables - 1, job=found[1], scope=found[2], quantity=found[4], unit=found[7]
                        )
                    )
                row = _perf_row(found, tables - 1, line.number, losses)
                if row is not None:
                    rows.append(place(artefact, line) | row)
            elif (named := _JOB.fullmatch(text)) is not None:
                job, table, perf = named[1], None, None
            elif _HEADER.fullmatch(text) is not None:
                table = _Table(job, tables, _columns(text))
                tables += 1
                fields = {"job": job, "columns": ",".join(name for name, _ in table.columns)}
                events.append(_event(artefact, line, table.index, **{k: v for k, v in fields.items() if v}))
            elif table is not None and text[:1].isdigit():
                row = _row(table, line, losses)
                if row is not None:
                    rows.append(place(artefact, line) | row)
        if rows:
            yield rows_of("measurements", rows)
        if events:
            yield rows_of("events", events)
        yield from losses


READER = NvshmemPerftestReader()


def _event(artefact: Artefact, line: PlainLine, index: int, **fields: str) -> dict[str, Any]:
    words = [("table_index", str(index)), *fields.items()]
    text = line.text.strip()[:512]
    return place(artefact, line) | {"event": "nvshmem_perftest.table", "level": "info", "text": text, "fields": words}


def _columns(text: str) -> tuple[tuple[str, str | None], ...]:
    columns: list[tuple[str, str | None]] = []
    for name in _GAP.split(text.strip()):
        titled = _TITLE.fullmatch(name)
        columns.append((titled[1].lower(), titled[2].lower()) if titled else (name.lower(), None))
    return tuple(columns)


def _collective(job: str | None) -> str | None:
    return next((ours for theirs, ours in _COLLECTIVES if job is not None and theirs in job.lower()), None)


def _base(job: str | None, index: int, size: int) -> dict[str, Any]:
    collective = _collective(job)
    return {
        "tool": "nvshmem-perftest",
        "table_index": index,
        "collective": collective,
        "size_bytes": 0 if collective == "barrier" else size,
    }


def _perf_row(found: re.Match[str], index: int, line: int, losses: Losses) -> dict[str, Any] | None:
    row = _base(found[1], index, int(found[3]))
    return _with_figure(row, found[7].lower(), found[5], line, losses)


def _with_figure(row: dict[str, Any], unit: str | None, token: str, line: int, losses: Losses) -> dict[str, Any] | None:
    if unit == "us":
        return row | {"time_ns": nanoseconds(token)}
    if unit in _RATES:
        value = finite(token)
        return row | {"algbw_bytes_per_s": None if value is None else value * _RATES[unit]}
    losses.add(
        "left-out", line, f"figures in {unit!r} are neither time nor bandwidth and have no column; they were left out"
    )
    return None


def _row(table: _Table, line: PlainLine, losses: Losses) -> dict[str, Any] | None:
    """A row of a table; None for the lines of others and for damage, which is counted."""
    names = [name for name, _ in table.columns]
    figures = [i for i, name in enumerate(names) if name not in _WORDS and name not in ("size", "count")]
    tokens = line.text.split()
    words = len(names) - len(figures) - 1
    if _COUNT.fullmatch(tokens[0]) is None:
        return None
    # A scope may be two words ("with _on_stream"), so figures are taken from the right.
    last = tokens[len(tokens) - len(figures) :] if len(tokens) >= words + 1 + len(figures) else []
    whole = [_FIGURE.fullmatch(token) is not None for token in last]
    shape = _THREE if names[-1] in ("algbw", "busbw") else _SIX  # what the last column is printed with
    if not last or not all(whole) or shape.fullmatch(last[-1]) is None:
        if len(tokens) > 1 and any(_FIGURE.fullmatch(token) for token in tokens[1:]):
            cut = not last or all(whole[:-1])
            detail = f"a row has {len(tokens)} values, its header has {len(names)}; "
            mend = (
                "the output is cut: run the test again"
                if cut
                else "another program wrote into it: give it its own file"
            )
            losses.add("truncated-row" if cut else "damaged-row", line.number, detail + mend)
        elif len(tokens) == 1 or (all(len(token) < 20 for token in tokens) and len(tokens) <= words + 3):
            losses.add(
                "truncated-row", line.number, f"a row has {len(tokens)} of {len(names)} values; the output is cut"
            )
        return None
    row = _base(table.job, table.index, int(tokens[0]))
    middle = tokens[1 : len(tokens) - len(figures)]
    for name, token in zip([n for n in names[1:] if n in _WORDS or n == "count"], middle, strict=False):
        if name == "count" and _COUNT.fullmatch(token):
            row["count"] = int(token)
        elif name in ("type", "redop"):
            row["dtype" if name == "type" else name] = token
    values = {names[i]: token for i, token in zip(figures, last, strict=True)}
    units = dict(table.columns)
    if "latency" in values or "algbw" in values:
        for ours, theirs in (("time_ns", "latency"), ("min_ns", "min_lat"), ("max_ns", "max_lat")):
            row[ours] = nanoseconds(values.get(theirs)) if units.get(theirs) == "us" else None
        for ours, theirs in (("algbw_bytes_per_s", "algbw"), ("busbw_bytes_per_s", "busbw")):
            value, factor = finite(values.get(theirs)), _RATES.get(units.get(theirs) or "")
            row[ours] = None if value is None or factor is None else value * factor
        return row
    name = names[figures[0]]
    return _with_figure(row, units[name], values[name], line.number, losses)
