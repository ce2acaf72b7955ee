"""Months of runs: when did a level change, of which sizes, by how much, and what else changed then?"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from busbw.measuring.results import Cell, Results
from busbw.statistics.changes import SHORTEST, Change, level_changes

__all__ = ["Event", "History", "Series", "history"]

FloatArray = npt.NDArray[np.float64]

FALSE_DISCOVERIES = 0.05
_LEAST = 0.01
"""Smaller changes of time are not told. A guess."""


@dataclass(frozen=True, slots=True)
class Series:
    """One cell over the runs that measured it."""

    cell: Cell
    runs: npt.NDArray[np.int64]
    """(n,) places in the history."""
    times_s: FloatArray
    """(n,) the median of each run."""


@dataclass(frozen=True, slots=True)
class Event:
    """A change that cells of one kind (tool, collective, type, ranks) share."""

    family: Cell
    """With size_bytes 0: any of its sizes."""
    run: int
    """First run of the new level."""
    low: int
    high: int
    """Runs between which it lies with a probability of 0.9."""
    cells: tuple[tuple[Cell, float], ...]
    """Sizes whose level changed there, and by which ratio of time."""
    measured: int
    """Sizes that were measured on both sides."""
    ratio: float
    """Median of theirs."""
    coincides: tuple[str, ...]
    """What else is different from the run before: "NCCL 2.27.3 -> 2.28.1"."""


@dataclass(frozen=True, slots=True)
class History:
    """Runs in their order, the series in them, and where levels changed."""

    runs: tuple[Results, ...]
    series: tuple[Series, ...]
    events: tuple[Event, ...]

    @property
    def slower_now(self) -> tuple[Event, ...]:
        """The last event of each family, where it made the family slower."""
        last: dict[Cell, Event] = {event.family: event for event in self.events}
        return tuple(event for event in last.values() if event.ratio > 1)


def history(runs: Sequence[Results]) -> History:
    """The changes of level over runs in the order given.

    Evidence is pooled over sizes: besides each size's own series (`level_changes` of the logarithm of time) the mean of all sizes of a family,
    each in units of its noise, is searched, which finds a small change that all share. Places that overlap are one event. At each event every
    size is tested between the neighbouring events (t of the means), with Benjamini-Hochberg over all tests of all events; an event that no
    size passes is dropped, and so are changes below 1 %.
    """
    found = _series(runs)
    families: dict[Cell, list[Series]] = defaultdict(list)
    for series in found:
        families[series.cell._replace(size_bytes=0)].append(series)
    candidates = [
        (family, members, place) for family, members in families.items() for place in _places(members, len(runs))
    ]
    bounds: dict[Cell, list[int]] = defaultdict(list)
    for family, _, place in candidates:
        bounds[family].append(place[0])
    tests = []
    for number, (family, members, (at, _, _)) in enumerate(candidates):
        before = max([0, *(other for other in bounds[family] if other < at)])
        after = min([len(runs), *(other for other in bounds[family] if other > at)])
        tests += [(number, s.cell, *tested) for s in members if (tested := _tested(s, before, at, after)) is not None]
    q_values = stats.false_discovery_control([test[3] for test in tests]) if tests else []
    passed: dict[int, list[tuple[Cell, float]]] = defaultdict(list)
    measured: dict[int, int] = defaultdict(int)
    for (number, cell, ratio, _), q_value in zip(tests, q_values, strict=True):
        measured[number] += 1
        if q_value <= FALSE_DISCOVERIES and abs(math.log(ratio)) >= math.log1p(_LEAST):
            passed[number].append((cell, ratio))
    events = [
        Event(
            family, at, low, high, tuple(passed[number]), measured[number], float(np.median([r for _, r in passed[number]])),
            _coincides(runs, at),
        )
        for number, (family, _, (at, low, high)) in enumerate(candidates)
        if passed[number]
    ]  # fmt: skip
    return History(tuple(runs), tuple(found), tuple(sorted(events, key=lambda event: (event.run, str(event.family)))))


def _series(runs: Sequence[Results]) -> list[Series]:
    found: dict[Cell, list[tuple[int, float]]] = defaultdict(list)
    for place, run in enumerate(runs):
        for cell, times in run.times_s.items():
            found[cell].append((place, float(np.median(times))))
    return [
        Series(cell, np.array([run for run, _ in points], dtype=np.int64), np.array([time for _, time in points]))
        for cell, points in sorted(
            found.items(), key=lambda item: str(item[0]._replace(size_bytes=0)) + f"{item[0].size_bytes:020}"
        )
    ]


def _places(members: Sequence[Series], runs: int) -> list[tuple[int, int, int]]:
    """Where levels of a family change: first run of the new level, and its interval; places that overlap count once."""
    changes: list[tuple[int, int, int, float]] = []
    for series in members:
        changes += [_in_runs(change, series.runs) for change in level_changes(np.log(series.times_s))]
    pooled, at = _pooled(members, runs)
    if len(members) > 1:
        changes += [_in_runs(change, at) for change in level_changes(pooled)]
    places: list[tuple[int, int, int]] = []
    for place in sorted(changes, key=lambda change: change[3]):  # the surest first
        if not any(
            (low <= place[2] and place[1] <= high) or abs(place[0] - first) < SHORTEST for first, low, high in places
        ):
            places.append(place[:3])
    return sorted(places)


def _in_runs(change: Change, runs: npt.NDArray[np.int64]) -> tuple[int, int, int, float]:
    return int(runs[change.index]), int(runs[change.low]), int(runs[change.high]), change.p_value


def _pooled(members: Sequence[Series], runs: int) -> tuple[FloatArray, npt.NDArray[np.int64]]:
    """Mean over the sizes of log time, each from its median in units of its noise; and the runs that measured any."""
    sums, counts = np.zeros(runs), np.zeros(runs)
    for series in members:
        logs = np.log(series.times_s)
        noise = float(np.median(np.abs(np.diff(logs)))) if logs.size > 1 else 0.0
        if noise > 0:
            sums[series.runs] += (logs - np.median(logs)) / noise
            counts[series.runs] += 1
    at = np.flatnonzero(counts)
    return sums[at] / counts[at] ** 0.5, at  # of independent sizes the noise is then the same in every run


def _tested(series: Series, before: int, at: int, after: int) -> tuple[float, float] | None:
    """Ratio of the medians after and before, and the chance of such a difference (Welch's t); None for too few runs."""
    left = series.times_s[(series.runs >= before) & (series.runs < at)]
    right = series.times_s[(series.runs >= at) & (series.runs < after)]
    if min(left.size, right.size) < 2:
        return None
    ratio = float(np.median(right) / np.median(left))
    if np.ptp(left) == 0 and np.ptp(right) == 0:
        return ratio, 0.0 if ratio != 1 else 1.0
    return ratio, float(stats.ttest_ind(np.log(left), np.log(right), equal_var=False).pvalue)


def _coincides(runs: Sequence[Results], at: int) -> tuple[str, ...]:
    before, now = runs[at - 1].said, runs[at].said
    return tuple(
        f"{name} {_words(before.get(name))} -> {_words(now.get(name))}"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    )


def _words(values: frozenset[str] | None) -> str:
    listed = sorted(values or ())
    return (
        "(not said)"
        if not listed
        else ", ".join(listed[:4]) + (f" and {len(listed) - 4} more" if len(listed) > 4 else "")
    )
