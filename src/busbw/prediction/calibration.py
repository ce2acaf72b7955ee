"""Calibration: the parameters of the time model, each with its unit in its name, source and uncertainty, as data.

A parameter has one value, and values of its own for classes of GPU or network that were measured. A class never measured
takes the common value. What ships was fitted to published tables, which `fitted_to` names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from busbw.errors import InputError
from busbw.prediction.movement import movements
from busbw.prediction.situation import Situation
from busbw.prediction.timing import Parts, moves_of, parts

__all__ = [
    "BOUNDS",
    "COMPONENTS",
    "SIZE_CLASSES",
    "Calibration",
    "Parameter",
    "Spread",
    "bound_by",
    "load_calibration",
    "priors",
    "read_calibration",
    "size_class",
    "spread_class",
    "wire_share",
]

FloatArray = npt.NDArray[np.float64]

SCHEMA = 3
_LISTED = 2
_MOST_BYTES = 1 << 22
_MOST_DEVIATION = 20.0
"""Of what a file may say of spreads: a factor of 5e8, beyond all that can be meant."""
_SMALL_BELOW, _LARGE_FROM = 64 << 10, 64 << 20
SIZE_CLASSES = ("small", "middle", "large")
"""Below 64 KiB, from 64 MiB, and between."""


def size_class(size_bytes: float) -> str:
    """The class of a size, which intervals go by.

    >>> size_class(8), size_class(1 << 20), size_class(1 << 30)
    ('small', 'middle', 'large')
    """
    return SIZE_CLASSES[(size_bytes >= _SMALL_BELOW) + (size_bytes >= _LARGE_FROM)]


BOUNDS = ("latency", "both", "wire")
"""What a time waits for: less than a third of it is wire, at least nine tenths are, or between."""
_BOUNDS_FROM = (1 / 3, 0.9)


def wire_share(found: Parts) -> FloatArray:
    """How much of a time its bytes take on links or NICs, (E,)."""
    return (found.total_s - found.launch_s - found.latency_s - found.fill_s) / found.total_s


def bound_by(share: FloatArray) -> npt.NDArray[np.int64]:
    """The place in BOUNDS of times with such a share of wire, (E,)."""
    return np.searchsorted(np.array(_BOUNDS_FROM), share, side="right").astype(np.int64)


def spread_class(bound: str, seen: bool) -> str:
    """The key of a spread: what the time waits for, and whether any campaign measured the hardware.

    One machine of hardware that nobody else measured may lie several times off; that says nothing of what many measured.

    >>> spread_class("wire", True), spread_class("wire", False)
    ('wire', 'wire, unseen')
    """
    return bound if seen else f"{bound}, unseen"


@dataclass(frozen=True, slots=True)
class Parameter:
    """One figure of the model and where it comes from."""

    value: float
    by: str | None
    """Which kind of class, gpu or network, may have values of its own."""
    spread: float
    """Standard deviation of the logarithm of the common value, before fitting."""
    class_spread: float
    """The same of a class around the common value."""
    classes: Mapping[str, float]
    source: str
    uncertainty: float = 0.0
    """Standard deviation of the logarithm of the common value, after fitting; 0 before."""
    class_uncertainty: Mapping[str, float] = field(default_factory=dict)
    """The same of a class's value."""

    def of(self, gpu: str, network: str) -> float:
        """The value for classes of GPU and network."""
        key = gpu if self.by == "gpu" else network
        return self.classes.get(key, self.value) if self.by else self.value


@dataclass(frozen=True, slots=True)
class Spread:
    """Where log(measured / predicted) lay on tables not fitted to, in standard deviations of `deviations`: 80 % between."""

    low: float
    high: float
    rows: int


COMPONENTS = {
    "row": 0.03,
    "launch": 0.5,
    "network": 0.3,
    "unseen_network": 0.6,
    "links": 0.04,
    "unseen_links": 0.08,
    "nics": 0.04,
    "unseen_nics": 0.2,
    "fill": 0.3,
    "unknown_choice": 0.1,
    "racks": 0.2,
}
"""What makes measured and predicted times differ, each a standard deviation of a logarithm: of a row, whatever it is; of the part
of the time that the name says, from site to site (network: its latency); unseen: of classes that
no campaign measured; unknown_choice: where the algorithm that ran is not known; racks: of the wire for each
doubling of NVLink domains larger than a board beyond four, up to the 20 that were measured. Guesses, until `with_deviations` puts what tables not fitted to show in their place."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """All parameters, what they were fitted to, and how far measurements lay from predictions."""

    parameters: Mapping[str, Parameter]
    fitted_to: tuple[str, ...] = ()
    seen_gpus: Mapping[str, int] = field(default_factory=dict)
    """How many campaigns measured a class of GPU."""
    seen_networks: Mapping[str, int] = field(default_factory=dict)
    """GPU class/network: how many measured them together."""
    components: Mapping[str, float] = field(default_factory=lambda: dict(COMPONENTS))
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """By `spread_class`."""

    def figures(self, gpu: str, network: str) -> dict[str, float]:
        """Every parameter's value for classes of GPU and network."""
        return {name: parameter.of(gpu, network) for name, parameter in self.parameters.items()}

    def has_seen(self, gpu: str, network: str | None) -> bool:
        """Whether both classes were fitted, and together; network None: only one domain, so it does not matter."""
        return bool(self.seen_gpus.get(gpu)) and (network is None or bool(self.seen_networks.get(f"{gpu}/{network}")))

    def campaigns_over(self, network: str) -> int:
        """How many campaigns measured a network, with whichever GPUs."""
        return sum(count for pair, count in self.seen_networks.items() if pair.endswith(f"/{network}"))

    def deviations(self, where: Situation, found: Parts, known_choice: bool = True) -> FloatArray:
        """Standard deviation of log(measured / predicted), (E,).

        Squares add up: of each component, weighted by its share of the time, and of the parameters. A class that was not
        measured has the common value's and the spread of classes. known_choice: whether the algorithm that runs is known.
        """
        variance = self.of_parameters(where, found)
        for name, share in self.shares(where, found, known_choice).items():
            variance = variance + (share * self.components[name]) ** 2
        return np.sqrt(variance)

    def shares(self, where: Situation, found: Parts, known_choice: bool) -> dict[str, FloatArray]:
        """How much of each component a time has, (E,) each."""
        # A site lies apart from its class, and what is known of the class lies apart from it by so much over its campaigns.
        gpus = self.seen_gpus.get(where.gpu, 0)
        # Latency is of GPU and network together; what NICs carry is the network's.
        networks = self.seen_networks.get(f"{where.gpu}/{where.network}", 0)
        nics = self.campaigns_over(where.network)
        total, one = found.total_s, np.ones_like(found.total_s)
        wire = wire_share(found)
        inside = np.where(found.intra_s >= found.inter_s, wire, 0.0)
        beyond = math.log2(min(where.domains, _MOST_RACKS_SEEN) / _RACKS_SEEN)
        racks = max(0.0, beyond) if where.domain_ranks > _BOARD else 0.0
        return {
            "row": one,
            "launch": found.launch_s / total * _known_from(gpus),
            "network" if networks else "unseen_network": found.network_s / total * _known_from(networks),
            "links" if gpus else "unseen_links": inside * _known_from(gpus),
            "nics" if nics else "unseen_nics": (wire - inside) * _known_from(nics),
            "fill": found.fill_s / total,
            # Whatever a library runs where the wire counts alone moves the fewest bytes.
            "unknown_choice": (1 - wire) * (not known_choice),
            "racks": wire * racks,
        }

    def of_parameters(self, where: Situation, found: Parts) -> FloatArray:
        """The variance that the uncertainty of parameters adds, (E,)."""
        wire = found.total_s - found.launch_s - found.latency_s - found.fill_s
        inside = found.intra_s >= found.inter_s
        links = max(self._uncertainty(name, where) for name in ("ring_share", "nvls_share", "p2p_share"))
        taken = (
            (found.launch_s, self._uncertainty("launch_s", where)),
            (found.latency_s - found.network_s, self._uncertainty("step_s", where)),
            (found.network_s, self._uncertainty("network_step_s", where)),
            (wire, np.where(inside, links, self._uncertainty("network_share", where))),
        )
        return np.asarray(sum((part / found.total_s * uncertainty) ** 2 for part, uncertainty in taken), np.float64)

    def factors(self, where: Situation, found: Parts, known_choice: bool = True) -> tuple[FloatArray, FloatArray]:
        """Factors on predictions between which 80 % of measurements are expected, each (E,).

        What racks add is one table's, so it is taken as normal: percentiles of errors elsewhere do not say how it is spread.
        """
        racks = self.shares(where, found, known_choice)["racks"] * self.components["racks"]
        deviation = np.sqrt(np.maximum(0.0, self.deviations(where, found, known_choice) ** 2 - racks**2))
        seen = self.has_seen(where.gpu, where.network if where.domains > 1 else None)
        spreads = [self.spreads.get(spread_class(name, seen), _NO_SPREAD) for name in BOUNDS]
        place = bound_by(wire_share(found))
        low, high = (np.array([getattr(spread, end) for spread in spreads])[place] for end in ("low", "high"))
        return (
            np.exp(-np.hypot(low * deviation, _NO_SPREAD.low * racks)),
            np.exp(np.hypot(high * deviation, _NO_SPREAD.high * racks)),
        )

    def interval(self, where: Situation, size_bytes: float) -> tuple[float, float]:
        """The factors of an all_reduce of one size, run by the fastest algorithm; `predict` gives those of any prediction."""
        size = np.array([float(size_bytes)])
        found = movements("all_reduce", where)
        block, figures = moves_of(found, where, size), self.figures(where.gpu, where.network)
        fastest = parts(block.at(np.array([parts(block, figures).total_s.argmin()])), figures)
        low, high = self.factors(where, fastest, where.library == "NCCL")
        return float(low[0]), float(high[0])

    def _uncertainty(self, name: str, where: Situation) -> float:
        """Standard deviation of the logarithm of a parameter for classes of GPU and network."""
        parameter = self.parameters[name]
        if parameter.by is None:
            return parameter.uncertainty
        key = where.gpu if parameter.by == "gpu" else where.network
        known = parameter.class_uncertainty.get(key)
        return math.hypot(parameter.uncertainty, parameter.class_spread) if known is None else known


def _known_from(campaigns: int) -> float:
    """By how much a site lies farther from the mean of so many than from the class's own: sqrt(1 + 1/n); 1 for none."""
    return math.sqrt(1 + 1 / campaigns) if campaigns else 1.0


_RACKS_SEEN, _MOST_RACKS_SEEN, _BOARD = 4, 20, 8
"""NVLink domains larger than a board: up to three were measured as predicted, the one table of more, 20, takes twice as long. Of still
more nothing is known: they are taken as uncertain as 20, since a factor for each doubling would end in any factor at all."""
_NO_SPREAD = Spread(-1.3, 1.3, 0)
"""Before anything was left out: 80 % of a normal distribution."""


def _deviation(name: str, entry: Any) -> float:
    """A standard deviation of a logarithm that a file says."""
    if isinstance(entry, bool) or not isinstance(entry, int | float) or not 0 <= entry <= _MOST_DEVIATION:
        raise ValueError(f"{name}: {entry!r} is no standard deviation of a logarithm, 0 to {_MOST_DEVIATION:g}")
    return float(entry)


def _spread(name: str, entry: Any) -> Spread:
    low, high = float(entry["low"]), float(entry["high"])
    if not -_MOST_DEVIATION <= low <= 0 <= high <= _MOST_DEVIATION:
        raise ValueError(f"spread {name}: {low:g} to {high:g} is no interval around 0")
    return Spread(low, high, int(entry["rows"]))


def _parameter(name: str, entry: Any) -> Parameter:
    if not isinstance(entry, dict) or not isinstance(entry.get("value"), int | float):
        raise ValueError(f"{name}: needs a value")
    if entry.get("by") not in (None, "gpu", "network"):
        raise ValueError(f"{name}: by is gpu, network or null, not {entry.get('by')!r}")
    if not isinstance(entry.get("source"), str):
        raise ValueError(f"{name}: needs a source")
    classes = entry.get("classes", {})
    if not isinstance(classes, dict):
        raise ValueError(f"{name}: classes is an object of class and value")
    for figure in (entry["value"], *classes.values()):
        if isinstance(figure, bool) or not isinstance(figure, int | float) or not 0 < figure < math.inf:
            raise ValueError(f"{name}: {figure!r} is no positive number")
    return Parameter(
        float(entry["value"]),
        entry.get("by"),
        _deviation(name, entry.get("spread", 0.3)),
        _deviation(name, entry.get("class_spread", 0.0)),
        {key: float(value) for key, value in classes.items()},
        entry["source"],
        _deviation(name, entry.get("uncertainty", 0.0)),
        {key: _deviation(name, value) for key, value in entry.get("class_uncertainty", {}).items()},
    )


def _counts(entry: Any) -> dict[str, int]:
    """Campaigns by class. Schema 2 listed classes that two or more had measured."""
    if isinstance(entry, list):
        first = [f"{name}-v1" for name in entry if str(name).endswith("/efa")]
        return {str(name): _LISTED for name in (*entry, *first)}
    if not isinstance(entry, dict) or not all(type(count) is int and count > 0 for count in entry.values()):
        raise ValueError("seen_gpus and seen_networks say how many campaigns measured each")
    return dict(entry)


def _with_first_efa(parameter: Parameter) -> Parameter:
    """A parameter of schema 2, which had one class for both generations of EFA, for the first, too."""
    if parameter.by != "network" or "efa" not in parameter.classes or "efa-v1" in parameter.classes:
        return parameter
    known = parameter.class_uncertainty
    return replace(
        parameter,
        classes={**parameter.classes, "efa-v1": parameter.classes["efa"]},
        class_uncertainty={**known, **({"efa-v1": known["efa"]} if "efa" in known else {})},
    )


def _from_json(document: Any) -> Calibration:
    if not isinstance(document, dict) or document.get("schema") not in (2, SCHEMA):
        raise ValueError(f"no calibration of schema {SCHEMA}")
    parameters = {name: _parameter(name, entry) for name, entry in document["parameters"].items()}
    if document["schema"] != SCHEMA:
        parameters = {name: _with_first_efa(parameter) for name, parameter in parameters.items()}
    spreads = {name: _spread(name, entry) for name, entry in document.get("spreads", {}).items()}
    components = COMPONENTS | {
        name: _deviation(name, value) for name, value in document.get("components", {}).items() if name in COMPONENTS
    }
    return Calibration(
        parameters,
        tuple(document.get("fitted_to", ())),
        _counts(document.get("seen_gpus", {})),
        _counts(document.get("seen_networks", {})),
        components,
        spreads,
    )


def to_json(calibration: Calibration) -> dict[str, Any]:
    """The shape that `read_calibration` reads."""
    return {
        "schema": SCHEMA,
        "fitted_to": list(calibration.fitted_to),
        "seen_gpus": dict(calibration.seen_gpus),
        "seen_networks": dict(calibration.seen_networks),
        "components": {name: round(value, 4) for name, value in calibration.components.items()},
        "spreads": {
            name: {"low": round(spread.low, 4), "high": round(spread.high, 4), "rows": spread.rows}
            for name, spread in calibration.spreads.items()
        },
        "parameters": {
            name: {
                "by": parameter.by,
                "value": float(f"{parameter.value:.4g}"),
                "spread": round(parameter.spread, 4),
                "class_spread": round(parameter.class_spread, 4),
                "classes": {key: float(f"{value:.4g}") for key, value in sorted(parameter.classes.items())},
                "uncertainty": round(parameter.uncertainty, 4),
                "class_uncertainty": {
                    key: round(value, 4) for key, value in sorted(parameter.class_uncertainty.items())
                },
                "source": parameter.source,
            }
            for name, parameter in calibration.parameters.items()
        },
    }


def _shipped(name: str) -> Calibration:
    text = (resources.files("busbw.prediction") / name).read_text(encoding="utf-8")
    return _from_json(json.loads(text))


@lru_cache(maxsize=1)
def priors() -> Calibration:
    """The parameters before any fit: physical values and guesses, each with its source."""
    return _shipped("priors.json")


@lru_cache(maxsize=1)
def load_calibration() -> Calibration:
    """The calibration that ships."""
    return _shipped("calibrations.json")


def read_calibration(path: Path) -> Calibration:
    """A calibration of a file. Raises InputError for what is none, and for one that lacks a parameter."""
    if path.stat().st_size > _MOST_BYTES:
        raise InputError(f"{path}: larger than {_MOST_BYTES >> 20} MiB, so no calibration.")
    try:
        calibration = _from_json(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError, OverflowError) as error:
        raise InputError(f"{path}: no calibration ({error}). `busbw calibrate` writes one.") from None
    missing = sorted(set(priors().parameters) - set(calibration.parameters))
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}. `busbw calibrate` writes all of them.")
    return calibration
