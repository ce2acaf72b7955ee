"""M3: planted steps and flat series, ours beside Apache Otava's at a threshold that gives it as many false ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.rows import Measured, NotMeasurableError, Options

__all__ = ["change_points"]

_RUNS, _NOISE, _STEP = 200, 0.01, 0.02
_REACH = 2
"""A change counts as found if it is at most that many runs off."""

FloatArray = npt.NDArray[np.float64]
Finder = Callable[[FloatArray], Sequence[int]]


def change_points(options: Options) -> Measured:
    """Hit, false per flat series, hit beyond Otava's, milliseconds of CPU a series."""
    from busbw.statistics.changes import level_changes

    trials = 30 if options.smoke else 1000
    random = np.random.default_rng(1)
    flat = 1 + _NOISE * random.standard_normal((trials, _RUNS))
    stepped = 1 + _NOISE * random.standard_normal((trials, _RUNS))
    stepped[:, 2 * _RUNS // 3 :] *= 1 + _STEP

    def ours(series: FloatArray) -> list[int]:
        return [change.index for change in level_changes(np.log(series))]

    ours(stepped[0])  # loads scipy
    begun = time.process_time()
    hit, false = _hit(ours, stepped), _false(ours, flat)
    took_ms = (time.process_time() - begun) / (2 * trials) * 1e3
    if options.smoke:
        return Measured([hit, false, 0.0, took_ms])
    otava = _otava()
    low, high = -12.0, -2.0  # of log10 of its largest p-value; more false ones the larger it is
    for _ in range(7):
        middle = (low + high) / 2
        low, high = (middle, high) if _false(otava(10**middle), flat) <= false else (low, middle)
    finder = otava(10**low)
    begun = time.process_time()
    theirs, their_false = _hit(finder, stepped), _false(finder, flat)
    their_ms = (time.process_time() - begun) / (2 * trials) * 1e3
    peers = {"Otava hit": theirs, "Otava false": their_false, "Otava p-value": 10**low, "Otava ms": their_ms}
    return Measured([hit, false, hit - theirs, took_ms], peers, f"{trials} series of each kind")


def _hit(find: Finder, series: FloatArray) -> float:
    at = 2 * _RUNS // 3
    return float(np.mean([any(abs(place - at) <= _REACH for place in find(row)) for row in series]))


def _false(find: Finder, series: FloatArray) -> float:
    return float(np.mean([len(find(row)) for row in series]))


def _otava() -> Callable[[float], Finder]:
    """A finder for each largest p-value."""
    try:
        from otava.series import AnalysisOptions, Metric, Series  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise NotMeasurableError(
            f"Apache Otava is not installed ({error}); pip install --no-deps apache-otava"
        ) from error

    def finder(p_value: float) -> Finder:
        settings = AnalysisOptions()
        settings.max_pvalue = p_value

        def find(series: FloatArray) -> list[int]:
            runs = Series(
                "series", None, list(range(series.size)), {"time": Metric(1, 1.0)}, {"time": series.tolist()}, {}
            )
            return [int(change.index) for change in runs.analyze(settings).change_points["time"]]

        return find

    return finder
