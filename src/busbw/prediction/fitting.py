"""A Calibration fitted to measured curves: robust regression on the logarithm of time, with physical values as priors.

Three levels. A parameter has a common value; a class of GPU or network deviates from it; and a campaign, which is one
machine and one way to launch, takes more or less time than its class for latency and for wire. All are held to none by
their spreads, so a class with few rows stays near what is common, and one site's way does not become its class's.
NCCL's own choice of algorithm and protocol is taken where it is known, else the fastest.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import product

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.prediction.calibration import (
    BOUNDS,
    COMPONENTS,
    Calibration,
    Parameter,
    Spread,
    bound_by,
    priors,
    spread_class,
)
from busbw.prediction.choosing import FASTEST
from busbw.prediction.movement import Movement
from busbw.prediction.situation import Situation
from busbw.prediction.timing import Moves, Parts, moves_of, parts

__all__ = ["Curve", "Errors", "cross_validated", "fit", "picked", "predicted", "predicted_parts", "with_deviations"]

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

_NOISE = 0.06
"""Standard deviation of the logarithm of a measured time that the model cannot explain: a guess, set by repeats."""
_SITE_LAUNCH, _SITE_NETWORK, _SITE_WIRE = 0.2, 0.2, 0.04
"""The same of a campaign around its class: of its launch, its network's latency and its wire. Guesses, from campaigns of
equal hardware: eight H100 answer in 14 to 37 us, and reach 476 to 489 GB/s."""
_BOUNDARY = 2.0
"""Residuals, in noise, beyond which a row counts ever less (Cauchy's loss): some tables are of another machine than they say."""
_FEWEST_ERRORS = 10
"""An interval needs as many rows; with fewer the next wider class is taken."""
_STEPS = 40
"""Of the optimiser at most. A guess: later ones change no figure by a percent."""
_ROWS_FITTED = 12
"""Rows of a curve that are looked at; more cost time and say no more."""
_ROWS_OF_A_CURVE = 8
"""A curve counts as this many independent rows at most: neighbours err together."""
_SETTLED = 1e-3
"""Two steps in a row that lower the loss by less than this share end the search. A guess."""
_ROUNDS = 100
_GUESS = 2.0
_FAR_OFF = 1.6
"""Of the components' search: rounds; rows that a guess is worth; and where an error says no more how wide errors are. Guesses."""
_BEYOND = 0.75
"""Rows of a campaign err together: were they one, a new campaign would lie beyond all n with probability 1/(n+1) on each side; were
they independent, with none. The ends of an interval are between: percentiles 10 and 90 less _BEYOND/(n+1). A guess, judged by coverage."""
_LEAST_TAIL = 0.05
"""Percentiles beyond 5 and 95 are single rows where few campaigns are, and cold ones among them."""
_NUDGE = 1e-4
"""Step of a derivative, as a logarithm."""


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
    pick: IntArray | None = None
    """(S,) place among moves of what ran; FASTEST, or None for all, where that is not known."""
    judged: bool = True
    """Whether intervals come from its errors, too: not those of other tools, and of what may be sick."""


def picked(entries_s: FloatArray, pick: IntArray | None) -> IntArray:
    """The place of what runs, (S,): pick, or where that is FASTEST the least of entries_s, (S, movements)."""
    fastest: IntArray = entries_s.argmin(axis=1)
    return fastest if pick is None else np.where(pick == FASTEST, fastest, pick)


@dataclass(frozen=True, slots=True)
class _Problem:
    """All curves as one set of entries."""

    moves: Moves
    row: IntArray  # (E,) row of an entry
    first: IntArray  # (R,) first entry of a row
    gpu: IntArray  # (E,)
    network: IntArray  # (E,)
    campaign: IntArray  # (R,)
    log_time: FloatArray  # (R,)
    weight: FloatArray  # (R,)


class _Space:
    """The unknowns, all logarithms over the prior: common values, deviations of classes, then latency and wire of campaigns."""

    def __init__(self, prior: Calibration, curves: Sequence[Curve]) -> None:
        self.prior = prior
        self.gpus = sorted({curve.where.gpu for curve in curves})
        self.networks = sorted({curve.where.network for curve in curves})
        self.campaigns = sorted({curve.campaign for curve in curves})
        self.place: dict[tuple[str, str | None], int] = {}
        spreads: list[float] = []
        for name, parameter in prior.parameters.items():
            self.place[name, None] = len(spreads)
            spreads.append(parameter.spread)
            for key in self.classes(parameter):
                self.place[name, key] = len(spreads)
                spreads.append(
                    np.hypot(parameter.class_spread, parameter.spread)
                    if key in parameter.classes
                    else parameter.class_spread
                )
        self.sites = len(spreads)
        for spread in (_SITE_LAUNCH, _SITE_NETWORK, _SITE_WIRE):
            spreads += [spread] * len(self.campaigns)
        self.spreads = np.maximum(np.array(spreads), 1e-6)

    def classes(self, parameter: Parameter) -> list[str]:
        return self.gpus if parameter.by == "gpu" else self.networks if parameter.by == "network" else []

    def value(self, name: str, key: str | None, unknowns: FloatArray) -> float:
        parameter = self.prior.parameters[name]
        if key is not None and key in parameter.classes:  # with a prior of its own: what is common says nothing of it
            return float(parameter.classes[key] * np.exp(unknowns[self.place[name, key]]))
        shift = unknowns[self.place[name, None]] + (unknowns[self.place[name, key]] if key else 0.0)
        return float(parameter.value * np.exp(shift))

    def site(self, unknowns: FloatArray, campaign: IntArray) -> FloatArray:
        """How much longer launch, network and wire take at the campaign of each row, (3, R)."""
        return np.exp(unknowns[self.sites :].reshape(3, len(self.campaigns))[:, campaign])

    def figures(self, unknowns: FloatArray, gpu: IntArray, network: IntArray) -> dict[str, float | FloatArray]:
        """Each parameter for each entry."""
        found: dict[str, float | FloatArray] = {}
        for name, parameter in self.prior.parameters.items():
            if parameter.by is None:
                found[name] = self.value(name, None, unknowns)
                continue
            values = np.array([self.value(name, key, unknowns) for key in self.classes(parameter)])
            found[name] = values[gpu if parameter.by == "gpu" else network]
        return found

    def calibration(self, unknowns: FloatArray, deviations: FloatArray, curves: Sequence[Curve]) -> Calibration:
        """deviations: standard deviations of values, by the place of unknowns; a class's includes the common one's."""
        parameters = {}
        for name, parameter in self.prior.parameters.items():
            classes = dict(parameter.classes)
            classes |= {key: self.value(name, key, unknowns) for key in self.classes(parameter)}
            parameters[name] = Parameter(
                self.value(name, None, unknowns),
                parameter.by,
                parameter.spread,
                parameter.class_spread,
                classes,
                f"fitted from the prior {parameter.value:.3g} ({parameter.source})",
                float(deviations[self.place[name, None]]),
                {key: float(deviations[self.place[name, key]]) for key in self.classes(parameter)},
            )
        gpus = _seen((c.where.gpu, c.campaign) for c in curves)
        pairs = _seen((f"{c.where.gpu}/{c.where.network}", c.campaign) for c in curves if c.where.domains > 1)
        return Calibration(parameters, tuple(sorted({c.name for c in curves})), gpus, pairs)


def _seen(pairs: Iterable[tuple[str, str]]) -> dict[str, int]:
    """How many campaigns measured each class."""
    return dict(sorted(Counter(key for key, _ in set(pairs)).items()))


def _problem(curves: Sequence[Curve], space: _Space) -> _Problem:
    blocks, rows, gpu, network, campaign, weights = [], [], [], [], [], []
    done = 0
    for curve in curves:
        count, sizes = len(curve.moves), len(curve.size_bytes)
        row = np.repeat(np.arange(sizes), count)
        pick = np.full(sizes, FASTEST) if curve.pick is None else curve.pick
        kept = np.flatnonzero((pick[row] == FASTEST) | (np.tile(np.arange(count), sizes) == pick[row]))
        blocks.append(moves_of(curve.moves, curve.where, curve.size_bytes).at(kept))
        rows.append(done + row[kept])
        done += sizes
        gpu.append(np.full(len(kept), space.gpus.index(curve.where.gpu)))
        network.append(np.full(len(kept), space.networks.index(curve.where.network)))
        campaign.append(np.full(sizes, space.campaigns.index(curve.campaign)))
        share = curve.weight * min(1.0, _ROWS_OF_A_CURVE / sizes)
        weights.append(np.full(sizes, share))
    row = np.concatenate(rows)
    return _Problem(
        Moves(**{f.name: np.concatenate([getattr(block, f.name) for block in blocks]) for f in fields(Moves)}),
        row,
        np.flatnonzero(np.diff(row, prepend=-1)),
        np.concatenate(gpu),
        np.concatenate(network),
        np.concatenate(campaign),
        np.log(np.concatenate([curve.time_s for curve in curves])),
        np.concatenate(weights),
    )


def _thinned(curve: Curve) -> Curve:
    """The curve with at most _ROWS_FITTED rows, evenly chosen, the ends among them."""
    rows = len(curve.size_bytes)
    if rows <= _ROWS_FITTED:
        return curve
    kept = np.unique(np.linspace(0, rows - 1, _ROWS_FITTED).round().astype(np.int64))
    pick = None if curve.pick is None else curve.pick[kept]
    return replace(curve, size_bytes=curve.size_bytes[kept], time_s=curve.time_s[kept], pick=pick)


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows at some unknowns: residuals of log time and their derivatives."""

    residual: FloatArray  # (R,)
    jacobian: FloatArray  # (R, U)


def _soft(deviations: FloatArray, sites: int) -> FloatArray:
    """Squares of the first, Cauchy's loss of those from `sites` on: a few campaigns are far from their class."""
    pull = deviations**2
    pull[sites:] = _BOUNDARY**2 * np.log1p(pull[sites:] / _BOUNDARY**2)
    return pull


def _at_site(found: Parts, site: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Times where launch, network and wire take `site` times as long, (R,), and the three, (3, R). Steps inside are no site's."""
    steps = found.latency_s - found.network_s
    three = np.stack([found.launch_s, found.network_s, found.total_s - found.launch_s - found.latency_s]) * site
    return three.sum(axis=0) + steps, three


class _Fit:
    """Damped Gauss-Newton with weights that Cauchy's loss gives; all rows at once, each parameter nudged once."""

    def __init__(self, space: _Space, problem: _Problem) -> None:
        self.space, self.problem = space, problem
        self.precision = 1.0 / space.spreads**2

    def best(self, unknowns: FloatArray) -> IntArray:
        """The entry that each row takes, (R,): where several are left the fastest."""
        problem = self.problem
        total = parts(problem.moves, self.space.figures(unknowns, problem.gpu, problem.network)).total_s
        least = np.minimum.reduceat(total, problem.first)
        entries = np.flatnonzero(total == least[problem.row])
        _, where = np.unique(problem.row[entries], return_index=True)
        return entries[where]

    def rows(self, unknowns: FloatArray) -> _Rows:
        space, problem = self.space, self.problem
        entries = self.best(unknowns)
        moves, gpu, network = problem.moves.at(entries), problem.gpu[entries], problem.network[entries]
        figures = space.figures(unknowns, gpu, network)
        site = space.site(unknowns, problem.campaign)
        base, shares = _at_site(parts(moves, figures), site)
        jacobian = np.zeros((len(base), len(space.spreads)))
        for name, parameter in space.prior.parameters.items():
            nudged, _ = _at_site(parts(moves, {**figures, name: figures[name] * np.exp(_NUDGE)}), site)
            slope = (nudged - base) / base / _NUDGE
            member = gpu if parameter.by == "gpu" else network
            own = [number for number, key in enumerate(space.classes(parameter)) if key in parameter.classes]
            jacobian[:, space.place[name, None]] = np.where(np.isin(member, own), 0.0, slope)
            for number, key in enumerate(space.classes(parameter)):
                jacobian[:, space.place[name, key]] = np.where(member == number, slope, 0.0)
        row = np.arange(len(base))
        for number, share in enumerate(shares):
            jacobian[row, space.sites + number * len(space.campaigns) + problem.campaign] = share / base
        return _Rows(np.log(base) - problem.log_time, jacobian)

    def cost(self, unknowns: FloatArray) -> float:
        problem, space = self.problem, self.space
        entries = self.best(unknowns)
        found = parts(
            problem.moves.at(entries), space.figures(unknowns, problem.gpu[entries], problem.network[entries])
        )
        total, _ = _at_site(found, space.site(unknowns, problem.campaign))
        residual = np.log(total) - problem.log_time
        soft = _BOUNDARY**2 * np.log1p((residual / _NOISE / _BOUNDARY) ** 2)
        pull = _soft(unknowns / space.spreads, space.sites)
        return float((problem.weight * soft).sum() + pull.sum())

    def run(self, begin: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The unknowns of least loss, and the inverse of its curvature there: their covariance."""
        unknowns, cost, damping, idle = begin, self.cost(begin), 1e-2, 0
        normal = np.diag(self.precision)
        for _ in range(_STEPS):
            rows = self.rows(unknowns)
            softened = self.problem.weight / (1 + (rows.residual / _NOISE / _BOUNDARY) ** 2) / _NOISE**2
            weighted = rows.jacobian * softened[:, None]
            precision = self.precision.copy()
            precision[self.space.sites :] /= 1 + (unknowns / self.space.spreads / _BOUNDARY)[self.space.sites :] ** 2
            normal = rows.jacobian.T @ weighted + np.diag(precision)
            gradient = weighted.T @ rows.residual + precision * unknowns
            while True:
                step = np.linalg.solve(normal + damping * np.diag(np.diag(normal)), -gradient)
                longest = float(np.abs(step).max())
                tried = unknowns + step * min(1.0, 1.0 / max(longest, 1e-12))
                reached = self.cost(tried)
                if reached < cost or damping > 1e6:
                    break
                damping *= 4
            better = cost - reached
            if better > 0:
                unknowns, cost, damping = tried, reached, damping / 4
            idle = idle + 1 if better < _SETTLED * cost else 0
            if idle >= 2 or better <= 0:
                break
        return unknowns, np.linalg.inv(normal)


def fit(curves: Sequence[Curve], prior: Calibration | None = None, start: Calibration | None = None) -> Calibration:
    """The calibration that explains the curves best. Raises InputError without curves. start: where to begin from.

    Minimises Cauchy's loss of residuals of log time, each over the noise, plus squared deviations from the prior.
    """
    if not curves:
        raise InputError("nothing to fit: no measured rows that the model covers.")
    space = _Space(prior or priors(), curves)
    begin = np.zeros(len(space.spreads))
    if start is not None:
        for (name, key), place in space.place.items():
            have, known = start.parameters[name], space.prior.parameters[name]
            common = np.log(have.value / known.value)
            if key is None:
                begin[place] = common
            elif key in known.classes:
                begin[place] = np.log(have.classes[key] / known.classes[key])
            elif key in have.classes:
                begin[place] = np.log(have.classes[key] / known.value) - common
    found, covariance = _Fit(space, _problem([_thinned(curve) for curve in curves], space)).run(begin)
    variance = np.diag(covariance).copy()
    for (name, key), place in space.place.items():
        if (
            key is not None and key not in space.prior.parameters[name].classes
        ):  # of common value and deviation together
            other = space.place[name, None]
            variance[place] += covariance[other, other] + 2 * covariance[place, other]
    return space.calibration(found, np.sqrt(np.maximum(variance, 0.0)), curves)


def predicted_parts(curve: Curve, calibration: Calibration) -> Parts:
    """What the time at each size of a curve is made of."""
    block = moves_of(curve.moves, curve.where, curve.size_bytes)
    figures = calibration.figures(curve.where.gpu, curve.where.network)
    shape = (len(curve.size_bytes), len(curve.moves))
    pick = picked(parts(block, figures).total_s.reshape(shape), curve.pick)
    return parts(block.at(np.arange(shape[0]) * shape[1] + pick), figures)


def predicted(curve: Curve, calibration: Calibration) -> FloatArray:
    """Seconds at each size of a curve."""
    return predicted_parts(curve, calibration).total_s


def cross_validated(curves: Sequence[Curve], campaigns: Sequence[str] | None = None) -> dict[str, Calibration]:
    """For each campaign the calibration fitted to all others."""
    everything = fit(curves)
    return {
        campaign: fit([curve for curve in curves if curve.campaign != campaign], start=everything)
        for campaign in campaigns or sorted({curve.campaign for curve in curves})
    }


@dataclass(frozen=True, slots=True)
class Errors:
    """Rows of a situation that a calibration was not fitted to; R rows."""

    campaign: str
    wire: FloatArray  # (R,) share of the time that its bytes take
    error: FloatArray  # (R,) log(measured / predicted)
    parameters: FloatArray  # (R,) variance from the parameters' uncertainty
    shares: Mapping[str, FloatArray]
    """(R,) each: how much of each component a time has."""
    seen: bool = True
    """Whether campaigns enough measured such hardware."""


def with_deviations(calibration: Calibration, errors: Sequence[Errors]) -> Calibration:
    """The calibration with intervals from errors on campaigns that were left out of the fit they come from.

    First the components: those under which the errors are likeliest, taken as normal and independent, errors beyond
    _FAR_OFF deviations counted as if there. Then percentiles of errors over their deviation, by what a time waits for, and apart where
    no campaign measured such hardware; _BEYOND says which. Campaigns weigh as the square root of
    their rows.
    """
    if not errors:
        return calibration
    error = np.concatenate([found.error for found in errors])
    known = np.concatenate([found.parameters for found in errors])
    rows = Counter[str]()
    for found in errors:
        rows[found.campaign] += len(found.error)
    weight = np.concatenate([np.full(len(found.error), rows[found.campaign] ** -0.5) for found in errors])
    names = list(COMPONENTS)
    shares = np.concatenate(
        [np.stack([found.shares.get(name, np.zeros(len(found.error))) for name in names], 1) for found in errors]
    )
    squares = shares**2
    guess = np.array([COMPONENTS[name] for name in names]) ** 2
    components = guess.copy()
    for _ in range(_ROUNDS):
        variance = known + squares @ components
        seen = np.minimum(error**2, _FAR_OFF**2 * variance)
        # Each component's guess counts as _GUESS rows that hold nothing else.
        above = (weight * seen / variance**2) @ squares + _GUESS * guess / components**2
        below = (weight / variance) @ squares + _GUESS / components
        components = components * np.sqrt(above / below)
    found_components = dict(zip(names, np.sqrt(components).tolist(), strict=True))
    deviation = np.sqrt(known + squares @ components)
    bound = np.concatenate([bound_by(found.wire) for found in errors])
    campaign = np.concatenate([np.full(len(found.error), found.campaign) for found in errors])
    seen = np.concatenate([np.full(len(found.error), found.seen) for found in errors])
    spreads = {}
    for name, is_seen in product(BOUNDS, (True, False)):
        mine = (bound == BOUNDS.index(name)) & (seen == is_seen)
        if mine.sum() >= _FEWEST_ERRORS:
            tail = max(_LEAST_TAIL, 0.1 - _BEYOND / (len(set(campaign[mine].tolist())) + 1))
            low, high = _quantiles(np.stack([error[mine] / deviation[mine], weight[mine]], 1), (tail, 1 - tail))
            spreads[spread_class(name, is_seen)] = Spread(min(low, 0.0), max(high, 0.0), int(mine.sum()))
    return replace(calibration, components=found_components, spreads=spreads)


def _quantiles(rows: FloatArray, shares: Sequence[float]) -> list[float]:
    """Weighted quantiles of rows (R, 2) of value and weight."""
    ordered = rows[rows[:, 0].argsort()]
    passed = (ordered[:, 1].cumsum() - ordered[:, 1] / 2) / ordered[:, 1].sum()
    return [float(value) for value in np.interp(shares, passed, ordered[:, 0])]
