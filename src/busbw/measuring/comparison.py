"""Two sets of runs side by side: which sizes became slower, with error control over all sizes at once."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

from busbw.measuring.results import Cell, Results

FloatArray = npt.NDArray[np.float64]

__all__ = ["Comparison", "Difference", "compare", "merged"]

FALSE_DISCOVERIES = 0.05
"""Share of the differences called significant that may be chance. Source: Benjamini, Hochberg, JRSS B 57 (1995)."""
TOLERANCE = 0.02
"""A change of time that matters. A guess: two runs of nccl-tests on a healthy machine differ by about that at large sizes."""
_LEAST_NOISE = 1e-3
"""Standard deviation of the logarithm of a time below which no tool's digits go: five significant ones, repeated."""
_MAD_OF_NORMAL = 0.6744897501960817
_NEAR = 5
"""Sizes on either side that tell how rough the ratio is here: small sizes are noisier than large ones. Few as they are, they count as much as all."""
_UNKNOWN_NOISE = 0.1
"""Of a time measured once at one size. A guess."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One cell on both sides. ratio: time of B over time of A."""

    cell: Cell
    a_s: float
    b_s: float
    """Medians."""
    samples: tuple[int, int]
    ratio: float
    low: float
    high: float
    """95 % interval of the ratio."""
    q_value: float
    """Share of false ones among all differences at least as clear as this."""
    verdict: str
    """slower, faster, or same: slower and faster are certain (q_value) and matter (the whole interval lies beyond the tolerance's half, the
    ratio beyond the tolerance)."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """All cells that both sides measured, and what else differs."""

    differences: tuple[Difference, ...]
    only_a: tuple[Cell, ...]
    only_b: tuple[Cell, ...]
    said: Mapping[str, tuple[frozenset[str], frozenset[str]]]
    """Versions, settings, hosts that differ: name to what either side says."""
    noise: float
    """Typical standard deviation of the logarithm of a time, one measurement."""
    repeated: bool
    """Whether noise comes from repeated measurements; if not, from how rough the ratio is over sizes, and a shift of all sizes together may be
    the difference that any two runs have."""

    @property
    def slower(self) -> tuple[Difference, ...]:
        """Regressions."""
        return tuple(d for d in self.differences if d.verdict == "slower")


def merged(runs: Iterable[Results], name: str) -> Results:
    """Several runs as one: their times together."""
    times: dict[Cell, list[float]] = defaultdict(list)
    said: dict[str, set[str]] = defaultdict(set)
    for run in runs:
        for cell, seconds in run.times_s.items():
            times[cell] += seconds
        for what, values in run.said.items():
            said[what] |= values
    return Results(
        name, None, None, {c: tuple(t) for c, t in times.items()}, {n: frozenset(v) for n, v in said.items()}
    )


def compare(a: Results, b: Results, *, tolerance: float = TOLERANCE) -> Comparison:
    """Time of B over time of A for every cell that both have, with intervals and verdicts.

    Logarithms of times, so that differences are ratios. The noise of one measurement is pooled: a cell's own variance where it was measured
    repeatedly, drawn towards the median of all cells as if that were worth four more measurements; where nothing was repeated, from the
    differences of the ratio between neighbouring sizes, which a regression from some size on touches once. Then Student's t, and
    Benjamini-Hochberg over all cells. tolerance: a ratio nearer to 1 is no change.
    Raises ValueError unless 0 <= tolerance < 1.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"the tolerance is a share of the time from 0 to below 1, not {tolerance}")
    cells = sorted((c for c in a.times_s if c in b.times_s), key=_order)
    logs = [(np.log(a.times_s[c]), np.log(b.times_s[c])) for c in cells]
    noises, prior_freedom, repeated = _noise(cells, logs)
    ratios, errors, freedoms = [], [], []
    for (left, right), noise in zip(logs, noises, strict=True):
        freedom = left.size + right.size - 2 if repeated else 0
        own = _squares(left) + _squares(right) if repeated else 0.0
        variance = (prior_freedom * noise**2 + own) / (prior_freedom + freedom)
        ratios.append(float(right.mean() - left.mean()))
        errors.append(max(variance**0.5, _LEAST_NOISE) * (1 / left.size + 1 / right.size) ** 0.5)
        freedoms.append(prior_freedom + freedom)
    p_values = [2 * float(stats.t.sf(abs(r) / e, f)) for r, e, f in zip(ratios, errors, freedoms, strict=True)]
    q_values = stats.false_discovery_control(p_values) if p_values else []
    differences = []
    for cell, (left, right), r, e, f, q in zip(cells, logs, ratios, errors, freedoms, q_values, strict=True):
        reach = float(stats.t.ppf(0.975, f)) * e
        differences.append(
            Difference(
                cell, math.exp(float(np.median(left))), math.exp(float(np.median(right))), (left.size, right.size),
                math.exp(r), math.exp(r - reach), math.exp(r + reach), float(q), _verdict(r, reach, float(q), tolerance),
            )
        )  # fmt: skip
    return Comparison(
        differences=tuple(differences),
        only_a=tuple(sorted((c for c in a.times_s if c not in b.times_s), key=_order)),
        only_b=tuple(sorted((c for c in b.times_s if c not in a.times_s), key=_order)),
        said={
            name: (a.said.get(name, frozenset()), b.said.get(name, frozenset()))
            for name in sorted({*a.said, *b.said})
            if a.said.get(name) != b.said.get(name)
        },
        noise=float(np.median(noises)) if noises else math.nan,
        repeated=repeated,
    )


def _order(cell: Cell) -> tuple[object, ...]:
    return tuple((value is not None, value) for value in (*cell[:2], *cell[3:], cell.size_bytes))


def _verdict(ratio: float, reach: float, q_value: float, tolerance: float) -> str:
    bound = math.log1p(tolerance)
    if q_value > FALSE_DISCOVERIES or abs(ratio) < bound or abs(ratio) - reach < bound / 2:
        return "same"
    return "slower" if ratio > 0 else "faster"


def _squares(logs: FloatArray) -> float:
    return float(((logs - logs.mean()) ** 2).sum())


def _noise(cells: Sequence[Cell], logs: Sequence[tuple[FloatArray, FloatArray]]) -> tuple[list[float], float, bool]:
    """Standard deviation of one measurement of each cell, how many measurements that is worth, and whether repeats tell."""
    freedoms = [left.size + right.size - 2 for left, right in logs]
    variances = [(_squares(a) + _squares(b)) / f for (a, b), f in zip(logs, freedoms, strict=True) if f]
    if len(variances) * 2 > len(logs):
        return [float(np.median(variances)) ** 0.5] * len(logs), 4.0, True
    families: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for cell, (left, right) in zip(cells, logs, strict=True):
        families[cell[:2] + cell[3:]].append(float(right.mean() - left.mean()))
    steps = [np.abs(np.diff(ratios)) for ratios in families.values()]  # cells stand in the order of families, by size
    every = np.concatenate(steps) if steps else np.array([])
    if every.size == 0:
        return [_UNKNOWN_NOISE] * len(logs), 2.0, False
    typical = float(np.median(every))
    noises = []
    for own in steps:
        for place in range(own.size + 1):
            near = own[max(0, place - _NEAR) : place + _NEAR]
            noises.append((typical * float(np.median(near))) ** 0.5 if near.size else typical)
    # The difference of two neighbouring ratios holds four measurements.
    return [max(noise / _MAD_OF_NORMAL / 2, _LEAST_NOISE) for noise in noises], float(max(2, 2 * _NEAR)), False
