"""When to stop, and how far one is: looked at while a program is laid out, and while it runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from busbw.errors import InputError

__all__ = ["Limits", "Progress", "Watch"]

_RECORDED_AT_MOST = 4_000_000
"""Rows of tasks kept unless told otherwise: 44 bytes each, so below 200 MB."""
_EVERY_S = 0.05
"""Between two calls of `progress` while a program is laid out. A guess."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When to stop and return what is known."""

    time_s: float | None = None
    """Of the wall clock."""
    memory_bytes: int | None = None
    """Of this process."""
    rows: int = _RECORDED_AT_MOST
    """Tasks recorded; the run goes on without recording more."""

    def over(self, took_s: float, more_bytes: int = 0) -> str | None:
        """Which limit is reached, more_bytes included; None: none is."""
        if self.time_s is not None and took_s > self.time_s:
            return f"time limit of {self.time_s:g} s reached"
        if self.memory_bytes is not None and _resident_bytes() + more_bytes > self.memory_bytes:
            return f"memory limit of {self.memory_bytes / 1e6:.0f} MB reached"
        return None


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a run is."""

    simulated_s: float
    messages: int
    events: int
    took_s: float
    stage: str = "running"
    """What is done: running, or what comes before it."""


@dataclass(slots=True)
class Watch:
    """Looks at limits while a program is laid out, and reports progress."""

    limits: Limits = field(default_factory=Limits)
    progress: Callable[[Progress], None] | None = None
    begun: float = field(default_factory=time.monotonic)
    told: float = 0.0

    @property
    def took_s(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.begun

    def look(self, stage: str, more_bytes: int = 0) -> None:
        """Raises InputError where a limit is reached; more_bytes: what is about to be taken."""
        took = self.took_s
        over = self.limits.over(took, more_bytes)
        if over is not None:
            raise InputError(f"{over} before anything ran, while {stage}. Simulate fewer ranks, or raise the limit.")
        if self.progress is not None and took - self.told >= _EVERY_S:
            self.told = took
            self.progress(Progress(0.0, 0, 0, took, stage))


def _resident_bytes() -> int:
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except (OSError, IndexError, ValueError):  # not Linux
        import resource  # noqa: PLC0415 - only where /proc is missing

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    import resource  # noqa: PLC0415 - POSIX only

    return pages * resource.getpagesize()
