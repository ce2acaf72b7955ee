"""Where the level of a series of measurements changed, by how much, and how surely."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from busbw.statistics._changes import change_points, places

__all__ = ["Change", "level_changes"]

FloatArray = npt.NDArray[np.float64]

SHORTEST = 3
"""Values that a level must last: two in a row may be outliers."""
_CLIP = 3.0
"""Standard deviations from the median of five neighbours beyond which a value counts as an outlier. Source: Hampel, JASA 69 (1974)."""
_REACH = 2
"""A place is right if it is at most that far from the true one; the same reach as in tests of Apache Otava and its kin."""
_SHARE = 0.9
_LEAST_TO_CORRELATE = 30
"""Values from which on it can be told whether neighbours are alike. A guess."""
_MAD_OF_NORMAL = 0.6744897501960817
"""Median of the absolute value of a standard normal variable."""


@dataclass(frozen=True, slots=True)
class Change:
    """The level of a series differs before and from `index` on."""

    index: int
    """First value of the new level: the place that is right within two most often."""
    low: int
    high: int
    """Interval of places that holds the change with a probability of 0.9, if noise is normal."""
    before: float
    after: float
    """Medians of the stretches on both sides."""
    p_value: float
    """Chance of such a difference somewhere in a series without a change: t of the means of both stretches, times the number of places."""


def level_changes(values: npt.ArrayLike, *, false_alarms: float = 0.01) -> list[Change]:
    """The changes of level in a series, first to last. For times and rates give logarithms: a change is then a ratio.

    The partition into levels that has the least squared errors with a price on each change. The price is set so that a series of
    independent normal noise without a change gives one with a probability of false_alarms (measured for 0.01 and 0.05, at 6 to 3,000
    values: `python -m benchmarks measure --only M3`). Noise is estimated from differences of neighbours, so steps do not count as noise;
    where the noise of neighbours is alike (correlation r), the price rises by (1 + r) / (1 - r)^2. Single outliers
    are pulled in first. A level lasts at least 3 values.

    values: (n,) finite. Raises ValueError for other values, or for a chance of false alarms that is neither 0.01 nor 0.05.

    >>> [(change.index, change.before, change.after) for change in level_changes([5, 5.1, 4.9, 5, 5.1, 7, 7.1, 6.9, 7, 7.1])]
    [(5, 5.0, 7.0)]
    """
    series = np.ascontiguousarray(values, dtype=np.float64)
    if series.ndim != 1 or not np.isfinite(series).all():
        raise ValueError("a series is one row of finite values")
    if false_alarms not in _PRICES:
        raise ValueError(f"the price of a change is known for false_alarms of {' and '.join(map(str, _PRICES))}")
    if series.size < 2 * SHORTEST:
        return []
    noise = _noise(series)
    if noise == 0:
        return []
    base, per_value = _PRICES[false_alarms]
    price = base + per_value / series.size
    clipped = _without_outliers(series, noise)
    likeness = _correlation(series, noise) if series.size >= _LEAST_TO_CORRELATE else 0.0
    noise *= (1 + likeness) ** 0.5 / (1 - likeness)
    found = change_points(clipped, price * noise**2, SHORTEST)
    return _described(series, clipped, found, noise)


_PRICES = {0.01: (14.5, 120.0), 0.05: (11.0, 20.0)}
"""Of a change, in variances of the noise: base + per_value / n. Fitted to the smallest price at which 99 % (95 %) of series of n normal values
have no change: 29, 20, 19, 17, 15, 15, 15, 15 (11, 11, 11, 11, 11, 11, 11, 13) at n = 10, 20, 30, 50, 100, 200, 1,000, 3,000; 2,000 series each."""


def _noise(series: FloatArray) -> float:
    """Standard deviation of the noise from differences of neighbours, which a step touches once.

    By the median of their sizes; where most are 0, as with figures of few digits, by their mean.
    """
    steps = np.abs(np.diff(series))
    middle = float(np.median(steps)) / _MAD_OF_NORMAL
    if middle == 0:
        middle = float(np.mean(steps)) * float(np.sqrt(np.pi / 2))
    return float(middle / np.sqrt(2))


def _without_outliers(series: FloatArray, noise: float) -> FloatArray:
    """The series with values that differ from the median of five neighbours by more than _CLIP deviations pulled in to that."""
    around = np.empty_like(series)
    around[2:-2] = np.median(np.lib.stride_tricks.sliding_window_view(series, 5), axis=1)
    for at in (0, 1, series.size - 2, series.size - 1):
        around[at] = np.median(series[max(0, at - 2) : at + 3])
    return np.clip(series, around - _CLIP * noise, around + _CLIP * noise)


def _correlation(series: FloatArray, noise: float) -> float:
    """Correlation r of the noise of neighbours, from differences d, which steps touch once: 1 + 2 corr(d_i, d_i+1) for a process of order one.

    With it a mean of many values varies as if each had noise^2 (1 + r) / (1 - r)^2 instead of noise^2 = var(d) / 2. 0 where r is not beyond what chance
    gives (3 / sqrt(n) is two standard deviations of the estimate for independent noise, by Bartlett's formula); at most 0.9.
    """
    limit = _CLIP * noise * 2**0.5
    steps = np.clip(np.diff(series), -limit, limit)
    likeness = 1 + 2 * float(steps[1:] @ steps[:-1]) / float(steps @ steps)
    return min(likeness, 0.9) if likeness > 3 / series.size**0.5 else 0.0


def _described(series: FloatArray, clipped: FloatArray, found: list[int], noise: float) -> list[Change]:
    from scipy import stats  # noqa: PLC0415 - half a second, and most series have no change

    spots = places(clipped, found, noise, _REACH, _SHARE)
    bounds = [0, *found, series.size]
    changes = []
    for number, (at, low, high) in enumerate(spots):
        begin, change, end = bounds[number : number + 3]
        step = abs(float(clipped[begin:change].mean() - clipped[change:end].mean()))
        error = noise * (1 / (change - begin) + 1 / (end - change)) ** 0.5
        tail = float(
            stats.t.sf(step / error, series.size // 2)
        )  # what the noise was estimated from is worth about half its values
        before, after = float(np.median(series[begin:change])), float(np.median(series[change:end]))
        changes.append(Change(at, low, high, before, after, min(1.0, 2 * tail * (series.size - 1))))
    return changes
