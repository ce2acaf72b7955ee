"""Rows that readers of blocks make of plain lines: events, bus ids; lines of several writers taken apart."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from busbw.observations import Artefact
from busbw.readers.base import PlainLine, place_and_host

__all__ = ["bus_id_of", "by_writer", "event_row"]

_BUS_ID = re.compile(r"(?:([0-9a-f]{1,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", re.IGNORECASE)


def event_row(
    artefact: Artefact, line: PlainLine, event: str, fields: Mapping[str, str | None], level: str = "info"
) -> dict[str, Any]:
    """A row of `events` for a plain line; fields that are None are left out."""
    known = {name: value for name, value in fields.items() if value is not None}
    return {
        **place_and_host(artefact, line, line.host),
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
