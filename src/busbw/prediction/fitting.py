"""A Calibration fitted to measured curves: robust regression on the logarithm of time, with physical values as priors.

Each parameter has a common value and a deviation for each class of GPU or network; both are held to the prior by its
spread, so that a class with few rows stays near what is common, and one without any is the common value.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.prediction.calibration import Calibration, Parameter, Spread, priors
from busbw.prediction.movement import Movement
from busbw.prediction.situation import Situation
from busbw.prediction.timing import Moves, moves_of, parts

__all__ = ["Curve", "cross_validated", "fit", "with_spreads"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_NOISE = 0.06
"""Standard deviation of the logarithm of a measured time that the model cannot explain: a guess, set by repeats."""
_FEWEST_ERRORS = 10
"""An interval needs as many rows; with fewer the next wider class is taken."""
_FEWEST_CAMPAIGNS = 2
"""A class that one campaign measured is not known: that may be one site's way."""
_BOUNDARY = 3.0
"""Residuals, in noise, beyond which a row counts ever less (Cauchy's loss): some tables are of another machine than they say."""
_STEPS, _STEPS_FROM_NEAR = 80, 20
"""Of the optimiser at most. Guesses: later ones change no figure by a percent."""
_ROWS_FITTED = 12
"""Rows of a curve that are looked at; more cost time and say no more."""
_ROWS_OF_A_CURVE = 8
"""A curve counts as this many independent rows at most: neighbours err together."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Times of one collective in one situation, and the movements it may have been."""

    name: str
    campaign: str
    where: Situation
    collective: str
    size_bytes: FloatArray  # (S,)
    time_s: FloatArray  # (S,)
    moves: tuple[Movement, ...]
    weight: float = 1.0


@dataclass(frozen=True, slots=True)
class _Problem:
    """All curves as one set of entries."""

    moves: Moves
    starts: IntArray  # (R,) first entry of each row
    gpu: IntArray  # (E,)
    network: IntArray  # (E,)
    log_time: FloatArray  # (R,)
    weight: FloatArray  # (R,)


class _Space:
    """The unknowns: a common value and a deviation a class, all as logarithms over the prior."""

    def __init__(self, prior: Calibration, gpus: Sequence[str], networks: Sequence[str]) -> None:
        self.prior, self.gpus, self.networks = prior, list(gpus), list(networks)
        self.place: dict[tuple[str, str | None], int] = {}
        spreads: list[float] = []
        for name, parameter in prior.parameters.items():
            self.place[name, None] = len(spreads)
            spreads.append(parameter.spread)
            for key in self._classes(parameter):
                self.place[name, key] = len(spreads)
                spreads.append(parameter.class_spread)
        self.spreads = np.array(spreads)

    def _classes(self, parameter: Parameter) -> list[str]:
        return self.gpus if parameter.by == "gpu" else self.networks if parameter.by == "network" else []

    def value(self, name: str, key: str | None, unknowns: FloatArray) -> float:
        parameter = self.prior.parameters[name]
        base = parameter.classes.get(key, parameter.value) if key else parameter.value
        shift = unknowns[self.place[name, None]] + (unknowns[self.place[name, key]] if key else 0.0)
        return float(base * np.exp(shift))

    def figures(self, unknowns: FloatArray, problem: _Problem) -> dict[str, float | FloatArray]:
        """Each parameter for each entry."""
        found: dict[str, float | FloatArray] = {}
        for name, parameter in self.prior.parameters.items():
            if parameter.by is None:
                found[name] = self.value(name, None, unknowns)
                continue
            values = np.array([self.value(name, key, unknowns) for key in self._classes(parameter)])
            found[name] = values[problem.gpu if parameter.by == "gpu" else problem.network]
        return found

    def unknowns(self, calibration: Calibration) -> FloatArray:
        """What makes a calibration; of a class it lacks the deviation is none."""
        found = np.zeros(len(self.spreads))
        for (name, key), place in self.place.items():
            have, prior = calibration.parameters[name], self.prior.parameters[name]
            common = np.log(have.value / prior.value)
            if key is None:
                found[place] = common
            elif key in have.classes:
                found[place] = np.log(have.classes[key] / prior.classes.get(key, prior.value)) - common
        return found

    def calibration(self, unknowns: FloatArray, curves: Sequence[Curve]) -> Calibration:
        parameters = {
            name: Parameter(
                self.value(name, None, unknowns),
                parameter.by,
                parameter.spread,
                parameter.class_spread,
                # A class that was not measured keeps its prior, moved as the common value was.
                {
                    key: parameter.classes[key] * float(np.exp(unknowns[self.place[name, None]]))
                    for key in parameter.classes
                }
                | {key: self.value(name, key, unknowns) for key in self._classes(parameter)},
                f"fitted from the prior {parameter.value:.3g} ({parameter.source})",
            )
            for name, parameter in self.prior.parameters.items()
        }
        gpus = _seen((c.where.gpu, c.campaign) for c in curves)
        networks = _seen((c.where.network, c.campaign) for c in curves if c.where.domains > 1)
        return Calibration(parameters, tuple(sorted({c.name for c in curves})), gpus, networks)


def _seen(pairs: Iterable[tuple[str, str]]) -> tuple[str, ...]:
    """The classes that campaigns enough measured."""
    campaigns = Counter(key for key, _ in set(pairs))
    return tuple(sorted(key for key, count in campaigns.items() if count >= _FEWEST_CAMPAIGNS))


def _problem(curves: Sequence[Curve], space: _Space) -> _Problem:
    blocks, starts, gpu, network, weights = [], [], [], [], []
    entries = 0
    tables = Counter(curve.campaign for curve in curves)
    for curve in curves:
        block = moves_of(curve.moves, curve.where, curve.size_bytes)
        blocks.append(block)
        starts.append(entries + np.arange(len(curve.size_bytes)) * len(curve.moves))
        entries += len(block)
        gpu.append(np.full(len(block), space.gpus.index(curve.where.gpu)))
        network.append(np.full(len(block), space.networks.index(curve.where.network)))
        rows = len(curve.size_bytes)
        # Tables of one campaign are one machine: together they count as the square root of their number.
        share = curve.weight * min(1.0, _ROWS_OF_A_CURVE / rows) / tables[curve.campaign] ** 0.5
        weights.append(np.full(rows, share**0.5))
    columns = {field.name: np.concatenate([getattr(block, field.name) for block in blocks]) for field in fields(Moves)}
    return _Problem(
        Moves(**columns),
        np.concatenate(starts),
        np.concatenate(gpu),
        np.concatenate(network),
        np.log(np.concatenate([curve.time_s for curve in curves])),
        np.concatenate(weights),
    )


def _thinned(curve: Curve) -> Curve:
    """The curve with at most _ROWS_FITTED rows, evenly chosen, the ends among them."""
    rows = len(curve.size_bytes)
    if rows <= _ROWS_FITTED:
        return curve
    kept = np.unique(np.linspace(0, rows - 1, _ROWS_FITTED).round().astype(np.int64))
    return replace(curve, size_bytes=curve.size_bytes[kept], time_s=curve.time_s[kept])


def fit(curves: Sequence[Curve], prior: Calibration | None = None, start: Calibration | None = None) -> Calibration:
    """The calibration that explains the curves best. Raises InputError without curves. start: where to begin from.

    Minimises Cauchy's loss of residuals of log time, each over the noise, plus squared deviations from the prior.
    """
    if not curves:
        raise InputError("nothing to fit: no measured rows that the model covers.")
    from scipy.optimize import least_squares  # noqa: PLC0415 - loads slowly, and only fitting needs it

    space = _Space(prior or priors(), sorted({c.where.gpu for c in curves}), sorted({c.where.network for c in curves}))
    problem = _problem([_thinned(curve) for curve in curves], space)

    def residuals(unknowns: FloatArray) -> FloatArray:
        entries = parts(problem.moves, space.figures(unknowns, problem)).total_s
        best = np.minimum.reduceat(entries, problem.starts)
        errors = problem.weight * (np.log(best) - problem.log_time) / _NOISE
        softened = np.sign(errors) * np.sqrt(_BOUNDARY**2 * np.log1p((errors / _BOUNDARY) ** 2))
        return np.concatenate([softened, unknowns / np.maximum(space.spreads, 1e-6)])

    begin = np.zeros(len(space.spreads)) if start is None else space.unknowns(start)
    found = least_squares(
        residuals, begin, method="trf", x_scale="jac", max_nfev=_STEPS if start is None else _STEPS_FROM_NEAR, ftol=1e-4
    )
    return space.calibration(found.x, curves)


def predicted(curve: Curve, calibration: Calibration) -> FloatArray:
    """Seconds at each size of a curve: the fastest of its movements."""
    block = moves_of(curve.moves, curve.where, curve.size_bytes)
    times = parts(block, calibration.figures(curve.where.gpu, curve.where.network)).total_s
    best: FloatArray = times.reshape(len(curve.size_bytes), len(curve.moves)).min(axis=1)
    return best


def cross_validated(curves: Sequence[Curve], campaigns: Sequence[str] | None = None) -> dict[str, Calibration]:
    """For each campaign the calibration fitted to all others."""
    everything = fit(curves)
    return {
        campaign: fit([curve for curve in curves if curve.campaign != campaign], start=everything)
        for campaign in campaigns or sorted({curve.campaign for curve in curves})
    }


def with_spreads(calibration: Calibration, errors: Mapping[str, Mapping[str, Sequence[float]]]) -> Calibration:
    """The calibration with intervals from logarithms of measured over predicted, by campaign and `interval_class`.

    Each campaign must have been left out of the fit its errors come from. Rows of a campaign err together: were they one,
    a new campaign would lie beyond all n with probability 1/(n+1) on each side; were they independent, with none. The
    ends are between: the percentiles 10 - 25/(n+1) and 90 + 25/(n+1). A guess, judged by coverage on campaigns left out.
    """
    pooled: dict[str, list[float]] = {}
    counts: Counter[str] = Counter()
    for campaign in errors.values():
        for name, found in campaign.items():
            pooled.setdefault(name, []).extend(found)
            counts[name] += 1
    spreads = {}
    for name, rows in sorted(pooled.items()):
        if len(rows) >= _FEWEST_ERRORS:
            tail = max(0.0, 0.1 - 0.25 / (counts[name] + 1))
            low, high = np.exp(np.quantile(np.asarray(rows, np.float64), (tail, 1 - tail)))
            spreads[name] = Spread(float(min(low, 1.0)), float(max(high, 1.0)), len(rows))
    return Calibration(
        calibration.parameters, calibration.fitted_to, calibration.seen_gpus, calibration.seen_networks, spreads
    )
