"""How much is kept in memory, and what is said about the rest."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

from busbw.diagnosis.findings import LineRef
from busbw.errors import Loss

__all__ = ["FACT_BYTES", "FIELD_BYTES", "Room"]

MAX_FACTS_BYTES = 128 * 2**20
"""Estimated bytes of all messages, settings, connections, points, pairs, counters and devices that are kept."""
ALWAYS_KEPT = 50
"""Facts of one name that are kept also when there is no more room: what comes late may be the cause."""
MAX_ALWAYS_KEPT = 20_000
"""Such facts of all names together: names may be anything."""
FACT_BYTES, FIELD_BYTES = 700, 130
"""A fact with its line and numbers; one field more, each without its text. Estimates; benchmark E4 measures what comes of them."""


class Room:
    """How much more is kept, and what was left out for want of room."""

    def __init__(self) -> None:
        self._used_bytes = self._always = 0
        self._kept: dict[tuple[str, str | None], int] = defaultdict(int)
        self.losses: dict[tuple[str, str], Loss] = {}

    def takes(self, what: str, at: LineRef, size_bytes: int, name: str | None = None, most: int | None = None) -> bool:
        """Whether one more fact is kept. Of each name at most `most`; when memory is full still the first few."""
        key = (what, name)
        kept = self._kept.get(key, 0)
        if most is not None and kept >= most:
            return self.leave_out(what, at, f"only the first {most:,} of a name are looked at")
        if self._used_bytes + size_bytes > MAX_FACTS_BYTES:
            if kept >= ALWAYS_KEPT or self._always >= MAX_ALWAYS_KEPT or size_bytes > 8 * FACT_BYTES:
                return self.leave_out(what, at, "too many to keep them all; explain the files of fewer hosts at a time")
            self._always += 1
        self._used_bytes += size_bytes
        if kept < ALWAYS_KEPT or most is not None:
            self._kept[key] = kept + 1
        return True

    def leave_out(self, what: str, at: LineRef, why: str) -> bool:
        """Counts a fact that is not kept. False, always."""
        known = self.losses.get((what, why))
        self.losses[what, why] = (
            Loss("summarised", at.path, at.line, f"{what} were counted, no more: {why}")
            if known is None
            else replace(known, count=known.count + 1)
        )
        return False
