"""Messages: what went wrong, where, how to mend it. Damaged input is data (`Loss`); wrong use raises (`InputError`)."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["InputError", "Loss"]


class InputError(Exception):
    """Input that cannot be used at all. The message is shown to the user as it stands: what, where, how to mend."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One kind of damage met while reading, with the place of its first occurrence and how often it was met."""

    kind: str
    """What was lost, a stable slug such as `truncated-row`."""
    path: str
    line: int | None
    """1-based line of the first occurrence, None where the input has no lines."""
    detail: str
    """One sentence for people: what was dropped and how to get it back."""
    count: int = 1

    def __str__(self) -> str:
        where = f"{self.path}:{self.line}" if self.line is not None else self.path
        times = f" ({self.count} times)" if self.count > 1 else ""
        return f"{where}: {self.kind}: {self.detail}{times}"
