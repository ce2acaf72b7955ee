"""Rows that readers of blocks make of plain lines: where they stand, events, counters; lines of several writers taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from busbw.errors import Loss
from busbw.observations import Artefact
from busbw.readers.base import PlainLine

__all__ = ["Damage", "bus_id_of", "by_writer", "event_row", "place"]

_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


def place(artefact: Artefact, line: PlainLine) -> dict[str, Any]:
    """The columns that say where a line stands and whose it is."""
    return {
        "artefact": artefact.sha256,
        "line": line.number,
        "byte_offset": line.byte_offset,
        "host": line.host,
    }


def event_row(
    artefact: Artefact, line: PlainLine, event: str, fields: Mapping[str, str | None], level: str = "info"
) -> dict[str, Any]:
    """A row of `events` for a plain line; fields that are None are left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    return {
        **place(artefact, line),
        "rank": line.rank,
        "event": event,
        "level": level,
        "text": line.text,
        "fields": known,
    }


def by_writer(lines: Sequence[PlainLine]) -> Iterator[list[PlainLine]]:
    """The lines of each rank and host apart, in their order: launchers mix what several nodes print."""
    writers: dict[tuple[int | None, str | None], list[PlainLine]] = {}
    for line in lines:
        writers.setdefault((line.rank, line.host), []).append(line)
    yield from writers.values()


def bus_id_of(text: str) -> str | None:
    """A PCI address as `dddd:bb:dd.f`, in lower case; None if it is none.

    Function 0 and domain 0 are put where they are left out; NVIDIA's tools write eight digits of domain.

    >>> bus_id_of("00000000:1B:00.0")
    '0000:1b:00.0'
    """
    found = _BUS_ID.fullmatch(text.strip())
    if found is None:
        return None
    domain, bus, slot, function = found.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{slot}.{function or '0'}".lower()


class Damage:
    """Lines that a reader knows and cannot read, as one loss a kind: with the first line and how many."""

    def __init__(self, artefact: Artefact) -> None:
        self.artefact = artefact
        self._first: dict[str, tuple[int, str]] = {}
        self._count: dict[str, int] = {}

    def add(self, kind: str, line: PlainLine, detail: str) -> None:
        """One more line; the detail of the first of a kind is kept."""
        self._first.setdefault(kind, (line.number, detail))
        self._count[kind] = self._count.get(kind, 0) + 1

    def losses(self) -> Iterator[Loss]:
        """One for each kind that was added."""
        for kind, (number, detail) in self._first.items():
            yield Loss(kind, self.artefact.path, number, detail, self._count[kind])
