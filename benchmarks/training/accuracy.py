"""T1 to T3: predicted steps beside measured ones, each source predicted by a calibration fitted to the others."""

from __future__ import annotations

import json
from collections import defaultdict
from functools import lru_cache
from pathlib import Path

import numpy as np

from benchmarks.rows import Measured, NotMeasurableError, Options
from benchmarks.training.calculon import calculon_steps
from busbw.accuracy.training import left_out_steps, score_steps
from busbw.accuracy.workloads import TrainingRow, read_rows
from busbw.workloads.training.calibration import TrainingCalibration

__all__ = ["beside_null", "left_out_calibrations", "predicted_share", "rows_of", "scored", "step_times"]

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
def scored(place: Path) -> tuple[tuple[str, ...], np.ndarray, np.ndarray, np.ndarray]:
    """Of each row its source, error, whether its interval holds it, and predicted over measured."""
    rows, _ = rows_of(place)
    found = score_steps(rows, left_out_calibrations(place))
    error = np.array([abs(one[2] / one[1] - 1) for one in found])
    covered = np.array([one[3] <= one[1] <= one[4] for one in found])
    signed = np.array([one[2] / one[1] for one in found])
    return tuple(row.source for row in rows), error, covered, signed


def _by_source(sources: tuple[str, ...], error: np.ndarray) -> dict[str, float]:
    names = np.array(sources)
    return {name: float(error[names == name].mean()) for name in sorted(set(sources))}


def _between_releases(rows: list[TrainingRow]) -> tuple[int, float]:
    """Rows whose very configuration was measured in other releases too, and the mean error of the median of those others."""
    same: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for row in rows:
        job = row.job
        what = (
            row.source,
            job.model.name,
            job.gpu,
            job.cluster.nodes,
            job.precision.name,
            job.seq_len,
            str(row.layouts),
            row.micro_batches,
        )
        # Time a sequence: releases changed the global batch of some.
        same[what].append(row.measured_s / job.global_batch)
    off = [
        abs(float(np.median(times[:place] + times[place + 1 :])) / time - 1)
        for times in same.values()
        if len(times) > 1
        for place, time in enumerate(times)
    ]
    return len(off), float(np.mean(off)) if off else 0.0


def step_times(options: Options) -> Measured:
    """T1."""
    sources, error, covered, _ = scored(folder(options))
    means = _by_source(sources, error)
    shown = ", ".join(f"{name} {100 * value:.0f} %" for name, value in means.items())
    repeated, floor = _between_releases(rows_of(folder(options))[0])
    note = (
        f"{len(error)} rows of {len(means)} sources; 80 % intervals hold {100 * covered.mean():.0f} %; {repeated} rows repeat over releases, and the median "
        f"of the others is off by {100 * floor:.1f} %; {shown}"
    )
    value = [float(error.mean()), float(np.median(list(means.values()))), float(np.quantile(error, 0.9))]
    return Measured(value, note=note)


def predicted_share(options: Options) -> Measured:
    """T2."""
    rows, wrongly = rows_of(folder(options))
    return Measured(len(rows) / (len(rows) + wrongly), note=f"{len(rows)} of {len(rows) + wrongly}")


def beside_null(options: Options) -> Measured:
    """T3: the null model takes the median model TFLOP/s of other sources' rows with the same GPU, precision and kind."""
    rows, _ = rows_of(folder(options))
    _, error, _, _ = scored(folder(options))
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
    peers: dict[str, float | None] = {"null model MAPE": null, "busbw MAPE": float(error.mean()), "Calculon MAPE": None}
    theirs = calculon_steps(rows)
    note = "busbw over null; Calculon runs where BUSBW_CALCULON names a checkout of it"
    if theirs:
        places = list(theirs)
        peers["Calculon MAPE"] = float(np.mean([abs(theirs[place] / rows[place].measured_s - 1) for place in places]))
        peers["busbw MAPE on Calculon's rows"] = float(error[places].mean())
        note = f"busbw over null; Calculon on the {len(places)} rows that it can express, with its own systems"
    return Measured(float(error.mean()) / null, peers, note=note)
