"""Tables that run on: `nvidia-smi dmon` and `dcgmi dmon`. Each cell becomes a counter.

    # gpu    pwr  gtemp  mtemp     sm    mem          #Entity   GPUTL   SMACT
    # Idx      W      C      C      %      %          ID
        0    218     43      -     95      0          GPU 0     61      0.367

Columns are found by the header, which both tools print again from time to time, never by position in a known list. With -o DT dmon
puts date and time in front; they are local and have no zone, and are taken as UTC. `-` and N/A are no values.
"""

from __future__ import annotations

import calendar
import re
from collections.abc import Iterator, Sequence
from typing import Any

from busbw.errors import Losses
from busbw.observations import Artefact, rows_of
from busbw.readers.base import Item, Lines, PlainLine, place_and_host
from busbw.readers.plain_rows import by_writer

__all__ = ["READER"]

_SIGNATURE = re.compile(r"^#\s*(?:Date\s+Time\s+|Time\s+)?gpu\s+\w|^#\s?Entity\s+\w")
_UNITS = re.compile(r"#\s*(?:YYYYMMDD\s+)?(?:HH:MM:SS\s+)?Idx\b(.*)")
_ENTITY = re.compile(r"(GPU|GPU-I|GPU-CI|CPU|CPU-CORE|Switch|Link|Core|VGPU|CX) (\d{1,5}(?:/\d{1,5})*)\s+(.*)")
_NO_VALUE = frozenset({"-", "N/A", "n/a"})
_NUMBER = re.compile(r"-?\d{1,20}(?:\.\d{1,12})?(?:[eE][+-]?\d{1,3})?", re.ASCII)
_DATE = re.compile(r"(\d{4})(\d{2})(\d{2})", re.ASCII)
_TIME = re.compile(r"(\d{2}):(\d{2}):(\d{2})", re.ASCII)


class GpuMonitorReader(Lines):
    """Tables of dmon."""

    name = "gpu-monitor"
    signature: re.Pattern[str] | None = _SIGNATURE

    def read_lines(self, artefact: Artefact, lines: Sequence[PlainLine]) -> Iterator[Item]:
        """Rows of `counters`: device `GPU 0`, name as in the header, its unit (of dmon) among the labels."""
        losses = Losses(artefact.path)
        for written in by_writer(lines):
            rows = list(_read(artefact, written, losses))
            if rows:
                yield rows_of("counters", rows)
        yield from losses


READER = GpuMonitorReader()


def _read(artefact: Artefact, lines: Sequence[PlainLine], losses: Losses) -> Iterator[dict[str, Any]]:
    columns: list[str] = []
    units: list[str] = []
    entities = False
    for line in lines:
        text = line.text.strip()
        if text[:1] == "#":
            words = text[1:].split()
            if _SIGNATURE.match(text) is not None:
                entities = words[0] == "Entity"
                columns, units = words[1:] if entities else words, []
            elif not entities and (found := _UNITS.match(text)) is not None:
                units = found[1].split()
            continue
        if not columns:
            continue
        row = _entity_row(text) if entities else _index_row(text, columns)
        if row is None:
            continue
        device, moment, cells, names = row[0], row[1], row[2], columns if entities else columns[len(row[3]) :]
        if len(cells) != len(names):
            losses.add("damaged-row", line.number, f"{len(cells)} cells under {len(names)} columns")
            continue
        for i, (name, cell) in enumerate(zip(names, cells, strict=True)):
            if _NUMBER.fullmatch(cell) is not None:
                labels = [("unit", units[i])] if len(units) == len(names) else []
                yield {
                    **place_and_host(artefact, line, line.host), "device": device, "name": name, "value": float(cell), "time_ns": moment, "labels": labels,
                }  # fmt: skip
            elif cell not in _NO_VALUE:
                losses.add("damaged-value", line.number, f"{cell[:20]!r} in column {name} is no number")


def _entity_row(text: str) -> tuple[str, int | None, list[str], list[str]] | None:
    """Device, time and cells of a row of dcgmi."""
    found = _ENTITY.fullmatch(text)
    return (f"{found[1]} {found[2]}", None, found[3].split(), []) if found is not None else None


def _index_row(text: str, columns: list[str]) -> tuple[str, int | None, list[str], list[str]] | None:
    """Device, time, cells and the columns in front of them, of a row of nvidia-smi."""
    words = text.split()
    front = [name for name in columns[:3] if name in ("Date", "Time", "gpu")]
    if len(words) <= len(front) or not re.fullmatch(r"\d{1,3}", words[len(front) - 1], re.ASCII):
        return None
    if not all(re.fullmatch(r"[\d:]{6,8}", word) for word in words[: len(front) - 1]):
        return None
    return f"GPU {int(words[len(front) - 1])}", _time_ns(words[: len(front) - 1]), words[len(front) :], front


def _time_ns(words: list[str]) -> int | None:
    """`20260102 03:04:05`, taken as UTC; None without a date."""
    if len(words) != 2 or (date := _DATE.fullmatch(words[0])) is None or (time := _TIME.fullmatch(words[1])) is None:
        return None
    year, month, day, hour, minute, second = (int(part) for part in (*date.groups(), *time.groups()))
    if not (
        1970 <= year <= 2200 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24 and minute < 60 and second <= 60
    ):
        return None
    return calendar.timegm((year, month, day, hour, minute, second, 0, 0, 0)) * 1_000_000_000
