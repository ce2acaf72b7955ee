"""T1 to T3: predicted steps beside measured ones, each source predicted by a calibration fitted to the others."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.rows import Measured, NotMeasurableError, Options
from busbw.accuracy.training import left_out_steps, score_steps
from busbw.accuracy.workloads import TrainingRow, read_rows
from busbw.workloads.training.calibration import TrainingCalibration

__all__ = ["beside_null", "left_out_calibrations", "predicted_share", "rows_of", "step_times"]

_SHARED = Path(__file__).parents[3] / "shared" / "data" / "workloads"


def folder(options: Options) -> Path:
    """Where workload files are: beside --data, or ../shared/data/workloads."""
    places = [options.data.parent / "workloads", options.data] if options.data is not None else [_SHARED]
    for place in places:
        if (place / "models.json").is_file():
            return place
    raise NotMeasurableError(f"no workload files in {places[0]}; pass --data")


@lru_cache(maxsize=2)
def rows_of(place: Path) -> tuple[list[TrainingRow], int]:
    """The training rows, and how many of those refused have layout, measured time and catalogued GPU."""
    rows: list[TrainingRow] = []
    wrongly = 0
    for path in sorted(place.glob("*.json")):
        document = json.loads(path.read_bytes())
        if document.get("kind") == "training":
            found, refused = read_rows(document)
            rows += found
            wrongly += sum(one.kind == "unsupported" for one in refused)
    return rows, wrongly


@lru_cache(maxsize=2)
def left_out_calibrations(place: Path) -> dict[str, TrainingCalibration]:
    """By source the calibration that was fitted to all others."""
    return left_out_steps(rows_of(place)[0])[1]


@lru_cache(maxsize=2)
def _scored(place: Path) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray]:
    rows, _ = rows_of(place)
    scored = score_steps(rows, left_out_calibrations(place))
    error = np.array([abs(one[2] / one[1] - 1) for one in scored])
    covered = np.array([one[3] <= one[1] <= one[4] for one in scored])
    signed = np.array([one[2] / one[1] for one in scored])
    return tuple(row.source for row in rows), error, covered, signed


def _by_source(sources: tuple[str, ...], error: np.ndarray) -> dict[str, float]:
    names = np.array(sources)
    return {name: float(error[names == name].mean()) for name in sorted(set(sources))}


def step_times(options: Options) -> Measured:
    """T1."""
    sources, error, covered, _ = _scored(folder(options))
    means = _by_source(sources, error)
    shown = ", ".join(f"{name} {100 * value:.0f} %" for name, value in means.items())
    note = f"{len(error)} rows of {len(means)} sources; 80 % intervals hold {100 * covered.mean():.0f} %; {shown}"
    value = [float(error.mean()), float(np.median(list(means.values()))), float(np.quantile(error, 0.9))]
    return Measured(value, note=note)


def predicted_share(options: Options) -> Measured:
    """T2."""
    rows, wrongly = rows_of(folder(options))
    return Measured(len(rows) / (len(rows) + wrongly), note=f"{len(rows)} of {len(rows) + wrongly}")


def beside_null(options: Options) -> Measured:
    """T3: the null model takes the median model TFLOP/s of other sources' rows with the same GPU, precision and kind."""
    rows, _ = rows_of(folder(options))
    _, error, _, _ = _scored(folder(options))
    rate = [
        row.job.model.flops_per_token(row.job.seq_len)
        * row.job.global_batch
        * row.job.seq_len
        / row.measured_s
        / row.layouts[0].gpus
        for row in rows
    ]
    off = []
    for place, row in enumerate(rows):
        groups: dict[int, list[float]] = defaultdict(list)
        for other, flops in zip(rows, rate, strict=True):
            if other.source == row.source:
                continue
            same = (
                other.job.gpu == row.job.gpu,
                other.job.precision.name == row.job.precision.name,
                other.job.model.is_moe == row.job.model.is_moe,
            )
            groups[sum(same)].append(flops)
        guess = float(np.median(groups[max(groups)]))
        off.append(abs(rate[place] / guess - 1))
    null = float(np.mean(off))
    return Measured(
        float(error.mean()) / null,
        {"null model MAPE": null, "busbw MAPE": float(error.mean()), "Calculon": None},
        note="busbw over null; Calculon has no package to install here",
    )
