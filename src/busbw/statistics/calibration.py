"""Whether stated probabilities are honest: Brier score, and how often what was said with p came true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Bin", "brier_score", "reliability"]


@dataclass(frozen=True, slots=True)
class Bin:
    """Statements of about the same probability."""

    stated: float
    """Mean of the stated probabilities."""
    came_true: float
    """Share of the statements that were true."""
    count: int
    low: float
    high: float
    """95 % interval of that share (Wilson)."""


def brier_score(stated: Sequence[float], true: Sequence[bool]) -> float:
    """Mean of (p - outcome)^2: 0 is perfect, 0.25 is what "one half" always scores.

    Source: Brier, Monthly Weather Review 78 (1950), in its form for two outcomes. Raises ValueError without statements.

    >>> brier_score([1.0, 0.5], [True, False])
    0.125
    """
    if not stated or len(stated) != len(true):
        raise ValueError("as many outcomes as probabilities are needed, at least one")
    return sum((p - outcome) ** 2 for p, outcome in zip(stated, true, strict=True)) / len(stated)


def reliability(stated: Sequence[float], true: Sequence[bool], bins: int = 5) -> list[Bin]:
    """Statements in bins of equal count by stated probability, lowest first. Equal probabilities stay in one bin.

    >>> [(b.stated, b.came_true, b.count) for b in reliability([0.9, 0.9, 0.4, 0.4], [True, True, True, False], bins=2)]
    [(0.4, 0.5, 2), (0.9, 1.0, 2)]
    """
    ordered = sorted(zip(stated, true, strict=True))
    out: list[Bin] = []
    begin = 0
    for i in range(bins):
        end = max(begin, round((i + 1) * len(ordered) / bins))
        while 0 < end < len(ordered) and ordered[end][0] == ordered[end - 1][0]:
            end += 1
        if end > begin:
            members = ordered[begin:end]
            hits = sum(outcome for _, outcome in members)
            low, high = _wilson(hits, len(members))
            out.append(Bin(sum(p for p, _ in members) / len(members), hits / len(members), len(members), low, high))
        begin = end
    return out


def _wilson(hits: int, count: int) -> tuple[float, float]:
    """95 % interval of a share. Source: Wilson, JASA 22 (1927), equation for the score interval; z = 1.96."""
    z = 1.96
    share = hits / count
    centre = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * (share * (1 - share) / count + z * z / (4 * count * count)) ** 0.5
    return max(0.0, min(share, centre - half)), min(
        1.0, max(share, centre + half)
    )  # rounding apart, the share is within
