"""Messages: what went wrong, where, how to mend it. Damaged input is data (`Loss`); wrong use raises (`InputError`)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

__all__ = ["InputError", "Loss", "Losses", "count_losses"]


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


class Losses:
    """Losses of one file while it is read: of each kind the first place, and how often."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._met: dict[str, Loss] = {}

    def add(self, kind: str, line: int | None, detail: str, *, count: int = 1) -> None:
        """Counts one, or `count`. Line and detail are kept of the first of its kind."""
        known = self._met.get(kind)
        self._met[kind] = (
            replace(known, count=known.count + count) if known else Loss(kind, self._path, line, detail, count)
        )

    def __len__(self) -> int:
        """Kinds that were met."""
        return len(self._met)

    def __iter__(self) -> Iterator[Loss]:
        return iter(self._met.values())


def count_losses(losses: Iterable[Loss]) -> list[Loss]:
    """One loss a kind, that of its first place, with the number of times all of the kind were met.

    >>> [(loss.line, loss.count) for loss in count_losses([Loss("cut", "f", 3, ""), Loss("cut", "f", 9, "", 2)])]
    [(3, 3)]
    """
    first: dict[str, Loss] = {}
    for loss in losses:
        met = first.get(loss.kind)
        first[loss.kind] = loss if met is None else replace(met, count=met.count + loss.count)
    return list(first.values())
