"""Who holds a table of rates back: of many suspects, each with its own cells, those whose common slowdown explains most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Culprit", "culprits"]

IntArray = npt.NDArray[np.int64]
FloatArray = npt.NDArray[np.float64]

_MAD_OF_NORMAL = 0.6744897501960817
_CLIP = 4.0
"""Standard deviations at which a single cell stops to count more."""
_PEERS = 4.0
"""Deviations of the other suspects of a kind by which a culprit must be slower than they are. A guess: natural differences between hosts are no fault."""
_FEWEST_TIMES = 3
"""A single disturbance spoils one measurement, and of the many that a table has two are met now and then: of 7 tables of 28 healthy pairs on a busy machine
one had two pairs that were 5 and 6 % slow, both ways (`python -m benchmarks.minicluster`)."""
_SLOW_CELLS = 0.6
"""Of a culprit's cells so many must be slow themselves, by half of what it is said to be."""


@dataclass(frozen=True, slots=True)
class Culprit:
    """A suspect that is slower than its peers."""

    kind: str
    suspect: int
    ratio: float
    """What it multiplies the rate of its cells by."""
    deviations: float
    """Of the mean of its cells, from chance."""
    cells: IntArray
    """(n,) places of its cells."""


def culprits(
    rates: npt.ArrayLike,
    suspects: Mapping[str, Sequence[IntArray]],
    *,
    together: npt.ArrayLike | None = None,
    least: float = 0.05,
    false_alarms: float = 0.001,
    most: int = 4,
) -> list[Culprit]:
    """Those of the suspects that hold cells back, the one that explains most first.

    Model: log rate = typical + effect of each culprit in the cell + noise. One culprit after the other: the suspect with the largest gain in
    log likelihood, n * mean^2 / (2 noise^2) of its n cells, so that a NIC is named and not its host, of whose cells it slows few. It must be
    slow beyond chance (z of the mean, false_alarms shared among all suspects), by `least`, in most of its cells, and beyond the spread of its
    kind. What disturbs a machine for a moment disturbs all that is measured in it: cells that were measured together count as one, and a suspect that was
    measured fewer than three times is nobody's culprit. Its effect is taken out before the next is looked for; noise is the median absolute deviation of what remains.

    rates: (C,) > 0. together: (C,) numbers, equal for cells that were measured at the same time, such as both directions of a pair; None: each alone. suspects: by kind, columns of (C,) numbers from 0: the suspects of that kind that a cell involves, such as both its ends;
    kinds stand in the order of preference where two explain the same. Raises ValueError for other rates, or columns of another length.

    >>> ends = [(a, b) for a in range(6) for b in range(6) if a != b]
    >>> slow = [90.0 if 2 in pair else 100.0 + sum(pair) % 3 for pair in ends]
    >>> src, dst = (np.array(end) for end in zip(*ends))
    >>> [(culprit.kind, culprit.suspect, round(culprit.ratio, 1)) for culprit in culprits(slow, {"host": [src, dst]})]
    [('host', 2, 0.9)]
    """
    given = np.asarray(rates, dtype=np.float64)
    if given.ndim != 1 or not np.isfinite(given).all() or (given <= 0).any():
        raise ValueError("rates are one row of positive numbers")
    columns = {kind: [np.asarray(column, dtype=np.int64) for column in listed] for kind, listed in suspects.items()}
    if any(column.shape != given.shape for listed in columns.values() for column in listed):
        raise ValueError("a column of suspects has another length than the rates")
    if given.size < 4:
        return []
    moments = np.arange(given.size) if together is None else np.asarray(together, dtype=np.int64)
    if moments.shape != given.shape:
        raise ValueError("together has another length than the rates")
    times = {kind: _times(listed, moments) for kind, listed in columns.items()}
    logs = np.log(given)
    found: list[Culprit] = []
    while len(found) < most:
        logs = logs - np.median(logs)
        noise = max(float(np.median(np.abs(logs))) / _MAD_OF_NORMAL, 1e-6)
        best = _best(
            np.clip(logs, -_CLIP * noise - abs(np.log1p(-least)) * _CLIP, _CLIP * noise),
            columns,
            times,
            noise,
            least,
            false_alarms,
        )
        if best is None:
            break
        kind, suspect, _ = best
        cells = np.flatnonzero(np.any([column == suspect for column in columns[kind]], axis=0))
        effect = float(np.median(logs[cells]))
        found.append(Culprit(kind, suspect, float(np.exp(effect)), abs(effect) / noise * cells.size**0.5, cells))
        logs = logs.copy()
        logs[cells] -= effect
    return found


def _times(columns: Sequence[IntArray], moments: IntArray) -> IntArray:
    """How often each suspect was measured: cells of one moment once."""
    size = int(moments.max()) + 1
    met = np.unique(np.concatenate([column * size + moments for column in columns]))
    return np.bincount(met // size)


def _best(  # noqa: PLR0917 - called in one place
    logs: FloatArray,
    columns: Mapping[str, Sequence[IntArray]],
    times: Mapping[str, IntArray],
    noise: float,
    least: float,
    false_alarms: float,
) -> tuple[str, int, float] | None:
    """Kind, suspect and gain of the likeliest culprit; None if there is none."""
    from scipy import stats  # noqa: PLC0415 - half a second

    every = sum(len({int(one) for column in listed for one in np.unique(column)}) for listed in columns.values())
    beyond = float(stats.norm.isf(false_alarms / max(every, 1)))
    best: tuple[str, int, float] | None = None
    for kind, listed in columns.items():
        size = max(int(column.max()) for column in listed) + 1
        counts = sum((np.bincount(column, minlength=size) for column in listed), np.zeros(size, np.int64))
        sums = sum((np.bincount(column, logs, size) for column in listed), np.zeros(size))
        there = counts > 0
        means = np.divide(sums, counts, out=np.zeros(size), where=there)
        usual = float(np.median(means[there]))
        spread = float(np.median(np.abs(means[there] - usual))) / _MAD_OF_NORMAL if int(there.sum()) >= 5 else 0.0
        gains = counts * means**2 / (2 * noise**2)
        for suspect in np.argsort(-gains, kind="stable"):
            mean, gain = float(means[suspect]), float(gains[suspect])
            if best is not None and gain <= best[2] * (1 + 1e-9):
                break
            if (
                mean > np.log1p(-least)
                or times[kind][suspect] < _FEWEST_TIMES
                or -mean * times[kind][suspect] ** 0.5 < beyond * noise
                or mean - usual > -_PEERS * spread
            ):
                continue
            cells = np.any([column == suspect for column in listed], axis=0)
            if float(np.mean(logs[cells] < mean / 2)) < _SLOW_CELLS:
                continue
            best = kind, int(suspect), gain
            break
    return best
