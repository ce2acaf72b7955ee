"""Robust decomposition of a table of pairs into what each end contributes."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import TypeVar

__all__ = ["end_effects"]

End = TypeVar("End", bound=Hashable)


def end_effects(pairs: Sequence[tuple[End, End, float]], sweeps: int = 10) -> dict[End, float]:
    """What each end multiplies the typical value of its pairs by; 1.0 is typical.

    Model: value(a, b) = typical * effect(a) * effect(b). An end's effect is the median over its pairs of value / (typical * effect of the
    other end), capped at 1: an end can hold a pair back, not speed it up. Sweeps repeat until nothing moves (median polish: Tukey 1977,
    chapter 11, here on ratios and with ends instead of rows and columns).
    pairs: (end, end, value > 0). Raises ValueError for a value <= 0.

    >>> effects = end_effects([("a", "b", 50), ("a", "c", 50), ("b", "c", 100), ("b", "d", 100), ("c", "d", 100), ("a", "d", 50)])
    >>> {end: round(effect, 2) for end, effect in sorted(effects.items())}
    {'a': 0.5, 'b': 1.0, 'c': 1.0, 'd': 1.0}
    """
    if any(value <= 0 for _, _, value in pairs):
        raise ValueError("rates of pairs must be positive")
    if not pairs:
        return {}
    upper = sorted(value for _, _, value in pairs)[len(pairs) // 2 :]
    typical = statistics.median(upper)
    of_end: dict[End, list[tuple[End, float]]] = defaultdict(list)
    for a, b, value in pairs:
        of_end[a].append((b, value))
        of_end[b].append((a, value))
    effects: dict[End, float] = dict.fromkeys(of_end, 1.0)
    # Ends with more evidence first: their effect explains the pairs they share with others.
    order = sorted(of_end, key=lambda end: (-len(of_end[end]), statistics.median(v for _, v in of_end[end])))
    for _ in range(sweeps):
        before = dict(effects)
        for end in order:
            ratios = [value / (typical * effects[other]) for other, value in of_end[end]]
            effects[end] = min(1.0, statistics.median(ratios))
        if all(abs(effects[end] - before[end]) < 1e-9 for end in effects):
            break
    return effects
