"""Calibrations fitted to measured steps: least squares on logarithms, each figure and factor held to its prior, outliers bounded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.optimize import least_squares

from busbw.workloads.training.calibration import FIGURES, TrainingCalibration, figures_of, priors, tags_of
from busbw.workloads.training.job import Job
from busbw.workloads.training.step import StepParts, stack, times

__all__ = ["MeasuredSteps", "fit", "left_out", "measured_steps"]

FloatArray = npt.NDArray[np.float64]

_ROW_SPREAD = 0.06
"""Of a row's logarithm, whatever it is: releases, rounding, a source's own scatter. A guess."""
_FEWEST = 1


@dataclass(frozen=True, slots=True, eq=False)
class MeasuredSteps:
    """Steps with what they are made of. N steps."""

    jobs: tuple[Job, ...]
    parts: StepParts
    measured_s: FloatArray
    source: tuple[str, ...]

    def at(self, places: npt.NDArray[np.int64]) -> MeasuredSteps:
        """Some of the steps."""
        parts = StepParts(*(getattr(self.parts, name)[places] for name in StepParts.__slots__))
        return MeasuredSteps(
            tuple(self.jobs[place] for place in places),
            parts,
            self.measured_s[places],
            tuple(self.source[place] for place in places),
        )


def measured_steps(
    jobs: Sequence[Job], parts: Sequence[StepParts], measured_s: Sequence[float], source: Sequence[str]
) -> MeasuredSteps:
    """The steps of jobs; of parts with several layouts the fastest by the priors is taken."""
    chosen = []
    for job, one in zip(jobs, parts, strict=True):
        took = times(one, figures_of([job], priors())).total_s
        best = np.array([int(np.argmin(took))])
        picked = {name: getattr(one, name) for name in StepParts.__slots__}
        chosen.append(
            StepParts(
                **{name: value[best] if isinstance(value, np.ndarray) else value for name, value in picked.items()}
            )
        )
    return MeasuredSteps(tuple(jobs), stack(chosen), np.array(measured_s, np.float64), tuple(source))


def _unknowns(steps: MeasuredSteps) -> Iterator[tuple[str, str, str, float]]:
    """(figure, tag, its value, spread): common values with an empty tag, and factors of tags that occur."""
    tags = [tags_of(job) for job in steps.jobs]
    for name, (_, spread, by, _) in FIGURES.items():
        if spread > 1e-2:
            yield name, "", "", spread
        for tag, factor_spread in by:
            seen = Counter(one[tag] for one in tags)
            for value, count in sorted(seen.items()):
                if value and count >= _FEWEST:
                    yield name, tag, value, factor_spread


def fit(steps: MeasuredSteps, begin: TrainingCalibration | None = None) -> TrainingCalibration:
    """The calibration of steps."""
    unknowns = list(_unknowns(steps))
    weight = _weights(steps.source)
    # Figures are products, so their logarithms are sums: one matrix a figure from unknowns to steps.
    tags = [tags_of(job) for job in steps.jobs]
    design = {name: np.zeros((len(steps.jobs), len(unknowns))) for name in FIGURES}
    for place, (name, tag, value, _) in enumerate(unknowns):
        design[name][:, place] = [not tag or one[tag] == value for one in tags]
    base = figures_of(steps.jobs, priors())
    spreads = np.array([one[3] for one in unknowns])
    start = np.zeros(len(unknowns))
    if begin is not None:
        for place, (name, tag, value, _) in enumerate(unknowns):
            known = begin.factors.get((name, tag, value), 1.0) if tag else begin.values[name] / FIGURES[name][0]
            start[place] = math.log(known)
    open_tp, open_ep = 1 - np.asarray(base.tp_hidden), 1 - np.asarray(base.ep_hidden)
    flagged = {
        "tp": np.array(["tp" in job.overlap for job in steps.jobs]),
        "ep": np.array(["ep" in job.overlap for job in steps.jobs]),
    }

    def residuals(x: FloatArray) -> FloatArray:
        scaled = {
            name: np.asarray(getattr(base, name)) * np.exp(matrix @ x)
            for name, matrix in design.items()
            if name not in ("tp_open", "ep_open")
        }
        scaled["dp_hidden"] = np.minimum(1.0, scaled["dp_hidden"])
        tp = np.where(flagged["tp"], np.minimum(1.0, open_tp * np.exp(design["tp_open"] @ x)), 1.0)
        ep = np.where(flagged["ep"], np.minimum(1.0, open_ep * np.exp(design["ep_open"] @ x)), 1.0)
        figures = replace(base, **scaled, tp_hidden=1 - tp, ep_hidden=1 - ep)
        off = np.log(times(steps.parts, figures).total_s / steps.measured_s) / _ROW_SPREAD
        # Beyond two spreads a row pulls no harder: a defect of a release must not move figures.
        off = np.sign(off) * np.where(np.abs(off) < 2, np.abs(off), 2 * np.sqrt(np.maximum(np.abs(off), 2) - 1))
        return np.asarray(np.r_[off * weight, x / spreads], np.float64)

    found = least_squares(residuals, start, method="trf", x_scale=np.maximum(spreads, 1e-2), max_nfev=10, ftol=1e-3).x
    values = {name: figure[0] for name, figure in FIGURES.items()}
    factors = {}
    for (name, tag, value, _), moved in zip(unknowns, found.tolist(), strict=True):
        if tag:
            factors[name, tag, value] = math.exp(moved)
        else:
            values[name] *= math.exp(moved)
    return TrainingCalibration(values, factors, fitted_to=tuple(sorted(set(steps.source))))


def _weights(source: Sequence[str]) -> FloatArray:
    """Rows of long tables repeat one configuration over releases: a source counts as the root of its rows."""
    count = Counter(source)
    return np.array([count[one] ** -0.25 for one in source])


def left_out(steps: MeasuredSteps) -> tuple[TrainingCalibration, dict[str, TrainingCalibration]]:
    """The calibration of all steps, and by source that of all others; the interval of each from the errors of sources left out."""
    whole = fit(steps)
    names = np.array(steps.source)
    without = {name: fit(steps.at(np.flatnonzero(names != name)), whole) for name in sorted(set(steps.source))}
    ratio = np.ones(len(names))
    for name, calibration in without.items():
        places = np.flatnonzero(names == name)
        mine = steps.at(places)
        ratio[places] = mine.measured_s / times(mine.parts, figures_of(mine.jobs, calibration)).total_s
    moe = np.array([job.model.is_moe for job in steps.jobs])

    def spread(chosen: npt.NDArray[np.bool_]) -> dict[str, tuple[float, float]]:
        return {
            kind: (float(np.quantile(ratio[which], 0.1)), float(np.quantile(ratio[which], 0.9)))
            for kind, which in (("dense", chosen & ~moe), ("moe", chosen & moe))
            if which.sum() >= _FEWEST_FOR_INTERVAL
        }

    everywhere = np.ones(len(names), np.bool_)
    judged = {name: replace(one, spread=spread(names != name)) for name, one in without.items()}
    return replace(whole, spread=spread(everywhere)), judged


_FEWEST_FOR_INTERVAL = 10
"""Steps whose quantiles make an interval. A guess."""
