"""What times of calls say: the interval of their median, percentiles, who came last. Arrays of times: (ranks, calls)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["FEWEST", "Half", "half_of", "median_interval", "relative_width"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FEWEST = 6
"""Samples whose least and largest hold the median with 95 %: 1 - 2 / 2^6 = 0.97."""
_Z95 = 1.959963984540054
"""Of the normal distribution, two-sided 95 %."""


@dataclass(frozen=True, slots=True)
class Half:
    """Out of place, or in place."""

    time_s: float
    """Mean of the calls and of the ranks."""
    best_s: float
    """Of the fastest sample, the rank that took longest."""
    wrong: int
    """Elements, of all ranks, that are not what they must be."""
    calls: int
    median_s: float = math.nan
    """Of the samples; a sample is the mean of the ranks."""
    low_s: float = math.nan
    high_s: float = math.nan
    """Between these lies the median with 95 %; NaN with fewer than six samples."""
    p95_s: float = math.nan
    p99_s: float = math.nan
    min_s: float = math.nan
    max_s: float = math.nan
    batch: int = 1
    """Calls that a sample is the mean of."""
    skew_s: float = math.nan
    """Median, over the calls, of how long after the first rank the last began."""
    last_rank: int | None = None
    """Who began last most often; None if calls are not timed one by one."""
    last_share: float = math.nan
    started_ns: IntArray | None = None
    """(ranks, samples): when each began, since the epoch, on the clock of rank 0; not in the JSON of a row."""
    took_ns: IntArray | None = None
    """(ranks, samples): how long each call took."""

    def to_json(self) -> dict[str, Any]:
        """Figures, without the samples; NaN becomes null."""
        plain = {
            name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("started_ns", "took_ns")
        }
        return {
            name: None if isinstance(value, float) and math.isnan(value) else value for name, value in plain.items()
        }


def median_interval(samples: npt.ArrayLike) -> tuple[float, float]:
    """Between what the median lies with at least 95 %, whatever the distribution; NaN with fewer than six samples.

    The order statistics at n/2 -+ 1.96 sqrt(n)/2 (binomial; Conover, Practical Nonparametric Statistics, chapter 3.2). Calls that follow each
    other are not independent where a machine is disturbed for longer than a call: n counts as n (1 - r) / (1 + r), r the correlation of
    neighbours' being above the median.

    >>> median_interval([1.0, 2.0, 3.0])
    (nan, nan)
    >>> median_interval(range(1, 101))[0] <= 50.5 <= median_interval(range(1, 101))[1]
    True
    """
    values = np.asarray(samples, dtype=np.float64)
    n = values.size
    if n < FEWEST:
        return math.nan, math.nan
    order = np.sort(values)
    above = np.sign(values - np.median(values))
    power = float(np.mean(above * above))
    r = float(np.mean(above[1:] * above[:-1])) / power if power > 0 else 0.0
    r = min(max(r, 0.0), 0.98)
    half = _Z95 * math.sqrt(n * (1 + r) / (1 - r)) / 2
    low = max(0, math.floor((n - 1) / 2 - half))
    high = min(n - 1, math.ceil((n - 1) / 2 + half))
    return float(order[low]), float(order[high])


def relative_width(samples: npt.ArrayLike) -> float:
    """Width of the median's interval over the median; infinite where nothing is known yet."""
    low, high = median_interval(samples)
    middle = float(np.median(np.asarray(samples))) if not math.isnan(low) else 0.0
    return (high - low) / middle if middle > 0 else (0.0 if high == low else math.inf)


def half_of(
    stamps_ns: IntArray, offsets_ns: IntArray, calls: IntArray, *, wrong: int, messages: int, ranks_timed: int
) -> Half:
    """What the stamps of all ranks say.

    stamps_ns: (ranks, samples, 2): begin and end of each sample. offsets_ns: (ranks,): what to add to a rank's clock to have the time since
    the epoch on rank 0's. calls: (samples,): in each. messages: what a call's time is divided by (a round trip has two halves, a window its
    messages). ranks_timed: the first so many ranks take part; the times of the others say nothing.
    """
    took = stamps_ns[:, :, 1] - stamps_ns[:, :, 0]
    started = stamps_ns[:, :, 0] + offsets_ns[:, None]
    part_s = took[:ranks_timed] / (1e9 * calls * messages)
    samples = part_s.mean(axis=0)
    low, high = median_interval(samples)
    begun = started[:ranks_timed]
    skew = begun.max(axis=0) - begun.min(axis=0)
    last = np.bincount(begun.argmax(axis=0), minlength=ranks_timed)
    is_single = int(calls.max()) == 1 and ranks_timed > 1
    quantile = np.quantile(samples, [0.5, 0.95, 0.99])
    return Half(
        time_s=float(np.average(samples, weights=calls)),
        best_s=float(part_s.max(axis=0).min()),
        wrong=wrong,
        calls=int(calls.sum()),
        median_s=float(quantile[0]),
        low_s=low,
        high_s=high,
        p95_s=float(quantile[1]),
        p99_s=float(quantile[2]),
        min_s=float(samples.min()),
        max_s=float(samples.max()),
        batch=int(calls.max()),
        skew_s=float(np.median(skew)) / 1e9 if ranks_timed > 1 else math.nan,
        last_rank=int(last.argmax()) if is_single else None,
        last_share=float(last.max() / samples.size) if is_single else math.nan,
        started_ns=started,
        took_ns=took,
    )
