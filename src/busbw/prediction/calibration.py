"""Calibration: the parameters of the time model, each with its unit in its name, source and uncertainty, as data.

A parameter has one value, and values of its own for classes of GPU or network that were measured. A class never measured
takes the common value. What ships was fitted to published tables, which `fitted_to` names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any

from busbw.errors import InputError
from busbw.prediction.situation import Situation

__all__ = [
    "SIZE_CLASSES",
    "Calibration",
    "Parameter",
    "Spread",
    "interval_class",
    "load_calibration",
    "priors",
    "read_calibration",
    "size_class",
]

SCHEMA = 1
_MOST_BYTES = 1 << 22
_SMALL_BELOW, _LARGE_FROM = 64 << 10, 64 << 20
SIZE_CLASSES = ("small", "middle", "large")
"""Below 64 KiB, from 64 MiB, and between."""


def size_class(size_bytes: float) -> str:
    """The class of a size, which intervals go by.

    >>> size_class(8), size_class(1 << 20), size_class(1 << 30)
    ('small', 'middle', 'large')
    """
    return SIZE_CLASSES[(size_bytes >= _SMALL_BELOW) + (size_bytes >= _LARGE_FROM)]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One figure of the model and where it comes from."""

    value: float
    by: str | None
    """gpu or network: classes of it may have values of their own."""
    spread: float
    """Standard deviation of the logarithm of the common value, before fitting."""
    class_spread: float
    """The same of a class around the common value."""
    classes: Mapping[str, float]
    source: str

    def of(self, gpu: str, network: str) -> float:
        """The value for classes of GPU and network."""
        key = gpu if self.by == "gpu" else network
        return self.classes.get(key, self.value) if self.by else self.value


@dataclass(frozen=True, slots=True)
class Spread:
    """Measured over predicted time in a size class: 80 % lay between these factors, on tables not fitted to."""

    low: float
    high: float
    rows: int


@dataclass(frozen=True, slots=True)
class Calibration:
    """All parameters, what they were fitted to, and how far measurements lay from predictions."""

    parameters: Mapping[str, Parameter]
    fitted_to: tuple[str, ...] = ()
    seen_gpus: tuple[str, ...] = ()
    seen_networks: tuple[str, ...] = ()
    spreads: Mapping[str, Spread] = field(default_factory=dict)
    """By `interval_class`."""

    def figures(self, gpu: str, network: str) -> dict[str, float]:
        """Every parameter's value for classes of GPU and network."""
        return {name: parameter.of(gpu, network) for name, parameter in self.parameters.items()}

    def has_seen(self, gpu: str, network: str | None) -> bool:
        """Whether both classes were fitted; network None: only one domain, so it does not matter."""
        return gpu in self.seen_gpus and (network is None or network in self.seen_networks)

    def interval(self, where: Situation, size_bytes: float) -> tuple[float, float]:
        """Factors on a prediction between which 80 % of measurements are expected."""
        seen = self.has_seen(where.gpu, where.network if where.domains > 1 else None)
        name = interval_class(where, size_bytes, seen)
        known = name.removeprefix("unseen ")
        candidates = [self.spreads[key] for key in dict.fromkeys((name, known)) if key in self.spreads]
        if not candidates:
            return _NO_SPREAD.low, _NO_SPREAD.high
        # What was never measured is not known better than what was.
        both = [candidates[0], self.spreads.get(known, candidates[0])]
        least = 1.0 if seen else _UNSEEN
        return min(1 / least, *(spread.low for spread in both)), max(least, *(spread.high for spread in both))


def interval_class(where: Situation, size_bytes: float, seen: bool) -> str:
    """Which interval a prediction takes: by size class, one NVLink domain or several, classes measured or not."""
    return f"{'' if seen else 'unseen '}{'several' if where.domains > 1 else 'one'} {size_class(size_bytes)}"


_UNSEEN = math.exp(1.28 * 0.18)
"""80 % of classes lie within this factor of the common one: ring_share's spreads before fitting, 0.15 and 0.1, as one."""
_NO_SPREAD = Spread(0.67, 1.5, 0)
"""Before anything was measured: a guess."""


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
        float(entry.get("spread", 0.3)),
        float(entry.get("class_spread", 0.0)),
        {key: float(value) for key, value in classes.items()},
        entry["source"],
    )


def _from_json(document: Any) -> Calibration:
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError(f"no calibration of schema {SCHEMA}")
    parameters = {name: _parameter(name, entry) for name, entry in document["parameters"].items()}
    spreads = {
        name: Spread(float(entry["low"]), float(entry["high"]), int(entry["rows"]))
        for name, entry in document.get("spreads", {}).items()
    }
    return Calibration(
        parameters,
        tuple(document.get("fitted_to", ())),
        tuple(document.get("seen_gpus", ())),
        tuple(document.get("seen_networks", ())),
        spreads,
    )


def to_json(calibration: Calibration) -> dict[str, Any]:
    """The shape that `read_calibration` reads."""
    return {
        "schema": SCHEMA,
        "fitted_to": list(calibration.fitted_to),
        "seen_gpus": list(calibration.seen_gpus),
        "seen_networks": list(calibration.seen_networks),
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
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError) as error:
        raise InputError(f"{path}: no calibration ({error}). `busbw calibrate` writes one.") from None
    missing = sorted(set(priors().parameters) - set(calibration.parameters))
    if missing:
        raise InputError(f"{path}: lacks {', '.join(missing)}. `busbw calibrate` writes all of them.")
    return calibration
